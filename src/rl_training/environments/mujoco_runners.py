"""Gymnasium's MuJoCo tasks that reward running along x; see `mujoco_tasks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rl_training.environments.mujoco_tasks import Array, Flags, Noisy, Range, Values, bounded, squares


@dataclass
class Runner(Noisy):
    """Rewards velocity along x less the cost of control; never terminates."""

    hidden: ClassVar[int] = 1  # leading positions that observations leave out

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    exclude_current_positions_from_observation: bool = True

    def carried(self, now: Values) -> Array:
        return now["qpos"][:, 0].copy()

    def observation(self, now: Values) -> Array:
        return np.concatenate((self._positions(now), now["qvel"]), axis=1)

    def outcome(self, now: Values, before: Array, after: Array, actions: NDArray[Any]) -> tuple[Array, Flags]:
        return self._forward(before, after) - self._cost(now, actions), np.zeros(len(after), dtype=np.bool_)

    def _positions(self, now: Values) -> Array:
        return now["qpos"][:, self.hidden if self.exclude_current_positions_from_observation else 0 :]

    def _forward(self, before: Array, after: Array) -> Array:
        return self.forward_reward_weight * ((after - before) / self.dt)

    def _cost(self, now: Values, actions: NDArray[Any]) -> Any:
        return self.ctrl_cost_weight * squares(actions)


@dataclass
class HalfCheetah(Runner):
    model_file: ClassVar[str] = "half_cheetah.xml"
    normal_velocities: ClassVar[bool] = True


@dataclass
class Swimmer(Runner):
    model_file: ClassVar[str] = "swimmer.xml"
    hidden: ClassVar[int] = 2

    frame_skip: int = 4
    ctrl_cost_weight: float = 0.0001


@dataclass
class Legged(Runner):
    """A runner with a reward for being healthy, whose episode ends when it is not."""

    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True

    def outcome(self, now: Values, before: Array, after: Array, actions: NDArray[Any]) -> tuple[Array, Flags]:
        healthy = self._healthy(now)
        rewarded = healthy | self.terminate_when_unhealthy if self.version == 4 else healthy
        rewards = self._forward(before, after) + rewarded * self.healthy_reward
        return rewards - self._cost(now, actions), ~healthy & self.terminate_when_unhealthy

    def _healthy(self, now: Values) -> Flags:
        raise NotImplementedError


def _between(values: Array, bounds: Range) -> Flags:
    return (bounds[0] < values) & (values < bounds[1])


@dataclass
class Walker2d(Legged):
    model_file: ClassVar[str] = "walker2d_v5.xml"
    model_file_v4: ClassVar[str | None] = "walker2d.xml"

    frame_skip: int = 4
    ctrl_cost_weight: float = 0.001
    reset_noise_scale: float = 0.005
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)

    def observation(self, now: Values) -> Array:
        return np.concatenate((self._positions(now), bounded(now["qvel"], -10, 10)), axis=1)

    def _healthy(self, now: Values) -> Flags:
        qpos = now["qpos"]
        return _between(qpos[:, 1], self.healthy_z_range) & _between(qpos[:, 2], self.healthy_angle_range)


@dataclass
class Hopper(Walker2d):
    model_file: ClassVar[str] = "hopper.xml"
    model_file_v4: ClassVar[str | None] = None

    healthy_state_range: Range = (-100.0, 100.0)
    healthy_z_range: Range = (0.7, float("inf"))
    healthy_angle_range: Range = (-0.2, 0.2)

    def _healthy(self, now: Values) -> Flags:
        state = np.concatenate((now["qpos"][:, 2:], now["qvel"]), axis=1)
        return super()._healthy(now) & _between(state, self.healthy_state_range).all(axis=1)


@dataclass
class Ant(Legged):
    model_file: ClassVar[str] = "ant.xml"
    reads: ClassVar[tuple[str, ...]] = ("qpos", "qvel", "xpos")
    hidden: ClassVar[int] = 2
    normal_velocities: ClassVar[bool] = True

    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    healthy_z_range: Range = (0.2, 1.0)
    contact_force_range: Range = (-1.0, 1.0)
    include_cfrc_ext_in_observation: bool = True
    use_contact_forces: bool = False

    @property
    def contacts(self) -> bool:
        in_v5 = self.include_cfrc_ext_in_observation or self.contact_cost_weight != 0
        return self.use_contact_forces if self.version == 4 else in_v5

    def attach(self, model: Any) -> None:
        super().attach(model)
        self.torso = model.body("torso").id

    def carried(self, now: Values) -> Array:
        return now["xpos"][:, self.torso, 0].copy()

    def observation(self, now: Values) -> Array:
        parts = [self._positions(now), now["qvel"]]
        if self.use_contact_forces if self.version == 4 else self.include_cfrc_ext_in_observation:
            parts.append(self._contact_forces(now)[:, 0 if self.version == 4 else 6 :])
        return np.concatenate(parts, axis=1)

    def _contact_forces(self, now: Values) -> Array:
        forces = now["cfrc_ext"]
        return np.clip(forces, *self.contact_force_range).reshape(len(forces), -1)

    def _cost(self, now: Values, actions: NDArray[Any]) -> Any:
        cost = super()._cost(now, actions)
        if "cfrc_ext" not in now:  # they are not used, or their weight is 0
            return cost
        return cost + self.contact_cost_weight * squares(self._contact_forces(now))

    def _healthy(self, now: Values) -> Flags:
        height, (low, high) = now["qpos"][:, 2], self.healthy_z_range
        finite = np.isfinite(now["qpos"]).all(axis=1) & np.isfinite(now["qvel"]).all(axis=1)
        return finite & (low <= height) & (height <= high)


@dataclass
class Humanoid(Legged):
    model_file: ClassVar[str] = "humanoid.xml"
    reads: ClassVar[tuple[str, ...]] = ("qpos", "qvel", "ctrl", "xipos", "cinert", "cvel", "qfrc_actuator")
    hidden: ClassVar[int] = 2

    forward_reward_weight: float = 1.25
    reset_noise_scale: float = 0.01
    healthy_reward: float = 5.0
    healthy_z_range: Range = (1.0, 2.0)
    contact_cost_weight: float = 5e-7
    contact_cost_range: Range = (float("-inf"), 10.0)
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True

    @property
    def contacts(self) -> bool:
        return self.include_cfrc_ext_in_observation or self.contact_cost_weight != 0

    def carried(self, now: Values) -> Array:
        """The x position of the centre of mass."""
        mass: Array = self.model.body_mass
        centres: Array = np.einsum("b,nbj->nj", mass, now["xipos"]) / mass.sum()
        return centres[:, 0].copy()

    def observation(self, now: Values) -> Array:
        parts = [self._positions(now), now["qvel"]]
        for name, base in (("cinert", 1), ("cvel", 1), ("qfrc_actuator", 6), ("cfrc_ext", 1)):
            if getattr(self, f"include_{name}_in_observation"):
                # Version 5 leaves out the world and the free joint, which are constant.
                parts.append(now[name][:, base if self.version == 5 else 0 :].reshape(len(now[name]), -1))
        return np.concatenate(parts, axis=1)

    def _cost(self, now: Values, actions: NDArray[Any]) -> Any:
        cost = super()._cost(now, now["ctrl"])
        if self.version == 4:
            return cost
        forces = now["cfrc_ext"].reshape(len(actions), -1) if "cfrc_ext" in now else np.zeros((len(actions), 1))
        return cost + np.clip(self.contact_cost_weight * squares(forces), *self.contact_cost_range)

    def _healthy(self, now: Values) -> Flags:
        return _between(now["qpos"][:, 2], self.healthy_z_range)
