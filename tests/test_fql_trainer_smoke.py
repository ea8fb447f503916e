"""A short real run of FQL: 60 updates on 100 random transitions; a policy that is evaluated by samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.api import FQL, load
from rl_training.errors import ConfigError
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.export.policy_runner import Policy as NumpyPolicy
from rl_training.runtime.loading import load_policy, open_checkpoint
from rl_training.runtime.workflows import evaluate_checkpoint
from tests.runs import ShortRun, tiny, train
from tests.smoke import OfflineFacts

OBS = np.random.default_rng(4).standard_normal((5, 3)).astype(np.float32)


class TestShortRun(OfflineFacts):
    algo = "fql"
    metrics = ("critic_loss", "flow_loss", "distill_loss", "actor_loss", "q_scale", "target_q_mean")

    def test_it_is_evaluated_by_samples_with_fixed_noise(self, run: ShortRun) -> None:
        path = run.result.checkpoint_path
        found = {how: evaluate_checkpoint(path, 3, deterministic=how) for how in (None, False, True)}
        assert found[None] == found[False] != found[True]
        assert found[None] == evaluate_checkpoint(path, 3)
        # The run's own evaluation, of one episode, is the first of them.
        assert run.result.metrics["eval_return_mean"] == evaluate_checkpoint(path, 1)["eval_return_mean"]

    def test_prediction_samples_unless_it_is_asked_not_to(self, run: ShortRun) -> None:
        model = load(run.result.checkpoint_path)
        assert isinstance(model, FQL)
        assert not np.array_equal(model.predict(OBS), model.predict(OBS))
        fixed = model.predict(OBS, deterministic=True)
        assert np.array_equal(fixed, model.predict(OBS, deterministic=True))
        loaded = load_policy(open_checkpoint(run.result.checkpoint_path))
        zeros = np.zeros((len(OBS), 1), np.float32)
        assert np.array_equal(fixed, loaded.act(OBS, zeros))  # the noise 0, not a mode


@pytest.mark.parametrize("suffix", [".npz", ".onnx"])
def test_its_export_takes_noise_by_default(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    result = train(tiny("fql", tmp_path, kwargs={"normalize_observations": True}, total_timesteps=20))
    sampled = load(result.checkpoint_path).export(tmp_path / f"policy{suffix}")
    assert sampled.record["stochastic"] is True
    assert sampled.record["inputs"]["noise"]["shape"] == ["batch", 1]
    if suffix == ".npz":
        policy = NumpyPolicy(sampled.path)
        drawn = [policy(OBS) for _ in range(2)]  # it draws what it is not given
        assert drawn[0].shape == (5, 1)
        assert not np.array_equal(*drawn)
        assert policy(OBS[0]).shape == (1,)
    fixed = load(result.checkpoint_path).export(tmp_path / f"fixed{suffix}", deterministic=True)
    assert "noise" not in fixed.record["inputs"]


@pytest.mark.parametrize("source", ["bc", "td3_bc"])
def test_a_policy_of_another_shape_is_refused(source: str, tmp_path: Path) -> None:
    before = train(tiny(source, tmp_path, total_timesteps=10, eval_episodes=0))
    config: dict[str, Any] = {"init_from": before.run_dir, "total_timesteps": 10}
    with pytest.raises(ConfigError, match=r"^init_from: the .* policy of .* does not fit"):
        train(tiny("fql", tmp_path, **config))


def test_fine_tuning_appends_to_the_data() -> None:
    """Other algorithms draw half of each batch from the data; offline there is no such setting."""
    spec = get_algorithm_spec("fql")
    offline, online = spec.kinds
    assert online.resolve({}).to_dict()["offline_batch_ratio"] == "proportional"
    assert get_algorithm_spec("iql").kinds[1].resolve({}).to_dict()["offline_batch_ratio"] == 0.5
    assert "offline_batch_ratio" not in offline.resolve({}).to_dict()
