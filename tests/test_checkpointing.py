"""A checkpoint is complete or absent: killed writers, full disks, damaged and foreign files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_training.errors import CheckpointError
from rl_training.experiment import checkpointing, files, shards
from rl_training.experiment.checkpointing import (
    RowsToSave,
    find_checkpoint,
    latest_valid,
    list_checkpoints,
    prune,
    read_checkpoint,
    write_checkpoint,
)

TENSORS = {
    "model": {"w": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(3)},
    "rng": {"cpu": torch.arange(9).byte()},
}
RECORDS = {"trainer": {"step": 3, "best": None, "seed": 2**100, "lr": 1e-3}}


class Ring:
    """A buffer as the trainer keeps it: row n holds the number n in its first column."""

    def __init__(self, capacity: int, width: int = 2) -> None:
        self.rows = torch.full((capacity, width), -1.0)
        self.added = 0

    def add(self, count: int) -> Ring:
        for _ in range(count):
            self.rows[self.added % len(self.rows)] = torch.tensor([self.added, 0.5])
            self.added += 1
        return self

    def save(self) -> RowsToSave:
        capacity = len(self.rows)
        return RowsToSave(self.rows, min(self.added, capacity), self.added, capacity)


def write(parent: Path, step: int, **changes: Any) -> Path:
    return write_checkpoint(parent, step, **{"tensors": TENSORS, "records": RECORDS, **changes})


def rows_of(path: Path) -> torch.Tensor:
    checkpoint = read_checkpoint(path)
    assert checkpoint.rows is not None
    out = torch.empty(checkpoint.rows.filled, checkpoint.rows.width)
    checkpoint.read_rows(out)
    return out


def temporaries(parent: Path) -> list[Path]:
    return list(parent.glob(".tmp-*"))


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_ROWS", 4)


def in_child(action: Callable[[], None]) -> int:
    """Run `action` in a forked process that may die at any point; returns its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


