"""The pages of the reference: their programs and commands run in order, with a hundredth of the steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs_pages import DOCS, walk

pytestmark = pytest.mark.pages


@pytest.mark.parametrize("page", ["reference/index.md", "configuration.md", "architecture.md"])
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    walk(page.removesuffix(".md"), (DOCS / page).read_text(encoding="utf-8"), tmp_path)
