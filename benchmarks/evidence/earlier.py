"""Tables of runs that were measured before there were studies, and that no finished study replaces yet.

`benchmarks/results/learning.json` and `discrete.json` have an entry per run. `python -m benchmarks.report` renders
them, and no program adds to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from benchmarks import report
from benchmarks.evidence.bare import BARE, class_of
from benchmarks.report import Entry, Sections, table

BARE_EPISODES = 20


def origin(studies: str) -> str:
    """Where a table comes from, and which programs measure the same."""
    return f"Runs from before the studies, all evaluated on the same episodes. To repeat them, run {studies}."


def finals(entries: Iterable[Entry]) -> list[float]:
    return [entry["final"]["eval_return_mean"] for entry in entries]


def by_seed(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry["seed"])


def learned(runs: list[Entry]) -> str:
    """`yes` if each of at least three seeds reaches the line with the whole budget."""
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


def file_rows(runs: list[Entry]) -> Iterator[list[str]]:
    """One file: the data, then a row per algorithm and library."""
    first = runs[0]
    own = f"{first['data_return']:.0f}"
    yield [first["file"], "the data itself", "–", f"{first['data_episodes']} episodes", own]
    contenders: dict[tuple[str, str], list[Entry]] = {}
    for run in sorted(runs, key=lambda run: (run["algo"], run["library"] == "d3rlpy", run["seed"])):
        contenders.setdefault((run["algo"], run["library"]), []).append(run)
    for (algo, library), found in contenders.items():
        label = f"d3rlpy Discrete{algo.upper()}" if library == "d3rlpy" else algo.upper()
        values = finals(found)
        seeds = " ".join(str(run["seed"]) for run in found)
        yield [first["file"], label, seeds, report.returns(values), report.spread(values)]


def discrete_text(entries: list[Entry]) -> str:
    groups: dict[tuple[str, int, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry["env"], entry["rows"], entry["budget"]].append(entry)
    texts = [
        "The last checkpoint is evaluated on the same episodes for every run. The data are uniformly random "
        "actions (`random`), episodes of a half-trained DQN (`medium`), or a third each of both and of the best "
        "DQN (`mixed`). One in ten of the DQN's actions is random. BC does not imitate these, so its return may be "
        "above or below that of its data. Both libraries use the same networks, learning rate, batch size, "
        "discount and penalty weight. d3rlpy copies its target every 200 updates, penalises log-probabilities in "
        "BC, and has no IQL for discrete actions. Our seeds are trained as one population."
    ]
    for (env, rows, budget), runs in sorted(groups.items()):
        names = [name for name in ("random", "medium", "mixed") if any(run["file"] == name for run in runs)]
        lines = [row for name in names for row in file_rows([run for run in runs if run["file"] == name])]
        episodes = " / ".join(sorted({str(run["episodes"]) for run in runs}))
        about = f"Returns are means over {episodes} episodes."
        header = ["data", "", "seeds", "returns", "mean ± std"]
        texts.append(f"### {env}, {rows:,} rows, {budget:,} updates\n\n{about}\n\n{table(header, lines)}")
    return "\n\n".join(texts)


# By the kind of an entry: the section, its heading, the programs that measure the same, and what writes it.
WRITERS = {
    "defaults": ("learning-defaults", "Bare classes", "the study `bare-classes`", bare_text),
    "discrete": (
        "discrete",
        "Discrete actions",
        "the studies `discrete-cartpole` and `discrete-lunarlander`, and `benchmarks.peers.learn`",
        discrete_text,
    ),
}


def sections(entries: dict[str, Entry]) -> Sections:
    """The sections of one file of results."""
    kinds: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries.values():
        kinds[entry.get("kind", "discrete")].append(entry)
    return {
        ("results/earlier", name): f"## {heading}\n\n{origin(studies)}\n\n{write(kinds[kind])}\n\n"
        f"{report.origins(kinds[kind])}"
        for kind, (name, heading, studies, write) in WRITERS.items()
        if kind in kinds
    }
