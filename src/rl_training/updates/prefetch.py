"""Prefetching the rows of coming minibatches.

The rows of an update are known in advance: a copy of the learner's generator repeats all random draws of the coming
updates. So rows of a mapped file are read early, and rows in host memory are copied to the GPU while it computes.
The learner's own generator never runs ahead of its updates. Prefetching ends with the call of `Updater.run` that
started it, so a checkpoint between two calls is not affected.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.algorithms.execution import draw
from rl_training.algorithms.trace import Draw, trace_draws
from rl_training.data.sources import BatchSource, TensorSource

# Number of updates whose rows are prefetched together.
BLOCK = 16

Pairs = Sequence[tuple[Learner, TensorSource]]


class Prefetcher(Protocol):
    """Loads the rows of coming updates in advance."""

    def begin(self, count: int) -> None:
        """Start prefetching for the next `count` updates."""
        ...

    def rows(self) -> Tensor | None:
        """Rows `[S, B, width]` of the next update on the learner's device; None if the caller must draw them."""
        ...

    def end(self) -> None:
        """Called after the last update."""
        ...


def prefetcher_for(
    learners: Sequence[Learner], sources: Sequence[BatchSource], batch_size: int
) -> Prefetcher | None:
    """Prefetcher for rows in a mapped file or not on the learner's device; None if prefetching is not possible."""
    found = [source for source in sources if isinstance(source, TensorSource)]
    first, learner = sources[0], learners[0]
    if not isinstance(first, TensorSource) or len(found) < len(sources):
        return None
    if any(source.rows is not first.rows for source in found):
        return None
    if first.generator.device.type != learner.device.type:
        return None
    same_device = first.device.type == learner.device.type
    if same_device and first.ahead is None:
        return None
    look = LookAhead(list(zip(learners, found)), batch_size)
    if same_device:
        return ReadingPrefetcher(look, first)
    return CopyingPrefetcher(look, first, len(sources), batch_size)


class LookAhead:
    """Computes the row indices that coming updates will draw."""

    def __init__(self, pairs: Pairs, batch_size: int) -> None:
        self.pairs, self.batch_size = pairs, batch_size
        self._copies = [torch.Generator(learner.device) for learner, _ in pairs]
        self._draws: dict[Hashable, list[Draw]] = {}
        self._update = 0

    def begin(self) -> None:
        """Start at the learners' current update."""
        self._update = self.pairs[0][0].updates
        for copy, (learner, _) in zip(self._copies, self.pairs):
            copy.set_state(learner.generator.get_state())

    def next(self) -> Tensor:
        """The indices of the next update, `[S, B]`."""
        draws = self._of(self.pairs[0][0].variant(self._update))
        self._update += 1
        found = []
        for copy, (_, source) in zip(self._copies, self.pairs):
            found.append(source.draw(self.batch_size, copy))
            for kind, shape in draws:
                draw(kind, shape, copy)
        return torch.stack(found)

    def agrees(self) -> bool:
        """Whether the states of the learners' generators equal those of the copies."""
        return all(
            torch.equal(copy.get_state(), learner.generator.get_state())
            for copy, (learner, _) in zip(self._copies, self.pairs)
        )

    def _of(self, variant: Hashable) -> list[Draw]:
        if variant not in self._draws:
            learner, source = self.pairs[0]
            rows = torch.zeros((self.batch_size, source.layout.width), device=learner.device)
            self._draws[variant] = trace_draws(learner, variant, rows, source.layout).draws
        return self._draws[variant]


class ReadingPrefetcher:
    """Reads the rows of a mapped file one block of updates before they are drawn."""

    def __init__(self, look: LookAhead, source: TensorSource) -> None:
        self._look, self._source = look, source
        self._left = self._step = 0

    def begin(self, count: int) -> None:
        self._look.begin()
        self._left, self._step = count, 0
        self._read()

    def rows(self) -> None:
        if self._step % BLOCK == 0:
            self._read()
        self._step += 1

    def end(self) -> None:
        assert self._left == 0

    def _read(self) -> None:
        count = min(BLOCK, self._left)
        self._left -= count
        if count and self._source.ahead is not None:
            self._source.ahead(np.concatenate([self._look.next().numpy().reshape(-1) for _ in range(count)]))


class CopyingPrefetcher:
    """Copies rows from host memory to the GPU while it computes, into two alternating blocks.

    Indices are drawn and rows are copied on a separate stream, which does not wait for the updates.
    """

    def __init__(self, look: LookAhead, source: TensorSource, members: int, batch_size: int) -> None:
        self._look, self._source, self._batch_size = look, source, batch_size
        device, shape = source.generator.device, (BLOCK, members, batch_size)
        pin = device.type == "cuda"
        self._index = torch.empty(shape, dtype=torch.int64, pin_memory=pin)
        self._host = [torch.empty((*shape, source.layout.width), pin_memory=pin) for _ in range(2)]
        self._device = [torch.empty((*shape, source.layout.width), device=device) for _ in range(2)]
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._arrived, self._used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))  # type: ignore[no-untyped-call]
        self._left = self._step = 0

    def begin(self, count: int) -> None:
        self._look.begin()
        self._left, self._step = count, 0
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        self._fetch(0)

    def rows(self) -> Tensor:
        block, place = divmod(self._step, BLOCK)
        half, main = block % 2, torch.cuda.current_stream(self._stream.device)
        if place == 0:
            self._used[1 - half].record(main)
            main.wait_event(self._arrived[half])
        if place == BLOCK - 1:  # the updates before this one keep the GPU busy meanwhile
            self._fetch(1 - half)
        self._step += 1
        for _, source in self._look.pairs:
            source.draw(self._batch_size)  # advances the generator; the indices are known
        return self._device[half][place]

    def end(self) -> None:
        if not self._look.agrees():
            raise RuntimeError(
                "the updates drew other random numbers than predicted; set device_memory to avoid this"
            )

    def _fetch(self, half: int) -> None:
        count = min(BLOCK, self._left)
        if count == 0:
            return
        self._left -= count
        with torch.cuda.stream(self._stream):
            self._index[:count].copy_(torch.stack([self._look.next() for _ in range(count)]), non_blocking=True)
        self._stream.synchronize()  # also completes the previous copy from this half
        index = self._index[:count].view(-1)
        if self._source.ahead is not None:
            self._source.ahead(index.numpy())
        self._source.gather(index, out=self._host[half][:count].view(len(index), -1))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._used[half])
            self._device[half][:count].copy_(self._host[half][:count], non_blocking=True)
            self._arrived[half].record(self._stream)
