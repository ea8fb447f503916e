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
the seed and for where and how a run is made (`_HOW`). Data files count by their name and contents, not by their
folder; a plan of version 0.2 has no contents, and its files count by their name until they are found again. The
settings are kept beside the hash, so a default that changes in a later version changes no trial that is planned; a
setting that is new in a later version, and left at its default, makes no new trial.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import files
from rl_training.experiment.compat import REMOVED_FROM_EARLY_STOPPING, without_fqe_stopping
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import task_name

PLAN = "plan.json"
STUDY = "study.yaml"
TUNING = "tuning.json"
RUNS = "runs"
KIND = "rl_training.study"
SCHEMA = 2
_SCHEMA_WITHOUT_DATA = 1
# Threads of a worker, and seconds without a sign of life.
MOST_THREADS, LONGEST_TIMEOUT = 1024, 30 * 86_400.0
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
# Where and how a run is made: no result depends on these. The last two are settings of 0.1 and 0.2.
_HOW = TrainConfig.affecting("run", "place") | {"env_processes", "evaluate_beside"}


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a configuration the same one: its settings, flat, without where and how it runs."""
    flat = {name: value for name, value in settings.items() if name not in _HOW and name != "algo_kwargs"}
    flat |= {f"algo_kwargs.{name}": value for name, value in settings["algo_kwargs"].items()}
    if isinstance(stopping := flat.get("algo_kwargs.early_stopping"), dict):
        flat["algo_kwargs.early_stopping"] = {**REMOVED_FROM_EARLY_STOPPING, **stopping}  # as 0.2 hashed it
    return {name: _without_folders(name, value) for name, value in flat.items()}


def _without_folders(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_folders(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(name, item) for item in value]
    return PurePath(value).name if isinstance(value, str) and _names_a_file(name) else value


def _names_a_file(place: str) -> bool:
    return place.endswith("dataset_path")


def data_files(value: Any, place: str = "") -> dict[str, str]:
    """The data files that settings name, by dotted place."""
    if isinstance(value, Mapping):
        parts = [data_files(item, f"{place}.{key}" if place else key) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [data_files(item, f"{place}.{i}") for i, item in enumerate(value) if isinstance(item, Mapping)]
    else:
        return {place: value} if isinstance(value, str) and _names_a_file(place) else {}
    return {name: path for part in parts for name, path in part.items()}


def hash_of(known: Mapping[str, Any], contents: Mapping[str, str] | None = None) -> str:
    """The hash of an identity and of the contents of its data files."""
    whole = {**known, "data": dict(contents)} if contents else dict(known)
    return hashlib.sha256(files.encode_json(whole)).hexdigest()


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
    data: dict[str, str] = field(default_factory=dict)  # contents of its data files, by dotted place

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
    tasks: list[dict[str, Any]]  # source, settings and contents of the data of each base
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
        kwargs = without_fqe_stopping(settings["algo_kwargs"])
        return TrainConfig(**{**settings, **changes, "algo_kwargs": kwargs})

    def changed(self, **fields: Any) -> Plan:
        return replace(self, **fields)


def write_plan(folder: Path, plan: Plan) -> None:
    record = asdict(plan)
    for configuration in record["configurations"]:
        if not configuration["data"]:
            del configuration["data"]
    has_data = any(one.data for one in plan.configurations)
    record |= {"kind": KIND, "schema": SCHEMA if has_data else _SCHEMA_WITHOUT_DATA}
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
    if type(plan.threads) is not int or not 1 <= plan.threads <= MOST_THREADS:
        raise ValueError(f"threads must be a whole number from 1 to {MOST_THREADS}, got {str(plan.threads)[:40]}")
    timeout = plan.claim_timeout
    if type(timeout) not in (int, float) or not 0 < timeout <= LONGEST_TIMEOUT:
        raise ValueError(f"claim_timeout must be > 0 and <= {LONGEST_TIMEOUT:g}, got {str(timeout)[:40]}")
    if not all(isinstance(name, str) and _PLAIN.fullmatch(name) for name in (plan.name, *names)):
        raise ValueError("its names are not plain: letters, digits, '.', '_' and '-' alone")
    return plan
