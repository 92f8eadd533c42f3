"""Events of a store and the effects that it asks for: input and output of `StoreMachine`.

Nobody changes one once it is made. They are not declared frozen, because making a frozen one takes 1 µs
instead of 0.3, of 6 that a request takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_MISSING = 256
"""Ranks that a failure names, at most: each of 65,536 processes hears of it."""

# Events.


@dataclass(slots=True)
class Connected:
    """A client has proven itself; `client` is the id that it chose for all its connections."""

    client: bytes


@dataclass(slots=True)
class StoreRequest:
    """A client asks for something.

    Args:
        client: its id.
        id: counts up from 1 in a client.
        method: the name of a store operation.
        args: its arguments: None, bool, int, float, str, bytes and lists of these.
        settled: ids whose answers the client has; never sent again.
    """

    client: bytes
    id: int
    method: str
    args: list[Any]
    settled: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Disconnected:
    """A client's connection ended; it may come back."""

    client: bytes


@dataclass(slots=True)
class Tick:
    """The time that the last `Wake` asked for has come."""


Event = Connected | StoreRequest | Disconnected | Tick

# Effects.


@dataclass(slots=True)
class StoreReply:
    """Answer a request. `value` is shared between receivers: encode it once, never change it."""

    client: bytes
    id: int
    value: Any


@dataclass(slots=True)
class Failure:
    """Answer a request with an error.

    Args:
        kind: 'usage', 'timeout', 'conflict' (others contradict this request), 'full' (the store is), 'lease'
            (it has ended), 'lost' (the session is) or 'older' (so is the store than what it confirmed).
        missing: for a gather's timeout, the ranks that had not come; for that of a call that waited for keys,
            the places of those that nobody set among its keys; at most `MAX_MISSING` of them.
    """

    client: bytes
    id: int
    kind: str
    message: str
    hint: str = ""
    missing: Sequence[int] = ()


@dataclass(slots=True)
class Push:
    """News for a watch: a list of [key, value or None where it was deleted, revision].

    A watch begins with all that exists; where it comes in pieces, all but the last of these end in None.
    """

    client: bytes
    id: int
    value: list[Any]


@dataclass(slots=True)
class Wake:
    """Send a `Tick` at this time; replaces the wish before it."""

    at: float


Effect = StoreReply | Failure | Push | Wake
