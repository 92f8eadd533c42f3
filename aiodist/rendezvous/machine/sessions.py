"""Clients that come and go, each request once, and the time that passes: what the machine is fed."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from aiodist.rendezvous.events import Connected, Disconnected, Effect, Event, Failure, Request, Tick, Wake
from aiodist.rendezvous.machine.gathering import Gathering
from aiodist.rendezvous.machine.tables import (
    DEFAULT_LIMIT,
    MAX_UNSETTLED,
    RETURN_GRACE,
    SESSION_GRACE,
    Call,
    Kind,
)
from aiodist.rendezvous.schema import METHODS, RefusedError, check_args

MAX_ENDED = 1 << 16  # sessions that ended with a client that may come back, and are remembered
_TURN = 1000  # calls, leases and clients that end in one turn: what arrives meanwhile comes before the others
_KEYS = 100  # keys for which a call waited in vain, that count as one of them
_HOUSEKEEPING = frozenset(("cancel", "resume", "goodbye", "ping"))
_NO_SUCH_CLIENT = (
    "the store does not know this client any more",
    "This process was cut off for over a minute; start the job again",
)
_OLDER = (
    "the store has gone back: it does not know what it has confirmed to this client",
    "It runs on older data (a copy, a backup, another disk); stop it and start it on the data that it had",
)


class Sessions(Gathering):
    """Adds `handle`."""

    def __init__(self, limit: int = DEFAULT_LIMIT, *, journaled: bool = False) -> None:
        super().__init__(limit, journaled=journaled)
        self._wake: float | None = None
        self._ended: dict[bytes, None] = {}
        self._forgot = False  # some that ended are not in there any more

    @property
    def clients(self) -> int:
        """Sessions that have not ended, connected or not."""
        return len(self._sessions)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event in; what is to be done about it, in order."""
        if isinstance(event, Request):
            self._request(event, now)
        elif isinstance(event, Tick):
            self._expire(now)
            self._wake = None
        elif isinstance(event, Connected):
            session = self._sessions.get(event.client) or self._begin_session(event.client)
            session.connected = True
            session.connections += 1
            self._restore_leases(session)
        else:
            self._disconnected(event, now)
        if self._timers and self._timers[0][0] != self._wake:
            self._wake = self._timers[0][0]
            self._effects.append(Wake(self._wake))
        effects, self._effects = self._effects, []
        return effects

    # Requests.

    def _request(self, request: Request, now: float) -> None:
        client, id = request.client, request.id
        session = self._sessions.get(client)
        if session is None:
            session = self._begin_session(client)
        if answered := session.answered:
            if request.settled:
                self._settle(session, request.settled)
                if self._log is not None:
                    self._log.append((Kind.settled, client, request.settled))
            if (answer := answered.get(id)) is not None:
                self._answer_again((client, id), answer)
                return
        call = (client, id)
        if call in self._in_round:
            return  # sent again over a new connection; it still stands where it stood
        try:
            if session.lost:
                raise _lost(session.lost)
            if len(answered) >= MAX_UNSETTLED and request.method not in _HOUSEKEEPING:
                raise RefusedError(
                    f"this client has not confirmed {MAX_UNSETTLED} answers",
                    "It has to say which answers it has, with its next request",
                    "full",
                )
            check_args(request.method, request.args)
            _DO[request.method](self, call, now, *request.args)
        except RefusedError as refused:
            self._effects.append(Failure(client, id, refused.kind, refused.message, refused.hint))

    def _do_resume(self, call: Call, now: float, pending: list[int], acknowledged: int) -> None:
        """A client is back, and says what it still wants, and the highest change that it knows confirmed.

        Who is unknown here may begin anew if nothing that it asked can have happened: it knows of
        nothing confirmed, and is not among those that were given up with answers under way.
        """
        client = call[0]
        session = self._sessions[client]
        if session.connections < 2:
            if acknowledged or self._forgot or client in self._ended:
                session.lost = "lost"
        elif acknowledged > session.last:
            session.lost = "older"
        if session.lost:
            raise _lost(session.lost)
        wanted = set(pending)
        self._settle(session, [id for id in session.answered if id not in wanted])
        self._note(Kind.resumed, client, pending)
        for standing in [c for c in self._in_round if c[0] == client and c[1] not in wanted]:
            self._leave_round(standing)
        self._reply(call)

    def _do_goodbye(self, call: Call, now: float) -> None:
        self._reply(call)
        self._end_session(call[0], may_return=False)

    def _do_cancel(self, call: Call, now: float, id: int) -> None:
        self._withdraw((call[0], id))
        session = self._sessions[call[0]]
        if id in session.answered:
            self._settle(session, [id])
            self._note(Kind.settled, call[0], [id])
        self._reply(call)

    def _do_ping(self, call: Call, now: float) -> None:
        self._reply(call)

    # Sessions.

    def _disconnected(self, event: Disconnected, now: float) -> None:
        client = event.client
        session = self._sessions.get(client)
        if session is None:
            return
        session.connected = False
        for call in [call for call in self._waiters if call[0] == client]:
            self._forget_waiter(call)
        for call in [call for call in self._watches if call[0] == client]:
            self._forget_watch(call)
        if session.last or session.answered or session.leases or self._is_in_a_round(client):
            self._give_up_at(now + SESSION_GRACE, client, session)
            self._cut_leases(session, now + RETURN_GRACE)
        else:  # it may begin anew: nothing that it asked has changed anything
            self._drop_session(client)

    def _end_session(self, client: bytes, *, may_return: bool) -> None:
        for table in (self._waiters, self._watches, self._in_round):
            for call in [call for call in table if call[0] == client]:
                self._withdraw(call)
        session = self._drop_session(client)
        may_return = may_return and bool(session.answered)
        if may_return:
            self._remember_ended(client)
        if session.last or session.answered or session.leases:
            self._note(Kind.ended, client, may_return)

    def _remember_ended(self, client: bytes) -> None:
        self._ended[client] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
            self._forgot = True

    def _withdraw(self, call: Call) -> None:
        """Forget a call that waits; it is never answered."""
        self._forget_waiter(call)
        self._leave_round(call)
        self._forget_watch(call)

    # Time.

    def _expire(self, now: float) -> None:
        """End what is due, or the first of it where it is much: then the next `Wake` is for at once."""
        ended = 0
        while self._timers and self._timers[0][0] <= now and ended < _TURN:
            timer = heapq.heappop(self._timers)
            if not self._is_due_to_matter(timer):
                continue
            ended += 1
            subject = timer[3]
            match timer[2]:
                case "lease":
                    self._end_lease(subject)
                case "session":
                    # The store was started again, and nobody came back. Leases of many keys last for a ttl.
                    for token in list(self._sessions[subject[0]].leases):
                        if self._leases[token].single:
                            self._end_lease(token)
                    self._end_session(subject[0], may_return=True)
                case _ if subject in self._waiters:
                    ended += len(self._waiters[subject].keys) // _KEYS
                    words = self._waited_in_vain(subject)
                    self._effects.append(Failure(subject[0], subject[1], "timeout", *words))
                case _:
                    message, hint, missing = self._gathered_in_vain(subject)
                    self._fail(subject, "timeout", message, hint, missing)


def _lost(kind: str) -> RefusedError:
    return RefusedError(*(_OLDER if kind == "older" else _NO_SUCH_CLIENT), kind)


_DO: dict[str, Callable[..., None]] = {name: getattr(Sessions, f"_do_{name}") for name in METHODS}
