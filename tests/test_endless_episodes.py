"""Episodes that never end: memory, checkpoints and the cost of a resume are bounded, and a warning is printed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.environments import pool as pools
from rl_training.environments.pool import EnvPool
from rl_training.experience.collector import Collector
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.config import TrainConfig
from tests.reliability.faulty_worlds import FAULTY, Faulty
from tests.runs import interrupted, resume, run_record, tiny, train

BOUND = 20


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "LONGEST_REPLAY", BOUND)


def endless(folder: Path, **fields: Any) -> TrainConfig:
    kwargs = {"endless": True}
    return tiny("td3", folder, env_id=FAULTY, env_kwargs=kwargs, **{"eval_episodes": 0, "num_envs": 2} | fields)


@pytest.mark.usefixtures("_small")
def test_a_run_warns_once_about_an_episode_that_is_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(endless(tmp_path, total_timesteps=120, checkpoint_interval=20))
    said = capsys.readouterr().err
    assert said.count("warning: a resumed run will not be exact: environment 0 is at step ") == 1
    assert "TimeLimit: {max_episode_steps: 1000}" in said
    assert run_record(result.run_dir)["exact_resume"] is False
    checkpoint = read_checkpoint(result.checkpoint_path)
    assert list(checkpoint.tensors["collector"]) == ["obs"]
    assert [e["steps"] for e in checkpoint.records["collector"]["episodes"]] == [60, 60]


def test_a_bound_below_the_time_limit_is_no_reason_for_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pendulum-v1 ends an episode by itself, after 200 steps."""
    for env_id, kwargs, warns in (("Pendulum-v1", {}, False), (FAULTY, {"endless": True}, True)):
        train(tiny("td3", tmp_path, env_id=env_id, env_kwargs=kwargs, total_timesteps=30, eval_max_steps=3))
        assert ("evaluation episodes are cut after 3 steps" in capsys.readouterr().err) is warns


@pytest.mark.usefixtures("_small")
def test_a_resumed_run_resets_instead_of_repeating_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = interrupted(endless(tmp_path, total_timesteps=120, checkpoint_interval=100), 100)
    taken, step = [], Faulty.step
    monkeypatch.setattr(Faulty, "step", lambda self, action: (taken.append(1), step(self, action))[1])
    capsys.readouterr()
    assert resume(run).metrics["global_step"] == 120
    assert len(taken) == 20
    said = capsys.readouterr().err
    for i in range(2):
        problem = f"environment {i} is at step 50 of its episode, of which {BOUND} actions at most are kept"
        assert f"warning: not an exact resume: {problem}, and was reset" in said
    assert run_record(run)["exact_resume"] is False


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("steps", [BOUND, BOUND + 1])
def test_up_to_the_bound_a_run_resumes_exactly(
    steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = interrupted(endless(tmp_path, num_envs=1, checkpoint_interval=steps), steps)
    assert run_record(run)["exact_resume"] is (steps == BOUND)
    resume(run, changes={"total_timesteps": steps + 1})
    assert ("not an exact resume" in capsys.readouterr().err) is (steps > BOUND)


@pytest.mark.usefixtures("_small")
def test_a_step_that_failed_is_undone(tmp_path: Path) -> None:
    pool = EnvPool(endless(tmp_path, num_envs=1))
    pool.reset(0)
    for _ in range(BOUND + 1):
        pool.step(np.zeros((1, 1), np.float32))
    total = pool.episodes[0].total
    pool.step(np.ones((1, 1), np.float32))
    pool.forget_step()
    assert (pool.episodes[0].steps, pool.episodes[0].total) == (BOUND + 1, total)
    pool.reset(0)
    assert pool.episodes[0].actions == []


def test_an_evaluation_does_not_copy_the_running_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected, save = [], Collector.save
    monkeypatch.setattr(Collector, "save", lambda collector: (collected.append(1), save(collector))[1])
    config = endless(tmp_path, eval_episodes=1, eval_max_steps=5, checkpoint_interval=1_000)
    result = train(config.replace(algo_kwargs=config.algo_kwargs | {"eval_interval": 10}))
    assert len(collected) == 1  # the last step
    [best] = (result.run_dir / "best").iterdir()
    kept = read_checkpoint(best)
    assert list(kept.tensors) == ["networks"]
    assert kept.records["collector"]["steps"] == kept.step


class Still(gym.Env[Any, Any]):
    """An environment in which nothing happens."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    state = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.state, {}

    def step(self, action: Any) -> Any:
        return self.state, 0.0, False, False, {}


if "Still-v0" not in gym.registry:
    gym.register("Still-v0", entry_point=Still)


@pytest.mark.parametrize(
    ("bound", "steps"), [(100, 3_000), pytest.param(pools.LONGEST_REPLAY, 1_000_000, marks=pytest.mark.slow)]
)
def test_memory_does_not_grow_with_the_length_of_an_episode(
    bound: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LONGEST_REPLAY", bound)
    pool = EnvPool(TrainConfig(algo="sac", env_id="Still-v0", total_timesteps=1, seed=0))
    pool.reset(0)
    tracemalloc.start()
    try:
        for _ in range(steps):
            pool.step(np.zeros((1, 1), np.float32))
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pool.episodes[0].steps == steps
    assert now < 50_000
    assert peak < 50_000 + 400 * bound
