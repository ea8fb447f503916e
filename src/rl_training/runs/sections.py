"""Sections: the `Settings` classes that own the keys of `algo_kwargs`, each defined next to the code that uses it.

The flat mapping of the user is split into sections and validated once, before any file is written.

An algorithm may have a second learner for discrete actions, with sections of its own whose keys are a subset of the
first learner's. `for_actions` chooses between them when the spaces of a run are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rl_training.algorithms.base import Learner
from rl_training.errors import ConfigError, setting_hint
from rl_training.settings import Settings
from rl_training.spaces import SpaceSpec

Section = TypeVar("Section", bound=Settings)


@dataclass(frozen=True)
class Sections:
    """The sections of one algorithm; `defaults` override those of the sections.

    `discrete`: the sections for discrete actions if `learner` only supports continuous ones. `elsewhere`: a regime
    of the algorithm that has the key.
    """

    learner: type[Learner]
    parts: tuple[type[Settings], ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    discrete: Sections | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def takes_discrete(self) -> bool | None:
        """True if actions must be discrete, False if they must be continuous, None if both are supported."""
        return None if self.discrete is not None else self.learner.discrete

    def for_actions(self, spaces: SpaceSpec, of: str) -> Sections:
        """The sections for the actions of `spaces`; raises if there are none. `of` names the spaces in an error."""
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
        """The section of each key."""
        return {key: part for part in self.parts for key in part.model_fields}

    def default(self, key: str) -> Any:
        """The default value of a key."""
        return self.defaults.get(key, self.owners()[key].model_fields[key].get_default(call_default_factory=True))

    def changed_by_discrete_actions(self) -> tuple[list[str], dict[str, Any]]:
        """The keys that do not exist for discrete actions, and the defaults that differ for them."""
        if self.discrete is None:
            return [], {}
        kept = self.discrete.owners()
        defaults = {
            key: self.discrete.default(key) for key in kept if self.discrete.default(key) != self.default(key)
        }
        return [key for key in self.owners() if key not in kept], defaults

    def resolve(self, algo_kwargs: Mapping[str, Any]) -> Resolved:
        """Validate a flat mapping; the error for an unknown key names the most similar known key."""
        owners = self.owners()
        for key in algo_kwargs:
            if key not in owners:
                other = self.elsewhere.get(key)
                hint = setting_hint(key, owners) if other is None else f"; it needs regime: {other}"
                raise ConfigError(f"algo_kwargs: unknown key {key!r}{hint}", key=f"algo_kwargs.{key}")
        values = {**self.defaults, **algo_kwargs}
        return Resolved(
            tuple(
                part.parse({k: v for k, v in values.items() if owners.get(k) is part}, "algo_kwargs")
                for part in self.parts
            )
        )

    def resolve_for(self, spaces: SpaceSpec, of: str, algo_kwargs: Mapping[str, Any]) -> tuple[Sections, Resolved]:
        """`for_actions` and its validated sections; raises for a key that does not exist for these actions."""
        chosen = self.for_actions(spaces, of)
        for key in algo_kwargs:
            if key in self.owners() and key not in chosen.owners():
                raise ConfigError.of(
                    f"algo_kwargs.{key}",
                    f"{self.learner.name} has no such setting on discrete actions; leave it out",
                )
        return chosen, chosen.resolve(algo_kwargs)


@dataclass(frozen=True)
class Resolved:
    """Validated sections, accessed by their type or a base class: `resolved[OnlineConfig]`."""

    parts: tuple[Settings, ...]

    def __getitem__(self, kind: type[Section]) -> Section:
        for part in self.parts:
            if isinstance(part, kind):
                return part
        raise KeyError(kind.__name__)

    def to_dict(self) -> dict[str, Any]:
        """A flat mapping of all keys to plain data."""
        return {key: value for part in self.parts for key, value in part.model_dump(mode="json").items()}
