"""Files and arrays of discrete actions: reading, number of actions, errors and writing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rl_training import TransitionDataset, cli
from rl_training.data.formats import convert_dataset, read_columns
from rl_training.data.loading import DatasetConfig, load_dataset
from rl_training.data.mixing import mix
from rl_training.data.validation import MOST_COUNTED
from rl_training.errors import ConfigError, DatasetError
from rl_training.spaces import MOST_ACTIONS, SpaceSpec
from tests.dataset_files import episodes, save_hdf5, save_minari, save_npz

NUMBERS = np.arange(12) % 3
CARTPOLE = SpaceSpec(4, num_actions=2, action_dtype="int64")


def columns(actions: Any = NUMBERS) -> dict[str, np.ndarray]:
    return {**episodes(), "actions": np.asarray(actions)}


@pytest.fixture(autouse=True)
def minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def command(*words: object) -> Any:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def actions_of(data: TransitionDataset) -> list[int]:
    return [int(action) for action in data.columns().data["actions"].read(0, len(data))]


# Read.


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_whole_numbers_of_any_type(kind: str, dtype: Any, tmp_path: Path) -> None:
    """If the number of actions is given, 2.0 is accepted as 2."""
    save = {"npz": save_npz, "hdf5": save_hdf5}[kind]
    file = save(tmp_path / f"data.{kind}", columns(NUMBERS.astype(dtype)), num_actions=4, start=0)
    data = TransitionDataset.load(file)
    assert data.spaces == SpaceSpec(3, num_actions=4, action_dtype="int64")
    assert actions_of(data) == NUMBERS.tolist()


def test_minari(minari_root: Path) -> None:
    space = {"type": "Discrete", "dtype": "int64", "start": -1, "n": 3}
    save_minari(minari_root, "logs/dialogue-v0", columns(NUMBERS - 1), {"action_space": json.dumps(space)})
    data = TransitionDataset.load("logs/dialogue-v0")
    assert (data.spaces.num_actions, data.spaces.start, data.spaces.action_dtype) == (3, -1, "int64")
    assert actions_of(data) == (NUMBERS - 1).tolist()


@pytest.mark.parametrize("number", [np.int64(4), np.array(4), np.uint8(4)])
def test_a_number_of_actions_may_be_numpys(number: Any) -> None:
    """It is stored with the policy, as plain data."""
    spaces = TransitionDataset.from_arrays(**columns(NUMBERS), num_actions=number, start=np.int32(0)).spaces
    assert spaces == SpaceSpec(3, num_actions=4, action_dtype="int64")
    assert type(spaces.num_actions) is type(spaces.start) is int


@pytest.mark.parametrize("number", [4.0, np.array([4]), "4"])
def test_a_number_of_actions_that_is_not_whole_is_refused(number: Any) -> None:
    with pytest.raises(DatasetError, match="num_actions must be a whole number, got"):
        TransitionDataset.from_arrays(**columns(NUMBERS), num_actions=number)


def test_a_column_of_one_is_a_column(tmp_path: Path) -> None:
    data = TransitionDataset.from_arrays(**columns(NUMBERS[:, None]), num_actions=3)
    assert actions_of(data) == NUMBERS.tolist()


def test_rows_are_drawn_with_their_actions_and_next_actions() -> None:
    data = TransitionDataset.from_arrays(**columns(), num_actions=3).with_next_actions()
    batch = data.layout.unpack(torch.from_numpy(data.rows))
    assert batch.actions.tolist() == [0, 1, 2, 0, 1, 2, 1, 2, 0, 1]
    assert batch.next_actions is not None
    assert batch.next_actions.tolist() == [1, 2, 0, 0, 2, 0, 2, 0, 1, 2]


# The number of actions: from the environment, else as given, else counted and reported.


def test_the_environment_defines_the_number_of_actions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spaces = SpaceSpec(3, num_actions=7, start=0, action_dtype="int64")
    file = save_npz(tmp_path / "data.npz", columns())
    assert TransitionDataset.load(file, spaces=spaces).spaces == spaces
    assert load_dataset(DatasetConfig(dataset_kind="npz", dataset_path=str(file)), spaces=spaces).spaces == spaces
    assert caplog.text == ""


def test_the_configuration_or_the_file_defines_the_number_of_actions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, told = save_npz(tmp_path / "a.npz", columns()), save_npz(tmp_path / "b.npz", columns(), num_actions=5)
    for file, settings, number in ((plain, {"num_actions": 4}, 4), (told, {}, 5), (told, {"num_actions": 5}, 5)):
        config = DatasetConfig(dataset_kind="npz", dataset_path=str(file), **settings)
        assert load_dataset(config, spaces=None).spaces.num_actions == number
    assert TransitionDataset.load(plain, num_actions=4).spaces.num_actions == 4
    assert caplog.text == ""


def test_contradicting_numbers_of_actions_are_refused(tmp_path: Path) -> None:
    file = save_npz(tmp_path / "data.npz", columns(), num_actions=5)
    config = DatasetConfig(dataset_kind="npz", dataset_path=str(file), num_actions=4)
    with pytest.raises(DatasetError, match=r"its actions are 5 discrete actions from 0, .* correct num_actions$"):
        load_dataset(config, spaces=None)
    with pytest.raises(DatasetError, match="but the environment or the configuration has 3 discrete actions"):
        TransitionDataset.load(file, spaces=SpaceSpec(3, num_actions=3))
    with pytest.raises(ConfigError, match="num_actions is for discrete actions, action_low for continuous ones"):
        DatasetConfig.parse({"num_actions": 3, "action_low": [-1.0], "action_high": [1.0]})


def test_a_file_that_begins_elsewhere_keeps_its_start(tmp_path: Path) -> None:
    file = save_npz(tmp_path / "data.npz", columns(NUMBERS + 5), num_actions=3, start=5)
    config = DatasetConfig(dataset_kind="npz", dataset_path=str(file), num_actions=3)
    assert load_dataset(config, spaces=None).spaces.start == 5


def test_a_missing_number_of_actions_is_counted_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = save_npz(tmp_path / "data.npz", columns(2 * NUMBERS))
    with caplog.at_level(logging.WARNING):
        data = TransitionDataset.load(file)
    assert data.spaces == SpaceSpec(3, num_actions=5, action_dtype="int64")
    (said,) = caplog.messages
    assert said.startswith(f"{file}: 5 discrete actions, the largest number in the data plus one")
    assert "num_actions" in said
    assert "\n" not in said
    assert data.statistics().action_counts == (4, 0, 4, 0, 4)


def test_every_chunk_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.data.columns.CHUNK_BYTES", 100)
    for last in (0, 11):
        actions = np.zeros(12, int)
        actions[last] = 6
        assert TransitionDataset.load(save_npz(tmp_path / f"{last}.npz", columns(actions))).spaces.num_actions == 7


def test_parts_that_count_differently_are_not_mixed(tmp_path: Path) -> None:
    parts = [TransitionDataset.from_arrays(**columns(actions)) for actions in (NUMBERS, NUMBERS % 2)]
    with pytest.raises(DatasetError, match="cannot be mixed: the first has 3 discrete actions, the second has 2 "):
        mix([(part, 1.0) for part in parts])


# Refused, in one line.

WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "floats": (NUMBERS + 0.5, {"num_actions": 3}, "row 0: 0.5 is not an integer action index"),
    "floats, and no number": (NUMBERS + 0.5, {}, "but their number is unknown"),
    "whole floats of which nothing is told": (NUMBERS.astype(float), {}, "give num_actions, or the environment"),
    "not finite": (np.where(NUMBERS == 1, np.nan, NUMBERS), {"num_actions": 3}, "row 1: nan is not a finite"),
    "too large": (NUMBERS, {"num_actions": 2}, "row 2: 2 is outside 0..1"),
    "negative": (NUMBERS - 1, {"num_actions": 3}, "row 0: -1 is outside 0..2"),
    "negative and counted": (NUMBERS - 1, {}, "has numbers from -1 to 1; number the actions from 0"),
    "identifiers": (NUMBERS + MOST_COUNTED, {}, "number the actions from 0"),
    "one-hot": (np.eye(3, dtype=int)[NUMBERS], {"num_actions": 3}, "number of the action, not a column for each"),
    "one-hot floats": (np.eye(3)[NUMBERS], {"num_actions": 3}, "must have shape [n] for this action space, got"),
    "one-hot of which nothing is told": (np.eye(3, dtype=int)[NUMBERS], {}, "discrete actions have shape [n]"),
    "several at once": (np.stack([NUMBERS] * 2, 1), {"num_actions": 3}, "must have shape [n]"),
    "too many": (NUMBERS, {"num_actions": MOST_ACTIONS + 1}, "discrete actions are too many"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_values_that_are_not_discrete_actions_are_refused(name: str, tmp_path: Path) -> None:
    actions, told, message = WRONG[name]
    for make in (
        lambda: TransitionDataset.from_arrays(**columns(actions), **told),
        lambda: TransitionDataset.load(save_npz(tmp_path / "data.npz", columns(actions)), **told),
    ):
        with pytest.raises(DatasetError) as error:
            make()
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_continuous_data_for_a_discrete_environment() -> None:
    with pytest.raises(DatasetError, match=r"must have shape \[n\] for this action space, got \[12, 2\]"):
        TransitionDataset.from_arrays(**episodes(), spaces=SpaceSpec(3, num_actions=4))
    one = {**episodes(), "actions": episodes()["actions"][:, :1]}
    with pytest.raises(DatasetError, match=r"its actions are \[.*\], but the environment .* 4 discrete actions"):
        TransitionDataset.from_arrays(**one, action_low=-2, action_high=2, spaces=SpaceSpec(3, num_actions=4))


def test_discrete_data_for_a_continuous_environment() -> None:
    with pytest.raises(DatasetError, match=r"must have shape \[n, 2\] for this action space, got \[12\]"):
        TransitionDataset.from_arrays(**columns(), spaces=SpaceSpec(3, (-1.0, -1.0), (1.0, 1.0)))


def test_a_space_with_too_many_actions_for_rows_is_refused() -> None:
    assert SpaceSpec(1, num_actions=MOST_ACTIONS).num_actions == MOST_ACTIONS
    with pytest.raises(ConfigError, match="16777217 discrete actions are too many"):
        SpaceSpec(1, num_actions=MOST_ACTIONS + 1)


# Written.


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
@pytest.mark.parametrize("kind", ["npz", "hdf5", "minari"])
def test_the_same_rows_in_every_format(kind: Any, dtype: Any, tmp_path: Path) -> None:
    source = save_npz(tmp_path / "data.npz", columns((NUMBERS + 2).astype(dtype)), num_actions=4, start=2)
    target = "logs/copy-v0" if kind == "minari" else str(tmp_path / f"copy.{kind}")
    convert_dataset(source, kind, target)
    first, second = TransitionDataset.load(source), TransitionDataset.load(target)
    assert first.fingerprint() == second.fingerprint()
    assert first.spaces == second.spaces
    with read_columns(target) as raw:
        assert raw.data["actions"].dtype == (np.int64 if kind == "minari" else dtype)


def test_a_counted_number_of_actions_is_never_written(tmp_path: Path) -> None:
    """A counted number is a guess, which readers of the file would take as given."""
    source = save_npz(tmp_path / "data.npz", columns())
    with pytest.raises(DatasetError, match="their number is unknown"):
        convert_dataset(source, "minari", "logs/guess-v0")
    with read_columns(convert_dataset(source, "hdf5", tmp_path / "copy.hdf5")) as raw:
        assert raw.num_actions == 0
    told = command("dataset", "convert", source, tmp_path / "told.hdf5", "--num-actions", 5)
    assert told.exit_code == 0, told.output
    with read_columns(tmp_path / "told.hdf5") as raw:
        assert raw.num_actions == 5


def test_commands(tmp_path: Path) -> None:
    file = save_npz(tmp_path / "data.npz", columns(2 * NUMBERS))
    unknown = command("dataset", "show", file)
    assert "their number is unknown" in unknown.stdout
    assert "0: 33.3%, 1: 0.0%, 2: 33.3%, 3: 0.0%, 4: 33.3%, 2 never" in unknown.stdout
    known = command("dataset", "show", file, "--num-actions", 20)
    assert "20 discrete" in known.stdout
    assert "… 12 more, 17 never" in known.stdout
    counted = command("dataset", "validate", file)
    assert counted.exit_code == 0
    assert "5 discrete actions, the largest number in the data plus one" in counted.output
    assert command("dataset", "validate", file, "--num-actions", 5).exit_code == 0
    for words, code in ((("--num-actions", 4), 3), (("--env", "Pendulum-v1"), 3), (("--num-actions", 0), 2)):
        assert command("dataset", "validate", file, *words).exit_code == code


@pytest.mark.parametrize("target", ["data.npz", "data.hdf5", "logs/cartpole-v0"])
def test_random_actions_are_collected(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("dataset", "collect", "--env", "CartPole-v1", "--size", 60, "-o", target)
    assert done.exit_code == 0, done.output
    assert "2 discrete" in done.stdout
    data = TransitionDataset.load(target)
    assert data.spaces == CARTPOLE
    assert set(actions_of(data)) == {0, 1}
    assert command("dataset", "validate", target, "--env", "CartPole-v1").exit_code == 0
