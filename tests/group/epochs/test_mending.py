"""Torn control links: the higher rank dials again, the other waits, and there is an end to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiodist.base.errors import GroupBroken, PeerLost
from aiodist.group.epochs import mending
from aiodist.group.epochs.mending import OFTEN, Mending
from aiodist.testing import run_virtual


class World:
    """Dials, or does not."""

    def __init__(self, rank: int, answer: Any = None) -> None:
        self.dialed: list[int] = []
        self.attached: list[tuple[int, Any]] = []
        self.given_up: list[tuple[int, str]] = []
        self.unable: list[tuple[int, GroupBroken]] = []
        self.answer = answer
        self.mending = Mending(
            rank,
            self._dial,
            lambda rank, link: self.attached.append((rank, link)),
            lambda rank, cause: self.given_up.append((rank, cause)),
            lambda rank, why: self.unable.append((rank, why)),
        )

    async def _dial(self, rank: int) -> Any:
        self.dialed.append(rank)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.sleep(1e6)
        return self.answer


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_higher_rank_dials() -> None:
    world = World(3, "link")
    world.mending.torn(1)
    world.mending.torn(1)  # told twice, by its own eyes and by the peer
    await turns()
    assert world.dialed == [1] and world.attached == [(1, "link")] and not world.given_up


async def test_the_lower_rank_waits() -> None:
    world = World(1, "link")
    world.mending.torn(3)
    await turns()
    world.mending.stands(3)
    await turns()
    assert not world.dialed and not world.attached and not world.given_up
    assert not world.mending._waiting and not world.mending._tasks
    world.mending.stands(7)  # of a link that was never torn


@pytest.mark.parametrize("rank", [1, 3])
def test_who_does_not_come_back_is_given_up(rank: int) -> None:
    async def main() -> None:
        world = World(rank)
        world.mending.torn(2)
        await asyncio.sleep(mending.PATIENCE - 0.1)
        assert not world.given_up
        await asyncio.sleep(0.2)
        [(lost, cause)] = world.given_up
        assert lost == 2 and "could not be made again" in cause

    run_virtual(main())


async def test_who_cannot_be_dialed_is_given_up_at_once() -> None:
    for error in (PeerLost([1], "gone"), ConnectionRefusedError("refused")):
        world = World(3, error)
        world.mending.torn(1)
        await turns()
        assert [rank for rank, _ in world.given_up] == [1]


def test_who_lacks_a_descriptor_itself_dials_again_and_accuses_nobody() -> None:
    async def main() -> None:
        lack = GroupBroken("rank 3 has no file descriptor left")
        world = World(3, lack)
        world.mending.torn(1)
        await asyncio.sleep(mending.PATIENCE - 0.1)
        assert len(world.dialed) > 10 and not world.unable
        await asyncio.sleep(0.2)
        assert world.unable == [(1, lack)] and not world.given_up
        world.mending.torn(1)
        await asyncio.sleep(0.2)
        world.answer = "link"
        await asyncio.sleep(0.2)
        assert world.attached == [(1, "link")] and len(world.unable) == 1
        world.mending.torn(1)  # later somebody is there, and then nobody: that is another matter
        world.answer = PeerLost([1], "gone")
        await asyncio.sleep(0.2)
        assert [rank for rank, _ in world.given_up] == [1]

    run_virtual(main())


async def test_a_link_that_is_torn_again_and_again() -> None:
    world = World(3, "link")
    for _ in range(OFTEN):
        world.mending.torn(1)
        await turns()
    assert len(world.attached) == OFTEN and not world.given_up
    world.mending.torn(1)
    assert world.given_up == [(1, "its control link was altered on the network path 4 times")]


async def test_closing_ends_it() -> None:
    world = World(3)
    world.mending.torn(1)
    await turns()
    world.mending.close()
    await turns()
    assert not world.mending._tasks and not world.given_up
