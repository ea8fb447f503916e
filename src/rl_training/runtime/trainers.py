"""The two signatures a `train_<algo>` function can have: with an environment alone, or with data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rl_training.data.datasets import TransitionDataset
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.sections import Sections
from rl_training.runtime.session import TrainResult

Run = Callable[..., TrainResult]


def online_trainer(run: Run, sections: Sections) -> Run:
    """`train_<algo>(config, *, run_suffix, checkpoint_state, callbacks)` over `run`."""

    def train(
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: Checkpoint | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> TrainResult:
        return run(sections, config, run_suffix=run_suffix, checkpoint_state=checkpoint_state, callbacks=callbacks)

    return _named(train, sections)


def data_trainer(run: Run, sections: Sections) -> Run:
    """The same with `dataset`, which overrides the configured data."""

    def train(
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: Checkpoint | None = None,
        callbacks: Sequence[Callback] | None = None,
        dataset: TransitionDataset | None = None,
    ) -> TrainResult:
        return run(
            sections,
            config,
            run_suffix=run_suffix,
            checkpoint_state=checkpoint_state,
            callbacks=callbacks,
            dataset=dataset,
        )

    return _named(train, sections)


def _named(train: Run, sections: Sections) -> Run:
    learner = sections.learner
    train.__name__ = train.__qualname__ = f"train_{learner.name}"
    train.__doc__ = f"Train {learner.__name__} as `config` says, from the start or from `checkpoint_state`."
    return train
