"""`benchmarks.speed.stepping`, `online`, `minutes` and `host_reads`, with a few steps each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.report import Results
from benchmarks.speed import minutes, online, stepping
from benchmarks.speed.host_reads import HostReads

pytestmark = pytest.mark.pages


def run(program: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> dict[str, dict[str, Any]]:
    """The entries that a program wrote."""
    file = folder / "found.json"
    monkeypatch.setattr(sys, "argv", [program.__name__, *words, "--json", str(file)])
    program.main()
    entries: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["entries"]
    assert "checkout" in "\n".join(map(str, entries.values()))
    return entries


def test_every_way_of_stepping_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "available_cores", lambda: 2)
    words = ["--task", "Hopper-v5", "--environments", "2", "--threads", "1", "2", "9", "--seconds", "0.01"]
    entries = run(stepping, monkeypatch, tmp_path, *words, "--rounds", "2")
    found = {entry["way"]: entry for entry in entries.values()}
    assert sorted(found, key=stepping.order_of) == [
        "batched, 1 thread", "batched, 2 threads", "local", "processes", "SyncVectorEnv", "AsyncVectorEnv",
    ]  # fmt: skip
    assert all(entry["rate"] > 0 and len(entry["blocks"]) == 2 for entry in entries.values())
    text, summary = stepping.sections(entries).values()
    assert "(2) |" in summary.splitlines()[-1]
    assert "| task | environments | batched, 1 thread | batched, 2 threads | local | processes |" in text
    assert "| Hopper-v5 | 2 |" in text


def test_there_are_at_most_as_many_processes_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "available_cores", lambda: 2)
    monkeypatch.setattr(sys, "argv", ["stepping", "--threads", "1", "4"])
    options = stepping.arguments()
    assert options.environments == [1, 16, 128, 1024]
    assert set(stepping.ways("Hopper-v5", 16, options)) == {"batched, 1 thread", "local", "SyncVectorEnv"}
    assert set(stepping.ways("Hopper-v5", 1024, options)) == {"batched, 1 thread"}


def test_steps_of_a_tensor_environment_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--tensor", "torch/Pendulum-v1", "--environments", "8", "--device", "cpu", "--seconds", "0.01"]
    (entry,) = run(stepping, monkeypatch, tmp_path, *words).values()
    assert (entry["kind"], entry["environments"], len(entry["blocks"])) == ("tensor", 8, 5)
    (text,) = stepping.sections({"": entry}).values()
    assert "| torch/Pendulum-v1 | " in text
    with pytest.raises(SystemExit, match="not a tensor environment"):
        run(stepping, monkeypatch, tmp_path, "--tensor", "Pendulum-v1", "--device", "cpu")


def test_training_on_a_tensor_environment_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--environments", "4", "--updates", "2", "--batch", "8", "--device", "cpu", "--vector-steps", "100"]
    words += ["--learning-steps", "20", "--evaluations", "2"]
    entries = run(online, monkeypatch, tmp_path, "tensor", *words)
    (entry,) = entries.values()
    # The updates of a vector step, and no read by the host between two reports.
    assert entry["rate"] == pytest.approx(2 * entry["update_rate"])
    assert entry["reads"] == 0, entry["places"]
    assert [step for step, _, _ in entry["curve"]] == [40, 80]
    (text,) = online.sections(entries).values()
    assert "| torch/Pendulum-v1 | 4 | 2 | 8 | " in text


def test_evaluations_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[tuple[str, int]] = []

    class Evaluator:
        def __init__(self, config: Any, spaces: Any) -> None:
            self.way = config.environments

        def run(self, policy: Any, episodes: int) -> None:
            played.append((self.way, episodes))

        def close(self) -> None: ...

    monkeypatch.setattr(online, "Evaluator", Evaluator)
    entries = run(online, monkeypatch, tmp_path, "evaluation", "--episodes", "3", "--rounds", "2")
    assert played == [("local", 3), ("auto", 3)] * 3  # the first of each is not counted
    assert {entry["way"]: len(entry["seconds"]) for entry in entries.values()} == {"local": 2, "auto": 2}
    (text,) = online.sections(entries).values()
    assert "| `environments: auto` | 3 | " in text


def test_reads_by_the_host_are_counted_with_their_places() -> None:
    numbers = torch.arange(3.0)
    numbers.sum().item()
    with HostReads(torch.device("cpu")) as counted:
        numbers.add(1)
        assert counted.reads == 0
        assert numbers.sum().item() == 3.0
        assert bool(numbers[1] > 0)
        assert float(numbers[2]) == 2.0
        numbers.tolist(), numbers.cpu(), numbers.numpy()
    assert counted.reads == 6
    assert counted.synchronizations is None
    (place,) = (place for place in counted.places if place.startswith("item"))
    assert place.startswith("item at tests/test_online_benchmarks.py:")
    numbers.sum().item()
    assert counted.reads == 6


def test_reads_of_other_devices_are_not_counted() -> None:
    with HostReads(torch.device("meta")) as counted:
        torch.ones(1).item()
    assert counted.reads == 0


def test_both_sides_are_compared_on_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(online.training, "main", asked.append)
    monkeypatch.setattr(sys, "argv", ["online", "cores", "--steps", "2000", "--pairs", "1", "--json", "f"])
    online.main()
    one, once, never = (" ".join(words) for words in asked)
    assert one == "--device cpu --steps 2000 --pairs 1 --json f"
    assert once.endswith("--steps 16000 --pairs 1 --json f --set num_envs=8 algo_kwargs.train_frequency=8")
    assert "algo_kwargs.learning_starts=16000" in never


CLIMB = [
    "--algo",
    "sac",
    "--task",
    "Pendulum-v1",
    "--batch",
    "8",
    "--every",
    "0",
    "--episodes",
    "1",
    "--starts",
    "4",
]
CLIMB += ["--buffer", "100", "--steps", "12", "--device", "cpu", "--set", "algo_kwargs.hidden_sizes=[8]"]


def test_a_run_ends_at_the_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*CLIMB, "--environments", "4", "--updates", "2", "--seeds", "0", "1", "--target", "-100000"]
    entries = run(minutes, monkeypatch, tmp_path, *words)
    assert [entry["seed"] for entry in entries.values()] == [0, 1]
    for entry in entries.values():
        ((step, updates, mean, seconds),) = entry["curve"]
        assert (step, updates, entry["reached"]) == (4, 2, seconds)
        assert mean < 0
        assert all(entry[name] > 0 for name in ("setup", "compiling", "evaluating"))
    (text,) = minutes.sections(entries).values()
    assert "| sac | Pendulum-v1 | 1 | 4 | 2 | 8 | n_step 1 algo_kwargs.hidden_sizes=[8] |" in text


def test_curves_are_kept_after_every_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[int]] = []
    add = Results.add

    def adding(self: Results, entries: dict[str, Any]) -> None:
        kept.extend([step for step, *_ in entry["curve"]] for entry in entries.values())
        add(self, entries)

    monkeypatch.setattr(Results, "add", adding)
    words = [*CLIMB, "--environments", "4", "6", "--updates", "1", "--seeds", "0", "--target", "0", "--n-step", "2"]
    entries = run(minutes, monkeypatch, tmp_path, *words)
    assert kept == [[4], [4, 8], [4, 8, 12], [4, 8, 12], [6], [6, 12], [6, 12]]
    assert all(entry["reached"] is None for entry in entries.values())
    (text,) = minutes.sections(entries).values()
    assert text.count("| 0 | – | -") == 2


def test_a_task_without_a_return_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["minutes", "--task", "Ant", "Swimmer-v5"])
    with pytest.raises(SystemExit):
        minutes.arguments()
    monkeypatch.setattr(sys, "argv", ["minutes", "--algo", "sac", "--seeds", "3"])
    found = {about["task"]: (about["target"], config) for about, config in minutes.runs(minutes.arguments())}
    assert {task: target for task, (target, _) in found.items()} == {
        "HalfCheetah": 10_000, "Ant": 5_000, "Humanoid": 5_000
    }  # fmt: skip
    config = found["Humanoid"][1]
    assert (config.env_id, config.env_kwargs["contact_cost_weight"], config.num_envs) == ("Humanoid-v5", 0.0, 256)
