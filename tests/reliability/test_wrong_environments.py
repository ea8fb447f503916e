"""Promise 28: observations have the shape of their space, rewards are numbers, ends booleans, resets pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.environments.pool import EnvPool
from rl_training.errors import EnvironmentFailure
from rl_training.experiment.checkpointing import list_checkpoints
from rl_training.runtime.workflows import evaluate_checkpoint
from tests.reliability.faulty_worlds import WRONG_FORM
from tests.runs import run_record, tiny, train

RESETS = {
    "reset: observation alone": r"reset returned a ndarray of shape \[3\], not a pair \(observation, info\)",
    "reset: three values": r"reset returned 3 values, not a pair \(observation, info\)",
    "reset: scalar": r"an observation has shape \[\], its space \[3\]",
    "reset: too long": r"an observation has shape \[4\], its space \[3\]",
}
FIVE = r"not five values \(observation, reward, terminated, truncated, info\)"
STEPS = {
    "step: old interface": rf"step returned 4 values, {FIVE}",
    "step: observation alone": rf"step returned a ndarray of shape \[3\], {FIVE}",
    "step: column": r"an observation has shape \[3, 1\], its space \[3\]",
    "step: too short": r"an observation has shape \[2\], its space \[3\]",
    "step: words": r"ValueError: could not convert string to float: 'a'",
    "step: no reward": r"the reward is None, not a number",
    "step: reward in a list": r"the reward is \[0\.5\], not a number",
    "step: reward of shape 1": r"the reward is array\(\[0\.5\]\), not a number",
    "step: terminated is None": r"terminated is None, not true or false",
    "step: truncated is a number": r"truncated is 0, not true or false",
}


@pytest.mark.parametrize("answer", RESETS)
def test_a_wrong_reset(answer: str, tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, env_id=WRONG_FORM, env_kwargs={"answer": answer})
    with pytest.raises(EnvironmentFailure, match=rf"^environment 0 failed \(seed \d+, step 0\): {RESETS[answer]}$"):
        train(config)


@pytest.mark.parametrize("answer", STEPS)
def test_a_wrong_step_ends_the_run_after_saving(answer: str, tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, env_id=WRONG_FORM, env_kwargs={"answer": answer}, eval_episodes=0)
    with pytest.raises(EnvironmentFailure, match=rf"^environment 0 failed \(seed \d+, step 5\): {STEPS[answer]}$"):
        train(config)
    [run] = tmp_path.iterdir()
    assert run_record(run)["status"] == "failed"
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["step_000000029"]


def test_wrong_steps_during_data_collection_and_evaluation(tmp_path: Path) -> None:
    wrong = {"env_id": WRONG_FORM, "env_kwargs": {"answer": "step: no reward"}}
    with pytest.raises(EnvironmentFailure, match="the reward is None"):
        train(tiny("iql", tmp_path / "data", **wrong))
    result = train(tiny("sac", tmp_path, env_id=WRONG_FORM, env_kwargs={"answer": ""}, eval_episodes=0))
    wrong["eval_max_steps"] = None
    with pytest.raises(EnvironmentFailure, match="the reward is None"):
        evaluate_checkpoint(result.run_dir, 12, changes=wrong)  # two of ten environments play a second episode


@pytest.mark.parametrize("answer", ["", "right: lists and NumPy's scalars"])
def test_valid_environments_pass(answer: str, tmp_path: Path) -> None:
    """Lists of numbers with the right shape are observations; NumPy scalars are numbers and booleans."""
    result = train(tiny("sac", tmp_path, env_id=WRONG_FORM, env_kwargs={"answer": answer}))
    assert result.metrics["global_step"] == 60


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    place = f"tests.reliability.faulty_worlds:{WRONG_FORM}"
    config = tiny("sac", tmp_path, env_id=place, env_kwargs={"answer": "reset: too long"}, env_processes=True)
    pool = EnvPool(config.replace(allow_import=True))
    try:
        with pytest.raises(EnvironmentFailure, match=r"an observation has shape \[4\], its space \[3\]"):
            pool.reset(0)
    finally:
        pool.close()
