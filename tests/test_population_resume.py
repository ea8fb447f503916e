"""A resumed population equals an uninterrupted one bit for bit, whichever member was ahead when it was killed.

Here the result of an update depends on the number of members in a stack, on every machine: `uneven` simulates the
rounding of the worst CPU. So these tests fail if a resumed population makes an update with other members.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import list_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.runs.callbacks import Callback, TimeLimitCallback
from rl_training.runs.fleet import MembersFailed
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.signals import SignalGuard, TrainingInterrupted
from rl_training.runtime.populations import members_of, train_population
from rl_training.runtime.resume import resume_population as resume_all
from rl_training.updates.stacked import StackedUpdater
from tests.reliability.processes import Child
from tests.runs import QUIET, differences, mostly_slow, run_record, tiny
from tests.test_population_runs import At, AtCheckpoint, broken_for, folders, nothing, send, statuses

SEEDS = (3, 0, 8)
KILL = send(signal.SIGKILL)
Undisturbed = Callable[..., list[TrainResult | None]]


@pytest.fixture(autouse=True)
def _uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stacked update changes the parameters slightly, depending on the size of the stack."""
    original = StackedUpdater._update

    def update(self: StackedUpdater, *arguments: Any) -> Any:
        terms = original(self, *arguments)
        with torch.no_grad():
            for optimizer in self.stack.optimizers.values():
                for parameter in optimizer.parameters:
                    parameter.mul_(1.0 + 1e-6 * len(self.stack))
        return terms

    monkeypatch.setattr(StackedUpdater, "_update", update)


def brief(folder: Path, algo: str = "td3", **fields: Any) -> TrainConfig:
    """40 steps with a checkpoint every 10; only the newest is kept."""
    common = {"env_id": "Scripted-v0", "total_timesteps": 40, "checkpoint_interval": 10, "log_interval": 10}
    kwargs = fields.pop("kwargs", {}) | ({"learning_starts": 4} if algo in ("td3", "sac") else {})
    defaults: dict[str, Any] = {"eval_episodes": 0, "keep_checkpoints": 1, "seeds": list(SEEDS)}
    return tiny(algo, folder, kwargs=kwargs, **common | defaults | fields)


def trained(config: TrainConfig, *callbacks: Callback) -> list[TrainResult | None]:
    """The results of a population; None for a member that failed."""
    try:
        return list(train_population(members_of(config), callbacks=list(callbacks), options=QUIET))
    except MembersFailed as failed:
        return failed.results


def resumed(run: Path, *callbacks: Callback) -> tuple[list[TrainResult | None], list[str]]:
    said: list[str] = []
    try:
        return list(resume_all(run, callbacks=list(callbacks), quiet=True, warn=said.append)), said
    except MembersFailed as failed:
        return failed.results, said


def killed(config: TrainConfig, place: Path, *callbacks: Callback, code: int = -signal.SIGKILL) -> list[Path]:
    child = Child(lambda: trained(config, *callbacks), place / "output.txt")
    assert child.wait() == code, child.text()
    return folders(Path(config.output_dir))


_undisturbed: dict[str, list[TrainResult | None]] = {}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture
def undisturbed(elsewhere: Path) -> Undisturbed:
    """Trains a population without killing it, once for each configuration."""

    def train(config: TrainConfig, *callbacks: Callback) -> list[TrainResult | None]:
        config = config.replace(output_dir=str(elsewhere))
        key = f"{config} {[(one.name, vars(one)) for one in callbacks]}"
        if key not in _undisturbed:
            _undisturbed[key] = trained(config, *callbacks)
        return _undisturbed[key]

    return train


def unequal(ours: Sequence[TrainResult | None], theirs: Sequence[TrainResult | None]) -> list[set[str]]:
    """What differs, apart from where the runs are and which of their checkpoints were kept."""
    assert [one is None for one in ours] == [one is None for one in theirs]
    pairs = [(one, other) for one, other in zip(ours, theirs) if one is not None and other is not None]
    return [{*differences(*pair)} - {"checkpoints", "config/output_dir"} for pair in pairs]


def newest(run: Path) -> int:
    return int(list_checkpoints(run / "checkpoints")[-1].name.removeprefix("step_"))


def at(seed: int = 0, tick: int = 0, act: Callable[[Session], object] = nothing) -> At:
    return At(seed, tick, act)


