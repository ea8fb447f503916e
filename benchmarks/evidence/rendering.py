"""Write docs/results.md, and the pages of all studies, from the stored results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report
from benchmarks.evidence.keeping import OVER, Kept, about_of, load
from benchmarks.evidence.naming import name_of, short_name
from benchmarks.evidence.peers import best_peer
from benchmarks.evidence.published import NOTE, STEPS, Published, published
from benchmarks.evidence.study_page import (
    BUDGETS,
    begun_of,
    last_step,
    over_of,
    result_at,
    section,
    steps_text,
    summary_of,
    unfinished_runs,
)
from benchmarks.report import Sections
from rl_training.display.text import number
from rl_training.experiment.strict_yaml import parse_yaml
from rl_training.report.reading import Run
from rl_training.report.summary import Result
from rl_training.report.tables import text_of
from rl_training.report.tasks import is_offline
from rl_training.study.description import StudyFile
from rl_training.study.plan import short

STUDIES = report.ROOT / "benchmarks" / "studies"
KEPT = report.RESULTS / "evidence"
_SEEDS = 3  # the summary shows a result with fewer seeds only if the task and algorithm have no result with as many
_HEADER = ["task", "algorithm", "IQM [95 %]", "seeds", "steps", "data", "best peer", "published", "study"]
_Place = tuple[int, str, str]  # kind of task, task, algorithm


class _Found(NamedTuple):
    """A result of a study, one of its runs, its steps, and the settings in which methods of the study differ."""

    kept: Kept
    result: Result
    run: Run
    steps: str
    changed: Iterable[str]


def render(kept_in: Path | None = None, studies: Path | None = None) -> None:
    """Write the summary of all studies, a page for each study with results, and the list of unfinished studies."""
    kept_in, studies = kept_in or KEPT, studies or STUDIES
    sections: Sections = {}
    made, left = list[Kept](), list[str]()
    for file in sorted(studies.glob("*.yaml")):
        if (found := load(kept_in / f"{file.stem}.json")) is None:
            title, page = about_of(file.read_text(encoding="utf-8"))[0], f"results/{file.stem}.md"
            measured = (report.ROOT / "docs" / page).is_file()  # by another program, before the end of the runs
            left.append(f"- [{title}]({page}): with fewer updates than planned." if measured else
                        f"- {title}: `{file.stem}`, not started.")  # fmt: skip
            continue
        made.append(as_planned(found, file))
        sections[f"results/{file.stem}", f"evidence-{file.stem}"] = section(made[-1])
        over, planned = len(over_of(made[-1])), len(made[-1]["planned"])
        left += [f"- {_link(made[-1])}: {over} of {planned} runs."] if over < planned else []
    sections["results", "evidence-summary"] = summary(made)
    sections["results", "evidence-unfinished"] = not_finished(made, left)
    report.write_sections(sections)


def _link(kept: Kept) -> str:
    return f"[{kept['about'][0]}](results/{kept['study']}.md)"


def summary(studies: Sequence[Kept]) -> str:
    """A table with a line for each task and algorithm with finished runs, followed by the cost of all runs."""
    lines = _lines(_finished(studies))
    over = [run for kept in studies for run in over_of(kept)]
    return f"{_table(lines.values())}\n\n{NOTE}\n\n{_cost(over)}" if lines else ""


def not_finished(studies: Sequence[Kept], left: Sequence[str]) -> str:
    """A table with a line for each task and algorithm without finished runs, and the list of unfinished studies."""
    finished = _lines(_finished(studies))
    lines = [line for place, line in _lines(_begun(studies)).items() if place not in finished]
    words = (
        "Tasks and algorithms without finished runs, evaluated during training. All seeds have reached the step, "
        "which is the last with a published result, or else the last."
    )
    parts = [words, _table(lines)] if lines else []
    return "\n\n".join(["## Not finished", *parts, "\n".join(left)]) if left else ""


def _finished(studies: Iterable[Kept]) -> list[_Found]:
    """The results of finished runs."""
    found = []
    for kept in studies:
        made = summary_of(kept, judgements=True)
        for result in made.results.values():
            run = made.groups.cell(result.method, result.task).runs[0]
            found.append(_Found(kept, result, run, steps_text(result, [run]), made.groups.changes[result.method]))
    return found


def _begun(studies: Iterable[Kept]) -> list[_Found]:
    """The results of unfinished runs: at the last step with a published result, or at their last step."""
    found = []
    for kept in map(begun_of, studies):
        for runs, changed in unfinished_runs(kept):
            last = last_step(runs)
            at = max((step for step in STEPS if step <= last and _published(runs[0], step)), default=last)
            found.append(_Found(kept, result_at(kept, runs, at), runs[0], f"{at:,.0f}", changed))
    return found


def _lines(found: Sequence[_Found]) -> dict[_Place, list[str]]:
    """A line of the table for each task and algorithm.

    A line shows the packaged settings if they have `_SEEDS` seeds, otherwise the settings with the most seeds, then
    those that a peer is compared with, then the most steps. Among unfinished runs, the most steps come first.
    """
    varied = defaultdict[str, set[str]](set)
    for one in found:
        varied[one.run.algo] |= {key for key in one.changed if short(key) not in BUDGETS}
    best: dict[_Place, tuple[tuple[Any, ...], list[str]]] = {}
    for one in found:
        name, usual, result = short_name(one.run, varied[one.run.algo]), name_of(one.run.algo), one.result
        peer = best_peer(one.kept["study"], one.run, result.step)
        steps = 0 if one.run.status in OVER else result.step
        rank = result.seeds >= _SEEDS, steps, name == usual, result.seeds, bool(peer), result.step
        place = _regime(one.run), result.task, usual
        if place not in best or rank > best[place][0]:
            best[place] = rank, _line(one, name, peer)
    return {place: best[place][1] for place in sorted(best)}


def _regime(run: Run) -> int:
    """Sort key of a task: online, offline, offline-to-online, then small tasks."""
    if not str(run.env_id).endswith(("-v4", "-v5")):
        return 3
    return 1 if is_offline(run) else 2 if run.dataset or run.settings.get("init_from") else 0


def _line(found: _Found, name: str, peer: str) -> list[str]:
    kept, result, run, steps, _ = found
    data = kept["data"].get(run.dataset["name"]) if is_offline(run) else None
    means = [f"{one.text}{_compared(one, result)}" for one in _published(run, result.step)]
    return [result.task, name, text_of(result.chosen), str(result.seeds), steps,
            "" if data is None else number(data["mean"]), peer, "".join(means),
            f"[{kept['study']}](results/{kept['study']}.md)"]  # fmt: skip


def _published(run: Run, steps: float) -> list[Published]:
    """Published results of the algorithm of an online run without data, after this many steps."""
    return [] if run.dataset else [one for one in published(run.env_id, steps) if one.algo == run.algo]


def _compared(one: Published, result: Result) -> str:
    """Text that marks a published mean outside the interval of our IQM."""
    low, high = result.chosen.low, result.chosen.high
    if low is None or low <= one.mean <= high:
        return ""
    return ", above our interval" if one.mean > high else ", below our interval"


def _table(lines: Iterable[list[str]]) -> str:
    """The table without its empty columns."""
    columns = [column for column in zip(_HEADER, *lines) if any(column[1:])]
    header, *rows = (list(row) for row in zip(*columns))
    return report.table(header, rows)


def _cost(over: Sequence[Mapping[str, Any]]) -> str:
    """Total updates and time; the members of a population share its minutes."""
    minutes: defaultdict[str, float] = defaultdict(float)
    for run in over:
        record = run["record"]
        members = len((record.get("population") or {}).get("members", [])) or 1
        minutes[str(record.get("machine", record.get("device")))] += (record.get("seconds") or 0) / 60 / members
    runs, updates = len(over), sum(run["metrics"].get("update_count", 0) for run in over) / 1e6
    took = ", ".join(f"{found:,.0f} minutes on {machine}" for machine, found in sorted(minutes.items()))
    words = "A population counts once. Some runs shared a machine."
    return f"{runs} runs with {updates:,.0f} million updates took {took}. {words}"


def as_planned(kept: Kept, file: Path) -> Kept:
    """Results with the current description and seeds of the study's file; the file may have gained seeds."""
    text = file.read_text(encoding="utf-8")
    seeds = StudyFile.parse(parse_yaml(text, str(file)).value, str(file)).seeds or ()
    beginnings = dict.fromkeys(name.rpartition("__s")[0] for name in kept["planned"])
    wanted = [f"{beginning}__s{seed}" for beginning in beginnings for seed in seeds]
    return {**kept, "about": about_of(text), "planned": list(dict.fromkeys([*kept["planned"], *wanted]))}
