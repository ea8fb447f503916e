"""Choose a policy by logged data, or abstain.

A candidate is eligible if at most a tenth of its actions are outside the data (`support`). FQE evaluates the
eligible ones with independently initialised critics, each on its own bootstrap of the episodes. The candidate with
the largest lower bound is chosen. The selection abstains if no candidate is eligible, if FQE overestimates a clone
of the data, if no lower bound exceeds the data's own return, or if the values differ by less than their intervals.
With `episodes`, a few episodes in the environment decide instead of FQE.
Every critic has its own target: with the minimum of ten critics as a common target, pessimism accumulates over the
200 steps of this discount, and FQE of the logged actions themselves falls far below the data's return.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.algorithms.bc import BC
from rl_training.algorithms.discrete_bc import DiscreteBC
from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes, hold_out, resamples
from rl_training.data.sources import TensorSource
from rl_training.display.text import plain_data
from rl_training.environments.tensor_playing import make_evaluator
from rl_training.errors import ConfigError
from rl_training.experience.fqe_data import estimated_returns
from rl_training.models.mlp import NetworkConfig
from rl_training.models.policies import Policy
from rl_training.off_policy_evaluation import defaults
from rl_training.off_policy_evaluation.evaluation import OPEResult, evaluate, interval, make_plan, warn_of_unused
from rl_training.off_policy_evaluation.fitting import Plan, Watch, fit, report_part
from rl_training.off_policy_evaluation.policies import Candidate, Data, Place, candidates, load_data
from rl_training.off_policy_evaluation.support import Support
from rl_training.runs.building import choose_device, prepare_process
from rl_training.seeding import EVALUATION_SEED, learner_seeds, resampling
from rl_training.updates.updater import Updater, accelerate

Floats = NDArray[np.float64]
By = Literal["fqe", "return"]
# The share of actions outside the data up to which a candidate is eligible.
MOST_OUTSIDE = 0.10
SAFE_CLONE = "BC (behaviour cloning; not among the candidates)"


class Estimate(NamedTuple):
    """A value with its 95 % confidence interval, which is None if there is only one sample."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Floats) -> Estimate:
        """From values of bootstraps."""
        return cls(float(values.mean()), *interval(values))

    @property
    def lower_bound(self) -> float:
        return -np.inf if self.low is None else self.low


@dataclass(frozen=True)
class Assessment:
    """A candidate, and the share of its actions that are `outside` the data; None if there are no data.

    `estimate` is its discounted value by FQE, or its mean return over `episodes` episodes; None if it was not
    evaluated, because it is not eligible or the selection abstained before.
    """

    name: str
    checkpoint: Path
    outside: float | None
    estimate: Estimate | None = None
    episodes: int = 0

    @property
    def eligible(self) -> bool:
        return self.outside is not None and self.outside <= MOST_OUTSIDE


@dataclass(frozen=True)
class Selection:
    """The selected trial and its checkpoint; both are None if the selection abstained.

    `ranking` has (name, value) of the evaluated trials, best first. `judgement` is the result of FQE, if it was
    used. `left_out` are trials that are not done, have no value to compare, or belong to a configuration with such
    a trial. `scores` has the interquartile mean of the returns of each trial's configuration if returns decided;
    the ranking is ordered by it first.

    `candidates` are ordered by lower bound, or by `outside` if the selection abstained. `data` is the data's own
    discounted return and `clone` FQE's estimate of a clone of the data. `reasons` are those for abstaining; with
    `anyway` there may be reasons and a trial. `safe` names the choice that stays nearest to the data. `playable`:
    the run of every candidate has an environment, which `episodes` needs.
    `notes` explain why trials are left out; `warnings` name configurations that are left out and better so far.
    """

    trial: str | None
    checkpoint: Path | None
    ranking: tuple[tuple[str, float], ...]
    by: By
    judgement: OPEResult | None = None
    left_out: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    candidates: tuple[Assessment, ...] = ()
    data: Estimate | None = None
    clone: Estimate | None = None
    reasons: tuple[str, ...] = ()
    safe: str = ""
    playable: bool = False
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def abstained(self) -> bool:
        return self.trial is None

    def to_dict(self) -> dict[str, Any]:
        """Return the selection as JSON-serialisable data."""
        judgement = None if self.judgement is None else self.judgement.to_dict()
        return {**plain_data(self), "abstained": self.abstained, "judgement": judgement}


