"""The plan of a study: its configurations and groups of trials. A plan is only ever extended.

    studies/NAME/
        study.yaml                              the file of the study
        plan.json                               configurations, and groups of trials that are run as a whole
        claims/g00000/1.json                    the worker that trains, or trained, a group
        failures/TRIAL.json                     exit code and message of a trial that failed
        runs/{env}__{algo}__{hash8}__s{seed}/   an ordinary run folder each
        logs/                                   output of the workers
        tuning.json                             of a tuning: its trials and their outcomes

A configuration is identified by a hash of what its results depend on: every setting with its default written out,
except the seed and the settings for where and how a run is computed (`_HOW`). Data files count by name and
contents, not by folder. A plan of version 0.2 has no contents, so its files count by name until they are found
again. The settings are stored next to the hash, so a default that changes in a later version does not change
planned trials. A setting that is new in a later version does not create a new trial if it has its default value.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import files
from rl_training.experiment.compat import (
    ADDED_SINCE_0_2,
    ADDED_TO,
    REMOVED_FROM_EARLY_STOPPING,
    without_fqe_stopping,
)
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import task_name

PLAN = "plan.json"
STUDY = "study.yaml"
TUNING = "tuning.json"
RUNS = "runs"
KIND = "rl_training.study"
SCHEMA = 2
_SCHEMA_WITHOUT_DATA = 1
# Upper limits of a worker's threads, and of `claim_timeout` in seconds.
MOST_THREADS, LONGEST_TIMEOUT = 1024, 30 * 86_400.0
_EARLY_STOPPING = "algo_kwargs.early_stopping"
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
# Where and how a run is computed: no result depends on these. The last two are settings of 0.1 and 0.2.
_HOW = TrainConfig.affecting("run", "place") | {"env_processes", "evaluate_beside"}


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that identify a configuration, flat, without where and how it is computed.

    A setting that 0.2 did not have, or that only 0.2 had, is left out if it has its default.
    """
    fields = {name: value for name, value in settings.items() if name not in _HOW and name != "algo_kwargs"}
    added = _added_to(str(settings.get("algo")))
    own, given = (
        {name: value for name, value in part.items() if name not in added or value != added[name]}
        for part in (fields, settings["algo_kwargs"])
    )
    flat = own | {f"algo_kwargs.{name}": value for name, value in given.items()}
    if isinstance(stopping := flat.get(_EARLY_STOPPING), dict):
        removed = REMOVED_FROM_EARLY_STOPPING.items()
        flat[_EARLY_STOPPING] = {name: value for name, value in stopping.items() if (name, value) not in removed}
    return map_data_files(lambda _, path: PurePath(path).name, flat)


def _added_to(algo: str) -> dict[str, Any]:
    """The defaults of the settings that an algorithm has since 0.2."""
    return ADDED_SINCE_0_2 | ADDED_TO.get(algo, {})


def left_out(algo: str) -> dict[str, Any]:
    """The values at which `identity` leaves out settings, by their names in it."""
    fields = TrainConfig.model_fields
    return {name if name in fields else f"algo_kwargs.{name}": value for name, value in _added_to(algo).items()}


