"""The kernel: what ranks of one host share by it, and how they notice a death."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aiodist.cli.doctor.topic import Answers, Finding, Machine, describe
from aiodist.net.descriptors import receive

_TRIED = ("x86_64", "amd64")


class Feature(NamedTuple):
    """An ability of the kernel.

    Attributes:
        name: of the finding.
        attempt: uses it → what was done, in words; OSError where the kernel cannot, AttributeError where
            Python has no such call.
        cost: what is lost without.
        fix: what may mend that.
    """

    name: str
    attempt: Callable[[], str]
    cost: str
    fix: str


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Try what Linux has for aiodist; elsewhere it follows from the platform that there is none of it."""
    system = platform.system()
    yield check_platform(system, platform.release())
    yield check_processor(platform.machine())
    if system == "Linux":
        yield from map(check_feature, FEATURES)


def check_platform(system: str, release: str) -> Finding:
    """Say what the operating system is: 'Linux', '6.18.44'."""
    value = f"{system} {release}"
    if system == "Linux":
        return Finding("platform", "ok", value)
    cost = "ranks share no memory, and a death is noticed by the end of its connections alone"
    return Finding("platform", "limited", value, cost, "run it on Linux, in a container say")


def check_processor(architecture: str) -> Finding:
    """Say what the processor is: 'x86_64'."""
    if architecture.lower() in _TRIED:
        return Finding("processor", "ok", architecture)
    return Finding("processor", "limited", architecture, "aiodist has run on x86-64 only, and in an emulator")


def check_feature(feature: Feature) -> Finding:
    """Try it, and say what came of that."""
    try:
        return Finding(feature.name, "ok", feature.attempt())
    except ImportError as error:  # aiodist's own code needs a package that is not here: `packages` says which
        return Finding(feature.name, "limited", f"could not be tried: {describe(error)}")
    except AttributeError:
        trouble = "this platform has none"
    except OSError as error:
        trouble = error.strerror or str(error)
    return Finding(feature.name, "missing", trouble, feature.cost, feature.fix)


def shares_memory() -> bool:
    """Whether ranks of this host can share memory, as far as the kernel goes."""
    return all(check_feature(feature).state == "ok" for feature in (_MEMORY, _DESCRIPTORS))


def _share_memory() -> str:
    from aiodist.base.errors import BackendUnavailable
    from aiodist.transport.shm.arena import NONCE_BYTES, Window
    from aiodist.transport.shm.segment import Segment, segment_bytes

    nbytes, nonce = segment_bytes(), secrets.token_bytes(NONCE_BYTES)
    try:
        segment = Segment(nbytes, nonce)
    except BackendUnavailable as error:
        raise OSError(error.message) from None
    with contextlib.closing(segment):
        try:
            window = Window(segment.arena.fd, segment.nbytes)
        except Exception as error:
            raise OSError(f"made, but not mapped by a reader ({error})") from None
        with contextlib.closing(window):
            segment.view[-8:] = nonce[:8]  # the last page of all
            if window.nonce != nonce or window.view[-8:] != nonce[:8]:
                raise OSError("a reader does not see what was written")
    return f"a sealed memfd of {nbytes / (1 << 30):g} GiB of address space, written and read"


def _send_descriptor() -> str:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [ours.fileno()])
        _, descriptors = receive(theirs, 1, 1)
        for descriptor in descriptors:
            os.close(descriptor)
        if not descriptors:
            raise OSError("it did not arrive")
    return "sent and received"


def _watch_process() -> str:
    os.close(os.pidfd_open(os.getpid()))
    return "a process can be watched"


def _watch_thread() -> str:
    from aiodist.group.control.sentries import can_watch_threads

    if not can_watch_threads():
        raise OSError("this kernel has none")
    return "a thread can be watched"


def _set_user_timeout() -> str:
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)
    return "can be set"


_MEMORY = Feature(
    "shared memory",
    _share_memory,
    "all messages between ranks of this host go through sockets",
    "ulimit -v unlimited",
)
_DESCRIPTORS = Feature(
    "descriptors over sockets",
    _send_descriptor,
    "ranks cannot show each other their memory; all messages go through sockets",
    "run outside of this sandbox",
)
FEATURES = (
    _MEMORY,
    _DESCRIPTORS,
    Feature(
        "pidfd",
        _watch_process,
        "a death is noticed by the end of its connections alone, which a forked child may hold open",
        "use Linux 5.3 or later, and a container that allows pidfd_open",
    ),
    Feature(
        "pidfd of threads",
        _watch_thread,
        "the death of a process with much memory is noticed 10 to 60 ms later",
        "use Linux 6.9 or later",
    ),
    Feature(
        "TCP_USER_TIMEOUT",
        _set_user_timeout,
        "a host that falls silent is noticed after minutes (AIODIST_EVICT_SILENT_AFTER), not in a second",
        "run outside of this sandbox",
    ),
)
"""What is tried, in the order of the report."""
