"""OGBench: tasks by the names of their data, play data with labels, and what is said if the package is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import convert_dataset, read_columns
from rl_training.data.loading import DatasetConfig
from rl_training.environments.making import make_env, spaces_of, time_limit
from rl_training.errors import ConfigError, DatasetError, MissingDependencyError
from rl_training.experiment.config import TrainConfig
from rl_training.ogbench import registered_id
from tests.dataset_files import episodes, save_npz
from tests.runs import tiny, train

TASKS = {
    "ogbench/cube-single-play-singletask-task2-v0": 200,
    "ogbench/scene-play-singletask-task2-v0": 750,
    "ogbench/puzzle-3x3-play-singletask-task1-v0": 500,
}
STEPS, EPISODES = 41, 3


def of(env_id: str) -> TrainConfig:
    return TrainConfig(algo="bc", env_id=env_id, total_timesteps=1)


def test_other_ids_are_their_own() -> None:
    assert registered_id("Hopper-v5") == "Hopper-v5"


def test_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ogbench", None)
    file = save_npz(tmp_path / "data.npz", episodes())
    env_id = "ogbench/cube-single-play-singletask-task2-v0"
    for needs in (lambda: make_env(of(env_id)), lambda: time_limit(of(env_id)), lambda: read_columns(file, env_id)):
        with pytest.raises(MissingDependencyError, match=r"^OGBench needs .*pip install ogbench$"):
            needs()


def test_a_task_is_a_kind_of_file() -> None:
    kind = "ogbench/cube-single-play-singletask-task2-v0"
    with pytest.raises(ConfigError, match="needs dataset_path"):
        DatasetConfig.parse({"dataset_kind": kind})
    chosen = DatasetConfig.parse({"dataset_kind": kind, "dataset_path": "a.npz"})
    assert chosen.own_reader is None
    chosen.import_own(allow_import=False)
    other = DatasetConfig.parse({"dataset_kind": kind.replace("task2", "task1"), "dataset_path": "a.npz"})
    assert chosen.identity() != other.identity()  # a packed file of one task is not used for another


@pytest.fixture(scope="module")
def ogbench() -> Any:
    return pytest.importorskip("ogbench")


@pytest.fixture(scope="module")
def sets(ogbench: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small set for each task."""
    from benchmarks import ogbench_data

    folder = tmp_path_factory.mktemp("ogbench")
    for env_id in TASKS:
        name = data_name(env_id)
        arrays = ogbench_data.generate(name, episodes=EPISODES, steps=STEPS, seed=0, processes=1)
        ogbench_data.write(folder / f"{name}.npz", arrays)
    return folder


def data_name(env_id: str) -> str:
    return env_id.removeprefix("ogbench/").partition("-singletask")[0] + "-v0"


@pytest.mark.usefixtures("ogbench")
@pytest.mark.parametrize("env_id", TASKS)
def test_a_task_has_its_limit_and_reports_success(env_id: str) -> None:
    assert time_limit(of(env_id)) == TASKS[env_id]
    assert time_limit(of(env_id.replace("-play", ""))) == TASKS[env_id]  # the registered name works too
    env = make_env(of(env_id))
    first, _ = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    assert np.array_equal(first, again)
    assert env.step(env.action_space.sample())[4]["success"] in (False, True)
    env.close()
    with pytest.raises(ConfigError, match="unknown environment 'ogbench/cube-single-play-singletask-task9-v0'"):
        make_env(of("ogbench/cube-single-play-singletask-task9-v0"))


