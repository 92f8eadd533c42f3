"""Dataclasses travel as their fields, and are built where the receiver's annotation says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from aiodist.base.errors import UsageError
from aiodist.group.services.records import Misfit, builder, fields, parameters, returned
from aiodist.net.wire import objects


@dataclass
class Point:
    x: int
    y: int = 2


@dataclass
class Path:
    name: str
    points: list[Point]
    ends: tuple[Point, ...] = ()
    by_name: dict[str, Point] = field(default_factory=dict)
    inner: Path | None = None


WHOLE = Path("a", [Point(1)], (Point(3, 4),), {"b": Point(5)}, Path("c", []))


def test_there_and_back() -> None:
    flat = objects.decode(objects.encode([WHOLE], apart=fields))
    assert flat[0]["points"] == [{"x": 1, "y": 2}]
    make = builder(list[Path])
    assert make is not None
    assert make(flat) == [WHOLE]


def test_fields_are_of_objects_of_dataclasses_only() -> None:
    assert fields(Point(1)) == {"x": 1, "y": 2}
    assert fields(Point) is None
    assert fields({"x": 1}) is None
    unset = Point(1)
    del unset.x
    with pytest.raises(UsageError, match=r"a Point cannot be sent: .*'x'"):
        fields(unset)


def test_what_a_function_says() -> None:
    async def find(key: str, near: Point | None, path: Path) -> Path:
        raise NotImplementedError

    async def walk(path: Path) -> AsyncIterator[Point]:
        yield path.points[0]

    (second, near), (third, _) = parameters(find)
    assert [list(range(9))[places] for places in (second, third)] == [[1], [2]]
    assert near(None) is None
    assert near({"x": 8}) == Point(8)
    assert returned(find, stream=False) is not None
    part = returned(walk, stream=True)
    assert part is not None
    assert part({"x": 3, "y": 4}) == Point(3, 4)
    assert returned(print, stream=False) is None
    assert parameters(max) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], "came as list"),
        ({"x": 1, "z": 2}, "has no field 'z'"),
        ({"y": 1}, "missing 1 required"),
    ],
)
def test_misfits(value: object, words: str) -> None:
    make = builder(Point)
    assert make is not None
    with pytest.raises(Misfit, match=words):
        make(value)


@pytest.mark.parametrize("hint", [list[Point], tuple[Point, ...], dict[str, Point]])
def test_misfits_of_containers(hint: object) -> None:
    make = builder(hint)
    assert make is not None
    with pytest.raises(Misfit, match="came as int"):
        make(3)


@pytest.mark.parametrize("hint", [int, list[int], dict, None, "Unknown", tuple[int, str], int | str])
def test_what_needs_no_building(hint: object) -> None:
    assert builder(hint) is None


def test_a_dataclass_beside_leaves_and_in_a_place_of_a_tuple() -> None:
    make = builder(Point | int | None)
    assert make is not None
    assert [make(one) for one in ({"x": 1}, 3, None)] == [Point(1), 3, None]
    make = builder(tuple[Point, int])
    assert make is not None
    assert make(({"x": 1}, 3)) == (Point(1), 3)
    with pytest.raises(Misfit, match="a tuple of 2"):
        make(({"x": 1},))


@pytest.mark.parametrize("hint", [Point | Path, Point | dict[str, int] | None, list[Point | Any]])
def test_a_union_that_nothing_tells_apart_is_refused(hint: object) -> None:
    with pytest.raises(UsageError, match="does not say which of"):
        builder(hint)
