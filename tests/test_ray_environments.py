"""Environments as Ray actors: the same numbers as anywhere else, even when a node is lost; clear ends otherwise."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.environments.pool import EnvPool
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.experiment.checkpointing import latest_valid
from rl_training.experiment.config import TrainConfig
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session, TrainResult
from tests.ray_clusters import SOURCE, Nodes, nodes
from tests.reliability.faulty_worlds import IMPORTABLE
from tests.runs import differences, resume, run_record, tiny, train

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")
FORGETFUL = "tests.ray_worlds:Forgetful"


@pytest.fixture
def cluster() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch, nodes(patch) as found:
        yield found


def config_of(folder: Path, **fields: Any) -> TrainConfig:
    """Four environments whose episodes have 25 steps, 30 steps each."""
    settings = {"num_envs": 4, "total_timesteps": 120, "checkpoint_interval": 20, "allow_import": True, **fields}
    return tiny("td3", folder, **{"env_id": IMPORTABLE, "environments": "ray", **settings})


class LoseAt(Callback):
    """Loses a node right after a step, once."""

    def __init__(self, cluster: Nodes, node: Any = None, step: int = 0) -> None:
        self.cluster, self.node, self.step = cluster, node, step

    def on_step(self, session: Session) -> None:
        if self.node is not None and session.clock.ticks >= self.step:
            self.cluster.lose(self.node)
            self.node = None


def unlike(one: TrainResult, other: TrainResult) -> list[str]:
    return [name for name in differences(one, other) if name not in ("config/environments", "config/output_dir")]


def test_equal_to_the_bit_wherever_they_live(cluster: Nodes, tmp_path: Path) -> None:
    cluster.add()
    runs = {
        kind: train(config_of(tmp_path / kind, environments=kind, eval_episodes=2))
        for kind in ("local", "processes", "ray")
    }
    assert unlike(runs["ray"], runs["local"]) == []
    assert unlike(runs["ray"], runs["processes"]) == []


@pytest.fixture
def regained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Index and step of each environment that was lost, and replayed elsewhere."""
    found: list[tuple[int, int]] = []
    receive_again = EnvPool._receive_again

    def noted(self: EnvPool, index: int) -> Any:
        found.append((index, len(self.episodes[index].actions)))
        return receive_again(self, index)

    monkeypatch.setattr(EnvPool, "_receive_again", noted)
    return found


def test_a_node_lost_in_the_middle_of_an_episode_changes_nothing(
    cluster: Nodes, tmp_path: Path, regained: list[tuple[int, int]]
) -> None:
    node = cluster.add()
    disturbed = train(config_of(tmp_path / "a"), [LoseAt(cluster, node, 60)])
    assert regained
    assert {step for _, step in regained} == {16}
    for kind in ("local", "ray"):
        assert unlike(disturbed, train(config_of(tmp_path / kind, environments=kind), [LoseAt(cluster)])) == []
    assert run_record(disturbed.run_dir)["exact_resume"] is True


def test_a_node_that_falls_silent_is_given_up(
    cluster: Nodes, tmp_path: Path, regained: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.environments.ray_actors._SILENT_SECONDS", 3.0)
    node, frozen = cluster.add(), []
    fields: dict[str, Any] = {"eval_episodes": 0, "env_timeout": 3.0}
    undisturbed = train(config_of(tmp_path / "local", environments="local", **fields), [LoseAt(cluster)])
    monkeypatch.setattr(cluster, "lose", lambda node: frozen.extend(cluster.freeze(node)))
    try:
        disturbed = train(config_of(tmp_path / "ray", **fields), [LoseAt(cluster, node, 60)])
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGKILL)
    assert {step for _, step in regained} == {16}
    assert unlike(disturbed, undisturbed) == []


def test_one_that_cannot_be_replayed_ends_its_run_which_goes_on(cluster: Nodes, tmp_path: Path) -> None:
    node = cluster.add()
    config = config_of(tmp_path, env_id=FORGETFUL, eval_episodes=0)
    with pytest.raises(EnvironmentFailure) as caught:
        train(config, [LoseAt(cluster, node, 60)])
    text = str(caught.value)
    assert text.startswith("environment ")
    assert "step 16): NotReplayed: it was lost with its machine, and elsewhere its first 15 actions led to" in text
    [run] = tmp_path.iterdir()
    assert latest_valid(run / "checkpoints")[0].name == "step_000000060"
    assert run_record(run)["status"] == "failed"
    assert resume(run, changes={"allow_import": True}).metrics["global_step"] == 120


