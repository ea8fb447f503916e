"""Learners of other packages: installed ones by entry point, others by `module:Class` if imports are permitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError, cause_of
from rl_training.importing import find_named, would_import

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from rl_training.algorithms.base import Learner


def load_installed(name: str, entries: list[EntryPoint]) -> type[Any] | None:
    """Import the class that the entry point of an algorithm names; None if it is a function, which is called."""
    if len({entry.value for entry in entries}) > 1:
        places = " and ".join(f"{entry.value}{_package(entry)}" for entry in entries)
        raise ConfigError.of("algo", f"{name!r} is provided by {places}; uninstall one of them")
    try:
        found = entries[0].load()
        if not isinstance(found, type):
            found()
            return None
    except Exception as error:
        place = f"{entries[0].value}{_package(entries[0])}"
        raise ConfigError.of("algo", f"{name!r} is provided by {place}, which fails: {cause_of(error)}") from error
    return found


def _package(entry: EntryPoint) -> str:
    return "" if entry.dist is None else f" of {entry.dist.name}"


def import_learner(place: str, name: str, *, allow_import: bool) -> type[Learner]:
    """Import the learner `module:Class` of the algorithm `name`, which may be the same text."""
    if not allow_import:
        if place == name:
            raise would_import(place, "algo", ", or install it as a package with an entry point")
        raise ConfigError.of(
            "algo",
            f"{name!r} is not installed; it is {place!r}: install its package, or allow its import with "
            "--allow-import; in Python, import its module first",
        )
    from rl_training.algorithms.base import Learner

    found = find_named(place, "algo")
    if not isinstance(found, type) or not issubclass(found, Learner):
        raise ConfigError.of("algo", f"{place} is not a Learner class")
    return found
