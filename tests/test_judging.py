"""`ope`, `select` and held-out episodes: on real runs, from the command line, and one-line errors."""

from __future__ import annotations

import csv
import inspect
import json
import math
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from typer.testing import CliRunner, Result

import rl_training
from rl_training import BC, IQL, Study, TransitionDataset
from rl_training.cli import main
from rl_training.console import ope as judging
from rl_training.data.episodes import Episodes, Resample, hold_out, resamples
from rl_training.data.placement import MemoryBudget
from rl_training.errors import CheckpointError, ConfigError, DatasetError, RLTrainingError
from rl_training.experience.fqe_data import EpisodeSampler, PolicyActions, sample_together
from rl_training.experiment import files
from rl_training.experiment.compat import with_defaults_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manifest import FileEntry
from rl_training.experiment.registry import resolve
from rl_training.experiment.runs import amend_record
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.models.mlp import NetworkConfig
from rl_training.off_policy_evaluation import choosing, fitting, selecting
from rl_training.off_policy_evaluation.evaluation import (
    CAVEAT,
    _distances,
    _far_from,
    interval,
    ranks,
    students_quantile,
)
from rl_training.off_policy_evaluation.policies import candidates
from rl_training.runtime import validation
from rl_training.runtime.workflows import resume_training
from rl_training.seeding import resampling
from tests.judging_worlds import Chain, Linear
from tests.runs import fingerprint
from tests.test_acceleration import needs_gpu

SMALL: dict[str, Any] = {
    "updates": 30,
    "bootstraps": 3,
    "batch_size": 16,
    "network": NetworkConfig(hidden_sizes=(8,)),
    "device": "cpu",
}
TRAINED: dict[str, Any] = {"seed": 0, "device": "cpu", "hidden_sizes": [8], "batch_size": 16, "log_interval": 10}
SOON = {"learning_starts": 4, "train_frequency": 4, "gradient_updates_per_step": 1}
CPU = torch.device("cpu")


def command(*words: object) -> Result:
    return CliRunner().invoke(main, ["--quiet", *(str(word) for word in words)])


def refused(result: Result, code: int = 2) -> str:
    """The one-line message of an error."""
    assert result.exit_code == code, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def write(data: TransitionDataset, path: Path) -> Path:
    from rl_training.data.formats import write_columns

    return write_columns(path, data.columns())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of logged data, two policies trained on it without an environment, and one of another kind."""
    folder = tmp_path_factory.mktemp("judging")
    write(Linear().data(20), folder / "logs.npz")
    for seed, algo in ((0, BC), (1, IQL)):
        model = algo(None, **TRAINED | {"seed": seed, "output_dir": str(folder / "runs")})
        model.learn(40, dataset=str(folder / "logs.npz"), progress_bar=False)
    model = rl_training.DQN("CartPole-v1", **TRAINED | SOON, output_dir=str(folder / "dqn"), eval_episodes=0)
    model.learn(20, progress_bar=False)
    return folder


def runs(home: Path) -> list[Path]:
    return sorted((home / "runs").iterdir())


def test_a_result_has_the_ranking_and_its_metadata(home: Path) -> None:
    found = rl_training.ope(runs(home), home / "logs.npz", **SMALL)
    assert isinstance(found, rl_training.OPEResult)
    assert [one.rank for one in found.policies] == [1, 2]
    assert {one.name for one in found.policies} == {str(run) for run in runs(home)}
    assert found.best is found.policies[0]
    assert (found.rows, found.episodes, found.bootstraps, found.updates) == (200, 20, 3, 30)
    for one in found.policies:
        assert one.checkpoint.parent.parent.samefile(one.name)
        assert one.value == pytest.approx(np.mean(one.values))
        assert one.low is not None
        assert one.low < one.value < one.high
        assert 0.0 < one.distance < 1.0
        assert one.clipped is not None
        assert 0.0 <= one.clipped <= 1.0
        assert one.agreement in (0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0)
    assert found.policies[0].first + found.policies[1].first == pytest.approx(1.0)
    assert found.data_distance > 0
    assert "FQE has converged by about" in " ".join(found.notes)
    assert json.loads(json.dumps(found.to_dict()))["caveat"] == CAVEAT


def test_equal_rewards_without_terminations_give_every_policy_one_value(home: Path) -> None:
    data = TransitionDataset.load(home / "logs.npz").with_rewards(scale=0.0, shift=-1.0)
    found = rl_training.ope(runs(home), data, **SMALL)
    assert [one.value for one in found.policies] == pytest.approx([-100.0, -100.0])
    assert [note for note in found.notes if "same value" in note or "clipped" in note] == [
        "every policy has the same value: all rewards are equal, and no episode terminates"
    ]


def test_results_are_determined_by_the_seed(home: Path) -> None:
    first, again, other = (rl_training.ope(runs(home), home / "logs.npz", **SMALL, seed=s) for s in (0, 0, 1))
    assert first.to_dict() == again.to_dict()
    assert first.best.values != other.best.values


def test_fewer_at_a_time_changes_nothing_but_rounding(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line reports it, unless actions are computed for each minibatch."""
    whole = rl_training.ope(runs(home), home / "logs.npz", **SMALL)
    room = fitting.Room(policies=1, tables=False)
    monkeypatch.setattr(fitting, "_room_for", lambda *arguments: room)
    parts = rl_training.ope(runs(home), home / "logs.npz", **SMALL)
    for one, other in zip(whole.policies, parts.policies):
        assert one.name == other.name
        assert one.values == pytest.approx(other.values, rel=1e-4, abs=1e-5)


@needs_gpu
@pytest.mark.parametrize("stochastic", [False, True])
def test_captured_updates_give_bit_identical_values(home: Path, stochastic: bool) -> None:
    options = SMALL | {"device": "cuda", "updates": 100, "stochastic": stochastic}
    eager, captured = (
        rl_training.ope(runs(home), home / "logs.npz", **options, acceleration=mode) for mode in ("eager", "graph")
    )
    assert [one.values for one in eager.policies] == [one.values for one in captured.policies]


