"""The matplotlib figures of a report, for the page, for papers and for notebooks.

Colours are Okabe and Ito's palette for colour-blind readers, without the two that are invisible on a light or dark
background; lines also differ in their dashes. Backgrounds are transparent. Names come from files, so text is not
parsed as mathematics.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from rl_training.experiment.metric_names import words_of
from rl_training.report.curves import Axis, Band
from rl_training.report.statistics import Estimate, Floats
from rl_training.report.summary import Pair, Summary
from rl_training.report.sweeps import Effect

INK = "#0b0c0d"
"""colour of text and axes; the page replaces it with its text colour"""
SEED = "seed"
"""prefix of the ids of single seeds, which the page shows on demand"""
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#A6761D")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
_STYLE: dict[str, Any] = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.alpha": 0.25,
    "grid.color": "#808080",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
_WIDTH = 4.8  # inches: a column of the page, and the width of a phone
_LABELS = {"steps": "steps", "updates": "updates", "seconds": "seconds of training"}
_LONG = 28
_CHARACTERS = 14  # of small text per inch
_SAMPLE = 6  # width of the line sample before a name, in characters
_MOST_TICKS = 8
_MOST_SEED_POINTS = 40_000


@contextmanager
def style(name: str = "") -> Iterator[None]:
    """Set matplotlib's style; ids in SVG depend only on `name` and the contents."""
    settings: Any = {**_STYLE, "svg.hashsalt": f"rl_training {name}"}
    with mpl.rc_context(settings):
        yield


def colour(summary: Summary, method: str) -> str:
    return _COLOURS[summary.drawn.index(method) % len(_COLOURS)]


