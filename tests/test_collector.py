"""Collected transitions are correct: exact buffer contents for scripted environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout, TransitionBatch
from rl_training.environments.making import spaces_of
from rl_training.environments.pool import make_pool
from rl_training.errors import DivergedError, EnvironmentFailure
from rl_training.experience.collector import Collector
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runs.building import build_learner
from rl_training.seeding import TRAINING, episode_seed
from rl_training.spaces import SpaceSpec
from tests.runs import replay_rows, resume, run_record, tiny, train
from tests.worlds import SCRIPTED

SEED = 3
Script = dict[tuple[int, int], dict[str, Any]]  # (environment, episode) -> what happens


def episode(label: float, length: int, end: str, **extra: Any) -> dict[str, Any]:
    return {"label": label, "length": length, "end": end} | extra


def by_seed(script: Script) -> dict[str, Any]:
    return {str(episode_seed(SEED, TRAINING, *place)): told for place, told in script.items()}


def scripted(algo: str, folder: Path, script: Script, **fields: Any) -> TrainConfig:
    kwargs = {"script": by_seed(script), "discrete": algo == "dqn"}
    return tiny(algo, folder, env_id=SCRIPTED, env_kwargs=kwargs, **fields)


def collector_of(config: TrainConfig, capacity: int = 100, random_steps: int = 1_000) -> Collector:
    """A collector as in a run, with uniformly random actions until `random_steps`."""
    spec = get_algorithm_spec(config.algo)
    spaces = spaces_of(config)
    learner = build_learner(spec.sections, spec.sections.resolve(config.algo_kwargs), config, spaces)
    buffer = ReplayBuffer(capacity, RowLayout.of(spaces), learner.generator)
    pool = make_pool(config)
    return Collector(pool, spaces, learner, buffer, random_steps=random_steps, total_steps=1_000)


def contents(collector: Collector) -> TransitionBatch:
    return collector.layout.unpack(collector.buffer.rows[: len(collector.buffer)])


def test_one_environment_row_by_row(tmp_path: Path) -> None:
    script = {
        (0, 0): episode(10, 2, "terminated"),
        (0, 1): episode(20, 3, "truncated"),
        (0, 2): episode(30, 1, "both"),
        (0, 3): episode(40, 9, "terminated"),
    }
    collector = collector_of(scripted("sac", tmp_path, script))
    collector.start()
    for _ in range(7):
        collector.step()
    rows = contents(collector)
    # Labels and times of obs and next_obs, reward, done: no row leads from one episode to the next.
    expected = [
        ((10, 0), (10, 1), 10.125, 0),
        ((10, 1), (10, 2), 10.250, 1),
        ((20, 0), (20, 1), 20.125, 0),
        ((20, 1), (20, 2), 20.250, 0),
        ((20, 2), (20, 3), 20.375, 0),  # a time limit: the final observation, and no done
        ((30, 0), (30, 1), 30.125, 1),  # both at once: it did terminate
        ((40, 0), (40, 1), 40.125, 0),
    ]
    found = [
        (tuple(o[:2].tolist()), tuple(n[:2].tolist()), float(r), int(d))
        for o, n, r, d in zip(rows.obs, rows.next_obs, rows.rewards, rows.dones)
    ]
    assert found == expected
    assert collector.steps == 7
    assert list(collector.lengths) == [2, 3, 1]
    assert list(collector.returns) == [20.375, 60.75, 30.125]
    assert collector.obs[0, :2].tolist() == [40, 1]


def test_stored_actions_are_the_internal_form_of_what_the_environment_was_given(tmp_path: Path) -> None:
    """The environment sums its actions, in [-1, 3]; the buffer stores them in [-1, 1]."""
    collector = collector_of(scripted("sac", tmp_path, {(0, 0): episode(1, 20, "truncated")}))
    collector.start()
    for _ in range(20):
        collector.step()
    rows = contents(collector)
    given = rows.next_obs[:, 2] - rows.obs[:, 2]
    torch.testing.assert_close(rows.actions[:, 0], (given - 1.0) / 2.0, atol=1e-5, rtol=0)
    assert rows.actions.abs().max() <= 1
    assert rows.actions.min() < -0.5 < 0.5 < rows.actions.max()


def test_a_reward_that_scaling_makes_infinite_is_not_stored(tmp_path: Path) -> None:
    """The reward is finite, but 1e10 times it overflows float32."""
    script = {(0, 0): episode(1, 9, "terminated"), (1, 0): episode(1e30, 9, "terminated")}
    collector = collector_of(scripted("sac", tmp_path, script, num_envs=2))
    collector.reward_map = (1e10, 0.0)
    collector.start()
    with pytest.raises(
        DivergedError, match=r"^environment 1 returned the reward 1e\+30 at step 0, .*scale 1e\+10, "
    ):
        collector.step()
    assert len(collector.buffer) == 0


def test_three_environments_with_different_episodes(tmp_path: Path) -> None:
    script = {
        (0, 0): episode(10, 1, "terminated"),
        (0, 1): episode(11, 4, "terminated"),
        (1, 0): episode(20, 4, "truncated"),
        (2, 0): episode(30, 2, "truncated"),
        (2, 1): episode(31, 2, "terminated"),
    }
    collector = collector_of(scripted("sac", tmp_path, script, num_envs=3))
    collector.start()
    for _ in range(4):
        collector.step()
    rows = contents(collector)
    labels = [(int(o[0]), int(o[1]), int(n[0]), int(n[1])) for o, n in zip(rows.obs, rows.next_obs)]
    assert labels == [
        *[(10, 0, 10, 1), (20, 0, 20, 1), (30, 0, 30, 1)],
        *[(11, 0, 11, 1), (20, 1, 20, 2), (30, 1, 30, 2)],
        *[(11, 1, 11, 2), (20, 2, 20, 3), (31, 0, 31, 1)],
        *[(11, 2, 11, 3), (20, 3, 20, 4), (31, 1, 31, 2)],
    ]
    assert rows.dones.tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert collector.steps == 12
    assert list(collector.lengths) == [1, 2, 4, 2]


@pytest.mark.parametrize("random_steps", [0, 1_000])
def test_discrete_actions_count_from_their_start_outside_and_from_zero_inside(
    random_steps: int, tmp_path: Path
) -> None:
    script = {(0, 0): episode(1, 40, "truncated")}
    collector = collector_of(scripted("dqn", tmp_path, script), random_steps=random_steps)
    collector.start()
    for _ in range(40):
        collector.step()
    rows = contents(collector)
    given = rows.next_obs[:, 2] - rows.obs[:, 2]
    assert set(given.tolist()) == {5.0, 6.0, 7.0}
    assert rows.actions.dtype == torch.int64
    assert torch.equal(rows.actions + 5, given.long())


def test_a_ring_keeps_the_newest(tmp_path: Path) -> None:
    collector = collector_of(scripted("sac", tmp_path, {(0, 0): episode(1, 50, "truncated")}), capacity=8)
    collector.start()
    for _ in range(11):
        collector.step()
    assert contents(collector).obs[:, 1].tolist() == [8, 9, 10, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("how", "word"), [("obs", "non-finite observation"), ("reward", "reward nan")])
def test_nan_stops_before_it_is_stored(how: str, word: str, tmp_path: Path) -> None:
    script = {(0, 0): episode(1, 9, "truncated"), (1, 0): episode(2, 9, "truncated", broken={"at": 3, "how": how})}
    collector = collector_of(scripted("sac", tmp_path, script, num_envs=2))
    collector.start()
    collector.step()
    collector.step()
    with pytest.raises(DivergedError, match=f"environment 1 returned .*{word}.* at step 4"):
        collector.step()
    assert len(collector.buffer) == 4
    assert torch.isfinite(collector.buffer.rows[:4]).all()


def test_nan_ends_a_run_with_its_last_finite_checkpoint(tmp_path: Path) -> None:
    script = {(0, 0): episode(1, 99, "truncated", broken={"at": 50, "how": "obs"})}
    with pytest.raises(DivergedError, match=r"step_000000030") as caught:
        train(scripted("sac", tmp_path, script, eval_episodes=0))
    assert caught.value.exit_code == 4
    [run] = tmp_path.iterdir()
    assert run_record(run)["status"] == "diverged"
    assert (run / "divergence.json").is_file()
    assert find_checkpoint(run).name == "step_000000030"


def failing(tmp_path: Path, at: int, **fields: Any) -> TrainConfig:
    script = {
        (0, 0): episode(1, 99, "truncated"),
        (1, 0): episode(2, 99, "truncated", broken={"at": at, "how": "raise"}),
    }
    return scripted("sac", tmp_path, script, num_envs=2, eval_episodes=0, **fields)


def test_an_environment_that_raises_ends_the_run_after_saving(tmp_path: Path) -> None:
    config = failing(tmp_path, at=25)
    seed = episode_seed(SEED, TRAINING, 1, 0)
    with pytest.raises(EnvironmentFailure) as caught:
        train(config)
    message = str(caught.value)
    assert f"environment 1 failed (seed {seed}, step 25): RuntimeError: the motor is on fire" in message
    assert isinstance(caught.value.__cause__, RuntimeError)
    [run] = tmp_path.iterdir()
    checkpoint = read_checkpoint(find_checkpoint(run))
    assert checkpoint.step == 48  # 24 complete steps of both, without the failed one
    assert replay_rows(checkpoint).shape[0] == 48
    record = run_record(run)
    assert (record["status"], record["exact_resume"]) == ("failed", False)


def test_a_run_resumes_once_its_environment_works_again(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure):
        train(failing(tmp_path, at=25))
    [run] = tmp_path.iterdir()
    healthy = {"script": by_seed({(0, 0): episode(1, 99, "truncated"), (1, 0): episode(2, 99, "truncated")})}
    result = resume(run, changes={"env_kwargs": healthy})
    rows = replay_rows(read_checkpoint(result.checkpoint_path))
    labels, times = rows[:, 0], rows[:, 1]
    assert rows.shape[0] == 60
    assert times[labels == 1].tolist() == list(range(30))
    assert times[labels == 2].tolist() == list(range(30))


def test_a_first_reset_that_fails_leaves_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="environment 1 failed"):
        train(failing(tmp_path, at=0))
    [run] = tmp_path.iterdir()
    assert run_record(run)["status"] == "failed"
    assert list((run / "checkpoints").iterdir()) == []


def test_a_later_reset_that_fails_leaves_the_episodes_of_the_others(tmp_path: Path) -> None:
    script = {
        (0, 0): episode(1, 99, "truncated"),
        (1, 0): episode(2, 5, "truncated"),
        (1, 1): episode(3, 99, "truncated", broken={"at": 0, "how": "raise"}),
    }
    with pytest.raises(EnvironmentFailure, match="environment 1 failed"):
        train(scripted("sac", tmp_path, script, num_envs=2, eval_episodes=0))
    [run] = tmp_path.iterdir()
    script[1, 1] = episode(3, 99, "truncated")
    result = resume(run, changes={"env_kwargs": {"script": by_seed(script)}})
    rows = replay_rows(read_checkpoint(result.checkpoint_path))
    assert rows[rows[:, 0] == 1][:, 1].tolist() == list(range(30))
    assert [reason for reason in run_record(run)["inexact"] if "environment 0" in reason] == []


def test_a_failure_while_resuming_does_not_touch_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure):
        train(failing(tmp_path, at=25))
    [run] = tmp_path.iterdir()
    before = (find_checkpoint(run) / "manifest.json").read_bytes()
    worse = {"script": by_seed({(0, 0): episode(1, 9, "truncated", broken={"at": 2, "how": "raise"})})}
    with pytest.raises(EnvironmentFailure, match="environment 0 failed"):
        resume(run, changes={"env_kwargs": worse})
    assert (find_checkpoint(run) / "manifest.json").read_bytes() == before


def test_seeds_of_episodes_are_distinct() -> None:
    places = [(p, i, e) for p in (1, 2, 3) for i in range(8) for e in range(50)]
    assert len({episode_seed(SEED, *place) for place in places}) == len(places)


def test_an_episode_that_does_not_replay_is_reset_and_reported(tmp_path: Path) -> None:
    script = {(0, 0): episode(1, 99, "truncated")}
    collector = collector_of(scripted("sac", tmp_path, script))
    collector.start()
    for _ in range(5):
        collector.step()
    obs, running = collector.obs.copy(), collector.envs.episodes
    changed = collector_of(scripted("sac", tmp_path, {(0, 0): episode(2, 99, "truncated")}))
    assert changed.replay_episodes(obs, running) == [
        "environment 0 did not replay its episode exactly and was reset"
    ]
    assert changed.envs.episodes[0].number == 1
    assert changed.obs[0, 1] == 0


def test_random_actions_before_random_steps_are_uniform_in_every_dimension(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, env_id="Pendulum-v1", num_envs=2)
    collector = collector_of(config, capacity=4_000)
    collector.start()
    draws = np.concatenate([collector._actions() for _ in range(1_000)])
    histogram = np.histogram(draws, bins=10, range=(-1, 1))[0]
    assert histogram.min() > 150
    assert histogram.max() < 250


def test_the_learner_acts_from_the_first_step_after_random_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = {(0, 0): episode(1, 9, "truncated")}
    collector = collector_of(scripted("sac", tmp_path, script), random_steps=3)
    explore, calls = collector.learner.explore, []

    def noted(*arguments: Any) -> torch.Tensor:
        calls.append((collector.steps, arguments[-1]))
        return explore(*arguments)

    monkeypatch.setattr(collector.learner, "explore", noted)
    collector.start()
    for _ in range(5):
        collector.step()
    assert calls == [(3, 0.003), (4, 0.004)]  # the step, and its share of the 1,000 of the run


def test_spaces_of_a_scripted_world(tmp_path: Path) -> None:
    assert spaces_of(scripted("dqn", tmp_path, {})) == SpaceSpec(3, num_actions=3, start=5, action_dtype="int64")
