"""Homes: large at no cost, written by their owner alone, gone when closed."""

from __future__ import annotations

import os
import resource

import pytest

from aiodist.errors import BackendUnavailable, WireError
from aiodist.shm.arena import NONCE_BYTES, PAGE, available
from tests.helpers import memory_mapped

pytestmark = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")

if available():
    from aiodist.shm.home import HOME_BYTES, Home, Neighbour, home_bytes

NONCE = bytes(range(NONCE_BYTES))


def mailed(home: Home) -> tuple[int, int, int]:
    """The descriptors as they come out of a letter."""
    memory, loop_bell, bulk_bell = home.descriptors()
    return os.dup(memory), os.dup(loop_bell), os.dup(bulk_bell)


def forked(child: object) -> int:
    """The exit code of a child that calls `child`; minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            child()  # type: ignore[operator]
        finally:
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_large_home_takes_no_memory() -> None:
    home = Home(HOME_BYTES, NONCE)
    assert home.nbytes == len(home.view) == HOME_BYTES + PAGE
    home.view[HOME_BYTES : HOME_BYTES + 4] = b"last"
    neighbour = Neighbour(3, 42, mailed(home), home.nbytes, NONCE)
    assert (neighbour.rank, neighbour.pid) == (3, 42)
    assert bytes(neighbour.view[HOME_BYTES : HOME_BYTES + 4]) == b"last"
    assert os.fstat(home.arena.fd).st_blocks * 512 <= 2 * PAGE
    with pytest.raises(TypeError):
        neighbour.view[0] = 1
    neighbour.close()
    neighbour.close()
    home.close()
    home.close()
    assert memory_mapped() == 0


def test_core_dumps_stay_small() -> None:
    home = Home(HOME_BYTES, NONCE)
    neighbour = Neighbour(1, 1, mailed(home), home.nbytes, NONCE)
    with open("/proc/self/smaps") as file:
        lines = file.read().splitlines()
    flags = []
    for at, line in enumerate(lines):
        if "memfd:aiodist" in line:
            flags.append(next(rest for rest in lines[at:] if rest.startswith("VmFlags:")).split()[1:])
    assert len(flags) == 2
    assert all("dd" in each for each in flags)
    neighbour.close()
    home.close()


def test_bells_wake_their_owner() -> None:
    home = Home(PAGE, NONCE)
    neighbour = Neighbour(1, 1, mailed(home), home.nbytes, NONCE)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(home.loop_bell)
    neighbour.ring_loop()
    neighbour.ring_loop()
    neighbour.ring_bulk()
    assert os.eventfd_read(home.loop_bell) == 2
    assert os.eventfd_read(home.bulk_bell) == 1
    os.eventfd_write(home.loop_bell, 2**64 - 2)
    neighbour.ring_loop()  # full: it rings already
    neighbour.close()
    neighbour.ring_loop()
    neighbour.ring_bulk()
    home.close()


def test_what_is_no_home_is_refused() -> None:
    home = Home(PAGE, NONCE)
    with pytest.raises(WireError, match="somebody else's"):
        Neighbour(1, 1, mailed(home), home.nbytes, bytes(NONCE_BYTES))
    with pytest.raises(WireError, match="an arena of"):
        Neighbour(1, 1, mailed(home), home.nbytes + PAGE, NONCE)
    memory, loop_bell, bulk_bell = mailed(home)
    os.close(bulk_bell)
    bulk_bell = os.eventfd(0, os.EFD_CLOEXEC)  # reading or ringing it could block
    with pytest.raises(WireError, match="a bell"):
        Neighbour(1, 1, (memory, loop_bell, bulk_bell), home.nbytes, NONCE)
    reading, writing = os.pipe2(os.O_NONBLOCK)  # ringing it would write there
    memory, loop_bell, bulk_bell = mailed(home)
    os.close(loop_bell)
    with pytest.raises(WireError, match="a bell that is none"):
        Neighbour(1, 1, (memory, writing, bulk_bell), home.nbytes, NONCE)
    os.close(reading)
    home.close()
    assert memory_mapped() == 0


def test_closing_while_somebody_looks() -> None:
    home = Home(PAGE, NONCE)
    neighbour = Neighbour(1, 1, mailed(home), home.nbytes, NONCE)
    pieces = [memoryview(neighbour.view)[PAGE:], memoryview(home.view)]
    neighbour.close()
    home.close()
    assert bytes(pieces[0][:8]) == bytes(8)
    for piece in pieces:
        piece.release()
    del neighbour, home, pieces
    assert memory_mapped() == 0


def test_a_forked_child_has_a_copy_of_its_own() -> None:
    """As of all other memory: what it reads is what was there, what it writes its parent does not see."""
    home = Home(HOME_BYTES, NONCE)
    home.view[PAGE : PAGE + 4] = b"here"

    def scribble() -> None:
        same = bytes(home.view[PAGE : PAGE + 4]) == b"here"
        home.view[PAGE : PAGE + 4] = b"lost"
        home.view[HOME_BYTES - 4 : HOME_BYTES] = b"lost"
        home.close()
        os._exit(0 if same and memory_mapped() == 0 else 1)

    assert forked(scribble) == 0
    assert bytes(home.view[PAGE : PAGE + 4]) == b"here"
    assert bytes(home.view[HOME_BYTES - 4 : HOME_BYTES]) == bytes(4)
    home.close()


def test_limits_are_told_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(*_: int) -> int:
        raise OSError(24, "Too many open files")

    with pytest.raises(BackendUnavailable, match=r"address space \(.*AIODIST_TRANSPORT=tcp"):
        Home(1 << 60, NONCE)
    with pytest.raises(BackendUnavailable, match="AIODIST_TRANSPORT=tcp"):
        Home(1 << 80, NONCE)
    monkeypatch.setattr(os, "eventfd", no_descriptor)
    with pytest.raises(BackendUnavailable, match="Too many open files"):
        Home(PAGE, NONCE)
    assert memory_mapped() == 0


def test_a_limited_address_space_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert home_bytes() == HOME_BYTES
    limit = 64 << 30
    assert home_bytes() == 1 << 30
    limit = 1 << 20
    assert home_bytes() == 16 << 20
