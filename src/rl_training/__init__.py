"""rl_training: online, offline and offline-to-online reinforcement learning through one API.

Names are imported on first use, because importing torch takes seconds; `__init__.pyi` is for type checkers.
"""

import gc
from contextlib import contextmanager

from rl_training import api
from rl_training.version import __version__ as __version__

# Modules of the names that `rl_training.api` does not define.
_MODULES = {
    "Callback": "rl_training.runs.callbacks",
    "OPEResult": "rl_training.off_policy_evaluation.evaluation",
    "Logger": "rl_training.experiment.loggers",
    "Study": "rl_training.study",
    "TrainConfig": "rl_training.experiment.config",
    "TrainResult": "rl_training.runs.session",
    "TransitionDataset": "rl_training.data.datasets",
    "ope": "rl_training.off_policy_evaluation.evaluation",
}
__all__ = [*api.__all__, *_MODULES]


@contextmanager
def _without_gc():
    """Disable garbage collection: importing torch creates about 200,000 permanent objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def __getattr__(name):
    """Import a name of `__all__`, or a subpackage."""
    from importlib import import_module

    if name == "Judgement":
        import warnings

        warnings.warn("rl_training.Judgement is named OPEResult", DeprecationWarning, stacklevel=2)
        name = "OPEResult"
    if name in __all__:
        with _without_gc():
            globals()[name] = value = getattr(import_module(_MODULES.get(name, "rl_training.api")), name)
        return value
    try:
        if not name.startswith("_"):
            return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
