"""The managed classes: learn, evaluate, predict, load, resume, for each algorithm."""

from __future__ import annotations

import inspect
import pydoc
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rl_training
from rl_training import BC, REDQ, RLPD, SAC, TD3BC, ManagedAlgorithm, TrainConfig, TransitionDataset, errors
from rl_training.data.formats import write_columns
from rl_training.environments.making import spaces_of
from rl_training.errors import CheckpointError, ConfigError, DatasetError, RLTrainingError
from rl_training.experience.collecting import collect_random
from rl_training.experiment.config import load_config
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs, setting_names
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runtime.loading import load_policy, open_checkpoint
from rl_training.runtime.online import OnlineConfig
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint
from tests.runs import ALL, EVERY_STEP, OFFLINE, TINY, differences, mostly_slow, owned, tiny, train
from tests.test_offline_runtime import identity_data
from tests.worlds import Identity

MANAGED: dict[str, type[ManagedAlgorithm]] = {
    managed.algo: managed
    for name in rl_training.__all__
    if isinstance(managed := getattr(rl_training, name), type)
    and issubclass(managed, ManagedAlgorithm)
    and managed is not ManagedAlgorithm
}


def settings(algo: str, folder: Path) -> dict[str, Any]:
    """Keywords as a user gives them: fields of the configuration and keys of `algo_kwargs` together."""
    fields = {"seed": 3, "output_dir": folder, "device": "cpu", "log_interval": 20}
    return owned(algo, TINY) | fields | {"eval_episodes": 1, "eval_max_steps": 20}


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "sac", "iql", "rlpd"))
def test_learn_evaluate_predict_load_resume(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env_id = "CartPole-v1" if algo == "dqn" else "Pendulum-v1"
    model = MANAGED[algo](env_id, **settings(algo, tmp_path))
    result = model.learn(total_timesteps=40, progress_bar=False)
    assert result.metrics["global_step"] == 40
    assert result.run_dir.parent == tmp_path
    assert result.checkpoint_path.parent == result.run_dir / "checkpoints"

    metrics = model.evaluate(num_episodes=2)
    assert metrics["eval_episodes"] == 2
    assert {"eval_return_mean", "eval_return_std"} <= metrics.keys()
    assert model.evaluate(num_episodes=2) == metrics
    assert model.evaluate()["eval_return_mean"] == result.metrics["eval_return_mean"]

    space = gym.make(env_id).action_space
    obs = np.random.default_rng(0).normal(size=(5, 4 if algo == "dqn" else 3))
    with monkeypatch.context() as patch:
        patch.setattr(gym, "make", None)  # nothing below may need an environment
        batch = model.predict(obs, deterministic=True)  # FQL samples unless asked not to
        single = model.predict(obs[0], deterministic=True)
        loaded = MANAGED[algo].load(result.checkpoint_path)
        assert np.array_equal(loaded.predict(obs, deterministic=True), batch)
        assert np.array_equal(loaded.predict(obs), batch) == (algo != "fql")
        sampled = loaded.predict(obs, deterministic=False)
    assert space.shape is not None
    assert batch.shape == sampled.shape == (5, *space.shape)
    assert single.shape == space.shape
    assert batch.dtype == space.dtype
    assert all(space.contains(action) for action in (*batch, *sampled, single))
    assert np.allclose(single, batch[0], atol=1e-6)

    further = loaded.resume(total_timesteps=60)
    assert further.run_dir == result.run_dir
    assert further.metrics["global_step"] == 60
    assert loaded.config.total_timesteps == 60
    assert not np.array_equal(loaded.predict(obs, deterministic=True), batch) or algo == "dqn"


@pytest.mark.parametrize("algo", mostly_slow(OFFLINE, "bc", "iql", "rebrac"))
def test_own_arrays_and_no_environment(algo: str, tmp_path: Path) -> None:
    model = MANAGED[algo](**settings(algo, tmp_path))
    result = model.learn(20, progress_bar=False, dataset=identity_data())
    assert "eval_return_mean" not in result.metrics
    actions = model.predict(np.linspace(-9, 9, 7)[:, None])
    assert actions.shape == (7, 1)
    assert np.all((actions >= -2.0) & (actions <= 1.5))
    with pytest.raises(ConfigError, match="was trained without an environment"):
        model.evaluate()


def test_a_config_or_keywords_give_the_same_run(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, total_timesteps=40)
    fields = {name: getattr(config, name) for name in TrainConfig.model_fields if name not in ("algo", "env_id")}
    kwargs = fields.pop("algo_kwargs")
    by_config = SAC(config).learn(progress_bar=False)
    by_keywords = SAC("Pendulum-v1", **fields, **kwargs).learn(progress_bar=False)
    assert differences(by_config, by_keywords) == []
    assert differences(by_config, train(config)) == []


def test_a_stochastic_policy_is_sampled_on_request(tmp_path: Path) -> None:
    model = SAC(tiny("sac", tmp_path, total_timesteps=25))
    model.learn(progress_bar=False)
    obs = np.zeros((50, 3))
    assert len(np.unique(model.predict(obs))) == 1
    assert len(np.unique(model.predict(obs, deterministic=False))) > 40


def test_predict_answers_with_the_newest_policy(tmp_path: Path) -> None:
    model = TD3BC(tiny("td3_bc", tmp_path, total_timesteps=5))
    obs = np.ones(3)
    first = model.learn(progress_bar=False)
    before = model.predict(obs)
    second = model.learn(50, progress_bar=False)
    assert second.run_dir == first.run_dir
    assert second.checkpoint_path != first.checkpoint_path
    assert np.array_equal(model.predict(obs), predict_checkpoint(second.checkpoint_path, obs))
    assert not np.array_equal(model.predict(obs), before)


def test_defaults_are_the_registry_s(tmp_path: Path) -> None:
    model = REDQ("Pendulum-v1", learning_rate=1e-3)
    assert model.config.algo_kwargs == {"learning_rate": 1e-3}
    assert model.config.output_dir == "runs"
    resolved = get_algorithm_spec("redq").sections.resolve(model.config.algo_kwargs)
    assert resolved[OnlineConfig].gradient_updates_per_step == 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SAC("Pendulum-v1", num_critic=3), "SAC: unknown setting 'num_critic'"),
        (lambda: REDQ("Pendulum-v1", num_critic=3), "did you mean 'num_critics'"),
        (lambda: SAC("Pendulum-v1", total_timestep=3), "did you mean 'total_timesteps'"),
        (lambda: SAC("Pendulum-v1", batch_size=0), "algo_kwargs.batch_size must be >= 1, got 0"),
        (lambda: SAC("Pendulum-v1", seed=-1), "seed must be >= 0"),
        (lambda: SAC(TrainConfig(algo="td3", env_id="Pendulum-v1", total_timesteps=9)), "SAC cannot run a config"),
        (lambda: SAC(TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=9), seed=1), "not both: 'seed'"),
        (lambda: REDQ("Pendulum-v1", algo="sac"), "REDQ cannot run a config for 'sac'"),
        (
            lambda: REDQ("Pendulum-v1", env_id="Ant-v5"),
            "env_id: given twice, 'Pendulum-v1' and 'Ant-v5'; leave one out",
        ),
        (lambda: SAC("Pendulum-v1").evaluate(), "SAC is not trained yet"),
        (lambda: SAC("Pendulum-v1").predict([0.0, 0.0, 0.0]), "SAC is not trained yet"),
        (lambda: SAC("Pendulum-v1").resume(), "SAC is not trained yet"),
        (lambda: SAC("Pendulum-v9").learn(9), "unknown environment 'Pendulum-v9'"),
        (lambda: SAC("CartPole-v1").learn(9), "CartPole-v1 has discrete actions"),
        (lambda: rl_training.DQN("Pendulum-v1").learn(9), "Pendulum-v1 has continuous actions"),
        (lambda: SAC("evil_module:Env-v0").learn(9), "would import the module 'evil_module'"),
        (lambda: SAC("Pendulum-v1").learn(9, dataset=identity_data()), "sac learns from an environment alone"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_trace(
    make: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_consistent_duplicate_settings_are_accepted() -> None:
    assert TD3BC(env_id="Pendulum-v1", algo="TD3+BC").config == TD3BC("Pendulum-v1").config


class Steps(Callback):
    seen = 0

    def on_step(self, session: Session) -> None:
        self.seen += 1


def test_a_callback_needs_no_list(tmp_path: Path) -> None:
    kwargs = {"learning_starts": 5} | EVERY_STEP
    model, steps = SAC(tiny("sac", tmp_path, kwargs=kwargs, eval_episodes=0)), Steps()
    model.learn(5, callbacks=steps, progress_bar=False)
    assert steps.seen == 5
    model.resume(7, callbacks=steps)
    assert steps.seen == 7


def test_loading_something_that_is_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        SAC.load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="neither a checkpoint nor a run folder"):
        SAC.load(tmp_path)
    result = train(tiny("td3", tmp_path, total_timesteps=25, eval_episodes=0))
    with pytest.raises(ConfigError, match=r"SAC cannot run a config for 'td3'; .*rl_training\.load\(path\)"):
        SAC.load(result.checkpoint_path)
    bad = np.zeros(5)
    with pytest.raises(ConfigError, match=r"obs must have shape \[3\]"):
        rl_training.TD3.load(result.checkpoint_path).predict(bad)


def test_evaluate_returns_each_episode(tmp_path: Path) -> None:
    model = SAC(tiny("sac", tmp_path, total_timesteps=25, eval_max_steps=None))
    model.learn(progress_bar=False)
    metrics = model.evaluate(num_episodes=3)
    assert [type(value) for value in metrics["returns"]] == [float] * 3
    assert metrics["lengths"] == [200] * 3
    assert np.mean(metrics["returns"]) == metrics["eval_return_mean"]
    assert model.evaluate(2)["returns"] == metrics["returns"][:2]


def test_evaluate_samples_the_policy_on_request(tmp_path: Path) -> None:
    model = SAC(tiny("sac", tmp_path, total_timesteps=25))
    path = model.learn(progress_bar=False).checkpoint_path
    mode, sampled = model.evaluate(12), model.evaluate(12, deterministic=False)
    assert sampled != mode
    assert sampled == model.evaluate(12, deterministic=False)
    assert evaluate_checkpoint(path, 12, deterministic=False).items() <= sampled.items()
    # The noise of an episode does not depend on the number of episodes.
    assert model.evaluate(3, deterministic=False)["returns"] == pytest.approx(sampled["returns"][:3], rel=1e-4)


@pytest.mark.parametrize("algo", ["td3", "dqn"])
def test_sampling_does_not_change_the_evaluation_of_a_deterministic_policy(algo: str, tmp_path: Path) -> None:
    model = MANAGED[algo](tiny(algo, tmp_path, total_timesteps=25, eval_episodes=0))
    model.learn(progress_bar=False)
    assert model.evaluate(2, deterministic=False) == model.evaluate(2)


@pytest.mark.parametrize("find", [rl_training.load, ManagedAlgorithm.load])
def test_loading_finds_the_class(find: Any, tmp_path: Path) -> None:
    result = train(tiny("td3_bc", tmp_path, total_timesteps=5, eval_episodes=0))
    for place in (result.run_dir, str(result.checkpoint_path)):
        model = find(place)
        assert type(model) is TD3BC
        assert model.predict(np.ones(3)).shape == (1,)


@pytest.mark.parametrize("find", [rl_training.load, ManagedAlgorithm.load])
def test_loading_takes_environments_that_were_given_as_objects(find: Any, tmp_path: Path) -> None:
    result = SAC(Identity, **settings("sac", tmp_path)).learn(30, progress_bar=False)
    with pytest.raises(
        ConfigError, match=r"Identity was given as a Python object .* rl_training\.load\(path, env=…\)"
    ):
        find(result.run_dir).evaluate(1)
    model = find(result.run_dir, env=Identity)
    assert model.evaluate(2)["lengths"] == [1, 1]
    assert model.resume(40, progress_bar=False).metrics["global_step"] == 40


@pytest.mark.parametrize("algo", mostly_slow(["sac", "td3_bc", "rlpd"], "sac", "rlpd"))
def test_learning_again_continues_in_the_same_folder(algo: str, tmp_path: Path) -> None:
    config = tiny(algo, tmp_path / "parts", eval_episodes=0, checkpoint_interval=1000)
    model = MANAGED[algo](config.replace(total_timesteps=25))
    first = model.learn(progress_bar=False)
    assert model.learn(progress_bar=False).metrics["global_step"] == 50  # as many as the model was made with
    last = MANAGED[algo].load(first.run_dir).learn(10, progress_bar=False)
    assert last.run_dir == first.run_dir
    assert last.metrics["global_step"] == 60
    whole = train(config.replace(output_dir=str(tmp_path / "whole")))
    obs = np.ones((4, 3))
    assert np.array_equal(
        predict_checkpoint(last.checkpoint_path, obs), predict_checkpoint(whole.checkpoint_path, obs)
    )
    with pytest.raises(ConfigError, match=r"run_suffix: .* continues in its folder"):
        model.learn(5, run_suffix="mine")


def test_arrays_are_remembered_for_the_next_learning(tmp_path: Path) -> None:
    model = TD3BC(**settings("td3_bc", tmp_path))
    model.learn(10, progress_bar=False, dataset=identity_data())
    assert model.learn(10, progress_bar=False).metrics["global_step"] == 20
    assert model.resume(25, progress_bar=False).metrics["dataset_size"] == 200


def test_a_file_may_replace_the_arrays_of_a_run(tmp_path: Path) -> None:
    model = TD3BC(**settings("td3_bc", tmp_path))
    run = model.learn(10, progress_bar=False, dataset=identity_data()).run_dir
    file = identity_data().save(tmp_path / "\N{GRINNING FACE} \x7f.npz")
    loaded = rl_training.load(run)
    with pytest.raises(ConfigError, match=r"was trained on arrays in memory; resume it with resume\(dataset=…\)"):
        loaded.learn(10, progress_bar=False)
    assert loaded.learn(10, progress_bar=False, dataset=file).metrics["global_step"] == 20
    assert rl_training.load(run).learn(10, progress_bar=False).metrics["global_step"] == 30
    rl_training.load(run).learn(10, progress_bar=False, dataset=identity_data())  # its settings still name the file
    assert rl_training.load(run).learn(10, progress_bar=False, dataset=file).metrics["global_step"] == 50


def test_a_population_continues_from_where_a_member_has_continued_it(tmp_path: Path) -> None:
    model = TD3BC(**settings("td3_bc", tmp_path) | {"seed": None, "seeds": [1, 2]})
    before = model.learn(10, progress_bar=False, dataset=identity_data())
    for member, steps in ((model.members[1], 12), (model.members[0], 15)):
        result = member.learn(steps - member._steps, progress_bar=False)
        assert (result.metrics["global_step"], result.run_dir) == (steps, member.run_dir)
        assert [one._steps for one in model.members] == [steps, steps]
    results = model.learn(10, progress_bar=False)
    assert [one.metrics["global_step"] for one in results] == [25, 25]
    assert [one.run_dir for one in results] == [one.run_dir for one in before]


def test_the_settings_define_action_bounds_that_arrays_lack(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(60, 3)),
        "actions": rng.uniform(-1, 1, size=(60, 1)),
        "rewards": np.zeros(60),
        "terminals": np.zeros(60),
        "timeouts": np.zeros(60),
    }
    bounds = {"action_low": [-4.0], "action_high": [3.0]}
    model = BC(None, hidden_sizes=[4], batch_size=8, output_dir=str(tmp_path), **bounds)
    run = model.learn(5, progress_bar=False, dataset=arrays).run_dir
    spaces = load_policy(open_checkpoint(run)).spaces
    assert (spaces.low, spaces.high) == ((-4.0,), (3.0,))
    with pytest.raises(DatasetError, match="the action bounds are unknown; give action_low and action_high"):
        BC(None, output_dir=str(tmp_path)).learn(5, progress_bar=False, dataset=arrays)


