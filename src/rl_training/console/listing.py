"""`rl-training runs`: list runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rl_training.console.options import AsJson
from rl_training.display.output import note, one_line, show_json, show_table
from rl_training.display.text import age, decimal

if TYPE_CHECKING:
    from rl_training.report.reading import Run

Sort = Literal["name", "algo", "env", "seed", "status", "step", "return", "best", "age"]


def runs(
    places: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="Folders of runs, run folders, studies, packed studies; runs if unset."),
    ] = None,
    algo: Annotated[list[str] | None, typer.Option(help="Only runs of this algorithm; may be repeated.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="Only runs of this environment: 'Hopper*'.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only runs with this tag.")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="finished, stopped, running, interrupted, failed, diverged, missing or broken."),
    ] = None,
    sort: Annotated[Sort | None, typer.Option(help="Sort by this column; the best or newest first.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs: algorithm, environment, seed, status, step, return, best and age."""
    from rl_training.report import listing

    found = listing.runs(
        places or [Path("runs")], algo=algo, env=env, tag=tag, status=status, sort=sort, reverse=reverse
    )
    if as_json:
        show_json({"runs": [listing.plain_run(run) for run in found.runs], "unread": found.unread})
        return
    if found.runs:
        show_table(*_table(found.runs))
    if found.unread:
        print()
        show_table([(one.kind, one.place, one_line(one.reason)) for one in found.unread])
    if not found.runs and not found.unread:
        note("no run matches")


def _table(found: tuple[Run, ...]) -> tuple[list[list[str]], list[str]]:
    """Rows and header; columns that are empty for all runs are left out."""
    now = time.time()
    rows = [_row(run, now) for run in found]
    header = list(rows[0])
    shown = [name for name in header if name in ("status", "step") or any(row[name] for row in rows)]
    return [[row[name] or "-" for name in shown] for row in rows], shown


def _row(run: Run, now: float) -> dict[str, str]:
    remarks = [one_line(run.cause)] if run.cause is not None else []
    return {
        "algo": run.algo,
        "environment": run.env_id or "none",
        "seed": "" if run.seed is None else str(run.seed),
        "status": run.status,
        "step": f"{run.step:,}",
        "return": decimal(run.last, ""),
        "best": decimal(run.best, ""),
        "age": "" if run.updated is None else age(now - run.updated),
        "tags": ", ".join(run.tags),
        "members": str(run.members) if run.members > 1 else "",
        "study": run.study or "",
        "folder": run.place,
        "remark": "; ".join([*remarks, *(one_line(text) for text in run.notes)]),
    }
