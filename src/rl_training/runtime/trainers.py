"""`AlgorithmSpec`: one algorithm as the rest of the package sees it, said once, beside its `train_<algo>`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.data.datasets import TransitionDataset
from rl_training.environments.user_environments import UserEnvironments
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runs.callbacks import Callback
from rl_training.runs.regime import Regime, RunSpec
from rl_training.runs.sections import Sections
from rl_training.runs.session import TrainResult
from rl_training.runs.training import RunOptions, run


@dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm: evaluating and predicting are generic, so a learner, its regime and its sections suffice."""

    name: str
    title: str
    year: int
    regime: str
    sections: Sections
    train: Callable[..., TrainResult]
    trained_by: type[Regime]

    @property
    def learner(self) -> type[Learner]:
        return self.sections.learner

    @property
    def learners(self) -> tuple[type[Learner], ...]:
        """The learner, and the one for discrete actions where there is one beside it."""
        other = self.sections.discrete
        return (self.learner,) if other is None else (self.learner, other.learner)

    @property
    def actions(self) -> str:
        """Which it takes, in words."""
        return {None: "continuous or discrete", True: "discrete", False: "continuous"}[self.sections.takes_discrete]


def algorithm(
    learner: type[Learner],
    regime: type[Regime],
    title: str,
    year: int,
    *,
    discrete: type[Learner] | None = None,
    **defaults: Any,
) -> AlgorithmSpec:
    """An algorithm trained through a regime; `defaults` are those in which it differs from the sections' own.

    `discrete` is the learner for discrete actions, where there is one beside the learner for continuous ones.

    Its train function takes the configuration, and how to go about it: `dataset` stands in for the configured data,
    `given` for environments that have no id, and nothing in `launch` changes a number.
    """

    def sections_of(kind: type[Learner], beside: Sections | None = None) -> Sections:
        return Sections(kind, (kind.Config, kind.Network, *regime.sections), defaults, beside)

    sections = sections_of(learner, None if discrete is None else sections_of(discrete))

    def train(
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: Checkpoint | None = None,
        callbacks: Sequence[Callback] | None = None,
        dataset: TransitionDataset | None = None,
        given: UserEnvironments | None = None,
        launch: RunOptions | None = None,
    ) -> TrainResult:
        job = RunSpec.of(sections, config, checkpoint_state, dataset, given)
        return run(regime, job, callbacks=callbacks, launch=launch, suffix=run_suffix)

    train.__name__ = train.__qualname__ = f"train_{learner.name}"
    train.__doc__ = f"Train {learner.__name__} as `config` says, from the start or from `checkpoint_state`."
    return AlgorithmSpec(learner.name, title, year, regime.name, sections, train, regime)