def _line(summary: Summary, method: str) -> dict[str, Any]:
    index = summary.drawn.index(method)
    dashes = _DASHES[(index + index // len(_COLOURS)) % len(_DASHES)]
    return {"color": colour(summary, method), "linestyle": dashes}


def label(summary: Summary, method: str) -> str:
    """The label of a method in a figure; long names are numbered, and other figures use the number."""
    lines = textwrap.wrap(method, _LONG, max_lines=4, placeholder=" …", break_on_hyphens=False)
    return f"{_key(summary, method)}: " + "\n".join(lines) if _are_long(summary) else method


def _key(summary: Summary, method: str) -> str:
    return str(summary.drawn.index(method) + 1) if _are_long(summary) else method


def _are_long(summary: Summary) -> bool:
    return any(len(method) > _LONG / 2 for method in summary.drawn)


def short(name: str, most: int = _LONG) -> str:
    """A name shortened to fit a figure; tables show the full name."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _legend_label(summary: Summary, method: str) -> str:
    return short(f"{_key(summary, method)}: {method}" if _are_long(summary) else method, 140)


def _legend(figure: Figure) -> None:
    """Draw one legend below all panels: short names in columns, long names wrapped."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels())}
    if not handles:
        return
    room = int(_CHARACTERS * figure.get_figwidth())
    columns = max(1, min(4, len(handles), room // (max(map(len, handles)) + _SAMPLE)))
    labels = [textwrap.fill(label, room // columns - _SAMPLE, break_on_hyphens=False) for label in handles]
    lines = sum(label.count("\n") + 1 for label in labels) if columns == 1 else -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.16 * (lines - 1))
    figure.legend(list(handles.values()), labels, loc="outside lower center", ncols=columns, fontsize="small")


@contextmanager
def _panel(height: float) -> Iterator[tuple[Figure, Axes]]:
    """A new figure of one panel, as wide as a column of the page, in our style."""
    with style():
        figure = Figure(figsize=(_WIDTH, height))
        yield figure, figure.add_subplot()


def curves(summary: Summary, task: str, axis: Axis = "steps", *, seeds: bool = True) -> Figure:
    """Plot the IQM and interval of every method shown, and each seed as a thin line."""
    with _panel(3.2) as (figure, axes):
        draw_curves(axes, summary, task, axis, seeds=seeds)
        _legend(figure)
    return figure


def draw_curves(axes: Axes, summary: Summary, task: str, axis: Axis, *, seeds: bool) -> None:
    """Draw the curves of a task on `axes`."""
    found = [(method, summary.bands.get((axis, task, method))) for method in summary.shown[task]]
    for method, band in found:
        if band is not None:
            if seeds and _points(summary, task) <= _MOST_SEED_POINTS:
                _draw_seeds(axes, summary, method, task, axis)
            _draw_band(axes, band, _legend_label(summary, method), _line(summary, method))
    axes.set_title(short(task, 60))
    axes.set_xlabel(_LABELS[axis])
    axes.set_ylabel(words_of(summary.reading.metric))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _points(summary: Summary, task: str) -> int:
    return sum(len(run.curve) for method in summary.shown[task] for run in summary.groups.cell(method, task).seen)


def _draw_seeds(axes: Axes, summary: Summary, method: str, task: str, axis: Axis) -> None:
    for number_, run in enumerate(summary.groups.cell(method, task).seen):
        axes.plot(
            getattr(run.curve, axis),
            run.curve.values,
            color=colour(summary, method),
            linewidth=0.7,
            alpha=0.55,
            gid=f"{SEED}{summary.drawn.index(method)}-{number_}",
        )


def _draw_band(axes: Axes, band: Band, name: str, line: dict[str, Any]) -> None:
    """Draw a curve, thin and pale beyond the last point that all runs reached."""
    whole = band.runs == band.of
    end = int(np.flatnonzero(whole)[-1]) + 1 if whole.any() else 0
    axes.fill_between(band.x, band.low, band.high, color=line["color"], alpha=0.16, linewidth=0)
    marker: dict[str, Any] = {"marker": "o", "markersize": 3} if len(band.x) == 1 else {}
    axes.plot(band.x[:end], band.middle[:end], label=name, **line, **marker)
    if end < len(band.x):
        start = max(0, end - 1)
        axes.plot(band.x[start:], band.middle[start:], **line, linewidth=0.8, alpha=0.6)


def all_curves(summary: Summary, axis: Axis = "steps", *, seeds: bool = False) -> Figure:
    """Plot learning curves, a panel per task, with one legend."""
    known = {task for at, task, _ in summary.bands if at == axis}
    tasks = [task for task in summary.groups.tasks if task in known]
    columns = min(3, max(1, len(tasks)))
    rows = -(-max(1, len(tasks)) // columns)
    with style():
        figure = Figure(figsize=(3.6 * columns + 0.6, 2.7 * rows + 0.5))
        for index, task in enumerate(tasks):
            axes = figure.add_subplot(rows, columns, index + 1)
            draw_curves(axes, summary, task, axis, seeds=seeds)
        _legend(figure)
    return figure


def _dots(axes: Axes, rows: Sequence[tuple[str, str, Estimate]]) -> None:
    """Draw a dot with its interval per row, the first on top; rows are label, colour and estimate."""
    for index, (_, shade, found) in enumerate(rows):
        if found.low is not None:
            axes.plot(
                [found.low, found.high], [index, index], color=shade, linewidth=5, alpha=0.35, solid_capstyle="butt"
            )
        axes.plot([found.value], [index], marker="o", markersize=5.5, color=shade, linestyle="none")
    axes.set_yticks(range(len(rows)), [text for text, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _height(labels: Sequence[str]) -> float:
    """Height in inches of rows with these labels."""
    return sum(0.2 + 0.14 * (1 + text.count("\n")) for text in labels)


def intervals(summary: Summary, task: str) -> Figure:
    """Plot the IQM and interval of each method on a task, with a tick for every seed."""
    methods = [method for method in summary.shown[task] if (method, task) in summary.results]
    labels = [label(summary, method) for method in methods]
    with _panel(0.9 + _height(labels)) as (figure, axes):
        found = [(colour(summary, m), summary.results[m, task].chosen) for m in methods]
        _dots(axes, [(text, *rest) for text, rest in zip(labels, found)])
        for index, method in enumerate(methods):
            values = summary.results[method, task].values
            heights = np.full(len(values), index + 0.3)
            axes.plot(values, heights, "|", color=colour(summary, method), markersize=5)
        axes.set_title(short(task, 60))
        axes.set_xlabel(f"{words_of(summary.reading.metric)}: IQM, 95 % interval, seeds")
    return figure


def overall(summary: Summary) -> Figure:
    """Plot IQM, median, mean and optimality gap over all tasks."""
    methods = summary.shown[None]
    labels = [label(summary, method) for method in methods]
    with style():
        figure = Figure(figsize=(2 * _WIDTH, 1.0 + _height(labels)))
        panels: list[tuple[str, Callable[[str], Estimate]]] = [
            ("IQM", lambda m: summary.overall[m].iqm),
            ("median", lambda m: summary.overall[m].median),
            ("mean", lambda m: summary.overall[m].mean),
            ("gap (lower is better)", lambda m: summary.overall[m].gap),
        ]
        for index, (title, of) in enumerate(panels):
            axes = figure.add_subplot(1, 4, index + 1)
            texts = labels if index == 0 else [""] * len(methods)
            _dots(axes, [(text, colour(summary, m), of(m)) for text, m in zip(texts, methods)])
            axes.set_title(title)
            axes.xaxis.set_major_locator(MaxNLocator(4, prune="upper"))
        figure.supxlabel("normalised score", fontsize="medium")
    return figure


def profile(summary: Summary) -> Figure:
    """Plot performance profiles: the share of runs above each score."""
    methods = summary.shown[None]
    with _panel(3.2) as (figure, axes):
        for method in methods:
            found = summary.overall[method].profile
            line = _line(summary, method)
            if found is None:
                continue
            if found.low is not None:
                shade = {"color": line["color"], "alpha": 0.16, "linewidth": 0}
                axes.fill_between(summary.taus, found.low, found.high, step="post", **shade)
            text = _legend_label(summary, method)
            axes.step(summary.taus, found.value, where="post", label=text, **line)
        axes.set_xlabel("normalised score τ")
        axes.set_ylabel("share of runs with a score above τ")
        axes.set_ylim(0, 1.02)
        axes.set_title("Performance profile")
        _legend(figure)
    return figure


def improvement(summary: Summary, pairs: Sequence[Pair], where: str = "over all tasks") -> Figure:
    """Plot the probability that the first method of each pair beats the second."""
    with _panel(0.9 + min(0.34, 6.0 / len(pairs)) * len(pairs)) as (figure, axes):
        names = [f"{_key(summary, p.first)} > {_key(summary, p.second)}" for p in pairs]
        rows = [(text, colour(summary, p.first), p.probability) for text, p in zip(names, pairs)]
        _dots(axes, rows)
        axes.axvline(0.5, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xlim(-0.02, 1.02)
        axes.set_title(f"Probability of improvement {short(where, 30)}")
        axes.set_xlabel("P(first beats second)" + (", methods by number" if _are_long(summary) else ""))
    return figure


def effect(one: Effect, metric: str) -> Figure:
    """Plot results against the values of a setting: every run, IQM and interval."""
    with _panel(2.7) as (figure, axes):
        x = _positions(axes, one)
        for place, values in zip(x, one.results):
            axes.plot(np.full(len(values), place), values, "o", color=_COLOURS[5], markersize=3, alpha=0.6)
        known = [(place, found) for place, found in zip(x, one.iqm) if found.low is not None]
        for place, found in known:
            axes.plot([place, place], [found.low, found.high], color=_COLOURS[0], linewidth=5, alpha=0.35)
        axes.plot(x, [found.value for found in one.iqm], "o-" if one.is_numeric else "o", color=_COLOURS[0])
        axes.set_title(short(f"{one.algo} on {one.task}", 60))
        axes.set_xlabel(short(one.setting, 60))
        axes.set_ylabel(metric)
    return figure


def _positions(axes: Axes, one: Effect) -> Floats:
    """Positions of the values on the axis: numeric (logarithmic if they span a decade), or side by side."""
    if not one.is_numeric:
        names = [short(str(value), 18) for value in one.values]
        axes.set_xticks(range(len(names)), names, rotation=30 if sum(map(len, names)) > _LONG else 0)
        return np.arange(len(one.values), dtype=np.float64)
    x = np.array(one.values, dtype=np.float64)
    if x.min() > 0 and x.max() / x.min() >= 10:
        axes.set_xscale("log")
    if len(x) <= _MOST_TICKS:
        axes.set_xticks(x, [f"{value:g}" for value in one.values])
        axes.set_xticks([], minor=True)
    return x
