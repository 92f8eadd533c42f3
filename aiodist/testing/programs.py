"""Random programs: the same seed gives every rank the same operations, and tells what each must give.

Values are small integers, in whatever dtype, so that every reduction is exact and results are compared
bit by bit. They differ between ranks and between elements: constant tensors hide wrong indexing. Tensors
lie in memory in many ways: strided, at any byte, in memory that other ranks read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.base.errors import UsageError
from aiodist.base.operations import ROLES, Kind, Parts, Uneven, origins
from aiodist.base.types import DTYPES, ReduceOp, check_reduction

Array = npt.NDArray[Any]

COLLECTIVES = tuple(kind for kind in Kind if kind not in (Kind.recv, Kind.new_group))
"""The operations that programs are made of; `Kind.send` stands for a whole message."""

UNEVEN = tuple(kind for kind, roles in ROLES.items() if roles.uneven is not Uneven.NEVER and not roles.rooted)
"""Collectives whose parts callers may give sizes for."""

BYTES = tuple(dtype for dtype in DTYPES if dtype.itemsize == 1)
"""Dtypes of one byte: their tensors are cut anywhere. They are drawn more often than others."""

Room = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]
"""A maker of uninitialised, contiguous arrays."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a program, the same on all ranks.

    Args:
        kind: the operation; `send` stands for a message from `root` to `receiver`.
        dtype: of the tensors.
        shape: of every rank's tensor.
        layout: 'C', 'F', 'strided' or 'reversed': how the tensor lies in memory.
        op: for reductions.
        root: group rank.
        separate: whether the result goes to an `out` of its own; of a message, whether it goes to its sender.
        salt: makes the values of this step differ from those of others.
        moved: whether the tensors begin at any byte, on every rank at another, and some of them in memory
            that the other ranks of the host read; else at the start of memory of their own.
        uneven: whether the parts for, or of, each rank differ in size: see `rows`.
        frozen: whether what is given cannot be written: a read-only array, or a scalar.
    """

    kind: Kind
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    layout: str
    op: ReduceOp
    root: int
    separate: bool
    salt: int
    moved: bool = False
    uneven: bool = False
    frozen: bool = False

    @property
    def in_rows(self) -> bool:
        """Whether a part is some rows of `shape`; else it is of `shape` itself."""
        return self.uneven or self.kind is Kind.all_to_all

    def receiver(self, size: int) -> int:
        """The group rank that a message goes to: the one after its root, or the root itself."""
        return self.root if self.separate else (self.root + 1) % size

    def describe(self) -> str:
        """The step in a line, for a failing test."""
        what = f"{self.kind.name} {self.dtype.name}{list(self.shape)} {self.layout} {self.op.name}"
        named = ("separate", "moved", "uneven", "frozen")
        marks = "".join(f" {name}" for name in named if getattr(self, name))
        return f"{what} root={self.root}{marks}"


def program(
    seed: int, size: int, length: int, kinds: Sequence[Kind] = COLLECTIVES, big: int = 3000
) -> list[Step]:
    """A random program for `size` ranks; shapes of up to about `big` elements."""
    rng = random.Random(seed)
    return [_step(rng, size, kinds, big) for _ in range(length)]


def _step(rng: random.Random, size: int, kinds: Sequence[Kind], big: int) -> Step:
    kind = rng.choice(kinds)
    dtype = rng.choice(DTYPES if rng.random() < 0.7 else BYTES)
    dims = rng.choice([0, 1, 1, 1, 2, 2, 3])
    shape = tuple(
        rng.choice([0, 1, 2, 3, 5, rng.randint(1, max(1, int(big ** (1 / max(dims, 1)))))])
        for _ in range(dims)
    )
    if kind is Kind.reduce_scatter:
        shape = (size * rng.choice([0, 1, 2, rng.randint(1, 1 + big // size)]), *shape[1:2])
    uneven = kind in UNEVEN and rng.random() < 0.5
    if uneven or kind is Kind.all_to_all:  # of each row; how many go where is in `rows`
        shape = shape[1:]
    return Step(
        kind,
        dtype,
        shape,
        rng.choice(["C", "C", "F", "strided", "reversed"]),
        rng.choice(operations(dtype)),
        rng.randrange(size),
        rng.random() < 0.4,
        rng.randrange(1000),
        rng.random() < 0.6,
        uneven,
        rng.random() < 0.3,
    )


def rows(step: Step, size: int) -> list[list[int]]:
    """The number of rows that each rank gives each, where parts are rows: `[source][target]`."""
    rng = random.Random(step.salt)
    most = max(1, 2000 // max(1, int(np.prod(step.shape, dtype=np.int64))) // size)
    if not step.uneven:
        return [[rng.randint(0, most)] * size] * size
    table = [[rng.choice([0, 1, rng.randint(0, most)]) for _ in range(size)] for _ in range(size)]
    if ROLES[step.kind].uneven is Uneven.PAIRS:
        return table
    if ROLES[step.kind].source is Parts.EACH:
        return [table[0]] * size
    return [[count] * size for count in table[0]]


def tensor(step: Step, rank: int, size: int) -> Array:
    """The tensor that a rank that gives passes to a collective."""
    roles = ROLES[step.kind]
    if step.in_rows:
        mine = rows(step, size)[rank]
        return value(step, rank, mine[0] if roles.source is Parts.ONE else sum(mine))
    stacked = roles.source is Parts.EACH and not roles.reduces
    return value(step, rank, size if stacked else None)


def expected(step: Step, rank: int, size: int) -> Array | None:
    """The result of a collective for a rank, by NumPy; None where it gives nothing."""
    roles = ROLES[step.kind]
    senders = origins(step.kind, rank, size, step.root)
    if not senders:
        return None
    if roles.reduces:
        whole = reduced(step, size, senders[0])
        return whole if not roles.cut else _part(step, whole, 0, rank, size)
    parts = [_part(step, tensor(step, sender, size), sender, rank, size) for (sender,) in senders]
    if roles.target is Parts.ONE:
        return parts[0]
    return np.concatenate(parts) if step.in_rows else np.stack(parts)


def _part(step: Step, whole: Array, source: int, target: int, size: int) -> Array:
    """The part for `target` of what `source` gives."""
    roles = ROLES[step.kind]
    if roles.source is Parts.ONE:
        return whole
    if step.in_rows:
        ends = np.cumsum([0, *rows(step, size)[source]])
        return whole[ends[target] : ends[target + 1]]
    if roles.reduces:
        count = whole.shape[0] // size
        return whole[target * count : (target + 1) * count]
    return np.asarray(whole[target])


def operations(dtype: np.dtype[Any]) -> list[ReduceOp]:
    """The reductions that have a meaning for a dtype, but for PREMUL_SUM."""
    found = []
    for op in ReduceOp:
        if op is not ReduceOp.PREMUL_SUM:
            with suppress(UsageError):
                found.append(check_reduction(op, dtype))
    return found


def value(step: Step, rank: int, rows: int | None = None) -> Array:
    """Rank `rank`'s tensor at a step, C-contiguous; with `rows`, so many of them."""
    shape = step.shape if rows is None else (rows, *step.shape)
    count = int(np.prod(shape, dtype=np.int64))
    index = np.arange(count, dtype=np.int64)
    if step.op is ReduceOp.PRODUCT and ROLES[step.kind].reduces:
        numbers = np.where((index + rank + step.salt) % 5 == 0, 2, 1)  # 2^8 at most: exact in bfloat16
    elif step.dtype.kind == "b":
        numbers = (index * 7 + rank * 3 + step.salt) % 3 == 0
    elif step.op is ReduceOp.AVG:
        # Multiples of the number of ranks on 8 ranks at most: sums stay exact in 8 bits of mantissa.
        numbers = (index * 5 + rank * 3 + step.salt) % 29
    else:
        numbers = (index * 5 + rank * 11 + step.salt) % 31
    return np.asarray(numbers).astype(step.dtype).reshape(shape)


