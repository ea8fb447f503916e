"""Settings of runs in the form in which they are compared: what differs only by seed or version is alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.experiment.runs import RESOLVED
from rl_training.report.run_files import parse_settings, reader_of, without_seed
from rl_training.study.plan import left_out

if TYPE_CHECKING:
    from rl_training.report.reading import Run


def with_origins(runs: Sequence[Run]) -> list[Run]:
    """The runs; those that start from runs which differ only in their seed have the same `init_from`."""
    origins = {path: _origin(path) for run in runs if isinstance(path := run.settings.get("init_from"), str)}
    alike: dict[str, list[Run]] = {}
    for run in runs:
        if (origin := origins.get(str(run.settings.get("init_from")))) is not None:
            settings = {**run.settings, "init_from": origin}
            alike.setdefault(json.dumps([run.algo, settings], sort_keys=True, default=str), []).append(run)
    made: dict[Run, Mapping[str, Any]] = {}
    for several in alike.values():
        pairs = {(run.seed, run.settings["init_from"]) for run in several}
        places = list(dict.fromkeys(run.settings["init_from"] for run in several))
        if len(places) > 1 and len(pairs) == len({seed for seed, _ in pairs}):
            shared = {**several[0].settings, "init_from": f"{places[0]} and {len(places) - 1} of other seeds"}
            made |= dict.fromkeys(several, shared)
    return [replace(run, settings=made.get(run, run.settings)) for run in runs]


def _origin(path: str) -> tuple[Mapping[str, Any], str] | None:
    """Settings of the run that `path` is in, without its seed, and the place in its folder; None if unknown."""
    place = Path(path)
    for folder in (place, *place.parents[:2]):
        with suppress(OSError, ValueError):
            if (data := reader_of(folder)(RESOLVED)) is not None:
                settings, _ = parse_settings(without_seed(data), [])
                return (settings, str(place.relative_to(folder))) if settings else None
    return None


def completed(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs with every setting that others of their algorithm have and `identity` leaves out at its default."""
    names: dict[tuple[str, Any], set[str]] = {}
    for run in runs:
        names.setdefault(_algorithm(run), set()).update(run.settings)
    made: dict[int, Mapping[str, Any]] = {}  # runs that share their settings still do
    for run in runs:
        usual = left_out(run.algo) if run.settings else {}
        missing = {name: value for name, value in usual.items() if name in names[_algorithm(run)]}
        made.setdefault(id(run.settings), {**missing, **run.settings})
    return tuple(replace(run, settings=made[id(run.settings)]) for run in runs)


def _algorithm(run: Run) -> tuple[str, Any]:
    """The algorithm and its regime, which determine the settings that a run can have."""
    return run.algo, run.settings.get("regime")
