"""Programs whose ranks fork: `python -m tests.programs --of forks --programs 500`.

Each is a fork of some ranks, at a random place of a loop, in a random way. The children leave in a random
way, also through the loop that they inherited. The ranks go on with collectives, messages and calls, which
are right, and nobody is accused of anything. Ranks are real processes, which run `fork_rank`.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from aiodist.testing.outcome import RanksFailed, check
from aiodist.testing.ranks import launch
from tests.programs.conftest import ROOT
from tests.programs.run import Violation

LIMIT = 120.0
"""Seconds of an operation. A machine that is very busy needs a third of it to start an interpreter, for which
the others wait; so whatever takes all of it has hung."""

EACH = 10
"""Programs that share a job."""

IN_THE_LOOP = ("coroutine", "task", "callback", "timer", "reader", "grandchild", "terminal")
"""Ways to fork whose child has the loop's stack below it."""

APART = ("thread", "fork", "forkserver", "spawn", "subprocess", "preexec", "async subprocess")

EXITS = {
    "error": 1,
    "return": 0,
    "exit": 0,
    "exit 3": 3,
    "_exit": 7,
    "exec": 0,
    "kill": -signal.SIGKILL,
    "aclose": 0,
    "abort": 0,
    "stop": 1,
    "run": 0,
    "world": 0,
    "goes on": 0,
    "use": 1,
    "shutdown": 7,
    "outlives": -signal.SIGKILL,
}
"""How a child with the loop below it leaves, and its exit code."""

MEANWHILE = ("nothing", "collective", "receive", "call", "handler", "message")
"""What is under way when a rank forks."""

GROUP = ("small", "large", "ring", "calls", "stream", "group", "objects")

OWN = ("thread", "timer", "wait", "watch", "name")

THEN = (*GROUP, *OWN)
"""What the ranks do next: by the group, and by themselves. `watch`: something comes by a pipe of the
program's. `name`: the loop looks a name up; uvloop's has that done by threads of libuv's."""


@dataclass(frozen=True)
class Plan:
    """A program.

    Args:
        forks: the ranks that fork.
        way: how.
        leave: how a child leaves, if it has the loop below it.
        meanwhile: what is under way then.
        then: what the ranks do afterwards.
    """

    forks: Sequence[int]
    way: str
    leave: str
    meanwhile: str
    then: Sequence[str]


def plan(seed: int, size: int) -> Plan:
    """The program of a seed, for a world of a size."""
    rng = random.Random(f"forks {seed}")
    way = rng.choice([*IN_THE_LOOP, *IN_THE_LOOP, *APART])
    leaves = [leave for leave in EXITS if leave != "outlives" or way != "grandchild"]  # whose pid nobody has
    return Plan(
        tuple(sorted(rng.sample(range(size), rng.randint(1, size)))),
        way,
        rng.choice(leaves),
        rng.choice(MEANWHILE),
        tuple(rng.choices(THEN, k=rng.randint(2, 5))),
    )


def jobs(first: int, count: int) -> Iterator[list[int]]:
    """`count` seeds from `first` on, those that share a job together."""
    for start in range(first, first + count, EACH):
        yield list(range(start, min(start + EACH, first + count)))


@dataclass(frozen=True)
class World:
    """The ranks of a job.

    Args:
        size: how many.
        loop: theirs.
        transport: between them.
        host: of the store, by a name or an address.
    """

    size: int
    loop: str
    transport: str = "auto"
    host: str = "127.0.0.1"


def world(first: int) -> World:
    """That of a job, by its first seed."""
    rng = random.Random(f"job {first}")
    return World(
        rng.choice([2, 2, 3]),
        rng.choice(["uvloop", "asyncio"]),
        rng.choice(["auto", "auto", "tcp"]),
        rng.choice(["127.0.0.1", "localhost"]),
    )


def plan_of(seed: int) -> Plan:
    """The program of a seed that runs alone."""
    return plan(seed, world(seed).size)


def job(seeds: Sequence[int], mutation: str = "") -> tuple[int, list[Violation]]:
    """Run programs that share a job: how many, and what went wrong."""
    ranks = world(seeds[0])
    said = run_plans([plan(seed, ranks.size) for seed in seeds], ranks, mutation)
    return len(seeds), [Violation(seeds[0], said.partition("\n")[0], said)] if said else []


def run_plans(plans: Sequence[Plan], ranks: World, mutation: str = "") -> str:
    """Run programs on ranks of their own → '' where all went well, else what was wrong.

    Args:
        mutation: in the ranks, by its name in `fork_mutations`.
    """
    stalls = {"AIODIST_STALL_AFTER": str(LIMIT)}  # what is told of a slow machine is no accusation
    env = {"AIODIST_TRANSPORT": ranks.transport, "PYTHONPATH": ROOT, **stalls}
    module = ["tests.programs.fork_mutations", mutation] if mutation else ["tests.programs.fork_rank"]
    arguments = ["-m", *module, ranks.loop, ranks.host, *(json.dumps(asdict(one)) for one in plans)]
    try:
        outcomes = asyncio.run(launch(arguments, ranks.size, timeout=LIMIT * 4, env=env))
        check(outcomes, {})
        for outcome in outcomes:
            if outcome.output.count("\nwell\n") != 1:
                raise RanksFailed(f"rank {outcome.rank} did not end well", outcome.output)
            if "Exception ignored" in outcome.output:  # what forking runs cannot raise
                raise RanksFailed(f"rank {outcome.rank} has swallowed an exception", outcome.output)
    except RanksFailed as error:
        return f"{ranks}: {error}"
    return ""
