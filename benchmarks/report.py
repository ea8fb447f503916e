"""Storage of measurements, and the tables in the documentation.

Each program writes `benchmarks/results/<program>.json` with one entry per key, so that results of several runs or
machines are combined in one table. The tables in `docs/` are rendered from these files only; a program replaces
only the text between its own `<!-- begin NAME -->` and `<!-- end NAME -->`.

    python -m benchmarks.report                    render all pages, including those of the studies
    python -m benchmarks.report render DIR         render into DIR/docs, to compare with the current pages
    python -m benchmarks.report merge FILE …       add results from another machine, then render
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import importlib
import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import records
from rl_training.processor import BLAS, product_library

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
output = ROOT  # root folder of the pages to write
README = "README"
# Each program's results, and the module that renders them.
PROGRAMS = {
    **{
        name: f"benchmarks.speed.{name}"
        for name in (
            "updates",
            "population",
            "rounding",
            "seeds",
            "training",
            "steps",
            "stepping",
            "online",
            "minutes",
            "overhead",
            "startup",
            "data_sizes",
            "export",
        )
    },
    "parity": "benchmarks.parity.__main__",
    "choosing": "benchmarks.evidence.choosing",
    "success": "benchmarks.evidence.success",
    "ogbench_data": "benchmarks.ogbench_data",
    "ope": "benchmarks.evidence.ope",
}
COMMIT, UNKNOWN = "RL_TRAINING_COMMIT", "unknown"
_PACKAGES = ("torch", "numpy", "gymnasium", "mujoco", "stable_baselines3", "sb3_contrib")

Entry = dict[str, Any]
# The output of a program: (document, section name) -> markdown. A document is `README` or a page of docs/.
Sections = dict[tuple[str, str], str]


def name_of(root: Path) -> str:
    """The commit, marked if files have changed since."""
    asked = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return UNKNOWN
    return answer.stdout.strip() or UNKNOWN


def commit() -> str:
    """The current commit, from the environment variable if it is set, otherwise from the repository."""
    return os.environ.get(COMMIT) or name_of(ROOT)


def versions() -> dict[str, str]:
    """Versions of Python and of installed packages that affect speed or results."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine(device: str) -> str:
    """Description of the machine: available cores, and the GPU if the measurement used one."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    words = f"{cores} CPU core{'s' * (cores != 1)}"
    return f"{torch.cuda.get_device_name(0)}, {words}" if device.startswith("cuda") else words


def stamp(device: str) -> Entry:
    """Common fields of all entries: machine, versions and date."""
    own = {"products": "by oneDNN"} if device == "cpu" and product_library() != BLAS else {}
    return {
        "date": datetime.date.today().isoformat(),
        "checkout": commit(),
        "device": device,
        "machine": machine(device),
        "versions": versions() | own,
        "threads": torch.get_num_threads(),
    }


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options common to all programs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write results to this file and do not change the documentation")
    return parser


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class Results:
    """The entries of one program, written to disk one by one."""

    def __init__(self, program: str, path: Path | None = None) -> None:
        self.program = program
        self.elsewhere = path is not None
        self.path = path or RESULTS / f"{program}.json"

    def load(self) -> dict[str, Entry]:
        content = records.read(self.path)
        return {} if content is None else content["entries"]

    def add(self, entries: dict[str, Entry]) -> None:
        """Add or replace entries; safe if another process does the same."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # until it is closed
            merged = {**self.load(), **entries}
            records.write(self.path, {"program": self.program, "entries": dict(sorted(merged.items()))})
        finally:
            os.close(folder)

    def render(self, sections: Callable[[dict[str, Entry]], Sections]) -> None:
        """Write the program's sections; results outside the repository are rendered by `merge`."""
        if self.elsewhere:
            print(f"\nresults in {self.path}; add them to the documentation with "
                  f"`python -m benchmarks.report merge {self.path}`")  # fmt: skip
            return
        write_sections(sections(self.load()))

    def show(self, sections: Callable[[dict[str, Entry]], Sections]) -> None:
        """Print the program's sections, then write them."""
        for text in sections(self.load()).values():
            print(f"\n{text}")
        self.render(sections)


def path_of(document: str) -> Path:
    return output / (f"{README}.md" if document == README else f"docs/{document}.md")


def write_sections(sections: Sections) -> None:
    """Replace each marked section of its document, or append it."""
    for (document, name), text in sections.items():
        path = path_of(document)
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        block = f"{begin}\n{text.strip()}\n{end}"
        marked = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        place = marked.search(old)
        start, stop = place.span() if place else (0, 0)
        new = f"{old[:start]}{block}{old[stop:]}" if place else f"{old.rstrip()}\n\n{block}\n".lstrip()
        path.write_text(new, encoding="utf-8")
        print(f"wrote section {name!r} of {path.relative_to(output)}")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def number(value: float | None, digits: int = 3) -> str:
    """`12345.6` as `12,300`: as many digits as the measurement is worth; `–` for nothing."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10**digits else f"{rounded:.{digits}g}"


def returns(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


def spread(values: Sequence[float]) -> str:
    """Mean and, for several values, their standard deviation."""
    mean = statistics.fmean(values)
    return f"{mean:,.0f}" if len(values) < 2 else f"{mean:,.0f} ± {statistics.stdev(values):,.0f}"


def origins(entries: Iterable[Entry]) -> str:
    """Dates, machines and versions of a table, without repetitions."""
    entries = list(entries)
    dates = sorted({e["date"] for e in entries})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    where = " · ".join(sorted({e["machine"] for e in entries}))
    used: dict[str, set[str]] = {}
    for entry in entries:
        for name, version in entry["versions"].items():
            used.setdefault(name, set()).add(version)
    listed = ", ".join(f"{name} {' / '.join(sorted(found))}" for name, found in used.items())
    commits = sorted({entry["checkout"] for entry in entries if "checkout" in entry})
    at = f", at {', '.join(commits)}" if commits else ""
    return f"Measured {when} on {where}{at}; {listed}."


def checkouts_said(peers: Iterable[Entry]) -> list[str]:
    """A paragraph for each library from a checkout: versions, how it was run, and notes on single algorithms. A
    peer is named `library` or `library:algorithm`."""
    found: dict[str, list[str]] = {}
    for peer in peers:
        library, _, title = peer["peer"].partition(":")
        versions = ", ".join(f"{name} {version}" for name, version in peer["peer_versions"].items())
        notes = found.setdefault(f"{library} ({versions}): {peer['how']}.", [])
        note = f"{title}: {peer['note']}." if peer.get("note") else ""
        if note and note not in notes:
            notes.append(note)
    return [" ".join([line, *notes]) + "\n" for line, notes in found.items()]


def main(arguments: Sequence[str]) -> None:
    global output
    command, *places = arguments or ["render"]
    if command not in ("merge", "render") or (command == "render" and len(places) > 1):
        sys.exit(__doc__)
    if command == "render" and places:
        output, places = Path(places[0]), []
    for name in places:
        content = records.read(Path(name))
        Results(content["program"]).add(content["entries"])
        print(f"added {len(content['entries'])} entries of {content['program']} from {name}")
    for program, module in PROGRAMS.items():
        results = Results(program)
        if results.path.is_file():
            results.render(importlib.import_module(module).sections)
    for module in ("benchmarks.speed.summary", "benchmarks.evidence.rendering"):
        importlib.import_module(module).render()


if __name__ == "__main__":
    from benchmarks import report

    report.main(sys.argv[1:])  # the imported module, whose globals the programs share, not `__main__`
