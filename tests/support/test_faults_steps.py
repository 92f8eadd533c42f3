"""Counting calls of aiodist's functions: of one, of all, in every thread, and never once it is over."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from aiodist.base.errors import PeerLost, name_ranks
from aiodist.base.timeouts import seconds
from tests.support.faults import Steps


@pytest.fixture(autouse=True)
def _no_profile() -> Iterator[None]:
    before = sys.getprofile()
    yield
    sys.setprofile(before)
    threading.setprofile(None)


def test_one_function_counts_alone() -> None:
    seen: list[int] = []
    steps = Steps("aiodist.base.errors:name_ranks", 3, lambda: seen.append(steps.seen))
    steps.watch()
    for _ in range(5):
        PeerLost([1], "it died")  # calls it once, and others of the same file
        seconds(1.0)
    steps.stop()
    assert (steps.seen, seen) == (5, [3])


def test_a_method_is_named_with_its_class() -> None:
    seen: list[str] = []
    steps = Steps("aiodist.base.errors:PeerLost.__init__", 1, lambda: seen.append("here"))
    steps.watch()
    name_ranks([1])
    assert not seen
    PeerLost([1], "it died")
    steps.stop()
    assert seen == ["here"]


def test_all_functions_of_aiodist_count_and_no_others() -> None:
    steps = Steps("", 1 << 62, lambda: None)
    steps.watch()
    sorted([3, 1], key=lambda number: -number)
    assert steps.seen == 0
    name_ranks([1])
    seconds(1.0)
    steps.stop()
    assert steps.seen >= 2


def test_it_acts_in_the_thread_that_comes_there_before_the_first_line() -> None:
    names: list[str] = []
    steps = Steps("aiodist.base.timeouts:seconds", 1, lambda: names.append(threading.current_thread().name))
    steps.watch()
    thread = threading.Thread(target=seconds, args=(1.0,), name="worker")
    thread.start()
    thread.join()
    steps.stop()
    assert names == ["worker"]


def test_stopped_it_never_acts() -> None:
    acted: list[None] = []
    steps = Steps("", 1, lambda: acted.append(None))
    steps.watch()
    steps.stop()
    sys.setprofile(steps._event)  # as in a thread that has it still
    name_ranks([1])
    assert not acted
