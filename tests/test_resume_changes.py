"""Settings that change when a run is resumed: what is printed, what is recorded, and which scores still count."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import list_checkpoints, read_checkpoint
from rl_training.experiment.retention import find_checkpoint, folder_of
from rl_training.experiment.strict_yaml import parse_yaml
from rl_training.report.reading import read_runs
from rl_training.runs.callbacks import Callback
from rl_training.runs.changes import same_environment
from rl_training.runs.evaluation import Evaluations
from rl_training.runs.session import Session, TrainResult
from rl_training.runtime.resume import resume_population as resume_all
from rl_training.runtime.workflows import resume_training
from tests.dataset_files import episodes, save_npz
from tests.reliability.processes import Child
from tests.runs import QUIET, KillAt, Killed, interrupted, resume, run_record, tiny, train

SHORT = {"g": 10.0, "max_episode_steps": 5}


def short_run(folder: Path, *, kwargs: dict[str, Any] | None = None, **fields: Any) -> TrainResult:
    return train(tiny("sac", folder, kwargs=kwargs, env_kwargs=SHORT, total_timesteps=30, **fields))


def test_another_environment_is_named_recorded_and_scored_anew(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = short_run(tmp_path, kwargs={"eval_interval": 10})
    old_best = list_checkpoints(before.run_dir / "best")
    capfd.readouterr()
    after = resume_training(before.run_dir, overrides=["env_kwargs.g=0.5", "total_timesteps=50"])
    said = capfd.readouterr().err
    [line] = [line for line in said.splitlines() if line.startswith("changed settings: ")]
    assert "total_timesteps 30 -> 50" in line
    assert "env_kwargs.g 10.0 -> 0.5" in line
    assert "not an exact resume: the environment has changed: env_kwargs.g 10.0 -> 0.5\n" in said
    record = run_record(after.run_dir)
    assert record["exact_resume"] is False
    assert record["inexact"][-1] == "step 30: the environment has changed: env_kwargs.g 10.0 -> 0.5"
    resolved = parse_yaml((after.run_dir / "config.resolved.yaml").read_text(), "").value
    assert resolved["env_kwargs"] == SHORT | {"g": 0.5}

    [best] = list_checkpoints(after.run_dir / "best")
    assert read_checkpoint(best).records["config"]["env_kwargs"]["g"] == 0.5
    assert read_checkpoint(best).step > 30
    [kept] = list_checkpoints(after.run_dir / "earlier_best" / "1")
    assert [kept.name] == [path.name for path in old_best]
    assert read_checkpoint(kept).records["config"]["env_kwargs"]["g"] == 10.0
    [run] = read_runs(after.run_dir).runs
    assert run.best == after.metrics["eval_return_best"]
    assert [int(step) for step in run.curve.steps] == [40, 50]


@pytest.mark.parametrize("before", ["Pendulum-v1", "torch/Pendulum-v1"])
def test_a_run_stays_in_its_kind_of_environment(before: str, tmp_path: Path) -> None:
    """Their running episodes are stored in different ways."""
    run = train(tiny("sac", tmp_path, env_id=before, num_envs=2, total_timesteps=20, eval_episodes=0)).run_dir
    now = {"Pendulum-v1": "torch/Pendulum-v1", "torch/Pendulum-v1": "Pendulum-v1"}[before]
    message = f"^env_id: {now} is a .* and the run was trained in a .*; start a new run, with init_from for its"
    with pytest.raises(ConfigError, match=message):
        resume(run, changes={"env_id": now, "total_timesteps": 40})


def test_a_worse_score_is_the_best_of_another_environment(tmp_path: Path) -> None:
    before = short_run(tmp_path)
    changes = {"eval_max_steps": 50, "total_timesteps": 40, "env_kwargs": SHORT | {"max_episode_steps": 200}}
    longer = resume(before.run_dir, changes=changes)
    assert longer.metrics["eval_return_best"] == longer.metrics["eval_return_mean"]
    assert longer.metrics["eval_return_best"] < before.metrics["eval_return_best"]


def test_a_complete_run_is_evaluated_again_in_another_environment(tmp_path: Path) -> None:
    before = short_run(tmp_path)
    after = resume(before.run_dir, overrides=["env_kwargs.max_episode_steps=15"])
    assert after.metrics["eval_length_mean"] == 15
    assert after.metrics["eval_return_best"] == after.metrics["eval_return_mean"]
    [run] = read_runs(after.run_dir).runs
    assert (run.last, run.best) == (after.metrics["eval_return_mean"],) * 2


def test_early_stopping_starts_anew_in_another_environment(tmp_path: Path) -> None:
    """The returns of longer episodes are lower: compared across environments they would end the run at once."""
    kwargs = {"eval_interval": 10, "early_stopping": {"patience": 1, "min_improvement": 1e6}}
    before = train(tiny("sac", tmp_path, kwargs=kwargs, env_kwargs=SHORT, total_timesteps=60))
    assert before.metrics["global_step"] == 20  # one evaluation without improvement
    same = resume(before.run_dir)
    assert same.metrics["global_step"] == 20
    after = resume(before.run_dir, overrides=["env_kwargs.max_episode_steps=15"])
    assert after.metrics["global_step"] == 40  # the first evaluation counts as the best, the second ends it


def test_a_killed_run_stays_in_the_environment_it_was_moved_to(tmp_path: Path) -> None:
    before = short_run(tmp_path, checkpoint_interval=1_000)
    overrides = ["env_kwargs.g=0.5", "total_timesteps=60"]
    with pytest.raises(Killed):
        resume(before.run_dir, [KillAt(0)], overrides=overrides)
    newest = list_checkpoints(before.run_dir / "checkpoints")[-1]
    assert newest.name == "step_000000030"
    assert read_checkpoint(newest).records["config"]["env_kwargs"]["g"] == 0.5
    after = resume(before.run_dir)
    assert read_checkpoint(after.checkpoint_path).records["config"]["env_kwargs"]["g"] == 0.5
    assert after.metrics["global_step"] == 60
    [best] = list_checkpoints(after.run_dir / "best")
    assert read_checkpoint(best).records["config"]["env_kwargs"]["g"] == 0.5


class KillInStep(KillAt):
    def on_step(self, session: Session) -> None:
        self.kill(session.run.path)


@pytest.mark.parametrize("killer", [KillAt(0), KillInStep()], ids=["at the change", "in the first step"])
def test_a_best_policy_survives_a_visit_to_another_environment(killer: KillAt, tmp_path: Path) -> None:
    before = short_run(tmp_path, kwargs={"eval_interval": 10})
    run = before.run_dir
    [old_best] = list_checkpoints(run / "best")
    with pytest.raises(Killed):
        resume(run, [killer], overrides=["env_kwargs.g=0.5", "total_timesteps=60"])
    resume(run, overrides=["env_kwargs.g=10.0", "total_timesteps=40"])
    [kept] = list_checkpoints(run / "earlier_best" / "1")
    assert kept.name == old_best.name
    assert find_checkpoint(run / "earlier_best") == kept
    assert folder_of(kept) == run
    [best] = list_checkpoints(run / "best")
    assert read_checkpoint(best).step > 30


def test_the_best_policy_moves_when_the_environment_changes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = short_run(tmp_path, kwargs={"eval_interval": 10}).run_dir
    (run / "earlier_best" / "7").mkdir(parents=True)
    with pytest.raises(Killed):
        resume(run, [KillInStep()], overrides=["env_kwargs.g=0.5", "total_timesteps=60"])
    with pytest.raises(CheckpointError, match=r"best: no valid checkpoint$"):
        find_checkpoint(run / "best")
    assert len(list_checkpoints(run / "earlier_best" / "8")) == 1
    assert f"the earlier best policy is now in {run}/earlier_best/8\n" in capfd.readouterr().err


class KillProcessAt(Callback):
    """Kills the process at the end of a step, so that nothing is saved."""

    def __init__(self, tick: int) -> None:
        self.tick = tick

    def on_step(self, session: Session) -> None:
        if session.clock.ticks == self.tick:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("before", "after", "changes", "best", "aside"),
    [
        pytest.param(
            (1, 2, 9), (1.5, 0), ["gamma=0.5"], (20, 2), ["1/step_000000030"], id="the checkpoint is the best"
        ),
        pytest.param(
            (3, 1, 9), (0.5, 0), ["gamma=0.5"], (30, 0.5), ["1/step_000000030"], id="the best was replaced"
        ),
        pytest.param((3, 1, 2), (0.5, 0), ["gamma=0.5"], (10, 3), [], id="the best is older"),
        pytest.param((3, 1, 9), (9, 0), [], (30, 9), [], id="exact"),
    ],
)
def test_a_best_policy_of_discarded_steps(
    before: tuple[float, ...],
    after: tuple[float, ...],
    changes: list[str],
    best: tuple[int, float],
    aside: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run is killed after it has stored a best policy at step 30, and resumes from its checkpoint of step 20.

    It is killed again before its first evaluation.
    """
    scores = dict(zip((10, 20, 30), before))
    metrics = {"eval_return_std": 0.0, "eval_episodes": 1.0}
    monkeypatch.setattr(
        Evaluations, "_play", lambda own, _: metrics | {"eval_return_mean": scores[own._session.clock.ticks]}
    )
    config = tiny("sac", tmp_path, kwargs={"eval_interval": 10}, checkpoint_interval=20, total_timesteps=40)
    child = Child(lambda: train(config, [KillProcessAt(35)]), tmp_path / "output.txt")
    assert child.wait() == -signal.SIGKILL, child.text()
    [run] = tmp_path.glob("Pendulum*")
    scores |= dict(zip((30, 40), after))
    child = Child(lambda: resume(run, [KillProcessAt(25)], overrides=changes), tmp_path / "output.txt")
    assert child.wait() == -signal.SIGKILL, child.text()
    if changes:
        assert all(int(path.name[5:]) <= 20 for path in list_checkpoints(run / "best"))
    result = resume(run, overrides=changes)
    assert run_record(run)["exact_resume"] is not bool(changes)
    [policy] = list_checkpoints(run / "best")
    assert (read_checkpoint(policy).step, result.metrics["eval_return_best"]) == best
    assert [f"{path.parent.name}/{path.name}" for path in (run / "earlier_best").glob("*/*")] == aside


