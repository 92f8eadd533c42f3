"""all_reduce of quantised tensors: each rank sends every other one its share, encoded; sums what it gets, in
float32 and in the order of ranks; and gives the encoded sum to all ("two-shot").

So a value is rounded twice, however many ranks there are, and all ranks decode the same bytes: the result
has the same bits everywhere. What rounding leaves out can be kept and added at the next time (error
feedback): of what a rank sends by that rank, of a sum by the rank that has made it.

An encoded sum has a note before it, two int32: how many of its blocks are not finite, and one plus the
rank that gave the first of them (0: every rank gave finite values, and their sum is none). All ranks read
all notes.

Sources: H. Tang et al., "1-bit Adam", ICML 2021 (both errors are fed back); F. Seide et al., "1-bit
stochastic gradient descent", Interspeech 2014.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from aiodist.backends.arrays.kernels import copy_into, unwarned
from aiodist.backends.arrays.kernels.blockwise import Blockwise
from aiodist.backends.base import Array
from aiodist.backends.work import Work
from aiodist.base.errors import NonFiniteValues, UsageError, WireError, shown
from aiodist.base.timeouts import Timeout
from aiodist.base.types import AS, FLOATS, Call, Kind, ReduceOp
from aiodist.group.core import GroupCore
from aiodist.group.feedback import ErrorFeedback
from aiodist.group.pieces import NOTE, QuantizedPiece, pieces
from aiodist.group.places import HOST_PLACE, common_place
from aiodist.group.requests import Op, Request, request

_BYTES = np.dtype(np.uint8)
_SINGLE = np.dtype(np.float32)

USUAL_BLOCK = {8: 1024, 4: 128}
"""Elements of a block, by bits: its scale adds 0.4 % to 8 bits, and 6 % to 4 bits."""

MOST_KEPT = 64 << 20
"""Bytes of rooms that a group keeps."""

ENCODE_NS, DECODE_NS = 2.0, 0.8
"""Nanoseconds of an element, with what is left out; measured on one core of an AMD EPYC (Zen 4)."""


class Quantized:
    """The part of a group with the all_reduce of quantised tensors.

    Args:
        core: of the group.
    """

    def __init__(self, core: GroupCore) -> None:
        self._core = core
        self._rooms = Rooms()

    def all_reduce(
        self,
        tensor: Any,
        op: Op,
        codec: Blockwise,
        out: Any,
        feedback: ErrorFeedback | None,
        keep_non_finite: bool,
        agree_on: str,
        timeout: Timeout,
        async_op: bool,
    ) -> Work[Any]:
        """Reduce a tensor in 8 or 4 bits an element; see `ProcessGroup.all_reduce_quantized`."""
        core = self._core
        asked = request(Kind.all_reduce, core.roster, tensor, out, op=op)
        _check(asked)
        limit = core.limit(timeout)
        core.check_here()
        run = QuantizedRun(core, asked, codec, feedback, keep_non_finite, agree_on, limit, self._rooms)
        core.batches.begin()
        numbers = [core.reserve(part=bool(step)) for step in range(2 * len(run.pieces))]
        dtype, shape = asked.agreed
        work = core.work(
            Call(Kind.all_reduce, numbers[0], dtype, shape, asked.reduce, detail=run.detail), async_op
        )
        run.begin(work, core.recorder.lines.find(sys._getframe(1)))
        core.carry_out(work, partial(run.steps, numbers))
        core.batches.include(work)
        return work


def codec_named(name: object) -> Blockwise:
    """The codec of a name: 'int8', 'int4', or with the elements of a block, 'int8/256'.

    Raises:
        UsageError: there is none.
    """
    found = re.fullmatch(r"int([48])(?:/(\d{1,6}))?", name, re.ASCII) if isinstance(name, str) else None
    if found is not None:
        bits = int(found[1])
        block = USUAL_BLOCK[bits] if found[2] is None else int(found[2])
        if block >= 2 and block % 2 == 0:
            return Blockwise(bits, block)
    raise UsageError(
        f"codec must be 'int8' or 'int4', got {shown(name)}",
        hint="With the elements of a block, an even number: 'int8/256'",
    )


def _check(asked: Request) -> None:
    dtype, _ = asked.agreed
    if dtype not in FLOATS:
        raise UsageError(
            f"all_reduce_quantized of {dtype.name}: it rounds", hint="Pass a real floating dtype"
        )
    if asked.reduce not in (ReduceOp.SUM, ReduceOp.AVG):
        assert asked.reduce is not None
        raise UsageError(f"all_reduce_quantized of {asked.reduce.name}", hint="Write op=ReduceOp.SUM or AVG")
    if common_place(asked.source, asked.target) != HOST_PLACE:
        raise UsageError("all_reduce_quantized takes tensors on the host", hint="Copy it to the host first")


class QuantizedRun:
    """One quantised all_reduce on one rank.

    Args:
        core: of the group.
        asked: the checked request.
        codec: of the values.
        feedback: where what rounding leaves out is kept; None: it is lost.
        keep: values that are not finite are part of the result.
        agree_on: what else ranks must agree on.
        limit: seconds, of each step.
        rooms: where memory for encoded bytes is taken from, and given back to.

    Raises:
        UsageError: there is no memory, or the feedback is of another tensor, or in use.
    """

    def __init__(
        self,
        core: GroupCore,
        asked: Request,
        codec: Blockwise,
        feedback: ErrorFeedback | None,
        keep: bool,
        agree_on: str,
        limit: float,
        rooms: Rooms,
    ) -> None:
        self._core, self._asked, self._codec, self._keep = core, asked, codec, keep
        self._limit, self._feedback = limit, feedback
        self._rank, self._size = core.roster.rank, core.roster.size
        dtype, shape = asked.agreed
        assert isinstance(asked.source, np.ndarray)
        assert asked.reduce is not None
        count = asked.source.size
        self.pieces = pieces(count, self._size, codec)
        words = [f"{dtype.name}{list(shape)}", asked.reduce.name, codec.name, agree_on]
        self.detail = f"{AS}all_reduce_quantized({', '.join(filter(None, words))})"
        try:
            self._left = None if feedback is None else feedback.prepare(shape)
            self._rooms = rooms
            self._room = rooms.take(self.pieces) or [self._make(piece) for piece in self.pieces]
        except MemoryError:
            raise UsageError(
                f"no memory to reduce {count} quantised elements: it takes about {3 * count} bytes",
                hint="Reduce it in parts",
            ) from None

    def _make(self, piece: QuantizedPiece) -> _Room:
        mine = piece.nbytes[self._rank]
        others = sum(piece.nbytes) - mine
        notes = NOTE * self._size
        return _Room(
            np.empty(others, np.uint8),
            np.empty((self._size - 1) * mine, np.uint8),
            np.zeros(NOTE + mine, np.uint8),
            np.zeros(notes + sum(piece.nbytes), np.uint8),
        )

    def begin(self, work: Work[Any], line: int) -> None:
        """Take the feedback: nobody else uses it until the end.

        Args:
            work: of the whole.
            line: of the program, that has issued it.
        """
        self._whole, self._line = work, line
        self._found: NonFiniteValues | None = None
        if self._feedback is not None:
            self._feedback.busy = True

    # ── the steps ────────────────────────────────────────────────────────────────────────────────────

    async def steps(self, numbers: list[int]) -> Any:
        """Carry it out → the result."""
        firsts: list[Work[Any]] = []
        seconds: list[Work[Any]] = []
        try:
            for index in range(len(self.pieces) + 1):
                if index < len(self.pieces):
                    await self._apart(ENCODE_NS * self._count(index), partial(self._encode, index))
                    firsts.append(self._deal(index, numbers[2 * index]))
                    if not index:
                        self._whole._begins_with(firsts[0])
                if index:
                    await firsts[index - 1]._as_step()
                    await self._apart(ENCODE_NS * self._count(index - 1), partial(self._sum, index - 1))
                    seconds.append(self._collect(index - 1, numbers[2 * index - 1]))
            for work in seconds:
                await work._as_step()
            await self._apart(DECODE_NS * self._count(), self._decode)
            if self._found is not None:
                raise self._found
            if self._feedback is not None:
                self._feedback.turn()
            self._rooms.give_back(self.pieces, self._room)
            result, convert = self._asked.result, self._asked.convert
            return result if convert is None else convert(result)
        finally:
            if self._feedback is not None:
                self._feedback.busy = False

    def _count(self, index: int | None = None) -> int:
        chosen = self.pieces if index is None else self.pieces[index : index + 1]
        return sum(piece.bounds[-1] - piece.bounds[0] for piece in chosen)

    async def _apart(self, cost_ns: float, job: Callable[[], None]) -> None:
        """Do a job on the buffers, and end here where the group has broken meanwhile."""
        await self._core.apart(cost_ns, job)
        if self._core.error is not None:
            raise self._core.error

    def _deal(self, index: int, number: int) -> Work[Any]:
        """Send every rank its share, and get this rank's from all others."""
        room, piece = self._room[index], self.pieces[index]
        asked = Request(
            *(Kind.all_to_all, (_BYTES, ()), room.given, room.got, room.got), detail=self.detail, own=True
        )
        asked.source_sizes = [0 if r == self._rank else piece.nbytes[r] for r in range(self._size)]
        asked.target_sizes = [0 if r == self._rank else piece.nbytes[self._rank] for r in range(self._size)]
        return self._part(asked, number)

    def _collect(self, index: int, number: int) -> Work[Any]:
        """Give this rank's sum to all, and get all sums."""
        room, piece = self._room[index], self.pieces[index]
        sizes = [NOTE + nbytes for nbytes in piece.nbytes]
        asked = Request(
            *(Kind.all_gather, (_BYTES, (sum(sizes),)), room.summed, room.all, room.all),
            detail=self.detail,
            own=True,
        )
        asked.target_sizes = sizes
        return self._part(asked, number)

    def _part(self, asked: Request, number: int) -> Work[Any]:
        """Issue an operation that this one is made of."""
        work = self._core.issue(asked, self._limit, True, reserved=number, line=self._line)
        work._forget_failure()  # of the whole is told
        return work

    # ── the jobs, off the loop ───────────────────────────────────────────────────────────────────────

    def _values(self, part: slice) -> Array:
        """This rank's elements with what was left out before, float32; a new array, or the tensor's own."""
        source = self._asked.source
        assert isinstance(source, np.ndarray)
        taken = _flat(source, part).astype(_SINGLE, copy=False)
        left = None if self._feedback is None else self._feedback.error
        return taken if left is None else unwarned.run(np.add, taken, left.reshape(-1)[part])

    def _left_part(self, part: slice) -> Array | None:
        return None if self._left is None else self._left.reshape(-1)[part]

    def _encode(self, index: int) -> None:
        piece, data = self.pieces[index], self._room[index].given
        at = 0
        for rank in range(self._size):
            if rank != self._rank:
                part = piece.share(rank)
                values = self._values(part)
                self._codec.encode(
                    values, data[at : at + self._codec.nbytes(values.size)], self._left_part(part)
                )
                at += piece.nbytes[rank]

    def _sum(self, index: int) -> None:
        """Sum this rank's share, in the order of ranks, and encode it."""
        piece, room = self.pieces[index], self._room[index]
        part, nbytes = piece.share(self._rank), piece.nbytes[self._rank]
        count = part.stop - part.start
        total, first_bad = np.zeros(count, np.float32), 0
        arrived = iter(range(0, room.got.size, nbytes) if nbytes else [0] * (self._size - 1))
        for rank in range(self._size):
            if rank == self._rank:
                own = self._values(part)
                poisoned = not np.isfinite(own).all()
                unwarned.run(np.add, total, own, total)
            else:
                at = next(arrived)
                data = room.got[at : at + self._codec.nbytes(count)]
                poisoned = not np.isfinite(self._codec.scales(data, count)).all()
                self._codec.decode(data, total, add=True)
            if poisoned and not first_bad:
                first_bad = rank + 1
        mean = self._asked.reduce is ReduceOp.AVG
        if mean:
            unwarned.run(np.divide, total, np.float32(self._size), total)
        rest = self._left_part(part)
        bad = self._codec.encode(total, room.summed[NOTE : NOTE + self._codec.nbytes(count)], rest)
        room.summed[:NOTE].view(np.int32)[:] = bad, first_bad
        if rest is not None and mean:
            unwarned.run(np.multiply, rest, np.float32(self._size), rest)  # the next mean divides it again

    def _notes(self) -> list[tuple[int, int]]:
        """The notes of all sums: how many blocks are not finite, and 1 + the rank that gave the first.

        Raises:
            WireError: a sum is not what its note says.
        """
        notes = []
        for piece, room in zip(self.pieces, self._room, strict=True):
            places = accumulate((NOTE + nbytes for nbytes in piece.nbytes[:-1]), initial=0)
            for rank, at in enumerate(places):
                bad, giver = map(int, room.all[at : at + NOTE].view(np.int32))
                scales = self._codec.scales(room.all[at + NOTE :], self._length(piece, rank))
                fits = bad == np.count_nonzero(np.isnan(scales)) and not np.isinf(scales).any()
                if not fits or not 0 <= giver <= (self._size if bad else 0):
                    raise _no_sum(rank)
                notes.append((bad, giver))
        return notes

    def _length(self, piece: QuantizedPiece, rank: int) -> int:
        """The number of elements of a rank's share."""
        return piece.bounds[rank + 1] - piece.bounds[rank]

    def _bad(self, notes: list[tuple[int, int]]) -> NonFiniteValues | None:
        """The error for sums that are not finite, the same on all ranks; None: all are."""
        blocks, first = 0, -1
        for bad, giver in notes:
            if bad and first < 0:
                first = giver
            blocks += bad
        if not blocks:
            return None
        some = f"in {blocks} block{'' if blocks == 1 else 's'} of {self._codec.block} elements"
        who = "the sum overflows" if first < 1 else f"rank {first - 1} gave values that are not finite"
        return NonFiniteValues(
            f"{who}, {some}",
            rank=None if first < 1 else first - 1,
            blocks=blocks,
            hint='Skip this step, or pass non_finite="keep" to get NaN in their blocks',
        )

    def _decode(self) -> None:
        """Write the result, unless it is not finite."""
        notes = self._notes()
        self._found = None if self._keep else self._bad(notes)
        if self._found is not None:
            return
        target = self._asked.target
        assert isinstance(target, np.ndarray)
        straight = target.dtype == _SINGLE and target.flags.c_contiguous
        whole = target.reshape(-1) if straight else np.empty(target.size, np.float32)
        for piece, room in zip(self.pieces, self._room, strict=True):
            at = 0
            for rank in range(self._size):
                values = whole[piece.share(rank)]
                start = at + NOTE
                data = room.all[start : start + self._codec.nbytes(values.size)]
                self._codec.decode(data, values)
                if self._codec.may_overflow(data, values.size) and np.isinf(values).any():
                    raise _no_sum(rank)
                at += NOTE + piece.nbytes[rank]
        if not straight:
            unwarned.run(copy_into, target, whole.reshape(target.shape).astype(target.dtype))


