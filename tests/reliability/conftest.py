"""Register the environments of these tests, and kill any process that a test leaves behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability import faulty_worlds  # noqa: F401 - registers the environments
from tests.reliability.processes import Child


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Children appended to this list are killed when the test ends, whether it passes or fails."""
    started: list[Child] = []
    yield started
    for child in started:
        child.kill()
