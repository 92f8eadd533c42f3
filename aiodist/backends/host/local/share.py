"""Everything in one phase: all_gather, gather, broadcast, scatter, all_to_all, reduce_scatter.

A rank that has something to give copies it in, block by block (*fill*), or lets it be read where it lies;
who gets something takes it from there, or combines it in rank order (*take*). A rank is one block ahead
with filling. Whoever only gives need not wait until it was taken, as long as there is staging left: a root
of small broadcasts runs ahead.

Bytes: every byte is copied once where it lies in its rank's home, else twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.buffers import bounds_of
from aiodist.backends.host.local.board import FILL, PAYLOAD, SOURCE, TOOK, Peer, place_of, place_word
from aiodist.backends.host.local.exchange import Exchange, Steps
from aiodist.backends.host.local.plan import Path, blocks
from aiodist.kernels import combine, finish
from aiodist.roles import ROLES, Parts

INLINE_BLOCK = 256 * 1024
"""Bytes of a block on the loop."""


class Share(Exchange):
    """See the module."""

    __slots__ = (
        "_alike",
        "_at",
        "_block",
        "_count",
        "_depth",
        "_exposed",
        "_lane",
        "_modes",
        "_readers",
        "_sorts",
        "_sources",
        "_starts",
    )

    def lay_out(self) -> int:
        made, board, call = self.made, self.board, self.operation.call
        assert made is not None
        root, itemsize, roles = call.root, call.dtype.itemsize, ROLES[call.kind]
        gives, gets = roles.gives(board.rank, root), roles.gets(board.rank, root)
        self._sources = [peer for peer in board.peers if gets and roles.gives(peer.member, root)]
        self._readers = [peer for peer in board.peers if gives and roles.gets(peer.member, root)]
        self._alike = roles.source is Parts.ONE  # all who take from a rank take the same
        self._sorts = roles.target is Parts.EACH  # what comes has a place for each member
        lanes = 1 if self._alike else board.size - 1
        sizes = self.operation.source_sizes or self.operation.target_sizes
        longest = max(sizes) if sizes else (made.send or made.recv)[0].size
        self._starts = bounds_of(longest * board.size, self.operation.source_sizes, board.size)
        inline = self.plan.path is Path.inline
        self._block = max(1, longest)
        self._depth = 1
        if not inline:
            block, self._depth = blocks(longest * itemsize, board.size, lanes, self.limits, phases=1)
            self._block = block // itemsize
        elif longest * itemsize > INLINE_BLOCK:
            self._block = INLINE_BLOCK // itemsize  # peers take the first while the others are filled
            self._depth = -(-longest // self._block)
        self._count = -(-longest // self._block)
        self._lane = -(-self._block * itemsize // 64) * 64
        self._at, self._exposed = 0, False
        if not made.send or not self._readers:
            return 0
        self._at = self._side_by_side()
        self._exposed = self._at != 0
        needed = self._depth * lanes * self._lane
        if self._exposed:
            return 0
        if inline and needed <= PAYLOAD:
            self._at = board.payload_at(self.seq)
            return 0
        return needed

    def begin(self) -> None:
        made = self.made
        assert made is not None
        inline, filled = self.plan.path is Path.inline, 0
        self._at = self._at or self.staging
        if inline:
            made.fill()
        if self._exposed:
            filled = self._count if inline or (not made.before and made.factor is None) else 0
        elif inline and self._at and self._count:
            self._fill(0)
            filled = 1
        self.publish(place_word(self._at, self._exposed), 0, filled)

    def _side_by_side(self) -> int:
        """Where the source lies if peers can read it there: in the home, its parts side by side; else 0."""
        made = self.made
        assert made is not None
        at = self.in_home(made.send)
        if at and len(made.send) > 1:
            itemsize = made.send[0].itemsize
            offset_of = self.board.hub.offset_of
            for part, start in zip(made.send, self._starts, strict=False):
                if part.size and offset_of(part) != at + start * itemsize:
                    return 0
        return at

    def steps(self) -> Steps:
        made = self.made
        assert made is not None
        yield from self.arrivals(self._sources)
        self._modes = {peer.member: place_of(self.word(peer, SOURCE)) for peer in self._sources}
        if self.plan.path is not Path.inline:
            made.fill()
        count, depth, exposed = self._count, self._depth, self._exposed
        gives = self._at != 0
        if exposed and self.words[self.base + FILL] < count:
            self.put(FILL, count)
        for block in range(count + 1):
            if gives and block < count and self.words[self.base + FILL] <= block:
                yield from self._read_of(block - depth + 1)
                self._fill(block)
                self.put(FILL, block + 1)
            taken = block - 1
            if taken >= 0:
                yield from self.reached(self._sources, FILL, taken + 1)
                self._take(taken)
                if self._sources:
                    self.put(TOOK, taken + 1)
        yield from self.confirmed(self._sources)
        if exposed:
            yield from self._read_of(count)
        made.empty()

    def _read_of(self, block: int) -> Steps:
        """Wait until all who take from here have taken so many blocks."""
        if block > 0:
            yield from self.arrivals(self._readers)
            yield from self.reached(self._readers, TOOK, block)

    # ── a block ──────────────────────────────────────────────────────────────────────────────────────

    def _fill(self, block: int) -> None:
        made, rank = self.made, self.board.rank
        assert made is not None
        start = block * self._block
        if self._alike:
            part = made.send[0][start : start + self._block]
            if part.size:
                self.mine(self._at + block % self._depth * self._lane, part.size, part)[...] = part
            return
        at = self._at + block % self._depth * (self.board.size - 1) * self._lane
        for peer in self._readers:
            part = made.send[peer.member][start : start + self._block]
            if part.size:
                lane = at + (peer.member - (peer.member > rank)) * self._lane
                self.mine(lane, part.size, part)[...] = part

    def _take(self, block: int) -> None:
        made, rank = self.made, self.board.rank
        assert made is not None
        start = block * self._block
        stop = start + self._block
        if self.operation.call.reduce is not None:
            self._combine(made.recv[0][start:stop], start, block)
            return
        for peer in self._sources:
            into = made.recv[peer.member if self._sorts else 0][start:stop]
            if into.size:
                into[...] = self._theirs(peer, start, block, into)
        if made.send and made.recv:
            mine = made.send[0 if self._alike else rank][start:stop]
            into = made.recv[rank if self._sorts else 0][start:stop]
            if into.size:
                into[...] = mine

    def _combine(self, out: Array, start: int, block: int) -> None:
        """My part of all ranks, in rank order."""
        made, op = self.made, self.operation.call.combine
        assert made is not None
        assert op is not None
        if not out.size:
            return
        rank = self.board.rank
        total: Array | None = None
        for member in range(self.board.size):
            if member == rank:
                part = made.send[rank][start : start + out.size]
            else:
                part = self._theirs(self.board.by_member[member], start, block, out)
            if total is None:
                total = part
            else:
                combine(total, part, out, op)
                total = out
        finish(out, op, self.board.size)

    def _theirs(self, peer: Peer, start: int, block: int, like: Array) -> Array:
        """A peer's block for me."""
        rank, (at, exposed) = self.board.rank, self._modes[peer.member]
        if exposed:
            first = 0 if self._alike else self._starts[rank]
            return self.at(peer, at + (first + start) * like.itemsize, like.size, like)
        place = block % self._depth
        if not self._alike:
            place = place * (self.board.size - 1) + rank - (rank > peer.member)
        return self.at(peer, at + place * self._lane, like.size, like)


