"""Workers: every trial runs once, despite kills, stops and failures; a worker that wakes up late writes nothing."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.environments import making
from rl_training.environments.making import spaces_of
from rl_training.errors import ConfigError, DiskFullError, DivergedError, EnvironmentFailure
from rl_training.experience.collecting import collect_random
from rl_training.experiment import files
from rl_training.experiment.checkpointing import find_checkpoint, list_checkpoints, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import lock_run
from rl_training.runs import fleet
from rl_training.runs.spec import RunSpec
from rl_training.runs.state import config_of
from rl_training.runtime.resume import train_in_folders
from rl_training.study import Study, claims, worker
from rl_training.study.claims import Owner, read_claim
from rl_training.study.plan import read_plan
from rl_training.study.planning import has_begun
from rl_training.study.trials import Failure, note_failure, read_failure
from rl_training.study.worker import work
from tests.reliability.processes import Child, wait_for
from tests.runs import QUIET, checkpoint_names, fingerprint, interrupted, run_record, tiny
from tests.studies import contents, differing, homes, study_in, unlike

# Long enough to be killed on its way.
LONGER = {"total_timesteps": 600, "checkpoint_interval": 50, "eval_interval": 100, "log_interval": 50}
SAVING = LONGER | {"total_timesteps": 160}  # for those that are ended when they save


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted study of two longer runs, one after another."""
    study = study_in(tmp_path_factory.mktemp("longer"), set=LONGER, population="off")
    study.run()
    return study.folder


@pytest.fixture(scope="module")
def longer_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one longer run."""
    study = study_in(tmp_path_factory.mktemp("alone"), set=LONGER, seeds=[0])
    study.run()
    return study.folder


def sent_when_saving(folder: Path, number: int, count: int = 1) -> None:
    """Work, and send this process a signal when checkpoint number `count` is there, a best policy's included."""
    left = count

    def pull(point: str) -> None:
        nonlocal left
        left -= point.startswith("after rename step_")
        if left == 0:
            files.failpoint = files._no_failure
            os.kill(os.getpid(), number)

    files.failpoint = pull
    work(folder, say=print)


def is_stopped(child: Child) -> bool:
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def planned(folder: Path, **fields: object) -> Path:
    study = study_in(folder, **fields)
    study.plan()
    return study.folder


