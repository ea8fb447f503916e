"""A short real run of ReBRAC: 60 updates on 100 random transitions; the last one has no next action."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import torch

from rl_training.experiment.checkpointing import read_checkpoint
from tests.runs import tiny, train
from tests.smoke import OfflineFacts
from tests.test_callbacks import StopAt


class TestShortRun(OfflineFacts):
    algo = "rebrac"
    metrics = (
        "critic_loss",
        "actor_loss",
        "bc_loss",
        "q_scale",
        "target_q_mean",
    )
    counted: ClassVar[dict[str, float]] = OfflineFacts.counted | {"dataset_size": 99}


@pytest.mark.parametrize("layer_norm", [False, True])
def test_it_continues_in_td3(layer_norm: bool, tmp_path: Path) -> None:
    """Its critics too where TD3's have LayerNorm; ten steps, so that nothing is learned yet."""
    before = train(tiny("rebrac", tmp_path, total_timesteps=20, eval_episodes=0))
    kwargs = {"layer_norm": layer_norm}
    config = tiny("td3", tmp_path, kwargs=kwargs, init_from=before.run_dir, eval_episodes=0)
    after = train(config, [StopAt(10)])
    theirs = read_checkpoint(before.checkpoint_path).tensors["networks"]
    ours = read_checkpoint(after.checkpoint_path).tensors["networks"]
    for name, tensor in ours.items():
        taken = layer_norm or "actor" in name
        assert torch.equal(tensor, theirs[name]) == taken, name
