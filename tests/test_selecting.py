"""Selection without an environment: the selected policy, abstentions, and a few deciding episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes, hold_out
from rl_training.environments.playing import Evaluator
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.models.mlp import NetworkConfig
from rl_training.models.policies import Normalizer, Policy
from rl_training.off_policy_evaluation import choosing
from rl_training.off_policy_evaluation.choosing import Assessment, Chooser, Estimate
from rl_training.off_policy_evaluation.evaluation import _distances, evaluate, make_plan
from rl_training.off_policy_evaluation.policies import Candidate
from rl_training.off_policy_evaluation.support import Support
from rl_training.spaces import SpaceSpec
from tests.judging_worlds import Chain, Formula, policy

CPU = torch.device("cpu")
NETWORK = NetworkConfig(hidden_sizes=(16,))


def logged(
    episodes: int = 30, length: int = 8, *, middles: tuple[float, ...] = (0.0,), width: float = 0.1
) -> TransitionDataset:
    """Actions around a middle that each episode has; the reward is the action, and states do not matter."""
    rng = np.random.default_rng(0)
    middle = np.repeat([middles[i % len(middles)] for i in range(episodes)], length)
    actions = middle + rng.uniform(-width, width, episodes * length)
    obs = rng.uniform(-1.0, 1.0, (episodes * length, 2))
    cut = np.tile(np.arange(length) == length - 1, episodes)
    following = np.where(cut[:, None], 0.0, np.roll(obs, -1, 0))
    return TransitionDataset.from_arrays(
        obs, actions[:, None], actions, np.zeros(len(obs), bool), cut, following, action_low=-1.0,
        action_high=1.0, name="logs",
    )  # fmt: skip


def constant(action: float) -> Policy:
    return policy(Formula(lambda obs: torch.full((len(obs), 1), action)), 2)


def chooser(policies: dict[str, Policy], data: TransitionDataset, updates: int = 300, **changes: Any) -> Chooser:
    spaces, config = data.spaces, TrainConfig(algo="bc", env_id="X", total_timesteps=1)
    found = [Candidate(name, Path(name), one, spaces, config) for name, one in policies.items()]
    settings = {"gamma": 0.9, "learning_rate": 3e-3, "tau": 0.2} | changes
    return Chooser(found, data, data, make_plan(updates, 64, network=NETWORK, **settings), 4, CPU)


def test_an_optimist_is_never_chosen() -> None:
    """FQE extrapolates that the largest action is best, although no logged episode has taken it."""
    data = logged(60, width=0.4)
    made = chooser({"optimist": constant(1.0), "high": constant(0.25), "low": constant(-0.25)}, data, updates=200)
    value = {
        one.name: one.value
        for one in evaluate(
            made.found, data, made.plan, "fqe", 4, None, CPU, lambda done: None, held_out=False
        ).policies
    }
    assert max(value, key=lambda name: value[name] or 0.0) == "optimist"
    found = made.by_fqe()
    assert (found.trial, found.abstained, found.reasons) == ("high", False, ())
    assert found.checkpoint == Path("high")
    outside = {one.name: one.outside for one in found.candidates}
    assert outside["optimist"] == 1.0
    assert max(outside["high"], outside["low"]) <= choosing.MOST_OUTSIDE
    assert [name for name, _ in found.ranking] == ["high", "low"]
    assert [one.name for one in found.candidates] == ["high", "low", "optimist"]
    chosen = found.candidates[0].estimate
    assert chosen is not None
    assert found.data is not None
    assert found.data.value < chosen.low < chosen.value < chosen.high


def test_an_optimist_alone_is_an_abstention() -> None:
    made = chooser({"optimist": constant(1.0), "worse": constant(-0.9)}, logged(), updates=20)
    found = made.by_fqe()
    assert found.abstained
    assert (found.trial, found.checkpoint, found.ranking, found.data) == (None, None, (), None)
    assert found.safe == choosing.SAFE_CLONE
    assert "no candidate acts like the data" in found.reasons[0]
    anyway = chooser({"optimist": constant(1.0), "near": constant(0.12)}, logged(), updates=20).by_fqe(anyway=True)
    assert anyway.trial == "near"
    assert anyway.reasons
    assert anyway.candidates[0].estimate is not None
    document = json.loads(json.dumps(found.to_dict() | {"judgement": None}))
    assert (document["abstained"], document["trial"]) == (True, None)


@pytest.mark.parametrize("rewards", ["constant", "noise"])
def test_values_that_do_not_differ_are_an_abstention(rewards: str) -> None:
    data = logged()
    noise = np.random.default_rng(1).normal(size=len(data)).astype(np.float32)
    values = torch.from_numpy(noise) if rewards == "noise" else torch.ones(len(data))
    data.layout.unpack(torch.from_numpy(data.rows)).rewards.copy_(values)
    found = chooser({"one": constant(0.05), "other": constant(-0.05)}, data, updates=50).by_fqe()
    assert found.abstained
    assert any("less than their intervals" in reason for reason in found.reasons)
    assert found.safe in ("one", "other")
    assert [one.outside for one in found.candidates] == sorted(one.outside for one in found.candidates)


def test_fqe_that_overestimates_a_clone_is_an_abstention(monkeypatch: pytest.MonkeyPatch) -> None:
    made = chooser({"one": constant(0.05), "other": constant(-0.05)}, logged(), updates=20)
    monkeypatch.setattr(made, "_anchors", lambda watch: (Estimate(1.0, 0.9, 1.1), Estimate(2.0, 1.5, 2.5)))
    found = made.by_fqe()
    assert found.reasons == (
        "FQE overestimates on these data: it values a clone of them at 2 [1.5, 2.5], and their own return is "
        "1 [0.9, 1.1]",
    )
    assert found.clone == Estimate(2.0, 1.5, 2.5)
    assert len(made.by_fqe(anyway=True).reasons) >= 1


def test_a_clone_of_the_data_is_worth_what_the_data_are() -> None:
    data, clone = chooser({"one": constant(0.0)}, logged(200, middles=(0.5, -0.3)))._anchors(lambda done: None)
    assert data.value == pytest.approx(0.1 / (1.0 - 0.9), rel=0.35)
    assert clone.low is not None
    assert clone.high is not None
    assert clone.low <= data.value <= clone.high


def test_discrete_actions() -> None:
    """A chain whose data take both actions in every state."""
    columns = Chain(states=3).data(40)
    del columns["action_probs"]
    data = TransitionDataset.from_arrays(**columns, num_actions=2, name="chain")
    policies = {"on": Chain(states=3).policy(lambda s: True), "back": Chain(states=3).policy(lambda s: False)}
    found = chooser(policies, data, updates=150).by_fqe()
    assert (found.trial, found.reasons) == ("on", ())


# Support.


def outside(data: TransitionDataset, *policies: Policy) -> list[float]:
    support = Support(data, data, 0, CPU)
    return [support.outside(one) for one in policies]


def test_a_mixture_supports_its_modes_and_not_their_mean() -> None:
    left, mean, right = outside(logged(60, middles=(-0.8, 0.8)), *(constant(one) for one in (-0.8, 0.0, 0.8)))
    assert max(left, right) <= choosing.MOST_OUTSIDE
    assert mean == 1.0


def test_logged_actions_are_outside_in_one_state_of_twenty() -> None:
    """The threshold is the 95 % quantile of the data's own distances."""
    data = logged(60)
    support = Support(data, data, 0, CPU)
    apart = support._distances(support._pairs(support._obs, torch.zeros(len(support._obs), 1))[:, 2:] * 0)
    assert apart.shape == (len(data),)
    actions = data.layout.unpack(torch.from_numpy(data.rows)).actions
    assert float((support._distances(actions) > support.threshold).float().mean()) == pytest.approx(0.05, abs=0.01)


