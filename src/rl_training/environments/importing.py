"""Modules that an `env_id` of the form `module:Id` names: Gymnasium imports them, once that is permitted.

Nothing else is imported by a name from a file. A wrapper `module:Class` is looked up among what is imported.
"""

from __future__ import annotations

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


def find_imported(place: str, key: str) -> Any:
    """What `module:Name` names in a module that is imported already; a failure is one line that blames `key`."""
    module, _, name = place.partition(":")
    if module not in sys.modules:
        raise ConfigError(
            f"{key}: the module {module!r} is not imported; name it in env_id as well, as in env_id: "
            f"{module}:Pendulum-v1",
            key=key,
        )
    found: Any = sys.modules[module]
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{key}: the module {module} has no {name!r}", key=key)
        found = getattr(found, part)
    return found


def not_importable(module: str, error: Exception, key: str) -> MissingDependencyError:
    """One line for a module that could not be imported: itself, or something that it needs."""
    cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
    missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
    if missing is None:
        return MissingDependencyError(f"{key}: the module {module} cannot be imported: {cause}", key=key)
    needs = "" if module == missing or module.startswith(f"{missing}.") else f", which {module} needs,"
    return MissingDependencyError(
        f"{key}: the module {missing!r}{needs} cannot be imported; is it importable from here ({Path.cwd()})?",
        key=key,
    )


def is_importable(thing: Any) -> bool:
    """Whether another process finds a class or function by the name of its module."""
    found: Any = sys.modules.get(getattr(thing, "__module__", None) or "")
    for part in getattr(thing, "__qualname__", "<nothing>").split("."):
        found = getattr(found, part, None)
    return found is thing
