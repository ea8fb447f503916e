"""Settings that a resumed run changes, and whether scores before and after are comparable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment import files
from rl_training.experiment.config import TrainConfig

_ENVIRONMENT = TrainConfig.affecting("score")
# Those of them that are compared by name.
_NAMED = {"env_id", "eval_env"}
# Settings that do not affect the run.
_HIDDEN = ("allow_import", "given_envs", "plugin")
# Keys of `algo_kwargs` that do not affect the result of an update; data are compared by their fingerprint, on which
# the weights of a mixture have no effect.
_HARMLESS = ("eval_interval", "early_stopping", "max_hours", "max_updates", "max_epochs", "dataset")
_MIXTURE = "algo_kwargs.datasets"
_UNSET = "unset"
_MAX_LENGTH = 60


@dataclass(frozen=True)
class Changes:
    """Each changed setting by its dotted name, with the old and the new value."""

    settings: Mapping[str, tuple[Any, Any]]
    environment: bool = False  # whether the environment has changed: scores are not comparable

    def __str__(self) -> str:
        return _format(self.settings)

    @property
    def problems(self) -> list[str]:
        """The reasons why the resumed run does not equal an uninterrupted one."""
        found = []
        if self.environment:
            found.append(f"the environment has changed: {_format(self._below(*_ENVIRONMENT))}")
        harmless = tuple(f"algo_kwargs.{name}" for name in _HARMLESS)
        computing = self._below("algo_kwargs", "acceleration", "tf32", "bf16")
        computed = {name: pair for name, pair in computing.items() if not name.startswith(harmless)}
        old, new = (_weights(parts) for parts in computing.get(_MIXTURE, ((), ())))
        computed |= {f"{_MIXTURE}.weight": (old, new)} if old != new else {}
        return [*found, f"settings have changed: {_format(computed)}"] if computed else found

    def _below(self, *tops: str) -> dict[str, tuple[Any, Any]]:
        return {name: pair for name, pair in self.settings.items() if name.partition(".")[0] in tops}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by dotted name, with their old and new values; mappings are compared by key."""
    return {place: (before, now) for place, before, now in _iterate_differences(old, new) if place not in _HIDDEN}


def _iterate_differences(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            below = f"{place}.{key}" if place else str(key)
            yield from _iterate_differences(old.get(key, _UNSET), new.get(key, _UNSET), below)
    elif old != new:
        yield place, old, new


def _weights(parts: Any) -> list[Any]:
    """The weights of a mixture; empty without one."""
    return [part.get("weight") for part in parts] if isinstance(parts, list | tuple) else []


def _format(settings: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(
        f"{name} {old!s:.{_MAX_LENGTH}} -> {new!s:.{_MAX_LENGTH}}" for name, (old, new) in settings.items()
    )


def scored_elsewhere(folder: Path, now: TrainConfig) -> bool:
    """Whether the checkpoint in `folder` was evaluated in another environment than `now`, or cannot be read."""
    try:
        record = files.decode_json((folder / "config.json").read_bytes())
        return not same_environment(TrainConfig(**record), now)
    except (OSError, TypeError, ValueError):
        return True


def same_environment(before: TrainConfig, now: TrainConfig) -> bool:
    """Whether both configurations evaluate in the same environment, so that scores are comparable."""
    return all(getattr(before, key) == getattr(now, key) for key in _ENVIRONMENT - _NAMED) and all(
        _same_name(before, now, key) for key in _NAMED
    )


def _same_name(before: TrainConfig, now: TrainConfig, key: str) -> bool:
    """Whether `key` names the same environment; environments passed as objects are compared by class name."""
    old, new = getattr(before, key), getattr(now, key)
    if old is None or new is None or not {key} & {*before.given_envs, *now.given_envs}:
        return bool(old == new)
    return bool(old.rpartition(":")[2].rpartition(".")[2] == new.rpartition(":")[2].rpartition(".")[2])
