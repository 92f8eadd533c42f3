"""The state machine of a store: requests in, effects out."""

from __future__ import annotations

from collections.abc import Callable

from aiodist.base.errors import WireError
from aiodist.rendezvous.events import Connected, Disconnected, Effect, Event, StoreRequest, Tick, Wake
from aiodist.rendezvous.machine.budget import DEFAULT_LIMIT, Budget
from aiodist.rendezvous.machine.changes import Call, Change, ChangeKind, Journal
from aiodist.rendezvous.machine.entries import Entries
from aiodist.rendezvous.machine.gathers import Gathers
from aiodist.rendezvous.machine.keys import Keys
from aiodist.rendezvous.machine.leases import Leases
from aiodist.rendezvous.machine.sessions import SESSION_GRACE, Sessions
from aiodist.rendezvous.machine.timers import Timers
from aiodist.rendezvous.machine.waits import KeyWaits
from aiodist.rendezvous.machine.watches import Watches
from aiodist.rendezvous.methods import METHODS, check_args
from aiodist.rendezvous.rules import RefusedError

RETURN_GRACE = 2.0  # a living client's first attempts to come back take milliseconds
_TURN = 1000  # calls, leases and clients that end in one turn: what arrives meanwhile comes before the others
_KEYS = 100  # keys for which a call waited in vain, that count as one of them


_Waiting = KeyWaits | Watches | Gathers  # tables of calls that wait


