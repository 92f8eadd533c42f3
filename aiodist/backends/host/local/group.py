"""One group whose ranks are all on this host: it starts operations and ends them."""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Protocol

from aiodist.backends.base import Array, Numbers, Operation
from aiodist.backends.buffers import buffers
from aiodist.backends.host.local.board import MASK, SLOTS, Board, Peer, span_bytes
from aiodist.backends.host.local.bulk import Bulk
from aiodist.backends.host.local.exchange import NOTHING, TAKE, Exchange
from aiodist.backends.host.local.fast import Fast
from aiodist.backends.host.local.hub import Hub
from aiodist.backends.host.local.kinds import exchange_for
from aiodist.backends.host.local.plan import Path, Plan, fitting, most_staged, path_of
from aiodist.backends.host.local.wired import Wired
from aiodist.backends.release import BuffersInUse
from aiodist.backends.work import GroupState, Work
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.errors import GroupBroken
from aiodist.base.types import Call
from aiodist.observe.recorder.layout import ARRIVED

logger = logging.getLogger("aiodist.backends.host.local")

_PLANS = 1024  # calls that differ, of one group, that are remembered
_KEPT = 4096  # exchanges of one group that are kept for their next use


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
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._kept = 0  # exchanges, by plans
        self._waiting: dict[int, Exchange] = {}  # for their slot, or for room
        self._queue: list[int] = []  # their numbers, in order
        self._told = False  # that one waits for room
        self._running: dict[int, Exchange] = {}  # on the loop
        self._in_thread: set[Exchange] = set()
        self._skipped: dict[int, list[int]] = {}  # numbers of others, by slot: the least first
        self._dead = False
        self._fast: Fast | None = None
        self._note: Callable[[Work[Any]], Operation] | None = None

    # ── starting ─────────────────────────────────────────────────────────────────────────────────────

    def plan(self, call: Call, nbytes: int, sizes: Sequence[int] | None = None, wired: bool = False) -> Plan:
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
                self._forget_plans()
            path = Path.wired if wired else path_of(call, self.board.size, nbytes, self._limits, uneven)
            plain = call if not call.detail else replace(call, detail="", offer=0)
            plan = self._plans[key] = Plan(self.board, plain, path, self._limits, self, uneven)
            plan.makes = exchange_for(call.kind, path)
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("%s, %d bytes: %s", call.describe(), nbytes, path.value)
        return plan

    def _forget_plans(self) -> None:
        """Forget all plans, and the exchanges that they keep. Each knows the other: a collector would have to
        find them."""
        for plan in self._plans.values():
            plan.forget()
        self._plans.clear()
        self._kept = 0
        if self._fast is not None:
            self._fast.forget()

    def exchange(self, plan: Plan, seq: int) -> Exchange:
        """An exchange for an operation whose slot is free."""
        exchange: Exchange | None = plan.kept[seq & MASK]
        if exchange is None:
            if self._kept >= _KEPT:
                self._kept = 0
                for other in self._plans.values():
                    other.kept = [None] * SLOTS
            self._kept += 1
            exchange = plan.kept[seq & MASK] = plan.makes(plan, seq)
        return exchange

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
        exchange = self.exchange(plan, call.seq) if free else plan.makes(plan, call.seq)
        exchange.reset(call.seq, send, recv)
        exchange.amend(made, call)
        exchange.operation, exchange.work = operation, operation.work
        if isinstance(exchange, Wired):
            assert wired is not None
            exchange.start = wired
        if free and self.has_room(exchange):
            self.run(exchange)
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

    def has_room(self, exchange: Exchange) -> bool:
        """Whether an operation has the staging that it needs; taken, if there is room now."""
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

    def run(self, exchange: Exchange) -> None:
        """Publish it, and go on with it as peers let it."""
        exchange.begin()
        if exchange.plan.in_thread:
            exchange.ring = self.board.ring_bulks
            self._in_thread.add(exchange)
            self._owner.release.hold()
            self._bulk.submit(exchange, self._let_go)
            return
        self._running[exchange.seq] = exchange
        hub = self.hub
        if not hub.end_of_turn_due or self not in hub.waiting:
            hub.watch(self)
        if exchange.operation is not None and not self.step(exchange) and not exchange.ended:
            exchange.work._driven_by(exchange)

    def skip(self, seq: int) -> None:
        """Pass over the slot of a number, once it is free: no rank publishes anything under that number."""
        if not self._dead:
            heappush(self._skipped.setdefault(seq & MASK, []), seq)
            self._pass_over(seq & MASK)
            if self._skipped:
                self.hub.watch(self)

    def _pass_over(self, slot: int) -> None:
        numbers, board = self._skipped[slot], self.board
        while numbers and board.free(numbers[0]):
            self.reuse(slot)
            board.pass_over(heappop(numbers))
            self.hub.end_of_turn_soon()  # it rings peers that wait for the slot
        if not numbers:
            del self._skipped[slot]

    def fast_path(self, issuer: GroupState, numbers: Numbers, note: Callable[[Work[Any]], Operation]) -> Fast:
        """The fast path: see `Backend.fast_path`."""
        self._note = note
        self._fast = Fast(self, self._running, issuer, numbers, self.board.rank, self.board.size)
        return self._fast

    def note_all(self) -> None:
        """Enter in flight what took the fast path and is pending."""
        for exchange in list(self._running.values()):
            self._enter(exchange)

    def _enter(self, exchange: Exchange) -> None:
        if exchange.operation is None:
            assert self._note is not None
            exchange.operation = self._note(exchange.work)

    def statistics(self) -> dict[str, int]:
        """Counts of it as of now: see `ProcessGroup.statistics`."""
        return {
            "plans": len(self._plans),
            "kept_exchanges": self._kept,
            "running": len(self._running),
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
        for exchange in list(self._running.values()):
            if not self.step(exchange) and not exchange.ended:  # it may have broken the group
                if exchange.seen or exchange.operation is not None:
                    self._enter(exchange)
                    exchange.compare()
                exchange.seen = True  # an await may poll for it: it is entered the next time
        return not self._dead and bool(self._running or self._waiting or self._skipped)

    def _start_waiting(self) -> None:
        """Start operations that have their slot, and room. There are too few slots for those far behind the
        first one."""
        queue = self._queue
        for seq in queue[: bisect_left(queue, queue[0] + SLOTS)] if queue else ():
            # What an earlier one began may have broken the group.
            if not self._dead and self.board.free(seq) and self.has_room(self._waiting[seq]):
                del queue[bisect_left(queue, seq)]
                self.run(self._waiting.pop(seq))

    def take_in(self) -> bool:
        """End what peers have done their part of already → whether one disagrees about what has ended here
        without a look at it."""
        for exchange in list(self._running.values()):
            if exchange.plan.path is not Path.wired and not exchange.at_work:
                self.step(exchange)
        return bool(self.board.unseen) and self.look_back(list(self.board.unseen))

    def step(self, exchange: Exchange) -> bool:
        """Have an operation advance, and end it if it is over → whether it is, or can never be."""
        if exchange.ended:
            return True
        try:
            if not exchange.advance() or exchange.ended:  # that itself may have broken the group
                if exchange.phase != TAKE and exchange.operation is not None:
                    exchange.operation.happened(ARRIVED)
                return False
        except Exception as error:
            self._owner.failed(error)
            return True
        if self.board.unseen and self._disagreed_before(exchange):
            return True
        del self._running[exchange.seq]
        self._over(exchange)
        return True

    def _disagreed_before(self, exchange: Exchange) -> bool:
        """Whether an operation of all, which is over, shows that an earlier one was not the same on all
        ranks. Then it never ends well: it fails with the group."""
        if not exchange.plan.sees_all:
            return False
        if not self.look_back([slot for slot, (seq, _) in self.board.unseen.items() if seq < exchange.seq]):
            return False
        exchange.ended = True
        self._running[exchange.seq] = exchange
        return True

    def _let_go(self, exchange: Exchange, error: Exception | None) -> None:
        """End an operation that the thread has let go of."""
        if error is not None and not exchange.ended:
            self._owner.failed(error)  # which halts it, too: it is still among those in the thread
        self._in_thread.discard(exchange)
        if exchange.ended:
            exchange.drop()
        elif error is None and not (self.board.unseen and self._disagreed_before(exchange)):
            self._over(exchange)
        self._owner.release.let_go()

    def _over(self, exchange: Exchange) -> None:
        seq, operation, work = exchange.seq, exchange.operation, exchange.work
        exchange.ended = True
        exchange.send = exchange.recv = NOTHING
        exchange.work = None
        board, hub = self.board, self.hub
        board.words[board.base + (seq & MASK)] = seq + 1  # as `Board.finished`, written out
        if not hub.end_of_turn_due:
            hub.end_of_turn_soon()  # it rings peers that wait for the slot
        if not exchange.plan.sees_all:
            if board.unseen:
                self.look_back((next(iter(board.unseen)),))
            board.unseen[seq & MASK] = seq, exchange.code
        if operation is None:
            work._finish(work._result)
            return
        exchange.drop()
        if exchange.plan.path is not Path.wired:
            operation.happened(ARRIVED)
            self._owner.finished(operation)

    def failed(self, error: Exception) -> None:
        """Break the group: something raised that must not."""
        self._owner.failed(error)

    def reuse(self, slot: int) -> None:
        """Look back at a slot, before anything else is written there."""
        if slot in self.board.unseen:
            self.look_back((slot,))
            self.board.unseen.pop(slot, None)

    def look_back(self, slots: Sequence[int]) -> bool:
        """Report a peer that published something else in one of these slots → whether one did."""
        found = self.board.look_back(slots)
        if found is not None:
            self.disagrees(*found)
        return found is not None

    def disagrees(self, seq: int, peer: Peer) -> None:
        """Report that a peer has published something else. Called from the loop or from the thread."""
        theirs = self.board.signature_of(peer, seq)
        self.hub.call(self._owner.disagreed, seq, peer.member, theirs)

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────

    def halt(self) -> None:
        """Go no further; the thread lets go of what it has."""
        self._withdraw()
        self._dead = True
        if self._fast is not None:
            self._fast.closed = True
        for exchange in (*self._waiting.values(), *self._running.values(), *self._in_thread):
            exchange.ended = True
        if self._in_thread:
            self._bulk.wake()

    def _withdraw(self) -> None:
        """Take back what is published and not finished: users will write to their arrays again once the Works
        have failed, and what is dropped here may be given to others."""
        self.board.withdraw(exchange.head for exchange in (*self._running.values(), *self._in_thread))

    def forget(self) -> None:
        """Let go of what was in flight: it was withdrawn, and the thread has let go of it, or will."""
        self.note_all()  # in flight they fail, too
        for exchange in (*self._running.values(), *self._waiting.values()):
            exchange.drop()  # plans keep exchanges, and those must not keep users' arrays
        self._running.clear()
        self._waiting.clear()
        self._queue.clear()

    def retire(self) -> None:
        """Forget the group. What peers may read stays until they have left it, too."""
        self.halt()
        self.forget()
        if self._fast is not None:
            self._fast.close()
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
        board, thread = self.board, self._in_thread  # which may still write to staging
        self.hub.leave(board.context, lambda: not thread and board.abandoned(), board.release)
