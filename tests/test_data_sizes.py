"""The location of a data set's rows does not change what is sampled; packed files are complete and match their
data."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from rl_training import cli
from rl_training.data import columns, mapped
from rl_training.data.building import unpacked
from rl_training.data.episodes import hold_out
from rl_training.data.extra_columns import NEXT_ACTIONS, Column
from rl_training.data.loading import DatasetConfig, load_dataset
from rl_training.data.mapped import open_packed
from rl_training.data.packing import Linked, Walk
from rl_training.data.placement import MemoryBudget
from rl_training.errors import ConfigError, DatasetError, MemoryLimitError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.report.grouping import Selection, group
from rl_training.report.reading import read_runs
from rl_training.runs.spec import RunOptions
from rl_training.runtime.populations import train_population
from tests.dataset_files import HIGH, LOW, episodes, save_hdf5, save_minari, save_npz
from tests.reliability.processes import Child, wait_for
from tests.runs import KillAt, differences, interrupted, mostly_slow, resume, run_record, tiny, train

CPU = torch.device("cpu")
Extras = tuple[Column, ...]
PLACES = {"config/host_memory", "config/output_dir"}  # in which two runs may differ
BOUNDS: dict[str, Any] = {"action_low": LOW, "action_high": HIGH}
WALKS = episodes((40, 30, 50, 25), (True, False, False, True))


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return save_hdf5(folder / "walks.hdf5", WALKS, **BOUNDS)


def settings(data: Path, **more: Any) -> dict[str, Any]:
    return {"dataset_kind": "hdf5", "dataset_path": str(data), **more}


def load(data: Path, host_memory: int | None = 0, *, spare: Path | None = None, extras: Extras = (), **more: Any):
    config = DatasetConfig.parse(settings(data, **more) if "datasets" not in more else more)
    return load_dataset(config, spaces=None, extras=extras, budgets=MemoryBudget(CPU, None, host_memory, spare))


def packed(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*.rows") if file.is_file())


def config_of(algo: str, folder: Path, data: Path, **fields: Any) -> TrainConfig:
    kwargs = settings(data) | fields.pop("kwargs", {})
    return tiny(algo, folder, env_id=None, kwargs=kwargs, **fields)


# The same numbers everywhere.

TRANSFORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rewards": {"reward_scale": 3.0, "reward_shift": -1.0},
    "range": {"reward_range_scaling": True, "reward_shift": 0.5},
    "best": {"top_fraction": 0.6, "reward_range_scaling": True},
}


@pytest.mark.parametrize("extras", [(), (NEXT_ACTIONS,)], ids=["plain", "next_actions"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_packed_file_has_the_same_rows_as_memory(data: Path, name: str, extras: Extras) -> None:
    options = TRANSFORMS[name] | {"extras": extras}
    there, again = (load(data, 0, **options) for _ in range(2))
    for file in packed(data.parent):
        file.unlink()
    here = load(data, None, **options)
    assert packed(data.parent) == []
    for made in (there, again):
        assert isinstance(made.rows, np.memmap)
        np.testing.assert_array_equal(made.rows, here.rows)
        np.testing.assert_array_equal(made.episode_ends, here.episode_ends)
        assert made.notes == here.notes
        assert made.spaces == here.spaces
        assert (made.reward_map, made.extras) == (here.reward_map, here.extras)
        assert made.name == here.name
        assert made.fingerprint() == here.fingerprint()
    assert not isinstance(here.rows, np.memmap)


@pytest.mark.parametrize("host_memory", [None, 0])
@pytest.mark.parametrize("extras", [(), (NEXT_ACTIONS,)], ids=["plain", "next_actions"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_raw_rows_are_those_of_the_file(data: Path, name: str, extras: Extras, host_memory: int | None) -> None:
    """For every learner, in memory, in a new packed file and in an existing one."""
    plain = load(data, None)
    for _ in range(2):
        made = load(data, host_memory, extras=extras, **TRANSFORMS[name])
        assert made.raw == (len(plain), plain.fingerprint())
    assert hold_out(made, 0.3).training.raw == made.raw


def test_raw_rows_distinguish_files(tmp_path: Path, data: Path) -> None:
    other = save_hdf5(tmp_path / "other.hdf5", {**WALKS, "rewards": WALKS["rewards"] + 1}, **BOUNDS)
    mixed = [settings(data), settings(other)]
    raws = [
        load(data, None, reward_shift=1.0).raw,
        load(other, None).raw,
        load(data, None, datasets=mixed).raw,
        load(data, None, datasets=mixed[::-1]).raw,
    ]
    assert [raw.rows for raw in raws] == [145, 145, 290, 290]
    assert len({raw.fingerprint for raw in raws}) == 4


def test_a_packed_file_without_raw_rows_is_still_read(data: Path) -> None:
    """Written by a version that did not record them: the header and the end of the file have the old format."""
    load(data, reward_scale=2.0)
    (file,) = packed(data.parent)
    found = open_packed(file, json.loads(file.read_bytes()[:4096].rstrip(b"\0"))["identity"])
    assert found is not None
    before = found._replace(about={key: value for key, value in found.about.items() if key != "raw"})
    made = unpacked(before, "walks", None, MemoryBudget(CPU, None, 0))
    assert (made.raw, len(made)) == (None, 145)


def test_learners_that_leave_rows_out_share_the_task_of_their_file(data: Path, tmp_path: Path) -> None:
    for algo, kwargs in (("td3_bc", {}), ("rebrac", {}), ("bc", {"validation_fraction": 0.3})):
        train(config_of(algo, tmp_path / "runs", data, total_timesteps=1, kwargs=kwargs))
    runs = read_runs(tmp_path / "runs")
    records = {run.algo: run.dataset for run in runs.runs}
    assert len({record["rows"] for record in records.values()}) == 3
    assert len({record["fingerprint"] for record in records.values()}) == 3
    assert {record["raw_rows"] for record in records.values()} == {145}
    assert group(runs, Selection()).tasks == ("no environment, walks",)


def test_arrays_in_memory_have_raw_rows_too(data: Path, tmp_path: Path) -> None:
    arrays = load(data, None)
    for algo in ("td3_bc", "rebrac"):
        config = tiny(algo, tmp_path / "runs", env_id=None, kwargs={"reward_scale": 2.0}, total_timesteps=1)
        config = config.replace(algo_kwargs={k: v for k, v in config.algo_kwargs.items() if "dataset" not in k})
        get_algorithm_spec(algo).train(config, dataset=arrays, options=RunOptions(quiet=True))
    found = {run.dataset["raw_fingerprint"] for run in read_runs(tmp_path / "runs").runs}
    assert found == {arrays.fingerprint()}


def test_transforms_in_place_give_the_same_rows(data: Path) -> None:
    """A run transforms in place; the separate transforms give the same rows."""
    config = DatasetConfig.parse(settings(data, top_fraction=0.6, reward_scale=2.0))
    plain = load_dataset(DatasetConfig.parse(settings(data)), spaces=None)
    before = plain.rows.copy()
    expected = config.transform(plain).with_next_actions()
    np.testing.assert_array_equal(plain.rows, before)
    made = load_dataset(config, spaces=None, extras=(NEXT_ACTIONS,))
    np.testing.assert_array_equal(made.rows, expected.rows)
    assert made.episode_ends.tolist() == expected.episode_ends.tolist()
    assert made.notes == expected.notes


def test_a_mixture_has_one_file_and_keeps_its_weights(data: Path) -> None:
    other = save_npz(data.parent / "others.npz", episodes((9, 8), (False, True), seed=5), **BOUNDS)
    mixture = [settings(data, weight=3.0), {"dataset_kind": "npz", "dataset_path": str(other)}]
    there, here = (load(data, limit, datasets=mixture, top_fraction=0.7) for limit in (0, 10**9))
    assert len(packed(data.parent)) == 1
    assert there.parts == here.parts
    assert len(there.parts) == 2
    assert there.name == here.name
    drawn = [data.source(torch.Generator().manual_seed(1)).sample_rows(64) for data in (there, here)]
    assert torch.equal(drawn[0], drawn[1])


def test_minari_data_are_packed_next_to_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    save_minari(tmp_path / "minari", "mine/walks-v0", WALKS)
    config = DatasetConfig.parse({"dataset_kind": "minari", "dataset_id": "mine/walks-v0"})
    there, here = (
        load_dataset(config, spaces=None, budgets=MemoryBudget(CPU, None, limit)) for limit in (0, 10**9)
    )
    np.testing.assert_array_equal(there.rows, here.rows)
    assert [file.parent.name for file in packed(tmp_path)] == ["data"]
    assert there.name == here.name


def test_newly_downloaded_data_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    fetched = []

    def fetch(dataset_id: str) -> None:
        fetched.append(save_minari(tmp_path / "minari", dataset_id, WALKS))

    monkeypatch.setattr("rl_training.data.formats.minari._download", fetch)
    config = DatasetConfig.parse(
        {"dataset_kind": "minari", "dataset_id": "mine/walks-v0", "dataset_download": True}
    )
    for _ in range(2):
        assert load_dataset(config, spaces=None, budgets=MemoryBudget(CPU, None, 0)).rows.filename
    assert len(fetched) == len(packed(tmp_path)) == 1


def test_collected_transitions_are_the_same_in_a_mixture(data: Path) -> None:
    """Collected transitions have no file to pack next to; moving rows does not change them."""
    collected = load(data, None)

    def collect(size: int, seed: int) -> Any:
        return replace(collected, name=f"{size} of seed {seed}")

    mixture = [settings(data), {"dataset_kind": "random", "dataset_size": 145}]
    config = DatasetConfig.parse({"datasets": mixture, "reward_scale": 2.0})
    kept = collected.rows.copy()
    for limit in (None, 0):
        made = load_dataset(
            config, spaces=None, collect=collect, extras=(NEXT_ACTIONS,), budgets=MemoryBudget(CPU, None, limit)
        )
        expected = collected.with_rewards(2.0).with_next_actions().rows
        np.testing.assert_array_equal(made.rows, np.concatenate([expected, expected]))
        assert isinstance(made.rows, np.memmap) == (limit == 0)
    np.testing.assert_array_equal(collected.rows, kept)
    assert packed(data.parent) == []


@pytest.mark.parametrize("algo", mostly_slow(["iql", "edac", "td3_bc", "rebrac", "cql", "rlpd"], "rlpd"))
def test_a_run_is_bit_identical_for_every_location_of_its_rows(algo: str, tmp_path: Path) -> None:
    world = tmp_path / "data"
    world.mkdir()
    walks = episodes((40, 30, 50, 25), (True, False, False, True))
    walks["actions"] = np.clip(walks["actions"][:, :1], -2, 2)
    file = save_hdf5(world / "walks.hdf5", walks, action_low=(-2.0,), action_high=(2.0,))

    def config(name: str, limit: int | None) -> TrainConfig:
        kwargs = settings(file)
        return tiny(algo, tmp_path / name, kwargs=kwargs, host_memory=limit, total_timesteps=70)

    memory = train(config("memory", None), [KillAt()])
    assert packed(world) == []
    mapped = train(config("mapped", 0), [KillAt()])
    assert len(packed(world)) == 1
    assert set(differences(memory, mapped)) <= PLACES


@pytest.mark.parametrize(("before", "after"), mostly_slow([(0, 0), (0, None), (None, 0)], (0, None)))
def test_a_run_resumes_exactly_with_its_rows_in_another_location(
    tmp_path: Path, data: Path, before: int | None, after: int | None
) -> None:
    straight = train(config_of("iql", tmp_path / "straight", data, host_memory=before), [KillAt()])
    run = interrupted(config_of("iql", tmp_path / "cut", data, host_memory=before), 30)
    resumed = resume(run, [KillAt()], changes={"host_memory": after})
    assert set(differences(straight, resumed)) <= PLACES
    assert run_record(run)["exact_resume"] is True


def test_members_of_a_population_share_one_mapped_file(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def watched(path: Path, identity: str) -> Any:
        found = open_packed(path, identity)
        opened.extend([path] if found else [])
        return found

    monkeypatch.setattr("rl_training.data.mapped.open_packed", watched)
    results = []
    for name, limit in (("memory", None), ("mapped", 0)):
        config = config_of("iql", tmp_path / name, data, host_memory=limit)
        results.append(
            train_population([config.replace(seed=seed) for seed in (1, 2, 3)], options=RunOptions(quiet=True))
        )
        assert opened == ([] if limit is None else packed(data.parent))
    assert len(opened) == 1
    for one, other in zip(*results):
        assert set(differences(one, other)) <= PLACES


# A packed file is complete and belongs to exactly these data and settings.


def test_a_packed_file_is_written_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(data)
    monkeypatch.setattr("rl_training.data.loading.read_columns", lambda *_, **__: pytest.fail("read again"))
    assert len(load(data)) == 145
    in_memory = load(data, 10**9)  # taken into memory where there is room
    assert not isinstance(in_memory.rows, np.memmap)


def test_other_data_in_the_same_place_are_packed_again(data: Path) -> None:
    first = load(data)
    (file,) = packed(data.parent)
    times = data.stat().st_atime_ns, data.stat().st_mtime_ns
    with h5py.File(data, "r+") as source:
        source["rewards"][3] = 9.0
    os.utime(data, ns=times)  # the same size and the same time, and still not the same file
    second = load(data)
    assert packed(data.parent) == [file]
    assert second.rewards[3] == 9.0
    assert first.rewards[3] != 9.0  # existing mappings keep the old file
    assert second.fingerprint() != first.fingerprint()


def test_each_transform_has_its_own_packed_file(data: Path) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"extras": (NEXT_ACTIONS,)},
        {"reward_scale": 2.0},
        {"reward_shift": 2.0},
        {"reward_range_scaling": True},
        {"top_fraction": 0.5},
        {"datasets": [settings(data, weight=2.0)]},
    ]
    found = [load(data, **way).fingerprint() for way in ways]
    assert len(packed(data.parent)) == len(ways)
    assert [load(data, **way).fingerprint() for way in ways] == found
    load(data, normalize_observations=True)  # which the model does
    assert len(packed(data.parent)) == len(ways)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def cut_quietly(file: Path) -> None:
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    cut(file)
    os.utime(file, ns=times)


def longer(file: Path) -> None:
    with file.open("ab") as out:
        out.write(b"more")


def flip(file: Path) -> None:
    with file.open("r+b") as out:
        out.seek(5000)
        byte = out.read(1)[0]
        out.seek(5000)
        out.write(bytes([byte ^ 1]))


def empty(file: Path) -> None:
    file.write_bytes(b"")


def foreign(file: Path) -> None:
    file.write_bytes(b"\x89HDF and so on" * 1000)


def of_others(file: Path) -> None:
    whole = file.read_bytes()
    header = json.loads(whole[:4096].rstrip(b"\0"))
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    header["identity"] = "0" * 64
    file.write_bytes(json.dumps(header).encode().ljust(4096, b"\0") + whole[4096:])
    os.utime(file, ns=times)


def wild(file: Path) -> None:
    whole = file.read_bytes()
    header = json.loads(whole[:4096].rstrip(b"\0")) | {"rows": -3, "width": [], "episodes": None}
    file.write_bytes(json.dumps(header).encode().ljust(4096, b"\0") + whole[4096:])


def boundless(file: Path) -> None:
    whole = file.read_bytes()
    header = whole[:4096].rstrip(b"\0").replace(b'"rows": 145', b'"rows": 1e999')
    assert b"1e999" in header
    file.write_bytes(header.ljust(4096, b"\0") + whole[4096:])


def in_nobody_s_hands(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.with_name("nowhere"))


@pytest.mark.parametrize(
    "damage", [cut, cut_quietly, longer, flip, empty, foreign, of_others, wild, boundless, in_nobody_s_hands]
)
def test_a_damaged_or_foreign_file_is_rebuilt(data: Path, damage: Any) -> None:
    expected = load(data).fingerprint()
    (file,) = packed(data.parent)
    whole = file.read_bytes()[4096:]
    damage(file)
    again = load(data)
    assert again.fingerprint() == expected
    assert not file.is_symlink()
    assert file.read_bytes()[4096:] == whole
    assert not isinstance(load(data, None).rows, np.memmap)


def test_bad_data_leave_nothing_behind(data: Path) -> None:
    with h5py.File(data, "r+") as source:
        source["rewards"][100] = np.nan
    with pytest.raises(DatasetError, match="column 'rewards', row 100: nan is not a finite"):
        load(data)
    assert [file.name for file in data.parent.iterdir()] == [data.name]


def broken(walk: Any) -> Any:
    raise OSError(5, "Input/output error")


def test_data_that_cannot_be_read_are_not_taken_for_a_folder_without_room(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.data.packing.Walk.__iter__", broken)
    with pytest.raises(OSError, match="Input/output error"):
        load(data)
    assert [file.name for file in data.parent.iterdir()] == [data.name]


def test_a_stored_exception_does_not_keep_the_lock(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception keeps references to the rows, as in a notebook; another process can still pack the file."""
    kept: list[Any] = []
    room = mapped._room
    monkeypatch.setattr(mapped, "_room", lambda *arguments: kept.append(room(*arguments)) or kept[-1])
    monkeypatch.setattr(mapped, "_remove", lambda path: None)
    monkeypatch.setattr("rl_training.data.packing.Walk.__iter__", broken)
    with pytest.raises(OSError, match="Input/output error"):
        load(data)
    (left,) = data.parent.glob(".tmp-*")
    with left.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(kept) == 1


