"""Options and process settings shared by the programs that measure updates."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks import report
from benchmarks.report import Entry
from rl_training.runs.building import choose_device, prepare_process
from rl_training.updates.updater import choose, set_precision


def arguments(description: str | None, *, seconds: float) -> argparse.ArgumentParser:
    """A parser with the common options; `seconds` is the default of `--seconds`."""
    parser = report.arguments(description)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tf32", action="store_true")
    parser.set_defaults(bf16=False)  # only programs that record it have the option
    parser.add_argument("--acceleration", default="auto", choices=("auto", "eager", "compile", "graph"))
    parser.add_argument("--seconds", type=float, default=seconds, help="seconds of each contender in each case")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, help="CPU threads of every contender")
    return parser


def prepare(options: argparse.Namespace) -> tuple[torch.device, Entry, str]:
    """The device, a description of the machine, and a key that identifies both."""
    device = choose_device(options.device)
    prepare_process(device)
    if options.threads:
        torch.set_num_threads(options.threads)
    options.tf32 |= options.bf16
    set_precision(options.tf32, options.bf16)
    stamp = report.stamp(str(device))
    where = stamp["machine"] if device.type == "cuda" else f"{stamp['machine']}/{stamp['threads']} threads"
    return device, stamp, f"{where}/{precision_of(vars(options)).lower()}/{choose(options.acceleration, device)}"


def precision_of(entry: Mapping[str, Any]) -> str:
    """Precision of the matrix products."""
    return "bf16" if entry.get("bf16") else "TF32" if entry["tf32"] else "float32"
