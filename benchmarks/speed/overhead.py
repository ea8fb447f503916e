"""Fraction of training time spent in the NaN guard, the memory check and checkpoints.

    python -m benchmarks.speed.overhead [--device D] [--steps 12000] [--json FILE]
        Fractions in a real run.
    python -m benchmarks.speed.overhead --checkpoints [--rows 10000 100000 1000000]
        Size and seconds of a checkpoint, compared with Stable-Baselines3's `save` and `save_replay_buffer`.

The run is SAC on HalfCheetah-v5 with its packaged configuration and the default intervals. Each part is timed
inside the run and should take less than 3 %. Our checkpoints are flushed to disk; the peer's are not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import report
from benchmarks.peers import sb3
from benchmarks.report import Entry, Results, Sections, table
from benchmarks.runs import configure, seconds_of_run
from benchmarks.speed import cases
from benchmarks.speed.timing import Stopwatch, wait
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout
from rl_training.experience.collector import Collector
from rl_training.experiment.checkpointing import RowsToSave, write_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manifest import read_manifest
from rl_training.runs import session
from rl_training.runs.building import choose_device
from rl_training.runtime import online

# The parts, and the functions that are timed.
PARTS = {
    "NaN guard, parameters and terms": (session, "check_finite"),
    "NaN guard, observations": (Collector, "_check_rows"),
    "memory check": (online, "available_memory"),
    "checkpoints": (session.Session, "save"),
}
_NEW_ROWS = 10_000


def arguments() -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--acceleration", default="auto")
    parser.add_argument("--config", default="sac/halfcheetah")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--folder", type=Path, help="folder to write to; default: the temporary folder")
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    return parser.parse_args()


def shares(options: argparse.Namespace) -> Entry:
    """Run with the default intervals and time each part."""
    defaults = TrainConfig.model_fields
    config = configure(
        options.config,
        "sac",
        options.set,
        total_timesteps=options.steps,
        device=options.device,
        acceleration=options.acceleration,
        eval_episodes=0,
        log_interval=defaults["log_interval"].default,
        checkpoint_interval=defaults["checkpoint_interval"].default,
        algo_kwargs={"learning_starts": 500},
    )
    stopwatch = Stopwatch()
    with ExitStack() as stack:
        for name, (owner, attribute) in PARTS.items():
            stack.enter_context(stopwatch.around(owner, attribute, name))
        whole = seconds_of_run(config, parent=options.folder)
    # A checkpoint is checked before it is written; that call counts for both parts.
    found = {
        name: {
            "seconds": stopwatch.seconds[name],
            "calls": stopwatch.calls[name],
            "share": stopwatch.seconds[name] / whole,
        }
        for name in PARTS
    }
    return {
        "kind": "share",
        "config": options.config,
        "overrides": options.set,
        "steps": options.steps,
        "seconds": whole,
        "seconds_per_step": whole / options.steps,
        "log_interval": config.log_interval,
        "checkpoint_interval": config.checkpoint_interval,
        "parts": found,
    }


def ours(rows: int, folder: Path, device: torch.device) -> Entry:
    """The first checkpoint of a full buffer, and the next one after a few new rows."""
    case = next(case for case in cases.CASES if case.name == "SAC")
    learner = cases.build(case, device)
    layout = RowLayout.of(case.spaces)
    buffer = ReplayBuffer(rows + _NEW_ROWS, layout, learner.generator)
    fill = np.random.default_rng(0).standard_normal((rows, layout.width), dtype=np.float32)
    buffer.add(fill)
    state = learner.state_dict()
    tensors = {"networks": state["networks"], "optimizers": state["optimizers"]}
    entry: Entry = {}
    previous = None
    for step, label in ((1, "first"), (2, "next")):
        saved = RowsToSave(buffer.rows, len(buffer), buffer.added, buffer.capacity)
        wait()
        started = time.perf_counter()
        written = write_checkpoint(folder, step, tensors=tensors, records={}, rows=saved, previous=previous)
        seconds, files = time.perf_counter() - started, read_manifest(written).files.values()
        entry |= {f"{label}_seconds": seconds, f"{label}_bytes": sum(file.size for file in files)}
        previous = written
        buffer.add(fill[:_NEW_ROWS])
    linked = {p.stat().st_ino for p in (folder / f"step_{1:09d}").rglob("*") if p.is_file()}
    second = [p.stat() for p in (folder / f"step_{2:09d}").rglob("*") if p.is_file()]
    entry["next_written"] = sum(s.st_size for s in second if s.st_ino not in linked)
    entry["filled_bytes"] = rows * layout.width * 4
    return entry


def theirs(rows: int, folder: Path, device: torch.device) -> Entry:
    """Stable-Baselines3's two calls for the same networks and number of rows."""
    import stable_baselines3

    agent = stable_baselines3.SAC(
        "MlpPolicy",
        sb3.Still(False),
        buffer_size=rows,
        policy_kwargs={"net_arch": [256, 256]},
        device=device,
        seed=0,
    )
    buffer: Any = agent.replay_buffer
    rng = np.random.default_rng(0)
    for column in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
        column[:] = rng.standard_normal(column.shape, dtype=np.float32)
    buffer.full = True
    started = time.perf_counter()
    agent.save(folder / "agent.zip")
    agent.save_replay_buffer(folder / "buffer.pkl")
    seconds = time.perf_counter() - started
    size = sum((folder / name).stat().st_size for name in ("agent.zip", "buffer.pkl"))
    return {"peer_seconds": seconds, "peer_bytes": size}


