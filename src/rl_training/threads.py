"""CPU threads: how many, and how they wait for each other.

torch shares the larger operations among OpenMP threads, which meet at the end of each. GNU's OpenMP, which torch
brings along, lets those that come first spin there for milliseconds. Beside other work on the same cores a spinning
thread takes the core from the very thread it waits for, and updates become tens of times slower; asleep it does
not.

How many threads there are does not depend on what else the machine does: it decides how sums are split, and so the
last bits of every result.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Networks of this package gain nothing from more threads than this; a user's OMP_NUM_THREADS wins.
_MOST_THREADS = 4
# A user who has set one of these has decided how threads wait.
_DECIDED = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def _ask() -> bool:
    """Ask OpenMP for threads that sleep; it reads its environment once, when torch is imported."""
    if any(name in os.environ for name in _DECIDED):
        return True
    if "torch" in sys.modules:
        return False
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return True


_ASKED_IN_TIME = _ask()


def choose_threads(device: torch.device) -> None:
    """Set how many threads torch uses for training on `device`."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        # Beside a GPU only the acting policy runs here, one row at a time: threads would just wait for each other.
        most = _MOST_THREADS if device.type == "cpu" else 1
        torch.set_num_threads(min(torch.get_num_threads(), most))
    if not _ASKED_IN_TIME and (threads := torch.get_num_threads()) > 1:
        _crowd(threads)


@functools.cache
def _crowd(threads: int) -> None:
    """Shorten the spinning after the fact, for a program that imported torch before this package.

    OpenMP hardly spins once it has more threads than there are cores. A second team, which lies idle as long as the
    thread that called for it lives, makes it so where there are fewer than twice as many cores as threads.
    """
    import torch

    made = threading.Event()

    def call_and_rest() -> None:
        torch.zeros(1 << 20).add_(1.0)  # large enough to be shared
        made.set()
        threading.Event().wait()

    threading.Thread(target=call_and_rest, name="rl-training-idle-team", daemon=True).start()
    made.wait()
