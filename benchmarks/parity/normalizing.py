"""References whose networks normalise by batches, as `Peer`s: FlashSAC's authors and sb3-contrib's CrossQ.

Both update actor and critics in the order of ours, so their steps are not delayed. Running statistics are among the
tensors that both sides start from, and that are compared after the last update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.parity import lockstep
from benchmarks.parity.lockstep import (
    ACTIONS,
    OBS,
    Held,
    Layer,
    Losses,
    Noise,
    Peer,
    Place,
    Same,
    Tensors,
    Trace,
    linears,
    normal_draws,
    widened,
)
from benchmarks.parity.sb3_agents import agent_of, train_on
from benchmarks.peers.flashsac import make_agent
from rl_training.models.batch_renorm import EPSILON

# Widths of FlashSAC's actor and critics, and hidden layers of CrossQ's networks.
FLASH_WIDTHS, RENORM_SIZES = (16, 24), (16, 12)
Read = Callable[[Tensor], Tensor]


class Stacked(Same):
    """A tensor that a peer stores for all members: `[N, out, in]` or `[N, out]`."""

    def read(self, of: Read) -> Tensor:
        value = of(self.tensor)
        return value.mT if value.dim() == 3 else value[:, None]

    def write(self, value: Tensor) -> None:
        self.tensor.data.copy_(value.mT if self.tensor.dim() == 3 else value[:, 0])


def flash_places(name: str, network: Any, single: bool) -> dict[str, Place]:
    """Places of our network `name`, which is an ensemble unless it is `single`."""
    blocks, head = network.encoder, network.predictor
    layers = [network.embedder.w, *(layer for block in blocks for layer in (block.w1, block.w2))]
    norms = [network.embedder.norm, *(norm for block in blocks for norm in (block.norm1, block.norm2))]
    names = {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
    found: dict[str, list[Tensor]] = {"norm.weight": [network.post_norm.weight]}
    for i, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
        found[f"linears.{i}.weight"] = [layer.w.weight if single else layer.weight]
        found |= {f"norms.{i}.{ours}": [getattr(norm, theirs)] for ours, theirs in names.items()}
    found["head.weight"] = [head.mean_w.w.weight, head.std_w.w.weight] if single else [head.w.weight]
    found["head.bias"] = [head.mean_bias, head.std_bias] if single else [head.bias]
    return {f"{name}.{key}": Place(pieces) if single else Stacked(pieces[0]) for key, pieces in found.items()}


def flash_agent(checkout: Path, config: Any) -> Any:
    """The authors' agent, not compiled, with a constant learning rate, unscaled rewards and its target entropy."""
    settings = dict.fromkeys((f"learning_rate_{part}" for part in ("init", "peak", "end")), config.learning_rate)
    settings |= dict.fromkeys(("normalize_reward", "use_compile", "use_amp"), False)
    settings |= {f"{name}_hidden_dim": width for name, width in zip(("actor", "critic"), FLASH_WIDTHS)}
    settings |= {"critic_min_v": -config.value_limit, "critic_max_v": config.value_limit}
    settings |= {
        "critic_num_bins": config.num_bins, "critic_target_update_tau": config.tau, "gamma": config.gamma,
        "actor_update_period": config.policy_delay, "temp_initial_value": config.initial_alpha,
        "buffer_max_length": 1,
    }  # fmt: skip
    with patch.object(torch, "compile", lambda function, **_: function):
        return make_agent(checkout, "cpu", OBS, ACTIONS, **settings)


def flash_sac(checkout: Path, config: Any) -> Peer:
    agent = flash_agent(checkout, config)
    parts = [agent._actor, agent._critic, agent._target_critic]

    def update(batch: Any, noise: Noise) -> Losses:
        next_noise, here = noise[0]
        columns = {"observation": batch.obs, "action": batch.actions, "reward": batch.rewards}
        columns |= {"next_observation": batch.next_obs, "terminated": batch.dones}
        agent._replay_buffer = SimpleNamespace(sample=lambda: columns)
        # Its actor also samples at the next observations, and uses these actions for nothing.
        acts = agent._update_step % config.policy_delay == 0
        with normal_draws(*[torch.cat([here, torch.zeros_like(here)])] * acts, next_noise):
            found = agent.update()
        names = {"critic_loss": "critic/loss", "actor_loss": "actor/loss", "alpha": "temperature/value"}
        return {ours: found[theirs] for ours, theirs in names.items() if theirs in found}

    places: dict[str, Place] = {"temperature.log_alpha": Same(agent._temperature.network.log_temp, ())}
    for name, part in zip(("model.actor.net", "model.critics.net", "model.target_critics.net"), parts):
        places |= flash_places(name, part.network, single=part is agent._actor)
    peer = Peer(places, update, Held(wait=False))
    peer.held.hold(*(part.optimizer for part in (agent._actor, agent._temperature, agent._critic)))
    return peer


