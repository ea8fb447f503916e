"""`ope`: rank policies by logged data, with confidence intervals."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from rl_training.algorithms.fqe import FQEConfig
from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes, Resample, hold_out, resamples
from rl_training.display.text import plain_data
from rl_training.errors import ConfigError, nearest
from rl_training.experience.fqe_data import action_distance, acts
from rl_training.models.mlp import NetworkConfig
from rl_training.models.policies import Policy
from rl_training.off_policy_evaluation import defaults
from rl_training.off_policy_evaluation.fitting import BATCH_SIZE, Fit, Plan, Watch, fit
from rl_training.off_policy_evaluation.importance import (
    Logs,
    doubly_robust_of,
    effective_episodes,
    log_weights,
    logged_probabilities,
    weighted_mean,
)
from rl_training.off_policy_evaluation.policies import Candidate, Data, Place, candidates, load_data
from rl_training.runs.building import choose_device, prepare_process
from rl_training.seeding import resampling
from rl_training.updates.updater import Acceleration

Floats = NDArray[np.float64]
Method = Literal["fqe", "wis", "dr"]
CONFIDENCE = 0.95
CAVEAT = (
    "the ranks hold for these data; the values do not predict returns, and the intervals exclude errors that all "
    "estimates share"
)
# Number of rows whose actions are compared with the logged ones, and of rows searched for their nearest neighbours.
_COMPARED, _NEIGHBOURS = 2_000, 10_000
# A policy acts unlike the data if its distance exceeds `_FAR` times the data's own distance, or this minimum.
_FAR, _FAR_AT_LEAST = 2.0, 0.05
# Fewer time constants of FQE than this, 1 / (tau (1 - gamma)) updates each, add a note that it has not converged.
_ENOUGH = 3.0


@dataclass(frozen=True)
class PolicyEstimate:
    """Estimate of one policy; a field is None if the method does not compute it.

    `rank` counts from 1; a policy without a value has none. `agreement` is the share of bootstraps that assign the
    same rank, `first` the share in which no policy is better. `tied` is true if the confidence interval of the
    difference to rank 1 contains 0. `distance` is the distance of the policy's actions from the logged ones, in
    units of the action range (discrete: the share of actions that differ). `clipped` is the share of FQE targets
    clipped to the bounds of possible values, `drift` the change of the value over the last fifth of the updates,
    `effective_episodes` the effective sample size of importance sampling, in episodes.
    """

    name: str
    checkpoint: Path
    rank: int | None
    value: float | None
    low: float | None
    high: float | None
    agreement: float | None
    first: float | None
    tied: bool
    distance: float
    clipped: float | None
    drift: float | None
    effective_episodes: float | None
    values: tuple[float, ...]  # by bootstrap


@dataclass(frozen=True)
class OPEResult:
    """Policies ordered by rank, and the data and settings of the evaluation.

    `data_distance` is the same distance within the data: between the logged actions of a state and of its nearest
    neighbour.
    """

    policies: tuple[PolicyEstimate, ...]
    method: Method
    dataset: str
    rows: int
    episodes: int
    held_out: bool
    gamma: float
    bootstraps: int
    updates: int | None
    seed: int
    data_distance: float
    notes: tuple[str, ...]

    @property
    def best(self) -> PolicyEstimate:
        return self.policies[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-serialisable data."""
        return {**plain_data(self), "caveat": CAVEAT}


