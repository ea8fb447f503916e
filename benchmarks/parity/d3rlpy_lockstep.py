"""d3rlpy's CRR, AWAC, DiscreteBC and DiscreteCQL in lockstep with ours, in its own Python environment.

Run by `benchmarks.parity`:

    python -m benchmarks.parity.d3rlpy_lockstep ALGO SETTINGS GIVEN ANSWER

SETTINGS are fields of d3rlpy's configuration as JSON; GIVEN and ANSWER are files of arrays
(`benchmarks.parity.lockstep`). Versions are printed as JSON. In d3rlpy, the policy of CRR and AWAC is a Gaussian
around a squashed mean, except that the target of AWAC's critics samples from a squashed Gaussian, as SAC does. Here
the policy is the same everywhere, selected by `policy_distribution` in SETTINGS, with a log std in [-5, 2] from a
second head. d3rlpy's DiscreteCQL copies its target network; here it is updated with `tau`, also in SETTINGS.
"""

import importlib
import json
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.models.torch import build_gaussian_distribution, build_squashed_gaussian_distribution
from d3rlpy.torch_utility import TorchMiniBatch, soft_sync

from benchmarks.parity.lockstep import (
    ACTIONS,
    BATCH,
    CHOICES,
    LEARNING_RATE,
    OBS,
    UPDATES,
    Losses,
    Noise,
    Peer,
    Place,
    float64,
    linears,
    normal_draws,
    places,
    save_trace,
    widened,
)

HIDDEN = [32, 32]
Batch = namedtuple("Batch", ("obs", "actions", "rewards", "next_obs", "dones"))


def build(algo: str, settings: dict[str, Any]) -> Any:
    """d3rlpy's implementation object, with the same policy distribution in all its parts."""
    distributions = {"tanh": build_squashed_gaussian_distribution, "gaussian": build_gaussian_distribution}
    distribution = distributions[settings.pop("policy_distribution")]
    package = "d3rlpy.algos.qlearning"
    module: Any = importlib.import_module(f"{package}.{algo.lower()}")
    create = module.create_normal_policy

    def create_policy(*shape: Any, device: str, enable_ddp: bool, **_: Any) -> Any:
        return create(*shape, device=device, enable_ddp=enable_ddp, min_logstd=-5.0, max_logstd=2.0)

    module.create_normal_policy = create_policy
    arithmetic, soft = (importlib.import_module(f"{package}.torch.{name}_impl") for name in (algo.lower(), "sac"))
    vars(arithmetic)["build_gaussian_distribution"] = distribution
    vars(soft)["build_squashed_gaussian_distribution"] = distribution
    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=HIDDEN)
    config = getattr(d3rlpy.algos, f"{algo}Config")(
        actor_learning_rate=LEARNING_RATE,
        critic_learning_rate=LEARNING_RATE,
        actor_encoder_factory=encoder,
        critic_encoder_factory=encoder,
        n_critics=2,
        **settings,
    )
    agent = config.create()
    agent.create_impl((OBS,), ACTIONS)
    return agent.impl


def build_discrete(algo: str, settings: dict[str, Any]) -> Any:
    """d3rlpy's implementation object for discrete actions, with Polyak-averaged targets."""
    tau = settings.pop("tau", None)
    if tau is not None:
        module: Any = importlib.import_module("d3rlpy.algos.qlearning.torch.dqn_impl")
        module.hard_sync = lambda target, source: soft_sync(target, source, tau)
        settings["target_update_interval"] = 1
    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=HIDDEN)
    config = getattr(d3rlpy.algos, f"{algo}Config")
    agent = config(learning_rate=LEARNING_RATE, encoder_factory=encoder, **settings).create()
    agent.create_impl((OBS,), CHOICES)
    return agent.impl


