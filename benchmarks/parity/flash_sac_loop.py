"""A whole run of FlashSAC in lockstep with the authors' agent in its own loop, in float64.

    python -m benchmarks.parity.flash_sac_loop CHECKOUT [STEPS]

Our run is an ordinary one in HalfCheetah-v5. After each of its steps, `benchmarks.peers.flashsac.train_agent`,
which calls the agent as the authors' `train.py` does, makes the same step: with the same transition and random
numbers, but its own networks, statistics, scale of rewards and learning rates. The departures that
`algorithms.flash_sac` states are removed from it. The exit status is 1 if a difference exceeds `BOUND`, or if none
does after one of our settings was changed.
"""

import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.parity.lockstep import Same, float64, normal_draws, widened
from benchmarks.parity.normalizing import flash_places
from benchmarks.peers.flashsac import make_agent, train_agent
from rl_training.experience.acting import ActingPolicy
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runs.callbacks import Callback
from rl_training.runs.spec import RunOptions

BOUND, STARTS, ACTOR, CRITIC, ROWS = 1e-6, 300, 32, 48, 64
MISTAKES: dict[str, Any] = {"tau": 0.0099, "gamma": 0.9801, "learning_rate": 2.97e-4, "longest_noise": 4}
MISTAKES["learning_rate_schedule"] = {"type": "cosine", "final_factor": 0.495}


class AuthorsAgent(Callback):
    """Makes each step of our run a second time; `largest` are the differences so far, by kind."""

    def __init__(self, checkout: Path, steps: int) -> None:
        self.checkout, self.steps, self.updates = checkout, steps, 0
        self.largest, self.drawn = defaultdict[str, float](float), dict[str, Tensor]()

    def on_training_start(self, session: Any) -> None:
        self.learner, self.collector = learner, collector = session.learner, session.experience
        for optimizer in learner.optimizers.values():  # its rate is in float32
            optimizer.learning_rate = optimizer.learning_rate.double().fill_(optimizer.base_learning_rate)
        collector.acting = ActingPolicy(learner, copies=True)  # as on a GPU
        explore, add, random = learner.explore, collector.scaling.add, collector.held._random
        learner.explore = lambda policy, obs, *rest: explore(policy, obs.double(), *rest).float()
        collector.scaling.add = lambda rewards, *rest: add(rewards.astype(np.float32).astype(float), *rest)
        held = collector.held._random = SimpleNamespace()
        held.standard_normal = self._kept("fresh", random.standard_normal)
        held.random = self._kept("uniform", random.random)
        collector.buffer.draw = self._kept("index", collector.buffer.draw)
        learner.execution.draw = self._kept("noise", learner.execution.draw)
        with widened(), patch.object(torch, "compile", lambda function, **_: function):
            agent = self.agent = self._make_agent(session.spaces.obs_dim, session.spaces.action_dim)
        self.obs = collector.obs[0].copy()
        space = SimpleNamespace(seed=id, sample=lambda: self.row.actions[0].numpy().copy())
        env: Any = SimpleNamespace(action_space=space, reset=lambda **_: (self.obs, {}), step=self._answer)
        self.loop = train_agent(agent, env, 0, self.steps)

    def _kept(self, name: str, call: Any) -> Any:
        """`call`, of whose results the last one is in `drawn`."""

        def kept(*args: Any, **options: Any) -> Any:
            self.drawn[name] = torch.as_tensor(value := call(*args, **options)).clone()
            return value

        return kept

    def _make_agent(self, obs_dim: int, action_dim: int) -> Any:
        changes: dict[str, Any] = {"use_amp": False, "use_compile": False, "sample_batch_size": ROWS}
        changes |= {"actor_hidden_dim": ACTOR, "critic_hidden_dim": CRITIC, "buffer_max_length": self.steps}
        changes |= {"learning_rate_warmup_step": 0, "learning_rate_decay_step": self.steps - STARTS + 1}
        agent = make_agent(self.checkout, "cpu", obs_dim, action_dim, buffer_min_length=STARTS, **changes)
        self.places: dict[str, Any] = {"temperature.log_alpha": Same(agent._temperature.network.log_temp, ())}
        for name in ("actor", "critics", "target_critics"):
            network = getattr(agent, f"_{name.removesuffix('s')}").network
            self.places |= flash_places(f"model.{name}.net", network, single=name == "actor")
        for name, place in self.places.items():
            place.write(self.learner.state_dict()["networks"][name])
        norm, sample = agent.reward_normalizer, agent._replay_buffer.sample
        agent._replay_buffer.sample = lambda: sample(self.drawn["index"])
        norm.G_rms.epsilon, add = 0.0, norm.update_reward_stats

        def add_before_reset(reward: Tensor, terminated: Tensor, truncated: Tensor) -> None:
            add(reward, terminated & False, truncated & False)
            norm.G_r = norm.G_r * ~(terminated | truncated)

        norm.update_reward_stats = add_before_reset
        return agent

    def _answer(self, action: Any) -> Any:
        """A step of the agent's environment: that of our run, with our action."""
        self._note("action", action, self.row.actions[0])
        action[:], self.obs = self.row.actions[0], self.collector.obs[0].copy()
        ended = bool(self.collector.envs.lengths[0] == 0)  # never by termination
        return self.row.next_obs[0].numpy(), float(self.row.rewards[0]), False, ended, {}

    def _note(self, kind: str, theirs: Any, ours: Any) -> None:
        a, b = (torch.as_tensor(value, dtype=torch.double) for value in (theirs, ours))
        far = (a - b).abs().max() / b.abs().max().clamp(min=1e-2)
        self.largest[kind] = float(np.maximum(self.largest[kind], far))  # NaN stays

    def on_step(self, session: Any) -> None:
        buffer, learner, draws = self.collector.buffer, self.learner, []
        self.row = buffer.layout.unpack(buffer.rows[buffer.added - 1 : buffer.added])
        if learner.updates > self.updates:
            rates = [part.optimizer.param_groups[0]["lr"] for part in (self.agent._critic, self.agent._actor)]
            self._note("learning rate", rates, [float(one.learning_rate) for one in learner.optimizers.values()])
            following, here = self.drawn["noise"]
            draws = [*[torch.cat([here, here])] * (self.updates % 2 == 0), following]  # at s' for nothing
        self.updates = learner.updates
        fresh, uniform = (self.drawn.get(name, torch.empty(1)) for name in ("fresh", "uniform"))
        normal = patch.object(torch, "randn_like", lambda like: fresh.to(like))
        with widened(), normal_draws(*draws), normal, patch.object(torch, "rand", lambda *_, **__: uniform[0]):
            next(self.loop)
            scale = self.agent.reward_normalizer.normalize_rewards(torch.ones(1))
        self._note("scale of rewards", scale, learner.reward_scale.scale[None])
        for name, place in self.places.items():
            kind = "statistics" if name.endswith((".mean", ".variance")) else "parameters"
            self._note(kind, place.read(Tensor.detach), learner.state_dict()["networks"][name])


