"""`normalize_observations` online: statistics of what a run has acted on, in policy, checkpoints and resume."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rl_training import SAC, load
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experience.collector import Collector
from rl_training.experience.moments import RunningMoments
from rl_training.experiment.checkpointing import (
    Checkpoint,
    RowsToSave,
    find_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from rl_training.models.policies import Normalizer
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session, TrainResult
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint
from tests.runs import ONLINE, differences, interrupted, mostly_slow, replay_rows, resume, tiny, train
from tests.test_collector import collector_of, contents, episode, scripted

ON = {"normalize_observations": True}


def moments_in(checkpoint: Checkpoint) -> dict[str, Any]:
    found: dict[str, Any] = checkpoint.records["collector"]["moments"]
    return found


def networks_of(result: TrainResult) -> dict[str, torch.Tensor]:
    return read_checkpoint(result.checkpoint_path).tensors["networks"]


# The statistics.


@pytest.mark.parametrize("sizes", [[1] * 400, [7] * 57 + [1], [400]])
def test_they_are_those_of_all_observations_however_many_come_at_once(sizes: list[int]) -> None:
    obs = np.random.default_rng(0).normal([0.0, 3e6, -1e-3], [1.0, 0.5, 1e-4], (400, 3)).astype(np.float32)
    moments, start = RunningMoments(3), 0
    for size in sizes:
        moments.add(obs[start : start + size])
        start += size
    assert moments.count == start == 400
    np.testing.assert_allclose(moments.mean, obs.mean(0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(moments.std, obs.std(0, dtype=np.float64), rtol=1e-9)


def test_a_constant_has_zero_std_and_large_numbers_do_not_overflow() -> None:
    largest = np.finfo(np.float32).max
    moments = RunningMoments(2)
    for i in range(100):
        moments.add(np.array([[0.1, largest], [0.1, -largest if i % 2 else largest]], np.float32))
    assert moments.mean[0] == np.float32(0.1)
    assert moments.std[0] == 0.0
    assert np.isfinite(moments.std).all()
    normalizer = Normalizer(2, enabled=True)
    normalizer.clip()
    normalizer.set_moments(*(torch.from_numpy(m.astype(np.float32)) for m in (moments.mean, moments.std)))
    seen = normalizer(torch.tensor([[0.1, largest], [0.1, -largest], [5.0, 0.0], [-5.0, 0.0]]))
    assert torch.isfinite(seen).all()
    assert seen[:, 0].tolist() == [0.0, 0.0, 10.0, -10.0]  # what never changed and then does is clipped


def test_a_record_is_restored_exactly_and_an_invalid_one_is_refused() -> None:
    moments, other = RunningMoments(3), RunningMoments(3)
    moments.add(np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32))
    record = json.loads(json.dumps(moments.record()))
    other.load(record)
    assert (other.count, other.mean.tobytes()) == (7, moments.mean.tobytes())
    assert other.squares.tobytes() == moments.squares.tobytes()
    for change in (
        {"mean": [0.0, 1.0]},
        {"squares": [1.0, 1.0, -1.0]},
        {"mean": [0.0, 1.0, float("nan")]},
        {"count": 1.5},
        {"count": -1},
    ):
        with pytest.raises(ValueError, match="moments"):
            other.load(record | change)
    assert other.count == 7


# Collecting.


def test_what_is_acted_on_counts_once_and_the_last_of_an_episode_does_not(tmp_path: Path) -> None:
    script = {
        (0, 0): episode(10, 2, "terminated"),
        (0, 1): episode(20, 3, "truncated"),
        (0, 2): episode(30, 9, "terminated"),
    }
    collector = collector_of(scripted("sac", tmp_path, script))
    collector.moments = RunningMoments(3)
    collector.learner.model.normalizer = normalizer = Normalizer(3, enabled=True)
    places = normalizer.shift.data_ptr(), normalizer.scale.data_ptr()
    collector.start()
    versions = [collector.learner.version]
    for _ in range(6):
        collector.step()
        versions.append(collector.learner.version)
    assert versions == sorted({*versions})  # invalidates copies of the policy
    rows = contents(collector)
    acted_on = np.concatenate([rows.obs.numpy(), collector.obs])
    assert acted_on[:, :2].tolist() == [[10, 0], [10, 1], [20, 0], [20, 1], [20, 2], [30, 0], [30, 1]]  # raw
    assert collector.moments.count == 7
    np.testing.assert_allclose(collector.moments.mean, acted_on.mean(0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(collector.moments.std, acted_on.std(0, dtype=np.float64), rtol=1e-12)
    assert places == (normalizer.shift.data_ptr(), normalizer.scale.data_ptr())
    expected = (acted_on - acted_on.mean(0)) / (acted_on.std(0) + 1e-3)
    np.testing.assert_allclose(normalizer(torch.from_numpy(acted_on)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_an_episode_that_cannot_be_replayed_counts_the_observation_it_starts_anew_with(tmp_path: Path) -> None:
    script = {(0, 0): episode(10, 5, "terminated"), (0, 1): episode(20, 5, "terminated")}
    collector = collector_of(scripted("sac", tmp_path, script))
    collector.moments = RunningMoments(3)
    collector.learner.model.normalizer = Normalizer(3, enabled=True)
    collector.start()
    collector.step()
    collector.replay_episodes(collector.obs.copy(), list(collector.envs.episodes))
    assert collector.moments.count == 2
    assert len(collector.replay_episodes(collector.obs + 1.0, list(collector.envs.episodes))) == 1
    assert collector.obs[0, :2].tolist() == [20, 0]
    assert (collector.moments.count, collector.moments.mean[0]) == (3, pytest.approx(40 / 3))


class Watch(Callback):
    """The observations and statistics of each step, and what the acting policy makes of them."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.maps: list[NDArray[np.float32]] = []
        self.mode: NDArray[np.float32] | None = None
        self.obs = np.zeros((0, 0), np.float32)

    def on_step(self, session: Session) -> None:
        assert isinstance(session.experience, Collector)
        assert session.experience.moments is not None
        self.counts.append(int(session.experience.moments.count))
        self.maps.append(session.learner.model.normalizer.shift.clone().numpy())

    def on_training_end(self, session: Session) -> None:
        assert isinstance(session.experience, Collector)
        self.obs = session.experience.obs
        self.mode = session.learner.model.policy.mode(torch.from_numpy(self.obs)).detach().numpy()


