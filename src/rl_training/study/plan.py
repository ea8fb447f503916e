"""The plan of a study: what it consists of, fixed once and only ever extended.

    studies/NAME/
        study.yaml              as its author wrote it
        plan.json               configurations, and the groups of trials that are claimed, run and repeated whole
        claims/g00000/1.json    who works, or worked, on a group
        failures/TRIAL.json     exit code and message of a trial that failed
        runs/{env}__{algo}__{hash8}__s{seed}/      an ordinary run folder each
        logs/                   what workers printed
        tuning.json             of a tuning: what was asked, and what came of it

A configuration is known by a hash of what its results depend on: every setting with its default spelt out, but for
the seed and for where and how a run is made (`_HOW`). Data files count by their name, not by their folder. The
settings are kept beside the hash, so a default that changes in a later version changes no trial that is planned; a
setting that is new in a later version, and left at its default, makes no new trial.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import files
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import task_name

PLAN = "plan.json"
STUDY = "study.yaml"
TUNING = "tuning.json"
RUNS = "runs"
KIND = "rl_training.study"
SCHEMA = 1
# Where and how a run is made: no result depends on these.
_HOW = frozenset(
    {
        "seed",
        "output_dir",
        "device",
        "tags",
        "keep_checkpoints",
        "environments",
        "seeds",
        "population",
        "loggers",
        "env_timeout",
        "allow_import",
        "device_memory",
        "host_memory",
        "evaluate_beside",
    }
)


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a configuration the same one: its settings, flat, without where and how it runs."""
    flat = {name: value for name, value in settings.items() if name not in _HOW and name != "algo_kwargs"}
    flat |= {f"algo_kwargs.{name}": value for name, value in settings["algo_kwargs"].items()}
    if settings.get("evaluate_beside") is True and settings["algo_kwargs"].get("early_stopping"):
        flat["evaluate_beside"] = True  # then a run stops an evaluation later
    return {name: _without_folders(name, value) for name, value in flat.items()}


def _without_folders(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_folders(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(name, item) for item in value]
    return PurePath(value).name if name.endswith("dataset_path") and isinstance(value, str) else value


def hash_of(known: Mapping[str, Any]) -> str:
    """The hash of an identity."""
    return hashlib.sha256(files.encode_json(dict(known))).hexdigest()


def with_how(settings: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with where and how it runs taken from another of the same identity."""
    return {**settings, **{name: how[name] for name in _HOW if name in how}}


def short(place: str) -> str:
    """A setting by the name a user would type."""
    return place.removeprefix("algo_kwargs.")


def described(changes: Mapping[str, Any]) -> str:
    """What varies, in words: `beta=3, gamma=0.9`."""
    return ", ".join(f"{short(place)}={value}" for place, value in changes.items())


@dataclass(frozen=True)
class Configuration:
    """One point of a study; its trials differ in their seed alone."""

    hash: str
    task: int
    changes: dict[str, Any]  # what varies, by dotted place
    settings: dict[str, Any]  # a TrainConfig with every default spelt out

    @property
    def name(self) -> str:
        return f"{task_name(self.settings['env_id'], self.settings['algo'])}__{self.hash[:8]}"


@dataclass(frozen=True)
class Trial:
    """One run of a study."""

    name: str
    configuration: int
    seed: int


@dataclass(frozen=True)
class Group:
    """Trials that are claimed, run, resumed and repeated together."""

    name: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Plan:
    """What a study consists of. `groups` are lists of (configuration, seed)."""

    name: str
    threads: int
    claim_timeout: float
    tasks: list[dict[str, Any]]  # source and settings of each base
    configurations: list[Configuration] = field(default_factory=list)
    members: list[list[tuple[int, int]]] = field(default_factory=list)

    @cached_property
    def groups(self) -> list[Group]:
        return [
            Group(f"g{number:05d}", tuple(self.trial(*member) for member in members))
            for number, members in enumerate(self.members)
        ]

    @property
    def trials(self) -> list[Trial]:
        return [trial for group in self.groups for trial in group.trials]

    def trial(self, configuration: int, seed: int) -> Trial:
        return Trial(f"{self.configurations[configuration].name}__s{seed}", configuration, seed)

    def config_of(self, trial: Trial, runs: Path, *, allow_import: bool = False) -> TrainConfig:
        """The configuration a trial is trained with."""
        settings = self.configurations[trial.configuration].settings
        changes = {"seed": trial.seed, "output_dir": str(runs), "allow_import": allow_import}
        return TrainConfig(**{**settings, **changes})

    def changed(self, **fields: Any) -> Plan:
        return replace(self, **fields)


def write_plan(folder: Path, plan: Plan) -> None:
    record = {"kind": KIND, "schema": SCHEMA, **asdict(plan)}
    files.replace_atomically(folder / PLAN, files.encode_json(record))


def read_plan(folder: Path) -> Plan:
    """The plan in a study's folder; one line where it is none, damaged or of a newer version."""
    try:
        data = (folder / PLAN).read_bytes()
    except FileNotFoundError:
        what = "no such folder" if not folder.is_dir() else f"not a study's folder (it has no {PLAN})"
        raise ConfigError(f"{folder}: {what}; `rl-training sweep FILE` makes one") from None
    except OSError as error:
        raise ConfigError(f"{folder / PLAN}: cannot be read: {error.strerror}") from None
    return parse_plan(data, str(folder / PLAN))


def parse_plan(data: bytes, place: str) -> Plan:
    try:
        record = files.decode_json(data)
        if not isinstance(record, dict) or record.pop("kind", None) != KIND:
            raise ValueError("not the plan of a study")
        schema = record.pop("schema", None)
        if type(schema) is int and schema > SCHEMA:
            raise CheckpointError(f"{place}: schema {schema} needs a newer rl_training (this one knows {SCHEMA})")
        return _plan_of(record)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{place}: damaged: {type(error).__name__}: {error}") from None


def _plan_of(record: dict[str, Any]) -> Plan:
    configurations = [Configuration(**entry) for entry in record.pop("configurations")]
    members = [[(int(index), int(seed)) for index, seed in group] for group in record.pop("members")]
    for configuration in configurations:
        TrainConfig(**configuration.settings)
    plan = Plan(**record, configurations=configurations, members=members)
    names = [trial.name for trial in plan.trials]
    if len(set(names)) < len(names):
        raise ValueError("a trial is in it twice")
    if type(plan.threads) is not int or plan.threads < 1 or not float(plan.claim_timeout) > 0:
        raise ValueError("threads or claim_timeout is no number above 0")
    if any("/" in name or name.startswith(".") for name in (plan.name, *names)):
        raise ValueError("its names are not plain")
    return plan
