"""Results of a tuning, and tuning.json, which stores them; with the run folders it is all the state of a tuning."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment import files
from rl_training.study.plan import TUNING, reading_record, short
from rl_training.study.study import iqm

KIND = "rl_training.tuning"
SCHEMA = 1


@dataclass(frozen=True)
class Outcome:
    """What a configuration reached: a value for each seed, None if it failed. Empty until the seeds have run."""

    values: tuple[float | None, ...] = ()
    failure: str | None = None

    @property
    def is_known(self) -> bool:
        return bool(self.values) or self.failure is not None

    @property
    def _numbers(self) -> list[float]:
        return [] if self.failure is not None else [value for value in self.values if value is not None]

    @property
    def value(self) -> float | None:
        """Interquartile mean over the seeds (the mean below four seeds); None if a seed failed."""
        return iqm(self._numbers) if self._numbers else None

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None if a seed failed."""
        return statistics.fmean(self._numbers) if self._numbers else None

    @property
    def std(self) -> float | None:
        """Standard deviation over the seeds; None below two seeds, or if a seed failed."""
        return statistics.stdev(self._numbers) if len(self._numbers) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        names = ("value", "mean", "std", "values", "failure")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class TrialResult(Outcome):
    """A trial: what it reached on the seeds of the tuning, and on fresh seeds if it was confirmed."""

    number: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)  # what differs from the base, by dotted place
    confirmed: Outcome | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What differs from the base, by short name."""
        return {short(place): value for place, value in self.parameters.items()}

    @property
    def loss(self) -> float | None:
        """How much lower the value on the fresh seeds is; the best of many trials is partly lucky."""
        if self.value is None or self.confirmed is None or self.confirmed.value is None:
            return None
        return self.value - self.confirmed.value

    def to_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("number", "settings", "value", "values", "failure", "loss")},
            "confirmed": None if self.confirmed is None else self.confirmed.to_dict(),
        }


@dataclass(frozen=True)
class TuningResult:
    """The trials of a tuning. `fixed` are its metric, seeds, sampler and space, which may not change."""

    name: str
    fixed: dict[str, Any]
    trials: tuple[TrialResult, ...]
    confirm_seeds: tuple[int, ...] = ()

    @property
    def metric(self) -> str:
        return str(self.fixed["metric"])

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.fixed["seeds"])

    @property
    def waiting(self) -> list[TrialResult]:
        """The trials that have not run yet."""
        return [trial for trial in self.trials if not trial.is_known]

    @property
    def ranked(self) -> list[TrialResult]:
        """The trials that have a value, best first."""
        return [self.trials[number] for number in _ranked({trial.number: trial for trial in self.trials})]

    @property
    def base(self) -> TrialResult:
        return self.trials[0]

    @property
    def best_found(self) -> TrialResult:
        """The trial with the highest value on the seeds of the tuning."""
        return self.ranked[0]

    @property
    def best_confirmed(self) -> TrialResult | None:
        """The trial with the highest value on the fresh seeds; None if none was confirmed, or all failed there."""
        ranked = _ranked({trial.number: trial.confirmed for trial in self.trials if trial.confirmed is not None})
        return self.trials[ranked[0]] if ranked else None

    @property
    def best(self) -> TrialResult:
        """`best_confirmed`, or `best_found` if that is None."""
        return self.best_confirmed or self.best_found

    def confirming(self, outcomes: Mapping[int, Outcome]) -> TuningResult:
        """A copy with these outcomes on the fresh seeds, by number of the trial."""
        trials = [replace(trial, confirmed=outcomes.get(trial.number, trial.confirmed)) for trial in self.trials]
        return replace(self, trials=tuple(trials))

    def summary(self) -> dict[str, Any]:
        best = None if self.best_confirmed is None else self.best_confirmed.to_dict()
        return {"base": self.base.to_dict(), "best_found": self.best_found.to_dict(), "best_confirmed": best}

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data."""
        return {
            "name": self.name,
            "metric": self.metric,
            "seeds": list(self.seeds),
            "confirm_seeds": list(self.confirm_seeds),
            **self.summary(),
            "trials": [trial.to_dict() for trial in self.trials],
        }


def _ranked(outcomes: Mapping[int, Outcome]) -> list[int]:
    """The numbers whose outcome has a value, the highest first; of equal ones the lower number first."""
    known = {number: outcome.value for number, outcome in outcomes.items() if outcome.value is not None}
    return sorted(known, key=lambda number: (-known[number], number))


def write_record(folder: Path, result: TuningResult, fence: files.Fence, *, is_over: bool = False) -> None:
    confirmed = [(trial.number, trial.confirmed) for trial in result.trials if trial.confirmed is not None]
    record = {
        "kind": KIND,
        "schema": SCHEMA,
        **result.fixed,
        "trials": [{"parameters": trial.parameters, **_record_of(trial.number, trial)} for trial in result.trials],
        "confirm_seeds": list(result.confirm_seeds),
        "confirmed": [_record_of(number, outcome) for number, outcome in confirmed],
        "result": result.summary() if is_over else None,
    }
    files.replace_atomically(folder / TUNING, files.encode_json(record), fence)


def _record_of(number: int, outcome: Outcome) -> dict[str, Any]:
    return {"number": number, "values": outcome.values, "failure": outcome.failure, "value": outcome.value}


def read_record(folder: Path, name: str) -> TuningResult | None:
    """What tuning.json stores of the tuning `name`; None if there is no such file."""
    place = folder / TUNING
    try:
        data = place.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{place}: cannot be read: {error.strerror}") from None
    with reading_record(data, str(place), KIND, "record of a tuning", SCHEMA) as record:
        return _result_of(record, name)


def _result_of(data: dict[str, Any], name: str) -> TuningResult:
    trials = [
        TrialResult(*_outcome_of(one), number, dict(one["parameters"]))
        for number, one in enumerate(data.pop("trials"))
    ]
    confirmed = {int(one["number"]): Outcome(*_outcome_of(one)) for one in data.pop("confirmed")}
    seeds = tuple(int(seed) for seed in data.pop("confirm_seeds"))
    del data["result"]
    if any(not 0 <= number < len(trials) for number in confirmed):
        raise ValueError("it confirmed a trial that it does not have")
    return TuningResult(name, data, tuple(trials), seeds).confirming(confirmed)


def _outcome_of(record: dict[str, Any]) -> tuple[tuple[float | None, ...], str | None]:
    return tuple(None if value is None else float(value) for value in record["values"]), record["failure"]
