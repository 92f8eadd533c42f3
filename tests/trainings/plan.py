"""What a random training is: its class, its arguments, and who dies, comes or is cancelled when. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib.util import find_spec

KINDS = ("sharded", "sync", "diloco")
WRAPPER = "wrapper"
"""torch's module in a wrapper: some of the trainings with gradients, where torch is installed."""


@dataclass(frozen=True)
class Plan:
    """A training, drawn from a seed.

    Attributes:
        kind: of the class.
        size: ranks of the first epoch.
        steps: that are trained.
        copies: sharded: `redundancy`.
        restores: sharded: `restore` is given; else the program loads after `StateLost`.
        every: sharded: steps between two checkpoints; diloco: between two exchanges.
        fragments, delay: of diloco.
        breaks: diloco: exchanges in which the values are not finite.
        cancels: how likely an await of a step is cancelled.
        deaths: process, and a number of its own steps, before which it dies.
        joins: seconds after which newcomers come, and how long each waits.
        dies_joined: the number of its own steps before which the first newcomer dies; 0: it lives.
        pause: seconds of each step's own work.
        codec: sync: of the gradients.
        late: seconds that each job off the loop takes; 0: jobs are done at once.
    """

    seed: int
    kind: str
    size: int
    steps: int
    copies: int
    restores: bool
    every: int
    fragments: int
    delay: int
    breaks: frozenset[int]
    cancels: float
    deaths: tuple[tuple[int, int], ...]
    joins: tuple[tuple[float, float], ...]
    dies_joined: int
    pause: float
    codec: str | None = None
    late: float = 0.0


def plan(seed: int) -> Plan:
    """Draw a training."""
    draw = random.Random(f"training/{seed}")
    kind = draw.choice(KINDS)
    if kind == "sync" and random.Random(f"wrapper/{seed}").random() < 0.4 and find_spec("torch") is not None:
        kind = WRAPPER
    size = draw.randint(2, 4)
    mortal = draw.sample(range(size), draw.randint(0, size - 1))
    every = draw.randint(2, 4)
    fragments = draw.choice((1, 1, 2)) if every % 2 == 0 else 1
    jobs = random.Random(f"jobs/{seed}")
    return Plan(
        seed,
        kind,
        size,
        steps=draw.randint(6, 14),
        copies=draw.choice((0, 0, 1)),
        restores=draw.random() < 0.8,
        every=every,
        fragments=fragments,
        delay=draw.randrange(every // fragments),
        breaks=frozenset(draw.sample(range(1, 6), draw.choice((0, 0, 1)))),
        cancels=draw.choice((0.0, 0.0, 0.1, 0.3)),
        deaths=tuple((who, draw.randint(1, 250)) for who in mortal),
        joins=tuple((draw.uniform(0, 0.1), 20.0) for _ in range(draw.choice((0, 1, 1, 2)))),
        dies_joined=draw.choice((0, 0, draw.randint(20, 200))),
        pause=draw.uniform(0.0, 0.004),
        codec=jobs.choice((None, "int8")) if kind == "sync" else None,
        late=jobs.choice((0.0, 0.002, 0.02)),
    )
