"""rl_training: online, offline and offline-to-online reinforcement learning through one API.

Names are imported when they are first used: torch takes seconds, which a misspelt command need not wait for.
`__init__.pyi` tells type checkers what they are.
"""

import gc
from contextlib import contextmanager

from rl_training import api
from rl_training.version import __version__ as __version__

# Where the names live that are not of `rl_training.api`.
_HOMES = {
    "Callback": "rl_training.runs.callbacks",
    "OPEResult": "rl_training.off_policy_evaluation.evaluation",
    "Logger": "rl_training.experiment.loggers",
    "Study": "rl_training.study",
    "TrainConfig": "rl_training.experiment.config",
    "TrainResult": "rl_training.runs.session",
    "TransitionDataset": "rl_training.data.datasets",
    "ope": "rl_training.off_policy_evaluation.evaluation",
}
__all__ = [*api.__all__, *_HOMES]


@contextmanager
def _no_collection():
    """Importing torch makes some 200,000 objects that stay, which the collector would visit in vain."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()


def __getattr__(name):
    """A name of `__all__` from its module, or a subpackage."""
    from importlib import import_module

    if name == "Judgement":
        import warnings

        warnings.warn("rl_training.Judgement is named OPEResult", DeprecationWarning, stacklevel=2)
        name = "OPEResult"
    if name in __all__:
        with _no_collection():
            globals()[name] = value = getattr(import_module(_HOMES.get(name, "rl_training.api")), name)
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
