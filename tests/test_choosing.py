"""`benchmarks.choosing`: settings are trained, FQE takes one, and its true rank is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks import choosing, ope

pytestmark = pytest.mark.pages


def test_a_configuration_that_is_not_tried_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "GRID", {"expectile": [0.6], "beta": [3.0]})
    words = ["--data", tmp_path, "--files", "log", "--config", "iql/pendulum", "--folder", tmp_path / "out"]
    with pytest.raises(SystemExit, match="iql/pendulum: its expectile and beta are not among those that are tried"):
        choosing.main([str(word) for word in words])
    assert not (tmp_path / "out").exists()


def entry_of(*trials: tuple[float, float, float | None]) -> dict[str, Any]:
    """A measurement of (value, return, discounted return) each; the first setting is the packaged one."""
    found: list[dict[str, Any]] = [
        {"settings": {"beta": float(i)}, "value": value, "truth": truth, "error": 1.0, "default": i == 0}
        | ({} if discounted is None else {"discounted": discounted, "discounted_error": 0.5})
        for i, (value, truth, discounted) in enumerate(trials)
    ]
    return {
        "files": "log", "updates": 10, "fqe_updates": 10, "bootstraps": 1, "episodes": 2, "trials": found,
        "agreement": {"spearman": 0.25, "regret": 0.5}, "seconds": {"training": 1.0, "judging": 1.0},
    }  # fmt: skip


def test_values_are_compared_with_discounted_returns() -> None:
    """The longer-lived policy has the higher return and the lower value."""
    text = choosing.text_of(entry_of((270.0, 1050.0, 265.0), (256.0, 2841.0, 250.0)))
    assert "takes the first line: 265.0 ± 0.5 discounted, return 1,050 ± 1, rank 1 of 2" in text
    assert "correlation of FQE's values with the true discounted ones 0.25" in text


def test_a_measurement_without_discounted_returns_has_no_correlation() -> None:
    text = choosing.text_of(entry_of((270.0, 1050.0, None), (256.0, 2841.0, None)))
    assert "correlation" not in text
    assert "cannot be correlated" in text
    assert "rank 2 of 2" in text


@pytest.mark.slow
def test_trained_chosen_and_only_then_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, rows = np.random.default_rng(0), 200
    np.savez(
        tmp_path / "log.npz",
        observations=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=rng.uniform(-2, 2, (rows, 1)).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        terminals=np.zeros(rows, bool),
        timeouts=np.arange(1, rows + 1) % 50 == 0,
    )
    monkeypatch.setattr(choosing, "GRID", {"expectile": [0.7, 0.8], "beta": [3.0]})
    words = ["--data", tmp_path, "--files", "log", "--config", "iql/pendulum", "--updates", 10, "--fqe-updates", 10]
    words += ["--episodes", 2, "--bootstraps", 2, "--device", "cpu", "--processes", 1]
    words += ["--folder", tmp_path / "out", "--json", tmp_path / "found.json"]
    choosing.main([str(word) for word in words])
    (entry,) = json.loads((tmp_path / "found.json").read_text())["entries"].values()
    trials = entry["trials"]
    assert [one["value"] for one in trials] == sorted((one["value"] for one in trials), reverse=True)
    assert {one["settings"]["expectile"]: one["default"] for one in trials} == {0.7: True, 0.8: False}
    assert all(-4000 < one["truth"] < 0 and one["error"] >= 0 for one in trials)
    compared = np.array([one["discounted"] for one in trials]), np.array([one["value"] for one in trials])
    assert entry["agreement"] == ope.agreement(*compared)
    text = choosing.text_of(entry)
    rank = 1 + sum(other["discounted"] > trials[0]["discounted"] for other in trials)
    assert f"takes the first line: {trials[0]['discounted']:,.1f}" in text
    assert f"rank {rank} of 2. The packaged" in text
    assert "expectile 0.7 (the packaged configuration)" in text


def test_agreement_is_spearman_s_and_its_interval_is_over_policies() -> None:
    rng = np.random.default_rng(0)
    truths = rng.normal(size=11)
    values = truths + rng.normal(size=11)
    found = ope.agreement(truths, values)
    assert found["spearman"] == pytest.approx(stats.spearmanr(truths, values).statistic)
    assert found["error"] == pytest.approx(np.abs(values - truths).mean())
    span = truths.max() - truths.min()
    assert found["regret"] == pytest.approx((truths.max() - truths[values.argmax()]) / span)
    low, high = ope.interval(truths, values, "spearman")
    assert -1 <= low < found["spearman"] < high <= 1
    assert ope.interval(truths, truths, "error") == (0.0, 0.0)
