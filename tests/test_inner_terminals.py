"""Trajectories that continue after a termination (`ends_at_timeouts`): rows stay together, returns end there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rl_training import cli
from rl_training.algorithms.losses import td_target
from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes, hold_out, resamples
from rl_training.data.formats import convert_dataset, write_columns
from rl_training.data.mixing import mix
from rl_training.errors import DatasetError
from rl_training.experience.fqe_data import Units, estimated_returns
from rl_training.off_policy_evaluation.importance import doubly_robust, log_weights
from tests.dataset_files import save_hdf5, save_npz

GAMMA = 0.9
LENGTHS = (6, 4, 5, 3)
TERMINAL = (2, 3, 12, 14)  # rows 2 and 3 inside the first trajectory, 12 and the last row 14 of the third


def trajectories(**changes: Any) -> dict[str, Any]:
    """Row i has observation i, action i / 100 and reward i + 1; the last successor of a trajectory is i + 1/2."""
    ends = np.cumsum(LENGTHS) - 1
    number = np.arange(sum(LENGTHS), dtype=np.float32)
    timeouts = np.isin(number, ends)
    return {
        "observations": number[:, None],
        "actions": number[:, None] / 100,
        "rewards": number + 1,
        "terminals": np.isin(number, TERMINAL),
        "timeouts": timeouts,
        "next_observations": (number + np.where(timeouts, 0.5, 1.0))[:, None],
        "action_low": [-1.0],
        "action_high": [1.0],
        **changes,
    }


def data(**changes: Any) -> TransitionDataset:
    return TransitionDataset.from_arrays(**trajectories(**changes), ends_at_timeouts=True)


def to_go(dataset: TransitionDataset, row: int, gamma: float = 1.0, cut: float = 0.0) -> float:
    """The return from a row to the next termination or the end of its trajectory, by the definition."""
    reward = float(dataset.rewards[row])
    if dataset.dones[row]:
        return reward
    rest = cut if row in dataset.episode_ends else to_go(dataset, row + 1, gamma, cut)
    return reward + gamma * rest


def test_episodes_end_at_timeouts_alone() -> None:
    found = data()
    assert found.episode_ends.tolist() == [5, 9, 14, 17]
    assert np.flatnonzero(found.dones).tolist() == list(TERMINAL)
    assert found.columns_at(np.array([2])).next_obs.item() == 3.0  # the successor of a termination is kept
    statistics = found.statistics()
    assert (statistics.episodes, statistics.terminals, statistics.timeouts) == (4, 4, 3)
    assert (statistics.length_min, statistics.length_max) == (3, 6)
    # Without the flag every termination ends an episode, as before.
    assert TransitionDataset.from_arrays(**trajectories()).episode_ends.tolist() == [2, 3, 5, 9, 12, 14, 17]


def test_successors_are_rebuilt_across_terminations() -> None:
    found = data(next_observations=None)
    assert len(found) == sum(LENGTHS) - 3  # the last rows that did not terminate have no successor
    batch = found.columns_at(np.arange(len(found)))
    assert batch.next_obs[2].item() == 3.0
    last = int(np.flatnonzero(batch.obs[:, 0].numpy() == 14)[0])
    assert (batch.next_obs[last].item(), batch.dones[last].item()) == (14.0, 1.0)
    assert found.episode_ends.tolist() == [4, 7, 12, 14]


def test_rows_after_a_termination_must_follow() -> None:
    broken = trajectories()["next_observations"].copy()
    broken[2] = 77.0
    assert TransitionDataset.from_arrays(**trajectories(next_observations=broken))  # the end of an episode
    with pytest.raises(DatasetError, match="row 2: differs from 'observations' of row 3 inside an episode"):
        data(next_observations=broken)
    with pytest.raises(DatasetError, match="ends_at_timeouts needs the column 'timeouts'"):
        data(timeouts=None)


@pytest.mark.parametrize("suffix", ["npz", "hdf5"])
def test_files_keep_the_ends_of_episodes(tmp_path: Path, suffix: str) -> None:
    other = "hdf5" if suffix == "npz" else "npz"
    first = write_columns(tmp_path / f"first.{suffix}", data().columns())
    second = convert_dataset(first, other, tmp_path / f"second.{other}")
    for file in (first, second):
        loaded = TransitionDataset.load(file)
        assert loaded.fingerprint() == data().fingerprint()
        assert np.array_equal(loaded.episode_ends, data().episode_ends)
    assert "18 transitions, 4 episodes" in CliRunner().invoke(cli.main, ["dataset", "validate", str(first)]).output
    save = {"npz": save_npz, "hdf5": save_hdf5}[suffix]
    plain = save(tmp_path / f"plain.{suffix}", trajectories())
    assert len(TransitionDataset.load(plain, action_low=-1, action_high=1).episode_ends) == 7


def test_data_that_end_at_terminations_are_written_as_before() -> None:
    columns = TransitionDataset.from_arrays(**trajectories()).columns()
    assert not columns.ends_at_timeouts
    assert np.flatnonzero(columns.data["timeouts"].read(0, 18)).tolist() == [5, 9, 17]


def test_minari_cannot_hold_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(DatasetError, match="Minari ends an episode at its termination; write npz or HDF5"):
        write_columns("some/data-v0", data().columns(), "minari")


def test_returns_end_at_the_first_termination() -> None:
    found = data()
    firsts = [0, 6, 10, 15]
    assert found.episode_returns().tolist() == [to_go(found, row) for row in firsts]
    assert found.episode_returns(GAMMA) == pytest.approx([to_go(found, row, GAMMA) for row in firsts])
    assert found.episode_returns().tolist() == [1 + 2 + 3, 7 + 8 + 9 + 10, 11 + 12 + 13, 16 + 17 + 18]


def test_the_best_trajectories_are_kept_whole() -> None:
    best = data().top_fraction(0.5)
    assert best.columns_at(np.arange(len(best))).obs[:, 0].tolist() == [10, 11, 12, 13, 14, 15, 16, 17]
    assert best.episode_ends.tolist() == [4, 7]


def test_trajectories_are_held_out_whole() -> None:
    first, second = hold_out(data(), 0.5)
    seen = [set(part.columns_at(np.arange(len(part))).obs[:, 0].tolist()) for part in (first, second)]
    for start, length in zip(np.cumsum(LENGTHS) - LENGTHS, LENGTHS):
        rows = set(range(start, start + length))
        assert sorted(len(rows & part) for part in seen) == [0, length]
    assert len(first.episode_ends) == len(second.episode_ends) == 2


def test_n_step_returns_end_at_a_termination() -> None:
    found = data()
    made = found.with_n_step(3, GAMMA)
    batch = made.columns_at(np.arange(len(made)))
    factors = td_target(torch.zeros(len(made)), batch.dones, torch.ones(()), GAMMA)
    for row in range(len(made)):
        total, discount, at = 0.0, 1.0, row
        for at in range(row, row + 3):
            total, discount = total + discount * float(found.rewards[at]), discount * GAMMA
            if found.dones[at] or at in found.episode_ends:
                break
        assert batch.rewards[row].item() == pytest.approx(total)
        assert factors[row].item() == pytest.approx(0.0 if found.dones[at] else discount)
        assert batch.next_obs[row].item() == trajectories()["next_observations"][at]


def test_next_actions_follow_a_termination() -> None:
    made = data().with_next_actions()
    batch = made.columns_at(np.arange(len(made)))
    assert batch.next_actions is not None
    assert (100 * batch.next_actions[2:4, 0]).round().tolist() == [3.0, 4.0]
    assert batch.obs[:, 0].tolist() == [i for i in range(18) if i not in (5, 9, 17)]  # the cut ends; 14 terminates


def test_parts_of_a_mixture_keep_their_trajectories() -> None:
    mixed = mix([(data(), 1.0), (TransitionDataset.from_arrays(**trajectories()), 1.0)])
    assert mixed.episode_ends.tolist() == [5, 9, 14, 17, *(18 + row for row in (2, 3, 5, 9, 12, 14, 17))]
    assert mixed.episode_returns()[:4].tolist() == data().episode_returns().tolist()


def test_values_of_rows_end_at_the_next_termination() -> None:
    found, episodes = data(), Episodes.of(data(), "a test")
    rewards = found.rewards.astype(np.float64)
    follows = float(rewards.mean()) / (1.0 - GAMMA * (1.0 - float(np.mean(found.dones))))
    returns = estimated_returns(rewards, found.dones, episodes, GAMMA)
    assert returns == pytest.approx([to_go(found, row, GAMMA, follows) for row in range(len(found))])
    assert Units.of(found, episodes, GAMMA).offset == pytest.approx(returns.mean())


def test_importance_sampling_counts_rows_up_to_the_first_termination() -> None:
    found = data()
    whole = Episodes.of(found, "a test")
    counted = whole.to_termination(found.dones)
    assert counted.lengths.tolist() == [3, 4, 3, 3]
    ratios = np.random.default_rng(0).uniform(0.5, 2.0, len(found))
    spans = [slice(0, 3), slice(6, 10), slice(10, 13), slice(15, 18)]
    assert log_weights(ratios, counted) == pytest.approx([np.log(ratios[span]).sum() for span in spans])
    zeros, after = np.zeros(len(found)), np.zeros(4)
    rewards = found.rewards.astype(np.float64)
    estimates = doubly_robust(np.ones(len(found)), rewards, zeros, zeros, after, counted, 1.0)
    assert estimates == pytest.approx(found.episode_returns())


def test_resamples_draw_whole_trajectories() -> None:
    part = resamples(Episodes.of(data(), "a test"), 1, np.random.default_rng(0), torch.device("cpu"))[0]
    assert part.size == sum(LENGTHS)
    assert part.rows_at(torch.arange(18)).tolist() == list(range(18))
