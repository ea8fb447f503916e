"""`MujocoBatch`: Gymnasium's MuJoCo environments, all simulations stepped in one call and on several threads.

Observations, rewards and ends equal those of Gymnasium bit for bit, for any number of simulations and threads. An
environment or argument for which this does not hold is not supported; there is no approximation.
"""

from __future__ import annotations

import inspect
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils import seeding
from numpy.typing import NDArray

from rl_training.environments.mujoco_tasks import TASKS, Task, Values
from rl_training.environments.running import Steps
from rl_training.memory import available_cores
from rl_training.platforms import after_fork

_ENTRY_POINT = re.compile(r"gymnasium\.envs\.mujoco\.(\w+)_v([45]):\w+")
# Versions of Gymnasium whose arithmetic was compared; another one may compute the last bit in another way.
_COMPARED = re.compile(r"1\.4\..*")
_ALL = slice(None)


# A forked process has no threads of these batches and would wait for them if it freed one; so it keeps them all.
_batches: weakref.WeakSet[Any] = weakref.WeakSet()
_inherited: list[Any] = []
after_fork(lambda: _inherited.extend(_batches))


@cache
def batch_class() -> Any:
    """MuJoCo's `Batch`; None if this installation does not have it."""
    try:
        from mujoco.batch import Batch
    except Exception:  # a binary that does not fit its library raises more than ImportError
        return None
    return Batch


def supports(env_id: str | None, env_kwargs: Mapping[str, Any]) -> bool:
    """Whether `MujocoBatch` can step `gymnasium.make(env_id, **env_kwargs)`."""
    return _find(env_id, env_kwargs) is not None


def _find(env_id: str | None, env_kwargs: Mapping[str, Any]) -> tuple[Task, int | None] | None:
    """The task and the time limit of a registered environment; None if it is not supported."""
    spec = gym.registry.get(env_id or "")
    entry = None if spec is None else _ENTRY_POINT.fullmatch(str(spec.entry_point))
    if spec is None or entry is None or spec.additional_wrappers or not _COMPARED.fullmatch(gym.__version__):
        return None
    kwargs = {**spec.kwargs, **env_kwargs}
    limit = kwargs.pop("max_episode_steps", None)
    if limit is None:
        limit = spec.max_episode_steps
    if limit is not None and (type(limit) is not int or not (limit > 0 or limit == -1)):
        return None
    kind, version = TASKS.get(entry[1]), int(entry[2])
    if kind is None or version not in kind.versions or batch_class() is None:
        return None
    known = inspect.signature(load_env_creator(entry[0])).parameters
    if not kind.accepts(known, kwargs):
        return None
    return kind(version=version, **kwargs), None if limit == -1 else limit


