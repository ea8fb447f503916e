"""Scripts of CORL and Unifloral, and the agents of FlashSAC and FQL, from checkouts, each in its own process.

Their code is not stored here. Scripts run unchanged and are paused between blocks of updates; agents are called for
updates. A case has such a peer if the script has the same networks. CORL's policies are evaluated by this package's
evaluator.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.checkouts import commit_of
from benchmarks.peers.d3rlpy import D3rlpyLearner, write_rows
from benchmarks.peers.protocol import Evaluated, Process
from benchmarks.peers.sb3 import SB3Updates, installed
from benchmarks.speed.cases import THREE, TWO, Case, random_rows
from benchmarks.speed.timing import Rates, ratios_of
from rl_training.data.transitions import TransitionBatch
from rl_training.experiment.strict_yaml import parse_yaml

# How a library was run; printed under the tables.
CORL = "`train` of its files as it stands, on its replay buffer on the device, without evaluation and logging"
CORL_JAX = "`main` of its file as it stands, in JAX in float32, without evaluation"
UNIFLORAL = (
    "its scripts unchanged, without evaluation, whole scans of updates (2,500 steps on a GPU, their setting; 25 on "
    "a CPU); JAX products are in float32, or in its default precision if the row says TF32"
)
FLASHSAC = (
    "`update()` of its agent with the settings of its file, its buffer on the device; TF32 if the row says so, "
    "as its `train.py` sets it"
)
FQL = (
    "`update` of its agent with the settings of its file, in JAX; minibatches are drawn on the host, as in its "
    "`main.py`; products are in float32, or in JAX's default precision if the row says TF32"
)
# Fields of published files that concern a single run: its names and folders.
_OF_THE_RUN = {
    "batch_size", "buffer_size", "checkpoints_path", "device", "eval_freq", "group", "load_model", "max_timesteps",
    "n_episodes", "name", "project", "seed",
}  # fmt: skip


@dataclass(frozen=True)
class Loop:
    """One script. `fits`: whether its networks equal those of a case; `settings`: settings to pass on from the
    case."""

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


def _flash_sac(title: str, note: str = "", **settings: Any) -> Loop:
    """One way to run FlashSAC's agent; `settings` override those of its file."""
    return Loop(title, "", lambda _: True, lambda _: settings, note)


_SAME_BATCH = "two critic updates and one of the actor on one batch, counted as two updates"
LOOPS = {
    "CORL": {
        "td3_bc": Loop("TD3+BC", "td3_bc", _two_256, note="networks fixed at 256×2"),
        "iql": Loop("IQL", "iql", _two_256, note="networks fixed at 256×2"),
        "cql": Loop("CQL", "cql", _three_256, note="actor fixed at 256×3, so compared in that case only"),
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
        "rebrac": Loop("ReBRAC", "rebrac", lambda _: False, note="LayerNorm after the ReLU"),  # not timed
    },
    "Unifloral": {
        "td3_bc": Loop("TD3+BC", "td3_bc", _two_256, note=f"networks fixed at 256×2; {_SAME_BATCH}"),
        "iql": Loop("IQL", "iql", _two_256, note="networks fixed at 256×2"),
        "edac": Loop("EDAC", "edac", _three_256, _critics, "networks fixed at 256×3"),
    },
    "FlashSAC": {
        "flash_sac/eager": _flash_sac("eager", use_compile=False, use_amp=False),
        "flash_sac/compiled": _flash_sac("compiled", "in the mode it chooses by torch's version", use_amp=False),
        "flash_sac/compiled float16": _flash_sac("compiled float16", "mixed precision, as its file says"),
        "flash_sac/reduce-overhead": _flash_sac(
            "reduce-overhead", "compiled in this mode", compile_mode="reduce-overhead", use_amp=False
        ),
        "flash_sac/reduce-overhead float16": _flash_sac("reduce-overhead float16", compile_mode="reduce-overhead"),
    },
    "FQL": {
        "fql": Loop(
            "JAX",
            "",
            lambda _: True,
            lambda case: {"actor_hidden_dims": case.hidden, "value_hidden_dims": case.hidden},
        )
    },
}


@dataclass(frozen=True)
class Library:
    """A checkout and the module that runs its scripts."""

    name: str
    checkout: Path
    python: str
    module: str
    how: str
    folder: str = "algorithms"  # that a checkout has
    ways: tuple[str, ...] = ()  # the selected ways to run it


def libraries(
    corl: Path | None,
    unifloral: Path | None,
    jax_python: str | None,
    flashsac: Path | None = None,
    ways: Sequence[str] = (),
    fql: Path | None = None,
) -> list[Library]:
    """The libraries whose checkouts are given; `ways` are the ways to run FlashSAC."""
    given, jax = [], jax_python or sys.executable
    if corl is not None:
        given.append(Library("CORL", corl, sys.executable, "benchmarks.peers.corl", CORL))
    if unifloral is not None:
        given.append(Library("Unifloral", unifloral, jax, "benchmarks.peers.unifloral", UNIFLORAL))
    if flashsac is not None:
        module = "benchmarks.peers.flashsac"
        given.append(Library("FlashSAC", flashsac, sys.executable, module, FLASHSAC, "flash_rl", tuple(ways)))
    if fql is not None:
        given.append(Library("FQL", fql, jax, "benchmarks.peers.fql", FQL, "agents"))
    for library in given:
        if not (library.checkout / library.folder).is_dir():
            raise SystemExit(f"no checkout with a folder `{library.folder}`: {library.checkout}")
    return given


