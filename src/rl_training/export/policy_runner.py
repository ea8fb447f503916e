"""Run a policy that rl-training exported as .npz. This file needs only numpy: copy it along with the policy.

    policy = Policy("policy.npz")
    action = policy(observation)  # one [O] or a batch [B, O], raw; the action is in the environment's units

Observations that are dictionaries, tuples or integers are passed unchanged: one, a list of dictionaries or tuples,
or one dictionary of batches. `policy.parts` lists their parts in the order of the flat vector [O], which is the
order of the environment's Dict space and need not be alphabetical. Integers are one-hot in the vector.

A policy exported with --stochastic, or of FQL, also takes standard normal numbers of the shape of its action:
`policy(observation, noise)`. Without them it draws from `policy.random`. `policy.info` describes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float32])


def _layer_norm(x: Any, weight: Any, bias: Any, epsilon: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + epsilon) * weight + bias


def _rms_norm(x: Any, weight: Any, epsilon: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def _tanh_mean(x: Any) -> Any:
    mean, log_std = np.split(x, 2, axis=-1)
    return np.concatenate([np.tanh(mean), log_std], axis=-1)


def _tanh_log_std(x: Any, low: Any, high: Any) -> Any:
    mean, raw = np.split(x, 2, axis=-1)
    return np.concatenate([mean, 0.5 * (high - low) * np.tanh(raw) + 0.5 * (high + low)], axis=-1)


def _gaussian(x: Any, low: Any, high: Any, noise: Any) -> Any:
    mean, log_std = np.split(x, 2, axis=-1)
    return mean + np.exp(np.clip(log_std, low, high)) * noise


def _categorical(x: Any, noise: Any) -> Any:
    shares = np.exp(x - x.max(-1, keepdims=True))
    ends = np.cumsum(shares / shares.sum(-1, keepdims=True), axis=-1)[:, :-1]
    return (ends < 0.5 * (1.0 + _erf(noise * math.sqrt(0.5)))).sum(-1)


def _scale(x: Any, low: Any, high: Any, inner_low: Any, inner_high: Any) -> Any:
    """[-1, 1] to [low, high] in double precision; `inner_*` are the bounds rounded inwards to the action's type."""
    share = 0.5 * np.clip(np.where(np.isnan(x), 0.0, x).astype(np.float64), -1.0, 1.0) + 0.5
    return np.clip(((1.0 - share) * low + share * high).astype(inner_low.dtype), inner_low, inner_high)


