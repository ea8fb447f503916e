"""The command line: arguments, output, exit codes and written files."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from rl_training import cli, load
from rl_training.console import doctor
from rl_training.data.formats import files
from rl_training.errors import ConfigError
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.experiment.runs import lock_run
from rl_training.memory import human_bytes
from rl_training.seeding import EVALUATION_SEED
from tests.dataset_files import episodes, save_npz
from tests.reliability.processes import Child, usual_signals, wait_for
from tests.runs import mostly_slow

TINY = """\
# kept as it was written
algo: sac
env_id: Pendulum-v1
seed: 3
total_timesteps: 120
eval_episodes: 1
log_interval: 60
checkpoint_interval: 60
acceleration: eager
algo_kwargs:
  hidden_sizes: [8, 8]
  batch_size: 8
  learning_starts: 100
  buffer_capacity: 500
"""

REDQ = """\
algo: redq
env_id: Pendulum-v1
total_timesteps: 40
eval_episodes: 1
acceleration: eager
algo_kwargs:
  hidden_sizes: [8]
  num_critics: 3
  subset_size: 2
  gradient_updates_per_step: 2
  learning_starts: 31
  batch_size: 8
  buffer_capacity: 100
"""

FROM_DATA = """\
env_id: Pendulum-v1
total_timesteps: 10
eval_episodes: 1
eval_max_steps: 5
acceleration: eager
algo_kwargs:
  hidden_sizes: [8]
  batch_size: 8
  dataset_kind: random
  dataset_size: 20
"""


class Unbounded(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,))


class Failing(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        raise RuntimeError("the motor\nis broken")


class Recorded(gym.Env):
    """A random walk that may terminate; every step of every instance is recorded."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Box(-1, 3, (1,))
    steps: ClassVar[list[dict[str, Any]]] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs, self.number = self.np_random.normal(size=2).astype(np.float32), 0
        return self.obs, {}

    def step(self, action):
        before, self.number = self.obs, self.number + 1
        self.obs = self.np_random.normal(size=2).astype(np.float32)
        terminated = bool(self.np_random.random() < 0.1)
        row = {"env": id(self), "obs": before, "next_obs": self.obs, "action": action, "terminated": terminated}
        self.steps.append(row | {"number": self.number})
        return self.obs, 0.0, terminated, False, {}


gym.register("CliUnbounded-v0", entry_point=Unbounded)
gym.register("CliRecorded-v0", entry_point=Recorded)
gym.register("CliFailing-v0", entry_point=Failing)


def run(*args: object) -> Result:
    return CliRunner().invoke(cli.main, [str(arg) for arg in args])


def succeed(*args: object) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(result: Result, code: int, *words: str) -> None:
    """Check for a single line on standard error with these words, and this exit code."""
    lines = result.stderr.splitlines()
    assert (result.exit_code, len(lines), result.stdout) == (code, 1, ""), result.output
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config in an otherwise empty folder, which is also the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run folder with checkpoints at 60 and 120, and what its training printed."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.yaml").write_text(TINY)
    result = run("train", "--config", folder / "tiny.yaml", "--output-dir", folder / "runs")
    assert result.exit_code == 0, result.output
    return next((folder / "runs").iterdir()), result


@pytest.fixture
def copied(trained: tuple[Path, Result], tmp_path: Path) -> Path:
    """A copy of the trained run that a test may change."""
    target = tmp_path / "run"
    subprocess.run(["cp", "-a", trained[0], target], check=True)
    return target


def rows(text: str) -> dict[str, str]:
    """A printed table of two columns."""
    return dict(line.split("  ", 1) for line in text.splitlines() if "  " in line.strip())


# Training and what follows it.


def test_trains_from_yaml_and_prints_the_next_commands(trained: tuple[Path, Result]) -> None:
    folder, result = trained
    table = rows(result.stdout)
    assert table["algorithm"].strip() == "sac (Soft Actor-Critic)"
    assert table["environment steps"].strip() == "120"
    assert table["updates"].strip() == "21"
    assert "(1 episodes)" in table["mean return"]
    assert table["run folder"].strip() == str(folder)
    checkpoint = Path(table["checkpoint"].strip())
    assert checkpoint == folder / "checkpoints" / "step_000000120"
    for command in ("evaluate", "predict", "resume", "tensorboard --logdir"):
        assert f"{command} " in result.stdout.split("next:")[1]
    assert "120/120 steps" in result.stderr


def test_the_run_folder_keeps_the_config_as_it_was_written(trained: tuple[Path, Result]) -> None:
    folder, _ = trained
    assert (folder / "config.yaml").read_text() == TINY
    resolved = yaml.safe_load((folder / "config.resolved.yaml").read_text())
    assert resolved["algo_kwargs"]["gamma"] == 0.99
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


def test_trains_redq_from_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "redq.yaml").write_text(REDQ)
    table = rows(succeed("train", "--config", "redq.yaml"))
    assert table["algorithm"].strip() == "redq (Randomized Ensembled Double Q-learning)"
    assert table["environment steps"].strip() == "40"
    assert table["updates"].strip() == "20"  # two for each of the steps 31 to 40
    resolved = yaml.safe_load((tmp_path / table["run folder"].strip() / "config.resolved.yaml").read_text())
    assert resolved["algo_kwargs"]["num_critics"] == 3
    assert resolved["algo_kwargs"]["subset_size"] == 2


@pytest.mark.parametrize(
    ("algo", "own", "counted"),
    [
        ("edac", "  num_critics: 3\n", "updates"),
        ("awac", "", "updates"),
        ("crr", "  n_action_samples: 2\n", "updates"),
        ("rlpd", "  offline_pretrain_updates: 2\n  learning_starts: 8\n", "environment steps"),
    ],
)
def test_trains_from_data_by_name(algo: str, own: str, counted: str, tiny: Path) -> None:
    tiny.write_text(f"algo: {algo}\n{FROM_DATA}{own}")
    table = rows(succeed("train", "--config", tiny))
    assert table["algorithm"].strip().startswith(f"{algo} (")
    assert table[counted].strip() == "10"
    resolved = yaml.safe_load((Path(table["run folder"].strip()) / "config.resolved.yaml").read_text())
    assert (resolved["algo"], resolved["algo_kwargs"]["dataset_size"]) == (algo, 20)


@pytest.mark.parametrize("path", ["configs/redq/pendulum.yaml", "./some/where/configs/REDQ/pendulum.yaml"])
def test_a_checkouts_config_is_found_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("--set", "total_timesteps=5", "--set", "eval_episodes=0", "--set", "algo_kwargs.learning_starts=5")
    result = run("train", "--config", path, *short)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[0] == f"{path}: no such file; using the packaged redq/pendulum"
    packaged = run("configs", "redq/pendulum").stdout
    assert next(Path("runs").glob("*/config.yaml")).read_text() == packaged
    assert run("configs", path).stdout == packaged
    assert "no such file" not in run("--quiet", "train", "--config", path, *short).stderr


