"""Write the page of a study, and its figure, from its stored results."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.evidence.judging import EPISODES
from benchmarks.evidence.keeping import OVER, Kept, reading_of
from benchmarks.evidence.naming import name_of
from benchmarks.evidence.peers import peer_rows, settings_of_peers
from benchmarks.evidence.phases import fine_tuning
from benchmarks.evidence.published import NOTE, STEPS, Published, published
from benchmarks.report import UNKNOWN
from rl_training.display.text import number
from rl_training.report import figures
from rl_training.report.facts import ranges
from rl_training.report.grouping import Selection, group
from rl_training.report.reading import Run
from rl_training.report.rendering import rendered
from rl_training.report.statistics import seeds_needed
from rl_training.report.summary import Options, Result, Summary, summarise
from rl_training.report.tables import text_of
from rl_training.report.tasks import is_offline

_INKS = {"light": "#1f2328", "dark": "#e6edf3"}
BUDGETS = ("total_timesteps", "buffer_capacity")
_FULL_NAME = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{32}\b")  # of a commit; the others are recorded in short
_BUDGET = re.compile(rf"(?<=[( ])(?:{'|'.join(BUDGETS)})=[^,)]+(?:, |(?=\)))")


def summary_of(kept: Kept, *, judgements: bool, at: float | None = None) -> Summary:
    """The report's summary of a study, from final evaluations or from those during training."""
    reading = reading_of(kept, judgements=judgements)
    groups = group(reading, Selection())
    words = {method: f" ({text})" for method, text in groups.legend.items()}  # in place of a number
    names = {
        method: name_of(algo) + words.get(method, method.removeprefix(algo))
        for method, algo in groups.algos.items()
    }
    short = {method: _BUDGET.sub("", name).replace(" ()", "") for method, name in names.items()}
    names = short if len({*short.values()}) == len(names) else names
    return summarise(reading, Options(Selection(at=at, names=names)))


def section(kept: Kept) -> str:
    """Return the page of a study, and draw its figure."""
    title, words = kept["about"]
    over = over_of(kept)
    begun = begun_of(kept)
    parts = [f"# {title or kept['study']}", words]
    if over or begun["runs"]:
        parts.append(draw(kept))
    if over:
        summary = summary_of(kept, judgements=True)
        parts += [*(_task(kept, summary, task) for task in summary.tasks), *_troubles(summary)]
    parts += [*_on_the_way(kept), *fine_tuning(summary_of(kept, judgements=False).groups)]
    if begun["runs"]:
        parts.append(_under_way(kept, begun))
    if over or begun["runs"]:
        parts.append(_origin(kept, over or list(begun["runs"].values())))
    state = (
        "" if len(over) == len(kept["planned"]) else f" {len(over)} of {len(kept['planned'])} runs are finished."
    )
    parts.append(f"To reproduce: `{_command(kept['study'])}`.{state}")
    return "\n\n".join(part for part in parts if part)


def draw(kept: Kept) -> str:
    """Write the learning curves of a study for light and dark backgrounds; return the HTML that shows them."""
    summary = summary_of(kept, judgements=False)
    if not summary.bands:
        return ""
    name = f"evidence-{kept['study']}"
    drawing = rendered(figures.all_curves(summary), "svg", name).decode()
    pictures = report.output / "docs" / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for ground, ink in _INKS.items():
        (pictures / f"{name}-{ground}.svg").write_text(drawing.replace(figures.INK, ink), encoding="utf-8")
    words = f"Learning curves: {', '.join(summary.groups.methods)}"
    dark, light = (f"../pictures/{name}-{ground}.svg" for ground in ("dark", "light"))
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="{words}" src="{light}"></picture>\n\n'
        "Evaluations during training: interquartile mean over seeds, with its 95 % interval."
    )