def ope(
    runs: Place | Iterable[Place],
    dataset: Data,
    *,
    method: Method = "fqe",
    bootstraps: int = defaults.BOOTSTRAPS,
    updates: int = defaults.UPDATES,
    batch_size: int = BATCH_SIZE,
    validation_fraction: float = defaults.VALIDATION_FRACTION,
    stochastic: bool = False,
    action_probs: ArrayLike | None = None,
    seed: int = defaults.SEED,
    device: str = defaults.DEVICE,
    acceleration: Acceleration = "auto",
    network: NetworkConfig | None = None,
    allow_import: bool = False,
    watch: Watch = lambda done: None,
    warn: Callable[[str], None] = warnings.warn,
    **hyperparameters: Any,
) -> OPEResult:
    """Rank policies by logged data alone (off-policy evaluation).

    `runs` are run folders (their newest checkpoints are evaluated) or checkpoints, `dataset` a file, a Minari id or
    a `TransitionDataset`. `method` is `fqe` or, for discrete actions with logged probabilities, `wis` (weighted
    importance sampling) or `dr` (doubly robust). `action_probs`, one number per row, replace those of the data.

    Intervals and agreement come from `bootstraps` resamples of whole episodes; 1 uses the data once, without
    intervals. `validation_fraction` restricts the evaluation to the episodes that training with the same fraction
    held out. Policies act as in evaluation; `stochastic` samples their actions instead.
    `hyperparameters` are those of FQE: `gamma tau learning_rate weight_decay`. `allow_import` permits to import
    what the runs have recorded as `module:Name`. `watch` is called with the share of the work that is done. The
    result is reproducible on the same machine.
    """
    plan = make_plan(updates, batch_size, seed, stochastic, acceleration, network, **hyperparameters)
    _require(method, bootstraps, validation_fraction)
    if method == "wis":
        fitting = {name: value for name, value in hyperparameters.items() if name != "gamma"}
        fitting |= {"updates": updates, "batch_size": batch_size}
        warn_of_unused(fitting, "with method wis, which fits nothing", warn)
    if method == "fqe" and action_probs is not None:
        warn("action_probs have no effect with method fqe; leave them out")
    home = choose_device(device)
    prepare_process(home)
    found = candidates(runs, warn, allow_import=allow_import, stochastic=stochastic)
    whole = load_data(dataset, found)
    probs = None if method == "fqe" else _probabilities(dataset, whole, action_probs)
    data = hold_out(whole, validation_fraction).held_out if validation_fraction else whole
    return evaluate(found, data, plan, method, bootstraps, probs, home, watch, held_out=data is not whole)


