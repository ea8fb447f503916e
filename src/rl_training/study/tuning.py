"""`Tuning`: search for better settings than a base's, ask and tell, with a study's workers as hands.

One process asks; what it asks for becomes part of the plan of an ordinary study, whose workers run it. Nothing but
the folder is kept: tuning.json has what was asked and told, so after `kill -9` the same call goes on, and a trial
that was asked and not told is resumed by the study.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.display.output import one_line
from rl_training.errors import ConfigError, RLTrainingError, RunInUse
from rl_training.experiment import files
from rl_training.experiment.config import TrainConfig
from rl_training.settings import at_home
from rl_training.study.claims import WATCH_INTERVAL, Claim, DiskClock, Owner, is_ahead, take
from rl_training.study.description import Here, Wanted
from rl_training.study.plan import PLAN, TUNING, Plan, described, hash_of, identity, read_plan, short
from rl_training.study.planning import Contents, has_begun, prepare, require_own
from rl_training.study.sampler import propose, require_optuna
from rl_training.study.status import StudyStatus, TrialStatus
from rl_training.study.study import ONE_THREAD_EACH, Say, Study, require_workers
from rl_training.study.tuning_file import read_tuning
from rl_training.study.tuning_record import Outcome, Record, Tried, read_record, write_record
from rl_training.study.worker import retry_failed

# The claim of whoever asks; groups of trials have numbers.
_ASKING = "tuning"


@dataclass(frozen=True)
class Confirmed:
    """What a configuration reached on the fresh seeds: `value` as trials are compared, mean and deviation."""

    value: float | None
    mean: float | None
    std: float | None
    values: tuple[float | None, ...]
    failure: str | None

    @classmethod
    def of(cls, outcome: Outcome) -> Confirmed:
        numbers = [value for value in outcome.values if value is not None]
        if outcome.value is None:
            return cls(None, None, None, outcome.values, outcome.failure)
        std = statistics.stdev(numbers) if len(numbers) > 1 else None
        return cls(outcome.value, statistics.fmean(numbers), std, outcome.values, None)


@dataclass(frozen=True)
class TrialResult:
    """One trial: its settings, its value by the seeds of the tuning, and by fresh ones where it was confirmed."""

    number: int
    settings: dict[str, Any]  # what differs from the base, by short name
    value: float | None
    values: tuple[float | None, ...]
    failure: str | None
    confirmed: Confirmed | None = None

    @property
    def loss(self) -> float | None:
        """How much less the fresh seeds reached: the best of many is partly lucky."""
        if self.value is None or self.confirmed is None or self.confirmed.value is None:
            return None
        return self.value - self.confirmed.value

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "loss": self.loss}


@dataclass(frozen=True)
class TuningResult:
    """What came of a tuning. `best_confirmed` is None where nothing was confirmed, or all of it failed."""

    name: str
    metric: str
    seeds: tuple[int, ...]
    confirm_seeds: tuple[int, ...]
    trials: tuple[TrialResult, ...]
    best_found: TrialResult
    best_confirmed: TrialResult | None

    @property
    def base(self) -> TrialResult:
        return self.trials[0]

    @property
    def best(self) -> TrialResult:
        """The confirmed one, else the one found."""
        return self.best_confirmed or self.best_found

    def summary(self) -> dict[str, Any]:
        best = None if self.best_confirmed is None else self.best_confirmed.to_dict()
        return {"base": self.base.to_dict(), "best_found": self.best_found.to_dict(), "best_confirmed": best}

    def to_dict(self) -> dict[str, Any]:
        """The whole as plain data."""
        return {
            "name": self.name,
            "metric": self.metric,
            "seeds": list(self.seeds),
            "confirm_seeds": list(self.confirm_seeds),
            **self.summary(),
            "trials": [one.to_dict() for one in self.trials],
        }


class Tuning:
    """A search for better settings, in the folder `output_dir/NAME`; `source` is its YAML file or a mapping.

    `data` and `device` are as in `Study`.
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any],
        *,
        output_dir: str | Path = "studies",
        data: str | Path | None = None,
        device: str | None = None,
    ) -> None:
        self._described = read_tuning(source, Here.of(data, device))
        self._file = self._described.file
        self.folder = Path(at_home(str(output_dir))) / self._described.name
        self._configs: dict[int, TrainConfig] = {}  # by the trial's number, as are their hashes
        self._hashes: dict[int, str] = {}
        self._contents = Contents()

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
        """Try what is missing of the trials, confirm the best, and tell what came of it.

        With several workers as many trials are asked for at a time, and told together. With `ray` the workers are
        tasks of a Ray cluster, as in `Study.run`; without a number of workers one trial is asked for at a time, and
        its seeds run on as many as there is room for.
        """
        require_workers(workers)
        together = workers or (max(1, len(gpus)) if ray is None else 1)
        require_optuna()
        hands = _Hands(self.folder, workers if ray else together, gpus, ray, allow_import, quiet, say)
        self._configs, self._hashes, self._contents = {0: self._described.base}, {}, Contents()
        with self._claimed() as claim:
            record = self._begun(claim, together)
            self._plan(record, hands.sharing)  # a base that has changed is refused before anything is written
            while record.waiting or len(record.trials) < self._file.trials:
                if not record.waiting:
                    record = self._asked(record, together)
                    write_record(self.folder, record, claim.check)
                record = self._told(record, hands)
                write_record(self.folder, record, claim.check)
            record = self._confirmed(record, hands, claim)
            result = self._result(record)
            write_record(self.folder, replace(record, result=result.summary()), claim.check)
        return result

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[Claim]:
        """The folder, asked for by this process alone."""
        try:
            require_own(self.folder)
            if (self.folder / PLAN).exists() and not (self.folder / TUNING).exists():
                raise ConfigError(f"{self.folder}: holds a study that is no tuning; give this one another name")
            self.folder.mkdir(parents=True, exist_ok=True)
            timeout, clock, me = self._file.claim_timeout, DiskClock(self.folder), Owner.me()
            while (claim := take(self.folder, _ASKING, me, timeout, clock=clock)) is None:
                if not is_ahead(self.folder, _ASKING, timeout, clock):
                    raise RunInUse(f"{self.folder}: another process is tuning here; wait for it, or stop it")
                time.sleep(WATCH_INTERVAL)
            with claim:
                yield claim
        except OSError as error:
            raise ConfigError(f"{self.folder}: the tuning cannot go on: {error.strerror or error}") from None

    def _begun(self, claim: Claim, together: int) -> Record:
        """The record to go on with; where no run has begun yet, a new one, whose first trial is the base."""
        fixed = self._fixed()
        old = read_record(self.folder)
        plan = read_plan(self.folder) if (self.folder / PLAN).exists() else None
        if old is None or plan is None or not has_begun(self.folder, plan):
            if plan is not None:  # what kept every trial from beginning may have gone
                retry_failed(self.folder, plan, never=())
            record = self._asked(Record(fixed, (Tried({}),)), together - 1)
            write_record(self.folder, record, claim.check)
            return record
        try:
            return self._continued(old, fixed)
        except ConfigError as error:
            raise self._described.explain(error) from None

    def _fixed(self) -> dict[str, Any]:
        """What may not change once a tuning has begun, as it is when read back."""
        fixed = {
            "metric": self._file.metric,
            "sampler": {"name": "tpe", "seed": self._file.sampler_seed},
            "seeds": self._file.seeds,
            "space": {place: asdict(dimension) for place, dimension in self._described.space.items()},
        }
        return dict(files.decode_json(files.encode_json(fixed)))

    def _continued(self, old: Record, fixed: dict[str, Any]) -> Record:
        """The old record with what may change; a tuning only grows."""
        may_differ = () if any(tried.outcome.is_told for tried in old.trials) else ("metric",)
        for name, now in fixed.items():
            if (before := old.fixed.get(name)) != now and name not in may_differ:
                raise ConfigError(
                    f"{name} has changed since this tuning began ({_differing(before, now)}); undo that, or give "
                    "the changed tuning another name",
                    key="sampler_seed" if name == "sampler" else name,
                )
        if self._file.trials < len(old.trials):
            raise ConfigError(
                f"trials: {self._file.trials}, but {len(old.trials)} were asked for already; a tuning only grows",
                key="trials",
            )
        gone = [seed for seed in old.confirm_seeds if seed not in self._file.fresh_seeds]
        if self._file.confirm is not None and gone:
            raise ConfigError(
                f"confirm.seeds: {gone[0]} was used already and is missing now; a tuning only grows",
                key="confirm.seeds",
            )
        return replace(old, fixed=fixed, result=None)

    def _asked(self, record: Record, count: int) -> Record:
        """The record with so many more trials in it, as far as there are to be."""
        first = len(record.trials)
        numbers = range(first, min(first + count, self._file.trials))
        base = self._described.base_point()
        points = [tried.parameters if number else base for number, tried in enumerate(record.trials)]
        told = [(point, tried.outcome.value) for point, tried in zip(points, record.trials) if point is not None]
        new = propose(self._described.space, told, numbers, self._file.sampler_seed)
        return replace(record, trials=(*record.trials, *(Tried(point) for point in new)))

    def _told(self, record: Record, hands: _Hands) -> Record:
        """The record after the trials that were waiting have run."""
        waiting = record.waiting
        status = self._run(record, hands)
        found = {number: self._outcome(record, number, status, self._file.seeds) for number in waiting}
        record = record.told(found)
        for number in waiting:
            hands.say(_told_line(number, self._file.trials, record.trials[number]))
        return record

    def _problem(self, record: Record, number: int) -> str | None:
        """Why a point cannot be a configuration: settings that fit at the corners may contradict inside."""
        try:
            self._config(record, number)
        except ConfigError as error:
            return one_line(error)
        return None

    def _config(self, record: Record, number: int) -> TrainConfig:
        if number not in self._configs:
            self._configs[number] = self._described.config_at(record.trials[number].parameters)
        return self._configs[number]

    def _first_alike(self, record: Record) -> dict[int, int]:
        """For each trial that can run, the first of the same configuration: its runs are those of all."""
        first: dict[str, int] = {}
        found = {}
        for number in range(len(record.trials)):
            if self._problem(record, number) is None:
                if number not in self._hashes:
                    settings = self._config(record, number).to_dict()
                    self._hashes[number] = hash_of(identity(settings), self._contents.of_all(settings))
                found[number] = first.setdefault(self._hashes[number], number)
        return found

    def _plan(self, record: Record, workers: int) -> Plan:
        """The plan of everything the record has."""
        wanted = tuple(
            Wanted(
                0,
                record.trials[number].parameters,
                self._config(record, number),
                (*self._file.seeds, *(record.confirm_seeds if number in record.confirmed else ())),
            )
            for number in dict.fromkeys(self._first_alike(record).values())
        )
        return prepare(self._described.asking(wanted), self.folder, workers)

    def _run(self, record: Record, hands: _Hands) -> StudyStatus:
        """Plan everything the record has, and run what is missing."""
        plan = self._plan(record, hands.sharing)
        status = hands.run()
        if status.failed and not has_begun(self.folder, plan):
            failure = status.failed[0].failure
            raise RLTrainingError(f"no trial can begin: {one_line(failure.message if failure else 'unknown')}")
        return status

    def _outcome(self, record: Record, number: int, status: StudyStatus, seeds: Sequence[int]) -> Outcome:
        """What the seeds of a trial reached."""
        if (problem := self._problem(record, number)) is not None:
            return Outcome(failure=problem)
        parameters = record.trials[self._first_alike(record)[number]].parameters
        index = next(i for i, one in enumerate(status.plan.configurations) if one.changes == parameters)
        found = {one.trial.seed: one for one in status.trials if one.trial.configuration == index}
        failed = [f"seed {seed}: {_why(found[seed])}" for seed in seeds if found[seed].state == "failed"]
        values = tuple(self._number(found[seed]) for seed in seeds)
        return Outcome(values, failed[0] if failed else None)

    def _number(self, one: TrialStatus) -> float | None:
        if one.state == "failed":
            return None
        if (value := one.metrics.get(self._file.metric)) is None:
            names = ", ".join(sorted(one.metrics))
            error = ConfigError(
                f"metric: {one.trial.name} has no {self._file.metric}; it has {names}", key="metric"
            )
            raise self._described.explain(error)
        return float(value)

    def _confirmed(self, record: Record, hands: _Hands, claim: Claim) -> Record:
        """The record after the best trials, and the base, have run on fresh seeds."""
        alike = self._first_alike(record)
        ranked = dict.fromkeys(alike[number] for number in _ranked(record))
        if not ranked:
            raise RLTrainingError(
                f"{self.folder}: every trial failed, the first: {record.trials[0].outcome.failure}"
            )
        if self._file.confirm is None:
            return record
        base = [0] if record.trials[0].outcome.value is not None else []
        chosen = dict.fromkeys([*record.confirmed, *base, *list(ranked)[: self._file.confirm.best]])
        record = replace(
            record,
            confirm_seeds=self._file.fresh_seeds,
            confirmed={number: record.confirmed.get(number, Outcome()) for number in chosen},
        )
        write_record(self.folder, record, claim.check)
        hands.say(f"confirming {len(chosen)} configurations on {len(record.confirm_seeds)} fresh seeds")
        status = self._run(record, hands)
        found = {number: self._outcome(record, number, status, record.confirm_seeds) for number in chosen}
        return replace(record, confirmed=found)

    def _result(self, record: Record) -> TuningResult:
        trials = tuple(
            TrialResult(
                number,
                {short(place): value for place, value in tried.parameters.items()},
                tried.outcome.value,
                tried.outcome.values,
                tried.outcome.failure,
                Confirmed.of(record.confirmed[number]) if number in record.confirmed else None,
            )
            for number, tried in enumerate(record.trials)
        )
        confirmed = {one.number: one.confirmed.value for one in trials if one.confirmed is not None}
        complete = {number: value for number, value in confirmed.items() if value is not None}
        best = max(complete, key=lambda number: (complete[number], -number), default=None)
        return TuningResult(
            self._described.name,
            self._file.metric,
            self._file.seeds,
            record.confirm_seeds,
            trials,
            trials[_ranked(record)[0]],
            None if best is None else trials[best],
        )


