"""What every test shares: one thread, so that sums have one order and the machine is left to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from rl_training.runtime.session import TrainResult


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Networks are drawn from torch's global generator; a test's outcome may not depend on its neighbours."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TrainResult]:
    """One short run of each algorithm in a skewed world, made when it is first asked for; nobody changes it."""
    from tests.exports import trained

    made: dict[str, TrainResult] = {}
    folder = tmp_path_factory.mktemp("skewed")

    def run(algo: str) -> TrainResult:
        if algo not in made:
            made[algo] = trained(algo, folder)
        return made[algo]

    return run
