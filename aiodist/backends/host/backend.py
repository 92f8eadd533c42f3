"""The host backend of one group on one rank."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from aiodist import _engine
from aiodist.backends.base import Array, HostEngine, Numbers, Operation, Reports, Sent, Starter, complete
from aiodist.backends.buffers import bounds_of
from aiodist.backends.host.channels import Channels
from aiodist.backends.host.chunks import Chunks, chunks
from aiodist.backends.host.grid import Grid, contexts_of, table_of
from aiodist.backends.host.hierarchy import Hierarchy
from aiodist.backends.host.layout import Layout
from aiodist.backends.host.level import Groups
from aiodist.backends.host.local.group import LocalGroup
from aiodist.backends.host.local.plan import is_known
from aiodist.backends.host.messages import Messages
from aiodist.backends.host.messenger import HostMessenger, signature_of_bytes
from aiodist.backends.host.prepare import copies, starter
from aiodist.backends.host.resources import Resources
from aiodist.backends.host.wired import Collective
from aiodist.backends.schedules.select import UNKNOWN, heard, select
from aiodist.backends.schedules.steps import Schedule, Send, chunk_bounds
from aiodist.backends.work import GroupState, Work
from aiodist.base.errors import GroupBroken, PeerClosed, PeerLost, Tampered
from aiodist.base.operations import ROLES, Uneven
from aiodist.base.types import Call, Kind, agree
from aiodist.transport import EagerHandler, Key

NEWS = 0.1
"""Seconds from a goodbye until nobody waits for that rank. Why it left comes over the control links (it
aborted, say), may come a little later, and is the better answer."""

ON_ITS_WAY = 3.0
"""Seconds from the news that a member is gone, where it is not known what it had sent, until nothing more of
that is expected. Also from the close of the last other member until a receive from anybody ends, since this
rank may still send to itself."""

LAYOUTS = 128
"""Layouts that a group remembers; then it begins anew."""

# (peer, signature, round, bytes) of a message
Early = tuple[int, bytes, int, int]


def agreed_bytes(operation: Operation, size: int) -> int:
    """Bytes of the operation's buffer, by what all ranks agree on: selection follows from them (law 3)."""
    call, roles = operation.call, ROLES[operation.call.kind]
    sizes = operation.source_sizes if operation.target_sizes is None else operation.target_sizes
    if sizes is None:
        return call.nbytes * size if roles.agrees_on_part else call.nbytes
    return UNKNOWN if roles.uneven is Uneven.PAIRS else sum(sizes) * call.dtype.itemsize


