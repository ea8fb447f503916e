"""Actors, and the `Policy` of an actor and a normaliser, which acts, predicts and is exported.

Actions are in [-1, 1], or indices of discrete actions from 0. No function here draws random numbers: noise is an
argument, so that the same code runs in training, in a test with known noise, and in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, Unpack, get_args

import torch
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.networks import NetworkOptions, build_network
from rl_training.models.steps import Step

# `tanh` squashes the action, `gaussian` only the mean. All densities are of actions in [-1, 1], never in the
# environment's units.
PolicyDistribution = Literal["tanh", "gaussian"]
LOG_2PI = math.log(2.0 * math.pi)
# Bounds of log std: SAC's, and tighter ones for learners that evaluate the density of data actions.
LOG_STD_BOUNDS, OFFLINE_LOG_STD_BOUNDS = (-20.0, 2.0), (-5.0, 2.0)
# Data actions are clipped to this before atanh, because the log-density is infinite at ±1.
ACTION_LIMIT = 1.0 - 1e-6


class ActionSample(NamedTuple):
    """Sampled actions and their log-probabilities."""

    actions: Tensor  # [B, A]
    logprobs: Tensor  # [B]


class Normalizer(nn.Module):
    """Normalises observations by fixed moments; with `enabled=False` it returns them unchanged.

    Its tensors change in place, so that captured updates use the new moments.
    """

    shift: Tensor
    scale: Tensor
    limit: Tensor | None

    def __init__(self, obs_dim: int, *, enabled: bool) -> None:
        super().__init__()
        self.enabled = enabled
        if enabled:
            self.register_buffer("shift", torch.zeros(obs_dim))
            self.register_buffer("scale", torch.ones(obs_dim))
        self.register_buffer("limit", None)

    def clip(self, limit: float = 10.0) -> None:
        """Clip normalised observations to ±`limit`; early moments may not fit later observations."""
        self.limit = torch.full((), limit, device=self.shift.device)

    def set_moments(self, mean: Tensor, std: Tensor, eps: float = 1e-3) -> None:
        """Normalise to `(obs - mean) / (std + eps)` from now on; does not wait for the device."""
        self.shift.copy_(mean, non_blocking=True)
        self.scale.copy_(1.0 / (std + eps), non_blocking=True)

    def forward(self, obs: Tensor) -> Tensor:
        if not self.enabled:
            return obs
        normal = (obs - self.shift) * self.scale
        return normal if self.limit is None else normal.clamp(-self.limit, self.limit)

    def steps(self) -> list[Step]:
        if not self.enabled:
            return []
        found = [Step.of("normalize", shift=self.shift, scale=self.scale)]
        return found if self.limit is None else [*found, Step.of("clip", low=-self.limit, high=self.limit)]


class RewardScale(nn.Module):
    """The factor of rewards in minibatches, in a tensor that captured updates read."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))


