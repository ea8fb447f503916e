"""Files of a user's own format: a function `read(path)` returns their columns by name.

It returns a mapping of arrays, named as the arguments of `TransitionDataset.from_arrays`, or `Columns`, which are
read in chunks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_training.data.columns import Columns
from rl_training.data.formats.files import existing_file
from rl_training.errors import ConfigError, DatasetError, RLTrainingError, cause_of
from rl_training.importing import find_permitted

KIND = "algo_kwargs.dataset_kind"  # the setting, in messages
Reader = Callable[[Path], Mapping[str, Any] | Columns]


def find_reader(name: str, *, allow_import: bool = False) -> Reader:
    """The user's function `module:function`; `allow_import` permits to import it."""
    if ":" not in name:
        raise ConfigError(f"kind must be npz, hdf5, minari or module:function, got {name!r}")
    again = "IQL(env, dataset_kind=…) or TransitionDataset.load(path, kind=…)"
    found: Reader = find_permitted(name, KIND, allow_import=allow_import, again=again)
    if not callable(found):
        raise ConfigError(f"{KIND}: {name} is not a function", key=KIND)
    return found


def read_own(place: str | os.PathLike[str], kind: str | Reader) -> Columns:
    """The columns of a file that the function `kind`, or that of this name, reads."""
    reader = find_reader(kind) if isinstance(kind, str) else kind
    file, name = existing_file(place), kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))
    try:
        found = reader(file)
        if isinstance(found, Mapping):
            return Columns.of_arrays(str(file), found)
    except RLTrainingError:
        raise
    except Exception as error:
        raise DatasetError(f"{file}: {name} fails: {cause_of(error)}") from error
    if not isinstance(found, Columns):
        raise DatasetError(f"{file}: {name} returned a {type(found).__name__}, not a mapping of arrays or Columns")
    return found
