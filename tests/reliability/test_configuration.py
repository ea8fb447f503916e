"""Promise 10: any invalid value of any setting raises an error with its line, path and nearest valid name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.registry import get_algorithm_spec, resolve
from rl_training.runs.session import TrainResult
from tests.reliability.selection import REGIMES
from tests.runs import ALL, mostly_slow, tiny

PLACE = "algo_kwargs."


def text_with(algo: str, key: str, value: str) -> str:
    """A minimal configuration whose last line is `key: value`."""
    config = tiny(algo, Path("runs"))
    values = {name: getattr(config, name) for name in ("algo", "env_id", "total_timesteps") if name != key}
    line = f"algo_kwargs:\n  {key.removeprefix(PLACE)}: {value}\n" if key.startswith(PLACE) else f"{key}: {value}\n"
    return yaml.safe_dump(values) + line


def load(path: Path) -> None:
    """Read and fully validate a configuration, as `train` does before it writes anything."""
    loaded = load_config(path)
    try:
        resolve(loaded.config)
    except ConfigError as error:
        raise loaded.explain(error) from None


def complaint(path: Path, text: str) -> str:
    """The error message for a configuration."""
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def keys_of(algo: str) -> list[str]:
    return [PLACE + key for key in get_algorithm_spec(algo).sections.owners()]


FIELDS = [name for name in TrainConfig.model_fields if name not in ("algo_kwargs", "env_kwargs")]
NONSENSE = ["{nonsense: 1}", "[[]]"]  # no setting is a mapping with this key, or a list of empty lists


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "sac", "iql", "rlpd"))
def test_every_setting_rejects_invalid_values_with_their_line(algo: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for key in [*keys_of(algo), *FIELDS]:
        for value in NONSENSE:
            text = text_with(algo, key, value)
            message = complaint(path, text)
            line = text.count("\n")
            assert message.startswith(f"{path}:{line}: "), (key, value, message)
            assert key.removeprefix(PLACE) in message, (key, value, message)


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "sac", "iql", "rlpd"))
def test_every_setting_rejects_non_finite_numbers(algo: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for key in [*keys_of(algo), *FIELDS]:
        for value in (".nan", "-.inf", "1e999"):
            text = text_with(algo, key, value)
            assert complaint(path, text).startswith(f"{path}:{text.count(chr(10))}: {key} must be a finite number")


@pytest.mark.parametrize("algo", ALL)
def test_the_error_for_a_misspelt_setting_names_the_right_one(algo: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for key in keys_of(algo):
        text = text_with(algo, f"{key}q", "1")
        message = complaint(path, text)
        assert message.startswith(f"{path}:{text.count(chr(10))}: algo_kwargs: unknown key"), message
        assert f"did you mean {key.removeprefix(PLACE)!r}?" in message


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", *REGIMES))  # the parser does not depend on the algorithm
def test_a_setting_given_twice_is_refused(algo: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for key in keys_of(algo):
        name = key.removeprefix(PLACE)
        text = text_with(algo, key, "1") + f"  {name}: 2\n"
        assert f"duplicate key '{key}', first given on line {text.count(chr(10)) - 1}" in complaint(path, text)


def limits(algo: str) -> dict[str, Any]:
    """Every numeric setting with a bound, and a value just outside it."""
    found = {}
    for part in get_algorithm_spec(algo).sections.parts:
        for name, field in part.model_fields.items():
            for rule in field.metadata:
                for attribute, outside in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
                    if (bound := getattr(rule, attribute, None)) is not None:
                        found[name] = bound + outside
    return found


@pytest.mark.parametrize("algo", ALL)
def test_every_bound_is_enforced(algo: str, tmp_path: Path) -> None:
    bounds = limits(algo)
    assert {"batch_size", "learning_rate", "gamma"} <= bounds.keys()
    for name, value in bounds.items():
        text = text_with(algo, PLACE + name, repr(value))
        message = complaint(tmp_path / "run.yaml", text)
        assert f"{PLACE}{name} must be " in message
        assert message.endswith(f"got {value!r}")


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", *REGIMES))
def test_the_resolved_configuration_in_the_run_gives_the_same_run(
    algo: str, finished: Callable[..., TrainResult]
) -> None:
    run = finished(algo, total_timesteps=25, eval_episodes=0).run_dir
    config = tiny(algo, run.parent, total_timesteps=25, eval_episodes=0)
    written = run / "config.resolved.yaml"
    again = load_config(written).config
    assert resolve(again).to_dict() == resolve(config).to_dict()
    assert again.replace(algo_kwargs={}) == config.replace(algo_kwargs={})
    assert again.algo_kwargs.keys() == get_algorithm_spec(algo).sections.owners().keys()


def test_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text_with("redq", "algo_kwargs.num_critic", "3"))
    result = CliRunner().invoke(main, ["train", "--config", str(tmp_path / "run.yaml")])
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / 'run.yaml'}:")
    assert line.endswith("algo_kwargs: unknown key 'num_critic'; did you mean 'num_critics'?")
