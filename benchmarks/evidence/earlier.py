"""Tables of runs that were measured before there were studies and that no finished study has replaced.

`benchmarks/results/learning.json` has one entry per run. `python -m benchmarks.report` renders them; no program
adds new ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks import report
from benchmarks.evidence.bare import BARE, class_of
from benchmarks.report import Entry, Sections, table

BARE_EPISODES = 20


def by_seed(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry["seed"])


def learned(runs: list[Entry]) -> str:
    """`yes` if there are at least three seeds and each reaches the required return within the budget."""
    budget, reached = runs[0]["budget"], [returned(run) >= run["line"] for run in runs]
    if len(runs) < 3 or any(run["steps"] != budget for run in runs):
        return "too little data: needs 3 seeds and the whole budget"
    return "yes" if all(reached) else f"NO: {sum(reached)} of {len(runs)} seeds"


def returned(run: Entry) -> float:
    mean: float = run["final"]["eval_return_mean"]
    return mean


def bare_text(entries: list[Entry]) -> str:
    of = {algo: by_seed(entry for entry in entries if entry["algo"] == algo) for algo in BARE}
    rows = [
        [f"`{class_of(algo).__name__}`", BARE[algo].env, f"{BARE[algo].budget:,}", *["–"] * 4, "not measured", "–"]
        for algo, runs in of.items()
        if not runs
    ]
    for algo, runs in of.items():
        if not runs:
            continue
        values, file = [returned(run) for run in runs], runs[0].get("file")
        line = f"{runs[0]['line']:.0f}" + (" (mean of the data)" if BARE[algo].line is None else "")
        rows.append([f"`{class_of(algo).__name__}`", runs[0]["env"] + (f", {file}" if file else ""),
                     f"{runs[0]['total_timesteps']:,}", " ".join(str(run["seed"]) for run in runs),
                     report.returns(values), report.spread(values), line, learned(runs),
                     f"{max(run['seconds'] for run in runs):.0f}"])  # fmt: skip
    header = ["class", "environment, data", "budget", "seeds", "returns", "mean ± std", "at least", "learns",
              "seconds, at most"]  # fmt: skip
    note = (
        "Nothing is set but the seed. Budgets are environment steps, or gradient updates for offline algorithms. "
        f"The last checkpoint is evaluated on {BARE_EPISODES} episodes with fixed seeds. A class learns if every "
        "seed reaches the return in the column *at least*."
    )
    return f"{note}\n\n{table(header, rows)}"


def sections(entries: dict[str, Entry]) -> Sections:
    """The section of the default settings."""
    found = [entry for entry in entries.values() if entry["kind"] == "defaults"]
    origin = (
        "Runs from before the studies, all evaluated on the same episodes. To repeat them, run the study "
        "`bare-classes`."
    )
    text = f"## Bare classes\n\n{origin}\n\n{bare_text(found)}\n\n{report.origins(found)}"
    return {("results/earlier", "learning-defaults"): text} if found else {}
