"""Configuration is strict: unknown settings are rejected with their line, and numbers are numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_training.data.loading import DatasetConfig
from rl_training.errors import ConfigError
from rl_training.experiment import config as config_module
from rl_training.experiment import config_values
from rl_training.experiment.config import LoadedConfig, TrainConfig, load_config, packaged_configs
from rl_training.experiment.strict_yaml import dump_yaml, parse_yaml
from rl_training.models.mlp import NetworkShape
from rl_training.settings import Effect

GOOD = """\
algo: sac
env_id: Pendulum-v1
total_timesteps: 5000
algo_kwargs:
  learning_rate: 3e-4
  hidden_sizes: [64, 64]
  datasets:
    - {dataset_kind: npz, weight: 1}
    - {dataset_kind: hdf5, weight: 2}
"""


def place_of(loaded: LoadedConfig, key: str) -> str:
    """Beginning of an error message about `key`."""
    return str(loaded.explain(ConfigError("wrong", key=key))).removesuffix(": wrong")


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def make(**changes: Any) -> TrainConfig:
    values: dict[str, Any] = {"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 100}
    return TrainConfig(**values | changes)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("3E+4", 3e4),
        (".5", 0.5),
        ("-1.", -1.0),
        ("1", 1),
        ("0x10", 16),
        ("0o17", 15),
        ("010", 10),
        ("true", True),
        ("null", None),
        ("yes", "yes"),
        ("off", "off"),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("10_000", "10_000"),
        ('"1"', "1"),
        ("[1, a, {b: 2.0}]", [1, "a", {"b": 2.0}]),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_yaml(text, "x").value
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "x:3: duplicate key 'a', first given on line 1"),
        ("a:\n  b: 1\n  b: 1", "x:3: duplicate key 'a.b', first given on line 2"),
        ("a: .nan", "x:1: a must be a finite number, got .nan"),
        ("a: 1\nb: -.inf", "x:2: b must be a finite number, got -.inf"),
        ("a: [1, 1e999]", "x:1: a.1 must be a finite number, got 1e999"),
        ("a: !!python/object/apply:os.system [ls]", "x:1: tag "),
        ("a: !!str 1", "x:1: tag "),
        ("a: &x 1", "x:1: anchors and aliases"),
        ("a: 1\nb: *x", "x:2: anchors and aliases"),
        ("a:\n  <<: {b: 1}", "x:2: merge keys"),
        ("1: a", "x:1: keys must be names, got '1'"),
        ("? [a]\n: 1", "x:1: keys must be names, got a list"),
        ("a: 1\n---\nb: 1", "x:2: "),
        ("a: 1\nb: [1", "x:2: "),
        ("a: 1\n\tb: 2", "x:2: "),
        ("a: 1\nb: \x07", "x:2: character"),
        ("[" * 500 + "]" * 500, "x:1: nested deeper"),
        ("a: " + "9" * 5000, "x:1: a number of 5000 digits"),
    ],
)
def test_ambiguous_yaml_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "x")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


TEXT = st.text(alphabet="an10.e-+_:,#'\"[]{}&*!|>%@~ \n\té\u2028", max_size=8)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
PLAIN = st.recursive(
    SCALAR | st.sampled_from(["yes", "null", "1e3", ".inf", "0x1", "2024-01-01", "<<", "=", "---"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["a", "b c", "1e3", "on", "null"]), PLAIN, max_size=3))
def test_dumped_yaml_reads_back_unchanged(value: dict[str, Any]) -> None:
    assert parse_yaml(dump_yaml(value), "x").value == value


def test_a_file_becomes_a_config(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, GOOD))
    assert loaded.config.algo_kwargs["learning_rate"] == 3e-4
    assert loaded.config.total_timesteps == 5000
    assert loaded.text == GOOD
    assert place_of(loaded, "algo_kwargs.hidden_sizes") == f"{tmp_path}/run.yaml:6"
    assert place_of(loaded, "algo_kwargs.datasets.1.weight").endswith("run.yaml:9")
    assert place_of(loaded, "algo_kwargs.never_given").endswith("run.yaml:4")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sede: 3", "unknown key 'sede'; did you mean 'seed'?"),
        ("seed: -1", "seed must be >= 0, got -1"),
        ("seed: 4294967296", "seed must be < 4294967296, got 4294967296"),
        ("num_envs: 2.5", "num_envs must be a whole number, got 2.5"),
        ("num_envs: '2'", "num_envs must be a whole number, got '2'"),
        ("num_envs: true", "num_envs must be a whole number, got True"),
        ("tf32: yes", "tf32 must be true or false, got 'yes'"),
        ("device: gpu", "device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        ("acceleration: fast", "acceleration must be 'auto', 'eager', 'compile' or 'graph', got 'fast'"),
        ("env_kwargs: [1]", "env_kwargs must be a mapping, got [1]"),
        ("tags: word", "tags must be a list, got 'word'"),
    ],
)
def test_a_bad_field_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, f"algo: sac\nenv_id: null\n{line}\ntotal_timesteps: 10\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}:3: {message}"
    assert caught.value.key == line.partition(":")[0]


def test_nested_settings_must_be_a_mapping() -> None:
    with pytest.raises(ConfigError, match=r"^datasets\.0 must be a mapping, got 'a\.npz'$"):
        DatasetConfig.parse({"datasets": ["a.npz"]})


def test_a_missing_field_and_a_file_that_is_not_a_mapping(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="total_timesteps is required"):
        load_config(write(tmp_path, "algo: sac\nenv_id: null\n"))
    with pytest.raises(ConfigError, match="a config is a mapping"):
        load_config(write(tmp_path, "- 1\n"))
    with pytest.raises(ConfigError, match="got nothing"):
        load_config(write(tmp_path, ""))
    (tmp_path / "binary").write_bytes(b"\x80\x02\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "binary")


def test_overrides_take_precedence_and_are_named_in_errors(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    loaded = load_config(
        path, ["total_timesteps=7", "algo_kwargs.learning_rate=1e-3", "env_kwargs.g=9.8", "tags=[a, b]"]
    )
    assert loaded.config.total_timesteps == 7
    assert loaded.config.algo_kwargs["learning_rate"] == 1e-3
    assert loaded.config.env_kwargs == {"g": 9.8}
    assert loaded.config.tags == ("a", "b")
    assert place_of(loaded, "algo_kwargs.learning_rate") == "--set"
    assert place_of(loaded, "algo_kwargs.hidden_sizes").endswith(":6")
    error = loaded.explain(ConfigError("learning_rate must be > 0", key="algo_kwargs.learning_rate"))
    assert str(error) == "--set: learning_rate must be > 0"

    whole = load_config(path, ["algo_kwargs={batch_size: 8}"])
    assert whole.config.algo_kwargs == {"batch_size": 8}
    assert place_of(whole, "algo_kwargs.learning_rate") == "--set"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("total_timesteps", "write key=value"),
        ("total_timesteps=", "write key=value"),
        ("=3", "write key=value"),
        ("algo_kwargs..a=3", "write key=value"),
        ("total_timesteps=0", "--set: total_timesteps must be >= 1, got 0"),
        ("sede=1", "--set: unknown key 'sede'; did you mean 'seed'?"),
        ("algo_kwargs.gamma=.nan", "--set algo_kwargs.gamma:1: must be a finite number, got .nan"),
        ("algo_kwargs.datasets.0.weight=1", "algo_kwargs.datasets is not a mapping"),
    ],
)
def test_a_bad_override_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, GOOD), [override])
    assert message in str(caught.value)


def owners(values: Mapping[str, Any]) -> list[str]:
    return {"sac": ["learning_rate", "batch_size", "early_stopping"]}[values["algo"]]


def test_a_bare_key_is_found_in_its_section(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    overrides = ["learning_rate=1e-2", "seed=4", "early_stopping.patience=3", "algo_kwargs.batch_size=2"]
    loaded = load_config(path, overrides, owners=owners)
    assert loaded.config.algo_kwargs["learning_rate"] == 1e-2
    assert loaded.config.algo_kwargs["early_stopping"] == {"patience": 3}
    assert (loaded.config.algo_kwargs["batch_size"], loaded.config.seed) == (2, 4)
    assert place_of(loaded, "algo_kwargs.learning_rate") == "--set"
    assert make().with_overrides(overrides[:1], owners).algo_kwargs == {"learning_rate": 1e-2}
    for override, message in {
        "learning_rat=1": "--set: unknown key 'learning_rat'; did you mean 'learning_rate'?",
        "sede=1": "--set: unknown key 'sede'; did you mean 'seed'?",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_config(path, [override], owners=owners)
        assert str(caught.value) == message


def test_a_config_of_options_alone_and_over_a_file(tmp_path: Path) -> None:
    options = {"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 1e5}
    loaded = load_config(None, ["seed=3"], options=options)
    assert loaded.config == make(total_timesteps=100_000, seed=3)
    assert load_config(write(tmp_path, loaded.text)).config == loaded.config
    over = load_config(
        write(tmp_path, GOOD), ["total_timesteps=5"], options={"total_timesteps": 7, "env_id": "E-v0"}
    )
    assert (over.config.total_timesteps, over.config.env_id) == (7, "E-v0")
    assert (place_of(over, "total_timesteps"), place_of(over, "env_id")) == ("--steps", "--env")
    for wrong, message in {
        "total_timesteps": "--steps: total_timesteps must be a whole number, got 1.5",
        "output_dir": "--output-dir: output_dir must be a string, got 1.5",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_config(None, options=options | {wrong: 1.5})
        assert str(caught.value) == message
    with pytest.raises(ConfigError, match="total_timesteps is required: set it with --steps"):
        load_config(None, options={"algo": "sac"})


def test_a_whole_number_may_have_an_exponent(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD.replace("5000", "1e6")), ["num_envs=2.0"]).config
    assert (config.total_timesteps, config.num_envs) == (1_000_000, 2)
    assert type(config.total_timesteps) is type(config.num_envs) is int
    for value in ("1.5", "1e-3", "true", "'1e6'"):
        with pytest.raises(ConfigError, match="total_timesteps must be a whole number"):
            load_config(write(tmp_path, GOOD.replace("5000", value)))


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, GOOD)
    config = load_config("~/run.yaml", ["output_dir=~/runs", "init_from=~/runs/a"]).config
    assert (config.output_dir, config.init_from) == (f"{tmp_path}/runs", f"{tmp_path}/runs/a")
    assert (
        DatasetConfig.parse({"dataset_kind": "npz", "dataset_path": "~/x.npz"}).dataset_path == f"{tmp_path}/x.npz"
    )
    assert make(output_dir="~nobody-of-that-name/runs").output_dir == "~nobody-of-that-name/runs"


def test_the_error_for_the_name_of_an_algorithm_suggests_its_starter_config() -> None:
    for name, starter in {"sac": "sac/pendulum", "DQN": "dqn/cartpole", "TD3+BC": "td3_bc/pendulum"}.items():
        with pytest.raises(ConfigError, match=f"did you mean '{starter}'"):
            load_config(name)


def test_packaged_configs_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "assets" / "configs" / "td3_bc"
    folder.mkdir(parents=True)
    write(folder, GOOD, "pendulum.yaml")
    monkeypatch.setattr(config_module, "CONFIGS", tmp_path / "assets" / "configs")
    assert packaged_configs() == ["td3_bc/pendulum"]
    assert place_of(load_config("TD3+BC/pendulum"), "algo") == "td3_bc/pendulum.yaml:1"
    with pytest.raises(ConfigError, match=r"did you mean 'td3_bc/pendulum'\?"):
        load_config("td3_bc/pendulm")
    with pytest.raises(ConfigError, match="no such file"):
        load_config("../configs/td3_bc/pendulum")


def test_a_directly_built_config_raises_config_errors_too() -> None:
    with pytest.raises(ConfigError, match=r"^hidden_sizes must not be empty, got \[\]$"):
        NetworkShape.parse({"hidden_sizes": []})
    with pytest.raises(ConfigError, match=r"^init_from must not be empty, got ''$"):
        TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=100, init_from="")
    with pytest.raises(ConfigError, match=r"^total_timesteps must be >= 1, got 0$"):
        make(total_timesteps=0)
    with pytest.raises(ValueError, match="unknown key 'num_env'; did you mean 'num_envs'"):
        make(num_env=3)
    with pytest.raises(ConfigError, match="algo_kwargs: numbers must be finite, got nan"):
        make(algo_kwargs={"gamma": float("nan")})
    with pytest.raises(ConfigError, match="env_kwargs: only numbers"):
        make(env_kwargs={"reward": print})


@pytest.mark.parametrize("name", ["td3+bc", "TD3-BC", "td3_bc", " Td3+Bc "])
def test_algorithm_names_have_one_spelling(name: str) -> None:
    assert make(algo=name).algo == "td3_bc"


def test_a_config_round_trips_through_plain_data_and_yaml(tmp_path: Path) -> None:
    config = make(
        tags=["a"],
        output_dir=tmp_path,
        algo_kwargs={"hidden_sizes": (4, 4), "dataset_path": PurePosixPath("/d/x.npz")},
    )
    assert TrainConfig(**config.to_dict()) == config
    assert load_config(write(tmp_path, dump_yaml(config.to_dict()))).config == config
    assert config.replace(seed=5).seed == 5
    assert config.replace(seed=5).algo_kwargs == config.algo_kwargs
    with pytest.raises(ConfigError):
        config.replace(num_envs=0)


def test_a_config_keeps_no_reference_to_the_callers_mapping() -> None:
    kwargs = {"hidden_sizes": [64]}
    config = make(algo_kwargs=kwargs)
    kwargs["hidden_sizes"].append(1)
    assert config.algo_kwargs == {"hidden_sizes": [64]}


def test_a_null_seed_is_drawn_once_and_recorded() -> None:
    assert make(seed=7).with_seed().seed == 7
    drawn = [make(seed=None).with_seed().seed for _ in range(4)]
    assert all(seed is not None and 0 <= seed < 2**32 for seed in drawn)
    assert len(set(drawn)) > 1


def test_the_removed_setting_evaluate_beside_is_ignored(tmp_path: Path) -> None:
    """Files and records of version 0.2 contain it; records even at its default."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make(evaluate_beside="auto") == make(evaluate_beside=False) == make()
    on, other = write(tmp_path, f"{GOOD}evaluate_beside: true\n"), make(seed=9)
    config_values._warn_of_removed.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert load_config(on).config == load_config(write(tmp_path, GOOD)).config
        assert other.replace(evaluate_beside=True) == other
        assert other.with_overrides(["evaluate_beside=true"], owners=lambda _: ()) == other
    [warning] = caught
    assert str(warning.message).startswith("evaluate_beside is ignored: ")


