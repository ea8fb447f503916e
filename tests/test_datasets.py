"""Transitions, episodes, transforms, mixtures and the configuration that names them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_training import BC
from rl_training.data import columns as columns_module
from rl_training.data.datasets import TransitionDataset
from rl_training.data.loading import DatasetConfig, load_dataset
from rl_training.data.mixing import mix
from rl_training.data.scores import normalized_score
from rl_training.data.sources import BatchSource
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError, DatasetError, MemoryLimitError
from rl_training.spaces import SpaceSpec
from tests.dataset_files import HIGH, LOW, episodes, save_npz

SPACES = SpaceSpec(3, LOW, HIGH)


def sample(source: BatchSource, batch_size: int) -> TransitionBatch:
    return source.layout.unpack(source.sample_rows(batch_size))


def dataset(columns=None, **options) -> TransitionDataset:
    return TransitionDataset.from_arrays(**(columns or episodes()), spaces=SPACES, **options)


def line_world(rewards, terminals, timeouts, **options) -> TransitionDataset:
    """One-dimensional states 0, 1, 2, … and the given rewards and flags."""
    n = len(rewards)
    options = {"action_low": -1.0, "action_high": 1.0, **options}
    return TransitionDataset.from_arrays(
        np.arange(n, dtype=np.float32)[:, None], np.zeros((n, 1)), rewards, terminals, timeouts, **options
    )


def test_actions_are_scaled_to_the_unit_interval_by_the_given_bounds():
    data = episodes()
    low, high = np.array(LOW), np.array(HIGH)
    expected = (data["actions"] - low) / (high - low) * 2 - 1
    rows = dataset(data).rows
    np.testing.assert_allclose(rows[:, 6:8], expected, atol=1e-6)


def test_a_terminal_masks_the_bootstrap_and_a_time_limit_does_not():
    result = dataset()
    assert result.dones.tolist() == [0, 0, 0, 1] + [0] * 8
    assert result.episode_ends.tolist() == [3, 6, 11]
    assert result.statistics().terminals == 1
    assert result.statistics().timeouts == 2


def test_terminals_win_where_both_flags_are_set():
    data = episodes()
    data["timeouts"] = data["timeouts"] | data["terminals"]
    np.testing.assert_array_equal(dataset(data).rows, dataset().rows)


def test_without_next_observations_rows_are_shifted_inside_episodes_only():
    result = line_world(
        rewards=[1, 2, 3, 4, 5, 6, 7],
        terminals=[0, 0, 1, 0, 0, 0, 0],
        timeouts=[0, 0, 0, 0, 1, 0, 0],
    )
    obs, next_obs, rewards = result.rows[:, 0], result.rows[:, 1], result.rewards
    # Row 4 ends by a time limit and row 6 is cut: neither has a successor. Row 2 terminates and is kept.
    assert obs.tolist() == [0, 1, 2, 3, 5]
    assert next_obs.tolist() == [1, 2, 2, 4, 6]
    assert rewards.tolist() == [1, 2, 3, 4, 6]
    assert result.dones.tolist() == [0, 0, 1, 0, 0]
    assert result.episode_ends.tolist() == [2, 3, 4]
    assert "2 rows left out" in result.notes[0]


def test_an_episode_of_one_timed_out_row_disappears_without_next_observations():
    result = line_world([1, 2, 3, 4], terminals=[0, 0, 0, 1], timeouts=[1, 0, 1, 0])
    assert result.rows[:, 0].tolist() == [1, 3]
    assert result.episode_ends.tolist() == [0, 1]


def test_episode_ends_come_from_next_observations_where_timeouts_are_absent():
    data = episodes()
    del data["timeouts"]
    result = dataset(data)
    assert result.episode_ends.tolist() == [3, 6, 11]
    assert "1 episode ends found" in result.notes[0]


def test_shuffled_transitions_are_usable_but_have_no_episodes():
    data = episodes(lengths=(30, 30, 30))
    order = np.random.default_rng(1).permutation(90)
    data = {name: column[order] for name, column in data.items()}
    result = dataset(data)
    assert len(result) == 90
    statistics = result.statistics()
    assert (statistics.episodes, statistics.return_mean) == (0, None)
    assert "without episodes" in statistics.notes[0]
    with pytest.raises(DatasetError, match="needs episodes"):
        result.top_fraction(0.5)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("reward", r"accepted: observations, actions, .*, memory_limit; did you mean 'rewards'\?$"),
        ("obs", "use observations=…$"),
        ("next_obs", "use next_observations=…$"),
        ("dones", "use terminals=…, without time limits, and timeouts=… for these$"),
        ("speed", "accepted: observations, actions, .*, memory_limit$"),
    ],
)
def test_an_unknown_argument_is_named_with_the_one_to_use(name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=rf"^from_arrays\(\) has no argument '{name}'; {hint}"):
        TransitionDataset.from_arrays([[0.0]], [0], [0.0], [0], **{name: [0]})


def test_bounds_never_come_from_the_data():
    data = episodes()
    with pytest.raises(DatasetError, match="never guessed from the data"):
        TransitionDataset.from_arrays(**data)


def test_actions_within_rounding_of_a_bound_are_clipped():
    data = episodes()
    data["actions"][2, 0] = 2.0 + 1e-6
    assert dataset(data).rows[2, 6] == 1.0


def test_discrete_actions_are_numbered_from_zero_inside():
    data = episodes()
    data["actions"] = np.arange(12) % 3 + 5
    result = TransitionDataset.from_arrays(**data, num_actions=3, start=5)
    assert result.layout.discrete
    batch = result.layout.unpack(torch.from_numpy(result.rows))
    assert batch.actions.tolist() == [0, 1, 2] * 4


def test_statistics_say_what_the_data_are():
    data = episodes()
    statistics = dataset(data).statistics()
    returns = [data["rewards"][span].sum(dtype=np.float64) for span in (slice(0, 4), slice(4, 7), slice(7, 12))]
    assert (statistics.rows, statistics.episodes) == (12, 3)
    assert statistics.return_mean == pytest.approx(np.mean(returns))
    assert statistics.return_std == pytest.approx(np.std(returns))
    assert (statistics.return_min, statistics.return_max) == pytest.approx((min(returns), max(returns)))
    assert (statistics.length_min, statistics.length_mean, statistics.length_max) == (3, 4.0, 5)
    np.testing.assert_allclose(statistics.action_max, data["actions"].max(0), atol=1e-6)
    np.testing.assert_allclose(statistics.obs_mean, data["observations"].mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics.obs_std, data["observations"].std(0), rtol=1e-5)
    assert "one episode only" in dataset(episodes((4,), (False,))).statistics().notes


def test_discounted_returns_by_hand():
    result = line_world([1, 2, 4, 8], terminals=[0, 1, 0, 1], timeouts=[0, 0, 0, 0])
    assert result.episode_returns(0.5).tolist() == [1 + 0.5 * 2, 4 + 0.5 * 8]
    assert result.episode_returns().tolist() == [3, 12]


def test_rewards_are_scaled_then_shifted():
    result = line_world([1, 2], terminals=[0, 1], timeouts=[0, 0]).with_rewards(scale=4, shift=-2)
    assert result.rewards.tolist() == [2, 6]


def test_return_range_scaling_by_hand():
    result = line_world([1, 1, 6, 1, 2], terminals=[0, 1, 1, 0, 1], timeouts=[0] * 5)
    # Returns 2, 6 and 3: the range is 4, so every reward is multiplied by 1000 / 4.
    assert result.with_return_range().rewards.tolist() == [250, 250, 1500, 250, 500]
    with pytest.raises(DatasetError, match="different returns"):
        line_world([1, 2], terminals=[0, 1], timeouts=[0, 0]).with_return_range()


def test_top_fraction_keeps_whole_episodes_by_discounted_return():
    # Returns 10, 10.05 (but late: 0.99 * 10.05 < 10) and 1: the best third is the first episode.
    result = line_world([10, 0, 0, 10.05, 1], terminals=[0, 1, 0, 1, 1], timeouts=[0] * 5)
    best = result.top_fraction(1 / 3)
    assert best.rows[:, 0].tolist() == [0, 1]
    two = result.top_fraction(0.67)
    assert two.rows[:, 0].tolist() == [0, 1, 2, 3]
    assert two.episode_ends.tolist() == [1, 3]
    assert len(result.top_fraction(0.01)) == 2  # never empty
    ten = line_world([1] * 10, terminals=[1] * 10, timeouts=[0] * 10)
    assert [len(ten.top_fraction(fraction)) for fraction in (0.1, 0.29, 0.7)] == [1, 2, 7]
    assert len(line_world([1] * 90, terminals=[1] * 90, timeouts=[0] * 90).top_fraction(0.7)) == 63
    assert "best 1 of 3 episodes" in best.notes


def test_episodes_are_sliced_saved_and_shown_in_one_line(tmp_path):
    result = dataset(name="log")
    assert repr(result) == "TransitionDataset('log', 12 rows, 3 episodes, obs 3, actions 2)"
    later = result[1:]
    np.testing.assert_array_equal(later.rows, result.rows[4:])
    assert later.episode_ends.tolist() == [2, 7]
    np.testing.assert_array_equal(result[::-2].rows, result.rows[[0, 1, 2, 3, 7, 8, 9, 10, 11]])
    np.testing.assert_allclose(
        TransitionDataset.load(later.save(tmp_path / "later.npz")).rows, later.rows, atol=1e-6
    )
    with pytest.raises(DatasetError, match="none of 3 episodes"):
        result[7:]
    for wrong, message in (
        (lambda: result + np.zeros(3), "does not support ufuncs"),
        (lambda: list(result), "not iterable"),
    ):
        with pytest.raises(TypeError, match=message):
            wrong()
    with pytest.raises(DatasetError, match=r"'ab\.csv' is not .* or a file name that ends in \.npz"):
        result.save("ab.csv")
    with pytest.raises(TypeError, match=r"a slice, as in dataset\[:100\], got 0"):
        result[0]
    with pytest.raises(DatasetError, match="rows of 2 steps cannot be saved"):
        result.with_n_step(2, 0.9).save(tmp_path / "two.npz")


def test_data_sets_are_added_row_by_row():
    one, other = dataset(name="one"), dataset(episodes(seed=1), name="other")
    both = one + other
    assert (both.name, both.parts) == ("one + other", ())
    np.testing.assert_array_equal(both.rows, np.concatenate([one.rows, other.rows]))
    assert both.episode_ends.tolist() == [3, 6, 11, 15, 18, 23]
    assert len(both + one) == 36
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 1
    with pytest.raises(DatasetError, match=r"^two: rows of 2 steps cannot be mixed; mix before with_n_step"):
        one + dataset(name="two").with_n_step(2, 0.9)


def test_rows_with_both_flags_are_noted():
    both = line_world([1.0] * 4, [0, 1, 0, 1], [0, 1, 0, 1])
    assert both.notes[0].startswith("rows with both 'terminals' and 'timeouts': 2; they count as terminations")
    others = [
        line_world([1.0] * 4, [0, 1, 0, 0], [0, 0, 0, 1]),
        line_world([1.0] * 4, [0, 1, 0, 1], [0, 1, 0, 1], ends_at_timeouts=True),
    ]
    assert not any("rows with both" in note for one in others for note in one.notes)


def test_training_on_a_mapping_prints_the_notes_of_the_data(tmp_path, capsys):
    columns = episodes() | {"action_low": LOW, "action_high": HIGH}
    columns["next_observations"] = columns["next_observations"][::-1].copy()
    BC(None, output_dir=tmp_path, batch_size=4).learn(total_timesteps=2, dataset=columns)
    assert "note: rows do not follow each other: transitions without episodes\n" in capsys.readouterr().err


def test_probabilities_of_actions_stay_with_their_rows(tmp_path):
    """Without next observations the last row of each cut episode is left out, and its probability with it."""
    probs = np.linspace(0.1, 0.9, 12)
    values = episodes() | {"action_probs": probs, "action_low": LOW, "action_high": HIGH}
    values.pop("next_observations")
    one = TransitionDataset.from_arrays(**values, name="one")
    kept = ~values["timeouts"].astype(bool)
    assert 0 < len(one) == kept.sum() < 12
    np.testing.assert_array_equal(one.action_probs, probs[kept])
    last = one[-1:]
    np.testing.assert_array_equal(last.action_probs, probs[kept][-len(last) :])
    saved = TransitionDataset.load((one + last).save(tmp_path / "both.npz"))
    np.testing.assert_array_equal(saved.action_probs, [*one.action_probs, *last.action_probs])
    assert one.with_rewards(2.0).action_probs is not None
    with pytest.raises(
        DatasetError, match=r"^log: has no column 'action_probs', and other data do; merge one kind"
    ):
        one + dataset(name="log")
    with pytest.raises(DatasetError, match="Minari has no column 'action_probs'; write npz or HDF5"):
        one.save("some/log-v0")


def test_the_suffix_of_a_file_is_its_kind():
    kinds = {path: parse(dataset_path=path).dataset_kind for path in ("a.npz", "a.hdf5", "a.h5")}
    assert kinds == {"a.npz": "npz", "a.hdf5": "hdf5", "a.h5": "hdf5"}
    assert parse(datasets=[{"dataset_path": "a.npz"}]).datasets[0].dataset_kind == "npz"
    with pytest.raises(ConfigError, match="dataset_path is not used by dataset_kind 'random'"):
        parse(dataset_kind="random", dataset_path="a.npz")


def test_a_mixture_draws_each_component_with_its_weight():
    one = line_world([1.0] * 10, [0] * 9 + [1], [0] * 10)
    other = line_world([2.0] * 1000, [0] * 999 + [1], [0] * 1000)
    mixed = mix([(one, 3.0), (other, 1.0)])
    assert len(mixed) == 1010
    source = mixed.source(torch.Generator().manual_seed(0))
    rewards = sample(source, 40_000).rewards
    assert (rewards == 1.0).float().mean().item() == pytest.approx(0.75, abs=0.01)
    first = sample(source, 40_000).obs[:, 0]
    counts = torch.bincount(first[first < 10].long(), minlength=10).float()
    assert counts.min() > 0.9 * counts.mean()  # uniform inside a component


def test_a_mixture_whose_component_lost_all_episodes_draws_from_the_rest():
    poor = line_world([1.0, 1.0], [0, 1], [0, 0])
    rich = line_world([9.0, 9.0, 9.0], [0, 0, 1], [0, 0, 0])
    best = mix([(poor, 9.0), (rich, 1.0)]).top_fraction(0.5)
    assert [part.rows for part in best.parts] == [3]
    assert set(sample(best.source(torch.Generator()), 64).rewards.tolist()) == {9.0}


def test_the_best_episodes_of_a_row_uniform_mixture_are_drawn_uniformly():
    mostly_poor = line_world([1.0] * 6 + [9.0] * 2, [0, 1] * 4, [0] * 8)
    rich = line_world([8.0] * 8, [0, 1] * 4, [0] * 8)
    best = mix([(mostly_poor, 8.0), (rich, 8.0)]).top_fraction(5 / 8)
    assert [part.rows for part in best.parts] == [2, 8]
    rewards = sample(best.source(torch.Generator().manual_seed(0)), 40_000).rewards
    assert (rewards == 9.0).float().mean().item() == pytest.approx(0.2, abs=0.01)


def test_moments_are_those_of_the_rows_as_drawn():
    low = line_world([0.0] * 2, [0, 1], [0] * 2)  # observations 0 and 1
    high = line_world([0.0] * 6, [0] * 5 + [1], [0] * 6)  # observations 0 to 5
    mixed = mix([(low, 3.0), (high, 1.0)])
    drawn = sample(mixed.source(torch.Generator().manual_seed(0)), 200_000).obs[:, 0]
    mean, std = mixed.observation_moments()
    assert mean[0] == pytest.approx(0.75 * 0.5 + 0.25 * 2.5)
    assert mean[0] == pytest.approx(drawn.mean().item(), abs=0.02)
    assert std[0] == pytest.approx(drawn.std().item(), abs=0.02)


def test_the_map_of_the_rewards_is_remembered():
    data = line_world([1.0, 3.0], [0, 1], [0, 0]).with_rewards(scale=2.0, shift=1.0).with_rewards(scale=10.0)
    assert data.rewards.tolist() == [30.0, 70.0]
    assert data.reward_map == (20.0, 10.0)
    assert mix([(data, 1.0), (data, 1.0)]).reward_map == (20.0, 10.0)
    with pytest.raises(DatasetError, match="differently"):
        mix([(data, 1.0), (data.with_rewards(shift=1.0), 1.0)])


def test_data_of_different_spaces_are_not_mixed():
    with pytest.raises(DatasetError, match=r"mixed: the first has actions from -1\.0 to 1\.0, the second "):
        mix([(line_world([1], [1], [0]), 1.0), (line_world([1], [1], [0], action_high=2.0), 1.0)])


def test_data_larger_than_the_memory_limit_give_the_same_rows_from_a_mapped_file(monkeypatch):
    expected = dataset()
    monkeypatch.setattr(columns_module, "CHUNK_BYTES", 150)  # three rows at a time
    mapped = dataset(memory_limit=100)
    assert isinstance(mapped.rows, np.memmap)
    assert not isinstance(expected.rows, np.memmap)
    np.testing.assert_array_equal(mapped.rows, expected.rows)
    assert mapped.episode_ends.tolist() == expected.episode_ends.tolist()
    scaled = mapped.with_rewards(2.0)
    assert isinstance(scaled.rows, np.memmap)
    np.testing.assert_array_equal(scaled.rewards, expected.rewards * 2)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    batches = [sample(data.source(g), 32) for data, g in zip((mapped, expected), generators)]
    assert all(torch.equal(a, b) for a, b in zip(batches[0][:5], batches[1][:5]))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 12])
@pytest.mark.parametrize("absent", [(), ("next_observations",), ("timeouts",)])
def test_the_size_of_the_chunks_changes_nothing(monkeypatch, size, absent):
    data = {name: column for name, column in episodes().items() if name not in absent}
    expected = dataset(data)
    row_bytes = sum(column[:1].nbytes for column in data.values())
    monkeypatch.setattr(columns_module, "CHUNK_BYTES", size * row_bytes)
    result = dataset(data)
    np.testing.assert_array_equal(result.rows, expected.rows)
    assert result.episode_ends.tolist() == expected.episode_ends.tolist()


def test_more_than_memory_and_disk_is_refused_before_anything_is_allocated():
    huge = np.broadcast_to(np.zeros((1, 3), np.float32), (10**13, 3))
    column = np.broadcast_to(np.float32(0), (10**13,))
    with pytest.raises(MemoryLimitError, match="TMPDIR"):
        TransitionDataset.from_arrays(huge, huge[:, :2], column, column, column, spaces=SPACES)


def test_written_columns_are_read_back_as_the_same_data():
    original = dataset()
    again = TransitionDataset.from_columns(original.columns())
    np.testing.assert_allclose(again.rows, original.rows, atol=1e-6)
    assert again.episode_ends.tolist() == original.episode_ends.tolist()
    assert again.spaces == original.spaces


def parse(**values) -> DatasetConfig:
    return DatasetConfig.parse(values, place="algo_kwargs")


def test_random_data_are_collected_from_the_environment_on_request():
    asked = []

    def collect(size: int, seed: int) -> TransitionDataset:
        asked.append((size, seed))
        return dataset()

    load_dataset(parse(dataset_kind="random", dataset_size=50, dataset_seed=4), spaces=SPACES, collect=collect)
    assert asked == [(50, 4)]
    with pytest.raises(ConfigError, match="needs an environment"):
        load_dataset(parse(dataset_kind="random"), spaces=None)
    with pytest.raises(ConfigError, match="dataset_kind is missing"):
        load_dataset(parse(), spaces=SPACES, collect=collect)


def test_transforms_are_applied_in_their_documented_order(tmp_path):
    data = episodes((2, 2, 2), (True, True, True))
    data["rewards"] = np.array([1, 1, 5, 1, 2, 1], np.float32)
    path = str(save_npz(tmp_path / "a.npz", data))
    config = parse(
        dataset_kind="npz",
        dataset_path=path,
        top_fraction=0.67,
        reward_range_scaling=True,
        reward_scale=0.01,
        reward_shift=-1.0,
    )
    # Episodes with returns 6 and 3 remain; 1000 / 3 * 0.01 = 10 / 3.
    rewards = load_dataset(config, spaces=SPACES).rewards
    np.testing.assert_allclose(rewards, np.array([5, 1, 2, 1]) * 10 / 3 - 1, rtol=1e-6)


def test_several_files_are_mixed_without_an_environment(tmp_path):
    paths = [str(save_npz(tmp_path / f"{seed}.npz", episodes(seed=seed))) for seed in (0, 1)]
    config = parse(
        datasets=[
            {"dataset_kind": "npz", "dataset_path": paths[0], "weight": 3.0},
            {"dataset_kind": "npz", "dataset_path": paths[1]},
        ],
        action_low=list(LOW),
        action_high=list(HIGH),
    )
    mixed = load_dataset(config, spaces=None)
    assert len(mixed) == 24
    assert [part.weight for part in mixed.parts] == [0.75, 0.25]
    assert mixed.episode_ends.tolist() == [3, 6, 11, 15, 18, 23]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset_kind": "npz"}, "dataset_kind 'npz' needs dataset_path"),
        ({"dataset_kind": "minari"}, "dataset_kind 'minari' needs dataset_id"),
        ({"dataset_path": "x.csv"}, "set dataset_kind: npz or hdf5"),
        ({"dataset_id": "a-v0"}, "set dataset_kind: minari"),
        ({"dataset_download": True}, "dataset_download is not used"),
        ({"dataset_kind": "csv"}, "dataset_kind must be 'random', 'npz', 'hdf5' or 'minari', got 'csv'"),
        ({"dataset_size": 0}, "dataset_size must be >= 1, got 0"),
        ({"top_fraction": 0.0}, "top_fraction must be > 0"),
        ({"reward_scale": 0.0}, "reward_scale must be > 0"),
        ({"action_low": [0.0]}, "must be given together"),
        ({"action_low": [1.0], "action_high": [0.0]}, "action_low must be < action_high"),
        ({"action_low": [0.0], "action_high": [1.0, 2.0]}, "differ in length: 1 and 2"),
        ({"datasets": [{"weight": 0.0}]}, "datasets.0.weight must be > 0.0, got 0.0"),
        ({"datasets": [{"dataset_kind": "npz"}]}, "datasets.0: dataset_kind 'npz' needs dataset_path"),
        ({"datasets": [{}], "dataset_kind": "npz", "dataset_path": "x.npz"}, "list them all"),
        ({"dataset_pth": "x"}, "unknown key 'dataset_pth'; did you mean 'dataset_path'?"),
    ],
)
def test_a_contradictory_configuration_is_refused_in_one_line(values, message):
    with pytest.raises(ConfigError) as caught:
        parse(**values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_configured_bounds_must_not_contradict_the_file(tmp_path):
    path = save_npz(tmp_path / "a.npz", episodes(), action_low=np.array(LOW), action_high=np.array(HIGH))
    values = {"dataset_kind": "npz", "dataset_path": str(path)}
    assert load_dataset(parse(**values), spaces=None).spaces == SPACES
    wrong = parse(**values, action_low=[-9.0], action_high=[9.0])
    with pytest.raises(DatasetError, match="correct action_low"):
        load_dataset(wrong, spaces=None)


def test_d4rl_scores():
    assert normalized_score("Hopper-v5", 3234.3) == pytest.approx(100.0)
    assert normalized_score("HalfCheetah-v2", -280.178953) == pytest.approx(0.0)
    assert normalized_score("AdroitHandDoor-v1", 2880.5693087298737) == pytest.approx(100.0)
    assert normalized_score("PointMaze_UMazeDense-v3", 68.537689) == pytest.approx(0.0)
    assert normalized_score("AntMaze_Large_Diverse_GR-v4", 0.5) == pytest.approx(50.0)
    assert normalized_score("FrankaKitchen-v1", 1.0) == pytest.approx(25.0)
    assert normalized_score("Pendulum-v1", -100.0) is None
    assert normalized_score("Ant", -100.0) is None  # a user's class
