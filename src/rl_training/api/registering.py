"""`register`: add an algorithm of your own."""

from __future__ import annotations

from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.api.describing import managed_class
from rl_training.api.managed import ManagedAlgorithm
from rl_training.experiment import registry
from rl_training.importing import name_of
from rl_training.models.mlp import NETWORK, NetworkShape


def register(
    learner: type[Learner],
    *,
    regime: str = "online",
    title: str | None = None,
    year: int | None = None,
    discrete: type[Learner] | None = None,
    **defaults: Any,
) -> type[ManagedAlgorithm[Any]]:
    """Add an algorithm under `learner.name`, and return the class to train it with.

    `regime` is `online`, `offline` or `offline_to_online`. `title` and `year` are listed by `rl-training algos`;
    the title is the name of the class by default. `discrete` is the learner for discrete actions if `learner` only
    supports continuous ones; `learner` needs all of its settings. `defaults` are the algorithm's own defaults of
    settings, as `learning_starts=5_000`. A default `network` may be a function or `module:factory`; it needs no
    permission to be imported.

    Registering the same class again replaces its options; a name that another algorithm has raises `ConfigError`.
    """
    if callable(network := defaults.get("network")):
        defaults["network"] = name_of(network, NETWORK)
    if network is not None:
        NetworkShape.parse({"network": defaults["network"]}).import_own(allow_import=True)
    spec = registry.register(learner, regime=regime, title=title, year=year, discrete=discrete, **defaults)
    return managed_class(ManagedAlgorithm, spec)
