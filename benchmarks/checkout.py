"""Another checkout of this package beside the present one: is it as fast as it was?

`--against PATH` of `benchmarks.updates` and `benchmarks.training`. PATH is a checkout of any commit whose learners
take the settings of the case or config, before or after `accelerate` and `RunOptions` were there. Three processes,
each with the `src` of its checkout, do the same work in turn, block by block: the present checkout, the other one,
and the other one again. The difference between the last two is the noise in a ratio of the first two. The programs
themselves and what they measure are the present ones on every side.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import rl_training
from benchmarks import cases, peers
from benchmarks.report import ROOT, Entry, name_of, number
from benchmarks.timing import Rates, Runs, alternate, in_turn, wait
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, resolve
from rl_training.memory import keep_freed_memory
from rl_training.runs.callbacks import Callback
from rl_training.updates import updater as running

BLOCKS = 21
NEW, OLD, AGAIN = "new", "old", "old again"
Answer = Callable[[Any], None]


class Checkout(peers.Spoken):
    """The work of one order done by the package of a checkout."""

    def __init__(self, root: Path, order: dict[str, Any]) -> None:
        source = (root / "src").resolve()
        super().__init__([sys.executable, "-m", "benchmarks.checkout"], peers.with_paths(source, ROOT))
        found = Path(self.ask(order))
        if source not in found.parents:
            raise SystemExit(f"{root} is no checkout of this package: {found} was imported in its place")

    def run(self, count: int) -> None:
        self.ask(count)


def compare(path: Path, order: dict[str, Any], measure: Callable[[dict[str, Runs]], dict[str, Rates]]) -> Entry:
    """The present checkout, the other, and the other again: rates and their ratios, block by block."""
    roots = {NEW: ROOT, OLD: path, AGAIN: path}
    with ExitStack() as stack:
        rates = measure({name: stack.enter_context(Checkout(root, order)) for name, root in roots.items()})
    entry: Entry = {"kind": "against", "checkout": name_of(ROOT), "other_checkout": name_of(path)}
    for name, side in (("", NEW), ("other_", OLD), ("again_", AGAIN)):
        entry |= {f"{name}rate": rates[side].median, f"{name}blocks": rates[side].blocks}
    return entry | {"ratio": ratios(rates[NEW], rates[OLD]), "noise": ratios(rates[AGAIN], rates[OLD])}


def ratios(one: Rates, other: Rates) -> dict[str, float]:
    """Over pairs of blocks: the median, the quartiles, the smallest and the largest."""
    found = [a / b for a, b in zip(one.blocks, other.blocks)]
    low, median, high = statistics.quantiles(found, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high, "min": min(found), "max": max(found)}


def said(entry: Entry, unit: str) -> str:
    """One line for people."""

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
    """Updates per second of a case; `timing` holds the seconds of each side and the number of blocks."""
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
    """Steps per second inside one run of each side, from step `settled` on: `count` of each side in all."""
    settings = resolve(config).to_dict()
    period = math.lcm(config.num_envs, settings["train_frequency"])  # a block holds whole portions of updates
    size = max(1, round(count / blocks / period)) * period
    chosen = config.model_dump(exclude_defaults=True)  # the other checkout may not know every field
    fields = {name: value for name, value in config.to_dict().items() if name in chosen}
    order = {"config": fields, "settled": settled}
    return compare(path, order, lambda sides: in_turn(sides, dict.fromkeys(sides, size), blocks))


# The other end of the pipe, where `rl_training` may be of another commit than this file.


def serve() -> None:
    """Make what the first line orders, then as many updates or steps as each further line asks for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no answer

    def answer(what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    lines = map(json.loads, sys.stdin)
    order = next(lines)
    (_serve_steps if "config" in order else _serve_updates)(order, lines, answer)


def _serve_updates(order: dict[str, Any], counts: Iterator[int], answer: Answer) -> None:
    device = torch.device(order["device"])
    torch.set_num_threads(order["threads"])
    if device.type == "cpu":
        keep_freed_memory()
    running.set_precision(order["tf32"])
    (case,) = cases.find([order["case"]], tuple(order["hidden"]))
    updater = _updater(case, device, order["acceleration"], order["batch"])
    answer(rl_training.__file__)
    for count in counts:
        updater.run(count)
        wait()
        answer(count)


def _updater(case: cases.Case, device: torch.device, acceleration: Any, batch: int) -> Runs:
    if hasattr(running, "accelerate"):
        return cases.updater(case, device, acceleration=acceleration, batch=batch)
    learner = cases.build(case, device)
    earlier: Any = running.Updater  # it was given the mode itself
    updater: Runs = earlier(learner, cases.source(case, learner), batch, mode=acceleration)
    return updater


class Blocks(Callback):
    """Holds a run up after each block of steps until the next one is asked for; stops it after the last."""

    def __init__(self, settled: int, counts: Iterator[int], answer: Answer) -> None:
        self.until: float = settled
        self.counts, self.answer = counts, answer
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


def _serve_steps(order: dict[str, Any], counts: Iterator[int], answer: Answer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(**order["config"]).replace(output_dir=folder)
        train, blocks = get_algorithm_spec(config.algo).train, Blocks(order["settled"], counts, answer)
        try:
            options = {"options": importlib.import_module("rl_training.runs.spec").RunOptions(quiet=True)}
        except ModuleNotFoundError:  # version 0.2
            options = {"launch": importlib.import_module("rl_training.runtime.run").Launch(quiet=True)}
        train(config, callbacks=[blocks], **options)


if __name__ == "__main__":
    serve()
