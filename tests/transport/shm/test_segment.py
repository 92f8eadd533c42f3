"""Segments: large at no cost, written by their owner alone, gone when closed."""

from __future__ import annotations

import os
import resource

import pytest

from aiodist.base.errors import BackendUnavailable, WireError
from aiodist.transport.shm.arena import NONCE_BYTES, PAGE, available
from tests.helpers import memory_mapped

pytestmark = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")

if available():
    from aiodist.transport.shm.segment import SEGMENT_BYTES, PeerSegment, Segment, segment_bytes

NONCE = bytes(range(NONCE_BYTES))


def passed(segment: Segment) -> tuple[int, int]:
    """The descriptors as they come beside a message."""
    memory, bell = segment.descriptors()
    return os.dup(memory), os.dup(bell)


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
    segment = Segment(SEGMENT_BYTES, NONCE)
    assert segment.nbytes == len(segment.view) == SEGMENT_BYTES + PAGE
    segment.view[SEGMENT_BYTES : SEGMENT_BYTES + 4] = b"last"
    peer_segment = PeerSegment(3, 42, passed(segment), segment.nbytes, NONCE)
    assert (peer_segment.rank, peer_segment.pid) == (3, 42)
    assert bytes(peer_segment.view[SEGMENT_BYTES : SEGMENT_BYTES + 4]) == b"last"
    assert os.fstat(segment.arena.fd).st_blocks * 512 <= 2 * PAGE
    with pytest.raises(TypeError):
        peer_segment.view[0] = 1
    peer_segment.close()
    peer_segment.close()
    segment.close()
    segment.close()
    assert memory_mapped() == 0


def test_core_dumps_stay_small() -> None:
    segment = Segment(SEGMENT_BYTES, NONCE)
    peer_segment = PeerSegment(1, 1, passed(segment), segment.nbytes, NONCE)
    with open("/proc/self/smaps") as file:
        lines = file.read().splitlines()
    flags = []
    for at, line in enumerate(lines):
        if "memfd:aiodist" in line:
            flags.append(next(rest for rest in lines[at:] if rest.startswith("VmFlags:")).split()[1:])
    assert len(flags) == 2
    assert all("dd" in each for each in flags)
    peer_segment.close()
    segment.close()


def test_bells_wake_their_owner() -> None:
    segment = Segment(PAGE, NONCE)
    peer_segment = PeerSegment(1, 1, passed(segment), segment.nbytes, NONCE)
    assert segment.hear() == (False, False)
    for rings, meant in (
        ([peer_segment.ring_loop] * 2, (True, False)),
        ([peer_segment.ring_bulk] * 3, (False, True)),
        ([peer_segment.ring_bulk, peer_segment.ring_loop], (True, True)),
    ):
        for ring in rings:
            ring()
        assert segment.hear() == meant
        assert segment.hear() == (False, False)
    segment.wake_thread()
    assert os.eventfd_read(segment.thread_bell) == 1
    os.eventfd_write(segment.bell, 2**64 - 2)
    peer_segment.ring_loop()  # full: it rings already
    peer_segment.close()
    peer_segment.ring_loop()
    peer_segment.ring_bulk()
    segment.close()


def test_what_is_no_home_is_refused() -> None:
    segment = Segment(PAGE, NONCE)
    with pytest.raises(WireError, match="another process's"):
        PeerSegment(1, 1, passed(segment), segment.nbytes, bytes(NONCE_BYTES))
    with pytest.raises(WireError, match="an arena of"):
        PeerSegment(1, 1, passed(segment), segment.nbytes + PAGE, NONCE)
    memory, bell = passed(segment)
    os.close(bell)
    bell = os.eventfd(0, os.EFD_CLOEXEC)  # reading or ringing it could block
    with pytest.raises(WireError, match="a bell"):
        PeerSegment(1, 1, (memory, bell), segment.nbytes, NONCE)
    reading, writing = os.pipe2(os.O_NONBLOCK)  # ringing it would write there
    memory, bell = passed(segment)
    os.close(bell)
    with pytest.raises(WireError, match="a bell that is no eventfd"):
        PeerSegment(1, 1, (memory, writing), segment.nbytes, NONCE)
    os.close(reading)
    segment.close()
    assert memory_mapped() == 0


def test_closing_while_somebody_looks() -> None:
    segment = Segment(PAGE, NONCE)
    peer_segment = PeerSegment(1, 1, passed(segment), segment.nbytes, NONCE)
    pieces = [memoryview(peer_segment.view)[PAGE:], memoryview(segment.view)]
    peer_segment.close()
    segment.close()
    assert bytes(pieces[0][:8]) == bytes(8)
    for piece in pieces:
        piece.release()
    del peer_segment, segment, pieces
    assert memory_mapped() == 0


def test_a_forked_child_has_a_copy_of_its_own() -> None:
    """As of all other memory: what it reads is what was there, what it writes its parent does not see."""
    segment = Segment(SEGMENT_BYTES, NONCE)
    segment.view[PAGE : PAGE + 4] = b"here"

    def scribble() -> None:
        same = bytes(segment.view[PAGE : PAGE + 4]) == b"here"
        segment.view[PAGE : PAGE + 4] = b"lost"
        segment.view[SEGMENT_BYTES - 4 : SEGMENT_BYTES] = b"lost"
        segment.close()
        os._exit(0 if same and memory_mapped() == 0 else 1)

    assert forked(scribble) == 0
    assert bytes(segment.view[PAGE : PAGE + 4]) == b"here"
    assert bytes(segment.view[SEGMENT_BYTES - 4 : SEGMENT_BYTES]) == bytes(4)
    segment.close()


def test_limits_are_told_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(*_: int) -> int:
        raise OSError(24, "Too many open files")

    with pytest.raises(BackendUnavailable, match=r"address space \(.*AIODIST_TRANSPORT=tcp"):
        Segment(1 << 60, NONCE)
    with pytest.raises(BackendUnavailable, match="AIODIST_TRANSPORT=tcp"):
        Segment(1 << 80, NONCE)
    monkeypatch.setattr(os, "eventfd", no_descriptor)
    with pytest.raises(BackendUnavailable, match="Too many open files"):
        Segment(PAGE, NONCE)
    assert memory_mapped() == 0


def test_a_limited_address_space_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert segment_bytes() == SEGMENT_BYTES
    limit = 64 << 30
    assert segment_bytes() == 1 << 30
    limit = 1 << 20
    assert segment_bytes() == 16 << 20
