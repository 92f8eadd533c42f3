"""What several files of tests ask."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from typing import Any

import pytest

from aiodist import _engine
from aiodist._engine import Compiled
from aiodist.backends.host.backend import HostBackend
from aiodist.base.errors import AiodistError
from aiodist.group.core import GroupCore
from aiodist.group.process_group import ProcessGroup
from aiodist.group.services.switchboard import Switchboard
from aiodist.transport.base import FRAGMENT
from aiodist.transport.mapped import BLOCKS
from aiodist.transport.shm.arena import NONCE_BYTES, PAGE
from aiodist.transport.shm.segment import HEAD, PeerSegment, Segment

BLOCKS_AT = -(-HEAD // PAGE) * PAGE
"""Where a link's blocks may begin."""


def core_of(pg: ProcessGroup) -> GroupCore:
    """What the library has of a group beside what users see. No other test reads it."""
    return pg._core


def host_of(pg: ProcessGroup) -> HostBackend:
    """A group's host engine."""
    host = core_of(pg).host
    assert isinstance(host, HostBackend)
    return host


def services_of(pg: ProcessGroup) -> Switchboard:
    """What a process has for calls, streams and messages between processes."""
    regroup = core_of(pg).family.regroup
    assert regroup is not None and regroup.services is not None
    return regroup.services


def shared(more: int = 0) -> tuple[Segment, PeerSegment]:
    """A segment with room for one link's blocks, and `more` bytes, and what a peer sees of it. Close both."""
    segment = Segment(BLOCKS_AT + BLOCKS * FRAGMENT + more, bytes(NONCE_BYTES))
    memory, bell = (os.dup(fd) for fd in segment.descriptors())
    return segment, PeerSegment(0, 0, (memory, bell), segment.nbytes, bytes(NONCE_BYTES))


async def error_of(awaitable: Awaitable[Any]) -> BaseException:
    """What an awaitable raises."""
    try:
        await awaitable
    except AiodistError as error:
        return error
    raise AssertionError("nothing was raised")


def memory_mapped() -> int:
    """How many mappings of arenas and segments this process has."""
    with open("/proc/self/maps") as file:
        return sum("memfd:aiodist" in line for line in file)


def needs_the_engine() -> Compiled:
    """The compiled engine. Skips a test where it was left aside or is not installed, and fails it where it is
    there and cannot be used."""
    if _engine.compiled is None:
        if _engine.WHY_NOT in ("AIODIST_ENGINE=python", "it is not installed"):
            pytest.skip("needs the compiled engine")
        pytest.fail(f"aiodist runs by {_engine.describe()}")
    return _engine.compiled