class HostBackend(HostEngine):
    """The executor of one group's operations over the process's channels.

    Args:
        resources: the process's channels, its thread and its shared memory.
        groups: all groups of the process.
        context: 64-bit number of the group at its epoch.
        ranks: global ranks of the members, in group order.
        reports: the group.

    Attributes:
        channels: of the group, with what its operations share.
        release, failed: of these.
        messages: what members send each other.
        local: the shared memory of a group whose ranks are all on this host; None for others.
        hierarchy: of a group over hosts, for large operations; None where it has none.
        take: takes the group's eager messages (`EagerHandler`).
    """

    def __init__(
        self,
        resources: Resources,
        groups: Groups,
        context: int,
        ranks: Sequence[int],
        reports: Reports,
    ) -> None:
        self.channels = channels = Channels(resources, context, ranks, reports, groups.crowding)
        self.context, self.ranks = context, channels.ranks
        self.rank, self.size = channels.rank, channels.size
        self.reports = reports
        self.release, self.failed = channels.release, channels.failed
        self.resources = resources
        self.groups = groups
        self._running: dict[int, Collective] = {}
        self._layouts: dict[Any, Layout] = {}
        self._last: Schedule | None = None  # of the last collective, if it went over channels
        self._early: dict[int, list[Early]] = {}  # of collectives that we have yet to submit
        self._issued = 0
        self._reserved: set[int] = set()
        self.messages = Messages(channels, resources.seals)
        engine = _engine.compiled
        self._inbox = None if engine is None else self._make_inbox(engine)
        self.take: EagerHandler = self.messages.take if self._inbox is None else self._inbox
        self._dead = False
        self._gone = set(groups.gone)  # ranks that send nothing more, and all that they sent has come
        self._silent = set(groups.gone)  # those, and others that send nothing more
        self._cut_off: set[int] = set()  # members of which nothing more comes, whatever they have sent
        self._timers: set[asyncio.TimerHandle] = set()
        self._halted = False  # members disagree: the group will break, and goes no further until it does
        self.local = self._in_shared_memory()
        self.hierarchy = None if self.local is not None else self._over_hosts()

    def _make_inbox(self, engine: _engine.Compiled) -> _engine.Inbox:
        """Where the engine finds the receives that wait for small messages."""
        channels = self.channels
        members = {rank: index for index, rank in enumerate(channels.ranks)}
        return engine.Inbox(
            self.messages, members, signature_of_bytes, complete, self.resources.poller, self.resources.hub
        )

    def _in_shared_memory(self) -> LocalGroup | None:
        """The shared memory of a group whose ranks are all on this host; None for others.

        Raises:
            GroupBroken: there is no room for it.
        """
        shared = self.resources
        if not shared.all_here(self.ranks):
            return None
        assert shared.hub is not None
        assert shared.bulk is not None
        try:
            return LocalGroup(
                shared.hub, shared.bulk, self, self.context, self.ranks, self.rank, shared.limits
            )
        except MemoryError as error:
            raise GroupBroken(
                f"rank {shared.rank} has no room in shared memory for another group: {error}",
                hint="Close groups that are done, and drop arrays of pg.empty",
            ) from None

    def _over_hosts(self) -> Hierarchy | None:
        """The hierarchy of a group with equally many members, two at least, on each of several hosts."""
        table = table_of(self.resources.by_host(self.ranks))
        if not table:
            return None
        return Hierarchy(Grid(self.channels, self.groups, table, self.disagreed), self.resources.limits)

    def off_loop(self, cost_ns: float, job: Callable[[], None], done: Callable[[], None]) -> bool:
        """Do a job by the process's thread, where it is long: see `Channels.off_loop`."""
        return self.channels.off_loop(cost_ns, job, done)

    def submit(self, operation: Operation) -> None:
        """Start an operation. It has its number, and cannot be taken back: what fails breaks the group."""
        if self._dead:
            return  # of a hierarchy, whose operation has begun another that broke the group
        try:
            self._begin(operation)
        except Exception as error:
            self.failed(error)

    def _receive(self, operation: Operation) -> None:
        """Post a receive."""
        try:
            self.messages.recv(operation)
            if self._gone and self._gone.issuperset(self._senders(operation)):
                if operation.peer < 0:
                    self._later(ON_ITS_WAY, self.end_receives)
                else:
                    self.channels.loop.call_soon(self.end_receives, (), False)
            for peer in self._cut_off:
                if operation.peer in (peer, -1):
                    self.channels.loop.call_soon(self._nothing_more_comes, peer)
        except Exception as error:
            self.failed(error)

    def _hold(self, operation: Operation) -> None:
        """Post a receive two turns of the loop later."""
        messages = self.messages
        if type(operation) is Operation:  # a part of another engine's is not taken back
            operation.work._taken_back_by(messages.given_up, operation)
        messages.held_up.hold(operation, self.channels.loop, self._receive)

    def _begin(self, operation: Operation) -> None:
        call = operation.call
        if call.kind is Kind.send:
            self.messages.send(operation)
            return
        if call.kind is Kind.recv:
            # Also a part of another engine's, so that it does not overtake one of the user's.
            if self.messages.held_up.is_behind(operation.work, operation.tag, operation.peer):
                self._hold(operation)
            else:
                self._receive(operation)
            return
        reserved = call.seq in self._reserved
        self._reserved.discard(call.seq)
        self._issued = max(self._issued, call.seq + 1)
        nbytes = agreed_bytes(operation, self.size)
        if self.local is not None and nbytes != UNKNOWN and is_known(call.kind, self.size):
            if not self._halted:
                self.local.begin(operation, nbytes)
            return
        if self.hierarchy is not None and self.hierarchy.chosen(operation, nbytes, reserved):
            for peer, signature, _, _ in self._early.pop(call.seq, ()):
                self.disagreed(call.seq, peer, signature)  # a peer that agrees sends no message of this group
            self._last = None
            if not self._halted:
                self.hierarchy.begin(operation)
            return
        schedule = select(call.kind, self.rank, self.size, call.root, nbytes)
        self._last = schedule
        made = chunks(operation, self.rank, self.size, schedule)
        layout = self._layout(call, made, schedule, nbytes)
        collective = Collective(self.channels, operation, made, layout, self._completed)
        self._running[call.seq] = collective
        for early in self._early.pop(call.seq, ()):
            if not self._agrees(collective, *early):
                return
        if self._halted:
            return
        if self.local is None:
            self._start(collective)
        else:
            self.local.begin(operation, nbytes, partial(self._start, collective))

    def _start(self, collective: Collective) -> None:
        if self.resources.poller.polls:
            collective.operation.work._driven_by(collective)
        collective.start()

    def reserve(self, seq: int, operation: Operation | None = None) -> None:
        """Note a collective that is submitted later. Called twice for one held back and then staged."""
        if seq in self._reserved:
            return
        self._reserved.add(seq)
        self._issued = max(self._issued, seq + 1)
        if operation is not None and self.hierarchy is not None:
            self.hierarchy.reserve(operation, agreed_bytes(operation, self.size))

    def skip(self, seq: int) -> None:
        """Note that no collective `seq` comes, on any rank; see `HostEngine`."""
        self._reserved.discard(seq)
        self._issued = max(self._issued, seq + 1)
        for peer, signature, _, _ in self._early.pop(seq, ()):
            self.disagreed(seq, peer, signature)  # not on that one
        if self.local is not None:
            self.local.skip(seq)

    def abort(self, released: Callable[[], None]) -> None:
        """Stop everything; `released` is called when no buffer is touched any more."""
        self._dead = True
        self.resources.endpoint.cancel(self.context)
        self.halt()
        self.messages.halt()
        if self.hierarchy is not None:
            self.hierarchy.abort()
        self.release.when_free(partial(self._end, released))

    def _end(self, released: Callable[[], None]) -> None:
        """Let the Works fail, now that no buffer is touched, and keep no arrays of theirs."""
        released()
        self._running.clear()
        self.messages.forget()
        if self.local is not None:
            self.local.forget()
        if self.hierarchy is not None:
            self.hierarchy.forget()

    def retire(self) -> None:
        """Forget the group; what still comes for it is dropped."""
        self._dead = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.messages.halt()
        self.messages.forget()
        if self.local is not None:
            self.local.retire()
            self.local = None
        if self.hierarchy is not None:
            self.hierarchy.retire()
        self.groups.retire(self.context)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A new array that the ranks of this host can read."""
        return self.resources.empty(shape, dtype)

    def starter(
        self, issuer: GroupState, numbers: Numbers, note: Callable[[Work[Any]], Operation]
    ) -> Starter | None:
        """A way around `submit` for what is issued again and again, where there is one."""
        if self.size == 1:
            return starter(issuer, numbers, 0, 1, partial(copies, self.resources.limits.inline))
        return None if self.local is None else self.local.starter(issuer, numbers, note)

    def messenger(
        self,
        issuer: GroupState,
        numbers: Numbers,
        enter: Callable[[Operation], None],
        ended: Callable[[Operation], None],
    ) -> HostMessenger | None:
        """A way around `submit` for small messages, where there is one."""
        if _engine.compiled is None or self._inbox is None:
            return None
        return HostMessenger(
            *(_engine.compiled, self._inbox, self.channels, self.messages, self._receive, self._hold),
            *(issuer, numbers, enter, ended, self._silent),
        )

    def statistics(self) -> dict[str, dict[str, int]]:
        """Counts of the local engine, the shared segment, the channels and the links."""
        hub = self.resources.hub
        return {
            **({} if self.local is None else {"local": self.local.statistics()}),
            **({} if hub is None else {"segment": hub.statistics()}),
            "channels": {"running": len(self._running), "early": len(self._early)},
            "links": self.resources.endpoint.statistics(),
        }

    def subgroup(self, context: int, ranks: Sequence[int], reports: Reports) -> HostEngine:
        """The host engine of a new group."""
        return self.groups.backend(context, ranks, reports)

    def seen(self, seq: int) -> set[int]:
        """Members of this host that have begun collective `seq`; of those elsewhere nothing is seen here."""
        return set() if self.local is None else self.local.board.begun(seq)

    def take_in(self) -> bool:
        """End what peers of this host have done their part of already; channels tell of theirs in order."""
        return self.local is not None and self.local.take_in()

    def heard_nobody(self) -> bool:
        """Whether the last collective only sent, over channels."""
        steps = [] if self._last is None else [step for steps in self._last.rounds for step in steps]
        return bool(steps) and all(isinstance(step, Send) for step in steps)

    def will_not_join(self, context: int, ranks: Sequence[int]) -> None:
        """Let those who made the group find that this process is not in it; drop what comes for it."""
        hosts = self.resources.by_host(ranks)
        for part in (context, *contexts_of(hosts, self.resources.rank, context, ranks)):
            self.groups.will_not_join(part)

    # ── for the executors ────────────────────────────────────────────────────────────────────────────

    def _layout(self, call: Call, made: Chunks, schedule: Schedule, nbytes: int) -> Layout:
        """The schedule on its memory; kept where it will be the same the next time."""
        buffer, reduce = made.target, call.combine

        def laid(received: list[int], sent: list[int]) -> Layout:
            known = heard(call.kind, self.rank, self.size, call.root, nbytes)
            return Layout(schedule, received, sent, buffer.dtype, reduce, known)

        if made.target_sizes is not None or made.source_sizes is not None:
            received = bounds_of(buffer.size, made.target_sizes, self.size)
            sent = bounds_of(made.source.size, made.source_sizes, self.size)
            return laid(received, sent)
        key = (call.kind, call.root, reduce, buffer.dtype, buffer.size)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) == LAYOUTS:
                self._layouts.clear()
            bounds = chunk_bounds(buffer.size, schedule.chunks)
            layout = self._layouts[key] = laid(bounds, bounds)
        return layout

    def finished(self, operation: Operation) -> None:
        """Note that a local collective has ended well."""
        operation.succeed()

    def disagreed(self, seq: int, peer: int, theirs: bytes) -> None:
        """Report that a member of this host has published another operation."""
        if not self._dead:
            self.halt()
            self.reports.mismatch(seq, peer, theirs)

    def awaits(self, seq: int) -> bool:
        """Whether a number before this one is taken, whose operation has yet to come."""
        return any(reserved < seq for reserved in self._reserved)

    def halt(self) -> None:
        """Take part in no collective any more: the group breaks. While members are asked what they issued, a
        later one must not succeed because those that disagree are not there."""
        self._halted = True
        for collective in self._running.values():
            collective.halt()
        if self.local is not None:
            self.local.halt()
        if self.hierarchy is not None:
            self.hierarchy.halt()

    def _completed(self, collective: Collective) -> None:
        """Note that a collective has ended well."""
        del self._running[collective.operation.call.seq]
        collective.operation.succeed()

    # ── from the channels ────────────────────────────────────────────────────────────────────────────

    def arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        """Take a message of this group that came in, or was offered."""
        if self._dead:
            return
        peer = self.channels.group_rank(rank)
        if peer is None:
            return  # a non-member: its message will find no receive
        if key.stream:
            self.messages.arrived(peer, key.stream - 1, key.seq, signature, nbytes)
        elif key.seq >= self._issued or key.seq in self._reserved:
            self._early.setdefault(key.seq, []).append((peer, signature, key.part, nbytes))
        elif (collective := self._running.get(key.seq)) is not None:
            self._agrees(collective, peer, signature, key.part, nbytes)
        else:  # every message of a collective that has ended here was received: another one disagrees
            self.halt()
            self.reports.mismatch(key.seq, peer, signature)

    def crowd(self, rank: int) -> None:
        """Note that a global rank offers more messages than are remembered."""
        peer = self.channels.group_rank(rank)
        if peer is not None:
            self.channels.crowded.add(peer)
            self.messages.ask()

    def _agrees(self, collective: Collective, peer: int, signature: bytes, number: int, nbytes: int) -> bool:
        """Whether a message fits; if not, the collective goes no further, and the group is told."""
        call = collective.operation.call
        if not agree(call.signature, signature):
            self.halt()
            self.reports.mismatch(call.seq, peer, signature)
            return False
        expected = collective.expected(peer, number)
        if expected != nbytes:
            collective.halt()
            self.channels.differ(call, peer, nbytes, expected)
            return False
        collective.arriving(number)
        return True

    def tampered(self, rank: int, error: Tampered) -> None:
        """Break the group if it holds the rank: what that one sent was altered on the path."""
        if rank in self.ranks and not self._dead:
            self.reports.broken(error)

    def unasked(self) -> int:
        """The number of the user's sends that wait for nothing but their receives."""
        return self.messages.unasked()

    def sent(self) -> Sent:
        """The number of messages sent to each member, as (member, number, member, number, …)."""
        counted = enumerate(self.messages.sent)
        return (tuple(value for pair in counted if pair[1] for value in pair),)

    def rank_left(self, rank: int, sent: Sent | None) -> None:
        """Note that a member has closed this group; see `Backend`."""
        self.end_sends(rank)
        peer = self.channels.group_rank(rank)
        if peer is None or self._dead:
            return
        if sent is None:
            self._later(ON_ITS_WAY, self._nothing_more_comes, peer)
        else:
            (counts,) = sent
            mine = dict(zip(counts[::2], counts[1::2], strict=True)).get(self.rank, 0)
            then = partial(self.channels.loop.call_soon, self._all_has_come, peer)
            self.messages.when_come(peer, mine, then)

    def _all_has_come(self, peer: int) -> None:
        if not self._dead:  # with its world, perhaps, whose endpoint is closed
            self.channels.incoming(peer).poll()
            self.end_receives([self.ranks[peer]], anybodys=False)
            self._later(ON_ITS_WAY, self.end_receives)

    def rank_gone(self, rank: int) -> None:
        """Note that a global rank has closed all its groups. All that it sent has come, it seems."""
        peer = self.channels.group_rank(rank)
        if peer is None or self._dead:
            return
        if not self.messages.missing(peer):
            self.end_receives([rank])
        elif self.channels.incoming(peer).link is None:  # else it still comes
            self._nothing_more_comes(peer)

    def _nothing_more_comes(self, peer: int) -> None:
        """End what waits for a member that is gone. Messages may be lost where it died after it had closed
        the group, or closed its connections before a slow network had taken all."""
        if self._dead:
            return
        self._cut_off.add(peer)
        self._silent.add(self.ranks[peer])
        self.channels.incoming(peer).poll()
        messages, rank = self.messages, self.ranks[peer]
        missing = messages.missing(peer)
        if messages.unfinished(peer):
            why = "it had closed the group, and its last message has come in part"
            self.reports.broken(PeerLost([rank], why))
        elif missing and any(rank in self._senders(one) for one in messages.waiting()):
            why = f"it had closed the group, and its last {missing} messages have not come"
            self.reports.broken(PeerLost([rank], why))
        elif not missing:
            self.end_receives([rank])

    def end_sends(self, rank: int) -> None:
        """End the sends to a global rank that takes nothing more, now and from now on."""
        peer = self.channels.group_rank(rank)
        if peer is not None and not self._dead:
            self.messages.end_sends(peer)

    def _later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Call something, unless the group is retired by then."""
        self._timers = {timer for timer in self._timers if timer.when() > self.channels.loop.time()}
        self._timers.add(self.channels.loop.call_later(delay, callback, *arguments))

    def _senders(self, receive: Operation) -> list[int]:
        """The global ranks that a receive may get its message from; one from anybody waits for the others,
        where there are any."""
        if receive.peer >= 0:
            return [self.ranks[receive.peer]]
        return [rank for rank in self.ranks if rank != self.resources.rank] or [self.resources.rank]

    def end_receives(self, gone: Iterable[int] = (), anybodys: bool = True) -> None:
        """End the receives that nobody can answer: all that they may be from has closed, now or before.

        Args:
            gone: ranks that have closed, and all that they sent has arrived.
            anybodys: end receives from anybody, too, to which this rank may still send itself.
        """
        self._gone.update(gone)
        self._silent.update(gone)
        for operation in reversed(self.messages.waiting()):  # the first one's message goes to no other then
            ranks = self._senders(operation)
            if operation.peer < 0 and not anybodys:
                continue
            if self._dead or operation.work.done() or not self._gone.issuperset(ranks):
                continue
            if type(operation) is not Operation:  # it is a part of another engine's, which may be under way
                what = "receiving what is sent" if operation.work.op == "send" else "sending what is awaited"
                self.reports.broken(PeerLost(ranks, f"it closed its group without {what} here"))
                return
            self.messages.take_back(operation)
            operation.fail(PeerClosed(ranks))

    def close_receives(self, error: Callable[[], BaseException]) -> None:
        """End the receives for which nothing has come; of other engines' too, while that is all of them."""
        for operation in self.messages.held_up.take():
            self._receive(operation)  # its message may be here
        for operation in [] if self._dead else self.messages.waiting():
            whole = operation.whole
            if whole is not None and not whole.work.done():
                self.messages.drop(operation)
                whole.fail(error())
