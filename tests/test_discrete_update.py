"""BC, CQL and IQL on discrete actions: losses against plain formulas; `test_parity_by_hand.py` compares updates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, tensor

from rl_training.algorithms import DQN, DiscreteBC, DiscreteCQL, DiscreteIQL, Learner, bc_loss, discrete_cql_loss
from rl_training.models import CategoricalActor, MLPQNetwork
from rl_training.models.policies import at_actions
from tests.helpers import BATCH, CHOICES, OBS, build, constant_outputs, label, member, random_batch

KINDS = [DiscreteBC, DiscreteCQL, DiscreteIQL]

every_kind = pytest.mark.parametrize("kind", KINDS, ids=label)


# By hand.


def test_cross_entropy_by_hand() -> None:
    learner, batch = build(DiscreteBC), random_batch(discrete=True)
    logits = learner.model.actor(batch.obs)
    loss, terms = learner.actor_loss(batch)
    torch.testing.assert_close(loss, F.cross_entropy(logits, batch.actions))
    torch.testing.assert_close(terms["behavior_logprob_mean"], -loss)
    taken = logits.softmax(-1)[torch.arange(BATCH), batch.actions].log()
    torch.testing.assert_close(bc_loss({"behavior_logprobs": taken})["actor_loss"], loss)


def test_the_conservative_loss_by_hand() -> None:
    q = tensor([[0.0, math.log(3.0)], [1.0, 1.0]])
    target = tensor([math.log(3.0), 4.0])
    terms = discrete_cql_loss(
        {"q_values": q, "actions": tensor([1, 0]), "target_q_values": target, "cql_alpha": 0.5}
    )
    gap = (math.log(4.0) - math.log(3.0) + math.log(2.0)) / 2  # log(e^0 + e^log 3) = log 4; log 2e - 1 = log 2
    assert terms["td_loss"].item() == pytest.approx((0.0 + (3.0 - 0.5)) / 2)  # Huber: |3| - 1/2
    assert terms["conservative_gap"].item() == pytest.approx(gap)
    assert terms["conservative_loss"].item() == pytest.approx(0.5 * gap)
    assert terms["critic_loss"].item() == pytest.approx(1.25 + 0.5 * gap)
    assert terms["q_mean"].item() == pytest.approx((math.log(3.0) + 1.0) / 2)


def test_the_gap_is_never_negative_and_falls_as_the_data_s_action_stands_out() -> None:
    for seed in range(20):
        q = 10.0 * torch.randn(8, CHOICES, generator=torch.Generator().manual_seed(seed))
        batch = {"actions": torch.zeros(8, dtype=torch.int64), "target_q_values": torch.zeros(8), "cql_alpha": 1.0}
        gap = discrete_cql_loss({"q_values": q, **batch})["conservative_gap"]
        raised = discrete_cql_loss({"q_values": q + 5.0 * F.one_hot(tensor(0), CHOICES), **batch})
        assert 0.0 <= raised["conservative_gap"] < gap


def test_the_online_network_chooses_and_the_target_values() -> None:
    learner, batch = build(DiscreteCQL, gamma=0.5), random_batch(discrete=True, done=0.0)
    constant_outputs(learner.model.q_network.net, [[0.0, 3.0, 1.0, 2.0]])
    constant_outputs(learner.model.target.net, [[9.0, 4.0, 8.0, 7.0]])
    _, terms = learner.loss(batch)
    torch.testing.assert_close(terms["target_q_mean"], batch.rewards.mean() + 0.5 * 4.0)


def test_a_weight_of_zero_leaves_double_dqn() -> None:
    cql, dqn = build(DiscreteCQL, cql_alpha=0.0, learning_rate=1e-3), build(DQN, double_q=True, learning_rate=1e-3)
    for i in range(2):  # the target of the small DQN moves whole after the second
        batch = random_batch(discrete=True, seed=i)
        ours, theirs = (one.update(batch, global_step=i).metrics for one in (cql, dqn))
        cql.model.target.load_state_dict(dqn.model.target.state_dict())
        torch.testing.assert_close(ours["critic_loss"], theirs["loss"], rtol=0, atol=0)
        for one, other in zip(cql.model.q_network.parameters(), dqn.model.q_network.parameters()):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


# What they find.


@every_kind
def test_it_finds_the_better_of_two_actions(kind: type[Learner]) -> None:
    """One state with an action that pays 1, an equally frequent one that pays nothing, and two rarer ones."""
    learner = build(kind, learning_rate=1e-2)
    batch = random_batch(discrete=True, done=1.0, size=96)
    actions = torch.arange(96) % 6 % CHOICES  # 0 and 1 twice as often as 2 and 3
    if kind is DiscreteBC:  # which does not look at rewards
        actions = torch.where(actions == 0, 1, actions)
    batch = batch._replace(obs=torch.ones(96, OBS), actions=actions, rewards=(actions == 1).float())
    for i in range(100):
        learner.update(batch, global_step=i)
    assert learner.model.policy.mode(torch.ones(1, OBS)).item() == 1


def test_iql_values_no_action_the_data_do_not_take() -> None:
    """The outputs of an action that never occurs are moved by no loss: their head's weights stay."""
    learner = build(DiscreteIQL)
    heads = [learner.model.critics.net.head.weight, learner.model.critics.net.head.bias]
    before = [head[..., 3].detach().clone() for head in heads]
    for i in range(5):
        batch = random_batch(discrete=True, seed=i)
        learner.update(batch._replace(actions=batch.actions % 3), global_step=i)
    for head, was in zip(heads, before):
        assert torch.equal(head[..., 3], was)
        assert not torch.equal(head[..., 0], was)


