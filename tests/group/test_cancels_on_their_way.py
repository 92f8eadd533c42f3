"""Receives that are called in the step of a cancel which reaches the receive before them some turns later.

`task.cancel()` goes from task to task, a turn of the loop each. Whenever the messages come, they are received
in order: by the receive that is cancelled, or by the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from aiodist.transport import SocketEndpoint, receiving
from tests.levels import few

TURNS = range(14)
"""Turns of the loop between the sends and the cancel."""

Nested = Callable[[Callable[[], Any]], Any]


async def in_wait_for(receive: Callable[[], Any]) -> None:
    await asyncio.wait_for(receive(), 60)


async def in_task_group(receive: Callable[[], Any]) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(receive())


async def in_two(receive: Callable[[], Any]) -> None:
    await in_task_group(lambda: in_wait_for(receive))


async def in_two_groups(receive: Callable[[], Any]) -> None:
    await in_task_group(lambda: in_task_group(receive))


@pytest.fixture(params=few([None, "here", "there"], [None, "here"]))
def place(request: pytest.FixtureRequest) -> str | None:
    """Where the other rank is: in memory, on this host, on another."""
    where: str | None = request.param
    return where


@pytest.mark.parametrize("kind", ["object", "tensor", "strided"])
@pytest.mark.parametrize(
    "nested", few([in_wait_for, in_task_group, in_two, in_two_groups], [in_task_group, in_two])
)
async def test_messages_stay_in_order(nested: Nested, kind: str, place: str | None) -> None:
    async def main(pg: ProcessGroup) -> None:
        for turns in TURNS:
            if pg.rank == 0:
                await receive_all(pg, nested, kind, turns)
            else:
                await send_all(pg, kind, turns)

    await run_at(place, main)


SIZES = {"small": (7, 1), "large": (40_000, 50_000), "another dtype": (3, 3), "object": (50_000, 0)}
"""Elements of two messages; 0: an object."""


@pytest.mark.parametrize("sizes", few(SIZES, ["small", "large", "object"]))
@pytest.mark.parametrize(
    "nested", few([in_wait_for, in_task_group, in_two_groups], [in_wait_for, in_two_groups])
)
async def test_receives_of_several_sizes_that_are_given_up_fit_later(
    nested: Nested, sizes: str, place: str | None
) -> None:
    """The first is given up at once, the second some turns later, and has its message by then."""
    first, second = SIZES[sizes]

    def message(turns: int, number: int) -> Any:
        size = (first, second)[number]
        if not size:
            return f"{turns} {number}"
        dtype = np.float32 if sizes == "another dtype" and number else np.int32
        return np.arange(size, dtype=dtype) + turns + 100 * number

    async def main(pg: ProcessGroup) -> None:
        for turns in TURNS:
            if pg.rank == 1:
                await pg.recv_object(0, tag=1)
                for number in range(2):
                    data = message(turns, number)
                    await (pg.send_object(data, 0) if type(data) is str else pg.send(data, 0))
            else:
                await receive_both(pg, turns)

    async def receive_both(pg: ProcessGroup, turns: int) -> None:
        got: dict[int, Any] = {}

        async def receive(number: int) -> None:
            wanted = message(turns, number)
            if type(wanted) is str:
                got[number] = await pg.recv_object(1)
            else:
                into = np.zeros_like(wanted)
                await pg.recv(into, 1)
                got[number] = into

        both = [asyncio.create_task(receive(0)), asyncio.create_task(nested(lambda: receive(1)))]
        for _ in range(6):
            await asyncio.sleep(0)
        asking = asyncio.ensure_future(pg.send_object("now", 1, tag=1))
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in both:
            task.cancel()
        await asyncio.wait(both)
        for number in range(2):
            if number not in got:
                await receive(number)
        await asking
        assert all(np.array_equal(got[number], message(turns, number)) for number in range(2))

    await run_at(place, main)


@pytest.mark.parametrize("size", [1, 50_000])
async def test_a_receive_whose_task_is_cancelled_before_it_begins_gets_no_message(
    size: int, place: str | None
) -> None:
    """Whatever its message is: another size is no mismatch."""

    async def main(pg: ProcessGroup) -> None:
        for turns in TURNS:
            if pg.rank == 1:
                await pg.recv_object(0, tag=1)
                await pg.send(np.arange(size) + turns, 0)
            else:
                asking = asyncio.ensure_future(pg.send_object("now", 1, tag=1))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task = asyncio.create_task(pg.recv(np.zeros(100, int), 1))
                task.cancel()
                into = np.zeros(size, int)
                await pg.recv(into, 1)
                await asyncio.wait([task])
                await asking
                assert np.array_equal(into, np.arange(size) + turns)

    await run_at(place, main)


@pytest.mark.parametrize("turns", TURNS)
async def test_a_message_that_was_asked_for_again_and_fits_another_receive_comes(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More was offered than is remembered: the receive that is posted has asked for it, and is given up."""
    monkeypatch.setattr(receiving, "REMEMBERED", 3)
    many = 800  # messages: more than are sent before they are asked for

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            works = [pg.send(np.full(1, number), 0, 1, async_op=True) for number in range(many)]
            works.append(pg.send(np.full(1, -7), 0, 3, async_op=True))
            await pg.send_object("all", 0, tag=9)
            for work in works:
                await work
            return
        for _ in range(9):
            await asyncio.sleep(0)
        task = asyncio.ensure_future(pg.recv(np.zeros(1, np.float64), 1, 3))
        for _ in range(min(turns, 6)):
            await asyncio.sleep(0)
        task.cancel()
        into = np.zeros(1, int)
        await pg.recv(into, 1, 3)
        assert into == -7
        await asyncio.wait([task])
        for number in range(many):
            await pg.recv(into, 1, 1)
            assert into == number
        await pg.recv_object(1, tag=9)

    await run_cluster(2, main)


