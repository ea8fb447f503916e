"""Weights & Biases, the real package in offline mode: which rows are sent and when, each exactly once."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment import loggers as loggers_module
from rl_training.experiment import wandb_logger
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import Row, RunFacts
from rl_training.experiment.wandb_logger import WandbLogger
from tests.runs import KillAt, Killed, differences, fingerprint, logged, resume, run_record, tiny, train

ROOT = Path(__file__).parents[1]
OFFLINE = {"WANDB_MODE": "offline", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
_BLOCK = 2**15
Steps = list[int]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """For W&B's own process, which is there only where a test has a process of its own."""
    monkeypatch.setattr(wandb_logger, "_SECONDS_TO_WRITE", 0.0)


def records(path: Path) -> Iterator[Any]:
    """W&B's own records of one offline file: LevelDB's log format after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        if (left := _BLOCK - place % _BLOCK) < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield Record.FromString(whole)
            whole = b""


def sent(run: Path) -> list[dict[str, float]]:
    """Every row that was sent, in the order of the files, by the names of the log."""
    found = []
    for path in sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                items = {
                    item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item
                }
                found.append({name: value for name, value in items.items() if name != "_runtime"})
    return found


def steps(run: Path) -> Steps:
    return [int(row["_step"]) for row in sent(run)]


def ids(run: Path) -> set[str]:
    found = set()
    for path in run.glob("wandb/offline-run-*/*.wandb"):
        found |= {r.run.run_id for r in records(path) if r.WhichOneof("record_type") == "run"}
    return found


def config_for(folder: Path, **fields: Any) -> TrainConfig:
    every = {
        "log_interval": 5,
        "checkpoint_interval": 20,
        "total_timesteps": 60,
        "tags": ["mine"],
        "eval_max_steps": None,
    }
    return tiny("bc", folder, **every | {"loggers": ["wandb"]} | fields)


PROGRAM = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from rl_training.runs.callbacks import Callback
from tests.runs import resume, train
from tests.test_wandb_logger import config_for, wait_until_sent

class Kill(Callback):
    name = "KillAt"
    def next_due(self, now):
        return now + 1
    def on_step(self, session):
        if session.clock.ticks == int(sys.argv[2]):
            wait_until_sent(session.run.path, int(sys.argv[3]))
            os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
runs = list(folder.glob("*")) if folder.exists() else []
if runs:
    print(sys.exit, sys.excepthook is sys.__excepthook__)
    resume(runs[0], [Kill()])
else:
    train(config_for(folder), [Kill()])
print(sys.exit, sys.excepthook is sys.__excepthook__)
"""


