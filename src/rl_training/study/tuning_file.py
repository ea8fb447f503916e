"""A tuning as its author writes it: a base, the settings to search, and how often to try.

    base: sac/pendulum
    set: {total_timesteps: 20000}
    seeds: 0..2                         # every trial runs all of them
    space:
      learning_rate: {low: 1e-5, high: 1e-2, log: true}
      batch_size: {low: 64, high: 256, step: 64}
      hidden_sizes: [[64, 64], [256, 256]]
    trials: 20
    confirm: {best: 3, seeds: 100..104}

Everything is checked here, the base at every corner of the space too, before anything is planned.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rl_training.errors import ConfigError, nearest
from rl_training.experiment.config import TrainConfig, explain, load_config
from rl_training.experiment.metric_names import METRICS
from rl_training.experiment.registry import setting_names
from rl_training.experiment.strict_yaml import parse_yaml
from rl_training.settings import NonNegativeInt, PathText, PositiveInt, Settings, seed_list
from rl_training.study.description import (
    MOST_TRIALS,
    Description,
    Here,
    ManyRuns,
    Wanted,
    checked,
    found_beside,
    plain_name,
    put_settings,
    require_few_trials,
    require_origins,
    text_of,
)
from rl_training.study.plan import described
from rl_training.study.space import Dimension, parse_space

# Above so many corners each setting is taken to its ends alone.
_MOST_CORNERS = 256
_HIGHEST_SEED = 2**32 - 1


def _metric(value: Any) -> Any:
    """The name in results of a metric, given that or its tag in the log."""
    names = {name: metric.name for metric in METRICS for name in (metric.name, metric.tag) if name}
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"must be a metric of results, got {value!r}{nearest(str(value), names)}")
    return names[value]


class Confirm(Settings):
    """How the best of a tuning are tried again on seeds that chose nothing."""

    best: PositiveInt = 3
    """configurations that are tried again; the base is besides"""
    seeds: Annotated[tuple[int, ...], BeforeValidator(seed_list)] | None = None
    """fresh seeds; null: as many as the trials have, above the highest of theirs"""


class TuningFile(ManyRuns):
    """The keys of a tuning's YAML file."""

    base: Annotated[PathText, Field(min_length=1)]
    """packaged configuration or path of a YAML file; the first trial is this configuration itself"""
    seeds: Annotated[tuple[int, ...], BeforeValidator(seed_list)]
    """`0..2` or a list: every trial runs all of them"""
    space: Annotated[dict[str, Any], BeforeValidator(parse_space)]
    """settings to search: `{low, high, log, step}` or a list of choices"""
    trials: Annotated[PositiveInt, Field(le=MOST_TRIALS)] = 20
    """configurations to try, the base among them"""
    metric: Annotated[str, BeforeValidator(_metric)] = "eval_return_mean"
    """what is to become as high as possible, by its name in results or in the log"""
    confirm: Confirm | None = Field(default_factory=Confirm)
    """how the best are confirmed; null: not at all"""
    sampler_seed: Annotated[NonNegativeInt, Field(le=2**31)] = 0
    """seed of what is asked"""

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """The seeds of the confirmation."""
        if self.confirm is None:
            return ()
        first = max(self.seeds) + 1
        return self.confirm.seeds or tuple(range(first, first + len(self.seeds)))


