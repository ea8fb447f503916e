"""A study as one file: the same bytes for the same study, and nothing unsafe comes out of one."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import files
from rl_training.experiment.runs import amend_record
from rl_training.runtime.workflows import predict_checkpoint
from rl_training.study import Study, packing
from rl_training.study.packing import pack_study, unpack_study
from rl_training.study.plan import read_plan
from rl_training.study.trials import FULL_DISK, Failure, note_failure, read_failure, record_of
from rl_training.study.worker import restart_unfinished
from tests.reliability.processes import Child, command
from tests.studies import contents, homes, study_in


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that is done, and must not be changed."""
    made = study_in(tmp_path_factory.mktemp("packed"))
    made.run()
    return made.folder


@pytest.fixture
def packed(study: Path, tmp_path: Path) -> Path:
    pack_study(study, tmp_path / "tiny.zip")
    return tmp_path / "tiny.zip"


def test_a_signal_leaves_no_part_of_a_packed_study(
    study: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(source: Path, target: Path) -> None:
        assert source.exists()
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(files, "rename", stopped)
    new = tmp_path / "new"
    new.mkdir()
    for words in (["pack", study, "-o", new / "a.zip"], ["unpack", packed, "-o", new / "a"]):
        child = Child(command("study", *words), tmp_path / "output.txt")
        assert child.wait() == 128 + signal.SIGTERM, child.text()
    assert list(new.iterdir()) == []


def test_a_packed_study_comes_back_with_its_results(study: Path, packed: Path, tmp_path: Path) -> None:
    back = unpack_study(packed, tmp_path / "back")
    assert Study(back).frame() == Study(study).frame()
    assert Study(back).best() == Study(study).best()
    for home, copy in zip(homes(study), homes(back)):
        assert (copy / "metrics.csv").read_bytes() == (home / "metrics.csv").read_bytes()
        obs = [0.1, 0.2, 0.3, 0.4]
        assert predict_checkpoint(copy / "best", obs) == predict_checkpoint(home / "best", obs)


def test_it_is_small_replay_buffers_and_optimisers_stay_behind(packed: Path) -> None:
    names = zipfile.ZipFile(packed).namelist()
    assert {"study.yaml", "plan.json"} <= set(names)
    assert not [name for name in names if "checkpoints/" in name or "replay" in name or "optimizers" in name]
    assert [name for name in names if name.endswith("networks.safetensors")]


def test_the_same_study_gives_the_same_bytes(study: Path, packed: Path, tmp_path: Path) -> None:
    os.utime(study / "plan.json")
    pack_study(study, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()
    back = unpack_study(packed, tmp_path / "elsewhere" / "back")
    pack_study(back, tmp_path / "copy.zip")
    assert (tmp_path / "copy.zip").read_bytes() == packed.read_bytes()


def test_nothing_is_overwritten(study: Path, packed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists; nothing is overwritten"):
        pack_study(study, packed)
    (tmp_path / "here").mkdir()
    with pytest.raises(ConfigError, match="exists; nothing is overwritten"):
        unpack_study(packed, tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


def test_the_folder_is_named_by_the_study(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert unpack_study(packed) == Path("studies/tiny")


def test_a_link_in_the_study_is_not_packed(study: Path, tmp_path: Path) -> None:
    pack_study(study, tmp_path / "one.zip")
    copy = unpack_study(tmp_path / "one.zip", tmp_path / "copy")
    (tmp_path / "secret").write_text("secret")
    log = homes(copy)[0] / "metrics.csv"
    log.unlink()
    log.symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match="a link, which is not packed"):
        pack_study(copy, tmp_path / "two.zip")
    assert not (tmp_path / "two.zip").exists()
    assert not list(tmp_path.glob(".tmp-*"))


def added(name: str, data: bytes = b"x", mode: int = stat.S_IFREG | 0o644) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with zipfile.ZipFile(file, "a") as archive:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, data)

    return change


def shortened(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


def flipped(file: Path) -> None:
    """One bit of the first member's bytes."""
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(bytes(data))


def understated(file: Path) -> None:
    """plan.json declares to be smaller than it is."""
    data = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        size = archive.getinfo("plan.json").file_size
    place = data.rindex(b"plan.json", 0, data.rindex(b"plan.json") + 9) - 46 + 24
    assert int.from_bytes(data[place : place + 4], "little") == size
    file.write_bytes(data[:place] + (size - 5).to_bytes(4, "little") + data[place + 4 :])


def overstated(file: Path) -> None:
    """plan.json declares more than this machine has."""
    data = file.read_bytes()
    place = data.rindex(b"plan.json") - 46 + 24
    file.write_bytes(data[:place] + (2**32 - 2).to_bytes(4, "little") + data[place + 4 :])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (added("/etc/passwd"), "'/etc/passwd' is not a file of a packed study"),
        (added("../x"), "'../x' is not a file of a packed study"),
        (added("runs/../../x/metrics.csv"), "is not a file of a packed study"),
        (added("runs/..\\x/metrics.csv"), "is not a file of a packed study"),
        (added("runs/"), "is not a file of a packed study"),
        (added("runs/a/lock"), "is not a file of a packed study"),
        (added("runs/a/module.py"), "is not a file of a packed study"),
        (added("runs/a/best/step_1/x.pkl"), "is not a file of a packed study"),
        (added("runs/stranger/metrics.csv"), "'runs/stranger/metrics.csv' belongs to no trial of the plan"),
        (added("failures/stranger.json"), "belongs to no trial of the plan"),
        (added("runs/a/metrics.csv", mode=stat.S_IFLNK | 0o777), "is not a plain file"),
        (added("runs/a/metrics.csv", mode=stat.S_IFCHR | 0o666), "is not a plain file"),
        (added("runs/a/metrics.csv", mode=stat.S_IFIFO | 0o666), "is not a plain file"),
        (added("plan.json"), "it contains 'plan.json' twice"),
        (shortened, "not a packed study, or damaged"),
        (flipped, "not a packed study, or damaged|not of the size"),
        (understated, "not of the size it declares|damaged"),
        (overstated, "declares 4"),
        (lambda file: file.write_bytes(b"not a zip file"), "not a packed study, or damaged"),
        (lambda file: file.write_bytes(b""), "not a packed study, or damaged"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_file_is_refused_whole(
    packed: Path, tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    change(packed)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=words) as caught:
        unpack_study(packed, tmp_path / "out" / "back")
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before
    assert not (tmp_path / "out" / "back").exists()


def test_sizes_are_bounded(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_LARGEST_MEMBER", 10)
    with pytest.raises(CheckpointError, match="declares"):
        unpack_study(packed, tmp_path / "back")
    monkeypatch.undo()
    monkeypatch.setattr(packing, "_MOST_MEMBERS", 2)
    with pytest.raises(CheckpointError, match="at most 2 are read"):
        unpack_study(packed, tmp_path / "back")


def test_a_disk_without_room_is_one_line(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = packing.shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(packing.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"needs .* and 10 B are free"):
        unpack_study(packed, tmp_path / "back")


def test_what_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        pack_study(tmp_path / "nothing", tmp_path / "x.zip")
    with pytest.raises(ConfigError, match="No such file"):
        unpack_study(tmp_path / "x.zip", tmp_path / "back")


def test_last_policies_are_those_of_the_newest_checkpoints(study: Path, tmp_path: Path) -> None:
    pack_study(study, tmp_path / "last.zip", policies="last")
    back = unpack_study(tmp_path / "last.zip", tmp_path / "back")
    for home, copy in zip(homes(study), homes(back)):
        assert not (copy / "best").exists()
        assert sorted(path.name for path in (copy / "last" / "step_000000060").iterdir()) == sorted(
            path.name for path in next((home / "best").iterdir()).iterdir()
        )
        batch = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
        assert (predict_checkpoint(copy / "last", batch) == predict_checkpoint(home, batch)).all()
        with pytest.raises(CheckpointError, match=f"; its policy is in {copy / 'last'}$"):
            predict_checkpoint(copy, batch)
    pack_study(back, tmp_path / "again.zip", policies="last")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "last.zip").read_bytes()


def test_a_run_without_a_valid_checkpoint_is_packed_without_its_policy(study: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(study, folder)
    damaged, whole = homes(folder)
    for manifest in damaged.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{}")
    with pytest.warns(UserWarning, match=rf"^{damaged.name}: packed without a policy: .* no valid checkpoint"):
        pack_study(folder, tmp_path / "last.zip", policies="last")
    back = unpack_study(tmp_path / "last.zip", tmp_path / "back")
    assert [(home / "last").is_dir() for home in homes(back)] == [False, True]
    assert (back / "runs" / damaged.name / "metrics.csv").is_file()
    shutil.rmtree(damaged / "checkpoints")
    older = next(iter(whole.glob("checkpoints/*")))
    newer = older.with_name("step_000000099")
    newer.mkdir()
    with pytest.warns(UserWarning, match=rf"^{whole.name}: skipped a damaged checkpoint: .*step_000000099"):
        pack_study(folder, tmp_path / "older.zip", policies="last")


def test_without_policies_it_is_smaller_and_tells_the_same(study: Path, packed: Path, tmp_path: Path) -> None:
    pack_study(study, tmp_path / "none.zip", policies="none")
    assert not [name for name in zipfile.ZipFile(tmp_path / "none.zip").namelist() if "safetensors" in name]
    assert (tmp_path / "none.zip").stat().st_size < packed.stat().st_size
    assert Study(unpack_study(tmp_path / "none.zip", tmp_path / "back")).frame() == Study(study).frame()


def test_retry_failed_keeps_the_failure_of_a_trial_without_checkpoints(packed: Path, tmp_path: Path) -> None:
    back = unpack_study(packed, tmp_path / "back")
    plan, (_, home) = read_plan(back), homes(back)
    amend_record(home, status="failed")
    failed = next(trial for trial in plan.trials if trial.name == home.name)
    note_failure(back, failed, Failure(1, "a reason"))
    with pytest.raises(CheckpointError, match="unfinished and without checkpoints"):
        Study(back).run(retry_failed=True)
    assert read_failure(back, failed) == Failure(1, "a reason")
    assert Study(back).run().counts["failed"] == 1


def test_what_was_packed_after_the_disk_was_full_starts_again(study: Path, packed: Path, tmp_path: Path) -> None:
    back = unpack_study(packed, tmp_path / "back")
    plan, (_, home) = read_plan(back), homes(back)
    amend_record(home, status="failed")
    note_failure(back, next(trial for trial in plan.trials if trial.name == home.name), Failure(FULL_DISK, "full"))
    assert [trial.name for trial in restart_unfinished(back, plan)] == [home.name]
    assert Study(back).run().counts["done"] == 2


def test_what_was_packed_before_it_was_done_starts_again_and_what_was_done_stays(
    study: Path, packed: Path, tmp_path: Path
) -> None:
    back = unpack_study(packed, tmp_path / "back")
    done, open_ = homes(back)
    amend_record(open_, status="interrupted")
    created = record_of(done)["created"]
    for words in (("sweep", back), ("work", back)):
        refused = CliRunner().invoke(main, [str(word) for word in words])
        assert refused.exit_code == 3, refused.output
        assert f"error: {open_}: unfinished and without checkpoints" in refused.stderr
    assert not (back / "failures").exists()
    assert [trial.name for trial in restart_unfinished(back, read_plan(back))] == [open_.name]
    assert not open_.exists()
    assert restart_unfinished(back, read_plan(back)) == []
    assert Study(back).run().counts["done"] == 2
    assert record_of(done)["created"] == created
    assert record_of(done)["resumed"] == []
    assert (open_ / "metrics.csv").read_bytes()


def test_a_file_that_grows_a_hundredfold_is_refused_unless_it_is_allowed(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_USUAL_SIZE", 10_000)
    with zipfile.ZipFile(packed) as archive:
        (log, *_) = [name for name in archive.namelist() if name.endswith("metrics.csv")]
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    members[log] = bytes(200 * packed.stat().st_size)
    big = tmp_path / "big.zip"
    with zipfile.ZipFile(big, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(ConfigError, match=r"unpack to .* allow that with --max-size \d+"):
        unpack_study(big, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    result = CliRunner().invoke(
        main, ["study", "unpack", str(big), "-o", str(tmp_path / "back"), "--max-size", "1GB"]
    )
    assert result.exit_code == 0, result.output
    unpack_study(packed, tmp_path / "usual")
    with pytest.raises(ConfigError, match="--max-size"):
        unpack_study(packed, tmp_path / "small", max_size=10)
