"""What is worked out once for calls that are alike: their digest, and the path that they take.

Everything here follows from what all ranks agree on (law 3): kind, dtype, shape, op, root, sizes, and
thresholds, which are compared when the group is made.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from hashlib import blake2b

from aiodist.environment.thresholds import Thresholds
from aiodist.kernels import cost_ns
from aiodist.types import Call, Kind, ReduceOp

INLINE_NS = 200_000.0  # what may run on the loop in one go (law 7)


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


def block_bytes(part: int, readers: int, exposed: bool, limits: Thresholds) -> int:
    """Bytes of a block, of one rank's part, in the bulk path.

    Args:
        part: bytes of the largest part.
        readers: blocks that lie in staging side by side, one for each.
        exposed: all ranks' sources and results lie in their homes, so nothing is staged.
        limits: thresholds.
    """
    block = limits.block * 2 if exposed else limits.block
    if not exposed:
        block = min(block, max(limits.staging // max(1, readers), 64 * 1024))
    return max(4096, min(block, -(-part // 4096) * 4096)) // 4096 * 4096


REDUCING = (Kind.all_reduce, Kind.reduce, Kind.reduce_scatter)
"""Kinds that combine elements."""

AVG = ReduceOp.AVG
