"""Videos of a policy: their content, that they show an evaluation, and that no partial file remains."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from rl_training import IQL, SAC, TransitionDataset, cli
from rl_training import load as load_model
from rl_training.console import doctor
from rl_training.environments import filming, video
from rl_training.errors import ConfigError, EnvironmentFailure, MissingDependencyError
from rl_training.runtime.workflows import play_checkpoint, record_checkpoint
from tests.reliability.processes import Child

DRAWN = "DrawnWorld-v0"
SIZE = 32
SOURCE = str(Path(__file__).resolve().parents[1] / "src")
TINY: dict[str, Any] = {
    "hidden_sizes": [8],
    "learning_starts": 10,
    "batch_size": 8,
    "checkpoint_interval": 1000,
    "eval_episodes": 0,
}


class Drawn(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Ends after 3 to 6 steps, depending on its seed; the grey of a frame is 20 plus 35 per step."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array"], "render_fps": 10}
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None, broken: str = "", size: int = SIZE) -> None:
        self.render_mode, self.broken, self.size = render_mode, broken, size

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.length = 0, 3 + int(self.np_random.integers(4))
        return np.zeros(2, np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.action = float(action[0])
        return np.array([self.t / 8, 0.0], np.float32), self.action, self.t == self.length, False, {}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        if self.broken == "raise" and self.t == 2:
            raise RuntimeError("no paint left")
        if self.broken == "interrupt" and self.t == 2:
            raise KeyboardInterrupt
        if self.broken == "terminate" and self.t == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.broken == "float":
            return np.zeros((8, 8, 3))
        if self.broken == "growing":
            return np.zeros((8 + 2 * self.t, 8, 3), np.uint8)
        return np.full((self.size, self.size, 3), 20 + 35 * self.t, np.uint8)


class Blind(Drawn):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "ansi"]}


for _name, _world in ((DRAWN, Drawn), ("BlindWorld-v0", Blind)):
    if _name not in gym.registry:
        gym.register(_name, entry_point=f"{__name__}:{_world.__name__}")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = SAC(DRAWN, seed=1, output_dir=tmp_path_factory.mktemp("runs"), **TINY)
    return model.learn(40, progress_bar=False).run_dir


def command(*arguments: object) -> Any:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def frames_of(path: Path, size: int = SIZE) -> NDArray[np.uint8]:
    """Every frame of a video, `[n, H, W, 3]`."""
    program = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path)]
    raw = subprocess.run([*program, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True)
    return np.frombuffer(raw.stdout, np.uint8).reshape(-1, size, size, 3)


def rate_of(path: Path) -> float:
    told = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)], capture_output=True, text=True)
    found = re.search(r"([\d.]+) fps", told.stderr)
    assert found is not None
    return float(found[1])


def only(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_a_video_has_a_frame_for_each_reset_and_step_of_the_evaluation(
    suffix: str, run_dir: Path, tmp_path: Path
) -> None:
    made = record_checkpoint(run_dir, tmp_path / f"film.{suffix}", 3)
    _, played = play_checkpoint(run_dir, 3)
    assert made.lengths == played.lengths.tolist()
    assert made.returns == pytest.approx(played.returns.tolist(), abs=1e-6)
    frames = frames_of(made.path)
    assert made.frames == len(frames) == sum(made.lengths) + 3
    shown = [20 + 35 * t for length in made.lengths for t in range(length + 1)]
    np.testing.assert_allclose(frames.mean((1, 2, 3)), shown, atol=3)
    assert made.seconds == pytest.approx(made.frames / 10)
    assert rate_of(made.path) == pytest.approx(10)
    assert only(tmp_path) == [f"film.{suffix}"]


def test_a_seed_plays_other_episodes_and_the_same_again(run_dir: Path, tmp_path: Path) -> None:
    usual, *seeded = (
        record_checkpoint(run_dir, tmp_path / f"{i}.mp4", 6, seed=seed).lengths
        for i, seed in enumerate((None, 5, 5))
    )
    assert seeded[0] == seeded[1] != usual


def test_sampled_actions_follow_the_seed(run_dir: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"deterministic": False, "max_steps": 2}
    first, again, other, usual = (
        record_checkpoint(run_dir, tmp_path / f"{i}.mp4", seed=seed, **settings).returns
        for i, seed in enumerate((4, 4, 5, None))
    )
    assert first == again
    assert len({first[0], other[0], usual[0]}) == 3
    with pytest.warns(UserWarning, match="cut after 2 steps"):
        _, played = play_checkpoint(run_dir, 1, deterministic=False, changes={"eval_max_steps": 2})
    assert usual == pytest.approx(played.returns.tolist(), abs=1e-6)


def test_the_command_names_the_video(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "film.mp4"
    done = command("record", run_dir, "-o", target, "--episodes", 2, "--fps", 25, "--max-steps", 2, "--seed", 0)
    assert done.exit_code == 0, done.stderr
    assert "2 (4 steps)" in done.stdout
    assert "6 frames, 0.2 s" in done.stdout
    assert rate_of(target) == 25


def test_a_fast_gif_keeps_its_speed(run_dir: Path, tmp_path: Path) -> None:
    made = record_checkpoint(run_dir, tmp_path / "fast.gif", 10, fps=100)
    frames = len(frames_of(made.path))
    assert rate_of(made.path) == pytest.approx(50, rel=0.05)
    assert frames == pytest.approx(made.frames / 2, abs=1)


def test_odd_sizes_are_padded(run_dir: Path, tmp_path: Path) -> None:
    changes = {"env_kwargs": {"size": 31, "render_mode": "human"}}
    made = record_checkpoint(run_dir, tmp_path / "odd.mp4", changes=changes)
    assert frames_of(made.path, 32).shape[0] == made.frames


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "film.avi"], "a video ends in .mp4 or .gif"),
        (["-o", "film"], "a video ends in .mp4 or .gif"),
        (["-o", "there.mp4"], "already exists and is not overwritten"),
        (["-o", "file/film.mp4"], "file/film.mp4: cannot be written: "),
        (["-o", "a.mp4", "--fps", "0"], "fps must be > 0 and <= 1000, got 0.0"),
        (["-o", "a.mp4", "--fps", "nan"], "fps must be > 0"),
        (["-o", "a.mp4", "--set", "env_id=BlindWorld-v0"], "BlindWorld-v0 is filmed in the render mode rgb_array; "
         "it has human, ansi"),
        (["-o", "a.mp4", "--set", "env_id=Pendulum-v1"], "does not fit the policy"),
        (["-o", "a.mp4", "--set", "env_kwargs.broken=float"], "draws float64 of shape [8, 8, 3]; a frame is uint8"),
        (["-o", "a.mp4", "--set", "env_kwargs.broken=growing"], "a frame has the shape [10, 8, 3]"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_recorded_is_one_line_and_leaves_no_file(
    arguments: list[str], message: str, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.mp4").write_bytes(b"mine")
    Path("file").touch()
    done = command("--quiet", "record", run_dir, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert only(tmp_path) == ["file", "there.mp4"]
    assert Path("there.mp4").read_bytes() == b"mine"


def test_an_environment_that_fails_to_draw_is_named(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="DrawnWorld-v0 cannot be drawn: RuntimeError: no paint left"):
        record_checkpoint(run_dir, tmp_path / "film.mp4", changes={"env_kwargs": {"broken": "raise"}})
    assert only(tmp_path) == []


def test_ctrl_c_leaves_nothing(run_dir: Path, tmp_path: Path) -> None:
    done = command("record", run_dir, "-o", tmp_path / "film.mp4", "--set", "env_kwargs.broken=interrupt")
    assert done.exit_code == 130
    assert only(tmp_path) == []


def test_a_signal_leaves_nothing(run_dir: Path, tmp_path: Path) -> None:
    words = ["record", run_dir, "-o", tmp_path / "new" / "film.mp4", "--set", "env_kwargs.broken=terminate"]
    child = Child(lambda: cli.main([str(word) for word in words]), tmp_path / "output.txt")
    assert child.wait() == 128 + signal.SIGTERM, child.text()
    assert only(tmp_path / "new") == []


def test_a_slow_recording_reports_its_progress() -> None:
    taken: list[Any] = []
    said: list[str] = []
    sink = filming.with_progress(taken.append, said.append, every=0.0)
    quiet = filming.with_progress(taken.append, said.append, every=3600.0)
    for take in (sink, sink, quiet):
        take(np.zeros((2, 2, 3), np.uint8))
    assert (len(taken), said) == (3, ["1 frames in 0 s", "2 frames in 0 s"])


def test_what_ffmpeg_cannot_write_is_one_line(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "_arguments", lambda *_: ["-c:v", "no_such_codec"])
    with pytest.raises(ConfigError, match=r"film\.mp4: cannot be written: ffmpeg: .+"):
        record_checkpoint(run_dir, tmp_path / "film.mp4", 2)
    assert only(tmp_path) == []


def test_a_file_that_appears_meanwhile_is_not_replaced(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, finish = tmp_path / "film.mp4", video.Video.finish

    def late(self: video.Video) -> None:
        finish(self)
        target.write_bytes(b"mine")

    monkeypatch.setattr(video.Video, "finish", late)
    with pytest.raises(ConfigError, match="already exists"):
        record_checkpoint(run_dir, target)
    assert target.read_bytes() == b"mine"
    assert only(tmp_path) == ["film.mp4"]


def test_without_ffmpeg_one_line_names_what_to_install(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingDependencyError, match=r"pip install imageio-ffmpeg pygame-ce"):
        record_checkpoint(run_dir, tmp_path / "film.mp4")


def test_without_pygame_one_line_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SAC("Pendulum-v1", output_dir=tmp_path / "runs", **TINY)
    model.learn(20, progress_bar=False)
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(MissingDependencyError, match=r"cannot be drawn .*pip install imageio-ffmpeg"):
        model.record(tmp_path / "film.mp4")
    monkeypatch.undo()
    made = model.record(tmp_path / "film.mp4", max_steps=3)
    assert (made.frames, made.seconds) == (4, pytest.approx(4 / 30))


def test_a_run_without_an_environment_is_refused(tmp_path: Path) -> None:
    rows = {"observations": np.zeros((9, 2)), "actions": np.zeros((9, 1)), "rewards": np.zeros(9)}
    data = TransitionDataset.from_arrays(
        **rows, next_observations=np.zeros((9, 2)), terminals=np.zeros(9, bool), action_low=-1.0, action_high=1.0
    )
    result = IQL(None, hidden_sizes=[8], batch_size=4, output_dir=tmp_path / "runs").learn(
        2, dataset=data, progress_bar=False
    )
    done = command("--quiet", "record", result.run_dir, "-o", tmp_path / "film.mp4")
    assert done.exit_code == 2
    assert "was trained without an environment; name one with --set env_id=…" in done.stderr
    assert only(tmp_path) == ["runs"]
    (result.checkpoint_path / "networks.safetensors").write_bytes(b"")
    assert command("record", result.checkpoint_path, "-o", tmp_path / "film.mp4").exit_code == 3


# Environments brought as objects.


@pytest.mark.parametrize(
    "env",
    [Drawn, lambda: Drawn("rgb_array"), lambda **options: Drawn(**options), Drawn("rgb_array")],
    ids=["class", "callable", "callable that takes it", "object"],
)
def test_given_environments_are_filmed(env: Any, tmp_path: Path) -> None:
    model = SAC(env, seed=1, output_dir=tmp_path / "runs", **TINY)
    model.learn(20, progress_bar=False)
    made = model.record(tmp_path / "film.mp4", 2)
    assert len(frames_of(made.path)) == made.frames == sum(made.lengths) + 2


@pytest.mark.parametrize("env", [lambda: Drawn(), Drawn()], ids=["callable", "object"])
def test_a_given_environment_that_does_not_draw_is_refused(env: Any, tmp_path: Path) -> None:
    model = SAC(env, seed=1, output_dir=tmp_path / "runs", **TINY)
    model.learn(20, progress_bar=False)
    with pytest.raises(ConfigError, match="is filmed in the render mode rgb_array; make it with render_mode='rgb_"):
        model.record(tmp_path / "film.mp4")
    with pytest.raises(ConfigError, match="was given as a Python object"):
        load_model(model.checkpoint_path).record(tmp_path / "film.mp4")


def test_the_evaluation_environment_and_the_wrappers_are_those_of_evaluation(tmp_path: Path) -> None:
    model = SAC(
        DRAWN, seed=1, output_dir=tmp_path / "runs", wrappers=[{"TimeLimit": {"max_episode_steps": 2}}],
        eval_env=lambda render_mode=None: Drawn(render_mode, size=48), **TINY,
    )  # fmt: skip
    model.learn(20, progress_bar=False)
    made = model.record(tmp_path / "film.mp4", 2)
    assert made.lengths == [2, 2]
    assert frames_of(made.path, 48).shape[0] == 6


def test_members_of_a_population_are_filmed_one_by_one(tmp_path: Path) -> None:
    model = SAC(DRAWN, seeds=[0, 1], output_dir=tmp_path / "runs", **TINY)
    model.learn(20, progress_bar=False)
    with pytest.raises(ConfigError, match=r"model\.members\[0\]\.record"):
        model.record(tmp_path / "film.mp4")
    assert model.members[1].record(tmp_path / "film.mp4").frames > 3


# What MuJoCo draws with.


@pytest.fixture
def headless(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    return monkeypatch


@pytest.mark.parametrize(
    ("libraries", "working", "chosen"),
    [
        ({"EGL", "OSMesa"}, {"egl"}, "egl"),
        ({"EGL", "OSMesa"}, set(), "osmesa"),
        ({"EGL"}, set(), "egl"),
        ({"OSMesa"}, set(), "osmesa"),
        (set(), set(), None),
    ],
)
def test_the_backend_is_one_that_is_here_and_works(
    libraries: set[str], working: set[str], chosen: str | None, headless: pytest.MonkeyPatch
) -> None:
    headless.setattr(filming.ctypes.util, "find_library", lambda name: name if name in libraries else None)
    headless.setattr(filming, "_works", working.__contains__)
    assert filming.drawing_backend() == chosen
    filming.prepare_drawing()
    assert filming.os.environ.get("MUJOCO_GL") == chosen


def test_the_users_variable_and_the_display_win(headless: pytest.MonkeyPatch) -> None:
    headless.setattr(filming, "_works", lambda name: True)
    headless.setenv("MUJOCO_GL", "osmesa")
    filming.prepare_drawing()
    assert filming.os.environ["MUJOCO_GL"] == "osmesa"
    headless.delenv("MUJOCO_GL")
    headless.setenv("DISPLAY", ":0")
    filming.prepare_drawing()
    assert "MUJOCO_GL" not in filming.os.environ


def test_the_renderer_does_not_keep_sigterm_from_ending_the_process() -> None:
    """SDL replaces the default handlers of a process with its own, which ignore the signal."""
    words = (
        "import signal, time; from rl_training.environments.filming import prepare_drawing; prepare_drawing(); "
        "import pygame; pygame.display.init(); signal.raise_signal(signal.SIGTERM); time.sleep(0.1)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SDL_")}
    done = subprocess.run([sys.executable, "-c", words], env=environment | {"PYTHONPATH": SOURCE}, check=False)
    assert done.returncode == -signal.SIGTERM


def test_mujoco_without_anything_to_draw_with_is_one_line(tmp_path: Path, headless: pytest.MonkeyPatch) -> None:
    model = SAC("Hopper-v5", output_dir=tmp_path / "runs", **TINY)
    model.learn(12, progress_bar=False)
    headless.setattr(filming.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(ConfigError, match=r"Hopper-v5 cannot be filmed: .*apt-get install libegl1 or libosmesa6"):
        model.record(tmp_path / "film.mp4")
    assert only(tmp_path) == ["runs"]


@pytest.mark.slow
def test_mujoco_is_drawn_with_what_is_here(tmp_path: Path) -> None:
    """In a process of its own: what a process draws with cannot be changed."""
    run = SAC("Hopper-v5", output_dir=tmp_path / "runs", **TINY).learn(12, progress_bar=False).run_dir
    target = tmp_path / "film.mp4"
    program = [sys.executable, "-m", "rl_training", "--quiet", "record", run, "-o", target, "--max-steps", "2"]
    environment = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
    done = subprocess.run(program, capture_output=True, text=True, env=environment | {"PYTHONPATH": SOURCE})
    if filming.drawing_backend() is None:
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "apt-get install libegl1 or libosmesa6" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert rate_of(target) == 125
    frames = frames_of(target, 480)
    assert len(frames) == 3
    assert frames.std() > 20  # a checkered floor, not one colour


def test_the_doctor_names_the_rendering_backend(headless: pytest.MonkeyPatch) -> None:
    headless.setattr(filming.ctypes.util, "find_library", lambda name: name if name == "OSMesa" else None)
    assert (doctor.rendering().state, doctor.rendering().text) == (
        "ok",
        "no display: MuJoCo renders with osmesa",
    )
    headless.setattr(filming.ctypes.util, "find_library", lambda name: None)
    assert doctor.rendering().state == "note"
    assert "apt-get install" in doctor.rendering().text
    headless.setenv("MUJOCO_GL", "egl")
    assert doctor.rendering().text == "MUJOCO_GL=egl"


# The page.

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "guides" / "logging.md").read_text(encoding="utf-8")
VIDEOS = PAGE.partition("\n## Videos\n")[2]


def test_the_commands_of_the_page_are_understood() -> None:
    lines = [line.partition("  #")[0] for line in VIDEOS.splitlines() if line.startswith("rl-training ")]
    assert len(lines) == 3
    for line in lines:
        answer = CliRunner().invoke(cli.main, [*shlex.split(line)[1:], "--help"])
        assert answer.exit_code == 0, answer.output


def test_the_program_of_the_page_runs(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```$", VIDEOS, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(program.replace("runs/RUN", str(run_dir)), scope)
    assert len(frames_of(Path("policy.mp4"))) == scope["made"].frames
