"""The index of a checkpoint, checked before anything of it is used. Pure.

    {"format": 1, "crc": …, "step": 1200, "files": ["rank-00000.safetensors", …], "sizes": [bytes, …],
     "tree": node}

`crc` is the CRC-32 of the rest. A checksum finds damage, not intent: so each field is checked, too. Nodes are
described in `tree`.
"""

from __future__ import annotations

import json
import math
import zlib
from typing import Any

from aiodist.base.errors import CheckpointError
from aiodist.base.types import DTYPES
from aiodist.ddp.checkpoint.tree import ARRAY, MOST_DEPTH, SCALAR, TENSOR

FORMAT = 1
OTHER = "Load an older checkpoint: load(step); steps() lists them"
"""The hint of what is damaged."""
MOST_BYTES = 100_000_000
"""Bytes that an index may have, as the header of a file: that is a million arrays, or parts of them."""
_MOST = 1 << 63
_MOST_DIMENSIONS = 64  # NumPy's limit
_ITEMSIZES = {dtype.name: dtype.itemsize for dtype in DTYPES}


def file_of(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank:05d}.safetensors"


def sealed(index: dict[str, Any]) -> dict[str, Any]:
    """The index with its format and checksum."""
    whole = {"format": FORMAT, **index}
    return {**whole, "crc": _crc(whole)}


def _crc(index: dict[str, Any]) -> int:
    rest = {key: value for key, value in index.items() if key != "crc"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def checked(index: Any) -> dict[str, Any]:
    """An index in which everything is of its type, and fits the rest.

    Args:
        index: what JSON gave.

    Raises:
        CheckpointError: it is of another format, is damaged, or means nothing.
    """
    _need(isinstance(index, dict) and "format" in index, "it is no index")
    if index["format"] != FORMAT:
        raise CheckpointError(
            f"it has the format {str(index['format'])[:20]}, this version reads {FORMAT}",
            hint="Read it with its own version",
        )
    _need(index.keys() == {"format", "crc", "step", "files", "sizes", "tree"}, "its fields are others")
    files, sizes, tree = index["files"], index["sizes"], index["tree"]
    _need(isinstance(files, list) and len(files) > 0, "its list of files")
    _need(all(name == file_of(rank) for rank, name in enumerate(files)), "its names of files")
    _need(isinstance(sizes, list) and len(sizes) == len(files) and all(map(_whole, sizes)), "its sizes")
    _need(_whole(index["step"]), "its step")
    _need(isinstance(tree, list) and len(tree) == 2 and tree[0] == "dict", "its tree")
    _node(tree, sizes, MOST_DEPTH + 1)  # above what was saved is the dict of names
    _need(all(isinstance(pair[0], str) for pair in tree[1]), "its names")
    _need(index["crc"] == _crc(index), "it has another checksum")
    found: dict[str, Any] = index
    return found


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise CheckpointError(f"it is damaged: {what}", hint=OTHER)


def _whole(value: Any) -> bool:
    """Whether it is a whole number that is not negative."""
    return type(value) is int and 0 <= value < _MOST


def _node(node: Any, sizes: list[int], depth: int) -> None:
    if node is None or type(node) in (bool, int, float, str):
        return
    _need(isinstance(node, list) and len(node) > 1, "a node")
    kind = node[0]
    if kind == "array":
        _array(node, sizes)
        return
    _need(depth > 0, "its tree is too deep")
    _need(len(node) == 2 and isinstance(node[1], list), "a node")
    if kind in ("list", "tuple"):
        for one in node[1]:
            _node(one, sizes, depth - 1)
        return
    _need(kind in ("dict", "some", "ranks"), "the kind of a node")
    _need(all(isinstance(pair, list) and len(pair) == 2 for pair in node[1]), "the items of a dict")
    keys = [pair[0] for pair in node[1]]
    if kind == "ranks":
        _need(all(_whole(key) and key < len(sizes) for key in keys), "a rank")
    _need(all(type(key) in (str, int) for key in keys), "a key")
    _need(len(set(keys)) == len(keys), "a key that is there twice")
    for _, one in node[1]:
        _node(one, sizes, depth - 1)


def _array(node: list[Any], sizes: list[int]) -> None:
    _need(len(node) == 6, "an array")
    _, form, name, shape, crc, segments = node
    _need(form in (ARRAY, TENSOR, SCALAR), "the form of an array")
    _need(isinstance(name, str) and name in _ITEMSIZES, "a dtype")
    itemsize = _ITEMSIZES[name]
    _need(isinstance(shape, list) and len(shape) <= _MOST_DIMENSIONS and all(map(_whole, shape)), "a shape")
    _need(form != SCALAR or not shape, "a scalar with a shape")
    count = math.prod(shape)
    _need(count * itemsize < _MOST, "a shape")
    _need(crc is None or _whole(crc), "the checksum of an array")
    _need(crc is None or count * itemsize <= sum(sizes), "an array that is larger than the files")
    _need(isinstance(segments, list), "the segments of an array")
    for one in segments:
        _need(isinstance(one, list) and len(one) == 5, "a segment")
        start, length, rank, path, checksum = one
        _need(all(map(_whole, (start, length, rank, checksum))) and isinstance(path, str), "a segment")
        _need(rank < len(sizes), "the rank of a segment")
        _need(start + length <= count and length * itemsize <= sizes[rank], "the length of a segment")
