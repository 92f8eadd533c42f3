"""Floods by a member: messages, groups, places that nobody ever uses. Memory is bounded, and work goes on."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiodist.base.environment.tuning import EAGER_BUDGET
from aiodist.base.errors import Evicted, PeerLost
from aiodist.group import ProcessGroup
from aiodist.net.wire.frame import HEADER, Type, pack
from aiodist.testing import spmd
from aiodist.transport.base import EAGER_SHARES, REMEMBERED
from aiodist.transport.receiving import Incoming
from aiodist.transport.stream import StreamLink
from tests.helpers import core_of, host_of
from tests.levels import COSTLY, MORE, few

COUNT = 200_000
LIMIT = 24 << 20
"""Bytes that a flood may cost its victim; without bounds it was 60 MiB and more."""

LARGE = 100_000  # bytes of a message that is never eager


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def write(channel: Any, frames: bytes) -> None:
    """Put frames without payloads on a channel's connection, behind all that was said there."""
    for start in range(0, len(frames), HEADER):
        channel.link.post(frames[start : start + HEADER])


def many(header: bytes, count: int, place: str) -> bytes:
    """A frame so many times, each with another number in the field that `place` names."""
    at, size = {"context": (8, 8), "seq": (16, 8)}[place]
    frames = bytearray(header * count)
    for number in range(count):
        start = number * len(header) + at
        frames[start : start + size] = struct.pack("<Q", 1 << 40 | number)
    return bytes(frames)


async def connected(pg: ProcessGroup) -> tuple[Any, Any]:
    """The channels with the other rank, to it and from it, with their links up."""
    for src in (0, 1):
        if pg.rank == src:
            await pg.send(np.zeros(LARGE, np.uint8), 1 - src)
        else:
            await pg.recv(np.empty(LARGE, np.uint8), src)
    endpoint = host_of(pg).resources.endpoint
    return endpoint.outgoing(1 - pg.rank), endpoint.incoming(1 - pg.rank)


async def still_talk(pg: ProcessGroup) -> None:
    """Messages of every kind pass each way: small, large, of any size, from anybody."""
    for src in (0, 1):
        for number, nbytes in enumerate((8, LARGE)):
            sent = np.arange(nbytes, dtype=np.int64) + src
            if pg.rank == src:
                await pg.send(sent, 1 - src, number)
                await pg.send_object({"n": number}, 1 - src, number)
            else:
                into = np.empty(nbytes, np.int64)
                assert await pg.recv(into, None, number) == src
                assert (into == sent).all()
                assert await pg.recv_object(src, number) == {"n": number}
    assert (await pg.all_reduce(np.full(4, pg.rank + 1))).tolist() == [3] * 4


FLOODS = {
    "offers in groups that there are not": (pack(Type.OFFER, total=LARGE), "context"),
    "offers under a tag that nobody receives": (pack(Type.OFFER, 0, 99, total=LARGE), "seq"),
    "small offers": (pack(Type.OFFER, 0, 99, total=8), "seq"),
    "places for messages that nobody sends": (pack(Type.READY, 0, 99, total=LARGE), "seq"),
    "places in groups that there are not": (pack(Type.READY, total=LARGE), "context"),
    "credit in groups that there are not": (pack(Type.CREDIT, word=1 << 40, total=0), "context"),
}


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("flood", few(FLOODS, ["small offers"]))
@pytest.mark.parametrize("transport", few(["tcp", "shm"], ["shm"]))
@spmd()
async def test_a_flood_costs_little_and_stops_nothing(pg: ProcessGroup, transport: str, flood: str) -> None:
    outgoing, incoming = await connected(pg)
    header, place = FLOODS[flood]
    if place == "seq":
        header = header[:8] + struct.pack("<Q", core_of(pg).roster.context) + header[16:]
    before = resident()
    if pg.rank:
        write(incoming if flood.startswith(("places", "credit")) else outgoing, many(header, COUNT, place))
    await still_talk(pg)
    assert resident() - before < (LIMIT if pg.rank == 0 else 1 << 40)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("transport", few(["tcp", "shm"], ["tcp"]))
@spmd()
async def test_groups_that_there_are_not_share_one_budget(pg: ProcessGroup, transport: str) -> None:
    """Their messages cannot be forgotten, so who sends more than its channel may is lost."""
    outgoing, _ = await connected(pg)
    budget = EAGER_BUDGET * EAGER_SHARES
    header = pack(Type.EAGER, nbytes=0, total=0)
    fits = budget // HEADER - 10
    before = resident()
    if pg.rank:
        write(outgoing, many(header, fits, "context"))
        outgoing.spent_all += fits * HEADER  # as if they had been sent by it
    await still_talk(pg)
    assert resident() - before < (LIMIT if pg.rank == 0 else 1 << 40)
    if pg.rank:
        write(outgoing, many(header, 20, "seq"))
        with pytest.raises(Evicted, match=f"more than {budget} bytes were sent before they were asked for"):
            while True:
                await pg.barrier()
        return
    with pytest.raises(PeerLost, match="more than"):
        while True:
            await pg.barrier()


@pytest.mark.slow(MORE)
@spmd(transport="tcp")
async def test_a_program_may_have_as_much_in_flight_as_it_likes(pg: ProcessGroup) -> None:
    """None of this is an attack: sends before receives, receives before sends, more than is remembered."""
    count = 3 * REMEMBERED
    for sender in (0, 1):
        numbers = np.arange(count)
        if pg.rank == sender:
            works: list[Any] = [
                pg.send(numbers[n : n + 1], 1 - sender, n % 7, async_op=True) for n in range(count)
            ]
            await pg.barrier()
        else:
            await pg.barrier()
            into = np.empty(count, int)
            works = [pg.recv(into[n : n + 1], sender, n % 7, async_op=True) for n in range(count)]
        for work in works:
            await work
        if pg.rank != sender:
            assert (into == numbers).all()
    assert host_of(pg).channels.crowded == {1 - pg.rank}


async def test_small_frames_do_not_hold_the_loop() -> None:
    """What was read at once is limited by the work that it makes, not by its bytes alone."""
    mine, theirs = socket.socketpair()
    for sock in (mine, theirs):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    link = StreamLink(asyncio.get_running_loop(), mine)
    receiver = Incoming(1, lambda *_: None, lambda *_: None)
    receiver.attach(link)
    theirs.send(many(pack(Type.OFFER, 7, 1, total=LARGE), 1500, "seq"))
    turns = 0
    while len(receiver.pending(7, 1)) < 1500:
        before = len(receiver.pending(7, 1))
        link.poll()
        turns += 1
        assert len(receiver.pending(7, 1)) - before <= 1000
    assert turns > 1
    receiver.kill()
    theirs.close()
