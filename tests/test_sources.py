"""Sources sample from their rows; a mixed source has its share in every minibatch, not only on average."""

from __future__ import annotations

import pytest
import torch

from rl_training.data.sources import MixedSource, TensorSource
from rl_training.data.transitions import RowLayout
from rl_training.errors import ConfigError

LAYOUT = RowLayout(obs_dim=1, action_dim=1, discrete=False)


def source(value: float, count: int = 20, seed: int = 0, layout: RowLayout = LAYOUT) -> TensorSource:
    generator = torch.Generator().manual_seed(seed)
    return TensorSource(torch.full((count, layout.width), value), layout, generator)


@pytest.mark.parametrize(
    ("ratio", "prior_rows"), [(0.0, 0), (0.25, 4), (0.5, 8), (1.0, 16), (0.1, 2), (0.04, 1), (0.96, 15)]
)
def test_every_minibatch_holds_exactly_its_share_of_prior_rows(ratio: float, prior_rows: int) -> None:
    mixed = MixedSource(source(1.0), source(0.0), ratio=ratio)
    assert mixed.split(16) == (prior_rows, 16 - prior_rows)
    for _ in range(20):
        batch = LAYOUT.unpack(mixed.sample_rows(16))
        assert batch.rewards.shape == (16,)
        assert batch.rewards.sum() == prior_rows


def test_a_share_of_nothing_draws_nothing() -> None:
    """An empty side is allowed, and the other side has the same random stream as alone."""
    for ratio in (0.0, 1.0):
        used, unused = source(1.0, seed=5), source(2.0, seed=6)
        before = unused.generator.get_state()
        mixed = MixedSource(unused, used, ratio=0.0) if ratio == 0 else MixedSource(used, unused, ratio=1.0)
        assert torch.equal(mixed.sample_rows(9), source(1.0, seed=5).sample_rows(9))
        assert torch.equal(unused.generator.get_state(), before)


@pytest.mark.parametrize(("ratio", "batch_size"), [(0.01, 16), (0.99, 16), (0.5, 1)])
def test_a_ratio_that_leaves_one_side_empty_is_refused(ratio: float, batch_size: int) -> None:
    mixed = MixedSource(source(1.0), source(0.0), ratio=ratio)
    with pytest.raises(ConfigError, match=f"offline_batch_ratio {ratio} of a batch of {batch_size}") as error:
        mixed.sample_rows(batch_size)
    assert "\n" not in str(error.value)
    assert error.value.key == "algo_kwargs.offline_batch_ratio"


def test_sides_of_different_shape_are_refused() -> None:
    wide = RowLayout(obs_dim=4, action_dim=1, discrete=False)
    with pytest.raises(ConfigError, match="prior data and environment differ in shape"):
        MixedSource(source(1.0, layout=wide), source(0.0), ratio=0.5)


def test_a_mixed_source_is_as_long_as_both() -> None:
    assert len(MixedSource(source(1.0, 7), source(0.0, 5), ratio=0.5)) == 12


def test_fixed_rows_are_drawn_uniformly_with_replacement() -> None:
    rows = torch.arange(10.0)[:, None].expand(10, LAYOUT.width).contiguous()
    drawn = TensorSource(rows, LAYOUT, torch.Generator().manual_seed(0)).sample_rows(2_000)[:, 0]
    counts = torch.bincount(drawn.long(), minlength=10)
    assert float(((counts - 200) ** 2 / 200).sum()) < 27.9  # 99.9 % of chi-square with 9 degrees
