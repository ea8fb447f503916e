"""`rl-training prune`: free the disk of checkpoints that nobody will resume from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.manifest import verify_checkpoint
from rl_training.experiment.retention import discard, latest_valid, list_checkpoints, sweep
from rl_training.experiment.runs import RECORD, lock_run, note_pruned, read_run_record

Keep = Literal["best", "last"]
_DONE = ("finished", "stopped")


@dataclass(frozen=True)
class Pruned:
    """What was done to one run."""

    run: Path
    freed: int
    remark: str


def find_runs(places: Iterable[Path]) -> list[Path]:
    """The run folders meant by `places`: each is one, or holds some."""
    runs: dict[Path, None] = {}
    for place in places:
        found = [place] if (place / RECORD).is_file() else sorted(file.parent for file in place.glob(f"*/{RECORD}"))
        if not found:
            raise ConfigError(f"{place}: neither a run folder nor a folder of runs (no {RECORD})")
        runs |= dict.fromkeys(found)
    return list(runs)


def prune_run(run: Path, keep: Keep, *, force: bool = False) -> Pruned:
    """Delete checkpoints of a run that is not in use; `best/` stays whatever `keep` says.

    `last` keeps the newest valid checkpoint, `best` none, unless there is no valid one in `best/`. Only a finished
    or stopped run is pruned without `force`.
    """
    status = read_run_record(run)["status"]
    if status not in _DONE and not force:
        return Pruned(run, 0, f"skipped: it is {status}, and would not go on from here; --force prunes it too")
    with lock_run(run):
        checkpoints = list_checkpoints(run / "checkpoints")
        kept = _kept(run, keep)
        doomed = [path for path in checkpoints if path not in kept] if kept else []
        freed = _bytes_freed(doomed)
        if doomed and not any(path in checkpoints for path in kept):
            note_pruned(run)
        for path in doomed:
            discard(path)
        sweep(run / "checkpoints")
    if not kept:
        return Pruned(run, 0, "skipped: none of its checkpoints is valid")
    names = ", ".join(str(path.relative_to(run)) for path in kept)
    return Pruned(run, freed, f"{len(doomed)} checkpoint{'s' * (len(doomed) != 1)} deleted, {names} kept")


def _kept(run: Path, keep: Keep) -> list[Path]:
    """What stays: the best, and the newest valid checkpoint where it is asked for or all there is."""
    best = [path for path in list_checkpoints(run / "best") if _is_valid(path)]
    if keep == "best" and best:
        return best
    try:
        return [latest_valid(run / "checkpoints")[0], *best]
    except CheckpointError:
        return []


def _is_valid(path: Path) -> bool:
    try:
        verify_checkpoint(path)
    except CheckpointError:
        return False
    return True


def _bytes_freed(folders: Iterable[Path]) -> int:
    """Bytes on the disk that only these folders hold; checkpoints share files by hard links."""
    links: Counter[tuple[int, int]] = Counter()
    freed = 0
    for file in (file for folder in folders for file in folder.rglob("*") if file.is_file()):
        of = file.lstat()
        links[of.st_dev, of.st_ino] += 1
        if links[of.st_dev, of.st_ino] == of.st_nlink:
            freed += of.st_blocks * 512
    return freed
