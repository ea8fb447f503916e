"""Resume runs: find the checkpoint, apply and check changed settings, continue training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.data.datasets import TransitionDataset
from rl_training.environments.making import spaces_of
from rl_training.environments.user_environments import UserEnvironments, tensor_maker
from rl_training.errors import CheckpointError, ClaimLost, ConfigError, RunInUse
from rl_training.experiment.checkpointing import Checkpoint, checkpoint_errors, latest_valid, list_checkpoints
from rl_training.experiment.compat import with_defaults_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import Logger
from rl_training.experiment.registry import spec_of
from rl_training.experiment.retention import step_of
from rl_training.experiment.runs import RECORD, RESOLVED, amend_record, lock_run, read_run_record, results_of
from rl_training.experiment.strict_yaml import parse_yaml
from rl_training.runs.callbacks import Callback
from rl_training.runs.changes import Changes, differences
from rl_training.runs.fleet import MembersFailed, as_exception, train
from rl_training.runs.resume_points import ResumePoint, turns_of
from rl_training.runs.session import TrainResult
from rl_training.runs.signals import TrainingInterrupted
from rl_training.runs.spec import RunOptions, RunSpec
from rl_training.runs.state import config_of, spaces_from
from rl_training.runtime.loading import open_checkpoint
from rl_training.runtime.populations import copied
from rl_training.runtime.resume_settings import (
    changed_config,
    data_keys,
    naming_data,
    require_resumable,
    require_same_seed,
    with_data,
)


def resume_training(
    path: str | Path, *, loggers: Sequence[Logger] = (), quiet: bool = False, **others: Any
) -> TrainResult:
    """Resume a run from its folder or a checkpoint; a run that ended before its first checkpoint starts again.

    `loggers` are used in addition to the configured ones; `others` are arguments of `resumed_run`.
    """
    options = RunOptions(quiet=quiet, loggers=tuple(loggers))
    (result,) = train([resumed_run(path, options=options, **others)])
    return result


def resume_population(
    path: str | Path,
    *,
    alone: bool = False,
    callbacks: Sequence[Callback] | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    warn: Callable[[str], None] = warnings.warn,
    **others: Any,
) -> list[TrainResult]:
    """Resume a run and all members of its population; `alone` takes it out of its population.

    All resume at the newest step that every member has saved; `runs.resume_points` has the exceptions. `others` are
    arguments of `resumed_run`.
    """
    path = _with_name(path)
    homes = [] if alone else _population_of(path)
    groups = turns_of(dict.fromkeys(homes, True), [_home_of(path)], warn) if len(homes) > 1 else []
    points, turns = _in_order(groups, homes)
    options = RunOptions(quiet=quiet, loggers=tuple(loggers))
    if len(points) > 1:
        return _resume_several(points, turns, options, callbacks, warn=warn, **others)
    run = resumed_run(path, callbacks=callbacks, options=options, warn=warn, **others)
    if alone and _resumes_in_place(path):
        _remove_from_population(path, warn)
    return train([run])


def resume_each(
    paths: Sequence[Path],
    *,
    callbacks: Sequence[Callback] | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    **others: Any,
) -> list[TrainResult]:
    """Resume the runs of `population: off` one after another, except those that have diverged.

    `others` are arguments of `resumed_run`.
    """
    left = [path for path in paths if read_run_record(_home_of(path))["status"] != "diverged"]
    points = [ResumePoint(_home_of(path), path, step_of(path)) for path in left or paths]
    return _resume_several(points, None, RunOptions(quiet=quiet, loggers=tuple(loggers)), callbacks, **others)


def _resume_several(
    points: Sequence[ResumePoint],
    turns: Sequence[Sequence[int]] | None,
    options: RunOptions,
    callbacks: Sequence[Callback] | None,
    **others: Any,
) -> list[TrainResult]:
    """Resume a run at each of `points` with its own copy of callbacks and loggers; raises if one is in use."""
    with ExitStack() as probe:  # fail now; each run takes its lock again when it opens
        for point in points:
            probe.enter_context(lock_run(point.home))
    shared: dict[str, Any] = {}
    runs = []
    for point in points:
        own = replace(options, loggers=copied(options.loggers, "loggers"))
        watching = copied(callbacks or (), "callbacks")
        runs.append(_resumed_member(point, own, callbacks=watching, shared=shared, **others))
    return train(runs, turns)


def _in_order(
    turns: Sequence[Sequence[ResumePoint]], homes: Sequence[Path]
) -> tuple[list[ResumePoint], list[list[int]]]:
    """The resume points of all turns in the order of `homes`, and the turns as indices into them."""
    found = sorted((place for turn in turns for place in turn), key=lambda place: homes.index(place.home))
    return found, [[found.index(place) for place in turn] for turn in turns]


def _resumed_member(
    place: ResumePoint, options: RunOptions, *, warn: Callable[[str], None] = warnings.warn, **others: Any
) -> RunSpec:
    """The `RunSpec` of a member that resumes at `place`; `others` are arguments of `resumed_run`."""
    if place.rewinds:
        warn(place.rewind_warning())
    options = replace(options, rewinds=place.rewinds)
    return resumed_run(place.checkpoint or place.home, options=options, warn=warn, **others)


def train_in_folders(
    members: Sequence[tuple[TrainConfig, Path]], options: RunOptions, *, begun: Callable[[Path], bool]
) -> list[Exception | None]:
    """Train each configuration in its folder, resuming the runs that have `begun`; returns each member's error."""
    homes = {home: begun(home) for _, home in members}
    places, turns = _in_order(turns_of(homes, homes, warnings.warn), list(homes))
    shared: dict[str, Any] = {}
    runs = []
    try:
        for (config, home), place in zip(members, places, strict=True):
            if homes[home]:
                changes = {name: getattr(config, name) for name in TrainConfig.affecting("place")}
                moved = naming_data(config)
                run = _resumed_member(place, options, changes=changes, data_settings=moved, shared=shared)
            else:
                spec = spec_of(config)
                run = spec.run_spec(config, options=replace(options, folder=home), shared=shared)
            runs.append(run)
        train(runs, turns)
    except (TrainingInterrupted, ClaimLost, RunInUse):
        raise
    except MembersFailed as failed:
        return failed.errors
    except (Exception, SystemExit) as error:  # raised before the members were trained
        return [as_exception(error)] * len(members)
    return [None] * len(members)


