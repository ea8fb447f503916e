"""Support of policies in logged data: the share of states in which a policy acts unlike every other episode.

D(s, a) is the distance of a pair to the nearest logged pair of another episode,
sqrt(|z - z_j|^2 / O + |a - a_j|^2 / A), with standardised observations z and actions in [-1, 1]. A pair is outside
the data if D exceeds the 95 % quantile of D of the logged pairs. The measure has no parameters to fit, because
data of several policies are multimodal.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes
from rl_training.experience.fqe_data import acts
from rl_training.models.policies import Policy

# Number of states in which policies are compared, and of rows that are searched for the nearest pair.
_STATES, _ROWS = 2_000, 200_000
_QUANTILE = 0.95
# Distances below this are not distinguished: they are rounding errors if episodes repeat each other.
_RESOLUTION = 0.01
# Number of distances that are computed at a time.
_AT_A_TIME = 1 << 25


class Support:
    """The rows of `others`, and states of `data` in which policies are compared with them.

    The data sets are the same, or have no episode in common.
    """

    def __init__(self, data: TransitionDataset, others: TransitionDataset, seed: int, device: torch.device) -> None:
        rng = np.random.default_rng(seed)
        self._num_actions = data.spaces.num_actions
        self._mean, std = (torch.from_numpy(one).to(device) for one in _moments(data, others))
        self._scale = (std + 1e-6) * data.spaces.obs_dim**0.5
        self._obs, logged, episode = _some(data, _STATES, rng, device)
        obs, actions, other_episode = _some(others, _ROWS, rng, device)
        self._others = self._pairs(obs, actions)
        # The rows of `others` that are of the same episode as a state.
        sides: tuple[Literal["left"], Literal["right"]] = ("left", "right")
        bounds = [np.searchsorted(other_episode, episode, side).tolist() for side in sides]
        self._own = [slice(*pair) if data is others else slice(0) for pair in zip(*bounds)]
        self.threshold = max(_RESOLUTION, float(self._distances(logged).quantile(_QUANTILE)))

    def _pairs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Vectors `[n, O + A]` whose Euclidean distance is D; unequal discrete actions are 2 apart."""
        if self._num_actions:
            scaled = 2.0**0.5 * torch.nn.functional.one_hot(actions[:, 0].long(), self._num_actions)
        else:
            scaled = actions / actions.shape[1] ** 0.5
        return torch.cat([(obs - self._mean) / self._scale, scaled], dim=1)

    def _distances(self, actions: Tensor) -> Tensor:
        """D of the states with these actions, `[n]`."""
        pairs, nearest = self._pairs(self._obs, actions), []
        size = max(1, _AT_A_TIME // len(self._others))
        lengths = self._others.square().sum(1)
        for first in range(0, len(pairs), size):
            squares = torch.addmm(lengths, pairs[first : first + size], self._others.T, alpha=-2.0)
            for row, own in enumerate(self._own[first : first + size]):
                squares[row, own] = torch.inf
            nearest.append(squares.amin(1))
        return (torch.cat(nearest) + pairs.square().sum(1)).clamp_min(0.0).sqrt()

    def outside(self, policy: Policy, *, sampled: bool = False) -> float:
        """The share of states in which the policy's action is outside the data; 1 if its weights are not finite.

        `sampled`: the action of a stochastic policy is a sample instead of its mode.
        """
        policy = policy.to(self._obs.device)
        if not all(bool(torch.isfinite(one).all()) for one in policy.state_dict().values()):
            return 1.0
        actions = acts(policy, self._obs, sampled=sampled)
        return float((self._distances(actions) > self.threshold).double().mean())


def _moments(data: TransitionDataset, others: TransitionDataset) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean and standard deviation of the observations of both data sets together.

    A component may be constant in one of them, as a number of each episode is.
    """
    if data is others:
        return others.observation_moments()
    (mean, std), (other_mean, other_std) = (one.observation_moments() for one in (data, others))
    share = len(data) / (len(data) + len(others))
    apart = mean.astype(np.float64) - other_mean
    variance = share * std**2 + (1.0 - share) * other_std**2 + share * (1.0 - share) * apart**2
    return (other_mean + share * apart).astype(np.float32), np.sqrt(variance).astype(np.float32)


def _some(
    data: TransitionDataset, most: int, rng: np.random.Generator, device: torch.device
) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """Observations, actions `[n, A]` and episodes `[n]` of at most `most` rows, drawn at random and in order."""
    chosen = np.sort(rng.choice(len(data), min(most, len(data)), replace=False))
    batch = data.columns_at(chosen)
    episodes: NDArray[np.int64] = np.searchsorted(Episodes.of(data, "the check of support").ends, chosen)
    return batch.obs.to(device), batch.actions.view(len(chosen), -1).float().to(device), episodes
