"""An algorithm may have several regimes: the first is the default, the others are chosen by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.algorithms import SAC
from rl_training.data.n_step import NStepConfig
from rl_training.errors import ConfigError
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.runs.fleet import train
from rl_training.runtime.offline_to_online import OfflineToOnline
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm
from tests.runs import QUIET, tiny

BOTH = algorithm(SAC, (Online, OfflineToOnline), "Soft Actor-Critic", 2018)


def test_the_first_regime_is_the_default(tmp_path: Path) -> None:
    assert BOTH.regime == "online"
    run = BOTH.run_spec(tiny("sac", tmp_path))
    assert run.regime is Online
    assert "offline_batch_ratio" not in run.settings["algo_kwargs"]


def test_another_regime_brings_its_settings_and_trains(tmp_path: Path) -> None:
    kwargs = {"dataset_kind": "random", "dataset_size": 50, "offline_pretrain_updates": 3}
    config = tiny("sac", tmp_path, kwargs=kwargs)
    with pytest.raises(ConfigError, match="unknown key 'dataset_kind'; it needs regime: offline_to_online"):
        BOTH.run_spec(config)
    run = BOTH.run_spec(config.replace(regime="offline-to-online"), options=QUIET)
    (result,) = train([run])
    assert result.metrics["pretrain_updates_done"] == 3
    assert result.metrics["offline_batch_size"] > 0


def test_an_unknown_regime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sac has no regime 'offline'; use online or offline_to_online"):
        BOTH.run_spec(tiny("sac", tmp_path).replace(regime="offline"))
    with pytest.raises(ConfigError, match="regime must be 'online', 'offline' or 'offline_to_online', got 'both'"):
        tiny("sac", tmp_path).replace(regime="both")


def test_every_algorithm_has_a_regime_with_its_sections() -> None:
    for spec in list_algorithm_specs():
        assert len(spec.regimes) == len(spec.kinds) >= 1
        for regime, kind in zip(spec.regimes, spec.kinds):
            without = set() if spec.learner.bootstraps else {NStepConfig}
            assert set(regime.sections) - without <= set(kind.parts)
