"""Environments that step N simulations in one call: what is stored, saved, evaluated and refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training import DQN, SAC, TensorStep, TransitionDataset, load
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout
from rl_training.environments.making import spaces_of
from rl_training.environments.tensor_env import ActionScaling
from rl_training.environments.tensor_playing import make_evaluator
from rl_training.environments.torch_envs import TorchCartPole, TorchEnv, TorchPendulum
from rl_training.environments.user_environments import TensorEnvMaker, UserEnvironments
from rl_training.errors import ConfigError, DivergedError
from rl_training.experience.moments import RunningMoments
from rl_training.experience.tensor_collector import EpisodeStatistics, TensorCollector
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runs.building import build_learner
from rl_training.spaces import SpaceSpec
from tests.runs import (
    TINY,
    KillAt,
    differences,
    interrupted,
    mostly_slow,
    owned,
    replay_rows,
    resume,
    run_record,
    tiny,
    train,
)
from tests.test_exact_resume import assert_exact, eventful

PENDULUM = "torch/Pendulum-v1"


class Counter:
    """Counts steps: the observation is (a random label of the episode, the step). Simulation i ends after i + 1."""

    single_observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    max_episode_steps: int | None = None
    broken_at: int | None = None

    def __init__(self, num_envs: int = 4, device: Any = "cpu") -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.generator, self.made, self.closed = torch.Generator().manual_seed(0), 0, False

    def _first(self) -> Tensor:
        label = torch.rand(self.num_envs, generator=self.generator)
        return torch.stack([label, torch.zeros_like(label)], 1)

    def reset(self, seed: int) -> Tensor:
        self.generator.manual_seed(seed)
        self.obs = self._first()
        return self.obs.clone()

    def step(self, actions: Tensor) -> TensorStep:
        assert actions.shape == (self.num_envs, 1)
        self.made += 1
        final = self.obs + torch.tensor([0.0, 1.0])
        ended = final[:, 1] > torch.arange(self.num_envs)
        self.obs = torch.where(ended[:, None], self._first(), final)
        rewards = final[:, 1].clone()
        if self.made == self.broken_at:
            rewards[1] = torch.nan
        even = torch.arange(self.num_envs) % 2 == 0
        return TensorStep(self.obs.clone(), rewards, ended & even, ended & ~even, final)

    def close(self) -> None:
        self.closed = True


def collector_of(env: Any, algo: str = "sac", capacity: int = 64, **options: Any) -> TensorCollector:
    config, spec = tiny(algo, Path("unused")), get_algorithm_spec(algo)
    maker = TensorEnvMaker("it", env, single_instance=True)
    spaces = spaces_of(config, given=UserEnvironments(maker))
    resolved, normalises = spec.sections.resolve(config.algo_kwargs), "moments" in options
    learner = build_learner(spec.sections, resolved, config, spaces, normalize_observations=normalises)
    buffer = ReplayBuffer(capacity, RowLayout.of(spaces), learner.generator, together=0)
    defaults: dict[str, Any] = {"seed": 3, "close": maker.close, "random_steps": 20, "total_steps": 100}
    collector = TensorCollector(env, spaces, learner, buffer, **defaults | options)
    collector.start()
    return collector


@pytest.mark.parametrize(("make", "env_id"), [(TorchPendulum, "Pendulum-v1"), (TorchCartPole, "CartPole-v1")])
def test_torch_environments_equal_gymnasium(make: type[TorchEnv], env_id: str) -> None:
    """Row by row, through terminations and time limits; the states of new episodes are copied."""
    batch, single = make(3), [gym.make(env_id) for _ in range(3)]
    batch.reset(1)

    def align(index: int) -> None:
        single[index].reset()
        single[index].unwrapped.state = batch.state_dict()["state"][index].numpy().copy()  # type: ignore[attr-defined]

    for index in range(3):
        align(index)
    rng, ends = np.random.default_rng(0), {"terminated": 0, "truncated": 0}
    for _ in range(520):
        if env_id == "Pendulum-v1":
            actions = rng.uniform(-2.5, 2.5, (3, 1)).astype(np.float32)
        else:  # the first simulation balances, so that it reaches its time limit
            angle, turning = batch.state_dict()["state"][0, 2:]
            actions = np.array([int(angle + turning > 0), *rng.integers(2, size=2)])
        answer = batch.step(torch.from_numpy(actions))
        for index, env in enumerate(single):
            obs, reward, terminated, truncated, _ = env.step(actions[index])
            np.testing.assert_allclose(answer.final_obs[index].numpy(), obs, rtol=1e-6, atol=1e-6)
            assert float(answer.rewards[index]) == pytest.approx(float(reward), rel=1e-6)
            assert (bool(answer.terminated[index]), bool(answer.truncated[index])) == (terminated, truncated)
            if terminated or truncated:
                ends["terminated"] += bool(terminated)
                ends["truncated"] += bool(truncated)
                align(index)
                assert not torch.equal(answer.obs[index], answer.final_obs[index])
            else:
                assert torch.equal(answer.obs[index], answer.final_obs[index])
    assert ends["truncated"] > 0
    assert (ends["terminated"] > 0) is (env_id == "CartPole-v1")


def test_a_stored_successor_is_the_true_one() -> None:
    collector = collector_of(Counter())
    for _ in range(16):
        collector.act()
        collector.receive()
    batch = collector.layout.unpack(collector.buffer.rows)
    assert torch.equal(batch.next_obs, batch.obs + torch.tensor([0.0, 1.0]))
    assert torch.equal(batch.rewards, batch.next_obs[:, 1])
    index = torch.arange(64) % 4
    assert torch.equal(batch.dones.bool(), (batch.next_obs[:, 1] > index) & (index % 2 == 0))
    labels = {float(label) for label in batch.obs[batch.obs[:, 1] == 0, 0]}
    assert len(labels) == 16 + 8 + 6 + 4  # every episode begins elsewhere
    assert collector.steps == len(collector.buffer) == 64


def test_rows_actions_and_the_ring_are_those_of_the_host() -> None:
    rng = np.random.default_rng(0)
    for spaces in (
        SpaceSpec(3, (-2.0, 0.1), (2.0, 0.7)),
        SpaceSpec(2, num_actions=5, start=-1, action_dtype="int64"),
    ):
        layout = RowLayout.of(spaces)
        here = ReplayBuffer(7, layout, torch.Generator())
        there = ReplayBuffer(7, layout, torch.Generator(), together=0)
        for _ in range(4):
            actions = rng.integers(5, size=4) if spaces.discrete else rng.uniform(-1.1, 1.1, (4, 2)).astype("f4")
            columns = rng.normal(size=(4, spaces.obs_dim)), actions, rng.normal(size=4)
            rest = rng.normal(size=(4, spaces.obs_dim)), rng.integers(2, size=4)
            rows = layout.pack(*columns, *rest)
            tensors = layout.pack_tensors(*(torch.from_numpy(np.asarray(c)) for c in (*columns, *rest)))
            assert torch.equal(tensors, torch.from_numpy(rows))
            here.add(rows)
            there.append(tensors)
            there.appended(4)
            sent = ActionScaling(spaces, torch.device("cpu"))(torch.from_numpy(actions)).numpy()
            np.testing.assert_array_equal(sent, spaces.to_env(actions), strict=True)
        assert torch.equal(here.rows, there.rows)
        assert len(here) == len(there) == 7
        assert torch.equal(here.draw(50), there.draw(50))
        restored = ReplayBuffer(7, layout, torch.Generator(), together=0)
        restored.load(there.rows, added=there.added)
        for buffer in (restored, there):
            buffer.append(tensors)
        assert torch.equal(restored.rows, there.rows)


@pytest.mark.parametrize("window", [3, 20])
def test_statistics_of_episodes(window: int) -> None:
    """Also if more episodes end in one step than the window holds."""
    statistics, rng = EpisodeStatistics(8, window, torch.device("cpu")), np.random.default_rng(0)
    totals, steps, returns = np.zeros(8), np.zeros(8), deque[float](maxlen=window)
    lengths = deque[float](maxlen=window)
    assert statistics.means() == {}
    for _ in range(30):
        rewards, ended = rng.normal(size=8), rng.random(8) < rng.choice([0.05, 0.9])
        statistics.add(torch.from_numpy(rewards), torch.from_numpy(ended))
        totals, steps = totals + rewards, steps + 1
        returns.extend(totals[ended])
        lengths.extend(steps[ended])
        totals[ended] = steps[ended] = 0
        expected = {"rollout_return_mean": np.mean(returns), "rollout_length_mean": np.mean(lengths)}
        assert statistics.means() == pytest.approx(expected if returns else {})


def test_running_moments_on_tensors() -> None:
    host, device, rng = RunningMoments(3), RunningMoments(3, torch.device("cpu")), np.random.default_rng(0)
    for _ in range(5):
        obs = rng.normal(5.0, 2.0, (4, 3)).astype(np.float32)
        host.add(obs)
        device.add(torch.from_numpy(obs))
    np.testing.assert_allclose(device.mean.numpy(), host.mean, rtol=1e-13)
    np.testing.assert_allclose(device.std.numpy(), host.std, rtol=1e-13)
    again = RunningMoments(3, torch.device("cpu"))
    again.load(device.record())
    assert again.record() == device.record()
    with pytest.raises(ValueError, match="moments of 3 and 3 components, not 4"):
        RunningMoments(4, torch.device("cpu")).load(device.record())


@contextmanager
def host_reads_fail() -> Iterator[None]:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the host reads a tensor")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero"):
            patch.setattr(Tensor, name, refuse)
        yield


@pytest.mark.parametrize("algo", ["sac", "td3", "dqn", "flash_sac"])
def test_a_step_reads_nothing_back(algo: str) -> None:
    env = TorchCartPole(4) if algo == "dqn" else TorchPendulum(4)
    moments = RunningMoments(4 if algo == "dqn" else 3, torch.device("cpu"))
    collector = collector_of(env, algo, random_steps=8, moments=moments)
    with host_reads_fail():
        for _ in range(6):
            collector.act()
            collector.receive()
        with pytest.raises(AssertionError, match="the host reads a tensor"):
            collector.statistics()
    assert collector.steps == len(collector.buffer) == 24
    assert torch.isfinite(collector.buffer.rows[:24]).all()


@pytest.mark.parametrize("algo", mostly_slow(["sac", "td3", "dqn", "flash_sac"], "sac", "dqn"))
def test_a_resumed_run_is_exact(algo: str, tmp_path: Path) -> None:
    env_id = "torch/CartPole-v1" if algo == "dqn" else PENDULUM
    assert_exact(eventful(algo, tmp_path, env_id=env_id, num_envs=4, env_kwargs={"max_episode_steps": 9}), 40)


def test_a_resumed_run_from_data_is_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    obs, actions = rng.normal(size=(50, 3)), rng.uniform(-2.0, 2.0, (50, 1))
    data = TransitionDataset.from_arrays(
        observations=obs, actions=actions, rewards=rng.normal(size=50), terminals=np.arange(50) % 10 == 9,
        next_observations=obs + 1, action_low=-2.0, action_high=2.0,
    )  # fmt: skip
    assert_exact(eventful("rlpd", tmp_path, env_id=PENDULUM, num_envs=4), 30 + 40, dataset=data)


def test_an_environment_without_state_is_reset(tmp_path: Path) -> None:
    given = UserEnvironments(TensorEnvMaker("Counter", Counter(), single_instance=True))
    config = tiny("sac", tmp_path, env_id="Counter", given_envs=["env_id"], num_envs=4, checkpoint_interval=20)
    run = interrupted(config, 20, given=given)
    assert "step 20: Counter has no state_dict" in run_record(run)["inexact"]
    resumed = resume(run, given=given)
    record = run_record(run)
    assert record["exact_resume"] is False
    assert record["inexact"][1].endswith("Counter cannot restore its state; all of its episodes were reset")
    rows = replay_rows(read_checkpoint(resumed.checkpoint_path))
    assert len(rows) == 60
    assert torch.equal(rows[:, 2:4], rows[:, :2] + torch.tensor([0.0, 1.0]))


def test_what_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    env = Counter()
    env.broken_at = 7  # step 28
    given = UserEnvironments(TensorEnvMaker("Counter", env, single_instance=True))
    config = tiny("sac", tmp_path, env_id="Counter", given_envs=["env_id"], num_envs=4, checkpoint_interval=8)
    with pytest.raises(DivergedError, match="environment 1 returned a non-finite observation or reward by step 32"):
        train(config, given=given)
    (run,) = tmp_path.iterdir()
    newest = max(run.glob("checkpoints/step_*"))
    assert replay_rows(read_checkpoint(newest)).isfinite().all()


def test_an_evaluation_plays_the_first_episodes_of_every_simulation() -> None:
    config = tiny("sac", Path("unused"), env_id="Counter", eval_max_steps=None)
    spaces = SpaceSpec(2, (-1.0,), (1.0,))
    policy = SAC(Counter(), hidden_sizes=[4])
    learner = build_learner(
        get_algorithm_spec("sac").sections,
        get_algorithm_spec("sac").sections.resolve(owned("sac", TINY)),
        policy.config,
        spaces,
    )
    evaluator = make_evaluator(
        config, spaces, UserEnvironments(TensorEnvMaker("it", Counter(), single_instance=True))
    )
    played = evaluator.play(learner.model.policy, 6)
    assert played.lengths.tolist() == [1, 2, 3, 4, 1, 2]
    assert played.returns.tolist() == [1, 3, 6, 10, 1, 3]
    assert played.cut == 0
    bounded = make_evaluator(
        config.replace(eval_max_steps=2), spaces, UserEnvironments(TensorEnvMaker("it", Counter))
    )
    played = bounded.play(learner.model.policy, 4, deterministic=False)
    assert played.lengths.tolist() == [1, 2, 2, 2]
    assert played.cut == bounded.cut_episodes == 2
    limited = Counter()
    limited.max_episode_steps = 4
    few = UserEnvironments(TensorEnvMaker("it", limited, single_instance=True))
    played = make_evaluator(config.replace(eval_max_steps=2), spaces, few).play(learner.model.policy, 8)
    assert played.lengths.tolist() == [1, 2, 2, 2] * 2  # the rest of an episode is not an episode
    assert played.returns.tolist() == [1, 3, 3, 3] * 2
    assert played.cut == 4
    broken = Counter()
    broken.broken_at = 1
    evaluator = make_evaluator(config, spaces, UserEnvironments(TensorEnvMaker("it", broken, single_instance=True)))
    with pytest.raises(DivergedError, match="evaluation environment 1 returned a non-finite"):
        evaluator.play(learner.model.policy, 4)


def settings(folder: Path, algo: str = "sac", **fields: Any) -> dict[str, Any]:
    return owned(algo, TINY) | {"seed": 3, "output_dir": folder, "device": "cpu", "eval_episodes": 2} | fields


def test_the_managed_api(tmp_path: Path) -> None:
    """An instance is used for training alone; `eval_env` is evaluated; `load` needs it again."""
    env = TorchPendulum(4)
    model = SAC(env, eval_env=TorchPendulum(2), **settings(tmp_path, normalize_observations=True))
    assert model.config.num_envs == 4
    result = model.learn(80, progress_bar=False)
    assert result.metrics["eval_episodes"] == 2
    again = load(result.run_dir, env=TorchPendulum(4), eval_env=TorchPendulum(2))
    assert again.evaluate(2)["eval_return_mean"] == pytest.approx(result.metrics["eval_return_mean"])
    again.resume(120, progress_bar=False)
    assert run_record(result.run_dir)["exact_resume"] is True
    alone = SAC(TorchPendulum(4), **settings(tmp_path)).learn(40, progress_bar=False)
    assert "eval_return_mean" not in alone.metrics


def test_the_same_by_id_and_by_class(tmp_path: Path) -> None:
    options = settings(tmp_path, "dqn", num_envs=3, env_kwargs={"max_episode_steps": 20})
    results = [DQN(env, **options).learn(60, progress_bar=False) for env in ("torch/CartPole-v1", TorchCartPole)]
    found = differences(*results)
    assert [name for name in found if not name.startswith("config/")] == []
    config = read_checkpoint(results[1].checkpoint_path).records["config"]
    assert config["env_id"] == "rl_training.environments.torch_envs:TorchCartPole"
    named = SAC(f"{__name__}:Counter", allow_import=True, **settings(tmp_path, num_envs=2))
    result = named.learn(40, progress_bar=False)
    assert result.metrics["eval_length_mean"] == 1.5
    with pytest.raises(ConfigError, match=r"would import the module .*; allow it with --allow-import"):
        load(result.run_dir).resume(60, progress_bar=False)


class WithPictures(Counter):
    single_observation_space = gym.spaces.Box(0, 1, (2, 2), np.float32)


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        (PENDULUM, {"wrappers": ["ClipAction"]}, r"wrappers: they apply to one Gymnasium environment"),
        (
            PENDULUM,
            {"environments": "processes"},
            r"environments: processes: torch/Pendulum-v1 steps its simulations",
        ),
        (PENDULUM, {"env_kwargs": {"gravity": 1}}, r"could not be made with env_kwargs \{'gravity': 1\}"),
        (PENDULUM, {"num_envs": 600}, r"buffer_capacity 500 is less than one step of num_envs 600"),
        ("Pendulum-v1", {"num_envs": 600}, r"buffer_capacity 500 is less than one step of num_envs 600"),
        ("torch/CartPole-v1", {}, "has discrete actions and this algorithm needs continuous ones"),
        (WithPictures, {}, "a TensorEnv needs flat vectors"),
    ],
)
def test_what_is_refused(env: Any, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        SAC(env, **settings(tmp_path, **changes)).learn(40, progress_bar=False)
    assert not list(tmp_path.glob("*/checkpoints/*"))


def test_short_intervals_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = settings(tmp_path, num_envs=64, log_interval=20, eval_episodes=0)
    SAC(PENDULUM, **options).learn(128)
    said = capsys.readouterr().err
    assert "log_interval 20: short for num_envs 64, because" in said
    assert "checkpoint_interval" not in said


def test_an_instance_has_its_number_of_simulations(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_envs: TorchPendulum has 4 simulations, got 8"):
        SAC(TorchPendulum(4), **settings(tmp_path, num_envs=8))
    result = SAC(TorchPendulum(4), **settings(tmp_path)).learn(40, progress_bar=False)
    with pytest.raises(ConfigError, match="num_envs: TorchPendulum has 6 simulations, got 4"):
        load(result.run_dir, env=TorchPendulum(6))


class Listed(Counter):
    """A `Counter` that is in the list of all that were made."""

    made_here: ClassVar[list[Counter]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.made_here.append(self)


def test_an_instance_stays_open_and_those_of_a_class_are_closed(tmp_path: Path) -> None:
    env = Counter()
    model = SAC(env, **settings(tmp_path))
    model.learn(40, progress_bar=False)
    assert not env.closed  # it belongs to the caller
    SAC(Listed, **settings(tmp_path, num_envs=4)).learn(40, progress_bar=False)
    assert Listed.made_here
    assert all(made.closed for made in Listed.made_here)


def test_videos_need_a_gymnasium_environment(tmp_path: Path) -> None:
    model = SAC(PENDULUM, **settings(tmp_path))
    model.learn(40, progress_bar=False)
    with pytest.raises(ConfigError, match="torch/Pendulum-v1 is a TensorEnv"):
        model.record(tmp_path / "film.mp4")


def test_a_population_of_tensor_environments(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, env_id=PENDULUM, num_envs=4, eval_episodes=0)
    alone = train(config, [KillAt()])
    model = SAC(
        PENDULUM, **owned("sac", TINY), num_envs=4, seeds=[3, 4], output_dir=tmp_path, device="cpu", eval_episodes=0
    )
    members = model.learn(60, progress_bar=False)
    rows = [replay_rows(read_checkpoint(one.checkpoint_path)) for one in (alone, members[0])]
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-4, atol=1e-5)
