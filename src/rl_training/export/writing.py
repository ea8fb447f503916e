"""A policy as `.onnx` or `.npz`, with what it is (`.json`) and test vectors (`.test.npz`): all of them, or none."""

from __future__ import annotations

import contextlib
import io
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats.files import new_file
from rl_training.errors import ConfigError, ExportError
from rl_training.experiment import files
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.manifest import MANIFEST, FileEntry
from rl_training.experiment.runs import RECORD
from rl_training.export import policy_runner
from rl_training.export.graph import onnx_bytes, onnx_runner, require_onnx
from rl_training.export.observations import Observations, observations_for
from rl_training.export.parity import Parity, check, noise_for
from rl_training.export.program import npz_bytes, pack, program_of
from rl_training.observation_spaces import layout
from rl_training.runtime.loading import LoadedPolicy, load_policy, open_checkpoint

FORMAT = 1
RUNNER = "policy_runner.py"
_TEST_ROWS = 100


@dataclass(frozen=True)
class Exported:
    """A policy that left: its file, all files written, and how near it is to the policy."""

    path: Path
    files: tuple[Path, ...]
    num_bytes: int
    largest_difference: float
    allowed_difference: float
    observations: int
    source: str
    record: Mapping[str, Any]


def export_checkpoint(
    path: str | Path,
    output: str | Path,
    *,
    deterministic: bool = True,
    dataset: TransitionDataset | None = None,
) -> Exported:
    """Write the policy of a checkpoint or run to a new `.onnx` or `.npz` file, once it acts as `predict` does.

    Without `deterministic` a stochastic policy takes `noise` as a second input. `dataset` are the data it was
    trained on where those are in memory alone; they serve to compare.
    """
    target = _target(output)
    checkpoint = open_checkpoint(path)
    loaded = load_policy(checkpoint)
    sampled = not deterministic
    observations = observations_for(checkpoint, loaded, dataset)
    try:
        record = describe(checkpoint, loaded, sampled=sampled)
        data, parity = _made(target, loaded, observations, record, sampled)
    except ExportError as error:
        raise ExportError(f"{target}: {error}") from None
    tests = _test_vectors(loaded, observations, parity, sampled)
    try:
        made = _publish(target, data, record, _entry(data, parity, observations, target.suffix), tests)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror or error}") from None
    return Exported(
        target, made, len(data), parity.largest, parity.allowed, parity.rows, observations.source, record
    )


