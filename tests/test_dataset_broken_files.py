"""Broken and malicious data files: one line that names file, column and row, and nothing executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest

from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import read_columns
from rl_training.errors import DatasetError, RLTrainingError
from rl_training.spaces import SpaceSpec
from tests.dataset_files import HIGH, LOW, episodes, save_hdf5, save_minari, save_npz

SPACES = SpaceSpec(3, LOW, HIGH)
DISCRETE = SpaceSpec(3, num_actions=3)
MINARI_ID = "test/broken-v0"


def load(place: str | Path, spaces: SpaceSpec | None = SPACES) -> TransitionDataset:
    with read_columns(place) as columns:
        return TransitionDataset.from_columns(columns, spaces=spaces)


def refusal(place: str | Path, spaces: SpaceSpec | None = SPACES) -> str:
    with pytest.raises(RLTrainingError) as caught:
        load(place, spaces)
    assert isinstance(caught.value, DatasetError)
    message = str(caught.value)
    assert "\n" not in message
    name = place.name if isinstance(place, Path) else place
    assert name in message
    return message


def test_the_remedies_for_unknown_bounds_exist(tmp_path: Path) -> None:
    """`load` has no `env_id`: what its message names for Python must be among its arguments."""
    file = save_npz(tmp_path / "data.npz", episodes())
    message = refusal(file, spaces=None)
    assert "give action_low and action_high, or the environment: env_id in a configuration" in message
    assert "spaces=… in Python" in message
    for given in ({"action_low": LOW, "action_high": HIGH}, {"spaces": SPACES}):
        assert len(TransitionDataset.load(file, **given)) == 12


# ---- contents ------------------------------------------------------------------------------------


def changed(column: str, row: int | tuple[int, int], value: float) -> Callable[[dict], None]:
    def change(data: dict) -> None:
        data[column] = data[column].astype(np.float64)
        data[column][row] = value

    return change


def replaced(column: str, function: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict], None]:
    return lambda data: data.update({column: function(data[column])})


def without(*columns: str) -> Callable[[dict], None]:
    return lambda data: [data.pop(column) for column in columns] and None


def emptied(data: dict) -> None:
    data.update({name: column[:0] for name, column in data.items()})


def cut_to_one_row(data: dict) -> None:
    data.update({name: column[4:5] for name, column in data.items()})
    del data["next_observations"]


def shifted_across_time_limits(data: dict) -> None:
    data["next_observations"] = np.concatenate([data["observations"][1:], data["next_observations"][-1:]])


def renamed_rewards(data: dict) -> None:
    data["Rewards"] = data.pop("rewards")


def flags_of_another_file(data: dict) -> None:
    data["timeouts"] = np.zeros(12, bool)


def discrete(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict], None]:
    return lambda data: data.update(actions=function(np.arange(12) % 3))


@dataclass
class Content:
    change: Callable[[dict], None]
    message: str
    spaces: SpaceSpec | None = SPACES


CONTENTS = {
    "no observations": Content(without("observations"), "column 'observations' is missing; found: actions"),
    "no actions": Content(without("actions"), "column 'actions' is missing"),
    "no rewards": Content(without("rewards"), "column 'rewards' is missing"),
    "another case": Content(renamed_rewards, "timeouts, next_observations, Rewards; needed: "),
    "no terminals": Content(without("terminals"), "column 'terminals' is missing"),
    "episodes unknowable": Content(
        without("timeouts", "next_observations"),
        "columns 'timeouts' and 'next_observations' are both missing",
    ),
    "short rewards": Content(
        replaced("rewards", lambda c: c[:-1]), "column 'rewards' has 11 rows, 'observations' has 12"
    ),
    "long timeouts": Content(replaced("timeouts", lambda c: np.append(c, False)), "column 'timeouts' has 13 rows"),
    "flat observations": Content(
        replaced("observations", lambda c: c[:, 0]),
        "column 'observations' must have 2 dimensions, got shape [12]",
    ),
    "column of rewards": Content(
        replaced("rewards", lambda c: c[:, None]), "column 'rewards' must have 1 dimension, got shape [12, 1]"
    ),
    "single reward": Content(
        replaced("rewards", lambda c: c[0]), "column 'rewards' must have 1 dimension, got shape []"
    ),
    "images": Content(
        replaced("observations", lambda c: np.zeros((12, 3, 3))),
        "must have 2 dimensions, got shape [12, 3, 3]",
    ),
    "flat actions": Content(
        replaced("actions", lambda c: c[:, 0]),
        "column 'actions' must have shape [n, 2] for this action space",
    ),
    "other next observations": Content(
        replaced("next_observations", lambda c: c[:, :2]), "'next_observations' has 2 components"
    ),
    "NaN observation": Content(changed("observations", (5, 1), np.nan), "column 'observations', row 5: nan"),
    "infinite reward": Content(changed("rewards", 7, np.inf), "column 'rewards', row 7: inf"),
    "too large for float32": Content(changed("rewards", 3, 1e39), "column 'rewards', row 3: 1e+39 is not"),
    "NaN action": Content(changed("actions", (2, 0), np.nan), "column 'actions', row 2: nan"),
    "infinite next observation": Content(
        changed("next_observations", (8, 2), -np.inf), "column 'next_observations', row 8: -inf"
    ),
    "action above": Content(
        changed("actions", (6, 1), 3.1), "column 'actions', row 6: 3.1 (component 1) is outside [-1, 3]"
    ),
    "action below": Content(changed("actions", (0, 0), -2.001), "row 0: -2.001 (component 0) is outside [-2, 2]"),
    "terminal of two": Content(changed("terminals", 9, 2), "column 'terminals', row 9: 2.0 is not 0 or 1"),
    "half a timeout": Content(changed("timeouts", 1, 0.5), "column 'timeouts', row 1: 0.5 is not 0 or 1"),
    "NaN terminal": Content(changed("terminals", 4, np.nan), "column 'terminals', row 4: nan is not 0 or 1"),
    "next observations of the same row": Content(
        lambda data: data.update(next_observations=data["observations"]), "the column is shifted"
    ),
    "next observations of the row before": Content(
        lambda data: data.update(next_observations=np.roll(data["observations"], 1, axis=0)), "is shifted"
    ),
    "across time limits": Content(
        shifted_across_time_limits,
        "column 'next_observations', row 6: is the first observation of the next episode",
    ),
    "unmarked time limit": Content(
        flags_of_another_file,
        "column 'next_observations', row 6: differs from 'observations' of row 7 inside an episode",
    ),
    "one corrupt next observation": Content(
        changed("next_observations", (8, 0), 0.0), "row 8: differs from 'observations' of row 9"
    ),
    "another environment": Content(
        lambda data: None,
        "column 'observations' has 3 components, the environment has 4",
        SpaceSpec(4, LOW, HIGH),
    ),
    "other actions": Content(
        lambda data: None,
        "must have shape [n, 1] for this action space, got [12, 2]",
        SpaceSpec(3, (-1,), (1,)),
    ),
    "continuous for discrete": Content(lambda data: None, "must have shape [n]", DISCRETE),
    "no bounds": Content(lambda data: None, "the action bounds are unknown", None),
    "discrete out of range": Content(
        discrete(lambda c: c + (np.arange(12) == 5) * 9),
        "column 'actions', row 5: 11 is outside 0..2",
        DISCRETE,
    ),
    "negative discrete": Content(discrete(lambda c: c - 1), "row 0: -1 is outside 0..2", DISCRETE),
    "fractional discrete": Content(
        discrete(lambda c: c + 0.5 * (np.arange(12) == 4)),
        "column 'actions', row 4: 1.5 is not an integer action index",
        DISCRETE,
    ),
    "empty": Content(emptied, "column 'observations' is empty"),
    "one row without a successor": Content(cut_to_one_row, "no complete transition in 1 row;"),
    "no components": Content(
        lambda data: data.update(observations=np.zeros((12, 0)), next_observations=np.zeros((12, 0))),
        "column 'observations' has no components",
    ),
    "text": Content(replaced("rewards", lambda c: c.astype("S8")), "column 'rewards' holds |S8, not numbers"),
    "complex": Content(replaced("rewards", lambda c: c.astype(complex)), "holds complex128, not numbers"),
}


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
@pytest.mark.parametrize("case", CONTENTS)
def test_broken_contents(tmp_path, case, kind):
    content, data = CONTENTS[case], episodes()
    content.change(data)
    path = tmp_path / f"broken.{kind}"
    (save_npz if kind == "npz" else save_hdf5)(path, data)
    assert content.message in refusal(path, content.spaces)


@pytest.mark.parametrize(
    ("extra", "spaces", "message"),
    [
        ({"action_low": [-1.0] * 2, "action_high": [1.0] * 2}, SPACES, "its actions are [-1..1, -1..1]"),
        (
            {"action_low": (*LOW, 0.0), "action_high": HIGH},
            None,
            "action bounds differ in length: 3 low, 2 high",
        ),
        ({"action_low": HIGH, "action_high": LOW}, None, "low < high"),
        ({"action_low": [-np.inf] * 2, "action_high": [np.inf] * 2}, None, "unbounded"),
        ({"action_low": LOW}, None, "only useful together"),
        ({"action_low": np.zeros(5000), "action_high": np.ones(5000)}, None, "must be a few numbers"),
        ({"num_actions": 0}, None, "num_actions must be one whole number, got [0]"),
        ({"num_actions": 2.5}, None, "num_actions must be one whole number"),
        (
            {"action_low": np.array(["a", "b"], "S1"), "action_high": HIGH},
            None,
            "action_low must be a few numbers",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_broken_bounds(tmp_path, kind, extra, spaces, message):
    path = tmp_path / f"bounds.{kind}"
    (save_npz if kind == "npz" else save_hdf5)(
        path, episodes(), **{name: np.asarray(value) for name, value in extra.items()}
    )
    assert message in refusal(path, spaces)


# ---- npz archives --------------------------------------------------------------------------------


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """An archive of sound columns in which `members` replace some."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, column in episodes().items():
            buffer = io.BytesIO()
            np.save(buffer, column)
            file.writestr(f"{name}.npy", members.get(name, buffer.getvalue()))
    return path


