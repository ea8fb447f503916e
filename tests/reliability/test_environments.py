"""Promise 14: if an environment raises, dies or hangs, the run ends with its index, seed, step and message."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import rl_training
from rl_training.environments import pool as pools
from rl_training.environments import processes
from rl_training.environments.frames import Channel
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator
from rl_training.environments.pool import EnvPool
from rl_training.errors import EnvironmentFailure
from rl_training.experiment.checkpointing import latest_valid, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runs.building import build_learner
from rl_training.seeding import TRAINING, episode_seed
from tests.reliability.faulty_worlds import FAULTY, IMPORTABLE
from tests.reliability.forks import start_env
from tests.reliability.processes import Child, command
from tests.runs import ONLINE, interrupted, mostly_slow, resume, run_record, tiny, train


def config_of(algo: str, folder: Path, **fields: Any) -> TrainConfig:
    kwargs = {"dataset_size": 20} if algo == "rlpd" else {}
    return tiny(algo, folder, env_id=FAULTY, eval_episodes=0, kwargs=kwargs, **fields)


@pytest.mark.parametrize("algo", mostly_slow([*ONLINE, "rlpd"], "dqn", "sac", "rlpd"))
def test_an_environment_that_raises_in_this_process(algo: str, tmp_path: Path) -> None:
    """Its 38th step is the 13th of its second episode."""
    faults = {"at": 38, "how": "raise", "discrete": algo == "dqn"}
    with pytest.raises(EnvironmentFailure) as caught:
        train(config_of(algo, tmp_path, env_kwargs=faults))
    seed = episode_seed(3, TRAINING, 0, 1)
    assert str(caught.value) == f"environment 0 failed (seed {seed}, step 13): RuntimeError: the motor is on fire"
    assert caught.value.exit_code == 1
    assert "faulty_worlds.py" in "".join(traceback.format_exception(caught.value))
    [run] = tmp_path.iterdir()
    newest, _ = latest_valid(run / "checkpoints")
    checkpoint = read_checkpoint(newest)
    assert checkpoint.rows is not None
    assert checkpoint.rows.added == 37
    assert run_record(run)["status"] == "failed"


FATES = {
    "raise": "ChildError: RuntimeError: the motor is on fire",
    "exit": "EnvProcessDied: its process ended with exit code 7",
    "kill": "EnvProcessDied: its process was killed by signal 9",
    "hang": "EnvTimeout: its process did not answer within 0.5 s and was killed (env_timeout)",
}


@pytest.mark.parametrize("how", FATES)
def test_an_environment_that_fails_in_its_own_process(how: str, tmp_path: Path) -> None:
    config = config_of(
        "sac", tmp_path, env_kwargs={"at": 38, "how": how}, env_processes=True, env_timeout=0.5
    ).replace(env_id=IMPORTABLE, allow_import=True)
    started = time.monotonic()
    with pytest.raises(EnvironmentFailure) as caught:
        train(config)
    seed = episode_seed(3, TRAINING, 0, 1)
    assert str(caught.value) == f"environment 0 failed (seed {seed}, step 13): {FATES[how]}"
    assert time.monotonic() - started < 60
    if how == "raise":  # the traceback of the other process, for --debug
        assert "faulty_worlds.py" in "".join(traceback.format_exception(caught.value))
    [run] = tmp_path.iterdir()
    assert latest_valid(run / "checkpoints")[0].name == "step_000000037"
    assert run_record(run)["status"] == "failed"


def framed(message: bytes) -> str:
    """A message in the wire format of `multiprocessing`, for `Faulty`."""
    return f"bytes{struct.pack('!i', len(message)).hex()}{message.hex()}"


def steps(pool: EnvPool, count: int) -> None:
    for _ in range(count):
        pool.step(np.zeros((1, 1), np.float32))


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


# What it does at its fifth step, and the error message.
TROUBLE = {
    "half a length": ("bytes0000", r"EnvTimeout: its process did not answer within 0.3 s and was killed"),
    "half a message": (
        "bytes000003e8" + 10 * "2a",
        r"EnvTimeout: its process did not answer within 0.3 s and was killed",
    ),
    "a negative length": ("bytesffffffff", r"WrongMessage: its process announced a message of -1 bytes"),
    "an endless message": (
        "bytes7fffffff",
        r"WrongMessage: its process announced a message of 2,147,483,647 bytes",
    ),
    "an empty message": (framed(b""), r"WrongMessage: its process sent 0 bytes that are not an answer"),
    "noise": (framed(b"\xff" * 99), r"WrongMessage: its process sent 99 bytes that are not an answer"),
    "a pickle": ("pickle", r"WrongMessage: its process sent \d+ bytes that are not an answer"),
}


@pytest.mark.parametrize("what", TROUBLE)
def test_a_process_that_sends_an_unexpected_message(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a message has the same time limit as an answer, and executes nothing."""
    monkeypatch.setattr(processes, "start_child", start_env)
    how, words = TROUBLE[what]
    if how == "pickle":
        how = framed(pickle.dumps(Touch(tmp_path / "canary")))
    faults = {"at": 5, "how": how}
    pool = EnvPool(config_of("td3", tmp_path, env_processes=True, env_timeout=0.3, env_kwargs=faults))
    try:
        pool.reset(0)
        steps(pool, 4)
        with pytest.raises(EnvironmentFailure, match=rf"^environment 0 failed \(seed \d+, step 5\): {words}"):
            steps(pool, 1)
        assert pool.envs[0]._process.wait(10) == -signal.SIGKILL  # type: ignore[attr-defined]
    finally:
        pool.close()
    assert not (tmp_path / "canary").exists()


