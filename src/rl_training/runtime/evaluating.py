"""How a run's policies are judged: at once, or beside training (`evaluate_beside`).

Beside training, an evaluation that is due at tick T takes the policy of T and is played in another process while
the run goes on. Its result enters when the next evaluation is due, when the clock changes its phase, or at the end,
whichever is first; whoever is there first waits. So early stopping, callbacks and `best_return` learn of it at a
tick that no clock on the wall can move. What belongs to T stays with it: the row of the log (those after it are
held until then), and the networks, which go to `best/` if they are the best.

A checkpoint that is written meanwhile keeps the policy of T and the rows that are held: the resumed run plays it
again, and its result enters where it would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rl_training.environments.players import Game, Players
from rl_training.environments.playing import Evaluator
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import write_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.retention import discard, list_checkpoints, set_aside
from rl_training.experiment.vocabulary import log_row
from rl_training.models.policies import Policy
from rl_training.platforms import POSIX, require_posix
from rl_training.runtime import state
from rl_training.runtime.acting import ActingPolicy, Taken
from rl_training.runtime.changes import scored_elsewhere
from rl_training.runtime.finite import check_finite

if TYPE_CHECKING:
    from rl_training.runtime.session import Session


class Evaluations:
    """The evaluations of one session."""

    def __init__(self, session: Session, evaluator: Evaluator | None, players: Players | None = None) -> None:
        """`players` None: at once, in this process."""
        self.taken: Taken | None = None  # whose result is still to come
        self._session, self._evaluator, self._players = session, evaluator, players
        self._acting = ActingPolicy(session.learner)
        self._game: Game | None = None

    def start(self) -> None:
        """Start processes, which takes seconds, and play again what a checkpoint had kept."""
        session = self._session
        if self.taken is not None and not self._judges:  # switched off since
            self.taken = None
            session.metrics_log.release({})
        if self._evaluator is None or not session.running or not (self._is_new() or self.taken is not None):
            return
        if self._players is None:
            self._evaluator.start()
            return
        self._players.prepare()
        if self.taken is not None:
            self._begin(self.taken)

    def due(self) -> None:
        """The one before enters; the present policy is judged now, or from now on."""
        self.enter()
        if self._players is None:
            self.now()
        elif self._is_new():
            self._take()

    def now(self) -> dict[str, float]:
        """Evaluate the present policy, once per tick, and wait for the result."""
        if self._evaluator is None or not self._judges:
            return {}
        self.enter()
        if self._is_new() and self._players is not None:
            self._take()
            self.enter()
        elif self._is_new():
            check_finite(self._session.learner, f"by step {self._session.clock.ticks}")
            self._learn_of(self._played(self._evaluator, self._acting.current()), None)
        return self._session.last_evaluation

    def enter(self) -> None:
        """Wait for what is being judged, if anything is, and let its result count."""
        taken, evaluator = self.taken, self._evaluator
        if taken is None or evaluator is None:
            return
        if self._game is None:  # taken up by a run that evaluates at once
            metrics = self._played(evaluator, self._acting.holding(taken.weights))
        else:
            with self._told(evaluator):
                played = self._game.result(self._session.interrupted)
                evaluator.cut_episodes += played.cut
            metrics = evaluator.summary(played)
        self.taken = self._game = None
        self._learn_of(metrics, taken)

    @property
    def _judges(self) -> bool:
        return self._evaluator is not None and self._session.config.eval_episodes > 0

    def _is_new(self) -> bool:
        """Whether the present policy was not evaluated yet."""
        return self._judges and self._session.evaluated_at != self._session.clock.ticks

    def _take(self) -> None:
        session = self._session
        check_finite(session.learner, f"by step {session.clock.ticks}")
        session.metrics_log.hold(session.clock.ticks)
        networks, records = state.judged(session)
        copies = {name: tensor.clone() for name, tensor in networks.items()}
        self.taken = Taken(session.clock.ticks, self._acting.taken(), copies, records)
        self._begin(self.taken)

    def _begin(self, taken: Taken) -> None:
        assert self._players is not None
        policy, episodes = self._session.learner.model.policy, self._session.config.eval_episodes
        self._game = self._players.play(policy, taken.weights, episodes, on_arrays=self._acting.copies)

    def _played(self, evaluator: Evaluator, policy: Policy) -> dict[str, float]:
        with self._told(evaluator):
            return evaluator.run(policy, self._session.config.eval_episodes, self._session.interrupted)

    @contextmanager
    def _told(self, evaluator: Evaluator) -> Iterator[None]:
        """Say that the run waits for an evaluation, and the first time that episodes were cut."""
        said = evaluator.notice
        with self._session.doing("evaluating"):
            yield
        if evaluator.notice and not said:
            self._session.say(f"warning: {evaluator.notice}")

    def _learn_of(self, metrics: dict[str, float], taken: Taken | None) -> None:
        """Log a result, keep the best policy, tell the callbacks."""
        session = self._session
        session.run.fence()
        tick = session.clock.ticks if taken is None else taken.tick
        session.last_evaluation, session.evaluated_at = metrics, tick
        if taken is None:
            session.metrics_log.log(tick, log_row(metrics))
        else:
            session.metrics_log.release(log_row(metrics))
        if session.best_return is None or metrics["eval_return_mean"] > session.best_return:
            session.best_return = metrics["eval_return_mean"]
            self._save_best(tick, taken)
        for callback in session.callbacks:
            callback.on_evaluation(session, metrics)

    def _save_best(self, tick: int, taken: Taken | None) -> None:
        session = self._session
        if taken is None:
            networks, records = state.judged(session)
        else:
            networks, records = taken.networks, state.with_result(taken.records, session)
        try:
            info = write_checkpoint(
                session.run.best, tick, tensors={"networks": networks}, records=records, fence=session.run.fence
            )
        except CheckpointError as error:
            session.say(f"warning: {error}; the best policy was not saved")
            return
        with session.deleting(session.run.best):
            # Whatever its step: a killed run may have left one of a later step than this.
            for path in list_checkpoints(session.run.best):
                if path == info.path:
                    continue
                if scored_elsewhere(path, session.config):
                    set_aside(path, session.run.earlier_best)
                else:
                    discard(path)


def players_for(config: TrainConfig, evaluator: Evaluator | None, *, pays: bool, often: bool) -> Players | None:
    """What plays beside the run, as `evaluate_beside` wants it; None evaluates at once.

    `pays`: the run leaves the processor to others; `often`: it evaluates before its end.
    """
    wanted = config.evaluate_beside
    pays = pays and POSIX
    if evaluator is None or not often or config.eval_episodes == 0 or not (pays if wanted == "auto" else wanted):
        return None
    require_posix("evaluate_beside: true", "set it to false", key="evaluate_beside")
    try:
        if evaluator.config.environments != "ray" and evaluator.given.importable:
            return Players(evaluator)
        cause = None
    except ConfigError as error:
        cause = error
    if wanted == "auto":
        return None
    raise ConfigError(
        f"evaluate_beside: {evaluator.config.env_id} cannot be made in a process beside this one (environments: "
        f"{evaluator.config.environments}); give a class or function of a module, or set evaluate_beside to false",
        key="evaluate_beside",
    ) from cause
