"""`training`: one run from building to its result, as a generator.

    with the regime built (spaces, data, learner, environments)
        with the run's folder open (lock, log, status)
            restore the checkpoint, or reset the environments
            create the updaters, fit, finish

A regime (`online`, `offline`, `offline_to_online`) builds what a run needs and trains it. A session is the run's
folder, log, evaluation and checkpoints. The generator yields when it needs updates and when several runs wait for
each other; `fleet` continues it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import NamedTuple

from rl_training.display.progress import Progress
from rl_training.environments.batched import require_batched
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator
from rl_training.environments.tensor_playing import make_evaluator
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import Checkpoint, latest_valid
from rl_training.experiment.loggers import RunFacts, make_loggers
from rl_training.experiment.logging import CsvSink, MetricsLog, Sink, TensorBoardSink, set_log_aside
from rl_training.experiment.retention import ORIGIN, discard_after, list_checkpoints, set_aside, sweep
from rl_training.experiment.runs import RECORD, RunDirectory, machine_changes, parse_run_record
from rl_training.memory import busy_note
from rl_training.runs import state
from rl_training.runs.changes import Changes
from rl_training.runs.controls import ControlConfig
from rl_training.runs.regime import Advanced, Event, Regime
from rl_training.runs.resume_points import START
from rl_training.runs.run_status import status
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.signals import SignalGuard
from rl_training.runs.spec import RunSpec
from rl_training.updates.schedules import OptimizationConfig
from rl_training.updates.updater import accelerate

# Settings that determine the number of steps and updates of a run.
_TOTALS = (
    "total_timesteps",
    "offline_pretrain_updates",
    "max_updates",
    "max_epochs",
    "learning_starts",
    "online_warmup_steps",
    "train_frequency",
    "gradient_updates_per_step",
)
# The start of a reason in run.json; see `Session.record_inexact`.
_AT_STEP = re.compile(r"step ([0-9]+): ")


class Built(NamedTuple):
    """The regime is built; nothing has been written yet."""

    regime: Regime


class Opened(NamedTuple):
    """The run's folder is open and its state restored; there is no updater yet."""

    session: Session
    trains: bool  # whether something is left to train, also if a signal has stopped the run


Training = Generator[Built | Opened | Event, None, TrainResult]


def training(spec: RunSpec, guard: SignalGuard, console: Callable[..., Progress]) -> Training:
    """Train one run, from the start or from its checkpoint; errors of updates are thrown into the generator.

    `console` is called with the arguments of `Progress` after the run is built.
    """
    with ExitStack() as stack:
        regime = stack.enter_context(closing(spec.regime(spec)))
        spec, scores_reset = regime.spec, False
        yield Built(regime)
        session = stack.enter_context(_open_session(regime, guard, console))
        session.note_in_run(host=platform.node())
        stack.callback(lambda: session.note_in_run(seconds=session.seconds))
        stack.enter_context(status(session))
        if spec.checkpoint is not None:
            scores_reset = _restore(session, regime, spec.checkpoint)
        elif regime.experience is not None:
            regime.experience.start()
        accelerate(regime.learner, spec.config.acceleration)
        yield Opened(session, not session.should_stop and session.clock.ticks < regime.total_ticks)
        regime.make_updaters()
        _record_start(session, regime)
        if scores_reset:
            session.evaluations.set_best_aside()  # scores of another environment
        elif session.run.status_before is not None and session.run.record.get("exact_resume") is False:
            session.evaluations.set_discarded_best_aside()
        resumed = spec.checkpoint
        session.begin(resumed.path if resumed is not None and state.scheduled(resumed) else None)
        if scores_reset:
            session.save()  # a killed run must not resume in the former environment, whose scores are gone
        yield from regime.fit(session)
        session.save_last()
        yield Advanced()
        return session.finish()


