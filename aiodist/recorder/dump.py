"""A recording as JSON, for files and other hosts, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiodist.errors import WireError
from aiodist.recorder.reading import Event, Group, Line, Record, Recording, Sum, Vitals

FORMAT = "aiodist recording 1"


def to_json(recording: Recording) -> dict[str, Any]:
    """The recording as plain values; operations refer to groups and lines by their place in a list."""
    groups, lines = _Numbers(), _Numbers()

    def plain(record: Record | Sum) -> dict[str, Any]:
        fields = {name: getattr(record, name) for name in type(record).__slots__}
        fields["group"] = groups.of(record.group)
        if isinstance(record, Record):
            fields["line"] = lines.of(record.line)
        return fields | {"shape": list(record.shape)}

    for group in recording.groups:
        groups.of(group)
    head = {name: getattr(recording, name) for name in _HEAD}
    last, pending = [list(map(plain, records)) for records in (recording.last, recording.pending)]
    return {
        "format": FORMAT,
        **head,
        "about": dict(recording.about),
        "vitals": asdict(recording.vitals),
        "events": [asdict(event) for event in recording.events],
        "pending": pending,
        "last": last,
        "sums": list(map(plain, recording.sums)),
        "groups": [_group(group) for group in groups.known],
        "lines": [asdict(line) for line in lines.known],
    }


def from_json(data: Any) -> Recording:
    """A recording from what `to_json` made.

    Raises:
        WireError: this is none.
    """
    try:
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {str(data['format'])[:40]!r}, not {FORMAT!r}")
        groups = [_ungroup(group) for group in data["groups"]]
        lines = [Line(**line) for line in data["lines"]]

        def known(fields: dict[str, Any]) -> dict[str, Any]:
            number = fields["group"]
            found = fields | {"group": None if number is None else groups[number]}
            if "line" in fields:
                found["line"] = None if fields["line"] is None else lines[fields["line"]]
            return found | {"shape": tuple(fields["shape"])}

        return Recording(
            **{name: data[name] for name in _HEAD},
            groups=tuple(groups),
            last=tuple(Record(**known(record)) for record in data["last"]),
            pending=tuple(Record(**known(record)) for record in data["pending"]),
            vitals=Vitals(**data["vitals"]),
            sums=tuple(Sum(**known(one)) for one in data["sums"]),
            about=dict(data["about"]),
            events=tuple(Event(**event) for event in data["events"]),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"this is no recording: {error}") from error


_HEAD = ("pid", "rank", "size", "epoch", "offset", "began", "left")


class _Numbers:
    """Values, each with its place among all that were seen; None stays None."""

    def __init__(self) -> None:
        self.known: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def of(self, value: Any) -> int | None:
        if value is None:
            return None
        number = self._numbers.setdefault(value, len(self.known))
        if number == len(self.known):
            self.known.append(value)
        return number


def _group(group: Group) -> dict[str, Any]:
    span = isinstance(group.ranks, range)
    members = [group.ranks[0], len(group.ranks)] if span else list(group.ranks)
    return {"name": group.name, "epoch": group.epoch, "span" if span else "ranks": members}


def _ungroup(data: dict[str, Any]) -> Group:
    if "span" in data:
        start, count = data["span"]
        return Group(data["name"], data["epoch"], range(start, start + count))
    return Group(data["name"], data["epoch"], tuple(data["ranks"]))
