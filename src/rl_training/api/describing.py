"""What `help` and an editor show of a managed class: a keyword for each setting, with its default and meaning."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from textwrap import fill
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from rl_training.experiment.config import TrainConfig

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from rl_training.experiment.registry import AlgorithmSpec

# Fields of `TrainConfig` that a class fixes, takes as `env`, or takes key by key.
_NOT_KEYWORDS = ("algo", "env_id", "algo_kwargs")


class WhenAsked:
    """A class attribute made by a function of the class when it is looked at: few programs read the help of all."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __get__(self, instance: Any, owner: type) -> Any:
        return self._make(owner)


def settings_of(spec: AlgorithmSpec, given: dict[str, Any]) -> Iterator[tuple[str, FieldInfo, Any]]:
    """Key, field and default of everything that can be set, the algorithm's own first; `given` defaults win."""
    for key, section in spec.sections.owners().items():
        yield key, section.model_fields[key], spec.sections.default(key)
    for key, field in TrainConfig.model_fields.items():
        if key not in _NOT_KEYWORDS:
            yield key, field, given.get(key, field.get_default(call_default_factory=True))


def signature_of(constructor: Callable[..., Any], spec: AlgorithmSpec, given: dict[str, Any]) -> inspect.Signature:
    """The constructor's own parameters, and its `**settings` spelt out."""
    own = [
        parameter
        for name, parameter in inspect.signature(constructor).parameters.items()
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    taken = {parameter.name for parameter in own}
    keywords = [
        inspect.Parameter(
            key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=plain_type(field.annotation)
        )
        for key, field, default in settings_of(spec, given)
        if key not in taken
    ]
    return inspect.Signature([*own, *keywords])


def plain_type(annotation: Any) -> Any:
    """A type without the ranges that only a check needs: `tuple[int, ...] | None`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return plain_type(parts[0])
    if origin is Literal or not parts:
        return annotation
    plain = tuple(plain_type(part) for part in parts)
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, plain)
    return origin[plain]


def documented(text: str, spec: AlgorithmSpec, given: dict[str, Any]) -> str:
    """A class's docstring with a line for each setting."""
    lines = [
        fill(f"{key} = {default!r}: {field.description or ''}", width=110, subsequent_indent="    ")
        for key, field, default in settings_of(spec, given)
    ]
    return "\n".join([inspect.cleandoc(text), "", "Settings, all keywords:", "", *lines, *_discrete(spec)])


def _discrete(spec: AlgorithmSpec) -> list[str]:
    """What discrete actions change, where the algorithm takes both kinds."""
    without, others = spec.sections.changed_by_discrete_actions()
    words = [f"without {', '.join(without)}"] if without else []
    words += [f"{key} = {value!r}" for key, value in others.items()]
    if spec.sections.discrete is None:
        return []
    return ["", fill(f"On discrete actions: {'; '.join(words) or 'the same'}.", width=110)]