OPERATIONS: dict[str, Any] = {
    "normalize": lambda x, shift, scale: (x - shift) * scale,
    "clip": lambda x, low, high: np.clip(x, low, high),
    "affine": lambda x, weight, bias: x @ weight + bias,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "relu": lambda x: np.maximum(x, 0.0),
    "leaky_relu": lambda x: np.where(x > 0.0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "gelu": lambda x: 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "tanh": lambda x: np.tanh(x),
    "keep": lambda x: x,
    "add_kept": lambda x, kept: x + kept,
    "tanh_mean": _tanh_mean,
    "tanh_log_std": _tanh_log_std,
    "gaussian": _gaussian,
    "add_noise": lambda x, scale, noise: x + scale * noise,
    "append_noise": lambda x, noise: np.concatenate([x, noise], axis=-1),
    "categorical": _categorical,
    "scale": _scale,
    "argmax": lambda x: x.argmax(-1),
    "choose": lambda x, start: (x + start.astype(np.int64)).astype(start.dtype),
}
NOISY = ("gaussian", "add_noise", "append_noise", "categorical")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _leaves(observation: Any, place: str = "") -> list[tuple[str, Any]]:
    """The parts of a dictionary or tuple by their dotted names."""
    if isinstance(observation, Mapping):
        named = list(observation.items())
    elif isinstance(observation, tuple):
        named = list(enumerate(observation))
    else:
        return [(place, observation)]
    return [leaf for key, one in named for leaf in _leaves(one, f"{place}.{key}" if place else str(key))]


def _shape(part: dict[str, Any]) -> tuple[int, ...]:
    return tuple(part["shape"]) if "shape" in part else np.shape(part.get("nvec", 0))


def _flat(part: dict[str, Any], values: Any) -> Any:
    """One part of B observations as numbers `[B, count]`."""
    given, kind = np.reshape(values, (len(values), math.prod(_shape(part)))), part["kind"]
    if kind == "Box":
        if np.iscomplexobj(given):
            raise ValueError(f"observation: {part['part'] or 'it'} must be real numbers")
        return given
    first, count = np.ravel(part.get("start", 0)), np.ravel(part.get("nvec", part.get("n", 2)))
    whole = given.dtype.kind in ("iub" if kind == "MultiBinary" else "iu")
    if not whole or (given < first).any() or (given >= first + count).any():
        raise ValueError(f"observation: {part['part'] or 'it'} must be whole numbers of its {kind} space")
    if kind == "MultiBinary":
        return given
    return np.concatenate([np.eye(n)[column] for n, column in zip(count, (given - first).T)], axis=-1)


def _is_own(part: dict[str, Any], value: Any) -> bool:
    """Whether `value` has the form of the space, not of its flat vector, or is a batch of whole numbers of it."""
    shape, own = np.shape(value), _shape(part)
    whole = np.asarray(value).dtype.kind in ("iub" if part["kind"] == "MultiBinary" else "iu")
    return own != (part["count"],) and (shape == own or (whole and len(shape) > 0 and shape[1:] == own))


class Policy:
    """An exported policy; call it with an observation."""

    def __init__(self, path: Any) -> None:
        self.random = np.random.default_rng()
        try:
            with np.load(path, allow_pickle=False) as file:
                self.info: dict[str, Any] = json.loads(str(file["info"]), parse_constant=_refuse)
                self.steps: list[tuple[str, dict[str, Any]]] = [
                    (step["operation"], {name: file[f"{i}.{name}"] for name in step["arrays"]})
                    for i, step in enumerate(json.loads(str(file["steps"]), parse_constant=_refuse))
                ]
            self._check()
        except OSError:
            raise  # no such file, for example
        except Exception as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ValueError(f"{path}: not a policy that rl-training exported, or damaged ({cause})") from None

    def _check(self) -> None:
        size, noisy = self.info["observation"]["size"], self.info["stochastic"]
        if type(size) is not int or size < 1 or type(noisy) is not bool:
            raise ValueError(f"observations of size {size!r}, stochastic {noisy!r}")
        if unknown := [operation for operation, _ in self.steps if operation not in OPERATIONS]:
            raise ValueError(f"unknown operation {unknown[0]!r}")
        if self.parts and sum(part["count"] for part in self.parts) != size:
            raise ValueError(f"the parts of an observation do not have {size} numbers")

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts of an observation in the order of the flat vector; empty if observations are flat vectors."""
        return self.info["observation"].get("parts") or []

    def _vectors(self, observation: Any) -> Any:
        """Flatten an observation to `[O]`, or a batch to `[B, O]`."""
        names, size = [part["part"] for part in self.parts], self.info["observation"]["size"]
        if names and isinstance(observation, list) and observation and isinstance(observation[0], (Mapping, tuple)):
            return np.concatenate([self._vectors(one).reshape(1, -1) for one in observation])
        if names == [""] and _is_own(self.parts[0], observation):
            return self._joined([observation])
        leaves = _leaves(observation)
        found = sorted(name for name, _ in leaves)
        if isinstance(observation, (Mapping, tuple)) and found == sorted(names) and len(set(names)) == len(names):
            return self._joined([dict(leaves)[name] for name in names])
        if isinstance(observation, Mapping):
            wanted = f"a dictionary of {', '.join(names)}" if names else f"numbers [{size}]"
            raise ValueError(f"observation must be {wanted}, got a dictionary of {', '.join(found)}")
        try:
            if np.iscomplexobj(observation):  # NumPy would drop the imaginary part
                raise TypeError
            return np.asarray(observation, np.float32)
        except (TypeError, ValueError):
            raise ValueError(f"observation must be numbers, got {observation!r:.60}") from None

    def _joined(self, values: list[Any]) -> Any:
        """Join the values of all parts to the flat vector of one observation or of a batch."""
        wanted, given = [_shape(part) for part in self.parts], [np.shape(value) for value in values]
        single = given == wanted
        if not single and (len({shape[:1] for shape in given}) != 1 or [shape[1:] for shape in given] != wanted):
            expected = ", ".join(f"{part['part']} {list(_shape(part))}" for part in self.parts)
            raise ValueError(f"observation must have the shapes {expected}, or batches of them, got {given}")
        rows = [[value] if single else value for value in values]
        x = np.concatenate([_flat(part, row) for part, row in zip(self.parts, rows)], axis=-1).astype(np.float32)
        return x[0] if single else x

    def __call__(self, observation: Any, noise: Any = None) -> Any:
        given = self._vectors(observation)
        size, noisy = self.info["observation"]["size"], self.info["stochastic"]
        if given.ndim not in (1, 2) or given.shape[-1] != size or not np.isfinite(given).all():
            raise ValueError(f"observation must be finite numbers [{size}] or [B, {size}], got {list(given.shape)}")
        if noise is not None and not noisy:
            raise ValueError("this policy has no noise")
        x = kept = given.reshape(-1, size)
        if noise is None and noisy:
            noise = self.random.standard_normal((len(x), self.info["inputs"]["noise"]["shape"][1]))
        with np.errstate(over="ignore", invalid="ignore"):
            for operation, arrays in self.steps:
                more = {"noise": np.reshape(noise, (len(x), -1)).astype(np.float32)} if operation in NOISY else {}
                more |= {"kept": kept} if operation == "add_kept" else {}
                x = OPERATIONS[operation](x, **arrays, **more)
                kept = x if operation == "keep" else kept
        return x[0] if given.ndim == 1 else x
