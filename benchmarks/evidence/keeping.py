"""Results of a study that the repository stores: settings, curves and evaluations of its runs, as JSON.

A file contains everything the report reads from a study, so the report's code can make tables and figures without
the study.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.evidence.judging import Judged, judged, last_policy
from benchmarks.runs import data_returns
from rl_training.environments.making import spaces_of
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.ogbench import PREFIX
from rl_training.report.logs import Curve
from rl_training.report.reading import Reading, Run, Unread, read_runs
from rl_training.report.tasks import data_name, text_of
from rl_training.study.packing import open_packed_study
from rl_training.study.plan import STUDY, read_plan
from rl_training.study.trials import home_of

KIND = "rl_training.evidence"
SCHEMA = 1
OVER = ("finished", "stopped", "diverged")
Kept = dict[str, Any]
# Fields of run.json that tables and figures use.
_OF_RECORD = ("created", "resumed", "seconds", "device", "machine", "versions", "population", "commits", "threads")
_OF_METRICS = ("global_step", "update_count", "epoch")


def collect(place: Path, earlier: Iterable[Path] = ()) -> Kept:
    """The results of a study in a folder or a packed file, with evaluations from the files in `earlier`."""
    kept = _collect(place)
    for file in earlier:
        add_earlier(kept, load(file))
    return kept


def _collect(place: Path) -> Kept:
    reading, (name, about, planned) = read_runs([place]), _described(place)
    settings: list[Mapping[str, Any]] = []
    runs = {run.name: _run(run, settings) for run in reading.runs}
    unread = [
        {"place": PurePath(one.place).name, "kind": one.kind, "reason": one.reason}
        for one in reading.unread
        if one.kind != "missing"
    ]
    return {"kind": KIND, "schema": SCHEMA, "study": name, "about": about, "planned": planned, "settings": settings,
            "data": {}, "runs": runs, "unread": unread}  # fmt: skip


def _described(place: Path) -> tuple[str, list[str], list[str]]:
    """Name and description of a study, and the names of its trials."""
    if place.is_dir():
        plan, text = read_plan(place), (place / STUDY).read_text(encoding="utf-8")
    else:
        with open_packed_study(place) as packed:
            plan, text = packed.plan, (packed.read(STUDY) or b"").decode("utf-8", "replace")
    return plan.name, about_of(text), [trial.name for trial in plan.trials]


def about_of(text: str) -> list[str]:
    """The comment at the head of a study's file: its first line, and all others joined."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return [lines[0], " ".join(lines[1:])] if lines else ["", ""]


def _run(run: Run, settings: list[Mapping[str, Any]]) -> Kept:
    known = [text_of(one) for one in settings]
    if text_of(run.settings) not in known:
        settings.append(run.settings)
        known.append(text_of(run.settings))
    record = {name: run.record[name] for name in _OF_RECORD if name in run.record}
    data = {**run.dataset, "name": data_name(str(run.dataset.get("name")))} if run.dataset else {}
    curve = {
        "steps": [int(step) for step in run.curve.steps],
        "updates": [None if np.isnan(count) else int(count) for count in run.curve.updates],
        "seconds": [round(float(value), 1) for value in run.curve.seconds],
        "values": [round(float(value), 3) for value in run.curve.values],
    }
    metrics = {name: run.metrics[name] for name in _OF_METRICS if name in run.metrics}
    return {"algo": run.algo, "env_id": run.env_id, "seed": run.seed, "status": run.status, "cause": run.cause,
            "settings": known.index(text_of(run.settings)), "varied": dict(run.varied), "step": run.step,
            "record": record, "dataset": data, "metrics": metrics, "curve": curve}  # fmt: skip


def note_data(kept: Kept, folder: Path) -> None:
    """Record the returns of the episodes in the data files in `folder`."""
    offline = [run for run in kept["runs"].values() if run["dataset"] and run["env_id"]]
    for name, env_id in {run["dataset"]["name"]: run["env_id"] for run in offline}.items():
        files = [folder / f"{part}.npz" for part in name.split(" + ")]
        if name not in kept["data"] and all(file.is_file() for file in files):
            spaces = spaces_of(TrainConfig(algo="bc", env_id=env_id, total_timesteps=1))
            returns = data_returns(files, spaces, env_id if env_id.startswith(PREFIX) else "npz")
            std = statistics.stdev(returns) if len(returns) > 1 else 0.0
            kept["data"][name] = {"episodes": len(returns), "mean": statistics.fmean(returns), "std": std}


