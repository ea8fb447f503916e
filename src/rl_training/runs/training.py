"""The course of a run, written once: build, open the folder, restore or start, train, finish, whatever happens.

    with the regime built (spaces, data, learner, environments)
        with the run's folder open (lock, signals, log, status)
            take up the checkpoint, or start
            make ready, fit, finish

A regime (`online`, `offline`, `offline_to_online`) says what is built, how long it trains and how; a session is one
run's folder, log, evaluation and checkpoints. The two meet here only.

A course is a generator: where it needs updates it yields, and goes on when they are made. Alone (`run`) they are
made at once; a population makes those of all its members together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rl_training.display.progress import Progress
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment import files
from rl_training.experiment.checkpointing import Checkpoint, latest_valid
from rl_training.experiment.loggers import Logger, RunFacts, make_loggers
from rl_training.experiment.logging import CsvSink, MetricsLog, Sink, TensorBoardSink
from rl_training.experiment.retention import discard_after, sweep
from rl_training.experiment.runs import RunDirectory, end_of, read_run_record
from rl_training.runs import state
from rl_training.runs.callbacks import Callback
from rl_training.runs.clock import Clock
from rl_training.runs.regime import Advanced, Event, Regime, RunSpec, Updates
from rl_training.runs.run_status import duration, status
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.signals import SignalGuard
from rl_training.runtime.controls import ControlConfig, build_control_callbacks
from rl_training.updates.schedules import OptimizationConfig
from rl_training.updates.updater import accelerate


@dataclass(frozen=True)
class RunOptions:
    """How a run is started; nothing here changes what it computes."""

    quiet: bool = False  # no progress on the console; warnings still show
    text: str | None = None  # the configuration as its author wrote it, kept as config.yaml
    home: Path | None = None  # the folder of a run that ended before its first checkpoint, to start again in
    guard: SignalGuard | None = None  # who catches signals for all runs of this process
    progress: Callable[..., Progress] | None = None  # makes the run's console, which several runs may share
    loggers: tuple[Logger, ...] = ()  # beside those the configuration names
    folder: Path | None = None  # the folder to make for a new run; None: one named by the clock in output_dir
    fence: files.Fence = files.unfenced  # asked before each write, where another process may take the run over
    rewinds: bool = False  # resume in place from a checkpoint that is not the newest, and delete those after it


class Built(NamedTuple):
    """The regime is there; nothing was written yet."""

    regime: Regime


class Opened(NamedTuple):
    """The run's folder is open and its state restored; no updater exists yet."""

    session: Session
    trains: bool  # whether there is something left to train


Training = Generator[Built | Opened | Event, None, TrainResult]


def run(
    regime_of: type[Regime],
    job: RunSpec,
    *,
    callbacks: Sequence[Callback] | None = None,
    launch: RunOptions | None = None,
    suffix: str | None = None,
) -> TrainResult:
    """Train as `job` says, from the start or from its checkpoint, in a folder whose name ends in `suffix`."""
    going = training(regime_of, job, callbacks=callbacks, launch=launch, suffix=suffix)
    try:
        event = next(going)
        while True:
            try:
                if isinstance(event, Updates):
                    event.updater.run(event.number)
                elif isinstance(event, Opened):
                    note_companions([event])
            except BaseException as error:
                event = going.throw(error)
            else:
                event = next(going)
    except StopIteration as end:
        result: TrainResult = end.value
        return result


def training(
    regime_of: type[Regime],
    job: RunSpec,
    *,
    callbacks: Sequence[Callback] | None = None,
    launch: RunOptions | None = None,
    suffix: str | None = None,
) -> Training:
    """A run from building to its result; see the module. What goes wrong while it waits is thrown into it."""
    with ExitStack() as open_until_the_end:
        regime = open_until_the_end.enter_context(closing(regime_of(job)))
        job, scores_anew = regime.job, False
        yield Built(regime)
        opening = _open_session(job, regime, callbacks or (), launch or RunOptions(), suffix)
        session = open_until_the_end.enter_context(opening)
        open_until_the_end.enter_context(duration(session))
        open_until_the_end.enter_context(status(session))
        if job.checkpoint is None:
            regime.start()
        else:
            scores_anew = _take_up(session, job, job.checkpoint, regime)
        accelerate(regime.learner, job.config.acceleration)
        yield Opened(session, session.running and session.clock.ticks < regime.total_ticks)
        regime.ready()
        _write_down(session, job, regime)
        session.begin()
        if scores_anew:
            session.save()  # a killed run must not return to the environment it left, whose scores are forgotten
        yield from regime.fit(session)
        session.save_last()
        yield Advanced()
        return session.finish()


