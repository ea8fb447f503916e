"""Fine-tuning (`regime: offline_to_online`): an offline algorithm continues in the environment."""

from __future__ import annotations

import logging
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rl_training import IQL, TD3BC
from rl_training.cli import main
from rl_training.data.datasets import TransitionDataset
from rl_training.data.extra_columns import NEXT_ACTIONS
from rl_training.data.n_step import NStepReturns
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sources import MixedSource, TensorSource
from rl_training.data.transitions import RowLayout
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator
from rl_training.errors import ConfigError, DatasetError
from rl_training.experience.collecting import collect_random
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, setting_names
from rl_training.runs.signals import TrainingInterrupted
from rl_training.runs.spec import RunOptions
from rl_training.runtime.fine_tuning import fine_tuning_config
from rl_training.runtime.offline_to_online import FineTuning
from tests.runs import (
    EVERY_STEP,
    FINE_TUNED,
    Callback,
    Session,
    differences,
    digest,
    interrupted,
    logged,
    mostly_slow,
    replay_rows,
    resume,
    run_record,
    tiny,
    train,
    trainer_state,
    unlike,
)

BOTH = "offline_to_online"


def tuned(algo: str, folder: Path, *, kwargs: dict[str, Any] | None = None, **fields: Any) -> TrainConfig:
    """30 updates on data, then 60 steps; the learning rate is constant, as it is by default in this regime."""
    return tiny(algo, folder, kwargs=kwargs, **{"regime": BOTH, "checkpoint_interval": 20} | fields)


def offline(algo: str, folder: Path, *, kwargs: dict[str, Any] | None = None, **fields: Any) -> TrainConfig:
    settings = {"learning_rate_schedule": "constant"} | (kwargs or {})
    return tiny(algo, folder, kwargs=settings, total_timesteps=30, **fields)


@pytest.mark.parametrize("algo", mostly_slow(FINE_TUNED, "awac"))
def test_an_offline_run_and_its_fine_tuning_equal_one_run_with_both(algo: str, tmp_path: Path) -> None:
    """All of the learner continues: networks, optimisers, counters, random state."""
    whole = train(tuned(algo, tmp_path / "whole"))
    first = train(offline(algo, tmp_path / "first"))
    then = train(tuned(algo, tmp_path / "then", kwargs={"offline_pretrain_updates": 0}, init_from=first.run_dir))
    found = [name for name in differences(whole, then) if not name.startswith("config/")]
    # The log of the second run begins where the data end, and its best score is of its own evaluations.
    assert set(found) <= {"metrics.csv", "checkpoints", "trainer/log_rows", "trainer/log_columns"}
    assert logged(then.run_dir) == [row for row in logged(whole.run_dir) if int(row["step"]) > 30 - 1][-4:]
    assert then.metrics["pretrain_updates_done"] == 30


def test_updates_of_the_offline_run_count_as_pretraining(tmp_path: Path) -> None:
    whole = train(tuned("iql", tmp_path / "whole", kwargs={"offline_pretrain_updates": 45}))
    first = train(offline("iql", tmp_path / "first"))
    fields = {"init_from": first.run_dir, "kwargs": {"offline_pretrain_updates": 45}}
    then = train(tuned("iql", tmp_path / "then", **fields))
    assert then.metrics == whole.metrics
    assert then.metrics["pretrain_updates_done"] == run_record(then.run_dir)["pretraining"] == 45


def test_intervals_continue_after_the_updates_of_the_offline_run(tmp_path: Path) -> None:
    first = train(offline("iql", tmp_path / "first"))
    kwargs = {"offline_pretrain_updates": 45, "eval_interval": 20}
    fields: dict[str, Any] = {"kwargs": kwargs, "checkpoint_interval": 7, "keep_checkpoints": 20}
    whole = train(tuned("iql", tmp_path / "whole", **fields))
    then = train(tuned("iql", tmp_path / "then", init_from=first.run_dir, **fields))
    assert logged(then.run_dir) == [row for row in logged(whole.run_dir) if int(row["step"]) > 30]
    saved = [[path.name for path in sorted((run.run_dir / "checkpoints").glob("step_*"))] for run in (whole, then)]
    assert saved[1] == [name for name in saved[0] if name > "step_000000030"]


