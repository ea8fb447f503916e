"""Importance sampling over whole episodes, for discrete data with logged action probabilities.

Weighted importance sampling (Precup et al. 2000) divides by the sum of the weights. The doubly robust estimate
(Jiang & Li 2016) corrects FQE's values with the logged rewards. A truncated episode contributes its partial return
to the former, and is bootstrapped with FQE's value of its last next state in the latter. Rows after the first
termination of an episode do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from rl_training.algorithms.fqe import FQE
from rl_training.data.columns import ACTION_PROBS
from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes, Resample
from rl_training.data.statistics import sums_of
from rl_training.errors import ConfigError, DatasetError
from rl_training.models.policies import Policy
from rl_training.off_policy_evaluation.policies import probabilities

Floats = NDArray[np.float64]
_CHUNK = 1 << 14


def logged_probabilities(data: TransitionDataset, given: ArrayLike | None) -> Floats:
    """The probability of each logged action when it was taken, `[n]`; `given` replaces those of the data."""
    if not data.spaces.discrete:
        raise ConfigError(
            f"{data.name}: importance sampling is for discrete actions, and these are continuous: weights of whole "
            "episodes would mean nothing; use method fqe"
        )
    values = data.action_probs if given is None else given
    if values is None:
        raise DatasetError(
            f"{data.name}: column {ACTION_PROBS!r} is missing, the probability of each action when it was taken; "
            "without it use method fqe"
        )
    found = np.asarray(values, dtype=np.float64)
    if found.shape != (len(data),):
        raise DatasetError(
            f"{data.name}: {ACTION_PROBS} must be {len(data)} numbers, one per row, got shape {list(found.shape)}"
        )
    bad = np.flatnonzero(~((found > 0) & (found <= 1)))
    if len(bad):
        raise DatasetError(
            f"{data.name}: column {ACTION_PROBS!r}, row {bad[0]}: {found[bad[0]]} is not the probability of an "
            "action that was taken; it must be above 0 and at most 1"
        )
    return found


@dataclass(frozen=True)
class Logs:
    """A discrete data set with the probabilities of its actions."""

    dataset: TransitionDataset
    episodes: Episodes
    action_probs: Floats  # [n]
    gamma: float

    def ratios(self, policy: Policy, *, sampled: bool) -> Floats:
        """pi(a|s) of the logged actions divided by their logged probability, `[n]`."""
        found = []
        for first in range(0, len(self.dataset), _CHUNK):
            batch = self.dataset.layout.unpack(torch.tensor(self.dataset.rows[first : first + _CHUNK]))
            every = probabilities(policy, batch.obs, self.dataset.spaces.num_actions, sampled=sampled)
            found.append(every.gather(1, batch.actions[:, None])[:, 0].numpy())
        return np.concatenate(found) / self.action_probs


def log_weights(ratios: Floats, episodes: Episodes) -> Floats:
    """Logarithm of each episode's weight (the product of its ratios), `[E]`; -inf if a ratio is 0."""
    with np.errstate(divide="ignore"):
        return sums_of(np.log(ratios), episodes.starts, episodes.lengths)


def weighted_mean(weights: Floats, returns: Floats, parts: Sequence[Resample]) -> Floats:
    """Weighted importance sampling on each resample, `[B]`, from log weights; NaN if all weights are 0."""
    counts = np.stack([part.counts.cpu().numpy() for part in parts])  # [B, E]
    drawn = np.where(counts > 0, weights, -np.inf)
    highest = drawn.max(1, keepdims=True)  # of each resample, so that its weights do not all underflow
    shares = counts * np.exp(drawn - np.where(np.isfinite(highest), highest, 0.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = (shares * returns).sum(1) / shares.sum(1)
    return found


def effective_episodes(weights: Floats) -> float:
    """Effective sample size in episodes: (sum w)^2 / sum w^2."""
    highest = weights.max()
    if not np.isfinite(highest):
        return 0.0
    shares = np.exp(weights - highest)
    return float(shares.sum() ** 2 / (shares**2).sum())


def doubly_robust(
    ratios: Floats,
    rewards: Floats,
    q: Floats,
    values: Floats,
    last_values: Floats,
    episodes: Episodes,
    gamma: float,
) -> Floats:
    """Estimate of each episode, `[E]`: V(s) + ratio (r + gamma next - Q(s, a)), backwards from its last row.

    `q [n]` is Q of the logged actions and `values [n]` is V of the states. `last_values [E]` is V of the next state
    of an episode's last row, or 0 if the episode terminated there.
    """
    found = last_values.copy()
    for back in range(int(episodes.lengths.max())):
        some = np.flatnonzero(episodes.lengths > back)
        row = episodes.ends[some] - back
        found[some] = values[row] + ratios[row] * (rewards[row] + gamma * found[some] - q[row])
    return found


@torch.no_grad()
def doubly_robust_of(
    logs: Logs, policy: Policy, ratios: Floats, learners: Sequence[FQE], parts: Sequence[Resample], *, sampled: bool
) -> Floats:
    """Doubly robust estimate on each resample, with the values of the resample's own learner, `[B]`."""
    dataset, episodes = logs.dataset, logs.episodes
    rewards, found = dataset.rewards.astype(np.float64), []
    last = torch.from_numpy(episodes.ends)
    for learner, part in zip(learners, parts, strict=True):
        q, values, after = np.empty(len(dataset)), np.empty(len(dataset)), np.empty(len(dataset))
        for first in range(0, len(dataset), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            batch = dataset.layout.unpack(torch.tensor(dataset.rows[chunk]))
            q[chunk] = learner.model.q_values(batch.obs.to(learner.device), batch.actions.to(learner.device)).cpu()
            values[chunk] = _value(learner, policy, batch.obs, sampled)
            after[chunk] = _value(learner, policy, batch.next_obs, sampled) * (1.0 - batch.dones.double())
        each = doubly_robust(ratios, rewards, q, values, after[last.numpy()], episodes, logs.gamma)
        counts = part.counts.cpu().numpy()
        found.append(float((counts * each).sum() / counts.sum()))
    return np.array(found)


def _value(learner: FQE, policy: Policy, obs: torch.Tensor, sampled: bool) -> torch.Tensor:
    """sum_a pi(a|s) Q(s, a), `[n]`."""
    every = probabilities(policy, obs, learner.model.num_actions, sampled=sampled)
    q: torch.Tensor = learner.model.all_q_values(obs.to(learner.device)).double().cpu()
    return (every * q).sum(1)