def test_a_file_of_that_name_comes_first(tiny: Path) -> None:
    Path("configs/sac").mkdir(parents=True)
    tiny.rename("configs/sac/pendulum.yaml")
    result = run("train", "--config", "configs/sac/pendulum.yaml", "--set", "total_timesteps=100")
    assert result.exit_code == 0, result.output
    assert "packaged" not in result.stderr
    assert next(Path("runs").glob("*/config.yaml")).read_text() == TINY


def test_the_commands_printed_at_the_end_work(trained: tuple[Path, Result]) -> None:
    lines = [line.strip() for line in trained[1].stdout.split("next:")[1].strip().splitlines()]
    assert lines[-1].startswith("tensorboard")
    for line in lines[:2]:
        succeed(*shlex.split(line)[1:])


def test_options_and_set_change_the_config(tiny: Path) -> None:
    succeed(
        *("--quiet", "train", "--config", tiny, "--seed", 9, "--device", "cpu", "--output-dir", "elsewhere"),
        *("--set", "total_timesteps=20", "--set", "algo_kwargs.batch_size=4", "--set", "eval_episodes=0"),
        *("--set", "algo_kwargs.learning_starts=20"),
    )
    folder = next(Path("elsewhere").iterdir())
    resolved = yaml.safe_load((folder / "config.resolved.yaml").read_text())
    assert (resolved["seed"], resolved["device"], resolved["total_timesteps"]) == (9, "cpu", 20)
    assert resolved["algo_kwargs"]["batch_size"] == 4
    assert not Path("runs").exists()


def test_trains_without_a_file(tiny: Path) -> None:
    succeed(
        *("--quiet", "train", "--algo", "SAC", "--env", "Pendulum-v1", "--steps", "2e1", "--seed", 9),
        *("--set", "learning_rate=2e-3", "--set", "hidden_sizes=[8]", "--set", "eval_episodes=0"),
        *("--set", "learning_starts=15"),
    )
    folder = next(Path("runs").iterdir())
    resolved = yaml.safe_load((folder / "config.resolved.yaml").read_text())
    assert (resolved["algo"], resolved["seed"], resolved["total_timesteps"]) == ("sac", 9, 20)
    assert resolved["algo_kwargs"]["learning_rate"] == 2e-3
    given = yaml.safe_load((folder / "config.yaml").read_text())
    assert given["algo_kwargs"] == {"learning_rate": 2e-3, "hidden_sizes": [8], "learning_starts": 15}
    succeed("--quiet", "train", "--config", folder / "config.yaml", "--output-dir", "again")


def test_options_override_a_file_and_are_named_in_errors(tiny: Path) -> None:
    succeed(
        *("--quiet", "train", "--config", tiny, "--steps", 10, "--set", "batch_size=4", "--set", "eval_episodes=0"),
        *("--set", "learning_starts=5"),
    )
    resolved = yaml.safe_load(next(Path("runs").glob("*/config.resolved.yaml")).read_text())
    assert (resolved["total_timesteps"], resolved["algo_kwargs"]["batch_size"]) == (10, 4)
    fails(run("train", "--config", tiny, "--env", "Pendulun-v1"), 2, "--env: ", "did you mean 'Pendulum-v1'")
    fails(run("train", "--algo", "sac", "--env", "CartPole-v1", "--steps", 5), 2, "--env: ", "discrete actions")
    fails(run("train", "--algo", "sac", "--steps", 5), 2, "env_id")


def test_bare_keys_for_resume_and_evaluate(copied: Path) -> None:
    succeed("resume", copied, "--set", "total_timesteps=1.3e2", "--set", "learning_rate=1e-5")
    resolved = yaml.safe_load((copied / "config.resolved.yaml").read_text())
    assert resolved["algo_kwargs"]["learning_rate"] == 1e-5
    fails(run("resume", copied, "--set", "learning_rat=1"), 2, "did you mean 'learning_rate'")
    fails(run("--quiet", "evaluate", copied, "--set", "sede=1"), 2, "did you mean 'seed'")
    assert "mean return" in succeed("evaluate", copied, "--episodes", 1, "--set", "batch_size=3")
    for setting in ("batch_size=3", "seed=5", "algo_kwargs.gamma=0.5"):
        idle = run("--quiet", "evaluate", copied, "--episodes", 1, "--set", setting, "--set", "eval_max_steps=3")
        key = setting.partition("=")[0].partition(".")[0]
        assert f"warning: --set {key}: has no effect on an evaluation; leave it out" in idle.stderr.splitlines()
        assert idle.exit_code == 0
    effective = run("--quiet", "evaluate", copied, "--episodes", 1, "--set", "eval_max_steps=3")
    assert "no effect" not in effective.stderr


def test_json_is_one_document(trained: tuple[Path, Result], tmp_path: Path) -> None:
    metrics = json.loads(succeed("evaluate", trained[0], "--episodes", 1, "--json"))
    assert metrics["eval_episodes"] == 1
    assert metrics["eval_return_mean"] == metrics["eval_return_max"]
    assert metrics["returns"] == [metrics["eval_return_mean"]]
    assert metrics["lengths"] == [metrics["eval_length_mean"]]
    assert [algo["name"] for algo in json.loads(succeed("algos", "--json"))] == [
        s.name for s in list_algorithm_specs()
    ]
    findings = json.loads(succeed("doctor", "--output-dir", tmp_path, "--json"))
    assert {"state", "subject", "text"} == set(findings[0])
    (tmp_path / "file").write_text("")
    broken = run("doctor", "--output-dir", tmp_path / "file", "--json")
    assert broken.exit_code == 1
    assert "broken" in {finding["state"] for finding in json.loads(broken.stdout)}
    save_npz(tmp_path / "data.npz", episodes(), action_low=[-2, -1], action_high=[2, 3])
    shown = json.loads(succeed("dataset", "show", tmp_path / "data.npz", "--json"))
    assert (shown["rows"], shown["spaces"]["low"]) == (12, [-2, -1])


def test_quiet_prints_the_result_alone(tiny: Path) -> None:
    result = run("--quiet", "train", "--config", tiny, "--set", "total_timesteps=100")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "next:" not in result.stdout
    assert "run folder" in result.stdout


def test_evaluate_and_its_aliases_agree(trained: tuple[Path, Result]) -> None:
    checkpoint = trained[0] / "checkpoints" / "step_000000120"
    tables = [
        succeed("evaluate", checkpoint, "--episodes", 2),
        succeed("eval", checkpoint, "--episodes", 2),
        succeed("evaluate", "--checkpoint", checkpoint, "--episodes", 2),
        succeed("evaluate", trained[0], "--episodes", 2),
    ]
    assert len(set(tables)) == 1
    assert "(2 episodes)" in rows(tables[0])["mean return"]


