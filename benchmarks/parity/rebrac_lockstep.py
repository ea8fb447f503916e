"""CORL's ReBRAC, written in JAX, in lockstep with ours, in its own Python environment; run by `benchmarks.parity`.

    python -m benchmarks.parity.rebrac_lockstep CHECKOUT SETTINGS GIVEN ANSWER

SETTINGS are our learner's settings as JSON; GIVEN and ANSWER are files of arrays (`benchmarks.parity.lockstep`).
Versions are printed as JSON. Losses and steps are CORL's functions. The order of an update is ours: all losses
before any step, then target updates towards the new parameters, and the actor in the last of `policy_delay`
updates. The critics normalise before the ReLU, as ours do, instead of after it.
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
import optax

from benchmarks.peers.checkouts import load_corl

BETA1 = 0.9
Arrays = dict[str, Any]


def layers(arrays: Arrays, name: str) -> list[Arrays]:
    """Our network `name` as one dictionary per layer; the head is last."""
    places = {key.removeprefix(f"{name}.").rpartition(".")[0] for key in arrays if key.startswith(f"{name}.")}
    count = sum(place.startswith("hidden.") for place in places)
    found = []
    for i in range(count + 1):
        linear = f"{name}.head" if i == count else f"{name}.hidden.{i}"
        layer = {"kernel": arrays[f"{linear}.weight"], "bias": arrays[f"{linear}.bias"]}
        if f"norms.{i}" in places:
            norm = f"{name}.norms.{i}"
            layer |= {"scale": arrays[f"{norm}.weight"], "shift": arrays[f"{norm}.bias"]}
        found.append(layer)
    return found


def named(name: str, params: list[Arrays]) -> Arrays:
    """The inverse of `layers`."""
    found: Arrays = {}
    for i, layer in enumerate(params):
        linear = f"{name}.head" if i + 1 == len(params) else f"{name}.hidden.{i}"
        found |= {f"{linear}.weight": layer["kernel"], f"{linear}.bias": layer["bias"]}
        if "scale" in layer:
            found |= {f"{name}.norms.{i}.weight": layer["scale"], f"{name}.norms.{i}.bias": layer["shift"]}
    return found


def network(params: list[Arrays], x: Any, epsilon: float) -> Any:
    """Apply every member to `x [B, in]`; returns `[N, B, out]`."""
    for layer in params[:-1]:
        x = x @ layer["kernel"] + layer["bias"]
        if "scale" in layer:
            x = x - x.mean(-1, keepdims=True)
            x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon) * layer["scale"] + layer["shift"]
        x = jax.nn.relu(x)
    return x @ params[-1]["kernel"] + params[-1]["bias"]


def make_states(module: Any, arrays: Arrays, settings: Arrays) -> tuple[Any, Any]:
    """Actor and critics as CORL's train states."""
    epsilon = settings["layer_norm_epsilon"]

    def actor(params: list[Arrays], obs: Any) -> Any:
        return jnp.tanh(network(params, obs, epsilon)[0])

    def critics(params: list[Arrays], obs: Any, actions: Any) -> Any:
        return network(params, jnp.hstack([obs, actions]), epsilon)[..., 0]

    rate = settings["learning_rate"]
    return (
        module.ActorTrainState.create(
            apply_fn=actor,
            params=layers(arrays, "model.actor.net"),
            target_params=layers(arrays, "model.target_actor.net"),
            tx=optax.adam(rate),
        ),
        module.CriticTrainState.create(
            apply_fn=critics,
            params=layers(arrays, "model.critics.net"),
            target_params=layers(arrays, "model.target_critics.net"),
            tx=optax.adam(rate),
        ),
    )


def gradients(name: str, before: Any, after: Any) -> Arrays:
    """Gradients of one step, from Adam's first moments."""
    moments = jax.tree_util.tree_map(
        lambda old, new: (new - BETA1 * old) / (1.0 - BETA1), before.opt_state[0].mu, after.opt_state[0].mu
    )
    return named(name, moments)


def main(checkout: str, settings_text: str, given: str, answer: str) -> None:
    jax.config.update("jax_enable_x64", True)
    settings = json.loads(settings_text)
    module: Any = load_corl(Path(checkout), "rebrac")
    with np.load(given) as file:
        arrays = {name: jnp.asarray(file[name]) for name in file.files}
    networks = {key.removeprefix("networks/"): a for key, a in arrays.items() if key.startswith("networks/")}
    actor, critic = make_states(module, networks, settings)
    key = jax.random.PRNGKey(0)  # its draws only affect a metric
    tau, smoothing = settings["tau"], (settings["target_policy_noise"], settings["target_noise_clip"])
    recorded: Arrays = {}
    i = 0
    while f"batches/{i}/obs" in arrays:
        names = {"obs": "states", "next_obs": "next_states"}
        fields = ("obs", "actions", "rewards", "next_obs", "next_actions", "dones")
        batch = {names.get(field, field): arrays[f"batches/{i}/{field}"] for field in fields}
        metrics = module.Metrics.create(["critic_loss", "q_min"])
        with patch.object(jax.random, "normal", lambda *_, noise=arrays[f"noise/{i}/0"]: noise):
            _, new_critic, metrics = module.update_critic(
                key, actor, critic, batch, settings["gamma"], settings["critic_bc_coef"], tau, *smoothing, metrics
            )
        found = gradients("model.critics.net", critic, new_critic)
        recorded[f"losses/{i}/critic_loss"] = metrics.accumulators["critic_loss"][0][0]
        new_actor = actor
        if (i + 1) % settings["policy_delay"] == 0:
            metrics = module.Metrics.create(["actor_loss", "bc_mse_policy", "bc_mse_random", "action_mse"])
            _, new_actor, _, metrics = module.update_actor(
                key, actor, critic, batch, settings["actor_bc_coef"], tau, True, metrics
            )
            found |= gradients("model.actor.net", actor, new_actor)
            recorded[f"losses/{i}/actor_loss"] = metrics.accumulators["actor_loss"][0][0]
            follow = optax.incremental_update
            new_actor = new_actor.replace(target_params=follow(new_actor.params, actor.target_params, tau))
            new_critic = new_critic.replace(target_params=follow(new_critic.params, critic.target_params, tau))
        recorded |= {f"gradients/{i}/{name}": value for name, value in found.items()}
        actor, critic = new_actor, new_critic
        i += 1
    parts = {"actor": actor.params, "target_actor": actor.target_params}
    parts |= {"critics": critic.params, "target_critics": critic.target_params}
    for part, params in parts.items():
        recorded |= {f"parameters/{name}": value for name, value in named(f"model.{part}.net", params).items()}
    out: Arrays = {name: np.asarray(value) for name, value in recorded.items()}
    np.savez(answer, **out)
    print(json.dumps({package: importlib.metadata.version(package) for package in ("jax", "flax", "optax")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
