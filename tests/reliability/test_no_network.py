"""Promise 23: no network access, telemetry or open port; data sets are downloaded on request only."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from rl_training.errors import DatasetError
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint
from tests.runs import ALL, mostly_slow, resume, tiny, train


class NetworkUsed(Exception):
    """Code tried to connect or to listen."""


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block internet sockets and name resolution."""
    make = socket.socket.__init__

    def refuse(*_: Any, **__: Any) -> None:
        raise NetworkUsed

    def local_only(self: socket.socket, family: int = -1, *rest: Any, **options: Any) -> None:
        if family not in (socket.AF_UNIX,) and options.get("fileno") is None and (len(rest) < 3 or rest[2] is None):
            raise NetworkUsed
        make(self, family, *rest, **options)

    monkeypatch.setattr(socket.socket, "__init__", local_only)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "bind", refuse)
    for name in ("create_connection", "getaddrinfo", "gethostbyname", "create_server"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.mark.usefixtures("_no_network")
def test_the_block_works() -> None:
    with pytest.raises(NetworkUsed):
        socket.socket()
    with pytest.raises(NetworkUsed):
        socket.create_connection(("localhost", 80))


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "sac", "iql", "rlpd"))
def test_training_evaluating_predicting_and_resuming_use_no_network(algo: str, tmp_path: Path) -> None:
    result = train(tiny(algo, tmp_path, total_timesteps=25))
    assert evaluate_checkpoint(result.checkpoint_path, 1)["eval_episodes"] == 1
    assert predict_checkpoint(result.checkpoint_path, [0.1] * (4 if algo == "dqn" else 3)) is not None
    assert resume(result.run_dir, changes={"total_timesteps": 30}).metrics["global_step"] == 30


@pytest.mark.usefixtures("_no_network")
def test_a_missing_data_set_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    kwargs = {"dataset_kind": "minari", "dataset_id": "D4RL/pen/human-v2"}
    with pytest.raises(DatasetError, match=r"not found in .*; set dataset_download: true"):
        train(tiny("iql", tmp_path / "runs", env_id=None, kwargs=kwargs))
    assert not (tmp_path / "runs").exists()
