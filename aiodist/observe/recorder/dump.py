"""A recording as JSON, for files and other hosts, and back."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, TypeVar

from aiodist.base.errors import WireError
from aiodist.observe.recorder.reading import (
    MOST_DRIFT,
    MOST_RANKS,
    Clock,
    Event,
    Group,
    Line,
    Link,
    Record,
    Recording,
    Sum,
    Vitals,
    members_of,
    shape_of,
    sound,
    sound_number,
    span_of,
)

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
        "clocks": [asdict(clock) for clock in recording.clocks],
        "links": [asdict(link) for link in recording.links],
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
        lines = [_made(Line, line) for line in data["lines"]]

        def known(record: dict[str, Any]) -> dict[str, Any]:
            number = record["group"]
            found = record | {"group": None if number is None else groups[number]}
            if "line" in record:
                found["line"] = None if record["line"] is None else lines[record["line"]]
            return found | {"shape": shape_of(record["shape"])}

        head = {name: data[name] for name in _HEAD}
        parts = {
            "groups": tuple(groups),
            "last": tuple(_made(Record, known(record)) for record in data["last"]),
            "pending": tuple(_made(Record, known(record)) for record in data["pending"]),
            "vitals": _made(Vitals, data["vitals"]),
            "sums": tuple(_made(Sum, known(one)) for one in data["sums"]),
            "about": dict(data["about"]),
            "events": tuple(_made(Event, event) for event in data["events"]),
            "clocks": tuple(_clock(clock) for clock in data["clocks"]),
            "links": tuple(_made(Link, link) for link in data["links"]),
        }
        recording = _made(Recording, head | parts)
        if not (0 <= recording.rank <= MOST_RANKS and 0 <= recording.size <= MOST_RANKS):
            raise ValueError(f"rank {recording.rank} of {recording.size} is none")
        return recording
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise WireError(f"this is no recording: {error}") from error


_HEAD = ("pid", "rank", "size", "epoch", "offset", "began", "left")


_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}

Made = TypeVar("Made", Line, Link, Record, Vitals, Sum, Event, Clock, Recording)


def _made(kind: type[Made], values: dict[str, Any]) -> Made:
    """A value of plain fields, each of the type that it has to have: a file can say anything."""
    for field in fields(kind):
        value = values.get(field.name)
        allowed = _KINDS.get(str(field.type))
        if allowed and field.name in values and type(value) not in allowed:
            raise ValueError(f"{field.name} is no {field.type}")
        if field.type == "float" and isinstance(value, int | float) and not sound(value):
            raise ValueError(f"{field.name} is not a number of seconds")
        if type(value) is int and not sound_number(value):
            raise ValueError(f"{field.name} is too large")
    return kind(**values)


def _clock(values: dict[str, Any]) -> Clock:
    clock = _made(Clock, values)
    if not abs(clock.drift) < MOST_DRIFT:
        raise ValueError("drift is that of no clock")
    return clock


def _whole(value: Any) -> int:
    if type(value) is not int or not sound_number(value):
        raise ValueError("a number is not whole, or too large")
    return value


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
    twin = {"twin": group.twin} if group.twin else {}
    return {"name": group.name, "epoch": group.epoch, "span" if span else "ranks": members, **twin}


def _ungroup(data: dict[str, Any]) -> Group:
    name, epoch, twin = str(data["name"]), _whole(data["epoch"]), _whole(data.get("twin", 0))
    if "span" in data:
        start, count = data["span"]
        return Group(name, epoch, span_of(start, count), twin)
    return Group(name, epoch, members_of(data["ranks"]), twin)
