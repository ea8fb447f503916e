"""`normalize_rewards`: the statistics by hand, what an update sees, and exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.data.transitions import TransitionBatch
from rl_training.environments.user_environments import TensorEnvMaker, UserEnvironments
from rl_training.errors import ConfigError
from rl_training.experience.moments import RunningReturns
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.runtime.populations import train_population
from rl_training.runtime.workflows import resume_training
from tests.runs import ONLINE, interrupted, mostly_slow, replay_rows, run_record, tiny, train
from tests.test_exact_resume import assert_exact, eventful
from tests.test_tensor_env import Counter, collector_of

SCALED = {"normalize_rewards": True}


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_the_statistics_by_hand(device: torch.device | None) -> None:
    """G <- gamma G + r from 0 at the start of an episode; variance over all values so far, largest magnitude."""
    returns, gamma, rng = RunningReturns(3, 0.9, device), 0.9, np.random.default_rng(0)
    current, seen, cases = np.zeros(3), [], set()
    for step in range(20):
        rewards, ended = rng.normal(1.0, 0.1 if step == 0 else 3.0, 3), rng.random(3) < 0.2
        if device is None:
            returns.add(rewards, ended)
        else:
            returns.add(torch.from_numpy(rewards), torch.from_numpy(ended))
        current = gamma * current + rewards
        seen += current.tolist()
        measures = np.sqrt(np.var(seen) + 1e-8), np.abs(seen).max() / 5.0
        cases.add(int(np.argmax(measures)))
        expected = 1.0 / max(measures)
        assert float(returns.scale) == pytest.approx(expected, rel=1e-12)
        current[ended] = 0.0
    assert cases == {0, 1}
    again = RunningReturns(3, 0.9, device)
    again.load(returns.tensors())
    assert again.scale == returns.scale


def test_the_host_computes_what_a_device_does() -> None:
    host, device, rng = (
        RunningReturns(1, 0.99),
        RunningReturns(1, 0.99, torch.device("cpu")),
        np.random.default_rng(1),
    )
    for _ in range(200):
        rewards, ended = rng.normal(0.5, 2.0, 1), rng.random(1) < 0.05
        host.add(rewards, ended)
        device.add(torch.from_numpy(rewards), torch.from_numpy(ended))
        assert float(host.scale) == pytest.approx(float(device.scale), rel=1e-12)
    for name, tensor in host.tensors().items():
        torch.testing.assert_close(tensor, device.tensors()[name], rtol=1e-12, atol=0.0)
        assert tensor.dtype == torch.float64


def test_nothing_is_read_from_a_device() -> None:
    """Tensors of the meta device have no values, so a branch or a read raises."""
    there = torch.device("meta")
    returns = RunningReturns(3, 0.99, there)
    returns.add(torch.ones(3, dtype=torch.float64, device=there), torch.ones(3, dtype=torch.bool, device=there))
    returns.cut([1])
    found = [*returns.tensors().values(), torch.as_tensor(returns.scale)]
    assert {tensor.device.type for tensor in found} == {"meta"}


def test_an_update_sees_scaled_rewards_and_the_buffer_keeps_raw_ones() -> None:
    returns = RunningReturns(4, 0.99, torch.device("cpu"))
    collector = collector_of(Counter(), scaling=returns)
    collector.learner.scale_rewards()
    for _ in range(5):
        collector.act()
        collector.receive()
    batch = collector.layout.unpack(collector.buffer.rows[:20])
    assert torch.equal(batch.rewards, batch.next_obs[:, 1])
    seen = collector.learner.normalized(TransitionBatch(*batch))
    assert float(returns.scale) != 1.0
    torch.testing.assert_close(seen.rewards, batch.rewards * float(returns.scale))


@pytest.mark.parametrize("algo", mostly_slow(ONLINE, "sac"))
def test_a_resumed_run_is_exact(algo: str, tmp_path: Path) -> None:
    checkpoint = assert_exact(eventful(algo, tmp_path, num_envs=2, kwargs=SCALED), 40).checkpoint_path
    scale = read_checkpoint(checkpoint).tensors["networks"]["rewards.scale"]
    assert 0.0 < float(scale) < 1.0


@pytest.mark.parametrize("world", ["Pendulum-v1", "InvertedPendulum-v5", "Counter"])
def test_a_return_starts_at_0_in_an_episode_that_a_resumed_run_begins(world: str, tmp_path: Path) -> None:
    """Of environments that replay no episode, that load no state, and that have none."""
    given, fields = UserEnvironments(), dict[str, Any]()
    if world == "Counter":
        given = UserEnvironments(TensorEnvMaker(world, Counter(), single_instance=True))
        fields = {"given_envs": ["env_id"]}
    config = tiny("sac", tmp_path, env_id=world, num_envs=4, checkpoint_interval=20, kwargs=SCALED, **fields)
    run = interrupted(config.replace(total_timesteps=24), 20, given=given)
    changes = {"Pendulum-v1": {"env_kwargs": {"g": 5.0}}, "InvertedPendulum-v5": {"environments": "local"}}
    end = resume_training(run, given=given, quiet=True, changes=changes.get(world))
    assert run_record(run)["exact_resume"] is False
    last = read_checkpoint(end.checkpoint_path)
    current, rewards = last.tensors["collector"]["scaling.current"], replay_rows(last)[-4:, -2].double()
    assert current.any()
    torch.testing.assert_close(current, torch.where(current == 0, 0.0, rewards))  # 0 where the episode has ended


def test_in_a_tensor_environment(tmp_path: Path) -> None:
    assert_exact(eventful("sac", tmp_path, env_id="torch/Pendulum-v1", num_envs=4, kwargs=SCALED), 40)


def test_every_member_has_its_own_scale(tmp_path: Path) -> None:
    configs = [tiny("sac", tmp_path / str(seed), seed=seed, kwargs=SCALED) for seed in (3, 4)]
    alone = [read_checkpoint(train(config).checkpoint_path) for config in configs]
    members = [read_checkpoint(result.checkpoint_path) for result in train_population(configs)]
    for one, member in zip(alone, members):
        torch.testing.assert_close(replay_rows(one), replay_rows(member), rtol=1e-4, atol=1e-4)
        for name, tensor in one.tensors["networks"].items():
            torch.testing.assert_close(member.tensors["networks"][name], tensor, rtol=1e-3, atol=1e-4)
    scales = [one.tensors["networks"]["rewards.scale"] for one in members]
    assert scales[0] != scales[1]


def test_a_policy_starts_another_run(tmp_path: Path) -> None:
    """With the setting in one of the runs only."""
    scaled = train(tiny("sac", tmp_path / "a", kwargs=SCALED))
    plain = train(tiny("sac", tmp_path / "b", init_from=str(scaled.run_dir)))
    train(tiny("sac", tmp_path / "c", init_from=str(plain.run_dir), kwargs=SCALED))


@pytest.mark.parametrize("scaled", [True, False])
def test_a_resumed_run_cannot_change_it(scaled: bool, tmp_path: Path) -> None:
    """Critics that learned scaled values do not fit raw rewards."""
    run = train(tiny("sac", tmp_path, total_timesteps=25, eval_episodes=0, kwargs={"normalize_rewards": scaled}))
    message = rf"algo_kwargs.normalize_rewards: {not scaled} differs from the {scaled} of this run's networks"
    with pytest.raises(ConfigError, match=message):
        resume_training(run.run_dir, overrides=[f"normalize_rewards={str(not scaled).lower()}"])


def test_a_run_from_another_one_starts_with_its_statistics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the copied critics would have values in other units until the statistics have settled."""
    first = train(tiny("sac", tmp_path / "a", kwargs=SCALED | {"eval_interval": 20}, eval_episodes=1))
    then = train(tiny("sac", tmp_path / "b", init_from=str(first.run_dir), kwargs=SCALED, num_envs=2))
    ends = [read_checkpoint(run.checkpoint_path).tensors["collector"] for run in (first, then)]
    assert [int(end["scaling.count"]) for end in ends] == [60, 120]
    assert "statistics of returns" not in caplog.text
    train(tiny("sac", tmp_path / "c", init_from=str(first.run_dir / "best"), kwargs=SCALED))
    assert "has no statistics of returns; rewards are scaled anew" in caplog.text