def resumed_run(
    path: str | Path,
    *,
    changes: Mapping[str, Any] | None = None,
    at_least: int = 0,
    overrides: Sequence[str] = (),
    data_settings: Mapping[str, Any] | None = None,
    dataset: TransitionDataset | None = None,
    given: UserEnvironments | None = None,
    options: RunOptions | None = None,
    warn: Callable[[str], None] = warnings.warn,
    **others: Any,
) -> RunSpec:
    """The `RunSpec` of a run that resumes from its folder or a checkpoint.

    `changes` replace fields of the configuration, `overrides` do the same as `key=value`, and `data_settings` name
    its data; a `total_timesteps` below `at_least` is raised to it. `given` are environments without an id; `others`
    are fields of `RunSpec`. If `options.rewinds` is set, a run folder starts from its first step although it has
    checkpoints.
    """
    options, home = options or RunOptions(), _with_name(path)
    rewinds = options.rewinds and (home / RECORD).is_file()
    checkpoint = None if rewinds or _has_no_checkpoint(home) else open_checkpoint(home, warn)
    before, data = _recorded(home, rewinds) if checkpoint is None else _saved(checkpoint)
    changes = {"total_timesteps": max(before.total_timesteps, at_least), **(changes or {})}
    if data_settings:
        changes["algo_kwargs"] = {**before.algo_kwargs, **data_settings}
    named = data_settings or data_keys(overrides)
    config = with_data(before, changed_config(before, changes, overrides), data, dataset, named=named)
    require_same_seed(before, config)
    if data.get("in_memory") and dataset is None and not named:
        ways = "resume(dataset=…) or --set dataset_path=…"
        raise ConfigError(f"{home} was trained on arrays in memory; resume it with {ways}")
    if checkpoint is not None:
        _require_fit(checkpoint, before, config, given)
    else:
        options = replace(options, home=home)
        if not rewinds:
            changed = str(Changes(differences(before.to_dict(), config.to_dict())))
            warn(f"{home}: ended before its first checkpoint; it starts again{changed and f' with {changed}'}")
    return spec_of(config).run_spec(
        config, checkpoint=checkpoint, dataset=dataset, given=given, options=options, **others
    )


def _recorded(home: Path, rewinds: bool) -> tuple[TrainConfig, Mapping[str, Any]]:
    """The settings and data of a run that starts again in its folder."""
    record = read_run_record(home)
    if not rewinds:
        _require_no_results(home, record)
    return _config_of_run(home, record), record.get("dataset", {})


def _saved(checkpoint: Checkpoint) -> tuple[TrainConfig, Mapping[str, Any]]:
    """The settings and data of a run that resumes from `checkpoint`."""
    if "optimizers" not in checkpoint.tensors:
        raise ConfigError(f"{checkpoint.path} holds a policy only; resume the run folder, or use init_from")
    return config_of(checkpoint), checkpoint.records["dataset"]


def _require_fit(
    checkpoint: Checkpoint, before: TrainConfig, now: TrainConfig, given: UserEnvironments | None
) -> None:
    """Raise if the checkpoint of a run with the settings `before` cannot resume with the settings `now`."""
    require_resumable(checkpoint, before, now)
    discrete = spec_of(now).chosen(now.regime)[1].takes_discrete
    if now.env_id is not None and (
        difference := spaces_of(now, discrete=discrete, given=given).difference(spaces_from(checkpoint))
    ):
        raise CheckpointError(f"{checkpoint.path}: the environment's spaces have changed ({difference})")
    _require_same_kind(checkpoint, now, given)


