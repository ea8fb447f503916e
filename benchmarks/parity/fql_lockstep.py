"""The authors' FQL, written in JAX, in lockstep with ours, in its own Python environment; run by
`benchmarks.parity`.

    python -m benchmarks.parity.fql_lockstep CHECKOUT SETTINGS GIVEN ANSWER

SETTINGS are our learner's settings as JSON; GIVEN and ANSWER are files of arrays (`benchmarks.parity.lockstep`).
Versions are printed as JSON. Networks, losses, optimiser and update are the authors'; only the draws are ours.
"""

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from benchmarks.peers.fql import load_agent

BETA1 = 0.9
# Our networks in the authors' tree of parameters.
NETWORKS = {
    "model.critics.net": "modules_critic/value_net",
    "model.target_critics.net": "modules_target_critic/value_net",
    "model.flow": "modules_actor_bc_flow/mlp",
    "model.actor.net": "modules_actor_onestep_flow/mlp",
}
# Our settings and terms, by their names.
SETTINGS = {
    "lr": "learning_rate", "discount": "gamma", "tau": "tau", "alpha": "distill_coef", "q_agg": "q_aggregation",
    "flow_steps": "flow_steps", "normalize_q_loss": "normalize_q_loss",
}  # fmt: skip
TERMS = {
    "critic/critic_loss": "critic_loss",
    "actor/bc_flow_loss": "flow_loss",
    "actor/distill_loss": "distill_loss",
}
Arrays = dict[str, Any]


def address(name: str, depth: int) -> str:
    """Place of our tensor in the authors' tree; `depth` is the number of hidden layers."""
    network = next(ours for ours in NETWORKS if name.startswith(f"{ours}."))
    *layer, kind = name.removeprefix(f"{network}.").split(".")
    normalizes, number = layer[0] == "norms", depth if layer == ["head"] else layer[1]
    leaf = "bias" if kind == "bias" else "scale" if normalizes else "kernel"
    return f"{NETWORKS[network]}/{'LayerNorm' if normalizes else 'Dense'}_{number}/{leaf}"


def make_agent(checkout: str, networks: Arrays, places: dict[str, str], settings: Arrays) -> Any:
    """The authors' agent with our weights and settings."""
    module = load_agent(Path(checkout))
    hidden, actions = networks["model.flow.head.weight"].shape[1:]
    inputs = networks["model.flow.hidden.0.weight"].shape[1]  # observation, action and time
    config = module.get_config() | {theirs: settings[ours] for theirs, ours in SETTINGS.items()}
    config |= {"actor_hidden_dims": (hidden,) * 2, "value_hidden_dims": (hidden,) * 2}
    agent = module.FQLAgent.create(0, jnp.zeros((1, inputs - actions - 1)), jnp.zeros((1, actions)), config)
    state = agent.network
    theirs = flatten_dict(state.params, sep="/")
    ours = {places[name]: array.reshape(theirs[places[name]].shape) for name, array in networks.items()}
    if ours.keys() != theirs.keys():
        raise ValueError(f"no place for {', '.join(sorted(ours.keys() ^ theirs.keys()))}")
    params = unflatten_dict(ours, sep="/")
    return agent.replace(network=type(state).create(state.model_def, params, tx=state.tx))


def update(agent: Any, batch: Arrays, normal: Any, times: Any) -> tuple[Any, Arrays]:
    """Make one update with our draws `[3, B, A]` and `[B, 1]`; an action that is only logged uses the last one."""
    draws = iter([*normal, normal[2]])
    with (
        jax.disable_jit(),  # a compiled update would reuse the first draws
        patch.object(jax.random, "normal", lambda *_: next(draws)),
        patch.object(jax.random, "uniform", lambda *_: times),
    ):
        return agent.update(batch)


def main(checkout: str, settings_text: str, given: str, answer: str) -> None:
    jax.config.update("jax_enable_x64", True)
    with np.load(given) as file:
        arrays = {name: jnp.asarray(file[name]) for name in file.files}
    networks = {key.removeprefix("networks/"): a for key, a in arrays.items() if key.startswith("networks/")}
    depth = sum(name.startswith("model.flow.hidden.") and name.endswith(".weight") for name in networks)
    places = {name: address(name, depth) for name in networks}
    agent = make_agent(checkout, networks, places, json.loads(settings_text))

    def named(tree: Any) -> Arrays:
        found = flatten_dict(tree, sep="/")
        return {name: found[place].reshape(networks[name].shape) for name, place in places.items()}

    recorded: Arrays = {}
    names = {"observations": "obs", "actions": "actions", "rewards": "rewards", "next_observations": "next_obs"}
    i = 0
    while f"batches/{i}/obs" in arrays:
        batch = {theirs: arrays[f"batches/{i}/{ours}"] for theirs, ours in names.items()}
        batch["masks"] = 1.0 - arrays[f"batches/{i}/dones"]
        before = named(agent.network.opt_state[0].mu)
        agent, info = update(agent, batch, *(arrays[f"noise/{i}/{j}"] for j in range(2)))
        for name, moment in named(agent.network.opt_state[0].mu).items():
            if "target" not in name:
                recorded[f"gradients/{i}/{name}"] = (moment - BETA1 * before[name]) / (1.0 - BETA1)
        recorded |= {f"losses/{i}/{ours}": info[theirs] for theirs, ours in TERMS.items()}
        recorded[f"losses/{i}/actor_loss"] = info["actor/actor_loss"] - info["actor/bc_flow_loss"]
        i += 1
    recorded |= {f"parameters/{name}": value for name, value in named(agent.network.params).items()}
    out: Arrays = {name: np.asarray(value) for name, value in recorded.items()}
    np.savez(answer, **out)
    print(json.dumps({package: importlib.metadata.version(package) for package in ("jax", "flax", "optax")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
