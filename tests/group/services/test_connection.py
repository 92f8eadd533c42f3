"""What is sent on a connection leaves in an order that the other side can read."""

from __future__ import annotations

import asyncio

import pytest

from aiodist.group.services.connection import Connection
from aiodist.group.services.outbox import AT_ONCE
from aiodist.net.wire.calls import PIECE, Says, frame
from aiodist.transport.line import MemoryLine


async def test_that_a_large_frame_is_dropped_is_told_before_the_next_one_begins() -> None:
    """Else the other side has one unfinished frame too many, and ends the connection with all its calls."""
    loop = asyncio.get_running_loop()
    mine, theirs = MemoryLine.pair(loop, 0, 0)
    came: list[int] = []
    ended: list[object] = []
    last: asyncio.Future[None] = loop.create_future()

    def take(kind: int, number: int, _: object) -> None:
        if kind == Says.CANCEL:
            there.forget(number)
        came.append(number)
        if len(came) == AT_ONCE + 2 or ended:
            last.set_result(None)

    def end(why: object) -> None:
        ended.append(why)
        if not last.done():
            last.set_result(None)

    here = Connection(loop, mine, lambda *_: None, end, lambda: None)
    there = Connection(loop, theirs, take, end, lambda: None)
    for number in range(1, AT_ONCE + 2):
        here.send_in_turn(number, Says.CALL, number, bytes(8 * PIECE))
    await asyncio.sleep(0)  # a part of each of the first has left
    small = AT_ONCE + 2
    here.send(frame(Says.CALL, small), many=4)  # others may leave with it
    here.drop(1, 1)
    here.send(frame(Says.CANCEL, 1))
    await last
    assert not ended
    assert sorted(came) == list(range(1, small + 1)) and came[:2] == [small, 1]
    here.kill()
    there.kill()


async def test_an_error_of_who_takes_a_frame_ends_the_connection() -> None:
    """The frames that came with it are lost, so both sides are told."""
    loop = asyncio.get_running_loop()
    mine, theirs = MemoryLine.pair(loop, 0, 0)
    ended: list[object] = []
    told: asyncio.Future[object] = loop.create_future()

    def take(*_: object) -> None:
        raise ValueError("no mistake of the other side")

    here = Connection(loop, mine, lambda *_: None, told.set_result, lambda: None)
    there = Connection(loop, theirs, take, ended.append, lambda: None)
    with pytest.raises(ValueError, match="no mistake"):
        theirs.received(frame(Says.CALL, 1) + frame(Says.CALL, 2))
    assert there.over
    assert ended == ["an error inside aiodist"]
    assert await told == "its connection ended without goodbye"
    assert here.over
