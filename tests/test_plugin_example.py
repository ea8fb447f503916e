"""The example of a package with an algorithm, installed and used through the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.bare import Bare

pytestmark = pytest.mark.slow

PLUGIN = Path(__file__).resolve().parent.parent / "examples" / "plugin"
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
COMMAND = "import sys; sys.path.append(sys.argv.pop(1)); from rl_training.__main__ import main; main()"
SMALL = ("learning_starts=20", "batch_size=8", "hidden_sizes=[8]", "eval_episodes=1", "checkpoint_interval=30")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pip would install; no network is needed, because torch brings setuptools."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(PLUGIN, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", BUILD, str(folder)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(folder / built.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def commands(loaded: Bare, installed: Path, folder: Path) -> Callable[..., str]:
    """Commands in `folder` that succeed, each in a process of its own."""

    def command(*words: str) -> str:
        done = loaded.run(COMMAND, str(installed), *words, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return command


def test_an_installed_package_has_every_command(loaded: Bare, installed: Path, tmp_path: Path) -> None:
    command = commands(loaded, installed, tmp_path)
    [row] = [one for one in json.loads(command("algos", "--json")) if one["name"] == "blended_sac"]
    assert row | {"title": "SAC with a blended target", "regime": "online", "actions": "continuous"} == row
    changes = [word for change in (*SMALL, "pessimism=0.25") for word in ("--set", change)]
    command("train", "--algo", "blended-sac", "--env", "Pendulum-v1", "--steps", "60", "--seeds", "0,1", *changes)
    run, other = sorted((tmp_path / "runs").iterdir())
    command("resume", str(run), "--set", "total_timesteps=80")
    for one in (run, other):
        assert json.loads((one / "run.json").read_text())["exact_resume"] is True
        config = json.loads((one / "checkpoints" / "step_000000080" / "config.json").read_text())
        assert (config["algo"], config["plugin"]) == ("blended_sac", "blended_sac:BlendedSAC")
        assert config["algo_kwargs"]["pessimism"] == 0.25
    assert len(json.loads(command("evaluate", str(run), "--episodes", "1", "--json"))["returns"]) == 1
    command("export", str(run), "-o", "policy.npz")
    assert np.load(tmp_path / "policy.npz", allow_pickle=False).files
    command("report", "runs", "-o", "report.html")
    assert "blended_sac" in (tmp_path / "report.html").read_text()
    done = loaded.run(COMMAND, "nowhere", "resume", str(run), cwd=tmp_path)
    [error] = done.stderr.splitlines()
    assert (done.returncode, "'blended_sac' is not installed; it is 'blended_sac:BlendedSAC'" in error) == (2, True)


def test_a_network_of_the_package_has_every_command(loaded: Bare, installed: Path, tmp_path: Path) -> None:
    command, allowed = commands(loaded, installed, tmp_path), "--allow-import"
    own = ("network=residual_network:Residual", "network_kwargs.blocks=2")
    changes = [word for change in (*SMALL, *own) for word in ("--set", change)]
    train = ("train", "--algo", "sac", "--env", "Pendulum-v1", "--steps", "60", "--seeds", "0,1", *changes)
    command(*train, allowed)
    run, other = sorted((tmp_path / "runs").iterdir())
    command("resume", str(run), "--set", "total_timesteps=80", allowed)
    for one in (run, other):
        assert json.loads((one / "run.json").read_text())["exact_resume"] is True
        config = json.loads((one / "checkpoints" / "step_000000080" / "config.json").read_text())
        assert (
            config["algo_kwargs"] | {"network": own[0][8:], "network_kwargs": {"blocks": 2}}
            == config["algo_kwargs"]
        )
    assert len(json.loads(command("evaluate", str(run), "--episodes", "1", "--json", allowed))["returns"]) == 1
    for name in ("policy.npz", "policy.onnx"):
        command("export", str(run), "-o", name, allowed)
        assert (tmp_path / name).stat().st_size
    command("report", "runs", "-o", "report.html")
    assert "residual_network:Residual" in (tmp_path / "report.html").read_text()
    for words in (("resume", str(run)), ("evaluate", str(run)), train):
        done = loaded.run(COMMAND, str(installed), *words, cwd=tmp_path)
        assert done.returncode == 2
        assert "'residual_network:Residual' would import the module 'residual_network'; allow" in done.stderr
    done = loaded.run(COMMAND, "nowhere", "resume", str(run), allowed, cwd=tmp_path)
    assert done.returncode == 2
    assert "the module 'residual_network' cannot be imported; is it importable from here" in done.stderr
