"""The contents of a checkpoint: trees of dicts, lists, numbers, texts and arrays, as plain nodes. Pure.

Each rank writes some elements of each array, and describes its tree by nodes that JSON can carry. Merged, the
nodes of all ranks are the index of the checkpoint. A node is None, a boolean, a number, a text, or one of

    ["dict", [[key, node], …]]        ["list", [node, …]]        ["tuple", [node, …]]
    ["some", [[key, node], …]]        a dict of which each rank has some entries
    ["ranks", [[rank, node], …]]      what each rank has for itself
    ["array", form, dtype, shape, checksum, [[start, count, rank, name, checksum], …]]

A rank's node of a dict may have a hint behind its entries, for the error where ranks differ in them.

The segments of an array say who has which elements, by what name, with which CRC-32. An array that all ranks
have alike has a checksum of the whole, too: ranks whose values differ are found when the nodes are merged.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays import view, wrap
from aiodist.backends.arrays.device import torch_of
from aiodist.base.errors import CheckpointError, UsageError, shown
from aiodist.base.types import dtype_named
from aiodist.ddp.checkpoint.parts import Parts, Stored
from aiodist.net.wire.repeats import Account, Repeated

Array = npt.NDArray[Any]
Node = Any

ARRAY, TENSOR, SCALAR = "array", "tensor", "scalar"
MOST_DEPTH = 45
"""Levels of what is saved by a name; all that walks a tree or its nodes calls itself for each."""
_PLAIN = (bool, int, float, str)
PER_RANK = "Pass PerRank(…) for what each rank has for itself"


class Alike(dict[str, Any]):
    """A dict whose owner says what to do where it is not the same on all ranks.

    Args:
        items: of the dict.
        hint: of the error.
    """

    def __init__(self, items: Mapping[str, Any], hint: str) -> None:
        super().__init__(items)
        self.hint = hint


class Some(dict[str, Any]):
    """A dict of which each rank has some entries; those that several have must fit each other."""


@dataclass(frozen=True)
class PerRank:
    """A value that each rank has for itself: the state of a random generator, say.

    A checkpoint gives it back to a group of the same size only, to the same rank; else it is None.

    Args:
        value: what a checkpoint can hold.
    """

    value: Any


@dataclass(frozen=True)
class Copied:
    """A copy of an array, and what it was."""

    form: str
    array: Array


def snapshot(
    tree: Any,
    path: str,
    take: Callable[[str, Array], Array],
    depth: int = MOST_DEPTH,
    alone: bool = False,
    account: Account | None = None,
) -> Any:
    """The tree with a copy of each array.

    Args:
        path: the tree's name, for errors and for `take`.
        take: copies an array, given its path.
        depth: levels that may come.
        alone: it is within a PerRank.
        account: of what is saved; None: a new one.

    Raises:
        UsageError: something in it cannot be saved.
    """
    account = Account() if account is None else account
    if not isinstance(tree, PerRank | Mapping | list | tuple) or isinstance(tree, Parts):
        return _leaf(tree, path, take, account)
    if depth <= 0:
        raise UsageError(
            f"{path[:40]}… has more than {MOST_DEPTH} levels", hint="Save what is in it by names of their own"
        )
    outer = _charged(path, account.enter, id(tree))
    below = partial(snapshot, take=take, depth=depth - 1, account=account)
    copied = _container(tree, path, alone, below)
    account.leave(id(tree), outer)
    return copied


def _charged(path: str, add: Callable[..., Any], *what: Any) -> Any:
    """Add something to an account, with the account's own method → what that returns.

    Args:
        path: of the part that is added, for the error.
        add: the method of the account.
        what: its arguments.

    Raises:
        UsageError: the tree holds the same parts far too often; each would be saved as often.
    """
    try:
        return add(*what)
    except Repeated as found:
        raise UsageError(f"{path} {found}", hint="Save each part once") from None


def _container(tree: Any, path: str, alone: bool, below: Callable[..., Any]) -> Any:
    if isinstance(tree, PerRank):
        if alone:
            raise UsageError(f"{path} is a PerRank within a PerRank", hint="Take the inner one away")
        return PerRank(below(tree.value, path, alone=True))
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise UsageError(f"{path} has the key {shown(key)}: a checkpoint takes texts and integers")
        items = {key: below(value, f"{path}.{key}", alone=alone) for key, value in tree.items()}
        if isinstance(tree, Alike):
            return Alike(items, tree.hint)
        return Some(items) if isinstance(tree, Some) else items
    found = [below(value, f"{path}.{i}", alone=alone) for i, value in enumerate(tree)]
    return tuple(found) if isinstance(tree, tuple) else found


def _leaf(tree: Any, path: str, take: Callable[[str, Array], Array], account: Account) -> Any:
    if isinstance(tree, Parts):
        parts = [(at, take(f"{path}[{at}]", one)) for at, one in tree.parts]
        return Parts(tree.dtype, tree.shape, parts)
    _charged(path, account.mixed, 1)
    if tree is None or type(tree) in _PLAIN:
        return tree
    if not hasattr(tree, "shape") and not hasattr(tree, "__dlpack__"):
        raise UsageError(
            f"{path} is {shown(tree)}, which cannot be saved",
            hint="Pass numbers, texts, arrays, dicts and lists of them, or what has a state_dict",
        )
    form = TENSOR if torch_of(tree) else SCALAR if isinstance(tree, np.generic) else ARRAY
    array = view(tree, writable=False, what=path)
    _charged(path, account.large, id(tree), array.nbytes, array.nbytes)
    return Copied(form, take(path, array))


def nodes_of(tree: Any, path: str, rank: int, size: int, out: dict[str, Array]) -> Node:
    """The node of a copied tree, of one rank.

    Args:
        path: the tree's name.
        rank: this one.
        size: how many ranks write it.
        out: what this rank writes is added here, by name: flat arrays.
    """
    match tree:
        case Parts():
            written = [(at, f"{path}[{at}]", one) for at, one in tree.parts]
            return _array(ARRAY, tree.dtype, tree.shape, None, rank, written, out)
        case Copied():
            flat = tree.array.reshape(-1)
            first, last = flat.size * rank // size, flat.size * (rank + 1) // size
            written = [(first, path, flat[first:last])] if first < last else []
            return _array(tree.form, flat.dtype, tree.array.shape, checksum(flat), rank, written, out)
        case PerRank():
            alone = nodes_of(tree.value, f"{path}@{rank}", 0, 1, out)
            return ["ranks", [[rank, _moved(alone, rank)]]]
        case dict():
            kind = "some" if isinstance(tree, Some) else "dict"
            below = f"{path}." if path else ""
            items = [(key, one, f"{below}{key}") for key, one in tree.items()]
            nodes = [[key, nodes_of(one, name, rank, size, out)] for key, one, name in items]
            return [kind, nodes, tree.hint] if isinstance(tree, Alike) else [kind, nodes]
        case list() | tuple():
            found = [nodes_of(one, f"{path}.{i}", rank, size, out) for i, one in enumerate(tree)]
            return ["tuple" if isinstance(tree, tuple) else "list", found]
    return tree


def _array(
    form: str,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    whole: int | None,
    rank: int,
    written: Iterable[tuple[int, str, Array]],
    out: dict[str, Array],
) -> Node:
    segments = []
    for start, path, array in written:
        name = unique(path, out)
        out[name] = array
        segments.append([start, array.size, rank, name, checksum(array)])
    return ["array", form, dtype.name, list(shape), whole, segments]


def unique(path: str, taken: Container[str]) -> str:
    """The path, or one like it that is not taken: the keys 1 and "1" of a dict have the same path."""
    while path in taken:
        path += "'"
    return path


def _moved(node: Node, rank: int) -> Node:
    """The node of one rank alone, where another rank's number is its own."""
    if isinstance(node, list) and node[0] == "array":
        return [*node[:5], [[start, count, rank, *rest] for start, count, _, *rest in node[5]]]
    if isinstance(node, list) and node[0] in ("dict", "some", "ranks"):
        return [node[0], [[key, _moved(one, rank)] for key, one in node[1]]]
    if isinstance(node, list):
        return [node[0], [_moved(one, rank) for one in node[1]]]
    return node


