"""Write the figure, the numbers and the speed table of the README from `benchmarks/results/`.

    python -m benchmarks.speed.picture     writes docs/pictures/speed-*.svg and the sections of the README

Left panel: updates per second on a CPU relative to the fastest implementation on PyPI, measured together. Right
panel: updates per second of up to 32 seeds trained together on one GPU, and of a single run.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks import report
from benchmarks.report import Entry, Results, number, table
from benchmarks.speed.summary import LIBRARIES
from benchmarks.speed.updates import beside

FOLDER = report.ROOT / "docs" / "pictures"
# From Okabe and Ito's palette.
_OURS, _THEIRS = "#0072B2", "#E69F00"
_INKS = {"light": "#1f2328", "dark": "#e6edf3"}
_MEMBERS = 32
# A common algorithm of each regime; docs/performance.md has all of them.
_SHOWN = ("SAC", "IQL")
_SHOWN_ON_A_GPU = ("SAC", "IQL", "TD3+BC")


def beside_peers() -> list[Entry]:
    """CPU measurements with a peer, one case per algorithm, sorted by ratio."""
    found: dict[str, Entry] = {}
    for entry in Results("updates").load().values():
        if entry["kind"] == "rate" and entry["device"] == "cpu" and entry.get("peer"):
            name = entry["case"].partition(",")[0]
            if name not in found or entry["rate"] > found[name]["rate"]:
                found[name] = entry
    return sorted(found.values(), key=lambda entry: float(entry["ratio"]))


def on_a_gpu() -> list[tuple[Entry, Entry]]:
    """GPU measurements in float32 with a peer from the same run."""
    entries = [e for e in Results("updates").load().values() if e["kind"] == "rate" and e["device"] != "cpu"]
    shown = [e for case in _SHOWN_ON_A_GPU for e in entries if e["case"] == case and not e["tf32"]]
    return [(entry, peer) for entry in shown for peer in beside(entry)]


def together() -> list[tuple[str, Entry, Entry]]:
    """Algorithms with their single run and their largest population of at most `_MEMBERS`, in float32 on a GPU."""
    entries = [e for e in Results("population").load().values() if e["device"] != "cpu" and not e["tf32"]]
    singles = {e["case"]: e for e in entries if e["members"] == 1}
    many: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda e: int(e["members"])):
        if 1 < entry["members"] <= _MEMBERS:
            many[entry["case"]] = entry
    pairs = [(case.partition(",")[0], singles[case], many[case]) for case in many if case in singles]
    return sorted(pairs, key=lambda pair: float(pair[2]["rate"]))


def times(peer: Entry) -> str:
    """The ratio with its minimum and maximum over pairs of blocks."""
    low, high = peer["ratio_spread"]
    return f"{number(peer['ratio'])}× ({number(low)} to {number(high)})"


def library(peer: Entry) -> str:
    return LIBRARIES[peer["peer"].partition(":")[0]]


def numbers() -> str:
    """Four numbers of the README: SAC on a CPU, on a GPU, with many seeds together, and minutes to a return."""
    cpu = next(e for e in beside_peers() if e["case"] == "SAC")
    gpu, peer = next(pair for pair in on_a_gpu() if pair[0]["case"] == "SAC")
    _, single, many = next(found for found in together() if found[0] == "SAC")
    size = many["members"]
    runs = size * single["rate"] / many["rate"]
    climbs = [e for e in Results("minutes").load().values() if e["task"] == "Humanoid"]
    minutes = statistics.median(math.inf if e["reached"] is None else e["reached"] / 60 for e in climbs)
    goal, seeds = number(climbs[0]["target"]), len(climbs)
    return "\n".join(
        [
            f"- **{number(cpu['ratio'])}×** the updates per second of {library(cpu)} (SAC, {cores(cpu)})",
            f"- **{number(peer['ratio'])}×** the updates per second of {library(peer)} (SAC, {card(gpu)})",
            f"- **{size} seeds** in the time of {number(runs, 2)} single runs (SAC, {card(many)})",
            f"- **{number(minutes, 2)} minutes** until a return of {goal} on Humanoid (FlashSAC, median of {seeds} "
            f"seeds, {card(climbs[0])}; without contact forces)",
        ]
    )


def card(entry: Entry) -> str:
    """The GPU of a measurement."""
    return str(entry["machine"].partition(",")[0])


def cores(entry: Entry) -> str:
    """The CPU of a measurement; peers do not use oneDNN, which is faster than their library on AMD processors."""
    amd = "products" in entry["versions"]
    return f"{entry['machine'].replace('CPU', 'AMD')} with AVX-512" if amd else str(entry["machine"])


def speed() -> str:
    """The table of speed in the README."""
    rows = []
    for e in reversed([e for e in beside_peers() if e["case"] in _SHOWN]):
        rows.append([f"{e['case']}, {cores(e)}", number(e["rate"]),
                     f"{library(e)}: {number(e['peer_rate'])}", times(e)])  # fmt: skip
    for e, peer in on_a_gpu():
        rows.append([f"{e['case']}, {card(e)}", number(e["rate"]),
                     f"{library(peer)}: {number(peer['peer_rate'])}", times(peer)])  # fmt: skip
    for name, single, many in reversed([found for found in together() if found[0] in _SHOWN]):
        ratio = many["rate"] / single["rate"]
        rows.append([f"{many['members']} seeds of {name} together, {card(many)}", number(many["rate"]),
                     f"one run: {number(single['rate'])}", f"{ratio:.1f}×"])  # fmt: skip
    return table(["updates per second", "here", "compared with", "ratio"], rows)


def draw(ink: str) -> Figure:
    style: Any = {"text.color": ink, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink,
             "axes.edgecolor": ink, "figure.facecolor": "none", "axes.facecolor": "none",
             "savefig.facecolor": "none", "font.size": 9,
             "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}  # fmt: skip
    with mpl.rc_context(style):
        figure = Figure(figsize=(9.0, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_peers(left)
        _draw_population(right)
    return figure


def _draw_peers(axes: Any) -> None:
    found = beside_peers()
    names = [f"{e['case'].partition(',')[0]}  ({library(e)})" for e in found]
    ratios = [float(e["ratio"]) for e in found]
    axes.bar_label(axes.barh(range(len(names)), ratios, color=_OURS), [f"{r:.2f}×" for r in ratios], padding=3)
    axes.axvline(1.0, color=_THEIRS, linewidth=2.0)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, 1.15 * max(ratios))
    axes.set_title("Updates per second relative to another library", loc="left", fontsize=10)
    axes.set_xlabel(f"ratio to the library in brackets, {cores(found[0])}, batch 256")


def _draw_population(axes: Any) -> None:
    found = together()
    names = [name for name, _, _ in found]
    many, single = [float(e["rate"]) for _, _, e in found], [float(e["rate"]) for _, e, _ in found]
    places = range(len(names))
    axes.hlines(places, single, many, color="#8C8C8C", linewidth=1.5, zorder=1)
    axes.scatter(single, places, color=_THEIRS, label="one run")
    axes.scatter(many, places, color=_OURS, label="all seeds (how many)")
    for place, value, (_, _, entry) in zip(places, many, found):
        axes.annotate(f"{number(value)} ({entry['members']})", (value, place), (7, -3), textcoords="offset points")
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axes.set_xlim(min(single) / 2, 5 * max(many))
    axes.set_title("Many seeds trained together", loc="left", fontsize=10)
    axes.set_xlabel(f"updates per second of all seeds, {card(found[0][1])}, float32")
    axes.legend(loc="lower right", fontsize=8)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, ink in _INKS.items():
        path = FOLDER / f"speed-{name}.svg"
        with mpl.rc_context({"svg.hashsalt": "picture"}):  # deterministic element ids
            draw(ink).savefig(path, metadata={"Date": None})
        print(f"wrote {path.relative_to(report.ROOT)}")
    report.write_sections({(report.README, "numbers"): numbers(), (report.README, "speed"): speed()})


if __name__ == "__main__":
    main()
