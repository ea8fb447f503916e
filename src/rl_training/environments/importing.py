"""Importing what a configuration names, once that is permitted: the current folder is looked in as well."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, MissingDependencyError


@contextmanager
def current_folder() -> Iterator[None]:
    """`sys.path` with the current folder, which a console script's does not have."""
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def import_module(module: str, key: str) -> Any:
    """A module by its name; every failure is one line that blames the setting `key`."""
    with current_folder():
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise _not_importable(module, error, key) from error
        except Exception as error:
            raise ConfigError(
                f"{key}: importing {module} failed: {type(error).__name__}: {error}", key=key
            ) from error


def import_object(place: str, key: str) -> Any:
    """What `module:Name` names."""
    module, _, name = place.partition(":")
    found = import_module(module, key)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{key}: the module {module} has no {name!r}", key=key)
        found = getattr(found, part)
    return found


def _not_importable(module: str, error: ImportError, key: str) -> MissingDependencyError:
    """One line for a module that cannot be imported: itself, or something that it needs."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None:
        return MissingDependencyError(f"{key}: the module {module} cannot be imported: {error}", key=key)
    needs = "" if missing == module.split(".")[0] or missing == module else f", which {module} needs,"
    return MissingDependencyError(
        f"{key}: the module {missing!r}{needs} cannot be imported; is it importable from here ({Path.cwd()})?",
        key=key,
    )