def test_unfinished_files_without_an_owner_are_removed(data: Path) -> None:
    left, held = (data.with_name(f".tmp-{data.name}.{digit * 10}.rows") for digit in "01")
    left.write_bytes(b"rows under other settings, of a process that was killed")
    with held.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        made = load(data)
    assert {*data.parent.iterdir()} == {data, held, Path(made.rows.filename)}


def test_an_unwritable_folder_is_replaced_by_the_output_folder(
    tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is written to the run's output folder, and a line reports it."""
    load(data)
    (file,) = packed(data.parent)
    file.unlink()
    blocked = file.with_name(f".tmp-{file.name}")
    blocked.mkdir()
    with caplog.at_level(logging.WARNING):
        there = load(data, spare=tmp_path / "runs" / ".rows")
    (substitute,) = packed(tmp_path)
    assert substitute.parent == tmp_path / "runs" / ".rows"
    assert [record.getMessage() for record in caplog.records] == [
        f"{data.parent}: Is a directory; packed rows are in {substitute}"
    ]
    assert load(data, spare=tmp_path / "runs" / ".rows").rows.filename == str(substitute)
    np.testing.assert_array_equal(there.rows, load(data, host_memory=None).rows)


def test_without_a_writable_folder_one_line_gives_the_reason(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MemoryLimitError, match=r"145 rows need .*no folder takes.*No space left") as refused:
        load(data)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and file != data]