def make_plan(
    updates: int,
    batch_size: int = BATCH_SIZE,
    seed: int = defaults.SEED,
    stochastic: bool = False,
    acceleration: Acceleration = "auto",
    network: NetworkConfig | None = None,
    **hyperparameters: Any,
) -> Plan:
    """Validate the settings of FQE."""
    if updates < 10:
        raise ConfigError(f"updates must be >= 10, got {updates}")
    if batch_size < 1:
        raise ConfigError(f"batch_size must be >= 1, got {batch_size}")
    if seed < 0:
        raise ConfigError(f"seed must be >= 0, got {seed}")
    for name in hyperparameters:
        if name not in FQEConfig.model_fields:
            known = FQEConfig.model_fields
            raise ConfigError(f"ope: unknown setting {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    config = FQEConfig.parse(hyperparameters)
    return Plan(updates, batch_size, seed, stochastic, acceleration, config, network or NetworkConfig())


def warn_of_unused(given: Mapping[str, Any], reason: str, warn: Callable[[str], None]) -> None:
    """Warn of the settings in `given` that have no effect, unless they have their default."""
    updates = (defaults.UPDATES, defaults.SELECTION_UPDATES)
    usual = {"updates": updates, "bootstraps": (defaults.CRITICS,), "batch_size": (BATCH_SIZE,)}
    for name, value in given.items():
        if value is not False and value not in usual.get(name, ()):
            warn(f"{name}: {value} has no effect {reason}; leave it out")


def _require(method: str, bootstraps: int, fraction: float) -> None:
    known = get_args(Method)
    if method not in known:
        raise ConfigError(f"method must be one of {', '.join(known)}, got {method!r}{nearest(method, known)}")
    if bootstraps < 1:
        raise ConfigError(f"bootstraps must be >= 1, got {bootstraps}")
    if fraction and method != "fqe":
        raise ConfigError(f"validation_fraction is for method fqe; {method} uses all episodes")


def _probabilities(dataset: Data, loaded: TransitionDataset, given: ArrayLike | None) -> Floats:
    """The probabilities of the logged actions, one per row of `loaded`."""
    missing = given is None and loaded.action_probs is None and loaded.spaces.discrete
    if missing and isinstance(dataset, TransitionDataset):
        raise ConfigError(f"action_probs: {loaded.name} are in memory; give the probabilities of their actions")
    return logged_probabilities(loaded, given)


def evaluate(
    found: Sequence[Candidate],
    data: TransitionDataset,
    plan: Plan,
    method: Method,
    bootstraps: int,
    probs: Floats | None,
    home: torch.device,
    watch: Watch,
    *,
    held_out: bool,
) -> OPEResult:
    """Evaluate loaded policies; `probs` are the probabilities of the logged actions, None for FQE."""
    episodes = Episodes.of(data, "off-policy evaluation")
    parts = resamples(episodes, bootstraps, resampling(plan.seed), home)
    policies = [one.policy for one in found]
    fitted: Fit | None = None
    if method != "wis":
        fitted = fit(data, episodes, policies, parts, plan, home, keep=method == "dr", watch=watch)
    policies = [policy.cpu() for policy in policies]
    if probs is None:
        assert fitted is not None
        values, effective = fitted.values, None
    else:
        logs = Logs(data, episodes.to_termination(data.dones), probs, plan.config.gamma)
        values, effective = _by_importance(logs, policies, parts, fitted, plan.sampled)
    distances, own = _distances(data, policies, plan.seed, sampled=plan.sampled)
    estimates = _ranked(found, values, fitted, effective, distances)
    return OPEResult(
        policies=tuple(sorted(estimates, key=lambda one: one.rank or len(found) + 1)),
        method=method,
        dataset=data.name,
        rows=len(data),
        episodes=len(episodes.starts),
        held_out=held_out,
        gamma=plan.config.gamma,
        bootstraps=bootstraps,
        updates=None if fitted is None else plan.updates,
        seed=plan.seed,
        data_distance=own,
        notes=(*_notes(plan, data, episodes, values, fitted), *_far_from(estimates, own)),
    )


def _by_importance(
    logs: Logs, policies: Sequence[Policy], parts: Sequence[Resample], fitted: Fit | None, sampled: bool
) -> tuple[Floats, list[float]]:
    """Values `[K, B]` by importance sampling, doubly robust if FQE was fitted, and effective episodes `[K]`."""
    values, effective = [], []
    returns = logs.dataset.episode_returns(logs.gamma)
    for k, policy in enumerate(policies):
        ratios = logs.ratios(policy, sampled=sampled)
        weights = log_weights(ratios, logs.episodes)
        effective.append(effective_episodes(weights))
        if fitted is None:
            values.append(weighted_mean(weights, returns, parts))
        else:
            values.append(doubly_robust_of(logs, policy, ratios, fitted.learners[k], parts, sampled=sampled))
    return np.stack(values), effective


def interval(values: Floats) -> tuple[float | None, float | None]:
    """Student-t confidence interval from the standard deviation over bootstraps with a value; None for one."""
    values = values[np.isfinite(values)]
    count = len(values)
    if count < 2:
        return None, None
    half = students_quantile(count - 1) * float(values.std(ddof=1))
    return float(values.mean()) - half, float(values.mean()) + half


def students_quantile(freedom: int) -> float:
    """Two-sided quantile of Student's t distribution, by its expansion around the normal distribution.

    Exact for one and two degrees of freedom, within 1 % from three on.
    """
    tail = (1.0 + CONFIDENCE) / 2.0
    if freedom == 1:
        return math.tan(math.pi * (tail - 0.5))
    if freedom == 2:
        share = 4.0 * tail * (1.0 - tail)
        return 2.0 * (tail - 0.5) * math.sqrt(2.0 / share)
    z = NormalDist().inv_cdf(tail)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms)))


def ranks(values: Floats) -> NDArray[np.int64]:
    """Ranks along the first axis, 1 for the largest value; equal values share a rank, NaN ranks last."""
    finite = np.where(np.isnan(values), -np.inf, values)
    return 1 + (finite[None] > finite[:, None]).sum(1)