# The policy.


@every_kind
def test_every_policy_is_the_largest_of_its_scores(kind: type[Learner]) -> None:
    learner = build(kind, normalize=True)
    learner.model.normalizer.set_moments(torch.ones(OBS), 2.0 * torch.ones(OBS))
    policy, obs = learner.model.policy, torch.randn(50, OBS)
    assert policy.chooses
    assert policy.scores(obs).shape == (50, CHOICES)
    assert torch.equal(policy.mode(obs), policy.scores(obs).argmax(-1))
    assert policy.mode(obs).dtype == torch.int64
    assert policy.stochastic == (kind is not DiscreteCQL)


def test_policies_of_continuous_actions_do_not_choose() -> None:
    from rl_training.algorithms import SAC

    assert not build(SAC).model.policy.chooses
    assert build(DQN).model.policy.chooses


def test_samples_have_the_softmax_s_frequencies() -> None:
    actor = CategoricalActor(OBS, CHOICES, (8,))
    constant_outputs(actor.net, [[0.0, math.log(3.0), -100.0, math.log(4.0)]])
    noise = torch.randn(40_000, 1, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(actor.sample(torch.zeros(40_000, OBS), noise), minlength=CHOICES) / 40_000
    np.testing.assert_allclose(counts.numpy(), [1 / 8, 3 / 8, 0.0, 4 / 8], atol=0.01)


def test_any_noise_and_any_logits_give_a_legal_sample() -> None:
    actor = CategoricalActor(OBS, CHOICES, (8,))
    noise = tensor([-torch.inf, -40.0, 0.0, 40.0, torch.inf])[:, None]
    for logits in ([0.0] * CHOICES, [1e30, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1e30], [math.nan] * CHOICES):
        constant_outputs(actor.net, [logits])
        chosen = actor.sample(torch.zeros(5, OBS), noise)
        assert set(chosen.tolist()) <= set(range(CHOICES))


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_the_output_of_an_action(leading: tuple[int, ...]) -> None:
    outputs, actions = torch.randn(*leading, 5, CHOICES), tensor([3, 0, 1, 1, 2])
    expected = torch.stack([outputs[..., i, a] for i, a in enumerate(actions.tolist())], dim=-1)
    assert torch.equal(at_actions(outputs, actions), expected)


def test_the_model_s_values_are_those_of_its_critics() -> None:
    model = build(DiscreteIQL).model
    batch = random_batch(discrete=True)
    ours = model.q_values(batch.obs, batch.actions)
    for i in range(2):
        expected = member(model.critics.net, i)(batch.obs)[torch.arange(BATCH), batch.actions]
        torch.testing.assert_close(ours[i], expected)
    one = model.q_values(batch.obs[0], batch.actions[0])
    torch.testing.assert_close(torch.stack(one), torch.stack(ours)[:, :1])


# Refused.


@pytest.mark.parametrize("change", [Tensor.float, lambda a: F.one_hot(a, CHOICES), lambda a: a[:, None].float()])
@every_kind
def test_actions_that_are_not_integers_are_refused(kind: type[Learner], change: Any) -> None:
    batch = random_batch(discrete=True)._replace(next_actions=None)
    wrong = batch._replace(actions=change(batch.actions))
    with pytest.raises(ValueError, match=r"actions must be whole numbers of shape \(16,\)"):
        build(kind).update(wrong, global_step=0)


def test_invalid_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="critic_hidden_sizes has no meaning"):
        MLPQNetwork(OBS, CHOICES, (8,), critic_hidden_sizes=(8,))
    with pytest.raises(ValueError, match="critic_hidden_sizes has no meaning for BC"):
        build(DiscreteBC, network={"critic_hidden_sizes": (8,)})
    with pytest.raises(ValueError, match="layer_norm has no meaning for BC"):
        build(DiscreteBC, network={"layer_norm": True})