def test_the_nearest_pair_is_of_another_episode() -> None:
    """Two episodes that are constant and apart: the nearest pair of another episode is far away."""
    obs = np.repeat([[0.0], [1.0]], 5, axis=0)
    end = np.arange(10) % 5 == 4
    data = TransitionDataset.from_arrays(
        obs, np.zeros((10, 1)), np.zeros(10), np.zeros(10, bool), end, obs, action_low=-1.0, action_high=1.0
    )
    assert Support(data, data, 0, CPU).threshold == pytest.approx(2.0, rel=1e-3)  # one is two stds away


def test_an_observation_that_only_held_out_episodes_have_hides_no_action() -> None:
    """A component for each episode, as the number of a patient: constant in all episodes that are not held out."""
    plain, episodes, length = logged(), 30, 8
    batch = plain.columns_at(np.arange(len(plain)))
    numbers = np.repeat(np.eye(episodes), length, axis=0)
    data = TransitionDataset.from_arrays(
        np.concatenate([batch.obs, numbers], axis=1),
        batch.actions.numpy(),
        plain.rewards,
        plain.dones,
        np.arange(1, len(plain) + 1) % length == 0,
        np.concatenate([batch.next_obs, numbers], axis=1),
        action_low=-1.0,
        action_high=1.0,
    )
    others, held_out = hold_out(data, 0.2)
    support, both = Support(held_out, others, 0, CPU), data.observation_moments()
    assert support.outside(constant(1.0)) == 1.0
    assert support.outside(constant(0.0)) < 0.2
    np.testing.assert_allclose(support._mean, both[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(support._scale / 32**0.5, both[1], rtol=1e-4)


def test_a_policy_whose_weights_are_not_finite_is_outside() -> None:
    actor = nn.Linear(2, 1)
    with torch.no_grad():
        actor.weight.fill_(torch.nan)
    actor.mode, actor.stochastic = actor.forward, False  # type: ignore[assignment]
    assert outside(logged(), policy(actor, 2)) == [1.0]


def test_a_policy_with_its_own_normaliser_is_compared_by_its_actions() -> None:
    """The same actions, of raw and of normalised observations."""

    def of(scale: float, shift: float) -> Policy:
        normalizer = Normalizer(2, enabled=True)
        normalizer.set_moments(torch.full((2,), shift), torch.full((2,), scale))

        def act(seen: Tensor) -> Tensor:
            return 0.4 * (scale * seen + shift)[:, :1]

        return Policy(normalizer, Formula(act))

    plain = policy(Formula(lambda obs: 0.4 * obs[:, :1]), 2)
    shares = outside(logged(), plain, of(2.0, 0.5), of(0.1, -3.0))
    assert 0.2 < shares[0] < 1.0
    assert shares[1:] == pytest.approx([shares[0]] * 2, abs=0.01)


def test_a_policy_that_is_sampled_is_compared_by_its_samples() -> None:
    """Its mode is among the logged actions, most of its samples are not."""
    noisy, data = policy(Formula(lambda obs: torch.zeros(len(obs), 1), spread=1.0), 2), logged()
    plain, sampled = (chooser({"noisy": noisy}, data, stochastic=given).assessed[0] for given in (False, True))
    assert plain.eligible
    assert sampled.outside is not None
    assert sampled.outside > 0.8
    near, far = (_distances(data, [noisy], 0, sampled=given)[0][0] for given in (False, True))
    assert near < 0.05
    assert far == pytest.approx(0.5 * (2.0 / np.pi) ** 0.5, rel=0.2)


def test_held_out_episodes_are_compared_with_the_others() -> None:
    split = hold_out(logged(40), 0.25)
    support = Support(split.held_out, split.training, 0, CPU)
    assert support.outside(constant(0.0)) <= choosing.MOST_OUTSIDE
    assert support.outside(constant(0.5)) == 1.0
    assert len(Episodes.of(split.held_out, "a test").starts) == 10


# Reasons.


def test_reasons_to_doubt() -> None:
    data = Estimate(1.0, 0.5, 1.5)
    clear = [Estimate(3.0, 2.5, 3.5), Estimate(1.2, 0.7, 1.7)]
    assert choosing._doubts(clear, data) == []
    assert choosing._doubts(clear[:1], data) == []
    low = choosing._doubts([Estimate(3.0, 0.9, 5.1), Estimate(-3.0, -5.1, -0.9)], data)
    assert low == ["the best lower bound, 0.9, does not exceed the data's own return, 1"]
    close = choosing._doubts([Estimate(3.0, 2.0, 4.0), Estimate(3.5, 2.5, 4.5)], data)
    assert close == ["the values differ by 0.5, less than their intervals (2)"]


def test_only_a_clone_above_the_data_is_overestimated() -> None:
    """A clone of mixed data may be worth less than they are."""
    data = Estimate(1.0, 0.5, 1.5)
    assert choosing._overestimate(data, Estimate(2.0, 1.5, 2.5)) is None
    assert choosing._overestimate(data, Estimate(-9.0, -9.5, -8.5)) is None
    assert choosing._overestimate(data, Estimate(2.0, 1.6, 2.5)) is not None


# Episodes.


def test_a_few_episodes_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes go to the better candidates, independent of FQE; the caller sets their number."""
    rng, played = np.random.default_rng(0), []

    def play(candidate: Candidate, number: int, sampled: bool) -> float:
        assert not sampled
        played.append((candidate.name, number))
        return float(candidate.name) + rng.normal()

    monkeypatch.setattr(choosing, "_play", play)
    made = chooser({str(value): constant(0.1 * value) for value in range(8)}, logged(), updates=10)
    found = made.by_episodes(24)
    assert found.trial == "7"
    assert not found.reasons
    assert len(played) == len(set(played)) == 24
    counts = {one.name: one.episodes for one in found.candidates}
    assert counts["7"] == max(counts.values())
    assert min(counts.values()) >= 1
    best = next(one for one in found.candidates if one.name == "7")
    assert best.estimate is not None
    assert best.estimate.low is not None
    assert best.estimate.low < best.estimate.value < best.estimate.high
    assert best.outside > choosing.MOST_OUTSIDE


def test_equal_returns_do_not_leave_all_episodes_to_one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse reward: every candidate fails at first, and one of them succeeds in every third episode."""

    def play(candidate: Candidate, number: int, sampled: bool) -> float:
        return float(candidate.name == "2" and number % 3 == 2)

    monkeypatch.setattr(choosing, "_play", play)
    made = chooser({str(value): constant(0.1 * value) for value in range(4)}, logged(), updates=10)
    found = made.by_episodes(40)
    assert found.trial == "2"
    assert {one.name: one.episodes for one in made.by_episodes(10).candidates} == {"0": 3, "1": 3, "2": 2, "3": 2}


def test_the_candidate_that_episodes_select_is_listed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are played twice. The selected one has the larger mean, the other one the larger lower bound."""
    returns = {"0": [3.0, 1.0], "1": [1.9, 1.9]}
    monkeypatch.setattr(choosing, "_play", lambda candidate, number, sampled: returns[candidate.name][number])
    found = chooser({name: constant(0.0) for name in returns}, logged(), updates=10).by_episodes(4)
    assert [(one.name, one.episodes) for one in found.candidates] == [("0", 2), ("1", 2)]
    assert found.trial == found.ranking[0][0] == "0"


def test_a_warning_if_several_candidates_were_played_most() -> None:
    said: list[str] = []
    for played in ([2, 2, 2, 1], [3, 2, 1, 1], [0, 0]):
        choosing._warn_of_tie(played, said.append)
    assert said == ["3 trials are tied at 2 episodes each; use at least 20 episodes"]


def test_a_warning_if_a_trial_with_fewer_episodes_has_a_higher_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate with most episodes is selected, as documented, although the last of them was bad."""
    returns = {"0": [1.0, 1.0, -7.0], "1": [0.0, 0.0, 0.0]}
    monkeypatch.setattr(choosing, "_play", lambda candidate, number, sampled: returns[candidate.name][number])
    made = chooser({str(value): constant(0.1 * value) for value in range(2)}, logged(), updates=10)
    said: list[str] = []
    found = made.by_episodes(4)
    assert {one.name: one.episodes for one in found.candidates} == {"0": 3, "1": 1}
    choosing._warn_of_higher_mean(found, said.append)
    assert said == [
        "1 (0, episodes: 1) has a higher mean return than the selected 0 (-1.667, episodes: 3); "
        "play more episodes to compare them"
    ]
    returns["0"] = [1.0, 1.0, 1.0]
    choosing._warn_of_higher_mean(made.by_episodes(4), said.append)
    choosing._warn_of_higher_mean(made._selection(), said.append)  # it abstained
    assert len(said) == 1


def test_the_interval_of_returns_is_that_of_their_mean() -> None:
    returns = np.array([1.0, 2.0, 4.0, 5.0])
    value, low, high = choosing._mean_return(returns)
    assert low is not None
    assert high is not None
    assert (value, low + high) == pytest.approx((3.0, 6.0))
    assert high - low == pytest.approx(3.182 * returns.std(ddof=1), rel=0.01)
    assert choosing._mean_return(returns[:1]) == (1.0, None, None)


def test_episodes_are_the_same_for_every_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Played in CartPole: the same number is the same episode, and two numbers are two episodes."""
    spaces = SpaceSpec(obs_dim=4, num_actions=2, action_dtype="int64")
    config = TrainConfig(algo="dqn", env_id="CartPole-v1", total_timesteps=1)
    lean = policy(Formula(lambda obs: (obs[:, 2] > 0).long()), 4)
    candidate = Candidate("lean", Path("lean"), lean, spaces, config)
    first, again, other = (choosing._play(candidate, number, False) for number in (0, 0, 1))
    assert first == again
    assert first != other
    monkeypatch.setattr(Evaluator, "play", lambda *given, deterministic: pytest.fail(str(deterministic)))
    for sampled, meant in ((True, "False"), (False, "None")):
        with pytest.raises(pytest.fail.Exception, match=meant):
            choosing._play(candidate, 0, sampled)
    with pytest.raises(ConfigError, match="episodes must be > 1, the number of candidates, got 1"):
        choosing._require_environment([candidate], 1)
    without = Candidate("lean", Path("lean"), lean, spaces, config.replace(env_id=None))
    with pytest.raises(ConfigError, match="the run of lean has no environment"):
        choosing._require_environment([without], 5)
    elsewhere = Candidate("lean", Path("lean"), lean, spaces, config.replace(env_id=None, eval_env="CartPole-v1"))
    choosing._require_environment([elsewhere], 5)
    monkeypatch.undo()
    assert choosing._play(elsewhere, 0, False) == first


def test_episodes_are_played_in_a_tensor_environment() -> None:
    spaces = SpaceSpec(obs_dim=4, num_actions=2, action_dtype="int64")
    config = TrainConfig(algo="dqn", env_id="torch/CartPole-v1", total_timesteps=1, eval_max_steps=20)
    lean = policy(Formula(lambda obs: (obs[:, 2] > 0).long()), 4)
    assert choosing._play(Candidate("lean", Path("lean"), lean, spaces, config), 0, False) == 20.0


def test_an_assessment_is_eligible_up_to_the_bound() -> None:
    assert Assessment("a", Path("a"), choosing.MOST_OUTSIDE).eligible
    assert not Assessment("a", Path("a"), choosing.MOST_OUTSIDE + 1e-6).eligible
