"""`Study`: the Python interface of studies."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from rl_training.errors import ConfigError, RLTrainingError, nearest, one_line
from rl_training.experiment.metric_names import less_is_better, result_name
from rl_training.settings import at_home
from rl_training.study.plan import RUNS, Plan, read_plan
from rl_training.study.status import StudyStatus, TrialStatus, read_status
from rl_training.study.trials import (
    FULL_DISK,
    NEVER_RETRIED,
    failed_trials,
    home_of,
    reopen,
    require_checkpoints,
    require_data,
    require_permission,
)

if TYPE_CHECKING:
    from rl_training.off_policy_evaluation.choosing import Selection
    from rl_training.study.description import Description

By = Literal["iqm", "mean", "median", "min"]
Say = Callable[[str], None]
_POLL = 1.0
# How many times in a row a sweep starts workers for trials that no worker holds.
_PATIENCE = 3
_MOST_WORKERS = 10_000
# The number of workers that share the cores, if it is unknown: each gets one thread.
ONE_THREAD_EACH = 2**31


def require_workers(workers: int | None) -> None:
    """Raise if the number of workers is out of range."""
    if workers is not None and not 1 <= workers <= _MOST_WORKERS:
        raise ConfigError(f"workers must be >= 1 and <= {_MOST_WORKERS}, got {workers}")


def iqm(values: Sequence[float]) -> float:
    """Interquartile mean: the mean without the lowest and the highest quarter of the values, rounded down."""
    cut = len(values) // 4
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


_MEASURES: dict[str, Callable[[Sequence[float]], float]] = {
    "iqm": iqm,
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
}


@dataclass(frozen=True)
class Best:
    """The best configuration: its settings that vary, its score, and the records of its trials.

    `incomplete` are the settings of configurations that were not compared, because some of their trials are not
    done.
    """

    settings: dict[str, Any]
    score: float
    trials: list[dict[str, Any]]
    incomplete: list[dict[str, Any]]


class Study:
    """Many runs of one plan: every combination of settings and seeds, each in a run folder of its own.

    `source` is a study's YAML file, its contents as a mapping, or the folder of an existing study. The study is
    stored in `output_dir/NAME`. `data` is the folder for data files that it names by a relative path; `device`
    replaces the device of its configurations. `allow_import` permits to import objects `module:Name` that it names.
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any],
        *,
        output_dir: str | Path = "studies",
        name: str | None = None,
        data: str | Path | None = None,
        device: str | None = None,
        allow_import: bool = False,
    ) -> None:
        self._description: Description | None = None
        self._allow_import = allow_import
        if not isinstance(source, Mapping) and (place := Path(at_home(str(source)))).is_dir():
            self.folder = place
            read_plan(place)
            if data is not None or device is not None:
                raise ConfigError(
                    f"{place}: a study's folder has its data and device; give its file to change them"
                )
            return
        from rl_training.study.description import Location, read_description

        if name is not None:
            if not isinstance(source, Mapping):
                raise ConfigError("name: a study's file has its own; give it there")
            source = {**source, "name": name}
        self._description = read_description(source, Location.of(data, device, allow_import))
        self.folder = Path(at_home(str(output_dir))) / self._description.name

    def plan(self, workers: int = 1) -> Plan:
        """Write the plan, or extend the existing one."""
        if self._description is None:
            return read_plan(self.folder)
        from rl_training.study.planning import prepare

        return prepare(self._description, self.folder, workers)

    def run(
        self,
        workers: int | None = None,
        *,
        gpus: Sequence[str | int] = (),
        ray: str | None = None,
        retry_failed: bool = False,
        allow_import: bool = False,
        quiet: bool = True,
        say: Say = lambda text: None,
    ) -> StudyStatus:
        """Run the trials that are missing; return when all are done or failed, also those of other workers.

        A single worker is this process; several are processes of their own, on `gpus` in turn (by default one per
        GPU). With `ray`, the address of a Ray cluster (`auto`, `local` or host:port), they are tasks of the
        cluster, by default as many as fit. A trial that fails does not stop the others: see `failed` of the
        returned status. `retry_failed` runs failed trials again, unless they would fail in the same way.
        """
        require_workers(workers)
        allow_import = allow_import or self._allow_import
        if ray is not None:
            return self._run_on_ray(ray, workers, bool(gpus), retry_failed, allow_import, say)
        from rl_training.study import worker

        size = workers or max(1, len(gpus))
        plan = self.plan(size)
        require_data(self.folder, plan)
        in_process = size == 1 and not gpus
        require_permission(self.folder, plan, allow_import=allow_import, elsewhere=not in_process)

        def work(waiting: int) -> None:
            if in_process:
                worker.work(self.folder, quiet=quiet, allow_import=allow_import, say=say)
            elif waiting:
                self._run_pool(plan, min(size, waiting), gpus, allow_import, say)

        return self._until_over(plan, work, retry_failed, say)

    def _run_pool(self, plan: Plan, workers: int, gpus: Sequence[str | int], allow_import: bool, say: Say) -> None:
        from rl_training.study.worker_pool import LocalPool

        pool = LocalPool(self.folder, plan, workers, [str(gpu) for gpu in gpus], allow_import=allow_import)
        with TrialWatcher(self.folder, say) as watch:
            pool.run(watch)

    def _run_on_ray(
        self, address: str, workers: int | None, gpus: bool, retry_failed: bool, allow_import: bool, say: Say
    ) -> StudyStatus:
        from rl_training.study.ray_pool import RayPool, on_ray

        with on_ray(address) as cluster:
            plan = self.plan(ONE_THREAD_EACH)
            require_permission(self.folder, plan, allow_import=allow_import, elsewhere=True)
            folder = self.folder.absolute()  # tasks have a working directory of their own
            needs = cluster.needs(plan, gpus)
            room = cluster.room(needs)
            cluster.check(folder)

            def work(waiting: int) -> None:
                if waiting:
                    size = min(workers or room, waiting)
                    pool = RayPool(cluster.ray, folder, plan, size, needs, allow_import=allow_import, say=say)
                    with TrialWatcher(folder, say) as watch:
                        pool.run(watch)

            return self._until_over(plan, work, retry_failed, say)

    def _until_over(self, plan: Plan, work: Callable[[int], None], retry_failed: bool, say: Say) -> StudyStatus:
        """Call `work` with the number of waiting trials until every trial is done or failed."""
        again = failed_trials(self.folder, plan, NEVER_RETRIED, only=None if retry_failed else (FULL_DISK,))
        require_checkpoints(self.folder, plan, again)
        reopen(self.folder, again)
        say(f"{plan.name}: {len(plan.trials)} trials in {self.folder}")
        idle = 0
        while not (status := self.status()).is_over:
            idle = 0 if status.counts["running"] else idle + 1
            if idle > _PATIENCE:
                raise RLTrainingError(
                    f"{status.counts['waiting']} trials of {self.folder} are left: their folders are in use, or "
                    "their workers were stopped; the same command continues"
                )
            if idle != 1:
                time.sleep(_POLL)
            work(status.counts["waiting"])
        return status

    def status(self) -> StudyStatus:
        """The status of the study and its trials."""
        return read_status(self.folder)

    def frame(self) -> list[dict[str, Any]]:
        """One plain record per trial: settings that vary, seed, status, final metrics, best return.

        `pandas.json_normalize(study.frame())` converts them to a table.
        """
        return self.status().records()

    def best(
        self, metric: str = "eval_return_mean", by: By = "iqm", *, task: str | None = None, lowest: bool = False
    ) -> Best:
        """The configuration with the highest `metric`, or the `lowest`, averaged over its seeds `by` a robust mean.

        Only configurations whose trials are all done are compared; of a tuning, those that are confirmed, by their
        fresh seeds. If the study has several tasks, name one as its file does, or an environment: returns in
        different environments cannot be compared.
        """
        if by not in _MEASURES:
            raise ConfigError(f"by must be one of {', '.join(_MEASURES)}, got {by!r}")
        if less_is_better(metric) and not lowest:
            raise ConfigError(f"best: less {metric} is better; pass lowest=True")
        records = _of_task(self.frame(), task, "best")
        groups, scores = _scored(records, metric := result_name(metric), by, self._fresh_seeds())
        if not scores:
            known = {name for record in records for name in record["metrics"]}
            hint = "" if metric in known else nearest(metric, known)
            raise ConfigError(f"{self.folder}: no configuration has all its trials done with a {metric}{hint}")
        found = (min if lowest else max)(scores, key=lambda key: scores[key])
        missing = [group[0]["settings"] for key, group in groups.items() if key not in scores]
        return Best(groups[found][0]["settings"], scores[found], groups[found], missing)

    def _fresh_seeds(self) -> frozenset[int]:
        """The seeds on which a tuning confirms its best configurations; empty if this study is not a tuning."""
        from rl_training.study.tuning_record import read_record

        record = read_record(self.folder, self.folder.name)
        return frozenset(() if record is None else record.confirm_seeds)

    def select(self, by: Literal["fqe", "return"] = "fqe", *, task: str | None = None, **options: Any) -> Selection:
        """Select one of the trials that are done, and its newest checkpoint.

        `by="fqe"` selects by `dataset=…`, by default the data they learned from, or abstains (`options`: `anyway`,
        `episodes`, and those of `rl_training.ope`). `by="return"` selects the configuration whose last evaluations
        have the highest interquartile mean, as `best` does, and of its seeds the one with the highest return. If
        the study has several tasks, name one of them or an environment.
        """
        from rl_training.off_policy_evaluation.selecting import RETURN, Candidate, by_fqe, by_return

        if by not in ("fqe", "return"):
            raise ConfigError(f"by must be fqe or return, got {by!r}")
        if by == "return" and options:
            raise ConfigError(f"select: {next(iter(options))} is for by='fqe'; leave it out")
        status = self.status()
        records = _of_task(status.records(), task, "select")
        done = {record["trial"] for record in records if record["status"] == "done"}
        candidates = [
            Candidate(
                one.trial.name,
                home_of(self.folder, one.trial),
                status.plan.config_of(one.trial, self.folder / RUNS).to_dict(),
                one.metrics,
            )
            for one in status.trials
            if one.trial.name in done
        ]
        left_out = [record["trial"] for record in records if record["status"] != "done"]
        if by == "fqe":
            return by_fqe(candidates, left_out, **options)
        fresh = self._fresh_seeds()
        groups, scores = _scored(records, RETURN, "iqm", fresh)
        found = by_return(
            candidates, left_out, {one["trial"]: score for key, score in scores.items() for one in groups[key]}
        )
        incomplete = [group for key, group in groups.items() if key not in scores]
        best = max(scores.values())
        confirmed = sum(map(len, groups.values())) == len(records)
        unconfirmed = () if confirmed else ("configurations that the tuning has not confirmed are left out",)
        return replace(
            found,
            notes=(*unconfirmed, *(text for group in incomplete for text in _left_out(group))),
            warnings=tuple(text for group in incomplete for text in _better_so_far(group, RETURN, best, fresh)),
        )


