"""Promise 5: no file this package reads can run code."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.experiment import files
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint, write_checkpoint
from rl_training.experiment.manifest import FileEntry
from tests.dataset_files import episodes, save_hdf5, save_minari, save_npz
from tests.runs import tiny, train

CANARY = "canary"


class Touch:
    """Creates the canary file when it is unpickled, as a harmless malicious file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; code executed from a file would create `canary` there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "evil", raising=False)  # an imported module would not run again
    (tmp_path / "evil.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / CANARY)!r}).touch()\n")
    return tmp_path / CANARY


def test_the_canary_detects_executed_code(canary: Path) -> None:
    """Unpickling the file or importing the module does create the canary."""
    pickle.loads(pickle.dumps(Touch(canary)))
    assert canary.exists()
    canary.unlink()
    subprocess.run(["python3", "evil.py"], check=True)
    assert canary.exists()


# ---- data sets -----------------------------------------------------------------------------------


def object_npz(path: Path, canary: Path) -> None:
    columns = episodes()
    columns["rewards"] = np.array([Touch(canary)] * len(columns["rewards"]), dtype=object)
    np.savez(path, **columns)


def pickle_as_npz(path: Path, canary: Path) -> None:
    path.write_bytes(pickle.dumps(Touch(canary)))


def torch_as_npz(path: Path, canary: Path) -> None:
    torch.save({"observations": Touch(canary)}, path)


