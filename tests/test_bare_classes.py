"""The program that measures the classes with nothing set: its table, its command line, and going on."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import defaults, learning
from benchmarks.defaults import BARE, Trial
from benchmarks.report import Results
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import list_algorithm_specs, resolve

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def asked(*words: str) -> Namespace:
    return learning.arguments(["--checkout", "abc", *words])


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    """Four episodes of Pendulum-v1 that return -300, -200, -200 and -100; their standard deviation is 70.7."""
    timeouts = np.arange(1, 41) % 10 == 0
    path = tmp_path / "replay.npz"
    np.savez(
        path,
        observations=np.tile(np.float32([1.0, 0.0, 0.0]), (40, 1)),
        next_observations=np.tile(np.float32([1.0, 0.0, 0.0]), (40, 1)),
        actions=np.zeros((40, 1), np.float32),
        rewards=np.repeat(np.float32([-30, -20, -20, -10]), 10),
        terminals=np.zeros(40, bool),
        timeouts=timeouts,
    )
    return path


def test_the_readme_names_the_budget_of_every_class() -> None:
    assert set(BARE) == {spec.name for spec in list_algorithm_specs()}
    assert f"\n\n{defaults.budgets()}\n\n" in README


def test_a_budget_is_longer_than_the_steps_before_the_first_update() -> None:
    for spec in list_algorithm_specs():
        bare = BARE[spec.name]
        settings = resolve(TrainConfig(algo=spec.name, env_id=bare.env, total_timesteps=bare.budget)).to_dict()
        assert bare.budget >= settings.get("learning_starts", 0) + 1_000, spec.name


def test_each_class_and_seed_is_tried_once_and_the_longest_first(replay: Path) -> None:
    trials = defaults.bare_trials(asked("--defaults", "--data", str(replay), "--gpu", "cql"))
    assert {(trial.algo, trial.seed) for trial in trials} == {(algo, seed) for algo in BARE for seed in (0, 1, 2)}
    assert len({trial.key for trial in trials}) == len(trials) == 45
    assert {trial.algo for trial in trials if trial.device == "cuda"} == {"cql"}
    assert {trial.algo for trial in trials if trial.data is None} == {"dqn", "ddpg", "td3", "sac", "tqc", "redq"}
    assert {trial.algo for trial in trials[:9]} == {"redq", "cql", "edac"}


def test_cloning_has_to_reach_what_its_data_returned(replay: Path) -> None:
    (trial,) = defaults.bare_trials(asked("--defaults", "--data", str(replay), "--algo", "bc", "--seeds", "0"))
    assert trial.labels["line"] == pytest.approx(-200 - 5000**0.5 / 20**0.5)


@pytest.mark.parametrize(
    ("words", "answer"), [(["--algo", "bc"], "--data FILE"), (["--algo", "sax"], "--algo sax: one of dqn, ")]
)
def test_what_cannot_be_measured_is_said(words: list[str], answer: str) -> None:
    with pytest.raises(SystemExit, match=answer):
        defaults.bare_trials(asked("--defaults", *words))


def test_nothing_is_set_but_seed_and_device() -> None:
    (trial,) = defaults.bare_trials(asked("--defaults", "--algo", "sac", "--seeds", "2"))
    config = defaults.make(trial).config
    assert config == TrainConfig(algo="sac", env_id="Pendulum-v1", seed=2, device="cpu", total_timesteps=10_000)


def test_before_and_after_differ_in_the_defaults_of_0_1() -> None:
    trials = list(defaults.before_after_trials(asked("--halfcheetah")))
    assert len({trial.key for trial in trials}) == 18
    starts = {
        (trial.algo, trial.before): resolve(defaults.make(trial).config).to_dict()["learning_starts"]
        for trial in trials
    }
    assert starts["sac", True] == 10_000
    assert starts["td3", True] == 25_000
    assert starts["sac", False] == 5_000
    assert starts["td3", False] == 1_000


def entry(seed: int, value: float, steps: int = 10_000) -> dict[str, Any]:
    return {
        "kind": "defaults", "algo": "sac", "env": "Pendulum-v1", "seed": seed, "total_timesteps": 10_000,
        "budget": 10_000, "line": -200.0, "steps": steps, "seconds": 1.0, "final": {"eval_return_mean": value},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("returns", "answer"),
    [((-150, -160, -170), "yes"), ((-150, -150, -201), "NO: 2 of 3 seeds"), ((-150, -150), "not judged")],
)
def test_every_seed_has_to_reach_the_line(returns: tuple[float, ...], answer: str) -> None:
    text = defaults.bare_text([entry(seed, value) for seed, value in enumerate(returns)])
    assert text.splitlines()[-1].split(" | ")[7].startswith(answer)


def test_a_run_that_was_cut_short_is_not_judged() -> None:
    runs = [entry(0, -150), entry(1, -150), entry(2, -150, steps=9_000)]
    assert defaults.learned(runs).startswith("not judged")


def test_runs_are_kept_as_they_end_and_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def interrupted(trials: list[Trial], *rest: Any) -> Any:
        for trial in trials:
            made.append(trial.key)
            yield trial, entry(trial.seed, -150.0, steps=10_000 if trial.seed != 1 else 500)
            if trial.seed == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(defaults, "perform_all", interrupted)
    options, results = asked("--defaults", "--algo", "sac"), Results("learning", tmp_path / "out.json")
    with pytest.raises(KeyboardInterrupt):
        defaults.measure(options, results)
    kept = json.loads((tmp_path / "out.json").read_text())["entries"]
    assert list(kept) == made == [f"defaults/Pendulum-v1/sac/{seed}" for seed in (0, 1)]
    with pytest.raises(KeyboardInterrupt):  # the second was cut short, so it is made again
        defaults.measure(options, results)
    assert made[2:] == ["defaults/Pendulum-v1/sac/1"]


def test_a_bare_class_is_trained_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (trial,) = defaults.bare_trials(asked("--defaults", "--algo", "td3", "--seeds", "0", "--steps", "1002"))
    found = defaults.perform(trial)
    assert (found["steps"], found["updates"]) == (1_002, 3)
    assert len(found["final"]["returns"]) == 20
    assert found["checkout"] == "abc"
    assert found["versions"]["torch"]
    assert trial.done(json.loads(json.dumps(found)))
    assert not list(tmp_path.iterdir())
