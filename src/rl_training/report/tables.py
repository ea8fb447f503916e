"""The tables of a report, as records, CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from rl_training.display.text import number, plain_data
from rl_training.experiment.metric_names import words_of
from rl_training.report.facts import Facts, facts_of
from rl_training.report.statistics import Estimate
from rl_training.report.summary import Pair, Result, Summary

Cell = str | float | int | Estimate | None
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "–": "--",
    "…": r"\dots{}",
}
_FACTS = {"differs": "differs from its base", "updates_per_second": "updates/s", "together": "trained together"}
_SHORT = 24
# Texts that a spreadsheet would interpret as a formula; a negative mean ± std is not one.
_MEAN = r"-[\d.,]+(?:e-?\d+)? (?:± [\d.,]+(?:e-?\d+)?|\(one seed\))"
_FORMULA = re.compile(rf"^(?!{_MEAN}$)[=+\-@\t\r]")


@dataclass(frozen=True)
class Table:
    """Rows of plain values; an `Estimate` is shown with its interval."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def records(self) -> list[dict[str, Any]]:
        """Each row as a mapping by column; an estimate also has `… low` and `… high`."""
        found = []
        for row in self.rows:
            record: dict[str, Any] = {}
            for column, cell in zip(self.columns, row):
                if isinstance(cell, Estimate):
                    ends = {"": cell.value, " low": cell.low, " high": cell.high}
                    record |= {column + end: plain_data(value) for end, value in ends.items()}
                else:
                    record[column] = plain_data(cell)
            found.append(record)
        return found

    def texts(self) -> list[list[str]]:
        """The cells as shown on the page."""
        return [[text_of(cell) for cell in row] for row in self.rows]

    def csv(self) -> str:
        out = io.StringIO()
        records = self.records()
        columns = list(dict.fromkeys(name for record in records for name in record)) or list(self.columns)
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        for record in records:
            writer.writerow(_safe(record.get(name)) for name in columns)
        return out.getvalue()

    def markdown(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cells) + " |"

        rule = "|" + "|".join("---:" if self.is_number(i) else "---" for i in range(len(self.columns))) + "|"
        rows = [[_markdown(cell) for cell in row] for row in (self.columns, *self.texts())]
        return "\n".join([line(rows[0]), rule, *map(line, rows[1:])]) + "\n"

    def latex(self) -> str:
        """A tabular that needs the package booktabs."""
        kinds = "".join("r" if self.is_number(i) else "l" for i in range(len(self.columns)))
        rows = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in (self.columns, *self.texts())]
        body = [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"]
        return "\n".join([*body, r"\end{tabular}"]) + "\n"

    def is_number(self, column: int) -> bool:
        return any(isinstance(row[column], int | float | Estimate) for row in self.rows)

    def is_short(self, column: int) -> bool:
        """Whether the texts of a column fit on one line."""
        return all(len(text_of(row[column])) <= _SHORT for row in self.rows)

    def slim(self) -> tuple[Table, list[tuple[str, str]]]:
        """The table without constant columns, and these columns with their value unless it is empty."""
        cells = [{text_of(row[i]) for row in self.rows} for i in range(len(self.columns))]
        kept = [i for i, found in enumerate(cells) if len(found) > 1]
        same = [(name, *found) for name, found in zip(self.columns, cells) if len(found) == 1]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        slim = Table(self.name, self.title, tuple(self.columns[i] for i in kept), rows)
        return slim, [(name, text) for name, text in same if text not in ("", "–")]


def text_of(cell: Cell) -> str:
    """A cell as shown on the page."""
    if isinstance(cell, Estimate):
        if cell.low is None:
            return number(cell.value)
        value, low, high = (number(x, like=abs(cell.value)) for x in (cell.value, cell.low, cell.high))
        return f"{value} [{low}, {high}]"
    return cell if isinstance(cell, str) else number(cell)


def _safe(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\|<>`*_\[\]])", r"\\\1", text)
    return re.sub(r"\s*[\r\n]+\s*", " ", escaped)


def _latex(text: str) -> str:
    return re.sub(r"\s*[\r\n]+\s*", " ", "".join(_LATEX.get(letter, letter) for letter in text))


def _table(name: str, title: str, rows: Sequence[Mapping[str, Cell]]) -> Table:
    """A table from rows by column; without rows it has no columns."""
    columns = tuple(rows[0]) if rows else ()
    return Table(name, title, columns, tuple(tuple(row.values()) for row in rows))


def _by_task(summary: Summary) -> Table:
    found = [summary.results.get((method, task)) for task in summary.tasks for method in summary.methods]
    rows = [_row(result) for result in found if result is not None]
    return _table("tasks", f"By task: {words_of(summary.reading.metric)}", rows)


def _row(result: Result) -> dict[str, Cell]:
    spread = "(one seed)" if result.std is None else f"± {number(result.std)}"
    return {
        "task": result.task,
        "method": result.method,
        "seeds": result.seeds,
        "mean ± std": f"{number(result.mean)} {spread}",
        "IQM, last": result.last,
        "IQM, best": result.best,
        "threshold": result.threshold,
        "reached by": None if result.threshold is None else f"{result.reached}/{result.seeds}",
        "steps to it": result.steps_to,
    }


def _overall(summary: Summary) -> Table:
    columns = ("method", "IQM", "median", "mean", "optimality gap")
    rows = [(one.method, one.iqm, one.median, one.mean, one.gap) for one in summary.overall.values()]
    return Table("overall", "Over all tasks: normalised scores", columns, tuple(rows))


def verdict(pair: Pair) -> str:
    """The conclusion about two methods."""
    if pair.difference.low is None:
        return "one seed: no interval"
    if not pair.enough:
        return "too few seeds to tell"
    return f"{pair.better} is better{pair.reservation}" if pair.better else "no difference shown"


def _pairs(summary: Summary) -> Table:
    order: dict[str | None, int] = {task: i for i, task in enumerate((None, *summary.tasks))}
    rows: list[dict[str, Cell]] = [
        {
            "task": pair.task or "all (scores)",
            "first": pair.first,
            "second": pair.second,
            "difference of IQM": pair.difference,
            "P(first > second)": pair.probability,
            "detectable": pair.detectable,
            "verdict": verdict(pair),
        }
        for pair in sorted(summary.pairs, key=lambda pair: order.get(pair.task, 0))
    ]
    return _table("differences", "Differences between methods", rows)


def _facts(summary: Summary) -> Table:
    columns = tuple(_FACTS.get(one.name, one.name) for one in fields(Facts))
    rows = tuple(astuple(one) for one in facts_of(summary.groups))
    return Table("compared", "What was compared", columns, rows)


def _runs(summary: Summary) -> Table:
    columns = ("task", "method", "seed", "status", "counts", "last", "best", "step", "seconds", "folder")
    runs = (run | {"counts": "yes" if run["counted"] else "no", "folder": run["place"]} for run in summary.runs)
    return Table("runs", "Every run", columns, tuple(tuple(run[name] for name in columns) for run in runs))


def _scales(summary: Summary) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for task in summary.tasks:
        scale = summary.scales[task]
        none = (None, None, "none: every run has the same result")
        rows.append((task, *(none if scale is None else (scale.low, scale.high, scale.source))))
    return Table("scales", "Normalisation", ("task", "scores 0", "scores 1", "by"), tuple(rows))


def _effects(summary: Summary) -> Table:
    rows = [
        (one.task, one.algo, one.setting, str(value), len(values), found)
        for one in summary.effects
        for value, values, found in zip(one.values, one.results, one.iqm)
    ]
    columns = ("task", "algorithm", "setting", "value", "runs", "IQM")
    return Table("settings", "Results against each setting", columns, tuple(rows))


def _troubles(summary: Summary) -> Table:
    rows = tuple((one.place, one.what, one.reason, one.effect) for one in summary.troubles)
    columns = ("run", "is", "because", "effect")
    return Table("troubles", "Failed, diverged, stopped, unfinished, missing", columns, rows)


def tables(summary: Summary) -> dict[str, Table]:
    """All tables that have rows, by name."""
    makers = (_overall, _by_task, _pairs, _effects, _facts, _runs, _scales, _troubles)
    found = (make(summary) for make in makers)
    return {table.name: table for table in found if table.rows}
