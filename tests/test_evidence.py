"""`benchmarks.evidence`: studies run for a time, continue, are evaluated and rendered; and the studies of the
repository."""

from __future__ import annotations

import json
import math
import os
import posix
import re
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import report
from benchmarks.evidence import keeping, rendering, study_page, working
from benchmarks.evidence.__main__ import main
from benchmarks.evidence.judging import EPISODES, SEED
from benchmarks.evidence.peers import peers_of
from benchmarks.evidence.phases import fine_tuning
from benchmarks.evidence.published import PUBLISHED, published
from rl_training.display.text import number as shown
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import amend_record
from rl_training.experiment.strict_yaml import dump_yaml, parse_yaml
from rl_training.runs.signals import TrainingInterrupted
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.seeding import EVALUATION_SEED
from rl_training.study import Study
from rl_training.study.claims import Owner, take
from rl_training.study.description import read_description
from rl_training.study.packing import pack_study
from rl_training.study.trials import record_of
from tests.reliability.processes import Child, fork_for_spawn, is_there, wait_for
from tests.studies import homes

pytestmark = pytest.mark.pages

STUDIES = Path(__file__).parents[1] / "benchmarks" / "studies"
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "total_timesteps": 1000,
    "eval_episodes": 1,
    "eval_interval": 500,
    "log_interval": 500,
    "checkpoint_interval": 100,
    "learning_starts": 20,
    "train_frequency": 10,
    "gradient_updates_per_step": 1,
    "hidden_sizes": [8],
    "batch_size": 8,
    "buffer_capacity": 1000,
}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "swing.yaml"
    text = dump_yaml({"base": "sac/pendulum", "set": SETTINGS, "seeds": [0, 1], "population": 2, "threads": 1})
    file.write_text(f"# Swinging\n# Two seeds\n# of SAC.\n{text}")
    return file


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary repository for documents, results and figures."""
    root = tmp_path / "root"
    document = root / "docs" / "results.md"
    document.parent.mkdir(parents=True)
    document.write_text(
        "# Results\n\n<!-- begin evidence-summary -->\nold\n<!-- end evidence-summary -->\n\nkept\n"
    )
    monkeypatch.setattr(report, "output", root)
    monkeypatch.setattr(rendering, "STUDIES", tmp_path)
    monkeypatch.setattr(rendering, "KEPT", root / "kept")
    return root


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pages to another folder, and fork workers."""
    monkeypatch.setattr(report, "output", tmp_path)
    monkeypatch.setattr(os, "posix_spawn", fork_for_spawn)


class AtFirstCheckpoint(threading.Timer):
    """The time limit of a command, which ends as soon as every run has a checkpoint."""

    runs: Path

    def run(self) -> None:
        while len(list(self.runs.glob("*/checkpoints/step_*"))) < 2 and not self.finished.wait(0.002):
            pass
        if not self.finished.is_set():
            self.function()


def work(*words: object) -> int:
    return main(["run", *map(str, words), "--processes", "1"])