def test_a_study_is_run_once_and_grows(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    assert study.run().counts == {"done": 2, "running": 0, "waiting": 0, "failed": 0}
    before = contents(study.folder / "runs")
    told: list[str] = []
    study.run(say=told.append)
    assert contents(study.folder / "runs") == before
    assert told == [f"tiny: 2 trials in {study.folder}"]
    larger = study_in(tmp_path, seeds=[0, 1, 2], grid={"gamma": [0.5, 0.99]})
    assert larger.run().counts["done"] == 6
    after = contents(study.folder / "runs")
    assert {name: digest for name, digest in after.items() if name in before} == before


def test_a_trial_is_an_ordinary_run(tmp_path: Path) -> None:
    study = study_in(tmp_path, seeds=[4])
    study.run()
    (home,) = homes(study.folder)
    record = run_record(home)
    assert (record["status"], record["seed"], record["exact_resume"]) == ("finished", 4, True)
    assert (home / "config.resolved.yaml").is_file()


@pytest.mark.slow
def test_groups_of_several_give_the_same_results(tmp_path: Path) -> None:
    study_in(tmp_path / "a", population="off", seeds=[0, 1, 2]).run()
    study_in(tmp_path / "b", population=2, seeds=[0, 1, 2]).run()
    assert len(read_plan(tmp_path / "b" / "tiny").groups) == 2
    assert unlike(tmp_path / "a" / "tiny", tmp_path / "b" / "tiny") == []


def test_two_workers_share_the_trials(tmp_path: Path) -> None:
    folder = planned(tmp_path / "a", seeds=[0, 1, 2, 3])
    children = [Child(lambda: work(folder), tmp_path / f"output-{i}") for i in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    owners = [read_claim(folder, group.name) for group in read_plan(folder).groups]
    assert all(claim is not None and claim.generation == 1 for claim in owners)
    study_in(tmp_path / "b", seeds=[0, 1, 2, 3]).run()
    assert differing(folder, tmp_path / "b" / "tiny") == []


def killed_after(folder: Path, points: int, seconds: float) -> None:
    """Work, and kill this process `seconds` after it has reached `points` writes, fsyncs and renames."""
    left = points

    def count(point: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    files.failpoint = count
    work(folder)


def test_kill_9_at_any_moment_and_the_results_are_the_same(longer: Path, tmp_path: Path) -> None:
    folder = planned(tmp_path / "a", set=LONGER)
    generator = random.Random(3)
    for attempt in range(4):  # no more than a group may have without getting further
        points, seconds = generator.randrange(1, 60), generator.uniform(0.0, 0.02)
        child = Child(partial(killed_after, folder, points, seconds), tmp_path / f"output-{attempt}")
        assert child.wait() == -signal.SIGKILL, child.text()
    assert Study(folder).run().counts["done"] == 2
    assert differing(folder, longer) == []


def test_what_was_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    """Its folder has a log and even a best policy, and no checkpoint."""
    settings = SAVING | {"checkpoint_interval": 10_000, "eval_interval": 20}
    folder = planned(tmp_path / "a", set=settings, seeds=[0])
    (home,) = homes(folder)
    child = Child(lambda: sent_when_saving(folder, signal.SIGKILL), tmp_path / "output")
    assert child.wait() == -signal.SIGKILL, child.text()
    assert checkpoint_names(home)
    assert all(name.startswith("best/") for name in checkpoint_names(home))
    assert Study(folder).run().counts["done"] == 1
    assert not list(home.glob("metrics.before-*"))
    study_in(tmp_path / "b", set=settings, seeds=[0]).run()
    assert differing(folder, tmp_path / "b" / "tiny") == []


def test_a_folder_without_a_record_starts_again(tmp_path: Path) -> None:
    folder = planned(tmp_path, seeds=[0])
    (home,) = homes(folder)
    (home / "checkpoints").mkdir(parents=True)
    (home / "config.yaml").write_text("algo: dqn\n")
    assert Study(folder).run().counts["done"] == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_releases_the_claim(tmp_path: Path, signum: int) -> None:
    folder = planned(tmp_path, set=SAVING, seeds=[0])
    (home,) = homes(folder)
    child = Child(lambda: sent_when_saving(folder, signum, 2), tmp_path / "output")
    assert child.wait() == 128 + signum, child.text()
    claim = read_claim(folder, "g00000")
    assert claim is not None
    assert claim.released
    assert f"sweep {folder}\n" in child.text()
    assert run_record(home)["status"] == "interrupted"
    assert Study(folder).status().counts["waiting"] == 1
    assert Study(folder).run().counts["done"] == 1
    assert run_record(home)["exact_resume"] is True


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_an_environment_is_made_is_no_failure(
    tmp_path: Path, signum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: Any) -> Any:
        os.kill(os.getpid(), signum)
        return original(*arguments)

    original = making._make
    folder = planned(tmp_path, seeds=[0])
    with monkeypatch.context() as patched:
        patched.setattr(making, "_make", stopped)
        child = Child(lambda: work(folder, say=print), tmp_path / "output")
    assert child.wait() == 128 + signum, child.text()
    assert Study(folder).status().counts["waiting"] == 1
    assert Study(folder).run().counts["done"] == 1


def test_a_worker_that_stalls_is_replaced_and_writes_nothing_when_it_wakes(
    longer_alone: Path, tmp_path: Path
) -> None:
    folder = planned(tmp_path / "a", set=LONGER, seeds=[0], claim_timeout=1.0)
    (home,) = homes(folder)
    said: list[str] = []
    asleep = Child(lambda: sent_when_saving(folder, signal.SIGSTOP), tmp_path / "output")
    wait_for(lambda: is_stopped(asleep))
    assert run_record(home)["status"] == "running"
    try:
        assert Study(folder).run(say=said.append).counts["done"] == 1
        claim = read_claim(folder, "g00000")
        assert claim is not None
        assert (claim.generation, claim.owner and claim.owner.pid) == (2, os.getpid())
        before = contents(home)
    finally:
        asleep.send(signal.SIGCONT)
    assert asleep.wait() == 0, asleep.text()
    assert "lost: g00000 was given to another worker" in asleep.text()
    after = contents(home)
    events = {name for name in after if name.startswith("tb/")}  # TensorBoard has a file for each process
    assert {n: d for n, d in after.items() if n not in events} == {
        n: d for n, d in before.items() if n not in events
    }
    assert run_record(home)["exact_resume"] is True
    assert differing(folder, longer_alone) == []


@pytest.mark.slow
def test_a_worker_that_wakes_up_after_its_successor_started_writes_nothing(
    longer_alone: Path, tmp_path: Path
) -> None:
    """The first worker continues while the second still trains in the same folder."""
    folder = planned(tmp_path / "a", set=LONGER, seeds=[0], claim_timeout=0.8)
    (home,) = homes(folder)
    asleep = Child(lambda: sent_when_saving(folder, signal.SIGSTOP), tmp_path / "output-1")
    wait_for(lambda: is_stopped(asleep))
    time.sleep(1.0)
    successor = Child(lambda: work(folder, say=print), tmp_path / "output-2")
    wait_for(lambda: (claim := read_claim(folder, "g00000")) is not None and claim.generation == 2)
    wait_for(lambda: run_record(home)["pid"] == successor.pid)
    asleep.send(signal.SIGCONT)
    assert (asleep.wait(), successor.wait()) == (0, 0), asleep.text() + successor.text()
    assert "lost:" in asleep.text()
    assert "done:" in successor.text()
    assert differing(folder, longer_alone) == []


def test_a_failure_does_not_stop_the_others_and_only_some_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: dict[int, Exception] = {
        0: EnvironmentFailure("the environment died"),
        1: DivergedError("the loss is NaN"),
        2: ValueError("two\nlines"),
    }
    tried: list[int | None] = []

    def training(spec: RunSpec, *others: Any) -> Any:
        tried.append(spec.config.seed)
        if (error := errors.get(spec.config.seed or 0)) is not None:
            raise error
        return (yield from original(spec, *others))

    original = fleet.training
    monkeypatch.setattr(fleet, "training", training)
    study = study_in(tmp_path, seeds=[0, 1, 2, 3])
    status = study.run()
    assert status.counts == {"done": 1, "running": 0, "waiting": 0, "failed": 3}
    assert [one.failure for one in status.failed] == [
        Failure(1, "the environment died"),
        Failure(4, "the loss is NaN"),
        Failure(1, "ValueError: two lines"),
    ]
    study.run()
    assert tried == [0, 1, 2, 3]
    errors.clear()
    assert study.run(retry_failed=True).counts == {"done": 3, "running": 0, "waiting": 0, "failed": 1}
    assert tried == [0, 1, 2, 3, 0, 2]


def test_one_member_that_fails_does_not_stop_its_population(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def training(spec: RunSpec, *others: Any) -> Any:
        going = original(spec, *others)
        if spec.config.seed == 0:
            yield next(going)
            raise SystemExit(3)
        return (yield from going)

    original = fleet.training
    monkeypatch.setattr(fleet, "training", training)
    folder = planned(tmp_path / "a", population=2)
    assert work(folder).failed == 1
    assert Study(folder).status().counts == {"done": 1, "running": 0, "waiting": 0, "failed": 1}
    monkeypatch.undo()
    alone = study_in(tmp_path / "b", seeds=[1])
    assert alone.run().counts["done"] == 1
    prints = [fingerprint(find_checkpoint(home)) for home in (homes(folder)[1], homes(alone.folder)[0])]
    assert {key for key in prints[0] if prints[0][key] != prints[1][key]} == {"config/output_dir"}


def test_the_trials_of_a_group_are_trained_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int | None]] = []

    def noted(members: Sequence[tuple[TrainConfig, Path]], *others: Any, **options: Any) -> list[Exception | None]:
        seen.append([config.seed for config, _ in members])
        return original(members, *others, **options)

    original = worker.train_in_folders
    monkeypatch.setattr(worker, "train_in_folders", noted)
    work(planned(tmp_path, population=2, seeds=[0, 1, 2]))
    assert seen == [[0, 1], [2]]


def test_an_interrupted_trial_continues_where_the_study_now_runs(tmp_path: Path) -> None:
    """As after `sweep --device`: the settings of where and how a run is computed are those of the plan."""
    config = tiny("sac", tmp_path, total_timesteps=60, checkpoint_interval=20, eval_episodes=0)
    home = tmp_path / "moved"
    interrupted(config, 20, options=replace(QUIET, folder=home))
    now = config.replace(device="auto", keep_checkpoints=1, environments="local")
    with pytest.MonkeyPatch.context() as without_gpu:
        without_gpu.setattr(torch.cuda, "is_available", lambda: False)
        assert train_in_folders([(now, home)], QUIET, begun=Path.exists) == [None]
    continued = config_of(read_checkpoint(find_checkpoint(home)))
    assert (config.device, continued.device) == ("cpu", "auto")
    assert (continued.keep_checkpoints, len(list_checkpoints(home / "checkpoints"))) == (1, 1)
    assert run_record(home)["exact_resume"]


@pytest.mark.parametrize("mixed", [False, True])
def test_an_interrupted_trial_continues_on_data_that_were_moved(mixed: bool, tmp_path: Path) -> None:
    """The settings that the run decided when it started stay."""
    config = tiny("rlpd", tmp_path, total_timesteps=60, checkpoint_interval=20, eval_episodes=0)
    rows = collect_random(config, spaces_of(config), 200, seed=0)

    def on(folder: str) -> TrainConfig:
        file = {"dataset_path": str(tmp_path / folder / "x.npz")}
        kept = {key: value for key, value in config.algo_kwargs.items() if key != "learning_starts"}
        named = {"dataset_kind": None, "datasets": [file]} if mixed else {"dataset_kind": "npz"} | file
        return config.replace(algo_kwargs=kept | named)

    rows.save(tmp_path / "here" / "x.npz")
    homes = [tmp_path / "done", tmp_path / "moved"]
    train_in_folders([(on("here"), homes[0])], QUIET, begun=Path.exists)
    interrupted(on("here"), 20, options=replace(QUIET, folder=homes[1]))
    (tmp_path / "here").rename(tmp_path / "there")
    assert train_in_folders([(on("there"), homes[1])], QUIET, begun=Path.exists) == [None]
    assert run_record(homes[1])["exact_resume"]
    whole, moved = (fingerprint(find_checkpoint(home)) for home in homes)
    assert {key: text.replace("/there/", "/here/") for key, text in moved.items()} == whole


@pytest.mark.parametrize(
    ("evidence", "most", "message"),
    [(True, 5, "it ended 5 workers in a row"), (False, 25, "25 workers in a row died in it")],
    ids=["out of memory", "unknown"],
)
def test_a_trial_that_ends_its_workers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: bool, most: int, message: str
) -> None:
    folder = planned(tmp_path, seeds=[0, 1])
    original = fleet.training

    def training(spec: RunSpec, *others: Any) -> Any:
        if spec.config.seed == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return (yield from original(spec, *others))

    monkeypatch.setattr(fleet, "training", training)
    kills = [0]
    monkeypatch.setattr(claims, "out_of_memory_kills", lambda: kills[0])
    for attempt in range(most):
        assert Child(lambda: work(folder), tmp_path / f"output-{attempt}").wait() == -signal.SIGKILL
        kills[0] += evidence
    assert work(folder).failed == 1
    status = Study(folder).status()
    assert status.counts["done"] == 1
    (failed,) = status.failed
    assert failed.failure is not None
    assert message in failed.failure.message


def test_a_trial_is_not_given_up_because_its_workers_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers are killed twenty times shortly after the claim, before the first checkpoint."""
    folder = planned(tmp_path, seeds=[0])
    with monkeypatch.context() as patched:
        patched.setattr(worker, "train_in_folders", lambda *_, **options: os._exit(9))
        for attempt in range(20):
            assert Child(lambda: work(folder), tmp_path / f"output-{attempt}").wait() == 9
    assert Study(folder).run().counts["done"] == 1


def test_a_run_that_is_locked_by_another_process_is_skipped(tmp_path: Path) -> None:
    folder = planned(tmp_path, seeds=[0, 1], set=SAVING)
    first, _ = homes(folder)
    child = Child(lambda: sent_when_saving(folder, signal.SIGKILL), tmp_path / "output")
    assert child.wait() == -signal.SIGKILL, child.text()
    assert checkpoint_names(first)
    said: list[str] = []
    with lock_run(first):
        work(folder, say=said.append)
    assert any(line.startswith("left: ") and "in use by process" in line for line in said)
    status = Study(folder).status()
    assert (status.counts["done"], status.counts["waiting"], status.counts["failed"]) == (1, 1, 0)
    assert Study(folder).run().counts["done"] == 2


def test_a_failure_that_cannot_be_read_is_still_a_failure(tmp_path: Path) -> None:
    folder = planned(tmp_path, seeds=[0])
    (trial,) = read_plan(folder).trials
    note_failure(folder, trial, Failure(1, "x"))
    (folder / "failures" / f"{trial.name}.json").write_text("{")
    failure = read_failure(folder, trial)
    assert failure is not None
    assert "cannot be read" in failure.message


def test_failures_of_every_trial_are_kept_while_the_study_is_the_same(tmp_path: Path) -> None:
    """None of them has left a run folder, and trying again would give the same."""
    study = study_in(tmp_path, seeds=[0], set={"env_id": "NoSuchEnvironment-v0"})
    (failed,) = study.run().failed
    assert failed.failure is not None
    assert failed.failure.code == 2
    before = contents(study.folder)
    assert len(study.run(retry_failed=True).failed) == 1
    assert contents(study.folder) == before
    assert study_in(tmp_path, seeds=[0]).run().counts["done"] == 1


def test_a_disk_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    folder = planned(tmp_path)
    (folder / "claims").touch()
    with pytest.raises(ConfigError, match="the study cannot continue: Not a directory"):
        work(folder)


def test_a_group_that_was_killed_half_way_resumes_together(tmp_path: Path) -> None:
    settings = LONGER | {"total_timesteps": 300}
    folder = planned(tmp_path / "a", set=settings, population=2)
    _, second = homes(folder)
    child = Child(lambda: work(folder), tmp_path / "output")
    wait_for(lambda: checkpoint_names(second))
    child.kill()
    assert [run_record(home)["status"] for home in homes(folder)] == ["running", "running"]
    assert Study(folder).run().counts["done"] == 2
    study_in(tmp_path / "b", set=settings, population=2).run()
    assert differing(folder, tmp_path / "b" / "tiny") == []


@pytest.mark.slow
def test_tasks_of_different_algorithms_and_data(tmp_path: Path) -> None:
    data = {"dataset_kind": "random", "dataset_size": 60}
    small = {"device": "cpu", "eval_episodes": 1, "total_timesteps": 40, "batch_size": 8, "hidden_sizes": [8]}
    tasks = [
        {"config": "bc/pendulum", "set": data},
        {"config": "iql/pendulum", "set": data | {"expectile": 0.8}},
        {"config": "sac/pendulum", "set": {"learning_starts": 10, "buffer_capacity": 100, "train_frequency": 1}},
    ]
    study = Study(
        {"name": "three", "tasks": tasks, "set": small, "seeds": [0, 1], "threads": 1}, output_dir=tmp_path
    )
    status = study.run()
    assert status.counts["done"] == 6, [one.failure for one in status.failed]
    assert {record["algo"] for record in study.frame()} == {"bc", "iql", "sac"}
    assert study.best(task="iql/pendulum").trials[0]["algo"] == "iql"


def held_elsewhere(folder: Path, age: float) -> Path:
    """The first group claimed by a worker of another machine, which last touched it `age` seconds ago."""
    place = folder / "claims" / "g00000" / "1.json"
    place.parent.mkdir(parents=True)
    owner = asdict(Owner("elsewhere", "elsewhere 1", 1, "1", "token"))
    place.write_bytes(files.encode_json({"owner": owner, "released": False, "deaths": 0, "progress": 0}))
    then = time.time() - age
    os.utime(place, (then, then))
    return place


def test_a_claim_dated_in_the_future_holds_its_trial_no_longer_than_any(tmp_path: Path) -> None:
    folder = planned(tmp_path, seeds=[0], claim_timeout=0.5)
    held_elsewhere(folder, -365 * 86_400.0)
    assert Study(folder).status().counts["running"] == 0
    said: list[str] = []
    worked = work(folder, say=said.append)
    assert "its claim is dated in the future" in said[0]
    assert not worked.others_hold
    assert Study(folder).status().counts["done"] == 1


def test_claims_are_read_by_the_clock_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is two minutes ahead of the disk; another one works."""
    folder = planned(tmp_path, seeds=[0])
    held_elsewhere(folder, 1.0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 120.0)
    status = Study(folder).status()
    assert status.counts["running"] == 1
    heartbeat = status.trials[0].heartbeat
    assert heartbeat is not None
    assert heartbeat < 60.0
    assert has_begun(folder, read_plan(folder))
    assert work(folder).others_hold


def test_a_full_disk_is_not_a_permanent_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = [True]

    def training(spec: RunSpec, *others: Any) -> Any:
        if full:
            if spec.config.seed == 0:
                raise DiskFullError("free some disk space and resume")
            try:
                raise OSError(errno.ENOSPC, "No space left on device")
            except OSError:
                raise ConfigError("runs/x: cannot be made") from None
        return (yield from original(spec, *others))

    original = fleet.training
    monkeypatch.setattr(fleet, "training", training)
    made = study_in(tmp_path)
    status = made.run()
    assert [one.failure and one.failure.code for one in status.failed] == [5, 5]
    full.clear()
    assert made.run().counts["done"] == 2


def test_a_disk_that_stays_full_ends_a_run_with_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        if name.startswith("before write") and "safetensors" in name:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "failpoint", fail)
    made = study_in(tmp_path, seeds=[0])
    (failed,) = made.run().failed
    assert failed.failure is not None
    assert failed.failure.code == 5
    assert "free some disk space" in failed.failure.message
    monkeypatch.undo()
    assert made.run().counts["done"] == 1


def test_work_ends_with_1_if_trials_of_the_study_have_failed(tmp_path: Path) -> None:
    folder = planned(tmp_path, seeds=[0])
    (trial,) = read_plan(folder).trials
    note_failure(folder, trial, Failure(1, "another worker saw it"))
    assert CliRunner().invoke(main, ["--quiet", "work", str(folder)]).exit_code == 1
    told = CliRunner().invoke(main, ["status", str(folder)]).stderr
    assert "delete its file in the study's folder failures/; --retry failed retries the others" in told


@pytest.mark.parametrize("workers", [0, 10**9])
def test_invalid_numbers_of_workers_are_refused(tmp_path: Path, workers: int) -> None:
    with pytest.raises(ConfigError, match="workers must be >= 1 and <= 10000"):
        study_in(tmp_path).run(workers)
