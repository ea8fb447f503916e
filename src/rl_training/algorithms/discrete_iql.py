"""IQL on discrete actions: the same update on networks with one output per action.

The formulas are IQL's: V is the upper `expectile` of min Qbar(s, a) over the data's actions, the critics regress on
r + gamma V(s'), and the categorical policy clones the data by weighted cross-entropy. Q(s, a) and log pi(a|s) are
the outputs at the data's action.
Departures: those of IQL. The paper has continuous actions only; d3rlpy has no discrete IQL.
Axes: critics `[2, B, K]` for K actions, `[2, B]` at the data's; values and weights `[B]`.
"""

from __future__ import annotations

from rl_training.algorithms.iql import IQL, ImplicitConfig
from rl_training.models.mlp_iql import MLPDiscreteIQLModel


class DiscreteIQL(IQL):
    """Implicit Q-learning on an `MLPDiscreteIQLModel`; its loss from precomputed tensors is `iql_loss`."""

    Config = ImplicitConfig
    Model = MLPDiscreteIQLModel
    fixed_by_model = ()
    discrete = True
