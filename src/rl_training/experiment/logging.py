"""Metrics go to every sink, and no sink can stop a run.

A step has one row: what is logged at the same step is put together and written once the session says that the
step is done. A checkpoint may come between (a run is saved before its last evaluation); what comes after it
completes the row.

Each sink works in a daemon thread behind a bounded queue. One that raises is dropped with a single warning;
one that hangs is dropped when its queue is full or a flush times out. `flush` before a checkpoint, so that a
row logged before it is on the disk before it; after a resume `truncate_after` removes what was logged later.
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
    """Somewhere a row of metrics goes; only ever called from one thread at a time.

    A second `write` of the same step brings further values of its row.
    """

    name: str

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class CsvSink:
    """`metrics.csv`: columns `step`, `time` (Unix seconds), `schema`, then metrics as they first appeared.

    A row is appended. A metric seen for the first time, or further values of the last row's step, rewrite the
    whole file in one atomic step: what a checkpoint covers is never torn. Numbers are written with `repr`, so
    that reading them back gives the same floats. Whoever opens the file replaces it, so that rows
    appended by a process that was taken over from reach nobody; `fence` keeps it from replacing the file itself.
    """

    name = "metrics.csv"

    def __init__(self, path: Path, fence: Fence = unfenced) -> None:
        self.path, self._fence = path, fence
        rows = _complete_rows(path) if path.exists() else []
        self._columns = rows[0] if rows else list(_OWN_COLUMNS)
        self._last = rows[-1] if len(rows) > 1 else []
        self._rewrite(rows[1:])
        self._file = path.open("a", newline="", encoding="utf-8")

    def truncate_after(
        self, step: int, rows: int | None = None, columns: Collection[str] | None = None
    ) -> list[Row]:
        """Drop the rows logged after `step`; given `rows`, also all beyond that many. Returns what stays, by step.

        `rows` matters where a file of an earlier version has several for one step, and `columns` where the row of
        `step` itself was completed later: the metrics it had, to which it is cut back.
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
        self._file = self.path.open("a", newline="", encoding="utf-8")
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
            self._file = self.path.open("a", newline="", encoding="utf-8")
            return
        csv.writer(self._file, lineterminator="\n").writerow(self._last)
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


def _row_of(columns: list[str], cells: list[str]) -> Row:
    """A row as it was logged; cells that are no numbers (a file somebody edited) are left out."""
    found: dict[str, float] = {}
    for name, cell in zip(columns, cells):
        with contextlib.suppress(ValueError):
            found[name] = float(cell)
    seconds = found.get("time", 0.0)
    return Row(int(cells[0]), seconds, {k: v for k, v in found.items() if k not in _OWN_COLUMNS})


def _one_per_step(rows: Iterable[Row]) -> list[Row]:
    """Rows of which an earlier version wrote two for a step, put together."""
    found: list[Row] = []
    for row in rows:
        if found and found[-1].step == row.step:
            row = found.pop().completed(row)
        found.append(row)
    return found


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


# Viewers read them by their names, which tell the second, the process and a number: the tenth of one second comes
# before the ninth.
_EVENT_FILES = "events.*"