@pytest.mark.parametrize("env", [Identity, Identity(), lambda: Identity()])
def test_arrays_fit_the_user_s_environment(env: Any, tmp_path: Path) -> None:
    arrays = {name: np.zeros(60) for name in ("rewards", "terminals", "timeouts")}
    columns = {"observations": np.zeros((60, 1)), "actions": np.full((60, 1), 0.5)}
    model = BC(env, hidden_sizes=[4], batch_size=8, output_dir=str(tmp_path), eval_episodes=1)
    metrics = model.learn(5, progress_bar=False, dataset=arrays | columns).metrics
    assert np.isfinite(metrics["eval_return_mean"])


def test_data_may_be_a_file_or_a_mapping(tmp_path: Path) -> None:
    config = tiny("bc", tmp_path / "runs", eval_episodes=0, total_timesteps=10)
    spaces = spaces_of(config)
    collected = collect_random(config, spaces, 50, seed=0)
    columns = collected.columns()
    path = write_columns(tmp_path / "x.npz", columns)
    given: list[Any] = [
        collected,
        str(path),
        path,
        {name: column.read(0, 50) for name, column in columns.data.items()},
        TransitionDataset.load(path),
    ]
    results = [BC(config).learn(progress_bar=False, dataset=data) for data in given]
    obs = np.ones((4, 3))
    for result in results:
        assert result.metrics["dataset_size"] == 50
        assert np.array_equal(
            predict_checkpoint(result.checkpoint_path, obs), predict_checkpoint(results[0].checkpoint_path, obs)
        )
    # The file is part of the run's settings, so a resume does not need it again.
    loaded = rl_training.load(results[1].run_dir)
    assert loaded.config.algo_kwargs["dataset_path"] == str(path)
    assert loaded.learn(5, progress_bar=False).metrics["dataset_size"] == 50
    shorter = write_columns(tmp_path / "y.npz", collect_random(config, spaces, 40, seed=1).columns())
    assert loaded.learn(5, progress_bar=False, dataset=shorter).metrics["dataset_size"] == 40


