"""Editors and type checkers see the settings of the classes, although these are imported lazily."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import rl_training
from rl_training.api.describing import settings_of
from rl_training.errors import ConfigError
from rl_training.experiment.registry import get_algorithm_spec
from tools import describe_classes

SOURCE = Path(__file__).parents[1] / "src"

# A line with `# error: CODE` is refused with that code; every other one is fine.
PROGRAM = """
from pathlib import Path

import gymnasium
from rl_training import BC, IQL, RLPD, SAC, TD3BC, Callback, ManagedAlgorithm, TrainConfig, TransitionDataset, load
from rl_training import TrainResult
from rl_training.api import SAC as Same

model: SAC = SAC("Pendulum-v1", learning_rate=1e-3, learning_starts=1e3, alpha="auto", hidden_sizes=[64, 64])
SAC(lambda: gymnasium.make("Pendulum-v1"), seed=None, wrappers=["ClipAction"], output_dir=Path("here"))
SAC(TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=1_000))
SAC("Pendulum-v1", learning_rate_schedule="cosine", eval_interval=100, early_stopping={"patience": 3})
RLPD("Pendulum-v1", num_critics=1e1, layer_norm=True)
IQL(None, datasets=({"dataset_kind": "npz", "dataset_path": "a.npz"},), action_low=[-1.0], action_high=(1.0,))
again: SAC = SAC.load("runs/one")
any_of_them: ManagedAlgorithm = load("runs/one")
same: Same = again
plain = SAC("Pendulum-v1", seed=1)
one: TrainResult = plain.learn(100)
one = plain.resume(200)
one = again.learn(100)
several = SAC("Pendulum-v1", seeds=[0, 1, 2])
all_of_them: list[TrainResult] = several.learn(100)
all_of_them = several.resume(200)
all_of_them = SAC("Pendulum-v1", seeds=range(3), learning_rate=1e-3).learn(100)
all_of_them = SAC("Pendulum-v1", seeds="0..9").learn(100)
one = several.learn(100)  # error: assignment
all_of_them = plain.learn(100)  # error: assignment
SAC("Pendulum-v1", seeds=3)  # error: type-var
SAC("Pendulum-v1", learning_rat=1e-3)  # error: call-arg
SAC("Pendulum-v1", learning_rate="fast")  # error: arg-type
SAC("Pendulum-v1", alpha="fixed")  # error: arg-type
SAC("Pendulum-v1", acceleration="warp")  # error: arg-type
SAC("Pendulum-v1", expectile=0.9)  # error: call-arg
SAC("Pendulum-v1", dataset_kind="npz")  # error: call-arg
BC(None, buffer_capacity=10)  # error: call-arg
SAC("Pendulum-v1", 1e-3)  # error: call-arg
TD3BC("Pendulum-v1", normalize_observations=None)  # error: arg-type
model.lern(100)  # error: attr-defined
"""


@pytest.mark.parametrize("path", describe_classes.STUBS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_stubs_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == describe_classes.STUBS[path](), (
        "run: python -m tools.describe_classes"
    )


@functools.cache
def stubs() -> dict[str, ast.ClassDef]:
    tree = ast.parse((SOURCE / "rl_training" / "api" / "__init__.pyi").read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def keys(name: str) -> list[tuple[str, str, str]]:
    """Key, type and text of a `TypedDict` in the stub, those of its bases first."""
    node = stubs()[name]
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id != "TypedDict"]
    own = [
        (key.target.id, ast.unparse(key.annotation), " ".join(ast.literal_eval(text.value).split()))
        for key, text in itertools.pairwise(node.body)
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name) and isinstance(text, ast.Expr)
    ]
    return [*(key for base in bases for key in keys(base)), *own]


def default_in(text: str, name: str) -> object:
    """The default that the text under a key ends with, for one class: `default 0.2 (DDPG: 0.1; TD3, SAC: 0.3)`."""
    found = re.search(r"; default (.+?)(?: \(([A-Z].*)\))?$", text)
    if found is None:
        return None
    others = [other.split(": ", 1) for other in (found[2] or "").split("; ") if other]
    return ast.literal_eval(next((value for names, value in others if name in names.split(", ")), found[1]))


@pytest.mark.parametrize("name", describe_classes.MANAGED)
def test_a_stub_has_the_parameters_of_the_class(name: str) -> None:
    """Read back from the file, name by name, type by type and default by default."""
    managed = describe_classes.MANAGED[name]
    fields = {key: field for key, field, _ in settings_of(get_algorithm_spec(managed.algo), {})}
    init = next(node for node in stubs()[name].body if isinstance(node, ast.FunctionDef))
    assert [argument.arg for argument in init.args.kwonlyargs] == ["seeds"]
    assert ast.unparse(init.args.kwarg.annotation) == f"Unpack[_{name}Settings]"
    known, told = inspect.signature(managed).parameters, keys(f"_{name}Settings")
    assert sorted(known) == sorted(["env", "seeds", *(key for key, _, _ in told)])
    for key, annotation, text in told:
        kept = known[key].default
        assert default_in(text, name) == getattr(kept, "type", kept), key
        assert annotation == ast.unparse(ast.parse(describe_classes.written_for(key, fields[key]))), key
    assert (inspect.getdoc(managed) or "").startswith(inspect.cleandoc(ast.get_docstring(stubs()[name]) or "?"))


@pytest.mark.parametrize("name", describe_classes.MANAGED)
def test_the_reference_shows_every_setting_with_its_default(name: str) -> None:
    """In the signature of the class, or in that of `ManagedAlgorithm` if the default is the same."""

    def defaults_in(signature: str) -> dict[str, object]:
        arguments = ast.parse(f"def made{signature}: ...").body[0].args  # type: ignore[attr-defined]
        names = [argument.arg for argument in arguments.kwonlyargs]
        return dict(zip(names, map(ast.literal_eval, arguments.kw_defaults), strict=True))

    shared, own = defaults_in(describe_classes.signature()), defaults_in(describe_classes.signature(name))
    known = inspect.signature(describe_classes.MANAGED[name]).parameters
    assert {**shared, **own} == {
        key: getattr(v.default, "type", v.default) for key, v in known.items() if key != "env"
    }
    assert own.keys() >= {"learning_rate", "gamma"}


@pytest.mark.parametrize("line", [line for line in PROGRAM.splitlines() if re.match(r"[A-Z]\w+\(", line)])
def test_the_classes_take_and_refuse_the_same(line: str) -> None:
    scope = {name: getattr(rl_training, name) for name in rl_training.__all__} | {
        "Path": Path,
        "gymnasium": gymnasium,
    }
    if "# error: " not in line:
        exec(line, scope)
        return
    with pytest.raises((ConfigError, TypeError)):
        exec(line, scope)


@pytest.mark.slow
def test_a_type_checker_checks_the_settings(tmp_path: Path) -> None:
    """mypy on a user's program; torch and its kin are not followed, which changes nothing here but the time."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\n[mypy-torch.*,numpy.*,pydantic.*,tensorboard.*]\nfollow_imports = skip\n"
    )
    known = f"--cache-dir={SOURCE.parent / '.mypy_cache' / 'program'}"  # of modules that have not changed since
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", known, "program.py"]
    found = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(SOURCE)}
    )
    errors = dict(re.findall(r"^program\.py:(\d+): error: .*\[(\S+)\]$", found.stdout, re.M))
    wanted = {
        str(number): line.partition("# error: ")[2]
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "# error: " in line
    }
    assert errors == wanted, found.stdout + found.stderr
