"""Gymnasium's MuJoCo tasks as functions of many simulations at once.

A task is a dataclass. Its fields are the keyword arguments of the Gymnasium environment, with their defaults. Its
methods take `[n, …]` arrays and compute every number with the operations, types and order of Gymnasium, so that
each bit agrees: a sum over the float32 action stays float32, a scalar power stays a scalar power.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
# Values `[n, …]` of the fields of MjData that a task reads.
Values = Mapping[str, Array]
Range = tuple[float, float]


@dataclass
class Task:
    """A model, its reset, observation, reward and termination."""

    model_file: ClassVar[str]
    model_file_v4: ClassVar[str | None] = None  # if it is another one
    versions: ClassVar[tuple[int, ...]] = (4, 5)
    # The fields of MjData that `carried`, `observation` and `outcome` read.
    reads: ClassVar[tuple[str, ...]] = ("qpos", "qvel")

    version: int = 5
    frame_skip: int = 5

    @classmethod
    def accepts(cls, known: Container[str], kwargs: Mapping[str, Any]) -> bool:
        """Whether every argument is one of this task and of the type of its default.

        `known`: the arguments that the version of the Gymnasium environment has.
        """
        defaults = {field.name: field.default for field in fields(cls) if field.name in known}
        return all(name in defaults and _same_type(defaults[name], value) for name, value in kwargs.items())

    def attach(self, model: Any) -> None:
        """Read constants from the model; called before any other method."""
        self.model = model
        self.dt: float = model.opt.timestep * self.frame_skip

    @property
    def contacts(self) -> bool:
        """Whether the task also reads the contact forces, `cfrc_ext`."""
        return False

    def initial(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Positions and velocities of a new episode."""
        raise NotImplementedError

    def carried(self, now: Values) -> Array:
        """What the reward of the next step needs of this state; its own memory."""
        return np.empty((len(now["qpos"]), 0))

    def observation(self, now: Values) -> Array:
        raise NotImplementedError

    def outcome(self, now: Values, before: Array, after: Array, actions: NDArray[Any]) -> tuple[Array, Flags]:
        """Rewards and terminations of a step; `before` and `after` are the carried values of its two states."""
        raise NotImplementedError


def _same_type(default: Any, value: Any) -> bool:
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and len(value) == 2 and all(_same_type(0.0, one) for one in value)
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    return isinstance(value, int) and value > 0 if isinstance(default, int) else isinstance(value, int | float)


def around(rng: np.random.Generator, scale: float, size: int) -> Array:
    return rng.uniform(low=-scale, high=scale, size=size)


def squares(rows: NDArray[Any]) -> Any:
    """The sum of squares of each row, in the rows' own type."""
    return np.add.reduce(np.square(rows), axis=1)


def bounded(values: Array, low: float, high: float) -> Array:
    """The numbers of `numpy.clip`, which takes longer for few of them."""
    return np.minimum(np.maximum(values, low), high)


def lengths(vectors: Array) -> Array:
    """Euclidean norms; `vecdot` is the dot product that `numpy.linalg.norm` uses."""
    return np.sqrt(np.vecdot(vectors, vectors))


@dataclass
class Noisy(Task):
    """Starts at the model's pose with noise; the noise of velocities is uniform or normal."""

    normal_velocities: ClassVar[bool] = False

    reset_noise_scale: float = 0.1

    def initial(self, rng: np.random.Generator) -> tuple[Array, Array]:
        model, scale = self.model, self.reset_noise_scale
        qpos = model.qpos0 + around(rng, scale, model.nq)
        qvel = scale * rng.standard_normal(model.nv) if self.normal_velocities else around(rng, scale, model.nv)
        return qpos, np.zeros(model.nv) + qvel


@dataclass
class InvertedPendulum(Noisy):
    model_file: ClassVar[str] = "inverted_pendulum.xml"

    frame_skip: int = 2
    reset_noise_scale: float = 0.01

    def observation(self, now: Values) -> Array:
        return np.concatenate((now["qpos"], now["qvel"]), axis=1)

    def outcome(self, now: Values, before: Array, after: Array, actions: NDArray[Any]) -> tuple[Array, Flags]:
        obs = self.observation(now)
        terminated = ~np.isfinite(obs).all(axis=1) | (np.abs(obs[:, 1]) > 0.2)
        return (np.ones(len(obs)) if self.version == 4 else (~terminated).astype(np.float64)), terminated


