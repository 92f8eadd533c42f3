"""The plan of calls that are alike, computed once: their digest, their path, which ranks give and get.

The path follows from what all ranks agree on (law 3): kind, dtype, shape, op, root, sizes, and thresholds,
which are compared when the group is made.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from aiodist.backends.arrays.kernels import INLINE_NS, combiner, cost_ns, finish
from aiodist.backends.base import Array
from aiodist.backends.host.local.board import PAYLOAD, SLOTS, Board, Peer, theirs, view
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.operations import ROLES, Parts
from aiodist.base.types import Call, Kind, ReduceOp


class Path(enum.Enum):
    """The way in which an operation runs."""

    meet = "nothing but signatures"
    direct = "every rank reduces everything, on the loop"
    slot = "through the slots, on the loop"
    inline = "on the loop"
    bulk = "in many blocks, in the thread"
    wired = "over the channels"


_VIEWS = 8 * SLOTS  # arrays on segments that a plan remembers: some for each slot, or place in staging


class Owner(Protocol):
    """The group, as far as exchanges need it."""

    def disagrees(self, seq: int, peer: Peer) -> None:
        """Report that a peer has published something else under a number. From the loop or the thread."""

    def reuse(self, slot: int) -> None:
        """Look back at a slot, before anything else is written there (`Board.unseen`)."""

    def step(self, exchange: Any) -> bool:
        """Have an exchange advance, and end it if it is over → whether it is, or can never be."""


class Plan:
    """One kind of call of a group.

    Args:
        board: the group's memory.
        call: what ranks agree on; its number does not matter.
        path: how it runs.
        limits: thresholds.
        owner: the group.
        sizes: elements of the parts, where they differ: of the source's, or of the target's.

    Attributes:
        digest: 48 bits that stand for everything that ranks agree on, the number aside, at their place in the
            word that publishes an operation.
        signature: of the call.
        sources: peers that give this rank something.
        readers: peers that this rank gives something.
        alike: all that take from a rank take the same; else there is a part for each.
        sorts: what comes has a place for each member.
        reduce: combines two arrays into a third; None where nothing is reduced.
        finishes: `finish` does something.
        several: there are more than two members.
        sees_all: an exchange ends only when it has seen what all peers published; else see `Board.unseen`.
        in_thread: the bulk thread carries it out; else the loop.
        in_blocks: the data goes in several blocks. The exchange says so when it lays itself out.
        layout: what the exchange's kind computes once.
        makes: the kind of exchange.
        kept: for each slot, the exchange that this plan had there last, to be used again.
        ring: wakes peers that may wait for its publication.
    """

    __slots__ = (
        *("_views", "alike", "board", "call", "digest", "divisor", "dtype", "finishes", "in_blocks"),
        *("in_thread", "itemsize", "kept", "layout", "limits", "makes", "nbytes", "one_nan", "owner", "path"),
        *("readers", "reduce", "ring", "root", "sees_all", "several", "signature", "sizes", "sorts"),
        "sources",
    )

    def __init__(
        self,
        board: Board,
        call: Call,
        path: Path,
        limits: Thresholds,
        owner: Owner,
        sizes: Sequence[int] | None = None,
    ) -> None:
        roles, root = ROLES[call.kind], call.root
        self.board = board
        self.call = call
        self.path = path
        self.limits = limits
        self.owner = owner
        self.sizes = sizes
        self.signature = call.signature
        self.digest = digest_of(call) << 16
        self.dtype, self.itemsize, self.nbytes = call.dtype, call.dtype.itemsize, call.nbytes
        self.root = root
        self.alike = roles.source is Parts.ONE
        self.sorts = roles.target is Parts.EACH
        gives, gets = roles.gives(board.rank, root), roles.gets(board.rank, root)
        if roles.rooted:
            self.sources = [peer for peer in board.peers if gets and roles.gives(peer.member, root)]
            self.readers = [peer for peer in board.peers if gives and roles.gets(peer.member, root)]
        else:  # also where nobody gives anything: a barrier
            self.sources = board.peers if gets else []
            self.readers = board.peers if gives else []
        op = call.combine
        self.in_thread = path is Path.bulk
        self.reduce: Any = None if op is None else combiner(call.dtype, op, in_this_thread=not self.in_thread)
        self.divisor = board.size if op is ReduceOp.AVG else 0
        self.one_nan = False
        self.finishes = self.divisor != 0
        self.several = board.size > 2
        self.sees_all = True
        self.in_blocks = self.in_thread
        self.layout: Any = None
        self.makes: Any = None
        self.kept: list[Any] = [None] * SLOTS
        self.ring = board.ring_all if self.in_thread else board.ring_loops
        self._views: dict[tuple[int, int, int], Array] = {}

    def theirs(self, peer: Peer, at: int, count: int) -> Array:
        """Some elements on a peer's segment. What is read again and again in one place is remembered."""
        if self.in_blocks:
            return theirs(peer.memory, at, count, self.dtype)
        found = self._views.get((peer.member, at, count))
        if found is None:
            found = self._keep(peer.member, at, count, theirs(peer.memory, at, count, self.dtype))
        return found

    def mine(self, at: int, count: int) -> Array:
        """Some elements on this process's segment; remembered likewise."""
        if self.in_blocks:
            return view(self.board.bytes, at, count, self.dtype)
        found = self._views.get((-1, at, count))
        if found is None:
            found = self._keep(-1, at, count, view(self.board.bytes, at, count, self.dtype))
        return found

    def aside(self, count: int) -> Array:
        """Memory for some elements that are put aside while they are reduced."""
        return self.board.hub.aside(count * self.itemsize, self.in_thread).view(self.dtype)

    def _keep(self, member: int, at: int, count: int, made: Array) -> Array:
        if len(self._views) >= _VIEWS:
            self._views.clear()
        self._views[member, at, count] = made
        return made

    def finish(self, out: Array) -> None:
        """Apply the last step once all ranks' values are combined."""
        if self.finishes:
            finish(out, ReduceOp.AVG, self.divisor, one_nan=self.one_nan)

    def forget(self) -> None:
        """Let go of what is kept for the next use. What runs goes on."""
        self._views.clear()
        self.kept = [None] * SLOTS

    def close(self) -> None:
        """Let go of the memory."""
        self.forget()
        self.layout = None


