"""Factory of networks by the name of their kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict, Unpack

from rl_training.errors import ConfigError
from rl_training.models.batch_renorm import EnsembleRenormMLP, RenormMLP
from rl_training.models.flash import EnsembleFlash, Flash
from rl_training.models.mlp import (
    MLP,
    Activation,
    EnsembleMLP,
    EnsembleNetwork,
    Init,
    NetworkShape,
    SingleNetwork,
    find_factory,
)
from rl_training.models.own_network import OwnEnsemble, OwnNetwork
from rl_training.models.simba import EnsembleSimBa, SimBa


class NetworkKind(NamedTuple):
    """Constructors of a network and of an ensemble, with the arguments of `build_network` and `build_ensemble`.

    Options in `ignored` have no meaning for this kind and are not passed on.
    """

    single: Callable[..., SingleNetwork]
    ensemble: Callable[..., EnsembleNetwork]
    ignored: tuple[str, ...] = ("network_kwargs", "residual_blocks")


_OF_MLP = ("init", "norm_after_activation")
KINDS = {
    "mlp": NetworkKind(MLP, EnsembleMLP),
    "simba": NetworkKind(SimBa, EnsembleSimBa, ignored=("network_kwargs", *_OF_MLP)),
    "batch_renorm": NetworkKind(  # not a setting: its statistics change only if the learner passes them on
        RenormMLP, EnsembleRenormMLP, ignored=("network_kwargs", "residual_blocks", "layer_norm_epsilon")
    ),
    "flash": NetworkKind(  # not a setting either
        Flash, EnsembleFlash, ignored=("network_kwargs", "init", "layer_norm_epsilon")
    ),
}


class NetworkOptions(TypedDict, total=False):
    """Keywords of a network; models pass them on."""

    layer_norm: bool
    layer_norm_epsilon: float
    norm_after_activation: bool
    activation: Activation
    init: Init
    network: str  # one of `KINDS`, or `module:factory`
    network_kwargs: dict[str, Any]
    residual_blocks: int


def require_defaults(algo: str, options: Mapping[str, Any], *names: str) -> None:
    """Raise if one of the settings `names`, which the networks of `algo` do not have, is not the default."""
    for name in names:
        default = NetworkShape.model_fields[name].default
        if (given := options.get(name, default)) != default:
            raise ConfigError(f"{name} must be {default!r} for {algo}, which has its own layers, got {given!r}")


def actor_options(options: NetworkOptions) -> NetworkOptions:
    """`options` without `layer_norm`, which only critics have."""
    own = options.copy()
    own.pop("layer_norm", None)
    return own


def _kind(options: NetworkOptions) -> tuple[NetworkKind, dict[str, Any]]:
    """The kind that `options` name, and the options of its constructors."""
    name = options.get("network", "mlp")
    if (kind := KINDS.get(name)) is None:
        factory = find_factory(name)
        kind = NetworkKind(partial(OwnNetwork, name, factory), partial(OwnEnsemble, name, factory), _OF_MLP)
    return kind, {key: value for key, value in options.items() if key not in ("network", *kind.ignored)}


def build_network(
    in_features: int, hidden_sizes: Sequence[int], out_features: int, **options: Unpack[NetworkOptions]
) -> SingleNetwork:
    """One network, `[B, in] -> [B, out]`."""
    kind, own = _kind(options)
    return kind.single(in_features, hidden_sizes, out_features, **own)


def build_ensemble(
    num_members: int,
    in_features: int,
    hidden_sizes: Sequence[int],
    out_features: int,
    **options: Unpack[NetworkOptions],
) -> EnsembleNetwork:
    """N networks of one shape, `[B, in] -> [N, B, out]`."""
    kind, own = _kind(options)
    return kind.ensemble(num_members, in_features, hidden_sizes, out_features, **own)
