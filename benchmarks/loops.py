"""References out of checkouts that are given, timed inside their own training loops, each in a process of its own.

CORL (github.com/tinkoff-ai/CORL) is torch, Unifloral (github.com/EmptyJackson/unifloral) JAX. Nothing of theirs is
kept here: `corl_peer` and `unifloral_peer` run their scripts as they stand and hold them up between blocks. A case
has such a peer where the script's networks are the case's.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cases import THREE, TWO, Case, random_rows
from benchmarks.checkouts import commit_of
from benchmarks.peers import Spoken, with_paths
from benchmarks.report import ROOT
from benchmarks.timing import Rates, ratios_of

# How a library was run, said under the tables.
CORL = "`train` of its files as it stands, on its replay buffer on the device, without evaluation and logging"
UNIFLORAL = (
    "its scripts as they stand, without evaluation, whole scans of updates (2,500 steps on a GPU, as they "
    "are set to; 25 on a CPU); JAX multiplies in float32 where the row says so, else as it does by default"
)


@dataclass(frozen=True)
class Loop:
    """One script. `fits` says whether its networks are a case's, `settings` what it is told of the case."""

    title: str
    file: str
    fits: Callable[[Case], bool]
    settings: Callable[[Case], dict[str, Any]] = lambda _: {}
    note: str = ""


def _three_equal(case: Case) -> bool:
    return len(case.hidden) == 3 and len(set(case.hidden)) == 1


def _two_256(case: Case) -> bool:
    return case.hidden == TWO


def _three_256(case: Case) -> bool:
    return case.hidden == THREE


def _critics(case: Case) -> dict[str, Any]:
    return {"num_critics": case.settings["num_critics"]}


_SAME_BATCH = "two critic updates and one of the actor on one batch, counted as two updates"
LOOPS = {
    "CORL": {
        "td3_bc": Loop("TD3+BC", "td3_bc", _two_256, note="networks fixed at 256×2"),
        "iql": Loop("IQL", "iql", _two_256, note="networks fixed at 256×2"),
        "cql": Loop("CQL", "cql", _three_256, note="actor fixed at 256×3, so beside that case alone"),
        "awac": Loop(
            "AWAC",
            "awac",
            _three_equal,
            lambda case: {"hidden_dim": case.hidden[0]},
            "its Gaussian has one std for all states and is not squashed",
        ),
        "edac": Loop(
            "EDAC",
            "edac",
            _three_equal,
            lambda case: {"hidden_dim": case.hidden[0], "num_epochs": 1} | _critics(case),
        ),
    },
    "Unifloral": {
        "td3_bc": Loop("TD3+BC", "td3_bc", _two_256, note=f"networks fixed at 256×2; {_SAME_BATCH}"),
        "iql": Loop("IQL", "iql", _two_256, note="networks fixed at 256×2"),
        "edac": Loop("EDAC", "edac", _three_256, _critics, "networks fixed at 256×3"),
    },
}


@dataclass(frozen=True)
class Library:
    """A checkout and the program that runs its scripts."""

    name: str
    checkout: Path
    python: str
    program: str
    how: str


def libraries(corl: Path | None, unifloral: Path | None, jax_python: str | None) -> list[Library]:
    """Those whose checkouts are given."""
    given = []
    if corl is not None:
        given.append(Library("CORL", corl, sys.executable, "corl_peer", CORL))
    if unifloral is not None:
        given.append(Library("Unifloral", unifloral, jax_python or sys.executable, "unifloral_peer", UNIFLORAL))
    missing = [f"{library.checkout}" for library in given if not (library.checkout / "algorithms").is_dir()]
    if missing:
        raise SystemExit(f"no checkout with a folder `algorithms`: {', '.join(missing)}")
    return given


class LoopUpdates(Spoken):
    """Updates inside the loop of a script, on the case's random rows."""

    def __init__(
        self, library: Library, loop: Loop, case: Case, device: torch.device, *, batch: int, tf32: bool
    ) -> None:
        super().__init__([library.python, "-m", f"benchmarks.{library.program}"], with_paths(ROOT))
        self.library, self.loop = library, loop
        columns = case.layout.unpack(random_rows(case.layout))
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "rows.npz"
            np.savez(
                data,
                observations=columns.obs.numpy(),
                actions=columns.actions.numpy(),
                rewards=columns.rewards.numpy(),
                next_observations=columns.next_obs.numpy(),
                terminals=columns.dones.numpy(),
            )
            answer = self.ask(
                {
                    "checkout": str(library.checkout.resolve()),
                    "file": loop.file,
                    "settings": loop.settings(case),
                    "data": str(data),
                    "batch": batch,
                    "device": str(device),
                    "threads": torch.get_num_threads(),
                    "tf32": tf32,
                }
            )
        self.versions: dict[str, str] = answer["versions"]
        self.period: int | None = answer["period"]

    def run(self, count: int) -> None:
        self.ask(count)

    def entry(self, ours: Rates, theirs: Rates) -> dict[str, Any]:
        """What is kept of it, beside our rates of the same blocks."""
        return {
            "peer": f"{self.library.name}:{self.loop.title}",
            "peer_rate": theirs.median,
            "peer_blocks": theirs.blocks,
            "peer_versions": {"checkout": commit_of(self.library.checkout), **self.versions},
            "how": self.library.how,
            "note": self.loop.note,
        } | ratios_of(ours, theirs)


def connect(
    given: list[Library], case: Case, device: torch.device, *, batch: int, tf32: bool
) -> tuple[dict[str, LoopUpdates], list[str]]:
    """Every loop of the libraries that fits the case, by the library's name; and why others could not be run."""
    found: dict[str, LoopUpdates] = {}
    left_out = []
    for library in given:
        loop = LOOPS[library.name].get(case.algo)
        if loop is None or not loop.fits(case):
            continue
        try:
            found[library.name] = LoopUpdates(library, loop, case, device, batch=batch, tf32=tf32)
        except RuntimeError as error:
            left_out.append(f"{library.name} {loop.title}: {error}")
            print(left_out[-1], flush=True)
    return found, left_out
