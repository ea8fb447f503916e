"""Render figures as SVG for the page and as SVG, PDF and PNG files. Equal figures give equal bytes."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rl_training.experiment.files import os_errors, replace_atomically
from rl_training.report.figures import INK, SEED, style

_METADATA: dict[str, dict[str, Any]] = {
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "pdf": {"Creator": "rl_training", "Producer": None, "CreationDate": None},
    "png": {"Software": None},
}
_ID = re.compile(r' id="([^"]*)"')
_DRAWN_SEED = re.compile(rf'<g id="{SEED}[0-9-]*">.*?</g>\s*', re.S)
_STYLE = re.compile(r"<style.*?</style>\s*", re.S)  # it would apply to the whole page
_REFERENCE = re.compile(r"#([\w-]+)")


def rendered(figure: Figure, kind: str = "svg", name: str = "") -> bytes:
    """Render a figure without the lines of single seeds."""
    seeds = [line for axes in figure.axes for line in axes.lines if str(line.get_gid()).startswith(SEED)]
    for line in seeds:
        line.set_visible(False)
    try:
        return _saved(figure, kind, name)
    finally:
        for line in seeds:
            line.set_visible(True)


def _saved(figure: Figure, kind: str, name: str) -> bytes:
    out = io.BytesIO()
    with style(name), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # SVG viewers use their own fonts
        background = "white" if kind == "png" else "none"
        figure.savefig(out, format=kind, metadata=_METADATA[kind], dpi=200, facecolor=background)
    return out.getvalue()


def svg_with_seeds(figure: Figure, name: str) -> str:
    """Render a figure as SVG, including the lines of single seeds."""
    return _saved(figure, "svg", name).decode()


def without_seeds(svg: str) -> str:
    return _DRAWN_SEED.sub("", svg)


def inline(svg: str, words: str) -> str:
    """Prepare SVG for the page: use the text colour of the page, mark seeds with a class, drop unused ids."""
    text = _STYLE.sub("", svg[svg.index("<svg") :]).replace(INK, "currentColor")
    used = set(_REFERENCE.findall(text))

    def keep(match: re.Match[str]) -> str:
        if match[1].startswith(SEED):
            return f' class="{SEED}"'
        return match[0] if match[1] in used else ""

    head, rest = _ID.sub(keep, text).split(">", 1)
    return f'{head} role="img" aria-label="{words}">{rest}'


def save_figure(figure: Figure, path: Path, *, seeds: bool = False) -> None:
    """Write a figure to a file; the suffix, .svg, .pdf or .png, determines the format."""
    kind = path.suffix.lower().removeprefix(".")
    data = _saved(figure, kind, path.stem) if seeds else rendered(figure, kind, path.stem)
    with os_errors(f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(path, data)
