"""Signatures and docstrings of managed classes: a keyword for each setting, with its default and meaning."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from textwrap import fill
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.updates.schedules import Schedule

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from rl_training.experiment.registry import AlgorithmSpec

# Fields of `TrainConfig` that a managed class sets itself, from `env`, or from a keyword per key.
_NOT_KEYWORDS = ("algo", "env_id", "algo_kwargs")


def managed_class(base: type[Any], spec: AlgorithmSpec) -> type[Any]:
    """The subclass of `base` that trains an algorithm; a new one if a plug-in defines none."""
    for managed in base.__subclasses__():
        if getattr(managed, "algo", None) == spec.name:
            return managed
    learner = spec.learner
    body = {"algo": spec.name, "__doc__": learner.__doc__, "__module__": learner.__module__}
    return type(learner.__name__, (base,), body)


class LazyAttribute:
    """A class attribute computed from the class on access."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute = compute

    def __get__(self, instance: Any, owner: type) -> Any:
        return self._compute(owner)


def settings_of(spec: AlgorithmSpec, given: dict[str, Any]) -> Iterator[tuple[str, FieldInfo, Any]]:
    """Key, field and default of every setting, the algorithm's own first; `given` overrides defaults."""
    for key, sections in spec.owners().items():
        default = sections.default(key)
        plain = default.type if isinstance(default, Schedule) else default  # as a user writes it
        yield key, sections.owners()[key].model_fields[key], plain
    for key, field in TrainConfig.model_fields.items():
        if key not in _NOT_KEYWORDS:
            yield key, field, given.get(key, field.get_default(call_default_factory=True))


def signature_of(managed: type[Any], given: dict[str, Any]) -> inspect.Signature:
    """The parameters of a class, with a keyword for each setting in place of `**settings`."""
    own = [
        parameter
        for name, parameter in inspect.signature(managed.__init__).parameters.items()
        if name != "self" and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    taken = {parameter.name for parameter in own}
    keywords = [
        inspect.Parameter(
            key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=plain_type(field.annotation)
        )
        for key, field, default in settings_of(get_algorithm_spec(managed.algo), given)
        if key not in taken
    ]
    return inspect.Signature([*own, *keywords])


def plain_type(annotation: Any) -> Any:
    """A type without its constraints: `tuple[int, ...] | None`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return plain_type(parts[0])
    if origin is Literal or not parts:
        return annotation
    plain = tuple(plain_type(part) for part in parts)
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, plain)
    return origin[plain]


def documented(managed: type[Any], text: str | None, given: dict[str, Any]) -> str:
    """The docstring `text` of a class with a line for each setting."""
    spec = get_algorithm_spec(managed.algo)
    lines = [
        fill(f"{key} = {default!r}: {field.description or ''}", width=110, subsequent_indent="    ")
        for key, field, default in settings_of(spec, given)
    ]
    return "\n".join(
        [inspect.cleandoc(text or spec.title), "", "Settings, all keywords:", "", *lines, *_discrete(spec)]
    )


def _discrete(spec: AlgorithmSpec) -> list[str]:
    """The settings that discrete actions change, if the algorithm supports both kinds."""
    without, others = spec.sections.changed_by_discrete_actions()
    words = [f"without {', '.join(without)}"] if without else []
    words += [f"{key} = {value!r}" for key, value in others.items()]
    if spec.sections.discrete is None:
        return []
    return ["", fill(f"On discrete actions: {'; '.join(words) or 'the same'}.", width=110)]
