"""Documented names of 0.2 that were renamed still work, with a DeprecationWarning."""

from __future__ import annotations

import importlib

import pytest

import rl_training
from rl_training.runtime import populations


def test_the_result_of_off_policy_evaluation() -> None:
    with pytest.warns(DeprecationWarning, match="Judgement is named OPEResult"):
        assert rl_training.Judgement is rl_training.OPEResult  # type: ignore[attr-defined]


def test_the_function_that_trains_a_population() -> None:
    with pytest.warns(DeprecationWarning, match=r"is named rl_training\.runtime\.populations"):
        members = importlib.import_module("rl_training.population.members")
    assert members.train_population is populations.train_population
