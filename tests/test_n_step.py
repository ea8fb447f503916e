"""n-step returns: every drawn row is the sum of its next rewards, cut where an episode or the ring ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.losses import td_target
from rl_training.console.dataset_tasks import replay_of
from rl_training.data.n_step import TRUNCATED, NStepReturns, stored_dones
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout, TransitionBatch
from rl_training.environments.user_environments import TensorEnvMaker, UserEnvironments
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.shards import RowsInfo
from rl_training.models import MLPQNetwork
from rl_training.runtime.loading import open_checkpoint
from rl_training.runtime.populations import train_population
from tests.runs import ALL, QUIET, interrupted, mostly_slow, replay_rows, resume, tiny, train
from tests.test_collector import collector_of, episode, scripted
from tests.test_exact_resume import assert_exact, eventful
from tests.test_population_runs import all_unlike, short
from tests.test_tensor_env import Counter, host_reads_fail
from tests.test_tensor_env import collector_of as tensor_collector_of

GAMMA = 0.9
LAYOUT = RowLayout(obs_dim=1, action_dim=1, discrete=False)
CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def ring_of(capacity: int, num_envs: int, n: int = 3, device: str = "cpu", **options: Any) -> ReplayBuffer:
    returns = NStepReturns(n, GAMMA, num_envs, torch.device(device))
    made = ReplayBuffer(capacity, LAYOUT, torch.Generator(device).manual_seed(0), n_step=returns, **options)
    made.rows.fill_(float("nan"))  # memory that was never written
    return made


def expected(history: list[dict[str, float]], start: int, num_envs: int, n: int) -> tuple[float, float, float]:
    """Return, factor of V(s') and next observation of row `start`, one row after another."""
    total, discount = 0.0, 1.0
    for number in range(start, min(start + n * num_envs, len(history)), num_envs):
        row = history[number]
        total, discount = total + discount * row["reward"], discount * GAMMA
        if row["terminated"] or row["truncated"]:
            break
    return total, 0.0 if row["terminated"] else discount, row["next_obs"]


def vector_steps(count: int, num_envs: int) -> list[list[dict[str, float]]]:
    rng = np.random.default_rng(1)
    steps = []
    for step in range(count):
        ends = rng.random((num_envs, 2)) < 0.2
        steps.append(
            [
                {"obs": step * num_envs + i, "next_obs": -1.0 - (step * num_envs + i), "reward": rng.normal(),
                 "terminated": bool(ends[i, 0]), "truncated": bool(ends[i, 1])}
                for i in range(num_envs)
            ]
        )  # fmt: skip
    return steps


def packed(step: list[dict[str, float]]) -> np.ndarray[Any, Any]:
    columns = {name: np.array([row[name] for row in step]) for name in step[0]}
    dones = stored_dones(columns["terminated"], columns["truncated"])
    obs, next_obs = columns["obs"][:, None], columns["next_obs"][:, None]
    return LAYOUT.pack(obs, np.zeros((len(step), 1)), columns["reward"], next_obs, dones)


def assert_n_step(batch: TransitionBatch, history: list[dict[str, float]], num_envs: int, n: int) -> None:
    factors = td_target(torch.zeros(len(batch.obs)), batch.dones.cpu(), torch.ones(()), GAMMA)
    for i, number in enumerate(batch.obs[:, 0].long().tolist()):
        total, factor, next_obs = expected(history, number, num_envs, n)
        assert batch.rewards[i].item() == pytest.approx(total, rel=1e-5, abs=1e-6)
        assert factors[i].item() == pytest.approx(factor, rel=1e-6)
        assert batch.next_obs[i, 0].item() == next_obs


@pytest.mark.parametrize("appended", [False, True])
@pytest.mark.parametrize(
    ("capacity", "num_envs", "n"),
    [(50, 1, 3), (7, 1, 3), (64, 4, 3), (14, 4, 3), (12, 4, 5), (3, 1, 8), (11, 3, 2)],
)
def test_every_drawn_row_at_ends_and_around_the_ring(capacity: int, num_envs: int, n: int, appended: bool) -> None:
    ring = ring_of(capacity, num_envs, n, together=0 if appended else num_envs)
    history: list[dict[str, float]] = []
    for step in vector_steps(12, num_envs):
        history += step
        if appended:
            ring.append(torch.from_numpy(packed(step)))
            ring.appended(num_envs)
        else:
            ring.add(packed(step))
        batch = LAYOUT.unpack(ring.sample_rows(60))
        assert batch.obs.min() >= len(history) - capacity
        assert_n_step(batch, history, num_envs, n)


@needs_gpu
@pytest.mark.parametrize("together", [0, 2, 4])
def test_on_a_gpu_with_staged_rows(together: int) -> None:
    ring, history = ring_of(14, 4, device="cuda", together=together), list[dict[str, float]]()
    for step in vector_steps(9, 4):
        history += step
        ring.add(packed(step))
        assert_n_step(LAYOUT.unpack(ring.sample_rows(60)), history, 4, 3)


@needs_gpu
@pytest.mark.parametrize("appended", [False, True])
def test_a_captured_draw_sees_the_newest_row(appended: bool) -> None:
    ring, history = ring_of(14, 4, device="cuda", together=0 if appended else 4), list[dict[str, float]]()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(ring.generator)
    arriving = torch.zeros((4, LAYOUT.width), device="cuda")

    def draw() -> Tensor:
        for arrivals in ring.arrivals:
            arrivals.write()
        if appended:
            ring.append(arriving)
        return ring.sample_rows(60)

    for number, step in enumerate(vector_steps(9, 4)):
        history += step
        arriving.copy_(torch.from_numpy(packed(step)))
        if not appended:
            ring.add(packed(step))
        if number == 0:
            drawn = draw()
        else:
            if number == 1:
                ring.rows  # noqa: B018 - writes the waiting rows, which a capture cannot
                with torch.cuda.graph(graph):
                    drawn = draw()
            graph.replay()
        if appended:
            ring.appended(4)
        for arrivals in ring.arrivals:
            arrivals.written()
        assert_n_step(LAYOUT.unpack(drawn.cpu()), history, 4, 3)


def test_a_draw_reads_nothing_back() -> None:
    ring = ring_of(14, 4, together=0)
    ring.append(torch.from_numpy(packed(vector_steps(1, 4)[0])))
    ring.appended(4)
    with host_reads_fail():
        ring.sample_rows(8)


def test_stored_rows_and_random_draws_are_those_of_single_steps() -> None:
    plain, ring = ReplayBuffer(9, LAYOUT, torch.Generator().manual_seed(0)), ring_of(9, 2)
    for step in vector_steps(6, 2):
        for one in (plain, ring):
            one.add(packed(step))
    assert torch.equal(plain.rows, ring.rows)
    assert torch.equal(plain.sample_rows(40)[:, 0], ring.sample_rows(40)[:, 0])


@pytest.mark.parametrize("n", [1, 3])
def test_a_learner_converges_to_the_known_values_of_a_chain(n: int) -> None:
    """States 0..4, reward 1 + s, terminated after state 4; a second environment is truncated after state 2."""
    layout = RowLayout(obs_dim=5, action_dim=1, discrete=True)
    returns = None if n == 1 else NStepReturns(n, GAMMA, 2, CPU)
    ring = ReplayBuffer(100, layout, torch.Generator().manual_seed(0), n_step=returns)
    for step in range(10):
        states = np.array([step % 5, step % 3])
        dones = ring.dones(states == [4, 9], states == [9, 2])
        ring.add(layout.pack(np.eye(6)[states, :5], np.zeros(2), 1.0 + states, np.eye(6)[states + 1, :5], dones))
    torch.manual_seed(0)
    model = MLPQNetwork(5, 2, hidden_sizes=[])
    dqn = DQN(model=model, gamma=GAMMA, learning_rate=0.05, target_update_interval=10)
    for step in range(600):
        dqn.update(layout.unpack(ring.sample_rows(32)), global_step=step)
    values = [sum(GAMMA**k * (1 + s + k) for k in range(5 - s)) for s in range(5)]
    found = model.q_network(torch.eye(5))[:, 0].tolist()
    assert found == pytest.approx(values, abs=0.05)


def drawn(buffer: ReplayBuffer, layout: RowLayout, first: int) -> dict[str, Tensor]:
    """The transition that starts at row `first`, by column."""
    assert buffer.n_step is not None
    rows = buffer.n_step.rows(buffer.rows, torch.tensor([first]), buffer.added - 1, layout)
    return {name: column[0] for name, column in layout.unpack(rows)._asdict().items() if column is not None}


def test_the_collector_marks_truncated_episodes(tmp_path: Path) -> None:
    ends = ("terminated", "truncated", "both")
    collector = collector_of(scripted("sac", tmp_path, {(0, i): episode(i, 2, end) for i, end in enumerate(ends)}))
    collector.buffer.n_step = NStepReturns(3, GAMMA, 1, CPU)
    collector.start()
    for _ in range(6):
        collector.step()
    assert collector.buffer.rows[:6, -1].tolist() == [0, 1, 0, TRUNCATED, 0, 1]
    rewards = collector.buffer.rows[:6, -2]
    for first, factor in ((0, 0.0), (2, GAMMA**2), (4, 0.0), (3, GAMMA)):
        row, k = drawn(collector.buffer, collector.layout, first), 2 - first % 2
        assert torch.equal(row["next_obs"], collector.layout.unpack(collector.buffer.rows).next_obs[first + k - 1])
        assert row["rewards"].item() == pytest.approx(sum(GAMMA**j * float(rewards[first + j]) for j in range(k)))
        assert GAMMA * (1 - row["dones"].item()) == pytest.approx(factor)


def test_the_tensor_collector_marks_the_same() -> None:
    """Simulation i ends after i + 1 steps: terminated if i is even, truncated if not."""
    collector = tensor_collector_of(Counter())
    collector.buffer.n_step = NStepReturns(3, GAMMA, collector.width, CPU)
    for _ in range(4):
        collector.act()
        collector.receive()
    width = collector.width
    for step in range(4):
        for i in range(width):
            ended = (step + 1) % (i + 1) == 0
            assert collector.buffer.rows[step * width + i, -1] == (0 if not ended else TRUNCATED if i % 2 else 1)


def test_an_environment_that_was_reset_on_resume_cuts_its_episode(tmp_path: Path) -> None:
    collector = collector_of(scripted("sac", tmp_path, {(0, 0): episode(1, 99, "truncated")}))
    collector.buffer.n_step = NStepReturns(3, GAMMA, 1, CPU)
    collector.start()
    for _ in range(4):
        collector.step()
    assert len(collector.replay_episodes(collector.obs + 1, collector.envs.episodes)) == 1
    collector.step()
    assert collector.buffer.rows[:5, -1].tolist()[:4] == [0, 0, 0, TRUNCATED]
    assert torch.equal(drawn(collector.buffer, collector.layout, 2)["next_obs"], collector.buffer.rows[3, 3:6])


def test_rows_that_a_cut_may_change_are_written_again() -> None:
    old, new = (RowsInfo(added, added, 100, 4, "float32", shard_rows=10) for added in (20, 30))
    first, second = ("replay/shard_00000.safetensors", "replay/shard_00001.safetensors")
    assert new.unchanged_since(old) == {first, second}
    assert new.unchanged_since(old, amended=2) == {first}
    assert new.unchanged_since(old, amended=50) == set()


@pytest.mark.parametrize(("algo", "num_envs"), mostly_slow([("sac", 2), ("dqn", 1), ("tqc", 3)], ("sac", 2)))
def test_a_resumed_run_is_exact(algo: str, num_envs: int, tmp_path: Path) -> None:
    assert_exact(eventful(algo, tmp_path, num_envs=num_envs, kwargs={"n_step": 3}, checkpoint_interval=39), 39)


def test_a_resumed_run_of_tensor_environments_is_exact(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"num_envs": 4, "env_kwargs": {"max_episode_steps": 9}}
    result = assert_exact(eventful("td3", tmp_path, env_id="torch/Pendulum-v1", kwargs={"n_step": 3}, **fields), 40)
    rows = replay_rows(read_checkpoint(result.checkpoint_path))
    assert set(rows[:, -1].tolist()) == {0.0, TRUNCATED}


def test_an_inexactly_resumed_run_stays_cut(tmp_path: Path) -> None:
    given = UserEnvironments(TensorEnvMaker("Counter", Counter(), single_instance=True))
    config = tiny("sac", tmp_path, env_id="Counter", given_envs=["env_id"], num_envs=4, checkpoint_interval=20,
                  kwargs={"n_step": 3})  # fmt: skip
    run = interrupted(config, 20, given=given)
    rows = replay_rows(read_checkpoint(resume(run, given=given).checkpoint_path))
    assert (rows[16:20, -1] != 0).all()


def test_members_of_a_population_equal_single_runs_each_with_its_own_gamma(tmp_path: Path) -> None:
    configs = [
        short("sac", tmp_path, kwargs={"n_step": 3, "gamma": gamma}).replace(seed=seed, seeds=None)
        for seed, gamma in ((3, 0.9), (0, 0.5))
    ]
    results = train_population(configs, options=QUIET)
    assert all_unlike(results, [train(config) for config in configs]) == [[], []]


def test_the_setting_reaches_the_updates(tmp_path: Path) -> None:
    one, three = (
        read_checkpoint(train(tiny("td3", tmp_path, kwargs={"n_step": n})).checkpoint_path).tensors["networks"]
        for n in (1, 3)
    )
    assert any(not torch.equal(one[name], three[name]) for name in one)


def test_a_data_set_of_the_run_has_its_truncations(tmp_path: Path) -> None:
    result = train(tiny("sac", tmp_path, env_id="torch/Pendulum-v1", num_envs=4,
                        env_kwargs={"max_episode_steps": 5}, kwargs={"n_step": 3}))  # fmt: skip
    data = replay_of(open_checkpoint(result.run_dir))
    assert not data.dones.any()
    assert np.array_equal(data.episode_ends, np.arange(4, 60, 5))


def test_it_cannot_change_in_a_resumed_run(tmp_path: Path) -> None:
    run = interrupted(tiny("sac", tmp_path), 30)
    with pytest.raises(ConfigError, match="n_step: 3 differs from the 1 of this run's replay buffer"):
        resume(run, overrides=["algo_kwargs.n_step=3"])


def test_which_algorithms_have_it() -> None:
    found = {algo for algo in ALL if "n_step" in get_algorithm_spec(algo).sections.owners()}
    assert found == {*ALL} - {"bc"}
    assert get_algorithm_spec("rlpd").sections.default("n_step") == 1
    for algo in ("iql", "cql", "bc"):
        discrete = get_algorithm_spec(algo).sections.discrete
        assert discrete is not None
        assert ("n_step" in discrete.owners()) == (algo != "bc")
    with pytest.raises(ConfigError, match="n_step"):
        get_algorithm_spec("sac").sections.resolve({"n_step": 0})
