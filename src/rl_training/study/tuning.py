"""`Tuning`: search for better settings than a base's with a sampler, using the workers of a study.

One process asks the sampler for trials. They are added to the plan of an ordinary study, whose workers run them.
All state is in the folder: tuning.json has the trials and their outcomes. After `kill -9` the same call continues:
the study resumes the trials without an outcome.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, DiskFullError, RLTrainingError, RunInUse, one_line
from rl_training.experiment import files
from rl_training.experiment.config import TrainConfig
from rl_training.runs.signals import TrainingInterrupted
from rl_training.settings import at_home
from rl_training.study.claims import WATCH_INTERVAL, Claim, DiskClock, Owner, is_ahead, take
from rl_training.study.description import Location, WantedConfig
from rl_training.study.plan import PLAN, TUNING, Plan, described, hash_of, identity, read_plan, short
from rl_training.study.planning import Checksums, has_begun, prepare, require_own
from rl_training.study.sampler import propose, require_optuna
from rl_training.study.status import StudyStatus, TrialStatus
from rl_training.study.study import ONE_THREAD_EACH, Say, Study, require_workers
from rl_training.study.trials import FULL_DISK, failed_trials, reopen
from rl_training.study.tuning_file import read_tuning
from rl_training.study.tuning_record import Outcome, TrialResult, TuningResult, read_record, write_record

__all__ = ["Confirmed", "Outcome", "TrialResult", "Tuning", "TuningResult"]

Confirmed = Outcome  # its name in version 0.2
# The claim of the process that asks; those of groups are named by numbers.
_ASKING = "tuning"


class Tuning:
    """A search for better settings, in the folder `output_dir/NAME`; `source` is its YAML file or a mapping.

    `data`, `device` and `allow_import` are as in `Study`.
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any],
        *,
        output_dir: str | Path = "studies",
        data: str | Path | None = None,
        device: str | None = None,
        allow_import: bool = False,
    ) -> None:
        self._allow_import = allow_import
        self._description = read_tuning(source, Location.of(data, device, allow_import))
        self._file = self._description.file
        self.folder = Path(at_home(str(output_dir))) / self._description.name
        self._candidates: dict[int, tuple[TrainConfig | None, str]] = {}
        self._checksums = Checksums()

    def run(
        self,
        workers: int | None = None,
        *,
        gpus: Sequence[str | int] = (),
        ray: str | None = None,
        allow_import: bool = False,
        quiet: bool = True,
        say: Say = lambda text: None,
    ) -> TuningResult:
        """Run the trials that are missing, confirm the best ones, and return the result.

        With several workers the sampler proposes as many trials at a time. With `ray` the workers are tasks of
        a Ray cluster, as in `Study.run`; if `workers` is not given, the sampler proposes one trial at a time,
        whose seeds run on as many workers as fit.
        """
        require_workers(workers)
        together = workers or (max(1, len(gpus)) if ray is None else 1)
        require_optuna()
        allow_import = allow_import or self._allow_import
        options = {"gpus": gpus, "ray": ray, "allow_import": allow_import, "quiet": quiet}
        runner = _Runner(self.folder, workers if ray else together, options, say)
        self._candidates, self._checksums = {}, Checksums()
        with self._claimed() as claim:
            result = self._begun(claim, together)
            self._plan(result, runner.sharing)  # raises if the base has changed, before anything is written
            while result.waiting or len(result.trials) < self._file.trials:
                if not result.waiting:
                    result = self._asked(result, together)
                    write_record(self.folder, result, claim.check)
                result = self._run_waiting(result, runner)
                write_record(self.folder, result, claim.check)
            result = self._confirmed(result, runner, claim)
            write_record(self.folder, result, claim.check, is_over=True)
        return result

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[Claim]:
        """Claim the folder: only one process asks the sampler."""
        with files.os_errors(f"{self.folder}: the tuning cannot continue"):
            require_own(self.folder)
            if (self.folder / PLAN).exists() and not (self.folder / TUNING).exists():
                raise ConfigError(f"{self.folder}: holds a study that is not a tuning; give this one another name")
            self.folder.mkdir(parents=True, exist_ok=True)
            timeout, clock, me = self._file.claim_timeout, DiskClock(self.folder), Owner.me()
            while (claim := take(self.folder, _ASKING, me, timeout, clock=clock)) is None:
                if not is_ahead(self.folder, _ASKING, timeout, clock):
                    raise RunInUse(f"{self.folder}: another process is tuning here; wait for it, or stop it")
                time.sleep(WATCH_INTERVAL)
            with claim:
                yield claim

    def _begun(self, claim: Claim, together: int) -> TuningResult:
        """The stored trials; if no run has begun yet, new ones, starting with the base."""
        fixed = self._fixed()
        old = read_record(self.folder, self._description.name)
        plan = read_plan(self.folder) if (self.folder / PLAN).exists() else None
        if old is None or plan is None or not has_begun(self.folder, plan):
            if plan is not None:  # the reason for which no trial could begin may be gone
                reopen(self.folder, failed_trials(self.folder, plan))
            new = self._asked(TuningResult(self._description.name, fixed, (TrialResult(),)), together - 1)
            write_record(self.folder, new, claim.check)
            return new
        with self._description.document.explaining():
            return self._with_reopened(self._continued(old, fixed))

    def _fixed(self) -> dict[str, Any]:
        """What may not change after a tuning has begun, as JSON reads it back."""
        fixed = {
            "metric": self._file.metric,
            "sampler": {"name": "tpe", "seed": self._file.sampler_seed},
            "seeds": self._file.seeds,
            "space": {place: asdict(dimension) for place, dimension in self._description.space.items()},
        }
        return dict(files.decode_json(files.encode_json(fixed)))

    def _continued(self, old: TuningResult, fixed: dict[str, Any]) -> TuningResult:
        """Check the file against the stored trials; a tuning only grows."""
        may_differ = () if any(trial.is_known for trial in old.trials) else ("metric",)
        for name, now in fixed.items():
            if (before := old.fixed.get(name)) != now and name not in may_differ:
                raise ConfigError(
                    f"{name} has changed since this tuning began ({_differing(before, now)}); undo that, or give "
                    "the changed tuning another name",
                    key="sampler_seed" if name == "sampler" else name,
                )
        if self._file.trials < len(old.trials):
            raise ConfigError.of(
                "trials", f"{self._file.trials}, but {len(old.trials)} were planned already; a tuning only grows"
            )
        gone = [seed for seed in old.confirm_seeds if seed not in self._file.fresh_seeds]
        if self._file.confirm is not None and gone:
            raise ConfigError.of(
                "confirm.seeds", f"{gone[0]} was used already and is missing now; a tuning only grows"
            )
        return replace(old, fixed=fixed)

    def _with_reopened(self, result: TuningResult) -> TuningResult:
        """Let a failed trial wait again if none of its runs is failed any more, as after `sweep --retry failed`."""
        status, trials = Study(self.folder).status(), list(result.trials)
        for trial in result.trials:
            if trial.failure is not None and self._candidate(trial)[0] is not None:
                runs = self._runs_of(result, trial, status)
                if not any(seed in runs and runs[seed].state == "failed" for seed in self._file.seeds):
                    trials[trial.number] = replace(trial, values=(), failure=None)
        return replace(result, trials=tuple(trials))

    def _asked(self, result: TuningResult, count: int) -> TuningResult:
        """Add `count` trials from the sampler, up to the number in the file."""
        first = len(result.trials)
        numbers = range(first, min(first + count, self._file.trials))
        base = self._description.base_point()
        points = [(trial.parameters if trial.number else base, trial.value) for trial in result.trials]
        known = [(point, value) for point, value in points if point is not None]
        new = propose(self._description.space, known, numbers, self._file.sampler_seed)
        trials = (TrialResult(number=number, parameters=point) for number, point in zip(numbers, new))
        return replace(result, trials=(*result.trials, *trials))

    def _run_waiting(self, result: TuningResult, runner: _Runner) -> TuningResult:
        """Run the trials that wait, and add their outcomes."""
        status, trials = self._run(result, runner), list(result.trials)
        for trial in result.waiting:
            trials[trial.number] = replace(trial, **vars(self._outcome(result, trial, status, self._file.seeds)))
            runner.say(_line(trials[trial.number], self._file.trials))
        return replace(result, trials=tuple(trials))

    def _candidate(self, trial: TrialResult) -> tuple[TrainConfig | None, str]:
        """A trial's configuration and its hash; None and the reason if its settings contradict each other.

        They may do so inside a space whose corners are valid.
        """
        if trial.number not in self._candidates:
            try:
                config = self._description.config_at(trial.parameters) if trial.number else self._description.base
                settings = config.to_dict()
                digest = hash_of(identity(settings), self._checksums.of_all(settings))
                self._candidates[trial.number] = config, digest
            except ConfigError as error:
                self._candidates[trial.number] = None, one_line(error)
        return self._candidates[trial.number]

    def _first_alike(self, result: TuningResult) -> dict[int, int]:
        """For each valid trial the first one of the same configuration, whose runs it shares."""
        first: dict[str, int] = {}
        found = {trial.number: self._candidate(trial) for trial in result.trials}
        return {n: first.setdefault(digest, n) for n, (config, digest) in found.items() if config is not None}

    def _plan(self, result: TuningResult, workers: int) -> Plan:
        """Plan all trials."""
        first = self._first_alike(result)
        wanted = tuple(
            WantedConfig(
                0,
                trial.parameters,
                config,
                (*self._file.seeds, *(() if trial.confirmed is None else result.confirm_seeds)),
            )
            for trial in result.trials
            if first.get(trial.number) == trial.number and (config := self._candidate(trial)[0]) is not None
        )
        return prepare(replace(self._description, wanted=wanted), self.folder, workers)

    def _run(self, result: TuningResult, runner: _Runner) -> StudyStatus:
        """Plan all trials, and run those that are not done; raises if the disk had no room for one of them."""
        plan = self._plan(result, runner.sharing)
        try:
            status = runner.run()
        except TrainingInterrupted as stopped:
            raise TrainingInterrupted("interrupted; the same command continues", stopped.exit_code - 128) from None
        for one in status.failed:
            if one.failure is not None and one.failure.code == FULL_DISK:  # not an outcome: it is tried again
                message = f"{one.trial.name}: {one_line(one.failure.message)}; then the same command continues"
                raise DiskFullError(message)
        if status.failed and not has_begun(self.folder, plan):
            failure = status.failed[0].failure
            raise RLTrainingError(f"no trial can begin: {one_line(failure.message if failure else 'unknown')}")
        return status

    def _outcome(
        self, result: TuningResult, trial: TrialResult, status: StudyStatus, seeds: Sequence[int]
    ) -> Outcome:
        """What the seeds of a trial reached."""
        config, problem = self._candidate(trial)
        if config is None:
            return Outcome(failure=problem)
        found = self._runs_of(result, trial, status)
        failures = ((seed, found[seed].failure) for seed in seeds)
        failed = [f"seed {seed}: {one_line(why.message)}" for seed, why in failures if why is not None]
        values = tuple(self._number(found[seed]) for seed in seeds)
        return Outcome(values, failed[0] if failed else None)

    def _runs_of(self, result: TuningResult, trial: TrialResult, status: StudyStatus) -> dict[int, TrialStatus]:
        """The runs of a valid trial, by seed."""
        parameters = result.trials[self._first_alike(result)[trial.number]].parameters
        configurations = status.plan.configurations
        runs = (one for one in status.trials if configurations[one.trial.configuration].changes == parameters)
        return {one.trial.seed: one for one in runs}

    def _number(self, one: TrialStatus) -> float | None:
        if one.state == "failed":
            return None
        if (value := one.metrics.get(self._file.metric)) is None:
            names = ", ".join(sorted(one.metrics))
            with self._description.document.explaining():
                raise ConfigError.of("metric", f"{one.trial.name} has no {self._file.metric}; it has {names}")
        return float(value)

    def _confirmed(self, result: TuningResult, runner: _Runner, claim: Claim) -> TuningResult:
        """Run the best trials and the base on the fresh seeds, and add their outcomes."""
        if not result.ranked:
            raise RLTrainingError(f"{self.folder}: every trial failed, the first: {result.base.failure}")
        if self._file.confirm is None:
            return result
        first = self._first_alike(result)
        ranked = dict.fromkeys(first[trial.number] for trial in result.ranked)
        base = [0] if result.base.value is not None else []
        before = {trial.number: trial.confirmed for trial in result.trials if trial.confirmed is not None}
        chosen = dict.fromkeys([*before, *base, *list(ranked)[: self._file.confirm.best]])
        result = replace(result, confirm_seeds=self._file.fresh_seeds)
        result = result.confirming({number: before.get(number, Outcome()) for number in chosen})
        write_record(self.folder, result, claim.check)
        runner.say(f"confirming {len(chosen)} of {len(result.trials)} configurations on fresh seeds")
        status = self._run(result, runner)
        return result.confirming(
            {
                number: self._outcome(result, result.trials[number], status, result.confirm_seeds)
                for number in chosen
            }
        )


@dataclass(frozen=True)
class _Runner:
    """Runs the study of a tuning."""

    folder: Path
    workers: int | None
    options: dict[str, Any]  # of `Study.run`
    say: Say

    @property
    def sharing(self) -> int:
        """The number of workers that share the cores of a machine."""
        return ONE_THREAD_EACH if self.options["ray"] is not None else self.workers or 1

    def run(self) -> StudyStatus:
        return Study(self.folder).run(self.workers, say=self.say, **self.options)


def _differing(before: Any, now: Any) -> str:
    """The first difference between two values, as text."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        name = next(name for name in {**before, **now} if before.get(name) != now.get(name))
        return f"{short(name)} {_differing(before.get(name), now.get(name))}"
    return f"{before} -> {now}"


def _line(trial: TrialResult, trials: int) -> str:
    what = described(trial.parameters) or "base"
    if trial.value is None:
        return f"trial {trial.number + 1}/{trials} failed: {what}: {trial.failure}"
    return f"trial {trial.number + 1}/{trials}: {what}: {trial.value:.2f}"
