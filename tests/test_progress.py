"""Progress of a run: the bar at every width, plain lines without a terminal, the output of a notebook."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rl_training.display import progress as progress_module
from rl_training.display.output import show_table
from rl_training.display.progress import Pace, Progress
from rl_training.display.text import duration, per_second
from rl_training.runs import fleet, signals, training
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.spec import RunOptions
from rl_training.runtime.workflows import resume_training
from rl_training.updates.updater import Updater
from tests.runs import interrupted, run_record, tiny, train
from tests.screens import PseudoTerminal, show, terminal

ROW = {"rollout/ep_rew_mean": -1234.5, "train/critic_loss": 0.25, "train/actor_loss": -3.5, "train/n_updates": 7.0}
EVALUATION = {"eval/mean_reward": -1100.0, "eval/mean_ep_length": 200.0}
LOUD = RunOptions()


@pytest.fixture(autouse=True)
def a_persons_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the effects of the environment that runs the tests, such as a CI job."""
    for name in ("CI", "NO_COLOR", "COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


class Terminal(io.StringIO):
    """A terminal whose width is defined by COLUMNS only."""

    def isatty(self) -> bool:
        return True


def eventually(condition: Callable[[], object]) -> bool:
    """Whether a thread fulfils `condition` before a timeout."""
    for _ in range(3_000):
        if condition():
            return True
        time.sleep(0.01)
    return False


# The line.


def test_it_fits_every_width_and_the_least_important_texts_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["in all", "return -1234", "eval -1100", "steps/s", "critic_loss 0.25", "actor_loss -3.5"]
    counts = []
    for width in range(3, 140, 2):
        monkeypatch.setenv("COLUMNS", str(width))
        stream = Terminal()
        progress = Progress(100_000, stream=stream)
        progress.write(12_345, 0.0, ROW | EVALUATION)
        progress.close()
        screen = show(stream.getvalue(), width)
        assert screen.wrapped == 0
        [line] = [line for line in screen.lines if line]
        assert len(line) < width
        assert ("12345/100000" in line) == (width > 14)
        shown = [text for text in wanted if text in line]
        assert shown == wanted[: len(shown)]
        counts.append(len(shown))
    assert counts == sorted(counts)
    assert {*counts} == {0, 1, 2, 3, 4, 5, 6}


def test_text_in_brackets_is_shown_as_it_is() -> None:
    stream = Terminal()
    progress = Progress(100, stream=stream)
    progress.write(50, 0.0, {"train/[bold]loss": 1.0})
    progress.say("[red]said[/red]")
    progress.close()
    said, line, _ = show(stream.getvalue()).lines
    assert said == "[red]said[/red]"
    assert "  [bold]loss 1" in line


def test_numbers_for_people() -> None:
    assert [duration(seconds) for seconds in (0, 59.6, 3_600, 86_399, 360_000, None, -1, float("inf"))] == [
        "0:00:00", "0:01:00", "1:00:00", "23:59:59", "4d 04h", "-:--:--", "-:--:--", "-:--:--",
    ]  # fmt: skip
    assert [per_second(rate, "updates") for rate in (0.3142, 9.94, 12345.6)] == [
        "0.31 updates/s", "9.9 updates/s", "12,346 updates/s",
    ]  # fmt: skip


def test_the_recent_pace() -> None:
    pace = Pace(500, now=0.0)
    assert (pace.rate, pace.left(1_000)) == (None, None)
    for second in range(1, 101):
        pace.note(500 + 10 * second, now=float(second))
    assert pace.rate == pytest.approx(10)
    assert pace.left(2_500) == pytest.approx(100)
    for second in range(101, 201):  # it slows down, which is soon seen
        pace.note(1_500 + second - 100, now=float(second))
    assert pace.rate == pytest.approx(1)
    assert pace.left(1_600) == 0
    for quarter in range(400_000):  # a day at four looks a second does not fill the memory
        pace.note(1_600, now=200 + quarter / 4)
    assert len(pace._marks) < 500
    assert pace.rate is None


def test_steps_before_the_first_update_do_not_count_for_the_time_left() -> None:
    pace = Pace(0, now=0.0, first_update=1_000)
    pace.note(500, now=1.0)
    assert (pace.rate, pace.left(10_000)) == (pytest.approx(500), None)
    pace.note(1_000, now=2.0)
    pace.note(1_100, now=4.0)
    assert pace.left(2_100) == pytest.approx(20)
    assert Pace(2_000, now=0.0, first_update=1_000).left(2_000) == 0


def test_pretraining_and_steps_have_their_own_time_left() -> None:
    """30 updates, then steps; the first 20 steps make no updates."""
    pace = Pace(0, now=0.0, pretraining=30, first_update=20)
    pace.note(10, now=1.0)
    assert (pace.left(30), pace.left(90)) == (pytest.approx(2), None)
    pace.note(30, now=3.0)
    pace.note(40, now=3.1)
    assert pace.left(90) is None
    pace.note(50, now=3.2)
    pace.note(60, now=4.2)
    assert pace.left(90) == pytest.approx(3)


# On a terminal.


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_the_bar_stays_on_one_line_of_a_terminal(width: int) -> None:
    with terminal(width) as made:
        progress = Progress(100_000, stream=made.stream, opening=["first"])
        progress.advance(50)
        progress.write(12_345, 0.0, ROW | EVALUATION)
        progress.say("said")
        progress.close()
        assert eventually(lambda: made.screen.lines[-1] == "")
    first, said, bar, _ = made.screen.lines
    assert (first, said) == ("first", "said")
    assert made.screen.wrapped == 0
    assert len(bar) < width
    assert "12345/100000" in bar
    assert ("return -1234" in bar) == (width >= 80)
    assert ("critic_loss 0.25" in bar) == (width >= 120)


def test_it_follows_the_width_of_the_terminal() -> None:
    with terminal(120) as made:
        progress = Progress(100_000, stream=made.stream)
        progress.write(12_345, 0.0, ROW)
        assert eventually(lambda: "critic_loss" in made.frames[-1])
        for width, there in ((60, "return"), (24, "12345/100000"), (120, "critic_loss")):
            made.resize(width)
            before = len(made.frames)
            assert eventually(lambda there=there, before=before: there in "".join(made.frames[before:]))  # type: ignore[misc]
            assert eventually(lambda width=width: len(made.frames[-1]) < width)  # type: ignore[misc]
        progress.close()


def test_the_last_line_of_a_run_shorter_than_a_frame_has_its_rate() -> None:
    stream = Terminal()
    progress = Progress(60, stream=stream, unit="updates")
    progress.follow(lambda: 60)
    progress.close()
    assert re.search(r" 60/60 0:00:00 in all  \S+ updates/s$", show(stream.getvalue()).lines[-2])


def test_columns_larger_than_the_terminal_break_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with terminal(80) as made:
        progress = Progress(100_000, stream=made.stream)
        progress.write(12_345, 0.0, ROW | EVALUATION)
        progress.close()
        assert eventually(lambda: made.screen.lines[-1] == "")
    assert made.screen.wrapped == 0


def test_the_bar_moves_between_two_advances_and_names_the_current_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_WORTH_SAYING_SECONDS", 0.0)
    updates = 0
    with terminal(80) as made:
        progress = Progress(1_500, stream=made.stream, unit="updates", start=100)
        progress.follow(lambda: updates)
        assert eventually(lambda: " 100/1500 -:--:-- left" in made.frames[-1])
        updates = 333
        assert eventually(lambda: " 333/1500 0:00:" in made.frames[-1])
        with progress.doing("pretraining"):
            assert eventually(lambda: "left  pretraining  " in made.frames[-1] and "updates/s" in made.frames[-1])
            with progress.doing("evaluating"):
                assert eventually(lambda: "left  evaluating  " in made.frames[-1])
        assert eventually(lambda: made.frames[-1].endswith("updates/s") and "ing" not in made.frames[-1])
        progress.close()
        progress.close()  # which changes nothing


def test_what_a_run_prints_goes_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(80) as made:
        monkeypatch.setattr(sys, "stdout", made.stream)
        progress = Progress(100, stream=made.stream)
        print("of a callback, with [/brackets]")
        sys.stdout.write("half a line [/b]")
        sys.stdout.flush()
        progress.close()
        print("afterwards")
        assert eventually(lambda: made.screen.lines[-2:] == ["afterwards", ""])
    *said, bar, _, _ = made.screen.lines
    assert said == ["of a callback, with [/brackets]", "half a line [/b]"]
    assert bar.endswith("in all")


def test_a_signal_is_reported_in_place_of_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(80) as made:
        monkeypatch.setattr(sys, "stderr", made.stream)
        progress = Progress(100)
        assert eventually(lambda: "left" in made.frames[-1])
        signals._write_stderr("SIGINT: ending this step\n")
        progress.close()
        assert eventually(lambda: made.screen.lines[-1] == "")
    told, bar = (line.split()[0] for line in made.screen.lines[:-1])
    assert (told, {*bar}) == ("SIGINT:", {"━"})


@pytest.mark.parametrize(
    "setting", [("TERM", "dumb"), ("NO_COLOR", "1"), ("CI", "true"), ("TTY_INTERACTIVE", "0")], ids=lambda it: it[0]
)
def test_a_terminal_without_bar_support_gets_lines(
    setting: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*setting)
    stream = Terminal()
    progress = Progress(1_000, stream=stream)
    progress.write(100, 0.0, ROW)
    progress.close()
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_an_ascii_terminal() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    stream.isatty = lambda: True  # type: ignore[method-assign]
    progress = Progress(1_000, stream=stream)
    progress.write(500, 0.0, ROW)
    progress.say("1 ± 2 …")
    progress.close()
    said, bar, _ = show(raw.getvalue().decode("ascii")).lines
    assert said == "1 +/- 2 ..."
    assert bar.startswith("----")


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), BrokenPipeError(32, "Broken pipe"), ValueError()]
)
def test_a_closed_terminal_does_not_stop_a_run(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise error

        def flush(self) -> None:
            raise error

    monkeypatch.setattr(sys, "stderr", Gone())
    short = tiny("sac", tmp_path, total_timesteps=25, eval_episodes=0)
    assert train(short, options=LOUD).metrics["global_step"] == 25


# Without a terminal.


def lines(*rows: tuple[int, dict[str, float]], **options: Any) -> list[str]:
    stream = io.StringIO()
    progress = Progress(1_000, stream=stream, **options)
    for step, values in rows:
        progress.write(step, 1_800_000_000.0 + step, values)
    progress.close()
    return stream.getvalue().splitlines()


def test_lines_have_the_time_of_day_and_the_new_values_of_a_step() -> None:
    first, second, last = lines((100, ROW | EVALUATION), (200, ROW), (1_000, ROW | EVALUATION))
    at = time.strftime("%H:%M:%S", time.localtime(1_800_000_100))
    assert first.startswith(f"{at}  100/1,000 steps  return -1234  eval -1100  critic_loss 0.25  actor_loss -3.5  ")
    assert re.search(r"  200/1,000 steps  return -1234  critic_loss 0.25  actor_loss -3.5  \S+ steps/s  ", second)
    assert re.search(r" steps/s  \d+:\d\d:\d\d left$", second)
    assert last.endswith("  0:00:00 left")


def test_a_second_row_of_a_step_has_only_new_values() -> None:
    report, evaluation = lines((100, ROW), (100, ROW | EVALUATION), (100, EVALUATION), (100, {"time/fps": 3.0}))
    assert "return -1234" in report
    assert evaluation[8:] == "  100/1,000 steps  eval -1100"
    evaluation, report = lines((100, EVALUATION), (100, ROW))
    assert "eval -1100" in evaluation
    assert report[8:] == "  100/1,000 steps  return -1234  critic_loss 0.25  actor_loss -3.5"
    assert len(lines((100, ROW), (200, ROW), (200, ROW), (300, ROW))) == 3


def test_before_the_first_step_there_is_no_time_estimate() -> None:
    [line] = lines((100, ROW), start=100)
    assert line.endswith("actor_loss -3.5  -:--:-- left")


# In a notebook.


class Notebook(ModuleType):
    """A stand-in for IPython in a kernel whose shell is called `shell`."""

    def __init__(self, shell: str) -> None:
        super().__init__("IPython")
        self.shown: list[str] = []
        self.made = 0
        self.get_ipython = type(shell, (), {})
        self.display = ModuleType("IPython.display")
        self.display.display = self._display  # type: ignore[attr-defined]

    def _display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw
        assert display_id
        self.made += 1
        self.shown.append(data["text/plain"])
        return SimpleNamespace(update=lambda data, raw: self.shown.append(data["text/plain"]))


@pytest.fixture
def notebook(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook(getattr(request, "param", "ZMQInteractiveShell"))
    monkeypatch.setitem(sys.modules, "IPython", made)
    monkeypatch.setitem(sys.modules, "IPython.display", made.display)
    return made


def test_a_notebook_has_one_output_that_changes_in_place(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    progress = Progress(1_000, opening=["first"])
    assert stream.getvalue() == "first\n"
    assert notebook.shown[0].endswith("    0/1000 -:--:-- left")
    progress.advance(250)
    assert eventually(lambda: " 250/1000 0:0" in notebook.shown[-1])
    progress.write(300, 0.0, ROW)
    progress.say("a warning")
    progress.close()
    assert re.search(r"━╸? +300/1000 0:00:\d\d in all  return -1234  .*  critic_loss 0.25", notebook.shown[-1])
    assert max(map(len, notebook.shown)) <= 100
    assert notebook.made == 1
    assert stream.getvalue() == "first\na warning\n"


@pytest.mark.parametrize("notebook", ["TerminalInteractiveShell"], indirect=True)
def test_ipython_without_a_notebook_has_lines_in_a_pipe(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    Progress(1_000).write(100, 0.0, ROW)
    assert notebook.made == 0
    assert sys.stderr.getvalue().count("100/1,000 steps") == 1  # type: ignore[attr-defined]


def test_a_quiet_run_shows_nothing_in_a_notebook(notebook: Notebook) -> None:
    Progress(1_000, quiet=True).write(100, 0.0, ROW)
    assert notebook.made == 0


def test_a_notebook_that_fails_has_lines(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    del notebook.display.display
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    Progress(1_000).write(100, 0.0, ROW)
    assert "100/1,000 steps" in sys.stderr.getvalue()  # type: ignore[attr-defined]


# Tables.


@pytest.mark.parametrize("fold", [True, False])
def test_a_path_in_a_table_is_folded_only_on_request(fold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, path = Terminal(), "runs/" + "long" * 20
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", stream)
    show_table([("0", path)], ("seed", "run folder"), fold=fold)
    assert (path in stream.getvalue()) == (not fold)
    assert "run folder" in stream.getvalue()


# Of a run.


def opening(capfd: pytest.CaptureFixture[str], lines: int = 2) -> list[str]:
    return capfd.readouterr().err.splitlines()[:lines]


def resumed(path: Path, **changes: Any) -> TrainResult:
    return resume_training(path, changes=changes)


def test_a_new_run_on_a_busy_machine_starts_with_the_note_of_the_doctor(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "busy_note", lambda: "a load of 8.4")
    run = train(tiny("iql", tmp_path, eval_episodes=0), options=LOUD).run_dir
    assert opening(capfd, 3)[1:] == [f"run folder: {run}", "a load of 8.4"]
    resumed(run, total_timesteps=80)
    assert "a load of 8.4" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("algo", "what"),
    [
        ("sac", "sac on 2 x Pendulum-v1, 60 steps, cpu, seed 3"),
        ("iql", "iql on random actions in Pendulum-v1 (100 rows), 60 updates, cpu, seed 3"),
        (
            "rlpd",
            "rlpd on 2 x Pendulum-v1 and random actions in Pendulum-v1 (100 rows), 30 updates, then 60 steps, cpu, "
            "seed 3",
        ),
    ],
)
def test_a_run_begins_with_what_trains_and_where(
    algo: str, what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny(algo, tmp_path, eval_episodes=0, **{} if algo == "iql" else {"num_envs": 2})
    run = train(config, options=LOUD).run_dir
    remarks = [] if algo == "iql" else ["random actions and no updates in the first 20 steps (learning_starts)"]
    first = [what, *remarks, f"run folder: {run}"]
    assert opening(capfd, len(first)) == first
    last = resumed(run, total_timesteps=80)
    end = 90 if algo == "rlpd" else 60
    assert opening(capfd) == [what.replace("60 ", "80 "), f"resuming {run} at step 60"]
    elsewhere = resumed(run / "checkpoints" / f"step_{end:09}", total_timesteps=80)
    assert elsewhere.run_dir != last.run_dir
    assert opening(capfd)[1] == (
        f"resuming {run}/checkpoints/step_{end:09} at step 60 in a new run folder: {elsewhere.run_dir}"
    )
    quiet = train(config).run_dir
    shown = capfd.readouterr().err
    assert quiet.name not in shown
    assert what not in shown
    assert "learning_starts" not in shown


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        (
            {"random_steps": 5},
            "no updates in the first 20 steps (learning_starts), "
            "random actions in the first 5 steps (random_steps)",
        ),
        ({"random_steps": 0}, "no updates in the first 20 steps (learning_starts)"),
        ({"learning_starts": 0, "random_steps": 10}, "random actions in the first 10 steps (random_steps)"),
        ({"learning_starts": 1}, None),
        ({"learning_starts": 0}, None),
    ],
)
def test_a_run_reports_the_steps_before_learning(
    kwargs: dict[str, Any], said: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(tiny("sac", tmp_path, kwargs=kwargs, total_timesteps=25, eval_episodes=0), options=LOUD)
    shown = capfd.readouterr().err.splitlines()
    assert [line for line in shown if "in the first" in line] == ([] if said is None else [said])


@pytest.mark.parametrize(("algo", "before"), [("sac", 0), ("rlpd", 30)])
@pytest.mark.parametrize(("tick", "again"), [(10, True), (20, False)])
def test_a_resumed_run_reports_the_steps_before_learning_until_it_learns(
    algo: str, before: int, tick: int, again: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny(algo, tmp_path, checkpoint_interval=10, total_timesteps=25, eval_episodes=0)
    run = interrupted(config, before + tick)
    resumed(run)
    assert ("in the first 20 steps (learning_starts)" in capfd.readouterr().err) == again


@pytest.mark.parametrize("algo", ["rlpd", "awac"])
def test_updates_on_data_are_not_counted_as_steps(
    algo: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny(algo, tmp_path, regime="offline_to_online", log_interval=15, eval_episodes=0)
    run = train(config, options=LOUD).run_dir
    counts = re.findall(r":\d\d  (\S+ (?:updates|steps))", capfd.readouterr().err)
    assert counts == ["15/30 updates", "30/30 updates", *(f"{step}/60 steps" for step in (15, 30, 45, 60))]
    resumed(run, total_timesteps=80)
    assert re.findall(r":\d\d  (\S+ steps)", capfd.readouterr().err) == ["75/80 steps"]


def test_every_step_of_a_run_has_its_values_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tiny("sac", tmp_path, eval_max_steps=None, kwargs={"eval_interval": 20}), options=LOUD)
    shown = capfd.readouterr().err.splitlines()[3:]
    assert all(re.match(r"\d\d:\d\d:\d\d  [246]0/60 steps  ", line) for line in shown)
    for step in (20, 40, 60):
        text = "".join(line for line in shown if f" {step}/60 steps" in line)
        assert (text.count("eval "), text.count("return "), text.count(" left")) == (1, int("return " in text), 1)


class Watched(Progress):
    """Records the reported position of the run at each request."""

    position: Callable[[], int]

    def follow(self, position: Callable[[], int]) -> None:
        type(self).position = staticmethod(position)  # type: ignore[assignment]


@pytest.mark.parametrize("algo", ["iql", "rlpd"])
@pytest.mark.parametrize("killed", [False, True])
def test_the_position_moves_inside_a_block_of_updates(
    algo: str, killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline and while RLPD pretrains, the clock only moves once a block of updates is done."""
    kwargs = {"offline_pretrain_updates": 60} if algo == "rlpd" else {}
    config = tiny(algo, tmp_path, kwargs=kwargs, log_interval=30, eval_episodes=0)
    path = interrupted(config, 30) if killed else None
    seen = []

    def one_by_one(self: Updater, count: int) -> None:
        for _ in range(count):
            run_one(self, 1)
            seen.append(Watched.position())

    run_one = Updater.run
    monkeypatch.setattr(Updater, "run", one_by_one)
    monkeypatch.setattr(fleet, "Progress", Watched)
    result = train(config) if path is None else resume_training(path, quiet=True)
    assert run_record(result.run_dir)["status"] == "finished"
    assert seen[:25] == [*range(31, 56)] if killed else seen[:60] == [*range(1, 61)]
    if algo == "rlpd":  # online it counts environment steps
        assert seen[-1] == 60 + 59


def test_a_run_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first frame comes before the first row, and the last one stays."""

    class Show(Callback):
        def __init__(self, made: PseudoTerminal) -> None:
            self.made = made

        def on_training_start(self, session: Session) -> None:
            assert eventually(lambda: "  0/60 -:--:-- left" in self.made.frames[-1])

    with terminal(120) as made:
        monkeypatch.setattr(sys, "stderr", made.stream)
        run = train(tiny("iql", tmp_path), [Show(made)], options=LOUD).run_dir
        made.stream.flush()
        assert eventually(lambda: made.screen.lines[-1] == "")
    assert made.screen.lines[0].startswith(
        "iql on random actions in Pendulum-v1 (100 rows), 60 updates, cpu, seed 3"
    )
    assert f"run folder: {run}" in "".join(made.screen.lines)
    assert re.search(r"━ 60/60 0:00:\d\d in all  eval -[\d.]+  .* updates/s  .*loss ", made.screen.lines[-2])
