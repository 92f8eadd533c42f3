"""One group whose ranks are all on this host: it starts operations and ends them."""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

from aiodist.backends.base import Operation
from aiodist.backends.buffers import buffers
from aiodist.backends.host.local.board import MASK, SLOTS, Board, Peer, span_bytes
from aiodist.backends.host.local.bulk import Bulk
from aiodist.backends.host.local.exchange import Exchange, Steps
from aiodist.backends.host.local.hub import Hub
from aiodist.backends.host.local.plan import Path, Plan, digest_of, most_staged, path_of
from aiodist.backends.host.local.quick import Issuer, Quick
from aiodist.backends.host.local.quick_work import QuickWork
from aiodist.backends.host.local.reduce_all import ReduceAll
from aiodist.backends.host.local.share import Meet, ReduceEach, Share
from aiodist.backends.release import Release
from aiodist.environment.thresholds import Thresholds
from aiodist.errors import GroupBroken
from aiodist.roles import ROLES, Kind

logger = logging.getLogger("aiodist")

_PLANS = 1024  # calls that differ, of one group, that are remembered


def exchange_for(kind: Kind, path: Path) -> type[Exchange]:
    """What carries out a collective with data: in two phases where everybody reduces a part of one tensor."""
    roles = ROLES[kind]
    if path is Path.direct:
        return ReduceEach
    return ReduceAll if roles.reduces and not roles.cut else Share


class Owner(Protocol):
    """The group's backend.

    Attributes:
        release: held while the thread works on an operation.
    """

    @property
    def release(self) -> Release: ...

    def finished(self, operation: Operation) -> None:
        """An operation has ended well."""

    def disagreed(self, seq: int, peer: int, theirs: bytes) -> None:
        """A peer's signature differs."""

    def failed(self, error: Exception) -> None:
        """Something raised that must not."""

    def awaits(self, seq: int) -> bool:
        """Whether a number before this one is taken, whose operation has yet to come."""


