"""Loggers: where else the rows of a run go, beside `metrics.csv` and TensorBoard.

The setting `loggers` has the names of those that come with the package; objects of one's own derive from `Logger`
and are given to `learn(loggers=[…])`. A logger works in a thread of its own: it may be slow, raise or hang, and
the run goes on without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.errors import ConfigError, nearest


@dataclass(frozen=True)
class RunFacts:
    """What a logger is told of its run when it is opened."""

    folder: Path
    name: str
    config: Mapping[str, Any]
    """every setting as plain data, defaults spelt out"""
    resumed_from: int | None
    """the step of the checkpoint the run goes on from; None for a new run"""


@dataclass(frozen=True)
class Row:
    """The metrics of one step by the names of the log (`eval/mean_reward`); `time` is in Unix seconds."""

    step: int
    time: float
    values: Mapping[str, float]

    def completed(self, further: Row) -> Row:
        """This row with what was logged at the same step later."""
        return Row(self.step, self.time, {**self.values, **further.values})


class Logger:
    """Override `write`, and what else you need; every method is called in one thread, which is the logger's own.

    One that raises is dropped with a warning, as is one that has 256 things to do and does none; the run goes on.

    A row is written as soon as it is logged. A second row of the same step has further values for it: that of the
    last evaluation, which comes after the last report. A run that is killed goes on from its last checkpoint and
    logs once more what came after it: `resumed_from` tells. With `only_covered` a logger gets neither: only whole
    rows, in order, none before a checkpoint covers it, which makes it never come again. That is for what cannot
    take anything back; rows then arrive once per `checkpoint_interval`. A run that goes on begins with the rows
    it had, since only the logger knows which of them it got.
    """

    only_covered: bool = False
    timeout: float = 10.0
    """seconds that the end of a run waits for it"""

    @property
    def name(self) -> str:
        return type(self).__name__

    def open(self, run: RunFacts) -> None:
        """Before the first row, also of a resumed run."""

    def write(self, row: Row) -> None:
        raise NotImplementedError(f"{type(self).__name__}.write")

    def flush(self) -> None:
        """At each checkpoint; with `only_covered`, after the rows that it covers."""

    def close(self, status: str) -> None:
        """After the last row: the run is `finished`, `stopped`, `interrupted`, `failed` or `diverged`."""


class _Packaged(NamedTuple):
    module: str
    cls: str
    needs: str  # what the extra of the logger's name installs


_PACKAGED = {"wandb": _Packaged("rl_training.experiment.wandb_logger", "WandbLogger", "wandb")}


def known_loggers(names: Any) -> Any:
    """Check the setting `loggers`: names only, each known and given once."""
    for name in names if isinstance(names, tuple) else ():
        if not isinstance(name, str):
            raise ValueError(f"takes names ({', '.join(_PACKAGED)}); objects are given to learn(loggers=[…])")
        if name not in _PACKAGED:
            raise ValueError(f"unknown logger {name!r}{nearest(name, _PACKAGED)}; known: {', '.join(_PACKAGED)}")
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is given twice")
    return names


def require_installed(names: Iterable[str]) -> None:
    """Refuse loggers whose packages are missing, before a run begins."""
    for name in names:
        if not _is_installed(_PACKAGED[name].needs):
            raise ConfigError(f"loggers: {name} is not installed; pip install 'rl-training[{name}]'", key="loggers")


def _is_installed(package: str) -> bool:
    """Whether it can be imported; a folder of that name, such as W&B leaves behind, is no package."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def make_loggers(names: Iterable[str]) -> list[Logger]:
    """The loggers of the setting; what they need is imported when they are opened."""
    return [getattr(import_module(_PACKAGED[name].module), _PACKAGED[name].cls)() for name in names]


def as_loggers(given: Any) -> tuple[Logger, ...]:
    """One logger or several, as given to `learn`; anything else is refused in one line."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    for one in [] if given is None else several:
        if isinstance(one, str):
            raise ConfigError(f"loggers: {one!r} is a name; names are a setting: loggers=[{one!r}] of the class")
        if isinstance(one, type) and issubclass(one, Logger):
            raise ConfigError(f"loggers: {one.__name__} is a class; give an instance of it, {one.__name__}()")
        if not isinstance(one, Logger):
            raise ConfigError(f"loggers: give a Logger or a list of such, got {one!r}")
    return () if given is None else tuple(several)