def test_the_next_learning_on_a_file_keeps_the_settings_that_the_run_decided(tmp_path: Path) -> None:
    config = tiny("bc", tmp_path / "runs", eval_episodes=0, total_timesteps=10)
    files = [
        write_columns(tmp_path / name, collect_random(config, spaces_of(config), rows, seed=0).columns())
        for name, rows in (("x.npz", 50), ("y.npz", 40))
    ]
    cloned = BC(config.replace(algo_kwargs={**config.algo_kwargs, "stochastic": True}))
    origin = cloned.learn(progress_bar=False, dataset=files[0]).run_dir
    own = {"output_dir": tmp_path, "eval_episodes": 0, "hidden_sizes": config.algo_kwargs["hidden_sizes"]}
    mixture = [{"dataset_path": str(file)} for file in files]
    model = RLPD("Pendulum-v1", **own, batch_size=8, init_from=str(origin), datasets=mixture)
    before = loaded_settings(model.learn(40, progress_bar=False).run_dir)
    assert (before["actor_starts"], before["learning_starts"]) == (5_000, 4)
    for file, rows in ((files[1], 40), (files[0], 50)):
        result = model.learn(40, progress_bar=False, dataset=file)
        assert result.metrics["dataset_size"] == rows
        named = {"dataset_kind": "npz", "dataset_path": str(file), "datasets": []}
        assert loaded_settings(result.run_dir) == before | named


