"""Normalised scores: the returns that score 0 and 1 on each task, and their source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl_training.data.scores import reference_returns
from rl_training.errors import ConfigError
from rl_training.experiment.metric_names import tag_of
from rl_training.report.statistics import Floats

NORMALIZE = ("auto", "d4rl", "range")
# The metrics that have the units of D4RL's reference returns.
_RETURNS = {
    tag_of(name) for name in ("eval_return_mean", "eval_return_min", "eval_return_max", "rollout_return_mean")
}


@dataclass(frozen=True)
class Scale:
    """The returns of a task that score 0 and 1."""

    low: float
    high: float
    source: str

    def score(self, values: Floats) -> Floats:
        return (values - self.low) / (self.high - self.low)


def scale_of(
    task: str,
    env_id: str | None,
    results: Sequence[Floats],
    metric: str,
    normalize: str = "auto",
    references: Mapping[str, tuple[float, float]] | None = None,
) -> Scale | None:
    """The scale of a task: as given in `references`, by D4RL's reference returns if `metric` is a return, or by the
    range of all results.

    The keys of `references` are names of tasks or environments. Returns None if the range is empty.
    """
    if normalize not in NORMALIZE:
        raise ConfigError(f"normalize must be one of {', '.join(NORMALIZE)}, got {normalize!r}", key="normalize")
    for name in (task, env_id or ""):
        if references and name in references:
            return _given(name, *references[name])
    is_return = tag_of(metric) in _RETURNS
    known = reference_returns(env_id) if env_id and is_return and normalize != "range" else None
    if known is not None:
        return Scale(*known, "D4RL's reference returns of a random and an expert policy (its v2 tasks)")
    if normalize == "d4rl":
        lacks = f"{task} has no reference returns" if is_return else f"{metric} is not a return"
        raise ConfigError(f"normalize d4rl: {lacks}; pass references", key="normalize")
    values = [float(value) for result in results for value in result]
    if not values or not min(values) < max(values):
        return None
    return Scale(min(values), max(values), "the lowest and the highest result of any run in this report")


def _given(name: str, low: float, high: float) -> Scale:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"reference of {name}: expected two numbers, the lower first, got {low:g} and {high:g}")
    return Scale(low, high, "given")
