"""List runs: filter and sort."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, nearest
from rl_training.report.reading import Reading, Run, read_runs

Patterns = str | Iterable[str] | None

# Sort keys.
SORTS: dict[str, Callable[[Run], Any]] = {
    "name": lambda run: run.name,
    "algo": lambda run: run.algo,
    "env": lambda run: run.env_id,
    "seed": lambda run: run.seed,
    "status": lambda run: run.status,
    "step": lambda run: run.step,
    "return": lambda run: run.last,
    "best": lambda run: run.best,
    "age": lambda run: run.updated,
}
_LARGEST_FIRST = ("step", "return", "best", "age")


def runs(
    paths: str | Path | Iterable[str | Path] = "runs",
    *,
    algo: Patterns = None,
    env: Patterns = None,
    tag: Patterns = None,
    status: Patterns = None,
    sort: str | None = None,
    reverse: bool = False,
) -> Reading:
    """List the runs below `paths`: run folders, folders of run folders at any depth, studies and packed studies.

    `algo`, `env`, `tag` and `status` are each one or several case-insensitive patterns (`Hopper*`). A run is listed
    if it matches one pattern of each. A run that cannot be read has the status `broken`; a planned trial without a
    run folder is `missing` or `failed`; both are listed only if `algo`, `env` and `tag` are not given. `sort` is
    one of `SORTS`, the largest number or the newest first; by default runs are listed folder by folder.
    """
    if sort is not None and sort not in SORTS:
        raise ConfigError(f"sort: unknown {sort!r}{nearest(sort, SORTS)}; known: {', '.join(SORTS)}")
    found = read_runs(paths)
    given = ([one] if isinstance(one, str) else one or () for one in (algo, env, tag, status))
    wanted = [[pattern.casefold() for pattern in patterns] for patterns in given]
    words = {run: ([run.algo], [run.env_id or "none"], run.tags, [run.status]) for run in found.runs}
    kept = [run for run in found.runs if all(map(_one_of, wanted, words[run]))]
    if sort is not None:
        kept = _ordered(kept, sort, reverse)
    elif reverse:
        kept.reverse()
    unread = () if any(wanted[:3]) else tuple(one for one in found.unread if _one_of(wanted[3], [one.kind]))
    return replace(found, runs=tuple(kept), unread=unread)


def _one_of(patterns: list[str], words: Iterable[str]) -> bool:
    """Whether any word matches any pattern; true without patterns."""
    return not patterns or any(fnmatchcase(word.casefold(), pattern) for word in words for pattern in patterns)


def _ordered(found: list[Run], sort: str, reverse: bool) -> list[Run]:
    """Sort by one key; runs without a value come last in either order."""
    key = SORTS[sort]
    known = [run for run in found if key(run) is not None]
    known.sort(key=key, reverse=reverse != (sort in _LARGEST_FIRST))
    return known + [run for run in found if key(run) is None]


def plain_run(run: Run) -> dict[str, Any]:
    """A run as JSON-serialisable data."""
    return {
        "place": run.place,
        "algo": run.algo,
        "env_id": run.env_id,
        "seed": run.seed,
        "status": run.status,
        "cause": run.cause,
        "step": run.step,
        "total_timesteps": run.settings.get("total_timesteps"),
        "return": run.last,
        "best": run.best,
        "updated": run.updated,
        "seconds": run.seconds,
        "tags": list(run.tags),
        "members": run.members,
        "study": run.study,
        "varied": dict(run.varied),
        "notes": list(run.notes),
    }
