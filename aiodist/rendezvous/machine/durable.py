"""Changes out of a store, and a store out of changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiodist.errors import WireError
from aiodist.rendezvous.events import MAX_MISSING
from aiodist.rendezvous.machine.sessions import Sessions
from aiodist.rendezvous.machine.tables import (
    LEASE_COST,
    SESSION_GRACE,
    Change,
    Entry,
    KeptFailure,
    Kind,
    Lease,
    Session,
    unpack_ranks,
)

_LAZY = frozenset((Kind.settled,))  # lost, it costs memory until the client asks again, and nothing else


class StoreMachine(Sessions):
    """All state of one store. Feed it events in the order in which they happen."""

    @property
    def changed(self) -> bool:
        """Whether there are changes that must last before any answer is shown to anybody."""
        return bool(self._log) and any(change[0] not in _LAZY for change in self._log or ())

    def take_changes(self) -> list[Change]:
        """What changed since the last call, in order. Tuples of what msgpack takes."""
        changes = self._log or []
        if self._log is not None:
            self._log = []
        return changes

    def dump(self) -> list[Change]:
        """Changes that make this very store, made quickly: values are shared, and none is copied."""
        changes: list[Change] = [(Kind.ended, client, True) for client in self._ended]
        for lease in self._leases.values():
            holder = self._sessions.get(lease.owner)  # may have said goodbye, or was given up
            owner = lease.owner if holder is not None and lease.token in holder.leases else b""
            changes.append((Kind.lease, lease.token, lease.ttl, owner, lease.single))
        changes += [
            (Kind.put, key, entry.value, entry.revision, 0 if entry.lease is None else entry.lease.token)
            for key, entry in self._data.items()
        ]
        gathered: dict[int, tuple[list[bytes], list[Any]]] = {}
        for client, session in self._sessions.items():
            if not session.last and not session.answered:
                continue  # nothing that it asked can be lost
            changes.append((Kind.session, client, session.last))
            for number, answer in session.answered.items():
                if isinstance(answer, KeptFailure):
                    missing = unpack_ranks(answer.missing)
                    failed = (answer.kind, answer.message, answer.hint, missing)
                    changes.append((Kind.failed, client, number, *failed))
                elif isinstance(answer.value, list):
                    gathered.setdefault(id(answer.value), (answer.value, []))[1].append([client, number])
                else:
                    changes.append((Kind.answer, client, number, answer.value))
        changes += [(Kind.gathered, cards, calls) for cards, calls in gathered.values()]
        if self._forgot:
            changes.append((Kind.forgot,))
        changes.append((Kind.revision, self._revision))
        return changes

    def replay(self, change: Change) -> None:
        """Make a change of another machine happen here; `WireError` if it is none, or does not fit."""
        try:
            _REPLAY[Kind(change[0])](self, *change[1:])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise WireError(f"a change that cannot be repeated ({type(error).__name__})") from None

    def restarted(self, now: float) -> None:
        """All changes were replayed: time begins. Leases last for their ttl, clients may come back.

        From here on changes are noted.
        """
        self._log = []
        for lease in self._leases.values():
            lease.expires = now + lease.ttl
            self._set_timer(lease.due, "lease", lease.token)
        for client, session in self._sessions.items():
            session.connections = 1
            self._give_up_at(now + SESSION_GRACE, client, session)

    # What each kind of change does.

    def _replay_put(self, key: str, value: bytes, revision: int, token: int) -> None:
        lease = self._leases[token] if token else None
        old = self._data.get(key)
        self.size += self._growth(key, value, old)
        self._place(key, value, lease, old)
        self._data[key].revision = self._revision = revision

    def _replay_value(self, key: str, value: bytes, revision: int) -> None:
        entry = self._data[key]
        self.size += len(value) - len(entry.value)
        self._data[key] = Entry(value, revision, entry.lease)
        self._revision = revision

    def _replay_append(self, key: str, suffix: bytes, revision: int) -> None:
        self._replay_value(key, self._data[key].value + suffix, revision)

    def _replay_remove(self, key: str, revision: int) -> None:
        if not self._remove(key):
            raise KeyError(key)
        self._revision = revision

    def _replay_session(self, client: bytes, last: int) -> None:
        self._past_session(client).last = last

    def _past_session(self, client: bytes) -> Session:
        return self._sessions.get(client) or self._begin_session(client)

    def _replay_answer(self, client: bytes, id: int, value: Any) -> None:
        self._past_session(client)
        self._done((client, id), value)
        self._effects.clear()

    def _replay_failed(
        self, client: bytes, id: int, kind: str, message: str, hint: str, missing: list[int]
    ) -> None:
        self._past_session(client)
        self._fail((client, id), kind, message, hint, tuple(missing[:MAX_MISSING]))
        self._effects.clear()

    def _replay_gathered(self, cards: list[bytes], calls: list[list[Any]]) -> None:
        cost = sum(map(len, cards)) // len(calls)
        for client, id in calls:
            self._past_session(client)
            self._keep_gathered((client, id), cards, cost)

    def _replay_settled(self, client: bytes, ids: list[int]) -> None:
        if (session := self._sessions.get(client)) is not None:
            self._settle(session, ids)

    def _replay_resumed(self, client: bytes, pending: list[int]) -> None:
        if (session := self._sessions.get(client)) is not None:
            wanted = set(pending)
            self._settle(session, [id for id in session.answered if id not in wanted])

    def _replay_ended(self, client: bytes, may_return: bool) -> None:
        if client in self._sessions:
            self._end_session(client, may_return=False)
        if may_return:
            self._remember_ended(client)

    def _replay_lease(self, token: int, ttl: float, owner: bytes, single: bool) -> None:
        lease = self._leases.get(token)
        if lease is None:
            self.size += LEASE_COST
            self._revision = max(self._revision, token)
            self._leases[token] = Lease(token, float(ttl), owner, 0.0, single=single)
        else:
            self._hold(lease, owner)
        if owner:
            self._past_session(owner).leases[token] = None

    def _replay_lease_end(self, token: int) -> None:
        self._drop(self._leases[token])

    def _replay_revision(self, revision: int) -> None:
        self._revision = revision

    def _replay_forgot(self) -> None:
        self._forgot = True


_REPLAY: dict[Kind, Callable[..., None]] = {
    kind: getattr(StoreMachine, f"_replay_{kind.name}") for kind in Kind
}
