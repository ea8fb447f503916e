"""Members in step: each goes its own course, and where all wait for updates these are made together.

A member is an ordinary run: its folder, log, evaluations, callbacks and checkpoints are its own. It may end before
the others, finished, stopped or failed, and leaves the stack then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl_training.errors import ClaimLost, RLTrainingError, RunInUse
from rl_training.population.stack import Stack
from rl_training.population.updates import StackedUpdater
from rl_training.runtime.acceleration import Updater
from rl_training.runtime.run import Built, Course, Opened, Regime, Updates
from rl_training.runtime.session import Session, TrainResult
from rl_training.runtime.signals import TrainingInterrupted

# Checkpoints that stay: a process killed while its members save leaves some of them one step behind the others.
_KEPT = 2


@dataclass
class Member:
    """One course and where it stands: what it waits for, or how it ended."""

    seed: int
    going: Course
    event: Built | Opened | Updates | None = None
    result: TrainResult | None = None
    error: Exception | None = None
    regime: Regime | None = None
    session: Session | None = None
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
            self.session = self.event.session

    @property
    def wanted(self) -> Updates:
        assert isinstance(self.event, Updates)
        return self.event


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
    members: Sequence[Member], how_many: Callable[[Regime], int], begin: Callable[[int], None] = lambda count: None
) -> int:
    """Bring the first of `members` to their end together, as many as `how_many` says of one that is built.

    Returns their number, which `begin` is told before they open their folders. Raises what keeps one from being
    built, before any of them has a folder.
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
    _write_down([member.session for member in chosen if member.session is not None])
    Lockstep(chosen).run()
    return len(chosen)


def _write_down(sessions: Sequence[Session]) -> None:
    """Let every folder name its companions; one that is taken up again knows them already."""
    names = [session.run.path.name for session in sessions]
    for session in sessions:
        session.keep = max(session.keep, _KEPT)
        if len(sessions) > 1 and session.run.record.get("population") is None:
            session.note_in_run(population={"members": names})


def results_of(members: Sequence[Member]) -> list[TrainResult]:
    """The results in order; raises where a member failed or was interrupted."""
    for member in members:
        if isinstance(member.error, TrainingInterrupted | ClaimLost | RunInUse):  # not of itself
            raise member.error
    results = [member.result for member in members if member.result is not None]
    if len(results) < len(members):
        raise MembersFailed(members)
    return results


class Lockstep:
    """Members that were opened, their stack, and the updaters that the stack has."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self._restack()

    def _restack(self) -> None:
        """A stack of those still alive; what was captured or compiled for the one before is lost."""
        self._running: StackedUpdater | None = None
        self.stacked = [member for member in self.members if member.alive]
        self._updaters: dict[tuple[int, ...], StackedUpdater] = {}
        self.stack: Stack | None = None
        if len(self.stacked) > 1:
            regimes = [member.regime for member in self.stacked if member.regime is not None]
            self.stack = Stack([regime.learner for regime in regimes])

    def run(self) -> None:
        while waiting := [member for member in self.members if member.alive]:
            ready = [m for m in waiting if not isinstance(m.event, Updates) or m.done == m.wanted.number]
            if ready:
                for member in ready:
                    member.go_on()
                continue
            count = min(member.wanted.number - member.done for member in waiting)
            try:
                self._updater(waiting).run(count)
            except BaseException as error:
                for member in waiting:
                    member.go_on(error)
                if not isinstance(error, Exception):
                    raise
                continue
            for member in waiting:
                member.done += count

    def _updater(self, waiting: Sequence[Member]) -> Updater:
        """What makes the updates of all that wait: those of a stack, or of the last one alone."""
        updaters = [member.wanted.updater for member in waiting]
        if len(waiting) < len(self.stacked):
            if self._running is not None and self._carries(self._running, updaters):
                return self._running
            self._restack()
        if self.stack is None:
            return updaters[0]
        key = tuple(id(updater) for updater in updaters)
        if key not in self._updaters:
            self._updaters[key] = StackedUpdater(self.stack, updaters)
        self._running = self._updaters[key]
        return self._running

    def _carries(self, running: StackedUpdater, updaters: Sequence[Updater]) -> bool:
        """Whether to go on with a stack that holds members which have ended, and whose updates harm nobody.

        Where updates are compiled or captured, a smaller stack costs more than it saves until half are gone.
        """
        known = {id(updater) for updater in running.members}
        return running.is_prepared and 2 * len(updaters) > len(known) and all(id(one) in known for one in updaters)