@pytest.mark.parametrize(("filled", "count"), [(3, 8), (23, 8), (23, 100), (64, 5)])
def test_some_rows_are_spread_over_some_shards(filled: int, count: int, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write(tmp_path, 1, rows=Ring(64).add(filled).save()))
    found = checkpoint.some_rows(count)[:, 0].tolist()
    assert 1 <= len(found) <= count
    assert found == sorted(set(found))
    assert set(found) <= set(range(filled))
    assert len({row // 4 for row in found}) == {3: 1, 23: 3, 64: 4}[filled]
    for empty in (None, Ring(8).save()):
        with pytest.raises(CheckpointError, match="holds no replay rows"):
            read_checkpoint(write(tmp_path, 2, rows=empty)).some_rows(5)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    tensors = {
        "model": {
            "view": base[2:8].view(2, 3).t(),
            "same": base,
            "expanded": torch.ones(1).expand(3),
            "half": torch.ones(2, dtype=torch.bfloat16),
            "parameter": torch.nn.Parameter(torch.zeros(2)),
            "empty": torch.zeros(0, 3),
        }
    }
    path = write_checkpoint(tmp_path, 7, tensors=tensors, records=RECORDS, rows=Ring(10).add(6).save())
    assert path == tmp_path / "step_000000007"
    checkpoint = read_checkpoint(path)
    assert checkpoint.step == 7
    assert checkpoint.records == RECORDS
    for name, tensor in tensors["model"].items():
        assert torch.equal(checkpoint.tensors["model"][name], tensor)
        assert checkpoint.tensors["model"][name].dtype == tensor.dtype
    assert rows_of(path)[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_moved_folder_is_the_same_checkpoint(tmp_path: Path) -> None:
    ring = Ring(8).add(8)
    first = write(tmp_path / "a", 1, rows=ring.save())
    second = write(tmp_path / "a", 2, rows=ring.add(1).save(), previous=first)
    shutil.move(second, tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "a")
    assert rows_of(tmp_path / "elsewhere")[:, 0].tolist() == [8, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"best": float("nan")}, "trainer.json: best must be finite"),
        ({"best": [1, float("-inf")]}, r"trainer.json: best\[1\] must be finite"),
        ({"best": np.float64(1.0)}, "trainer.json: best must be plain data, got numpy.float64"),
        ({"best": np.int64(1)}, "trainer.json: best must be plain data"),
        ({"best": torch.tensor(1)}, "trainer.json: best must be plain data"),
        ({1: 2}, "trainer.json: record: keys must be strings"),
    ],
)
def test_records_that_json_cannot_represent_are_refused(tmp_path: Path, record: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        write(tmp_path, 1, records={"trainer": record})
    assert list_checkpoints(tmp_path) == []


@pytest.mark.parametrize("name", ["../x", "a/b", "", "manifest", ".hidden", "a.b"])
def test_a_part_cannot_be_outside_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a part"):
        write(tmp_path, 1, records={name: {}})


@settings(max_examples=200, deadline=None)
@given(capacity=st.integers(1, 21), before=st.integers(0, 50), count=st.integers(0, 30))
def test_a_shard_is_shared_exactly_when_none_of_its_slots_changed(capacity: int, before: int, count: int) -> None:
    ring = Ring(capacity).add(before)
    old, old_rows = ring.save().info, ring.rows.clone()
    new = ring.add(count).save().info
    same = {
        shard[0]
        for shard in set(old.shards()) & set(new.shards())
        if torch.equal(old_rows[shard[1] : shard[2]], ring.rows[shard[1] : shard[2]])
    }
    assert new.unchanged_since(old) == same
    assert new.unchanged_since(None) == set()


@pytest.mark.parametrize("counts", [(3, 0, 2, 9), (10, 1, 10, 11), (25, 4, 4, 4, 4), (0, 0, 5)])
def test_linked_shards_hold_what_the_ring_holds(tmp_path: Path, counts: tuple[int, ...]) -> None:
    ring, previous = Ring(10), None
    for step, count in enumerate(counts):
        saved = ring.add(count).save()
        previous = write(tmp_path, step, tensors={}, records={}, rows=saved, previous=previous)
        assert torch.equal(rows_of(previous), ring.rows[: saved.filled])


def test_only_written_slots_cost_disk(tmp_path: Path) -> None:
    def inodes(path: Path) -> list[int]:
        return [file.stat().st_ino for file in sorted((path / "replay").iterdir())]

    ring = Ring(16).add(14)
    first = write(tmp_path, 1, rows=ring.save())
    second = write(tmp_path, 2, rows=ring.add(3).save(), previous=first)
    shared = [a == b for a, b in zip(inodes(first), inodes(second), strict=True)]
    assert shared == [False, True, True, False]  # slots 14, 15 and, around the end, 0 were written
    third = write(tmp_path, 3, rows=ring.save(), previous=second)
    assert inodes(third) == inodes(second)
    fourth = write(tmp_path, 4, rows=ring.add(16).save(), previous=third)
    assert not set(inodes(fourth)) & set(inodes(third))
    shutil.rmtree(first)
    assert torch.equal(rows_of(fourth), ring.rows)


def test_without_links_or_a_usable_previous_every_shard_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Ring(12).add(12)
    first = write(tmp_path, 1, rows=ring.save())
    (first / "replay" / "shard_00001.safetensors").write_bytes(b"short")
    second = write(tmp_path, 2, rows=ring.save(), previous=first)
    assert torch.equal(rows_of(second), ring.rows)
    (first / "manifest.json").write_bytes(b"{}")
    assert torch.equal(rows_of(write(tmp_path, 3, rows=ring.save(), previous=first)), ring.rows)

    def no_links(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    third = write(tmp_path, 4, rows=ring.save(), previous=second)
    assert (third / "replay" / "shard_00000.safetensors").stat().st_nlink == 1
    assert torch.equal(rows_of(third), ring.rows)


def test_a_ring_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="filled must be"):
        RowsToSave(torch.zeros(4, 2), filled=3, added=5, capacity=4)
    with pytest.raises(ValueError, match="rows must be"):
        RowsToSave(torch.zeros(4, 2), filled=5, added=5, capacity=8)


def test_rows_must_fit_where_they_are_read_into(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write(tmp_path, 1, rows=Ring(8).add(6).save()))
    for out in (torch.zeros(5, 2), torch.zeros(8, 3), torch.zeros(8, 2, dtype=torch.float64)):
        with pytest.raises(CheckpointError, match="6 replay rows of 2 float32, which do not fit"):
            checkpoint.read_rows(out)
    with pytest.raises(CheckpointError, match="no replay rows"):
        read_checkpoint(write(tmp_path, 2)).read_rows(torch.zeros(1, 1))


def points_of(action: Callable[[], Any]) -> list[str]:
    """The named points an action passes, in order."""
    passed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "failpoint", passed.append)
        action()
    return passed


