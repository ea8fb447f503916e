"""A study's YAML file: one base or several tasks, seeds, and the settings that vary.

    base: iql/hopper-medium-expert      # or tasks: [{config: …, set: {…}}, …]
    set: {total_timesteps: 100000}      # for every trial
    seeds: 0..9                         # or [0, 3, 7]
    grid: {beta: [1, 3, 10]}            # every combination
    zip: {gamma: [0.9, 0.99], tau: [0.01, 0.005]}      # the first of each, the second of each, …
    list: [{expectile: 0.7}, {expectile: 0.9, batch_size: 64}]

`list`, `zip` and `grid` combine: every entry of one with every entry of the others. Keys are looked up as by
`--set`. Contradictions raise `ConfigError` here, before anything is planned.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BeforeValidator, Field

from rl_training.data.loading import DatasetConfig, spaces_of_data
from rl_training.display.output import note
from rl_training.environments.making import spaces_of
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.config import PlainMapping, TrainConfig, load_config, put_setting
from rl_training.experiment.registry import resolve, setting_names, spec_of
from rl_training.experiment.retention import find_origin
from rl_training.runs.spec import RunSpec
from rl_training.runtime.online import OnlineConfig, require_updates
from rl_training.settings import PathText, PositiveInt, Settings, at_home, seed_list
from rl_training.spaces import SpaceSpec
from rl_training.study.document import StudyDocument, plain_name
from rl_training.study.plan import LONGEST_TIMEOUT, MOST_THREADS, described, map_data_files

Thing = TypeVar("Thing")
MOST_TRIALS = 100_000
# Planning this many trials or more is announced.
_MANY_TRIALS = 5_000
_EVERY = 10_000
# Settings that belong to the study, or to the command line.
_NOT_TO_SET = {
    "seed": "give the seeds as `seeds: 0..9`",
    "seeds": "the seeds are the study's: give them as its own `seeds: 0..9`",
    "population": "how many train together is the study's: give it as its own `population`",
    "output_dir": "a study has its own folder; choose it with --output-dir",
    "allow_import": "a file cannot permit imports; use --allow-import",
}


def _columns(value: Any) -> Any:
    """A mapping of keys to lists of values, none empty."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping of settings to lists of values, got {value!r}")
    for key, values in value.items():
        if not isinstance(values, list | tuple):
            raise ValueError(f"{key} must be a list of values, got {values!r}")
        if not values:
            raise ValueError(f"{key} has no values")
    return {key: list(values) for key, values in value.items()}


def _grid(value: Any) -> Any:
    columns = _columns(value)
    for key, values in columns.items():
        if twice := [one for i, one in enumerate(values) if one in values[:i]]:
            raise ValueError(f"{key} has the value {twice[0]!r} twice")
    return columns


def _zipped(value: Any) -> Any:
    columns = _columns(value)
    if len({len(values) for values in columns.values()}) > 1:
        lengths = ", ".join(f"{key} {len(values)}" for key, values in columns.items())
        raise ValueError(f"needs lists of one length, got {lengths}")
    return columns


def _entries(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"must be a list of mappings of settings, got {value!r}")
    for entry in value:
        if not isinstance(entry, Mapping) or not entry:
            raise ValueError(f"each entry must be a mapping of settings, got {entry!r}")
    return tuple(dict(entry) for entry in value)


def _population(value: Any) -> Any:
    if value in ("auto", "off") or (type(value) is int and value >= 1):
        return value
    raise ValueError(f"must be auto, off or the most trials trained together, got {value!r}")


class Task(Settings):
    """One configuration to vary, with settings of its own."""

    config: Annotated[PathText, Field(min_length=1)]
    """packaged configuration or path of a YAML file"""
    set: PlainMapping = Field(default_factory=dict)
    """settings of this task"""


class ManyRuns(Settings):
    """The keys that the files of studies and tunings share."""

    name: Annotated[str, BeforeValidator(plain_name)] | None = None
    """folder of the study below the output folder; null: the file's own name"""
    common: PlainMapping = Field(default_factory=dict, alias="set")
    """settings of every trial"""
    population: Annotated[Any, BeforeValidator(_population)] = "auto"
    """the most trials in a group, which differ only in seed and numbers: a number, `off` (1), or `auto`"""
    threads: Annotated[PositiveInt, Field(le=MOST_THREADS)] | None = None
    """threads of each worker; null: the cores shared among the workers of the first sweep. Fixed with the plan,
    because bits depend on it"""
    claim_timeout: Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT)] = 60.0
    """seconds without a sign of life after which a worker's trial is given to another"""


