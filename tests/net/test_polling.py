"""Looking again before sleeping: bounded, given up where it is in vain, and nobody starves."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from aiodist.net import polling
from aiodist.net.polling import Poller
from aiodist.rendezvous import StoreServer, TcpStore
from tests.support.store_client import connection_of


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.looks = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def in_vain(self) -> bool:
        self.now += polling.POLL / 10
        self.looks += 1
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_a_poll_ends_in_time(clock: Clock) -> None:
    poller = Poller(asyncio.get_running_loop())
    assert not poller.poll(clock.in_vain)
    assert 10 <= clock.looks <= 12


async def test_polling_in_vain_becomes_rare_and_success_brings_it_back(clock: Clock) -> None:
    poller = Poller(asyncio.get_running_loop())
    for _ in range(2000):
        poller.poll(clock.in_vain)
        await asyncio.sleep(0)
    assert clock.looks < 20 * 12
    while not poller.poll(lambda: True):
        pass
    assert poller.poll(lambda: True)


async def test_a_loop_that_polls_must_turn(clock: Clock) -> None:
    loop = asyncio.get_running_loop()
    pollers = [Poller(loop), Poller(loop)]  # they share the loop's budget
    assert not pollers[0].overdue()
    clock.now += 2 * polling.TURN
    assert pollers[0].overdue()
    assert pollers[1].overdue()
    await asyncio.sleep(0)
    assert not pollers[1].overdue()


async def test_asking_again_and_again_starves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is found by polling, and yet the loop turns."""
    async with (
        await StoreServer.start("127.0.0.1", 0, "job", b"") as server,
        await TcpStore.connect("127.0.0.1", server.port, "job", b"", 10) as store,
    ):
        await store.check([])
        [served] = server.store.clients.values()
        connection = connection_of(store)

        def poll() -> bool:
            served.read()
            return connection.read()

        monkeypatch.setattr(connection, "poll", poll)
        other = asyncio.ensure_future(asyncio.sleep(0))
        for count in itertools.count(1):
            assert await store.add("n", 1) == count
            if other.done():
                break
