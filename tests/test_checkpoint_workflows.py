"""Uses of a checkpoint: evaluate it, predict with it, resume, start another run from it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.data.transitions import RowLayout
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import find_checkpoint, list_checkpoints, read_checkpoint
from rl_training.experiment.config import load_config
from rl_training.experiment.retention import copy_checkpoint
from rl_training.report.reading import read_runs
from rl_training.runs.evaluation import Evaluations
from rl_training.runs.session import TrainResult
from rl_training.runs.state import spaces_from
from rl_training.runtime.loading import load_policy
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, record_checkpoint
from tests.runs import (
    ALL,
    differences,
    fingerprint,
    logged,
    mostly_slow,
    replay_rows,
    resume,
    run_record,
    tiny,
    train,
    trainer_state,
)
from tests.test_callbacks import StopAt
from tests.test_offline_runtime import identity_data


@pytest.fixture(scope="module", params=mostly_slow(ALL, "dqn", "td3_bc", "iql", "rlpd"))
def finished(request: pytest.FixtureRequest, finished: Callable[[str], TrainResult]) -> tuple[str, TrainResult]:
    """A finished run of each algorithm, with checkpoints at 30 and 60."""
    return request.param, finished(request.param)


def observations(algo: str) -> Any:
    return np.random.default_rng(1).normal(size=(6, 4 if algo == "dqn" else 3))


def test_evaluating_a_checkpoint_repeats_the_run_s_evaluation(finished: tuple[str, TrainResult]) -> None:
    _, result = finished
    metrics = evaluate_checkpoint(result.checkpoint_path)
    assert metrics == {name: result.metrics[name] for name in metrics}
    assert evaluate_checkpoint(result.run_dir, num_episodes=3)["eval_episodes"] == 3


def test_predicting_is_what_the_policy_does(finished: tuple[str, TrainResult]) -> None:
    algo, result = finished
    obs = observations(algo)
    loaded = load_policy(read_checkpoint(result.checkpoint_path))
    with torch.inference_mode():
        internal = loaded.policy.mode(torch.from_numpy(obs.astype(np.float32))).numpy()
    found = predict_checkpoint(result.checkpoint_path, obs, deterministic=True)  # FQL's policy samples otherwise
    assert np.array_equal(found, loaded.spaces.to_env(internal))


def test_a_finished_run_resumes_to_itself(finished: tuple[str, TrainResult], tmp_path: Path) -> None:
    _, result = finished
    copy = Path(shutil.copytree(result.run_dir, tmp_path / "copy"))
    again = resume(copy)
    assert differences(result, again) == []


def test_after_a_move_it_predicts_the_same_without_environment(
    finished: tuple[str, TrainResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algo, result = finished
    obs = observations(algo)
    expected = predict_checkpoint(result.checkpoint_path, obs, deterministic=True)
    moved = shutil.copytree(result.checkpoint_path, tmp_path / "elsewhere")
    monkeypatch.setattr(gym, "make", None)
    assert np.array_equal(predict_checkpoint(moved, obs, deterministic=True), expected)


@pytest.mark.slow  # by default test_load_anywhere starts a fresh process
@pytest.mark.parametrize("algo", ["dqn", "sac", "td3_bc", "iql"])  # one per kind of policy
def test_another_process_after_a_move_without_environment(algo: str, tmp_path: Path) -> None:
    result = train(tiny(algo, tmp_path / "runs", eval_episodes=0))
    obs = observations(algo)
    expected = predict_checkpoint(result.checkpoint_path, obs)
    moved = tmp_path / "elsewhere"
    shutil.move(result.checkpoint_path, moved)
    shutil.rmtree(tmp_path / "runs")
    program = (
        "import sys, json, torch; torch.set_num_threads(1); import gymnasium; gymnasium.make = None;"
        "from rl_training.runtime.workflows import predict_checkpoint;"
        "print(json.dumps(predict_checkpoint(sys.argv[1], json.loads(sys.argv[2])).tolist()))"
    )
    source = Path(__file__).parents[1] / "src"
    done = subprocess.run(
        [sys.executable, "-c", program, str(moved), json.dumps(obs.tolist())],
        env={"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == expected.tolist()


def test_a_checkpoint_holds_what_it_should(finished: tuple[str, TrainResult]) -> None:
    algo, result = finished
    checkpoint = read_checkpoint(result.checkpoint_path)
    online = algo in ("dqn", "ddpg", "td3", "sac", "tqc", "redq", "crossq", "flash_sac", "rlpd")
    assert {"networks", "optimizers", "random"} <= checkpoint.tensors.keys()
    assert ("collector" in checkpoint.tensors) == online == (checkpoint.rows is not None)
    assert {"trainer", "config", "spaces"} <= checkpoint.records.keys()
    assert checkpoint.records["config"]["algo"] == algo
    # Filled rows only: 60 of the 500 slots of the ring are in use.
    rows = 0 if checkpoint.rows is None else checkpoint.rows.filled * checkpoint.rows.width * 4
    size = sum(file.stat().st_size for file in result.checkpoint_path.rglob("*") if file.is_file())
    assert size <= rows + 1_000_000


# The rest is the same for every algorithm.


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(tiny("sac", tmp_path_factory.mktemp("sac"), kwargs={"eval_interval": 20}))


@pytest.fixture
def run(sac_run: TrainResult, tmp_path: Path) -> Path:
    """A copy of a finished SAC run that a test may damage."""
    return Path(shutil.copytree(sac_run.run_dir, tmp_path / "run"))


def test_an_older_checkpoint_goes_on_in_a_folder_of_its_own(run: Path, sac_run: TrainResult) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    older = list_checkpoints(run / "checkpoints")[0]
    result = resume(older)
    assert result.run_dir != run
    assert result.run_dir.name.endswith("__resumed")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    ours, theirs = fingerprint(result.checkpoint_path), fingerprint(sac_run.checkpoint_path)
    assert {name for name in ours if ours[name] != theirs.get(name)} == {"trainer/log_rows"}
    assert [row["step"] for row in logged(result.run_dir)] == ["40", "60"]


def test_a_resume_on_another_device_is_recorded_as_inexact(run: Path) -> None:
    record = run_record(run)
    for device, exact in (("auto", True), ("cpu", True), ("cuda:0", False)):
        (run / "run.json").write_text(json.dumps(record | {"device": device}))
        after = run_record(resume(run, overrides=["total_timesteps=60"]).run_dir)
        assert (after["exact_resume"], after["device"]) == (exact, "cpu")
    assert after["inexact"] == ["step 60: changed since the run began: device cuda -> cpu"]


def test_later_changes_of_a_run_do_not_make_an_older_checkpoint_inexact(run: Path) -> None:
    resume(run, overrides=["total_timesteps=80", "batch_size=8"])
    assert run_record(run)["exact_resume"] is False
    older, changed = list_checkpoints(run / "checkpoints")[::2]
    assert run_record(resume(older).run_dir)["exact_resume"] is True
    (reason,) = run_record(resume(copy_checkpoint(changed, run.parent / "copy")).run_dir)["inexact"]
    assert "the run of its checkpoint is not exact: step 60: settings have changed" in reason


@pytest.mark.parametrize(
    ("before", "after", "best"), [((3.0, 1.0, 2.0), (2.0, 0.0), (20, 3.0)), ((1.0, 0.5, 9.0), (0.2, 0), (60, 0.2))]
)
def test_a_run_that_continues_in_a_new_folder_has_its_best_policy(
    before: tuple[float, ...],
    after: tuple[float, ...],
    best: tuple[int, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The best policy is copied if it is older than the checkpoint; otherwise its score is discarded."""
    scores = dict(zip((20, 40, 60), before))
    metrics = {"eval_return_std": 0.0, "eval_episodes": 1.0}
    monkeypatch.setattr(
        Evaluations, "_play", lambda own, _: metrics | {"eval_return_mean": scores[own._session.clock.ticks]}
    )
    config = tiny("sac", tmp_path, kwargs={"eval_interval": 20}, checkpoint_interval=20, keep_checkpoints=3)
    older = list_checkpoints(train(config).run_dir / "checkpoints")[1]
    scores |= dict(zip((60, 80), after))
    result = resume(older, overrides=["total_timesteps=80"])
    (policy,) = list_checkpoints(result.run_dir / "best")
    assert (trainer_state(policy)["clock"]["global_step"], result.metrics["eval_return_best"]) == best
    predict_checkpoint(result.run_dir / "best", np.zeros(3))
    (run,) = read_runs(result.run_dir).runs
    assert run.notes == (f"its log begins after {older}, from which it resumed in a new folder",)


