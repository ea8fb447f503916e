"""Data for FQE: minibatches of whole episodes with a policy's actions, the scale of values, and first states.

The actions of a policy in the data's next observations do not change while it is evaluated. They are computed once
if the policy acts by its mode (`PolicyActions`). If it is sampled, they are drawn for each minibatch from the
learner's generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.fqe import FQE, FQEConfig, value_bounds
from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes, Resample
from rl_training.data.extra_columns import discounted_sums
from rl_training.data.transitions import RowLayout
from rl_training.errors import DatasetError
from rl_training.models.mlp import NetworkConfig
from rl_training.models.policies import Policy

# Observations per forward pass of a policy, and samples of a stochastic policy in each first state.
_CHUNK, _DRAWS = 1 << 14, 16
# A tenth of float32's maximum, so that sums of two values do not overflow.
_LARGEST_VALUE = 0.1 * float(np.finfo(np.float32).max)


class Units(NamedTuple):
    """Offset, scale and bounds of values: see `MLPFQEModel.set_units`."""

    offset: float
    scale: float
    low: float
    high: float

    @classmethod
    def of(cls, dataset: TransitionDataset, episodes: Episodes, gamma: float) -> Units:
        """Mean and standard deviation of the estimated returns of all rows, and the bounds of any value."""
        rewards, dones = dataset.rewards.astype(np.float64), dataset.dones
        low, high = value_bounds(float(rewards.min()), float(rewards.max()), gamma, terminates=bool(np.any(dones)))
        if max(-low, high) > _LARGEST_VALUE:
            raise DatasetError(
                f"{dataset.name}: rewards from {rewards.min():.3g} to {rewards.max():.3g} with discount {gamma:g} "
                "have values that float32 cannot hold; scale the rewards, or use a smaller gamma"
            )
        returns = estimated_returns(rewards, dones, episodes, gamma)
        std = float(returns.std())
        scale = std if std > 1e-6 * max(1.0, abs(high), abs(low)) else max(1.0, abs(high), abs(low))
        return cls(float(returns.mean()), scale, low, high)


def estimated_returns(
    rewards: NDArray[np.float64], dones: NDArray[np.float32], episodes: Episodes, gamma: float
) -> NDArray[np.float64]:
    """The discounted sum of rewards from each row to the next termination or the end of its episode, `[n]`.

    `gamma` is below 1. A truncated episode is assumed to continue with the mean reward, and to terminate as often
    per step as the data do.
    """
    continued, ends = rewards.copy(), np.union1d(episodes.ends, np.flatnonzero(dones))
    cut = ends[dones[ends] == 0]
    termination_rate = float(np.mean(dones != 0))
    continued[cut] += gamma * rewards.mean() / (1.0 - gamma * (1.0 - termination_rate))
    return discounted_sums(continued, ends, gamma)


def build_fqe(
    dataset: TransitionDataset,
    units: Units,
    moments: tuple[NDArray[np.float32], NDArray[np.float32]],
    config: FQEConfig,
    network: NetworkConfig,
    seeds: tuple[int, int],
    device: torch.device,
) -> FQE:
    """An FQE learner for this data; `seeds`: of its networks and of its generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds[0])
        model = FQE.build_model(dataset.spaces, network, config, normalize_observations=True)
        model.set_units(*units)
        model.normalizer.set_moments(*(torch.from_numpy(one) for one in moments))
        learner = FQE(model=model.to(device), **dict(config))
    learner.seed(seeds[1])
    return learner


@torch.no_grad()
def acts(policy: Policy, obs: Tensor, noise: Tensor | None = None, *, sampled: bool = False) -> Tensor:
    """The internal actions of a policy, `[n, A]` (discrete: `[n, 1]`): its mode, or a sample determined by `noise`.

    A policy that is evaluated by samples, or with `sampled` any stochastic one, gets fixed noise if none is given.
    If an observation overflows in the network, the action is the middle of the range, as in `predict`.
    """
    if noise is None and policy.samples(False if sampled else None):
        shape = len(obs), policy.mode(obs[:1]).numel()
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(obs)
    found = policy.mode(obs) if noise is None else policy.sample(obs, noise)
    return found.view(len(obs), -1).to(obs.dtype).nan_to_num(nan=0.0)


def action_distance(ours: Tensor, logged: Tensor, discrete: bool) -> float:
    """Distance between `ours [n, A]` and the logged actions.

    For discrete actions, the fraction of rows that differ; else the root mean square, averaged over rows, in units
    of the action range.
    """
    if discrete:
        return float((ours != logged).float().mean())
    return float(((ours - logged) / 2.0).square().mean(1).sqrt().mean())


