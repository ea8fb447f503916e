"""`TrainedModel`: the run that a model has trained, or the runs of its seeds, and where they continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rl_training.data.datasets import TransitionDataset
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.retention import folder_of, list_checkpoints, step_of
from rl_training.runs.session import TrainResult
from rl_training.runs.signals import TrainingInterrupted
from rl_training.runs.state import config_of, steps_made
from rl_training.runtime.loading import LoadedPolicy, LoadedValues, open_checkpoint

if TYPE_CHECKING:
    from rl_training.api.managed import ManagedAlgorithm


class TrainedModel:
    """The base class of `ManagedAlgorithm`: checkpoints, and the members of a population."""

    config: TrainConfig
    checkpoint_path: Path | None = None
    members: list[ManagedAlgorithm]  # one model per seed, after a population was trained
    _population: TrainedModel | None = None  # of which this model is a member
    _given: UserEnvironments
    _dataset: TransitionDataset | None = None
    _steps = 0
    _total = 0  # of the last training that has begun; `config` has that of one that was refused too
    _loaded: LoadedPolicy | None = None
    _values: LoadedValues | None = None

    @property
    def run_dir(self) -> Path | None:
        """The folder of the run, or of a checkpoint without a run; None if the model is not trained."""
        return None if self.checkpoint_path is None else folder_of(self.checkpoint_path)

    @contextmanager
    def _recorded_on_error(self, *, complete: bool = True) -> Iterator[Callable[[Path], object]]:
        """Yield a function that training calls with each run folder.

        If training raises, record the last checkpoints of the seeds and of other members of the population. If
        results must be `complete`, record nothing if one of the seeds has no checkpoint.
        """
        folders: list[Path] = []
        try:
            yield folders.append
        except BaseException as error:
            saved, seeds = dict[int | None, TrainResult](), self.config.seeds or (self.config.seed,)
            for folder in folders:
                with suppress(RLTrainingError):  # a run without a checkpoint
                    checkpoint = open_checkpoint(folder)
                    result = TrainResult(folder, checkpoint.path, {"global_step": steps_made(checkpoint)})
                    saved[config_of(checkpoint).seed] = result
            if saved and (not complete or all(seed in saved for seed in seeds)):
                own = [saved.pop(seed) for seed in seeds if seed in saved]
                self._record_results(own + list(saved.values()))
                if isinstance(error, TrainingInterrupted):
                    error.args = (f"{error}; in Python: model.resume()",)
            raise

    def _record_results(self, results: Sequence[TrainResult]) -> TrainResult | list[TrainResult]:
        """Store the checkpoint of the run, or the members of a population; return the result or results."""
        self._total = self.config.total_timesteps
        if self.config.seeds is not None:
            results = self._with_left_out(results)
            self.members = [self._member(seed, result) for seed, result in zip(self.config.seeds, results)]
            self._follow_members()
            return list(results)
        result = next((one for one in results if one.run_dir == self.run_dir), results[0])
        others = () if self._population is None else self._population.members
        if all(one is self or one.run_dir != result.run_dir for one in others):  # else only others were resumed
            self._take(result)
        if self._population is not None:
            self._population._take_members(results)
        return result

    def _take(self, result: TrainResult) -> None:
        """Continue from the checkpoint of `result`."""
        self.checkpoint_path, self._loaded, self._values = result.checkpoint_path, None, None
        self._steps = int(result.metrics["global_step"])

    def _take_members(self, results: Sequence[TrainResult]) -> None:
        """Let the members continue from those of `results` that are theirs: one of them has resumed the others."""
        found = {result.run_dir: result for result in results}
        for member in self.members:
            if member.run_dir in found:
                member._take(found[member.run_dir])
        self._follow_members()

    def _follow_members(self) -> None:
        self._steps = max(member._steps for member in self.members)
        self.checkpoint_path = self.members[0].checkpoint_path

    def _with_left_out(self, results: Sequence[TrainResult]) -> list[TrainResult]:
        """`results` in the order of the seeds, with the last checkpoints of members that were not resumed."""
        found = {result.run_dir: result for result in results}
        before = [
            TrainResult(one.run_dir, one.checkpoint_path, {"global_step": one._steps})
            for one in self.members
            if one.run_dir is not None and one.checkpoint_path is not None
        ]
        return [found.get(one.run_dir, one) for one in before] or list(results)

    def _member(self, seed: int, result: TrainResult) -> ManagedAlgorithm:
        """The model of this result: the present one of its run, or a new one."""
        config = self.config.replace(seed=seed, seeds=None)
        known, new = {one.run_dir: one for one in self.members}, cast("type[ManagedAlgorithm]", type(self))
        member = known.get(result.run_dir) or new(config)
        member.config = config
        member._given, member._dataset, member._population = self._given, self._dataset, self
        member._total = self._total
        member._take(result)
        return member

    def _require_newest(self) -> None:
        """Raise if another model or process has continued the runs of this population."""
        for member in self.members:
            path = member._checkpoint()
            run, newest = folder_of(path), list_checkpoints(path.parent)[-1:]
            if run != path and any(step_of(one) > step_of(path) for one in newest):
                raise ConfigError(
                    f"{run} was continued elsewhere, beyond the {path.name} of this model; continue it with "
                    f"rl_training.load({str(run)!r}).resume(…)"
                )

    def _checkpoint(self, method: str | None = None) -> Path:
        """The checkpoint; raise if the model is not trained, or if `method` needs one model of a population."""
        name, seeds = type(self).__name__, self.config.seeds
        if method is not None and seeds is not None:
            raise ConfigError(f"{name} has {len(seeds)} members; {method} one: model.members[0].{method}(…)")
        if self.checkpoint_path is None:
            raise ConfigError(f"{name} is not trained yet: call learn() or load() first")
        return self.checkpoint_path
