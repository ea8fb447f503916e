"""Module attributes that are imported on first access."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(module: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for `module`; `modules` maps each name to the module that defines it."""

    def attribute(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value: object = getattr(import_module(modules[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return attribute, lambda: sorted({*vars(sys.modules[module]), *modules})
