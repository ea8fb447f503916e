"""Reference implementations in torch, imported from a given checkout, as `Peer`s.

REDQ is the authors' code (github.com/watchernyu/REDQ). BC, EDAC, IQL, CQL, AWAC and TD3+BC are CORL's, one file
each (github.com/tinkoff-ai/CORL). No reference code is stored here. Every agent is built from our learner's
configuration. Modules that a reference imports but does not need for an update are replaced by stand-ins.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from benchmarks.parity.lockstep import (
    ACTIONS,
    LEARNING_RATE,
    OBS,
    UPDATES,
    Held,
    Losses,
    Noise,
    Peer,
    Place,
    Same,
    Tensors,
    Trace,
    linears,
    normal_draws,
    places,
    widened,
)
from benchmarks.peers.checkouts import load_corl

# Hidden units, if the reference can change them; those of CORL's CQL and TD3+BC are fixed.
HIDDEN, CORL_HIDDEN = 32, 256


Build = Callable[[ModuleType, Any], Peer]


def play_corl(
    checkout: Path,
    file: str,
    build: Build,
    config: Any,
    networks: Tensors,
    batches: Sequence[Any],
    noises: Sequence[Noise],
) -> Trace:
    """Run one of CORL's files; `build` makes its agent from the module and our configuration."""
    module = load_corl(checkout, file)
    with widened():
        peer = build(module, config)
        vars(module)["soft_update"] = peer.held.later(module.soft_update)
        peer.take_over(networks)
        return peer.play(batches, noises)


def adam(*modules: nn.Module, learning_rate: float = LEARNING_RATE) -> torch.optim.Adam:
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=learning_rate)


def columns(batch: Any) -> list[Tensor]:
    """A batch in CORL's layout, with rewards and terminations as columns."""
    return [batch.obs, batch.actions, batch.rewards[:, None], batch.next_obs, batch.dones[:, None]]


def twins(critics: Sequence[nn.Module], targets: Sequence[nn.Module]) -> dict[str, Place]:
    """Places in separate critics and their targets."""
    found = places("model.critics.net", *map(linears, critics))
    return found | places("model.target_critics.net", *map(linears, targets))


def bc(module: ModuleType, _: Any) -> Peer:
    actor = module.Actor(OBS, ACTIONS, 1.0)
    agent = module.BC(1.0, actor, adam(actor))

    def update(batch: Any, _: Noise) -> Losses:
        metrics: Losses = agent.train(columns(batch))
        return metrics

    peer = Peer(places("model.actor.net", linears(actor)), update)
    peer.held.hold(agent.actor_optimizer)
    return peer


def edac(module: ModuleType, config: Any) -> Peer:
    """Without the 1e-6 in its log-density; temperature and actor use the same draw."""
    actor = module.Actor(OBS, ACTIONS, HIDDEN)
    critic = module.VectorizedCritic(OBS, ACTIONS, HIDDEN, config.num_critics)
    agent = module.EDAC(
        actor,
        adam(actor),
        critic,
        adam(critic),
        gamma=config.gamma,
        tau=config.tau,
        eta=config.eta,
        alpha_learning_rate=LEARNING_RATE,
    )
    log = torch.log

    def update(batch: Any, noise: Noise) -> Losses:
        next_noise, here = noise[0]
        with normal_draws(here, here, next_noise), patch.object(torch, "log", lambda x: log(x - 1e-6)):
            metrics = agent.update(columns(batch))
        return {name: metrics[name] for name in ("critic_loss", "actor_loss", "alpha")}

    found = places("model.actor.net", [*linears(actor.trunk), (actor.mu, actor.log_sigma)])
    found["temperature.log_alpha"] = Same(agent.log_alpha, ())
    for name, ensemble in {"critics": agent.critic, "target_critics": agent.target_critic}.items():
        *hidden, head = ensemble.critic[::2]  # its layers store an ensemble as ours do
        for place, layer in ({f"hidden.{i}": layer for i, layer in enumerate(hidden)} | {"head": head}).items():
            found[f"model.{name}.net.{place}.weight"] = Same(layer.weight)
            found[f"model.{name}.net.{place}.bias"] = Same(layer.bias)
    peer = Peer(found, update)
    peer.held.hold(agent.alpha_optimizer, agent.actor_optimizer, agent.critic_optimizer)
    return peer


