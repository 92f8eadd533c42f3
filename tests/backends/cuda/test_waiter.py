"""The thread that waits: one event after the other, errors told, nothing kept that is over."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future

import pytest

from aiodist.backends.cuda.completion import event_of
from aiodist.backends.cuda.waiter import EventWaiter
from aiodist.backends.threads import post
from aiodist.base.errors import GroupBroken, UsageError


class Event(threading.Event):
    """One of the host."""

    def synchronize(self) -> None:
        self.wait()


class Sick:
    """One of a device that has failed."""

    def synchronize(self) -> None:
        raise RuntimeError("cudaErrorIllegalAddress")


class Memory:
    """What an operation works on."""


def test_events_are_waited_for_in_order_and_then_it_ends() -> None:
    used: list[int] = []
    told: list[tuple[str, Exception | None]] = []
    waiter = EventWaiter("waiting", lambda: used.append(threading.get_ident()))
    first, second = Event(), Event()
    waiter.watch(first, lambda error: told.append(("first", error)), None)
    waiter.watch(second, lambda error: told.append((threading.current_thread().name, error)), None)
    waiter.close()
    second.set()
    assert not waiter.join(0)
    assert told == []
    first.set()
    assert waiter.join(30)
    assert told == [("first", None), ("waiting", None)]
    assert len(used) == 1 and used[0] != threading.get_ident()


def test_errors_are_told_and_the_next_event_is_still_waited_for() -> None:
    told: list[str] = []
    waiter = EventWaiter("waiting", lambda: None)
    second = Event()
    waiter.watch(Sick(), lambda error: told.append(str(error)), None)
    waiter.watch(second, lambda error: told.append(str(error)), None)
    second.set()
    waiter.close()
    assert waiter.join(30)
    assert told == ["cudaErrorIllegalAddress", "None"]


def test_device_that_cannot_be_chosen_fails_what_is_waited_for() -> None:
    def use() -> None:
        raise RuntimeError("cudaErrorInvalidDevice")

    told: list[str] = []
    waiter = EventWaiter("waiting", use)
    waiter.watch(Event(), lambda error: told.append(str(error)), None)  # never set
    waiter.close()
    assert waiter.join(30)
    assert told == ["cudaErrorInvalidDevice"]


def test_memory_is_kept_until_the_event_and_no_longer() -> None:
    waiter = EventWaiter("waiting", lambda: None)
    over, event, memory = threading.Event(), Event(), Memory()
    kept = weakref.ref(memory)
    waiter.watch(event, lambda error: None, memory)
    del memory
    gc.collect()
    assert kept() is not None
    event.set()
    # The next one is begun when the first is forgotten.
    waiter.watch(Sick(), lambda error: over.set(), None)
    assert over.wait(30)
    gc.collect()
    assert kept() is None
    waiter.close()
    assert waiter.join(30)


def test_closed_loop_hears_nothing() -> None:
    class Closed:
        def call_soon_threadsafe(self, *_: object) -> None:
            raise RuntimeError("Event loop is closed")

    post(Closed(), print)


def test_launch_is_waited_for_within_bounds() -> None:
    launched: Future[object] = Future()
    with pytest.raises(UsageError, match=r"not launched yet.*Write `await work`"):
        event_of(launched, 0)
    event = object()
    setter = threading.Timer(0.01, launched.set_result, [event])
    setter.start()
    assert event_of(launched, 30) is event
    assert event_of(launched, 0) is event
    setter.join()


def test_what_was_never_launched_says_so() -> None:
    launched: Future[object] = Future()
    launched.set_result(None)
    with pytest.raises(GroupBroken, match="was not launched"):
        event_of(launched, 0)
