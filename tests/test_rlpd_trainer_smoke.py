"""A short real run of RLPD: 30 updates on prior data, then 60 steps on mixed minibatches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import RLPD
from rl_training.data.sources import MixedSource
from rl_training.data.transitions import TransitionBatch
from rl_training.experiment.checkpointing import read_checkpoint
from tests.runs import EVERY_STEP, ShortRun, interrupted, logged, replay_rows, resume, short_run, tiny, train

METRICS = {"critic_loss", "actor_loss", "target_q_mean", "entropy_term"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    return short_run("rlpd", tmp_path_factory.mktemp("rlpd"), offline_batch_ratio=0.25)


def test_every_parameter_moved(run: ShortRun) -> None:
    assert run.unmoved() == []


def test_it_pretrained_and_collected(run: ShortRun) -> None:
    metrics = run.result.metrics
    assert (metrics["pretrain_updates_done"], metrics["global_step"]) == (30, 60)
    assert metrics["update_count"] == 30 + 41  # one per step from the 20th on
    checkpoint = read_checkpoint(run.result.checkpoint_path)
    assert checkpoint.records["trainer"]["clock"] == {"phase": "online", "global_step": 60, "pretrain_updates": 30}
    assert replay_rows(checkpoint).shape[0] == 60


def test_batches_have_the_configured_mixture(run: ShortRun) -> None:
    metrics = run.result.metrics
    assert (metrics["offline_batch_size"], metrics["online_batch_size"]) == (4, 12)
    assert metrics["dataset_size"] == 100
    assert METRICS | {"eval_return_mean"} <= metrics.keys()


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 1.0])
def test_each_minibatch_holds_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    shares = []
    draw = MixedSource.sample_rows

    def watched(self: MixedSource, batch_size: int) -> torch.Tensor:
        rows = draw(self, batch_size)
        prior = self.prior.rows  # type: ignore[attr-defined]
        shares.append(sum(bool((prior == row).all(1).any()) for row in rows))
        return rows

    monkeypatch.setattr(MixedSource, "sample_rows", watched)
    kwargs = {"offline_batch_ratio": ratio, "offline_pretrain_updates": 0} | EVERY_STEP
    train(tiny("rlpd", tmp_path, kwargs=kwargs, total_timesteps=30, eval_episodes=0))
    assert shares == [round(16 * ratio)] * 11


@pytest.mark.parametrize(
    ("algo", "delay", "actor_steps"), [("rlpd", None, 11), ("redq", None, 11), ("rlpd", 2, 22)]
)
def test_the_actor_moves_once_per_environment_step(
    tmp_path: Path, algo: str, delay: int | None, actor_steps: int
) -> None:
    """Eleven steps earn updates, four each; `policy_delay` changes how many of them move the actor."""
    kwargs = {"gradient_updates_per_step": 4, "policy_delay": delay, "num_critics": 3} | EVERY_STEP
    if algo == "rlpd":
        kwargs["offline_pretrain_updates"] = 0
    result = train(tiny(algo, tmp_path, kwargs=kwargs, total_timesteps=30, eval_episodes=0))
    steps = read_checkpoint(result.checkpoint_path).tensors["optimizers"]
    assert (steps["critics.step"].item(), steps["actor.step"].item()) == (44, actor_steps)


@pytest.mark.parametrize("resumed", [False, True])
def test_any_pretraining_leaves_the_actor_on_the_last_minibatch_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    moves: list[bool] = []
    step = RLPD.gradient_step

    def watched(self: RLPD, batch: TransitionBatch, variant: object) -> Any:
        moves.append(bool(variant))
        return step(self, batch, variant)

    monkeypatch.setattr(RLPD, "gradient_step", watched)
    kwargs = {"gradient_updates_per_step": 4, "policy_delay": None, "offline_pretrain_updates": 6}
    config = tiny("rlpd", tmp_path, kwargs=kwargs, total_timesteps=30, eval_episodes=0, checkpoint_interval=10)
    if resumed:
        run = interrupted(config, 6 + 20)
        moves.clear()
        resume(run)
    else:
        train(config)
        assert moves[:6] == [False, False, False, True, False, False]
        del moves[:6]
    assert moves
    assert moves == [False, False, False, True] * (len(moves) // 4)


def test_new_experience_has_the_rewards_of_the_prior_data(tmp_path: Path) -> None:
    runs = {}
    for name, kwargs in {"raw": {}, "shifted": {"reward_scale": 2.0, "reward_shift": 100.0}}.items():
        config = tiny("rlpd", tmp_path / name, kwargs=kwargs, total_timesteps=15, eval_episodes=0)
        runs[name] = replay_rows(read_checkpoint(train(config).checkpoint_path))[:, -2]
    assert torch.allclose(runs["shifted"], 2.0 * runs["raw"] + 100.0)


def test_the_log_goes_through_both_phases(run: ShortRun) -> None:
    reports = [row for row in logged(run.result.run_dir) if "train/n_updates" in row]
    assert [(row["step"], row["time/total_timesteps"]) for row in reports] == [
        ("20", "0.0"),  # updates of the pretraining
        ("50", "20.0"),
        ("70", "40.0"),
        ("90", "60.0"),
    ]


def test_checkpoint_loads(run: ShortRun) -> None:
    assert run.result.checkpoint_path.name == "step_000000090"


def test_predicted_actions_are_legal(run: ShortRun) -> None:
    for deterministic in (True, False):
        actions = run.actions(deterministic)
        assert actions.shape == (64, 1)
        assert np.all(np.abs(actions) <= 2.0)
