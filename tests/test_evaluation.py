"""Evaluation plays exactly n episodes with fixed seeds and does not affect training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator
from rl_training.errors import DivergedError
from rl_training.experience.collector import Collector
from rl_training.experiment.checkpointing import Saved, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.arrays import on_arrays
from rl_training.models.policies import Policy
from rl_training.runs.building import build_learner
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.seeding import EVALUATION, episode_seed
from rl_training.seeding import EVALUATION_SEED as _SEED
from tests.runs import digest, logged, mostly_slow, tiny, train
from tests.worlds import SCRIPTED


def policy_of(config: TrainConfig) -> Policy:
    spec = get_algorithm_spec(config.algo)
    resolved = spec.sections.resolve(config.algo_kwargs)
    policy: Policy = build_learner(spec.sections, resolved, config, spaces_of(config)).model.policy
    return policy


def expected(episodes: int) -> tuple[list[float], list[int]]:
    """Returns and lengths of the scripted evaluation episodes; the seed determines label and length."""
    returns, lengths = [], []
    for number in range(episodes):
        seed = episode_seed(_SEED, EVALUATION, number % 8, number // 8)
        length = 1 + seed % 7
        returns.append(sum(seed % 16 / 8 + t / 8 for t in range(1, length + 1)))
        lengths.append(length)
    return returns, lengths


@pytest.mark.parametrize("episodes", [1, 2, 7, 10, 11, 23])
def test_exactly_n_episodes_are_played_for_any_lengths(episodes: int, tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, env_id=SCRIPTED)
    metrics = Evaluator(config, spaces_of(config)).run(policy_of(config), episodes)
    returns, lengths = expected(episodes)
    assert metrics["eval_episodes"] == episodes
    assert metrics["eval_return_mean"] == pytest.approx(np.mean(returns))
    assert metrics["eval_return_std"] == pytest.approx(np.std(returns))
    assert (metrics["eval_return_min"], metrics["eval_return_max"]) == (min(returns), max(returns))
    assert metrics["eval_length_mean"] == pytest.approx(np.mean(lengths))


@pytest.mark.parametrize(
    ("key", "at_end", "environments"),
    mostly_slow(
        [
            (*reported, environments)
            for environments in ("local", "processes")
            for reported in (("success", False), ("is_success", True), ("solved", False))
        ],
        ("success", False, "local"),
        ("is_success", True, "local"),
        ("solved", False, "local"),
        ("is_success", True, "processes"),
    ),
)
def test_success_is_that_of_the_last_step(key: str, at_end: bool, environments: str, tmp_path: Path) -> None:
    reports = {"reports": key, "at_end": at_end}
    config = tiny("sac", tmp_path, env_id=SCRIPTED, env_kwargs=reports, environments=environments)
    evaluator = Evaluator(config, spaces_of(config))
    played = evaluator.play(policy_of(config), 12)
    metrics = evaluator.summary(played)
    evaluator.close()
    if key == "solved":
        assert played.successes is None
        assert "eval_success_rate" not in metrics
        return
    successes = [float(length % 2) for length in expected(12)[1]]
    assert 0 < np.mean(successes) < 1
    assert played.episodes()["successes"] == successes
    assert metrics["eval_success_rate"] == pytest.approx(np.mean(successes))


class OnlyIfSolved(gym.Wrapper[Any, Any, Any, Any]):
    """Reports a success, but no failure."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *answer, info = super().step(action)
        return *answer, {key: value for key, value in info.items() if value}  # type: ignore[return-value]


