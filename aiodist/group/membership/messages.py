"""Messages of the members of one epoch about the next. Pure, with its msgpack coding.

Messages travel on the control links of the old epoch, as the bytes of one kind of control message. A
record of many members is cut: it has to fit a control message of 64 KiB, so an epoch that the old one's
members talk about has at most some 6,000.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from reprlib import repr as short
from typing import Any

import msgpack

from aiodist.base.errors import WireError
from aiodist.group.membership.record import Number, Record, record_of, unpacked

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
    """The answer to `Prepare`, told to everybody; `accepted` is (ballot, value), or None."""

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
"""The messages of `ballot`."""

MemberMessage = Ready | Draft | Dropped | Decided | Void | Election | Ask | Answer | Leave


def _is(*kinds: type[Any]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _is_pair(value: Any) -> bool:
    """Whether it is two numbers, as a ballot or the number of a draft is."""
    return type(value) is tuple and len(value) == 2 and all(isinstance(number, int) for number in value)


def _are_uids(value: Any) -> bool:
    return type(value) is tuple and all(type(uid) is bytes for uid in value)


def _is_vote(value: Any) -> bool:
    """Whether it is None, or a ballot and a value."""
    match value:
        case None | ((int(), int()), bytes()):
            return True
    return False


# What each kind's parts have to be, in the order of its attributes. A kind's place here, from 1, is its code
# on the wire.
_PARTS: dict[type[Any], tuple[Callable[[Any], bool], ...]] = {
    Ready: (_is(int), _is(int), _is(bool), _is(int), _are_uids),
    Draft: (_is(int), _is(Record)),
    Dropped: (_is(int), _is_pair, _are_uids, _is(str)),
    Decided: (_is(int), _is(Record)),
    Void: (_is(int), _is(str), _is(bool)),
    Prepare: (_is(str), _is_pair),
    Promise: (_is(str), _is_pair, _is_vote),
    Accept: (_is(str), _is_pair, _is(bytes)),
    Accepted: (_is(str), _is_pair, _is(bytes)),
    Outbid: (_is(str), _is_pair),
    Ask: (_is(str),),
    Answer: (_is(str), _is(bytes, type(None))),
    Leave: (),
}
_KINDS = dict(enumerate(_PARTS, 1))
_CODES = {kind: code for code, kind in _KINDS.items()}


def encode(message: MemberMessage) -> bytes:
    """A message as bytes: its code and its fields, a record as those of its own."""
    data: bytes = msgpack.packb((_CODES[type(message)], astuple(message)))
    return data


def decode(data: bytes) -> MemberMessage:
    """A message from bytes; `WireError` for anything that is none."""
    values = unpacked(data, "a message")
    match values:
        case (int(code), tuple(parts)) if code in _KINDS and len(parts) == len(_PARTS[_KINDS[code]]):
            kind = _KINDS[code]
            if kind in (Draft, Decided):
                parts = (parts[0], record_of(parts[1]))
            if all(fits(part) for fits, part in zip(_PARTS[kind], parts, strict=True)):
                message: MemberMessage = kind(*parts)
                return message
    raise WireError(f"not a message: {short(values)[:100]}")