def _target(output: str | Path) -> Path:
    """Where the policy goes, if a file of that kind can be made there."""
    target = Path(output).expanduser()
    if target.suffix not in (".onnx", ".npz") or target.name.endswith(".test.npz"):
        raise ConfigError(f"{target}: a policy ends in .onnx or .npz")
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target}: already exists and is not overwritten; choose another name or remove it")
    place = next(folder for folder in target.absolute().parents if folder.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        problem = "may not be written to" if place.is_dir() else "is a file, not a folder"
        raise ConfigError(f"{target}: cannot be written: {place} {problem}")
    if target.suffix == ".onnx":
        require_onnx()
    return target


def _made(
    target: Path, loaded: LoadedPolicy, observations: Observations, record: Mapping[str, Any], sampled: bool
) -> tuple[bytes, Parity]:
    """The bytes of the file, which have been run and compared."""
    steps = program_of(loaded, sampled=sampled)
    if target.suffix == ".npz":
        data = npz_bytes(steps, record)
        return data, check(_numpy_runner(data), loaded, observations, sampled=sampled)
    told = {"policy": files.encode_json(record).decode(), **_metadata(record)}
    version = files.package_version()
    data = onnx_bytes(steps, loaded.spaces, sampled=sampled, metadata=told, version=version)
    return data, check(onnx_runner(data), loaded, observations, sampled=sampled)


def _numpy_runner(data: bytes) -> Any:
    return policy_runner.Policy(io.BytesIO(data))


def describe(checkpoint: Checkpoint, loaded: LoadedPolicy, *, sampled: bool) -> dict[str, Any]:
    """What policy.json tells, whichever formats stand beside it; plain data."""
    config, spaces, trainer = loaded.config, loaded.spaces, checkpoint.records["trainer"]
    run = checkpoint.path.resolve().parent.parent
    score = trainer.get("last_evaluation") or {}
    width = ["batch"] if spaces.discrete else ["batch", spaces.action_dim]
    inputs = {"observation": {"dtype": "float32", "shape": ["batch", spaces.obs_dim]}}
    if sampled:
        inputs["noise"] = {"dtype": "float32", "shape": ["batch", spaces.action_dim]}
    return {
        "format": FORMAT,
        "algorithm": config.algo,
        "environment": config.env_id,
        "wrappers": config.to_dict()["wrappers"],
        "run": run.name if (run / RECORD).is_file() else None,
        "seed": config.seed,
        "checkpoint": {
            "name": checkpoint.path.name,
            "step": checkpoint.step,
            "sha256": FileEntry.of((checkpoint.path / MANIFEST).read_bytes()).sha256,
        },
        "return": {
            "mean": score.get("eval_return_mean"),
            "std": score.get("eval_return_std"),
            "episodes": score.get("eval_episodes"),
            "at": trainer.get("evaluated_at"),
        },
        "stochastic": sampled,
        "inputs": inputs,
        "output": {"action": {"dtype": spaces.action_dtype, "shape": width}},
        "observation": {
            "size": spaces.obs_dim,
            "normalized_inside": loaded.policy.normalizer.enabled,
            "parts": None if spaces.observation is None else layout(spaces.observation),
        },
        "action": (
            {"kind": "Discrete", "n": spaces.num_actions, "start": spaces.start}
            if spaces.discrete
            else {"kind": "Box", "low": list(spaces.low), "high": list(spaces.high)}
        ),
    }


def _metadata(record: Mapping[str, Any]) -> dict[str, str]:
    """The same for whoever looks at an .onnx file with a viewer; `policy` has it all, as JSON."""
    names = ("algorithm", "environment", "run")
    return {name: str(record[name]) for name in names} | {"checkpoint_sha256": record["checkpoint"]["sha256"]}


def _entry(data: bytes, parity: Parity, observations: Observations, suffix: str) -> dict[str, Any]:
    """What policy.json tells of one file."""
    packages = ("torch", "numpy", *(("onnx", "onnxruntime") if suffix == ".onnx" else ()))
    versions = {"rl-training": files.package_version(), "python": platform.python_version()}
    return {
        "bytes": len(data),
        "sha256": FileEntry.of(data).sha256,
        "largest_difference": parity.largest,
        "allowed_difference": parity.allowed,
        "ties": parity.ties,
        "compared_on": f"{parity.rows} observations: {observations.source}, and the corners of their range",
        "versions": versions | {name: metadata.version(name) for name in packages},
    }


def _test_vectors(loaded: LoadedPolicy, observations: Observations, parity: Parity, sampled: bool) -> bytes:
    """Some observations, and what the policy does with them."""
    rows = observations.seen[-_TEST_ROWS:]
    noise = noise_for(loaded, len(observations.seen))[-_TEST_ROWS:] if sampled else None
    arrays = {"observation": rows, "action": loaded.act(rows, noise), "tolerance": np.asarray(parity.allowed)}
    return pack(arrays if noise is None else arrays | {"noise": noise})


def _publish(
    target: Path, data: bytes, record: Mapping[str, Any], entry: Mapping[str, Any], tests: bytes
) -> tuple[Path, ...]:
    """Write the files, the policy last; if one cannot be written, none of them stays."""
    told, vectors, runner = target.with_suffix(".json"), target.with_suffix(".test.npz"), target.with_name(RUNNER)
    before = _others(told, record)
    code = Path(policy_runner.__file__).read_bytes()
    described = files.encode_json({**record, "files": {**(before or {}), target.name: dict(entry)}})
    # The description first: what a killed process left behind is then known to be of this policy.
    wanted = {told: described} if before is None else {}
    if before is None or not vectors.exists():
        wanted[vectors] = tests
    if target.suffix == ".npz" and not _same(runner, code):
        wanted[runner] = code
    with contextlib.ExitStack() as undo:
        for path, content in wanted.items():
            _write_new(path, content)
            undo.callback(path.unlink, missing_ok=True)
        if before is not None:
            old = told.read_bytes()
            files.replace_atomically(told, described)
            undo.callback(files.replace_atomically, told, old)
        _write_new(target, data)
        undo.pop_all()
    return target, told, vectors, *((runner,) if target.suffix == ".npz" else ())


def _others(told: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The files that a .json of this very policy tells of already; None where there is none."""
    if not told.exists():
        return None
    try:
        known = files.decode_json(told.read_bytes())
        others = known.pop("files")
    except (OSError, ValueError, AttributeError, LookupError, TypeError):
        known, others = None, {}
    if known is None or files.encode_json(known) != files.encode_json(record):
        raise ConfigError(f"{told}: already exists and tells of another policy; choose another name or remove it")
    return {name: entry for name, entry in others.items() if (told.parent / name).exists()}


def _same(runner: Path, code: bytes) -> bool:
    if not runner.exists():
        return False
    if runner.read_bytes() != code:
        raise ConfigError(f"{runner}: already exists and is not this version's; choose another folder or remove it")
    return True


def _write_new(path: Path, content: bytes) -> None:
    with new_file(path, ConfigError) as staged:
        staged.write_bytes(content)
