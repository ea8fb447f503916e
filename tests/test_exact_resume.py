"""2N steps equal N steps, a kill, and N more steps, bit for bit, in the whole state of a run."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.experiment.checkpointing import (
    Checkpoint,
    RowsToSave,
    find_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.retention import copy_checkpoint
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session, TrainResult
from tests.reliability.processes import Child
from tests.runs import (
    FINE_TUNED,
    OFFLINE,
    ONLINE,
    KillAt,
    differences,
    fingerprint,
    interrupted,
    mostly_slow,
    owned,
    replay_rows,
    resume,
    run_record,
    tiny,
    train,
    trainer_state,
)

# A schedule, learned temperatures, a wrapping ring, evaluations that count towards stopping: all must go on.
EVENTFUL: dict[str, Any] = {
    "learning_rate_schedule": {"type": "cosine", "final_factor": 0.1},
    "warmup_steps": 10,
    "buffer_capacity": 30,
    "alpha": "auto",
    "exploration_fraction": 0.9,
    "lagrange_threshold": 1.0,
    "bc_steps": 30,
    "normalize_observations": True,
    "eval_interval": 25,
    "early_stopping": {"patience": 50, "min_improvement": 1e9},
}


def eventful(algo: str, folder: Path, **fields: Any) -> TrainConfig:
    kwargs = owned(algo, EVENTFUL, fields.get("regime")) | fields.pop("kwargs", {})
    return tiny(algo, folder, kwargs=kwargs, **{"total_timesteps": 80, "checkpoint_interval": 40} | fields)


def disturb_globals() -> None:
    """Change the global generators, as in a new process."""
    torch.manual_seed(12345)
    np.random.seed(54321)  # noqa: NPY002 - the global generator is the point


def assert_exact(
    config: TrainConfig, tick: int, look: Callable[[Path], None] = lambda checkpoint: None, **options: Any
) -> TrainResult:
    """`look` is called with the checkpoint at which the run was interrupted."""
    straight = train(config, [KillAt()], **options)
    run = interrupted(config, tick, **options)
    look(find_checkpoint(run))
    disturb_globals()
    resumed = resume(run, [KillAt()], **options)
    assert resumed.run_dir == run
    assert differences(straight, resumed) == []
    assert run_record(run)["exact_resume"] is True
    return resumed


@pytest.mark.parametrize("num_envs", mostly_slow([1, 2], 2))
@pytest.mark.parametrize("algo", ONLINE)
def test_online(algo: str, num_envs: int, tmp_path: Path) -> None:
    assert_exact(eventful(algo, tmp_path, num_envs=num_envs), 40)


@pytest.mark.parametrize("algo", OFFLINE)
def test_offline(algo: str, tmp_path: Path) -> None:
    assert_exact(eventful(algo, tmp_path), 40)


@pytest.mark.parametrize("num_envs", mostly_slow([1, 2], 2))
@pytest.mark.parametrize(("tick", "phase"), [(20, "pretrain"), (30 + 40, "online")])
def test_rlpd_in_both_phases(tick: int, phase: str, num_envs: int, tmp_path: Path) -> None:
    def in_its_phase(checkpoint: Path) -> None:
        assert trainer_state(checkpoint)["clock"]["phase"] == phase

    assert_exact(eventful("rlpd", tmp_path, num_envs=num_envs, checkpoint_interval=20), tick, in_its_phase)


@pytest.mark.parametrize(("tick", "phase"), [(20, "pretrain"), (30 + 20, "online"), (30 + 60, "online")])
@pytest.mark.parametrize("algo", mostly_slow(FINE_TUNED, "iql"))
def test_fine_tuning_in_pretraining_warm_up_and_online(algo: str, tick: int, phase: str, tmp_path: Path) -> None:
    def in_its_phase(checkpoint: Path) -> None:
        state = trainer_state(checkpoint)
        assert state["clock"]["phase"] == phase
        assert (state["counters"]["updates"] > 30) == (tick == 90)

    fields = {"regime": "offline_to_online", "num_envs": 2, "checkpoint_interval": 20}
    assert_exact(eventful(algo, tmp_path, kwargs={"online_warmup_steps": 30}, **fields), tick, in_its_phase)


def test_early_stopping_goes_on_counting(tmp_path: Path) -> None:
    """Nothing improves by 1e9, so the fourth evaluation stops the run with a patience of three, with or without a
    kill."""
    stopping = {"eval_interval": 15, "early_stopping": {"patience": 3, "min_improvement": 1e9}}
    config = eventful("sac", tmp_path, kwargs=stopping, total_timesteps=200)
    state = trainer_state(assert_exact(config, 40).checkpoint_path)
    assert state["should_stop"]
    assert state["clock"]["global_step"] == 60


def test_the_evaluation_of_a_stopped_run_does_not_count_for_early_stopping(tmp_path: Path) -> None:
    class StopAt(Callback):
        def on_step(self, session: Session) -> None:
            if session.clock.global_step == 20:
                session.stop("enough for today")

    stopping = {"eval_interval": 15, "early_stopping": {"patience": 3, "min_improvement": 1e9}}
    config = eventful("sac", tmp_path, kwargs=stopping, total_timesteps=200)
    part = train(config, [StopAt()])
    assert trainer_state(part.checkpoint_path)["clock"]["global_step"] == 20
    state = trainer_state(resume(part.run_dir).checkpoint_path)
    assert state["clock"]["global_step"] == 60


def test_in_the_middle_of_a_mujoco_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it is

    def in_the_middle(checkpoint: Path) -> None:
        episodes = read_checkpoint(checkpoint).records["collector"]["episodes"]
        assert all(episode["steps"] > 0 for episode in episodes)

    config = eventful("sac", tmp_path / "runs", env_id="Hopper-v5", num_envs=2, checkpoint_interval=44)
    assert_exact(config, 44, in_the_middle)


def test_every_checkpoint_of_a_run_leads_to_the_same_end(tmp_path: Path) -> None:
    config = eventful("td3", tmp_path, checkpoint_interval=10)
    straight = train(config, [KillAt()])
    for tick in (10, 20, 50):  # before learning starts, while the ring fills, after it has wrapped
        assert differences(straight, resume(interrupted(config, tick), [KillAt()])) == []


def test_a_copied_checkpoint(tmp_path: Path) -> None:
    """A copy has the run.json of its run, so the record of a run that resumes from it can be checked."""
    config = eventful("sac", tmp_path / "runs")
    straight, run = train(config, [KillAt()]), interrupted(config, 40)
    copy = copy_checkpoint(copy_checkpoint(find_checkpoint(run), tmp_path / "first"), tmp_path / "copy")
    resumed = resume(copy, [KillAt()])
    ends = [fingerprint(result.checkpoint_path) for result in (straight, resumed)]
    assert {name for name in ends[0] if ends[0][name] != ends[1][name]} == {"trainer/log_rows"}  # a new metrics.csv
    assert run_record(resumed.run_dir)["exact_resume"] is True

    record = run_record(run)
    changed = {"threads": 99, "trained_with": ["a", "b"], "inexact": ["step 10: an environment failed"]}
    (copy / "origin.json").write_text(json.dumps(record | changed))
    reasons = run_record(resume(copy).run_dir)["inexact"]
    assert [reason.split(": ", 1)[1] for reason in reasons] == [
        f"changed since the run began: threads 99 -> {torch.get_num_threads()}",
        "it was trained together with a, b, and resumes without them",
        "the run of its checkpoint is not exact: step 10: an environment failed",
    ]

    (copy / "origin.json").unlink()
    unknown = run_record(resume(copy).run_dir)
    assert unknown["exact_resume"] is False
    assert "is a copy without run.json, so its versions and CPU settings are unknown" in unknown["inexact"][0]


def test_killed_twice(tmp_path: Path) -> None:
    config = eventful("sac", tmp_path, checkpoint_interval=20)
    run = interrupted(config, 20)
    with pytest.raises(Exception, match=run.name):
        resume(run, [KillAt(60)])
    assert differences(train(config, [KillAt()]), resume(run, [KillAt()])) == []


PROGRAM = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.runs import train
from tests.test_exact_resume import Sigkill, eventful

train(eventful(sys.argv[1], Path(sys.argv[2])), [Sigkill(40)])
"""


