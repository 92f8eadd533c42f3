"""Several ranks' segments in one process, without sockets: hubs that see each other."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from aiodist.backends.host.local.hub import Hub, supported
from aiodist.transport.shm import available
from aiodist.transport.shm.segment import PeerSegment, Segment

if TYPE_CHECKING:
    from tests.backends.host.local.members import Member

collect_ignore_glob = [] if supported() else ["test_*.py"]  # without the engine no memory is shared

BYTES = 64 << 20


@pytest.fixture
def hubs() -> Iterator[Any]:
    """Called as `hubs(size)` with a loop running: a hub for each rank."""
    if not available():
        pytest.skip("shared memory needs Linux")
    opened: list[tuple[Hub, Segment, list[PeerSegment]]] = []

    def make(size: int, poll: float = 0.0, nbytes: int = BYTES) -> list[Hub]:
        segments = [Segment(nbytes, bytes([rank + 1] * 32)) for rank in range(size)]
        made = []
        for rank, segment in enumerate(segments):
            peers = {
                other: PeerSegment(other, 0, duplicates(theirs), theirs.nbytes, bytes([other + 1] * 32))
                for other, theirs in enumerate(segments)
                if other != rank
            }
            loop = asyncio.get_running_loop()
            made.append(Hub(segment, peers, loop, size, poll))
            opened.append((made[-1], segment, list(peers.values())))
        return made

    yield make
    for hub, segment, peers in opened:
        hub.close()
        segment.close()
        for peer_segment in peers:
            peer_segment.close()


@pytest.fixture
def join(hubs: Any) -> Iterator[Callable[[list[Hub]], list[Member]]]:
    """Called as `join(hubs(size))`: a new group of all."""
    from tests.backends.host.local.members import Member

    contexts = itertools.count(1)
    joined: list[Member] = []

    def make(members: list[Hub]) -> list[Member]:
        context = next(contexts)
        group = [Member(hub, context, len(members), rank) for rank, hub in enumerate(members)]
        joined.extend(group)
        return group

    yield make
    for member in joined:
        member.close()
    joined.clear()


def duplicates(segment: Segment) -> tuple[int, int]:
    memory, bell = (os.dup(fd) for fd in segment.descriptors())
    return memory, bell
