"""Write a policy as `.onnx` or `.npz`, with a description (`.json`) and test vectors (`.test.npz`): all or none."""

from __future__ import annotations

import contextlib
import io
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats.files import new_file, require_new
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
from rl_training.version import __version__

FORMAT = 1
RUNNER = "policy_runner.py"
_TEST_ROWS = 100


@dataclass(frozen=True)
class Exported:
    """Result of an export: the policy's file, all files, and the largest difference from the policy."""

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
    deterministic: bool | None = None,
    dataset: TransitionDataset | None = None,
    allow_import: bool = False,
) -> Exported:
    """Write the policy of a checkpoint or run to a new `.onnx` or `.npz` file.

    The file is compared with `predict` first; nothing is written if they differ. `deterministic=False` exports a
    stochastic policy with `noise` as a second input; so does None for FQL. `dataset` is the training data, used for
    the comparison, if it exists only in memory. `allow_import` permits to import the module of a plug-in.
    """
    target = _target(output)
    checkpoint = open_checkpoint(path)
    loaded = load_policy(checkpoint, allow_import=allow_import)
    sampled = loaded.policy.samples(None) if deterministic is None else not deterministic
    observations = observations_for(checkpoint, loaded, dataset)
    try:
        record = describe(checkpoint, loaded, sampled=sampled)
        data, parity = _build(target, loaded, observations, record, sampled)
    except ExportError as error:
        raise ExportError(f"{target}: {error}") from None
    tests = _test_vectors(loaded, observations, parity, sampled)
    with files.os_errors(f"{target}: cannot be written"):
        written = _publish(target, data, record, _entry(data, parity, observations, target.suffix), tests)
    return Exported(
        target, written, len(data), parity.largest, parity.allowed, parity.rows, observations.source, record
    )


def _target(output: str | Path) -> Path:
    """The path of the policy; raise if the file cannot be created."""
    target = Path(output).expanduser()
    if target.suffix not in (".onnx", ".npz") or target.name.endswith(".test.npz"):
        raise ConfigError(f"{target}: a policy ends in .onnx or .npz")
    require_new(target, ConfigError)
    if target.suffix == ".onnx":
        require_onnx()
    return target


def _build(
    target: Path, loaded: LoadedPolicy, observations: Observations, record: Mapping[str, Any], sampled: bool
) -> tuple[bytes, Parity]:
    """Build the bytes of the file and compare them with the policy."""
    steps = program_of(loaded, sampled=sampled)
    if target.suffix == ".npz":
        data = npz_bytes(steps, record)
        return data, check(_numpy_runner(data), loaded, observations, sampled=sampled)
    description = {"policy": files.encode_json(record).decode(), **_metadata(record)}
    data = onnx_bytes(steps, loaded.spaces, sampled=sampled, metadata=description, version=__version__)
    return data, check(onnx_runner(data), loaded, observations, sampled=sampled)


def _numpy_runner(data: bytes) -> Any:
    return policy_runner.Policy(io.BytesIO(data))


def describe(checkpoint: Checkpoint, loaded: LoadedPolicy, *, sampled: bool) -> dict[str, Any]:
    """The contents of policy.json that do not depend on the file format."""
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
    """The main facts as metadata that viewers of .onnx files show; the key `policy` has all of them as JSON."""
    names = ("algorithm", "environment", "run")
    return {name: str(record[name]) for name in names} | {"checkpoint_sha256": record["checkpoint"]["sha256"]}


def _entry(data: bytes, parity: Parity, observations: Observations, suffix: str) -> dict[str, Any]:
    """The entry of one file in policy.json."""
    packages = ("torch", "numpy", *(("onnx", "onnxruntime") if suffix == ".onnx" else ()))
    versions = {"rl-training": __version__, "python": platform.python_version()}
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
    """Some observations with the actions of the policy."""
    rows = observations.seen[-_TEST_ROWS:]
    noise = noise_for(loaded, len(observations.seen))[-_TEST_ROWS:] if sampled else None
    arrays = {"observation": rows, "action": loaded.act(rows, noise), "tolerance": np.asarray(parity.allowed)}
    return pack(arrays if noise is None else arrays | {"noise": noise})


def _publish(
    target: Path, data: bytes, record: Mapping[str, Any], entry: Mapping[str, Any], tests: bytes
) -> tuple[Path, ...]:
    """Write the files, the policy last; if one cannot be written, the others are removed."""
    info, vectors, runner = target.with_suffix(".json"), target.with_suffix(".test.npz"), target.with_name(RUNNER)
    before = _others(info, record)
    code = Path(policy_runner.__file__).read_bytes()
    described = files.encode_json({**record, "files": {**(before or {}), target.name: dict(entry)}})
    # The description is written first, so that files left by a killed process are known to belong to this policy.
    wanted = {info: described} if before is None else {}
    if before is None or not vectors.exists():
        wanted[vectors] = tests
    if target.suffix == ".npz" and not _same(runner, code):
        wanted[runner] = code
    with contextlib.ExitStack() as undo:
        for path, content in wanted.items():
            _write_new(path, content)
            undo.callback(path.unlink, missing_ok=True)
        if before is not None:
            old = info.read_bytes()
            files.replace_atomically(info, described)
            undo.callback(files.replace_atomically, info, old)
        _write_new(target, data)
        undo.pop_all()
    return target, info, vectors, *((runner,) if target.suffix == ".npz" else ())


def _others(info: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The files that an existing .json of the same policy lists; None if there is no .json."""
    if not info.exists():
        return None
    try:
        known = files.decode_json(info.read_bytes())
        others = known.pop("files")
    except (OSError, ValueError, AttributeError, LookupError, TypeError):
        known, others = None, {}
    if known is None or files.encode_json(known) != files.encode_json(record):
        raise ConfigError(f"{info}: already exists and describes another policy; choose another name or remove it")
    return {name: entry for name, entry in others.items() if (info.parent / name).exists()}


def _same(runner: Path, code: bytes) -> bool:
    if not runner.exists():
        return False
    if runner.read_bytes() != code:
        raise ConfigError(
            f"{runner}: already exists and differs from this version's; choose another folder or remove it"
        )
    return True


def _write_new(path: Path, content: bytes) -> None:
    with new_file(path, ConfigError) as staged:
        staged.write_bytes(content)
