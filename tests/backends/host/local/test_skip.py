"""Numbers that another backend of the group carries out: their slots are free for what comes later."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from aiodist.backends.base import Operation
from aiodist.backends.host.local.board import SLOTS
from aiodist.backends.host.local.group import LocalGroup
from aiodist.environment.thresholds import Thresholds
from aiodist.types import Call, Kind

BYTE = np.dtype(np.uint8)


class Member:
    """One rank's side of a group on one host."""

    def __init__(self, hub: Any, rank: int) -> None:
        bulk: Any = None
        self.group = LocalGroup(hub, bulk, self, 77, (0, 1), rank, Thresholds())
        self.over: list[int] = []

    def barrier(self, seq: int) -> None:
        """Begin a barrier."""

        class Work:
            _driver: Any = None

        work: Any = Work()
        operation = Operation(Call(Kind.barrier, seq, BYTE, (0,)), work, None, None, None, print)
        self.group.begin(operation, 0)

    def finished(self, operation: Operation) -> None:
        self.over.append(operation.call.seq)

    def disagreed(self, seq: int, peer: int, theirs: bytes) -> None:
        raise AssertionError(f"rank {peer} disagrees about #{seq}")

    def failed(self, error: Exception) -> None:
        raise error

    def quietened(self) -> None:
        raise AssertionError


async def until(members: list[Member], over: list[int]) -> None:
    """Let the loops' bells ring until all have finished these."""
    for _ in range(10_000):
        if all(sorted(member.over) == over for member in members):
            return
        await asyncio.sleep(0)
    raise AssertionError([member.over for member in members])


async def test_slots_of_skipped_numbers_are_used_again(hubs: Any) -> None:
    members = [Member(hub, rank) for rank, hub in enumerate(hubs(2))]
    own = [0, SLOTS - 1, SLOTS, SLOTS + 5, 3 * SLOTS + 5, 7 * SLOTS]
    for member in members:  # the first runs ahead as far as it can
        for seq in range(7 * SLOTS + 1):
            if seq in own:
                member.barrier(seq)
            else:
                member.group.skip(seq)
    await until(members, own)
    for member in members:
        member.group.retire()


async def test_slot_that_is_still_read_is_not_given_away(hubs: Any) -> None:
    first, second = (Member(hub, rank) for rank, hub in enumerate(hubs(2)))
    first.barrier(3)
    first.group.skip(3 + SLOTS)
    assert not first.group.board.finished_here(3)
    second.barrier(3)
    second.group.skip(3 + SLOTS)
    await until([first, second], [3])
    for member in (first, second):
        member.barrier(3 + 2 * SLOTS)
    await until([first, second], [3, 3 + 2 * SLOTS])
    for member in (first, second):
        assert member.group.board.finished_here(3 + SLOTS)
        member.group.retire()


async def test_left_group_skips_nothing(hubs: Any) -> None:
    members = [Member(hub, rank) for rank, hub in enumerate(hubs(2))]
    for member in members:
        member.group.retire()
        member.group.skip(0)