_LINE = 64  # bytes of a cache line: parts of one buffer meet at its edges


def part_bounds(count: int, size: int, itemsize: int) -> list[int]:
    """The start of each rank's part of a reduction, in elements: equal parts of whole cache lines."""
    line = max(1, _LINE // itemsize)
    part = -(-count // (size * line)) * line
    return [min(rank * part, count) for rank in range(size + 1)]


def aligned(count: int, dtype: np.dtype[np.generic]) -> Array:
    """New memory that begins on a cache line."""
    raw = np.empty(count * dtype.itemsize + _LINE, np.uint8)
    skip = -raw.__array_interface__["data"][0] % _LINE
    return raw[skip : skip + count * dtype.itemsize].view(dtype)


def digest_of(call: Call) -> int:
    """48 bits of a call's signature without number and offer."""
    signature = call.signature
    packed = blake2b(signature[:16] + signature[24:28], digest_size=6).digest()
    return int.from_bytes(packed, "little") or 1


def path_of(
    call: Call, size: int, nbytes: int, limits: Thresholds, sizes: Sequence[int] | None = None
) -> Path:
    """The path of a call in a group of `size` whose buffers have `nbytes` bytes (UNKNOWN: wired).

    Args:
        sizes: elements of the parts, where they differ.
    """
    if call.kind in (Kind.barrier, Kind.new_group):
        return Path.meet
    if nbytes < 0:
        return Path.wired
    cost = 0.0
    if call.reduce is not None:
        reduced = nbytes if call.kind is Kind.all_reduce and nbytes <= limits.direct else nbytes // size
        if sizes is not None:
            reduced = max(sizes) * call.dtype.itemsize
        cost = cost_ns(reduced, call.dtype, call.reduce) * (size - 1)
    widest = nbytes if sizes is None else max(sizes) * call.dtype.itemsize * size  # parts lie as far apart
    if widest > limits.inline or cost > INLINE_NS:
        return Path.bulk
    if call.kind is Kind.all_reduce:
        return Path.direct if nbytes <= limits.direct else Path.inline
    return Path.slot if given(call, size, nbytes, sizes) <= min(PAYLOAD, limits.direct) else Path.inline


def given(call: Call, size: int, nbytes: int, sizes: Sequence[int] | None = None) -> int:
    """Bytes that one rank gives at most; arguments as of `path_of`."""
    roles = ROLES[call.kind]
    if roles.source is roles.target or roles.source is Parts.EACH:
        return nbytes
    return nbytes // size if sizes is None else max(sizes) * call.dtype.itemsize


def fitting(limits: Thresholds, nbytes: int) -> Thresholds:
    """Thresholds for a group whose smallest segment has `nbytes`.

    What the loop works off in one go is staged whole, and must not take most of a segment where address
    space is short.
    """
    return replace(limits, inline=min(limits.inline, max(1 << 20, nbytes // 32)))


def most_staged(size: int, limits: Thresholds) -> int:
    """Bytes of staging that an operation of a group of `size` needs at most."""
    endless, lanes = 1 << 40, size - 1
    block, depth = blocks(endless, size, lanes, limits)
    larger, deep = blocks(endless, size, lanes, limits, phases=1)
    parts = 2 * limits.inline + 64 * size  # in whole blocks, and in whole cache lines
    return max(block * depth * size, larger * deep * lanes, parts, limits.direct)


def blocks(part: int, size: int, lanes: int, limits: Thresholds, *, phases: int = 2) -> tuple[int, int]:
    """The blocks of a part on the bulk path: bytes of one, and how many a rank may be ahead of its readers.

    What is staged has to stay in the cache, and every block is waited for once by every rank. Two ranks that
    reduce take small blocks: 100 MiB took them 14.3 ms by 256 KiB and 15.6 by 1 MiB. More ranks wait more for
    each other than for memory, above all where they compute meanwhile: 4 ranks on 2 cores took 66 ms by
    either alone, but a training step of 24 MiB took 70 ms by 256 KiB and 63 by 1 MiB. What is only handed on,
    in one phase, takes larger blocks, too: a broadcast of 64 MiB between 2 ranks took 8.4 ms by 256 KiB and
    4.9 by 1 MiB.

    Args:
        part: bytes of the largest part that one rank gives another.
        size: ranks of the group.
        lanes: blocks that lie in staging side by side; 0 where nothing is staged, because all sources and
            results lie in their ranks' segments.
        limits: thresholds.
        phases: of the operation; 2 where results come back.
    """
    block = limits.block if size == phases == 2 else limits.block * 4
    block = min(block, max(limits.staging // lanes, 64 * 1024)) if lanes else block * 2
    pages = max(1, min(block // 4096, -(-part // 4096)))
    return pages * 4096, limits.depth if size == phases == 2 else 2
