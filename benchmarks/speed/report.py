"""The Markdown report of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from aiodist.cli.bench.measures import show_bandwidth, show_seconds, show_size, show_value
from aiodist.cli.bench.table import table
from benchmarks.harness.cases import FIVE
from benchmarks.harness.peers import (
    AIODIST_EMPTY,
    AIODIST_TCP,
    PASSES,
    PASSES_STAGED,
    RING,
    SOCKETS,
    STREAMS,
    Peer,
)
from benchmarks.harness.results import Record, Results
from benchmarks.speed.bars import bars_table, evaluate
from benchmarks.speed.goals import BARS
from benchmarks.speed.suites.sim import errors_table
from benchmarks.speed.suites.sweeps import NAMES

_BY_SIZE = (*NAMES, "halves", "tcp", "mpi", "inflight")
_PIVOTED = {
    **dict.fromkeys(("checkpoints", "quantized"), "peer"),
    **dict.fromkeys(("service", "application", "steps", "calls", "watched"), "what"),
}
"""Suites with tables of their own → whether a row is a peer, or what was done; the other one is a column."""
_BUSY = " \\*"  # behind a size, where the machine was busy
_TITLES = {  # of what is several operations, and has no bandwidth
    "inflight": "64 all_reduces in flight",
    "five": f"five in a row ({', '.join(FIVE)})",
}


def report(results: Results, peers: Sequence[Peer]) -> str:
    """The whole page."""
    parts = ["# Benchmarks", machine(results.facts)]
    if busy := doubts(results):
        parts.append(busy)
    parts += ["## Goals", f"On {processor(results.facts)}.", bars_table(evaluate(results, BARS))]
    for suite in _BY_SIZE:
        parts += _sweeps(results, suite)
    for suite, rows in _PIVOTED.items():
        parts += _pivots(results, suite, rows)
    if simulated := results.select(suite="sim"):
        parts += ["## Predicted by `aiodist sim`", errors_table(simulated)]
    shown = (*_BY_SIZE, *_PIVOTED, "sim")
    others = [record for record in results.records if record.suite not in shown]
    if others:
        parts += ["## Beside the sweeps", _others(others)]
    parts += ["## What is timed", _method(peers)]
    if results.notes:
        parts += ["## Left out", "\n".join(f"- {note.splitlines()[0]}" for note in results.notes)]
    return "\n\n".join(parts) + "\n"


def machine(facts: dict[str, Any]) -> str:
    """The section on the machine and its packages."""
    packages = ", ".join(f"{name} {version}" for name, version in facts.get("packages", {}).items())
    libraries = ", ".join(
        f"{peer}: {versions['library']}"
        for peer, versions in facts.get("peers", {}).items()
        if "library" in versions
    )
    rows = [
        ["date", facts.get("date", "")],
        ["commit", facts.get("commit", "")],
        ["processor", processor(facts)],
        ["memory", show_size(facts.get("memory_bytes", 0))],
        ["system", f"{facts.get('kernel', '')}, Python {facts.get('python', '')}"],
        ["packages", packages],
        ["MPI libraries", libraries or "none"],
        ["load before", f"{facts.get('load_before', 0):.2f}"],
    ]
    return "\n".join(f"- {name}: {value}" for name, value in rows)


def doubts(results: Results) -> str:
    """Which figures are not to be trusted, and the reason for the first of them; '' where all are."""
    marked = [record.doubt for record in results.records if record.doubt]
    if not marked and not results.doubt:
        return ""
    return f"\\* {len(marked)} of {len(results.records)} figures are marked so: {results.doubt or marked[0]}."


def processor(facts: dict[str, Any]) -> str:
    """The processor in one line: model, cores, caches."""
    caches = "".join(f", {name} {show_size(nbytes)}" for name, nbytes in facts.get("caches", {}).items())
    return f"{facts.get('cpu', '')}, {facts.get('cores', '?')} cores available{caches}"


def groups(results: Results, suite: str) -> dict[tuple[str, str, int], list[Record]]:
    """The records of a suite, by (operation, dtype, ranks)."""
    found: dict[tuple[str, str, int], list[Record]] = {}
    for record in results.select(suite=suite):
        found.setdefault((record.what, record.dtype, record.ranks), []).append(record)
    return found


def _sweeps(results: Results, suite: str) -> list[str]:
    parts = []
    for (what, dtype, ranks), records in groups(results, suite).items():
        over = {"tcp": " over TCP", "mpi": " by the backend mpi"}.get(suite, "")
        if (suite, what) == ("mpi", "barrier"):
            over = " of the host backend, in the same turns"
        title = _TITLES.get(what, what)
        name = " ".join(filter(None, [title, dtype]))
        parts += [f"## {name}{over}, {ranks} ranks", "Time per operation:", by_size(records, _time)]
        if any(record.nbytes for record in records) and what not in _TITLES:
            parts += ["busbw, GB/s:", by_size(records, lambda record: show_bandwidth(record.busbw))]
    return parts


def _pivots(results: Results, suite: str, rows: str) -> list[str]:
    parts = []
    for ranks, nbytes in dict.fromkeys((one.ranks, one.nbytes) for one in results.select(suite=suite)):
        records = results.select(suite=suite, ranks=ranks, nbytes=nbytes)
        size = f", {show_size(nbytes)}" if nbytes else ""
        parts += [f"## {suite}, {ranks} ranks{size}", pivot(records, rows)]
    return parts


def pivot(records: Sequence[Record], rows: str) -> str:
    """One row for each peer and one column for what was done ('peer'), or the other way round ('what')."""
    columns = "what" if rows == "peer" else "peer"
    cells = {
        (getattr(one, rows), getattr(one, columns)): show_value(one.value, one.unit) + _BUSY * bool(one.doubt)
        for one in records
    }
    head = list(dict.fromkeys(column for _, column in cells))
    names = dict.fromkeys(row for row, _ in cells)
    return table([rows, *head], [[name, *(cells.get((name, one), "") for one in head)] for name in names])


def by_size(records: Sequence[Record], show: Any) -> str:
    """One row for each size, one column for each peer."""
    peers = list(dict.fromkeys(record.peer for record in records))
    cells = {(record.nbytes, record.peer): show(record) for record in records}
    busy = {record.nbytes for record in records if record.doubt}
    rows = [
        [
            (show_size(nbytes) if nbytes else "–") + _BUSY * (nbytes in busy),
            *(cells.get((nbytes, peer), "–") for peer in peers),
        ]
        for nbytes in sorted({record.nbytes for record in records})
    ]
    return table(["size", *peers], rows)


def _time(record: Record) -> str:
    return show_seconds(record.value)


def _others(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        show = partial(show_value, unit=record.unit)
        spread = f"{show(record.low)} – {show(record.high)}" if record.count > 1 else ""
        ranks = str(record.ranks)
        size = show_size(record.nbytes) if record.nbytes else ""
        what = f"{record.suite}: {record.what}{_BUSY * bool(record.doubt)}"
        rows.append([what, record.peer, ranks, size, show(record.value), spread])
    return table(["what", "who", "ranks", "size", "median", "10% – 90%"], rows)


def _method(peers: Sequence[Peer]) -> str:
    lines = [
        f"- {peer.name}: `{peer.calls}`"
        for peer in (*peers, AIODIST_EMPTY, AIODIST_TCP, PASSES, PASSES_STAGED, SOCKETS, RING, STREAMS)
    ]
    return (
        "Medians over all turns of the time per operation on the slowest rank. Peers take turns within "
        "each size; those that wait block in the kernel. Results are checked once for each size. busbw as "
        "nccl-tests define it; p2p is half of there and back; in flight is per all_reduce.\n\n"
        + "\n".join(lines)
    )
