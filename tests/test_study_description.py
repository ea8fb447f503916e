"""The study file: its meaning, and one-line errors for contradictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.errors import ConfigError
from rl_training.settings import seed_list
from rl_training.study import description
from rl_training.study.description import Location, read_description
from rl_training.study.document import plain_name
from rl_training.study.plan import hash_of, identity
from tests.studies import tiny_study


def changes(**fields: Any) -> list[dict[str, Any]]:
    return [dict(wanted.changes) for wanted in read_description(tiny_study(**fields)).wanted]


def test_a_study_without_anything_to_vary_is_one_configuration() -> None:
    (wanted,) = read_description(tiny_study()).wanted
    assert (wanted.changes, wanted.seeds) == ({}, (0, 1))
    assert wanted.config.total_timesteps == 60
    assert wanted.config.algo_kwargs["double_q"] in (True, False)  # defaults are spelt out


def test_grid_is_every_combination_and_bare_keys_are_found_where_they_live() -> None:
    found = changes(grid={"gamma": [0.9, 0.99], "algo_kwargs.tau": [0.5, 1.0], "num_envs": [1]})
    assert found == [
        {"algo_kwargs.gamma": gamma, "algo_kwargs.tau": tau, "num_envs": 1}
        for gamma in (0.9, 0.99)
        for tau in (0.5, 1.0)
    ]


def test_zip_pairs_values_and_combines_them_with_every_entry_of_list() -> None:
    found = changes(
        zip={"gamma": [0.9, 0.99], "tau": [0.5, 1.0]},
        list=[{"target_update_interval": 4}, {"target_update_interval": 6, "double_q": True}],
    )
    assert len(found) == 4
    assert found[0] == {"algo_kwargs.target_update_interval": 4, "algo_kwargs.gamma": 0.9, "algo_kwargs.tau": 0.5}
    assert found[3] == {
        "algo_kwargs.target_update_interval": 6,
        "algo_kwargs.double_q": True,
        "algo_kwargs.gamma": 0.99,
        "algo_kwargs.tau": 1.0,
    }


def test_tasks_have_settings_of_their_own() -> None:
    study = tiny_study(tasks=[{"config": "dqn/cartpole"}, {"config": "dqn/cartpole", "set": {"gamma": 0.5}}])
    del study["base"]
    one, other = read_description(study).wanted
    assert (one.task, other.task) == (0, 1)
    assert other.config.algo_kwargs["gamma"] == 0.5 != one.config.algo_kwargs["gamma"]


def test_without_seeds_each_task_has_its_own() -> None:
    study = tiny_study()
    del study["seeds"]
    assert read_description(study).wanted[0].seeds == (0,)


def test_without_seeds_a_task_keeps_several_of_its_own(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 6000\nseeds: 3..5\n")
    for seeds, given in (((3, 4, 5), {}), ((7,), {"seeds": [7]})):
        (wanted,) = read_description({"name": "x", "base": str(base), **given}).wanted
        assert (wanted.seeds, wanted.config.seeds) == (seeds, None)


@pytest.mark.parametrize(
    ("value", "seeds"), [("0..3", (0, 1, 2, 3)), ("7..7", (7,)), ([0, 3, 7], (0, 3, 7)), (range(2), (0, 1))]
)
def test_seeds(value: Any, seeds: tuple[int, ...]) -> None:
    assert seed_list(value) == seeds


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sedes": [1]}, "unknown key 'sedes'; did you mean 'seeds'?"),
        ({"space": {"gamma": [0.9]}}, "unknown key 'space'; it is a key of a tuning: use rl-training tune"),
        ({"lst": [{"gamma": 0.9}]}, "unknown key 'lst'; did you mean 'list'?"),
        ({"seeds": [0, 0]}, "seeds: 0 is given twice"),
        ({"seeds": "3..1"}, "seeds must go upwards"),
        ({"seeds": []}, "seeds must be a range such as 0..9"),
        ({"seeds": 5}, "seeds must be a range such as 0..9"),
        ({"seeds": range(3)}, "range(0, 3) is not plain data"),
        ({"set": {"hidden_sizes": np.ones((2, 1))}}, "array([[1.], [1.]]) is not plain data"),
        ({"set": {"network": plain_name}}, "mappings, and 'module:Name' for code"),
        ({"seeds": [-1]}, "seeds must be whole numbers"),
        ({"seeds": [True]}, "seeds must be whole numbers"),
        ({"grid": {"seed": [1, 2]}}, "seed cannot be set here; give the seeds as `seeds: 0..9`"),
        ({"set": {"seed": 1}}, "seed cannot be set here"),
        ({"set": {"output_dir": "x"}}, "output_dir cannot be set here"),
        ({"list": [{"allow_import": True}]}, "a file cannot permit imports"),
        ({"grid": {"gama": [0.9]}}, "grid: unknown key 'gama'; did you mean 'gamma'?"),
        ({"grid": {"gamma": []}}, "gamma has no values"),
        ({"grid": {"gamma": 0.9}}, "gamma must be a list of values"),
        ({"grid": {"gamma": [0.9, 0.9]}}, "gamma has the value 0.9 twice"),
        ({"grid": {"gamma": [0, 0]}}, "gamma has the value 0 twice"),
        ({"grid": {"gamma": [0.9]}, "zip": {"algo_kwargs.gamma": [0.9]}}, "gamma is given by grid and by zip"),
        ({"grid": {"gamma": [0.9]}, "list": [{"gamma": 0.9}]}, "gamma is given by grid and by list"),
        ({"grid": {"batch_size": [4, 8]}}, "batch_size is given by grid and by set"),
        ({"grid": {"algo_kwargs": [{}]}}, "algo_kwargs is given by grid and by set"),
        ({"zip": {"gamma": [0.9, 0.8], "tau": [1.0]}}, "zip: needs lists of one length, got gamma 2, tau 1"),
        ({"list": []}, "list must be a list of mappings"),
        ({"list": [3]}, "each entry must be a mapping"),
        ({"grid": {"gamma": [0.9, 2.0]}}, "gamma=2.0: algo_kwargs.gamma must be <= 1"),
        ({"grid": {"gamma": [0.9, "x"]}}, "algo_kwargs.gamma must be a number"),
        ({"grid": {"hidden_sizes.0": [1]}, "set": {}}, "hidden_sizes"),
        ({"set": {"total_timesteps": 5}}, "end before the first update"),
        ({"base": None}, "a study has either `base` or `tasks`"),
        ({"tasks": [{"config": "dqn/cartpole"}]}, "a study has either `base` or `tasks`"),
        ({"base": "dqn/cartpol"}, "did you mean 'dqn/cartpole'"),
        ({"population": "on"}, "population must be auto, off or the most trials"),
        ({"population": 0}, "population must be auto, off or the most trials"),
        ({"name": "../x"}, "name must be a plain folder name"),
        ({"claim_timeout": 0}, "claim_timeout must be > 0"),
        ({"claim_timeout": 1e300}, "claim_timeout must be <= 2592000"),
        ({"threads": 10**9}, "threads must be <= 1024"),
        ({"grid": {"gamma": list(range(400)), "tau": list(range(400))}}, "are 320,000 trials; at most 100,000"),
        ({"grid": {"gamma": list(range(1000))}, "seeds": "0..999"}, "are 1,000,000 trials; at most 100,000"),
    ],
)
def test_what_is_wrong_is_one_line(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_description(tiny_study(**fields))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_has_the_line_it_stands_on(tmp_path: Path) -> None:
    file = tmp_path / "beta.yaml"
    file.write_text("base: iql/pendulum\nseeds: 0..1\ngrid:\n  expectile: [0.7]\n  betta: [1, 3]\n")
    with pytest.raises(ConfigError, match=r"beta\.yaml:5: grid: unknown key 'betta'; did you mean 'beta'\?$"):
        read_description(file)


def test_the_file_gives_the_name(tmp_path: Path) -> None:
    file = tmp_path / "beta.yaml"
    file.write_text("base: iql/pendulum\ngrid: {beta: [1, 3]}\n")
    assert read_description(file).name == "beta"
    with pytest.raises(ConfigError, match=r"nothing\.yaml: cannot be read: No such file"):
        read_description(tmp_path / "nothing.yaml")


def test_other_algorithms_own_other_keys() -> None:
    """The algorithm is set first, so that bare keys are looked up among its own."""
    study = tiny_study(base="sac/pendulum", grid={"policy_delay": [2], "algo": ["td3"]}, set={})
    study["set"] = {"device": "cpu", "alpha": 0.1}
    with pytest.raises(ConfigError, match="algo=td3"):
        read_description(study)


def test_a_configuration_may_lie_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 20000\nseed: 7\n")
    (tmp_path / "study.yaml").write_text("base: own.yaml\ngrid: {gamma: [0.9, 0.99]}\n")
    described = read_description(tmp_path / "study.yaml")
    assert described.sources == (str(tmp_path / "own.yaml"),)
    assert [wanted.seeds for wanted in described.wanted] == [(7,), (7,)]


def test_a_base_may_be_complete_only_with_what_varies(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("algo: iql\nenv_id: Pendulum-v1\ntotal_timesteps: 20\n")
    (tmp_path / "study.yaml").write_text("base: own.yaml\ngrid: {dataset_kind: [random], dataset_size: [50, 60]}\n")
    sizes = [
        wanted.config.algo_kwargs["dataset_size"] for wanted in read_description(tmp_path / "study.yaml").wanted
    ]
    assert sizes == [50, 60]


def offline(**paths: Any) -> dict[str, Any]:
    common = {"total_timesteps": 10, "dataset_kind": "npz", "dataset_path": "some.npz", **paths}
    return {"name": "offline", "base": "bc/pendulum", "set": common, "seeds": [0]}


def test_data_are_found_in_the_folder_that_is_given_and_make_no_other_trial(tmp_path: Path) -> None:
    (tmp_path / "some.npz").touch()
    here = read_description(offline(), Location(tmp_path, "cpu")).wanted[0].config
    assert here.algo_kwargs["dataset_path"] == str(tmp_path / "some.npz")
    assert here.device == "cpu"
    nowhere = read_description(offline()).wanted[0].config
    assert nowhere.algo_kwargs["dataset_path"] == "some.npz"
    assert hash_of(identity(here.to_dict())) == hash_of(identity(nowhere.to_dict()))


def test_data_of_mixtures_are_found_too_and_absolute_paths_stay(tmp_path: Path) -> None:
    (tmp_path / "one.npz").touch()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "other.npz").touch()
    parts = ["one.npz", str(tmp_path / "two" / "other.npz")]
    mixture = [{"dataset_kind": "npz", "dataset_path": part} for part in parts]
    study = offline(dataset_kind=None, dataset_path=None, datasets=mixture)
    found = read_description(study, Location(tmp_path)).wanted[0].config.algo_kwargs["datasets"]
    assert [part["dataset_path"] for part in found] == [str(tmp_path / "one.npz"), parts[1]]


def test_data_that_are_not_there_are_missed_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"some\.npz: no such file, which the study learns from") as refused:
        read_description(offline(), Location(tmp_path))
    assert "\n" not in str(refused.value)


def test_planning_many_trials_is_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(description, "_MANY_TRIALS", 6)
    monkeypatch.setattr(description, "_EVERY", 2)
    read_description(tiny_study(grid={"gamma": [0.5, 0.6]}))
    assert capsys.readouterr().err == ""
    read_description(tiny_study(grid={"gamma": [0.5, 0.6, 0.7]}))
    assert capsys.readouterr().err.splitlines() == [
        "planning 6 trials: checking 3 configurations …",
        "2 configurations checked",
    ]