@dataclass(frozen=True)
class TuningDescription:
    """A tuning as it was written, read and checked."""

    name: str
    text: str
    place: str
    file: TuningFile
    source: str
    base: TrainConfig
    space: Mapping[str, Dimension]  # by dotted place
    values: Mapping[str, Any]  # the base as plain values, without what varies
    lines: Mapping[str, int] = field(default_factory=dict)
    here: Here = field(default_factory=Here)

    def explain(self, error: ConfigError) -> ConfigError:
        """The same error with file and line in front."""
        return explain(error, self.place, self.lines, {})

    def config_at(self, point: Mapping[str, Any]) -> TrainConfig:
        """The base with the settings of a point; `ConfigError` where they contradict each other."""
        values = copy.deepcopy(dict(self.values))
        put_settings(point, "space", values, {})
        return checked(self.here.put(values), described(point), self.file.seeds[0])

    def base_point(self) -> dict[str, Any] | None:
        """Where the base lies in the space; None where it lies outside."""
        point = {place: _value_at(self.base, place) for place in self.space}
        return point if all(self.space[place].holds(value) for place, value in point.items()) else None

    def asking(self, wanted: tuple[Wanted, ...]) -> Description:
        """The study that consists of these configurations."""
        return Description(
            self.name, self.text, self.place, self.file, (self.source,), (self.base,), wanted, self.lines
        )


def read_tuning(source: str | Path | Mapping[str, Any], here: Here | None = None) -> TuningDescription:
    """Read a tuning's file, or take its contents as a mapping."""
    text, place, stem = text_of(source, "tuning")
    document = parse_yaml(text, place)
    folder, lines = None, dict[str, int]()
    if not isinstance(source, Mapping):
        folder, lines = Path(source).expanduser().parent, document.lines
    if not isinstance(document.value, dict):
        raise ConfigError(f"{place}: a tuning is a mapping with `base`, `seeds` and `space`")
    try:
        file = TuningFile.parse(document.value)
        _check_seeds(file)
        return _described(file, text, place, stem, folder, lines, here or Here())
    except ConfigError as error:
        raise explain(error, place, lines, {}) from None


def _described(
    file: TuningFile, text: str, place: str, stem: str, folder: Path | None, lines: Mapping[str, int], here: Here
) -> TuningDescription:
    try:
        name = file.name or plain_name(stem)
    except ValueError as error:
        raise ConfigError(f"name {error}", key="name") from None
    source = found_beside(file.base, folder)
    values = load_config(source, owners=setting_names).config.to_dict()
    places: dict[str, str] = {}
    put_settings(file.common, "set", values, places)
    base = checked(here.put(values), source, file.seeds[0])
    require_origins([base], (*file.seeds, *file.fresh_seeds))
    space = put_settings(file.space, "space", copy.deepcopy(values), places)
    for key, setting in zip(sorted(file.space, key=lambda key: key != "algo"), list(space)):
        try:
            space[setting] = space[setting].like(_value_at(base, setting))
        except ValueError as error:
            raise ConfigError(f"space: {key} {error}", key=f"space.{key}") from None
    found = TuningDescription(name, text, place, file, source, base, space, values, lines, here)
    for corner in _corners(space):
        try:
            found.config_at(corner)
        except ConfigError as error:
            raise ConfigError(f"space: at its end {error}", key="space") from None
    return found


def _check_seeds(file: TuningFile) -> None:
    require_few_trials(file.trials, len(file.seeds), "trials")
    if both := sorted({*file.seeds} & {*file.fresh_seeds}):
        raise ConfigError(
            f"confirm.seeds must be fresh: {both[0]} is one of the trials' `seeds`", key="confirm.seeds"
        )
    if max(file.fresh_seeds, default=0) > _HIGHEST_SEED:
        raise ConfigError("no seeds are left above the trials'; give confirm.seeds", key="confirm")


def _value_at(config: TrainConfig, place: str) -> Any:
    """The value at a dotted place; None where there is none. A list is one, whatever holds it."""
    found: Any = config.to_dict()
    for part in place.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return list(found) if isinstance(found, tuple) else found


def _corners(space: Mapping[str, Dimension]) -> Iterator[dict[str, Any]]:
    """Every combination of ends, or where these are many each setting at its ends alone."""
    if math.prod(len(dimension.ends) for dimension in space.values()) <= _MOST_CORNERS:
        for point in itertools.product(*(dimension.ends for dimension in space.values())):
            yield dict(zip(space, point))
        return
    for place, dimension in space.items():
        for end in dimension.ends:
            yield {place: end}
