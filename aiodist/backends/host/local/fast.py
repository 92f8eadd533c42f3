"""The fast path: a collective on plain arrays, without anything that it does not need.

The general path checks a call's arguments, makes a request, an operation and an entry in flight for all;
that is 15 µs of Python. What loops do again and again is the same call on contiguous arrays of one shape. So
the plan is kept for each kind, op, dtype, shape and root, and a call on such arrays takes a look into that
table, an exchange that is used again, and a handle. All checks are on: the word that publishes an
operation stands for the whole signature, and whatever is still pending before the loop sleeps, or when it has
turned twice, is entered in flight, with its deadline and stall clock. On the other ranks the same operation
may take the general path: both run the same exchange.
"""

from __future__ import annotations

from sys import _getframe
from threading import get_ident
from time import monotonic
from typing import Any, Protocol

import numpy as np

from aiodist.backends.arrays.view import torch_memory
from aiodist.backends.base import Array, Numbers
from aiodist.backends.buffers import cut
from aiodist.backends.host.local.board import MASK, SLOTS, Board
from aiodist.backends.host.local.exchange import Exchange
from aiodist.backends.host.local.hub import Hub
from aiodist.backends.host.local.plan import Path, Plan
from aiodist.backends.work import GroupState, Work
from aiodist.base.errors import GroupBroken, UsageError
from aiodist.base.operations import ROLES, Kind, Parts
from aiodist.base.types import DTYPE_CODES, Call, Premultiplied, ReduceOp, check_reduction
from aiodist.observe.recorder import CallSite

_SHAPES = 256  # that are remembered for each kind and op
_MOST_AXES = 32  # of an array, in every NumPy
_NO_OP = 0
_ANY_ROOT = -1
_BROADCAST, _SCATTER = Kind.broadcast, Kind.scatter


class Running(Protocol):
    """The group's exchanges, as far as they are needed here."""

    board: Board
    hub: Hub

    def progress(self) -> bool:
        """Go on with what waits → whether anything on the loop still does."""

    def exchange(self, plan: Plan, seq: int) -> Exchange:
        """An exchange for an operation whose slot is free."""

    def has_room(self, exchange: Exchange) -> bool:
        """Whether an operation has the staging that it needs; taken, if there is room now."""

    def note_all(self) -> None:
        """Enter in flight what went this way and is pending."""

    def failed(self, error: Exception) -> None:
        """Break the group: something raised that must not."""

    def plan(self, call: Call, nbytes: int) -> Plan:
        """The plan shared by all calls like this one."""


class CallTemplate:
    """The form that calls on plain arrays of one shape take.

    Attributes:
        plan: of the exchange.
        other_shape: of the other tensor, where one is made.
        other_shapes: that it may have where one is passed: its parts stacked, or joined along the first axis.
        alone: one tensor is given and overwritten, unless there is another.
        joined: parts of all members stay in one array.
        flat: the agreed tensor has one axis.
        sort: of such calls, in the recorder.
    """

    __slots__ = (
        *("alone", "each_from", "each_to", "flat", "gets", "gives", "joined", "other_shape", "other_shapes"),
        *("plan", "size", "sort"),
    )

    def __init__(
        self, plan: Plan, other_shapes: tuple[tuple[int, ...], ...], rank: int, size: int, sort: CallSite
    ) -> None:
        roles, root = ROLES[plan.call.kind], plan.call.root
        self.plan = plan
        self.sort = sort
        self.other_shapes = other_shapes
        self.other_shape = other_shapes[0]
        self.gives, self.gets = roles.gives(rank, root), roles.gets(rank, root)
        self.each_from = roles.source is Parts.EACH
        self.each_to = roles.target is Parts.EACH
        self.size = size
        self.joined = plan.path is Path.slot
        self.flat = len(plan.call.shape) == 1
        self.alone = roles.source is roles.target is Parts.ONE and not roles.rooted

    def parts(self, array: Array) -> list[Array]:
        """The parts of all members, of an array in which they lie side by side."""
        return [array] if self.joined else cut(array, None, self.size)


class TemplateCache:
    """The calls of one kind and op that were seen, each with its case, or None where it is none.

    Attributes:
        dtype, shape, root: of the last one; `case`: its. Loops make the same call again and again, and to
            compare these takes half as long as to look it up.
    """

    __slots__ = ("_known", "case", "dtype", "root", "shape")

    def __init__(self) -> None:
        self._known: dict[Any, CallTemplate | None] = {}
        self.dtype: Any = None
        self.shape: Any = None
        self.root: Any = None
        self.case: CallTemplate | None = None

    def find(self, dtype: Any, shape: Any, root: Any) -> CallTemplate | None:
        """The case of a call like these, unchecked; `KeyError` or `TypeError` where it is new."""
        case = self._known[dtype, shape, root]
        self.dtype, self.shape, self.root, self.case = dtype, shape, root, case
        return case

    def add(self, dtype: Any, shape: Any, root: Any, case: CallTemplate | None) -> None:
        """Remember the case of a call that is new."""
        if len(self._known) >= _SHAPES:
            self.clear()
        self._known[dtype, shape, root] = case

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
        self.dtype = self.shape = self.root = self.case = None


