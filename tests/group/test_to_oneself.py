"""Messages of a rank to itself: as all others, and without a connection."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.transport import EAGER_MESSAGE

SIZES = (1, EAGER_MESSAGE // 8, EAGER_MESSAGE // 8 + 1, 300_000)
"""Elements of float64: small messages are copied at once, larger ones wait for their receive."""


@pytest.mark.parametrize("size", [1, 2])
async def test_whichever_side_is_first_and_from_anybody(size: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        me = pg.rank
        for count in SIZES:
            sent, into = np.arange(count, dtype=np.float64) + me, np.zeros(count)
            for source in (me, None):
                work = pg.send(sent, me, async_op=True)
                assert await pg.recv(into, source) == me
                await work
                assert np.array_equal(into, sent)
                into[:] = 0
                receive = pg.recv(into, source, async_op=True)
                await pg.send(sent, me)
                assert await receive == me
                assert np.array_equal(into, sent)
        assert pg.statistics()["links"]["outgoing"] < pg.size

    await run_cluster(size, main)


async def test_objects_and_tensors_are_apart_and_tags_too() -> None:
    async def main(pg: ProcessGroup) -> None:
        me = pg.rank
        for data in (b"small", b"x" * 1_000_000):
            works = [pg.send_object((tag, data), me, tag, async_op=True) for tag in (1, 0)]
            tensor = pg.send(np.array([5.0]), me, 1, async_op=True)
            assert await pg.recv_object(me) == (0, data)
            assert await pg.recv_object_from(tag=1) == (me, (1, data))
            await asyncio.gather(*works)
            assert await pg.recv(np.zeros(1), me, 1) == me
            await tensor

    await run_cluster(2, main)


async def test_strided_read_only_and_shared_memory() -> None:
    async def main(pg: ProcessGroup) -> None:
        me = pg.rank
        for count in (4, 40_000):
            sent = np.arange(2.0 * count).reshape(count, 2)[:, 1]
            sent.flags.writeable = False
            room = np.zeros((2, count))
            work = pg.send(sent, me, async_op=True)
            await pg.recv(room.T[:, 1], me)
            await work
            assert np.array_equal(room[1], sent)
            assert not room[0].any()
            with pytest.raises(dist.UsageError, match="read-only"):
                pg.recv(sent, me)
            same = np.arange(float(count))
            work = pg.send(same, me, async_op=True)
            await pg.recv(same, me)
            await work
            assert np.array_equal(same, np.arange(float(count)))

    await run_cluster(2, main)


async def test_in_coalesce_blocks_and_batches() -> None:
    async def main(pg: ProcessGroup) -> None:
        me = pg.rank
        into = np.zeros((2, 9000))
        async with pg.coalesce():
            pg.recv(into[0], me)
            pg.send(np.full(9000, 7.0), me)
        assert (into[0] == 7).all()

    await run_cluster(2, main)


async def test_a_cancelled_receive_leaves_its_message_to_the_next() -> None:
    async def main(pg: ProcessGroup) -> None:
        me = pg.rank
        for data in (1, b"x" * 1_000_000):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pg.recv_object(me), 0.01)
            waiting = asyncio.ensure_future(_received(pg))
            await asyncio.sleep(0)
            sent = pg.send_object(data, me, async_op=True)
            waiting.cancel()
            assert await pg.recv_object(me) == data
            await sent

    await run_cluster(2, main)


async def _received(pg: ProcessGroup) -> Any:
    return await pg.recv_object(pg.rank)


async def test_a_mismatch_is_found() -> None:
    async def main(pg: ProcessGroup) -> None:
        work = pg.send(np.zeros(3), pg.rank, async_op=True)
        said = (
            r"rank 0: send\(float64\[3\], dst=0, tag=0, number=0\) to itself, "
            r"and recv\(float32\[3\], src=0, tag=0, number=0\) at tests/\S+ for it"
        )
        with pytest.raises(dist.CollectiveMismatch, match=said):
            await pg.recv(np.zeros(3, np.float32), pg.rank)
        await work  # it was copied

    await run_cluster(1, main)


def test_what_nobody_receives_waits_for_its_timeout_and_a_receive_as_long_as_it_likes() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.send(np.zeros(3), pg.rank, tag=9)  # is copied; nobody ever receives it
        receive = pg.recv(np.zeros(3), pg.rank, async_op=True)
        await asyncio.sleep(1000)
        assert not receive.done()
        with pytest.raises(dist.CollectiveTimeout, match="no matching send or recv was seen") as caught:
            await pg.send(np.zeros(300_000), pg.rank, tag=1)
        assert caught.value.missing == ()
        with pytest.raises(dist.CollectiveTimeout):
            await receive

    run_virtual(run_cluster(1, main))


def test_receives_from_anybody_end_when_all_others_have_closed() -> None:
    """A message to oneself that was sent before still comes, and alone there is always one who may send."""

    async def main(pg: ProcessGroup) -> None:
        alone = await pg.new_group([pg.rank], use_local_synchronization=True)
        assert alone is not None
        if pg.rank:
            await alone.aclose()
            return
        lonely = alone.recv_object(async_op=True)
        await pg.send_object("mine", 0, tag=2)
        with pytest.raises(dist.PeerClosed):
            await pg.recv_object()
        assert await pg.recv_object(tag=2) == "mine"
        await pg.send_object("again", 0, tag=4)
        assert await pg.recv_object_from(tag=4) == (0, "again")
        await alone.send_object("alone", 0)
        assert await lonely == "alone"
        await alone.aclose()

    run_virtual(run_cluster(2, main))
