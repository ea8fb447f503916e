"""`Report`: a page with its numbers, figures and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rl_training.display.text import plain_data
from rl_training.errors import ConfigError, nearest
from rl_training.experiment.files import os_errors, replace_atomically
from rl_training.experiment.metric_names import less_is_better, result_name, tag_of
from rl_training.report import figures as drawing
from rl_training.report.curves import Axis
from rl_training.report.external import with_external
from rl_training.report.facts import bases, facts_of
from rl_training.report.grouping import Score, Selection, checked_by
from rl_training.report.page import pictures, render
from rl_training.report.reading import RETURN, Reading, read_runs
from rl_training.report.summary import Options, Summary, summarise
from rl_training.report.tables import Table, tables
from rl_training.version import __version__

SCHEMA = 1
_MOST_NAMED = 3


class Report:
    """A comparison of runs; a notebook shows it as the page."""

    def __init__(self, summary: Summary, title: str) -> None:
        self.summary, self.title = summary, title

    def save(self, path: str | Path) -> Path:
        """Write the page to `path` and its numbers to the same name with `.json`."""
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise ConfigError(f"{path}: a report is an .html file")
        page, numbers = self.html().encode(), self.json().encode()
        with os_errors(f"{path}: cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_atomically(path, page)
            replace_atomically(path.with_suffix(".json"), numbers)
        return path

    def html(self) -> str:
        """Return the page as HTML."""
        self._require_more_is_better()
        return render(self.summary, self.title)

    def json(self) -> str:
        """Return the contents of report.json."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return every number of the report as JSON-serialisable data."""
        self._require_more_is_better()
        summary, groups = self.summary, self.summary.groups
        record = {
            "kind": "rl_training.report",
            "schema": SCHEMA,
            "rl_training": __version__,
            "title": self.title,
            "metric": summary.reading.metric,
            "options": summary.options,
            "methods": {
                method: {"algo": groups.algos[method], "changes": groups.changes[method]}
                for method in groups.methods
            },
            "tasks": {
                task: {"env_id": groups.env_ids[task], "scale": summary.scales[task]} for task in groups.tasks
            },
            "bases": bases(groups),
            "compared": facts_of(groups),
            "runs": summary.runs,
            "results": list(summary.results.values()),
            "overall": list(summary.overall.values()),
            "taus": summary.taus,
            "pairs": [{**asdict(pair), "better": pair.better} for pair in summary.pairs],
            "curves": [
                {"axis": axis, "task": task, "method": method, **asdict(band)}
                for (axis, task, method), band in summary.bands.items()
            ],
            "effects": summary.effects,
            "troubles": summary.troubles,
        }
        return plain_data(record)

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables by name; each has `records()`, `csv()`, `markdown()` and `latex()`."""
        self._require_more_is_better()
        return tables(self.summary)

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """The matplotlib figures of the page by name."""
        self._require_more_is_better()
        sections = pictures(self.summary).values()
        return {picture.name: picture.figure for section in sections for picture in section}

    def curves(self, axis: Axis = "steps", *, seeds: bool = False) -> Figure:
        """Plot learning curves, a panel per task."""
        return drawing.all_curves(self.summary, axis, seeds=seeds)

    def _require_more_is_better(self) -> None:
        if less_is_better(metric := self.summary.reading.metric):
            raise ConfigError(
                f"a report prefers the larger value, and less {metric} is better; draw its curves with "
                f"`rl-training plot --metric {metric}`",
                key="metric",
            )

    def _repr_html_(self) -> str:
        frame = 'style="width:100%;height:900px;border:0" sandbox="allow-downloads"'
        return f'<iframe {frame} srcdoc="{escape(self.html())}"></iframe>'

    def __repr__(self) -> str:
        return f"Report({self.summary.size})"


def read(
    paths: str | Path | Iterable[str | Path],
    *more: str | Path,
    metric: str = RETURN,
    score: Score = "last",
    at: float | None = None,
    unfinished: bool = False,
    by: str = "settings",
    names: Mapping[str, str] | None = None,
    normalize: str = "auto",
    references: Mapping[str, tuple[float, float]] | None = None,
    threshold: Mapping[str, float] | float | None = None,
    title: str | None = None,
    external: Mapping[str, str | Path] | None = None,
) -> Report:
    """Report on every run below some paths: run folders, folders of run folders, studies, packed studies.

    `metric` is a name of results or of the log. The `score` of a run is its `last` or `best` evaluation, up to the
    step `at` if given. `unfinished` includes runs that have not ended. `by` groups runs into methods: by
    `settings`, by the `path` given here, or by `tags`; `names` renames methods and tasks. `normalize` is `auto`,
    `d4rl` or `range`; `references` are the results that score 0 and 1, by task. `threshold` is the result until
    which steps are counted, for all tasks or by task. `external` are results of other programs: CSV files with the
    columns step, seed and value, and task if there are several tasks, by the name of the method.
    """
    places = [paths, *more] if isinstance(paths, str | Path) else [*paths, *more]
    if at is not None and math.isnan(at):
        raise ConfigError("at: must be a step, got nan", key="at")
    selection = Selection(checked_by(by), score, at, unfinished, names or {})
    options = Options(selection, normalize, references or {}, threshold)
    reading = read_runs(places, metric)
    _check_metric(reading)
    reading = with_external(reading, external or {}, names or {})
    return Report(summarise(reading, options), title or _title(places))


def _check_metric(reading: Reading) -> None:
    """Raise if no log has the metric, unless it is the default: runs may have no evaluation."""
    if reading.tags and tag_of(reading.metric) not in reading.tags | {tag_of(RETURN)}:
        known = sorted(map(result_name, reading.tags))
        hint = f"{nearest(reading.metric, known)}; known: {', '.join(known)}"
        raise ConfigError(f"no run has evaluations of {reading.metric}{hint}", key="metric")


def _title(places: Iterable[str | Path]) -> str:
    names = [Path(place).resolve().stem for place in places]
    return ", ".join(names[:_MOST_NAMED]) + (" and more" if len(names) > _MOST_NAMED else "")
