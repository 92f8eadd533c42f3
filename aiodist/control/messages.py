"""What is said on control links, and its msgpack coding. Pure.

Messages are small (64 KiB at most) and flat: a kind, a route, and plain numbers and strings. Anything
else is a `WireError`, raised before it can do harm.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import msgpack

from aiodist.errors import WireError

MAX_BYTES = 64 * 1024
EVERYBODY = -1


class Say(enum.IntEnum):
    """The kinds of message. Codes are part of the protocol: append, never renumber."""

    lost = 1  # flood: a rank is gone · (rank, cause)
    broken = 2  # flood: a group is broken · (context, code, arguments…)
    stalled = 3  # to the leader: my operation makes no progress · (context, seq)
    where = 4  # leader to members: what did you issue under this number? · (context, seq)
    here = 5  # member to leader: this · (context, seq, arrived, signature, words)
    missing = 6  # leader to members: these have not arrived · (context, seq, ranks)
    left = 7  # flood: a member closed its group, having issued so many collectives · (context, rank, issued)


# The types of each body's values; a `broken` goes on as its code demands.
_BODIES: dict[Say, tuple[type, ...]] = {
    Say.lost: (int, str),
    Say.broken: (int, str),
    Say.stalled: (int, int),
    Say.where: (int, int),
    Say.here: (int, int, bool, bytes, str),
    Say.missing: (int, int, tuple),
    Say.left: (int, int, int),
}


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
        say, origin, number, target, hops, body = msgpack.unpackb(data, use_list=False, strict_map_key=True)
        kind = Say(say)
        if not all(type(x) is int for x in (origin, number, target, hops)) or type(body) is not tuple:
            raise ValueError("fields of the wrong type")
        shown = body[:2] if kind is Say.broken else body
        if tuple(map(type, shown)) != _BODIES[kind]:
            raise ValueError(f"{kind.name} with other values than it has")
    except Exception as error:
        raise WireError(f"not a control message: {str(error)[:200]}") from error
    return Message(kind, origin, number, target, hops, body)
