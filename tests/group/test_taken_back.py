"""A receive whose await is cancelled loses no message, whatever the message is doing at that moment."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.transport.memory import MemoryNetwork

SIZES = [8, 800, 8192, 8200, 40_000, 700_000]
"""Bytes: eager, at the limit, offered, of several fragments."""


def content(source: int, number: int, nbytes: int) -> Any:
    return (np.arange(nbytes // 8) * 3 + number * 1000 + source).astype(np.int64)


async def scenario(pg: ProcessGroup, seed: int, nbytes: int, objects: bool, tasks: int, anybody: bool) -> Any:
    """Ranks 1 and 2 send; rank 0 receives in tasks that lose patience, until it has everything."""
    rng = random.Random(f"{seed} {pg.rank}")
    each = 6
    if pg.rank:
        for number in range(each):
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.05, 0.2]))
            data = content(pg.rank, number, nbytes)
            work = (pg.send_object(data, 0) if objects else pg.send(data, 0)) if rng.random() < 0.7 else None
            if work is None:
                work = pg.send_object(data, 0, async_op=True) if objects else pg.send(data, 0, async_op=True)
                if rng.random() < 0.5:
                    continue
            await work
        await pg.drain()
        await pg.barrier()
        return None
    got: list[tuple[int, int]] = []
    want = each * (2 if anybody else 1)

    async def receiver(index: int) -> None:
        mine = random.Random(f"{seed} task {index}")
        while len(got) < want:
            src = mine.choice([None, 1, 2]) if anybody else 1
            place = np.zeros(nbytes // 8, np.int64)
            work: Any = pg.recv_object(src) if objects else pg.recv(place, src)
            try:
                result = await asyncio.wait_for(work, mine.choice([0.0001, 0.0005, 0.001, 0.01, 0.06, 0.3]))
            except TimeoutError:
                if mine.random() < 0.3:
                    await asyncio.sleep(mine.choice([0, 0.001, 0.1]))
                continue
            data = result if objects else place
            source = int(data[0]) % 1000
            number = (int(data[0]) - source) // 1000
            assert np.array_equal(data, content(source, number, nbytes))
            assert objects or result == source
            got.append((source, number))

    running = [asyncio.create_task(receiver(index)) for index in range(tasks)]
    async with asyncio.timeout(60):
        while len(got) < want:
            await asyncio.sleep(0.01)
            for task in running:
                if task.done():
                    task.result()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    if not anybody:  # what rank 2 has sent
        for _ in range(each):
            place = np.zeros(nbytes // 8, np.int64)
            await (pg.recv_object(2) if objects else pg.recv(place, 2))
    await pg.barrier()
    return got


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nbytes=st.sampled_from(SIZES),
    objects=st.booleans(),
    tasks=st.integers(1, 3),
    anybody=st.booleans(),
    delay=st.sampled_from([0.0, 0.0004, 0.02]),
)
def test_no_message_is_lost_or_comes_twice(
    seed: int, nbytes: int, objects: bool, tasks: int, anybody: bool, delay: float
) -> None:
    network = MemoryNetwork(delay=lambda *_: delay) if delay else None
    got, *_ = run_virtual(
        run_cluster(
            3, lambda pg: scenario(pg, seed, nbytes, objects, tasks, anybody), network=network, timeout=100
        )
    )
    sources = [1, 2] if anybody else [1]
    assert sorted(got) == [(source, number) for source in sources for number in range(6)]
    if tasks == 1:
        for source in sources:
            assert [number for of, number in got if of == source] == list(range(6))
