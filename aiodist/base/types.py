"""Types of operations: reduce ops, dtypes, and the description that every rank must agree on.

A `Call` is the agreed part of one operation: what, on how many elements, of which dtype. Its
`signature` is 32 bytes that travel in the header of an operation's first frames, so that ranks that
disagree are told so without an extra round (law 4).
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from aiodist.base.errors import UsageError, shown
from aiodist.base.operations import ROLES
from aiodist.base.operations import Kind as Kind


class ReduceOp(enum.IntEnum):
    """The ways in which elements of different ranks combine (torch's names)."""

    SUM = 1
    AVG = 2
    PRODUCT = 3
    MIN = 4
    MAX = 5
    BAND = 6
    BOR = 7
    BXOR = 8
    PREMUL_SUM = 9


@dataclass(frozen=True, slots=True)
class Premultiplied:
    """The op that multiplies this rank's tensor by a factor and then sums. Made by `premul_sum`.

    Args:
        factor: of this rank; ranks may have different ones.
    """

    factor: float


def premul_sum(factor: float) -> Premultiplied:
    """SUM of tensors that are multiplied first, each rank's by its factor. For floating and complex dtypes.

    Args:
        factor: a number, of this rank.
    """
    try:
        if not isinstance(factor, bool) and isinstance(factor, int | float):
            return Premultiplied(float(factor))
    except OverflowError:  # an integer beyond every float
        pass
    raise UsageError(f"factor must be a number, got {shown(factor)}")


# The wire code of each dtype. Codes are part of the protocol: append, never renumber.
DTYPES: tuple[np.dtype[np.generic], ...] = tuple(
    np.dtype(t)
    for t in (
        np.bool_,
        np.uint8,
        np.int8,
        np.uint16,
        np.int16,
        np.uint32,
        np.int32,
        np.uint64,
        np.int64,
        np.float16,
        ml_dtypes.bfloat16,
        np.float32,
        np.float64,
        np.complex64,
        np.complex128,
    )
)
DTYPE_CODES: dict[np.dtype[np.generic], int] = {dtype: code for code, dtype in enumerate(DTYPES)}
BFLOAT16: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)

FLOATS: frozenset[np.dtype[np.generic]] = frozenset(
    {*(np.dtype(t) for t in (np.float16, np.float32, np.float64)), BFLOAT16}
)
"""The real floating dtypes."""

WHOLE: frozenset[np.dtype[np.generic]] = frozenset(dtype for dtype in DTYPES if dtype.kind in "biu")
"""The dtypes of whole numbers, bool among them. A program may act on such elements: a pickle is bytes, and
its size is a number."""

