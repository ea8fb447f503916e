"""Records of a run determine its later behaviour, independent of current defaults."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.data.loading import DatasetConfig
from rl_training.errors import CheckpointError
from rl_training.experiment import registry
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint, write_checkpoint
from rl_training.experiment.compat import _defaults_0_1, with_defaults_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import SCHEMA
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runs.session import TrainResult
from rl_training.runs.state import config_of, read_run_checkpoint
from tests.runs import (
    ALL,
    differences,
    interrupted,
    logged,
    mostly_slow,
    resume,
    run_record,
    tiny,
    train,
    trainer_state,
)

GOLDEN = Path(__file__).parent / "reliability" / "golden" / "format_1"
ONLINE_0_1 = {"dqn": 1_000, "ddpg": 1_000, "td3": 25_000, "sac": 10_000, "tqc": 1_000, "redq": 5_000, "rlpd": 5_000}


def with_other_defaults(monkeypatch: pytest.MonkeyPatch, algo: str, **defaults: Any) -> None:
    """Simulate a later version with other defaults."""
    spec = get_algorithm_spec(algo)
    sections = dataclasses.replace(spec.sections, defaults={**spec.sections.defaults, **defaults})
    monkeypatch.setitem(registry._SPECS, algo, dataclasses.replace(spec, kinds=(sections,)))


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "sac", "iql", "rlpd"))
def test_a_checkpoint_holds_every_setting(algo: str, finished: Callable[..., TrainResult], tmp_path: Path) -> None:
    config = tiny(algo, tmp_path, total_timesteps=25, eval_episodes=0)
    trained = finished(algo, total_timesteps=25, eval_episodes=0)
    stored = read_checkpoint(trained.checkpoint_path).records["config"]
    assert stored["algo_kwargs"] == registry.resolve(config).to_dict()


def test_records_carry_their_schema(tmp_path: Path) -> None:
    result = train(tiny("sac", tmp_path))
    assert run_record(result.run_dir)["schema"] == SCHEMA
    assert trainer_state(result.checkpoint_path)["schema"] == SCHEMA
    assert {row["schema"] for row in logged(result.run_dir)} == {str(SCHEMA)}


def test_a_default_that_changes_later_changes_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("sac", tmp_path)
    straight, run = train(config), interrupted(config, 30)
    with_other_defaults(monkeypatch, "sac", gamma=0.5, tau=0.1, warmup_steps=30, train_frequency=3)
    assert get_algorithm_spec("sac").sections.resolve({}).to_dict()["gamma"] == 0.5
    assert differences(straight, resume(run)) == []


def test_a_run_of_0_1_keeps_the_defaults_of_0_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint contains only the user's settings; all others are the defaults of 0.1."""
    checkpoint = read_run_checkpoint(GOLDEN / "sac" / "checkpoint")
    assert "schema" not in checkpoint.records["trainer"]
    written = checkpoint.records["config"]["algo_kwargs"]
    assert "target_entropy" not in written
    with_other_defaults(monkeypatch, "sac", target_entropy=-3.0, backup_entropy=False)
    settings = config_of(checkpoint).algo_kwargs
    assert {key: settings[key] for key in written} == written
    assert (settings["target_entropy"], settings["backup_entropy"]) == (None, True)
    assert settings["layer_norm_epsilon"] == 1e-5  # PyTorch's, before there was a setting for it


@pytest.mark.parametrize("algo", _defaults_0_1())
def test_the_stored_defaults_of_0_1_are_valid(algo: str) -> None:
    kept = _defaults_0_1()[algo]
    assert get_algorithm_spec(algo).sections.resolve(kept).to_dict().items() >= kept.items()
    if algo in ONLINE_0_1:
        assert kept["learning_starts"] == ONLINE_0_1[algo]
    assert (kept["gamma"], kept["learning_rate"]) == (0.99, 1e-4 if algo == "dqn" else 3e-4)


def test_a_run_of_0_1_without_a_checkpoint_keeps_its_defaults(tmp_path: Path) -> None:
    """Its folder has all settings of 0.1; later settings get the behaviour of 0.1."""
    config = tiny("sac", tmp_path, eval_episodes=0)
    run = train(config).run_dir
    shutil.rmtree(run / "checkpoints")
    record = {key: value for key, value in run_record(run).items() if key not in ("schema", "saved")}
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}))
    resolved = run / "config.resolved.yaml"
    known = [line for line in resolved.read_text().splitlines() if "layer_norm_epsilon" not in line]
    resolved.write_text("\n".join(known) + "\n")
    with pytest.warns(UserWarning, match="starts again"):
        again = resume(run)
    stored = read_checkpoint(again.checkpoint_path).records["config"]["algo_kwargs"]
    assert stored["layer_norm_epsilon"] == 1e-5


@pytest.mark.parametrize("schema", [SCHEMA + 1, "2", 2.0])
def test_records_of_a_later_version_are_refused(schema: Any, tmp_path: Path) -> None:
    run = train(tiny("bc", tmp_path, total_timesteps=3, eval_episodes=0)).run_dir
    checkpoint = read_checkpoint(find_checkpoint(run))
    records = {**checkpoint.records, "trainer": {**checkpoint.records["trainer"], "schema": schema}}
    write_checkpoint(run / "checkpoints", checkpoint.step, tensors=checkpoint.tensors, records=records)
    with pytest.raises(CheckpointError, match=r"need a newer rl_training \(this one reads 2\)"):
        resume(run)


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_runs_from_before_random_steps_act_at_random_until_learning_starts(schema: int | None) -> None:
    config = TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=9, algo_kwargs={"learning_starts": 7})
    assert "random_steps" not in with_defaults_of(schema, config).algo_kwargs
    taken_over = with_defaults_of(schema, config.replace(init_from="runs/other"))
    assert taken_over.algo_kwargs["random_steps"] == 7
    written = taken_over.replace(algo_kwargs={"learning_starts": 7, "random_steps": None})
    assert with_defaults_of(schema, written).algo_kwargs["random_steps"] is None


def test_runs_of_0_1_learn_from_random_data_by_default() -> None:
    config = TrainConfig(algo="iql", env_id="Pendulum-v1", total_timesteps=9)
    assert with_defaults_of(None, config).algo_kwargs["dataset_kind"] == "random"
    assert registry.resolve(config)[DatasetConfig].dataset_kind is None
