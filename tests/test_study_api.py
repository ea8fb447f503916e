"""`Study` in Python and the commands: results, the best configuration, status without torch, exit codes."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import rl_training
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.study import Study
from rl_training.study.claims import Owner, take
from rl_training.study.plan import read_plan
from rl_training.study.study import TrialWatcher, _better_so_far, _of_task, _scored, iqm
from rl_training.study.trials import Failure, note_failure
from tests.bare import Bare
from tests.studies import homes, study_in, tiny_study
from tests.test_startup import COMMAND

PAGE = (Path(__file__).parents[1] / "docs" / "guides" / "seeds.md").read_text(encoding="utf-8")
DOCS = PAGE.partition("\n## Studies\n")[2].partition("\n## Ray\n")[0]


def command(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two configurations and four seeds, done."""
    made = study_in(tmp_path_factory.mktemp("api"), grid={"gamma": [0.5, 0.99]}, seeds=[0, 1, 2, 3])
    made.run()
    return made


def with_returns(study: Study, monkeypatch: pytest.MonkeyPatch, returns: dict[float, list[float | None]]) -> None:
    """As if the trials of each gamma had had these returns; None: not done."""
    records = study.frame()
    for record in records:
        value = returns[record["settings"]["gamma"]][record["seed"]]
        record["metrics"] = {} if value is None else {"eval_return_mean": value}
    monkeypatch.setattr(Study, "frame", lambda self: records)


def test_a_frame_is_one_plain_record_per_trial(study: Study) -> None:
    frame = study.frame()
    assert json.loads(json.dumps(frame)) == frame
    assert [(one["settings"], one["seed"], one["status"]) for one in frame] == [
        ({"gamma": gamma}, seed, "done") for seed in (0, 1, 2, 3) for gamma in (0.5, 0.99)
    ]
    for one in frame:
        assert one["metrics"]["global_step"] == one["step"] == 60
        assert one["best"] == one["metrics"]["eval_return_best"]
        assert (one["algo"], one["env_id"], one["task"]) == ("dqn", "CartPole-v1", "dqn/cartpole")


def test_the_interquartile_mean_leaves_out_the_quarters() -> None:
    assert iqm([1.0, 2.0, 3.0]) == 2.0
    assert iqm([-100.0, 1.0, 3.0, 100.0]) == 2.0
    assert iqm([float(i) for i in range(10)]) == 4.5


