"""Tuning: asks, tells and confirms; after any kill it resumes to the same result; errors are one line."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rl_training.cli import main
from rl_training.console.studies import _trial_row as show_row
from rl_training.errors import (
    CheckpointError,
    ConfigError,
    DiskFullError,
    DivergedError,
    MissingDependencyError,
    RLTrainingError,
)
from rl_training.experiment import files
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.runs import fleet
from rl_training.runs.spec import RunSpec
from rl_training.study import sampler, worker
from rl_training.study.claims import Owner, take
from rl_training.study.plan import read_plan
from rl_training.study.space import Choices, Range
from rl_training.study.study import Study
from rl_training.study.tuning import Tuning, TuningResult
from rl_training.study.tuning_file import TuningDescription
from rl_training.study.tuning_record import Outcome, TrialResult
from tests.bare import Bare
from tests.reliability.processes import Child, command, wait_for
from tests.runs import mostly_slow
from tests.studies import contents, differing, study_in
from tests.tunings import tiny_tuning, tuning_in

DOCS = Path(__file__).parents[1] / "docs" / "guides" / "tuning.md"


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def record_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "tuning.json").read_bytes())


def seeds_of(folder: Path) -> list[list[int]]:
    """The seeds that were run, of each configuration in the order of the plan."""
    plan = read_plan(folder)
    ran = {path.name for path in (folder / "runs").iterdir()}
    return [
        [trial.seed for trial in plan.trials if trial.configuration == index and trial.name in ran]
        for index in range(len(plan.configurations))
    ]


# Real runs.


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuning, TuningResult]:
    tuning = tuning_in(tmp_path_factory.mktemp("tuning"))
    return tuning, tuning.run()


def test_the_first_trial_is_the_base_and_every_trial_runs_all_seeds(done: tuple[Tuning, TuningResult]) -> None:
    tuning, result = done
    assert [one.settings.keys() for one in result.trials] == [set(), *[{"learning_rate", "gamma"}] * 2]
    base = read_plan(tuning.folder).configurations[0].settings
    untuned = study_in(tuning.folder.parent / "untuned").plan().configurations[0].settings
    assert base == untuned
    assert all(len(one.values) == 2 and one.value == sum(map(float, one.values)) / 2 for one in result.trials)


def test_the_best_and_the_base_are_confirmed_on_fresh_seeds_alone(done: tuple[Tuning, TuningResult]) -> None:
    tuning, result = done
    confirmed = {one.number for one in result.trials if one.confirmed is not None}
    assert confirmed == {0, result.best_found.number}
    for number, seeds in enumerate(seeds_of(tuning.folder)):
        assert seeds == ([0, 1, 100, 101] if number in confirmed else [0, 1])
    found = {record["trial"]: record["metrics"]["eval_return_mean"] for record in Study(tuning.folder).frame()}
    base = read_plan(tuning.folder).configurations[0].name
    assert result.base.confirmed is not None
    assert result.base.confirmed.values == (found[f"{base}__s100"], found[f"{base}__s101"])
    assert result.base.loss == result.base.value - result.base.confirmed.mean


def test_a_selection_in_its_folder_is_one_of_the_confirmed(done: tuple[Tuning, TuningResult]) -> None:
    tuning, result = done
    chosen = Study(tuning.folder).select("return")
    assert chosen.trial is not None
    assert result.best.confirmed is not None
    assert chosen.scores[chosen.trial] == result.best.confirmed.value
    fresh = {one["trial"] for one in Study(tuning.folder).frame() if one["seed"] == 100}
    assert {name for name in chosen.scores if name.endswith("__s100")} == fresh
    assert len(chosen.scores) == 4 * len(fresh)
    assert chosen.notes == ("configurations that the tuning has not confirmed are left out",)


def test_a_trial_for_which_the_disk_had_no_room_is_not_an_outcome(
    done: tuple[Tuning, TuningResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room = set[int]()

    def training(spec: RunSpec, *others: Any) -> Any:
        if spec.config.seed in no_room:
            raise DiskFullError("free some disk space and resume")
        return (yield from original(spec, *others))

    original = fleet.training
    monkeypatch.setattr(fleet, "training", training)
    for seed in (1, 101):  # in a trial, and in the confirmation
        no_room.add(seed)
        with pytest.raises(DiskFullError, match=r"__s1\d*: free some .* resume; then the same command continues$"):
            tuning_in(tmp_path).run()
        no_room.clear()
    assert tuning_in(tmp_path).run() == done[1]


def test_repeating_a_finished_tuning_changes_nothing(done: tuple[Tuning, TuningResult]) -> None:
    tuning, result = done
    before = contents(tuning.folder / "runs")
    record = record_in(tuning.folder)
    assert tuning_in(tuning.folder.parent).run() == result
    assert contents(tuning.folder / "runs") == before
    assert record_in(tuning.folder) == record
    assert record["result"] == json.loads(json.dumps(result.summary()))
    assert {name: json.loads(json.dumps(result.to_dict()))[name] for name in record["result"]} == record["result"]


def test_status_and_packing_accept_the_folder(done: tuple[Tuning, TuningResult], tmp_path: Path) -> None:
    folder = done[0].folder
    shown = invoke("status", folder)
    number = sum(map(len, seeds_of(folder)))
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"tiny: {number} done")
    assert invoke("study", "pack", folder, "-o", tmp_path / "tiny.zip").exit_code == 0
    assert invoke("study", "unpack", tmp_path / "tiny.zip", "-o", tmp_path / "back").exit_code == 0
    assert record_in(tmp_path / "back") == record_in(folder)


@pytest.mark.slow
def test_more_trials_run_those_alone(done: tuple[Tuning, TuningResult], tmp_path: Path) -> None:
    tuning, result = done
    shutil.copytree(tuning.folder, tmp_path / "tiny")
    before = contents(tmp_path / "tiny" / "runs")
    fields = {"trials": 5, "confirm": {"best": 5, "seeds": [100, 101]}}
    grown = tuning_in(tmp_path, **fields).run()
    assert [one.settings for one in grown.trials[:3]] == [one.settings for one in result.trials]
    assert seeds_of(tmp_path / "tiny") == [[0, 1, 100, 101]] * 5
    after = contents(tmp_path / "tiny" / "runs")
    assert {name: after[name] for name in before} == before
    assert record_in(tmp_path / "tiny")["trials"][:3] == record_in(tuning.folder)["trials"]


@pytest.mark.slow
def test_a_killed_tuning_resumes_to_the_same_result(tmp_path: Path) -> None:
    settings = {"total_timesteps": 200, "checkpoint_interval": 20}
    fields = {"set": settings, "space": {"gamma": [0.5, 0.9]}, "trials": 2}
    (tmp_path / "tiny.yaml").write_text(dump_yaml(tiny_tuning(**fields)))
    folder = tmp_path / "killed" / "tiny"
    words = ("--quiet", "tune", tmp_path / "tiny.yaml", "--output-dir", folder.parent)
    child = Child(command(*words), tmp_path / "output")
    wait_for(lambda: len({path.parent for path in folder.glob("runs/*__s0/checkpoints/step_*")}) == 2)
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, child.text()
    assert record_in(folder)["trials"][-1]["values"] == []  # asked but not evaluated
    assert Child(command(*words), tmp_path / "output").wait() == 0, (tmp_path / "output").read_text()
    tuning_in(tmp_path / "undisturbed", **fields).run()
    assert record_in(folder) == record_in(tmp_path / "undisturbed" / "tiny")
    assert differing(folder, tmp_path / "undisturbed" / "tiny") == []


# Runs that take no time.


def reached(config: Any) -> float:
    """Simulated result with the best learning rate at 1e-3, and noise in every seed."""
    rate = math.log10(config.algo_kwargs["learning_rate"])
    return -100 * (rate + 3) ** 2 + config.seed**2 * 7 % 13


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Runs that end at once with what `reached` says, and diverge above a learning rate of 0.05; those that were
    made."""
    made: list[tuple[float, int]] = []

    def train(config: Any, home: Path) -> Exception | None:
        rate = config.algo_kwargs["learning_rate"]
        made.append((rate, config.seed or 0))
        home.mkdir(parents=True, exist_ok=True)
        if rate > 0.05:
            return DivergedError("the loss is NaN")
        metrics = {"eval_return_mean": reached(config), "global_step": 60}
        record = {"status": "finished", "env_id": "CartPole-v1", "algo": "dqn", "seed": config.seed}
        record |= {"versions": {}, "resumed": [], "metrics": metrics}
        files.replace_atomically(home / "run.json", files.encode_json(record))
        return None

    monkeypatch.setattr(
        worker, "train_in_folders", lambda members, options, begun: [train(*member) for member in members]
    )
    return made


