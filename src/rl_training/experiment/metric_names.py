"""One number, one table of names: in results, in the log, and in words.

Results (`TrainResult.metrics`, run.json, `evaluate`) have names that Python and JSON like; the log
(`metrics.csv`, TensorBoard, loggers) has the tags that dashboards of the field know; tables have words. Where a
metric is named by a user, either name will do: `tag_of` knows both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    """The names of one number; `tag` is empty where results have it and the log does not."""

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
# What the terms of an update mean; the log has them as `train/<term>`.
TERMS = {
    "loss": "Huber loss of Q against its target",
    "critic_loss": "what the critics minimise, regularisers included",
    "critic_mse_loss": "the temporal-difference part of the critics' loss",
    "actor_loss": "what the actor minimises",
    "value_loss": "expectile loss of the value function",
    "q_mean": "mean of Q at the actions taken",
    "target_q_mean": "mean of what the critics regress on; growth without end is overestimation",
    "q_data_std": "how far the critics disagree at the data's actions",
    "q_policy_std": "how far they disagree at the policy's actions",
    "entropy_term": "mean of alpha log pi; the policy's entropy is minus this over alpha",
    "alpha": "weight of the entropy, fixed or learned",
    "advantage_mean": "mean advantage of the data's actions over the policy's",
    "advantage_weight_mean": "mean weight of the cloned actions; at the cap, advantages are too large for it",
    "behavior_logprob_mean": "mean log-likelihood of the data's actions",
    "bc_loss": "squared distance of the policy to the data's actions",
    "q_scale": "factor on Q in the actor's loss",
    "diversity_loss": "how much the critics' action gradients point the same way",
    "conservative_gap": "how far Q at sampled actions lies above Q at the data's",
    "conservative_loss": "the conservative part of the critics' loss, its weight included",
    "multiplier": "the learned weight of the conservative penalty",
    "multiplier_loss": "what moves that weight",
}
_BY_NAME = {metric.name: metric for metric in METRICS}


def words_of(name: str) -> str:
    """A result in words."""
    return _BY_NAME[name].words


def tag_of(name: str) -> str:
    """The name a number has in the log, given that or the one it has in results: `eval_return_mean`."""
    return _BY_NAME[name].tag or name if name in _BY_NAME else name


def term_tag(term: str) -> str:
    """The name in the log of a term of an update: `train/critic_loss`."""
    return _BY_NAME[term].tag if term in _BY_NAME else f"train/{term}"


def log_row(results: Mapping[str, float]) -> dict[str, float]:
    """Results by the names of the log."""
    return {tag_of(name): value for name, value in results.items()}