def _restore(session: Session, regime: Regime, checkpoint: Checkpoint) -> bool:
    """Restore the session from the checkpoint, and report what has changed or could not be restored.

    Returns whether the run continues in another environment.
    """
    spec, changes = regime.spec, regime.spec.changes()
    problems = state.restore(session, checkpoint)
    problems += _changed_machine(session, checkpoint)
    data = state.changed_data(checkpoint.records["dataset"], regime.dataset_record or {})
    problems += data + changes.problems
    if changes.environment or data:
        _forget_scores(session, changes.environment, complete=session.clock.ticks >= regime.total_ticks)
    if checkpoint.path.parent == session.run.checkpoints:
        session.checkpoint_path = checkpoint.path  # later checkpoints link its unchanged replay shards
        session.saved_step = checkpoint.step
    else:
        session.evaluations.copy_best(checkpoint.path)
        session.note_in_run(resumed_from=str(checkpoint.path))
    bounded = regime.max_updates is not None and session.learner.updates >= regime.max_updates
    if (bounded or session.clock.ticks >= regime.total_ticks) and not session.should_stop:
        own = regime.total_ticks >= spec.config.total_timesteps and not bounded
        bound = "total_timesteps" if own else "max_updates or max_epochs"
        session.say(f"this run is complete; increase {bound} to continue")
    session.clear_stop(int(checkpoint.records["config"]["total_timesteps"]))
    _announce_longer_schedules(session, spec, changes)
    session.note_inexact(problems)
    return changes.environment


def _forget_scores(session: Session, environment: bool, *, complete: bool) -> None:
    """Reset early stopping, because the run continues with other data or in another `environment`.

    In another environment also reset the best score and an earlier stop. New scores count from the next step, or
    from the current one if the run is `complete`.
    """
    for callback in session.callbacks:
        callback.on_scores_forgotten(session)
    if environment:
        session.best_return, session.evaluated_at, session.last_evaluation = None, None, {}
        session.announcing = None
        session.should_stop, session.stop_reason, session.stop_final = False, None, None
        session.note_in_run(scores_from=session.clock.ticks + (not complete))
        session.say("the best score and early stopping are reset: earlier scores belong to another environment")


def _changed_machine(session: Session, checkpoint: Checkpoint) -> list[str]:
    """A phrase for each version, device or CPU setting that has changed since the checkpoint, and missing members.

    A run that resumes in a new folder also repeats why the run of its checkpoint was not exact by then.
    """
    device = str(session.learner.device)
    if checkpoint.path.parent == session.run.checkpoints:
        return [f"changed since the run began: {change}" for change in machine_changes(session.run.record, device)]
    home = checkpoint.path.parent.parent
    place = next((one for one in (checkpoint.path / ORIGIN, home / RECORD) if one.is_file()), None)
    if place is None:
        return [f"{checkpoint.path} is a copy without {RECORD}, so its versions and CPU settings are unknown"]
    record = parse_run_record(place.read_bytes(), str(place))
    names = record.get("trained_with") or ()
    others = ", ".join(name for name in names if name != home.name)
    reasons = [str(reason) for reason in record.get("inexact", ())]
    earlier = [one for one in reasons if (at := _AT_STEP.match(one)) is None or int(at[1]) <= checkpoint.step]
    return [
        *(f"changed since the run began: {change}" for change in machine_changes(record, device)),
        *([f"it was trained together with {others}, and resumes without them"] if len(names) > 1 else []),
        *(f"the run of its checkpoint is not exact: {reason}" for reason in earlier),
    ]


def _announce_longer_schedules(session: Session, spec: RunSpec, changes: Changes) -> None:
    """If the total number of steps or updates has changed, print and record which schedules depend on it."""
    over = ("offline_pretrain_updates", "max_epochs") if session.clock.phase == "online" else ()
    totals = {name.rpartition(".")[2]: name for name in changes.settings}
    changed = {name: changes.settings[name] for key, name in totals.items() if key in _TOTALS and key not in over}
    schedule = spec.resolved[OptimizationConfig].learning_rate_schedule.type
    stretched = ["the learning-rate schedule"] if changed and schedule != "constant" else []
    stretched += ["exploration"] if "total_timesteps" in changed and session.learner.explores_by_progress else []
    if stretched:
        session.say(
            f"note: {Changes(changed)}: {' and '.join(stretched)} "
            f"{'stretches' if len(stretched) == 1 else 'stretch'} over the new total, so this run "
            "differs from one that had this total from the start"
        )
        session.record_inexact([f"schedules have changed: {Changes(changed)}"])