def checkpoint(rows: int, options: argparse.Namespace, device: torch.device) -> Entry:
    entry: Entry = {"kind": "checkpoint", "rows": rows}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        entry |= ours(rows, Path(folder), device)
    if sb3.installed():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            entry |= theirs(rows, Path(folder), device)
    print({key: value for key, value in entry.items() if key != "kind"}, flush=True)
    return entry


def share_text(entries: list[Entry]) -> str:
    rows = []
    for e in entries:
        for name, part in e["parts"].items():
            rows.append([e["machine"], name, part["calls"], f"{part['seconds']:.3f}", f"{part['share']:.2%}"])
    intro = (
        "Measured by `python -m benchmarks.speed.overhead`: SAC on HalfCheetah-v5, each part timed inside a run of "
        f"{entries[0]['steps']:,} steps with a log report every {entries[0]['log_interval']:,} and a checkpoint "
        f"every {entries[0]['checkpoint_interval']:,} steps. The check of the parameters before a checkpoint "
        "counts in both rows."
    )
    return f"{intro}\n\n{table(['machine', 'part', 'calls', 'seconds', 'share'], rows)}"


def checkpoint_text(entries: list[Entry], runs: list[Entry]) -> str:
    """Sizes and seconds, and the fraction of training time if a run was timed on the same machine."""
    pace = {e["machine"]: e["seconds_per_step"] * e["checkpoint_interval"] for e in runs}
    rows = []
    for e in sorted(entries, key=lambda e: (e["machine"], e["rows"])):
        interval = pace.get(e["machine"])
        share = "–" if interval is None else f"{e['next_seconds'] / (interval + e['next_seconds']):.2%}"
        peer = f"{e['peer_bytes'] / 1e6:.1f} MB, {e['peer_seconds']:.2f} s" if "peer_bytes" in e else "–"
        rows.append([e["machine"], f"{e['rows']:,}", f"{e['filled_bytes'] / 1e6:.1f} MB",
                     f"{e['first_bytes'] / 1e6:.1f} MB, {e['first_seconds']:.2f} s",
                     f"{e['next_written'] / 1e6:.1f} MB, {e['next_seconds']:.2f} s", share, peer])  # fmt: skip
    header = ["machine", "transitions", "rows alone", "first checkpoint", f"next, {_NEW_ROWS:,} rows later",
              "share of training time", "Stable-Baselines3"]  # fmt: skip
    intro = (
        "Measured by `python -m benchmarks.speed.overhead --checkpoints`: SAC 256×2, observations 17, actions 6. "
        "A checkpoint writes only new rows. The share is for the second checkpoint, at the default interval and "
        "the speed of the run above. Stable-Baselines3 always writes the whole capacity of its buffer; here the "
        "buffer is exactly full, its best case. Its files are not flushed to disk, ours are."
    )
    return f"{intro}\n\n{table(header, rows)}"


def sections(entries: dict[str, Entry]) -> Sections:
    runs = [e for e in entries.values() if e["kind"] == "share"]
    saved = [e for e in entries.values() if e["kind"] == "checkpoint"]
    found: Sections = {}
    if runs:
        found["performance/overhead", "overhead"] = (
            f"## Cost of the checks\n\n{share_text(runs)}\n\n{report.origins(runs)}"
        )
    if saved:
        text = checkpoint_text(saved, runs)
        found["performance/overhead", "checkpoints"] = f"## Checkpoints\n\n{text}\n\n{report.origins(saved)}"
    return found


def main() -> None:
    options = arguments()
    device = choose_device(options.device)
    results = Results("overhead", options.json)
    stamp = report.stamp(str(device))
    if options.checkpoints:
        for rows in options.rows:
            results.add({f"checkpoint/{stamp['machine']}/{rows}": stamp | checkpoint(rows, options, device)})
    else:
        results.add({f"share/{stamp['machine']}": stamp | shares(options)})
    results.show(sections)


if __name__ == "__main__":
    main()
