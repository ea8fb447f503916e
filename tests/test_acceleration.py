"""How updates run is set by `accelerate`, seen by the learner's execution, and changes no result."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch._dynamo  # here, because importing it adds filters of warnings

from rl_training.algorithms import REDQ, SAC, TD3, Learner
from rl_training.data.sources import TensorSource
from rl_training.data.transitions import RowLayout
from rl_training.runtime.acceleration import Updater, accelerate
from rl_training.runtime.acting import ActingPolicy
from tests.helpers import CONTINUOUS, build, random_batch, snapshot

LAYOUT = RowLayout.of(CONTINUOUS)


def source(learner: Learner) -> TensorSource:
    batch = random_batch(size=64)
    columns = (column.numpy() for column in (batch.obs, batch.actions, batch.rewards, batch.next_obs, batch.dones))
    return TensorSource(torch.from_numpy(LAYOUT.pack(*columns)), LAYOUT, learner.generator)


def test_making_an_updater_changes_nothing() -> None:
    learner = build(SAC)
    before = learner.execution, list(warnings.filters), torch._dynamo.config.recompile_limit
    Updater(learner, source(learner), 16)
    assert (learner.execution, list(warnings.filters), torch._dynamo.config.recompile_limit) == before


@pytest.mark.parametrize("kind", [SAC, TD3, REDQ])
def test_an_updater_takes_the_variant_of_each_update(kind: type[Learner]) -> None:
    """Its updates are those of `step` on the same minibatches; nobody needs to move the learner's counter."""
    ours, theirs = build(kind), build(kind)
    updater, rows = Updater(ours, source(ours), 16), source(theirs)
    accelerate(ours, "eager")
    for count in (1, 4):
        updater.run(count)
        for _ in range(count):
            theirs.step(LAYOUT.unpack(rows.sample_rows(16)))
    assert ours.updates == theirs.updates == 5
    first, second = snapshot(ours), snapshot(theirs)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_accelerating_again_starts_from_scratch() -> None:
    learner = build(SAC)
    plain = learner.execution
    accelerate(learner, "compile")
    assert learner.execution.acceleration == "compile"
    assert learner.execution.apply is not plain.apply
    accelerate(learner, "auto")
    assert learner.execution == plain


def test_a_cpu_acts_with_the_learner_s_own_tensors() -> None:
    learner = build(SAC)
    acting, obs = ActingPolicy(learner), random_batch().obs
    learner.update(random_batch()._asdict(), global_step=0)
    assert torch.equal(acting.current().mode(obs), learner.model.policy.mode(obs))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_from_a_gpu_the_acting_copy_follows_the_learner_s_version() -> None:
    torch.manual_seed(0)
    model = build(SAC).model.to("cuda")
    learner, obs = SAC(model=model), random_batch().obs
    acting = ActingPolicy(learner)

    def same() -> bool:
        return torch.allclose(acting.current().mode(obs), model.policy.mode(obs.cuda()).cpu(), atol=1e-6)

    assert same()
    whole = copy.deepcopy(learner.state_dict())
    batch = {name: column.cuda() for name, column in random_batch()._asdict().items()}
    learner.update(batch, global_step=0)
    assert same()
    learner.load_state_dict(whole)
    assert same()
