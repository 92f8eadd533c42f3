"""The host engine: one process's channels, shared by all its groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aiodist.backends.base import Reports
from aiodist.backends.host.backend import NEWS, HostBackend
from aiodist.backends.host.resources import Resources
from aiodist.base.errors import GroupBroken, Tampered
from aiodist.transport import Endpoint, Key


class HostEngine:
    """The dispatcher of what arrives on the endpoint's channels to the group that it belongs to.

    Args:
        endpoint: the process's channels. The engine becomes its observer.
        loop: the group's loop.
        lose: called as (global rank, cause) when a channel's peer is gone.
        fail: called with what this process lacks for its channels.
        inline: run bulk work on the loop (for simulations).
        seals: dtypes whose tensors are authenticated, as what is acted on is.

    Attributes:
        resources: what the process's groups share.
        crowding: global ranks that offer more than is remembered: see `Observer.crowded`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        lose: Callable[[int, str], None],
        fail: Callable[[GroupBroken], None],
        inline: bool,
        seals: frozenset[np.dtype[Any]] = frozenset(),
    ) -> None:
        self.resources = Resources(endpoint, loop, inline, seals)
        self.rank = endpoint.rank
        self.crowding: set[int] = set()
        self._loop = loop
        self._lose = lose
        self._fail = fail
        self._backends: dict[int, HostBackend] = {}
        self._early: dict[int, list[tuple[int, Key, bytes, int]]] = {}
        self.gone: set[int] = set()
        self._going: set[int] = set()
        endpoint.observer = self

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────

    def backend(self, context: int, ranks: Sequence[int], reports: Reports) -> HostBackend:
        """Make the backend of a group, and hand over what arrived for it before."""
        backend = HostBackend(self.resources, self, context, ranks, reports)
        self._backends[context] = backend
        for rank, key, signature, nbytes in self._early.pop(context, ()):
            backend.arrived(rank, key, signature, nbytes)
        self.resources.endpoint.takers[context] = backend.take
        return backend

    def retire(self, context: int) -> None:
        """Forget a group that is gone for good."""
        self._backends.pop(context, None)
        self._early.pop(context, None)
        self.resources.endpoint.retire(context)

    def will_not_join(self, context: int) -> None:
        """Note that this process never makes a group that others may have made."""
        if (backend := self._backends.get(context)) is not None:
            backend.retire()  # it was made, and what else the group is to have could not be
            return
        if self.resources.hub is not None:
            self.resources.hub.will_not_join(context)
        self.retire(context)

    def close(self) -> None:
        """End the thread."""
        self.resources.offload.close()

    # ── Observer ─────────────────────────────────────────────────────────────────────────────────────

    def arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        """Take a message that came in, or was offered."""
        backend = self._backends.get(key.context)
        if backend is not None:
            backend.arrived(rank, key, signature, nbytes)
        else:  # of a group that this process has yet to make, or never will; the channels bound how many
            self._early.setdefault(key.context, []).append((rank, key, signature, nbytes))

    def lost(self, rank: int, cause: str) -> None:
        """Note that a peer's connection ended without goodbye."""
        self._lose(rank, cause)
        self._loop.call_later(NEWS, self._is_gone, rank)  # it had closed its groups before, perhaps

    def crowded(self, rank: int) -> None:
        """Note that a peer offers more messages than are remembered."""
        self.crowding.add(rank)
        for backend in list(self._backends.values()):
            backend.crowd(rank)

    def tampered(self, rank: int, error: Tampered) -> None:
        """Break the groups that hold a rank: what it sent was altered on the path. It is not lost."""
        named = Tampered(f"between rank {self.rank} and rank {rank} {error.message}")
        for backend in list(self._backends.values()):
            backend.tampered(rank, named)

    def unable(self, rank: int | None, error: GroupBroken) -> None:
        """End the groups that hold a rank with which this process cannot connect, or all groups."""
        self._fail(error)
        for backend in list(self._backends.values()):
            if rank is None or rank in backend.ranks:
                backend.reports.broken(error)

    def goodbye(self, rank: int) -> None:
        """Note that a peer closed on purpose; all it sent has arrived, or its connections were too slow."""
        if rank not in self._going:
            self._going.add(rank)
            self._loop.call_later(NEWS, self._is_gone, rank)

    def refuses(self, rank: int) -> None:
        """Note that a peer takes nothing more that is sent to it. Why comes over the control links."""
        self._loop.call_later(NEWS, self._end_sends, rank)

    def _end_sends(self, rank: int) -> None:
        for backend in list(self._backends.values()):
            backend.end_sends(rank)
            if rank in self.gone:
                backend.rank_gone(rank)

    def _is_gone(self, rank: int) -> None:
        self.gone.add(rank)
        for backend in list(self._backends.values()):
            backend.rank_gone(rank)