def loaded_settings(run: Path) -> dict[str, Any]:
    return dict(rl_training.load(run).config.algo_kwargs)


@pytest.mark.parametrize(
    ("learn", "message"),
    [
        (lambda: BC("Pendulum-v1").learn(9, dataset=[1, 2]), "dataset: give a TransitionDataset, a file"),
        (lambda: BC("Pendulum-v1").learn(9, dataset={"obs": 1}), "dataset: unknown key 'obs'; known: observations"),
        (lambda: BC("Pendulum-v1").learn(9, dataset={"actions": 1}), "dataset: 'observations' is missing"),
        (lambda: BC("Pendulum-v1").learn(9, dataset="nothing.npz"), "nothing.npz"),
        (lambda: SAC("Pendulum-v1").learn(9, dataset="x.npz"), "sac learns from an environment alone"),
        (lambda: SAC("Pendulum-v1").learn(9, callbacks=3), "callbacks: give a Callback, a function"),
        (lambda: SAC("Pendulum-v1").learn(9, callbacks=Steps), "Steps is a class; give an instance of it, Steps()"),
        (lambda: SAC("Pendulum-v1").learn(9, callbacks=lambda: None), "must take one argument, the session"),
    ],
)
def test_what_cannot_be_given_to_learn_is_refused_in_one_line(
    learn: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RLTrainingError) as caught:
        learn()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_function_is_a_callback(tmp_path: Path) -> None:
    seen = []

    def watch(session: Session) -> None:
        seen.append(session.clock.now)
        if len(seen) == 22:
            session.stop("enough")

    steps = Steps()
    result = SAC(tiny("sac", tmp_path, eval_episodes=0)).learn(30, callbacks=[watch, steps], progress_bar=False)
    assert seen == list(range(1, 23))
    assert steps.seen == 22
    assert result.metrics["global_step"] == 22


