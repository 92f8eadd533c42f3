"""Errors that end a group, as they are told: typed errors to flat values and back. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

from aiodist.base.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupBroken,
    PeerLost,
    Tampered,
    WireError,
)
from aiodist.base.sanitize import one_line

_TEXT = 400  # bytes of any one statement: the whole message has to fit a control frame
_SAID = 100  # members whose statements are passed on


def pack(error: GroupBroken) -> tuple[Any, ...]:
    """An error as a code and plain values."""
    match error:
        case PeerLost():
            return ("lost", error.ranks, _cut(error.cause))
        case CollectiveMismatch():
            return ("mismatch", tuple((rank, _cut(error.statement(rank))) for rank in _telling(error.said)))
        case CollectiveTimeout():
            return ("timeout", error.timeout, error.missing, error.unheard, _cut(error.trouble))
        case Tampered():
            return ("tampered", _cut(error.message))
        case GroupAborted():
            return ("aborted", error.rank, _cut(error.reason))
        case _:
            return ("broken", _cut(f"{error.message}. {error.hint}" if error.hint else error.message))


def unpack(code: str, values: tuple[Any, ...]) -> GroupBroken:
    """The error that a peer packed, its text as one line; `WireError` if it is none."""
    match code, values:
        case "lost", (tuple(ranks), str(cause)) if ranks and _are_ranks(ranks):
            left = departure(list(ranks))
            return left if cause == left.cause else PeerLost(ranks, one_line(cause))
        case "mismatch", (tuple(said),) if said and all(_is_statement(item) for item in said):
            return CollectiveMismatch({rank: one_line(text) for rank, text in said})
        case "timeout", (int(timeout) | float(timeout), tuple(missing), tuple(unheard), str(trouble)) if (
            _are_ranks(missing + unheard)
        ):
            return CollectiveTimeout(timeout, missing, unheard, one_line(trouble))
        case "aborted", (int(rank), str(reason)):
            return GroupAborted(rank, one_line(reason))
        case "tampered", (str(message),):
            return Tampered(one_line(message))
        case "broken", (str(message),):
            return GroupBroken(one_line(message))
    raise WireError(f"not a verdict: {short(code)[:100]} {short(values)[:100]}")


def departure(ranks: list[int]) -> PeerLost:
    """The error for members that have closed a group in which others have issued more operations."""
    they, them, leave = ("it", "it", "that rank leaves")
    if len(ranks) > 1:
        they, them, leave = ("they", "them", "those ranks leave")
    return PeerLost(
        ranks,
        f"{they} closed the group while others still needed {them}",
        hint=f"Every rank has to issue the same operations: see where {leave} the group, and await all "
        "operations before that",
    )


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:_TEXT].decode(errors="ignore")


def _telling(said: Mapping[int, str]) -> list[int]:
    """The ranks whose statements are worth passing on: some of each that differs, so that the odd rank is not
    cut off."""
    like_it: Counter[str] = Counter()
    order = []
    for rank in sorted(said):
        order.append((like_it[said[rank]], rank))
        like_it[said[rank]] += 1
    return [rank for _, rank in sorted(order)[:_SAID]]


def _are_ranks(values: tuple[Any, ...]) -> bool:
    return all(type(value) is int for value in values)


def _is_statement(value: Any) -> bool:
    return type(value) is tuple and tuple(map(type, value)) == (int, str)