def _require_same_kind(checkpoint: Checkpoint, now: TrainConfig, given: UserEnvironments | None) -> None:
    """Raise if the run would continue in a Gymnasium environment instead of a tensor environment, or vice versa."""
    before = checkpoint.records.get("collector")
    steps_tensors = tensor_maker(now, given) is not None
    with checkpoint_errors(checkpoint):
        if before is None or ("num_envs" in before) == steps_tensors:
            return
    kinds = "a Gymnasium environment", "a TensorEnv or vector environment"
    raise ConfigError.of(
        "env_id",
        f"{now.env_id} is {kinds[steps_tensors]} and the run was trained in {kinds[not steps_tensors]}; start a "
        "new run, with init_from for its networks",
    )


def _has_no_checkpoint(home: Path) -> bool:
    """Whether `home` is a run folder without checkpoints."""
    return (home / RECORD).is_file() and (home / RESOLVED).is_file() and not list_checkpoints(home / "checkpoints")


def _require_no_results(home: Path, record: Mapping[str, Any]) -> None:
    """Raise if starting again in place would replace results; a log is not a result."""
    if results := results_of(home, record):
        best = home / "best"
        way = (
            f"--init-from {best} starts a new run from its best policy"
            if list_checkpoints(best)
            else f"rl-training train --config {home / RESOLVED} makes it again in a new folder"
        )
        others = "; --alone resumes another member of its population" if record.get("trained_with") else ""
        raise ConfigError(f"{home}: has no checkpoint to resume from, but {results}; {way}{others}")


def _config_of_run(home: Path, record: Mapping[str, Any]) -> TrainConfig:
    """The configuration of a run folder, with `allow_import` off: a file cannot permit imports."""
    place = home / RESOLVED
    values = parse_yaml(place.read_text(encoding="utf-8", errors="replace"), str(place)).value
    if not isinstance(values, dict):
        raise ConfigError(f"{place}: expected a mapping of settings; start a new run")
    try:
        config = TrainConfig.parse({**values, "allow_import": False})
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}", key=error.key) from None
    return with_defaults_of(record.get("schema"), config)


def _with_name(path: str | Path) -> Path:
    """`path`, resolved if the name of the run folder is not part of it; `RUN/checkpoints` means `RUN`."""
    path = Path(path)
    if path.name == "checkpoints" and (path.parent / RECORD).is_file():
        path = path.parent
    needed = (path, path.parent, path.parent.parent) if path.name.startswith("step_") else (path,)
    return path.resolve() if any(one.name in ("", "..") for one in needed) else path


def _home_of(path: Path) -> Path:
    """The run folder of a run or checkpoint."""
    return path.parent.parent if path.parent.name == "checkpoints" else path


def _resumes_in_place(path: Path) -> bool:
    """Whether `path` is a run or its newest checkpoint; an older checkpoint resumes in a new folder."""
    older = path.parent.name == "checkpoints" and latest_valid(path.parent)[0] != path
    return (_home_of(path) / RECORD).is_file() and not older


def _population_of(path: Path) -> list[Path]:
    """The folders of a run's population, including its own but not those that were taken out.

    Empty if the run has no population, or if it resumes in a new folder.
    """
    if not _resumes_in_place(path):
        return []
    home = _home_of(path)
    names = _population_record(home).get("members", [])
    homes = [home.parent / Path(str(name)).name for name in names]
    if missing := [one for one in homes if not (one / RECORD).is_file()]:
        raise ConfigError(
            f"{missing[0]}: missing, a member of the population of {home}; --alone takes one run out and resumes it"
        )
    return [one for one in homes if one.name == home.name or _population_record(one)]


def _population_record(home: Path) -> dict[str, Any]:
    record = read_run_record(home).get("population")
    if not isinstance(record, dict) or not isinstance(record.get("members"), list) or record.get("left"):
        return {}
    return record


def _remove_from_population(path: Path, warn: Callable[[str], None]) -> None:
    """Take a run out of its population, in the records of all members."""
    home = _home_of(path)
    if not (record := _population_record(home)):
        return
    names = [name for name in record["members"] if name != home.name]
    folders = [home.parent / Path(str(name)).name for name in names]
    others = [one for one in folders if (one / "run.json").is_file() and _population_record(one)]
    with ExitStack() as locks:
        for one in (home, *others):
            locks.enter_context(lock_run(one))
        amend_record(home, population=record | {"left": True}, trained_with=None, exact_resume=False)
        for one in others:
            amend_record(one, population={"members": names})
    warn(f"{home}: taken out of its population; it continues alone, equal to it up to rounding")
