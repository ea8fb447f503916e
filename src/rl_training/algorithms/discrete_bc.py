"""BC on discrete actions: cross-entropy.

The stochastic form of BC on a categorical policy: the actor maximises log pi(a|s) of the data's actions, whose
negative mean is the cross-entropy. Its mode is the largest logit; samples are drawn from the softmax.
Departures: none from the textbook. d3rlpy's DiscreteBC adds 0.5 times the mean square of all actions'
log-probabilities; there is no such term here.
Axes: logits `[B, K]` for K actions.
"""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.base import Learner, Terms
from rl_training.algorithms.bc import BC, likelihood_terms
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_bc import MLPDiscreteBCModel


class DiscreteBC(Learner):
    """Behaviour cloning on an `MLPDiscreteBCModel`; its loss from precomputed tensors is `bc_loss`."""

    name = "bc"
    Model = MLPDiscreteBCModel
    discrete = True
    optimized = ("actor",)
    bootstraps = False
    ignored = BC.ignored

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        return self.minimize((batch,), {"actor": self.actor_loss})

    def actor_loss(self, batch: TransitionBatch) -> tuple[Tensor, Terms]:
        terms = likelihood_terms(self.model.actor.log_prob(batch.obs, batch.actions))
        return terms["actor_loss"], terms