def choose(
    places: Mapping[str, Place],
    dataset: Data | None,
    *,
    anyway: bool = False,
    episodes: int | None = None,
    bootstraps: int = defaults.CRITICS,
    validation_fraction: float = defaults.VALIDATION_FRACTION,
    device: str = defaults.DEVICE,
    allow_import: bool = False,
    watch: Watch = lambda done: None,
    warn: Callable[[str], None] = warnings.warn,
    **options: Any,
) -> Selection:
    """Choose one of the policies in `places` (run folders or checkpoints by name) by logged data, or abstain.

    `anyway` chooses despite reasons to abstain: the largest lower bound of the eligible, or else the candidate
    nearest to the data. `episodes` is the number of episodes to play in the environment of the runs instead of
    fitting FQE; `dataset` may then be None. `bootstraps` is the number of critics, and of bootstraps of the
    episodes. Other arguments as in `ope`, with 20,000 updates and a discount of 0.995 by default.
    """
    started = time.monotonic()
    plan = make_plan(**{"updates": defaults.SELECTION_UPDATES, "gamma": defaults.SELECTION_GAMMA} | options)
    if bootstraps < 2:
        raise ConfigError(f"bootstraps must be >= 2, got {bootstraps}: a selection needs intervals")
    home = choose_device(device)
    prepare_process(home)
    loaded = candidates(places.values(), warn, allow_import=allow_import, stochastic=plan.sampled)
    found = [replace(one, name=name) for name, one in zip(places, loaded)]
    if episodes is not None:
        _require_environment(found, episodes)
        fitting = {name: value for name, value in options.items() if name not in ("seed", "stochastic")}
        given = {"anyway": anyway, "bootstraps": bootstraps} | fitting
        warn_of_unused(given, "if episodes are played, which need no FQE", warn)
    elif dataset is None:
        raise ConfigError("select: FQE needs a dataset; give one, or episodes to play")
    data = others = None if dataset is None else load_data(dataset, found)
    if validation_fraction and data is not None:
        others, data = hold_out(data, validation_fraction)
    chooser = Chooser(found, data, others, plan, bootstraps, home, watch)
    chosen = chooser.by_episodes(episodes) if episodes is not None else chooser.by_fqe(anyway=anyway)
    _warn_of_tie([one.episodes for one in chosen.candidates], warn)
    _warn_of_higher_mean(chosen, warn)
    return replace(chosen, seconds=time.monotonic() - started)


