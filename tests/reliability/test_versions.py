"""Promise 9: newer formats are rejected with the required version, older ones load, changed spaces are rejected."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import files
from rl_training.experiment.checkpointing import FORMAT
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training
from tests.reliability.faulty_worlds import FAULTY

GOLDEN = Path(__file__).parent / "golden"
SAMPLES = sorted(path.parent for path in GOLDEN.glob("format_*/*/actions.json"))


def test_every_format_has_a_golden_checkpoint() -> None:
    assert {path.parent.name for path in SAMPLES} == {f"format_{number}" for number in range(1, FORMAT + 1)}
    assert sum(file.stat().st_size for path in SAMPLES for file in path.rglob("*") if file.is_file()) < 200_000


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_old_checkpoints_load_and_predict_the_same_actions(sample: Path, tmp_path: Path) -> None:
    told = json.loads((sample / "actions.json").read_text())
    actions = predict_checkpoint(sample / "checkpoint", told["obs"])
    np.testing.assert_allclose(actions, told["actions"], rtol=1e-5, atol=1e-6)
    assert evaluate_checkpoint(sample / "checkpoint", 1)["eval_episodes"] == 1
    changes = {"output_dir": tmp_path, "total_timesteps": 40}
    assert resume_training(sample / "checkpoint", changes=changes).metrics["global_step"] == 40


def forge(folder: Path, **changes: object) -> None:
    body = json.loads((folder / "manifest.json").read_text()) | changes
    body.pop("sha256")
    body["sha256"] = hashlib.sha256(files.encode_json(body)).hexdigest()
    (folder / "manifest.json").write_bytes(files.encode_json(body))


@pytest.mark.parametrize(
    "words", [["evaluate"], ["predict", "--obs", "0,0,0"], ["resume"]], ids=lambda words: words[0]
)
def test_a_newer_format_is_refused_with_the_version_it_needs(words: list[str], tmp_path: Path) -> None:
    newer = Path(shutil.copytree(SAMPLES[-1] / "checkpoint", tmp_path / "step_000000030"))
    forge(newer, format=FORMAT + 1, package_version="9.1.0")
    result = CliRunner().invoke(main, [words[0], str(newer), *words[1:]])
    assert result.exit_code == 3
    assert f"checkpoint format {FORMAT + 1} is newer than format {FORMAT} of this package" in result.stderr
    assert "needs rl-training 9.1.0 or later" in result.stderr


def test_changed_spaces_are_refused_with_the_difference(tmp_path: Path) -> None:
    sample = GOLDEN / "format_1" / "sac" / "checkpoint"
    changes = {"env_id": FAULTY, "output_dir": tmp_path}
    words = (
        r"\(the environment has actions from -1\.0 to 3\.0, the policy was trained on actions from -2\.0 to 2\.0\)"
    )
    with pytest.raises(CheckpointError, match=f"spaces have changed {words}"):
        resume_training(sample, changes=changes)
    with pytest.raises(ConfigError, match=f"does not fit the policy {words}"):
        evaluate_checkpoint(sample, 1, changes=changes)
    with pytest.raises(ConfigError, match=r"obs must have shape \[3\] or \[B, 3\], got \[4\]"):
        predict_checkpoint(sample, [0.0] * 4)
    assert list(tmp_path.iterdir()) == []
