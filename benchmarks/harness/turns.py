"""Turns: each peer measures the same case for a moment, one after the other, again and again."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, TypeVar

from aiodist.cli.bench.calls import per_operation
from aiodist.cli.bench.measures import repeats, show_size
from benchmarks.harness.cases import Case
from benchmarks.harness.crew import Crew, CrewError
from benchmarks.harness.link import AbsentError
from benchmarks.harness.machine import memory_available
from benchmarks.harness.peers import Peer
from benchmarks.harness.run import Run

_SLOW = 0.3  # seconds for one operation, from which on fewer turns have to do
_FEW = 3

Order = Callable[..., list[Any]]
T = TypeVar("T")


def measure(
    run: Run,
    suite: str,
    case: Case,
    size: int,
    peers: Sequence[Peer],
    others: Mapping[str, Case] | None = None,
) -> None:
    """Measure a case on `size` ranks of each peer, in turns, and record it.

    Args:
        others: the cases of peers that do something else in their turns, by name.
    """
    cases = {peer.name: (others or {}).get(peer.name, case) for peer in peers}
    length, out = case.lengths(size)
    wanted = 2 * (length + out) * case.numpy_dtype.itemsize * size * len(peers)
    if wanted > memory_available():
        run.results.note(f"{suite} {show_size(case.nbytes)} on {size} ranks: not enough memory")
        return
    plans: dict[str, tuple[int, int, int]] = {}
    crews: dict[str, Crew] = {}
    for peer in peers:
        if run.given_up(peer, size):
            continue
        run.progress.show(f"{peer.name} prepares")
        try:
            crew = run.crew(peer, size)
            plans[peer.name] = prepare(
                crew.call, replace(cases[peer.name], shared=peer.shared), run.settings.budget
            )
            crews[peer.name] = crew
        except AbsentError as absent:
            run.results.note(f"{peer.name}, {cases[peer.name].what} {case.dtype}: {absent}")
        except CrewError as error:
            run.failed(peer, size, error)
    taken: dict[str, list[list[list[float]]]] = {name: [] for name in plans}  # by rank, of each turn
    turns = run.settings.turns
    for turn in range(turns):
        for peer in peers:
            if peer.name not in plans or turn >= min(turns, plans[peer.name][2]):
                continue
            run.progress.show(f"{peer.name} {turn + 1}/{turns}")
            samples, inner, _ = plans[peer.name]
            try:
                taken[peer.name].append(crews[peer.name].call("turn", samples=samples, inner=inner))
            except CrewError as error:
                run.failed(peer, size, error)
                del plans[peer.name]
    for peer in peers:
        if peer.name in plans:
            crews[peer.name].call("drop")
            done = cases[peer.name]
            values = [per_operation(done, seconds) for seconds in slowest(taken[peer.name])]
            dtype = done.dtype if done.nbytes else ""
            run.results.add(suite, done.what, peer.name, values, ranks=size, nbytes=done.nbytes, dtype=dtype)


def in_turns(run: Run, ways: Iterable[str], turns: int, once: Callable[[str], T]) -> dict[str, list[T]]:
    """What some ways to do the same have given, which take turns; the first turn warms up and does not count.

    Args:
        once: does it in one of the ways.
    """
    taken: dict[str, list[T]] = {way: [] for way in ways}
    for turn in range(1 + turns):
        for way, so_far in taken.items():
            run.progress.show(f"{way} {turn}/{turns}")
            found = once(way)
            if turn:
                so_far.append(found)
    return taken


def slowest(turns: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """The samples of all turns, of the rank whose median is the largest: a root may be done early.

    Args:
        turns: the samples of each rank, of each turn.
    """
    ranks = [list(chain.from_iterable(samples)) for samples in zip(*turns, strict=True)]
    return max(ranks, key=statistics.median)


def prepare(call: Order, case: Case, budget: float) -> tuple[int, int, int]:
    """Have a crew bind and check a case, and warm up.

    Args:
        call: gives an order to the ranks that take part.

    Returns:
        (samples of a turn, operations in each, turns).

    Raises:
        AbsentError: the peer has no such operation.
    """
    check(call, case)
    seconds = 0.0
    inner = 1
    for _ in range(3):
        seconds = max(min(samples) for samples in call("turn", samples=1, inner=inner))
        inner = min(1000, repeats(seconds, budget)[1])
    samples, inner = repeats(seconds, budget)
    return samples, inner, _FEW if seconds > _SLOW else 1 << 30


def check(call: Order, case: Case) -> None:
    """Have a crew bind a case, run it once and check the result.

    Raises:
        AbsentError: the peer has no such operation.
    """
    answers = call("prepare", case=asdict(case))
    if "absent" in answers[0]:
        raise AbsentError(answers[0]["absent"])
    if "share" in answers[0]:
        call("attach", shares=[answer["share"] for answer in answers])
