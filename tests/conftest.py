"""What every test shares: one thread, so that sums have one order and the machine is left to others."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Networks are drawn from torch's global generator; a test's outcome may not depend on its neighbours."""
    torch.manual_seed(0)
