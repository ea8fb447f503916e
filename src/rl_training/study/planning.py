"""Create or extend a plan from a description: which trials are the same, and how they are grouped."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rl_training.data.placement import contents_of
from rl_training.errors import ConfigError
from rl_training.experiment import files
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.experiment.runs import lock_run
from rl_training.memory import available_cores
from rl_training.runs.building import MAX_THREADS
from rl_training.runtime.populations import signature
from rl_training.study.claims import CLAIMS, DiskClock, read_claim
from rl_training.study.description import Description, WantedConfig, announced
from rl_training.study.plan import MOST_THREADS as MOST_STUDY_THREADS
from rl_training.study.plan import (
    PLAN,
    RUNS,
    STUDY,
    TUNING,
    Configuration,
    Plan,
    data_files,
    described,
    hash_of,
    identity,
    read_plan,
    short,
    with_how,
    write_plan,
)
from rl_training.study.trials import FAILURES, home_of

# The most trials in a group if `population` is `auto` and they train on a GPU; on a CPU each trial is a group.
_TOGETHER = 16
_MOST_DIFFERENCES = 6


class Checksums:
    """Size and checksum of data files as text; each file is read once."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def of(self, path: str) -> str | None:
        """None if there is no such file, or it cannot be read."""
        if path not in self._known:
            self._known[path] = None
            with contextlib.suppress(OSError):
                found = contents_of(Path(path).expanduser())
                self._known[path] = f"{found['bytes']}-{found['samples']:08x}"
        return self._known[path]

    def of_all(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """The contents of every existing file in settings, by dotted place."""
        found = {place: self.of(path) for place, path in data_files(settings).items()}
        return {place: contents for place, contents in found.items() if contents is not None}

    def differing(
        self, before: Mapping[str, Any], recorded: Mapping[str, str], now: Mapping[str, Any]
    ) -> list[str]:
        """The places at which two settings of one identity name files of different contents.

        `recorded` are the recorded contents of `before`; a file that is missing and was never recorded counts as
        the same.
        """
        known, new = {**self.of_all(before), **recorded}, self.of_all(now)
        return [place for place in new if known.get(place, new[place]) != new[place]]


def prepare(description: Description, folder: Path, workers: int) -> Plan:
    """Write the plan in `folder`, or extend the existing one; if that raises, nothing is changed.

    If no trial of the existing plan has begun, or all failed before their first step, a new plan replaces it.
    """
    with files.os_errors(f"{folder}: cannot hold a study"):
        require_own(folder)
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        with lock_run(folder):
            old = read_plan(folder) if (folder / PLAN).exists() else None
            begun = old is not None and has_begun(folder, old)
            with description.document.explaining():
                plan = _extended(old, description) if old is not None and begun else _first(description, workers)
            if plan != old:
                if not begun:
                    shutil.rmtree(folder / FAILURES, ignore_errors=True)
                write_plan(folder, plan)
            files.replace_atomically(folder / STUDY, description.document.text.encode())
    return plan


def require_own(folder: Path) -> None:
    """Raise if the folder belongs to something else.

    Files of a sweep or a tuning that was killed before it had a plan are allowed.
    """
    if folder.is_dir() and not (folder / PLAN).exists():
        left = {RUNS, "lock", f".tmp-{PLAN}", CLAIMS, TUNING}
        names = [path.name for path in folder.iterdir()]
        strange = [name for name in names if name not in left and not name.startswith(f".tmp-{TUNING}-")]
        if strange or ((folder / RUNS).is_dir() and any((folder / RUNS).iterdir())):
            raise ConfigError(f"{folder}: exists and is not a study's folder; choose another with --output-dir")


def has_begun(folder: Path, plan: Plan) -> bool:
    """Whether a run folder exists, or a worker holds a claim and is about to create one."""
    if any(home_of(folder, trial).exists() for trial in plan.trials):
        return True
    claims, clock = [read_claim(folder, group.name) for group in plan.groups], DiskClock(folder)
    return any(claim is not None and not claim.is_free(clock.now(), plan.claim_timeout) for claim in claims)


def _first(description: Description, workers: int) -> Plan:
    plan = Plan(
        name=description.name,
        threads=description.file.threads or _threads(description, workers),
        claim_timeout=description.file.claim_timeout,
        tasks=_tasks(description),
    )
    return _with_wanted(plan, description)


def _tasks(description: Description) -> list[dict[str, Any]]:
    checksums, found = Checksums(), []
    for source, base in zip(description.sources, description.bases):
        settings = base.to_dict()
        data = checksums.of_all(settings)
        found.append({"source": source, "settings": settings} | ({"data": data} if data else {}))
    return found


def _threads(description: Description, workers: int) -> int:
    """The threads of each worker: a share of the cores, or one if it uses a GPU."""
    if (given := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(given) > 0:
        return min(int(given), MOST_STUDY_THREADS)
    if any(_on_gpu(base) for base in description.bases):
        return 1
    return max(1, min(MAX_THREADS, available_cores() // workers))


def _on_gpu(config: TrainConfig) -> bool:
    return config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available())


def _extended(old: Plan, description: Description) -> Plan:
    """The old plan with new trials added at the end; any other change raises."""
    if description.name != old.name:
        raise ConfigError(f"the folder holds another study, {old.name!r}", key="name")
    if description.file.threads not in (None, old.threads):
        raise ConfigError.of(
            "threads",
            f"{description.file.threads} differs from the {old.threads} this study began with, on which "
            "its results depend; give the changed study another name",
        )
    _require_same_bases(old, description)
    tasks = _tasks(description)
    for before, now in zip(old.tasks, tasks):  # a missing file keeps its recorded contents
        if data := {**before.get("data", {}), **now.get("data", {})}:
            now["data"] = data
    plan = replace(old, claim_timeout=description.file.claim_timeout, tasks=tasks)
    return _with_wanted(plan, description)


def _require_same_bases(old: Plan, description: Description) -> None:
    """Raise if a base has changed, with the differences. Settings that vary in the study are not compared."""
    if len(description.bases) < len(old.tasks):
        gone = old.tasks[len(description.bases)]["source"]
        raise ConfigError(f"the task {gone} was planned and is missing now; a study only grows", key="tasks")
    changes = [*(one.changes for one in old.configurations), *(one.changes for one in description.wanted)]
    varied = {place for each in changes for place in each}
    checksums = Checksums()
    for task, base in zip(old.tasks, description.bases):
        before, now = identity(task["settings"]), identity(base.to_dict())
        new = {name for name in now if name not in before}
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name) and name not in varied]
        if at_default(base, new):
            changed = [name for name in changed if name not in new]
        differences = "; ".join(f"{short(n)} {before.get(n)} -> {now.get(n)}" for n in changed[:_MOST_DIFFERENCES])
        if not changed:
            other = checksums.differing(task["settings"], task.get("data", {}), base.to_dict())
            changed = [place for place in other if not any(f"{place}.".startswith(f"{one}.") for one in varied)]
            differences = "; ".join(f"{short(n)} names a file of other contents" for n in changed)
        if changed:
            more = f" and {len(changed) - _MOST_DIFFERENCES} more" if len(changed) > _MOST_DIFFERENCES else ""
            raise ConfigError(
                f"{task['source']} has changed since this study began ({differences}{more}); undo that, or give "
                "the changed study another name"
            )


def at_default(config: TrainConfig, names: Iterable[str]) -> bool:
    """Whether these settings of a configuration have their default values."""
    names = list(names)
    kept = {name: value for name, value in config.algo_kwargs.items() if f"algo_kwargs.{name}" not in names}
    bare = config.replace(algo_kwargs=kept)
    unset = identity({**config.to_dict(), "algo_kwargs": resolve(bare).to_dict()})
    for name in names:
        if name in TrainConfig.model_fields:
            unset[name] = TrainConfig.model_fields[name].get_default(call_default_factory=True)
    now = identity(config.to_dict())
    # An identity does not contain a setting that 0.2 did not have if it is at its default.
    return all(name in unset and now[name] == unset[name] for name in names)


def _with_wanted(plan: Plan, description: Description) -> Plan:
    """The plan with every wanted trial: known ones stay in place, new ones are added in groups at the end."""
    known = _Known(plan.configurations)
    places: dict[int, WantedConfig] = {}
    for wanted in announced(description.wanted, "configurations planned"):
        index = known.place(wanted)
        if index in places:
            raise ConfigError(f"{_label(places[index])} and {_label(wanted)} are the same trial")
        places[index] = wanted
    configurations = known.configurations
    if len({one.name for one in configurations}) < len(configurations):
        raise ConfigError(
            "two configurations have the same short hash, by chance; add a tiny change to one setting"
        )
    plan = replace(plan, configurations=configurations)
    _require_nothing_gone(plan, places)
    present = {member for group in plan.members for member in group}
    new = [(index, seed) for index, wanted in places.items() for seed in wanted.seeds]
    groups = _grouped([member for member in new if member not in present], configurations, description)
    return replace(plan, members=[*plan.members, *groups])


def _label(wanted: WantedConfig) -> str:
    return described(wanted.changes) or f"task {wanted.task + 1}"


class _Known:
    """The configurations of a plan, looked up by what their results depend on."""

    def __init__(self, configurations: Iterable[Configuration]) -> None:
        self.configurations = list(configurations)
        self._checksums = Checksums()
        self._alike: dict[str, list[int]] = {}  # by the hash of the identity alone: they differ in their data
        self._names: set[frozenset[str]] = set()
        for index, one in enumerate(self.configurations):
            self._remember(index, identity(one.settings))

    def _remember(self, index: int, known: Mapping[str, Any]) -> None:
        self._alike.setdefault(hash_of(known), []).append(index)
        self._names.add(frozenset(known))

    def place(self, wanted: WantedConfig) -> int:
        """The index of a wanted configuration in the plan; a new one is added."""
        settings = wanted.config.to_dict()
        now, data, changes = identity(settings), self._checksums.of_all(settings), dict(wanted.changes)
        index = self._find(wanted.config, settings, now)
        if index is None:
            index = len(self.configurations)
            self._remember(index, now)
            self.configurations.append(Configuration(hash_of(now, data), wanted.task, changes, settings, data))
        else:
            old = self.configurations[index]
            # The device and the data folder may have changed; settings that are new since are left out.
            kept = settings if identity(old.settings).keys() == now.keys() else with_how(old.settings, settings)
            if len(data) < len(data_files(settings)):  # a file is not here: keep the recorded paths
                kept = {**kept, "algo_kwargs": old.settings["algo_kwargs"]}
            self.configurations[index] = Configuration(old.hash, wanted.task, changes, kept, {**old.data, **data})
        return index

    def _find(self, config: TrainConfig, settings: Mapping[str, Any], now: Mapping[str, Any]) -> int | None:
        """The index of the same configuration in the plan, which may predate some settings; None if it is new."""
        alike = list(self._alike.get(hash_of(now), ()))
        for names in self._names:
            new = now.keys() - names
            if new and now.keys() > names and at_default(config, new):
                digest = hash_of({name: value for name, value in now.items() if name in names})
                alike += self._alike.get(digest, ())
        planned = ((index, self.configurations[index]) for index in alike)
        same = [i for i, one in planned if not self._checksums.differing(one.settings, one.data, settings)]
        if len(same) > 1:  # a file of that name is missing: compare the paths
            paths = data_files(settings)
            same = [index for index in same if data_files(self.configurations[index].settings) == paths]
            if len(same) != 1:
                raise ConfigError(
                    f"{next(iter(paths.values()))}: no such file, and this study learns from several of that name",
                    key="dataset_path",
                )
        return same[0] if same else None


def _require_nothing_gone(plan: Plan, places: Mapping[int, WantedConfig]) -> None:
    for trial in plan.trials:
        wanted = places.get(trial.configuration)
        if wanted is None or trial.seed not in wanted.seeds:
            what = f"seed {trial.seed}"
            if wanted is None:
                what = described(plan.configurations[trial.configuration].changes) or trial.name
            raise ConfigError(
                f"{what} was planned and is missing now; a study only grows: put it back, or give the changed "
                "study another name"
            )


def _grouped(
    members: list[tuple[int, int]], configurations: list[Configuration], description: Description
) -> list[list[tuple[int, int]]]:
    """Group trials that a population can train together, the first seeds of all configurations first."""
    buckets: dict[tuple[str, int], list[tuple[int, int]]] = {}
    rank = {seed: i for i, seed in enumerate(dict.fromkeys(seed for _, seed in members))}
    kinds: dict[int, tuple[str, int]] = {}
    ordered = sorted(members, key=lambda member: (rank[member[1]], member[0]))
    for index, seed in announced(ordered, "trials grouped"):
        if index not in kinds:
            config = TrainConfig(**configurations[index].settings)
            kinds[index] = signature(config), _group_size(description.file.population, config)
        buckets.setdefault(kinds[index], []).append((index, seed))
    groups = [
        bucket[start : start + size]
        for (_, size), bucket in buckets.items()
        for start in range(0, len(bucket), size)
    ]
    return sorted(groups, key=lambda group: (rank[group[0][1]], group[0][0]))


def _group_size(population: Any, config: TrainConfig) -> int:
    if population == "auto":
        return _TOGETHER if _on_gpu(config) else 1
    return 1 if population == "off" else int(population)
