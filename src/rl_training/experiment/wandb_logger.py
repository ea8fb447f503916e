"""Weights & Biases: sends every row of a run once, after a checkpoint has covered it.

W&B cannot delete rows, so rows that a resumed run could log again are not sent (`only_covered`). A resumed run
continues its W&B run: `wandb.json` in the run folder contains its id, the step of the last row sent and, while rows
are being sent, the step of the last of them.

The process may be killed at any time, and W&B's own process ends with it:

    record what will be sent          killed before: the rows are sent when the run resumes
    send, and wait until W&B writes   killed here: see below
    record what was sent

Online, W&B reports the next step it expects, and every missing row is sent once. Offline this is not possible: rows
whose sending was interrupted are not sent again, so that no row occurs twice. At most the rows of one checkpoint
are missing, and they are in `metrics.csv`.

W&B's environment variables and settings files apply (`WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE`, …). There is no
prompt on the terminal: without an API key, W&B is disabled with one warning.
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
# Parts of the 30 seconds (`timeout`) that a run waits at its end.
_SECONDS_TO_REACH_A_SERVER = 25.0
_SECONDS_TO_UPLOAD = 20.0
# Interval at which W&B's process writes its file.
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
            self._save()  # before W&B starts, so that the id stays the same after a crash
        with _exit_hooks_kept():
            self._run = _init(run, self._id)
        if self._run is not None:
            attempted = max(self._sent, record.get("sending", -1))
            self._sent = attempted if self._run.offline else self._run.step - 1

    def write(self, row: Row) -> None:
        if self._run is not None and row.step > self._sent:
            self._waiting.append(row)

    def flush(self) -> None:
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        self._save(sending=rows[-1].step)
        for row in rows:
            # Without `commit` W&B holds the row until the next step, and it is lost if the process is killed.
            self._run.log({**row.values, "_timestamp": row.time}, step=row.step, commit=True)
        time.sleep(2 * _SECONDS_TO_WRITE)
        self._sent = rows[-1].step
        self._save()

    def close(self, status: str) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)

    def _save(self, **sending: int) -> None:
        replace_atomically(self._path, encode_json({"id": self._id, "sent": self._sent, **sending}))


def _read(path: Path) -> dict[str, Any]:
    """The record of sent rows; raises if it is damaged, because starting over would send all rows again."""
    if not path.exists():
        return {}
    record = decode_json(path.read_bytes())
    kinds = {"id": str, "sent": int, "sending": int}
    if not isinstance(record, dict) or not all(type(record.get(k, kinds[k]())) is kinds[k] for k in kinds):
        raise ValueError(f"{path}: damaged; it is the only record of what was sent")
    return record


def _init(run: RunFacts, number: str) -> Any:
    """The W&B run with that id, new or resumed; None if W&B is disabled."""
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
        reinit="create_new",  # do not end a W&B run of the user's script
        settings=wandb.Settings(
            silent=True,
            console="off",
            init_timeout=_SECONDS_TO_REACH_A_SERVER,
            finish_timeout=_SECONDS_TO_UPLOAD,
            x_transaction_log_flush_interval=_SECONDS_TO_WRITE,
        ),
    )


@contextmanager
def _exit_hooks_kept() -> Iterator[None]:
    """Restore `sys.exit` and `sys.excepthook` afterwards, which W&B replaces."""
    before = sys.exit, sys.excepthook
    try:
        yield
    finally:
        sys.exit, sys.excepthook = before