@pytest.mark.slow
def test_compiled_updates_give_the_same_values(home: Path) -> None:
    eager, compiled = (
        rl_training.ope(runs(home), home / "logs.npz", **SMALL, acceleration=mode) for mode in ("eager", "compile")
    )
    for one, other in zip(eager.policies, compiled.policies):
        assert one.values == pytest.approx(other.values, rel=1e-3, abs=1e-4)


def test_memory_bounds_the_policies_at_a_time(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fitting, "available_memory", lambda: 40_000)
    rl_training.ope(runs(home), home / "logs.npz", **SMALL)
    assert re.search(r"memory for 1 of 2 policies at a time \(.* each\): the others follow", caplog.text)


def test_from_the_command_line(home: Path) -> None:
    options = ["--dataset", home / "logs.npz", "--updates", 10, "--bootstraps", 2, "--device", "cpu"]
    table = command("ope", *runs(home), *options)
    assert table.exit_code == 0, table.output
    lines = table.stdout.splitlines()
    assert lines[0].split("  ")[0] == "rank"
    assert {line.split()[-1] for line in lines[1:3]} == {str(run) for run in runs(home)}
    assert lines[-1] == CAVEAT
    plain = command("ope", *runs(home), *options, "--json")
    assert [one["rank"] for one in json.loads(plain.stdout)["policies"]] == [1, 2]
    shorter = command("ope", *runs(home), *options, "--json", "--set", "gamma=0.5", "--seed", 3)
    assert json.loads(shorter.stdout)["gamma"] == 0.5


def test_a_single_checkpoint_is_accepted_and_one_bootstrap_has_no_interval(home: Path) -> None:
    checkpoint = sorted((runs(home)[0] / "checkpoints").iterdir())[-1]
    found = rl_training.ope(checkpoint, home / "logs.npz", **SMALL | {"bootstraps": 1})
    only = found.best
    assert (only.low, only.high, only.agreement, only.first, only.tied) == (None, None, None, None, False)
    assert only.checkpoint == checkpoint


def test_held_out_episodes_are_those_of_training(home: Path) -> None:
    data = TransitionDataset.load(home / "logs.npz")
    held = hold_out(data, 0.25).held_out
    found = rl_training.ope(runs(home), home / "logs.npz", **SMALL, validation_fraction=0.25)
    same = rl_training.ope(runs(home), held, **SMALL)
    assert (found.held_out, found.episodes) == (True, 5)
    assert found.best.values == same.best.values


def test_a_policy_is_played_with_the_permission_to_import(home: Path) -> None:
    for given in (False, True):
        assert candidates(runs(home)[0], allow_import=given)[0].config.allow_import is given


def test_models_and_mappings_are_refused(home: Path) -> None:
    model, data = rl_training.load(runs(home)[0]), home / "logs.npz"
    for given in (model, [model]):
        with pytest.raises(ConfigError, match=r"runs: give run folders .* \(run_dir of a model\), got BC$"):
            rl_training.ope(given, data, **SMALL)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"dataset: give a TransitionDataset, .* or a Minari id, got dict$"):
        rl_training.ope(runs(home), {}, **SMALL)  # type: ignore[arg-type]


def test_rows_of_several_steps_are_refused(home: Path) -> None:
    """Their rewards are sums, so the returns of episodes would count rewards several times."""
    rows = TransitionDataset.load(home / "logs.npz").with_n_step(3, 0.99)
    with pytest.raises(
        DatasetError, match="rows of 3 steps cannot be evaluated on; use the data before with_n_step"
    ):
        rl_training.ope(runs(home), rows, **SMALL)


def test_a_policy_that_acts_unlike_the_data_is_named(home: Path) -> None:
    """The logged actions are nearly zero; the policies learned from full-size actions."""
    data = Linear().data(20)
    data.layout.unpack(torch.from_numpy(data.rows)).actions.mul_(0.01)
    found = rl_training.ope(runs(home), data, **SMALL | {"bootstraps": 1})
    assert found.data_distance < 0.02
    told = [note for note in found.notes if "acts unlike the data" in note]
    far = {one.name for one in found.policies if one.distance > 0.1}
    assert {note.split()[0] for note in told} == far
    bold = replace(found.best, name="bold", distance=0.5)
    assert [note.split()[0] for note in _far_from([bold], found.data_distance)] == ["bold"]
    assert _far_from([bold], 0.4) == []


def test_a_constant_observation_does_not_hide_similar_states() -> None:
    """The nearest state is determined by the other observations, regardless of the constant one."""
    rng, rows = np.random.default_rng(0), 1000
    states, zeros = rng.uniform(-1, 1, (rows, 2)), np.zeros(rows)
    apart = []
    for extra in (np.empty((rows, 0)), np.full((rows, 1), 7.0)):
        data = TransitionDataset.from_arrays(
            np.concatenate([states, extra], axis=1),
            np.tanh(states),
            zeros,
            zeros,
            np.arange(1, rows + 1) % 50 == 0,
            action_low=-1,
            action_high=1,
        )
        apart.append(_distances(data, [], 0)[1])
    assert apart[0] < 0.02
    assert apart[1] == pytest.approx(apart[0])


# What is refused.


