"""Writing metrics to sinks and loggers, none of which can stop a run.

A step has one row: all values of the same step are merged and written when `settle` is called. If a checkpoint is
written in between (a run is saved before its last evaluation), later values complete the row.

Each sink runs in a daemon thread with a bounded queue. A sink that raises is dropped with one warning; a sink that
hangs is dropped when its queue is full or a flush times out. Call `flush` before a checkpoint, so that earlier rows
are on the disk. When a run resumes, `truncate_after` removes the rows after its checkpoint.
"""

from __future__ import annotations

import contextlib
import csv
import io
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from rl_training.experiment.files import SCHEMA, Fence, replace_atomically, unfenced
from rl_training.experiment.loggers import Logger, Row, RunFacts

_OWN_COLUMNS = ["step", "time", "schema"]


class Sink(Protocol):
    """A destination of metrics, called from one thread at a time.

    A second `write` of the same step has further values of its row.
    """

    name: str

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class CsvSink:
    """`metrics.csv`: columns `step`, `time` (Unix seconds), `schema`, then metrics in order of appearance.

    Rows are appended. A new metric, or further values of the last step, rewrite the whole file atomically, so that
    rows covered by a checkpoint are never damaged. Numbers are written with `repr`, which preserves floats exactly.
    Opening the log replaces the file, so that rows appended by a process that lost the run go to a deleted file;
    `fence` keeps that process from replacing the file itself.
    """

    name = "metrics.csv"

    def __init__(self, path: Path, fence: Fence = unfenced) -> None:
        self.path, self._fence = path, fence
        rows = _complete_rows(path) if path.exists() else []
        self._columns = rows[0] if rows else list(_OWN_COLUMNS)
        self._last = rows[-1] if len(rows) > 1 else []
        self._rewrite(rows[1:])

    def truncate_after(
        self, step: int, rows: int | None = None, columns: Collection[str] | None = None
    ) -> list[Row]:
        """Drop the rows after `step` and all but the first `rows` rows. Returns the remaining rows, one per step.

        `rows` is for files of an earlier version with several rows per step. `columns` are the metrics that the row
        of `step` had at the checkpoint; metrics that were added to it later are dropped.
        """
        self._file.close()
        kept = [row for row in _complete_rows(self.path)[1:] if int(row[0]) <= step][:rows]
        if columns is not None and kept and int(kept[-1][0]) == step:
            own = {*_OWN_COLUMNS, *columns}
            kept[-1] = [cell if name in own else "" for name, cell in zip(self._columns, kept[-1])]
        used = [i for i, name in enumerate(self._columns) if name in _OWN_COLUMNS or any(row[i] for row in kept)]
        self._columns = [self._columns[i] for i in used]
        kept = [[row[i] for i in used] for row in kept]
        self._last = kept[-1] if kept else []
        self._rewrite(kept)
        return _one_per_step(_row_of(self._columns, row) for row in kept)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        cells = {"step": str(step), "time": f"{seconds:.3f}", "schema": str(SCHEMA)}
        cells |= {k: repr(v) for k, v in values.items()}
        further = self._last[:1] == [cells["step"]]
        if further:
            cells |= {k: v for k, v in zip(self._columns, self._last) if v and k not in values}
        new = [name for name in ("schema", *values) if name not in self._columns]
        self._columns += new
        self._last = [cells.get(name, "") for name in self._columns]
        if new or further:
            self._file.close()
            rows = _complete_rows(self.path)[1:]
            self._rewrite([*(rows[:-1] if further else rows), self._last])
            return
        csv.writer(self._file, lineterminator="\n").writerow(self._last)
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _rewrite(self, rows: Iterable[list[str]]) -> None:
        """Replace the file, and open the new one for appending."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self._columns)
        writer.writerows([*row, *[""] * (len(self._columns) - len(row))] for row in rows)
        replace_atomically(self.path, text.getvalue().encode(), self._fence)
        self._file = self.path.open("a", newline="", encoding="utf-8")


def _row_of(columns: list[str], cells: list[str]) -> Row:
    """The row with these cells; cells that are not numbers (in an edited file) are skipped."""
    found: dict[str, float] = {}
    for name, cell in zip(columns, cells):
        with contextlib.suppress(ValueError):
            found[name] = float(cell)
    seconds = found.get("time", 0.0)
    return Row(int(cells[0]), seconds, {k: v for k, v in found.items() if k not in _OWN_COLUMNS})


def _one_per_step(rows: Iterable[Row]) -> list[Row]:
    """Merge rows of the same step, as written by an earlier version."""
    found: list[Row] = []
    for row in rows:
        if found and found[-1].step == row.step:
            row = found.pop().completed(row)
        found.append(row)
    return found


def _complete_rows(path: Path) -> list[list[str]]:
    """Header and rows of a metrics file, without an incomplete last line of a killed process."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        header, *rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))) or [[]]
    except csv.Error:
        return []
    if header[:2] != ["step", "time"]:
        return []
    return [header, *(row for row in rows if len(row) == len(header) and row[0].isdecimal())]


