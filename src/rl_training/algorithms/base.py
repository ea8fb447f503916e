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
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.execution import Execution
from rl_training.algorithms.optim import ADAM_SETTINGS, Adam, Polyak, polyak_update
from rl_training.data.transitions import Column, TransitionBatch
from rl_training.errors import ConfigError
from rl_training.models.actor_critic import Model as ModelBase
from rl_training.models.mlp import NetworkConfig, NetworkShape
from rl_training.models.policies import Policy
from rl_training.settings import Fraction, PositiveFloat, Settings

if TYPE_CHECKING:
    from rl_training.spaces import SpaceSpec

# How far rounding may take an action out of [-1, 1].
_ACTION_SLACK = 1e-5

Terms = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, Terms]]


class LearnerConfig(Settings):
    """Hyperparameters every learner has."""

    learning_rate: PositiveFloat = 3e-4
    """of Adam"""
    gamma: Fraction = 0.99
    """discount"""


class TargetConfig(LearnerConfig):
    """Those of a learner with target networks."""

    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """share of the way the target networks go at each of their moves (Polyak averaging)"""


@dataclass(frozen=True)
class UpdateResult:
    """What one update did. Metrics stay 0-d tensors on the device until somebody reports them."""

    metrics: Terms
    num_gradient_steps: int = 1


