"""How many members fit into memory at once."""

from __future__ import annotations

import logging
from itertools import chain

from rl_training.memory import available_memory, human_bytes, room_on_gpu
from rl_training.runs.regime import Regime

# Networks, gradients, two moments, and what the stack, its gradients and their optimiser step take for a while.
COPIES = 8

_log = logging.getLogger(__name__)


def members_that_fit(built: Regime, wanted: int, population: str | int) -> int:
    """How many of `wanted` members like `built`, which is there already, are trained at a time."""
    if population == "off":
        return 1
    most = wanted if population == "auto" else min(wanted, int(population))
    each, device = _bytes_of(built), built.learner.device
    room = room_on_gpu(device) if device.type == "cuda" else int(0.9 * available_memory())
    fit = 1 + room // max(each, 1)
    if fit < most:
        _log.warning(
            "memory for %d of %d members at a time (%s each): the others follow", fit, wanted, human_bytes(each)
        )
    return min(fit, most)


def _bytes_of(built: Regime) -> int:
    """Networks with all that training them takes, and the replay buffer."""
    modules = built.learner.modules().values()
    networks = sum(tensor.nbytes for module in modules for tensor in chain(module.parameters(), module.buffers()))
    replay = 0 if built.collector is None else built.collector.buffer.rows.nbytes
    return COPIES * networks + replay
