"""Learner updates per second of every algorithm, beside every peer that is installed.

    python -m benchmarks.updates [--device cuda|cpu] [--algo sac td3 …] [--tf32] [--acceleration MODE]
                                 [--peer-python PATH] [--seconds 6] [--blocks 7] [--batch 256] [--json FILE]
    … --against PATH [--blocks 21]    another checkout of this package beside this one (see `benchmarks.checkout`)
    … --check      eager against captured and compiled, and no host read inside updates
    … --scaling    how the cost grows with batch, width, critics and updates per step
    … --floor      the device's measured rates, and what they allow
    … --profile    kernels of one update by name

Observations 17, actions 6 (DQN: 6 choices), float32, data on the device; a whole update, sampling included. Blocks
of updates of both sides alternate in one run, so that both see the same machine; the ratio is the median over pairs
of blocks, the spread its smallest and largest. `--peer-python` is a Python that has d3rlpy. What `--against` finds
is printed, and kept where `--json` is given; the documentation is left alone.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks import cases, checkout, depth, peers, report
from benchmarks.report import Entry, Results, Sections, number, table
from benchmarks.timing import Runs, alternate
from rl_training.runtime.acceleration import choose, set_precision
from rl_training.runtime.building import choose_device, prepare_process

# A ratio that varies by more than this between blocks was disturbed by something else on the machine.
_NOISY = 1.5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--algo", nargs="+", help="algorithms or names of cases; all if not given")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--acceleration", default="auto", choices=("auto", "eager", "compile", "graph"))
    parser.add_argument("--peer-python", help="a Python with d3rlpy installed")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each side of each case")
    parser.add_argument("--blocks", type=int, help=f"7; beside another checkout {checkout.BLOCKS}")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, nargs="+", help="instead of each case's own sizes")
    parser.add_argument("--threads", type=int, help="CPU threads of both sides")
    parser.add_argument("--json", type=Path, help="keep results here and leave the documentation alone")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout of this package")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    options.blocks = options.blocks or (checkout.BLOCKS if options.against else 7)
    return options


def measure(case: cases.Case, options: argparse.Namespace, device: torch.device) -> Entry:
    """One row: ours, and the peer if there is one."""
    ours = cases.updater(case, device, acceleration=options.acceleration, batch=options.batch)
    peer = None if options.no_peers else peers.connect(case, device, options.batch, options.peer_python)
    contenders: dict[str, Runs] = {"ours": ours} | ({"peer": peer} if peer is not None else {})
    try:
        rates = alternate(contenders, seconds=options.seconds, blocks=options.blocks, period=case.period)
    finally:
        if peer is not None:
            peer.close()
    entry: Entry = {
        "kind": "rate",
        "case": case.name,
        "hidden": list(case.hidden),
        "batch": options.batch,
        "mode": ours.learner.execution.acceleration,
        "tf32": options.tf32,
        "rate": rates["ours"].median,
        "blocks": rates["ours"].blocks,
    }
    if peer is not None:
        ratios = [a / b for a, b in zip(rates["ours"].blocks, rates["peer"].blocks)]
        entry |= {
            "peer": case.peer,
            "peer_rate": rates["peer"].median,
            "peer_blocks": rates["peer"].blocks,
            "ratio": statistics.median(ratios),
            "ratio_spread": [min(ratios), max(ratios)],
        }
        if isinstance(peer, peers.D3rlpyUpdates):
            entry["peer_versions"] = peer.process.versions
    return entry


def measure_against(case: cases.Case, options: argparse.Namespace, device: torch.device) -> Entry:
    """One case beside another checkout of this package."""
    return checkout.updates(
        options.against,
        case,
        device,
        acceleration=options.acceleration,
        tf32=options.tf32,
        batch=options.batch,
        seconds=options.seconds,
        blocks=options.blocks,
    )


def mode(entry: Entry) -> str:
    """How it ran: a CPU's threads decide as much as its cores."""
    words = [entry["mode"], "TF32" if entry["tf32"] else "float32"]
    return ", ".join(words + ([f"{entry['threads']} threads"] if entry["device"] == "cpu" else []))


