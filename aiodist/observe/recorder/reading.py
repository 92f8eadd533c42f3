"""Reading a recorder's memory, in any process, while its owner writes, is stuck, or is dead."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiodist.base.errors import WireError
from aiodist.observe.recorder.layout import (
    CLOCK,
    CLOCK_PLACES,
    CLOCKS_AT,
    HEADER,
    ISSUED,
    LINK,
    LINK_PLACES,
    LINKS_AT,
    MAGIC,
    PENDING_AT,
    PENDING_PLACES,
    PLACE,
    RING_AT,
    RING_PLACES,
    SIZE,
    SUM,
    SUM_PLACES,
    SUMS_AT,
    TEXT_BYTES,
    TURN_AT,
    VITALS,
    VITALS_AT,
    text_at,
)

MOST_RANKS = 1 << 16
"""Of a job, and so in a group: what says that there are more is broken. Who judges looks at each member of
each group in which somebody waits."""

MOST_SECONDS = 1e12
"""Of any time, either way; bytes in a second, too: what says more is broken."""

MOST_DRIFT = 0.1
"""Seconds by which two clocks drift apart in a second, at most."""

_MOST_DIMENSIONS = 64  # as in NumPy


def sound(*times: float) -> bool:
    """Whether all of these can be times, or spans of it: a rank's memory, or a file, may hold anything."""
    return all(-MOST_SECONDS < time < MOST_SECONDS for time in times)


def sound_number(number: int) -> bool:
    """Whether a number is one that a recorder writes: it has 64 bits."""
    return -(1 << 63) <= number < 1 << 64


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the program."""

    file: str
    number: int
    function: str


@dataclass(frozen=True, slots=True)
class Group:
    """A group that the rank has made: the same value at all of its members.

    Args:
        name, epoch: of it.
        ranks: the global ranks of its members: a range, where they are one, else a tuple.
        twin: what tells it from others of the same name, epoch and ranks.
    """

    name: str
    epoch: int
    ranks: Sequence[int]
    twin: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """One operation.

    Args:
        group: that it belongs to; None: it could not be written down.
        op: 'all_reduce'.
        number: in its group; of a message, among those of its peer and tag.
        dtype, shape, reduce, root, tag, nbytes: of the call. `root` is the group rank of a message's peer.
        line: of the program that has issued it, where it is known.
        issued, pending, arrived, first, ended: when it was issued, found pending, when all peers had arrived,
            when data came first, and when it ended; seconds of the rank's monotonic clock, 0.0: not, or not
            that anybody knows.
        failed: it ended by an error.
        called: the user's call, where it has another name than the operation: 'all_gather_object'.
        nth: the number of the user's call, where it is another: one may take several numbers; -1: `number`.
    """

    group: Group | None
    op: str
    number: int
    dtype: str
    shape: tuple[int, ...]
    reduce: str
    root: int
    tag: int
    nbytes: int
    line: Line | None
    issued: float
    pending: float
    arrived: float
    first: float
    ended: float
    failed: bool
    called: str = ""
    nth: int = -1


@dataclass(frozen=True, slots=True)
class Vitals:
    """How a rank goes.

    Args:
        flushed: when its process wrote this; seconds of the monotonic clock.
        turns, turned: how often the event loop has beaten, and when the last beat was seen.
        late: seconds by which a beat was late, the most of the last ten seconds.
        issued, failed: operations.
    """

    flushed: float = 0.0
    turns: int = 0
    turned: float = 0.0
    late: float = 0.0
    issued: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Sum:
    """All operations of a sort: as `Record`, and how they went.

    Args:
        uses: how many were issued; of more than 4,096 in a second the number is an estimate.
        slept: how many of them the loop has slept for; the times tell only of these.
        failed: how many of these failed.
        waited: seconds until all peers had arrived.
        moved: seconds from then on; of an operation that nobody saw the peers of, all of its time.
        total: bytes of the tensors of all that were issued.
    """

    group: Group | None
    op: str
    dtype: str
    shape: tuple[int, ...]
    reduce: str
    root: int
    tag: int
    nbytes: int
    uses: int
    slept: int
    failed: int
    waited: float
    moved: float
    total: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A TCP connection to another rank: as `net.traffic.Traffic`."""

    rank: int
    sent: int
    busy: float
    rtt: float
    again: int
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: when (seconds of the monotonic clock), and in words."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Clock:
    """What a rank knows of a neighbour's clock.

    Args:
        rank: the neighbour.
        offset: seconds to add to a time of the rank's own clock to have the neighbour's.
        drift: seconds by which that grows in a second.
        error: by how many seconds it may be wrong.
        at: the time of the rank's own clock for which this holds.
    """

    rank: int
    offset: float
    drift: float
    error: float
    at: float


