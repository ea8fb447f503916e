"""Promise 25: beside training an evaluation is the same, and its result enters at a tick that nothing can move."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
import torch

import rl_training
from rl_training.environments import players as players_module
from rl_training.environments.given import Given, bring
from rl_training.environments.making import spaces_of
from rl_training.environments.players import Game, Players
from rl_training.environments.playing import Evaluator, PlayInterrupted
from rl_training.errors import ConfigError, DivergedError, EnvironmentFailure
from rl_training.experiment.checkpointing import latest_valid, list_checkpoints, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import MetricsLog
from rl_training.experiment.registry import resolve
from rl_training.population.members import members_of, train_population
from rl_training.population.members import resume as resume_all
from rl_training.runtime import state
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluating import players_for
from rl_training.runtime.run import Launch, _players
from rl_training.runtime.session import Session
from rl_training.runtime.workflows import evaluate_checkpoint
from tests.reliability.faulty_worlds import FAULTY
from tests.reliability.forks import Nursery
from tests.reliability.processes import Child, wait_for
from tests.runs import (
    QUIET,
    KillAt,
    Killed,
    differences,
    fingerprint,
    interrupted,
    logged,
    mostly_slow,
    resume,
    run_record,
    tiny,
    train,
)
from tests.test_loggers import Covered, Diary, as_logged
from tests.worlds import SCRIPTED

LOOPS = ["sac", "iql", "rlpd"]  # online, offline, both
# In which a run that evaluates beside differs from one that does not: where they say so.
_SAID = {"config/evaluate_beside", "config/output_dir"}


def beside(algo: str, folder: Path, kwargs: Mapping[str, Any] | None = None, **fields: Any) -> TrainConfig:
    """Evaluations at 10, 20, … and the end; checkpoints at 15, 30, …, each while one is under way."""
    every = {"evaluate_beside": True, "checkpoint_interval": 15, "log_interval": 3, "total_timesteps": 47}
    if "env_id" not in fields:
        every["eval_max_steps"] = 20
    return tiny(algo, folder, kwargs={"eval_interval": 10} | dict(kwargs or {}), **every | fields)


class Watch(Callback):
    """Where the clock stood when results came, and of which tick they were."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, int, int | None]] = []

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        self.entered.append((session.clock.phase, session.clock.ticks, session.evaluated_at))


def own_processes() -> list[str]:
    """The command lines of this process's children and of their groups."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                line = (entry / "cmdline").read_text()
            except (OSError, ValueError):
                continue
            if parent in (os.getpid(), 1) and "rl_training.environments" in line:
                found.append(line)
    return found


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def started_anew() -> None:
    """For a test whose processes are started as a run starts them."""


@pytest.fixture(autouse=True)
def nothing_is_left(
    nursery: Nursery, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """No test leaves a process or a thread behind, however its run ended."""
    if "started_anew" not in request.fixturenames:
        monkeypatch.setattr("rl_training.environments.players.start_child", nursery.start_child)
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "evaluations"] == []
    wait_for(lambda: own_processes() == [] and nursery.count() == 0, 20.0)


@pytest.mark.parametrize("algo", mostly_slow(LOOPS, "rlpd"))
def test_it_is_the_run_that_evaluates_at_once(algo: str, tmp_path: Path) -> None:
    """Rows, columns, results, the last checkpoint and the best policy: the same to the bit."""
    one = train(beside(algo, tmp_path / "a", eval_episodes=3, evaluate_beside=False))
    other = train(beside(algo, tmp_path / "b", eval_episodes=3))
    assert set(differences(one, other)) == _SAID
    headers = [(run.run_dir / "metrics.csv").read_text().splitlines()[0] for run in (one, other)]
    assert headers[0] == headers[1]
    [first], [second] = (list_checkpoints(run.run_dir / "best") for run in (one, other))
    assert first.name == second.name
    a, b = fingerprint(first), fingerprint(second)
    different = {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)}
    assert different == _SAID | {"trainer/log_rows", "trainer/log_columns"}  # of which nobody goes on


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("algo", LOOPS)
def test_beside_a_gpu_it_is_the_run_that_evaluates_at_once(algo: str, tmp_path: Path, started_anew: None) -> None:
    """There it is what a run from data does unasked; the players themselves are on the CPU."""
    fields = {"eval_episodes": 3, "device": "cuda", "acceleration": "graph"}
    one, other = (
        train(beside(algo, tmp_path / str(choice), evaluate_beside=choice, **fields)) for choice in (False, True)
    )
    assert set(differences(one, other)) == _SAID
    [first], [second] = (list_checkpoints(run.run_dir / "best") for run in (one, other))
    assert first.name == second.name


@pytest.mark.parametrize("wait", [0.0, 0.004])
def test_results_enter_at_the_next_evaluation_and_at_the_end(wait: float, tmp_path: Path) -> None:
    """However long an evaluation takes: here less, and more, than the updates beside it."""
    watch = Watch()
    config = beside("bc", tmp_path, {"dataset_size": 10}, env_id=FAULTY, env_kwargs={"wait": wait})
    result = train(config, [watch])
    assert watch.entered == [
        ("offline", now, tick) for now, tick in [(20, 10), (30, 20), (40, 30), (47, 40), (47, 47)]
    ]
    rows = {int(row["step"]): row for row in logged(result.run_dir)}
    assert sorted(rows) == list(rows)
    assert [step for step, row in rows.items() if "eval/mean_reward" in row] == [10, 20, 30, 40, 47]


def test_a_phase_ends_with_its_evaluations(tmp_path: Path) -> None:
    """What RLPD's pretraining scores is known before its first environment step, as early stopping counts on."""
    watch = Watch()
    train(beside("rlpd", tmp_path, {"offline_pretrain_updates": 15}, total_timesteps=25), [watch])
    phases = [("pretrain", 15, 10), ("online", 35, 25), ("online", 40, 35), ("online", 40, 40)]
    assert watch.entered == phases


