"""The authors' Cal-QL, written in JAX, in lockstep with ours, in its own Python environment; run by
`benchmarks.parity`.

    python -m benchmarks.parity.cal_ql_lockstep CHECKOUT SETTINGS GIVEN ANSWER

SETTINGS are our learner's settings as JSON; GIVEN and ANSWER are files of arrays (`benchmarks.parity.lockstep`).
Versions are printed as JSON. The update is the authors' function with three changes: all losses of an update use
our draws, log std has no learned scale and offset, and the multiplier starts at our value.
"""

import importlib.metadata
import json
import sys
from itertools import cycle
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import optax

BETA1 = 0.9
# Neutral values for the learned scale and offset of log std.
FIXED = {"log_std_multiplier_module": {"value": 1.0}, "log_std_offset_module": {"value": 0.0}}
Arrays = dict[str, Any]


def layers(arrays: Arrays, name: str, member: int) -> Arrays:
    """One member of our network `name`, with flax's names."""
    count = sum(key.startswith(f"{name}.hidden.") and key.endswith(".weight") for key in arrays)
    found = {}
    for i in range(count + 1):
        linear = f"{name}.head" if i == count else f"{name}.hidden.{i}"
        found[f"Dense_{i}"] = {
            "kernel": arrays[f"{linear}.weight"][member],
            "bias": arrays[f"{linear}.bias"][member, 0],
        }
    return found


def named(name: str, members: list[Arrays]) -> Arrays:
    """The inverse of `layers`, for all members."""
    found: Arrays = {}
    count = len(members[0])
    for i in range(count):
        linear = f"{name}.head" if i + 1 == count else f"{name}.hidden.{i}"
        parts = [member[f"Dense_{i}"] for member in members]
        found[f"{linear}.weight"] = jnp.stack([part["kernel"] for part in parts])
        found[f"{linear}.bias"] = jnp.stack([part["bias"][None] for part in parts])
    return found


def critic(arrays: Arrays, name: str, member: int) -> Arrays:
    return {"params": {"FullyConnectedNetwork_0": layers(arrays, name, member)}}


def scalar(value: Any) -> Arrays:
    return {"params": {"value": value}}


def policy(base_network: Arrays) -> Arrays:
    return {"params": {"base_network": base_network, **FIXED}}


def make_agent(arrays: Arrays, settings: Arrays) -> Any:
    """The authors' agent with our weights and settings."""
    from JaxCQL import conservative_sac, jax_utils, model

    jax_utils.init_rng(0)
    observations = arrays["model.actor.net.hidden.0.weight"].shape[1]
    actions = arrays["model.critics.net.hidden.0.weight"].shape[1] - observations
    hidden = "-".join([str(arrays["model.actor.net.hidden.0.weight"].shape[2])] * 2)
    config: Arrays = {
        "discount": settings["gamma"],
        "backup_entropy": settings["backup_entropy"],
        "target_entropy": settings["target_entropy"],
        "policy_lr": settings["actor_learning_rate"],
        "qf_lr": settings["learning_rate"],
        "soft_target_update_rate": settings["tau"],
        "cql_n_actions": settings["n_actions"],
        "cql_max_target_backup": settings["backup_actions"] > 1,
    }
    if settings["lagrange_threshold"] is not None:
        gap = settings["lagrange_threshold"] / settings["cql_alpha"]
        config |= {"cql_lagrange": True, "cql_target_action_gap": gap}
    agent = conservative_sac.ConservativeSAC(
        config,
        model.TanhGaussianPolicy(observations, actions, hidden),
        model.FullyConnectedQFunction(observations, actions, hidden),
    )
    ours = {
        "policy": policy(layers(arrays, "model.actor.net", 0)),
        "log_alpha": scalar(arrays["temperature.log_alpha"]),
        "log_alpha_prime": scalar(arrays.get("multiplier.log_value")),
    } | {f"qf{i + 1}": critic(arrays, "model.critics.net", i) for i in range(2)}
    for key in agent.model_keys:
        rate = config["qf_lr"] if key in ("qf1", "qf2", "log_alpha_prime") else config["policy_lr"]
        state = agent._train_states[key]
        agent._train_states[key] = type(state).create(params=ours[key], tx=optax.adam(rate), apply_fn=None)
    agent._target_qf_params = {f"qf{i + 1}": critic(arrays, "model.target_critics.net", i) for i in range(2)}
    return agent


