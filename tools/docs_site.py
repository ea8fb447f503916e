"""The Sphinx extension of the documentation site: what the pages of docs/ need to be read there as on a code host.

Algorithm pages are completed from the code (`tools/describe_algorithm.py`). Links that leave docs/ lead to pages of
the site: the README, the changelog and the examples have one each. Docstrings are Markdown-like text, and a managed
class has a keyword for each setting, of which the reference shows none: its page has the table. Formulas become
MathML while the site is built: a reader's browser needs neither a script nor the network for them.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from docutils import nodes
from docutils.utils.math import latex2mathml
from numpy.typing import ArrayLike, NDArray
from sphinx.util.logging import getLogger
from sphinx.util.typing import stringify_annotation

from rl_training.api import managed
from tools import describe_algorithm, describe_classes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LOG = getLogger(__name__)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
# A picture in HTML, which Sphinx does not look into; docs/pictures is copied to the site's static files.
PICTURE = re.compile(r'\b(src|srcset)="(?:docs/|\.\./)?pictures/')
# What TeX sets otherwise than MathML: the index of an accented letter would stand below it, and log would touch its
# neighbours.
ACCENTED = re.compile(r"(\\(?:bar|tilde|hat) ?(?:\\[a-z]+|\w))(?=[_^])")
LOG_OF = re.compile(r"\\log\s+")
# Types that the reference shows by name.
ALIASES: dict[str, tuple[Any, ...]] = {
    "ArrayLike": (ArrayLike,),
    "NDArray": tuple(NDArray[kind] for kind in (Any, np.float32, np.float64, np.int64)),
    "Data": (managed.Data,),
    "Environment": (managed.Environment,),
    "Loggers": (managed.Loggers,),
    "Watchers": (managed.Watchers,),
}
# A page that another version of the docs may have: its place in the navigation, if it is there.
SLOT = re.compile(r"^<!-- where it is there: (\S+)\.md -->$", re.M)
# Files outside docs/ that have a page of their own on the site.
PAGES = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md"}


def on_site(text: str, folder: str) -> str:
    """Links of a page in `folder` of the repository, as the page at the same place of the site must have them."""

    def page_of(target: str) -> str | None:
        path, _, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(folder, path))
        if place.startswith("examples/"):
            page, anchor = "examples.md", posixpath.basename(place).replace(".", "")
        elif place.startswith("docs/"):
            page = place.removeprefix("docs/")
        elif place in PAGES:
            page = PAGES[place]
        else:
            return None
        start = folder.removeprefix("docs").strip("/")
        return posixpath.relpath(page, start or ".") + (f"#{anchor}" if anchor else "")

    def replaced(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        if target.startswith(("http", "#")):
            return found[0]
        page = page_of(target)
        return label if page is None else f"[{label}]({page})"

    return PICTURE.sub(r'\1="_static/', LINK.sub(replaced, text))


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Complete an algorithm's page, and let links stay on the site."""
    folder, _, name = docname.rpartition("/")
    if folder == "algorithms" and name != "index":
        source[0] = describe_algorithm.render(name)
        for used in (*describe_algorithm.RESULTS.glob("*.md"), describe_algorithm.FOLDER / "_template.md"):
            app.env.note_dependency(str(used))

    def filled(slot: re.Match[str]) -> str:
        there = posixpath.normpath(posixpath.join(folder, slot[1])) in app.env.found_docs
        return f"```{{toctree}}\n{slot[1]}\n```" if there else ""

    source[0] = SLOT.sub(filled, on_site(source[0], posixpath.join("docs", folder)))


def read_included(app: Sphinx, path: Any, docname: str, content: list[str]) -> None:
    """A file of the repository's root that is shown as a page."""
    content[0] = on_site(content[0], "")


def shorten_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Settings of a managed class become keywords; types with a name are shown by it."""
    if is_managed(thing) or thing is managed.ManagedAlgorithm:
        return describe_classes.signature(thing.__name__ if is_managed(thing) else None), None
    return named(signature), named(returns)


def named(text: str | None) -> str | None:
    """A signature with the names of types in place of what they stand for, which would fill the page."""
    for name, kinds in ALIASES.items():
        for kind in kinds:
            text = text and text.replace(stringify_annotation(kind, "smart"), name)
    return text


def shorten_docstring(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """The docstring of a managed class without its settings, which are a table of the algorithm's page."""
    if is_managed(thing):
        lines[lines.index("Settings, all keywords:") :] = [f"Its settings: :doc:`/algorithms/{thing.algo}`."]


def is_managed(thing: Any) -> bool:
    return isinstance(thing, type) and isinstance(getattr(thing, "algo", None), str)


def draw_inline(writer: Any, formula: nodes.math) -> None:
    draw(writer, formula, "span")


def draw_block(writer: Any, formula: nodes.math_block) -> None:
    draw(writer, formula, "div")


def draw(writer: Any, formula: nodes.Element, tag: str) -> None:
    """A formula as MathML; one that cannot be read is shown as it was written, and said."""
    text = formula.astext()
    try:
        spaced = LOG_OF.sub(r"\\,\\log\\,", ACCENTED.sub(r"{\1{}}", text))
        drawn = latex2mathml.tex2mathml(spaced, as_block=tag == "div")
    except Exception as error:
        LOG.warning("formula %r: %s", text, error, location=formula)
        drawn = writer.encode(text)
    writer.body.append(f"{writer.starttag(formula, tag, '', CLASS='math')}{drawn}</{tag}>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", read_source)
    app.connect("include-read", read_included)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", shorten_docstring)
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
