"""BC, RLPD, FQE and the learners of discrete actions make the updates of a second computation, in float64.

The reference is `benchmarks.parity.by_hand`: the papers' formulas in torch's own layers, distributions and
optimisers. Both sides start from the same weights, batches and noise. The losses and gradients of 20 updates are
compared, and every parameter and target after them. A setting of ours that is 1 % wrong must be seen.
"""

from __future__ import annotations

import argparse

import pytest

from benchmarks.parity.__main__ import BOUND, MISTAKE, differences
from benchmarks.parity.cases import BY_HAND, CASES, Case

HAND = [case for case in CASES if case.reference == BY_HAND]


@pytest.mark.parametrize("case", HAND, ids=lambda case: case.name)
def test_same_updates_as_by_hand(case: Case) -> None:
    found, seen, _ = differences(case, argparse.Namespace())
    assert found.largest <= BOUND
    assert seen.keys() == set(case.mistakes)
    assert min(seen.values()) >= MISTAKE, seen


def test_every_learner_without_an_outside_reference_is_compared() -> None:
    assert {case.learner for case in HAND} >= {"BC", "RLPD", "FQE", "DiscreteBC", "DiscreteCQL", "DiscreteIQL"}