def checksum(flat: Array) -> int:
    """The CRC-32 of an array's bytes."""
    return zlib.crc32(np.ascontiguousarray(flat).reshape(-1).view(np.uint8).data)


def merged(nodes: Sequence[Node], path: str = "", hint: str = PER_RANK) -> Node:
    """One node of all ranks'.

    Args:
        path: of the nodes.
        hint: what to do where ranks have other values.

    Raises:
        CheckpointError: ranks have other values where they must be alike.
    """
    first = nodes[0]
    kinds = {one[0] if isinstance(one, list) else None for one in nodes}
    if len(kinds) > 1 or not isinstance(first, list):
        if any(repr(one) != repr(first) for one in nodes):  # NaN is alike, and 1 is not True
            raise _differ(path, hint)
        return first
    kind = first[0]
    if kind == "array":
        if any(one[1:5] != first[1:5] for one in nodes):
            raise _differ(path, hint)
        return [*first[:5], sorted((s for one in nodes for s in one[5]), key=lambda s: s[0])]
    if kind == "ranks":
        return [kind, [pair for one in nodes for pair in one[1]]]
    if kind in ("list", "tuple"):
        if any(len(one[1]) != len(first[1]) for one in nodes):
            raise _differ(path, hint)
        rows = zip(*(one[1] for one in nodes), strict=True)
        return [kind, [merged(row, f"{path}.{i}", hint) for i, row in enumerate(rows)]]
    hint = first[2] if len(first) > 2 else hint
    columns: dict[Any, list[Node]] = {}
    for one in nodes:
        for key, node in one[1]:
            columns.setdefault(key, []).append(node)
    below = f"{path}." if path else ""
    for key, column in columns.items():
        if kind == "dict" and len(column) != len(nodes):
            raise _differ(f"{below}{key}", hint)
    return [kind, [[key, merged(column, f"{below}{key}", hint)] for key, column in columns.items()]]


