"""Leases: who holds them, and until when. Their keys are the matter of `keys`."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiodist.rendezvous.machine.budget import LEASE_COST, Budget
from aiodist.rendezvous.machine.changes import Call, Change, ChangeKind, Journal
from aiodist.rendezvous.machine.entries import LeaseEntry
from aiodist.rendezvous.machine.sessions import Sessions
from aiodist.rendezvous.machine.timers import Timers
from aiodist.rendezvous.rules import check_ttl, lease_ended


@dataclass(eq=False, slots=True)
class Leases:
    """The leases of a store: granted, renewed, forgotten.

    A lease of many keys has a token that clients know. One that is `single` belongs to one key (a claim, or
    a ttl of its own), and nobody else gets to it.
    """

    budget: Budget
    journal: Journal
    timers: Timers
    sessions: Sessions
    by_token: dict[int, LeaseEntry] = field(default_factory=dict)
    held: dict[bytes, dict[int, None]] = field(default_factory=dict)  # client → tokens

    def grant(self, client: bytes, now: float, ttl: float, *, single: bool) -> LeaseEntry:
        """Begin a lease of `ttl` seconds."""
        check_ttl(ttl)
        self.budget.make_room(LEASE_COST)
        lease = LeaseEntry(self.journal.next_revision(), float(ttl), client, now + ttl, single=single)
        self.by_token[lease.token] = lease
        self._hold(lease, client)
        self.journal.note(ChangeKind.lease, lease.token, lease.ttl, client, single)
        self.timers.set(lease.due, self, lease.token)
        return lease

    def of_many(self, token: int) -> LeaseEntry | None:
        """Return the lease of this token, if it stands and is not one key's own."""
        lease = self.by_token.get(token)
        return None if lease is None or lease.single else lease

    def standing(self, token: int) -> LeaseEntry:
        """Do as `of_many`; refuses a token whose lease has ended."""
        lease = self.of_many(token)
        if lease is None:
            raise lease_ended(token)
        return lease

    def leave(self, key: str, lease: LeaseEntry) -> None:
        """Take a key out of its lease; one that was this key's own is over."""
        lease.keys.pop(key, None)
        if lease.single:
            self.drop(lease)

    def drop(self, lease: LeaseEntry) -> bool:
        """Forget a lease without keys → whether it was still known (one key's own goes with the key)."""
        if self.by_token.pop(lease.token, None) is None:
            return False
        self.budget.size -= LEASE_COST
        self._let_go(lease)
        return True

    def is_due(self, token: int, at: float) -> bool:
        """Whether the lease ends at this time, as things are."""
        lease = self.by_token.get(token)
        return lease is not None and lease.due == at

    # Their holders.

    def is_holder(self, client: bytes) -> bool:
        """Whether the client holds any lease."""
        return client in self.held

    def singles_of(self, client: bytes) -> list[LeaseEntry]:
        """Return those leases of the client that are one key's own."""
        return [lease for token in self.held.get(client, ()) if (lease := self.by_token[token]).single]

    def cut(self, client: bytes, at: float) -> None:
        """Have the client's leases of one key end at `at`: it is away, and may come back before.

        One of many keys lasts for the ttl that its holder counts on (`LeaseEntry.held`): it may not know yet
        that it is away.
        """
        for lease in self.singles_of(client):
            self._cut(lease, at)

    def restore(self, client: bytes) -> None:
        """Take back `cut`: the client is here again."""
        for lease in self.singles_of(client):
            if lease.cut is not None:
                self._cut(lease, None)

    def _cut(self, lease: LeaseEntry, at: float | None) -> None:
        lease.cut = at
        self.timers.set(lease.due, self, lease.token)

    def disown(self, client: bytes) -> None:
        """Forget who held the client's leases: its session is over. They end by their ttl."""
        self.held.pop(client, None)

    def _hold(self, lease: LeaseEntry, client: bytes) -> None:
        self._let_go(lease)
        lease.owner = client
        self.held.setdefault(client, {})[lease.token] = None

    def _let_go(self, lease: LeaseEntry) -> None:
        held = self.held.get(lease.owner, {})
        held.pop(lease.token, None)
        if not held:
            self.held.pop(lease.owner, None)

    # Requests.

    def lease_grant(self, call: Call, now: float, ttl: float) -> None:
        """Grant a lease of many keys → its token."""
        self.sessions.done(call, self.grant(call[0], now, ttl, single=False).token)

    def lease_renew(self, call: Call, now: float, token: int) -> None:
        """Let a lease run anew → whether it still stands. It is whose who renews it."""
        lease = self.of_many(token)
        if lease is not None:
            if token not in self.held.get(call[0], ()):
                self._hold(lease, call[0])
                self.journal.note(ChangeKind.lease, token, lease.ttl, lease.owner, False)
            lease.expires = now + lease.ttl
            self._cut(lease, None)
        self.sessions.reply(call, lease is not None)

    # Durability.

    def dump(self) -> list[Change]:
        """Changes that make these leases. The holder of one may have said goodbye, or was given up."""
        changes: list[Change] = []
        for lease in self.by_token.values():
            owner = lease.owner if lease.token in self.held.get(lease.owner, ()) else b""
            changes.append((ChangeKind.lease, lease.token, lease.ttl, owner, lease.single))
        return changes

    def replay_lease(self, token: int, ttl: float, owner: bytes, single: bool) -> None:
        """Repeat a change."""
        lease = self.by_token.get(token)
        if lease is None:
            self.budget.size += LEASE_COST
            self.journal.revision = max(self.journal.revision, token)
            lease = self.by_token[token] = LeaseEntry(token, float(ttl), owner, 0.0, single=single)
        if owner:
            self.sessions.begin(owner)
            self._hold(lease, owner)

    def replay_lease_end(self, token: int) -> None:
        """Repeat a change."""
        self.drop(self.by_token[token])

    def restarted(self, now: float) -> None:
        """Begin time: all leases run anew."""
        for lease in self.by_token.values():
            lease.expires = now + lease.ttl
            self.timers.set(lease.due, self, lease.token)
