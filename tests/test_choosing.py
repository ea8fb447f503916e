"""`benchmarks.evidence.choosing`: candidates are selected first and played only afterwards."""

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
    """Trials of IQL on 200 random rows."""
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


def test_an_unfinished_study_is_refused(tmp_path: Path) -> None:
    study = study_of(tmp_path, [0.6, 0.65])
    study.plan(1)
    with pytest.raises(SystemExit, match="not every trial is done"):
        choosing.main([str(study.folder)])


def entry_of(trial: str | None, *trials: tuple[str, float, float, float]) -> dict[str, Any]:
    """A measurement with (name, lower bound, discounted return, return) per candidate, and the selected one."""
    found: list[dict[str, Any]] = [
        {"name": name, "outside": 0.05, "value": low + 1, "low": low, "high": low + 2, "discounted": discounted,
         "discounted_error": 0.5, "truth": truth, "error": 1.0}
        for name, low, discounted, truth in trials
    ]  # fmt: skip
    data, clone = ({"value": value, "low": value - 1, "high": value + 1} for value in (5.0, 5.5))
    selection = {
        "trial": trial, "reasons": ["values are close"], "safe": "one", "seconds": 2.0, "data": data, "clone": clone
    }  # fmt: skip
    return {
        "case": "trials of a study", "env": "X-v0", "rows": 100, "critics": 10, "hidden": 8, "updates": 10,
        "trials": found, "selection": selection, "played": {"trial": "two", "seconds": 1.0, "play": 20},
        "agreement": choosing.scores(found),
    }  # fmt: skip


TRIALS = (("one", 3.0, 10.0, 100.0), ("two", 2.0, 30.0, 300.0), ("three", 1.0, 20.0, 50.0))


def test_a_choice_and_an_abstention_are_reported() -> None:
    text = choosing.text_of(entry_of("one", *TRIALS))
    assert "It selects one (regret 0.80)" in text
    assert "With 20 episodes in the environment it selects two (regret 0.00)" in text
    assert "return of the data is 5.0 [4.0, 6.0], the FQE value of their clone 5.5 [4.5, 6.5]" in text
    assert "It abstains (values are close) and names one." in choosing.text_of(entry_of(None, *TRIALS))


def test_the_optimist_is_excluded_from_the_agreement() -> None:
    entry = entry_of(None, *TRIALS, (choosing.OPTIMIST, 99.0, -5.0, 0.0))
    assert entry["agreement"] == choosing.scores(entry["trials"][:3])
    assert entry["agreement"]["spearman"] == pytest.approx(-0.5)
    assert choosing.regret(entry, choosing.OPTIMIST) == 1.0


@pytest.mark.slow
def test_candidates_are_played_after_the_selection(tmp_path: Path) -> None:
    study = study_of(tmp_path, [0.7, 0.8], total_timesteps=10, device="cpu", eval_episodes=0)
    study.run()
    words = ["--updates", 10, "--episodes", 2, "--critics", 2, "--hidden", 8, "--optimist-updates", 10, "--play", 4,
             "--device", "cpu", "--processes", 1, "--folder", tmp_path]  # fmt: skip
    words += ["--json", tmp_path / "found.json"]
    choosing.main([str(study.folder), *(str(word) for word in words)])
    (entry,) = json.loads((tmp_path / "found.json").read_text())["entries"].values()
    assert (entry["env"], entry["rows"], entry["critics"]) == ("Pendulum-v1", 196, 2)
    assert {one["name"] for one in entry["trials"]} == {
        "beta 3, expectile 0.7",
        "beta 3, expectile 0.8",
        "optimist",
    }
    assert all(-4000 < one["truth"] < 0 and one["error"] >= 0 for one in entry["trials"])
    assert entry["agreement"] == choosing.scores(entry["trials"])
    assert entry["played"]["trial"] in {one["name"] for one in entry["trials"]}
    assert "| candidate" in choosing.text_of(entry)


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