def play_flash_sac(
    checkout: Path, config: Any, networks: Tensors, batches: Sequence[Any], noises: Sequence[Noise]
) -> Trace:
    with widened():
        peer = flash_sac(checkout, config)
        peer.take_over(networks)
        return peer.play(batches, noises)


class Counter(Place):
    """A scalar of ours that a peer stores for each member."""

    def read(self, of: Read) -> Tensor:
        return of(self.members[0][0])

    def write(self, value: Tensor) -> None:
        for tensor in self.tensors():
            tensor.data.copy_(value)


def norms_of(network: nn.Module) -> list[Any]:
    return [layer for layer in network.modules() if hasattr(layer, "ra_mean")]


def renorm_places(name: str, *members: nn.Module, heads: tuple[nn.Linear, ...] = ()) -> dict[str, Place]:
    """Places of our network `name`; `heads` are those of an actor."""
    layers: list[list[Layer]] = [[*linears(member), *([heads] if heads else [])] for member in members]
    found = lockstep.places(name, *layers)
    names = {"weight": "scale", "bias": "bias", "mean": "ra_mean", "variance": "ra_var"}
    for i, norms in enumerate(zip(*map(norms_of, members), strict=True)):
        for norm in norms:
            norm.steps = norm.steps.double()  # ours are moved away from integers
        found[f"{name}.norms.{i}.batches"] = Counter(*([norm.steps] for norm in norms))
        found |= {f"{name}.norms.{i}.{n}": Place(*([getattr(norm, t)] for norm in norms)) for n, t in names.items()}
    return found


def crossq(config: Any, activation: type[nn.Module]) -> tuple[Any, Peer]:
    """sb3-contrib's agent, without the 1e-6 in its log-density."""
    from sb3_contrib import CrossQ

    settings = {name: getattr(config, name) for name in ("gamma", "policy_delay", "target_entropy")}
    sizes = {"pi": [*RENORM_SIZES], "qf": [*RENORM_SIZES]}
    agent = agent_of(CrossQ, sizes, ent_coef="auto", policy_kwargs={"activation_fn": activation}, **settings)
    actor = agent.actor
    actor.action_dist.epsilon = 0.0

    def update(batch: Any, noise: Noise) -> Losses:
        with normal_draws(*noise[0]):
            found = train_on(agent, batch)
        return found if "actor_loss" in found else {"critic_loss": found["critic_loss"]}

    places = renorm_places("model.actor.net", actor.latent_pi, heads=(actor.mu, actor.log_std))
    places |= renorm_places("model.critics.net", *agent.critic.q_networks)
    peer = Peer(places | {"temperature.log_alpha": Same(agent.log_ent_coef, ())}, update, Held(wait=False))
    peer.held.hold(agent.ent_coef_optimizer, agent.critic.optimizer, actor.optimizer)
    return agent, peer


def play_crossq(
    epsilon: bool,
    config: Any,
    networks: Tensors,
    batches: Sequence[Any],
    noises: Sequence[Noise],
    activation: type[nn.Module] = nn.Tanh,
) -> Trace:
    """With biased variances. If `epsilon`, its variances contain epsilon, also in the corrections r and d."""
    variance, shift = Tensor.var, EPSILON if epsilon else 0.0
    with widened():
        agent, peer = crossq(config, activation)
        peer.take_over(networks)
        for norm in norms_of(agent.policy):
            norm.ra_var += shift
            norm.eps -= shift
        with patch.object(Tensor, "var", lambda x, dim: variance(x, dim, correction=0) + shift):
            trace = peer.play(batches, noises)
    for name in trace.parameters:
        if name.endswith(".variance"):
            trace.parameters[name] -= shift
    return trace
