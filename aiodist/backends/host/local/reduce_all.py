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
from aiodist.backends.host.local.exchange import Exchange, Steps
from aiodist.backends.host.local.plan import Path, blocks, part_bounds
from aiodist.kernels import combine, finish
from aiodist.types import NO_ROOT


class ReduceAll(Exchange):
    """See the module."""

    __slots__ = (
        "_block",
        "_bounds",
        "_count",
        "_depth",
        "_exposed",
        "_lane",
        "_longest",
        "_result",
        "_results",
        "_scratch",
        "_shown",
        "_source",
        "_sources",
    )

    def lay_out(self) -> int:
        made = self.made
        assert made is not None
        size = self.board.size
        itemsize = self.operation.call.dtype.itemsize
        self._bounds = part_bounds(made.send[0].size, size, itemsize)
        self._longest = self._bounds[1] - self._bounds[0]
        self._scratch: Array | None = None
        if self.plan.path is Path.inline:
            self._set_block(max(1, self._longest))
            self._depth = 1
        else:
            block, self._depth = blocks(self._longest * itemsize, size, size - 1, self.limits)
            self._set_block(block // itemsize)
        send = self.in_home(made.send)
        result = self.in_home(made.recv)
        self._lane = self._block * itemsize
        if itemsize * self._block % 64:
            self._lane += 64 - self._lane % 64
        self._source, self._result = send, result
        self._exposed, self._shown = send != 0, result != 0
        needed = (0 if send else self._depth * (size - 1)) + (0 if result else self._depth)
        return needed * self._lane

    def begin(self) -> None:
        made = self.made
        assert made is not None
        if self.plan.path is Path.inline:
            made.fill()
        after = self.staging
        if not self._exposed:
            self._source = self.staging
            after += self._depth * (self.board.size - 1) * self._lane
        if not self._shown:
            self._result = after
        filled = 0
        if self._exposed and (self.plan.path is Path.inline or (not made.before and made.factor is None)):
            filled = self._count
        elif self.plan.path is Path.inline and self._count:
            self._fill(0)
            filled = 1
        self.publish(place_word(self._source, self._exposed), place_word(self._result, self._shown), filled)

    def _set_block(self, elements: int) -> None:
        self._block = elements
        self._count = -(-self._longest // elements)

    def steps(self) -> Steps:
        made, board = self.made, self.board
        assert made is not None
        peers = board.peers
        inline = self.plan.path is Path.inline
        yield from self.arrivals(peers)
        self._sources = {peer.member: place_of(self.word(peer, SOURCE)) for peer in peers}
        self._results = {peer.member: place_of(self.word(peer, RESULT)) for peer in peers}
        if not inline:
            made.fill()
        exposed, shown = self._exposed, self._shown
        theirs = (*self._sources.values(), *self._results.values())
        if exposed and shown and all(whole for _, whole in theirs):
            itemsize = self.operation.call.dtype.itemsize  # nothing is staged, so blocks may be larger
            block, _ = blocks(self._longest * itemsize, board.size, 0, self.limits)
            self._set_block(block // itemsize)
        if exposed and self.words[self.base + FILL] < self._count:
            self.put(FILL, self._count)
        count, depth = self._count, self._depth
        root = self.operation.call.root
        collects = root in (NO_ROOT, board.rank)
        readers = peers if root == NO_ROOT else [peer for peer in peers if peer.member == root]
        for block in range(count + 2):
            if block < count and not exposed and self.words[self.base + FILL] <= block:
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
                self.words[self.base + TOOK] = reduced + 1
                self.put(OUT, reduced + 1)
                self._keep(reduced)
            collected = block - 2
            if collects and 0 <= collected < count:
                for peer in peers:
                    yield from self.reached((peer,), OUT, collected + 1)
                    self._collect(peer, collected)
                self.put(TOOK_OUT, collected + 1)
        if collects:
            yield from self.confirmed(peers)
        if exposed:
            yield from self.reached(peers, TOOK, count)
        if shown:
            yield from self.reached(readers, TOOK_OUT, count)
        made.empty()

    # ── a block ──────────────────────────────────────────────────────────────────────────────────────

    def _range(self, member: int, block: int) -> tuple[int, int]:
        """Where a block of a member's part lies in the buffer, in elements."""
        low, high = self._bounds[member], self._bounds[member + 1]
        start = min(low + block * self._block, high)
        return start, min(start + self._block, high)

    def _fill(self, block: int) -> None:
        """Copy in what each peer will reduce."""
        made, rank = self.made, self.board.rank
        assert made is not None
        send = made.send[0]
        at = self._source + block % self._depth * (self.board.size - 1) * self._lane
        for peer in self.board.peers:
            low, high = self._range(peer.member, block)
            if low < high:
                lane = at + (peer.member - (peer.member > rank)) * self._lane
                self.mine(lane, high - low, send)[...] = send[low:high]

    def _reduce(self, block: int) -> None:
        """Combine all ranks' blocks of my part, in rank order, where peers find the result."""
        made, rank = self.made, self.board.rank
        assert made is not None
        low, high = self._range(rank, block)
        if low == high:
            return
        count, op = high - low, self.operation.call.combine
        assert op is not None
        own = made.send[0][low:high]
        if self._shown:
            out = made.recv[0][low:high]
        else:
            out = self.mine(self._result + block % self._depth * self._lane, count, own)
        total: Array | None = None
        for member in range(self.board.size):
            part = own if member == rank else self._theirs(member, low, block, count)
            if total is None:
                total = part
                continue
            into = out
            if member < rank and self._shown and self._in_place():
                into = self._aside(count, own)  # my own operand lies where the result goes
            combine(total, part, into, op)
            total = into
        finish(out, op, self.board.size)

    def _in_place(self) -> bool:
        assert self.made is not None
        return self.made.recv[0] is self.made.send[0]

    def _aside(self, count: int, like: Array) -> Array:
        if self._scratch is None:
            self._scratch = np.empty(self._block, like.dtype)
        return self._scratch[:count]

    def _theirs(self, member: int, low: int, block: int, count: int) -> Array:
        """A peer's block of my part."""
        made, board = self.made, self.board
        assert made is not None
        at, exposed = self._sources[member]
        send = made.send[0]
        if exposed:
            at += low * send.itemsize
        else:
            lane = board.rank - (board.rank > member)
            at += (block % self._depth * (board.size - 1) + lane) * self._lane
        return self.at(board.by_member[member], at, count, send)

    def _keep(self, block: int) -> None:
        """My part of the result reaches my own array, where it is not there already."""
        made, rank = self.made, self.board.rank
        assert made is not None
        if self._shown or not made.recv:
            return
        low, high = self._range(rank, block)
        if low < high:
            recv = made.recv[0]
            recv[low:high] = self.mine(self._result + block % self._depth * self._lane, high - low, recv)

    def _collect(self, peer: Peer, block: int) -> None:
        """A peer's part of the result reaches my array."""
        made = self.made
        assert made is not None
        low, high = self._range(peer.member, block)
        if low == high:
            return
        recv = made.recv[0]
        at, shown = self._results[peer.member]
        at += low * recv.itemsize if shown else block % self._depth * self._lane
        recv[low:high] = self.at(peer, at, high - low, recv)
