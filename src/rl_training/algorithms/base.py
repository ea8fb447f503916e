"""`Learner`: networks, optimisers, counters and `gradient_step`, the part every algorithm writes itself.

House rule: all losses of one update are formed from the parameters before that update; then every optimiser
steps, then the targets follow. (The authors' EDAC and CORL's IQL do the same; where an author steps the critic
first, the actor here sees critics one step older.) So the losses of one update do not depend on each other, nor do
the steps after them, and a GPU may compute them side by side.

Losses are pure: tensors in, a scalar and named terms out. Randomness is drawn before them by `gradient_step`, so
the same function runs eagerly, compiled, captured, or in a test with known noise.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.optim import Adam, Follow, Group, apply_fused, apply_lists, follow
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.models.actor_critic import Model as ModelBase
from rl_training.models.mlp import NetworkConfig
from rl_training.models.policies import Policy
from rl_training.settings import Fraction, PositiveFloat, Settings

if TYPE_CHECKING:
    from rl_training.spaces import SpaceSpec

Terms = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, Terms]]
Result = TypeVar("Result")


class LearnerConfig(Settings):
    """Hyperparameters every learner has."""

    learning_rate: PositiveFloat = 3e-4
    """of Adam"""
    gamma: Fraction = 0.99
    """discount"""


class TargetConfig(LearnerConfig):
    """`tau`: the share of the way the target networks go at each of their moves."""

    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """share of the way the target networks go at each of their moves"""


@dataclass(frozen=True)
class UpdateResult:
    """What one update did. Metrics stay 0-d tensors on the device until somebody reports them."""

    metrics: Terms
    num_gradient_steps: int = 1


@dataclass
class Execution:
    """How `minimize` runs its parts; the mathematics does not know.

    `transform` may compile a function; `apply` steps an optimiser and moves what follows it; with `branches`, what
    does not depend on each other runs on streams of its own, which a CUDA graph turns into parallel branches.
    """

    transform: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
    apply: Callable[[Group, list[Follow]], None] = apply_fused
    branches: tuple[torch.cuda.Stream, ...] = ()
    _transformed: dict[Any, Callable[..., Any]] = field(default_factory=dict)

    def parallel(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """Results of jobs that do not depend on each other: the first runs here, the others on branches."""
        contexts: list[AbstractContextManager[Any]] = [nullcontext() for _ in jobs]
        branches = self.branches[: max(0, len(jobs) - 1)]
        for i, branch in enumerate(branches, start=1):
            branch.wait_stream(torch.cuda.current_stream(branch.device))
            contexts[i] = torch.cuda.stream(branch)
        results = []
        for context, job in zip(contexts, jobs):
            with context:
                results.append(job())
        for branch in branches:
            torch.cuda.current_stream(branch.device).wait_stream(branch)
        return results

    def prepared(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The transformed function, made once (bound methods compare equal, so they are good keys)."""
        if function not in self._transformed:
            self._transformed[function] = self.transform(function)
        return self._transformed[function]


