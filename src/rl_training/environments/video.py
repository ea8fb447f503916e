"""Writing frames to a video file with ffmpeg; the file is either complete or absent."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.formats.files import new_file, require_new
from rl_training.errors import ConfigError, MissingDependencyError

_EVEN = "pad=ceil(iw/2)*2:ceil(ih/2)*2"  # most players need an even width and height
_PALETTES = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"
# A GIF has delays in hundredths of a second, and players show a frame with a delay below two for ten. So frames are
# dropped above 50 frames per second, and the speed stays the same.
_FASTEST_GIF = 50
_MOST_FPS = 1000


def _arguments(suffix: str, fps: Fraction) -> list[str]:
    """ffmpeg's arguments for a format."""
    if suffix == ".gif":
        slower = f"fps={_FASTEST_GIF}," if fps > _FASTEST_GIF else ""
        # Each frame has its own palette, which ffmpeg's comparison with the previous frame ignores.
        return ["-vf", slower + _PALETTES, "-gifflags", "-offsetting-transdiff", "-loop", "0"]
    codec = ["-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p"]
    return ["-vf", _EVEN, *codec, "-movflags", "+faststart"]


def video_target(path: str | os.PathLike[str]) -> Path:
    """`path`, if a video can be written there: a supported suffix, a writable folder, no existing file, ffmpeg."""
    target = Path(path).expanduser()
    if target.suffix.lower() not in (".mp4", ".gif"):
        raise ConfigError(f"{target}: a video ends in .mp4 or .gif")
    require_new(target, ConfigError)
    _ffmpeg()
    return target


def _ffmpeg() -> str:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise MissingDependencyError(
            "a video needs imageio-ffmpeg, which is not installed; pip install imageio-ffmpeg pygame-ce"
        ) from None
    try:
        found: str = imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise MissingDependencyError(
            f"a video needs ffmpeg, which imageio-ffmpeg does not have for this machine ({error}); install ffmpeg"
        ) from None
    return found


def checked_fps(fps: float) -> Fraction:
    """`fps` as a fraction; raises if it is out of range."""
    if not (math.isfinite(fps) and 0 < fps <= _MOST_FPS):
        raise ConfigError(f"fps must be > 0 and <= {_MOST_FPS}, got {fps}")
    return Fraction(fps).limit_denominator(1000)


class Video:
    """Writes frames `[H, W, 3]` of bytes, all of the same size."""

    def __init__(self, path: Path, fps: Fraction) -> None:
        self.frames = 0
        self._path = path
        self._fps = fps
        self._shape: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`

    @property
    def seconds(self) -> float:
        return float(self.frames / self._fps)

    def add(self, frame: NDArray[Any]) -> None:
        if self._process is None:
            self._shape = frame.shape
            self._process = self._start()
        if frame.shape != self._shape:
            raise ConfigError(f"a frame has the shape {list(frame.shape)}, the first had {list(self._shape)}")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(frame, np.uint8).data)
        except BrokenPipeError:
            raise self._failure() from None
        self.frames += 1

    def finish(self) -> None:
        """Wait until ffmpeg has written all frames."""
        if self._process is None:
            raise ConfigError("no frame was drawn")
        self._process.communicate()
        if self._process.returncode != 0:
            raise self._failure()

    def close(self) -> None:
        """Release ffmpeg; kill it if it has not finished."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
                self._process.communicate()
            self._process = None
        self._stderr.close()

    def _start(self) -> subprocess.Popen[bytes]:
        height, width = self._shape[:2]
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(self._fps), "-i", "-"]
        encoding = _arguments(self._path.suffix.lower(), self._fps)
        return subprocess.Popen(  # noqa: S603
            [_ffmpeg(), "-v", "error", *raw, "-an", *encoding, f"file:{self._path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,  # Ctrl-C must not reach it; `close` ends it
        )

    def _failure(self) -> ConfigError:
        """The error with the last line of ffmpeg's output."""
        assert self._process is not None
        self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        cause = lines[-1] if lines else f"exit code {self._process.returncode}"
        return ConfigError(f"{self._path.name}: cannot be written: ffmpeg: {cause}")


@contextmanager
def new_video(target: Path, fps: Fraction) -> Iterator[Video]:
    """A video that is moved to `target` if the block succeeds; an existing file is never replaced."""
    with new_file(target, ConfigError) as staged:
        video = Video(staged, fps)
        try:
            yield video
            video.finish()
        finally:
            video.close()