def test_env_processes_is_another_name_of_environments(tmp_path: Path) -> None:
    assert make().environments == "auto"
    assert not make().env_processes
    for value, meant in ((True, "processes"), (False, "local")):
        for config in (
            make(env_processes=value),
            make(environments=meant),
            make(environments=meant, env_processes=value),
            make(env_processes=not value).replace(env_processes=value),
            make(env_processes=not value).replace(environments=meant),
            make(environments="processes").with_overrides([f"env_processes={str(value).lower()}"]),
            make(env_processes=True).with_overrides([f"environments={meant}"]),
            load_config(write(tmp_path, f"{GOOD}env_processes: {str(value).lower()}\n")).config,
            load_config(write(tmp_path, f"{GOOD}env_processes: true\n"), [f"environments={meant}"]).config,
            load_config(write(tmp_path, GOOD), [f"env_processes={str(value).lower()}"], owners=lambda _: ()).config,
        ):
            assert (config.environments, config.env_processes) == (meant, value)
            assert TrainConfig(**config.to_dict()) == config
            assert "env_processes" not in config.to_dict()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "environments: cloud",
            "10: environments must be 'auto', 'local', 'batched', 'processes' or 'ray', got 'cloud'",
        ),
        ("env_processes: 1", "10: env_processes must be true or false, got 1"),
        ("environments: local\nenv_processes: true", "11: env_processes: true contradicts environments: local; "),
        (
            "env_processes: false\nenvironments: processes",
            "10: env_processes: false contradicts environments: proc",
        ),
    ],
)
def test_contradicting_names_are_refused(lines: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"{GOOD}{lines}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:{message}")
    assert "\n" not in str(caught.value)


