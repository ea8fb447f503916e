"""Members of a population act together; each acts as it would alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms import CRR, DQN, IQL, SAC, TD3, FlashSAC, Learner
from rl_training.algorithms.discrete_bc import DiscreteBC
from rl_training.algorithms.execution import JointRandom
from rl_training.experience.acting import ActingPolicy, fetch_together
from rl_training.experience.collector import Collector
from rl_training.experience.joint_acting import JointActing
from rl_training.models.arrays import ArrayMLP, JointPolicy, copy_bound_to, on_arrays
from rl_training.models.policies import Policy
from rl_training.runs.fleet import MembersFailed
from rl_training.runs.session import Session
from rl_training.runtime.online import OnlineConfig
from rl_training.updates.stack import Stack
from tests.helpers import OBS, build
from tests.runs import run_record, tiny, train
from tests.test_collector import collector_of
from tests.test_population_runs import SEEDS, At, all_unlike, folders, members_of, statuses, together

KINDS: list[tuple[type[Learner], dict[str, Any]]] = [
    (SAC, {}),
    (TD3, {}),
    (DQN, {}),
    (DiscreteBC, {}),
    (CRR, {"policy_distribution": "gaussian"}),  # an std for each state
    (IQL, {"policy_distribution": "gaussian"}),  # one for all states
    (FlashSAC, {}),
]
every_kind = pytest.mark.parametrize(("kind", "options"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])


# The policies.


def policies_of(kind: type[Learner], options: dict[str, Any], count: int) -> tuple[Policy, Tensor]:
    """The first of several policies, and the tensors of all."""
    found: list[Policy] = []
    for seed in range(count):
        learner = build(kind, normalize=True, seed=seed, **options)
        learner.model.normalizer.clip(1.5)
        learner.model.normalizer.set_moments(torch.linspace(-1.0, 1.0, OBS) + seed, torch.full((OBS,), 0.5 + seed))
        found.append(learner.model.policy)
    flat = [torch.cat([t.detach().flatten() for t in (*one.parameters(), *one.buffers())]) for one in found]
    return found[0], torch.stack(flat)


def outputs(policy: Policy, obs: Tensor, noise: Tensor) -> list[Tensor]:
    found = [policy.mode(obs)]
    if policy.stochastic:
        found.append(policy.sample(obs, noise))
    if policy.chooses:
        found.append(policy.scores(obs))
    return found


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("rows", [[0], [0, 1], [0, 1, 2, 3], [1, 3]], ids=str)
@every_kind
def test_a_policy_among_others_computes_the_same_bits(
    kind: type[Learner], options: dict[str, Any], rows: list[int], width: int
) -> None:
    policy, flat = policies_of(kind, options, 1 if rows == [0] else 2 if rows == [0, 1] else 4)
    actions = 1 if policy.chooses else build(kind).model.action_dim
    obs, noise = 3.0 * torch.randn(len(flat), width, OBS), torch.randn(len(flat), width, actions)
    joint = outputs(JointPolicy(policy, flat, rows), obs[rows].flatten(0, 1), noise[rows].flatten(0, 1))
    for place, row in enumerate(rows):
        alone = outputs(on_arrays(copy_bound_to(policy, flat[row])), obs[row], noise[row])
        for ours, theirs in zip(joint, alone, strict=True):
            assert torch.equal(ours[place * width : (place + 1) * width], theirs)


def test_every_generator_draws_its_own_rows() -> None:
    joint = JointRandom([np.random.default_rng(seed) for seed in SEEDS])
    drawn = [
        joint.standard_normal((6, 2), dtype=np.float32),
        joint.integers(9, size=6),
        joint.random(6),
        joint.uniform(-1.0, 1.0, (6, 3)),
    ]
    for i, seed in enumerate(SEEDS):
        rng, own = np.random.default_rng(seed), slice(2 * i, 2 * i + 2)
        alone = [
            rng.standard_normal((2, 2), dtype=np.float32),
            rng.integers(9, size=2),
            rng.random(2),
            rng.uniform(-1.0, 1.0, (2, 3)),
        ]
        for ours, theirs in zip(drawn, alone, strict=True):
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours[own], theirs)
        assert joint.generators[i].bit_generator.state == rng.bit_generator.state


# The collectors.


def collectors_of(
    algo: str, folder: Path, kwargs: Sequence[dict[str, Any]] = ({},) * 3, **fields: Any
) -> list[Collector]:
    """Collectors that act by their policies."""
    env = {"env_id": "Scripted-v0"} | ({"env_kwargs": {"discrete": True}} if algo == "dqn" else {})
    found = []
    for seed, own in zip(SEEDS, kwargs):
        config = tiny(algo, folder, seed=seed, kwargs=own, **env | fields)
        found.append(collector_of(config, random_steps=0))
        found[-1].start()
    return found


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("algo", ["sac", "td3", "dqn", "flash_sac"])
def test_each_member_acts_as_it_would_alone(algo: str, num_envs: int, tmp_path: Path) -> None:
    ours, theirs = (collectors_of(algo, tmp_path, num_envs=num_envs) for _ in range(2))
    joint = JointActing()
    for _ in range(5):
        for collector, actions, alone in zip(ours, joint.actions(ours), theirs, strict=True):
            assert actions is not None
            collector.send(*actions)
            collector.receive()
            alone.step()
    for collector, alone in zip(ours, theirs):
        torch.testing.assert_close(collector.buffer.rows[: 5 * num_envs], alone.buffer.rows[: 5 * num_envs])
        assert collector.rng.bit_generator.state == alone.rng.bit_generator.state


def test_new_weights_are_used_at_once(tmp_path: Path) -> None:
    collectors, joint = collectors_of("td3", tmp_path, kwargs=[{"exploration_noise": 0.0}] * 3), JointActing()
    for number in (0.25, 0.5):
        for collector in collectors:
            with torch.no_grad():
                collector.learner.model.actor.net.head.weight.zero_()
                collector.learner.model.actor.net.head.bias.fill_(number)
            collector.learner.version += 1
        for actions in joint.actions(collectors):
            assert actions is not None
            assert actions[0] == pytest.approx(np.tanh(number))


def test_copies_of_members_that_have_ended_are_passed_over(tmp_path: Path) -> None:
    """As on a GPU, where the stack of all members stays while most of them train."""
    ours, theirs = collectors_of("sac", tmp_path), collectors_of("sac", tmp_path)
    for collectors in (ours, theirs):
        for one in collectors:
            one.acting = ActingPolicy(one.learner, copies=True)
    assert JointActing().actions(ours) == [None] * 3  # each is copied by itself
    fetch_together([one.acting for one in ours], Stack([one.learner for one in ours]).stacked)
    left = [ours[0], ours[2]]
    for collector, actions, alone in zip(left, JointActing().actions(left), theirs[::2], strict=True):
        assert actions is not None
        alone.act()
        assert np.array_equal(actions[0], alone._chosen)
        assert collector.rng.bit_generator.state == alone.rng.bit_generator.state


def test_one_that_acts_randomly_draws_by_itself(tmp_path: Path) -> None:
    collectors = collectors_of("sac", tmp_path)
    collectors[1].random_steps = 2
    before = collectors[1].rng.bit_generator.state
    assert [actions is None for actions in JointActing().actions(collectors)] == [False, True, False]
    assert collectors[1].rng.bit_generator.state == before


class Elsewhere:
    """An experience that is not a `Collector`."""


@pytest.mark.parametrize(
    "kwargs",
    [
        [{"exploration_noise": 0.1}, {"exploration_noise": 0.1}, {"exploration_noise": 0.2}],
        [{"activation": "gelu"}] * 3,
        [{"hidden_sizes": [8]}, {"hidden_sizes": [8]}, {"hidden_sizes": [9]}],
    ],
    ids=["settings", "torch", "shapes"],
)
def test_members_with_different_policies_act_separately(kwargs: list[dict[str, Any]], tmp_path: Path) -> None:
    assert JointActing().actions(collectors_of("td3", tmp_path, kwargs=kwargs)) == [None] * 3


def test_an_override_of_explore_is_called_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may keep something between two calls."""
    collectors = collectors_of("sac", tmp_path)

    class Drifting(SAC):
        def explore(self, *arguments: Any) -> Tensor:
            return super().explore(*arguments)

    for collector in collectors:
        monkeypatch.setattr(collector.learner, "__class__", Drifting)
    assert JointActing().actions(collectors) == [None] * 3