def test_a_resume_without_changes_says_nothing_of_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = interrupted(tiny("sac", tmp_path, env_kwargs=SHORT), 30)
    resume_training(run)
    assert "changed settings" not in capfd.readouterr().err
    record = run_record(run)
    assert (record["exact_resume"], record.get("inexact"), record.get("scores_from")) == (True, None, None)


def test_hyperparameters_that_change_are_named_and_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = interrupted(tiny("sac", tmp_path, env_kwargs=SHORT), 30)
    resume_training(run, overrides=["gamma=0.5", "log_interval=10"])
    said = capfd.readouterr().err
    assert "changed settings: log_interval 20 -> 10, algo_kwargs.gamma 0.99 -> 0.5\n" in said
    assert run_record(run)["exact_resume"] is False
    assert run_record(run)["inexact"] == ["step 30: settings have changed: algo_kwargs.gamma 0.99 -> 0.5"]
    assert not (run / "earlier_best").exists()


def test_other_data_are_named_and_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = [save_npz(tmp_path / f"{seed}.npz", episodes(seed=seed)) for seed in (0, 1)]
    bounds = {"action_low": [-9.0, -9.0], "action_high": [9.0, 9.0]}
    kwargs = bounds | {"dataset_kind": "npz", "dataset_path": str(files[0])}
    run = interrupted(tiny("td3_bc", tmp_path / "runs", env_id=None, kwargs=kwargs, eval_episodes=0), 30)
    first = run_record(run)["dataset"]
    resume_training(run, overrides=[f"dataset_path={files[1]}"])
    assert f"algo_kwargs.dataset_path {files[0]!s:.60} -> {files[1]!s:.60}" in capfd.readouterr().err
    record = run_record(run)
    assert record["dataset"]["fingerprint"] != first["fingerprint"]
    assert record["exact_resume"] is False
    assert record["inexact"][0].startswith("step 30: the data have changed: ")