FATES = {
    "raise": "ChildError: RuntimeError: the motor is on fire",
    "sys.exit": "ChildError: SystemExit: 0",
    "exit": "EnvProcessDied: its actor died: ",
    "kill": "EnvProcessDied: its actor died: ",
    "hang": "EnvTimeout: its actor did not answer within 2 s and was killed (env_timeout)",
}


def test_one_that_raises_dies_or_hangs(cluster: Nodes, tmp_path: Path) -> None:
    for how, fate in FATES.items():
        faults = {"at": 38, "how": how}
        config = config_of(tmp_path / how, num_envs=1, eval_episodes=0, env_kwargs=faults, env_timeout=2.0)
        with pytest.raises(EnvironmentFailure, match=r"^environment 0 failed \(seed \d+, step 13\): ") as caught:
            train(config)
        assert fate in str(caught.value)
        assert "\n" not in str(caught.value)
        if how == "raise":
            assert "faulty_worlds.py" in "".join(traceback.format_exception(caught.value))
        [run] = (tmp_path / how).iterdir()
        assert latest_valid(run / "checkpoints")[0].name == "step_000000037"
        assert run_record(run)["status"] == "failed"


def test_all_work_at_once(cluster: Nodes, tmp_path: Path) -> None:
    """Each waits until all have been asked: one after the other they would wait for ever."""
    config = config_of(tmp_path, num_envs=3, env_id="tests.ray_worlds:Meeting", env_timeout=20.0)
    pool = EnvPool(config.replace(env_kwargs={"folder": str(tmp_path), "number": 3}))
    try:
        for index in range(3):
            pool.reset(index)
        assert len(pool.step(np.zeros((3, 1), np.float32))) == 3
    finally:
        pool.close()


SCRIPT = """
import gymnasium as gym
from gymnasium.envs.classic_control import PendulumEnv
from rl_training.environments.user_environments import UserEnvironments, resolve_env
from rl_training.environments.pool import EnvPool
from rl_training.experiment.config import TrainConfig
class Own(PendulumEnv):
    pass
def ask():
    config = TrainConfig(algo="sac", env_id="Own", given_envs=["env_id"], total_timesteps=1, environments="ray")
    pool = EnvPool(config, given=UserEnvironments(resolve_env(Own).maker))
    print(pool.reset(0).tolist())
"""


def test_an_environment_of_the_main_script(cluster: Nodes, tmp_path: Path) -> None:
    (tmp_path / "guarded.py").write_text(SCRIPT + 'if __name__ == "__main__":\n    ask()\n')
    (tmp_path / "unguarded.py").write_text(SCRIPT + "ask()\n")
    command = [sys.executable, "guarded.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    pool = EnvPool(TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=1))
    assert done.stdout.strip() == str(pool.reset(0).tolist()), done.stderr
    command = [sys.executable, "unguarded.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "with environments: ray a script that defines its environment needs" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("kind", ["closed", "words", "client"])
def test_an_address_without_a_cluster_is_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        asked = {"words": "my cluster", "client": "ray://host:10001"}.get(kind, address)
        monkeypatch.setenv("RAY_ADDRESS", asked)
        expected = {
            "closed": f"RAY_ADDRESS {address}: no Ray cluster can be reached there (Connection refused); start one",
        }.get(kind, f"RAY_ADDRESS: write auto, local or host:port, got {asked!r}")
        with pytest.raises(ConfigError) as caught:
            train(config_of(tmp_path))
    assert str(caught.value).startswith(expected)
    assert list(tmp_path.iterdir()) == []


def test_without_an_address_a_cluster_is_started_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE / 'src'}{os.pathsep}{SOURCE}")
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with caplog.at_level(logging.WARNING, "rl_training"):
            train(config_of(tmp_path, total_timesteps=20))
        assert "Ray is started on this machine and ends with this process" in caplog.text
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    finally:
        ray.shutdown()
