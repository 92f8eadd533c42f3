"""The host engine: one process's channels, shared by all its groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np

from aiodist.backends.base import Array, Reports
from aiodist.backends.host.backend import HostBackend
from aiodist.backends.host.driving import Driven, Poller
from aiodist.backends.host.local.bulk import Bulk
from aiodist.backends.host.local.group import LocalGroup
from aiodist.backends.host.local.hub import Hub, supported
from aiodist.backends.host.offload import Offload
from aiodist.environment.thresholds import Thresholds
from aiodist.errors import GroupBroken, Tampered
from aiodist.transport.base import Endpoint, Key

# Seconds between a peer's goodbye on its data channels and the judgement on what still waits for it. Why it
# left comes over the control links (it aborted, say), may come a little later, and is the better answer.
NEWS = 0.1


class HostEngine:
    """Hands what arrives on the endpoint's channels to the group that it belongs to.

    Args:
        endpoint: the process's channels. The engine becomes its observer.
        loop: the group's loop.
        lose: called as (global rank, cause) when a channel's peer is gone.
        fail: called with what this process lacks for its channels.
        inline: run bulk work on the loop (for simulations).

    Attributes:
        crowding: global ranks that offer more than is remembered: see `Observer.crowded`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        lose: Callable[[int, str], None],
        fail: Callable[[GroupBroken], None],
        inline: bool,
    ) -> None:
        self.endpoint = endpoint
        self.rank = endpoint.rank
        self.offload = Offload(loop, inline)
        self._inline = inline
        self._poller = Poller(loop, 0)
        self.loop = loop
        self._lose = lose
        self._fail = fail
        self._backends: dict[int, HostBackend] = {}
        self._early: dict[int, list[tuple[int, Key, bytes, int]]] = {}
        self._departed: set[int] = set()
        self.crowding: set[int] = set()
        self._limits = Thresholds()
        self._hosts: list[frozenset[int]] = []  # by global rank: who shares memory with it, itself included
        self._hub: Hub | None = None
        self._bulk: Bulk | None = None
        endpoint.observer = self

    # ── this host ────────────────────────────────────────────────────────────────────────────────────

    def settle(self, local_to: Sequence[Set[int]], limits: Thresholds) -> None:
        """It is agreed who shares memory with whom.

        Args:
            local_to: by global rank, whose memory it has proved to share. The same on all ranks.
            limits: thresholds.
        """
        self._limits = limits
        if not self._inline:  # where all ranks share one loop there is nobody to wait for
            self._poller = Poller(self.loop, limits.poll * 1e-6)
        size = len(local_to)
        near = [
            frozenset(b for b in range(size) if a == b or (b in local_to[a] and a in local_to[b]))
            for a in range(size)
        ]
        # Sharing memory is transitive, or something is odd: then those ranks go by messages.
        self._hosts = [
            group if all(near[other] == group for other in group) else frozenset([rank])
            for rank, group in enumerate(near)
        ]
        mine = self._hosts[self.rank]
        home = self.endpoint.home
        if len(mine) > 1 and home is not None and limits.local and supported():
            neighbours = {rank: self.endpoint.neighbours[rank] for rank in mine if rank != self.rank}
            self._hub = Hub(home, neighbours, self.loop, len(mine), limits.poll * 1e-6)
            self._bulk = Bulk(self._hub, self.loop)

    def local_group(self, backend: HostBackend) -> LocalGroup | None:
        """The shared memory of a group whose ranks are all on this host; None for others.

        Raises:
            GroupBroken: there is no room for it.
        """
        if self._hub is None or self._bulk is None or backend.size == 1:
            return None
        if not self._hosts[self.rank].issuperset(backend.ranks):
            return None
        try:
            return LocalGroup(
                self._hub, self._bulk, backend, backend.context, backend.ranks, backend.rank, self._limits
            )
        except MemoryError as error:
            raise GroupBroken(
                f"rank {self.rank} has no room in shared memory for another group: {error}",
                hint="Close groups that are done, and drop arrays of pg.empty",
            ) from None

    @property
    def polls(self) -> bool:
        """Whether an await polls the channels for a while."""
        return self._poller.limit > 0

    def drive(self, operation: Driven) -> None:
        """Poll for an operation over channels, as long as this turn of the loop may."""
        self._poller.drive(operation)

    @property
    def limits(self) -> Thresholds:
        """The thresholds that all ranks agree on."""
        return self._limits

    def by_host(self, ranks: Sequence[int]) -> list[list[int]]:
        """A group's members, host by host: group ranks, in order. [] where nothing is agreed yet."""
        hosts: dict[frozenset[int], list[int]] = {}
        for member, rank in enumerate(ranks if self._hosts else ()):
            hosts.setdefault(self._hosts[rank], []).append(member)
        return list(hosts.values())

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A new array where neighbours can read it, if there are any."""
        return np.empty(shape, dtype) if self._hub is None else self._hub.empty(shape, dtype)

    def leave_home(self) -> None:
        """Touch shared memory no more: it is about to be unmapped."""
        if self._bulk is not None:
            self._bulk.close()
            self._bulk = None
        if self._hub is not None:
            self._hub.close()
            self._hub = None

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────

    def backend(self, context: int, ranks: Sequence[int], reports: Reports) -> HostBackend:
        """The backend of a group; what arrived for it before is handed over."""
        backend = HostBackend(self, context, ranks, reports)
        self._backends[context] = backend
        for rank, key, signature, nbytes in self._early.pop(context, ()):
            backend.arrived(rank, key, signature, nbytes)
        return backend

    def retire(self, context: int) -> None:
        """A group is gone for good."""
        self._backends.pop(context, None)
        self._early.pop(context, None)
        self.endpoint.retire(context)

    def renounce(self, context: int) -> None:
        """This process never makes a group that others may have made."""
        if (backend := self._backends.get(context)) is not None:
            backend.retire()  # it was made, and what else the group is to have could not be
            return
        if self._hub is not None:
            self._hub.renounce(context)
        self.retire(context)

    def close(self) -> None:
        """End the thread."""
        self.offload.close()

    # ── Observer ─────────────────────────────────────────────────────────────────────────────────────

    def arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        """A message came in, or was offered."""
        backend = self._backends.get(key.context)
        if backend is not None:
            backend.arrived(rank, key, signature, nbytes)
        else:  # of a group that this process has yet to make, or never will; the channels bound how many
            self._early.setdefault(key.context, []).append((rank, key, signature, nbytes))

    def lost(self, rank: int, cause: str) -> None:
        """A peer's connection ended without goodbye."""
        self._lose(rank, cause)

    def crowded(self, rank: int) -> None:
        """A peer offers more messages than are remembered."""
        self.crowding.add(rank)
        for backend in list(self._backends.values()):
            backend.crowd(rank)

    def tampered(self, rank: int, error: Tampered) -> None:
        """Break the groups that hold a rank: somebody on the path altered what it sent. It is not lost."""
        told = Tampered(f"between rank {self.rank} and rank {rank} {error.message}")
        for backend in list(self._backends.values()):
            backend.tampered(rank, told)

    def unable(self, rank: int | None, error: GroupBroken) -> None:
        """This process cannot connect with a rank, or with any: that ends the groups which hold it."""
        self._fail(error)
        for backend in list(self._backends.values()):
            if rank is None or rank in backend.ranks:
                backend.reports.broken(error)

    def goodbye(self, rank: int) -> None:
        """A peer closed on purpose; all it sent has arrived."""
        self._departed.add(rank)
        self.loop.call_later(NEWS, self._judge_departure, rank)

    def departed(self, rank: int) -> None:
        """A receive from `rank` was posted: if it has closed already, nobody will answer."""
        if rank in self._departed:
            self.loop.call_later(NEWS, self._judge_departure, rank)

    def _judge_departure(self, rank: int) -> None:
        for backend in list(self._backends.values()):
            backend.departed(rank)
