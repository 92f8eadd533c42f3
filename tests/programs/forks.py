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

LIMIT = 30.0
"""Seconds of an operation. Nothing takes a tenth of it, so whatever does has hung."""

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

THEN = ("small", "large", "ring", "calls", "stream", "thread", "timer", "group", "objects", "wait")
"""What the ranks do next."""


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


def world(first: int) -> tuple[int, str, str]:
    """The size, the loops and the transport of a job, by its first seed."""
    rng = random.Random(f"job {first}")
    return rng.choice([2, 2, 3]), rng.choice(["uvloop", "asyncio"]), rng.choice(["auto", "auto", "tcp"])


def plan_of(seed: int) -> Plan:
    """The program of a seed that runs alone."""
    return plan(seed, world(seed)[0])


def job(seeds: Sequence[int]) -> tuple[int, list[Violation]]:
    """Run programs that share a job: how many, and what went wrong."""
    size, loop, transport = world(seeds[0])
    said = run_plans([plan(seed, size) for seed in seeds], size, loop, transport)
    return len(seeds), [Violation(seeds[0], said.partition("\n")[0], said)] if said else []


def run_plans(plans: Sequence[Plan], size: int, loop: str, transport: str) -> str:
    """Run programs on ranks of their own → '' where all went well, else what was wrong."""
    env = {"AIODIST_TRANSPORT": transport, "PYTHONPATH": ROOT}
    arguments = ["-m", "tests.programs.fork_rank", loop, *(json.dumps(asdict(one)) for one in plans)]
    try:
        outcomes = asyncio.run(launch(arguments, size, timeout=LIMIT * 8, env=env))
        check(outcomes, {})
        for outcome in outcomes:
            if outcome.output.count("\nwell\n") != 1:
                raise RanksFailed(f"rank {outcome.rank} did not end well", outcome.output)
            if "Exception ignored" in outcome.output:  # what forking runs cannot raise
                raise RanksFailed(f"rank {outcome.rank} has swallowed an exception", outcome.output)
    except RanksFailed as error:
        return f"{size} ranks, {loop}, {transport}: {error}"
    return ""
