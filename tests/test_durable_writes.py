"""Where files are made durable: the bytes before the name, and the folder after it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rl_training.experiment import files

_NAMED = ("bytes", "folder", "before rename", "after rename")


def test_bytes_are_synced_before_a_file_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def fsync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        events.append("folder" if path.is_dir() else "bytes" if path.stat().st_size == 5 else "nothing")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(files, "failpoint", lambda name: events.append(name.rsplit(" ", 1)[0]))
    files.replace_atomically(tmp_path / "run.json", b"12345")
    assert [event for event in events if event in _NAMED] == [
        "bytes",
        "before rename",
        "after rename",
        "folder",
    ]
