"""Odd values for whatever is sent: shared, nested and cyclic ones, drawn from a seed. Pure but for one count.

value = odd(Random(7))
match verdict(value):       what must become of it, wherever it is passed
    Verdict.refused         UsageError, and nothing was sent
    Verdict.sent            `arrived(value)` arrives
    Verdict.either          one of the two

with visits() as count:     how often fields of `Pair`s are read: `Excess` where that has no end
    ...
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any

MOST_VISITS = 60_000
"""Fields that may be read of one value: in proportion to what is written before it is refused."""

DEEP = 90
"""Containers in each other that travel in any case."""

MANY = 2000
"""Parts that travel in any case, each counted as often as it is held."""


class Verdict(enum.Enum):
    """What must become of a value that is sent."""

    sent = enum.auto()
    refused = enum.auto()
    either = enum.auto()


class Excess(BaseException):
    """The finding that one value is looked at without a bound. Nothing catches it."""


@dataclass
class Count:
    """How often fields were read."""

    visits: int = 0
    most: float = float("inf")


_count = Count()


@dataclass(eq=False)
class Pair:
    """Two values; counts how often they are read."""

    left: Any = None
    right: Any = None

    def __getattribute__(self, name: str) -> Any:
        if name in ("left", "right"):
            _count.visits += 1
            if _count.visits > _count.most:
                raise Excess(f"fields were read {_count.visits} times")
        return object.__getattribute__(self, name)


@contextmanager
def visits(most: int = MOST_VISITS) -> Iterator[Count]:
    """Count reads of fields from 0, and raise `Excess` at more than these."""
    _count.visits, _count.most = 0, most
    try:
        yield _count
    finally:
        _count.most = float("inf")


LEAVES: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 70, 1.5, -0.0, 2 - 1j, "", "é\ud800", "x" * 5000, b"", b"\xc7\xd8", (), [], {},
    set(), frozenset({(1, (2, "a"))}), {3, None}, {(1, 2): 3}, OrderedDict(b=1), date(2024, 2, 29),
    timedelta(days=-1),
)  # fmt: skip
SHORT = tuple(one for one in LEAVES if not (isinstance(one, str) and len(one) > 100))
"""So that a value of few parts is of few bytes."""

UNSENDABLE: tuple[Any, ...] = (object(), bytearray(b"a"), range(3), ...)


def odd(random: Random, leaves: Sequence[Any] = LEAVES) -> Any:
    """Draw a value: nested too deep, doubled at every level, or any graph, also with cycles."""
    match random.randrange(8):
        case 0:
            return random.choice(UNSENDABLE if random.randrange(2) else leaves)
        case 1:
            value = random.choice(leaves)
            for _ in range(random.choice((3, 80, 120, 400))):
                value = _around(random, [value])
            return value
        case 2 | 3 | 4:
            value = random.choice(leaves[:10])
            for _ in range(random.choice((3, 8, 16, 40, 80))):
                value = _around(random, [value, value])
            return value
        case _:
            return _graph(random, leaves)


def _around(random: Random, inside: list[Any]) -> Any:
    """A container of one kind or the other."""
    match random.randrange(5):
        case 0:
            return list(inside)
        case 1:
            return tuple(inside)
        case 2:
            return dict(enumerate(inside))
        case 3:
            return OrderedDict(enumerate(inside))
        case _:
            return Pair(*inside[:2])


def _graph(random: Random, leaves: Sequence[Any]) -> Any:
    """A container out of some that hold each other, or themselves, in any way."""
    nodes: list[Any] = [random.choice((list, dict, OrderedDict, Pair))() for _ in range(random.randint(1, 8))]
    may_turn_back = random.randrange(2)
    for place, node in enumerate(nodes):
        first = 0 if may_turn_back else place + 1
        for slot in range(random.randint(0, 4)):
            others = nodes[first:]
            one = random.choice(others if others and random.randrange(3) else leaves)
            if random.randrange(4) == 0:
                one = (one, slot)
            if isinstance(node, list):
                node.append(one)
            elif isinstance(node, dict):
                node[slot] = one
            else:
                setattr(node, random.choice(("left", "right")), one)
    return nodes[0]


def verdict(value: Any) -> Verdict:
    """What must become of a value."""
    known: dict[int, tuple[int, int, bool]] = {}
    around: set[int] = set()

    def looked(one: Any) -> tuple[int, int, bool]:
        """Parts, each as often as it is held; levels; whether all of it may travel."""
        if id(one) in around:
            return 1, 0, False
        if id(one) in known:
            return known[id(one)]
        around.add(id(one))
        parts = [looked(part) for part in _inside(one)]
        around.discard(id(one))
        found = (
            1 + sum(count for count, _, _ in parts),
            1 + max((levels for _, levels, _ in parts), default=0),
            all(fine for _, _, fine in parts) and not any(one is bad for bad in UNSENDABLE),
        )
        known[id(one)] = found
        return found

    count, levels, fine = looked(value)
    if not fine or levels > DEEP + 20:
        return Verdict.refused
    return Verdict.sent if count <= MANY and levels <= DEEP else Verdict.either


def _inside(one: Any) -> list[Any]:
    if isinstance(one, Pair):
        return [object.__getattribute__(one, "left"), object.__getattribute__(one, "right")]
    if isinstance(one, dict):
        return [*one, *one.values()]
    return list(one) if isinstance(one, list | tuple | set | frozenset) else []


def arrived(value: Any) -> Any:
    """What arrives of a value that travels: fields in place of their object."""
    if isinstance(value, Pair):
        left, right = _inside(value)
        return {"left": arrived(left), "right": arrived(right)}
    if isinstance(value, dict):
        return type(value)((key, arrived(one)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return type(value)(map(arrived, value))
    return value


def form(value: Any) -> Any:
    """A value and its types, to compare: 1 is not True, and -0.0 is not 0.0."""
    if isinstance(value, dict):
        return type(value), [(form(key), form(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [form(one) for one in value]
    if isinstance(value, set | frozenset):
        return type(value), value
    return type(value), repr(value)
