"""The next points of a tuning, by Optuna's TPE. The Optuna study is rebuilt on every call.

The sampler of each trial has its own seed, so its point depends only on the outcomes passed in. A tuning that was
killed gets the same points again.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.errors import MissingDependencyError
from rl_training.study.space import Dimension, Range

Point = Mapping[str, Any]  # a value for each setting of the space, by dotted place


def require_optuna() -> Any:
    """Import Optuna; this is the only place that does."""
    try:
        import optuna
    except ImportError as error:
        raise MissingDependencyError(f"tuning needs Optuna ({error}); pip install optuna") from None
    return optuna


def propose(
    space: Mapping[str, Dimension], known: Sequence[tuple[Point, float | None]], numbers: Sequence[int], seed: int
) -> list[dict[str, Any]]:
    """A point for each trial in `numbers`; these trials run at the same time.

    `known` are points and their values, which are maximised; a point without a value (it failed) counts as the
    worst.
    """
    optuna = require_optuna()
    with _silent(optuna):
        kinds = {place: _distribution(optuna, space[place]) for place in sorted(space)}
        study = optuna.create_study(direction="maximize")
        values = [value for _, value in known if value is not None]
        for point, value in known if values else ():
            params = {place: _to_optuna(space[place], point[place]) for place in kinds}
            value = min(values) if value is None else value
            study.add_trial(optuna.create_trial(params=params, distributions=kinds, value=value))
        points = []
        for number in numbers:
            own = np.random.SeedSequence((seed, number)).generate_state(1)[0]  # unrelated for neighbouring numbers
            study.sampler = optuna.samplers.TPESampler(seed=int(own))
            asked = study.ask(kinds)
            points.append({place: _from_optuna(space[place], asked.params[place]) for place in kinds})
    return points


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    kinds = optuna.distributions
    if not isinstance(dimension, Range):
        return kinds.CategoricalDistribution(range(len(dimension.values)))  # by index: a choice may be a list
    if dimension.whole:
        return kinds.IntDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step or 1)
    return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)


def _to_optuna(dimension: Dimension, value: Any) -> Any:
    return value if isinstance(dimension, Range) else dimension.values.index(value)


def _from_optuna(dimension: Dimension, value: Any) -> Any:
    """Convert numpy numbers to Python numbers."""
    if not isinstance(dimension, Range):
        return dimension.values[value]
    return int(value) if dimension.whole else float(value)


@contextlib.contextmanager
def _silent(optuna: Any) -> Iterator[None]:
    """Suppress Optuna's log messages and experimental warnings."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
