"""One group whose ranks are all on this host: it starts operations and ends them."""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Protocol

from aiodist import _engine
from aiodist.backends.base import Array, Numbers, Operation
from aiodist.backends.buffers import buffers
from aiodist.backends.host.local.board import MASK, SLOTS, Board, span_bytes
from aiodist.backends.host.local.bulk import Bulk
from aiodist.backends.host.local.hub import Hub
from aiodist.backends.host.local.plan import Path, fitting, most_staged, path_of, plan_of, reach
from aiodist.backends.host.prepare import Span, starter
from aiodist.backends.release import BuffersInUse
from aiodist.backends.work import GroupState, Work
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.errors import GroupBroken
from aiodist.base.types import Call
from aiodist.observe.recorder.layout import ARRIVED

logger = logging.getLogger("aiodist.backends.host.local")

_PLANS = 1024  # calls that differ, of one group, that are remembered


class Owner(Protocol):
    """The group's backend.

    Attributes:
        release: held while the thread works on an operation.
    """

    @property
    def release(self) -> BuffersInUse: ...

    def finished(self, operation: Operation) -> None:
        """Note that an operation has ended well."""

    def disagreed(self, seq: int, peer: int, theirs: bytes) -> None:
        """Report that a peer's signature differs."""

    def failed(self, error: Exception) -> None:
        """Break the group: something raised that must not."""

    def awaits(self, seq: int) -> bool:
        """Whether a number before this one is taken, whose operation has yet to come."""