class Sigkill(KillAt):
    name = "KillAt"

    def kill(self, run: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def assert_goes_on_after_the_kill(algo: str, folder: Path) -> None:
    [run] = folder.iterdir()
    assert run_record(run)["status"] == "running"
    resumed = resume(run, [KillAt()])
    assert differences(train(eventful(algo, folder), [KillAt()]), resumed) == []


def test_a_forked_process_killed_by_the_kernel(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    killed = Child(lambda: train(eventful("redq", runs), [Sigkill(40)]), tmp_path / "output.txt")
    assert killed.wait() == -signal.SIGKILL, killed.text()
    assert_goes_on_after_the_kill("redq", runs)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["redq", "iql"])
def test_a_process_killed_by_the_kernel(algo: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([sys.executable, "-c", PROGRAM, algo, str(tmp_path)], env=environment, cwd=root)
    assert killed.returncode == -signal.SIGKILL
    assert_goes_on_after_the_kill(algo, tmp_path)


# The other half of exactness: each thing saved matters. A run continued from a state with one entry changed
# must end differently.

Tensors = dict[str, dict[str, torch.Tensor]]
Perturb = Callable[[Tensors, dict[str, Any]], None]


def nudge(group: str, prefix: str) -> Perturb:
    """Add 1/64 to one number of the first tensor whose name starts so."""

    def change(tensors: Tensors, records: dict[str, Any]) -> None:
        name = next(name for name in tensors[group] if name.startswith(prefix))
        tensors[group][name].view(-1)[0] += 1 / 64

    return change


def random_bit(tensors: Tensors, records: dict[str, Any]) -> None:
    generator = torch.Generator()
    generator.set_state(tensors["random"]["updates"])
    torch.rand(1, generator=generator)
    tensors["random"]["updates"] = generator.get_state()


def put(value: Any, *path: str | int) -> Perturb:
    def change(tensors: Tensors, records: dict[str, Any]) -> None:
        place: Any = records
        for key in path[:-1]:
            place = place[key]
        assert place[path[-1]] != value
        place[path[-1]] = value

    return change


def exploration_draw(tensors: Tensors, records: dict[str, Any]) -> None:
    rng = np.random.default_rng()
    rng.bit_generator.state = records["collector"]["rng"]
    rng.random(7)
    records["collector"]["rng"] = rng.bit_generator.state


PERTURBATIONS: dict[str, Perturb] = {
    "actor": nudge("networks", "model.actor."),
    "critics": nudge("networks", "model.critics."),
    "target critics": nudge("networks", "model.target_critics."),
    "temperature": nudge("networks", "temperature.log_alpha"),
    "first moment": nudge("optimizers", "critics.exp_avg.0"),
    "second moment": nudge("optimizers", "actor.exp_avg_sq.0"),
    "step count": nudge("optimizers", "actor.step"),
    "random numbers of updates": random_bit,
    "random numbers of exploration": exploration_draw,
    "observation": nudge("collector", "obs"),
    "actions of the running episode": nudge("collector", "actions.0"),
    "seed of the running episode": put(1, "collector", "episodes", 0, "seed"),
    "return of the running episode": put(0.0, "collector", "episodes", 0, "total"),
    "number of the running episode": put(7, "collector", "episodes", 0, "number"),
    "returns so far": put([], "collector", "returns"),
    "lengths so far": put([], "collector", "lengths"),
    "steps": put(39, "collector", "steps"),
    "updates": put(0, "trainer", "counters", "updates"),
    "log cadence": put(0, "trainer", "cadence", "log"),
    "checkpoint cadence": put(0, "trainer", "cadence", "save"),
    "log rows": put(0, "trainer", "log_rows"),
    "columns of the last row": put([], "trainer", "log_columns"),
    "best return": put(1e9, "trainer", "best_return"),
    "evaluation cadence": put(0, "trainer", "callbacks", "EvaluationCallback", "last"),
    "patience": put(40, "trainer", "callbacks", "EarlyStoppingCallback", "waited"),
    "stopping": put(True, "trainer", "should_stop"),
}


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, Path]:
    """One straight run and one broken off at 40; Scripted worlds end episodes before and after the break."""
    folder = tmp_path_factory.mktemp("perturbed")
    kwargs = {"learning_rate_schedule": "constant", "warmup_steps": 0, "buffer_capacity": 500}
    config = eventful("sac", folder, env_id="Scripted-v0", num_envs=2, kwargs=kwargs)
    return train(config, [KillAt()]), interrupted(config, 40)


def continue_changed(broken: Path, copy_to: Path, change: Callable[[Checkpoint], Checkpoint]) -> TrainResult:
    """Resume a copy of the run `broken` whose last checkpoint was rewritten, hashes and all."""
    run = Path(shutil.copytree(broken, copy_to / "run"))
    checkpoint = read_checkpoint(find_checkpoint(run))
    assert checkpoint.rows is not None
    rows = replay_rows(checkpoint)
    changed = change(dataclasses.replace(checkpoint, records=copy.deepcopy(checkpoint.records)))
    write_checkpoint(
        run / "checkpoints",
        checkpoint.step,
        tensors=changed.tensors,
        records=changed.records,
        rows=RowsToSave(rows, len(rows), checkpoint.rows.added, checkpoint.rows.capacity),
    )
    return resume(run, [KillAt()])


def test_rewriting_a_checkpoint_alone_changes_nothing(two_runs: tuple[TrainResult, Path], tmp_path: Path) -> None:
    straight, broken = two_runs
    assert differences(straight, continue_changed(broken, tmp_path, lambda checkpoint: checkpoint)) == []


@pytest.mark.parametrize("what", PERTURBATIONS)
def test_each_entry_matters(what: str, two_runs: tuple[TrainResult, Path], tmp_path: Path) -> None:
    straight, broken = two_runs

    def perturb(checkpoint: Checkpoint) -> Checkpoint:
        PERTURBATIONS[what](dict(checkpoint.tensors), dict(checkpoint.records))
        return checkpoint

    assert differences(straight, continue_changed(broken, tmp_path, perturb)) != []