def test_a_pickled_object_array_is_refused_and_not_executed(tmp_path):
    canary = tmp_path / "executed"
    data = episodes()
    data["rewards"] = np.array([Canary(canary)] * 12, dtype=object)
    message = refusal(save_npz(tmp_path / "evil.npz", data))
    assert "column 'rewards' holds Python objects, which could run code" in message
    assert not canary.exists()


def test_pickles_hidden_as_members_or_columns_nobody_asked_for_are_never_opened(tmp_path):
    canary = tmp_path / "executed"
    path = archive(tmp_path / "evil.npz", {})
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("data.pkl", pickle.dumps(Canary(canary)))
        buffer = io.BytesIO()
        np.save(buffer, np.array([Canary(canary)], dtype=object), allow_pickle=True)
        file.writestr("infos.npy", buffer.getvalue())
    assert len(load(path)) == 12
    assert not canary.exists()


def test_a_pickle_with_the_ending_of_an_archive_is_not_executed(tmp_path):
    canary = tmp_path / "executed"
    path = tmp_path / "evil.npz"
    path.write_bytes(pickle.dumps(Canary(canary)))
    assert "is not an .npz archive" in refusal(path)
    member = archive(tmp_path / "member.npz", {"rewards": pickle.dumps(Canary(canary))})
    assert "column 'rewards' is damaged" in refusal(member)
    assert not canary.exists()


