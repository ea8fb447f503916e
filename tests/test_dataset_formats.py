"""The same transitions as npz, HDF5 and Minari, and the way between them."""

from __future__ import annotations

import json

import h5py
import minari
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.data import columns as columns_module
from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import convert_dataset, read_columns, write_columns
from rl_training.data.formats.npz import read_npz
from rl_training.data.sources import BatchSource
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError, DatasetError, MissingDependencyError
from rl_training.spaces import SpaceSpec
from tests.dataset_files import HIGH, LOW, episodes, save_hdf5, save_minari, save_npz

SPACES = SpaceSpec(3, LOW, HIGH)
MINARI_ID = "test/walk-v0"


@pytest.fixture(autouse=True)
def minari_root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def sample(source: BatchSource, batch_size: int) -> TransitionBatch:
    return source.layout.unpack(source.sample_rows(batch_size))


def load(place, **options) -> TransitionDataset:
    with read_columns(place) as columns:
        return TransitionDataset.from_columns(columns, **options)


@pytest.fixture
def places(tmp_path, minari_root) -> list:
    data = episodes()
    save_minari(minari_root, MINARI_ID, data)
    return [
        save_npz(tmp_path / "walk.npz", data, action_low=np.array(LOW), action_high=np.array(HIGH)),
        save_hdf5(tmp_path / "walk.hdf5", data, action_low=np.array(LOW), action_high=np.array(HIGH)),
        MINARI_ID,
    ]


@pytest.mark.parametrize("chunk_bytes", [150, 2**20])
def test_all_formats_give_identical_rows_and_batches(places, monkeypatch, chunk_bytes):
    monkeypatch.setattr(columns_module, "CHUNK_BYTES", chunk_bytes)
    loaded = [load(place) for place in places]
    batches = [sample(data.source(torch.Generator().manual_seed(5)), 64) for data in loaded]
    for data, batch in zip(loaded, batches):
        np.testing.assert_array_equal(data.rows, loaded[0].rows)
        assert data.episode_ends.tolist() == [3, 6, 11]
        assert data.spaces == SPACES
        assert all(torch.equal(a, b) for a, b in zip(batch[:5], batches[0][:5]))


def test_several_minari_episodes_have_no_shifted_rows(places):
    data, result = episodes(), load(MINARI_ID)
    np.testing.assert_array_equal(result.rows[:, :3], data["observations"])
    np.testing.assert_array_equal(result.rows[:, 3:6], data["next_observations"])
    np.testing.assert_array_equal(result.rewards, data["rewards"])
    np.testing.assert_array_equal(result.dones, data["terminals"])


def test_a_minari_episode_without_a_final_flag_is_cut_there(minari_root):
    folder = save_minari(minari_root, MINARI_ID, episodes())
    with h5py.File(folder / "main_data.hdf5", "r+") as file:
        for name in file:
            file[name]["truncations"][:] = False
    result = load(MINARI_ID)
    assert result.episode_ends.tolist() == [3, 6, 11]
    assert result.dones.tolist() == [0, 0, 0, 1] + [0] * 8


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize("target", ["flags.npz", "flags.hdf5"])
def test_minari_flags_of_any_type_are_converted(minari_root, tmp_path, dtype, target):
    save_minari(minari_root, MINARI_ID, episodes())
    with h5py.File(minari_root / MINARI_ID / "data" / "main_data.hdf5", "r+") as file:
        for group in file.values():
            flags = group["truncations"][()].astype(dtype)
            del group["truncations"]
            group["truncations"] = flags
    convert_dataset(MINARI_ID, target.partition(".")[2], tmp_path / target)
    np.testing.assert_array_equal(load(tmp_path / target).rows, load(MINARI_ID).rows)
    assert load(tmp_path / target).episode_ends.tolist() == [3, 6, 11]


def test_minari_episodes_may_start_where_the_last_one_ended(minari_root):
    data = episodes((3, 3), (False, False))
    data["next_observations"][2] = data["observations"][3]  # a task that continues after its time limit
    save_minari(minari_root, MINARI_ID, data)
    assert load(MINARI_ID).episode_ends.tolist() == [2, 5]


def test_a_data_set_written_by_minari_itself_is_read(minari_root):
    gymnasium = pytest.importorskip("gymnasium")
    buffers = minari.data_collector.EpisodeBuffer
    rng = np.random.default_rng(0)
    walks = [rng.normal(size=(length + 1, 3)).astype(np.float32) for length in (3, 2)]
    with pytest.warns(UserWarning, match="code_permalink"):
        minari.create_dataset_from_buffers(
            "test/own-v0",
            [
                buffers(
                    id=index,
                    observations=walk,
                    actions=np.full((len(walk) - 1, 1), 2, np.float32),
                    rewards=[1.0] * (len(walk) - 1),
                    terminations=[False] * (len(walk) - 1),
                    truncations=[False] * (len(walk) - 2) + [True],
                    infos={},
                )
                for index, walk in enumerate(walks)
            ],
            observation_space=gymnasium.spaces.Box(-9, 9, (3,)),
            action_space=gymnasium.spaces.Box(-2, 4, (1,)),
            data_format="hdf5",
        )
    result = load("test/own-v0")
    np.testing.assert_array_equal(result.rows[:, :3], np.concatenate([walk[:-1] for walk in walks]))
    np.testing.assert_array_equal(result.rows[:, 3:6], np.concatenate([walk[1:] for walk in walks]))
    assert result.rows[:, 6] == pytest.approx(2 / 3 - 1 / 3)
    assert result.spaces.low == (-2.0,)