def _of_task(records: list[dict[str, Any]], task: str | None, caller: str) -> list[dict[str, Any]]:
    """The records of `task`, a file or an environment; None if the study has one file and one environment.

    An environment with `env_kwargs`, `wrappers`, an `eval_env` or `eval_max_steps` is another one, named as the
    error lists it.
    """
    exact = [record for record in records if task is not None and task == _environment(record)]
    found = exact or [record for record in records if task in (None, record["task"], record["env_id"])]
    files = dict.fromkeys(record["task"] for record in found)
    envs = dict.fromkeys(_environment(record) for record in found)
    if not found or (task is None and len(files) > 1):
        tasks = ", ".join(dict.fromkeys(record["task"] for record in records))
        raise ConfigError(f"{caller}: name one task of this study: {tasks}", key="task")
    if len(envs) != 1:
        raise ConfigError(f"{caller}: name one environment as the task: {', '.join(map(str, envs))}", key="task")
    return found


def _environment(record: dict[str, Any]) -> str | None:
    names = ("env_kwargs", "wrappers", "eval_env", "eval_max_steps")
    values = [value for name in names if (value := record.get(name))]
    words = [json.dumps(value, sort_keys=True, default=str) for value in values]
    return " ".join([record["env_id"] or "no environment", *words]) if words else record["env_id"]