def test_best_is_the_policy_that_was_judged(tmp_path: Path) -> None:
    """Not the one that the run had when the result came."""
    result = train(beside("iql", tmp_path, {"learning_rate": 0.01}, eval_episodes=2, eval_max_steps=None))
    [best] = list_checkpoints(result.run_dir / "best")
    scored = {int(row["step"]): float(row["eval/mean_reward"]) for row in logged(result.run_dir) if
              "eval/mean_reward" in row}  # fmt: skip
    step = int(best.name.partition("_")[2])
    assert scored[step] == max(scored.values()) == result.metrics["eval_return_best"]
    assert evaluate_checkpoint(best, 2)["eval_return_mean"] == scored[step]
    assert len(set(scored.values())) > 1


def test_early_stopping_acts_when_the_result_enters(tmp_path: Path) -> None:
    kwargs = {"early_stopping": {"patience": 2}}
    config = beside("iql", tmp_path / "a", kwargs, env_id=SCRIPTED, total_timesteps=100)
    result = train(config)
    at_once = train(config.replace(evaluate_beside=False, output_dir=tmp_path / "b"))
    assert (at_once.metrics["global_step"], result.metrics["global_step"]) == (30, 40)
    record = run_record(result.run_dir)
    assert record["status"] == "stopped"
    assert record["stop_reason"] == run_record(at_once.run_dir)["stop_reason"]
    assert result.metrics["eval_return_best"] == at_once.metrics["eval_return_best"]


# Going on.


def in_flight(run: Path) -> int | None:
    """The tick of the policy that the newest checkpoint is waiting for."""
    newest, _ = latest_valid(run / "checkpoints")
    record = read_checkpoint(newest).records.get("judged")
    return None if record is None else record["tick"]


@pytest.mark.parametrize(
    ("algo", "tick", "judged"),
    [pytest.param("sac", 45, 40, marks=pytest.mark.slow), ("iql", 30, 30), ("rlpd", 15, 10)],
)
def test_a_run_broken_off_meanwhile_ends_as_one_left_alone(
    algo: str, tick: int, judged: int, tmp_path: Path
) -> None:
    kwargs: dict[str, Any] = {"early_stopping": {"patience": 50}}
    if algo == "rlpd":
        kwargs["offline_pretrain_updates"] = 0
    config, watches = beside(algo, tmp_path, kwargs), (Watch(), Watch())
    straight = train(config, [KillAt(), watches[0]])
    run = interrupted(config, tick)
    assert in_flight(run) == judged
    resumed = resume(run, [KillAt(), watches[1]])
    assert differences(straight, resumed) == []
    assert watches[1].entered == [one for one in watches[0].entered if one[1] > tick]
    assert run_record(run)["exact_resume"] is True


