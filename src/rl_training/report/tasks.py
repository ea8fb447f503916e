"""The task of a run, its environment and data, and whether data of the same name have the same contents.

Version 0.2 did not record the fingerprint of the raw rows, so its runs are compared by other facts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from rl_training.report.reading import Run

# Settings that changed the rows before runs of 0.2 recorded their fingerprint, with the values that change nothing.
_PREPARATION = {
    "reward_scale": 1,
    "reward_shift": 0,
    "reward_range_scaling": False,
    "top_fraction": 1,
    "validation_fraction": 0,
}
# Algorithms whose runs of 0.2 recorded only the rows with a next action.
_NEXT_ACTIONS = frozenset({"rebrac"})
# The file of every Minari data set, in the folder `data` of that data set.
_MINARI_FILE = "main_data.hdf5"


def is_offline(run: Run) -> bool:
    """Whether the data set is part of the task; the prior data of an online run are part of its method."""
    return bool(run.dataset) and "algo_kwargs.buffer_capacity" not in run.settings


def tasks_of(runs: Iterable[Run]) -> dict[Run, str]:
    """The task of each run: environment and, offline, data set, with its fingerprint if names are ambiguous."""
    of_data: dict[tuple[str | None, str], list[Run]] = {}
    for run in filter(is_offline, runs):
        of_data.setdefault((run.env_id, data_name(str(run.dataset.get("name")))), []).append(run)
    found = {run: run.env_id or "no environment" for run in runs}
    for (_, data), sharing in of_data.items():
        several = _other_contents(sharing)
        for run in sharing:
            found[run] += f", {data}" + (f" [{_contents(run).fingerprint}]" if several else "")
    return found


def with_prior_data(runs: Iterable[Run]) -> list[Run]:
    """The runs; the fingerprint of prior data is a setting if data of the same name have different contents."""
    of_data: dict[tuple[str, str | None, str], list[Run]] = {}
    for run in runs:
        if run.dataset and not is_offline(run):
            place = run.algo, run.env_id, data_name(str(run.dataset.get("name")))
            of_data.setdefault(place, []).append(run)
    marks = {
        run: _contents(run).fingerprint
        for several in of_data.values()
        if _other_contents(several)
        for run in several
    }
    made: dict[tuple[int, str], dict[str, Any]] = {}  # runs that differ only in their seed share their settings
    for run, mark in marks.items():
        made.setdefault((id(run.settings), mark), {**run.settings, "algo_kwargs.data": mark})
    return [replace(run, settings=made[id(run.settings), marks[run]]) if run in marks else run for run in runs]


class _Contents(NamedTuple):
    """Fingerprint and number of rows that a run recorded, after the preparation `prepared` (empty: raw rows)."""

    prepared: str
    fingerprint: str
    rows: int | None
    part: Literal["all", "most", "some"] = "all"  # the part of the source's rows that was recorded


def _contents(run: Run) -> _Contents:
    data = run.dataset
    if "raw_fingerprint" in data:
        return _Contents("", _text(data["raw_fingerprint"]), _count(data.get("raw_rows")))
    given = {key: run.settings.get(f"algo_kwargs.{key}") for key in _PREPARATION}
    prepared = {key: value for key, value in given.items() if value not in (None, _PREPARATION[key])}
    part: Literal["all", "most", "some"] = "all"
    if run.algo in _NEXT_ACTIONS:
        prepared["next_actions"], part = True, "most"
    if "top_fraction" in prepared or "validation_fraction" in prepared:
        part = "some"
    words = text_of(prepared) if prepared else ""
    return _Contents(words, _text(data.get("fingerprint")), _count(data.get("rows")), part)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def data_name(name: str) -> str:
    """The names of data files without folders and suffixes, which may differ between machines.

    A Minari data set is named by its folder: all of them have the same file name.
    """
    return " + ".join(_file_name(PurePath(part)) for part in name.split(" + "))


def _file_name(path: PurePath) -> str:
    if path.name == _MINARI_FILE:
        return path.parent.parent.name
    return path.stem if path.suffix else str(path)


def _other_contents(runs: Iterable[Run]) -> bool:
    """Whether data sets of the same name have different contents.

    Runs record the fingerprint of the raw rows. Runs of 0.2 recorded the fingerprint of the prepared rows, which
    identifies the data only if the preparations are equal. Otherwise the number of rows is compared: it must equal
    the source's, or not exceed it if rows were left out. Leaving out rows without a next action, which are the last
    of their episodes, keeps at least half of the rows.
    """
    found = {_contents(run) for run in runs}
    prints: dict[str, set[str]] = {}
    for one in found:
        prints.setdefault(one.prepared, set()).add(one.fingerprint)
    whole = {one.rows for one in found if one.part == "all"}
    if len(whole) > 1 or any(len(several) > 1 for several in prints.values()):
        return True
    rows = next(iter(whole), None)
    if rows is None:
        return False
    least = {"all": rows, "most": rows / 2, "some": 0}
    return any(one.rows is not None and not least[one.part] <= one.rows <= rows for one in found)


def text_of(value: Any) -> str:
    """A value as text; equal values give equal texts."""
    return json.dumps(value, sort_keys=True, default=str)
