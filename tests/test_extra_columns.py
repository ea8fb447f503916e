"""Extra columns of rows: what a learner declares, one function computes; all others only pass it on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms import IQL, TD3BC
from rl_training.algorithms.base import Terms
from rl_training.algorithms.iql import DiscreteIQL
from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes
from rl_training.data.extra_columns import NEXT_ACTIONS, Column, ColumnValues, extra
from rl_training.data.loading import DatasetConfig, load_dataset
from rl_training.data.mixing import mix
from rl_training.data.placement import MemoryBudget, PackedFile
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout, TransitionBatch
from rl_training.errors import ConfigError, DatasetError
from rl_training.experience.fqe_data import estimated_returns
from rl_training.runtime.offline import Offline
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm
from rl_training.settings import Fraction
from tests.dataset_files import HIGH, LOW, episodes, save_hdf5, save_npz
from tests.helpers import build, random_batch
from tests.runs import tiny
from tests.test_population_updates import assert_members_equal


def returns_to_go(data: TransitionDataset, gamma: float) -> ColumnValues:
    found = Episodes(*data.episodes("returns to go"))
    return ColumnValues(estimated_returns(data.rewards.astype(np.float64), data.dones, found, gamma).__getitem__)


RETURNS = Column("returns_to_go", "rewards", "the discounted return [B]", returns_to_go, settings=("gamma",))


class Regressing(TD3BC):
    """TD3+BC with critics that are fitted to the returns of the data."""

    name = "regressing"
    extras = (NEXT_ACTIONS, RETURNS)

    def critic_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms]:
        assert batch.next_actions is not None
        q = self.model.critics(batch.obs, batch.actions)
        loss = (q - extra(batch, RETURNS)).square().mean()
        return loss, {"critic_loss": loss, "return_mean": extra(batch, RETURNS).mean()}


class ShortSighted(DiscreteIQL.Config):
    gamma: Fraction = 0.25


class RegressingDiscrete(DiscreteIQL):
    """Implicit Q-learning that reports the returns of the data."""

    Config = ShortSighted
    extras = (RETURNS,)

    def gradient_step(self, batch: TransitionBatch, variant: Any) -> Terms:
        return super().gradient_step(batch, variant) | {"return_mean": extra(batch, RETURNS).mean()}


def data_of(gamma: float = 0.5, extras: tuple[Column, ...] = (RETURNS,), **changes: Any) -> TransitionDataset:
    """Episodes of 2 rows (terminates) and 3 (cut)."""
    columns = episodes((2, 3), (True, False)) | changes
    data = TransitionDataset.from_arrays(**columns, action_low=LOW, action_high=HIGH)
    return data.with_extras(tuple(column._replace(bound=(gamma,) * len(column.settings)) for column in extras))


def test_a_column_stands_behind_the_actions_and_is_a_field_of_the_batch() -> None:
    layout = RowLayout(obs_dim=2, action_dim=1, discrete=False, extras=(RETURNS,))
    one = np.ones(1)
    row = layout.pack(np.array([[1, 2]]), 3 * one, 4 * one, np.array([[5, 6]]), one, returns_to_go=9 * one)
    assert row.tolist() == [[1, 2, 5, 6, 3, 9, 4, 1]]
    batch = layout.unpack(torch.from_numpy(row))
    assert (extra(batch, RETURNS).tolist(), batch.rewards.tolist()) == ([9], [4])
    assert batch.next_actions is None
    assert layout.pack_batch(batch).tolist() == row.tolist()
    assert RowLayout(2, 1, discrete=False).pack_batch(batch).tolist() == [[1, 2, 5, 6, 3, 0, 4, 1]]
    changed = batch._replace(obs=-batch.obs)  # as a normaliser does
    assert extra(changed, RETURNS).tolist() == [9]


def test_values_come_from_whole_episodes_before_rows_are_left_out() -> None:
    rewards = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    cut = 16.0 + 0.5 * 6.2 / (1 - 0.5 * 0.8)  # continues with the mean reward, and ends in one of five steps
    expected = [2.0, 2.0, 4.0 + 0.5 * (8.0 + 0.5 * cut), 8.0 + 0.5 * cut, cut]
    both = data_of(extras=(NEXT_ACTIONS, RETURNS), rewards=rewards)
    for data, count in ((data_of(rewards=rewards), 5), (both, 4)):
        batch = data.columns_at(np.arange(len(data)))
        np.testing.assert_allclose(extra(batch, RETURNS), expected[:count], rtol=1e-6)
    assert batch.next_actions is not None
    assert torch.equal(batch.next_actions, data_of(extras=(NEXT_ACTIONS,)).columns_at(np.arange(4)).next_actions)
    assert both.notes[-1] == "1 row left out: the last of a cut episode, without a next action"


def test_data_with_other_columns_are_refused_in_one_line() -> None:
    data = data_of()
    assert data.with_extras(data.extras) is data
    own = r"returns_to_go \(gamma 0.5\)"
    with pytest.raises(DatasetError, match=f"arrays: the rows have {own} and need next_actions; use data"):
        data.with_next_actions()
    with pytest.raises(DatasetError, match=rf"have {own} and need returns_to_go \(gamma 0.9\); use data"):
        data.with_extras(data_of(0.9).extras)
    with pytest.raises(DatasetError, match=f"be mixed: the first has {own}, the second has no extra columns"):
        mix([(data, 1.0), (data_of(extras=()), 1.0)])
    with pytest.raises(DatasetError, match=rf"the first has {own}, the second has returns_to_go \(gamma 0.9\)"):
        mix([(data, 1.0), (data_of(0.9), 1.0)])
    orders = (NEXT_ACTIONS, RETURNS), (RETURNS, NEXT_ACTIONS)  # of the columns in a row
    with pytest.raises(DatasetError, match="cannot be mixed"):
        mix([(data_of(extras=extras), 1.0) for extras in orders])


def test_a_column_without_the_values_of_its_settings_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^column returns_to_go: gamma is not set; use bind\(config\)$"):
        data_of(extras=()).with_extras((RETURNS,))


def test_columns_are_compared_by_name_settings_and_function() -> None:
    """Layouts and caches compare columns."""
    same, other = (RETURNS._replace(bound=(gamma,)) for gamma in (0.5, 0.9))
    assert {RETURNS.bind(TD3BC.Config(gamma=0.5)), same, other} == {same, other}
    assert same != same._replace(compute=lambda data, gamma: returns_to_go(data, 0.0))


def test_each_setting_of_a_column_has_its_own_packed_file(tmp_path: Path) -> None:
    save_hdf5(tmp_path / "walks.hdf5", episodes(), action_low=LOW, action_high=HIGH)
    config = DatasetConfig.parse({"dataset_kind": "hdf5", "dataset_path": str(tmp_path / "walks.hdf5")})

    def load(*extras: Column) -> TransitionDataset:
        return load_dataset(config, spaces=None, extras=extras, budgets=MemoryBudget(torch.device("cpu"), None, 0))

    ways = [(), (NEXT_ACTIONS,), *((RETURNS._replace(bound=(gamma,)),) for gamma in (0.5, 0.9))]
    found = [load(*way).fingerprint() for way in ways for _ in range(2)]
    assert found[::2] == found[1::2]
    assert len(set(found)) == 4
    names = [file.name for file in tmp_path.glob("*.rows")]
    assert len(names) == 4
    for known in (False, True):  # what identifies a file that an earlier version packed
        settings = config.identity() | {"spaces": None, "next_actions": known}
        packed_file = PackedFile.of(config.files(), settings, None)
        assert packed_file is not None
        assert packed_file.places[0].name in names
        assert packed_file.find() is not None


def test_a_batch_without_the_column_is_refused_and_one_with_it_is_learned_from() -> None:
    learner, batch = build(Regressing), random_batch()._asdict()
    with pytest.raises(ConfigError, match=r"^batch: regressing needs the column 'returns_to_go', the discounted"):
        learner.update(batch, global_step=0)
    with pytest.raises(ConfigError, match=r"returns_to_go must have shape \(\d+,\), got \(3,\)"):
        learner.update(batch | {"returns_to_go": np.zeros(3)}, global_step=0)
    result = learner.update(batch | {"returns_to_go": torch.full_like(batch["rewards"], 7.0)}, global_step=0)
    assert float(result.metrics["return_mean"]) == 7.0


def test_a_run_gets_the_column_for_its_own_settings(tmp_path: Path) -> None:
    means = []
    for gamma in (0.0, 0.9):
        config = tiny("td3_bc", tmp_path, total_timesteps=3, eval_episodes=0, kwargs={"gamma": gamma})
        result = algorithm(Regressing, Offline, "fitted to returns", 2021).train(config)
        means.append(result.metrics["return_mean"])
    assert means[1] < 2 * means[0] < 0.0  # Pendulum's rewards are negative


@pytest.mark.parametrize("env_id", ["CartPole-v1", None])
def test_the_learner_for_discrete_actions_has_columns_of_its_own(env_id: str | None, tmp_path: Path) -> None:
    columns = episodes() | {"actions": np.arange(12) % 2, "rewards": np.ones(12)}
    data = {"dataset_kind": "npz", "dataset_path": str(save_npz(tmp_path / "a.npz", columns, num_actions=2))}
    if env_id is not None:
        data = {"dataset_kind": "random"}
    spec = algorithm(IQL, Offline, "with returns", 2021, discrete=RegressingDiscrete)
    config = tiny("iql", tmp_path, total_timesteps=3, eval_episodes=0, env_id=env_id, kwargs=data)
    assert 1.0 < spec.train(config).metrics["return_mean"] <= 4 / 3  # rewards of 1, discounted with 0.25


def test_members_of_a_population_share_the_column_and_its_settings() -> None:
    assert_members_equal(Regressing, updates=3)
    config = TD3BC.Config()
    assert "gamma" not in TD3BC.structure(config)
    assert Regressing.structure(config)["gamma"] == config.gamma


def test_a_replay_buffer_stores_the_column_but_experience_does_not_have_it(tmp_path: Path) -> None:
    layout = RowLayout(obs_dim=1, action_dim=1, discrete=False, extras=(RETURNS,))
    ring, one = ReplayBuffer(2, layout, torch.Generator()), np.ones((1, 1))
    ring.add(layout.pack(one, one, one[0], one, one[0], returns_to_go=5 * one[0]))
    assert extra(layout.unpack(ring.sample_rows(3)), RETURNS).tolist() == [5.0] * 3
    with pytest.raises(ConfigError) as caught:
        algorithm(Regressing, Online, "fitted to returns", 2021).train(tiny("td3", tmp_path))
    assert str(caught.value) == (
        "algo: regressing needs the column 'returns_to_go', which replay buffers do not have; train it offline"
    )


def test_a_mistaken_declaration_is_one_line() -> None:
    misspelt = Column("returns_to_go", "rewards", "the discounted return [B]", returns_to_go, settings=("gama",))
    with pytest.raises(ConfigError, match="column returns_to_go: TD3BCConfig has no setting 'gama'"):
        misspelt.bind(TD3BC.Config())
    with pytest.raises(ConfigError, match="the batch has no column returns_to_go; declare it in the learner's"):
        extra(random_batch(), RETURNS)