def map_data_files(change: Callable[[str, str], Any], value: Any, place: str = "") -> Any:
    """Settings with `change(dotted place, path)` in place of each path of a data file; tuples become lists."""
    if isinstance(value, Mapping):
        return {key: map_data_files(change, one, f"{place}.{key}" if place else key) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [map_data_files(change, one, f"{place}.{i}") for i, one in enumerate(value)]
    return change(place, value) if isinstance(value, str) and place.endswith("dataset_path") else value


def data_files(settings: Mapping[str, Any]) -> dict[str, str]:
    """The paths of data files in settings, by dotted place."""
    found: dict[str, str] = {}
    map_data_files(found.setdefault, settings)
    return found


def hash_of(known: Mapping[str, Any], contents: Mapping[str, str] | None = None) -> str:
    """The hash of an identity and of the contents of its data files; the same as in 0.2."""
    whole = {**known, "data": dict(contents)} if contents else dict(known)
    if isinstance(stopping := whole.get(_EARLY_STOPPING), dict):
        whole[_EARLY_STOPPING] = {**REMOVED_FROM_EARLY_STOPPING, **stopping}
    return hashlib.sha256(files.encode_json(whole)).hexdigest()


def with_how(settings: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    """`settings`, with where and how it is computed taken from `how`, settings of the same identity."""
    return {**settings, **{name: how[name] for name in _HOW if name in how}}


def short(place: str) -> str:
    """The name of a setting as a user types it."""
    return place.removeprefix("algo_kwargs.")


def described(changes: Mapping[str, Any]) -> str:
    """Changes as text: `beta=3, gamma=0.9`."""
    return ", ".join(f"{short(place)}={value}" for place, value in changes.items())


@dataclass(frozen=True)
class Configuration:
    """A configuration of a study; its trials differ only in their seed."""

    hash: str
    task: int
    changes: dict[str, Any]  # what varies, by dotted place
    settings: dict[str, Any]  # a TrainConfig with every default written out
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
    """What a study consists of. `members` are the groups as lists of (configuration, seed)."""

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
        """The configuration to train a trial with."""
        settings = self.configurations[trial.configuration].settings
        changes = {"seed": trial.seed, "output_dir": str(runs), "allow_import": allow_import}
        kwargs = without_fqe_stopping(settings["algo_kwargs"])
        return TrainConfig(**{**settings, **changes, "algo_kwargs": kwargs})


def write_plan(folder: Path, plan: Plan) -> None:
    record = asdict(plan)
    for configuration in record["configurations"]:
        if not configuration["data"]:
            del configuration["data"]
    has_data = any(one.data for one in plan.configurations)
    record |= {"kind": KIND, "schema": SCHEMA if has_data else _SCHEMA_WITHOUT_DATA}
    files.replace_atomically(folder / PLAN, files.encode_json(record))


def read_plan(folder: Path) -> Plan:
    """Read the plan in a study's folder; raises if it is missing, damaged or of a newer version."""
    try:
        data = (folder / PLAN).read_bytes()
    except FileNotFoundError:
        what = "no such folder" if not folder.is_dir() else f"not a study's folder (it has no {PLAN})"
        raise ConfigError(f"{folder}: {what}; `rl-training sweep FILE` makes one") from None
    except OSError as error:
        raise ConfigError(f"{folder / PLAN}: cannot be read: {error.strerror}") from None
    return parse_plan(data, str(folder / PLAN))


def parse_plan(data: bytes, place: str) -> Plan:
    with reading_record(data, place, KIND, "plan of a study", SCHEMA) as record:
        return _plan_of(record)


@contextlib.contextmanager
def reading_record(data: bytes, place: str, kind: str, what: str, schema: int) -> Iterator[dict[str, Any]]:
    """The fields of a JSON record; a wrong kind, newer schema or error in the block is a `CheckpointError`."""
    try:
        record = files.decode_json(data)
        if not isinstance(record, dict) or record.pop("kind", None) != kind:
            raise ValueError(f"not the {what}")
        found = record.pop("schema", None)
        if type(found) is int and found > schema:
            raise CheckpointError(f"{place}: schema {found} needs a newer rl_training (this one knows {schema})")
        yield record
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
        raise ValueError("it contains a trial twice")
    if type(plan.threads) is not int or not 1 <= plan.threads <= MOST_THREADS:
        raise ValueError(f"threads must be a whole number from 1 to {MOST_THREADS}, got {str(plan.threads)[:40]}")
    timeout = plan.claim_timeout
    if type(timeout) not in (int, float) or not 0 < timeout <= LONGEST_TIMEOUT:
        raise ValueError(f"claim_timeout must be > 0 and <= {LONGEST_TIMEOUT:g}, got {str(timeout)[:40]}")
    if not all(isinstance(name, str) and _PLAIN.fullmatch(name) for name in (plan.name, *names)):
        raise ValueError("its names are not plain: letters, digits, '.', '_' and '-' alone")
    return plan