class Learner:
    """Base of all learners: `Learner(model=…, **hyperparameters)`.

    A subclass sets `Config` and `Model`, makes its optimisers, and writes `gradient_step`.
    """

    name: ClassVar[str]
    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    Model: ClassVar[Callable[..., ModelBase]]
    Network: ClassVar[type[NetworkConfig]] = NetworkConfig
    discrete: ClassVar[bool] = False
    # Whether batches must hold the data's own next actions (offline only).
    needs_next_actions: ClassVar[bool] = False
    # Names of the optimisers a learning-rate schedule turns; None means all.
    scheduled: ClassVar[tuple[str, ...] | None] = None
    # Whether `explore` depends on how far the run has come.
    explores_by_progress: ClassVar[bool] = False

    def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
        self.config: Any = self.Config.parse(hyperparameters)
        self.model = model
        self.device: torch.device = model.device
        self.optimizers: dict[str, Adam] = {}
        self.updates = 0
        self.version = 0
        self.torn = False
        self.generator = torch.Generator(self.device)
        self.seed(int(torch.randint(2**31, ())))
        self.execution = Execution(apply=apply_lists if self.device.type == "cuda" else apply_fused)
        # The slope of a loss in itself, made once: autograd would fill a new one at every loss of every update.
        self._one = torch.ones((), device=self.device)
        self._terms: Terms = {}
        self._found: dict[nn.Module, list[Tensor]] = {}
        self._owners: dict[nn.Module, str | None] = {}

    # What a subclass provides.

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        """What of the hyperparameters decides the model's shape, as arguments of `Model`."""
        return {}

    @classmethod
    def configure(cls, config: Any, updates_per_step: int) -> Any:
        """Hyperparameters that follow from the trainer's rhythm where the user left them open."""
        return config

    def gradient_step(self, batch: TransitionBatch, phase: Hashable) -> Terms:
        """One update on normalised observations; obeys the capture contract (no host reads)."""
        raise NotImplementedError

    def phase(self) -> Hashable:
        """Which variant of `gradient_step` is next: chosen in Python from the counter, one graph each."""
        return None

    def ends_period(self, period: int) -> bool:
        """Whether the update to come is the last of every `period` updates."""
        return (self.updates + 1) % period == 0

    def explore(self, policy: Policy, obs: Tensor, rng: np.random.Generator, progress: float) -> Tensor:
        """Actions `[n, A]` for collecting experience with `policy`, at `progress` in [0, 1] of the run."""
        noise = rng.standard_normal((len(obs), self.model.action_dim), dtype=np.float32)
        return policy.sample(obs, torch.from_numpy(noise))

    # What every learner shares.

    @classmethod
    def build_model(
        cls, spaces: SpaceSpec, network: NetworkConfig, config: Any, *, normalize_observations: bool = False
    ) -> ModelBase:
        """The model this learner trains, from the configuration's sections."""
        return cls.Model(
            spaces.obs_dim,
            spaces.num_actions or spaces.action_dim,
            network.hidden_sizes,
            critic_hidden_sizes=network.critic_hidden_sizes,
            normalize_observations=normalize_observations,
            **cls.model_options(config),
        )

    def modules(self) -> dict[str, nn.Module]:
        """Everything with parameters or buffers; `state_dict` walks it, so nothing is forgotten."""
        return {"model": self.model}

    def expect_terms(self, **values: float | Tensor) -> None:
        """Terms that not every update produces, and what they read until one does."""
        self._terms.update({name: torch.as_tensor(value, device=self.device) for name, value in values.items()})

    def normal(self, *shape: int) -> Tensor:
        """Standard normal noise from the learner's own generator."""
        return torch.randn(shape, device=self.device, generator=self.generator)

    def seed(self, seed: int) -> None:
        """Seed the generator that updates and sampling draw from."""
        self.generator.manual_seed(seed)

    def adam(self, *modules: nn.Module, learning_rate: float | None = None) -> Adam:
        """An optimiser that owns the parameters of `modules`."""
        parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
        return Adam(parameters, self.config.learning_rate if learning_rate is None else learning_rate)

    def update(self, batch: Mapping[str, Any], *, global_step: int) -> UpdateResult:
        """One update on a batch given by the caller (see `TransitionBatch` for the columns)."""
        if global_step < 0:
            raise ConfigError(f"global_step must be >= 0, got {global_step}")
        self.step(TransitionBatch.from_mapping(batch))
        return UpdateResult(dict(self._terms))

    def step(self, batch: TransitionBatch) -> None:
        """One update and its bookkeeping."""
        self.finish_steps(self.gradient_step(self.normalized(batch), self.phase()), 1)

    def finish_steps(self, terms: Terms, count: int) -> None:
        """Count the updates; terms of a part that did not run keep their last value."""
        self.updates += count
        self.version += 1
        self._terms.update(terms)

    @property
    def terms(self) -> Terms:
        """The newest value of every term."""
        return self._terms

    def normalized(self, batch: TransitionBatch) -> TransitionBatch:
        normalizer = self.model.normalizer
        if not normalizer.enabled:
            return batch
        return batch._replace(obs=normalizer(batch.obs), next_obs=normalizer(batch.next_obs))

    def evaluate(self, inputs: tuple[Any, ...], *functions: Callable[..., Any]) -> list[Any]:
        """What several losses share, each a function of `inputs`, computed side by side."""
        return self.execution.parallel(
            [partial(self.execution.prepared(function), *inputs) for function in functions]
        )

    def minimize(
        self,
        inputs: tuple[Any, ...],
        objectives: Mapping[str, Loss],
        targets: Mapping[nn.Module, nn.Module] | None = None,
        *,
        tau: float = 0.0,
    ) -> Terms:
        """Minimise each loss over the parameters its optimiser owns; then let `targets` follow by `tau`.

        Gradients are taken for owned parameters only. `objectives` maps an optimiser's name to its loss, a
        function of `inputs`.
        """
        gradients = self.execution.parallel(
            [partial(self._gradients, name, loss, inputs) for name, loss in objectives.items()]
        )
        follows: dict[str | None, list[Follow]] = {name: [] for name in (*objectives, None)}
        for target, source in (targets or {}).items():
            owner = self._owner(source)
            follows[owner if owner in objectives else None].append(
                (self._parameters(target), self._parameters(source), tau)
            )
        with torch.no_grad():
            self.execution.parallel(
                [
                    partial(self.execution.apply, self.optimizers[name].group(found), follows[name])
                    for name, (found, _) in zip(objectives, gradients)
                ]
            )
            follow(follows[None])
        return {key: term.detach() for _, terms in gradients for key, term in terms.items()}

    def _parameters(self, module: nn.Module) -> list[Tensor]:
        """A module's parameters, found once: walking its tree at every update would be felt."""
        if module not in self._found:
            self._found[module] = list(module.parameters())
        return self._found[module]

    def _owner(self, module: nn.Module) -> str | None:
        """The one optimiser that steps `module`, found once; None where there is none or more than one."""
        if module not in self._owners:
            parts = {id(p) for p in self._parameters(module)}
            names = [n for n, o in self.optimizers.items() if any(id(p) in parts for p in o.parameters)]
            self._owners[module] = names[0] if len(names) == 1 else None
        return self._owners[module]

    def _gradients(self, name: str, loss: Loss, inputs: tuple[Any, ...]) -> tuple[tuple[Tensor, ...], Terms]:
        value, terms = self.execution.prepared(loss)(*inputs)
        return torch.autograd.grad(value, self.optimizers[name].parameters, self._one), terms

    def scheduled_optimizers(self) -> list[Adam]:
        """The optimisers whose learning rate a schedule turns."""
        return [o for name, o in self.optimizers.items() if self.scheduled is None or name in self.scheduled]

    def set_learning_rates(self, rates: Sequence[float] | Tensor) -> None:
        """Set the scheduled learning rates, in the order of `scheduled_optimizers`, in place."""
        for optimizer, rate in zip(self.scheduled_optimizers(), rates):
            optimizer.learning_rate.fill_(rate)

    def state_dict(self) -> dict[str, Any]:
        """Three drawers: `networks` and `optimizers` (flat name -> tensor), `counters` (plain values)."""
        networks = {
            f"{name}.{key}": tensor
            for name, module in self.modules().items()
            for key, tensor in module.state_dict().items()
        }
        optimizers = {
            f"{name}.{key}": tensor
            for name, optimizer in self.optimizers.items()
            for key, tensor in optimizer.state_dict().items()
        }
        return {"networks": networks, "optimizers": optimizers, "counters": {"updates": self.updates}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore in place what `state_dict` returned."""
        for name, module in self.modules().items():
            module.load_state_dict(_below(state["networks"], name))
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(_below(state["optimizers"], name))
        self.updates = int(state["counters"]["updates"])
        self.version += 1


def _below(flat: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) + 1 :]: value for key, value in flat.items() if key.startswith(f"{prefix}.")}


def check_num_critics(config: Any, model: Any) -> None:
    """A learner told of another number of critics than its model has is a mistake."""
    if config.num_critics != model.num_critics:
        raise ConfigError(f"num_critics must equal the model's {model.num_critics}, got {config.num_critics}")
