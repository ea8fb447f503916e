"""The registry: every algorithm by name, with its learner, its sections and its train function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rl_training.algorithms.base import Learner
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, normalise_algo
from rl_training.runtime import (
    awac_trainer,
    bc_trainer,
    cql_trainer,
    crr_trainer,
    ddpg_trainer,
    dqn_trainer,
    edac_trainer,
    iql_trainer,
    redq_trainer,
    rlpd_trainer,
    sac_trainer,
    td3_bc_trainer,
    td3_trainer,
    tqc_trainer,
)
from rl_training.runtime.sections import Resolved, Sections
from rl_training.runtime.session import TrainResult
from rl_training.settings import nearest

RegimeName = Literal["online", "offline", "offline-to-online"]


@dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm: evaluating and predicting are generic, so a name, sections and a train function suffice."""

    name: str
    title: str
    year: int
    regime: RegimeName
    sections: Sections
    train: Callable[..., TrainResult]

    @property
    def learner(self) -> type[Learner]:
        return self.sections.learner


_SPECS = {
    spec.name: spec
    for spec in (
        AlgorithmSpec("dqn", "Deep Q-Network", 2015, "online", dqn_trainer.SECTIONS, dqn_trainer.train_dqn),
        AlgorithmSpec(
            "ddpg",
            "Deep Deterministic Policy Gradient",
            2016,
            "online",
            ddpg_trainer.SECTIONS,
            ddpg_trainer.train_ddpg,
        ),
        AlgorithmSpec("td3", "Twin Delayed DDPG", 2018, "online", td3_trainer.SECTIONS, td3_trainer.train_td3),
        AlgorithmSpec("sac", "Soft Actor-Critic", 2018, "online", sac_trainer.SECTIONS, sac_trainer.train_sac),
        AlgorithmSpec(
            "tqc", "Truncated Quantile Critics", 2020, "online", tqc_trainer.SECTIONS, tqc_trainer.train_tqc
        ),
        AlgorithmSpec(
            "redq",
            "Randomized Ensembled Double Q-learning",
            2021,
            "online",
            redq_trainer.SECTIONS,
            redq_trainer.train_redq,
        ),
        AlgorithmSpec("bc", "Behaviour Cloning", 1989, "offline", bc_trainer.SECTIONS, bc_trainer.train_bc),
        AlgorithmSpec(
            "td3_bc",
            "TD3 with Behaviour Cloning",
            2021,
            "offline",
            td3_bc_trainer.SECTIONS,
            td3_bc_trainer.train_td3_bc,
        ),
        AlgorithmSpec("iql", "Implicit Q-Learning", 2021, "offline", iql_trainer.SECTIONS, iql_trainer.train_iql),
        AlgorithmSpec(
            "cql", "Conservative Q-Learning", 2020, "offline", cql_trainer.SECTIONS, cql_trainer.train_cql
        ),
        AlgorithmSpec(
            "awac",
            "Advantage Weighted Actor-Critic",
            2020,
            "offline",
            awac_trainer.SECTIONS,
            awac_trainer.train_awac,
        ),
        AlgorithmSpec(
            "crr", "Critic Regularized Regression", 2020, "offline", crr_trainer.SECTIONS, crr_trainer.train_crr
        ),
        AlgorithmSpec(
            "edac",
            "Ensemble-Diversified Actor-Critic",
            2021,
            "offline",
            edac_trainer.SECTIONS,
            edac_trainer.train_edac,
        ),
        AlgorithmSpec(
            "rlpd", "RL with Prior Data", 2023, "offline-to-online", rlpd_trainer.SECTIONS, rlpd_trainer.train_rlpd
        ),
    )
}


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """The algorithm of that name; case, `+` and `-` do not matter."""
    key = normalise_algo(name)
    if key not in _SPECS:
        known = ", ".join(_SPECS)
        raise ConfigError(f"algo: unknown algorithm {name!r}{nearest(key, _SPECS)}; known: {known}", key="algo")
    return _SPECS[key]


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """Every algorithm, online first, in the order they were built."""
    return list(_SPECS.values())


def resolve(config: TrainConfig) -> Resolved:
    """Check `algo_kwargs` against the sections of its algorithm, before any file is written."""
    return get_algorithm_spec(config.algo).sections.resolve(config.algo_kwargs)