class MujocoBatch:
    """`num_envs` simulations of one environment.

    Each simulation is reset with its own seed, as `gymnasium.make(env_id, **env_kwargs).reset(seed=seed)`. Nothing
    is reset automatically.
    """

    def __init__(
        self, env_id: str, env_kwargs: Mapping[str, Any], num_envs: int, threads: int | None = None
    ) -> None:
        """`threads`: None for OMP_NUM_THREADS or the available cores; at most one per simulation is used."""
        found = _find(env_id, env_kwargs)
        if found is None:
            raise ValueError(f"{env_id} with {dict(env_kwargs)} is not supported")
        self.task, self.max_episode_steps = found
        self.model = _load_model(self.task)
        self.task.attach(self.model)
        # Contact forces are computed after a step from the simulation's own MjData.
        self._contacts = self.task.contacts
        threads = min(threads or _default_threads(), num_envs)
        self._batch = batch_class()(self.model, num_envs, nthread=threads, persistent=self._contacts)
        _batches.add(self._batch)
        self._fields = {name: self._batch.bind(name) for name in self.task.reads}
        if self._contacts:
            self._data = self._batch.get_data(0)
            self._fields["cfrc_ext"] = np.zeros((num_envs, *self._data.cfrc_ext.shape))
        self._qpos, self._qvel, self._ctrl = (self._batch.bind(name) for name in ("qpos", "qvel", "ctrl"))
        self._carried = self.task.carried(self._fields)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._initial = self._batch.state[0].copy()
        self._before = self._batch.state.copy()
        self.num_envs, self.action_size = num_envs, int(self.model.nu)

    def reset(self, ids: NDArray[np.int32], seeds: Sequence[int]) -> NDArray[np.float32]:
        """Start a new episode in each of `ids` (ascending) with its own seed; returns the observations `[n, O]`."""
        rows: Any = _ALL if len(ids) == self.num_envs else ids
        self._batch.state[rows] = self._initial
        for index, seed in zip(ids.tolist(), seeds, strict=True):
            rng, _ = seeding.np_random(seed)
            self._qpos[index], self._qvel[index] = self.task.initial(rng)
        self._batch.forward(ids)
        if self._contacts:  # as in Gymnasium, which computes them only after a step
            self._fields["cfrc_ext"][rows] = 0
        now = self._values(rows)
        self._carried[rows] = self.task.carried(now)
        self._steps[rows] = 0
        return self.task.observation(now).astype(np.float32)

    def step(self, actions: NDArray[np.float32], ids: NDArray[np.int32] | None = None) -> Steps:
        """Step all simulations, or those in `ids` (ascending); `actions` has one row for each.

        If MuJoCo raises an error in one of them, none is stepped.
        """
        rows: Any = _ALL if ids is None else ids
        np.copyto(self._before, self._batch.state)
        self._ctrl[rows] = actions
        try:
            self._batch.step(ids, nstep=self.task.frame_skip)
        except Exception:
            self._batch.state[:] = self._before
            raise
        if self._contacts:
            self._compute_contact_forces(range(self.num_envs) if ids is None else ids)
        now = self._values(rows)
        after = self.task.carried(now)
        rewards, terminated = self.task.outcome(now, self._carried[rows], after, actions)
        self._carried[rows] = after
        self._steps[rows] += 1
        if self.max_episode_steps is None:
            truncated = np.zeros(len(rewards), dtype=np.bool_)
        else:
            truncated = self._steps[rows] >= self.max_episode_steps
        return Steps(self.task.observation(now).astype(np.float32), rewards, terminated, truncated)

    def close(self) -> None:
        """End the threads; only `close` may be called afterwards."""
        for name in ("_fields", "_qpos", "_qvel", "_ctrl", "_batch"):
            self.__dict__.pop(name, None)

    def _values(self, rows: Any) -> Values:
        """The fields that the task reads, of some simulations."""
        return self._fields if rows is _ALL else {name: field[rows] for name, field in self._fields.items()}

    def _compute_contact_forces(self, ids: Any) -> None:
        import mujoco

        for index in ids:
            self._batch.get_data(index, self._data)
            mujoco.mj_rnePostConstraint(self.model, self._data)
            self._fields["cfrc_ext"][index] = self._data.cfrc_ext

    def state_dict(self, rows: slice = _ALL) -> dict[str, NDArray[Any]]:
        """Everything that later steps of `rows` depend on, independent of the number of threads."""
        return {name: values.copy() for name, values in self._state(rows).items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]], rows: slice = _ALL) -> None:
        """Continue in `rows` from `state_dict()` of the same environment and number of simulations."""
        own = self._state(rows)
        for name, target in own.items():
            if state[name].shape != target.shape:
                raise ValueError(f"{name} has shape {list(state[name].shape)}, expected {list(target.shape)}")
        for name, target in own.items():
            target[...] = state[name]

    def _state(self, rows: slice) -> dict[str, NDArray[Any]]:
        return {"state": self._batch.state[rows], "carried": self._carried[rows], "steps": self._steps[rows]}


def _default_threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else available_cores()


def _load_model(task: Task) -> Any:
    import mujoco
    from gymnasium.envs import mujoco as environments

    file = task.model_file if task.version == 5 else task.model_file_v4 or task.model_file
    return mujoco.MjModel.from_xml_path(str(Path(environments.__file__).parent / "assets" / file))
