"""Run the updates of a reference, in this process or in another Python environment."""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.parity import by_hand, normalizing, references
from benchmarks.parity.lockstep import Noise, Tensors, Trace, load_trace, save_given
from benchmarks.parity.references import Build
from benchmarks.peers.checkouts import commit_of
from benchmarks.report import ROOT

# CORL's ReBRAC normalises layers with flax's default.
EPSILON = 1e-6
# Inputs: our configuration and weights, and a batch and the draws of every update.
Inputs = tuple[Any, Tensors, Sequence[Any], Sequence[Noise]]
# Results of the reference, and its versions.
Outcome = tuple[Trace, dict[str, str]]


def play_redq(options: argparse.Namespace, inputs: Inputs) -> Outcome:
    return references.play_redq(options.redq, *inputs), {"REDQ": commit_of(options.redq)}


def play_corl(file: str, build: Build, options: argparse.Namespace, inputs: Inputs) -> Outcome:
    return references.play_corl(options.corl, file, build, *inputs), {"CORL": commit_of(options.corl)}


def play_process(python: Path, program: str, words: Sequence[str], inputs: Inputs) -> Outcome:
    """Run a reference in another Python environment."""
    _, networks, batches, draws = inputs
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "given.npz", Path(folder) / "answer.npz"
        save_given(given, networks, batches, draws)
        done = subprocess.run(
            [python, "-m", program, *words, given, answer], cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"{program} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return load_trace(answer), json.loads(done.stdout)


def play_d3rlpy(
    algo: str, names: Mapping[str, str], fixed: Mapping[str, Any], options: argparse.Namespace, inputs: Inputs
) -> Outcome:
    """Run d3rlpy; `names` maps our settings to d3rlpy's."""
    settings = {theirs: getattr(inputs[0], ours) for ours, theirs in names.items()} | dict(fixed)
    words = [algo, json.dumps(settings)]
    return play_process(options.d3rlpy_python, "benchmarks.parity.d3rlpy_lockstep", words, inputs)


def play_rebrac(options: argparse.Namespace, inputs: Inputs) -> Outcome:
    settings = inputs[0].model_dump() | {"layer_norm_epsilon": EPSILON}
    words = [str(options.corl), json.dumps(settings)]
    trace, versions = play_process(options.jax_python, "benchmarks.parity.rebrac_lockstep", words, inputs)
    return trace, {"CORL": commit_of(options.corl)} | versions


def play_cal_ql(options: argparse.Namespace, inputs: Inputs) -> Outcome:
    words = [str(options.cal_ql), json.dumps(inputs[0].model_dump())]
    trace, versions = play_process(options.jax_python, "benchmarks.parity.cal_ql_lockstep", words, inputs)
    return trace, {"Cal-QL": commit_of(options.cal_ql)} | versions


def play_fql(options: argparse.Namespace, inputs: Inputs) -> Outcome:
    words = [str(options.fql), json.dumps(inputs[0].model_dump())]
    trace, versions = play_process(options.jax_python, "benchmarks.parity.fql_lockstep", words, inputs)
    return trace, {"FQL": commit_of(options.fql)} | versions


def play_flash_sac(options: argparse.Namespace, inputs: Inputs) -> Outcome:
    return normalizing.play_flash_sac(options.flash_sac, *inputs), {"FlashSAC": commit_of(options.flash_sac)}


def play_crossq(epsilon: bool, _: argparse.Namespace, inputs: Inputs) -> Outcome:
    return normalizing.play_crossq(epsilon, *inputs), {}


def play_by_hand(build: by_hand.Build, _: argparse.Namespace, inputs: Inputs) -> Outcome:
    return by_hand.play(build, *inputs), {}
