"""The managed classes that a user trains with: `REDQ("Pendulum-v1").learn(5_000)`."""

from __future__ import annotations

from rl_training.api.managed import ManagedAlgorithm
from rl_training.api.managed import load as load


class DQN(ManagedAlgorithm):
    """Deep Q-Network."""

    algo = "dqn"


class DDPG(ManagedAlgorithm):
    """Deep Deterministic Policy Gradient."""

    algo = "ddpg"


class TD3(ManagedAlgorithm):
    """Twin Delayed DDPG."""

    algo = "td3"


class SAC(ManagedAlgorithm):
    """Soft Actor-Critic."""

    algo = "sac"


class TQC(ManagedAlgorithm):
    """Truncated Quantile Critics."""

    algo = "tqc"


class REDQ(ManagedAlgorithm):
    """Randomized Ensembled Double Q-learning."""

    algo = "redq"


class CrossQ(ManagedAlgorithm):
    """SAC with batch renormalisation instead of target networks."""

    algo = "crossq"


class FlashSAC(ManagedAlgorithm):
    """SAC with normalised residual networks and categorical critics."""

    algo = "flash_sac"


class BC(ManagedAlgorithm):
    """Behaviour cloning, of continuous or discrete actions."""

    algo = "bc"


class TD3BC(ManagedAlgorithm):
    """TD3 with behaviour cloning."""

    algo = "td3_bc"


class IQL(ManagedAlgorithm):
    """Implicit Q-Learning, on continuous or discrete actions."""

    algo = "iql"


class CQL(ManagedAlgorithm):
    """Conservative Q-Learning, on continuous or discrete actions."""

    algo = "cql"


class CalQL(ManagedAlgorithm):
    """CQL whose penalty leaves values above the returns of the data: a start for training online."""

    algo = "cal_ql"


class AWAC(ManagedAlgorithm):
    """Advantage Weighted Actor-Critic."""

    algo = "awac"


class CRR(ManagedAlgorithm):
    """Critic Regularized Regression."""

    algo = "crr"


class EDAC(ManagedAlgorithm):
    """Ensemble-Diversified Actor-Critic."""

    algo = "edac"


class RLPD(ManagedAlgorithm):
    """RL with Prior Data: SAC on minibatches that mix prior data with new experience.

    Defaults are those of SAC: two critics, no LayerNorm, a fixed alpha, one update per step. The paper's RLPD has
    `num_critics=10, layer_norm=True, alpha="auto", gradient_updates_per_step=20`, as in `rlpd/paper`.
    """

    algo = "rlpd"


class ReBRAC(ManagedAlgorithm):
    """TD3 with a cloning penalty in actor and critics."""

    algo = "rebrac"


class FQL(ManagedAlgorithm):
    """Flow Q-Learning: a one-step policy that imitates a flow-matching model of the data and maximises Q.

    Its policy is a distribution without a known mode: `evaluate`, `predict` and `export` sample it by default.
    """

    algo = "fql"