class NaNUnlessSolved(gym.Wrapper[Any, Any, Any, Any]):
    """Reports NaN instead of a failure."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *answer, info = super().step(action)
        return *answer, {key: value or np.nan for key, value in info.items()}  # type: ignore[return-value]


@pytest.mark.parametrize("wrapper", [OnlyIfSolved, NaNUnlessSolved])
def test_an_episode_without_a_report_is_not_a_success(wrapper: type[Any], tmp_path: Path) -> None:
    """If other episodes report success. Otherwise the rate could only be 1 or missing."""
    reports, wrappers = {"reports": "success", "at_end": True}, [f"{__name__}:{wrapper.__name__}"]
    config = tiny("sac", tmp_path, env_id=SCRIPTED, env_kwargs=reports, wrappers=wrappers, allow_import=True)
    played = Evaluator(config, spaces_of(config)).play(policy_of(config), 12)
    assert played.episodes()["successes"] == [float(length % 2) for length in expected(12)[1]]


def test_no_environment_is_stepped_more_than_its_episodes_need(tmp_path: Path, monkeypatch: Any) -> None:
    steps = []
    step = gym.Wrapper.step

    def counted(self: gym.Wrapper[Any, Any, Any, Any], action: Any) -> Any:
        if isinstance(self, gym.wrappers.OrderEnforcing):
            steps.append(1)
        return step(self, action)

    monkeypatch.setattr(gym.wrappers.OrderEnforcing, "step", counted)
    config = tiny("sac", tmp_path, env_id=SCRIPTED)
    Evaluator(config, spaces_of(config)).run(policy_of(config), 11)
    assert len(steps) == sum(expected(11)[1])


def test_the_result_does_not_depend_on_what_was_evaluated_before(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path)  # its returns show every bit of an action
    policy, spaces = policy_of(config), spaces_of(config)
    evaluator = Evaluator(config, spaces)
    evaluator.run(policy, 2)
    assert evaluator.run(policy, 12) == Evaluator(config, spaces).run(policy, 12)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_an_episode_does_not_depend_on_how_many_are_played(
    backend: str, deterministic: bool, tmp_path: Path
) -> None:
    """1, 3, 10 or 12 episodes, concurrently or sequentially, have bit-identical returns."""
    config = tiny("sac", tmp_path, kwargs={"hidden_sizes": [256, 256]}, eval_max_steps=30)
    policy, spaces = policy_of(config).requires_grad_(False), spaces_of(config)
    if backend == "numpy":
        policy = on_arrays(policy)
    played = [
        Evaluator(config, spaces, one_by_one=one_by_one).play(policy, n, deterministic=deterministic).returns
        for n, one_by_one in ((12, False), (10, False), (3, False), (1, False), (12, True))
    ]
    for returns in played[1:]:
        assert returns.tolist() == played[0][: len(returns)].tolist()
    assert len(set(played[0].tolist())) == 12


def test_processes_play_the_same_episodes(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path)
    policy, spaces = policy_of(config), spaces_of(config)
    here = Evaluator(config, spaces).run(policy, 3)
    evaluator = Evaluator(config.replace(env_processes=True), spaces)
    try:
        assert evaluator.run(policy, 3) == here
    finally:
        evaluator.close()


def test_an_evaluation_is_reproducible(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path)
    policy, spaces = policy_of(config), spaces_of(config)
    evaluator = Evaluator(config, spaces)
    first = evaluator.run(policy, 3)
    assert evaluator.run(policy, 3) == first
    assert Evaluator(config.replace(seed=99, num_envs=4), spaces).run(policy, 3) == first


def test_evaluation_seeds_are_not_training_seeds() -> None:
    assert {episode_seed(_SEED, EVALUATION, 0, k) for k in range(99)}.isdisjoint(
        {episode_seed(seed, 1, 0, k) for seed in (0, 1, _SEED) for k in range(99)}
    )


def test_evaluation_does_not_explore(tmp_path: Path) -> None:
    """A stochastic policy is evaluated with its mode: the return is the same every time, unlike a sampled one."""
    config = tiny("sac", tmp_path, env_id="Identity-v0")
    policy, spaces = policy_of(config), spaces_of(config)
    obs = torch.linspace(-1, 1, 5)[:, None]
    assert not torch.equal(policy.sample(obs, torch.randn(5, 1)), policy.mode(obs))
    returns = {Evaluator(config, spaces).run(policy, 5)["eval_return_mean"] for _ in range(3)}
    assert len(returns) == 1


def test_a_non_finite_observation_is_an_error(tmp_path: Path) -> None:
    broken = {"at": 1, "how": "obs"}
    seed = episode_seed(_SEED, EVALUATION, 0, 0)
    script = {str(seed): {"label": 1, "length": 5, "end": "terminated", "broken": broken}}
    config = tiny("sac", tmp_path, env_id=SCRIPTED, env_kwargs={"script": script})
    with pytest.raises(DivergedError, match="evaluation environment 0"):
        Evaluator(config, spaces_of(config)).run(policy_of(config), 1)


def everything(session: Session) -> dict[str, Any]:
    """All state of a run that evaluation must not change."""
    learner = session.learner.state_dict()
    saved = Saved() if session.experience is None else session.experience.save()
    return {
        "tensors": {
            name: digest(tensor) for group in ("networks", "optimizers") for name, tensor in learner[group].items()
        },
        "updates": digest(session.learner.generator.get_state()),
        "collector": {name: digest(t) for group in saved.tensors.values() for name, t in group.items()},
        "records": repr(None if session.experience is None else session.experience.record()),
        "rows": None if saved.rows is None else digest(saved.rows.rows[: saved.rows.filled]),
        "torch": digest(torch.get_rng_state()),
        "numpy": repr(np.random.get_state()),  # noqa: NPY002 - the global generator is the point
    }


@pytest.mark.parametrize("algo", mostly_slow(["dqn", "sac", "iql", "rlpd"], "sac", "iql"))
def test_the_training_state_is_untouched(algo: str, tmp_path: Path) -> None:
    compared = []

    class Compare(Callback):
        def on_step(self, session: Session) -> None:
            if session.clock.ticks in (20, 60):
                before = everything(session)
                assert session.evaluate()
                compared.append(before == everything(session))

    train(tiny(algo, tmp_path), [Compare()])
    assert compared == [True, True]


def networks(config: TrainConfig) -> dict[str, str]:
    tensors = read_checkpoint(train(config).checkpoint_path).tensors
    return {name: digest(t) for group in ("networks", "optimizers", "random") for name, t in tensors[group].items()}


@pytest.mark.parametrize("algo", mostly_slow(["dqn", "sac", "redq", "bc", "cql", "rlpd"], "sac"))
def test_evaluation_and_logging_do_not_change_a_run(algo: str, tmp_path: Path) -> None:
    plain: dict[str, Any] = {"eval_episodes": 0, "log_interval": 10_000, "checkpoint_interval": 10_000}
    plain["eval_max_steps"] = 20
    reference = networks(tiny(algo, tmp_path, **plain))
    for fields in (
        {"kwargs": {"eval_interval": 7}, "eval_episodes": 2},
        {"log_interval": 3},
        {"checkpoint_interval": 9},
        {"kwargs": {"eval_interval": 11}, "eval_episodes": 1, "log_interval": 5, "checkpoint_interval": 13},
    ):
        assert networks(tiny(algo, tmp_path, **plain | fields)) == reference, fields


@pytest.mark.parametrize("algo", mostly_slow(["dqn", "sac", "bc", "rlpd"], "rlpd"))
def test_a_run_is_determined_by_its_seed(algo: str, tmp_path: Path) -> None:
    config = tiny(algo, tmp_path)
    reference = networks(config)
    torch.manual_seed(77)
    assert networks(config) == reference
    assert networks(config.replace(seed=4)) != reference


def test_a_missing_seed_is_drawn_and_recorded(tmp_path: Path) -> None:
    results = [train(tiny("bc", tmp_path, seed=None, total_timesteps=3)) for _ in range(2)]
    seeds = [read_checkpoint(result.checkpoint_path).records["config"]["seed"] for result in results]
    assert None not in seeds
    assert seeds[0] != seeds[1]


def test_the_best_policy_is_kept(tmp_path: Path) -> None:
    """All evaluations of the scripted environment have the same return, so the first one stays the best."""
    result = train(tiny("sac", tmp_path, env_id=SCRIPTED, kwargs={"eval_interval": 20}))
    assert [path.name for path in (result.run_dir / "best").iterdir()] == ["step_000000020"]
    evaluations = [row for row in logged(result.run_dir) if "eval/mean_reward" in row]
    assert [row["step"] for row in evaluations] == ["20", "40", "60"]


def test_zero_evaluation_episodes_disable_evaluation(tmp_path: Path) -> None:
    result = train(tiny("sac", tmp_path, kwargs={"eval_interval": 10}, eval_episodes=0))
    assert not any(name.startswith("eval") for name in result.metrics)
    assert not any("eval/mean_reward" in row for row in logged(result.run_dir))


def test_collector_and_evaluator_do_not_share_environments(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Look(Callback):
        def on_training_end(self, session: Session) -> None:
            session.evaluate()
            assert session.evaluations._evaluator is not None
            assert session.evaluations._evaluator._pool is not None
            seen.extend(env.env for env in session.evaluations._evaluator._pool.envs)

    start = Collector.start

    def watched(self: Collector) -> None:
        seen.extend(env.env for env in self.envs.envs)
        start(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Collector, "start", watched)
        train(tiny("sac", tmp_path, num_envs=2, eval_episodes=3), [Look()])
    assert len({id(env) for env in seen}) == len(seen) == 5