_FLOATING = FLOATS | {np.dtype(np.complex64), np.dtype(np.complex128)}
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype of a name that `dtype.name` gave; NumPy does not know that of bfloat16.

    Raises:
        TypeError: there is none of that name.
    """
    return BFLOAT16 if name == BFLOAT16.name else np.dtype(name)


def check_dtype(dtype: np.dtype[np.generic]) -> int:
    """The wire code of a dtype; `UsageError` names the dtypes that exist where it has none."""
    code = DTYPE_CODES.get(dtype)
    if code is None:
        names = ", ".join(d.name for d in DTYPES)
        raise UsageError(f"dtype {dtype} cannot be communicated", hint=f"Convert to one of: {names}")
    return code


_WORDS = {"MEAN": "AVG", "AVERAGE": "AVG", "ADD": "SUM", "MUL": "PRODUCT", "PROD": "PRODUCT"}


def _name_like(op: object) -> str:
    """The name of an op of ours that another library's op bears, as torch's do."""
    try:
        name = op.upper() if isinstance(op, str) else getattr(op, "name", None)
        name = _WORDS.get(name, name) if isinstance(name, str) else name
    except Exception:  # whatever it is
        name = None
    return name if isinstance(name, str) and name in ReduceOp.__members__ else "SUM"


def check_reduction(op: ReduceOp | Premultiplied, dtype: np.dtype[np.generic]) -> ReduceOp:
    """Refuse combinations without meaning: AVG of integers, MIN of complex, bitwise of floats."""
    if isinstance(op, Premultiplied):
        if dtype not in _FLOATING:
            raise UsageError(f"PREMUL_SUM of {dtype.name}: the factor is not an integer", hint="Use SUM")
        return ReduceOp.PREMUL_SUM
    if op is ReduceOp.PREMUL_SUM:
        raise UsageError("PREMUL_SUM needs a factor", hint="Write dist.premul_sum(0.5)")
    if not isinstance(op, ReduceOp):
        raise UsageError(
            f"op must be a ReduceOp of aiodist, got {shown(op)}",
            hint=f"Write aiodist's dist.ReduceOp.{_name_like(op)}",
        )
    if op is ReduceOp.AVG and dtype not in _FLOATING:
        raise UsageError(f"AVG of {dtype.name} has no exact meaning", hint="Use SUM, or a floating dtype")
    if op in (ReduceOp.MIN, ReduceOp.MAX) and dtype.kind == "c":
        raise UsageError(f"{op.name} of {dtype.name}: complex numbers have no order")
    if op in _BITWISE and dtype in _FLOATING:
        raise UsageError(f"{op.name} of {dtype.name}: bitwise reductions need integers or bool")
    return op


AS = "as:"
"""Text in the detail of collectives of which a call of another name is made, such as all_gather_object; the
call follows. Their elements are acted on."""

_SEND = int(Kind.send)
_SIGNATURE = struct.Struct("<BBBBiQQII")
SIGNATURE_BYTES = _SIGNATURE.size
_AS_FLAG = 0x80  # beside the number of dimensions: a part of a call of another name
_MADE_OF = {
    Kind.all_gather: "all_gather_object, gather_object, all_reduce_quantized or split",
    Kind.all_to_all: "all_reduce_quantized",
    Kind.broadcast: "broadcast_object, scatter_object or pending_joins",
    Kind.gather: "gather_object",
    Kind.scatter: "scatter_object",
    Kind.all_reduce: "agree",
}
_ROOTS = 4096
"""Roots that are tried where a signature does not have the one of the call that it is a part of."""

NO_ROOT = -1


@dataclass(slots=True, unsafe_hash=True)
class Call:
    """The description of one operation that every member must agree on. Nobody changes it.

    (It is not frozen: a frozen dataclass takes three times as long to make, and each operation makes one.)

    Args:
        kind: the operation.
        seq: its number in the group (collectives count per group, point-to-point per src, dst, tag).
        dtype: of the elements.
        shape: of the tensor that all ranks hold alike (for all_gather and reduce_scatter: the input).
        reduce: for reductions.
        root: group rank of the source or destination, NO_ROOT where there is none.
        offer: bits for paths that this rank could take; taken only if all offer (law 3).
        detail: anything else that must be equal, as text (the ranks of a new group).
    """

    kind: Kind
    seq: int
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...] = ()
    reduce: ReduceOp | None = None
    root: int = NO_ROOT
    offer: int = 0
    detail: str = ""
    _count: int = field(default=-1, init=False, repr=False, compare=False)
    _signature: bytes = field(default=b"", init=False, repr=False, compare=False)

    def numbered(self, seq: int) -> Call:
        """A call like this one under another number; without offer."""
        return Call(self.kind, seq, self.dtype, self.shape, self.reduce, self.root, 0, self.detail)

    def shaped(self, shape: tuple[int, ...]) -> Call:
        """A call like this one on a tensor of another shape; without offer."""
        return Call(self.kind, self.seq, self.dtype, shape, self.reduce, self.root, 0, self.detail)

    @property
    def name(self) -> str:
        """The name of the user's call: 'all_gather_object' for the all_gather that it is made of."""
        if not self.detail.startswith(AS):
            return self.kind.name
        return self.detail[len(AS) :].partition("(")[0]

    @property
    def message(self) -> bool:
        """Whether it is one side of a message; else a collective."""
        return ROLES[self.kind].message

    @property
    def combine(self) -> ReduceOp | None:
        """The op that combines elements: what PREMUL_SUM has multiplied is summed."""
        return ReduceOp.SUM if self.reduce is ReduceOp.PREMUL_SUM else self.reduce

    @property
    def count(self) -> int:
        """The number of elements in `shape`."""
        if self._count < 0:
            self._count = prod(self.shape)
        return self._count

    @property
    def nbytes(self) -> int:
        """The number of bytes in `shape`."""
        return self.count * self.dtype.itemsize

    @property
    def signature(self) -> bytes:
        """32 bytes that are equal on two ranks exactly when their calls agree (offers aside)."""
        if not self._signature:
            self._signature = _SIGNATURE.pack(
                self.kind,
                DTYPE_CODES[self.dtype],
                self.reduce or 0,
                len(self.shape) & 0x7F | (_AS_FLAG if AS in self.detail else 0),
                self.root,
                self.count,
                self.seq,
                _sum_of(self.shape, self.detail),
                self.offer,
            )
        return self._signature

    def describe(self) -> str:
        """The call as a user writes it: 'all_reduce(float32[3, 4], SUM)'."""
        return self.detail[len(AS) :] if self.detail.startswith(AS) else self.in_full()

    def in_full(self) -> str:
        """The call, or the part that it is of another one, with all that ranks agree on but the number."""
        if self.kind in (Kind.barrier, Kind.new_group):
            return f"{self.kind.name}({self.detail})"
        extents = ", ".join(map(str, self.shape))
        parts = [f"{self.dtype.name}[{extents}]" if self.shape else f"a single {self.dtype.name}"]
        if self.reduce is not None:
            parts.append(self.reduce.name)
        if self.root != NO_ROOT:
            to = ROLES[self.kind].root_gets or self.kind is Kind.send
            role = "dst" if to else "src"
            parts.append(f"{role}={self.root}")
        if self.detail:
            parts.append(self.detail)
        return f"{self.kind.name}({', '.join(parts)})"


