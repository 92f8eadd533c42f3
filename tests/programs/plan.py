"""A program for the ranks of one group, drawn from a seed: what is issued, and how the group ends. Pure.

    plan(7).items    what all ranks do, one after the other
    plan(7).ending   what breaks the group, or None

Every rank finds the same plan. Values come from `aiodist.testing.programs`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.types import Kind
from aiodist.testing.programs import COLLECTIVES, Step, program

COUNTER_BITS = 7
"""Bits of an operation's number in the word that publishes it, while programs run: it repeats after 128."""

PERIOD = 1 << COUNTER_BITS

LAYOUTS = ("aa", "aa", "aaa", "aaa", "aaaa", "ab", "aabb", "aabb", "abab", "aaabbb")
"""Which host each rank is on."""

LIMITS = (
    Thresholds(),
    Thresholds(hierarchy=1, direct=64, inline=512, block=4096, staging=4096, depth=2),
    Thresholds(hierarchy=1, direct=256, inline=1 << 20),
    Thresholds(hierarchy=1, direct=0, inline=64, block=4096, staging=1 << 16),
)
"""Thresholds that send small tensors along every path."""


@dataclass(frozen=True, slots=True)
class Each:
    """Steps, one after the other."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Together:
    """Steps that are all in flight at once."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Numbers that another engine of the group carries out."""

    count: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A `coalesce` block.

    Args:
        steps: issued in it.
        turns: of the loop that pass in it.
        birth: what is born in the block and issues `born`: a 'task' when the block is left, a task 'within'
            it, a 'timer', or the 'callback' of a Work.
        born: one step, or several of a 'task'; () where nothing is born.
        objects: whether operations on objects are issued in the block, too.
        split: whether the group is split in the block.
    """

    steps: tuple[Step, ...]
    turns: int
    birth: str
    born: tuple[Step, ...]
    objects: bool
    split: bool


Item = Each | Together | Skipped | Batch


@dataclass(frozen=True, slots=True)
class Ending:
    """How the group breaks under a collective that not all ranks have issued.

    Args:
        cause: 'abort', 'timeout', 'close' or 'mismatch', first seen by rank `first`.
        step: the collective.
        first: the rank whose Work fails, and that writes to its tensors at once.
        late: ranks whose loop was busy until then: they issue the collective afterwards.
        again: whether `first` makes new tensors in its shared memory, too.
    """

    cause: str
    step: Step
    first: int
    late: tuple[int, ...]
    again: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A program.

    Args:
        seed: it was drawn from this.
        hosts: a letter for each rank.
        limits: thresholds of the job.
        items: what is done.
        ending: what breaks the group.
    """

    seed: int
    hosts: str
    limits: Thresholds
    items: tuple[Item, ...]
    ending: Ending | None


def world(seed: int) -> tuple[str, Thresholds]:
    """The job that a seed's program runs in."""
    return LAYOUTS[seed % len(LAYOUTS)], LIMITS[seed // len(LAYOUTS) % len(LIMITS)]


WORLDS = len(LAYOUTS) * len(LIMITS)
"""Seeds that differ by a multiple of it share a job."""

CHUNK = 25
"""Programs of one job at most."""


def jobs(first: int, count: int) -> Iterator[list[int]]:
    """`count` seeds from `first` on, those that share a job together; all kinds of jobs come round."""
    for start in range(first, first + count, WORLDS * CHUNK):
        stop = min(start + WORLDS * CHUNK, first + count)
        for number in range(WORLDS):
            seeds = list(range(start + number, stop, WORLDS))
            if seeds:
                yield seeds


def plan(seed: int) -> Plan:
    """The program of a seed."""
    hosts, limits = world(seed)
    size, rng = len(hosts), random.Random(f"{seed} plan")
    items = tuple(item for _ in range(rng.randint(2, 5)) for item in _items(rng, size))
    ending = _ending(rng, size) if rng.random() < 0.6 else None
    return Plan(seed, hosts, limits, items, ending)


def _steps(
    rng: random.Random, size: int, count: int, kinds: tuple[Kind, ...] = COLLECTIVES
) -> tuple[Step, ...]:
    return tuple(program(rng.randrange(1 << 32), size, count, kinds, rng.choice([20, 300, 3000, 9000])))


_WITHOUT_MESSAGES = tuple(kind for kind in COLLECTIVES if kind is not Kind.send)


def _items(rng: random.Random, size: int) -> list[Item]:
    drawn = rng.random()
    if drawn < 0.35:
        return [Each(_steps(rng, size, rng.randint(1, 5)))]
    if drawn < 0.55:
        return [Together(_steps(rng, size, rng.randint(2, 12)))]
    if drawn < 0.75:  # the same operation again after about one round of the counter
        twice = Each(_steps(rng, size, 1, _WITHOUT_MESSAGES))
        return [twice, Skipped(rng.choice([PERIOD - 1, PERIOD - 1, rng.randint(1, 2 * PERIOD)])), twice]
    return [_batch(rng, size)]


def _batch(rng: random.Random, size: int) -> Batch:
    birth = rng.choice(["", "task", "within", "timer", "callback"])
    born = _steps(rng, size, rng.randint(1, 3) if birth == "task" else 1, _WITHOUT_MESSAGES)
    return Batch(
        _steps(rng, size, rng.randint(1, 4), _WITHOUT_MESSAGES),
        rng.randrange(3),
        birth,
        born if birth else (),
        rng.random() < 0.3,
        rng.random() < 0.15,
    )


_EXPOSED = (
    *(Kind.all_reduce, Kind.all_reduce, Kind.broadcast, Kind.all_gather),
    *(Kind.reduce_scatter, Kind.reduce, Kind.gather, Kind.scatter, Kind.all_to_all),
)


def _ending(rng: random.Random, size: int) -> Ending:
    ranks = list(range(size))
    rng.shuffle(ranks)
    late = ranks[1 : rng.randint(2, size)]
    cause = rng.choice(["abort", "abort", "timeout", "close", "mismatch"])
    while True:
        (step,) = _steps(rng, size, 1, _EXPOSED)
        if step.shape and 0 not in step.shape:
            break
    step = replace(  # mostly as the first one's tensors are read where they lie
        step,
        layout="C" if rng.random() < 0.8 else step.layout,
        root=ranks[0] if rng.random() < 0.7 else step.root,
        moved=rng.random() < 0.9,
    )
    return Ending(cause, step, ranks[0], tuple(late), rng.random() < 0.5)