class NormalActor(nn.Module):
    """Base of the Gaussian actors; a call returns the mean and log std of the Gaussian.

    `drawn` and `log_density` take mean and log std, so that a learner can use both with one forward pass.
    """

    stochastic = True
    distribution: ClassVar[PolicyDistribution]

    def drawn(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """The actions that `noise` selects; its leading axes are draws per state."""
        raise NotImplementedError

    def log_density(self, mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|s) of given actions, `[B]`."""
        raise NotImplementedError

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = self(obs)
        return self.drawn(mean, log_std, noise)

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|s) of given actions, `[B]`; finite for actions at ±1."""
        mean, log_std = self(obs)
        return self.log_density(mean, log_std, actions)


class TanhGaussianActor(NormalActor):
    """a = tanh(u), u ~ N(mean(s), std(s)^2), with the exact log-determinant of tanh.

    The density is infinite at ±1, so actions are clipped to ±(1 - 1e-6), which is u = ±7.25.
    """

    distribution = "tanh"

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        log_std_bounds: tuple[float, float] = LOG_STD_BOUNDS,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__()
        self.net = build_network(obs_dim, hidden_sizes, 2 * action_dim, **options)
        self.log_std_bounds = log_std_bounds

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of u, each `[B, A]`."""
        return self.parameters_of(self.net(obs))

    def parameters_of(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of u from the outputs of the network, `[B, 2 A]`."""
        mean, log_std = outputs.chunk(2, dim=-1)
        return mean, log_std.clamp(*self.log_std_bounds)

    def mode(self, obs: Tensor) -> Tensor:
        return torch.tanh(self(obs)[0])

    def drawn(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        return squashed_action(mean, log_std, noise)

    def log_density(self, mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
        return squashed_log_prob(mean, log_std, actions)

    def sample_with_logprob(self, obs: Tensor, noise: Tensor) -> ActionSample:
        """Reparameterised: gradients flow through the action and its log-probability."""
        mean, log_std = self(obs)
        return squashed_sample(mean, log_std, noise)

    def sample_by_batch(self, obs: Tensor, noise: Tensor) -> tuple[ActionSample, list[Tensor]]:
        """Actions for as many rows of `obs` as `noise` has, and new values of the network's `statistics`.

        The network is one with batch normalisation, in train mode (see `batch_norm`).
        """
        outputs, statistics = self.net.by_batch(obs)  # type: ignore[operator]
        return squashed_sample(*self.parameters_of(outputs[: len(noise)]), noise), statistics

    def steps(self, sampled: bool) -> list[Step]:
        """The mode uses only the columns of the mean."""
        if not sampled:
            return [*self.net.steps(outputs=self.net.out_features // 2), Step("tanh")]
        low, high = self.log_std_bounds
        return [*self.net.steps(), Step.of("gaussian", low=low, high=high), Step("tanh")]


def squashed_action(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """tanh(mean + std noise); leading axes of `noise` are draws per state."""
    return torch.tanh(mean + log_std.exp() * noise)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> ActionSample:
    """`squashed_action` and its log-probability."""
    pre_tanh = mean + log_std.exp() * noise
    log_normal = -0.5 * (noise * noise + LOG_2PI) - log_std
    return ActionSample(torch.tanh(pre_tanh), (log_normal - log_tanh_slope(pre_tanh)).sum(-1))


def squashed_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """Log-density of tanh(N(mean, std^2)) at `actions`, clipped to ±(1 - 1e-6)."""
    clipped = actions.clamp(-ACTION_LIMIT, ACTION_LIMIT)
    upper, lower = torch.log1p(clipped), torch.log1p(-clipped)
    z = (0.5 * (upper - lower) - mean) * torch.exp(-log_std)
    log_normal = -0.5 * (z * z + LOG_2PI) - log_std
    return (log_normal - upper - lower).sum(-1)


def log_tanh_slope(pre_tanh: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|))): exact for every u.

    `F.softplus` is not used: its CPU kernel rounds the last elements of a tensor differently.
    """
    size = pre_tanh.abs()
    return 2.0 * (math.log(2.0) - size - torch.log1p(torch.exp(-2.0 * size)))


class GaussianActor(NormalActor):
    """a ~ N(tanh(net(s)), std^2), clipped to [-1, 1]; the density is that of the Gaussian.

    The log-density is finite at ±1, so data actions need no clipping. One std per action dimension is learned for
    all states; with `state_std` the network also outputs a log std for each state.
    """

    distribution = "gaussian"

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        state_std: bool = False,
        log_std_bounds: tuple[float, float] = OFFLINE_LOG_STD_BOUNDS,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__()
        outputs = 2 * action_dim if state_std else action_dim
        self.net = build_network(obs_dim, hidden_sizes, outputs, **NetworkOptions(init="orthogonal") | options)
        self.log_std = None if state_std else nn.Parameter(torch.zeros(action_dim))
        self.log_std_bounds = log_std_bounds

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean `[B, A]` and log standard deviation, `[A]` or with `state_std` `[B, A]`, of the Gaussian."""
        if self.log_std is not None:
            return torch.tanh(self.net(obs)), self.log_std.clamp(*self.log_std_bounds)
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        return torch.tanh(mean), log_std.clamp(*self.log_std_bounds)

    def mode(self, obs: Tensor) -> Tensor:
        return self(obs)[0]

    def drawn(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        return (mean + log_std.exp() * noise).clamp(-1.0, 1.0)

    def log_density(self, mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
        z = (actions - mean) * torch.exp(-log_std)
        return (-0.5 * (z * z + LOG_2PI) - log_std).sum(-1)

    def sample_with_logprob(self, obs: Tensor, noise: Tensor) -> ActionSample:
        """The density is evaluated at the clipped action."""
        mean, log_std = self(obs)
        actions = self.drawn(mean, log_std, noise)
        return ActionSample(actions, self.log_density(mean, log_std, actions))

    def steps(self, sampled: bool) -> list[Step]:
        if not sampled:
            outputs = None if self.log_std is not None else self.net.out_features // 2
            return [*self.net.steps(outputs=outputs), Step("tanh")]
        (low, high), clip = self.log_std_bounds, Step.of("clip", low=-1.0, high=1.0)
        if self.log_std is not None:
            std = self.log_std.clamp(low, high).exp()
            return [*self.net.steps(), Step("tanh"), Step.of("add_noise", scale=std), clip]
        return [*self.net.steps(), Step("tanh_mean"), Step.of("gaussian", low=low, high=high), clip]


def normal_actor(
    distribution: PolicyDistribution,
    obs_dim: int,
    action_dim: int,
    hidden_sizes: Sequence[int],
    *,
    log_std_bounds: tuple[float, float],
    **options: Unpack[NetworkOptions],
) -> TanhGaussianActor | GaussianActor:
    """The actor of that distribution; in both cases the network outputs mean and log std for each state."""
    require_distribution(distribution)
    shape = obs_dim, action_dim, hidden_sizes
    if distribution == "tanh":
        return TanhGaussianActor(*shape, log_std_bounds=log_std_bounds, **options)
    return GaussianActor(*shape, state_std=True, log_std_bounds=log_std_bounds, **options)


def require_distribution(given: str) -> None:
    """Raise for unknown distributions (configs are validated earlier)."""
    if given not in (known := get_args(PolicyDistribution)):
        raise ConfigError(f"policy_distribution must be {' or '.join(map(repr, known))}, got {given!r}")


class DeterministicActor(nn.Module):
    """a = tanh(net(s)); the learner adds exploration noise."""

    stochastic = False

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], **options: Unpack[NetworkOptions]
    ) -> None:
        super().__init__()
        self.net = build_network(obs_dim, hidden_sizes, action_dim, **options)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.net(obs))

    def mode(self, obs: Tensor) -> Tensor:
        return self(obs)

    def steps(self, sampled: bool) -> list[Step]:
        return [*self.net.steps(), Step("tanh")]


class ChoiceActor(nn.Module):
    """One output per discrete action, `[B, K]`; the mode is the action with the largest output."""

    stochastic = False

    def __init__(
        self, obs_dim: int, num_actions: int, hidden_sizes: Sequence[int], **options: Unpack[NetworkOptions]
    ) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.net = build_network(obs_dim, hidden_sizes, num_actions, **options)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs)

    def mode(self, obs: Tensor) -> Tensor:
        return self.net(obs).argmax(-1)

    def steps(self, sampled: bool) -> list[Step]:
        return [*self.net.steps(), Step("categorical" if sampled else "argmax")]


class CategoricalActor(ChoiceActor):
    """a ~ softmax(net(s)): the outputs are logits."""

    stochastic = True

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Inverse transform sampling: actions `[B]` from `noise [B, 1]`, whose normal CDF is uniform."""
        upper_ends = self(obs).softmax(-1).cumsum(-1)  # [B, K]
        chosen = (upper_ends < torch.special.ndtr(noise)).sum(-1)
        return chosen.clamp(max=upper_ends.shape[-1] - 1)  # rounding may make the last sum less than 1

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|s) of given actions, `[B]`; its negative mean is the cross-entropy."""
        return at_actions(self(obs).log_softmax(-1), actions)


def at_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """The outputs at the given actions: `[..., B, K]` and `[B]` to `[..., B]`."""
    return outputs.gather(-1, actions.expand(outputs.shape[:-1]).unsqueeze(-1)).squeeze(-1)


class Policy(nn.Module):
    """Normaliser and actor of a model; takes raw observations."""

    def __init__(self, normalizer: Normalizer, actor: nn.Module) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.actor = actor

    @property
    def stochastic(self) -> bool:
        return bool(self.actor.stochastic)

    def samples(self, deterministic: bool | None) -> bool:
        """Whether actions are sampled; None means as the algorithm is evaluated: FQL samples, others do not."""
        if deterministic is None:
            deterministic = not getattr(self.actor, "evaluated_by_samples", False)
        return self.stochastic and not deterministic

    @property
    def chooses(self) -> bool:
        """Whether actions are discrete, with one output each (`scores`); `mode` is the index of the largest."""
        return isinstance(self.actor, ChoiceActor)

    def scores(self, obs: Tensor) -> Tensor:
        """The outputs `[B, K]` for discrete actions: logits if the policy is stochastic, else values."""
        return self.actor(self.normalizer(obs))

    def mode(self, obs: Tensor) -> Tensor:
        """The deterministic action `[B, A]` in [-1, 1] (discrete: `[B]` indices)."""
        return self.actor.mode(self.normalizer(obs))  # type: ignore[operator]

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The action that standard normal `noise [B, A]` selects from a stochastic policy (discrete: A is 1)."""
        return self.actor.sample(self.normalizer(obs), noise)  # type: ignore[operator]

    def steps(self, sampled: bool = False) -> list[Step] | None:
        """The operations of `mode` (of `sample` if `sampled`), or None if the actor has no `steps`."""
        steps = getattr(self.actor, "steps", None)
        return None if steps is None else [*self.normalizer.steps(), *steps(sampled)]