def test_another_seed_has_its_own_random_numbers(tmp_path: Path) -> None:
    first = train(offline("awac", tmp_path / "first"))
    runs = [
        train(tuned("awac", tmp_path / str(seed), seed=seed, init_from=first.run_dir, total_timesteps=25))
        for seed in (3, 4)
    ]
    states = [read_checkpoint(run.checkpoint_path).tensors["random"]["updates"] for run in runs]
    assert not torch.equal(*states)


def test_a_run_whose_optimisers_differ_gives_its_networks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = train(offline("iql", tmp_path / "first"))
    other = tuned("iql", tmp_path / "other", init_from=first.run_dir, kwargs=EVERY_STEP)
    best = next((first.run_dir / "best").iterdir())  # without optimisers
    result = train(other.replace(init_from=str(best)))
    assert result.metrics["update_count"] == 30 + 41  # the updates on data are repeated
    critics = tuned("iql", tmp_path / "critics", init_from=first.run_dir, kwargs={"critic_hidden_sizes": [8]})
    with caplog.at_level(logging.WARNING):
        train(critics)
    assert "other optimisers or networks; its optimisers are not copied" in caplog.text


@pytest.mark.parametrize("regime", ["offline", "offline_to_online"])
def test_networks_that_would_compute_something_else_are_refused(regime: str, tmp_path: Path) -> None:
    """Their tensors have the same shapes."""
    first = train(offline("iql", tmp_path / "first", kwargs={"activation": "tanh"}))
    make = tuned if regime == "offline_to_online" else offline
    message = "algo_kwargs.activation: 'relu' differs from the 'tanh' of the networks in .*; use it for init_from"
    with pytest.raises(ConfigError, match=message):
        train(make("iql", tmp_path / "then", init_from=str(first.run_dir)))


@pytest.mark.parametrize(
    "kwargs", [{"layer_norm": True}, {"network": "simba", "hidden_sizes": [8]}], ids=["critics", "simba"]
)
def test_another_epsilon_of_layer_norm_is_refused(kwargs: dict[str, Any], tmp_path: Path) -> None:
    first = train(offline("iql", tmp_path / "first", kwargs=kwargs | {"layer_norm_epsilon": 1e-2}))
    message = "algo_kwargs.layer_norm_epsilon: 1e-06 differs from the 0.01 of the networks in"
    with pytest.raises(ConfigError, match=message):
        train(offline("iql", tmp_path / "then", init_from=str(first.run_dir), kwargs=kwargs))


def test_without_layer_norm_its_epsilon_may_differ(tmp_path: Path) -> None:
    first = train(offline("iql", tmp_path / "first", kwargs={"layer_norm_epsilon": 1e-2}))
    train(offline("iql", tmp_path / "then", init_from=str(first.run_dir)))


def test_a_policy_without_optimisers_is_continued_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = train(offline("iql", tmp_path / "first"))
    best = next((first.run_dir / "best").iterdir())
    train(tuned("iql", tmp_path / "then", init_from=str(best), total_timesteps=25))
    assert f"{best} has no optimisers; they and the count of updates start anew" in caplog.text


@pytest.mark.parametrize(
    ("algo", "change", "before"),
    [
        ("awac", "reward_scale=2.0", "1.0"),
        ("cal_ql", "gamma=0.5", "0.99"),
        ("cal_ql", "failure_reward=0.0", "None"),
    ],
)
def test_settings_of_stored_rows_cannot_change(algo: str, change: str, before: str, tmp_path: Path) -> None:
    """Rewards are stored scaled, and Cal-QL's returns are stored."""
    run = interrupted(tuned(algo, tmp_path), 30 + 20)
    name, now = change.split("=")
    with pytest.raises(ConfigError, match=f"{name}: {now} differs from the {before} of this run's replay buffer"):
        resume(run, overrides=[change])


def test_a_new_run_makes_its_evaluation_before_the_first_step(tmp_path: Path) -> None:
    result = train(tuned("awac", tmp_path, kwargs={"offline_pretrain_updates": 25}))
    before = [row for row in logged(result.run_dir) if row["step"] == "25"]
    assert len(before) == 1
    assert "eval/mean_reward" in before[0]
    assert "time/total_timesteps" not in before[0] or before[0]["time/total_timesteps"] == "0.0"


