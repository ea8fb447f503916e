"""The plan: what makes a trial the same trial, how groups are formed, and how a study may grow."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError, DatasetError
from rl_training.experiment import files
from rl_training.experiment.compat import ADDED_SINCE_0_2
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.registry import list_algorithm_specs, resolve
from rl_training.study import Study, planning
from rl_training.study.description import read_description
from rl_training.study.plan import Plan, hash_of, identity, read_plan
from rl_training.study.trials import require_data
from tests.runs import tiny, train
from tests.studies import study_in, tiny_study


def plan_of(folder: Path, **fields: Any) -> Plan:
    return study_in(folder, **fields).plan()


def begin(folder: Path) -> None:
    """As if the first trial had begun."""
    (folder / "tiny" / "runs" / read_plan(folder / "tiny").trials[0].name).mkdir()


def members(plan: Plan) -> list[list[tuple[Any, int]]]:
    """The groups, by what varies and the seed."""
    return [
        [(next(iter(plan.configurations[t.configuration].changes.values()), None), t.seed) for t in group.trials]
        for group in plan.groups
    ]


def test_folders_are_named_by_environment_algorithm_hash_and_seed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    digest = plan.configurations[0].hash
    assert [t.name for t in plan.trials] == [f"CartPole-v1__dqn__{digest[:8]}__s{seed}" for seed in (0, 1)]
    assert read_plan(tmp_path / "tiny") == plan
    assert (tmp_path / "tiny" / "study.yaml").read_text() == read_description(tiny_study()).document.text


def test_a_trial_is_what_its_results_depend_on(tmp_path: Path) -> None:
    def digest(**fields: Any) -> str:
        return hash_of(identity(tiny("dqn", tmp_path, **fields).to_dict()))

    same = digest()
    assert digest(seed=9, device="auto", tags=("x",), keep_checkpoints=1, env_processes=True) == same
    assert digest(output_dir="elsewhere") == same
    for changed in ({"total_timesteps": 61}, {"num_envs": 2}, {"kwargs": {"gamma": 0.5}}, {"env_kwargs": {"a": 1}}):
        assert digest(**changed) != same


def test_a_plan_with_the_removed_setting_evaluate_beside_is_the_same_plan(tmp_path: Path) -> None:
    kwargs = {"eval_interval": 10, "early_stopping": {"patience": 2}}
    settings = tiny("dqn", tmp_path, kwargs=kwargs).to_dict()
    assert identity({**settings, "evaluate_beside": True}) == identity(settings)


def test_early_stopping_has_the_identity_it_had_in_0_2() -> None:
    config = TrainConfig(
        algo="dqn",
        env_id="CartPole-v1",
        total_timesteps=60,
        algo_kwargs={"eval_interval": 10, "early_stopping": {"patience": 2}, "learning_starts": 1_000},
    )
    spelt_out = config.replace(algo_kwargs=resolve(config).to_dict())
    now = identity(spelt_out.to_dict())
    assert hash_of(now).startswith("7c0d6337")
    assert not {"metric", "fqe_updates"} & now["algo_kwargs.early_stopping"].keys()  # reports print these settings
    before = spelt_out.to_dict()
    before["algo_kwargs"]["early_stopping"] |= {"metric": "return", "fqe_updates": 2_000}  # a plan of 0.2
    assert identity(before) == now


@pytest.mark.parametrize(("algo", "digest"), [("rebrac", "5b3b16e7"), ("td3", "80d91cb9"), ("rlpd", "c8d6a162")])
def test_the_settings_of_fine_tuning_do_not_change_an_identity(algo: str, digest: str) -> None:
    starts = {} if algo == "rebrac" else {"learning_starts": 1_000}  # before it was automatic
    config = TrainConfig(algo=algo, env_id="Pendulum-v1", total_timesteps=60, algo_kwargs=starts)
    spelt_out = config.replace(algo_kwargs=resolve(config).to_dict())
    assert hash_of(identity(spelt_out.to_dict())).startswith(digest)
    assert identity(spelt_out.replace(regime="offline_to_online").to_dict()) != identity(spelt_out.to_dict())


def test_every_setting_added_since_0_2_has_its_default_in_the_table() -> None:
    """Otherwise studies of 0.2 would not find their trials. Later algorithms may have other defaults."""
    known = {
        name: value
        for spec in list_algorithm_specs()
        if spec.name not in ("crossq", "flash_sac")
        for name, value in spec.sections.resolve({}).to_dict().items()
    }
    assert {name: known[name] for name in ADDED_SINCE_0_2 if name in known} == {
        name: value for name, value in ADDED_SINCE_0_2.items() if name in known
    }


def test_a_planned_trial_that_fqe_would_stop_runs_without_early_stopping(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    kwargs = plan.configurations[0].settings["algo_kwargs"]
    kwargs["early_stopping"] = {"patience": 2, "metric": "fqe", "fqe_updates": 9}
    with pytest.warns(UserWarning, match="it resumes without early stopping"):
        assert plan.config_of(plan.trials[0], tmp_path).algo_kwargs["early_stopping"] is None


def test_data_count_by_their_name_and_not_by_their_folder() -> None:
    def digest(**data: Any) -> str:
        config = TrainConfig(algo="iql", env_id=None, total_timesteps=5, algo_kwargs=data)
        return hash_of(identity(config.to_dict()))

    assert digest(dataset_path="/a/hopper.npz") == digest(dataset_path="b/hopper.npz")
    assert digest(dataset_path="/a/hopper.npz") != digest(dataset_path="/a/walker.npz")
    assert digest(datasets=[{"dataset_path": "/a/x.npz"}]) == digest(datasets=[{"dataset_path": "x.npz"}])


def on_data(folder: Path, path: Path | None, **fields: Any) -> Study:
    """A study of BC on a file; nothing of it is read but its bytes."""
    settings: dict[str, Any] = {"total_timesteps": 20, "device": "cpu", "dataset_kind": "npz"}
    settings |= {} if path is None else {"dataset_path": str(path)}
    study = {"name": "tiny", "base": "bc/pendulum", "set": settings, "seeds": [0], "threads": 1, **fields}
    return Study(study, output_dir=folder)


def data_file(path: Path, text: str = "hopper") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def as_planned_by_0_2(folder: Path) -> str:
    """Rewrite the plan as version 0.2 would have written it, without contents; the name of its trial."""
    place = folder / "tiny" / "plan.json"
    record = json.loads(place.read_text()) | {"schema": 1}
    (old,) = record["configurations"]
    del old["data"], record["tasks"][0]["data"]
    old["hash"] = hash_of(identity(old["settings"]))
    place.write_text(json.dumps(record))
    begin(folder)
    return read_plan(folder / "tiny").trials[0].name


def test_files_of_one_name_with_different_contents_are_different_trials(tmp_path: Path) -> None:
    paths = [data_file(tmp_path / task / "medium.npz", task) for task in ("hopper", "walker")]
    plan = on_data(tmp_path, None, grid={"dataset_path": [str(path) for path in paths]}).plan()
    assert len({trial.name for trial in plan.trials}) == 2
    begin(tmp_path)
    again = on_data(tmp_path, None, grid={"dataset_path": [str(path) for path in paths]}, seeds=[0, 1]).plan()
    assert again.configurations == plan.configurations
    both = on_data(tmp_path / "b", paths[0]).plan(), on_data(tmp_path / "c", paths[1]).plan()
    assert both[0].trials != both[1].trials


def test_the_same_file_in_another_folder_is_the_same_trial(tmp_path: Path) -> None:
    plan = on_data(tmp_path, data_file(tmp_path / "here" / "medium.npz")).plan()
    begin(tmp_path)
    there = data_file(tmp_path / "there" / "medium.npz")
    moved = on_data(tmp_path, there, seeds=[0, 1]).plan()
    assert moved.trials[0] == plan.trials[0]
    assert len(moved.configurations) == 1
    assert moved.configurations[0].settings["algo_kwargs"]["dataset_path"] == str(there)
    there.unlink()  # planned on a machine that has not got it
    assert on_data(tmp_path, there, seeds=[0, 1]).plan() == moved


def test_a_relative_path_is_resolved_against_the_folder_of_the_first_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, elsewhere = data_file(tmp_path / "here" / "medium.npz"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(file.parent)
    plan = on_data(tmp_path, Path("medium.npz")).plan()
    begin(tmp_path)
    assert plan.trials == on_data(tmp_path / "absolute", file).plan().trials
    monkeypatch.chdir(elsewhere)
    again = on_data(tmp_path, Path("medium.npz")).plan()
    assert (again.configurations, again.trials) == (plan.configurations, plan.trials)
    assert plan.configurations[0].settings["algo_kwargs"]["dataset_path"] == str(file)
    require_data(tmp_path / "tiny", plan)
    there = data_file(elsewhere / "medium.npz")
    moved = on_data(tmp_path, Path("medium.npz")).plan()
    assert moved.configurations[0].settings["algo_kwargs"]["dataset_path"] == str(there)


@pytest.mark.parametrize("workers", [1, 2])
def test_missing_data_stop_a_study_before_its_first_trial(tmp_path: Path, workers: int) -> None:
    paths = [str(data_file(tmp_path / "here.npz")), str(tmp_path / "one.npz"), "two.npz"]
    study = on_data(tmp_path, None, grid={"dataset_path": paths}, seeds=[0, 1])
    with pytest.raises(DatasetError, match=r"/one\.npz, two\.npz: no such file, which trials of .*tiny need"):
        study.run(workers)
    assert study.status().counts["waiting"] == 6
    result = CliRunner().invoke(main, ["work", str(study.folder)])
    assert (result.exit_code, study.status().counts["waiting"]) == (3, 6)


def test_a_warning_if_open_trials_would_learn_from_other_data_than_planned(tmp_path: Path) -> None:
    file = data_file(tmp_path / "here.npz")
    plan = on_data(tmp_path, file).plan()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_data(tmp_path / "tiny", plan)
    data_file(file, "walker")
    with pytest.warns(UserWarning, match=r"here\.npz: changed since .*tiny was planned, so its open trials learn"):
        require_data(tmp_path / "tiny", plan)


def test_a_trial_that_has_begun_finds_its_data_where_it_was_started(tmp_path: Path) -> None:
    plan = on_data(tmp_path, Path("medium.npz")).plan()
    begin(tmp_path)
    file = data_file(tmp_path / "first" / "medium.npz")
    record = {"algo": "bc", "env_id": None, "seed": 0, "status": "interrupted", "versions": {}, "resumed": []}
    record |= {"dataset": {"folder": str(file.parent)}}
    (tmp_path / "tiny" / "runs" / plan.trials[0].name / "run.json").write_text(json.dumps(record))
    require_data(tmp_path / "tiny", plan)
    file.unlink()
    with pytest.raises(DatasetError, match=r"^medium\.npz: no such file"):
        require_data(tmp_path / "tiny", plan)


def test_a_base_on_other_data_of_the_same_name_is_refused(tmp_path: Path) -> None:
    here = data_file(tmp_path / "hopper" / "medium.npz")
    on_data(tmp_path, here).plan()
    begin(tmp_path)
    with pytest.raises(ConfigError, match="dataset_path names a file of other contents"):
        on_data(tmp_path, data_file(tmp_path / "walker" / "medium.npz", "walker")).plan()
    here.write_text("made anew")
    with pytest.raises(ConfigError, match="dataset_path names a file of other contents"):
        on_data(tmp_path, here).plan()


@pytest.mark.parametrize("still_there", [True, False])
def test_a_plan_without_contents_goes_on_and_keeps_its_names(tmp_path: Path, still_there: bool) -> None:
    here = data_file(tmp_path / "here" / "medium.npz")
    on_data(tmp_path, here).plan()
    name = as_planned_by_0_2(tmp_path)
    there = data_file(tmp_path / "there" / "medium.npz")
    if not still_there:
        here.unlink()
    after = on_data(tmp_path, there, seeds=[0, 1]).plan()
    assert [trial.name for trial in after.trials] == [name, name.replace("__s0", "__s1")]
    assert after.configurations[0].data != {}
    with pytest.raises(ConfigError, match="names a file of other contents"):
        on_data(tmp_path, data_file(tmp_path / "walker" / "medium.npz", "walker"), seeds=[0, 1]).plan()


def test_a_plan_without_contents_does_not_take_other_data_for_its_own(tmp_path: Path) -> None:
    on_data(tmp_path, data_file(tmp_path / "hopper" / "medium.npz")).plan()
    as_planned_by_0_2(tmp_path)
    with pytest.raises(ConfigError, match="names a file of other contents"):
        on_data(tmp_path, data_file(tmp_path / "walker" / "medium.npz", "walker")).plan()


def test_a_large_plan_compares_each_configuration_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(settings: Any) -> Any:
        calls.append(1)
        return identity(settings)

    monkeypatch.setattr(planning, "identity", counted)
    plan_of(tmp_path, grid={"gamma": [0.5 + i / 100 for i in range(40)]})
    assert len(calls) < 4 * 40


def test_a_default_that_is_spelt_out_is_the_same_trial(tmp_path: Path) -> None:
    default = plan_of(tmp_path / "a").configurations[0].settings["algo_kwargs"]["gamma"]
    spelt = plan_of(tmp_path / "b", set={"gamma": default})
    assert spelt.trials == plan_of(tmp_path / "a").trials


@pytest.mark.parametrize("algo", ["bc", "cql", "iql"])
def test_discrete_actions_have_their_own_settings_and_defaults(algo: str, tmp_path: Path) -> None:
    """Those that a single run of the same file records."""
    fields = {"env_id": "CartPole-v1", "total_timesteps": 20, "device": "cpu", "eval_episodes": 0}
    fields |= {"dataset_kind": "random", "dataset_size": 50, "hidden_sizes": [8], "batch_size": 8}
    made = Study({"name": "discrete", "base": f"{algo}/cartpole", "set": fields, "seeds": [0]}, output_dir=tmp_path)
    (planned,) = made.plan(1).configurations
    made.run()
    assert [one["status"] for one in made.frame()] == ["done"]
    settings = {key: fields.pop(key) for key in ("dataset_kind", "dataset_size", "hidden_sizes", "batch_size")}
    config = load_config(f"{algo}/cartpole").config
    kwargs = {**config.algo_kwargs, **settings}
    alone = train(config.replace(**fields, algo_kwargs=kwargs, output_dir=str(tmp_path / "alone"), seed=0))
    recorded = json.loads((alone.checkpoint_path / "config.json").read_text(encoding="utf-8"))
    assert planned.settings["algo_kwargs"] == recorded["algo_kwargs"]


def test_discrete_data_without_an_environment_have_their_own_settings(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), 40
    columns = {"observations": rng.normal(size=(rows, 2)).astype(np.float32), "actions": rng.integers(3, size=rows)}
    columns |= {"rewards": rng.normal(size=rows).astype(np.float32), "terminals": np.ones(rows, np.bool_)}
    np.savez(tmp_path / "data.npz", **columns, timeouts=np.zeros(rows, np.bool_), num_actions=3)  # type: ignore[arg-type]
    fields = {"env_id": None, "total_timesteps": 20, "device": "cpu", "hidden_sizes": [8], "batch_size": 8}
    fields |= {"dataset_kind": "npz", "dataset_path": str(tmp_path / "data.npz")}
    made = Study({"name": "data", "base": "cql/cartpole", "set": fields, "seeds": [0]}, output_dir=tmp_path)
    made.run()
    assert [one["status"] for one in made.frame()] == ["done"]


def test_data_that_were_missing_are_read_when_they_are_there(tmp_path: Path) -> None:
    """A failed look at the actions of the data is not remembered."""
    fields = {"env_id": None, "dataset_kind": "npz", "dataset_path": str(tmp_path / "data.npz"), "device": "cpu"}

    def planned() -> dict[str, Any]:
        study = {"name": "data", "base": "cql/cartpole", "set": fields, "seeds": [0]}
        return read_description(study).wanted[0].config.algo_kwargs

    assert "actor_learning_rate" in planned()
    columns = {"observations": np.zeros((4, 2), np.float32), "rewards": np.zeros(4, np.float32)}
    columns |= {"actions": np.arange(4) % 3, "terminals": np.ones(4, np.bool_), "timeouts": np.zeros(4, np.bool_)}
    np.savez(tmp_path / "data.npz", **columns)  # type: ignore[arg-type]
    assert "actor_learning_rate" not in planned()


@pytest.mark.parametrize("grid", [{"n_step": [1, 3]}, {"network": ["mlp", "simba"]}, {"residual_blocks": [2, 3]}])
def test_a_setting_that_0_2_did_not_have_may_vary_from_its_default_on(grid: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(tmp_path, grid=grid, seeds=[0])
    assert [one.changes for one in plan.configurations] == [
        {f"algo_kwargs.{k}": v} for k, vs in grid.items() for v in vs
    ]


def test_the_first_seeds_of_all_configurations_come_first(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, grid={"gamma": [0.8, 0.9]})
    assert members(plan) == [[(0.8, 0)], [(0.9, 0)], [(0.8, 1)], [(0.9, 1)]]


def test_groups_hold_what_a_population_could_train_together(tmp_path: Path) -> None:
    grid = {"gamma": [0.8, 0.9], "double_q": [True, False]}
    plan = plan_of(tmp_path, grid=grid, population=3)
    for group in plan.groups:
        double = {plan.configurations[t.configuration].changes["algo_kwargs.double_q"] for t in group.trials}
        assert len(double) == 1
    assert [len(group.trials) for group in plan.groups] == [3, 3, 1, 1]
    assert len({trial.name for trial in plan.trials}) == 8


@pytest.mark.parametrize("population", ["off", "auto"])
def test_a_group_is_one_trial_on_a_cpu(tmp_path: Path, population: str) -> None:
    plan = plan_of(tmp_path, population=population)
    assert [len(group.trials) for group in plan.groups] == [1, 1]


def test_a_study_grows_at_its_end_and_old_groups_stay(tmp_path: Path) -> None:
    before = plan_of(tmp_path, population=2, seeds=[0, 1, 2])
    begin(tmp_path)
    after = plan_of(tmp_path, population=2, seeds=[0, 1, 2, 3], grid={"gamma": [0.8, default_gamma(before)]})
    assert after.members[: len(before.members)] == before.members
    old = {trial.name for trial in before.trials}
    new = [trial for group in after.groups[len(before.groups) :] for trial in group.trials]
    assert old.isdisjoint(trial.name for trial in new)
    assert len(new) == 5  # a fourth seed of the old configuration, and four of the new one


def default_gamma(plan: Plan) -> float:
    return float(plan.configurations[0].settings["algo_kwargs"]["gamma"])


def test_the_same_study_again_changes_nothing(tmp_path: Path) -> None:
    before = plan_of(tmp_path)
    begin(tmp_path)
    assert plan_of(tmp_path) == before


def test_where_it_runs_may_change(tmp_path: Path) -> None:
    plan_of(tmp_path)
    begin(tmp_path)
    after = plan_of(tmp_path, set={"tags": ["later"]})
    assert after.config_of(after.trials[0], tmp_path).tags == ("later",)


def test_a_changed_base_is_refused_with_its_differences(tmp_path: Path) -> None:
    before = plan_of(tmp_path)
    begin(tmp_path)
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, set={"total_timesteps": 80, "batch_size": 4})
    assert "dqn/cartpole has changed since this study began" in str(caught.value)
    assert "total_timesteps 60 -> 80; batch_size 8 -> 4" in str(caught.value)
    assert read_plan(tmp_path / "tiny") == before


def test_what_was_planned_may_not_vanish(tmp_path: Path) -> None:
    plan_of(tmp_path, grid={"gamma": [0.8, 0.9]})
    begin(tmp_path)
    with pytest.raises(ConfigError, match=r"gamma=0\.8 was planned and is missing now; a study only grows"):
        plan_of(tmp_path, grid={"gamma": [0.9]})
    with pytest.raises(ConfigError, match="seed 1 was planned and is missing now"):
        plan_of(tmp_path, grid={"gamma": [0.8, 0.9]}, seeds=[0])


def test_before_anything_has_begun_everything_may_change(tmp_path: Path) -> None:
    plan_of(tmp_path, grid={"gamma": [0.8, 0.9]})
    plan = plan_of(tmp_path, set={"total_timesteps": 80}, seeds=[5])
    assert [trial.seed for trial in plan.trials] == [5]


def test_two_ways_to_one_trial_are_refused(tmp_path: Path) -> None:
    default = plan_of(tmp_path / "x").configurations[0].settings["algo_kwargs"]["double_q"]
    with pytest.raises(ConfigError, match=r"gamma=0\.9 and gamma=0\.9, double_q=.* are the same trial"):
        plan_of(tmp_path, list=[{"gamma": 0.9}, {"gamma": 0.9, "double_q": default}])


def test_a_setting_that_is_new_in_a_later_version_makes_no_new_trial(tmp_path: Path) -> None:
    """The plan of an earlier version does not have the setting; hashes were made without it."""
    folder = tmp_path / "tiny"
    plan_of(tmp_path)
    record = json.loads((folder / "plan.json").read_text())
    (old,) = record["configurations"]
    for settings in (old["settings"], record["tasks"][0]["settings"]):
        del settings["algo_kwargs"]["double_q"], settings["eval_max_steps"]
    old["hash"] = hash_of(identity(old["settings"]))
    (folder / "plan.json").write_text(json.dumps(record))
    begin(tmp_path)
    after = plan_of(tmp_path, seeds=[0, 1, 2])
    assert [one.hash for one in after.configurations] == [old["hash"]]
    assert [trial.seed for trial in after.trials] == [0, 1, 2]
    changed = not read_description(tiny_study()).bases[0].algo_kwargs["double_q"]
    with pytest.raises(ConfigError, match=f"double_q {not changed} -> {changed}"):
        plan_of(tmp_path, set={"double_q": changed})


def test_threads_are_fixed_with_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(planning, "available_cores", lambda: 8)
    study = study_in(tmp_path, threads=None)
    assert study.plan(workers=4).threads == 2
    begin(tmp_path)
    assert study.plan(workers=1).threads == 2
    with pytest.raises(ConfigError, match="threads: 3 differs from the 2 this study began with"):
        plan_of(tmp_path, threads=3)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="exists and is not a study's folder"):
        plan_of(tmp_path)
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["thesis.tex"]


def test_a_sweep_that_was_killed_before_it_had_a_plan_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        """Raised in place of the end of the process."""

    def kill(name: str) -> None:
        if name == "before rename plan.json":
            raise Killed

    monkeypatch.setattr(files, "failpoint", kill)
    with pytest.raises(Killed):
        plan_of(tmp_path)
    assert not (tmp_path / "tiny" / "plan.json").exists()
    monkeypatch.undo()
    assert len(plan_of(tmp_path).trials) == 2


def test_a_folder_of_another_study_is_refused(tmp_path: Path) -> None:
    plan_of(tmp_path)
    begin(tmp_path)
    (tmp_path / "tiny").rename(tmp_path / "other")
    with pytest.raises(ConfigError, match="the folder holds another study, 'tiny'"):
        plan_of(tmp_path, name="other")


def test_a_disk_that_cannot_hold_it_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot hold a study: Not a directory"):
        plan_of(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "damaged"),
        ("[]", "not the plan of a study"),
        ('{"kind": "rl_training.study", "schema": 99}', "schema 99 needs a newer rl_training"),
        ('{"kind": "rl_training.study", "schema": 1}', "damaged"),
    ],
)
def test_a_damaged_plan_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    plan_of(tmp_path)
    (tmp_path / "tiny" / "plan.json").write_text(text)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_plan(tmp_path / "tiny")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../x", "a\nb", "\x1b[31mred", ".hidden", ""])
def test_names_that_are_not_plain_are_refused(tmp_path: Path, name: str) -> None:
    plan_of(tmp_path)
    place = tmp_path / "tiny" / "plan.json"
    record = json.loads(place.read_text())
    place.write_text(json.dumps(record | {"name": name}))
    with pytest.raises(CheckpointError, match="its names are not plain"):
        read_plan(tmp_path / "tiny")
    record["configurations"][0]["hash"] = f"{name}/x" if name.startswith(".") else name or "../../x"
    place.write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match="its names are not plain"):
        read_plan(tmp_path / "tiny")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", 10**9),
        ("threads", True),
        ("claim_timeout", 1e308),
        ("claim_timeout", "60"),
        ("claim_timeout", 0),
    ],
)
def test_numbers_out_of_bounds_are_refused_in_a_plan_from_elsewhere(
    tmp_path: Path, field: str, value: object
) -> None:
    plan_of(tmp_path)
    place = tmp_path / "tiny" / "plan.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {field: value}))
    with pytest.raises(CheckpointError, match=f"{field} must be") as caught:
        read_plan(tmp_path / "tiny")
    assert "\n" not in str(caught.value)
