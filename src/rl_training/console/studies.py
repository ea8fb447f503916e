"""`rl-training sweep`, `tune`, `work`, `status` and `study`: run and inspect studies and tunings."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rl_training.console.errors import ended_by_signals
from rl_training.console.options import AllowImport, AsJson, Data, Device, Gpus, Ray
from rl_training.display.output import flags, note, one_line, show_json, show_table
from rl_training.display.text import decimal, duration, significant
from rl_training.errors import DeviceLostError

if TYPE_CHECKING:
    from rl_training.study.status import StudyStatus, TrialStatus
    from rl_training.study.tuning import Outcome, TrialResult, TuningResult

studies = typer.Typer(no_args_is_help=True, help="Pack a study into one file, and unpack it.")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A study's folder, studies/NAME.")]


def sweep(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The study's YAML file, or its folder.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of worker processes; by default 1, or one per GPU.")
    ] = None,
    output_dir: Annotated[Path, typer.Option(help="Folder that receives the study's folder.")] = Path("studies"),
    data: Data = None,
    device: Device = None,
    gpus: Gpus = None,
    ray: Ray = None,
    retry: Annotated[
        Literal["failed"] | None,
        typer.Option(help="Retry failed trials, except those that would fail in the same way."),
    ] = None,
    allow_import: AllowImport = False,
) -> None:
    """Run the trials of a study that are not done: new, interrupted, or added to its file since."""
    from rl_training.study.study import Study
    from rl_training.study.worker_pool import parse_gpus

    study = Study(file, output_dir=output_dir, data=data, device=device, allow_import=allow_import)
    status = study.run(
        workers, gpus=parse_gpus(gpus), ray=ray, retry_failed=retry is not None, quiet=flags.quiet, say=note
    )
    _show(status)
    if status.failed:
        raise typer.Exit(1)


def tune(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The tuning's YAML file.")],
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of worker processes, and of trials proposed at a time; by default 1."),
    ] = None,
    output_dir: Annotated[Path, typer.Option(help="Folder that receives the tuning's folder.")] = Path("studies"),
    data: Data = None,
    device: Device = None,
    gpus: Gpus = None,
    ray: Ray = None,
    as_json: AsJson = False,
    allow_import: AllowImport = False,
) -> None:
    """Search for better settings than a configuration's and confirm the best on fresh seeds; rerun to continue."""
    from rl_training.study.tuning import Tuning
    from rl_training.study.worker_pool import parse_gpus

    tuning = Tuning(file, output_dir=output_dir, data=data, device=device, allow_import=allow_import)
    result = tuning.run(workers, gpus=parse_gpus(gpus), ray=ray, quiet=flags.quiet, say=note)
    if as_json:
        show_json(result.to_dict())
    else:
        _show_tuning(result)


