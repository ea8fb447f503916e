"""Runs of BC, CQL and IQL on discrete actions: the same names and commands, other learners, fewer settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from typer.testing import CliRunner

import rl_training
from rl_training import BC, CQL, IQL, TransitionDataset, cli
from rl_training.algorithms import DiscreteBC, DiscreteCQL, DiscreteIQL, Learner
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs, resolve
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runtime.loading import load_policy, open_checkpoint
from rl_training.runtime.populations import members_of, train_population
from rl_training.runtime.workflows import predict_checkpoint, resume_training
from rl_training.spaces import SpaceSpec
from tests.runs import QUIET, TINY, interrupted, mostly_slow, resume, run_record, tiny, train
from tests.test_exact_resume import EVENTFUL, assert_exact

GUIDES = Path(__file__).resolve().parent.parent / "docs" / "guides"
KINDS: dict[str, type[Learner]] = {"bc": DiscreteBC, "cql": DiscreteCQL, "iql": DiscreteIQL}
CONTINUOUS_ONLY = [
    spec.name for spec in list_algorithm_specs() if spec.regime == "offline" and spec.name not in KINDS
]

every_algo = pytest.mark.parametrize("algo", KINDS)


def kept(algo: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The items of `settings` that `algo` has for discrete actions."""
    sections = get_algorithm_spec(algo).sections.discrete
    assert sections is not None
    return {key: value for key, value in settings.items() if key in sections.owners()}


def small(algo: str, folder: Path, *, kwargs: dict[str, Any] | None = None, **fields: Any) -> TrainConfig:
    """60 updates on 100 random transitions of CartPole."""
    config = tiny(algo, folder, **{"env_id": "CartPole-v1"} | fields)
    return config.replace(algo_kwargs=kept(algo, TINY) | (kwargs or {}))


