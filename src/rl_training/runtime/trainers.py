"""`AlgorithmSpec`: the declaration of one algorithm, made in its `<algo>_trainer.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.data.datasets import TransitionDataset
from rl_training.data.n_step import NStepConfig
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runs import fleet
from rl_training.runs.callbacks import Callback
from rl_training.runs.regime import Regime
from rl_training.runs.sections import Sections
from rl_training.runs.session import TrainResult
from rl_training.runs.spec import RunOptions, RunSpec


@dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm: its learner, regimes and settings.

    `regimes`: the ways to train it; the first is the default. `kinds`: the sections of each regime, in that order.
    """

    name: str
    title: str
    year: int | None
    regimes: tuple[type[Regime], ...]
    kinds: tuple[Sections, ...]
    train: Callable[..., TrainResult]

    @property
    def regime(self) -> str:
        """The name of the default regime."""
        return self.regimes[0].name

    @property
    def sections(self) -> Sections:
        """The sections of the default regime."""
        return self.kinds[0]

    @property
    def learner(self) -> type[Learner]:
        return self.sections.learner

    @property
    def learners(self) -> tuple[type[Learner], ...]:
        """The learner, and the one for discrete actions if there is a separate one."""
        other = self.sections.discrete
        return (self.learner,) if other is None else (self.learner, other.learner)

    @property
    def plugin(self) -> str | None:
        """`module:Class` of the learner; None if it is one of this package."""
        module = self.learner.__module__
        own = module.partition(".")[0] == __name__.partition(".")[0]
        return None if own else f"{module}:{self.learner.__qualname__}"

    @property
    def actions(self) -> str:
        """The supported kinds of actions, in words."""
        return {None: "continuous or discrete", True: "discrete", False: "continuous"}[self.sections.takes_discrete]

    def owners(self) -> dict[str, Sections]:
        """Every key of `algo_kwargs`, with the sections of the first regime that has it."""
        found: dict[str, Sections] = {}
        for kind in self.kinds:
            for key in kind.owners():
                found.setdefault(key, kind)
        return found

    def chosen(self, regime: str | None) -> tuple[type[Regime], Sections]:
        """The regime of that name with its sections; the default for None."""
        names = [one.key() for one in self.regimes]
        if regime is not None and regime not in names:
            other = "" if self.plugin is None else f", or register the class with regime={regime!r}"
            raise ConfigError.of("regime", f"{self.name} has no regime {regime!r}; use {' or '.join(names)}{other}")
        place = 0 if regime is None else names.index(regime)
        return self.regimes[place], self.kinds[place]

    def run_spec(self, config: TrainConfig, **others: Any) -> RunSpec:
        """A run of this algorithm; `others` are fields of `RunSpec`."""
        return RunSpec.of(*self.chosen(config.regime), config.replace(plugin=self.plugin), **others)


def algorithm(
    learner: type[Learner],
    regimes: type[Regime] | tuple[type[Regime], ...],
    title: str,
    year: int | None,
    *,
    discrete: type[Learner] | None = None,
    **defaults: Any,
) -> AlgorithmSpec:
    """Declare an algorithm; `defaults` override those of its sections, each in the regimes that have the key.

    `discrete` is the learner for discrete actions if `learner` only supports continuous ones.
    """
    regimes = regimes if isinstance(regimes, tuple) else (regimes,)

    def sections_of(kind: type[Learner], regime: type[Regime], other: Sections | None = None) -> Sections:
        owned = [part for part in regime.sections if kind.bootstraps or part is not NStepConfig]
        return Sections(kind, (kind.Config, kind.Network, *owned), {**defaults, **regime.defaults}, other)

    def of_regime(regime: type[Regime]) -> Sections:
        other = None if discrete is None or regime.continuous_only else sections_of(discrete, regime)
        return sections_of(learner, regime, other)

    places = {key: one.key() for one in regimes for key in of_regime(one).owners()}

    def complete(found: Sections) -> Sections:
        owned = found.owners()
        kept = {key: value for key, value in found.defaults.items() if key in owned or key not in places}
        return replace(found, elsewhere=places, defaults=kept)

    kinds = tuple(complete(of_regime(one)) for one in regimes)

    def train(
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: Checkpoint | None = None,
        callbacks: Sequence[Callback] | None = None,
        dataset: TransitionDataset | None = None,
        given: UserEnvironments | None = None,
        options: RunOptions | None = None,
    ) -> TrainResult:
        run = spec.run_spec(
            config,
            checkpoint=checkpoint_state,
            callbacks=callbacks,
            dataset=dataset,
            given=given,
            options=replace(options or RunOptions(), suffix=run_suffix),
        )
        (result,) = fleet.train([run])
        return result

    train.__name__ = train.__qualname__ = f"train_{learner.name}"
    train.__doc__ = f"Train {learner.__name__} with `config`, from the start or from `checkpoint_state`."
    spec = AlgorithmSpec(learner.name, title, year, regimes, kinds, train)
    return spec
