"""The exported program: the operations of a policy from raw observations to the environment's actions."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.errors import ExportError
from rl_training.models.steps import Step
from rl_training.runtime.loading import LoadedPolicy
from rl_training.spaces import SpaceSpec


def program_of(loaded: LoadedPolicy, *, sampled: bool) -> list[Step]:
    """The operations of the policy, and the conversion of its actions to the environment's units and type."""
    if sampled and not loaded.policy.stochastic:
        raise ExportError(
            f"stochastic: the policy of {loaded.config.algo} is deterministic and takes no noise; leave it out"
        )
    steps = loaded.policy.steps(sampled)
    if steps is None:
        raise ExportError(
            f"{type(loaded.policy.actor).__name__} does not list its operations and cannot be exported; give it a "
            "method steps(sampled), as the actors in rl_training.models have"
        )
    return [*steps, _to_env(loaded.spaces)]


def _to_env(spaces: SpaceSpec) -> Step:
    if spaces.discrete:
        return Step("choose", {"start": np.asarray(spaces.start, spaces.action_dtype)})
    return Step("scale", dict(zip(("low", "high", "inner_low", "inner_high"), spaces.scaling)))


def npz_bytes(steps: Sequence[Step], info: Mapping[str, Any]) -> bytes:
    """The file that `policy_runner.py` reads: arrays and two JSON texts. Equal policies give equal bytes."""
    listed = [{"operation": step.operation, "arrays": list(step.arrays)} for step in steps]
    arrays = {"info": np.asarray(json.dumps(info, sort_keys=True)), "steps": np.asarray(json.dumps(listed))}
    for i, step in enumerate(steps):
        arrays |= {f"{i}.{name}": array for name, array in step.arrays.items()}
    return pack(arrays)


def pack(arrays: Mapping[str, Any]) -> bytes:
    """An uncompressed `.npz` without timestamps."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name, array in arrays.items():
            one = io.BytesIO()
            np.save(one, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), one.getvalue())
    return memory.getvalue()