def test_evaluate_plays_other_episodes_with_another_seed(copied: Path) -> None:
    def returns(*options: object) -> list[float]:
        found: list[float] = json.loads(succeed("evaluate", copied, "--episodes", 3, "--json", *options))["returns"]
        return found

    assert returns("--seed", 1) == returns("--seed", 1)
    assert not {*returns("--seed", 1)} & {*returns()}
    assert returns("--seed", EVALUATION_SEED) == returns()
    assert load(copied).evaluate(3, seed=1)["returns"] == returns("--seed", 1)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ConfigError, match=f"seed must be a whole number >= 0, got {wrong}"):
            load(copied).evaluate(3, seed=wrong)


def test_evaluate_samples_the_policy_on_request(trained: tuple[Path, Result]) -> None:
    sampled = [
        json.loads(succeed("evaluate", trained[0], "--episodes", 2, "--stochastic", "--json")) for _ in range(2)
    ]
    certain = json.loads(succeed("evaluate", trained[0], "--episodes", 2, "--json"))
    assert sampled[0] == sampled[1]
    assert sampled[0]["returns"] != certain["returns"]


def test_evaluate_in_another_environment(trained: tuple[Path, Result]) -> None:
    shorter = run("evaluate", trained[0], "--episodes", 1, "--set", "env_kwargs.max_episode_steps=5")
    assert rows(shorter.stdout)["mean length"].strip() == "5.0"
    assert shorter.stderr.splitlines()[1] == "env_kwargs: {'max_episode_steps': 5}"
    result = run("--quiet", "evaluate", trained[0], "--set", "env_id=CartPole-v1")
    fails(result, 2, "CartPole-v1 does not fit the policy (the environment has observations of 4 numbers and 2 ")


def test_predict_reads_every_form_of_observation(trained: tuple[Path, Result], tmp_path: Path) -> None:
    one, other = [1.0, 0.0, -0.5], [-1.0, 0.0, 0.5]
    action = json.loads(succeed("predict", trained[0], "--obs", "1.0,0.0,-0.5"))
    assert len(action) == 1
    assert -2 <= action[0] <= 2
    assert json.loads(succeed("predict", trained[0], "--obs", json.dumps(one))) == action
    assert json.loads(succeed("predict", "--checkpoint", trained[0], "--obs", "1.0,0.0,-0.5")) == action
    (tmp_path / "obs.json").write_text(json.dumps([one, other]))
    np.save(tmp_path / "obs.npy", np.array([one, other]))
    batch = json.loads(succeed("predict", trained[0], "--obs", f"@{tmp_path}/obs.json"))
    assert json.loads(succeed("predict", trained[0], "--obs", f"@{tmp_path}/obs.npy")) == batch
    assert np.shape(batch) == (2, 1)
    np.testing.assert_allclose(batch[0], action, rtol=1e-5)
    negative = json.loads(succeed("predict", trained[0], "--obs", "-1.0,0.0,0.5"))
    np.testing.assert_allclose(batch[1], negative, rtol=1e-5)


def test_predict_samples_when_asked(trained: tuple[Path, Result]) -> None:
    draws = {succeed("predict", trained[0], "--obs", "1,0,0", "--stochastic") for _ in range(3)}
    assert len(draws) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "gallery/td3", "--episodes", 1],
        ["record", "gallery/td3", "-o", "film.mp4"],
        ["predict", "gallery/td3", "--obs", "1,0,0"],
        ["dataset", "collect", "--policy", "gallery/td3", "--env", "Pendulum-v1", "--size", 10, "-o", "rows.npz"],
    ],
    ids=lambda words: words[0],
)
def test_a_deterministic_policy_cannot_be_sampled(words: list[object], tiny: Path) -> None:
    result = run("--quiet", *words, "--stochastic")
    fails(result, 2, "--stochastic: the policy of td3 is deterministic; leave it out")


# Resuming.


def test_resume_continues_to_a_larger_budget(copied: Path) -> None:
    table = rows(succeed("resume", copied, "--set", "total_timesteps=150", "--device", "cpu"))
    assert table["environment steps"].strip() == "150"
    assert Path(table["run folder"].strip()) == copied
    assert (copied / "checkpoints" / "step_000000150").is_dir()


def test_settings_that_a_resumed_run_cannot_change_are_one_line(copied: Path) -> None:
    before = (copied / "run.json").read_text()
    fails(run("resume", copied, "--set", "algo_kwargs.alpha=auto"), 2, "alpha: cannot change from 0.2 to auto")
    fails(run("resume", copied, "--set", "hidden_sizes=[9]"), 2, "hidden_sizes: [9] differs from the [8, 8]")
    fails(run("resume", copied, "--set", "total_timesteps=119"), 2, "119 is below the 120 steps already made")
    assert (copied / "run.json").read_text() == before
    succeed("resume", copied, "--set", "alpha=0.1", "--set", "total_timesteps=130")


def test_resuming_a_complete_run_is_reported(copied: Path) -> None:
    result = run("--quiet", "resume", copied)
    assert result.exit_code == 0
    assert "this run is complete" in result.stderr
    assert rows(result.stdout)["environment steps"].strip() == "120"


def test_resuming_a_run_that_stopped_early_is_reported(tiny: Path) -> None:
    settings = ("eval_interval=30", "early_stopping={target_return: -1e9}")
    sets = [part for setting in settings for part in ("--set", f"algo_kwargs.{setting}")]
    assert "target_return" in rows(succeed("train", "--config", tiny, *sets))["stopped early"]
    folder = next(Path("runs").iterdir())
    result = run("resume", folder)
    assert result.exit_code == 0
    assert "this run had stopped: target_return" in result.stderr
    assert rows(result.stdout)["environment steps"].strip() == "30"
    assert json.loads((folder / "run.json").read_text())["status"] == "stopped"


def test_resume_falls_back_to_the_previous_valid_checkpoint(copied: Path) -> None:
    newest = copied / "checkpoints" / "step_000000120" / "networks.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    result = run("--quiet", "resume", copied)
    assert result.exit_code == 0, result.output
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: skipped")]
    assert len(warnings) == 1
    assert "networks.safetensors" in warnings[0]
    assert rows(result.stdout)["environment steps"].strip() == "120"
    assert Path(rows(result.stdout)["run folder"].strip()) == copied


def test_init_from_starts_from_other_networks(tiny: Path, trained: tuple[Path, Result]) -> None:
    succeed("train", "--config", tiny, "--init-from", trained[0], "--set", "total_timesteps=100")
    resolved = yaml.safe_load(next(Path("runs").glob("*/config.resolved.yaml")).read_text())
    assert resolved["init_from"] == str(trained[0])
    result = run("train", "--config", tiny, "--init-from", trained[0], "--set", "algo_kwargs.hidden_sizes=[9]")
    fails(result, 2, "init_from", "does not fit", "hidden_sizes [8, 8] there and [9] here")


