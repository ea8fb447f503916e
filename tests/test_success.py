"""The table of OGBench's success rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.evidence import success
from rl_training import Study
from rl_training.study.packing import pack_study, unpack_study

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


def test_a_run_that_trained_further_counts_with_its_newest_measurement_alone() -> None:
    about = {"date": "d", "machine": "m", "versions": {}, "episodes": 50, "algo": "iql", "seed": 0}
    about["env"] = "ogbench/cube-single-play-singletask-task2-v0"
    scores = ((70, {}, 0.0), (100, {"last": 100}, 0.0), (190, {"last": 200}, 0.7), (200, {"last": 200}, 0.9))
    entries = {str(step): about | {"updates": step, "success": score} | last for step, last, score in scores}
    (text,) = success.sections(entries).values()
    assert "| cube-single | iql | 200 | 1 | 80 | 80 | 85 ± 8 |" in text


def test_a_packed_study_has_the_last_policy_of_each_run(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 8\ncheckpoint_interval: 4\ndevice: cpu\n",
        encoding="utf-8",
    )
    (tmp_path / "tiny.yaml").write_text("base: base.yaml\nseeds: [0, 1]\n", encoding="utf-8")
    study = Study(tmp_path / "tiny.yaml", output_dir=tmp_path / "studies")
    study.run()
    pack_study(study.folder, tmp_path / "tiny.zip", policies="last")
    unpacked = unpack_study(tmp_path / "tiny.zip", tmp_path / "unpacked")
    steps = {
        place: [int(checkpoint.name.rpartition("_")[2]) for checkpoint in success.last_checkpoints(place, 3)]
        for place in (study.folder, unpacked)
    }
    assert steps == {study.folder: [4, 8, 4, 8], unpacked: [8, 8]}