def test_every_field_declares_what_it_affects_as_in_0_2() -> None:
    kinds: tuple[Effect, ...] = ("run", "place", "watching", "result")
    said = [name for kind in kinds for name in TrainConfig.affecting(kind)]
    assert sorted(said) == sorted(TrainConfig.model_fields)  # each one, and once
    assert TrainConfig.affecting("run") == {"seed", "seeds", "output_dir", "tags", "population"}
    assert TrainConfig.affecting("place") == {
        "device",
        "keep_checkpoints",
        "environments",
        "env_threads",
        "loggers",
        "env_timeout",
        "allow_import",
        "plugin",
        "device_memory",
        "host_memory",
    }
    assert TrainConfig.affecting("watching") == {"log_interval", "checkpoint_interval"}
    assert TrainConfig.affecting("score") == {"env_id", "eval_env", "env_kwargs", "wrappers", "eval_max_steps"}
    assert TrainConfig.affecting("evaluation") == {
        "environments",
        "env_threads",
        "env_timeout",
        "eval_episodes",
        "allow_import",
    }
    assert DatasetConfig.affecting("rows") == {
        "reward_scale",
        "reward_shift",
        "reward_range_scaling",
        "top_fraction",
        "normalize_observations",
    }


@pytest.mark.parametrize(
    ("settings", "whole", "policy"),
    [
        ({}, False, False),
        ({"env_id": "mine:Env-v0"}, True, False),
        ({"eval_env": "mine:Env-v0"}, True, False),
        ({"wrappers": ["ClipAction", "mine:Wrapper"]}, True, False),
        ({"wrappers": [{"mine:Wrapper": {"size": 2}}]}, True, False),
        ({"wrappers": ["ClipAction"]}, False, False),
        ({"loggers": ["mine:Logger"]}, True, False),
        ({"algo_kwargs": {"dataset_kind": "mine:read"}}, True, False),
        ({"algo_kwargs": {"datasets": [{"dataset_kind": "npz"}, {"dataset_kind": "mine:read"}]}}, True, False),
        ({"algo_kwargs": {"network": "mine:Network"}}, True, True),
        ({"plugin": "mine:Learner"}, True, True),
    ],
)
def test_commands_need_a_permission_if_the_run_names_a_module(
    settings: dict[str, Any], whole: bool, policy: bool
) -> None:
    config = TrainConfig(algo="mine", total_timesteps=1, **{"env_id": "Pendulum-v1", **settings})
    assert (config.permission() == " --allow-import") is whole
    assert (config.permission(policy_alone=True) == " --allow-import") is policy