class LocalGroup:
    """See the module.

    Args:
        hub: the process's side.
        bulk: its thread.
        owner: the group's backend.
        context: names the group.
        ranks: global ranks of the members, all on this host.
        rank: this process's group rank.
        limits: thresholds.
    """

    def __init__(
        self,
        hub: Hub,
        bulk: Bulk,
        owner: Owner,
        context: int,
        ranks: Sequence[int],
        rank: int,
        limits: Thresholds,
    ) -> None:
        self.board = Board(hub, context, ranks, rank, most_staged(len(ranks), limits))
        self.hub = hub
        self._bulk = bulk
        self._owner = owner
        self._limits = limits
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._waiting: dict[int, Exchange] = {}  # for their slot, or for room
        self._queue: list[int] = []  # their numbers, in order
        self._told = False  # that one waits for room
        self._running: dict[int, Exchange] = {}  # on the loop
        self._in_thread: set[Exchange] = set()
        self._skipped: dict[int, list[int]] = {}  # numbers of others, by slot: the least first
        self._dead = False
        self.quick: Quick | None = None

    # ── starting ─────────────────────────────────────────────────────────────────────────────────────

    def begin(self, operation: Operation, nbytes: int, wired: Callable[[], None] | None = None) -> None:
        """Start an operation, or have it wait for its slot and for room.

        Args:
            operation: the operation.
            nbytes: of its buffers, as all ranks agree.
            wired: where messages carry it: called when all ranks have published the same.
        """
        call = operation.call
        key = (call.kind, call.dtype, call.shape, call.reduce, call.root, call.detail, nbytes, wired is None)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            path = Path.wired if wired else path_of(call, self.board.size, nbytes, self._limits)
            plan = self._plans[key] = Plan(digest_of(call), path)
        board = self.board
        made = None
        kind: type[Exchange]
        if plan.path is Path.wired:
            kind = Wired
        elif plan.path is Path.meet:
            kind = Meet
        else:
            kind = exchange_for(call.kind, plan.path)
            made = buffers(operation, board.rank, board.size, joined=False)
        exchange = kind(board, operation, plan, made, self._limits, self._disagrees)
        if isinstance(exchange, Wired):
            assert wired is not None
            exchange.start = wired
        free = self.board.free(call.seq)  # asked first: it may become so meanwhile, and then room is not why
        if self._admits(exchange):
            self._start(exchange)
            return
        self._waiting[call.seq] = exchange
        insort(self._queue, call.seq)
        self.hub.watch(self)
        if exchange.needs and free and not self._told:
            self._told = True
            text = (
                "%s #%d waits for shared memory, of which this process has %d bytes: pg.empty may have most"
            )
            logger.warning(text, call.describe(), call.seq, self.hub.room)

    def _admits(self, exchange: Exchange) -> bool:
        """Whether an operation may be published: its slot is free, and it has the staging that it needs."""
        if not self.board.free(exchange.seq):
            return False
        if not exchange.needs or exchange.take_room():
            return True
        if span_bytes(exchange.needs) > self.hub.room:
            raise GroupBroken(
                f"an operation of {self.board.size} ranks needs {span_bytes(exchange.needs)} bytes of shared"
                f" memory, and this process has {self.hub.room}",
                hint="Raise its limit of address space (ulimit -v), or set AIODIST_TRANSPORT=tcp everywhere",
            )
        return self._is_first(exchange.seq) and exchange.take_room(spare=True)

    def _is_first(self, seq: int) -> bool:
        """Whether no operation before this one needs room, or may when it comes."""
        before = self._queue[: bisect_left(self._queue, seq)]
        return not any(self._waiting[other].needs for other in before) and not self._owner.awaits(seq)

    def _start(self, exchange: Exchange) -> None:
        exchange.begin()
        if exchange.plan.path is Path.bulk:
            exchange.ring = self.board.ring_bulks
            self._in_thread.add(exchange)
            self._owner.release.hold()
            self._bulk.submit(exchange, self._ended)
            return
        self._running[exchange.seq] = exchange
        self.hub.watch(self)
        if not self._step(exchange):
            exchange.operation.work._driver = self

    def skip(self, seq: int) -> None:
        """Nothing is published under a number, on any rank: its slot is passed over once it is free."""
        if not self._dead:
            heappush(self._skipped.setdefault(seq & MASK, []), seq)
            self._pass_over(seq & MASK)
            if self._skipped:
                self.hub.watch(self)

    def _pass_over(self, slot: int) -> None:
        numbers, board = self._skipped[slot], self.board
        while numbers and board.free(numbers[0]):
            board.pass_over(heappop(numbers))
            self.hub.rest_soon()  # it rings for those who wait for the slot
        if not numbers:
            del self._skipped[slot]

    def make_quick(self, issuer: Issuer, note: Callable[[QuickWork], Operation]) -> Quick:
        """The quick path, for the group `issuer`; `note` enters an operation in flight."""
        self.quick = Quick(self, issuer, self._limits, note)
        return self.quick

    # ── going on ─────────────────────────────────────────────────────────────────────────────────────

    def progress(self) -> bool:
        """Go on with what waits; whether anything on the loop still does."""
        if self._dead:
            return False
        try:
            for slot in list(self._skipped):
                self._pass_over(slot)
            self._start_waiting()
            for exchange in list(self._running.values()):
                if not self._dead:
                    self._step(exchange)
            waits = self.quick is not None and self.quick.progress()
        except Exception as error:
            self._owner.failed(error)
            return False
        return not self._dead and (waits or bool(self._running or self._waiting or self._skipped))

    def _start_waiting(self) -> None:
        """Start what has its slot, and room. Slots are too few for what is that far behind the first."""
        queue = self._queue
        for seq in queue[: bisect_left(queue, queue[0] + SLOTS)] if queue else ():
            # What an earlier one began may have broken the group.
            if not self._dead and self._admits(self._waiting[seq]):
                del queue[bisect_left(queue, seq)]
                self._start(self._waiting.pop(seq))

    def poll(self, seq: int) -> None:
        """Somebody awaits an operation: try again and again, as long as this turn of the loop may poll."""
        hub = self.hub
        ends = hub.may_poll()
        try:
            while not self._dead:
                exchange = self._running.get(seq)
                if exchange is None:
                    if seq not in self._waiting:
                        return
                    self.progress()
                elif self._step(exchange):
                    return
                if time.monotonic() >= ends:
                    return
                os.sched_yield()  # the peer may wait for this very core
        except Exception as error:
            self._owner.failed(error)

    def _step(self, exchange: Exchange) -> bool:
        """Resume one; whether it is over."""
        if exchange.dead or not exchange.step() or self._dead:  # the step itself may have broken the group
            return False
        del self._running[exchange.seq]
        self._over(exchange)
        return True

    def _ended(self, exchange: Exchange, error: Exception | None) -> None:
        """The thread has let go of an operation."""
        if error is not None and not exchange.dead:
            self._owner.failed(error)  # which halts it, too: it is still among those in the thread
        self._in_thread.discard(exchange)
        if not exchange.dead and error is None:
            self._over(exchange)
        self._owner.release.let_go()

    def _over(self, exchange: Exchange) -> None:
        self.board.finished(exchange.seq)
        self.hub.rest_soon()  # it rings for those who wait for the slot
        exchange.operation.work._driver = None
        if exchange.plan.path is not Path.wired:
            self._owner.finished(exchange.operation)

    def failed(self, error: Exception) -> None:
        """Something raised that must not: the group breaks."""
        self._owner.failed(error)

    def _disagrees(self, exchange: Exchange, peer: Peer) -> None:
        self.disagrees(exchange.seq, peer)

    def disagrees(self, seq: int, peer: Peer) -> None:
        """A peer has published something else. Called from the loop or from the thread."""
        theirs = self.board.signature_of(peer, seq)
        self.hub.call(self._owner.disagreed, seq, peer.member, theirs)

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────

    def halt(self) -> None:
        """Go no further; the thread lets go of what it has."""
        self._withdraw()
        self._dead = True
        if self.quick is not None:
            self.quick.dead = True
        for exchange in (*self._waiting.values(), *self._running.values(), *self._in_thread):
            exchange.dead = True
        if self._in_thread:
            self._bulk.wake()

    def _withdraw(self) -> None:
        """Take back what is published and not finished: users will write to their arrays again once the Works
        have failed, and what is dropped here may be given to others."""
        heads = [exchange.head for exchange in (*self._running.values(), *self._in_thread)]
        if self.quick is not None:
            heads += [work._head for work in self.quick.pending.values()]
        self.board.withdraw(heads)

    def forget(self) -> None:
        """Let go of what was in flight: it was withdrawn, and the thread has let go of it, or will."""
        self._running.clear()
        self._waiting.clear()
        self._queue.clear()
        if self.quick is not None:
            self.quick.forget()

    def retire(self) -> None:
        """The group is gone. What peers may read stays until they have left it, too."""
        self._withdraw()
        self._dead = True
        self.forget()
        if self.quick is not None:
            self.quick.close()
        board, thread = self.board, self._in_thread  # which may still write to staging
        self.hub.leave(board.context, lambda: not thread and board.abandoned(), board.release)


class Wired(Exchange):
    """An operation that messages carry: its signature is published here like any other."""

    __slots__ = ("start",)
    start: Callable[[], None]

    def steps(self) -> Steps:
        yield from self.arrivals(self.board.peers)
        self.start()