def iql(module: ModuleType, config: Any) -> Peer:
    """With a constant learning rate. Its critic loss is the mean over both critics, ours the sum, so its gradients
    are doubled."""
    vars(module)["EXP_ADV_MAX"] = config.max_weight
    sizes = {"hidden_dim": HIDDEN, "n_hidden": 2}
    critics = module.TwinQ(OBS, ACTIONS, **sizes)
    value = module.ValueFunction(OBS, **sizes)
    actor = module.GaussianPolicy(OBS, ACTIONS, 1.0, **sizes)
    agent = module.ImplicitQLearning(
        1.0,
        actor,
        adam(actor),
        critics,
        adam(critics),
        value,
        adam(value),
        iql_tau=config.expectile,
        beta=config.beta,
        discount=config.gamma,
        tau=config.tau,
    )
    agent.actor_lr_schedule = MagicMock()

    def update(batch: Any, _: Noise) -> Losses:
        metrics = agent.train(columns(batch))
        return {
            "critic_loss": 2.0 * metrics["q_loss"],
            "value_loss": metrics["value_loss"],
            "actor_loss": metrics["actor_loss"],
        }

    peer = Peer(
        places("model.actor.net", linears(actor))
        | {"model.actor.log_std": Same(actor.log_std)}
        | places("model.value.net", linears(value))
        | twins([critics.q1, critics.q2], [agent.q_target.q1, agent.q_target.q2]),
        update,
    )
    peer.held.hold(agent.v_optimizer, agent.actor_optimizer)
    peer.held.hold(agent.q_optimizer, factor=2.0)
    return peer


def cql(module: ModuleType, config: Any) -> Peer:
    """With the learned scale and shift of log std fixed at 1 and 0, and without a cloning phase.

    Its threshold bounds the gap itself, ours the gap times `cql_alpha`; its multiplier starts at our value.
    """
    critics = [module.FullyConnectedQFunction(OBS, ACTIONS, n_hidden_layers=3) for _ in range(2)]
    actor = module.TanhGaussianPolicy(OBS, ACTIONS, 1.0, log_std_multiplier=1.0, log_std_offset=0.0)
    lagrange = config.lagrange_threshold is not None
    agent = module.ContinuousCQL(
        critics[0],
        adam(critics[0]),
        critics[1],
        adam(critics[1]),
        actor,
        adam(actor.base_network, learning_rate=config.actor_learning_rate),
        target_entropy=config.target_entropy,
        discount=config.gamma,
        backup_entropy=config.backup_entropy,
        policy_lr=config.actor_learning_rate,
        qf_lr=LEARNING_RATE,
        soft_target_update_rate=config.tau,
        bc_steps=0,
        cql_n_actions=config.n_actions,
        cql_lagrange=lagrange,
        cql_target_action_gap=config.lagrange_threshold / config.cql_alpha if lagrange else 0.0,
        cql_alpha=config.cql_alpha,
    )

    def update(batch: Any, noise: Noise) -> Losses:
        normal, uniform = noise  # [1 + n, 2, B, A], [n, B, A]
        here, after = normal.unbind(1)
        draws = (here[0], after[0], here[1:].transpose(0, 1), after[1:].transpose(0, 1))
        with (
            normal_draws(*draws),
            patch.object(Tensor, "uniform_", lambda *_: uniform.transpose(0, 1)),
        ):
            metrics = agent.train(columns(batch))
        parts = ("qf1_loss", "qf2_loss", "cql_min_qf1_loss", "cql_min_qf2_loss")
        return {
            "critic_loss": sum(metrics[part] for part in parts),
            "actor_loss": metrics["policy_loss"],
            "alpha": metrics["alpha"],
        }

    found = places("model.actor.net", linears(actor.base_network))
    found |= twins(critics, [agent.target_critic_1, agent.target_critic_2])
    found["temperature.log_alpha"] = Same(agent.log_alpha.constant)
    optimizers = [agent.alpha_optimizer, agent.actor_optimizer, agent.critic_1_optimizer, agent.critic_2_optimizer]
    if lagrange:
        found["multiplier.log_value"] = Same(agent.log_alpha_prime.constant)
        optimizers.append(agent.alpha_prime_optimizer)
    peer = Peer(found, update)
    peer.held.hold(*optimizers)
    return peer


class TanhGaussian(nn.Module):
    """Our policy distribution, written with torch's distributions, with the interface of CORL's actor."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(OBS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN)]
        layers = [layer for a, b in sizes for layer in (nn.Linear(a, b), nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Linear(HIDDEN, 2 * ACTIONS))

    def _distribution(self, state: Tensor) -> TransformedDistribution:
        mean, log_std = self.net(state).chunk(2, dim=-1)
        return TransformedDistribution(Normal(mean, log_std.clamp(-5.0, 2.0).exp()), TanhTransform())

    def forward(self, state: Tensor) -> tuple[Tensor, None]:
        return self._distribution(state).rsample(), None

    def log_prob(self, state: Tensor, action: Tensor) -> Tensor:
        return self._distribution(state).log_prob(action).sum(-1, keepdim=True)


def awac(module: ModuleType, config: Any) -> Peer:
    """With our policy instead of CORL's, a Gaussian with a state-independent std and an unsquashed mean."""
    actor = TanhGaussian()
    critics = [module.Critic(OBS, ACTIONS, HIDDEN) for _ in range(2)]
    agent = module.AdvantageWeightedActorCritic(
        actor,
        adam(actor),
        critics[0],
        adam(critics[0]),
        critics[1],
        adam(critics[1]),
        gamma=config.gamma,
        tau=config.tau,
        awac_lambda=config.awac_lambda,
        exp_adv_max=config.max_advantage_weight,
    )

    def update(batch: Any, noise: Noise) -> Losses:
        with normal_draws(*noise[0]):
            metrics: Losses = agent.update(columns(batch))
        return metrics

    found = places("model.actor.net", linears(actor)) | twins(
        critics, [agent._target_critic_1, agent._target_critic_2]
    )
    peer = Peer(found, update)
    peer.held.hold(agent._critic_1_optimizer, agent._critic_2_optimizer, agent._actor_optimizer)
    return peer