@pytest.mark.parametrize("num_envs", mostly_slow([1, 2], 2))
@pytest.mark.parametrize("algo", mostly_slow(ONLINE, "dqn", "sac"))
def test_every_online_algorithm_has_it(algo: str, num_envs: int, tmp_path: Path) -> None:
    """From the first, random step on; evaluating counts nothing; a checkpoint's policy normalises by itself."""
    watch = Watch()
    fields = {"num_envs": num_envs, "total_timesteps": 40, "eval_episodes": 1}
    result = train(tiny(algo, tmp_path, kwargs=ON | {"eval_interval": 10}, **fields), [watch])
    checkpoint = read_checkpoint(result.checkpoint_path)
    rows, width = replay_rows(checkpoint), len(moments_in(checkpoint)["mean"])
    acted_on = np.concatenate([rows[:, :width].numpy(), checkpoint.tensors["collector"]["obs"].numpy()])
    assert moments_in(checkpoint)["count"] == len(acted_on) == 40 + num_envs
    assert watch.counts == list(range(2 * num_envs, 41 + num_envs, num_envs))
    assert not np.array_equal(watch.maps[0], watch.maps[1])
    mean, std = acted_on.mean(0, dtype=np.float64), acted_on.std(0, dtype=np.float64)
    np.testing.assert_allclose(moments_in(checkpoint)["mean"], mean, rtol=1e-9)
    networks = checkpoint.tensors["networks"]
    np.testing.assert_allclose(networks["model.normalizer.shift"], mean, rtol=1e-6)
    np.testing.assert_allclose(networks["model.normalizer.scale"], 1 / (std + 1e-3), rtol=1e-5)
    assert networks["model.normalizer.limit"].item() == 10.0
    assert watch.mode is not None
    actions = predict_checkpoint(result.checkpoint_path, watch.obs)
    internal = actions if algo == "dqn" else actions / 2.0
    np.testing.assert_allclose(internal, watch.mode, rtol=1e-6)
    loaded = load(result.run_dir)
    np.testing.assert_array_equal(loaded.predict(watch.obs), actions)
    found = evaluate_checkpoint(result.run_dir, 1)["eval_return_mean"]
    assert found == result.metrics["eval_return_mean"]
    assert moments_in(read_checkpoint(find_checkpoint(result.run_dir))) == moments_in(checkpoint)


