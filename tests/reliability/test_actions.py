"""Promise 13: predicted actions are legal for all bounds and all finite observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.algorithms.base import LearnerConfig
from rl_training.environments.making import read_spaces
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.models.mlp import NetworkShape
from rl_training.runtime.loading import LoadedPolicy
from rl_training.spaces import SpaceSpec
from tests.runs import TINY, mostly_slow, owned

CONTINUOUS = [spec.name for spec in list_algorithm_specs() if not spec.learner.discrete]
LARGEST = {
    "float16": 65504.0,
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}


def policy_for(algo: str, spaces: SpaceSpec) -> LoadedPolicy:
    """An untrained policy, constructed as by `load_policy`."""
    sections = get_algorithm_spec(algo).sections
    resolved = sections.resolve(owned(algo, TINY))
    model = sections.learner.build_model(
        spaces, resolved[NetworkShape], resolved[LearnerConfig], normalize_observations=False
    )
    config = TrainConfig(algo=algo, env_id=None, total_timesteps=1)
    return LoadedPolicy(model.policy.requires_grad_(False).eval(), spaces, config)


@st.composite
def boxes(draw: st.DrawFn) -> gym.spaces.Box:
    """All finite bounds of a floating type, from adjacent numbers to the whole range."""
    dtype = draw(st.sampled_from(list(LARGEST)))
    size, top = draw(st.integers(1, 3)), LARGEST[dtype]
    ends = np.array([[draw(st.floats(-top, top)) for _ in range(2)] for _ in range(size)]).astype(dtype)
    low, high = ends.min(axis=1), ends.max(axis=1)
    towards_zero = np.nextafter(low, np.zeros_like(low))
    low, high = np.minimum(low, np.where(high > low, high, towards_zero)), np.maximum(high, towards_zero)
    high = np.where(high > low, high, np.ones_like(high))
    return gym.spaces.Box(low, high, dtype=np.dtype(dtype).type)


OBSERVATIONS = st.lists(
    st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from([0.0, 3.4e38, -3.4e38])),
    min_size=3,
    max_size=3,
)


class Shell(gym.Env[Any, Any]):
    def __init__(self, box: gym.spaces.Box) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(-1, 1, (3,)), box


# By default each kind of policy, in each regime.
@pytest.mark.parametrize(
    "algo",
    mostly_slow(CONTINUOUS, "td3", "sac", "crossq", "flash_sac", "bc", "td3_bc", "iql", "cql", "fql", "rlpd"),
)
@settings(max_examples=25, deadline=None)
@given(box=boxes(), obs=OBSERVATIONS, deterministic=st.booleans())
def test_predicted_actions_are_inside_any_box(
    algo: str, box: gym.spaces.Box, obs: list[float], deterministic: bool
) -> None:
    policy = policy_for(algo, read_spaces(Shell(box), discrete=False))
    one = policy.predict(obs, deterministic=deterministic)
    batch = policy.predict([obs, obs], deterministic=deterministic)
    assert one.shape == box.shape
    assert batch.shape == (2, *box.shape)
    for action in (one, *batch):
        assert action.dtype == box.dtype
        assert box.contains(action), (action, box.low, box.high)


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 5), start=st.integers(-3, 3), obs=OBSERVATIONS)
def test_predicted_discrete_actions_are_in_the_space(count: int, start: int, obs: list[float]) -> None:
    space = gym.spaces.Discrete(count, start=start)
    policy = policy_for("dqn", SpaceSpec(3, num_actions=count, start=start, action_dtype="int64"))
    assert space.contains(policy.predict(obs))
    assert all(space.contains(choice) for choice in policy.predict([obs, obs]))


@pytest.mark.parametrize("bound", [np.inf, -np.inf])
def test_an_unbounded_box_is_refused(bound: float) -> None:
    low, high = sorted([0.0, bound])
    with pytest.raises(ConfigError, match="unbounded actions; wrap it in RescaleAction or give it finite bounds"):
        read_spaces(Shell(gym.spaces.Box(low, high, (2,), np.float32)))