@pytest.mark.parametrize("algo", OFFLINE)
def test_random_data_are_used_only_on_request(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = r"^dataset_kind is missing: pass --dataset or .* ask for .* with dataset_kind: random$"
    with pytest.raises(ConfigError, match=message):
        MANAGED[algo]("Pendulum-v1").learn(1_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"learning_starts": 1_000},
            "total_timesteps: 999 steps end before the first update: .* 1,000 steps; raise",
        ),
        (
            {"learning_starts": 900, "train_frequency": 512},
            "900 steps, and come every 512 steps; .* lower learning_starts or train_frequency",
        ),
    ],
)
def test_a_run_without_an_update_is_refused(
    settings: dict[str, int], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for model in (
        SAC("Pendulum-v1", **settings),
        RLPD("Pendulum-v1", dataset_kind="random", dataset_size=100, **settings),
    ):
        with pytest.raises(ConfigError, match=message):
            model.learn(999)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algo", ALL)
def test_help_lists_every_setting(algo: str) -> None:
    managed, spec = MANAGED[algo], get_algorithm_spec(algo)
    parameters = inspect.signature(managed).parameters
    settable = [*spec.sections.owners(), *TrainConfig.model_fields.keys() - {"algo", "env_id", "algo_kwargs"}]
    assert next(iter(parameters)) == "env"
    assert parameters.keys() >= set(settable)
    for key, value in spec.sections.resolve({}).to_dict().items():
        if not isinstance(value, dict | list):
            assert parameters[key].default == value
    assert parameters["hidden_sizes"].annotation == tuple[int, ...]
    assert parameters["eval_interval"].annotation == int | None
    text = pydoc.render_doc(managed, renderer=pydoc.plaintext)
    assert "Annotated" not in text
    assert "Schedule(" not in text
    assert "see below" not in text
    assert all(f"{key} = " in text for key in settable)
    assert TrainConfig.model_fields["seed"].description in text


def test_a_class_derived_from_one_has_its_settings() -> None:
    class Mine(SAC):
        """My own."""

    assert (Mine.__doc__ or "").startswith("My own.\n")
    assert inspect.signature(Mine) == inspect.signature(SAC)


def test_repr_has_the_class_changed_settings_and_progress(tmp_path: Path) -> None:
    model = SAC("Pendulum-v1", seed=1, learning_rate=1e-3, batch_size=256)
    assert repr(model) == "SAC('Pendulum-v1', seed=1, learning_rate=0.001): not trained"
    result = train(tiny("sac", tmp_path, total_timesteps=25, eval_episodes=0))
    text = repr(rl_training.load(result.run_dir))
    assert text.startswith("SAC('Pendulum-v1', seed=3, ")
    assert "hidden_sizes=[16, 16]" in text
    assert "gamma" not in text
    assert text.endswith(f": trained 25 steps, {result.run_dir}")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_critics": 2}, "RLPD, the plain one: SAC with prior data (2 critics without LayerNorm, fixed alpha)"),
        ({"num_critics": 3, "layer_norm": True, "alpha": "auto"}, "RLPD as in its paper: 3 critics with LayerNorm"),
    ],
)
def test_a_run_reports_which_rlpd_it_is(
    settings: dict[str, Any], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    RLPD(tiny("rlpd", tmp_path, kwargs=settings, total_timesteps=25, eval_episodes=0)).learn()
    captured = capfd.readouterr()
    assert said in captured.out + captured.err
    assert "rlpd/paper" in (RLPD.__doc__ or "")


def test_the_paper_s_rlpd_fits_any_environment() -> None:
    loaded = load_config("rlpd/paper", ["env_id=Pendulum-v1"])
    hopper = load_config("rlpd/hopper").config.algo_kwargs
    data = {"dataset_kind", "dataset_id"}
    assert loaded.config.algo_kwargs == {key: value for key, value in hopper.items() if key not in data}
    with pytest.raises(ConfigError, match="rlpd learns online and needs an environment"):
        RLPD(load_config("rlpd/paper").config).learn()
    with pytest.raises(ConfigError, match="dataset_kind is missing"):
        RLPD(loaded.config).learn()


def test_numpy_s_numbers_are_settings_too() -> None:
    config = SAC("Pendulum-v1", seed=np.int64(3), gamma=np.float32(0.5), total_timesteps=np.int32(9)).config
    assert (config.seed, config.total_timesteps, config.algo_kwargs["gamma"]) == (3, 9, 0.5)
    assert config.replace(total_timesteps=np.int64(7)).to_dict() == config.replace(total_timesteps=7).to_dict()
    with pytest.raises(ConfigError, match="total_timesteps must be a whole number"):
        SAC("Pendulum-v1").learn(np.float32(7.5))


def test_learn_accepts_numpy_s_numbers(tmp_path: Path) -> None:
    model = SAC("Pendulum-v1", output_dir=tmp_path, hidden_sizes=[4], batch_size=8, eval_episodes=0)
    assert [model.learn(np.int64(30)).metrics["global_step"] for _ in range(2)] == [30, 60]


def test_env_processes_is_still_a_keyword() -> None:
    assert SAC("Pendulum-v1", env_processes=True).config == SAC("Pendulum-v1", environments="processes").config
    with pytest.raises(ConfigError, match=r"^env_processes: true contradicts environments: local"):
        SAC("Pendulum-v1", env_processes=True, environments="local")


@pytest.mark.parametrize(
    ("managed", "name", "here"),
    [
        (SAC, "ent_coef", "alpha"),
        (SAC, "net_arch", "hidden_sizes"),
        (SAC, "policy_kwargs", "hidden_sizes"),
        (SAC, "gradient_steps", "gradient_updates_per_step"),
        (SAC, "n_steps", "n_step"),
        (SAC, "tensorboard_log", "output_dir"),
        (MANAGED["iql"], "iql_tau", "expectile"),
        (MANAGED["iql"], "weight_temp", "beta"),
    ],
)
def test_errors_for_settings_of_other_libraries_name_the_setting_here(managed: Any, name: str, here: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown setting '{name}'; here it is '{re.escape(here)}'$"):
        managed("Pendulum-v1", **{name: 1})
    with pytest.raises(ConfigError, match=rf"unknown key '{name}'; here it is '{re.escape(here)}'$"):
        managed("Pendulum-v1").config.with_overrides([f"{name}=1"], setting_names)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dataset", "log.npz", r"unknown setting 'dataset'; use --dataset or learn\(dataset=…\)$"),
        ("callbacks", [], r"unknown setting 'callbacks'; use learn\(callbacks=…\)$"),
        ("verbose", 1, r"unknown setting 'verbose'; use learn\(progress_bar=…\) or rl-training --quiet$"),
        ("policy", "MlpPolicy", "unknown setting 'policy'; leave it out: hidden_sizes and network set"),
        ("use_sde", True, "unknown setting 'use_sde'; state-dependent exploration is not included$"),
        ("learning_rate", lambda left: left, "^learning_rate must be a number; use learning_rate_schedule$"),
        ("g", 3.0, r"unknown setting 'g'; pass env_kwargs=\{'g': …\}$"),
    ],
)
def test_errors_for_unsupported_settings_name_a_remedy(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SAC("Pendulum-v1", **{name: value})


def test_a_setting_of_another_library_that_the_algorithm_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match=r"; here it is 'num_critics', which is not one of these settings$"):
        MANAGED["iql"]("Pendulum-v1", n_critics=3)


