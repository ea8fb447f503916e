"""Every failure of a command is one line and an exit code; `--debug` adds the traceback.

An interruption is not a failure: its line shows how to resume and does not begin with `error:`.

0 done · 1 unexpected, or an environment that failed · 2 usage, configuration, memory · 3 checkpoint or data set ·
4 diverged · 5 a selection abstained · 129 SIGHUP · 130 SIGINT · 143 SIGTERM
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer
import typer.core

from rl_training.display.output import flags, one_line, prepare_streams, warn
from rl_training.errors import RLTrainingError, device_error, escaped
from rl_training.platforms import stop_handler
from rl_training.runs.signals import TrainingInterrupted

_USAGE = 2


# The commands in the order of the help.
_COMMANDS = (
    *("train", "resume", "finetune", "evaluate", "eval", "predict", "record", "export"),
    *("runs", "report", "plot", "prune", "sweep", "work", "status", "study", "tune"),
    *("dataset", "ope", "select", "algos", "configs", "check-env", "doctor"),
)


class OneLineGroup(typer.core.TyperGroup):
    """A command group that exits with the code of the error that a command raised."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_COMMANDS.index)

    def main(self, *args: Any, **options: Any) -> Any:
        prepare_streams()
        flags.debug = flags.quiet = False
        with _one_line_warnings():
            raise SystemExit(self._run(*args, **{**options, "standalone_mode": False}))

    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        for command in () if found is None else (found, *getattr(found, "commands", {}).values()):
            _without_types_of_flags(command.get_params(ctx))
        return found

    def _run(self, *args: Any, **options: Any) -> int:
        try:
            result = super().main(*args, **options)
            sys.stdout.flush()
            return result if isinstance(result, int) else 0
        except (KeyboardInterrupt, typer.Abort):
            return 130
        except BrokenPipeError:
            # The reader closed the pipe; keep the interpreter from raising again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except Exception as error:
            if flags.debug:
                print(escaped("".join(traceback.format_exception(error))), end="", file=sys.stderr)
            code, text = _describe(error)
            print(text, file=sys.stderr, flush=True)
            return code


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Exit with 128 + N after a signal N, once the block or the decorated command has cleaned up.

    The handler raises KeyboardInterrupt, because an environment that calls `sys.exit` is a failure of its own.
    """
    received: list[int] = []

    def stop(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        raise KeyboardInterrupt

    try:
        with stop_handler(stop):
            yield
    except KeyboardInterrupt:
        sys.exit(128 + next(iter(received), signal.SIGINT))


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Remove `<bool>` from the flags in `parameters`, for the help."""
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return parameters


def _describe(error: Exception) -> tuple[int, str]:
    """Return exit code and message."""
    if isinstance(error, TrainingInterrupted):
        return error.exit_code, one_line(error)
    if isinstance(error, RLTrainingError):
        return error.exit_code, f"error: {one_line(error)}"
    # typer has its own copy of click's classes in some versions, so usage errors are recognised by a method.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
            return _USAGE, str(error.format_message())
        command = context.command_path if context is not None else "rl-training"
        if (option := getattr(error, "option_name", None)) in ("--quiet", "--debug"):
            return _USAGE, f"error: {option} goes before the command: rl-training {option} …"
        message = one_line(error.format_message()).removeprefix("Invalid value: ").rstrip(".")
        return _USAGE, f"error: {message}{_settings_hint(error)}; see {command} --help"
    if isinstance(error, MemoryError):
        return _USAGE, f"error: out of memory: {one_line(error) or 'an allocation failed'}; use smaller settings"
    message = device_error(error) or one_line(error)
    return 1, f"error: unexpected {type(error).__name__}: {message}; --debug shows where"


def _settings_hint(error: Exception) -> str:
    """A hint for a user who wrote `--learning-rate 1e-3` for `--set learning_rate=1e-3`."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ != "NoSuchOption" or context is None:
        return ""
    takes_settings = any("--set" in parameter.opts for parameter in context.command.params)
    return "; a setting is given with --set NAME=VALUE" if takes_settings else ""


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Print warnings of libraries in our format while a command runs."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("warning: %(message)s"))
    logger = logging.getLogger("rl_training")
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: warn(str(message))
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
