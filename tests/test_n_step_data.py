"""n-step returns of a data set: every row is the sum of the next rewards of its episode, cut where that ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.iql import IQL
from rl_training.algorithms.losses import td_target
from rl_training.data import datasets
from rl_training.data.datasets import TransitionDataset
from rl_training.data.extra_columns import MC_RETURNS, NEXT_ACTIONS
from rl_training.errors import ConfigError, DatasetError
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.mlp_iql import MLPIQLModel
from rl_training.runtime.offline import DataRegime
from rl_training.runtime.offline_to_online import OfflineToOnline
from rl_training.runtime.populations import train_population
from tests.runs import OFFLINE, QUIET, differences, interrupted, mostly_slow, resume, run_record, tiny, train
from tests.test_exact_resume import assert_exact, eventful
from tests.test_n_step import GAMMA
from tests.test_population_runs import all_unlike, short, together

WITH_TARGETS = [algo for algo in OFFLINE if algo != "bc"]
# Length of each trajectory, and whether it terminates; in the third a row in the middle terminates too.
TRAJECTORIES = ((5, True), (1, False), (7, False), (2, True), (1, True), (4, False))
MIDDLE = 9


def trajectories(seed: int = 0) -> TransitionDataset:
    """Row i has observation i, action i / 100 and next observation i + 1, or i + 1/2 at the end of a trajectory."""
    ends = np.cumsum([length for length, _ in TRAJECTORIES]) - 1
    count = int(ends[-1]) + 1
    terminals, timeouts = np.zeros((2, count), np.bool_)
    terminals[[MIDDLE, *ends[[over for _, over in TRAJECTORIES]]]] = True
    timeouts[ends] = True
    number = np.arange(count, dtype=np.float32)
    return TransitionDataset.from_arrays(
        number[:, None], number[:, None] / 100, np.random.default_rng(seed).normal(size=count), terminals, timeouts,
        (number + np.where(timeouts, 0.5, 1.0))[:, None], action_low=-1, action_high=1,
    )  # fmt: skip


def expected(data: TransitionDataset, first: int, n: int) -> tuple[float, float, int]:
    """Return, factor of V(s') and number of the last row, for the transition from row `first`."""
    total, discount = 0.0, 1.0
    for row in range(first, first + n):
        total, discount = total + discount * float(data.rewards[row]), discount * GAMMA
        if data.dones[row] or row in data.episode_ends:
            break
    return total, 0.0 if data.dones[row] else discount, row


def assert_n_step(data: TransitionDataset, made: TransitionDataset, n: int) -> None:
    plain, batch = data.columns_at(np.arange(len(data))), made.columns_at(np.arange(len(data)))
    factors = td_target(torch.zeros(len(data)), batch.dones, torch.ones(()), GAMMA)
    for row in range(len(data)):
        total, factor, last = expected(data, row, n)
        assert batch.rewards[row].item() == pytest.approx(total, rel=1e-5, abs=1e-6)
        assert factors[row].item() == pytest.approx(factor, rel=1e-6)
        assert torch.equal(batch.next_obs[row], plain.next_obs[last])
        if batch.next_actions is not None and plain.next_actions is not None and factor > 0:
            assert torch.equal(batch.next_actions[row], plain.next_actions[last])
    assert torch.equal(batch.obs, plain.obs)
    assert torch.equal(batch.actions, plain.actions)
    assert np.array_equal(made.episode_ends, data.episode_ends)


@pytest.mark.parametrize("n", [2, 3, 30])
@pytest.mark.parametrize("extras", [(), (NEXT_ACTIONS,)])
@pytest.mark.parametrize("in_place", [False, True])
def test_every_row_equals_a_plain_loop(
    n: int, extras: Any, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "_CHUNK_ROWS", 4)
    data, other = (trajectories().with_extras(extras) for _ in range(2))
    made = other.with_n_step(n, GAMMA, in_place=in_place)
    assert_n_step(data, made, n)
    assert (made.rows is other.rows) == in_place
    assert in_place or np.array_equal(other.rows, data.rows)


def test_rows_are_summed_once_only() -> None:
    summed = trajectories().with_n_step(3, GAMMA)
    assert summed.with_n_step(1, GAMMA) is summed
    with pytest.raises(DatasetError, match=r"^arrays: its rows are 3-step returns already; use single steps$"):
        summed.with_n_step(2, GAMMA)


def test_what_needs_single_steps_comes_before_with_n_step() -> None:
    """Their rewards are in several rows, a shift is added once per row, and the next action is n rows later."""
    summed = trajectories().with_n_step(3, GAMMA)
    assert np.allclose(summed.with_rewards(2.0).rewards, 2.0 * summed.rewards)
    for use in (
        summed.episode_returns,
        summed.statistics,
        summed.with_return_range,
        summed.with_next_actions,
        lambda: summed.top_fraction(0.5),
        lambda: summed.with_rewards(shift=1.0),
    ):
        with pytest.raises(DatasetError, match=r" single steps, its rows have 3; use with_n_step last$"):
            use()


def test_rewards_do_not_change_after_a_column_that_depends_on_them() -> None:
    data = trajectories().with_extras((MC_RETURNS._replace(bound=(GAMMA, None)),))
    words = rf"^arrays: mc_returns \(gamma {GAMMA}, failure_reward None\) depends on the rewards; change them"
    with pytest.raises(DatasetError, match=words):
        data.with_rewards(0.1)


def test_summed_rows_need_the_learners_gamma(tmp_path: Path) -> None:
    """Their rewards and the discount of the next value contain it."""
    summed = trajectories().with_n_step(3, 0.9)
    config = tiny("iql", tmp_path, env_id=None, total_timesteps=2)
    words = "its rows are 3-step returns with gamma 0.9, got gamma 0.99; use the same, or single steps"
    with pytest.raises(DatasetError, match=f"^arrays: {words}$"):
        train(config, dataset=summed)
    own = config.replace(algo_kwargs={**config.algo_kwargs, "gamma": 0.9})
    assert train(own, dataset=summed).metrics["update_count"] == 2


def test_the_next_action_is_that_of_the_state_which_is_bootstrapped() -> None:
    """The last row of a cut episode has no next action and is left out; rows before it bootstrap at its state."""
    data = trajectories().with_next_actions()
    batch = data.with_n_step(3, GAMMA).columns_at(np.arange(len(data)))
    assert batch.next_actions is not None
    bootstrapped = batch.dones < 1
    assert bootstrapped.sum() == 8
    assert torch.allclose(batch.next_actions[bootstrapped], batch.next_obs[bootstrapped] / 100)


def test_one_step_changes_nothing() -> None:
    data = trajectories()
    assert data.with_n_step(1, GAMMA) is data


def test_rows_without_an_order_are_refused() -> None:
    data = TransitionDataset(trajectories().rows, trajectories().spaces, np.zeros(0, np.int64), "shuffled")
    with pytest.raises(DatasetError, match="shuffled: n_step needs episodes, but the rows are unordered"):
        data.with_n_step(3, GAMMA)


def test_iql_converges_to_the_known_values_of_a_chain() -> None:
    """States 0..4, reward 1 + s, terminated after state 4; a second trajectory is cut after state 2."""
    states = np.array([0, 1, 2, 3, 4, 0, 1, 2])
    data = TransitionDataset.from_arrays(
        np.eye(6)[states, :5], np.zeros((8, 1)), 1.0 + states, states == 4, np.arange(8) == 7,
        np.eye(6)[states + 1, :5], action_low=-1, action_high=1,
    ).with_n_step(3, GAMMA)  # fmt: skip
    learner = IQL(model=MLPIQLModel(5, 1, []), gamma=GAMMA, learning_rate=0.05, tau=0.2)
    source = data.source(torch.Generator().manual_seed(0))
    for step in range(400):
        learner.update(data.layout.unpack(source.sample_rows(32)), global_step=step)
    values = [sum(GAMMA**k * (1 + s + k) for k in range(5 - s)) for s in range(5)]
    assert learner.model.value(torch.eye(5)).tolist() == pytest.approx(values, abs=0.05)


def setup_of(algo: str, folder: Path, **kwargs: Any) -> DataRegime:
    config = tiny(algo, folder, kwargs={"gamma": GAMMA, "reward_scale": 0.5} | kwargs)
    regime = get_algorithm_spec(algo).regimes[0]
    made: Any = regime(get_algorithm_spec(algo).run_spec(config, options=QUIET))
    if isinstance(made, OfflineToOnline):
        assert (made.experience.buffer.n_step is not None) == (kwargs.get("n_step", 1) > 1)
    return made


@pytest.mark.parametrize("algo", mostly_slow([*WITH_TARGETS, "rlpd"], "iql", "rebrac", "cal_ql", "rlpd"))
def test_the_rows_of_a_run(algo: str, tmp_path: Path) -> None:
    one, three = (setup_of(algo, tmp_path, n_step=n) for n in (1, 3))
    assert_n_step(one.dataset, three.dataset, 3)
    assert torch.equal(three.source.rows, torch.from_numpy(three.dataset.rows))
    assert one.dataset.raw == three.dataset.raw


def test_held_out_episodes_are_whole(tmp_path: Path) -> None:
    one, three = (setup_of("iql", tmp_path, n_step=n, validation_fraction=0.5, dataset_size=500) for n in (1, 3))
    assert len(one.dataset) < 500
    assert_n_step(one.dataset, three.dataset, 3)


@pytest.mark.parametrize("algo", mostly_slow(["cql", "rlpd"], "rlpd"))  # whose first phase is offline
def test_a_resumed_run_is_exact(algo: str, tmp_path: Path) -> None:
    assert_exact(eventful(algo, tmp_path, kwargs={"n_step": 3}), 40)


def test_the_data_of_the_caller_stay(tmp_path: Path) -> None:
    data = trajectories()
    kept = data.rows.copy()
    config = tiny("rebrac", tmp_path, env_id=None, kwargs={"n_step": 3, "dataset_kind": None}, total_timesteps=4)
    train(config, dataset=data)
    assert np.array_equal(data.rows, kept)


def test_rows_in_a_file(tmp_path: Path) -> None:
    place, data = tmp_path / "data.npz", trajectories()
    columns = {name: column.read(0, len(data)) for name, column in data.columns().data.items()}
    np.savez(place, **columns, action_low=-1.0, action_high=1.0)
    kwargs = {"n_step": 3, "dataset_kind": "npz", "dataset_path": str(place), "action_low": [-1.0]}
    config = tiny("td3_bc", tmp_path / "runs", env_id=None, kwargs=kwargs | {"action_high": [1.0]})
    results = [train(config.replace(host_memory=limit)) for limit in (None, 0)]
    assert differences(*results) == ["config/host_memory"]


def test_members_of_a_population_equal_single_runs(tmp_path: Path) -> None:
    config = short("iql", tmp_path, kwargs={"n_step": 3}, seeds=[3, 0])
    singles = [train(config.replace(seed=seed, seeds=None)) for seed in (3, 0)]
    assert all_unlike(together(config), singles) == [[], []]


def test_members_share_their_rows_and_so_their_gamma(tmp_path: Path) -> None:
    configs = [tiny("iql", tmp_path, kwargs={"n_step": 3, "gamma": gamma}) for gamma in (0.9, 0.5)]
    with pytest.raises(ConfigError, match=r"^gamma: members of a population .* 0\.9 and 0\.5"):
        train_population(configs, options=QUIET)


def test_an_offline_run_may_change_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its rows are made from the same data again."""
    run = interrupted(tiny("iql", tmp_path), 30)
    resume(run, overrides=["algo_kwargs.n_step=3"])
    assert run_record(run)["exact_resume"] is False
    told = [line for line in capsys.readouterr().err.splitlines() if "exact" in line]
    assert told == ["warning: not an exact resume: settings have changed: algo_kwargs.n_step 1 -> 3"]


def test_rlpd_cannot_change_it(tmp_path: Path) -> None:
    run = interrupted(tiny("rlpd", tmp_path), 60)
    with pytest.raises(ConfigError, match="n_step: 3 differs from the 1 of this run's replay buffer"):
        resume(run, overrides=["algo_kwargs.n_step=3"])
