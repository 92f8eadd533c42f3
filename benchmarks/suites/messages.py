"""Objects there and back, and many small requests at once, beside a Unix stream of asyncio; two ranks."""

from __future__ import annotations

from functools import partial

from aiodist.cli.bench.cases import Case
from benchmarks.crew import Crew, CrewError
from benchmarks.peers import AIODIST, STREAMS
from benchmarks.ranks.objects import OBJECTS
from benchmarks.ranks.service import KINDS
from benchmarks.run import Run, Step
from benchmarks.turns import measure

AT_ONCE = (32, 256)
_PEERS = (AIODIST, STREAMS)
_SIZE = 2


def objects(run: Run) -> list[Step]:
    """`send_object` and `recv_object` beside msgpack over the stream; there and back counts as one."""
    return [
        Step("objects", what, partial(measure, run, "objects", Case(what), _SIZE, _PEERS), _SIZE)
        for what in OBJECTS
    ]


def service(run: Run) -> list[Step]:
    """Requests of one rank that the other serves: seconds and processor seconds for each."""
    return [
        Step("service", f"{at_once} {kind}", partial(_service, run, kind, at_once), _SIZE)
        for kind in KINDS
        for at_once in AT_ONCE
    ]


def _service(run: Run, kind: str, at_once: int) -> None:
    seconds = 0.1 if run.settings.quick else 0.5  # of a turn
    counts: dict[str, int] = {}
    taken: dict[str, tuple[list[float], list[float]]] = {}
    for turn in range(1 + run.settings.turns):
        for peer in _PEERS:
            run.progress.show(f"{peer.name} {turn}")
            count = counts.get(peer.name, 10 * at_once)
            try:
                wall, spent = _once(run.crew(peer, _SIZE), kind, at_once, count)
            except CrewError as error:
                run.failed(peer, _SIZE, error)
                continue
            if not turn:
                counts[peer.name] = at_once * max(1, round(seconds / wall * count / at_once))
                taken[peer.name] = [], []
            else:
                walls, processors = taken[peer.name]
                walls.append(wall / count)
                processors.append(spent / count)
    for name, (walls, processors) in taken.items():
        if walls:
            run.results.add("service", f"{at_once} {kind}", name, walls, ranks=_SIZE)
            run.results.add("service", f"{at_once} {kind}, processor", name, processors, ranks=_SIZE)


def _once(crew: Crew, kind: str, at_once: int, count: int) -> tuple[float, float]:
    """Seconds until the last answer is there, and the processor seconds of both ranks."""
    ranks = crew.call("requests", kind=kind, at_once=at_once, count=count)
    return ranks[0][0], sum(spent for _, spent in ranks)