def _ranked(
    found: Sequence[Candidate],
    values: Floats,
    fitted: Fit | None,
    effective: Sequence[float] | None,
    distances: Sequence[float],
) -> list[PolicyEstimate]:
    means = np.array([one[np.isfinite(one)].mean() if np.isfinite(one).any() else np.nan for one in values])
    several = values.shape[1] > 1
    overall, each = ranks(means), np.where(np.isnan(values), 0, ranks(values))  # [K], [K, B]; 0: without a value
    first = int(np.argmin(overall))
    estimates = []
    for k, candidate in enumerate(found):
        low, high = interval(values[k])
        behind = interval(values[first] - values[k])[0]
        valued = not math.isnan(means[k])
        estimates.append(
            PolicyEstimate(
                name=candidate.name,
                checkpoint=candidate.checkpoint,
                rank=int(overall[k]) if valued else None,
                value=float(means[k]) if valued else None,
                low=low,
                high=high,
                agreement=float((each[k] == overall[k]).mean()) if several and valued else None,
                first=float((each[k] == 1).mean()) if several and valued else None,
                tied=k != first and behind is not None and behind <= 0,
                distance=distances[k],
                clipped=None if fitted is None else float(fitted.clipped[k].mean()),
                drift=None if fitted is None else float(fitted.drift[k].mean()),
                effective_episodes=None if effective is None else effective[k],
                values=tuple(float(value) for value in values[k]),
            )
        )
    return estimates


def _notes(
    plan: Plan, data: TransitionDataset, episodes: Episodes, values: Floats, fitted: Fit | None
) -> tuple[str, ...]:
    """Notes on the reliability of the ranks."""
    notes = list(data.notes)
    if fitted is not None and (constant := plan.config.tau * (1.0 - plan.config.gamma)) > 0:
        if plan.updates * constant < _ENOUGH:
            share = 1.0 - math.exp(-plan.updates * constant)
            needed = math.ceil(_ENOUGH / constant / 1000) * 1000
            notes.append(
                f"after {plan.updates:,} updates FQE has converged by about {share:.0%}; use {needed:,} updates or "
                "a larger tau"
            )
        if np.ptp(data.rewards) == 0.0 and not data.dones.any():
            notes.append("every policy has the same value: all rewards are equal, and no episode terminates")
        elif float(fitted.clipped.mean()) > 0.05:
            notes.append("many targets were clipped: FQE overestimates what these rewards allow")
    if np.isnan(values).all(1).any():
        notes.append("a policy has no value if no logged episode has positive probability under it")
    if empty := int((np.isnan(values) & ~np.isnan(values).all(1, keepdims=True)).any(0).sum()):
        notes.append(
            f"{empty} of {values.shape[1]} resamples have no episode with positive probability under a policy; its "
            "value leaves them out"
        )
    if len(episodes.starts) < 20:
        notes.append(f"{len(episodes.starts)} episodes are few for a bootstrap over episodes")
    return tuple(notes)


def _far_from(estimates: Sequence[PolicyEstimate], own: float) -> list[str]:
    """A note for each policy whose actions are far from the data."""
    return [
        f"{one.name} acts unlike the data (distance {one.distance:.2f}, between similar states {own:.2f}): its "
        "value is extrapolated"
        for one in estimates
        if one.distance > _FAR * max(own, _FAR_AT_LEAST)
    ]


def _distances(
    data: TransitionDataset, policies: Sequence[Policy], seed: int, *, sampled: bool = False
) -> tuple[list[float], float]:
    """Distance of each policy's actions from the logged ones, and of the logged actions of similar states."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(data), min(_COMPARED, len(data)), replace=False))
    others = np.sort(rng.choice(len(data), min(_NEIGHBOURS, len(data)), replace=False))
    here, there = (data.columns_at(index) for index in (chosen, others))
    actions, known = (one.actions.view(len(one.obs), -1).float() for one in (here, there))
    discrete = data.spaces.discrete
    found = [action_distance(acts(policy, here.obs, sampled=sampled), actions, discrete) for policy in policies]
    mean, std = (torch.from_numpy(one) for one in data.observation_moments())
    # Without the mean a component that hardly varies would be so large that rounding hides the others.
    ours, theirs = ((one.obs - mean) / (std + 1e-6) for one in (here, there))
    apart = torch.cdist(ours, theirs)
    apart[torch.from_numpy(chosen[:, None] == others[None])] = torch.inf
    own = action_distance(known[apart.argmin(1)], actions, discrete) if len(data) > 1 else 0.0
    return found, own