def test_members_at_different_steps_act_separately(tmp_path: Path) -> None:
    collectors, joint = collectors_of("dqn", tmp_path), JointActing()
    assert None not in joint.actions(collectors)
    collectors[1].step()
    assert joint.actions(collectors) == [None] * 3


def test_members_without_a_collector_act_separately(tmp_path: Path) -> None:
    first, last, _ = collectors_of("sac", tmp_path)
    found = JointActing().actions([first, Elsewhere(), last])  # type: ignore[list-item]
    assert [actions is None for actions in found] == [False, True, False]
    assert JointActing().actions([first]) == [None]


# Whole runs.


def config_of(algo: str, folder: Path, **fields: Any) -> Any:
    return tiny(algo, folder, env_id="Scripted-v0", eval_episodes=0, seeds=list(SEEDS), **fields)


def test_one_evaluation_serves_all_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    original = ArrayMLP.values

    def values(self: ArrayMLP, x: Any) -> Any:
        calls.append(x.shape)
        return original(self, x)

    monkeypatch.setattr(ArrayMLP, "values", values)
    together(config_of("sac", tmp_path))  # 60 steps; the first 20 are random
    assert calls == [(3, 1, 3)] * 40


def test_members_that_begin_to_act_at_different_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One also ends before the others, which does not affect them."""
    randomly = {SEEDS[0]: 25, SEEDS[1]: 5, SEEDS[2]: 15}
    monkeypatch.setattr(OnlineConfig, "acts_randomly_until", lambda self, config: randomly[config.seed])
    config = config_of("sac", tmp_path)

    def ending() -> At:
        return At(SEEDS[1], 45, lambda session: session.stop("enough"))

    ours = together(config, [ending()])
    assert [one.metrics["global_step"] for one in ours] == [60, 45, 60]
    assert all_unlike(ours, [train(member, [ending()]) for member in members_of(config)]) == [[]] * 3


def fill(number: float) -> Callable[[Session], None]:
    """Make the outputs of a policy `number - number`."""

    def change(session: Session) -> None:
        net = session.learner.model.policy.actor.net
        parameters = *net.hidden[-1].parameters(), *net.head.parameters()
        with torch.no_grad():
            for parameter, value in zip(parameters, (0.0, 1.0, -number, number), strict=True):
                parameter.fill_(value)
        session.learner.version += 1

    return change


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_an_action_that_is_not_finite_ends_its_member_alone(number: float, tmp_path: Path) -> None:
    """No update, report or checkpoint comes before it acts again."""
    config = config_of("sac", tmp_path, kwargs={"train_frequency": 50, "random_steps": 10})
    change = At(SEEDS[1], 31, fill(number))
    with pytest.raises(MembersFailed, match=r"^1 of 3 members failed: seed 0: .* by step 31;") as failed:
        together(config, [change])
    assert statuses(tmp_path) == ["finished", "diverged", "finished"]
    assert "inexact" not in run_record(folders(tmp_path)[1])  # the action did not reach the environment
    ours = [result for result in failed.value.results if result is not None]
    theirs = [train(member, [change]) for member in members_of(config)[::2]]
    assert all_unlike(ours, theirs) == [[], []]