def test_half_a_message_ends_the_run_after_saving_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "start_child", start_env)
    faults = {"at": 28, "how": TROUBLE["half a message"][0]}
    with pytest.raises(EnvironmentFailure, match=r"step 3\): EnvTimeout"):
        train(config_of("sac", tmp_path, env_kwargs=faults, env_processes=True, env_timeout=0.3))
    [run] = tmp_path.iterdir()
    assert latest_valid(run / "checkpoints")[0].name == "step_000000027"
    assert run_record(run)["status"] == "failed"


def test_an_environment_that_forks_and_answers_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second answer is not taken as the answer to a later action."""
    monkeypatch.setattr(processes, "start_child", start_env)
    pool = EnvPool(config_of("td3", tmp_path, env_processes=True, env_kwargs={"at": 5, "how": "fork"}))
    try:
        pool.reset(0)
        with pytest.raises(
            EnvironmentFailure,
            match=r"^environment 0 failed \(seed \d+, step 8\): WrongMessage: its process sent answer 6 "
            r"instead of 9: a process that the environment has forked must not return from reset or step$",
        ):
            steps(pool, 24)
    finally:
        pool.close()


def test_a_large_observation_arrives_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Pipe()
    channel, message = Channel(here), bytes(range(256)) * 10_000
    thread = threading.Thread(target=lambda: [there.send_bytes(message) for _ in range(2)])
    thread.start()
    assert [bytes(channel.receive(30.0)) for _ in range(2)] == [message, message]
    thread.join()
    thread = threading.Thread(target=lambda: received.append(there.recv_bytes()))
    received: list[bytes] = []
    thread.start()
    channel.send(message, 30.0)
    thread.join()
    assert received == [message]
    with pytest.raises(TimeoutError):  # no reader
        channel.send(message, 0.01)
    there.close()
    here.close()


@pytest.mark.parametrize("place", ["local", "processes"])
def test_messages_of_environments_are_shortened_and_escaped(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "start_child", start_env)
    faults = {"at": 3, "how": "shout"}
    pool = EnvPool(config_of("td3", tmp_path, environments=place, env_kwargs=faults))
    pool.reset(0)
    try:
        with pytest.raises(EnvironmentFailure, match=r"RuntimeError: \\x1b\[31mfire\\x1b\[0m !!!") as caught:
            steps(pool, 3)
    finally:
        pool.close()
    said = str(caught.value)
    assert len(said) < 1_200
    assert said.isprintable()
    assert said.endswith("characters in all)")
    if place == "processes":
        [trace] = caught.value.__cause__.__notes__  # type: ignore[union-attr]
        assert len(trace) < 21_000
        assert "\x1b" not in trace


@pytest.mark.parametrize("seeds", ["0", "0,1"])
def test_control_characters_of_environments_do_not_reach_a_terminal(seeds: str, tmp_path: Path) -> None:
    """For a single run and for members of a population."""
    settings = config_of("sac", tmp_path / "runs", env_kwargs={"at": 30, "how": "shout"}).to_dict()
    del settings["allow_import"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    words = ("--debug", "train", "--config", tmp_path / "run.yaml", "--seeds", seeds)
    child = Child(command(*words), tmp_path / "output.txt")
    assert child.wait() == 1
    text = child.text()
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if line.startswith("error: ")] == [text.splitlines()[-1]]
    assert len(text.splitlines()[-1]) < 3_000
    for run in (tmp_path / "runs").iterdir():
        assert len(run_record(run)["cause"]) < 1_200
        assert "\x1b" not in run_record(run)["cause"]


class Slow:
    """Takes the given time to close, measured by its own clock."""

    now = 0.0
    asked = 0

    def ask_to_close(self) -> None:
        Slow.asked += 1

    def close(self, seconds: float = 1.0) -> None:
        assert Slow.asked == 5, "all have been asked before the first is waited for"
        Slow.now += seconds


def test_environments_close_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools.time, "monotonic", lambda: Slow.now)
    pool = EnvPool.__new__(EnvPool)
    pool.envs = [Slow() for _ in range(5)]  # type: ignore[misc]
    pool.close()
    assert Slow.now == pools.CLOSING_SECONDS


# Its class must be imported from the script itself.
UNGUARDED = """
from gymnasium.envs.classic_control import PendulumEnv
from rl_training.environments.user_environments import UserEnvironments, resolve_env
from rl_training.environments.pool import EnvPool
from rl_training.experiment.config import TrainConfig
class Own(PendulumEnv):
    pass
