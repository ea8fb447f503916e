"""Whole runs of populations: every member is the run it would be alone, through kills, failures and early ends.

A member equals its single run up to rounding: checkpoints, logs and results are compared with a tight tolerance,
random numbers, counters and names exactly. A resumed population equals an undisturbed one to the bit.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import rl_training
from rl_training import IQL, SAC, Logger
from rl_training.algorithms import TD3
from rl_training.cli import main
from rl_training.data.datasets import TransitionDataset
from rl_training.errors import CheckpointError, ConfigError, DivergedError, EnvironmentFailure
from rl_training.experiment.checkpointing import list_checkpoints
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.loggers import Row, RunFacts
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.runs import lock_run
from rl_training.runs import fleet as size
from rl_training.runs.callbacks import Callback
from rl_training.runs.fleet import MembersFailed
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.signals import TrainingInterrupted
from rl_training.runtime.populations import members_of, signature, structure, train_population
from rl_training.runtime.resume import resume_population as resume_all
from rl_training.seeding import TRAINING, episode_seed
from rl_training.updates.stacked import StackedUpdater
from tests.reliability.processes import Child
from tests.reliability.selection import EACH
from tests.runs import (
    ALL,
    QUIET,
    TINY,
    checkpoint_names,
    differences,
    logged,
    mostly_slow,
    owned,
    run_record,
    tiny,
    train,
    trainer_state,
    unlike,
)
from tests.runs import resume as resume_one
from tests.test_exact_resume import disturb_globals, eventful

SEEDS = (3, 0, 8)


def short(algo: str, folder: Path, seeds: Sequence[int] = SEEDS, **fields: Any) -> TrainConfig:
    """40 steps with schedules, learned temperatures and evaluations."""
    defaults: dict[str, Any] = {"total_timesteps": 40, "checkpoint_interval": 20, "env_id": "Scripted-v0"}
    if algo == "dqn":
        defaults["env_kwargs"] = {"discrete": True}
    return eventful(algo, folder, seeds=list(seeds), **defaults | fields)


def together(config: TrainConfig, callbacks: Sequence[Callback] = (), **options: Any) -> list[TrainResult]:
    return train_population(members_of(config), callbacks=list(callbacks), options=QUIET, **options)


def apart(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> list[TrainResult]:
    """The same runs, trained one after another."""
    return [train(member, callbacks) for member in members_of(config)]


def different(ours: Sequence[TrainResult], theirs: Sequence[TrainResult]) -> list[list[str]]:
    return [differences(one, other) for one, other in zip(ours, theirs, strict=True)]


def all_unlike(ours: Sequence[TrainResult], theirs: Sequence[TrainResult]) -> list[list[str]]:
    """The same up to rounding."""
    return [unlike(one, other) for one, other in zip(ours, theirs, strict=True)]


def folders(place: Path, seeds: Sequence[int] = SEEDS) -> list[Path]:
    """The run folder of each seed."""
    return [next(place.glob(f"*__s{seed}__*")) for seed in seeds]


def files_of(run: Path) -> set[str]:
    """Everything in a run folder; TensorBoard's file names have the time in them."""
    return {
        "tb" if path.parent.name == "tb" else str(path.relative_to(run))
        for path in run.rglob("*")
        if path.is_file()
    }


def statuses(place: Path, seeds: Sequence[int] = SEEDS) -> list[str]:
    return [str(run_record(run)["status"]) for run in folders(place, seeds)]


class At(Callback):
    """Does something when the member of one seed has reached a tick, once."""

    name = "At"

    def __init__(self, seed: int, tick: int, act: Callable[[Session], object]) -> None:
        self.seed, self.tick, self.act, self.acted = seed, tick, act, False

    def next_due(self, now: int) -> int | None:
        return self.tick if now < self.tick else None

    def on_step(self, session: Session) -> None:
        if session.config.seed == self.seed and session.clock.now >= self.tick and not self.acted:
            self.acted = True
            self.act(session)


class AtCheckpoint(At):
    """The same right after a checkpoint, while the other members may not have written theirs."""

    def on_step(self, session: Session) -> None: ...

    def on_checkpoint(self, session: Session, path: Path) -> None:
        super().on_step(session)


def send(number: int) -> Callable[[Session], object]:
    return lambda session: os.kill(os.getpid(), number)


def nothing(session: Session) -> None: ...


# A member is its single run.


@pytest.mark.parametrize("algo", EACH)
def test_members_equal_their_single_runs(algo: str, tmp_path: Path) -> None:
    config = short(algo, tmp_path, SEEDS[:2])
    alone, ours = apart(config), together(config)
    assert all_unlike(ours, alone) == [[], []]
    assert [files_of(one.run_dir) for one in ours] == [files_of(one.run_dir) for one in alone]
    names = [result.run_dir.name for result in ours]
    for result, seed in zip(ours, SEEDS):
        record = run_record(result.run_dir)
        assert record["population"] == {"members": names}
        assert (record["seed"], record["status"], record["exact_resume"]) == (seed, "finished", True)
    assert differences(*ours)  # members are different runs


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [2, 3])
def test_with_several_environments_each(num_envs: int, tmp_path: Path) -> None:
    config = short("sac", tmp_path, SEEDS[:2], env_id="Scripted-v0", num_envs=num_envs)
    assert all_unlike(together(config), apart(config)) == [[], []]