# Processes.


def packing(data: Path, pause: float) -> None:
    """Load with many chunks, each with a line and a pause, and print the checksum."""
    walk = Walk.__iter__

    def slowly(self: Walk) -> Iterator[Linked]:
        for i, linked in enumerate(walk(self)):
            print("packing", i, flush=True)
            time.sleep(pause)
            yield linked

    Walk.__iter__ = slowly  # type: ignore[method-assign]
    columns.CHUNK_BYTES = 300
    print(load(data).fingerprint())


def test_killed_while_packing_the_next_one_packs_again(data: Path, tmp_path: Path) -> None:
    process = Child(lambda: packing(data, 0.2), tmp_path / "output")
    wait_for(lambda: "packing 3" in process.text())
    assert process.poll() is None
    process.kill()
    (left,) = [file for file in data.parent.iterdir() if file != data]
    assert left.name.startswith(".tmp-")
    made = load(data)
    assert packed(data.parent) == [Path(made.rows.filename)]
    assert not left.exists()
    packed(data.parent)[0].unlink()
    assert load(data, None).fingerprint() == made.fingerprint()


def test_two_processes_pack_once(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = Child(lambda: packing(data, 0.05), tmp_path / "output")
    wait_for(lambda: "packing 0" in process.text())
    with caplog.at_level(logging.WARNING):
        made = load(data)  # waits for the other
    assert process.wait(60) == 0, process.text()
    assert made.fingerprint() == process.text().splitlines()[-1]
    assert [record.getMessage() for record in caplog.records] == [
        f"{data.parent}: another process is packing the same rows; waiting for it"
    ]
    assert [file.name for file in data.parent.iterdir() if file != data] == [Path(made.rows.filename).name]


# MemoryBudget.


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4 * 10**9),
        ("512MB", 512 * 10**6),
        ("1.5 GiB", 3 * 2**29),
        ("7kb", 7000),
        ("8", 8),
        (1e6, 10**6),
        (0, 0),
    ],
)
def test_sizes_are_bytes(tmp_path: Path, text: Any, size: int) -> None:
    assert tiny("bc", tmp_path, host_memory=text).host_memory == size
    assert tiny("bc", tmp_path, device_memory=text).to_dict()["device_memory"] == size