def room(step: Step, rank: int, shared: Callable[[int], Array]) -> Room:
    """The memory of a rank's tensors of a step.

    Args:
        step: the step.
        rank: the rank.
        shared: makes uint8 arrays that other ranks read, `ProcessGroup.empty` for instance.
    """
    rng = random.Random(step.salt * 64 + rank)

    def make(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if not step.moved:
            return np.empty(shape, dtype)
        offset, nbytes = rng.randrange(64), int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = shared(offset + nbytes) if rng.random() < 0.6 else np.empty(offset + nbytes, np.uint8)
        return memory[offset:].view(dtype).reshape(shape)

    return make


def laid_out(array: Array, layout: str, make: Room = np.empty) -> Array:
    """A copy of an array that lies in memory as asked."""
    if layout == "F":
        copy = make(array.shape[::-1], array.dtype).T
    elif layout == "reversed" and array.ndim:
        copy = make(array.shape, array.dtype)[::-1]
    elif layout == "strided" and array.ndim:
        wide = make((*array.shape[:-1], array.shape[-1] * 3), array.dtype)
        wide[...] = 0
        copy = wide[..., 1::3]
    else:
        copy = make(array.shape, array.dtype)
    copy[...] = array
    return copy


def reduced(step: Step, size: int, senders: range) -> Array:
    """The reduction of these ranks' tensors, by NumPy."""
    total = tensor(step, senders[0], size)
    wide = total.dtype if total.dtype.kind in "biuc" or total.dtype.itemsize > 2 else np.dtype(np.float32)
    total = total.astype(wide)
    combine: Any = {
        ReduceOp.SUM: np.add,
        ReduceOp.AVG: np.add,
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
        ReduceOp.BAND: np.bitwise_and,
        ReduceOp.BOR: np.bitwise_or,
        ReduceOp.BXOR: np.bitwise_xor,
    }[step.op]
    for rank in senders[1:]:
        total = combine(total, tensor(step, rank, size).astype(wide))
    if step.op is ReduceOp.AVG:
        total = (total / np.asarray(len(senders), total.dtype)).astype(total.dtype)
    return np.asarray(total).astype(step.dtype)


def same(got: Any, must: Array, step: Step, exact: bool = False) -> None:
    """Fail unless two arrays are equal: bit by bit; unless `exact`, averages to within one unit in the last
    place."""
    array = np.asarray(got)
    assert array.dtype == must.dtype, f"{step.describe()}: dtype {array.dtype}, expected {must.dtype}"
    assert array.shape == must.shape, f"{step.describe()}: shape {array.shape}, expected {must.shape}"
    if step.op is ReduceOp.AVG and not exact:
        digits = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "complex64": 1e-6}
        close = np.allclose(
            array.astype(np.complex128),
            must.astype(np.complex128),
            rtol=digits.get(step.dtype.name, 1e-12),
        )
        assert close, f"{step.describe()}: {array!r}, expected {must!r}"
    else:
        assert same_bits(array, must), f"{step.describe()}: {array!r}, expected {must!r}"


def same_bits(one: Any, other: Any) -> bool:
    """Whether two arrays have the same bytes.

    An assertion that compares the bytes itself has pytest draw up their difference when it fails: that takes
    minutes for large arrays.
    """
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()