def stop(session: Session) -> None:
    session.stop("enough", final=True)


def fail(session: Session) -> None:
    raise RuntimeError("no more ink")


class AtEnd(At):
    """Does something when the member of one seed has reported its final evaluation."""

    def on_step(self, session: Session) -> None: ...

    def on_evaluation(self, session: Session, metrics: Any) -> None:
        super().on_step(session)


@pytest.mark.parametrize("algo", mostly_slow(["td3", "iql", "rlpd"], "td3"))
def test_killed_while_the_members_save(algo: str, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Only the newest checkpoint is kept, and the one that all members have."""
    config = brief(tmp_path / "runs", algo)
    runs = killed(config, tmp_path, AtCheckpoint(SEEDS[0], 20, KILL))
    assert [newest(run) for run in runs] == [20, 10, 10]
    ours, said = resumed(runs[0], at())
    assert [text for text in said if "goes back" in text] == [
        f"{runs[0]}: goes back from step 20 to step 10, which all members of its population have"
    ]
    assert unequal(ours, undisturbed(config, at())) == [set()] * 3
    assert [run_record(run)["exact_resume"] for run in runs] == [True] * 3
    assert [len(list_checkpoints(run / "checkpoints")) for run in runs] == [1] * 3


def test_killed_before_all_have_a_checkpoint(tmp_path: Path, undisturbed: Undisturbed) -> None:
    config = brief(tmp_path / "runs")
    runs = killed(config, tmp_path, AtCheckpoint(SEEDS[1], 10, KILL))
    assert [len(list_checkpoints(run / "checkpoints")) for run in runs] == [1, 1, 0]
    ours, said = resumed(runs[2], at())
    assert len([text for text in said if "to the start" in text]) == 2
    assert unequal(ours, undisturbed(config, at())) == [set()] * 3


def test_killed_again_before_the_first_checkpoint(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Also if the members that go back to the start had stored a best policy."""
    config = brief(tmp_path / "runs", eval_episodes=1, kwargs={"eval_interval": 10})
    runs = killed(config, tmp_path, AtCheckpoint(SEEDS[1], 10, KILL))
    for seed in SEEDS[:2]:
        child = Child(lambda seed=seed: resumed(runs[0], at(seed, 5, KILL)), tmp_path / "output.txt")  # type: ignore[misc]
        assert child.wait() == -signal.SIGKILL, child.text()
        assert not any(list_checkpoints(run / "checkpoints") for run in runs)
    ours, _ = resumed(runs[0], at())
    assert unequal(ours, undisturbed(config, at())) == [set()] * 3
    assert [(run / "earlier_best" / "1" / "step_000000010").is_dir() for run in runs] == [True, True, False]


@pytest.mark.slow
def test_killed_after_an_extra_checkpoint(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """One was asked for by a signal; the newest that all have is older than the newest two of the first member."""
    config = brief(tmp_path / "runs")
    once = [at(SEEDS[1], 13, send(signal.SIGUSR1)), AtCheckpoint(SEEDS[0], 20, KILL)]
    runs = killed(config, tmp_path, *once)
    assert [newest(run) for run in runs] == [20, 14, 14]
    ours, _ = resumed(runs[0], at(), AtCheckpoint(0, 0, nothing))
    assert unequal(ours, undisturbed(config, at(), AtCheckpoint(0, 0, nothing))) == [set()] * 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_between_two_members(number: int, tmp_path: Path, undisturbed: Undisturbed) -> None:
    config = brief(tmp_path / "runs", checkpoint_interval=1_000)
    runs = killed(config, tmp_path, at(SEEDS[1], 13, send(number)), code=128 + number)
    assert len({newest(run) for run in runs}) == 1
    ours, _ = resumed(runs[1], at())
    assert unequal(ours, undisturbed(config, at())) == [set()] * 3
    assert [run_record(run)["exact_resume"] for run in runs] == [True] * 3


def test_a_signal_while_the_members_are_opened(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The members that are opened after it do not train either, so all resume together."""

    def stopped(home: Path) -> None:
        if home == runs[1]:
            signal.raise_signal(signal.SIGTERM)

    config = brief(tmp_path / "runs")
    runs = killed(config, tmp_path, at(SEEDS[0], 15, KILL))
    with pytest.raises(TrainingInterrupted):
        resume_all(runs[0], opened=stopped, quiet=True)
    ours, _ = resumed(runs[0], at())
    assert unequal(ours, undisturbed(config, at())) == [set()] * 3
    assert [run_record(run)["exact_resume"] for run in runs] == [True] * 3


@pytest.mark.slow
def test_a_signal_during_an_evaluation(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The members after it have not been evaluated; all are saved at that step."""
    config = brief(tmp_path / "runs", kwargs={"eval_interval": 7}, eval_episodes=1, checkpoint_interval=1_000)
    runs = killed(config, tmp_path, AtEnd(SEEDS[0], 14, send(signal.SIGTERM)), code=143)
    assert [newest(run) for run in runs] == [14] * 3
    ours, _ = resumed(runs[1], AtEnd(0, 0, nothing))
    assert unequal(ours, undisturbed(config, AtEnd(0, 0, nothing))) == [set()] * 3


@pytest.mark.parametrize("kill", [18, pytest.param(24, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("act", "status"),
    [(stop, "stopped"), pytest.param(fail, "failed", marks=pytest.mark.slow)],
    ids=["stop", "fail"],
)
def test_a_member_that_ended_before_the_kill(
    act: Callable[[Session], object], status: str, kill: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """It ended after the newest step that all have, and goes back too, or before it and is left as it is."""
    config = brief(tmp_path / "runs")
    runs = killed(config, tmp_path, at(SEEDS[1], 15, act), at(SEEDS[2], kill, KILL))
    assert statuses(tmp_path / "runs") == ["running", status, "running"]
    others = [at(SEEDS[1], 15, act), at(SEEDS[2], 1_000)]
    ours, _ = resumed(runs[0], *others)
    theirs = undisturbed(config, *others)
    if (act, kill) == (fail, 24):  # it is resumed, by itself
        ours, theirs = ours[::2], theirs[::2]
    assert unequal(ours, theirs) == [set()] * len([one for one in theirs if one is not None])
    assert [run_record(run)["exact_resume"] for run in runs[::2]] == [True] * 2


def test_a_member_that_diverged_before_the_kill(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """It goes back as well, if it had not diverged by then, and diverges again."""
    script = {"env_kwargs": broken_for(SEEDS[1], "reward")}  # at step 30
    config = brief(tmp_path / "runs", checkpoint_interval=25, total_timesteps=60, **script)
    runs = killed(config, tmp_path, at(SEEDS[2], 33, KILL))
    assert statuses(tmp_path / "runs") == ["running", "diverged", "running"]
    ours, _ = resumed(runs[0], at())
    assert unequal(ours, undisturbed(config, at())) == [set()] * 2


def test_killed_after_the_first_has_finished(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """All save the last step before one is finished: none of them trains again."""
    config = brief(tmp_path / "runs", eval_episodes=1)
    runs = killed(config, tmp_path, AtEnd(SEEDS[1], 40, KILL))
    assert statuses(tmp_path / "runs") == ["finished", "running", "running"]
    assert [newest(run) for run in runs] == [40] * 3
    ours, said = resumed(runs[2], AtEnd(0, 0, nothing))
    assert not [text for text in said if "goes back" in text]
    assert unequal(ours, undisturbed(config, AtEnd(0, 0, nothing))) == [set()] * 3


@pytest.mark.slow
def test_killed_twice(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The second time before anything more was saved."""
    config = brief(tmp_path / "runs")
    runs = killed(config, tmp_path, AtCheckpoint(SEEDS[0], 20, KILL))
    again = Child(lambda: resumed(runs[0], AtCheckpoint(SEEDS[1], 20, KILL)), tmp_path / "again.txt")
    assert again.wait() == -signal.SIGKILL
    ours, _ = resumed(runs[1], at())
    assert unequal(ours, undisturbed(config, at())) == [set()] * 3


@pytest.mark.slow
def test_turns_stay_what_they_were(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Two at a time: the second turn is resumed with its own two members, the first is left as it is."""
    config = brief(tmp_path / "runs", seeds=[3, 0, 8, 5], population=2)
    child = Child(lambda: trained(config, AtCheckpoint(8, 20, KILL)), tmp_path / "output.txt")
    assert child.wait() == -signal.SIGKILL
    runs = folders(tmp_path / "runs", [3, 0, 8, 5])
    ours, _ = resumed(runs[0], at())
    assert unequal(ours, undisturbed(config, at())) == [set()] * 4


# Where it cannot be exact.


def test_without_a_common_step_the_run_says_so(tmp_path: Path) -> None:
    config = brief(tmp_path / "runs")
    runs = killed(config, tmp_path, AtCheckpoint(SEEDS[0], 20, KILL))
    shutil.rmtree(runs[0] / "checkpoints" / "step_000000010")
    child = Child(lambda: resume_all(runs[1], callbacks=[at()]), tmp_path / "again.txt")
    assert child.wait() == 0, child.text()
    assert "not an exact resume: the members of its population resume at different steps" in child.text()
    assert statuses(tmp_path / "runs") == ["finished"] * 3
    assert [run_record(run)["exact_resume"] for run in runs] == [False] * 3


def test_members_that_start_over_without_one_that_had_stopped_say_so(tmp_path: Path) -> None:
    """The stopped member is not trained again, so the others are computed without it from the beginning."""
    runs = killed(brief(tmp_path / "runs"), tmp_path, at(SEEDS[1], 7, stop), at(SEEDS[2], 8, KILL))
    assert statuses(tmp_path / "runs") == ["running", "stopped", "running"]
    resumed(runs[0], at())
    assert statuses(tmp_path / "runs") == ["finished", "stopped", "finished"]
    assert [run_record(run)["exact_resume"] for run in runs] == [False, True, False]
    reason = f"step 0: it was trained together with {runs[1].name}, and resumes without them"
    assert [run_record(run)["inexact"] for run in runs[::2]] == [[reason]] * 2


@pytest.mark.slow
def test_a_damaged_checkpoint_sends_all_back(tmp_path: Path, undisturbed: Undisturbed) -> None:
    config = brief(tmp_path / "runs", keep_checkpoints=3)
    runs = killed(config, tmp_path, at(SEEDS[1], 25, KILL))
    with (runs[1] / "checkpoints" / "step_000000020" / "networks.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"oops")
    ours, said = resumed(runs[0], at())
    assert len([text for text in said if "to step 10" in text]) == 2
    assert any("damaged" in text for text in said)
    assert unequal(ours, undisturbed(config, at())) == [set()] * 3


def test_a_run_of_an_older_version_catches_up(tmp_path: Path) -> None:
    """It does not say who was trained together: nothing is deleted."""
    config = brief(tmp_path / "runs", keep_checkpoints=3)
    runs = killed(config, tmp_path, AtCheckpoint(SEEDS[0], 20, KILL))
    for run in runs:
        record = run_record(run)
        del record["trained_with"]
        (run / "run.json").write_text(json.dumps(record))
    ours, said = resumed(runs[0], at())
    assert said == []
    assert len(ours) == 3
    assert [run_record(run)["exact_resume"] for run in runs] == [False] * 3


# The same time for all.


def test_members_reach_max_hours_at_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes between two members, but all of them see the same time."""
    seconds = iter(range(10**6))
    monkeypatch.setattr("rl_training.runs.signals.time.monotonic", lambda: float(next(seconds)))
    results = trained(brief(tmp_path), TimeLimitCallback(20.0 / 3600.0))
    assert len({one.metrics["global_step"] for one in results if one is not None}) == 1
    assert statuses(tmp_path) == ["stopped"] * 3


def test_a_guard_that_is_renewed_shows_what_was_then() -> None:
    guard = SignalGuard()
    assert not guard.stops
    guard.renew()
    guard.received, guard.saves_requested = signal.SIGTERM, 2
    assert (guard.stops, guard.saves) == (False, 0)
    assert guard.time == guard.time
    guard.renew()
    assert (guard.stops, guard.saves) == (True, 2)


def test_a_member_whose_checkpoints_were_deleted_is_named_with_a_way_to_resume_the_others(tmp_path: Path) -> None:
    train_population(members_of(brief(tmp_path)), options=QUIET)
    homes = folders(tmp_path)
    for home in homes:
        (home / "run.json").write_text(json.dumps(run_record(home) | {"status": "running"}))
    shutil.rmtree(homes[1] / "checkpoints")
    with pytest.raises(ConfigError, match=rf"{homes[1].name}: has no checkpoint .*; --alone resumes another"):
        resume_all(homes[0], warn=lambda _: None)