def test_a_signal_in_that_evaluation_ends_the_run_and_it_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tuned("awac", tmp_path)
    straight, play, sent = train(config), Evaluator.run, []

    def ended(self: Evaluator, *arguments: Any) -> dict[str, float]:
        sent.append(signal.raise_signal(signal.SIGTERM))
        return play(self, *arguments)

    monkeypatch.setattr(Evaluator, "run", ended)
    with pytest.raises(TrainingInterrupted, match="interrupted at step 30"):
        train(config)
    monkeypatch.undo()
    run = max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(sent) == 1
    assert trainer_state(find_checkpoint(run))["clock"]["phase"] == "pretrain"
    assert differences(straight, resume(run)) == []


class Watch(Callback):
    """Keeps the policy's parameters after each step."""

    def __init__(self) -> None:
        self.policies: dict[int, list[str]] = {}

    def on_step(self, session: Session) -> None:
        if session.clock.phase == "online":
            actor = session.learner.model.actor
            self.policies[session.clock.global_step] = [digest(p) for p in actor.parameters()]


def test_the_policy_acts_and_stays_the_same_in_the_warm_up(tmp_path: Path) -> None:
    watch = Watch()
    kwargs = {"online_warmup_steps": 30, "random_steps": 50} | EVERY_STEP
    result = train(tuned("td3_bc", tmp_path, kwargs=kwargs), [watch])
    assert result.metrics["update_count"] == 30 + 31
    policies = watch.policies
    assert all(policies[step] == policies[1] for step in range(1, 30))
    assert policies[60] != policies[1]


def test_without_a_warm_up_the_first_steps_are_the_policy_s_and_have_no_updates(tmp_path: Path) -> None:
    assert FineTuning.defaults["random_steps"] == 0
    result = train(tuned("iql", tmp_path, kwargs=EVERY_STEP))
    assert result.metrics["update_count"] == 30 + 41  # learning_starts is 20


def test_members_of_a_population_equal_their_single_runs(tmp_path: Path) -> None:
    config = tuned("iql", tmp_path / "one")
    single = train(config)
    together = IQL(config.replace(seed=None, seeds=[3, 4], output_dir=str(tmp_path / "both")))
    member, other = together.learn(progress_bar=False)  # type: ignore[misc]
    found = [name for name in unlike(single, member) if not name.startswith("config/")]
    assert found == []
    assert other.metrics["eval_return_mean"] != member.metrics["eval_return_mean"]


@pytest.mark.parametrize(("algo", "apart"), [("td3_bc", True), ("iql", False)])
def test_members_that_continue_runs_of_different_lengths_equal_their_single_runs(
    algo: str, apart: bool, tmp_path: Path
) -> None:
    """The actor's delay counts from the first environment step, which is at another update in each of them."""
    settings = {"policy_delay": 3} if algo == "td3_bc" else {}
    for seed, updates in ((3, 30), (4, 40), (5, 36)):
        config = tiny(algo, tmp_path / "from", kwargs=settings, seed=seed, total_timesteps=updates)
        train(config).run_dir.rename(tmp_path / f"s{seed}")
    settings |= {"offline_pretrain_updates": 0, "learning_starts": 5}
    origins = str(tmp_path / "s{seed}")
    config = tuned(algo, tmp_path / "one", kwargs=settings, init_from=origins)
    singles = [train(config.replace(seed=seed)) for seed in (3, 4, 5)]
    kind = TD3BC if algo == "td3_bc" else IQL
    model = kind(config.replace(seed=None, seeds=[3, 4, 5], output_dir=str(tmp_path / "all")))
    members: Any = model.learn(progress_bar=False)
    for single, member in zip(singles, members):
        assert [name for name in unlike(single, member) if not name.startswith("config/")] == []
    names = [member.run_dir.name for member in members]
    together = [run_record(member.run_dir)["trained_with"] for member in members]
    first, second, third = names
    assert together == ([[first, third], [second], [first, third]] if apart else [names] * 3)
    assert all(run_record(member.run_dir)["population"] == {"members": names} for member in members)
    again: Any = model.resume(70, progress_bar=False)
    assert [result.run_dir.name for result in again] == names
    assert [member.config.seed for member in model.members] == [3, 4, 5]
    assert [member.run_dir.name for member in model.members if member.run_dir is not None] == names


