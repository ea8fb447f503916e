"""Compare the speed of this checkout with another one, in interleaved blocks.

Implements `--against PATH` of `benchmarks.speed.updates` and `benchmarks.speed.training`. PATH is a checkout of a
commit that contains one of `PROGRAMS` and whose learners accept the settings of the case or configuration.

Three processes do the same work in turn, block by block: this checkout, the other one, and the other one again.
Each imports `src` and `benchmarks` from its own checkout. The difference between the last two is the noise of the
ratio of the first two.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import rl_training
from benchmarks.peers.protocol import Orders, Process, with_paths
from benchmarks.report import ROOT, Entry, name_of, number
from benchmarks.runs import seconds_of_run
from benchmarks.speed import cases
from benchmarks.speed.timing import Rates, Runs, alternate, in_turn, wait
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.memory import keep_freed_memory
from rl_training.runs.callbacks import Callback
from rl_training.updates import updater as running

BLOCKS = 21
NEW, OLD, AGAIN = "new", "old", "old again"
# The module to run: its current name, and its name in earlier commits.
PROGRAMS = ("benchmarks.speed.against", "benchmarks.checkout")


class Checkout(Process):
    """Process that does the work of one order with the programs of a checkout."""

    def __init__(self, root: Path, order: dict[str, Any]) -> None:
        root = root.resolve()
        known = [name for name in PROGRAMS if (root / f"{name.replace('.', '/')}.py").is_file()]
        if not known:
            raise SystemExit(f"{root} is not a checkout of this package that has {' or '.join(PROGRAMS)}")
        super().__init__(sys.executable, known[0], with_paths(root / "src", root), cwd=root)
        found = Path(self.ask(order))
        if root / "src" not in found.parents:
            raise SystemExit(f"{root}: {found} was imported instead of its package")


def compare(path: Path, order: dict[str, Any], measure: Callable[[dict[str, Runs]], dict[str, Rates]]) -> Entry:
    """Rates of this checkout, the other one, and the other one again, and their ratios, block by block."""
    roots = {NEW: ROOT, OLD: path, AGAIN: path}
    with ExitStack() as stack:
        rates = measure({name: stack.enter_context(Checkout(root, order)) for name, root in roots.items()})
    entry: Entry = {"kind": "against", "checkout": name_of(ROOT), "other_checkout": name_of(path)}
    for name, side in (("", NEW), ("other_", OLD), ("again_", AGAIN)):
        entry |= {f"{name}rate": rates[side].median, f"{name}blocks": rates[side].blocks}
    return entry | {"ratio": ratios(rates[NEW], rates[OLD]), "noise": ratios(rates[AGAIN], rates[OLD])}


def ratios(one: Rates, other: Rates) -> dict[str, float]:
    """Median, quartiles, minimum and maximum of the ratio over pairs of blocks."""
    found = [a / b for a, b in zip(one.blocks, other.blocks)]
    low, median, high = statistics.quantiles(found, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high, "min": min(found), "max": max(found)}


def said(entry: Entry, unit: str) -> str:
    """Format the result as one line."""

    def words(r: dict[str, float]) -> str:
        half, every = f"{r['low']:.3f} to {r['high']:.3f}", f"{r['min']:.2f} to {r['max']:.2f}"
        return f"{r['median']:.3f} (half within {half}, all within {every})"

    return (
        f"{number(entry['rate'])} {unit}, {entry['other_checkout']} {number(entry['other_rate'])}; "
        f"new/old {words(entry['ratio'])}; old/old {words(entry['noise'])}"
    )


def updates(
    path: Path, case: cases.Case, device: torch.device, *, acceleration: str, tf32: bool, batch: int, **timing: Any
) -> Entry:
    """Updates per second of a case; `timing` contains the seconds for each side and the number of blocks."""
    order = {
        "case": case.name,
        "hidden": list(case.hidden),
        "device": str(device),
        "acceleration": acceleration,
        "tf32": tf32,
        "batch": batch,
        "threads": torch.get_num_threads(),
    }
    return order | compare(path, order, lambda sides: alternate(sides, period=case.period, **timing))


def steps(path: Path, config: TrainConfig, *, settled: int, count: int, blocks: int) -> Entry:
    """Steps per second inside one run of each side, from step `settled` on; `count` is the total per side."""
    settings = resolve(config).to_dict()
    period = math.lcm(config.num_envs, settings["train_frequency"])  # a block contains whole rounds of updates
    size = max(1, round(count / blocks / period)) * period
    chosen = config.model_dump(exclude_defaults=True)  # the other checkout may not have every field
    fields = {name: value for name, value in config.to_dict().items() if name in chosen}
    order = {"config": fields, "settled": settled}
    return compare(path, order, lambda sides: in_turn(sides, dict.fromkeys(sides, size), blocks))


# The process of a checkout.


def serve() -> None:
    """Execute the order; each further input line is a number of updates or steps to make."""
    orders = Orders()
    (_serve_steps if "config" in orders.order else _serve_updates)(orders)


def _serve_updates(orders: Orders) -> None:
    order = orders.order
    device = torch.device(order["device"])
    torch.set_num_threads(order["threads"])
    if device.type == "cpu":
        keep_freed_memory()
    running.set_precision(order["tf32"])
    (case,) = cases.find([order["case"]], tuple(order["hidden"]))
    updater = cases.updater(case, device, acceleration=order["acceleration"], batch=order["batch"])
    orders.answer(rl_training.__file__)

    def run(count: int) -> None:
        updater.run(count)
        wait()

    orders.serve(run)


class Blocks(Callback):
    """Callback that pauses a run after each block of steps until the next one is requested, and ends it after the
    last."""

    def __init__(self, orders: Orders) -> None:
        self.until: float = orders.order["settled"]
        self.counts, self.answer = orders.counts(), orders.answer
        self.reply: Any = rl_training.__file__

    def on_step(self, session: Any) -> None:
        if session.clock.global_step < self.until:
            return
        wait()
        self.answer(self.reply)
        count = next(self.counts, None)
        if count is None:
            session.stop("no more steps were asked for")
            self.until = math.inf
        else:
            self.until += count
            self.reply = count


def _serve_steps(orders: Orders) -> None:
    seconds_of_run(TrainConfig(**orders.order["config"]), Blocks(orders))


if __name__ == "__main__":
    serve()
