"""Environments of these tests are known by name, and no test leaves a process behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability import faulty_worlds  # noqa: F401 - registers the environments
from tests.reliability.processes import Child


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Children appended here are killed when the test ends, however it ends."""
    started: list[Child] = []
    yield started
    for child in started:
        child.kill()