def test_rewards_of_new_rows_are_scaled_as_the_data_are(tmp_path: Path) -> None:
    def rewards(name: str, **kwargs: Any) -> np.ndarray[Any, Any]:
        result = train(
            tuned("awac", tmp_path / name, kwargs={**kwargs, "offline_pretrain_updates": 0, "gamma": 0.0})
        )
        rows = replay_rows(read_checkpoint(result.checkpoint_path))
        return rows[:20, -2].numpy()

    raw = rewards("raw")
    np.testing.assert_allclose(rewards("scaled", reward_scale=0.1, reward_shift=2.0), 0.1 * raw + 2.0, rtol=1e-6)


def test_settings_of_the_environment_need_the_regime(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'buffer_capacity'; it needs regime: offline_to_online"):
        IQL("Pendulum-v1", buffer_capacity=100)
    with pytest.raises(ConfigError, match="bc has no regime 'offline_to_online'; use offline"):
        train(tiny("bc", tmp_path).replace(regime=BOTH))
    with pytest.raises(ConfigError, match="iql learns online and needs an environment"):
        train(tuned("iql", tmp_path, env_id=None))
    with pytest.raises(ConfigError, match="CartPole-v1"):
        train(tuned("iql", tmp_path, env_id="CartPole-v1"))
    assert not list(tmp_path.iterdir())


def test_a_new_row_has_the_action_that_followed_it() -> None:
    """Two environments, whose rows alternate: the second one's episode is cut after its first step."""
    layout = RowLayout(obs_dim=1, action_dim=1, discrete=False, extras=(NEXT_ACTIONS,))
    returns = NStepReturns(1, 0.9, 2, torch.device("cpu"), replayed=True)
    ring = ReplayBuffer(6, layout, torch.Generator(), n_step=returns)
    actions, obs = np.arange(6, dtype=np.float32)[:, None], np.zeros((6, 1), np.float32)
    dones = ring.dones(np.array([0, 0, 1, 0, 0, 0], bool), np.array([0, 1, 0, 0, 0, 0], bool))
    for step in (slice(0, 2), slice(2, 4), slice(4, 6)):
        ring.add(layout.pack(obs[step], actions[step], obs[step, 0], obs[step], dones[step]))
    batch = layout.unpack(ring.sample_rows(200))
    assert batch.next_actions is not None
    pairs = dict(zip(batch.actions[:, 0].tolist(), batch.next_actions[:, 0].tolist()))
    # Row 0 is followed by row 2, row 1 was cut, row 2 terminated, row 3 is followed by row 5, rows 4 and 5 are new.
    assert pairs == {0: 2, 1: 1, 2: 2, 3: 5, 4: 4, 5: 5}
    assert set(batch.dones.tolist()) == {0.0, 1.0}


def test_proportional_batches_are_drawn_from_all_rows_alike() -> None:
    layout = RowLayout(obs_dim=1, action_dim=1, discrete=False)
    generator = torch.Generator().manual_seed(0)
    replay = ReplayBuffer(50, layout, generator)
    mixed = MixedSource(TensorSource(torch.ones(30, layout.width), layout, generator), replay, ratio=None)
    replay.add(np.zeros((10, layout.width), np.float32))
    assert mixed.expected(16) == (12.0, 4.0)
    assert mixed.sample_rows(4_000)[:, 0].mean() == pytest.approx(0.75, abs=0.03)
    replay.add(np.zeros((60, layout.width), np.float32))  # the ring is full
    assert mixed.sample_rows(4_000)[:, 0].mean() == pytest.approx(30 / 80, abs=0.03)


def test_a_run_with_proportional_batches_reports_its_mean_share(tmp_path: Path) -> None:
    result = train(tuned("awac", tmp_path, kwargs={"offline_batch_ratio": "proportional"}))
    assert result.metrics["offline_batch_size"] == pytest.approx(16 * 100 / 160)
    assert result.metrics["online_batch_size"] == pytest.approx(16 * 60 / 160)


def test_the_command_keeps_settings_data_and_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kwargs = {"expectile": 0.8, "max_updates": 30, "eval_interval": 10}
    first = train(offline("iql", tmp_path, kwargs=kwargs | {"learning_rate_schedule": "cosine"}))
    options = ["--steps", "25", "--set", "learning_starts=5", "--output-dir", "tuned"]
    done = CliRunner().invoke(main, ["finetune", str(first.run_dir), *options])
    assert done.exit_code == 0, done.output
    (run,) = (tmp_path / "tuned").iterdir()
    settings = read_checkpoint(next((run / "checkpoints").iterdir())).records["config"]
    kept = settings["algo_kwargs"]
    assert (settings["regime"], settings["total_timesteps"], settings["seed"]) == (BOTH, 25, 3)
    assert (kept["expectile"], kept["dataset_size"], kept["batch_size"]) == (0.8, 100, 16)
    assert (kept["learning_rate_schedule"]["type"], kept["max_updates"], kept["eval_interval"]) == (
        "constant",
        None,
        None,
    )
    assert logged(run)[0]["step"] == "30"  # evaluated before the first step
    assert run_record(run)["metrics"]["pretrain_updates_done"] == 30
    assert run_record(run)["metrics"]["update_count"] == 30 + 21


def test_the_command_takes_offline_runs_alone(tmp_path: Path) -> None:
    online = train(tiny("sac", tmp_path)).run_dir
    with pytest.raises(ConfigError, match="not an offline run; use resume, or init_from in a new run"):
        fine_tuning_config(str(online), {"total_timesteps": 10})
    cloned = train(offline("bc", tmp_path, kwargs={})).run_dir
    both = "td3_bc, iql, cql, awac, rebrac, fql, cal_ql"
    with pytest.raises(ConfigError, match=f": bc cannot be fine-tuned, only {both}$"):
        fine_tuning_config(str(cloned), {"total_timesteps": 10})


def test_the_command_names_what_it_cannot_fine_tune(tmp_path: Path) -> None:
    choices = train(tiny("iql", tmp_path, env_id="CartPole-v1", total_timesteps=3)).run_dir
    with pytest.raises(ConfigError, match="its actions are discrete; only continuous ones can be fine-tuned"):
        fine_tuning_config(str(choices), {"total_timesteps": 10})
    with pytest.raises(DatasetError, match=r"a published policy comes without its data, add --set dataset_path=…$"):
        fine_tuning_config("gallery/awac", {"total_timesteps": 10})


def test_a_run_on_arrays_in_memory_is_fine_tuned_in_python(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).uniform(-1.0, 1.0, (40, 3))
    data = TransitionDataset.from_arrays(
        numbers,
        numbers[:, :1],
        numbers[:, 1],
        np.zeros(40),
        np.arange(40) % 20 == 19,
        action_low=-2.0,
        action_high=2.0,
    )
    kwargs = {"dataset_kind": None}
    first = train(offline("iql", tmp_path / "first", kwargs=kwargs), dataset=data).run_dir
    with pytest.raises(ConfigError, match=r"in memory; start a run with init_from, .* and learn\(dataset=…\)"):
        fine_tuning_config(str(first), {"total_timesteps": 10})
    config = tuned("iql", tmp_path / "then", kwargs=kwargs | EVERY_STEP, init_from=first, total_timesteps=25)
    result = train(config, dataset=data)
    assert result.metrics["update_count"] == 30 + 6


def test_a_resumed_run_keeps_its_regime(tmp_path: Path) -> None:
    run = train(offline("iql", tmp_path)).run_dir
    with pytest.raises(ConfigError, match="regime: cannot change in a resumed run; start a run with init_from"):
        resume(run, overrides=["regime=offline_to_online"])


def test_the_regime_and_its_settings_are_written_in_any_order(tmp_path: Path) -> None:
    overrides = ["buffer_capacity=77", "regime=offline_to_online"]
    config = tiny("iql", tmp_path).with_overrides(overrides, lambda values: get_algorithm_spec("iql").owners())
    assert config.regime == BOTH
    assert config.algo_kwargs["buffer_capacity"] == 77


def test_cloning_is_not_repeated_after_an_origin_without_optimisers(tmp_path: Path) -> None:
    """`best/` has no count of updates: what is left of `bc_steps` is computed, and recorded for a resumed run."""
    kwargs = {"bc_steps": 35}
    first = train(offline("cql", tmp_path / "first", kwargs=kwargs))
    best = next((first.run_dir / "best").iterdir())
    fields = {"kwargs": {**kwargs, "offline_pretrain_updates": 0}, "init_from": str(best)}
    then = train(tuned("cql", tmp_path / "then", **fields))
    assert read_checkpoint(then.checkpoint_path).records["config"]["algo_kwargs"]["bc_steps"] == 5
    last = train(tuned("cql", tmp_path / "last", **fields | {"init_from": first.run_dir}))
    assert read_checkpoint(last.checkpoint_path).records["config"]["algo_kwargs"]["bc_steps"] == 35


def test_a_budget_that_the_offline_run_has_used_up_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = train(offline("awac", tmp_path)).run_dir
    config = fine_tuning_config(str(first), {"total_timesteps": 25}, ["max_updates=30"])
    with pytest.raises(ConfigError, match=r"max_updates: 30 includes the 30 updates of .*, so none are left"):
        train(config)
    result = train(config.with_overrides(["max_updates=31", "learning_starts=5"], setting_names))
    assert result.metrics["update_count"] == 31
    assert resume(result.run_dir).metrics["update_count"] == 31
    assert "this run is complete; increase max_updates or max_epochs to continue" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "overrides", "named"),
    [
        ({}, ["dataset_seed=1"], "dataset_seed 0 -> 1"),
        ({"env_id": "Moon-v0"}, [], "env_id Pendulum-v1 -> Moon-v0"),
        ({}, [], None),
    ],
)
def test_other_data_than_those_of_the_offline_run_are_named(
    changes: dict[str, Any],
    overrides: list[str],
    named: str | None,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moon = replace(gym.spec("Pendulum-v1"), id="Moon-v0", kwargs={"g": 1.6})
    monkeypatch.setitem(gym.registry, "Moon-v0", moon)
    first = train(offline("awac", tmp_path)).run_dir
    config = fine_tuning_config(str(first), {"total_timesteps": 25, **changes}, overrides)
    train(config, options=RunOptions())
    said = [line for line in capfd.readouterr().err.splitlines() if "data differ" in line]
    assert said == ([] if named is None else [f"its data differ from those of that run: {named}"])


def test_another_environment_is_not_named_as_the_cause_of_other_rows_of_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = offline("awac", tmp_path)
    file = collect_random(config, spaces_of(config), 600, seed=0).save(tmp_path / "x.npz")
    kwargs = {"dataset_kind": "npz", "dataset_path": str(file), "validation_fraction": 0.4}
    first = train(offline("awac", tmp_path, env_id=None, kwargs=kwargs)).run_dir
    config = fine_tuning_config(str(first), {"total_timesteps": 25, "env_id": "Pendulum-v1"})
    train(config, options=RunOptions())
    rows = f"400 rows of {file} -> 600 rows of {file}"
    assert f"its data differ from those of that run: {rows}\n" in capfd.readouterr().err


def test_a_changed_number_of_updates_stretches_a_schedule_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = interrupted(tuned("awac", tmp_path, kwargs={"learning_rate_schedule": "linear"}), 20)
    capfd.readouterr()
    resume(run, overrides=["offline_pretrain_updates=40"])
    said = "note: algo_kwargs.offline_pretrain_updates 30 -> 40: the learning-rate schedule stretches over the new"
    assert said in capfd.readouterr().err


def test_a_changed_number_of_updates_changes_nothing_after_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = interrupted(tuned("awac", tmp_path, kwargs={"learning_rate_schedule": "linear"}), 50)
    result = resume(run, overrides=["offline_pretrain_updates=40"])
    assert (result.metrics["pretrain_updates_done"], result.metrics["global_step"]) == (30, 60)
    assert "stretch" not in capfd.readouterr().err
    resume(run)
    assert "this run is complete; increase total_timesteps to continue" in capfd.readouterr().err
