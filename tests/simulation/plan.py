"""What happens in one simulated run: who takes part, and what goes wrong when. Pure; all from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

CALM = frozenset(("crash", "crash at a step", "join", "join and crash"))
"""Faults after which everybody who lives has to go on, where a store decides."""


@dataclass(frozen=True)
class Fault:
    """One fault, or newcomer.

    Args:
        at: virtual seconds after the beginning.
        kind: what.
        who: numbers of processes; taken modulo how many there are then.
        others: of a partition: the other side.
        number: seconds, or a step's number, as the kind has it.
    """

    at: float
    kind: str
    who: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    number: float = 0.0


@dataclass(frozen=True)
class Plan:
    """One run.

    Args:
        seed: that it comes from.
        size: processes of the first epoch.
        hosted: process 0 hosts the store, and a majority decides.
        hosts: by process.
        latency: seconds of a frame, from the first to the second.
        lasts: virtual seconds that the program works for.
        pause: seconds that a rank thinks between two steps, at most.
        timeout: of every call, in seconds.
        min_size: of rebuilds.
        faults: in the order of their times.
        calls: whether members also change by calls at a step's boundary.
    """

    seed: int
    size: int
    hosted: bool
    hosts: tuple[int, ...]
    latency: tuple[float, float]
    lasts: float
    pause: float
    timeout: float
    min_size: int
    faults: tuple[Fault, ...]
    calls: bool

    @property
    def calm(self) -> bool:
        """Whether nothing happens but deaths that everybody hears of, and arrivals."""
        return all(fault.kind in CALM for fault in self.faults)

    @property
    def provable(self) -> bool:
        """Whether each death is proven to all: they are on one host."""
        return len(set(self.hosts)) == 1


def plan(seed: int) -> Plan:
    """The plan of a seed."""
    draw = random.Random(f"plan/{seed}")
    size = draw.choice((2, 3, 3, 3, 4, 4, 5, 6))
    hosted = draw.random() < 0.4
    together = draw.random() < 0.4
    hosts = tuple(0 if together else draw.randrange(size) for _ in range(size + 8))
    slowest = draw.choice((0.001, 0.001, 0.005, 0.03))
    lasts = draw.uniform(0.2, 1.5)
    faults: list[Fault] = []
    number = draw.choice((0, 1, 1, 2, 2, 3, 4, 6))
    calm = draw.random() < 0.4
    at = draw.uniform(0.0, lasts)
    for _ in range(number):
        faults.append(_fault(draw, at, size, calm))
        close = draw.random() < 0.6  # faults that meet are worth more than faults alone
        at = at + 10 ** draw.uniform(-4, -0.3) if close else draw.uniform(0.0, lasts)
    return Plan(
        *(seed, size, hosted, hosts, (slowest / 10, slowest), lasts),
        pause=draw.choice((0.02, 0.05, 0.15)),
        timeout=draw.choice((2.0, 3.0)),
        min_size=draw.choice((1, 1, 1, 2, 3)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        calls=draw.random() < 0.6,
    )


def _fault(draw: random.Random, at: float, size: int, calm: bool) -> Fault:
    kinds = ["crash"] * 4 + ["crash at a step"] * 4 + ["join"] * 3 + ["join and crash"] * 2
    if not calm:
        kinds += ["silent crash", "partition", "partition", "one-way partition", "slow network"]
        kinds += ["store outage", "cut from the store"]
    kind = draw.choice(kinds)
    some = tuple(draw.sample(range(size), draw.randint(1, max(1, size - 1))))
    rest = tuple(set(range(size)) - set(some))
    match kind:
        case "crash" | "silent crash":
            return Fault(at, kind, (draw.randrange(size + 2),))
        case "crash at a step":
            return Fault(at, kind, (draw.randrange(size),), number=draw.randint(1, 60))
        case "join":
            return Fault(at, kind, number=draw.choice((2.0, 10.0)))
        case "join and crash":
            return Fault(at, kind, number=draw.randint(1, 60))
        case "slow network":
            return Fault(at, kind, some, number=draw.uniform(0.1, 4.0))
        case "store outage":
            return Fault(at, kind, number=draw.choice((0.5, 3.0, 20.0)))
        case "cut from the store":
            return Fault(at, "partition", some, (-1,), number=draw.choice((0.5, 3.0, 20.0)))
        case _:
            others = (*rest, -1) if draw.random() < 0.5 else rest
            return Fault(at, kind, some, others, number=draw.choice((0.3, 1.0, 2.0, 5.0, 60.0)))