class StoreMachine:
    """All state of one store. Feed it events in the order in which they happen.

    Its parts are objects of their own, which this one makes and nobody else changes: a method of the store
    is carried out by the part that the table `METHODS` names, by the part's method of the same name; those
    about a client as a whole by this object. A change is repeated by `replay_` and its kind's name.

    Args:
        limit: bytes that clients can make it keep; what would grow it beyond is refused.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._effects: list[Effect] = []
        self._wake: float | None = None
        entries: Entries = {}
        self.budget = Budget(limit)
        self.journal = Journal()
        self.timers = Timers()
        self.sessions = Sessions(self.budget, self.journal, self.timers, self._effects)
        self.leases = Leases(self.budget, self.journal, self.timers, self.sessions)
        self.waits = KeyWaits(self.budget, self.timers, self.sessions, entries)
        self.watches = Watches(self.budget, self._effects, entries)
        self.gathers = Gathers(self.budget, self.timers, self.sessions)
        self.keys = Keys(
            entries, self.budget, self.journal, self.sessions, self.leases, self.waits, self.watches
        )
        self._waiting: tuple[_Waiting, ...] = (self.waits, self.watches, self.gathers)
        self._do: dict[str, Callable[..., None]] = {
            name: getattr(getattr(self, method.part) if method.part else self, name)
            for name, method in METHODS.items()
        }
        parts = (self.keys, self.leases, self.sessions, self)
        self._repeat: dict[ChangeKind, Callable[..., None]] = {
            kind: getattr(part, f"replay_{kind.name}")
            for kind in ChangeKind
            for part in parts
            if hasattr(part, f"replay_{kind.name}")
        }

    def due(self, now: float) -> bool:
        """Whether a `Tick` at this time would end anything."""
        return self.timers.due(now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event in; what is to be done about it, in order."""
        if isinstance(event, StoreRequest):
            self._request(event, now)
        elif isinstance(event, Tick):
            self._expire(now)
            self._wake = None
        elif isinstance(event, Connected):
            session = self.sessions.begin(event.client)
            session.connected = True
            session.connections += 1
            session.ends = None
            self.leases.restore(event.client)
        else:
            self._disconnected(event, now)
        first = self.timers.first
        if first is not None and first != self._wake:
            self._wake = first
            self._effects.append(Wake(first))
        effects = self._effects[:]
        self._effects.clear()
        return effects

    # Requests.

    def _request(self, request: StoreRequest, now: float) -> None:
        client, id, name = request.client, request.id, request.method
        session = self.sessions.by_client.get(client) or self.sessions.begin(client)
        if answered := session.answered:
            if request.settled:
                self.sessions.forget_answers(client, request.settled)
            if (answer := answered.get(id)) is not None:
                self.sessions.answer_again(answer)
                return
        call = (client, id)
        if call in self.gathers.calls:
            return  # sent again over a new connection; it still stands where it stood
        try:
            method = check_args(name, request.args)
            session.check(keeps=bool(method.part))
            self._do[name](call, now, *request.args)
        except RefusedError as refused:
            self.sessions.refuse(call, refused)

    def resume(self, call: Call, now: float, pending: list[int], acknowledged: int) -> None:
        """Take a client back, which says what it still wants, and the last change that it knows confirmed."""
        client = call[0]
        self.sessions.resume(client, pending, acknowledged)
        wanted = set(pending)
        for standing in [c for c in self.gathers.calls if c[0] == client and c[1] not in wanted]:
            self.gathers.forget(standing)
        self.sessions.reply(call)

    def goodbye(self, call: Call, now: float) -> None:
        """End a client's session at its own wish."""
        self.sessions.reply(call)
        self._end_session(call[0], may_return=False)

    def cancel(self, call: Call, now: float, id: int) -> None:
        """Withdraw a request whose answer nobody wants any more."""
        for table in self._waiting:
            table.forget((call[0], id))
        if id in self.sessions.by_client[call[0]].answered:
            self.sessions.forget_answers(call[0], [id])
        self.sessions.reply(call)

    def ping(self, call: Call, now: float) -> None:
        """Answer."""
        self.sessions.reply(call)

    # Clients.

    def _disconnected(self, event: Disconnected, now: float) -> None:
        client = event.client
        session = self.sessions.by_client.get(client)
        if session is None:
            return
        session.connected = False
        self._forget_calls(client, self.waits, self.watches)
        gathers = any(call[0] == client for call in self.gathers.calls)
        if session.last or session.answered or self.leases.is_holder(client) or gathers:
            self.sessions.give_up_at(now + SESSION_GRACE, client)
            self.leases.cut(client, now + RETURN_GRACE)
        else:  # it may begin anew: nothing that it asked has changed anything
            self.sessions.drop(client)

    def _forget_calls(self, client: bytes, *tables: _Waiting) -> None:
        for table in tables:
            for call in [call for call in table.calls if call[0] == client]:
                table.forget(call)

    def _end_session(self, client: bytes, *, may_return: bool) -> None:
        self._forget_calls(client, *self._waiting)
        session = self.sessions.drop(client)
        may_return = may_return and bool(session.answered)
        if may_return:
            self.sessions.remember_ended(client)
        if session.last or session.answered or self.leases.is_holder(client):
            self.journal.note(ChangeKind.ended, client, may_return)
        self.leases.disown(client)

    # Time.

    def _expire(self, now: float) -> None:
        """End what is due, or the first of it where it is much: then the next `Wake` is for at once."""
        ended = 0
        while ended < _TURN and (due := self.timers.pop(now)) is not None:
            ended += 1
            table, subject = due
            if table is self.leases:
                self.keys.end_lease(self.leases.by_token[subject])
            elif table is self.sessions:
                # The store was started again, and nobody came back. Leases of many keys last for a ttl.
                for lease in self.leases.singles_of(subject):
                    self.keys.end_lease(lease)
                self._end_session(subject, may_return=True)
            elif table is self.waits:
                ended += self.waits.time_out(subject) // _KEYS
            else:
                self.gathers.time_out(subject)

    # Durability.

    @property
    def changed(self) -> bool:
        """Whether there are changes that must last before any answer is shown to anybody."""
        return self.journal.changed

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call, in order. Tuples of what msgpack takes."""
        return self.journal.take()

    def dump(self) -> list[Change]:
        """Changes that make this very store, made quickly: values are shared, and none is copied."""
        return [*self.sessions.dump(), *self.leases.dump(), *self.keys.dump()]

    def replay(self, change: Change) -> None:
        """Make a change of another machine happen here; `WireError` if it is none, or does not fit."""
        try:
            self._repeat[ChangeKind(change[0])](*change[1:])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise WireError(f"a change that cannot be repeated ({type(error).__name__})") from None
        self._effects.clear()

    def replay_ended(self, client: bytes, may_return: bool) -> None:
        """Repeat the end of a session."""
        if client in self.sessions.by_client:
            self._end_session(client, may_return=False)
        if may_return:
            self.sessions.remember_ended(client)

    def restarted(self, now: float) -> None:
        """Begin time, after all changes were replayed. Leases last for their ttl, clients may come back.

        From here on changes are noted.
        """
        self.journal.begin()
        self.leases.restarted(now)
        self.sessions.restarted(now)