class Fast:
    """The fast path of one group.

    Args:
        running: the group's exchanges.
        on_loop: of these, what the loop carries out, by number.
        issuer: what the group's Works have in common.
        numbers: of the group's operations.
        rank: this process's group rank, of `size`.
    """

    def __init__(
        self,
        running: Running,
        on_loop: dict[int, Exchange],
        issuer: GroupState,
        numbers: Numbers,
        rank: int,
        size: int,
    ) -> None:
        self.closed = False
        self._running = running
        self._on_loop = on_loop
        self._hub = running.hub
        self._issuer = issuer
        self._numbers = numbers
        self._track = issuer.track
        self._keep = self._track.keep
        self._thread, self._loop_runs = issuer.thread, issuer.running
        self._board = running.board
        self._rank, self._size = rank, size
        ops = max(ReduceOp) + 1
        self._cases = [[TemplateCache() for _ in range(ops)] for _ in range(max(Kind) + 1)]
        self._barrier: CallTemplate | None = None
        self._recent: list[Exchange | None] = [None] * SLOTS

    def start(
        self,
        kind: Kind,
        lead: Any,
        other: Any,
        held: bool,
        op: ReduceOp | Premultiplied | int = _NO_OP,
        root: Any = _ANY_ROOT,
        depth: int = 1,
    ) -> Work[Any] | None:
        """Take a number and start, if this is a case for it; else None, and nothing has happened.

        Args:
            kind: a collective with tensors.
            lead: the tensor whose dtype and shape are agreed on, unchecked: the source, but for scatter.
            other: the other tensor or None, unchecked.
            op, root: what the caller passed, unchecked.
            held: the caller passed `async_op=True`.
            depth: how many calls the program's line is above this one, but for one.
        """
        if type(lead) is not np.ndarray:
            return self._start_of_torch(kind, lead, other, held, op, root, depth)
        if type(op) is not ReduceOp and op is not _NO_OP:
            return None  # before it is asked anything; others may be indices, too: torch's are
        try:
            cases = self._cases[kind][op]
            dtype, shape = lead.dtype, lead.shape
            if dtype is cases.dtype and root is cases.root and shape == cases.shape:
                case = cases.case
            else:
                case = cases.find(dtype, shape, root)
        except (
            KeyError,
            AttributeError,
            TypeError,
            IndexError,
            ValueError,
        ):  # of a root that has no hash, too
            case = self._found(kind, lead, op, root)
        if (
            case is None
            or not (flags := lead.flags).carray
            or self.closed
            or get_ident() != self._thread  # as `GroupState.here`
            or not self._loop_runs()
        ):
            return None
        if other is None and case.alone:
            both = [lead] if case.flat else [lead.ravel()]
            return self._issue(case, both, both, lead, held, depth)
        if other is not None and (
            type(other) is not np.ndarray
            or not (others := other.flags).carray
            or other.dtype != lead.dtype
            or other.shape not in case.other_shapes
            or other is lead
            # What each of two owns lies apart, which is known in a quarter of the time.
            or (not (flags.owndata and others.owndata) and np.may_share_memory(other, lead))
        ):
            return None
        arrays = self._arrays(kind, case, lead, other)
        if arrays is None:
            return None
        send, recv, result = arrays
        return self._issue(case, send, recv, result, held, depth)

    def _start_of_torch(
        self, kind: Kind, lead: Any, other: Any, held: bool, op: Any, root: Any, depth: int
    ) -> Work[Any] | None:
        """Start on the memory of torch's tensors, where no tensor has to be made for the result."""
        lead_array, roles = torch_memory(lead), ROLES[kind]
        if lead_array is None or (other is None and roles.cut and not roles.root_gives):
            return None
        other_array = None if other is None else torch_memory(other)
        if other is not None and other_array is None:
            return None
        work = self.start(kind, lead_array, other_array, held, op, root, depth + 2)
        if work is not None and work._result is not None:
            work._gives(lead if work._result is lead_array else other)
        return work

    def barrier(self, held: bool) -> Work[Any] | None:
        """Take a number and start a barrier, likewise."""
        case = self._barrier
        if case is None:
            call = Call(Kind.barrier, 0, np.dtype(np.uint8), (0,))
            plan, sort = self._running.plan(call, 0), self._track.sort_of(call)
            case = self._barrier = CallTemplate(plan, ((),), self._rank, self._size, sort)
        if self.closed or not self._issuer.here():
            return None
        return self._issue(case, [], [], None, held, 1)

    def _issue(
        self, case: CallTemplate, send: list[Array], recv: list[Array], result: Any, held: bool, depth: int
    ) -> Work[Any] | None:
        numbers, board, plan = self._numbers, self._board, case.plan
        seq = numbers.issued
        slot = seq & MASK
        before, ends = seq - SLOTS, board.ends  # as `Board.free`, written out
        if ends is None:
            if not board.free(seq):
                return None
        elif board.words[board.base + slot] <= before:
            return None
        else:
            for words, base in ends:
                if words[base + slot] <= before:
                    return None
        exchange: Exchange = plan.kept[slot] or self._running.exchange(plan, seq)
        exchange.reset(seq, send, recv)
        if exchange.needs and not self._has_room(exchange):
            return None
        numbers.issued = seq + 1
        self._recent[slot] = exchange
        exchange.begin()  # and what `LocalGroup.run` does with one that is on the loop and not in flight
        frame = _getframe(depth + 2)  # peers have it: what follows costs no time while they are awaited
        sort = case.sort  # as `Track.note`, written out
        if frame.f_code is sort.code and frame.f_lasti == sort.at:
            line = sort.line
        else:
            line = self._track.line_of(sort, frame)
        noted = (sort, seq, line, monotonic())
        self._keep(noted)
        work: Work[Any] = Work(self._issuer, plan.call, held, exchange, result, seq, noted)
        exchange.work = work
        self._on_loop[seq] = exchange
        hub = self._hub
        if not hub.end_of_turn_due or self._running not in hub.waiting:
            hub.watch(self._running)
        return work

    def _has_room(self, exchange: Exchange) -> bool:
        try:
            return self._running.has_room(exchange)
        except GroupBroken:  # there never will be: the general path says so by the Work, under a number
            return False

    def note_all(self) -> None:
        """Enter in flight what is pending."""
        self._running.note_all()

    def call(self, seq: int) -> Call | None:
        """The call that was issued here under a number, unless that is long ago."""
        recent = self._recent[seq & MASK]
        return None if recent is None or recent.seq != seq else recent.plan.call.numbered(seq)

    def close(self) -> None:
        """Let go of the group's memory, also where users still hold works."""
        self.closed = True
        self._recent = [None] * SLOTS
        self.forget()

    def forget(self) -> None:
        """Forget which calls are cases for it: their plans are gone."""
        self._barrier = None
        for ops in self._cases:
            for cases in ops:
                cases.clear()

    # ── arrays ───────────────────────────────────────────────────────────────────────────────────────

    def _arrays(
        self, kind: Kind, case: CallTemplate, lead: Array, other: Array | None
    ) -> tuple[list[Array], list[Array], Any] | None:
        """Parts that are given and taken, and the result; None where something is missing or too much."""
        one = lead if case.flat else lead.ravel()
        if kind is _BROADCAST:
            return [one] * case.gives, [one] * case.gets, lead
        if kind is _SCATTER:
            if case.gives != (other is not None):
                return None
            if other is None:
                return [], [one], lead
            return case.parts(other if other.ndim == 1 else other.ravel()), [one], lead
        if not case.gets:
            return None if other is not None else ([one], [], None)
        if not (case.each_from or case.each_to):
            if other is None:
                both = [one]
                return both, both, lead
            return [one], [other if other.ndim == 1 else other.ravel()], other
        into = np.empty(case.other_shape, lead.dtype) if other is None else other
        flat = into if into.ndim == 1 else into.ravel()
        send = case.parts(one) if case.each_from else [one]
        return send, case.parts(flat) if case.each_to else [flat], into

    # ── once for each dtype, shape and op ────────────────────────────────────────────────────────────

    def _found(self, kind: Kind, lead: Any, op: Any, root: Any) -> CallTemplate | None:
        """The case of a call that is new; remembered, also where there is none."""
        if type(root) is not int:
            return None
        dtype, shape = lead.dtype, lead.shape
        if dtype not in DTYPE_CODES or not dtype.isnative or not lead.size:
            return None
        roles = ROLES[kind]
        if roles.rooted and not 0 <= root < self._size:
            return None
        if len(shape) >= _MOST_AXES:
            return None  # a result may have one more than arrays can have
        other_shapes: tuple[tuple[int, ...], ...] = (shape,)
        if roles.source is not roles.target:
            if roles.reduces:  # its parts are joined along the first axis
                if not shape or shape[0] % self._size:
                    return None
                other_shapes = ((shape[0] // self._size, *shape[1:]),)
            else:
                other_shapes = ((self._size, *shape),)
                if shape:
                    other_shapes += ((self._size * shape[0], *shape[1:]),)
        elif roles.cut and (not shape or shape[0] % self._size):
            return None
        try:
            reduce = check_reduction(op, dtype) if roles.reduces else None
        except UsageError:
            return None
        call = Call(kind, 0, dtype, shape, reduce, root)
        nbytes = call.nbytes * self._size if roles.agrees_on_part else call.nbytes
        plan = self._running.plan(call, nbytes)
        case = None
        if plan.path in (Path.direct, Path.slot, Path.inline):
            case = CallTemplate(plan, other_shapes, self._rank, self._size, self._track.sort_of(call))
        self._cases[kind][op].add(dtype, shape, root, case)
        return case
