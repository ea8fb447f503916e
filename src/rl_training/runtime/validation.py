"""Held-out episodes of a run that learns from data: how its policy does on what it has not seen.

Whole episodes are set aside (`validation_fraction`), the same in every run. At each evaluation, and at the end, the
distance of the policy's actions from theirs is told; for behaviour cloning that is its error on unseen data. With
`early_stopping: {metric: fqe}` a short FQE on them says what the policy is worth. It starts anew each time, from
the same networks and minibatches: what changes between two evaluations is the policy, and nothing needs saving.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.algorithms.fqe import FQE, FQEConfig
from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes, Resample, resamples
from rl_training.environments.playing import PlayInterrupted
from rl_training.experiment.vocabulary import log_row
from rl_training.models.mlp import NetworkConfig
from rl_training.models.policies import Policy
from rl_training.runtime.acceleration import Updater
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.clock import Cadence
from rl_training.runtime.session import Session
from rl_training.runtime.valuing import (
    EpisodeSource,
    FirstStates,
    Panel,
    Units,
    action_distance,
    acts,
    build_judge,
)
from rl_training.seeding import judge_seeds, resampling
from rl_training.settings import Settings

_SEED, _BLOCK, _BATCH_SIZE = 0, 100, 256
# Rows whose actions are compared.
_COMPARED = 10_000


class ValidationConfig(Settings):
    """Data that are not learned from."""

    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """share of the episodes that is held out; how far the policy's actions lie from theirs is told at each
    evaluation and at the end, and `early_stopping: {metric: fqe}` judges by them"""


class Validation:
    """What can be said of a policy by held-out episodes."""

    def __init__(
        self, held_out: TransitionDataset, rows: Tensor, learner: Learner, *, fqe_updates: int | None
    ) -> None:
        self.dataset, self.rows, self.fqe_updates = held_out, rows, fqe_updates
        self.device = learner.device
        self._known: tuple[int, dict[str, float]] = (-1, {})
        compared = held_out.layout.unpack(rows[:: max(1, len(rows) // _COMPARED)].to(self.device))
        self._obs, self._actions = compared.obs, compared.actions.view(len(compared.obs), -1).to(compared.obs.dtype)
        if fqe_updates is not None:
            self._episodes = Episodes.of(held_out, "early_stopping by fqe")
            self._part: Resample = resamples(self._episodes, 1, resampling(_SEED), rows.device)[0]
            self._config = FQEConfig.parse({"gamma": learner.config.gamma})
            self._units = Units.of(held_out, self._episodes, self._config.gamma)
            self._moments = held_out.observation_moments()

    def measure(self, learner: Learner, interrupted: Callable[[], bool] = lambda: False) -> dict[str, float]:
        """The metrics of a learner's policy, acting by its mode, once after each update; `PlayInterrupted` where a
        signal comes meanwhile."""
        if self._known[0] != learner.updates:
            policy: Policy = learner.model.policy
            distance = action_distance(acts(policy, self._obs), self._actions, self.dataset.spaces.discrete)
            found = {"validation_distance": distance}
            if self.fqe_updates is not None:
                found["fqe_value"] = self._value(policy, self.fqe_updates, interrupted)
            self._known = learner.updates, found
        return self._known[1]

    def _value(self, policy: Policy, updates: int, interrupted: Callable[[], bool]) -> float:
        panel = Panel(self.dataset, self.rows, [_beside(policy, self.rows)])
        seeds = judge_seeds(_SEED, 0)
        judge: FQE = build_judge(
            self.dataset, self._units, self._moments, self._config, NetworkConfig(), seeds, self.device
        )
        source = EpisodeSource(panel, 0, self._part, judge.generator)
        updater = Updater(judge, source, _BATCH_SIZE)
        while judge.updates < updates:
            if interrupted():
                raise PlayInterrupted
            updater.run(min(_BLOCK, updates - judge.updates))
        values: Tensor = FirstStates(panel, self._episodes, _SEED).values(judge, 0)
        return float(values.mean())


def _beside(policy: Policy, rows: Tensor) -> Policy:
    """The policy on the device of `rows`; a copy if it is on another one, where its learner needs it."""
    home = next(policy.parameters()).device
    return policy if home == rows.device else copy.deepcopy(policy).to(rows.device)


class ValidationCallback(Callback):
    """Measures the policy on held-out episodes every `interval` ticks, and tells early stopping."""

    def __init__(self, validation: Validation, interval: int) -> None:
        self.validation = validation
        self.cadence = Cadence(interval)

    def on_step(self, session: Session) -> None:
        last = self.cadence.last
        if not self.cadence.due(session.clock.now):
            return
        try:
            with session.doing("judging"):
                metrics = self.validation.measure(session.learner, session.interrupted)
        except BaseException:
            self.cadence.last = last  # still due: a run that goes on from here judges first
            raise
        for tag, value in log_row(metrics).items():
            session.log(tag, value)
        for callback in session.callbacks:
            if isinstance(callback, EarlyStoppingCallback) and callback.metric in metrics:
                callback.on_evaluation(session, metrics)

    def next_due(self, now: int) -> int | None:
        return self.cadence.next(now)

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.cadence.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.cadence.last = state["last"]