config = TrainConfig(algo="sac", env_id="Own", given_envs=["env_id"], total_timesteps=1, env_processes=True)
EnvPool(config, given=UserEnvironments(resolve_env(Own).maker)).reset(0)
"""


def test_the_error_for_a_script_without_a_main_guard_names_the_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    environment = os.environ | {"PYTHONPATH": str(Path(rl_training.__file__).parents[1])}
    command = [sys.executable, tmp_path / "script.py"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert "its process ended with exit code 1 before its first answer; " in last
    assert 'needs `if __name__ == "__main__":` around its training call' in last


def test_an_evaluation_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    """Pending answers of other processes are not taken as answers to later requests."""
    config = config_of("sac", tmp_path, env_kwargs={"at": 3, "how": "raise"}, env_processes=True).replace(
        env_id=IMPORTABLE, allow_import=True
    )
    spaces = spaces_of(config)
    sections = get_algorithm_spec("sac").sections
    policy = build_learner(sections, sections.resolve(config.algo_kwargs), config, spaces).model.policy
    evaluator = Evaluator(config, spaces)
    for _ in range(2):
        with pytest.raises(EnvironmentFailure, match=r"^environment 0 failed .* step 3\): ChildError"):
            evaluator.run(policy, 2)


def test_a_complete_run_starts_no_processes_to_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, make = [], Evaluator.open

    def noted(self: Evaluator, episodes: int) -> EnvPool:
        opened.append(episodes)
        return make(self, episodes)

    monkeypatch.setattr(Evaluator, "open", noted)
    result = train(tiny("bc", tmp_path, env_processes=True))
    assert opened
    opened.clear()
    resume(result.run_dir)
    assert not opened


def test_the_number_of_actions_must_equal_the_number_of_environments(tmp_path: Path) -> None:
    pool = EnvPool(config_of("td3", tmp_path, num_envs=2))
    actions = pool.reset(0)[None, :1]
    pool.reset(1)
    with pytest.raises(ValueError, match="longer than"):
        pool.step(actions)


def test_the_error_names_the_environment_that_failed(tmp_path: Path) -> None:
    """The processes run concurrently; terminal signals reach all of them and end none."""
    config = config_of("td3", tmp_path, num_envs=2, env_processes=True).replace(
        env_id=IMPORTABLE, allow_import=True, env_kwargs={"wait": 0.05}
    )
    pool = EnvPool(config)
    try:
        pool.reset(0)
        pool.reset(1)
        actions = pool.envs[0].reset(1)[None].repeat(2, axis=0)[:, :1]
        for env in pool.envs:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                os.kill(env._process.pid, number)
        assert len(pool.step(actions)) == 2
        os.kill(pool.envs[1]._process.pid, signal.SIGKILL)
        with pytest.raises(
            EnvironmentFailure, match=r"^environment 1 failed \(seed \d+, step 2\): EnvProcessDied: "
        ):
            pool.step(actions)
    finally:
        pool.close()
    assert all(env._process.poll() is not None for env in pool.envs)


@pytest.mark.slow
def test_a_run_in_processes_equals_one_without(tmp_path: Path) -> None:
    """Running environments in processes does not change the result; the run resumes in the middle of an episode."""
    processes = config_of("td3", tmp_path / "runs", env_processes=True, total_timesteps=40).replace(
        env_id=IMPORTABLE, allow_import=True
    )
    run = interrupted(processes, 30)
    resumed = resume(run, changes={"allow_import": True})
    local = train(processes.replace(env_processes=False))
    one, other = read_checkpoint(resumed.checkpoint_path), read_checkpoint(local.checkpoint_path)
    assert one.manifest.files["networks.safetensors"] == other.manifest.files["networks.safetensors"]
    assert (
        one.manifest.files["replay/shard_00000.safetensors"]
        == other.manifest.files["replay/shard_00000.safetensors"]
    )
