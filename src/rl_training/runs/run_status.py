"""Record in run.json how a run ended: finished, stopped, interrupted, failed or diverged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rl_training.errors import ClaimLost, DivergedError, EnvironmentFailure, device_error
from rl_training.experiment import files
from rl_training.runs.session import Session
from rl_training.runs.signals import TrainingInterrupted


@contextmanager
def status(session: Session) -> Iterator[None]:
    """Write the status to run.json when the run ends; if it failed, save a checkpoint first.

    After an error of the GPU nothing is saved; the run resumes from its newest checkpoint.
    """
    try:
        yield
    except ClaimLost:
        raise
    except TrainingInterrupted:
        session.note_in_run(status="interrupted", ended_at=session.clock.ticks)
        raise
    except DivergedError as error:
        raise _diverged(session, error) from error
    except (Exception, SystemExit) as error:
        what = (
            "the environment failed"
            if isinstance(error, EnvironmentFailure)
            else f"{type(error).__name__} was raised"
        )
        lost = device_error(error)
        if lost is None:  # else the state cannot be read, or may be damaged
            _rescue(session, what, error)
        # A run that failed before training resumed keeps its former status.
        status = "failed" if session.begun else session.run.status_before or "failed"
        step = {"ended_at": session.clock.ticks} if session.begun else {}
        session.note_in_run(status=status, cause=f"{type(error).__name__}: {lost or error}", **step)
        raise
    except BaseException:
        session.note_in_run(status="interrupted" if session.begun else session.run.status_before or "interrupted")
        raise
    ended = "stopped" if session.should_stop else "finished"
    session.note_in_run(status=ended, stop_reason=session.stop_reason, ended_at=session.clock.ticks)


def _rescue(session: Session, what: str, cause: BaseException) -> None:
    """Save a checkpoint before `cause` is raised again; if saving fails, only warn."""
    try:
        session.rescue(what)
    except DivergedError as error:
        raise _diverged(session, error) from cause
    except Exception as error:
        session.say(f"warning: not saved: {type(error).__name__}: {error}")


def _diverged(session: Session, error: DivergedError) -> DivergedError:
    """Write divergence.json with the first non-finite tensor; the returned error names the last checkpoint."""
    last = session.checkpoint_path
    report = {
        "message": str(error),
        "first_bad": error.first_bad,
        "step": session.clock.ticks,
        "last_checkpoint": str(last) if last else None,
    }
    with suppress(OSError):  # the error contains the same information
        place = session.run.path / "divergence.json"
        files.replace_atomically(place, files.encode_json(report), session.run.fence)
    cause = f"{type(error).__name__}: {error}"
    session.note_in_run(status="diverged", cause=cause, ended_at=session.clock.ticks)
    advice = f"the last finite checkpoint is {last}" if last is not None else "no checkpoint was written before"
    return DivergedError(f"{error}; {advice}", first_bad=error.first_bad)