def _task(kept: Kept, summary: Summary, task: str) -> str:
    """The table of one task: a line for each method, published results, and peers."""
    scale, rows = summary.scales[task], []
    first = next(run for method in summary.methods for run in summary.groups.cell(method, task).runs)
    scored = scale is not None and "D4RL" in scale.source and is_offline(first)
    for method in summary.methods:
        if (result := summary.results.get((method, task))) is not None:
            runs = summary.groups.cell(method, task).runs
            score = "" if scale is None else number(100 * float(scale.score(np.array(result.mean))))
            rows.append([*_line(kept, result, runs), *([score] if scored else [])])
    steps = {result.step for (_, of), result in summary.results.items() if of == task}
    rows += [[*row, *[""] * (len(rows[0]) - len(row))] for row in _references(kept, first, steps)]
    header = ["", "seeds", "steps", "IQM [95 %]", "mean ± std", "updates", "minutes", "commit"]
    header += ["normalised"] if scored else []
    note = [
        "Normalised: the mean as a score by D4RL's v2 references. Not comparable with published v2 tables."
    ] * scored
    note += [*settings_of_peers(kept["study"], first), *_better(summary, task)]
    note += [] if first.dataset else _outside(summary, task, steps)
    return "\n\n".join([f"## {task}", report.table(header, rows), *note])


def _under_way(kept: Kept, begun: Kept) -> str:
    """The table of unfinished runs: their current steps, and the last evaluation that all seeds have."""
    cells = summary_of(kept, judgements=False).groups.cells.values()
    methods = {run.name: cell.method for cell in cells for run in cell.seen}
    rows = []
    for runs, _ in unfinished_runs(begun):
        at = last_step(runs)
        wanted = sum(
            runs[0].settings.get(key) or 0 for key in ("algo_kwargs.offline_pretrain_updates", "total_timesteps")
        )
        reached = f"{min(run.step for run in runs):,} of {wanted:,}"
        result = result_at(begun, runs, at)
        named = methods[runs[0].name]
        rows.append([named, result.task, _seeds(runs), reached, f"{at:,.0f}", *_scores(result), _commits(runs)])
    header = ["", "", "seeds", "reached", "evaluated at", "IQM [95 %]", "mean ± std", "commit"]
    words = "The last evaluation during training that all of these seeds have reached."
    if any(row[4].startswith("-") for row in rows):
        words += " Below 0: updates on data before the first environment step."
    return f"## Not finished\n\n{words}\n\n{report.table(header, rows)}"


def begun_of(kept: Kept) -> Kept:
    """The study with only those runs that have evaluations and are not finished."""
    runs = {name: run for name, run in kept["runs"].items() if run["status"] not in OVER and run["curve"]["steps"]}
    return {**kept, "runs": runs}


def unfinished_runs(begun: Kept) -> Iterator[tuple[Sequence[Run], Iterable[str]]]:
    """The runs of each task and method, and the settings in which the methods of the algorithm differ."""
    if not begun["runs"]:
        return
    groups = summary_of(begun, judgements=False).groups
    for task in groups.tasks:
        for method in groups.methods:
            if runs := groups.cell(method, task).seen:
                yield runs, groups.changes[method]


def last_step(runs: Sequence[Run]) -> float:
    """Step of the last evaluation that all runs have."""
    return float(min(run.curve.steps[-1] for run in runs))


def result_at(kept: Kept, runs: Sequence[Run], step: float) -> Result:
    """Result of the last evaluation up to this step."""
    only = {run.name: kept["runs"][run.name] for run in runs}
    (result,) = summary_of({**kept, "runs": only}, judgements=False, at=step).results.values()
    return result


def _scores(result: Result) -> tuple[str, str]:
    """IQM with its interval, mean with its standard deviation."""
    std = "" if result.std is None else f" ± {number(result.std)}"
    return text_of(result.chosen), f"{number(result.mean)}{std}"


def _seeds(runs: Iterable[Run]) -> str:
    return ranges(run.seed for run in runs if run.seed is not None)


def _commits(runs: Iterable[Run]) -> str:
    commits = {commit for run in runs for commit in run.record.get("commits", [UNKNOWN])}
    return ", ".join(sorted(_FULL_NAME.sub(r"\1", commit) for commit in commits))


