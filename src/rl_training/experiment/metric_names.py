"""The names of metrics in results, in the log, and in text.

Results (`TrainResult.metrics`, run.json, `evaluate`) have Python identifiers as names. The log (`metrics.csv`,
TensorBoard, loggers) has the tags that are common in dashboards. Tables have words. Users may write either name;
`tag_of` accepts both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    """The names of one metric; `tag` is empty if the log does not contain it."""

    name: str
    tag: str
    words: str


METRICS = (
    Metric("eval_return_mean", "eval/mean_reward", "mean return"),
    Metric("eval_return_std", "eval/std_reward", "standard deviation of returns"),
    Metric("eval_return_min", "eval/min_reward", "lowest return"),
    Metric("eval_return_max", "eval/max_reward", "highest return"),
    Metric("eval_length_mean", "eval/mean_ep_length", "mean length"),
    Metric("eval_episodes", "eval/episodes", "episodes"),
    Metric("eval_success_rate", "eval/success_rate", "success rate"),
    Metric("eval_normalized_score", "eval/normalized_score", "normalized score"),
    Metric("eval_return_best", "", "best mean return"),
    Metric("validation_distance", "validation/action_distance", "distance from held-out actions"),
    Metric("rollout_return_mean", "rollout/ep_rew_mean", "mean return of training episodes"),
    Metric("rollout_length_mean", "rollout/ep_len_mean", "mean length of training episodes"),
    Metric("global_step", "time/total_timesteps", "environment steps"),
    Metric("update_count", "train/n_updates", "updates"),
    Metric("steps_per_second", "time/fps", "steps per second"),
    Metric("learning_rate", "train/learning_rate", "learning rate"),
    Metric("alpha", "train/ent_coef", "temperature"),
)
# Tags of the metrics of which the lowest value is the best.
_LESS_IS_BETTER = frozenset({"validation/action_distance"})
# The metrics by both of their names.
KNOWN = {name: metric for metric in METRICS for name in (metric.name, metric.tag) if name}


def words_of(name: str) -> str:
    """The name of a metric in words, given its name in results or in the log."""
    return KNOWN[name].words if name in KNOWN else name


def result_name(name: str) -> str:
    """The name of a metric in results, given that name or its name in the log (`eval/mean_reward`)."""
    return KNOWN[name].name if name in KNOWN else name


def tag_of(name: str) -> str:
    """The name of a metric in the log, given that name or its name in results (`eval_return_mean`)."""
    return KNOWN[name].tag or name if name in KNOWN else name


def less_is_better(name: str) -> bool:
    """Whether the lowest value of a metric is the best, given its name in the log or in results."""
    return tag_of(name) in _LESS_IS_BETTER


def term_tag(term: str) -> str:
    """The name of an update's term in the log: `train/critic_loss`."""
    return KNOWN[term].tag if term in KNOWN else f"train/{term}"


def log_row(results: Mapping[str, float]) -> dict[str, float]:
    """Results with their names in the log."""
    return {tag_of(name): value for name, value in results.items()}
