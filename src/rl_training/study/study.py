"""`Study`: a study in Python."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rl_training.display.output import one_line
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.settings import at_home
from rl_training.study.plan import Plan, read_plan
from rl_training.study.status import StudyStatus, TrialStatus, as_record, read_status
from rl_training.study.trials import FULL_DISK, NEVER_RETRIED, home_of

if TYPE_CHECKING:
    from rl_training.off_policy_evaluation.selecting import Selection

By = Literal["iqm", "mean", "median", "min"]
Say = Callable[[str], None]
_POLL = 1.0
# How often in a row a sweep tries what nobody seems to hold and its workers nevertheless left.
_PATIENCE = 3
_MOST_WORKERS = 10_000
# Workers among whom the cores are shared, where it is not known how many there will be.
ONE_THREAD_EACH = 2**31


def require_workers(workers: int | None) -> None:
    """Refuse a number of workers that nobody can mean."""
    if workers is not None and not 1 <= workers <= _MOST_WORKERS:
        raise ConfigError(f"workers must be >= 1 and <= {_MOST_WORKERS}, got {workers}")


def iqm(values: Sequence[float]) -> float:
    """The interquartile mean: the mean of what is left without the lowest and the highest quarter, rounded down."""
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
    """The configuration that came out best: what varies in it, its score, and the records of its trials.

    `incomplete` are configurations that were not compared, because some of their trials failed or are not done.
    """

    settings: dict[str, Any]
    score: float
    trials: list[dict[str, Any]]
    incomplete: list[dict[str, Any]]


class Study:
    """Many runs of one plan: every combination of settings and seeds, each in a run folder of its own.

    `source` is a study's YAML file, its contents as a mapping, or the folder of a study that exists. The study lies
    in `output_dir/NAME`. Data files that it names by a relative path are in `data`; `device` takes the place of
    what its configurations say.
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any],
        *,
        output_dir: str | Path = "studies",
        name: str | None = None,
        data: str | Path | None = None,
        device: str | None = None,
    ) -> None:
        self._source: str | Path | Mapping[str, Any] | None = source
        if not isinstance(source, Mapping) and (place := Path(at_home(str(source)))).is_dir():
            self._source, self.folder = None, place
            read_plan(place)
            if data is not None or device is not None:
                raise ConfigError(
                    f"{place}: a study's folder has its data and device; give its file to change them"
                )
            return
        from rl_training.study.description import Here, read_description

        named = source if name is None else _named(source, name)
        self._description = read_description(named, Here.of(data, device))
        self.folder = Path(at_home(str(output_dir))) / self._description.name

    def plan(self, workers: int = 1) -> Plan:
        """Write the plan, or extend the one that is there; every configuration has been checked before."""
        if self._source is None:
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
        """Run what is missing and wait until all is done or failed, also what workers elsewhere hold.

        One worker is this process; several are processes of their own, on `gpus` in turn (by default one each).
        With `ray`, the address of a Ray cluster (`auto`, `local` or host:port), they are tasks there, by default as
        many as there is room for. A trial that fails does not stop the others: look at `failed` of what is
        returned. `retry_failed` tries those again that failed for a reason which may have gone.
        """
        require_workers(workers)
        if ray is not None:
            return self._run_on_ray(ray, workers, bool(gpus), retry_failed, allow_import, say)
        from rl_training.study import worker

        size = workers or max(1, len(gpus))
        plan = self.plan(size)

        def work(waiting: int) -> None:
            if size == 1 and not gpus:
                worker.work(self.folder, quiet=quiet, allow_import=allow_import, say=say)
            elif waiting:
                self._crew(plan, min(size, waiting), gpus, allow_import, say)

        return self._until_over(plan, work, retry_failed, say)

    def _crew(self, plan: Plan, workers: int, gpus: Sequence[str | int], allow_import: bool, say: Say) -> None:
        from rl_training.study.crew import Crew

        crew = Crew(self.folder, plan, workers, [str(gpu) for gpu in gpus], allow_import=allow_import)
        crew.run(_Watcher(self.folder, say))

    def _run_on_ray(
        self, address: str, workers: int | None, gpus: bool, retry_failed: bool, allow_import: bool, say: Say
    ) -> StudyStatus:
        from rl_training.study.ray_crew import on_ray

        with on_ray(address) as cluster:
            plan = self.plan(ONE_THREAD_EACH)
            folder = self.folder.absolute()  # tasks have a working directory of their own
            room = cluster.room(cluster.needs(plan, gpus))
            size = workers or room
            cluster.check(folder)

            def work(waiting: int) -> None:
                if waiting:
                    crew = cluster.crew(
                        folder, plan, min(size, waiting), gpus=gpus, allow_import=allow_import, say=say
                    )
                    crew.run(_Watcher(folder, say))

            return self._until_over(plan, work, retry_failed, say)

    def _until_over(self, plan: Plan, work: Callable[[int], None], retry_failed: bool, say: Say) -> StudyStatus:
        """Have workers `work`, who are told how many trials wait, until every trial is done or failed."""
        from rl_training.study import worker

        worker.retry_failed(self.folder, plan, NEVER_RETRIED, only=None if retry_failed else (FULL_DISK,))
        say(f"{plan.name}: {len(plan.trials)} trials in {self.folder}")
        idle = 0
        while not (status := self.status()).is_over:
            idle = 0 if status.counts["running"] else idle + 1
            if idle > _PATIENCE:
                raise RLTrainingError(
                    f"{status.counts['waiting']} trials of {self.folder} are left: their folders are in use, or "
                    "their workers were stopped; the same command goes on"
                )
            if idle != 1:
                time.sleep(_POLL)
            work(status.counts["waiting"])
        return status

    def status(self) -> StudyStatus:
        """How the study stands."""
        return read_status(self.folder)

    def frame(self) -> list[dict[str, Any]]:
        """One plain record per trial: what varies, seed, status, final metrics, best return.

        `pandas.json_normalize(study.frame())` makes a table of it.
        """
        status = self.status()
        return [as_record(one, status.plan) for one in status.trials]

    def best(
        self, metric: str = "eval_return_mean", by: By = "iqm", *, task: str | None = None, lowest: bool = False
    ) -> Best:
        """The configuration whose seeds have the best `metric`, taken together `by` a robust mean.

        Only configurations of which every trial is done are compared. A study of several tasks needs one of them
        named, as its file names it: returns of different tasks cannot be compared.
        """
        if by not in _MEASURES:
            raise ConfigError(f"by must be one of {', '.join(_MEASURES)}, got {by!r}")
        records = [record for record in self.frame() if task in (None, record["task"])]
        if len({record["task"] for record in records}) != 1:
            tasks = list(dict.fromkeys(record["task"] for record in self.frame()))
            raise ConfigError(f"best: name one task of this study: {', '.join(tasks)}", key="task")
        groups, scores = _scored(records, metric, by)
        complete = {key: score for key, score in scores.items() if score is not None}
        if not complete:
            raise ConfigError(f"{self.folder}: no configuration has all its trials done with a {metric}")
        found = (min if lowest else max)(complete, key=lambda key: complete[key])
        missing = [groups[key][0]["settings"] for key, score in scores.items() if score is None]
        return Best(groups[found][0]["settings"], complete[found], groups[found], missing)

    def select(self, by: Literal["fqe", "return"] = "fqe", *, task: str | None = None, **options: Any) -> Selection:
        """Which trial to take, and its newest checkpoint, of those that are done.

        `by="fqe"` ranks their policies on `dataset=…`, by default the data they learned from (`options` as in
        `rl_training.ope`). `by="return"` takes the configuration whose last evaluations have the highest
        interquartile mean, as `best` does, and of its seeds the one with the highest return. A study of several
        tasks needs one of them named.
        """
        from rl_training.off_policy_evaluation.selecting import RETURN, Trial, by_fqe, by_return

        if by not in ("fqe", "return"):
            raise ConfigError(f"by must be fqe or return, got {by!r}")
        status = self.status()
        tasks = {one.trial.name: as_record(one, status.plan)["task"] for one in status.trials}
        chosen = [one for one in status.trials if task in (None, tasks[one.trial.name])]
        if len({tasks[one.trial.name] for one in chosen}) != 1:
            known = ", ".join(dict.fromkeys(tasks.values()))
            raise ConfigError(f"select: name one task of this study: {known}", key="task")
        trials = [
            Trial(
                one.trial.name,
                home_of(self.folder, one.trial),
                status.plan.configurations[one.trial.configuration].settings,
                one.metrics,
            )
            for one in chosen
            if one.state == "done"
        ]
        left_out = [one.trial.name for one in chosen if one.state != "done"]
        if by == "return":
            groups, scores = _scored([as_record(one, status.plan) for one in chosen], RETURN, "iqm")
            complete = {key: score for key, score in scores.items() if score is not None}
            return by_return(
                trials, left_out, {one["trial"]: complete[key] for key in complete for one in groups[key]}
            )
        return by_fqe(trials, left_out, **options)


