"""Streams of messages whose receivers lose patience, between real processes and in virtual time."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.base.errors import CollectiveMismatch
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.group.streams import Streams
from tests.levels import COSTLY, few


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("seed", few(range(3), [0]))
@spmd(transport="shm")
async def test_nothing_is_lost_whatever_awaits_are_cancelled(pg: ProcessGroup, seed: int) -> None:
    """Both ranks send and receive at once; awaits lose patience at any moment, and messages of all sizes come
    in between."""
    for part in range(3):
        streams = Streams(pg, 100 * part + seed, 20)
        await streams.run()
        assert streams.lost_patience > 0


@pytest.mark.slow(COSTLY)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nothing_is_lost_in_virtual_time(seed: int) -> None:
    run_virtual(run_cluster(2, lambda pg: Streams(pg, seed, 12).run()))


@pytest.mark.slow(COSTLY)
@spmd(transport="shm")
async def test_one_that_is_cancelled_when_it_has_its_message_gives_it_to_the_next(pg: ProcessGroup) -> None:
    """An await that was busy for long lets the loop turn once it has its result, and is cancelled there."""
    for number in range(200):
        if pg.rank == 0:
            await pg.send(np.full(3, number), 1)
            await pg.send_object({"number": number}, 1)
            assert await pg.recv_object(1) == number
            continue
        for of_objects in (False, True):
            place = np.zeros(3, int)
            receive = pg.recv_object(0) if of_objects else pg.recv(place, 0)
            task = asyncio.ensure_future(receive)
            await asyncio.sleep(0)
            begun = time.monotonic()
            while time.monotonic() < begun + 0.0012:
                pass
            if number % 3:
                task.cancel()
            try:
                result: Any = await task
            except asyncio.CancelledError:
                result = await (pg.recv_object(0) if of_objects else pg.recv(place, 0))
            assert result == ({"number": number} if of_objects else 0)
            assert of_objects or (place == number).all()
        await pg.send_object(number, 0)


@spmd(transport="shm")
async def test_what_does_not_fit_is_a_mismatch(pg: ProcessGroup) -> None:
    for _ in range(3):
        if pg.rank == 0:
            await pg.send(np.arange(4.0), 1)
            await pg.recv(np.zeros(1), 1)
        else:
            await pg.recv(place := np.zeros(4), 0)
            assert (place == np.arange(4.0)).all()
            await pg.send(np.ones(1), 0)
    with pytest.raises(CollectiveMismatch, match=r"float64\[4\]"):
        if pg.rank == 0:
            await pg.send(np.arange(4.0), 1)
            await pg.barrier()
        else:
            await pg.recv(np.zeros(4, np.float32), 0)


@pytest.mark.slow(COSTLY)
@spmd(transport="shm")
async def test_receives_are_served_in_the_order_in_which_they_were_posted(pg: ProcessGroup) -> None:
    """Also where one that has claimed nothing is not awaited yet when the next is posted: from anybody, or of
    any kind."""
    rng = random.Random(5)
    for round_ in range(100):
        order = [rng.choice(["one", "anybody"]) for _ in range(3)]
        if pg.rank == 0:
            for index in range(3):
                await pg.send(np.array([10 * round_ + index]), 1)
            assert await pg.recv_object(1) == round_
        else:
            places = [np.zeros(1, int) for _ in range(3)]
            works = [
                pg.recv(place, 0 if which == "one" else None, async_op=index == 0)
                for index, (which, place) in enumerate(zip(order, places, strict=True))
            ]
            for work in reversed(works):
                await work
            assert [int(place[0]) for place in places] == [10 * round_ + index for index in range(3)]
            await pg.send_object(round_, 0)
