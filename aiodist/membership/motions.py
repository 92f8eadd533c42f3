"""Messages of the members of one epoch about the next. Pure, with its msgpack coding.

Motions travel on the control links of the old epoch, as the bytes of one kind of control message. A
record of many members is cut: it has to fit a control message of 64 KiB, so an epoch that the old one's
members talk about has at most some 6,000.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from reprlib import repr as short
from typing import Any

import msgpack

from aiodist.errors import WireError
from aiodist.membership.record import Number, Record, record_of
from aiodist.wire.bounded import unpack

Ballot = tuple[int, int]
"""(round, rank of the proposer)."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A member's call for the next epoch.

    Args:
        call: counts the calls on this group.
        min_size: fewer members than this are not worth an epoch.
        admit: take newcomers in.
        wanted: how many newcomers it waits for; with them the epoch may fail, and the old one stays.
        excluded: uids that shall not be in it.
    """

    call: int
    min_size: int
    admit: bool
    wanted: int
    excluded: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """The convener's draft: its members form it now."""

    call: int
    record: Record


@dataclass(frozen=True, slots=True)
class Dropped:
    """A draft that cannot be formed, and whose fault it was (uids)."""

    call: int
    number: Number
    culprits: tuple[bytes, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Decided:
    """The arbiter's decision: this is the next epoch."""

    call: int
    record: Record


@dataclass(frozen=True, slots=True)
class Void:
    """The end of a call that came to nothing; the old epoch stays as it is."""

    call: int
    why: str
    quorum: bool


@dataclass(frozen=True, slots=True)
class Prepare:
    """Ballot, phase 1: answer with what you accepted, and accept nothing of a lower ballot any more."""

    topic: str
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Promise:
    """The answer to `Prepare`; `accepted` is (ballot, value), or None."""

    topic: str
    ballot: Ballot
    accepted: tuple[Ballot, bytes] | None


@dataclass(frozen=True, slots=True)
class Accept:
    """Ballot, phase 2: accept this value."""

    topic: str
    ballot: Ballot
    value: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """An acceptance, told to everybody, so that it survives its sender."""

    topic: str
    ballot: Ballot
    value: bytes


@dataclass(frozen=True, slots=True)
class Outbid:
    """The answer that a higher ballot has been promised."""

    topic: str
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Ask:
    """The question how this agreement ended. A member that is asked will not complete it itself any more."""

    topic: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The value that it ended with; None: it did not end here, and never will by itself."""

    topic: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Leave:
    """The news that this process takes no part in any epoch any more."""


Election = Prepare | Promise | Accept | Accepted | Outbid
"""The motions of `ballot`."""

Motion = Ready | Draft | Dropped | Decided | Void | Election | Ask | Answer | Leave

_CODES: dict[type[Any], int] = {
    Ready: 1,
    Draft: 2,
    Dropped: 3,
    Decided: 4,
    Void: 5,
    Prepare: 6,
    Promise: 7,
    Accept: 8,
    Accepted: 9,
    Outbid: 10,
    Ask: 11,
    Answer: 12,
    Leave: 13,
}


def encode(motion: Motion) -> bytes:
    """A motion as bytes: its code and its fields, a record as those of its own."""
    data: bytes = msgpack.packb((_CODES[type(motion)], astuple(motion)))
    return data


def decode(data: bytes) -> Motion:
    """A motion from bytes; `WireError` for anything that is none."""
    try:
        values = unpack(data, use_list=False, strict_map_key=True)
    except Exception as error:
        raise WireError(f"not a motion: {str(error)[:100]}") from error
    match values:
        case (1, (int(call), int(size), bool(admit), int(wanted), tuple(excluded))) if _are_uids(excluded):
            return Ready(call, size, admit, wanted, excluded)
        case (2, (int(call), record)):
            return Draft(call, record_of(record))
        case (3, (int(call), (int(attempt), int(convener)), tuple(culprits), str(why))) if _are_uids(
            culprits
        ):
            return Dropped(call, (attempt, convener), culprits, why)
        case (4, (int(call), record)):
            return Decided(call, record_of(record))
        case (5, (int(call), str(why), bool(quorum))):
            return Void(call, why, quorum)
        case (6, (str(topic), (int(number), int(rank)))):
            return Prepare(topic, (number, rank))
        case (7, (str(topic), (int(number), int(rank)), None)):
            return Promise(topic, (number, rank), None)
        case (7, (str(topic), (int(number), int(rank)), ((int(their), int(who)), bytes(value)))):
            return Promise(topic, (number, rank), ((their, who), value))
        case (8, (str(topic), (int(number), int(rank)), bytes(value))):
            return Accept(topic, (number, rank), value)
        case (9, (str(topic), (int(number), int(rank)), bytes(value))):
            return Accepted(topic, (number, rank), value)
        case (10, (str(topic), (int(number), int(rank)))):
            return Outbid(topic, (number, rank))
        case (11, (str(topic),)):
            return Ask(topic)
        case (12, (str(topic), (None | bytes()) as answer)):
            return Answer(topic, answer)
        case (13, ()):
            return Leave()
    raise WireError(f"not a motion: {short(values)[:100]}")


def _are_uids(values: tuple[Any, ...]) -> bool:
    return all(type(value) is bytes for value in values)
