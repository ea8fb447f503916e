"""Networks of a user's own factory: any `nn.Module` that maps `[B, in]` to `[B, out]`, one or an ensemble.

The factory is called as `factory(in_features, out_features, hidden_sizes, **network_kwargs)`, once per network, and
once more to find random numbers that no checkpoint would contain. The first module computes all networks. Its
tensors are replaced by those of all modules along a first axis; a call passes it the tensors of one member, or
under `vmap` those of all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_training.errors import ConfigError, ExportError, cause_of
from rl_training.models.mlp import NETWORK, EnsembleNetwork, Members, NetworkConfig, SingleNetwork, selection
from rl_training.models.steps import Step, steps_of

Factory = Callable[..., nn.Module]
# Calling this many members one by one is faster than `vmap`, measured on a CPU.
_FEW = 2
_PROBED_ROWS = 3


class OwnEnsemble(EnsembleNetwork):
    """N networks of a factory; `name` is that of the factory in messages."""

    def __init__(
        self,
        name: str,
        factory: Factory,
        num_members: int,
        in_features: int,
        hidden_sizes: Sequence[int],
        out_features: int,
        *,
        network_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        nn.Module.__init__(self)
        self.num_members, self._name, self._outputs = num_members, name, out_features
        for key, value in others.items():
            if value != (usual := NetworkConfig.model_fields[key].default):  # only the packaged networks have it
                raise self._refused(f"has no setting {key}; set it to {str(usual).lower()}, or use network_kwargs")
        arguments, options = (in_features, out_features, list(hidden_sizes)), dict(network_kwargs or {})
        with torch.device("cpu"), torch.enable_grad():
            try:
                modules = [self._made(factory, arguments, options) for _ in range(num_members)]
                with torch.random.fork_rng(devices=[]):
                    other = self._made(factory, arguments, options)
            except Exception as error:
                raise self._refused(f"fails with {arguments} and {options}: {cause_of(error)}") from error
            if not all(isinstance(module, nn.Module) for module in modules):
                raise self._refused(f"made a {type(modules[0]).__name__}, not a torch.nn.Module")
            if len({*modules, other}) <= num_members:
                raise self._refused("returns the same module again; it must make a new one on each call")
            self._require_saved(modules[0], other)
            x = torch.linspace(-1.0, 1.0, _PROBED_ROWS * in_features).view(_PROBED_ROWS, in_features)
            self._first_call(modules, x)
            self.module = self._stacked(modules)
            self._probe(x)

    @staticmethod
    def _made(factory: Factory, arguments: Any, options: Any) -> nn.Module:
        own, keywords = copy.deepcopy((arguments, options))  # the factory may change them
        return factory(*own, **keywords)

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(f"{NETWORK}: {self._name} {reason}", key=NETWORK)

    @property
    def out_features(self) -> int:
        return self._outputs

    def _first_call(self, modules: Sequence[nn.Module], x: Tensor) -> None:
        """Call each module once, which completes lazy ones; raise for wrong outputs and for tensors that change."""
        wanted, given = (len(x), self._outputs), x.clone()
        for module in modules:
            before = {name: buffer.clone() for name, buffer in module.named_buffers()}
            try:
                out: Any = module(x)
            except Exception as error:
                raise self._refused(f"fails on an input {tuple(x.shape)}: {cause_of(error)}") from error
            if not isinstance(out, Tensor) or out.shape != wanted:
                found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
                raise self._refused(f"maps an input {tuple(x.shape)} to {found}; needed: {wanted}")
            if out.dtype != x.dtype:
                raise self._refused(f"maps a {x.dtype} input to {out.dtype}; all must be float32")
            if not torch.equal(x, given):
                raise self._refused("changes its input in place, as ReLU(inplace=True) does; networks must not")
            for name, buffer in module.named_buffers():
                if not torch.equal(buffer, before[name]):
                    raise self._refused(f"changes its buffer {name}, as BatchNorm does; networks must not")

    def _require_saved(self, module: nn.Module, other: nn.Module) -> None:
        """Raise for a number or tensor that each call of the factory draws, but that checkpoints do not contain."""
        for (name, layer), twin in zip(module.named_modules(), other.modules()):
            for key, value in vars(layer).items():
                if isinstance(value, float | Tensor) and not same_value(value, vars(twin).get(key)):
                    place = f"{name}.{key}".lstrip(".")
                    raise self._refused(
                        f"draws {place}, which is neither a parameter nor a buffer, so no checkpoint would contain "
                        "it; use register_buffer"
                    )

    def _require_one_name(self, module: nn.Module) -> None:
        """Raise if a layer with tensors has two names: torch would not restore its tensors after a call."""
        names: dict[int, str] = {}
        for name, layer in module.named_modules(remove_duplicate=False):
            first = names.setdefault(id(layer), name)
            if first != name and next(_named_tensors(layer), None) is not None:
                raise self._refused(f"has one layer under two names, {first} and {name}; use {first} twice")

    def _stacked(self, modules: Sequence[nn.Module]) -> nn.Module:
        """The first module with the tensors of all; parameters without gradients become buffers."""
        self._require_one_name(modules[0])
        each = [dict(_named_tensors(module, tied=True)) for module in modules]
        shapes = [{name: tensor.shape for name, tensor in own.items()} for own in each]
        if any(other != shapes[0] for other in shapes):
            raise self._refused("makes networks of different shapes")
        first, tied = modules[0], dict[int, Tensor]()
        for name, tensor in each[0].items():
            if tensor.dtype != torch.float32:
                raise self._refused(f"has a tensor {name} of {tensor.dtype}; all must be float32")
            whole = tied.get(id(tensor))
            if whole is None:
                whole = torch.stack([own[name].detach() for own in each])
                whole = tied[id(tensor)] = nn.Parameter(whole) if tensor.requires_grad else whole
            each[0][name] = whole
        _set_tensors(first, each[0])
        return first

    def _probe(self, x: Tensor) -> None:
        """Raise for random numbers, rows that affect each other and parameters without effect."""
        parameters = dict(self.module.named_parameters())
        if not parameters:
            raise self._refused("has no parameter with a gradient; a network must be able to learn")
        try:
            whole, one = (self._together(dict(_named_tensors(self.module)), rows) for rows in (x, x[:1]))
            gradients = torch.autograd.grad(whole.sum(), list(parameters.values()), allow_unused=True)
        except Exception as error:
            if "randomness" in str(error):
                raise self._refused("draws random numbers, as dropout does; networks must not") from error
            raise self._refused(f"cannot be computed for several networks at once: {cause_of(error)}") from error
        if not torch.allclose(whole[:, :1], one, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise self._refused("computes another output for the same row, as BatchNorm or random numbers do")
        if unused := [name for name, gradient in zip(parameters, gradients) if gradient is None]:
            raise self._refused(f"has a parameter {unused[0]} that does not affect its output; remove it")

    def _call(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(self.module, tensors, (x,))

    def _together(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.vmap(self._call, in_dims=(0, None), randomness="error")(tensors, x)

    def forward(self, x: Tensor, frozen: bool = False, members: Members = None) -> Tensor:
        select, count = selection(frozen, members), self.count(members)
        tensors = {name: select(tensor) for name, tensor in _named_tensors(self.module)}
        if count > _FEW:
            return self._together(tensors, x)
        return torch.stack([self._call({name: t[i] for name, t in tensors.items()}, x) for i in range(count)])


class OwnNetwork(SingleNetwork, OwnEnsemble):
    """One network of a factory."""

    def __init__(self, name: str, factory: Factory, *shape: Any, **options: Any) -> None:
        OwnEnsemble.__init__(self, name, factory, 1, *shape, **options)

    def steps(self, outputs: int | None = None) -> list[Step]:
        """The module's own `steps()`, or the layers of an `nn.Sequential`."""
        module = copy.deepcopy(self.module)
        _set_tensors(module, {name: tensor.detach()[0] for name, tensor in _named_tensors(module, tied=True)})
        own = getattr(module, "steps", module.children if isinstance(module, nn.Sequential) else None)
        if own is None:
            raise ExportError(
                f"the network {self._name} does not list its operations and cannot be exported; give its module a "
                "method steps() that returns its layers in order, see docs/adding-an-algorithm.md"
            )
        found = steps_of(own())
        if outputs is None:
            return found
        if not found or found[-1].operation != "affine":
            raise ExportError(f"the network {self._name} must end in a linear layer to be exported")
        return [*found[:-1], found[-1].first(outputs)]


def same_value(value: float | Tensor, other: Any) -> bool:
    """Whether an attribute of two modules or learners has one value; NaN equals itself."""
    if not isinstance(other, type(value)):
        return False
    one, two = (torch.as_tensor(each).to_dense() for each in (value, other))
    alike = (one.shape, one.dtype) == (two.shape, two.dtype)
    return alike and torch.allclose(one, two, rtol=0.0, atol=0.0, equal_nan=True)


def _set_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace parameters and buffers by name; a tensor that is not a `Parameter` becomes a buffer."""
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        owner._parameters.pop(leaf, None)
        if isinstance(tensor, nn.Parameter):
            owner.register_parameter(leaf, tensor)
        else:
            owner.register_buffer(leaf, tensor)


def _named_tensors(module: nn.Module, *, tied: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers; with `tied`, one that has several names occurs under each of them."""
    yield from module.named_parameters(remove_duplicate=not tied)
    yield from module.named_buffers(remove_duplicate=not tied)
