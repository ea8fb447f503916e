"""Recording an environment: a wrapper that captures frames, and MuJoCo's rendering backend without a display."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.environments.making import close_env, make_env
from rl_training.environments.user_environments import UserEnvironments, env_error
from rl_training.errors import (
    LONGEST_CAUSE,
    ConfigError,
    EnvironmentFailure,
    MissingDependencyError,
    RLTrainingError,
    cause_of,
    one_line,
)
from rl_training.experiment.config import TrainConfig

MODE = "rgb_array"
_DEFAULT_FPS = 30.0
_CAMERA = "python:<camera>"
# MuJoCo's backends without a display, the preferred one first: library and package of each.
_HEADLESS = {"egl": ("EGL", "libegl1"), "osmesa": ("OSMesa", "libosmesa6")}
NO_BACKEND = (
    "without a display MuJoCo draws with EGL or OSMesa, and neither is installed; apt-get install "
    + " or ".join(package for _, package in _HEADLESS.values())
)

Sink = Callable[[NDArray[np.uint8]], None]


class Camera(gym.Wrapper[Any, Any, Any, Any]):
    """Passes a frame to `sink` after each reset and each step."""

    def __init__(self, env: gym.Env[Any, Any], sink: Sink) -> None:
        super().__init__(env)
        self._sink = sink

    def reset(self, **options: Any) -> Any:
        answer = self.env.reset(**options)
        self._capture()
        return answer

    def step(self, action: Any) -> Any:
        answer = self.env.step(action)
        self._capture()
        return answer

    def _capture(self) -> None:
        name = _name(self.env)
        try:
            frame: Any = self.env.render()
        except gym.error.DependencyNotInstalled as error:
            raise MissingDependencyError(
                f"{name} cannot be drawn ({one_line(error, LONGEST_CAUSE)}); pip install imageio-ffmpeg pygame-ce"
            ) from error
        except RLTrainingError:
            raise
        except Exception as error:
            raise EnvironmentFailure(f"{name} cannot be drawn: {cause_of(error)}{_remedy(self.env)}") from error
        self._sink(_require_frame(name, frame))


def with_progress(sink: Sink, say: Callable[[str], None], every: float = 10.0) -> Sink:
    """`sink` with a progress message every `every` seconds; rendering MuJoCo in software takes minutes."""
    started = reported = time.monotonic()
    frames = 0

    def reporting(frame: NDArray[np.uint8]) -> None:
        nonlocal reported, frames
        sink(frame)
        frames += 1
        if (now := time.monotonic()) >= reported + every:
            reported = now
            say(f"{frames:,} frames in {now - started:.0f} s")

    return reporting


def _name(env: gym.Env[Any, Any]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _require_frame(name: str, frame: Any) -> NDArray[np.uint8]:
    """`frame`, if it is an image `[H, W, 3]` of bytes."""
    form = np.shape(frame)
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or len(form) != 3 or form[2] != 3 or 0 in form:
        kind = f"{frame.dtype} of shape {list(form)}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ConfigError(f"{name} draws {kind}; a frame is uint8 of shape [height, width, 3]")
    return frame


def without_render_mode(config: TrainConfig) -> TrainConfig:
    """`config` without the `render_mode` that the run may have been trained with."""
    kwargs = {key: value for key, value in config.env_kwargs.items() if key != "render_mode"}
    return config.replace(env_kwargs=kwargs)


def filmed(config: TrainConfig, given: UserEnvironments, sink: Sink) -> tuple[TrainConfig, UserEnvironments]:
    """Settings and makers of the same environments with a `Camera` as the outermost wrapper."""
    maker = None if given.env is None else given.env.with_render_mode(MODE)
    kwargs = config.env_kwargs if maker is not None else {**config.env_kwargs, "render_mode": MODE}
    wrappers = {**given.wrappers, _CAMERA: lambda env: Camera(env, sink)}
    config = config.replace(environments="local", env_kwargs=kwargs, wrappers=[*config.wrappers, _CAMERA])
    return config, replace(given, env=maker, wrappers=wrappers)


def frame_rate(config: TrainConfig, given: UserEnvironments) -> float:
    """Frames per second that the environment declares; `ConfigError` if it cannot be recorded."""
    env = make_env(config, given)
    try:
        name, modes = _name(env), env.metadata.get("render_modes") or ()
        fixed = given.env is not None and given.env.with_render_mode(MODE) is given.env
        if MODE not in modes or (fixed and env.render_mode != MODE):
            known = f"it has {', '.join(map(str, modes)) or 'none'}"
            remedy = f"make it with render_mode={MODE!r}" if MODE in modes else known
            raise env_error(f"{name} is filmed in the render mode {MODE}; {remedy}")
        if _is_mujoco(env) and drawing_backend() is None:
            raise env_error(f"{name} cannot be filmed: {NO_BACKEND}")
        fps = env.metadata.get("render_fps")
    finally:
        close_env(env, given)
    return float(fps) if isinstance(fps, int | float) and fps > 0 else _DEFAULT_FPS


def _is_mujoco(env: gym.Env[Any, Any]) -> bool:
    return any(kind.__module__.startswith("gymnasium.envs.mujoco") for kind in type(env.unwrapped).__mro__)


def _remedy(env: gym.Env[Any, Any]) -> str:
    if not _is_mujoco(env):
        return ""
    packages = " or ".join(package for _, package in _HEADLESS.values())
    return f" (MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}; without a display it needs egl or osmesa: {packages})"


def has_display() -> bool:
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def drawing_backend() -> str | None:
    """MuJoCo's rendering backend: `MUJOCO_GL` if set, else the display, else EGL or OSMesa; None if there is none.

    An installed library may lack a device to render on, so if both are installed, the first is tested.
    """
    if chosen := os.environ.get("MUJOCO_GL"):
        return chosen
    if has_display():
        return "display"
    found = [name for name, (library, _) in _HEADLESS.items() if ctypes.util.find_library(library)]
    return next((name for name in found if name == found[-1] or _works(name)), None)


def _works(backend: str) -> bool:
    """Whether a context can be created; tested in another process, because a process can use only one backend."""
    program = f"from mujoco.{backend} import GLContext; c = GLContext(8, 8); c.make_current(); c.free()"
    command, environment = [sys.executable, "-c", program], {**os.environ, "MUJOCO_GL": backend}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def prepare_drawing() -> None:
    """Set `MUJOCO_GL` if the user has not and there is no display; call this before MuJoCo is imported.

    Also keeps SDL (pygame's renderer) from searching for a display and from ignoring SIGTERM, and pygame from
    printing its greeting.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")
    if has_display():
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if not os.environ.get("MUJOCO_GL") and find_spec("mujoco") is not None and (backend := drawing_backend()):
        os.environ["MUJOCO_GL"] = backend
