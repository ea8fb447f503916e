"""Select a trial of a study, by FQE on logged data or by the return of its evaluations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.data.datasets import TransitionDataset
from rl_training.data.loading import DatasetConfig
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.experiment.retention import find_checkpoint
from rl_training.experiment.runs import read_run_record
from rl_training.off_policy_evaluation.choosing import Selection, choose
from rl_training.off_policy_evaluation.policies import Data
from rl_training.runtime.offline import _build_offline_dataset, _infer_env_spaces

RETURN = "eval_return_mean"
# Settings that transform rewards and rows for training, but not for evaluation.
_TRAINING_ONLY = DatasetConfig.affecting("rows")


@dataclass(frozen=True)
class Candidate:
    """A trial that is done."""

    name: str
    folder: Path
    settings: Mapping[str, Any]  # its configuration
    metrics: Mapping[str, float]


def by_return(trials: Sequence[Candidate], left_out: Sequence[str], scores: Mapping[str, float]) -> Selection:
    """Select the configuration with the highest score, then its trial with the highest last evaluation return.

    Comparing configurations first keeps one lucky seed from deciding. `scores` maps the name of a trial to the
    score of its configuration.
    """
    scored = [trial for trial in trials if trial.name in scores]
    if not any(RETURN in trial.metrics for trial in trials):
        raise ConfigError("select: none of the finished trials has an evaluation; use --by fqe")
    if not scored:
        raise ConfigError("select: no configuration has all its trials done; wait for them, or use --by fqe")
    ordered = sorted(scored, key=lambda trial: (-scores[trial.name], -trial.metrics[RETURN]))
    ranking = tuple((trial.name, float(trial.metrics[RETURN])) for trial in ordered)
    missing = [trial.name for trial in trials if trial not in scored]
    checkpoint = find_checkpoint(ordered[0].folder)
    return Selection(ordered[0].name, checkpoint, ranking, "return", None, (*left_out, *missing), dict(scores))


def by_fqe(
    trials: Sequence[Candidate],
    left_out: Sequence[str],
    *,
    dataset: Data | None = None,
    validation_fraction: float | None = None,
    allow_import: bool = False,
    **options: Any,
) -> Selection:
    """Select a trial by `dataset`, by default the training data, or abstain; `options` as in `choose`.

    If `episodes` are played, no data are needed.
    """
    if not trials:
        raise ConfigError("select: no trial is done")
    configs = [TrainConfig.parse({**trial.settings, "allow_import": allow_import}) for trial in trials]
    playing = options.get("episodes") is not None
    data = dataset
    if dataset is None and not playing:
        data = own_data(configs)
        _warn_if_changed(data, trials, options.get("warn", warnings.warn))
    fraction = validation_fraction
    if fraction is None:
        fraction = 0.0 if data is None else _own_fraction(configs)
    places = {trial.name: trial.folder for trial in trials}
    found = choose(places, data, validation_fraction=fraction, allow_import=allow_import, **options)
    notes = tuple(f"{name} is left out: it is not done" for name in left_out)
    return replace(found, left_out=tuple(left_out), notes=notes)


def _sections(configs: Sequence[TrainConfig]) -> list[DatasetConfig]:
    found = []
    for config in configs:
        try:
            found.append(resolve(config)[DatasetConfig])
        except KeyError:
            raise ConfigError(
                f"select: {config.algo} did not learn from a data set; name one with --dataset FILE"
            ) from None
    return found


def own_data(configs: Sequence[TrainConfig]) -> TransitionDataset:
    """The data the trials learned from, with the logged rewards and all episodes; raise if trials differ."""
    usual = DatasetConfig()
    plain = [
        section.model_copy(update={name: getattr(usual, name) for name in _TRAINING_ONLY})
        for section in _sections(configs)
    ]
    if any(section != plain[0] for section in plain[1:]):
        raise ConfigError("select: the trials learned from different data; name one with --dataset FILE")
    if plain[0].dataset_kind is None and not plain[0].datasets:
        raise ConfigError("select: the trials learned from arrays in memory; name data with --dataset FILE")
    plain[0].import_own(configs[0].allow_import)
    return _build_offline_dataset(configs[0], plain[0], _infer_env_spaces(configs[0], discrete=None))


def _warn_if_changed(data: TransitionDataset, trials: Sequence[Candidate], warn: Callable[[str], None]) -> None:
    """Warn if `data`, read from the trials' settings, are not the rows that a trial learned from."""
    now = None if data.raw is None else data.raw.fingerprint
    for trial in trials:
        record = read_run_record(trial.folder).get("dataset") or {}
        if record.get("raw_fingerprint", now) != now:  # not recorded by 0.2
            warn(f"{data.name}: has changed since {trial.name} learned from it; name its data with --dataset FILE")
            return


def _own_fraction(configs: Sequence[TrainConfig]) -> float:
    """The fraction that the trials held out; raise if trials differ."""
    fractions = sorted({float(config.algo_kwargs.get("validation_fraction", 0.0)) for config in configs})
    if len(fractions) > 1:
        raise ConfigError(
            f"select: the trials held out different fractions ({', '.join(f'{one:g}' for one in fractions)}), so "
            "some learned from episodes that others held out; choose with --validation-fraction, 0 for all episodes"
        )
    return fractions[0]
