"""A tuning's YAML file: a base, the settings to search, and the number of trials.

    base: sac/pendulum
    set: {total_timesteps: 20000}
    seeds: 0..2                         # every trial runs all of them
    space:
      learning_rate: {low: 1e-5, high: 1e-2, log: true}
      batch_size: {low: 64, high: 256, step: 64}
      hidden_sizes: [[64, 64], [256, 256]]
    trials: 20
    confirm: {best: 3, seeds: 100..104}

Everything is checked here, before anything is planned.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rl_training.errors import ConfigError, nearest
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.metric_names import KNOWN, less_is_better
from rl_training.settings import NonNegativeInt, PathText, PositiveInt, Settings, seed_list
from rl_training.study.description import (
    MOST_TRIALS,
    Description,
    Location,
    ManyRuns,
    checked,
    put_settings,
    require_few_trials,
    require_origins,
)
from rl_training.study.document import StudyDocument
from rl_training.study.plan import described
from rl_training.study.space import Dimension, Range, parse_space

_log = logging.getLogger(__name__)

# If the space has more corners, each setting alone is checked at its ends.
_MOST_CORNERS = 256
_HIGHEST_SEED = 2**32 - 1


def _metric(value: Any) -> Any:
    """The name of a metric in results, from that name or its tag in the log."""
    if not isinstance(value, str) or value not in KNOWN:
        raise ValueError(f"must be a metric of results, got {value!r}{nearest(str(value), KNOWN)}")
    if less_is_better(value):
        raise ValueError(
            f"a tuning maximises it, and less {value} is better; sweep the settings instead, then use "
            'Study(…).best("validation_distance", lowest=True)'
        )
    return KNOWN[value].name


class Confirm(Settings):
    """How the best configurations are run again, on seeds that had no part in choosing them."""

    best: PositiveInt = 3
    """configurations to run again, in addition to the base"""
    seeds: Annotated[tuple[int, ...], BeforeValidator(seed_list)] | None = None
    """fresh seeds; null: as many as `seeds` of the tuning, following the highest of them"""


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
    """metric to maximise, by its name in results or in the log"""
    confirm: Confirm | None = Field(default_factory=Confirm)
    """how the best configurations are confirmed; null: they are not"""
    sampler_seed: Annotated[NonNegativeInt, Field(le=2**31)] = 0
    """seed of the sampler"""

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """The seeds of the confirmation."""
        if self.confirm is None:
            return ()
        first = max(self.seeds) + 1
        return self.confirm.seeds or tuple(range(first, first + len(self.seeds)))


@dataclass(frozen=True)
class TuningDescription(Description):
    """A tuning, checked; its study consists of the configurations in `wanted`."""

    file: TuningFile
    space: Mapping[str, Dimension]  # by dotted place
    values: Mapping[str, Any]  # the base as plain values
    location: Location

    @property
    def base(self) -> TrainConfig:
        return self.bases[0]

    def config_at(self, point: Mapping[str, Any]) -> TrainConfig:
        """The base with the settings of a point; `ConfigError` if they contradict each other."""
        values = copy.deepcopy(dict(self.values))
        put_settings(point, "space", values, {})
        return checked(self.location.apply(values), described(point), self.file.seeds[0])

    def base_point(self) -> dict[str, Any] | None:
        """The point of the base in the space; None if it is outside."""
        point = {place: _value_at(self.base, place) for place in self.space}
        return point if all(self.space[place].holds(value) for place, value in point.items()) else None


def read_tuning(source: str | Path | Mapping[str, Any], location: Location | None = None) -> TuningDescription:
    """Read a tuning's file, or its contents as a mapping, and check the base at every corner of the space."""
    document = StudyDocument.read(source, "tuning", "`base`, `seeds` and `space`")
    with document.explaining():
        return _described(document, TuningFile.parse(document.values), location or Location())


def _described(document: StudyDocument, file: TuningFile, location: Location) -> TuningDescription:
    _check_seeds(file)
    name, source = document.name_or_stem(file.name), document.find_config(file.base)
    values = location.values_of(source)
    places: dict[str, str] = {}
    put_settings(file.common, "set", values, places)
    values["seeds"] = None  # those of the tuning replace them
    base = checked(location.apply(values), source, file.seeds[0])
    require_origins([base], (*file.seeds, *file.fresh_seeds))
    space = put_settings(file.space, "space", copy.deepcopy(values), places)
    found = TuningDescription(name, document, file, (source,), (base,), (), space, values, location)
    for key, setting in zip(sorted(file.space, key=lambda key: key != "algo"), list(space)):
        try:
            space[setting] = space[setting].like(_example(found, setting))
        except ValueError as error:
            raise ConfigError(f"space: {key} {error}", key=f"space.{key}") from None
    for corner in _corners(space):
        try:
            found.config_at(corner)
        except ConfigError as error:
            raise ConfigError.of("space", f"at its end {error}") from None
    for place in space:
        if place.partition(".")[0] in TrainConfig.affecting("score"):
            _log.warning("space: %s: trials are comparable only if it leaves the rewards as they are", place)
    return found


def _check_seeds(file: TuningFile) -> None:
    require_few_trials(file.trials, len(file.seeds), "trials")
    if both := sorted({*file.seeds} & {*file.fresh_seeds}):
        raise ConfigError(
            f"confirm.seeds must be fresh: {both[0]} is one of the trials' `seeds`", key="confirm.seeds"
        )
    if max(file.fresh_seeds, default=0) > _HIGHEST_SEED:
        raise ConfigError("no seeds are left above the trials'; give confirm.seeds", key="confirm")


def _example(found: TuningDescription, setting: str) -> Any:
    """The base's value of a setting; if that is no number (null, `auto`), a number of the setting's type."""
    value, dimension = _value_at(found.base, setting), found.space[setting]
    if type(value) in (int, float) or not isinstance(dimension, Range):
        return value
    try:
        found.config_at({setting: dimension.low + 0.5})
    except ConfigError:
        return 0
    return 0.5


def _value_at(config: TrainConfig, place: str) -> Any:
    """The value at a dotted place, a tuple as a list; None if there is none."""
    found: Any = config.to_dict()
    for part in place.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return list(found) if isinstance(found, tuple) else found


def _corners(space: Mapping[str, Dimension]) -> Iterator[dict[str, Any]]:
    """Every combination of ends; if there are too many, each setting alone at its ends."""
    if math.prod(len(dimension.ends) for dimension in space.values()) <= _MOST_CORNERS:
        for point in itertools.product(*(dimension.ends for dimension in space.values())):
            yield dict(zip(space, point))
        return
    for place, dimension in space.items():
        for end in dimension.ends:
            yield {place: end}