def _better(summary: Summary, task: str) -> list[str]:
    """Which methods are significantly better than others with the same budget, or that no difference is
    significant."""
    pairs = [
        pair
        for pair in summary.pairs
        if pair.task == task and summary.results[pair.first, task].step == summary.results[pair.second, task].step
    ]
    better = []
    for pair in (pair for pair in pairs if pair.better):
        better.append(f"{pair.better} than {pair.second if pair.better == pair.first else pair.first}")
    known, compared = sum(found == task for _, found in summary.results), len(summary.shown[task])
    only = f"; of {known} methods, the best {compared} are compared" if compared < known else ""
    if better:
        return [f"Better (the interval of the difference of the IQMs excludes 0{only}): {', '.join(better)}."]
    if pairs and not any(pair.enough for pair in pairs):
        return [f"A difference is called significant from {seeds_needed()} seeds of each method on."]
    return ["No difference between two methods is significant."] if pairs else []


def _outside(summary: Summary, task: str, steps: Iterable[float]) -> list[str]:
    """Sentences on published means that are outside our interval after the same number of steps."""
    sentences = []
    for one in (one for budget in sorted(steps) for one in published(summary.groups.env_ids[task], budget)):
        for result in (result for result in summary.results.values() if result.task == task):
            ours, same = result.chosen, summary.groups.algos[result.method] == one.algo
            if same and result.step == one.steps and ours.low is not None and not ours.low <= one.mean <= ours.high:
                side = "above" if one.mean > ours.high else "below"
                sentences.append(f"The published mean of {name_of(one.algo)} is {side} the interval of our IQM.")
    return sentences


def _line(kept: Kept, result: Result, runs: Sequence[Run]) -> list[str]:
    planned, seeds = _planned(kept, runs[0]), _seeds(runs)
    counted = seeds if len(runs) == planned else f"{seeds} ({len(runs)} of {planned})"
    updates = {int(run.metrics.get("update_count", 0)) for run in runs}
    seconds = [run.seconds for run in runs if run.seconds]
    minutes = "–" if not seconds else f"{statistics.median(seconds) / 60:.1f}"
    together = max(run.members for run in runs)
    return [result.method, counted, steps_text(result, runs), *_scores(result), _numbers(updates),
            minutes + (f" ({together} trained together)" if together > 1 else ""), _commits(runs)]  # fmt: skip


def _numbers(found: Iterable[int]) -> str:
    return " / ".join(f"{one:,}" for one in sorted(found))


def steps_text(result: Result, runs: Iterable[Run]) -> str:
    """Environment steps without preceding updates on data; several numbers if runs stopped early."""
    return _numbers({int(run.metrics.get("global_step", result.step)) for run in runs})


def _planned(kept: Kept, run: Run) -> int:
    """Number of seeds that the study plans for the configuration of a run."""
    beginning = run.name.rpartition("__s")[0]
    return sum(name.rpartition("__s")[0] == beginning for name in kept["planned"])


def _references(kept: Kept, run: Run, steps: set[float]) -> Iterator[list[str]]:
    """Rows to compare with: the data, published results for the same environment and budget, and peers."""
    if is_offline(run) and (data := kept["data"].get(run.dataset["name"])) is not None:
        yield [f"*the data, {data['episodes']:,} episodes*", "", "", "", number(data["mean"])]
    if not run.dataset:
        for budget in sorted(steps):
            for one in (one for one in published(run.env_id, budget) if one.algo in _algos(kept)):
                yield [_published_name(one), str(one.seeds), f"{budget:,.0f}", "", one.text]
    for name, seeds, made, found in peer_rows(kept["study"], run):
        yield [name, seeds, made, "", found]


def _algos(kept: Kept) -> set[str]:
    return {run["algo"] for run in kept["runs"].values()}


def _published_name(one: Published) -> str:
    return f"*published {one.what or name_of(one.algo)}*"


