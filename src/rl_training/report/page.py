"""The self-contained HTML page of a report: no network, no script, no other file.

jinja2 escapes all text that comes from files; matplotlib escapes the text of figures. The page's content security
policy forbids loading or running anything.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from rl_training.display.text import number
from rl_training.experiment.metric_names import words_of
from rl_training.report import figures
from rl_training.report.curves import AXES
from rl_training.report.facts import bases
from rl_training.report.rendering import inline, rendered, svg_with_seeds, without_seeds
from rl_training.report.statistics import CONFIDENCE, EXPANDED, METHOD, POWER, seeds_needed
from rl_training.report.summary import MOST_SHOWN, Summary
from rl_training.report.tables import Table, tables, text_of
from rl_training.version import __version__

_MOST_EFFECTS = 12
_TYPES = {"csv": "text/csv", "md": "text/markdown", "tex": "application/x-tex"}


@dataclass(frozen=True)
class Picture:
    """A figure of the page, with download links."""

    name: str
    figure: Figure
    words: str
    wide: bool = False

    @cached_property
    def _drawn(self) -> str:
        return svg_with_seeds(self.figure, self.name)

    @property
    def svg(self) -> Markup:
        return Markup(inline(self._drawn, escape(self.words)))  # noqa: S704 - made by matplotlib

    @property
    def links(self) -> list[tuple[str, str, str]]:
        svg, pdf = without_seeds(self._drawn).encode(), rendered(self.figure, "pdf", self.name)
        return [_link(self.name, "svg", svg, "image/svg+xml"), _link(self.name, "pdf", pdf, "application/pdf")]


def _page_table(whole: Table) -> dict[str, Any]:
    """A table as the page shows it, with download links of the whole table.

    `same` are the columns with the same value in every row, which are shown once. `kinds` are the CSS classes of
    the others: numbers, short texts, longer texts.
    """
    table, same = whole.slim() if whole.name == "compared" else (whole, [])
    columns = range(len(table.columns))
    kinds = ["n" if table.is_number(i) else "t" if table.is_short(i) else "" for i in columns]
    texts = {"csv": whole.csv(), "md": whole.markdown(), "tex": whole.latex()}
    links = [_link(whole.name, kind, text.encode(), _TYPES[kind]) for kind, text in texts.items()]
    return {"table": table, "same": same, "kinds": kinds, "links": links}


def _link(name: str, kind: str, data: bytes, of: str) -> tuple[str, str, str]:
    """Label, file name and data URL of a file embedded in the page."""
    label = {"md": "Markdown", "tex": "LaTeX"}.get(kind, kind.upper())
    file = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")
    return label, f"{file}.{kind}", f"data:{of};base64,{base64.b64encode(data).decode()}"


def pictures(summary: Summary) -> dict[str, list[Picture]]:
    """All figures that have data, by section of the page."""
    overall = []
    if summary.overall:
        overall.append(Picture("overall", figures.overall(summary), "Scores over all tasks", wide=True))
        overall.append(Picture("profile", figures.profile(summary), "Performance profiles"))
    tasks = [
        Picture(f"task-{n + 1}", figures.intervals(summary, task), f"Results on {task}")
        for n, task in enumerate(summary.tasks)
    ]
    curves: dict[str, list[Picture]] = {}
    for axis in AXES:
        drawn = {task for at, task, _ in summary.bands if at == axis}
        curves[axis] = [
            Picture(f"curve-{axis}-{n + 1}", figures.curves(summary, task, axis), f"Curves on {task} by {axis}")
            for n, task in enumerate(task for task in summary.groups.tasks if task in drawn)
        ]
    improvement, settings = list(_improvement(summary)), list(_settings(summary))
    return {"overall": overall, "improvement": improvement, "tasks": tasks, **curves, "settings": settings}


def _settings(summary: Summary) -> Iterator[Picture]:
    for number_, one in enumerate(summary.effects[:_MOST_EFFECTS]):
        figure = figures.effect(one, words_of(summary.reading.metric))
        yield Picture(f"setting-{number_ + 1}", figure, f"Results against {one.setting} on {one.task}")


def _improvement(summary: Summary) -> Iterator[Picture]:
    """Over all tasks, or on each task if scores are not comparable."""
    tasks = [None] if summary.overall else list(summary.tasks)
    for number_, task in enumerate(tasks):
        pairs = [pair for pair in summary.pairs if pair.task == task]
        if pairs:
            where = "over all tasks" if task is None else f"on {task}"
            figure = figures.improvement(summary, pairs, where)
            yield Picture(f"improvement-{number_ + 1}", figure, f"Probability of improvement {where}")


def verdicts(summary: Summary) -> list[str]:
    """One sentence per difference that the seeds show, over all tasks first."""
    found = []
    for pair in sorted(summary.pairs, key=lambda pair: pair.task is not None):
        if pair.better is None:
            continue
        other = pair.second if pair.better == pair.first else pair.first
        sign = 1 if pair.better == pair.first else -1
        ends = sorted((sign * pair.difference.low, sign * pair.difference.high))
        where = "over all tasks" if pair.task is None else f"on {pair.task}"
        size = f"{number(sign * pair.difference.value)} [{number(ends[0])}, {number(ends[1])}]{pair.reservation}"
        found.append(f"{pair.better} is better than {other} {where}: difference of the IQM {size}")
    return found


def coverage() -> dict[str, Any]:
    """Coverage of the intervals, as measured by benchmarks/evidence/coverage.py."""
    text = resources.files("rl_training").joinpath("assets", "report", "coverage.json").read_text("utf-8")
    return json.loads(text)


def _sizes(cases: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> str:
    """`94.7 % with 5 tasks and 10 seeds; …`"""
    words = []
    for case, share in zip(cases, shares):
        tasks = "1 task" if case["tasks"] == 1 else f"{case['tasks']} tasks"
        words.append(f"{share * 100:.1f} % with {tasks} and {case['seeds']} seeds")
    return "; ".join(words)


def render(summary: Summary, title: str) -> str:
    """Render the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rl_training", "assets/report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    measured = coverage()
    return environment.get_template("page.html").render(
        title=title,
        summary=summary,
        metric=words_of(summary.reading.metric),
        tables={name: _page_table(table) for name, table in tables(summary).items()},
        pictures=pictures(summary),
        axes=AXES,
        verdicts=verdicts(summary),
        bases=bases(summary.groups),
        coverage=_sizes(measured["sizes"], [size["methods"][METHOD]["coverage"] for size in measured["sizes"]]),
        called_better=_sizes(measured["equals"], [size["called_better"] for size in measured["equals"]]),
        studies=f"{measured['studies']:,}",
        method=METHOD,
        expanded=EXPANDED == METHOD,
        confidence=f"{CONFIDENCE * 100:g} %",
        power=f"{POWER * 100:g} %",
        version=__version__,
        text_of=text_of,
        number=number,
        json_text=lambda value: json.dumps(value, ensure_ascii=False),
        single_seeds=[key for key, result in summary.results.items() if result.seeds == 1],
        pairs=len(summary.pairs),
        too_few=sum(not pair.enough for pair in summary.pairs),
        seeds_needed=seeds_needed(),
        most=MOST_SHOWN,
        truncated=any(len(of) == MOST_SHOWN for of in summary.shown.values()) and len(summary.methods) > MOST_SHOWN,
    )
