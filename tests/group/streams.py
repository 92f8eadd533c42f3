"""Streams of messages both ways between two ranks, whose receivers lose patience now and then."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np

from aiodist.group import ProcessGroup

SIZES = (1, 3, 100, 1000, 1100, 40_000)
PATIENCE = (0.0, 1e-5, 1e-4, 1e-3, 30.0)


class Streams:
    """One rank's part.

    Args:
        each: messages of each stream.

    Attributes:
        plans: by kind and tag, the sizes of the messages.
        lost_patience: awaits that were cancelled.
    """

    def __init__(self, pg: ProcessGroup, seed: int, each: int) -> None:
        self.pg = pg
        self.rng = random.Random(f"{seed} {pg.rank}")
        plan = random.Random(seed)
        self.plans: dict[tuple[str, int], list[int]] = {
            (kind, tag): [plan.choice(SIZES) for _ in range(each)]
            for kind in ("tensor", "object")
            for tag in (0, 1)
        }
        self.lost_patience = 0

    def content(self, source: int, tag: int, number: int, size: int) -> Any:
        return np.arange(size) * 3 + 1000 * number + 10 * tag + source

    async def run(self) -> None:
        """Send and receive all of them at once."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.send())
            for stream in self.plans:
                tasks.create_task(self.receive(stream))

    async def send(self) -> None:
        """Send all streams, mixed."""
        me, peer = self.pg.rank, 1 - self.pg.rank
        order = [stream for stream, sizes in self.plans.items() for _ in sizes]
        self.rng.shuffle(order)
        numbers = dict.fromkeys(self.plans, 0)
        for kind, tag in order:
            number = numbers[kind, tag]
            numbers[kind, tag] += 1
            content = self.content(me, tag, number, self.plans[kind, tag][number])
            if kind == "tensor":
                await self.pg.send(content, peer, tag)
            else:
                await self.pg.send_object([number, content], peer, tag)
            if self.rng.random() < 0.3:
                await asyncio.sleep(0)

    async def receive(self, stream: tuple[str, int]) -> None:
        """Receive one stream, in order."""
        kind, tag = stream
        peer = 1 - self.pg.rank
        for number, size in enumerate(self.plans[stream]):
            expected = self.content(peer, tag, number, size)
            while True:
                source = peer if self.rng.random() < 0.8 else None
                place = np.zeros(size, int)
                receive: Any = (
                    self.pg.recv(place, source, tag) if kind == "tensor" else self.pg.recv_object(source, tag)
                )
                try:
                    if self.rng.random() < 0.5:
                        async with asyncio.timeout(self.rng.choice(PATIENCE)):
                            result = await receive
                    else:
                        result = await asyncio.wait_for(receive, self.rng.choice(PATIENCE[1:]))
                except TimeoutError:
                    self.lost_patience += 1
                    continue
                if kind == "object":
                    assert result[0] == number
                    place = result[1]
                assert np.array_equal(place, expected)
                break
