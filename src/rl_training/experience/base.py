"""`Experience`: environments, the policy that acts in them, and the replay buffer that they fill."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.algorithms.execution import DeviceRandom, HeldNoise
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import ConfigError, DivergedError
from rl_training.experience.acting import ActingPolicy
from rl_training.experience.moments import RunningMoments, RunningReturns
from rl_training.experiment.checkpointing import Checkpoint, RowsToSave, Saved, checkpoint_errors
from rl_training.spaces import SpaceSpec

WINDOW = 100  # episodes in the reported means


def in_random_block(learner: Learner, step: int, block: int) -> bool:
    """Whether the actor has not started (`actor_starts`) and an environment's `step` has a random action.

    Critics that have seen the policy's own actions only are wrong about all others, which the actor would follow.
    """
    return block > 0 and learner.updates < learner.actor_starts and step // block % 2 == 0


def check_finite(learner: Learner, where: str) -> None:
    """Raise `DivergedError` naming the first tensor that is not finite; one read from the device if all are."""
    state = learner.state_dict()
    named: dict[str, Tensor] = {
        **{f"terms.{name}": term for name, term in learner.terms.items()},
        **state["networks"],
        **state["optimizers"],
    }
    floating = {name: tensor for name, tensor in named.items() if tensor.is_floating_point()}
    # The largest magnitude is finite exactly if every entry is; it takes one pass over all tensors.
    norms = torch.stack(
        [norm.to(torch.float64) for norm in torch._foreach_norm(list(floating.values()), torch.inf)]
    )
    if bool(torch.isfinite(norms).all()):
        return
    bad = next(name for name, norm in zip(floating, norms.tolist()) if not norm < float("inf"))
    raise DivergedError(
        f"{bad} became NaN or infinite {where}; lower learning_rate or check the rewards' scale", first_bad=bad
    )


class Experience(ABC):
    """Steps environments with the exploration policy of a learner; saves and restores its own state."""

    acting: ActingPolicy
    inexact_remedy: str  # what a user can do about `unreplayable`

    def __init__(
        self,
        spaces: SpaceSpec,
        learner: Learner,
        buffer: ReplayBuffer,
        width: int,
        random: np.random.Generator | DeviceRandom,
        *,
        random_steps: int,
        random_block_steps: int = 0,
        total_steps: int,
        reward_map: tuple[float, float] = (1.0, 0.0),
        moments: RunningMoments | None = None,
        scaling: RunningReturns | None = None,
    ) -> None:
        """`width`: environment steps per vector step. `random`: draws exploration noise.

        `reward_map`: (scale, shift) of the prior data's rewards, not applied to reported returns.
        `moments`: running statistics of the observations, which the learner's normaliser uses; None: it is fixed.
        `scaling`: running statistics of the return, which scale the rewards of minibatches.
        """
        self.spaces, self.learner, self.buffer, self.layout = spaces, learner, buffer, buffer.layout
        self.width, self.steps = width, 0  # environment steps of a vector step, and so far
        self.random_steps, self.random_block_steps, self.total_steps = random_steps, random_block_steps, total_steps
        self.reward_map, self.moments, self.scaling = reward_map, moments, scaling
        self.held: HeldNoise | None = None
        if learner.longest_noise > 1:
            if spaces.discrete:
                raise ConfigError(f"{learner.name}: longest_noise must be 1 for discrete actions")
            self.held = HeldNoise(random, learner.longest_noise, (width, learner.model.action_dim))
        self.draws = random if self.held is None else self.held  # random numbers of the exploration policy

    @abstractmethod
    def start(self) -> None:
        """Reset every environment; called once, unless the run resumes."""

    @abstractmethod
    def act(self) -> None:
        """The first half of a vector step: choose actions and send them to the environments."""

    @abstractmethod
    def receive(self) -> None:
        """The second half of a vector step: store the transitions and reset environments whose episode ended."""

    @property
    def acts_randomly(self) -> bool:
        """Whether the next actions are uniform: in the first `random_steps` steps, and in random blocks."""
        in_block = in_random_block(self.learner, self.steps // self.width, self.random_block_steps)
        return self.steps < self.random_steps or in_block

    @property
    def progress(self) -> float:
        return min(self.steps / self.total_steps, 1.0)

    def _scale_rewards(self, rewards: NDArray[Any] | Tensor, ended: NDArray[np.bool_] | Tensor) -> None:
        """Scale the rewards of minibatches by the returns up to this step; does not wait for the device."""
        if self.scaling is not None:
            assert self.learner.reward_scale is not None
            self.scaling.add(rewards, ended)
            self.learner.reward_scale.scale.fill_(self.scaling.scale)

    def _cut(self, environments: Sequence[int]) -> None:
        """End the running episodes of `environments`, which are reset before they are over."""
        self.buffer.cut(environments)
        if self.scaling is not None:
            self.scaling.cut(environments)

    def _raise_bad_action(self) -> NoReturn:
        """Raise `DivergedError` for an action that is not finite."""
        check_finite(self.learner, f"by step {self.steps}")
        raise DivergedError(
            f"the policy's action is not finite at step {self.steps}; lower learning_rate", first_bad="action"
        )

    def check(self) -> None:  # noqa: B027 - nothing to do if rows are checked before they are stored
        """Raise `DivergedError` if a stored row is not finite; called before anything is reported or saved."""

    @abstractmethod
    def statistics(self) -> dict[str, float]:
        """Means over the last episodes."""

    @abstractmethod
    def unreplayable(self) -> list[str]:
        """A phrase for each environment whose running episode a resumed run cannot restore."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """The checkpoint record `collector`, as plain data."""

    def _record(self, **own: Any) -> dict[str, Any]:
        moments = {} if self.moments is None else {"moments": self.moments.record()}
        return {"steps": self.steps, **own, **moments}

    @abstractmethod
    def save(self) -> Saved:
        """Everything that `restore` needs, including the rows of the replay buffer."""

    def _saved(self, own: Mapping[str, Tensor]) -> Saved:
        """The replay buffer, the collector's `own` tensors, and those of `scaling` and held noise."""
        buffer, parts = self.buffer, [part.tensors() for part in (self.scaling, self.held) if part is not None]
        tensors = {"collector": {name: tensor for some in (own, *parts) for name, tensor in some.items()}}
        if buffer.generator is not self.learner.generator:
            tensors["replay_random"] = {"host": buffer.generator.get_state()}
        rows = RowsToSave(buffer.rows, len(buffer), buffer.added, buffer.capacity, buffer.amended)
        return Saved(tensors=tensors, rows=rows)

    def restore(self, checkpoint: Checkpoint) -> list[str]:
        """Restore what `save` saved; returns a phrase for each thing that could not be restored exactly."""
        problems = self._restore_rows(checkpoint)
        with checkpoint_errors(checkpoint):
            record, tensors = checkpoint.records["collector"], checkpoint.tensors["collector"]
            self.steps = int(record["steps"])
            if self.moments is not None:
                self.moments.load(record["moments"])
            for part in (self.scaling, self.held):
                if part is not None:
                    part.load(tensors)
            return problems + self._restore(record, tensors)

    @abstractmethod
    def _restore(self, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
        """`restore` for the collector's own state."""

    def _restore_rows(self, checkpoint: Checkpoint) -> list[str]:
        """Restore the rows and the generator; returns a phrase if the generator could not be restored."""
        info, buffer = checkpoint.rows, self.buffer
        if info is None:
            raise ConfigError(
                f"{checkpoint.path} holds a policy without its replay buffer; resume the run folder instead"
            )
        checkpoint.read_rows(buffer.rows)  # in place: a second copy might not fit into memory
        buffer.load(buffer.rows[: info.filled], added=info.added)
        with checkpoint_errors(checkpoint):
            saved, own = checkpoint.tensors.get("replay_random"), buffer.generator is not self.learner.generator
            if saved is not None and own:
                buffer.generator.set_state(saved["host"])
            elif saved is not None or own:
                return ["the replay buffer was in another memory; its random state is not restored"]
        return []

    @abstractmethod
    def close(self) -> None:
        """Close the environments."""
