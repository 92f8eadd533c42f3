"""An epoch on record: who is in it, in which order. Pure, with its msgpack coding."""

from __future__ import annotations

from dataclasses import dataclass
from reprlib import repr as short
from typing import Any

import msgpack

from aiodist.base.errors import WireError
from aiodist.net.wire.bounded import unpack

UID_BYTES = 8
MAX_MEMBERS = 1 << 16

Number = tuple[int, int]
"""The number of a draft: (attempt, rank of the convener). Later attempts are greater."""


@dataclass(frozen=True, slots=True)
class Record:
    """A draft of an epoch, or, once the arbiter has said so, the epoch.

    Args:
        epoch: its number; the first is 0.
        number: of the draft.
        members: their uids, by rank in this epoch.
        store: address of the store that it meets at, where a member hosts it; '' for the job's own.
        host: uid of the member that hosts it; b'' for none.
    """

    epoch: int
    number: Number
    members: tuple[bytes, ...]
    store: str = ""
    host: bytes = b""

    @property
    def name(self) -> str:
        """The name under which its members meet in the store."""
        return f"epoch/{self.epoch}/{self.number[0]}.{self.number[1]}"

    def rank_of(self, uid: bytes) -> int | None:
        """A member's rank; None for one who is not in it."""
        return self.members.index(uid) if uid in self.members else None

    def values(self) -> tuple[Any, ...]:
        """Plain values, for a message."""
        return (self.epoch, self.number, self.members, self.store, self.host)

    def encode(self) -> bytes:
        """The record as bytes."""
        data: bytes = msgpack.packb(self.values())
        return data


def record_of(values: Any) -> Record:
    """A record from plain values; `WireError` if they are none."""
    match values:
        case (int(epoch), (int(attempt), int(convener)), tuple(members), str(store), bytes(host)) if (
            epoch >= 0
            and 0 < len(members) <= MAX_MEMBERS
            and all(type(uid) is bytes and len(uid) == UID_BYTES for uid in members)
            and len(set(members)) == len(members)
        ):
            return Record(epoch, (attempt, convener), members, store, host)
    raise WireError(f"not an epoch's record: {short(values)[:100]}")


def decode_record(data: bytes) -> Record:
    """A record from bytes; `WireError` for anything that is none."""
    return record_of(unpacked(data, "an epoch's record"))


def unpacked(data: bytes, what: str) -> Any:
    """The values in a message, lists as tuples; `WireError`, which says that it is not `what`."""
    try:
        return unpack(data, use_list=False, strict_map_key=True)
    except Exception as error:
        raise WireError(f"not {what}: {str(error)[:100]}") from error