def judge_all(
    kept: Kept, homes: Callable[[str], Path], processes: int | None, on_result: Callable[[], None]
) -> None:
    """Evaluate every finished run without an evaluation; `homes` are the run folders.

    `on_result` is called after each evaluation.
    """
    places = {}
    for name, run in kept["runs"].items():
        if run["status"] not in OVER or "judged" in run:
            continue
        if (place := last_policy(homes(name))) is None:
            print(f"{name}: cannot be judged: neither a checkpoint nor its last policy is there", flush=True)
        else:
            places[name] = place
    for name, found in judged(places, processes):
        kept["runs"][name]["judged"] = found
        on_result()
        print(f"{name}: {found['mean']:.1f} over {len(found['returns'])} episodes", flush=True)


def homes_of(folder: Path) -> Callable[[str], Path]:
    trials = {trial.name: trial for trial in read_plan(folder).trials}
    return lambda name: home_of(folder, trials[name])


def add_earlier(kept: Kept, earlier: Kept | None) -> None:
    """Copy the evaluations of the same runs from `earlier`, so that no run is evaluated twice."""
    if earlier is None:
        return
    kept["data"] |= earlier["data"]
    for name, run in kept["runs"].items():
        before = earlier["runs"].get(name)
        if before is not None and "judged" in before and _same_run(before, run):
            run["judged"] = before["judged"]


def _same_run(one: Kept, other: Kept) -> bool:
    return all(one["record"].get(key) == other["record"].get(key) for key in ("created", "resumed", "seconds"))


def merged(old: Kept | None, new: Kept) -> Kept:
    """Merge two results of one study. Of each run, keep the one that is finished and evaluated, otherwise the newer
    one.

    If both are equally advanced, the run of `old` is kept.
    """
    if old is None:
        return new
    if old["study"] != new["study"]:
        raise ConfigError(f"results of {new['study']} cannot be added to those of {old['study']}")
    settings = list(new["settings"])
    runs = dict(new["runs"])
    for name, run in old["runs"].items():
        known = runs.get(name)
        if known is None or _rank(run) > _rank(known) or (_same_run(run, known) and _rank(run) == _rank(known)):
            runs[name] = {**run, "settings": _index(settings, old["settings"][run["settings"]])}
    planned = list(dict.fromkeys([*old["planned"], *new["planned"]]))
    data = old["data"] | new["data"]
    return {**new, "planned": planned, "data": data, "settings": settings, "runs": dict(sorted(runs.items()))}


def _rank(run: Kept) -> tuple[bool, bool, int, str]:
    return "judged" in run, run["status"] in OVER, int(run["step"]), str(run["record"].get("created"))


def _index(settings: list[Mapping[str, Any]], one: Mapping[str, Any]) -> int:
    known = [text_of(each) for each in settings]
    if text_of(one) not in known:
        settings.append(one)
        return len(settings) - 1
    return known.index(text_of(one))


def load(path: Path) -> Kept | None:
    """The results in a file; None if it does not exist."""
    try:
        found = records.read(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no results of a study: {error}") from None
    if found is None:
        return None
    if not isinstance(found, dict) or found.get("kind") != KIND or found.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: no results of a study, which `python -m benchmarks.evidence` writes")
    return found


def store(path: Path, kept: Kept) -> None:
    """Write results, a line for each run."""
    records.write(path, kept, "runs")


# Conversion to the types of the report.


def reading_of(kept: Kept, *, judgements: bool = False) -> Reading:
    """The runs in the report's types; with `judgements`, the curve of a run is its final evaluation alone."""
    runs = []
    for name, run in kept["runs"].items():
        curve = _judged_curve(run) if judgements else _curve(run["curve"])
        runs.append(_as_run(kept, name, run, curve))
    unread = [Unread(one["place"], one["kind"], one["reason"]) for one in kept["unread"]]
    unread += [
        Unread(name, "missing", "planned, and not made") for name in kept["planned"] if name not in kept["runs"]
    ]
    return Reading(tuple(runs), tuple(unread))


def _as_run(kept: Kept, name: str, run: Kept, curve: Curve) -> Run:
    record = {**run["record"], "metrics": run["metrics"], "dataset": run["dataset"]}
    return Run(
        place=name,
        name=name,
        given=kept["study"],
        study=kept["study"],
        algo=run["algo"],
        env_id=run["env_id"],
        seed=run["seed"],
        status=run["status"],
        cause=run["cause"],
        settings=kept["settings"][run["settings"]],
        varied=run["varied"],
        tags=(),
        record=record,
        curve=curve,
        step=run["step"],
        updated=None,
    )


def _floats(values: Iterable[Any]) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _curve(of: Mapping[str, Any]) -> Curve:
    return Curve(*(_floats(of[name]) for name in ("steps", "updates", "seconds", "values")))


def _judged_curve(run: Kept) -> Curve:
    found: Judged | None = run.get("judged")
    if found is None:
        return Curve()
    updates, seconds = run["metrics"].get("update_count"), run["record"].get("seconds")
    return Curve(*(_floats([value]) for value in (found["step"], updates, seconds, found["mean"])))
