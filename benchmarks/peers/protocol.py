"""Messages to a peer: an order, then numbers of updates or observations, each answered with one line of JSON.

    {…}                      the order: what to build; answered when it is built
    100                      make this many updates
    {"act": [[…], …]}        return the actions of the current policy
    {"kernels": 100}         make this many updates; return the kernels they ran: name, number, µs

`Process` is this package's end, `Orders` the peer's. `Turns` pauses a script that has its own training loop. This
module imports neither torch nor this package.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

Order = dict[str, Any]
Rows = list[list[float]]
ROOT = Path(__file__).resolve().parent.parent.parent


def with_paths(*first: Path) -> dict[str, str]:
    """Environment variables of a process that imports from these paths first."""
    paths = [*map(str, first), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class Evaluated:
    """A policy that this package's evaluator plays through its `mode`."""

    def samples(self, deterministic: bool | None) -> bool:
        return False


class Process:
    """A module that another Python interpreter runs; by default a module of this repository."""

    def __init__(
        self, python: str, module: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self._name = f"{python} -m {module}"
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process runs
        self._process = subprocess.Popen(
            [python, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=env or with_paths(ROOT),
            cwd=cwd,
            text=True,
        )

    def ask(self, order: Any, within: float | None = None) -> Any:
        """Return the answer to an order; kills the process if there is none after `within` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # the process has ended; its output is raised below
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        if within is not None and not select.select([self._process.stdout], [], [], within)[0]:
            self._process.kill()
            raise RuntimeError(f"{self._name} gave no answer in {within:g} s")
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"{self._name} ended with {status}:\n{self._errors.read()[-2000:]}")
        return json.loads(line)

    def run(self, count: int) -> None:
        """Make `count` updates; returns when the device has finished them."""
        self.ask(count)

    def act(self, observations: Rows) -> Any:
        return self.ask({"act": observations})

    def kernels(self, count: int) -> list[Any]:
        """Make `count` updates; return their kernels: name, number and µs of each."""
        found: list[Any] = self.ask({"kernels": count})
        return found

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# The peer's end.


class Ended(Exception):
    """Raised inside a training loop to leave it when no more updates are requested."""


def no_policy(_: Rows) -> Rows:
    raise SystemExit("this program does not act")


# Starts recording kernels; returns a function that ends it and returns a row for each kernel: name, number, µs.
Recorder = Callable[[], Callable[[], list[Any]]]


def no_recorder() -> Callable[[], list[Any]]:
    raise SystemExit("this program records no kernels")


class Orders:
    """Standard input and output; all other output goes to standard error."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._lines: Iterator[Any] = map(json.loads, sys.stdin)
        self.order: Order = next(self._lines)

    def answer(self, answer: Any) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)

    def counts(
        self, act: Callable[[Rows], Rows] = no_policy, record: Callable[[], Any] = no_recorder
    ) -> Iterator[int]:
        """Yield each requested number of updates, after `record` if their kernels are wanted; requests for actions
        are answered in between."""
        for wanted in self._lines:
            if isinstance(wanted, int):
                yield wanted
            elif "kernels" in wanted:
                record()
                yield wanted["kernels"]
            else:
                self.answer(act(wanted["act"]))

    def serve(self, run: Callable[[int], Any], act: Callable[[Rows], Rows] = no_policy) -> None:
        """Make the requested updates; `run` returns when the device has finished them."""
        for count in self.counts(act):
            run(count)
            self.answer(count)


class Turns:
    """Orders for a script that has its own loop, which calls `made` after its updates."""

    def __init__(self) -> None:
        self._orders = Orders()
        self.order = self._orders.order
        self._left = 0
        self._reply: Any = None
        self._wait: Callable[[], Any] = lambda: None
        self._recorded: Callable[[], list[Any]] | None = None
        self._counts: Iterator[int] = iter(())

    def begin(
        self,
        reply: Order,
        wait: Callable[[], Any],
        before: int,
        act: Callable[[Rows], Rows] = no_policy,
        recorder: Recorder = no_recorder,
    ) -> None:
        """Answer the order with `reply` when the loop has made `before` updates, which trigger compilation.

        `wait` returns when the device has finished. `act` returns an action for each observation and uses no random
        numbers. `recorder` records kernels.
        """

        def record() -> None:
            self._recorded = recorder()

        self._reply, self._wait, self._left = reply, wait, before
        self._counts = self._orders.counts(act, record)

    def made(self, count: int) -> None:
        """Report `count` more updates; returns when more are requested."""
        self._left -= count
        if self._left > 0:
            return
        self._wait()
        recorded, self._recorded = self._recorded, None
        self._orders.answer(self._reply if recorded is None else recorded())
        wanted = next(self._counts, None)
        if wanted is None:
            raise Ended
        self._left = self._reply = wanted


class Space:
    """The attributes of a space that the scripts use: shape, bounds and `seed`."""

    def __init__(self, size: int) -> None:
        self.shape = (size,)
        self.high = [1.0] * size

    def seed(self, _: int) -> None:
        """No effect: nothing is drawn from this space."""


def environment(observations: int, actions: int, **more: Any) -> SimpleNamespace:
    """An environment that has only spaces, which is enough for updates."""
    return SimpleNamespace(observation_space=Space(observations), action_space=Space(actions), **more)
