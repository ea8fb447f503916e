"""`MujocoBatch` and batched pools against Gymnasium, bit for bit."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("mujoco.batch")

from rl_training.console import doctor
from rl_training.environments import batched, mujoco_batch
from rl_training.environments.batched import BatchedPool
from rl_training.environments.mujoco_batch import MujocoBatch, supports
from rl_training.environments.playing import Evaluator
from rl_training.environments.pool import EnvPool, make_pool
from rl_training.environments.running import Pool, Steps
from rl_training.environments.user_environments import UserEnvironments, resolve_env
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.spaces import SpaceSpec
from tests.reliability.processes import Child

TASKS = [
    (f"{name}-v{version}", {})
    for name in (
        "Ant",
        "HalfCheetah",
        "Hopper",
        "Humanoid",
        "InvertedDoublePendulum",
        "InvertedPendulum",
        "Pusher",
        "Reacher",
        "Swimmer",
        "Walker2d",
    )
    for version in (4, 5)
    if (name, version) != ("Pusher", 4)  # Gymnasium refuses it with MuJoCo 3 and later
]
ALL_POSITIONS = {"exclude_current_positions_from_observation": False}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("Ant-v4", {"use_contact_forces": True, "contact_force_range": [-2, 2], "terminate_when_unhealthy": False}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0, "forward_reward_weight": 3}),
    ("HalfCheetah-v4", {"ctrl_cost_weight": 1, "reset_noise_scale": 0.3, "max_episode_steps": 40}),
    ("HalfCheetah-v5", {"frame_skip": 2, "forward_reward_weight": 0.3, **ALL_POSITIONS}),
    ("Hopper-v4", {"terminate_when_unhealthy": False, "healthy_reward": 2, "max_episode_steps": 30}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_state_range": [-1, 1], "healthy_z_range": [1, 2]}),
    (
        "Humanoid-v5",
        {
            "include_cfrc_ext_in_observation": False,
            "include_cvel_in_observation": False,
            "contact_cost_weight": 0,
            "contact_cost_range": [0.5, 1],
        },
    ),
    ("Humanoid-v5", {"include_cinert_in_observation": False, "contact_cost_weight": 1e-3, **ALL_POSITIONS}),
    ("InvertedDoublePendulum-v5", {"healthy_reward": 3.3, "reset_noise_scale": 0.01}),
    ("InvertedPendulum-v5", {"reset_noise_scale": 0.1, "max_episode_steps": -1}),
    ("Pusher-v5", {"reward_near_weight": 0.7, "reward_control_weight": 0.3}),
    ("Reacher-v5", {"reward_dist_weight": 0.7, "reward_control_weight": 0.3, "max_episode_steps": 7}),
    ("Swimmer-v5", {**ALL_POSITIONS, "frame_skip": 1}),
    ("Walker2d-v5", {"healthy_angle_range": [-0.3, 0.3], "healthy_reward": 0.7}),
]


def names(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *case[1]])


class Gymnasium:
    """The same environments one by one; every answer of a batch is compared with theirs."""

    def __init__(self, env_id: str, kwargs: dict[str, Any], count: int) -> None:
        self.envs = [gym.make(env_id, disable_env_checker=True, **kwargs) for _ in range(count)]
        self.space = self.envs[0].action_space
        self.ends = {"terminated": 0, "truncated": 0}
        self.seeds = iter(range(10_000))

    def actions(self, rng: np.random.Generator) -> NDArray[np.float32]:
        low, high = self.space.low, self.space.high
        return rng.uniform(low, high, (len(self.envs), len(low))).astype(np.float32)

    def reset(self, batch: MujocoBatch, index: int) -> None:
        seed = next(self.seeds)
        expected, _ = self.envs[index].reset(seed=seed)
        same(reset(batch, index, seed), np.asarray(expected, np.float32), f"reset with seed {seed}")
        same(precise(batch)[index], expected, f"reset with seed {seed}")

    def step(self, batch: MujocoBatch, actions: NDArray[np.float32]) -> None:
        got = batch.step(actions)
        exact = precise(batch)
        for i, env in enumerate(self.envs):
            obs, reward, terminated, truncated, _ = env.step(actions[i])
            same(got.obs[i], np.asarray(obs, np.float32), "observation")
            same(exact[i], obs, "observation in double precision")
            same(got.rewards[i], np.float64(reward), "reward")
            assert (bool(got.terminated[i]), bool(got.truncated[i])) == (terminated, truncated)
            if terminated or truncated:
                self.ends["terminated"] += terminated
                self.ends["truncated"] += truncated
                self.reset(batch, i)


def reset(batch: MujocoBatch, index: int, seed: int) -> NDArray[np.float32]:
    return batch.reset(np.array([index], np.int32), [seed])[0]


def precise(batch: MujocoBatch) -> NDArray[np.float64]:
    return batch.task.observation(batch._fields)


def same(got: Any, expected: Any, what: str) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tobytes() == expected.tobytes(), f"{what} differs by {np.abs(got - expected).max()}"


def compare(env_id: str, kwargs: dict[str, Any], steps: int, count: int = 2, threads: int = 2) -> dict[str, int]:
    batch, reference = MujocoBatch(env_id, kwargs, count, threads), Gymnasium(env_id, kwargs, count)
    for i in range(count):
        reference.reset(batch, i)
    rng = np.random.default_rng(1)
    for _ in range(steps):
        reference.step(batch, reference.actions(rng))
    return reference.ends


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize(
    "case",
    [
        # A task that has a variant is stepped with it.
        *(pytest.param(task, marks=pytest.mark.slow if task[0] in dict(VARIANTS) else ()) for task in TASKS),
        *VARIANTS,
    ],
    ids=names,
)
def test_every_bit_is_that_of_gymnasium(case: tuple[str, dict[str, Any]]) -> None:
    env_id, kwargs = case
    ends = compare(env_id, kwargs, steps=150)
    if env_id.startswith(("Reacher", "Pusher")) or 0 < kwargs.get("max_episode_steps", 0) < 100:
        assert ends["truncated"] >= 2
    elif (
        env_id.startswith(("Hopper", "Walker2d", "Humanoid", "Inverted"))
        and "terminate_when_unhealthy" not in kwargs
    ):
        assert ends["terminated"] >= 2


@pytest.mark.parametrize("env_id", ["Ant-v5", "Humanoid-v5", "Reacher-v5"])
def test_sums_do_not_depend_on_the_number_of_simulations(env_id: str) -> None:
    compare(env_id, {}, steps=6, count=33)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("case", TASKS + VARIANTS, ids=names)
def test_a_thousand_steps_of_eight_simulations(case: tuple[str, dict[str, Any]]) -> None:
    env_id, kwargs = case
    ends = compare(env_id, kwargs, steps=1_000, count=8, threads=3)
    if kwargs.get("max_episode_steps") != -1:
        assert sum(ends.values()) >= 8


def played(batch: MujocoBatch, rng: np.random.Generator, steps: int) -> Iterator[bytes]:
    """The bits of some steps, in which a part of the simulations is stepped each time."""
    count = len(batch._steps)
    for _ in range(steps):
        ids = np.flatnonzero(rng.random(count) < 0.7).astype(np.int32)
        actions = rng.uniform(-0.4, 0.4, (len(ids), batch.action_size)).astype(np.float32)
        yield b"".join(bits(batch.step(actions, ids)))


def started(env_id: str, count: int, threads: int) -> MujocoBatch:
    batch = MujocoBatch(env_id, {}, count, threads)
    for i in range(count):
        reset(batch, i, seed=i)
    return batch


@pytest.mark.parametrize("env_id", ["Ant-v5", "HalfCheetah-v5", "Reacher-v5"])
def test_threads_do_not_change_the_results(env_id: str) -> None:
    one, two, three = (list(played(started(env_id, 5, n), np.random.default_rng(0), 30)) for n in (1, 2, 3))
    assert one == two == three
    assert len(set(one)) == 30


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("env_id", ["Ant-v4", "Hopper-v5", "Humanoid-v5", "Reacher-v4"])
def test_a_loaded_state_continues_exactly_with_other_threads(env_id: str) -> None:
    first, rng = started(env_id, 4, threads=1), np.random.default_rng(0)
    list(played(first, rng, 20))
    second = MujocoBatch(env_id, {}, 4, threads=3)
    second.load_state_dict(first.state_dict())
    expected = list(played(first, np.random.default_rng(1), 20))
    assert list(played(second, np.random.default_rng(1), 20)) == expected


def test_a_state_of_another_number_of_simulations_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^state has shape \[3, "):
        started("Hopper-v5", 2, 1).load_state_dict(started("Hopper-v5", 3, 1).state_dict())


def test_time_limits_continue_in_a_loaded_state() -> None:
    kwargs = {"max_episode_steps": 5}
    first, second = MujocoBatch("HalfCheetah-v5", kwargs, 1), MujocoBatch("HalfCheetah-v5", kwargs, 1)
    reset(first, 0, seed=0)
    actions = np.zeros((1, 6), np.float32)
    assert not any(first.step(actions).truncated[0] for _ in range(3))
    second.load_state_dict(first.state_dict())
    assert [bool(second.step(actions).truncated[0]) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("Pendulum-v1", {}),
        ("Pusher-v4", {}),
        ("HumanoidStandup-v5", {}),
        ("HalfCheetah", {}),
        ("NoSuchEnv-v0", {}),
        (None, {}),
        ("HalfCheetah-v5", {"render_mode": "rgb_array"}),
        ("HalfCheetah-v5", {"xml_file": "half_cheetah.xml"}),
        ("HalfCheetah-v5", {"frame_skip": 2.5}),
        ("HalfCheetah-v5", {"frame_skip": True}),
        ("HalfCheetah-v5", {"ctrl_cost_weight": "0.1"}),
        ("HalfCheetah-v5", {"version": 4}),
        ("HalfCheetah-v5", {"healthy_reward": 1.0}),
        ("HalfCheetah-v5", {"max_episode_steps": 0}),
        ("HalfCheetah-v4", {"frame_skip": 5}),
        ("Hopper-v5", {"terminate_when_unhealthy": 1}),
        ("Hopper-v5", {"healthy_z_range": [0.7]}),
        ("Ant-v4", {"include_cfrc_ext_in_observation": False}),
        ("Ant-v5", {"use_contact_forces": True}),
        ("Ant-v5", {"main_body": 2}),
        ("InvertedPendulum-v4", {"reset_noise_scale": 0.1}),
    ],
)
def test_other_environments_and_arguments_are_not_supported(env_id: str | None, kwargs: dict[str, Any]) -> None:
    assert not supports(env_id, kwargs)
    with pytest.raises(ValueError, match=r"is not supported$"):
        MujocoBatch(env_id or "", kwargs, 1)


def test_a_registration_by_the_user_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gym.spec("HalfCheetah-v5")
    own = gym.envs.registration.EnvSpec("Own-v0", spec.entry_point, max_episode_steps=30, kwargs={"frame_skip": 3})
    monkeypatch.setitem(gym.registry, "Own-v0", own)
    assert compare("Own-v0", {"reset_noise_scale": 0.2}, steps=70)["truncated"] == 4
    other = gym.envs.registration.EnvSpec("HalfCheetah-v5", "my_module:HalfCheetahEnv", max_episode_steps=1_000)
    monkeypatch.setitem(gym.registry, "HalfCheetah-v5", other)
    assert not supports("HalfCheetah-v5", {})


def test_another_version_of_gymnasium_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym, "__version__", "1.5.0")
    assert not supports("HalfCheetah-v5", {})


def pools(**fields: Any) -> tuple[Pool, Pool]:
    values = {"algo": "sac", "env_id": "Hopper-v5", "total_timesteps": 1, "num_envs": 4} | fields
    one, other = (make_pool(TrainConfig(**values, environments=place)) for place in ("local", "batched"))
    assert (type(one), type(other)) == (EnvPool, BatchedPool)
    return one, other


def bits(steps: Steps) -> list[bytes]:
    return [part.tobytes() for part in (steps.obs, steps.rewards, steps.terminated, steps.truncated)]


def test_a_pool_steps_any_of_its_environments() -> None:
    """In any number, with resets at any time, and with actions that are sent before they are received."""
    local, shared = pools()
    rng = np.random.default_rng(0)
    for i in range(4):
        assert local.reset(i).tobytes() == shared.reset(i).tobytes()
    for _ in range(60):
        chosen = sorted(rng.permutation(4)[: rng.integers(1, 5)].tolist())
        actions = rng.uniform(-1, 1, (len(chosen), 3)).astype(np.float32)
        assert bits(local.step(actions, chosen)) == bits(shared.step(actions, chosen))
        index = int(rng.integers(4))
        assert local.reset(index).tobytes() == shared.reset(index).tobytes()


def test_a_reset_drops_an_action_that_was_sent() -> None:
    local, shared = pools(num_envs=2)
    for pool in (local, shared):
        for i in range(2):
            pool.reset(i)
        pool.send(np.ones((2, 3), np.float32))
        pool.reset(0)
    actions = np.zeros((1, 3), np.float32)
    assert bits(local.step(actions, [0])) == bits(shared.step(actions, [0]))


def test_answers_and_actions_share_no_memory_with_the_batch() -> None:
    _, pool = pools(num_envs=2)
    first = [pool.reset(i) for i in range(2)]
    actions = np.ones((2, 3), np.float32)
    pool.send(actions)
    actions[:] = np.nan
    answers = pool.receive()
    kept = [array.copy() for array in (*first, answers.obs)]
    pool.step(np.zeros((2, 3), np.float32))
    pool.reset(0)
    for array, copy in zip((*first, answers.obs), kept):
        assert np.isfinite(array).all()
        assert array.tobytes() == copy.tobytes()


def kinds(given: UserEnvironments | None = None, **fields: Any) -> type[Any]:
    values = {"algo": "sac", "env_id": "Hopper-v5", "total_timesteps": 1, "num_envs": 2} | fields
    pool = make_pool(TrainConfig(**values), given=given)
    pool.close()
    return type(pool)


def test_auto_is_batched_for_supported_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TrainConfig(algo="sac", env_id="Hopper-v5", total_timesteps=1).environments == "auto"
    assert kinds() is BatchedPool
    assert kinds(num_envs=1) is BatchedPool
    assert kinds(environments="local") is EnvPool
    assert kinds(env_id="Pendulum-v1") is EnvPool
    assert kinds(env_kwargs={"width": 100}) is EnvPool
    assert kinds(wrappers=["ClipAction"]) is EnvPool
    assert kinds(UserEnvironments(resolve_env(gym.make("Hopper-v5")).maker)) is EnvPool
    monkeypatch.setattr(mujoco_batch, "batch_class", lambda: None)
    assert kinds() is EnvPool


def test_evaluation_is_batched_too() -> None:
    spaces = SpaceSpec(11, (-1.0,) * 3, (1.0,) * 3)
    for env_id, kind in (("Hopper-v5", BatchedPool), ("Pendulum-v1", EnvPool)):
        evaluator = Evaluator(TrainConfig(algo="sac", env_id=env_id, total_timesteps=1), spaces)
        assert isinstance(evaluator.open(3), kind)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"env_id": "Pendulum-v1"},
            "Pendulum-v1 is not one of Gymnasium's MuJoCo environments that can be batched",
        ),
        ({"env_kwargs": {"width": 9}}, "Hopper-v5 with env_kwargs {'width': 9} is not one of"),
        (
            {"wrappers": ["ClipAction"]},
            "wrappers are applied to one environment at a time; set ",
        ),
    ],
)
def test_what_cannot_be_batched_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^environments: batched: ") as caught:
        kinds(environments="batched", **fields)
    assert message in str(caught.value)


def test_a_missing_batch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mujoco.batch" in {finding.subject for finding in doctor.mujoco() if finding.state == "ok"}
    for module in (mujoco_batch, batched, doctor):
        monkeypatch.setattr(module, "batch_class", lambda: None)
    [note] = [finding for finding in doctor.mujoco() if finding.state == "note"]
    assert note.subject == "mujoco.batch"
    assert "pip install 'mujoco>=3.17'" in note.text
    with pytest.raises(ConfigError, match=r"^environments: batched: this installation has no mujoco.batch"):
        kinds(environments="batched")


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_closing_a_pool_ends_its_threads() -> None:
    gc.collect()
    before = threads()
    _, pool = pools(env_threads=3)
    pool.reset(0)
    assert threads() == before + 2
    pool.close()
    pool.close()
    assert threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_wait_for_threads_it_does_not_have(tmp_path: Path) -> None:
    batches = [started("Hopper-v5", 4, threads=2)]

    def free() -> None:
        batches.clear()
        gc.collect()
        started("Hopper-v5", 4, threads=2).close()

    assert Child(free, tmp_path / "output.txt").wait(60) == 0
    batches[0].step(np.zeros((4, 3), np.float32))


@pytest.mark.parametrize(("setting", "expected"), [("1", 1), ("", 7), ("0", 7), ("many", 7)])
def test_threads_by_default(setting: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    monkeypatch.setattr(mujoco_batch, "available_cores", lambda: 7)
    assert MujocoBatch("Swimmer-v5", {}, 20)._batch.nthread == expected
    assert MujocoBatch("Swimmer-v5", {}, 20, threads=3)._batch.nthread == 3
    assert MujocoBatch("Swimmer-v5", {}, 2, threads=3)._batch.nthread == 2
