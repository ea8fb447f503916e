"""Choose the step at which each member of a population resumes.

The rounding of an update depends on the number of members that are computed together. A resumed population
therefore equals an uninterrupted one only if every update is computed with the same members. Members that were
trained together resume at the newest step that all of them have saved. Members save one after another, so a killed
process may leave some of them ahead. A member that had ended by that step is not trained again; one that ended
later resumes with the others and ends again.

If there is no such step (checkpoints were deleted or damaged, or written by an older version), each member resumes
at its newest checkpoint, members that are behind catch up first, and run.json records `exact_resume: false`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpointing import latest_valid, list_checkpoints, verify_checkpoint
from rl_training.experiment.retention import step_of
from rl_training.experiment.runs import end_of, read_run_record

# Step of a member without a checkpoint.
START = -1


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint at which a member resumes; None: it starts from the beginning."""

    home: Path
    checkpoint: Path | None
    newest: int  # step of the newest valid checkpoint, or `START`

    @property
    def step(self) -> int:
        return START if self.checkpoint is None else step_of(self.checkpoint)

    @property
    def rewinds(self) -> bool:
        return self.step < self.newest

    def rewind_warning(self) -> str:
        where = "the start" if self.checkpoint is None else f"step {self.step}"
        return (
            f"{self.home}: goes back from step {self.newest} to {where}, which all members of its population have"
        )


@dataclass(frozen=True)
class _Member:
    """What the folder of a member contains."""

    home: Path
    newest: Path | None  # the newest valid checkpoint
    end: int | None  # the step at which it finished, stopped, failed or diverged
    status: str
    together: tuple[str, ...]  # folder names of the members whose updates were computed together

    @classmethod
    def of(cls, home: Path, begun: bool, warn: Callable[[str], None]) -> _Member:
        if not begun:
            return cls(home, None, None, "new", ())
        newest = None
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
        """The valid checkpoint of `step`, or None."""
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
) -> list[list[ResumePoint]]:
    """The resume points of the runs in `homes`, grouped by which runs are trained together.

    `homes` maps each folder to whether its run has begun. Members that had ended by the common step come last, in a
    group of their own. Members that have ended without a checkpoint or have diverged are left out unless they are
    in `wanted`.
    """
    members = [_Member.of(home, begun, warn) for home, begun in homes.items()]
    groups: dict[tuple[str, ...], list[_Member]] = {}
    known = [one.together for one in members if one.together]
    for one in members:
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
                if one.newest is not None or one.home in wanted:
                    late.append(ResumePoint(one.home, one.newest, one.step))
            else:
                turn.append(ResumePoint(one.home, one.newest if step is None else one.at(step), one.step))
        turns.append(turn)
    return [turn for turn in [*turns, late] if turn]


def _common_step(members: Sequence[_Member]) -> int | None:
    """The newest step at which every member can resume or had already ended.

    None if there is no such step, or all members have ended.
    """
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