def rate_rows(entries: list[Entry]) -> list[list[str]]:
    known = {case.name: case for case in cases.CASES}
    order = {name: i for i, name in enumerate(known)}
    rows = []
    for entry in sorted(entries, key=lambda e: (order[e["case"]], e["tf32"], e["mode"], e["threads"])):
        case = known[entry["case"]]
        as_agreed = entry["hidden"] == list(case.hidden) and entry["batch"] == 256
        goal = case.goal if as_agreed and "H200" in entry["machine"] and not entry["tf32"] else None
        wanted = case.goal_ratio if as_agreed and entry["device"] == "cpu" and "ratio" in entry else None
        verdicts = [f"{number(goal)}: {'met' if entry['rate'] >= goal else 'missed'}"] if goal else []
        ratio = "–"
        if "ratio" in entry:
            low, high = entry["ratio_spread"]
            ratio = f"{entry['ratio']:.2f} ({low:.2f} to {high:.2f})"
            if wanted:
                outcome = "met" if entry["ratio"] >= wanted else "missed"
                verdicts.append(f"{wanted:g}×: {outcome if high <= _NOISY * low else 'too noisy to judge'}")
        rows.append(
            [
                entry["case"] if as_agreed else f"{entry['case']} ({entry['hidden']}, batch {entry['batch']})",
                mode(entry),
                number(entry["rate"]),
                f"{1e6 / entry['rate']:,.0f}",
                entry.get("peer", "–").replace(":", " "),
                number(entry.get("peer_rate")),
                ratio,
                " ".join(verdicts) or "–",
            ]
        )
    return rows


def sections(entries: dict[str, Entry]) -> Sections:
    """Tables of everything measured so far, one per machine."""
    rates = [e for e in entries.values() if e["kind"] == "rate"]
    parts = ["## Updates per second", "Written by `python -m benchmarks.updates`.", ""]
    header = ["algorithm", "mode", "updates/s", "µs", "peer", "peer updates/s", "ratio (spread)", "goal"]
    for where in sorted({e["machine"] for e in rates}):
        here = [e for e in rates if e["machine"] == where]
        parts += [
            f"**{where}.** {report.origins(here)} Batch {', '.join(sorted({str(e['batch']) for e in here}))}."
        ]
        parts += ["", table(header, rate_rows(here)), ""]
    found: Sections = {("performance", "updates"): "\n".join(parts)} if rates else {}
    return found | depth.sections(entries)


def main() -> None:
    options = arguments()
    device = choose_device(options.device)
    prepare_process(device)
    if options.threads:
        torch.set_num_threads(options.threads)
    set_precision(options.tf32)
    results = Results("updates", options.json)
    chosen = cases.find(options.algo, tuple(options.hidden) if options.hidden else None)
    stamp = report.stamp(str(device))
    where = stamp["machine"] if device.type == "cuda" else f"{stamp['machine']}/{stamp['threads']} threads"
    place = f"{where}/{'tf32' if options.tf32 else 'float32'}/{choose(options.acceleration, device)}"
    print(f"torch {torch.__version__}, {place}")
    tasks = {
        "check": (options.check, depth.check),
        "scaling": (options.scaling, depth.scaling),
        "floor": (options.floor, depth.floor),
        "profile": (options.profile, depth.profile),
    }
    if options.against:
        for case in chosen:
            entry = stamp | measure_against(case, options, device)
            print(f"{case.name}: {checkout.said(entry, 'updates/s')}", flush=True)
            if options.json:
                results.add({f"against/{place}/{case.name}/{entry['other_checkout']}": entry})
        return
    if any(wanted for wanted, _ in tasks.values()):
        for kind, (wanted, task) in tasks.items():
            if wanted:
                for name, entry in task(chosen, options, device):
                    results.add({f"{kind}/{place}/{name}": stamp | {"kind": kind} | entry})
    else:
        measured: list[Entry] = []
        for case in chosen:
            entry = stamp | measure(case, options, device)
            key = f"rate/{place}/{case.name}" + (f"/{options.batch}" if options.batch != 256 else "")
            results.add({key + ("/" + "x".join(map(str, case.hidden)) if options.hidden else ""): entry})
            measured.append(entry)
            peer: Any = f", {entry['peer']} {number(entry['peer_rate'])}" if "peer" in entry else ""
            ratio = f", ratio {entry['ratio']:.2f}" if "ratio" in entry else ""
            print(f"{case.name}: {number(entry['rate'])}{peer}{ratio}", flush=True)
        print()
        for row in rate_rows(measured):
            print(" | ".join(row))
    results.render(sections)


if __name__ == "__main__":
    main()
