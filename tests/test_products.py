"""Large products by oneDNN: values, gradients and members of populations are those of torch's own product."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad

from benchmarks.speed import cases, depth
from rl_training import processor
from rl_training.algorithms import EDAC, SAC, FlashSAC
from rl_training.experiment import runs
from rl_training.models import products
from tests.helpers import build, random_batch

Calls = list[tuple[int, ...]]
needs_onednn = pytest.mark.skipif(not processor._has_onednn(), reason="this torch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every product is oneDNN's, also on other processors; the shapes of the first factors."""
    used: Calls = []

    def counted(x: Tensor, transposed: Tensor) -> Tensor:
        used.append(tuple(x.shape))
        return processor.onednn_product(x, transposed)

    monkeypatch.setattr(products, "_LEAST", 1)
    monkeypatch.setattr(products, "product_library", lambda: "onednn")
    monkeypatch.setattr(products, "onednn_product", counted)
    return used


def loss(weight: Tensor, x: Tensor, product: Any) -> Tensor:
    """As in a network: the result is changed in place."""
    return product(x, weight).add_(0.1).relu_().square().sum()


@needs_onednn
@pytest.mark.parametrize("shape", [(1, 5, 3, 4), (2, 7, 17, 33), (3, 64, 32, 16)], ids=str)
def test_values_and_gradients(shape: tuple[int, int, int, int], onednn: Calls) -> None:
    members, rows, inner, outer = shape
    x = torch.randn(members, rows, inner, requires_grad=True)
    weight = torch.randn(members, inner, outer, requires_grad=True)
    found, expected = [], []
    for product, gradients in ((products.multiply, found), (torch.bmm, expected)):
        first = torch.autograd.grad(loss(weight, x, product), (x, weight), create_graph=True)
        second = torch.autograd.grad(sum(part.square().sum() for part in first), (x, weight))
        gradients += [product(x, weight), *first, *second]
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * theirs.abs().max().item())
    assert len(onednn) >= 3 * members


@needs_onednn
@pytest.mark.parametrize("dims", [(0, 0), (None, 0), (0, None), (1, 0)], ids=str)
def test_members_of_a_population_equal_single_runs(dims: tuple[int | None, int | None], onednn: Calls) -> None:
    x, weight = torch.randn(3, 2, 8, 5), torch.randn(3, 2, 5, 6)
    factors = [
        factor[0] if dim is None else factor.movedim(0, dim).contiguous() for factor, dim in zip((weight, x), dims)
    ]
    found = torch.vmap(grad(lambda w, rows: loss(w, rows, products.multiply)), dims)(*factors)
    assert onednn
    for i, ours in enumerate(found):
        alone = (factor if dim is None else factor.select(dim, i) for factor, dim in zip(factors, dims))
        assert torch.equal(ours, grad(lambda w, rows: loss(w, rows, products.multiply))(*alone))


@needs_onednn
@pytest.mark.parametrize("learner", [SAC, EDAC, FlashSAC])
def test_an_update_is_the_same_up_to_rounding(learner: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = dict(build(learner).update(random_batch(), global_step=1).metrics)
    monkeypatch.setattr(products, "_LEAST", 1)
    monkeypatch.setattr(products, "product_library", lambda: "onednn")
    found = dict(build(learner).update(random_batch(), global_step=1).metrics)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_small_products_and_other_types_are_torch_s(onednn: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = torch.randn(1, 4, 4, dtype=torch.float64)
    assert torch.equal(products.multiply(wide, wide), torch.bmm(wide, wide))
    monkeypatch.setattr(products, "_LEAST", 65)
    assert products.multiply(wide.float(), wide.float()).shape == (1, 4, 4)
    assert onednn == []


@needs_onednn
def test_a_wrong_number_of_networks_is_an_error(onednn: Calls) -> None:
    with pytest.raises(ValueError, match="shorter"):
        products.multiply(torch.ones(3, 4, 4), torch.ones(2, 4, 4))


@needs_onednn
def test_the_bounds_of_the_benchmarks_count_them(onednn: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in cases.CASES if case.name == "SAC")
    monkeypatch.setattr(depth, "product_library", lambda: "onednn")
    found = depth.operations(case, 16)
    assert onednn
    monkeypatch.setattr(products, "product_library", lambda: "blas")
    assert found == depth.operations(case, 16)


@needs_onednn
def test_the_library_does_not_depend_on_the_default_type(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert processor._has_onednn()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("maker", "capability", "library"),
    [
        ("AuthenticAMD", "AVX512", "onednn"),
        ("AuthenticAMD", "AVX2", "blas"),
        ("GenuineIntel", "AVX512", "blas"),
        ("", "DEFAULT", "blas"),
    ],
)
@pytest.mark.parametrize("has", [True, False])
def test_the_library_follows_from_the_processor(
    maker: str, capability: str, library: str, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "maker", lambda: maker)
    monkeypatch.setattr(processor, "_has_onednn", lambda: has)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert processor.product_library.__wrapped__() == (library if has else "blas")


def test_the_maker_is_read_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: "processor : 0\nvendor_id\t: GenuineIntel\n")
    assert processor.maker() == "GenuineIntel"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: "processor : 0\n")  # ARM
    monkeypatch.setattr(platform, "processor", lambda: "AMD64 Family 25 Model 33 Stepping 2, AuthenticAMD")
    assert processor.maker() == "AuthenticAMD"


def test_a_run_records_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a version that did not record it used torch's."""
    monkeypatch.setattr(processor, "product_library", lambda: "onednn")
    record = json.loads(json.dumps(runs.machine_record() | {"device": "cpu"}))
    assert record["products"] == "onednn"
    assert runs.machine_changes(record, "cpu") == []
    del record["products"]
    assert runs.machine_changes(record, "cpu") == ["products blas -> onednn"]
    monkeypatch.setattr(processor, "product_library", lambda: "blas")
    assert runs.machine_changes(record, "cpu") == []
