"""`bf16: true`: products of wide layers in bfloat16, everything else in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.algorithms import CrossQ, FlashSAC, Learner
from rl_training.data.sources import TensorSource
from rl_training.models.mlp import HalfPrecision, product, rounded
from rl_training.updates.stack import Stack
from rl_training.updates.stacked import StackedUpdater
from rl_training.updates.updater import Updater, set_precision
from tests.helpers import build, random_batch
from tests.runs import fingerprint, resume, run_record, tiny, train
from tests.test_acceleration import layout_of, packed

WIDE = {"hidden_sizes": (128, 128), "critic_hidden_sizes": (128, 128)}


@pytest.fixture(autouse=True)
def on_every_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a GPU, and float32 again afterwards."""
    monkeypatch.setattr(HalfPrecision, "devices", ("cuda", "cpu"))
    set_precision(False, bf16=True)
    yield
    set_precision(False)


def test_a_product_rounds_its_factors_and_its_result() -> None:
    x, weight = torch.randn(2, 5, 128), torch.randn(2, 128, 128)
    found = product(x, weight)
    assert found.dtype == torch.float32
    exact = torch.bmm(x.bfloat16().double(), weight.bfloat16().double())
    assert torch.equal(found, found.bfloat16().float())
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-5)
    assert not torch.equal(found, torch.bmm(x, weight))


@pytest.mark.parametrize(
    ("inputs", "outputs", "dtype"),
    [(128, 127, torch.float32), (127, 128, torch.float32), (128, 128, torch.float64)],
)
def test_heads_first_layers_and_float64_are_exact(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 5, inputs, dtype=dtype), torch.randn(2, inputs, outputs, dtype=dtype)
    assert torch.equal(product(x, weight), torch.bmm(x, weight))


def test_rounding_before_a_relu_equals_rounding_after_it() -> None:
    x, weight = torch.randn(2, 5, 128, generator=torch.Generator().manual_seed(1)), torch.randn(2, 128, 128)
    assert torch.equal(product(torch.relu(rounded(x, weight)), weight), product(torch.relu(x), weight))


def after_an_update(kind: type[Learner], *, bf16: bool) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    set_precision(False, bf16=bf16)
    learner = build(kind, network=WIDE)
    learner.update(random_batch(), global_step=0)
    return {name: float(term) for name, term in learner.terms.items()}, learner.state_dict()["networks"]


@pytest.mark.parametrize("kind", [CrossQ, FlashSAC])
def test_an_update_differs_by_rounding_only(kind: type[Learner]) -> None:
    (terms, networks), (exact, exact_networks) = (after_an_update(kind, bf16=bf16) for bf16 in (True, False))
    assert terms != exact
    assert terms == pytest.approx(exact, rel=0.03, abs=0.01)
    assert {tensor.dtype for tensor in networks.values()} == {torch.float32}
    # The first step of Adam moves a parameter by its learning rate, up or down; CrossQ's is 1e-3.
    for name, tensor in networks.items():
        torch.testing.assert_close(tensor, exact_networks[name], rtol=0.01, atol=3e-3)


def test_a_population_computes_what_its_members_would() -> None:
    def members() -> list[Updater]:
        learners = [build(FlashSAC, seed=seed, network=WIDE) for seed in (0, 1)]
        rows = packed(FlashSAC)
        return [Updater(one, TensorSource(rows, layout_of(FlashSAC), one.generator), 16) for one in learners]

    single, stacked = members(), members()
    for one in single:
        one.run(3)
    StackedUpdater(Stack([one.learner for one in stacked]), stacked).run(3)
    for one, other in zip(single, stacked):
        found = {name: float(term) for name, term in other.learner.terms.items()}
        assert found == pytest.approx({name: float(term) for name, term in one.learner.terms.items()}, rel=0.01)


def test_a_run_on_a_cpu_is_not_affected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def state(bf16: bool) -> dict[str, str]:
        fields: dict[str, Any] = {"total_timesteps": 32, "eval_episodes": 0}
        config = tiny("flash_sac", tmp_path / str(bf16), kwargs=WIDE, bf16=bf16, **fields)
        entries = fingerprint(train(config).checkpoint_path)
        return {name: entry for name, entry in entries.items() if not name.startswith("config/")}

    assert state(True) != state(False)
    monkeypatch.setattr(HalfPrecision, "devices", ("cuda",))
    assert state(True) == state(False)


def test_a_change_is_not_an_exact_resume(tmp_path: Path) -> None:
    run = train(tiny("sac", tmp_path)).run_dir
    resume(run, changes={"total_timesteps": 80, "bf16": True})
    assert "bf16 False -> True" in run_record(run)["inexact"][0]
