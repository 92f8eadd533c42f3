"""The memory of another process of this host, read where it lies: process_vm_readv(2), Linux.

One copy by the kernel, from that process's pages to this one's, instead of two through a shared segment.
Nothing can be written this way. Whether it is allowed depends on much: the same user, PR_SET_DUMPABLE, a
security module (`kernel.yama.ptrace_scope`), a filter of system calls, a pid that can be seen. So it is found
out by doing it (`Remote.works`).

A process id may be another process's by now. So each call reads a *guard* first, whose bytes only the right
process has at that address, and in the same call the kernel reads the same process.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from functools import cache
from typing import Any

import numpy as np

_PROBE = 512 * 1024  # bytes that are copied to find out how long it takes
_DEARER = 1.2  # times as long as a copy may take by the kernel, where it saves another copy


class _Span(ctypes.Structure):
    """A struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def _found() -> Any:
    """The function, None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (OSError, AttributeError):
        return None
    spans = ctypes.POINTER(_Span)
    function.argtypes = (ctypes.c_int, spans, ctypes.c_ulong, spans, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    return function


_read = _found()


def address_of(view: memoryview) -> int:
    """The address of the bytes of a contiguous view."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


class Remote:
    """Another process's memory.

    Args:
        pid: of the process, as this one sees it; 0: unknown.
        address: of the guard in that process.
        guard: the bytes that are there.

    Attributes:
        works: it can be read.
    """

    def __init__(self, pid: int, address: int, guard: bytes) -> None:
        self._pid = pid
        self._guard = guard
        self._found = ctypes.create_string_buffer(len(guard))
        self._here = (_Span * 2)()
        self._there = (_Span * 2)()
        self._here[0].address = ctypes.addressof(self._found)
        self._there[0].address = address
        self._here[0].nbytes = self._there[0].nbytes = len(guard)
        self.works = _read is not None and pid > 0 and self._call(1) == len(guard) and self._is_right()

    def read(self, into: memoryview, address: int) -> bool:
        """Read from an address; the interpreter is released meanwhile.

        Args:
            into: writable and contiguous; filled. Less than 2 GiB.

        Returns:
            Whether all of it was read, from the right process. If not, `into` holds anything.
        """
        nbytes = len(into)
        self._here[1].address = address_of(into)
        self._there[1].address = address
        self._here[1].nbytes = self._there[1].nbytes = nbytes
        self._found[0] = b"\0"
        return self._call(2) == len(self._guard) + nbytes and self._is_right()

    def _call(self, spans: int) -> int:
        read: int = _read(self._pid, self._here, spans, self._there, spans, 0)
        return read

    def _is_right(self) -> bool:
        return self._found.raw == self._guard


@cache
def pays() -> bool:
    """Whether one copy by the kernel takes no longer than one of two copies, made by two processes at once,
    through memory that they share. Measured once a process, in about a millisecond.

    It depends on the processor and the kernel, which has to find and hold each page: 1 MiB took 170 µs by the
    kernel and 48 by memcpy on an AMD EPYC (Zen 3, virtual).
    """
    if _read is None:
        return False
    source, target = np.ones(_PROBE, np.uint8), np.ones(_PROBE, np.uint8)
    here, there = (_Span(address_of(array.data), _PROBE) for array in (target, source))

    def by_kernel() -> bool:
        return bool(_read(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == _PROBE)

    def by_memcpy() -> bool:
        target[:] = source
        return True

    times = {}
    for copy in (by_kernel, by_memcpy):
        found = []
        for _ in range(4):
            began = time.perf_counter()
            if not copy():
                return False
            found.append(time.perf_counter() - began)
        times[copy] = min(found)
    return times[by_kernel] <= _DEARER * times[by_memcpy]


class Own:
    """This process's memory, as others would read it: not all that it can read itself can be read so (what
    drivers map, for example)."""

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(2)
        self._here, self._there = _Span(ctypes.addressof(self._bytes), 2), (_Span * 2)()
        self._there[0].nbytes = self._there[1].nbytes = 1

    def readable(self, address: int, nbytes: int) -> bool:
        """Whether the first and the last byte of a piece can be read; one mapping is all of one kind."""
        if _read is None:
            return False
        self._there[0].address, self._there[1].address = address, address + nbytes - 1
        return bool(_read(os.getpid(), ctypes.byref(self._here), 1, self._there, 2, 0) == 2)
