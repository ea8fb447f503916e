"""The peers, each in a process of its own: what this package sets for its process is not given to them.

A peer is timed through the calls its own users make: `train()` on its own replay buffer for Stable-Baselines3,
`update()` for d3rlpy, whose batches are drawn beforehand because drawing them would take much of its time. A
trained peer is evaluated by this package's evaluator, on the same episodes as everything else.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from benchmarks.cases import ACTION_DIM, OBS_DIM, Case, installed, random_rows
from benchmarks.timing import wait

_MODULES = {"sb3": "stable_baselines3", "sb3_contrib": "sb3_contrib"}


class Still(gym.Env[Any, Any]):
    """Spaces and nothing else: Stable-Baselines3 wants an environment to build an agent for."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS_DIM,), np.float32)

    def __init__(self, discrete: bool) -> None:
        self.action_space = (
            gym.spaces.Discrete(ACTION_DIM) if discrete else gym.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
        )


class SB3Updates:
    """Gradient steps of a Stable-Baselines3 agent on a full replay buffer of the case's random rows."""

    def __init__(self, case: Case, device: torch.device, batch: int) -> None:
        library, _, name = (case.peer or "").partition(":")
        kind = getattr(importlib.import_module(_MODULES[library]), name)
        settings = dict(case.peer_settings)
        policy = {"net_arch": list(case.hidden)} | settings.pop("policy_kwargs", {})
        rows = random_rows(case.layout)
        self.batch = batch
        self.agent = kind(
            "MlpPolicy",
            Still(case.spaces.discrete),
            buffer_size=len(rows),
            batch_size=batch,
            policy_kwargs=policy,
            device=device,
            seed=0,
            **settings,
        )
        columns = case.layout.unpack(rows)
        buffer = self.agent.replay_buffer
        buffer.observations[:] = columns.obs[:, None]
        buffer.next_observations[:] = columns.next_obs[:, None]
        buffer.actions[:] = columns.actions.reshape(len(rows), 1, -1)
        buffer.rewards[:] = columns.rewards[:, None]
        buffer.dones[:] = columns.dones[:, None]
        buffer.full = True
        logger = importlib.import_module("stable_baselines3.common.logger")
        self.agent.set_logger(logger.Logger(None, []))

    def run(self, count: int) -> None:
        self.agent.train(gradient_steps=count, batch_size=self.batch)


def _serve_sb3(connection: Connection, threads: int, case: Case, device: torch.device, batch: int) -> None:
    """The child: make the agent, then as many gradient steps as each message asks for."""
    torch.set_num_threads(threads)
    updates = SB3Updates(case, device, batch)
    connection.send("ready")
    while count := connection.recv():
        updates.run(count)
        wait()
        connection.send("done")


class SB3Process:
    """`SB3Updates` behind a pipe, with as many threads as this process has."""

    def __init__(self, case: Case, device: torch.device, batch: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, torch.get_num_threads(), case, device, batch)
        self._process = context.Process(target=_serve_sb3, args=arguments, daemon=True)
        self._process.start()
        theirs.close()  # so that a child that died ends the next `recv`
        self._connection.recv()

    def run(self, count: int) -> None:
        self._connection.send(count)
        self._connection.recv()

    def close(self) -> None:
        self._connection.send(0)
        self._process.join()


class SB3Policy:
    """What this package's evaluator needs of a policy, from a Stable-Baselines3 actor."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def mode(self, obs: Tensor) -> Tensor:
        actions: Tensor = self.agent.actor(obs.to(self.agent.device), deterministic=True)
        return actions.cpu()


def with_paths(*first: Path) -> dict[str, str]:
    """The environment of a process that imports from these before anything else."""
    paths = [*map(str, first), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class Spoken:
    """A program in a process of its own: one JSON order per line, answered by one JSON line."""

    def __init__(self, command: list[str], env: Mapping[str, str] | None = None) -> None:
        self._name = " ".join(command)
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, env=env, text=True
        )

    def ask(self, order: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended; why is said below
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._said.seek(0)
            raise RuntimeError(f"{self._name} ended with {status}:\n{self._said.read()[-2000:]}")
        return json.loads(line)

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class D3rlpyProcess(Spoken):
    """d3rlpy behind a pipe; also a policy for this package's evaluator."""

    def __init__(
        self,
        python: str,
        algo: str,
        data: Path,
        *,
        hidden: tuple[int, ...],
        batch: int = 256,
        device: str = "cpu",
        seed: int = 0,
        normalize: bool = False,
        settings: dict[str, Any] | None = None,
        threads: int | None = None,
        discrete: int = 0,
    ) -> None:
        """`discrete` is the number of discrete actions; 0 for continuous ones."""
        super().__init__([python, str(Path(__file__).with_name("d3rlpy_peer.py"))])
        order = {
            "algo": algo,
            "data": str(data),
            "hidden": hidden,
            "batch": batch,
            "device": device,
            "seed": seed,
            "normalize": normalize,
            "settings": settings or {},
            "threads": threads or torch.get_num_threads(),
            "discrete": discrete,
        }
        self.versions: dict[str, str] = self.ask({"make": order})

    def update(self, count: int, *, fresh: bool) -> float:
        seconds: float = self.ask({"update": count, "fresh": fresh})
        return seconds

    def mode(self, obs: Tensor) -> Tensor:
        return torch.tensor(self.ask({"predict": obs.tolist()}), dtype=torch.float32)


class D3rlpyUpdates:
    """Gradient steps of d3rlpy on the case's random rows."""

    def __init__(self, case: Case, device: torch.device, batch: int, python: str) -> None:
        columns = case.layout.unpack(random_rows(case.layout))
        timeouts = np.arange(1, len(columns.rewards) + 1) % 1000 == 0
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "rows.npz"
            np.savez(
                data,
                observations=columns.obs.numpy(),
                actions=columns.actions.numpy(),
                rewards=columns.rewards.numpy(),
                terminals=columns.dones.numpy(),
                timeouts=(timeouts & (columns.dones.numpy() == 0)).astype(np.float32),
            )
            self.process = D3rlpyProcess(
                python,
                (case.peer or "").partition(":")[2],
                data,
                hidden=case.hidden,
                batch=batch,
                device=str(device),
                settings=case.peer_settings,
            )

    def run(self, count: int) -> None:
        self.process.update(count, fresh=False)

    def close(self) -> None:
        self.process.close()


def connect(case: Case, device: torch.device, batch: int, peer_python: str | None) -> Any | None:
    """The peer of a case, or None if it has none or it is not installed."""
    library = (case.peer or "").partition(":")[0]
    if library == "d3rlpy" and peer_python:
        return D3rlpyUpdates(case, device, batch, peer_python)
    if library in _MODULES and installed(library):
        return SB3Process(case, device, batch)
    return None
