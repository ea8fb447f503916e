"""Small learners, random batches, and our networks rewritten with `torch.nn` for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import rl_training.algorithms as algorithms
from rl_training.algorithms import Learner
from rl_training.data.extra_columns import MC_RETURNS, NEXT_ACTIONS
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import MLP, EnsembleMLP
from rl_training.spaces import SpaceSpec

OBS, ACTIONS, CHOICES, BATCH = 3, 2, 4, 16
CONTINUOUS = SpaceSpec(obs_dim=OBS, low=(-2.0,) * ACTIONS, high=(2.0,) * ACTIONS)
DISCRETE = SpaceSpec(obs_dim=OBS, num_actions=CHOICES)
# Sizes and periods small enough that a handful of updates goes through every variant.
SMALL: dict[str, Any] = {
    "num_critics": 3,
    "n_quantiles": 5,
    "policy_delay": 2,
    "target_update_interval": 2,
    "n_actions": 2,
    "n_action_samples": 2,
    "flow_steps": 2,
}
# For learners with wider critics by default as well.
SMALL_NETWORK: dict[str, Any] = {"hidden_sizes": (16, 16), "critic_hidden_sizes": None}


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def all_learners() -> list[type[Learner]]:
    """Every exported learner with a policy, once, regardless of aliases; FQE only evaluates a given policy and is
    excluded."""
    exported = (getattr(algorithms, name) for name in algorithms.__all__)
    found = {thing for thing in exported if isinstance(thing, type) and issubclass(thing, Learner)}
    return sorted(found - {Learner, algorithms.FQE}, key=label)


def label(learner: type[Learner]) -> str:
    """Test id of a learner: its algorithm, and its kind of actions if the algorithm has both."""
    return f"{learner.name}-discrete" if learner.__name__.startswith("Discrete") else learner.name


def small_options(learner: type[Learner], **changes: Any) -> dict[str, Any]:
    small = {key: value for key, value in SMALL.items() if key in learner.Config.model_fields}
    if issubclass(learner, algorithms.CQL):
        del small["num_critics"]  # two, as published
    return small | changes


def build(
    learner: type[Learner],
    *,
    normalize: bool = False,
    network: dict[str, Any] | None = None,
    seed: int = 0,
    device: str = "cpu",
    **changes: Any,
) -> Any:
    """A small learner; the same `seed` gives the same networks and noise."""
    options = small_options(learner, **changes)
    torch.manual_seed(seed)
    model = learner.build_model(
        DISCRETE if learner.discrete else CONTINUOUS,
        learner.Network.parse(SMALL_NETWORK | (network or {})),
        learner.Config.parse(options),
        normalize_observations=normalize,
    )
    built = learner(model=model.to(device), **options)
    built.seed(seed)
    return built


def random_batch(
    *, discrete: bool = False, done: float | None = None, seed: int = 0, size: int = BATCH
) -> TransitionBatch:
    """Random transitions; `done` sets every flag, otherwise about a third are set."""
    g = torch.Generator().manual_seed(seed)

    def actions() -> Tensor:
        if discrete:
            return torch.randint(CHOICES, (size,), generator=g)
        return 2.0 * torch.rand(size, ACTIONS, generator=g) - 1.0

    flags = (torch.rand(size, generator=g) < 0.3).float()
    columns = {
        "obs": torch.randn(size, OBS, generator=g),
        "actions": actions(),
        "rewards": torch.randn(size, generator=g),
        "next_obs": torch.randn(size, OBS, generator=g),
        "dones": flags if done is None else torch.full((size,), done),
        "next_actions": actions(),
        "mc_returns": torch.randn(size, generator=g),
    }
    return TransitionBatch.from_mapping(columns, (NEXT_ACTIONS, MC_RETURNS))


def double(batch: TransitionBatch) -> TransitionBatch:
    """Convert to float64, where a different order of summation cannot be mistaken for a different formula."""
    return batch._make(None if column is None else column.double() for column in batch)


def snapshot(learner: Learner) -> dict[str, Tensor]:
    """A copy of every parameter and buffer."""
    return {name: tensor.clone() for name, tensor in learner.state_dict()["networks"].items()}


def sequential(net: MLP) -> nn.Sequential:
    """An actor's or value function's MLP as an `nn.Sequential`, with copied weights."""
    return member(net, 0)


def member(net: EnsembleMLP, i: int) -> nn.Sequential:
    """Member `i` of an ensemble as a separate network, with copied weights."""
    layers: list[nn.Module] = []
    for linear, norm in net._layers():
        layers.append(_linear(linear.weight[i], linear.bias[i, 0]))
        layers.append(ACTIVATIONS[net.activation]())
        if norm is not None:
            own = nn.LayerNorm(norm.weight.shape[-1], eps=norm.epsilon, dtype=norm.weight.dtype)
            own.weight.data.copy_(norm.weight[i, 0].detach())
            own.bias.data.copy_(norm.bias[i, 0].detach())
            layers.insert(len(layers) if net.norm_after_activation else -1, own)
    return nn.Sequential(*layers, _linear(net.head.weight[i], net.head.bias[i, 0]))


def constant_outputs(net: EnsembleMLP, values: list[Any]) -> None:
    """Make member i return `values[i]` (a number, or a list of quantiles) for every input."""
    with torch.no_grad():
        net.head.weight.zero_()
        for bias, value in zip(net.head.bias, values):
            bias.copy_(torch.as_tensor(value, dtype=bias.dtype).expand_as(bias))


def same_noise(seed: int, *shape: int) -> Iterator[Tensor]:
    """The noise that a learner seeded with `seed` draws in successive updates."""
    g = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(shape, generator=g)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """From our `[in, out]` matrix."""
    layer = nn.Linear(*weight.shape, dtype=weight.dtype)
    layer.weight.data.copy_(weight.detach().T)
    layer.bias.data.copy_(bias.detach())
    return layer
