"""Nothing that is stored shares memory with an environment: not its observations, actions or arguments."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.environments.filming import Camera
from rl_training.environments.making import make_env, spaces_of
from rl_training.environments.playing import Evaluator
from rl_training.environments.pool import EnvPool
from rl_training.environments.video import Video
from rl_training.experience.collecting import collect_dataset, collect_random
from rl_training.experiment.config import TrainConfig
from tests.runs import differences, interrupted, resume, run_record, tiny, train
from tests.test_collector import collector_of, contents
from tests.worlds import REUSING, Reusing


def config_of(careful: bool, folder: Path, algo: str = "sac", **fields: Any) -> TrainConfig:
    return tiny(algo, folder, env_id=REUSING, env_kwargs={"careful": careful}, **fields)


def test_random_data(tmp_path: Path) -> None:
    rows = [
        collect_random(config, spaces_of(config), 20, 0).rows
        for config in (config_of(careful, tmp_path, "bc") for careful in (False, True))
    ]
    assert np.array_equal(*rows)
    assert len({row.tobytes() for row in rows[0]}) == 20


def test_data_of_a_policy(tmp_path: Path) -> None:
    """Its own buffer of actions stays as it is, too."""
    found = []
    for careful in (False, True):
        config = config_of(careful, tmp_path, "bc")
        own = np.full((1, 1), 0.25, np.float32)
        found.append(collect_dataset(config, spaces_of(config), 20, 0, lambda obs, own=own: own, name="data").rows)
        assert own.item() == 0.25
    assert np.array_equal(*found)


def test_the_replay_buffer(tmp_path: Path) -> None:
    stored = []
    for careful in (False, True):
        collector = collector_of(config_of(careful, tmp_path, num_envs=2))
        collector.start()
        for _ in range(20):
            collector.step()
        stored.append(contents(collector))
    for ours, theirs in zip(*stored):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)


@pytest.mark.parametrize("place", ["local", "processes"])
def test_what_a_pool_returns_and_keeps(place: str, tmp_path: Path) -> None:
    config = config_of(False, tmp_path, environments=place, allow_import=True)
    config = config.replace(env_id=f"tests.worlds:{REUSING}")
    pool = EnvPool(config)
    try:
        first, actions = pool.reset(0), np.full((1, 1), 0.5, np.float32)
        answers = [pool.step(actions).obs[0] for _ in range(3)]
        assert actions.item() == 0.5
        assert [first[1], *(answer[1] for answer in answers)] == [0, 1, 2, 3]
        kept = pool.episodes[0].actions
        assert kept is not None
        assert np.concatenate(kept).tolist() == [0.5] * 3
        assert pool.replay(0, pool.episodes[0]).tolist() == [first[0], 3.0, 1.5]  # type: ignore[union-attr]
    finally:
        pool.close()


def test_evaluation(tmp_path: Path) -> None:
    returns = []
    for careful in (False, True):
        config = config_of(careful, tmp_path)
        collector = collector_of(config)
        evaluator = Evaluator(config, collector.spaces)
        returns.append(evaluator.play(collector.learner.model.policy, 5).returns.tolist())
        evaluator.close()
    assert returns[0] == returns[1]


def test_a_resumed_run_is_exact(tmp_path: Path) -> None:
    config = config_of(False, tmp_path, total_timesteps=40, eval_episodes=0)
    run = interrupted(config, 30)  # in the middle of an episode of seven steps
    resumed = resume(run)
    assert run_record(run)["exact_resume"] is True
    assert set(differences(train(config), resumed)) <= {"checkpoints"}


def test_pictures() -> None:
    """Each is written before the next is drawn into the same array."""
    video, written = Video(Path("film.mp4"), Fraction(30)), io.BytesIO()
    video._process = SimpleNamespace(stdin=written)  # type: ignore[assignment]
    video._shape = (2, 2, 3)
    camera = Camera(Reusing(render_mode="rgb_array"), video.add)
    camera.reset(seed=0)
    for _ in range(3):
        camera.step(np.zeros(1, np.float32))
    assert written.getvalue() == bytes([0] * 12 + [1] * 12 + [2] * 12 + [3] * 12)
    video._process = None
    video.close()


def test_the_arguments_of_an_environment(tmp_path: Path) -> None:
    config = config_of(False, tmp_path).replace(env_kwargs={"marks": ["as configured"]})
    make_env(config).close()
    assert config.to_dict()["env_kwargs"] == {"marks": ["as configured"]}
