"""A file's memory, mapped for reading without keeping a descriptor.

Python's own `mmap` keeps one for each mapping (until 3.13, which can be told not to), and a process maps the
memory of every local peer.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import cache

MAP_FIXED = 0x10  # as Linux and macOS have it; Python does not name it
_FAILED = ctypes.c_void_p(-1).value


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    number, size, address = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    libc.mmap.restype = address
    libc.mmap.argtypes = address, size, number, number, number, ctypes.c_long
    libc.munmap.argtypes = address, size
    libc.madvise.argtypes = address, size, number
    return libc


def map_at(address: int | None, nbytes: int, access: int, flags: int, fd: int) -> int:
    """Map the beginning of a file by mmap(2) → the address. `OSError` where that cannot be."""
    found: int | None = _libc().mmap(address, nbytes, access, flags, fd, 0)
    if found is None or found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found


def mapped(fd: int, nbytes: int, *advice: int, writable: bool = False) -> memoryview:
    """The first bytes of a file as memory, shared with all others that map it. It stays mapped as long as
    anything refers to it.

    Args:
        fd: the file; not needed afterwards.
        advice: for madvise(2); what this kernel does not know is left out.
        writable: else it can only be read.

    Raises:
        OSError: the system does not map it.
    """
    access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    address = map_at(None, nbytes, access, mmap.MAP_SHARED, fd)
    for one in advice:
        _libc().madvise(address, nbytes, one)
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    unmaps = weakref.finalize(memory, _libc().munmap, address, nbytes)
    unmaps.atexit = False  # threads may look until the very end
    view = memoryview(memory).cast("B")
    return view if writable else view.toreadonly()


def make_own(memory: memoryview) -> None:
    """Put memory of this process alone, all zero, in the place of what is mapped (`mapped`).

    Raises:
        OSError: the system does not do it.
    """
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
    map_at(address, memory.nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1)
