"""The replay buffer is a ring: the newest rows, each as likely as any other, nothing never written."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LAYOUT = RowLayout(obs_dim=2, action_dim=1, discrete=False)


def buffer(capacity: int, seed: int = 0) -> ReplayBuffer:
    made = ReplayBuffer(capacity, LAYOUT, torch.Generator().manual_seed(seed))
    made.rows.fill_(float("nan"))  # memory that was never written
    return made


def rows(first: int, count: int) -> np.ndarray:
    """Rows that carry their number in every column."""
    return np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], LAYOUT.width, axis=1)


def test_the_ring_overwrites_its_oldest_rows_in_place() -> None:
    ring = buffer(4)
    ring.add(rows(0, 3))
    assert (len(ring), ring.added) == (3, 3)
    ring.add(rows(3, 3))  # wraps in the middle
    assert (len(ring), ring.added) == (4, 6)
    assert ring.rows[:, 0].tolist() == [4, 5, 2, 3]
    assert (ring.rows == ring.rows[:, :1]).all()


@given(st.integers(1, 7), st.lists(st.integers(0, 9), max_size=8))
def test_after_any_additions_it_holds_the_newest_rows(capacity: int, counts: list[int]) -> None:
    ring, newest, first = buffer(capacity), deque[float](maxlen=capacity), 0
    for count in counts:
        ring.add(rows(first, count))
        newest.extend(range(first, first + count))
        first += count
    assert (len(ring), ring.added) == (len(newest), first)
    assert sorted(ring.rows[: len(ring), 0].tolist()) == list(newest)
    if newest:
        assert set(ring.sample_rows(64)[:, 0].tolist()) <= set(newest)


def test_only_written_rows_are_drawn_and_new_ones_join_at_once() -> None:
    ring = buffer(100)
    ring.add(rows(0, 5))
    assert set(ring.sample_rows(500)[:, 0].tolist()) == {0, 1, 2, 3, 4}
    ring.add(rows(5, 2))
    assert set(ring.sample_rows(500)[:, 0].tolist()) == {0, 1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("filled", [10, 64])
def test_draws_are_uniform(filled: int) -> None:
    ring = buffer(64, seed=1)
    ring.add(rows(0, filled))
    draws = 200 * filled
    counts = torch.bincount(ring.sample_rows(draws)[:, 0].long(), minlength=filled)
    chi_square = float(((counts - 200) ** 2 / 200).sum())
    freedom = filled - 1
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5


def test_the_same_seed_draws_the_same_rows() -> None:
    rings = [buffer(20, seed=3) for _ in range(2)]
    for ring in rings:
        ring.add(rows(0, 20))
    assert torch.equal(rings[0].sample_rows(50), rings[1].sample_rows(50))


@pytest.mark.parametrize("count", [3, 10])
def test_a_loaded_buffer_goes_on_where_the_old_one_was(count: int) -> None:
    old = buffer(4)
    old.add(rows(0, count))
    new = buffer(4)
    new.load(old.rows[: len(old)].clone(), added=old.added)
    assert (new.added, len(new)) == (count, min(count, 4))
    for ring in (old, new):
        ring.add(rows(count, 2))
    assert torch.equal(new.rows.nan_to_num(-1), old.rows.nan_to_num(-1))
    assert torch.equal(new.sample_rows(30), old.sample_rows(30))


def test_columns_come_back_as_they_were_packed() -> None:
    columns = {
        "obs": np.array([[1.0, 2.0]]),
        "actions": np.array([[0.5]]),
        "rewards": np.array([-3.0]),
        "next_obs": np.array([[4.0, 5.0]]),
        "dones": np.array([True]),
    }
    ring = buffer(1)
    ring.add(LAYOUT.pack(**columns))
    batch = LAYOUT.unpack(ring.sample_rows(2))
    for name, column in columns.items():
        assert getattr(batch, name).dtype == torch.float32
        np.testing.assert_array_equal(getattr(batch, name).numpy(), np.repeat(column, 2, axis=0))


def test_discrete_actions_are_whole_numbers() -> None:
    layout = RowLayout(obs_dim=2, action_dim=1, discrete=True)
    ring = ReplayBuffer(3, layout, torch.Generator())
    ring.add(layout.pack(np.zeros((3, 2)), np.array([7, 7, 7]), np.zeros(3), np.zeros((3, 2)), np.zeros(3)))
    actions = layout.unpack(ring.sample_rows(5)).actions
    assert actions.dtype == torch.int64
    assert actions.tolist() == [7] * 5


@pytest.mark.parametrize(("obs_dim", "action_dim"), [(1, 1), (2, 1), (3, 2), (17, 6)])
def test_rows_are_aligned_and_their_padding_is_zero(obs_dim: int, action_dim: int) -> None:
    layout = RowLayout(obs_dim, action_dim, discrete=False)
    used = 2 * obs_dim + action_dim + 2
    assert layout.width % 4 == 0
    assert used <= layout.width < used + 4
    out = np.full((2, layout.width), np.nan, dtype=np.float32)
    observations = np.ones((2, obs_dim))
    layout.pack(observations, np.ones((2, action_dim)), np.ones(2), observations, np.ones(2), out)
    assert out.sum() == 2 * used


@needs_gpu
@pytest.mark.parametrize("together", [1, 3])
def test_rows_that_arrive_on_a_gpu_are_there_for_whoever_looks(together: int) -> None:
    """Added by the usual number or another, around the end of the ring, looked at or not, loaded: as on a CPU."""
    rings = [
        ReplayBuffer(10, LAYOUT, torch.Generator(device).manual_seed(0), together=together)
        for device in ("cpu", "cuda")
    ]
    first = 0
    for count in (together, together, 2, together, 7, together, together, 12, together):
        for ring in rings:
            ring.add(rows(first, count))
        first += count
        if first % 2:
            assert torch.equal(rings[1].rows.cpu()[: len(rings[0])], rings[0].rows[: len(rings[0])])
        assert len(rings[1]) == len(rings[0])
    for ring in rings:
        ring.load(torch.from_numpy(rows(100, 5)), added=5)
        ring.add(rows(105, together))
    assert torch.equal(rings[1].rows.cpu()[: 5 + together], rings[0].rows[: 5 + together])
    assert int(rings[1].filled) == 5 + together


@needs_gpu
def test_rows_are_written_by_the_graph_of_an_update() -> None:
    """Replayed with and without a new row between; the ring is that of plain additions."""
    ring = ReplayBuffer(8, LAYOUT, torch.Generator("cuda"), together=2)
    plain = ReplayBuffer(8, LAYOUT, torch.Generator("cpu"))
    for one in (ring, plain):
        one.add(rows(0, 2))
    [arrivals] = ring.arrivals
    ring.sample_rows(4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        arrivals.write()
        taken = ring._rows.clone()
    for first in range(2, 22, 2):
        for one in (ring, plain):
            one.add(rows(first, 2))
        for _ in range(2):
            graph.replay()
            arrivals.written()
        filled = len(plain)
        assert torch.equal(taken.cpu()[:filled], plain.rows[:filled])
        assert int(ring.filled) == filled
