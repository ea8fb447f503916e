"""Loggers: receive the metrics of a run in addition to `metrics.csv` and TensorBoard.

The setting `loggers` contains names of packaged loggers, and your own as `module:Class`; they derive from `Logger`.
Objects are passed to `learn(loggers=[…])`. A logger runs in its own thread: it may be slow, raise or hang without
affecting the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, cause_of, nearest
from rl_training.importing import find_permitted


@dataclass(frozen=True)
class RunFacts:
    """Description of a run, passed to `Logger.open`."""

    folder: Path
    name: str
    config: Mapping[str, Any]
    """all settings as plain data, including defaults"""
    resumed_from: int | None
    """the step of the checkpoint that the run resumes from; None for a new run"""


@dataclass(frozen=True)
class Row:
    """The metrics of one step by their names in the log (`eval/mean_reward`); `time` is in Unix seconds."""

    step: int
    time: float
    values: Mapping[str, float]

    def completed(self, further: Row) -> Row:
        """This row merged with a later row of the same step."""
        return Row(self.step, self.time, {**self.values, **further.values})


class Logger:
    """Base class of loggers. Override `write` and, if needed, the other methods; all are called in one thread.

    A logger is dropped with a warning if it raises, or if its queue of 256 rows is full; the run continues.

    A row is written as soon as it is logged. A second row of the same step contains further values, such as those
    of the last evaluation. A killed run resumes from its last checkpoint and logs the rows after it again; see
    `resumed_from`.

    With `only_covered` a logger receives complete rows only, each once and in order, after a checkpoint has covered
    them (once per `checkpoint_interval`). Use this if rows cannot be withdrawn. A resumed run starts with all rows
    that its checkpoint covers, because only the logger can know which of them it has received.
    """

    only_covered: bool = False
    timeout: float = 10.0
    """seconds that a run waits for the logger at its end"""

    @cached_property  # so that a subclass may assign it
    def name(self) -> str:
        return type(self).__name__

    def open(self, run: RunFacts) -> None:
        """Called before the first row, also in a resumed run."""

    def write(self, row: Row) -> None:
        raise NotImplementedError(f"{type(self).__name__}.write")

    def flush(self) -> None:
        """Called at each checkpoint; with `only_covered`, after the rows that it covers."""

    def close(self, status: str) -> None:
        """Called after the last row; `status`: `finished`, `stopped`, `interrupted`, `failed` or `diverged`."""


# The packaged loggers by the name of the package that they need.
_PACKAGED = {"wandb": "rl_training.experiment.wandb_logger:WandbLogger"}


def known_loggers(names: Any) -> Any:
    """Validate the setting `loggers`: distinct names of packaged loggers, or `module:Class`; one or several."""
    names = (names,) if isinstance(names, str) else names
    for name in names if isinstance(names, tuple) else ():
        if not isinstance(name, str):
            raise ValueError(f"takes names ({', '.join(_PACKAGED)}); objects are given to learn(loggers=[…])")
        if name not in _PACKAGED and not all(name.partition(":")):
            raise ValueError(f"unknown logger {name!r}{nearest(name, _PACKAGED)}; known: {', '.join(_PACKAGED)}")
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is given twice")
    return names


def require_installed(names: Iterable[str], *, allow_import: bool) -> None:
    """Raise if the package of a logger is missing, or if a `module:Class` cannot or must not be imported."""
    for name in names:
        if name not in _PACKAGED:
            _own(name, allow_import=allow_import)
        elif not _is_installed(name):
            raise ConfigError.of("loggers", f"{name} is not installed; pip install {name}")


def _own(name: str, *, allow_import: bool = False) -> type[Logger]:
    again = "SAC(env, loggers=[…]) or rl_training.load(path, allow_import=True)"
    found: type[Logger] = find_permitted(name, "loggers", allow_import=allow_import, again=again)
    if not isinstance(found, type) or not issubclass(found, Logger):
        raise ConfigError.of("loggers", f"{name} is not a Logger class")
    return found


def _is_installed(package: str) -> bool:
    """Whether the package can be imported; a plain folder of that name, such as W&B creates, does not count."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def make_loggers(names: Iterable[str]) -> list[Logger]:
    """Create the loggers of the setting; packaged ones import their packages in `open`."""
    made: list[Logger] = []
    for name in names:
        kind = _own(_PACKAGED.get(name, name), allow_import=name in _PACKAGED)
        try:
            made.append(kind())
        except Exception as error:
            raise ConfigError.of("loggers", f"{name}() fails: {cause_of(error)}") from error
    return made


def as_loggers(given: Any) -> tuple[Logger, ...]:
    """One logger or several, as passed to `learn`; raises for other values."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    for one in [] if given is None else several:
        if isinstance(one, str):
            raise ConfigError(f"loggers: {one!r} is a name; give names to the class: the setting loggers=[{one!r}]")
        if isinstance(one, type) and issubclass(one, Logger):
            raise ConfigError(f"loggers: {one.__name__} is a class; give an instance of it, {one.__name__}()")
        if not isinstance(one, Logger):
            raise ConfigError(f"loggers: give a Logger or a list of loggers, got {one!r}")
    return () if given is None else tuple(several)
