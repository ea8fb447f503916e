"""Status of a study, read from its folder while workers write to it. Does not import torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl_training.study.claims import ClaimRecord, DiskClock, held_claim
from rl_training.study.plan import Plan, Trial, read_plan, short
from rl_training.study.trials import Failure, home_of, is_done, logged_progress, read_failure, record_of

State = Literal["done", "running", "waiting", "failed"]
_EVAL = "eval_return_mean"


@dataclass(frozen=True)
class TrialStatus:
    """The state of a trial, and what it has reached."""

    trial: Trial
    state: State
    settings: Mapping[str, Any]  # what varies, by short name
    host: str | None = None  # of the worker that trains it
    heartbeat: float | None = None  # seconds since the worker last touched its claim
    failure: Failure | None = None
    step: int = 0
    total: int = 0
    seconds: float | None = None
    eval_return: float | None = None  # of the newest evaluation
    best: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")


@dataclass(frozen=True)
class StudyStatus:
    """The state of a study and its trials."""

    name: str
    plan: Plan
    trials: tuple[TrialStatus, ...]

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(one.state for one in self.trials)
        return {state: found[state] for state in ("done", "running", "waiting", "failed")}

    @property
    def is_over(self) -> bool:
        """Whether every trial is done or failed."""
        return all(one.is_over for one in self.trials)

    @property
    def failed(self) -> list[TrialStatus]:
        return [one for one in self.trials if one.state == "failed"]

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the time of the trials that are done, and from how many run now; None before the first."""
        took: dict[int, list[float]] = {}
        for one in self.trials:
            if one.state == "done" and one.seconds is not None:
                took.setdefault(one.trial.configuration, []).append(one.seconds)
        if not took:
            return None
        means = {index: sum(each) / len(each) for index, each in took.items()}
        usual = sum(means.values()) / len(means)
        left = sum(
            means.get(one.trial.configuration, usual) * (1 - min(1.0, one.step / max(1, one.total)))
            for one in self.trials
            if one.state in ("running", "waiting")
        )
        return left / max(1, self.counts["running"])

    def to_dict(self) -> dict[str, Any]:
        """The status as plain data."""
        return {
            "name": self.name,
            "counts": self.counts,
            "seconds_left": self.seconds_left,
            "trials": self.records(),
        }

    def records(self) -> list[dict[str, Any]]:
        """Each trial as plain data."""
        return [_record(one, self.plan) for one in self.trials]


def _record(one: TrialStatus, plan: Plan) -> dict[str, Any]:
    configuration = plan.configurations[one.trial.configuration]
    return {
        "trial": one.trial.name,
        "task": plan.tasks[configuration.task]["source"],
        "env_id": configuration.settings["env_id"],
        "env_kwargs": dict(configuration.settings.get("env_kwargs") or {}),
        "wrappers": list(configuration.settings.get("wrappers") or []),
        "eval_env": configuration.settings.get("eval_env"),
        "eval_max_steps": configuration.settings.get("eval_max_steps"),
        "algo": configuration.settings["algo"],
        "hash": configuration.hash,
        "settings": dict(one.settings),
        "seed": one.trial.seed,
        "status": one.state,
        "step": one.step,
        "total_timesteps": one.total,
        "seconds": one.seconds,
        "eval_return": one.eval_return,
        "best": one.best,
        "metrics": dict(one.metrics),
        "host": one.host,
        "heartbeat_age": one.heartbeat,
        "failure": None if one.failure is None else {"code": one.failure.code, "message": one.failure.message},
    }


def read_status(folder: Path, known: dict[str, TrialStatus] | None = None) -> StudyStatus:
    """The status of the study in `folder`. `known` caches trials that are done, for callers that poll."""
    plan = read_plan(folder)
    known = {} if known is None else known
    clock = DiskClock(folder)
    trials: list[TrialStatus] = []
    for group in plan.groups:
        if all(trial.name in known for trial in group.trials):
            trials += [known[trial.name] for trial in group.trials]
            continue
        claim = held_claim(folder, group.name, plan.claim_timeout, clock)
        age = 0.0 if claim is None else round(max(0.0, clock.now() - claim.touched), 1)
        alone = len(group.trials) == 1
        found = [_status_of(folder, plan, trial, claim, age, alone=alone) for trial in group.trials]
        trials += found
        known |= {one.trial.name: one for one in found if one.state == "done"}
    return StudyStatus(plan.name, plan, tuple(trials))


def _status_of(
    folder: Path, plan: Plan, trial: Trial, claim: ClaimRecord | None, age: float, *, alone: bool
) -> TrialStatus:
    home, configuration = home_of(folder, trial), plan.configurations[trial.configuration]
    record, failure = record_of(home), read_failure(folder, trial)
    metrics = record.get("metrics") if is_done(record) else None
    state: State = "waiting"
    if is_done(record):
        state = "done"
    elif failure is not None:
        state = "failed"
    elif claim is not None and (alone or record.get("status") == "running"):
        state = "running"
    at_work = claim if state == "running" else None
    numbers: dict[str, float] = metrics if isinstance(metrics, dict) else {}
    seconds, before = record.get("seconds"), record.get("pretraining")
    step, eval_return = (0, None) if numbers else logged_progress(home, before if isinstance(before, int) else 0)
    return TrialStatus(
        trial,
        state,
        {short(place): value for place, value in configuration.changes.items()},
        host=None if at_work is None or at_work.owner is None else at_work.owner.host,
        heartbeat=None if at_work is None else age,
        failure=failure if state == "failed" else None,
        step=int(numbers.get("update_count" if "epoch" in numbers else "global_step", step)),
        total=int(configuration.settings["total_timesteps"]),
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        eval_return=numbers.get(_EVAL, eval_return),
        best=numbers.get("eval_return_best"),
        metrics=numbers,
    )