def test_a_damaged_newest_checkpoint_is_skipped_on_resume(run: Path, sac_run: TrainResult) -> None:
    newest = find_checkpoint(run)
    (newest / "networks.safetensors").write_bytes(b"rubbish")
    said: list[str] = []
    result = resume(run, warn=said.append)
    assert result.run_dir == run
    assert len(said) == 1
    assert f"{newest.name}" in said[0]
    assert differences(sac_run, result) == []


def test_a_run_that_starts_from_a_run_warns_of_its_damaged_newest_checkpoint(run: Path, tmp_path: Path) -> None:
    newest = find_checkpoint(run)
    (newest / "networks.safetensors").write_bytes(b"rubbish")
    with pytest.warns(UserWarning, match=f"^skipped a damaged checkpoint: .*{newest.name}"):
        train(tiny("sac", tmp_path / "new", init_from=str(run), total_timesteps=20))


def test_a_damaged_checkpoint_named_directly_is_refused(run: Path) -> None:
    newest = find_checkpoint(run)
    (newest / "trainer.json").unlink()
    for action in (evaluate_checkpoint, resume):
        with pytest.raises(CheckpointError, match=r"trainer\.json"):
            action(newest)
    with pytest.raises(CheckpointError, match=r"trainer\.json"):
        predict_checkpoint(newest, np.zeros(3))


