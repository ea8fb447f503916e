"""`environments: batched`: the environments of a pool as rows of one `MujocoBatch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.environments.mujoco_batch import MujocoBatch, batch_class, supports
from rl_training.environments.pool import CLOSING_SECONDS, SteppedEnv, Transition
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.environments.user_environments import UserEnvironments
    from rl_training.experiment.config import TrainConfig


def can_batch(config: TrainConfig, given: UserEnvironments | None) -> bool:
    """Whether the configured environment can be batched: a supported id without wrappers."""
    named = (given is None or given.env is None) and "env_id" not in config.given_envs
    return named and not config.wrappers and supports(config.env_id, config.env_kwargs)


def batched_envs(config: TrainConfig, given: UserEnvironments | None) -> list[SteppedEnv]:
    """The `num_envs` environments of a pool."""
    if not can_batch(config, given):
        cause = "wrappers are applied to one environment at a time" if config.wrappers else _cause(config)
        raise ConfigError(f"environments: batched: {cause}; set environments to auto", key="environments")
    assert config.env_id is not None
    shared = _Shared(MujocoBatch(config.env_id, config.env_kwargs, config.num_envs, config.env_threads))
    return [BatchedEnv(shared, index) for index in range(config.num_envs)]


def _cause(config: TrainConfig) -> str:
    if batch_class() is None:
        return "this installation has no mujoco.batch, which needs mujoco 3.17 or later"
    arguments = f" with env_kwargs {dict(config.env_kwargs)}" if config.env_kwargs else ""
    return f"{config.env_id}{arguments} is not one of Gymnasium's MuJoCo environments that can be batched"


class _Shared:
    """A batch with the actions it was sent and the answers that were not received yet."""

    def __init__(self, batch: MujocoBatch) -> None:
        self.batch = batch
        self._actions = np.zeros((batch.num_envs, batch.action_size), dtype=np.float32)
        self._sent: set[int] = set()
        self._answers: dict[int, Transition] = {}

    def reset(self, index: int, seed: int) -> NDArray[np.float32]:
        self._sent.discard(index)
        self._answers.pop(index, None)
        return self.batch.reset(index, seed)

    def send(self, index: int, action: Any) -> None:
        self._actions[index] = action
        self._sent.add(index)

    def receive(self, index: int) -> Transition:
        if index in self._sent:
            self._step()
        return self._answers.pop(index)

    def _step(self) -> None:
        """Step all simulations that were sent an action."""
        ids = sorted(self._sent)
        self._sent.clear()
        if len(ids) == len(self._actions):
            steps = self.batch.step(self._actions)
        else:
            steps = self.batch.step(self._actions[ids], np.array(ids, dtype=np.int32))
        ends = (steps.rewards.tolist(), steps.terminated.tolist(), steps.truncated.tolist())
        self._answers.update(zip(ids, map(Transition, steps.obs, *ends)))


class BatchedEnv:
    """One row of a batch; the first `receive` steps every row that was sent an action."""

    def __init__(self, shared: _Shared, index: int) -> None:
        self._shared, self._index = shared, index

    def reset(self, seed: int) -> NDArray[np.float32]:
        return self._shared.reset(self._index, seed)

    def send(self, action: Any) -> None:
        self._shared.send(self._index, action)

    def receive(self) -> Transition:
        return self._shared.receive(self._index)

    def ask_to_close(self) -> None: ...

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        self._shared.batch.close()
