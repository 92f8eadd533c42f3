"""The index of a checkpoint: whatever is not one is refused, by CheckpointError and nothing else."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import CheckpointError
from aiodist.ddp.checkpoint.folder import INDEX, finish, index_of
from aiodist.ddp.checkpoint.index import checked, file_of, sealed
from aiodist.ddp.checkpoint.tree import MOST_DEPTH, PerRank, merged, nodes_of, snapshot


def an_index() -> dict[str, Any]:
    nodes = []
    for rank in range(2):
        things = {"w": np.arange(10, dtype=np.float32), "n": [3, 2.5, "x"], "own": PerRank({1: rank})}
        tree = snapshot(things, "", lambda _, array: array)
        nodes.append(nodes_of(tree, "", rank, 2, {}))
    plain = {"step": 7, "files": [file_of(0), file_of(1)], "sizes": [500, 600], "tree": merged(nodes)}
    found: dict[str, Any] = json.loads(json.dumps(sealed(plain)))
    return found


def array_in(index: dict[str, Any]) -> list[Any]:
    found: list[Any] = index["tree"][1][0][1]
    return found


def resealed(index: dict[str, Any]) -> dict[str, Any]:
    """As an attacker does it, who knows how the checksum is made."""
    rest = {key: value for key, value in index.items() if key != "crc"}
    return {**rest, "crc": zlib.crc32(json.dumps(rest, sort_keys=True).encode())}


def test_an_index_is_taken_as_it_was_written(tmp_path: Path) -> None:
    index = an_index()
    assert checked(copy.deepcopy(index)) == index
    finish(tmp_path, {key: index[key] for key in ("step", "files", "sizes", "tree")})
    assert index_of(tmp_path) == index


def test_a_checksum_guards_what_nothing_else_does() -> None:
    index = an_index()
    index["tree"][1][1][1][1][0] = 4  # the number 3 was saved
    with pytest.raises(CheckpointError, match="another checksum"):
        checked(index)
    assert checked(resealed(index)) == resealed(index)


Change = Callable[[dict[str, Any]], None]


def place(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(index: dict[str, Any]) -> None:
        below: Any = index
        for step in path[:-1]:
            below = below[step]
        below[path[-1]] = value

    return change


def of_array(at: int, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: array_in(index).__setitem__(at, value)


def of_segment(at: int, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: array_in(index)[5][0].__setitem__(at, value)


NONE: list[Any] = [None, "5", [], {}]
NODES: list[Any] = [[], ["list"], ["weird", []], ["list", 3], {}, [[], []]]
HOSTILE: list[Change] = [
    *(place(key, value=value) for key in ("step", "files", "sizes", "tree") for value in NONE),
    *(place("step", value=value) for value in (-1, 2**63, 1.0, True)),
    *(place("files", 0, value=name) for name in ("../../other", "/etc/passwd", 5, "a\0b", file_of(1))),
    place("files", value=[file_of(0)]),
    *(place("sizes", 0, value=value) for value in (-1, 39.0, None, 4)),
    place("tree", 0, value="list"),
    place("tree", 1, 0, 0, value=5),
    place("tree", 1, 1, 0, value="w"),
    *(place("tree", 1, 1, 1, value=value) for value in NODES),
    *(place("tree", 1, 1, 1, value=["dict", items]) for items in ([1], [[1]], [[None, 1]], [[1, 2], [1, 3]])),
    *(place("tree", 1, 2, 1, value=["ranks", items]) for items in ([[2, 1]], [["0", 1]], [[0, 1], [0, 2]])),
    *(of_array(1, value) for value in ("other", None)),
    of_array(1, "scalar"),
    *(
        of_array(2, value)
        for value in ("object", "blah", "i2,i2", "float128", 5, ["float32"], "<f4", "float64x")
    ),
    *(
        of_array(3, value)
        for value in ([-10], [-2, -5], [1 << 40], [1 << 62, 1 << 62], [10.0], "ab", [1] * 65)
    ),
    *(of_array(4, value) for value in (-1, "x", 1.5)),
    *(of_array(5, value) for value in (None, [1], [[0, 10, 0]])),
    *(of_segment(0, value) for value in (-3, "0", 6)),
    *(of_segment(1, value) for value in (11, -1, None)),
    *(of_segment(2, value) for value in (2, -1, "x")),
    *(of_segment(3, value) for value in (["w"], None, 3)),
    *(of_segment(4, value) for value in (None, -1)),
]


@pytest.mark.parametrize("change", HOSTILE)
def test_an_index_that_means_nothing_is_refused_though_its_checksum_holds(
    change: Callable[[dict[str, Any]], None],
) -> None:
    index = an_index()
    change(index)
    with pytest.raises(CheckpointError, match="it is damaged"):
        checked(resealed(index))


@pytest.mark.parametrize("value", [None, [], 5, "text", {}, {"format": 1}, {"format": 1, "crc": 0}])
def test_what_is_no_index(value: Any) -> None:
    with pytest.raises(CheckpointError, match="it is damaged"):
        checked(value)


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = ["list", [found]]
    return found


def test_depth_has_the_limit_that_saving_has(tmp_path: Path) -> None:
    index = an_index()
    place("tree", 1, 1, 1, value=nested(MOST_DEPTH))(index)
    checked(resealed(index))
    place("tree", 1, 1, 1, value=nested(MOST_DEPTH + 1))(index)
    with pytest.raises(CheckpointError, match="too deep"):
        checked(resealed(index))
    for text in ("[" * 100_000 + "]" * 100_000, "\xff", '{"format": 1', "9" * 5000):
        (tmp_path / INDEX).write_bytes(text.encode("latin-1"))
        with pytest.raises(CheckpointError, match=r"index\.json cannot be read"):
            index_of(tmp_path)


@given(st.data())
def test_a_changed_byte_of_an_index_is_found(tmp_path_factory: Any, data: Any) -> None:
    folder = tmp_path_factory.mktemp("index")
    index = an_index()
    text = bytearray(json.dumps(index).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= 1 << data.draw(st.integers(0, 7))
    (folder / INDEX).write_bytes(text)
    try:
        assert index_of(folder) == index
    except CheckpointError:
        pass