@dataclass
class InvertedDoublePendulum(Noisy):
    model_file: ClassVar[str] = "inverted_double_pendulum.xml"
    reads: ClassVar[tuple[str, ...]] = ("qpos", "qvel", "site_xpos", "qfrc_constraint")
    normal_velocities: ClassVar[bool] = True

    healthy_reward: float = 10.0

    def observation(self, now: Values) -> Array:
        qpos, forces = now["qpos"], bounded(now["qfrc_constraint"], -10, 10)
        angles = qpos[:, 1:].copy()
        shown = forces if self.version == 4 else forces[:, :1]
        velocities = bounded(now["qvel"], -10, 10)
        return np.concatenate((qpos[:, :1], np.sin(angles), np.cos(angles), velocities, shown), axis=1)

    def outcome(self, now: Values, before: Array, after: Array, actions: NDArray[Any]) -> tuple[Array, Flags]:
        tips = now["site_xpos"][:, 0]
        terminated = tips[:, 2] <= 1
        alive = np.ones(len(tips), dtype=np.bool_) if self.version == 4 else ~terminated
        rows = zip(tips[:, 0], tips[:, 2], now["qvel"][:, 1], now["qvel"][:, 2], self.healthy_reward * alive)
        return np.array([self._reward(*row) for row in rows]), terminated

    @staticmethod
    def _reward(x: np.float64, y: np.float64, v1: np.float64, v2: np.float64, alive: np.float64) -> np.float64:
        """Of one simulation: the power of a scalar and that of an array may differ in the last bit."""
        distance = 0.01 * x**2 + (y - 2) ** 2
        velocity = 0.001 * v1**2 + 0.005 * v2**2
        return alive - distance - velocity


@dataclass
class Reacher(Task):
    model_file: ClassVar[str] = "reacher.xml"
    reads: ClassVar[tuple[str, ...]] = ("qpos", "qvel", "xpos")

    frame_skip: int = 2
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 1.0

    def attach(self, model: Any) -> None:
        super().attach(model)
        self.fingertip, self.target = model.body("fingertip").id, model.body("target").id

    def initial(self, rng: np.random.Generator) -> tuple[Array, Array]:
        qpos = around(rng, 0.1, self.model.nq) + self.model.qpos0
        while np.linalg.norm(goal := around(rng, 0.2, 2)) >= 0.2:
            pass
        qpos[-2:] = goal
        qvel = np.zeros(self.model.nv) + around(rng, 0.005, self.model.nv)
        qvel[-2:] = 0
        return qpos, qvel

    def carried(self, now: Values) -> Array:
        """The vector from the target to the fingertip."""
        return now["xpos"][:, self.fingertip] - now["xpos"][:, self.target]

    def observation(self, now: Values) -> Array:
        angles = now["qpos"][:, :2].copy()
        vector = self.carried(now)[:, : 3 if self.version == 4 else 2]
        parts = (np.cos(angles), np.sin(angles), now["qpos"][:, 2:], now["qvel"][:, :2], vector)
        return np.concatenate(parts, axis=1)

    def outcome(self, now: Values, before: Array, after: Array, actions: NDArray[Any]) -> tuple[Array, Flags]:
        # Version 4 computes the reward before the simulation is stepped.
        distance = -lengths(before if self.version == 4 else after) * self.reward_dist_weight
        control = -squares(actions) * self.reward_control_weight
        return distance + control, np.zeros(len(actions), dtype=np.bool_)


@dataclass
class Pusher(Task):
    model_file: ClassVar[str] = "pusher_v5.xml"
    reads: ClassVar[tuple[str, ...]] = ("qpos", "qvel", "xpos")
    versions: ClassVar[tuple[int, ...]] = (5,)  # version 4 does not run with MuJoCo 3 or later

    reward_near_weight: float = 0.5
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 0.1

    def attach(self, model: Any) -> None:
        super().attach(model)
        self.bodies = [model.body(name).id for name in ("tips_arm", "object", "goal")]

    def initial(self, rng: np.random.Generator) -> tuple[Array, Array]:
        qpos = self.model.qpos0.copy()
        place = np.zeros(2)
        while np.linalg.norm(place) <= 0.17:
            place = np.concatenate([rng.uniform(low=-0.3, high=0, size=1), rng.uniform(low=-0.2, high=0.2, size=1)])
        qpos[-4:-2], qpos[-2:] = place, 0
        qvel = np.zeros(self.model.nv) + around(rng, 0.005, self.model.nv)
        qvel[-4:] = 0
        return qpos, qvel

    def observation(self, now: Values) -> Array:
        bodies = now["xpos"][:, self.bodies].reshape(len(now["xpos"]), -1)
        return np.concatenate((now["qpos"][:, :7], now["qvel"][:, :7], bodies), axis=1)

    def outcome(self, now: Values, before: Array, after: Array, actions: NDArray[Any]) -> tuple[Array, Flags]:
        tip, thing, goal = (now["xpos"][:, body] for body in self.bodies)
        near = -lengths(thing - tip) * self.reward_near_weight
        distance = -lengths(thing - goal) * self.reward_dist_weight
        control = -squares(actions) * self.reward_control_weight
        return distance + control + near, np.zeros(len(actions), dtype=np.bool_)


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


# Tasks by the module of the Gymnasium environment, without its version.
TASKS: dict[str, type[Task]] = {
    "ant": Ant,
    "half_cheetah": HalfCheetah,
    "hopper": Hopper,
    "humanoid": Humanoid,
    "inverted_double_pendulum": InvertedDoublePendulum,
    "inverted_pendulum": InvertedPendulum,
    "pusher": Pusher,
    "reacher": Reacher,
    "swimmer": Swimmer,
    "walker2d": Walker2d,
}