def _scored(
    records: Sequence[dict[str, Any]], metric: str, by: By, fresh: frozenset[int]
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, float]]:
    """The records of each configuration, and the scores of those whose trials are all done and have the metric.

    If a tuning has confirmed some on `fresh` seeds, the others are left out, and these are compared by those seeds.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["hash"], []).append(record)
    fresh &= {record["seed"] for record in records}  # none if the confirmation has not been planned
    groups = {key: group for key, group in groups.items() if fresh <= {record["seed"] for record in group}}
    values = {key: {one["seed"]: one["metrics"].get(metric) for one in group} for key, group in groups.items()}
    complete = {key: some for key, some in values.items() if None not in some.values()}
    return groups, {
        key: _MEASURES[by]([float(value) for seed, value in some.items() if seed in (fresh or some)])
        for key, some in complete.items()
    }


def _left_out(group: Sequence[dict[str, Any]]) -> list[str]:
    """Why each trial of an incomplete configuration is left out."""
    unfinished = sum(record["status"] != "done" for record in group)
    lacks = (
        f"{unfinished} unfinished trial{'s' * (unfinished != 1)}" if unfinished else "a trial without evaluation"
    )
    whole = f"its configuration has {lacks}"
    return [
        f"{one['trial']} is left out: {whole if one['status'] == 'done' else 'it is not done'}" for one in group
    ]


def _better_so_far(group: Sequence[dict[str, Any]], metric: str, best: float, fresh: frozenset[int]) -> list[str]:
    """A warning if the finished trials of an incomplete configuration exceed the `best` score.

    If a tuning has `fresh` seeds, `best` is their score, and only trials of these seeds count.
    """
    group = [one for one in group if one["seed"] in fresh] or group
    values = [float(one["metrics"][metric]) for one in group if metric in one["metrics"]]
    if not values or (score := iqm(values)) <= best:
        return []
    return [
        f"a configuration that is left out has a higher score so far, {score:.2f} over {len(values)} of "
        f"{len(group)} seeds: {group[0]['trial']}; finish its trials, then select again"
    ]


class TrialWatcher:
    """Each call prints the trials that have ended since the last one, at most once per `_POLL` seconds.

    As a context manager it prints the remaining ones at the end.
    """

    def __init__(self, folder: Path, say: Say) -> None:
        self._folder, self._say = folder, say
        self._known: dict[str, TrialStatus] = {}
        self._reported = {one.trial.name for one in read_status(folder, self._known).trials if one.is_over}
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._report()

    def __call__(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _POLL
            self._report()

    def _report(self) -> None:
        status = read_status(self._folder, self._known)
        for one in status.trials:
            if one.is_over and one.trial.name not in self._reported:
                self._reported.add(one.trial.name)
                self._say(f"{len(self._reported)}/{len(status.trials)} {_line(one)}")


def _line(one: TrialStatus) -> str:
    """A line about a trial that is done or has failed."""
    if one.failure is not None:
        return f"failed: {one.trial.name}: {one_line(one.failure.message)} (exit code {one.failure.code})"
    reached = "" if one.eval_return is None else f": return {one.eval_return:.2f}"
    return f"done: {one.trial.name}{reached}"
