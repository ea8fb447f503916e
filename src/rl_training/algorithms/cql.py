"""CQL(H): Conservative Q-Learning (Kumar et al. 2020).

SAC with a penalty that lowers Q at actions of the policy and raises it at the data's actions. Each critic's loss
has the term `cql_alpha` (E_s[log sum_k exp(Q(s, a_k) - log p(a_k))] - E[Q(s, a)]) over 3 `n_actions` actions per
state, drawn uniformly, from pi(.|s') and from pi(.|s), all evaluated at s. The penalty is summed over the critics,
not averaged, and the constant log(3 n_actions) is not subtracted. With `lagrange_threshold` a learned multiplier in
[0, 1e6] holds the penalty near that value; the critics' optimiser updates it. For the first `bc_steps` updates the
actor maximises log pi(a|s) of the data instead of Q. The backup has no entropy term unless `backup_entropy` is set,
and uses a sampled action, as the authors' code does, or the best of `backup_actions` (by the smaller critic, as in
CORL and Cal-QL; the authors' option takes the best for each critic). With more than two critics (`num_critics`), as
WSRL starts from, the backup is the minimum over a random subset of `subset_size` target critics, and the actor
maximises the minimum of all.
Departures: alpha is fixed unless `alpha: auto`; `bc_steps` is 0 by default (the authors: 40 000 of 3 million);
the mean is not clamped in log-probabilities (the authors: ±9); PyTorch's initialisation.
Axes: critics `[N, B]`, K = 3 n_actions sampled actions `[K, B, A]` with values `[N, K, B]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Objectives, Terms
from rl_training.algorithms.losses import soft_actor_terms, squared_error, td_target
from rl_training.algorithms.redq import target_subset
from rl_training.algorithms.rlpd import EnsembleConfig, rlpd_model
from rl_training.algorithms.soft import SoftActorCritic
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import NetworkConfig, ThreeLayerConfig
from rl_training.models.mlp_redq import MLPREDQModel
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.policies import OFFLINE_LOG_STD_BOUNDS, squashed_log_prob, squashed_sample
from rl_training.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

MULTIPLIER_LIMIT = 1e6


class CQLConfig(EnsembleConfig):
    """The authors' settings, except alpha and `bc_steps`."""

    backup_entropy: bool = False
    """include the entropy term in the critics' target"""
    actor_learning_rate: PositiveFloat = 1e-4
    """learning rate of the actor"""
    cql_alpha: NonNegativeFloat = 5.0
    """weight of the conservative penalty"""
    n_actions: PositiveInt = 10
    """sampled actions per state from each of the three distributions of the penalty"""
    backup_actions: PositiveInt = 1
    """sampled next actions; the largest of their values is backed up"""
    lagrange_threshold: float | None = None
    """learn the weight of the penalty so that the penalty stays near this value; null: the weight is `cql_alpha`"""
    bc_steps: NonNegativeInt = 0
    """updates in which the actor clones the data instead of maximising Q"""


class Multiplier(nn.Module):
    """The Lagrange multiplier: exp of a parameter, initially 1."""

    def __init__(self) -> None:
        super().__init__()
        self.log_value = nn.Parameter(torch.zeros(()))

    def forward(self) -> Tensor:
        return self.log_value.exp().clamp(0.0, MULTIPLIER_LIMIT)


def conservative_gap(q_sampled: Tensor, log_densities: Tensor | float, q_data: Tensor) -> Tensor:
    """CQL(H)'s E_s[log sum_k exp(Q(s, a_k) - log p(a_k))] - E[Q(s, a)], per critic.

    `q_sampled [N, K, B]` at K sampled actions, `log_densities [K, B]` of what drew them, `q_data [N, B]` -> `[N]`.
    The constant log K is not subtracted, as in the authors' code. If the K actions are all discrete actions, the
    densities are 1 and the sum is exact.
    """
    return ((q_sampled - log_densities).logsumexp(1) - q_data).mean(-1)


def critic_terms(
    q: Tensor,
    target: Tensor,
    gap: Tensor,
    cql_alpha: float,
    multiplier: Tensor | None = None,
    threshold: float | None = None,
) -> Terms:
    """`q [N, B]` against `target [B]`, plus the penalty for `gap [N]`.

    With a multiplier the critics' penalty is multiplier (cql_alpha gap - threshold), and `multiplier_loss` raises
    the multiplier while the penalty is above the threshold.
    """
    penalty = cql_alpha * gap  # [N]
    terms = {"target_q_mean": target.mean(), "conservative_gap": gap.mean()}
    if multiplier is not None and threshold is not None:
        excess = penalty - threshold
        penalty = multiplier.detach() * excess
        terms["multiplier"] = multiplier.detach()
        terms["multiplier_loss"] = -(multiplier * excess.detach()).mean()
    error, conservative = squared_error(q, target), penalty.sum()
    return terms | {
        "critic_loss": error + conservative,
        "critic_mse_loss": error,
        "conservative_loss": conservative,
    }


