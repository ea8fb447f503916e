"""`HeldNoise`: exploration noise that is held for several steps, in every kind of collector, saved and restored."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms import SAC, FlashSAC
from rl_training.algorithms.execution import DeviceRandom, HeldNoise, JointRandom
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint
from tests.helpers import build
from tests.runs import interrupted, tiny
from tests.test_collector import collector_of
from tests.test_exact_resume import assert_exact, eventful

SHAPE = (3, 2)  # environments, actions
SHARES = [k**-2 / sum(j**-2 for j in range(1, 5)) for k in range(1, 5)]


class Scripted:
    """Normal numbers that count up, and these uniform ones."""

    def __init__(self, *uniform: float) -> None:
        self.uniform, self.calls = list(uniform), 0

    def standard_normal(self, size: Any, dtype: Any = None) -> Any:
        self.calls += 1
        return np.full(size, self.calls, dtype)

    def random(self, size: int) -> Any:
        return np.full(size, self.uniform[self.calls - 1])


def drawn(noise: HeldNoise, calls: int) -> list[Tensor]:
    return [torch.as_tensor(noise.standard_normal(SHAPE, np.float32)).clone() for _ in range(calls)]


@pytest.mark.parametrize("source", ["host", "device"])
def test_noise_is_held_for_whole_spans_by_all_environments(source: str) -> None:
    random = np.random.default_rng(0) if source == "host" else DeviceRandom(torch.Generator().manual_seed(0))
    found = drawn(HeldNoise(random, 4, SHAPE), 400)
    assert all(one.shape == SHAPE and one.dtype == torch.float32 for one in found)
    changes = [i for i in range(400) if i == 0 or not torch.equal(found[i], found[i - 1])]
    lengths = np.diff(changes)
    assert set(lengths.tolist()) == {1, 2, 3, 4}
    assert all((found[i] != found[i - 1]).all() for i in changes[1:])  # all environments at once
    assert all(len(one.unique()) == one.numel() for one in found)  # noise of their own
    assert np.bincount(lengths)[1:] / len(lengths) == pytest.approx(SHARES, abs=0.1)


def test_the_law_of_the_spans() -> None:
    """A uniform number just below the sum of the first k probabilities gives k, just above it k + 1."""
    for k, end in enumerate(np.cumsum(SHARES)[:-1], start=1):
        for uniform, length in ((end - 1e-9, k), (end + 1e-9, k + 1)):
            noise = HeldNoise(Scripted(uniform, *[0.0] * 9), 4, SHAPE)  # type: ignore[arg-type]
            found = [float(one[0, 0]) for one in drawn(noise, length + 1)]
            assert found == [1.0] * length + [length + 1.0]


def test_a_call_on_a_device_reads_nothing_from_it() -> None:
    """Tensors of the meta device have no values, so a branch or a read raises."""

    class OnMeta(DeviceRandom):
        def standard_normal(self, size: Any, dtype: Any = None) -> Any:
            return torch.empty(tuple(size), device="meta")

        def random(self, size: int) -> Any:
            return torch.empty(size, device="meta")

    noise = HeldNoise(OnMeta(SimpleNamespace(device=torch.device("meta"))), 16, SHAPE)  # type: ignore[arg-type]
    assert noise.standard_normal(SHAPE).device.type == "meta"
    assert {tensor.device.type for tensor in noise.tensors().values()} == {"meta"}


def test_a_device_holds_noise_as_the_host_does() -> None:
    """Equal numbers of the source give equal noise and spans."""

    class OnDevice(DeviceRandom):
        def __init__(self, source: np.random.Generator) -> None:
            super().__init__(torch.Generator())
            self.source = source

        def standard_normal(self, size: Any, dtype: Any = None) -> Tensor:
            return torch.from_numpy(self.source.standard_normal(size, np.float32))

        def random(self, size: int) -> Tensor:
            return torch.from_numpy(self.source.random(size))

    host = HeldNoise(np.random.default_rng(5), 16, SHAPE)
    device = HeldNoise(OnDevice(np.random.default_rng(5)), 16, SHAPE)
    assert torch.equal(torch.stack(drawn(host, 200)), torch.stack(drawn(device, 200)))
    for name, tensor in host.tensors().items():
        assert torch.equal(tensor, device.tensors()[name])


def test_other_numbers_are_those_of_the_source() -> None:
    noise = HeldNoise(np.random.default_rng(3), 4, SHAPE)
    assert noise.uniform(-1.0, 1.0, (2, 2)).tolist() == np.random.default_rng(3).uniform(-1.0, 1.0, (2, 2)).tolist()


def test_a_restored_one_goes_on_in_the_middle_of_a_span() -> None:
    one, other = (HeldNoise(np.random.default_rng(7), 16, SHAPE) for _ in range(2))
    for calls in range(1, 30):
        drawn(one, 1)
        if calls % 3:
            continue
        state = {name: tensor.clone() for name, tensor in one.tensors().items()}
        other._random.bit_generator.state = one._random.bit_generator.state  # type: ignore[union-attr]
        other.load(state)
        copy = HeldNoise(np.random.default_rng(0), 16, SHAPE)
        copy._random.bit_generator.state = one._random.bit_generator.state  # type: ignore[union-attr]
        copy.load(state)
        assert torch.equal(torch.stack(drawn(other, 20)), torch.stack(drawn(copy, 20)))
    fresh = HeldNoise(np.random.default_rng(7), 16, SHAPE)
    fresh.load({})  # a run that held none
    assert int(fresh.tensors()["held.left"]) == 0


def test_members_that_act_together_hold_their_own() -> None:
    joint = JointRandom([HeldNoise(np.random.default_rng(seed), 16, SHAPE) for seed in (1, 2)])
    alone = [HeldNoise(np.random.default_rng(seed), 16, SHAPE) for seed in (1, 2)]
    for _ in range(40):
        expected = np.concatenate([one.standard_normal(SHAPE) for one in alone])
        found = joint.standard_normal((6, 2), np.float32)
        assert found.dtype == np.float32
        assert np.array_equal(found, expected)


def test_a_learner_says_whether_it_holds_noise() -> None:
    assert build(SAC).longest_noise == build(FlashSAC, longest_noise=1).longest_noise == 1
    assert build(FlashSAC).longest_noise == 16


@pytest.mark.slow  # by default `test_exact_resume` resumes FlashSAC, which holds noise, in two environments
@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_resumed_run_holds_the_same_noise(num_envs: int, tmp_path: Path) -> None:
    assert_exact(eventful("flash_sac", tmp_path, num_envs=num_envs), 40)


def test_it_is_part_of_the_checkpoint(tmp_path: Path) -> None:
    run = interrupted(tiny("flash_sac", tmp_path, num_envs=3), 30)
    saved = read_checkpoint(find_checkpoint(run)).tensors["collector"]
    assert saved["held.noise"].shape == (3, 1)
    assert saved["held.noise"].any()


def test_actions_use_it_after_the_random_steps(tmp_path: Path) -> None:
    collector = collector_of(tiny("flash_sac", tmp_path, num_envs=3, env_id="Scripted-v0"), random_steps=6)
    assert collector.held is not None
    noise = collector.held.tensors()["held.noise"]
    collector.start()
    for _ in range(2):
        collector.step()
        assert not noise.any()
    for _ in range(20):
        obs = torch.from_numpy(collector.obs)
        collector.step()
        expected = collector.learner.model.policy.sample(obs, noise).detach()
        torch.testing.assert_close(torch.from_numpy(collector._chosen), expected)
