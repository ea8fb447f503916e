"""`TensorCollector`: act, step and store on tensors, for environments that step all simulations in one call.

The host reads nothing from the device until something is reported or saved. On a GPU both halves of a vector step
are captured as CUDA graphs if the environment allows it (`capturable`); otherwise the operations are launched one
by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training import seeding
from rl_training.algorithms.base import Learner
from rl_training.algorithms.capturing import capturing
from rl_training.algorithms.execution import DeviceRandom
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.environments.running import Blame, not_finite
from rl_training.environments.tensor_env import ActionScaling, CheckedEnv, TensorEnv
from rl_training.experience.acting import ActingPolicy
from rl_training.experience.base import WINDOW, Experience
from rl_training.experience.collector import random_actions
from rl_training.experiment.checkpointing import Saved
from rl_training.spaces import SpaceSpec

# Vector steps before the first capture: they allocate what the libraries allocate once.
_WARM_UP_STEPS = 3


class EpisodeStatistics:
    """Running totals of N simulations, and the last `window` episodes that have ended.

    All are tensors that change in place, without reads by the host.
    """

    def __init__(self, num_envs: int, window: int, device: torch.device) -> None:
        self.window = window
        self.totals = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        # The last entry receives everything that is not recorded.
        self.returns = torch.zeros(window + 1, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(window + 1, dtype=torch.int64, device=device)
        self.ended = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, rewards: Tensor, ended: Tensor) -> None:
        """Add one step of every simulation; `ended [N]` marks the last step of an episode."""
        self.totals += rewards
        self.steps += 1
        rank = ended.cumsum(0)  # 1, 2, … for the episodes that end here
        count = rank[-1]
        recorded = ended & (rank > count - self.window)  # each of the newest has a slot of its own
        slots = torch.where(recorded, (self.ended + rank - 1) % self.window, self.window)
        for ring, values in ((self.returns, self.totals), (self.lengths, self.steps)):
            ring.index_copy_(0, slots, values)
            ring[-1:].zero_()  # the order of writes to one slot is not defined
        self.ended += count
        self.totals.masked_fill_(ended, 0.0)
        self.steps.masked_fill_(ended, 0)

    def means(self) -> dict[str, float]:
        """Means over the last episodes; empty if none has ended. Reads from the device."""
        number = min(int(self.ended), self.window)
        if number == 0:
            return {}
        return {
            "rollout_return_mean": float(self.returns[:number].mean()),
            "rollout_length_mean": float(self.lengths[:number].double().mean()),
        }

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be saved and to be restored in place."""
        names = ("totals", "steps", "returns", "lengths", "ended")
        return {name: getattr(self, name) for name in names}


