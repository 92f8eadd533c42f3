"""Keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from aiodist.net.wire.messages import MAX_FRAME
from aiodist.rendezvous.machine.budget import ENTRY_COST, Budget, weight
from aiodist.rendezvous.machine.changes import Call, Change, ChangeKind, Journal
from aiodist.rendezvous.machine.entries import Entries, KeyEntry, LeaseEntry
from aiodist.rendezvous.machine.leases import Leases
from aiodist.rendezvous.machine.sessions import Sessions
from aiodist.rendezvous.machine.waits import KeyWaits
from aiodist.rendezvous.machine.watches import Watches
from aiodist.rendezvous.rules import RefusedError, added, check_name, check_pairs, compared

MAX_VALUE = MAX_FRAME - (16 << 10)  # what grows beyond could never be read
_AS_LONG_AS_IT_LIVES = 1e9  # seconds; it ends with the connection, or with the session


@dataclass(eq=False, slots=True)
class Keys:
    """The keys of a store. Every change is noted, and told to who watches and who waits.

    Nothing else changes `entries`.
    """

    entries: Entries
    budget: Budget
    journal: Journal
    sessions: Sessions
    leases: Leases
    waits: KeyWaits
    watches: Watches

    # Changes.

    def _put(
        self,
        key: str,
        value: bytes,
        lease: LeaseEntry | None = None,
        answer: int = 0,
        suffix: bytes | None = None,
    ) -> None:
        """Set a key.

        Args:
            lease: that it is under from now on.
            answer: bytes of the answer.
            suffix: what was appended, where that is all that is new: the log need not hold it all again.
        """
        old = self.entries.get(key)
        if old is None:
            check_name(key)
        self.budget.make_room(_growth(key, value, old), answer)
        self._place(key, value, lease, old, suffix)

    def _place(
        self,
        key: str,
        value: bytes,
        lease: LeaseEntry | None,
        old: KeyEntry | None,
        suffix: bytes | None = None,
    ) -> None:
        """Put, where there is room already; `old` is what the key holds."""
        if old is not None and old.lease is not None and old.lease is not lease:
            self.leases.leave(key, old.lease)
        revision = self.journal.next_revision()
        self.entries[key] = KeyEntry(value, revision, lease)
        if lease is not None:
            lease.keys[key] = None
        if self.journal.noting:
            if suffix is None:
                self.journal.note(ChangeKind.put, key, value, revision, 0 if lease is None else lease.token)
            else:
                self.journal.note(ChangeKind.append, key, suffix, revision)
        if self.watches.calls:
            self.watches.tell(key, value, revision)
        if key in self.waits.wanted:
            self.waits.arrived(key)

    def _remove(self, key: str) -> bool:
        entry = self.entries.pop(key, None)
        if entry is None:
            return False
        self.budget.size -= weight(key) + len(entry.value) + ENTRY_COST
        if entry.lease is not None:
            self.leases.leave(key, entry.lease)
        revision = self.journal.next_revision()
        self.journal.note(ChangeKind.remove, key, revision)
        self.watches.tell(key, None, revision)
        return True

    def end_lease(self, lease: LeaseEntry) -> None:
        """Remove the keys of a lease, and forget it: its time is up, or its holder let go of it."""
        for key in list(lease.keys):
            self._remove(key)
        if self.leases.drop(lease):
            self.journal.note(ChangeKind.lease_end, lease.token)

    # Requests.

    def set(self, call: Call, now: float, key: str, value: bytes, ttl: float | None) -> None:
        """Set a key, under a lease of its own where there is a ttl."""
        if ttl is None:
            self._put(key, value)
        else:
            self._put_single(call, now, key, value, ttl)
        self.sessions.done(call)

    def _put_single(
        self, call: Call, now: float, key: str, value: bytes, ttl: float, answer: int = 0
    ) -> None:
        """Put under a lease that is this key's own; `answer`: bytes of the answer."""
        lease = self.leases.grant(call[0], now, ttl, single=True)
        try:
            self._put(key, value, lease, answer)
        except RefusedError:
            self.leases.drop(lease)
            self.journal.note(ChangeKind.lease_end, lease.token)
            raise

    def multi_set(self, call: Call, now: float, keys: list[str], values: list[bytes]) -> None:
        """Set several keys, all or none."""
        check_pairs(keys, values)
        last = dict(zip(keys, values, strict=True))
        for key in last:
            check_name(key)
        self.budget.make_room(sum(_growth(key, value, self.entries.get(key)) for key, value in last.items()))
        for key, value in zip(keys, values, strict=True):
            self._place(key, value, None, self.entries.get(key))
        self.sessions.done(call)

    def add(self, call: Call, now: float, key: str, amount: int) -> None:
        """Add to a number → the sum."""
        entry = self.entries.get(key)
        total = added(key, None if entry is None else entry.value, amount)
        self._put(key, b"%d" % total, None if entry is None else entry.lease)
        self.sessions.done(call, total)

    def append(self, call: Call, now: float, key: str, value: bytes) -> None:
        """Append to what a key holds."""
        entry = self.entries.get(key)
        if entry is None:
            self._put(key, value)
        else:
            if len(entry.value) + len(value) > MAX_VALUE:
                raise RefusedError(
                    f"append makes '{key}' larger than {MAX_VALUE >> 20} MiB", "Begin another key"
                )
            self._put(key, entry.value + value, entry.lease, suffix=value)
        self.sessions.done(call)

    def compare_set(self, call: Call, now: float, key: str, expected: bytes, desired: bytes) -> None:
        """Set a key if it holds what is expected → what it holds then."""
        entry = self.entries.get(key)
        sets, answer = compared(None if entry is None else entry.value, expected, desired)
        if sets:
            self._put(key, desired, None if entry is None else entry.lease, len(desired))
            self.sessions.done(call, desired)
        else:
            self._done_without(call, answer)

    def claim(self, call: Call, now: float, key: str, value: bytes) -> None:
        """Set a key for as long as this client lives, unless it holds something → what it holds then."""
        entry = self.entries.get(key)
        if entry is not None and entry.value:
            self._done_without(call, entry.value)
        else:
            self._put_single(call, now, key, value, _AS_LONG_AS_IT_LIVES, len(value))
            self.sessions.done(call, value)

    def lease_set(self, call: Call, now: float, token: int, key: str, value: bytes) -> None:
        """Set a key under a lease of many."""
        self._put(key, value, self.leases.standing(token))
        self.sessions.done(call)

    def lease_claim(self, call: Call, now: float, token: int, key: str, value: bytes) -> None:
        """Set a key under a lease of many, unless it is there → what it holds then."""
        lease = self.leases.standing(token)
        entry = self.entries.get(key)
        if entry is None:
            self._put(key, value, lease, len(value))
            self.sessions.done(call, value)
        else:
            self._done_without(call, entry.value)

    def lease_end(self, call: Call, now: float, token: int) -> None:
        """End a lease of many → whether it stood."""
        lease = self.leases.of_many(token)
        if lease is None:
            self._done_without(call, False)
        else:
            self.end_lease(lease)
            self.sessions.done(call, True)

    def delete_key(self, call: Call, now: float, key: str) -> None:
        """Remove a key → whether it was there."""
        if self._remove(key):
            self.sessions.done(call, True)
        else:
            self._done_without(call, False)

    def fence(self, call: Call, now: float) -> None:
        """Count a change without a key → its revision: a number larger than all before."""
        self.budget.make_room(0)
        revision = self.journal.next_revision()
        self.journal.note(ChangeKind.revision, revision)
        self.sessions.done(call, revision)

    def _done_without(self, call: Call, value: bytes | bool) -> None:
        """Answer a call that might have changed something, and has not."""
        self.budget.make_room(0, len(value) if isinstance(value, bytes) else 0)
        self.sessions.done(call, value)

    def check(self, call: Call, now: float, keys: list[str]) -> None:
        """Answer whether all keys are there."""
        self.sessions.reply(call, all(key in self.entries for key in keys))

    def list_keys(self, call: Call, now: float, prefix: str) -> None:
        """Answer with the keys that begin with a prefix."""
        self.sessions.reply(call, sorted(key for key in self.entries if key.startswith(prefix)))

    def num_keys(self, call: Call, now: float, prefix: str) -> None:
        """Answer with their number."""
        self.sessions.reply(call, sum(key.startswith(prefix) for key in self.entries))

    # Durability.

    def dump(self) -> list[Change]:
        """Changes that make these keys, made quickly: values are shared, and none is copied."""
        puts: list[Change] = [
            (
                ChangeKind.put,
                key,
                entry.value,
                entry.revision,
                0 if entry.lease is None else entry.lease.token,
            )
            for key, entry in self.entries.items()
        ]
        return [*puts, (ChangeKind.revision, self.journal.revision)]

    def replay_put(self, key: str, value: bytes, revision: int, token: int) -> None:
        """Repeat a change; so do the others."""
        lease = self.leases.by_token[token] if token else None
        old = self.entries.get(key)
        self.budget.size += _growth(key, value, old)
        self._place(key, value, lease, old)
        self.entries[key].revision = self.journal.revision = revision

    def replay_value(self, key: str, value: bytes, revision: int) -> None:
        entry = self.entries[key]
        self.budget.size += len(value) - len(entry.value)
        self.entries[key] = KeyEntry(value, revision, entry.lease)
        self.journal.revision = revision

    def replay_append(self, key: str, suffix: bytes, revision: int) -> None:
        self.replay_value(key, self.entries[key].value + suffix, revision)

    def replay_remove(self, key: str, revision: int) -> None:
        if not self._remove(key):
            raise KeyError(key)
        self.journal.revision = revision

    def replay_revision(self, revision: int) -> None:
        self.journal.revision = revision


def _growth(key: str, value: bytes, old: KeyEntry | None) -> int:
    """Bytes more that a key takes with this value; `old` is what it holds."""
    return weight(key) + len(value) + ENTRY_COST if old is None else len(value) - len(old.value)