def note_companions(opened: Sequence[Opened]) -> None:
    """Note in run.json if runs resume without members that they were trained with, or at different steps.

    The last bits of an update depend on how many members are computed together. On a GPU a member that has ended
    may still have been among them.
    """
    here = [one.session.run.path.name for one in opened]
    training = [one.session for one in opened if one.trains]
    apart = len({session.clock.ticks for session in training}) > 1
    for session in training:
        before = session.run.record.get("trained_with") or []
        gone = [name for name in before if name not in here]
        if session.learner.device.type == "cpu":
            gone = [name for name in gone if not _ended_before(session.run.path.parent / name, session.clock.ticks)]
        problems = [f"it was trained together with {', '.join(gone)}, and resumes without"] if gone else []
        problems += ["the members of its population resume at different steps"] if apart else []
        if problems:
            session.note_inexact(problems)


def _ended_before(home: Path, step: int) -> bool:
    try:
        end = end_of(read_run_record(home), step)
    except RLTrainingError:
        return False
    return end is not None and end <= step


def _take_up(session: Session, job: RunSpec, checkpoint: Checkpoint, regime: Regime) -> bool:
    """Restore everything from the checkpoint, and report what could not be restored or has changed.

    Returns whether the run continues in another environment.
    """
    changes = job.changes()
    problems = state.restore(session, checkpoint)
    problems += [f"changed since the run began: {change}" for change in session.run.machine_changes]
    data = state.changed_data(checkpoint.records["dataset"], regime.dataset_record or {})
    problems += data + changes.problems
    if changes.environment or data:
        session.forget_scores(environment=changes.environment, complete=session.clock.ticks >= regime.total_ticks)
    if checkpoint.path.parent == session.run.checkpoints:
        session.checkpoint_path = checkpoint.path  # later checkpoints link its unchanged replay shards
        session.saved_step = checkpoint.step
    former_total = int(checkpoint.records["config"]["total_timesteps"])
    if session.clock.ticks >= regime.total_ticks and not session.should_stop:
        own = regime.total_ticks >= job.config.total_timesteps
        bound = "total_timesteps" if own else "max_updates or max_epochs"
        session.say(f"this run is complete; a larger {bound} lets it go on")
    session.resume_or_stop(former_total)
    _say_what_stretches(session, job, former_total)
    session.note_inexact(problems)
    return changes.environment


def _say_what_stretches(session: Session, job: RunSpec, former_total: int) -> None:
    """Schedules and exploration run over the whole budget: another budget changes them from here on."""
    total = job.config.total_timesteps
    stretched = [] if job.resolved[OptimizationConfig].constant else ["the learning-rate schedule"]
    stretched += ["exploration"] if session.learner.explores_by_progress else []
    if total != former_total and stretched:
        session.say(
            f"note: total_timesteps {former_total:,} -> {total:,}: {' and '.join(stretched)} "
            f"{'stretches' if len(stretched) == 1 else 'stretch'} over the new total, so this run "
            "differs from one that had this total from the start"
        )


def _write_down(session: Session, job: RunSpec, regime: Regime) -> None:
    """Note in the folder what the run learns from and which settings it goes on with."""
    if job.checkpoint is None:
        session.note_inexact([])
    if regime.dataset_record is not None and session.run.record.get("dataset") != dict(regime.dataset_record):
        session.note_in_run(dataset=dict(regime.dataset_record))
    if session.run.status_before is not None:
        session.run.reconfigure(job.config, job.settings)
    if job.config.env_id is None and job.config.eval_env is None:
        session.say("no environment (env_id: null): evaluation is skipped")
    elif _is_busy(job, regime):
        session.say(
            f"{job.config.env_id} cannot be made again: it trains alone, and is evaluated only in eval_env=…"
        )


@contextmanager
def _open_session(
    job: RunSpec, regime: Regime, callbacks: Sequence[Callback], launch: RunOptions, suffix: str | None
) -> Iterator[Session]:
    """A session in a run folder of its own, or in the folder its checkpoint came from."""
    config, checkpoint = job.config, job.checkpoint
    evaluator, watchers = _evaluator(job, regime), regime.watchers(job)
    caught = SignalGuard() if launch.guard is None else nullcontext(launch.guard)
    with caught as guard, _run_directory(job, launch, suffix) as folder:
        unit = "updates" if regime.first_phase == "offline" else "steps"
        start = 0 if checkpoint is None else checkpoint.step
        opening = [_what_trains(job, regime), *regime.remarks, _where(folder, checkpoint)]
        if changed := str(job.changes()):
            opening.append(f"changed settings: {changed}")
        progress = (launch.progress or Progress)(
            regime.total_ticks, start=start, quiet=launch.quiet, unit=unit, opening=opening
        )
        log = _open_log(folder, job, progress, launch.loggers)
        try:
            yield Session(
                config,
                folder,
                regime.learner,
                regime.spaces,
                settings=job.settings,
                clock=Clock(regime.first_phase),
                callbacks=[*build_control_callbacks(job.resolved[ControlConfig]), *watchers, *callbacks],
                log=log,
                progress=progress,
                evaluator=evaluator,
                guard=guard,
                collector=regime.collector,
                dataset=regime.dataset_record,
                extra_metrics=regime.extra_metrics,
            )
        finally:
            log.close(folder.record["status"])
            progress.close()  # also where the log had to drop it
            if evaluator is not None:
                evaluator.close()


