"""`rl-training report` and `plot`: compare runs on a page or in a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rl_training.display.output import note, warn
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.report.report import Report

Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH…", help="Run folders, folders of them, studies or packed studies, in any mixture."
    ),
]
Metric = Annotated[str, typer.Option(help="The metric to compare, by its name in results or in the log.")]
Unfinished = Annotated[bool, typer.Option("--unfinished", help="Include the results so far of unfinished runs.")]
Names = Annotated[
    list[str] | None, typer.Option("--name", metavar="OLD=NEW", help="Rename a method or task; may be repeated.")
]
ByOption = Annotated[
    Literal["settings", "path", "tags"],
    typer.Option(help="Group runs into methods by algorithm and settings, by the given path, or by tags."),
]


def report(
    paths: Paths,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page; its numbers go to a .json next to it.")],
    metric: Metric = "eval_return_mean",
    best: Annotated[
        bool, typer.Option("--best/--last", help="Use the best or the last evaluation of a run.")
    ] = False,
    at: Annotated[
        float | None,
        typer.Option(metavar="STEP", help="Use evaluations up to this step, of runs that reached it or diverged."),
    ] = None,
    unfinished: Unfinished = False,
    by: ByOption = "settings",
    name: Names = None,
    normalize: Annotated[
        Literal["auto", "d4rl", "range"],
        typer.Option(help="Normalise by D4RL's reference scores, by the range of results, or by d4rl if possible."),
    ] = "auto",
    reference: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=LOW,HIGH", help="The results that score 0 and 1 on a task; may be repeated."),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(metavar="[TASK=]VALUE", help="Count the steps until this result; may be repeated."),
    ] = None,
    external: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE.csv", help="Results of another program: columns step, seed, value; may be repeated."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page; by default the names of the paths.")] = None,
) -> None:
    """Compare runs on a self-contained page: tables, intervals, curves, and what the number of seeds allows."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(f"{output}: a report is an .html file")
    from rl_training.report import read

    found = read(
        paths,
        metric=metric,
        score="best" if best else "last",
        at=at,
        unfinished=unfinished,
        by=by,
        names=_pairs(name, "--name"),
        normalize=normalize,
        references={task: _ends(value) for task, value in _pairs(reference, "--reference").items()},
        threshold=_thresholds(threshold or ()),
        title=title,
        external=_pairs(external, "--external"),
    )
    found.save(output)
    _show_summary(found, output)


def plot(
    paths: Paths,
    output: Annotated[Path, typer.Option("--output", "-o", help="An .svg, .pdf or .png file.")],
    metric: Metric = "eval_return_mean",
    x: Annotated[
        Literal["steps", "updates", "seconds"], typer.Option(help="The horizontal axis of the curves.")
    ] = "steps",
    seeds: Annotated[bool, typer.Option("--seeds", help="Also draw every run.")] = False,
    by: ByOption = "settings",
    name: Names = None,
) -> None:
    """Plot learning curves: the interquartile mean of each method with its 95 % interval, a panel per task."""
    if output.suffix.lower() not in (".svg", ".pdf", ".png"):
        raise typer.BadParameter(f"{output}: a figure is an .svg, .pdf or .png file")
    from rl_training.report import read

    found = read(paths, metric=metric, unfinished=True, by=by, names=_pairs(name, "--name"))
    if not any(axis == x for axis, _, _ in found.summary.bands):
        raise ConfigError(f"no run has evaluations of {metric} by {x}; --metric plots another one")
    from rl_training.report.rendering import save_figure

    save_figure(found.curves(x, seeds=seeds), output, seeds=seeds)
    _show_summary(found, output)


def _show_summary(report: Report, output: Path) -> None:
    summary = report.summary
    if found := summary.reading.unread:
        several = len(found) > 1
        warn(
            f"{len(found)} run{'s' * several} could not be read or {'are' if several else 'is'} missing"
            f"{', the first' * several}: {found[0].place}: {found[0].reason}"
        )
    for method, settings in summary.groups.legend.items():
        note(f"{method}: {settings}")
    note(summary.size)
    print(output)


def _pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    found = dict[str, str]()
    for text in texts or ():
        name, sign, value = text.rpartition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{option} {text!r}: expected NAME=VALUE")
        if name in found:
            raise typer.BadParameter(f"{option}: {name} is given twice; leave one out")
        found[name] = value
    return found


def _ends(text: str) -> tuple[float, float]:
    low, sign, high = text.partition(",")
    if not sign:
        raise typer.BadParameter(f"--reference {text!r}: expected TASK=LOW,HIGH")
    return _number(low, "--reference"), _number(high, "--reference")


def _thresholds(texts: Sequence[str]) -> Any:
    """One threshold for all tasks, or a mapping by task."""
    if len(texts) == 1 and "=" not in texts[0]:
        return _number(texts[0], "--threshold")
    return {task: _number(value, "--threshold") for task, value in _pairs(texts, "--threshold").items()} or None


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{option}: expected a number, got {text!r}") from None
