"""`rl-training prune`: delete checkpoints of runs that are done, to free disk space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.manifest import is_valid
from rl_training.experiment.retention import discard, latest_valid, list_checkpoints, sweep
from rl_training.experiment.runs import DONE, RECORD, lock_run, note_pruned, read_run_record
from rl_training.platforms import space_on_disk

Keep = Literal["best", "last"]


@dataclass(frozen=True)
class Pruned:
    """Result of pruning one run."""

    run: Path
    freed: int
    remark: str


def find_runs(places: Iterable[Path]) -> list[Path]:
    """The run folders of `places`; each place is a run folder or contains run folders."""
    runs: dict[Path, None] = {}
    for place in places:
        found = [place] if (place / RECORD).is_file() else sorted(file.parent for file in place.glob(f"*/{RECORD}"))
        if not found:
            raise ConfigError(f"{place}: neither a run folder nor a folder of runs (no {RECORD})")
        runs |= dict.fromkeys(found)
    return list(runs)


def prune_run(run: Path, keep: Keep, *, force: bool = False) -> Pruned:
    """Delete checkpoints of a run that is not in use; `best/` is always kept.

    `keep="last"` also keeps the newest valid checkpoint; `keep="best"` does so only if `best/` has no valid one.
    Only a finished or stopped run is pruned without `force`.
    """
    status = read_run_record(run)["status"]
    if status not in DONE and not force:
        return Pruned(run, 0, f"skipped: it is {status} and may still be resumed; --force prunes it anyway")
    with lock_run(run):
        checkpoints = list_checkpoints(run / "checkpoints")
        kept = _kept(run, keep)
        deleted = [path for path in checkpoints if path not in kept] if kept else []
        freed = _bytes_freed(deleted)
        if deleted and not any(path in checkpoints for path in kept):
            note_pruned(run)
        for path in deleted:
            discard(path)
        sweep(run / "checkpoints")
    if not kept:
        return Pruned(run, 0, "skipped: none of its checkpoints is valid")
    names = ", ".join(str(path.relative_to(run)) for path in kept)
    return Pruned(run, freed, f"{len(deleted)} checkpoint{'s' * (len(deleted) != 1)} deleted, {names} kept")


def _kept(run: Path, keep: Keep) -> list[Path]:
    """Checkpoints to keep: those of `best/`, and the newest valid one if `keep` is last or `best/` is empty."""
    best = [path for path in list_checkpoints(run / "best") if is_valid(path)]
    if keep == "best" and best:
        return best
    try:
        return [latest_valid(run / "checkpoints")[0], *best]
    except CheckpointError:
        return []


def _bytes_freed(folders: Iterable[Path]) -> int:
    """Disk space used by these folders alone; checkpoints share files by hard links."""
    links: Counter[tuple[int, int]] = Counter()
    freed = 0
    for file in (file for folder in folders for file in folder.rglob("*") if file.is_file()):
        of = file.lstat()
        links[of.st_dev, of.st_ino] += 1
        if links[of.st_dev, of.st_ino] == of.st_nlink:
            freed += space_on_disk(of)
    return freed
