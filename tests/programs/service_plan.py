"""A program of calls, messages and streams between processes, drawn from a seed. Pure.

plan(7).users    what each task of each rank asks, one after the other
plan(7).faults   who is blocked, which lines break
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

ODD = ("own", "exit of a generator", "cancelled", "mute", "stop", "value", "of a test")
"""What handlers raise."""

WAYS = ("plain", "plain", "plain", "turns", "turns", "later", "wait_for", "timeout", "group", "limit")
"""How who asks gives up: not at all; after turns of the loop, or seconds, its task is cancelled; by
`wait_for`, `asyncio.timeout`, a TaskGroup that fails, or the call's own timeout=."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Something that one task asks of another process.

    Args:
        what: 'quick', 'echo', 'slow', 'limited', 'raises', 'raises later', 'back', 'message', 'stream' or
            'stream raises'; with an odd value there, back, or both: 'odd', 'odd result', 'odd message'; with
            dataclasses, one of which may not be made: 'picky', 'picky stream'; what nobody can decode:
            'unread message'.
        dst: rank that is asked.
        size: bytes that go there; of a stream, of its parts.
        seconds: that the handler takes.
        odd: what it raises.
        value: from which the odd value is drawn (`values`), or which dataclass is not made.
        count: parts of a stream.
        way: how who asks gives up.
        after: turns or seconds, as the way has it.
        leaves: of a stream: behind this part it is left; -1: never.
        pause: seconds before it.
    """

    what: str
    dst: int
    size: int
    seconds: float
    odd: str
    value: int
    count: int
    way: str
    after: float
    leaves: int
    pause: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens.

    Args:
        at: seconds after the beginning.
        kind: 'block': `rank` takes nothing; 'cut': the lines from `rank` to `other` break; 'refuse': the next
            attempt to connect fails.
        seconds: of a block.
    """

    at: float
    kind: str
    rank: int
    other: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What is under way at most, so small that it is reached. See `services` for the meaning of each."""

    calls: int
    window: int
    high: int
    parts: int
    messages: int
    mailbox: int
    large: int
    piece: int
    handler: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A program.

    Args:
        seed: it was drawn from this.
        size: ranks.
        limits: of the services.
        users: by rank, the tasks with what each asks.
        faults: in the order of time.
        takes: by rank, seconds that it takes for each message of its mailbox.
        most: bytes that a reader takes at once.
    """

    seed: int
    size: int
    limits: Limits
    users: tuple[tuple[tuple[Ask, ...], ...], ...]
    faults: tuple[Fault, ...]
    takes: tuple[float, ...]
    most: int


CHUNK = 25


def jobs(first: int, count: int) -> Iterator[list[int]]:
    """`count` seeds from `first` on, in chunks."""
    for start in range(first, first + count, CHUNK):
        yield list(range(start, min(start + CHUNK, first + count)))


def plan(seed: int) -> Plan:
    """The program of a seed."""
    rng = random.Random(f"{seed} services")
    size = rng.choice([2, 2, 2, 3, 4])
    limits = Limits(
        calls=rng.choice([2, 5, 20, 256]),
        window=rng.choice([20_000, 100_000, 128 << 20]),
        high=rng.choice([3_000, 20_000, 4 << 20]),
        parts=rng.choice([500, 5_000, 1 << 20]),
        messages=rng.choice([2, 10, 1024]),
        mailbox=rng.choice([10_000, 64 << 20]),
        large=rng.choice([3_000, 1 << 20]),
        piece=rng.choice([2_000, 64 << 10]),
        handler=rng.choice([1, 2, 256]),
    )
    mix = rng.choice([_CALLS, _MESSAGES, _STREAMS, _ALL, _ALL])
    values, picky = random.Random(f"{seed} values"), random.Random(f"{seed} picky")
    share = values.choice([0.0, 0.0, 0.05, 0.2])
    of_picky = picky.choice([0.0, 0.0, 0.1])
    users = tuple(
        tuple(
            tuple(
                _perhaps(picky, of_picky, _PICKY, _perhaps(values, share, _ODD, _ask(rng, size, mix)))
                for _ in range(rng.randint(1, 8))
            )
            for _ in range(rng.choice([1, 3, 12]) if rank else rng.choice([3, 12, 25]))
        )
        for rank in range(size)
    )
    faults = tuple(
        sorted((_fault(rng, size) for _ in range(rng.choice([0, 0, 1, 3]))), key=lambda one: one.at)
    )
    takes = tuple(rng.choice([0.0, 0.0, 0.01]) for _ in range(size))
    return Plan(seed, size, limits, users, faults, takes, rng.choice([1_000, 1 << 16]))


_CALLS = ("quick", "quick", "echo", "echo", "slow", "limited", "raises", "raises later", "back")
_MESSAGES = ("message", "message", "message", "message", "quick")
_STREAMS = ("stream", "stream", "stream", "stream raises", "quick")
_ODD = ("odd", "odd result", "odd message")
_PICKY = ("picky", "picky stream", "unread message")
_ALL = (*_CALLS, *_MESSAGES, *_STREAMS)


def _ask(rng: random.Random, size: int, mix: tuple[str, ...]) -> Ask:
    what, way = rng.choice(mix), rng.choice(WAYS)
    count = rng.choice([0, 1, 3, 8])
    if way == "turns":
        after: float = rng.randrange(12)
    else:
        after = rng.choice([0.0, 0.0005, 0.001, 0.01, 0.05, 0.3])
    return Ask(
        what=what,
        dst=rng.randrange(size),
        size=rng.choice([0, 10, 100, 1_000, 1_000, 4_000, 19_000]),
        seconds=rng.choice([0.0, 0.001, 0.02, 0.3, 2.0 if what in ("slow", "limited") else 0.1]),
        odd=rng.choice(ODD),
        value=0,
        count=count,
        way=way,
        after=after if way != "limit" else rng.choice([0.01, 0.3, 8.0]),
        leaves=rng.randrange(count + 1) if rng.random() < 0.2 else -1,
        pause=rng.choice([0.0, 0.0, 0.0, 0.0005, 0.001, 0.02]),
    )


def _perhaps(rng: random.Random, share: float, whats: tuple[str, ...], ask: Ask) -> Ask:
    if rng.random() >= share:
        return ask
    return replace(ask, what=rng.choice(whats), value=rng.getrandbits(32))


def _fault(rng: random.Random, size: int) -> Fault:
    return Fault(
        at=rng.choice([0.0, 0.001, 0.02, 0.5]) * rng.random(),
        kind=rng.choice(["block", "block", "cut", "refuse"]),
        rank=rng.randrange(size),
        other=rng.randrange(size),
        seconds=rng.choice([0.01, 0.5, 2.0]),
    )
