"""A member's finding on how an agreement ended, as the arbiter keeps it. Pure, with its msgpack coding."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from reprlib import repr as short

import msgpack

from aiodist.base.errors import WireError
from aiodist.group.membership.record import unpacked


@dataclass(frozen=True, slots=True)
class Finding:
    """How an agreement ended, as far as one member could find out.

    Args:
        value: the answer.
        by: the rank that found it.
        without: members that `by` could not ask, so that one of them may have another answer; empty where
            no member can have another one.
    """

    value: bytes
    by: int
    without: tuple[int, ...]

    def encode(self) -> bytes:
        """The finding as bytes."""
        data: bytes = msgpack.packb(astuple(self))
        return data


def decode_finding(data: bytes) -> Finding:
    """A finding from bytes; `WireError` for anything that is none."""
    values = unpacked(data, "a finding")
    match values:
        case (bytes(value), int(by), tuple(without)) if all(type(rank) is int for rank in without):
            return Finding(value, by, without)
    raise WireError(f"not a finding: {short(values)[:100]}")
