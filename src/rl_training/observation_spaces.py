"""Observation spaces that are not flat vectors: their description as plain data, and flattening as in Gymnasium.

The description, including the order of a dictionary's keys, is stored with the policy, so that prediction needs no
environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import gymnasium as gym

Description = Mapping[str, Any]
_DEEPEST = 16


class Misfit(ValueError):
    """An observation does not match its space, or a space or description is not supported."""


class Image(Misfit):
    """The observation space contains an image; the message is its key."""


def describe(space: gym.Space[Any], place: str = "") -> dict[str, Any]:
    """A space as plain data; raises `Misfit` if its observations cannot be flattened."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        if space.dtype == np.uint8 and len(space.shape) == 3:
            raise Image(place)
        return {"kind": "Box", "shape": list(space.shape)}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.Dict) and all(isinstance(key, str) for key in space.spaces):
        return {"kind": "Dict", "spaces": [[key, describe(part, key)] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "spaces": [describe(part, str(i)) for i, part in enumerate(space.spaces)]}
    raise Misfit(type(space).__name__)


def example(description: Description) -> Any:
    """An observation of a described space as JSON: zeros, and the first of discrete values."""
    kind = description["kind"]
    if kind == "Dict":
        return {key: example(part) for key, part in description["spaces"]}
    if kind == "Tuple":
        return [example(part) for part in description["spaces"]]
    if kind in ("Discrete", "MultiDiscrete"):
        return description["start"]
    return np.zeros(description["shape"], np.float64 if kind == "Box" else np.int64).tolist()


class Flattening:
    """Turns observations of a described space into flat vectors of `size` numbers."""

    def __init__(self, description: Description) -> None:
        from gymnasium.spaces.utils import flatdim

        self.description = description
        try:
            self.space = _space(description, 0)
            self.size = int(flatdim(self.space))
        except (KeyError, TypeError, ValueError, AssertionError, AttributeError, OverflowError) as error:
            raise Misfit(f"not the description of a space: {type(error).__name__}: {error}") from None

    def __call__(self, obs: Any) -> NDArray[np.float32]:
        """Flatten one observation to `[size]`; raises `Misfit` if the space does not contain it."""
        from gymnasium.spaces.utils import flatten

        _require_fit(self.description, obs, "")
        return np.asarray(flatten(self.space, obs), dtype=np.float32)

    def restored(self, value: Any) -> Any:
        """Convert one observation from JSON, with lists for tuples and arrays, to its own form; raises `Misfit`."""
        try:
            _require_fit(self.description, value, "")
        except ValueError as error:
            raise error if isinstance(error, Misfit) else Misfit(str(error)) from None
        return _mapped(self.description, value, np.asarray)

    def unstacked(self, obs: Any) -> list[Any] | None:
        """The observations of a batch as vector environments return it; None for other values.

        It is a dictionary or tuple of batches, or whole numbers `[B, …]` of a space without parts. Flat vectors
        have floats.
        """
        sizes, kind = _batch_sizes(self.description, obs), self.description["kind"]
        if len(sizes) != 1 or None in sizes or (kind == "Tuple" and not isinstance(obs, tuple)):
            return None
        arrays = _mapped(self.description, obs, np.asarray)
        if kind not in ("Dict", "Tuple"):
            whole = arrays.dtype.kind in ("iub" if kind == "MultiBinary" else "iu")
            return list(arrays) if whole and self.space.shape != (self.size,) else None
        return [_mapped(self.description, arrays, itemgetter(i)) for i in range(sizes.pop() or 0)] or None

    def is_original(self, obs: Any) -> bool:
        """Whether `obs` is one observation in the environment's own form rather than a flat vector or a batch."""
        kind = self.description["kind"]
        if kind == "Dict":
            return isinstance(obs, Mapping)
        if kind == "Tuple":
            return isinstance(obs, tuple)
        try:
            shape = np.shape(obs)
        except ValueError:
            return False
        return bool(shape == self.space.shape and shape != (self.size,))


def layout(description: Description, place: str = "", first: int = 0) -> list[dict[str, Any]]:
    """Offset and length of each part of an observation in its flat vector; discrete parts are one-hot."""
    kind = description["kind"]
    if kind not in ("Dict", "Tuple"):
        plain = {key: value for key, value in description.items() if key != "kind"}
        return [{"part": place, "kind": kind, **plain, "first": first, "count": Flattening(description).size}]
    named = description["spaces"] if kind == "Dict" else [(str(i), p) for i, p in enumerate(description["spaces"])]
    found: list[dict[str, Any]] = []
    for name, part in named:
        found += layout(part, f"{place}.{name}" if place else name, first)
        first = found[-1]["first"] + found[-1]["count"] if found else first
    return found


def _space(description: Description, depth: int) -> gym.Space[Any]:
    from gymnasium import spaces

    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    kind = description["kind"]
    if kind == "Box":
        return spaces.Box(-np.inf, np.inf, tuple(description["shape"]), np.float64)
    if kind == "Discrete":
        return spaces.Discrete(description["n"], start=description["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(description["shape"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(description["nvec"]), start=np.asarray(description["start"]))
    if kind == "Dict":
        return spaces.Dict([(key, _space(part, depth + 1)) for key, part in description["spaces"]])
    if kind == "Tuple":
        return spaces.Tuple([_space(part, depth + 1) for part in description["spaces"]])
    raise ValueError(f"unknown kind {kind!r}")


def _mapped(description: Description, obs: Any, leaf: Callable[[Any], Any]) -> Any:
    """`obs` with `leaf` applied to each part that is neither a dictionary nor a tuple."""
    if description["kind"] == "Dict":
        return {key: _mapped(part, obs[key], leaf) for key, part in description["spaces"]}
    if description["kind"] == "Tuple":
        return tuple(_mapped(part, one, leaf) for part, one in zip(description["spaces"], obs, strict=True))
    return leaf(obs)


def _require_fit(description: Description, obs: Any, place: str) -> None:
    """Raise `Misfit` if `obs` does not match the description; the bounds of a Box are not checked."""
    kind, where = description["kind"], f" of {place}" if place else ""
    if kind == "Dict":
        keys = [key for key, _ in description["spaces"]]
        if not isinstance(obs, Mapping) or set(obs) != set(keys):
            raise Misfit(f"an observation{where} is {_form(obs)}, its space has the keys {', '.join(keys)}")
        for key, part in description["spaces"]:
            _require_fit(part, obs[key], f"{place}.{key}" if place else key)
        return
    if kind == "Tuple":
        parts = description["spaces"]
        if not isinstance(obs, tuple | list) or len(obs) != len(parts):
            raise Misfit(f"an observation{where} is {_form(obs)}, its space a tuple of {len(parts)}")
        for i, part in enumerate(parts):
            _require_fit(part, obs[i], f"{place}[{i}]")
        return
    array = np.asarray(obs)
    shape = _shape(description)
    if array.shape != shape:
        raise Misfit(f"an observation{where} has shape {list(array.shape)}, its space {list(shape)}")
    if kind == "Box":
        if np.iscomplexobj(array):
            raise Misfit(f"an observation{where} has complex numbers; pass real ones")
        return
    first = np.asarray(description.get("start", 0))
    count = np.asarray(description.get("n", description.get("nvec", 2)))
    whole = np.issubdtype(array.dtype, np.integer) or (kind == "MultiBinary" and array.dtype == bool)
    if not whole or np.any(array < first) or np.any(array >= first + count):
        raise Misfit(f"an observation{where} is {obs!r:.60}, which its {kind} space does not contain")


def _shape(description: Description) -> tuple[int, ...]:
    """Shape of an observation of a space without parts."""
    return tuple(description["shape"]) if "shape" in description else np.shape(description.get("nvec", 0))


def _batch_sizes(description: Description, obs: Any) -> set[int | None]:
    """The batch sizes of all parts of `obs`; contains None if a part is not a batch."""
    kind = description["kind"]
    if kind == "Dict":
        if not isinstance(obs, Mapping) or set(obs) != {key for key, _ in description["spaces"]}:
            return {None}
        return set().union(*(_batch_sizes(part, obs[key]) for key, part in description["spaces"]))
    if kind == "Tuple":
        if not isinstance(obs, tuple | list) or len(obs) != len(description["spaces"]):
            return {None}
        return set().union(*map(_batch_sizes, description["spaces"], obs))
    try:
        shape = np.shape(obs)
    except ValueError:
        return {None}
    return {shape[0] if shape and shape[1:] == _shape(description) else None}


def _form(obs: Any) -> str:
    if isinstance(obs, Mapping):
        return f"a mapping with the keys {', '.join(map(str, obs))}"
    return f"a {type(obs).__name__}" + (f" of {len(obs)}" if isinstance(obs, tuple | list) else "")
