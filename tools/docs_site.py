"""Sphinx extension of the documentation site.

Algorithm pages are completed from the code (`tools/describe_algorithm.py`). Links to the changelog become links to
its page, links to files of `examples/` become downloads, and other links that leave docs/ become plain text.
Formulas become MathML during the build, so a browser needs neither a script nor the network to show them.
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
# Sphinx does not process pictures in HTML; docs/pictures is copied to the static files of the site.
PICTURE = re.compile(r'\b(src|srcset)="(?:\.\./)?pictures/')
# Corrections of MathML: without them the index of an accented letter would be below it, and log would touch its
# neighbours.
ACCENTED = re.compile(r"(\\(?:tilde|hat) ?(?:\\[a-z]+|\w))(?=[_^])")
LOG_OF = re.compile(r"\\log\s+")
# Types that the reference shows by these names.
ALIASES: dict[str, tuple[Any, ...]] = {
    "ArrayLike": (ArrayLike,),
    "NDArray": tuple(NDArray[kind] for kind in (Any, np.float32, np.float64, np.int64)),
    "Data": (managed.Data,),
    "Environment": (managed.Environment,),
    "Loggers": (managed.Loggers,),
    "Watchers": (managed.Watchers,),
}
# Files outside docs/ that a page includes.
PAGES = {"CHANGELOG.md": "docs/changelog.md"}


def on_site(text: str, folder: str) -> str:
    """Replace links that leave docs/ on a page in `folder` of the repository, and the paths of pictures."""
    base = folder or "docs"  # a file of the root is included by a page of docs/

    def replaced(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        path, mark, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(folder, path))
        if target.startswith(("http", "#")):
            return found[0]
        if place.startswith("examples/") and posixpath.splitext(place)[1]:
            return f"{{download}}`{label} <{posixpath.relpath(place, base)}>`"
        place = PAGES.get(place, place)
        if not place.startswith("docs/") or place.startswith("docs/plans"):
            return label
        return f"[{label}]({posixpath.relpath(place, base)}{mark}{anchor})"

    static = posixpath.relpath("docs/_static", base)
    return PICTURE.sub(rf'\1="{static}/', LINK.sub(replaced, text))


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Complete an algorithm's page, and replace links that leave the site."""
    folder, _, name = docname.rpartition("/")
    if folder == "algorithms" and name != "index":
        source[0] = describe_algorithm.render(name)
        for used in (*describe_algorithm.RESULTS.glob("*.md"), describe_algorithm.FOLDER / "_template.md"):
            app.env.note_dependency(str(used))
    source[0] = on_site(source[0], posixpath.join("docs", folder).rstrip("/"))


def read_included(app: Sphinx, path: Any, docname: str, content: list[str]) -> None:
    """Replace the links of CHANGELOG.md, which a page includes."""
    content[0] = on_site(content[0], "")


def shorten_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Settings of a managed class become keywords; types with a name are shown by it."""
    if is_managed(thing) or thing is managed.ManagedAlgorithm:
        return describe_classes.signature(thing.__name__ if is_managed(thing) else None), None
    return named(signature), named(returns)


def named(text: str | None) -> str | None:
    """Replace types that have a name in `ALIASES`; written out they would fill the page."""
    for name, kinds in ALIASES.items():
        for kind in kinds:
            text = text and text.replace(stringify_annotation(kind, "smart"), name)
    return text


def shorten_docstring(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Replace the settings in the docstring of a managed class with a link to their table."""
    if is_managed(thing):
        lines[lines.index("Settings, all keywords:") :] = [f"All settings: :doc:`/algorithms/{thing.algo}`."]


def is_managed(thing: Any) -> bool:
    return isinstance(thing, type) and isinstance(getattr(thing, "algo", None), str)


def draw_inline(writer: Any, formula: nodes.math) -> None:
    draw(writer, formula, "span")


def draw_block(writer: Any, formula: nodes.math_block) -> None:
    draw(writer, formula, "div")


def draw(writer: Any, formula: nodes.Element, tag: str) -> None:
    """Write a formula as MathML; one that cannot be parsed is shown as source, with a warning."""
    text = formula.astext()
    try:
        spaced = LOG_OF.sub(r"\\,\\log\\,", ACCENTED.sub(r"{\1{}}", text))
        drawn = latex2mathml.tex2mathml(spaced, as_block=tag == "div").replace(">'<", ">′<")
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
