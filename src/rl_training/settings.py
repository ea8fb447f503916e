"""`Settings`: frozen, strict pydantic models whose errors are one plain line.

Every section of `algo_kwargs` is a `Settings` class in the module that uses it. The defaults and ranges of its
fields are defined nowhere else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from numbers import Real
from pathlib import Path, PurePath
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rl_training.errors import ConfigError, setting_hint

_LIMITS = {
    "greater_than_equal": (">=", "ge"),
    "greater_than": (">", "gt"),
    "less_than_equal": ("<=", "le"),
    "less_than": ("<", "lt"),
}
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a string",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "list": "a list",
}


_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?:([kmgt])(i?)b|b)?\s*", re.IGNORECASE)
_SEED_RANGE, _MOST_SEEDS = re.compile(r"\s*([0-9]{1,10})\s*\.\.\s*([0-9]{1,10})\s*"), 100_000


def _whole(value: Any) -> Any:
    """Convert a float without a fraction, such as `1e6`, or a NumPy integer to int; pydantic validates the rest."""
    other = isinstance(value, Real) and not isinstance(value, int)
    return int(value) if other and float(value).is_integer() else value


def at_home(value: Any) -> Any:
    """Convert a path to text and expand `~`; pydantic validates all other values."""
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, str) and value.startswith("~"):
        with contextlib.suppress(RuntimeError):  # no home directory: keep the path unchanged
            return str(Path(value).expanduser())
    return value


def _as_list(value: Any) -> Any:
    """A tuple as the list that YAML contains, for messages."""
    return list(value) if isinstance(value, tuple) else value


def seed_list(value: Any) -> tuple[int, ...]:
    """Parse distinct seeds: `0..9` (both ends included), `0,3,7` or a list of whole numbers."""
    if isinstance(value, str) and (found := _SEED_RANGE.fullmatch(value)):
        first, last = int(found[1]), int(found[2])
        if not first <= last < first + _MOST_SEEDS:
            raise ValueError(f"must go upwards, over at most {_MOST_SEEDS:,} seeds, got {value!r}")
        return tuple(range(first, last + 1))
    if isinstance(value, str) and all(part.strip().isdecimal() for part in value.split(",")):
        value = [int(part) for part in value.split(",")]
    if not isinstance(value, list | tuple | range) or not value:
        raise ValueError(f"must be a range such as 0..9 or a list such as [0, 3, 7], got {_as_list(value)!r}")
    for seed in value:
        if type(seed) is not int or not 0 <= seed < 2**32:
            raise ValueError(f"must be whole numbers from 0 to 2**32 - 1, got {seed!r}")
    if len(set(value)) < len(value):
        twice = next(seed for place, seed in enumerate(value) if seed in value[:place])
        raise ValueError(f"{twice} is given twice")
    return tuple(value)


def byte_size(value: Any) -> Any:
    """Convert `4GB`, `1.5 GiB` or `512MB` to bytes; pydantic validates numbers."""
    if not isinstance(value, str):
        return _whole(value)
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ValueError(f"must be a size such as 4GB, 512MB or a number of bytes, got {value!r}")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** " kmgt".index((found[2] or " ").lower()))


T = TypeVar("T")
Effect = Literal["run", "place", "watching", "rows", "result", "score", "evaluation"]


@dataclass(frozen=True)
class Affects:
    """Annotation of a field that declares what the setting affects: `device: Place[str]`. Several are allowed."""

    what: Effect


@dataclass(frozen=True)
class OnlyWith:
    """Annotation of a field that has an effect only if the setting `other` has this value.

    None means any number above 0, a tuple any of its values, `...` any value but None. Of several annotations, one
    is enough.
    """

    other: str
    value: Any = None

    def missing(self, given: Any) -> str:
        """What the setting needs to have an effect; an empty string if `given` is enough."""
        if self.value is None:
            return "" if given else f"{self.other} > 0"
        if self.value is ...:
            return self.other if given is None else ""
        needed = self.value if isinstance(self.value, tuple) else (self.value,)
        words = " or ".join(str(one).lower() for one in needed)
        return "" if given in needed else f"{self.other}: {words}"


class Unused(NamedTuple):
    """A setting without effect, and what it needs to have one; empty if no other setting can change that."""

    name: str
    value: Any
    needs: str


PerRun = Annotated[T, Affects("run")]  # identity and folder of the run; may differ among members of a population
Place = Annotated[T, Affects("place")]  # where and how the run is computed and stored; no effect on results
Watching = Annotated[T, Affects("watching")]  # when the run is logged and saved; not part of the method
Rows = Annotated[T, Affects("rows")]  # how rows of data are prepared for the learner
Result = Annotated[T, Affects("result")]
Score = Annotated[T, Affects("result"), Affects("score")]  # the environment of scores
Evaluation = Annotated[T, Affects("evaluation")]  # how a checkpoint is evaluated

WholeNumber = BeforeValidator(_whole)
ByteSize = Annotated[int, Field(ge=0), BeforeValidator(byte_size)]
PositiveInt = Annotated[int, Field(ge=1), WholeNumber]
NonNegativeInt = Annotated[int, Field(ge=0), WholeNumber]
PathText = Annotated[str, BeforeValidator(at_home)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Sizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


def _tuple_in(annotation: Any) -> Any:
    """The tuple that a type is, also with constraints or as one of a union; else None."""
    origin = get_origin(annotation)
    if tuple in (annotation, origin):
        return annotation
    parts = get_args(annotation) if origin in (Annotated, Union, UnionType) else ()
    return next(filter(None, map(_tuple_in, parts)), None)


def _with_tuples(value: Any, annotation: Any) -> Any:
    """`value` with tuples in place of the lists that `annotation` does not allow, also inside others."""
    found = _tuple_in(annotation)
    if found is None or not isinstance(value, list | tuple):
        return value
    parts = get_args(found)
    return tuple(map(_with_tuples, value, repeat(parts[0]) if ... in parts else chain(parts, repeat(None))))


@cache
def _tuple_fields(kind: type[BaseModel]) -> Mapping[str, Any]:
    fields = {info.alias or name: info.annotation for name, info in kind.model_fields.items()}
    return {name: annotation for name, annotation in fields.items() if _tuple_in(annotation)}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation: `M` for `M | None` and for `tuple[M, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)


def _fields_at(path: Iterable[int | str], fields: Mapping[str, FieldInfo]) -> Mapping[str, FieldInfo]:
    """The fields of the model at `path`; integers in it are list indices."""
    for part in path:
        if isinstance(part, str):
            model = _model_in(fields[part].annotation) if part in fields else None
            fields = model.model_fields if model else {}
    return fields


def _first(error: ValidationError) -> ErrorDetails:
    """The first problem, but an unknown key before a missing one, which it may be."""
    problems = error.errors()
    unknown = (one for one in problems if one["type"] == "extra_forbidden")
    return next(unknown, problems[0]) if problems[0]["type"] == "missing" else problems[0]


def describe(error: ValidationError, fields: Mapping[str, FieldInfo], place: str = "") -> str:
    """The first problem that pydantic found, on one line: `subset_size must be >= 1, got 0`."""
    problem = _first(error)
    path = ".".join(str(part) for part in problem["loc"])
    dotted = f"{place}.{path}" if place and path else (place or path)
    kind, value, context = problem["type"], _as_list(problem["input"]), problem.get("ctx", {})
    if kind == "extra_forbidden":
        head, _, name = path.rpartition(".")
        where = ".".join(part for part in (place, head) if part)
        known = _fields_at(problem["loc"][:-1], fields)
        return (f"{where}: " if where else "") + f"unknown key {name!r}{setting_hint(name, known)}"
    if kind == "missing":
        return f"{dotted} is required"
    if kind in _LIMITS:
        sign, key = _LIMITS[kind]
        return f"{dotted} must be {sign} {context[key]}, got {value!r}"
    if kind == "literal_error":
        return f"{dotted} must be {context['expected']}, got {value!r}"
    if kind == "finite_number":
        return f"{dotted} must be a finite number, got {value!r}"
    if kind.endswith("too_short"):
        return f"{dotted} must not be empty, got {value!r}"
    if kind in ("value_error", "assertion_error"):
        message = str(context.get("error", problem["msg"]))
        joint = " " if message.startswith("must ") else ": "
        return f"{dotted}{joint}{message}" if dotted else message
    if kind.endswith(("_type", "_parsing")):
        expected = _TYPES.get(kind.rsplit("_", 1)[0], problem["msg"])
        return f"{dotted} must be {expected}, got {value!r}"
    return f"{dotted}: {problem['msg']}, got {value!r}"


class Settings(BaseModel):
    """Immutable, typed settings; an unknown key, a wrong type or a value out of range raises `ConfigError`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _lists_as_tuples(cls, values: Any) -> Any:
        """Convert lists, as read from YAML or a checkpoint, to the tuples that the fields are."""
        if not isinstance(values, dict):
            return values
        fields = {name: kind for name, kind in _tuple_fields(cls).items() if name in values}
        return values | {name: _with_tuples(values[name], kind) for name, kind in fields.items()}

    @classmethod
    def parse(cls, values: Mapping[str, Any], place: str = "") -> Self:
        """Build from plain values; `place` is prefixed to the path in error messages."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            path = ".".join(str(part) for part in (place, *_first(error)["loc"]) if part != "")
            fields = {info.alias or name: info for name, info in cls.model_fields.items()}
            raise ConfigError(describe(error, fields, place), key=path) from None

    def import_own(self, allow_import: bool) -> None:
        """Import the user's objects `module:Name` in these settings; raises unless `allow_import` permits it."""

    def unused(
        self, others: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, ignored: Collection[str] = ()
    ) -> Iterator[Unused]:
        """The fields that have no effect with the values of `others`, except those with their default value.

        `defaults` override those of the fields; `ignored` never have an effect. A field of nested settings depends
        on the others of its mapping.
        """
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            marks = [mark for mark in info.metadata if isinstance(mark, OnlyWith) and name not in ignored]
            missing = [mark.missing(others[mark.other]) for mark in marks if mark.other in others]
            idle = name in ignored or bool(marks and all(missing))
            if idle and value != (defaults or {}).get(name, info.default):
                yield Unused(name, value, " or ".join(missing))
            if isinstance(value, Settings):
                for below in value.unused(dict(value)):
                    yield below._replace(name=f"{name}.{below.name}")

    @classmethod
    def affecting(cls, *what: Effect) -> frozenset[str]:
        """The names of the fields that are annotated with one of `what`."""
        return frozenset(
            name
            for name, info in cls.model_fields.items()
            if any(isinstance(mark, Affects) and mark.what in what for mark in info.metadata)
        )