SPACE = {"learning_rate": {"low": 1e-5, "high": 1.0, "log": True}}


def instantly(folder: Path, **fields: Any) -> Tuning:
    base = folder / "base.yaml"
    folder.mkdir(exist_ok=True)
    base.write_text("algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 60\nalgo_kwargs: {learning_rate: 1.0e-5}\n")
    return Tuning(tiny_tuning(**{"base": str(base), "space": SPACE, "trials": 6, **fields}), output_dir=folder)


def test_failed_trials_are_shown_and_never_best(tmp_path: Path, instant: list[tuple[float, int]]) -> None:
    result = instantly(tmp_path, trials=16, confirm={"best": 3}).run()
    failed = [one for one in result.trials if one.settings.get("learning_rate", 0) > 0.05]
    assert failed
    assert all((one.value, one.failure) == (None, "seed 0: the loss is NaN") for one in failed)
    assert not any(one.confirmed for one in failed)
    assert 2e-4 < result.best.settings["learning_rate"] < 5e-3
    assert len([one for one in result.trials if one.confirmed]) == 4  # three and the base
    assert len(instant) == 16 * 2 + 4 * 2


@pytest.mark.slow
def test_failed_points_count_as_the_worst(tmp_path: Path, instant: list[tuple[float, int]]) -> None:
    """The sampler avoids the half of the space that diverges: few of the later trials are in it."""
    space = {"learning_rate": {"low": 1e-4, "high": 10.0, "log": True}}
    result = instantly(tmp_path, trials=40, seeds=[0], space=space, confirm=None).run()
    late = [one.settings["learning_rate"] > 0.05 for one in result.trials[20:]]
    assert sum(late) < 5
    assert result.best_confirmed is None
    assert result.best is result.best_found


