"""all_reduce of a few bytes, without anything that it does not need.

The general path makes a call, an operation, a generator and an entry in flight for everything; that is
15 µs of Python. What loops do again and again is the same all_reduce of a small contiguous array, so this is
worked out once for each dtype, shape and op, and then takes a copy into the slot, a word, a look at the
peers' words, one reduction and a copy back. All checks are on: the word that publishes it stands for the
whole signature, and whatever is still pending when the loop turns is entered in flight, with its deadline
and stall clock.

On the other ranks the same operation may run as `share.ReduceEach`: both publish and reduce alike.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aiodist.backends.base import Array, Operation
from aiodist.backends.host.local.board import (
    CODE,
    FILL,
    MASK,
    OUT,
    RESULT,
    SLOTS,
    SOURCE,
    TOOK,
    TOOK_OUT,
    ZEROS,
    place_of,
    place_word,
)
from aiodist.backends.host.local.hub import ASLEEP_LOOP
from aiodist.backends.host.local.plan import Path, path_of
from aiodist.backends.host.local.quick_work import DONE, PENDING, QuickPlan, QuickWork
from aiodist.kernels import quiet
from aiodist.types import DTYPE_CODES, Call, Kind, Premultiplied, ReduceOp, check_reduction
from aiodist.work import Failures, Pulse

if TYPE_CHECKING:
    from aiodist.backends.host.local.group import LocalGroup
    from aiodist.environment.thresholds import Thresholds

_PLAIN = frozenset("?bBhHiIlLqQfd")  # dtypes that one ufunc call reduces
_SPINS = 8  # looks at the peers' words before the core is offered to others
_SUM = ReduceOp.SUM


class Issuer(Protocol):
    """The group, as far as it is needed here.

    Attributes:
        _issued: the next collective's number.
    """

    _issued: int
    _loop: asyncio.AbstractEventLoop
    _pulse: Pulse
    _failures: Failures


class Quick:
    """The quick path of one group.

    Args:
        local: the group's shared memory.
        issuer: the group.
        limits: thresholds.
        note: enters an operation in flight; called for what is pending when the loop turns.
    """

    def __init__(
        self,
        local: LocalGroup,
        issuer: Issuer,
        limits: Thresholds,
        note: Callable[[QuickWork], Operation],
    ) -> None:
        board = local.board
        self.issuer = issuer
        self._thread = get_ident()
        self._turning = issuer._loop.is_running  # in this thread no other loop runs, then
        self.pulse = issuer._pulse
        self.pending: dict[int, QuickWork] = {}
        self.dead = False
        self._local = local
        self._board = board
        self._hub = local.hub
        self._limits = limits
        self._note = note
        self._words = board.words
        self._base = board.base
        self._low = board.low
        self._peers: tuple[tuple[memoryview, int], ...] = ()  # words and base of each, once all are found
        self._sums: dict[Any, QuickPlan | None] = {}
        self._others: dict[Any, QuickPlan | None] = {}
        self._recent: list[tuple[int, Call] | None] = [None] * SLOTS
        self._heads = [board.head(slot) + CODE for slot in range(SLOTS)]
        self._signed = board.signed
        self._run = quiet.run  # this thread's
        gate = threading.Lock()
        self._fence, self._open = gate.acquire, gate.release

    def all_reduce(self, tensor: Any, op: ReduceOp | Premultiplied, held: bool) -> QuickWork | None:
        """Start it, if it is a case for this path; else None, and nothing has happened."""
        try:
            if op is _SUM:
                plan = self._sums[tensor.dtype, tensor.shape]
            else:
                plan = self._others[op, tensor.dtype, tensor.shape]
        except (KeyError, AttributeError, TypeError):
            plan = self._planned(tensor, op)
        if (
            plan is None
            or type(tensor) is not np.ndarray
            or not tensor.flags.carray
            or get_ident() != self._thread
            or not self._turning()
            or self.dead
        ):
            return None
        issuer, words = self.issuer, self._words
        seq = issuer._issued
        slot = seq & MASK
        if seq >= SLOTS:  # is the slot free?
            before = seq - SLOTS
            if words[self._base + slot] <= before:
                return None
            for theirs, base in self._peers:
                if theirs[base + slot] <= before:
                    return None
        head = self._heads[slot]
        word = plan.digest | (seq + 1) & self._low
        if plan.spans:
            places = self._room(plan, seq, tensor)
            if places is None:
                return None
            work = QuickWork(self, plan, seq, head, word, tensor, held)
            self._fill(work, *places)
        else:
            work = QuickWork(self, plan, seq, head, word, tensor, held)
            place = plan.places[slot] or self._place(plan, slot)
            if self._signed[slot] is not plan:
                self._sign(plan, slot, seq, head)
            place[0][...] = tensor
        issuer._issued = seq + 1
        words[self._base + head] = word
        self._fence()  # as hub.ring does, written out
        self._open()
        for theirs, _ in self._peers:
            if theirs[ASLEEP_LOOP]:
                self._hub.ring(self._board.nears)
                break
        self._recent[slot] = (seq, plan.call)
        self.pending[seq] = work
        hub = self._hub
        if hub.rest_due and self._local in hub.groups:
            return work
        hub.watch(self._local)
        return work

    def here(self) -> bool:
        """Whether the caller runs on the group's loop. Asking asyncio costs a system call (getpid)."""
        return get_ident() == self._thread and self._turning()

    def poll(self, work: QuickWork) -> bool:
        """Look for the peers' words, as long as this turn of the loop may; whether the operation is over."""
        try:
            return self._poll(work)
        except Exception as error:  # the user's array was made read-only, say
            self._local.failed(error)
            return work._state != PENDING

    def _poll(self, work: QuickWork) -> bool:
        if self.dead:  # withdrawn: a later one must not succeed while members are asked what they issued
            return work._state != PENDING
        if self.look(work):
            return True
        hub = self._hub
        ends = hub.may_poll()
        spins = 1 if hub.crowded else _SPINS
        while not self.dead:
            for _ in range(spins):
                if self.look(work):
                    return True
            os.sched_yield()  # the peer may wait for this very core
            if time.monotonic() >= ends:
                break
        return work._state != PENDING

    def look(self, work: QuickWork) -> bool:
        """End an operation if all have published it; whether it is over."""
        if work._phase:
            return self._look_again(work)
        head, word = work._head, work._word
        for theirs, base in self._peers:
            if theirs[base + head] != word:
                return False
        if work._state != PENDING:
            return True
        plan = work._plan
        if plan.split:
            return self._reduce_part(work)
        inputs = self._inputs(work) if plan.spans else plan.places[work._seq & MASK][1]  # type: ignore[index]
        out = plan.out
        run = self._run
        run(plan.ufunc, inputs[0], inputs[1], out=out)
        for other in inputs[2:]:
            run(plan.ufunc, out, other, out=out)
        if plan.divisor:
            run(np.divide, out, plan.divisor, out=out)
        tensor: Any = work._result
        tensor[...] = out
        self._over(work)
        return True

    def _over(self, work: QuickWork) -> None:
        """An operation has ended well."""
        seq = work._seq
        self._words[self._base + (seq & MASK)] = seq + 1
        work._state = DONE
        del self.pending[seq]
        if not self._hub.rest_due:
            self._hub.rest_soon()
        if work._operation is not None:
            work._operation.ended(work._operation)
        if work._waiters is not None or work._callbacks is not None:
            work._wake()

    # ── what does not fit a slot ─────────────────────────────────────────────────────────────────────
    # The same words and places as `share.ReduceEach` and `reduce_all.ReduceAll` use in one block.

    def _room(self, plan: QuickPlan, seq: int, tensor: Array) -> tuple[int, int, bool] | None:
        """Where source and result lie, and whether that is the user's array; None: there is no room now."""
        board = self._board
        if not plan.split:
            at = board.span(plan.nbytes, seq)
            return (at, 0, False) if at else None
        if self._hub.leases and (lies := self._hub.offset_of(tensor)):
            return lies, lies, True
        at = board.span(plan.lane * board.size, seq)
        return (at, at + plan.lane * (board.size - 1), False) if at else None

    def _fill(self, work: QuickWork, at: int, result: int, shown: bool) -> None:
        """Copy in what peers read, and say where it is."""
        plan, board, words = work._plan, self._board, self._words
        base = self._base + work._head
        tensor: Any = work._result
        words[base + FILL : base + RESULT + 1] = ZEROS
        if not plan.split:
            plan.view(board.bytes, at, plan.count).reshape(plan.call.shape)[...] = tensor
        elif not shown:
            rank, bounds, lane = board.rank, plan.bounds, plan.lane
            flat = tensor.reshape(-1)
            place = at
            for member in range(board.size):
                if member != rank:
                    low, high = bounds[member], bounds[member + 1]
                    if low < high:
                        plan.view(board.bytes, place, high - low)[...] = flat[low:high]
                    place += lane
        work._at, work._result_at, work._shown = at, result, shown
        words[base + FILL] = 1
        words[base + SOURCE] = place_word(at, shown)
        words[base + RESULT] = place_word(result, shown)
        self._signed[work._seq & MASK] = None
        board.write_signature(work._seq, plan.signature)

    def _inputs(self, work: QuickWork) -> list[Array]:
        """All ranks' payloads, in rank order."""
        plan, board, offset = work._plan, self._board, work._head + SOURCE
        shape, count = plan.call.shape, plan.count
        inputs = [
            plan.theirs(peer, place_of(peer.words[peer.base + offset])[0], count).reshape(shape)
            for peer in board.peers
        ]
        inputs.insert(board.rank, plan.view(board.bytes, work._at, count).reshape(shape))
        return inputs

    def _reduce_part(self, work: QuickWork) -> bool:
        """All ranks' blocks of my part are there: combine them, and hand out the result.

        After it an operation's phase is 1: my part is out; then 2: the others' are collected. It is 3 where a
        peer has withdrawn.
        """
        plan, board, words = work._plan, self._board, self._words
        offset = work._head
        for theirs, base in self._peers:
            if not theirs[base + offset + FILL]:
                return False  # it has published, and still fills (the ordinary path may)
        rank, size = board.rank, board.size
        low, high = plan.bounds[rank], plan.bounds[rank + 1]
        tensor: Any = work._result
        flat = tensor.reshape(-1)
        if low < high:
            count, own = high - low, flat[low:high]
            shown = work._shown
            out = own if shown else plan.view(board.bytes, work._result_at, count)
            total = None
            for member in range(size):
                part = own
                if member != rank:
                    peer = board.by_member[member]
                    at, exposed = place_of(peer.words[peer.base + offset + SOURCE])
                    at += low * plan.itemsize if exposed else (rank - (rank > member)) * plan.lane
                    part = plan.theirs(peer, at, count)
                if total is None:
                    total = part
                    continue
                # In place my own operand lies where the result goes, so what comes before it is put aside.
                into = np.empty(count, plan.dtype) if shown and member < rank else out
                self._run(plan.ufunc, total, part, out=into)
                total = into
            if plan.divisor:
                self._run(np.divide, out, plan.divisor, out=out)
        if self._withdrawn(work):
            return False
        mine = self._base + offset
        words[mine + TOOK] = 1
        words[mine + OUT] = 1
        self._hub.ring(board.nears)
        if low < high and not shown:
            own[...] = out
        work._phase = 1
        return self._look_again(work)

    def _look_again(self, work: QuickWork) -> bool:
        """My part is out: collect the others' as they come."""
        plan, board, offset = work._plan, self._board, work._head
        if work._state != PENDING:
            return True
        if work._phase == 3:
            return False
        if work._phase == 1:
            for theirs, base in self._peers:
                if not theirs[base + offset + OUT]:
                    return False
            tensor: Any = work._result
            flat = tensor.reshape(-1)
            for peer in board.peers:
                low, high = plan.bounds[peer.member], plan.bounds[peer.member + 1]
                if low < high:
                    at, exposed = place_of(peer.words[peer.base + offset + RESULT])
                    if exposed:
                        at += low * plan.itemsize
                    flat[low:high] = plan.theirs(peer, at, high - low)
            if self._withdrawn(work):
                return False
            self._words[self._base + offset + TOOK_OUT] = 1
            self._hub.ring(board.nears)
            work._phase = 2
        if work._shown:  # my array may be overwritten when all have read it
            for theirs, base in self._peers:
                if not theirs[base + offset + TOOK_OUT]:
                    return False
        self._over(work)
        return True

    def _withdrawn(self, work: QuickWork) -> bool:
        """Whether a peer has withdrawn the operation, whose memory was just read: see `Exchange.confirmed`.
        What lies in a slot or in staging stays until all have finished, and needs no such look."""
        head, word = work._head, work._word
        for theirs, base in self._peers:
            if theirs[base + head] != word:
                work._phase = 3
                return True
        return False

    # ── what the loop asks ───────────────────────────────────────────────────────────────────────────

    def progress(self) -> bool:
        """Look after everything that is pending, and enter it in flight; whether anything still is."""
        for work in list(self.pending.values()):
            if self.dead:
                break
            if not self.look(work):
                if work._operation is None:
                    work._operation = self._note(work)
                self._compare(work)
        return bool(self.pending) and not self.dead

    def note_all(self) -> None:
        """Enter what is pending in flight."""
        for work in list(self.pending.values()):
            if work._operation is None:
                work._operation = self._note(work)

    def forget(self) -> None:
        """Let go of what is pending: it is in flight, and fails there."""
        self.note_all()
        self.pending.clear()

    def close(self) -> None:
        """The group is gone: let go of its memory, also where users still hold works."""
        self.dead = True
        for plan in (*self._sums.values(), *self._others.values()):
            if plan is not None:
                plan.close()
        self._sums.clear()
        self._others.clear()
        self._peers = ()
        self._words = memoryview(b"")

    def call(self, seq: int) -> Call | None:
        """What was issued here under a number, unless that is long ago."""
        recent = self._recent[seq & MASK]
        if recent is None or recent[0] != seq:
            return None
        call = recent[1]
        return Call(call.kind, seq, call.dtype, call.shape, call.reduce)

    # ── once for each dtype, shape and op ────────────────────────────────────────────────────────────

    def _planned(self, tensor: Any, op: ReduceOp | Premultiplied) -> QuickPlan | None:
        if type(tensor) is not np.ndarray or tensor.dtype.char not in _PLAIN or not isinstance(op, ReduceOp):
            return None
        dtype = tensor.dtype
        if dtype not in DTYPE_CODES or not dtype.isnative or not tensor.size:
            return None
        board = self._board
        if not all(board.found(peer) for peer in board.peers):
            return None  # some rank has not made the group yet
        if not self._peers:
            self._peers = tuple((peer.words, peer.base) for peer in board.peers)
        call = Call(Kind.all_reduce, 0, dtype, tensor.shape, check_reduction(op, dtype))
        plan = None
        path = path_of(call, board.size, call.nbytes, self._limits)
        if path in (Path.direct, Path.inline):
            plan = QuickPlan(call, board.size, path is Path.inline)
        if len(self._sums) + len(self._others) > SLOTS * 4:
            self._sums.clear()
            self._others.clear()
        if op is _SUM:
            self._sums[dtype, tensor.shape] = plan
        else:
            self._others[op, dtype, tensor.shape] = plan
        return plan

    def _place(self, plan: QuickPlan, slot: int) -> tuple[Array, tuple[Array, ...]]:
        """The arrays on one slot of all ranks."""
        board, call = self._board, plan.call
        at = board.payload_at(slot)
        offset = at - board.base * 8
        mine = board.bytes[at : at + call.nbytes].view(call.dtype).reshape(call.shape)
        inputs = []
        for member in range(board.size):
            if member == board.rank:
                inputs.append(mine)
            else:
                peer = board.by_member[member]
                at = peer.base * 8 + offset
                inputs.append(peer.near.bytes[at : at + call.nbytes].view(call.dtype).reshape(call.shape))
        place = plan.places[slot] = (mine, tuple(inputs))
        return place

    def _sign(self, plan: QuickPlan, slot: int, seq: int, head: int) -> None:
        """Write what a slot says of this plan; it stays until another operation has the slot."""
        board, words = self._board, self._words
        self._signed[slot] = plan
        words[self._base + head + SOURCE] = place_word(board.payload_at(seq), exposed=False)
        words[self._base + head + RESULT] = 0
        board.write_signature(seq, plan.signature)

    def _compare(self, work: QuickWork) -> None:
        """Whether somebody has published something else under the number."""
        for peer in self._board.peers:
            theirs = peer.words[peer.base + work._head]
            if theirs and theirs != work._word and not (theirs ^ work._word) & self._low:
                self._local.disagrees(work._seq, peer)
                return