def test_the_best_is_that_of_all_seeds_together(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    with_returns(study, monkeypatch, {0.5: [1.0, 1.0, 2.0, 500.0], 0.99: [30.0, 31.0, 33.0, 34.0]})
    best = study.best()
    assert (best.settings, best.score, best.incomplete) == ({"gamma": 0.99}, 32.0, [])
    assert [trial["seed"] for trial in best.trials] == [0, 1, 2, 3]
    assert study.best(by="mean").settings == {"gamma": 0.5}
    assert study.best(by="median").score == 32.0
    assert study.best(lowest=True, by="min").settings == {"gamma": 0.5}
    with pytest.raises(ConfigError, match=r"^best: less validation_distance is better; pass lowest=True$"):
        study.best("validation_distance")


def test_a_selection_warns_of_a_damaged_newest_checkpoint(tmp_path: Path) -> None:
    made = study_in(tmp_path, seeds=[0])
    made.run()
    newest = made.select("return").checkpoint
    assert newest is not None
    (newest / "networks.safetensors").write_bytes(b"rubbish")
    with pytest.warns(UserWarning, match=f"^skipped a damaged checkpoint: .*{newest.name}"):
        assert made.select("return").checkpoint != newest


def test_what_is_not_complete_is_not_compared(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    with_returns(study, monkeypatch, {0.5: [1.0, 2.0, 3.0, 4.0], 0.99: [500.0, 500.0, None, 500.0]})
    best = study.best()
    assert (best.settings, best.incomplete) == ({"gamma": 0.5}, [{"gamma": 0.99}])
    with pytest.raises(ConfigError, match="no configuration has all its trials done with a x"):
        study.best("x")
    with pytest.raises(ConfigError, match=r"done with a eval_return_men; did you mean 'eval_return_mean'\?$"):
        study.best("eval_return_men")
    assert study.best("eval/mean_reward") == best  # its name in the log
    with pytest.raises(ConfigError, match="by must be one of iqm, mean, median, min"):
        study.best(by="mode")  # type: ignore[arg-type]


def test_tasks_are_not_compared_with_each_other(tmp_path: Path) -> None:
    fields = tiny_study(tasks=[{"config": "dqn/cartpole"}, {"config": "dqn/lunarlander"}], seeds=[0])
    del fields["base"]
    made = Study(fields | {"set": {**fields["set"], "env_id": "CartPole-v1"}}, output_dir=tmp_path)
    made.plan()
    with pytest.raises(ConfigError, match="name one task of this study: dqn/cartpole, dqn/lunarlander"):
        made.best()


def test_environments_are_not_compared_with_each_other(tmp_path: Path) -> None:
    """Not even in tasks of one file. Tasks of several files are compared if their environment is named."""
    fields = tiny_study(grid={"env_id": ["CartPole-v1", "Acrobot-v1"]}, seeds=[0])
    del fields["set"]["env_id"]
    made = Study(fields, output_dir=tmp_path / "environments")
    made.plan()
    with pytest.raises(ConfigError, match="name one environment as the task: CartPole-v1, Acrobot-v1"):
        made.best()
    with pytest.raises(ConfigError, match="select: name one environment as the task"):
        made.select("return")
    with pytest.raises(ConfigError, match="no configuration has all its trials done"):
        made.best(task="Acrobot-v1")
    fields = tiny_study(tasks=[{"config": "dqn/cartpole"}, {"config": "dqn/lunarlander"}], seeds=[0])
    del fields["base"]
    files = Study(fields, output_dir=tmp_path / "files")
    files.plan()
    with pytest.raises(ConfigError, match="no configuration has all its trials done"):
        files.best(task="CartPole-v1")


def test_an_environment_with_other_arguments_is_another_one(tmp_path: Path) -> None:
    """The tasks have the same file and the same environment's name."""
    tasks = [
        {"config": "dqn/cartpole"},
        {"config": "dqn/cartpole", "set": {"env_kwargs.sutton_barto_reward": True}},
    ]
    fields = tiny_study(tasks=tasks, seeds=[0])
    del fields["base"]
    made = Study(fields, output_dir=tmp_path)
    made.plan()
    other = 'CartPole-v1 {"sutton_barto_reward": true}'
    for task in (None, "dqn/cartpole"):
        with pytest.raises(ConfigError, match=f"best: name one environment as the task: CartPole-v1, {other}"):
            made.best(task=task)
    assert [_of_task(made.frame(), task, "best")[0]["env_kwargs"] for task in ("CartPole-v1", other)] == [
        {},
        {"sutton_barto_reward": True},
    ]


@pytest.mark.parametrize(
    ("setting", "value", "other"),
    [
        ("wrappers", [{"TimeLimit": {"max_episode_steps": 9}}], '[{"TimeLimit": {"max_episode_steps": 9}}]'),
        ("eval_env", "CartPole-v0", '"CartPole-v0"'),
        ("eval_max_steps", 100, "100"),
    ],
)
def test_other_wrappers_are_not_compared(setting: str, value: object, other: str, tmp_path: Path) -> None:
    tasks = [{"config": "dqn/cartpole"}, {"config": "dqn/cartpole", "set": {setting: value}}]
    fields = tiny_study(tasks=tasks, seeds=[0])
    del fields["base"]
    made = Study(fields, output_dir=tmp_path)
    made.plan()
    words = re.escape(f"best: name one environment as the task: CartPole-v1, CartPole-v1 {other}")
    with pytest.raises(ConfigError, match=words):
        made.best()
    assert [record[setting] for record in _of_task(made.frame(), f"CartPole-v1 {other}", "best")] == [value]


def test_tasks_without_an_environment_are_not_compared_with_each_other() -> None:
    records: list[dict[str, Any]] = [{"task": task, "env_id": None, "env_kwargs": {}} for task in ("iql", "td3_bc")]
    with pytest.raises(ConfigError, match="best: name one task of this study: iql, td3_bc"):
        _of_task(records, None, "best")
    assert _of_task(records, "td3_bc", "best") == records[1:]


def test_runs_without_an_environment_are_compared_in_their_eval_env() -> None:
    evaluated = {"env_id": None, "env_kwargs": {}, "eval_env": "CartPole-v1"}
    records: list[dict[str, Any]] = [{"task": "iql", "trial": name} | evaluated for name in "ab"]
    assert _of_task(records, None, "best") == records
    records[0] = records[0] | {"eval_env": "CartPole-v0"}
    with pytest.raises(ConfigError, match='the task: no environment "CartPole-v0", no environment "CartPole-v1"'):
        _of_task(records, None, "best")
    assert _of_task(records, 'no environment "CartPole-v0"', "best") == records[:1]


def test_a_study_is_opened_by_its_folder(study: Study) -> None:
    assert Study(study.folder).frame() == study.frame()
    assert rl_training.Study is Study


def test_sweep_exits_with_1_if_a_trial_failed(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    fields = tiny_study(seeds=[0], set={"env_kwargs": {"no_such_argument": 1}})
    del fields["name"]
    file.write_text(dump_yaml(fields))
    done = command("--quiet", "sweep", file, "--output-dir", tmp_path / "studies")
    assert done.exit_code == 1
    assert "bad: 1 failed" in done.stdout
    assert re.search(r"CartPole-v1__dqn__[0-9a-f]{8}__s0 +[12] +.*no_such_argument", done.stdout)


def test_sweep_refuses_with_one_line_and_2(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("base: dqn/cartpole\nseeds: [1, 1]\n")
    done = command("sweep", file, "--output-dir", tmp_path / "studies")
    assert (done.exit_code, done.stderr) == (2, f"error: {file}:2: seeds: 1 is given twice\n")
    assert not (tmp_path / "studies").exists()
    assert command("sweep", file, "--workers", 0).exit_code == 2
    assert command("work", tmp_path).exit_code == 2
    assert command("status", tmp_path / "nothing").stderr.startswith(
        f"error: {tmp_path / 'nothing'}: no such folder"
    )


def test_status_shows_the_worker_of_each_trial(tmp_path: Path) -> None:
    made = study_in(tmp_path, seeds=[0, 1, 2])
    plan = made.plan()
    claim = take(made.folder, plan.groups[0].name, Owner.me(), 60.0)
    assert claim is not None
    note_failure(made.folder, plan.trials[1], Failure(4, "the loss is NaN"))
    with claim:
        shown = command("status", made.folder).stdout
        record = json.loads(command("status", made.folder, "--json").stdout)
    assert record["counts"] == {"done": 0, "running": 1, "waiting": 1, "failed": 1}
    assert [trial["status"] for trial in record["trials"]] == ["running", "failed", "waiting"]
    assert record["trials"][0]["host"] == Owner.me().host
    assert record["trials"][0]["heartbeat_age"] >= 0
    assert record["trials"][1]["failure"] == {"code": 4, "message": "the loss is NaN"}
    assert "tiny: 1 running, 1 waiting, 1 failed" in shown
    assert f"{plan.trials[0].name}  {Owner.me().host}" in shown
    assert command("status", made.folder).stdout.startswith("tiny: 2 waiting, 1 failed\n")


def test_trials_that_end_right_after_a_look_are_printed_at_the_end(tmp_path: Path) -> None:
    made, said = study_in(tmp_path), list[str]()
    trials = made.plan().trials
    with TrialWatcher(made.folder, said.append) as watch:
        watch()
        for trial in trials:
            note_failure(made.folder, trial, Failure(4, "the loss is NaN"))
        watch()
        assert said == []
    lines = [f"failed: {trial.name}: the loss is NaN (exit code 4)" for trial in trials]
    assert said == [f"1/2 {lines[0]}", f"2/2 {lines[1]}"]


def test_time_left_is_known_from_what_is_done(tmp_path: Path) -> None:
    made = study_in(tmp_path, seeds=[0])
    made.run()
    assert made.status().seconds_left == 0
    study_in(tmp_path, seeds=[0, 1]).plan()
    (home, _) = homes(made.folder)
    took = json.loads((home / "run.json").read_text())["seconds"]
    assert made.status().seconds_left == pytest.approx(took)


def test_updates_before_the_first_step_are_not_steps_of_a_running_trial(tmp_path: Path) -> None:
    made = study_in(tmp_path, seeds=[0])
    (trial,) = made.plan().trials
    home = made.folder / "runs" / trial.name
    home.mkdir(parents=True)
    lines = [
        "step,time,schema,time/total_timesteps,eval/mean_reward",
        "300,1,2,0.0,",
        "320,2,2,20.0,",
        "340,3,2,,7.0",
    ]
    for rows, step in ((2, 0), (3, 20), (4, 40)):
        (home / "metrics.csv").write_text("\n".join(lines[:rows]) + "\n")
        assert made.status().trials[0].step == step
    assert made.status().trials[0].eval_return == 7.0
    (home / "metrics.csv").write_text("step,time,schema,eval/mean_reward\n300,1,2,5.0\n")
    record = {"algo": "rlpd", "env_id": None, "seed": 0, "status": "running", "versions": {}, "resumed": []}
    (home / "run.json").write_text(json.dumps(record | {"pretraining": 300}))
    assert made.status().trials[0].step == 0


def test_status_is_shown_again_until_the_study_is_over(study: Study) -> None:
    once = command("status", study.folder).stdout
    assert command("status", study.folder, "--watch", "0.1").stdout == once  # it is over


def test_status_and_help_are_answered_without_torch(study: Study, commanded: Bare) -> None:
    for words in (["status", str(study.folder)], ["status", str(study.folder), "--json"], ["sweep", "--help"]):
        done = commanded.run(COMMAND, *words)
        assert (done.returncode, done.stderr) == (0, "imported []\n")


def test_pack_and_unpack_are_commands(study: Study, tmp_path: Path) -> None:
    file, back = tmp_path / "tiny.zip", tmp_path / "back"
    assert command("study", "pack", study.folder, "-o", file).exit_code == 0
    assert command("study", "unpack", file, "-o", back).stdout == f"wrote {back}\n"
    assert len(read_plan(back).trials) == 8


@pytest.mark.slow
def test_the_examples_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its study with a hundredth of the steps, its program, and its commands."""
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"^```yaml\n# gamma\.yaml\n(.*?)^```$", DOCS, re.M | re.S)
    tiny = "total_timesteps: 600, learning_starts: 100, hidden_sizes: [8], eval_episodes: 1"
    steps = re.sub(r"total_timesteps: \d+", tiny, text)
    assert steps != text
    Path("gamma.yaml").write_text(steps)
    assert command("--quiet", "sweep", "gamma.yaml").exit_code == 0
    scope: dict[str, Any] = {}
    (program,) = re.findall(r"^```python\n(.*?)^```$", DOCS, re.M | re.S)
    exec(compile(program, "seeds.md", "exec", dont_inherit=True), scope)
    assert scope["best"].settings["gamma"] in (0.9, 0.99)
    for line in re.findall(r"^rl-training (.*?)(?:  #.*)?$", DOCS, re.M):
        assert command(*line.split(), "--help").exit_code == 0, line


def test_data_and_device_belong_to_the_file_of_a_study(study: Study, tmp_path: Path) -> None:
    answer = command("sweep", study.folder, "--data", tmp_path)
    assert answer.exit_code == 2
    assert "a study's folder has its data and device; give its file to change them" in answer.stderr
    with pytest.raises(ConfigError, match="device must be auto, cpu, cuda or cuda:N"):
        Study(tiny_study(), output_dir=tmp_path, device="abacus")
    elsewhere = Study(tiny_study(set={"device": "cuda"}), output_dir=tmp_path, device="cpu").plan()
    assert {one.settings["device"] for one in elsewhere.configurations} == {"cpu"}


def test_a_study_is_packed_with_the_policies_that_are_asked_for(study: Study, tmp_path: Path) -> None:
    for policies in ("last", "none"):
        answer = command("study", "pack", study.folder, "-o", tmp_path / f"{policies}.zip", "--policies", policies)
        assert answer.exit_code == 0
        names = zipfile.ZipFile(tmp_path / f"{policies}.zip").namelist()
        assert {name.split("/")[2] for name in names if name.endswith(".safetensors")} == {policies} - {"none"}


def test_only_a_tuning_leaves_out_configurations_with_fewer_seeds() -> None:
    records = [
        {"hash": name, "seed": seed, "metrics": {"return": value}}
        for name, values in {"few": [5.0, 7.0], "many": [1.0, 1.0, 4.0]}.items()
        for seed, value in enumerate(values)
    ]
    groups, scores = _scored(records, "return", "mean", frozenset())
    assert (set(groups), scores) == ({"few", "many"}, {"few": 6.0, "many": 2.0})
    groups, scores = _scored(records, "return", "mean", frozenset({2}))
    assert (set(groups), scores) == ({"many"}, {"many": 4.0})


def test_a_configuration_is_better_so_far_only_by_the_seeds_that_are_compared() -> None:
    group = [
        {"trial": f"t{seed}", "seed": seed, "status": "done" if value else "failed", "metrics": value}
        for seed, value in ((0, {"return": 9.0}), (100, {"return": 3.0}), (101, {}))
    ]
    (warning,) = _better_so_far(group, "return", 5.0, frozenset())
    assert "a higher score so far, 6.00 over 2 of 3 seeds" in warning
    assert _better_so_far(group, "return", 5.0, frozenset({100, 101})) == []