def _differ(path: str, hint: str) -> CheckpointError:
    return CheckpointError(f"{path} is not the same on all ranks", hint=hint)


def opened(node: Node, rank: int, size: int, read: Callable[[list[Any], np.dtype[Any]], Array]) -> Any:
    """The tree of a merged node: with whole arrays, and `Stored` ones where each rank has a part.

    Args:
        rank: this one.
        size: of its group.
        read: gives the elements of a segment.
    """
    if not isinstance(node, list):
        return node
    kind = node[0]
    if kind == "array":
        _, form, name, shape, whole, segments = node
        dtype = dtype_named(name)
        stored = Stored(dtype, tuple(shape), [(s[0], s[1], partial(read, s, dtype)) for s in segments])
        if whole is None:
            return stored
        array = stored.array()
        if checksum(array) != whole:
            raise CheckpointError("an array has another checksum than was saved")
        return _formed(form, array)
    if kind == "ranks":
        mine = dict(map(tuple, node[1])).get(rank) if len(node[1]) == size else None
        return opened(mine, rank, size, read)
    if kind in ("list", "tuple"):
        found = [opened(one, rank, size, read) for one in node[1]]
        return tuple(found) if kind == "tuple" else found
    return {key: opened(one, rank, size, read) for key, one in node[1]}


def _formed(form: str, array: Array) -> Any:
    """An array as what it was; without torch, tensors are arrays."""
    torch: Any = sys.modules.get("torch")
    if form == TENSOR and torch is not None:
        return wrap(torch.empty(0), array)
    return array[()] if form == SCALAR else array


def segments_in(node: Node) -> Iterator[list[Any]]:
    """All segments of a merged node."""
    if isinstance(node, list):
        if node[0] == "array":
            yield from node[5]
        elif node[0] in ("list", "tuple"):
            for one in node[1]:
                yield from segments_in(one)
        else:
            for _, one in node[1]:
                yield from segments_in(one)
