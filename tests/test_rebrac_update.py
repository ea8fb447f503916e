"""ReBRAC: a cloning penalty in target and actor, the smaller critic in both, and an actor that waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from rl_training.algorithms import ReBRAC, rebrac_loss
from rl_training.algorithms.rebrac import penalised_value, squared_distance
from rl_training.models import MLPTD3Model
from tests.helpers import (
    ACTIONS,
    CONTINUOUS,
    OBS,
    build,
    constant_outputs,
    double,
    member,
    random_batch,
    same_noise,
    sequential,
    snapshot,
)

# What the helper and the learner are asked for alike.
WEIGHTS: dict[str, Any] = {"gamma": 0.9, "actor_bc_coef": 0.7, "critic_bc_coef": 0.3}


def in_float64(**options: Any) -> ReBRAC:
    """A learner whose target networks are not copies, so that one taken for the other is noticed."""
    learner: ReBRAC = build(ReBRAC, **WEIGHTS | options)
    learner.model.double()
    for target in (learner.model.target_actor, learner.model.target_critics):
        for parameter in target.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return learner


def test_every_term_by_hand() -> None:
    terms = rebrac_loss(
        {
            "q1_values": tensor([1.0, 2.0]),
            "q2_values": tensor([0.0, 0.0]),
            "rewards": tensor([1.0, 5.0]),
            "dones": tensor([0.0, 1.0]),
            "next_q1": tensor([8.0, 100.0]),
            "next_q2": tensor([6.0, 100.0]),
            "next_policy_actions": tensor([[1.0, 1.0], [1.0, 1.0]]),
            "next_actions": tensor([[0.0, -1.0], [0.0, 0.0]]),
            "policy_q1": tensor([2.0, -5.0]),
            "policy_q2": tensor([3.0, -6.0]),
            "policy_actions": tensor([[0.0, 1.0], [1.0, 1.0]]),
            "actions": tensor([[0.0, -1.0], [0.0, 0.0]]),
            "gamma": 0.5,
            "actor_bc_coef": 0.1,
            "critic_bc_coef": 0.4,
        }
    )
    # The first row: 1 + 0.5 (min(8, 6) - 0.4 (1 + 4)); the second terminates.
    assert terms["target_q_mean"].item() == (3.0 + 5.0) / 2
    assert terms["critic_loss"].item() == pytest.approx((4 + 9) / 2 + (9 + 25) / 2)
    assert terms["bc_loss"].item() == (4 + 2) / 2
    assert terms["q_scale"].item() == 1 / 4  # of min(2, 3) and min(-5, -6)
    assert terms["actor_loss"].item() == pytest.approx(0.1 * 3 - (2 - 6) / 2 / 4)


def test_norms_are_sums_over_the_action_s_entries() -> None:
    policy, data = tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 0.5]]), tensor([[0.0, 0.0, 1.0], [0.5, 0.5, 1.0]])
    torch.testing.assert_close(squared_distance(policy, data), tensor([5.0, 0.25]))


def test_the_penalty_is_taken_from_the_smaller_critic_row_by_row() -> None:
    q, ones = tensor([[1.0, 4.0], [2.0, 3.0]]), torch.ones(2, 2)
    torch.testing.assert_close(penalised_value(q, ones, tensor([[1.0, 1.0], [1.0, -1.0]]), 0.5), tensor([1.0, 1.0]))
    torch.testing.assert_close(penalised_value(q, ones, -ones, 0.0), tensor([1.0, 3.0]))


def test_lambda_is_a_constant_and_only_the_smaller_critic_has_a_slope() -> None:
    q = [tensor([2.0, -3.0], requires_grad=True), tensor([9.0, -6.0], requires_grad=True)]
    still = torch.zeros(2, 1)
    terms = rebrac_loss(
        dict.fromkeys(["q1_values", "q2_values", "rewards", "dones", "next_q1", "next_q2"], torch.zeros(2))
        | dict.fromkeys(["next_policy_actions", "next_actions", "policy_actions", "actions"], still)
        | {"policy_q1": q[0], "policy_q2": q[1]}
        | WEIGHTS
    )
    first, second = torch.autograd.grad(terms["actor_loss"], q)
    torch.testing.assert_close(first, tensor([-1 / 8, 0.0]))  # -1 / (B mean(2, 6))
    torch.testing.assert_close(second, tensor([0.0, -1 / 8]))


@pytest.mark.parametrize("done", [None, 0.0, 1.0])
def test_the_target_is_the_smaller_critic_less_the_distance_to_the_data(done: float | None) -> None:
    learner = in_float64(target_policy_noise=0.8, target_noise_clip=0.3)
    batch, noise = double(random_batch(done=done)), 0.8 * next(same_noise(5, 16, ACTIONS)).double()
    model = learner.model
    with torch.no_grad():
        action = (sequential(model.target_actor.net)(batch.next_obs).tanh() + noise.clip(-0.3, 0.3)).clip(-1, 1)
        seen = torch.cat([batch.next_obs, action], 1)
        q = torch.minimum(*(member(model.target_critics.net, i)(seen)[:, 0] for i in (0, 1)))
        assert batch.next_actions is not None
        penalty = ((action - batch.next_actions) ** 2).sum(1)
        target = batch.rewards + 0.9 * (1 - batch.dones) * (q - 0.3 * penalty)
        here = torch.cat([batch.obs, batch.actions], 1)
        errors = [member(model.critics.net, i)(here)[:, 0] - target for i in (0, 1)]
    loss, terms = learner.critic_loss(batch, noise)
    torch.testing.assert_close(terms["target_q_mean"], target.mean())
    torch.testing.assert_close(loss.detach(), sum(error.square().mean() for error in errors))


def test_a_terminated_row_asks_neither_critics_nor_next_action() -> None:
    learner, batch = build(ReBRAC, critic_bc_coef=10.0), random_batch(done=1.0)
    assert batch.next_actions is not None
    noise = torch.zeros_like(batch.actions)
    _, terms = learner.critic_loss(batch, noise)
    _, others = learner.critic_loss(batch._replace(next_actions=-batch.next_actions, next_obs=-batch.obs), noise)
    assert terms["target_q_mean"] == others["target_q_mean"] == batch.rewards.mean()


def test_the_actor_clones_and_climbs_the_smaller_critic() -> None:
    learner, batch = in_float64(), double(random_batch())
    model = learner.model
    own = sequential(model.actor.net)(batch.obs).tanh()
    seen = torch.cat([batch.obs, own], 1)
    q = torch.minimum(*(member(model.critics.net, i)(seen)[:, 0] for i in (0, 1)))
    expected = (0.7 * ((own - batch.actions) ** 2).sum(1) - q / q.abs().mean()).mean()
    loss, terms = learner.actor_loss(batch, torch.zeros_like(batch.actions))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(terms["q_scale"], 1 / q.abs().mean().detach())


def test_the_learner_and_its_helper_agree() -> None:
    """They share every term."""
    learner, batch = build(ReBRAC, policy_delay=1, **WEIGHTS), random_batch()
    model = learner.model
    noise = learner.config.target_policy_noise * next(same_noise(0, 16, ACTIONS))
    own = model.actor(batch.obs)
    following = (model.target_actor(batch.next_obs) + noise.clamp(-0.5, 0.5)).clamp(-1, 1)
    values: dict[str, Tensor] = {}
    for name, critics, obs, actions in (
        ("q{}_values", model.critics, batch.obs, batch.actions),
        ("next_q{}", model.target_critics, batch.next_obs, following),
        ("policy_q{}", model.critics, batch.obs, own),
    ):
        values |= {name.format(i + 1): q for i, q in enumerate(critics(obs, actions))}
    terms = rebrac_loss(
        {**batch._asdict(), **values, "next_policy_actions": following, "policy_actions": own, **WEIGHTS}
    )
    metrics = learner.update(batch, global_step=0).metrics
    assert metrics.keys() == terms.keys()
    for name, term in terms.items():
        torch.testing.assert_close(metrics[name], term.detach(), msg=name)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_actor_and_targets_move_only_every_delay(delay: int) -> None:
    learner = build(ReBRAC, policy_delay=delay)
    last: dict[str, Tensor] = {}
    for i in range(1, 2 * delay + 1):
        before = snapshot(learner)
        metrics = learner.update(random_batch(seed=i), global_step=i).metrics
        moved = {name.split(".")[1] for name, t in snapshot(learner).items() if not torch.equal(t, before[name])}
        if i % delay == 0:
            assert moved == {"critics", "target_critics", "actor", "target_actor"}
        else:  # a term keeps its last value between the updates that form it
            assert moved == {"critics"}
            for name in ("actor_loss", "bc_loss", "q_scale"):
                assert metrics[name] == last.get(name, 0.0)
        last = metrics


def test_critics_have_layer_norm_and_the_actor_has_none() -> None:
    network = ReBRAC.Network()
    model = ReBRAC.build_model(CONTINUOUS, network, ReBRAC.Config())
    assert isinstance(model, MLPTD3Model)
    assert network.hidden_sizes == (256, 256, 256)
    for critics in (model.critics, model.target_critics):
        assert [norm.weight.shape for norm in critics.net.norms] == [(2, 1, 256)] * 3  # each critic has its own
    assert len(model.actor.net.hidden) == 3
    assert len(model.actor.net.norms) == len(model.target_actor.net.norms) == 0


def test_a_large_actor_weight_is_cloning() -> None:
    learner, batch = build(ReBRAC, actor_bc_coef=1e3, policy_delay=1, learning_rate=1e-2), random_batch()
    batch = batch._replace(actions=torch.tanh(batch.obs[:, :2]))
    for i in range(300):
        metrics = learner.update(batch, global_step=i).metrics
    assert metrics["bc_loss"].item() < 0.04


def test_next_actions_far_from_the_policy_lower_the_target() -> None:
    """The very difference from TD3+BC: a policy that leaves the data is worth less to the critics too."""
    learner = build(ReBRAC, gamma=1.0, critic_bc_coef=0.5, target_policy_noise=0.0)
    constant_outputs(learner.model.target_actor.net, [0.0])
    constant_outputs(learner.model.target_critics.net, [2.0, 3.0])
    batch = random_batch(done=0.0)._replace(rewards=torch.zeros(16))
    noise = torch.zeros_like(batch.actions)
    for value, distance in ((0.0, 0.0), (0.5, 0.5), (1.0, 2.0)):  # ACTIONS is 2
        _, terms = learner.critic_loss(batch._replace(next_actions=torch.full_like(noise, value)), noise)
        assert terms["target_q_mean"].item() == pytest.approx(2.0 - 0.5 * distance)


def test_a_batch_without_next_actions_is_refused_in_one_line() -> None:
    learner = build(ReBRAC)
    message = r"^batch: rebrac needs the column 'next_actions', the data's next action \[B, A\]$"
    batch = random_batch()._asdict()
    del batch["next_actions"]
    with pytest.raises(ValueError, match=message):
        learner.update(batch, global_step=0)
    assert learner.updates == 0


def test_mistakes_are_named() -> None:
    model = MLPTD3Model(OBS, ACTIONS, (16,), layer_norm=True)
    with pytest.raises(ValueError, match=r"^actor_bc_coef must be >= 0.0, got -0.1$"):
        ReBRAC(model=model, actor_bc_coef=-0.1)
    with pytest.raises(ValueError, match=r"^unknown key 'bc_alpha'"):
        ReBRAC(model=model, bc_alpha=2.5)
