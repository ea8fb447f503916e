"""`rl-training dataset from-run`: the replay buffer of a run as a data file, bit for bit what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from rl_training import DQN, IQL, RLPD, SAC, TransitionDataset, cli
from rl_training.console.dataset_tasks import replay_of
from rl_training.runtime.loading import open_checkpoint

TINY: dict[str, Any] = {"hidden_sizes": [8], "batch_size": 8, "eval_episodes": 0, "seed": 5}
ENV = "FromRunWalk-v0"


class Walk(gym.Env[NDArray[np.float32], Any]):
    """A random walk that terminates now and then; every step of every instance is written down."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    steps: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, low: float = -1.0, high: float = 1.0, choices: int = 0) -> None:
        box = gym.spaces.Box(low, high, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(choices, start=3) if choices else box

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.obs, self.number = self.np_random.normal(size=2).astype(np.float32), 0
        return self.obs, {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        before, self.number = self.obs, self.number + 1
        self.obs = self.np_random.normal(size=2).astype(np.float32)
        reward, terminated = float(self.np_random.normal()), bool(self.np_random.random() < 0.1)
        self.steps.append(
            {
                "env": id(self),
                "observations": before,
                "actions": np.array(action),
                "rewards": np.float32(reward),
                "next_observations": self.obs,
                "terminals": terminated,
                "timeouts": self.number == 9 and not terminated,
            }
        )
        return self.obs, reward, terminated, False, {}


if ENV not in gym.registry:
    gym.register(ENV, entry_point=f"{__name__}:Walk", max_episode_steps=9)


def command(*arguments: object) -> Any:
    return CliRunner().invoke(cli.main, ["dataset", *map(str, arguments)])


def happened(width: int, kept: int) -> dict[str, NDArray[Any]]:
    """The last `kept` steps, environment by environment; the last one of each is the end of what is known."""
    known = Walk.steps[-kept:]
    order = [step["env"] for step in Walk.steps[:width]]
    rows = []
    for env in order:
        own = [dict(step) for step in known if step["env"] == env]
        own[-1]["timeouts"] = not own[-1]["terminals"]
        rows += own
    return {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "env"}


@pytest.mark.parametrize("capacity", [500, 37], ids=["whole", "wrapped"])
@pytest.mark.parametrize("width", [1, 2])
def test_the_file_holds_what_happened_to_the_bit(width: int, capacity: int, tmp_path: Path) -> None:
    Walk.steps.clear()
    model = SAC(
        ENV, num_envs=width, buffer_capacity=capacity, learning_starts=90, output_dir=tmp_path / "runs",
        env_kwargs={"low": -0.3, "high": 1.7}, **TINY,
    )  # fmt: skip
    run = model.learn(100, progress_bar=False).run_dir
    kept = min(capacity, 100)
    for suffix in ("npz", "hdf5"):
        check_file(tmp_path / f"data.{suffix}", run, happened(width, kept), kept)


def check_file(file: Path, run: Path, expected: dict[str, NDArray[Any]], kept: int) -> None:
    done = command("from-run", run, "-o", file)
    assert done.exit_code == 0, done.stderr
    with TransitionDataset.load(file).columns() as columns:
        for name in ("observations", "rewards", "next_observations", "terminals", "timeouts"):
            np.testing.assert_array_equal(columns.data[name].read(0, kept), expected[name], name)
    raw = read(file)
    np.testing.assert_array_equal(raw["actions"], expected["actions"])
    assert raw["actions"].dtype == np.float32
    loaded = TransitionDataset.load(file)
    assert loaded.spaces == open_spaces(run)
    assert (loaded.spaces.low, loaded.spaces.high) == ((np.float32(-0.3),) * 2, (np.float32(1.7),) * 2)
    ends = expected["terminals"] | expected["timeouts"]
    np.testing.assert_array_equal(loaded.episode_ends, np.flatnonzero(ends))
    wrong = command("validate", file, "--env", ENV)  # whose own bounds are others
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (3, 1)


def read(file: Path) -> dict[str, NDArray[Any]]:
    if file.suffix == ".npz":
        with np.load(file) as data:
            return dict(data)
    h5py = pytest.importorskip("h5py")
    with h5py.File(file) as data:
        return {name: data[name][()] for name in data}


def open_spaces(run: Path) -> Any:
    return replay_of(open_checkpoint(run)).spaces


def test_the_fingerprint_is_that_of_the_buffer_in_every_format(tmp_path: Path) -> None:
    model = SAC(ENV, num_envs=2, learning_starts=90, output_dir=tmp_path / "runs", **TINY)
    run = model.learn(100, progress_bar=False).run_dir
    prints = {replay_of(open_checkpoint(run)).fingerprint()}
    for name in ("data.npz", "data.hdf5"):
        assert command("from-run", run, "-o", tmp_path / name).exit_code == 0
        prints.add(TransitionDataset.load(tmp_path / name).fingerprint())
    assert len(prints) == 1


def test_discrete_actions(tmp_path: Path) -> None:
    Walk.steps.clear()
    model = DQN(
        ENV, learning_starts=40, train_frequency=4, output_dir=tmp_path / "runs", env_kwargs={"choices": 4}, **TINY
    )
    run = model.learn(50, progress_bar=False).run_dir
    assert command("from-run", run, "-o", tmp_path / "data.npz").exit_code == 0
    np.testing.assert_array_equal(read(tmp_path / "data.npz")["actions"], happened(1, 50)["actions"])
    spaces = TransitionDataset.load(tmp_path / "data.npz").spaces
    assert (spaces.num_actions, spaces.start) == (4, 3)


def test_a_resumed_run_has_one_history(tmp_path: Path) -> None:
    Walk.steps.clear()
    model = SAC(ENV, num_envs=2, learning_starts=20, output_dir=tmp_path / "runs", **TINY)
    model.learn(30, progress_bar=False)
    first = list(Walk.steps)
    Walk.steps.clear()
    result = model.resume(60, progress_bar=False)
    replayed = len(Walk.steps) - 30  # the running episodes, up to where they were
    assert 0 <= replayed < 18
    fresh = Walk.steps[replayed:]
    ids = {fresh[i]["env"]: first[i]["env"] for i in range(2)}
    Walk.steps[:] = [*first, *({**step, "env": ids[step["env"]]} for step in fresh)]
    assert command("from-run", result.run_dir, "-o", tmp_path / "data.npz").exit_code == 0
    data = read(tmp_path / "data.npz")
    for name, column in happened(2, 60).items():
        np.testing.assert_array_equal(data[name], column, name)


def test_iql_learns_from_the_file(tmp_path: Path) -> None:
    run = SAC(ENV, learning_starts=90, output_dir=tmp_path / "runs", **TINY).learn(100, progress_bar=False).run_dir
    file = tmp_path / "data.npz"
    assert command("from-run", run, "-o", file).exit_code == 0
    assert "100 transitions" in command("validate", file, "--env", ENV).stdout
    for env in (ENV, None):  # only the file has the bounds
        result = IQL(env, output_dir=tmp_path / "iql", **TINY).learn(20, dataset=file, progress_bar=False)
        assert (result.metrics["update_count"], result.metrics["dataset_size"]) == (20, 100)


def test_of_prior_data_nothing_is_in_it(tmp_path: Path) -> None:
    Walk.steps.clear()
    model = RLPD(
        ENV, dataset_kind="random", dataset_size=70, learning_starts=10, output_dir=tmp_path / "runs",
        reward_scale=2.0, **TINY,
    )  # fmt: skip
    run = model.learn(40, progress_bar=False).run_dir
    Walk.steps[:] = Walk.steps[70:]
    done = command("from-run", run, "-o", tmp_path / "data.npz")
    assert "rewards are scaled and shifted as the run configured" in done.stdout
    data, expected = read(tmp_path / "data.npz"), happened(1, 40)
    np.testing.assert_array_equal(data["observations"], expected["observations"])
    np.testing.assert_array_equal(data["rewards"], 2 * expected["rewards"])


def test_a_run_without_a_buffer_is_one_line(tmp_path: Path) -> None:
    model = IQL(ENV, dataset_kind="random", dataset_size=50, output_dir=tmp_path / "runs", **TINY)
    run = model.learn(10, progress_bar=False).run_dir
    for place in (run, run / "checkpoints"):
        done = command("from-run", place, "-o", tmp_path / "data.npz")
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert "holds no replay buffer; give the folder of an online run or of RLPD" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_the_newest_valid_checkpoint_is_taken(tmp_path: Path) -> None:
    model = SAC(ENV, learning_starts=10, checkpoint_interval=20, output_dir=tmp_path / "runs", **TINY)
    result = model.learn(60, progress_bar=False)
    (result.checkpoint_path / "replay" / "shard_00000.safetensors").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="skipped a damaged checkpoint"):
        assert len(replay_of(open_checkpoint(result.run_dir))) == 40
    done = command("from-run", result.checkpoint_path, "-o", tmp_path / "data.npz")
    assert done.exit_code == 3
    assert not (tmp_path / "data.npz").exists()


def test_rewards_scaled_as_those_of_data_in_memory_are_noted(tmp_path: Path) -> None:
    rng, zeros = np.random.default_rng(0), np.zeros(30)
    data = TransitionDataset.from_arrays(
        rng.normal(size=(30, 2)), np.zeros((30, 2)), zeros, zeros, zeros, action_low=-1.0, action_high=1.0
    )
    for factor, noted in ((1.0, False), (0.5, True)):
        model = RLPD(ENV, learning_starts=10, output_dir=tmp_path / "runs", **TINY)
        run = model.learn(20, progress_bar=False, dataset=data.with_rewards(factor)).run_dir
        done = command("from-run", run, "-o", tmp_path / f"{factor}.npz")
        assert ("rewards are scaled and shifted as the run configured" in done.stdout) == noted