@pytest.mark.slow
def test_a_member_does_not_depend_on_the_others(tmp_path: Path) -> None:
    three, two = together(short("td3", tmp_path)), together(short("td3", tmp_path, [8, 3]))
    assert all_unlike([three[2], three[0]], two) == [[], []]


def test_members_that_differ_in_numbers(tmp_path: Path) -> None:
    """A grid over plain numbers is one process, and one data set; a number in float32 is rounded a little."""
    grid = [{"learning_rate": rate, "expectile": expectile} for rate in (1e-3, 1e-4) for expectile in (0.6, 0.9)]
    base = short("iql", tmp_path, [1])
    configs = [member.replace(algo_kwargs=member.algo_kwargs | v) for v in grid for member in members_of(base)]
    ours = train_population(configs, options=QUIET)
    for result, config in zip(ours, configs):
        assert result.metrics == pytest.approx(train(config).metrics, rel=1e-3)
    assert len({result.metrics["value_loss"] for result in ours}) == 4


@pytest.mark.slow
def test_members_that_differ_in_the_learning_rate_alone(tmp_path: Path) -> None:
    base = members_of(short("sac", tmp_path, [1]))[0]
    configs = [base.replace(algo_kwargs=base.algo_kwargs | {"learning_rate": rate}) for rate in (1e-3, 1e-4)]
    ours = train_population(configs, options=QUIET)
    assert all_unlike(ours, [train(config) for config in configs]) == [[], []]


def test_data_in_memory_serve_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = TransitionDataset.from_arrays(
        observations=rng.normal(size=(64, 3)),
        actions=rng.uniform(-2, 2, size=(64, 1)),
        rewards=rng.normal(size=64),
        terminals=np.zeros(64),
        timeouts=np.zeros(64),
        action_low=-2.0,
        action_high=2.0,
    )
    kwargs = {key: value for key, value in owned("bc", TINY).items() if not key.startswith("dataset")}
    config = TrainConfig(**{**tiny("bc", tmp_path, seeds=[0, 1]).to_dict(), "algo_kwargs": kwargs})
    ours = together(config, dataset=data)
    assert all_unlike(ours, [train(member, dataset=data) for member in members_of(config)]) == [[], []]


# Going on.


def killed(config: TrainConfig, callback: Callback, place: Path, code: int) -> str:
    """Train in a process that `callback` kills; return its output."""
    child = Child(lambda: together(config, [callback]), place.with_suffix(".txt"))
    assert child.wait() == code, child.text()
    return child.text()


@pytest.mark.slow  # by default `test_population_resume` kills the members of another run as they save
@pytest.mark.parametrize("algo", ALL)
def test_killed_while_the_members_save(algo: str, tmp_path: Path) -> None:
    """Two of three have written the step, one is a checkpoint behind: all go back to that."""
    config = short(algo, tmp_path / "runs", checkpoint_interval=10)
    killed(config, AtCheckpoint(SEEDS[1], 20, send(signal.SIGKILL)), tmp_path, -signal.SIGKILL)
    runs = folders(tmp_path / "runs")
    newest = [max(checkpoint_names(run)) for run in runs]
    assert newest[0] == newest[1] > newest[2]
    assert statuses(tmp_path / "runs") == ["running"] * 3
    disturb_globals()
    ours = resume_all(runs[2], callbacks=[At(0, 0, nothing)], quiet=True, warn=lambda text: None)
    assert [result.run_dir for result in ours] == runs
    assert different(ours, together(config, [At(0, 0, nothing)])) == [[]] * 3
    assert all(run_record(run)["exact_resume"] for run in runs)


@pytest.mark.slow
def test_killed_before_all_have_a_checkpoint(tmp_path: Path) -> None:
    """The others start again, and the one that was saved with them."""
    config = short("iql", tmp_path / "runs")
    killed(config, AtCheckpoint(SEEDS[0], 20, send(signal.SIGKILL)), tmp_path, -signal.SIGKILL)
    runs = folders(tmp_path / "runs")
    assert [len(list_checkpoints(run / "checkpoints")) for run in runs] == [1, 0, 0]
    said: list[str] = []
    ours = resume_all(runs[0], callbacks=[At(0, 0, nothing)], quiet=True, warn=said.append)
    assert [text for text in said if "starts again" in text] == [
        f"{run}: ended before its first checkpoint; it starts again" for run in runs[1:]
    ]
    assert said[0].startswith(f"{runs[0]}: goes back from step 20 to the start, ")
    assert different(ours, together(config, [At(0, 0, nothing)])) == [[]] * 3


