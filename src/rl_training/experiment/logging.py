"""Metrics go to every sink, and no sink can stop a run.

Each sink works in a daemon thread behind a bounded queue. One that raises is dropped with a single warning;
one that hangs is dropped when its queue is full or a flush times out. `flush` before a checkpoint, so that a
row logged before it is on the disk before it; after a resume `truncate_after` removes the rows logged later.
"""

from __future__ import annotations

import csv
import io
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from rl_training.experiment.files import SCHEMA, Fence, replace_atomically, unfenced


class Sink(Protocol):
    """Somewhere a row of metrics goes; only ever called from one thread at a time."""

    name: str

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class CsvSink:
    """`metrics.csv`: columns `step`, `time` (Unix seconds), `schema`, then metrics as they first appeared.

    A metric seen for the first time widens the whole file, in one atomic step. Numbers are written with
    `repr`, so that reading them back gives the same floats. Whoever opens the file replaces it, so that rows
    appended by a process that was taken over from reach nobody; `fence` keeps it from replacing the file itself.
    """

    name = "metrics.csv"

    def __init__(self, path: Path, fence: Fence = unfenced) -> None:
        self.path, self._fence = path, fence
        self._columns = ["step", "time", "schema"]
        if path.exists():
            rows = _complete_rows(path)
            self._columns = rows[0] if rows else self._columns
            self._rewrite(rows[1:])
        else:
            self._rewrite([])
        self._file = path.open("a", newline="", encoding="utf-8")

    def truncate_after(self, step: int, rows: int | None = None) -> None:
        """Drop the rows logged after `step`; given `rows`, also all beyond that many.

        `rows` matters where the step stands still while training goes on.
        """
        kept = [row for row in _complete_rows(self.path)[1:] if int(row[0]) <= step]
        self._file.close()
        self._rewrite(kept[:rows])
        self._file = self.path.open("a", newline="", encoding="utf-8")

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        new = [name for name in ("schema", *values) if name not in self._columns]
        if new:
            self._file.close()
            rows = _complete_rows(self.path)[1:]
            self._columns += new
            self._rewrite(rows)
            self._file = self.path.open("a", newline="", encoding="utf-8")
        cells = {"step": str(step), "time": f"{seconds:.3f}", "schema": str(SCHEMA)}
        cells |= {k: repr(v) for k, v in values.items()}
        csv.writer(self._file, lineterminator="\n").writerow([cells.get(name, "") for name in self._columns])
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _rewrite(self, rows: Iterable[list[str]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self._columns)
        writer.writerows([*row, *[""] * (len(self._columns) - len(row))] for row in rows)
        replace_atomically(self.path, text.getvalue().encode(), self._fence)


def _complete_rows(path: Path) -> list[list[str]]:
    """Header and rows of a metrics file, without the torn last line a killed process may have left."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        header, *rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))) or [[]]
    except csv.Error:
        return []
    if header[:2] != ["step", "time"]:
        return []
    return [header, *(row for row in rows if len(row) == len(header) and row[0].isdecimal())]


def set_log_aside(path: Path) -> None:
    """Keep the rows of a run that is about to start again in its folder, as metrics.before-1.csv and so on."""
    if path.is_file() and len(_complete_rows(path)) > 1:
        taken = len(list(path.parent.glob(f"{path.stem}.before-*.csv")))
        path.rename(path.with_name(f"{path.stem}.before-{taken + 1}.csv"))


class TensorBoardSink:
    """Event files in `tb/`; on a resume, events later than `resumed_from` are hidden by the viewer."""

    name = "TensorBoard"

    def __init__(self, folder: Path, resumed_from: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resumed_from is None else resumed_from + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=seconds)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Worker:
    """Feeds one sink from a queue until it fails, hangs or is closed."""

    def __init__(self, sink: Sink, warn: Callable[[str], None], capacity: int) -> None:
        self.sink, self._warn, self._alive = sink, warn, True
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._work, name=f"log {sink.name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                self.drop(f"{type(error).__name__}: {error}")
                return

    def drop(self, reason: str) -> None:
        if self._alive:
            self._alive = False
            self._warn(f"{self.sink.name} is switched off for the rest of the run: {reason}")

    def submit(self, job: Callable[[], None] | None) -> None:
        if not self._alive:
            return
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.drop(f"it has not taken {self._jobs.maxsize} rows in time")

    def wait(self, timeout: float) -> None:
        """Wait until all that was submitted is done; a sink that takes longer than `timeout` is dropped."""
        done = threading.Event()
        self.submit(done.set)
        deadline = time.monotonic() + timeout
        while self._alive and not done.wait(0.02):
            if time.monotonic() > deadline:
                self.drop(f"it did not finish within {timeout:g} s")

    def close(self, timeout: float) -> None:
        self.submit(self.sink.flush)
        self.submit(self.sink.close)
        self.wait(timeout)
        self.submit(None)
        if self._alive:
            self._thread.join(timeout)
        self._alive = False


class MetricsLog:
    """One `log` call is one row in every sink. Sinks see rows in order; the caller never waits for them."""

    def __init__(
        self,
        sinks: Iterable[Sink],
        *,
        warn: Callable[[str], None],
        rows: int = 0,
        queue_size: int = 256,
        timeout: float = 10.0,
    ) -> None:
        """`warn` gets one line for a sink that is dropped; `rows` continues the count of a resumed run."""
        self.rows = rows
        self._timeout = timeout
        self._workers = [_Worker(sink, warn, queue_size) for sink in sinks]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        row, seconds = {name: float(value) for name, value in values.items()}, time.time()
        for worker in self._workers:
            sink = worker.sink
            worker.submit(lambda sink=sink: sink.write(step, seconds, row))  # type: ignore[misc]
        self.rows += 1

    def flush(self) -> None:
        """Return once every row logged so far is written, or its sink was dropped."""
        for worker in self._workers:
            worker.submit(worker.sink.flush)
        for worker in self._workers:
            worker.wait(self._timeout)

    def close(self) -> None:
        for worker in self._workers:
            worker.close(self._timeout)
