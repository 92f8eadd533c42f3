"""A collective over channels: the executor of schedules.

Round by round: post the round's receives, start its sends, and go on when all are over. Everything runs
in callbacks of the loop, so that the first round is under way when the user's call returns (law 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from aiodist.backends.base import Array, Operation, as_bytes
from aiodist.backends.host.offload import INLINE_NS, copy_cost_ns
from aiodist.backends.host.prepare import Job
from aiodist.kernels import cost_ns, reduce_into
from aiodist.schedules import Recv, RecvReduce, Schedule, Send, Step, chunk_bounds, spans
from aiodist.transport.base import SEGMENT, Fold, Into, Key
from aiodist.types import ReduceOp

if TYPE_CHECKING:
    from aiodist.backends.host.backend import HostBackend

_MANY = 8  # steps of a round, from which on they are looked up by peer


class Collective:
    """One running collective on one rank.

    Args:
        backend: the group's backend, which is told when the collective has ended.
        operation: what to do.
        job: on which memory.
        schedule: by which rounds.
    """

    __slots__ = (
        "_backend",
        "_bounds",
        "_busy",
        "_dead",
        "_due",
        "_job",
        "_memory",
        "_reduce",
        "_round",
        "_schedule",
        "_sent_bounds",
        "_sent_memory",
        "_waiting",
        "operation",
    )

    def __init__(self, backend: HostBackend, operation: Operation, job: Job, schedule: Schedule) -> None:
        self.operation = operation
        self._backend = backend
        self._job = job
        self._schedule = schedule
        self._bounds = job.bounds or chunk_bounds(job.buffer.size, schedule.chunks)
        self._memory = as_bytes(job.buffer)
        self._sent_bounds, self._sent_memory = self._bounds, self._memory
        if job.sent is not None:
            assert job.sent_bounds is not None
            self._sent_bounds, self._sent_memory = job.sent_bounds, as_bytes(job.sent)
        reduce = operation.call.reduce
        self._reduce = ReduceOp.SUM if reduce is ReduceOp.PREMUL_SUM else reduce
        self._round = 0
        self._waiting = 0
        self._dead = False
        self._busy = 0  # jobs of ours in a thread, touching our buffers
        self._due: dict[int, dict[int, int]] = {}  # round → peer → bytes, of rounds with many messages

    def start(self) -> None:
        """Begin: the first round is under way when this returns, unless a large copy has to come first."""
        fresh = not self._job.before and self._job.factor is None
        if fresh or self._off_loop(self._job.fill_ns(), self._job.fill, self._filled):
            self._advance()

    def condemn(self) -> bool:
        """Make no further progress. True if no buffer is touched by this process any more, given that the
        context is cancelled; else the backend hears `quietened` once a thread has let go."""
        self._dead = True
        return not self._busy

    def expected(self, peer: int, number: int) -> int | None:
        """Bytes of the message from `peer` in round `number`; None if there is none."""
        if number >= len(self._schedule.rounds):
            return None
        steps = self._schedule.rounds[number]
        if len(steps) > _MANY:  # looking through all of them for each of them would take their square
            if (due := self._due.get(number)) is None:
                due = self._due[number] = {
                    step.peer: self._nbytes(step) for step in steps if not isinstance(step, Send)
                }
            return due.get(peer)
        for step in steps:
            if not isinstance(step, Send) and step.peer == peer:
                return self._nbytes(step)
        return None

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────────

    def _filled(self) -> None:
        if self._landed():
            self._go_on()

    def _advance(self) -> None:
        rounds = self._schedule.rounds
        while self._round < len(rounds):
            if self._dead:
                return
            number = self._round
            self._round = number + 1
            self._waiting = 1  # this turn itself, so that nothing ends the round before all is posted
            steps = rounds[number]
            sends = [(step.peer, self._outgoing_bytes(step)) for step in steps if isinstance(step, Send)]
            for step in steps:
                if not isinstance(step, Send):
                    self._receive(step, number)
            for peer, data in sends:
                self._send(peer, data, number)
            self._waiting -= 1
            if self._waiting:
                return
        if self._dead:
            return
        job = self._job
        plain = job.result is None and not job.after
        if (plain or self._off_loop(job.empty_ns(), job.empty, self._emptied)) and not self._dead:
            self._backend.completed(self)

    def _over(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._go_on()

    def _go_on(self) -> None:
        """The next round, from a callback, where nobody else would hear of what goes wrong."""
        try:
            self._advance()
        except Exception as error:
            self._backend.failed(error)

    def _outgoing_bytes(self, step: Send) -> memoryview:
        """What a step sends; a copy where the round also writes there (small messages alone ask for it)."""
        pieces = [self._sent_memory[low:high] for low, high in self._ranges(step, self._sent_bounds)]
        if step.copy or len(pieces) > 1:
            return memoryview(b"".join(pieces))
        return pieces[0]

    def _ranges(self, step: Step, bounds: list[int]) -> list[tuple[int, int]]:
        """The bytes of a step's chunks: one range, or two where the chunks wrap around the end."""
        itemsize = self._job.buffer.itemsize
        return [
            (bounds[start] * itemsize, bounds[stop] * itemsize)
            for start, stop in spans(step.start, step.stop, self._schedule.chunks)
        ]

    def _nbytes(self, step: Step) -> int:
        """What a step receives."""
        return sum(high - low for low, high in self._ranges(step, self._bounds))

    def _send(self, peer: int, data: memoryview, number: int) -> None:
        channel = self._backend.outgoing(peer)
        if not channel.send(self._key(number), self.operation.call.signature, data, self._over):
            self._waiting += 1

    def _receive(self, step: Recv | RecvReduce, number: int) -> None:
        buffer = self._job.buffer
        ranges = self._ranges(step, self._bounds)
        nbytes = sum(high - low for low, high in ranges)
        channel = self._backend.incoming(step.peer)
        self._waiting += 1
        if len(ranges) > 1:
            over = self._receive_wrapped(step, ranges, nbytes, number)
        elif isinstance(step, Recv):
            view = self._memory[ranges[0][0] : ranges[0][1]]
            over = channel.recv(self._key(number), nbytes, Into(view), self._over)
        else:
            part = buffer[ranges[0][0] // buffer.itemsize : ranges[0][1] // buffer.itemsize]
            assert self._reduce is not None
            if cost_ns(min(nbytes, SEGMENT), buffer.dtype, self._reduce) <= INLINE_NS:
                over = channel.recv(
                    self._key(number), nbytes, Fold(self._folder(part, step.left)), self._over
                )
            else:
                over = self._receive_slowly(part, step.left, number, step.peer)
        if over:
            self._waiting -= 1

    def _receive_wrapped(
        self, step: Recv | RecvReduce, ranges: list[tuple[int, int]], nbytes: int, number: int
    ) -> bool:
        """Chunks that wrap around the buffer's end come through memory of our own (small messages alone)."""
        buffer = self._job.buffer
        scratch = np.empty(nbytes // buffer.itemsize, buffer.dtype)

        def deal() -> None:
            offset = 0
            for low, high in ranges:
                part = buffer[low // buffer.itemsize : high // buffer.itemsize]
                theirs = scratch[offset : offset + part.size]
                offset += part.size
                if isinstance(step, Recv):
                    part[...] = theirs
                else:
                    assert self._reduce is not None
                    reduce_into(part, theirs, self._reduce, src_left=step.left)

        cost = copy_cost_ns(nbytes)
        if isinstance(step, RecvReduce):
            assert self._reduce is not None
            cost = cost_ns(nbytes, buffer.dtype, self._reduce)

        def dealt() -> None:
            if self._landed():
                self._over()

        def arrived() -> None:
            if not self._dead and self._off_loop(cost, deal, dealt):
                self._over()

        if self._backend.incoming(step.peer).recv(
            self._key(number), nbytes, Into(as_bytes(scratch)), arrived
        ):
            return self._off_loop(cost, deal, dealt)
        return False

    def _folder(self, part: Array, left: bool) -> Callable[[memoryview, int], None]:
        reduce = self._reduce
        assert reduce is not None
        dtype, itemsize = part.dtype, part.itemsize

        def fold(segment: memoryview, offset: int) -> None:
            theirs = np.frombuffer(segment, np.uint8).view(dtype)
            start = offset // itemsize
            reduce_into(part[start : start + theirs.size], theirs, reduce, src_left=left)

        return fold

    def _receive_slowly(self, part: Array, left: bool, number: int, peer: int) -> bool:
        """A dtype whose reduction would hold the loop (float16): take it all, then reduce in a thread."""
        scratch = np.empty(part.size, part.dtype)
        reduce = self._reduce
        assert reduce is not None
        cost = cost_ns(part.nbytes, part.dtype, reduce)

        def reduce_all() -> None:
            reduce_into(part, scratch, reduce, src_left=left)

        def arrived() -> None:
            if not self._dead and self._off_loop(cost, reduce_all, reduced):
                self._over()

        def reduced() -> None:
            if self._landed():
                self._over()

        channel = self._backend.incoming(peer)
        if channel.recv(self._key(number), part.nbytes, Into(as_bytes(scratch)), arrived):
            return self._off_loop(cost, reduce_all, reduced)
        return False

    def _key(self, number: int) -> Key:
        return Key(self._backend.context, 0, self.operation.call.seq, number)

    # ── off the loop ─────────────────────────────────────────────────────────────────────────────────

    def _off_loop(self, cost: float, job: Callable[[], None], done: Callable[[], None]) -> bool:
        self._busy += 1
        over = self._backend.off_loop(cost, job, done)
        if over:
            self._busy -= 1
            if self._dead and not self._busy:  # the job failed, and the group broke while it was ours
                self._backend.quietened()
        return over

    def _landed(self) -> bool:
        """A thread has let go. False if the collective was condemned meanwhile."""
        self._busy -= 1
        if self._dead and not self._busy:
            self._backend.quietened()
        return not self._dead

    def _emptied(self) -> None:
        if self._landed():
            self._backend.completed(self)
