"""Promise 5: the source has no unsafe loader, and no fallback to one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rl_training

MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "subprocess", "runpy", "code", "codeop"}
CALLS = {"eval", "exec", "compile", "__import__", "recover_environment"}
ATTRIBUTES = {
    ("torch", "load"),
    ("ForkingPickler", "loads"),
    ("yaml", "load"),
    ("yaml", "load_all"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
    ("os", "system"),
    ("os", "popen"),
    ("os", "execv"),
    ("os", "spawnv"),
    ("minari", "load_dataset"),
    ("importlib", "import_module"),
}
SOURCES = sorted(Path(rl_training.__file__).parent.rglob("*.py"))
# Optional packages are imported by names written in the source, never read from a file.
NAMED_IMPORTS = {"files.py", "doctor.py"}
# An environment process is this interpreter with a program of this package. It unpickles and imports only data from
# its parent's memory, through a private pipe, and nothing from a file. The parent unpickles no data from such a
# process, because it runs the environment's code.
OWN_PROCESS = {
    ("processes.py", "import subprocess"),
    ("child.py", "import pickle"),
    ("child.py", "recv()"),
    ("player.py", "recv()"),
    ("recipe.py", "import pickle"),
    ("recipe.py", "importlib.import_module"),
}
# Whether a renderer works is tried by this interpreter with a program in the source; ffmpeg gets pixels, arguments
# that are written in the source, and the name of the file to make.
DRAWING = {("filming.py", "import subprocess"), ("video.py", "import subprocess")}


def offences(tree: ast.AST, file: str) -> list[str]:
    """Constructs in a source that could execute what they read."""
    found = []
    for node in ast.walk(tree):
        where = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            found += [f"{where}: import {a.name}" for a in node.names if a.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.append(f"{where}: from {node.module}")
        elif isinstance(node, ast.Name) and node.id in CALLS:
            found.append(f"{where}: {node.id}")
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if (owner, node.attr) in ATTRIBUTES or node.attr == "recover_environment":
                found.append(f"{where}: {owner}.{node.attr}")
        elif isinstance(node, ast.Call) and ast.unparse(node).endswith(".recv()"):
            found.append(f"{where}: recv()")  # of multiprocessing's connections: it unpickles
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(f"{where}: allow_pickle={ast.unparse(node.value)}")
    return found


def test_the_source_has_no_way_to_run_what_it_reads() -> None:
    assert len(SOURCES) > 50
    found = [text for path in SOURCES for text in offences(ast.parse(path.read_text()), path.name)]
    found = [text for text in found if not ("import_module" in text and text.split(":")[0] in NAMED_IMPORTS)]
    assert [text for text in found if (text.split(":")[0], text.split(": ")[1]) not in OWN_PROCESS | DRAWING] == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from subprocess import run",
        "torch.load(path)",
        "ForkingPickler.loads(data)",
        "self._connection.recv()",
        "yaml.load(text, yaml.Loader)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "eval(text)",
        "exec(text)",
        "os.system(text)",
        "dataset.recover_environment()",
    ],
)
def test_the_check_of_the_source_can_fail(line: str) -> None:
    assert offences(ast.parse(line), "x.py") != []
