"""The plan of calls that are alike, computed once: their digest, their path, which ranks give and get.

The path follows from what all ranks agree on (law 3): kind, dtype, shape, op, root, sizes, and thresholds,
which are compared when the group is made.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from typing import Protocol

from aiodist import _engine
from aiodist.backends.arrays.kernels import INLINE_NS, cost_ns
from aiodist.backends.buffers import bounds_of
from aiodist.backends.host.local.board import PAYLOAD, Board
from aiodist.backends.host.local.hub import Hub, engine
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.operations import ROLES, Parts
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
    alike, itemsize = roles.source is Parts.ONE, call.dtype.itemsize
    bulk, block, larger, depth, lanes = path is Path.bulk, 0, 0, 1, 1 if alike else size - 1
    if path in (Path.meet, Path.wired):
        kind, starts = "meet", [0] * (size + 1)
    elif path is Path.direct:
        kind, starts = "each", [call.count * member for member in range(size + 1)]
    elif roles.reduces and not roles.cut and path is not Path.slot:
        kind, starts = "reduce", part_bounds(call.count, size, itemsize)
        block = larger = longest = starts[1]
        if bulk:
            block, depth = blocks(longest * itemsize, size, size - 1, limits)
            larger, _ = blocks(longest * itemsize, size, 0, limits)
            block, larger = block // itemsize, larger // itemsize
    else:
        total = call.count if roles.cut and not roles.agrees_on_part else call.count * size
        kind, starts = "share", bounds_of(total, sizes, size)
        block = longest = max(high - low for low, high in pairwise(starts))
        if bulk:
            block, depth = blocks(longest * itemsize, size, lanes, limits, phases=1)
            block //= itemsize
        elif longest * itemsize > INLINE_BLOCK:
            block = INLINE_BLOCK // itemsize
            depth = -(-longest // block)
    return engine().Plan(
        *(board.slots, owner, call, path, digest_of(call), call.signature, engine().KINDS[kind]),
        *(sources, readers, [high - low for low, high in pairwise(starts)], starts[:-1]),
        in_thread=bulk,
        in_slot=path is Path.slot or (path is Path.direct and call.nbytes <= PAYLOAD),
        alike=alike,
        sorts=roles.target is Parts.EACH,
        collects=root in (NO_ROOT, rank),
        dtype=DTYPE_CODES[call.dtype],
        op=call.combine or 0,
        block=block,
        larger=larger,
        depth=depth,
        lanes=lanes,
    )


_LINE = 64  # bytes of a cache line: parts of one buffer meet at its edges


def part_bounds(count: int, size: int, itemsize: int) -> list[int]:
    """The start of each rank's part of a reduction, in elements: equal parts of whole cache lines."""
    line = max(1, _LINE // itemsize)
    part = -(-count // (size * line)) * line
    return [min(rank * part, count) for rank in range(size + 1)]


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