@contextlib.contextmanager
def failing_at(index: int, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` when point number `index` is passed."""
    count = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "failpoint", lambda name: act() if next(count) == index else None)
        yield


@pytest.mark.parametrize("step", [2, 1], ids=["new step", "replaced step"])
def test_kill_9_anywhere_leaves_a_valid_checkpoint(tmp_path: Path, step: int) -> None:
    def prepare(parent: Path) -> Callable[[], None]:
        ring = Ring(12).add(9)
        old = write(parent, 1, rows=ring.save(), records={"trainer": {"age": "old"}})
        new = ring.add(2).save()

        def save_and_prune() -> None:
            write(parent, step, rows=new, previous=old, records={"trainer": {"age": "new"}})
            prune(parent, 1)

        return save_and_prune

    points = points_of(prepare(tmp_path / "count"))
    assert len(points) >= 15
    commit = points.index(f"after rename step_{step:09d}")
    for index, point in enumerate(points):
        parent = tmp_path / str(index)
        action = prepare(parent)
        with failing_at(index, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            assert os.WTERMSIG(in_child(action)) == signal.SIGKILL
        path, warnings = latest_valid(parent)
        assert warnings == [], point
        assert read_checkpoint(path).records["trainer"]["age"] == ("new" if index >= commit else "old"), point
        assert len(rows_of(path)) == (11 if index >= commit else 9), point
        last = write(parent, 3)
        prune(parent, 1)
        assert list(parent.iterdir()) == [last], point


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO])
def test_a_failing_disk_leaves_no_partial_folder(tmp_path: Path, number: int) -> None:
    ring = Ring(12).add(9)
    parent = tmp_path / "c"
    old = write(parent, 1, rows=ring.save())

    def action() -> Path:
        return write(parent, 2, rows=ring.save(), previous=old)

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    points = points_of(action)
    shutil.rmtree(parent / "step_000000002")
    for index in range(points.index("before rename step_000000002") + 1):
        with failing_at(index, fail), pytest.raises(CheckpointError) as caught:
            action()
        message = str(caught.value)
        assert message.startswith(f"{parent / 'step_000000002'}: cannot be written: {os.strerror(number)}")
        assert ("bytes" in message and "free" in message) == (number != errno.EIO)
        assert list(parent.iterdir()) == [old]
        assert latest_valid(parent) == (old, [])


def test_a_file_size_limit_of_the_system_is_a_full_disk(tmp_path: Path) -> None:
    write(tmp_path, 1)
    report = tmp_path / "report"

    def action() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            write(tmp_path, 2, tensors={"model": {"w": torch.zeros(100_000)}})
        except CheckpointError as error:
            report.write_text(str(error))

    assert in_child(action) == 0
    assert "needs about 400" in report.read_text()
    assert temporaries(tmp_path) == []
    assert latest_valid(tmp_path)[0].name == "step_000000001"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_ROWS", 4)
        return write(tmp_path_factory.mktemp("pristine"), 5, rows=Ring(12).add(9).save())


NAMES = [
    "model.safetensors",
    "rng.safetensors",
    "trainer.json",
    "manifest.json",
    *(f"replay/shard_{i:05d}.safetensors" for i in range(3)),
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(["flip", "truncate", "delete", "append", "swap", "link", "folder"]),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    other=st.sampled_from(NAMES),
)
def test_any_damage_to_any_file_is_detected(
    tmp_path_factory: pytest.TempPathFactory,
    pristine: Path,
    name: str,
    kind: str,
    where: float,
    bit: int,
    other: str,
) -> None:
    copy = tmp_path_factory.mktemp("damaged") / "step_000000005"
    shutil.copytree(pristine, copy)
    file = copy / name
    data = bytearray(file.read_bytes())
    offset = int(where * len(data))
    if kind == "flip":
        data[offset] ^= 1 << bit
        file.write_bytes(data)
    elif kind == "truncate":
        file.write_bytes(data[:offset])
    elif kind == "append":
        file.write_bytes(data + b"\n")
    elif kind == "swap" and (pristine / other).read_bytes() != data:
        shutil.copy(pristine / other, file)
    elif kind == "link":
        file.unlink()
        file.symlink_to(pristine / name)
    elif kind == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.unlink()
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(copy)
    assert "\n" not in str(caught.value)
    assert file.name in str(caught.value)
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        latest_valid(copy.parent)
    shutil.rmtree(copy.parent)


def forge(folder: Path, **changes: Any) -> None:
    """Rewrite a manifest and its hash, as an attacker would."""
    body = json.loads((folder / "manifest.json").read_text()) | changes
    body.pop("sha256")
    body["sha256"] = hashlib.sha256(files.encode_json(body)).hexdigest()
    (folder / "manifest.json").write_bytes(files.encode_json(body))


@pytest.mark.parametrize(
    "name", ["../outside.json", "/etc/hostname", "a/../../x.json", "replay/../../x.json", "x.pt"]
)
def test_a_manifest_cannot_name_a_file_outside(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 1)
    (tmp_path / "outside.json").write_text("{}")
    forge(path, files={name: {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}})
    with pytest.raises(CheckpointError, match="file name"):
        read_checkpoint(path)


def test_impossible_manifests_are_refused(tmp_path: Path) -> None:
    huge = {
        "filled": 10**15,
        "added": 10**15,
        "capacity": 10**15,
        "width": 1,
        "dtype": "float32",
        "shard_rows": 1,
    }
    for change in (
        {"rows": huge},
        {"files": []},
        {"step": -1},
        {"step": "1"},
        {"rows": {"filled": 1}},
        {"rows": 3},
    ):
        path = write(tmp_path, 1)
        forge(path, **change)
        with pytest.raises(CheckpointError, match=r"manifest\.json: damaged"):
            read_checkpoint(path)
    (path / "manifest.json").write_bytes(b"[" * 200_000)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        read_checkpoint(path)


def test_a_newer_format_names_the_version_it_needs(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    forge(path, format=checkpointing.FORMAT + 1, package_version="9.1.0", files="of a kind unknown today")
    with pytest.raises(CheckpointError, match=r"format 2 is newer than format 1 .* needs rl-training 9\.1\.0"):
        read_checkpoint(path)


def test_foreign_things_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.zip").write_bytes(b"PK\x03\x04")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"name": "a browser extension"}')
    for name, message in [
        ("model.zip", "a file, not a checkpoint folder"),
        ("missing", "no such checkpoint"),
        ("empty", r"no manifest\.json"),
        ("other", "not a checkpoint of this package"),
    ]:
        with pytest.raises(CheckpointError, match=message) as caught:
            read_checkpoint(tmp_path / name)
        assert "\n" not in str(caught.value)
        with pytest.raises(CheckpointError):
            read_checkpoint(find_checkpoint(tmp_path / name))
    with pytest.raises(CheckpointError, match=r"this package; files of Stable-Baselines3 cannot be loaded$"):
        find_checkpoint(tmp_path / "model.zip")


def flip(path: Path) -> None:
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_checkpoints_are_listed_by_step_and_found_from_a_run(tmp_path: Path) -> None:
    parent = tmp_path / "checkpoints"
    paths = [write(parent, step) for step in (10, 2, 1_000_000_000)]
    best = write(tmp_path / "best", 2)
    (parent / "notes").mkdir()
    (parent / ".tmp-step_000000011-1").mkdir()
    assert list_checkpoints(parent) == [paths[1], paths[0], paths[2]]
    assert find_checkpoint(tmp_path) == paths[2]
    assert find_checkpoint(parent) == paths[2]
    assert find_checkpoint(paths[1]) == paths[1]
    assert find_checkpoint(tmp_path / "best") == best
    flip(paths[2])
    warnings: list[str] = []
    assert find_checkpoint(tmp_path, warnings.append) == paths[0]
    assert len(warnings) == 1
    assert "model.safetensors: damaged: expected sha256" in warnings[0]


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    paths = [write(tmp_path, step) for step in range(5)]
    assert prune(tmp_path, 2) == paths[2::-1]
    assert list_checkpoints(tmp_path) == paths[3:]
    assert prune(tmp_path, 2) == []


@pytest.mark.parametrize("keep", [1, 2])
def test_pruning_never_deletes_the_last_valid_one(tmp_path: Path, keep: int) -> None:
    ring, previous = Ring(8).add(8), None
    for step in range(4):
        previous = write(tmp_path, step, rows=ring.save(), previous=previous)
    newest = list_checkpoints(tmp_path)
    for path in newest[2:]:
        flip(path)
    prune(tmp_path, keep)
    assert latest_valid(tmp_path)[0] == newest[1]
    assert len(list_checkpoints(tmp_path)) == keep + 1
    flip(newest[1])
    before = list_checkpoints(tmp_path)
    prune(tmp_path, keep)
    assert list_checkpoints(tmp_path) == before
