"""Promise 4: truncated, corrupted, swapped or missing files raise one clear error; a run falls back to a valid
checkpoint."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.errors import CheckpointError, RLTrainingError
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint
from rl_training.runs.session import TrainResult
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training
from tests.reliability.test_checkpoint_contents import end_with
from tests.runs import fingerprint, interrupted, logged, tiny, train

KINDS = ["flip", "truncate", "delete", "append", "swap", "empty", "zero"]


@dataclasses.dataclass
class Sample:
    """A run with checkpoints at 30 and 60, and the names of the files in the newest one."""

    result: TrainResult
    names: list[str]

    @property
    def newest(self) -> Path:
        return self.result.checkpoint_path


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    result = train(tiny("rlpd", tmp_path_factory.mktemp("sample"), kwargs={"offline_pretrain_updates": 0}))
    folder = result.checkpoint_path
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert {"manifest.json", "networks.safetensors", "replay/shard_00000.safetensors"} <= set(names)
    return Sample(result, names)


def damage(folder: Path, name: str, kind: str, where: float, other: str) -> bool:
    """Damage one file of a checkpoint; False if the damage would change nothing."""
    file = folder / name
    whole = file.read_bytes()
    offset = min(int(where * len(whole)), len(whole) - 1)
    data = bytearray(whole)
    if kind == "flip":
        data[offset] ^= 1 << (offset % 8)
    elif kind == "truncate":
        del data[offset:]
    elif kind == "append":
        data += b"\0"
    elif kind == "swap":
        data = bytearray((folder / other).read_bytes())
    elif kind == "empty":
        data.clear()
    elif kind == "zero":
        data[offset : offset + 512] = bytes(len(data[offset : offset + 512]))
    file.unlink()  # a shard may be a link into an older checkpoint, which stays whole
    if kind != "delete":
        file.write_bytes(data)
    return kind == "delete" or bytes(data) != whole


def assert_refused(copy: Path, name: str) -> None:
    """Every use of the checkpoint raises the same one-line error, which names the file."""
    messages = set()
    for use in (
        lambda: predict_checkpoint(copy, [0.0, 0.0, 0.0]),
        lambda: evaluate_checkpoint(copy, 1),
        lambda: resume_training(copy),
    ):
        with pytest.raises(CheckpointError) as caught:
            use()
        messages.add(str(caught.value))
    [message] = messages
    assert "\n" not in message
    assert Path(name).name in message


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(KINDS), where=st.floats(0, 1))
def test_any_damage_is_one_clear_error_and_the_run_falls_back(
    sample: Sample, tmp_path_factory: pytest.TempPathFactory, data: Any, kind: str, where: float
) -> None:
    name, other = data.draw(st.sampled_from(sample.names)), data.draw(st.sampled_from(sample.names))
    check_one(sample, tmp_path_factory.mktemp("damaged"), name, kind, where, other)


def check_one(sample: Sample, folder: Path, name: str, kind: str, where: float, other: str) -> bool:
    run = Path(shutil.copytree(sample.result.run_dir, folder / "run"))
    newest = run / "checkpoints" / sample.newest.name
    harmed = damage(newest, name, kind, where, other)
    if harmed:
        assert_refused(newest, name)
        warnings: list[str] = []
        assert find_checkpoint(run, warnings.append).name == "step_000000030"
        [warning] = warnings
        assert warning.startswith("skipped a damaged checkpoint: ")
        assert newest.name in warning
    shutil.rmtree(folder)
    return harmed


def places(sample: Sample) -> Iterator[tuple[str, str, float, str]]:
    """For every file: truncation and bit flips at forty places each, deletion, emptying, and replacement by every
    other file."""
    for name in sample.names:
        for kind in ("flip", "truncate", "zero"):
            yield from ((name, kind, i / 40, name) for i in range(41))
        yield from ((name, kind, 0.0, name) for kind in ("delete", "append", "empty"))
        yield from ((name, "swap", 0.0, other) for other in sample.names)


@pytest.mark.slow
def test_the_full_sweep_of_damage(sample: Sample, tmp_path: Path) -> None:
    tried = sum(check_one(sample, tmp_path / "case", *place) for place in places(sample))
    assert tried > 1_000


@pytest.mark.parametrize("name", ["networks.safetensors", "manifest.json", "replay/shard_00000.safetensors"])
def test_on_the_command_line(sample: Sample, tmp_path: Path, name: str) -> None:
    """A damaged checkpoint exits with 3 and one line; its run resumes from the one before, with the same result."""
    run = Path(shutil.copytree(sample.result.run_dir, tmp_path / "run"))
    newest = run / "checkpoints" / sample.newest.name
    damage(newest, name, "flip", 0.5, name)
    for words in (["evaluate", newest], ["predict", newest, "--obs", "0,0,0"], ["resume", newest]):
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 3
        [line] = [line for line in result.stderr.splitlines() if not line.startswith("evaluating")]
        assert line.startswith("error: ")
        assert Path(name).name in line
    result = CliRunner().invoke(main, ["--quiet", "resume", str(run)])
    assert result.exit_code == 0, result.stderr
    assert "warning: skipped a damaged checkpoint" in result.stderr
    assert fingerprint(newest) == fingerprint(sample.newest)
    assert logged(run) == logged(sample.result.run_dir)


def test_a_run_without_a_valid_checkpoint_raises_one_clear_error(sample: Sample, tmp_path: Path) -> None:
    run = Path(shutil.copytree(sample.result.run_dir, tmp_path / "run"))
    for path in (run / "checkpoints").iterdir():
        damage(path, "trainer.json", "truncate", 0.3, "")
    result = CliRunner().invoke(main, ["resume", str(run)])
    assert result.exit_code == 3
    assert "no valid checkpoint (skipped a damaged checkpoint: " in result.stderr
    assert "expected" in result.stderr
    assert "actual" in result.stderr


LOGS = [b"", b"\0" * 99, b"step,time\n1,2\r3,4\n", b"step,time\n" + b"9" * 200_000 + b"\n", b"\xff\xfe\n"]


@pytest.mark.parametrize("content", LOGS, ids=["empty", "zeros", "returns", "long", "bytes"])
def test_a_damaged_log_does_not_stop_a_resume(sample: Sample, tmp_path: Path, content: bytes) -> None:
    run = Path(shutil.copytree(sample.result.run_dir, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints" / sample.newest.name)
    (run / "metrics.csv").write_bytes(content)
    assert CliRunner().invoke(main, ["--quiet", "resume", str(run)]).exit_code == 0
    assert [row["step"] for row in logged(run)][-2:] == ["40", "60"]


def replaced(record: Any, path: list[Any], value: Any) -> Any:
    """A copy of plain data with the entry at `path` replaced."""
    if not path:
        return value
    key, *rest = path
    if isinstance(record, dict):
        return {**record, key: replaced(record[key], rest, value)}
    return [replaced(item, rest, value) if i == key else item for i, item in enumerate(record)]


def entries(record: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, value in items:
        yield from entries(value, (*path, key))


NONSENSE = [None, "x", -1, [], {}, True, [[0]]]


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interrupted(tiny("sac", tmp_path_factory.mktemp("sac"), total_timesteps=32), 30)


@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(37, id="some")])
def test_an_invalid_state_with_valid_hashes_raises_a_clear_error(sac_run: Path, tmp_path: Path, share: int) -> None:
    """The state is rejected or trained from, without an unexpected exception."""
    checkpoint = read_checkpoint(find_checkpoint(sac_run))
    records = {name: checkpoint.records[name] for name in ("trainer", "collector", "spaces", "dataset")}
    cases = [(path, value) for path in entries(records) for value in NONSENSE][::share]
    messages = []
    for (name, *path), value in cases:
        changed = {**checkpoint.records, name: replaced(checkpoint.records[name], path, value)}
        try:
            end_with(sac_run, dataclasses.replace(checkpoint, records=changed), tmp_path / "run")
        except RLTrainingError as error:
            messages.append(str(error))
        shutil.rmtree(tmp_path / "run")
    assert len(messages) > len(cases) // 4
    assert not any("\n" in message for message in messages)
