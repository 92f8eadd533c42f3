"""Bells, sleep and polling of one process."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from aiodist.backends.host.local.hub import _ENTRIES, ASLEEP_BULK, ASLEEP_LOOP
from aiodist.base.errors import UsageError


class Waiter:
    """A group that waits until it is told."""

    def __init__(self, ready: Any) -> None:
        self.ready = ready
        self.asked = 0

    def progress(self) -> bool:
        self.asked += 1
        return not self.ready()

    def failed(self, error: Exception) -> None:
        raise error


async def test_a_loop_that_waits_says_so_and_is_woken_by_the_bell(hubs: Any) -> None:
    mine, theirs = hubs(2)
    woken = asyncio.Event()

    def ready() -> bool:
        if theirs_says():
            woken.set()
        return theirs_says()

    word = theirs.take(64) // 8

    def theirs_says() -> bool:
        return bool(mine.memories[1].words[word])

    waiter = Waiter(ready)
    mine.watch(waiter)
    assert mine.words[ASLEEP_LOOP] == 0
    for _ in range(10):
        await asyncio.sleep(0)
    assert mine.words[ASLEEP_LOOP]
    asked = waiter.asked
    theirs.words[word] = 1
    theirs.ring(theirs.memories.values())
    await woken.wait()
    assert waiter.asked > asked
    assert mine.words[ASLEEP_LOOP] == 0
    assert not mine.waiting


async def rests(*sleepers: Any) -> None:
    """Let the loop turn until all sleep, and nobody wakes any more."""
    for _ in range(1000):
        before = [hub.words[ASLEEP_LOOP] for hub in sleepers]
        for _ in range(20):
            await asyncio.sleep(0)
        if all(before) and before == [hub.words[ASLEEP_LOOP] for hub in sleepers]:
            return
    raise AssertionError("they ring each other for ever")


@pytest.mark.parametrize("size", [2, 3])
async def test_those_who_wait_for_something_else_let_each_other_sleep(size: int, hubs: Any) -> None:
    """Each rings the others when it looks around; who is woken in vain must not do so in turn."""
    local = hubs(size)
    waiters = [Waiter(lambda: False) for _ in local]
    for hub, waiter in zip(local, waiters, strict=True):
        hub.watch(waiter)
    await rests(*local)
    for _ in range(3):
        asked = sum(waiter.asked for waiter in waiters)
        local[0].ring(local[0].memories.values())  # the others are woken, and find nothing
        await rests(*local)
        assert asked < sum(waiter.asked for waiter in waiters) <= asked + 4 * size


async def test_who_is_woken_and_writes_rings_the_others_with_a_fence(hubs: Any) -> None:
    mine, theirs = hubs(2)
    rung: list[int] = []

    class Writer:
        def progress(self) -> bool:
            mine.wake(1)  # as rings do, which may miss one that falls asleep
            return False

        def failed(self, error: Exception) -> None:
            raise error

    mine.watch(Waiter(lambda: False))
    await rests(mine)
    mine.waiting.add(Writer())
    mine.ring = lambda memories: rung.append(len([*memories]))
    os.eventfd_write(mine.segment.bell, 1)
    await rests(mine)
    assert rung and theirs.words[ASLEEP_LOOP] == 0


async def test_a_group_that_raises_costs_the_others_no_look(hubs: Any) -> None:
    (hub,) = hubs(1)
    asked: list[str] = []

    class Failing:
        def progress(self) -> bool:
            raise ValueError("inside")

        def failed(self, error: Exception) -> None:
            asked.append(f"failed: {error}")

    class Going:
        def progress(self) -> bool:
            asked.append("asked")
            return False

        failed = Failing.failed

    for group in (Failing(), Going(), Failing(), Going()):
        hub.watch(group)
    for _ in range(3):
        await asyncio.sleep(0)
    assert sorted(asked) == ["asked", "asked", "failed: inside", "failed: inside"]
    assert not hub.waiting


def heard(hub: Any) -> tuple[bool, bool]:
    """Whether its loop, and its thread, were rung since it was asked last."""
    return hub.segment.hear()  # type: ignore[no-any-return]


async def test_nobody_is_rung_who_is_awake(hubs: Any) -> None:
    mine, theirs = hubs(2)
    asyncio.get_running_loop().remove_reader(theirs.segment.bell)
    mine.ring(mine.memories.values())
    assert heard(theirs) == (False, False)
    theirs.words[ASLEEP_LOOP] = 1
    mine.ring(mine.memories.values())
    assert heard(theirs) == (True, False)


async def test_a_sleeper_is_rung_once_for_each_sleep(hubs: Any) -> None:
    mine, theirs = hubs(2)
    asyncio.get_running_loop().remove_reader(theirs.segment.bell)
    (memory,) = mine.memories.values()
    for sleep in (1, 2):
        theirs.words[ASLEEP_LOOP] = theirs.words[ASLEEP_BULK] = sleep
        mine.ring([memory])
        assert heard(theirs) == (True, False)
        memory.shared.wake_bulk()
        assert heard(theirs) == (False, True)
        for _ in range(3):
            mine.ring([memory])
            mine.wake(1)
            memory.shared.wake_bulk()
        assert heard(theirs) == (False, False)
        theirs.words[ASLEEP_LOOP] = theirs.words[ASLEEP_BULK] = 0
        mine.ring([memory])
        assert heard(theirs) == (False, False)


async def test_memory_that_was_let_go_of_is_not_touched(hubs: Any) -> None:
    mine, theirs = hubs(2)
    theirs.words[ASLEEP_LOOP] = theirs.words[ASLEEP_BULK] = 5
    (memory,) = mine.memories.values()
    asyncio.get_running_loop().remove_reader(theirs.segment.bell)
    memory.shared.release()
    memory.shared.release()
    memory.shared.wake_loop()
    memory.shared.wake_bulk()
    assert heard(theirs) == (False, False)


async def test_every_sleep_has_a_number_of_its_own(hubs: Any) -> None:
    mine, _ = hubs(2)
    slept = []
    mine.watch(Waiter(lambda: False))
    for _ in range(3):
        while not mine.words[ASLEEP_LOOP]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        slept.append(mine.words[ASLEEP_LOOP])
        os.eventfd_write(mine.segment.bell, 1)
        while mine.words[ASLEEP_LOOP] == slept[-1]:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert slept == sorted(set(slept))


async def test_who_falls_asleep_while_a_word_is_written_is_rung_before_the_loop_sleeps(hubs: Any) -> None:
    """A word that is written while the loop goes on is told without a fence: that look may come too early."""
    mine, theirs = hubs(2)
    asyncio.get_running_loop().remove_reader(theirs.segment.bell)
    asked: list[int] = []

    def ready() -> bool:
        heard(theirs)
        asked.append(1)
        theirs.words[ASLEEP_LOOP] = len(asked)  # again and again
        return False

    mine.watch(Waiter(ready))
    while not mine.words[ASLEEP_LOOP]:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert asked
    assert heard(theirs) == (True, False)  # after the last look


@pytest.mark.parametrize("how", ["rung", "its turn ends"])
async def test_who_falls_asleep_while_a_process_that_was_asleep_goes_on_is_rung(hubs: Any, how: str) -> None:
    mine, theirs = hubs(2)
    asyncio.get_running_loop().remove_reader(theirs.segment.bell)
    asked: list[int] = []
    armed = False

    def ready() -> bool:
        if armed:
            heard(theirs)
            if not asked:
                mine.wake(1)  # which looks without a fence
            asked.append(1)
            theirs.words[ASLEEP_LOOP] = len(asked)  # just after the word was written here
        return False

    mine.watch(Waiter(ready))
    while not mine.words[ASLEEP_LOOP] or mine.end_of_turn.due:  # noqa: ASYNC110
        await asyncio.sleep(0)
    theirs.words[ASLEEP_LOOP] = 0
    armed = True
    if how == "rung":
        os.eventfd_write(mine.segment.bell, 1)
    else:
        mine.end_of_turn_soon()
    while not asked or mine.end_of_turn.due:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert heard(theirs) == (True, False)  # after the last look
    assert mine.words[ASLEEP_LOOP]


async def test_polling_has_one_budget_a_turn(hubs: Any) -> None:
    mine, _ = hubs(2, poll=0.1)
    poll = mine.end_of_turn.poll
    assert poll == 0.1
    mine.awake()
    assert mine.end_of_turn.polled
    ends = mine.turn.start_polling(poll)
    while time.monotonic() < ends:
        pass
    mine.turn.stop_polling()
    assert mine.turn.start_polling(poll) <= time.monotonic()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert mine.turn.start_polling(poll) > time.monotonic()
    assert not mine.end_of_turn.polled


async def test_arrays_in_the_home_are_seen_by_peers(hubs: Any) -> None:
    mine, theirs = hubs(2)
    array = mine.empty((100, 3), np.dtype(np.float32))
    array[...] = np.arange(300).reshape(100, 3)
    at = array.__array_interface__["data"][0] - mine.address
    assert 0 < at < len(mine.view)
    seen = theirs.memories[0].bytes[at : at + array.nbytes].view(np.float32)
    assert (seen == np.arange(300)).all()
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1
    assert mine.leases == 1
    del array
    assert mine.leases == 0


async def test_users_arrays_leave_room_for_operations(hubs: Any) -> None:
    (hub,) = hubs(1, nbytes=16 << 20)
    kept = [hub.empty((1 << 20,), np.dtype(np.uint8)) for _ in range(13)]
    taken = hub.taken()
    told = rf"{taken} of {hub.room} are taken, and {hub.room // 8} are kept for operations. Drop arrays"
    with pytest.raises(UsageError, match=f"no room for 2097152 bytes in shared memory: {told}"):
        hub.empty((1 << 20, 2), np.dtype(np.uint8))
    assert hub.taken() == taken
    piece = hub.stage(2 << 20)
    assert piece
    assert hub.stage(1 << 20) == 0
    hub.free(piece)
    assert hub.stage(2 << 20) == piece
    del kept[3]
    assert hub.empty((1 << 20,), np.dtype(np.uint8)).size


async def test_idle_memory_of_groups_is_given_to_whoever_needs_it(hubs: Any) -> None:
    (hub,) = hubs(1, nbytes=16 << 20)

    class Holder:
        """Has half of it, and is done with it."""

        def __init__(self) -> None:
            self.at = hub.stage(8 << 20)

        def reclaim(self) -> None:
            if self.at:
                hub.free(self.at)
                self.at = 0

    holder = Holder()
    hub.boards.add(holder)
    assert hub.stage(12 << 20)
    assert holder.at == 0


async def test_who_waits_for_room_goes_on_when_another_thread_gives_some_back(hubs: Any) -> None:
    (hub,) = hubs(1, nbytes=16 << 20)
    kept = [hub.empty((6 << 20,), np.dtype(np.uint8)) for _ in range(2)]
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class Waiter:
        def progress(self) -> bool:
            if not found.done() and (at := hub.stage(8 << 20)):
                found.set_result(at)
            return not found.done()

        def failed(self, error: Exception) -> None:
            raise error

    hub.watch(Waiter())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not found.done()
    thread = threading.Thread(target=kept.clear)
    thread.start()
    assert await found
    thread.join()


async def test_groups_that_others_have_not_left_cost_little(hubs: Any) -> None:
    """Who takes memory looks at a few of them, however many there are; at all where there is no room else."""
    (hub,) = hubs(1)
    asked: list[int] = []
    gone: set[int] = set()

    def leave(context: int) -> None:
        hub.announce(context, hub.take(1 << 16))

        def abandoned() -> bool:
            asked.append(context)
            return context in gone

        hub.leave(context, abandoned, lambda: None)

    for context in range(1, 401):
        leave(context)
        assert len(asked) <= 4
        asked.clear()
    for _ in range(100):
        hub.take(64)
    assert sorted(asked) == list(range(1, 401))  # each in turn
    gone.add(77)
    asked.clear()
    with pytest.raises(MemoryError):
        hub.take(hub.room)
    assert set(asked) == set(range(1, 401))


async def test_who_leaves_wakes_the_others(hubs: Any) -> None:
    """One of them may wait for room that it can free now."""
    first, second = hubs(2)
    asyncio.get_running_loop().remove_reader(second.segment.bell)
    first.announce(7, first.take(64))
    second.words[ASLEEP_LOOP] = 1
    first.leave(7, lambda: False, lambda: None)
    assert heard(second) == (True, False)


async def test_more_groups_than_the_directory_has_room_for(hubs: Any) -> None:
    (hub,) = hubs(1)
    for context in range(1, _ENTRIES + 1):
        hub.announce(context, 1 << 20)
    with pytest.raises(MemoryError, match="more than 4096 are open"):
        hub.announce(_ENTRIES + 1, 1 << 20)
    hub.leave(7, lambda: True, lambda: None)
    hub.take(64)
    hub.announce(_ENTRIES + 1, 1 << 20)  # in the place of one that is gone


async def test_group_may_be_left_after_the_memory_is_gone(hubs: Any) -> None:
    mine, _ = hubs(2)
    released: list[int] = []
    mine.announce(5, mine.take(64))
    mine.close()
    mine.leave(5, lambda: False, lambda: released.append(5))
    assert released == [5]
    mine.close = lambda: None  # it is already
