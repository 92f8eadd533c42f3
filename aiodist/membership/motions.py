"""Messages of the members of one epoch about the next. Pure, with its msgpack coding.

Motions travel on the control links of the old epoch, as the bytes of one kind of control message. A
record of many members is cut: it has to fit a control message of 64 KiB, so an epoch that the old one's
members talk about has at most some 6,000.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from reprlib import repr as short
from typing import Any

import msgpack

from aiodist.errors import WireError
from aiodist.membership.record import Number, Record, record_of, unpacked

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


def _a(*kinds: type[Any]) -> Callable[[Any], Any]:
    """The check of a part that is a value of one of these types."""

    def check(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise WireError(f"a motion has a {type(value).__name__} in the wrong place")
        return value

    return check


def _pair(value: Any) -> Any:
    """The check of two numbers: of a ballot, or of a draft."""
    match value:
        case (int(), int()):
            return value
    raise WireError("a motion has no pair of numbers where one has to be")


def _uids(value: Any) -> Any:
    if type(value) is tuple and all(type(uid) is bytes for uid in value):
        return value
    raise WireError("a motion has no uids where they have to be")


def _vote(value: Any) -> Any:
    match value:
        case None | ((int(), int()), bytes()):
            return value
    raise WireError("a motion has no ballot and value where they have to be")


# What each kind's parts have to be, in the order of its attributes. A kind's place here, from 1, is its code
# on the wire.
_PARTS: dict[type[Any], tuple[Callable[[Any], Any], ...]] = {
    Ready: (_a(int), _a(int), _a(bool), _a(int), _uids),
    Draft: (_a(int), record_of),
    Dropped: (_a(int), _pair, _uids, _a(str)),
    Decided: (_a(int), record_of),
    Void: (_a(int), _a(str), _a(bool)),
    Prepare: (_a(str), _pair),
    Promise: (_a(str), _pair, _vote),
    Accept: (_a(str), _pair, _a(bytes)),
    Accepted: (_a(str), _pair, _a(bytes)),
    Outbid: (_a(str), _pair),
    Ask: (_a(str),),
    Answer: (_a(str), _a(bytes, type(None))),
    Leave: (),
}
_KINDS = dict(enumerate(_PARTS, 1))
_CODES = {kind: code for code, kind in _KINDS.items()}


def encode(motion: Motion) -> bytes:
    """A motion as bytes."""
    parts = (getattr(motion, field.name) for field in fields(motion))
    body = [part.values() if isinstance(part, Record) else part for part in parts]
    data: bytes = msgpack.packb((_CODES[type(motion)], body))
    return data


def decode(data: bytes) -> Motion:
    """A motion from bytes; `WireError` for anything that is none."""
    values = unpacked(data, "a motion")
    match values:
        case (int(code), tuple(body)) if code in _KINDS and len(body) == len(_PARTS[_KINDS[code]]):
            kind = _KINDS[code]
            motion: Motion = kind(*(check(part) for check, part in zip(_PARTS[kind], body, strict=True)))
            return motion
    raise WireError(f"not a motion: {short(values)[:100]}")
