"""REDQ: a random subset for the target, all critics for the actor, an actor that waits."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from rl_training.algorithms import REDQ, SAC, redq_loss
from rl_training.algorithms.redq import _sample_target_critic_indices
from rl_training.models import MLPREDQModel, MLPSACModel
from tests.helpers import ACTIONS, OBS, build, constant_outputs, random_batch, snapshot


def learner(num_critics: int = 5, **options: Any) -> REDQ:
    agent = REDQ(model=MLPREDQModel(OBS, ACTIONS, (16,), num_critics), **options)
    agent.seed(0)
    return agent


@pytest.mark.parametrize("subset_size", [1, 2, 3, 5])
def test_subsets_are_distinct_and_every_one_is_as_likely(subset_size: int) -> None:
    g = torch.Generator().manual_seed(0)
    counts: Counter[tuple[int, ...]] = Counter()
    draws = 3_000
    for _ in range(draws):
        chosen = _sample_target_critic_indices(num_critics=5, subset_size=subset_size, generator=g).tolist()
        assert len(set(chosen)) == subset_size
        assert set(chosen) <= set(range(5))
        counts[tuple(sorted(chosen))] += 1
    kinds = math.comb(5, subset_size)
    expected = draws / kinds
    assert len(counts) == kinds
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < (kinds - 1) + 4 * math.sqrt(2 * kinds)


def test_one_subset_serves_the_whole_batch_and_changes_with_every_update() -> None:
    """Critic i says i. The mean target is then a whole number only if all rows share one subset."""
    agent = learner(4, subset_size=2, gamma=1.0, backup_entropy=False, learning_rate=1e-12, tau=1e-12)
    constant_outputs(agent.model.target_critics.net, [0.0, 1.0, 2.0, 3.0])
    batch = random_batch(done=0.0)._replace(rewards=torch.zeros(16))
    seen = Counter(round(float(agent.update(batch, global_step=i).metrics["target_q_mean"]), 3) for i in range(300))
    assert set(seen) == {0.0, 1.0, 2.0}
    assert [seen[value] / 300 for value in (0.0, 1.0, 2.0)] == pytest.approx([3 / 6, 2 / 6, 1 / 6], abs=0.1)


def test_two_critics_of_which_both_are_drawn_have_sac_s_target() -> None:
    torch.manual_seed(1)
    redq = REDQ(model=MLPREDQModel(OBS, ACTIONS, (16,), 2), subset_size=2, alpha=0.3)
    sac = SAC(model=MLPSACModel(OBS, ACTIONS, (16,)), alpha=0.3)
    sac.model.load_state_dict(redq.model.state_dict())
    for agent in (redq, sac):
        agent.seed(4)
    batch = random_batch()
    ours, theirs = (agent.update(batch, global_step=0).metrics for agent in (redq, sac))
    assert float(ours["target_q_mean"]) == float(theirs["target_q_mean"])
    assert float(ours["critic_loss"]) == pytest.approx(2 * float(theirs["critic_loss"]), rel=1e-6)


def test_every_critic_regresses_on_the_same_target_and_losses_add_up() -> None:
    agent = learner(3, subset_size=3, gamma=0.0)
    constant_outputs(agent.model.critics.net, [1.0, 2.0, 3.0])
    batch = random_batch()._replace(rewards=torch.zeros(16))
    metrics = agent.update(batch, global_step=0).metrics
    assert float(metrics["critic_loss"]) == pytest.approx(1 + 4 + 9)


def test_the_actor_takes_the_mean_of_all_critics() -> None:
    agent = learner(4, subset_size=1)
    constant_outputs(agent.model.critics.net, [0.0, 1.0, 2.0, 9.0])
    metrics = agent.update(random_batch(), global_step=0).metrics
    assert float(metrics["actor_loss"]) == pytest.approx(float(metrics["entropy_term"]) - 3.0, rel=1e-5)


def test_the_actor_moves_on_the_last_of_every_delay_and_its_terms_stay_between() -> None:
    agent = learner(policy_delay=3, alpha="auto")
    values = []
    for i in range(1, 8):
        before = snapshot(agent)
        metrics = agent.update(random_batch(seed=i), global_step=i).metrics
        after = snapshot(agent)
        moved = {name.split(".")[1] for name in after if not torch.equal(after[name], before[name])}
        critics = {"critics", "target_critics"}
        assert moved == (critics | {"actor", "log_alpha"} if i % 3 == 0 else critics)
        values.append((float(metrics["actor_loss"]), float(metrics["entropy_term"])))
    assert values[0] == values[1] == (0.0, 0.0)
    assert values[2] == values[3] == values[4]
    assert values[5] == values[6]
    assert len({values[0], values[2], values[5]}) == 3


def test_unset_the_delay_is_one() -> None:
    agent = learner()
    before = [p.clone() for p in agent.model.actor.parameters()]
    agent.update(random_batch(), global_step=0)
    assert not any(torch.equal(p, old) for p, old in zip(agent.model.actor.parameters(), before))


def test_a_subset_larger_than_the_ensemble_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^subset_size must be <= num_critics \(5\), got 6$"):
        learner(5, subset_size=6)


def test_its_networks_start_as_xavier_does_with_biases_of_zero() -> None:
    model = build(REDQ).model
    for net in (model.actor.net, model.critics.net):
        assert all(not layer.bias.any() for layer in (*net.hidden, net.head))
        (out, inner) = net.hidden[1].weight.shape[-2:]
        bound = (6.0 / (out + inner)) ** 0.5
        assert 0.9 * bound < net.hidden[1].weight.abs().max() <= bound


def test_loss_helper_by_hand() -> None:
    terms = redq_loss(
        {
            "critic_q_values": torch.tensor([[1.0, 0.0], [2.0, 0.0]]),
            "target_q_values": torch.tensor([0.0, 4.0]),
            "sampled_logprobs": torch.tensor([-1.0, 3.0]),
            "sampled_q_values": torch.tensor([4.0, 1.0]),
            "alpha": 0.5,
        }
    )
    assert {k: float(v) for k, v in terms.items()} == pytest.approx(
        {
            "critic_loss": 2.5 + 8.0,
            "target_q_mean": 2.0,
            "actor_loss": (-0.5 - 4.0 + 1.5 - 1.0) / 2,
            "entropy_term": 0.5,
        }
    )