@pytest.mark.parametrize("value", ["4 bananas", "-1GB", "", "GB", -1, True, 1.5, [4], "nan", "1e400GB", "4GBGB"])
@pytest.mark.parametrize("key", ["host_memory", "device_memory"])
def test_invalid_sizes_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} must be [^\n]*$") as refused:
        tiny("bc", tmp_path, **{key: value})
    assert refused.value.key == key


def test_the_command_line_refuses_it_in_one_line(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--algo", "bc", "--steps", "5", "--set", f"output_dir={tmp_path / 'runs'}"]
    command += ["--set", "dataset_kind=hdf5", "--set", f"dataset_path={data}", "--set", "host_memory=lots"]
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "host_memory must be a size such as 4GB, 512MB or a number of bytes, got 'lots'" in line
    assert not (tmp_path / "runs").exists()


def test_a_run_reports_an_unexpected_location_of_its_rows(
    tmp_path: Path, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def said(name: str, **fields: Any) -> list[str]:
        config = config_of("bc", tmp_path / name, data, total_timesteps=5, **fields)
        get_algorithm_spec("bc").train(config)
        captured = capfd.readouterr()
        return [line for line in (captured.out + captured.err).splitlines() if "KiB" in line]

    assert said("memory") == []
    fits = "145 rows (6.8 KiB) in host memory: they fit there (host_memory)"
    assert said("allowed", host_memory="1GB") == [fits]
    (line,) = said("mapped", host_memory=6000)
    assert f"145 rows (6.8 KiB) in {packed(data.parent)[0]}, read ahead" in line


def test_a_gpu_without_enough_memory_is_reported() -> None:
    """With a stand-in for the GPU: the message depends on the devices only."""
    rows = np.zeros((10, 4), np.float32)
    there, here = torch.zeros(1, device="meta"), torch.zeros(1)
    budgets = MemoryBudget(torch.device("meta"))
    assert budgets.remarks(rows, there) == ()
    assert budgets.remarks(rows, here) == (
        "10 rows (160 B) in host memory, minibatches copied ahead: they fit there (host_memory); "
        "meta has no room for them (device_memory)",
    )
    assert replace(budgets, device_memory=200).remarks(rows, there) == (
        "10 rows (160 B) on meta: they fit there (device_memory)",
    )