@pytest.mark.parametrize("scale", [1.0, 1e-12])  # a small scale is that of large rewards
def test_data_that_scale_rewards_otherwise_are_refused_if_scaled_rows_are_stored(
    scale: float, tmp_path: Path
) -> None:
    """Rows in the replay buffer have the scale of the data that the run began with."""
    kwargs = {"dataset_kind": "random", "dataset_size": 400, "reward_range_scaling": True, "reward_scale": scale}
    run = train(tiny("rlpd", tmp_path, kwargs=kwargs)).run_dir
    total = f"total_timesteps={tiny('rlpd', tmp_path).total_timesteps + 10}"
    with pytest.raises(ConfigError, match=r"^dataset: rewards would have scale .* but those in the replay buffer"):
        resume_training(run, overrides=[total, "dataset_seed=1"])
    assert resume_training(run, overrides=[total]).metrics["global_step"] > 0
    plain = train(tiny("rlpd", tmp_path, kwargs=kwargs | {"reward_range_scaling": False})).run_dir
    assert resume_training(plain, overrides=[total, "dataset_seed=1"]).metrics["global_step"] > 0


def test_other_weights_of_a_mixture_are_recorded(tmp_path: Path) -> None:
    """The fingerprint of the data does not depend on them; neither weights nor rows depend on the folder."""
    bounds = {"action_low": [-9.0, -9.0], "action_high": [9.0, 9.0]}
    files = [save_npz(tmp_path / f"{seed}.npz", episodes(seed=seed)) for seed in (0, 1)]
    moved = [*files[:1], save_npz(tmp_path / "moved.npz", episodes(seed=1))]

    def mixed(paths: list[Path], weight: float) -> list[dict[str, Any]]:
        return [{"dataset_path": str(path), "weight": given} for path, given in zip(paths, (1.0, weight))]

    changed = "settings have changed: algo_kwargs.datasets.weight [1.0, 1.0] -> [1.0, 3.0]"
    for weight, inexact in ((1.0, None), (3.0, [f"step 30: {changed}"])):
        kwargs = bounds | {"dataset_kind": None, "datasets": mixed(files, 1.0)}
        folder = tmp_path / f"{weight:g}"
        run = interrupted(tiny("td3_bc", folder, env_id=None, kwargs=kwargs, eval_episodes=0), 30)
        before = read_checkpoint(find_checkpoint(run)).records["config"]["algo_kwargs"]
        resume(run, changes={"algo_kwargs": before | {"datasets": mixed(moved, weight)}})
        record = run_record(run)
        assert record["exact_resume"] is (inexact is None)
        assert record.get("inexact") == inexact


