"""Adapters of batched environments: every row of every step is a valid transition for every library."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor

from rl_training.environments.adapters import mjlab
from rl_training.environments.adapters.brax import BraxAdapter
from rl_training.environments.adapters.gymnasium_vector import VectorEnvAdapter
from rl_training.environments.adapters.isaac_lab import IsaacLabAdapter
from rl_training.environments.adapters.maniskill import ManiSkillAdapter
from rl_training.environments.tensor_env import TensorEnv
from rl_training.errors import ConfigError
from tests import counting
from tests.counting import ROWS, BraxStandIn, Counting, IsaacLabStandIn, ManiSkillStandIn, MjlabStandIn
from tests.numpy_jax import numpy_jax
from tests.runs import mostly_slow
from tests.test_tensor_env import collector_of

try:
    import jax
except ImportError:
    jax = numpy_jax()
else:
    jax.tree_util.register_dataclass(counting.State, ["obs", "reward", "done", "info"], [])


@pytest.fixture(autouse=True)
def _libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """jax or its stand-in; the version of mjlab that the adapter follows."""
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(mjlab.metadata, "version", lambda name: "1.6.0")


def _counters() -> list[Callable[[], Counting]]:
    return [functools.partial(Counting, row) for row in range(ROWS)]


def _sync(mode: AutoresetMode, **options: Any) -> TensorEnv:
    return VectorEnvAdapter(SyncVectorEnv(_counters(), autoreset_mode=mode, **options))


def _async(mode: AutoresetMode, **options: Any) -> TensorEnv:
    return VectorEnvAdapter(AsyncVectorEnv(_counters(), autoreset_mode=mode, **options))


def _wrapped() -> TensorEnv:
    env = SyncVectorEnv(_counters(), autoreset_mode=AutoresetMode.NEXT_STEP)
    return VectorEnvAdapter(gym.wrappers.vector.RecordEpisodeStatistics(env))


ENVIRONMENTS: dict[str, Callable[[], TensorEnv]] = {
    **{f"sync-{mode.name}": functools.partial(_sync, mode) for mode in AutoresetMode},
    **{f"async-{mode.name}": functools.partial(_async, mode) for mode in AutoresetMode},
    "sync-shared-buffer": functools.partial(_sync, AutoresetMode.NEXT_STEP, copy=False),
    "async-pipes": functools.partial(_async, AutoresetMode.DISABLED, shared_memory=False),
    "sync-wrapped": _wrapped,
    "maniskill": lambda: ManiSkillAdapter(ManiSkillStandIn()),
    "isaac-lab": lambda: IsaacLabAdapter(IsaacLabStandIn(), action_limit=1.0),
    "mjlab": lambda: mjlab.MjlabAdapter(MjlabStandIn(), action_limit=1.0),
    "brax": lambda: BraxAdapter(BraxStandIn(), ROWS, max_episode_steps=8),
    "brax-truncation": lambda: BraxAdapter(BraxStandIn(truncates=True), ROWS),
    "playground-groups": lambda: BraxAdapter(BraxStandIn(truncates=True, grouped=True), ROWS),
}


# In which process an environment is stepped matters to successors; to the rest one that is not local is enough.
one_process = pytest.mark.parametrize(
    "env",
    mostly_slow(ENVIRONMENTS, *(name for name in ENVIRONMENTS if "async" not in name), "async-SAME_STEP"),
    indirect=True,
)


@pytest.fixture(params=ENVIRONMENTS)
def env(request: pytest.FixtureRequest) -> Iterator[TensorEnv]:
    made = ENVIRONMENTS[request.param]()
    yield made
    made.close()


def test_every_successor_is_correct_at_the_end_of_an_episode(env: TensorEnv) -> None:
    assert isinstance(env, TensorEnv)
    random = torch.Generator().manual_seed(0)
    obs, ends, lengths, steps = env.reset(3), [], set(), torch.zeros(ROWS, dtype=torch.int64)
    kept: list[tuple[Tensor, Tensor]] = []
    for _ in range(40):
        actions = torch.rand((ROWS, 1), generator=random) * 2.0 - 1.0
        step = env.step(actions)
        assert step.terminated.dtype == step.truncated.dtype == torch.bool
        assert all(part.dtype == torch.float32 for part in (step.obs, step.rewards, step.final_obs))
        assert torch.equal(step.final_obs, obs + 1.0)
        assert torch.equal(step.rewards, actions[:, 0])  # no action was ignored
        ended, steps = step.terminated | step.truncated, steps + 1
        assert torch.equal(step.obs[~ended], step.final_obs[~ended])
        assert torch.all(step.obs[ended] % 1000.0 == 0.0)  # first observations
        lengths |= set(steps[ended].tolist())
        ends.append(ended)
        obs, steps = step.obs, steps.masked_fill(ended, 0)
        kept.append((step.final_obs, step.final_obs.clone()))
    assert all(torch.equal(tensor, copy) for tensor, copy in kept)  # later steps changed nothing
    happened = torch.stack(ends)
    assert lengths >= {1, 2}
    assert not happened.any(1).all()
    assert (happened.sum(1) > 1).any()
    assert (happened[1:] & happened[:-1]).any()


def test_no_stored_row_has_another_successor(env: TensorEnv) -> None:
    collector = collector_of(env, capacity=256, random_steps=256)
    for _ in range(40):
        collector.act()
        collector.receive()
    rows = collector.layout.unpack(collector.buffer.rows[: 40 * ROWS])
    assert torch.equal(rows.next_obs, rows.obs + 1.0)
    assert 0.0 < rows.dones.mean() < 1.0


@one_process
def test_terminations_and_truncations_are_distinguished(env: TensorEnv) -> None:
    env.reset(0)
    steps = [env.step(torch.zeros(ROWS, 1)) for _ in range(20)]
    assert any(step.terminated.any() for step in steps)
    assert any(step.truncated.any() for step in steps)
    assert not any((step.terminated & step.truncated).any() for step in steps)


@one_process
def test_seeds_set_the_first_episodes_and_no_episode_repeats_another(env: TensorEnv) -> None:
    first = env.reset(5)
    starts: list[set[float]] = [set() for _ in range(ROWS)]
    for _ in range(50):
        step = env.step(torch.zeros(ROWS, 1))
        for row in (step.terminated | step.truncated).nonzero()[:, 0]:
            starts[row].add(float(step.obs[row, 0]))
    assert all(len(seen) >= 4 for seen in starts)  # five or more episodes
    assert torch.equal(env.reset(5), first)
    assert not torch.equal(env.reset(6), first)


@one_process
def test_steps_in_inference_mode_leave_tensors_that_a_reset_can_change(env: TensorEnv) -> None:
    env.reset(0)
    with torch.inference_mode():
        for _ in range(6):
            env.step(torch.zeros(ROWS, 1))
    env.reset(1)


def test_spaces_and_time_limits() -> None:
    vector = gym.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync", max_episode_steps=7)
    adapter = VectorEnvAdapter(vector)
    assert adapter.max_episode_steps == 7
    assert adapter.single_action_space == vector.single_action_space
    assert adapter.num_envs == 2
    assert adapter.device == torch.device("cpu")
    isaac = IsaacLabAdapter(IsaacLabStandIn(), action_limit=2.0)
    assert isaac.single_action_space == gym.spaces.Box(-2.0, 2.0, (1,))
    assert isaac.max_episode_steps == 9
    assert isaac.single_observation_space == gym.spaces.Box(-np.inf, np.inf, (1,))
    assert ENVIRONMENTS["brax"]().max_episode_steps == 8
    assert ENVIRONMENTS["maniskill"]().max_episode_steps == 9


@pytest.mark.parametrize("stand_in", [IsaacLabStandIn, MjlabStandIn])
def test_the_time_limit_of_a_finite_horizon_terminates(stand_in: Any) -> None:
    adapter = IsaacLabAdapter if stand_in is IsaacLabStandIn else mjlab.MjlabAdapter
    env = adapter(stand_in(is_finite_horizon=True), action_limit=1.0)
    env.reset(0)
    steps = [env.step(torch.zeros(ROWS, 1)) for _ in range(9)]
    assert any(step.terminated.any() for step in steps)
    assert not any(step.truncated.any() for step in steps)


def test_float64_observations_become_float32_and_choices_integers() -> None:
    env = VectorEnvAdapter(gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync"))
    obs = env.reset(1)
    same = gym.make("CartPole-v1")
    assert np.array_equal(obs[0], same.reset(seed=1)[0])
    step = env.step(torch.tensor([1, 0, 1]))
    assert np.array_equal(step.obs[0], same.step(1)[0])


class _ResetsAll(SyncVectorEnv):
    """Ignores `reset_mask`."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


