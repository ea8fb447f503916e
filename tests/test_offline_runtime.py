"""Learning from data: sources of spaces and data, with and without an environment."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training import TransitionDataset
from rl_training.data.loading import DatasetConfig
from rl_training.errors import ConfigError, DatasetError
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.runs import amend_record
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session, TrainResult
from rl_training.runtime.offline import _build_offline_dataset, _infer_env_spaces, collect_random
from rl_training.runtime.workflows import predict_checkpoint
from rl_training.spaces import SpaceSpec
from tests.dataset_files import HIGH, LOW, episodes, save_npz
from tests.runs import (
    OFFLINE,
    KillAt,
    differences,
    fingerprint,
    interrupted,
    mostly_slow,
    resume,
    run_record,
    tiny,
    train,
)
from tests.worlds import SCRIPTED

IDENTITY_SPACES = SpaceSpec(1, (-2.0,), (1.5,))


class Raise(Callback):
    def on_step(self, session: Session) -> None:
        raise KeyboardInterrupt


def identity_data(rows: int = 200, seed: int = 0) -> TransitionDataset:
    """Random answers in the identity world: one step per episode, reward -(a - x)^2."""
    rng = np.random.default_rng(seed)
    x, a = rng.uniform(-1, 1, (rows, 1)), rng.uniform(-2, 1.5, (rows, 1))
    return TransitionDataset.from_arrays(
        observations=x.astype(np.float32),
        actions=a.astype(np.float32),
        rewards=-((a - x)[:, 0] ** 2),
        terminals=np.ones(rows, bool),
        next_observations=x.astype(np.float32),
        action_low=-2.0,
        action_high=1.5,
    )


def test_spaces_come_from_the_environment_if_there_is_one(tmp_path: Path) -> None:
    config = tiny("bc", tmp_path)
    assert _infer_env_spaces(config) == SpaceSpec(3, (-2.0,), (2.0,))
    assert _infer_env_spaces(config.replace(env_id=None)) is None
    with pytest.raises(ConfigError, match="discrete actions"):
        _infer_env_spaces(config.replace(env_id="CartPole-v1"))


def test_random_data_are_episodes_of_the_environment(tmp_path: Path) -> None:
    config = tiny("bc", tmp_path, env_id=SCRIPTED)
    spaces = _infer_env_spaces(config)
    assert spaces is not None
    data = collect_random(config, spaces, 50, seed=1)
    view = data.layout.unpack(torch.from_numpy(data.rows))
    times = view.obs[:, 1]
    assert len(data) == 50
    assert torch.equal(view.next_obs[:, 1], times + 1)
    for row in range(49):
        if row in data.episode_ends:
            assert times[row + 1] == 0
        else:
            assert torch.equal(view.obs[row + 1], view.next_obs[row])
    # The scripted environment always terminates; only the truncation at the end is not a termination.
    assert all(view.dones[end] == 1 for end in data.episode_ends[:-1])
    given = view.next_obs[:, 2] - view.obs[:, 2]
    torch.testing.assert_close(view.actions[:, 0], (given - 1.0) / 2.0, atol=1e-5, rtol=0)


def test_random_data_depend_on_their_seed_alone(tmp_path: Path) -> None:
    config, section = tiny("bc", tmp_path), DatasetConfig(dataset_kind="random", dataset_size=30)
    spaces = _infer_env_spaces(config)
    first = _build_offline_dataset(config, section, spaces)
    again = _build_offline_dataset(config.replace(seed=99, num_envs=4), section, spaces)
    other = _build_offline_dataset(config, section.model_copy(update={"dataset_seed": 1}), spaces)
    assert np.array_equal(first.rows, again.rows)
    assert not np.array_equal(first.rows, other.rows)


def test_no_environment_and_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs an environment to collect from"):
        train(tiny("bc", tmp_path / "runs", env_id=None))
    assert not (tmp_path / "runs").exists()


def test_data_for_another_environment_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"differ from Pendulum-v1's \(the data have observations of 1 number .*v1 has .* 3 numbers",
    ):
        train(tiny("bc", tmp_path / "runs"), dataset=identity_data())
    assert not (tmp_path / "runs").exists()


def test_settings_that_contradict_the_actions_of_data_in_memory_are_refused(tmp_path: Path) -> None:
    """As for a file: otherwise the policy would leave the bounds that its settings have."""

    def learned(low: float, high: float) -> TrainResult:
        kwargs = {"action_low": [low], "action_high": [high]}
        return train(
            tiny("bc", tmp_path / "runs", env_id=None, total_timesteps=5, kwargs=kwargs), dataset=identity_data()
        )

    with pytest.raises(DatasetError, match=r"its actions are \[-2..1.5\], but .* has \[-1..1\]"):
        learned(-1.0, 1.0)
    assert not (tmp_path / "runs").exists()
    assert learned(-2.0, 1.5).metrics["dataset_size"] == 200


@pytest.mark.parametrize("algo", mostly_slow(OFFLINE, "bc", "iql", "td3_bc"))
def test_no_environment_at_all(algo: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = train(tiny(algo, tmp_path, env_id=None, total_timesteps=20), dataset=identity_data())
    captured = capfd.readouterr()
    assert "evaluation is skipped" in captured.out + captured.err
    assert not any(name.startswith("eval") for name in result.metrics)
    assert result.metrics["dataset_size"] == 200
    actions = predict_checkpoint(result.checkpoint_path, np.linspace(-50, 50, 9)[:, None])
    assert np.all((actions >= -2.0) & (actions <= 1.5))


def test_arrays_in_memory_must_be_given_again_to_resume(tmp_path: Path) -> None:
    config = tiny("awac", tmp_path, env_id=None)
    data = identity_data()
    straight = train(config, [KillAt()], dataset=data)
    run = interrupted(config, 30, dataset=data)
    with pytest.raises(ConfigError, match="arrays in memory; resume it with"):
        resume(run)
    assert differences(straight, resume(run, [KillAt()], dataset=data)) == []


def test_a_run_on_named_arrays_killed_before_its_first_checkpoint_asks_for_them(tmp_path: Path) -> None:
    data = replace(identity_data(), name="mylog")
    config = tiny("iql", tmp_path, env_id=None, eval_episodes=0, checkpoint_interval=10**6)
    with pytest.raises(KeyboardInterrupt):
        train(config, [Raise()], dataset=data)
    home = next(tmp_path.iterdir())
    shutil.rmtree(home / "checkpoints")
    with pytest.raises(ConfigError, match="arrays in memory; resume it with"):
        resume(home, warn=lambda text: None)
    assert resume(home, dataset=data, warn=lambda text: None).metrics["dataset_size"] == 200


def test_other_data_than_before_are_noticed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    constant = {"learning_rate_schedule": "constant"}  # which another total does not stretch
    config = tiny("iql", tmp_path, kwargs=constant, env_id=None, eval_episodes=0)
    result = train(config, dataset=identity_data())
    same = resume(result.run_dir, changes={"total_timesteps": 70}, dataset=identity_data())
    assert run_record(same.run_dir)["exact_resume"] is True
    other = resume(result.run_dir, changes={"total_timesteps": 80}, dataset=identity_data(seed=1))
    assert run_record(other.run_dir)["exact_resume"] is False
    assert "the data have changed: 200 rows" in capfd.readouterr().err


def test_observations_are_normalised_by_the_model_with_the_data_s_moments(tmp_path: Path) -> None:
    data = identity_data()
    result = train(
        tiny("awac", tmp_path, env_id=None, kwargs={"normalize_observations": True}, total_timesteps=3),
        dataset=data,
    )
    networks = read_checkpoint(result.checkpoint_path).tensors["networks"]
    obs = data.rows[:, 0]
    assert networks["model.normalizer.shift"].item() == pytest.approx(obs.mean(), abs=1e-6)
    assert networks["model.normalizer.scale"].item() == pytest.approx(1 / (obs.std() + 1e-3), rel=1e-5)


def test_td3_bc_normalises_by_default(tmp_path: Path) -> None:
    for kwargs, normalises in (({}, True), ({"normalize_observations": False}, False)):
        config = tiny("td3_bc", tmp_path, kwargs=kwargs, total_timesteps=2, eval_episodes=0)
        networks = read_checkpoint(train(config).checkpoint_path).tensors["networks"]
        assert ("model.normalizer.shift" in networks) == normalises


def test_options_of_the_data_apply_to_given_arrays_too(tmp_path: Path) -> None:
    config, data = tiny("bc", tmp_path), identity_data()
    section = DatasetConfig(reward_scale=2.0, reward_shift=1.0, top_fraction=0.5)
    built = _build_offline_dataset(config, section, IDENTITY_SPACES, data)
    best = np.sort(data.rewards)[100:]
    assert np.allclose(np.sort(built.rewards), 2 * best + 1)


def test_a_mixture_of_data_sets_trains(tmp_path: Path) -> None:
    parts: list[dict[str, Any]] = [
        {"dataset_kind": "random", "dataset_size": 40, "weight": 3.0},
        {"dataset_kind": "random", "dataset_size": 60, "dataset_seed": 5},
    ]
    config = tiny("iql", tmp_path, kwargs={"datasets": parts}, total_timesteps=20)
    config = config.replace(algo_kwargs={k: v for k, v in config.algo_kwargs.items() if k != "dataset_size"})
    assert train(config).metrics["dataset_size"] == 100


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"offline_batch_ratio": 1.5},
            "offline_batch_ratio must be a number from 0 to 1 or 'proportional', got 1.5",
        ),
        (
            {"offline_batch_ratio": -0.1},
            "offline_batch_ratio must be a number from 0 to 1 or 'proportional', got -0.1",
        ),
        ({"offline_batch_ratio": 0.01}, "leaves one side empty"),
        ({"offline_batch_ratio": 0.99}, "leaves one side empty"),
    ],
)
def test_rlpd_refuses_a_share_it_cannot_draw(kwargs: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tiny("rlpd", tmp_path / "runs", kwargs=kwargs))
    assert not (tmp_path / "runs").exists()


def test_rlpd_refuses_to_go_without_an_environment_or_with_another_s_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rlpd learns online and needs an environment"):
        train(tiny("rlpd", tmp_path / "runs", env_id=None), dataset=identity_data())
    with pytest.raises(ConfigError, match="spaces differ"):
        train(tiny("rlpd", tmp_path / "runs"), dataset=identity_data())
    assert not (tmp_path / "runs").exists()


def test_rlpd_takes_arrays(tmp_path: Path) -> None:
    result = train(tiny("rlpd", tmp_path, env_id="Identity-v0"), dataset=identity_data())
    assert result.metrics["dataset_size"] == 200
    assert run_record(result.run_dir)["status"] == "finished"


# Data files of a run that is resumed from another folder.


@pytest.fixture
def relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files of data, which is the working directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name, seed in (("a", 0), ("b", 1)):
        save_npz(folder / f"{name}.npz", episodes(seed=seed), action_low=LOW, action_high=HIGH)
    monkeypatch.chdir(folder)
    return folder


ONE: dict[str, Any] = {"dataset_kind": "npz", "dataset_path": "a.npz"}
MIXED: dict[str, Any] = {"dataset_kind": None, "datasets": [ONE, {**ONE, "dataset_path": "b.npz", "weight": 2.0}]}


def begun(folder: Path, kwargs: dict[str, Any], **options: Any) -> Path:
    config = tiny("bc", folder / "runs", env_id=None, kwargs=kwargs, total_timesteps=4, checkpoint_interval=2)
    return interrupted(config, 2, **options)


@pytest.mark.parametrize("kwargs", [ONE, MIXED], ids=["one", "mixture"])
def test_relative_paths_are_looked_up_where_the_run_began(
    relative: Path, kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [begun(relative, kwargs) for _ in range(2)]
    straight = resume(runs[0])
    monkeypatch.chdir(tmp_path)
    moved = resume(runs[1])
    assert run_record(moved.run_dir)["exact_resume"]
    ours, theirs = (fingerprint(run.checkpoint_path) for run in (straight, moved))
    assert [name for name in ours if name.startswith("networks") and ours[name] != theirs[name]] == []
    monkeypatch.chdir(relative)
    assert resume(moved.run_dir, overrides=["total_timesteps=6"]).metrics["update_count"] == 6


def test_a_run_resumed_from_the_same_folder_keeps_its_paths(relative: Path) -> None:
    result = resume(begun(relative, ONE))
    assert read_checkpoint(result.checkpoint_path).records["config"]["algo_kwargs"]["dataset_path"] == "a.npz"
    assert read_checkpoint(result.checkpoint_path).records["dataset"]["folder"] == str(relative)


def test_a_run_without_a_checkpoint_finds_its_data_too(
    relative: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(relative, ONE)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    amend_record(run, saved=None, status="interrupted")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="it starts again"):
        assert resume(run).metrics["update_count"] == 4


def test_a_project_that_was_moved_finds_its_data_here(
    relative: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(relative, ONE)
    relative.rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(Path("runs") / run.name).metrics["update_count"] == 4


@pytest.mark.parametrize(("kwargs", "setting"), [(ONE, "dataset_path"), (MIXED, "datasets")])
def test_a_file_that_was_moved_is_asked_for(
    relative: Path, kwargs: dict[str, Any], setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(relative, kwargs)
    (relative / "a.npz").rename(tmp_path / "new.npz")
    message = rf"^a\.npz: does not exist; if it was moved, add --set {setting}=…$"
    with pytest.raises(DatasetError, match=message):
        resume(run)
    monkeypatch.chdir(tmp_path)
    message = f"^a\\.npz: does not exist here or in {relative}, where the run began; if it was moved, add --set"
    with pytest.raises(DatasetError, match=message):
        resume(run)
    parts = [{**one, "dataset_path": path} for one, path in zip(MIXED["datasets"], ("new.npz", "project/b.npz"))]
    value = "new.npz" if setting == "dataset_path" else json.dumps(parts)
    assert run_record(resume(run, overrides=[f"{setting}={value}"]).run_dir)["exact_resume"]


def test_a_new_place_may_be_below_the_home_folder(
    relative: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(relative, ONE)
    (relative / "a.npz").rename(tmp_path / "new.npz")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_record(resume(run, overrides=["dataset_path=~/new.npz"]).run_dir)["exact_resume"]


def test_a_file_of_the_same_name_does_not_take_the_place_of_the_run_s(
    relative: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(relative, ONE)
    shutil.copy(relative / "b.npz", tmp_path / "a.npz")
    monkeypatch.chdir(tmp_path)
    assert run_record(resume(run).run_dir)["exact_resume"]


@pytest.mark.parametrize("kwargs", [ONE, MIXED], ids=["one", "mixture"])
def test_a_file_that_is_named_again_is_that_of_the_current_folder(
    relative: Path, kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(relative, kwargs)
    shutil.copy(relative / "b.npz", tmp_path / "a.npz")
    monkeypatch.chdir(tmp_path)
    setting = "datasets" if kwargs["dataset_kind"] is None else "dataset_path"
    resumed = resume(run, overrides=[f"algo_kwargs.{setting}={json.dumps(kwargs[setting])}"])
    record = run_record(resumed.run_dir)
    assert record["inexact"][0].startswith("step 2: the data have changed: ")
    assert record["dataset"]["name"].startswith("a.npz")
    model = rl_training.load(begun(relative / "..", ONE))  # on a.npz of the current folder
    monkeypatch.chdir(relative)
    other = model.learn(2, dataset="a.npz", progress_bar=False).run_dir
    assert run_record(other)["inexact"][0].startswith("step 2: the data have changed: ")
