"""`check-env` of a `TensorEnv`: what training relies on is tried out."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from rl_training import TensorStep, cli
from rl_training.environments.making import require_valid
from rl_training.environments.tensor_checking import check_tensor_env
from rl_training.environments.torch_envs import TorchCartPole, TorchPendulum
from rl_training.errors import ConfigError


class Good(TorchPendulum):
    """Everything is right with it but for what a subclass spoils."""

    def __init__(self) -> None:
        super().__init__(4, max_episode_steps=30)

    def step(self, actions: Tensor) -> TensorStep:
        return self.spoil(super().step(actions))

    def spoil(self, step: TensorStep) -> TensorStep:
        return step


class Column(Good):
    def spoil(self, step: TensorStep) -> TensorStep:
        return step._replace(rewards=step.rewards[:, None])


class FloatFlags(Good):
    def spoil(self, step: TensorStep) -> TensorStep:
        return step._replace(terminated=step.terminated.float())


class Doubles(Good):
    def reset(self, seed: int) -> Tensor:
        return super().reset(seed).double()


class Arrays(Good):
    def spoil(self, step: TensorStep) -> TensorStep:
        return step._replace(obs=step.obs.numpy())  # type: ignore[arg-type]


class Elsewhere(Good):
    def spoil(self, step: TensorStep) -> TensorStep:
        return step._replace(rewards=step.rewards.to("meta"))


class NotFinite(Good):
    def spoil(self, step: TensorStep) -> TensorStep:
        return step._replace(rewards=step.rewards / (self._steps.max() != 9))


class Failing(Good):
    def spoil(self, step: TensorStep) -> TensorStep:
        raise RuntimeError("simulator\nlost")


class Plain(Good):
    def spoil(self, step: TensorStep) -> TensorStep:
        return tuple(step)  # type: ignore[return-value]


class Overwritten(Good):
    """As libraries that reset before they return."""

    def spoil(self, step: TensorStep) -> TensorStep:
        return step._replace(final_obs=step.obs)


class OverwrittenByTime(TorchCartPole):
    """Keeps the last observation only of episodes that terminate."""

    def __init__(self) -> None:
        super().__init__(8, max_episode_steps=12)

    def step(self, actions: Tensor) -> TensorStep:
        step = super().step(actions)
        return step._replace(final_obs=torch.where(step.truncated[:, None], step.obs, step.final_obs))


class Stale(Good):
    """As a library whose last observations stay in place after the step that they belong to."""

    last: Tensor | None = None

    def spoil(self, step: TensorStep) -> TensorStep:
        if step.truncated.any() or self.last is None:
            self.last = step.final_obs
        return step._replace(final_obs=self.last)


class Cached(Good):
    """Resets to the first state of each simulation."""

    def reset(self, seed: int) -> Tensor:
        obs = super().reset(seed)
        self._initial = self._state.clone()
        return obs

    def _initial_states(self) -> Tensor:
        return self._initial if self._steps.any() else super()._initial_states()


class Unseeded(Good):
    def reset(self, seed: int) -> Tensor:
        return super().reset(int(torch.seed() % 2**32))


class OneSeed(Good):
    def reset(self, seed: int) -> Tensor:
        return super().reset(0)


class Reused(Good):
    def spoil(self, step: TensorStep) -> TensorStep:
        self.buffer = getattr(self, "buffer", torch.zeros_like(step.obs))
        return step._replace(obs=self.buffer.copy_(step.obs))


class Forgetful(Good):
    """Its state lacks the random numbers of later resets."""

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict({**state, "random": self.generator.get_state()})
        self._steps.fill_(25)


class Objects(Good):
    def state_dict(self) -> dict[str, Any]:
        return {"steps": 3}


class Stateless:
    def __init__(self) -> None:
        self.env = Good()
        self.num_envs, self.device, self.max_episode_steps = 4, torch.device("cpu"), None
        self.single_observation_space = self.env.single_observation_space
        self.single_action_space = self.env.single_action_space
        self.reset, self.step, self.close = self.env.reset, self.env.step, self.env.close


class Late(Stateless):
    def __init__(self) -> None:
        super().__init__()
        self.max_episode_steps = 20


class Endless(Good):
    def __init__(self) -> None:
        super().__init__()
        self.max_episode_steps = 10**6


CASES: list[tuple[type[Any], str, str, str]] = [
    (Column, "broken", "answers", "step 1: rewards has shape [4, 1], expected [4]"),
    (FloatFlags, "broken", "answers", "terminated has type torch.float32, expected torch.bool"),
    (Doubles, "broken", "answers", "reset: obs has type torch.float64, expected torch.float32"),
    (Arrays, "broken", "answers", "obs is a ndarray, not a tensor"),
    (Elsewhere, "broken", "answers", "rewards is on meta, the environment on cpu"),
    (NotFinite, "broken", "answers", "step 9: rewards is NaN or infinite"),
    (Failing, "broken", "answers", "step 1: RuntimeError: simulator lost"),
    (Plain, "broken", "answers", "step returned a tuple, not a TensorStep"),
    (Overwritten, "warning", "final_obs", "that were truncated it is the first observation of the next"),
    (OverwrittenByTime, "warning", "final_obs", "that were truncated it is the first observation of the next"),
    (Stale, "broken", "final_obs", "differs from obs in a row where no episode ended"),
    (Cached, "warning", "resets", "all its episodes with the same observation"),
    (Unseeded, "warning", "seeds", "the same seed gives other first observations"),
    (OneSeed, "warning", "seeds", "another seed gives the same first observations"),
    (Reused, "warning", "buffers", "changes after it was returned"),
    (Forgetful, "broken", "saved state", "differs; a resumed run would not be exact"),
    (Objects, "broken", "saved state", "not tensors"),
    (Stateless, "warning", "saved state", "a resumed run starts new episodes"),
    (Late, "broken", "time limit", "an episode has 30 steps, max_episode_steps is 20"),
    (Endless, "warning", "final_obs", "no episode ended in 2,000 steps"),
]


def test_nothing_is_wrong_with_a_good_one() -> None:
    checks = check_tensor_env(Good())
    subjects = ["interface", "answers", "final_obs", "resets", "seeds", "saved state", "time limit"]
    assert [(check.state, check.subject) for check in checks] == [("ok", subject) for subject in subjects]


@pytest.mark.parametrize(("make", "state", "subject", "text"), CASES, ids=[case[0].__name__ for case in CASES])
def test_what_is_wrong_is_found(make: type[Any], state: str, subject: str, text: str) -> None:
    checks = check_tensor_env(make())
    found = {check.subject: check for check in checks if check.state != "ok"}
    assert found[subject].state == state
    assert text in found[subject].text
    assert not any("\n" in check.text for check in checks)
    assert sum(check.state == "broken" for check in checks) == (state == "broken")


def _changed(**attributes: Any) -> Any:
    env = Stateless()
    for name, value in attributes.items():
        setattr(env, name, value)
    return env


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (gym.make_vec("CartPole-v1", 2), "it has no device; environments of other libraries need an adapter"),
        (_changed(num_envs=0), "has num_envs 0"),
        (_changed(device="cpu"), "make it a torch.device"),
        (_changed(max_episode_steps=0), "has max_episode_steps 0"),
        (_changed(single_observation_space=gym.spaces.Box(0, 1, (2, 2))), "needs flat vectors"),
        (_changed(single_action_space=gym.spaces.Box(-np.inf, np.inf, (1,))), "the action space is unbounded"),
        (_changed(single_action_space=gym.spaces.MultiBinary(2)), "a flat Box or Discrete is needed"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_a_step(env: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        require_valid(env, "World")
    assert text in str(error.value)
    assert check_tensor_env(env)[-1].subject == "interface"


def test_the_command_checks_tensor_environments() -> None:
    good = CliRunner().invoke(
        cli.main, ["check-env", "torch/Pendulum-v1", "--set", "num_envs=32", "--set", "device=cpu"]
    )
    assert good.exit_code == 0, good.output
    assert "32 simulations on cpu" in good.output
    place = f"{__name__}:{MadeByName.__name__}"
    bad = CliRunner().invoke(cli.main, ["check-env", place, "--allow-import"])
    assert bad.exit_code == 1, bad.output
    assert "terminated has type" in bad.output


class MadeByName(TorchPendulum):
    def step(self, actions: Tensor) -> TensorStep:
        step = super().step(actions)
        return step._replace(terminated=step.terminated.float())