@pytest.mark.parametrize(
    ("algo", "number", "code"),
    mostly_slow([("sac", signal.SIGTERM, 143), ("iql", signal.SIGINT, 130)], ("sac", signal.SIGTERM, 143)),
)
def test_a_signal_saves_every_member(algo: str, number: int, code: int, tmp_path: Path) -> None:
    """All members are saved at the same step, wherever the signal arrives."""
    config = short(algo, tmp_path / "runs", checkpoint_interval=1_000)
    said = killed(config, At(SEEDS[1], 27, send(number)), tmp_path, code)
    runs = folders(tmp_path / "runs")
    assert "go on with: rl-training resume" in said
    assert statuses(tmp_path / "runs") == ["interrupted"] * 3
    assert len({path.name for run in runs for path in list_checkpoints(run / "checkpoints")}) == 1
    assert [len(list_checkpoints(run / "checkpoints")) for run in runs] == [1] * 3
    ours = resume_all(runs[1], callbacks=[At(0, 0, nothing)], quiet=True)
    theirs = together(config, [At(0, 0, nothing)])
    assert [{*found} <= {"checkpoints"} for found in different(ours, theirs)] == [True] * 3


def test_every_member_saves_when_asked_to(tmp_path: Path) -> None:
    """SIGUSR1 saves and continues."""
    config = short("td3", tmp_path / "runs", checkpoint_interval=1_000)
    killed(config, At(SEEDS[1], 27, send(signal.SIGUSR1)), tmp_path, 0)
    assert statuses(tmp_path / "runs") == ["finished"] * 3
    saved = [sorted(list_checkpoints(run / "checkpoints")) for run in folders(tmp_path / "runs")]
    assert [[path.name for path in paths][1:] for paths in saved] == [["step_000000040"]] * 3
    assert {paths[0].name for paths in saved} == {"step_000000028"}


def test_a_second_interrupt_aborts(tmp_path: Path) -> None:
    def twice(session: Session) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    config = short("sac", tmp_path / "runs", checkpoint_interval=1_000)
    killed(config, At(SEEDS[1], 27, twice), tmp_path, 130)
    assert statuses(tmp_path / "runs") == ["interrupted"] * 3
    assert [list_checkpoints(run / "checkpoints") for run in folders(tmp_path / "runs")] == [[]] * 3


def test_a_finished_population_continues_to_a_larger_total(tmp_path: Path) -> None:
    config = short("td3", tmp_path, SEEDS[:2])
    ours, alone = together(config), apart(config)
    again = resume_all(ours[1].run_dir, changes={"total_timesteps": 60}, quiet=True)
    assert [result.run_dir for result in again] == [result.run_dir for result in ours]
    theirs = [resume_one(result.run_dir, changes={"total_timesteps": 60}) for result in alone]
    assert all_unlike(again, theirs) == [[], []]
    assert again[0].metrics["global_step"] == 60


def test_an_older_checkpoint_goes_on_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """As that of any run; its companions are left alone."""
    ours = together(short("td3", tmp_path, SEEDS[:2]))
    first, *_ = list_checkpoints(ours[0].run_dir / "checkpoints")[::-1]
    older = min(list_checkpoints(ours[0].run_dir / "checkpoints"))
    assert older != ours[0].checkpoint_path
    [result] = resume_all(older, quiet=True, warn=lambda text: None)
    assert result.run_dir not in [one.run_dir for one in ours]
    assert "population" not in run_record(result.run_dir)
    assert first.exists()


def test_a_member_can_be_removed(tmp_path: Path) -> None:
    config = short("sac", tmp_path / "runs")
    killed(config, AtCheckpoint(SEEDS[2], 20, send(signal.SIGKILL)), tmp_path, -signal.SIGKILL)
    runs = folders(tmp_path / "runs")
    said: list[str] = []
    [result] = resume_all(runs[0], alone=True, callbacks=[At(0, 0, nothing)], quiet=True, warn=said.append)
    assert said == [f"{runs[0]}: taken out of its population; it continues alone, equal to it up to rounding"]
    assert result.run_dir == runs[0]
    assert run_record(runs[0])["population"]["left"] is True
    assert run_record(runs[2])["population"] == {"members": [run.name for run in runs[1:]]}
    assert statuses(tmp_path / "runs") == ["finished", "running", "running"]
    others = resume_all(runs[1], callbacks=[At(0, 0, nothing)], quiet=True)
    assert [one.run_dir for one in others] == runs[1:]
    assert all_unlike([result, *others], apart(config, [At(0, 0, nothing)])) == [[]] * 3
    assert [run_record(run)["exact_resume"] for run in runs] == [False] * 3
    [again] = resume_all(runs[0], quiet=True)  # it stays out
    assert again.run_dir == runs[0]


