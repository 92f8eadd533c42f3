"""One rank of a job in which rank 1 is killed before one of its stores: `killed` runs it.

Operations of every kind and path follow each other, and each result is compared. The other rank prints the
ranks that it has lost; a job in which none dies prints how many operations were right.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if RANK != 1:
    os.environ.pop("AIODIST_KILL", None)
    os.environ.pop("AIODIST_STORES", None)

import numpy as np  # noqa: E402 - the extensions look at the environment when they are loaded

import aiodist as dist  # noqa: E402
from aiodist import _engine  # noqa: E402

ROUNDS = 3
SMALL, MIDDLE, LARGE = 3, 5_000, 300_000


def mine(rank: int, turn: int, items: int) -> np.ndarray[Any, Any]:
    return np.arange(items, dtype=np.int64) + 1_000_000 * (rank + 1) + 7 * turn


async def operations(pg: dist.ProcessGroup) -> int:
    right = 0

    def same(found: Any, wanted: Any) -> None:
        nonlocal right
        assert np.array_equal(found, wanted), f"rank {RANK}: a wrong result after {right} operations"
        right += 1

    room = pg.empty((LARGE,), np.int64)
    for turn in range(ROUNDS):
        for items in (SMALL, MIDDLE, LARGE):
            own, whole = mine(RANK, turn, items), sum(mine(rank, turn, items) for rank in range(SIZE))
            both = np.stack([mine(rank, turn, items) for rank in range(SIZE)])
            same(await pg.all_reduce(own.copy()), whole)
            same(await pg.all_gather(own), both)
            same(await pg.broadcast(own.copy(), turn % SIZE), both[turn % SIZE])
            got = await pg.reduce(own.copy(), (turn + 1) % SIZE)
            if (turn + 1) % SIZE == RANK:
                same(got, whole)
            if items == LARGE:
                room[:] = own
                same(await pg.all_reduce(room), whole)
            peer = 1 - RANK if RANK < 2 else RANK
            place = np.zeros(items, np.int64)
            if RANK == 0:
                await pg.send(own, peer)
                await pg.recv(place, peer)
            else:
                await pg.recv(place, peer)
                await pg.send(own, peer)
            same(place, mine(peer, turn, items))
        await pg.barrier()
        if turn == 1:  # something is withdrawn: an operation of a group that breaks
            sub = await pg.new_group(range(SIZE))
            assert sub is not None
            work = sub.all_reduce(mine(RANK, 0, LARGE), async_op=True) if RANK == 1 else None
            if RANK == 1:
                await asyncio.sleep(0)
            sub.abort()
            if work is not None:
                try:
                    await work
                except dist.GroupBroken:
                    pass
    return right


async def main() -> int:
    assert _engine.compiled is not None
    right = 0
    try:
        async with await dist.init_process_group() as pg:
            right = await operations(pg)
    except dist.PeerLost as lost:
        print("lost", *lost.ranks)
        return RANK
    print("right", right)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
