"""tuning.json: what a tuning has asked and been told; with the run folders it is all the state there is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import files
from rl_training.study.plan import TUNING
from rl_training.study.study import iqm

KIND = "rl_training.tuning"
SCHEMA = 1


@dataclass(frozen=True)
class Outcome:
    """What the seeds of a configuration reached: a number each, or None for one that failed; no numbers yet before
    they have run."""

    values: tuple[float | None, ...] = ()
    failure: str | None = None

    @property
    def is_told(self) -> bool:
        return bool(self.values) or self.failure is not None

    @property
    def value(self) -> float | None:
        """All seeds together, by the interquartile mean (below four seeds the mean); None where one failed."""
        numbers = [value for value in self.values if value is not None]
        return iqm(numbers) if numbers and self.failure is None else None


@dataclass(frozen=True)
class Tried:
    """One trial of a tuning; the base has no parameters of its own."""

    parameters: dict[str, Any]  # by dotted place
    outcome: Outcome = Outcome()


@dataclass(frozen=True)
class Record:
    """A tuning as it stands. What is fixed when it begins is in `fixed`, to be compared."""

    fixed: dict[str, Any]  # space, seeds, sampler and metric
    trials: tuple[Tried, ...] = ()
    confirm_seeds: tuple[int, ...] = ()
    confirmed: dict[int, Outcome] = field(default_factory=dict)  # by the trial's number
    result: dict[str, Any] | None = None

    @property
    def waiting(self) -> list[int]:
        """The trials that were asked for and not told."""
        return [number for number, tried in enumerate(self.trials) if not tried.outcome.is_told]

    def told(self, outcomes: dict[int, Outcome]) -> Record:
        trials = [
            replace(tried, outcome=outcomes.get(number, tried.outcome)) for number, tried in enumerate(self.trials)
        ]
        return replace(self, trials=tuple(trials))

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "schema": SCHEMA,
            **self.fixed,
            "trials": [
                {"number": number, "parameters": tried.parameters, **_plain(tried.outcome)}
                for number, tried in enumerate(self.trials)
            ],
            "confirm_seeds": list(self.confirm_seeds),
            "confirmed": [{"number": number, **_plain(outcome)} for number, outcome in self.confirmed.items()],
            "result": self.result,
        }


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "value": outcome.value}


def write_record(folder: Path, record: Record, fence: files.Fence) -> None:
    files.replace_atomically(folder / TUNING, files.encode_json(record.to_dict()), fence)


def read_record(folder: Path) -> Record | None:
    """The record in a tuning's folder; None where there is none."""
    place = folder / TUNING
    try:
        data = files.decode_json(place.read_bytes())
        if not isinstance(data, dict) or data.pop("kind", None) != KIND:
            raise ValueError("not the record of a tuning")
        schema = data.pop("schema", None)
        if type(schema) is int and schema > SCHEMA:
            raise CheckpointError(f"{place}: schema {schema} needs a newer rl_training (this one knows {SCHEMA})")
        return _record_of(data)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{place}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{place}: damaged: {type(error).__name__}: {error}") from None


def _record_of(data: dict[str, Any]) -> Record:
    trials = [Tried(dict(one["parameters"]), _outcome(one)) for one in data.pop("trials")]
    confirmed = {int(one["number"]): _outcome(one) for one in data.pop("confirmed")}
    seeds, result = tuple(int(seed) for seed in data.pop("confirm_seeds")), data.pop("result")
    if any(not 0 <= number < len(trials) for number in confirmed):
        raise ValueError("it confirmed a trial that it does not have")
    return Record(data, tuple(trials), seeds, confirmed, result)


def _outcome(record: dict[str, Any]) -> Outcome:
    values = tuple(None if value is None else float(value) for value in record["values"])
    return Outcome(values, record["failure"])
