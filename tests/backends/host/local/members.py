"""Members of a local group in one process, whose operations a test resumes step by step."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aiodist._engine.exchange import Exchange
from aiodist.backends.base import Array, Operation
from aiodist.backends.buffers import buffers
from aiodist.backends.host.local.board import CODE, SLOTS, STRIDE, Board
from aiodist.backends.host.local.hub import Hub
from aiodist.backends.host.local.plan import Path, plan_of
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.types import NO_ROOT, Call, Kind, ReduceOp

SMALL = Thresholds(block=4096, staging=4096)
"""Bulk operations of a few pages already have several blocks."""


PLACES = ("own", "strided", "segment", "odd")
"""Where an array lies: "odd" begins at an odd byte of the segment."""


class Member:
    """One rank's side.

    Attributes:
        limits: thresholds.
        disagreed: (number, group rank) of every peer that was seen to do something else.
    """

    def __init__(self, hub: Hub, context: int, size: int, rank: int) -> None:
        self.hub = hub
        self.rank = rank
        self.limits = SMALL
        self.board = Board(hub, context, range(size), rank)
        self.disagreed: list[tuple[int, int]] = []
        self._begun: list[Exchange] = []

    def begin(
        self,
        call: Call,
        source: Any = None,
        target: Any = None,
        path: Path = Path.inline,
        factor: float | None = None,
        source_sizes: Sequence[int] | None = None,
        target_sizes: Sequence[int] | None = None,
    ) -> Exchange:
        """Publish an operation."""
        work: Any = None
        operation = Operation(call, work, source, target, None, lambda _: None, factor=factor)
        operation.source_sizes, operation.target_sizes = source_sizes, target_sizes
        made = buffers(operation, self.rank, self.board.size, joined=False)
        parts = source_sizes if target_sizes is None else target_sizes
        owner: Any = self
        plan = plan_of(self.board, replace(call, detail=""), path, self.limits, owner, parts)
        assert self.board.free(call.seq)
        send, recv = ([], []) if path is Path.meet else (made.send, made.recv)
        exchange = plan.begin(call.seq, send, recv, made, call.signature)
        exchange.operation = operation
        self._begun.append(exchange)
        self.publish(exchange)
        return exchange

    def publish(self, exchange: Exchange) -> None:
        """Publish what was laid out, with the staging that it needs."""
        needs = exchange.needs
        staging = self.board.span(needs, exchange.seq) if needs else 0
        assert not needs or staging
        exchange.publish(staging)

    def step(self, exchange: Exchange) -> bool:
        """Resume an operation; whether it is over."""
        if exchange.ended:
            return False
        if not exchange.advance():
            exchange.compare()
            return False
        self.board.slots.finished(exchange.seq)
        return True

    def withdraw(self, exchange: Exchange) -> None:
        """Its operation has failed here: it is resumed no more, and its memory is the user's."""
        exchange.end()
        self.board.slots.withdraw([exchange.seq])

    def word(self, seq: int, word: int = CODE) -> int:
        """A word of its own slot."""
        return self.board.slots.word(self.rank, seq, word)

    def write(self, seq: int, word: int, value: int) -> None:
        """Write it, as a process that writes nonsense may."""
        self.hub.words[self.board.at // 8 + SLOTS + seq % SLOTS * (STRIDE // 8) + word] = value

    def leave(self) -> None:
        """Leave the group: what peers may read stays until they have left it, too."""
        self.hub.leave(self.board.context, self.board.abandoned, self.board.release)

    def close(self) -> None:
        """Let go of the memory, whatever is still under way."""
        for exchange in self._begun:
            if exchange.operation is not None:
                exchange.operation.source = exchange.operation.target = None
            exchange.end()
            exchange.drop()
        self._begun.clear()
        self.board.close()

    def put(self, array: Array, place: str) -> Array:
        """The same array somewhere else: one of `PLACES`."""
        if place == "segment":
            there = self.hub.empty(array.shape, array.dtype)
        elif place == "odd":
            first = 2 * self.rank + 1
            raw = self.hub.empty((first + array.nbytes,), np.dtype(np.uint8))
            there = raw[first:].view(array.dtype).reshape(array.shape)
        else:
            there = np.zeros(2 * array.size, array.dtype)[:: 2 if place == "strided" else 1][: array.size]
        there[...] = array
        return there

    # ── for the engine ──

    def disagrees(self, seq: int, member: int) -> None:
        self.disagreed.append((seq, member))

    def reuse(self, seq: int) -> None:
        self.look_back([seq])
        self.board.slots.forget_unseen(seq)

    def look_back(self, numbers: Sequence[int]) -> bool:
        found = self.board.look_back(numbers)
        if found is not None:
            self.disagrees(*found)
        return found is not None


def call_of(
    kind: Kind, like: Any, seq: int = 0, reduce: ReduceOp | None = None, root: int = NO_ROOT, detail: str = ""
) -> Call:
    """The call on arrays like this one."""
    return Call(kind, seq, like.dtype, like.shape, reduce, root, detail=detail)


def run(running: Iterable[tuple[Member, Exchange]], seed: int = 0) -> list[tuple[Member, Exchange]]:
    """Resume operations in any order until none goes on → those that are not over."""
    order, left = random.Random(seed), list(running)
    while True:
        moves, count = sum(exchange.moves for _, exchange in left), len(left)
        for entry in order.choices(left, k=2 * len(left)) + left:
            if entry in left and entry[0].step(entry[1]):
                left.remove(entry)
        if len(left) == count and sum(exchange.moves for _, exchange in left) == moves:
            return left
