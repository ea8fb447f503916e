"""`train`: train N runs. Usually N = 1; the updates of several runs are computed together.

Each run is a generator (`runs.training`). When all of them wait for updates, these are computed together on stacked
tensors. When all of them wait for actions, their policies are evaluated together. Environment processes work
concurrently: every run sends its actions before the first waits for an answer.

Every run has its own folder, log, evaluations, callbacks and checkpoints. It may end before the others, and then
leaves the stack.

All runs end a step before the first begins the next one. Signals take effect between steps, so every run is saved
at the same step. If runs resume at different steps (see `runs.resume_points`), those behind catch up first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rl_training.display.progress import Progress
from rl_training.errors import ClaimLost, RLTrainingError, RunInUse
from rl_training.experience.acting import fetch_together
from rl_training.experience.base import Experience
from rl_training.experience.collector import Collector, step_together
from rl_training.experience.joint_acting import Actions, JointActing
from rl_training.experiment.runs import amend_record, end_of, read_run_record
from rl_training.memory import available_memory, human_bytes, room_on_gpu
from rl_training.runs.console import Display, MemberProgress
from rl_training.runs.regime import Act, Advanced, Event, Regime, Updates
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.signals import SignalGuard, TrainingInterrupted
from rl_training.runs.spec import RunSpec
from rl_training.runs.training import Built, Opened, training
from rl_training.updates.stack import Stack, require_stackable
from rl_training.updates.stacked import StackedUpdater
from rl_training.updates.updater import Updater

# Memory of a run in copies of its networks: parameters, gradients, two moments, and the same in the stack.
COPIES = 8

_log = logging.getLogger(__name__)


def train(specs: Sequence[RunSpec], turns: Sequence[Sequence[int]] | None = None) -> list[TrainResult]:
    """Train all runs, as many at a time as `population` and the memory allow; returns their results in order.

    `turns`: indices of the runs that are trained together, one turn after another; None: all of them. Raises the
    error of a single run unchanged, and `MembersFailed` if some of several runs fail, after the others have ended.
    """
    guard, population = SignalGuard(), specs[0].config.population
    members = [Member(spec, guard) for spec in specs]
    ended: list[Member] = []
    try:
        for turn in turns or [range(len(members))]:
            left, at_a_time = [members[i] for i in turn], population
            while left:
                built = _build(left, at_a_time)
                group = _in_phase(built)
                require_stackable([member.build().learner for member in group])
                guard.catch()
                _open(group, [member for member in members if member in ended or member in group])
                Lockstep(group, guard).run()
                at_a_time, left = len(built), [member for member in left if member not in group]
                ended += group if population != "off" else []
    finally:
        for member in members:
            member.close()
        guard.release()
    return _results(members)


class Member:
    """One of N runs: the event at which it waits, or its result or error."""

    def __init__(self, spec: RunSpec, guard: SignalGuard) -> None:
        self.seed = spec.config.seed or 0
        self.event: Built | Opened | Event | None = None
        self.result: TrainResult | None = None
        self.error: Exception | SystemExit | None = None
        self.regime: Regime | None = None
        self.session: Session | None = None
        self.home: Path | None = None
        self.display: Display | None = None  # shared by the members that are trained together
        self.alive = True
        self.done = 0  # requested updates that have been computed
        self._training = training(spec, guard, self._console)

    def _console(self, *arguments: Any, **options: Any) -> Progress:
        if self.display is None:
            return Progress(*arguments, **options)
        return MemberProgress(self.display, self.seed, *arguments, **options)

    def advance(self, failure: BaseException | None = None) -> None:
        """Continue to the next event or the end; `failure` is raised in the run. An error ends this member only."""
        self.done = 0
        try:
            self.event = next(self._training) if failure is None else self._training.throw(failure)
        except StopIteration as end:
            self.event, self.result, self.alive = None, end.value, False
        except (Exception, SystemExit) as error:
            self.event, self.error, self.alive = None, error, False
        if isinstance(self.event, Built):
            self.regime = self.event.regime
        elif isinstance(self.event, Opened):
            self.session, self.home = self.event.session, self.event.session.run.path
        elif not self.alive:
            self.regime = self.session = None  # frees memory for the members that follow

    def build(self) -> Regime:
        """Continue until the run is built; raises the error that prevents it."""
        if self.regime is None:
            self.advance()
        if self.error is not None:
            raise self.error
        assert self.regime is not None
        return self.regime

    def act(self, actions: Actions | None) -> Exception | SystemExit | None:
        """Let the run act, by `actions` if given; returns an error, which `advance` must raise in the run."""
        assert isinstance(self.event, Act)
        experience = self.event.experience
        try:
            if actions is not None and isinstance(experience, Collector):
                experience.send(*actions)
            else:
                experience.act()
        except (Exception, SystemExit) as error:
            return error
        except BaseException as error:
            self.advance(error)
            raise
        return None

    @property
    def ready(self) -> bool:
        """Whether the run can continue: it does not wait for updates, or all of them are computed."""
        return not isinstance(self.event, Updates) or self.done == self.event.number

    @property
    def wanted(self) -> Updates:
        assert isinstance(self.event, Updates)
        return self.event

    @property
    def updates(self) -> int:
        """Updates of its learner, while it waits for more."""
        return self.wanted.updater.learner.updates

    def close(self) -> None:
        self._training.close()


class MembersFailed(RLTrainingError):
    """Some members failed while the others continued; `results` has None in their places."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.results = [member.result for member in members]
        self.errors = [as_exception(member.error) for member in members]
        failed = [(member.seed, error) for member, error in zip(members, self.errors) if error is not None]
        causes = "; ".join(f"seed {seed}: {error}" for seed, error in failed)
        super().__init__(f"{len(failed)} of {len(members)} members failed: {causes}")
        codes = [error.exit_code for error in self.errors if isinstance(error, RLTrainingError)]
        self.exit_code = codes[0] if codes else RLTrainingError.exit_code