class Script(Process):
    """A script of a checkout on given rows, paused between blocks of updates."""

    def __init__(
        self,
        library: Library,
        loop: Loop,
        columns: TransitionBatch,
        device: torch.device,
        *,
        batch: int,
        settings: dict[str, Any],
        tf32: bool = False,
        within: float | None = None,
    ) -> None:
        super().__init__(library.python, library.module)
        self.library, self.loop = library, loop
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "rows.npz"
            more = {} if columns.next_actions is None else {"next_actions": columns.next_actions.numpy()}
            np.savez(
                data,
                observations=columns.obs.numpy(),
                actions=columns.actions.numpy(),
                rewards=columns.rewards.numpy(),
                next_observations=columns.next_obs.numpy(),
                terminals=columns.dones.numpy(),
                **more,  # type: ignore[arg-type]
            )
            answer = self.ask(
                {
                    "checkout": str(library.checkout.resolve()),
                    "file": loop.file,
                    "settings": settings,
                    "data": str(data),
                    "batch": batch,
                    "device": str(device),
                    "threads": torch.get_num_threads(),
                    "tf32": tf32,
                },
                within,
            )
        self.versions: dict[str, str] = {"checkout": commit_of(library.checkout), **answer["versions"]}
        self.period: int | None = answer["period"]

    def about(self) -> dict[str, Any]:
        """Which it is and how it was run."""
        return {
            "peer": f"{self.library.name}:{self.loop.title}",
            "peer_versions": self.versions,
            "how": self.library.how,
            "note": self.loop.note,
        }


class LoopUpdates(Script):
    """Updates inside a script's loop, on the case's random rows."""

    def __init__(
        self,
        library: Library,
        loop: Loop,
        case: Case,
        device: torch.device,
        *,
        batch: int,
        tf32: bool,
        within: float | None = None,
    ) -> None:
        columns, settings = case.layout.unpack(random_rows(case.layout)), loop.settings(case)
        super().__init__(library, loop, columns, device, batch=batch, settings=settings, tf32=tf32, within=within)

    def entry(self, ours: Rates, theirs: Rates) -> dict[str, Any]:
        """The peer's fields to store, with our rates in the same blocks."""
        return {
            **self.about(),
            "peer_rate": theirs.median,
            "peer_blocks": theirs.blocks,
        } | ratios_of(ours, theirs)


class CorlLearner(Evaluated, Script):
    """One of CORL's algorithms on rows with actions in [-1, 1], as in D4RL; also a policy for this package's
    evaluator. `settings` are fields of its `TrainConfig`; `jax_python` runs ReBRAC."""

    def __init__(
        self,
        checkout: Path,
        algo: str,
        columns: TransitionBatch,
        device: torch.device,
        *,
        batch: int,
        settings: dict[str, Any],
        jax_python: str | None = None,
    ) -> None:
        (library,) = libraries(checkout, None, None)
        if algo == "rebrac":
            python = jax_python or sys.executable
            library = replace(library, python=python, module="benchmarks.peers.corl_jax", how=CORL_JAX)
        super().__init__(library, LOOPS["CORL"][algo], columns, device, batch=batch, settings=settings)

    def mode(self, obs: Tensor) -> Tensor:
        return torch.tensor(self.act(obs.tolist()), dtype=torch.float32)


def published_settings(checkout: Path, algo: str, task: str, quality: str) -> dict[str, Any] | None:
    """CORL's published settings for a D4RL data set (`hopper`, `medium-expert`), without those that concern a
    single run; None if the checkout has none."""
    path = checkout / "configs" / "offline" / algo / task / f"{quality.replace('-', '_')}_v2.yaml"
    if not path.is_file():
        return None
    found: dict[str, Any] = parse_yaml(path.read_text(encoding="utf-8"), str(path)).value
    return {name: value for name, value in found.items() if name not in _OF_THE_RUN}


def connect_installed(case: Case, device: torch.device, batch: int, d3rlpy_python: str | None) -> Process | None:
    """The installed peer of a case; None if there is none or it is not installed."""
    library, _, name = (case.peer or "").partition(":")
    if installed(library):
        return SB3Updates(case, device, batch)
    if library != "d3rlpy" or not d3rlpy_python:
        return None
    columns = case.layout.unpack(random_rows(case.layout))
    ends = np.arange(1, len(columns.rewards) + 1) % 1000 == 0
    with tempfile.TemporaryDirectory() as folder:
        return D3rlpyLearner(
            d3rlpy_python,
            name,
            write_rows(Path(folder) / "rows.npz", columns, ends & (columns.dones.numpy() == 0)),
            hidden=case.hidden,
            batch=batch,
            device=str(device),
            settings=case.peer_settings,
            fresh=False,
        )


def loops_of(library: Library, case: Case) -> Iterator[tuple[str, Loop]]:
    """The loops of a library that fit the case, by name; if a loop has several ways, its name includes the way."""
    for key, loop in LOOPS[library.name].items():
        algo, _, way = key.partition("/")
        if algo == case.algo and loop.fits(case) and (not way or way in library.ways):
            yield f"{library.name} {way}".strip(), loop


def connect(
    given: list[Library], case: Case, device: torch.device, *, batch: int, tf32: bool, within: float | None = None
) -> tuple[dict[str, LoopUpdates], list[str]]:
    """The loops that fit the case, by name, and the reasons why others could not run, for example because they were
    not ready after `within` seconds."""
    found: dict[str, LoopUpdates] = {}
    left_out = []
    for library in given:
        for name, loop in loops_of(library, case):
            try:
                found[name] = LoopUpdates(library, loop, case, device, batch=batch, tf32=tf32, within=within)
            except RuntimeError as error:
                left_out.append(f"{library.name} {loop.title}: {error}")
                print(left_out[-1], flush=True)
    return found, left_out