class AutoResetWrapper:
    """As the class of that name in Brax."""

    def __init__(self, env: Any) -> None:
        self.env = env


class VmapWrapper(AutoResetWrapper): ...


def _silent() -> Any:
    env = SyncVectorEnv(_counters(), autoreset_mode=AutoresetMode.DISABLED)
    env.metadata["autoreset_mode"] = None
    return env


def _normalised(wrapper: Any = None, **options: Any) -> Any:
    env: Any = gym.make_vec("Pendulum-v1", num_envs=2, **{"vectorization_mode": "sync"} | options)
    return VectorEnvAdapter(env if wrapper is None else wrapper(env))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "gymnasium-statistics": (
        lambda: _normalised(gym.wrappers.vector.NormalizeObservation),
        "normalize_observations: true",
    ),
    "gymnasium-rewards": (lambda: _normalised(gym.wrappers.vector.NormalizeReward), "normalize_rewards: true"),
    "gymnasium-statistics-inside": (
        lambda: _normalised(wrappers=[gym.wrappers.NormalizeObservation]),
        "normalize_observations: true",
    ),
    "gymnasium-statistics-of-workers": (
        lambda: _normalised(vectorization_mode="async", wrappers=[gym.wrappers.NormalizeObservation]),
        "normalize_observations: true",
    ),
    "gymnasium-class": (lambda: VectorEnvAdapter(gym.make_vec("CartPole-v1", num_envs=2)), "NEXT_STEP"),
    "gymnasium-pipes": (lambda: _async(AutoresetMode.NEXT_STEP, shared_memory=False), "SAME_STEP"),
    "gymnasium-mode": (lambda: VectorEnvAdapter(_silent()), "SAME_STEP"),
    "gymnasium-dictionary": (
        lambda: VectorEnvAdapter(gym.make_vec("Blackjack-v1", num_envs=2, vectorization_mode="sync")),
        "FlattenObservation",
    ),
    "maniskill": (lambda: ManiSkillAdapter(ManiSkillStandIn(auto_reset=False)), "auto_reset=True"),
    "maniskill-bare": (lambda: ManiSkillAdapter(object()), "ManiSkillVectorEnv"),
    "isaac-lab": (lambda: IsaacLabAdapter(IsaacLabStandIn(compute_final_obs=False)), "compute_final_obs = True"),
    "isaac-lab-bounds": (lambda: IsaacLabAdapter(IsaacLabStandIn()), "action_limit=1.0"),
    "isaac-lab-group": (lambda: IsaacLabAdapter(IsaacLabStandIn(), group="x", action_limit=1.0), "policy, terms"),
    "isaac-lab-terms": (
        lambda: IsaacLabAdapter(IsaacLabStandIn(), group="terms", action_limit=1.0),
        "concatenate_terms=True",
    ),
    "mjlab": (lambda: mjlab.MjlabAdapter(MjlabStandIn(auto_reset=True)), "auto_reset = False"),
    "brax": (lambda: BraxAdapter(AutoResetWrapper(BraxStandIn()), 2), "get_environment"),
    "brax-inner": (lambda: BraxAdapter(AutoResetWrapper(VmapWrapper(BraxStandIn())), 2), "registry.load"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_environment_that_loses_the_last_observation_is_refused_with_the_remedy(case: str) -> None:
    make, remedy = REFUSED[case]
    with pytest.raises(ConfigError) as error:
        make()
    assert remedy in str(error.value)
    assert "\n" not in str(error.value)


def test_statistics_that_stay_fixed_are_accepted() -> None:
    vector = gym.wrappers.vector.NormalizeObservation(
        gym.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")
    )
    vector.update_running_mean = False
    assert VectorEnvAdapter(vector).reset(0).shape == (2, 3)


def test_older_mjlab_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mjlab.metadata, "version", lambda name: "1.5.2")
    with pytest.raises(ConfigError, match=r"mjlab>=1\.6"):
        mjlab.MjlabAdapter(MjlabStandIn(), action_limit=1.0)


def test_a_partial_reset_that_changes_other_rows_is_an_error() -> None:
    env = VectorEnvAdapter(_ResetsAll(_counters(), autoreset_mode=AutoresetMode.DISABLED))
    env.reset(0)
    with pytest.raises(ConfigError, match="changed rows that it does not mask"):
        env.step(torch.zeros(ROWS, 1))


def test_an_end_without_final_observations_is_an_error() -> None:
    vector = SyncVectorEnv(_counters(), autoreset_mode=AutoresetMode.DISABLED)
    vector.metadata["autoreset_mode"] = AutoresetMode.SAME_STEP
    env = VectorEnvAdapter(vector)
    env.reset(0)
    with pytest.raises(ConfigError, match="final_obs"):
        env.step(torch.zeros(ROWS, 1))
    isaac = IsaacLabAdapter(stand_in := IsaacLabStandIn(), action_limit=1.0)
    isaac.reset(0)
    stand_in.cfg.compute_final_obs = False
    with pytest.raises(ConfigError, match="final_obs"):
        isaac.step(torch.zeros(ROWS, 1))