HEADERS = {
    "more than held": (
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000,)}", b"\0" * 48),
        "column 'rewards' declares shape [10000000000], 40000000000 bytes, but holds 48",
    ),
    "negative sizes": (
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3, -4)}", b"\0" * 48),
        "column 'rewards' declares shape [-3, -4]",
    ),
    "code in the header": (
        npy("{'descr': __import__('os').mkdir('executed'), 'fortran_order': False, 'shape': (12,)}"),
        "column 'rewards' is damaged",
    ),
    "structured": (
        npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (12,)}", b"\0" * 48),
        "column 'rewards' holds [('a', '<f4')], not numbers",
    ),
    "unknown version": (npy("{}", version=b"\x09\x00"), "column 'rewards' is damaged"),
    "no array": (b"rewards", "column 'rewards' is damaged"),
    "empty member": (b"", "column 'rewards' is damaged"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_broken_arrays_in_an_archive(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    member, message = HEADERS[case]
    assert message in refusal(archive(tmp_path / "broken.npz", {"rewards": member}))
    assert not (tmp_path / "executed").exists()


def test_a_zip_bomb_is_refused_by_its_declared_size(tmp_path):
    path = archive(tmp_path / "bomb.npz", {}, zipfile.ZIP_STORED)
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02", content.rindex(b"rewards.npy") - 60)
    struct.pack_into("<I", content, entry + 24, 2**32 - 2)  # uncompressed size in the central directory
    path.write_bytes(content)
    assert "column 'rewards' declares 4.0 GiB but the file holds" in refusal(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_bit_in_an_archive_is_noticed(tmp_path, compression):
    path = archive(tmp_path / "flipped.npz", {}, compression)
    content = bytearray(path.read_bytes())
    content[content.index(b"observations.npy") + 16 + 128 + 20] ^= 1
    path.write_bytes(content)
    assert "column 'observations' is damaged" in refusal(path)


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
@pytest.mark.parametrize("size", [0, 10, 700, -100, -1])
def test_a_truncated_file_is_refused(tmp_path, kind, size):
    path = tmp_path / f"short.{kind}"
    (save_npz if kind == "npz" else save_hdf5)(path, episodes())
    path.write_bytes(path.read_bytes()[:size])
    refusal(path)


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_a_missing_file_or_a_folder_is_named(tmp_path, kind):
    assert "does not exist; check dataset_path" in refusal(tmp_path / f"absent.{kind}")
    (tmp_path / f"folder.{kind}").mkdir()
    assert "is a folder, not a file" in refusal(tmp_path / f"folder.{kind}")


# ---- HDF5 files ----------------------------------------------------------------------------------


def external_link(file: h5py.File, secret: Path) -> None:
    file["rewards"] = h5py.ExternalLink(str(secret), "rewards")


def soft_link(file: h5py.File, secret: Path) -> None:
    file["rewards"] = h5py.SoftLink("/terminals")


def soft_link_through_an_external_one(file: h5py.File, secret: Path) -> None:
    file["outside"] = h5py.ExternalLink(str(secret), "/")
    file["rewards"] = h5py.SoftLink("/outside/rewards")


def virtual(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((12,), np.float32)
    layout[:] = h5py.VirtualSource(str(secret), "rewards", (12,))
    file.create_virtual_dataset("rewards", layout)


def external_storage(file: h5py.File, secret: Path) -> None:
    file.create_dataset("rewards", (12,), np.float32, external=[(str(secret), 0, 48)])


def hollow(file: h5py.File, secret: Path) -> None:
    file.create_dataset("rewards", (10**11,), np.float32)


def hollow_pieces(file: h5py.File, secret: Path) -> None:
    dataset = file.create_dataset("rewards", (10**11,), np.float32, chunks=(10**4,), compression="gzip")
    dataset[:12] = 1


def huge_piece(file: h5py.File, secret: Path) -> None:
    dataset = file.create_dataset(
        "rewards", (12,), np.float32, chunks=(2**29,), maxshape=(None,), compression="gzip"
    )
    dataset.id.write_direct_chunk((0,), b"bomb")


def group(file: h5py.File, secret: Path) -> None:
    file.create_group("rewards")


def variable_length(file: h5py.File, secret: Path) -> None:
    file.create_dataset("rewards", (12,), h5py.vlen_dtype(np.float32))


def no_value(file: h5py.File, secret: Path) -> None:
    file["rewards"] = h5py.Empty(np.float32)


def references(file: h5py.File, secret: Path) -> None:
    file.create_dataset("rewards", (12,), h5py.ref_dtype)


STRUCTURES = {
    external_link: "'rewards' is a link to another place or file",
    soft_link: "'rewards' is a link to another place or file",
    soft_link_through_an_external_one: "'rewards' is a link to another place or file",
    virtual: "column 'rewards' is stored in another file",
    external_storage: "column 'rewards' is stored in another file",
    hollow: "column 'rewards' declares 372.5 GiB but the file holds 0 B",
    hollow_pieces: "column 'rewards' declares 372.5 GiB but only 1 of its 10000000 pieces are in the file",
    huge_piece: "column 'rewards' is stored in pieces of 2.0 GiB; write it in smaller chunks",
    group: "column 'rewards' is a group, not an array",
    variable_length: "column 'rewards' holds object, not numbers",
    no_value: "column 'rewards' holds float32, not numbers",
    references: "column 'rewards' holds object, not numbers",
}


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda function: function.__name__)
def test_an_hdf5_file_that_points_elsewhere_or_holds_nothing(tmp_path, structure):
    secret = save_hdf5(tmp_path / "secret.hdf5", episodes())
    data = episodes()
    del data["rewards"]
    path = save_hdf5(tmp_path / "evil.hdf5", data)
    with h5py.File(path, "r+") as file:
        structure(file, secret)
    assert path.stat().st_size < 40_000
    assert STRUCTURES[structure] in refusal(path)


def test_text_with_the_ending_of_hdf5(tmp_path):
    path = tmp_path / "text.hdf5"
    path.write_text("observations,actions\n1,2\n")
    assert "is not a readable HDF5 file" in refusal(path)


def test_damaged_compressed_pieces_name_the_column(tmp_path):
    path = tmp_path / "damaged.hdf5"
    data = episodes(lengths=(300,), terminal=(True,))
    with h5py.File(path, "w") as file:
        for name, column in data.items():
            file.create_dataset(name, data=column, chunks=True, compression="gzip", fletcher32=True)
        where = file["observations"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[where.byte_offset + where.size // 2] ^= 0xFF
    path.write_bytes(content)
    assert "column 'observations' is damaged between rows" in refusal(path)


# ---- Minari --------------------------------------------------------------------------------------


@pytest.fixture
def minari_root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def change_episode(name: str, value: np.ndarray | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with h5py.File(folder / "main_data.hdf5", "r+") as file:
            del file[name]
            if value is not None:
                file[name] = value

    return change


def link_episode(folder: Path) -> None:
    with h5py.File(folder / "main_data.hdf5", "r+") as file:
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink(str(folder.parent / "other.hdf5"), "episode_1")


def change_metadata(**entries: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "metadata.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))

    return change


def write_metadata(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "metadata.json").write_text(text) and None


def dict_observations(folder: Path) -> None:
    with h5py.File(folder / "main_data.hdf5", "r+") as file:
        del file["episode_0/observations"]
        file["episode_0/observations/position"] = np.zeros((5, 3))


BOX = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-np.inf] * 2, "high": [np.inf] * 2}
MINARI = {
    "shifted observations": (
        change_episode("episode_1/observations", np.zeros((3, 3))),
        "episode_1: column 'observations' has 3 rows, expected 4: an episode of 3 steps has 4 observations",
    ),
    "no rewards": (change_episode("episode_2/rewards", None), "episode_2: column 'rewards' is missing"),
    "short actions": (
        change_episode("episode_0/actions", np.zeros((3, 2))),
        "episode_0: column 'actions' has 3 rows, expected 4",
    ),
    "wide observations": (
        change_episode("episode_2/observations", np.zeros((6, 4))),
        "episode_2: column 'observations' has shape [6, 4], expected [steps, 3]",
    ),
    "empty episode": (
        change_episode("episode_1/rewards", np.zeros(0)),
        "episode_1: column 'rewards' is empty",
    ),
    "NaN": (
        change_episode("episode_1/rewards", np.array([1, np.nan, 2])),
        "column 'rewards', row 5: nan is not a finite",
    ),
    "lost episode": (change_episode("episode_1", None), "group 'episode_1' is missing"),
    "episode as array": (
        change_episode("episode_1", np.zeros(3)),
        "episode_1: column 'observations' is missing",
    ),
    "external episode": (link_episode, "'episode_1' is a link to another place or file"),
    "dict observations": (dict_observations, "episode_0: column 'observations' is a group, not an array"),
    "dict space": (
        change_metadata(observation_space=json.dumps({"type": "Dict", "subspaces": {}})),
        "metadata.json: observation_space Dict is not a flat Box; record the data with FlattenObservation",
    ),
    "no space": (change_metadata(action_space=None), "action_space is missing or not a serialized space"),
    "code as a space": (
        change_metadata(action_space="__import__('os').mkdir('executed')"),
        "action_space is missing or not a serialized space",
    ),
    "unknown space": (
        change_metadata(action_space=json.dumps({"type": "MultiBinary", "n": 2, "shape": [2]})),
        "action_space MultiBinary is neither a flat Box nor Discrete",
    ),
    "incomplete space": (change_metadata(action_space='{"type": "Discrete"}'), "a space is incomplete"),
    "unbounded space": (change_metadata(action_space=json.dumps(BOX)), "the action space is unbounded"),
    "arrow": (change_metadata(data_format="arrow"), "data_format 'arrow' cannot be read"),
    "no JSON": (write_metadata("{'total': 1}"), "metadata.json: is not readable JSON"),
    "deep JSON": (write_metadata("[" * 100_000), "metadata.json: is not readable JSON"),
    "JSON list": (write_metadata("[]"), "must hold a JSON object"),
    "no metadata": (lambda folder: (folder / "metadata.json").unlink(), "metadata.json: does not exist"),
    "no data": (lambda folder: (folder / "main_data.hdf5").unlink(), "main_data.hdf5: does not exist"),
}


@pytest.mark.parametrize("case", MINARI)
def test_broken_minari(minari_root, monkeypatch, case):
    monkeypatch.chdir(minari_root.parent)
    folder = save_minari(minari_root, MINARI_ID, episodes())
    break_it, message = MINARI[case]
    break_it(folder)
    assert message in refusal(MINARI_ID, None)
    assert not (minari_root.parent / "executed").exists()


@pytest.mark.parametrize(
    "dataset_id", ["../../etc-v0", "/etc/passwd-v0", "a/../b-v0", "name", "", "a b-v0", "x/.-v0"]
)
def test_an_id_cannot_leave_the_folder_of_data_sets(minari_root, dataset_id):
    with pytest.raises(DatasetError, match="is not a Minari id"):
        read_columns(dataset_id, "minari")


def test_a_file_of_another_kind_is_not_taken_for_an_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("observations,actions\n")
    with pytest.raises(DatasetError, match=r"^log\.csv: neither \.npz, \.hdf5 nor \.h5") as caught:
        read_columns("log.csv")
    assert "from_arrays" in str(caught.value)
    with pytest.raises(DatasetError, match="is not a Minari id"):
        read_columns("absent.csv")
    (tmp_path / "runs").mkdir()
    with pytest.raises(DatasetError, match=r"^runs: a folder, not a data set; `rl-training dataset from-run RUN"):
        read_columns("runs")


def test_an_environment_named_in_the_metadata_is_never_made(minari_root):
    spec = json.dumps({"id": "x-v0", "entry_point": "os:mkdir", "kwargs": {"path": "executed"}})
    save_minari(minari_root, MINARI_ID, episodes(), {"env_spec": spec, "requirements": ["evil"]})
    assert len(load(MINARI_ID, None)) == 12
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5", "main_data.hdf5", "metadata.json"])
def test_random_damage_never_escapes_as_another_error(tmp_path, minari_root, name):
    folder = save_minari(minari_root, MINARI_ID, episodes())
    save_npz(tmp_path / "a.npz", episodes())
    save_hdf5(tmp_path / "a.hdf5", episodes())
    place = tmp_path / name if name.startswith("a.") else MINARI_ID
    path = tmp_path / name if name.startswith("a.") else folder / name
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    messages = []
    for attempt in range(150):
        content = bytearray(sound[: rng.integers(len(sound))] if attempt % 3 == 0 else sound)
        for position in rng.integers(max(1, len(content)), size=4):
            content[position : position + 1] = rng.bytes(1)
        path.write_bytes(content)
        try:
            load(place)
        except RLTrainingError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)
