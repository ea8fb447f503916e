"""Ray asked for where it is not installed, and what needs no Ray of a study on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rl_training.cli import main
from rl_training.errors import ConfigError, MissingDependencyError
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.study.ray_crew import put_marker, take_marker
from tests.runs import tiny, train
from tests.studies import tiny_study


def test_environments_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        MissingDependencyError, match=r"^environments: ray needs Ray .*pip install 'rl-training\[ray\]'"
    ):
        train(tiny("td3", tmp_path, environments="ray"))
    assert list(tmp_path.iterdir()) == []


def test_what_a_marker_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.study.ray_crew._APPEAR_SECONDS", 0.3)
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
    assert line.endswith("; pip install 'rl-training[ray]'")
    assert not (tmp_path / "studies").exists()
