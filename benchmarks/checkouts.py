"""Single files of a reference's checkout as modules; imports neither torch nor this package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock, patch

# What CORL's files import and an update does not need.
_NOT_NEEDED = ("d4rl", "gym", "pyrallis", "wandb", "tqdm", "tqdm.auto")


def load_corl(checkout: Path, name: str) -> ModuleType:
    """`algorithms/offline/NAME.py`, with stand-ins for what it does not need here."""
    path = checkout / "algorithms" / "offline" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"corl_{name}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise SystemExit(f"no {path}: is {checkout} a checkout of CORL?")
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {name: MagicMock() for name in _NOT_NEEDED} | {spec.name: module}):
        spec.loader.exec_module(module)
    return module
