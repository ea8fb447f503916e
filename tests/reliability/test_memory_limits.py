"""Promise 17: memory is checked before it is allocated, and does not grow once the buffer is full."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import MemoryLimitError
from rl_training.experience import collecting
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runtime import online
from tests.reliability.processes import Child
from tests.runs import OFFLINE, ONLINE, interrupted, mostly_slow, resume, tiny, train


@pytest.mark.parametrize("algo", mostly_slow([*ONLINE, "rlpd"], "dqn", "sac", "rlpd"))
def test_a_buffer_that_cannot_fit_is_refused_before_anything_is_written(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "available_memory", lambda: 10**9)
    config = tiny(algo, tmp_path / "runs", kwargs={"buffer_capacity": 10**12})
    with pytest.raises(MemoryLimitError, match=r"buffer_capacity 1000000000000 needs [\d.]+ GiB") as caught:
        train(config)
    assert caught.value.exit_code == 2
    fits = int(str(caught.value).rpartition(" ")[2])
    assert not (tmp_path / "runs").exists()
    train(config.replace(algo_kwargs={**config.algo_kwargs, "buffer_capacity": fits}, total_timesteps=20))
    with pytest.raises(MemoryLimitError):
        train(config.replace(algo_kwargs={**config.algo_kwargs, "buffer_capacity": fits + 1}))


@pytest.mark.parametrize("algo", [*OFFLINE, "rlpd"])
def test_data_that_do_not_fit_into_memory_are_not_collected(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "available_memory", lambda: 10**9)
    with pytest.raises(
        MemoryLimitError, match=r"dataset_size 1000000000000 needs .*; the largest that fits is \d+$"
    ):
        train(tiny(algo, tmp_path / "runs", kwargs={"dataset_size": 10**12}))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("algo", ["sac", "iql", "edac", "dqn", "rlpd"])
def test_networks_that_do_not_fit_into_memory_are_not_built(algo: str, tmp_path: Path) -> None:
    config = tiny(algo, tmp_path / "runs", kwargs={"hidden_sizes": [200_000, 200_000]})
    with pytest.raises(
        MemoryLimitError,
        match=r"^algo_kwargs\.hidden_sizes: the networks and their optimisers need .* are available on cpu; use",
    ):
        train(config)
    assert not (tmp_path / "runs").exists()


def test_on_the_command_line_of_this_machine(tmp_path: Path) -> None:
    values = tiny("sac", tmp_path / "runs", kwargs={"buffer_capacity": 10**12}).to_dict()
    del values["allow_import"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(main, ["train", "--config", str(tmp_path / "run.yaml")])
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / 'run.yaml'}:")
    assert "algo_kwargs.buffer_capacity 1000000000000 needs" in line
    assert "the largest that fits is" in line
    assert not (tmp_path / "runs").exists()


def test_resuming_needs_no_second_copy_of_the_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for one buffer is enough to resume."""
    run = interrupted(tiny("sac", tmp_path), 30)
    load = ReplayBuffer.load

    def in_place(self: ReplayBuffer, rows: torch.Tensor, *, added: int) -> None:
        assert rows.data_ptr() == self.rows.data_ptr()
        load(self, rows, added=added)

    monkeypatch.setattr(ReplayBuffer, "load", in_place)
    assert resume(run).metrics["global_step"] == 60


class Watch(Callback):
    """Records resident memory every hundred steps."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def on_step(self, session: Session) -> None:
        if session.clock.global_step % 100 == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.seen[session.clock.global_step] = pages * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_resident_memory_is_constant_once_the_buffer_is_full(tmp_path: Path) -> None:
    """A ring of 300 rows is full after a fifth of the run; checkpoints and reports continue."""

    def action() -> None:
        watch = Watch()
        config = tiny("td3", tmp_path / "runs", total_timesteps=1_500, kwargs={"buffer_capacity": 300})
        train(config.replace(checkpoint_interval=100), [watch])
        (tmp_path / "seen.txt").write_text(" ".join(str(value) for value in watch.seen.values()))

    child = Child(action, tmp_path / "output.txt")
    assert child.wait() == 0, child.text()
    seen = [int(word) for word in (tmp_path / "seen.txt").read_text().split()]
    settled = seen[len(seen) // 3 :]
    half = len(settled) // 2
    growth = sum(settled[half:]) / (len(settled) - half) - sum(settled[:half]) / half
    assert growth < 2 * 2**20, settled