def test_the_learning_rate_of_an_actor_is_named_for_algorithms_with_one_rate() -> None:
    for algo, here in (("sac", "learning_rate"), ("cql", "actor_learning_rate")):
        with pytest.raises(ConfigError, match=f"unknown setting 'policy_lr'; here it is '{here}'$"):
            MANAGED[algo]("Pendulum-v1", policy_lr=1e-3)


def test_every_setting_named_for_another_library_exists() -> None:
    known = {key for spec in list_algorithm_specs() for kind in spec.kinds for key in kind.owners()}
    known |= set(TrainConfig.model_fields)
    assert {here for here in errors._OTHER_LIBRARIES.values() if " " not in here} <= known
    # Settings of one algorithm here, which other libraries have for others too.
    assert known & errors._OTHER_LIBRARIES.keys() == {"actor_learning_rate", "n_action_samples"}


def test_errors_for_habits_of_stable_baselines3_are_one_line() -> None:
    with pytest.raises(TypeError, match=r"give the environment first and .*SAC\('Pendulum-v1', seed=0\)$"):
        SAC("MlpPolicy", "Pendulum-v1")  # type: ignore[call-arg]
    model = SAC("Pendulum-v1")
    with pytest.raises(TypeError, match=r"^learn\(\) has no argument 'callback'; use callbacks=…$"):
        model.learn(10, callback=None)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"^learn\(\) has no argument 'log_interval'; it is a setting of the class$"
    ):
        model.learn(10, log_interval=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^predict\(\) has no argument 'state'; policies here are not recurrent"):
        model.predict([1.0, 0.0, 0.0], state=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^evaluate\(\) has no argument 'n_eval_episodes'; use evaluate\(num_ep"):
        model.evaluate(n_eval_episodes=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match=r"'PPO'; it is not included, see docs/limits\.md$"):
        rl_training.PPO  # type: ignore[attr-defined]  # noqa: B018
    for name, hint in (("policy", "use predict"), ("env", "see config.env_id"), ("num_timesteps", "see metrics")):
        with pytest.raises(AttributeError, match=rf"^SAC has no attribute '{name}'; {hint}"):
            getattr(model, name)
    assert not hasattr(model, "anything")
    with pytest.raises(
        TypeError, match=r"^learn\(\) has no argument 'eval_interval'; it is a setting of the class; "
    ):
        model.learn(10, eval_interval=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^load\(\) has no argument 'device'; .* RUN --set changes that of a run$"):
        SAC.load("runs/RUN", device="cpu")  # type: ignore[call-arg]


def test_a_saved_copy_is_loaded_evaluated_and_resumed(tmp_path: Path) -> None:
    """`save` copies the whole checkpoint to a place of the caller's choice, and replaces nothing."""
    model = SAC("Pendulum-v1", **settings("sac", tmp_path / "runs"))
    assert model.run_dir is None
    with pytest.raises(ConfigError, match="SAC is not trained yet"):
        model.save(tmp_path / "copy")
    result = model.learn(25, progress_bar=False)
    assert model.run_dir == result.run_dir
    place = model.save(tmp_path / "copy")
    copy = SAC.load(place)
    assert copy.run_dir == place
    np.testing.assert_array_equal(copy.predict([1.0, 0.0, 0.0]), model.predict([1.0, 0.0, 0.0]))
    assert copy.evaluate(1) == model.evaluate(1)
    with pytest.raises(ConfigError, match=r"^total_timesteps must be a whole number, got '200'$"):
        model.learn("200")  # type: ignore[arg-type]
    further, same = copy.resume(40, progress_bar=False), model.resume(40, progress_bar=False)
    assert further.run_dir not in (result.run_dir, place)
    assert further.metrics == same.metrics
    with pytest.raises(CheckpointError, match=r"copy: already exists and is not overwritten"):
        model.save(place)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["copy", "runs"]


def test_a_copy_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model = SAC("Pendulum-v1", **settings("sac", tmp_path / "runs"))
    model.learn(25, progress_bar=False)
    (tmp_path / ".tmp-one").mkdir()
    assert model.save("~/one") == tmp_path / "one"
    assert (tmp_path / ".tmp-one").is_dir()
    for parent in ("checkpoints", "best"):  # as in a run, which this is not
        place = model.save(tmp_path / parent / "one")
        assert SAC.load(f"~/{parent}/one").run_dir == place
    with pytest.raises(CheckpointError, match=r"^\.: already exists"):
        model.save("")


def test_a_data_set_of_d4rl_is_not_an_environment() -> None:
    with pytest.raises(ConfigError, match=r"'hopper-medium-v2'; that is a data set of D4RL; .* iql/hopper-medium$"):
        MANAGED["iql"]("hopper-medium-v2", dataset_kind="random").learn(1)