def test_without_the_setting_no_statistics_are_stored(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(train(tiny("sac", tmp_path)).checkpoint_path)
    assert "moments" not in checkpoint.records["collector"]
    assert not any(name.startswith("model.normalizer") for name in checkpoint.tensors["networks"])


# Resuming.


@pytest.mark.parametrize("algo", mostly_slow(["sac", "dqn"], "sac"))
def test_a_run_without_it_resumes_exactly_too(algo: str, tmp_path: Path) -> None:
    config = tiny(algo, tmp_path, total_timesteps=60, checkpoint_interval=30)
    assert differences(train(config), resume(interrupted(config, 30))) == []


def rewritten(run: Path, moments: Any) -> None:
    """The newest checkpoint of `run` with other statistics, its hashes right."""
    checkpoint = read_checkpoint(find_checkpoint(run))
    assert checkpoint.rows is not None
    kept = replay_rows(checkpoint)
    collector = checkpoint.records["collector"] | {"moments": moments}
    write_checkpoint(
        run / "checkpoints",
        checkpoint.step,
        tensors=checkpoint.tensors,
        records=checkpoint.records | {"collector": collector},
        rows=RowsToSave(kept, len(kept), checkpoint.rows.added, checkpoint.rows.capacity),
    )


def test_statistics_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, kwargs=ON, total_timesteps=60, checkpoint_interval=30)
    run = interrupted(config, 30)
    whole = moments_in(read_checkpoint(find_checkpoint(run)))
    for damage in ({"mean": [0.0]}, {"count": "many"}, {"squares": None}, {"mean": {}}):
        rewritten(run, whole | damage)
        with pytest.raises(CheckpointError, match="its contents do not fit this configuration") as caught:
            resume(run)
        assert "\n" not in str(caught.value), damage


def test_a_resumed_run_cannot_change_the_setting(tmp_path: Path) -> None:
    for kwargs, change in (({}, True), (ON, False)):
        run = interrupted(tiny("sac", tmp_path, kwargs=kwargs, checkpoint_interval=30), 30)
        with pytest.raises(ConfigError, match=r"^algo_kwargs\.normalize_observations: .* start a new run$"):
            resume(run, overrides=[f"normalize_observations={change}".lower()])


# Other runs' networks.


@pytest.mark.parametrize("place", mostly_slow(["", "best"], "best"))
def test_copied_statistics_continue_to_be_updated(place: str, tmp_path: Path) -> None:
    before = train(tiny("sac", tmp_path, kwargs=ON, total_timesteps=40))
    origin = find_checkpoint(before.run_dir / place)
    config = tiny("sac", tmp_path, kwargs=ON, init_from=str(origin), total_timesteps=30)
    after = read_checkpoint(train(config).checkpoint_path)
    first, both = moments_in(read_checkpoint(origin)), moments_in(after)
    assert both["count"] == first["count"] + 31
    rows, width = replay_rows(after), len(both["mean"])
    own = np.concatenate([rows[:, :width].numpy(), after.tensors["collector"]["obs"].numpy()])
    total = first["count"] * np.array(first["mean"]) + own.sum(0, dtype=np.float64)
    np.testing.assert_allclose(both["mean"], total / both["count"], rtol=1e-9)
    config = config.replace(total_timesteps=60, checkpoint_interval=30)
    assert differences(train(config), resume(interrupted(config, 30))) == []


