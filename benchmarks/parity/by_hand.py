"""Second implementations of our updates, as `Peer`s: references "by hand" for updates that no library has.

Each is written from the formulas of the paper with torch's own layers, distributions and optimisers, and shares no
code with the learner. Networks are separate `nn.Sequential`s, ensembles are not batched, and log-densities are
written out or taken from `torch.distributions`. Every function builds networks, losses and optimisers from the
configuration of our learner. `benchmarks.parity` and `tests/test_parity_by_hand.py` compare both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from benchmarks.parity.lockstep import (
    ACTIONS,
    BATCH,
    CHOICES,
    LEARNING_RATE,
    OBS,
    Losses,
    Noise,
    Peer,
    Place,
    Same,
    Tensors,
    Trace,
    linears,
    places,
)

HIDDEN = 32
ROWS = range(BATCH)
Build = Callable[[Any], Peer]


def play(build: Build, config: Any, networks: Tensors, batches: Sequence[Any], noises: Sequence[Noise]) -> Trace:
    """Run the updates of the reference that `build` makes, with our weights, batches and noise."""
    peer = build(config)
    peer.take_over(networks)
    return peer.play(batches, noises)


def network(inputs: int, outputs: int, norm: float | None = None) -> nn.Sequential:
    """Two hidden layers with ReLU; `norm` is the epsilon of a LayerNorm before each ReLU."""
    layers: list[nn.Module] = []
    for width in (inputs, HIDDEN):
        layers.append(nn.Linear(width, HIDDEN))
        if norm is not None:
            layers.append(nn.LayerNorm(HIDDEN, eps=norm))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(HIDDEN, outputs))


def network_places(name: str, *members: nn.Sequential) -> dict[str, Place]:
    """Places of our network `name` in these modules, including LayerNorms."""
    found = places(name, *map(linears, members))
    norms = [[layer for layer in member if isinstance(layer, nn.LayerNorm)] for member in members]
    for i, layers in enumerate(zip(*norms)):
        found[f"{name}.norms.{i}.weight"] = Place(*([layer.weight] for layer in layers))
        found[f"{name}.norms.{i}.bias"] = Place(*([layer.bias] for layer in layers))
    return found


def optimizer_of(*modules: nn.Module, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    parameters = [p for module in modules for p in module.parameters()]
    return torch.optim.AdamW(parameters, LEARNING_RATE, weight_decay=weight_decay)


def minimise(losses: Mapping[torch.optim.Optimizer, Tensor]) -> None:
    """Step every optimiser with the gradient of its own loss only."""
    for optimizer, loss in losses.items():
        owned = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter, gradient in zip(owned, torch.autograd.grad(loss, owned, retain_graph=True)):
            parameter.grad = gradient
        optimizer.step()


@torch.no_grad()
def polyak(targets: Sequence[nn.Module], sources: Sequence[nn.Module], tau: float) -> None:
    for target, source in zip(targets, sources, strict=True):
        for old, new in zip(target.parameters(), source.parameters(), strict=True):
            old.copy_((1.0 - tau) * old + tau * new)


def held(found: dict[str, Place], update: Callable[[Any, Noise], Losses], *stepped: torch.optim.Optimizer) -> Peer:
    """The peer, whose optimisers step after all losses of an update have been computed."""
    peer = Peer(found, update)
    peer.held.hold(*stepped)
    return peer


def bellman(batch: Any, value: Tensor, gamma: float) -> Tensor:
    """r + gamma V(s'), without V(s') if the episode terminated."""
    return torch.where(batch.dones == 1.0, batch.rewards, batch.rewards + gamma * value)


def joined(obs: Tensor, actions: Tensor) -> Tensor:
    return torch.cat([obs, actions], dim=1)


# Continuous actions.


def stochastic_bc(config: Any) -> Peer:
    """Maximum likelihood of a squashed Gaussian, or of a Gaussian around a squashed mean."""
    actor = network(OBS, 2 * ACTIONS)
    optimizer = optimizer_of(actor)

    def update(batch: Any, _: Noise) -> Losses:
        mean, log_std = actor(batch.obs).split(ACTIONS, dim=1)
        std = log_std.clip(-5.0, 2.0).exp()
        if config.policy_distribution == "tanh":
            densities = TransformedDistribution(Normal(mean, std), TanhTransform()).log_prob(batch.actions)
        else:
            densities = Normal(mean.tanh(), std).log_prob(batch.actions)
        loss = -densities.sum(1).mean()
        minimise({optimizer: loss})
        return {"actor_loss": loss.item()}

    return held(network_places("model.actor.net", actor), update, optimizer)


def rlpd(config: Any) -> Peer:
    """As in the paper: critics with LayerNorm, a target from a random subset, and the mean of all critics in the
    actor loss."""
    actor, log_alpha = network(OBS, 2 * ACTIONS), nn.Parameter(torch.zeros(()))
    critics, targets = ([network(OBS + ACTIONS, 1, norm=1e-6) for _ in range(config.num_critics)] for _ in range(2))
    critic_steps, actor_steps = optimizer_of(*critics), optimizer_of(actor)
    alpha_steps = optimizer_of(nn.ParameterList([log_alpha]))
    target_entropy, count = -ACTIONS / 2, 0

    def draw(obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(obs).split(ACTIONS, dim=1)
        std = log_std.clip(-20.0, 2.0).exp()
        raw = mean + std * noise
        actions = raw.tanh()
        return actions, (Normal(mean, std).log_prob(raw) - torch.log(1.0 - actions**2)).sum(1)

    def update(batch: Any, noise: Noise) -> Losses:
        nonlocal count
        count += 1
        (next_noise, here), subset = noise
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            actions, densities = draw(batch.next_obs, next_noise)
            pairs = torch.cat([targets[i](joined(batch.next_obs, actions)) for i in subset.tolist()], dim=1)
            y = bellman(batch, pairs.min(dim=1).values - alpha * densities, config.gamma)
        q = torch.cat([critic(joined(batch.obs, batch.actions)) for critic in critics], dim=1)
        losses = {critic_steps: ((q - y[:, None]) ** 2).mean()}
        if acts := count % config.policy_delay == 0:
            actions, densities = draw(batch.obs, here)
            value = torch.cat([critic(joined(batch.obs, actions)) for critic in critics], dim=1).mean(dim=1)
            losses[actor_steps] = (alpha * densities - value).mean()
            losses[alpha_steps] = -log_alpha * (densities.detach().mean() + target_entropy)
        minimise(losses)
        peer.held.later(polyak)(targets, critics, config.tau)
        terms = {"critic_loss": losses[critic_steps].item()}
        return terms | ({"actor_loss": losses[actor_steps].item(), "alpha": alpha.item()} if acts else {})

    found = network_places("model.actor.net", actor) | network_places("model.critics.net", *critics)
    found |= network_places("model.target_critics.net", *targets)
    found["temperature.log_alpha"] = Same(log_alpha)
    peer = held(found, update, critic_steps, actor_steps, alpha_steps)
    return peer


def fqe(config: Any, choices: int = 0) -> Peer:
    """FQE in normalised units, with bounded targets and AdamW; `choices` is the number of discrete actions."""
    online, target = (network(OBS, choices) if choices else network(OBS + ACTIONS, 1) for _ in range(2))
    optimizer = optimizer_of(online, weight_decay=config.weight_decay)
    units = {name: torch.zeros(()) for name in ("offset", "scale", "low", "high")}

    def value(net: nn.Module, obs: Tensor, actions: Tensor) -> Tensor:
        return net(obs)[ROWS, actions] if choices else net(joined(obs, actions))[:, 0]

    def update(batch: Any, _: Noise) -> Losses:
        with torch.no_grad():
            following = value(target, batch.next_obs, batch.next_actions) * units["scale"] + units["offset"]
            y = bellman(batch, following, config.gamma)
            y = torch.minimum(torch.maximum(y, units["low"]), units["high"])
        error = value(online, batch.obs, batch.actions) - (y - units["offset"]) / units["scale"]
        loss = (error**2).mean()
        minimise({optimizer: loss})
        peer.held.later(polyak)([target], [online], config.tau)
        return {"critic_loss": loss.item(), "target_q_mean": y.mean().item()}

    found = network_places("model.critic.net", online) | network_places("model.target_critic.net", target)
    found |= {f"model.{name}": Same(tensor) for name, tensor in units.items()}
    peer = held(found, update, optimizer)
    return peer


# Discrete actions.


def discrete_bc(_: Any) -> Peer:
    """Cross-entropy."""
    actor = network(OBS, CHOICES)
    optimizer = optimizer_of(actor)

    def update(batch: Any, _: Noise) -> Losses:
        loss = F.cross_entropy(actor(batch.obs), batch.actions)
        minimise({optimizer: loss})
        return {"actor_loss": loss.item()}

    return held(network_places("model.actor.net", actor), update, optimizer)


def discrete_cql(config: Any) -> Peer:
    """Double DQN with the Huber loss, and the penalty over all actions."""
    online, target = network(OBS, CHOICES), network(OBS, CHOICES)
    optimizer = optimizer_of(online)

    def update(batch: Any, _: Noise) -> Losses:
        with torch.no_grad():
            value = target(batch.next_obs)[ROWS, online(batch.next_obs).max(dim=1).indices]
            y = bellman(batch, value, config.gamma)
        q = online(batch.obs)
        taken = q[ROWS, batch.actions]
        gap = (q.exp().sum(dim=1).log() - taken).mean()
        loss = F.huber_loss(taken, y) + config.cql_alpha * gap
        minimise({optimizer: loss})
        peer.held.later(polyak)([target], [online], config.tau)
        return {"critic_loss": loss.item(), "conservative_gap": gap.item()}

    found = network_places("model.actor.net", online) | network_places("model.target.net", target)
    peer = held(found, update, optimizer)
    return peer


def discrete_iql(config: Any) -> Peer:
    """An expectile of the smaller target critic, and a weighted cross-entropy."""
    actor, value = network(OBS, CHOICES), network(OBS, 1)
    critics, targets = ([network(OBS, CHOICES) for _ in range(2)] for _ in range(2))
    critic_steps, value_steps, actor_steps = optimizer_of(*critics), optimizer_of(value), optimizer_of(actor)

    def update(batch: Any, _: Noise) -> Losses:
        with torch.no_grad():
            best = torch.minimum(*(target(batch.obs)[ROWS, batch.actions] for target in targets))
            y = bellman(batch, value(batch.next_obs)[:, 0], config.gamma)
            weights = torch.exp(config.beta * (best - value(batch.obs)[:, 0])).clip(max=config.max_weight)
        above = best - value(batch.obs)[:, 0]
        sides = torch.abs(config.expectile - (above < 0).double())
        errors = F.cross_entropy(actor(batch.obs), batch.actions, reduction="none")
        one, other = (F.mse_loss(critic(batch.obs)[ROWS, batch.actions], y) for critic in critics)
        losses = {
            critic_steps: one + other,
            value_steps: (sides * above**2).mean(),
            actor_steps: (weights * errors).mean(),
        }
        minimise(losses)
        peer.held.later(polyak)(targets, critics, config.tau)
        return dict(zip(("critic_loss", "value_loss", "actor_loss"), (loss.item() for loss in losses.values())))

    found = network_places("model.actor.net", actor) | network_places("model.value.net", value)
    found |= network_places("model.critics.net", *critics) | network_places("model.target_critics.net", *targets)
    peer = held(found, update, critic_steps, value_steps, actor_steps)
    return peer