def _on_the_way(kept: Kept) -> list[str]:
    """Evaluations during training at steps before the end: where another method ends or a published result exists.
    Runs that have not reached a step are omitted there."""
    rows, notes, any_published = [], [], False
    groups = summary_of(kept, judgements=False).groups
    for task in groups.tasks:
        env_id = groups.env_ids[task]
        seen = [run for method in groups.methods for run in groups.cell(method, task).seen]
        if seen and not any(run.status in OVER for run in seen):  # no table of finished runs
            rows += [[task, steps, name, seeds, "", found] for name, seeds, steps, found in
                     peer_rows(kept["study"], seen[0])]  # fmt: skip
            notes += settings_of_peers(kept["study"], seen[0])
        of_others = {
            steps: [one for one in published(env_id, steps) if one.algo in _algos(kept)]
            for steps in (() if any(run.dataset for run in seen) else STEPS)
        }
        any_published |= any(of_others.values())
        ends = {int(run.settings["total_timesteps"]) for run in seen}
        for steps in sorted(ends | {steps for steps, found in of_others.items() if found}):
            if steps >= max(ends, default=0):
                continue
            found = summary_of(_reached(kept, steps), judgements=False, at=steps)
            here = [one for one in found.results.values() if one.task == task]
            references = of_others.get(steps, []) if here else []
            rows += [[task, f"{steps:,}", one.method, str(one.seeds), text_of(one.chosen), number(one.mean)]
                     for one in here]  # fmt: skip
            shown = {found.groups.algos[one.method] for one in here}
            rows += [[task, f"{steps:,}", _published_name(one), str(one.seeds), "", one.text]
                     for one in references if one.algo in shown]  # fmt: skip
            for sentence in _outside(found, task, [steps] if references else []):
                notes.append(f"{task}, {steps:,} steps: {sentence[0].lower()}{sentence[1:]}")
    header = ["", "step", "", "seeds", "IQM [95 %]", "mean"]
    words = "The last evaluation during training up to the given step."
    table = [f"## During training\n\n{words}\n\n{report.table(header, rows)}"] if rows else []
    return [*table, *notes, *([NOTE] if any_published else [])]


def _reached(kept: Kept, steps: int) -> Kept:
    """The study with only those runs that have reached this step or finished."""
    runs = {
        name: run
        for name, run in kept["runs"].items()
        if run["status"] in OVER or max(run["curve"]["steps"], default=0) >= steps
    }
    return {**kept, "runs": runs}


def _troubles(summary: Summary) -> list[str]:
    """Runs that failed or diverged; the tables count runs that are still missing."""
    lines = [f"- {one.place}: {one.reason} ({one.effect})" for one in summary.troubles
            if one.what in ("failed", "diverged", "broken")]  # fmt: skip
    return ["\n".join(["Failed or diverged:", "", *lines])] if lines else []


def _origin(kept: Kept, over: Sequence[Mapping[str, Any]]) -> str:
    """How runs were evaluated, and the data, machines and versions they were trained with."""
    seed = sorted({run["judged"]["seed"] for run in over if "judged" in run})
    data = sorted({f"{run['dataset']['name']} ({run['dataset']['rows']:,} rows, fingerprint "
                   f"{run['dataset']['fingerprint']})" for run in over if run["dataset"]})  # fmt: skip
    dates = sorted({str(run["record"].get("created"))[:10] for run in over})
    machines = sorted({str(run["record"].get("machine", run["record"].get("device"))) for run in over})
    named = ("rl_training", "torch", "gymnasium", "mujoco")
    used = {name: {run["record"]["versions"].get(name, UNKNOWN) for run in over} - {UNKNOWN} for name in named}
    versions = [f"{name} {' / '.join(sorted(found))}" for name, found in used.items() if found]
    parts = [f"The last checkpoint of each seed was evaluated on {EPISODES} episodes whose seeds were not used "
             f"during training (seed {', '.join(map(str, seed))})"] if seed else []  # fmt: skip
    parts += [f"data: {'; '.join(data)}"] if data else []
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    text = "; ".join([*parts, f"{when} on {' · '.join(machines)}", ", ".join(versions)])
    return f"{text[0].upper()}{text[1:]}."


def over_of(kept: Kept) -> list[Mapping[str, Any]]:
    """The finished runs of a study that have been evaluated."""
    return [run for run in kept["runs"].values() if "judged" in run]


def _command(study: str) -> str:
    return f"python -m benchmarks.evidence run benchmarks/studies/{study}.yaml --data DIR --render"
