"""The managed classes that a user trains with: `REDQ("Pendulum-v1").learn(5_000)`."""

from __future__ import annotations

from rl_training.api.managed import ManagedAlgorithm
from rl_training.api.managed import load as load

# The algorithm and the docstring of each class; `ManagedAlgorithm` adds the settings to the docstring.
_CLASSES = {
    "DQN": ("dqn", "Deep Q-Network."),
    "DDPG": ("ddpg", "Deep Deterministic Policy Gradient."),
    "TD3": ("td3", "Twin Delayed DDPG."),
    "SAC": ("sac", "Soft Actor-Critic."),
    "TQC": ("tqc", "Truncated Quantile Critics."),
    "REDQ": ("redq", "Randomized Ensembled Double Q-learning."),
    "CrossQ": ("crossq", "SAC with batch renormalisation instead of target networks."),
    "FlashSAC": ("flash_sac", "SAC with normalised residual networks and categorical critics."),
    "BC": ("bc", "Behaviour cloning, of continuous or discrete actions."),
    "TD3BC": ("td3_bc", "TD3 with behaviour cloning."),
    "IQL": ("iql", "Implicit Q-Learning, on continuous or discrete actions."),
    "CQL": ("cql", "Conservative Q-Learning, on continuous or discrete actions."),
    "CalQL": (
        "cal_ql",
        "CQL whose penalty leaves values above the returns of the data: a start for training online.",
    ),
    "AWAC": ("awac", "Advantage Weighted Actor-Critic."),
    "CRR": ("crr", "Critic Regularized Regression."),
    "EDAC": ("edac", "Ensemble-Diversified Actor-Critic."),
    "RLPD": (
        "rlpd",
        """RL with Prior Data: SAC on minibatches that mix prior data with new experience.

        Defaults are those of SAC: two critics, no LayerNorm, a fixed alpha, one update per step. The paper's RLPD
        has `num_critics=10, layer_norm=True, alpha="auto", gradient_updates_per_step=20`, as in `rlpd/paper`.
        """,
    ),
    "ReBRAC": ("rebrac", "TD3 with a cloning penalty in actor and critics."),
    "FQL": (
        "fql",
        """Flow Q-Learning: a one-step policy that imitates a flow-matching model of the data and maximises Q.

        Its policy is a distribution without a known mode: `evaluate`, `predict` and `export` sample it by default.
        """,
    ),
}
for _name, (_algo, _text) in _CLASSES.items():
    globals()[_name] = type(_name, (ManagedAlgorithm,), {"algo": _algo, "__doc__": _text, "__module__": __name__})