def test_a_study_continues_and_is_evaluated_packed_and_rendered(
    study: Path,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, first, second = tmp_path / "out", tmp_path / "first", tmp_path / "second"
    AtFirstCheckpoint.runs = out / "swing" / "runs"
    with monkeypatch.context() as early:
        early.setattr(working.threading, "Timer", AtFirstCheckpoint)
        assert work(study, "--minutes", 9, "--output-dir", out, "--commit", "abc") == 0
    assert "swing: 2 waiting; the time is over, the same command continues" in capsys.readouterr().out
    assert not any("judged" in run for run in json.loads((out / "swing.json").read_text())["runs"].values())
    first.mkdir()
    (out / "swing.zip").rename(first / "swing.zip")

    monkeypatch.setenv(working.COMMIT, "def")
    assert work(study, "--output-dir", out) == 0
    for home in homes(out / "swing"):
        record = record_of(home)
        assert record["status"] == "finished"
        assert len(record["resumed"]) == 1
        assert record["commits"] == ["abc", "def"]
    kept = keeping.load(out / "swing.json")
    assert kept is not None
    for name, run in kept["runs"].items():
        assert len(run["judged"]["returns"]) == EPISODES
        assert (run["judged"]["step"], run["judged"]["seed"]) == (1000, SEED)
        assert run["curve"]["steps"] == [500, 1000]
        seen = evaluate_checkpoint(out / "swing" / "runs" / name, EPISODES)["eval_return_mean"]
        assert run["judged"]["mean"] != seen, "judged on the episodes of training"

    for left, found in ((True, "def"), (False, "unknown")):  # a process that was killed; a folder of another time
        amend_record(homes(out / "swing")[0], commits=[])
        if not left:
            (out / "swing" / "commit.txt").unlink()
        assert work(study, "--output-dir", out, "--commit", "ghi") == 0
        assert [record_of(home)["commits"] for home in homes(out / "swing")] == [[found], ["abc", "def"]]
    amend_record(homes(out / "swing")[0], commits=["abc", "def"])
    assert work(study, "--output-dir", out) == 0
    assert keeping.load(out / "swing.json") == kept

    second.mkdir()
    assert main(["judge", str(out / "swing.zip"), "--output-dir", str(second), "--processes", "1"]) == 0
    assert keeping.load(second / "swing.json") == kept

    (out / "swing.zip").rename(second / "swing.zip")
    capsys.readouterr()
    assert work(study, "--output-dir", tmp_path / "third", "--from", second, "--render") == 0
    assert "episodes" not in capsys.readouterr().out, "judged again"
    assert [record_of(home)["resumed"] for home in homes(tmp_path / "third" / "swing")] == [
        record_of(home)["resumed"] for home in homes(out / "swing")
    ]
    page = (repository / "docs" / "results" / "swing.md").read_text()
    assert page.startswith("<!-- begin evidence-swing -->\n# Swinging\n\nTwo seeds of SAC.\n\n<picture>")
    assert "| SAC | 0–1 | 1,000 | " in page
    assert "abc, def |" in page
    text = (repository / "docs" / "results.md").read_text()
    assert text.startswith("# Results\n\n<!-- begin evidence-summary -->\n| task | algorithm |")
    assert re.search(r"\| Pendulum-v1 \| SAC \| [^|]+ \| 2 \| 1,000 \|", text)
    assert "| [swing](results/swing.md) |" in text
    assert "<!-- end evidence-summary -->\n\nkept\n" in text
    assert "Not finished" not in text
    for ground in ("light", "dark"):
        assert (repository / "docs" / "pictures" / f"evidence-swing-{ground}.svg").read_text().count("<svg") == 1

    capsys.readouterr()
    assert working.prepared(study, working.Order(tmp_path / "third", earlier=second)).status().counts["done"] == 2
    said = f"swing: {second / 'swing.zip'} is not unpacked, because {tmp_path / 'third' / 'swing'} exists\n"
    assert capsys.readouterr().out == said
    started = working.prepared(study, working.Order(tmp_path / "fourth", earlier=first))
    assert started.status().counts["waiting"] == 2
    assert list((started.folder / "runs").iterdir()) == []


def test_the_end_is_predicted_from_the_last_two_intervals() -> None:
    speed = working.Speed()
    for now, step in ((0.0, 10), (90.0, 20), (100.0, 20), (110.0, 30)):
        speed.add(now, step)
        assert speed.end(100) is None
    speed.add(130.0, 40)
    assert speed.end(100) == 130.0 + 60 * (130.0 - 90.0) / 20


def test_a_worker_of_another_machine_is_not_stopped(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be that of any process here."""
    made = Study(study, output_dir=tmp_path / "out")
    plan, ours, sent = made.plan(), Owner.me(), list[tuple[int, int]]()
    group = plan.groups[0]
    pace = working._Pace(made, plan, 0.0)
    for owner in (replace(ours, machine="elsewhere"), ours):
        claim = take(made.folder, group.name, owner, 60.0)
        assert claim is not None
        with claim, monkeypatch.context() as patched:
            patched.setattr(os, "kill", lambda *arguments: sent.append(arguments))
            assert pace._stop(group) is (owner is ours)
    assert [one for one in sent if one[1]] == [(os.getpid(), signal.SIGTERM)]


@pytest.mark.slow
def test_the_last_group_is_stopped_if_the_first_would_not_finish(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = study.read_text().replace("total_timesteps: 1000", "total_timesteps: 1000000")
    study.write_text(text.replace("population: 2", "population: 1"))
    words = (
        study,
        "--minutes",
        0.6,
        "--finish",
        "--workers",
        2,
        "--output-dir",
        tmp_path / "out",
        "--commit",
        "abc",
    )
    work(*words)
    first, last = homes(tmp_path / "out" / "swing")
    assert f"stopped {last.name}: {first.name} would be " in capfd.readouterr().out
    assert {record_of(home)["status"] for home in (first, last)} == {"interrupted"}
    assert record_of(first)["seconds"] > record_of(last)["seconds"]


def test_a_killed_command_keeps_the_evaluations_of_all_members(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.write_text(study.read_text().replace("total_timesteps: 1000", "total_timesteps: 1000000"))
    monkeypatch.setattr(working, "_PERIOD", 0.0)
    file = tmp_path / "out" / "swing.json"

    def curves() -> list[list[int]]:
        kept = keeping.load(file)
        return [] if kept is None else [run["curve"]["steps"][:2] for run in kept["runs"].values()]

    words = (study, "--output-dir", tmp_path / "out", "--commit", "abc")
    command = Child(lambda: work(*words), tmp_path / "output")
    wait_for(lambda: curves() == [[500, 1000]] * 2)
    workers = [
        json.loads(claim.read_text())["owner"]["pid"] for claim in tmp_path.glob("out/swing/claims/*/1.json")
    ]
    command.kill()
    kept = keeping.load(file)
    assert kept is not None
    assert curves() == [[500, 1000]] * 2
    assert [run["record"]["commits"] for run in kept["runs"].values()] == [["abc"]] * 2
    assert {run["status"] for run in kept["runs"].values()} == {"running"}
    wait_for(lambda: not any(is_there(pid) for pid in workers))


@pytest.mark.slow
def test_groups_are_trained_concurrently(study: Path, tmp_path: Path) -> None:
    study.write_text(study.read_text().replace("population: 2", "population: off"))
    out = tmp_path / "out"
    assert work(study, "--output-dir", out, "--commit", "abc", "--workers", 2) == 0
    records = [record_of(home) for home in homes(out / "swing")]
    assert [(record["status"], record["commits"]) for record in records] == [("finished", ["abc"])] * 2
    owners = {json.loads(file.read_text())["owner"]["pid"] for file in (out / "swing" / "claims").glob("*/1.json")}
    assert len(owners) == 2


def test_no_study_starts_after_the_time_limit(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, float]] = []
    clock = iter([0.0, 1.0, 61.0])
    monkeypatch.setattr(working.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(working, "_worked", lambda study, left, *rest: begun.append((study.folder.name, left)))
    other = tmp_path / "other.yaml"
    other.write_text(study.read_text())
    working.work_on([study, other], working.Order(tmp_path / "out", minutes=1, commit="abc"))
    assert begun == [("swing", 59.0)]


def test_the_time_limit_is_distinguished_from_other_signals() -> None:
    with working.stop_after(0.05) as over:
        assert over.wait(10)
        time.sleep(0.02)  # the signal comes after the event, and ends nothing
    with pytest.raises(TrainingInterrupted), working.stop_after(60) as over:
        signal.raise_signal(signal.SIGTERM)
    assert not over.is_set()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_studies_are_packed_before_they_are_evaluated(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    planned = Study(study, output_dir=out)
    planned.plan()
    monkeypatch.setattr(working, "work_on", lambda *_: [planned.status()])
    monkeypatch.setattr(keeping, "judge_all", cut_off)
    with pytest.raises(KeyboardInterrupt):
        work(study, "--output-dir", out, "--commit", "abc")
    assert (out / "swing.zip").is_file()


def test_earlier_results_of_a_study_that_is_not_started_are_passed_on(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, out = tmp_path / "earlier", tmp_path / "out"
    earlier.mkdir()
    planned = Study(study, output_dir=tmp_path / "before")
    planned.plan()
    pack_study(planned.folder, earlier / "swing.zip")
    keeping.store(earlier / "swing.json", keeping.collect(planned.folder))
    monkeypatch.setattr(working.time, "monotonic", iter([0.0, 61.0]).__next__)
    assert working.work_on([study], working.Order(out, minutes=1, commit="abc", earlier=earlier)) == []
    for name in ("swing.zip", "swing.json"):
        assert (out / name).read_bytes() == (earlier / name).read_bytes()


def test_a_time_limit_before_the_first_worker_starts_ends_the_study(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopen = working.reopen
    monkeypatch.setattr(os, "posix_spawn", posix.posix_spawn)  # a forked worker would have the handlers of the pool
    monkeypatch.setattr(working, "reopen", lambda *of: (time.sleep(0.5), reopen(*of)))
    order = working.Order(tmp_path / "out", commit="abc")
    status = working._worked(working.prepared(study, order), 0.05, "abc", order)
    assert status.counts["done"] == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("name", "configurations", "trials"),
    [
        ("awac-hopper", 1, 3),
        ("cloners-distributions", 12, 60),
        ("cql-edac", 2, 10),
        ("cql-edac-50", 2, 6),
        ("discrete-cartpole", 9, 27),
        ("discrete-lunarlander", 9, 27),
        ("dqn-cartpole", 1, 5),
        ("dqn-lunarlander", 1, 5),
        ("finetune", 6, 18),
        ("hopper-v5", 3, 9),
        ("iql-choosing", 12, 12),
        ("iql-hopper", 4, 20),
        ("offline-medium", 12, 120),
        ("ogbench", 12, 96),
        ("online-v4", 12, 120),
        ("pendulum", 6, 30),
        ("pendulum-prior", 3, 15),
        ("pendulum-replay", 9, 27),
        ("flash-v4", 5, 25),
        ("flashsac-precision", 2, 10),
        ("sac-rate", 1, 5),
        ("sac-td3-v4", 16, 160),
        ("sac-v4", 4, 40),
        ("td3-paper", 2, 10),
        ("weights", 24, 240),
    ],
)
def test_the_studies_of_the_repository_have_the_expected_trials(
    name: str, configurations: int, trials: int
) -> None:
    found = read_description(STUDIES / f"{name}.yaml")
    assert (len(found.wanted), sum(len(one.seeds) for one in found.wanted)) == (configurations, trials)
    title, words = keeping.about_of(found.document.text)
    assert title
    assert words.endswith(".")
    assert "/" not in "".join(_files(found.wanted[0].config))
    assert all(one.config.eval_episodes and one.config.algo_kwargs["eval_interval"] for one in found.wanted)


def test_a_study_starts_only_from_the_runs_of_another_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = Study(STUDIES / "awac-hopper.yaml", output_dir=Path("runs/evidence")).plan(1)
    later = parse_yaml((STUDIES / "awac-online.yaml").read_text(), "awac-online").value
    named = later["set"]["init_from"].replace("{seed}", "2")
    assert named in {f"runs/evidence/awac-hopper/runs/{trial.name}" for trial in before.trials}
    with pytest.raises(CheckpointError, match="awac-hopper"):
        read_description(STUDIES / "awac-online.yaml")


def test_no_study_of_the_repository_is_forgotten() -> None:
    assert len(list(STUDIES.glob("*.yaml"))) == 27


def _files(config: TrainConfig) -> list[str]:
    parts = [config.algo_kwargs, *config.algo_kwargs.get("datasets", [])]
    return [str(part["dataset_path"]) for part in parts if part.get("dataset_path")]


# Results as they come from several machines.


def made(
    seeds: range, *, algo: str = "sac", step: int = 300_000, judged: bool = True, **fields: Any
) -> keeping.Kept:
    """Made-up results of a study on HalfCheetah-v4."""
    settings = {"algo": algo, "env_id": "HalfCheetah-v4", "total_timesteps": step, "algo_kwargs.buffer_capacity": 9}
    runs = {}
    for seed in seeds:
        value = 5000.0 + 100 * seed
        runs[f"HalfCheetah-v4__{algo}__{'0' * 8}__s{seed}"] = {
            "algo": algo,
            "env_id": "HalfCheetah-v4",
            "seed": seed,
            "status": "finished",
            "cause": None,
            "settings": 0,
            "varied": {},
            "step": step,
            "record": {"created": "2026-11-16T00:00:00+00:00", "resumed": [], "seconds": 90.0, "versions": {}},
            "dataset": {},
            "metrics": {"update_count": step},
            "curve": {name: [100_000, step] for name in ("steps", "updates", "seconds")} | {"values": [1e3, value]},
        } | ({"judged": {"step": step, "seed": SEED, "mean": value, "returns": [value]}} if judged else {})
    planned = [f"HalfCheetah-v4__{algo}__{'0' * 8}__s{seed}" for seed in range(10)]
    return {"kind": keeping.KIND, "schema": 1, "study": "made", "about": ["Made", "Up."], "planned": planned,
            "settings": [settings], "data": {}, "runs": runs, "unread": [], **fields}  # fmt: skip


def test_unfinished_runs_are_compared_with_what_is_published_at_the_steps_that_they_reached() -> None:
    kept = made(range(3), step=1_000_000, judged=False)
    for run, last in zip(kept["runs"].values(), (100_000, 100_000, 50_000)):
        run |= {"status": "interrupted", "step": last}
        run["curve"] = {name: [50_000, last][: 1 + (last > 50_000)] for name in run["curve"]}
    text = study_page.section(kept)
    assert "| HalfCheetah-v4 | 100,000 | SAC | 2 | 100,000" in text
    assert "| HalfCheetah-v4 | 100,000 | *published SAC* | 10 |" in text
    assert "| HalfCheetah-v4 | 300,000 |" not in text


def test_an_incomplete_study_is_marked_and_shown_with_published_results(tmp_path: Path) -> None:
    text = study_page.section(made(range(4)))
    assert "4 of 10 runs are finished." in text
    assert "| SAC | 0–3 (4 of 10) | 300,000 | 5,150 [" in text
    assert "| *published SAC* | 10 | 300,000 |  | 8,593 ± 1,016 |" in text
    assert "published REDQ" not in text, "the study has no run of it"
    assert "| HalfCheetah-v4 | 100,000 | SAC | 4 | 1,000 [1,000, 1,000] | 1,000 |" in text
    assert "| HalfCheetah-v4 | 100,000 | *published SAC* | 10 |  | 6,156 ± 738 |" in text
    assert "SimbaV2" in text


def test_unfinished_tasks_and_algorithms_are_shown_at_the_last_step_that_has_a_published_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report.Results, "load", lambda self: {})  # no peers

    def begun(algo: str, *steps: int, seeds: int = 3, study: str = "begun") -> dict[str, Any]:
        """Runs whose evaluation at a step is that step."""
        kept = made(range(seeds), algo=algo, step=1_000_000, judged=False, study=study)
        for run in kept["runs"].values():
            run |= {"status": "interrupted", "step": steps[-1]}
            run["curve"] = {name: list(steps) for name in run["curve"]}
        return kept

    sac, ddpg = begun("sac", 100_000, 200_000), begun("ddpg", 100_000, 250_000)
    text = rendering.not_finished([sac, ddpg], ["- Begun"])
    assert "| HalfCheetah-v4 | SAC | 100,000 [" in text
    assert "| 3 | 100,000 | 6,156 ± 738, below our interval | [begun]" in text
    assert "| HalfCheetah-v4 | DDPG | 250,000 [" in text, "nothing is published"
    assert text.endswith("\n\n- Begun")
    further = begun("sac", 100_000, 300_000, study="further")
    assert "| 3 | 300,000 | 8,593 ± 1,016, below our interval | [further]" in rendering.not_finished(
        [sac, further, begun("sac", 100_000, 300_000, seeds=2)], ["- Begun"]
    )
    finished = made(range(3), study="finished")
    assert "SAC" not in rendering.not_finished([sac, ddpg, finished], ["- Begun"])
    assert rendering.not_finished([finished], ["- Begun"]) == "## Not finished\n\n- Begun"
    assert rendering.not_finished([finished], []) == ""


def test_a_published_mean_outside_the_interval_is_reported(tmp_path: Path) -> None:
    text = study_page.section(made(range(4)))
    assert "\n\nThe published mean of SAC is above the interval of our IQM.\n" in text
    assert "\n\nHalfCheetah-v4, 100,000 steps: the published mean of SAC is above the interval" in text
    kept = made(range(4))
    for number, run in enumerate(kept["runs"].values()):
        run["judged"]["mean"] = 8_593.0 + number * (-1) ** number
    assert "\n\nThe published mean" not in study_page.section(kept)


def test_description_and_seeds_are_those_of_the_current_file(tmp_path: Path) -> None:
    (tmp_path / "made.yaml").write_text("# Again\n# In other words.\nbase: sac/halfcheetah\nseeds: 0..11\n")
    text = study_page.section(rendering.as_planned(made(range(10)), tmp_path / "made.yaml"))
    assert "| SAC | 0–9 (10 of 12) |" in text
    assert text.startswith("# Again\n\nIn other words.\n")
    assert "10 of 12 runs are finished." in text


def test_methods_are_named_by_algorithm_and_equal_results_are_not_significant(tmp_path: Path) -> None:
    one = made(range(10))
    others = {name.replace("0" * 8, "1" * 8): run | {"settings": 1} for name, run in one["runs"].items()}
    settings = [one["settings"][0] | {"algo_kwargs.tau": tau} for tau in (0.1, 0.2)]
    text = study_page.section({**one, "runs": one["runs"] | others, "settings": settings})
    assert "| SAC (tau=0.1) | 0–9 |" in text
    assert "\n\nNo difference between two methods is significant.\n" in text


def test_a_method_that_ends_later_is_shown_where_another_ends(tmp_path: Path) -> None:
    long, brief = made(range(4)), made(range(4), algo="redq", step=200_000)
    brief["runs"] = {name: run | {"settings": 1} for name, run in brief["runs"].items()}
    both = {**long, "runs": long["runs"] | brief["runs"], "settings": [*long["settings"], *brief["settings"]]}
    text = study_page.section(both)
    assert "| HalfCheetah-v4 | 200,000 | SAC | 4 | 1,000 [1,000, 1,000] | 1,000 |" in text
    assert "| HalfCheetah-v4 | 200,000 | REDQ | 4 | 5,150 [" in text


def test_a_run_under_way_has_the_name_of_its_settings(tmp_path: Path) -> None:
    over, begun = made(range(4)), made(range(4), judged=False)
    others = {name.replace("0" * 8, "1" * 8): run | {"settings": 1, "status": "interrupted"}
              for name, run in begun["runs"].items()}  # fmt: skip
    settings = [over["settings"][0] | {"algo_kwargs.tau": tau} for tau in (0.1, 0.2)]
    text = study_page.section({**over, "runs": over["runs"] | others, "settings": settings})
    assert "| SAC (tau=0.2) | HalfCheetah-v4 | 0–3 |" in text.partition("## Not finished")[2]


def test_all_results_are_in_one_table_with_what_they_took() -> None:
    alone, together = made(range(4)), made(range(4, 8), study="many")
    for run in together["runs"].values():
        run["record"] = run["record"] | {"population": {"members": list(together["runs"])}}
    text = rendering.summary([alone, made(range(2), judged=False, study="none"), together])
    # Four runs of 1.5 minutes, and four as one.
    assert "8 runs with 2 million updates took 8 minutes on None" in text
    assert re.search(r"\| HalfCheetah-v4 \| SAC \| 5,150 \[[^|]*\| 4 \| 300,000 \|", text)
    assert text.count("| 8,593 ± 1,016, above our interval | [m") == 1
    assert "[none]" not in text
    assert rendering.summary([]) == ""


def varied(seeds: range, name: str, *values: float, study: str = "varied") -> dict[str, Any]:
    """Results of SAC with two values of a setting."""
    kept = made(seeds, study=study)
    others = {name.replace("0" * 8, "1" * 8): run | {"settings": 1} for name, run in kept["runs"].items()}
    usual = {"algo_kwargs.learning_rate": 3e-4, "algo_kwargs.learning_starts": 10_000}
    settings = [kept["settings"][0] | usual | {f"algo_kwargs.{name}": value} for value in values]
    return kept | {"runs": kept["runs"] | others, "settings": settings}


def lines(*studies: dict[str, Any]) -> list[list[str]]:
    """The first two columns of the summary, and the study."""
    table = rendering.summary(studies).split("\n\n")[0].splitlines()[2:]
    return [[cells[2].strip(), cells[-2].strip()] for cells in (line.split("|") for line in table)]


def test_the_summary_has_one_line_for_a_task_and_an_algorithm() -> None:
    two = varied(range(4), "tau", 0.1, 0.2)
    assert len(lines(two)) == 1
    assert lines(two)[0][0].startswith("SAC, tau 0.")
    # The packaged settings come first for any number of seeds above two.
    packaged = varied(range(3), "learning_rate", 3e-4, 1e-3, study="packaged")
    assert lines(two, packaged) == [["SAC", "[packaged](results/packaged.md)"]]
    assert lines(two, varied(range(2), "learning_rate", 3e-4, 1e-3))[0][0].startswith("SAC, tau 0.")
    # Then the most seeds.
    assert lines(made(range(4), study="four"), made(range(5), study="five"))[0][1] == "[five](results/five.md)"


def test_the_summary_names_settings_that_differ_from_the_packaged_configuration() -> None:
    assert lines(varied(range(3), "learning_rate", 2e-3, 1e-3))[0][0] in ("SAC, lr 0.001", "SAC, lr 0.002")
    text = rendering.summary([varied(range(3), "learning_rate", 3e-4, 1e-3)])
    assert "| HalfCheetah-v4 | SAC | 5,1" in text
    assert "learning_starts" not in text
    assert text.startswith("| task | algorithm | IQM [95 %] | seeds | steps | published | study |")


def test_the_best_peer_has_the_same_algorithm_task_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(library: str, algo: str, steps: int, value: float) -> dict[str, Any]:
        return {"library": library, "study": "made", "algo": algo, "env": "HalfCheetah-v4", "steps": steps,
                "seed": 0, "episodes": 9, "final": {"eval_return_mean": value}}  # fmt: skip

    peers = [entry("sb3", "sac", 300_000, 10.0), entry("sb3", "sac", 300_000, 20.0),
             entry("d3rlpy", "sac", 300_000, 14.0), entry("corl", "sac", 100_000, 99.0),
             entry("corl", "td3", 300_000, 99.0),
             entry("corl", "sac", 300_000, 99.0) | {"study": "other"}]  # fmt: skip
    entries = {str(number): peer for number, peer in enumerate(peers)}
    monkeypatch.setattr(report.Results, "load", lambda self: entries)
    assert "| Stable-Baselines3 15.00 ± 7.07 (2 seeds) |" in rendering.summary([made(range(4))])
    longer = made(range(4))
    for run in longer["runs"].values():
        run["judged"]["step"] = run["metrics"]["global_step"] = 400_000
    assert "| Stable-Baselines3 15.00 ± 7.07 (2 seeds) |" in rendering.summary([made(range(4)), longer])


def test_the_page_of_a_study_names_the_settings_of_peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    final, versions = {"eval_return_mean": 9.0}, {"stable_baselines3": "2.0"}
    peer = {"library": "sb3", "study": "made", "env": "HalfCheetah-v4", "steps": 300_000, "seed": 0, "episodes": 9,
            "settings": "ours", "final": final, "versions": versions}  # fmt: skip
    other = peer | {"library": "corl", "settings": "CORL's defaults", "peer_versions": {"checkout": "abc"}}
    elsewhere = peer | {"study": "other", "algo": "td3"}  # its settings are not those of this study
    entries = {"a": peer | {"algo": "sac"}, "b": elsewhere, "c": other | {"algo": "sac"}}
    monkeypatch.setattr(report.Results, "load", lambda self: entries if self.program == "peers" else {})
    told = "settings: CORL SAC (abc): CORL's defaults; Stable-Baselines3 SAC (2.0): ours."
    unfinished = made(range(4))
    for run in unfinished["runs"].values():
        run["status"] = "interrupted"
    for page in (study_page.section(made(range(4))), study_page.section(unfinished)):
        assert told in page
        assert "| Stable-Baselines3 SAC, 9 episodes | 0 |" in page
        assert "Stable-Baselines3 TD3" not in page


@pytest.mark.parametrize("recorded", ["fingerprint", "raw_fingerprint"])
def test_a_peer_learned_from_the_rows_of_the_files_or_of_the_run(
    recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = {"library": "corl", "study": "made", "algo": "rebrac", "env": "HalfCheetah-v4", "steps": 9, "seed": 0}
    same, other, online = peer | {"fingerprint": "a"}, peer | {"fingerprint": "b"}, peer
    entries = {"same": same, "other": other, "online": online}
    monkeypatch.setattr(report.Results, "load", lambda self: entries if self.program == "peers" else {})
    settings = {"algo": "rebrac", "env_id": "HalfCheetah-v4", "total_timesteps": 9}
    kept = made(range(1), algo="rebrac", step=9, settings=[settings])
    for run in kept["runs"].values():
        run["dataset"] = {"name": "d", "fingerprint": "c", recorded: "a"}
    (run,) = keeping.reading_of(kept, judgements=True).runs
    assert peers_of("made", run) == {("CORL", "rebrac"): [same]}
    assert peers_of("other", run) == {}


def test_one_seed_has_no_interval_and_a_diverged_run_is_reported(tmp_path: Path) -> None:
    kept = made(range(1))
    next(iter(kept["runs"].values())).update(status="diverged", cause="the loss is not finite")
    text = study_page.section(kept)
    assert "| SAC | 0 (1 of 10) | 300,000 | 5,000 | 5,000 |" in text
    assert "the loss is not finite (counted)" in text


def test_a_study_without_results_is_not_finished(study: Path, repository: Path) -> None:
    rendering.render()
    text = (repository / "docs" / "results.md").read_text()
    assert "- Swinging: `swing`, not started." in text.partition("## Not finished")[2]
    assert not list((repository / "docs").glob("pictures/*"))


def test_seeds_from_another_machine_are_added_and_evaluated_runs_are_kept(repository: Path, tmp_path: Path) -> None:
    for number, kept in enumerate((made(range(3)), made(range(2, 5), judged=False))):
        keeping.store(tmp_path / f"{number}.json", kept)
    assert main(["render", str(tmp_path / "0.json"), str(tmp_path / "1.json")]) == 0
    found = keeping.load(repository / "kept" / "made.json")
    assert found is not None
    assert [(run["seed"], "judged" in run) for run in found["runs"].values()] == [
        (0, True), (1, True), (2, True), (3, False), (4, False)
    ]  # fmt: skip
    assert keeping.merged(found, found) == found


def test_merging_keeps_the_record_of_a_run_that_was_not_repeated() -> None:
    first, second = made(range(2)), made(range(2))
    for kept, commit in ((first, "abc"), (second, "unknown")):
        for run in kept["runs"].values():
            run["record"] = {**run["record"], "commits": [commit]}
    names = list(second["runs"])
    again = second["runs"][names[1]]["record"]  # repeated, without a new evaluation
    again["created"] = "2026-11-17T00:00:00+00:00"
    runs = keeping.merged(first, second)["runs"]
    assert [runs[name]["record"]["commits"] for name in names] == [["abc"], ["unknown"]]


def test_full_names_of_commits_are_shortened() -> None:
    kept = made(range(3))
    for run in kept["runs"].values():
        run["record"] = {**run["record"], "commits": ["0123456789" * 4, "89abcde-dirty"]}
    assert "| 01234567, 89abcde-dirty |" in study_page.section(kept)


def test_runs_that_were_cut_off_are_shown_as_such(tmp_path: Path) -> None:
    kept = made(range(3), judged=False)
    ends = {0: (150_000, [100_000]), 1: (250_000, [100_000, 200_000]), 2: (240_000, [100_000, 200_000])}
    for run in kept["runs"].values():
        reached, steps = ends[run["seed"]]
        values = [1_000.0 + 100 * run["seed"], 9_000.0][: len(steps)]
        curve = {"steps": steps, "updates": steps, "seconds": steps, "values": values}
        run |= {"status": "interrupted", "step": reached, "curve": curve}
    text = study_page.section(kept)
    assert "0 of 10 runs are finished." in text
    assert (
        "| SAC | HalfCheetah-v4 | 0–2 | 150,000 of 300,000 | 100,000 | 1,100 [1,000, 1,200] | 1,100 ± 100.0 |"
        in text
    )
    assert list(tmp_path.glob("docs/pictures/*.svg"))
    assert "The last checkpoint" not in text
    both = {**kept, "runs": kept["runs"] | made(range(5, 8))["runs"]}
    assert "## Not finished" in study_page.section(both)
    assert "| SAC | 5–7 (3 of 10) |" in study_page.section(both)


def test_results_of_different_budgets_are_not_called_better(tmp_path: Path) -> None:
    ours, other = made(range(10)), made(range(10), algo="td3", step=100_000)
    for run in other["runs"].values():
        run["settings"], run["judged"]["mean"] = 1, run["judged"]["mean"] - 4000
    both = {**ours, "settings": [*ours["settings"], *other["settings"]], "runs": ours["runs"] | other["runs"]}
    assert "etter" not in study_page.section(both)
    for run in other["runs"].values():
        run["judged"]["step"] = 300_000
    assert "excludes 0): SAC than TD3." in study_page.section(both)


@pytest.mark.parametrize(("ends", "mean", "std"), [([2, 5], 7.5, 4.5 * 2**0.5), ([5], 15.0, 0.0)])
def test_the_return_of_the_data_is_shown_with_the_results(
    ends: list[int], mean: float, std: float, tmp_path: Path
) -> None:
    rows = {"observations": np.zeros((6, 3)), "next_observations": np.zeros((6, 3)), "actions": np.zeros((6, 1))}
    timeouts = np.isin(np.arange(6), ends)
    columns = {key: value.astype(np.float32) for key, value in rows.items()}
    np.savez(
        tmp_path / "some.npz",
        rewards=np.arange(6, dtype=np.float32),
        terminals=np.zeros(6, bool),
        timeouts=timeouts,
        **columns,
    )
    kept = made(range(3))
    for run in kept["runs"].values():
        run |= {"env_id": "Pendulum-v1", "dataset": {"name": "some", "rows": 6, "fingerprint": "f"}}
    keeping.note_data(kept, tmp_path)
    assert kept["data"] == {"some": {"episodes": len(ends), "mean": mean, "std": pytest.approx(std)}}
    del kept["settings"][0]["algo_kwargs.buffer_capacity"]
    assert f"| *the data, {len(ends)} episodes* |  |  |  | {shown(mean)} |" in study_page.section(kept)


def test_final_evaluations_use_other_episodes_than_training() -> None:
    assert SEED != EVALUATION_SEED


def test_published_results_are_found_by_environment_and_budget() -> None:
    assert [one.algo for one in published("Hopper-v4", 300_000)] == ["sac", "redq", "crossq", "flash_sac", "td3"]
    assert published("Hopper-v5", 300_000) == []
    assert all(math.isfinite(one.mean) for one in PUBLISHED)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["run", "{tmp}/none.yaml"], "none.yaml: cannot be read: No such file or directory"),
        (["run", "{study}", "--minutes", "0"], "--minutes must be above 0, got 0"),
        (["run", "{study}", "--finish"], "--finish needs --minutes"),
        (["run", "{study}", "--workers", "0"], "workers must be >= 1 and <= 10000, got 0"),
        (["run", "{study}", "--device", "abacus"], "device must be auto, cpu, cuda or cuda:N"),
        (["run", str(STUDIES / "cql-edac.yaml"), "--data", "{tmp}"], "halfcheetah-medium.npz: no such file"),
        (["judge", "{tmp}/none.zip"], "none.zip: no such file or folder"),
        (["judge", "{study}"], "not a packed study, or damaged"),
        (["render", "{study}"], "swing.yaml: no results of a study"),
        (["render", "{tmp}/none.json"], "none.json: no such file"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], answer: str, study: Path, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(tmp=tmp_path, study=study) for word in words]
    more = [] if words[0] == "render" else ["--output-dir", str(tmp_path / "out")]
    assert main([*given, *more]) in (2, 3)
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert answer in said
    assert said.count("\n") == 1


def test_a_number_in_a_table_has_no_exponent_if_it_rounds_to_a_thousand() -> None:
    found = [report.number(value) for value in (None, -0.0, 0.01234, 999.4, 999.6, -999.6, 12345.6)]
    assert found == ["–", "0", "0.0123", "999", "1,000", "-1,000", "12,300"]


def test_results_of_another_study_are_not_mixed_in() -> None:
    with pytest.raises(ConfigError, match="results of made cannot be added to those of other"):
        keeping.merged(made(range(1), study="other"), made(range(1)))


def _sections(page: Path) -> dict[str, str]:
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return dict(re.findall(r"<!-- begin (\S+) -->\n(.*?)\n<!-- end \1 -->", text, re.S))


def test_the_page_of_a_study_is_made_from_its_file() -> None:
    kept = keeping.load(rendering.KEPT / "dqn-lunarlander.json")
    assert kept is not None
    page = study_page.section(rendering.as_planned(kept, STUDIES / "dqn-lunarlander.yaml"))
    assert _sections(report.ROOT / "docs" / "results" / "dqn-lunarlander.md") == {"evidence-dqn-lunarlander": page}


@pytest.mark.slow
def test_every_measured_page_is_made_from_its_files(tmp_path: Path) -> None:
    report.main(["render", str(tmp_path)])
    made = {path.relative_to(tmp_path): _sections(path) for path in tmp_path.rglob("*.md")}
    assert sum(map(len, made.values())) > 30
    assert made == {
        place: {name: _sections(report.ROOT / place).get(name) for name in sections}
        for place, sections in made.items()
    }


def test_fine_tuning_has_the_return_before_the_lowest_after_and_the_last() -> None:
    kept = made(range(2), algo="awac", step=10)
    for shift, run in enumerate(kept["runs"].values()):
        values = [50.0, 90.0 + shift, 40.0 + shift, 80.0]
        run["curve"] = {name: [-5, 0, 5, 10] for name in ("steps", "updates", "seconds")} | {"values": values}
    assert fine_tuning(study_page.summary_of(kept, judgements=False).groups) == []  # without data
    for run in kept["runs"].values():
        run["dataset"] = {"name": "d", "rows": 9, "fingerprint": "f"}
    (text,) = fine_tuning(study_page.summary_of(kept, judgements=False).groups)
    assert "| 0–1 | 90 ± 1 | 40 ± 1 | 80 ± 0 | 10 |" in text