@dataclass(frozen=True)
class _Hands:
    """How the study that a tuning grows is run."""

    folder: Path
    workers: int | None
    gpus: Sequence[str | int]
    ray: str | None
    allow_import: bool
    quiet: bool
    say: Say

    @property
    def sharing(self) -> int:
        """The workers among whom the cores of a machine are shared."""
        return ONE_THREAD_EACH if self.ray is not None else self.workers or 1

    def run(self) -> StudyStatus:
        return Study(self.folder).run(
            self.workers,
            gpus=self.gpus,
            ray=self.ray,
            allow_import=self.allow_import,
            quiet=self.quiet,
            say=self.say,
        )


def _ranked(record: Record) -> list[int]:
    """The trials that were told a value, the best first, of equals the earlier."""
    values = {number: tried.outcome.value for number, tried in enumerate(record.trials)}
    known = {number: value for number, value in values.items() if value is not None}
    return sorted(known, key=lambda number: (-known[number], number))


def _why(one: TrialStatus) -> str:
    return one_line(one.failure.message) if one.failure is not None else "failed"


def _differing(before: Any, now: Any) -> str:
    """The first difference of two values, in words."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        name = next(name for name in {**before, **now} if before.get(name) != now.get(name))
        return f"{short(name)} {_differing(before.get(name), now.get(name))}"
    return f"{before} -> {now}"


def _told_line(number: int, trials: int, tried: Tried) -> str:
    what = described(tried.parameters) or "base"
    if tried.outcome.value is None:
        return f"trial {number + 1}/{trials} failed: {what}: {tried.outcome.failure}"
    return f"trial {number + 1}/{trials}: {what}: {tried.outcome.value:.2f}"