async def test_what_fits_no_receive_is_a_mismatch_and_its_sender_is_told(place: str | None) -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.CollectiveMismatch, match=r"send\(int64\[50000\].*recv\(int64\[40000\]"):
            await (pg.send(np.arange(50_000), 1) if pg.rank == 0 else pg.recv(np.zeros(40_000, int), 0))

    await run_at(place, main)


async def run_at(place: str | None, main: Callable[[ProcessGroup], Any]) -> None:
    def endpoint(rank: int) -> SocketEndpoint:
        boot = str(rank) if place == "there" else "one"
        return SocketEndpoint(asyncio.get_running_loop(), rank, "job", b"", boot=boot)

    await run_cluster(2, main, endpoint=None if place is None else endpoint)


@pytest.mark.parametrize("ahead", [1, 63, 64, 200])
async def test_receives_that_are_called_ahead_stay_in_order(ahead: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            for number in range(ahead + 4):
                await pg.send_object(number, 0)
            await pg.send_object("all", 0, tag=1)
            return
        works = [pg.recv_object(1) for _ in range(ahead + 1)]
        assert [await work for work in works[:-1]] == [*range(ahead)]
        await pg.recv_object(1, tag=1)
        task = asyncio.ensure_future(works[-1])
        task.cancel()
        assert await pg.recv_object(1) == ahead  # called in the same step
        await asyncio.wait([task])
        assert [await pg.recv_object(1) for _ in range(3)] == [ahead + 1, ahead + 2, ahead + 3]

    await run_cluster(2, main)


def content(kind: str, turns: int, number: int) -> Any:
    """A message; another in each element than any other."""
    return 10 * turns + number if kind == "object" else np.arange(3) * 1000 + 10 * turns + number


async def send_all(pg: ProcessGroup, kind: str, turns: int) -> None:
    await pg.recv_object(0, tag=1)
    for number in range(3):
        data = content(kind, turns, number)
        await (pg.send_object(data, 0) if kind == "object" else pg.send(data, 0))


async def receive_all(pg: ProcessGroup, nested: Nested, kind: str, turns: int) -> None:
    got: list[Any] = []

    async def receive() -> None:
        at = len(got)
        got.append(None)
        if kind == "object":
            got[at] = await pg.recv_object(1)
        else:
            into = np.zeros(3, int) if kind == "tensor" else np.zeros(6, int)[::2]
            await pg.recv(into, 1)
            got[at] = into

    task = asyncio.create_task(nested(receive))
    while not got:  # noqa: ASYNC110 - a turn of the loop each
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # it is suspended in its await
    asking = asyncio.ensure_future(pg.send_object("now", 1, tag=1))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await receive()  # called in the same step
    await asyncio.wait([task])
    while sum(one is not None for one in got) < 3:
        await receive()
    await asking
    whole = [one for one in got if one is not None]
    assert np.array_equal(whole, [content(kind, turns, number) for number in range(3)])
