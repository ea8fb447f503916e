"""Ray asked for where it is not installed, and what needs no Ray of a study on it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_training.cli import main
from rl_training.environments.ray_actors import connect
from rl_training.errors import ConfigError, MissingDependencyError
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.study.ray_pool import put_marker, take_marker
from tests.runs import tiny, train
from tests.studies import tiny_study


def test_environments_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"^environments: ray needs Ray .*pip install ray"):
        train(tiny("td3", tmp_path, environments="ray"))
    assert list(tmp_path.iterdir()) == []


class Unreachable:
    """In the place of ray: a cluster that cannot be joined."""

    exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))

    def __init__(self) -> None:
        self.asked: list[str] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **options: object) -> None:
        self.asked.append(address)
        raise self.exceptions.RayError("\nTimed out while waiting for GCS to become available.\ntrace")


def test_what_answers_and_is_no_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray := Unreachable())
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError) as caught:
            connect(address, "--ray")
    expected = "no Ray cluster was joined: Timed out while waiting for GCS to become available.; start one with"
    assert str(caught.value).startswith(f"--ray {address}: {expected}")
    assert ray.asked == [address]
    with pytest.raises(
        ConfigError, match=rf"^--ray {address}: no Ray cluster can be reached there \(.*\); start one"
    ):
        connect(address, "--ray")
    assert ray.asked == [address]


def test_what_a_marker_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.study.ray_pool._APPEAR_SECONDS", 0.3)
    marker = put_marker(tmp_path)
    assert take_marker(marker) is None
    assert not marker.exists()
    assert "does not see this folder" in str(take_marker(marker))
    marker.write_text("another")
    assert "sees another folder under this name" in str(take_marker(marker))
    with pytest.raises(ConfigError, match="cannot be written to: No such file"):
        put_marker(tmp_path / "nowhere")


def test_a_sweep_without_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "tiny.yaml").write_text(dump_yaml(tiny_study()))
    words = ["sweep", str(tmp_path / "tiny.yaml"), "--ray", "auto", "--output-dir", str(tmp_path / "studies")]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    [line] = capsys.readouterr().err.splitlines()
    assert "--ray needs Ray (" in line
    assert line.endswith("; pip install ray")
    assert not (tmp_path / "studies").exists()
