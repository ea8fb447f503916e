"""Files of results: JSON with one entry per line, so that diffs are short."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(path: Path) -> Any:
    """The content of a file; None if it does not exist."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def write(path: Path, content: Mapping[str, Any], entries: str = "entries") -> None:
    """Replace a file, with one line for each key of `content` and of `content[entries]`, which is written last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [_line(name, value) for name, value in content.items() if name != entries]
    inner = ",\n".join(f"  {_line(name, value)}" for name, value in content[entries].items())
    lines.append(f"{json.dumps(entries)}: {{" + (f"\n{inner}\n " if inner else "") + "}")
    fresh = path.with_suffix(".new")
    fresh.write_text("{" + ",\n ".join(lines) + "}\n", encoding="utf-8")
    fresh.replace(path)


def _line(name: str, value: Any) -> str:
    return f"{json.dumps(name)}: {json.dumps(value)}"