# Bad input: exit code, one line, nothing written.

BAD_CONFIGS = [
    (TINY + "total_timestep: 5\n", 2, ("tiny.yaml:15", "'total_timestep'", "did you mean 'total_timesteps'")),
    (TINY + "  gama: 0.9\n", 2, ("tiny.yaml:15", "algo_kwargs", "'gama'", "did you mean 'gamma'")),
    (TINY.replace("120", "soon"), 2, ("tiny.yaml:5", "total_timesteps must be a whole number", "'soon'")),
    (TINY.replace("batch_size: 8", "batch_size: 1.5"), 2, ("tiny.yaml:12", "algo_kwargs.batch_size", "1.5")),
    (TINY.replace("batch_size: 8", "batch_size: 0"), 2, ("tiny.yaml:12", "must be >= 1, got 0")),
    (TINY + "  gamma: .nan\n", 2, ("tiny.yaml:15", "gamma")),
    (TINY + "seed: 4\n", 2, ("tiny.yaml:15", "seed")),
    (TINY.replace("algo: sac", "algo: sacc"), 2, ("tiny.yaml:2", "'sacc'", "did you mean 'sac'")),
    (TINY.replace("Pendulum-v1", "Pendulun-v1"), 2, ("tiny.yaml:3", "'Pendulun-v1'", "did you mean")),
    (TINY.replace("Pendulum-v1", "CartPole-v1"), 2, ("tiny.yaml:3", "discrete actions", "use dqn")),
    (TINY.replace("algo: sac", "algo: dqn"), 2, ("continuous",)),
    (TINY.replace("Pendulum-v1", "CliUnbounded-v0"), 2, ("tiny.yaml:3", "unbounded actions", "RescaleAction")),
    (TINY.replace("Pendulum-v1", "os:Env-v0"), 2, ("tiny.yaml:3", "'os'", "--allow-import")),
    (TINY + "allow_import: true\n", 2, ("tiny.yaml:15", "--allow-import")),
    (TINY.replace("acceleration: eager", "acceleration: graph"), 2, ("tiny.yaml:9", "CUDA")),
    (TINY + "device: cuda:9\n", 2, ("tiny.yaml:15", "cuda:9")),
    (TINY.replace("500", "1000000000000"), 2, ("tiny.yaml:14", "the largest that fits is")),
    (TINY + "env_processes: true\nnum_envs: 1000000\n", 2, ("tiny.yaml:16", "num_envs 1000000 is too many")),
    (TINY + "init_from: nowhere\n", 3, ("nowhere", "no such checkpoint")),
    ("[1, 2]\n", 2, ("tiny.yaml", "a config is a mapping")),
    ("a: b: c\n", 2, ("tiny.yaml:1",)),
]


@pytest.mark.parametrize(("text", "code", "words"), BAD_CONFIGS)
def test_a_bad_config_is_one_line_and_leaves_nothing(
    tiny: Path, text: str, code: int, words: tuple[str, ...]
) -> None:
    tiny.write_text(text)
    fails(run("train", "--config", "tiny.yaml"), code, *words)
    assert [path.name for path in Path().iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["train", "--config", "nope.yaml"], ["nope.yaml: no such file"]),
        (["train", "--config", "configs/redq/nope.yaml"], ["configs/redq/nope.yaml: no such file and no packaged"]),
        (["train"], ["--config"]),
        (["train", "--env", "Pendulum-v1"], ["--algo"]),
        (["train", "--algo", "sacc", "--env", "Pendulum-v1", "--steps", "9"], ["did you mean 'sac'"]),
        (["train", "--algo", "sac", "--env", "Pendulum-v1"], ["--steps"]),
        (
            ["train", "--algo", "sac", "--env", "Pendulum-v1", "--steps", "1.5"],
            ["--steps", "whole number, got 1.5"],
        ),
        (["train", "--config", "tiny.yaml", "--set", "learning_rat=1"], ["did you mean 'learning_rate'"]),
        (["train", "--config", "sac"], ["did you mean 'sac/pendulum'"]),
        (["train", "--config", "tiny.yaml", "--set", "seed"], ["--set seed", "key=value"]),
        (["train", "--config", "tiny.yaml", "--set", "algo_kwargs.gama=1"], ["--set", "did you mean 'gamma'"]),
        (["train", "--config", "tiny.yaml", "--seed", "-1"], ["--seed"]),
        (["train", "--config", "tiny.yaml", "--device", "tpu"], ["device", "'tpu'"]),
        (["train", "--config", "tiny.yaml", "--output-dir", "tiny.yaml"], ["output_dir tiny.yaml", "--output-dir"]),
        (["trian"], ["'trian'", "'train'"]),
        (["train", "--confg", "tiny.yaml"], ["--confg", "--config"]),
        (["evaluate"], ["--checkpoint"]),
        (["configs", "redq/nothing"], ["redq/nothing", "rl-training configs"]),
    ],
)
def test_bad_usage_is_one_line(tiny: Path, args: list[str], words: list[str]) -> None:
    fails(run(*args), 2, *words)
    assert [path.name for path in Path().iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("command", [["evaluate"], ["predict", "--obs", "1,2,3"], ["resume"]])
def test_a_missing_or_foreign_checkpoint(tiny: Path, command: list[str]) -> None:
    fails(run(*command, "nowhere"), 3, "nowhere: no such checkpoint")
    fails(run(*command, "tiny.yaml"), 3, "tiny.yaml", "not a checkpoint")
    Path("folder").mkdir()
    fails(run(*command, "folder"), 3, "folder: neither a checkpoint nor a run folder")
    assert list(Path("folder").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2", ["shape [3]", "[2]"]),
        ("1,2,x", ["'x'"]),
        ("[[1,2,3],[1,2]]", ["--obs"]),
        ('["a","b","c"]', ["not numbers"]),
        ("nan,0,0", ["finite"]),
        ("1e300,0,0", ["finite"]),
        ("@absent.json", ["No such file"]),
        ("@pickled.npy", ["--obs @pickled.npy"]),
    ],
)
def test_a_bad_observation(trained: tuple[Path, Result], tiny: Path, text: str, words: list[str]) -> None:
    np.save("pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    fails(run("predict", trained[0], "--obs", text), 2, *words)


def test_an_environment_that_fails_is_one_line_after_saving(tiny: Path) -> None:
    tiny.write_text(TINY.replace("Pendulum-v1", "CliFailing-v0"))
    result = run("--quiet", "train", "--config", tiny)
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: environment 0 failed")
    assert "the motor is broken" in last
    assert json.loads(next(Path("runs").glob("*/run.json")).read_text())["status"] == "failed"


def test_debug_adds_the_traceback(tiny: Path) -> None:
    result = run("--debug", "train", "--config", "nope.yaml")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: nope.yaml")


def test_unexpected_errors_are_one_line(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(*_: object, **__: object) -> None:
        raise KeyError("two\nlines")

    monkeypatch.setattr("rl_training.experiment.config.load_config", surprise)
    fails(run("train", "--config", tiny), 1, "unexpected KeyError", "--debug")


# Lists, data sets, the doctor.


def test_algos_lists_the_registry() -> None:
    lines = succeed("algos").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [spec.name for spec in list_algorithm_specs()]
    assert "2021" in next(line for line in lines if line.startswith("redq"))


def test_configs_lists_and_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "assets" / "configs" / "sac"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr("rl_training.experiment.config.CONFIGS", tmp_path / "assets" / "configs")
    assert succeed("configs").splitlines()[1].split() == ["sac/tiny", "Pendulum-v1", "120"]
    assert succeed("configs", "sac/tiny") == TINY
    assert succeed("configs", "sac") == succeed("configs")
    fails(run("configs", "td3"), 2, "td3: no such file and no packaged config")


def test_data_go_round_through_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    succeed("dataset", "collect", "--env", "Pendulum-v1", "--size", 250, "--seed", 5, "--output", "data.npz")
    succeed("dataset", "convert", "data.npz", "data.hdf5")
    succeed("dataset", "convert", "data.hdf5", "cli/data-v0", "--to", "minari")
    succeed("dataset", "convert", "cli/data-v0", "back.npz")
    with np.load("data.npz") as first, np.load("back.npz") as last:
        for name in ("observations", "actions", "rewards", "next_observations", "terminals"):
            np.testing.assert_array_equal(first[name], last[name])
    tables = [rows(succeed("dataset", "show", place)) for place in ("data.npz", "data.hdf5", "cli/data-v0")]
    for table in tables:
        assert table["transitions"].strip() == "250"
        assert table["episodes"].strip().startswith("2 ")
        assert table["return"] == tables[0]["return"]
    assert "250 transitions, 2 episodes" in succeed("dataset", "validate", "data.hdf5", "--env", "Pendulum-v1")


def test_the_help_starts_with_the_commands_of_a_run() -> None:
    listed = re.findall(r"^\W*([a-z][a-z-]+)  +[A-Z]", succeed("--help").partition("Commands")[2], re.M)
    assert listed[:5] == ["train", "resume", "finetune", "evaluate", "predict"]
    commands: Any = typer.main.get_command(cli.main)
    assert sorted(listed) == sorted(commands.commands.keys() - {"eval"})


def test_the_help_describes_every_argument_and_option() -> None:
    def undescribed(command: Any) -> list[str]:
        found = [f"{command.name} {one.name}" for one in command.params if not one.hidden and not one.help]
        return sum(map(undescribed, getattr(command, "commands", {}).values()), found)

    assert undescribed(typer.main.get_command(cli.main)) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train",), "error: give --config, or --algo, --env and --steps; see "),
        (("train", "--algo", "PPO"), "error: algo: unknown algorithm 'PPO'; it is not included, see docs/limits"),
    ],
)
def test_a_usage_error_begins_with_the_remedy(words: tuple[str, ...], message: str) -> None:
    assert run(*words).stderr.startswith(message)


