"""The measurements: records that can be looked up, and written as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from aiodist.cli.bench.measures import busbw, spread


@dataclass(frozen=True)
class Record:
    """One figure. Seconds per operation, or what `unit` says; the median, the spread around it, the least.

    `doubt` says why it is not to be trusted, since the machine was busy meanwhile; '' where it is.
    """

    suite: str
    what: str
    peer: str
    ranks: int
    nbytes: int
    dtype: str
    unit: str
    value: float
    low: float
    high: float
    count: int
    least: float = 0.0
    doubt: str = ""

    @property
    def busbw(self) -> float:
        """Bytes per second over the links."""
        return busbw(self.what, self.nbytes, self.ranks, self.value)


@dataclass
class Results:
    """Everything of one run.

    Attributes:
        facts: the machine and the software.
        records: the figures.
        notes: what was left out, and why.
        doubt: why figures are not to be trusted, since the machine was busy over the whole run; '' where not.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubt: str = ""

    def add(
        self,
        suite: str,
        what: str,
        peer: str,
        values: Sequence[float],
        *,
        ranks: int = 1,
        nbytes: int = 0,
        dtype: str = "",
        unit: str = "s",
    ) -> None:
        """Record some measurements of one thing."""
        found = spread(values)
        self.records.append(
            Record(
                suite,
                what,
                peer,
                ranks,
                nbytes,
                dtype,
                unit,
                found.median,
                found.low,
                found.high,
                found.count,
                min(values),
            )
        )

    def doubt_since(self, first: int, why: str) -> None:
        """Say why the records from this index on are not to be trusted."""
        self.records[first:] = [replace(record, doubt=why) for record in self.records[first:]]

    def note(self, text: str) -> None:
        """Say once that something was left out."""
        if text not in self.notes:
            self.notes.append(text)

    def select(self, **wanted: Any) -> list[Record]:
        """The records whose fields have these values."""
        return [
            record
            for record in self.records
            if all(getattr(record, name) == value for name, value in wanted.items())
        ]

    def as_json(self) -> dict[str, Any]:
        """Everything, for `json.dump`."""
        records = [
            asdict(record) | ({"busbw": record.busbw} if record.nbytes and record.unit == "s" else {})
            for record in self.records
        ]
        return {"facts": self.facts, "doubt": self.doubt, "notes": self.notes, "records": records}
