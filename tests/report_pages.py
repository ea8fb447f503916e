"""Parse pages as a browser would."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Every element and attribute of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def require_alone(html: str) -> Page:
    """Check that the page loads no external resources and runs no scripts."""
    page = Page(html)
    assert not {"script", "img", "link", "iframe", "object", "embed", "base", "image", "foreignobject"} & set(
        page.tags
    )
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("href", "xlink:href", "src", "action", "data", "srcset"):
            assert value.startswith(("#", "data:")), (tag, name, value[:80])
        assert not re.search(r"url\((?!#)", value), (tag, name, value[:80])
    styles = re.findall(r"<style.*?</style>", html, re.S)
    assert not re.search(r"@import|url\((?!#)|//", "".join(styles))
    names = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
    rest = html
    for name in names:
        rest = rest.replace(f'="{name}"', "")
    assert "http:" not in rest
    assert "https:" not in rest
    return page
