"""Cost of the size of a data set: time to load, first update, updates per second and memory, for each storage
location.

    python -m benchmarks.speed.data_sizes [--rows 10000 1000000] [--places device host disk] [--algos iql edac]
        Rows of HalfCheetah's width, stored in each place by setting `device_memory` and `host_memory`.
    python -m benchmarks.speed.data_sizes --limit 1GB [--factor 4]
        A data set that is `--factor` times larger than the memory its process may allocate (RLIMIT_DATA).

The data are random numbers in an HDF5 file, which is written in chunks and removed afterwards. Each measurement
trains in a separate process, as the command line does. `disk` is measured after the file has been packed and
dropped from the page cache; packing is timed in the process that found no packed file. On a CPU, device memory is
host memory, so `device` is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, table
from benchmarks.runs import train
from rl_training.data.transitions import RowLayout
from rl_training.experiment.config import TrainConfig
from rl_training.memory import human_bytes
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.settings import byte_size

OBS, ACTIONS, EPISODE = 17, 6, 1000
LAYOUT = RowLayout(OBS, ACTIONS, discrete=False)
CHUNK = 500_000
SETTINGS: dict[str, dict[str, Any]] = {"iql": {}, "edac": {"num_critics": 10}}
NAMES = {"iql": "IQL", "edac": "EDAC-10"}
PLACES: dict[str, dict[str, Any]] = {
    "device": {},
    "host": {"device_memory": 0},
    "disk": {"device_memory": 0, "host_memory": 0},
}


def arguments() -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("--device", default=report.default_device())
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--algos", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--updates", type=int, default=500, help="number of updates; the second half is timed")
    parser.add_argument("--limit", help="memory a process may allocate, for example 1GB")
    parser.add_argument("--factor", type=int, default=4, help="size of the data set relative to the limit")
    parser.add_argument("--folder", type=Path, help="folder to write to; default: the temporary folder")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # a single measurement, in its own process
    return parser.parse_args()


def write_data(path: Path, rows: int) -> None:
    """Write random transitions in episodes that are truncated after 1000 steps."""
    import h5py  # not needed to render the pages

    rng = np.random.default_rng(0)
    shapes = {"observations": (OBS,), "actions": (ACTIONS,), "rewards": (), "terminals": (), "timeouts": ()}
    with h5py.File(path, "w") as file:
        for name, inner in shapes.items():
            file.create_dataset(name, (rows, *inner), np.bool_ if name[0] == "t" else np.float32)
        for start in range(0, rows, CHUNK):
            count = min(CHUNK, rows - start)
            file["observations"][start : start + count] = rng.standard_normal((count, OBS), dtype=np.float32)
            file["actions"][start : start + count] = rng.random((count, ACTIONS), dtype=np.float32) * 2 - 1
            file["rewards"][start : start + count] = rng.standard_normal(count, dtype=np.float32)
            file["terminals"][start : start + count] = False
            file["timeouts"][start : start + count] = (np.arange(start, start + count) + 1) % EPISODE == 0
        file.attrs["action_low"], file.attrs["action_high"] = -np.ones(ACTIONS), np.ones(ACTIONS)


class Watch(Callback):
    """Callback that records when training began, and wall time and CPU time after each update."""

    def __init__(self, updates: int) -> None:
        self.updates, self.marks = updates, dict[int, tuple[float, float]]()
        self.began = 0.0

    def on_training_start(self, session: Session) -> None:
        self.began = time.perf_counter()

    def on_step(self, session: Session) -> None:
        self.marks[session.learner.updates] = time.perf_counter(), time.process_time()


def measure(task: dict[str, Any]) -> Entry:
    """Train in this process as `task` specifies."""
    if task["limit"]:
        resource.setrlimit(resource.RLIMIT_DATA, (task["limit"], task["limit"]))
    updates, watch = task["updates"], Watch(task["updates"])
    with tempfile.TemporaryDirectory(dir=task["folder"]) as folder:
        kwargs = {"dataset_kind": "hdf5", "dataset_path": task["data"], **SETTINGS[task["algo"]]}
        config = TrainConfig(
            algo=task["algo"],
            env_id=None,
            total_timesteps=updates,
            device=task["device"],
            log_interval=max(1, updates // 2),
            algo_kwargs=kwargs,
            **task["budgets"],
        )
        started = time.perf_counter()
        train(config, folder, watch)
    first, last = (watch.marks[updates - updates // 2], watch.marks[updates])
    status = Path("/proc/self/status").read_text()
    kept = {key: int(status.partition(f"{key}:")[2].split()[0]) * 1024 for key in ("VmHWM", "RssAnon")}
    return {
        "load_s": watch.began - started,
        "updates_per_s": (updates // 2) / (last[0] - first[0]),
        "updates_per_cpu_s": (updates // 2) / (last[1] - first[1]),
        "peak_bytes": kept["VmHWM"],
        "own_bytes": kept["RssAnon"],
    }


def in_a_process(task: dict[str, Any]) -> Entry:
    """Call `measure` in a new process, after dropping the data and packed rows from the page cache."""
    for file in [Path(task["data"]), *Path(task["data"]).parent.glob("*.rows")]:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    command = [sys.executable, "-m", "benchmarks.speed.data_sizes", "--measure", json.dumps(task)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr or f"{command} ended with {done.returncode}")
    found: Entry = json.loads(done.stdout.splitlines()[-1])
    return found | {"whole_s": time.perf_counter() - started}


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure every place and algorithm at every size."""
    limit = byte_size(options.limit) if options.limit else None
    sizes = [limit * options.factor // (LAYOUT.width * 4)] if limit else options.rows
    places = ["disk"] if limit else [p for p in options.places if p != "device" or options.device != "cpu"]
    for rows in sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            data = Path(folder) / "random.hdf5"
            write_data(data, rows)
            for place in places:
                for algo in options.algos:
                    task = {
                        "data": str(data),
                        "folder": folder,
                        "algo": algo,
                        "device": options.device,
                        "budgets": {} if limit else PLACES[place],
                        "limit": limit,
                        "updates": options.updates,
                    }
                    if limit:
                        task["budgets"] = {"host_memory": limit // 4}
                    packing = None
                    if place == "disk" and not list(Path(folder).glob("*.rows")):
                        packing = in_a_process(task)["load_s"]
                    entry = in_a_process(task) | report.stamp(options.device)
                    entry |= {"rows": rows, "place": place, "algo": algo, "bytes": rows * LAYOUT.width * 4}
                    entry |= {"packing_s": packing, "limit": limit, "load": os.getloadavg()[0]}
                    key = f"{options.device} {rows} {place} {algo}{' limited' if limit else ''}"
                    results.add({key: entry})
                    print(
                        key, {name: round(entry[name] or 0, 2) for name in ("load_s", "updates_per_s")}, flush=True
                    )


def sections(entries: dict[str, Entry]) -> Sections:
    """A table of all sizes and places."""
    if not entries:
        return {}
    order = sorted(
        entries.values(), key=lambda e: (e["device"], bool(e["limit"]), e["rows"], e["place"], e["algo"])
    )
    rows = [
        [
            f"{e['rows']:,} ({human_bytes(e['bytes'])})",
            e["place"] + (f", allocating at most {human_bytes(e['limit'])}" if e["limit"] else ""),
            NAMES[e["algo"]],
            "–" if e["packing_s"] is None else f"{e['packing_s']:.1f}",
            f"{e['load_s']:.1f}",
            f"{report.number(e['updates_per_s'])} ({report.number(e['updates_per_cpu_s'])})",
            f"{human_bytes(e['peak_bytes'])} ({human_bytes(e['own_bytes'])})",
        ]
        for e in order
    ]
    load = ", ".join(sorted({f"{entry['load']:.1f}" for entry in order}))
    head = [
        "rows",
        "place",
        "algorithm",
        "packing, s",
        "to the first update, s",
        "updates/s (per CPU second)",
        "peak memory (own)",
    ]
    text = (
        "## Data sets of any size\n\nMeasured by `python -m benchmarks.speed.data_sizes`: rows of HalfCheetah's "
        "width (17 + 6) in an HDF5 file, which is dropped from the page cache before each process. *Packing* "
        "happens once: the time to the first update of the run that wrote the packed file. Peak memory includes "
        "reclaimable pages of a mapped file; the process's own memory at its end, in brackets, does not.\n\n"
        f"{table(head, rows)}\n\n{report.origins(order)} Load of the machine: {load}."
    )
    return {("performance/data-sizes", "data_sizes"): text}


def main() -> None:
    options = arguments()
    if options.measure:
        print(json.dumps(measure(json.loads(options.measure))))
        return
    results = Results("data_sizes", options.json)
    run(options, results)
    results.render(sections)


if __name__ == "__main__":
    main()
