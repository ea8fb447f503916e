"""A reference's own training loop, held up between blocks of updates; imports neither torch nor this package.

The programs `corl_peer` and `unifloral_peer` run a script of a checkout on rows, both given. Where the script asks
for a batch, or evaluates, it is held up until more updates are asked for: standard input has the first order, an
object in JSON, and then per line a number of updates, or `{"act": [[…], …]}`, observations that the policy as it is
then is to act on; each is answered by one line of JSON.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

Order = dict[str, Any]
Rows = list[list[float]]


class Ended(Exception):
    """No more updates are asked for: raised inside the loop, to leave it."""


def no_policy(_: Rows) -> Rows:
    raise SystemExit("this program does not act")


class Turns:
    """The conversation. `wait` returns when the device has done all it was given."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what the script prints is no answer
        self._orders: Iterator[Any] = map(json.loads, sys.stdin)
        self.order: Order = next(self._orders)
        self._left = 0
        self._reply: Any = None
        self._wait: Callable[[], Any] = lambda: None
        self._act: Callable[[Rows], Rows] = no_policy

    def begin(
        self, reply: Order, wait: Callable[[], Any], before: int, act: Callable[[Rows], Rows] = no_policy
    ) -> None:
        """`reply` answers the order once the loop has made `before` updates: what it compiles is compiled then.
        `act` has an action for every observation, and draws no random number."""
        self._reply, self._wait, self._left, self._act = reply, wait, before, act

    def made(self, count: int) -> None:
        """Called by the loop: `count` updates more; returns when others are wanted."""
        self._left -= count
        if self._left > 0:
            return
        self._wait()
        self._say(self._reply)
        for wanted in self._orders:
            if isinstance(wanted, int):
                self._left = self._reply = wanted
                return
            self._say(self._act(wanted["act"]))
        raise Ended

    def _say(self, answer: Any) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)


class Space:
    """What the scripts ask of a space: its shape, its bounds, and to be seeded."""

    def __init__(self, size: int) -> None:
        self.shape = (size,)
        self.high = [1.0] * size

    def seed(self, _: int) -> None:
        """Nothing is drawn from it."""


def environment(observations: int, actions: int, **more: Any) -> SimpleNamespace:
    """Spaces and nothing else: no update needs an environment."""
    return SimpleNamespace(observation_space=Space(observations), action_space=Space(actions), **more)