class TensorCollector(Experience):
    """Steps a `TensorEnv` with the exploration policy of a learner and appends rows to a replay buffer."""

    inexact_remedy = "give the environment state_dict() and load_state_dict()"

    def __init__(
        self,
        env: TensorEnv,
        spaces: SpaceSpec,
        learner: Learner,
        buffer: ReplayBuffer,
        *,
        seed: int,
        close: Callable[[TensorEnv], None],
        **options: Any,
    ) -> None:
        """`close` is called with `env` at the end. `options`: those of `Experience`; `moments` are tensors."""
        device = learner.device
        self.random = DeviceRandom(torch.Generator(device).manual_seed(seeding.device_exploration(seed)))
        super().__init__(spaces, learner, buffer, env.num_envs, self.random, **options)
        self.env, self.seed, self._close = env, seed, close
        self.inexact_remedy = getattr(env, "inexact_remedy", self.inexact_remedy)
        self._checked = CheckedEnv(env, spaces)
        self._blame = Blame(lambda: f"{type(env).__name__} failed (seed {self.seed}, step {self.steps})")
        self._step_failed = False  # then `obs` are not the observations of the environment's state
        self.acting = ActingPolicy(learner, copies=False)
        self.episodes = EpisodeStatistics(self.width, max(WINDOW, self.width), device)
        self.obs = torch.zeros((self.width, spaces.obs_dim), device=device)
        self._action_scaling = ActionScaling(spaces, device)
        self._progress = torch.zeros((), device=device)
        # The first environment that returned a value that is not finite, and whether an action was not; -1: none.
        self._bad = torch.full((2,), -1, dtype=torch.int64, device=device)
        dtype, shape = (torch.int64, ()) if spaces.discrete else (torch.float32, (spaces.action_dim,))
        self._chosen = torch.zeros((self.width, *shape), dtype=dtype, device=device)
        self._graphs: dict[str, tuple[int, torch.cuda.CUDAGraph]] = {}
        self._runs = dict.fromkeys(("random", "policy", "step"), 0)

    def start(self) -> None:
        self._reset(seeding.episode_seed(self.seed, seeding.TRAINING, 0, 0))
        self._env_state()  # a wrong one would be found by the first checkpoint only

    def _reset(self, seed: int) -> None:
        with self._blame:
            obs = self._checked.reset(seed)
        self._set_obs(obs)
        self.episodes.totals.zero_()
        self.episodes.steps.zero_()

    def act(self) -> None:
        if self.acts_randomly:
            self._run("random", self._choose_random)
        else:
            if self.learner.explores_by_progress:
                self._progress.fill_(self.progress)
            self._run("policy", self._choose)

    def receive(self) -> None:
        self._step_failed = True
        self._run("step", self._step_and_store)
        self._step_failed = False
        self.buffer.appended(self.width)
        self.steps += self.width

    def _choose_random(self) -> None:
        self._chosen.copy_(torch.as_tensor(random_actions(self.random, self.spaces, self.width)))

    @torch.no_grad()
    def _choose(self) -> None:
        self._chosen.copy_(self.learner.explore(self.acting.current(), self.obs, self.draws, self._progress))

    @torch.no_grad()
    def _step_and_store(self) -> None:
        with self._blame:
            answer = self._checked.step(self._action_scaling(self._chosen).to(self.env.device))
        obs, rewards, terminated, truncated, final_obs = (part.to(self.learner.device) for part in answer)
        scale, shift = self.reward_map
        scaled = scale * rewards.float() + shift
        dones = self.buffer.dones(terminated, truncated)
        rows = self.layout.pack_tensors(self.obs, self._chosen, scaled, final_obs, dones)
        self.buffer.append(rows.to(self.buffer.device))
        self._find_bad(rows.isfinite().all(1) & obs.isfinite().all(1))
        self.episodes.add(rewards.double(), terminated | truncated)
        self._scale_rewards(rewards.double(), terminated | truncated)
        self._set_obs(obs)

    def _find_bad(self, finite: Tensor) -> None:
        """Record what is not finite; an environment is not blamed for its answer to such an action."""
        acted = self._chosen.isfinite().reshape(self.width, -1).all(1)
        bad = ~finite & acted
        first = torch.stack([torch.where(bad.any(), bad.long().argmax(), -1), torch.where(acted.all(), -1, 0)])
        self._bad.copy_(torch.where(self._bad < 0, first, self._bad))

    def _set_obs(self, obs: Tensor) -> None:
        """Set the observations to act on and add them to `moments`; the last one of an episode is not added."""
        self.obs.copy_(obs)
        if self.moments is not None:
            self.moments.add(self.obs)
            self.learner.normalize_by(self.moments.mean, self.moments.std)

    # Graphs.

    def _run(self, name: str, function: Callable[[], None]) -> None:
        """Run `function`, captured if possible; a graph is captured again if the networks have moved."""
        captures = self.learner.execution.acceleration != "eager" and self.learner.device.type == "cuda"
        if not captures or (name == "step" and not self._step_is_capturable):
            function()
            return
        self._runs[name] += 1
        if self._runs[name] <= _WARM_UP_STEPS:
            function()
            return
        address = next(self.learner.model.policy.parameters()).data_ptr()
        if name not in self._graphs or self._graphs[name][0] != address:
            self._graphs[name] = address, self._captured(function)
        self._graphs[name][1].replay()

    @property
    def _step_is_capturable(self) -> bool:
        devices = {self._checked.device, self.buffer.device}
        return getattr(self.env, "capturable", False) and devices == {self.learner.device}

    def _captured(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """A graph of `function`. Capturing does not run it, so nothing needs to be restored."""
        graph, device = torch.cuda.CUDAGraph(), self.learner.device
        for generator in (self.random.generator, getattr(self.env, "generator", None)):
            if generator is not None and generator.device == device:
                graph.register_generator_state(generator)
        torch.cuda.synchronize(device)
        with capturing(graph, device):
            function()
        return graph

    # Reports and checkpoints. Only these read from the device.

    def statistics(self) -> dict[str, float]:
        return self.episodes.means()

    def check(self) -> None:
        index, action = self._bad.tolist()
        if index >= 0:
            raise not_finite(f"environment {index}", "observation or reward", when=f" by step {self.steps}")
        if action >= 0:
            self._raise_bad_action()

    @property
    def _saves_env(self) -> bool:
        return hasattr(self.env, "state_dict") and hasattr(self.env, "load_state_dict")

    def unreplayable(self) -> list[str]:
        return [] if self._saves_env else [f"{type(self.env).__name__} has no state_dict"]

    def record(self) -> dict[str, Any]:
        return self._record(num_envs=self.width)

    def _own_tensors(self) -> dict[str, Tensor]:
        return {"obs": self.obs} | {f"episodes.{name}": tensor for name, tensor in self.episodes.tensors().items()}

    def save(self) -> Saved:
        return self._saved(self._own_tensors() | {"random": self.random.generator.get_state()} | self._env_state())

    def _env_state(self) -> dict[str, Tensor]:
        """The state of the environment; empty if it cannot be saved or is that of a step that was not stored."""
        if self._step_failed or not self._saves_env:
            return {}
        with self._blame:
            return {f"env.{name}": tensor for name, tensor in self._checked.state_dict().items()}

    def _restore(self, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
        if record.get("num_envs") != self.width:
            raise ValueError(f"{record.get('num_envs')} running simulations for {self.width}")
        for name, tensor in self._own_tensors().items():
            tensor.copy_(tensors[name])
        problems = self._restore_random(tensors["random"])
        state = {name[4:]: tensor for name, tensor in tensors.items() if name.startswith("env.")}
        if state and self._saves_env:
            self.env.load_state_dict(state)  # type: ignore[attr-defined]
            return problems
        self._cut(range(self.width))
        self._reset(seeding.episode_seed(self.seed, seeding.TRAINING, 0, self.steps))
        return [*problems, f"{type(self.env).__name__} cannot restore its state; all of its episodes were reset"]

    def _restore_random(self, state: Tensor) -> list[str]:
        if state.numel() != self.random.generator.get_state().numel():
            return ["the checkpoint was written on another kind of device; exploration has a new random state"]
        self.random.generator.set_state(state)
        return []

    def close(self) -> None:
        self._close(self.env)
