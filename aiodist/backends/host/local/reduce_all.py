"""all_reduce and reduce in two phases: each rank reduces its part, then all collect the parts.

For every block of a part: copy in what peers need (*fill*), combine my part of all ranks' blocks in rank
order (*reduce*), copy the others' results out (*collect*). A rank is one block ahead with filling and one
behind with collecting, so that a peer's word is there when it is looked for. Where an array lies in its
rank's home, peers read it there, and nothing is filled.

Every element is reduced once, by its part's rank, and handed out (law 3). A rank may overwrite what it gave
only after its readers have taken it: part r of my array is overwritten by rank r's result, which rank r
publishes after it has read mine, so work in place is safe.

Bytes for n ranks and N bytes: each reads (n-1)·N/n and writes N/n to reduce, reads and writes (n-1)·N/n to
collect; staging adds a copy of each. Reduce-scatter and all-gather as in Rabenseifner (2004), through
shared memory.
"""

from __future__ import annotations

import numpy as np

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
from aiodist.backends.host.local.exchange import WITHDRAWN, Exchange, Steps
from aiodist.backends.host.local.plan import Path, Plan, blocks, part_bounds
from aiodist.types import NO_ROOT


class _Layout:
    """What is worked out once.

    Attributes:
        bounds: where each rank's part begins, in elements.
        longest: elements of a part.
        block: elements of a block.
        depth: blocks that lie in staging at a time.
        lane: bytes from one part of a block to the next, in staging.
        collects: this rank gets the result.
        readers: peers that do.
    """

    __slots__ = ("block", "bounds", "collects", "depth", "lane", "longest", "readers")

    def __init__(self, plan: Plan) -> None:
        board, itemsize = plan.board, plan.itemsize
        self.bounds = part_bounds(plan.call.count, board.size, itemsize)
        self.longest = self.bounds[1]
        self.block, self.depth = max(1, self.longest), 1
        if plan.path is not Path.inline:
            block, self.depth = blocks(self.longest * itemsize, board.size, board.size - 1, plan.limits)
            self.block = block // itemsize
        self.lane = -(-self.block * itemsize // 64) * 64
        self.collects = plan.root in (NO_ROOT, board.rank)
        peers = board.peers
        self.readers = peers if plan.root == NO_ROOT else [peer for peer in peers if peer.member == plan.root]


class ReduceAll(Exchange):
    """See the module.

    Attributes:
        exposed: peers read the source where it lies in the home.
        shown: peers read the result where it lies in the home.
    """

    __slots__ = (
        *("_block", "_count", "_layout", "_result", "_results", "_scratch", "_source", "_sources"),
        *("exposed", "shown"),
    )

    _layout: _Layout

    def lay_out(self) -> int:
        plan = self.plan
        layout = plan.layout
        if layout is None:
            plan.layout = layout = _Layout(plan)
        assert isinstance(layout, _Layout)
        self._layout = layout
        self._block = layout.block
        self._count = -(-layout.longest // layout.block)
        self._scratch: Array | None = None
        self._source = self._result = 0
        hub = self.board.hub
        if hub.leases:
            self._source = hub.offset_of(self.send[0])
            self._result = hub.offset_of(self.recv[0]) if self.recv else 0
        self.exposed, self.shown = self._source != 0, self._result != 0
        lanes = 0 if self.exposed else self.board.size - 1
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
            self._fill(0)
            filled = 1
        self.publish(place_word(self._source, self.exposed), place_word(self._result, self.shown), filled)

    # ── in one block ─────────────────────────────────────────────────────────────────────────────────

    def look(self) -> bool:
        """Reduce my part and hand it out (phase 0), collect the others' (1), wait for those who read my own
        array (2)."""
        if self.plan.in_blocks:
            return self.go_on()
        layout, board = self._layout, self.board
        peers = board.peers
        if not self.phase:
            if not self.arrived():
                return False
            if not self._count:
                self.phase = 2
            else:
                self._find_places()
                self._reduce(0)
                if self.withdrawn(peers):
                    self.phase = WITHDRAWN
                    return False
                board.words[self.base + TOOK] = 1
                self.put(OUT, 1)
                self._keep(0)
                self.phase = 1 if layout.collects else 2
        if self.phase == 1:
            if not self.have_reached(peers, OUT, 1):
                return False
            for peer in peers:
                self._collect(peer, 0)
            if self.withdrawn(peers):
                self.phase = WITHDRAWN
                return False
            self.put(TOOK_OUT, 1)
            self.phase = 2
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
        theirs = (*self._sources.values(), *self._results.values())
        if exposed and shown and all(whole for _, whole in theirs):
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
                self._fill(block)
                self.put(FILL, block + 1)
            reduced = block - 1
            if 0 <= reduced < count:
                yield from self.reached(peers, FILL, reduced + 1)
                if not shown:
                    yield from self.reached(readers, TOOK_OUT, reduced - depth + 1)
                self._reduce(reduced)
                yield from self.confirmed(peers)
                words[self.base + TOOK] = reduced + 1
                self.put(OUT, reduced + 1)
                self._keep(reduced)
            collected = block - 2
            if layout.collects and 0 <= collected < count:
                for peer in peers:
                    yield from self.reached((peer,), OUT, collected + 1)
                    self._collect(peer, collected)
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
        """Where all peers' sources and results lie."""
        peers = self.board.peers
        self._sources = {peer.member: place_of(self.word(peer, SOURCE)) for peer in peers}
        self._results = {peer.member: place_of(self.word(peer, RESULT)) for peer in peers}

    def _range(self, member: int, block: int) -> tuple[int, int]:
        """Where a block of a member's part lies in the buffer, in elements."""
        bounds = self._layout.bounds
        low, high = bounds[member], bounds[member + 1]
        start = min(low + block * self._block, high)
        return start, min(start + self._block, high)

    def _fill(self, block: int) -> None:
        """Copy in what each peer will reduce."""
        layout, board, send = self._layout, self.board, self.send[0]
        at = self._source + block % layout.depth * (board.size - 1) * layout.lane
        for peer in board.peers:
            low, high = self._range(peer.member, block)
            if low < high:
                lane = at + (peer.member - (peer.member > board.rank)) * layout.lane
                self.mine(lane, high - low)[...] = send[low:high]

    def _reduce(self, block: int) -> None:
        """Combine all ranks' blocks of my part, in rank order, where peers find the result."""
        plan, layout, board = self.plan, self._layout, self.board
        rank = board.rank
        low, high = self._range(rank, block)
        if low == high:
            return
        count, combine_two = high - low, plan.reduce
        assert combine_two is not None
        own = self.send[0][low:high]
        if self.shown:
            out = self.recv[0][low:high]
        else:
            out = self.mine(self._result + block % layout.depth * layout.lane, count)
        in_place = self.shown and self.recv[0] is self.send[0]
        total: Array | None = None
        for member in range(board.size):
            part = own if member == rank else self._theirs(member, low, block, count)
            if total is None:
                total = part
                continue
            # In place my own operand lies where the result goes: what comes before it is put aside.
            into = self._aside(count, own) if in_place and member < rank else out
            combine_two(total, part, into)
            total = into
        plan.finish(out)

    def _aside(self, count: int, like: Array) -> Array:
        if self._scratch is None:
            self._scratch = np.empty(self._block, like.dtype)
        return self._scratch[:count]

    def _theirs(self, member: int, low: int, block: int, count: int) -> Array:
        """A peer's block of my part."""
        plan, layout, board = self.plan, self._layout, self.board
        at, exposed = self._sources[member]
        if exposed:
            at += low * plan.itemsize
        else:
            lane = board.rank - (board.rank > member)
            at += (block % layout.depth * (board.size - 1) + lane) * layout.lane
        return self.at(board.by_member[member], at, count)

    def _keep(self, block: int) -> None:
        """My part of the result reaches my own array, where it is not there already."""
        if self.shown or not self.recv:
            return
        layout = self._layout
        low, high = self._range(self.board.rank, block)
        if low < high:
            at = self._result + block % layout.depth * layout.lane
            self.recv[0][low:high] = self.mine(at, high - low)

    def _collect(self, peer: Peer, block: int) -> None:
        """A peer's part of the result reaches my array."""
        low, high = self._range(peer.member, block)
        if low == high:
            return
        layout = self._layout
        at, shown = self._results[peer.member]
        at += low * self.plan.itemsize if shown else block % layout.depth * layout.lane
        self.recv[0][low:high] = self.at(peer, at, high - low)