def mini_batch(batch: Batch) -> TorchMiniBatch:
    actions = batch.actions if batch.actions.dim() == 2 else batch.actions[:, None]
    return TorchMiniBatch(
        observations=batch.obs,
        actions=actions,
        rewards=batch.rewards[:, None],
        next_observations=batch.next_obs,
        next_actions=actions,
        returns_to_go=batch.rewards[:, None],
        terminals=batch.dones[:, None],
        intervals=torch.ones(BATCH, 1),
        device="cpu",
    )


def as_discrete_peer(impl: Any) -> Peer:
    modules = impl.modules
    if hasattr(modules, "imitator"):
        found, loss = places("model.actor.net", linears(modules.imitator)), "actor_loss"
    else:
        found, loss = places("model.actor.net", linears(modules.q_funcs[0])), "critic_loss"
        found |= places("model.target.net", linears(modules.targ_q_funcs[0]))

    def update(batch: Batch, _: Noise) -> Losses:
        metrics = impl.update(mini_batch(batch), 0)
        names = {"loss": loss, "td_loss": "td_loss", "conservative_loss": "conservative_gap"}
        return {ours: metrics[theirs] for theirs, ours in names.items() if theirs in metrics}

    peer = Peer(found, update)
    peer.held.hold(modules.optim.optim)
    return peer


def policy_places(name: str, policy: Any) -> dict[str, Place]:
    return places(name, [*linears(policy._encoder), (policy._mu, policy._logstd)])


def as_peer(impl: Any, scale: float) -> Peer:
    """The peer; our actor loss is `scale` times d3rlpy's."""
    modules = impl.modules
    found = policy_places("model.actor.net", modules.policy)
    for name, ensemble in {"critics": modules.q_funcs, "target_critics": modules.targ_q_funcs}.items():
        found |= places(f"model.{name}.net", *map(linears, ensemble))
    if hasattr(modules, "targ_policy"):
        found |= policy_places("target_actor.net", modules.targ_policy)

    def update(batch: Batch, noise: Noise) -> Losses:
        next_noise, *others = noise[0]
        with normal_draws(next_noise, torch.stack(others)):
            metrics = impl.update(mini_batch(batch), 0)
        return {"critic_loss": metrics["critic_loss"], "actor_loss": scale * metrics["actor_loss"]}

    peer = Peer(found, update)
    peer.held.hold(modules.critic_optim.optim)
    peer.held.hold(modules.actor_optim.optim, factor=scale)
    return peer


def peer_of(algo: str, settings: dict[str, Any]) -> Peer:
    """The algorithm with the places of our networks; its targets are updated after all losses are computed."""
    if algo.startswith("Discrete"):
        peer, movers = as_discrete_peer(build_discrete(algo, settings)), {"dqn_impl": "hard_sync"}
    else:
        impl = build(algo, settings)
        if algo == "AWAC":
            impl.modules.log_temp._parameter.data.fill_(-torch.inf)  # would add the entropy to the target
        peer = as_peer(impl, 1.0 / BATCH if algo == "AWAC" else 1.0)
        movers = {"crr_impl": "soft_sync", "ddpg_impl": "soft_sync"}
    for name, mover in movers.items():
        module: Any = importlib.import_module(f"d3rlpy.algos.qlearning.torch.{name}")
        setattr(module, mover, peer.held.later(getattr(module, mover)))
    return peer


def main(algo: str, settings: str, given: str, answer: str) -> None:
    stdout, sys.stdout = sys.stdout, sys.stderr  # keep output of the library apart from the answer
    with float64(), widened():
        peer = peer_of(algo, json.loads(settings))
        with np.load(given) as arrays:
            tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        peer.take_over({n.partition("/")[2]: t for n, t in tensors.items() if n.startswith("networks/")})
        batches = [Batch(*(tensors[f"batches/{i}/{name}"] for name in Batch._fields)) for i in range(UPDATES)]
        noise = [(tensors[f"noise/{i}/0"],) if f"noise/{i}/0" in tensors else () for i in range(UPDATES)]
        save_trace(Path(answer), peer.play(batches, noise))
    print(json.dumps({"d3rlpy": d3rlpy.__version__, "its torch": torch.__version__}), file=stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