def test_what_does_not_fit_is_one_line(home: Path, tmp_path: Path) -> None:
    logs, run = home / "logs.npz", runs(home)[0]
    dqn = next((home / "dqn").iterdir())
    assert "its policy does not fit" in refused(command("ope", dqn, "--dataset", logs))
    assert "(the data have observations of 1 number and" in refused(command("ope", dqn, "--dataset", logs))
    assert "no such checkpoint" in refused(command("ope", home / "nothing", "--dataset", logs), 3)
    assert "does not exist" in refused(command("ope", run, "--dataset", tmp_path / "no.npz"), 3)
    assert "is given twice" in refused(command("ope", run, run, "--dataset", logs))
    assert "unknown setting 'gama'; did you mean 'gamma'?" in refused(
        command("ope", run, "--dataset", logs, "--set", "gama=0.5")
    )
    assert "gamma must be < 1" in refused(command("ope", run, "--dataset", logs, "--set", "gamma=1"))
    assert "--set updates: use --updates" in refused(command("ope", run, "--dataset", logs, "--set", "updates=5"))
    line = refused(command("ope", run, "--dataset", logs, "--stochastic"))
    assert f"stochastic: has no effect on deterministic policies such as {run}; leave it out" in line
    for key in ("episodes", "anyway", "watch", "runs"):  # options of `select`, and arguments of the function
        line = refused(command("ope", run, "--dataset", logs, "--set", f"{key}=5"))
        assert f"unknown setting '{key}'; known: learning_rate, gamma, tau, weight_decay" in line
    for method in ("wis", "dr"):
        line = refused(command("ope", run, "--dataset", logs, "--method", method))
        assert "importance sampling is for discrete actions" in line


@pytest.mark.parametrize("kind", ["shuffled", "one episode"])
def test_data_without_starts_of_episodes_are_refused(home: Path, kind: str) -> None:
    data = Linear().data(20)
    rows = data.rows[np.random.default_rng(0).permutation(len(data))] if kind == "shuffled" else data.rows[:10]
    ends = np.zeros(0, np.int64) if kind == "shuffled" else np.array([9])
    broken = TransitionDataset(rows, data.spaces, ends, "log")
    with pytest.raises(
        DatasetError, match=r"^log: off-policy evaluation needs several episodes, and .*'timeouts'$"
    ):
        rl_training.ope(runs(home), broken, **SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bootstraps": 0}, "bootstraps must be >= 1, got 0"),
        ({"updates": 3}, "updates must be >= 10, got 3"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"method": "mis"}, "method must be one of fqe, wis, dr, got 'mis'; did you mean 'wis'?"),
        (
            {"method": "wis", "validation_fraction": 0.2},
            "validation_fraction is for method fqe; wis uses all episodes",
        ),
        ({"validation_fraction": 1.0}, "validation_fraction must be in (0, 1), got 1.0"),
    ],
)
def test_arguments_out_of_range(home: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        rl_training.ope(runs(home), home / "logs.npz", **SMALL | arguments)


def test_a_damaged_checkpoint_and_no_policy(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one run folder"):
        rl_training.ope([], home / "logs.npz")
    (tmp_path / "step_000000001").mkdir()
    with pytest.raises(CheckpointError):
        rl_training.ope(tmp_path / "step_000000001", home / "logs.npz")


# Discrete logs with probabilities.


def discrete_logs(path: Path, probs: Any = None, *, leave_out: bool = False) -> Path:
    """CartPole's spaces, filled with steps of a chain."""
    columns = Chain(states=4).data(30)
    columns["action_probs"] = columns["action_probs"] if probs is None else probs(columns["action_probs"])
    if leave_out:
        del columns["action_probs"]
    np.savez(path, **columns, num_actions=2)
    return path


@pytest.mark.parametrize("method", ["wis", "dr", "fqe"])
def test_every_method_on_discrete_logs(home: Path, tmp_path: Path, method: str) -> None:
    dqn, logs = next((home / "dqn").iterdir()), discrete_logs(tmp_path / "logs.npz")
    words = [
        "ope",
        dqn,
        "--dataset",
        logs,
        "--method",
        method,
        "--updates",
        20,
        "--bootstraps",
        2,
        "--device",
        "cpu",
    ]
    found = json.loads(command(*words, "--json").stdout)
    assert found["method"] == method
    assert (found["policies"][0]["effective_episodes"] is None) == (method == "fqe")
    assert (found["updates"] is None) == (method == "wis")
    again = command(*words)
    assert again.exit_code == 0
    unused = "warning: updates: 20 has no effect with method wis, which fits nothing; leave it out"
    assert (unused in again.stderr.splitlines()) == (method == "wis")


@pytest.mark.parametrize(("method", "unused"), [("fqe", "action_probs have"), ("wis", "batch_size: 7 has")])
def test_a_warning_of_arguments_that_a_method_does_not_use(
    home: Path, tmp_path: Path, method: Any, unused: str
) -> None:
    dqn, logs = next((home / "dqn").iterdir()), TransitionDataset.load(discrete_logs(tmp_path / "logs.npz"))
    probs, warned = np.full(len(logs), 0.5), list[str]()
    settings = {"action_probs": probs, "batch_size": 7, "updates": 10, "bootstraps": 2, "device": "cpu"}
    rl_training.ope(dqn, logs, method=method, warn=warned.append, **settings)
    assert [text for text in warned if text.startswith(unused)]
    assert len(warned) == (1 if method == "fqe" else 2)


def test_a_policy_without_a_value_has_no_rank(home: Path, tmp_path: Path) -> None:
    dqn, logs = next((home / "dqn").iterdir()), tmp_path / "logs.npz"
    columns = Chain(states=4).data(30)
    columns["actions"] = 1 - rl_training.load(dqn).predict(columns["observations"])  # never the policy's own
    np.savez(logs, **columns, num_actions=2)
    words = ["ope", dqn, "--dataset", logs, "--method", "wis", "--bootstraps", 2, "--device", "cpu"]
    found = json.loads(command(*words, "--json").stdout)
    [policy] = found["policies"]
    assert [policy[name] for name in ("rank", "value", "agreement", "first")] == [None] * 4
    assert any("no value if no logged episode" in note for note in found["notes"])
    assert command(*words).stdout.splitlines()[1].startswith("–")


def test_resamples_without_an_episode_of_the_policy_are_left_out_of_its_value(home: Path, tmp_path: Path) -> None:
    dqn, logs = next((home / "dqn").iterdir()), tmp_path / "logs.npz"
    columns = Chain(states=4).data(30)
    own = rl_training.load(dqn).predict(columns["observations"])
    first = np.flatnonzero(columns["terminals"] | columns["timeouts"])[0] + 1
    columns["actions"] = np.where(np.arange(len(own)) < first, own, 1 - own)  # one episode is the policy's own
    np.savez(logs, **columns, num_actions=2)
    found = rl_training.ope(dqn, logs, method="wis", bootstraps=40, device="cpu")
    assert np.isnan(found.best.values).any()
    assert found.best.value == pytest.approx(np.nanmean(found.best.values))
    assert found.best.rank == 1
    empty = int(np.isnan(found.best.values).sum())
    assert found.best.agreement == found.best.first == 1 - empty / 40
    assert any(note.startswith(f"{empty} of 40 resamples have no episode") for note in found.notes)


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.5, math.nan])
def test_invalid_probabilities_are_refused(home: Path, tmp_path: Path, bad: float) -> None:
    def spoil(probs: Any) -> Any:
        probs[7] = bad
        return probs

    logs = discrete_logs(tmp_path / "logs.npz", spoil)
    line = refused(command("ope", next((home / "dqn").iterdir()), "--dataset", logs, "--method", "wis"), 3)
    assert "column 'action_probs', row 7" in line
    assert "is not the probability" in line