def cql_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q1_values q2_values target_q_values q1_candidates q2_candidates
    [K, B] candidate_log_densities [K, B] cql_alpha sampled_q1 sampled_q2 sampled_logprobs alpha`, and with a
    Lagrange multiplier `multiplier lagrange_threshold`."""
    q = torch.stack([batch["q1_values"], batch["q2_values"]])
    candidates = torch.stack([batch["q1_candidates"], batch["q2_candidates"]])
    gap = conservative_gap(candidates, batch["candidate_log_densities"], q)
    sampled_q = torch.stack([batch["sampled_q1"], batch["sampled_q2"]])
    return critic_terms(
        q,
        batch["target_q_values"],
        gap,
        batch["cql_alpha"],
        batch.get("multiplier"),
        batch.get("lagrange_threshold"),
    ) | soft_actor_terms(sampled_q.amin(0), batch["sampled_logprobs"], batch["alpha"])


class CQL(SoftActorCritic):
    """Conservative Q-learning on an `MLPSACModel`, or on an `MLPREDQModel` for more than two critics."""

    name = "cql"
    Config = CQLConfig
    Model = staticmethod(rlpd_model)
    Network: ClassVar[type[NetworkConfig]] = ThreeLayerConfig
    fixed_by_model = ("num_critics",)

    def __init__(self, *, model: MLPSACModel | MLPREDQModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.multiplier: Multiplier | None = None
        if self.config.lagrange_threshold is not None:
            self.multiplier = Multiplier().to(self.device)
            self.optimizers["critics"] = self.adam(model.critics, self.multiplier)

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        return {"log_std_bounds": OFFLINE_LOG_STD_BOUNDS, "num_critics": config.num_critics}

    def modules(self) -> dict[str, nn.Module]:
        shared = super().modules()
        return shared if self.multiplier is None else shared | {"multiplier": self.multiplier}

    def variant(self, update: int) -> bool:
        """Whether the actor clones the data in this update."""
        return bool(update < self.config.bc_steps)

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        n, shape = self.config.n_actions, batch.actions.shape
        # At s and s': the first rows for a (actor, one row) and a' (backup), the others for the penalty's actions.
        noises = self.normal(self.config.backup_actions + n, 2, *shape)
        uniform = 2.0 * self.uniform(n, *shape) - 1.0
        actor_loss = self.cloning_loss if variant else self.actor_loss
        objectives: Objectives = {"critics": self.critic_loss, "actor": actor_loss}
        inputs = batch, noises, noises[0, 0], uniform, target_subset(self)
        return self.minimize(inputs, objectives, tau=self.config.tau)

    def critic_loss(
        self, batch: TransitionBatch, noises: Tensor, noise: Tensor, uniform: Tensor, subset: Tensor | None = None
    ) -> tuple[Tensor, Terms]:
        rows, m = len(batch.rewards), self.config.backup_actions
        with torch.no_grad():
            states = torch.cat([batch.obs, batch.next_obs])  # one forward pass per state for all draws
            actions, logprobs = self.model.actor.sample_with_logprob(states, noises.flatten(1, 2))  # [m + n, 2 B]
            value = self.next_value(batch.next_obs, actions[:m, rows:], logprobs[:m, rows:], subset)
            target = td_target(batch.rewards, batch.dones, value, self.config.gamma)
            policy_actions = actions[m:].reshape(-1, *batch.actions.shape)  # [2 n, B, A]
            uniform_density = logprobs.new_full(uniform.shape[:2], -batch.actions.shape[-1] * math.log(2.0))
            densities = torch.cat([logprobs[m:].reshape(-1, rows), uniform_density])  # [K, B]
            candidates = torch.cat([batch.actions[None], policy_actions, uniform])  # [1 + K, B, A]
        q = self.model.critics.over_actions(batch.obs, candidates)  # [N, 1 + K, B]
        q_data, (q_sampled, own_terms) = q[:, 0], self.penalised_values(q[:, 1:], batch)
        gap = conservative_gap(q_sampled, densities, q_data)
        multiplier = None if self.multiplier is None else self.multiplier()
        terms = critic_terms(q_data, target, gap, self.config.cql_alpha, multiplier, self.config.lagrange_threshold)
        loss = terms["critic_loss"]
        return (loss if multiplier is None else loss + terms["multiplier_loss"]), terms | own_terms

    def next_value(self, obs: Tensor, actions: Tensor, logprobs: Tensor, subset: Tensor | None = None) -> Tensor:
        """The value to back up, `[B]`, from sampled next `actions [m, B, A]` and their `logprobs [m, B]`."""
        critics = self.model.target_critics
        if len(actions) == 1:
            value, logprob = critics(obs, actions[0], members=subset).amin(0), logprobs[0]
        else:
            value, best = critics.over_actions(obs, actions, subset).amin(0).max(0)
            logprob = logprobs.gather(0, best[None])[0]
        return self.backed_up(value, logprob)

    def penalised_values(self, q: Tensor, batch: TransitionBatch) -> tuple[Tensor, Terms]:
        """The values that the penalty lowers, from `q [N, K, B]` at the sampled actions, and terms about them.

        The last `n_actions` of the K actions are uniform, the others are the policy's.
        """
        return q, {}

    def actor_loss(
        self, batch: TransitionBatch, noises: Tensor, noise: Tensor, *others: Tensor | None
    ) -> tuple[Tensor, Terms]:
        actions, logprobs = self.model.actor.sample_with_logprob(batch.obs, noise)
        q = self.model.critics(batch.obs, actions, frozen=True).amin(0)  # [B]
        return self.soft_objective(soft_actor_terms, q, logprobs)

    def cloning_loss(
        self, batch: TransitionBatch, noises: Tensor, noise: Tensor, *others: Tensor | None
    ) -> tuple[Tensor, Terms]:
        mean, log_std = self.model.actor(batch.obs)
        _, logprobs = squashed_sample(mean, log_std, noise)
        cloned = squashed_log_prob(mean, log_std, batch.actions)
        return self.soft_objective(soft_actor_terms, cloned, logprobs)
