"""Check that an exported file acts as the policy does, before the file is written.

An action may differ by 1e-5 in the environment's units, or by 1e-5 of half its range if that is below 1. If single
precision cannot achieve this (large observations or actions), the tolerance is ten times the largest difference
between `predict` and the same policy in double precision. Discrete actions must be equal unless their scores are
tied within this tolerance.

An action must only be legal if it depends on rounding: if a component of the observation is near the largest
float32, where the order of a sum determines whether it overflows, or if single precision changes the action by more
than a thousandth of half its range.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.errors import ExportError
from rl_training.export.observations import Observations
from rl_training.models.policies import Policy
from rl_training.runtime.loading import LoadedPolicy
from rl_training.spaces import SpaceSpec

Array = NDArray[Any]
Runner = Callable[[Array, Array | None], Array]
TOLERANCE = 1e-5
ROUNDINGS = 10.0
_LARGEST = 1e30  # magnitude of an observation whose action is compared
_MOST_ROUNDING = 1e-3  # share of half the range by which rounding may change an action that is compared
_SMALL_BATCHES = {1: 50, 7: 70}  # rows that are also run in batches of that size


@dataclass(frozen=True)
class Parity:
    """Comparison of a file with the policy: the `largest` and the `allowed` difference over the compared `rows`.

    For discrete actions the difference is in score, or in probability if actions are sampled; `ties` is the number
    of actions that are not equal.
    """

    largest: float
    allowed: float
    rows: int
    ties: int = 0


@dataclass(frozen=True)
class _Group:
    """Rows that are compared together, with the outputs of the policy."""

    obs: Array
    noise: Array | None
    actions: Array  # of `predict`
    compared: NDArray[np.bool_]  # rows whose actions do not depend on rounding; the others must be legal
    allowed: Array  # difference per action component; discrete: of the scores
    scores: Array | None = None  # discrete, in double precision


def check(run: Runner, loaded: LoadedPolicy, observations: Observations, *, sampled: bool) -> Parity:
    """Compare the file with the policy; raise `ExportError` if they differ, return the result on `seen`."""
    seen, _ = (
        _compare(run, loaded, _group(loaded, rows, noise_for(loaded, len(rows)) if sampled else None))
        for rows in (observations.seen, observations.beyond)
    )
    return seen


def noise_for(loaded: LoadedPolicy, rows: int) -> Array:
    """Standard normal numbers from a fixed seed."""
    return np.random.default_rng(2).standard_normal((rows, loaded.spaces.action_dim)).astype(np.float32)


def _group(loaded: LoadedPolicy, obs: Array, noise: Array | None) -> _Group:
    spaces, exact, wide = loaded.spaces, copy.deepcopy(loaded.policy).double(), _wide(obs)
    actions, rough = loaded.act(obs, noise), _outputs(loaded.policy, spaces, obs, noise)
    reference = _outputs(exact, spaces, wide, noise)
    if not spaces.discrete:
        reference = _wide(spaces.to_env(np.nan_to_num(reference, nan=0.0)))
    compared = np.logical_and((np.abs(obs) < _LARGEST).all(-1), np.isfinite(rough).all(-1))
    rounding = np.abs((rough if spaces.discrete else _wide(actions)) - reference)
    if spaces.discrete:
        allowed = np.maximum(TOLERANCE, ROUNDINGS * rounding[compared].max(initial=0.0))
    else:
        low, high, inner_low, _ = spaces.scaling
        half = 0.5 * high - 0.5 * low
        kind = np.finfo(inner_low.dtype)
        unit = np.maximum(float(kind.eps) * np.maximum(np.abs(low), np.abs(high)), float(kind.smallest_subnormal))
        compared &= np.all(rounding <= np.maximum(_MOST_ROUNDING * half, unit), axis=-1)
        largest = rounding[compared].max(axis=0, initial=0.0)
        allowed = np.maximum.reduce([TOLERANCE * np.minimum(1.0, half), ROUNDINGS * largest, unit])
    return _Group(obs, noise, actions, compared, allowed, reference if spaces.discrete else None)


def _outputs(policy: Policy, spaces: SpaceSpec, rows: Array, noise: Array | None) -> Array:
    """Scores of discrete actions, else internal actions, in the precision of `rows`."""
    with torch.inference_mode():
        obs = torch.from_numpy(rows)
        if spaces.discrete:
            outputs = policy.scores(obs)
        elif noise is None:
            outputs = policy.mode(obs)
        else:
            outputs = policy.sample(obs, torch.from_numpy(noise).to(obs.dtype))
    found: Array = outputs.numpy()
    return found


def _wide(array: Array) -> Array:
    """Convert to double precision, so that differences of float16 or of the largest float32 do not overflow."""
    return array.astype(np.float64)


def _compare(run: Runner, loaded: LoadedPolicy, group: _Group) -> Parity:
    largest, ties = 0.0, 0
    for rows in _batches(len(group.obs)):
        got = run(group.obs[rows], None if group.noise is None else group.noise[rows])
        _require_legal(got, group.actions[rows], loaded)
        compared = group.compared[rows]
        if group.scores is None:
            difference = np.abs(_wide(got) - _wide(group.actions[rows]))[compared]
        else:
            noise = None if group.noise is None else group.noise[rows]
            difference = _missed(group.scores[rows], got.astype(np.int64) - loaded.spaces.start, noise)[compared]
            ties += int(np.sum((got != group.actions[rows])[compared]))
        if np.any(difference > group.allowed):
            worst = float(difference.max())
            raise ExportError(
                f"its actions differ from the policy's by up to {worst:.4g}, "
                f"{float(np.max(group.allowed)):.4g} is allowed; nothing was written"
            )
        largest = max(largest, float(difference.max(initial=0.0)))
    return Parity(largest, float(np.max(group.allowed)), int(group.compared.sum()), ties)


def _batches(rows: int) -> Iterator[slice]:
    """All rows at once, and some of them in small batches."""
    yield slice(0, rows)
    for size, count in _SMALL_BATCHES.items():
        for start in range(0, min(count, rows) - size + 1, size):
            yield slice(start, start + size)


def _missed(scores: Array, chosen: Array, noise: Array | None) -> Array:
    """Distance of the chosen actions from the correct ones, `[B]`: in score, or in probability if sampled."""
    if noise is None:
        own = np.take_along_axis(scores, chosen[:, None], -1)[:, 0]
        return scores.max(-1) - own
    ends = torch.from_numpy(scores).softmax(-1).cumsum(-1).numpy()
    drawn = torch.special.ndtr(torch.from_numpy(noise[:, 0]).double()).numpy()
    above = np.take_along_axis(np.pad(ends, ((0, 0), (1, 0))), chosen[:, None], -1)[:, 0] - drawn
    below = drawn - np.take_along_axis(ends, chosen[:, None], -1)[:, 0]
    return np.maximum(np.maximum(above, below), 0.0)


def _require_legal(got: Array, wanted: Array, loaded: LoadedPolicy) -> None:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        raise ExportError(
            f"its actions are {got.dtype} {list(got.shape)} instead of {wanted.dtype} {list(wanted.shape)}; "
            "nothing was written"
        )
    spaces = loaded.spaces
    if spaces.discrete:
        legal = (got >= spaces.start) & (got < spaces.start + spaces.num_actions)
    else:
        legal = (got >= spaces.scaling[2]) & (got <= spaces.scaling[3])
    if not legal.all():
        raise ExportError("its actions are outside the bounds of their space; nothing was written")
