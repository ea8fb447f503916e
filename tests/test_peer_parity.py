"""SAC, TD3 and TQC form the same losses as Stable-Baselines3 from the same weights, batch and noise.

Their learning rate is 0, so that the order in which they step does not matter, and the 1e-6 they add inside the
logarithm of the squashed density is taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms import SAC, TD3, TQC
from rl_training.models import MLPSACModel, MLPTD3Model, MLPTQCModel
from rl_training.models.mlp import MLP, EnsembleMLP
from tests.helpers import ACTIONS, BATCH, OBS, random_batch, same_noise

sb3 = pytest.importorskip("stable_baselines3")
sb3_contrib = pytest.importorskip("sb3_contrib")

SEED = 21
SIZES = [16, 12]


class Still(gym.Env[Any, Any]):
    """Spaces and nothing else: the peers want an environment to be built."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)


def peer(algorithm: Callable[..., Any], **options: Any) -> Any:
    """Their agent, with target networks of their own and our batch in place of its replay buffer."""
    policy = {"net_arch": SIZES} | options.pop("policy_kwargs", {})
    agent = algorithm(
        "MlpPolicy", Still(), learning_rate=0.0, device="cpu", buffer_size=1, policy_kwargs=policy, **options
    )
    for name in ("critic_target", "actor_target"):
        for parameter in getattr(agent, name).parameters() if hasattr(agent, name) else ():
            parameter.data += 0.1 * torch.randn_like(parameter)
    batch = random_batch()
    columns = {
        "observations": batch.obs,
        "actions": batch.actions,
        "next_observations": batch.next_obs,
        "dones": batch.dones[:, None],
        "rewards": batch.rewards[:, None],
    }
    samples = sb3.common.type_aliases.ReplayBufferSamples(**columns)
    agent.replay_buffer.sample = lambda *_args, **_kwargs: samples
    agent.set_logger(sb3.common.logger.Logger(None, []))
    return agent


def their_losses(agent: Any) -> dict[str, float]:
    agent.train(gradient_steps=1, batch_size=BATCH)
    logged = agent.logger.name_to_value
    names = ("critic_loss", "actor_loss", "ent_coef_loss", "ent_coef")
    return {name: float(logged[f"train/{name}"]) for name in names if f"train/{name}" in logged}


def use_noise(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their Gaussian takes our noise: first for the actions in this state, then for those in the next."""
    ours = next(same_noise(SEED, 2, BATCH, ACTIONS))
    draws: Iterator[Tensor] = iter([ours[1], ours[0]])
    monkeypatch.setattr(
        torch.distributions.Normal, "rsample", lambda normal: normal.mean + normal.stddev * next(draws)
    )
    agent.actor.action_dist.epsilon = 0.0


def linears(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def copy_into(ours: EnsembleMLP, theirs: list[list[nn.Linear]]) -> None:
    """Member by member; our matrices are `[in, out]`, theirs `[out, in]`."""
    with torch.no_grad():
        for layer, *parts in zip((*ours.hidden, ours.head), *theirs):
            layer.weight.copy_(torch.stack([part.weight.T for part in parts]))
            layer.bias.copy_(torch.stack([part.bias[None] for part in parts]))


def copy_gaussian_actor(ours: MLP, theirs: Any) -> None:
    """Two heads there, one here: mean first, then the logarithm of the deviation."""
    head = nn.Linear(theirs.mu.in_features, 2 * ACTIONS)
    head.weight.data = torch.cat([theirs.mu.weight, theirs.log_std.weight]).detach()
    head.bias.data = torch.cat([theirs.mu.bias, theirs.log_std.bias]).detach()
    copy_into(ours, [[*linears(theirs.latent_pi), head]])


def copy_critics(model: Any, agent: Any) -> None:
    for ours, theirs in ((model.critics, agent.critic), (model.target_critics, agent.critic_target)):
        copy_into(ours.net, [linears(network) for network in theirs.q_networks])


def our_losses(agent: Any) -> dict[str, float]:
    batch = random_batch()
    agent.seed(SEED)
    found: dict[str, float] = {}
    if hasattr(agent, "temperature"):
        noise = next(same_noise(SEED, 2, BATCH, ACTIONS))
        logprobs = agent.model.actor.sample_with_logprob(batch.obs, noise[1]).logprobs
        found["ent_coef_loss"] = agent.temperature.loss(logprobs).item()
    metrics = {name: float(v) for name, v in agent.update(batch._asdict(), global_step=0).metrics.items()}
    found |= {name: metrics[name] for name in ("critic_loss", "actor_loss")}
    if "alpha" in metrics:
        found["ent_coef"] = metrics["alpha"]
    return found


def test_sac(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = peer(sb3.SAC, ent_coef="auto_0.4", gamma=0.9)
    model = MLPSACModel(OBS, ACTIONS, SIZES)
    copy_gaussian_actor(model.actor.net, theirs.actor)
    copy_critics(model, theirs)
    ours = SAC(model=model, alpha="auto", initial_alpha=0.4, gamma=0.9)
    use_noise(theirs, monkeypatch)
    expected = their_losses(theirs)
    assert set(expected) == {"critic_loss", "actor_loss", "ent_coef_loss", "ent_coef"}
    assert our_losses(ours) == pytest.approx(expected, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("drop", [0, 2])
def test_tqc(drop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = peer(
        sb3_contrib.TQC,
        ent_coef="auto_0.4",
        gamma=0.9,
        top_quantiles_to_drop_per_net=drop,
        policy_kwargs={"n_critics": 3, "n_quantiles": 7},
    )
    model = MLPTQCModel(OBS, ACTIONS, SIZES, 3, 7)
    copy_gaussian_actor(model.actor.net, theirs.actor)
    copy_critics(model, theirs)
    ours = TQC(model=model, alpha="auto", initial_alpha=0.4, gamma=0.9, top_quantiles_to_drop_per_net=drop)
    use_noise(theirs, monkeypatch)
    expected = their_losses(theirs)
    assert set(expected) == {"critic_loss", "actor_loss", "ent_coef_loss", "ent_coef"}
    assert our_losses(ours) == pytest.approx(expected, abs=1e-5, rel=1e-5)


def test_td3(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"gamma": 0.9, "policy_delay": 1, "target_policy_noise": 0.6, "target_noise_clip": 0.4}
    theirs = peer(sb3.TD3, **settings)
    model = MLPTD3Model(OBS, ACTIONS, SIZES)
    copy_into(model.actor.net, [linears(theirs.actor.mu)])
    copy_into(model.target_actor.net, [linears(theirs.actor_target.mu)])
    copy_critics(model, theirs)
    ours = TD3(model=model, **settings)
    noise = next(same_noise(SEED, BATCH, ACTIONS))
    monkeypatch.setattr(torch.Tensor, "normal_", lambda _tensor, _mean, std: std * noise)
    expected = their_losses(theirs)
    assert set(expected) == {"critic_loss", "actor_loss"}
    assert our_losses(ours) == pytest.approx(expected, abs=1e-5, rel=1e-5)
