"""At which step the members of a population resume.

How an update is rounded depends on how many members are computed together. A resumed population therefore equals an
undisturbed one only if every update is made with the same members: those that were trained together go back to the
newest step that all of them have saved. Members save one after another, so a process that is killed meanwhile
leaves some of them ahead. A member that had ended by that step stays as it is; one that ended later goes back with
the others and ends again.

There may be no such step: checkpoints were deleted or damaged, or written by an older version. Then each member
resumes at its newest checkpoint, those behind catch up first, and run.json notes `exact_resume: false`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpointing import latest_valid, list_checkpoints, verify_checkpoint
from rl_training.experiment.retention import step_of
from rl_training.experiment.runs import end_of, read_run_record

# The step of a member without a checkpoint.
START = -1


@dataclass(frozen=True)
class Place:
    """Where a member resumes: at `checkpoint`, or from its start."""

    home: Path
    checkpoint: Path | None
    newest: int  # step of its newest valid checkpoint, or `START`

    @property
    def step(self) -> int:
        return START if self.checkpoint is None else step_of(self.checkpoint)

    @property
    def rewinds(self) -> bool:
        return self.step < self.newest

    def __str__(self) -> str:
        where = "the start" if self.checkpoint is None else f"step {self.step}"
        return (
            f"{self.home}: goes back from step {self.newest} to {where}, which all members of its population have"
        )


@dataclass(frozen=True)
class _Standing:
    """What there is of a member."""

    home: Path
    newest: Path | None  # its newest valid checkpoint
    end: int | None  # the step at which it ended by itself
    status: str
    together: tuple[str, ...]  # members whose updates were made together, by the names of their folders

    @classmethod
    def of(cls, home: Path, begun: bool, warn: Callable[[str], None]) -> _Standing:
        newest = None
        if not begun:
            return cls(home, None, None, "new", ())
        if list_checkpoints(home / "checkpoints"):
            newest, warnings = latest_valid(home / "checkpoints")
            for warning in warnings:
                warn(warning)
        record = read_run_record(home)
        names = record.get("trained_with")
        together = tuple(str(name) for name in names) if isinstance(names, list) else ()
        end = end_of(record, START if newest is None else step_of(newest))
        return cls(home, newest, end, str(record["status"]), together)

    @property
    def step(self) -> int:
        return START if self.newest is None else step_of(self.newest)

    def at(self, step: int) -> Path | None:
        """Its valid checkpoint of that step."""
        for path in list_checkpoints(self.home / "checkpoints") if step < self.step else ():
            if step_of(path) == step:
                try:
                    verify_checkpoint(path)
                except CheckpointError:
                    continue
                return path
        return self.newest if step == self.step else None

    def may_resume_at(self, step: int) -> bool:
        if step == START:
            return self.end is None  # a member that has ended is not started over
        return self.at(step) is not None


def turns_of(
    homes: Mapping[Path, bool], wanted: Collection[Path], warn: Callable[[str], None]
) -> list[list[Place]]:
    """Where the runs in `homes` (which says whether they have begun) resume, in lists of those trained together.

    A member that had diverged by then is left alone unless it is `wanted`.
    """
    standings = [_Standing.of(home, begun, warn) for home, begun in homes.items()]
    groups: dict[tuple[str, ...], list[_Standing]] = {}
    known = [one.together for one in standings if one.together]
    for one in standings:
        key = one.together or next((names for names in known if one.home.name in names), ())
        groups.setdefault(key, []).append(one)
    turns, late = [], []
    for key, group in groups.items():
        step = _common_step(group) if key else None
        turn = []
        for one in group:
            ended = one.end is not None and (step is None or one.end <= step)
            if ended and one.status == "diverged" and one.home not in wanted:
                continue
            if ended and step is not None:
                late.append(Place(one.home, one.newest, one.step))
            else:
                turn.append(Place(one.home, one.newest if step is None else one.at(step), one.step))
        turns.append(turn)
    return [turn for turn in [*turns, late] if turn]


def _common_step(members: Sequence[_Standing]) -> int | None:
    """The newest step at which every member can resume, or had ended by itself; None if there is none, or all have
    ended."""
    going = [one for one in members if one.end is None]
    if not going:
        return None
    steps = [START]
    if all(one.newest is not None for one in going):
        saved = {step_of(path) for path in list_checkpoints(going[0].home / "checkpoints")}
        steps = sorted((step for step in saved if step <= going[0].step), reverse=True)
    for step in steps:
        if all(one.may_resume_at(step) or (one.end is not None and one.end <= step) for one in members):
            return step
    return None
