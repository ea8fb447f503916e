"""The tuning file: its meaning, and one-line errors for contradictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training.errors import ConfigError
from rl_training.study.space import Choices, Range, parse_space
from rl_training.study.tuning_file import read_tuning
from tests.tunings import tiny_tuning

RATE = {"low": 1e-5, "high": 1e-2, "log": True}


def test_ranges_are_of_whole_numbers_where_the_base_has_one() -> None:
    space = {
        "learning_rate": RATE,
        "gamma": {"low": 0, "high": 1},
        "target_update_interval": {"low": 1e1, "high": 50, "step": 20},
        "double_q": [True, False],
    }
    assert read_tuning(tiny_tuning(space=space)).space == {
        "algo_kwargs.learning_rate": Range(1e-5, 1e-2, log=True),
        "algo_kwargs.gamma": Range(0.0, 1.0),
        "algo_kwargs.target_update_interval": Range(10, 50, step=20, whole=True),
        "algo_kwargs.double_q": Choices((True, False)),
    }


def test_a_range_without_a_number_in_the_base_has_the_type_of_the_setting() -> None:
    space = {"max_hours": {"low": 1, "high": 3}, "random_steps": {"low": 1, "high": 3}}
    assert read_tuning(tiny_tuning(space=space)).space == {
        "algo_kwargs.max_hours": Range(1.0, 3.0),
        "algo_kwargs.random_steps": Range(1, 3, whole=True),
    }


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        (Range(0.1, 0.9), [0.1, 0.5, 0.9], [0.0, 1.0, "x", None, True]),
        (Range(0.1, 0.9, step=0.2), [0.1, 0.3, 0.7, 0.9], [0.2]),
        (Range(16, 64, step=16, whole=True), [16, 32, 64], [20, 32.0, 80]),
        (Choices(([8], [8, 8])), [[8], [8, 8]], [[9], None]),
    ],
)
def test_what_lies_in_the_space(entry: Range | Choices, inside: list[Any], outside: list[Any]) -> None:
    assert [entry.holds(value) for value in inside] == [True] * len(inside)
    assert [entry.holds(value) for value in outside] == [False] * len(outside)


def test_a_warning_for_settings_of_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    read_tuning(tiny_tuning(space={"gamma": [0.9, 0.99]}))
    assert caplog.messages == []
    read_tuning(tiny_tuning(space={"gamma": [0.9, 0.99], "env_kwargs.sutton_barto_reward": [True, False]}))
    assert caplog.messages == [
        "space: env_kwargs.sutton_barto_reward: trials are comparable only if it leaves the rewards as they are"
    ]


def test_a_base_outside_of_the_space_is_known() -> None:
    inside = read_tuning(tiny_tuning(space={"gamma": [0.9, 0.99], "learning_rate": RATE}))
    assert inside.base_point() == {
        "algo_kwargs.gamma": 0.99,
        "algo_kwargs.learning_rate": inside.base.algo_kwargs["learning_rate"],
    }
    assert read_tuning(tiny_tuning(space={"gamma": [0.8, 0.9]})).base_point() is None


def test_fresh_seeds_follow_those_of_the_trials() -> None:
    assert read_tuning(tiny_tuning(seeds=[4, 1])).file.fresh_seeds == (100, 101)
    assert read_tuning(tiny_tuning(seeds=[4, 1], confirm={})).file.fresh_seeds == (5, 6)
    assert read_tuning(tiny_tuning(confirm=None)).file.fresh_seeds == ()


def test_the_seeds_replace_those_of_the_base(tmp_path: Path) -> None:
    """A trial whose recorded configuration has both `seed` and `seeds` cannot be trained again from it."""
    base = tmp_path / "base.yaml"
    base.write_text("algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 6000\nseeds: 3..5\n")
    found = read_tuning({"name": "x", "base": str(base), "seeds": [0], "space": {"gamma": [0.9, 0.99]}})
    assert found.base.seeds is None
    assert found.config_at({"algo_kwargs.gamma": 0.9}).seeds is None


def test_a_metric_has_its_name_in_results_or_in_the_log() -> None:
    assert read_tuning(tiny_tuning(metric="eval/mean_ep_length")).file.metric == "eval_length_mean"
    assert read_tuning(tiny_tuning(metric="eval_return_best")).file.metric == "eval_return_best"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"trails": 4}, "unknown key 'trails'; did you mean 'trials'?"),
        ({"grid": {"gamma": [0.9]}}, "unknown key 'grid'; it is a key of a study: use rl-training sweep"),
        ({"base": None}, "base must be a string"),
        ({"seeds": None}, "seeds must be a range such as 0..9"),
        ({"trials": 0}, "trials must be >= 1, got 0"),
        ({"space": {}}, "space must be a mapping of settings to ranges"),
        ({"space": {"gamma": 0.9}}, "gamma must be a range such as {low: 1e-5, high: 1e-2, log: true} or a list"),
        ({"space": {"gamma": [0.9]}}, "gamma needs two choices or more"),
        ({"space": {"gamma": [0.9, 0.9]}}, "gamma has the choice 0.9 twice"),
        ({"space": {"gamma": {"low": 0.9}}}, "gamma has no high"),
        ({"space": {"gamma": {"low": 0.9, "hi": 1.0}}}, "gamma has the unknown key 'hi'; did you mean 'high'?"),
        ({"space": {"gamma": {"low": 0.99, "high": 0.9}}}, "bounds that do not go upwards: low 0.99, high 0.9"),
        ({"space": {"gamma": {"low": 0.9, "high": 0.9}}}, "bounds that do not go upwards"),
        ({"space": {"gamma": {"low": "a", "high": 0.9}}}, "gamma has a low that is not a number: 'a'"),
        ({"space": {"gamma": {"low": True, "high": 2}}}, "gamma has a low that is not a number: True"),
        ({"space": {"gamma": {"low": 0, "high": 1, "log": True}}}, "logarithmic and needs a low above 0, got 0"),
        ({"space": {"gamma": {"low": 0.1, "high": 1, "log": 1}}}, "log that is neither true nor false"),
        ({"space": {"gamma": {"low": 0.1, "high": 1, "log": True, "step": 0.1}}}, "both log and step"),
        ({"space": {"gamma": {"low": 0.1, "high": 1, "step": -0.1}}}, "needs a step above 0, got -0.1"),
        ({"space": {"gamma": {"low": 0.0, "high": 1, "step": 0.3}}}, "not divided evenly by its step"),
        ({"space": {"target_update_interval": {"low": 0.5, "high": 4}}}, "takes whole numbers, got 0.5"),
        ({"space": {"gama": [0.9, 0.99]}}, "space: unknown key 'gama'; did you mean 'gamma'?"),
        ({"space": {"batch_size": [4, 8]}}, "batch_size is given by space and by set"),
        ({"space": {"gamma": [0.9, 0.8], "algo_kwargs.gamma": [0.1, 0.2]}}, "is given by space and by space"),
        ({"space": {"seed": [1, 2]}}, "seed cannot be set here; give the seeds as `seeds: 0..9`"),
        ({"space": {"gamma": {"low": 0.9, "high": 1.5}}}, "at its end gamma=1.5: algo_kwargs.gamma must be <= 1"),
        ({"space": {"gamma": [0.9, "x"]}}, "at its end gamma=x: algo_kwargs.gamma must be a number"),
        ({"confirm": {"seeds": [1, 2]}}, "confirm.seeds must be fresh: 1 is one of the trials' `seeds`"),
        ({"confirm": {"best": 0}}, "confirm.best must be >= 1, got 0"),
        ({"confirm": {"bests": 1}}, "confirm: unknown key 'bests'; did you mean 'best'?"),
        ({"confirm": {}, "seeds": [2**32 - 1]}, "no seeds are left above the trials'"),
        ({"metric": "eval_return_men"}, "must be a metric of results, got 'eval_return_men'; did you mean"),
        ({"metric": "validation/action_distance"}, "and less validation/action_distance is better; sweep"),
        ({"sampler_seed": -1}, "sampler_seed must be >= 0, got -1"),
        ({"population": 0}, "population must be auto, off or the most trials"),
        ({"name": "../x"}, "name must be a plain folder name"),
        ({"set": {"total_timesteps": 5}}, "end before the first update"),
        ({"base": "dqn/cartpol"}, "did you mean 'dqn/cartpole'"),
    ],
)
def test_what_is_wrong_is_one_line(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_tuning(tiny_tuning(**fields))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_misspelt_required_key_is_not_only_missing() -> None:
    fields = tiny_tuning()
    fields["spaces"] = fields.pop("space")
    with pytest.raises(ConfigError, match=r"unknown key 'spaces'; did you mean 'space'\?$"):
        read_tuning(fields)


def test_with_many_corners_each_setting_is_taken_to_its_ends_alone() -> None:
    """The last setting alone is wrong, at its end, among more corners than are checked."""
    wide = {"gamma": [i / 400 for i in range(300)]}
    read_tuning(tiny_tuning(space=wide))
    with pytest.raises(ConfigError, match=r"at its end tau=2\.0: algo_kwargs\.tau must be <= 1"):
        read_tuning(tiny_tuning(space={**wide, "tau": {"low": 0.5, "high": 2}}))


def test_an_error_has_the_line_it_stands_on(tmp_path: Path) -> None:
    file = tmp_path / "rate.yaml"
    file.write_text("base: dqn/cartpole\nseeds: 0..1\nspace:\n  gamma: [0.9, 0.99]\n  gama: [1, 2]\n")
    with pytest.raises(ConfigError, match=r"rate\.yaml:5: space: unknown key 'gama'; did you mean 'gamma'\?$"):
        read_tuning(file)
    file.write_text("base: dqn/cartpole\nseeds: 0..1\nspace: {gamma: [0.9, 0.99]}\nconfirm:\n  seeds: [1]\n")
    with pytest.raises(ConfigError, match=r"rate\.yaml:5: confirm\.seeds must be fresh"):
        read_tuning(file)
    file.write_text("- 1\n")
    with pytest.raises(ConfigError, match=r"rate\.yaml: a tuning is a mapping"):
        read_tuning(file)


def test_a_configuration_may_lie_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 20000\nseed: 7\n")
    (tmp_path / "rate.yaml").write_text("base: own.yaml\nseeds: [0]\nspace: {gamma: [0.9, 0.99]}\n")
    found = read_tuning(tmp_path / "rate.yaml")
    assert (found.name, found.sources) == ("rate", (str(tmp_path / "own.yaml"),))


def test_a_list_is_a_choice() -> None:
    assert parse_space({"hidden_sizes": [[8], [8, 8]]}) == {"hidden_sizes": Choices(([8], [8, 8]))}
