"""A `TensorEnv` that fails or returns malformed results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training import SAC, TensorStep
from rl_training.environments.user_environments import TensorEnvMaker, UserEnvironments
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.experiment.checkpointing import read_checkpoint
from tests.runs import replay_rows, resume, run_record, tiny, train
from tests.test_tensor_env import Counter, collector_of, settings


class Changed(Counter):
    """Returns `changes` in place of the parts of its third step."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.changes = changes

    def step(self, actions: Tensor) -> TensorStep:
        step = super().step(actions)
        if self.made < 3:
            return step
        return step._replace(**{name: change(getattr(step, name)) for name, change in self.changes.items()})


class Unclosed:
    """A `TensorEnv` in which `close` was forgotten."""

    single_observation_space = gym.spaces.Box(-2.0, 2.0, (2,))
    single_action_space = gym.spaces.Box(-1.0, 1.0, (2,))
    max_episode_steps = 50

    def __init__(self, num_envs: int, device: Any = "cpu") -> None:
        self.num_envs, self.device = num_envs, torch.device(device)

    def reset(self, seed: int) -> Tensor:
        raise NotImplementedError

    def step(self, actions: Tensor) -> TensorStep:
        raise NotImplementedError


def test_a_class_without_a_method_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Unclosed is not a TensorEnv, it has no close;"):
        SAC(Unclosed, output_dir=str(tmp_path)).learn(100)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": lambda obs: obs[:1]}, r"obs has shape \[1, 2\], expected \[4, 2\]"),
        ({"final_obs": lambda obs: obs.repeat(1, 2)}, r"final_obs has shape \[4, 4\], expected \[4, 2\]"),
        ({"rewards": lambda rewards: rewards[:, None]}, r"rewards has shape \[4, 1\], expected \[4\]"),
        ({"rewards": lambda rewards: rewards.long()}, r"rewards has type torch.int64, expected torch.float32"),
        ({"terminated": lambda flags: flags.float()}, r"terminated has type torch.float32, expected torch.bool"),
        ({"truncated": lambda flags: flags[:, None]}, r"truncated has shape \[4, 1\], expected \[4\]"),
        ({"obs": lambda obs: obs.to("meta")}, r"obs is on meta, the environment on cpu"),
        ({"obs": lambda obs: obs.numpy()}, r"obs is a ndarray, not a tensor"),
    ],
)
def test_a_step_of_another_form_fails(changes: dict[str, Any], message: str) -> None:
    collector = collector_of(Changed(**changes))
    for _ in range(2):
        collector.act()
        collector.receive()
    collector.act()
    with pytest.raises(EnvironmentFailure, match=rf"Changed failed \(seed 3, step 8\): {message}"):
        collector.receive()
    assert collector.steps == len(collector.buffer) == 8


class Pairs(Counter):
    def step(self, actions: Tensor) -> Any:
        return tuple(super().step(actions))


class OneFirst(Counter):
    def reset(self, seed: int) -> Tensor:
        return super().reset(seed)[0]


class Exits(Counter):
    def step(self, actions: Tensor) -> TensorStep:
        raise SystemExit(7)


class Arrays(Counter):
    def state_dict(self) -> Any:
        return {"obs": self.obs.numpy()}

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Pairs, "step 0.: step returned a tuple, not a TensorStep"),
        (OneFirst, r"step 0.: obs has shape \[2\], expected \[4, 2\]"),
        (Exits, "step 0.: SystemExit: 7"),
        (Arrays, "step 0.: state_dict has values that are not tensors: 'obs' is a ndarray"),
    ],
)
def test_other_failures_name_the_environment(env: type[Counter], message: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=message):
        SAC(env, **settings(tmp_path, num_envs=4)).learn(40, progress_bar=False)


class Fixed(Counter):
    def __init__(self, num_envs: int, device: Any) -> None:
        super().__init__(5, device)


def test_another_number_of_simulations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Fixed could not be made .*its num_envs is 5, not 1"):
        SAC(Fixed, **settings(tmp_path, num_envs=4)).learn(40, progress_bar=False)


def test_an_object_is_not_evaluated_in_the_middle_of_its_episodes(tmp_path: Path) -> None:
    vector = gym.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")
    for env in (Counter(), vector):
        with pytest.raises(ConfigError, match="eval_env: an evaluation would reset the episodes"):
            SAC(env, eval_env=env, **settings(tmp_path))
    SAC(Counter, eval_env=Counter, **settings(tmp_path))
    SAC(Counter(), eval_env=Counter(), **settings(tmp_path))


class FailsOnce(Counter):
    """Raises in the middle of a step, when its state has already changed; its state can be saved."""

    fails_at = 7  # after 6 steps

    def step(self, actions: Tensor) -> TensorStep:
        step = super().step(actions)
        if self.made == self.fails_at:
            raise RuntimeError("the simulator\nbroke")
        return step

    def state_dict(self) -> dict[str, Tensor]:
        return {"obs": self.obs, "random": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.obs = state["obs"].clone()
        self.generator.set_state(state["random"])


def test_a_failed_step_leaves_no_wrong_successor(tmp_path: Path) -> None:
    env = FailsOnce(8)  # the episodes of its last simulations are longer than a step
    given = UserEnvironments(TensorEnvMaker("FailsOnce", env, single_instance=True))
    config = tiny("sac", tmp_path, env_id="FailsOnce", given_envs=["env_id"], num_envs=8, total_timesteps=96)
    with pytest.raises(EnvironmentFailure, match=r"FailsOnce failed \(seed 3, step 48\): RuntimeError: the sim"):
        train(config, given=given)
    (run,) = tmp_path.glob("*/run.json")
    assert run_record(run.parent)["exact_resume"] is False
    rows = replay_rows(read_checkpoint(resume(run.parent, given=given).checkpoint_path))
    assert len(rows) == 96
    assert np.array_equal(rows[:, 2:4], rows[:, :2] + torch.tensor([0.0, 1.0]))


class Evaluated(Counter):
    def step(self, actions: Tensor) -> TensorStep:
        if self.made == 1:
            raise RuntimeError("no licence")
        return super().step(actions)


def test_a_failed_evaluation_names_the_environment(tmp_path: Path) -> None:
    model = SAC(Counter(), eval_env=Evaluated, **settings(tmp_path))
    place = r"evaluation environment Evaluated failed \(seed \d+, step 1\): RuntimeError: no licence"
    with pytest.raises(EnvironmentFailure, match=place):
        model.learn(40, progress_bar=False)
