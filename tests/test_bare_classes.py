"""The study of the classes with nothing set, and the budgets of the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.evidence import bare
from benchmarks.evidence.bare import BARE
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.study.description import WantedConfig, read_description

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wanted() -> list[WantedConfig]:
    return list(read_description(bare.STUDY).wanted)


def test_the_readme_names_the_budget_of_every_class() -> None:
    assert set(BARE) == {spec.name for spec in list_algorithm_specs()}
    assert f"\n\n{bare.budgets()}\n\n" in README


def test_a_budget_is_longer_than_the_steps_before_the_first_update() -> None:
    for spec in list_algorithm_specs():
        one = BARE[spec.name]
        settings = spec.run_spec(
            TrainConfig(algo=spec.name, env_id=one.env, total_timesteps=one.budget)
        ).resolved.to_dict()
        assert one.budget >= settings.get("learning_starts", 0) + 1_000, spec.name


def test_each_class_is_tried_with_three_seeds(wanted: list[WantedConfig]) -> None:
    assert [one.config.algo for one in wanted] == list(BARE)
    assert {one.seeds for one in wanted} == {(0, 1, 2)}


def test_nothing_is_set_but_device_and_data(wanted: list[WantedConfig]) -> None:
    data = {"dataset_kind": "npz", "dataset_path": "pendulum-replay.npz"}
    for one in wanted:
        algo, kind = one.config.algo, BARE[one.config.algo]
        given: Any = {} if get_algorithm_spec(algo).regime == "online" else data
        plain = TrainConfig(
            algo=algo, env_id=kind.env, total_timesteps=kind.budget, device="cpu", algo_kwargs=given, seed=0
        )
        assert one.config.replace(seed=0, algo_kwargs={}) == plain.replace(algo_kwargs={})
        assert one.config.algo_kwargs == get_algorithm_spec(algo).run_spec(plain).resolved.to_dict()


def kept(returns: tuple[float, ...], algo: str = "sac") -> dict[str, Any]:
    runs = {
        str(seed): {"algo": algo, "dataset": {"name": "data"}, "judged": {"mean": value, "returns": [value] * 4}}
        for seed, value in enumerate(returns)
    }
    return {"runs": runs, "data": {"data": {"mean": -180.0, "std": 40.0}}}


@pytest.mark.parametrize(
    ("returns", "answer"), [((-150, -160, -170), True), ((-150, -150, -201), False), ((-150, -150), None)]
)
def test_every_seed_has_to_reach_the_line(returns: tuple[float, ...], answer: bool | None) -> None:
    assert bare.reached("sac", kept(returns)) is answer


def test_a_class_without_results_is_not_measured() -> None:
    assert bare.reached("sac", None) is None
    assert bare.reached("sac", kept((-150, -150, -150), "td3")) is None


def test_a_run_without_an_evaluation_does_not_count() -> None:
    unfinished = kept((-150, -150, -150))
    del unfinished["runs"]["0"]["judged"]
    assert bare.reached("sac", unfinished) is None


def test_cloning_has_to_reach_its_data_less_one_standard_error() -> None:
    assert bare.reached("bc", kept((-199, -190, -180), "bc")) is True
    assert bare.reached("bc", kept((-201, -190, -180), "bc")) is False
