"""The jax functions that the Brax adapter and its stand-in call, implemented with numpy, because jax is not a
dependency."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import numpy as np


def _map(function: Callable[..., Any], *trees: Any) -> Any:
    first = trees[0]
    if isinstance(first, dict):
        return {key: _map(function, *(tree[key] for tree in trees)) for key in first}
    if dataclasses.is_dataclass(first):
        names = [field.name for field in dataclasses.fields(first)]
        return type(first)(**{name: _map(function, *(getattr(tree, name) for tree in trees)) for name in names})
    return function(*trees)


def _vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    def mapped(*batches: Any) -> Any:
        leaves: list[Any] = []
        _map(lambda leaf: leaves.append(leaf), batches[0])
        rows = [
            function(*(_map(lambda leaf, i=i: np.asarray(leaf)[i], batch) for batch in batches))
            for i in range(len(leaves[0]))
        ]
        return _map(lambda *values: np.stack([np.asarray(value) for value in values]), *rows)

    return mapped


def _split(key: Any, count: int = 2) -> Any:
    return np.random.SeedSequence(key.tolist()).generate_state(2 * count).reshape(count, 2)


def _randint(key: Any, shape: Any, low: int, high: int) -> Any:
    return np.asarray(np.random.default_rng(key.tolist()).integers(low, high, shape), dtype=np.int32)


def numpy_jax() -> types.ModuleType:
    module: Any = types.ModuleType("jax")
    module.numpy, module.vmap = np, _vmap
    module.jit = module.eval_shape = lambda function, *arguments: function(*arguments) if arguments else function
    module.random = types.SimpleNamespace(
        PRNGKey=lambda seed: np.array([0, seed], dtype=np.uint32), split=_split, randint=_randint
    )
    module.lax = types.SimpleNamespace(cond=lambda wanted, yes, no: yes() if wanted else no())
    module.tree = types.SimpleNamespace(map=_map)
    module.dlpack = types.SimpleNamespace(from_dlpack=np.from_dlpack)
    module.default_backend, module.devices = lambda: "cpu", lambda: [None]
    module.device_put = lambda array, _: array
    return module  # type: ignore[no-any-return]
