"""The changes of a store, as its log has them, and the revision that counts them."""

from __future__ import annotations

import enum
from typing import Any

Call = tuple[bytes, int]  # client and request id: names one call for good
Change = tuple[Any, ...]  # its kind, then what the kind says


class ChangeKind(enum.IntEnum):
    """Kinds of a change. The numbers are in every log: they never get another meaning."""

    put = 1  # key, value, revision, token of its lease or 0
    value = 2  # key, value, revision: under the lease that the key has; only read, of older logs
    append = 3  # key, suffix, revision: under the lease that the key has
    remove = 4  # key, revision
    answer = 5  # client, id, value: of a change; sent again if it is asked again
    failed = 6  # client, id, kind, message, hint, missing ranks: likewise
    gathered = 7  # values, [[client, id], …]: one answer to many
    settled = 8  # client, ids whose answers it has
    resumed = 9  # client, the ids whose answers it still wants
    ended = 10  # client, whether it might ask again: nothing of its session is left
    lease = 11  # token, ttl, client, whether it is one key's own; of a known one, whose it is now
    lease_end = 12  # token
    revision = 13  # revision: it was given away as a fencing token
    session = 14  # client, the highest id of a change: in snapshots
    forgot = 15  # sessions ended that nobody remembers: in snapshots


_LAZY = frozenset(
    (ChangeKind.settled,)
)  # lost, it costs memory until the client asks again, and nothing else


class Journal:
    """The revision of the last change, and all changes since somebody last took them.

    Nothing is noted before `begin`: a store that lives in memory never calls it, and replaying changes
    notes none.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.noting = False  # look here first where it is in every request's way
        self._changes: list[Change] = []

    def begin(self) -> None:
        """Note changes from now on."""
        self.noting = True

    def next_revision(self) -> int:
        """Count one more change."""
        self.revision += 1
        return self.revision

    def note(self, *change: Any) -> None:
        """Note a change, its kind first."""
        if self.noting:
            self._changes.append(change)

    @property
    def changed(self) -> bool:
        """Whether there are changes that must last before any answer is shown to anybody."""
        return any(change[0] not in _LAZY for change in self._changes)

    def take(self) -> list[Change]:
        """Return the changes since the last call, in order. Tuples of what msgpack takes."""
        changes, self._changes = self._changes, []
        return changes
