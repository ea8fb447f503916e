"""The settings that a resumed run changes, and whether its earlier scores can still be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment import files
from rl_training.experiment.config import TrainConfig

# What a policy's score depends on; `env_id` and `eval_env` are compared by name.
_SCORED_BY = ("env_kwargs", "wrappers", "eval_max_steps")
_ENVIRONMENT = ("env_id", "eval_env", *_SCORED_BY)
# How the settings are written down, not what they are.
_NOT_SHOWN = ("allow_import", "given_envs")
# Keys of `algo_kwargs` that a run may change and still compute the same; data are compared by their fingerprint.
_HARMLESS = ("eval_interval", "early_stopping", "max_hours", "max_updates", "max_epochs", "dataset")
_UNSET = "unset"
_LONGEST = 60


@dataclass(frozen=True)
class Changes:
    """Each changed setting by its dotted name, with the old and the new value."""

    settings: Mapping[str, tuple[Any, Any]]
    environment: bool = False  # whether scores before and after cannot be compared

    def __str__(self) -> str:
        return _shown(self.settings)

    @property
    def problems(self) -> list[str]:
        """Why the run does not equal an uninterrupted one, one phrase each."""
        found = []
        if self.environment:
            found.append(f"the environment has changed: {_shown(self._below(*_ENVIRONMENT))}")
        harmless = tuple(f"algo_kwargs.{name}" for name in _HARMLESS)
        computing = self._below("algo_kwargs", "acceleration", "tf32")
        computed = {name: pair for name, pair in computing.items() if not name.startswith(harmless)}
        return [*found, f"settings have changed: {_shown(computed)}"] if computed else found

    def _below(self, *tops: str) -> dict[str, tuple[Any, Any]]:
        return {name: pair for name, pair in self.settings.items() if name.partition(".")[0] in tops}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, by dotted name; mappings are compared key by key."""
    return {place: (before, now) for place, before, now in _differing(old, new) if place not in _NOT_SHOWN}


def _differing(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            below = f"{place}.{key}" if place else str(key)
            yield from _differing(old.get(key, _UNSET), new.get(key, _UNSET), below)
    elif old != new:
        yield place, old, new


def _shown(settings: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} {old!s:.{_LONGEST}} -> {new!s:.{_LONGEST}}" for name, (old, new) in settings.items())


def scored_elsewhere(folder: Path, now: TrainConfig) -> bool:
    """Whether a checkpoint of `best/` was scored in another environment than that of `now`, or cannot be read."""
    try:
        record = files.decode_json((folder / "config.json").read_bytes())
        return not same_environment(TrainConfig(**record), now)
    except (OSError, TypeError, ValueError):
        return True


def same_environment(before: TrainConfig, now: TrainConfig) -> bool:
    """Whether both score policies in one environment, so that their scores can be compared."""
    return all(getattr(before, key) == getattr(now, key) for key in _SCORED_BY) and all(
        _same_name(before, now, key) for key in ("env_id", "eval_env")
    )


def _same_name(before: TrainConfig, now: TrainConfig, key: str) -> bool:
    """Whether `key` names one environment; of an object no more than the name of its class is known."""
    old, new = getattr(before, key), getattr(now, key)
    if old is None or new is None or not {key} & {*before.given_envs, *now.given_envs}:
        return bool(old == new)
    return bool(old.rpartition(":")[2].rpartition(".")[2] == new.rpartition(":")[2].rpartition(".")[2])
