"""rl_training: online, offline and offline-to-online reinforcement learning through one API.

Names are imported on first use, because importing torch takes seconds; `__init__.pyi` is for type checkers.
"""

import gc
from contextlib import contextmanager
from importlib import import_module

from rl_training import api
from rl_training.errors import missing_algorithm
from rl_training.lazy import lazy
from rl_training.version import __version__ as __version__

_MODULES = dict.fromkeys(api.__all__, "rl_training.api") | {
    "Callback": "rl_training.runs.callbacks",
    "OPEResult": "rl_training.off_policy_evaluation.evaluation",
    "Logger": "rl_training.experiment.loggers",
    "Study": "rl_training.study",
    "TensorEnv": "rl_training.environments.tensor_env",
    "TensorStep": "rl_training.environments.tensor_env",
    "TrainConfig": "rl_training.experiment.config",
    "TrainResult": "rl_training.runs.session",
    "TransitionDataset": "rl_training.data.datasets",
    "ope": "rl_training.off_policy_evaluation.evaluation",
    "register": "rl_training.api.registering",
}
__all__ = [*_MODULES]
_attribute, __dir__ = lazy(__name__, _MODULES)


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
    if name == "Judgement":
        import warnings

        warnings.warn("rl_training.Judgement is named OPEResult", DeprecationWarning, stacklevel=2)
        name = "OPEResult"
    if name in __all__:
        with _without_gc():
            return _attribute(name)
    try:
        if not name.startswith("_"):
            return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{missing_algorithm(name)}")