@dataclass(frozen=True, slots=True)
class Recording:
    """The record of one rank.

    Args:
        pid, rank, size, epoch: of the process, and the job.
        offset: seconds from its monotonic clock to the time of day.
        began, left: when its process began to record, and when it left in good order (0.0: it has not).
        groups: that it has made.
        last: the last operations, the oldest first.
        pending: those that were pending at the last turn of the loop and have not ended, the oldest first.
        vitals: how it goes.
        sums: all operations, by sort.
        about: what is told of the process and its job, by name.
        events: what has happened, the oldest first.
        clocks: what it knows of its neighbours' clocks.
        links: its TCP connections with other ranks.
    """

    pid: int
    rank: int
    size: int
    epoch: int
    offset: float
    began: float
    left: float
    groups: tuple[Group, ...] = ()
    last: tuple[Record, ...] = ()
    pending: tuple[Record, ...] = ()
    vitals: Vitals = Vitals()
    sums: tuple[Sum, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    clocks: tuple[Clock, ...] = ()
    links: tuple[Link, ...] = ()

    @property
    def since(self) -> float:
        """When its process began to record, as the time of day: clocks of processes may differ."""
        return self.offset + self.began


def span_of(start: int, count: int) -> range:
    """The ranks of a group that are one range; `ValueError` where these cannot be some."""
    if not (_whole(start, count) and 0 <= start <= MOST_RANKS and 0 < count <= MOST_RANKS):
        raise ValueError(f"a group has {count} members from rank {start} on")
    return range(start, start + count)


def members_of(ranks: Sequence[Any]) -> tuple[int, ...]:
    """The ranks of a group that are no range; `ValueError` where these cannot be some."""
    if not ranks or not all(type(rank) is int and 0 <= rank <= MOST_RANKS for rank in ranks):
        raise ValueError("the members of a group are no ranks")
    return tuple(ranks)


def shape_of(shape: Sequence[Any]) -> tuple[int, ...]:
    """The shape of a tensor; `ValueError` where this cannot be one."""
    fits = all(type(size) is int and sound_number(size) for size in shape)
    if len(shape) > _MOST_DIMENSIONS or not fits:
        raise ValueError("a shape is none")
    return tuple(shape)


def _whole(*numbers: Any) -> bool:
    return all(type(number) is int for number in numbers)


def _parse(digits: str) -> int:
    number = int(digits)
    if not sound_number(number):
        raise ValueError("a number is too large")
    return number


_UNKNOWN = (0, "?", "", "", (), "", -1, 0, 0)  # a sort for which there was no room


class _Texts:
    """What the lines of text say, by number."""

    def __init__(self, lines: bytes) -> None:
        self.groups: dict[int, Group] = {}
        self.sorts: dict[int, tuple[Any, ...]] = {}
        self.lines: dict[int, Line] = {}
        self.about: dict[str, Any] = {}
        self.events: list[Event] = []
        for entry in lines.split(b"\n"):
            if not entry:
                continue
            match json.loads(entry, parse_int=_parse):
                case ["group", number, str(name), epoch, "span", [start, count], twin] if _whole(
                    number, epoch, twin
                ):
                    self.groups[number] = Group(name, epoch, span_of(start, count), twin)
                case ["group", number, str(name), epoch, "list", list(ranks), twin] if _whole(
                    number, epoch, twin
                ):
                    self.groups[number] = Group(name, epoch, members_of(ranks), twin)
                case [
                    "sort",
                    number,
                    group,
                    str(op),
                    str(called),
                    str(dtype),
                    list(shape),
                    str(reduce),
                    *more,
                ] if _whole(number, group, *more):
                    root, tag, nbytes = more
                    self.sorts[number] = (
                        group,
                        op,
                        called,
                        dtype,
                        shape_of(shape),
                        reduce,
                        root,
                        tag,
                        nbytes,
                    )
                case ["line", number, str(file), line, str(function)] if _whole(number, line):
                    self.lines[number] = Line(file, line, function)
                case ["about", dict(about)]:
                    self.about.update(about)
                case ["event", float(at), str(text)] if sound(at):
                    self.events.append(Event(at, text))
                case _:
                    raise ValueError("a line is none of a recorder's")


@dataclass(frozen=True, slots=True)
class Glance:
    """What can be seen of a rank at little cost.

    Args:
        rank: its number; size: 0: it has no place in its job yet.
        flushed, turned: as in `Vitals`.
        left: as in `Recording`.
        oldest: when the oldest operation was issued that is pending; 0.0: none is.
    """

    rank: int
    size: int
    flushed: float
    turned: float
    left: float
    oldest: float


GLANCE = PENDING_AT + PLACE.size
"""Bytes of a memory that a `Glance` takes: the oldest of what is pending is first."""


def glance(memory: Any) -> Glance:
    """Look at the first `GLANCE` bytes of a recorder's memory.

    Raises:
        WireError: it is no recorder's.
    """
    if len(memory) < GLANCE or bytes(memory[: len(MAGIC)]) != MAGIC:
        raise WireError("this is no recorder's memory, or that of another version of aiodist")
    _, _, rank, size, *_, left = HEADER.unpack_from(memory)
    flushed, _, turned, *_ = VITALS.unpack_from(memory, VITALS_AT)
    oldest = PLACE.unpack_from(memory, PENDING_AT)[ISSUED]
    if not sound(flushed, turned, left):
        raise WireError("a recorder's memory is broken")
    return Glance(rank, size, flushed, turned, left, oldest if oldest > 0 and sound(oldest) else 0.0)


def read(memory: Any, most: int = RING_PLACES) -> Recording:
    """Read a recorder's memory.

    Args:
        memory: a buffer, which may change meanwhile. Operations that do are left out.
        most: of the last operations that are wanted; the fewer, the less it costs. Those that are pending are
            read in any case.

    Raises:
        WireError: it is no recorder's.
    """
    shown = memoryview(memory).cast("B")
    if len(shown) < SIZE:
        raise WireError(f"a recorder's memory has {SIZE} bytes, not {len(shown)}")
    once, again, text = _copied(shown)
    magic, pid, rank, size, epoch, offset, _, began, left = HEADER.unpack_from(again)
    vitals = Vitals(*VITALS.unpack_from(again, VITALS_AT))
    if magic != MAGIC:
        raise WireError("this is no recorder's memory, or that of another version of aiodist")
    if max(rank, size) > MOST_RANKS or not sound(
        offset, began, left, vitals.flushed, vitals.turned, vitals.late
    ):
        raise WireError("a recorder's memory is broken")
    try:
        texts = _Texts(_written(text))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise WireError(f"a recorder's text is broken: {error}") from error
    last = _records(once, again, texts, RING_AT, RING_PLACES, most)
    pending = _records(once, again, texts, PENDING_AT, PENDING_PLACES, PENDING_PLACES)
    groups = tuple(texts.groups.values())
    sums = tuple(_sums(again, texts))
    return Recording(
        *(pid, rank, size, epoch, offset, began, left, groups, last, pending, vitals, sums),
        *(texts.about, tuple(texts.events), tuple(_clocks(once, again))),
        tuple(_links(once, again)),
    )


_TRIES = 200
_PAUSE = 0.001  # seconds


def _copied(shown: memoryview) -> tuple[bytes, bytes, bytes]:
    """The memory, the same again, and the text: all from before it was written anew, or all from after.

    Of a process that has ended, or is stopped, while it does that, it is what it was doing it to.

    Raises:
        WireError: it is written anew all the time: no recorder's is.
    """
    before = -1
    for _ in range(_TRIES):
        once, again = bytes(shown[:SIZE]), bytes(shown[:SIZE])
        (turn,) = _WORD.unpack_from(once, TURN_AT)
        start = text_at(turn)
        text = bytes(shown[start : start + TEXT_BYTES])
        if turn == _WORD.unpack_from(shown, TURN_AT)[0]:
            if not turn % 2 or before == turn:
                return once, again, text
            before, pause = turn, _HELD
        else:
            pause = _PAUSE
        time.sleep(pause)
    raise WireError("a recorder's text changes all the time")


_HELD = 0.1  # seconds for which a process that lives does not write its text anew
_WORD = struct.Struct("<Q")


def _written(text: bytes) -> bytes:
    """The whole lines of the text: what comes after is being written. (The number of its bytes says less: it
    changes byte by byte.)"""
    begun = text.partition(b"\0")[0]
    return begun[: begun.rfind(b"\n") + 1]


def _links(once: bytes, again: bytes) -> Iterator[Link]:
    places = range(LINKS_AT, LINKS_AT + LINK_PLACES * LINK.size, LINK.size)
    for at, place in zip(places, LINK.iter_unpack(again[places.start : places.stop]), strict=True):
        if place[1] and once[at : at + LINK.size] == again[at : at + LINK.size]:
            link = Link(*place)
            if sound(link.busy, link.rtt, link.rate):
                yield link


def _clocks(once: bytes, again: bytes) -> Iterator[Clock]:
    for at in range(CLOCKS_AT, CLOCKS_AT + CLOCK_PLACES * CLOCK.size, CLOCK.size):
        clock = Clock(*CLOCK.unpack_from(again, at))
        if (
            clock.at
            and sound(clock.at, clock.offset, clock.error)
            and abs(clock.drift) < MOST_DRIFT
            and once[at : at + CLOCK.size] == again[at : at + CLOCK.size]
        ):
            yield clock


def _sums(memory: bytes, texts: _Texts) -> Iterator[Sum]:
    for mark, (group, op, _called, *sort) in sorted(texts.sorts.items()):
        if 0 < mark < SUM_PLACES:
            numbers = SUM.unpack_from(memory, SUMS_AT + mark * SUM.size)
            if not sound(*numbers[3:5]):
                continue
            yield Sum(texts.groups.get(group), op, *sort, *numbers)


def _records(
    once: bytes, again: bytes, texts: _Texts, start: int, places: int, most: int
) -> tuple[Record, ...]:
    found: dict[tuple[Any, ...], Record] = {}
    stop = start + places * PLACE.size
    still = once[start:stop] == again[start:stop]
    every = list(PLACE.iter_unpack(again[start:stop]))
    since = 0.0 if most >= places else sorted(place[ISSUED] for place in every)[-max(1, most)]
    for at, place in zip(range(start, stop, PLACE.size), every, strict=True):
        sort, number, line, issued, pending, arrived, first, ended, parts = place
        if issued < since:
            continue
        key = (sort, number, issued)
        whole = issued > 0 and sound(issued, pending, arrived, first, ended)
        if not whole or (key in found and not ended):
            continue
        if still or once[at : at + PLACE.size] == again[at : at + PLACE.size]:
            group, op, called, dtype, shape, reduce, root, tag, nbytes = texts.sorts.get(sort, _UNKNOWN)
            found[key] = Record(
                *(texts.groups.get(group), op, number, dtype, shape, reduce, root, tag, nbytes),
                texts.lines.get(line),
                *(issued, pending, arrived, first, abs(ended)),
                *(ended < 0, called, number - parts if 0 < parts <= number else -1),
            )
    return tuple(sorted(found.values(), key=lambda record: record.issued))
