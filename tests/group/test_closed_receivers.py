"""A send to a rank that has closed its group well ends at once, and says so, whenever it began."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.functional.point_to_point import isend
from aiodist.testing import run_cluster, run_virtual, spmd
from aiodist.transport import SocketEndpoint
from aiodist.transport.memory import MemoryNetwork
from tests.levels import COSTLY
from tests.support.chaos import Chaos

LARGE = 200_000
"""Elements of 8 bytes: it waits for its receive."""

TEXT = (
    "rank 1 has closed its group: what is sent to it is not received. Have it receive all that is sent to it "
    "before it closes, and send it nothing afterwards"
)

WAYS: dict[str, Callable[[ProcessGroup], Any]] = {
    "tensor": lambda pg: pg.send(np.arange(LARGE), 1),
    "strided": lambda pg: pg.send(np.arange(2 * LARGE)[::2], 1),
    "held": lambda pg: pg.send(np.arange(LARGE), 1, async_op=True),
    "waited": lambda pg: pg.send(np.arange(LARGE), 1, timeout=200).wait(),
    "object": lambda pg: pg.send_object("x" * 200_000, 1),
    "isend": lambda pg: isend(np.arange(LARGE), 1, group=pg),
}
SMALL: dict[str, Callable[[ProcessGroup], Any]] = {
    "small": lambda pg: pg.send(np.arange(3), 1),
    "small object": lambda pg: pg.send_object("x", 1),
    "small strided": lambda pg: pg.send(np.arange(9)[::3], 1),
    "empty": lambda pg: pg.send(np.empty(0), 1),
}


async def told(work: Awaitable[Any]) -> None:
    """The send ends, soon, with what is true; and nothing is broken by it."""
    async with asyncio.timeout(20):
        with pytest.raises(dist.PeerClosed) as caught:
            await work
    assert str(caught.value) == TEXT
    assert caught.value.ranks == (1,)


async def closes_early(pg: ProcessGroup, way: Callable[[ProcessGroup], Any], when: str, whole: bool) -> None:
    """Rank 1 closes; rank 0 sends to it before or after that, and ranks 0 and 2 go on."""
    group: Any = pg if whole else await pg.new_group()
    await group.barrier()
    if pg.rank == 1:
        if when == "connected":
            assert await group.recv_object(0) == "the first"
        if when != "after":
            await asyncio.sleep(0.5)
        await group.aclose()
    elif pg.rank == 0:
        if when == "connected":
            await group.send_object("the first", 1)
        if when == "after":
            with pytest.raises(dist.PeerClosed):
                await group.recv_object(1)
        await told(way(group))
        await told(way(group))  # also what is asked later
        await group.send_object("alive", 2)
        await group.aclose()
    else:
        assert await group.recv_object(0) == "alive"
        await group.aclose()
    if not whole:
        await pg.barrier()


CASES = [
    *((name, when) for name in WAYS for when in ("connected", "first", "after")),
    *((name, "after") for name in SMALL),
]


@pytest.mark.parametrize("whole", [True, False], ids=["world", "group"])
@pytest.mark.parametrize(("way", "when"), CASES)
def test_a_send_to_a_rank_that_closes_ends(way: str, when: str, whole: bool) -> None:
    async def main(pg: ProcessGroup) -> None:
        await closes_early(pg, {**WAYS, **SMALL}[way], when, whole)

    run_virtual(run_cluster(3, main, timeout=300))


@pytest.mark.parametrize("place", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("way", "when", "whole"),
    [
        ("strided", "connected", False),
        ("object", "first", False),
        ("small", "after", False),
        ("strided", "first", True),
        ("object", "connected", True),
        ("small object", "after", True),
    ],
)
async def test_it_ends_over_sockets_and_shared_memory(place: str, way: str, when: str, whole: bool) -> None:
    async def main(pg: ProcessGroup) -> None:
        await closes_early(pg, {**WAYS, **SMALL}[way], when, whole)

    await run_cluster(3, main, timeout=300, endpoint=endpoint_of(place))


def endpoint_of(place: str) -> Callable[[int], SocketEndpoint]:
    loop = asyncio.get_running_loop()
    return lambda rank: SocketEndpoint(loop, rank, "job", b"", boot="one" if place == "shm" else str(rank))


@pytest.mark.slow(COSTLY)
@spmd(3, transport="shm")
async def test_it_ends_between_processes_of_one_host(pg: ProcessGroup) -> None:
    await closes_early(pg, WAYS["tensor"], "connected", whole=False)
    await closes_early(pg, WAYS["object"], "first", whole=False)
    await closes_early(pg, WAYS["tensor"], "connected", whole=True)


@pytest.mark.slow(COSTLY)
@spmd(3, transport="tcp")
async def test_it_ends_between_processes_over_tcp(pg: ProcessGroup) -> None:
    await closes_early(pg, WAYS["tensor"], "connected", whole=False)
    await closes_early(pg, WAYS["object"], "first", whole=False)
    await closes_early(pg, WAYS["tensor"], "connected", whole=True)


# ── what the receiver has taken was sent ─────────────────────────────────────────────────────────────────


async def receives_and_closes(pg: ProcessGroup, rounds: int, elements: int) -> None:
    """Rank 1 receives the last message and closes at once: it was sent."""
    for number in range(rounds):
        group: Any = await pg.new_group()
        data = np.arange(elements) + number
        if pg.rank == 0:
            await group.send(data, 1)
        else:
            place = np.zeros(elements, data.dtype)
            assert await group.recv(place, 0) == 0
            await group.aclose()
            assert np.array_equal(place, data)
        await group.aclose()
    if pg.rank == 0:
        await pg.send(np.arange(elements), 1)
    else:
        await pg.recv(np.zeros(elements, np.int64), 0)


@pytest.mark.parametrize("delay", [0.0, 0.001])
def test_what_was_received_is_not_told_as_lost(delay: float) -> None:
    network = MemoryNetwork(delay=lambda *_: delay)
    run_virtual(run_cluster(2, lambda pg: receives_and_closes(pg, 10, LARGE), network=network))


@pytest.mark.slow(COSTLY)
@spmd(2, transport="shm")
async def test_what_was_received_through_shared_memory_is_not_told_as_lost(pg: ProcessGroup) -> None:
    for elements in (2000, 20_000, 2_000_000):
        await receives_and_closes(pg, 3, elements)


@pytest.mark.slow(COSTLY)
@spmd(2, transport="tcp")
async def test_what_was_received_over_tcp_is_not_told_as_lost(pg: ProcessGroup) -> None:
    for elements in (2000, 20_000, 2_000_000):
        await receives_and_closes(pg, 3, elements)


@pytest.mark.parametrize("delay", [0.0, 0.0005])
def test_both_sides_agree_whenever_the_receiver_closes(delay: float) -> None:
    """A message is on its way when its receiver closes: what was received was sent, and both sides end."""

    async def main(pg: ProcessGroup) -> Any:
        group: Any = await pg.new_group()
        await group.barrier()
        if pg.rank == 0:
            await asyncio.sleep(0.01)
            try:
                async with asyncio.timeout(20):
                    await group.send(np.arange(LARGE), 1)
            except dist.PeerClosed:
                outcome = "refused"
            else:
                outcome = "sent"
            await group.aclose()
        else:
            work = group.recv(np.zeros(LARGE, np.int64), 0, async_op=True)
            await asyncio.sleep(pause)
            async with asyncio.timeout(20):
                await group.aclose()
            error = work.exception()
            assert error is None or type(error) is dist.GroupClosed
            outcome = "received" if error is None else "closed"
        await pg.barrier()
        return outcome

    seen = set()
    for step in range(40):
        pause = step * 0.0005
        network = MemoryNetwork(delay=lambda *_: delay)
        seen.add(tuple(run_virtual(run_cluster(2, main, network=network, timeout=300))))
    assert ("refused", "received") not in seen
    assert {("refused", "closed"), ("sent", "received")} <= seen


# ── who is told ──────────────────────────────────────────────────────────────────────────────────────────


def test_closing_tells_of_sends_that_nobody_can_ask_for() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank == 0:
            pg.send(np.arange(LARGE), 1, async_op=True)
            async with asyncio.timeout(20):
                with pytest.raises(dist.PeerClosed) as caught:
                    await pg.aclose()
            assert str(caught.value) == TEXT
            assert "nobody awaited" in caught.value.__notes__[0]
        else:
            await asyncio.sleep(1)

    run_virtual(run_cluster(2, main, timeout=300))


def test_sends_of_a_batch_end_each_with_its_own() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            with pytest.raises(dist.PeerClosed):
                await pg.recv_object(1)
            async with pg.coalesce():
                works = [pg.send(np.arange(LARGE) + to, to, async_op=True) for to in (1, 2, 1)]
            await told(works[0])
            await works[1]
            await told(works[2])
        elif pg.rank == 2:
            place = np.zeros(LARGE, np.int64)
            await pg.recv(place, 0)
            assert np.array_equal(place, np.arange(LARGE) + 2)

    run_virtual(run_cluster(3, main, timeout=300))


@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_the_end_of_a_member_that_has_closed_ends_what_it_was_taking(how: str) -> None:
    """Its group was closed well, so nothing is broken there: but nothing more is taken either."""
    chaos = Chaos(latency=(0.05, 0.05))

    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        await group.barrier()
        if pg.rank == 1:
            work = group.recv(np.zeros(20 * LARGE, np.int64), 0, async_op=True)
            await asyncio.sleep(0.2)  # rank 0 knows that there is a place
            begins.set()
            await asyncio.sleep(0.03)
            await group.aclose()  # before anything has come
            assert isinstance(work.exception(), dist.GroupClosed)
            await asyncio.sleep(0.5)
            if how == "dies":
                chaos.crash(1)
                await asyncio.sleep(1)
        else:
            await begins.wait()
            await told(group.send(np.arange(20 * LARGE), 1))

    begins = asyncio.Event()
    gone, _ = run_virtual(run_cluster(2, main, processes=chaos, timeout=300, return_exceptions=True))
    assert gone is None


# ── a member that closes while what it has sent waits ────────────────────────────────────────────────────


async def both_close(pg: ProcessGroup, whole: bool) -> None:
    """Each sends what the other never asks for, and closes."""
    group: Any = pg if whole else await pg.new_group()
    await group.barrier()
    work = group.send(np.arange(LARGE) + pg.rank, 1 - pg.rank, async_op=True)
    async with asyncio.timeout(20):
        with pytest.raises(dist.PeerClosed):
            await group.aclose()
    assert isinstance(work.exception(), dist.PeerClosed)
    if not whole:
        await pg.barrier()


@pytest.mark.parametrize("whole", [True, False], ids=["world", "group"])
def test_two_that_close_do_not_wait_for_each_other(whole: bool) -> None:
    run_virtual(run_cluster(2, lambda pg: both_close(pg, whole), timeout=300))


@pytest.mark.slow(COSTLY)
@spmd(2)
async def test_two_processes_that_close_do_not_wait_for_each_other(pg: ProcessGroup) -> None:
    await both_close(pg, whole=False)


@pytest.mark.parametrize("whole", [True, False], ids=["world", "group"])
@pytest.mark.parametrize("source", [0, None])
def test_what_a_closing_member_has_sent_is_received(source: int | None, whole: bool) -> None:
    """Also where it is asked for long after that."""

    async def main(pg: ProcessGroup) -> None:
        group: Any = pg if whole else await pg.new_group()
        await group.barrier()
        if pg.rank == 0:
            for number in range(3):
                group.send(np.full(LARGE, number), 1, tag=number, async_op=True)
            await group.aclose()
        else:
            for number in (2, 0, 1):
                await asyncio.sleep(10)
                place = np.zeros(LARGE, np.int64)
                assert await group.recv(place, source, tag=number) == 0
                assert (place == number).all()
            with pytest.raises(dist.PeerClosed):
                await group.recv(place, source)
        await group.aclose()
        if not whole:
            await pg.barrier()

    run_virtual(run_cluster(2, main, timeout=300))


@pytest.mark.parametrize("asked", ["before", "after", "never"])
def test_the_end_of_a_member_that_closes_ends_what_was_coming(asked: str) -> None:
    """It dies while it closes, with a message under way."""
    chaos = Chaos(latency=(0.05, 0.05))
    place = np.zeros(20 * LARGE, np.int64)

    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        await group.barrier()
        if pg.rank == 0:
            group.send(place + 1, 1, async_op=True)
            closing = asyncio.ensure_future(group.aclose())
            await asyncio.sleep(1)
            if asked == "before":
                begins.set()
                await asyncio.sleep(0.12)  # some of it has left
            chaos.crash(0)
            await closing
        else:
            if asked == "before":
                await begins.wait()
            if asked == "after":
                await asyncio.sleep(5)
            async with asyncio.timeout(30):
                with pytest.raises((dist.PeerLost, dist.PeerClosed)):
                    await group.recv(
                        np.zeros(1) if asked == "never" else np.zeros_like(place),
                        0,
                        tag=int(asked == "never"),
                    )

    begins = asyncio.Event()
    _, failed = run_virtual(run_cluster(2, main, processes=chaos, timeout=300, return_exceptions=True))
    assert failed is None


def test_what_a_member_that_died_had_sent_and_is_lost_is_no_clean_end() -> None:
    """It had closed its group well before, with all that it sent on its way."""
    chaos = Chaos(latency=(0.5, 0.5))
    got: list[int] = []

    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        await group.barrier()
        if pg.rank == 0:
            for number in range(5):
                await group.send(np.array([number]), 1)
            await group.aclose()
            chaos.crash(0)
        else:
            place = np.empty(1, np.int64)
            with pytest.raises(dist.PeerLost, match="its last 4 messages have not come"):
                while True:
                    await group.recv(place, 0)
                    got.append(int(place[0]))

    _, failed = run_virtual(run_cluster(2, main, processes=chaos, timeout=300, return_exceptions=True))
    assert failed is None
    assert got == [0]


@pytest.mark.parametrize("seconds", [1.0, 6.0, 40.0])
def test_what_a_slow_network_brings_after_the_world_was_closed_is_received(seconds: float) -> None:
    takes = {"now": 0.0}
    network = MemoryNetwork(delay=lambda *_: takes["now"])

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            for number in range(5):
                takes["now"] = seconds * (number + 1)
                await pg.send(np.array([number]), 0)
            takes["now"] = 0.0
        else:
            place = np.empty(1, np.int64)
            for number in range(5):
                assert await pg.recv(place, 1) == 1
                assert place[0] == number

    run_virtual(run_cluster(2, main, network=network, timeout=600))


def test_closing_with_thousands_of_receives_takes_each_back_once() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            works = [pg.recv(np.empty(100), 1, async_op=True) for _ in range(3000)]
            works += [pg.recv(np.empty(100), None, tag=1, async_op=True) for _ in range(3000)]
            await pg.aclose()
            assert all(isinstance(work.exception(), dist.GroupClosed) for work in works)

    run_virtual(run_cluster(2, main, timeout=300))


@pytest.mark.slow("seconds of a blocked loop")
@spmd(2)
async def test_what_a_world_that_was_closed_could_not_bring_is_no_clean_end(pg: ProcessGroup) -> None:
    """Closing waits for five seconds; the other rank's loop stands still for eight."""
    groups: list[Any] = [pg, *[await pg.new_group() for _ in range(4)]]
    for group in groups:
        await group.all_gather_object(pg.rank)
    if pg.rank == 1:
        for group in groups:
            for number in range(8):
                group.send(np.full(900, number), 0, async_op=True)
        await pg.aclose()
        return
    await groups[0].recv(np.empty(900, np.int64), 1)
    time.sleep(8)
    for group in groups:
        received = int(group is pg)
        with pytest.raises((dist.PeerClosed, dist.PeerLost)) as caught:
            while True:
                place = np.empty(900, np.int64)
                await group.recv(place, 1)
                assert (place == received).all()
                received += 1
        assert received == 8 or caught.type is dist.PeerLost


@pytest.mark.parametrize("size", [1, 2])
def test_closing_waits_for_nothing_that_a_rank_has_sent_to_itself(size: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        works = [group.send(np.arange(LARGE), pg.rank, tag=tag, async_op=True) for tag in range(2)]
        async with asyncio.timeout(20):
            with pytest.raises(dist.PeerClosed):
                await group.aclose()
        assert all(isinstance(work.exception(), dist.PeerClosed) for work in works)
        await pg.barrier()

    run_virtual(run_cluster(size, main, timeout=300))
