"""Environment processes: what they import, from where they can be started, and that they never outlive a run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.environments.pool import EnvPool
from rl_training.errors import EnvironmentFailure
from rl_training.experiment.config import TrainConfig
from tests.bare import Bare
from tests.reliability.processes import Ended
from tests.runs import mostly_slow

SOURCE = Path(__file__).parents[1] / "src"
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"},
    "PYTHONPATH": str(SOURCE),
}

# Its observation encodes which of these modules its process has imported, whether it imported the main script, and
# how many threads it may use.
HEAVY = ("torch", "pydantic", "yaml", "typer", "rl_training.experiment", "rl_training.runtime")
REPORTER = f"""
import os, sys, time
import gymnasium as gym
import numpy as np

class Reporter(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, ({len(HEAVY) + 2},), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, pause=0.0):
        self.pause = pause

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.report(), {{}}

    def step(self, action):
        time.sleep(self.pause)
        return self.report(), 0.0, False, False, {{}}

    def report(self):
        modules = [name in sys.modules for name in {HEAVY}]
        main = hasattr(sys.modules["__main__"], "ask")
        return np.array([*modules, main, os.environ.get("OMP_NUM_THREADS", 0)], np.float32)

class Same(gym.Wrapper):
    pass
"""
SLIM = [0.0] * len(HEAVY) + [0.0, 1.0]
REGISTERED = REPORTER + '\ngym.register("Reporter-v0", "reporter:Reporter")\n'

# `ask` makes a pool and prints the first observation of each environment.
ASK = """
import json, sys
from rl_training.environments.pool import EnvPool
from rl_training.experiment.config import TrainConfig

def ask(**fields):
    pool = EnvPool(TrainConfig(algo="sac", total_timesteps=1, environments="processes", **fields))
    print(json.dumps([pool.reset(i).tolist() for i in range(len(pool.envs))]), flush=True)
    return pool
