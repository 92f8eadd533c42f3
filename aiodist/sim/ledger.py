"""What a simulation writes down: sums for the table, and the operations of chosen ranks for the trace."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiodist.base.types import Call
from aiodist.observe.recorder.lines import UNKNOWN, Lines
from aiodist.observe.recorder.reading import Event, Group, Line, Record, Recording
from aiodist.observe.view import JobView, RankView

BEGIN = 1.0
"""Seconds of a trace's clock at which a simulation begins: to a recording 0.0 means that nobody knows."""

Key = tuple[str, int, int, str]
"""Operation, ranks of its group, bytes of its buffer, how it was carried out."""


@dataclass(slots=True)
class LedgerRow:
    """Operations that are alike.

    Args:
        count: how many; a collective counts once for all its members, and so does a message.
        ranks: how often a rank took part.
        waited: seconds until all others had come, in sum of all that took part.
        moved: seconds from then on, likewise.
        longest: seconds that one took a rank at most, waiting aside.
        busy: seconds that the busiest link worked for them.
        slowest: that link's host, of the last of them; -1: no link worked.
    """

    count: int = 0
    ranks: int = 0
    waited: float = 0.0
    moved: float = 0.0
    longest: float = 0.0
    busy: float = 0.0
    slowest: int = -1


@dataclass(slots=True)
class SimLedger:
    """All that is written down.

    Args:
        traced: ranks whose operations are kept.
    """

    traced: Collection[int] = ()
    rows: dict[Key, LedgerRow] = field(default_factory=dict)
    operations: int = 0
    _records: dict[int, list[Record]] = field(default_factory=dict)
    _groups: dict[int, list[Group]] = field(default_factory=dict)
    _events: dict[int, list[Event]] = field(default_factory=dict)
    _lines: dict[int, Line] = field(default_factory=dict)
    _finder: Lines | None = None

    def row(self, key: Key) -> LedgerRow:
        """The row of a sort of operation."""
        return self.rows.setdefault(key, LedgerRow())

    def line_of(self, frame: Any) -> int:
        """The number of the program's line that has called."""
        if self._finder is None:

            def tell(number: int, file: str, line: int, function: str) -> None:
                self._lines[number] = Line(file, line, function)

            self._finder = Lines(tell)
        return self._finder.find(frame)

    def line(self, number: int) -> Line | None:
        """The line of a number."""
        return None if number == UNKNOWN else self._lines.get(number)

    def group(self, rank: int, group: Group) -> None:
        """Note a group that a rank is in."""
        if rank in self.traced:
            self._groups.setdefault(rank, []).append(group)

    def event(self, rank: int, at: float, text: str) -> None:
        """Note something that happens to a rank."""
        if rank in self.traced:
            self._events.setdefault(rank, []).append(Event(BEGIN + at, text))

    def record(
        self,
        rank: int,
        group: Group,
        call: Call,
        tag: int,
        line: int,
        issued: float,
        arrived: float,
        ended: float,
    ) -> None:
        """Keep an operation of a traced rank; times of the simulation."""
        one = Record(
            *(group, call.kind.name, call.seq, call.dtype.name, call.shape),
            *("" if call.reduce is None else call.reduce.name, call.root, tag, call.nbytes, self.line(line)),
            *(
                BEGIN + issued,
                BEGIN + issued,
                BEGIN + arrived if arrived > issued else 0.0,
                0.0,
                BEGIN + ended,
            ),
            failed=False,
        )
        self._records.setdefault(rank, []).append(one)

    def job(
        self, key: str, size: int, hosts: Iterable[str], now: float, argv: list[str], wall: float
    ) -> JobView:
        """The traced ranks as a job, which `observe.trace` draws.

        Args:
            key: of the job.
            hosts: name of each rank's.
            now: virtual seconds.
            wall: the time of day when it began, in seconds since 1970.
        """
        names = list(hosts)
        views = []
        for rank in sorted(self.traced):
            records = tuple(sorted(self._records.get(rank, ()), key=lambda record: record.issued))
            recording = Recording(
                *(
                    0,
                    rank,
                    size,
                    0,
                    wall - BEGIN,
                    BEGIN,
                    BEGIN + now,
                    tuple(self._groups.get(rank, ())),
                    records,
                ),
                about={"argv": argv, "backend": "simulated"},
                events=tuple(self._events.get(rank, ())),
            )
            views.append(RankView(names[rank], key, recording, BEGIN + now))
        return JobView(key, tuple(views))
