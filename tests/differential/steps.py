"""Random programs of module-level calls, and what each call must give on each rank, by NumPy alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    np.dtype(name).name: np.dtype(name)
    for name in (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
} | {"bfloat16": BFLOAT16}

REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
MOVING = (
    *("broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter"),
    *("all_to_all", "all_to_all_single"),
)
OBJECTS = (
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    "send_object_list",
)
MESSAGES = ("send", "send_any", "batch_isend_irecv")
KINDS = (*REDUCING * 3, *MOVING * 2, *OBJECTS, *MESSAGES * 2, "barrier", "monitored_barrier")

LONGEST = 5
"""Calls of a program, at most."""

COMBINE: dict[str, Any] = {
    "SUM": np.add,
    "AVG": np.add,
    "PREMUL_SUM": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One call, the same on all members of a group.

    Args:
        kind: the call's name; 'send' is a message from `root` to `target`, 'send_any' one from everybody to
            `root`, which takes them from any source.
        group: which of the program's groups.
        dtype: of the tensors.
        shape: of a rank's tensor; where a first axis is divided, of each part.
        layout: how tensors lie in memory: 'C', 'F', 'strided' or, where they are only read, 'expanded'.
            'value': they cannot be written: NumPy's read-only arrays, or scalars.
        op: for reductions.
        values: 'small' integers, exact in every dtype; 'wild' ones, that wrap; 'nan's among the small ones.
        root: group rank.
        target: a group rank; now and then the same.
        held: issued with async_op=True and waited for at the end.
        by_group: the root is named by `group_src`, not `src`.
        stacked: the large tensor has an axis of ranks, instead of a longer first axis.
        rows: for uneven all_to_all: how many rows rank i sends to rank j, at [i][j].
        salt: makes the values differ from those of other steps.
    """

    kind: str
    group: int
    dtype: str
    shape: tuple[int, ...]
    layout: str
    op: str
    values: str
    root: int
    target: int
    held: bool
    by_group: bool
    stacked: bool
    rows: tuple[tuple[int, ...], ...]
    salt: int


@dataclass(frozen=True, slots=True)
class Program:
    """Calls in the order in which a group's members issue them; ranks mix those of groups as they like.

    Args:
        seed: that it was made from.
        steps: the calls.
    """

    seed: int
    steps: tuple[Step, ...]

    def tag(self, index: int) -> int:
        """A tag that no step of another program of this run has."""
        return self.seed % 100_000 * LONGEST + index


def subgroups(world: int, seed: int) -> list[tuple[int, ...]]:
    """The members of the groups that programs run on: the world, and some that overlap."""
    rng = random.Random(seed)
    return [
        tuple(range(world)),
        *(tuple(sorted(rng.sample(range(world), rng.randint(min(2, world), world)))) for _ in range(3)),
        (rng.randrange(world),),
    ]


def program(seed: int, groups: list[tuple[int, ...]]) -> Program:
    """A random program."""
    rng = random.Random(seed)
    steps = []
    for _ in range(rng.randint(1, LONGEST)):
        number = rng.choice([0, 0, *range(len(groups))])
        steps.append(_step(rng, number, len(groups[number])))
    return Program(seed, tuple(steps))


def _step(rng: random.Random, group: int, size: int) -> Step:
    kind = rng.choice([kind for kind in KINDS if size > 1 or kind not in ("send_any", "batch_isend_irecv")])
    dtype = rng.choice(list(DTYPES))
    shape = _shape(rng, kind)
    root = rng.randrange(size)
    return Step(
        kind=kind,
        group=group,
        dtype=dtype,
        shape=shape,
        layout=rng.choice(["C", "C", "F", "strided", "expanded", "value"]),
        op=rng.choice(operations(dtype)),
        values=rng.choice(["small", "small", "wild", "nan"]),
        root=root,
        target=rng.randrange(size),
        held=rng.random() < 0.5,
        by_group=rng.random() < 0.3,
        stacked=rng.random() < 0.3,
        rows=_rows(rng, size),
        salt=rng.randrange(1 << 30),
    )


def _shape(rng: random.Random, kind: str) -> tuple[int, ...]:
    large = rng.random() < 0.06
    dims = 1 if large else rng.choice([0, 1, 1, 1, 2, 2, 3])
    if kind in ("all_to_all", "all_to_all_single"):
        dims = min(dims, 2)  # of a row; the rows are an axis more
        large = False
    if large:
        return (rng.choice([2047, 2048, 2049, 20_000, 70_001]),)
    return tuple(rng.choice([0, 1, 2, 3, 3, 5, 8, rng.randint(1, 12)]) for _ in range(dims))


def _rows(rng: random.Random, size: int) -> tuple[tuple[int, ...], ...]:
    most = rng.choice([0, 1, 3, 40])
    if rng.random() < 0.3:
        return ((most,) * size,) * size
    return tuple(tuple(rng.randint(0, most) for _ in range(size)) for _ in range(size))


def operations(dtype: str) -> list[str]:
    """The reductions that have a meaning for a dtype."""
    kind = "f" if dtype == "bfloat16" else DTYPES[dtype].kind
    found = ["SUM", "PRODUCT"]
    found += ["BAND", "BOR", "BXOR"] if kind in "biu" else ["AVG", "PREMUL_SUM"]
    return found if kind == "c" else [*found, "MIN", "MAX"]