def td3_bc(module: ModuleType, config: Any) -> Peer:
    actor = module.Actor(OBS, ACTIONS, 1.0)
    critics = [module.Critic(OBS, ACTIONS) for _ in range(2)]
    agent = module.TD3_BC(
        1.0,
        actor,
        adam(actor),
        critics[0],
        adam(critics[0]),
        critics[1],
        adam(critics[1]),
        discount=config.gamma,
        tau=config.tau,
        policy_noise=config.target_policy_noise,
        noise_clip=config.target_noise_clip,
        policy_freq=config.policy_delay,
        alpha=config.bc_alpha,
    )

    def update(batch: Any, noise: Noise) -> Losses:
        with patch.object(torch, "randn_like", lambda _: noise[0]):
            metrics: Losses = agent.train(columns(batch))
        return metrics

    found = places("model.actor.net", linears(actor)) | places(
        "model.target_actor.net", linears(agent.actor_target)
    )
    peer = Peer(found | twins(critics, [agent.critic_1_target, agent.critic_2_target]), update)
    peer.held.hold(agent.critic_1_optimizer, agent.critic_2_optimizer, agent.actor_optimizer)
    return peer


def redq(checkout: Path, config: Any) -> tuple[Any, Peer]:
    """The authors' agent with a learned alpha, configured to make 20 updates in the next call of `train`."""
    with patch.object(sys, "path", [str(checkout), *sys.path]):
        module = importlib.import_module("redq.algos.redq_sac")
    agent = module.REDQSACAgent(
        "",
        OBS,
        ACTIONS,
        1.0,
        torch.device("cpu"),
        hidden_sizes=(HIDDEN, HIDDEN),
        replay_size=1,
        lr=LEARNING_RATE,
        gamma=config.gamma,
        polyak=1.0 - config.tau,
        alpha=config.initial_alpha,
        target_entropy="auto",
        start_steps=0,
        utd_ratio=UPDATES,
        num_Q=config.num_critics,
        num_min=config.subset_size,
        policy_update_delay=config.policy_delay,
    )
    agent.replay_buffer.size = 1  # more than `start_steps`
    policy = agent.policy_net
    found = places("model.actor.net", [*policy.hidden_layers, (policy.last_fc_layer, policy.last_fc_log_std)])
    found |= twins(agent.q_net_list, agent.q_target_net_list)
    found["temperature.log_alpha"] = Same(agent.log_alpha, ())
    peer = Peer(found, lambda *_: {}, Held(wait=False))  # it has the same order of an update as ours
    peer.held.hold(agent.alpha_optim, agent.policy_optimizer, *agent.q_optimizer_list)
    return agent, peer


def play_redq(
    checkout: Path, config: Any, networks: Tensors, batches: Sequence[Any], noises: Sequence[Noise]
) -> Trace:
    """All updates are one call of `train`; an update ends when the next batch is requested.

    Its losses are the arguments of `backward`. The 1e-6 in its log-density is removed.
    """
    agent, peer = redq(checkout, config)
    peer.take_over(networks)
    trace, formed, left = Trace(), list[float](), iter(batches)
    subsets = iter([subset.numpy() for _, subset in noises])
    draws: list[Tensor] = []
    for i, (normal, _) in enumerate(noises, start=1):
        draws += normal if i % config.policy_delay == 0 else normal[:1]
    backward: Callable[[Tensor], None] = Tensor.backward

    def form(loss: Tensor) -> None:
        formed.append(loss.item())
        backward(loss)

    def end_update() -> None:
        trace.losses.append(dict(zip(("critic_loss", "actor_loss"), formed)))
        trace.gradients.append(peer.gradients())
        formed.clear()

    def sample(_: int) -> tuple[Tensor, ...]:
        if formed:
            end_update()
        batch = next(left)
        return batch.obs, batch.next_obs, batch.actions, batch.rewards[:, None], batch.dones[:, None]

    agent.sample_data = sample
    with (
        normal_draws(*draws),
        patch("redq.algos.core.ACTION_BOUND_EPSILON", 0.0),
        patch("numpy.random.choice", lambda *_, **__: next(subsets)),
        patch.object(Tensor, "backward", form),
    ):
        agent.train(MagicMock())
    end_update()
    trace.parameters = peer.parameters()
    return trace
