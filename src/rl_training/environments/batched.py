"""`environments: batched`: a pool whose environments are simulations of one `MujocoBatch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.environments.mujoco_batch import MujocoBatch, batch_class, supports
from rl_training.environments.running import BATCH, Episode, Pool, Steps
from rl_training.errors import ConfigError
from rl_training.seeding import TRAINING

if TYPE_CHECKING:
    from rl_training.environments.user_environments import UserEnvironments
    from rl_training.experiment.config import TrainConfig


def can_batch(config: TrainConfig, given: UserEnvironments | None) -> bool:
    """Whether the configured environment can be batched: a supported id without wrappers."""
    named = (given is None or given.env is None) and "env_id" not in config.given_envs
    return named and not config.wrappers and supports(config.env_id, config.env_kwargs)


def require_batched(config: TrainConfig, given: UserEnvironments | None) -> None:
    """Raise if the configured environment cannot be batched."""
    if not can_batch(config, given):
        cause = "wrappers are applied to one environment at a time" if config.wrappers else _cause(config)
        raise ConfigError.of("environments", f"batched: {cause}; set environments to auto")


def _cause(config: TrainConfig) -> str:
    if batch_class() is None:
        return "this installation has no mujoco.batch, which needs mujoco 3.17 or later"
    arguments = f" with env_kwargs {dict(config.env_kwargs)}" if config.env_kwargs else ""
    return f"{config.env_id}{arguments} is not one of Gymnasium's MuJoCo environments that can be batched"


class BatchedPool(Pool):
    """A pool whose environments are simulations of one `MujocoBatch`; other pools may share it (`join`)."""

    def __init__(
        self, config: TrainConfig, *, purpose: int = TRAINING, given: UserEnvironments | None = None
    ) -> None:
        require_batched(config, given)
        assert config.seed is not None
        assert config.env_id is not None
        super().__init__(config.seed, purpose, config.num_envs)
        self.key = (config.env_id, str(config.env_kwargs), config.env_threads)  # equal if pools can be joined
        self.make = partial(MujocoBatch, config.env_id, config.env_kwargs, threads=config.env_threads)
        self._enter(_Shared(self.make(self.width)))

    def _enter(self, shared: _Shared) -> None:
        """Use the next simulations of `shared`."""
        first = sum(pool.width for pool in shared.pools)
        self._shared, self._rows = shared, slice(first, first + self.width)
        shared.pools.append(self)

    def move(self, shared: _Shared) -> None:
        """Continue in the next simulations of `shared`."""
        state = self._shared.batch.state_dict(self._rows)
        self.close()
        self._enter(shared)
        shared.batch.load_state_dict(state, self._rows)

    def ids(self, indices: Sequence[int]) -> NDArray[np.int32]:
        """The simulations of the environments `indices`."""
        return np.array(indices, dtype=np.int32) + np.int32(self._rows.start)

    def reset_all(
        self, indices: Sequence[int], places: Sequence[tuple[int, int]] | None = None
    ) -> NDArray[np.float32]:
        seeds = [self._begin(index, place) for index, place in zip(indices, places or repeat(None))]
        with self.blame(indices[0]):
            return self._shared.batch.reset(self.ids(indices), seeds)

    def _send(self, actions: NDArray[Any], indices: Sequence[int]) -> None:
        if len(actions) != len(indices):
            raise ValueError(f"{len(actions)} actions for {len(indices)} environments")
        self._shared.sent[self] = np.array(actions, dtype=np.float32), indices

    def _receive(self, indices: Sequence[int]) -> Steps:
        with self.blame(indices[0]):
            return self._shared.receive(self)

    def replay(self, index: int, episode: Episode) -> NDArray[np.float32] | None:
        self._continue(index, episode)
        if episode.actions is None:
            return None
        ids, batch = self.ids([index]), self._shared.batch
        with self.blame(index):
            obs = batch.reset(ids, [episode.seed])
            for action in episode.actions:
                obs = batch.step(action[None], ids).obs
        return obs[0]

    def save(self) -> dict[str, NDArray[Any]]:
        return {BATCH + name: values for name, values in self._shared.batch.state_dict(self._rows).items()}

    def load(self, episodes: Sequence[Episode], saved: Mapping[str, NDArray[Any]]) -> bool:
        super().load(episodes, saved)
        state = {name.removeprefix(BATCH): values for name, values in saved.items()}
        try:
            self._shared.batch.load_state_dict(state, self._rows)
        except ValueError:  # another version of MuJoCo
            return False
        self.lengths[:] = state["steps"]
        return True

    def close(self) -> None:
        self._shared.leave(self)


def join(pools: Sequence[Pool]) -> None:
    """Move the simulations of batched pools of the same task into one batch, so that one call steps all of them.

    The results do not change. No pool may have sent actions whose answers it did not receive.
    """
    groups: dict[Any, list[BatchedPool]] = {}
    for pool in pools:
        if isinstance(pool, BatchedPool):
            groups.setdefault(pool.key, []).append(pool)
    for group in groups.values():
        if len(group) > 1:
            shared = _Shared(group[0].make(sum(pool.width for pool in group)))
            for pool in group:
                pool.move(shared)


class _Shared:
    """A batch and the pools that use it, with the actions they sent and the answers they did not receive yet."""

    def __init__(self, batch: MujocoBatch) -> None:
        self.batch = batch
        self.pools: list[BatchedPool] = []  # in the order of their simulations
        self.sent: dict[BatchedPool, tuple[NDArray[np.float32], Sequence[int]]] = {}
        self._answers: dict[BatchedPool, Steps | Exception] = {}

    def receive(self, pool: BatchedPool) -> Steps:
        """The answer to what `pool` sent; the first call steps the simulations of all pools that sent actions."""
        if pool in self.sent:
            self._step()
        answer = self._answers.pop(pool)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _step(self) -> None:
        sent = [(pool, *self.sent[pool]) for pool in self.pools if pool in self.sent]
        self.sent = {}
        actions = np.concatenate([actions for _, actions, _ in sent]) if len(sent) > 1 else sent[0][1]
        ids = None
        if len(actions) < self.batch.num_envs:
            ids = np.concatenate([pool.ids(indices) for pool, _, indices in sent])
        try:
            steps = self.batch.step(actions, ids)
        except Exception as error:
            self._answers |= {pool: error for pool, _, _ in sent}
            return
        first = 0
        for pool, actions, _ in sent:
            rows = slice(first, first := first + len(actions))
            self._answers[pool] = steps.part(rows) if len(sent) > 1 else steps

    def leave(self, pool: BatchedPool) -> None:
        """Close the batch if no other pool uses it; the simulations of `pool` remain unused otherwise."""
        self.pools = [one for one in self.pools if one is not pool]
        if not self.pools:
            self.batch.close()
