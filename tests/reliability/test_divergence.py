"""Promise 11: non-finite values are detected before they reach a checkpoint, and the error names them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.errors import DivergedError
from rl_training.experiment.checkpointing import list_checkpoints, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from tests.reliability.faulty_worlds import FAULTY
from tests.runs import ALL, EVERY_STEP, OFFLINE, ONLINE, mostly_slow, owned, run_record, tiny, train


def assert_finite_checkpoints(run: Path) -> list[str]:
    """Check that all tensors of all checkpoints, including `best`, are finite; return the names in checkpoints/."""
    for path in [*list_checkpoints(run / "checkpoints"), *list_checkpoints(run / "best")]:
        for group, tensors in read_checkpoint(path).tensors.items():
            for name, tensor in tensors.items():
                assert torch.isfinite(tensor.double()).all(), f"{path}: {group}/{name}"
    return [path.name for path in list_checkpoints(run / "checkpoints")]


def diverged(config: TrainConfig, *callbacks: Callback) -> tuple[dict[str, Any], Path]:
    with pytest.raises(DivergedError) as caught:
        train(config, callbacks)
    assert caught.value.exit_code == 4
    [run] = Path(config.output_dir).iterdir()
    assert run_record(run)["status"] == "diverged"
    report = json.loads((run / "divergence.json").read_text())
    assert report["message"] in str(caught.value)
    names = assert_finite_checkpoints(run)
    if names:
        assert f"the last finite checkpoint is {run / 'checkpoints' / names[-1]}" in str(caught.value)
        assert report["last_checkpoint"] == str(run / "checkpoints" / names[-1])
    return report, run


class PoisonAt(Callback):
    """Puts a NaN into one parameter at a tick, as a bad update would."""

    def __init__(self, tick: int, value: float = float("nan")) -> None:
        self.tick, self.value = tick, value
        self.poisoned = ""

    def next_due(self, now: int) -> int | None:
        return self.tick if now < self.tick else None

    def on_step(self, session: Session) -> None:
        if session.clock.global_step >= self.tick and not self.poisoned:
            networks = session.learner.state_dict()["networks"]
            self.poisoned = next(name for name in networks if name.startswith(("model.actor", "model.critics")))
            networks[self.poisoned].view(-1)[0] = self.value


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "tqc", "iql", "bc", "rlpd"))
def test_a_bad_parameter_reaches_no_checkpoint(algo: str, tmp_path: Path) -> None:
    poison = PoisonAt(25, float("nan") if algo in ONLINE else float("inf"))
    config = tiny(algo, tmp_path, checkpoint_interval=10, log_interval=1_000, kwargs={"eval_interval": 20})
    report, run = diverged(config, poison)
    assert report["first_bad"].startswith(("terms.", "model.", "temperature."))
    assert report["last_checkpoint"] is not None
    assert (run / "best").is_dir()


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "redq", "tqc", "bc", "iql", "cql", "rlpd"))
def test_an_absurd_learning_rate(algo: str, tmp_path: Path) -> None:
    """Every update overshoots by 1e12; the error names the first non-finite value, and no file contains it."""
    kwargs = {"learning_rate": 1e12, "alpha": "auto"} if algo in ("sac", "tqc", "redq") else {"learning_rate": 1e12}
    kwargs |= owned(algo, EVERY_STEP)
    config = tiny(
        algo, tmp_path, kwargs=kwargs, total_timesteps=400, checkpoint_interval=10, log_interval=10, eval_episodes=0
    )
    with contextlib.suppress(DivergedError):
        train(config)
    [run] = tmp_path.iterdir()
    assert_finite_checkpoints(run)
    # A squashed policy trained by likelihood only stays finite for any weights.
    if algo != "bc":
        assert run_record(run)["status"] == "diverged"
        assert json.loads((run / "divergence.json").read_text())["first_bad"]


@pytest.mark.parametrize("how", ["obs", "reward"])
@pytest.mark.parametrize("algo", mostly_slow([*ONLINE, "rlpd"], "dqn", "sac", "rlpd"))
def test_an_environment_that_emits_nan(algo: str, how: str, tmp_path: Path) -> None:
    kwargs = {"dataset_size": 20} if algo == "rlpd" else {}
    config = tiny(
        algo,
        tmp_path,
        env_id=FAULTY,
        env_kwargs={"at": 47, "how": how, "discrete": algo == "dqn"},
        eval_episodes=0,
        kwargs=kwargs,
    )
    report, run = diverged(config)
    assert report["first_bad"] == f"{'observation' if how == 'obs' else 'reward'} of environment 0"
    assert "at step 46; fix the environment" in report["message"]
    [newest] = list_checkpoints(run / "checkpoints")[-1:]
    assert newest.name == f"step_{(60 if algo == 'rlpd' else 30):09d}"


@pytest.mark.parametrize("how", ["obs", "reward"])
@pytest.mark.parametrize("algo", OFFLINE[:2])
def test_nan_in_an_evaluation(algo: str, how: str, tmp_path: Path) -> None:
    """The 130th step of the evaluation fails; the 100 steps of data come from another instance."""
    config = tiny(
        algo,
        tmp_path,
        env_id=FAULTY,
        env_kwargs={"at": 130, "how": how},
        eval_episodes=2,
        eval_max_steps=None,
        kwargs={"eval_interval": 10},
    )
    report, _ = diverged(config)
    assert "evaluation environment" in report["first_bad"]


def test_nan_during_data_collection_leaves_no_run_folder(tmp_path: Path) -> None:
    config = tiny("iql", tmp_path, env_id=FAULTY, env_kwargs={"at": 30, "how": "reward"})
    with pytest.raises(
        DivergedError, match=r"Faulty-v0 returned a non-finite observation or reward \(seed \d+, step 5\)"
    ):
        train(config)
    assert list(tmp_path.iterdir()) == []


def test_on_the_command_line(tmp_path: Path) -> None:
    values = tiny("td3", tmp_path / "runs", env_id=FAULTY, env_kwargs={"at": 40, "how": "obs"}).to_dict()
    del values["allow_import"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(main, ["--quiet", "train", "--config", str(tmp_path / "run.yaml")])
    assert result.exit_code == 4, result.stderr
    [line] = result.stderr.splitlines()
    assert line.startswith("error: environment 0 returned a non-finite observation at step 39")
    assert "the last finite checkpoint is" in line
