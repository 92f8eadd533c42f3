"""Collectives by size, beside every peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from aiodist.cli.bench.measures import SIZES, show_size
from benchmarks.harness.cases import COLLECTIVES, SWEPT, Case
from benchmarks.harness.peers import (
    AIODIST,
    AIODIST_EMPTY,
    AIODIST_TCP,
    PASSES,
    PASSES_STAGED,
    SOCKETS,
    STREAMS,
    Peer,
)
from benchmarks.harness.run import Run, Step
from benchmarks.harness.turns import measure
from benchmarks.ranks.moves import KNOWN

NAMES = (*SWEPT, "five")
_AT_MOST = {"five": 1 << 10}  # bytes
_ALL = ("aiodist", "gloo", "openmpi", "mpich")
_SMALL = 8  # bytes
_FEWER = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)  # of `SIZES`, where there are many ranks
_MANY = 4  # ranks, above which less is measured
_HALVES = ("float16", "bfloat16")


def collective(what: str) -> Callable[[Run], list[Step]]:
    """The suite of one operation in float32."""

    def suite(run: Run) -> list[Step]:
        peers = run.peers(*_ALL)
        if what in COLLECTIVES:
            peers = [*peers[:1], AIODIST_EMPTY, *peers[1:], PASSES]
        if what in KNOWN:
            peers.append(PASSES_STAGED)
        if what == "p2p":
            peers.append(STREAMS)
        ranks = {"p2p": (2,), "all_reduce": run.settings.ranks}.get(what, _few(run))
        return [
            _step(run, what, Case(what, nbytes), size, peers if size <= _MANY else _without_mpich(peers))
            for size in ranks
            for nbytes in _sizes(run, what, size)
        ]

    return suite


def _few(run: Run) -> Sequence[int]:
    """The world sizes of all but all_reduce: the first one, for everything has to fit into half an hour."""
    return run.settings.ranks[:1]


def _sizes(run: Run, what: str, size: int) -> Sequence[int]:
    """The sizes of a sweep; fewer where there are many ranks."""
    if what == "barrier":
        return [0]
    most = _AT_MOST.get(what, 1 << 62)
    sizes = [nbytes for nbytes in run.settings.sizes if nbytes <= most]
    return [nbytes for nbytes in sizes if size <= _MANY or nbytes in _FEWER or nbytes not in SIZES]


def _without_mpich(peers: Sequence[Peer]) -> list[Peer]:
    return [peer for peer in peers if peer.name != "mpich"]  # whose ranks never give up a core


def halves(run: Run) -> list[Step]:
    """all_reduce of float16 and bfloat16, which MPI does not offer by mpi4py."""
    sizes = [size for size in run.settings.sizes if size >= 1 << 10][:: 1 if run.settings.quick else 2]
    peers = run.peers("aiodist", "gloo")
    return [
        _step(run, "halves", Case("all_reduce", nbytes, dtype), size, peers)
        for size in _few(run)
        for dtype in _HALVES
        for nbytes in sizes
    ]


def over_mpi(run: Run) -> list[Step]:
    """all_reduce by aiodist's backend 'mpi', beside the same library called and waited for.

    The smallest also beside a barrier of aiodist's own: members compare what they issue by that.
    """
    sizes = run.settings.sizes[:: 1 if run.settings.quick else 2]
    peers = run.peers("aiodist-openmpi", "openmpi", "aiodist-mpich", "mpich")
    cases = [Case("all_reduce", nbytes) for nbytes in sizes] if peers else []
    return [
        Step("mpi", _label(case, size), partial(_over_mpi, run, case, size, peers), size)
        for size in _few(run)
        for case in cases
    ]


def _over_mpi(run: Run, case: Case, size: int, peers: Sequence[Peer]) -> None:
    small = case.nbytes <= _SMALL
    measure(run, "mpi", case, size, [*peers, *[AIODIST] * small], {AIODIST.name: Case("barrier")})
    for barrier in run.results.select(suite="mpi", what="barrier", ranks=size) if small else ():
        for one in run.results.select(suite="mpi", what=case.what, nbytes=case.nbytes, ranks=size):
            if one.peer.startswith("aiodist"):
                above = [one.value - barrier.value]
                run.results.add("mpi", f"{one.peer} above a barrier", AIODIST.name, above, ranks=size)


def in_flight(run: Run) -> list[Step]:
    """64 all_reduces of 1 KiB at once."""
    peers = run.peers(*_ALL)
    return [_step(run, "inflight", Case("inflight", 1 << 10), size, peers) for size in _few(run)]


def tcp(run: Run) -> list[Step]:
    """all_reduce over TCP alone, beside gloo and beside raw sockets; two ranks."""
    peers = [AIODIST_TCP, *run.peers("gloo"), SOCKETS]
    return [_step(run, "tcp", Case("all_reduce", nbytes), 2, peers) for nbytes in run.settings.sizes]


def _step(run: Run, suite: str, case: Case, size: int, peers: Sequence[Peer]) -> Step:
    return Step(suite, _label(case, size), partial(measure, run, suite, case, size, peers), size)


def _label(case: Case, size: int) -> str:
    nbytes = f" {show_size(case.nbytes)}" if case.nbytes else ""
    return f"{case.what} {case.dtype}{nbytes}, {size} ranks"