def test_a_population_names_a_change_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from rl_training.experiment.manager import ExperimentManager

    config = tiny("sac", tmp_path, env_kwargs=SHORT, seed=None, seeds=[0, 1], total_timesteps=30)
    results = ExperimentManager().train_all(config, options=QUIET)
    capfd.readouterr()
    resume_all(results[0].run_dir, overrides=["total_timesteps=40"])
    assert capfd.readouterr().err.count("changed settings: total_timesteps 30 -> 40") == 1
    for override in ("seed=5", "seeds=0..1"):
        with pytest.raises(ConfigError, match=r"^seeds?: .* cannot replace the seed 0 of a run; start a new run"):
            resume_all(results[0].run_dir, overrides=[override])
    assert [run_record(one.run_dir)["seed"] for one in results] == [0, 1]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=5", "seed: 5 cannot replace the seed 3 of a run; start a new run with --seed"),
        ("seeds=0..1", r"seeds: \(0, 1\) cannot replace the seed 3 of a run; start a new run with --seeds"),
    ],
)
@pytest.mark.parametrize("begun", [True, False], ids=["checkpoint", "no checkpoint"])
def test_a_run_keeps_its_seed(override: str, message: str, begun: bool, tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, env_kwargs=SHORT)
    if begun:
        run = interrupted(config, 30)
    else:
        with pytest.raises(Killed):
            train(config, [Dies()])
        [run] = tmp_path.iterdir()
    with pytest.raises(ConfigError, match=f"^{message}"):
        resume(run, overrides=[override])
    assert run_record(run)["seed"] == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("init_from=elsewhere", "init_from: cannot change in a resumed run; start a new run with --init-from$"),
        (
            "initial_alpha=0.5",
            "algo_kwargs.initial_alpha: 0.5 differs from the 1.0 of this run's networks; start a new run$",
        ),
    ],
)
def test_what_only_the_start_of_a_run_reads_is_refused(override: str, message: str, tmp_path: Path) -> None:
    """The networks and the learned alpha of a resumed run are those of its checkpoint."""
    run = train(tiny("sac", tmp_path, kwargs={"alpha": "auto"}, env_kwargs=SHORT, total_timesteps=30)).run_dir
    with pytest.raises(ConfigError, match=f"^{message}"):
        resume(run, overrides=[override])


class Dies(KillAt):
    def on_training_start(self, session: Session) -> None:
        session.begun = False  # nothing is saved
        raise Killed


def test_an_object_and_its_class_are_one_environment(tmp_path: Path) -> None:
    """Version 0.2 recorded a class by its bare name."""
    named = tiny("sac", tmp_path, env_id="valve:Tank")
    given = named.replace(env_id="Tank", given_envs=["env_id"])
    assert same_environment(given, named)
    assert same_environment(named, given)
    assert not same_environment(given, named.replace(env_id="valve:Pipe"))
    assert not same_environment(named, named.replace(env_id="other:Tank"))
    assert not same_environment(named, named.replace(eval_env="valve:Tank"))
