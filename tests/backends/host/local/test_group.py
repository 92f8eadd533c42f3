"""What a group on one host takes back when it breaks, and what it keeps for those who still touch it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiodist._engine.exchange import Exchange, Plan
from aiodist._engine.starter import Starter
from aiodist.backends import handle
from aiodist.backends.base import Operation
from aiodist.backends.host.local import group
from aiodist.backends.host.local.board import CODE, SLOTS, SOURCE
from aiodist.backends.host.local.bulk import Bulk
from aiodist.backends.host.local.group import LocalGroup
from aiodist.backends.release import BuffersInUse
from aiodist.backends.schedules.select import UNKNOWN
from aiodist.backends.work import GroupState
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.errors import GroupBroken
from aiodist.base.types import Call, Kind, ReduceOp
from aiodist.group.numbers import Numbers
from aiodist.observe.recorder.layout import ARRIVED
from tests.observe.recorder.made import a_track

LIMITS = Thresholds(inline=512, block=4096, staging=4096)


class Handle(handle.Handle):
    """In the place of a `Work`."""

    def __init__(self) -> None:
        super().__init__(None, None, True)

    def _driven_by(self, driver: Any) -> None:
        self._driver = driver


class Thread:
    """In the place of `Bulk`: keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[Exchange, Any]] = []

    def submit(self, exchange: Exchange, ended: Any) -> None:
        self.given.append((exchange, ended))

    def wake(self) -> None:
        pass


class Member:
    """One rank's side of a group on one host."""

    def __init__(self, hub: Any, rank: int, limits: Thresholds = LIMITS) -> None:
        self.thread = Thread()
        thread: Any = self.thread
        self.release = BuffersInUse()
        self.group = LocalGroup(hub, thread, self, 77, (0, 1), rank, limits)
        self.calls: list[str] = []
        self.reserved: set[int] = set()
        self.begun: list[Operation] = []

    def broadcast(self, seq: int, array: Any, root: int = 0) -> Operation:
        """Begin one."""

        work: Any = Handle()
        call = Call(Kind.broadcast, seq, array.dtype, array.shape, None, root)
        operation = Operation(call, work, array, array, None, print)
        self.begun.append(operation)
        self.group.begin(operation, array.nbytes)
        return operation

    def reduce(self, seq: int, count: int) -> Any:
        """Begin an all_reduce in the thread's place, on ordinary memory."""

        work: Any = Handle()
        array = np.arange(count) + self.group.board.rank
        call = Call(Kind.all_reduce, seq, array.dtype, array.shape, ReduceOp.SUM)
        operation = Operation(call, work, array, array, None, print)
        self.begun.append(operation)
        self.group.begin(operation, array.nbytes)
        return array

    def wire(self, seq: int, start: Callable[[], None]) -> None:
        """Begin an operation that messages carry."""
        work: Any = Handle()
        nothing = np.empty(0, np.uint8)
        call = Call(Kind.all_to_all, seq, nothing.dtype, nothing.shape, detail="splits")
        operation = Operation(call, work, nothing, nothing, None, print)
        self.begun.append(operation)
        self.group.begin(operation, UNKNOWN, start)

    def word(self, seq: int) -> int:
        """What it says in a number's slot."""
        return self.group.board.slots.word(self.group.board.rank, seq, CODE)

    def retire(self) -> None:
        """The group is gone, and nothing of it holds memory of the segments."""
        self.group.retire()
        for exchange, _ in self.thread.given:
            exchange.drop()
        for operation in self.begun:
            operation.source = operation.target = None
            operation.work._driver = None  # as in a Work that has ended

    # ── what the group tells ──

    def finished(self, operation: Operation) -> None:
        self.calls.append(f"finished {operation.call.seq}")

    def disagreed(self, seq: int, peer: int, theirs: bytes) -> None:
        raise AssertionError(f"rank {peer} disagrees about #{seq}")

    def failed(self, error: Exception) -> None:
        self.calls.append(f"failed {error}")
        self.group.halt()

    def awaits(self, seq: int) -> bool:
        return any(number < seq for number in self.reserved)

    def abort(self) -> None:
        """What a backend does."""
        self.group.halt()
        self.release.when_free(lambda: self.calls.append("released"))


