"""The portal: the same calls from synchronous code, on one rank in this process and on several real ones.

Also the program of those processes: `python test_portal.py NAME [asyncio]` runs the function NAME.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dis
import gc
import inspect
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.portal import (
    DiLoCo,
    GradientSync,
    Portal,
    ShardedOptimizer,
    SyncProcessGroup,
    SyncWork,
    facade,
    init_process_group,
    loop_thread,
)
from aiodist.portal.facade import COLLECTIVES, add_methods
from aiodist.portal.loop_thread import Reply
from aiodist.testing.outcome import check
from aiodist.testing.ranks import launch

# Written out: ranks run this file as a script, and find nothing of the other tests.
SLOW = pytest.mark.slow("more of the same")
COSTLY = "half a second of CPU, or more"
LOOPS = ["uvloop", pytest.param("asyncio", marks=SLOW)]


def alone() -> SyncProcessGroup:
    """A world of one."""
    return init_process_group("host", "env://")


def ranks(program: Callable[..., None], size: int, exits: dict[int, int] | None = None, *more: str) -> str:
    """Run a function of this file on real processes; return what rank 0 printed."""
    outcomes = asyncio.run(launch([__file__, program.__name__, *more], size, timeout=120))
    check(outcomes, exits or {})
    return outcomes[0].output


# ── one rank ─────────────────────────────────────────────────────────────────────────────────────────


def test_every_method_of_the_group_is_there() -> None:
    for name, function in inspect.getmembers(ProcessGroup, inspect.isfunction):
        if not name.startswith("_"):
            mirror = getattr(SyncProcessGroup, name)
            assert not inspect.iscoroutinefunction(mirror), name
            assert inspect.getdoc(mirror)
            if name != "aclose":
                parameters = inspect.signature(function).parameters
                assert list(inspect.signature(mirror).parameters) == list(parameters)


def test_a_new_method_appears_by_itself() -> None:
    class Newer(ProcessGroup):
        async def twice(self, value: int) -> int:
            """Twice."""
            return 2 * value

    class Facade(SyncProcessGroup):
        pass

    add_methods(Facade, Newer)
    with alone() as pg:
        pg._group.__class__ = Newer
        facade = Facade(pg.portal, pg._group)
        assert facade.twice(21) == 42
        assert pg.twice(4) == 8  # and what came after the facade was made


def test_results_attributes_and_work() -> None:
    with alone() as pg:
        tensor = np.arange(3.0)
        assert pg.all_reduce(tensor) is tensor
        assert pg.all_gather(tensor).shape == (1, 3)
        assert pg.barrier() is None
        assert (pg.rank, pg.size, pg.ranks, pg.name, pg.backend, pg.epoch) == (0, 1, (0,), "world", "host", 0)
        assert repr(pg) == "<SyncProcessGroup 'world' rank 0 of 1, host, open>"
        work = pg.all_reduce(tensor, async_op=True)
        assert type(work) is SyncWork
        assert work.wait(timeout=60) is tensor
        assert work.wait() is work.result()
        assert work.done() and work.is_completed() and work.is_success()
        assert work.exception() is None
        assert (work.op, work.group) == ("all_reduce", pg)
        assert work.seq == pg.barrier(async_op=True).seq - 1
        assert re.fullmatch(r"<SyncWork all_reduce #\d+ done>", repr(work))
        called = threading.Event()
        work.add_done_callback(lambda w: called.set() if w is work else None)
        called.wait()
        pg.drain()
        with pytest.raises(AttributeError):
            pg.all_redeuce(tensor)


def test_a_handler_with_a_name_and_a_limit() -> None:
    """Its function is registered in the thread of the loop, where the call of the decorator was not made."""
    with dist.portal.init_process_group(world_size=1) as pg:
        running = [0, 0]

        @pg.handler
        def bare(number: int) -> int:
            return number + 1

        @pg.handler(limit=2)
        async def limited(number: int) -> int:
            running[0] += 1
            running[1] = max(running)
            for _ in range(10):
                await asyncio.sleep(0)
            running[0] -= 1
            return number * 2

        @pg.handler(name="other name")
        def named(number: int) -> int:
            return number * 3

        assert (bare(1), named(1)) == (2, 3)
        assert [pg.call(0, one, 7) for one in ("bare", bare, "limited", "other name", named)] == [
            8,
            8,
            14,
            21,
            21,
        ]

        async def many(group: ProcessGroup) -> Any:
            return await asyncio.gather(*(group.call(0, "limited", number) for number in range(9)))

        assert pg.portal.call(many, pg) == [2 * number for number in range(9)]
        assert running == [0, 2]
        with pytest.raises(dist.UsageError, match="limit must be at least 1"):
            pg.handler(limit=0)(bare)


def test_scalars_and_messages_to_oneself() -> None:
    with alone() as pg:
        assert pg.all_reduce(3.5) == 3.5
        assert type(pg.all_reduce(np.float32(2), async_op=True).wait(timeout=60)) is np.float32
        frozen = np.arange(3.0)
        frozen.flags.writeable = False
        made = pg.all_reduce(frozen)
        assert made is not frozen and made.tolist() == [0, 1, 2]
        for count in (1, 100_000):
            sent, into = np.arange(count), np.zeros(count, np.int64)
            work = pg.send(sent, 0, async_op=True)
            assert pg.recv(into, None) == 0
            work.wait(timeout=60)
            assert np.array_equal(into, sent)
        pg.send_object("mine", 0)
        assert pg.recv_object_from() == (0, "mine")


def test_groups_come_back_as_groups() -> None:
    with alone() as pg:
        child = pg.new_group(name="child")
        assert type(child) is SyncProcessGroup
        assert child.portal is pg.portal
        with child:
            assert child.all_reduce(np.ones(2), async_op=True).group is child
        with pytest.raises(dist.GroupClosed, match="'child' is closed"):
            child.barrier()
        pg.barrier()


def test_usage_errors_keep_their_type_and_take_no_number() -> None:
    with alone() as pg:
        before = pg.issued_count()
        with pytest.raises(dist.UsageError, match="more than 64 bits"):
            pg.all_reduce(2**64)
        with pytest.raises(TypeError, match="unexpected keyword"):
            pg.barrier(patience=3)  # type: ignore[call-arg]
        assert pg.issued_count() == before
    with pytest.raises(dist.UsageError, match="belongs to the loop that made it"):
        init_process_group(store=object())  # type: ignore[arg-type]


def test_what_init_raises_comes_through_and_leaves_nothing() -> None:
    with pytest.raises(dist.UsageError):
        init_process_group("no such backend")


def test_call_runs_anything_on_the_loop() -> None:
    with alone() as pg:

        async def add(group: ProcessGroup, value: int) -> int:
            assert dist.get_rank() == 0
            await group.barrier()
            return value + 1

        assert pg.portal.call(add, pg, value=41) == 42
        assert pg.portal.call(threading.current_thread).name == "aiodist portal"

        def fail() -> None:
            raise KeyError("mine")

        for _ in range(2):
            with pytest.raises(KeyError) as caught:
                pg.portal.call(fail)
            assert "fail" in [entry.name for entry in caught.traceback]
        with pytest.raises(asyncio.CancelledError):
            pg.portal.call(lambda: (_ for _ in ()).throw(asyncio.CancelledError()))


def test_a_blocking_call_on_the_loop_itself_is_refused() -> None:
    with alone() as pg, pytest.raises(dist.UsageError, match="would wait for itself"):
        pg.portal.call(lambda: pg.barrier())


def test_coalesce() -> None:
    with alone() as pg:
        with pg.coalesce():
            first = pg.all_reduce(np.ones(2))
            second = pg.all_reduce(np.ones(2), async_op=True)
            with pytest.raises(dist.UsageError, match="Wait for it after the block"):
                first.wait()
            with pytest.raises(asyncio.InvalidStateError):
                second.result()
        assert first.done()
        assert second.wait().tolist() == [1, 1]
        with pytest.raises(KeyError), pg.coalesce():
            third = pg.all_reduce(np.ones(2))
            raise KeyError
        assert third.wait().tolist() == [1, 1]
        assert pg.all_reduce(np.ones(2)).tolist() == [1, 1]


def test_who_is_in_a_block() -> None:
    """The thread that entered it, whatever it has the loop run; no other thread or task, also if born inside
    with a copy of its context."""
    with alone() as pg:
        results: list[Any] = []

        def elsewhere() -> None:
            results.append(pg.all_reduce(np.ones(2)))

        async def issue() -> Any:
            await asyncio.sleep(0)
            task = asyncio.create_task(later())
            return pg._group.all_reduce(np.ones(2), async_op=True), task

        async def later() -> None:
            await left.wait()
            results.append(await pg._group.all_reduce(np.ones(3)))

        left = pg.portal.call(asyncio.Event)
        with pg.coalesce():
            held = pg.all_reduce(np.ones(2))
            mine, task = pg.portal.call(issue)
            thread = threading.Thread(target=copy_context().run, args=(elsewhere,))
            assert not held.done() and not mine.done()
            thread.start()
            thread.join()
            assert [result.tolist() for result in results] == [[1, 1]]
            assert held.wait().tolist() == [
                1,
                1,
            ]  # what another thread starts has those before it start first
            last = pg.all_reduce(np.ones(2))
            assert not last.done()
        assert last.done()
        pg.portal.call(left.set)
        pg.portal.call(asyncio.wait_for, task, 10)
        assert results[1].tolist() == [1, 1, 1]


def test_calls_of_several_steps_in_a_block() -> None:
    with alone() as pg:
        with pg.coalesce():
            with pg.coalesce():  # a part of it
                things = pg.all_gather_object("a")
            pg.portal.call(asyncio.sleep, 0.01)
            group = pg.new_group()
            assert group is not None
            assert pg.agree() is True
            with pytest.raises(dist.UsageError, match="drain"):
                pg.all_reduce(np.ones(2))
                pg.drain()
            more = pg.broadcast_object("b", async_op=True)
            assert not more.done()
        assert things.wait() == ["a"] and more.wait() == "b"
        assert group.all_reduce(np.ones(2)).tolist() == [1, 1]


def test_ctrl_c_while_entering_a_block_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, left = Reply.wait, [KeyboardInterrupt()]

    def interrupted(reply: Reply, timeout: float | None = None) -> bool:
        if left:
            raise left.pop()
        return wait(reply, timeout)

    with alone() as pg:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Reply, "wait", interrupted)
            with pg.coalesce():
                raise AssertionError("it was not entered")
        assert pg.all_reduce(np.ones(2)).tolist() == [1, 1]
        assert not pg._group._core.batches.open and not pg.portal._seats


def test_closing() -> None:
    pg = alone()
    child = pg.new_group()
    assert child is not None
    pg.close()
    pg.close()
    child.close()
    with pg:
        pass
    for call in (pg.barrier, child.barrier):
        with pytest.raises(dist.GroupClosed, match="the portal is closed"):
            call()
    assert pg.rank == 0


def test_a_portal_of_its_own_and_what_its_end_cuts_short() -> None:
    portal = Portal()
    started = threading.Event()
    errors: list[BaseException] = []

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            portal.call(endless)
        except dist.GroupClosed as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    portal.close()
    thread.join()
    assert [str(error) for error in errors] == ["the portal was closed before this had ended"]


def test_two_portals_and_a_running_loop() -> None:
    async def notebook() -> None:
        with alone() as one, alone() as other:
            assert one.portal is not other.portal
            assert one.all_reduce(np.ones(1))[0] == other.all_reduce(np.ones(1))[0]

    asyncio.run(notebook())


def test_many_threads_at_once() -> None:
    with alone() as pg:
        groups = [pg.new_group() for _ in range(8)]
        results: list[float] = []

        def use(group: Any, value: int) -> None:
            for _ in range(50):
                tensor = group.all_reduce(np.full(3, float(value)))
            results.append(tensor[0])

        threads = [threading.Thread(target=use, args=(group, i)) for i, group in enumerate(groups)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == list(range(8))


def test_a_reply_serves_any_number_of_waiters() -> None:
    reply = loop_thread.Reply()
    assert not reply.wait(timeout=0.001)
    threads = [threading.Thread(target=reply.wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    reply.settle(3)
    reply.settle(4)
    for thread in threads:
        thread.join()
    assert reply.wait()
    assert reply.get() == 3


# ── several ranks ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("size", [pytest.param(2, marks=SLOW), 3])
def test_collectives(size: int, loop: str) -> None:
    ranks(collectives, size, None, loop)


def collectives() -> None:
    """All kinds of calls."""
    with dist.portal.init_process_group(timeout=60) as pg:
        n, me = pg.size, pg.rank
        everyone = np.arange(n)
        assert pg.all_reduce(np.arange(4) + me).tolist() == (np.arange(4) * n + everyone.sum()).tolist()
        works = [pg.all_reduce(np.array([10.0**me + i]), async_op=True) for i in range(20)]
        assert [w.seq for w in works] == list(range(works[0].seq, works[0].seq + 20))
        total = sum(10.0**r for r in range(n))
        assert [w.wait()[0] for w in reversed(works)] == [total + n * i for i in reversed(range(20))]
        assert pg.all_gather_object({"rank": (me,)}) == [{"rank": (r,)} for r in range(n)]
        with pg.coalesce():
            batch = [pg.all_reduce(np.array([float(me + i)])) for i in range(4)]
        assert [w.result()[0] for w in batch] == [everyone.sum() + n * i for i in range(4)]
        child = pg.new_group([0, 1])
        assert (child is None) == (me > 1)
        if child is not None:
            got = np.zeros(3)
            if me == 0:
                child.send(np.arange(3.0), 1)
            else:
                assert child.recv(got) == 0
                assert got.tolist() == [0, 1, 2]
        pg.barrier()


@pytest.mark.slow(COSTLY)
def test_a_thread_calls_while_another_blocks() -> None:
    ranks(crossing, 2)


def crossing() -> None:
    """Main waits for what only another thread's call brings about; each thread has its own group."""
    with dist.portal.init_process_group(timeout=60) as pg:
        groups = [pg.new_group() for _ in range(4)]
        peer = 1 - pg.rank
        results: list[float] = []

        def use(group: Any, number: int) -> None:
            results.extend(group.all_reduce(np.array([float(i + number)]))[0] for i in range(30))

        def feed() -> None:
            for number, group in enumerate(groups):
                use(group, number)
            pg.send(np.ones(100_000), peer)  # too large to be sent before it is received

        threads = [threading.Thread(target=feed)]
        threads += [threading.Thread(target=use, args=(pg.new_group(), i)) for i in range(3)]
        for thread in threads:
            thread.start()
        into = np.zeros(100_000)
        assert pg.recv(into, peer) == peer
        assert into.all()
        for thread in threads:
            thread.join()
        assert len(results) == 210


