"""The YAML document of a study or a tuning."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.strict_yaml import dump_yaml, explain, parse_yaml, read_text

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def plain_name(value: Any) -> Any:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"must be a plain folder name of letters, digits, '.', '_' and '-', got {value!r}")
    return value


@dataclass(frozen=True)
class StudyDocument:
    """The YAML document of a study or a tuning, from a file or a mapping."""

    text: str
    place: str  # its name in messages
    stem: str  # the study's name if the document has none
    folder: Path | None  # the folder of the file
    lines: Mapping[str, int]  # line number of each key
    values: dict[str, Any]

    @classmethod
    def read(cls, source: str | Path | Mapping[str, Any], kind: str, keys: str) -> StudyDocument:
        """Read a file, or dump a mapping to text. `kind` and `keys` say in messages what the document should be."""
        if isinstance(source, Mapping):
            text, place, stem, folder = dump_yaml(dict(source)), kind, str(source.get("name", kind)), None
        else:
            path = Path(source).expanduser()
            text = read_text(path, str(source), f"the file of a {kind}")
            place, stem, folder = str(source), path.stem, path.parent
        document = parse_yaml(text, place)
        if not isinstance(document.value, dict):
            raise ConfigError(f"{place}: a {kind} is a mapping with {keys}")
        return cls(text, place, stem, folder, {} if folder is None else document.lines, document.value)

    def name_or_stem(self, name: str | None) -> str:
        """`name`, the study's own; without one the stem, which must be a plain name too."""
        try:
            return name or str(plain_name(self.stem))
        except ValueError as error:
            raise ConfigError(f"name {error}", key="name") from None

    def find_config(self, config: str) -> str:
        """The path of a configuration that is stored next to this file; else `config`, a path or packaged name."""
        if self.folder is not None and not Path(config).is_file() and (self.folder / config).is_file():
            return str(self.folder / config)
        return config

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Prefix the `ConfigError`s of a block with file and line."""
        try:
            yield
        except ConfigError as error:
            raise explain(error, self.place, self.lines, {}) from None
