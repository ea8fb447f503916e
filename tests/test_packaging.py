"""The built package: metadata, contents, and use in an otherwise empty environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_string
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

import rl_training

pytestmark = pytest.mark.pages

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "rl_training"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = {"mujoco", "box2d", "offline", "report", "video", "tune", "ray", "export", "wandb", "dev"}
# Files that the code reads in addition to its modules; an installed package would fail without them.
ASSETS = {
    "rl_training/py.typed",
    "rl_training/__init__.pyi",
    "rl_training/api/__init__.pyi",
    "rl_training/assets/configs/redq/pendulum.yaml",
    "rl_training/assets/gallery/sac/step_000030000/manifest.json",
    "rl_training/assets/gallery/sac/step_000030000/networks.safetensors",
    "rl_training/assets/history/defaults-0.1.json",
    "rl_training/assets/report/coverage.json",
    "rl_training/assets/report/page.css",
    "rl_training/assets/report/page.html",
    "rl_training/export/policy_runner.py",
}


def sources(target: Path) -> Path:
    """A copy of all that a build reads, so that nothing is left in the checkout."""
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "build", "dist")
    for name in ("src", "tests", "benchmarks", "docs", "examples", "tools"):
        shutil.copytree(ROOT / name, target / name, ignore=left_out)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, target / path.name)
    return target


def build(hook: str, source: Path, target: Path) -> Path:
    """What one hook of the build backend makes; no network is needed, because torch brings setuptools."""
    program = f"import sys; from setuptools.build_meta import {hook}; print({hook}(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    return target / done.stdout.splitlines()[-1]


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel; its RECORD lists them in any order and is not compared."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")}


def test_the_metadata_is_what_pip_will_read(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "src" / "rl_training").mkdir()
    for name in ("__init__.py", "version.py"):
        shutil.copy(PACKAGE / name, tmp_path / "src" / "rl_training")
    folder = build("prepare_metadata_for_build_wheel", tmp_path, tmp_path)
    told = message_from_string((folder / "METADATA").read_text(encoding="utf-8"))
    assert told["Version"] == rl_training.__version__
    assert (told["Requires-Python"], told["License-Expression"]) == (">=3.11", "MIT")
    assert told.get_all("License-File") == ["LICENSE"]
    assert set(told.get_all("Provides-Extra")) >= EXTRAS
    assert "rl-training = rl_training.__main__:main" in (folder / "entry_points.txt").read_text(encoding="utf-8")


def test_the_project_says_who_may_use_it_and_invents_no_address() -> None:
    pythons = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: 3." in name}
    assert min(pythons, key=lambda version: int(version.partition(".")[2])) == "3.11"
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert not any(name.startswith("License ::") for name in PROJECT["classifiers"])  # the expression says it
    assert [set(author) for author in PROJECT["authors"]] == [{"name"}]
    assert "urls" not in PROJECT
    assert set(PROJECT["optional-dependencies"]) >= EXTRAS


def test_every_file_that_is_no_module_is_declared() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["rl_training"]
    found = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    names = [path.relative_to(PACKAGE).as_posix() for path in found if path.suffix != ".py"]
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []
    assert {path.removeprefix("rl_training/") for path in ASSETS} <= {*names, "export/policy_runner.py"}


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_citation_and_changelog_name_the_installed_version() -> None:
    """Citation and changelog name the version that is installed, and the same day."""
    version = rl_training.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest is not None
    assert citation["version"] == version
    assert newest[1] in (f"{version} ({citation['date-released']})", "Unreleased")
    assert citation["authors"] == [{"name": "rl_training developers"}]
    assert citation["license"] == PROJECT["license"]


def test_the_release_workflow_calls_what_exists_and_publishes_tags_only() -> None:
    workflow = yaml.load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"), yaml.BaseLoader)
    jobs = workflow["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    made = {command.removeprefix("make ") for command in commands if command.startswith("make ")}
    assert {"test", "test-pages", "dist"} == made <= targets
    [tagged] = [command for command in commands if not command.startswith("make ")]
    checked = ["bash", "-c", tagged]
    for tag, code in ((f"v{rl_training.__version__}", 0), ("v0.0.1", 1)):
        done = subprocess.run(checked, cwd=ROOT, env=os.environ | {"GITHUB_REF_NAME": tag}, capture_output=True)
        assert done.returncode == code
    assert len(set(jobs["test"]["strategy"]["matrix"]["capability"])) == 2
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert jobs["publish"]["if"] == "startsWith(github.ref, 'refs/tags/')"
    assert set(jobs["publish"]["needs"]) == {"test", "build"}


class Empty:
    """An environment that has nothing, in a folder that has nothing: no checkout, no `make`."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=True)
        self.bin, self.work = folder / "venv" / "bin", folder / "work"
        self.work.mkdir()
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        self.environment = {key: value for key, value in os.environ.items() if key not in hidden}

    def __call__(self, program: str, *words: str | Path) -> str:
        done = subprocess.run(
            [self.bin / program, *words], cwd=self.work, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def install(self, *words: str) -> None:
        quietly = ("--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt")
        self("python", "-m", "pip", "install", *quietly, *words)


def journey(empty: Empty) -> None:
    """Everything between the first command and a policy that has left."""
    assert empty("rl-training", "--version").strip() == f"rl-training {rl_training.__version__}"
    assert "redq/pendulum" in empty("rl-training", "configs")
    small = ("learning_starts=20", "batch_size=8", "hidden_sizes=[8]", "eval_episodes=1", "checkpoint_interval=30")
    changes = [word for change in small for word in ("--set", change)]
    empty("rl-training", "train", "--algo", "sac", "--env", "Pendulum-v1", "--steps", "60", *changes)
    [run] = (empty.work / "runs").iterdir()
    empty("rl-training", "resume", run, "--set", "total_timesteps=80")
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["exact_resume"] is True
    told = json.loads(empty("rl-training", "evaluate", run, "--episodes", "1", "--json"))
    assert len(told["returns"]) == 1
    empty("rl-training", "export", run, "-o", "out/policy.npz")
    use = "from policy_runner import Policy; print(Policy('policy.npz')([1.0, 0.0, 0.0]).shape)"
    assert empty("python", "-c", f"import os, sys; os.chdir('out'); sys.path.insert(0, '.'); {use}") == "(1,)\n"
    empty("rl-training", "report", "runs", "-o", "report.html")
    assert "</html>" in (empty.work / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_wheel_and_sdist_work_in_an_empty_environment(tmp_path: Path) -> None:
    """Needs what pip needs. An old record is read as it was meant, too: the history is inside."""
    (made := tmp_path / "made").mkdir()
    (again := tmp_path / "again").mkdir()
    source = sources(tmp_path / "source")
    wheel, sdist = build("build_wheel", source, made), build("build_sdist", source, made)
    inside = set(contents(wheel))
    assert inside >= ASSETS
    assert {name.partition("/")[0] for name in inside} == {
        "rl_training",
        f"rl_training-{rl_training.__version__}.dist-info",
    }
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    assert not {"tests", "benchmarks", "tools"} & {path.name for path in unpacked.iterdir()}
    assert contents(build("build_wheel", unpacked, again)) == contents(wheel)

    empty = Empty(tmp_path)
    empty.install("torch==2.13.0")
    empty.install(f"{wheel}[report]")
    old = "from rl_training.experiment.compat import _defaults_0_1 as old; print(old()['sac']['learning_rate'])"
    assert float(empty("python", "-c", old)) > 0
    place = Path(empty("python", "-c", "import rl_training; print(rl_training.__file__)").strip())
    assert place.is_relative_to(empty.bin.parent)
    journey(empty)
    empty.install("--force-reinstall", "--no-deps", str(sdist))
    assert empty("rl-training", "--version").strip() == f"rl-training {rl_training.__version__}"
