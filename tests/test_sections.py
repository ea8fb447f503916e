"""Which section owns which key, and the errors for wrong keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, TypeAdapter

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, load_config, packaged_configs
from rl_training.experiment.registry import get_algorithm_spec, resolve
from tests.runs import ALL, resume, tiny, train

CONFIGS = packaged_configs()
# Configurations of a method that is made of algorithms here.
PRESETS = ("wsrl/pendulum", "wsrl/pendulum-offline")
FIELDS = TrainConfig.model_fields


@pytest.mark.parametrize("algo", ALL)
def test_every_key_has_one_owner(algo: str) -> None:
    sections = get_algorithm_spec(algo).sections
    keys = Counter(key for part in sections.parts for key in part.model_fields)
    assert [key for key, count in keys.items() if count > 1] == []
    assert sections.owners().keys() == keys.keys()


@pytest.mark.parametrize("algo", ALL)
def test_no_key_is_also_a_field_of_the_config(algo: str) -> None:
    """The managed classes take both as keywords, so a shared name would be ambiguous."""
    assert get_algorithm_spec(algo).sections.owners().keys() & TrainConfig.model_fields.keys() == set()


@pytest.mark.parametrize("algo", ALL)
def test_defaults_of_an_algorithm_belong_to_its_sections(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    assert spec.sections.defaults.keys() <= spec.sections.owners().keys()
    resolved = spec.sections.resolve({}).to_dict()
    assert resolved.keys() == spec.sections.owners().keys()


@pytest.mark.parametrize("algo", ALL)
def test_every_whole_number_may_be_written_with_an_exponent(algo: str) -> None:
    found = 0
    owners = get_algorithm_spec(algo).sections.owners() | dict.fromkeys(FIELDS, TrainConfig)
    schemas = {owner: owner.model_json_schema()["properties"] for owner in {*owners.values()}}
    for key, owner in owners.items():
        field = owner.model_fields[key]
        schema = schemas[owner][key]
        if "integer" in [choice.get("type") for choice in schema.get("anyOf", [schema])]:
            kind = TypeAdapter(Annotated[field.annotation, Field(), *field.metadata])
            value = kind.validate_python(1e1, strict=True)
            assert (value, type(value)) == (10, int), key
            found += 1
    assert found > 10


@pytest.mark.parametrize("algo", ALL)
def test_what_was_resolved_resolves_to_itself(algo: str) -> None:
    sections = get_algorithm_spec(algo).sections
    once = sections.resolve({}).to_dict()
    assert sections.resolve(once).to_dict() == once


@pytest.mark.parametrize("algo", ALL)
def test_the_error_for_a_misspelt_key_names_the_right_one(algo: str) -> None:
    sections = get_algorithm_spec(algo).sections
    for key in sections.owners():
        with pytest.raises(ConfigError) as caught:
            sections.resolve({f"{key}x": 1})
        assert str(caught.value) == f"algo_kwargs: unknown key '{key}x'; did you mean '{key}'?"
        assert caught.value.key == f"algo_kwargs.{key}x"


def test_a_key_of_another_algorithm_is_unknown() -> None:
    with pytest.raises(ConfigError, match=r"algo_kwargs: unknown key 'eta'"):
        get_algorithm_spec("sac").sections.resolve({"eta": 1.0})
    with pytest.raises(ConfigError, match=r"algo_kwargs: unknown key 'num_critic'; did you mean 'num_critics'\?"):
        get_algorithm_spec("redq").sections.resolve({"num_critic": 3})


@pytest.mark.parametrize(
    ("algo", "kwargs", "message"),
    [
        ("redq", {"subset_size": 0}, "algo_kwargs.subset_size must be >= 1, got 0"),
        ("sac", {"batch_size": 1.5}, "algo_kwargs.batch_size must be a whole number, got 1.5"),
        ("sac", {"batch_size": "64"}, "algo_kwargs.batch_size must be a whole number, got '64'"),
        ("sac", {"gamma": 1.5}, "algo_kwargs.gamma must be <= 1.0, got 1.5"),
        ("sac", {"hidden_sizes": []}, "algo_kwargs.hidden_sizes"),
        ("crr", {"weight_type": "softmax"}, "algo_kwargs.weight_type must be 'binary' or 'exp', got 'softmax'"),
        ("bc", {"max_epochs": 0}, "algo_kwargs.max_epochs must be >= 1, got 0"),
        ("dqn", {"double_q": "yes"}, "algo_kwargs.double_q must be true or false, got 'yes'"),
        ("iql", {"early_stopping": {"patince": 3}}, "unknown key 'patince'; did you mean 'patience'?"),
        ("iql", {"datasets": [{"weigth": 3}]}, "datasets.0: unknown key 'weigth'; did you mean 'weight'?"),
        (
            "sac",
            {"learning_rate_schedule": {"type": "linear", "fnal_factor": 0.1}},
            "learning_rate_schedule: unknown key 'fnal_factor'; did you mean 'final_factor'?",
        ),
        ("sac", {"early_stopping": {"batch_sizes": 3}}, "early_stopping: unknown key 'batch_sizes'"),
    ],
)
def test_wrong_values_name_their_place(algo: str, kwargs: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train(tiny(algo, tmp_path / "runs", kwargs=kwargs))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_each_algorithm_has_a_starter_if_any_are_packaged() -> None:
    if CONFIGS:
        starters = {f"{algo}/{'cartpole' if algo == 'dqn' else 'pendulum'}" for algo in ALL}
        assert starters <= set(CONFIGS)


def refusal(call: Callable[..., object], *arguments: Any) -> str:
    """What a call that must be refused says."""
    try:
        call(*arguments)
    except ConfigError as error:
        return str(error)
    return "accepted"


def test_packaged_configs_parse_and_reject_one_wrong_key() -> None:
    for name in CONFIGS:
        config = load_config(name).config
        assert config.algo == name.partition("/")[0] or name in PRESETS, name
        assert refusal(resolve, config) == "accepted", name
        for key in config.algo_kwargs:
            wrong = config.replace(algo_kwargs=config.algo_kwargs | {f"{key}_": 1})
            assert f"unknown key '{key}_'" in refusal(resolve, wrong), (name, key)
        assert "unknown key 'total_timestep'" in refusal(load_config, name, ["total_timestep=5"]), name


UNUSED: list[tuple[str, dict[str, Any], str, Any]] = [  # the first setting has no effect without the last
    ("sac", {"target_entropy": -3.0}, "alpha", "auto"),
    ("redq", {"initial_alpha": 0.5}, "alpha", "auto"),
    ("cal_ql", {"target_entropy": -3.0, "alpha": 0.2}, "alpha", "auto"),
    ("flash_sac", {"initial_alpha": 0.5, "alpha": 0.2}, "alpha", "auto"),
    ("bc", {"policy_distribution": "gaussian"}, "stochastic", True),
    ("awac", {"max_advantage_weight": 5.0, "weighting": "softmax"}, "weighting", "exp"),
    ("crr", {"beta": 2.0, "weight_type": "binary"}, "weight_type", "exp"),
    ("crr", {"max_weight": 2.0, "weight_type": "binary"}, "weight_type", "exp"),
    ("td3", {"residual_blocks": 3, "hidden_sizes": [8]}, "network", "simba"),
    ("ddpg", {"target_policy_noise": 0.2}, "target_noise_clip", 0.5),
    ("ddpg", {"target_noise_clip": 0.5}, "target_policy_noise", 0.2),
]


@pytest.mark.parametrize(("algo", "given", "other", "value"), UNUSED)
def test_a_setting_without_effect_is_named(
    algo: str, given: dict[str, Any], other: str, value: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec, shared = get_algorithm_spec(algo), dict[str, Any]()
    for seed in (0, 1):  # members of a population share the warning
        spec.run_spec(tiny(algo, tmp_path, kwargs=given, seed=seed), shared=shared)
    name, written = next(iter(given.items()))
    needed = f"{other} > 0" if type(value) is float else f"{other}: {'true' if value is True else value}"
    assert caplog.messages == [f"algo_kwargs.{name}: {written} has no effect; it needs {needed}"]
    caplog.clear()
    spec.run_spec(tiny(algo, tmp_path, kwargs=given | {other: value}))
    assert caplog.messages == []


def test_a_setting_without_effect_may_need_one_of_several(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def messages(algo: str, **kwargs: Any) -> list[str]:
        caplog.clear()
        get_algorithm_spec(algo).run_spec(tiny(algo, tmp_path, kwargs=kwargs))
        return list(caplog.messages)

    for algo in ("sac", "rlpd"):  # which have layer_norm in different sections
        needed = "layer_norm_epsilon: 0.1 has no effect; it needs layer_norm: true or network: simba"
        assert messages(algo, layer_norm_epsilon=0.1) == [f"algo_kwargs.{needed}"]
        assert messages(algo, layer_norm_epsilon=0.1, layer_norm=True) == []
        assert messages(algo, layer_norm_epsilon=0.1, network="simba") == []
    assert messages("iql", dataset_size=50, dataset_kind="npz", dataset_path="x.npz") == [
        "algo_kwargs.dataset_size: 50 has no effect; it needs dataset_kind: random"
    ]


def test_random_blocks_need_an_actor_that_starts_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    origin = train(tiny("sac", tmp_path, total_timesteps=30)).run_dir

    def messages(algo: str, regime: str | None = None, init_from: Path | None = None, **kwargs: Any) -> list[str]:
        caplog.clear()
        fields = {"regime": regime, "init_from": None if init_from is None else str(init_from)}
        blocks = {"random_block_steps": 20}
        get_algorithm_spec(algo).run_spec(tiny(algo, tmp_path, kwargs=blocks | kwargs, **fields))
        return [
            message.removeprefix("algo_kwargs.random_block_steps: 20 has no effect") for message in caplog.messages
        ]

    assert messages("sac") == ["; it needs actor_starts > 0 or init_from"]
    assert messages("sac", actor_starts=5) == []
    assert messages("sac", random_block_steps=50) == []
    assert messages("sac", init_from=origin) == []  # which may set actor_starts
    assert messages("sac", init_from=origin, actor_starts=0) == ["; it needs actor_starts > 0"]
    assert messages("dqn") == [" on dqn"]
    assert messages("iql", "offline_to_online") == [" on iql"]


def test_rewards_have_no_effect_on_cloning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"gamma": 0.5, "reward_scale": 2.0, "reward_shift": -1.0, "reward_range_scaling": True}
    get_algorithm_spec("bc").run_spec(tiny("bc", tmp_path, kwargs=given))
    assert caplog.messages == [f"algo_kwargs.{name}: {value} has no effect on bc" for name, value in given.items()]
    caplog.clear()
    get_algorithm_spec("td3_bc").run_spec(tiny("td3_bc", tmp_path, kwargs=given))
    assert caplog.messages == []


def test_environments_of_an_offline_run_have_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for regime, messages in (
        (None, ["num_envs: 3 has no effect; an offline run makes no steps"]),
        ("offline_to_online", []),
    ):
        caplog.clear()
        get_algorithm_spec("iql").run_spec(tiny("iql", tmp_path, num_envs=3, regime=regime))
        assert caplog.messages == messages


def test_an_interval_without_evaluations_has_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def messages(algo: str, episodes: int = 0, **kwargs: Any) -> list[str]:
        caplog.clear()
        config = tiny(algo, tmp_path, kwargs={"eval_interval": 10} | kwargs, eval_episodes=episodes)
        get_algorithm_spec(algo).run_spec(config)
        return list(caplog.messages)

    needs = "algo_kwargs.eval_interval: 10 has no effect; it needs eval_episodes > 0"
    assert messages("sac") == [needs]
    assert messages("sac", 1) == messages("sac", eval_interval=None) == []
    assert messages("bc") == [f"{needs} or validation_fraction > 0"]
    assert messages("bc", validation_fraction=0.2) == []


def test_a_setting_of_a_mapping_without_effect_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def messages(**kwargs: Any) -> list[str]:
        caplog.clear()
        get_algorithm_spec("sac").run_spec(tiny("sac", tmp_path, kwargs={"eval_interval": 10} | kwargs))
        return list(caplog.messages)

    stopping = {"target_return": 0.0, "min_improvement": 2.0}
    needs_patience = "algo_kwargs.early_stopping.min_improvement: 2.0 has no effect; it needs patience > 0"
    assert messages(early_stopping=stopping) == [needs_patience]
    assert messages(early_stopping=stopping | {"patience": 3}) == []
    schedule = {"type": "constant", "final_factor": 0.1}
    needs_type = "final_factor: 0.1 has no effect; it needs type: linear or cosine"
    assert messages(learning_rate_schedule=schedule) == [f"algo_kwargs.learning_rate_schedule.{needs_type}"]
    assert messages(learning_rate_schedule=schedule | {"type": "linear"}) == []


def test_a_stored_setting_without_effect_loads_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = train(tiny("sac", tmp_path, kwargs={"target_entropy": -3.0}, total_timesteps=30))
    caplog.clear()
    assert resume(result.run_dir, changes={"total_timesteps": 40}).metrics["global_step"] == 40
    assert caplog.messages == []


def test_no_packaged_setting_is_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    for name in CONFIGS:
        config = load_config(name).config
        spec = get_algorithm_spec(config.algo)
        assert refusal(spec.run_spec, config.replace(init_from=None)) == "accepted", name
        assert caplog.messages == [], name