def same_map(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    names = [name for name in {*one, *other} if name.startswith("model.normalizer.")]
    return bool(names) and all(name in one and name in other and one[name].equal(other[name]) for name in names)


@pytest.mark.parametrize("algo", mostly_slow(["sac", "awac", "rlpd"], "rlpd"))
def test_where_it_is_off_or_data_are_learned_from_the_map_taken_over_is_fixed(algo: str, tmp_path: Path) -> None:
    before = train(tiny("sac", tmp_path, kwargs=ON, total_timesteps=40))
    kwargs = {} if algo == "sac" else ON
    config = tiny(algo, tmp_path, kwargs=kwargs, init_from=str(before.run_dir), total_timesteps=40)
    after = train(config)
    assert same_map(networks_of(before), networks_of(after))
    assert "moments" not in read_checkpoint(after.checkpoint_path).records.get("collector", {})
    further = resume(after.run_dir, changes={"total_timesteps": 50})
    assert same_map(networks_of(before), networks_of(further))


def test_the_moments_of_data_stay_fixed_and_this_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = train(tiny("awac", tmp_path, kwargs=ON, total_timesteps=20))
    config = tiny("sac", tmp_path, kwargs=ON, init_from=str(before.run_dir), total_timesteps=40)
    with caplog.at_level(logging.WARNING):
        after = train(config)
        assert "normalises by the moments of its data; they stay fixed" in caplog.text
        caplog.clear()
        further = resume(after.run_dir, changes={"total_timesteps": 50})
    assert "moments" not in caplog.text
    assert same_map(networks_of(before), networks_of(after))
    assert same_map(networks_of(before), networks_of(further))


def test_a_policy_that_sees_raw_observations_does_not_fit(tmp_path: Path) -> None:
    before = train(tiny("sac", tmp_path, total_timesteps=40))
    with pytest.raises(ConfigError, match=r"^init_from: .* does not fit .* and normalize_observations$"):
        train(tiny("sac", tmp_path, kwargs=ON, init_from=str(before.run_dir)))


def test_rlpd_keeps_the_moments_of_its_data(tmp_path: Path) -> None:
    config = tiny("rlpd", tmp_path, kwargs=ON, total_timesteps=40, checkpoint_interval=20)
    first, last = interrupted(config, 20 + 30), train(config)
    assert same_map(read_checkpoint(find_checkpoint(first)).tensors["networks"], networks_of(last))
    assert "model.normalizer.limit" not in networks_of(last)


# What it is for.


def stretched(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """The cosine of the angle and its velocity in thousandths of their units."""
    box, scale = env.observation_space, np.array([1e3, 1.0, 1e3], np.float32)
    assert isinstance(box, gym.spaces.Box)
    space = gym.spaces.Box(box.low * scale, box.high * scale, dtype=np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs * scale, space)


@pytest.mark.slow
def test_sac_learns_where_scales_differ_by_a_thousand(tmp_path: Path) -> None:
    """Seeds 0 and 1 gave -160 and -148 with it, -1,336 and -1,389 without; random actions about -1,200."""
    settings: dict[str, Any] = {
        "hidden_sizes": [64, 64],
        "learning_rate": 1e-3,
        "batch_size": 128,
        "learning_starts": 500,
        "alpha": "auto",
        "output_dir": str(tmp_path),
        "device": "cpu",
        "eval_episodes": 10,
        "wrappers": [stretched],
        "seed": 0,
    }
    returns = [
        SAC("Pendulum-v1", normalize_observations=normalize, **settings)
        .learn(5_000, progress_bar=False)
        .metrics["eval_return_mean"]
        for normalize in (True, False)
    ]
    assert returns[0] > -350
    assert returns[1] < -800