def test_data_without_probabilities_are_refused(home: Path, tmp_path: Path) -> None:
    dqn, logs = next((home / "dqn").iterdir()), discrete_logs(tmp_path / "logs.npz", leave_out=True)
    line = refused(command("ope", dqn, "--dataset", logs, "--method", "dr"), 3)
    assert "column 'action_probs' is missing" in line
    data = TransitionDataset.load(logs)
    with pytest.raises(ConfigError, match=r"^action_probs: .* are in memory"):
        rl_training.ope(dqn, data, method="wis")
    with pytest.raises(DatasetError, match=rf"action_probs must be {len(data)} numbers"):
        rl_training.ope(dqn, data, method="wis", action_probs=np.full(3, 0.5))
    given = rl_training.ope(dqn, data, method="wis", action_probs=np.full(len(data), 0.5), bootstraps=2)
    assert given.best.effective_episodes is not None


def test_probabilities_stay_with_their_rows(tmp_path: Path) -> None:
    """The last rows of truncated episodes are not transitions; they are dropped with their probabilities."""
    columns = Chain(states=4).data(30)
    del columns["next_observations"]
    columns["action_probs"] = np.linspace(0.1, 0.9, len(columns["rewards"]))
    np.savez(tmp_path / "logs.npz", **columns, num_actions=2)
    data = TransitionDataset.load(tmp_path / "logs.npz")
    kept = ~columns["timeouts"]
    kept[-1] = bool(columns["terminals"][-1])
    assert 0 < len(data) == kept.sum() < len(kept)
    assert data.action_probs == pytest.approx(columns["action_probs"][kept])


def test_probabilities_survive_a_conversion(tmp_path: Path) -> None:
    from rl_training.data.formats import convert_dataset

    pytest.importorskip("h5py")
    logs = discrete_logs(tmp_path / "logs.npz")
    copied = convert_dataset(logs, "hdf5", tmp_path / "logs.hdf5")
    before, after = TransitionDataset.load(logs).action_probs, TransitionDataset.load(copied).action_probs
    assert before is not None
    assert np.array_equal(before, after)


# Numbers.


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30])
def test_student_s_quantile(freedom: int) -> None:
    assert students_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.01)


def test_an_interval_is_student_s_around_the_mean() -> None:
    values = np.array([1.0, 2.0, 4.0])
    low, high = interval(values)
    half = stats.t.ppf(0.975, 2) * values.std(ddof=1)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), rel=1e-6)
    assert interval(values[:1]) == (None, None)
    assert interval(np.array([1.0, math.nan])) == (None, None)


def test_equal_values_share_a_rank_and_none_comes_last() -> None:
    assert ranks(np.array([1.0, 3.0, math.nan, 3.0])).tolist() == [3, 1, 4, 1]


