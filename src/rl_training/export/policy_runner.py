"""Runs a policy that rl-training exported as .npz. It needs numpy alone: copy it wherever the policy goes.

    policy = Policy("policy.npz")
    action = policy(observation)  # one [O] or a batch [B, O], raw; the action is in the environment's units

A policy that was exported with --stochastic takes standard normal numbers of the shape of its action as well:
`policy(observation, noise)`. `policy.info` tells what it is.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float32])


def _layer_norm(x: Any, weight: Any, bias: Any, epsilon: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + epsilon) * weight + bias


def _tanh_mean(x: Any) -> Any:
    mean, log_std = np.split(x, 2, axis=-1)
    return np.concatenate([np.tanh(mean), log_std], axis=-1)


def _gaussian(x: Any, low: Any, high: Any, noise: Any) -> Any:
    mean, log_std = np.split(x, 2, axis=-1)
    return mean + np.exp(np.clip(log_std, low, high)) * noise


def _categorical(x: Any, noise: Any) -> Any:
    shares = np.exp(x - x.max(-1, keepdims=True))
    ends = np.cumsum(shares / shares.sum(-1, keepdims=True), axis=-1)[:, :-1]
    return (ends < 0.5 * (1.0 + _erf(noise * math.sqrt(0.5)))).sum(-1)


def _scale(x: Any, low: Any, high: Any, inner_low: Any, inner_high: Any) -> Any:
    """[-1, 1] to [low, high] in double precision; `inner_*` are the bounds as the action's type can hold them."""
    share = 0.5 * np.clip(np.where(np.isnan(x), 0.0, x).astype(np.float64), -1.0, 1.0) + 0.5
    return np.clip(((1.0 - share) * low + share * high).astype(inner_low.dtype), inner_low, inner_high)


OPERATIONS: dict[str, Any] = {
    "normalize": lambda x, shift, scale: (x - shift) * scale,
    "clip": lambda x, low, high: np.clip(x, low, high),
    "affine": lambda x, weight, bias: x @ weight + bias,
    "layer_norm": _layer_norm,
    "relu": lambda x: np.maximum(x, 0.0),
    "leaky_relu": lambda x: np.where(x > 0.0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "gelu": lambda x: 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5))),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "tanh": lambda x: np.tanh(x),
    "tanh_mean": _tanh_mean,
    "gaussian": _gaussian,
    "add_noise": lambda x, scale, noise: x + scale * noise,
    "categorical": _categorical,
    "scale": _scale,
    "argmax": lambda x: x.argmax(-1),
    "choose": lambda x, start: (x + start.astype(np.int64)).astype(start.dtype),
}
NOISY = ("gaussian", "add_noise", "categorical")


class Policy:
    """Observations in, actions out."""

    def __init__(self, path: Any) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.info: dict[str, Any] = json.loads(str(file["info"]))
            self.steps: list[tuple[str, dict[str, Any]]] = [
                (step["operation"], {name: file[f"{i}.{name}"] for name in step["arrays"]})
                for i, step in enumerate(json.loads(str(file["steps"])))
            ]

    def __call__(self, observation: Any, noise: Any = None) -> Any:
        given = np.asarray(observation, np.float32)
        size, noisy = self.info["observation"]["size"], self.info["stochastic"]
        if given.ndim not in (1, 2) or given.shape[-1] != size or not np.isfinite(given).all():
            raise ValueError(f"observation must be finite numbers [{size}] or [B, {size}], got {list(given.shape)}")
        if noisy != (noise is not None):
            raise ValueError(f"this policy {'needs noise of the shape of the action' if noisy else 'has no noise'}")
        x = given.reshape(-1, size)
        with np.errstate(over="ignore", invalid="ignore"):
            for operation, arrays in self.steps:
                more = {"noise": np.reshape(noise, (len(x), -1)).astype(np.float32)} if operation in NOISY else {}
                x = OPERATIONS[operation](x, **arrays, **more)
        return x[0] if given.ndim == 1 else x