def starter_of(member: Member, numbers: Numbers | None = None) -> Starter:
    """Its fast path."""
    issuer = GroupState(asyncio.get_running_loop(), a_track())

    def note(work: Any) -> Operation:
        return Operation(work.call, work, work._result, work._result, None, print)

    path = member.group.starter(issuer, numbers or Numbers(), note)
    assert path is not None
    return path


def put(hub: Any, count: int) -> Any:
    array = hub.empty((count,), np.dtype(np.int64))
    array[...] = np.arange(count)
    return array


async def test_what_is_halted_is_withdrawn_and_what_has_ended_stays(hubs: Any) -> None:
    local = hubs(2)
    first, second = (Member(hub, rank) for rank, hub in enumerate(local))
    first.broadcast(0, np.arange(50))  # small: its root need not wait
    first.broadcast(1, put(local[0], 1500))  # its root waits until peers have read it there
    first.broadcast(2, put(local[0], 5000))
    first.broadcast(SLOTS, np.arange(50))  # waits for a slot that peers still read
    assert first.calls == ["finished 0"]
    published = [first.word(seq) for seq in range(3)]
    assert all(published)
    first.abort()
    assert first.calls == ["finished 0"]  # the thread has one
    assert [first.word(seq) for seq in range(3)] == [published[0], 0, 0]
    second.broadcast(0, target := np.zeros(50, np.int64))
    assert np.array_equal(target, np.arange(50))
    for seq in (1, 2):
        second.broadcast(seq, np.zeros(1500 if seq == 1 else 5000, np.int64))
    for _ in range(100):
        second.group.progress()
    assert second.calls == ["finished 0"]
    for member in (first, second):
        member.retire()