class PolicyActions:
    """The rows of a data set, and the actions of several policies in their next observations.

    `rows` and the policies are on the device that gathers minibatches. With `tabulate`, the actions of policies
    that are not sampled are computed once.
    """

    def __init__(
        self,
        dataset: TransitionDataset,
        rows: Tensor,
        policies: Sequence[Policy],
        *,
        sampled: bool = False,
        tabulate: bool = True,
    ) -> None:
        self.rows, self.policies = rows, list(policies)
        self.packed = dataset.layout
        self.layout = replace(self.packed, extras=FQE.extras)
        self._padding = self.layout.width - 2 - 2 * self.layout.obs_dim - 2 * self.layout.action_dim
        self.sampled = [policy.samples(False if sampled else None) for policy in self.policies]
        self._tables = [
            self._table(policy) if tabulate and not drawn else None
            for policy, drawn in zip(self.policies, self.sampled)
        ]

    @staticmethod
    def table_bytes(dataset: TransitionDataset) -> int:
        """Size of the precomputed actions of one policy."""
        return 4 * len(dataset) * dataset.layout.action_dim

    def _table(self, policy: Policy) -> Tensor:
        firsts = range(0, len(self.rows), _CHUNK)
        return torch.cat([acts(policy, self._next_obs(self.rows[first : first + _CHUNK])) for first in firsts])

    def _next_obs(self, rows: Tensor) -> Tensor:
        size = self.packed.obs_dim
        return rows[..., size : 2 * size]

    def next_actions(self, place: int, index: Tensor, rows: Tensor, noise: Tensor | None) -> Tensor:
        """The actions of policy `place` in the next observations of `rows [m, n, …]` with numbers `index [m, n]`:
        `[m, n, A]`."""
        table = self._tables[place]
        if table is not None:
            return table.index_select(0, index.reshape(-1)).view(*index.shape, -1)
        flat = None if noise is None else noise.reshape(-1, noise.shape[-1])
        obs = self._next_obs(rows)
        return acts(self.policies[place], obs.reshape(-1, obs.shape[-1]), flat).view(*index.shape, -1)

    def gather(
        self, places: Sequence[int], parts: Sequence[Resample], positions: Tensor, noise: Sequence[Tensor | None]
    ) -> Tensor:
        """Rows at `positions [K, m, n]` with next actions, `[K, m, n, width]`, for K policies and m resamples."""
        index = torch.stack([part.rows_at(positions[:, b]) for b, part in enumerate(parts)], dim=1)
        rows = self.rows.index_select(0, index.view(-1)).view(*index.shape, -1)
        actions = [self.next_actions(place, index[k], rows[k], noise[k]) for k, place in enumerate(places)]
        known = 2 * self.layout.obs_dim + self.layout.action_dim
        padding = rows.new_zeros((*index.shape, self._padding))
        return torch.cat([rows[..., :known], torch.stack(actions), padding, rows[..., -2:]], dim=-1)


class EpisodeSampler:
    """Minibatches of one resample with the actions of policy `place` of `data`."""

    arrivals = ()

    def __init__(self, data: PolicyActions, place: int, part: Resample, generator: torch.Generator) -> None:
        self.data, self.place, self.part, self.generator = data, place, part, generator
        self.layout: RowLayout = data.layout
        self._size = part.size

    @property
    def device(self) -> torch.device:
        return self.data.rows.device

    def __len__(self) -> int:
        return self._size

    def positions(self, count: int) -> Tensor:
        """The positions of `count` rows of the resample, drawn uniformly."""
        return torch.randint(self._size, (count,), generator=self.generator, device=self.generator.device)

    def noise(self, count: int) -> Tensor | None:
        """Noise for the actions of a sampled policy, `[count, A]`; drawn after the positions. None for the mode."""
        if not self.data.sampled[self.place]:
            return None
        shape = (count, self.layout.action_dim)
        return torch.randn(shape, generator=self.generator, device=self.generator.device)

    def sample_rows(self, batch_size: int) -> Tensor:
        return sample_together([self], [self.part], batch_size)[0]


def sample_together(sources: Sequence[EpisodeSampler], parts: Sequence[Resample], count: int) -> Tensor:
    """One minibatch per source, `[S, count, width]`; `sources` are sorted by policy, then by resample (`parts`)."""
    data, device = sources[0].data, sources[0].device
    each = len(parts)
    positions, noise = [], []
    for source in sources:
        positions.append(source.positions(count))
        noise.append(source.noise(count))
    drawn = torch.stack(positions).view(-1, each, count).to(device)
    by_policy = [noise[k : k + each] for k in range(0, len(noise), each)]
    joined = [
        None if some[0] is None else torch.stack([one for one in some if one is not None]).to(device)
        for some in by_policy
    ]
    rows = data.gather([source.place for source in sources[::each]], parts, drawn, joined)
    return rows.view(len(sources), count, -1)


class FirstStates:
    """The first observation of each episode, and the actions of each policy in it."""

    def __init__(self, data: PolicyActions, episodes: Episodes, seed: int) -> None:
        size, device = data.packed.obs_dim, data.rows.device
        first = data.rows.index_select(0, torch.from_numpy(episodes.starts).to(device))
        self.obs = first[:, :size].contiguous()
        self._discrete = data.packed.discrete
        self._actions: list[list[Tensor]] = []
        for policy, sampled in zip(data.policies, data.sampled):
            generator = torch.Generator(device).manual_seed(seed)
            shape = (len(self.obs), data.packed.action_dim)
            noise: list[Tensor | None] = [None]
            if sampled:
                noise = [torch.randn(shape, generator=generator, device=device) for _ in range(_DRAWS)]
            self._actions.append([acts(policy, self.obs, one) for one in noise])

    @torch.no_grad()
    def values(self, learner: FQE, place: int) -> Tensor:
        """The value of policy `place` in each first state, as estimated by `learner`, `[E]` in float64."""
        device = learner.device
        total = torch.zeros(len(self.obs), dtype=torch.float64)
        for actions in self._actions[place]:
            inputs = actions[:, 0].long() if self._discrete else actions
            for start in range(0, len(self.obs), _CHUNK):
                part = slice(start, start + _CHUNK)
                total[part] += learner.model.q_values(self.obs[part].to(device), inputs[part].to(device)).cpu()
        return total / len(self._actions[place])
