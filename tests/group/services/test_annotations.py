"""What an annotation makes of what travels: of each argument that it is about, and of no other."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from tests.group.services.narrow import Narrow

if TYPE_CHECKING:
    from somewhere import Log  # type: ignore[import-not-found]

T = TypeVar("T")
S = TypeVar("S")


@dataclass
class Query:
    text: str


@dataclass
class Box(Generic[T, S]):
    item: T
    others: list[S] | None = None
    number: int = 0


@dataclass
class Base:
    query: Query
    log: Log | None = None
    other: Query | None = None


@dataclass
class Derived(Base):
    other: Log | None = None
    last: Query | None = None


def shape(value: Any) -> Any:
    """What a value is, as far as the annotations decide it."""
    return value if isinstance(value, int | str | None) else repr(value)


async def each(*queries: Query) -> list[Any]:
    return [shape(one) for one in queries]


async def behind(first: Any, *queries: Query, last: Query | None = None) -> list[Any]:
    return [shape(one) for one in (first, *queries)]


def only_named(first: Any, *rest: Any, query: Query | None = None, **more: Query) -> list[Any]:
    return [shape(one) for one in (first, *rest)]


def by_place(first: Any, /, query: Query, third: int = 3, *, fourth: Query | None = None) -> list[Any]:
    return [shape(one) for one in (first, query, third)]


async def checked(query: Query, log: Log | None = None, other: Query | None = None) -> list[Any]:
    return [shape(query), shape(log), shape(other)]


async def boxed(box: Box[int, Query]) -> list[Any]:
    return [shape(box)]


async def open_box(box: Box) -> list[Any]:  # type: ignore[type-arg]
    return [shape(box)]


async def base(one: Base) -> list[Any]:
    return [shape(one)]


async def derived(one: Derived) -> list[Any]:
    return [shape(one)]


class Service:
    async def __call__(self, first: Any, query: Query) -> list[Any]:
        return [shape(first), shape(query)]

    def method(self, query: Query) -> list[Any]:
        return [shape(query)]


class Parts:
    async def __call__(self, *queries: Query) -> AsyncIterator[Any]:
        for query in queries:
            yield shape(query)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any) -> Any:
        return await function(*args)

    return wrapper


A, B, C = Query("a"), Query("b"), Query("c")
D = {"text": "d"}

CALLS: list[tuple[str, Any, tuple[Any, ...], list[Any]]] = [
    ("each of none", each, (), []),
    ("each", each, (A, B, C), [A, B, C]),
    ("behind", behind, (A, B, C), [D | {"text": "a"}, B, C]),
    ("only named", only_named, (1, 2, 3, 4), [1, 2, 3, 4]),
    ("only named, as they come", only_named, (D, D, D), [D, D, D]),
    ("by place", by_place, (A, B), [D | {"text": "a"}, B, 3]),
    ("checked", checked, (A, None, B), [A, None, B]),
    ("boxed", boxed, (Box(1, [A, B]),), [Box(1, [A, B])]),
    ("open box", open_box, (Box(1, [A]),), [Box(1, [{"text": "a"}])]),
    ("base", base, (Base(A, None, B),), [Base(A, None, B)]),
    ("derived", derived, (Derived(A, None, None, B),), [Derived(A, None, None, B)]),
    ("derived, as it comes", derived, (Derived(A, None, B, C),), [Derived(A, None, {"text": "b"}, C)]),
    ("an object", Service(), (1, A), [1, A]),
    ("a method", Service().method, (A,), [A]),
    ("a part of a function", functools.partial(by_place, 7), (A, 5), [7, A, 5]),
    ("a part with a name", functools.partial(by_place, query=B), (A,), [D | {"text": "a"}, B, 3]),
    ("a part of a part", functools.partial(functools.partial(behind, 7), A), (B, C), [7, A, B, C]),
    ("a part of an object", functools.partial(Service(), 7), (A,), [7, A]),
    ("a wrapper", wrapped(behind), (A, B), [D | {"text": "a"}, B]),
]
STREAMS: list[tuple[str, Any, tuple[Any, ...], list[Any]]] = [
    ("parts of an object", Parts(), (A, B), [A, B]),
    ("parts of a part", functools.partial(Parts(), A), (B, C), [A, B, C]),
    ("parts of a method", functools.partial(Parts().__call__, A), (B,), [A, B]),
]


def run(main: Callable[[ProcessGroup], Any]) -> None:
    run_virtual(run_cluster(2, main, endpoint=Narrow().endpoint, timeout=20.0))


def test_what_handlers_get() -> None:
    async def main(pg: ProcessGroup) -> None:
        for name, handler, _args, _expected in (*CALLS, *STREAMS):
            pg.handler(handler, name=name)
        await pg.barrier()
        if pg.rank == 0:
            for name, _handler, args, expected in CALLS:
                got = await pg.call(1, name, *args)
                assert got == [shape(one) for one in expected], name
            for name, _handler, args, expected in STREAMS:
                parts = [part async for part in pg.stream(1, name, *args)]
                assert parts == [shape(one) for one in expected], name
        await pg.barrier()

    run(main)


def test_each_argument_behind_the_star_is_looked_at() -> None:
    async def main(pg: ProcessGroup) -> None:
        pg.handler(behind)
        await pg.barrier()
        if pg.rank == 0:
            with pytest.raises(dist.CallNotRun, match="argument 4 of behind: it is to be a Query"):
                await pg.call(1, behind, 1, A, B, 4, C)
        await pg.barrier()

    run(main)


def test_what_callers_get() -> None:
    async def found(number: int, log: Log | None = None) -> Query:
        return Query(str(number))

    async def box(number: int, log: Log | None = None) -> Box[Query, int]:
        return Box(Query(str(number)))

    async def boxes(count: int, log: Log | None = None) -> AsyncIterator[Box[int, Query]]:
        for number in range(count):
            yield Box(number, [Query(str(number))])

    async def main(pg: ProcessGroup) -> None:
        for handler in (found, box, boxes):
            pg.handler(handler)
        await pg.barrier()
        if pg.rank == 0:
            assert await pg.call(1, found, 7) == Query("7")
            assert await pg.call(1, box, 8) == Box(Query("8"))
            assert await pg.call(1, wrapped(found), 9) == Query("9")
            parts = [part async for part in pg.stream(1, boxes, 3)]
            assert parts == [Box(number, [Query(str(number))]) for number in range(3)]
        await pg.barrier()

    run(main)