@pytest.mark.parametrize("words", [(), ("train",), ("dataset", "collect")])
def test_flags_have_no_type_in_the_help(words: tuple[str, ...]) -> None:
    shown = succeed(*words, "--help")
    assert "--help" in shown
    assert "<bool>" not in shown


def test_data_sets_are_merged_and_trained_on_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    collect = ("--quiet", "dataset", "collect", "--env", "Pendulum-v1", "--size", 250)
    succeed(*collect, "--seed", 1, "-o", "a.npz")
    succeed(*collect, "--seed", 2, "-o", "b.hdf5")
    table = rows(succeed("dataset", "merge", "a.npz", "b.hdf5", "-o", "c.npz"))
    assert (table["transitions"].strip(), table["episodes"].split()[0]) == ("500", "4")
    with np.load("a.npz") as first, np.load("c.npz") as both:
        np.testing.assert_array_equal(both["observations"][:250], first["observations"])
    fails(run("dataset", "merge", "a.npz", "-o", "c.npz"), 3, "already exists")
    small = ("--set", "batch_size=8", "--set", "hidden_sizes=[8]", "--set", "eval_episodes=0", "--steps", 2)
    succeed("--quiet", "train", "--algo", "bc", "--dataset", "c.npz", *small)
    (run_dir,) = (tmp_path / "runs").iterdir()
    kept = yaml.safe_load((run_dir / "config.resolved.yaml").read_text())["algo_kwargs"]
    assert (kept["dataset_kind"], kept["dataset_path"]) == ("npz", "c.npz")
    for key in ("dataset_path", "algo_kwargs.datasets"):
        both = ("train", "--algo", "bc", "--dataset", "c.npz", "--set", f"{key}=a.npz", *small)
        fails(run(*both), 2, f"with --dataset or with --set {key.removeprefix('algo_kwargs.')}, not with both")
    message = "sac learns from an environment alone"
    fails(run("train", "--algo", "sac", "--env", "Pendulum-v1", "--dataset", "c.npz", "--steps", 9), 2, message)


def test_episodes_are_not_merged_with_shuffled_rows(tmp_path: Path) -> None:
    obs = np.arange(22, dtype=np.float32).reshape(11, 2)
    columns = {"observations": obs[:-1], "next_observations": obs[1:], "actions": np.zeros(10, int)}
    columns |= {"rewards": np.ones(10), "terminals": np.zeros(10, bool), "timeouts": np.zeros(10, bool)}
    np.savez(tmp_path / "a.npz", **columns, num_actions=2)
    order = np.random.default_rng(0).permutation(10)
    np.savez(tmp_path / "b.npz", **{name: column[order] for name, column in columns.items()}, num_actions=2)
    merge = ("dataset", "merge", tmp_path / "a.npz", tmp_path / "b.npz", "-o", tmp_path / "c.npz")
    fails(run(*merge), 3, "b.npz: its rows are unordered")
    assert not (tmp_path / "c.npz").exists()


def test_collecting_repeats_itself_and_overwrites_nothing(tmp_path: Path) -> None:
    command = ("--quiet", "dataset", "collect", "--env", "CartPole-v1", "--size", 60, "--seed", 1, "--output")
    succeed(*command, tmp_path / "a.npz")
    succeed(*command, tmp_path / "b.npz")
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        np.testing.assert_array_equal(a["observations"], b["observations"])
        assert set(np.unique(a["actions"])) == {0, 1}
    before = (tmp_path / "a.npz").read_bytes()
    fails(run(*command, tmp_path / "a.npz"), 3, "already exists and is not overwritten")
    fails(run("dataset", "convert", tmp_path / "b.npz", tmp_path / "a.npz"), 3, "already exists")
    fails(run("dataset", "convert", "none.npz", tmp_path / "a.npz" / "c.npz"), 3, "a.npz is a file, not a folder")
    assert (tmp_path / "a.npz").read_bytes() == before