class Chooser:
    """Loaded candidates and the data to choose by; `others` are the same data, or the episodes not held out.

    `by_episodes` needs no data.
    """

    def __init__(
        self,
        found: Sequence[Candidate],
        data: TransitionDataset | None,
        others: TransitionDataset | None,
        plan: Plan,
        bootstraps: int,
        home: torch.device,
        watch: Watch = lambda done: None,
    ) -> None:
        self.found, self.data, self.plan, self.bootstraps, self.home = found, data, plan, bootstraps, home
        self.watch, self.held_out = watch, others is not data
        support = None if data is None or others is None else Support(data, others, plan.seed, home)
        made = [
            Assessment(
                one.name,
                one.checkpoint,
                None if support is None else support.outside(one.policy, sampled=plan.sampled),
            )
            for one in found
        ]
        self.assessed = sorted(made, key=lambda one: one.outside or 0.0)

    def by_fqe(self, *, anyway: bool = False) -> Selection:
        """Choose the largest lower bound, or abstain."""
        assert self.data is not None
        fitted = [one for one in self.assessed if one.eligible]
        reasons, nearest = [], self.assessed[0]
        if not fitted:
            reasons.append(
                f"no candidate acts like the data: {nearest.outside:.0%} of the actions of {nearest.name} are "
                f"outside, and at most {MOST_OUTSIDE:.0%} may be"
            )
            if not anyway:
                return self._selection(reasons=reasons)
            fitted = [nearest]
        part = 1.0 / (1 + len(fitted))
        data, clone = self._anchors(partial(report_part, self.watch, 0.0, part))
        if overestimate := _overestimate(data, clone):
            reasons.append(overestimate)
            if not anyway:
                return self._selection(reasons=reasons, data=data, clone=clone)
        names, watch = {one.name for one in fitted}, partial(report_part, self.watch, part, 1.0 - part)
        some = [one for one in self.found if one.name in names]
        judged = evaluate(
            some, self.data, self.plan, "fqe", self.bootstraps, None, self.home, watch, held_out=self.held_out
        )
        estimates = {one.name: Estimate.of(np.array(one.values)) for one in judged.policies}
        reasons += _doubts(list(estimates.values()), data)
        best = max(estimates, key=lambda name: estimates[name].lower_bound)
        chosen = best if anyway or not reasons else None
        return self._selection(estimates, reasons, chosen=chosen, judgement=judged, data=data, clone=clone)

    def _anchors(self, watch: Watch) -> tuple[Estimate, Estimate]:
        """The data's own discounted return, and FQE of a clone of the data with sampled actions."""
        data, plan = self.data, self.plan
        assert data is not None
        episodes = Episodes.of(data, "a selection")
        parts = resamples(episodes, self.bootstraps, resampling(plan.seed), self.home)
        rewards = data.rewards.astype(np.float64)
        returns = estimated_returns(rewards, data.dones, episodes, plan.config.gamma)[episodes.starts]
        own = np.array([np.average(returns, weights=part.counts.cpu().numpy()) for part in parts])
        clone = _clone(data, plan, self.home)
        fitted = fit(data, episodes, [clone], parts, replace(plan, sampled=True), self.home, watch=watch)
        return Estimate.of(own), Estimate.of(fitted.values[0])

    def by_episodes(self, episodes: int) -> Selection:
        """Choose the candidate that was played most often by an upper-confidence-bound rule; ties by the mean."""
        returns: dict[str, list[float]] = {one.name: [] for one in self.assessed}
        policies = {one.name: one for one in self.found}
        self.watch(0.0)
        for done in range(episodes):
            name = _most_promising(returns)
            returns[name].append(_play(policies[name], len(returns[name]), self.plan.sampled))
            self.watch((done + 1) / episodes)
        estimates = {name: _mean_return(np.array(some)) for name, some in returns.items()}
        most = max(returns, key=lambda name: (len(returns[name]), estimates[name].value))
        played = {name: len(some) for name, some in returns.items()}
        return self._selection(estimates, chosen=most, episodes=played)

    def _selection(
        self,
        estimates: Mapping[str, Estimate] | None = None,
        reasons: Sequence[str] = (),
        *,
        chosen: str | None = None,
        episodes: Mapping[str, int] | None = None,
        **known: Any,
    ) -> Selection:
        """The result; candidates are ordered by `outside` if none is `chosen`.

        Otherwise they are ordered by episodes and mean return, or without episodes by lower bound.
        """
        estimates, episodes = estimates or {}, episodes or {}
        found = [
            replace(one, estimate=estimates.get(one.name), episodes=episodes.get(one.name, 0))
            for one in self.assessed
        ]

        def rank(name: str) -> tuple[int, float]:
            one = estimates[name]
            return (episodes[name], one.value) if name in episodes else (0, one.lower_bound)

        ranked = sorted(estimates, key=rank, reverse=True)
        order = {name: place for place, name in enumerate(ranked)}
        if chosen is not None:
            found.sort(key=lambda one: order.get(one.name, len(order)))
        return Selection(
            trial=chosen,
            checkpoint=next((one.checkpoint for one in found if one.name == chosen), None),
            ranking=tuple((name, estimates[name].value) for name in ranked),
            by="fqe",
            candidates=tuple(found),
            reasons=tuple(reasons),
            safe=self.assessed[0].name if self.assessed[0].eligible else SAFE_CLONE,
            playable=not _without_environment(self.found),
            **known,
        )


