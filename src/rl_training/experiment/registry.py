"""The registry: every algorithm by name. Its regime, title and defaults are in its `<algo>_trainer.py`.

A trainer is imported on first use, so that a misspelt name raises without importing torch. Algorithms of other
packages are added by `register`; installed ones are found by their entry point when their name is first used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError, cause_of, missing_algorithm, nearest
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_values import normalise_algo
from rl_training.importing import find_named, installed_algorithms, would_import
from rl_training.lazy import lazy

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from rl_training.algorithms.base import Learner
    from rl_training.runs.sections import Resolved
    from rl_training.runtime.trainers import AlgorithmSpec as AlgorithmSpec
else:
    __getattr__, __dir__ = lazy(__name__, {"AlgorithmSpec": "rl_training.runtime.trainers"})

_NAMES = (
    "dqn",
    "ddpg",
    "td3",
    "sac",
    "tqc",
    "redq",
    "bc",
    "td3_bc",
    "iql",
    "cql",
    "awac",
    "crr",
    "edac",
    "rlpd",
    "rebrac",
    "crossq",
    "flash_sac",
    "fql",
    "cal_ql",
)
# The specs imported so far, and those that `register` added.
_SPECS: dict[str, AlgorithmSpec] = {}
_NAME = re.compile("[a-z][a-z0-9_]*")


def algorithm_names() -> list[str]:
    """The names of all algorithms of this package, online ones first, and of registered ones."""
    return list(dict.fromkeys((*_NAMES, *_SPECS)))


def installed_names() -> list[str]:
    """The names of the algorithms that other installed packages provide; nothing is imported."""
    return [name for name in installed_algorithms() if name not in _NAMES]


def algorithm_name(name: str, plugin: str | None = None, *, allow_import: bool = False) -> str:
    """The registry's spelling of a name (case, `+` and `-` do not matter); raises for an unknown one.

    An algorithm of an installed package is imported. Otherwise `allow_import` permits to import the module of a
    `name` or `plugin` of the form `module:Class`.
    """
    key, known = normalise_algo(name), algorithm_names()
    if key in known:
        return key
    installed = installed_algorithms()
    if key in installed:
        return _registered(_load_installed(key, installed[key]), key, installed[key][0].value)
    place = key if ":" in key else plugin
    if place is not None:
        found = _import_learner(place, key, allow_import=allow_import)
        return _registered(found, getattr(found, "name", "") if place == key else key, place)
    known = list(dict.fromkeys((*known, *installed)))
    hint = missing_algorithm(key) or nearest(key, known)
    raise ConfigError.of("algo", f"unknown algorithm {name!r}{hint}; known: {', '.join(known)}")


def _load_installed(name: str, entries: list[EntryPoint]) -> type[Any] | None:
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


def _import_learner(place: str, name: str, *, allow_import: bool) -> type[Learner]:
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


def _registered(found: type[Any] | None, name: str, place: str) -> str:
    """Register a class, unless its module has done so when it was imported; raises if `name` is still unknown."""
    if found is not None and (name not in algorithm_names() or get_algorithm_spec(name).learner is not found):
        register(found)
    if name not in algorithm_names():
        raise ConfigError.of("algo", f"{place} registers no algorithm named {name!r}")
    return name


def get_algorithm_spec(name: str, plugin: str | None = None, *, allow_import: bool = False) -> AlgorithmSpec:
    """The algorithm of that name; see `algorithm_name`."""
    key = algorithm_name(name, plugin, allow_import=allow_import)
    if key not in _SPECS:
        _SPECS[key] = import_module(f"rl_training.runtime.{key}_trainer").SPEC
    return _SPECS[key]


def spec_of(config: TrainConfig) -> AlgorithmSpec:
    """The algorithm of a configuration; its plug-in is imported if `allow_import` permits it."""
    return get_algorithm_spec(config.algo, config.plugin, allow_import=config.allow_import)


def register(
    learner: type[Learner],
    *,
    regime: str = "online",
    title: str | None = None,
    year: int | None = None,
    **options: Any,
) -> AlgorithmSpec:
    """Add an algorithm under `learner.name`; see `rl_training.register`. `options` are those of `algorithm`."""
    from rl_training.algorithms.base import Learner
    from rl_training.runtime.offline import Offline
    from rl_training.runtime.offline_to_online import OfflineToOnline
    from rl_training.runtime.online import Online
    from rl_training.runtime.trainers import algorithm

    for found in (learner, options.get("discrete") or learner):
        if not isinstance(found, type) or not issubclass(found, Learner):
            raise ConfigError(f"register: needs a Learner class, got {found!r}")
    name = getattr(learner, "name", "")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"register: {learner.__name__}.name must be lower-case letters, digits and _, got {name!r}"
        )
    regimes = {one.key(): one for one in (Online, Offline, OfflineToOnline)}
    if regime not in regimes:
        raise ConfigError(f"register: regime must be {', '.join(regimes)}, got {regime!r}")
    spec = algorithm(learner, regimes[regime], title or learner.__name__, year, **options)
    # A notebook may define the same class again.
    if name in _NAMES or (name in _SPECS and _SPECS[name].plugin != spec.plugin):
        other = get_algorithm_spec(name).learner
        place = f"{other.__module__}:{other.__qualname__}"
        raise ConfigError(f"register: {name!r} is the name of {place}; give {learner.__name__} another `name`")
    if unknown := [key for key in spec.sections.defaults if key not in spec.sections.owners()]:
        hint = nearest(unknown[0], spec.sections.owners())
        raise ConfigError(f"register: {name} has no setting {unknown[0]!r}{hint}")
    _require_consistent(spec)
    _SPECS[name] = spec
    return spec


def _require_consistent(spec: AlgorithmSpec) -> None:
    """Raise for a setting that every run has or that only the second learner has, and for learners of one kind."""
    first, other = spec.sections, spec.sections.discrete
    if other is not None and (first.learner.discrete or not other.learner.discrete):
        kinds = f"{first.learner.__name__} must be for continuous actions and {other.learner.__name__} for discrete"
        raise ConfigError(f"register: {kinds} ones")
    for kind in (first,) if other is None else (first, other):
        keys = [*TrainConfig.model_fields, *(key for part in kind.parts for key in part.model_fields)]
        name = kind.learner.__name__
        if twice := [key for key in kind.owners() if keys.count(key) > 1]:
            raise ConfigError(f"register: every run has a setting {twice[0]!r}; rename that of {name}")
        if alone := [key for key in kind.owners() if key not in first.owners()]:
            raise ConfigError(f"register: {name} has a setting {alone[0]!r}; {first.learner.__name__} needs it too")


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """The specs of `algorithm_names`, in that order."""
    return [get_algorithm_spec(name) for name in algorithm_names()]


def setting_names(values: Mapping[str, Any]) -> list[str]:
    """The keys of `algo_kwargs` that the algorithm of a configuration has."""
    allow_import = values.get("allow_import") is True
    spec = get_algorithm_spec(values["algo"], values.get("plugin"), allow_import=allow_import)
    return list(spec.owners())


def resolve(config: TrainConfig) -> Resolved:
    """Validate `algo_kwargs` with the sections of the algorithm, before any file is written."""
    return spec_of(config).chosen(config.regime)[1].resolve(config.algo_kwargs)
