"""init and the first all_reduce: from a common start to the slowest rank's result; what ranks hold."""

from __future__ import annotations

import os
import resource
import time
from functools import partial

from benchmarks.harness.cases import WrongResultError
from benchmarks.harness.crew import Crew, CrewError, free_port
from benchmarks.harness.peers import AIODIST
from benchmarks.harness.run import Run, Step
from benchmarks.ranks.base import Peer

WHAT = "init + first all_reduce"
LIMIT = 1024  # descriptors
_TURNS = {64: 3, 128: 1}  # of world sizes that take long
_CROWD = 64  # ranks from which on they are forked
_OF_DESCRIPTORS = 16  # ranks
_MANY = 256


def init(run: Run) -> list[Step]:
    """One step for each world size, processes up and modules imported; then what the ranks hold."""
    sizes = (2, 4) if run.settings.quick else (2, 4, 8, 16, 64, 128)
    steps = [Step("init", f"{size} ranks", partial(_init, run, size)) for size in sizes]
    steps.append(Step("init", f"descriptors of {_OF_DESCRIPTORS} ranks", partial(_descriptors, run)))
    if not run.settings.quick:
        steps.append(Step("init", f"{_MANY} ranks, {LIMIT} descriptors", partial(limited, run, _MANY)))
    return steps


def _init(run: Run, size: int) -> None:
    peers = run.peers("aiodist", "gloo")
    crews: dict[str, Crew] = {}
    taken: dict[str, list[float]] = {}
    try:
        for peer in peers:
            run.progress.show(f"{peer.name} starts")
            crew = crews[peer.name] = Crew(peer, size, forked=size >= _CROWD)
            crew.do(descriptors)  # they import this module now, and not in the time that counts
        for turn in range(_TURNS.get(size, min(5, 2 * run.settings.turns))):
            for name, crew in crews.items():
                run.progress.show(f"{name} {turn + 1}")
                taken.setdefault(name, []).append(_once(crew))
                crew.call("disconnect")
    except CrewError as error:
        run.results.note(f"init on {size} ranks: {error}")
    finally:
        for crew in crews.values():
            crew.close()
    for name, values in taken.items():
        run.results.add("init", WHAT, name, values, ranks=size)


def _once(crew: Crew) -> float:
    """Seconds from a common start until the slowest rank has the result."""
    at = time.monotonic() + 0.1 + 5e-3 * crew.size  # until all have their orders
    return float(max(crew.do(first_result, port=free_port(), at=at)) - at)


def _descriptors(run: Run) -> None:
    """What a rank holds for each peer of its host: from 2 ranks to many, without what any job takes.
    Rank 0 hosts the store, and holds a connection of each rank besides."""
    counts: dict[int, list[int]] = {}
    for size in (2, _OF_DESCRIPTORS):
        with Crew(AIODIST, size) as crew:
            _once(crew)
            counts[size] = crew.do(descriptors)
    more = _OF_DESCRIPTORS - 2
    host = (counts[_OF_DESCRIPTORS][0] - counts[2][0]) / more
    others = max(count - counts[2][1] for count in counts[_OF_DESCRIPTORS][1:]) / more
    for what, value in (("most", others), ("of the one that hosts the store", host)):
        name = f"descriptors for each peer, {what}"
        run.results.add("init", name, "aiodist", [value], ranks=_OF_DESCRIPTORS, unit="")


def limited(run: Run, size: int) -> None:
    """Whether so many ranks meet and compute where each may have few descriptors, and in which time."""
    with Crew(AIODIST, size, forked=True) as crew:
        crew.do(allow_few_descriptors, most=LIMIT)
        met, seconds = 0, 0.0
        try:
            seconds = _once(crew)
            met = size
        except CrewError as error:
            run.results.note(f"init on {size} ranks with {LIMIT} descriptors: {error}")
    run.results.add("init", "ranks that met", "aiodist", [float(met)], ranks=size, unit="")
    if met:
        run.results.add("init", f"{WHAT}, {LIMIT} descriptors", "aiodist", [seconds], ranks=size)


# ── on a rank ────────────────────────────────────────────────────────────────────────────────────────


async def first_result(peer: Peer, port: int, at: float) -> float:
    """Make the group and all_reduce one number, at a given monotonic time → when the result was there."""
    tensor = peer.zeros(1)
    tensor += 1
    time.sleep(max(0.0, at - time.monotonic()))  # noqa: ASYNC251
    await peer.connect(port)
    await peer.all_reduce(tensor)
    now = time.monotonic()
    if tensor[0] != peer.size:
        raise WrongResultError(f"the first all_reduce of {peer.size} ones gave {tensor[0]}")
    return now


async def descriptors(peer: Peer) -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


async def allow_few_descriptors(peer: Peer, most: int) -> None:
    """Allow this process only so many descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
