"""all_reduce and reduce in two phases: each rank reduces its part, then all collect the parts.

For every block of a part: copy in what peers need (*fill*), combine my part of all ranks' blocks in rank
order (*reduce*), copy the others' results out (*collect*). A rank is one block ahead with filling and one
behind with collecting, so that what it needs of a peer is there in time. Where an array lies in its rank's
segment, peers read it there, and nothing is filled.

Every element is reduced once, by its part's rank, and handed out (law 3). A rank may overwrite what it gave
only after its readers have taken it: part r of my array is overwritten by rank r's result, which rank r
publishes after it has read mine, so work in place is safe.

Bytes for n ranks and N bytes: each reads (n-1)·N/n and writes N/n to reduce, reads and writes (n-1)·N/n to
collect; staging adds a copy of each. Reduce-scatter and all-gather as in Rabenseifner (2004), through
shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from aiodist.backends.base import Array
from aiodist.backends.host.local.board import (
    FILL,
    OUT,
    RESULT,
    SOURCE,
    TOOK,
    TOOK_OUT,
    Peer,
    place_of,
    place_word,
)
from aiodist.backends.host.local.exchange import COLLECT, LEND, TAKE, WITHDRAWN, Exchange, Steps
from aiodist.backends.host.local.plan import Path, Plan, blocks, part_bounds
from aiodist.base.types import NO_ROOT


class _Layout:
    """The sizes and places that all uses of one plan share.

    Attributes:
        whole: where each rank's part begins and ends, in elements.
        longest: elements of a part.
        block: elements of a block.
        count: blocks.
        depth: blocks that lie in staging at a time.
        lane: bytes from one part of a block to the next, in staging.
        given: where the part for each peer lies in what is staged of a block, in bytes.
        taken: where my part lies in what each peer has staged.
        collects: this rank gets the result.
        readers: peers that get it.
    """

    __slots__ = (
        *("block", "collects", "count", "depth", "given", "lane", "longest", "readers"),
        *("taken", "whole"),
    )

    def __init__(self, plan: Plan) -> None:
        board, itemsize = plan.board, plan.itemsize
        rank, size = board.rank, board.size
        bounds = part_bounds(plan.call.count, size, itemsize)
        self.whole = list(pairwise(bounds))
        self.longest = bounds[1]
        self.block, self.depth = max(1, self.longest), 1
        if plan.path is not Path.inline:
            block, self.depth = blocks(self.longest * itemsize, size, size - 1, plan.limits)
            self.block = block // itemsize
        self.count = -(-self.longest // self.block)
        self.lane = -(-self.block * itemsize // 64) * 64
        self.given = [(member - (member > rank)) * self.lane for member in range(size)]
        self.taken = [(rank - (rank > member)) * self.lane for member in range(size)]
        self.collects = plan.root in (NO_ROOT, board.rank)
        peers = board.peers
        self.readers = peers if plan.root == NO_ROOT else [peer for peer in peers if peer.member == plan.root]


class ReduceAll(Exchange):
    """The exchange of all_reduce and reduce; see the module.

    Attributes:
        exposed: peers read the source where it lies in the segment.
        shown: peers read the result where it lies in the segment.
    """

    __slots__ = (
        *("_block", "_count", "_layout", "_result", "_results", "_source", "_sources"),
        *("exposed", "shown"),
    )

    def __init__(self, plan: Plan, seq: int) -> None:
        super().__init__(plan, seq)
        if plan.layout is None:
            plan.layout = _Layout(plan)
        self._layout: _Layout = plan.layout
        self._sources = [0] * self.board.size  # their words, by member: where peers' sources lie
        self._results = [0] * self.board.size

    def lay_out(self) -> int:
        layout, board = self._layout, self.board
        self._block, self._count = layout.block, layout.count
        self._source = self._result = 0
        if board.hub.leases:
            self._source = board.hub.offset_of(self.send[0])
            if self.recv:
                alike = self.recv[0] is self.send[0]
                self._result = self._source if alike else board.hub.offset_of(self.recv[0])
        self.exposed, self.shown = self._source != 0, self._result != 0
        lanes = 0 if self.exposed else board.size - 1
        return layout.depth * (lanes + (not self.shown)) * layout.lane

    def begin(self) -> None:
        layout, made, inline = self._layout, self.made, self.plan.path is Path.inline
        if inline and made is not None:
            made.fill()
        after = self.staging
        if not self.exposed:
            self._source = self.staging
            after += layout.depth * (self.board.size - 1) * layout.lane
        if not self.shown:
            self._result = after
        filled = 0
        if self.exposed:
            to_fill = made is not None and (bool(made.before) or made.factor is not None)
            filled = self._count if inline or not to_fill else 0
        elif inline and self._count:
            self._fill(0, layout.whole)
            filled = 1
        self.publish(place_word(self._source, self.exposed), place_word(self._result, self.shown), filled)

    # ── in one block ─────────────────────────────────────────────────────────────────────────────────

    def advance(self) -> bool:
        """Reduce my part and hand it out, collect the others', wait for peers that read my own array."""
        if self.plan.in_blocks:
            return self.go_on()
        layout, board = self._layout, self.board
        peers = board.peers
        if self.phase == TAKE:
            if not self.arrived():
                return False
            if not self._count:
                self.phase = LEND
            else:
                self._find_places()
                low, high = layout.whole[board.rank]
                if low < high:
                    out = self._reduce(0, low, high)
                if self.withdrawn(peers):
                    self.phase = WITHDRAWN
                    return False
                board.words[self.base + TOOK] = 1
                self.put(OUT, 1)
                if low < high and self.recv and not self.shown:
                    self.recv[0][low:high] = out
                self.phase = COLLECT if layout.collects else LEND
        if self.phase == COLLECT:
            if not self.have_reached(peers, OUT, 1):
                return False
            for peer in peers:
                low, high = layout.whole[peer.member]
                if low < high:
                    self._collect(peer, 0, low, high)
            if self.withdrawn(peers):
                self.phase = WITHDRAWN
                return False
            self.put(TOOK_OUT, 1)
            self.phase = LEND
        if self.phase == WITHDRAWN:
            return False
        if self._count:
            if self.exposed and not layout.collects and not self.have_reached(peers, TOOK, 1):
                return False
            if self.shown and not self.have_reached(layout.readers, TOOK_OUT, 1):
                return False
        self.empty()
        return True

    # ── in several ───────────────────────────────────────────────────────────────────────────────────

    def steps(self) -> Steps:
        plan, layout, board = self.plan, self._layout, self.board
        peers, words = board.peers, board.words
        yield from self.arrivals(peers)
        self._find_places()
        self.fill()
        exposed, shown = self.exposed, self.shown
        others = [peer.member for peer in peers]
        whole = all(place_of(self._sources[at])[1] and place_of(self._results[at])[1] for at in others)
        if exposed and shown and whole:
            # Nothing is staged, so blocks may be larger.
            block, _ = blocks(layout.longest * plan.itemsize, board.size, 0, plan.limits)
            self._block = block // plan.itemsize
            self._count = -(-layout.longest // self._block)
        if exposed and words[self.base + FILL] < self._count:
            self.put(FILL, self._count)
        count, depth, readers = self._count, layout.depth, layout.readers
        for block in range(count + 2):
            if block < count and not exposed and words[self.base + FILL] <= block:
                yield from self.reached(peers, TOOK, block - depth + 1)
                self._fill(block, self._spans(block))
                self.put(FILL, block + 1)
            reduced = block - 1
            if 0 <= reduced < count:
                yield from self.reached(peers, FILL, reduced + 1)
                if not shown:
                    yield from self.reached(readers, TOOK_OUT, reduced - depth + 1)
                low, high = self._spans(reduced)[board.rank]
                if low < high:
                    out = self._reduce(reduced, low, high)
                yield from self.confirmed(peers)
                words[self.base + TOOK] = reduced + 1
                self.put(OUT, reduced + 1)
                if low < high and self.recv and not shown:
                    self.recv[0][low:high] = out
            collected = block - 2
            if layout.collects and 0 <= collected < count:
                spans = self._spans(collected)
                for peer in peers:
                    yield from self.reached((peer,), OUT, collected + 1)
                    low, high = spans[peer.member]
                    if low < high:
                        self._collect(peer, collected, low, high)
                self.put(TOOK_OUT, collected + 1)
        if layout.collects:
            yield from self.confirmed(peers)
        if exposed:
            yield from self.reached(peers, TOOK, count)
        if shown:
            yield from self.reached(readers, TOOK_OUT, count)
        self.empty()

    # ── a block ──────────────────────────────────────────────────────────────────────────────────────

    def _find_places(self) -> None:
        """Read where all peers' sources and results lie."""
        sources, results, head = self._sources, self._results, self.head
        for peer in self.board.peers:
            words, at = peer.words, peer.base + head
            sources[peer.member] = words[at + SOURCE]
            results[peer.member] = words[at + RESULT]

    def _spans(self, block: int) -> list[tuple[int, int]]:
        """The bounds of a block of each member's part in the buffer, in elements."""
        step = self._block
        return [
            (min(low + block * step, high), min(low + block * step + step, high))
            for low, high in self._layout.whole
        ]

    def _fill(self, block: int, spans: Sequence[tuple[int, int]]) -> None:
        """Copy in what each peer will reduce."""
        layout, board, send = self._layout, self.board, self.send[0]
        at = self._source + self._lane_of(block)
        for peer in board.peers:
            member = peer.member
            low, high = spans[member]
            if low < high:
                self.plan.mine(at + layout.given[member], high - low)[...] = send[low:high]

    def _reduce(self, block: int, low: int, high: int) -> Array:
        """Combine all ranks' blocks of my part, in rank order, where peers find the result → the result."""
        plan, layout, board, send = self.plan, self._layout, self.board, self.send[0]
        rank, count, combine_two = board.rank, high - low, plan.reduce
        own = send[low:high]
        if self.shown:
            recv = self.recv[0]
            out, in_place = recv[low:high], recv is send
        else:
            out, in_place = plan.mine(self._result + block % layout.depth * layout.lane, count), False
        total: Array | None = None
        for member in range(board.size):
            if member == rank:
                part = own
            else:
                at, exposed = place_of(self._sources[member])
                at += low * plan.itemsize if exposed else self._lane_of(block) + layout.taken[member]
                part = plan.theirs(board.by_member[member], at, count)
            if total is None:
                total = part
                continue
            # In place my own operand lies where the result goes: what comes before it is put aside.
            into = plan.aside(count) if in_place and member < rank else out
            combine_two(total, part, into)
            total = into
        if plan.finishes:
            plan.finish(out)
        return out

    def _lane_of(self, block: int) -> int:
        """The start of a block in its rank's staging, in bytes."""
        layout = self._layout
        return block % layout.depth * (self.board.size - 1) * layout.lane if block else 0

    def _collect(self, peer: Peer, block: int, low: int, high: int) -> None:
        """Copy a peer's part of the result to my array."""
        plan, layout = self.plan, self._layout
        at, shown = place_of(self._results[peer.member])
        at += low * plan.itemsize if shown else block % layout.depth * layout.lane
        self.recv[0][low:high] = plan.theirs(peer, at, high - low)
