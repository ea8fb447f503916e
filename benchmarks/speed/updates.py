"""Updates per second of every algorithm, and of every installed peer.

    python -m benchmarks.speed.updates [--device cuda|cpu] [--algo sac td3 …] [--tf32] [--bf16]
                                       [--acceleration MODE] [--peer-python PATH] [--corl DIR]
                                       [--unifloral DIR] [--fql DIR] [--jax-python PATH]
                                       [--flashsac DIR [--flashsac-ways eager compiled …]] [--peer-seconds 300]
                                       [--seconds 6] [--blocks 7] [--batch 256] [--json FILE]
    … --against PATH [--blocks 21]    compare with another checkout of this package (see `benchmarks.speed.against`)
    … --check      compare eager, captured and compiled updates, and count host reads
    … --scaling    measure scaling with batch size, width, critics and updates per step
    … --floor      measure the device's rates and the bounds they imply
    … --profile    list the kernels of one update by name, also those of Unifloral if its checkout is given

Observations have 17 dimensions and actions 6 (DQN: 6 discrete actions); computation is in float32 with the data on
the device. A whole update is timed, including sampling. Blocks of updates of both sides alternate in one process,
so that both see the same machine. The ratio is the median over pairs of blocks, the spread its minimum and maximum.

`--peer-python` is a Python with d3rlpy. `--corl`, `--unifloral`, `--flashsac` and `--fql` are checkouts (see
`benchmarks.peers.loops`). `--jax-python`, a Python with jax, flax and optax, runs Unifloral and FQL. A peer that
cannot run, or is not ready after `--peer-seconds`, is omitted and listed at the end. Results of `--against` are
printed, and stored if `--json` is given; the documentation does not change.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.peers import loops
from benchmarks.peers.d3rlpy import D3rlpyLearner
from benchmarks.report import Entry, Results, Sections, number, table
from benchmarks.speed import against, cases, depth, setup
from benchmarks.speed.timing import Runs, alternate, ratios_of

# If the ratio varies by more than this between blocks, other load disturbed the measurement.
_NOISY = 1.5
_WORDS = (
    "Measured by `python -m benchmarks.speed.updates` with a batch of 256 in float32 unless the row says "
    "otherwise. Ratios come from interleaved blocks of updates: the median over pairs of blocks, with the smallest "
    "and the largest."
)
_HEADER = ["algorithm", "updates/s", "µs", "peer", "peer updates/s", "ratio (spread)", "measured"]


def arguments() -> argparse.Namespace:
    parser = setup.arguments(__doc__, seconds=6.0)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 for wide layers, TF32 for the others")
    parser.add_argument("--algo", nargs="+", help="names of algorithms or cases; default: all")
    parser.add_argument("--peer-python", help="a Python with d3rlpy installed")
    parser.add_argument("--corl", type=Path, metavar="DIR", help="a checkout of CORL")
    parser.add_argument("--unifloral", type=Path, metavar="DIR", help="a checkout of Unifloral")
    parser.add_argument("--fql", type=Path, metavar="DIR", help="a checkout of FQL")
    parser.add_argument("--jax-python", metavar="PATH", help="a Python with jax, flax and optax; default: this one")
    ways = [key.partition("/")[2] for key in loops.LOOPS["FlashSAC"]]
    parser.add_argument("--flashsac", type=Path, metavar="DIR", help="a checkout of FlashSAC")
    parser.add_argument(
        "--flashsac-ways", nargs="+", choices=ways, default=ways[:3], metavar="WAY", help=", ".join(ways)
    )
    parser.add_argument(
        "--peer-seconds", type=float, default=300.0, help="limit for a peer of a checkout to compile"
    )
    parser.add_argument(
        "--no-peers", action="store_true", help="measure no peers, even if they are installed or given"
    )
    parser.add_argument("--blocks", type=int, help=f"default: 7; with --against, {against.BLOCKS}")
    parser.add_argument("--hidden", type=int, nargs="+", help="hidden sizes; overrides those of the cases")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout of this package")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--note", help="a remark on the measurement, which the page of a profile shows")
    options = parser.parse_args()
    options.blocks = options.blocks or (against.BLOCKS if options.against else 7)
    given = loops.libraries(
        options.corl, options.unifloral, options.jax_python, options.flashsac, options.flashsac_ways, options.fql
    )
    options.libraries = [] if options.no_peers else given
    return options


def measure(case: cases.Case, options: argparse.Namespace, device: torch.device) -> Entry:
    """One row: ours, the installed peer if there is one, and the peers of the given checkouts."""
    ours = cases.updater(case, device, acceleration=options.acceleration, batch=options.batch)
    with ExitStack() as stack:
        peer = (
            None if options.no_peers else loops.connect_installed(case, device, options.batch, options.peer_python)
        )
        contenders: dict[str, Runs] = {"ours": ours}
        if peer is not None:
            stack.callback(peer.close)
            contenders["peer"] = peer
        given, left_out = loops.connect(
            options.libraries, case, device, batch=options.batch, tf32=options.tf32, within=options.peer_seconds
        )
        for found in given.values():
            stack.callback(found.close)
        rates = alternate(contenders | given, seconds=options.seconds, blocks=options.blocks, period=case.period)
    entry: Entry = {
        "kind": "rate",
        "case": case.name,
        "hidden": list(case.hidden),
        "batch": options.batch,
        "mode": ours.learner.execution.acceleration,
        "tf32": options.tf32,
        "bf16": options.bf16,
        "rate": rates["ours"].median,
        "blocks": rates["ours"].blocks,
    }
    if peer is not None:
        entry |= {"peer": case.peer, "peer_rate": rates["peer"].median, "peer_blocks": rates["peer"].blocks}
        entry |= ratios_of(rates["ours"], rates["peer"])
        if isinstance(peer, D3rlpyLearner):
            entry["peer_versions"] = peer.versions
    if given:
        entry["given_peers"] = [found.entry(rates["ours"], rates[name]) for name, found in given.items()]
    return entry | ({"left_out": left_out} if left_out else {})


def measure_against(case: cases.Case, options: argparse.Namespace, device: torch.device) -> Entry:
    """Compare one case with another checkout of this package."""
    return against.updates(
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
    """Acceleration mode; on a CPU, with the number of threads."""
    return ", ".join([entry["mode"], *([f"{entry['threads']} threads"] if entry["device"] == "cpu" else [])])


def beside(entry: Entry) -> list[Entry]:
    """All peers measured together with ours, the installed one first."""
    return [*([entry] if "peer" in entry else []), *entry.get("given_peers", [])]


def verdicts(entry: Entry, case: cases.Case) -> str:
    """Whether an entry with the standard sizes meets its goals; ratios are to the installed peer."""
    found = []
    if case.goal and "H200" in entry["machine"] and not entry["tf32"]:
        found.append(f"{number(case.goal)}: {'met' if entry['rate'] >= case.goal else 'missed'}")
    if case.goal_ratio and entry["device"] == "cpu" and "ratio" in entry:
        low, high = entry["ratio_spread"]
        outcome = "met" if entry["ratio"] >= case.goal_ratio else "missed"
        found.append(f"{case.goal_ratio:g}×: {outcome if high <= _NOISY * low else 'too noisy to judge'}")
    return " ".join(found) or "–"


def _as_agreed(entry: Entry, case: cases.Case) -> bool:
    return entry["hidden"] == list(case.hidden) and entry["batch"] == 256


def label_of(entry: Entry) -> str:
    """Name of the case, with sizes and precision if they are not the default ones."""
    case = next(case for case in cases.CASES if case.name == entry["case"])
    sizes = "" if _as_agreed(entry, case) else f" ({entry['hidden']}, batch {entry['batch']})"
    precision = setup.precision_of(entry)
    return case.name + sizes + ("" if precision == "float32" else f", {precision}")


def rate_rows(entries: list[Entry]) -> list[list[str]]:
    """One row for each peer of an entry; the first row has our rate and the goal."""
    known = {case.name: case for case in cases.CASES}
    order = {name: i for i, name in enumerate(known)}
    rows = []
    for entry in sorted(entries, key=lambda e: (order[e["case"]], e["tf32"], e["mode"], e["threads"])):
        case = known[entry["case"]]
        as_agreed = _as_agreed(entry, case)
        ours = [
            label_of(entry),
            mode(entry),
            number(entry["rate"]),
            f"{1e6 / entry['rate']:,.0f}",
        ]
        first, *more = [peer_cells(peer) for peer in beside(entry)] or [["–"] * 3]
        when = " ".join([entry["date"], *([entry["checkout"]] if "checkout" in entry else [])])
        rows.append([*ours, *first, verdicts(entry, case) if as_agreed else "–", when])
        rows += [["", "", "", "", *cells, "", ""] for cells in more]
    return rows


def peer_cells(peer: Entry) -> list[str]:
    low, high = peer["ratio_spread"]
    ratio = f"{peer['ratio']:.2f} ({low:.2f} to {high:.2f})"
    return [peer["peer"].replace(":", " "), number(peer["peer_rate"]), ratio]


def sections(entries: dict[str, Entry]) -> Sections:
    """Tables of all measurements, one per machine and mode."""
    rates = [e for e in entries.values() if e["kind"] == "rate"]
    parts = ["## Updates per second", "", _WORDS, ""]
    for where in sorted({(e["machine"], mode(e)) for e in rates}):
        here = [e for e in rates if (e["machine"], mode(e)) == where]
        rows = [[ours, *cells, when] for ours, _, *cells, _, when in rate_rows(here)]
        given = [peer for entry in here for peer in entry.get("given_peers", [])]
        parts += [f"**{', '.join(where)}.** {report.origins(here)}", "", table(_HEADER, rows), ""]
        parts += report.checkouts_said(given)
    found: Sections = {("performance/updates", "updates"): "\n".join(parts)} if rates else {}
    return found | depth.sections(entries)


def measure_all(
    chosen: list[cases.Case], options: argparse.Namespace, device: torch.device, add: Callable[[str, Entry], Entry]
) -> list[str]:
    """Measure every case, store its row with `add` and print it; return the peers that could not run."""
    measured: list[Entry] = []
    for case in chosen:
        name = case.name + (f"/{options.batch}" if options.batch != 256 else "")
        name += "/" + "x".join(map(str, case.hidden)) if options.hidden else ""
        entry = add(name, measure(case, options, device))
        measured.append(entry)
        said = [f"{p['peer']} {number(p['peer_rate'])}, ratio {p['ratio']:.2f}" for p in beside(entry)]
        print("; ".join([f"{case.name}: {number(entry['rate'])}", *said]), flush=True)
    print()
    for row in rate_rows(measured):
        print(" | ".join(row))
    return [line for entry in measured for line in entry.get("left_out", [])]


def main() -> None:
    options = arguments()
    results = Results("updates", options.json)
    chosen = cases.find(options.algo, tuple(options.hidden) if options.hidden else None)
    device, stamp, place = setup.prepare(options)
    print(f"torch {torch.__version__}, {place}")

    def add(name: str, entry: Entry) -> Entry:
        stamped = stamp | entry
        results.add({f"{entry['kind']}/{place}/{name}": stamped})
        return stamped

    tasks = {
        "check": (options.check, depth.check),
        "scaling": (options.scaling, depth.scaling),
        "floor": (options.floor, depth.floor),
        "profile": (options.profile, depth.profile),
    }
    if options.against:
        for case in chosen:
            entry = measure_against(case, options, device)
            print(f"{case.name}: {against.said(entry, 'updates/s')}", flush=True)
            if options.json:
                add(f"{case.name}/{entry['other_checkout']}", entry)
        return
    left_out: list[str] = []
    if any(wanted for wanted, _ in tasks.values()):
        for kind, (wanted, task) in tasks.items():
            if wanted:
                for name, entry in task(chosen, options, device):
                    add(name, {"kind": kind} | entry)
    else:
        left_out = measure_all(chosen, options, device, add)
    results.render(sections)
    if left_out:
        raise SystemExit("could not be run:\n" + "\n".join(left_out))


if __name__ == "__main__":
    main()