class Meet(Exchange):
    """barrier and new_group: everybody is here, and does the same."""

    __slots__ = ()

    def steps(self) -> Steps:
        yield from self.arrivals(self.board.peers)


class ReduceEach(Exchange):
    """all_reduce of few bytes: every rank gives all of it, and reduces everything, in rank order.

    Ranks compute the same from equal addresses within a page, so that they get the same bits, also where
    NumPy's choice between two NaNs depends on alignment (law 3).
    """

    __slots__ = ("_at",)

    def lay_out(self) -> int:
        assert self.made is not None
        nbytes = self.made.send[0].nbytes
        return 0 if nbytes <= PAYLOAD else nbytes

    def begin(self) -> None:
        made, board = self.made, self.board
        assert made is not None
        made.fill()
        send = made.send[0]
        self._at = self.staging or board.payload_at(self.seq)
        if send.size:
            self.mine(self._at, send.size, send)[...] = send
        self.publish(place_word(self._at, exposed=False), 0, 1)

    def steps(self) -> Steps:
        made, board = self.made, self.board
        assert made is not None
        yield from self.arrivals(board.peers)
        recv, op = made.recv[0], self.operation.call.combine
        assert op is not None
        if recv.size:
            out = aligned(recv.size, recv.dtype)
            total: Array | None = None
            for member in range(board.size):
                if member == board.rank:
                    part = self.mine(self._at, recv.size, recv)
                else:
                    peer = board.by_member[member]
                    at, _ = place_of(self.word(peer, SOURCE))
                    part = self.at(peer, at, recv.size, recv)
                if total is None:
                    total = part
                else:
                    combine(total, part, out, op)
                    total = out
            # Where torch is loaded it reduces halves, and gives NaNs other bits.
            finish(out, op, board.size, one_nan=out.dtype.itemsize == 2)
            recv[...] = out
        made.empty()


def aligned(count: int, dtype: np.dtype[Any]) -> Array:
    """New memory that begins on a cache line."""
    raw = np.empty(count * dtype.itemsize + 64, np.uint8)
    skip = -raw.__array_interface__["data"][0] % 64
    return raw[skip : skip + count * dtype.itemsize].view(dtype)
