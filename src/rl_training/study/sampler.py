"""The next points of a tuning, by Optuna's TPE; nothing of Optuna lives longer than one question.

A study in memory is built from what is known, and the sampler of the n-th trial has a seed of its own. So what is
asked depends on what was told alone, and a tuning that was killed asks again what it would have asked.
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
    """Optuna, imported here alone."""
    try:
        import optuna
    except ImportError as error:
        raise MissingDependencyError(f"tuning needs Optuna ({error}); pip install 'rl-training[tune]'") from None
    return optuna


def propose(
    space: Mapping[str, Dimension], told: Sequence[tuple[Point, float | None]], numbers: Sequence[int], seed: int
) -> list[dict[str, Any]]:
    """A point for each of the `numbers`, which are to be tried at the same time.

    `told` are points and their values, higher being better; one without (it failed) counts as the worst there is.
    """
    optuna = require_optuna()
    with _silent(optuna):
        kinds = {place: _distribution(optuna, space[place]) for place in sorted(space)}
        study = optuna.create_study(direction="maximize")
        known = [value for _, value in told if value is not None]
        for point, value in told if known else ():
            params = {place: _inward(space[place], point[place]) for place in kinds}
            value = min(known) if value is None else value
            study.add_trial(optuna.create_trial(params=params, distributions=kinds, value=value))
        points = []
        for number in numbers:
            own = np.random.SeedSequence((seed, number)).generate_state(1)[0]  # neighbouring seeds share nothing
            study.sampler = optuna.samplers.TPESampler(seed=int(own))
            asked = study.ask(kinds)
            points.append({place: _outward(space[place], asked.params[place]) for place in kinds})
    return points


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    kinds = optuna.distributions
    if not isinstance(dimension, Range):
        return kinds.CategoricalDistribution(range(len(dimension.values)))  # by number: a choice may be a list
    if dimension.whole:
        return kinds.IntDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step or 1)
    return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)


def _inward(dimension: Dimension, value: Any) -> Any:
    return value if isinstance(dimension, Range) else dimension.values.index(value)


def _outward(dimension: Dimension, value: Any) -> Any:
    """As plain data: numpy's numbers are none."""
    if not isinstance(dimension, Range):
        return dimension.values[value]
    return int(value) if dimension.whole else float(value)


@contextlib.contextmanager
def _silent(optuna: Any) -> Iterator[None]:
    """Optuna tells of every study it makes."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
