"""Build a learner on its device from validated settings, after checking that it fits into memory."""

from __future__ import annotations

import os
from itertools import chain
from typing import Any

import torch

from rl_training.algorithms.base import Learner, LearnerConfig
from rl_training.algorithms.batch_checks import require_saved
from rl_training.errors import ConfigError, MemoryLimitError
from rl_training.experiment.config import TrainConfig
from rl_training.memory import available_cores, available_memory, human_bytes, keep_freed_memory
from rl_training.models.actor_critic import Model
from rl_training.models.mlp import NetworkShape
from rl_training.platforms import resource
from rl_training.runs.sections import Resolved, Sections
from rl_training.seeding import learner_seeds
from rl_training.spaces import SpaceSpec
from rl_training.updates.updater import require_device, set_precision

# More threads do not speed up networks of this size. OMP_NUM_THREADS takes precedence.
MAX_THREADS = 4
# A trained parameter, its gradient and two moments.
_TENSORS_PER_PARAMETER = 4
# Minimum memory of an environment: a small one in this process, or an interpreter with its libraries.
_ENV_BYTES, _PROCESS_BYTES = 4 << 10, 40 << 20


def choose_device(name: str) -> torch.device:
    """The torch device; `auto` is the first GPU if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        count = torch.cuda.device_count()
        index = int(name.partition(":")[2] or 0)
        if index >= count:
            raise ConfigError.of(
                "device", f"{name!r} is not available ({count} CUDA devices found); use 'auto' or 'cpu'"
            )
    return torch.device(name)


def require_room_for_environments(config: TrainConfig) -> None:
    """Raise if `num_envs` exceeds the available memory or the limit on processes."""
    if config.environments == "ray":  # they may run on other machines
        return
    processes = config.environments == "processes"
    each = _PROCESS_BYTES if processes else _ENV_BYTES
    free = available_memory()
    most = free // each
    reason = f"they need at least {human_bytes(config.num_envs * each)} and {human_bytes(free)} are available"
    # -1: unlimited
    limit = int(resource.getrlimit(resource.RLIMIT_NPROC)[0]) if processes and resource is not None else -1
    if 0 <= limit < most:
        most, reason = limit, f"this user may have {limit} processes"
    if config.num_envs > most:
        raise MemoryLimitError(f"num_envs {config.num_envs} is too many: {reason}; at most {most}", key="num_envs")


def prepare_process(device: torch.device) -> None:
    """Configure threads and allocator of this process for training on `device`."""
    if "OMP_NUM_THREADS" not in os.environ:
        # With a GPU only the acting policy runs on the CPU, on one row at a time: more threads only add overhead.
        most = MAX_THREADS if device.type == "cpu" else 1
        torch.set_num_threads(min(torch.get_num_threads(), most, available_cores()))
    if device.type == "cpu":
        keep_freed_memory()


def build_learner(
    sections: Sections,
    resolved: Resolved,
    config: TrainConfig,
    spaces: SpaceSpec,
    *,
    normalize_observations: bool = False,
    clip_observations: bool = False,
    updates_per_step: int = 1,
) -> Learner:
    """Create the learner with its model, seeded by the run; torch's global generator keeps its state."""
    device = choose_device(config.device)
    require_device(config.acceleration, device)
    prepare_process(device)
    set_precision(config.tf32, config.bf16)
    settings: Any = sections.learner.configure(resolved[LearnerConfig], updates_per_step)

    def build() -> Model:
        model = sections.learner.build_model(
            spaces, resolved[NetworkShape], settings, normalize_observations=normalize_observations
        )
        if clip_observations:
            model.normalizer.clip()
        return model

    initial, updates = learner_seeds(config.seed or 0)
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            _require_memory(build(), device)
        torch.manual_seed(initial)
        learner = sections.learner(model=build().to(device), **settings.model_dump())
    require_saved(learner)
    learner.seed(updates)
    return learner


def _require_memory(model: Model, device: torch.device) -> None:
    """Raise if the networks do not fit into the memory of `device`; `model` is on the meta device."""
    needed = sum(
        tensor.numel() * tensor.element_size() * (_TENSORS_PER_PARAMETER if tensor.requires_grad else 1)
        for tensor in chain(model.parameters(), model.buffers())
    )
    room = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    if needed > room:
        raise MemoryLimitError.of(
            "algo_kwargs.hidden_sizes",
            f"the networks and their optimisers need {human_bytes(needed)} and "
            f"{human_bytes(room)} are available on {device}; use smaller ones",
        )