class StudyFile(ManyRuns):
    """The keys of a study's YAML file."""

    base: Annotated[PathText, Field(min_length=1)] | None = None
    """packaged configuration or path of a YAML file that every trial starts from"""
    tasks: tuple[Task, ...] = ()
    """several configurations, in place of `base`"""
    seeds: Annotated[tuple[int, ...], BeforeValidator(seed_list)] | None = None
    """`0..9` or a list; null: the seed or seeds of each configuration"""
    grid: Annotated[dict[str, Any], BeforeValidator(_grid)] = Field(default_factory=dict)
    """settings and their values, in every combination"""
    zipped: Annotated[dict[str, Any], BeforeValidator(_zipped)] = Field(default_factory=dict, alias="zip")
    """settings and lists of one length: the first values of all, the second values of all, …"""
    entries: Annotated[tuple[dict[str, Any], ...], BeforeValidator(_entries)] = Field(default=(), alias="list")
    """mappings of settings, each a configuration"""

    @classmethod
    def parse(cls, values: Mapping[str, Any], place: str = "") -> Self:
        study = super().parse(values, place)
        if (study.base is None) == (not study.tasks):
            raise ConfigError("a study has either `base` or `tasks`", key="tasks" if study.tasks else None)
        return study


@dataclass(frozen=True)
class WantedConfig:
    """A configuration of the study: its settings with every default written out, and its seeds."""

    task: int
    changes: Mapping[str, Any]  # what varies, by dotted place
    config: TrainConfig
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """A study with its configurations expanded and checked."""

    name: str
    document: StudyDocument
    file: ManyRuns
    sources: tuple[str, ...]  # of each task, the name or path of its configuration
    bases: tuple[TrainConfig, ...]
    wanted: tuple[WantedConfig, ...]


