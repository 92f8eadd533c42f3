"""Checks on what users pass, before anything is sent and before a number is taken."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from aiodist.backends.arrays import check_shape, like, overlaps, view
from aiodist.backends.base import Array, Given, arrays_in
from aiodist.base.errors import UsageError, shown
from aiodist.base.types import check_dtype

MAX_TAG = 2**31 - 1  # as many again are those of objects


def integer(value: object, name: str, kind: str = "an integer") -> int:
    """An integer, from any integer type; `UsageError` names the argument."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # torch and others have errors of their own for this
        raise UsageError(f"{name} must be {kind}, got {shown(value)}") from None


def text(value: object, name: str) -> str:
    """A string; None counts as an empty one."""
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} must be a string, got {shown(value)}")
    return value or ""


def one_of(value: object, words: tuple[str, ...], name: str) -> str:
    """One of some words."""
    if isinstance(value, str) and value in words:
        return value
    raise UsageError(f"{name} must be {' or '.join(map(repr, words))}, got {shown(value)}")


def at_least_1(value: object, name: str) -> int:
    """A positive integer."""
    number = integer(value, name)
    if number < 1:
        raise UsageError(f"{name} must be at least 1, got {shown(number)}")
    return number


def group_rank(value: object, size: int, name: str) -> int:
    """A rank of the group, from any integer type; `UsageError` names the argument."""
    rank = integer(value, name, "a rank (an integer)")
    if not 0 <= rank < size:
        raise UsageError(f"{name}={shown(rank)} is not a rank of this group, which has ranks 0 to {size - 1}")
    return rank


def message_tag(value: object) -> int:
    """A tag, 0 to 2³¹ - 2."""
    tag = integer(value, "tag")
    if not 0 <= tag < MAX_TAG:
        raise UsageError(f"tag={shown(tag)} is outside 0 to {MAX_TAG - 1}")
    return tag


