"""Silent connections wait, few at a time and not for long, and keep nobody out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from aiodist.net import admission as module
from aiodist.net.admission import MOST, Admission, places


class House:
    """An `Admission`, and what it did with the connections that came."""

    def __init__(self, most: int) -> None:
        self.entered: asyncio.Queue[socket.socket] = asyncio.Queue()
        self.turned_away: list[str] = []
        self.admission = Admission(asyncio.get_running_loop(), self._enter, self._away, most)
        self.visitors: list[socket.socket] = []

    def _enter(self, sock: socket.socket, deadline: float) -> None:
        assert deadline <= asyncio.get_running_loop().time() + module.PATIENCE
        self.entered.put_nowait(sock)

    async def words(self) -> bytes:
        """The bytes of the next connection that entered."""
        with await self.entered.get() as sock:
            return sock.recv(10)

    def _away(self, sock: socket.socket, why: str) -> None:
        self.turned_away.append(why)

    def visit(self, words: bytes = b"") -> socket.socket:
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        theirs.setblocking(False)
        mine.send(words)
        self.visitors.append(mine)
        self.admission.add(theirs)
        return mine


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House(3)
    yield house
    house.admission.close()
    house.admission.close()
    for visitor in house.visitors:
        visitor.close()
    while not house.entered.empty():
        house.entered.get_nowait().close()


async def closed(sock: socket.socket) -> None:
    assert await asyncio.get_running_loop().sock_recv(sock, 10) == b""


async def test_who_speaks_at_once_does_not_wait(house: House) -> None:
    house.visit(b"hello")
    assert not house.entered.empty()
    assert await house.words() == b"hello"
    assert len(house.admission) == 0


async def test_who_speaks_later_enters_then(house: House) -> None:
    visitor = house.visit()
    assert len(house.admission) == 1
    visitor.send(b"hello")
    assert await house.words() == b"hello"
    assert len(house.admission) == 0


async def test_who_hangs_up_enters_and_is_found_out(house: House) -> None:
    house.visit().close()
    assert await house.words() == b""


async def test_the_longest_silent_makes_room(house: House) -> None:
    crowd = [house.visit() for _ in range(5)]
    assert len(house.admission) == 3
    await closed(crowd[0])
    await closed(crowd[1])
    assert house.turned_away == ["more than 3 connections say nothing"] * 2
    house.visit(b"a peer")
    assert await house.words() == b"a peer"
    crowd[4].send(b"another")
    assert await house.words() == b"another"


async def test_silence_has_an_end(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    first = house.visit()
    await asyncio.sleep(0)
    second = house.visit()
    await closed(first)
    await closed(second)
    assert house.turned_away == ["it said nothing for 0.01 s"] * 2
    third = house.visit()  # the timer runs again
    await closed(third)


async def test_closing_hangs_up_on_all(house: House) -> None:
    visitor = house.visit()
    house.admission.close()
    await closed(visitor)
    assert not house.turned_away


def test_places_leave_descriptors_for_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    for soft, expected in ((1024, 128), (65536, MOST), (64, 16), (-1, MOST)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, soft=soft: (soft, soft))
        assert places() == expected