@dataclass(frozen=True)
class Location:
    """Where the trials of a study run. This is not part of its file, and does not change which trials there are."""

    data: Path | None = None
    """folder for data files that the study names by a relative path; None: the current folder"""
    device: str | None = None
    """replaces the device of each configuration"""
    allow_import: bool = False
    """permits to import objects `module:Name` that the study names"""

    @classmethod
    def of(cls, data: str | Path | None, device: str | None, allow_import: bool = False) -> Location:
        """From the arguments of a user."""
        return cls(None if data is None else Path(at_home(str(data))).absolute(), device, allow_import)

    def values_of(self, source: str) -> dict[str, Any]:
        """The values of a configuration by its name or path."""
        config = load_config(source, owners=setting_names).config
        return {**config.to_dict(), "allow_import": self.allow_import}

    def apply(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """`values` of a configuration with the device and the absolute data paths of this machine.

        A file that is missing in `data` raises; without `data` its path stays.
        """
        moved = {} if self.device is None else {"device": self.device}
        return {**values, **moved, "algo_kwargs": map_data_files(self._find, values["algo_kwargs"])}

    def _find(self, place: str, given: str) -> str:
        path = (self.data or Path.cwd()) / at_home(given)
        if path.is_file():
            return str(path)
        if self.data is None:
            return given
        raise ConfigError(f"{path}: no such file, which the study learns from", key="dataset_path")


def read_description(source: str | Path | Mapping[str, Any], location: Location | None = None) -> Description:
    """Read and expand a study's file, or its contents as a mapping, and check every configuration."""
    document = StudyDocument.read(source, "study", "`base` or `tasks`, and seeds or settings to vary")
    with document.explaining():
        file = StudyFile.parse(document.values)
        tasks = file.tasks or (Task(config=str(file.base)),)
        tasks = tuple(Task(config=document.find_config(task.config), set=task.set) for task in tasks)
        name = document.name_or_stem(file.name)
        _check_number(file, len(tasks))
        expanded = [_expand(i, task, file, location or Location()) for i, task in enumerate(tasks)]
    sources, bases = tuple(task.config for task in tasks), tuple(base for base, _ in expanded)
    return Description(name, document, file, sources, bases, tuple(one for _, found in expanded for one in found))


def _check_number(file: StudyFile, tasks: int) -> None:
    """Raise if there are too many trials; announce it if planning them takes a while."""
    zipped = len(next(iter(file.zipped.values()), [0]))
    number = tasks * math.prod(len(column) for column in file.grid.values()) * zipped * max(1, len(file.entries))
    require_few_trials(number, len(file.seeds or (0,)), "grid")
    if number * len(file.seeds or (0,)) >= _MANY_TRIALS:
        note(f"planning {number * len(file.seeds or (0,)):,} trials: checking {number:,} configurations …")


def announced(things: Iterable[Thing], done: str) -> Iterator[Thing]:
    """Iterate over `things`; after every ten thousand print how many are `done`, such as "trials grouped"."""
    for number, thing in enumerate(things):
        if number and number % _EVERY == 0:
            note(f"{number:,} {done}")
        yield thing


def require_few_trials(configurations: int, seeds: int, key: str) -> None:
    """Raise if a study has more than `MOST_TRIALS` trials."""
    if configurations * seeds > MOST_TRIALS:
        raise ConfigError(
            f"{configurations:,} configurations of {seeds:,} seeds are {configurations * seeds:,} trials; at most "
            f"{MOST_TRIALS:,} are planned: vary less, or make several studies",
            key=key,
        )


def _expand(index: int, task: Task, file: StudyFile, location: Location) -> tuple[TrainConfig, list[WantedConfig]]:
    """The base of a task, and all its configurations."""
    values = location.values_of(task.config)
    places: dict[str, str] = {}
    where = f"tasks.{index}.set" if file.tasks else "set"
    for section, settings in (("set", file.common), (where, task.set)):
        put_settings(settings, section, values, places)
    own = () if values["seed"] is None else (values["seed"],)
    seeds = file.seeds or tuple(values["seeds"] or own)
    values["seeds"] = None
    if not seeds:
        raise ConfigError(f"{task.config} has `seed: null`; give the study's `seeds`", key="seeds")
    wanted = [
        WantedConfig(
            index, changes, checked(location.apply(point), described(changes) or task.config, seeds[0]), seeds
        )
        for point, changes in announced(_points(values, places, file), "configurations checked")
    ]
    require_origins((one.config for one in wanted), seeds)
    try:
        return checked(location.apply(values), task.config, seeds[0]), wanted
    except ConfigError:  # the base is only complete together with the settings that vary
        return wanted[0].config, wanted


def _points(
    values: dict[str, Any], places: dict[str, str], file: StudyFile
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The values of every configuration of a task, and its changes by dotted place."""
    rows = [dict(zip(file.zipped, row)) for row in zip(*file.zipped.values())] or [{}]
    grid = [dict(zip(file.grid, point)) for point in itertools.product(*file.grid.values())]
    for entry, row, point in itertools.product(file.entries or ({},), rows, grid):
        changed, taken = copy.deepcopy(values), dict(places)
        changes: dict[str, Any] = {}
        sections = (("list", entry), ("zip", row), ("grid", point))
        # The algorithm comes first: it determines which bare keys exist.
        for section, settings in sorted(sections, key=lambda part: "algo" not in part[1]):
            changes |= put_settings(settings, section, changed, taken)
        yield changed, changes


def put_settings(
    settings: Mapping[str, Any], section: str, values: dict[str, Any], places: dict[str, str]
) -> dict[str, Any]:
    """Set the settings of a section in `values`, and return them by dotted place.

    `places` has the section of each setting that is already given; giving one twice raises.
    """
    done: dict[str, Any] = {}
    for key, value in sorted(settings.items(), key=lambda item: item[0] != "algo"):
        try:
            place = put_setting(key, value, values, setting_names, section)
        except ConfigError as error:
            raise ConfigError(str(error), key=f"{section}.{key}") from None
        if (reason := _NOT_TO_SET.get(place)) is not None:
            raise ConfigError(f"{section}: {place} cannot be set here; {reason}", key=f"{section}.{key}")
        for other, given_by in places.items():
            if f"{place}.".startswith(f"{other}.") or f"{other}.".startswith(f"{place}."):
                raise ConfigError(f"{key} is given by {section} and by {given_by}", key=f"{section}.{key}")
        places[place], done[place] = section, value
    return done


def checked(values: Mapping[str, Any], label: str, seed: int) -> TrainConfig:
    """The configuration with every default written out, checked as a run with that seed would check it."""
    try:
        config = TrainConfig(**values)
        spec = spec_of(config)
        one = config if config.init_from is None else config.replace(seed=seed, seeds=None)
        run = _for_actions(spec.run_spec(one))
        if run.regime.name == "online":
            online = run.resolved[OnlineConfig]
            require_updates(run, online, online.earned(config.total_timesteps))
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}" if label else str(error), key=error.key) from None
    kwargs = run.resolved.to_dict()
    return config.replace(algo=spec.name, algo_kwargs=kwargs, plugin=spec.plugin, allow_import=False)


def _for_actions(run: RunSpec) -> RunSpec:
    """`run` with the settings for the actions of its environment or data, if discrete ones have their own."""
    if run.sections.discrete is None:
        return run
    data = {} if run.config.env_id is not None else run.resolved[DatasetConfig].model_dump(mode="json")
    config = run.config.replace(algo_kwargs=data, seed=None, seeds=None)  # all that the spaces depend on
    try:
        spaces = _spaces(json.dumps(config.to_dict(), sort_keys=True))
    except RLTrainingError:  # which the runs report
        return run
    return run if spaces is None else run.for_actions(spaces, run.config.env_id or "the data")


@lru_cache(maxsize=64)
def _spaces(settings: str) -> SpaceSpec | None:
    """The spaces of the environment of a configuration in JSON, or of its data; None if these do not define any."""
    config = TrainConfig(**json.loads(settings))
    return spaces_of(config) if config.env_id is not None else spaces_of_data(resolve(config)[DatasetConfig])


def require_origins(configs: Iterable[TrainConfig], seeds: Iterable[int]) -> None:
    """Raise if a run that trials start from does not exist."""
    for init_from in {config.init_from for config in configs} - {None}:
        for seed in seeds:
            find_origin(str(init_from), seed)