class TensorBoardSink:
    """Event files in `tb/`; on a resume, events later than `resumed_from` are hidden by the viewer.

    Those of the step itself may be of either side: they are hidden too, and the row `last` of that step is written
    anew.
    """

    name = "TensorBoard"

    def __init__(self, folder: Path, resumed_from: int | None = None, last: Row | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        again = last if last is not None and last.step == resumed_from else None
        purge = resumed_from + 1 if resumed_from is not None and again is None else resumed_from
        before = {*folder.glob(_EVENT_FILES)}
        self._writer = SummaryWriter(str(folder), purge_step=purge)
        if max(folder.glob(_EVENT_FILES)) in before:
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
    """A thread that does what it is given until something fails, hangs or closes it."""

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
            self.drop(f"it has not taken {self._jobs.maxsize} rows in time")

    def wait(self, timeout: float) -> None:
        """Wait until all that was submitted is done; what takes longer than `timeout` is dropped."""
        done = threading.Event()
        self.submit(done.set)
        deadline = time.monotonic() + timeout
        while self._alive and not done.wait(0.02):
            if time.monotonic() > deadline:
                self.drop(f"it did not finish within {timeout:g} s")

    def end(self, timeout: float) -> None:
        """Wait for what was submitted, and for the thread."""
        self.wait(timeout)
        self.submit(None)
        if self._alive:
            self._thread.join(timeout)
        self._alive = False


class _SinkWorker(_Worker):
    """Feeds one sink. A flush waits for it, because checkpoints count on what it wrote."""

    def __init__(self, sink: Sink, warn: Callable[[str], None], capacity: int, timeout: float) -> None:
        super().__init__(sink.name, warn, capacity)
        self._sink, self._timeout = sink, timeout

    def take(self, row: Row) -> None:
        self.submit(lambda: self._sink.write(row.step, row.time, row.values))

    def flush(self) -> None:
        self.submit(self._sink.flush)

    def flushed(self) -> None:
        self.wait(self._timeout)

    def cover(self, step: int) -> None:
        pass

    def close(self, status: str) -> None:
        self.submit(self._sink.flush)
        self.submit(self._sink.close)
        self.end(self._timeout)


class _LoggerWorker(_Worker):
    """Feeds one logger, which nothing waits for before the run ends.

    For one with `only_covered` rows are held here until a checkpoint covers them. That of the checkpoint's own
    step stays, since it may yet be completed; it goes with the next checkpoint, or with the end of a run that is
    done. One that was broken off keeps it for the run that goes on.
    """

    def __init__(
        self,
        logger: Logger,
        facts: RunFacts,
        backlog: Iterable[Row],
        warn: Callable[[str], None],
        capacity: int,
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

    def flushed(self) -> None:
        pass

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
    """The rows of a run, in order, to every sink and logger; the caller waits only in `flush` and `close`."""

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
        """`warn` gets one line for what is dropped; a resumed run has `rows` rows already, the last one `last`."""
        self._rows = rows
        self._last = last
        self._pending: Row | None = None
        self._warn, self._queue_size = warn, queue_size
        self._workers: list[_SinkWorker | _LoggerWorker] = [
            _SinkWorker(sink, warn, queue_size, timeout) for sink in sinks
        ]

    def add(self, logger: Logger, facts: RunFacts, backlog: Iterable[Row] = ()) -> None:
        """Prefetcher a logger too; `backlog` are the rows that the checkpoint of a resumed run covers."""
        self._workers.append(_LoggerWorker(logger, facts, backlog, self._warn, self._queue_size))

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._rows

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add to the row of `step`, which is written when the step is done, or another one begins."""
        row = Row(step, time.time(), {name: float(value) for name, value in values.items()})
        if self._last is None or self._last.step != step:
            self.settle()
            self._rows += 1
            self._last = self._pending = row
            return
        self._last = self._last.completed(row)
        self._pending = row if self._pending is None else self._pending.completed(row)

    def columns(self, step: int) -> list[str]:
        """The metrics that the row of `step` has by now; none where there is no such row."""
        return [] if self._last is None or self._last.step != step else sorted(self._last.values)

    def settle(self) -> None:
        """The step is done: write its row."""
        row, self._pending = self._pending, None
        if row is not None:
            for worker in self._workers:
                worker.take(row)

    def flush(self) -> None:
        """Return once every row logged so far is written, or its sink was dropped."""
        self.settle()
        for worker in self._workers:
            worker.flush()
        for worker in self._workers:
            worker.flushed()

    def cover(self, step: int) -> None:
        """A checkpoint of `step` was committed: what was flushed before it is never logged again."""
        for worker in self._workers:
            worker.cover(step)

    def close(self, status: str = "finished") -> None:
        self.settle()
        for worker in self._workers:
            worker.close(status)