def logs(rows: int = 60, *, choices: int = 3, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Decisions of one step each: the right action is the sign of the first observation, and pays 1."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(rows, 3)).astype(np.float32)
    actions = rng.integers(choices, size=rows)
    return {
        "observations": obs,
        "actions": actions,
        "rewards": (actions == (obs[:, 0] > 0)).astype(np.float32),
        "terminals": np.ones(rows, bool),
        "timeouts": np.zeros(rows, bool),
    }


def command(*words: object) -> Any:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


# The choice.


@every_algo
def test_the_action_space_chooses_the_learner(algo: str, tmp_path: Path) -> None:
    seen: list[type[Learner]] = []

    class Look(Callback):
        def on_training_start(self, session: Session) -> None:
            seen.append(type(session.learner))

    train(small(algo, tmp_path, total_timesteps=2, eval_episodes=0), [Look()])
    train(tiny(algo, tmp_path, total_timesteps=2, eval_episodes=0), [Look()])
    assert seen == [KINDS[algo], get_algorithm_spec(algo).learner]


@every_algo
def test_its_settings_are_some_of_the_algorithm_s(algo: str) -> None:
    sections = get_algorithm_spec(algo).sections
    assert sections.discrete is not None
    assert sections.discrete.owners().keys() <= sections.owners().keys()
    assert sections.takes_discrete is None
    assert sections.discrete.takes_discrete is True
    assert get_algorithm_spec(algo).learners == (sections.learner, KINDS[algo])


def test_the_other_algorithms_accept_one_kind_of_actions() -> None:
    for spec in list_algorithm_specs():
        if spec.name not in KINDS:
            assert spec.sections.takes_discrete == (spec.name == "dqn")
            assert spec.learners == (spec.learner,)


@pytest.mark.parametrize(
    ("algo", "setting"),
    [("bc", {"stochastic": False}), *(("cql", {key: value}) for key, value in (
        ("n_actions", 10), ("lagrange_threshold", 5.0), ("alpha", 0.2), ("actor_learning_rate", 1e-4),
        ("bc_steps", 0), ("backup_entropy", False), ("target_entropy", -1.0), ("initial_alpha", 1.0),
    ))],
)  # fmt: skip
def test_a_setting_without_a_meaning_is_refused_even_at_its_default(
    algo: str, setting: dict[str, Any], tmp_path: Path
) -> None:
    (key,) = setting
    with pytest.raises(ConfigError, match=rf"^algo_kwargs.{key}: {algo} has no such setting on discrete") as error:
        train(small(algo, tmp_path, kwargs=setting))
    assert "\n" not in str(error.value)
    assert error.value.key == f"algo_kwargs.{key}"
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_refuses_it_too_and_does_not_blame_the_networks(tmp_path: Path) -> None:
    run = train(small("iql", tmp_path, total_timesteps=4, eval_episodes=0))
    with pytest.raises(ConfigError, match=r"policy_distribution: iql has no such setting on discrete actions"):
        resume_training(run.run_dir, overrides=["policy_distribution=gaussian"])


@every_algo
def test_the_error_for_an_unknown_setting_names_the_nearest(algo: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'gama'; did you mean 'gamma'"):
        train(small(algo, tmp_path, kwargs={"gama": 0.9}))


@pytest.mark.parametrize("algo", CONTINUOUS_ONLY)
def test_algorithms_for_continuous_actions_name_an_alternative(algo: str, tmp_path: Path) -> None:
    data = TransitionDataset.from_arrays(**logs(), num_actions=3)
    with pytest.raises(ConfigError, match=rf"^arrays: has discrete actions and {algo} .*; use bc, cql or iql$"):
        train(tiny(algo, tmp_path, env_id=None, eval_episodes=0), dataset=data)
    with pytest.raises(ConfigError, match=r"^env_id: CartPole-v1 has discrete .* or with data bc, cql or iql$"):
        train(tiny(algo, tmp_path, env_id="CartPole-v1"))
    assert not list(tmp_path.iterdir())


def test_data_and_environment_must_have_the_same_kind_of_actions(tmp_path: Path) -> None:
    data = TransitionDataset.from_arrays(**logs(), num_actions=3)
    with pytest.raises(
        ConfigError, match=r"differ from Pendulum-v1's \(the data have 3 discrete actions, Pendulum"
    ):
        train(tiny("bc", tmp_path), dataset=data)
    with pytest.raises(ConfigError, match=r"its spaces differ from CartPole-v1's"):
        train(small("bc", tmp_path), dataset=data)
    assert not list(tmp_path.iterdir())


# A run.


@every_algo
def test_a_short_run(algo: str, tmp_path: Path) -> None:
    initial: dict[str, torch.Tensor] = {}

    class Keep(Callback):
        def on_training_start(self, session: Session) -> None:
            networks = session.learner.state_dict()["networks"]
            initial.update({name: tensor.clone() for name, tensor in networks.items()})

    result = train(small(algo, tmp_path, kwargs={"eval_interval": 30}), [Keep()])
    networks = read_checkpoint(result.checkpoint_path).tensors["networks"]
    assert [name for name in networks if torch.equal(networks[name], initial[name])] == []
    assert result.metrics["update_count"] == 60
    assert result.metrics["eval_return_mean"] >= 1
    wanted = {"bc": "actor_loss", "cql": "conservative_gap", "iql": "value_loss"}
    assert np.isfinite(result.metrics[wanted[algo]])


@every_algo
def test_predictions_are_whole_numbers_of_the_environment(algo: str, tmp_path: Path) -> None:
    """Counted from the environment's first action, of the type it has, with or without an environment."""
    env = {"env_id": "Scripted-v0", "env_kwargs": {"discrete": True}}
    inside = train(small(algo, tmp_path, total_timesteps=5, eval_episodes=0, **env))
    data = TransitionDataset.from_arrays(**{**logs(), "actions": logs()["actions"] + 5}, num_actions=3, start=5)
    alone = train(small(algo, tmp_path, total_timesteps=5, eval_episodes=0, env_id=None), dataset=data)
    obs = np.random.default_rng(0).normal(size=(64, 3)) * np.logspace(-2, 30, 64)[:, None]
    for result in (inside, alone):
        for deterministic in (True, False):
            actions = predict_checkpoint(result.checkpoint_path, obs, deterministic=deterministic)
            assert actions.dtype == np.int64
            assert actions.shape == (64,)
            assert set(actions.tolist()) <= {5, 6, 7}
        one = predict_checkpoint(result.checkpoint_path, obs[0])
        assert one.shape == ()
        assert int(one) == predict_checkpoint(result.checkpoint_path, obs)[0]


@every_algo
def test_the_record_has_the_settings_it_used_and_no_others(algo: str, tmp_path: Path) -> None:
    result = train(small(algo, tmp_path, total_timesteps=2, eval_episodes=0))
    resolved = yaml.safe_load((result.run_dir / "config.resolved.yaml").read_text())
    stored = json.loads((result.checkpoint_path / "config.json").read_text())
    sections = get_algorithm_spec(algo).sections.discrete
    assert sections is not None
    for settings in (resolved, stored):
        assert settings["algo_kwargs"].keys() == sections.owners().keys()
    if algo == "cql":
        assert stored["algo_kwargs"]["cql_alpha"] == 1.0
    again = TrainConfig(**{**resolved, "output_dir": str(tmp_path / "again")})
    assert train(again).metrics.keys() == result.metrics.keys()


@pytest.mark.parametrize("algo", mostly_slow(KINDS, "cql"))
def test_a_resumed_run_is_the_uninterrupted_one(algo: str, tmp_path: Path) -> None:
    fields = {"total_timesteps": 80, "checkpoint_interval": 40}
    assert_exact(small(algo, tmp_path, kwargs=kept(algo, EVENTFUL), **fields), 40)


@pytest.mark.parametrize("algo", ["cql", *(pytest.param(one, marks=pytest.mark.slow) for one in ("bc", "iql"))])
def test_members_of_a_population_equal_single_discrete_runs(algo: str, tmp_path: Path) -> None:
    """What they have learned is what each alone learns, up to the order of sums."""
    config = small(algo, tmp_path, kwargs=kept(algo, EVENTFUL), seeds=[3, 0, 8], total_timesteps=20)
    together = train_population(members_of(config), options=QUIET)
    for result, member in zip(together, members_of(config), strict=True):
        alone = read_checkpoint(train(member).checkpoint_path)
        ours = read_checkpoint(result.checkpoint_path)
        assert ours.records["config"]["algo_kwargs"] == alone.records["config"]["algo_kwargs"]
        for name, tensor in alone.tensors["networks"].items():
            torch.testing.assert_close(ours.tensors["networks"][name], tensor, rtol=1e-3, atol=1e-5)


def test_early_stopping_ends_the_run(tmp_path: Path) -> None:
    kwargs = {"eval_interval": 10, "early_stopping": {"patience": 1, "min_improvement": 1e9}}
    result = train(small("cql", tmp_path, kwargs=kwargs))
    assert result.metrics["update_count"] == 20
    assert run_record(result.run_dir)["status"] == "stopped"


def test_a_setting_cannot_come_in_by_resuming(tmp_path: Path) -> None:
    run = interrupted(small("cql", tmp_path), 30)
    with pytest.raises(ConfigError, match=r"algo_kwargs.n_actions: cql has no such setting on discrete actions"):
        resume(run, overrides=["algo_kwargs.n_actions=3"])
    assert resume(run, overrides=["algo_kwargs.cql_alpha=0.5"]).metrics["update_count"] == 60


# Networks of other runs.


@pytest.mark.parametrize(
    ("first", "second"),
    mostly_slow([("cql", "dqn"), ("dqn", "cql"), ("bc", "iql"), ("iql", "bc")], ("cql", "dqn"), ("bc", "iql")),
)
def test_a_policy_starts_another_algorithm(first: str, second: str, tmp_path: Path) -> None:
    def config(algo: str, **fields: Any) -> TrainConfig:
        make = tiny if algo == "dqn" else small
        return make(algo, tmp_path, eval_episodes=0, **fields)

    before = train(config(first, total_timesteps=30))
    kwargs = {"learning_rate": 1e-30}
    after = train(config(second, init_from=str(before.run_dir), kwargs=kwargs, total_timesteps=22))
    obs = np.random.default_rng(0).normal(size=(64, 4))
    ours, theirs = (load_policy(open_checkpoint(one.checkpoint_path)).policy for one in (after, before))
    scores = [policy.scores(torch.from_numpy(obs).float()) for policy in (ours, theirs)]
    torch.testing.assert_close(*scores, rtol=0, atol=0)


def test_networks_for_other_actions_are_refused(tmp_path: Path) -> None:
    before = train(tiny("bc", tmp_path, total_timesteps=2, eval_episodes=0))
    with pytest.raises(
        ConfigError, match=r"init_from: .* was trained for other spaces \(this run has .* 2 discrete"
    ):
        train(small("bc", tmp_path, init_from=str(before.run_dir)))


# From Python and from the shell.


@pytest.mark.parametrize("managed", mostly_slow([BC, CQL, IQL], IQL))
def test_logs_without_an_environment(managed: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Learned from a mapping of arrays; the third action never pays."""
    settings: dict[str, Any] = {"hidden_sizes": (16, 16), "batch_size": 64, "learning_rate": 1e-2, "seed": 0}
    if managed is CQL:
        settings["cql_alpha"] = 0.1
    model = managed(num_actions=3, output_dir=tmp_path, **settings)
    data = logs(512)
    if managed is BC:  # which clones what there is: let it be good
        data["actions"] = np.where(np.arange(512) % 8 == 0, data["actions"], data["observations"][:, 0] > 0)
    model.learn(300, dataset=data, progress_bar=False)
    obs = np.random.default_rng(5).normal(size=(200, 3)).astype(np.float32)
    assert np.mean(model.predict(obs) == (obs[:, 0] > 0)) > 0.9
    assert caplog.text == ""
    loaded = rl_training.load(model.checkpoint_path)
    assert isinstance(loaded, managed)
    np.testing.assert_array_equal(loaded.predict(obs), model.predict(obs))
    assert open_checkpoint(model.checkpoint_path).records["spaces"]["num_actions"] == 3
    assert model.learn(10, progress_bar=False).metrics["update_count"] == 310


@every_algo
def test_its_preset_is_for_discrete_actions(algo: str, tmp_path: Path) -> None:
    config = load_config(f"{algo}/cartpole").config
    kwargs = {**config.algo_kwargs, "dataset_size": 50, "hidden_sizes": [8], "batch_size": 8, "eval_interval": 2}
    result = train(config.replace(total_timesteps=3, output_dir=tmp_path, eval_episodes=1, algo_kwargs=kwargs))
    assert open_checkpoint(result.checkpoint_path).records["spaces"]["num_actions"] == 2


def test_commands_from_a_run_of_dqn_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay buffer becomes a file that is shown and learned from; the run is evaluated, predicted with and
    reported."""
    monkeypatch.chdir(tmp_path)
    dqn = train(tiny("dqn", tmp_path / "dqn", eval_episodes=0))
    assert command("dataset", "from-run", dqn.run_dir, "-o", "replay.npz").exit_code == 0
    shown = command("dataset", "show", "replay.npz", "--json")
    statistics = json.loads(shown.stdout)
    assert sum(statistics["action_counts"]) == statistics["rows"] == 60
    assert statistics["spaces"]["num_actions"] == 2
    assert "0: " in command("dataset", "show", "replay.npz").stdout.partition("actions taken")[2]
    words = ["train", "--algo", "cql", "--env", "CartPole-v1", "--steps", 30, "--set", "dataset_kind=npz"]
    words += ["--set", "dataset_path=replay.npz", "--set", "hidden_sizes=[8]", "--set", "batch_size=8"]
    trained = command("--quiet", *words, "--set", "eval_episodes=1", "--set", "device=cpu")
    assert trained.exit_code == 0, trained.output
    (run,) = Path("runs").iterdir()
    judged = command("evaluate", run, "--episodes", 2, "--json")
    assert len(json.loads(judged.stdout)["returns"]) == 2
    asked = command("predict", run, "--obs", "[0, 0, 0, 0]")
    assert asked.exit_code == 0
    assert asked.stdout.split()[-1].strip("[]") in ("0", "1")
    refused = command("--quiet", *words, "--set", "n_actions=3")
    assert refused.exit_code == 2
    assert len(refused.stderr.strip().splitlines()) == 1
    assert "n_actions: cql has no such setting on discrete actions" in refused.stderr


def test_what_a_stochastic_policy_collects(tmp_path: Path) -> None:
    """`dataset collect` samples a categorical policy; a greedy one has nothing to sample."""
    runs = {algo: train(small(algo, tmp_path, total_timesteps=2, eval_episodes=0)).run_dir for algo in KINDS}
    for algo, run in runs.items():
        file = tmp_path / f"{algo}.npz"
        words = ["dataset", "collect", "--env", "CartPole-v1", "--size", 40, "-o", file, "--policy", run]
        sampled = command(*words, "--stochastic")
        assert (sampled.exit_code == 0) == (algo != "cql"), sampled.output
        if algo == "cql":
            assert "the policy of cql is deterministic" in sampled.stderr
            assert "deterministic" in sampled.stderr
        else:
            assert set(np.load(file)["actions"].tolist()) == {0, 1}


def test_the_list_of_algorithms_has_their_kinds_of_actions() -> None:
    found = {one["name"]: one["actions"] for one in json.loads(command("algos", "--json").stdout)}
    assert {name for name, actions in found.items() if actions == "continuous or discrete"} == set(KINDS)
    assert {name for name, actions in found.items() if actions == "discrete"} == {"dqn"}


def test_the_help_of_a_class_documents_discrete_actions() -> None:
    assert CQL.__doc__ is not None
    assert "On discrete actions" in CQL.__doc__
    assert "n_actions" in CQL.__doc__.partition("On discrete actions")[2]
    assert "On discrete actions" not in str(rl_training.AWAC.__doc__)


def test_records_determine_the_learner_without_an_environment(tmp_path: Path) -> None:
    """What a loaded policy is follows from the spaces in its checkpoint, not from the settings."""
    result = train(small("iql", tmp_path, total_timesteps=2, eval_episodes=0))
    loaded = load_policy(open_checkpoint(result.checkpoint_path))
    assert loaded.spaces == SpaceSpec(4, num_actions=2, action_dtype="int64")
    assert loaded.policy.chooses
    assert loaded.policy.stochastic
    assert resolve(loaded.config)  # the settings are known to the algorithm by its own sections too


@pytest.mark.pages
def test_the_page_s_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (GUIDES / "data.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^<!-- run: logs -->\n```python\n(.*?)^```$", page, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "page"}
    exec(compile(code.replace("2_000", "20"), "docs/guides/data.md", "exec", dont_inherit=True), scope)
    assert scope["model"].predict(scope["visits"][:3]).dtype == np.int64


def test_the_page_names_every_setting_that_goes() -> None:
    page = (GUIDES / "environment.md").read_text(encoding="utf-8")
    for algo in KINDS:
        gone, _ = get_algorithm_spec(algo).sections.changed_by_discrete_actions()
        companions = {"initial_alpha", "target_entropy", "backup_entropy"}
        assert [key for key in gone if f"`{key}`" not in page and key not in companions] == []