class Rooms:
    """Memory of operations that have ended, for the next ones like them: to have it made anew each time costs
    as much as encoding into it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[QuantizedPiece, ...], list[_Room]] = {}

    def take(self, pieces: tuple[QuantizedPiece, ...]) -> list[_Room] | None:
        """The rooms of an operation with the same pieces; None: there are none."""
        return self._kept.pop(pieces, None)

    def give_back(self, pieces: tuple[QuantizedPiece, ...], rooms: list[_Room]) -> None:
        """Keep the rooms of an operation that has ended well; the oldest go beyond `MOST_KEPT` bytes."""
        self._kept[pieces] = rooms
        while sum(room.nbytes for kept in self._kept.values() for room in kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]


class _Room:
    """The encoded bytes of one piece: for the others, from the others, this rank's sum, and all sums."""

    __slots__ = ("all", "given", "got", "nbytes", "summed")

    def __init__(self, given: Array, got: Array, summed: Array, all_: Array) -> None:
        self.given, self.got, self.summed, self.all = given, got, summed, all_
        self.nbytes = given.size + got.size + summed.size + all_.size


def _no_sum(rank: int) -> WireError:
    return WireError(
        f"rank {rank} of the group has sent a quantised sum that is none",
        hint="Look at that rank: its memory, or its program, is broken",
    )


def _flat(array: Array, part: slice) -> Array:
    """Some elements of an array, in the order of its axes: a view, or a copy where it is not contiguous."""
    return array.reshape(-1)[part] if array.flags.c_contiguous else array.flat[part]
