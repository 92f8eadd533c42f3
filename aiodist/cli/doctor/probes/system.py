"""The kernel, the processors and the limits of this process."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from aiodist.base.environment.cores import affinity, quota
from aiodist.net.descriptors import receive


@dataclass(frozen=True)
class Kernel:
    """The abilities of the operating system. A text that is not '' says why it cannot.

    Attributes:
        system: 'Linux'.
        release: '6.18.44'.
        machine: 'x86_64'.
        memory: a segment (a sealed memfd) made, mapped, written, and read through another mapping.
        memory_bytes: of its address space.
        pidfd: a process can be watched.
        thread_pidfd: a thread can.
        user_timeout: TCP_USER_TIMEOUT can be set.
        descriptors: a descriptor can be sent over a Unix socket.
    """

    system: str
    release: str
    machine: str
    memory: str = ""
    memory_bytes: int = 0
    pidfd: str = ""
    thread_pidfd: str = ""
    user_timeout: str = ""
    descriptors: str = ""


@dataclass(frozen=True)
class Room:
    """The resources that this process may use.

    Attributes:
        cpus: of the machine.
        affinity: CPUs that this process may run on.
        quota: CPUs that its container may use, None: no quota.
        open_files: descriptors, -1: no limit.
        open_files_hard: how far it may raise that.
    """

    cpus: int
    affinity: int
    quota: float | None
    open_files: int
    open_files_hard: int

    @property
    def cores(self) -> float:
        """The number of its threads that can run at once."""
        return self.affinity if self.quota is None else min(self.affinity, self.quota)


def kernel() -> Kernel:
    """Try it all."""
    memory, nbytes = _memory()
    return Kernel(
        platform.system(),
        platform.release(),
        platform.machine(),
        memory,
        nbytes,
        _trouble(_watch_process),
        _trouble(_watch_thread),
        _trouble(_set_user_timeout),
        _trouble(_send_descriptor),
    )


def room() -> Room:
    """Read it all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return Room(
        os.cpu_count() or 1,
        affinity(),
        quota(),
        -1 if soft == endless else soft,
        -1 if hard == endless else hard,
    )


def _memory() -> tuple[str, int]:
    """Why there is no shared memory, or ''; the bytes of a segment."""
    from aiodist.base.errors import BackendUnavailable
    from aiodist.transport.shm.arena import NONCE_BYTES, Window
    from aiodist.transport.shm.segment import Segment, segment_bytes

    nbytes, nonce = segment_bytes(), secrets.token_bytes(NONCE_BYTES)
    try:
        segment = Segment(nbytes, nonce)
    except BackendUnavailable as error:
        return error.message, nbytes
    with contextlib.closing(segment):
        try:
            window = Window(segment.arena.fd, segment.nbytes)
        except Exception as error:
            return f"made, but not mapped by a reader ({error})", nbytes
        with contextlib.closing(window):
            segment.view[-8:] = nonce[:8]  # the last page of all
            same = window.nonce == nonce and window.view[-8:] == nonce[:8]
    return "" if same else "a reader does not see what was written", nbytes


def _watch_process() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _watch_thread() -> None:
    from aiodist.group.control.sentries import can_watch_threads

    if not can_watch_threads():
        raise OSError("this kernel has none")


def _set_user_timeout() -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)


def _send_descriptor() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [ours.fileno()])
        _, descriptors = receive(theirs, 1, 1)
        for descriptor in descriptors:
            os.close(descriptor)
        if not descriptors:
            raise OSError("it did not arrive")


def _trouble(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except AttributeError:
        return "this platform has none"
    except OSError as error:
        return error.strerror or str(error)
    return ""
