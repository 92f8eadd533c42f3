"""Numbers that another backend of the group carries out: their slots are free for what comes later."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiodist.backends.base import Operation
from aiodist.backends.host.local import board
from aiodist.backends.host.local.board import CODE, SLOTS
from aiodist.backends.host.local.group import LocalGroup
from aiodist.backends.release import BuffersInUse
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.types import Call, Kind

BYTE = np.dtype(np.uint8)


class Member:
    """One rank's side of a group on one host."""

    def __init__(self, hub: Any, rank: int) -> None:
        bulk: Any = None
        self.release = BuffersInUse()
        self.group = LocalGroup(hub, bulk, self, 77, (0, 1), rank, Thresholds())
        self.over: list[int] = []
        self.reserved: set[int] = set()

    def barrier(self, seq: int) -> None:
        """Begin a barrier."""

        work: Any = SimpleNamespace(_driven_by=print)
        operation = Operation(Call(Kind.barrier, seq, BYTE, (0,)), work, None, None, None, print)
        self.group.begin(operation, 0)

    def finished(self, operation: Operation) -> None:
        self.over.append(operation.call.seq)

    def disagreed(self, seq: int, peer: int, theirs: bytes) -> None:
        raise AssertionError(f"rank {peer} disagrees about #{seq}")

    def failed(self, error: Exception) -> None:
        raise error

    def awaits(self, seq: int) -> bool:
        return any(number < seq for number in self.reserved)


async def until(members: list[Member], over: list[int]) -> None:
    """Let the loops' bells ring until all have finished these."""
    for _ in range(10_000):
        if all(sorted(member.over) == over for member in members):
            return
        await asyncio.sleep(0)
    raise AssertionError([member.over for member in members])


def progress_all(members: list[Member]) -> None:
    """Have all go on until nothing waits."""
    for _ in range(1000):
        waits = [member.group.progress() for member in members]
        if not any(waits):
            return
    raise AssertionError([member.group._skipped for member in members])


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
    assert not first.group.board.all_finished(3)
    second.barrier(3)
    second.group.skip(3 + SLOTS)
    await until([first, second], [3])
    for member in (first, second):
        member.barrier(3 + 2 * SLOTS)
    await until([first, second], [3, 3 + 2 * SLOTS])
    for member in (first, second):
        assert member.group.board.all_finished(3 + SLOTS)
        member.group.retire()


@pytest.mark.parametrize("bits", [7, 8, 16])
async def test_number_that_looks_like_an_old_one_in_its_slot_is_not_taken_for_it(
    hubs: Any, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others carry all the uses of a slot between two that have the same low bits."""
    monkeypatch.setattr(board, "NUMBER_BITS", bits)
    first, second = (Member(hub, rank) for rank, hub in enumerate(hubs(2)))
    again = 3 + (1 << bits)
    for member in (first, second):
        member.barrier(3)
    await until([first, second], [3])
    for seq in range(4, again):
        for member in (first, second):
            member.group.skip(seq)
        if seq % SLOTS == 0:
            await asyncio.sleep(0)
    first.barrier(again)
    for _ in range(1000):  # its slot is free once both have passed over what came before
        await asyncio.sleep(0)
        first.group.progress()
    assert not first.group._waiting
    assert first.over == [3]
    second.barrier(again)
    await until([first, second], [3, again])
    for member in (first, second):
        member.group.retire()


async def test_slot_is_wiped_only_when_nobody_looks_for_what_it_held(hubs: Any) -> None:
    """The first has done all that it has to do with a barrier; the second has yet to look."""
    first, second = (Member(hub, rank) for rank, hub in enumerate(hubs(2)))
    second.barrier(3)
    first.barrier(3)
    assert first.over == [3]
    assert second.over == []
    published = first.group.board.slots.word(0, 3, CODE)
    for seq in range(3 + SLOTS, 3 + 6 * SLOTS, SLOTS):
        first.group.skip(seq)
    assert first.group.board.slots.word(0, 3, CODE) == published != 0
    second.group.progress()
    assert second.over == [3]
    for seq in range(3 + SLOTS, 3 + 6 * SLOTS, SLOTS):
        second.group.skip(seq)
    progress_all([first, second])
    for rank, member in enumerate((first, second)):
        assert member.group.board.slots.word(rank, 3, CODE) == 0
        assert member.group.board.all_finished(3 + 5 * SLOTS)
        member.group.retire()


async def test_numbers_are_passed_over_in_whatever_order_they_come(hubs: Any) -> None:
    """What was numbered early and begins late is skipped late, too."""
    members = [Member(hub, rank) for rank, hub in enumerate(hubs(2))]
    numbers = range(5, 5 + 4 * SLOTS, SLOTS)
    for member, order in zip(members, ([2, 0, 3, 1], [3, 2, 1, 0]), strict=True):
        for index in order:
            member.group.skip(numbers[index])
    progress_all(members)
    for member in members:
        assert member.group.board.all_finished(numbers[-1])
        member.group.retire()


async def test_left_group_skips_nothing(hubs: Any) -> None:
    members = [Member(hub, rank) for rank, hub in enumerate(hubs(2))]
    for member in members:
        member.group.retire()
        member.group.skip(0)
