"""Commands that must answer quickly do so without importing torch; each case runs in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rl_training
from tests.bare import Bare
from tests.reliability.processes import Child, command

SOURCE = Path(__file__).parents[1] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}
HEAVY = ("torch", "gymnasium", "numpy")

# The command line as it is called; afterwards, which heavy modules it imported.
COMMAND = f"""
import sys
from rl_training.__main__ import main
try:
    main()
finally:
    print("imported", [name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def python(program: str, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, cwd=cwd, timeout=60)


@pytest.fixture(scope="module")
def bare() -> Iterator[Bare]:
    """Has imported nothing."""
    made = Bare(ENVIRONMENT)
    yield made
    made.close()


# What commands import, their help and their checks of a configuration included; none of it is heavy.
SHARED = f"""
import contextlib, io
from rl_training.__main__ import main
for words in ("--help", "configs", "train --config nowhere", "status nowhere"):
    sys.argv[1:] = words.split()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            main()
assert not any(name in sys.modules for name in {(*HEAVY, "matplotlib", "scipy")})
"""


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--help"], 0, "Usage: rl-training"),
        (["-h"], 0, "Usage: rl-training"),
        (["--version"], 0, "rl-training "),
        (["train", "-h"], 0, "Usage: rl-training train"),
        (["dataset", "collect", "--help"], 0, "Usage: rl-training dataset collect"),
        (["trian"], 2, "'train'"),
        (["train", "--confg", "sac/pendulum"], 2, "--config"),
        (["dataset", "shwo"], 2, "'show'"),
        (["train", "--config", "sac/pendulun"], 2, "did you mean 'sac/pendulum'"),
        (["train", "--config", "wrong.yaml"], 2, "did you mean 'sac'"),
        (["train", "--algo", "sacc", "--env", "Pendulum-v1", "--steps", "1e3"], 2, "did you mean 'sac'"),
        (["configs"], 0, "sac/pendulum"),
        (["sweep", "--help"], 0, "Usage: rl-training sweep"),
        (["study", "pack", "--help"], 0, "Usage: rl-training study pack"),
        (["status", "nowhere"], 2, "nowhere: no such folder"),
        (["work", "nowhere"], 2, "nowhere: no such folder"),
        (["report", "--help"], 0, "Usage: rl-training report"),
        (["plot", ".", "-o", "curve.gif"], 2, "a figure is an .svg"),
    ],
)
def test_answers_without_torch(commanded: Bare, tmp_path: Path, args: list[str], code: int, words: str) -> None:
    (tmp_path / "wrong.yaml").write_text("algo: sacc\nenv_id: Pendulum-v1\ntotal_timesteps: 100\n")
    done = commanded.run(COMMAND, *args, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in (done.stderr if code else done.stdout)
    *error, imported = done.stderr.splitlines()
    assert imported == "imported []"
    assert len(error) == (1 if code else 0)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rl-training tr", "train"),
        ("rl-training train --algo re", "redq"),
        ("rl-training train --config sac/p", "sac/pendulum"),
    ],
)
def test_the_shell_completes(commanded: Bare, words: str, offered: str) -> None:
    completing = {
        "_RL_TRAINING_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = commanded.run(COMMAND, environment=completing)
    assert offered in done.stdout.split()
    assert done.stderr.strip() == "imported []"


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = f"import sys, rl_training, rl_training.api; print([m for m in {HEAVY} if m in sys.modules])"
    assert python(program).stdout.strip() == "[]"


def test_lines_of_progress_do_not_import_rich(bare: Bare) -> None:
    program = """
import io, sys
from rl_training.display.progress import Progress
progress = Progress(100, stream=io.StringIO(), opening=["first"])
progress.write(50, 0.0, {"train/loss": 1.0})
progress.close()
print([name for name in ("rich", "torch", "numpy") if name in sys.modules])
"""
    assert bare.run(program).stdout.strip() == "[]"


# What a report imports of what is slow: nothing to be named, numpy to read, its extra to be made; torch never.
REPORT = ("torch", "gymnasium", "numpy", "scipy", "matplotlib", "jinja2")


@pytest.mark.parametrize(
    ("program", "imported"),
    [
        ("import rl_training; from rl_training import report", []),
        ("from rl_training.report.reading import read_runs", ["numpy"]),
        ("from rl_training.report import read", ["numpy", "scipy", "matplotlib", "jinja2"]),
    ],
)
def test_reports_import_what_they_need(bare: Bare, program: str, imported: list[str]) -> None:
    done = bare.run(f"{program}; import sys; print([m for m in {REPORT} if m in sys.modules])")
    assert done.stdout.strip() == str(imported), done.stderr


@pytest.mark.parametrize("module", ["matplotlib", "scipy", "jinja2"])
def test_reports_without_their_extra_name_what_to_install(tmp_path: Path, module: str) -> None:
    def without_it() -> None:
        os.chdir(tmp_path)
        for name in list(sys.modules):
            if name.partition(".")[0] == module:
                sys.modules[name] = None  # type: ignore[assignment]
            elif name.startswith(("rl_training.report", "rl_training.console.reports")):
                del sys.modules[name]
        sys.modules[module] = None  # type: ignore[assignment]
        vars(rl_training).pop("report", None)
        command("report", tmp_path, "-o", "report.html")()

    child = Child(without_it, tmp_path / "output.txt")
    assert child.wait() == 2, child.text()
    [error] = child.text().splitlines()
    assert error.startswith("error: reports need matplotlib, scipy and jinja2")
    assert error.endswith("pip install matplotlib scipy jinja2")


def test_names_are_there_when_they_are_used(loaded: Bare) -> None:
    program = (
        "import sys, rl_training; from rl_training import SAC; from rl_training.api import SAC as same;"
        "assert SAC is same is rl_training.SAC is rl_training.api.algorithms.SAC;"
        "assert rl_training.experiment.config.TrainConfig is rl_training.TrainConfig;"
        "assert set(rl_training.__all__) <= set(dir(rl_training));"
        "assert set(rl_training.api.__all__) <= set(dir(rl_training.api));"
        "assert not hasattr(rl_training, 'SACC') and not hasattr(rl_training.api, 'SACC');"
        "exec('from rl_training import *'); assert TransitionDataset and TrainResult and Callback"
    )
    done = loaded.run(program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_an_algorithm_imports_its_own_trainer_alone() -> None:
    program = (
        "import sys; from rl_training.experiment.registry import get_algorithm_spec; get_algorithm_spec('sac');"
        "print(sorted(m for m in sys.modules if m.endswith('_trainer')))"
    )
    assert python(program).stdout.strip() == "['rl_training.runtime.sac_trainer']"


@pytest.mark.parametrize("module", ["typer", "pydantic", "torch"])
def test_an_interrupt_while_importing_has_no_traceback(bare: Bare, module: str) -> None:
    """The first import of `module` simulates the moment at which Ctrl-C is pressed."""
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from rl_training.__main__ import main\n"
        "main()\n"
    )
    done = bare.run(program, "train", "--config", "sac/pendulum")
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