def set_log_aside(path: Path) -> None:
    """Rename the log of a run that starts again in its folder to metrics.before-1.csv and so on."""
    if path.is_file() and len(_complete_rows(path)) > 1:
        taken = len(list(path.parent.glob(f"{path.stem}.before-*.csv")))
        path.rename(path.with_name(f"{path.stem}.before-{taken + 1}.csv"))


_EVENT_FILES = "events.*"


class TensorBoardSink:
    """Event files in `tb/`. In a resumed run the viewer hides events after `resumed_from`.

    Events of that step may be from before or after the checkpoint: they are hidden too, and its row `last` is
    written again.
    """

    name = "TensorBoard"

    def __init__(self, folder: Path, resumed_from: int | None = None, last: Row | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        again = last if last is not None and last.step == resumed_from else None
        purge = resumed_from + 1 if resumed_from is not None and again is None else resumed_from
        before = {*folder.glob(_EVENT_FILES)}
        self._writer = SummaryWriter(str(folder), purge_step=purge)
        if max(folder.glob(_EVENT_FILES)) in before:  # viewers sort by name; within one second the order is wrong
            self._writer.close()
            time.sleep(1.0)
            self._writer = SummaryWriter(str(folder), purge_step=purge)
        if again is not None:
            self.write(again.step, again.time, again.values)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=seconds)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Worker:
    """A thread that runs submitted functions until one fails or hangs, or the worker is closed."""

    def __init__(self, name: str, warn: Callable[[str], None], capacity: int) -> None:
        self.name, self._warn, self._alive = name, warn, True
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._work, name=f"log {name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:
                self.drop(f"{type(error).__name__}: {error}")
                return

    def drop(self, reason: str) -> None:
        if self._alive:
            self._alive = False
            self._warn(f"{self.name} is switched off for the rest of the run: {reason}")

    def submit(self, job: Callable[[], None] | None) -> None:
        if not self._alive:
            return
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.drop(f"it did not process {self._jobs.maxsize} rows in time")

    def wait(self, timeout: float) -> None:
        """Wait until all submitted functions are done; drop the worker after `timeout` seconds."""
        done = threading.Event()
        self.submit(done.set)
        deadline = time.monotonic() + timeout
        while self._alive and not done.wait(0.02):
            if time.monotonic() > deadline:
                self.drop(f"it did not finish within {timeout:g} s")

    def end(self, timeout: float) -> None:
        """Wait for all submitted functions and for the thread."""
        self.wait(timeout)
        self.submit(None)
        if self._alive:
            self._thread.join(timeout)
        self._alive = False


class _SinkWorker(_Worker):
    """Worker of one sink. `wait_flushed` blocks, because checkpoints rely on written rows."""

    def __init__(self, sink: Sink, warn: Callable[[str], None], capacity: int, timeout: float) -> None:
        super().__init__(sink.name, warn, capacity)
        self._sink, self._timeout = sink, timeout

    def take(self, row: Row) -> None:
        self.submit(lambda: self._sink.write(row.step, row.time, row.values))

    def flush(self) -> None:
        self.submit(self._sink.flush)

    def wait_flushed(self) -> None:
        self.wait(self._timeout)

    def close(self, status: str) -> None:
        self.submit(self._sink.flush)
        self.submit(self._sink.close)
        self.end(self._timeout)


