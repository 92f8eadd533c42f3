"""How the end of a group is told: typed errors to flat values and back. Pure."""

from __future__ import annotations

from typing import Any

from aiodist.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupBroken,
    PeerLost,
    WireError,
)

_TEXT = 400  # characters of any one statement: the whole message has to fit a control frame


def pack(error: GroupBroken) -> tuple[Any, ...]:
    """An error as a code and plain values."""
    match error:
        case PeerLost():
            return ("lost", error.ranks, error.cause[:_TEXT])
        case CollectiveMismatch():
            return (
                "mismatch",
                tuple((rank, words[:_TEXT]) for rank, words in list(error.said.items())[:100]),
            )
        case CollectiveTimeout():
            return ("timeout", error.timeout, error.missing)
        case GroupAborted():
            return ("aborted", error.rank, error.reason[:_TEXT])
        case _:
            return ("broken", error.message[:_TEXT])


def unpack(code: str, values: tuple[Any, ...]) -> GroupBroken:
    """The error that a peer packed; `WireError` if it is none."""
    try:
        match code:
            case "lost":
                ranks, cause = values
                return PeerLost(ranks, cause)
            case "mismatch":
                return CollectiveMismatch(dict(values[0]))
            case "timeout":
                timeout, missing = values
                return CollectiveTimeout(timeout, missing)
            case "aborted":
                rank, reason = values
                return GroupAborted(rank, reason)
            case "broken":
                return GroupBroken(values[0])
    except (TypeError, ValueError, IndexError) as error:
        raise WireError(f"not a verdict: {code} {values!r:.100}") from error
    raise WireError(f"not a verdict: {code!r:.100}")
