"""What is worked out once for calls that are alike: their digest, and the path that they take.

Everything here follows from what all ranks agree on (law 3): kind, dtype, shape, op, root, sizes, and
thresholds, which are compared when the group is made.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from hashlib import blake2b

from aiodist.environment.thresholds import Thresholds
from aiodist.kernels import INLINE_NS, cost_ns
from aiodist.types import Call, Kind


class Path(enum.Enum):
    """How an operation runs."""

    meet = "nothing but signatures"
    direct = "everybody reduces everything, on the loop"
    inline = "in one block, on the loop"
    bulk = "in many blocks, in the thread"
    wired = "over the channels"


@dataclass(frozen=True, slots=True)
class Plan:
    """One kind of call.

    Attributes:
        digest: 48 bits that stand for everything that ranks agree on, the number aside; never 0.
        path: how it runs.
    """

    digest: int
    path: Path


_LINE = 64  # bytes of a cache line: parts of one buffer meet at its edges


def part_bounds(count: int, size: int, itemsize: int) -> list[int]:
    """Where each rank's part of a reduction begins, in elements: equal parts of whole cache lines."""
    line = max(1, _LINE // itemsize)
    part = -(-count // (size * line)) * line
    return [min(rank * part, count) for rank in range(size + 1)]


def digest_of(call: Call) -> int:
    """48 bits of a call's signature without number and offer."""
    signature = call.signature
    packed = blake2b(signature[:16] + signature[24:28], digest_size=6).digest()
    return int.from_bytes(packed, "little") or 1


def path_of(call: Call, size: int, nbytes: int, limits: Thresholds) -> Path:
    """How a call runs in a group of `size` whose buffers have `nbytes` bytes (UNKNOWN: wired)."""
    if call.kind in (Kind.barrier, Kind.new_group):
        return Path.meet
    if nbytes < 0:
        return Path.wired
    cost = 0.0
    if call.reduce is not None:
        reduced = nbytes if call.kind is Kind.all_reduce and nbytes <= limits.direct else nbytes // size
        cost = cost_ns(reduced, call.dtype, call.reduce, anywhere=True) * (size - 1)
    if nbytes > limits.inline or cost > INLINE_NS:
        return Path.bulk
    if call.kind is Kind.all_reduce and nbytes <= limits.direct:
        return Path.direct
    return Path.inline


def most_staged(size: int, limits: Thresholds) -> int:
    """Bytes of staging that an operation of a group of `size` needs at most."""
    endless, lanes = 1 << 40, size - 1
    block, depth = blocks(endless, size, lanes, limits)
    larger, deep = blocks(endless, size, lanes, limits, phases=1)
    parts = (
        limits.inline * lanes + 64 * size
    )  # in whole cache lines; one may be as large as all, where they differ
    return max(block * depth * size, larger * deep * lanes, parts, limits.direct)


def blocks(part: int, size: int, lanes: int, limits: Thresholds, *, phases: int = 2) -> tuple[int, int]:
    """How the bulk path cuts a part: bytes of a block, and how many a rank may be ahead of its readers.

    What is staged has to stay in the cache, and every block is waited for once by every rank. In two phases
    4 ranks on 2 cores took 29 ms for 64 MiB by 192 KiB, 32 by 384 and 37 by 768. What is only handed on, in
    one phase, can take larger blocks: a broadcast of 64 MiB between 2 ranks took 8.4 ms by 256 KiB and 4.9
    by 1 MiB.

    Args:
        part: bytes of the largest part that one rank gives another.
        size: ranks of the group.
        lanes: blocks that lie in staging side by side; 0 where nothing is staged, because all sources and
            results lie in their ranks' homes.
        limits: thresholds.
        phases: of the operation; 2 where results come back.
    """
    block = limits.block if phases == 2 else limits.block * 4
    block = min(block, max(limits.staging // lanes, 64 * 1024)) if lanes else block * 2
    pages = max(1, min(block // 4096, -(-part // 4096)))
    return pages * 4096, limits.depth if size == phases == 2 else 2
