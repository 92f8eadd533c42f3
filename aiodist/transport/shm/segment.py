"""One process's memory and bell, which all its local peers on the host hold.

The memory is one large arena: pages are taken when they are first touched, so its size costs nothing. The
bell is an eventfd: a process that holds it can wake the owner's event loop, or the thread that does its bulk
work. Nothing else can be done with it, and only the owner writes the memory.

One bell serves both, since each peer holds it: what is added to it says who is meant. Who finds it rung, and
hears it, tells the other what was meant for that one: the loop by the thread's own bell, which no peer has,
and the thread by a callback (`Hub`, `Bulk`).
"""

from __future__ import annotations

import mmap
import os
import resource
import weakref
from collections.abc import Callable
from typing import Protocol

from aiodist.base.errors import BackendUnavailable, WireError
from aiodist.net.forks import own
from aiodist.transport.shm.arena import USABLE_LIMIT, Arena, Window
from aiodist.transport.shm.heap import Heap

HEAD = 72 * 1024
"""Bytes at the start of a segment that are not given out: the nonce's page, and the local engine's words."""

SEGMENT_BYTES = USABLE_LIMIT
"""Bytes of a segment where nothing limits them: address space, not memory."""

_SHARE = 64  # of a limited address space a segment takes this part: those of all local peers are mapped, too
_SMALLEST = 16 << 20

_RING_LOOP, RING_BULK = 1, 1 << 32  # what is added to a bell: for the loop, for the thread


class Holder(Protocol):
    """A keeper of memory of a segment, for its next use."""

    def reclaim(self) -> None:
        """Free the memory, if nobody uses it now."""


class Segment:
    """The memory and bell of this process. Linux only; see `shm.available`.

    Args:
        nbytes: usable bytes of the memory; virtual ones, taken page by page when touched.
        nonce: `arena.NONCE_BYTES` random bytes, which stand at the start.

    Raises:
        BackendUnavailable: the system does not give that much address space, or no more descriptors.

    Attributes:
        arena: the memory.
        view: all of it, writable.
        heap: which part of it is given out, to the local engine and to links. Used on the loop only.
        holders: keepers of memory that they may not need now; asked where there is no room.
        on_idle: called on the loop when a holder needs its memory no more.
        nbytes: of `view`: one page more than is usable.
        bell: the eventfd that peers ring. Reading it never blocks.
        thread_bell: the one by which this process wakes its thread for bulk work.
    """

    def __init__(self, nbytes: int, nonce: bytes) -> None:
        bells: list[int] = []
        try:
            self.arena = Arena(nbytes, nonce)
            try:
                bells.extend(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
            except BaseException:
                self.arena.close()
                raise
        except (OSError, ValueError, OverflowError) as error:
            for bell in bells:
                os.close(bell)
            raise BackendUnavailable(
                f"no shared memory of {nbytes >> 20} MiB of address space"
                f" ({getattr(error, 'strerror', None) or error})",
                hint="Raise the limits (ulimit -v, -f, -n), or set AIODIST_TRANSPORT=tcp",
            ) from error
        self.view = self.arena.view
        self.nbytes = self.arena.nbytes
        self.heap = Heap(HEAD, len(self.view))
        self.holders: set[Holder] = set()
        self.on_idle: Callable[[], None] = lambda: None
        self.bell, self.thread_bell = bells
        self.arena.advise(mmap.MADV_DONTDUMP)  # core dumps need not hold it all
        _segments.add(self)
        own(self, lambda segment: (segment.bell, segment.thread_bell))

    def descriptors(self) -> tuple[int, int]:
        """The descriptors for a local peer: the memory, the bell."""
        return self.arena.fd, self.bell

    def hear(self) -> tuple[bool, bool]:
        """Whether the bell was rung for the loop, and for the thread, since it was last heard by either."""
        try:
            rung = os.eventfd_read(self.bell)
        except BlockingIOError:
            return False, False
        return rung % RING_BULK > 0, rung >= RING_BULK

    def wake_thread(self) -> None:
        """Wake the thread for bulk work."""
        _ring(self.thread_bell, 1)

    def close(self) -> None:
        """Unmap, as soon as no piece is in use; local peers keep what they have mapped. May be called
        twice. No thread may use a bell any more."""
        self.bell, self.thread_bell = _close(self.bell), _close(self.thread_bell)
        _segments.discard(self)
        self.arena.close()


class PeerSegment:
    """A local peer's segment, as seen from here: its memory to read, its bell to ring.

    Args:
        rank: its global rank.
        pid: as the kernel says; 0 where it cannot be seen from here.
        descriptors: what its `Segment.descriptors` named, as they came; owned from now on.
        nbytes: of its segment, as it says.
        nonce: of its segment, as it says.

    Raises:
        WireError: these are not a sealed arena with that nonce and an eventfd that never blocks.
        OSError: the memory cannot be mapped here.

    Attributes:
        window: the memory.
        view: all of it, read-only.
        bell: rings its event loop, or its thread for bulk work.
    """

    def __init__(self, rank: int, pid: int, descriptors: tuple[int, int], nbytes: int, nonce: bytes) -> None:
        self.rank = rank
        self.pid = pid
        memory, self.bell = descriptors
        try:
            if os.get_blocking(self.bell):
                raise WireError("a bell that could block the process that rings it")
            if not _is_eventfd(self.bell):
                raise WireError("a bell that is no eventfd")
            self.window = Window(memory, nbytes, mmap.MADV_DONTDUMP)
            if self.window.nonce != nonce:
                self.window.close()
                raise WireError("a segment that is another process's")
        except BaseException:
            self.bell = _close(self.bell)
            raise
        finally:
            os.close(memory)
        self.view = self.window.view
        own(self, lambda segment: (segment.bell,))

    def ring_loop(self) -> None:
        """Wake its event loop. Ringing a bell that rings already, or after `close`, does nothing."""
        _ring(self.bell, _RING_LOOP)

    def ring_bulk(self) -> None:
        """Wake its thread for bulk work."""
        _ring(self.bell, RING_BULK)

    def close(self) -> None:
        """Unmap, as soon as no piece is in use. May be called twice. No thread may ring any more."""
        self.bell = _close(self.bell)
        self.window.close()


def segment_bytes() -> int:
    """A size for a segment that leaves room for those of local peers where the address space is limited."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return (
        SEGMENT_BYTES
        if limit == resource.RLIM_INFINITY
        else min(SEGMENT_BYTES, max(limit // _SHARE, _SMALLEST))
    )


def _is_eventfd(descriptor: int) -> bool:
    """Whether it is one, as far as /proc can say: to ring anything else would write into it."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:[eventfd]"
    except OSError:
        return not os.path.isdir("/proc/self/fd")


def _ring(bell: int, what: int) -> None:
    if bell >= 0:
        try:
            os.eventfd_write(bell, what)
        except OSError:
            pass  # full, and not heard yet; or no bell, which is its giver's loss


def _close(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1


# A forked child writes to copies of users' arrays in the segment. What it has not written shows what the
# parent writes: a mapping of a file has no copy of the moment of the fork.
_segments: weakref.WeakSet[Segment] = weakref.WeakSet()


def _after_fork() -> None:
    for segment in list(_segments):
        segment.arena.make_private()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
