"""Card of a store in every handshake: clients see whether it is still the one they knew."""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass

from aiodist.base.errors import WireError
from aiodist.rendezvous.meeting_place import NOWHERE, MeetingPlace

INSTANCE_BYTES = 16
_CARD = struct.Struct(f"<{INSTANCE_BYTES}sQB")


@dataclass(frozen=True)
class StoreCard:
    """Identity of a store.

    Args:
        instance: 16 bytes that name this very store; a durable one keeps them over restarts.
        generation: how many times it was started on its data, 0 where it has none.
        durable: it keeps its data, so it is worth while to wait for it.
        place: where its host was told to meet the others.
    """

    instance: bytes
    generation: int = 0
    durable: bool = False
    place: MeetingPlace = NOWHERE

    def encode(self) -> bytes:
        """The card's bytes, for a handshake."""
        where = self.place
        said = (where.configured, where.found, "apart" if where.apart else "")
        place = "\n".join(said) if where.configured else ""
        return _CARD.pack(self.instance, self.generation, self.durable) + place.encode()

    @staticmethod
    def decode(card: bytes) -> StoreCard:
        """Read one from the card of a handshake; `WireError` unless it is one."""
        try:
            instance, generation, durable = _CARD.unpack_from(card)
            configured, found, apart, *_ = [*card[_CARD.size :].decode().split("\n"), "", ""]
        except (struct.error, UnicodeDecodeError):
            raise WireError("the server is no store of this version of aiodist") from None
        return StoreCard(instance, generation, bool(durable), MeetingPlace(configured, found, bool(apart)))


def instance_of(key: bytes, job: str) -> bytes:
    """The name of a job's store. Without the key nobody can tell whether there is such a job."""
    return hmac.digest(key, job.encode(), "sha256")[:INSTANCE_BYTES]
