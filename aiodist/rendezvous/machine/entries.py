"""A key's entry, and the lease that it may hang on."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class LeaseEntry:
    """Keys that go together when their holder does not renew it."""

    token: int  # the revision at which it was granted
    ttl: float
    owner: bytes
    expires: float
    cut: float | None = None  # when it ends instead, should its holder not come back
    single: bool = False  # it is one key's own, and ends without it
    keys: dict[str, None] = field(default_factory=dict)

    @property
    def due(self) -> float:
        """The time at which it ends, as things are."""
        return self.expires if self.cut is None else min(self.cut, self.expires)


@dataclass(slots=True)
class KeyEntry:
    """A key's value. Never changed, only replaced: a snapshot is written while the store goes on."""

    value: bytes
    revision: int
    lease: LeaseEntry | None = None


Entries = dict[str, KeyEntry]
