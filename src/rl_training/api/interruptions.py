"""After an interruption or an error, a model continues from the last checkpoints of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rl_training.errors import RLTrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.runs.session import TrainResult
from rl_training.runs.signals import TrainingInterrupted
from rl_training.runs.state import config_of, steps_made
from rl_training.runtime.loading import open_checkpoint


@contextmanager
def recorded_on_error(
    record: Callable[[Sequence[TrainResult]], object], config: TrainConfig, *, complete: bool = True
) -> Iterator[Callable[[Path], object]]:
    """Yield a function that training calls with each run folder.

    If training raises, `record` is called with the last checkpoints of the seeds of `config` and of other members
    of the population. If it needs `complete` results, it is not called if one of the seeds has no checkpoint.
    """
    folders: list[Path] = []
    try:
        yield folders.append
    except BaseException as error:
        saved, seeds = dict[int | None, TrainResult](), config.seeds or (config.seed,)
        for folder in folders:
            with suppress(RLTrainingError):  # a run without a checkpoint
                checkpoint = open_checkpoint(folder)
                result = TrainResult(folder, checkpoint.path, {"global_step": steps_made(checkpoint)})
                saved[config_of(checkpoint).seed] = result
        if saved and (not complete or all(seed in saved for seed in seeds)):
            own = [saved.pop(seed) for seed in seeds if seed in saved]
            record(own + list(saved.values()))
            if isinstance(error, TrainingInterrupted):
                error.args = (f"{error}; in Python: model.resume()",)
        raise