def work(
    folder: Folder,
    allow_import: AllowImport = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start a worker of a study, on any machine that shares its disk; it ends when no trial is left to claim."""
    from rl_training.study.plan import read_plan
    from rl_training.study.trials import require_checkpoints, require_data, require_permission

    plan = read_plan(folder)
    if parent is None:
        require_data(folder, plan)
        require_permission(folder, plan, allow_import=allow_import)
        require_checkpoints(folder, plan)
    from rl_training.study.worker import work as work_on
    from rl_training.study.worker_pool import DEVICE_LOST

    try:
        worked = work_on(folder, quiet=flags.quiet, allow_import=allow_import, parent=parent, say=note)
    except DeviceLostError as error:
        if parent is None:
            raise
        note(one_line(error))
        raise typer.Exit(DEVICE_LOST) from None
    if worked.others_hold:
        note("the remaining trials are claimed by other workers")
    if worked.failed and parent is None:  # a sweep that started this worker reports all failures itself
        raise typer.Exit(1)


def status(
    folder: Folder,
    as_json: AsJson = False,
    watch: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Refresh at this interval until all trials are done."),
    ] = None,
) -> None:
    """Show the progress of a study: done, running, waiting, failed, time left, returns so far."""
    from rl_training.study.status import read_status

    while True:
        found = read_status(folder)
        if watch is not None and sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")  # clear the screen
        if as_json:
            show_json(found.to_dict())
        else:
            _show(found)
        if watch is None or found.is_over:
            return
        sys.stdout.flush()
        time.sleep(watch)


@studies.command()
@ended_by_signals()
def pack(
    folder: Folder,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="A .zip file.")],
    policies: Annotated[
        Literal["best", "last", "none"],
        typer.Option(help="Include the best policy of each run, the policy of its last checkpoint, or none."),
    ] = "best",
) -> None:
    """Pack a study for reports into one file: settings, logs, results and policies, without replay buffers."""
    from rl_training.memory import human_bytes
    from rl_training.study.packing import pack_study

    pack_study(folder, output, policies=policies)
    print(f"wrote {output} ({human_bytes(output.stat().st_size)})")


@studies.command()
@ended_by_signals()
def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A packed study.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="The folder to create; by default studies/NAME."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Limit of the unpacked size: 4GB. By default 256 MiB or 100 times the file."
        ),
    ] = None,
) -> None:
    """Unpack a packed study; existing files are not overwritten, and no code from the file is run."""
    from rl_training.settings import byte_size
    from rl_training.study.packing import unpack_study

    try:
        limit = None if max_size is None else int(byte_size(max_size))
    except ValueError as error:
        raise typer.BadParameter(f"--max-size {error}") from None
    print(f"wrote {unpack_study(file, output, max_size=limit)}")


def _show(status: StudyStatus) -> None:
    """Print counts and time left, a line per configuration, and the running and failed trials."""
    counts = ", ".join(f"{count} {state}" for state, count in status.counts.items() if count)
    left = status.seconds_left
    left_text = "" if left is None or not left else f", about {duration(left)} left"
    print(f"{status.name}: {counts or 'no trials'}{left_text}")
    show_table(_configuration_rows(status), ("configuration", "done", "return", "best"))
    if running := [one for one in status.trials if one.state == "running"]:
        print()
        show_table([_running_row(one) for one in running], ("running", "host", "heartbeat", "step", "return"))
    if status.failed:
        print()
        rows = [
            (one.trial.name, str(one.failure.code), one_line(one.failure.message))
            for one in status.failed
            if one.failure
        ]
        show_table(rows, ("failed", "code", "message"))
        note(
            "fix the cause; then, to run a trial with code 2, 3 or 4 again, delete its file in the study's folder "
            "failures/; --retry failed retries the others"
        )


def _configuration_rows(status: StudyStatus) -> list[tuple[str, str, str, str]]:
    """One row per configuration: number of finished seeds, and mean returns so far."""
    from rl_training.study.plan import described

    groups: dict[int, list[TrialStatus]] = {}
    for one in status.trials:
        groups.setdefault(one.trial.configuration, []).append(one)
    rows = []
    for index, trials in groups.items():
        name = status.plan.configurations[index].name
        varied = described(trials[0].settings)
        done = f"{sum(one.state == 'done' for one in trials)}/{len(trials)}"
        rows.append(
            (
                f"{name} ({varied})" if varied else name,
                done,
                _mean([one.eval_return for one in trials]),
                _mean([one.best for one in trials]),
            )
        )
    return rows


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return decimal(sum(known) / len(known) if known else None)


def _running_row(one: TrialStatus) -> tuple[str, str, str, str, str]:
    heartbeat = "-" if one.heartbeat is None else f"{one.heartbeat:.0f} s ago"
    return one.trial.name, one.host or "-", heartbeat, f"{one.step:,}/{one.total:,}", _mean([one.eval_return])


def _show_tuning(result: TuningResult) -> None:
    """Print the base and the best trials, then every trial."""
    from rl_training.experiment.metric_names import words_of

    failed = sum(one.value is None for one in result.trials)
    failures = f", {failed} failed" if failed else ""
    seeds = f"{len(result.seeds)} seed{'s' if len(result.seeds) > 1 else ''}"
    print(f"{result.name}: {words_of(result.metric)} of {len(result.trials)} trials on {seeds} each{failures}")
    named = [("base", result.base), ("best found", result.best_found), ("best confirmed", result.best_confirmed)]
    rows = [_trial_row(name, one) for name, one in named if one is not None]
    show_table(rows, ("", "trial", "settings", "tuning", "fresh seeds", "loss"))
    print()
    trials = [(*_trial_row("", one)[1:-1], one_line(one.failure or "")) for one in result.trials]
    show_table(trials, ("trial", "settings", "tuning", "fresh seeds", "failure"))


def _trial_row(name: str, one: TrialResult) -> tuple[str, ...]:
    return name, str(one.number + 1), _settings(one), decimal(one.value), _fresh(one.confirmed), decimal(one.loss)


def _settings(one: TrialResult) -> str:
    return ", ".join(f"{name}={significant(value)}" for name, value in one.settings.items()) or "base"


def _fresh(confirmed: Outcome | None) -> str:
    """Value and standard deviation over the fresh seeds."""
    if confirmed is None or not confirmed.is_known:
        return "-"
    if confirmed.value is None:
        return "failed"
    spread = "" if confirmed.std is None else f" ± {decimal(confirmed.std)}"
    return f"{decimal(confirmed.value)}{spread} ({len(confirmed.values)} seeds)"