def test_discrete_minari_actions_respect_start(minari_root):
    data = episodes()
    data["actions"] = np.arange(12) % 2 + 3
    space = json.dumps({"type": "Discrete", "dtype": "int64", "start": 3, "n": 2})
    save_minari(minari_root, MINARI_ID, data, {"action_space": space})
    result = load(MINARI_ID)
    assert result.rows[:, 6].tolist() == [0, 1] * 6
    assert (result.spaces.num_actions, result.spaces.start) == (2, 3)


@pytest.mark.parametrize("source", [0, 1, 2])
@pytest.mark.parametrize(("kind", "target"), [("npz", "out.npz"), ("hdf5", "out.hdf5"), ("minari", "copy/out-v1")])
def test_every_conversion_keeps_rows_flags_and_bounds(places, tmp_path, source, kind, target):
    place = target if kind == "minari" else tmp_path / target
    convert_dataset(places[source], kind, place)
    original, copy = load(places[source]), load(place)
    np.testing.assert_array_equal(copy.rows, original.rows)
    assert copy.episode_ends.tolist() == original.episode_ends.tolist()
    assert copy.spaces == original.spaces
    with read_columns(places[source]) as before, read_columns(place) as after:
        for name in before.data:
            left, right = before.data[name].read(0, 12), after.data[name].read(0, 12)
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)


def test_what_is_written_for_minari_is_read_by_minari(places):
    convert_dataset(places[0], "minari", "copy/out-v1")
    written = list(minari.load_dataset("copy/out-v1").iterate_episodes())
    data = episodes()
    assert [len(episode.rewards) for episode in written] == [4, 3, 5]
    np.testing.assert_array_equal(written[1].observations[:-1], data["observations"][4:7])
    np.testing.assert_array_equal(written[1].observations[1:], data["next_observations"][4:7])
    assert [bool(episode.terminations[-1]) for episode in written] == [True, False, False]


def test_d4rl_files_without_next_observations_become_minari_episodes(tmp_path):
    data = episodes()
    del data["next_observations"]
    path = save_npz(tmp_path / "d4rl.npz", data)
    convert_dataset(path, "minari", "copy/out-v1", spaces=SPACES)
    original, copy = load(path, spaces=SPACES), load("copy/out-v1")
    assert len(original) == 10
    keep = original.dones == 0  # a terminal row's next observation is never looked at
    np.testing.assert_array_equal(copy.rows[keep], original.rows[keep])
    assert copy.episode_ends.tolist() == original.episode_ends.tolist()


@pytest.mark.parametrize("source", [0, 1, 2])
@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        (SpaceSpec(2, LOW, HIGH), "column 'observations' has 3 components, the environment has 2"),
        (SpaceSpec(3, num_actions=4), "column 'actions' must have shape"),
        (SpaceSpec(3, tuple(low - 1 for low in LOW), HIGH), "its actions are"),
    ],
)
def test_spaces_that_contradict_the_data_are_refused(places, tmp_path, source, spaces, message):
    with pytest.raises(DatasetError, match=message):
        convert_dataset(places[source], "npz", tmp_path / "out.npz", spaces=spaces)
    assert not (tmp_path / "out.npz").exists()


CONTRADICTIONS = {
    "--env MountainCarContinuous-v0": (3, "'observations' has 3 components, the environment has 2"),
    "--action-low -5 --action-high 5": (3, "its actions are"),
    "--action-low -5": (2, "must be given together"),
}


@pytest.mark.parametrize("options", CONTRADICTIONS)
@pytest.mark.parametrize("command", ["show", "validate", "convert"])
def test_every_command_refuses_the_same_contradictions(places, tmp_path, command, options):
    target = [str(tmp_path / "out.npz")] if command == "convert" else []
    result = CliRunner().invoke(main, ["dataset", command, str(places[0]), *target, *options.split()])
    code, message = CONTRADICTIONS[options]
    assert (result.exit_code, message in result.stderr) == (code, True)
    assert not (tmp_path / "out.npz").exists()