@pytest.mark.slow(COSTLY)
def test_errors_have_their_types() -> None:
    ranks(errors, 2, {1: 7})


def errors() -> None:
    """Mismatch, own timeout, the operation's timeout, loss."""
    with dist.portal.init_process_group(timeout=60) as pg:
        child = pg.new_group()
        assert child is not None
        with pytest.raises(dist.CollectiveMismatch) as caught:
            child.all_reduce(np.zeros(3 + pg.rank))
        assert (caught.value.op, caught.value.group) == ("all_reduce", child.name)

        into = np.zeros(1)
        if pg.rank == 0:
            work = pg.recv(into, async_op=True)
            assert isinstance(work, SyncWork)
            with pytest.raises(TimeoutError, match=r"has not ended within 0\.01 s; it goes on"):
                work.wait(timeout=0.01)
            with pytest.raises(asyncio.InvalidStateError, match="wait for it first"):
                work.result()
            assert not work.done()
            pg.barrier()
            assert work.wait() == 1
            assert into[0] == 5
        else:
            pg.barrier()
            pg.send(np.array([5.0]), 0)

        child = pg.new_group()
        assert child is not None
        if pg.rank == 0:
            work = child.barrier(async_op=True, timeout=0.2)
            with pytest.raises(dist.CollectiveTimeout):
                work.wait()
            assert type(work.exception()) is dist.CollectiveTimeout
            assert not work.is_success()
        pg.barrier()
        if pg.rank == 1:
            os._exit(7)
        with pytest.raises(dist.PeerLost) as lost:
            pg.all_reduce(np.zeros(3))
        assert lost.value.ranks == (1,)


