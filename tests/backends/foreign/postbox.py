"""An engine for clusters in one process: ranks put what they send into each other's boxes."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.foreign import Engine, Move, Setup, Task
from aiodist.backends.foreign.engine import Done


class Boxes:
    """All boxes of one loop: by group, sender, receiver and what kind of message it is."""

    def __init__(self) -> None:
        self.sent: dict[Any, deque[tuple[Array, Done]]] = {}
        self.wanted: dict[Any, deque[tuple[Array, Done]]] = {}
        self.rng = random.Random(5)

    def put(self, key: Any, array: Array, done: Done) -> None:
        self.sent.setdefault(key, deque()).append((array, done))
        self._match(key)

    def take(self, key: Any, array: Array, done: Done) -> None:
        self.wanted.setdefault(key, deque()).append((array, done))
        self._match(key)

    def _match(self, key: Any) -> None:
        sent, wanted = self.sent.get(key), self.wanted.get(key)
        while sent and wanted:
            (source, one), (target, other) = sent.popleft(), wanted.popleft()
            if (source.size, source.dtype) != (target.size, target.dtype):
                continue  # like many a library: it hangs
            # Later, and not in order: an engine takes its time, and each operation its own.
            later = self.rng.random() / 1000
            asyncio.get_running_loop().call_later(later, _carry, source, target, one, other)


def _carry(source: Array, target: Array, one: Done, other: Done) -> None:
    np.copyto(target, source.copy())
    one()
    other()


class PostboxEngine(Engine):
    """See the module."""

    name = "postbox"
    capabilities = frozenset({"one-answer", "regroups"})
    boxes: ClassVar[dict[asyncio.AbstractEventLoop, Boxes]] = {}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._boxes = self.boxes.setdefault(setup.loop, Boxes())
        self.opened = False
        self.told: list[bytes] = []
        self.closed = False

    async def open(self) -> None:
        self.told = await self.setup.gather(b"rank %d" % self.setup.rank)
        assert self.told == [b"rank %d" % rank for rank in range(self.setup.size)]
        self.opened = True

    def exchange(self, moves: Sequence[Move], done: Done) -> None:
        assert self.opened
        left = len(moves)

        def one_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        if not moves:
            done()
        me, context = self.setup.rank, self.setup.context
        for sends, peer, array in moves:
            if sends:
                self._boxes.put((context, me, peer, "moves"), array, one_done)
            else:
                self._boxes.take((context, peer, me, "moves"), array, one_done)

    def send(self, task: Task, peer: int, number: int, done: Done) -> None:
        assert task.source is not None
        self._boxes.put((self.setup.context, self.setup.rank, peer, number), task.source, done)

    def recv(self, task: Task, peer: int, number: int, done: Done) -> None:
        assert task.target is not None
        self._boxes.take((self.setup.context, peer, self.setup.rank, number), task.target, done)

    def close(self) -> None:
        self.closed = True


class BesidePostbox(PostboxEngine):
    """One that begins before all have agreed, has no tags, and hears of batches."""

    name = "postbox-beside"
    beside = True
    ready = True
    batches: ClassVar[list[int]] = []

    def send(self, task: Task, peer: int, number: int, done: Done) -> None:
        assert task.source is not None
        self._boxes.put((self.setup.context, self.setup.rank, peer, "untagged"), task.source, done)

    def recv(self, task: Task, peer: int, number: int, done: Done) -> None:
        assert task.target is not None
        self._boxes.take((self.setup.context, peer, self.setup.rank, "untagged"), task.target, done)

    def coalesce(self, tasks: Sequence[tuple[Task, Callable[[], None]]]) -> None:
        self.batches.append(len(tasks))
        super().coalesce(tasks)