"""
PENDULUM = 'ask(env_id="Pendulum-v1", seed=3, num_envs=2)\n'


def python(
    folder: Path, *args: str, text: str | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A Python in `folder`; `text` is what it reads from its standard input."""
    command = [sys.executable, *args]
    variables = ENVIRONMENT | (environment or {})
    return subprocess.run(
        command, env=variables, cwd=folder, input=text, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def asking() -> Iterator[Bare]:
    """Has imported what `ask` needs."""
    made = Bare(ENVIRONMENT, ASK)
    yield made
    made.close()


def script(asking: Bare, folder: Path, program: str, environment: Mapping[str, str] | None = None) -> Ended:
    """`python program.py` in `folder`."""
    (folder / "program.py").write_text(program)
    as_script = f"__file__, sys.path[0] = {str(folder / 'program.py')!r}, {str(folder)!r}\n"
    return asking.run(as_script + program, cwd=folder, environment=environment)


def answer(done: subprocess.CompletedProcess[str] | Ended) -> Any:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def local(**fields: Any) -> list[list[float]]:
    pool = EnvPool(TrainConfig(algo="sac", total_timesteps=1, **fields))
    try:
        return [pool.reset(i).tolist() for i in range(len(pool.envs))]
    finally:
        pool.close()


@pytest.mark.parametrize(
    "how", mostly_slow(["script", "module", "command", "input", "notebook"], "script", "notebook")
)
def test_environment_ids_need_no_main_guard(how: str, tmp_path: Path) -> None:
    """The main program is not imported again, which would start environments recursively."""
    program = ASK + PENDULUM
    (tmp_path / "program.py").write_text(program)
    notebook = f"import __main__; assert not hasattr(__main__, '__file__'); exec({program!r}, vars(__main__))"
    done = {
        "script": lambda: python(tmp_path, "program.py"),
        "module": lambda: python(tmp_path, "-m", "program"),
        "command": lambda: python(tmp_path, "-c", program),
        "input": lambda: python(tmp_path, "-", text=program),
        "notebook": lambda: python(tmp_path, "-i", "-c", notebook, text=""),
    }[how]()
    if how == "notebook":  # the prompt at which its input ends
        done.stderr = done.stderr.removeprefix(">>> ").strip()
    assert answer(done) == local(env_id="Pendulum-v1", seed=3, num_envs=2)


def test_a_process_imports_only_what_its_environment_needs(asking: Bare, tmp_path: Path) -> None:
    (tmp_path / "reporter.py").write_text(REGISTERED)
    program = ASK + 'ask(env_id="reporter:Reporter-v0", allow_import=True)\n'
    assert answer(script(asking, tmp_path, program)) == [SLIM]
    [[*imported, threads]] = answer(script(asking, tmp_path, program, {"OMP_NUM_THREADS": "3"}))
    assert (sum(imported), threads) == (0.0, 3.0)  # what the user has set is not touched


def test_registrations_of_the_program_are_available_in_processes(asking: Bare, tmp_path: Path) -> None:
    """By its name only: the program is not imported, so no guard is needed."""
    (tmp_path / "reporter.py").write_text(REPORTER)
    program = (
        "import gymnasium, reporter\n"
        'gymnasium.register("Own-v0", "reporter:Reporter")\n'
        'gymnasium.register("Own-v1", reporter.Reporter)\n'
        'for name in ("Own-v0", "Own-v1", "Own"):\n'
        '    ask(env_id=name, wrappers=["reporter:Same"], allow_import=True)\n'
    )
    done = script(asking, tmp_path, ASK + program)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == [[SLIM]] * 3, done.stderr


def test_a_registration_that_differs_from_gymnasium_s(asking: Bare, tmp_path: Path) -> None:
    """`Pendulum-v1` with another gravity: only the second observation shows the difference."""
    program = (
        "import gymnasium, numpy as np\n"
        'gymnasium.registry["Pendulum-v1"].kwargs = {"g": 1.0}\n'
        'pool = ask(env_id="Pendulum-v1", seed=3)\n'
        "print(json.dumps(pool.step(np.zeros((1, 1), np.float32)).obs[0].tolist()))\n"
    )
    second = json.loads(script(asking, tmp_path, ASK + program).stdout.splitlines()[1])
    pool = EnvPool(TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=1, seed=3, env_kwargs={"g": 1.0}))
    pool.reset(0)
    assert second == pool.step(np.zeros((1, 1), np.float32)).obs[0].tolist()


