"""Where the members of one group meet: collectives until all have come, messages until both sides have."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from aiodist.backends.base import Array, Operation, Reports
from aiodist.backends.host.backend import agreed_bytes
from aiodist.base.errors import CollectiveMismatch, GroupBroken, name_ranks
from aiodist.base.operations import ROLES, Uneven
from aiodist.base.types import Call, agree
from aiodist.observe.recorder.reading import Group
from aiodist.sim.collectives import Collectives, Wanted
from aiodist.sim.cost import Fabric
from aiodist.sim.engine import RankLoop, SimEngine, event, handle
from aiodist.sim.ledger import SimLedger
from aiodist.sim.network import Floats
from aiodist.sim.values import Values, copy_message, write_message

CARRIED = 64 * 1024
"""Bytes up to which tensors have values; larger ones are sizes."""


class SimMember(Protocol):
    """A member of the group: the backend of one rank.

    Attributes:
        me, rank: global rank, and in the group.
        loop: the rank's.
        reports: its group.
    """

    me: int
    rank: int
    loop: RankLoop
    reports: Reports


@dataclass(slots=True, eq=False)
class Side:
    """One side of a message, or one member of a collective: who, what, when.

    Args:
        data: of a send: the bytes, where they are carried.
        there: of a send: when its message is at the receiver; infinite until a receive has met it.
        got: of a receive that has ended: the send whose message it has.
    """

    backend: SimMember
    operation: Operation
    at: float
    line: int
    data: Array | None = None
    there: float = math.inf
    got: Side | None = None


@dataclass(slots=True, eq=False)
class Passing:
    """A message on its way to a receive; to none, once that was taken back.

    Args:
        arrived: when both sides had come.
        end: when the receive ends.
    """

    sent: Side
    posted: Side | None
    arrived: float
    end: float


@dataclass(slots=True, eq=False)
class SimMeeting:
    """One collective.

    Args:
        call: as the first to come has it; by: who that was.
        came: when each member did; infinite: it has not.
        sides: of the members that have come and not ended.
    """

    call: Call
    by: int
    came: Floats
    values: Values | None
    wanted: Wanted
    how: str
    sides: dict[int, Side] = field(default_factory=dict)
    count: int = 0
    looked: float = -1.0


class MeetingBoard:
    """The operations of one group.

    Args:
        engine: of virtual time.
        fabric: the network.
        ledger: where operations are written down.
        collectives: of the group.
        ranks: global ranks of the members.
    """

    def __init__(
        self,
        engine: SimEngine,
        fabric: Fabric,
        ledger: SimLedger,
        collectives: Collectives,
        ranks: Sequence[int],
    ) -> None:
        self.engine, self.fabric, self.ledger, self.collectives = engine, fabric, ledger, collectives
        self.ranks = tuple(ranks)
        self.name_group("")
        self.meetings: dict[int, SimMeeting] = {}
        self.sends: dict[tuple[int, int, int], deque[Side]] = {}
        self.receives: dict[tuple[int, int], list[Side]] = {}
        self.passing: dict[tuple[int, int], list[Passing]] = {}  # by receiver and tag, in order
        self.members: dict[int, SimMember] = {}
        self._broken = False

    def name_group(self, name: str) -> None:
        """Take the group's name."""
        self.name = name
        self.group = Group(name, 0, self.ranks)

    # ── collectives ──────────────────────────────────────────────────────────────────────────────────

    def collective(self, backend: SimMember, operation: Operation) -> None:
        """Have a member come to a collective."""
        call, rank, size = operation.call, backend.rank, len(self.ranks)
        meeting = self.meetings.get(call.seq)
        if meeting is None:
            meeting = self.meetings[call.seq] = self._meeting(backend, operation)
        elif call != meeting.call and not agree(call.signature, meeting.call.signature):
            said = {self.ranks[meeting.by]: meeting.call.describe(), self.ranks[rank]: call.describe()}
            self.break_all(CollectiveMismatch(said, op=call.kind.name, seq=call.seq, group=self.name))
            return
        if meeting.wanted.chunks is not None and meeting.wanted.chunks.ndim == 2:
            meeting.wanted.chunks[rank] = np.array(operation.source_sizes) * call.dtype.itemsize
        at = backend.loop.time()
        meeting.came[rank] = at
        meeting.count += 1
        meeting.sides[rank] = Side(backend, operation, at, self._line(backend))
        if meeting.values is not None:
            meeting.values.give(rank, operation)
        if meeting.count == size:
            del self.meetings[call.seq]
            self._end(meeting)
        elif ROLES[call.kind].rooted and meeting.looked < self.engine.now:
            meeting.looked = self.engine.now
            self.engine.after_all(event(self._end_now, meeting))

    def _meeting(self, backend: SimMember, operation: Operation) -> SimMeeting:
        call, size = operation.call, len(self.ranks)
        nbytes = agreed_bytes(operation, size)
        chunks: Floats | None = None
        sizes = operation.source_sizes if operation.target_sizes is None else operation.target_sizes
        if sizes is not None and ROLES[call.kind].uneven is Uneven.PAIRS:
            chunks = np.zeros((size, size))
        elif sizes is not None:
            chunks = np.array(sizes, np.float64) * call.dtype.itemsize
        wanted = Wanted(call.kind, nbytes, call.dtype.itemsize, call.root, chunks)
        values = Values(call, size) if _carried(operation, nbytes) else None
        return SimMeeting(
            *(call, backend.rank, np.full(size, math.inf), values),
            *(wanted, self.collectives.by(wanted)),
        )

    def _end_now(self, meeting: SimMeeting) -> None:
        """End what depends on nobody who has not come."""
        if self.meetings.get(meeting.call.seq) is meeting and not self._broken:
            self._end(meeting, commit=False)

    def _end(self, meeting: SimMeeting, commit: bool = True) -> None:
        call = meeting.call
        ends = self.collectives.ends(meeting.wanted, meeting.came, commit)
        roles = ROLES[call.kind]
        last = float(meeting.came.max()) if not roles.rooted else 0.0
        row = self.ledger.row((call.kind.name, len(self.ranks), max(0, meeting.wanted.nbytes), meeting.how))
        if commit:
            row.count += 1
            row.busy += ends.busy
            if ends.slowest >= 0:
                row.slowest = ends.slowest
        for rank in [rank for rank in meeting.sides if math.isfinite(ends.at[rank])]:
            side = meeting.sides.pop(rank)
            end = max(float(ends.at[rank]), side.at)
            arrived = last
            if roles.rooted:
                gives_all = roles.root_gets and rank == call.root
                arrived = float(meeting.came.max()) if gives_all else float(meeting.came[call.root])
            arrived = min(max(side.at, arrived), end)
            row.ranks += 1
            row.waited += arrived - side.at
            row.moved += end - arrived
            row.longest = max(row.longest, end - arrived)
            self._later(side, end, arrived, meeting.values)

    def _later(self, side: Side, end: float, arrived: float, values: Values | None) -> None:
        self._write_down(side, arrived, end)
        self.engine.at(end, handle(side.backend.loop, partial(self._ended, side, values)), side.backend.loop)

    def _write_down(self, side: Side, arrived: float, end: float) -> None:
        self.ledger.operations += 1
        me, operation = side.backend.me, side.operation
        if me in self.ledger.traced:
            self.ledger.record(
                *(me, self.group, operation.call, operation.tag, side.line, side.at, arrived, end)
            )

    def _ended(self, side: Side, values: Values | None) -> None:
        operation = side.operation
        if not operation.work.done():
            if values is not None:
                values.take(side.backend.rank, operation)
            operation.succeed()

    def _line(self, backend: SimMember) -> int:
        return self.ledger.line_of(sys._getframe(2))

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────

    def send(self, backend: SimMember, operation: Operation) -> None:
        """Have a member send."""
        side = Side(backend, operation, backend.loop.time(), self._line(backend))
        if operation.sealed or operation.call.nbytes <= CARRIED:
            side.data = copy_message(operation.source)
        if self._meets(side):
            return
        self.sends.setdefault((backend.rank, operation.peer, operation.tag), deque()).append(side)
        there = self.ranks[operation.peer]
        done, _ = self.fabric.message(backend.me, there, operation.call.nbytes, side.at, math.inf)
        if math.isfinite(done):  # nobody has to take it
            self._later(side, done, side.at, None)

    def recv(self, backend: SimMember, operation: Operation) -> None:
        """Have a member receive."""
        side = Side(backend, operation, backend.loop.time(), self._line(backend))
        operation.work._taken_back_by(self.take_back, side)
        sources = range(len(self.ranks)) if operation.peer < 0 else (operation.peer,)
        there = [
            self.sends[key] for one in sources if self.sends.get(key := (one, backend.rank, operation.tag))
        ]
        if there:
            self._pass(min(there, key=lambda queue: queue[0].at).popleft(), side)
        else:
            self.receives.setdefault((backend.rank, operation.tag), []).append(side)

    def take_back(self, side: Side) -> None:
        """Take back a receive that nobody waits for. Its message, on its way or here, goes to the next one:
        later receives move up."""
        operation, key = side.operation, (side.backend.rank, side.operation.tag)
        if not operation.work.done():
            operation.ended(operation)
        waiting, passing = self.receives.get(key, []), self.passing.get(key, [])
        if side in waiting:
            waiting.remove(side)
            return
        at, message = 0, side.got
        if message is None:
            at = next(i for i, one in enumerate(passing) if one.posted is side)
            message = passing[at].sent
        source = message.backend.rank
        moved = [one for one in passing[at:] if one.sent.backend.rank == source]
        self.passing[key] = [one for one in passing if one not in moved]
        messages = [*([] if side.got is None else [message]), *(one.sent for one in moved)]
        receives = [one.posted for one in moved if one.posted is not None and one.posted is not side]
        for one in moved:
            one.posted = None
        for sent, posted in zip(messages, receives, strict=False):  # one receive less than messages
            self._pass(sent, posted)
        if not self._meets(messages[-1]):
            self.sends.setdefault((source, *key), deque()).appendleft(messages[-1])

    def _meets(self, sent: Side) -> bool:
        """Pass a message to the first receive that waits for it, if there is one."""
        receives = self.receives.get((sent.operation.peer, sent.operation.tag), [])
        for receive in receives:
            if receive.operation.peer in (sent.backend.rank, -1):
                receives.remove(receive)
                self._pass(sent, receive)
                return True
        return False

    def _pass(self, sent: Side, posted: Side) -> None:
        """Have a receive get a message, when that is there."""
        send, receive = sent.operation, posted.operation
        if receive.senders and (send.call.dtype, send.call.count) != (receive.call.dtype, receive.call.count):
            said = {
                self.ranks[sent.backend.rank]: send.call.describe(),
                self.ranks[posted.backend.rank]: receive.call.describe(),
            }
            self.break_all(CollectiveMismatch(said, group=self.name))
            return
        if math.isinf(sent.there):
            self._move(sent, posted)
        end = max(sent.there, posted.at, self.engine.now)
        passing = Passing(sent, posted, max(sent.at, posted.at), end)
        self.passing.setdefault((posted.backend.rank, receive.tag), []).append(passing)
        loop = posted.backend.loop
        self.engine.at(end, handle(loop, partial(self._landed, passing)), loop)

    def _move(self, sent: Side, posted: Side) -> None:
        """Find out when a message is there, and when its send ends."""
        send = sent.operation
        nbytes = send.call.nbytes
        done, got = self.fabric.message(sent.backend.me, posted.backend.me, nbytes, sent.at, posted.at)
        got = max(got, posted.at, self.engine.now)
        for side, end, other in ((sent, done, posted), (posted, got, sent)):
            row = self.ledger.row((side.operation.call.kind.name, 2, nbytes, "message"))
            arrived = min(max(side.at, other.at), max(end, side.at))
            row.count += 1
            row.ranks += 1
            row.waited += arrived - side.at
            row.moved += max(0.0, end - arrived)
            row.longest = max(row.longest, end - arrived)
        if (not send.work.done() and done > sent.at and sent.data is None) or nbytes > 8192:
            self._later(sent, max(done, self.engine.now), max(sent.at, posted.at), None)
        elif not send.work.done():
            self._later(sent, max(done, self.engine.now), sent.at, None)
        sent.there = got

    def _landed(self, passing: Passing) -> None:
        """Give a message to its receive."""
        sent, posted = passing.sent, passing.posted
        if posted is None or posted.operation.work.done():
            return
        receive = posted.operation
        self.passing[posted.backend.rank, receive.tag].remove(passing)
        self._write_down(posted, passing.arrived, passing.end)
        posted.got = sent
        receive.result = (
            receive.senders[sent.backend.rank] if receive.senders else (sent.backend.rank, sent.data)
        )
        if receive.target is not None and sent.data is not None:
            write_message(receive.target, sent.data)
        receive.succeed()

    def waiting(self, backend: SimMember) -> list[Side]:
        """Receives of a member for which nothing has come."""
        return [side for sides in self.receives.values() for side in sides if side.backend is backend]

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────

    def break_all(self, error: GroupBroken, by: int = -1) -> None:
        """Break the group on all members."""
        if self._broken:
            return
        self._broken = True
        for rank, backend in self.members.items():
            if rank != by:
                backend.loop.call_soon(backend.reports.broken, error)

    def stuck(self) -> list[str]:
        """Who waits for whom, in words."""
        lines = []
        for meeting in self.meetings.values():
            if meeting.sides:
                here = sorted(meeting.sides)
                away = [self.ranks[rank] for rank in range(len(self.ranks)) if math.isinf(meeting.came[rank])]
                who = name_ranks([self.ranks[rank] for rank in here])
                lines.append(
                    f"{who} wait{'s' * (len(here) == 1)} in {meeting.call.describe()} #{meeting.call.seq} of "
                    f"{self.name}{self._at(meeting.sides[here[0]])} for {name_ranks(away)}"
                )
        for sides in self.receives.values():
            for side in sides:
                peer = side.operation.peer
                source = "anybody" if peer < 0 else name_ranks([self.ranks[peer]])
                lines.append(f"rank {side.backend.me} waits in recv from {source}{self._at(side)}")
        for (_, dst, _), queue in self.sends.items():
            lines += [
                f"rank {side.backend.me} waits in send to rank {self.ranks[dst]}{self._at(side)}"
                for side in queue
                if not side.operation.work.done()
            ]
        return lines

    def _at(self, side: Side) -> str:
        line = self.ledger.line(side.line)
        return "" if line is None else f" at {line.file.rpartition('/')[2]}:{line.number}"


def _carried(operation: Operation, nbytes: int) -> bool:
    """Whether a collective's values are carried: objects of any size, and small tensors, encoded ones too.

    Args:
        operation: of the first member to come.
        nbytes: of its buffer; UNKNOWN: each pair has a size of its own.
    """
    if operation.sealed and operation.call.name != "all_reduce_quantized":
        return True
    if nbytes < 0:
        nbytes = sum(operation.source_sizes or ()) * operation.call.dtype.itemsize
    return nbytes <= CARRIED
