"""The fast path of messages and the general one are one: in any mixture, on either side."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aiodist as dist
from aiodist.base.types import Call, Kind, message_signature
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.transport import EAGER_MESSAGE


@given(
    dtype=st.sampled_from(["f4", "u1", "?", "f2", "c16", "i8"]),
    count=st.integers(0, 2**40),
    number=st.integers(0, 2**60),
)
def test_the_signature_of_a_message_is_that_of_its_call(dtype: str, count: int, number: int) -> None:
    kind = np.dtype(dtype)
    assert message_signature(kind, count, number) == Call(Kind.send, number, kind, (count,)).signature


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), tags=st.integers(1, 2))
def test_in_any_mixture_each_message_goes_to_its_receive(seed: int, tags: int) -> None:
    plan = random.Random(seed)
    each = 12
    sizes = [[plan.choice([0, 1, 5, EAGER_MESSAGE // 8, EAGER_MESSAGE // 8 + 1]) for _ in range(each)]] * tags

    async def main(pg: ProcessGroup) -> None:
        rng = random.Random(f"{seed} {pg.rank}")
        works: list[Any] = []
        order = [tag for tag in range(tags) for _ in range(each)]
        rng.shuffle(order)
        counts, places = [0] * tags, []
        for tag in order:
            number = counts[tag]
            counts[tag] += 1
            items = sizes[tag][number]
            content = np.arange(items) * 7.0 + 1000 * number + tag
            more: dict[str, Any] = {"async_op": True}
            if rng.random() < 0.4:
                more["timeout"] = 1000  # the general path
            strided = rng.random() < 0.3
            room = np.zeros(2 * items)[::2] if strided else np.zeros(items)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0, 0.01]))
            if pg.rank == 0:
                room[...] = content
                works.append(pg.send(room, 1, tag, **more))
            else:
                works.append(pg.recv(room, 0, tag, **more))
                places.append((room, content))
            assert (works[-1].op, works[-1].seq) == (("send", "recv")[pg.rank], number)
        for work in works:
            assert await work == (None, 0)[pg.rank]
        for place, content in places:
            assert np.array_equal(place, content)

    run_virtual(run_cluster(2, main))


def test_what_may_not_leave_at_once_goes_the_long_way() -> None:
    async def main(pg: ProcessGroup) -> None:
        data = [np.full(EAGER_MESSAGE // 8, 1.0 + number) for number in range(40)]
        if pg.rank == 0:
            works = [pg.send(array, 1, async_op=True) for array in data]
            assert not works[-1].done()  # the receiver has let so much come, and no more
            for work in works:
                await work
        else:
            await asyncio.sleep(1)
            for array in data:
                place = np.zeros_like(array)
                await pg.recv(place, 0)
                assert np.array_equal(place, array)

    run_virtual(run_cluster(2, main))


@pytest.mark.parametrize("first", ["send", "recv"])
def test_both_sides_are_named_where_they_differ(first: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        with pytest.raises(dist.CollectiveMismatch) as caught:
            if pg.rank == 0:
                await asyncio.sleep(first != "send")
                await pg.send(np.zeros(2), 1)
                await pg.barrier()
            else:
                await asyncio.sleep(first == "send")
                await pg.recv(np.zeros(3), 0)
        assert caught.value.said == {
            0: "send(float64[2], dst=1, tag=0, number=0)",
            1: "recv(float64[3], src=0, tag=0, number=0)",
        }

    run_virtual(run_cluster(2, main))


def test_a_receive_that_waits_is_in_flight_and_drained() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            await asyncio.sleep(5)
            await pg.send(np.arange(3.0), 1)
            await pg.send_object({"late": 1}, 1)
            return
        place = np.zeros(3)
        held = [pg.recv(place, 0, async_op=True), pg.recv_object(0, async_op=True)]
        assert pg.statistics()["operations"]["in_flight"] == 2
        await pg.drain()
        assert [work.result() for work in held] == [0, {"late": 1}]
        assert list(place) == [0, 1, 2]

    run_virtual(run_cluster(2, main))


def test_a_receive_fails_with_its_group() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank == 0:
            await asyncio.sleep(1)
            raise ZeroDivisionError
        held: list[Any] = [pg.recv(np.zeros(3), 0, async_op=True), pg.recv_object(0, async_op=True)]
        for work in held:
            with pytest.raises(dist.GroupAborted, match="ZeroDivisionError"):
                await work
        with pytest.raises(dist.GroupAborted):
            await pg.send(np.zeros(3), 0)

    with pytest.raises(BaseExceptionGroup) as caught:
        run_virtual(run_cluster(2, main))
    assert len(caught.value.exceptions) == 1