def test_a_kill_between_commit_and_cleanup_needs_no_new_folder(run: Path, sac_run: TrainResult) -> None:
    newest = find_checkpoint(run)
    shutil.copytree(newest, newest.with_name(f"{newest.name}.old"))
    result = resume(run)
    assert result.run_dir == run
    assert differences(sac_run, result) == []


def test_the_best_policy_predicts_and_evaluates_but_does_not_resume(run: Path) -> None:
    best = run / "best"
    assert "eval_return_mean" in evaluate_checkpoint(best)
    assert predict_checkpoint(best, np.zeros(3)).shape == (1,)
    with pytest.raises(ConfigError, match="holds a policy only; resume the run folder, or use init_from"):
        resume(best)


def test_an_environment_with_other_spaces_is_refused(run: Path) -> None:
    change = {"env_id": "MountainCarContinuous-v0"}
    with pytest.raises(
        CheckpointError,
        match=r"changed \(the environment has observations of 2 numbers and .* trained on .* 3 numbers",
    ):
        resume(run, changes=change)
    with pytest.raises(ConfigError, match="does not fit the policy"):
        evaluate_checkpoint(run, changes=change)


def test_another_buffer_capacity_is_refused(run: Path) -> None:
    kwargs = read_checkpoint(find_checkpoint(run)).records["config"]["algo_kwargs"]
    with pytest.raises(ConfigError, match="buffer_capacity: 9 differs from the checkpoint's 500"):
        resume(run, changes={"algo_kwargs": kwargs | {"buffer_capacity": 9}})
    assert run_record(run)["status"] == "finished"


def test_other_networks_are_refused_and_nothing_is_lost(run: Path) -> None:
    before = fingerprint(find_checkpoint(run))
    kwargs = read_checkpoint(find_checkpoint(run)).records["config"]["algo_kwargs"]
    record = run_record(run)
    with pytest.raises(ConfigError, match=r"hidden_sizes: \[8\] differs from the \[.*\] of this run's networks"):
        resume(run, changes={"algo_kwargs": kwargs | {"hidden_sizes": [8]}})
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.activation: tanh differs from the relu of this run's"):
        resume(run, changes={"algo_kwargs": kwargs | {"activation": "tanh"}})
    with pytest.raises(ConfigError, match="num_envs: 2 differs"):
        resume(run, changes={"num_envs": 2})
    with pytest.raises(ConfigError, match="'td3' cannot resume what 'sac' trained"):
        resume(run, overrides=["algo=td3"])
    assert fingerprint(find_checkpoint(run)) == before
    assert run_record(run) == record


def test_a_resumed_run_records_its_settings(run: Path) -> None:
    resume(run, overrides=["total_timesteps=80", "log_interval=7"])
    settings = load_config(run / "config.resolved.yaml").config
    assert (settings.total_timesteps, settings.log_interval) == (80, 7)


