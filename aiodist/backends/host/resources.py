"""The resources that the host groups of one process share: channels, a thread, memory, and the hosts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.host.driving import Poller
from aiodist.backends.host.local.bulk import Bulk
from aiodist.backends.host.local.hub import Hub, supported
from aiodist.backends.host.offload import Offload
from aiodist.base.environment.thresholds import Thresholds
from aiodist.net.turn import Turn
from aiodist.transport import Endpoint

logger = logging.getLogger("aiodist.backends.host")


def hosts_of(local_to: Sequence[Set[int]]) -> list[frozenset[int]]:
    """The ranks of each rank's host, itself included, from whom each has proved to share memory with; all by
    global rank. The same object for all ranks of a host: there may be hundreds."""
    known: dict[frozenset[int], frozenset[int]] = {}
    sharing = []
    for a, proved in enumerate(local_to):
        group = frozenset({a, *(b for b in proved if 0 <= b < len(local_to) and a in local_to[b])})
        sharing.append(known.setdefault(group, group))
    # Sharing memory is transitive, or something is odd: then those ranks go by messages.
    whole = {group for group in known if all(sharing[other] is group for other in group)}
    return [group if group in whole else frozenset([rank]) for rank, group in enumerate(sharing)]


class Resources:
    """The resources of one process; see the module.

    Args:
        endpoint: the process's channels.
        loop: the groups' loop.
        inline: run bulk work on the loop (for simulations).
        seals: dtypes whose tensors are authenticated, as what is acted on is, where the connections do that.

    Attributes:
        rank: global rank of this process.
        seals: as given.
        limits: the thresholds that all ranks agree on.
        poller: polls the channels while an operation is awaited.
        hub, bulk: this process's side of shared memory; None where no other rank shares it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        inline: bool,
        seals: frozenset[np.dtype[Any]] = frozenset(),
    ) -> None:
        self.seals = seals
        self.endpoint = endpoint
        self.loop = loop
        self.rank = endpoint.rank
        self.offload = Offload(loop, inline)
        self.limits = Thresholds()
        self.poller = Poller(Turn.of(loop), 0.0)
        self.hub: Hub | None = None
        self.bulk: Bulk | None = None
        self._inline = inline
        self._hosts: list[frozenset[int]] = []  # by global rank: who shares memory with it, itself included

    def set_local(self, local_to: Sequence[Set[int]], limits: Thresholds) -> None:
        """Set which ranks share memory, once all ranks agree on it.

        Args:
            local_to: by global rank, the ranks whose memory it has proved to share. The same on all ranks.
            limits: thresholds.
        """
        self.limits = limits
        poll = limits.poll * 1e-6
        if not self._inline:  # where all ranks share one loop there is nobody to wait for
            self.poller = Poller(Turn.of(self.loop), poll)
        self._hosts = hosts_of(local_to)
        mine = self._hosts[self.rank]
        logger.debug("rank %d shares memory with %s", self.rank, sorted(mine - {self.rank}) or "nobody")
        segment = self.endpoint.segment
        if len(mine) > 1 and segment is not None and limits.local and supported():
            peer_segments = {rank: self.endpoint.peer_segments[rank] for rank in mine if rank != self.rank}
            self.hub = Hub(segment, peer_segments, self.loop, len(mine), poll)
            self.bulk = Bulk(self.hub, self.loop)
            self.endpoint.wake_by(self.hub)

    def all_here(self, ranks: Sequence[int]) -> bool:
        """Whether global ranks are all on this host, more than one, and share memory."""
        return self.hub is not None and len(ranks) > 1 and self._hosts[self.rank].issuperset(ranks)

    def by_host(self, ranks: Sequence[int]) -> list[list[int]]:
        """A group's members, host by host: group ranks, in order. [] where nothing is agreed yet."""
        hosts: dict[frozenset[int], list[int]] = {}
        for member, rank in enumerate(ranks if self._hosts else ()):
            hosts.setdefault(self._hosts[rank], []).append(member)
        return list(hosts.values())

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A new array where other ranks of this host can read it, if there are any."""
        return np.empty(shape, dtype) if self.hub is None else self.hub.empty(shape, dtype)

    def leave_segment(self) -> None:
        """Touch shared memory no more: it is about to be unmapped."""
        if self.bulk is not None:
            self.bulk.close()
            self.bulk = None
        if self.hub is not None:
            self.endpoint.wake_by(None)
            self.hub.close()
            self.hub = None
