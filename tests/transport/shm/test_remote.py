"""Another process's memory is read where it lies, or not at all."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from aiodist.transport.shm import remote
from aiodist.transport.shm.remote import Own, Remote, address_of

GUARD = bytes(range(32))

CHILD = """
import ctypes, sys
import numpy as np
guard = np.frombuffer(bytes(range(32)), np.uint8).copy()
data = np.arange(3_000_000, dtype=np.int64)
print(guard.__array_interface__["data"][0], data.__array_interface__["data"][0], flush=True)
sys.stdin.read()
"""


class Child:
    """A process with an array that nobody shares."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.guard, self.data = map(int, self.process.stdout.readline().split())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def child() -> Iterator[Child]:
    one = Child()
    if not Remote(one.process.pid, one.guard, GUARD).works:
        one.close()
        pytest.skip("this system lets no process read another's memory")
    yield one
    one.close()


@pytest.mark.parametrize("count", [1, 1000, 3_000_000])
def test_what_is_there_is_read(child: Child, count: int) -> None:
    other_memory = Remote(child.process.pid, child.guard, GUARD)
    into = np.zeros(count, np.int64)
    assert other_memory.read(into.data.cast("B"), child.data)
    assert (into == np.arange(count)).all()


def test_another_process_is_not_taken_for_it(child: Child) -> None:
    other = Child()
    try:
        into = memoryview(bytearray(8))
        for pid, guard in ((other.process.pid, GUARD[::-1]), (os.getpid(), GUARD), (0, GUARD)):
            assert not Remote(pid, child.guard, guard).works
        other_memory = Remote(child.process.pid, child.guard, GUARD)
        other_memory._pid = os.getpid()  # as if it had been given to another process
        assert not other_memory.read(into, child.data)
    finally:
        other.close()


def test_what_is_not_there_is_not_read(child: Child) -> None:
    other_memory = Remote(child.process.pid, child.guard, GUARD)
    into = memoryview(bytearray(1 << 16))
    assert not other_memory.read(into, 4096)
    assert other_memory.read(into, child.data)
    child.process.send_signal(signal.SIGKILL)
    child.process.wait()
    assert not other_memory.read(into, child.data)
    assert not Remote(child.process.pid, child.guard, GUARD).works


@pytest.mark.parametrize(("copied", "pays"), [(remote._PROBE, True), (-1, False), (None, False)])
def test_a_copy_that_costs_nothing_pays_and_one_that_is_refused_does_not(
    monkeypatch: pytest.MonkeyPatch, copied: int | None, pays: bool
) -> None:
    monkeypatch.setattr(remote, "_read", None if copied is None else lambda *_: copied)
    assert remote.pays.__wrapped__() is pays


def test_own_memory_is_known_to_be_readable_or_not() -> None:
    own, array = Own(), np.zeros(10_000, np.uint8)
    if not own.readable(address_of(array.data), array.nbytes):
        pytest.skip("this system lets no process read memory so")
    assert not own.readable(4096, 10)
    mapping = mmap.mmap(-1, 8 * mmap.PAGESIZE)
    address = address_of(memoryview(mapping))
    assert own.readable(address, len(mapping))
    assert not own.readable(address - (1 << 40), len(mapping))
