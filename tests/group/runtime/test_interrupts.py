"""Ctrl-C in a coroutine's synchronous step, and what it leaves alone."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable

import pytest

import aiodist as dist
from aiodist.group.runtime import interrupts
from aiodist.group.runtime.running import loop_factory
from aiodist.group.runtime.tracebacks import interrupted_at

FOREVER = threading.Event()


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def caught(program: Callable[[], object]) -> KeyboardInterrupt:
    with pytest.raises(KeyboardInterrupt) as info:
        program()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return info.value


def test_a_step_without_an_await_is_interrupted_and_may_clean_up() -> None:
    done: list[str] = []

    async def steps() -> None:
        try:
            press()
            FOREVER.wait()
        finally:
            await asyncio.sleep(0)  # nothing is cancelled besides
            done.append("cleaned up")

    assert interrupted_at(caught(lambda: dist.run(steps()))).endswith(" in steps: FOREVER.wait()")
    assert done == ["cleaned up"]


def test_so_is_one_under_asyncio_while_a_group_is_open() -> None:
    done: list[str] = []

    async def steps() -> None:
        async with dist.init_process_group(world_size=1):
            try:
                press()
                FOREVER.wait()
            finally:
                await asyncio.sleep(0)
                done.append("cleaned up")

    async def waits() -> None:
        async with dist.init_process_group(world_size=1):
            pass
        press()
        await asyncio.sleep(100)

    assert interrupted_at(caught(lambda: asyncio.run(steps()))).endswith(" in steps: FOREVER.wait()")
    assert done == ["cleaned up"]
    at = interrupted_at(caught(lambda: asyncio.run(waits())))
    assert at.endswith(" in waits: await asyncio.sleep(100)")


def test_so_is_a_step_of_another_task() -> None:
    async def helps() -> None:
        press()
        FOREVER.wait()

    async def steps() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(helps())

    assert interrupted_at(caught(lambda: dist.run(steps()))).endswith(" in helps: FOREVER.wait()")


def test_what_a_cancelled_task_does_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 2.0)
    done: list[str] = []

    async def awaits() -> None:
        try:
            press()
            await asyncio.sleep(100)
        finally:
            for thread in threading.enumerate():
                if thread.name == "aiodist interrupt":
                    thread.join()  # it has seen that the loop turns
            done.append("saved")

    assert interrupted_at(caught(lambda: dist.run(awaits()))).endswith(" in awaits: await asyncio.sleep(100)")
    assert done == ["saved"]


def test_a_second_one_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 100.0)

    async def steps() -> None:
        press()
        press()
        FOREVER.wait()

    caught(lambda: dist.run(steps()))


def test_a_handler_of_the_programs_own_is_left_alone() -> None:
    seen: list[int] = []

    async def steps() -> None:
        press()

    before = signal.signal(signal.SIGINT, lambda signum, frame: seen.append(signum))
    try:
        dist.run(steps())
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_one_in_the_last_step_is_not_lost() -> None:
    async def steps() -> None:
        press()

    caught(lambda: dist.run(steps()))


def test_a_handler_that_outlives_its_loop_does_not_fail() -> None:
    async def leaves() -> None:
        interrupts.Interrupts().begin()

    asyncio.run(leaves())
    caught(press)


def test_one_that_comes_when_the_step_has_ended_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step ends as the patience does: the signal to interrupt it arrives when no task runs, or later."""
    monkeypatch.setattr(interrupts, "PATIENCE", 0.0)
    done: list[str] = []

    async def steps(late: bool) -> None:
        comes = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGINT})
        loop = asyncio.get_running_loop()
        try:
            if not late:
                loop.call_soon(comes)  # before the loop tells the task
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            pressed = signal.getsignal(signal.SIGINT)
            assert callable(pressed)
            pressed(signal.SIGINT, None)
            if late:
                loop.call_soon(comes)
            for thread in threading.enumerate():
                if thread.name == "aiodist interrupt":
                    thread.join()
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0)
            done.append("saved")

    for late in (False, True):
        at = interrupted_at(caught(lambda late=late: dist.run(steps(late))))  # type: ignore[misc]
        assert at.endswith(" in steps: await asyncio.sleep(100)")
    assert done == ["saved", "saved"]


@pytest.mark.parametrize("uv", [False, True])
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_group_over_two_runs_of_a_runner(uv: bool, interrupted: bool) -> None:
    """Also where the first run ended by KeyboardInterrupt out of a step."""
    done: list[str] = []
    groups: list[dist.ProcessGroup] = []

    async def first() -> None:
        groups.append(await dist.init_process_group(world_size=1))
        if interrupted:
            press()
            press()

    async def second() -> None:
        try:
            press()
            FOREVER.wait()
        except KeyboardInterrupt:
            await asyncio.sleep(0)
            done.append("interrupted")
        try:
            press()
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0)
            done.append("cancelled")

    async def last() -> None:
        await groups[0].aclose()

    def program() -> None:
        with asyncio.Runner(loop_factory=loop_factory() if uv else None) as runner:
            if interrupted:
                caught(lambda: runner.run(first()))
            else:
                runner.run(first())
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            try:
                runner.run(second())
            finally:
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
                runner.run(last())

    caught(program)
    assert done == ["interrupted", "cancelled"]


def test_after_the_interrupt_the_next_one_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def steps() -> None:
        try:
            press()
            FOREVER.wait()
        except KeyboardInterrupt:
            monkeypatch.setattr(interrupts, "PATIENCE", 100.0)
            try:
                press()
                done.append("was not interrupted")
            except KeyboardInterrupt:
                done.append("interrupted at once")
            raise

    caught(lambda: dist.run(steps()))
    assert done == ["interrupted at once"]


def test_a_program_that_goes_on_has_the_same_again() -> None:
    done: list[str] = []

    async def steps() -> None:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                press()
                done.append("goes on")
                FOREVER.wait()
            await asyncio.sleep(0)
        press()
        await asyncio.sleep(100)

    at = interrupted_at(caught(lambda: dist.run(steps())))
    assert at.endswith(" in steps: await asyncio.sleep(100)")
    assert done == ["goes on", "goes on"]


def test_after_the_group_the_interrupt_is_the_runners_again() -> None:
    async def steps() -> None:
        async with dist.init_process_group(world_size=1):
            with pytest.raises(KeyboardInterrupt):
                press()
                press()
        press()  # cancels
        await asyncio.sleep(100)

    at = interrupted_at(caught(lambda: asyncio.run(steps())))
    assert at.endswith(" in steps: await asyncio.sleep(100)")