@pytest.mark.parametrize("kind", [Diary, pytest.param(Covered, marks=pytest.mark.slow)])
def test_loggers_get_each_row_whole_and_in_order(kind: type[Diary], tmp_path: Path) -> None:
    """Broken off at 15 with the rows from 10 on held: what was written of them counts as not logged."""
    config, first, second = beside("bc", tmp_path), kind(), kind()
    straight = train(config, [KillAt()])
    with pytest.raises(Killed) as killed:
        train(config, [KillAt(15)], launch=Launch(quiet=True, loggers=(first,)))
    resume(Path(killed.value.args[0]), [KillAt()], loggers=[second])
    [facts] = second.facts
    assert facts.resumed_from == 9
    before = [] if kind is Covered else [row for row in first.rows if row.step <= 9]
    assert [row.step for row in first.rows if row.step <= 9] == [3, 6, 9]
    assert as_logged([*before, *second.rows]) == logged(straight.run_dir)


class KillSelf(KillAt):
    """Pulls the plug some updates after the checkpoint, when rows that it does not cover were logged."""

    reached = False

    def kill(self, run: Path) -> None:
        self.reached = True

    def on_step(self, session: Session) -> None:
        if self.reached and session.clock.ticks >= (self.tick or 0) + 7:
            session.metrics_log.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def test_kill_9_while_an_evaluation_is_under_way(tmp_path: Path, children: list[Child]) -> None:
    """The result of 10 had entered, at 20, when the process was killed; it goes on from 15."""
    config = beside("iql", tmp_path / "a")
    straight = train(config.replace(output_dir=tmp_path / "b"), [KillSelf()])
    child = Child(lambda: train(config, [KillSelf(15)]), tmp_path / "out.txt")
    children.append(child)
    assert child.wait() == -signal.SIGKILL, child.text()
    [run] = (tmp_path / "a").iterdir()
    assert in_flight(run) == 10
    assert [int(row["step"]) for row in logged(run)] == [3, 6, 9, 10, 12, 15, 18]
    assert differences(straight, resume(run, [KillSelf()])) == ["config/output_dir"]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
def test_a_signal_moves_no_result(number: int, tmp_path: Path, children: list[Child]) -> None:
    """Saved at a tick of its own, the run has one evaluation under way, and ends as it would have."""

    class SignalAt(Callback):
        def __init__(self, tick: int | None = None) -> None:
            self.tick = tick

        def next_due(self, now: int) -> int:
            return now // 16 * 16 + 16

        def on_step(self, session: Session) -> None:
            if session.clock.ticks == self.tick:
                os.kill(os.getpid(), number)

    config = beside("iql", tmp_path / "a", checkpoint_interval=1000)
    straight = train(config.replace(output_dir=tmp_path / "b"), [SignalAt()])
    ends = [KillAt(16)] if number == signal.SIGUSR1 else []
    child = Child(lambda: train(config, [SignalAt(16), *ends]), tmp_path / "out.txt")
    children.append(child)
    assert child.wait() == (143 if number == signal.SIGTERM else 99), child.text()
    [run] = (tmp_path / "a").iterdir()
    assert in_flight(run) == 10
    resumed = resume(run, [SignalAt()])
    assert set(differences(straight, resumed)) <= {"config/output_dir", "checkpoints"}