def _what_trains(job: RunSpec, regime: Regime) -> str:
    """Algorithm, environment or data, budget, seed and device, in one line."""
    config, data = job.config, regime.dataset_record
    env = f"{config.num_envs} x {config.env_id}" if config.num_envs > 1 else str(config.env_id)
    sources = [] if regime.collector is None else [env]
    if data is not None:
        sources.append(f"{data['name']} ({data['rows']:,} rows)")
    budget = f"{config.total_timesteps:,} steps"
    if regime.collector is None:
        budget = f"{regime.total_ticks:,} updates"
    elif pretraining := regime.total_ticks - config.total_timesteps:
        budget = f"{pretraining:,} updates, then {budget}"
    return f"{config.algo} on {' and '.join(sources)}, {budget}, {regime.learner.device}, seed {config.seed}"


def _where(folder: RunDirectory, checkpoint: Checkpoint | None) -> str:
    """The run's folder, and what is taken up in it."""
    if checkpoint is None:
        return f"run folder: {folder.path}"
    if checkpoint.path.parent == folder.checkpoints:
        return f"resuming {folder.path} at step {checkpoint.step:,}"
    return f"resuming {checkpoint.path} at step {checkpoint.step:,} in a new run folder: {folder.path}"


def _is_busy(job: RunSpec, regime: Regime) -> bool:
    """Whether the one environment there is is the one that is trained in."""
    maker = job.given.env
    alone = maker is not None and maker.single_instance and job.config.eval_env is None
    return alone and regime.collector is not None


def _evaluator(job: RunSpec, regime: Regime) -> Evaluator | None:
    """Environments to evaluate in, checked against the run's spaces; None where there are none."""
    config = job.config
    if config.env_id is None and config.eval_env is None:
        return None
    if _is_busy(job, regime):
        if job.resolved[ControlConfig].early_stopping is not None:
            raise ConfigError(
                f"algo_kwargs.early_stopping needs evaluations, and {config.env_id} cannot be made again; give "
                "eval_env=…",
                key="algo_kwargs.early_stopping",
            )
        return None
    evaluator = Evaluator(config, regime.spaces, job.given)
    if config.eval_env is not None:
        other = spaces_of(evaluator.config, given=evaluator.given)
        if difference := other.difference(regime.spaces, "it has", "the run trains on"):
            raise ConfigError(
                f"eval_env: {config.eval_env} does not fit the run's spaces ({difference})", key="eval_env"
            )
    return evaluator


def _open_log(folder: RunDirectory, job: RunSpec, progress: Progress, loggers: Sequence[Logger]) -> MetricsLog:
    """The log of a run, without what was written after the checkpoint it continues from."""

    def warn(text: str) -> None:
        progress.say(f"warning: {text}")

    checkpoint, csv = job.checkpoint, CsvSink(folder.metrics_csv, folder.fence)
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
    except Exception as error:  # it brings its own dependencies, any of which may be broken
        warn(f"TensorBoard is switched off for the rest of the run: {type(error).__name__}: {error}")
    log = MetricsLog([*sinks, progress], warn=warn, rows=rows, last=last)
    facts = RunFacts(folder.path, folder.path.name, job.settings, resumed_from)
    for logger in [*make_loggers(job.config.loggers), *loggers]:
        log.add(logger, facts, kept)
    for step, values in unwritten:
        log.log(step, values)
    return log


def _run_directory(job: RunSpec, launch: RunOptions, suffix: str | None) -> RunDirectory:
    checkpoint = job.checkpoint
    if checkpoint is None:
        if launch.home is not None:
            return _reopen(launch.home, launch.fence, -1 if launch.rewinds else None)
        return RunDirectory.create(
            job.config, job.settings, suffix, text=launch.text, path=launch.folder, fence=launch.fence
        )
    home = checkpoint.path.parent.parent
    is_run = checkpoint.path.parent.name == "checkpoints" and (home / "run.json").is_file()
    if is_run and (launch.rewinds or latest_valid(checkpoint.path.parent)[0] == checkpoint.path):
        return _reopen(home, launch.fence, checkpoint.step if launch.rewinds else None)
    return RunDirectory.create(job.config, job.settings, suffix or "resumed")


def _reopen(home: Path, fence: files.Fence, newest: int | None) -> RunDirectory:
    """Continue a run's folder, after deleting checkpoints after step `newest`, if given, and what a killed process
    may have left half-written."""
    folder = RunDirectory.open(home, fence)
    if newest is not None:
        discard_after(folder.checkpoints, newest)
    for parent in (folder.checkpoints, folder.best):
        sweep(parent)
    return folder
