"""Runs in batched environments equal runs in single ones bit for bit, also after a kill; populations."""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("mujoco.batch")

from rl_training import BC, SAC
from rl_training.environments import batched, mujoco_batch, pool
from rl_training.environments.batched import BatchedPool
from rl_training.environments.mujoco_batch import MujocoBatch
from rl_training.environments.running import Steps
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runs.session import Session, TrainResult
from rl_training.runtime.resume import resume_population as resume_all
from tests.reliability.processes import Child
from tests.runs import KillAt, differences, interrupted, mostly_slow, resume, run_record, tiny, train
from tests.test_collector import collector_of, contents
from tests.test_exact_resume import Sigkill
from tests.test_population_runs import At, AtCheckpoint, different, folders, nothing, send, together


def small(folder: Path, algo: str = "sac", **fields: Any) -> TrainConfig:
    """A run through several episodes, time limits and terminations, with evaluation."""
    defaults = {"env_id": "Hopper-v5", "total_timesteps": 160, "checkpoint_interval": 80}
    defaults |= {"eval_episodes": 3, "log_interval": 40, "env_kwargs": {"max_episode_steps": 13}}
    return tiny(algo, folder, **defaults | fields)


def episodes(result: TrainResult) -> list[tuple[Any, ...]]:
    """The running episodes of the last checkpoint, without the way in which they are stored."""
    saved = read_checkpoint(result.checkpoint_path).records["collector"]["episodes"]
    return [(one["number"], one["seed"], one["total"], one["steps"]) for one in saved]


def unlike(one: TrainResult, other: TrainResult) -> list[str]:
    """What differs between two runs, except for the settings and the way in which running episodes are stored."""
    assert episodes(one) == episodes(other)
    expected = ("collector/actions.", "collector/batch.", "collector/episodes", "config/env_threads")
    return [name for name in differences(one, other) if not name.startswith((*expected, "config/environments"))]


def is_batched(result: TrainResult) -> bool:
    return "batch.state" in read_checkpoint(result.checkpoint_path).tensors["collector"]


@pytest.mark.parametrize(
    ("algo", "env_id", "limit", "num_envs"),
    mostly_slow(
        [
            ("sac", "Hopper-v5", 1_000, 1),
            ("sac", "Hopper-v5", 1_000, 8),
            ("sac", "HalfCheetah-v4", 17, 1),
            ("sac", "HalfCheetah-v4", 17, 8),
            ("td3", "Hopper-v5", 13, 1),
            ("redq", "InvertedPendulum-v5", 11, 1),
            ("rlpd", "Hopper-v5", 13, 3),
        ],
        ("sac", "HalfCheetah-v4", 17, 8),
        ("td3", "Hopper-v5", 13, 1),
        ("rlpd", "Hopper-v5", 13, 3),
    ),
)
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_a_run_equals_the_run_in_single_environments(
    algo: str, env_id: str, limit: int, num_envs: int, tmp_path: Path
) -> None:
    config = small(tmp_path, algo, env_id=env_id, num_envs=num_envs, env_kwargs={"max_episode_steps": limit})
    local, auto = train(config.replace(environments="local")), train(config.replace(env_threads=3))
    assert (is_batched(local), is_batched(auto)) == (False, True)
    assert unlike(local, auto) == []
    assert len(read_checkpoint(auto.checkpoint_path).records["collector"]["returns"]) > 2


def test_dqn_is_not_batched(tmp_path: Path) -> None:
    """No MuJoCo task has discrete actions; `auto` is `local`."""
    config = tiny("dqn", tmp_path, num_envs=2)
    assert differences(train(config.replace(environments="local")), train(config)) == ["config/environments"]


