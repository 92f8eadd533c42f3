"""What a forked child has in the place of this process's descriptors and event loops.

A fork copies the numbers of descriptors, not what is behind them. A child that leaves an event loop takes
its parent's sockets out of the epoll instance that both share. What the child reads, the parent does not get.
What the child sends, or shuts down, the peers take for the parent's. So before a child's first line:

- each descriptor that was named by `own` leads nowhere: reads find nothing, what is written is dropped. The
  number stays taken, so whatever closes it later closes nothing else.
- each loop that was named by `own_loop` has an epoll instance and wake-up sockets of its own. What the
  program watches on the loop is watched there, too.

libuv has a function for its loops. It is called only where the loop belongs to the thread that forked: other
threads' loops may have been copied in the middle of a change, and nothing in the child runs them.

At the end of a process libuv waits for the threads of its pool. Where the parent's pool had been started, by
a program that looks up names on uvloop say, the child waits for threads that it does not have, and crashes.
So the child starts a pool of its own before it ends.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import select
import selectors
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

H = TypeVar("H")


class _Uv(NamedTuple):
    """A loop of uvloop, as libuv knows it."""

    library: Any
    address: int


class _Loop(NamedTuple):
    """A loop, by the thread that named it."""

    thread: int
    uv: _Uv | None


_owners: weakref.WeakKeyDictionary[Any, Callable[[Any], Iterable[int]]] = weakref.WeakKeyDictionary()
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()
_REQUEST = 1024  # bytes, more than any of libuv's takes

_far: list[socket.socket] = []  # in a child: the other ends of what leads nowhere


def own(owner: H, descriptors: Callable[[H], Iterable[int]]) -> H:
    """Have descriptors of this process lead nowhere in forked children → the owner.

    Args:
        owner: lives as long as they do; it is held weakly.
        descriptors: gives those that it has now; negative ones are passed over.
    """
    _owners[owner] = descriptors
    return owner


def own_socket(sock: socket.socket) -> socket.socket:
    """Have a socket lead nowhere in forked children, and the running loop be their own → the socket."""
    _owners[sock] = _number
    loop = asyncio._get_running_loop()
    if loop is not None and loop not in _loops:
        own_loop(loop)
    return sock


def own_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Have forked children share nothing of a loop. Call it in the loop's thread; again it does nothing."""
    if loop not in _loops:
        _loops[loop] = _Loop(threading.get_ident(), _uv(loop))


class Owned:
    """A descriptor that leads nowhere in forked children: a lock's, say, which would hold while they live.

    Args:
        number: the descriptor, which this object closes.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        own(self, lambda owned: (owned.number,))

    def close(self) -> None:
        """Close it. May be called again."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)


def _number(sock: socket.socket) -> Iterable[int]:
    return (sock.fileno(),)


def _uv(loop: asyncio.AbstractEventLoop) -> _Uv | None:
    """A loop's libuv, looked up in the parent: a child of a process with threads had better load nothing."""
    module = sys.modules.get("uvloop.loop")
    if module is None or not isinstance(loop, module.Loop):
        return None
    import ctypes  # not in a launcher, which has no such loop

    library = ctypes.CDLL(module.__file__)
    try:
        for function in library.uv_loop_fork, library.uv_backend_fd:
            function.argtypes = (ctypes.c_void_p,)
    except AttributeError:  # a build that shows them to nobody
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return _Uv(library, pointer(module.libuv_get_loop_t_ptr(loop), None))


# ── in the child ─────────────────────────────────────────────────────────────────────────────────────────


def _in_child() -> None:
    _lead_nowhere()
    here = threading.get_ident()
    for loop, (thread, uv) in list(_loops.items()):
        if not loop.is_closed():
            with contextlib.suppress(OSError):  # of the next loop as well, as far as it goes
                _renew_wakeups(loop)
                if uv is None:
                    _renew_selector(getattr(loop, "_selector", None))
                elif thread == here:
                    uv.library.uv_loop_fork(uv.address)
                else:
                    with select.epoll() as fresh:
                        os.dup2(fresh.fileno(), uv.library.uv_backend_fd(uv.address), inheritable=False)
    library = next((uv.library for _, uv in list(_loops.values()) if uv is not None), None)
    if library is not None and _has_pool(os.getppid()):
        atexit.register(_start_pool, library)


def _has_pool(process: int) -> bool:
    """Whether threads of libuv's pool run in a process. Before libuv 1.50 they had no name: none is seen."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                if (thread / "comm").read_bytes().startswith(b"libuv-worker"):
                    return True
    return False


def _start_pool(library: Any) -> None:
    """Start the pool of this process, by a job that does nothing, on a loop that never runs."""
    import ctypes

    loop, request = (ctypes.create_string_buffer(size) for size in (library.uv_loop_size(), _REQUEST))
    for kept in (loop, request):  # a thread may look at them until the very end
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    if not library.uv_loop_init(loop):
        library.uv_queue_work(loop, request, library.uv_loop_size, None)


def _lead_nowhere() -> None:
    numbers = [number for owner, of in list(_owners.items()) for number in of(owner) if number >= 0]
    if not numbers:
        return
    try:
        near, far = socket.socketpair()
    except OSError:  # no descriptor is left: at least nothing is shared
        for number in numbers:
            os.close(number)
        return
    near.setblocking(False)
    _far.append(far)
    with near:
        for number in numbers:
            os.dup2(near.fileno(), number, inheritable=False)


def _renew_wakeups(loop: asyncio.AbstractEventLoop) -> None:
    """Replace the sockets by which signals and other threads wake a loop. The parent's would wake the parent,
    and a byte that the child reads is one that the parent does not get."""
    old = [end for end in _wakeups(loop) if end.fileno() >= 0]
    if len(old) == 2:
        for end, fresh in zip(old, socket.socketpair(), strict=True):
            with fresh:
                fresh.setblocking(False)
                os.dup2(fresh.fileno(), end.fileno(), inheritable=False)


def _wakeups(loop: asyncio.AbstractEventLoop) -> Iterator[socket.socket]:
    """The reading end and the writing one. uvloop's are attributes that only the collector is shown."""
    known = [getattr(loop, name, None) for name in ("_ssock", "_csock")]
    for found in known if any(known) else gc.get_referents(loop):
        if isinstance(found, socket.socket):
            yield found


def _renew_selector(selector: Any) -> None:
    """Give a selector an epoll instance of its own, under the same number, that watches the same."""
    if not isinstance(selector, selectors.EpollSelector):
        return  # others have nothing in the kernel, or nothing that a child inherits
    with select.epoll() as fresh:
        for key in list(selector.get_map().values()):
            reads = select.EPOLLIN if key.events & selectors.EVENT_READ else 0
            writes = select.EPOLLOUT if key.events & selectors.EVENT_WRITE else 0
            with contextlib.suppress(OSError):  # it was closed, and is still known
                fresh.register(key.fd, reads | writes)
        os.dup2(fresh.fileno(), selector.fileno(), inheritable=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
