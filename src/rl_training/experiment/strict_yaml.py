"""A strict subset of YAML 1.2 for configurations: plain scalars, lists and mappings.

PyYAML follows YAML 1.1: `3e-4` is a string, `on` a boolean, `2024-01-01` a date, and the last of two equal keys
wins. Here numbers are numbers, words are strings, and a duplicate key is an error, as are tags, anchors, aliases,
merge keys, `.nan` and `.inf`. The line of every value is recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from rl_training.errors import ConfigError

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 40

_PREFIX = "tag:yaml.org,2002:"
# In order: the first pattern that matches the whole scalar determines its type.
_SCALARS = (
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
)
_RESOLVERS = {
    first: [(_PREFIX + name, pattern) for name, pattern, firsts in _SCALARS if first in firsts]
    for first in {first for _, _, firsts in _SCALARS for first in firsts}
}


class _StrictLoader(yaml.SafeLoader):
    """Composes nodes only; `_Reader` converts them to values, so PyYAML's constructors are never called."""

    yaml_implicit_resolvers = _RESOLVERS
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not supported", problem_mark=event.start_mark
            )
        if getattr(event, "tag", None):
            raise yaml.MarkedYAMLError(problem=f"tag {event.tag!r} is not supported", problem_mark=event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=event.start_mark
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _StrictDumper(yaml.SafeDumper):
    """Quotes strings that the strict loader would read as another type, and never writes an alias."""

    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Composes nodes in C if PyYAML was built with libyaml."""

    yaml_implicit_resolvers = _RESOLVERS


@dataclass
class Document:
    """`value` as plain Python data; `lines` maps each dotted path to its line, counted from 1."""

    value: Any
    lines: dict[str, int] = field(default_factory=dict)


@dataclass
class _Reader:
    place: str
    lines: dict[str, int] = field(default_factory=dict)

    def fail(self, node: yaml.Node, message: str, path: str) -> ConfigError:
        return ConfigError(f"{self.place}:{node.start_mark.line + 1}: {message}", key=path or None)

    def read(self, node: yaml.Node, path: str = "") -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, _join(path, str(i))) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _PREFIX + "str":
                raise self.fail(key_node, f"keys must be names, got {_shown(key_node)}", path)
            key = str(key_node.value)
            dotted = _join(path, key)
            if key == "<<":
                raise self.fail(key_node, "merge keys (<<) are not supported", path)
            if key in values:
                first = self.lines[dotted]
                raise self.fail(key_node, f"duplicate key {dotted!r}, first given on line {first}", dotted)
            self.lines[dotted] = key_node.start_mark.line + 1
            values[key] = self.read(value_node, dotted)
        return values

    def _scalar(self, node: yaml.Node, path: str) -> Any:
        text, kind = str(node.value), node.tag.removeprefix(_PREFIX)
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            try:
                return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
            except ValueError:
                raise self.fail(node, f"{_named(path)}number of {len(text)} digits is too long", path) from None
        if kind == "float":
            named = text[-1] in "fFnN"  # .inf and .nan
            if named or not math.isfinite(float(text)):
                raise self.fail(node, f"{_named(path)}must be a finite number, got {text}", path)
            return float(text)
        return text


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _named(path: str) -> str:
    return f"{path} " if path else ""


def _shown(node: yaml.Node) -> str:
    return repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"


def parse_yaml(text: str, place: str) -> Document:
    """Parse one document; every error message starts with `place` (a file name, or `--set key`)."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{place}: {len(text)} characters, at most {MAX_CHARACTERS} are read")
    reader = _Reader(place)
    try:
        loader = _StrictLoader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{place}{line}: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{place}:{line_number}: character {error.character!r} is not allowed") from None
    return Document(None if node is None else reader.read(node), reader.lines)


def read_dumped(text: str, place: str) -> Any:
    """Parse the output of `dump_yaml` faster than `parse_yaml`, which is the fallback for other documents."""
    try:
        if len(text) <= MAX_CHARACTERS and _is_plain(text):
            loader = _FastLoader(text)
            try:
                return _Reader(place).read(loader.get_single_node())
            finally:
                loader.dispose()
    except (yaml.YAMLError, ConfigError):
        pass  # `parse_yaml` raises the error with its line
    return parse_yaml(text, place).value


def _is_plain(text: str) -> bool:
    """Whether a document has no anchors or tags, and is not nested so deeply that composing it in C would crash."""
    depth = most = 0
    for event in yaml.parse(text, Loader=_FastLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        most = max(most, depth)
        if most > MAX_DEPTH or getattr(event, "anchor", None) or getattr(event, "tag", None):
            return False
    return most > 0


def dump_yaml(value: Any) -> str:
    """Plain data as block YAML, in its own order; `parse_yaml` restores it unchanged."""
    return yaml.dump(value, Dumper=_StrictDumper, sort_keys=False, allow_unicode=True, width=110)


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
