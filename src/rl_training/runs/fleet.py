"""Members in step: each goes its own course, and where all wait for updates these are made together.

Environments in processes of their own work side by side, whoever's they are: every member sends its actions before
the first waits for an answer.

A member is an ordinary run: its folder, log, evaluations, callbacks and checkpoints are its own. It may end before
the others, finished, stopped or failed, and leaves the stack then.

All members end a step before the first begins the next one. Signals are looked at there, so every member is saved
at the same step. If members resume at different steps nevertheless (see `population.resuming`), those behind
make their updates first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_training.errors import ClaimLost, RLTrainingError, RunInUse
from rl_training.experiment.runs import amend_record
from rl_training.runs.regime import Advanced, Event, Regime, Updates
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.signals import SignalGuard, TrainingInterrupted
from rl_training.runs.training import Built, Opened, Training, note_companions
from rl_training.updates.stack import Stack
from rl_training.updates.stacked import StackedUpdater
from rl_training.updates.transfer import fetch_together
from rl_training.updates.updater import Updater


@dataclass(eq=False)
class Member:
    """One course and where it stands: what it waits for, or how it ended."""

    seed: int
    going: Training
    event: Built | Opened | Event | None = None
    result: TrainResult | None = None
    error: Exception | None = None
    regime: Regime | None = None
    session: Session | None = None
    home: Path | None = None
    done: int = 0  # updates made of those it waits for

    @property
    def alive(self) -> bool:
        return self.result is None and self.error is None

    def go_on(self, failure: BaseException | None = None) -> None:
        """To the next event, or the end. What fails in a member, or is thrown into it, ends that member alone."""
        self.done = 0
        try:
            self.event = next(self.going) if failure is None else self.going.throw(failure)
        except StopIteration as end:
            self.event, self.result = None, end.value
        except (Exception, SystemExit) as error:
            self.event = None
            self.error = error if isinstance(error, Exception) else RLTrainingError(f"ended by {error!r}")
        if isinstance(self.event, Built):
            self.regime = self.event.regime
        elif isinstance(self.event, Opened):
            self.session, self.home = self.event.session, self.event.session.run.path
        elif self.event is None:
            self.regime = self.session = None  # its memory is for those that follow

    @property
    def wanted(self) -> Updates:
        assert isinstance(self.event, Updates)
        return self.event

    @property
    def updates(self) -> int:
        """How many it has made in all, while it waits for more."""
        return self.wanted.updater.learner.updates


class MembersFailed(RLTrainingError):
    """Some members failed while the others went on; `results` has None in their places."""

    def __init__(self, members: Sequence[Member]) -> None:
        failed = [member for member in members if member.error is not None]
        causes = "; ".join(f"seed {member.seed}: {member.error}" for member in failed)
        super().__init__(f"{len(failed)} of {len(members)} members failed: {causes}")
        self.results = [member.result for member in members]
        self.errors = [member.error for member in members]
        codes = [error.exit_code for error in self.errors if isinstance(error, RLTrainingError)]
        self.exit_code = codes[0] if codes else RLTrainingError.exit_code


def run_together(
    members: Sequence[Member],
    how_many: Callable[[Regime], int],
    guard: SignalGuard,
    begin: Callable[[int], None] = lambda count: None,
    before: Sequence[Member] = (),
) -> int:
    """Bring the first of `members` to their end together, as many as `how_many` says of one that is built.

    Returns their number, which `begin` is told before they open their folders; `before` are companions that had
    their turn. Raises what keeps one from being built, before any of them has a folder.
    """
    chosen = list(members[:1])
    for member in chosen:
        member.go_on()
        if member.error is not None:
            raise member.error
        if member is members[0] and member.regime is not None:
            chosen += members[1 : how_many(member.regime)]
    begin(len(chosen))
    for member in chosen:
        member.go_on()
    note_companions([member.event for member in chosen if isinstance(member.event, Opened)])
    _write_down(before, chosen)
    Lockstep(chosen, guard).run()
    return len(chosen)


def _write_down(before: Sequence[Member], opened: Sequence[Member]) -> None:
    """Let every folder name its companions, and those of them whose updates are made together with its own; one
    that is resumed names all its companions already."""
    sessions = [member.session for member in opened if member.session is not None]
    over = [member.home for member in before if member.home is not None]
    here = [session.run.path.name for session in sessions]
    record = {"members": [home.name for home in over] + here}
    known = all(session.run.record.get("population") is not None for session in sessions)
    if len(record["members"]) < 2 and not known:
        return
    for session in sessions:
        session.note_in_run(trained_with=here, **({} if known else {"population": record}))
    if known:
        return
    for home in over:
        amend_record(home, population=record)


def results_of(members: Sequence[Member]) -> list[TrainResult]:
    """The results in order; raises where a member failed or was interrupted; one cause for all as it stands."""
    for member in members:
        if isinstance(member.error, TrainingInterrupted | ClaimLost | RunInUse):  # not of itself
            raise member.error
    results = [member.result for member in members if member.result is not None]
    if len(results) == len(members):
        return results
    errors = [member.error for member in members if member.error is not None]
    if not results and len({str(error) for error in errors}) == 1:
        raise errors[0]
    raise MembersFailed(members)


class Lockstep:
    """Members that were opened, and the stack of those that make the next updates."""

    def __init__(self, members: Sequence[Member], guard: SignalGuard) -> None:
        self.members, self._guard = list(members), guard
        self.stacked: list[Member] = []
        self._restack(self.stacked)

    def _restack(self, members: list[Member]) -> None:
        """A stack of `members`; what was captured or compiled for the one before is lost."""
        self.stacked = members
        self._running: StackedUpdater | None = None
        self._updaters: dict[tuple[int, ...], StackedUpdater] = {}
        self.stack: Stack | None = None
        if len(members) > 1:
            self.stack = Stack([member.wanted.updater.learner for member in members])
            for member in members:
                member.wanted.updater.forget()
            collectors = [member.regime.collector for member in members if member.regime is not None]
            fetch_together(self.stack, [one.acting for one in collectors if one is not None])

    def run(self) -> None:
        self._between_steps([])
        while waiting := [member for member in self.members if member.alive]:
            if all(isinstance(member.event, Advanced) for member in waiting):
                self._between_steps([member.session for member in waiting if member.session is not None])
            ready = [m for m in waiting if not isinstance(m.event, Updates) or m.done == m.wanted.number]
            if ready:
                for member in ready:
                    member.go_on()
                continue
            behind, count = furthest_behind(waiting)
            try:
                self._updater(behind).run(count)
            except BaseException as error:
                for member in behind:
                    member.go_on(error)
                if not isinstance(error, Exception):
                    raise
                continue
            for member in behind:
                member.done += count

    def _between_steps(self, sessions: Sequence[Session]) -> None:
        """All are at the same step: look at signals, and keep the checkpoint that all have."""
        self._guard.renew()
        steps = {session.saved_step for session in sessions}
        if len(steps) == 1:
            for session in sessions:
                session.common_step = session.saved_step

    def _updater(self, members: list[Member]) -> Updater:
        """What makes the updates of `members`: that of a stack, or of one alone."""
        updaters = [member.wanted.updater for member in members]
        if members != self.stacked:
            if self._running is not None and self._carries(self._running, members):
                return self._running
            self._restack(members)
        if self.stack is None:
            return updaters[0]
        key = tuple(id(updater) for updater in updaters)
        if key not in self._updaters:
            self._updaters[key] = StackedUpdater(self.stack, updaters)
        self._running = self._updaters[key]
        return self._running

    def _carries(self, running: StackedUpdater, members: Sequence[Member]) -> bool:
        """Whether to go on with a stack that holds members which have ended, and whose updates harm nobody.

        If updates are compiled or captured, a smaller stack costs more than it saves until half are gone. Not on a
        CPU: a resumed population has no such members, and must compute the same bits.
        """
        known = {id(updater) for updater in running.members}
        return (
            running.is_prepared
            and running.stack.device.type != "cpu"
            and 2 * len(members) > len(known)
            and all(id(member.wanted.updater) in known for member in members)
            and all(member in members or not member.alive for member in self.stacked)
        )


def furthest_behind(waiting: Sequence[Member]) -> tuple[list[Member], int]:
    """Those with the fewest updates, and how many they make before one has what it needs or they meet others."""
    least = min(member.updates for member in waiting)
    behind = [member for member in waiting if member.updates == least]
    bounds = [member.wanted.number - member.done for member in behind]
    bounds += [member.updates - least for member in waiting if member.updates > least]
    return behind, min(bounds)
