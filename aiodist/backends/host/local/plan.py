"""The plan of calls that are alike: their path, which ranks give and get, how large blocks are at most.

The path follows from what all ranks agree on (law 3): kind, dtype, shape, op, root, sizes, and thresholds,
which are compared when the group is made. Where the parts and blocks lie is arithmetic, and the engine's
(`_engine/layout.h`).
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from aiodist import _engine
from aiodist.backends.arrays.kernels import INLINE_NS, cost_ns
from aiodist.backends.host.local.board import PAYLOAD, Board
from aiodist.backends.host.local.hub import Hub, engine
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.operations import ROLES, Parts, origins
from aiodist.base.types import DTYPE_CODES, NO_ROOT, Call, Kind


class Path(enum.Enum):
    """The way in which an operation runs."""

    meet = "nothing but signatures"
    direct = "every rank reduces everything, on the loop"
    slot = "through the slots, on the loop"
    inline = "on the loop"
    bulk = "in many blocks, in the thread"
    wired = "over the channels"


INLINE_BLOCK = 256 * 1024
"""Bytes of a block on the loop: peers take the first while the others are filled."""

_ENDLESS = 1 << 62  # more elements than there are


class Owner(Protocol):
    """The group, as far as its operations need it. Members are group ranks."""

    hub: Hub
    board: Board

    def disagrees(self, seq: int, member: int) -> None:
        """Report that a peer has published something else under a number. From the loop or the thread."""

    def reuse(self, seq: int) -> None:
        """Look back at a slot, before anything else is written there (`Slots.unseen`)."""

    def look_back(self, numbers: Sequence[int]) -> bool:
        """Report a peer that published something else under one of these numbers → whether one did."""

    def disagreed_before(self, exchange: _engine.Exchange) -> bool:
        """Whether an operation of all, which is over, shows that ranks differed in an earlier one."""

    def arrived(self, exchange: _engine.Exchange) -> None:
        """Write down that all that an operation waits for has come."""

    def over(self, exchange: _engine.Exchange) -> None:
        """End an operation that is in flight."""

    def failed(self, error: Exception) -> None:
        """Break the group: something raised that must not."""


def plan_of(
    board: Board,
    call: Call,
    path: Path,
    limits: Thresholds,
    owner: Owner,
    sizes: Sequence[int] | None = None,
) -> _engine.Plan:
    """The plan of one kind of call of a group: all that its operations share.

    Args:
        board: the group's memory.
        call: what ranks agree on; its number does not matter.
        path: how it runs.
        limits: thresholds.
        owner: the group.
        sizes: elements of the parts, where they differ: of the source's, or of the target's.
    """
    roles, root, size, rank = ROLES[call.kind], call.root, board.size, board.rank
    gives, gets = roles.gives(rank, root), roles.gets(rank, root)
    sources = [gets and roles.gives(member, root) for member in range(size)]
    readers = [gives and roles.gets(member, root) for member in range(size)]
    alike = roles.source is Parts.ONE
    bulk, block, larger, depth, lanes = path is Path.bulk, 0, 0, 0, 1 if alike else size - 1
    if path in (Path.meet, Path.wired):
        kind = "meet"
    elif path is Path.direct:
        kind = "each"
    elif roles.reduces and not roles.cut and path is not Path.slot:
        kind = "reduce"
        if bulk:
            block, depth = blocks(size, size - 1, limits)
            larger, _ = blocks(size, 0, limits)
    else:
        kind, block = "share", INLINE_BLOCK
        if bulk:
            block, depth = blocks(size, lanes, limits, phases=1)
    return engine().Plan(
        *(board.slots, owner, call, path, call.signature, engine().KINDS[kind], sources, readers),
        *(0 if kind == "meet" else call.count, sizes),
        in_thread=bulk,
        in_slot=path is Path.slot,
        cut=roles.cut and not roles.agrees_on_part,
        alike=alike,
        sorts=roles.target is Parts.EACH,
        collects=root in (NO_ROOT, rank),
        dtype=DTYPE_CODES[call.dtype],
        op=call.combine or 0,
        block=block // call.dtype.itemsize,
        larger=larger // call.dtype.itemsize,
        depth=depth,
        lanes=lanes,
    )


@lru_cache(maxsize=256)
def is_known(kind: Kind, size: int) -> bool:
    """Whether the exchanges carry out a collective of `size` ranks: what they reduce is the values of all.

    One that reduces those of some, such as a prefix sum, goes by messages.
    """
    parts = [part for rank in range(size) for part in origins(kind, rank, size, 0)]
    return not ROLES[kind].reduces or all(part == range(size) for part in parts)


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


def reach(call: Call, size: int, limits: Thresholds) -> tuple[Path, range]:
    """The path of a call whose parts are alike, and the numbers of elements for which calls of other shapes
    take it, too: of the same kind, dtype, op and root.

    Args:
        call: whose `count` is one of them.
        size: ranks of the group.
    """
    each = call.dtype.itemsize * (size if ROLES[call.kind].agrees_on_part else 1)  # bytes of buffers for one
    if not call.count:  # of a barrier
        return Path.meet, range(1)
    small = min(PAYLOAD, limits.direct)
    edges = (0, small, small * size + size - 1, limits.direct, limits.inline)  # bytes, as in `path_of`
    low = max(edge // each for edge in edges if edge // each < call.count) + 1
    above = (edge // each for edge in edges if edge // each >= call.count)
    high = min(above, default=max(_ENDLESS, call.count))

    def path(count: int) -> Path:
        return path_of(call, size, count * each, limits)

    mine = path(call.count)
    if call.reduce is not None:  # what takes too long is a matter of the size alone in between
        low = bisect_left(range(call.count), True, low, key=lambda count: path(count) is mine)
        high = bisect_left(range(high), True, call.count, key=lambda count: path(count + 1) is not mine)
    return mine, range(low, high + 1)


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
    lanes = size - 1
    block, depth = blocks(size, lanes, limits)
    larger, deep = blocks(size, lanes, limits, phases=1)
    parts = 2 * limits.inline + 64 * size  # in whole blocks, and in whole cache lines
    return max(block * depth * size, larger * deep * lanes, parts, limits.direct)


def blocks(size: int, lanes: int, limits: Thresholds, *, phases: int = 2) -> tuple[int, int]:
    """The blocks of parts on the bulk path: bytes of one at most, and how many a rank may be ahead of its
    readers.

    What is staged has to stay in the cache, and every block is waited for once by every rank. Two ranks that
    reduce take small blocks: 100 MiB took them 14.3 ms by 256 KiB and 15.6 by 1 MiB. More ranks wait more for
    each other than for memory, above all where they compute meanwhile: 4 ranks on 2 cores took 66 ms by
    either alone, but a training step of 24 MiB took 70 ms by 256 KiB and 63 by 1 MiB. What is only handed on,
    in one phase, takes larger blocks, too: a broadcast of 64 MiB between 2 ranks took 8.4 ms by 256 KiB and
    4.9 by 1 MiB.

    Args:
        size: ranks of the group.
        lanes: blocks that lie in staging side by side; 0 where nothing is staged, because all sources and
            results lie in their ranks' segments.
        limits: thresholds.
        phases: of the operation; 2 where results come back.
    """
    block = limits.block if size == phases == 2 else limits.block * 4
    block = min(block, max(limits.staging // lanes, 64 * 1024)) if lanes else block * 2
    return max(1, block // 4096) * 4096, limits.depth if size == phases == 2 else 2
