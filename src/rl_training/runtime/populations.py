"""Who may be trained together, how many at a time, and how a population is started and taken up again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rl_training.algorithms.base import LearnerConfig
from rl_training.data.datasets import TransitionDataset
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import ClaimLost, ConfigError, RunInUse
from rl_training.experiment import files
from rl_training.experiment.checkpointing import latest_valid
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import Logger
from rl_training.experiment.registry import get_algorithm_spec, resolve
from rl_training.experiment.runs import amend_record, lock_run, read_run_record
from rl_training.runs.callbacks import Callback
from rl_training.runs.capacity import members_that_fit
from rl_training.runs.console import Display, MemberProgress
from rl_training.runs.fleet import Member, MembersFailed, results_of, run_together
from rl_training.runs.regime import RunSpec
from rl_training.runs.resume_points import Place, turns_of
from rl_training.runs.session import TrainResult
from rl_training.runs.signals import SignalGuard, TrainingInterrupted
from rl_training.runs.training import RunOptions, training
from rl_training.runtime.workflows import Resumption, resume_training, take_up

# What is no part of what a run computes, and may differ between members.
_OF_THE_FOLDER = TrainConfig.affecting("run")
Made = TypeVar("Made")


def structure(config: TrainConfig) -> dict[str, Any]:
    """All in which members of one population may not differ: everything but seeds, places and plain numbers."""
    resolved, spec = resolve(config), get_algorithm_spec(config.algo)
    fields = {key: value for key, value in config.to_dict().items() if key not in _OF_THE_FOLDER}
    hyperparameters = resolved[LearnerConfig]
    others = {key: value for key, value in resolved.to_dict().items() if key not in dict(hyperparameters)}
    return fields | {"algo_kwargs": others | spec.learner.structure(hyperparameters)}


def signature(config: TrainConfig) -> str:
    """`structure` as text: runs of one signature may be trained together."""
    return files.encode_json(structure(config)).decode()


def members_of(config: TrainConfig) -> list[TrainConfig]:
    """One configuration for each of `seeds`."""
    return [config.replace(seed=seed, seeds=None) for seed in config.seeds or ()]


def train_population(
    configs: Sequence[TrainConfig],
    *,
    callbacks: Sequence[Callback] | None = None,
    dataset: TransitionDataset | None = None,
    given: UserEnvironments | None = None,
    launch: RunOptions | None = None,
    run_suffix: str | None = None,
) -> list[TrainResult]:
    """Train every configuration, as many at a time as `population` and the memory allow; results in their order."""
    _require_alike(configs)
    _require_enough_environments(configs, given)
    spec, shared = get_algorithm_spec(configs[0].algo), dict[str, Any]()
    jobs = [RunSpec.of(spec.sections, config, None, dataset, given, shared) for config in configs]
    return _train(jobs, [launch or RunOptions()] * len(jobs), callbacks, run_suffix)


def _require_alike(configs: Sequence[TrainConfig]) -> None:
    first = structure(configs[0])
    for config in configs[1:]:
        other = structure(config)
        flat = [{**one, **one["algo_kwargs"], "algo_kwargs": None} for one in (first, other)]
        for key in {**flat[0], **flat[1]}:
            if flat[0].get(key) != flat[1].get(key):
                raise ConfigError(
                    f"{key}: members of a population may differ in seed and in numbers with a fraction, not in "
                    f"this: {flat[0].get(key)} and {flat[1].get(key)}",
                    key=key,
                )


def _require_enough_environments(configs: Sequence[TrainConfig], given: UserEnvironments | None) -> None:
    """Refuse one environment for several members that step theirs in turn."""
    maker, first = None if given is None else given.env, configs[0]
    steps = get_algorithm_spec(first.algo).regime != "offline"
    if maker is None or not steps or first.population == "off" or len(configs) < 2:
        return
    maker.probe(first.env_kwargs)
    if maker.single_instance:
        raise ConfigError(
            f"seeds: {maker.name} cannot be made again for every member; give its class or a callable that makes a "
            "new one",
            key="seeds",
        )


def _copied(things: Sequence[Made], what: str) -> list[Made]:
    """A copy for each member: they keep state, and a member's is its own."""
    found = []
    for thing in things:
        try:
            found.append(copy.deepcopy(thing))
        except Exception as error:
            name = type(thing).__name__
            raise ConfigError(f"{what}: {name} cannot be copied for each member: {error}", key=what) from error
    return found


def _train(
    jobs: Sequence[RunSpec],
    launches: Sequence[RunOptions],
    callbacks: Sequence[Callback] | None,
    suffix: str | None = None,
    turns: Sequence[Sequence[int]] | None = None,
) -> list[TrainResult]:
    """`turns`: which jobs are trained together, by their numbers, one turn after another; None: all."""
    most = jobs[0].config.population
    regime = get_algorithm_spec(jobs[0].config.algo).trained_by
    shown: list[Display] = []

    def console(seed: int, *arguments: Any, **options: Any) -> MemberProgress:
        return MemberProgress(shown[-1], seed, *arguments, **options)

    with SignalGuard() as guard:
        members = []
        for job, launch in zip(jobs, launches, strict=True):
            seed = job.config.seed or 0
            watching = _copied(callbacks or (), "callbacks")
            start = replace(
                launch,
                guard=guard,
                progress=partial(console, seed) if most != "off" else None,
                loggers=tuple(_copied(launch.loggers, "loggers")),
            )
            members.append(Member(seed, training(regime, job, callbacks=watching, launch=start, suffix=suffix)))
        try:
            over: list[Member] = []
            for turn in turns or [range(len(members))]:
                left, at_a_time = [members[i] for i in turn], most
                while left:
                    fit = partial(members_that_fit, wanted=len(left), population=at_a_time)
                    at_a_time = run_together(left, fit, guard, lambda count: shown.append(Display(count)), over)
                    over, left = [*over, *left[:at_a_time]] if most != "off" else [], left[at_a_time:]
        finally:
            for member in members:
                member.going.close()
    return results_of(members)


