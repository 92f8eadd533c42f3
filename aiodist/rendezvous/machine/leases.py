"""Leases: keys that end with whoever holds them."""

from __future__ import annotations

from aiodist.rendezvous.machine.keys import Keys
from aiodist.rendezvous.machine.tables import LEASE_COST, Call, Kind, Lease, Session
from aiodist.rendezvous.schema import RefusedError

_AS_LONG_AS_IT_LIVES = 1e9  # seconds; it ends with the connection, or with the session


class Leases(Keys):
    """Adds leases of many keys (granted, renewed, ended), and `set` with a ttl: a lease of one key."""

    def _grant(self, call: Call, now: float, ttl: float, *, single: bool) -> Lease:
        if not ttl > 0:
            raise RefusedError(f"ttl must be a positive number of seconds, got {ttl!r}")
        self._make_room(LEASE_COST)
        self._revision += 1
        lease = Lease(self._revision, float(ttl), call[0], now + ttl, single=single)
        self._note(Kind.lease, lease.token, lease.ttl, lease.owner, single)
        self._keep(lease)
        return lease

    def _keep(self, lease: Lease) -> None:
        self._leases[lease.token] = lease
        if (session := self._sessions.get(lease.owner)) is not None:
            session.leases[lease.token] = None
        self._set_timer(lease.due, "lease", lease.token)

    def _detach(self, key: str, lease: Lease) -> None:
        super()._detach(key, lease)
        if lease.single:
            self._drop(lease)

    def _do_set(self, call: Call, now: float, key: str, value: bytes, ttl: float | None) -> None:
        if ttl is None:
            self._put(key, value)
        else:
            self._put_single(call, now, key, value, ttl)
        self._done(call)

    def _put_single(
        self, call: Call, now: float, key: str, value: bytes, ttl: float, answer: int = 0
    ) -> None:
        """Put under a lease that is this key's own; `answer`: bytes of the answer."""
        lease = self._grant(call, now, ttl, single=True)
        try:
            self._put(key, value, lease, answer)
        except RefusedError:
            self._detach(key, lease)
            self._note(Kind.lease_end, lease.token)
            raise

    def _do_claim(self, call: Call, now: float, key: str, value: bytes) -> None:
        """Set a key for as long as this client lives, unless it holds something: what it holds then."""
        entry = self._data.get(key)
        if entry is not None and entry.value:
            self._make_room(0, len(entry.value))
            self._done(call, entry.value)
        else:
            self._put_single(call, now, key, value, _AS_LONG_AS_IT_LIVES, len(value))
            self._done(call, value)

    def _do_lease_grant(self, call: Call, now: float, ttl: float) -> None:
        self._done(call, self._grant(call, now, ttl, single=False).token)

    def _do_lease_renew(self, call: Call, now: float, token: int) -> None:
        lease = self._leases.get(token)
        if lease is None or lease.single:
            self._reply(call, False)
            return
        session = self._sessions.get(call[0])
        if session is not None and token not in session.leases:
            self._hold(lease, call[0])
            self._note(Kind.lease, token, lease.ttl, lease.owner, False)
        lease.cut = None
        lease.expires = now + lease.ttl
        self._keep(lease)
        self._reply(call, True)

    def _hold(self, lease: Lease, owner: bytes) -> None:
        """It is another's from now on: whoever renews it."""
        if (before := self._sessions.get(lease.owner)) is not None:
            before.leases.pop(lease.token, None)
        lease.owner = owner

    def _do_lease_set(self, call: Call, now: float, token: int, key: str, value: bytes) -> None:
        self._put(key, value, self._standing(token))
        self._done(call)

    def _do_lease_claim(self, call: Call, now: float, token: int, key: str, value: bytes) -> None:
        """Set, unless the key is there: what it holds then."""
        lease = self._standing(token)
        entry = self._data.get(key)
        if entry is None:
            self._put(key, value, lease, len(value))
        else:
            self._make_room(0, len(entry.value))
        self._done(call, value if entry is None else entry.value)

    def _standing(self, token: int) -> Lease:
        lease = self._leases.get(token)
        if lease is None or lease.single:
            raise RefusedError(f"lease {token} has ended", "Its keys are gone; begin a new one", "lease")
        return lease

    def _do_lease_end(self, call: Call, now: float, token: int) -> None:
        lease = self._leases.get(token)
        ends = lease is not None and not lease.single
        if ends:
            self._end_lease(token)
        else:
            self._make_room(0)
        self._done(call, ends)

    def _end_lease(self, token: int) -> None:
        """Its time is up, or its holder let go of it: its keys go, and watches are told."""
        lease = self._leases[token]
        for key in list(lease.keys):
            self._remove(key)
        if self._drop(lease):
            self._note(Kind.lease_end, token)

    def _drop(self, lease: Lease) -> bool:
        """Forget a lease without keys → whether it was still known (one key's own goes with the key)."""
        if self._leases.pop(lease.token, None) is None:
            return False
        self.size -= LEASE_COST
        if (session := self._sessions.get(lease.owner)) is not None:
            session.leases.pop(lease.token, None)
        return True

    def _cut_leases(self, session: Session, at: float) -> None:
        """Their holder is away: those of one key end at `at`, unless it comes back.

        One of many keys lasts for the ttl that its holder counts on (`Lease.held`): it may not know yet that
        it is away.
        """
        for lease in [self._leases[token] for token in session.leases]:
            if lease.single:
                lease.cut = at
                self._set_timer(lease.due, "lease", lease.token)

    def _restore_leases(self, session: Session) -> None:
        for token in session.leases:
            lease = self._leases[token]
            if lease.cut is not None:
                lease.cut = None
                self._set_timer(lease.due, "lease", token)
