"""Messages on control links, and their msgpack coding. Pure.

Messages are small (64 KiB at most) and flat: a kind, a route, and plain numbers and strings. Anything
else is a `WireError`, raised before it can do harm.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import msgpack

from aiodist.base.errors import WireError
from aiodist.base.sanitize import one_line
from aiodist.group.control.liveness import LoopState
from aiodist.net.wire.bounded import unpack

MAX_BYTES = 64 * 1024
EVERYBODY = -1

PING = b"\xc0"
"""A sign that the sender's event loop turns: from neighbour to neighbour, and no `Message`. Times may follow
(`control.clocks`), and no more."""


class Say(enum.IntEnum):
    """The kinds of message. Codes are part of the protocol: append, never renumber."""

    lost = 1  # flood: a rank is gone · (rank, cause, ms between its last sign of life and that, or -1)
    broken = 2  # flood: a group is broken · (context, code, arguments…)
    stalled = 3  # to the leader: my operation makes no progress · (context, seq)
    where = 4  # leader to members: what did you issue under this number? · (context, seq)
    here = 5  # member to leader: this · (context, seq, arrived, signature, words)
    missing = 6  # leader to members: these have not arrived, or not answered · (context, seq, ranks, ranks)
    left = 7  # flood: a member closed its group, having issued so many collectives, and sent so many messages
    # to each member · (context, rank, issued, `Carriers.sent`; that is long in large groups: to each its own)
    membership = 8  # flood, or to one: members of an epoch on the next · (context, bytes)
    blocked = 9  # flood: a loop does not turn, or turns again · (rank, `liveness.State`, ms, where)


# The types of each body's values; a `broken` goes on as its code demands.
_BODIES: dict[Say, tuple[type, ...]] = {
    Say.lost: (int, str, int),
    Say.broken: (int, str),
    Say.stalled: (int, int),
    Say.where: (int, int),
    Say.here: (int, int, bool, bytes, str),
    Say.missing: (int, int, tuple, tuple),
    Say.left: (int, int, int, tuple),
    Say.membership: (int, bytes),
    Say.blocked: (int, int, int, str),
}

_LOOSE = (Say.broken, Say.missing, Say.left)  # have values whose types are not checked here


@dataclass(frozen=True, slots=True)
class Message:
    """One message on its way.

    Args:
        say: its kind.
        origin: global rank that said it first.
        number: counts the origin's messages; (origin, number) names the message, for the flood.
        target: global rank that it is for, or EVERYBODY for a flood.
        hops: links it may still cross.
        body: plain values, by kind.
    """

    say: Say
    origin: int
    number: int
    target: int
    hops: int
    body: tuple[Any, ...]

    def encode(self) -> bytes:
        """The message as bytes."""
        data: bytes = msgpack.packb(
            (int(self.say), self.origin, self.number, self.target, self.hops, self.body), use_bin_type=True
        )
        if len(data) > MAX_BYTES:
            raise WireError(f"control message of {len(data)} bytes, {MAX_BYTES} are allowed")
        return data


def decode(data: bytes) -> Message:
    """A message from bytes; `WireError` for anything that is none."""
    if len(data) > MAX_BYTES:
        raise WireError(f"control message of {len(data)} bytes, {MAX_BYTES} are allowed")
    try:
        say, origin, number, target, hops, body = unpack(data, use_list=False, strict_map_key=True)
        kind = Say(say)
        if not all(type(x) is int for x in (origin, number, target, hops)) or type(body) is not tuple:
            raise ValueError("fields of the wrong type")
        shown = body[:2] if kind is Say.broken else body
        if tuple(map(type, shown)) != _BODIES[kind]:
            raise ValueError(f"{kind.name} with other values than it has")
        if kind is Say.blocked:
            LoopState(body[1])
        if kind is Say.left and not all(map(_is_counts, body[3])):
            raise ValueError("left with counts that are none")
        if kind in _LOOSE and not _is_plain(body, 2):
            raise ValueError(f"{kind.name} with values that are not plain")
        message = Message(kind, origin, number, target, hops, _cleaned(body))
        if kind in _LOOSE:
            message.encode()  # what has short floats may be read, and yet be too long to be passed on
    except Exception as error:
        raise WireError(f"not a control message: {one_line(str(error), 200)}") from error
    return message


def _cleaned(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values, in which each text of another rank is one printable line: logs and errors show it."""
    return tuple(map(_clean, values))


def _clean(value: Any) -> Any:
    if type(value) is tuple:
        return _cleaned(value)
    return one_line(value, MAX_BYTES) if type(value) is str else value


def _is_plain(values: tuple[Any, ...], depth: int) -> bool:
    """Whether these are numbers, text, or tuples of them: a nest of a thousand cannot even be printed."""
    return all(
        depth > 0 and _is_plain(value, depth - 1) if type(value) is tuple else type(value) in _PLAIN
        for value in values
    )


def _is_counts(values: Any) -> bool:
    """Whether these are pairs of numbers, none of them negative."""
    return (
        type(values) is tuple
        and len(values) % 2 == 0
        and all(type(value) is int and value >= 0 for value in values)
    )


_PLAIN = frozenset((int, float, str))
