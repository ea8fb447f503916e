"""`benchmarks.evidence.choosing`: settings are trained, FQE takes one, and its true rank is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.evidence import choosing, ope
from rl_training.study import Study

pytestmark = pytest.mark.pages


def study_of(folder: Path, expectiles: list[float], **settings: Any) -> Study:
    """Settings of IQL on 200 rows that mean nothing."""
    rng, rows = np.random.default_rng(0), 200
    np.savez(
        folder / "log.npz",
        observations=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=rng.uniform(-2, 2, (rows, 1)).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        terminals=np.zeros(rows, bool),
        timeouts=np.arange(1, rows + 1) % 50 == 0,
    )
    data = {"dataset_kind": "npz", "dataset_path": str(folder / "log.npz"), "dataset_id": None}
    plan = {"name": "choosing", "base": "iql/pendulum", "set": data | settings, "seeds": [0], "threads": 1,
            "grid": {"expectile": expectiles, "beta": [3.0]}, "population": 2}  # fmt: skip
    return Study(plan, output_dir=folder / "out")


def chosen(study: Study, *words: object) -> None:
    choosing.main([str(word) for word in (study.folder, "--config", "iql/pendulum", *words)])


def test_a_study_that_is_not_done_or_without_the_packaged_settings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(tmp_path, [0.6, 0.65])
    study.plan(1)
    with pytest.raises(SystemExit, match="not every trial is done"):
        chosen(study)
    monkeypatch.setattr(choosing, "finished", lambda study: study.status().trials)
    with pytest.raises(SystemExit, match="iql/pendulum: its beta and expectile are not among those that are tried"):
        chosen(study)


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
def test_chosen_and_only_then_played(tmp_path: Path) -> None:
    study = study_of(tmp_path, [0.7, 0.8], total_timesteps=10, device="cpu", eval_episodes=0)
    study.run()
    words = ["--fqe-updates", 10, "--episodes", 2, "--bootstraps", 2, "--device", "cpu", "--processes", 1]
    chosen(study, *words, "--json", tmp_path / "found.json")
    (entry,) = json.loads((tmp_path / "found.json").read_text())["entries"].values()
    assert (entry["files"], entry["updates"]) == ("log", 10)
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