def extents(shape: Any, dtype: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and dtype of an array that is to be made, one extent or several."""
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
        found = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
    except Exception:  # whatever the two have of errors of their own
        raise UsageError(
            f"empty({shown(shape)}, {shown(dtype)}) is not a shape and a dtype",
            hint="Write pg.empty((1000, 3), np.float32)",
        ) from None
    check_dtype(kind)
    if any(extent < 0 for extent in found):
        raise UsageError(f"shape {shown(found)} has a negative extent")
    check_shape(found, kind)
    return found, kind


def readable(tensor: Any, name: str) -> Array:
    """The array of a tensor that is read."""
    return view(tensor, writable=False, what=name, device=True)


def writable(tensor: Any, name: str, has_out: bool = True) -> Array:
    """The array of a tensor that is written; `has_out`: the caller may pass another one as out= instead."""
    return view(tensor, writable=True, what=name, device=True, has_out=has_out)


def output(out: Any, source: Any, array: Array, shape: tuple[int, ...]) -> tuple[Any, Array]:
    """The user's `out`, checked, or a new tensor of the family of `source`.

    Args:
        out: what the user passed, or None.
        source: the input tensor, and `array` its array.
        shape: that the output must have.

    Returns:
        The tensor that the Work will give, and its array.
    """
    if out is None:
        out = like(source, shape, array.dtype)
        return out, writable(out, "out")
    target = writable(out, "out")
    if target.shape != shape:
        raise UsageError(f"out has shape {target.shape}, the result has {shape}")
    same_dtype("out", target, array)
    apart("out", target, "tensor", array)
    return out, target


def staging(source: Given, target: Given) -> None:
    """Refuse strided arrays where there is no memory for their contiguous copies.

    It is taken and let go again: the operation takes it in a moment, when it has its number and cannot be
    taken back.
    """
    arrays = arrays_in(source) if target is source else [*arrays_in(source), *arrays_in(target)]
    nbytes = 0
    for array in arrays:
        if type(array) is np.ndarray and not array.flags.c_contiguous:
            nbytes += array.nbytes
    if not nbytes:
        return
    try:
        np.empty(nbytes, np.uint8)
    except (MemoryError, ValueError):
        raise UsageError(
            f"no memory for contiguous copies of strided tensors: {nbytes} bytes",
            hint="Pass contiguous tensors, or parts of them one after the other",
        ) from None


def same_dtype(name: str, array: Array, other: Array) -> None:
    """Refuse an array whose dtype differs."""
    if array.dtype != other.dtype:
        raise UsageError(f"{name} has dtype {array.dtype.name}, the other tensor {other.dtype.name}")


def apart(name: str, array: Array, other_name: str, other: Array) -> None:
    """Refuse arrays that share memory."""
    if overlaps(array, other):
        raise UsageError(f"{name} and {other_name} share memory", hint=f"Pass a separate {name}")


def all_apart(written: Given, name: str, read: Given, other_name: str) -> None:
    """Refuse what is written where it shares memory with what is read; each an array or a list of them."""
    for one, array in _named(written, name):
        for other, source in _named(read, other_name):
            apart(one, array, other, source)


def _named(given: Given, name: str) -> list[tuple[str, Array]]:
    if isinstance(given, list):
        return [(f"{name}[{index}]", array) for index, array in enumerate(given)]
    return [] if given is None else [(name, given)]


def listed(tensors: Any, size: int, name: str) -> list[Any]:
    """A list of tensors, one for each rank."""
    if not isinstance(tensors, list | tuple):
        raise UsageError(f"{name} must be a list of {size} tensors, got {type(tensors).__name__}")
    if len(tensors) != size:
        raise UsageError(f"{name} has {len(tensors)} tensors, the group has {size} ranks")
    return list(tensors)


def shaped_like(array: Array, like: Array, name: str) -> None:
    """Refuse an array of another shape or dtype."""
    if array.shape != like.shape or array.dtype != like.dtype:
        raise UsageError(
            f"{name} is {array.dtype.name}{list(array.shape)}, expected {like.dtype.name}{list(like.shape)}"
        )


def members(ranks: Any, size: int) -> tuple[int, ...]:
    """The ranks of a new group: sorted, each once; None means all."""
    if ranks is None:
        return tuple(range(size))
    listed = [group_rank(rank, size, "ranks") for rank in some(ranks, size + 1, "ranks", "a list of ranks")]
    if not listed:
        raise UsageError("ranks is empty: a group has at least one member")
    if len(set(listed)) != len(listed):
        raise UsageError(f"ranks names a rank twice: {shown(listed)}")
    return tuple(sorted(listed))


def some(values: Any, most: int, name: str, kind: str) -> list[Any]:
    """The items of whatever can be iterated, so many at most."""
    try:
        return list(islice(values, most))
    except Exception:  # its own errors, whatever it is
        raise UsageError(f"{name} must be {kind}, got {shown(values)}") from None


def split_axis(array: Array, size: int) -> tuple[int, ...]:
    """The shape of one rank's part when the first axis is divided by the group's size."""
    if array.ndim == 0:
        raise UsageError("reduce_scatter divides the first axis, and a 0-d tensor has none")
    if array.shape[0] % size:
        raise UsageError(
            f"the first axis has {array.shape[0]} elements, which {size} ranks cannot share equally",
            hint=f"Pad it to a multiple of {size}",
        )
    return (array.shape[0] // size, *array.shape[1:])


def counts(values: Sequence[int], size: int, name: str) -> list[int]:
    """Row counts, one for each rank."""
    kind = f"a list of {size} row counts"
    rows = [integer(value, name, kind) for value in some(values, size + 1, name, kind)]
    if len(rows) != size or any(row < 0 for row in rows):
        raise UsageError(
            f"{name}={shown(rows)} must be {size} counts of rows, one for each rank, none negative"
        )
    return rows


def own_part(sent: int, received: int, unit: str) -> None:
    """Refuse an all_to_all in which this rank expects something else of itself than it sends."""
    if sent != received:
        raise UsageError(
            f"this rank sends {sent} {unit} to itself, and expects {received}",
            hint="What one rank sends to another and what that one expects must be equal",
        )


def splits(array: Array, values: Sequence[int] | None, size: int, name: str, argument: str) -> list[int]:
    """The sizes into which the first axis of an array is divided among the ranks; None divides it equally."""
    if array.ndim == 0:
        raise UsageError(f"all_to_all divides the first axis, and {name} is 0-d")
    if values is None:
        if array.shape[0] % size:
            raise UsageError(
                f"{name} has {array.shape[0]} rows, which {size} ranks cannot share equally",
                hint=f"Pass {argument}",
            )
        return [array.shape[0] // size] * size
    rows = counts(values, size, argument)
    if sum(rows) != array.shape[0]:
        raise UsageError(f"{argument} add up to {sum(rows)} rows, {name} has {array.shape[0]}")
    return rows