async def test_nothing_is_published_after_what_broke_the_group(hubs: Any) -> None:
    """What waited for its slot begins, and fails in that call: those that wait behind it do not begin."""
    local = hubs(2)
    first, second = (Member(hub, rank) for rank, hub in enumerate(local))
    for seq in range(2):
        first.broadcast(seq, np.arange(50) + seq)
    first.wire(SLOTS, lambda: first.failed(MemoryError("no room")))
    first.broadcast(SLOTS + 1, put(local[0], 50))
    assert list(first.group._waiting) == [SLOTS, SLOTS + 1]
    for seq in range(2):
        second.broadcast(seq, np.zeros(50, np.int64))
    second.wire(SLOTS, lambda: None)
    before = [first.word(seq) for seq in range(2)]
    await turns(first)
    assert first.calls == ["finished 0", "finished 1", "failed no room"]
    assert [first.word(seq) for seq in range(2)] == [0, before[1]]
    assert not first.group.board.all_finished(SLOTS)
    assert first.group.board.hub.words[first.group.board.at // 8] == 1  # not finished: it failed
    for member in (first, second):
        member.retire()


async def test_operation_on_the_fast_path_succeeds_no_more_once_members_disagree(hubs: Any) -> None:
    """An earlier one differs: whoever awaits a later one meanwhile has no result, though all published it."""
    local = hubs(2)
    group = [Member(hub, rank) for rank, hub in enumerate(local)]
    paths = [starter_of(member) for member in group]
    started = [
        [
            path.start(Kind.all_reduce, np.arange(count) + rank, None, True, ReduceOp.SUM)
            for count in (4 + rank, 3)
        ]
        for rank, path in enumerate(paths)
    ]
    later = started[0][1]
    assert later is not None
    group[0].group.halt()
    waiting = later.__await__()
    next(waiting)  # it has polled
    assert not later.done()
    for member in group:
        member.retire()


def driver_of(work: Any) -> Any:
    """What brings it on while it is awaited."""
    return work._driver


async def test_work_that_goes_on_is_driven_by_no_operation_that_has_ended(hubs: Any) -> None:
    """A part of it has ended. What carried that out may carry out another's operation now, in the thread."""
    first, second = (Member(hub, rank) for rank, hub in enumerate(hubs(2)))
    part = first.broadcast(0, np.zeros(50, np.int64), 1)
    drives: Any = part.work
    assert type(driver_of(drives)) is Exchange
    second.broadcast(0, np.arange(50), 1)
    await turns(first, second)
    assert first.calls == ["finished 0"]
    assert driver_of(drives) is None
    first.wire(1, lambda: None)  # it goes on by messages, which nobody polls for
    drives = first.begun[-1].work
    assert type(driver_of(drives)) is Exchange
    second.wire(1, lambda: None)
    await turns(first, second)
    assert first.group.statistics()["running"] == 0
    assert driver_of(drives) is None
    for member in (first, second):
        member.retire()


def exchanges() -> int:
    """How many there are."""
    return sum(type(each) is Exchange for each in gc.get_objects())


async def test_operation_that_breaks_its_group_while_it_is_awaited_is_there_until_the_await_is(
    hubs: Any,
) -> None:
    local = hubs(2)
    first, second = (Member(hub, rank, Thresholds(direct=1 << 15)) for rank, hub in enumerate(local))
    gc.collect()
    others, found = exchanges(), []
    work: Any = starter_of(first).start(Kind.all_reduce, np.arange(2000), None, True, ReduceOp.SUM)
    second.reduce(0, 2000)
    local[1].words[second.group.board.at // 8 + SLOTS + SOURCE] = (len(local[1].view) - 8) << 1

    def failed(_error: Exception) -> None:
        first.group.halt()
        first.group.forget()
        work._driven_by(None)  # as in a Work that has failed
        found.append(exchanges() - others)

    first.failed = failed  # type: ignore[method-assign, assignment]
    next(work.__await__())
    assert found == [2]  # the other member's, and the one that goes on when this has returned
    for member in (first, second):
        member.retire()


async def test_await_after_the_segment_is_gone_looks_nowhere(hubs: Any) -> None:
    """A world that is abandoned goes before its groups."""
    local = hubs(2, poll=0.001)
    members = [Member(hub, rank) for rank, hub in enumerate(local)]
    work: Any = starter_of(members[0]).start(Kind.barrier, None, None, True)
    assert members[0].group.board.complete()
    next(work.__await__())  # it has found all regions
    await asyncio.sleep(0)  # and may poll again
    for memory in local[0].memories.values():
        memory.shared.release()
    local[0].shared.release()
    next(work.__await__())
    assert not work.done()
    for member in members:
        member.retire()


@pytest.mark.parametrize("seen", [False, True])
async def test_array_that_is_read_only_at_the_end_breaks_the_group(hubs: Any, seen: bool) -> None:
    """The result was to be copied there. Else nobody would be told, and nothing would ever end."""
    first, second = (Member(hub, rank) for rank, hub in enumerate(hubs(2)))
    array = np.arange(8).reshape(2, 4).T
    work: Any = starter_of(first).start(Kind.all_reduce, array, None, True, ReduceOp.SUM)
    if seen:
        first.group.note_all()
    array.flags.writeable = False
    starter_of(second).start(Kind.all_reduce, np.arange(8).reshape(4, 2), None, True, ReduceOp.SUM)
    next(work.__await__())
    assert first.calls == ["failed assignment destination is read-only"]
    assert not work.done()  # it fails with the group
    for member in (first, second):
        member.retire()


async def test_thread_says_when_all_have_come(hubs: Any) -> None:
    """Else it looks as if an operation had waited for its peers until its end."""
    local = hubs(2)
    first, second = (Member(hub, rank) for rank, hub in enumerate(local))
    bulk = Bulk(local[0], asyncio.get_running_loop())
    stamps: list[int] = []
    first.reduce(0, 40_000)
    first.begun[-1].happened = stamps.append
    (exchange, _), active = first.thread.given[0], list(first.thread.given)
    assert not bulk._go_on(active, 0.0)
    assert stamps == []
    second.reduce(0, 40_000)
    assert bulk._go_on(active, 0.0)
    assert stamps == [ARRIVED]
    assert not exchange.ended and active
    assert not bulk._go_on(active, 0.0)  # the other's thread does not go on
    assert stamps == [ARRIVED]
    for member in (first, second):
        member.retire()


async def test_error_in_the_thread_withdraws_the_operation_too(hubs: Any) -> None:
    local = hubs(2)
    first = Member(local[0], 0)
    first.broadcast(0, put(local[0], 5000))
    exchange, ended = first.thread.given[0]
    assert first.word(0)
    first.release.when_free(lambda: first.calls.append("released"))
    ended(exchange, ValueError("an array that cannot be read"))
    assert first.calls == ["failed an array that cannot be read", "released"]
    assert first.word(0) == 0
    first.retire()


async def test_staging_is_given_back_when_the_thread_has_let_go(hubs: Any) -> None:
    """The group is closed while its thread still fills staging for peers that are gone, too."""
    local = hubs(2)
    first, second = (Member(hub, rank) for rank, hub in enumerate(local))
    first.broadcast(0, np.arange(5000))
    exchange, ended = first.thread.given[0]
    before = local[0].taken()
    second.retire()
    first.abort()
    first.retire()
    assert local[0].taken() == before
    assert first.calls == []
    ended(exchange, None)
    assert first.calls == ["released"]
    assert local[0].taken() < before


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("count", [2000, 40_000])
async def test_data_that_lies_nowhere_is_the_fault_of_who_says_so(hubs: Any, short: bool, count: int) -> None:
    local = hubs(2)
    first, second = (Member(hub, rank, Thresholds(direct=1 << 15)) for rank, hub in enumerate(local))
    path = starter_of(first) if short else None
    if path is None:
        first.reduce(0, count)
    else:
        assert path.start(Kind.all_reduce, np.arange(count), None, True, ReduceOp.SUM)
    second.reduce(0, count)
    board = second.group.board
    at = len(local[1].view) - 8
    local[1].words[board.at // 8 + SLOTS + SOURCE] = at << 1
    await turns(first)
    (said,) = first.calls
    assert said.startswith("failed rank 1 says that its data lies where it has no memory to share")
    for member in (first, second):
        member.retire()


COUNT = 100_000
"""Elements: 800,000 bytes, a megabyte of staging, on the loop."""

ON_THE_LOOP = Thresholds(direct=0, inline=1 << 20)


def take_all(hub: Any) -> list[int]:
    """Pieces of a segment, until there is no room."""
    taken = []
    for nbytes in (1 << 20, 1 << 13):
        while at := hub.stage(nbytes):
            taken.append(at)
    return taken


async def turns(*members: Member) -> None:
    """Let all go on."""
    for _ in range(20):
        await asyncio.sleep(0)
        for member in members:
            member.group.progress()


async def test_operations_have_room_one_after_the_other_whatever_users_take(
    hubs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    local = hubs(2, nbytes=8 << 20)
    first, second = (Member(hub, rank, ON_THE_LOOP) for rank, hub in enumerate(local))
    take_all(local[0])
    arrays = [[member.reduce(seq, COUNT) for seq in range(4)] for member in (first, second)]
    assert list(first.group._waiting) == [1, 2, 3]  # the first has what the group keeps for itself
    assert second.group._waiting == {}
    assert [record.getMessage()[:44] for record in caplog.records] == [
        "all_reduce(int64[100000], SUM) #1 waits for "
    ]
    await turns(first, second)
    assert first.calls == second.calls == [f"finished {seq}" for seq in range(4)]
    assert all(np.array_equal(array, np.arange(COUNT) * 2 + 1) for each in arrays for array in each)
    for member in (first, second):
        member.retire()


async def test_what_comes_later_does_not_have_the_room_of_what_came_before(hubs: Any) -> None:
    """Else ranks that begin operations in another order would wait for each other."""
    local = hubs(2, nbytes=8 << 20)
    first, second = (Member(hub, rank, ON_THE_LOOP) for rank, hub in enumerate(local))
    taken = [take_all(hub) for hub in local]
    assert all(taken)
    first.reserved.add(0)
    first.reduce(1, COUNT)
    assert list(first.group._waiting) == [1]
    second.reduce(0, COUNT)
    second.reduce(1, COUNT)
    await turns(first, second)
    assert list(first.group._waiting) == list(second.group._waiting) == [1]
    first.reserved.clear()
    first.reduce(0, COUNT)
    assert list(first.group._waiting) == [1]
    await turns(first, second)
    assert first.calls == second.calls == ["finished 0", "finished 1"]
    for member in (first, second):
        member.retire()


async def test_group_that_keeps_nothing_waits_until_something_is_given_back(hubs: Any) -> None:
    local = hubs(2, nbytes=4 << 20)
    kept = local[0].empty((3 << 20,), np.dtype(np.uint8))
    first, second = (Member(hub, rank, ON_THE_LOOP) for rank, hub in enumerate(local))
    arrays = [member.reduce(0, COUNT) for member in (first, second)]
    await turns(first, second)
    assert first.calls == second.calls == []
    assert list(first.group._waiting) == [0]
    assert kept.size
    del kept
    for _ in range(100):  # nobody has to ask
        await asyncio.sleep(0)
    assert first.calls == second.calls == ["finished 0"]
    assert all(np.array_equal(array, np.arange(COUNT) * 2 + 1) for array in arrays)
    for member in (first, second):
        member.retire()


async def test_operation_that_can_never_have_room_breaks_the_group_and_says_what_to_do(hubs: Any) -> None:
    local = hubs(2, nbytes=1 << 20)
    first = Member(local[0], 0, ON_THE_LOOP)
    with pytest.raises(GroupBroken, match=r"needs 1048576 bytes of shared memory.*ulimit -v"):
        first.reduce(0, COUNT)
    first.retire()
    gc.collect()  # the error's frames look at memory


async def test_the_fast_path_leaves_to_the_general_one_what_can_never_have_room(hubs: Any) -> None:
    limits = Thresholds(direct=0, inline=1 << 30)
    first, second = (Member(hub, rank, limits) for rank, hub in enumerate(hubs(2, nbytes=1 << 20)))
    numbers = Numbers()
    path = starter_of(first, numbers)
    assert path.start(Kind.all_reduce, np.arange(1000), None, True, ReduceOp.SUM) is not None
    assert path.start(Kind.all_reduce, np.arange(COUNT), None, True, ReduceOp.SUM) is None
    assert numbers.issued == 1  # it has not raised, and has taken no number
    for member in (first, second):
        member.retire()


@pytest.mark.parametrize("roots", [(0, 0), (0, 1)])
async def test_slots_that_are_passed_over_are_compared_before(hubs: Any, roots: tuple[int, int]) -> None:
    first, second = (Member(hub, rank) for rank, hub in enumerate(hubs(2)))
    told: list[int] = []
    for member, root in ((first, roots[0]), (second, roots[1])):
        member.disagreed = lambda seq, peer, theirs: told.append(seq)  # type: ignore[method-assign]
        member.broadcast(3, np.arange(4), root)
    await turns(first, second)
    assert first.calls == second.calls == ["finished 3"]
    assert first.group.board.slots.unseen == [3]
    for member in (first, second):
        member.group.skip(3 + SLOTS)
    await turns(first, second)
    assert not first.group.board.slots.unseen and not second.group.board.slots.unseen
    assert set(told) == ({3} if roots == (0, 1) else set())
    for member in (first, second):
        member.retire()


async def test_plans_that_are_forgotten_need_no_collector(hubs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_PLANS", 3)
    members = [Member(hub, rank, ON_THE_LOOP) for rank, hub in enumerate(hubs(2))]
    gc.collect()
    gc.disable()
    try:
        for seq in range(7):
            arrays = [member.reduce(seq, 10 + seq) for member in members]
            await turns(*members)
            assert all(np.array_equal(array, np.arange(10 + seq) * 2 + 1) for array in arrays)
            for member in members:
                member.begun[-1].work._driver = None  # as in a Work that has ended
        assert sum(type(each) is Plan for each in gc.get_objects()) == 2  # the seventh, on each rank
    finally:
        gc.enable()
    for member in members:
        member.retire()


async def test_only_what_may_have_a_slot_is_looked_at(hubs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each look would cost more, the more operations are in flight."""
    first, second = (Member(hub, rank) for rank, hub in enumerate(hubs(2)))
    for seq in range(500):
        first.broadcast(seq, np.arange(4) + seq)
    looks: list[int] = []
    free = first.group.board.free

    def look(seq: int) -> bool:
        looks.append(seq)
        return free(seq)

    monkeypatch.setattr(first.group.board, "free", look)
    first.group.progress()
    assert looks == list(range(SLOTS, 2 * SLOTS))
    for seq in range(500):
        second.broadcast(seq, target := np.zeros(4, np.int64))
        second.group.progress()
        first.group.progress()
        assert np.array_equal(target, np.arange(4) + seq)
    assert first.calls == second.calls == [f"finished {seq}" for seq in range(500)]
    for member in (first, second):
        member.retire()