def _named(source: str | Path | Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(source, Mapping):
        raise ConfigError("name: a study's file has its own; give it there")
    return {**source, "name": name}


def _scored(
    records: Sequence[dict[str, Any]], metric: str, by: By
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, float | None]]:
    """The records of each configuration, and its score; None if not all its trials are done with that metric."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["hash"], []).append(record)
    return groups, {key: _score(trials, metric, by) for key, trials in groups.items()}


def _score(trials: Sequence[Mapping[str, Any]], metric: str, by: str) -> float | None:
    values = [trial["metrics"].get(metric) for trial in trials]
    return None if None in values else _MEASURES[by]([float(value) for value in values if value is not None])


class _Watcher:
    """Tells what has changed in a study since it was last asked."""

    def __init__(self, folder: Path, say: Say) -> None:
        self._folder, self._say = folder, say
        self._known: dict[str, TrialStatus] = {}
        self._told = {one.trial.name for one in read_status(folder, self._known).trials if _is_over(one)}
        self._next = 0.0

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _POLL
        status = read_status(self._folder, self._known)
        for one in status.trials:
            if _is_over(one) and one.trial.name not in self._told:
                self._told.add(one.trial.name)
                over = sum(_is_over(each) for each in status.trials)
                self._say(f"{over}/{len(status.trials)} {told(one)}")


def _is_over(one: TrialStatus) -> bool:
    return one.state in ("done", "failed")


def told(one: TrialStatus) -> str:
    """A trial that is over, in one line."""
    if one.failure is not None:
        return f"failed: {one.trial.name}: {one_line(one.failure.message)} (exit code {one.failure.code})"
    reached = "" if one.eval_return is None else f": return {one.eval_return:.2f}"
    return f"done: {one.trial.name}{reached}"
