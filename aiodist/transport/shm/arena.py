"""Memory that its owner writes and others map read-only: a sealed memfd.

The owner maps the file writable and then seals it: no later mapping can be writable
(F_SEAL_FUTURE_WRITE), and its size is fixed, so that a reader cannot be made to fault. The file has no
name, so there is nothing to remove and nothing to leak: it is gone with the last process that maps
it, however that ends. It comes with a nonce at its start; a peer that can tell it has mapped it.

See memfd_create(2), fcntl(2) "File Sealing".
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Iterable

from aiodist.base.environment.mapping import MAP_FIXED, map_at, mapped
from aiodist.base.errors import BackendUnavailable, WireError
from aiodist.net.shortage import EXHAUSTED

PAGE = 4096
"""Bytes at the start of an arena that hold its nonce; what the owner shares begins behind them."""

NONCE_BYTES = 32

USABLE_LIMIT = 64 << 30
"""Usable bytes of the largest arena: of a segment where nothing limits it. They are address space, not
memory, of which a process has 128 TiB; a peer that says more would take that from the others."""

_MAP_NORESERVE = 0x4000
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_FUTURE_WRITE = 0x1, 0x2, 0x4, 0x10
_SEALS = _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_FUTURE_WRITE


def available() -> bool:
    """Whether this platform has memfd with seals (Linux)."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


class Arena:
    """The owner's side.

    Args:
        nbytes: usable bytes; rounded up to whole pages.
        nonce: NONCE_BYTES random bytes.

    Attributes:
        fd: the file, to be passed to readers.
        nbytes: of the file: PAGE more than is usable.
        view: all of it, writable.
    """

    def __init__(self, nbytes: int, nonce: bytes) -> None:
        if not available():
            raise BackendUnavailable("shared memory needs Linux", hint="Set AIODIST_TRANSPORT=tcp")
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"an arena's nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
        import fcntl

        self.nbytes = self.file_bytes(nbytes)
        self.nonce = nonce
        self.fd = os.memfd_create("aiodist", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.nbytes)
            self._map = mmap.mmap(self.fd, self.nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(self.fd)
            raise
        self.view = memoryview(self._map)
        self.view[:NONCE_BYTES] = nonce

    @staticmethod
    def file_bytes(nbytes: int) -> int:
        """Bytes of the file of an arena with `nbytes` usable bytes."""
        return PAGE + -(-nbytes // PAGE) * PAGE

    def make_private(self) -> None:
        """Have the same addresses show a copy of a forked child's own, made page by page when written. Where
        the system refuses, the child goes on sharing its parent's memory."""
        if self.fd < 0:
            return
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | MAP_FIXED | _MAP_NORESERVE
        with contextlib.suppress(OSError):
            map_at(address, self.nbytes, access, flags, self.fd)

    def advise(self, *advice: int) -> None:
        """Call madvise(2) on all of it; what this kernel does not know is left out."""
        for one in advice:
            with contextlib.suppress(OSError):
                self._map.madvise(one)

    def close(self) -> None:
        """Unmap. Readers keep their mappings. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # a piece is still in use: all is unmapped when that is dropped


class Window:
    """A reader's side: another process's arena, mapped read-only.

    Args:
        fd: the file that was passed; the caller closes it, when it likes.
        nbytes: of the file, as its owner says.
        advice: for madvise(2).

    Raises:
        WireError: it is not a sealed arena of that size.
        OSError: this process has no memory, or no descriptor, for it.

    Attributes:
        nonce: what its owner wrote at the start.
        view: all of it, read-only.
    """

    def __init__(self, fd: int, nbytes: int, *advice: int) -> None:
        try:
            self.view = self._mapped(fd, nbytes, advice)
        except OSError as error:
            if error.errno in EXHAUSTED:
                raise
            # Descriptors of pipes, of files that may not be read, and the like: what was sent is at fault.
            raise WireError(f"an arena that cannot be mapped ({error.strerror})") from None
        self.nbytes = nbytes
        self.nonce = bytes(self.view[:NONCE_BYTES])

    @staticmethod
    def _mapped(fd: int, nbytes: int, advice: Iterable[int]) -> memoryview:
        import fcntl

        if not PAGE < nbytes <= PAGE + USABLE_LIMIT or nbytes % PAGE or os.fstat(fd).st_size != nbytes:
            raise WireError(f"an arena of {nbytes} bytes that has {os.fstat(fd).st_size}")
        # Without the seal on its size, its owner could cut it off under us (SIGBUS).
        if fcntl.fcntl(fd, _F_GET_SEALS) & _SEALS != _SEALS:
            raise WireError("an arena that is not sealed")
        return mapped(fd, nbytes, *advice)

    def close(self) -> None:
        """Unmap, when no piece of it is in use any more. May be called twice."""
        with contextlib.suppress(BufferError):
            self.view.release()