def wait_until_sent(run: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    while json.loads((run / "wandb.json").read_text()).get("sent") != step:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def process(folder: Path, kill_at: int, after: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Train or resume in a separate process, killed at a tick after the row of the tick `after` was sent."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(kill_at), str(after)],
        env=os.environ | OFFLINE | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_rows_covered_by_checkpoints_each_once_through_kills(tmp_path: Path) -> None:
    """Killed at 33 and 53 of 60: rows of 25 and 30 were logged twice, and sent once."""
    folder = tmp_path / "runs"
    first = process(folder, 33, 15)
    assert first.returncode == -signal.SIGKILL, first.stderr
    [run] = folder.iterdir()
    assert [int(row["step"]) for row in logged(run)] == [5, 10, 15, 20, 25, 30]
    assert steps(run) == [5, 10, 15]  # the row of 20 might yet be completed
    second = process(folder, 53, 35)
    assert second.returncode == -signal.SIGKILL, second.stderr
    assert steps(run) == [5, 10, 15, 20, 25, 30, 35]
    last = process(folder, -1, 0)
    assert last.returncode == 0, last.stderr
    assert steps(run) == list(range(5, 61, 5))
    assert len(ids(run)) == 1
    rows = {int(row["step"]): row for row in logged(run)}
    for row in sent(run):
        step = int(row.pop("_step"))
        row.pop("_timestamp")
        row.pop("time/fps")
        assert row == {name: float(value) for name, value in rows[step].items() if name not in ("step", "schema")}
    assert {"eval/mean_reward", "eval/std_reward", "train/n_updates"} <= rows[60].keys()
    assert json.loads((run / "wandb.json").read_text())["sent"] == 60
    assert last.stdout.splitlines()[0] == last.stdout.splitlines()[1]  # sys.exit and the hook are as they were
    assert "wandb" not in last.stdout + last.stderr


@pytest.mark.slow
def test_without_a_key_there_is_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    done = process(
        tmp_path / "runs", -1, 0, WANDB_MODE="online", HOME=str(home), WANDB_API_KEY="", NETRC=str(home / "n")
    )
    assert done.returncode == 0, done.stderr
    [line] = done.stderr.splitlines()
    assert line == (
        "warning: wandb is switched off for the rest of the run: RuntimeError: no API key; run `wandb login` once, "
        "or set WANDB_MODE=offline"
    )
    [run] = (tmp_path / "runs").iterdir()
    assert run_record(run)["status"] == "finished"


class FakeRun:
    """The used part of a W&B run."""

    def __init__(self, offline: bool = True, step: int = 0) -> None:
        self.offline, self.step = offline, step
        self.rows: list[int] = []
        self.fail: BaseException | None = None
        self.exit_code: int | None = None

    def log(self, values: dict[str, float], step: int, commit: bool) -> None:
        if self.fail is not None and len(self.rows) == 2:
            raise self.fail
        self.rows.append(step)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def opened(folder: Path, fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> WandbLogger:
    monkeypatch.setattr(wandb_logger, "_init", lambda run, number: fake)
    logger = WandbLogger()
    logger.open(RunFacts(folder, folder.name, {}, None))
    return logger


def send(logger: WandbLogger, numbers: Iterable[int]) -> None:
    for step in numbers:
        logger.write(Row(step, 1.0, {"loss": 1.0}))
    logger.flush()


@pytest.mark.parametrize(
    ("offline", "expected", "again"),
    [(True, 0, []), (False, 13, [13, 14, 15]), (False, 16, []), (False, 3, [11, 12, 13, 14, 15])],
)
def test_a_kill_while_sending(
    offline: bool, expected: int, again: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Online, W&B reports the next expected step; offline nothing is sent twice."""
    fake = FakeRun(offline)
    logger = opened(tmp_path, fake, monkeypatch)
    send(logger, range(1, 3))
    fake.fail = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        send(logger, range(11, 16))
    reopened = FakeRun(offline, step=expected)
    logger = opened(tmp_path, reopened, monkeypatch)
    send(logger, [1, 2, *range(11, 16)])
    assert reopened.rows == again
    send(logger, range(16, 18))
    assert reopened.rows == [*again, 16, 17]
    logger.close("failed")
    assert reopened.exit_code == 1


def test_rows_that_never_reached_the_server_are_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B's own process was killed with ours: the record says sent, the server knows better."""
    send(opened(tmp_path, FakeRun(offline=False), monkeypatch), range(1, 6))
    again = FakeRun(offline=False, step=3)
    send(opened(tmp_path, again, monkeypatch), range(1, 6))
    assert again.rows == [3, 4, 5]


def test_kills_before_and_after_sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send(opened(tmp_path, FakeRun(), monkeypatch), range(1, 4))
    before = json.loads((tmp_path / "wandb.json").read_text())
    again = FakeRun()
    send(opened(tmp_path, again, monkeypatch), range(1, 6))
    assert again.rows == [4, 5]
    assert json.loads((tmp_path / "wandb.json").read_text()) == before | {"sent": 5}


def test_a_death_in_the_middle_is_remembered_until_it_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while sending, and once more before anything else was sent."""
    fake = FakeRun()
    logger = opened(tmp_path, fake, monkeypatch)
    fake.fail = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        send(logger, range(1, 6))
    opened(tmp_path, FakeRun(), monkeypatch)
    again = FakeRun()
    send(opened(tmp_path, again, monkeypatch), range(1, 8))
    assert again.rows == [6, 7]


@pytest.mark.parametrize("content", ["{", "[]", '{"id": 7}', '{"id": "a", "sent": "all"}'])
def test_a_damaged_record_sends_nothing(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.json").write_text(content)
    with pytest.raises(ValueError, match=r"damaged|Expecting"):
        opened(tmp_path, FakeRun(), monkeypatch)
    assert (tmp_path / "wandb.json").read_text() == content


def wandb_that(act: Any) -> Any:
    """A package of that name, online and with a key."""
    settings = SimpleNamespace(mode="online", project=None, run_name=None)
    return SimpleNamespace(
        Settings=lambda **_: None,
        setup=lambda **_: SimpleNamespace(settings=settings),
        login=lambda **_: True,
        init=act,
    )


def fails(**_: Any) -> Any:
    raise OSError("no route to host")


def hangs(**_: Any) -> Any:
    time.sleep(1_000)


@pytest.mark.parametrize("act", [fails, hangs])
def test_a_failing_wandb_does_not_stop_training(
    act: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    healthy = train(config_for(tmp_path, loggers=[]))
    monkeypatch.setitem(sys.modules, "wandb", wandb_that(act))
    monkeypatch.setattr(loggers_module, "_is_installed", lambda package: True)
    monkeypatch.setattr(WandbLogger, "timeout", 0.3)
    result = train(config_for(tmp_path))
    assert set(differences(healthy, result)) == {"config/loggers"}
    [line] = [line for line in capfd.readouterr().err.splitlines() if "wandb" in line]
    assert line.startswith("warning: wandb is switched off for the rest of the run: ")
    assert line.endswith("OSError: no route to host" if act is fails else "it did not finish within 0.3 s")


def test_the_arguments_of_wandb_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    fake = FakeRun()

    def init(**options: Any) -> FakeRun:
        told.update(options)
        return fake

    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb_that(init))
    monkeypatch.setattr(loggers_module, "_is_installed", lambda package: True)
    result = train(config_for(tmp_path))
    assert (told["project"], told["name"], told["tags"]) == ("rl-training", result.run_dir.name, ["mine"])
    assert (told["dir"], told["resume"], told["reinit"]) == (str(result.run_dir), "allow", "create_new")
    assert told["config"]["algo_kwargs"]["batch_size"] == 16
    assert told["id"] == json.loads((result.run_dir / "wandb.json").read_text())["id"]
    assert (fake.rows, fake.exit_code) == (list(range(5, 61, 5)), 0)


def test_a_run_that_had_no_logger_sends_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed) as killed:
        train(config_for(tmp_path, loggers=[]), [KillAt(40)])
    run, fake = Path(killed.value.args[0]), FakeRun()
    monkeypatch.setitem(sys.modules, "wandb", wandb_that(lambda **_: fake))
    monkeypatch.setattr(loggers_module, "_is_installed", lambda package: True)
    resume(run, [KillAt()], overrides=["loggers=[wandb]"])
    assert fake.rows == list(range(5, 61, 5))


def test_an_extra_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers_module, "_PACKAGED", {"no_package": "m:C"})
    (tmp_path / "no_package").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"^loggers: no_package is not installed; pip install no_package$"):
        train(config_for(tmp_path / "runs", loggers=["no_package"]))
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_nothing_imports_wandb_that_does_not_use_it(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
import rl_training.cli
from tests.runs import tiny, train
train(tiny("sac", Path(sys.argv[1]), total_timesteps=30))
print([name for name in sys.modules if name.partition(".")[0] == "wandb"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=os.environ | OFFLINE,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_sending_changes_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", wandb_that(lambda **_: FakeRun()))
    monkeypatch.setattr(loggers_module, "_is_installed", lambda package: True)
    one, other = train(config_for(tmp_path)), train(config_for(tmp_path, loggers=[]))
    before, after = fingerprint(one.checkpoint_path), fingerprint(other.checkpoint_path)
    assert {name for name in before if before[name] != after[name]} == {"config/loggers"}