MAIN = "import gymnasium\n" + REPORTER
FUNCTIONS = {
    "class": 'gymnasium.register("Own-v0", Reporter)\n',
    "lambda": 'gymnasium.register("Own-v0", lambda **_: Reporter())\n',
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", mostly_slow(FUNCTIONS, "class"))
def test_an_environment_of_the_main_script(kind: str, tmp_path: Path) -> None:
    head = ASK + MAIN + FUNCTIONS[kind]
    (tmp_path / "guarded.py").write_text(
        head + 'if __name__ == "__main__":\n    ask(env_id="Own-v0", num_envs=2)\n'
    )
    found = answer(python(tmp_path, "guarded.py"))
    assert [row[-2] for row in found] == [1.0, 1.0]
    (tmp_path / "unguarded.py").write_text(head + 'ask(env_id="Own-v0", num_envs=2)\n')
    done = python(tmp_path, "unguarded.py")
    assert done.returncode == 1
    # Not by its place: two children may still be writing their own tracebacks to the same stream.
    [failure] = re.findall(r"rl_training\.errors\.EnvironmentFailure: (environment 0 failed .*)", done.stderr)
    assert 'needs `if __name__ == "__main__":` around its training call' in failure
    done = python(tmp_path, "-", text=head + 'ask(env_id="Own-v0")\n')
    assert done.stderr.splitlines()[-1].endswith(
        "environments: Own-v0 is defined in an interactive session, which another process cannot import; "
        "put it into a module, or set environments to local"
    )


@pytest.mark.parametrize(
    "key", ["environments=processes", pytest.param("env_processes=true", marks=pytest.mark.slow)]
)
def test_on_the_command_line_with_a_module_of_the_current_folder(key: str, loaded: Bare, tmp_path: Path) -> None:
    (tmp_path / "reporter.py").write_text(REGISTERED)
    words = ["train", "--algo", "sac", "--env", "reporter:Reporter-v0", "--steps", "12", "--set", key]
    for setting in ("learning_starts=10", "batch_size=4", "hidden_sizes=[4]", "eval_episodes=0"):
        words += ["--set", setting]
    # As a console script: the current folder is not on the path.
    start = "import sys; sys.path[:] = [p for p in sys.path if p]; from rl_training.__main__ import main; main()"
    refused = loaded.run(start, *words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--allow-import" in refused.stderr
    done = loaded.run(start, *words, "--allow-import", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [run] = (tmp_path / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


def running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(running, pids)):
        if time.monotonic() > deadline:
            for pid in filter(running, pids):
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.01)
    return True


HOLD = """
import numpy as np
pool = ask(env_id="reporter:Reporter-v0", allow_import=True, num_envs=2, env_kwargs={"pause": 0.5})
print(json.dumps([env._process.pid for env in pool.envs]), flush=True)
"""


@pytest.mark.parametrize(
    "ending",
    [
        "input()\n",  # at rest
        "for env in pool.envs: env.send(np.zeros(1, np.float32))\ninput()\n",  # in the middle of a step
    ],
)
def test_processes_end_when_their_parent_is_killed(ending: str, tmp_path: Path) -> None:
    (tmp_path / "reporter.py").write_text(REGISTERED)
    parent = subprocess.Popen(
        [sys.executable, "-c", ASK + HOLD + ending],
        env=ENVIRONMENT,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "errors").open("w"),
        text=True,
    )
    assert parent.stdout is not None
    parent.stdout.readline()
    children = json.loads(parent.stdout.readline())
    assert all(map(running, children))
    parent.kill()
    parent.communicate()
    assert gone(children)
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.parametrize("ending", ["", "del pool\n", "1 / 0\n", "for env in pool.envs: env.send(np.zeros(1))\n"])
def test_processes_end_when_their_parent_exits_without_closing_them(
    ending: str, asking: Bare, tmp_path: Path
) -> None:
    (tmp_path / "reporter.py").write_text(REGISTERED)
    strict = "import warnings\nwarnings.simplefilter('error')\nsys.warnoptions.append('error')\n"
    done = asking.run(strict + ASK + HOLD + ending, cwd=tmp_path)
    assert ("ZeroDivisionError" in done.stderr) == (ending == "1 / 0\n")
    assert "Warning" not in done.stderr
    assert gone(json.loads(done.stdout.splitlines()[1]))


def test_a_fork_that_exits_does_not_end_the_processes(asking: Bare, tmp_path: Path) -> None:
    (tmp_path / "reporter.py").write_text(REGISTERED)
    fork = "import os\nif os.fork() == 0: sys.exit()\nos.wait()\nprint(json.dumps(pool.reset(0).tolist()))\n"
    done = asking.run(ASK + HOLD + fork, cwd=tmp_path)
    assert len(json.loads(done.stdout.splitlines()[2])) == len(SLIM), done.stderr


def test_standard_streams_that_are_closed(asking: Bare, tmp_path: Path) -> None:
    """Their file descriptors are reused by the next files, which must not be mistaken for them."""
    program = f"import os\nfor number in (0, 2): os.close(number)\n{ASK}{PENDULUM}"
    done = asking.run(program, cwd=tmp_path)
    assert json.loads(done.stdout) == local(env_id="Pendulum-v1", seed=3, num_envs=2)


def test_an_environment_that_cannot_be_constructed_in_a_process() -> None:
    fields: dict[str, Any] = {"algo": "sac", "total_timesteps": 1, "environments": "processes"}
    pool = EnvPool(TrainConfig(env_id="Pendulun-v1", **fields))
    try:
        for _ in range(2):
            with pytest.raises(
                EnvironmentFailure,
                match=r"^environment 0 failed \(seed \d+, step 0\): ChildError: ConfigError: env_id: unknown "
                r"environment 'Pendulun-v1'; did you mean 'Pendulum-v1'\?$",
            ):
                pool.reset(0)
    finally:
        pool.close()