class Learner:
    """Base of all learners: `Learner(model=…, **hyperparameters)`.

    A subclass sets `Config` and `Model`, makes its optimisers, and writes `gradient_step`.
    """

    name: ClassVar[str]
    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    Model: ClassVar[Callable[..., ModelBase]]
    Network: ClassVar[type[NetworkShape]] = NetworkConfig
    discrete: ClassVar[bool] = False
    # Hyperparameters the model has already decided: unset they are the model's, another value is refused.
    fixed_by_model: ClassVar[tuple[str, ...]] = ()
    # Names of the optimisers a learning-rate schedule turns; None means all.
    scheduled: ClassVar[tuple[str, ...] | None] = None
    # Whether `explore` depends on how far the run has come.
    explores_by_progress: ClassVar[bool] = False
    # Columns that minibatches must hold in addition to those of every batch; only data sets have them.
    extras: ClassVar[tuple[Column, ...]] = ()

    @property
    def summary(self) -> str:
        """Which of several known algorithms these settings make, for the first lines of a run; empty if obvious."""
        return ""

    def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
        decided = {name: getattr(model, name) for name in self.fixed_by_model}
        self.config: Any = self.Config.parse(decided | hyperparameters)
        for name, value in decided.items():
            if (given := getattr(self.config, name)) != value:
                raise ConfigError(f"{name} must equal the model's {value}, got {given}")
        self.model = model
        self.device: torch.device = model.device
        self.optimizers: dict[str, Adam] = {}
        self.updates = 0
        # The update from which periods are counted (see `ends_period`); not part of the state.
        self.period_offset = 0
        # Raised whenever the networks have changed, so that whoever keeps a copy knows that it is old.
        self.version = 0
        # True after an exception inside a step, which leaves some parameters stepped and others not.
        self.step_interrupted = False
        self.generator = torch.Generator(self.device)
        self.seed(int(torch.randint(2**31, ())))
        self.execution = Execution.on(self.device)
        self._one = torch.ones((), device=self.device)  # `grad_outputs` of `autograd.grad`, allocated once
        self._terms: Terms = {}
        self._follows: dict[tuple[Hashable, ...], dict[str | None, list[Polyak]]] = {}

    # What a subclass provides.

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        """The hyperparameters that shape the model, as arguments of `Model`."""
        return {}

    @classmethod
    def configure(cls, config: Any, updates_per_step: int) -> Any:
        """Fill in what the user left open and the number of updates per environment step decides."""
        return config

    @classmethod
    def structure(cls, config: Any) -> dict[str, Any]:
        """The hyperparameters in which learners of one population may not differ: all but plain numbers with a
        fraction, which an update may take from a tensor. The settings of Adam and of extra columns are the same
        for a whole stack."""
        shared = {*ADAM_SETTINGS, *(name for column in cls.extras for name in column.settings)}
        return {key: value for key, value in dict(config).items() if not isinstance(value, float) or key in shared}

    def gradient_step(self, batch: TransitionBatch, variant: Hashable) -> Terms:
        """One update on normalised observations; obeys the capture contract (no host reads)."""
        raise NotImplementedError

    def variant(self, update: int) -> Hashable:
        """Which variant of `gradient_step` an update (counted from 0) is; each has a CUDA graph of its own."""
        return None

    def ends_period(self, update: int, period: int) -> bool:
        """Whether `update` is the last of every `period` updates, counted from `period_offset`."""
        return (update + 1 - self.period_offset) % period == 0

    def targets(self) -> dict[nn.Module, nn.Module]:
        """Each target network and the network it follows; a model declares its own."""
        return self.model.targets()

    def explore(self, policy: Policy, obs: Tensor, rng: np.random.Generator, progress: float) -> Tensor:
        """Actions `[n, A]` for collecting experience with `policy`, at `progress` in [0, 1] of the run.

        A sample; a deterministic policy has none, and what noise to add is its learner's to say.
        """
        if not policy.stochastic:
            return policy.mode(obs)
        noise = rng.standard_normal((obs.shape[0], self.model.action_dim), dtype=np.float32)
        return policy.sample(obs, torch.from_numpy(noise))

    # What every learner shares.

    @classmethod
    def build_model(
        cls, spaces: SpaceSpec, network: NetworkShape, config: Any, *, normalize_observations: bool = False
    ) -> ModelBase:
        """The model this learner trains; every key of its `Network` section is an argument of the model."""
        return cls.Model(
            spaces.obs_dim,
            spaces.num_actions or spaces.action_dim,
            normalize_observations=normalize_observations,
            **dict(network) | cls.model_options(config),
        )

    def modules(self) -> dict[str, nn.Module]:
        """Everything with parameters or buffers; `state_dict` walks it, so nothing is forgotten."""
        return {"model": self.model}

    def expect_terms(self, **values: float | Tensor) -> None:
        """Name terms that not every update produces, with their values until one does."""
        self._terms.update({name: torch.as_tensor(value, device=self.device) for name, value in values.items()})

    def normal(self, *shape: int) -> Tensor:
        """Standard normal noise from the learner's own generator."""
        return self.execution.draw("normal", shape, self.generator)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1) from the same generator."""
        return self.execution.draw("uniform", shape, self.generator)

    def seed(self, seed: int) -> None:
        """Seed the generator that updates and sampling draw from."""
        self.generator.manual_seed(seed)

    def adam(self, *modules: nn.Module, learning_rate: float | None = None, **settings: Any) -> Adam:
        """An optimiser that owns the parameters of `modules`; `settings` (betas, …) as in `Adam`."""
        parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
        rate = self.config.learning_rate if learning_rate is None else learning_rate
        return Adam(parameters, rate, **settings)

    def update(self, batch: Mapping[str, Any] | TransitionBatch, *, global_step: int) -> UpdateResult:
        """One update on a batch given by the caller: a `TransitionBatch`, or a mapping with its columns.

        A training loop calls `step` with rows that were checked when they were loaded or collected.
        """
        if global_step < 0:
            raise ConfigError(f"global_step must be >= 0, got {global_step}")
        columns = TransitionBatch.from_mapping(batch, self.extras)
        for column in self.extras:
            if getattr(columns, column.name) is None:
                raise ConfigError(f"batch: {self.name} needs the column {column.name!r}, {column.meaning}")
        self._require_fit(columns)
        self.step(columns)
        return UpdateResult(dict(self._terms))

    def _require_fit(self, batch: TransitionBatch) -> None:
        """Refuse columns on another device, of another width, or with actions outside their range.

        The range is checked on the CPU only: on a GPU, each check would wait for all work queued there.
        """
        for name, column in batch._asdict().items():
            if column is not None and column.device != self.device:
                raise ConfigError(
                    f"batch: {name} is on {column.device}, the learner on {self.device}; move it with .to(device)"
                )
        rows, actions, choices = len(batch.obs), batch.actions, self.model.num_actions
        if batch.obs.shape[1] != self.model.obs_dim:
            raise ConfigError(f"batch: obs must have {self.model.obs_dim} components, got {batch.obs.shape[1]}")
        if choices and actions.dtype != torch.int64:
            raise ConfigError(f"batch: actions must be whole numbers of shape ({rows},), one per row")
        if not choices and tuple(actions.shape) != (rows, self.model.action_dim):
            shape = (rows, self.model.action_dim)
            raise ConfigError(f"batch: actions must have shape {shape}, got {tuple(actions.shape)}")
        if rows and self.device.type == "cpu":
            low, high = (0.0, choices - 1.0) if choices else (-1.0 - _ACTION_SLACK, 1.0 + _ACTION_SLACK)
            least, most = float(actions.min()), float(actions.max())
            if not low <= least <= most <= high:  # also if one of them is NaN
                wanted = f"0..{choices - 1}; number them from 0" if choices else "[-1, 1]; scale them by the bounds"
                raise ConfigError(f"batch: action {most if most > high else least:g} is outside {wanted}")

    def step(self, batch: TransitionBatch) -> None:
        """One update and its bookkeeping."""
        self.finish_steps(self.gradient_step(self.normalized(batch), self.variant(self.updates)), 1)

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
        """The batch as the networks see it."""
        normalizer = self.model.normalizer
        if not normalizer.enabled:
            return batch
        return batch._replace(obs=normalizer(batch.obs), next_obs=normalizer(batch.next_obs))

    def normalize_by(self, mean: Tensor, std: Tensor) -> None:
        """From now on see observations by these moments, `[O]` each."""
        self.model.normalizer.set_moments(mean, std)
        self.version += 1

    def compute(self, inputs: tuple[Any, ...], *functions: Callable[..., Any]) -> list[Any]:
        """The results of `functions` of `inputs`, side by side: what several losses share."""
        return self.execution.parallel(
            [partial(self.execution.prepared(function), *inputs) for function in functions]
        )

    def minimize(
        self, inputs: tuple[Any, ...], objectives: Mapping[str, Loss], *, tau: float | None = None
    ) -> Terms:
        """Minimise each loss over the parameters its optimiser owns; then, given `tau`, move the targets by it.

        Gradients are taken for owned parameters only. `objectives` maps an optimiser's name to its loss, a
        function of `inputs`.
        """
        if self.execution.on_losses is not None:
            return self.execution.on_losses(inputs, objectives, tau)
        gradients = self.execution.parallel(
            [partial(self._gradients, name, loss, inputs) for name, loss in objectives.items()]
        )
        self.take_steps({name: found for name, (found, _) in zip(objectives, gradients)}, tau)
        return {key: term.detach() for _, terms in gradients for key, term in terms.items()}

    def take_steps(self, gradients: Mapping[str, Sequence[Tensor]], tau: float | None) -> None:
        """Step the named optimisers with the gradients of their parameters; then, given `tau`, move the targets."""
        follows = self._follows_of(tuple(gradients), tau)
        steps = [
            partial(self.execution.apply, self.optimizers[name].group(found), follows[name])
            for name, found in gradients.items()
        ]
        self.step_interrupted = True
        with torch.no_grad():
            self.execution.parallel(steps)
            polyak_update(follows[None])
        self.step_interrupted = False

    def _follows_of(self, stepped: tuple[str, ...], tau: float | None) -> dict[str | None, list[Polyak]]:
        """The targets that move right after each optimiser of `stepped`; the others, under None, move last.

        Found once: walking the networks at every update would be felt.
        """
        if (known := self._follows.get((stepped, tau))) is not None:
            return known
        found: dict[str | None, list[Polyak]] = {name: [] for name in (*stepped, None)}
        if tau is not None:
            for target, source in self.targets().items():
                sources: list[Tensor] = list(source.parameters())
                parts = {id(p) for p in sources}
                owners = [n for n, o in self.optimizers.items() if any(id(p) in parts for p in o.parameters)]
                owner = owners[0] if len(owners) == 1 and owners[0] in stepped else None
                found[owner].append((list(target.parameters()), sources, tau))
        self._follows[stepped, tau] = found
        return found

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
        """Three parts: `networks` and `optimizers` (flat name -> tensor), `counters` (plain values)."""
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
        self.load_networks(state["networks"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(_below(state["optimizers"], name))
        self.updates = int(state["counters"]["updates"])
        self.step_interrupted = False

    def load_networks(self, networks: Mapping[str, Tensor]) -> None:
        """Restore the `networks` part alone, in place."""
        for name, module in self.modules().items():
            module.load_state_dict(_below(networks, name))
        self.version += 1


def _below(flat: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) + 1 :]: value for key, value in flat.items() if key.startswith(f"{prefix}.")}