def differences(checkout: Path, steps: int, **changes: Any) -> dict[str, float]:
    """The largest difference of each kind during a run of ours with these `changes`."""
    settings = {"hidden_sizes": [ACTOR], "critic_hidden_sizes": [CRITIC], "batch_size": ROWS} | changes
    settings |= {"learning_starts": STARTS, "buffer_capacity": steps}
    with tempfile.TemporaryDirectory() as folder, float64():
        fields: dict[str, Any] = {"output_dir": Path(folder), "total_timesteps": steps, "device": "cpu"}
        fields |= {"algo": "flash_sac", "env_id": "HalfCheetah-v5", "seed": 0, "eval_episodes": 0}
        agent, config = AuthorsAgent(checkout, steps), TrainConfig(algo_kwargs=settings, **fields)
        get_algorithm_spec("flash_sac").train(config, callbacks=[agent], options=RunOptions(quiet=True))
    return dict(agent.largest)


def main() -> None:
    torch.set_num_threads(1)  # the networks are too small for several threads
    checkout, steps = Path(sys.argv[1]), int((sys.argv[2:] or ["2300"])[0])
    found = differences(checkout, steps)
    print(f"{steps:,} steps: " + ", ".join(f"{kind} {far:.0e}" for kind, far in found.items()))
    wrong = {name: differences(checkout, STARTS + 50, **{name: value}) for name, value in MISTAKES.items()}
    missed = [name for name, far in wrong.items() if max(far.values()) <= BOUND]
    print(f"not detected: {', '.join(missed) or 'none'} of {', '.join(MISTAKES)}")
    sys.exit(bool(missed) or not all(far <= BOUND for far in found.values()))


if __name__ == "__main__":
    main()
