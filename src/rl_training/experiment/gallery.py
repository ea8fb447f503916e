"""The policies published with the package: one per algorithm, checkpoints without critics."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from rl_training.errors import CheckpointError, nearest

GALLERY = Path(str(resources.files("rl_training"))) / "assets" / "gallery"
_PREFIX = "gallery"


def published_policies() -> list[str]:
    """Names of the published policies, as `gallery/<algo>`."""
    found = GALLERY.iterdir() if GALLERY.is_dir() else ()
    return sorted(f"{_PREFIX}/{folder.name}" for folder in found if folder.is_dir())


def published(path: Path) -> Path | None:
    """The folder of the published policy `path`; None for any other path.

    An existing file or folder of that name takes precedence, as for configurations.
    """
    if path.is_absolute() or len(path.parts) != 2 or path.parts[0] != _PREFIX or path.exists():
        return None
    known = [name.removeprefix(f"{_PREFIX}/") for name in published_policies()]
    if (name := path.name.lower()) not in known:
        hint = f"{nearest(name, known)}; those are {', '.join(known)}"
        raise CheckpointError(f"{path}: no such checkpoint and no published policy{hint}")
    return GALLERY / name