def _record_start(session: Session, regime: Regime) -> None:
    """Write the data set, the settings and the device to the run's folder."""
    spec = regime.spec
    if spec.checkpoint is None:
        session.note_inexact([])
    if regime.dataset_record is not None and session.run.record.get("dataset") != dict(regime.dataset_record):
        session.note_in_run(dataset=dict(regime.dataset_record))
    if regime.pretraining:
        session.note_in_run(pretraining=regime.pretraining)
    if session.run.status_before is not None:
        session.run.reconfigure(spec.config, spec.settings)
    session.note_in_run(device=str(session.learner.device))
    if spec.config.env_id is None and spec.config.eval_env is None:
        session.say("no environment (env_id: null): evaluation is skipped")
    elif _has_single_environment(regime):
        session.say(
            f"{spec.config.env_id}: this instance cannot be duplicated, so it is used for training only; pass "
            "eval_env=… to evaluate"
        )


@contextmanager
def _open_session(regime: Regime, guard: SignalGuard, console: Callable[..., Progress]) -> Iterator[Session]:
    """Open a session in a new run folder, or in the folder of its checkpoint."""
    spec, checkpoint, evaluator = regime.spec, regime.spec.checkpoint, _evaluator(regime)
    with _run_directory(spec) as folder, ExitStack() as opened:
        if evaluator is not None:
            opened.callback(evaluator.close)
        if spec.opened is not None:
            spec.opened(folder.path)
        with _status_restored_on_error(folder):
            _clean(folder, spec)
            opening = [_summary(regime), *regime.remarks, _location(folder, regime)]
            if changed := str(spec.changes()):
                opening.append(f"changed settings: {changed}")
            if checkpoint is None and (busy := busy_note()):  # a resumed run keeps its number of threads
                opening.append(busy)
            progress = console(
                regime.total_ticks,
                start=regime.learner.updates if checkpoint is None else checkpoint.step,
                quiet=spec.options.quiet,
                unit="updates" if regime.first_phase == "offline" else "steps",
                opening=opening,
                pretraining=regime.pretraining,
                first_update=regime.first_update,
            )
            opened.callback(progress.close)  # the log does not close it if it was dropped after an error
            log = _open_log(folder, spec, progress)
            opened.callback(lambda: log.close(folder.record["status"]))
            session = Session(regime, folder, log=log, progress=progress, guard=guard, evaluator=evaluator)
        yield session


@contextmanager
def _status_restored_on_error(folder: RunDirectory) -> Iterator[None]:
    """Until a session writes the status itself, a reopened run keeps the status it had."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            folder.update(status=folder.status_before or "failed")
        raise


def _summary(regime: Regime) -> str:
    """Algorithm, environment or data, budget, seed and device, in one line."""
    config, data = regime.spec.config, regime.dataset_record
    env = f"{config.num_envs} x {config.env_id}" if config.num_envs > 1 else str(config.env_id)
    sources = [] if regime.experience is None else [env]
    if data is not None:
        sources.append(f"{data['name']} ({data['rows']:,} rows)")
    budget = f"{config.total_timesteps:,} steps"
    if regime.experience is None:
        budget = f"{regime.total_ticks:,} updates"
    elif pretraining := regime.total_ticks - config.total_timesteps - regime.learner.updates:
        budget = f"{pretraining:,} updates, then {budget}"
    return f"{config.algo} on {' and '.join(sources)}, {budget}, {regime.learner.device}, seed {config.seed}"


def _location(folder: RunDirectory, regime: Regime) -> str:
    """The run's folder and the checkpoint from which it resumes, in one line."""
    checkpoint, before = regime.spec.checkpoint, regime.pretraining
    if checkpoint is None:
        return f"run folder: {folder.path}"
    step = f"update {checkpoint.step:,}" if checkpoint.step < before else f"step {checkpoint.step - before:,}"
    if checkpoint.path.parent == folder.checkpoints:
        return f"resuming {folder.path} at {step}"
    return f"resuming {checkpoint.path} at {step} in a new run folder: {folder.path}"


def _has_single_environment(regime: Regime) -> bool:
    """Whether the run trains in the caller's only environment instance."""
    maker = regime.spec.given.env
    single = maker is not None and maker.single_instance and regime.spec.config.eval_env is None
    return single and regime.experience is not None


