"""Many small requests at once, beside streams of asyncio; two ranks."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from benchmarks.harness.crew import Crew, CrewError
from benchmarks.harness.peers import AIODIST, STREAMS, STREAMS_TCP
from benchmarks.harness.run import Run, Step
from benchmarks.ranks.base import LoopPeer
from benchmarks.ranks.service import KINDS, measured

AT_ONCE = (1, 32, 256)
_CALLED = ("calls", "functions")
_PEERS = (AIODIST, STREAMS)
_SIZE = 2


def service(run: Run) -> list[Step]:
    """Requests of one rank that the other serves: what each takes, and of the processor on either side."""
    return [
        Step("service", f"{at_once} {kind}", partial(_service, run, kind, at_once), _SIZE)
        for kind in KINDS
        for at_once in (AT_ONCE if kind in _CALLED else AT_ONCE[1:])
    ]


def _service(run: Run, kind: str, at_once: int) -> None:
    seconds = 0.1 if run.settings.quick else 0.5  # of a turn
    counts: dict[str, int] = {}
    taken: dict[str, list[Asked]] = {}
    for turn in range(1 + run.settings.turns):
        for peer in (*_PEERS, STREAMS_TCP) if kind in _CALLED else _PEERS:
            run.progress.show(f"{peer.name} {turn}")
            count = counts.get(peer.name, 10 * at_once)
            try:
                found = _once(run.crew(peer, _SIZE), kind, at_once, count)
            except CrewError as error:
                run.failed(peer, _SIZE, error)
                continue
            if not turn:
                counts[peer.name] = at_once * max(1, round(seconds / found.each / at_once))
            else:
                taken.setdefault(peer.name, []).append(found)
    for name, turns in taken.items():
        for figure, values in zip(Asked._fields, zip(*turns, strict=True), strict=True):
            what = f"{at_once} {kind}" + ("" if figure == "each" else f", {figure}")
            run.results.add("service", what, name, values, ranks=_SIZE)


class Asked(NamedTuple):
    """The seconds of a request: until the next answer; of the processor on both sides, where it asks, and
    where it answers; and what 99 % of all take at most."""

    each: float
    processor: float
    asks: float
    answers: float
    p99: float


def _once(crew: Crew, kind: str, at_once: int, count: int) -> Asked:
    (seconds, asks, p99), (_, answers, _) = crew.do(requests, kind=kind, at_once=at_once, count=count)
    return Asked(seconds / count, (asks + answers) / count, asks / count, answers / count, p99)


async def requests(peer: LoopPeer, kind: str, at_once: int, count: int) -> list[float]:
    """On a rank: ask, or serve, so many requests, and say what `measured` says."""
    return await measured(peer.service(kind, at_once, count), peer.rank, peer.barrier, at_once, count)
