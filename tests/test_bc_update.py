"""BC: squared error or log-likelihood, and it finds the policy behind the data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import tensor

from rl_training.algorithms import BC, bc_loss
from rl_training.models import MLPBCModel
from tests.helpers import ACTIONS, OBS, build, random_batch


def test_both_forms_by_hand() -> None:
    error = bc_loss({"policy_actions": tensor([[0.0, 1.0]]), "actions": tensor([[0.5, -1.0]])})
    assert error["actor_loss"].item() == pytest.approx((0.25 + 4.0) / 2)
    likelihood = bc_loss({"behavior_logprobs": tensor([-1.0, -4.0])})
    assert likelihood["actor_loss"].item() == 2.5
    assert likelihood["behavior_logprob_mean"].item() == -2.5


@pytest.mark.parametrize("stochastic", [False, True])
def test_the_learner_minimises_that_form(stochastic: bool) -> None:
    learner, batch = build(BC, stochastic=stochastic), random_batch()
    actor = learner.model.actor
    expected = (
        -actor.log_prob(batch.obs, batch.actions).mean()
        if stochastic
        else ((actor(batch.obs) - batch.actions) ** 2).mean()
    )
    torch.testing.assert_close(learner.actor_loss(batch)[0], expected)


@pytest.mark.parametrize("stochastic", [False, True])
def test_it_finds_the_policy_behind_the_data(stochastic: bool) -> None:
    learner = build(BC, stochastic=stochastic, learning_rate=1e-2)
    batch = random_batch(size=128)
    batch = batch._replace(actions=torch.tanh(batch.obs[:, :ACTIONS]))
    for i in range(300):
        learner.update(batch, global_step=i)
    assert (learner.model.policy.mode(batch.obs) - batch.actions).abs().mean() < 0.06


def test_only_a_stochastic_policy_explores() -> None:
    obs = torch.randn(20, OBS)
    for stochastic in (False, True):
        learner = build(BC, stochastic=stochastic)
        policy = learner.model.policy
        actions = learner.explore(policy, obs, np.random.default_rng(0), progress=0.0)
        assert torch.equal(actions, policy.mode(obs)) != stochastic


def test_actions_at_the_bound_stay_finite() -> None:
    learner, batch = build(BC, stochastic=True, learning_rate=1e-2), random_batch()
    for i in range(50):
        learner.update(batch._replace(actions=torch.ones(16, ACTIONS)), global_step=i)
    assert all(p.isfinite().all() for p in learner.model.parameters())


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"^stochastic must equal the model's False, got True$"):
        BC(model=MLPBCModel(OBS, ACTIONS, (8,)), stochastic=True)
    with pytest.raises(ValueError, match=r"^critic_hidden_sizes has no meaning for BC"):
        MLPBCModel(OBS, ACTIONS, (8,), critic_hidden_sizes=(8,))
    with pytest.raises(ValueError, match=r"^layer_norm has no meaning for BC"):
        MLPBCModel(OBS, ACTIONS, (8,), layer_norm=True)