def _evaluator(regime: Regime) -> Evaluator | None:
    """Environments to evaluate in, checked against the run's spaces; None if there are none."""
    spec, config = regime.spec, regime.spec.config
    if config.env_id is None and config.eval_env is None:
        return None
    if _has_single_environment(regime):
        if spec.resolved[ControlConfig].early_stopping is not None:
            raise ConfigError(
                f"algo_kwargs.early_stopping needs evaluations, and {config.env_id} cannot be duplicated; pass "
                "eval_env=…",
                key="algo_kwargs.early_stopping",
            )
        return None
    evaluator = make_evaluator(config, regime.spaces, spec.given)
    if config.eval_env is not None:
        other = spaces_of(evaluator.config, given=evaluator.given)
        if difference := other.difference(regime.spaces, "it has", "the run trains on"):
            raise ConfigError.of("eval_env", f"{config.eval_env} does not fit the run's spaces ({difference})")
    if config.environments == "batched" and config.eval_episodes > 0 and not evaluator.on_device:
        require_batched(evaluator.config, evaluator.given)
    return evaluator


def _open_log(folder: RunDirectory, spec: RunSpec, progress: Progress) -> MetricsLog:
    """Open the log of a run; rows written after the checkpoint from which it resumes are deleted."""

    def warn(text: str) -> None:
        progress.say(f"warning: {text}")

    checkpoint, csv = spec.checkpoint, CsvSink(folder.metrics_csv, folder.fence)
    resumed_from = None if checkpoint is None else state.logged_until(checkpoint)
    rows: int = 0
    columns: list[str] | None = None
    unwritten: list[tuple[int, dict[str, float]]] = []
    if checkpoint is not None and checkpoint.path.parent == folder.checkpoints:
        rows, columns = state.covered_log(checkpoint)
        unwritten = state.unwritten_rows(checkpoint)
    kept = csv.truncate_after(resumed_from or 0, rows, columns)
    last = kept[-1] if kept else None
    sinks: list[Sink] = [csv]
    try:
        sinks.append(TensorBoardSink(folder.tensorboard, resumed_from=resumed_from, last=last))
    except Exception as error:  # one of its dependencies may be broken
        warn(f"TensorBoard is switched off for the rest of the run: {type(error).__name__}: {error}")
    log = MetricsLog([*sinks, progress], warn=warn, rows=rows, last=last)
    facts = RunFacts(folder.path, folder.path.name, spec.settings, resumed_from)
    for logger in [*make_loggers(spec.config.loggers), *spec.options.loggers]:
        log.add(logger, facts, kept)
    for step, values in unwritten:
        log.log(step, values)
    return log


def _run_directory(spec: RunSpec) -> RunDirectory:
    checkpoint, options = spec.checkpoint, spec.options
    if checkpoint is None and options.home is not None:
        return RunDirectory.open(options.home, options.fence)
    if checkpoint is None:
        return RunDirectory.create(
            spec.config, spec.settings, options.suffix, text=options.text, path=options.folder, fence=options.fence
        )
    home = checkpoint.path.parent.parent
    is_run = checkpoint.path.parent.name == "checkpoints" and (home / "run.json").is_file()
    if is_run and (options.rewinds or latest_valid(checkpoint.path.parent)[0] == checkpoint.path):
        return RunDirectory.open(home, options.fence)
    return RunDirectory.create(spec.config, spec.settings, options.suffix or "resumed")


def _clean(folder: RunDirectory, spec: RunSpec) -> None:
    """Remove from a reopened folder what the run will write again: newer checkpoints, partial files, the log."""
    if folder.status_before is None:
        return
    if spec.options.rewinds and spec.checkpoint is None:  # if it is killed before its next one, it starts again
        folder.update(saved=False)
        for best in list_checkpoints(folder.best):
            set_aside(best, folder.earlier_best)
    if spec.options.rewinds:
        discard_after(folder.checkpoints, START if spec.checkpoint is None else spec.checkpoint.step)
    for parent in (folder.checkpoints, folder.best):
        sweep(parent)
    if spec.checkpoint is None:
        set_log_aside(folder.metrics_csv)
