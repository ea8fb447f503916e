"""`Learner`, the base class of all algorithms: networks, optimisers, counters, and an abstract `gradient_step`.

All losses of one update use the parameters before that update; then every optimiser steps, then the targets are
updated. (The authors' EDAC and CORL's IQL do the same. If an author steps the critic first, the actor here uses
critics that are one step older.) The losses of one update are therefore independent, and so are the steps; a GPU
may compute them in parallel. If the update of a learner has an order (CrossQ, FlashSAC), it calls `minimize` once
per phase. A phase uses the parameters and statistics that the earlier ones left, and none of their terms.

Losses are pure: tensors in, a scalar and named terms out, and the new statistics of networks that normalise by
batches. `gradient_step` draws all random numbers before them, so that the same function runs eagerly, compiled,
captured, or in a test with known noise.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms import optim
from rl_training.algorithms.batch_checks import require_fit, require_optimizers, require_scalar, require_terms
from rl_training.algorithms.execution import Draws, Execution, by_rows
from rl_training.algorithms.optim import ADAM_SETTINGS, Adam, Polyak
from rl_training.data.extra_columns import Column
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.models.actor_critic import Model as ModelBase
from rl_training.models.mlp import NetworkConfig, NetworkShape
from rl_training.models.policies import Policy, RewardScale
from rl_training.settings import Fraction, NonNegativeInt, PositiveFloat, Settings

if TYPE_CHECKING:
    from rl_training.spaces import SpaceSpec

Terms = dict[str, Tensor]
# A loss, its named terms and, if its optimiser has `Learner.statistics`, their new values.
Loss = Callable[..., tuple[Tensor, Terms] | tuple[Tensor, Terms, list[Tensor]]]
# A loss by the name of its optimiser; "a+b" if optimisers a and b minimise it together.
Objectives = Mapping[str, Loss]


class Gradients(NamedTuple):
    """What one phase of an update computes before its steps."""

    parameters: dict[str, list[Tensor]]  # gradients by optimiser
    statistics: dict[str, list[Tensor]]  # new values by optimiser


def names_of(objectives: Objectives) -> list[tuple[str, ...]]:
    """The names of the optimisers of each objective."""
    return [tuple(key.split("+")) for key in objectives]


class LearnerConfig(Settings):
    """Hyperparameters of every learner."""

    learning_rate: PositiveFloat = 3e-4
    """learning rate of Adam"""
    gamma: Fraction = 0.99
    """discount factor"""


class TargetConfig(LearnerConfig):
    """Hyperparameters of learners with target networks."""

    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """Polyak coefficient: target ← (1 − tau)·target + tau·source"""


class ActorStartConfig(LearnerConfig):
    """Hyperparameters of online learners with an actor and critics."""

    actor_starts: NonNegativeInt | None = None
    """critic updates before the first actor update; null: 0, or 5,000 if `init_from` has no critics that fit"""


@dataclass(frozen=True)
class UpdateResult:
    """Result of one update. Metrics are 0-d tensors on the device; reading one waits for the device."""

    metrics: Terms
    num_gradient_steps: int = 1


class Learner:
    """Base of all learners: `Learner(model=…, **hyperparameters)`.

    A subclass sets `Config` and `Model`, names the networks to optimise or creates `optimizers` itself, and
    implements `gradient_step`.
    """

    name: ClassVar[str]
    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    Model: ClassVar[Callable[..., ModelBase]]
    Network: ClassVar[type[NetworkShape]] = NetworkConfig
    discrete: ClassVar[bool] = False
    # Networks of the model that have an optimiser of their own, by the same name.
    optimized: ClassVar[tuple[str, ...]] = ()
    # Terms that not every update has; they are 0 before the first that does.
    occasional_terms: ClassVar[tuple[str, ...]] = ()
    # Hyperparameters that the model fixes: by default the model's value; any other value is an error.
    fixed_by_model: ClassVar[tuple[str, ...]] = ()
    # Names of the optimisers that a learning-rate schedule applies to; None means all.
    scheduled: ClassVar[tuple[str, ...] | None] = None
    # Whether targets contain the value of the next observation; if not, `n_step` is not a setting.
    bootstraps: ClassVar[bool] = True
    # Settings of `algo_kwargs` that are accepted but have no effect.
    ignored: ClassVar[tuple[str, ...]] = ()
    # Whether targets are updated before the optimisers step, from the parameters that the losses used.
    targets_first: ClassVar[bool] = False
    # The smallest `batch_size`; batch normalisation needs two rows.
    least_batch: ClassVar[int] = 1
    # The setting that divides the advantage in cloning weights, if they depend on critics of the policy.
    advantage_divisor: ClassVar[str | None] = None
    # Online, the most environment steps before the first update with `learning_starts: auto`.
    most_first_steps: ClassVar[int] = 1_000
    # Extra columns of minibatches: computed when data are loaded; online runs are refused.
    extras: ClassVar[tuple[Column, ...]] = ()

    @property
    def summary(self) -> str:
        """The published variant that these settings correspond to, printed when a run starts; may be empty."""
        return ""

    def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
        decided = {name: getattr(model, name) for name in self.fixed_by_model}
        self.config: Any = self.Config.parse(decided | hyperparameters)
        for name, value in decided.items():
            if (given := getattr(self.config, name)) != value:
                raise ConfigError(f"{name} must equal the model's {value}, got {given}")
        self.model = model
        self.device: torch.device = model.device
        self.optimizers: dict[str, Adam] = {name: self.adam(getattr(model, name)) for name in self.optimized}
        self.updates = 0
        # Update from which periods are counted (see `ends_period`); not part of the state.
        self.period_offset = 0
        # Incremented on every parameter change; invalidates cached copies.
        self.version = 0
        # True from the first step of an update to its end. An exception in between leaves it half done.
        self.step_interrupted = False
        self.generator = torch.Generator(self.device)
        self.seed(int(torch.randint(2**31, ())))
        self.execution = Execution.on(self.device)
        self._one = torch.ones((), device=self.device)  # `grad_outputs` of `autograd.grad`, allocated once
        self.reward_scale: RewardScale | None = None  # set by `scale_rewards`
        self.terms: Terms = {}  # the latest value of every term
        self.expect_terms(**dict.fromkeys(self.occasional_terms, 0.0))
        self._follows: dict[tuple[Hashable, ...], dict[str | None, list[Polyak]]] = {}

    # Overridden by subclasses.

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        """The hyperparameters that are arguments of `Model`; by default those that it fixes."""
        return {name: getattr(config, name) for name in cls.fixed_by_model}

    @classmethod
    def configure(cls, config: Any, updates_per_step: int) -> Any:
        """Fill in unset hyperparameters that depend on the number of updates per environment step."""
        return config

    @classmethod
    def structure(cls, config: Any) -> dict[str, Any]:
        """The hyperparameters that must be equal for all members of a population.

        Members may differ in floats, which an update can read from a tensor, except for the settings of Adam and
        of extra columns.
        """
        shared = {*ADAM_SETTINGS, *(name for column in cls.extras for name in column.settings)}
        values = config.model_dump(mode="json")
        return {key: value for key, value in values.items() if not isinstance(value, float) or key in shared}

    def gradient_step(self, batch: TransitionBatch, variant: Hashable) -> Terms:
        """One update on a batch with normalised observations; must not read from the device (CUDA graphs)."""
        raise NotImplementedError

    def variant(self, update: int) -> Hashable:
        """The variant of `gradient_step` for an update (counted from 0); each variant has its own CUDA graph."""
        return None

    @property
    def actor_starts(self) -> int:
        """Number of updates before the first one of the actor; 0 for a learner without this setting."""
        return getattr(self.config, "actor_starts", None) or 0

    def ends_period(self, update: int, period: int) -> bool:
        """Whether `update` is the last of every `period` updates, counted from `period_offset`."""
        return (update + 1 - self.period_offset) % period == 0

    def schedule_step(self, optimizer: Adam, update: int) -> int:
        """The position of `optimizer` in the learning-rate schedule at `update`; by default the update."""
        return update

    @property
    def explores_by_progress(self) -> bool:
        """Whether `explore` depends on `progress`; by default it does not."""
        return False

    @property
    def longest_noise(self) -> int:
        """The largest number of steps for which exploration noise is held (see `HeldNoise`); by default 1."""
        return 1

    def targets(self) -> dict[nn.Module, nn.Module]:
        """Maps each target network to its source; by default those of the model."""
        return self.model.targets()

    def statistics(self) -> dict[str, list[Tensor]]:
        """By optimiser, the buffers whose new values its loss returns: running statistics of normalisation."""
        return {}

    @by_rows
    def explore(self, policy: Policy, obs: Tensor, rng: Draws, progress: float | Tensor) -> Tensor:
        """Actions `[n, A]` for collecting experience with `policy`, at `progress` in [0, 1] of the run.

        A sample, or the mode of a deterministic policy, to which its learner adds noise. One call of an override
        that is declared with `by_rows` serves all members of a population.
        """
        if not policy.stochastic:
            return policy.mode(obs)
        noise = rng.standard_normal((obs.shape[0], self.model.action_dim), dtype=np.float32)
        return policy.sample(obs, torch.as_tensor(noise, device=obs.device))

    # Shared by all learners.

    @classmethod
    def build_model(
        cls, spaces: SpaceSpec, network: NetworkShape, config: Any, *, normalize_observations: bool = False
    ) -> ModelBase:
        """The model for this learner; every key of its `Network` section is an argument of the model."""
        return cls.Model(
            spaces.obs_dim,
            spaces.num_actions or spaces.action_dim,
            normalize_observations=normalize_observations,
            **dict(network) | cls.model_options(config),
        )

    def modules(self) -> dict[str, nn.Module]:
        """The algorithm's modules with parameters or buffers."""
        return {"model": self.model}

    def all_modules(self) -> dict[str, nn.Module]:
        """All modules; `state_dict` includes each of them."""
        return self.modules() | ({} if self.reward_scale is None else {"rewards": self.reward_scale})

    def scale_rewards(self) -> None:
        """Multiply rewards of minibatches by `reward_scale.scale` from now on."""
        self.reward_scale = RewardScale().to(self.device)

    def expect_terms(self, **values: float | Tensor) -> None:
        """Declare terms that not every update produces, with their initial values."""
        self.terms.update({name: torch.as_tensor(value, device=self.device) for name, value in values.items()})

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
        """An optimiser for the parameters of `modules`, each once; `settings` (betas, …) as in `Adam`."""
        parameters = [p for p in nn.ModuleList(modules).parameters() if p.requires_grad]
        rate = self.config.learning_rate if learning_rate is None else learning_rate
        return Adam(parameters, rate, **settings)

    def update(self, batch: Mapping[str, Any] | TransitionBatch, *, global_step: int) -> UpdateResult:
        """One update on the caller's batch: a `TransitionBatch` or a mapping with its columns.

        Training runs call `gradient_step` through an `Updater`, with rows that were checked when they were stored.
        """
        if global_step < 0:
            raise ConfigError(f"global_step must be >= 0, got {global_step}")
        columns = TransitionBatch.from_mapping(batch, self.extras)
        require_fit(columns, self)
        self.step(columns)
        return UpdateResult(dict(self.terms))

    def step(self, batch: TransitionBatch) -> None:
        """One update; also counts it and stores its terms."""
        terms = self.gradient_step(self.normalized(batch), self.variant(self.updates))
        self.finish_steps(require_terms(self, terms), 1)

    def finish_steps(self, terms: Terms, count: int) -> None:
        """Count the updates and store their terms; terms that are not given keep their last value."""
        self.updates += count
        self.version += 1
        self.step_interrupted = False
        self.terms.update(terms)

    def normalized(self, batch: TransitionBatch) -> TransitionBatch:
        """The batch with normalised observations and scaled rewards."""
        normalizer = self.model.normalizer
        if self.reward_scale is not None:
            batch = batch._replace(rewards=batch.rewards * self.reward_scale.scale)
        if not normalizer.enabled:
            return batch
        return batch._replace(obs=normalizer(batch.obs), next_obs=normalizer(batch.next_obs))

    def normalize_by(self, mean: Tensor, std: Tensor) -> None:
        """Normalise observations by these moments from now on, `[O]` each."""
        self.model.normalizer.set_moments(mean, std)
        self.version += 1

    def compute(self, inputs: tuple[Any, ...], *functions: Callable[..., Any]) -> list[Any]:
        """Apply each of `functions` to `inputs`, in parallel; used for values that several losses share."""
        return self.execution.parallel(
            [partial(self.execution.prepared(function), *inputs) for function in functions]
        )

    def minimize(self, inputs: tuple[Any, ...], objectives: Objectives, *, tau: float | None = None) -> Terms:
        """Minimise each loss over the parameters of its optimiser; then, if `tau` is given, update the targets.

        Gradients are taken for owned parameters only. Losses are functions of `inputs`.
        """
        if self.execution.on_losses is not None:
            return self.execution.on_losses(inputs, objectives, tau)
        gradients, terms = self.compute_phase(inputs, objectives)
        self.take_steps(gradients, tau)
        return terms

    def compute_phase(self, inputs: tuple[Any, ...], objectives: Objectives) -> tuple[Gradients, Terms]:
        """What a call of `minimize` computes before its steps."""
        require_optimizers(self, objectives)
        computed = self.execution.parallel(
            [partial(self._gradients, *one, inputs) for one in zip(names_of(objectives), objectives.values())]
        )
        gradients = Gradients({}, {})
        for found, _ in computed:
            gradients.parameters.update(found.parameters)
            gradients.statistics.update(found.statistics)
        return gradients, {key: term.detach() for _, terms in computed for key, term in terms.items()}

    def take_steps(self, gradients: Gradients, tau: float | None) -> None:
        """Step the named optimisers; then set the statistics and, if `tau` is given, update the targets."""
        follows = self._follows_of(tuple(gradients.parameters), tau)
        steps = [
            partial(self._step, self.optimizers[name], found, follows[name])
            for name, found in gradients.parameters.items()
        ]
        self.step_interrupted = True
        with torch.no_grad():
            if self.targets_first:
                optim.polyak_update(follows[None])
            self.execution.parallel(steps)
            if not self.targets_first:
                optim.polyak_update(follows[None])
            for name, found in gradients.statistics.items():
                torch._foreach_copy_(self.statistics()[name], found)

    def _step(self, optimizer: Adam, gradients: Sequence[Tensor], follows: Sequence[Polyak]) -> None:
        group, scale = optimizer.group(gradients), self.execution.prepared(optim.project)
        optim.apply_projected(self.execution.apply, scale, group, optimizer.spheres, follows)

    def _follows_of(self, stepped: tuple[str, ...], tau: float | None) -> dict[str | None, list[Polyak]]:
        """`optim.targets_by_owner`, cached: finding them takes a measurable part of an update."""
        if (stepped, tau) not in self._follows:
            owners = () if self.targets_first else stepped
            self._follows[stepped, tau] = optim.targets_by_owner(self.targets(), self.optimizers, owners, tau)
        return self._follows[stepped, tau]

    def _gradients(self, names: tuple[str, ...], loss: Loss, inputs: tuple[Any, ...]) -> tuple[Gradients, Terms]:
        value, terms, *statistics = self.execution.prepared(loss)(*inputs)
        require_scalar(self, names, value)
        parameters = [self.optimizers[name].parameters for name in names]
        flat = iter(torch.autograd.grad(value, list(chain(*parameters)), self._one))
        found = {name: list(islice(flat, len(own))) for name, own in zip(names, parameters)}
        return Gradients(found, dict(zip(names, statistics))), terms

    def scheduled_optimizers(self) -> list[Adam]:
        """The optimisers that a learning-rate schedule applies to."""
        return [o for name, o in self.optimizers.items() if self.scheduled is None or name in self.scheduled]

    def set_learning_rates(self, rates: Sequence[float] | Tensor) -> None:
        """Set the learning rates of `scheduled_optimizers`, in their order, in place."""
        for optimizer, rate in zip(self.scheduled_optimizers(), rates):
            optimizer.learning_rate.fill_(rate)

    def state_dict(self) -> dict[str, Any]:
        """Three parts: `networks` and `optimizers` (flat name -> tensor), `counters` (plain values)."""
        networks, optimizers = _flat(self.all_modules()), _flat(self.optimizers)
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
        for name, module in self.all_modules().items():
            module.load_state_dict(_below(networks, name))
        self.version += 1


def _flat(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    return {f"{name}.{key}": tensor for name, part in parts.items() for key, tensor in part.state_dict().items()}


def _below(flat: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) + 1 :]: value for key, value in flat.items() if key.startswith(f"{prefix}.")}
