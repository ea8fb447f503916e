"""`ExperimentManager`: every registered algorithm runs through it, from a config, a file or a packaged name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.config import packaged_configs
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.experiment.strict_yaml import dump_yaml, parse_yaml
from tests.runs import ALL, EVERY_STEP, mostly_slow, resume, run_record, tiny, trainer_state


def test_every_spec_is_there() -> None:
    specs = ExperimentManager().specs()
    assert specs == list_algorithm_specs()
    assert sorted(spec.name for spec in specs) == sorted(ALL)
    for spec in specs:
        assert spec.title
        assert 1989 <= spec.year <= 2026


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "sac", "iql", "rlpd"))
def test_every_spec_runs_from_a_file(algo: str, tmp_path: Path) -> None:
    """A config written as YAML trains; what the run records is what was asked, and every default."""
    config = tiny(algo, tmp_path / "runs", total_timesteps=25)
    file = tmp_path / "config.yaml"
    file.write_text(dump_yaml(config.to_dict()))
    result = ExperimentManager().train(file, overrides=["seed=7"], run_suffix="from file")
    assert result.run_dir.name.endswith("__from-file")
    record = run_record(result.run_dir)
    assert (record["algo"], record["seed"], record["status"]) == (algo, 7, "finished")
    assert parse_yaml((result.run_dir / "config.yaml").read_text(), "").value == config.replace(seed=7).to_dict()
    resolved = parse_yaml((result.run_dir / "config.resolved.yaml").read_text(), "").value
    assert isinstance(resolved, dict)
    spec = next(spec for spec in list_algorithm_specs() if spec.name == algo)
    assert resolved["algo_kwargs"].keys() == spec.sections.owners().keys()
    assert spec.sections.resolve(resolved["algo_kwargs"]).to_dict() == resolved["algo_kwargs"]


def test_overrides_apply_to_a_config_too(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, kwargs=EVERY_STEP, total_timesteps=25, eval_episodes=0)
    overrides = ["total_timesteps=5", "algo_kwargs.learning_starts=5", "algo_kwargs.gamma=0.5"]
    result = ExperimentManager().train(config, overrides=overrides)
    assert result.metrics["global_step"] == 5
    written = parse_yaml((result.run_dir / "config.yaml").read_text(), "").value
    assert isinstance(written, dict)
    assert written["algo_kwargs"]["gamma"] == 0.5
    with pytest.raises(ConfigError, match="--set: total_timesteps must be >= 1, got 0"):
        ExperimentManager().train(config, overrides=["total_timesteps=0"])


def test_evaluate_and_resume(tmp_path: Path) -> None:
    manager = ExperimentManager()
    result = manager.train(tiny("sac", tmp_path, total_timesteps=25))
    assert manager.evaluate(result.run_dir)["eval_return_mean"] == result.metrics["eval_return_mean"]
    assert manager.evaluate(result.run_dir, 3)["eval_episodes"] == 3
    further = manager.resume(result.run_dir, changes={"total_timesteps": 30})
    assert further.run_dir == result.run_dir
    assert trainer_state(further.checkpoint_path)["clock"]["global_step"] == 30


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    config = tiny("bc", tmp_path, total_timesteps=3, eval_episodes=0)
    folders = {ExperimentManager().train(config).run_dir for _ in range(3)}
    assert len(folders) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algo: sacc\nenv_id: Pendulum-v1\ntotal_timesteps: 9\n", "unknown algorithm 'sacc'; did you mean 'sac'?"),
        ("algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 9\nsed: 1\n", "unknown key 'sed'; did you mean 'seed'?"),
        ("algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 0\n", "total_timesteps must be >= 1, got 0"),
        (
            "algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 9\nalgo_kwargs: {alpha: -1}\n",
            "algo_kwargs.alpha",
        ),
        ("algo: sac\nenv_id: Pendulums-v1\ntotal_timesteps: 9\n", "unknown environment 'Pendulums-v1'"),
    ],
)
def test_a_wrong_file_writes_nothing(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        ExperimentManager().train("config.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.skipif("redq/pendulum" not in packaged_configs(), reason="needs the packaged starter")
def test_a_packaged_config_by_name(tmp_path: Path) -> None:
    short = ["total_timesteps=5", "algo_kwargs.learning_starts=5", "algo_kwargs.hidden_sizes=[8]"]
    overrides = [f"output_dir={tmp_path}", "eval_episodes=1", *short]
    result = ExperimentManager().train("redq/pendulum", overrides=overrides)
    assert result.metrics["global_step"] == 5
    assert resume(result.run_dir).metrics == result.metrics


def test_a_checkouts_path_means_the_packaged_config_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["total_timesteps=5", "algo_kwargs.learning_starts=5", "algo_kwargs.hidden_sizes=[8]"]
    overrides = ["eval_episodes=0", *short]
    with pytest.warns(UserWarning, match="no such file; using the packaged redq/pendulum"):
        ExperimentManager().train("configs/redq/pendulum.yaml", overrides=overrides)
