"""Everything in one phase: all_gather, gather, broadcast, scatter, all_to_all, reduce_scatter.

A rank that has something to give copies it in, block by block (*fill*), or lets it be read where it lies;
a rank that gets something takes it from there, or combines it in rank order (*take*). A rank is one block
ahead with filling. A rank that only gives need not wait until it was taken, as long as there is staging left:
a root of small broadcasts runs ahead.

Bytes: every byte is copied once where it lies in its rank's segment, else twice.
"""

from __future__ import annotations

from aiodist.backends.arrays.kernels import reduce_in_order
from aiodist.backends.base import Array
from aiodist.backends.buffers import bounds_of
from aiodist.backends.host.local.board import FILL, PAYLOAD, SOURCE, TOOK, Peer, place_of, place_word
from aiodist.backends.host.local.exchange import LEND, TAKE, WITHDRAWN, Exchange, Steps
from aiodist.backends.host.local.plan import Path, Plan, blocks

INLINE_BLOCK = 256 * 1024
"""Bytes of a block on the loop."""


class _Layout:
    """The sizes and places that all uses of one plan share.

    Attributes:
        longest: elements of the longest part.
        block: elements of a block.
        count: blocks.
        depth: blocks that lie in staging at a time.
        lane: bytes from one part of a block to the next, in staging.
        lanes: parts of a block: one where all readers take the same.
        starts: where each member's part begins in a source that is cut, in elements.
    """

    __slots__ = ("block", "count", "depth", "lane", "lanes", "longest", "starts")

    def __init__(self, plan: Plan, longest: int) -> None:
        size, itemsize = plan.board.size, plan.itemsize
        self.longest = longest
        self.lanes = 1 if plan.alike else size - 1
        self.starts = bounds_of(longest * size, None if plan.alike else plan.sizes, size)
        self.block, self.depth = max(1, longest), 1
        if plan.path is not Path.inline:
            block, self.depth = blocks(longest * itemsize, size, self.lanes, plan.limits, phases=1)
            self.block = block // itemsize
        elif longest * itemsize > INLINE_BLOCK:
            self.block = INLINE_BLOCK // itemsize  # peers take the first while the others are filled
            self.depth = -(-longest // self.block)
        self.count = -(-longest // self.block)
        self.lane = -(-self.block * itemsize // 64) * 64


class Share(Exchange):
    """The exchange in one phase; see the module.

    Attributes:
        exposed: peers read the source where it lies in the segment.
    """

    __slots__ = ("_at", "_layout", "_modes", "exposed")

    _layout: _Layout

    def lay_out(self) -> int:
        plan, send = self.plan, self.send
        layout = plan.layout
        if layout is None:
            longest = max(plan.sizes) if plan.sizes else (send or self.recv)[0].size
            plan.layout = layout = _Layout(plan, longest)
            plan.in_blocks = plan.path is not Path.inline or layout.count > 1
            plan.sees_all = len(plan.sources) == len(self.board.peers)
        assert isinstance(layout, _Layout)
        self._layout = layout
        self._at, self.exposed = 0, False
        if not send or not plan.readers:
            return 0
        if self.board.hub.leases:
            self._at = self._side_by_side()
            if self._at:
                self.exposed = True
                return 0
        needed = layout.depth * layout.lanes * layout.lane
        if plan.path is Path.inline and needed <= PAYLOAD:
            self._at = self.board.payload_at(self.seq)
            return 0
        return needed

    def begin(self) -> None:
        layout, inline, filled = self._layout, self.plan.path is Path.inline, 0
        self._at = self._at or self.staging
        if inline and self.made is not None:
            self.made.fill()
        if self.exposed:
            filled = layout.count if inline or not self._to_fill() else 0
        elif inline and self._at and layout.count:
            self._fill(0)
            filled = 1
        self.publish(place_word(self._at, self.exposed), 0, filled)

    def _to_fill(self) -> bool:
        return self.made is not None and (bool(self.made.before) or self.made.factor is not None)

    def _side_by_side(self) -> int:
        """The place of the source if peers can read it in the segment, its parts side by side; else 0."""
        send, offset_of = self.send, self.board.hub.offset_of
        at = offset_of(send[0])
        if at and len(send) > 1:
            itemsize = self.plan.itemsize
            for part, start in zip(send, self._layout.starts, strict=False):
                if part.size and offset_of(part) != at + start * itemsize:
                    return 0
        return at

    # ── in one block ─────────────────────────────────────────────────────────────────────────────────

    def advance(self) -> bool:
        """Take what there is; where peers read my own array, wait until they have taken it."""
        if self.plan.in_blocks:
            return self.go_on()
        plan, count = self.plan, self._layout.count
        if self.phase == WITHDRAWN:
            return False
        if self.phase == TAKE:
            code, head = self.code, self.head
            for peer in plan.sources:
                if not (peer.base or self.board.found(peer)) or peer.words[peer.base + head] != code:
                    return False
            if count:
                self._modes = {peer.member: place_of(self.word(peer, SOURCE)) for peer in plan.sources}
                self._take(0)
                if self.withdrawn(plan.sources):
                    self.phase = WITHDRAWN
                    return False
                if any(exposed for _, exposed in self._modes.values()):
                    self.put(TOOK, 1)
            self.phase = LEND
        if self.exposed and count:
            code, head = self.code, self.head
            for peer in plan.readers:
                if not (peer.base or self.board.found(peer)):
                    return False
                words, base = peer.words, peer.base + head
                if words[base] != code or not words[base + TOOK]:
                    return False
        self.empty()
        return True

    # ── in several ───────────────────────────────────────────────────────────────────────────────────

    def steps(self) -> Steps:
        plan, layout = self.plan, self._layout
        sources, count = plan.sources, layout.count
        yield from self.arrivals(sources)
        self._modes = {peer.member: place_of(self.word(peer, SOURCE)) for peer in sources}
        if plan.path is not Path.inline:
            self.fill()
        words = self.board.words
        gives = self._at != 0
        if self.exposed and words[self.base + FILL] < count:
            self.put(FILL, count)
        for block in range(count + 1):
            if gives and block < count and words[self.base + FILL] <= block:
                yield from self._read_of(block - layout.depth + 1)
                self._fill(block)
                self.put(FILL, block + 1)
            taken = block - 1
            if taken >= 0:
                yield from self.reached(sources, FILL, taken + 1)
                self._take(taken)
                if sources:
                    self.put(TOOK, taken + 1)
        yield from self.confirmed(sources)
        if self.exposed:
            yield from self._read_of(count)
        self.empty()

    def _read_of(self, block: int) -> Steps:
        """Wait until all peers that take from here have taken so many blocks."""
        if block > 0:
            yield from self.arrivals(self.plan.readers)
            yield from self.reached(self.plan.readers, TOOK, block)

    # ── a block ──────────────────────────────────────────────────────────────────────────────────────

    def _fill(self, block: int) -> None:
        plan, layout, rank = self.plan, self._layout, self.board.rank
        start = block * layout.block
        at = self._at + block % layout.depth * layout.lanes * layout.lane
        if plan.alike:
            part = self.send[0][start : start + layout.block]
            if part.size:
                self.plan.mine(at, part.size)[...] = part
            return
        for peer in plan.readers:
            part = self.send[peer.member][start : start + layout.block]
            if part.size:
                lane = at + (peer.member - (peer.member > rank)) * layout.lane
                self.plan.mine(lane, part.size)[...] = part

    def _take(self, block: int) -> None:
        plan, rank = self.plan, self.board.rank
        start = block * self._layout.block
        stop = start + self._layout.block
        if plan.reduce is not None:
            self._combine(self.recv[0][start:stop], start, block)
            return
        for peer in plan.sources:
            into = self.recv[peer.member if plan.sorts else 0][start:stop]
            if into.size:
                into[...] = self._theirs(peer, start, block, into.size)
        if self.send and self.recv:
            mine = self.send[0 if plan.alike else rank][start:stop]
            into = self.recv[rank if plan.sorts else 0][start:stop]
            if into.size:
                into[...] = mine

    def _combine(self, out: Array, start: int, block: int) -> None:
        """Combine my part of all ranks, in rank order."""
        plan, board = self.plan, self.board
        if not out.size:
            return
        parts = [self._theirs(peer, start, block, out.size) for peer in board.peers]
        parts.insert(board.rank, self.send[board.rank][start : start + out.size])
        assert plan.reduce is not None
        reduce_in_order(parts, out, plan.reduce)
        plan.finish(out)

    def _theirs(self, peer: Peer, start: int, block: int, count: int) -> Array:
        """A peer's block for me."""
        plan, layout, rank = self.plan, self._layout, self.board.rank
        at, exposed = self._modes[peer.member]
        if exposed:
            first = 0 if plan.alike else layout.starts[rank]
            return self.plan.theirs(peer, at + (first + start) * plan.itemsize, count)
        place = block % layout.depth
        if not plan.alike:
            place = place * (self.board.size - 1) + rank - (rank > peer.member)
        return self.plan.theirs(peer, at + place * layout.lane, count)
