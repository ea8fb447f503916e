"""Factory of networks by the name of their kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Unpack

from rl_training.models.mlp import MLP, EnsembleMLP, MLPOptions


class NetworkKind(NamedTuple):
    """Constructors of a network and of an ensemble, with the arguments of `build_network` and `build_ensemble`."""

    single: Callable[..., MLP]
    ensemble: Callable[..., EnsembleMLP]


KINDS = {"mlp": NetworkKind(MLP, EnsembleMLP)}


class NetworkOptions(MLPOptions, total=False):
    """Keywords of a network; models pass them on."""

    network: str  # one of `KINDS`


def actor_options(options: NetworkOptions) -> NetworkOptions:
    """`options` without LayerNorm, which only critics have."""
    own = options.copy()
    own.pop("layer_norm", None)
    own.pop("layer_norm_epsilon", None)
    return own


def build_network(
    in_features: int, hidden_sizes: Sequence[int], out_features: int, **options: Unpack[NetworkOptions]
) -> MLP:
    """One network, `[B, in] -> [B, out]`."""
    kind = KINDS[options.pop("network", "mlp")]
    return kind.single(in_features, hidden_sizes, out_features, **options)


def build_ensemble(
    num_members: int,
    in_features: int,
    hidden_sizes: Sequence[int],
    out_features: int,
    **options: Unpack[NetworkOptions],
) -> EnsembleMLP:
    """N networks of one shape, `[B, in] -> [N, B, out]`."""
    kind = KINDS[options.pop("network", "mlp")]
    return kind.ensemble(num_members, in_features, hidden_sizes, out_features, **options)