@pytest.mark.slow(COSTLY)
def test_an_exception_in_with_reaches_the_others() -> None:
    ranks(leaving, 2)


def leaving() -> None:
    """Rank 1 fails; rank 0 is told why."""
    expected: Any = ValueError if dist.get_node_local_rank() == 1 else dist.GroupAborted
    with pytest.raises(expected, match="bad batch"), dist.portal.init_process_group(timeout=60) as pg:
        if pg.rank == 1:
            raise ValueError("bad batch")
        pg.all_reduce(np.zeros(3))


# ── Ctrl-C ───────────────────────────────────────────────────────────────────────────────────────────


def interrupt_when(condition: Callable[[], bool]) -> threading.Thread:
    """Send this process SIGINT as soon as a condition holds."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    def watch() -> None:
        while not condition():
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("loop", LOOPS)
def test_ctrl_c_interrupts_a_blocked_call_and_the_portal_goes_on(loop: str) -> None:
    ranks(interrupted, 2, None, loop)


def interrupted() -> None:
    """Rank 0 is interrupted three times in what only rank 1's later call can end."""
    with dist.portal.init_process_group(timeout=60) as pg:
        tensor = np.array([1.0 + pg.rank])
        if pg.rank == 0:
            issued = pg.issued_count()
            thread = interrupt_when(lambda: pg.issued_count() > issued)
            with pytest.raises(KeyboardInterrupt):
                pg.all_reduce(tensor)
            thread.join()
            assert pg.issued_count() == issued + 1

            work = pg.recv(np.zeros(1), 1, tag=3, async_op=True)
            for timeout in (None, 30):
                waiting = threading.Event()
                thread = interrupt_when(waiting.is_set)
                with pytest.raises(KeyboardInterrupt):
                    waiting.set()
                    work.wait(timeout)
                thread.join()

            pg.send(np.zeros(1), 1)  # only now does rank 1 take part
            assert work.wait() == 1
            pg.drain()
        else:
            pg.recv(np.zeros(1), 0)
            pg.all_reduce(tensor)
            pg.send(np.zeros(1), 0, tag=3)
        assert tensor[0] == 3
        assert pg.all_reduce(np.ones(1))[0] == 2


@pytest.mark.slow(COSTLY)
def test_a_signal_that_does_not_break_the_wait_is_seen_all_the_same() -> None:
    """As one that comes just before the wait begins: here another thread gets it."""
    ranks(interrupted_beside, 1)


def interrupted_beside() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reply, interrupted, missed = Reply(), threading.Event(), []

    def interrupt() -> None:
        while not reply._news:
            os.sched_yield()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not interrupted.wait(60):
            missed.append(True)
            reply.settle(None)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        reply.wait()
    interrupted.set()
    thread.join()
    assert not missed


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("loop", LOOPS)
def test_ctrl_c_in_a_receive_leaves_its_message_to_the_next(loop: str) -> None:
    ranks(interrupted_receives, 2, None, loop)


def interrupted_receives() -> None:
    """Rank 0 is interrupted in receives of each kind, before anything was sent."""
    with dist.portal.init_process_group(timeout=60) as pg:
        if pg.rank == 1:
            for _ in range(3):
                pg.recv(np.zeros(1), 0, tag=9)
                for number in range(2):
                    pg.send(np.full(3, number), 0)
                    pg.send(np.full(30_000, number), 0, tag=1)
                    pg.send_object(number, 0)
            return
        small, large = np.full(3, -1), np.full(30_000, -1)
        ways: list[Callable[[], Any]] = [
            lambda: pg.recv(small, 1),
            lambda: pg.recv(large, 1, tag=1),
            lambda: pg.recv_object(),
        ]
        for way in ways:
            thread = interrupt_when(lambda: any(one.waited_for for one in list(pg.portal._replies)))
            with pytest.raises(KeyboardInterrupt):
                way()
            thread.join()
            assert not pg.portal._replies
            small[:], large[:] = -7, -7
            pg.send(np.zeros(1), 1, tag=9)
            for number in range(2):
                places = np.full(3, -1), np.full(30_000, -1)
                assert pg.recv(places[0], 1) == pg.recv(places[1], 1, tag=1) == 1
                assert all((place == number).all() for place in places)
                assert pg.recv_object(1) == number
            assert set(small) == set(large) == {-7}


@pytest.mark.slow(COSTLY)
def test_ctrl_c_at_the_end_of_a_block_takes_its_receives_back() -> None:
    ranks(interrupted_block, 1)


def interrupted_block() -> None:
    with dist.portal.init_process_group(timeout=60) as pg:
        places, leaves = [np.array([-1]) for _ in range(3)], threading.Event()
        tensor = np.array([3.0])
        thread = interrupt_when(
            lambda: leaves.is_set() and any(one.waited_for for one in list(pg.portal._replies))
        )
        with pytest.raises(KeyboardInterrupt), pg.coalesce():
            pg.recv(places[0], 0)
            pg.all_reduce(tensor)
            pg.recv(places[1], 0)
            leaves.set()
        thread.join()
        assert not pg.portal._replies
        places[0][:] = places[1][:] = -7
        for number in range(2):
            pg.send(np.array([number]), 0)
            assert pg.recv(places[2], 0) == 0
            assert places[2] == number
        assert places[0] == places[1] == -7
        assert pg.all_reduce(tensor)[0] == 3


def test_an_interrupt_gives_back_what_had_come_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """It strikes when the loop has the message, and the caller does not."""
    get = loop_thread.Reply.get

    def interrupts(self: Any) -> Any:
        get(self)
        raise KeyboardInterrupt

    with dist.portal.init_process_group(world_size=1) as pg:
        place = np.full(3, -1)
        ways: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
            (lambda: pg.send(np.full(3, 5), 0), lambda: pg.recv(place, 0)),
            (lambda: pg.send_object("first", 0), lambda: pg.recv_object(0)),
        ]
        for send, receive in ways:
            send()
            with monkeypatch.context() as patch:
                patch.setattr(loop_thread.Reply, "get", interrupts)
                with pytest.raises(KeyboardInterrupt):
                    receive()
            place[:] = -7
            result = receive()
            assert result == "first" or (result == 0 and set(place) == {5})
        assert pg.all_reduce(np.ones(1))[0] == 1


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("loop", LOOPS)
def test_ctrl_c_leaves_a_message_and_a_part_to_the_next_taker(loop: str) -> None:
    ranks(interrupted_takers, 1, None, loop)


def interrupted_takers() -> None:
    """Interrupted before there is anything to take; in a block, too."""
    with dist.portal.init_process_group(timeout=60) as pg:
        call, messages = pg.portal.call, pg.messages()
        streams, sent = parts_of(pg)

        def send_message(number: int) -> None:
            pg.send_message(0, number)

        def send_part(number: int) -> None:
            call(sent.put_nowait, number)

        def waits() -> bool:
            return any(one.waited_for for one in list(pg.portal._replies))

        plain: Any = contextlib.nullcontext
        for block in (plain, pg.coalesce):
            stream = streams()
            ways: list[tuple[Any, Callable[[int], None]]] = [(messages, send_message), (stream, send_part)]
            for taken_from, send in ways:
                takes: list[Callable[[], Any]] = [
                    partial(next, taken_from),
                    partial(call, anext, taken_from),
                ]
                for take in takes:
                    with block():
                        thread = interrupt_when(waits)
                        with pytest.raises(KeyboardInterrupt):
                            take()
                        thread.join()
                        assert not pg.portal._replies
                    for number in range(3):
                        send(number)
                    assert [number_of(take()) for _ in range(3)] == [0, 1, 2]
            stream.close()


@dataclass
class Part:
    number: int


def number_of(taken: Any) -> Any:
    """The number that was taken: a part, or a message."""
    return taken.number if isinstance(taken, Part) else taken[1]


