"""Importing the module of an `env_id` (`module:Id`), a wrapper or an algorithm (`module:Class`).

The caller checks that `allow_import` permits it.

No other module is imported by a name from a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import load_env_creator

from rl_training.errors import ConfigError, MissingDependencyError, cause_of


@contextmanager
def current_folder() -> Iterator[None]:
    """Add the current folder to `sys.path`, which a console script lacks."""
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def find_named(place: str, key: str) -> Any:
    """Import the object `module:Name`; raises a `ConfigError` with `key` if this fails."""
    module, _, name = place.partition(":")
    try:
        with current_folder():
            load_env_creator(f"{module}:__name__")
    except ImportError as error:
        raise not_importable(module, error, key) from error
    except Exception as error:
        raise ConfigError(f"{key}: the module {module} cannot be imported: {cause_of(error)}", key=key) from error
    found: Any = sys.modules[module]
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{key}: the module {module} has no {name!r}", key=key)
        found = getattr(found, part)
    return found


def find_optional(place: str) -> Any:
    """The object `module:Name`; None if it cannot be imported, which making the environment reports."""
    try:
        return find_named(place, "env_id")
    except ConfigError:
        return None


def not_importable(module: str, error: Exception, key: str) -> MissingDependencyError:
    """The error for a module that could not be imported, or that imports a missing one."""
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
    """Whether another process can import this class or function by module and name."""
    found: Any = sys.modules.get(getattr(thing, "__module__", None) or "")
    for part in getattr(thing, "__qualname__", "<nothing>").split("."):
        found = getattr(found, part, None)
    return found is thing