def value(step: Step, rank: int, shape: tuple[int, ...], part: int = 0) -> Array:
    """A group rank's tensor, or one of its list of them."""
    dtype = DTYPES[step.dtype]
    rng = np.random.default_rng([step.salt, rank, part])
    reduces = step.kind in REDUCING
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    if dtype.kind in "iu" and step.values == "wild":
        limits = np.iinfo(dtype)
        return np.asarray(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))
    if reduces and step.op == "PRODUCT":
        numbers = np.asarray(rng.integers(1, 3, shape))  # 2 to the 5th at most
    else:
        numbers = np.asarray(rng.integers(0, 16 if step.op == "PREMUL_SUM" else 31, shape))
    array: Array = numbers.astype(dtype)
    if dtype.kind == "c":
        array = array + (1j * rng.integers(0, 3, shape)).astype(dtype)
        array = np.asarray(array).astype(dtype)
    if step.values == "nan" and (dtype.kind in "fc" or dtype == BFLOAT16):
        array = np.where(rng.integers(0, 4, shape) == 0, np.asarray(np.nan, dtype), array)
    return np.asarray(array).astype(dtype).reshape(shape)


def factor(step: Step, rank: int) -> float:
    """A group rank's factor of PREMUL_SUM; sums of products stay exact in 8 bits of mantissa."""
    return (1.0, 2.0, 1.0)[(rank + step.salt) % 3]


def thing(step: Step, rank: int, part: int = 0) -> Any:
    """A group rank's object."""
    rng = random.Random(f"{step.salt}/{rank}/{part}")
    return rng.choice(
        [
            None,
            rank + 0.5,
            "héllo" * rng.randint(0, 2000),
            b"\0\xff" * rng.randint(0, 30),
            [rank, (part, None), {"a": [1, 2.5, True], 7: -(2**63), "b": {rank}}],
            {"weights": value(step, rank, (3, 2), part), "rank": rank},
            2**64 - 1 - rank,
        ]
    )


def reduced(step: Step, size: int, shape: tuple[int, ...], part: int = 0) -> Array:
    """What reducing the members' tensors gives. Halves in float32, as they are documented to be."""
    dtype = DTYPES[step.dtype]
    wide = np.dtype(np.float32) if dtype in (BFLOAT16, np.float16) else dtype

    def term(rank: int) -> Array:
        array: Array = value(step, rank, shape, part).astype(wide)
        if step.op == "PREMUL_SUM":
            array = np.asarray(np.multiply(array, factor(step, rank))).astype(wide)
        return array

    with np.errstate(all="ignore"):
        total = term(0)
        for rank in range(1, size):
            total = np.asarray(COMBINE[step.op](total, term(rank)))
        if step.op == "AVG":
            total = np.asarray(total / size)
        return np.asarray(total).astype(dtype).reshape(shape)


def expected(step: Step, me: int, size: int) -> list[Any]:
    """What the call must leave on group rank `me`: its outputs, then its inputs, which stay as they were."""
    shape, root = step.shape, step.root
    mine = value(step, me, shape)
    everybody = range(size)
    match step.kind:
        case "all_reduce":
            return [reduced(step, size, shape)]
        case "reduce":
            return [reduced(step, size, shape) if me == root else mine]
        case "broadcast":
            return [value(step, root, shape)]
        case "reduce_scatter":
            inputs = [value(step, me, shape, part) for part in everybody]
            return [reduced(step, size, shape, me), *inputs]
        case "reduce_scatter_tensor":
            inputs = [joined(step, [value(step, me, shape, part) for part in everybody])]
            return [reduced(step, size, shape, me), *inputs]
        case "all_gather":
            return [*(value(step, rank, shape) for rank in everybody), mine]
        case "all_gather_into_tensor":
            return [joined(step, [value(step, rank, shape) for rank in everybody]), mine]
        case "gather":
            return [*(value(step, rank, shape) for rank in everybody if me == root), mine]
        case "scatter":
            return [value(step, root, shape, me)]
        case "all_to_all":
            return [value(step, rank, (step.rows[rank][me], *shape), me) for rank in everybody]
        case "all_to_all_single":
            rows = even(step) if step.stacked else step.rows
            return [np.concatenate([value(step, rank, (rows[rank][me], *shape), me) for rank in everybody])]
        case "send":
            return [value(step, root, shape), root] if me == step.target else []
        case "send_any":
            others = [rank for rank in everybody if rank != root]
            return [{rank: value(step, rank, shape) for rank in others}] if me == root else []
        case "batch_isend_irecv":
            return [value(step, (me - 1) % size, shape)]
        case "all_gather_object":
            return [[thing(step, rank) for rank in everybody]]
        case "gather_object":
            return [[thing(step, rank) for rank in everybody]] if me == root else []
        case "broadcast_object_list":
            return [[thing(step, root, part) for part in range(2)]]
        case "scatter_object_list":
            return [[thing(step, root, me)]]
        case "send_object_list":
            return [[thing(step, root, part) for part in range(2)], root] if me == step.target else []
    return []


def even(step: Step) -> tuple[tuple[int, ...], ...]:
    """The rows of an all_to_all without splits."""
    size = len(step.rows)
    return ((step.rows[0][0],) * size,) * size


def joined(step: Step, parts: list[Array]) -> Array:
    """The one tensor in place of a list."""
    return np.stack(parts) if step.stacked or not step.shape else np.concatenate(parts)
