"""Who owns which key of `algo_kwargs`: each section is a `Settings` class beside the code that uses it.

A user's flat mapping is split by owner and checked once, before any file is written; afterwards every part of the
program holds its own typed section and nobody asks a dictionary for a default.

An algorithm that also takes discrete actions has a second learner for them, with sections of its own, whose keys
are some of the first one's. Which of the two a run has is decided here (`for_actions`), once its spaces are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rl_training.algorithms.base import Learner
from rl_training.errors import ConfigError, nearest
from rl_training.settings import Settings
from rl_training.spaces import SpaceSpec

Section = TypeVar("Section", bound=Settings)


@dataclass(frozen=True)
class Sections:
    """The sections of one algorithm and the defaults in which it differs from a section's own.

    `discrete` are those for discrete actions, where the learner itself takes continuous ones.
    """

    learner: type[Learner]
    parts: tuple[type[Settings], ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    discrete: Sections | None = None

    @property
    def takes_discrete(self) -> bool | None:
        """Whether actions must be discrete (True) or continuous (False); None: they may be either."""
        return None if self.discrete is not None else self.learner.discrete

    def for_actions(self, spaces: SpaceSpec, of: str) -> Sections:
        """The sections for the actions of `spaces`, which are those of `of`; none at all is refused."""
        if spaces.discrete == self.learner.discrete:
            return self
        if self.discrete is None:
            raise ConfigError(
                f"{of}: has discrete actions and {self.learner.name} needs continuous ones; use bc, cql or iql"
                if spaces.discrete
                else f"{of}: has continuous actions and {self.learner.name} needs discrete ones"
            )
        return self.discrete

    def owners(self) -> dict[str, type[Settings]]:
        """Key -> the section that owns it."""
        return {key: part for part in self.parts for key in part.model_fields}

    def default(self, key: str) -> Any:
        """What a key is where nobody gives it."""
        return self.defaults.get(key, self.owners()[key].model_fields[key].get_default(call_default_factory=True))

    def changed_by_discrete_actions(self) -> tuple[list[str], dict[str, Any]]:
        """The keys that discrete actions leave no meaning, and the defaults that are others there."""
        if self.discrete is None:
            return [], {}
        kept = self.discrete.owners()
        others = {
            key: self.discrete.default(key) for key in kept if self.discrete.default(key) != self.default(key)
        }
        return [key for key in self.owners() if key not in kept], others

    def resolve(self, algo_kwargs: Mapping[str, Any]) -> Resolved:
        """Typed sections from a flat mapping; an unknown key is an error that names the nearest known one."""
        owners = self.owners()
        for key in algo_kwargs:
            if key not in owners:
                raise ConfigError(
                    f"algo_kwargs: unknown key {key!r}{nearest(key, owners)}", key=f"algo_kwargs.{key}"
                )
        values = {**self.defaults, **algo_kwargs}
        return Resolved(
            tuple(
                part.parse({k: v for k, v in values.items() if owners[k] is part}, "algo_kwargs")
                for part in self.parts
            )
        )

    def resolve_for(self, spaces: SpaceSpec, of: str, algo_kwargs: Mapping[str, Any]) -> tuple[Sections, Resolved]:
        """`for_actions`, and its typed sections; a key that has no meaning for these actions is refused."""
        chosen = self.for_actions(spaces, of)
        for key in algo_kwargs:
            if key in self.owners() and key not in chosen.owners():
                raise ConfigError(
                    f"algo_kwargs.{key}: {self.learner.name} has no such setting on discrete actions; leave it out",
                    key=f"algo_kwargs.{key}",
                )
        return chosen, chosen.resolve(algo_kwargs)


@dataclass(frozen=True)
class Resolved:
    """Checked sections, found by their type or a base of it: `resolved[OnlineConfig]`."""

    parts: tuple[Settings, ...]

    def __getitem__(self, kind: type[Section]) -> Section:
        for part in self.parts:
            if isinstance(part, kind):
                return part
        raise KeyError(kind.__name__)

    def to_dict(self) -> dict[str, Any]:
        """Every key with its value, flat again, as plain data."""
        flat: dict[str, Any] = {}
        for part in self.parts:
            flat.update(part.model_dump(mode="json"))
        return flat
