"""RLPD: with two critics it equals SAC bit for bit; with more it has REDQ's target and actor with LayerNorm
critics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import tensor

from rl_training.algorithms import RLPD, SAC, rlpd_loss, sac_loss
from rl_training.algorithms.redq import target_subset
from rl_training.models import MLPREDQModel, MLPSACModel
from rl_training.models.mlp import NetworkConfig
from tests.helpers import ACTIONS, CONTINUOUS, OBS, build, constant_outputs, member, random_batch, snapshot

ALPHAS: list[dict[str, Any]] = [{"alpha": 0.3}, {"alpha": "auto", "target_entropy": -2.0}]


@pytest.mark.parametrize("options", ALPHAS, ids=["fixed", "auto"])
def test_two_critics_equal_sac_bit_for_bit(options: dict[str, Any]) -> None:
    learners = []
    for kind in (RLPD, SAC):
        torch.manual_seed(5)
        learner = kind(model=MLPSACModel(OBS, ACTIONS, (16, 16)), **options)
        learner.seed(1)
        learners.append(learner)
    for i in range(6):
        batch = random_batch(seed=i)
        first, second = (learner.update(batch, global_step=i).metrics for learner in learners)
        assert first == second
    ours, theirs = (snapshot(learner) for learner in learners)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_its_loss_is_sac_s_loss() -> None:
    names = ("q1_values", "q2_values", "target_q_values", "sampled_logprobs", "sampled_q1", "sampled_q2")
    columns = {name: torch.randn(8) for name in names} | {"alpha": tensor(0.2)}
    assert rlpd_loss(columns) == sac_loss(columns)


def test_the_target_is_the_minimum_of_a_random_subset() -> None:
    """Constant targets 0 1 2 3: with subsets of two, the target mean identifies the pair that was drawn."""
    learner = build(RLPD, num_critics=4, subset_size=2, gamma=1.0, backup_entropy=False)
    constant_outputs(learner.model.target_critics.net, [0.0, 1.0, 2.0, 3.0])
    batch = random_batch(done=0.0)._replace(rewards=torch.zeros(16))
    noise = torch.zeros(2, *batch.actions.shape)
    minima = [
        float(learner.critic_loss(batch, *noise, target_subset(learner))[1]["target_q_mean"]) for _ in range(100)
    ]
    counts = [minima.count(value) for value in (0.0, 1.0, 2.0)]  # of six pairs three, two and one
    assert sum(counts) == 100
    assert counts[0] > counts[1] > counts[2] > 0


def test_an_ensemble_s_actor_climbs_the_mean_and_its_loss_is_a_mean() -> None:
    learner, batch = build(RLPD, num_critics=4, alpha=0.5), random_batch()
    constant_outputs(learner.model.critics.net, [0.0, 1.0, 2.0, 7.0])
    noise = torch.randn(2, *batch.actions.shape)
    _, logprobs = learner.model.actor.sample_with_logprob(batch.obs, noise[1])
    _, terms = learner.actor_loss(batch, *noise, None)
    torch.testing.assert_close(terms["actor_loss"], (0.5 * logprobs - 2.5).mean())
    done = batch._replace(dones=torch.ones(16), rewards=torch.ones(16))
    _, terms = learner.critic_loss(done, *noise, None)
    assert terms["critic_loss"].item() == pytest.approx((1 + 0 + 1 + 36) / 4)


def test_entropy_leaves_the_target_when_asked() -> None:
    batch, noise = random_batch(done=0.0), torch.randn(2, 16, ACTIONS)
    means = [
        float(build(RLPD, backup_entropy=flag, gamma=1.0).critic_loss(batch, *noise, None)[1]["target_q_mean"])
        for flag in (True, False)
    ]
    _, logprobs = build(RLPD).model.actor.sample_with_logprob(batch.next_obs, noise[0])
    assert means[0] - means[1] == pytest.approx(-0.2 * logprobs.mean().item(), abs=1e-5)


def test_layer_norm_is_each_critic_s_own_and_not_the_actor_s() -> None:
    learner = build(RLPD, num_critics=3, layer_norm=True)
    norms = learner.model.critics.net.norms
    assert [tuple(norm.weight.shape) for norm in norms] == [(3, 1, 16), (3, 1, 16)]
    assert not any("norm" in name for name, _ in learner.model.actor.named_parameters())
    learner.update(random_batch(), global_step=0)
    gains = norms[0].weight
    assert not torch.equal(gains[0], gains[1])
    batch = random_batch()
    q = learner.model.critics(batch.obs, batch.actions)
    alone = member(learner.model.critics.net, 1)(torch.cat([batch.obs, batch.actions], -1))[:, 0]
    torch.testing.assert_close(q[1], alone, rtol=1e-5, atol=1e-5)


def test_the_model_follows_from_the_number_of_critics() -> None:
    def model(**options: Any) -> Any:
        return RLPD.build_model(CONTINUOUS, NetworkConfig(hidden_sizes=(8, 8)), RLPD.Config.parse(options))

    assert type(model()) is MLPSACModel
    assert type(model(num_critics=2, layer_norm=True)) is MLPSACModel
    ensemble = model(num_critics=5)
    assert type(ensemble) is MLPREDQModel
    assert ensemble.num_critics == 5
    assert all(not layer.bias.any() for layer in (*ensemble.critics.net.hidden, ensemble.critics.net.head))


def test_the_target_entropy_is_half_the_actions() -> None:
    assert build(RLPD, alpha="auto").temperature.target_entropy == -ACTIONS / 2
    assert build(RLPD, alpha="auto", target_entropy=-3.0).temperature.target_entropy == -3.0


def test_the_actor_moves_once_per_policy_delay() -> None:
    learner = build(RLPD, policy_delay=3)
    moved = []
    for i in range(6):
        before = [p.detach().clone() for p in learner.model.actor.parameters()]
        learner.update(random_batch(seed=i), global_step=i)
        moved.append(any(not torch.equal(a, b) for a, b in zip(before, learner.model.actor.parameters())))
    assert moved == [False, False, True] * 2


def test_a_rhythm_can_begin_at_any_update() -> None:
    learner = build(RLPD, policy_delay=3)
    learner.period_offset = 4
    assert [learner.variant(update) for update in range(4, 10)] == [False, False, True] * 2


def test_mistakes_are_named() -> None:
    model = MLPREDQModel(OBS, ACTIONS, (8,), 3)
    with pytest.raises(ValueError, match=r"^subset_size must be <= num_critics \(3\), got 4$"):
        RLPD(model=model, subset_size=4)
    with pytest.raises(ValueError, match=r"^layer_norm must equal the model's False, got True$"):
        RLPD(model=model, layer_norm=True)
    with pytest.raises(ValueError, match=r"^num_critics must equal the model's 3, got 5$"):
        RLPD(model=model, num_critics=5)
    with pytest.raises(ValueError, match=r"^num_critics must be >= 2, got 1$"):
        RLPD(model=model, num_critics=1)
