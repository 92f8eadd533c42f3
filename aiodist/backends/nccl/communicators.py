"""NCCL's communicators: how they are made and ended, in CuPy 13 and 14. All of it blocks: not on the loop."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from aiodist.backends.cuda.library import load
from aiodist.base.errors import BackendUnavailable

ID_BYTES = 128
_SETTINGS = {"NCCL_RUNTIME_CONNECT": "0", "NCCL_SET_STACK_SIZE": "1"}
_NO_COLOR = -1
_SPLITS_FROM = 21801
_PARTING = 2.0
"""Seconds that a process that ends waits for its communicators to be destroyed."""

_destroying: set[threading.Thread] = set()


def load_nccl() -> Any:
    """The module `cupy`, once NCCL and a device can be used.

    Raises:
        BackendUnavailable: names the one thing that is missing.
    """
    cupy = load()
    require_nccl(cupy)
    return cupy


def require_nccl(cupy: Any) -> None:
    """Load NCCL itself.

    Raises:
        BackendUnavailable: it is not installed.
    """
    try:
        available = _nccl().available
    except UserWarning:  # CuPy says so itself, by a warning, and warnings may be errors
        available = False
    if not available:
        cuda = cupy.cuda.runtime.runtimeGetVersion() // 1000
        raise BackendUnavailable(
            "NCCL's library is not installed beside CuPy", hint=f"pip install nvidia-nccl-cu{cuda}"
        )


def _nccl() -> Any:
    from cupy.cuda import nccl  # `import cupy` leaves it out

    return nccl


def version() -> int:
    """The version of NCCL: 23203 is 2.32.3."""
    return int(_nccl().get_version())


def unique_id() -> bytes:
    """A name for a new communicator. The process that asks hosts the rendezvous of its members."""
    return as_bytes(_nccl().get_unique_id())


def as_bytes(made: bytes | tuple[int, ...]) -> bytes:
    """A unique id as bytes: in CuPy 13 it is a tuple of C's chars."""
    return made if isinstance(made, bytes) else bytes(char & 0xFF for char in made)


def as_accepted(cupy: Any, unique: bytes) -> bytes | tuple[int, ...]:
    """A unique id as this CuPy's communicators take it."""
    if int(cupy.__version__.split(".")[0]) >= 14:
        return unique
    return tuple(byte - 256 if byte > 127 else byte for byte in unique)


def connect(cupy: Any, size: int, unique: bytes, rank: int) -> Any:
    """A communicator on the current device; returns when all members have asked.

    It is connected for collectives: their launches wait for nobody. NCCL would connect at the first operation
    of each algorithm, which blocks its launch until all members do, unless a variable says otherwise
    when it is first used in a process. Another variable gives kernels stacks as large as any of NCCL's needs.
    Else the driver makes them larger when the first such kernel is launched, and waits for an idle device.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    return _kept(_nccl().NcclCommunicator(size, as_accepted(cupy, unique), rank))


def can_split() -> bool:
    """Whether communicators can be made out of others."""
    nccl = _nccl()
    versions = nccl.get_version(), nccl.get_build_version()
    return hasattr(nccl.NcclCommunicator, "commSplit") and min(versions) >= _SPLITS_FROM


def split(parent: Any, rank: int | None) -> Any:
    """A communicator of some members of another; returns when all members of that have asked.

    Args:
        rank: of this process in the new one; None leaves it out, and gives None.
    """
    if rank is None:
        return parent.commSplit(_NO_COLOR, 0)
    return _kept(parent.commSplit(0, rank))


def _kept(communicator: Any) -> Any:
    """Keep a communicator from being collected: CuPy would destroy it then, which waits for the other members
    (law 11), and one that hangs in its abort must not be touched again."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(communicator))
    return communicator


def destroy_later(jobs: Sequence[Callable[[], None]]) -> None:
    """Give back what communicators hold, in the background: NCCL waits for the peers on this host."""

    def destroy(job: Callable[[], None]) -> None:
        job()
        _destroying.discard(threading.current_thread())

    for job in jobs:  # a thread each: peers may destroy theirs in another order
        thread = threading.Thread(target=destroy, args=[job], name="aiodist-nccl-destroy", daemon=True)
        _destroying.add(thread)
        thread.start()


@atexit.register
def _part() -> None:
    until = time.monotonic() + _PARTING
    for thread in list(_destroying):
        thread.join(max(until - time.monotonic(), 0))
