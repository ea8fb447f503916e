"""Next actions of the data: where they are stored, which rows have one, and which learners get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import TD3BC
from rl_training.algorithms.base import Terms
from rl_training.data import datasets as datasets_module
from rl_training.data.datasets import TransitionDataset
from rl_training.data.extra_columns import NEXT_ACTIONS
from rl_training.data.mixing import mix
from rl_training.data.sources import BatchSource
from rl_training.data.transitions import RowLayout, TransitionBatch
from rl_training.errors import ConfigError, DatasetError
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.runtime.offline import Offline
from rl_training.runtime.trainers import algorithm
from tests.dataset_files import HIGH, LOW, episodes
from tests.runs import tiny


def line(terminals, timeouts, *, first=0.0, rewards=None, **options: Any) -> TransitionDataset:
    """State i (+ 100 per episode before), action `(first + i) / 100` and reward `first + i` in row i."""
    ends = np.logical_or(terminals, timeouts)
    steps = np.arange(len(ends))
    obs = (steps + 100 * (np.cumsum(ends) - ends)).astype(np.float32)[:, None]
    numbers = first + steps
    options = {"next_observations": obs + 1, "action_low": -1.0, "action_high": 1.0, **options}
    return TransitionDataset.from_arrays(
        obs, numbers[:, None] / 100, numbers if rewards is None else rewards, terminals, timeouts, **options
    )


def view(data: TransitionDataset) -> TransitionBatch:
    return data.layout.unpack(torch.from_numpy(np.asarray(data.rows)))


def numbers(actions: torch.Tensor | None) -> list[int]:
    """Rows whose actions these are."""
    assert actions is not None
    return [round(100 * value) for value in actions[:, 0].tolist()]


def sample(source: BatchSource, batch_size: int) -> TransitionBatch:
    return source.layout.unpack(source.sample_rows(batch_size))


def test_the_next_action_is_that_of_the_following_row_of_the_episode() -> None:
    # Rows 0 to 2 terminate, 3 to 5 run into a time limit, 6 and 7 are cut by the end of the data.
    data = line([0, 0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0])
    rows = data.with_next_actions()
    columns = view(rows)
    assert numbers(columns.actions) == [0, 1, 2, 3, 4, 6]
    assert numbers(columns.next_actions) == [1, 2, 2, 4, 5, 7]  # row 2 has none and stores its own, masked
    assert columns.dones.tolist() == [0, 0, 1, 0, 0, 0]
    assert columns.obs[:, 0].tolist() == [0, 1, 2, 103, 104, 206]
    assert columns.next_obs[:, 0].tolist() == [1, 2, 3, 104, 105, 207]
    assert columns.rewards.tolist() == [0, 1, 2, 3, 4, 6]
    assert rows.episode_ends.tolist() == [2, 4, 5]
    assert rows.notes[-1] == "2 rows left out: the last of a cut episode, without a next action"
    assert view(data).next_actions is None


def test_without_next_observations_the_last_two_rows_are_dropped() -> None:
    """The next action of the row before the last is in a row that is not a transition."""
    data = line([0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1], next_observations=None)
    assert numbers(view(data).actions) == [0, 1, 2, 3, 4]
    columns = view(data.with_next_actions())
    assert numbers(columns.actions) == [0, 1, 2, 3]
    assert numbers(columns.next_actions) == [1, 2, 2, 4]


def test_episodes_of_one_row_stay_only_if_they_terminate() -> None:
    rows = line([1, 0, 1, 0, 0, 1], [0, 1, 0, 1, 0, 0]).with_next_actions()
    assert numbers(view(rows).actions) == [0, 2, 4, 5]
    assert numbers(view(rows).next_actions) == [0, 2, 5, 5]
    assert rows.episode_ends.tolist() == [0, 1, 3]


def test_data_without_a_single_next_action_are_refused() -> None:
    with pytest.raises(DatasetError, match="no row has a next action, every episode is cut after its first row"):
        line([0, 0], [1, 1]).with_next_actions()


def test_nothing_is_left_out_where_every_episode_terminates() -> None:
    data = line([0, 1, 0, 1], [0, 0, 0, 0])
    rows = data.with_next_actions()
    assert (len(rows), rows.notes) == (4, data.notes)
    assert rows.with_next_actions() is rows


def test_discrete_next_actions_are_whole_numbers() -> None:
    data = episodes()
    data["actions"] = np.arange(12) % 3 + 5
    rows = TransitionDataset.from_arrays(**data, num_actions=3, start=5).with_next_actions()
    following = view(rows).next_actions
    assert following is not None
    assert following.dtype == torch.int64
    # Episodes of 4 (terminates), 3 and 5 rows (both cut).
    assert following.tolist() == [1, 2, 0, 0, 2, 0, 2, 0, 1, 2]
    assert rows.statistics().action_max == (7.0,)


def test_rows_without_order_are_refused_in_one_line() -> None:
    data = episodes(lengths=(30, 30, 30))
    order = np.random.default_rng(1).permutation(90)
    shuffled = TransitionDataset.from_arrays(
        **{name: column[order] for name, column in data.items()}, action_low=LOW, action_high=HIGH
    )
    ordered = TransitionDataset.from_arrays(**data, action_low=LOW, action_high=HIGH)
    for rows in (shuffled, mix([(ordered, 1.0), (shuffled, 1.0)])):
        with pytest.raises(DatasetError) as caught:
            rows.with_next_actions()
        assert "learning from next actions needs episodes, but the rows are unordered" in str(caught.value)
        assert "use data whose rows follow each other" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_mixture_keeps_its_parts_and_the_odds_of_its_rows() -> None:
    cut, ended = line([0] * 6, [0, 0, 1] * 2), line([0, 0, 0, 1], [0] * 4, first=50)
    rows = mix([(cut, 3.0), (ended, 1.0)]).with_next_actions()
    assert [part.rows for part in rows.parts] == [4, 4]
    assert [part.weight for part in rows.parts] == pytest.approx([0.75 * 4 / 6, 0.25])
    assert rows.episode_ends.tolist() == [1, 3, 7]
    batch = sample(rows.source(torch.Generator().manual_seed(0)), 20_000)
    odds = np.bincount(numbers(batch.actions), minlength=54) / 20_000
    # A row of the first part was drawn with probability 0.75 / 6, one of the second with 0.25 / 4: twice as often.
    assert odds[[0, 1, 3, 4]] == pytest.approx([1 / 6] * 4, abs=0.01)
    assert odds[[50, 51, 52, 53]] == pytest.approx([1 / 12] * 4, abs=0.01)
    for now, following in zip(numbers(batch.actions), numbers(batch.next_actions)):
        assert following == (now if now == 53 else now + 1)


def test_a_part_without_next_actions_leaves_the_mixture() -> None:
    rows = mix([(line([0], [1]), 1.0), (line([0, 1], [0, 0], first=50), 1.0)]).with_next_actions()
    assert [part.rows for part in rows.parts] == [2]
    assert set(numbers(sample(rows.source(torch.Generator()), 64).actions)) == {50, 51}


def test_data_with_next_actions_mix_only_with_others_that_have_them() -> None:
    data = line([0, 1], [0, 0])
    rows = data.with_next_actions()
    assert numbers(view(mix([(rows, 1.0), (rows, 1.0)])).next_actions) == [1, 1, 1, 1]
    with pytest.raises(DatasetError, match="mixed: the first has next_actions, the second has no extra columns"):
        mix([(rows, 1.0), (data, 1.0)])


def test_transforms_before_and_after_agree() -> None:
    data = line([0, 1, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0], rewards=[9.0, 9.0, 1.0, 1.0, 5.0, 5.0])
    before = data.top_fraction(0.67).with_rewards(2.0, 1.0).with_next_actions()
    after = data.with_next_actions().top_fraction(0.67).with_rewards(2.0, 1.0)
    for rows in (before, after):
        assert numbers(view(rows).next_actions) == [1, 1, 5, 5]
        assert rows.rewards.tolist() == [19.0, 19.0, 11.0, 11.0]
        assert rows.reward_map == (2.0, 1.0)
        assert rows.episode_ends.tolist() == [1, 3]
    assert before.fingerprint() == after.fingerprint() != data.with_next_actions().fingerprint()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_mapped_rows_and_small_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    options: dict[str, Any] = {**episodes(), "action_low": LOW, "action_high": HIGH}
    expected = TransitionDataset.from_arrays(**options).with_next_actions()
    monkeypatch.setattr(datasets_module, "_CHUNK_ROWS", size)
    mapped = TransitionDataset.from_arrays(**options, memory_limit=100).with_next_actions()
    assert isinstance(mapped.rows, np.memmap)
    np.testing.assert_array_equal(mapped.rows, expected.rows)
    assert mapped.fingerprint() == expected.fingerprint()


def test_a_row_of_five_columns_is_what_it_was() -> None:
    layout = RowLayout(obs_dim=2, action_dim=1, discrete=False)
    row = layout.pack(np.array([[1, 2]]), np.array([[3]]), np.array([4]), np.array([[5, 6]]), np.array([1]))
    assert row.tolist() == [[1, 2, 5, 6, 3, 0, 4, 1]]
    assert layout.unpack(torch.from_numpy(row)).next_actions is None


@pytest.mark.parametrize(("action_dim", "padding"), [(1, []), (2, [0, 0]), (3, [])])
def test_next_actions_are_stored_after_the_actions(action_dim: int, padding: list[float]) -> None:
    layout = RowLayout(obs_dim=2, action_dim=action_dim, discrete=False, extras=(NEXT_ACTIONS,))
    action, following = np.full((1, action_dim), 3.0), np.full((1, action_dim), 7.0)
    out = np.full((1, layout.width), np.nan, dtype=np.float32)
    layout.pack(
        np.array([[1, 2]]), action, np.array([4]), np.array([[5, 6]]), np.array([1]), out, next_actions=following
    )
    assert out.tolist() == [[1, 2, 5, 6, *[3] * action_dim, *[7] * action_dim, *padding, 4, 1]]
    batch = layout.unpack(torch.from_numpy(out))
    assert batch.next_actions is not None
    assert batch.next_actions.tolist() == following.tolist()


def test_a_mapping_may_bring_next_actions_of_the_actions_shape() -> None:
    batch: dict[str, Any] = {
        "obs": np.zeros((2, 3)),
        "actions": np.zeros((2, 1)),
        "rewards": np.zeros(2),
        "next_obs": np.zeros((2, 3)),
        "dones": np.zeros(2),
    }
    assert TransitionBatch.from_mapping(batch).next_actions is None
    assert TransitionBatch.from_mapping(batch | {"next_actions": None}).next_actions is None
    found = TransitionBatch.from_mapping(batch | {"next_actions": np.ones((2, 1))}).next_actions
    assert found is not None
    assert (found.dtype, found.tolist()) == (torch.float32, [[1.0], [1.0]])
    discrete = batch | {"actions": np.array([0, 1]), "next_actions": np.array([1, 0])}
    found = TransitionBatch.from_mapping(discrete).next_actions
    assert found is not None
    assert (found.dtype, found.tolist()) == (torch.int64, [1, 0])
    with pytest.raises(ConfigError, match=r"next_actions must have shape \(2, 1\), got \(2,\)"):
        TransitionBatch.from_mapping(batch | {"next_actions": np.ones(2)})


class Curious(TD3BC):
    """TD3+BC that looks at the next actions without using them."""

    extras = (NEXT_ACTIONS,)
    seen = 0

    def gradient_step(self, batch: TransitionBatch, phase: object) -> Terms:
        assert batch.next_actions is not None
        assert batch.next_actions.shape == batch.actions.shape
        Curious.seen += 1
        return super().gradient_step(batch, phase)


def test_a_learner_that_asks_gets_them(tmp_path: Path) -> None:
    config = tiny("td3_bc", tmp_path, total_timesteps=3, eval_episodes=0)
    size = config.algo_kwargs["dataset_size"]
    Curious.seen = 0
    result = algorithm(Curious, Offline, "TD3+BC that looks", 2021).train(config)
    assert Curious.seen == 3
    # Pendulum never terminates: every episode of the collected rows is truncated, which costs one row each.
    cuts = -(-size // 200)
    assert result.metrics["dataset_size"] == size - cuts
    assert read_checkpoint(result.checkpoint_path).records["dataset"]["rows"] == size - cuts
