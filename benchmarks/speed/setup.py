"""Shared parts of programs that measure updates: options, and the preparation of the process as in a run."""

from __future__ import annotations

import argparse

import torch

from benchmarks import report
from benchmarks.report import Entry
from rl_training.runs.building import choose_device, prepare_process
from rl_training.updates.updater import choose, set_precision


def arguments(description: str | None, *, seconds: float) -> argparse.ArgumentParser:
    """A parser with the options of all of them; `seconds` is the default of `--seconds`."""
    parser = report.arguments(description)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--acceleration", default="auto", choices=("auto", "eager", "compile", "graph"))
    parser.add_argument("--seconds", type=float, default=seconds, help="of each contender in each case")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, help="CPU threads of every contender")
    return parser


def prepare(options: argparse.Namespace) -> tuple[torch.device, Entry, str]:
    """The device, facts about the machine, and a key that names both."""
    device = choose_device(options.device)
    prepare_process(device)
    if options.threads:
        torch.set_num_threads(options.threads)
    set_precision(options.tf32)
    stamp = report.stamp(str(device))
    where = stamp["machine"] if device.type == "cuda" else f"{stamp['machine']}/{stamp['threads']} threads"
    precision = "tf32" if options.tf32 else "float32"
    return device, stamp, f"{where}/{precision}/{choose(options.acceleration, device)}"
