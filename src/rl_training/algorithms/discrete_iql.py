"""IQL on discrete actions: the same update on networks with one output per action.

Value, critics and actor are IQL's, formula for formula: V is the upper `expectile` of min Qbar(s, a) over the
data's actions, the critics regress on r + gamma V(s'), and the policy, now categorical, clones the data with
weights: a weighted cross-entropy. Only Q(s, a) and log pi(a|s) are read otherwise, as the output of the action
taken.
Departures: those of IQL. The paper has continuous actions alone; d3rlpy has no discrete IQL.
Axes: critics `[2, B, K]` for K actions, read at the data's as `[2, B]`; values and weights `[B]`.
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
