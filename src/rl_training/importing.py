"""Objects of a user's modules by name: an `env_id` (`module:Id`), a wrapper, algorithm or network (`module:Name`).

`find_named` imports; its callers check that `allow_import` permits it, as `find_permitted` does. No other module is
imported by a name from a file.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FunctionType
from typing import Any

from rl_training.errors import ConfigError, MissingDependencyError, cause_of

# Objects that were passed in Python, or imported with permission, by the key of their setting and their name.
_KNOWN: dict[tuple[str, str], Any] = {}
GROUP = "rl_training.algorithms"


def installed_algorithms() -> dict[str, list[EntryPoint]]:
    """The entry points of installed packages by the algorithm's name; nothing is imported."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, []).append(entry)
    return found


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
    from gymnasium.envs.registration import load_env_creator

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


def _module_and_name(thing: Any) -> tuple[str, str]:
    module = getattr(thing, "__module__", None) or "python"
    return module, getattr(thing, "__qualname__", f"<{type(thing).__name__}>")


def name_of(thing: Any, key: str) -> str:
    """The name under which `find_permitted` returns `thing`, a class or function passed in Python as setting `key`.

    It is `module:Name`, or `module:<Name>` if another process cannot import it. A class or function that is defined
    again, as in a notebook, replaces the first; those without a name, such as lambdas, are kept apart.
    """
    module, name = _module_and_name(thing)
    if module not in ("__main__", "__mp_main__") and is_importable(thing):
        place = f"{module}:{name}"
    else:
        place = f"{module}:<{name}>"
        while _names_another(place, thing, key):
            place += "'"
    _KNOWN[key, place] = thing
    return place


def bind_name(place: str, thing: Any, key: str) -> None:
    """Let `find_permitted` return `thing` for a name in the records of a run."""
    if _names_another(place, thing, key):
        problem = f"{place!r} is another function in this process; define each in a module, under a name"
        if "<" not in place:
            problem = f"the run has {place}, got {':'.join(_module_and_name(thing))}"
        raise ConfigError(f"{key}: {problem}", key=key)
    _KNOWN[key, place] = thing


def _names_another(place: str, thing: Any, key: str) -> bool:
    """Whether a name of the form `module:<…<lambda>>` belongs to another function.

    Functions of the same code count as one, as from a cell of a notebook that ran twice.
    """
    known = _KNOWN.get((key, place), thing)
    if known is thing or place.count("<") == 1:
        return False
    plain = [isinstance(f, FunctionType) and not (f.__closure__ or f.__defaults__) for f in (known, thing)]
    return not (all(plain) and known.__code__ == thing.__code__)


class NotKnown(ConfigError):
    """`place` is not known and may not be imported."""

    def __init__(self, message: str, *, key: str | None = None, place: str = "") -> None:
        super().__init__(message, key=key)
        self.place = place


def would_import(place: str, key: str, otherwise: str = "", *, effect: str = "") -> ConfigError:
    """The error for `module:Name` without `allow_import`; `otherwise` is another remedy."""
    module = place.partition(":")[0]
    return ConfigError.of(
        key, f"{place!r} would import the module {module!r}; {effect}allow it with --allow-import{otherwise}"
    )


@contextmanager
def known_elsewhere(kept: Collection[Any]) -> Iterator[None]:
    """While active, `find_permitted` knows only the names in `kept`, as in a process that imported nothing else."""
    before = dict(_KNOWN)
    for key, place in before:
        if place not in kept:
            del _KNOWN[key, place]
    try:
        yield
    finally:
        _KNOWN.update(before)


def find_permitted(place: str, key: str, *, allow_import: bool = False, again: str) -> Any:
    """The object `module:Name` of the setting `key`: a known one, or else imported if `allow_import` permits it.

    `again` is the Python code that passes it.
    """
    if (key, place) in _KNOWN:
        return _KNOWN[key, place]
    if "<" in place:
        problem = f"{place!r} was given in Python and cannot be imported; give it again, as in {again}"
        raise NotKnown(f"{key}: {problem}", key=key, place=place)
    if not allow_import:
        error = would_import(place, key, f", or give it in Python, as in {again}")
        raise NotKnown(str(error), key=key, place=place)
    _KNOWN[key, place] = find_named(place, key)
    return _KNOWN[key, place]
