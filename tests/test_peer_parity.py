"""DQN, DDPG, TD3, SAC and TQC make the same updates as Stable-Baselines3 and sb3-contrib, in float64.

From the same weights, batches and noise: the losses and gradients of 20 updates, and every parameter and target
after them. The choices that our docstrings state are taken out: the peers form all losses before any step
(`benchmarks.parity.lockstep.Held`), add no 1e-6 inside the logarithm of the squashed density and clip no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from benchmarks.parity.lockstep import (
    ACTIONS,
    BATCH,
    CHOICES,
    LEARNING_RATE,
    OBS,
    UPDATES,
    Distance,
    Losses,
    Noise,
    Peer,
    Place,
    Same,
    distance,
    float64,
    linears,
    noises,
    normal_draws,
    places,
    play,
    prepare,
    random_batches,
    widened,
)
from benchmarks.parity.sb3_agents import agent_of, train_on
from rl_training.algorithms import DDPG, DQN, SAC, TD3, TQC, Learner
from rl_training.data.transitions import TransitionBatch
from rl_training.models import MLPDDPGModel, MLPQNetwork, MLPSACModel, MLPTD3Model, MLPTQCModel

sb3 = pytest.importorskip("stable_baselines3")
sb3_contrib = pytest.importorskip("sb3_contrib")

SIZES = [16, 12]
# Measured: rounding leaves 2e-14 at most, a mistake of 1 % in one setting 9e-4 at least.
BOUND, MISTAKE = 1e-11, 1e-4


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with float64():
        yield


def critic_places(agent: Any) -> dict[str, Place]:
    pairs = {"model.critics.net": agent.critic, "model.target_critics.net": agent.critic_target}
    found: dict[str, Place] = {}
    for name, critic in pairs.items():
        found |= places(name, *(linears(network) for network in critic.q_networks))
    return found


def dqn_peer(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Peer:
    agent = agent_of(sb3.DQN, SIZES, max_grad_norm=float("inf"), **settings)

    def update(batch: TransitionBatch, _: Noise) -> Losses:
        losses = train_on(agent, batch)
        agent._on_step()  # counts environment steps, one per update here, and moves the target
        return losses

    pairs = {"model.actor.net": agent.q_net, "model.target.net": agent.q_net_target}
    networks = {key: place for name, net in pairs.items() for key, place in places(name, linears(net)).items()}
    peer = Peer(networks, update)
    peer.held.hold(agent.policy.optimizer)
    monkeypatch.setattr("stable_baselines3.dqn.dqn.polyak_update", peer.held.later(sb3.dqn.dqn.polyak_update))
    return peer


def td3_peer(algorithm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Peer:
    agent = agent_of(algorithm, SIZES, gamma=0.9, tau=0.1, **settings)

    def update(batch: TransitionBatch, noise: Noise) -> Losses:
        with patch.object(Tensor, "normal_", lambda _tensor, _mean, std: std * noise[0]):
            return train_on(agent, batch)

    networks = (
        places("model.actor.net", linears(agent.actor.mu))
        | places("model.target_actor.net", linears(agent.actor_target.mu))
        | critic_places(agent)
    )
    peer = Peer(networks, update)
    peer.held.hold(agent.critic.optimizer, agent.actor.optimizer)
    monkeypatch.setattr("stable_baselines3.td3.td3.polyak_update", peer.held.later(sb3.td3.td3.polyak_update))
    return peer


def soft_peer(algorithm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Peer:
    """SAC's or TQC's, with a learned temperature."""
    agent = agent_of(algorithm, SIZES, gamma=0.9, tau=0.1, **settings)
    agent.actor.action_dist.epsilon = 0.0

    def update(batch: TransitionBatch, noise: Noise) -> Losses:
        next_noise, here = noise[0]
        with normal_draws(here, next_noise):
            return train_on(agent, batch)

    heads = (agent.actor.mu, agent.actor.log_std)  # mean first, then log std
    networks = places("model.actor.net", [*linears(agent.actor.latent_pi), heads]) | critic_places(agent)
    peer = Peer(networks | {"temperature.log_alpha": Same(agent.log_ent_coef, ())}, update)
    peer.held.hold(agent.ent_coef_optimizer, agent.critic.optimizer, agent.actor.optimizer)
    module = f"{algorithm.__module__}.polyak_update"
    monkeypatch.setattr(module, peer.held.later(sb3.common.utils.polyak_update))
    return peer


def tqc_peer(drop: int, monkeypatch: pytest.MonkeyPatch) -> Peer:
    critics = {"n_critics": 3, "n_quantiles": 7}
    return soft_peer(sb3_contrib.TQC, monkeypatch, top_quantiles_to_drop_per_net=drop, policy_kwargs=critics)


RATES = {"gamma": 0.9, "tau": 0.1, "learning_rate": LEARNING_RATE}
NOISE = {"policy_delay": 2, "target_policy_noise": 0.6, "target_noise_clip": 0.4}
SOFT = RATES | {"alpha": "auto", "initial_alpha": 0.4, "target_entropy": -2.0}


def dqn(**changes: Any) -> Learner:
    settings = RATES | {"tau": 0.7, "target_update_interval": 3}
    return DQN(model=MLPQNetwork(OBS, CHOICES, SIZES), **settings | changes)


def ddpg(**changes: Any) -> Learner:
    return DDPG(model=MLPDDPGModel(OBS, ACTIONS, SIZES), **RATES | changes)


def td3(**changes: Any) -> Learner:
    return TD3(model=MLPTD3Model(OBS, ACTIONS, SIZES), **RATES | NOISE | changes)


def sac(**changes: Any) -> Learner:
    return SAC(model=MLPSACModel(OBS, ACTIONS, SIZES), **SOFT | changes)


def tqc(drop: int, **changes: Any) -> Learner:
    model = MLPTQCModel(OBS, ACTIONS, SIZES, 3, 7)
    return TQC(model=model, top_quantiles_to_drop_per_net=drop, **SOFT | changes)


def no_noise(_: torch.Generator) -> Noise:
    return ()


def one_noise(g: torch.Generator) -> Noise:
    return (torch.randn(BATCH, ACTIONS, generator=g),)


def two_noises(g: torch.Generator) -> Noise:
    return (torch.randn(2, BATCH, ACTIONS, generator=g),)


@dataclass(frozen=True)
class Case:
    """Both sides, what an update draws, the losses they share, and settings that must show if they are 1 % off."""

    ours: Callable[..., Learner]
    theirs: Callable[[pytest.MonkeyPatch], Peer]
    noise: Callable[[torch.Generator], Noise]
    losses: tuple[str, ...]
    mistakes: tuple[str, ...] = ("gamma", "tau", "learning_rate")


ACTOR_CRITIC = ("critic_loss", "actor_loss")
SOFT_LOSSES = (*ACTOR_CRITIC, "alpha")
SMOOTHING = ("target_policy_noise", "target_noise_clip")
ENTROPY = ("initial_alpha", "target_entropy")
CASES = {
    "dqn": Case(dqn, partial(dqn_peer, gamma=0.9, tau=0.7, target_update_interval=3), no_noise, ("loss",)),
    "ddpg": Case(ddpg, partial(td3_peer, sb3.DDPG), one_noise, ACTOR_CRITIC),
    "td3": Case(td3, partial(td3_peer, sb3.TD3, **NOISE), one_noise, ACTOR_CRITIC, (*Case.mistakes, *SMOOTHING)),
    "sac": Case(sac, partial(soft_peer, sb3.SAC), two_noises, SOFT_LOSSES, (*Case.mistakes, *ENTROPY)),
    "tqc": Case(partial(tqc, 2), partial(tqc_peer, 2), two_noises, SOFT_LOSSES, (*Case.mistakes, *ENTROPY)),
    "tqc-all-quantiles": Case(partial(tqc, 0), partial(tqc_peer, 0), two_noises, SOFT_LOSSES),
}


def compare(name: str, monkeypatch: pytest.MonkeyPatch, **wrong: float) -> Distance:
    """How far ours, with settings changed by these factors, is from the peer."""
    case = CASES[name]
    batches = random_batches(discrete=name == "dqn")
    torch.manual_seed(0)
    learner = prepare(case.ours())
    with widened():
        peer = case.theirs(monkeypatch)
        peer.take_over(learner.state_dict()["networks"])
        expected = peer.play(batches, noises(case.noise))
    if wrong:
        torch.manual_seed(0)
        changes = {key: factor * getattr(learner.config, key) for key, factor in wrong.items()}
        learner = prepare(case.ours(**changes))
    found = play(learner, batches)
    assert len(expected.losses) == len(found.losses) == UPDATES
    assert set().union(*expected.losses) == set(case.losses)
    return distance(found, expected)


@pytest.mark.parametrize("name", CASES)
def test_same_updates_as_the_peer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(name, monkeypatch).largest < BOUND


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        pytest.param(name, key, marks=[] if key == case.mistakes[-1] else [pytest.mark.slow])
        for name, case in CASES.items()
        for key in case.mistakes
    ],
)
def test_a_mistake_of_one_percent_is_seen(name: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(name, monkeypatch, **{setting: 0.99}).largest > MISTAKE