def test_one_bound_given_by_hand_counts_for_every_component(tmp_path):
    path = save_npz(tmp_path / "a.npz", episodes())
    options = ["--action-low", "-9", "--action-high", "9"]
    result = CliRunner().invoke(main, ["dataset", "convert", str(path), str(tmp_path / "b.npz"), *options])
    assert result.exit_code == 0, result.output
    assert load(tmp_path / "b.npz").spaces == SpaceSpec(3, (-9.0,) * len(LOW), (9.0,) * len(HIGH))


def test_unordered_transitions_cannot_become_minari_episodes(tmp_path):
    data = episodes(lengths=(20, 20, 20))
    order = np.random.default_rng(1).permutation(60)
    path = save_npz(tmp_path / "a.npz", {name: column[order] for name, column in data.items()})
    with pytest.raises(DatasetError, match="unordered"):
        convert_dataset(path, "minari", "copy/out-v1", spaces=SPACES)


@pytest.mark.parametrize("target", ["out.npz", "out.hdf5", "copy/out-v1"])
def test_writers_never_replace_a_file_and_leave_nothing_behind(places, tmp_path, minari_root, target):
    place = target if target.endswith("-v1") else tmp_path / target
    columns = load(places[0]).columns()
    written = write_columns(place, columns)
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(DatasetError, match="already exists"):
        write_columns(place, columns)
    assert written.exists()
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert not any(path.name.startswith(".tmp") for path in before)


def test_a_failed_write_leaves_no_partial_file(tmp_path):
    columns = TransitionDataset.from_arrays(**episodes(), spaces=SPACES).columns()
    columns.data["rewards"].read = None  # fails in the middle of the archive
    with pytest.raises(TypeError):
        write_columns(tmp_path / "out.npz", columns)
    assert list(tmp_path.iterdir()) == []


def test_fortran_order_and_compression_change_nothing(tmp_path):
    data = episodes()
    plain = load(save_npz(tmp_path / "plain.npz", data), spaces=SPACES)
    np.savez_compressed(
        tmp_path / "packed.npz", **{name: np.asfortranarray(column) for name, column in data.items()}
    )
    np.testing.assert_array_equal(load(tmp_path / "packed.npz", spaces=SPACES).rows, plain.rows)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rows_are_read_in_any_order_from_several_columns_at_a_time(tmp_path, save):
    data = {name: np.tile(column, (5_000,) + (1,) * (column.ndim - 1)) for name, column in episodes().items()}
    data = {
        name: column + np.arange(column.size, dtype=np.float32).reshape(column.shape)
        for name, column in data.items()
    }
    save(tmp_path / "a.npz", **data)
    with read_npz(tmp_path / "a.npz") as columns:
        for start in (4, 30_000, 20_000, 50_000, 0, 9_000):
            for name in ("rewards", "observations", "actions"):
                rows = slice(start, start + 3)
                np.testing.assert_array_equal(columns.data[name].read(rows.start, rows.stop), data[name][rows])


def test_a_file_is_not_downloaded(tmp_path):
    with pytest.raises(ConfigError, match=r"rows\.npz: only Minari data sets can be downloaded; leave"):
        read_columns(tmp_path / "rows.npz", download=True)


def test_nothing_is_downloaded_unless_asked(monkeypatch):
    monkeypatch.setattr(minari, "download_dataset", lambda *_: pytest.fail("network used"))
    with pytest.raises(DatasetError, match=r"set dataset_download: true \(`rl-training dataset`: --download\)"):
        read_columns("D4RL/pen/human-v2")


def test_a_missing_package_is_named_with_its_install_line(places, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingDependencyError, match=r"pip install h5py 'minari\[hdf5\]' pillow"):
        read_columns(places[1])


def test_an_unknown_target_kind_is_refused(places, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'hdf5'"):
        convert_dataset(places[0], "hdf", tmp_path / "x")


def test_load_takes_any_file_or_id(tmp_path, minari_root) -> None:
    columns = episodes()
    save_minari(minari_root, "mine/walks-v0", columns)
    given = TransitionDataset.from_arrays(**columns, action_low=LOW, action_high=HIGH)
    bounds = {"action_low": LOW, "action_high": HIGH}
    loaded = [
        TransitionDataset.load(save_npz(tmp_path / "a.npz", columns), **bounds),
        TransitionDataset.load(str(save_hdf5(tmp_path / "a.h5", columns)), **bounds),
        TransitionDataset.load(save_hdf5(tmp_path / "a.data", columns), kind="hdf5", **bounds),
        TransitionDataset.load(save_npz(tmp_path / "b.npz", columns), spaces=given.spaces),
        TransitionDataset.load("mine/walks-v0"),
    ]
    for dataset in loaded:
        assert np.array_equal(dataset.rows, given.rows)
        assert dataset.spaces == given.spaces
    with pytest.raises(DatasetError, match="the action bounds are unknown; give action_low and action_high"):
        TransitionDataset.load(tmp_path / "a.npz")
    with pytest.raises(DatasetError, match="but the environment or the configuration has"):
        TransitionDataset.load("mine/walks-v0", action_low=-9.0, action_high=9.0)
