"""The backend around an engine: everything that a library of communication leaves to its users (law 13).

    submit ─▶ same call everywhere? ─▶ engine ─▶ done ─▶ the Work ends
              a barrier of the host engine that bears the call; before the engine begins, or beside it

Collectives are handed to the engine in the order of their numbers. Messages are matched by the host engine
(`messages`), so that the library sees only what fits.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from aiodist.backends.base import Array, Carrier, Operation, Sent
from aiodist.backends.foreign.engine import Engine, Setup
from aiodist.backends.foreign.group import EngineGroup
from aiodist.backends.foreign.messages import ForeignMessages
from aiodist.backends.foreign.task import Task
from aiodist.backends.host.backend import HostBackend
from aiodist.backends.host.level import InternalGroup, carried, context_within
from aiodist.backends.inner import InnerOperation, Undriven
from aiodist.backends.release import once
from aiodist.base.operations import ROLES, Uneven
from aiodist.base.types import NO_ROOT, Call, Kind, agree
from aiodist.net.tasks import settle

_BYTE = np.dtype(np.uint8)
_COUNT = np.dtype(np.int64)
_JOINED = ", in one batch with the one before"
_LONGEST = 1020  # bytes that a member may tell the others while the engine opens

MakeEngine = Callable[[Setup], Engine]


@dataclass(slots=True, eq=False)
class ForeignEntry:
    """A collective that has its number; or a division of the group, which has a place only.

    Attributes:
        place: in the line, counted from the first.
        number: of the comparison.
        joins: it is in one batch with the one before it.
        compared: the call in the comparison.
        agreed, filled, moved: it was compared, the engine has what it reads, the engine has done its part.
        error: why the engine could not begin.
    """

    place: int
    number: int
    joins: bool = False
    compared: Call | None = None
    operation: Operation | None = None
    task: Task | None = None
    agreed: bool = False
    filled: bool = False
    moved: bool = False
    division: Callable[[], None] | None = None
    error: Exception | None = None


class ForeignBackend(Carrier):
    """The executor of one group's operations by an engine.

    Args:
        host: the host backend of the same group.
        make_engine: makes the engine of a group.
        device: index of this process's CUDA device, or None.
        parent: the engine of the group that this one is made from, if all its members take part.
    """

    def __init__(
        self, host: HostBackend, make_engine: MakeEngine, device: int | None, parent: Engine | None = None
    ) -> None:
        self._host = host
        self._make_engine = make_engine
        self._device = device
        self._channels = channels = host.channels
        setup = Setup(
            *(channels.rank, channels.ranks, channels.context, channels.loop, device),
            *(self._gather, channels.failed, parent),
        )
        self.engine = make_engine(setup)
        self.name = self.engine.name
        self._level = InternalGroup(
            channels, host.groups, _checks(self.name), range(channels.size), self._disagreed
        )
        self.places: Mapping[str, str] = dict.fromkeys(self.engine.places, self.engine.name)
        self.capabilities = self.engine.capabilities | {"signatures", "tags", "any-source"}
        self._group = EngineGroup(channels, self.engine)
        self._messages = ForeignMessages(self._group, self._level)
        self._line: deque[ForeignEntry] = deque()
        self._places = itertools.count()
        self._fused: dict[
            int, ForeignEntry
        ] = {}  # by the user's number: what is being compared, with its batch
        self._reserved: dict[int, ForeignEntry] = {}
        self._batching = False
        self._batched = -1  # the place after that of the batch's last one

    async def open(self) -> None:
        """Connect the engine with those of the other members."""
        await self.engine.open()

    # ── operations ───────────────────────────────────────────────────────────────────────────────────

    def submit(self, operation: Operation) -> None:
        """Start an operation."""
        self._channels.guard(self._take, operation)

    def _take(self, operation: Operation) -> None:
        self._note(operation)
        if operation.call.kind is Kind.send:
            self._messages.send(operation)
        elif operation.call.kind is Kind.recv:
            self._messages.recv(operation)
        else:
            self._begin(operation)

    def hold(self, operation: Operation) -> None:
        """Note an operation that is submitted later; the engine is told now, in the user's call."""
        call = operation.call
        if not call.message:
            self._reserved[call.seq] = self._number(call.seq)
        self._channels.guard(self._note, operation)

    def _note(self, operation: Operation) -> None:
        if operation.noted is None:
            operation.noted = True
            self.engine.issued(operation)

    def batch(self, begins: bool) -> None:
        """Begin or end a batch: what is submitted in it is handed to the engine together."""
        self._batching = begins
        self._batched = -1
        if not begins:
            self._advance()

    def abort(self) -> None:
        """Stop everything; the group's release is held until the engine touches no buffer any more."""
        self._group.dead = True
        self._level.abort()
        self._channels.release.hold()
        let_go = once(self._channels.release.let_go)
        try:
            self.engine.abort(let_go)
        except Exception:
            let_go()  # it broke the group, perhaps: there is nothing left to ask of it

    def retire(self) -> None:
        """Forget the group, which is gone for good."""
        self._level.retire()
        self.engine.close()

    def sent(self) -> Sent:
        """The envelopes sent: they go by the internal group."""
        return self._level.sent()

    def rank_left(self, rank: int, sent: Sent | None) -> None:
        """Note that a member has closed this group: the envelopes of its messages go by the internal one."""
        self._level.rank_left(rank, sent)

    def close_receives(self, error: Callable[[], BaseException]) -> None:
        """End the receives whose envelopes have not come."""
        self._level.close_receives(error)

    def splitting(self, context: int, members: Sequence[int]) -> None:
        """Note that all members make another group of this one."""
        entry = ForeignEntry(next(self._places), -1)
        entry.division = partial(self._channels.guard, self.engine.splitting, context, members)
        self._line.append(entry)
        self._advance()

    def will_not_join(self, context: int, ranks: Sequence[int]) -> None:
        """Note that this rank never makes a group that others may have made, nor that of its comparisons."""
        if ranks:
            self._host.will_not_join(context_within(context, _checks(self.name), ranks), ranks)

    async def wait_outside(self) -> None:
        """Take the part of a non-member while members make another group."""
        await self.engine.wait_outside()

    def child(self, host: HostBackend, whole: bool) -> ForeignBackend:
        """The backend of a group made of this one's members.

        Args:
            host: the host backend of that group.
            whole: all members of this one take part in making it.
        """
        return ForeignBackend(host, self._make_engine, self._device, self.engine if whole else None)

    # ── collectives ──────────────────────────────────────────────────────────────────────────────────

    def _number(self, seq: int) -> ForeignEntry:
        """Take the next place in the line, when the user's operation takes its number."""
        entry = ForeignEntry(next(self._places), self._level.number(seq))
        self._line.append(entry)
        return entry

    def _begin(self, operation: Operation) -> None:
        call = operation.call
        entry = self._reserved.pop(call.seq, None) or self._number(call.seq)
        entry.operation = operation
        if self._batching:
            entry.joins = entry.place == self._batched
            self._batched = entry.place + 1
        entry.task = task = self.engine.prepare(operation)
        self._group.fill(task, partial(self._filled, entry))
        self._advance()
        if not self._group.stopped:
            self._level.backend.submit(self._comparison(entry, operation))

    def _comparison(self, entry: ForeignEntry, operation: Operation) -> InnerOperation:
        """The operation of the host engine that ends only if all members have issued the same: a barrier;
        where each pair of ranks has a size of its own, an exchange of what each sends."""
        call, (offer, detail) = operation.call, carried(operation.call)
        own_sizes = operation.source_sizes if ROLES[call.kind].uneven is Uneven.PAIRS else None
        size = self._channels.size
        kind, dtype, shape = (
            (Kind.barrier, _BYTE, (0,)) if own_sizes is None else (Kind.all_to_all, _COUNT, (size,))
        )
        if self.engine.fuses:
            self._fused[call.seq] = entry
            detail += _JOINED * entry.joins
        entry.compared = compared = Call(kind, entry.number, dtype, shape, None, NO_ROOT, offer, detail)
        if own_sizes is None:
            return InnerOperation(compared, operation.work, then=partial(self._agreed, entry))
        sent, coming = np.array(own_sizes, _COUNT), np.empty(size, _COUNT)
        then = partial(self._fits, entry, coming)
        return InnerOperation(compared, operation.work, sent, coming, then=then)

    def _fits(self, entry: ForeignEntry, coming: Array) -> None:
        """Check that each member sends what is expected here, now that it is known."""
        operation = entry.operation
        assert operation is not None
        assert operation.target_sizes is not None
        itemsize = operation.call.dtype.itemsize
        for peer, (sent, expected) in enumerate(zip(coming.tolist(), operation.target_sizes, strict=True)):
            if sent != expected:
                self._group.halted = True
                self._channels.differ(operation.call, peer, sent * itemsize, expected * itemsize)
                return
        self._agreed(entry)

    def _filled(self, entry: ForeignEntry) -> None:
        entry.filled = True
        self._advance()

    def _agreed(self, entry: ForeignEntry) -> None:
        """Note that all members have issued the same operation."""
        entry.agreed = True
        if self._fused and entry.operation is not None:
            self._fused.pop(entry.operation.call.seq, None)
        if entry.error is not None:  # only now: members that disagree are told so, and not what came of it
            self._channels.failed(entry.error)
        elif entry.moved:
            self._finish(entry)
        else:
            self._advance()

    def _advance(self) -> None:
        """Hand to the engine what may begin, in the order of the numbers."""
        if self._batching:
            return
        ready: list[ForeignEntry] = []
        while self._line and not self._group.stopped and self._may_begin(self._line[0]):
            entry = self._line.popleft()
            if ready and not entry.joins:
                self._start(ready)
                ready = []
            if entry.division is None:
                ready.append(entry)
            else:
                entry.division()
        if ready:
            self._start(ready)

    def _may_begin(self, entry: ForeignEntry) -> bool:
        if entry.division is not None:
            return True
        return entry.task is not None and entry.filled and (entry.agreed or self.engine.beside)

    def _start(self, entries: list[ForeignEntry]) -> None:
        started = [(entry.task, partial(self._moved, entry)) for entry in entries if entry.task is not None]
        try:
            if len(started) == 1:
                self.engine.start(*started[0])
            else:
                self.engine.coalesce(started)
        except Exception as error:
            for entry in entries:
                entry.error = error
                if entry.agreed:
                    self._channels.failed(error)

    def _moved(self, entry: ForeignEntry) -> None:
        """Note that the engine has done its part."""
        entry.moved = True
        if entry.agreed:
            self._finish(entry)

    def _finish(self, entry: ForeignEntry) -> None:
        if self._group.stopped:
            return
        operation, task = entry.operation, entry.task
        assert operation is not None
        assert task is not None
        self._group.drain(task, operation.succeed)

    # ── members that disagree ────────────────────────────────────────────────────────────────────────

    def _disagreed(self, seq: int, peer: int, theirs: bytes) -> None:
        """Report that a member has issued another operation."""
        if not self._group.dead:
            self._group.halted = True
            self._level.halt()
            said = self._batched_otherwise(seq, peer, theirs)
            if said:
                self._channels.reports.peer_mismatch(said)
            else:
                self._channels.reports.mismatch(seq, peer, theirs)

    def _batched_otherwise(self, seq: int, peer: int, theirs: bytes) -> dict[int, str]:
        """Texts of a member and of this rank, where they disagree on their batches alone; else none."""
        entry = self._fused.get(seq)
        if entry is None or entry.compared is None or entry.operation is None:
            return {}
        detail = entry.compared.detail
        detail = detail.removesuffix(_JOINED) if entry.joins else detail + _JOINED
        if not agree(replace(entry.compared, detail=detail).signature, theirs):
            return {}
        text = entry.operation.call.describe()
        joins, begins = (self._channels.rank, peer) if entry.joins else (peer, self._channels.rank)
        return {joins: text + _JOINED, begins: text}

    # ── while the engine opens ───────────────────────────────────────────────────────────────────────

    async def _gather(self, data: bytes) -> list[bytes]:
        if len(data) > _LONGEST:
            raise ValueError(f"{len(data)} bytes to tell, at most {_LONGEST} can be")
        mine = np.zeros(_LONGEST + 4, np.uint8)
        mine[:4] = np.frombuffer(len(data).to_bytes(4, "little"), np.uint8)
        mine[4 : 4 + len(data)] = np.frombuffer(data, np.uint8)
        rows = np.empty((self._channels.size, _LONGEST + 4), np.uint8)
        all_sent: asyncio.Future[None] = self._channels.loop.create_future()
        call = Call(
            Kind.all_gather, self._level.number(0), _BYTE, mine.shape, None, NO_ROOT, 0, f"{self.name} opens"
        )
        work, then = cast("Any", Undriven()), partial(settle, all_sent, None)
        self._level.backend.submit(InnerOperation(call, work, mine, rows, then=then))
        await all_sent
        lengths = [int.from_bytes(row[:4].tobytes(), "little") for row in rows]
        return [row[4 : 4 + length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def _checks(name: str) -> str:
    """Name of the internal group in which calls of an engine are compared."""
    return f"checks of {name}"