def message_signature(dtype: np.dtype[Any], count: int, number: int) -> bytes:
    """The signature of a message, the same on both sides: `Call.signature` of a send of so many elements."""
    code, shape_sum = _of_message(dtype, count)
    return _SIGNATURE.pack(_SEND, code, 0, 1, NO_ROOT, count, number, shape_sum, 0)


@lru_cache(1024)
def _sum_of(shape: tuple[int, ...], detail: str) -> int:
    return zlib.crc32(f"{shape}{detail}".encode())


@lru_cache(1024)
def _of_message(dtype: np.dtype[Any], count: int) -> tuple[int, int]:
    return DTYPE_CODES[dtype], _sum_of((count,), "")


def agree(mine: bytes, theirs: bytes) -> bool:
    """Whether two signatures name the same operation. The last four bytes, offers, may differ."""
    return mine[:-4] == theirs[:-4]


def frames_of(kind: Kind, root: int) -> tuple[Kind, int, str]:
    """The first step of a collective of objects: kind, root and detail of the collective of its frames. The
    detail is the user's call, which the second step has, too: ranks that disagree find it in the first one.

    Args:
        kind: what becomes of the objects.
        root: of that; NO_ROOT where there is none.
    """
    roles = ROLES[kind]
    detail = f"{AS}{kind.name}_object({f'{roles.root_name}={root}' if roles.rooted else ''})"
    return (Kind.broadcast, root, detail) if roles.root_gives else (Kind.all_gather, NO_ROOT, detail)


def describe_signature(signature: bytes) -> str:
    """A peer's signature as text; the shape is not in it, so the element count stands for it."""
    kind, dtype, reduce, ndim, root, count, _seq, shape, _offer = _SIGNATURE.unpack(signature)
    try:
        if ndim & _AS_FLAG and Kind(kind) in _MADE_OF:
            return _whole(Kind(kind), root, count, shape) or _MADE_OF[Kind(kind)]
        call = Call(Kind(kind), 0, DTYPES[dtype], (count,), ReduceOp(reduce) if reduce else None, root)
    except (ValueError, IndexError):
        return f"an operation this version does not know (code {kind})"
    return call.describe()


def _whole(kind: Kind, root: int, count: int, shape_sum: int) -> str:
    """The call of the user's that a part with this signature belongs to, found by its checksum; '': unknown.

    A part's shape has one dimension, or none.
    """
    roots = (root,) if root != NO_ROOT else range(_ROOTS)
    for call in _WHOLES.get(kind, ()):
        for one in roots if "{" in call else (0,):
            text = call.format(one)
            for shape in ((count,), ()):
                if zlib.crc32(f"{shape}{AS}{text}".encode()) == shape_sum:
                    return text
    return ""


_WHOLES = {
    Kind.all_gather: ("all_gather_object()", "gather_object(dst={})", "split()"),
    Kind.broadcast: ("broadcast_object(src={})", "scatter_object(src={})", "pending_joins()"),
    Kind.gather: ("gather_object(dst={})",),
    Kind.scatter: ("scatter_object(src={})",),
    Kind.all_reduce: ("agree()",),
}
