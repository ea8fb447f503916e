"""WSRL by configuration: REDQ from the networks of a Cal-QL run, without its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.algorithms import CQL, REDQ, CalQL
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.config import load_config
from tests.helpers import BATCH, build, random_batch
from tests.runs import train
from tests.test_callbacks import StopAt


def preset(name: str, folder: Path, **kwargs: Any) -> Any:
    config = load_config(name).config
    fields: dict[str, Any] = {"output_dir": str(folder), "device": "cpu", "eval_episodes": 0}
    small = {"hidden_sizes": [8, 8], "batch_size": 16, "eval_interval": None} | kwargs
    return config.replace(**fields, algo_kwargs={**config.algo_kwargs, **small})


def test_all_networks_of_the_offline_run_are_taken_over(tmp_path: Path) -> None:
    """The policy acts from the first step, and no update is made in the first 5,000."""
    offline = preset("wsrl/pendulum-offline", tmp_path, dataset_size=100).replace(total_timesteps=3)
    before = train(offline)
    online = preset("wsrl/pendulum", tmp_path).replace(init_from=str(before.run_dir))
    after = train(online, [StopAt(20)])
    assert after.metrics["update_count"] == 0
    records = read_checkpoint(after.checkpoint_path).records
    assert records["config"]["algo_kwargs"]["actor_starts"] is None, "the critics fit"
    theirs = read_checkpoint(before.checkpoint_path).tensors["networks"]
    ours = read_checkpoint(after.checkpoint_path).tensors["networks"]
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("objective", ["mean", "min"])
def test_the_actor_of_redq_maximises_the_mean_or_the_minimum(objective: str) -> None:
    learner = build(REDQ, actor_objective=objective, alpha=0.5)
    batch, noise = random_batch(), torch.randn(BATCH, 2)
    actions, logprobs = learner.model.actor.sample_with_logprob(batch.obs, noise)
    q = learner.model.critics(batch.obs, actions)
    value = q.mean(0) if objective == "mean" else q.min(0).values
    loss, _ = learner.actor_loss(batch, noise, noise, torch.arange(2))
    torch.testing.assert_close(loss, (0.5 * logprobs - value).mean())


def test_the_actor_of_redq_has_a_rate_of_its_own() -> None:
    learner = build(REDQ, learning_rate=1e-3, actor_learning_rate=1e-4)
    rates = {name: float(one.learning_rate) for name, one in learner.optimizers.items()}
    assert rates == pytest.approx({"critics": 1e-3, "actor": 1e-4})


@pytest.mark.parametrize("kind", [CQL, CalQL])
@pytest.mark.parametrize("backup_actions", [1, 3])
def test_an_ensemble_backs_up_the_minimum_of_a_subset(kind: type[CQL], backup_actions: int) -> None:
    learner = build(kind, num_critics=5, subset_size=2, backup_actions=backup_actions)
    obs, actions = random_batch().next_obs, 2 * torch.rand(backup_actions, BATCH, 2) - 1
    q = torch.stack([learner.model.target_critics(obs, one) for one in actions])  # [m, 5, B]
    found = learner.next_value(obs, actions, torch.zeros(backup_actions, BATCH), torch.tensor([4, 1]))
    torch.testing.assert_close(found, q[:, [4, 1]].min(1).values.max(0).values)
    learner.update(random_batch(), global_step=0)
    assert learner.terms["critic_loss"].isfinite()