@pytest.mark.parametrize("env_id", TASKS)
def test_labels_are_those_of_ogbench(ogbench: Any, sets: Path, env_id: str) -> None:
    path = sets / f"{data_name(env_id)}.npz"
    data = TransitionDataset.load(path, kind=env_id)
    assert data.episode_ends.tolist() == [(STEPS - 1) * k - 1 for k in range(1, EPISODES + 1)]
    assert data.spaces.obs_dim == spaces_of(of(env_id)).obs_dim
    theirs = ogbench.load_dataset(str(path), add_info=True)
    env = gym.make(registered_id(env_id))
    ogbench.utils.relabel_dataset(registered_id(env_id), env, theirs)
    batch = data.columns_at(np.arange(len(data)))
    for ours, key in (
        (batch.obs, "observations"),
        (batch.next_obs, "next_observations"),
        (batch.actions, "actions"),
    ):
        assert np.array_equal(ours.numpy(), theirs[key])
    assert np.array_equal(batch.rewards.numpy(), theirs["rewards"])
    assert np.array_equal(batch.dones.numpy(), 1 - theirs["masks"])
    assert np.array_equal(np.flatnonzero(theirs["terminals"]), data.episode_ends)


@pytest.mark.parametrize("env_id", TASKS)
def test_labels_follow_from_the_state(ogbench: Any, sets: Path, env_id: str, tmp_path: Path) -> None:
    """A row in which the task is solved by hand: reward 0, a termination, and a valid successor."""
    with np.load(sets / f"{data_name(env_id)}.npz") as stored:
        arrays = dict(stored)
    env: Any = make_env(of(env_id))
    env.reset(seed=0)
    inner, row = env.unwrapped, STEPS + 5  # the sixth row of the second trajectory
    if hasattr(inner, "_target_button_states"):
        arrays["button_states"][row] = inner._target_button_states
    if hasattr(inner, "_num_cubes"):
        arrays["qpos"][row, 14:17] = inner._data.mocap_pos[0]
    if hasattr(inner, "_target_drawer_pos"):
        arrays["qpos"][row, -2:] = inner._target_drawer_pos, inner._target_window_pos
    np.savez(tmp_path / "solved.npz", **arrays)
    data = TransitionDataset.load(tmp_path / "solved.npz", kind=env_id)
    solved = row - 1  # the first trajectory has one transition less than rows
    assert (data.rewards[solved], data.dones[solved]) == (0, 1)
    assert solved not in data.episode_ends
    batch = data.columns_at(np.array([solved, solved + 1]))
    assert np.array_equal(batch.next_obs[0], batch.obs[1])
    assert data.rewards.min() < 0
    convert_dataset(tmp_path / "solved.npz", "npz", tmp_path / "plain.npz", source_kind=env_id)
    assert TransitionDataset.load(tmp_path / "plain.npz").fingerprint() == data.fingerprint()


def test_data_depend_on_the_seed_alone(sets: Path) -> None:
    from benchmarks import ogbench_data

    name = "cube-single-play-v0"
    with np.load(sets / f"{name}.npz") as stored:
        known = ogbench_data.sha256(dict(stored))
    settings = {"episodes": EPISODES, "steps": STEPS}
    assert ogbench_data.sha256(ogbench_data.generate(name, seed=0, processes=2, **settings)) == known
    assert ogbench_data.sha256(ogbench_data.generate(name, seed=1, processes=1, **settings)) != known


def test_wrong_files_and_tasks_are_refused(sets: Path, tmp_path: Path) -> None:
    file = sets / "cube-single-play-v0.npz"
    with pytest.raises(ConfigError, match="'ogbench/cube-single-play-v0' is not a single task of OGBench"):
        read_columns(file, "ogbench/cube-single-play-v0")
    with pytest.raises(DatasetError, match="cannot be labelled as ogbench/scene-play-singletask-task2-v0"):
        read_columns(file, "ogbench/scene-play-singletask-task2-v0")
    with pytest.raises(DatasetError, match="cannot be labelled"):
        read_columns(save_npz(tmp_path / "a.npz", episodes()), next(iter(TASKS)))


@pytest.mark.parametrize("algo", ["iql", "rebrac"])
def test_a_run_reports_its_success_rate(sets: Path, tmp_path: Path, algo: str) -> None:
    env_id = next(iter(TASKS))
    chosen = {"dataset_kind": env_id, "dataset_path": str(sets / f"{data_name(env_id)}.npz")}
    result = train(tiny(algo, tmp_path, env_id=env_id, eval_episodes=1, eval_max_steps=5, kwargs=chosen))
    assert result.metrics["eval_success_rate"] in (0.0, 1.0)
