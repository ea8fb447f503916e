"""Import single files of a reference's checkout as modules; imports neither torch nor this package."""

import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

# Modules that CORL's files import but updates do not need.
_NOT_NEEDED = ("d4rl", "gym", "pyrallis", "wandb", "tqdm", "tqdm.auto")


def load_corl(checkout: Path, name: str, stand_ins: Mapping[str, Any] | None = None) -> ModuleType:
    """Import `algorithms/offline/NAME.py`, with stand-ins for modules it does not need here; `stand_ins` replaces
    the default ones."""
    path = checkout / "algorithms" / "offline" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"corl_{name}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise SystemExit(f"no {path}: is {checkout} a checkout of CORL?")
    module = importlib.util.module_from_spec(spec)
    modules = {name: MagicMock() for name in _NOT_NEEDED} | dict(stand_ins or {})
    with patch.dict(sys.modules, modules | {spec.name: module}):
        spec.loader.exec_module(module)
    return module


def commit_of(checkout: Path) -> str:
    """Commit of a checkout, from git or else from a file COMMIT in the checkout."""
    if (checkout / ".git").exists():
        asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    file = checkout / "COMMIT"
    return file.read_text(encoding="utf-8").strip()[:12] if file.is_file() else "unknown"