def pickle_in_npz(path: Path, canary: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("observations", "actions", "rewards", "terminals"):
            archive.writestr(f"{name}.npy", pickle.dumps(Touch(canary)))


def slipped_npz(path: Path, canary: Path) -> None:
    save_npz(path, episodes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"../{CANARY}", b"x")
        archive.writestr(str(canary), b"x")


def header_npz(path: Path, canary: Path) -> None:
    """An npy header is a Python literal; one that contains a call must not be evaluated."""
    evil = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    header = f"{{'descr': {evil}, 'fortran_order': False, 'shape': (4,), }}".ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("observations", "actions", "rewards", "terminals"):
            archive.writestr(f"{name}.npy", content + bytes(64))


def pickle_as_hdf5(path: Path, canary: Path) -> None:
    path.write_bytes(pickle.dumps(Touch(canary)))


def external_hdf5(path: Path, canary: Path) -> None:
    secret = save_hdf5(path.with_name("secret.hdf5"), episodes())
    columns = episodes()
    del columns["rewards"]
    save_hdf5(path, columns)
    with h5py.File(path, "r+") as file:
        file["rewards"] = h5py.ExternalLink(str(secret), "rewards")


def opaque_hdf5(path: Path, canary: Path) -> None:
    columns = episodes()
    del columns["rewards"]
    save_hdf5(path, columns)
    with h5py.File(path, "r+") as file:
        file["rewards"] = np.void(pickle.dumps(Touch(canary)))


DATA: dict[Callable[[Path, Path], None], str] = {
    object_npz: "npz",
    pickle_as_npz: "npz",
    torch_as_npz: "npz",
    pickle_in_npz: "npz",
    header_npz: "npz",
    pickle_as_hdf5: "hdf5",
    external_hdf5: "hdf5",
    opaque_hdf5: "hdf5",
}


def offline_config(folder: Path, **kwargs: Any) -> Path:
    values = tiny("bc", folder / "runs", env_id=None, total_timesteps=5).to_dict()
    values["algo_kwargs"] = {"batch_size": 4, "hidden_sizes": [4], **kwargs}
    place = folder / "run.yaml"
    place.write_text(yaml.safe_dump(values))
    return place


def refused(words: list[Any], code: int) -> str:
    """The one-line error of a command."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, (result.exit_code, result.stderr)
    [line] = [line for line in result.stderr.splitlines() if not line.startswith("evaluating")]
    assert line.startswith("error: "), line
    assert "unexpected" not in line
    return line


@pytest.mark.parametrize("make", DATA, ids=lambda make: make.__name__)
def test_malicious_data(make: Callable[[Path, Path], None], canary: Path, tmp_path: Path) -> None:
    kind = DATA[make]
    path = tmp_path / f"data.{kind}"
    make(path, canary)
    for words in (
        ["dataset", "show", path],
        ["dataset", "validate", path],
        ["dataset", "convert", path, tmp_path / f"copy.{kind}"],
        ["train", "--config", offline_config(tmp_path, dataset_kind=kind, dataset_path=str(path))],
    ):
        refused(words, 3)
    assert not canary.exists()
    assert not (tmp_path / "runs").exists()


def test_an_archive_cannot_write_outside_itself(canary: Path, tmp_path: Path) -> None:
    slipped_npz(tmp_path / "data.npz", canary)
    config = offline_config(
        tmp_path,
        dataset_kind="npz",
        dataset_path=str(tmp_path / "data.npz"),
        action_low=[-1, -1],
        action_high=[1, 1],
    )
    CliRunner().invoke(main, ["--quiet", "train", "--config", str(config)])
    assert not canary.exists()
    assert not (tmp_path.parent / CANARY).exists()


MINARI_ID = "evil/data-v0"
METADATA = {
    "entry point": {"env_spec": json.dumps({"id": "Evil-v0", "entry_point": "evil:run", "kwargs": {}})},
    "module id": {"env_spec": json.dumps({"id": "evil:Evil-v0", "entry_point": None, "kwargs": {}})},
    "eval env": {"eval_env_spec": json.dumps({"id": "x-v0", "entry_point": "evil:run"})},
    "requirements": {"requirements": ["evil"], "code_permalink": "file://evil.py"},
    "space as code": {"action_space": "__import__('evil')"},
    "space of a class": {"action_space": json.dumps({"type": "evil.Space"})},
}


@pytest.mark.parametrize("case", METADATA)
def test_malicious_minari_metadata(case: str, canary: Path, tmp_path: Path) -> None:
    folder = save_minari(tmp_path / "minari", MINARI_ID, episodes())
    place = folder / "metadata.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **METADATA[case]}))
    config = offline_config(tmp_path, dataset_kind="minari", dataset_id=MINARI_ID)
    result = CliRunner().invoke(main, ["--quiet", "train", "--config", str(config)])
    assert result.exit_code == (3 if "space" in case else 0), result.stderr
    assert not canary.exists()


# ---- configurations ------------------------------------------------------------------------------

CONFIGS = {
    "apply": "algo: !!python/object/apply:pathlib.Path.touch [canary]",
    "new": "algo: !!python/object/new:evil.Run []",
    "name": "algo: !!python/name:evil.run",
    "module": "algo: !!python/module:evil",
    "local tag": "algo: !evil x",
    "import": "algo: sac\nenv_id: evil:Evil-v0\ntotal_timesteps: 5\n",
    "wrapper": "algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 5\nwrappers: ['evil:Wrapper']\n",
    "algorithm": "algo: evil:Mine\nenv_id: Pendulum-v1\ntotal_timesteps: 5\n",
    "plug-in": "algo: mine\nplugin: evil:Mine\nenv_id: Pendulum-v1\ntotal_timesteps: 5\n",
    "network": "algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 5\nalgo_kwargs: {network: 'evil:run'}\n",
    "logger": "algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 5\nloggers: ['evil:Logger']\n",
    "data format": "algo: bc\nenv_id: Pendulum-v1\ntotal_timesteps: 5\n"
    "algo_kwargs: {dataset_kind: 'evil:nothing', dataset_path: run.yaml}\n",
    "permission in a file": "algo: sac\nenv_id: evil:Evil-v0\ntotal_timesteps: 5\nallow_import: true\n",
    "interpolation": "algo: ${evil:run}\nenv_id: Pendulum-v1\ntotal_timesteps: 5\n",
    "hydra target": "algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 5\nalgo_kwargs: {_target_: evil.run}\n",
    "environment of a class": "algo: sac\nenv_id: evil.Evil\ntotal_timesteps: 5\n",
}


@pytest.mark.parametrize("case", CONFIGS)
def test_malicious_configurations(case: str, canary: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIGS[case])
    refused(["train", "--config", "run.yaml", "--output-dir", tmp_path / "runs"], 2)
    assert not canary.exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("case", ["import", "wrapper", "algorithm", "plug-in", "network", "logger", "data format"])
def test_modules_are_imported_with_permission_only(case: str, canary: Path, tmp_path: Path) -> None:
    """With --allow-import the module is imported, so the tests above do test the refusal."""
    (tmp_path / "run.yaml").write_text(CONFIGS[case])
    result = CliRunner().invoke(main, ["train", "--config", "run.yaml", "--allow-import", "--output-dir", "runs"])
    assert result.exit_code == 2
    assert canary.exists()


# ---- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny("sac", tmp_path_factory.mktemp("finished"), total_timesteps=25, eval_episodes=0)).run_dir


def forged(run: Path, name: str, **changes: Any) -> None:
    """Change a record of the newest checkpoint and update its hashes."""
    checkpoint = read_checkpoint(find_checkpoint(run))
    records = {**checkpoint.records, name: {**checkpoint.records[name], **changes}}
    write_checkpoint(run / "checkpoints", checkpoint.step, tensors=checkpoint.tensors, records=records)


def networks_as_pickle(run: Path, canary: Path) -> None:
    (find_checkpoint(run) / "networks.safetensors").write_bytes(pickle.dumps(Touch(canary)))


def networks_as_torch(run: Path, canary: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"model": Touch(canary)}, buffer)
    (find_checkpoint(run) / "networks.safetensors").write_bytes(buffer.getvalue())


def pickle_with_a_right_hash(run: Path, canary: Path) -> None:
    folder = find_checkpoint(run)
    evil = pickle.dumps(Touch(canary))
    body = json.loads((folder / "manifest.json").read_text())
    (folder / "networks.safetensors").write_bytes(evil)
    entry = FileEntry.of(evil)
    body["files"]["networks.safetensors"] = {"size": entry.size, "sha256": entry.sha256}
    body.pop("sha256")
    body["sha256"] = FileEntry.of(files.encode_json(body)).sha256
    (folder / "manifest.json").write_bytes(files.encode_json(body))


def link_out(run: Path, canary: Path) -> None:
    file = find_checkpoint(run) / "trainer.json"
    content = file.read_bytes()
    file.unlink()
    (run.parent / "elsewhere.json").write_bytes(content)
    file.symlink_to(run.parent / "elsewhere.json")


def importing_environment(run: Path, canary: Path) -> None:
    forged(run, "config", env_id="evil:Evil-v0", allow_import=True)


def importing_wrapper(run: Path, canary: Path) -> None:
    forged(run, "config", wrappers=["evil:Wrapper"], allow_import=True)


def importing_algorithm(run: Path, canary: Path) -> None:
    forged(run, "config", algo="evil:Mine", allow_import=True)


def importing_plugin(run: Path, canary: Path) -> None:
    forged(run, "config", algo="mine", plugin="evil:Mine", allow_import=True)


def importing_network(run: Path, canary: Path) -> None:
    forged(run, "config", algo_kwargs={"network": "evil:run"}, allow_import=True)


def code_as_algorithm(run: Path, canary: Path) -> None:
    forged(run, "config", algo="__import__('evil')")


def code_as_settings(run: Path, canary: Path) -> None:
    forged(run, "config", algo_kwargs={"hidden_sizes": "__import__('evil')"})


def code_as_callback(run: Path, canary: Path) -> None:
    forged(run, "trainer", callbacks={"evil.Callback": {"__reduce__": "evil"}}, counters="__import__('evil')")


def code_as_spaces(run: Path, canary: Path) -> None:
    forged(run, "spaces", action_dtype="evil.dtype", obs_dim="__import__('evil')")


CHECKPOINTS: dict[Callable[[Path, Path], None], tuple[int, int]] = {  # exit codes of evaluate and of resume
    networks_as_pickle: (3, 3),
    networks_as_torch: (3, 3),
    pickle_with_a_right_hash: (3, 3),
    link_out: (3, 3),
    importing_environment: (2, 2),
    importing_wrapper: (2, 2),
    importing_algorithm: (2, 2),
    importing_plugin: (2, 2),
    importing_network: (2, 2),
    code_as_algorithm: (2, 2),
    code_as_settings: (2, 2),
    code_as_callback: (0, 3),
    code_as_spaces: (3, 3),
}


@pytest.mark.parametrize("make", CHECKPOINTS, ids=lambda make: make.__name__)
def test_malicious_checkpoints(
    make: Callable[[Path, Path], None], finished: Path, canary: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    make(run, canary)
    checkpoint = next((run / "checkpoints").iterdir())
    evaluating, resuming = CHECKPOINTS[make]
    if evaluating:
        refused(["evaluate", checkpoint, "--episodes", "1"], evaluating)
    else:
        assert CliRunner().invoke(main, ["evaluate", str(checkpoint), "--episodes", "1"]).exit_code == 0
    refused(["--quiet", "resume", checkpoint, "--set", "total_timesteps=30"], resuming)
    if evaluating == 3:
        refused(["train", "--config", "sac/pendulum", "--init-from", checkpoint, "--output-dir", tmp_path / "x"], 3)
    assert not canary.exists()
    assert not (tmp_path / "x").exists()


def test_observations_from_a_file_are_numbers(finished: Path, canary: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "obs.npy", np.array([Touch(canary)], dtype=object), allow_pickle=True)
    (tmp_path / "obs.json").write_text('{"__reduce__": "evil"}')
    for name in ("obs.npy", "obs.json"):
        refused(["predict", finished, "--obs", f"@{tmp_path / name}"], 2)
    assert not canary.exists()
