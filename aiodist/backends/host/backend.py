"""The host backend of one group on one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aiodist.backends.base import CAPABILITIES, Operation, Reports
from aiodist.backends.host.messages import Messages
from aiodist.backends.host.prepare import prepare
from aiodist.backends.host.wired import Collective
from aiodist.errors import PeerLost
from aiodist.schedules import select
from aiodist.transport.base import Incoming, Key, Outgoing
from aiodist.types import Kind, agree

if TYPE_CHECKING:
    from aiodist.backends.host.engine import HostEngine


class HostBackend:
    """Carries out one group's operations over the process's channels.

    Args:
        engine: the process's channels and its thread.
        context: 64-bit number of the group at its epoch.
        ranks: global ranks of the members, in group order.
        reports: the group.
    """

    name = "host"
    capabilities = CAPABILITIES

    def __init__(self, engine: HostEngine, context: int, ranks: Sequence[int], reports: Reports) -> None:
        self.context = context
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(engine.rank)
        self.reports = reports
        self.offload = engine.offload
        self._engine = engine
        self._group_rank = {rank: index for index, rank in enumerate(self.ranks)}
        self._running: dict[int, Collective] = {}
        self._early: dict[int, list[tuple[int, bytes]]] = {}  # of collectives that we have yet to issue
        self._issued = 0
        self._messages = Messages(self)
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: dict[int, Incoming] = {}
        self._quiet: Callable[[], None] | None = None
        self._dead = False

    def submit(self, operation: Operation) -> None:
        """Start an operation."""
        call = operation.call
        if call.kind is Kind.send:
            self._messages.send(operation)
            return
        if call.kind is Kind.recv:
            self._messages.recv(operation)
            return
        nbytes = call.nbytes * self.size if call.kind is Kind.all_gather else call.nbytes
        schedule = select(call.kind, self.rank, self.size, call.root, nbytes)
        job = prepare(operation, self.rank, self.size, schedule)
        collective = Collective(self, operation, job, schedule)
        self._running[call.seq] = collective
        self._issued = call.seq + 1
        for peer, theirs in self._early.pop(call.seq, ()):
            if not agree(call.signature, theirs):
                collective.condemn()
                self.reports.mismatch(call.seq, peer, theirs)
                return
        collective.start()

    def abort(self, quiet: Callable[[], None]) -> None:
        """Stop everything; `quiet` is called when no buffer is touched any more."""
        self._dead = True
        self._engine.endpoint.cancel(self.context)
        self._quiet = quiet
        self.quietened()

    def retire(self) -> None:
        """Forget the group; what still comes for it is dropped."""
        self._engine.retire(self.context)

    def subgroup(self, context: int, ranks: Sequence[int], reports: Reports) -> HostBackend:
        """The host backend of a new group."""
        return self._engine.backend(context, ranks, reports)

    # ── for the executors ────────────────────────────────────────────────────────────────────────────

    def outgoing(self, peer: int) -> Outgoing:
        """The channel to a group rank."""
        channel = self._outgoing.get(peer)
        if channel is None:
            channel = self._outgoing[peer] = self._engine.endpoint.outgoing(self.ranks[peer])
        return channel

    def incoming(self, peer: int) -> Incoming:
        """The channel from a group rank."""
        channel = self._incoming.get(peer)
        if channel is None:
            channel = self._incoming[peer] = self._engine.endpoint.incoming(self.ranks[peer])
        return channel

    def completed(self, collective: Collective) -> None:
        """A collective has ended well."""
        del self._running[collective.operation.call.seq]
        collective.operation.succeed()

    def quietened(self) -> None:
        """A thread has let go of its buffers: after an abort, perhaps the last one."""
        if self._quiet is None:
            return
        collectives = [collective.condemn() for collective in self._running.values()]
        if all(collectives) and self._messages.condemn():
            quiet, self._quiet = self._quiet, None
            quiet()

    # ── from the channels ────────────────────────────────────────────────────────────────────────────

    def arrived(self, rank: int, key: Key, signature: bytes) -> None:
        """A message of this group came in, or was offered."""
        if self._dead:
            return
        peer = self._group_rank.get(rank)
        if peer is None:
            return  # not a member: its message will find no receive
        if key.stream:
            self._messages.arrived(peer, key.stream - 1, key.seq, signature)
        elif key.seq >= self._issued:
            self._early.setdefault(key.seq, []).append((peer, signature))
        else:
            collective = self._running.get(key.seq)
            # Every message of a collective that has ended here was received: another one disagrees.
            if collective is None or not agree(collective.operation.call.signature, signature):
                if collective is not None:
                    collective.condemn()
                self.reports.mismatch(key.seq, peer, signature)

    def departed(self, rank: int) -> None:
        """A peer closed, and all that it sent has arrived: nobody will answer a receive from it."""
        peer = self._group_rank.get(rank)
        if peer is not None and not self._dead and self._messages.waits_for(peer) is not None:
            self.reports.broken(PeerLost([rank], "it closed its group without sending what is awaited here"))