def clip(values: Any, *bounds: Any, a_min: Any = None, a_max: Any = None) -> Any:
    """`jnp.clip` that also accepts the argument names which JAX has removed."""
    low, high = bounds or (a_min, a_max)
    return jnp.minimum(jnp.maximum(values, low), high)


def update(agent: Any, batch: Arrays, noise: list[Any], settings: Arrays) -> Arrays:
    """Make one update with our draws `[m + n, 2, B, A]` and `[n, B, A]`; return its metrics."""
    normal, uniform = noise
    count = settings["backup_actions"]
    here, after = (jnp.swapaxes(normal[:, i], 0, 1) for i in range(2))  # [B, m + n, A]
    backup = after[:, :count] if count > 1 else after[:, 0]
    draws = cycle([here[:, 0], backup, here[:, count:], after[:, count:]])
    with (
        jax.disable_jit(),  # a compiled update would reuse the first draws
        patch.object(jax.random, "normal", lambda key, shape=(), dtype=float: next(draws).reshape(shape)),
        patch.object(jax.random, "uniform", lambda *_, **__: jnp.swapaxes(uniform, 0, 1)),
        patch.object(jnp, "clip", clip),
    ):
        metrics: Arrays = agent.train(batch, cql_min_q_weight=settings["cql_alpha"], enable_calql=True)
    state = agent._train_states["policy"]
    learned = state.params["params"]["base_network"]
    agent._train_states["policy"] = state.replace(params=policy(learned))
    return metrics


def tensors(trees: Arrays, targets: Arrays | None = None) -> Arrays:
    """The authors' trees of parameters or gradients, with our names."""
    found = named("model.actor.net", [trees["policy"]["params"]["base_network"]])
    for part, trees_of in (("critics", trees), ("target_critics", targets)):
        if trees_of is not None:
            nets = [trees_of[key]["params"]["FullyConnectedNetwork_0"] for key in ("qf1", "qf2")]
            found |= named(f"model.{part}.net", nets)
    found["temperature.log_alpha"] = trees["log_alpha"]["params"]["value"]
    if "log_alpha_prime" in trees:
        found["multiplier.log_value"] = trees["log_alpha_prime"]["params"]["value"]
    return found


def main(checkout: str, settings_text: str, given: str, answer: str) -> None:
    jax.config.update("jax_enable_x64", True)
    sys.path.insert(0, checkout)
    settings = json.loads(settings_text)
    with np.load(given) as file:
        arrays = {name: jnp.asarray(file[name]) for name in file.files}
    agent = make_agent(
        {key.removeprefix("networks/"): a for key, a in arrays.items() if key.startswith("networks/")}, settings
    )
    names = {"obs": "observations", "next_obs": "next_observations"}
    fields = ("obs", "actions", "rewards", "next_obs", "dones", "mc_returns")
    recorded: Arrays = {}
    i = 0
    while f"batches/{i}/obs" in arrays:
        batch = {names.get(field, field): arrays[f"batches/{i}/{field}"] for field in fields}
        before = {key: state.opt_state[0].mu for key, state in agent._train_states.items()}
        metrics = update(agent, batch, [arrays[f"noise/{i}/{j}"] for j in range(2)], settings)
        after = {key: state.opt_state[0].mu for key, state in agent._train_states.items()}
        moments = jax.tree_util.tree_map(lambda old, new: (new - BETA1 * old) / (1.0 - BETA1), before, after)
        recorded |= {f"gradients/{i}/{name}": value for name, value in tensors(moments).items()}
        recorded[f"losses/{i}/critic_loss"] = metrics["qf1_loss"] + metrics["qf2_loss"]
        recorded[f"losses/{i}/actor_loss"] = metrics["policy_loss"]
        i += 1
    trees = {key: state.params for key, state in agent._train_states.items()}
    found = tensors(trees, agent._target_qf_params)
    recorded |= {f"parameters/{name}": value for name, value in found.items()}
    out: Arrays = {name: np.asarray(value) for name, value in recorded.items()}
    np.savez(answer, **out)
    print(json.dumps({package: importlib.metadata.version(package) for package in ("jax", "flax", "optax")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