@pytest.mark.parametrize("changes", [{"evaluate_beside": False}, {"algo_kwargs.eval_interval": None}])
def test_what_was_under_way_is_judged_though_the_setting_is_off_now(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    run = interrupted(beside("iql", tmp_path / "a"), 15)
    key, value = next(iter(changes.items()))
    resumed = resume(run, overrides=[f"{key}={'null' if value is None else 'false'}"])
    at_once = train(beside("iql", tmp_path / "b", evaluate_beside=False))
    for row, other in zip(logged(resumed.run_dir), logged(at_once.run_dir)):
        assert row == other
        if row["step"] == "10":
            break
    assert "eval/mean_reward" in row
    assert resumed.metrics["eval_return_mean"] == at_once.metrics["eval_return_mean"]


def test_evaluation_switched_off_meanwhile(tmp_path: Path) -> None:
    run = interrupted(beside("iql", tmp_path), 15)
    resumed = resume(run, overrides=["eval_episodes=0"])
    steps = [int(row["step"]) for row in logged(resumed.run_dir)]
    assert steps == sorted({*range(3, 47, 3), 10})
    assert "eval_return_mean" not in resumed.metrics


def test_a_run_of_before_there_was_a_choice_goes_on_as_it_was(tmp_path: Path) -> None:
    result = train(tiny("bc", tmp_path))
    checkpoint = read_checkpoint(result.checkpoint_path)
    assert state.config_of(checkpoint).evaluate_beside == "auto"
    del checkpoint.records["config"]["evaluate_beside"]
    assert state.config_of(checkpoint).evaluate_beside is False


# Environments that fail.


FATES = {
    "raise": (EnvironmentFailure, "environment 0 failed (seed ", "step 13): RuntimeError: the motor is on fire"),
    "sys.exit": (EnvironmentFailure, "environment 0 failed (seed ", "step 13): SystemExit: 0"),
    "exit": (EnvironmentFailure, "the evaluation failed: its process ended with exit code 7", ""),
    "kill": (EnvironmentFailure, "the evaluation failed: its process was killed by signal 9", ""),
    "obs": (DivergedError, "evaluation environment 0 returned a non-finite observation; fix the environment", ""),
    "reward": (DivergedError, "evaluation environment 0 returned the reward inf; fix the environment", ""),
}


def faulty(folder: Path, how: str, **fields: Any) -> TrainConfig:
    """Its second evaluation, of step 20, goes wrong: the environment's 38th step is the 13th of that episode."""
    faults = {"at": 38, "how": how}
    fields = {"eval_max_steps": None} | fields
    return beside("bc", folder, {"dataset_size": 20}, env_id=FAULTY, env_kwargs=faults, **fields)


@pytest.mark.parametrize("how", FATES)
def test_a_failure_comes_where_the_result_would(how: str, tmp_path: Path) -> None:
    kind, beginning, end = FATES[how]
    with pytest.raises(kind) as caught:
        train(faulty(tmp_path, how))
    assert str(caught.value).startswith(beginning)
    assert end in str(caught.value)
    [run] = tmp_path.iterdir()
    record = run_record(run)
    assert record["status"] == ("diverged" if kind is DivergedError else "failed")
    newest, _ = latest_valid(run / "checkpoints")
    if kind is DivergedError:
        assert caught.value.first_bad is not None
        assert newest.name == "step_000000015"
    else:
        assert (newest.name, in_flight(run)) == ("step_000000030", 20)
    assert [int(row["step"]) for row in logged(run)][-2:] == [24, 27]  # nothing that was logged is lost
    if how == "raise":  # the traceback of the other process, for --debug
        assert "faulty_worlds.py" in "".join(caught.value.__notes__)


def test_one_that_was_fixed_goes_on_with_the_same_evaluation(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure):
        train(faulty(tmp_path / "a", "raise"))
    [run] = (tmp_path / "a").iterdir()
    resumed = resume(run, changes={"env_kwargs": {"at": -1}})
    straight = train(faulty(tmp_path / "b", "").replace(env_kwargs={"at": -1}))
    assert set(differences(straight, resumed)) <= {"config/output_dir", "checkpoints"}


def test_env_timeout_holds(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        train(faulty(tmp_path, "hang", env_processes=True, env_timeout=0.5))
    assert "EnvTimeout: its process did not answer within 0.5 s and was killed (env_timeout)" in str(caught.value)


def test_a_wrong_learner_is_found_before_it_is_played(tmp_path: Path) -> None:
    class Break(Callback):
        def next_due(self, now: int) -> int:
            return now + 1

        def on_training_start(self, session: Session) -> None:
            session.callbacks.reverse()  # before the evaluation

        def on_step(self, session: Session) -> None:
            if session.clock.ticks == 10:
                with torch.no_grad():
                    next(session.learner.model.policy.parameters()).fill_(torch.nan)

    with pytest.raises(DivergedError, match="became NaN or infinite by step 10"):
        train(beside("bc", tmp_path), [Break()])


@pytest.mark.parametrize("hangs", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_signal_ends_the_wait_for_an_evaluation(
    hangs: bool, tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of an environment that does not answer: the process that waits for it is killed."""
    monkeypatch.setattr(players_module, "_PATIENCE", 0.2)
    world = {"at": 5, "how": "hang"} if hangs else {"endless": True, "wait": 0.001}
    config = beside(
        "bc", tmp_path / "a", {"dataset_size": 4}, env_id=FAULTY, env_kwargs=world, eval_max_steps=10**9
    )
    child = Child(lambda: train(config), tmp_path / "out.txt")
    children.append(child)
    wait_for(lambda: list(tmp_path.glob("a/*/checkpoints/step_000000015")))
    time.sleep(0.2)
    assert child.poll() is None, "it waits for ever"
    child.send(signal.SIGTERM)
    assert child.wait(20) == 143, child.text()
    [run] = (tmp_path / "a").iterdir()
    assert run_record(run)["status"] == "interrupted"
    assert in_flight(run) == 10
    resumed = resume(run, changes={"env_kwargs": {}, "eval_max_steps": 50})
    assert [row["step"] for row in logged(resumed.run_dir) if "eval/mean_reward" in row] == [
        "10", "20", "30", "40", "47"
    ]  # fmt: skip


def test_kill_9_of_the_run_ends_its_processes(tmp_path: Path, children: list[Child]) -> None:
    config = beside("bc", tmp_path, {"dataset_size": 4}, env_id=FAULTY, env_kwargs={"endless": True, "wait": 0.001},
                    eval_max_steps=10**9)  # fmt: skip
    child = Child(lambda: train(config), tmp_path.with_suffix(".txt"))
    children.append(child)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step_000000015")))
    child.kill()  # the fixture waits until nothing is left


def test_episodes_that_are_cut_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(beside("bc", tmp_path, env_id=FAULTY, env_kwargs={"endless": True}, eval_max_steps=7))
    said = [line for line in capfd.readouterr().err.splitlines() if "are cut after 7 steps" in line]
    assert len(said) == 1


# Where it can be, and where it is.


class Own(gym.Env[Any, Any]):
    """Known by a name that another process does not find."""


@pytest.mark.parametrize("stopping", [None, {"patience": 2}])
def test_on_its_own_it_does_not_move_where_a_run_stops(stopping: Any, tmp_path: Path) -> None:
    """Else a run would stop elsewhere on a GPU than on a CPU."""
    config = beside("bc", tmp_path, {"early_stopping": stopping}, evaluate_beside="auto")
    regime = SimpleNamespace(collector=None, learner=SimpleNamespace(device=torch.device("cuda")))
    job = SimpleNamespace(config=config, resolved=resolve(config))
    found = _players(job, regime, Evaluator(config, spaces_of(config)))  # type: ignore[arg-type]
    assert (found is None) is (stopping is not None)


def evaluator_of(folder: Path, given: Given | None = None, **fields: Any) -> Evaluator:
    config = beside("bc", folder, **fields)
    return Evaluator(config, spaces_of(config), given)


@pytest.mark.parametrize(
    ("wanted", "pays", "often", "is_beside"),
    [
        ("auto", True, True, True),
        ("auto", False, True, False),
        ("auto", True, False, False),
        (True, False, True, True),
        (True, True, False, False),
        (False, True, True, False),
    ],
)
def test_auto_is_where_it_pays(wanted: Any, pays: bool, often: bool, is_beside: bool, tmp_path: Path) -> None:
    evaluator = evaluator_of(tmp_path, evaluate_beside=wanted)
    assert (players_for(evaluator.config, evaluator, pays=pays, often=often) is not None) is is_beside


@pytest.mark.parametrize("wanted", ["auto", True])
@pytest.mark.parametrize("why", ["object", "ray"])
def test_what_another_process_cannot_make(why: str, wanted: Any, tmp_path: Path) -> None:
    given = Given(bring(lambda: gym.make("Pendulum-v1")).maker) if why == "object" else None
    evaluator = evaluator_of(tmp_path, given, evaluate_beside=wanted)
    if why == "ray":
        evaluator.config = evaluator.config.replace(environments="ray")
    if wanted == "auto":
        assert players_for(evaluator.config, evaluator, pays=True, often=True) is None
        return
    with pytest.raises(ConfigError, match=r"^evaluate_beside: .* cannot be made in a process beside") as caught:
        players_for(evaluator.config, evaluator, pays=True, often=True)
    assert caught.value.key == "evaluate_beside"


def test_a_run_on_a_cpu_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Players, evaluator: Evaluator) -> None:
        raise AssertionError("evaluated beside")

    monkeypatch.setattr(Players, "__init__", refused)
    for algo in LOOPS:
        train(beside(algo, tmp_path, evaluate_beside="auto", total_timesteps=25))


@pytest.mark.parametrize("value", ["sometimes", 1, None])
def test_the_setting_is_checked(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="evaluate_beside"):
        beside("bc", tmp_path, evaluate_beside=value)


# Its class must be imported from the script itself.
SCRIPT = """
from gymnasium.envs.classic_control import PendulumEnv
from rl_training import SAC
class Own(PendulumEnv):
    pass
def train():
    model = SAC(Own, seed=0, evaluate_beside=True, eval_interval=10, eval_episodes=1, eval_max_steps=20,
                learning_starts=5, hidden_sizes=[8], batch_size=4, output_dir="runs", device="cpu")
    model.learn(total_timesteps=20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
def test_a_script_that_defines_its_environment(guarded: bool, tmp_path: Path) -> None:
    call = 'if __name__ == "__main__":\n    train()\n' if guarded else "train()\n"
    (tmp_path / "script.py").write_text(SCRIPT + call)
    environment = os.environ | {"PYTHONPATH": str(Path(rl_training.__file__).parents[1])}
    command = [sys.executable, tmp_path / "script.py"]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == (0 if guarded else 1), ended.stderr
    if not guarded:
        said = ended.stderr
        assert "its process ended with exit code 1 before its first answer; with evaluate_beside: true a" in said
    assert len(list((tmp_path / "runs").iterdir())) == 1


# Several at a time.


@pytest.mark.parametrize("seeds", [[3, 0], pytest.param([3, 0, 8], marks=pytest.mark.slow)])
def test_members_are_the_runs_they_would_be_alone(seeds: list[int], tmp_path: Path) -> None:
    config = beside("iql", tmp_path / "together", seeds=seeds, eval_episodes=2, total_timesteps=27)
    members = train_population(members_of(config), launch=QUIET)
    for member, seed in zip(members, config.seeds or (), strict=True):
        alone = train(config.replace(seeds=None, seed=seed, output_dir=tmp_path / str(seed)))
        assert set(differences(alone, member)) == {"config/output_dir"}


def test_members_broken_off_end_as_those_left_alone(tmp_path: Path) -> None:
    config = beside("iql", tmp_path / "a", seeds=[3, 0], total_timesteps=27)
    straight = train_population(members_of(config), callbacks=[KillAt()], launch=QUIET)
    broken = config.replace(output_dir=tmp_path / "b")
    with pytest.raises(Exception, match=r"2 of 2 members failed"):
        train_population(members_of(broken), callbacks=[KillAt(15)], launch=QUIET)
    run = next((tmp_path / "b").iterdir())
    assert in_flight(run) == 10
    for one, other in zip(straight, resume_all(run, callbacks=[KillAt()], quiet=True), strict=True):
        assert set(differences(one, other)) <= {"config/output_dir"}


def test_a_member_that_fails_is_alone_in_that(tmp_path: Path) -> None:
    """Twelve episodes are two in the same environment: those fail, and the others are served by a new process."""
    evaluator = evaluator_of(tmp_path, env_id=FAULTY, env_kwargs={"at": 30, "how": "raise"})
    ended = [failure(game) for game in games_of(evaluator, (1, 12, 1), most=1)]
    assert ended[0] is None
    assert "the motor is on fire" in str(ended[1])
    assert ended[2] is None


def test_so_many_at_a_time(tmp_path: Path) -> None:
    evaluator = evaluator_of(tmp_path)
    counts = (1, 3, 2, 1, 3)
    games = games_of(evaluator, counts, most=2)
    policy, _ = policy_of(evaluator.config)
    returns = evaluator.play(policy, 3).returns.tolist()
    evaluator.close()
    assert [game.result(lambda: False).returns.tolist() for game in games] == [returns[:n] for n in counts]


def games_of(evaluator: Evaluator, counts: Sequence[int], most: int) -> list[Game]:
    """A game of so many episodes each, asked for at once and waited for."""
    policy, weights = policy_of(evaluator.config)
    players = Players(evaluator, most=most)
    players.open()
    try:
        games = [players.play(policy, weights, count, on_arrays=False) for count in counts]
        assert len(players._players) == most
        for game in games:
            assert game.over.wait(120)
    finally:
        players.close()
    return games


def failure(game: Game) -> str | None:
    try:
        game.result(lambda: False)
    except EnvironmentFailure as error:
        return str(error)
    return None


def policy_of(config: TrainConfig) -> tuple[Any, torch.Tensor]:
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.runtime.acting import ActingPolicy
    from rl_training.runtime.building import build_learner

    sections = get_algorithm_spec(config.algo).sections
    learner = build_learner(sections, sections.resolve(config.algo_kwargs), config, spaces_of(config))
    return learner.model.policy, ActingPolicy(learner).taken()


@pytest.mark.slow
@pytest.mark.usefixtures("started_anew")
def test_another_process_acts_as_this_one(tmp_path: Path) -> None:
    """As beside a GPU too, where the policy that acts is a copy on numpy arrays."""
    from rl_training.models.arrays import on_arrays

    evaluator = evaluator_of(tmp_path, kwargs={"hidden_sizes": [256, 256]}, eval_max_steps=200)
    policy, weights = policy_of(evaluator.config)
    players = Players(evaluator, most=1)
    players.open()
    try:
        there = [
            players.play(policy, weights, 12, on_arrays=arrays).result(lambda: False) for arrays in (False, True)
        ]
        with pytest.raises(PlayInterrupted):
            players.play(policy, weights, 10**6, on_arrays=True).result(lambda: True)
    finally:
        players.close()
    here = [evaluator.play(policy, 12)]
    here.append(evaluator.play(on_arrays(policy.requires_grad_(False)), 12))
    evaluator.close()
    for played, expected in zip(there, here, strict=True):
        assert played.returns.tolist() == expected.returns.tolist()
        assert played.lengths.tolist() == expected.lengths.tolist()


# The log.


class Kept:
    """A sink that keeps what it is given."""

    name = "kept"

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        self.rows.append((step, dict(values)))

    def flush(self) -> None: ...
    def close(self) -> None: ...


def test_rows_are_held_until_the_result_of_the_first_is_there() -> None:
    sink = Kept()
    log = MetricsLog([sink], warn=lambda text: None)
    log.log(1, {"a": 1})
    log.hold(2)
    log.log(2, {"a": 2})
    log.log(3, {"a": 3})
    log.flush()
    assert sink.rows == [(1, {"a": 1})]
    assert (log.rows, [row.step for row in log.held]) == (1, [2, 3])
    log.release({"b": 9})
    assert (log.rows, log.held) == (3, [])
    log.log(3, {"c": 5})
    log.close()
    assert sink.rows[1:] == [(2, {"b": 9, "a": 2}), (3, {"a": 3, "c": 5})]
    assert list(sink.rows[1][1]) == ["b", "a"]  # columns appear as where evaluations come first


def test_rows_held_by_a_run_that_was_broken_off_are_written() -> None:
    sink = Kept()
    log = MetricsLog([sink], warn=lambda text: None)
    log.hold(2)
    log.log(3, {"a": 3})
    log.close("failed")
    assert sink.rows == [(2, {}), (3, {"a": 3})]


def test_a_row_already_written_is_completed() -> None:
    sink = Kept()
    log = MetricsLog([sink], warn=lambda text: None)
    log.log(2, {"a": 1})
    log.flush()
    log.hold(2)
    assert log.rows == 1
    log.release({"b": 2})
    assert log.columns(2) == ["a", "b"]
    log.close()
    assert sink.rows == [(2, {"a": 1}), (2, {"b": 2})]
