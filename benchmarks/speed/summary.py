"""The short tables of docs/performance.md and performance/population.md, with a column for each peer.

`python -m benchmarks.report` writes them from the results of `updates`, `training`, `population`, `seeds` and
`stepping`. All other measurements of these programs are on the pages in docs/performance/.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, number, table
from benchmarks.speed import cases, seeds, stepping, training, updates

LIBRARIES = {
    "sb3": "Stable-Baselines3",
    "sb3_contrib": "SB3-Contrib",
    "d3rlpy": "d3rlpy",
    "CORL": "CORL",
    "Unifloral": "Unifloral (JAX)",
    "FlashSAC": "its authors",
    "FQL": "its authors",
    "LeanRL": "LeanRL",
}
_MEMBERS = (1, 8, 32)
Peers = Mapping[str, str]  # the cell of each library


def sections() -> Sections:
    """Every table with measurements."""
    texts = {
        "updates": _updates(_entries("updates", "rate")),
        "training": _training(_entries("training", "compare")),
        "seeds": _seeds(_entries("seeds")),
        "stepping": stepping.best_of(_entries("stepping", "mujoco")),
    }
    found: Sections = {("performance", f"summary-{name}"): text for name, text in texts.items()}
    return found | {("performance/population", "summary-population"): _population(_entries("population"))}


def _entries(program: str, kind: str | None = None) -> list[Entry]:
    return [entry for entry in Results(program).load().values() if kind in (None, entry.get("kind"))]


def _with_peers(head: list[str], rows: Iterable[tuple[list[str], Peers]]) -> str:
    """A table whose last columns are the measured libraries, in the order of `LIBRARIES`."""
    rows = list(rows)
    columns = [name for name in dict.fromkeys(LIBRARIES.values()) if any(name in peers for _, peers in rows)]
    lines = [[*ours, *(peers.get(name, "") for name in columns)] for ours, peers in rows]
    return table([*head, *columns], lines)


def _machines(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The entries by machine: machines with a GPU first, and of these the one with most entries."""
    found: dict[str, list[Entry]] = {}
    entries = list(entries)
    count = Counter(entry["machine"] for entry in entries)
    for entry in sorted(entries, key=lambda one: (one["device"] == "cpu", -count[one["machine"]], one["machine"])):
        found.setdefault(entry["machine"], []).append(entry)
    return found


def _updates(entries: list[Entry]) -> str:
    """Updates per second in float32 (or the precision of the peer), and each peer's rate with our ratio."""
    order = {case.name: place for place, case in enumerate(cases.CASES)}
    parts = []
    for machine, found in _machines(entries).items():
        shown = [entry for entry in found if not entry["tf32"] or updates.beside(entry)]
        shown.sort(key=lambda entry: (order[entry["case"]], entry["tf32"], entry["mode"]))
        rows = [
            (
                [updates.label_of(entry), number(entry["rate"])],
                {
                    LIBRARIES[peer["peer"].partition(":")[0]]: f"{number(peer['peer_rate'])} ({peer['ratio']:.2f}×)"
                    for peer in updates.beside(entry)
                },
            )
            for entry in shown
        ]
        parts += [f"**{machine}**", _with_peers(["algorithm", "here"], rows)]
    return "\n\n".join(parts)


def _training(entries: list[Entry]) -> str:
    """Environment steps per second during training, and each peer's rate with our ratio."""
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        key = entry["machine"], f"{entry['algo'].upper()} {entry['env']}", training.settings(entry)
        groups.setdefault(key, []).append(entry)
    rows = [
        (
            [task, machine, settings, number(statistics.median(runs[0]["steady"]))],
            {
                run.get("peer", "Stable-Baselines3"): f"{number(statistics.median(run['peer_steady']))} "
                f"({run['ratio']:.2f}×)"
                for run in runs
            },
        )
        for (machine, task, settings), runs in groups.items()
    ]
    return _with_peers(["", "machine", "settings", "here"], rows)


def _population(entries: list[Entry]) -> str:
    """Updates per second of all members in float32 on a GPU, and the gain over a single run."""
    rates = {(entry["case"], entry["members"]): entry["rate"] for entry in entries
             if entry["device"] != "cpu" and not entry["tf32"] and entry["batch"] == 256}  # fmt: skip

    def cell(case: str, members: int) -> str:
        rate, one = rates.get((case, members)), rates.get((case, 1))
        gain = f" ({rate / one:.1f}×)" if rate and one and members > 1 else ""
        return "" if rate is None else f"{number(rate)}{gain}"

    rows = [
        [case, *(cell(case, members) for members in _MEMBERS)] for case in dict.fromkeys(key[0] for key in rates)
    ]
    return table(["algorithm", "one run", *(f"{members} members" for members in _MEMBERS[1:])], rows)


def _seeds(entries: list[Entry]) -> str:
    """Minutes for all seeds, by the way they are trained."""
    ways = list(dict.fromkeys(entry["way"] for entry in sorted(entries, key=lambda one: one["seconds"])))
    tasks: dict[tuple[str, str], dict[str, str]] = {}
    for entry in entries:
        measured = "" if entry["how"].startswith("measured") else " (extrapolated)"
        cells = tasks.setdefault((seeds.task(entry), entry["machine"]), {})
        cells[entry["way"]] = f"{entry['seconds'] / 60:.1f}{measured}"
    return table(["minutes of", "machine", *ways], [[*key, *(cells.get(way, "") for way in ways)]
                                                    for key, cells in tasks.items()])  # fmt: skip


def render() -> None:
    report.write_sections(sections())
