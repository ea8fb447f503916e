"""Weights & Biases: the rows of a run that a checkpoint covers, each once.

What W&B got it keeps, so nothing is sent that a resumed run could log again: rows come when a checkpoint covers
them (`only_covered`). A run keeps its W&B run: `wandb.json` in its folder has the id, the step of the last row sent
and, while rows are being sent, that of the last of them.

A process may be killed at any time, and W&B's own process ends with it, whatever it had yet to write:

    write down what is to be sent     killed before: the rows are sent when the run goes on
    send, and let W&B write it        killed here: see below
    write down what was sent

Online, W&B is asked which step it expects next, and gets what it does not have: each row once. Offline there is
nobody to ask: rows whose sending was broken off are not sent again, so that none is there twice; at most those of
one checkpoint are missing, and `metrics.csv` has them.

W&B's own environment variables and settings files hold (`WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE`, …). Nothing
is asked on the terminal: without a key there is one warning, and no W&B.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training.experiment.files import decode_json, encode_json, replace_atomically
from rl_training.experiment.loggers import Logger, Row, RunFacts

RECORD = "wandb.json"
_PROJECT = "rl-training"
# Of the 30 seconds that the end of a run waits.
_SECONDS_TO_REACH_A_SERVER = 25.0
_SECONDS_TO_UPLOAD = 20.0
# How often W&B's process writes what it has to its file.
_SECONDS_TO_WRITE = 0.5


class WandbLogger(Logger):
    """The logger `wandb`."""

    name = "wandb"
    only_covered = True
    timeout = 30.0

    def __init__(self) -> None:
        self._run: Any = None
        self._waiting: list[Row] = []
        self._path = Path()
        self._id = ""
        self._sent = -1  # the step of the last row sent

    def open(self, run: RunFacts) -> None:
        self._path = run.folder / RECORD
        record = _read(self._path)
        self._id = record.get("id") or secrets.token_hex(8)
        self._sent = record.get("sent", -1)
        if not record:
            self._write_down()  # the same id whatever happens next
        with _exit_untouched():
            self._run = _init(run, self._id)
        if self._run is not None:
            begun = max(self._sent, record.get("sending", -1))
            self._sent = begun if self._run.offline else self._run.step - 1

    def write(self, row: Row) -> None:
        if self._run is not None and row.step > self._sent:
            self._waiting.append(row)

    def flush(self) -> None:
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        self._write_down(sending=rows[-1].step)
        for row in rows:
            # `commit`: otherwise it waits for the next step, and is lost in a kill.
            self._run.log({**row.values, "_timestamp": row.time}, step=row.step, commit=True)
        time.sleep(2 * _SECONDS_TO_WRITE)
        self._sent = rows[-1].step
        self._write_down()

    def close(self, status: str) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)

    def _write_down(self, **sending: int) -> None:
        replace_atomically(self._path, encode_json({"id": self._id, "sent": self._sent, **sending}))


def _read(path: Path) -> dict[str, Any]:
    """The record of what was sent; a damaged one is an error, since starting over would send everything again."""
    if not path.exists():
        return {}
    record = decode_json(path.read_bytes())
    kinds = {"id": str, "sent": int, "sending": int}
    if not isinstance(record, dict) or not all(type(record.get(k, kinds[k]())) is kinds[k] for k in kinds):
        raise ValueError(f"{path}: damaged; without it nobody knows what was sent")
    return record


def _init(run: RunFacts, number: str) -> Any:
    """The W&B run of that id, new or continued; None where W&B is disabled."""
    import wandb

    settings = wandb.setup(settings=wandb.Settings(silent=True, console="off")).settings
    if settings.mode == "disabled":
        return None
    if settings.mode not in ("offline", "dryrun") and not wandb.login(prompt=False, verify=False):
        raise RuntimeError("no API key; run `wandb login` once, or set WANDB_MODE=offline")
    return wandb.init(
        id=number,
        resume="allow",
        project=settings.project or _PROJECT,
        name=settings.run_name or run.name,
        dir=None if os.environ.get("WANDB_DIR") else str(run.folder),
        config=dict(run.config),
        tags=list(run.config.get("tags", ())) or None,
        allow_val_change=True,
        reinit="create_new",  # a run of the user's own goes on undisturbed
        settings=wandb.Settings(
            silent=True,
            console="off",
            init_timeout=_SECONDS_TO_REACH_A_SERVER,
            finish_timeout=_SECONDS_TO_UPLOAD,
            x_transaction_log_flush_interval=_SECONDS_TO_WRITE,
        ),
    )


@contextmanager
def _exit_untouched() -> Iterator[None]:
    """W&B hooks `sys.exit` and uncaught exceptions; how this process ends is not its affair."""
    before = sys.exit, sys.excepthook
    try:
        yield
    finally:
        sys.exit, sys.excepthook = before