def test_a_resample_draws_rows_of_its_episodes_by_their_lengths() -> None:
    episodes = Episodes(np.array([0, 3, 4]), np.array([3, 1, 6]))
    part = Resample.of(episodes, np.array([2, 0, 2]), CPU)
    assert part.size == 15
    rows = part.rows_at(torch.arange(15)).tolist()
    assert rows == [4, 5, 6, 7, 8, 9, 0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert part.counts.tolist() == [1.0, 0.0, 2.0]
    plain = resamples(episodes, 1, resampling(0), CPU)[0]
    assert plain.rows_at(torch.arange(10)).tolist() == list(range(10))


@pytest.mark.parametrize("tabulate", [True, False])
def test_minibatches_hold_the_policy_s_actions(tabulate: bool) -> None:
    """Together and alone, bit for bit; each row has the policy's action for its next state."""
    data = Linear().data(10)
    gains, episodes = (0.5, -0.25), Episodes.of(data, "a test")
    rows = data.rows_on(CPU)
    panel = PolicyActions(data, rows, [Linear.policy(gain) for gain in gains], tabulate=tabulate)
    parts = resamples(episodes, 3, resampling(0), CPU)

    def sources() -> list[EpisodeSampler]:
        return [
            EpisodeSampler(panel, place, part, torch.Generator().manual_seed(b))
            for place in range(len(gains))
            for b, part in enumerate(parts)
        ]

    together = sample_together(sources(), parts, 7)
    alone = torch.stack([source.sample_rows(7) for source in sources()])
    assert torch.equal(together, alone)
    known = {tuple(row) for row in data.layout.unpack(rows).obs.tolist()}
    for i, own in enumerate(together):
        batch = panel.layout.unpack(own)
        assert torch.equal(batch.next_actions, -gains[i // 3] * batch.next_obs)
        assert torch.allclose(batch.next_obs, 0.9 * batch.obs + 0.5 * batch.actions, atol=1e-6)
        assert {tuple(row) for row in batch.obs.tolist()} <= known
    first, second = panel.layout.unpack(together[0]), panel.layout.unpack(together[3])
    assert torch.equal(first.obs, second.obs)  # the same minibatch for every policy


def test_episodes_are_held_out_whole_and_always_the_same() -> None:
    data = Linear().data(20, length=7)
    first, again = hold_out(data, 0.3), hold_out(data, 0.3)
    assert np.array_equal(first.held_out.rows, again.held_out.rows)
    assert (len(first.held_out.episode_ends), len(first.training.episode_ends)) == (6, 14)
    held, kept = ({row.tobytes() for row in part.rows} for part in first[::-1])
    assert not held & kept
    assert held | kept == {row.tobytes() for row in data.rows}
    for part in first:
        assert part.episode_ends.tolist() == list(range(6, len(part), 7))
    assert len(hold_out(data, 0.001).held_out.episode_ends) == 1
    assert len(hold_out(data, 0.999).training.episode_ends) == 1


def test_the_same_episodes_are_held_out_if_some_have_no_next_action() -> None:
    """A cut episode of one row has none, so that ReBRAC leaves it out."""
    lengths = [3, 1, 4, 1, 3, 3, 1, 3, 2, 3]
    ends = np.zeros(sum(lengths), bool)
    ends[np.cumsum(lengths) - 1] = True
    numbers = np.repeat(np.arange(10.0), lengths)[:, None]
    data = TransitionDataset.from_arrays(
        numbers, 0 * numbers, numbers[:, 0], ~ends & False, ends, numbers, action_low=-1.0, action_high=1.0
    )
    shorter = data.with_next_actions()
    assert shorter.lost == (1, 3, 6)
    of = [
        {int(number) for part in [split.held_out] for number in part.rows[:, 0]}
        for split in (hold_out(data, 0.4), hold_out(shorter, 0.4))
    ]
    assert of[1] == of[0] - {1, 3, 6}
    assert hold_out(shorter, 0.4).training.lost == ()
    twice, joined = shorter + shorter, data + data
    assert twice.lost == joined.with_next_actions().lost == (1, 3, 6, 11, 13, 16)
    held = [hold_out(one, 0.4).held_out.rows for one in (twice, joined.with_next_actions())]
    assert np.array_equal(*held)


# Validation in training.


def train(home: Path, folder: Path, algo: Any = BC, steps: int = 60, **settings: Any) -> Any:
    model = algo(None, **TRAINED | {"output_dir": str(folder), "eval_interval": 20} | settings)
    return model.learn(steps, dataset=str(home / "logs.npz"), progress_bar=False)


def logged(run: Path, name: str) -> list[float]:
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


META = torch.device("meta")  # in the place of a GPU: what is on it cannot meet what is on the CPU


def test_held_out_rows_have_what_training_leaves_of_device_memory(home: Path) -> None:
    rows = torch.zeros(10, 5)
    budgets = MemoryBudget(META, device_memory=500)
    assert budgets.after(rows) == budgets
    assert budgets.after(rows.to(META)).device_memory == 300
    assert budgets.after(torch.zeros(1000, 5, device=META)).device_memory == 0
    assert MemoryBudget(META).after(rows.to(META)).device_memory is None


def test_held_out_rows_respect_device_memory(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room that each part of the data is offered, asked of a device that is said to have some."""
    asked: list[tuple[int, int]] = []

    def settled(data: TransitionDataset, budgets: MemoryBudget) -> Tensor:
        asked.append((len(data), -1 if budgets.device_memory is None else budgets.device_memory))
        return torch.from_numpy(data.rows)

    monkeypatch.setattr("rl_training.runtime.offline._place_rows", settled)
    train(home, tmp_path, validation_fraction=0.25, device_memory=12345)
    data = hold_out(TransitionDataset.load(home / "logs.npz"), 0.25)
    assert asked == [(len(data.training), 12345), (len(data.held_out), 12345)]


def test_held_out_rows_in_host_memory_are_compared_on_the_learner_s_device(home: Path) -> None:
    data = hold_out(TransitionDataset.load(home / "logs.npz"), 0.5).held_out
    made = validation.Validation(data, torch.from_numpy(data.rows), SimpleNamespace(device=META))  # type: ignore[arg-type]
    assert (made._obs.device, made._actions.device) == (META, META)


@needs_gpu
def test_held_out_rows_that_a_gpu_has_no_room_for(home: Path, tmp_path: Path) -> None:
    settings = {"device": "cuda", "validation_fraction": 0.25}
    near, far = (train(home, tmp_path, IQL, device_memory=memory, **settings).metrics for memory in (1, 10**9))
    assert near["validation_distance"] == pytest.approx(far["validation_distance"], rel=1e-3)


def test_resamples_are_on_the_device_of_the_rows(home: Path) -> None:
    data = TransitionDataset.load(home / "logs.npz")
    part = resamples(Episodes.of(data, "a test"), 2, np.random.default_rng(0), torch.device("cpu"))[0]
    moved = part.to(META)
    assert {one.device for one in (moved.counts, moved.edges, moved.shifts)} == {META}
    assert moved.edges.dtype == part.edges.dtype


def test_held_out_episodes_are_not_learned_from_and_reported(home: Path, tmp_path: Path) -> None:
    result = train(home, tmp_path, validation_fraction=0.25)
    assert result.metrics["dataset_size"] == 150
    distances = logged(result.run_dir, "validation/action_distance")
    assert len(distances) == 3
    assert distances[-1] == pytest.approx(result.metrics["validation_distance"])
    policy = rl_training.load(result.run_dir)
    held = hold_out(TransitionDataset.load(home / "logs.npz"), 0.25).held_out
    batch = held.layout.unpack(torch.from_numpy(held.rows))
    apart = np.abs(policy.predict(batch.obs.numpy()) - batch.actions.numpy()) / 2.0
    assert float(apart.mean()) == pytest.approx(distances[-1], rel=1e-5)


def test_each_distance_is_in_the_row_of_its_step(home: Path, tmp_path: Path) -> None:
    """Also if fewer rows of other metrics are written."""
    result = train(home, tmp_path, IQL, 60, validation_fraction=0.25, eval_interval=15, log_interval=40)
    with (result.run_dir / "metrics.csv").open(newline="") as file:
        rows = {int(row["step"]): row for row in csv.DictReader(file)}
    measured = [step for step, row in rows.items() if row["validation/action_distance"]]
    assert measured == [15, 30, 45, 60]
    assert [step for step, row in rows.items() if row["train/n_updates"]] == [40]


BY_FQE = {"metric": "fqe", "patience": 2, "min_improvement": 0.0, "target_return": None, "fqe_updates": 2000}
GONE = "early_stopping: metric: fqe does not exist; use return, or rank the checkpoints afterwards with"


def as_0_2_wrote(checkpoint: Path) -> None:
    """Give a checkpoint the records of a run of version 0.2 that FQE would have stopped."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name in ("config", "trainer"):
        record = json.loads((checkpoint / f"{name}.json").read_text())
        if name == "config":
            record["algo_kwargs"]["early_stopping"] = BY_FQE
        else:
            record["callbacks"]["EarlyStoppingCallback"] = {"best": 1.0, "waited": 1}
        data = files.encode_json(record)
        (checkpoint / f"{name}.json").write_bytes(data)
        manifest["files"][f"{name}.json"] = asdict(FileEntry.of(data))
    del manifest["sha256"]
    manifest["sha256"] = FileEntry.of(files.encode_json(manifest)).sha256
    (checkpoint / "manifest.json").write_bytes(files.encode_json(manifest))


def test_a_run_that_fqe_would_have_stopped_loads_and_resumes_without_early_stopping(
    home: Path, tmp_path: Path
) -> None:
    result = train(home, tmp_path, validation_fraction=0.25)
    as_0_2_wrote(result.checkpoint_path)
    with pytest.warns(UserWarning, match="fqe of this run was removed; it resumes without early stop"):
        assert rl_training.load(result.run_dir).predict(np.zeros(1)).shape == (1,)
    with pytest.warns(UserWarning, match="it resumes without early stopping"):
        resumed = resume_training(result.run_dir, changes={"total_timesteps": 80}, quiet=True)
    assert resumed.metrics["global_step"] == 80
    record = json.loads((resumed.checkpoint_path / "config.json").read_text())
    assert record["algo_kwargs"]["early_stopping"] is None


def test_settings_that_0_2_spelt_out_beside_the_return_are_dropped() -> None:
    stopping = BY_FQE | {"metric": "return"}
    config = TrainConfig(
        algo="bc", env_id="X", total_timesteps=5, algo_kwargs={"eval_interval": 1, "early_stopping": stopping}
    )
    new = resolve(config).to_dict()["early_stopping"]
    assert new == {"patience": 2, "min_improvement": 0.0, "target_return": None}
    assert with_defaults_of(2, config).algo_kwargs["early_stopping"] == new


def test_a_run_with_held_out_episodes_resumes_exactly(home: Path, tmp_path: Path) -> None:
    """An interrupted run equals an uninterrupted one: networks, random numbers, callbacks and log."""
    settings: dict[str, Any] = {
        "validation_fraction": 0.25,
        "checkpoint_interval": 30,
        "learning_rate_schedule": "constant",
    }
    whole = train(home, tmp_path / "whole", IQL, 60, **settings)
    half = train(home, tmp_path / "half", IQL, 30, **settings)
    resumed = resume_training(half.run_dir, changes={"total_timesteps": 60}, quiet=True)
    ours, theirs = (fingerprint(result.checkpoint_path) for result in (resumed, whole))
    for known in (ours, theirs):
        known.pop("config/output_dir")
    assert ours == theirs
    distances = [logged(result.run_dir, "validation/action_distance") for result in (resumed, whole)]
    assert distances[0] == distances[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"early_stopping": BY_FQE}, f"{GONE} `rl-training ope` or `rl-training select`"),
        ({"early_stopping": {"patience": 2, "metric": "loss"}}, "metric: loss does not exist; use return"),
        ({"validation_fraction": 1.0}, "validation_fraction must be < 1"),
        ({"validation_fraction": 0.2, "top_fraction": 0.5}, "cannot be combined with top_fraction"),
    ],
)
def test_conflicting_settings_are_refused(
    home: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(home, tmp_path, **settings)
    assert not list(tmp_path.iterdir())


# Studies.


@pytest.fixture(scope="module")
def study(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two seeds of BC, done, on the data of the file, without an environment."""
    folder = tmp_path_factory.mktemp("study")
    settings = {
        **{key: value for key, value in TRAINED.items() if key != "seed"},
        "env_id": None,
        "total_timesteps": 20,
        "dataset_kind": "npz",
        "dataset_path": str(home / "logs.npz"),
        "validation_fraction": 0.25,
    }
    made = Study(
        {"name": "logs", "base": "bc/pendulum", "set": settings, "seeds": [0, 1], "threads": 1}, output_dir=folder
    )
    made.run()
    return made


def test_a_study_selects_a_trial(study: Study, home: Path) -> None:
    found = study.select(**SMALL, anyway=True)
    assert found.by == "fqe"
    assert found.judgement is not None
    assert found.judgement.held_out
    assert found.judgement.episodes == 5
    assert found.trial == found.ranking[0][0] == found.candidates[0].name
    assert {one.name for one in found.judgement.policies} == {name for name, _ in found.ranking}
    assert found.checkpoint is not None
    assert found.checkpoint.is_relative_to(study.folder / "runs" / found.trial)
    everything = study.select(dataset=home / "logs.npz", validation_fraction=0.0, **SMALL, anyway=True)
    assert everything.judgement is not None
    assert everything.judgement.episodes == 20


def test_a_study_of_0_2_that_fqe_would_have_stopped_selects_a_trial(study: Study, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(study.folder, tmp_path / study.folder.name))
    plan = json.loads((copied / "plan.json").read_bytes())
    stopping = {"patience": 2, "target_return": None, "metric": "fqe", "fqe_updates": 9}
    for configuration in plan["configurations"]:
        configuration["settings"]["algo_kwargs"] |= {"early_stopping": stopping, "eval_interval": 10}
    (copied / "plan.json").write_text(json.dumps(plan))
    with pytest.warns(UserWarning, match="metric: fqe of this run was removed"):
        assert Study(copied).select(**SMALL, anyway=True).trial is not None


def test_select_from_the_command_line(study: Study) -> None:
    words = ["select", study.folder, "--by", "fqe", "--updates", 10, "--bootstraps", 2, "--device", "cpu"]
    table = command(*words, "--anyway")
    assert table.exit_code == 0, table.output
    taken = table.stdout.splitlines()[-1]
    plain = json.loads(command(*words, "--anyway", "--json").stdout)
    assert taken == f"take {plain['trial']}: {plain['checkpoint']}"
    assert table.stdout.splitlines()[0].split("  ")[0] == "outside the data"
    chosen = plain["candidates"][0]
    assert chosen["name"] == plain["trial"]
    assert chosen["estimate"]["low"] < chosen["estimate"]["value"]
    assert "none of the finished trials" in refused(command("select", study.folder, "--by", "return"))
    assert "--dataset is for --by fqe" in refused(
        command("select", study.folder, "--by", "return", "--dataset", "x.npz")
    )
    for option in (["--updates", 20], ["--stochastic"], ["--seed", 0], ["--device", "cpu"], ["--set", "gamma=0.9"]):
        refusal = refused(command("select", study.folder, "--by", "return", *option))
        assert f"{option[0]} is for --by fqe" in refusal
    with pytest.raises(ConfigError, match=r"^select: updates is for by='fqe'; leave it out$"):
        study.select("return", updates=20)
    assert "--set episodes: use --episodes" in refused(command(*words, "--set", "episodes=5"))


def test_an_abstention_exits_with_5(study: Study) -> None:
    """After 10 updates FQE cannot separate two seeds of the same configuration."""
    words = ["select", study.folder, "--by", "fqe", "--updates", 10, "--bootstraps", 3, "--device", "cpu"]
    table = command(*words)
    assert table.exit_code == 5, table.output
    lines = table.stdout.splitlines()
    assert any(line.startswith("reason to abstain: ") for line in lines)
    assert lines[-1].startswith("no trial is selected; nearest to the data: ")
    assert lines[-1].endswith("; --anyway selects")  # these runs have no environment to play in
    assert not any(line.startswith("take ") for line in lines)
    plain = command(*words, "--json")
    assert plain.exit_code == 5
    found = json.loads(plain.stdout)
    assert (found["abstained"], found["trial"], found["checkpoint"]) == (True, None, None)
    assert found["safe"] in lines[-1]
    assert [one["outside"] for one in found["candidates"]] == sorted(one["outside"] for one in found["candidates"])
    assert "--anyway is for --by fqe" in refused(command("select", study.folder, "--by", "return", "--anyway"))
    assert "has no environment" in refused(command(*words, "--episodes", 5))
    assert "episodes must be > 2" in refused(command(*words, "--episodes", 2))


def test_select_by_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.studies import study_in

    made = study_in(tmp_path)
    made.run()
    found = made.select("return")
    returns = {one["trial"]: one["metrics"]["eval_return_mean"] for one in made.frame()}
    assert found.ranking[0] == (found.trial, max(returns.values()))
    assert {name for name, _ in found.ranking} == set(returns)
    assert command("select", made.folder, "--by", "return").exit_code == 0
    assert "did not learn from a data set" in refused(command("select", made.folder, "--by", "fqe"))
    played = command("select", made.folder, "--by", "fqe", "--episodes", len(returns) + 1, "--device", "cpu")
    assert played.exit_code == 0, played.output
    assert played.stdout.splitlines()[1].startswith("–  ")  # no data, so none of its actions is outside them
    assert "has no effect" not in played.stderr
    unused = ["--updates", 20, "--bootstraps", 3, "--anyway", "--set", "gamma=0.9"]
    warned = command("select", made.folder, "--by", "fqe", "--episodes", len(returns) + 1, "--seed", 3, *unused)
    named = [line.split()[1] for line in warned.stderr.splitlines() if "no effect if episodes are" in line]
    assert named == ["anyway:", "bootstraps:", "updates:", "gamma:"]
    first = min(returns)
    values = {True: [1.0, -7.0], False: [0.0]}
    monkeypatch.setattr(choosing, "_play", lambda one, number, sampled: values[one.name == first][number])
    doubtful = command("select", made.folder, "--by", "fqe", "--episodes", len(returns) + 1)
    warning = f"has a higher mean return than the selected {first} (-3, episodes: 2); play more episodes to compare"
    assert warning in doubtful.stderr
    with pytest.raises(ConfigError, match="by must be fqe or return"):
        made.select("luck")  # type: ignore[arg-type]


def test_the_configuration_is_chosen_before_the_seed(tmp_path: Path) -> None:
    """A single lucky seed of a bad configuration does not decide."""
    from tests.studies import homes, study_in

    made = study_in(tmp_path, grid={"gamma": [0.9, 0.99]}, seeds=[0, 1, 2])
    made.run()
    records = made.frame()
    bad, good = dict.fromkeys(record["hash"] for record in records)
    returns = {bad: [1.0, 2.0, 90.0], good: [40.0, 60.0, 50.0]}
    for home, record in zip(homes(made.folder), records):
        value = returns[record["hash"]][record["seed"]]
        amend_record(home, metrics=record["metrics"] | {"eval_return_mean": value})
    found = made.select("return")
    assert found.ranking[0] == (found.trial, 60.0)
    assert found.scores[found.trial] == made.best().score
    assert [value for _, value in found.ranking] == [60.0, 50.0, 40.0, 90.0, 2.0, 1.0]
    lines = command("select", made.folder, "--by", "return").stdout.splitlines()
    assert lines[-2].startswith("the best seed of the configuration")
    assert lines[-1].startswith(f"take {found.trial}:")
    amend_record(made.folder / "runs" / found.trial, status="failed")
    left = made.select("return")  # a configuration with an unfinished trial is not compared
    assert left.ranking[0][1] == 90.0
    assert len(left.left_out) == 3
    reasons = [text.partition(" is left out: ")[2] for text in left.notes]
    assert sorted(reasons) == ["it is not done", *["its configuration has 1 unfinished trial"] * 2]
    assert [text.partition(" seeds")[0] for text in left.warnings] == [
        "a configuration that is left out has a higher score so far, 45.00 over 2 of 3"
    ]
    assert f"warning: {left.warnings[0]}" in command("select", made.folder, "--by", "return").stderr


def test_trials_that_held_out_different_episodes_are_refused(home: Path) -> None:
    settings = {"algo": "bc", "env_id": None, "total_timesteps": 20}
    data = {"dataset_kind": "npz", "dataset_path": str(home / "logs.npz")}
    trials = [
        selecting.Candidate(
            str(fraction), run, settings | {"algo_kwargs": data | {"validation_fraction": fraction}}, {}
        )
        for fraction, run in zip((0.0, 0.25), runs(home))
    ]
    with pytest.raises(ConfigError, match=r"held out different fractions \(0, 0\.25\).*--validation-fraction"):
        selecting.by_fqe(trials, (), **SMALL)
    found = selecting.by_fqe(trials, (), validation_fraction=0.25, anyway=True, **SMALL)
    assert found.judgement is not None
    assert found.judgement.held_out


def test_select_warns_if_the_data_have_changed_since_training(tmp_path: Path) -> None:
    """Trials of ReBRAC, whose data have other columns and fewer rows, learned from the same data."""
    file, trials = write(Linear().data(20), tmp_path / "logs.npz"), []
    for algo in (BC, rl_training.ReBRAC):
        done = train(tmp_path, tmp_path, algo, 10, validation_fraction=0.25)
        settings = rl_training.load(done.run_dir).config.to_dict()
        trials.append(selecting.Candidate(algo.algo, done.run_dir, settings, {}))
    warned: list[str] = []
    selecting.by_fqe(trials, (), anyway=True, warn=warned.append, **SMALL)
    assert not warned
    file.unlink()
    write(Linear().data(21), file)
    selecting.by_fqe(trials, (), anyway=True, warn=warned.append, **SMALL)
    assert warned == [f"{file}: has changed since bc learned from it; name its data with --dataset FILE"]


def test_the_episodes_that_were_used_are_printed(home: Path) -> None:
    options = ["--dataset", home / "logs.npz", "--updates", 10, "--bootstraps", 1, "--device", "cpu"]
    assert "all 20 episodes" in command("ope", runs(home)[0], *options).stdout
    assert "5 held-out episodes" in command("ope", runs(home)[0], *options, "--validation-fraction", 0.25).stdout


def test_rewards_whose_values_overflow_are_one_line(home: Path, tmp_path: Path) -> None:
    data = Linear().data(20)
    data.layout.unpack(torch.from_numpy(data.rows)).rewards.fill_(1e38)
    logs = write(data, tmp_path / "huge.npz")
    words = ["ope", runs(home)[0], "--dataset", logs, "--updates", 10, "--device", "cpu"]
    line = refused(command(*words), 3)
    assert "rewards from 1e+38 to 1e+38 with discount 0.99 have values that float32 cannot hold" in line
    data.layout.unpack(torch.from_numpy(data.rows)).rewards.fill_(1e30)
    large = write(data, tmp_path / "large.npz")
    assert command(*words[:3], large, *words[4:]).exit_code == 0


def test_progress_into_a_pipe_is_plain_lines_with_an_estimate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(judging.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(judging.flags, "quiet", False)
    with judging._progress() as watch:
        now[0] = 150.0  # the estimate excludes the time for loading
        for seconds, share in ((0.0, 0.0), (1.0, 0.01), (2.0, 0.02), (50.0, 0.5), (100.0, 1.0)):
            now[0] = 150.0 + seconds
            watch(share)
    assert capsys.readouterr().err.splitlines() == [
        "FQE: 1.0% done, about 0:01:39 left",
        "FQE: 50.0% done, about 0:00:50 left",
    ]


def test_the_first_estimate_comes_after_a_few_updates(home: Path) -> None:
    seen: list[float] = []
    rl_training.ope(runs(home), home / "logs.npz", **SMALL | {"updates": 100, "bootstraps": 1}, watch=seen.append)
    assert seen[:2] == [0.0, 0.2]
    assert seen[-1] == 1.0


def test_an_unknown_task_is_refused(study: Study) -> None:
    with pytest.raises(RLTrainingError, match="name one task of this study: bc/pendulum"):
        study.select("return", task="walker")


def test_the_yaml_of_a_run_that_asks_for_it_is_refused_with_its_line(tmp_path: Path) -> None:
    config = {"algo": "bc", "env_id": None, "total_timesteps": 20}
    kwargs = {"eval_interval": 10, "early_stopping": {"metric": "fqe", "patience": 1}}
    (tmp_path / "run.yaml").write_text(dump_yaml(config | {"algo_kwargs": kwargs}))
    assert f"run.yaml:6: algo_kwargs.{GONE}" in refused(command("train", "--config", tmp_path / "run.yaml"))


def test_help_shows_the_defaults_of_the_function() -> None:
    usual = {name: one.default for name, one in inspect.signature(rl_training.ope).parameters.items()}
    for option, name in ((judging.Bootstraps, "bootstraps"), (judging.Updates, "updates")):
        assert f"{usual[name]:,} unless given" in option.__metadata__[0].help