def train_in_folders(
    members: Sequence[tuple[TrainConfig, Path]],
    launch: RunOptions,
    *,
    begun: Callable[[Path], bool],
    warn: Callable[[str], None] = warnings.warn,
) -> list[Exception | None]:
    """Train every configuration in the folder named with it, going on with what was `begun` there; returns what
    each failed with."""
    spec, shared = get_algorithm_spec(members[0][0].algo), dict[str, Any]()
    homes = {home: begun(home) for _, home in members}
    turns = turns_of(homes, homes, warn)
    places, numbers = _places(turns, list(homes))
    jobs, launches = [], []
    for (config, home), place in zip(members, places, strict=True):
        if homes[home]:
            found = _take_up(place, changes={"allow_import": config.allow_import}, warn=warn)
            jobs.append(RunSpec.of(spec.sections, found.config, found.checkpoint, None, None, shared))
            launches.append(replace(launch, home=found.home, rewinds=place.rewinds))
        else:
            jobs.append(RunSpec.of(spec.sections, config, None, None, None, shared))
            launches.append(replace(launch, folder=home))
    try:
        _train(jobs, launches, None, turns=numbers)
    except (TrainingInterrupted, ClaimLost, RunInUse):
        raise
    except MembersFailed as failed:
        return failed.errors
    except Exception as error:  # of them all
        return [error] * len(members)
    return [None] * len(members)


# Going on.


def _places(turns: Sequence[Sequence[Place]], homes: Sequence[Path]) -> tuple[list[Place], list[list[int]]]:
    """The places of all turns in the order of `homes`, and the turns by their numbers."""
    found = sorted((place for turn in turns for place in turn), key=lambda place: homes.index(place.home))
    return found, [[found.index(place) for place in turn] for turn in turns]


def _take_up(place: Place, *, warn: Callable[[str], None], **options: Any) -> Resumption:
    if place.rewinds:
        warn(str(place))
    again = place.rewinds and place.checkpoint is None
    return take_up(place.checkpoint or place.home, start_again=again, warn=warn, **options)


def resume(
    path: str | Path,
    *,
    alone: bool = False,
    changes: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback] | None = None,
    dataset: TransitionDataset | None = None,
    given: UserEnvironments | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    warn: Callable[[str], None] = warnings.warn,
) -> list[TrainResult]:
    """Go on with a run, and with it all members of its population; `alone` takes it out of that.

    All resume at the newest step that every member has saved; `population.resuming` has the exceptions.
    """
    options: dict[str, Any] = {"changes": changes, "overrides": overrides, "dataset": dataset, "given": given}
    homes = [] if alone else _companions(Path(path))
    turns = turns_of(dict.fromkeys(homes, True), [_home_of(Path(path))], warn) if len(homes) > 1 else []
    places, numbers = _places(turns, homes)
    if len(places) < 2:
        if alone:
            _leave(Path(path), warn)
        return [resume_training(path, callbacks=callbacks, loggers=loggers, quiet=quiet, warn=warn, **options)]
    for place in places:
        with lock_run(place.home):  # all of them, or none
            pass
    found = [_take_up(place, warn=warn, **options) for place in places]
    spec, shared = get_algorithm_spec(found[0].config.algo), dict[str, Any]()
    jobs = [RunSpec.of(spec.sections, one.config, one.checkpoint, dataset, given, shared) for one in found]
    launches = [
        RunOptions(quiet=quiet, home=one.home, loggers=tuple(loggers), rewinds=place.rewinds)
        for one, place in zip(found, places)
    ]
    return _train(jobs, launches, callbacks, turns=numbers)


def _home_of(path: Path) -> Path:
    """The run folder that is meant, by a name that tells its parent."""
    home = path.parent.parent if path.parent.name == "checkpoints" else path
    return home if home.name not in ("", "..") else home.resolve()


def _companions(path: Path) -> list[Path]:
    """The folders of a run's population, its own among them, but for those that were taken out; none where it has
    no population, or `path` is an older checkpoint, which resumes in a new folder."""
    home = _home_of(path)
    if not (home / "run.json").is_file() or (
        path.parent.name == "checkpoints" and latest_valid(path.parent)[0] != path
    ):
        return []
    names = _population_record(home).get("members", [])
    homes = [home.parent / Path(str(name)).name for name in names]
    if missing := [one for one in homes if not (one / "run.json").is_file()]:
        raise ConfigError(
            f"{missing[0]}: missing, a member of the population of {home}; --alone takes one run out and goes on"
        )
    return [one for one in homes if one.name == home.name or _population_record(one)]


def _population_record(home: Path) -> dict[str, Any]:
    record = read_run_record(home).get("population")
    if not isinstance(record, dict) or not isinstance(record.get("members"), list) or record.get("left"):
        return {}
    return record


def _leave(path: Path, warn: Callable[[str], None]) -> None:
    """Take a run out of its population: neither looks for the other again."""
    home = _home_of(path)
    if not (home / "run.json").is_file() or not (record := _population_record(home)):
        return
    with lock_run(home):
        amend_record(home, population=record | {"left": True}, trained_with=None, exact_resume=False)
    others = [name for name in record["members"] if name != home.name]
    for other in (home.parent / Path(str(name)).name for name in others):
        if (other / "run.json").is_file() and _population_record(other):
            with lock_run(other):
                amend_record(other, population={"members": others})
    warn(f"{home}: taken out of its population; it goes on alone, equal to it up to rounding")
