"""`ExperimentManager`: trains, resumes and evaluates any registered algorithm."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.registry import AlgorithmSpec, list_algorithm_specs, resolve, setting_names, spec_of
from rl_training.runs.session import TrainResult
from rl_training.runtime.populations import members_of, train_population
from rl_training.runtime.resume import resume_each, resume_population, resume_training
from rl_training.runtime.workflows import evaluate_checkpoint


class ExperimentManager:
    """Runs any registered algorithm; a configuration is validated before anything is written."""

    def specs(self) -> list[AlgorithmSpec]:
        return list_algorithm_specs()

    def train(self, config: TrainConfig | str | Path, **options: Any) -> TrainResult:
        """Train one run; see `train_all`."""
        chosen = self._chosen(config, options.pop("overrides", ()))
        if chosen.seeds is not None:
            raise ConfigError.of("seeds", "several runs have several results; use train_all")
        (result,) = train_population([chosen], **options)
        return result

    def train_all(
        self, config: TrainConfig | str | Path, *, overrides: Sequence[str] = (), **options: Any
    ) -> list[TrainResult]:
        """Train from a config, the path of a YAML file, or the name of a packaged one (`redq/pendulum`).

        One result per seed, in the order of `seeds`. `overrides` are `key=value`; `options` are arguments of
        `train_population`.
        """
        chosen = self._chosen(config, overrides)
        return train_population([chosen] if chosen.seeds is None else members_of(chosen), **options)

    def _chosen(self, config: TrainConfig | str | Path, overrides: Sequence[str]) -> TrainConfig:
        """The validated configuration with its overrides."""
        if isinstance(config, TrainConfig):
            chosen = config.with_overrides(overrides, setting_names)
        else:
            loaded = load_config(config, overrides, owners=setting_names)
            if loaded.note is not None:
                warnings.warn(loaded.note, stacklevel=3)
            chosen = loaded.config
        chosen = chosen.replace(algo=spec_of(chosen).name)
        resolve(chosen)
        return chosen

    def resume(self, path: str | Path, **options: Any) -> TrainResult:
        """Resume one run; see `resume_training`."""
        return resume_training(path, **options)

    def resume_all(self, path: str | Path, **options: Any) -> list[TrainResult]:
        """Resume a run and, if it is a member of a population, the others; see `runtime.resume`."""
        return resume_population(path, **options)

    def resume_each(self, paths: Sequence[Path], **options: Any) -> list[TrainResult]:
        """Resume several runs one after another; see `runtime.resume`."""
        return resume_each(paths, **options)

    def evaluate(self, path: str | Path, num_episodes: int | None = None, **options: Any) -> dict[str, float]:
        """Evaluate a checkpoint; see `evaluate_checkpoint`."""
        return evaluate_checkpoint(path, num_episodes, **options)