def test_evaluating_refuses_unknown_settings(run: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'typo'"):
        evaluate_checkpoint(run, 1, overrides=["algo_kwargs.typo=3"])


@pytest.mark.parametrize("text", ["{}", '{"versions": null}', "{"])
def test_a_damaged_record_is_one_line(run: Path, text: str) -> None:
    (run / "run.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"run\.json: damaged"):
        resume(run)


@pytest.mark.parametrize("override", ["env_id=Reacher-v5", "env_kwargs.g=0.0"])
def test_an_environment_that_would_not_be_played_is_refused(override: str, tmp_path: Path) -> None:
    """A run with `eval_env` is evaluated there, without `env_kwargs`."""
    run = train(tiny("sac", tmp_path, eval_env="Pendulum-v1")).run_dir
    refused = rf"^{override.partition('=')[0].partition('.')[0]}: has no effect: .* its eval_env, Pendulum-v1; "
    with pytest.raises(ConfigError, match=refused):
        evaluate_checkpoint(run, overrides=[override])
    with pytest.raises(ConfigError, match=refused):
        record_checkpoint(run, tmp_path / "it.gif", overrides=[override])
    usual, still = (
        evaluate_checkpoint(run, 1, overrides=changed)["eval_return_mean"]
        for changed in ([], ["env_kwargs.g=0.0", "eval_env=null"])
    )
    assert usual != still


def test_evaluating_needs_an_episode(run: Path) -> None:
    with pytest.raises(ConfigError, match="num_episodes must be >= 1, got 0"):
        evaluate_checkpoint(run, num_episodes=0)


def test_the_number_of_episodes_is_a_whole_number(run: Path, tmp_path: Path) -> None:
    assert evaluate_checkpoint(run, num_episodes=1e0) == evaluate_checkpoint(run, num_episodes=1)  # type: ignore[arg-type]
    for wrong in (2.5, "3", True):
        with pytest.raises(ConfigError, match=f"^num_episodes must be a whole number, got {wrong!r}$"):
            evaluate_checkpoint(run, num_episodes=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"^num_episodes must be a whole number, got {wrong!r}$"):
            record_checkpoint(run, tmp_path / "it.gif", wrong)  # type: ignore[arg-type]


def test_a_larger_budget_continues_a_finished_run(run: Path) -> None:
    result = resume(run, changes={"total_timesteps": 75})
    assert result.run_dir == run
    assert result.metrics["global_step"] == 75
    assert [int(row["step"]) for row in logged(run) if "train/n_updates" in row] == [20, 40, 60]


def test_only_one_process_can_lock_a_run(run: Path) -> None:
    from rl_training.experiment.runs import RunDirectory

    with RunDirectory.open(run), pytest.raises(ConfigError, match="in use by process"):
        resume(run)


# Starting from another run's networks.


@pytest.mark.parametrize(
    ("offline", "online"),
    mostly_slow(
        [("awac", "sac"), ("crr", "sac"), ("cql", "sac"), ("edac", "redq"), ("iql", "td3")],
        ("edac", "redq"),
        ("iql", "td3"),
    ),
)
def test_an_offline_policy_continues_online(offline: str, online: str, tmp_path: Path) -> None:
    """A run that ends before learning starts has the given policy, and all other networks that fit."""
    same = {"num_critics": 2} if offline == "cql" else {}  # as SAC has
    before = train(tiny(offline, tmp_path, kwargs=same, total_timesteps=20, eval_episodes=0))
    config = tiny(online, tmp_path, init_from=str(before.run_dir), eval_episodes=0)
    after = train(config, [StopAt(10)])
    obs = observations(online)
    assert np.array_equal(
        predict_checkpoint(after.checkpoint_path, obs), predict_checkpoint(before.checkpoint_path, obs)
    )
    theirs = read_checkpoint(before.checkpoint_path).tensors["networks"]
    ours = read_checkpoint(after.checkpoint_path).tensors["networks"]
    shared = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    assert any(name.startswith("model.critics.") for name in shared) or offline == "iql"
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)
    for name in ours:
        if name.startswith("model.target_"):  # no target update yet: every target equals its source
            assert torch.equal(ours[name], ours[name.replace("target_", "")]) or name in shared


def test_a_target_that_the_other_run_lacks_starts_as_a_copy_of_its_source(tmp_path: Path) -> None:
    """AWAC has no target policy. After a negligible update, CRR's target policy equals the initial policy."""
    before = train(tiny("awac", tmp_path, total_timesteps=20, eval_episodes=0))
    kwargs = {"learning_rate": 1e-30}
    config = tiny("crr", tmp_path, kwargs=kwargs, init_from=before.run_dir, total_timesteps=1, eval_episodes=0)
    theirs = read_checkpoint(before.checkpoint_path).tensors["networks"]
    ours = read_checkpoint(train(config).checkpoint_path).tensors["networks"]
    targets = [name for name in ours if name.startswith("target_actor.")]
    assert targets
    for name in targets:
        assert torch.equal(ours[name], theirs[f"model.{name.removeprefix('target_')}"]), name


def test_critics_are_copied_completely_or_not_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Critics with LayerNorm do not fit EDAC, although most of their tensors have the same shapes."""
    before = train(tiny("edac", tmp_path, kwargs={"num_critics": 3}, total_timesteps=20, eval_episodes=0))
    kwargs = {"num_critics": 3, "layer_norm": True, "offline_pretrain_updates": 0}
    config = tiny("rlpd", tmp_path, kwargs=kwargs, init_from=before.run_dir, eval_episodes=0)
    theirs = read_checkpoint(before.checkpoint_path).tensors["networks"]
    ours = read_checkpoint(train(config, [StopAt(10)]).checkpoint_path).tensors["networks"]
    name = "model.critics.net.hidden.1.weight"
    assert ours[name].shape == theirs[name].shape
    assert not torch.equal(ours[name], theirs[name])
    assert "they do not fit: model.critics, model.target_critics" in caplog.text


def test_critics_trained_with_layer_norm_are_not_copied_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kwargs = {"layer_norm": True}
    before = train(tiny("td3_bc", tmp_path, kwargs=kwargs, total_timesteps=20, eval_episodes=0))
    config = tiny("td3", tmp_path, init_from=before.run_dir, eval_episodes=0)
    theirs = read_checkpoint(before.checkpoint_path).tensors["networks"]
    ours = read_checkpoint(train(config, [StopAt(10)]).checkpoint_path).tensors["networks"]
    name = "model.critics.net.hidden.1.weight"
    assert ours[name].shape == theirs[name].shape
    assert not torch.equal(ours[name], theirs[name])
    assert torch.equal(ours["model.actor.net.head.weight"], theirs["model.actor.net.head.weight"])
    assert "they do not fit: model.critics, model.target_critics" in caplog.text


def test_an_initial_alpha_without_effect_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learned = {"alpha": "auto"}
    before = {
        alpha: train(tiny("sac", tmp_path, kwargs={"alpha": alpha}, total_timesteps=20, eval_episodes=0))
        for alpha in ("auto", 0.2)
    }

    def messages(alpha: Any, **kwargs: Any) -> list[str]:
        caplog.clear()
        fields = {"init_from": before[alpha].run_dir, "total_timesteps": 20, "eval_episodes": 0}
        train(tiny("sac", tmp_path, kwargs=learned | kwargs, **fields))
        return [message for message in caplog.messages if "alpha" in message]

    assert messages("auto") == messages(0.2, initial_alpha=0.5) == []
    copied = f"the learned alpha of {before['auto'].checkpoint_path} is copied"
    assert messages("auto", initial_alpha=0.5) == [f"algo_kwargs.initial_alpha: 0.5 has no effect; {copied}"]


def test_the_normaliser_is_copied_with_the_policy(tmp_path: Path) -> None:
    kwargs = {"normalize_observations": True}
    offline = train(tiny("awac", tmp_path, kwargs=kwargs, total_timesteps=20, eval_episodes=0))
    config = tiny("sac", tmp_path, init_from=str(offline.run_dir), eval_episodes=0)
    online = train(config, [StopAt(10)])
    obs = observations("sac")
    assert np.array_equal(
        predict_checkpoint(online.checkpoint_path, obs), predict_checkpoint(offline.checkpoint_path, obs)
    )
    further = resume(online.run_dir, changes={"total_timesteps": 30})
    assert "model.normalizer.shift" in read_checkpoint(further.checkpoint_path).tensors["networks"]


def test_rlpd_starts_from_an_offline_policy(tmp_path: Path) -> None:
    offline = train(tiny("edac", tmp_path, total_timesteps=20, eval_episodes=0))
    kwargs = {"offline_pretrain_updates": 0}
    config = tiny("rlpd", tmp_path, kwargs=kwargs, init_from=offline.run_dir, eval_episodes=0)
    online, obs = train(config, [StopAt(10)]), observations("sac")
    assert np.array_equal(
        predict_checkpoint(online.checkpoint_path, obs), predict_checkpoint(offline.checkpoint_path, obs)
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kwargs": {"hidden_sizes": [8]}}, "does not fit"),
        ({"env_id": "MountainCarContinuous-v0"}, "was trained for other spaces"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_in_one_line(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    offline = train(tiny("awac", tmp_path / "offline", total_timesteps=5, eval_episodes=0))
    with pytest.raises(ConfigError, match=message) as caught:
        train(tiny("sac", tmp_path / "online", init_from=str(offline.run_dir), **fields))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "online").exists()


def test_a_deeper_policy_is_refused_although_it_has_all_required_layers(tmp_path: Path) -> None:
    kwargs = {"hidden_sizes": [16, 16, 16]}
    before = train(tiny("awac", tmp_path / "offline", kwargs=kwargs, total_timesteps=5, eval_episodes=0))
    with pytest.raises(ConfigError, match=r"does not fit \(first difference: model\.actor\.net\.hidden\.2"):
        train(tiny("sac", tmp_path / "online", init_from=str(before.run_dir)))


def test_a_deterministic_policy_does_not_start_a_stochastic_one(tmp_path: Path) -> None:
    offline = train(tiny("td3_bc", tmp_path / "offline", total_timesteps=5), dataset=None)
    with pytest.raises(ConfigError, match=r"the td3_bc policy of .* does not fit"):
        train(tiny("sac", tmp_path / "online", init_from=str(offline.run_dir)))


def chosen_by_the_policy(run: TrainResult) -> list[bool]:
    """Which actions were chosen by the policy, in a run without updates and noise."""
    checkpoint = read_checkpoint(run.checkpoint_path)
    batch = RowLayout.of(spaces_from(checkpoint)).unpack(replay_rows(checkpoint))
    chosen = predict_checkpoint(run.checkpoint_path, batch.obs.numpy()) / 2.0
    close: list[bool] = np.isclose(batch.actions.numpy(), chosen, atol=1e-5)[:, 0].tolist()
    return close


@pytest.mark.parametrize(("random_steps", "randomly"), [(None, 0), (0, 0), (4, 4)])
def test_a_copied_policy_acts_from_the_first_step(random_steps: int | None, randomly: int, tmp_path: Path) -> None:
    taught = train(tiny("td3_bc", tmp_path, total_timesteps=20, eval_episodes=0))
    kwargs = {"exploration_noise": 0.0, "random_steps": random_steps}
    config = tiny("td3", tmp_path, kwargs=kwargs, init_from=taught.run_dir, eval_episodes=0)
    run = train(config, [StopAt(10)])
    assert chosen_by_the_policy(run) == [False] * randomly + [True] * (10 - randomly)
    assert np.array_equal(
        predict_checkpoint(run.checkpoint_path, np.ones(3)), predict_checkpoint(taught.checkpoint_path, np.ones(3))
    )


def test_random_steps_and_learning_starts_are_independent(tmp_path: Path) -> None:
    kwargs = {"exploration_noise": 0.0, "random_steps": 4}
    run = train(tiny("td3", tmp_path, kwargs=kwargs, eval_episodes=0), [StopAt(10)])
    assert chosen_by_the_policy(run) == [False] * 4 + [True] * 6
    assert run.metrics["update_count"] == 0


def test_own_arrays_then_online(tmp_path: Path) -> None:
    offline = train(tiny("awac", tmp_path, env_id=None, total_timesteps=5), dataset=identity_data())
    online = train(tiny("sac", tmp_path, env_id="Identity-v0", init_from=offline.checkpoint_path))
    assert online.metrics["global_step"] == 60