def test_a_member_that_is_missing_is_named(tmp_path: Path) -> None:
    ours = together(short("td3", tmp_path, SEEDS[:2]))
    shutil.rmtree(ours[1].run_dir)
    with pytest.raises(ConfigError, match="--alone takes one run out") as refused:
        resume_all(ours[0].run_dir, quiet=True)
    assert str(refused.value).startswith(f"{ours[1].run_dir}: missing, ")
    assert "\n" not in str(refused.value)
    [result] = resume_all(ours[0].run_dir, alone=True, quiet=True, warn=lambda text: None)
    assert result.run_dir == ours[0].run_dir


def test_a_member_that_is_in_use_blocks_the_resume_of_all(tmp_path: Path) -> None:
    """No member is resumed, and nothing changes."""
    ours = together(short("td3", tmp_path, SEEDS[:2]))
    before = [run_record(result.run_dir) for result in ours]
    with lock_run(ours[1].run_dir), pytest.raises(ConfigError, match=f"^{ours[1].run_dir}: "):
        resume_all(ours[0].run_dir, changes={"total_timesteps": 60}, quiet=True)
    assert [run_record(result.run_dir) for result in ours] == before


@pytest.mark.slow
def test_a_moved_population_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = together(short("td3", tmp_path / "here", SEEDS[:2]))
    shutil.move(tmp_path / "here", tmp_path / "there")
    monkeypatch.chdir(tmp_path / "there" / ours[0].run_dir.name)
    again = resume_all(".", changes={"total_timesteps": 50}, quiet=True)
    assert [result.run_dir.parent.name for result in again] == ["there", "there"]


# Ending alone.


def test_a_member_that_diverges_or_stops_does_not_affect_the_others(tmp_path: Path) -> None:
    """One of four diverges and one stops early; the other two are unaffected."""
    rates = {3: 1e-3, 0: 1e30, 8: 1e-3, 5: 1e-3}
    configs = [
        tiny(
            "sac",
            tmp_path,
            seed=seed,
            kwargs={"learning_rate": rate},
            env_id="Scripted-v0",
            checkpoint_interval=10,
        )
        for seed, rate in rates.items()
    ]
    stop = At(8, 35, lambda session: session.stop("enough"))
    with pytest.raises(MembersFailed) as failed:
        train_population(configs, callbacks=[stop], options=QUIET)
    error = failed.value
    assert error.exit_code == 4
    assert str(error).startswith("1 of 4 members failed: seed 0: ")
    assert "\n" not in str(error)
    assert [result is None for result in error.results] == [False, True, False, False]
    assert statuses(tmp_path, list(rates)) == ["finished", "diverged", "stopped", "finished"]
    ended = [result for result in error.results if result is not None]
    stop = At(8, 35, lambda session: session.stop("enough"))
    theirs = [train(config, [stop]) for config in configs if config.seed != 0]
    assert all_unlike(ended, theirs) == [[]] * 3
    assert ended[1].metrics["global_step"] == 35
    assert (folders(tmp_path, [0])[0] / "divergence.json").is_file()


@pytest.mark.slow
def test_the_other_members_continue_without_a_diverged_one(tmp_path: Path) -> None:
    configs = [
        tiny("td3", tmp_path, seed=s, kwargs={"learning_rate": r}) for s, r in ((0, 1e30), (1, 1e-3), (2, 1e-3))
    ]
    with pytest.raises(MembersFailed):
        train_population(configs, options=QUIET)
    bad, *good = folders(tmp_path, [0, 1, 2])
    record = run_record(bad)
    again = resume_all(good[0], changes={"total_timesteps": 80}, quiet=True)
    assert [result.run_dir for result in again] == good
    assert run_record(bad) == record


def broken_for(seed: int, how: str) -> dict[str, Any]:
    """A script whose first episode goes wrong for the member of one seed."""
    first = str(episode_seed(seed, TRAINING, 0, 0))
    return {"script": {first: {"label": 1.0, "length": 50, "end": "terminated", "broken": {"at": 30, "how": how}}}}


@pytest.mark.parametrize(("how", "code", "status"), [("raise", 1, "failed"), ("reward", 4, "diverged")])
def test_an_environment_that_fails_ends_its_member_alone(how: str, code: int, status: str, tmp_path: Path) -> None:
    config = short("sac", tmp_path, env_id="Scripted-v0", env_kwargs=broken_for(SEEDS[1], how))
    with pytest.raises(MembersFailed, match="1 of 3 members failed: seed 0: ") as failed:
        together(config)
    assert failed.value.exit_code == code
    assert statuses(tmp_path) == ["finished", status, "finished"]
    ours = [result for result in failed.value.results if result is not None]
    theirs = [train(member) for member in members_of(config) if member.seed != SEEDS[1]]
    assert all_unlike(ours, theirs) == [[], []]
    alone = next(member for member in members_of(config) if member.seed == SEEDS[1])
    with pytest.raises(EnvironmentFailure if how == "raise" else Exception) as single:
        train(alone)
    [error] = [error for error in failed.value.errors if error is not None]
    assert type(error) is type(single.value)