def _clone(data: TransitionDataset, plan: Plan, device: torch.device) -> Policy:
    """A stochastic policy cloned from the data."""
    learner_class: Any = DiscreteBC if data.spaces.discrete else BC
    settings = {} if data.spaces.discrete else {"stochastic": True, "policy_distribution": "gaussian"}
    config, network = learner_class.Config.parse(settings), NetworkConfig(hidden_sizes=plan.network.hidden_sizes)
    initial, updates = learner_seeds(plan.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(initial)
        model = learner_class.build_model(data.spaces, network, config, normalize_observations=True)
        model.normalizer.set_moments(*(torch.from_numpy(one) for one in data.observation_moments()))
        learner = learner_class(model=model.to(device), **dict(config))
    learner.seed(updates)
    accelerate(learner, plan.acceleration)
    source = TensorSource(data.rows_on(device), data.layout, learner.generator)
    Updater(learner, source, plan.batch_size).run(plan.updates)
    return model.policy


def _text(one: Estimate) -> str:
    return f"{one.value:.4g} [{one.low:.4g}, {one.high:.4g}]"


def _overestimate(data: Estimate, clone: Estimate) -> str | None:
    """The reason to abstain if the interval of FQE of a clone is above that of the data's return.

    If the data mix policies, a clone mixes them in every step, and may be worth less than the data.
    """
    if data.high is None or clone.lower_bound <= data.high:
        return None
    return (
        f"FQE overestimates on these data: it values a clone of them at {_text(clone)}, and their own return is "
        f"{_text(data)}"
    )


def _doubts(estimates: Sequence[Estimate], data: Estimate) -> list[str]:
    """Reasons to abstain after all eligible candidates have been evaluated."""
    found = []
    lows, highs = (np.array([getattr(one, name) for one in estimates]) for name in ("low", "high"))
    if lows.max() <= data.value:
        found.append(
            f"the best lower bound, {lows.max():.4g}, does not exceed the data's own return, {data.value:.4g}"
        )
    spread, width = float(np.ptp([one.value for one in estimates])), float((highs - lows).mean())
    if len(estimates) > 1 and spread <= width:
        found.append(f"the values differ by {spread:.4g}, less than their intervals ({width:.4g})")
    return found


def _without_environment(found: Sequence[Candidate]) -> list[str]:
    """The names of the candidates whose runs have no environment."""
    return [one.name for one in found if one.config.env_id is None and one.config.eval_env is None]


def _require_environment(found: Sequence[Candidate], episodes: int) -> None:
    if episodes <= len(found):
        raise ConfigError(
            f"episodes must be > {len(found)}, the number of candidates, got {episodes}: each is played once, and "
            "one at least twice"
        )
    if without := _without_environment(found):
        raise ConfigError(
            f"episodes: the run of {without[0]} has no environment; leave episodes out to select by FQE"
        )


def _warn_of_tie(played: Sequence[int], warn: Callable[[str], None]) -> None:
    if (most := max(played)) and (tied := played.count(most)) > 1:
        warn(f"{tied} trials are tied at {most} episodes each; use at least {5 * len(played)} episodes")


def _warn_of_higher_mean(selection: Selection, warn: Callable[[str], None]) -> None:
    """Warn if a trial with fewer episodes has a higher mean return than the selected one."""
    played = {one.name: (one.estimate.value, one.episodes) for one in selection.candidates if one.estimate}
    best = max(played, key=lambda name: played[name][0], default=None)
    if best is None or selection.trial is None or not played[best][1] < played[selection.trial][1]:
        return
    fewer, more = (
        f"{name} ({played[name][0]:.4g}, episodes: {played[name][1]})" for name in (best, selection.trial)
    )
    warn(f"{fewer} has a higher mean return than the selected {more}; play more episodes to compare them")


def _most_promising(returns: Mapping[str, Sequence[float]]) -> str:
    """The first candidate that was not played yet, else the one with the largest upper confidence bound.

    The bound is mean + range · sqrt(log t / (4 n)): UCB1 with the largest variance for that range of returns. Of
    equal bounds, as while all returns are equal, that of the candidate with the fewest episodes counts.
    """
    played = [value for some in returns.values() for value in some]

    def bound(name: str) -> tuple[float, int]:
        some = returns[name]
        if not some:
            return np.inf, 0
        return float(np.mean(some) + np.ptp(played) * np.sqrt(np.log(len(played)) / len(some)) / 2), -len(some)

    return max(returns, key=bound)


def _play(candidate: Candidate, number: int, sampled: bool) -> float:
    """The return of episode `number`, which is the same for every candidate and differs from those of training."""
    config = candidate.config.replace(environments="local")
    evaluator = make_evaluator(config, candidate.spaces, seed=EVALUATION_SEED + 1 + number, one_by_one=True)
    try:
        return float(evaluator.play(candidate.policy.cpu(), 1, deterministic=False if sampled else None).returns[0])
    finally:
        evaluator.close()


def _mean_return(returns: Floats) -> Estimate:
    """Mean return and the interval of the mean."""
    return Estimate.of(returns.mean() + (returns - returns.mean()) / np.sqrt(len(returns)))