class LocalGroup:
    """One group on this host; see the module.

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
        limits = fitting(limits, hub.segment_bytes(ranks))
        self.board = Board(hub, context, ranks, rank, most_staged(len(ranks), limits))
        self.hub = hub
        self._bulk = bulk
        self._owner = owner
        self._limits = limits
        self._plans: dict[tuple[object, ...], _engine.Plan] = {}
        self._waiting: dict[int, _engine.Exchange] = {}  # for their slot, or for room
        self._queue: list[int] = []  # their numbers, in order
        self._told = False  # that one waits for room
        self._slots = self.board.slots
        self._in_thread: set[_engine.Exchange] = set()
        self._skipped: dict[int, list[int]] = {}  # numbers of others, by slot: the least first
        self._dead = False
        self._starter: _engine.Starter | None = None
        self._note: Callable[[Work[Any]], Operation] | None = None

    # ── starting ─────────────────────────────────────────────────────────────────────────────────────

    def plan(
        self, call: Call, nbytes: int, sizes: Sequence[int] | None = None, wired: bool = False
    ) -> _engine.Plan:
        """The plan shared by all calls like this one, whatever their number and `detail`.

        Args:
            call: the call.
            nbytes: of its buffers, as all ranks agree.
            sizes: elements of the parts, where they differ.
            wired: messages carry it.
        """
        uneven = None if sizes is None else tuple(sizes)
        key = (call.kind, call.dtype, call.shape, call.reduce, call.root, nbytes, uneven, wired)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()  # what runs goes on
            path = Path.wired if wired else path_of(call, self.board.size, nbytes, self._limits, uneven)
            plain = call if not call.detail else replace(call, detail="", offer=0)
            plan = self._plans[key] = plan_of(self.board, plain, path, self._limits, self, uneven)
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("%s, %d bytes: %s", call.describe(), nbytes, path.value)
        return plan

    def begin(self, operation: Operation, nbytes: int, wired: Callable[[], None] | None = None) -> None:
        """Start an operation, or have it wait for its slot and for room.

        Args:
            operation: the operation.
            nbytes: of its buffers, as all ranks agree.
            wired: where messages carry it: called when all ranks have published the same.
        """
        call, board = operation.call, self.board
        sizes = operation.source_sizes if operation.target_sizes is None else operation.target_sizes
        plan = self.plan(call, nbytes, None if wired else sizes, wired is not None)
        send: list[Array] = []
        recv: list[Array] = []
        made = None
        if plan.path not in (Path.wired, Path.meet):
            made = buffers(operation, board.rank, board.size, joined=False)
            send, recv = made.send, made.recv
        free = self.board.free(call.seq)
        if call.detail:
            exchange = plan.begin(call.seq, send, recv, made, call.signature)
        else:
            exchange = plan.begin(call.seq, send, recv, made)
        exchange.operation, exchange.work, exchange.start = operation, operation.work, wired
        if free and self._publish(exchange):
            self.run(exchange)
            return
        self._waiting[call.seq] = exchange
        insort(self._queue, call.seq)
        self.watch()
        if exchange.needs and free and not self._told:
            self._told = True
            text = (
                "%s #%d waits for shared memory, of which this process has %d bytes: pg.empty may have most"
            )
            logger.warning(text, call.describe(), call.seq, self.hub.room)

    def _publish(self, exchange: _engine.Exchange) -> bool:
        """Publish an operation whose slot is free, if there is room now for the staging that it needs."""
        staging = self._room(exchange) if exchange.needs else 0
        if exchange.needs and not staging:
            return False
        exchange.publish(staging)
        return True

    def _room(self, exchange: _engine.Exchange) -> int:
        """The place of the staging that an operation needs; 0 where there is no room now."""
        needs, seq = exchange.needs, exchange.seq
        staging = self.board.span(needs, seq)
        if staging:
            return staging
        if span_bytes(needs) > self.hub.room:
            raise GroupBroken(
                f"an operation of {self.board.size} ranks needs {span_bytes(needs)} bytes of shared"
                f" memory, and this process has {self.hub.room}",
                hint="Raise its limit of address space (ulimit -v), or set AIODIST_TRANSPORT=tcp everywhere",
            )
        return self.board.spare(needs, seq) if self._is_first(seq) else 0

    def staging(self, exchange: _engine.Exchange) -> int:
        """The same; 0 also where there never will be: the general way says so by the Work, under a number."""
        try:
            return self._room(exchange)
        except GroupBroken:
            return 0

    def _is_first(self, seq: int) -> bool:
        """Whether no operation before this one needs room, or may when it comes."""
        before = self._queue[: bisect_left(self._queue, seq)]
        return not any(self._waiting[other].needs for other in before) and not self._owner.awaits(seq)

    def run(self, exchange: _engine.Exchange) -> None:
        """Go on with what is published, as peers let it."""
        if exchange.plan.in_thread:
            self._in_thread.add(exchange)
            self._owner.release.hold()
            self._bulk.submit(exchange, self._let_go)
            return
        self._slots.add(exchange)
        self.watch()
        if exchange.operation is not None and not exchange.step() and not exchange.ended:
            exchange.work._driven_by(exchange)

    def watch(self) -> None:
        """Have the loop look around at the end of this turn, and go on with what waits here."""
        self._slots.watched = True
        self.hub.watch(self)

    def skip(self, seq: int) -> None:
        """Pass over the slot of a number, once it is free: no rank publishes anything under that number."""
        if not self._dead and (seq & MASK in self._skipped or not self._passes_over(seq)):
            heappush(self._skipped.setdefault(seq & MASK, []), seq)
            self.watch()

    def _pass_over(self, slot: int) -> None:
        numbers = self._skipped[slot]
        while numbers and self._passes_over(numbers[0]):
            heappop(numbers)
        if not numbers:
            del self._skipped[slot]

    def _passes_over(self, seq: int) -> bool:
        """Pass over the slot of a number if it is free → whether it is."""
        if not self._slots.pass_over(seq):
            if not self.board.free(seq):
                return False
            self.reuse(seq)
            self._slots.pass_over(seq)
        if not self._slots.end_of_turn.due:
            self.hub.end_of_turn_soon()  # it rings peers that wait for the slot
        return True

    def starter(
        self, issuer: GroupState, numbers: Numbers, note: Callable[[Work[Any]], Operation]
    ) -> _engine.Starter | None:
        """The fast path: see `Backend.starter`."""
        self._note = note
        board = self.board
        self._starter = starter(issuer, numbers, board.rank, board.size, self._span, self, self._slots)
        return self._starter

    def _span(self, call: Call) -> Span:
        """The plan of a call on arrays, where the loop carries it out, and how far it reaches: one with a
        detail to no other shape."""
        path, counts = reach(call, self.board.size, self._limits)
        counts = range(call.count, call.count + 1) if call.detail else counts
        logger.debug("%s, %d to %d elements: %s", call.describe(), counts[0], counts[-1], path.value)
        return path is not Path.bulk and plan_of(self.board, call, path, self._limits, self), counts

    def note_all(self) -> None:
        """Enter in flight what took the fast path and is pending."""
        for exchange in self._slots.exchanges():
            self._enter(exchange)

    def _enter(self, exchange: _engine.Exchange) -> None:
        if exchange.operation is None:
            assert self._note is not None
            exchange.operation = self._note(exchange.work)

    def statistics(self) -> dict[str, int]:
        """Counts of it as of now: see `ProcessGroup.statistics`."""
        return {
            "plans": len(self._plans) + (0 if self._starter is None else self._starter.count),
            "running": self._slots.count,
            "waiting": len(self._waiting),
            "in_thread": len(self._in_thread),
        }

    # ── going on ─────────────────────────────────────────────────────────────────────────────────────

    def progress(self) -> bool:
        """Go on with what waits → whether anything on the loop still does."""
        if self._dead:
            return False
        try:
            for slot in list(self._skipped):
                self._pass_over(slot)
            self._start_waiting()
        except Exception as error:
            self._owner.failed(error)
        for exchange in self._slots.exchanges():
            if not exchange.step() and not exchange.ended:  # it may have broken the group
                if exchange.seen or exchange.operation is not None:
                    self._enter(exchange)
                    exchange.compare()
                exchange.seen = True  # an await may poll for it: it is entered the next time
        self._slots.watched = not self._dead and bool(self._slots.count or self._waiting or self._skipped)
        return self._slots.watched

    def _start_waiting(self) -> None:
        """Start operations that have their slot, and room. There are too few slots for those far behind the
        first one."""
        queue = self._queue
        for seq in queue[: bisect_left(queue, queue[0] + SLOTS)] if queue else ():
            # What an earlier one began may have broken the group.
            if not self._dead and self.board.free(seq) and self._publish(self._waiting[seq]):
                del queue[bisect_left(queue, seq)]
                self.run(self._waiting.pop(seq))

    def take_in(self) -> bool:
        """End what peers have done their part of already → whether one disagrees about what has ended here
        without a look at it."""
        for exchange in self._slots.exchanges():
            if exchange.plan.path is not Path.wired:
                exchange.step()
        return self.look_back(self._slots.unseen)

    def _let_go(self, exchange: _engine.Exchange, error: Exception | None) -> None:
        """End an operation that the thread has let go of."""
        if error is not None and not exchange.ended:
            self._owner.failed(error)  # which halts it, too: it is still among those in the thread
        self._in_thread.discard(exchange)
        if exchange.ended:
            exchange.drop()
        elif error is None and not self.disagreed_before(exchange):
            self.over(exchange)
        self._owner.release.let_go()

    # ── for the engine (`plan.Owner`) ────────────────────────────────────────────────────────────────

    def arrived(self, exchange: _engine.Exchange) -> None:
        """Write down that all that an operation waits for has come."""
        exchange.operation.happened(ARRIVED)

    def over(self, exchange: _engine.Exchange) -> None:
        """End an operation that is in flight."""
        operation, wired = exchange.operation, exchange.start is not None
        exchange.note_over()
        self._slots.discard(exchange)
        exchange.drop()
        if not wired:
            operation.happened(ARRIVED)
            self._owner.finished(operation)

    def disagreed_before(self, exchange: _engine.Exchange) -> bool:
        """Whether an operation of all, which is over, shows that an earlier one was not the same on all
        ranks. Then it never ends well: it fails with the group."""
        if not exchange.plan.sees_all:
            return False
        if not self.look_back([seq for seq in self._slots.unseen if seq < exchange.seq]):
            return False
        exchange.end()
        if not exchange.plan.in_thread:
            self._slots.add(exchange)
        return True

    def failed(self, error: Exception) -> None:
        """Break the group: something raised that must not."""
        self._owner.failed(error)

    def reuse(self, seq: int) -> None:
        """Look back at a number's slot, before anything else is written there."""
        self.look_back([earlier for earlier in self._slots.unseen if not (earlier - seq) & MASK])
        self._slots.forget_unseen(seq)

    def look_back(self, numbers: Sequence[int]) -> bool:
        """Report a peer that published something else under one of these numbers → whether one did."""
        found = self.board.look_back(numbers) if numbers else None
        if found is not None:
            self.disagrees(*found)
        return found is not None

    def disagrees(self, seq: int, member: int) -> None:
        """Report that a peer has published something else. From the loop or from the thread."""
        theirs = self.board.signature_of(member, seq)
        self.hub.call(self._owner.disagreed, seq, member, theirs)

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────

    def halt(self) -> None:
        """Go no further; the thread lets go of what it has."""
        self._withdraw()
        self._dead = True
        if self._starter is not None:
            self._starter.stop()
        for exchange in (*self._waiting.values(), *self._slots.exchanges(), *self._in_thread):
            exchange.end()
        if self._in_thread:
            self._bulk.wake()

    def _withdraw(self) -> None:
        """Take back what is published and not finished: users will write to their arrays again once the Works
        have failed, and what is dropped here may be given to others."""
        self._slots.withdraw([exchange.seq for exchange in (*self._slots.exchanges(), *self._in_thread)])

    def forget(self) -> None:
        """Let go of what was in flight: it was withdrawn, and the thread has let go of it, or will."""
        self.note_all()  # in flight they fail, too
        for exchange in (*self._slots.exchanges(), *self._waiting.values()):
            exchange.drop()
        self._slots.clear()
        self._waiting.clear()
        self._queue.clear()

    def retire(self) -> None:
        """Forget the group. What peers may read stays until they have left it, too."""
        self.halt()
        self.forget()
        if self._starter is not None:
            self._starter.close()
        self._plans.clear()
        board, thread = self.board, self._in_thread  # which may still write to staging
        self.hub.leave(board.context, lambda: not thread and board.abandoned(), board.release)