class _LoggerWorker(_Worker):
    """Worker of one logger; the run waits for it only at its end.

    With `only_covered`, rows are held until a checkpoint covers them. The row of the checkpoint's own step may
    still be completed, so it is sent after the next checkpoint or at the end of a finished run. If the run is
    interrupted, it is sent when the run resumes.
    """

    def __init__(
        self, logger: Logger, facts: RunFacts, backlog: Iterable[Row], warn: Callable[[str], None], capacity: int
    ) -> None:
        super().__init__(logger.name, warn, capacity)
        self._logger = logger
        self._held: list[Row] = []
        self._covered = 0
        self.submit(lambda: logger.open(facts))
        if logger.only_covered and facts.resumed_from is not None:
            for row in backlog:
                self.take(row)
            self.cover(facts.resumed_from)

    def take(self, row: Row) -> None:
        row = Row(row.step, row.time, dict(row.values))
        if not self._logger.only_covered:
            self.submit(lambda: self._logger.write(row))
        elif self._held and self._held[-1].step == row.step:
            self._held[-1] = self._held[-1].completed(row)
        else:
            self._held.append(row)

    def flush(self) -> None:
        if not self._logger.only_covered:
            self.submit(self._logger.flush)

    def cover(self, step: int) -> None:
        done = [row for row in self._held if row.step < step]
        self._held = self._held[len(done) :]
        self._covered = len(self._held)
        self._send(done)

    def close(self, status: str) -> None:
        if status in ("finished", "stopped"):
            self._send(self._held[: self._covered])
        self.submit(lambda: self._logger.close(status))
        self.end(self._logger.timeout)

    def _send(self, rows: list[Row]) -> None:
        def send() -> None:
            for row in rows:
                self._logger.write(row)
            self._logger.flush()

        if rows:
            self.submit(send)


class MetricsLog:
    """Writes the rows of a run to all sinks and loggers; only `flush` and `close` block."""

    def __init__(
        self,
        sinks: Iterable[Sink],
        *,
        warn: Callable[[str], None],
        rows: int = 0,
        last: Row | None = None,
        queue_size: int = 256,
        timeout: float = 10.0,
    ) -> None:
        """`warn` is called for each dropped sink. `rows`, `last`: row count and last row of a resumed run."""
        self.rows = rows
        self._last = last
        self._pending: Row | None = None
        self._warn, self._queue_size = warn, queue_size
        self._sinks = [_SinkWorker(sink, warn, queue_size, timeout) for sink in sinks]
        self._loggers: list[_LoggerWorker] = []

    @property
    def _workers(self) -> list[_SinkWorker | _LoggerWorker]:
        return [*self._sinks, *self._loggers]

    def add(self, logger: Logger, facts: RunFacts, backlog: Iterable[Row] = ()) -> None:
        """Add a logger; `backlog`: the rows that the checkpoint of a resumed run covers."""
        self._loggers.append(_LoggerWorker(logger, facts, backlog, self._warn, self._queue_size))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add to the row of `step`, which is written by `settle` or when another step is logged."""
        row = Row(step, time.time(), {name: float(value) for name, value in values.items()})
        if self._last is None or self._last.step != step:
            self.settle()
            self.rows += 1
            self._last = self._pending = row
            return
        self._last = self._last.completed(row)
        self._pending = row if self._pending is None else self._pending.completed(row)

    def columns(self, step: int) -> list[str]:
        """The metrics in the row of `step` so far; empty if there is no such row."""
        return [] if self._last is None or self._last.step != step else sorted(self._last.values)

    def settle(self) -> None:
        """Write the row of the current step."""
        row, self._pending = self._pending, None
        if row is not None:
            for worker in self._workers:
                worker.take(row)

    def flush(self) -> None:
        """Block until all rows are written or their sink is dropped."""
        self.settle()
        for worker in self._workers:
            worker.flush()
        for sink in self._sinks:
            sink.wait_flushed()

    def cover(self, step: int) -> None:
        """Called after a checkpoint of `step`: rows flushed before it will not be logged again."""
        for logger in self._loggers:
            logger.cover(step)

    def close(self, status: str = "finished") -> None:
        self.settle()
        for worker in self._workers:
            worker.close(status)