def test_collecting_with_a_policy(trained: tuple[Path, Result], tmp_path: Path) -> None:
    policy = ("dataset", "collect", "--env", "Pendulum-v1", "--size", 20, "--policy", trained[0], "--output")
    succeed(*policy, tmp_path / "mode.npz")
    succeed(*policy, tmp_path / "sampled.npz", "--stochastic")
    with np.load(tmp_path / "mode.npz") as mode, np.load(tmp_path / "sampled.npz") as sampled:
        observation = ",".join(str(x) for x in mode["observations"][0])
        expected = json.loads(succeed("predict", trained[0], "--obs", observation))
        np.testing.assert_allclose(mode["actions"][0], expected, rtol=1e-5)
        np.testing.assert_array_equal(mode["observations"][0], sampled["observations"][0])
        assert not np.array_equal(mode["actions"][0], sampled["actions"][0])
    other = ("dataset", "collect", "--env", "CartPole-v1", "--policy", trained[0], "--output", tmp_path / "x.npz")
    fails(
        run("--quiet", *other),
        2,
        "CartPole-v1",
        "does not fit the policy",
        "trained on observations of 3 numbers and",
    )
    assert not (tmp_path / "x.npz").exists()


def test_collecting_with_a_policy_uses_the_environment_of_its_run(tmp_path: Path) -> None:
    train = ("train", "--algo", "sac", "--env", "Pendulum-v1", "--steps", 60, "--output-dir", tmp_path / "runs")
    succeed(
        *train,
        *(f"--set={key}" for key in ("env_kwargs.max_episode_steps=7", "hidden_sizes=[4]", "eval_episodes=0")),
    )
    (home,) = (tmp_path / "runs").iterdir()
    collect = ("dataset", "collect", "--env", "Pendulum-v1", "--size", 20, "--policy", home, "--output")
    succeed(*collect, tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz") as data:
        assert np.flatnonzero(data["timeouts"])[:2].tolist() == [6, 13]


def test_validating_lists_all_faults_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = episodes()
    columns["rewards"][7], columns["rewards"][9], columns["actions"][5, 1] = np.nan, np.inf, 9
    columns["terminals"] = columns["terminals"].astype(float) * 0.5
    save_npz(tmp_path / "bad.npz", columns, action_low=[-2, -1], action_high=[2, 3])
    result = run("dataset", "validate", "bad.npz")
    *faults, last = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (3, "")
    assert faults == [
        "fault: bad.npz: column 'actions', row 5: 9 (component 1) is outside [-1, 3]; "
        "actions are expected in the environment's units",
        "fault: bad.npz: column 'rewards', row 7: nan is not a finite float32 number",
        "fault: bad.npz: column 'rewards', row 9: inf is not a finite float32 number",
        "fault: bad.npz: column 'terminals', row 3: 0.5 is not 0 or 1",
    ]
    assert last == "error: bad.npz: 4 faults, listed above; correct the file"


def test_validating_lists_at_most_ten_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = episodes()
    columns["actions"] = np.array([0, 1, 2.5, -1, np.nan, 1e30, 4, 5, 6, 7, 8, 9])
    columns["rewards"][:] = np.nan
    save_npz(tmp_path / "bad.npz", columns, num_actions=3)
    result = run("dataset", "validate", "bad.npz")
    *faults, last = result.stderr.splitlines()
    assert result.exit_code == 3
    assert len(faults) == 10
    assert "'actions', row 4: nan is not a finite" in faults[0]
    assert last == "error: bad.npz: more than 10 faults, listed above; correct the file"


def test_broken_data_are_exit_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = episodes()
    columns["rewards"][3] = np.nan
    save_npz(tmp_path / "nan.npz", columns, action_low=[-2, -1], action_high=[2, 3])
    save_npz(tmp_path / "unbounded.npz", episodes())
    fails(run("dataset", "validate", "nan.npz"), 3, "nan.npz", "'rewards'", "row 3")
    fails(run("dataset", "validate", "unbounded.npz"), 3, "action_low")
    assert "12 transitions" in succeed(
        *("dataset", "validate", "unbounded.npz", "--action-low", "-2,-1", "--action-high", "2,3")
    )
    fails(run("dataset", "validate", "absent.npz"), 3, "absent.npz: does not exist")
    fails(run("dataset", "convert", "unbounded.npz", "x.hdf5", "--to", "parquet"), 2, "'parquet'")
    fails(run("dataset", "collect", "--env", "Pendulum-v1", "--output", "data.csv"), 3, "data.csv")
    fails(run("dataset", "show", "nan.npz", "--action-low", "a", "--action-high", "1"), 2, "--action-low a")


def test_data_without_action_bounds_can_be_looked_at(tmp_path: Path) -> None:
    columns = episodes()
    save_npz(tmp_path / "bounded.npz", columns, action_low=[-2, -1], action_high=[2, 3])
    save_npz(tmp_path / "unbounded.npz", columns)
    known = rows(succeed("dataset", "show", tmp_path / "bounded.npz"))
    table = rows(succeed("dataset", "show", tmp_path / "unbounded.npz"))
    assert table["action bounds"].strip().startswith("unknown: training needs action_low")
    different = {"data set", "action bounds"}
    assert {k: v for k, v in table.items() if k not in different} == {
        k: v for k, v in known.items() if k not in different
    }
    assert json.loads(succeed("dataset", "show", tmp_path / "unbounded.npz", "--json"))["spaces"] is None
    save_npz(tmp_path / "discrete.npz", columns | {"actions": np.arange(12) % 3 + 1})
    table = rows(succeed("dataset", "show", tmp_path / "discrete.npz"))
    assert "number is unknown" in table["actions"]
    assert "action bounds" not in table
    columns["actions"][5] = np.nan
    save_npz(tmp_path / "nan.npz", columns)
    fails(run("dataset", "show", tmp_path / "nan.npz"), 3, "'actions'", "row 5")


def test_trains_offline_from_a_collected_file_without_an_environment(tiny: Path) -> None:
    succeed("dataset", "collect", "--env", "Pendulum-v1", "--size", 100, "--output", "data.npz")
    tiny.write_text(
        "algo: bc\nenv_id: null\ntotal_timesteps: 20\nacceleration: eager\nalgo_kwargs:\n  hidden_sizes: [8]\n"
        "  batch_size: 50\n  dataset_kind: npz\n  dataset_path: data.npz\n"
    )
    result = run("train", "--config", tiny)
    assert result.exit_code == 0, result.output
    assert "evaluation is skipped" in result.stderr
    table = rows(result.stdout)
    assert table["data set"].strip() == "100 transitions, 10.0 epochs"
    assert "mean return" not in table
    assert "rl-training evaluate" not in result.stdout


# What is on the disk afterwards: pruning, and data out of a run.


def disk(folder: Path) -> int:
    """Bytes of all files, those with several links once."""
    files = {file.stat().st_ino: file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file()}
    return sum(files.values())


def test_prune_keeps_the_best_policy_alone(copied: Path) -> None:
    before, best = disk(copied / "checkpoints"), disk(copied / "best")
    result = run("prune", copied, "--keep", "best")
    assert result.exit_code == 0, result.output
    assert "2 checkpoints deleted, best/step_000000120 kept" in result.stdout
    assert result.stdout.splitlines()[-1] == f"freed {human_bytes(before)}"
    assert (list((copied / "checkpoints").iterdir()), disk(copied / "best")) == ([], best)
    assert "mean return" in succeed("evaluate", copied / "best", "--episodes", 1)
    fails(run("evaluate", copied), 3, f"no valid checkpoint; its best policy is in {copied / 'best'}")
    record = (copied / "run.json").read_text()
    fails(run("resume", copied), 2, "but its checkpoints were deleted; --init-from")
    assert (copied / "run.json").read_text() == record
    assert "0 checkpoints deleted" in succeed("prune", copied, "--keep", "best")


def test_prune_keeps_the_last_valid_checkpoint(copied: Path) -> None:
    newest = copied / "checkpoints" / "step_000000120" / "networks.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert "1 checkpoint deleted" in succeed("prune", copied.parent, "--keep", "last")
    assert [path.name for path in (copied / "checkpoints").iterdir()] == ["step_000000060"]
    assert (copied / "best").is_dir()
    assert rows(succeed("resume", copied))["environment steps"].strip() == "120"


def test_prune_without_a_best_policy_keeps_the_last(copied: Path) -> None:
    shutil.rmtree(copied / "best")
    assert "checkpoints/step_000000120 kept" in succeed("prune", copied, "--keep", "best")
    newest = copied / "checkpoints" / "step_000000120" / "networks.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert "none of its checkpoints is valid" in succeed("prune", copied, "--keep", "last")
    assert newest.is_file()


def test_prune_skips_runs_that_can_be_resumed(copied: Path, tmp_path: Path) -> None:
    record = (copied / "run.json").read_text()
    (copied / "run.json").write_text(record.replace('"status": "finished"', '"status": "interrupted"'))
    assert "skipped: it is interrupted" in succeed("prune", copied, "--keep", "best")
    assert len(list((copied / "checkpoints").iterdir())) == 2
    with lock_run(copied):
        fails(run("prune", copied, "--keep", "best", "--force"), 2, "in use by process")
    succeed("prune", copied, "--keep", "best", "--force")
    assert list((copied / "checkpoints").iterdir()) == []
    fails(run("resume", copied), 2, "its checkpoints were deleted")
    fails(run("prune", copied / "best", "--keep", "best"), 2, "neither a run folder nor a folder of runs")
    fails(run("prune", copied, "--keep", "all"), 2, "--keep")


@pytest.mark.parametrize("capacity", [500, 45])
def test_data_from_a_run_are_what_it_collected(tiny: Path, capacity: int) -> None:
    """Three environments whose episodes end by themselves or at a limit, from a whole and a wrapped buffer."""
    options = ["num_envs=3", f"buffer_capacity={capacity}", "env_kwargs.max_episode_steps=12", "eval_episodes=0"]
    sets = [part for option in options for part in ("--set", option)]
    steps = Recorded.steps
    steps.clear()
    succeed("--quiet", "train", "--config", tiny, "--env", "CliRecorded-v0", *sets, "--set", "learning_starts=110")
    folder = next(Path("runs").iterdir())
    table = rows(succeed("dataset", "from-run", folder, "-o", "data.npz"))
    kept = min(capacity, 120)
    assert table["transitions"].strip() == str(kept)
    assert ("lost" in table.get("note", "")) == (capacity < 120)
    expected = [row for env in range(3) for row in [r for r in steps[-kept:] if r["env"] == steps[env]["env"]]]
    with np.load("data.npz") as data:
        np.testing.assert_array_equal(data["observations"], [row["obs"] for row in expected])
        np.testing.assert_array_equal(data["next_observations"], [row["next_obs"] for row in expected])
        np.testing.assert_array_equal(data["terminals"], [row["terminated"] for row in expected])
        np.testing.assert_allclose(data["actions"], [row["action"] for row in expected], rtol=1e-6)
        following = [*(row["env"] for row in expected[1:]), None]
        cut = [row["number"] == 12 or row["env"] != after for row, after in zip(expected, following)]
        np.testing.assert_array_equal(data["timeouts"], [c and not r["terminated"] for c, r in zip(cut, expected)])
    assert f"{kept} transitions" in succeed("dataset", "validate", "data.npz", "--env", "CliRecorded-v0")
    fails(run("dataset", "from-run", folder, "-o", "data.npz"), 3, "already exists")


def test_data_from_a_run_in_every_format(
    trained: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    for place in (tmp_path / "data.npz", tmp_path / "data.hdf5", "cli/replay-v0"):
        succeed("dataset", "from-run", trained[0], "-o", place)
        assert rows(succeed("dataset", "show", place))["transitions"].strip() == "120"
    best = trained[0] / "best"
    fails(run("dataset", "from-run", best, "-o", tmp_path / "best.npz"), 2, "holds no replay buffer")


def test_the_doctor_finds_this_machine_usable_and_leaves_nothing(tmp_path: Path) -> None:
    text = succeed("doctor", "--output-dir", tmp_path)
    for subject in ("torch", "cuda", "memory", "hard links", "file locks", "extra mujoco", "compiler"):
        assert subject in text
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_refuses_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("doctor", "--output-dir", tmp_path / "file")
    assert result.exit_code == 1
    assert "broken: output folder" in result.stdout


@pytest.mark.parametrize(
    ("load", "threads", "noted"), [(0.3, 2, False), (3.0, 2, True), (3.0, 1, False), (0.9, 4, True)]
)
def test_the_doctor_reports_shared_cores(
    load: float, threads: int, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(doctor.torch, "get_num_threads", lambda: threads)
    notes = [finding for finding in doctor.device() if finding.subject == "busy"]
    assert bool(notes) == noted
    assert all(finding.state == "note" and "OMP_NUM_THREADS=1" in finding.text for finding in notes)


def test_the_doctor_detects_a_half_upgraded_mujoco(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"mujoco": "4.0.0", "mujoco-core": "3.3.7"}
    monkeypatch.setattr(doctor, "_version", versions.get)
    (finding,) = doctor.mujoco()
    assert finding.state == "broken"
    assert "mujoco-core is 3.3.7" in finding.text
    assert "reinstall" in finding.text


@pytest.mark.parametrize("names", [("box2d", "pygame-ce"), ("box2d-py", "pygame")])
def test_the_doctor_lists_installed_extras(names: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    box2d, pygame = names
    monkeypatch.setattr(doctor, "_version", {box2d: "2.3.10", pygame: "2.5.7", "h5py": "3.16.0"}.get)
    found = {finding.subject: finding for finding in doctor.extras()}
    known = {"mujoco", "box2d", "ogbench", "offline", "video", "wandb", "tune", "ray", "report", "export"}
    assert found.keys() == {f"extra {name}" for name in known}
    assert (found["extra box2d"].state, found["extra box2d"].text) == ("ok", f"{box2d} 2.3.10, {pygame} 2.5.7")
    assert found["extra offline"].text == "missing minari, pillow; pip install minari pillow"
    monkeypatch.setattr(doctor, "_step", {"LunarLander-v3": "ImportError: _Box2D"}.get)
    (finding,) = doctor.box2d()
    assert finding.state == "broken"
    assert "LunarLander-v3 fails: ImportError: _Box2D; pip install 'gymnasium[box2d]'" in finding.text
    monkeypatch.setattr(doctor, "_version", {pygame: "2.5.7"}.get)
    assert list(doctor.box2d()) == []


# As a process of its own.

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
}
COMMAND = [sys.executable, "-m", "rl_training"]


@pytest.mark.parametrize("called", mostly_slow(["module", "path", "name"]))
def test_the_next_commands_name_the_program_as_it_was_called(tiny: Path, called: str) -> None:
    folder = tiny.parent / "bin"
    folder.mkdir()
    (folder / "rl-training").write_text(f"#!{sys.executable}\nfrom rl_training.__main__ import main\nmain()\n")
    (folder / "rl-training").chmod(0o755)
    (tiny.parent / "points.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "gym.register('Point-v0', entry_point=PendulumEnv, max_episode_steps=20)\n"
    )
    command = {"module": COMMAND, "path": ["bin/rl-training"], "name": ["rl-training"]}[called]
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{tiny.parent}"}
    environment |= {"PATH": f"{folder}:{os.environ['PATH']}"} if called == "name" else {}
    options = ["train", "--config", "tiny.yaml", "--env", "points:Point-v0", "--allow-import", "--steps", "20"]
    options += ["--set", "learning_starts=10"]
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    evaluating, predicting, resuming, _ = done.stdout.split("next:\n")[1].splitlines()
    for line, name in ((evaluating, "evaluate"), (predicting, "predict"), (resuming, "resume")):
        assert line.startswith(f"  {shlex.join(command)} {name} runs/")
    assert [line.endswith(" --allow-import") for line in (evaluating, predicting, resuming)] == [True, False, True]


def test_python_m_rl_training_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "algos"], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == succeed("algos")
    done = subprocess.run([*COMMAND, "nonsense"], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


TRAINING = ["train", "--config", "tiny.yaml", "--set", "total_timesteps=1000000"]


def assert_saved_and_told(printed: str) -> None:
    folder = next(Path("runs").iterdir())
    last = printed.splitlines()[-1]
    assert last.endswith(f"go on with: {shlex.join(COMMAND)} resume {folder}")
    assert (step := re.match(r"interrupted at step (\d+); ", last))
    assert "error:" not in printed
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["ended_at"]) == ("interrupted", int(step[1]))


def test_a_signal_ends_a_forked_run_after_saving_it(tiny: Path) -> None:
    def start() -> None:
        """As `python -m` does."""
        sys.argv, sys.orig_argv = (
            [str(Path(cli.__file__).with_name("__main__.py")), *TRAINING],
            [*COMMAND, *TRAINING],
        )
        runpy.run_module("rl_training", run_name="__main__")

    child = Child(start, tiny.with_name("output.txt"))
    try:
        wait_for(lambda: "/1,000,000 steps  " in child.text())  # the first report: training is under way
        child.send(signal.SIGTERM)
        assert child.wait() == 143
    finally:
        child.kill()
    assert_saved_and_told(child.text())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_after_saving_it(tiny: Path, number: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, *TRAINING], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, preexec_fn=usual_signals
    )
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        assert any("/1,000,000 steps  " in line for line in lines)  # the first report: training is under way
        time.sleep(0.1)
        process.send_signal(number)
        rest = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode == code
    assert_saved_and_told(rest)


@pytest.mark.parametrize(
    "words", [["export", "RUN"], ["dataset", "from-run", "RUN"], ["dataset", "collect", "ENV"]]
)
def test_a_signal_leaves_no_part_of_a_new_file(
    words: list[str], trained: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(path: Path) -> None:
        assert list((tmp_path / "new").glob(".tmp-*"))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(files, "_sync", stopped)
    meant = {"RUN": [trained[0]], "ENV": ["--env", "Pendulum-v1", "--size", 20]}
    given = [word for name in words for word in meant.get(name, [name])]
    target = tmp_path / "new" / "made.npz"
    child = Child(lambda: cli.main([str(word) for word in (*given, "-o", target)]), tmp_path / "output.txt")
    assert child.wait() == 128 + signal.SIGTERM, child.text()
    assert list((tmp_path / "new").iterdir()) == []


def test_finetune_takes_one_seed_or_several() -> None:
    fails(run("finetune", "runs/any", "--steps", 10, "--seed", 1, "--seeds", "0..1"), 2, "give --seed or --seeds")


def test_the_error_for_misplaced_options_names_their_position() -> None:
    result = run("train", "--algo", "sac", "--quiet")
    assert result.exit_code == 2
    assert result.stderr == "error: --quiet goes before the command: rl-training --quiet …\n"


def test_the_error_for_a_setting_given_as_an_option_names_the_syntax() -> None:
    fails(run("train", "--algo", "sac", "--learning-rate", "1"), 2, "--learning-rate", "with --set NAME=VALUE")
    assert "--set" not in run("algos", "--learning-rate", "1").stderr


def test_the_error_for_a_file_given_as_environment_names_the_syntax() -> None:
    result = run("train", "--algo", "sac", "--env", "my/hill.py", "--steps", "9")
    fails(result, 2, "unknown environment 'my/hill.py'", "hill:CLASS", "--allow-import")


def test_the_list_of_algorithms_distinguishes_rlpd_from_that_of_the_paper() -> None:
    (line,) = [line for line in run("algos").stdout.splitlines() if line.startswith("rlpd")]
    assert "; plain SAC by default, the paper's settings: rlpd/paper" in line
