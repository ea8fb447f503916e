"""Data files of a user's own format, read by a function `module:function`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import rl_training
from rl_training import BC, TransitionDataset, cli, importing
from rl_training.data.columns import ArrayColumn, Columns
from rl_training.data.loading import DatasetConfig, load_dataset
from rl_training.errors import ConfigError, DatasetError
from rl_training.experiment.registry import resolve
from tests.dataset_files import HIGH, LOW, episodes
from tests.runs import tiny, train

MODULE = """
import json

def read(path):
    return json.loads(path.read_text())
"""


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has names of its own."""
    monkeypatch.setattr(importing, "_KNOWN", {})


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of JSON and, in the current folder, a module that reads it."""
    (tmp_path / "json_log.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    space = {"action_low": list(LOW), "action_high": list(HIGH)}
    path = tmp_path / "log.json"
    path.write_text(json.dumps({name: column.tolist() for name, column in episodes().items()} | space))
    yield path
    forget()


def forget() -> None:
    """As a new process begins."""
    sys.modules.pop("json_log", None)
    importing._KNOWN.clear()


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def read_columns(path: Path) -> Columns:
    given = read(path)
    low, high = tuple(given.pop("action_low")), tuple(given.pop("action_high"))
    return Columns(str(path), {name: ArrayColumn(np.asarray(values)) for name, values in given.items()}, low, high)


def settings(log: Path) -> dict[str, Any]:
    return {"dataset_path": str(log), "batch_size": 4, "hidden_sizes": [8], "checkpoint_interval": 10}


@pytest.mark.parametrize("reader", [read, read_columns])
def test_the_rows_are_those_of_the_arrays(reader: Any, log: Path) -> None:
    found = TransitionDataset.load(log, kind=reader)
    expected = TransitionDataset.from_arrays(**episodes(), action_low=LOW, action_high=HIGH)
    np.testing.assert_array_equal(found.rows, expected.rows)
    assert (found.episode_ends.tolist(), found.spaces) == (expected.episode_ends.tolist(), expected.spaces)


def test_a_model_trains_and_resumes(log: Path, tmp_path: Path) -> None:
    model = BC(None, dataset_kind=read, output_dir=str(tmp_path / "runs"), **settings(log))
    assert model.config.algo_kwargs["dataset_kind"] == f"{__name__}:read"
    result = model.learn(20, progress_bar=False)
    assert result.metrics["dataset_size"] == 12
    importing._KNOWN.clear()
    with pytest.raises(ConfigError, match=rf"^algo_kwargs.dataset_kind: '{__name__}:read' would import the module"):
        rl_training.load(result.run_dir).resume(30, progress_bar=False)
    resumed = rl_training.load(result.run_dir, allow_import=True).resume(30, progress_bar=False)
    assert json.loads((resumed.run_dir / "run.json").read_text())["exact_resume"] is True


def invoked(code: int, *words: object) -> str:
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stderr.splitlines()[-1] if code else result.stdout


def test_commands_need_permission(log: Path) -> None:
    changes = {**settings(log), "dataset_kind": "json_log:read", "dataset_path": "log.json"}
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    train = ("train", "--algo", "bc", "--steps", "20", *words)
    told = "algo_kwargs.dataset_kind: 'json_log:read' would import the module 'json_log'; allow it with"
    assert f"--set: {told}" in invoked(2, *train)
    assert not Path("runs").exists()
    assert " --set total_timesteps=40 --allow-import\n" in invoked(0, *train, "--allow-import")
    [run] = Path("runs").iterdir()
    forget()
    resume = ("resume", run, "--set", "total_timesteps=30")
    assert told in invoked(2, *resume)
    invoked(0, *resume, "--allow-import")
    for command in (("show", "log.json"), ("validate", "log.json"), ("convert", "log.json", "copy.npz")):
        forget()
        assert told in invoked(2, "dataset", *command, "--kind", "json_log:read")
        invoked(0, "dataset", *command, "--kind", "json_log:read", "--allow-import")
    np.testing.assert_array_equal(
        TransitionDataset.load("copy.npz").rows, TransitionDataset.load(log, kind=read).rows
    )
    forget()
    invoked(0, "export", run, "-o", "policy.npz")  # the policy needs no data


WRONG: dict[str, tuple[Any, str]] = {
    "raises": (lambda path: 1 / 0, r"log.json: .*lambda.* fails: ZeroDivisionError: division by zero$"),
    "returns": (lambda path: [1], r"returned a list, not a mapping of arrays or Columns$"),
    "unknown": (lambda path: {**read(path), "reward": [1]}, r"unknown column 'reward'; did you mean 'rewards'\?$"),
    "missing": (lambda path: {"observations": [[1.0]]}, r"column 'actions' is missing; found: observations"),
    "ragged": (lambda path: {**read(path), "rewards": [[1], [1, 2]]}, r"fails: ValueError: .*inhomogeneous"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_reader_is_one_line(case: str, log: Path) -> None:
    reader, message = WRONG[case]
    with pytest.raises(DatasetError, match=message) as caught:
        TransitionDataset.load(log, kind=reader)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_wrong_name_are_one_line(log: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"absent.json: does not exist"):
        TransitionDataset.load("absent.json", kind=read)
    with pytest.raises(ConfigError, match=r"^kind must be npz, hdf5, minari or module:function, got 'csv'$"):
        TransitionDataset.load(log, kind="csv")
    kwargs = {"dataset_kind": f"{__name__}:MODULE", "dataset_path": str(log), "dataset_size": 10_000}
    with pytest.raises(ConfigError, match=r"dataset_kind: .*:MODULE is not a function$"):
        train(tiny("bc", tmp_path / "runs", allow_import=True, kwargs=kwargs))
    assert not (tmp_path / "runs").exists()


def test_readers_in_a_mixture(log: Path, tmp_path: Path) -> None:
    parts = [{"dataset_kind": f"{__name__}:{name}", "dataset_path": str(log)} for name in ("read", "read_columns")]
    config = DatasetConfig.parse({"datasets": parts})
    with pytest.raises(ConfigError, match="would import the module"):
        load_dataset(config, spaces=None)
    config.import_own(True)
    assert len(load_dataset(config, spaces=None)) == 24
    other = DatasetConfig.parse({"datasets": [parts[0], parts[0]]})
    assert config.identity() != other.identity()  # of the packed file
    packaged = {"dataset_kind": "npz", "dataset_path": "x.npz"}
    assert "readers" not in DatasetConfig.parse(packaged).identity()
    assert resolve(tiny("bc", tmp_path, kwargs=packaged))[DatasetConfig].own_reader is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset_kind": "m:read"}, "dataset_kind 'm:read' needs dataset_path, the path of the file"),
        ({"dataset_kind": "m:read", "dataset_path": "x", "dataset_id": "a-v0"}, "dataset_id is not used by"),
        (
            {"dataset_kind": ":read", "dataset_path": "x"},
            "dataset_kind must be 'random', 'npz', 'hdf5' or 'minari'",
        ),
    ],
)
def test_a_contradictory_configuration_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DatasetConfig.parse(values)


def test_a_file_of_an_unknown_format_names_the_remedy(log: Path) -> None:
    with pytest.raises(DatasetError, match=r"log.json: neither .npz, .hdf5 nor .h5; .* \(dataset_kind or --kind"):
        TransitionDataset.load(log)
