"""Promise 3: a checkpoint contains the whole state by default, every part matters, and its size matches."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from rl_training.experiment.checkpointing import (
    Checkpoint,
    RowsToSave,
    find_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from rl_training.experiment.config import TrainConfig
from rl_training.runs.session import TrainResult
from tests.runs import ALL, OFFLINE, fingerprint, interrupted, mostly_slow, owned, replay_rows, resume, tiny, train

# Learned temperatures and multipliers have separate optimisers.
LEARNED = {"alpha": "auto", "lagrange_threshold": 1.0, "buffer_capacity": 20_000, "normalize_observations": True}


def config_of(algo: str, folder: Path) -> TrainConfig:
    """The interruption at tick 36 falls between two updates of every delayed part."""
    kwargs = owned(algo, LEARNED | {"learning_starts": 5, "offline_pretrain_updates": 10})
    return tiny(algo, folder, kwargs=kwargs, total_timesteps=45, checkpoint_interval=36, eval_episodes=0)


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "redq", "edac", "rlpd"))
def test_a_checkpoint_has_every_part(algo: str, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(train(config_of(algo, tmp_path)).checkpoint_path)
    trainer = checkpoint.records["trainer"]
    assert {"networks", "optimizers", "random"} <= checkpoint.tensors.keys()
    assert {"clock", "counters", "cadence", "callbacks", "best_return", "should_stop"} <= trainer.keys()
    assert trainer["counters"]["updates"] > 0
    names = checkpoint.tensors["networks"]
    moments = checkpoint.tensors["optimizers"]
    assert any(name.startswith("model.actor.") or algo == "dqn" for name in names)
    assert any("target" in name for name in names) == (algo not in ("bc", "crossq"))
    assert any("exp_avg_sq" in name for name in moments)
    assert any(name.endswith("step") for name in moments)
    if "alpha" in owned(algo, LEARNED):
        assert any("log_alpha" in name for name in names)
    if algo not in OFFLINE:
        assert checkpoint.rows is not None
        assert checkpoint.rows.filled == 45
        assert {"steps", "rng", "episodes", "returns"} <= checkpoint.records["collector"].keys()
    if "normalize_observations" in owned(algo, LEARNED):
        assert "model.normalizer.shift" in names


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "redq", "edac", "rlpd"))
def test_the_size_of_a_checkpoint_depends_on_filled_rows_only(algo: str, tmp_path: Path) -> None:
    """45 of the 20,000 slots of the ring buffer are filled."""
    path = train(config_of(algo, tmp_path)).checkpoint_path
    checkpoint = read_checkpoint(path)
    filled = 0 if checkpoint.rows is None else checkpoint.rows.filled * checkpoint.rows.width * 4
    networks = sum(t.nbytes for group in checkpoint.tensors.values() for t in group.values())
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert size <= filled + networks + 100_000
    assert size <= filled + 1_000_000


def parts_of(checkpoint: Checkpoint) -> dict[str, tuple[str, str]]:
    """One tensor of each part: a module of the networks, a kind of moment of an optimiser, a generator, …"""
    parts: dict[str, tuple[str, str]] = {}
    for group, tensors in checkpoint.tensors.items():
        for name in sorted(tensors):  # a file lists them in any order
            if ".target_" in name and name.endswith((".mean", ".variance")):
                continue  # target networks normalise by the batch: these are written and not read
            stem = ".".join(piece for piece in name.split(".") if not piece.isdecimal())
            depth = 2 if group == "networks" else None
            parts.setdefault(f"{group}/{'.'.join(stem.split('.')[:depth])}", (group, name))
    return parts


def nudged(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A copy with every number slightly larger, a count larger by 1, or a generator's state after some draws."""
    changed = tensor.clone()
    if changed.dtype == torch.uint8:
        generator = torch.Generator()
        generator.set_state(changed)
        torch.rand(3, generator=generator)
        return generator.get_state()
    step = 1 if name == "scaling.count" else 1 / 64
    return changed + step if changed.is_floating_point() else changed ^ 1


def end_with(broken: Path, changed: Checkpoint, folder: Path) -> TrainResult:
    """Resume a copy of the run `broken` from the checkpoint `changed`, whose hashes are valid."""
    run = Path(shutil.copytree(broken, folder))
    rows = None
    if changed.rows is not None:
        kept = replay_rows(changed)
        rows = RowsToSave(kept, len(kept), changed.rows.added, changed.rows.capacity)
    write_checkpoint(run / "checkpoints", changed.step, tensors=changed.tensors, records=changed.records, rows=rows)
    return resume(run)


# A fixed temperature and the learning rate, which the schedule sets before each update, are kept for the reader. A
# part of a batch more changes nothing before the 100,000th.
SETTINGS = ("temperature.fixed", "learning_rate", ".batches")
# What an online run normalises by follows from its running moments, which the checkpoint holds too.
FOLLOWING = ("model.normalizer",)
# The factor of rewards follows from the statistics of the return. Its largest magnitude counts only if it is more
# than five standard deviations.
SCALING = ("networks/rewards.scale", "scaling.largest")


@pytest.mark.parametrize("algo", mostly_slow(ALL, "rlpd"))
def test_changing_any_part_changes_the_result(algo: str, tmp_path: Path) -> None:
    broken = interrupted(config_of(algo, tmp_path), 36)
    checkpoint = read_checkpoint(find_checkpoint(broken))
    same = fingerprint(end_with(broken, checkpoint, tmp_path / "same").checkpoint_path)
    unnoticed = []
    for number, (part, (group, name)) in enumerate(parts_of(checkpoint).items()):
        tensors = {**checkpoint.tensors, group: {**checkpoint.tensors[group]}}
        tensors[group][name] = nudged(tensors[group][name], name)
        changed = dataclasses.replace(checkpoint, tensors=tensors)
        end = fingerprint(end_with(broken, changed, tmp_path / str(number)).checkpoint_path)
        moved = [key for key in end if end[key] != same[key] and key != f"{group}/{name}"]
        if not moved:
            unnoticed.append(part)
    kept = SETTINGS + (FOLLOWING if "moments" in checkpoint.records.get("collector", {}) else ())
    kept += SCALING if "scaling.current" in checkpoint.tensors.get("collector", {}) else ()
    assert [part for part in unnoticed if not part.endswith(kept)] == []