@pytest.mark.parametrize(
    ("env_id", "num_envs"),
    mostly_slow(
        [("Hopper-v5", 1), ("Hopper-v5", 8), ("Hopper-v5", 64), ("InvertedPendulum-v5", 2)],
        ("Hopper-v5", 8),
    ),
)
def test_a_resumed_run_is_exact_with_another_number_of_threads(env_id: str, num_envs: int, tmp_path: Path) -> None:
    config = small(
        tmp_path, env_id=env_id, num_envs=num_envs, total_timesteps=16 * max(num_envs, 10), env_threads=1,
        kwargs={"train_frequency": max(1, num_envs // 8)},
    )  # fmt: skip
    config = config.replace(checkpoint_interval=config.total_timesteps // 2)
    straight, run = train(config, [KillAt()]), interrupted(config, config.checkpoint_interval)
    resumed = resume(run, [KillAt()], changes={"env_threads": 3})
    assert run_record(run)["exact_resume"] is True
    assert differences(straight, resumed) == ["config/env_threads"]


@pytest.mark.slow  # the same as the last test, but for the kill, which `test_exact_resume` has for other runs
def test_a_killed_run_is_exact_too(tmp_path: Path) -> None:
    config, runs = small(tmp_path, num_envs=8), tmp_path / "runs"
    killed = Child(lambda: train(config.replace(output_dir=runs), [Sigkill(80)]), tmp_path / "output.txt")
    assert killed.wait() == -signal.SIGKILL, killed.text()
    [run] = runs.iterdir()
    resumed = resume(run, [KillAt()], changes={"env_threads": 3})
    assert differences(train(config, [KillAt()]), resumed) == ["config/env_threads", "config/output_dir"]
    assert run_record(run)["exact_resume"] is True


@pytest.mark.parametrize("written", mostly_slow(["local", "batched"], "local"))
def test_a_checkpoint_with_actions_is_replayed(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run in single environments, or in batched ones before their state was saved."""
    config = small(tmp_path, num_envs=3, environments=written)
    straight = train(config, [KillAt()])
    with monkeypatch.context() as patch:
        patch.setattr(pool, "is_batched", lambda *arguments: False)
        run = interrupted(config, 80)
    assert "actions.0" in read_checkpoint(find_checkpoint(run)).tensors["collector"]
    resumed = resume(run, [KillAt()], changes={"environments": "batched"})
    assert is_batched(resumed)
    assert unlike(straight, resumed) == []
    assert run_record(run)["exact_resume"] is True


RESET = "step 81: running episodes are the state of batched environments, which these cannot load: all were reset"


@pytest.mark.parametrize("missing", [False, True])
def test_a_state_that_cannot_be_loaded_is_reported(
    missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resumed with `environments: local`, or with `auto` where mujoco.batch is missing."""
    run = interrupted(small(tmp_path, num_envs=3), 80)
    before = read_checkpoint(find_checkpoint(run)).records["collector"]["episodes"]
    if missing:
        monkeypatch.setattr(mujoco_batch, "batch_class", lambda: None)
    resumed = resume(run, changes={"total_timesteps": 84} | ({} if missing else {"environments": "local"}))
    record = run_record(run)
    assert (record["exact_resume"], record["inexact"]) == (False, [RESET])
    assert RESET.partition(": ")[2] in capsys.readouterr().err
    assert not is_batched(resumed)
    assert [number for number, *_ in episodes(resumed)] == [one["number"] + 1 for one in before]
    assert {steps for *_, steps in episodes(resumed)} == {1}


@pytest.mark.parametrize("offline", [False, True])
def test_an_evaluation_that_cannot_be_batched_is_refused_before_the_run(offline: bool, tmp_path: Path) -> None:
    """Online in `eval_env`, offline in the only environment."""
    options: dict[str, Any] = {"environments": "batched", "output_dir": str(tmp_path), "hidden_sizes": [16]}
    data: dict[str, Any] = {}
    if offline:
        model, message = BC("Pendulum-v1", eval_max_steps=5, **options), "Pendulum-v1 is not"
        data = {"observations": np.ones((50, 3)), "next_observations": np.ones((50, 3)), "rewards": np.zeros(50)}
        data |= {"actions": np.zeros((50, 1)), "terminals": np.arange(50) % 10 == 9}
        data |= {"action_low": -2.0, "action_high": 2.0}
    else:
        other = functools.partial(gym.make, "Hopper-v5", reset_noise_scale=0.1)
        model, message = SAC("Hopper-v5", eval_env=other, learning_starts=5, **options), "make is not"
    with pytest.raises(ConfigError, match=f"^environments: batched: {message}"):
        model.learn(20, progress_bar=False, dataset=data or None)
    assert not list(tmp_path.iterdir())


def test_a_state_of_another_size_is_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of MuJoCo may have another state."""
    run = interrupted(small(tmp_path, num_envs=3), 80)
    state = MujocoBatch._state
    monkeypatch.setattr(MujocoBatch, "_state", lambda *of: state(*of) | {"state": state(*of)["state"][:, 1:]})
    resume(run)
    assert run_record(run)["inexact"] == [RESET]


def test_simulations_that_end_together_are_reset_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resets: list[int] = []
    reset = MujocoBatch.reset
    monkeypatch.setattr(
        MujocoBatch, "reset", lambda batch, ids, seeds: (resets.append(len(ids)), reset(batch, ids, seeds))[1]
    )
    config = small(tmp_path, num_envs=12, env_kwargs={"max_episode_steps": 4})
    one, other = (collector_of(config.replace(environments=place)) for place in ("local", "batched"))
    for collector in (one, other):
        collector.start()
        for _ in range(8):
            collector.step()
    assert resets == [12, 12, 12]
    assert all(np.array_equal(*parts) for parts in zip(contents(one)[:5], contents(other)[:5]))
    assert one.obs.tobytes() == other.obs.tobytes()


def test_a_step_in_which_mujoco_fails_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if MuJoCo has stepped other simulations when it raises."""
    collector = collector_of(small(tmp_path, num_envs=2))
    collector.start()
    collector.step()
    before, pool = collector.envs.save(), collector.envs
    assert isinstance(pool, BatchedPool)
    totals, engine = pool.totals.copy(), pool._shared.batch._batch
    inner = engine.step
    monkeypatch.setattr(engine, "step", lambda *a, **k: (inner(*a, **k), 1 / 0))
    message = rf"^environment 0 failed \(seed {pool.seeds[0]}, step 2\): ZeroDivisionError"
    with pytest.raises(EnvironmentFailure, match=message):
        collector.step()
    assert {name: values.tobytes() for name, values in pool.save().items()} == {
        name: values.tobytes() for name, values in before.items()
    }
    assert (pool.lengths.tolist(), pool.totals.tolist()) == ([1, 1], totals.tolist())


SEEDS = (3, 0, 8)


def population(folder: Path, **fields: Any) -> TrainConfig:
    """Three members with two environments each."""
    return small(folder, num_envs=2, seeds=list(SEEDS), eval_episodes=0, **fields)


@pytest.mark.parametrize("overlap", mostly_slow([False, True], True))
def test_one_call_steps_all_members(overlap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second member ends early; the others continue without it."""

    def stop(session: Session) -> None:
        session.stop("enough")

    calls: list[int] = []
    step = MujocoBatch.step

    def counted(batch: MujocoBatch, actions: Any, ids: Any = None) -> Steps:
        calls.append(len(actions))
        return step(batch, actions, ids)

    monkeypatch.setattr(MujocoBatch, "step", counted)
    config = population(tmp_path, total_timesteps=120, kwargs={"overlap": overlap})
    joined = together(config, [At(SEEDS[1], 80, stop)])
    assert calls == [6] * 40 + [4] * 20
    calls.clear()
    monkeypatch.setattr(batched, "join", lambda pools: None)
    single = together(config, [At(SEEDS[1], 80, stop)])
    assert calls == [2] * 160
    assert different(joined, single) == [[], [], []]


def test_members_of_different_tasks_are_not_joined() -> None:
    def made(**fields: Any) -> BatchedPool:
        return BatchedPool(TrainConfig(**{"algo": "sac", "env_id": "Hopper-v5", "total_timesteps": 1} | fields))

    one, two, other = made(env_threads=2), made(env_threads=2), made(env_threads=2, env_kwargs={"frame_skip": 2})
    local = pool.EnvPool(TrainConfig(algo="sac", env_id="Hopper-v5", total_timesteps=1))
    batched.join([one, other, local, two])
    assert one._shared is two._shared is not other._shared
    assert one._shared.batch._batch.nthread == 2
    one.close()
    two.reset(0)
    two.close()
    assert not hasattr(two._shared.batch, "_batch")


def test_a_failure_in_a_joined_batch_reaches_every_member(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(algo="sac", env_id="Hopper-v5", total_timesteps=1, num_envs=2)
    members = [BatchedPool(config) for _ in range(2)]
    batched.join(members)
    for one in members:
        one.reset_all(range(2))
        one.send(np.zeros((2, 3), np.float32))
    monkeypatch.setattr(members[0]._shared.batch._batch, "step", lambda *a, **k: 1 / 0)
    for one in members:
        with pytest.raises(EnvironmentFailure, match=r"^environment 0 failed .* step 1\): ZeroDivisionError"):
            one.receive()


@pytest.mark.slow
def test_a_killed_population_is_exact(tmp_path: Path) -> None:
    config, runs = population(tmp_path), tmp_path / "runs"
    kill = AtCheckpoint(SEEDS[2], 80, send(signal.SIGKILL))
    killed = Child(lambda: together(config.replace(output_dir=runs), [kill]), tmp_path / "output.txt")
    assert killed.wait() == -signal.SIGKILL, killed.text()
    places = folders(runs, SEEDS)
    resumed = resume_all(places[0], callbacks=[AtCheckpoint(SEEDS[2], 80, nothing)], quiet=True)
    straight = together(config, [AtCheckpoint(SEEDS[2], 80, nothing)])
    assert different(straight, resumed) == [["config/output_dir"]] * 3
    assert [run_record(run)["exact_resume"] for run in places] == [True] * 3