def test_many_seeds_count_by_their_interquartile_mean(tmp_path: Path, instant: list[tuple[float, int]]) -> None:
    result = instantly(tmp_path, trials=1, seeds="0..3", confirm=None).run()
    low, middle, other, high = sorted(map(float, result.base.values))
    assert result.base.value == (middle + other) / 2 != (low + middle + other + high) / 4


def test_the_best_of_its_study_is_compared_by_the_fresh_seeds(
    tmp_path: Path, instant: list[tuple[float, int]]
) -> None:
    """Fresh seeds that are harder than the first ones do not favour trials that did not run on them."""
    space = {"learning_rate": {"low": 9e-4, "high": 1.1e-3}}
    tuning = instantly(tmp_path, space=space, confirm={"best": 1, "seeds": [13, 26]})
    result = tuning.run()
    assert result.best.confirmed is not None
    assert all(one.value > result.best.confirmed.value + 3 for one in result.trials[1:] if one.value is not None)
    best = Study(tuning.folder).best()
    assert (best.settings, best.score) == (result.best.settings, result.best.confirmed.value)
    assert [record["seed"] for record in best.trials] == [0, 1, 13, 26]
    assert best.incomplete == []


def test_the_best_of_its_study_is_compared_by_the_fresh_seeds_if_every_trial_is_confirmed(
    tmp_path: Path, instant: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    returns = {(1e-5, False): 0.0, (1e-5, True): 5.0, (1e-3, False): 9.0, (1e-3, True): 4.0}
    monkeypatch.setitem(globals(), "reached", lambda of: returns[of.algo_kwargs["learning_rate"], of.seed > 9])
    confirm = {"best": 2, "seeds": [100, 101]}
    tuning = instantly(tmp_path, space={"learning_rate": [1e-5, 1e-3]}, confirm=confirm)
    result = tuning.run()
    assert sorted(one.confirmed.value for one in result.trials if one.confirmed) == [4.0, 5.0]
    best = Study(tuning.folder).best()
    assert (best.settings, best.score) == (result.best.settings, 5.0)


def test_with_workers_trials_are_asked_together(
    tmp_path: Path, instant: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers are processes; here they are this one."""
    monkeypatch.setattr(Study, "_run_pool", lambda self, plan, *_: worker.work(self.folder))
    batches: list[list[int]] = []
    propose = sampler.propose

    def watched(space: Any, told: Any, numbers: Any, seed: int) -> Any:
        batches.append([len(told), *numbers])
        return propose(space, told, numbers, seed)

    monkeypatch.setattr("rl_training.study.tuning.propose", watched)
    result = instantly(tmp_path, trials=6).run(workers=2)
    assert batches == [[1, 1], [2, 2, 3], [4, 4, 5]]  # the first one together with the base
    assert len({one.settings.get("learning_rate") for one in result.trials}) == 6


def test_the_same_configuration_runs_once(tmp_path: Path, instant: list[tuple[float, int]]) -> None:
    result = instantly(tmp_path, trials=9, space={"learning_rate": [1e-5, 1e-4, 1e-3]}, confirm={"best": 9}).run()
    assert len(instant) == len(set(instant)) == 3 * 4
    assert all(one.value is not None for one in result.trials)
    assert result.best_found.settings == {"learning_rate": 1e-3}
    assert len([one for one in result.trials if one.confirmed]) == 3


def test_a_base_outside_of_the_space_is_tried_nevertheless(
    tmp_path: Path, instant: list[tuple[float, int]]
) -> None:
    result = instantly(tmp_path, space={"learning_rate": {"low": 1e-4, "high": 1e-2}}).run()
    assert instant[0] == (1e-5, 0)
    assert result.base.value is not None
    assert result.base.confirmed is not None


class Killed(BaseException):
    """Simulates `kill -9`: only cleanup by the code itself is done."""


@pytest.mark.parametrize("workers", mostly_slow([1, 2], 2))
def test_a_tuning_killed_at_any_write_resumes_to_the_same_result(
    workers: int, tmp_path: Path, instant: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Study, "_run_pool", lambda self, plan, *_: worker.work(self.folder))
    instantly(tmp_path / "whole", trials=3).run(workers)
    ended = 0
    for at in range(1000):
        folder, left = tmp_path / f"at{at}", at
        tuning = instantly(folder, trials=3)

        def fail(point: str) -> None:
            nonlocal left
            left -= point.endswith((" rename tuning.json", " rename plan.json"))
            if left < 0:
                raise Killed

        monkeypatch.setattr(files, "failpoint", fail)
        try:
            tuning.run(workers)
        except Killed:
            ended += 1
        finally:
            monkeypatch.setattr(files, "failpoint", files._no_failure)
        if left >= 0:
            break
        instantly(folder, trials=3).run(workers)
        assert record_in(folder / "tiny") == record_in(tmp_path / "whole" / "tiny")
        assert seeds_of(folder / "tiny") == seeds_of(tmp_path / "whole" / "tiny")
    assert ended > 12


def test_what_has_changed_is_refused(tmp_path: Path, instant: list[tuple[float, int]]) -> None:
    instantly(tmp_path, trials=3).run()
    before = contents(tmp_path / "tiny")
    wider = {"learning_rate": {**SPACE["learning_rate"], "high": 0.5}}
    for fields, words in (
        ({"space": wider}, r"space has changed since this tuning began \(learning_rate high 1\.0 -> 0\.5\)"),
        ({"seeds": [0, 1, 2]}, r"seeds has changed since this tuning began \(\[0, 1\] -> \[0, 1, 2\]\)"),
        ({"metric": "eval_return_best"}, "metric has changed .*eval_return_mean -> eval_return_best"),
        ({"sampler_seed": 1}, r"sampler has changed since this tuning began \(seed 0 -> 1\)"),
        ({"trials": 2}, "trials: 2, but 3 were planned already; a tuning only grows"),
        ({"confirm": {"seeds": [101, 102]}}, r"confirm\.seeds: 100 was used already and is missing now"),
        ({"set": {"target_update_interval": 7}}, "target_update_interval .* -> 7"),
    ):
        with pytest.raises(ConfigError, match=words):
            instantly(tmp_path, **{"trials": 3, **fields}).run()
    after = contents(tmp_path / "tiny")
    assert [name for name in before if before[name] != after.get(name)] == []
    more = {"best": 2, "seeds": [100, 101, 102]}
    assert instantly(tmp_path, trials=3, confirm=more).run().confirm_seeds == (100, 101, 102)
    assert instantly(tmp_path, trials=3, confirm=None).run().confirm_seeds == (100, 101, 102)


def test_a_point_that_cannot_be_a_configuration_counts_as_failed(
    tmp_path: Path, instant: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = instantly(tmp_path, trials=8)
    config_at = TuningDescription.config_at

    def picky(self: TuningDescription, point: Any) -> Any:
        if point["algo_kwargs.learning_rate"] < 1e-3:
            raise ConfigError("too low\nby far")
        return config_at(self, point)

    monkeypatch.setattr(TuningDescription, "config_at", picky)
    result = tuning.run()
    failed = [one for one in result.trials if one.failure == "too low by far"]
    assert failed
    assert all(one.value is None and one.settings["learning_rate"] < 1e-3 for one in failed)
    assert min(rate for rate, _ in instant[2:] if rate != 1e-5) >= 1e-3
    assert tuning.run() == result


def test_a_disk_that_fails_is_one_line(
    tmp_path: Path, instant: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(point: str) -> None:
        if point.startswith("before write .tmp-tuning.json"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(files, "failpoint", fail)
        with pytest.raises(ConfigError, match="the tuning cannot continue: No space left on device"):
            instantly(tmp_path).run()
    assert instantly(tmp_path).run().base.value is not None


def test_a_metric_that_runs_do_not_have_is_refused_and_may_be_corrected(
    tmp_path: Path, instant: list[tuple[float, int]]
) -> None:
    with pytest.raises(ConfigError, match="has no eval_normalized_score; it has eval_return_mean, global_step"):
        instantly(tmp_path, metric="eval_normalized_score").run()
    assert instantly(tmp_path).run().metric == "eval_return_mean"


def test_where_every_trial_failed_there_is_no_result(tmp_path: Path, instant: list[tuple[float, int]]) -> None:
    base = {"set": {"learning_rate": 1.0}, "space": {"gamma": [0.8, 0.9]}, "trials": 2}
    for _ in range(2):
        with pytest.raises(RLTrainingError, match="every trial failed, the first: seed 0: the loss is NaN"):
            instantly(tmp_path, **base).run()
    assert len(instant) == 4


def test_a_failed_trial_whose_runs_were_retried_has_their_outcome(
    tmp_path: Path, instant: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    space, healthy = {"gamma": [0.8, 0.9]}, worker.train_in_folders
    tuning = instantly(tmp_path, space=space, trials=3, seeds=[0], confirm=None)
    with monkeypatch.context() as broken:

        def fail(members: Any, options: Any, begun: Any) -> list[Any]:
            ((config, _),) = members
            is_away = config.algo_kwargs["gamma"] == 0.8
            return [OSError("the disk is away")] if is_away else healthy(members, options, begun=begun)

        broken.setattr(worker, "train_in_folders", fail)
        before = tuning.run()
        assert tuning.run() == before
    assert before.base.failure is None
    assert before.trials[1].failure == "seed 0: OSError: the disk is away"
    Study(tuning.folder).run(retry_failed=True)
    after = tuning.run()
    assert all(one.value is not None and one.failure is None for one in after.trials)
    assert after.base == before.base
    assert record_in(tuning.folder)["trials"][1]["value"] == after.trials[1].value


def test_where_no_trial_can_begin_the_next_call_tries_again(
    tmp_path: Path, instant: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        def fail(members: Any, options: Any, begun: Any) -> list[Exception]:
            return [ConfigError("no such environment") for _ in members]

        broken.setattr(worker, "train_in_folders", fail)
        with pytest.raises(RLTrainingError, match="no trial can begin: no such environment"):
            instantly(tmp_path).run()
    assert instantly(tmp_path).run().base.value is not None


def test_one_process_asks_at_a_time(tmp_path: Path, instant: list[tuple[float, int]]) -> None:
    tuning = instantly(tmp_path)
    claim = take(tuning.folder, "tuning", Owner.me(), 60.0)
    assert claim is not None
    with claim, pytest.raises(ConfigError, match="another process is tuning here"):
        tuning.run()
    assert instant == []
    tuning.run()


def test_folders_of_something_else_are_left_alone(tmp_path: Path, instant: list[tuple[float, int]]) -> None:
    study_in(tmp_path).plan()
    with pytest.raises(ConfigError, match="holds a study that is not a tuning"):
        tuning_in(tmp_path).run()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="exists and is not a study's folder"):
        tuning_in(tmp_path, name="other").run()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record | {"schema": 99}, "schema 99 needs a newer rl_training"),
        (lambda record: record | {"kind": "x"}, "damaged: ValueError: not the record of a tuning"),
        (lambda record: record | {"trials": [{}]}, "damaged: KeyError"),
        (lambda record: record | {"confirmed": [{"number": 9, "values": [], "failure": None}]}, "damaged"),
        (lambda record: [], "damaged"),
    ],
)
def test_a_damaged_record_is_one_line(
    change: Any, words: str, tmp_path: Path, instant: list[tuple[float, int]]
) -> None:
    tuning = instantly(tmp_path, trials=1)
    tuning.run()
    (tuning.folder / "tuning.json").write_text(json.dumps(change(record_in(tuning.folder))))
    with pytest.raises(CheckpointError, match=words):
        instantly(tmp_path, trials=1).run()


# The sampler.


def test_the_sampler_depends_only_on_earlier_results() -> None:
    space = {"b": Range(1, 9, whole=True), "a": Range(1e-4, 1.0, log=True), "c": Choices(([8], [8, 8], None))}
    told = [({"a": 10.0**-i, "b": i + 1, "c": [8]}, float(i)) for i in range(1, 5)] * 3
    (one,) = sampler.propose(space, told, [12], 0)
    assert sampler.propose(dict(sorted(space.items())), told, [12], 0) == [one]
    assert sampler.propose(space, told, [12, 13], 0)[0] == one
    assert sampler.propose(space, told, [12], 1) != [one]
    assert sampler.propose(space, [(point, -value) for point, value in told], [12], 0) != [one]
    assert {name: type(value) for name, value in one.items() if name != "c"} == {"a": float, "b": int}
    assert all(space[name].holds(value) for name, value in one.items())


def test_without_optuna_one_line_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingDependencyError, match=r"tuning needs Optuna .*; pip install optuna$"):
        tuning_in(tmp_path).run()
    assert not (tmp_path / "tiny").exists()
    (tmp_path / "tiny.yaml").write_text(dump_yaml(tiny_tuning()))
    done = invoke("tune", tmp_path / "tiny.yaml", "--output-dir", tmp_path)
    assert done.exit_code == 2
    assert re.fullmatch(r"error: tuning needs Optuna .*; pip install optuna\n", done.stderr)


def test_nothing_imports_optuna_but_a_tuning_that_runs(loaded: Bare) -> None:
    program = (
        "import sys, rl_training.cli, rl_training.study.tuning, rl_training.api\n"
        "rl_training.SAC, rl_training.Study\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'optuna'])"
    )
    done = loaded.run(program)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


# The command.


def test_the_command_shows_base_best_and_loss(tmp_path: Path, instant: list[tuple[float, int]]) -> None:
    file = tmp_path / "tiny.yaml"
    instantly(tmp_path)
    fields = tiny_tuning(base=str(tmp_path / "base.yaml"), space=SPACE, trials=8)
    file.write_text(dump_yaml(fields))
    shown = invoke("--quiet", "tune", file, "--output-dir", tmp_path)
    assert (shown.exit_code, shown.stderr) == (0, "")
    record = json.loads(invoke("tune", file, "--output-dir", tmp_path, "--json").stdout)
    assert record["base"]["settings"] == {}
    assert record["best_confirmed"]["confirmed"]["mean"] >= record["base"]["confirmed"]["mean"]
    best = record["best_found"]
    assert best["loss"] == best["value"] - best["confirmed"]["value"]
    lines = shown.stdout.splitlines()
    failed = sum(trial["value"] is None for trial in record["trials"])
    assert failed
    assert lines[0] == f"tiny: mean return of 8 trials on 2 seeds each, {failed} failed"
    assert re.match(r"base +1 +base +-\d+\.\d+ +-\d+\.\d+ ± \d+\.\d+ \(2 seeds\) +-?\d+\.\d+$", lines[2])
    assert lines[3].startswith("best found")
    assert lines[4].startswith("best confirmed")
    assert shown.stdout.count("seed 0: the loss is NaN") == failed


def test_the_loss_is_the_difference_of_the_two_columns_before_it() -> None:
    """From four seeds on, a value is an interquartile mean."""
    one = TrialResult(values=(5.0, 5.0, 5.0, 5.0), confirmed=Outcome((0.0, 2.0, 4.0, 90.0)))
    _, _, _, found, fresh, loss = show_row("base", one)
    assert (found, fresh.split(" ")[0], loss) == ("5.00", "3.00", "2.00")


def test_a_confirmation_that_did_not_run_is_not_shown_as_failed() -> None:
    """As after an interrupted confirmation whose file then has `confirm: null`."""
    outcomes = Outcome(), Outcome((None,))
    shown = [show_row("base", TrialResult(values=(5.0,), confirmed=one))[4] for one in outcomes]
    assert shown == ["-", "failed"]


def test_the_command_refuses_with_one_line_and_2(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("base: dqn/cartpole\nseeds: [0, 1]\nspace:\n  gamma: {low: 0.9, high: 0.8}\n")
    done = invoke("tune", file, "--output-dir", tmp_path / "studies")
    words = "space: gamma has bounds that do not go upwards: low 0.9, high 0.8"
    assert (done.exit_code, done.stderr) == (2, f"error: {file}:3: {words}\n")
    assert not (tmp_path / "studies").exists()


@pytest.mark.slow
def test_the_example_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instant: list[tuple[float, int]]
) -> None:
    """Its file as it stands, with runs that take no time, its program, and its commands."""
    monkeypatch.chdir(tmp_path)
    text = DOCS.read_text(encoding="utf-8")
    (file,) = re.findall(r"^```yaml\n# rate\.yaml\n(.*?)^```$", text, re.M | re.S)
    Path("rate.yaml").write_text(file)
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    scope: dict[str, Any] = {}
    exec(compile(program, "tuning.md", "exec", dont_inherit=True), scope)
    result = scope["result"]
    assert len(result.trials) == 20
    assert result.best_confirmed.confirmed.value >= result.base.confirmed.value
    for line in re.findall(r"^rl-training (.*?)(?:  #.*)?$", text, re.M):
        assert invoke(*line.split(), "--help").exit_code == 0, line
    assert (
        json.loads(invoke("tune", "rate.yaml", "--json").stdout)["best_found"]["number"] == result.best_found.number
    )


def test_where_a_tuning_runs_is_given_as_for_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    class Enough(Exception):
        """Stands for the run."""

    def run(study: Study, workers: int | None = None, **options: Any) -> Any:
        asked.append({"workers": workers, **options})
        raise Enough

    monkeypatch.setattr(Study, "run", run)
    fields: dict[str, Any] = {
        "base": "bc/pendulum",
        "set": {"dataset_kind": "npz", "dataset_path": "log.npz", "total_timesteps": 20, "device": "cuda"},
        "space": {"learning_rate": {"low": 1e-4, "high": 1e-2}},
        "seeds": [0],
        "name": "tiny",
    }
    with pytest.raises(ConfigError, match=r"log\.npz: no such file, which the study learns from"):
        Tuning(fields, output_dir=tmp_path, data=tmp_path)
    (tmp_path / "log.npz").write_bytes(b"rows")
    tuning = Tuning(fields, output_dir=tmp_path, data=tmp_path, device="cpu")
    with pytest.raises(Enough):
        tuning.run(ray="auto")
    assert (asked[-1]["ray"], asked[-1]["workers"]) == ("auto", None)
    plan = read_plan(tuning.folder)
    assert plan.threads == 1
    for one in plan.configurations:
        assert one.settings["algo_kwargs"]["dataset_path"] == str(tmp_path / "log.npz")
        assert one.settings["device"] == "cpu"
    (tmp_path / "tiny.yaml").write_text(dump_yaml(fields))
    words = ["--output-dir", tmp_path, "--data", tmp_path, "--device", "cpu", "--ray", "local", "--workers", 2]
    assert isinstance(invoke("tune", tmp_path / "tiny.yaml", *words).exit_code, int)
    assert (asked[-1]["ray"], asked[-1]["workers"]) == ("local", 2)


@pytest.mark.slow
def test_a_claim_dated_in_the_future_does_not_hold_a_tuning(tmp_path: Path) -> None:
    tuning = tuning_in(tmp_path, claim_timeout=0.5, trials=1, confirm=None)
    place = tuning.folder / "claims" / "tuning" / "1.json"
    place.parent.mkdir(parents=True)
    owner = asdict(Owner("elsewhere", "elsewhere 1", 1, "1", "token"))
    place.write_bytes(files.encode_json({"owner": owner, "released": False, "deaths": 0, "progress": 0}))
    then = time.time() + 365 * 86_400.0
    os.utime(place, (then, then))
    assert len(tuning.run().trials) == 1
