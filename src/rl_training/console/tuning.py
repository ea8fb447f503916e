"""`rl-training tune`: tune hyperparameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.console.options import AllowImport, AsJson, Data, Device, Gpus, Ray
from rl_training.display.output import flags, note, one_line, show_json, show_table
from rl_training.display.text import decimal, significant

if TYPE_CHECKING:
    from rl_training.study.tuning import Outcome, TrialResult, TuningResult


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
        _show(result)


def _show(result: TuningResult) -> None:
    """Print the base and the best trials, then every trial."""
    from rl_training.experiment.metric_names import words_of

    failed = sum(one.value is None for one in result.trials)
    failures = f", {failed} failed" if failed else ""
    seeds = f"{len(result.seeds)} seed{'s' if len(result.seeds) > 1 else ''}"
    print(f"{result.name}: {words_of(result.metric)} of {len(result.trials)} trials on {seeds} each{failures}")
    named = [("base", result.base), ("best found", result.best_found), ("best confirmed", result.best_confirmed)]
    rows = [_row(name, one) for name, one in named if one is not None]
    show_table(rows, ("", "trial", "settings", "tuning", "fresh seeds", "loss"))
    print()
    trials = [(*_row("", one)[1:-1], one_line(one.failure or "")) for one in result.trials]
    show_table(trials, ("trial", "settings", "tuning", "fresh seeds", "failure"))


def _row(name: str, one: TrialResult) -> tuple[str, ...]:
    return name, str(one.number + 1), _settings(one), decimal(one.value), _fresh(one.confirmed), decimal(one.loss)


def _settings(one: TrialResult) -> str:
    return ", ".join(f"{name}={significant(value)}" for name, value in one.settings.items()) or "base"


def _fresh(confirmed: Outcome | None) -> str:
    """Value and standard deviation over the fresh seeds."""
    if confirmed is None:
        return "-"
    if confirmed.value is None:
        return "failed"
    spread = "" if confirmed.std is None else f" ± {decimal(confirmed.std)}"
    return f"{decimal(confirmed.value)}{spread} ({len(confirmed.values)} seeds)"