def as_exception(error: Exception | SystemExit | None) -> Exception | None:
    """The error of a member; `SystemExit` is replaced, because raising it would end the process."""
    return RLTrainingError(f"ended by {error!r}") if isinstance(error, SystemExit) else error


def _build(members: Sequence[Member], population: str | int) -> list[Member]:
    """Build as many of `members` as fit into memory; raises the error of a member that cannot be built."""
    first, *others = members
    regime = first.build()
    group = [first, *others[: _number_that_fits(regime, len(members), population) - 1]]
    for member in group[1:]:
        member.build()
    return group


def _in_phase(built: Sequence[Member]) -> list[Member]:
    """Those of `built` whose delayed updates (`policy_delay`) are due together with the first one's.

    The delay counts from the first environment step. The runs of `init_from` may have made different numbers of
    updates before it; then the other members follow.
    """
    regimes = [member.build() for member in built]
    phases = [one.pretraining % (getattr(one.learner.config, "policy_delay", None) or 1) for one in regimes]
    group = [member for member, phase in zip(built, phases) if phase == phases[0]]
    if len(group) < len(built):
        _log.warning(
            "init_from: the runs have different numbers of updates, so %d of %d members are trained together and "
            "the others follow",
            len(group),
            len(built),
        )
    return group


def _number_that_fits(built: Regime, wanted: int, population: str | int) -> int:
    """The number of members trained at a time, at most `wanted`; `built` is the first of them."""
    if population == "off":
        return 1
    most = wanted if population == "auto" else min(wanted, int(population))
    modules, device = built.learner.all_modules().values(), built.learner.device
    networks = sum(tensor.nbytes for module in modules for tensor in chain(module.parameters(), module.buffers()))
    each = COPIES * networks + (0 if built.experience is None else built.experience.buffer.rows.nbytes)
    room = room_on_gpu(device) if device.type == "cuda" else int(0.9 * available_memory())
    fit = 1 + room // max(each, 1)
    if fit < most:
        _log.warning(
            "memory for %d of %d members at a time (%s each): the others follow", fit, wanted, human_bytes(each)
        )
    return min(fit, most)


def _open(group: Sequence[Member], begun: Sequence[Member]) -> None:
    """Open the folders of `group`, and record in them which runs train together.

    `begun`: these members and those trained before, in the order of the runs.
    """
    display = Display(len(group)) if len(group) > 1 else None
    for member in group:
        member.display = display
        member.advance()
    _record_missing_members([member.event for member in group if isinstance(member.event, Opened)])
    sessions = [member.session for member in group if member.session is not None]
    before = [member.home for member in begun if member.home is not None and member not in group]
    here = [session.run.path.name for session in sessions]
    record = {"members": [member.home.name for member in begun if member.home is not None]}
    known = all(session.run.record.get("population") is not None for session in sessions)
    if len(record["members"]) < 2 and not known:
        return
    for session in sessions:
        session.note_in_run(trained_with=here, **({} if known else {"population": record}))
    for home in () if known else before:
        amend_record(home, population=record)


def _record_missing_members(opened: Sequence[Opened]) -> None:
    """Record in run.json if runs resume without members with which they were trained, or at different steps.

    The last bits of an update depend on how many members are computed together. On a GPU a member that has ended
    may still have been among them.
    """
    trained = [one.session for one in opened if one.trains]
    here = [session.run.path.name for session in trained]
    apart = len({session.clock.ticks for session in trained}) > 1
    for session in trained:
        before = session.run.record.get("trained_with") or []
        gone = [name for name in before if name not in here]
        if session.learner.device.type == "cpu":
            gone = [name for name in gone if not _ended_before(session.run.path.parent / name, session.clock.ticks)]
        problems = [f"it was trained together with {', '.join(gone)}, and resumes without them"] if gone else []
        problems += ["the members of its population resume at different steps"] if apart else []
        if problems:
            session.note_inexact(problems)


def _ended_before(home: Path, step: int) -> bool:
    try:
        end = end_of(read_run_record(home), step)
    except RLTrainingError:
        return False
    return end is not None and end <= step


