"""Tables of runs that were measured before there were studies; the studies named above them measure the same.

`benchmarks/results/learning.json`, `offline.json` and `discrete.json` have an entry per run: this module renders
them, as `python -m benchmarks.report` asks it to, and nothing adds to them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator

from benchmarks import report
from benchmarks.evidence.bare import BARE, class_of
from benchmarks.report import Entry, Sections, table
from rl_training.data.scores import NOT_COMPARABLE, normalized_score
from rl_training.experiment.registry import get_algorithm_spec

PEER_NAMES = {"corl": "CORL", "d3rlpy": "d3rlpy"}
BARE_EPISODES = 20


def origin(studies: str) -> str:
    """Where a table comes from, and which studies measure the same today."""
    return f"Runs from before the studies, all evaluated on the same episodes. Now measured by {studies}."


def algorithm_changes(overrides: Iterable[str]) -> list[str]:
    """Overrides that change the algorithm, and not only where and how fast it runs."""
    prefix = "algo_kwargs."
    return [override.removeprefix(prefix) for override in overrides if override.startswith(prefix)]


def name_of(entry: Entry) -> str:
    library = {"rl_training": "", "sb3": "Stable-Baselines3 "}[entry["library"]]
    prior = f" with {entry['prior']}" if "prior" in entry else ""
    return ", ".join([f"{library}{entry['algo'].upper()}{prior}", *algorithm_changes(entry["overrides"])])


def groups(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Entry]]:
    """By environment and contender, seeds in order."""
    found: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda e: e["seed"]):
        found[entry["env"], name_of(entry)].append(entry)
    return found


def finals(entries: Iterable[Entry]) -> list[float]:
    return [entry["final"]["eval_return_mean"] for entry in entries]


def comparison(ours: list[float], theirs: list[float]) -> str:
    """Whether the difference of two means is more than the seeds' noise explains (two standard errors)."""
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    if min(len(ours), len(theirs)) < 2:
        return f"difference of the means {difference:+.0f}, with one seed and therefore no estimate of the noise."
    noise = (statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs)) ** 0.5
    found = "significantly worse" if difference < -2 * noise else "not significantly worse"
    few = " (fewer than three seeds)" if min(len(ours), len(theirs)) < 3 else ""
    return f"difference of the means {difference:+.0f}, standard error {noise:.0f}: {found}{few}."


def race_text(entries: list[Entry]) -> str:
    rows, means = [], {}
    for (env, name), runs in groups(entries).items():
        reached = [next((step for step, mean, _ in run["curve"] if mean >= run["target"]), None) for run in runs]
        done = [step for step in reached if step is not None]
        means[name.partition(" ")[0]] = statistics.fmean(done) if len(done) == len(runs) else None
        listed = ", ".join("not reached" if step is None else f"{step:,}" for step in reached)
        mean = f"{statistics.fmean(done):,.0f}" if len(done) == len(runs) else "–"
        rows.append([name, env, f"`{runs[0]['config']}`", runs[0]["updates_per_step"], f"{runs[0]['target']:g}",
                     " ".join(str(r["seed"]) for r in runs), listed, mean])  # fmt: skip
    header = ["", "environment", "config", "updates per step", "target", "seeds", "steps until reached", "mean"]
    text = table(header, rows)
    ours, sac = means.get("RLPD"), means.get("SAC")
    if ours is not None and sac is not None:
        text += f"\n\nRLPD needs {ours / sac:.2f} of SAC's steps."
    return text


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


def contender(entry: Entry) -> str:
    name = get_algorithm_spec(entry["algo"]).learner.__name__.replace("TD3BC", "TD3+BC")
    name = ", ".join([name, *algorithm_changes(entry["overrides"])])
    library = PEER_NAMES.get(entry["library"])
    return f"{library} {name}" if library else name


def file_text(name: str, entries: list[Entry]) -> str:
    """One file: a row per algorithm, then what the table says."""
    runs_of: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: (e["library"], e["algo"], e["seed"])):
        runs_of.setdefault(contender(entry), []).append(entry)
    env = entries[0]["env"]
    own = entries[0]["data_return"]
    clone = statistics.fmean(finals(runs_of["BC"])) if "BC" in runs_of else None

    def score(value: float) -> str:
        found = normalized_score(env, value)
        return "–" if found is None else f"{found:.1f}"

    data = f"the data itself, {entries[0]['data_episodes']} episodes"
    rows = [[data, "–", "–", "–", "–", f"{own:.0f}", score(own), "–"]]
    for label, runs in runs_of.items():
        values = finals(runs)
        mean = statistics.fmean(values)
        compared = "–"
        if clone is not None and label != "BC":
            few = ", one seed each" if len(values) == len(runs_of["BC"]) == 1 else ""
            compared = ("above BC" if mean > clone else "not above BC") + few
        settings = " ".join([f"`{runs[0]['config']}`", *runs[0]["overrides"]])
        updates, seeds = min(r["updates"] for r in runs), " ".join(str(r["seed"]) for r in runs)
        rows.append([label, settings, f"{updates:,}", seeds, report.returns(values), report.spread(values),
                     score(mean), compared])  # fmt: skip
    header = ["", "settings", "updates", "seeds", "returns", "mean ± std", "normalised", ""]
    parts = [f"### {name} ({env}), {entries[0]['total_timesteps']:,} updates\n", table(header, rows)]
    for label, runs in runs_of.items():
        for library in PEER_NAMES.values():
            peer = runs_of.get(f"{library} {label}")
            if peer:
                parts.append(f"\n{label} compared with {library}: {comparison(finals(runs), finals(peer))}")
    if normalized_score(env, 0.0) is not None:
        parts.append(f"\nScores are {NOT_COMPARABLE}.")
    return "\n".join(parts)


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


def offline_text(entries: list[Entry]) -> str:
    tables = sorted({(e["file"], e["total_timesteps"]) for e in entries})
    texts = [file_text(f, [e for e in entries if (e["file"], e["total_timesteps"]) == (f, n)]) for f, n in tables]
    note = (
        f"The last checkpoint is evaluated on the same {entries[0]['episodes']} episodes for every run. A study "
        "may use a longer data file of the same name."
    )
    peers = report.checkouts_said(e for e in entries if "how" in e)
    return "\n\n".join([note, *texts, *(line.strip() for line in peers)])


# By the kind of an entry: the section, its heading, the studies that measure the same, and what writes it.
WRITERS = {
    "defaults": ("learning-defaults", "Bare classes", "the study `bare-classes`", bare_text),
    "race": (
        "learning-prior-data",
        "Steps until solved, with and without prior data",
        "the study `pendulum-prior`",
        race_text,
    ),
    "offline": (
        "offline",
        "Offline algorithms",
        "the studies `pendulum-replay` and `offline-medium`, and by `benchmarks.peers.learn`",
        offline_text,
    ),
    "discrete": (
        "discrete",
        "Discrete actions",
        "the studies `discrete-cartpole` and `discrete-lunarlander`, and by `benchmarks.peers.learn`",
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
