"""A strict subset of YAML 1.2 for configurations: plain scalars, lists and mappings.

PyYAML follows YAML 1.1: `3e-4` is a string, `on` a boolean, `2024-01-01` a date, and the last of two equal keys
wins. Here numbers are numbers, words are strings, and a duplicate key is an error, as are tags, anchors, aliases,
merge keys, `.nan` and `.inf`. The line of every value is recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rl_training.errors import ConfigError, one_line
from rl_training.experiment.files import os_errors

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 40

# In order: the first pattern that matches the whole scalar determines its type.
_SCALARS = (
    ("null", re.compile(r"(?:~|null|Null|NULL|)$")),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")),
    ("int", re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")),
    (
        "float",
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
    ),
)
_RESOLVERS = {None: [(f"tag:yaml.org,2002:{name}", pattern) for name, pattern in _SCALARS]}


class _StrictDumper(yaml.SafeDumper):
    """Quotes strings that the strict loader would read as another type, and never writes an alias."""

    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        return True


@dataclass
class Document:
    """`value` as plain Python data; `lines` maps each dotted path to its line, counted from 1."""

    value: Any
    lines: dict[str, int] = field(default_factory=dict)


@dataclass
class _Reader:
    """Converts the events of PyYAML's parser to values; its constructors are never called."""

    place: str
    events: Iterator[Any]
    lines: dict[str, int] = field(default_factory=dict)
    depth: int = 0

    def document(self) -> Any:
        """The value of the only document; None if there is none."""
        next(self.events)  # the start of the stream
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        value = self._read(next(self.events), "")
        next(self.events)  # the end of the document
        if not isinstance(event := next(self.events), yaml.StreamEndEvent):
            raise yaml.MarkedYAMLError(problem="but found another document", problem_mark=event.start_mark)
        return value

    def _read(self, event: Any, path: str) -> Any:
        self._check(event)
        self.lines.setdefault(path, event.start_mark.line + 1)
        self.depth += 1
        value: Any
        if isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(path)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(path)
        else:
            value = self._scalar(event, path)
        self.depth -= 1
        return value

    def _check(self, event: Any) -> None:
        """Raise for an alias, an anchor, a tag or deep nesting."""
        problem = None
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            problem = "anchors and aliases are not supported"
        elif event.tag:
            problem = f"tag {event.tag!r} is not supported"
        elif self.depth >= MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
        if problem is not None:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)

    def _fail(self, event: Any, message: str, path: str) -> ConfigError:
        return ConfigError(f"{self.place}:{event.start_mark.line + 1}: {message}", key=path or None)

    def _mapping(self, path: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            self._check(event)
            if _kind(event) != "str":
                shown = repr(event.value) if isinstance(event, yaml.ScalarEvent) else "a list or mapping"
                raise self._fail(event, f"keys must be names, got {shown}", path)
            key = str(event.value)
            dotted = _join(path, key)
            if key == "<<":
                raise self._fail(event, "merge keys (<<) are not supported", path)
            if key in values:
                first = self.lines[dotted]
                raise self._fail(event, f"duplicate key {dotted!r}, first given on line {first}", dotted)
            self.lines[dotted] = event.start_mark.line + 1
            values[key] = self._read(next(self.events), dotted)
        return values

    def _sequence(self, path: str) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            values.append(self._read(event, _join(path, str(len(values)))))
        return values

    def _scalar(self, event: Any, path: str) -> Any:
        text, kind, named = str(event.value), _kind(event), f"{path} " if path else ""
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            try:
                return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
            except ValueError:
                raise self._fail(event, f"{named}number of {len(text)} digits is too long", path) from None
        if kind == "float":
            if text[-1] in "fFnN" or not math.isfinite(float(text)):  # .inf, .nan or 1e999
                raise self._fail(event, f"{named}must be a finite number, got {text}", path)
            return float(text)
        return text


def _kind(event: Any) -> str | None:
    """The type of a scalar; quoted ones are strings. None for a list or mapping."""
    if not isinstance(event, yaml.ScalarEvent):
        return None
    plain = event.implicit[0]
    return next((name for name, pattern in _SCALARS if plain and pattern.match(event.value)), "str")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def parse_yaml(text: str, place: str, *, loader: Any = yaml.SafeLoader) -> Document:
    """Parse one document; every error message starts with `place` (a file name, or `--set key`)."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{place}: {len(text)} characters, at most {MAX_CHARACTERS} are read")
    reader = _Reader(place, yaml.parse(text, Loader=loader))
    try:
        return Document(reader.document(), reader.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{place}{line}: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{place}:{line_number}: character {error.character!r} is not allowed") from None


def read_text(path: Path, place: str, what: str) -> str:
    """The text of a file; errors start with `place` and ask whether it is `what` it should be."""
    try:
        with os_errors(f"{place}: cannot be read"):
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: not UTF-8 text (byte {error.start}); is this {what}?") from None


def read_dumped(text: str, place: str) -> Any:
    """The value of a document, parsed in C if PyYAML was built with libyaml; errors are those of `parse_yaml`."""
    try:
        return parse_yaml(text, place, loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)).value
    except ConfigError:
        return parse_yaml(text, place).value


def dump_yaml(value: Any) -> str:
    """Plain data as block YAML, in its own order; `parse_yaml` restores it unchanged."""
    try:
        return yaml.dump(value, Dumper=_StrictDumper, sort_keys=False, allow_unicode=True, width=110)
    except yaml.representer.RepresenterError as error:
        given = one_line(repr(error.args[-1]), 100)
        raise ConfigError(
            f"{given} is not plain data; use numbers, text, lists, mappings, and 'module:Name' for code"
        ) from None


def _locate(dotted: str, place: str, lines: Mapping[str, int], overridden: Mapping[str, str]) -> str:
    """`file:line` of a setting or of the nearest one above it, or the command-line option that set it."""
    while dotted:
        if dotted in overridden:
            return overridden[dotted]
        if dotted in lines:
            return f"{place}:{lines[dotted]}"
        dotted = dotted.rpartition(".")[0]
    return place


def explain(error: ConfigError, place: str, lines: Mapping[str, int], overridden: Mapping[str, str]) -> ConfigError:
    """The same error, preceded by the place of its key: file and line, or the command-line option."""
    where = _locate(error.key or "", place, lines, overridden)
    return type(error)(f"{where}: {error}" if where else str(error), key=error.key)