def _results(members: Sequence[Member]) -> list[TrainResult]:
    """The results in order; raises the error of a single run, an interruption, or an error that all runs share."""
    errors = [member.error for member in members if member.error is not None]
    for error in errors:
        if len(members) == 1 or isinstance(error, TrainingInterrupted | ClaimLost | RunInUse):
            raise error
    results = [member.result for member in members if member.result is not None]
    if not errors:
        return results
    if not results and len({str(error) for error in errors}) == 1 and isinstance(errors[0], Exception):
        raise errors[0]
    raise MembersFailed(members)


class Lockstep:
    """Trains opened members step by step, and keeps the stack of those whose updates are computed together."""

    def __init__(self, members: Sequence[Member], guard: SignalGuard) -> None:
        self.members, self._guard = list(members), guard
        self.stacked: list[Member] = []
        self._restack(self.stacked)
        step_together(_experiences(self.members))

    def _restack(self, members: list[Member]) -> None:
        """Stack `members`; captured and compiled updates of the former stack are discarded."""
        self.stacked = members
        self._joint = JointActing()
        self._running: StackedUpdater | None = None
        self._updaters: dict[tuple[int, ...], StackedUpdater] = {}
        self.stack: Stack | None = None
        if len(members) > 1:
            self.stack = Stack([member.wanted.updater.learner for member in members])
            for member in members:
                member.wanted.updater.forget()
            fetch_together([one.acting for one in _experiences(members)], self.stack.stacked)

    def run(self) -> None:
        members, several = self.members, len(self.members) > 1
        if several:
            self._between_steps([])
        while members := [member for member in members if member.alive]:
            ready = [member for member in members if member.ready]
            if ready:
                if several and len(ready) == len(members) and all(isinstance(one.event, Advanced) for one in ready):
                    self._between_steps([one.session for one in ready if one.session is not None])
                self._continue(ready)
                continue
            behind, count = furthest_behind(members)
            try:
                self._updater(behind).run(count)
            except BaseException as error:
                _fail(behind, error)
                continue
            for member in behind:
                member.done += count

    def _continue(self, ready: Sequence[Member]) -> None:
        """Continue the members that do not wait for actions; if all do, let them act and continue them."""
        others = [member for member in ready if not isinstance(member.event, Act)]
        for member in others:
            member.advance()
        if others:
            return
        try:
            actions = self._joint.actions([one.event.experience for one in ready if isinstance(one.event, Act)])
        except BaseException as error:
            _fail(ready, error)
            return
        failures = [member.act(own) for member, own in zip(ready, actions)]
        for member, failure in zip(ready, failures):
            member.advance(failure)

    def _between_steps(self, sessions: Sequence[Session]) -> None:
        """Let signals take effect, and protect the newest step that all members have saved from pruning."""
        self._guard.renew()
        steps = {session.saved_step for session in sessions}
        if len(steps) == 1:
            for session in sessions:
                session.common_step = session.saved_step

    def _updater(self, members: list[Member]) -> Updater:
        """The updater of a stack of `members`, or that of a single member."""
        updaters = [member.wanted.updater for member in members]
        if members != self.stacked:
            if self._running is not None and self._can_keep(self._running, members):
                return self._running
            self._restack(members)
        if self.stack is None:
            return updaters[0]
        key = tuple(id(updater) for updater in updaters)
        if key not in self._updaters:
            self._updaters[key] = StackedUpdater(self.stack, updaters)
        self._running = self._updaters[key]
        return self._running

    def _can_keep(self, running: StackedUpdater, members: Sequence[Member]) -> bool:
        """Whether to keep a stack that still contains finished members, whose updates are ignored.

        If updates are compiled or captured, building a smaller stack pays off only after half of the members have
        finished. Never on a CPU: a resumed population has no finished members and must compute the same bits.
        """
        known = {id(updater) for updater in running.members}
        return (
            running.learner.execution.acceleration != "eager"
            and running.stack.device.type != "cpu"
            and 2 * len(members) > len(known)
            and all(id(member.wanted.updater) in known for member in members)
            and all(member in members or not member.alive for member in self.stacked)
        )


def _experiences(members: Sequence[Member]) -> list[Experience]:
    """The experience of each member that collects any."""
    found = [member.regime.experience for member in members if member.regime is not None]
    return [experience for experience in found if experience is not None]


def _fail(members: Sequence[Member], error: BaseException) -> None:
    """Raise an error of a joint computation in every member that took part."""
    for member in members:
        member.advance(error)
    if not isinstance(error, Exception):
        raise error


def furthest_behind(waiting: Sequence[Member]) -> tuple[list[Member], int]:
    """The members with the fewest updates, and the number of updates until one is ready or reaches the others."""
    updates = [member.updates for member in waiting]
    least = min(updates)
    behind = [member for member, done in zip(waiting, updates) if done == least]
    bounds = [member.wanted.number - member.done for member in behind]
    bounds += [done - least for done in updates if done > least]
    return behind, min(bounds)
