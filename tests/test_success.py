"""The table of OGBench's success rates."""

from __future__ import annotations

import pytest

from benchmarks.evidence import success

pytestmark = pytest.mark.pages


def test_the_last_three_checkpoints_of_each_seed_count() -> None:
    about = {"date": "d", "machine": "m", "versions": {}, "episodes": 50, "algo": "iql"}
    about["env"] = "ogbench/cube-single-play-singletask-task2-v0"
    scores = {0: {70: 0.0, 80: 0.2, 90: 0.4, 100: 0.6}, 1: {80: 0.8, 90: 0.8, 100: 0.8}}
    entries = [
        about | {"seed": seed, "updates": step, "success": score}
        for seed, found in scores.items()
        for step, score in found.items()
    ]
    (text,) = success.sections({str(i): entry for i, entry in enumerate(entries)}).values()
    assert "| cube-single | iql | 100 | 2 | 60 ± 28 | 40, 80 | 85 ± 8 |" in text
    assert "| scene | fql | – | 0 | – | – | 76 ± 9 |" in text