def test_a_callback_that_fails_ends_its_member_alone(tmp_path: Path) -> None:
    def fail(session: Session) -> None:
        raise RuntimeError("no more ink")

    with pytest.raises(MembersFailed, match="seed 0: no more ink") as failed:
        together(short("iql", tmp_path), [At(0, 15, fail)])
    assert failed.value.exit_code == 1
    assert statuses(tmp_path) == ["finished", "failed", "finished"]


@pytest.mark.slow
def test_an_update_that_fails_is_saved_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update was common to all; each member resumes from its current step."""
    config, original, count = short("iql", tmp_path), StackedUpdater._update, itertools.count()

    def update(self: StackedUpdater, *arguments: Any) -> Any:
        if next(count) == 25:
            raise RuntimeError("out of memory")
        return original(self, *arguments)

    monkeypatch.setattr(StackedUpdater, "_update", update)
    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        together(config)
    assert statuses(tmp_path) == ["failed"] * 3
    ours = resume_all(folders(tmp_path)[0], quiet=True)
    assert [result.metrics["update_count"] for result in ours] == [40] * 3


def test_what_cannot_be_built_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="total_timesteps"):
        together(short("sac", tmp_path, total_timesteps=10))
    assert list(tmp_path.iterdir()) == []


def test_a_common_cause_is_reported_once(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("not a folder")
    with pytest.raises(ConfigError, match=r"^output_dir") as refused:
        together(short("sac", place))
    assert str(refused.value).count("output_dir") == 1


# Callbacks and loggers.


class Counts(Callback):
    """Remembers how often it was called, in the checkpoint too."""

    def __init__(self) -> None:
        self.seen: list[int | None] = []

    def on_step(self, session: Session) -> None:
        self.seen.append(session.config.seed)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}


def test_every_member_has_callbacks_of_its_own(tmp_path: Path) -> None:
    mine = Counts()
    ours = together(short("sac", tmp_path), [mine])
    assert mine.seen == []
    for result, seed in zip(ours, SEEDS):
        assert trainer_state(result.checkpoint_path)["callbacks"]["Counts"]["seen"] == [seed] * 40


def test_a_callback_that_cannot_be_copied_is_refused_in_one_line(tmp_path: Path) -> None:
    class Holds(Callback):
        def __init__(self) -> None:
            self.lines = (line for line in "ab")

    with pytest.raises(ConfigError, match=r"^callbacks: Holds cannot be copied for each member: [^\n]*$"):
        together(short("sac", tmp_path), [Holds()])
    assert list(tmp_path.iterdir()) == []


class Collects(Logger):
    """One file per run, opened when the run opens it."""

    def open(self, run: RunFacts) -> None:
        self.place = run.folder / "seen.txt"

    def write(self, row: Row) -> None:
        with self.place.open("a") as file:
            file.write(f"{row.step}\n")


def test_every_member_has_loggers_of_its_own(tmp_path: Path) -> None:
    model = SAC("Pendulum-v1", seeds=[0, 1], output_dir=tmp_path, device="cpu", **brief("sac"))
    for result in model.learn(30, progress_bar=False, loggers=Collects()):
        steps = [row["step"] for row in logged(result.run_dir)]
        assert [*dict.fromkeys((result.run_dir / "seen.txt").read_text().split())] == steps


# How many at a time.


class Tells(Callback):
    """Records the start and the end of all members in order."""

    told: ClassVar[list[str]] = []

    def on_training_start(self, session: Session) -> None:
        self.told.append(f"begins {session.config.seed}")

    def on_training_end(self, session: Session) -> None:
        self.told.append(f"ends {session.config.seed}")


def told(config: TrainConfig) -> list[str]:
    Tells.told.clear()
    together(config, [Tells()])
    return list(Tells.told)


TURNS = {
    "auto": ["begins 3", "begins 0", "begins 8", "ends 3", "ends 0", "ends 8"],
    2: ["begins 3", "begins 0", "ends 3", "ends 0", "begins 8", "ends 8"],
    "off": ["begins 3", "ends 3", "begins 0", "ends 0", "begins 8", "ends 8"],
}


@pytest.mark.parametrize("population", [2, pytest.param("auto", marks=pytest.mark.slow), "off"])
def test_the_number_of_members_trained_at_a_time(population: str | int, tmp_path: Path) -> None:
    config = short("td3", tmp_path, population=population)
    assert told(config) == TURNS[population]
    names = [run.name for run in folders(tmp_path)]
    known = [run_record(run).get("population") for run in folders(tmp_path)]
    assert known == ([None] * 3 if population == "off" else [{"members": names}] * 3)


@pytest.mark.slow
def test_turns_change_nothing(tmp_path: Path) -> None:
    config = short("td3", tmp_path, population=2)
    assert all_unlike(together(config), apart(config)) == [[]] * 3


def test_with_little_memory_they_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(size, "available_memory", lambda: 0)
    with caplog.at_level(logging.WARNING):
        assert told(short("td3", tmp_path)) == TURNS["off"]
    lines = [record.getMessage() for record in caplog.records if "members" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("memory for 1 of 3 members at a time (")
    assert lines[0].endswith("each): the others follow")


@pytest.mark.slow
def test_interrupted_turns_continue_with_all_members(tmp_path: Path) -> None:
    config = short("td3", tmp_path / "runs", population=2)
    killed(config, At(SEEDS[2], 30, send(signal.SIGKILL)), tmp_path, -signal.SIGKILL)
    assert statuses(tmp_path / "runs") == ["finished", "finished", "running"]
    ours = resume_all(folders(tmp_path / "runs")[0], callbacks=[At(0, 0, nothing)], quiet=True)
    assert different(ours, together(config, [At(0, 0, nothing)])) == [[]] * 3


# What is refused.


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [("batch_size", 16, 32), ("hidden_sizes", [16, 16], [8]), ("policy_delay", 2, 3), ("tau", 0.1, 0.2)],
)
def test_members_may_not_differ_in_what_shapes_them(key: str, one: Any, other: Any, tmp_path: Path) -> None:
    first, second = (tiny("td3", tmp_path, kwargs={key: value}, seed=i) for i, value in enumerate((one, other)))
    assert (signature(first) == signature(second)) is (key == "tau")
    if key != "tau":
        with pytest.raises(ConfigError, match=rf"^{key}: members of a population may differ in [^\n]*$") as refused:
            train_population([first, second], options=QUIET)
        assert refused.value.key == key
        assert list(tmp_path.iterdir()) == []


def test_members_that_differ_in_a_stored_number_are_refused_before_they_collect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, usual = itertools.count(), TD3.__init__

    def storing(self: TD3, **arguments: Any) -> None:
        usual(self, **arguments)
        self.half = 0.5 * next(made)  # type: ignore[attr-defined]

    monkeypatch.setattr(TD3, "__init__", storing)
    with pytest.raises(ConfigError, match=r"^td3: the members differ in TD3\.half"):
        together(short("td3", tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("field", ["total_timesteps", "env_id", "algo", "checkpoint_interval"])
def test_fields_of_the_configuration_are_shared(field: str, tmp_path: Path) -> None:
    values = {"total_timesteps": 50, "env_id": "Scripted-v0", "algo": "ddpg", "checkpoint_interval": 7}
    config = tiny("td3", tmp_path)
    other = tiny("ddpg", tmp_path) if field == "algo" else config.replace(**{field: values[field]})
    with pytest.raises(ConfigError, match=rf"^{field}: "):
        train_population([config, other], options=QUIET)


def test_seeds_places_and_tags_are_no_part_of_a_structure(tmp_path: Path) -> None:
    config = tiny("td3", tmp_path)
    other = config.replace(seed=9, output_dir=str(tmp_path / "other"), tags=["x"], population=4)
    assert structure(config) == structure(other)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ("9..0", "seeds must go upwards, over at most 100,000 seeds, got '9..0'"),
        ([], "seeds must be a range such as 0..9 or a list such as [0, 3, 7], got []"),
        ([1, 2, 1], "seeds: 1 is given twice"),
        ("1,1", "seeds: 1 is given twice"),
        ("a..b", "seeds must be a range such as 0..9 or a list such as [0, 3, 7]"),
        ([-1], "seeds"),
        ([2**32], "seeds"),
    ],
)
def test_seeds_that_make_no_sense(seeds: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        tiny("sac", tmp_path, seeds=seeds)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("seeds", "meant"), [("0..3", (0, 1, 2, 3)), ("4", (4,)), ("0, 3,7", (0, 3, 7)), (range(2), (0, 1))]
)
def test_seeds_in_every_form(seeds: Any, meant: tuple[int, ...], tmp_path: Path) -> None:
    assert tiny("sac", tmp_path, seeds=seeds).seeds == meant


def test_one_environment_cannot_serve_several(tmp_path: Path) -> None:
    class Own(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1, 1, (2,))
        action_space = gym.spaces.Box(-1, 1, (1,))

    model = SAC(Own(), seeds=[0, 1], output_dir=tmp_path, **brief("sac"))
    with pytest.raises(ConfigError, match=r"^seeds: Own cannot be duplicated for every member; pass its class"):
        model.learn(30)
    assert list(tmp_path.iterdir()) == []


def test_a_population_has_no_single_result(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use train_all"):
        ExperimentManager().train(tiny("sac", tmp_path, seeds=[0, 1]))


# In Python.


def brief(algo: str) -> dict[str, Any]:
    """Settings of a tiny run, as keywords."""
    return owned(algo, TINY) | {"eval_episodes": 1, "log_interval": 10, "checkpoint_interval": 20}


def test_models_with_seeds(tmp_path: Path) -> None:
    model = SAC("Pendulum-v1", seeds=range(2), output_dir=tmp_path, device="cpu", **brief("sac"))
    for use in (lambda: model.predict([0.0, 0.0, 0.0]), lambda: model.evaluate(1)):
        with pytest.raises(ConfigError, match=r"^SAC has 2 members; \w+ one: model\.members\[0\]\.\w+\(…\)$"):
            use()
    first = model.learn(30, progress_bar=False)
    assert [run_record(result.run_dir)["seed"] for result in first] == [0, 1]
    assert [member.checkpoint_path for member in model.members] == [result.checkpoint_path for result in first]
    actions = [member.predict([0.1, 0.2, 0.3]) for member in model.members]
    assert not np.array_equal(*actions)
    assert model.members[1].evaluate(1)["eval_return_mean"] < 0
    assert SAC.load(first[0].run_dir).predict([0.1, 0.2, 0.3]) == actions[0]
    more = model.learn(20, progress_bar=False)
    assert [result.run_dir for result in more] == [result.run_dir for result in first]
    assert [result.metrics["global_step"] for result in more] == [50, 50]
    assert [member.config.seed for member in model.members] == [0, 1]


def test_a_member_that_learns_takes_the_others_along(tmp_path: Path) -> None:
    """Before, the others and the population continued from earlier checkpoints, in a new folder."""
    settings = brief("sac") | {"keep_checkpoints": 1}
    model = SAC("Pendulum-v1", seeds=[4, 2], output_dir=tmp_path, device="cpu", **settings)
    model.learn(20, progress_bar=False)
    first, second = model.members
    before = second.predict([0.1, 0.2, 0.3])
    first.learn(10, progress_bar=False)
    folders = sorted(tmp_path.iterdir())
    assert second.predict([0.1, 0.2, 0.3]) != before
    assert second.evaluate(1)["lengths"] == [200]
    with pytest.raises(TrainingInterrupted):
        second.resume(50, callbacks=At(2, 31, send(signal.SIGTERM)), progress_bar=False)
    assert [repr(one).partition(": trained ")[2][:8] for one in (first, second, model)] == ["31 steps"] * 3
    results = model.learn(10, progress_bar=False)
    assert [result.metrics["global_step"] for result in results] == [41, 41]
    assert sorted(tmp_path.iterdir()) == folders
    assert model.members == [first, second]
    assert [one.checkpoint_path for one in model.members] == [result.checkpoint_path for result in results]


def test_a_population_that_was_continued_elsewhere_is_not_continued_from_an_older_step(tmp_path: Path) -> None:
    """Before, one run was trained in a new folder, and its result was left out."""
    model = SAC("Pendulum-v1", seeds=[4, 2], output_dir=tmp_path, device="cpu", **brief("sac"))
    model.learn(20, progress_bar=False)
    runs = sorted(tmp_path.iterdir())
    rl_training.load(runs[1]).learn(10, progress_bar=False)
    with pytest.raises(ConfigError, match=r"was continued elsewhere, beyond the step_000000020 of this model; "):
        model.learn(10, progress_bar=False)
    assert sorted(tmp_path.iterdir()) == runs
    for run in runs:
        shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        model.learn(10, progress_bar=False)


def diverge(session: Session) -> None:
    raise DivergedError("a loss is NaN", first_bad="loss")


def test_a_member_that_is_not_resumed_keeps_its_place(tmp_path: Path) -> None:
    settings = brief("sac") | {"checkpoint_interval": 10}
    model = SAC("Pendulum-v1", seeds=[4, 5, 6], output_dir=tmp_path, device="cpu", **settings)
    with pytest.raises(MembersFailed, match="1 of 3 members failed: seed 5"):
        model.learn(30, callbacks=At(5, 20, diverge), progress_bar=False)
    again = model.resume(40, progress_bar=False)
    assert [run_record(result.run_dir)["seed"] for result in again] == [4, 5, 6]
    assert [result.metrics["global_step"] for result in again] == [40, 10, 40]
    assert [member.config.seed for member in model.members] == [4, 5, 6]
    assert [member.checkpoint_path for member in model.members] == [result.checkpoint_path for result in again]


@pytest.mark.slow
def test_a_loaded_member_resumes_with_all(tmp_path: Path) -> None:
    made = IQL("Pendulum-v1", seeds=[4, 2], output_dir=tmp_path, device="cpu", **brief("iql"))
    results = made.learn(30, progress_bar=False)
    loaded = IQL.load(results[1].run_dir)
    again = loaded.resume(40, progress_bar=False)
    assert again.run_dir == results[1].run_dir
    assert [run_record(result.run_dir)["metrics"]["update_count"] for result in results] == [40, 40]


def test_seed_and_seeds_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^seeds: give seed or seeds"):
        SAC("Pendulum-v1", seed=1, seeds=[0, 1])


# On the command line.


def command(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def settings(algo: str) -> list[str]:
    values = brief(algo) | {"device": "cpu"}
    return [word for key, value in values.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def test_seeds_on_the_command_line(tmp_path: Path) -> None:
    words = ["--algo", "td3", "--env", "Pendulum-v1", "--steps", 30, "--seeds", "3,0", "--output-dir", tmp_path]
    done = command("train", *words, *settings("td3"))
    assert done.exit_code == 0, done.output
    runs = folders(tmp_path, [3, 0])
    assert "2 members together, each in a folder of its own:" in done.output
    for run, seed in zip(runs, (3, 0)):
        assert f"  run folder: {run}" in done.output
        [line] = [line for line in done.stdout.splitlines() if line.endswith(str(run)) and "run folder" not in line]
        assert line.split()[0] == str(seed)
    assert done.output.count("(learning_starts)") == 1  # what is true of all is said once
    assert done.output.count("td3 on Pendulum-v1, 30 steps, cpu\n") == 1
    assert "mean of 2 seeds: " in done.stdout
    again = command("resume", runs[1], "--set", "total_timesteps=40")
    assert again.exit_code == 0, again.output
    assert [run_record(run)["metrics"]["global_step"] for run in runs] == [40, 40]
    alone = command("resume", runs[1], "--alone", "--set", "total_timesteps=50")
    assert alone.exit_code == 0, alone.output
    assert "taken out of its population" in alone.output
    assert [run_record(run)["metrics"]["global_step"] for run in runs] == [40, 50]


def test_members_that_fail_on_the_command_line(tmp_path: Path) -> None:
    """One line on standard error and the exit code of the cause; the other members have finished."""
    config = short("sac", tmp_path, SEEDS[:2], env_id="Scripted-v0", env_kwargs=broken_for(SEEDS[1], "reward"))
    place = tmp_path / "config.json"  # JSON is YAML
    place.write_text(json.dumps(config.to_dict() | {"output_dir": str(tmp_path / "runs"), "seed": None}))
    done = command("--quiet", "train", "--config", place)
    assert done.exit_code == 4, done.output
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: 1 of 2 members failed: seed {SEEDS[1]}: ")
    assert statuses(tmp_path / "runs", SEEDS[:2]) == ["finished", "diverged"]


def test_seeds_in_a_file(tmp_path: Path) -> None:
    place = tmp_path / "many.yaml"
    text = f"algo: bc\nenv_id: Pendulum-v1\ntotal_timesteps: 20\ndevice: cpu\noutput_dir: {tmp_path / 'runs'}\n"
    text += f"algo_kwargs: {json.dumps(owned('bc', TINY))}\neval_episodes: 0\n"
    place.write_text(f"{text}seeds: 0..1\n")
    done = command("--quiet", "train", "--config", place)
    assert done.exit_code == 0, done.output
    assert "members together" not in done.output
    runs = folders(tmp_path / "runs", [0, 1])
    assert [(run / "config.yaml").read_text() for run in runs] == [place.read_text()] * 2
    assert load_config(runs[1] / "config.resolved.yaml").config.seed == 1
    assert load_config(runs[1] / "config.resolved.yaml").config.seeds is None


@pytest.mark.parametrize(
    ("written", "words", "meant"),
    [
        ("seeds: 0..2", ["seed=7"], (7, None)),
        ("seed: 7", ["seeds=0..1"], (0, (0, 1))),
        ("seeds: 0..2", ["seeds=4,5"], (0, (4, 5))),
        ("seed: 1\nseeds: 0..2", [], None),
        ("", ["seed=1", "seeds=0..1"], None),
    ],
)
def test_the_command_line_overrides_the_file(written: str, words: list[str], meant: Any, tmp_path: Path) -> None:
    place = tmp_path / "some.yaml"
    place.write_text(f"algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 2000\n{written}\n")
    if meant is None:
        with pytest.raises(ConfigError, match=r"seeds: give seed or seeds, not both$"):
            load_config(place, words)
    else:
        config = load_config(place, words).config
        assert (config.seed, config.seeds) == meant


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "1", "--seeds", "0..1"], "give --seed or --seeds"),
        (["--seeds", "9..0"], "must go upwards, over at most 100,000 seeds, got '9..0'"),
        (["--seeds", "1,1"], "is given twice"),
        (["--seeds", "x"], "must be a range such as 0..9 or a list such as"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], message: str, tmp_path: Path) -> None:
    start = ["train", "--algo", "sac", "--env", "Pendulum-v1", "--steps", "2000", "--output-dir", tmp_path]
    done = command(*start, *words)
    assert done.exit_code == 2
    assert message in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_damaged_record_of_companions_is_no_population(tmp_path: Path) -> None:
    ours = together(short("td3", tmp_path, SEEDS[:2]))
    place = ours[0].run_dir / "run.json"
    for wrong in ({"members": 3}, "all", {"members": None}):
        place.write_text(json.dumps(run_record(ours[0].run_dir) | {"population": wrong}))
        assert [one.run_dir for one in resume_all(ours[0].run_dir, quiet=True)] == [ours[0].run_dir]
    place.write_text("{")
    with pytest.raises(CheckpointError, match=r"run\.json: damaged"):
        resume_all(ours[1].run_dir, quiet=True)