def parts_of(pg: SyncProcessGroup) -> tuple[Callable[[], Any], asyncio.Queue[int]]:
    """What makes streams, and the queue of their parts."""
    sent = asyncio.Queue[int]()

    async def parts() -> AsyncIterator[Part]:
        while True:
            yield Part(await sent.get())

    pg.handler(parts)

    return partial(pg.stream, 0, parts), sent


def test_an_interrupt_gives_back_what_was_taken_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """It strikes when the loop has the message, or the part, and the caller does not."""
    get = loop_thread.Reply.get

    def interrupts(self: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return get(self)

    with dist.portal.init_process_group(world_size=1) as pg:
        streams, sent = parts_of(pg)
        stream, messages = streams(), pg.messages()
        large = list(range(30_000))
        for number in range(3):
            pg.send_message(0, [number, large])
            pg.portal.call(sent.put_nowait, number)
        for taken_from in (messages, stream):
            for _ in range(2):
                with monkeypatch.context() as patch:
                    patch.setattr(loop_thread.Reply, "get", interrupts)
                    with pytest.raises(KeyboardInterrupt):
                        next(taken_from)
            taken = [number_of(pg.portal.call(anext, taken_from)) for _ in range(3)]
            assert taken == (
                [[number, large] for number in range(3)] if taken_from is messages else [0, 1, 2]
            )
        stream.close()


def test_an_interrupt_gives_back_the_error_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    get = loop_thread.Reply.get

    def interrupts(self: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return get(self)

    with dist.portal.init_process_group(world_size=1) as pg:
        pg.send_message(0, {i * (2**61 - 1): i for i in range(1000)})  # which nobody can read
        pg.send_message(0, "behind it")
        messages = pg.messages()
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(loop_thread.Reply, "get", interrupts)
                with pytest.raises(KeyboardInterrupt):
                    next(messages)
        with pytest.raises(
            dist.UnreadableMessage, match="of rank 0 cannot be read: an object with 1000 keys"
        ) as caught:
            next(messages)
        assert caught.value.sender == 0
        assert next(messages) == (0, "behind it")


@pytest.mark.parametrize("again", ["before", "after", "wait"])
def test_a_second_interrupt_strikes_while_the_first_is_handled(
    again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the loop knows of it, when it does, or in the wait for it. What was interrupted has been taken
    back when the interrupt is raised."""
    wait, post = loop_thread.Reply.wait, loop_thread.LoopThread.post
    left: list[str] = []

    def strike(at: str) -> None:
        if left[:1] == [at]:
            left.pop(0)
            raise KeyboardInterrupt

    def waits(self: Any, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            strike("wait")
        return wait(self, timeout)

    def posts(self: Any, *args: Any) -> Reply:
        if left[:1] == ["before"]:
            strike("before")
        made = post(self, *args)
        strike("after")
        return made

    def twice(call: Callable[[], Any]) -> None:
        left[:] = ["wait", again]
        with monkeypatch.context() as patch:
            patch.setattr(loop_thread.Reply, "wait", waits)
            patch.setattr(loop_thread.LoopThread, "post", posts)
            with pytest.raises(KeyboardInterrupt):
                call()
        assert not left

    with dist.portal.init_process_group(world_size=1) as pg:
        streams, sent = parts_of(pg)
        place, messages, stream = np.full(3, -1), pg.messages(), streams()
        ways: list[tuple[Callable[[int], Any], Callable[[], Any]]] = [
            (lambda number: pg.send(np.full(3, number), 0), lambda: pg.recv(place, 0) or place[0]),
            (lambda number: pg.send_object(number, 0), lambda: pg.recv_object(0)),
            (lambda number: pg.send_message(0, number), lambda: number_of(next(messages))),
            (lambda number: pg.portal.call(sent.put_nowait, number), lambda: number_of(next(stream))),
        ]
        for send, take in ways:
            place[:] = -7
            twice(take)
            for number in range(2):
                send(number)
            assert set(place) == {-7}
            assert [take() for _ in range(2)] == [0, 1]
        block = pg.coalesce()
        block.__enter__()
        pg.recv(place, 0)
        twice(lambda: block.__exit__(None, None, None))
        place[:] = -7
        pg.send(np.full(3, 5), 0)
        other = np.zeros(3, np.int64)
        pg.recv(other, 0)
        assert set(place) == {-7} and set(other) == {5}
        stream.close()
        assert not pg.portal._interrupted and not pg.portal._replies


@pytest.mark.parametrize("way", ["receive", "block", "coroutine"])
def test_what_a_blocked_loop_has_not_begun_is_not_begun_any_more(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive whose caller was interrupted, and has its tensor back, though the loop knows of neither. What
    else was called is begun, also what only has the name of a receive."""
    wait, left = loop_thread.Reply.wait, [KeyboardInterrupt()]

    def waits(self: Any, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread() and timeout is None and left:
            raise left.pop()  # not where the call is given up
        return wait(self, timeout)

    with dist.portal.init_process_group(world_size=1) as pg:
        for number in range(2):
            pg.send(np.full(3, number), 0)
        place, block, ran = np.full(3, -7), pg.coalesce(), threading.Event()
        if way == "block":
            block.__enter__()
            pg.recv(place, 0)

        async def recv() -> None:
            ran.set()

        with blocked_loop(pg):
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(facade, "PATIENCE", 0.01)
                patch.setattr(loop_thread.Reply, "wait", waits)
                if way == "coroutine":
                    pg.portal.call(recv)
                elif way == "receive":
                    pg.recv(place, 0)
                else:
                    block.__exit__(None, None, None)
            assert not ran.is_set()
        assert way != "coroutine" or ran.wait(60)
        for number in range(2):
            other = np.zeros(3, np.int64)
            pg.recv(other, 0)
            assert set(other) == {number}
        assert set(place) == {-7}


@pytest.mark.parametrize("following", ["call", "work", "enter", "exit", "wait"])
@pytest.mark.parametrize("way", ["receive", "block"])
def test_a_call_returns_behind_what_a_blocked_loop_takes_back(
    way: str, following: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensor of an interrupted receive is the caller's when its next call has returned, also where the
    loop was blocked meanwhile, and its message came then."""
    wait, left, written = loop_thread.Reply.wait, [KeyboardInterrupt()], threading.Event()
    place, sent = np.full(3, -7), []

    def waits(self: Any, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread() and timeout is None and left:
            assert pg.portal._loop is not None
            pg.portal._loop.call_soon_threadsafe(began.set)
            assert began.wait(60)
            blocking.__enter__()
            raise left.pop()
        return wait(self, timeout)

    def then() -> None:
        sent.append(pg._group.send(np.full(3, 5), 0, async_op=True))
        sent.append(pg._group.send_object("meanwhile", 0, tag=1, async_op=True))
        # In the turn of what was called meanwhile: that has a result, and is not written to yet.
        asyncio.get_running_loop().call_soon(written.wait, 0.5)

    monkeypatch.setattr(facade, "PATIENCE", 0.01)
    with dist.portal.init_process_group(world_size=1) as pg:
        began, blocking, block, other = (
            threading.Event(),
            blocked_loop(pg, then),
            pg.coalesce(),
            pg.coalesce(),
        )
        work = pg.recv_object(0, tag=1, async_op=True)
        if following == "exit":
            other = pg.portal.call(asyncio.Lock)
            other.__enter__()
        if way == "block":
            block.__enter__()
            pg.recv(place, 0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(loop_thread.Reply, "wait", waits)
            if way == "receive":
                pg.recv(place, 0)
            else:
                block.__exit__(None, None, None)
        freeing = threading.Timer(0.1, blocking.__exit__, (None, None, None))  # while the next call waits
        freeing.start()
        if following == "call":
            pg.portal.call(int)
        elif following == "work":
            pg.recv(np.zeros(1), 0, tag=70, async_op=True)
        elif following == "enter":
            other.__enter__()
        elif following == "exit":
            other.__exit__(None, None, None)
        else:
            work.wait()
        place[:] = 77
        written.set()
        freeing.join()
        if following == "enter":
            other.__exit__(None, None, None)
        again = np.zeros(3, np.int64)
        pg.recv(again, 0)
        assert set(again) == {5} and set(place) == {77}
        if following == "work":
            pg.send(np.zeros(1), 0, tag=70)


@contextlib.contextmanager
def blocked_loop(pg: SyncProcessGroup, then: Callable[[], object] = int) -> Iterator[Callable[[], None]]:
    """Block the portal's loop until the end, or until what this gives is called; `then` is called there."""
    blocked, free = threading.Event(), threading.Event()

    def block_loop() -> None:
        blocked.set()
        assert free.wait(60)
        then()

    thread = threading.Thread(target=pg.portal.call, args=(block_loop,))
    thread.start()
    assert blocked.wait(60)
    try:
        yield free.set
    finally:
        free.set()
        thread.join()


def test_a_lock_is_entered_again_and_by_many_threads() -> None:
    """Each `with` of one manager is an entering of its own."""
    with dist.portal.init_process_group(world_size=1) as pg:
        lock = pg.portal.call(asyncio.Lock)
        inside, most, errors = 0, 0, []

        def enter() -> None:
            nonlocal inside, most
            try:
                for _ in range(20):
                    with lock:
                        inside += 1
                        most = max(most, inside)
                        assert pg.portal.call(asyncio.sleep, 0, inside) == 1
                        inside -= 1
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=enter) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == 1 and not inside and not errors
        assert not lock._blocks and not pg.portal._seats
        kept = pg.portal.call(asyncio.Lock)
        kept.__enter__()
        leaving = threading.Thread(
            target=kept.__exit__, args=(None, None, None)
        )  # in a notebook, say: a cell
        leaving.start()
        leaving.join()
        assert not kept._manager.locked() and not kept._blocks and not pg.portal._seats
        block = pg.coalesce()
        with block:
            pass
        with pytest.raises(dist.UsageError, match="a batch is used once"), block:
            raise AssertionError("it was not entered")
        assert pg.all_reduce(np.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize("early", [True, False])
def test_a_block_that_nobody_leaves_is_left(early: bool) -> None:
    """`with` has let go of it, since an interrupt struck before the first line of its `__exit__`."""
    with dist.portal.init_process_group(world_size=1) as pg:
        place = np.full(3, -7)
        block = pg.coalesce()
        block.__enter__()
        held = pg.recv(place, 0)
        if early:
            pg.send(np.full(3, 4), 0)
            pg.agree(True)
            while not held.done():
                pg.portal.call(asyncio.sleep, 0)
        del block
        if early:
            pg.portal.call(int)  # and no other, which would take the loop another turn
            place[:] = -7
            other = np.zeros(3, np.int64)
            pg.recv(other, 0)
            assert set(other) == {4}
        assert pg.all_reduce(np.ones(2)).tolist() == [1, 1]
        pg.send(np.full(3, 5), 0)
        other = np.zeros(3, np.int64)
        pg.recv(other, 0)
        assert set(place) == {-7} and set(other) == {5} and held.exception() is not None
        assert not pg._group._core.batches.open and not pg.portal._seats


def test_a_block_whose_messages_have_come_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt strikes when the loop has left the block, and the caller has not."""
    get = loop_thread.Reply.get

    def interrupts(self: Any) -> Any:
        get(self)
        raise KeyboardInterrupt

    with dist.portal.init_process_group(world_size=1) as pg:
        for number in range(3):
            pg.send(np.full(3, number), 0)
        places = [np.full(3, -7) for _ in range(2)]
        block = pg.coalesce()
        block.__enter__()
        for place in places:
            pg.recv(place, 0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(loop_thread.Reply, "get", interrupts)
            block.__exit__(None, None, None)
        for number in range(3):
            other = np.zeros(3, np.int64)
            pg.recv(other, 0)
            assert set(other) == {number}


class Struck(BaseException):
    """What a handler of the tests raises."""


@pytest.mark.parametrize("way", ["receive", "block", "entering"])
def test_four_signals_at_once_change_nothing(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter calls their handlers one after another, at the next function each: the receive is taken
    back when the last is raised. (Of five, the last would leave that to the thread's next call.)"""
    wait, signals = loop_thread.Reply.wait, [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPROF]
    struck: list[int] = []
    left: list[bool] = []

    def handler(number: int, _frame: object) -> None:
        struck.append(number)
        raise Struck(number)

    def waits(self: Any, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread() and left:
            left.pop()
            begin.release()
            sent.acquire()  # one call in C: no handler runs before it ends
        return wait(self, timeout)

    def send() -> None:
        begin.acquire()
        for one in signals:
            os.kill(os.getpid(), one)  # taken by another thread, which has the main thread call the handler
        sent.release()

    begin, sent, sender = threading.Lock(), threading.Lock(), threading.Thread(target=send)
    begin.acquire()
    sent.acquire()
    sender.start()

    before = [signal.signal(one, handler) for one in signals]
    try:
        with dist.portal.init_process_group(world_size=1) as pg:
            signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # of this thread alone
            place, block = np.full(3, -7), pg.coalesce()
            if way == "block":
                block.__enter__()
                pg.recv(place, 0)
            with monkeypatch.context() as patch, pytest.raises(Struck):
                patch.setattr(loop_thread.Reply, "wait", waits)
                left.append(True)
                if way == "receive":
                    pg.recv(place, 0)
                elif way == "block":
                    block.__exit__(None, None, None)
                else:
                    block.__enter__()
            assert len(struck) == 4
            # Behind no other call of this thread, which would take back what is left.
            other = threading.Thread(target=pg.send, args=(np.full(3, 5), 0))
            other.start()
            other.join()
            assert (place == -7).all()
            got = np.full(3, 0)
            pg.recv(got, 0)
            assert (got == 5).all()
            assert not pg.portal._interrupted
            assert not pg.portal._given_up
    finally:
        sender.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        for one, handled in zip(signals, before, strict=True):
            signal.signal(one, handled)


@pytest.mark.filterwarnings("error")
def test_a_receive_that_an_interrupt_meets_as_it_begins_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message is here already: it is received and given back, and closing raises nothing."""
    receive = ProcessGroup.recv

    def interrupted(self: ProcessGroup, *args: Any, **named: Any) -> Any:
        work = receive(self, *args, **named)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        while not pg.portal._interrupted:
            time.sleep(0.001)
        return work

    with dist.portal.init_process_group(world_size=1) as pg:
        pg.send(np.full(3, 5), 0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ProcessGroup, "recv", interrupted)
            pg.recv(np.full(3, 0), 0)
        got = np.full(3, 0)
        pg.recv(got, 0)
        assert (got == 5).all()
        gc.collect()


def test_a_reply_that_nobody_waits_for_does_not_stay() -> None:
    """An interrupt strikes while a give-up is posted."""

    class Interrupted:
        def call_soon_threadsafe(self, *args: object) -> None:
            raise KeyboardInterrupt

    with dist.portal.init_process_group(world_size=1) as pg:
        portal, loop = pg.portal, pg.portal._loop
        portal._loop = Interrupted()  # type: ignore[assignment]
        try:
            with pytest.raises(KeyboardInterrupt):
                portal.post(lambda reply: None)
        finally:
            portal._loop = loop
        assert not portal._replies


@pytest.mark.parametrize("way", ["receive", "block"])
def test_a_second_interrupt_waits_until_the_tensor_is_the_callers(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is blocked when both strike. Its next step writes the message to the tensor. The receive is
    taken back after that."""
    wait, waited, sent = loop_thread.Reply.wait, 0, []
    blocked, free = threading.Event(), threading.Event()

    with dist.portal.init_process_group(world_size=1) as pg:

        def block_loop() -> None:
            blocked.set()
            assert free.wait(60)
            sent.append(pg._group.send(np.full(3, 5), 0, async_op=True))

        thread = threading.Thread(target=pg.portal.call, args=(block_loop,))

        def waits(self: Any, timeout: float | None = None) -> bool:
            nonlocal waited
            if threading.current_thread() is threading.main_thread():
                waited += 1
                if waited == 1:
                    thread.start()
                    assert blocked.wait(60)  # behind what has been asked for: that has begun
                if waited < 3:
                    raise KeyboardInterrupt
                free.set()
            return wait(self, timeout)

        place, block = np.full(3, -1), pg.coalesce()
        if way == "block":
            block.__enter__()
            pg.recv(place, 0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(loop_thread.Reply, "wait", waits)
            if way == "receive":
                pg.recv(place, 0)
            else:
                block.__exit__(None, None, None)
        place[:] = 77
        free.set()
        thread.join()
        other = np.zeros(3, np.int64)
        pg.recv(other, 0)
        assert set(other) == {5} and set(place) == {77}
        assert not pg.portal._given_up and not pg.portal._interrupted


def test_what_is_given_up_twice_is_waited_for_twice() -> None:
    """Who asks again waits for the same end, which may take the loop some turns."""
    with dist.portal.init_process_group(world_size=1) as pg:
        portal, given_up, asked = pg.portal, Reply(), list[Reply]()
        portal._interrupted[given_up] = (lambda **_: None), threading.get_ident()
        assert portal._loop is not None

        def ask() -> None:
            portal._post_given_up(given_up, lambda _, reply: asked.append(reply))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        while len(portal._replies) < 2:
            os.sched_yield()
        for _ in range(5):  # a call would wait, too
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), portal._loop).result()
        assert len(asked) == 1 and len(portal._replies) == 2
        portal._loop.call_soon_threadsafe(portal.settle, asked[0], None)
        for thread in threads:
            thread.join()
        assert not portal._replies and not portal._given_up and not portal._interrupted


@pytest.mark.parametrize("kind", [SyncProcessGroup, GradientSync, ShardedOptimizer, DiLoCo])
def test_no_call_has_a_result_where_a_signal_is_looked_for(kind: type) -> None:
    """CPython looks for signals behind a call that passes `*args`: a message was lost there, by one in 130
    interrupts at the end of a receive. A call of a Python function with its arguments has no such moment."""
    found = filter(inspect.isfunction, vars(kind).values())
    blocking = [method for method in found if method.__code__.co_name == "blocking"]
    assert blocking
    for method in blocking:
        assert "CALL_FUNCTION_EX" not in {one.opname for one in dis.get_instructions(method)}, method


def test_a_with_ends_by_a_call_behind_which_no_signal_is_looked_for() -> None:
    """Behind a bound method CPython looks: a message was lost there, by one in 112 interrupts about the end
    of a block."""
    with dist.portal.init_process_group(world_size=1) as pg:
        context = pg.coalesce()
        leave = vars(type(context))["__exit__"].__get__(context, type(context))
        assert inspect.isfunction(leave)
        assert not leave.__code__.co_flags & inspect.CO_VARARGS
        assert "CALL_FUNCTION_EX" not in {one.opname for one in dis.get_instructions(leave)}
        with contextlib.ExitStack() as stack:  # which asks the class
            stack.enter_context(pg.coalesce())
            work = pg.all_reduce(np.arange(3))
            assert not work.done()
        assert work.done()


@contextlib.contextmanager
def note_errors(names: list[str]) -> Iterator[None]:
    """Note the name of the error that leaves the block."""
    try:
        yield
    except Exception as error:
        names.append(type(error).__name__)


@pytest.mark.parametrize("way", ["call", "thread"])
@pytest.mark.parametrize("ends", ["by an exception", "by a failure", "well"])
def test_what_begins_before_its_block_ends_is_the_blocks(way: str, ends: str) -> None:
    """A call in the block, or another thread's collective, begins what it has held back, which may have ended
    when the block is left."""
    with dist.portal.init_process_group(world_size=1) as pg:
        for number in range(3):
            pg.send(np.full(3, number), 0)
        pg.send_object({1: print}, 0, tag=1, allow_pickle=True)
        place, caught = np.zeros(3, np.int64), list[str]()
        with note_errors(caught), pg.coalesce():
            work = pg.recv(place, 0)
            refused = pg.recv_object(0, tag=1) if ends == "by a failure" else work
            if way == "call":
                pg.agree(True)
            else:
                thread = threading.Thread(target=pg.barrier)
                thread.start()
                thread.join()
                while not (work.done() and refused.done()):
                    pg.portal.call(asyncio.sleep, 0)
            if ends == "by an exception":
                raise KeyError
        assert caught == {"by an exception": ["KeyError"], "by a failure": ["UsageError"], "well": []}[ends]
        if ends == "well":
            assert set(place) == {0} and work.result() == 0
        place[:] = 77
        for number in range(1 if ends == "well" else 0, 3):
            other = np.zeros(3, np.int64)
            pg.recv(other, 0)
            assert set(other) == {number}
        assert set(place) == {77}


@pytest.mark.parametrize("ask", ["wait", "result", "exception"])
def test_what_a_caller_has_of_a_block_is_not_taken_back(ask: str) -> None:
    with dist.portal.init_process_group(world_size=1) as pg:
        for number in range(3):
            pg.send(np.full(3, number), 0)
        place = np.zeros(3, np.int64)
        with contextlib.suppress(KeyError), pg.coalesce():
            work = pg.recv(place, 0)
            pg.agree(True)
            while not work.done():
                pg.portal.call(asyncio.sleep, 0)
            getattr(work, ask)()
            raise KeyError
        for number in range(1, 3):
            other = np.zeros(3, np.int64)
            pg.recv(other, 0)
            assert set(other) == {number}


def test_a_handle_of_what_was_taken_back_says_so() -> None:
    with dist.portal.init_process_group(world_size=1) as pg:
        pg.send_object("first", 0)
        with contextlib.suppress(KeyError), pg.coalesce():
            work = pg.recv_object(0)
            pg.agree(True)
            while not work.done():
                pg.portal.call(asyncio.sleep, 0)
            raise KeyError
        assert work.done() and not work.is_success()
        assert type(work.exception()) is dist.UsageError
        for ask in (work.wait, work.result):
            with pytest.raises(dist.UsageError, match="taken back"):
                ask()
        assert pg.recv_object(0) == "first"
    with pytest.raises(dist.UsageError, match="taken back"):
        work.result()


def test_what_another_thread_has_of_a_block_is_not_taken_back() -> None:
    with dist.portal.init_process_group(world_size=1) as pg:
        for number in range(3):
            pg.send_object(number, 0)
        block, got = pg.coalesce(), list[Any]()
        block.__enter__()
        works = [pg.recv_object(0) for _ in range(2)]
        pg.recv_object(0, tag=1)

        def other() -> None:
            while not works[1].done():
                pg.portal.call(asyncio.sleep, 0)
            got.append(works[1].result())
            pg.send_object({1: print}, 0, tag=1, allow_pickle=True)

        thread = threading.Thread(target=other)
        thread.start()
        with pytest.raises(dist.UsageError, match="pickled"):
            block.__exit__(None, None, None)
        thread.join()
        assert got == [1] and [pg.recv_object(0) for _ in range(2)] == [0, 2]


def test_closing_raises_for_a_receive_whose_handle_was_dropped() -> None:
    """Of a subgroup by the end of the world at the latest."""
    pg = dist.portal.init_process_group(world_size=1)
    pg.recv_object(0, async_op=True)
    with pytest.raises(dist.GroupClosed, match="while this receive waited"):
        pg.close()
    raised: list[str] = []
    with note_errors(raised), dist.portal.init_process_group(world_size=1) as pg:
        group = pg.new_group()
        assert group is not None
        group.recv_object(0, async_op=True)
        group.close()
    assert raised == ["GroupClosed"]


def test_what_another_thread_waits_for_is_not_taken_back() -> None:
    with dist.portal.init_process_group(world_size=1) as pg:
        got, waits = list[Any](), threading.Event()
        with contextlib.suppress(KeyError), pg.coalesce():
            work = pg.recv_object(0)
            pg.agree(True)

            def other() -> None:
                waits.set()
                got.append(work.wait(100))

            thread = threading.Thread(target=other)
            thread.start()
            assert waits.wait(60)
            while not work._work._awaited:
                pg.portal.call(asyncio.sleep, 0)
            raise KeyError
        for number in range(2):
            pg.send_object(number, 0)
        thread.join()
        assert got == [0] and pg.recv_object(0) == 1


@pytest.mark.parametrize("ran", [True, False], ids=["the loop had answered", "the loop was blocked"])
def test_an_interrupted_question_takes_no_message(ran: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wait, left = loop_thread.Reply.wait, [KeyboardInterrupt()]

    def waits(self: Any, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread() and timeout is None and left:
            if ran:
                wait(self)
            raise left.pop()
        return wait(self, timeout)

    with dist.portal.init_process_group(world_size=1) as pg:
        pg.send_object("first", 0)
        with contextlib.suppress(KeyboardInterrupt), pg.coalesce():
            work = pg.recv_object(0)
            pg.agree(True)
            while not work.done():
                pg.portal.call(asyncio.sleep, 0)
            with contextlib.nullcontext() if ran else blocked_loop(pg), monkeypatch.context() as patch:
                patch.setattr(facade, "PATIENCE", 0.01)
                patch.setattr(loop_thread.Reply, "wait", waits)
                work.result()
        assert pg.recv_object(0) == "first"


def test_the_failure_of_an_interrupted_call_is_raised_where_the_group_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait, left = loop_thread.Reply.wait, [KeyboardInterrupt()]

    def waits(self: Any, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread() and timeout is None and left:
            raise left.pop()
        return wait(self, timeout)

    with dist.portal.init_process_group(world_size=1) as pg:
        group = pg.new_group()
        assert group is not None
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(loop_thread.Reply, "wait", waits)
            group.send(np.zeros(9000), 0)  # which waits for its receive
        lost = dist.PeerLost([0], "a test has cut it off")
        pg.portal.call(group._group._core.break_group, lost)
        with pytest.raises(dist.PeerLost, match="cut it off"):
            group.close()


def test_a_handle_that_is_done_needs_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do other threads wait for what one has to have taken back."""
    wait, left = loop_thread.Reply.wait, [KeyboardInterrupt()]

    def waits(self: Any, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread() and timeout is None and left:
            raise left.pop()
        return wait(self, timeout)

    with dist.portal.init_process_group(world_size=1) as pg:
        done = pg.send_object("x", 0, async_op=True)
        pg.send_object("had", 0, tag=2)
        with pg.coalesce():
            had = pg.recv_object(0, tag=2)
        done.wait()
        with blocked_loop(pg) as go_on:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(facade, "PATIENCE", 0.01)
                patch.setattr(loop_thread.Reply, "wait", waits)
                pg.recv_object(0, tag=1)
            done.wait(100)
            assert had.wait(100) == had.result() == "had"
            thread = threading.Thread(target=pg.portal._give_up_interrupted)
            thread.start()
            thread.join()
            go_on()
        assert pg.recv_object(0) == "x"


@pytest.mark.parametrize("ask", ["wait", "result", "exception", None])
@pytest.mark.parametrize("where", ["in a block", "held"])
def test_a_failure_is_raised_to_a_caller_that_asks_or_where_the_group_ends(
    where: str, ask: str | None
) -> None:
    """Once: by the handle, else at the end of the block, else by closing the group."""
    raised: list[str] = []
    with note_errors(raised), dist.portal.init_process_group(world_size=1) as pg:
        pg.send_object({1: print}, 0, allow_pickle=True)
        with note_errors(raised), pg.coalesce() if where == "in a block" else contextlib.nullcontext():
            work = pg.recv_object(0, async_op=where == "held")
            pg.agree(True)
            while not work.done():
                pg.portal.call(asyncio.sleep, 0)
            if ask is not None:
                with note_errors(raised):
                    error = getattr(work, ask)()
                    raise error
        assert len(raised) == (where == "in a block" or ask is not None)
        del work
    assert raised == ["UsageError"]


def test_a_call_that_was_interrupted_before_the_loop_knew_of_it_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with dist.portal.init_process_group(world_size=1) as pg:
        lock, block = pg.portal.call(asyncio.Lock), pg.coalesce()
        block.__enter__()
        asyncio_loop, replies = pg.portal._loop, pg.portal._replies

        class Interrupted:
            def __getattr__(self, name: str) -> Any:
                pg.portal._loop = asyncio_loop
                raise KeyboardInterrupt

        for call in (pg.drain, lock.__enter__, lambda: block.__exit__(None, None, None)):
            with pytest.raises(KeyboardInterrupt):
                monkeypatch.setattr(pg.portal, "_loop", Interrupted())
                call()
            pg.portal.call(int)
            assert not replies and not pg.portal._interrupted and not pg.portal._given_up
        with lock:
            pass


def test_messages_and_parts_are_iterated_over() -> None:
    """By `for`, by `next`, and by `anext` on the loop; a stream is left at the end of its `with`."""
    with dist.portal.init_process_group(world_size=1) as pg:
        stopped = threading.Event()

        async def parts(count: int) -> AsyncIterator[int]:
            try:
                for number in range(count):
                    yield number * 11
            finally:
                stopped.set()

        pg.handler(parts)
        with pg.stream(0, parts, 4) as stream:
            assert next(stream) == 0 and pg.portal.call(anext, stream) == 11
            assert list(stream) == [22, 33] and list(stream) == []
        stopped.clear()
        with pg.stream(0, parts, 10**9) as stream:
            assert next(stream) == 0
        assert stopped.wait(60)
        stream.close()
        with pytest.raises(dist.UsageError, match="was left"):
            next(stream)
        for number in range(3):
            pg.send_message(0, number)
        messages = pg.messages()
        assert [next(messages), pg.portal.call(anext, messages)] == [(0, 0), (0, 1)]
        for sender, message in messages:
            assert (sender, message) == (0, 2)
            break

        async def next_two() -> list[Any]:
            """On the loop it is what it is in an async program."""
            found: list[Any] = [await anext(messages)]
            async for message in messages:
                return [*found, message]
            return found

        for number in range(2):
            pg.send_message(0, number)
        assert pg.portal.call(next_two) == [(0, 0), (0, 1)]
        messages.close()


OF_ONE_RANK = {
    "abort",
    "aclose",
    "call",
    "check_rebuild",
    "coalesce",
    "drain",
    "empty",
    "handler",
    "issued_count",
    "messages",
    "newcomers_here",
    "pending_joins",
    "recv",
    "recv_object",
    "recv_object_from",
    "send",
    "send_message",
    "send_object",
    "statistics",
    "stream",
}


def test_every_method_is_a_collective_or_of_one_rank() -> None:
    """A collective waits for a step that Ctrl-C has interrupted; a message must not, which may end that."""
    methods = {name for name, _ in inspect.getmembers(ProcessGroup, inspect.isfunction) if name[0] != "_"}
    assert methods == OF_ONE_RANK | COLLECTIVES and not OF_ONE_RANK & COLLECTIVES


@pytest.mark.slow(COSTLY)
def test_ctrl_c_out_of_with_aborts() -> None:
    ranks(interrupted_out, 2)


def interrupted_out() -> None:
    """Rank 0 dies of Ctrl-C; rank 1 hears of it."""
    expected: Any = KeyboardInterrupt if dist.get_node_local_rank() == 0 else dist.GroupAborted
    with pytest.raises(expected) as caught, dist.portal.init_process_group(timeout=60) as pg:
        if pg.rank == 0:
            issued = pg.issued_count()
            interrupt_when(lambda: pg.issued_count() > issued)
            pg.all_reduce(np.zeros(3))
        pg.recv(np.zeros(1), 0)
    assert expected is KeyboardInterrupt or "rank 0 aborted the group: KeyboardInterrupt" in str(caught.value)
    for thread in set(threading.enumerate()) - {threading.main_thread()}:
        thread.join()


@pytest.mark.slow(COSTLY)
def test_ctrl_c_in_init_gives_up() -> None:
    ranks(interrupted_init, 1)


def interrupted_init() -> None:
    """The other rank never comes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    thread = interrupt_when(lambda: any(portal._tasks for portal in list(loop_thread._open)))
    with pytest.raises(KeyboardInterrupt):
        dist.portal.init_process_group(world_size=2, rank=0, init_method=address, timeout=300)
    thread.join()
    assert threading.enumerate() == [threading.main_thread()]


def test_ctrl_c_as_the_loops_thread_begins_is_no_trouble_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no loop yet that could be asked."""
    begins, waited = threading.Event(), Reply.wait

    def interrupted(_self: Reply, _timeout: float | None = None) -> bool:
        monkeypatch.setattr(Reply, "wait", wait)
        raise KeyboardInterrupt

    def wait(self: Reply, timeout: float | None = None) -> bool:
        begins.set()
        return waited(self, timeout)

    def factory() -> None:
        begins.wait()

    monkeypatch.setattr(loop_thread, "loop_factory", factory)
    monkeypatch.setattr(Reply, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Portal()
    loop_thread._close_all()  # what exit does
    assert not loop_thread._open
    assert all(thread.name != "aiodist portal" for thread in threading.enumerate())


# ── the end of the process ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow(COSTLY)
def test_what_is_left_open_is_closed_at_exit() -> None:
    assert "left" in ranks(left_open, 2)


def left_open() -> None:
    """Nobody closes; nobody is lost."""
    pg = dist.portal.init_process_group(timeout=60)
    pg.all_reduce(np.ones(100_000), async_op=True)
    print("left")


def test_a_failure_of_what_is_left_open_fails_the_process() -> None:
    """Nobody has been told of it, and Python has its exit code before it closes the group."""
    output = ranks(left_failing, 2, {0: 1, 1: 1})
    assert output.index("atexit") < output.index("the very end")
    assert re.search(r"CollectiveMismatch: ranks disagree: rank 0: all_reduce\(float64\[3\], SUM\)", output)


def left_failing() -> None:
    """All that Python does as it exits is done."""
    pg = dist.portal.init_process_group(timeout=60)
    atexit.register(print, "atexit")
    globals()["kept"] = AtTheVeryEnd()
    pg.all_reduce(np.ones(3 + pg.rank), async_op=True)


class AtTheVeryEnd:
    """Says when the interpreter takes a program's variables apart."""

    def __del__(self) -> None:
        print("the very end")


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_a_failure_of_what_is_left_open_fails_a_child_of_multiprocessing(start: str) -> None:
    ranks(starts_a_child, 1, None, start)


def starts_a_child() -> None:
    """Some end without the interpreter's end."""
    context: Any = multiprocessing.get_context(sys.argv[2])
    child = context.Process(target=left_receiving)
    child.start()
    child.join()
    assert child.exitcode == 1


def left_receiving() -> None:
    """Nobody is told that nothing came."""
    alone().recv(np.zeros(1), 0, async_op=True)


ENDED = "the portal's event loop was ended by SystemExit: 3"


def test_a_handler_that_exits_fails_the_process() -> None:
    """Only the loop's thread ends by that, and the main one has to know."""
    output = ranks(exits_in_a_handler, 2, {0: 1, 1: 0}, "close")
    assert ENDED in output and output.count("the script is over") == 0


@pytest.mark.slow(COSTLY)
def test_a_handler_that_exits_fails_a_process_that_does_not_close_its_group() -> None:
    output = ranks(exits_in_a_handler, 2, {0: 1, 1: 0})
    assert output.index("the script is over") < output.index(ENDED)


def exits_in_a_handler() -> None:
    """Rank 1 has rank 0 call exit."""
    pg = dist.portal.init_process_group(timeout=60)
    loop = pg.portal._thread
    pg.handler(partial(sys.exit, 3), name="exit")
    pg.barrier()
    if pg.rank == 1:
        with pytest.raises(dist.CallUnknown):
            pg.call(0, "exit")
        return
    loop.join()
    if "close" in sys.argv:
        pg.close()
    print("the script is over")


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("more", [(), ("with",)])
def test_what_ends_the_loop_is_told_by_calls_and_once_by_close(more: tuple[str, ...]) -> None:
    ranks(ended_by_exit, 1, None, *more)


def ended_by_exit() -> None:
    """Every call says why; `close` only where nobody knows."""
    pg = dist.portal.init_process_group()
    work = pg.recv(np.zeros(1), 0, async_op=True)

    async def end() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.Event().wait()

    if "with" in sys.argv:
        with pytest.raises(dist.GroupClosed, match=ENDED), pg:
            pg.portal.call(end)
    else:
        for call in (partial(pg.portal.call, end), work.wait, pg.barrier, pg.close):
            with pytest.raises(dist.GroupClosed, match=ENDED) as caught:
                call()
            assert isinstance(caught.value.__cause__, SystemExit)
    pg.close()


@pytest.mark.slow(COSTLY)
def test_a_failure_that_the_program_knows_does_not_fail_the_process() -> None:
    ranks(left_known, 2)


def left_known() -> None:
    """It has caught the error."""
    pg = dist.portal.init_process_group(timeout=60)
    with pytest.raises(dist.CollectiveMismatch):
        pg.all_reduce(np.ones(3 + pg.rank))


@pytest.mark.slow(COSTLY)
def test_exit_with_what_can_never_end() -> None:
    ranks(never_ending, 2, {0: 1, 1: 3})


@pytest.mark.slow(COSTLY)
def test_what_is_aborted_at_exit_fails_the_process() -> None:
    assert "operations had not ended 0.1 s after the program" in ranks(aborted_at_exit, 2, {0: 1, 1: 3})


def aborted_at_exit() -> None:
    """Rank 0 ends well, but for a collective that rank 1 does not call."""
    pg = dist.portal.init_process_group(timeout=60)
    if pg.rank == 0:
        loop_thread.EXIT_PATIENCE = 0.1
        pg.all_reduce(np.ones(3), async_op=True)
        return
    try:
        pg.recv(np.zeros(1), 0)
    except dist.GroupAborted:
        sys.exit(3)


def never_ending() -> None:
    """Rank 0 ends by an exception with a receive in flight: aborted when patience ends; rank 1 is told."""
    pg = dist.portal.init_process_group(timeout=60)
    if pg.rank == 0:
        loop_thread.EXIT_PATIENCE = 0.1
        pg.recv(np.zeros(1), 1, async_op=True)
        raise ValueError("uncaught")
    try:
        pg.recv(np.zeros(1), 0)
    except dist.GroupAborted:
        sys.exit(3)


@pytest.mark.slow(COSTLY)
def test_the_child_of_a_fork_has_no_portal() -> None:
    ranks(forked, 1)


def forked() -> None:
    """The child is told, and does not hang, nor when it ends."""
    pg = dist.portal.init_process_group()
    child = os.fork()
    if child == 0:
        with pytest.raises(dist.GroupClosed, match="Call init_process_group in the child"):
            pg.barrier()
        pg.close()
        loop_thread._close_all()  # what exit does
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    pg.barrier()


@pytest.mark.slow(COSTLY)
def test_a_call_that_a_signals_handler_interrupts_to_fork_fails_in_the_child() -> None:
    ranks(forked_in_a_handler, 1)


def forked_in_a_handler() -> None:
    """The parent's call goes on."""
    pg = dist.portal.init_process_group()
    child: list[int] = []
    forked = threading.Event()

    def fork(*_: object) -> None:
        child.append(os.fork())
        forked.set()

    def send() -> None:
        forked.wait()
        pg.portal.call(pg._group.send, np.ones(3), 0)

    signal.signal(signal.SIGUSR1, fork)
    work = pg.recv(np.zeros(3), 0, async_op=True)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    threading.Thread(target=send).start()
    try:
        work.wait()
    except dist.GroupClosed:
        os._exit(5 if child == [0] else 1)
    if child == [0]:
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]) == 5
    pg.close()


@pytest.mark.slow(COSTLY)
def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "portal.md"
    found = re.search(r"```python file=script.py\n(.*?)```", page.read_text(), re.DOTALL)
    assert found is not None
    script = tmp_path / "example.py"
    script.write_text(found[1])
    outcomes = asyncio.run(launch([str(script)], 2, timeout=120))
    check(outcomes, {})
    assert {outcome.output for outcome in outcomes} == {"[0. 3. 6. 9.] 2.0 ['rank 0', 'rank 1']\n"}


if __name__ == "__main__":
    if "asyncio" in sys.argv:
        sys.modules["uvloop"] = None  # type: ignore[assignment]
    globals()[sys.argv[1]]()
