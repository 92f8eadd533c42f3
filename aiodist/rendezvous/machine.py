"""The store as a pure state machine: `handle(event, now) → effects`. No I/O, no clock, no randomness.

Rules:
- A request that waits (wait, multi_get, gather) is answered when it can be, or fails at its deadline,
  which the machine keeps: so the failure can say what was missing.
- A request happens once, however often it is sent: what changes the store leaves its answer behind under
  (client, id) until the client says that it has it. A client may therefore be away for up to
  `SESSION_GRACE` seconds and carry on.
- A lease (a key with a ttl) says that its holder lives. Where the holder's connection ends without goodbye
  and it is not back within `RETURN_GRACE` seconds, the lease ends then: processes that die are missed soon.
- Each change has a revision, counted over the whole store; watches report it.
- All times are `now`, in seconds, of any clock that only goes forward.

A gather is the one meeting primitive: each rank of a world leaves a value under a name and all get
everybody's, in rank order, in one round trip. A barrier is a gather of nothing. When all have come, the name
is free for the next round.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiodist.errors import name_ranks
from aiodist.rendezvous.events import (
    Connected,
    Disconnected,
    Effect,
    Event,
    Failure,
    Push,
    Reply,
    Request,
    Wake,
)
from aiodist.rendezvous.schema import METHODS, RefusedError, check_args

SESSION_GRACE = 60.0
RETURN_GRACE = 2.0  # a living client's first attempts to come back take milliseconds

Call = tuple[bytes, int]  # client and request id: names one call for good


def _lost() -> RefusedError:
    return RefusedError(
        "the store does not know this client any more",
        "It was restarted, or this process was cut off for over a minute; start the job again",
        kind="lost",
    )


@dataclass(slots=True)
class _Entry:
    value: bytes
    revision: int
    expires: float | None = None


@dataclass(slots=True)
class _Waiter:
    keys: list[str]
    missing: set[str]
    wants_values: bool
    timeout: float


@dataclass(slots=True)
class _Round:
    """One gather that has not happened yet."""

    size: int
    cards: dict[int, bytes] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    timeouts: dict[int, float] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # came, and gave up


@dataclass(slots=True)
class _Session:
    connected: bool = False
    connections: int = 0  # so far; also tells an old deadline from the current one
    lost: bool = False  # it is the successor of one that is forgotten; nothing it asks may happen
    answered: dict[int, Effect] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)  # key → when the lease that it set ends
    cut: float | None = None  # when they end instead, should it not come back


class StoreMachine:
    """All state of one store. Feed it events in the order in which they happen."""

    def __init__(self) -> None:
        self._data: dict[str, _Entry] = {}
        self._revision = 0
        self._sessions: dict[bytes, _Session] = {}
        self._waiters: dict[Call, _Waiter] = {}
        self._wanted: dict[str, dict[Call, None]] = {}  # key → who waits for it; a dict keeps the order
        self._rounds: dict[str, _Round] = {}
        self._in_round: dict[Call, tuple[str, int]] = {}
        self._watches: dict[Call, str] = {}
        self._timers: list[tuple[float, int, str, Any]] = []
        self._timer_numbers = itertools.count()
        self._wake: float | None = None
        self._effects: list[Effect] = []

    @property
    def clients(self) -> int:
        """Sessions that have not ended, connected or not."""
        return len(self._sessions)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event in; what is to be done about it, in order."""
        if self._timers and self._timers[0][0] <= now:
            self._expire(now)
        if isinstance(event, Request):
            self._request(event, now)
        elif isinstance(event, Connected):
            session = self._sessions.setdefault(event.client, _Session())
            session.connected = True
            session.connections += 1
            self._restore_leases(session)
        elif isinstance(event, Disconnected):
            self._disconnected(event.client, now)
        else:
            self._wake = None
        if self._timers and self._timers[0][0] != self._wake:
            self._wake = self._timers[0][0]
            self._effects.append(Wake(self._wake))
        effects, self._effects = self._effects, []
        return effects

    # Sessions.

    def _request(self, request: Request, now: float) -> None:
        client, id = request.client, request.id
        session = self._sessions.get(client)
        if session is None:
            session = self._sessions[client] = _Session()
        if answered := session.answered:
            for settled in request.settled:
                answered.pop(settled, None)
            if (answer := answered.get(id)) is not None:
                self._effects.append(answer)
                return
        call = (client, id)
        if call in self._in_round:
            return  # sent again over a new connection; it still stands where it stood
        try:
            if session.lost:
                raise _lost()
            check_args(request.method, request.args)
            _DO[request.method](self, call, now, *request.args)
        except RefusedError as refused:
            self._answer(call, Failure(client, id, refused.kind, refused.message, refused.hint))

    def _answer(self, call: Call, answer: Reply | Failure, *, keep: bool = False) -> None:
        session = self._sessions.get(call[0])
        if keep and session is not None:
            session.answered[call[1]] = answer
        self._effects.append(answer)

    def _reply(self, call: Call, value: Any = None) -> None:
        """The answer of a read: computed again if it is asked again."""
        self._effects.append(Reply(call[0], call[1], value))

    def _done(self, call: Call, value: Any = None) -> None:
        """The answer of a change: kept until the client has it."""
        reply = Reply(call[0], call[1], value)
        session = self._sessions.get(call[0])
        if session is not None:
            session.answered[call[1]] = reply
        self._effects.append(reply)

    def _disconnected(self, client: bytes, now: float) -> None:
        session = self._sessions.get(client)
        if session is None:
            return
        session.connected = False
        for call in [call for call in self._waiters if call[0] == client]:
            self._forget_waiter(call)
        for call in [call for call in self._watches if call[0] == client]:
            del self._watches[call]
        self._set_timer(now + SESSION_GRACE, "session", (client, session.connections))
        self._cut_leases(session, now + RETURN_GRACE)

    def _cut_leases(self, session: _Session, at: float) -> None:
        """Its holder is away: the leases end at `at`, unless it comes back."""
        session.cut = at
        for key, expires in list(session.leases.items()):
            entry = self._data.get(key)
            if entry is None or entry.expires != expires:
                del session.leases[key]  # gone, or somebody else's by now
            elif at < expires:
                entry.expires = at
                self._set_timer(at, "lease", key)

    def _restore_leases(self, session: _Session) -> None:
        for key, expires in session.leases.items():
            entry = self._data.get(key)
            if entry is not None and entry.expires == session.cut:
                entry.expires = expires
                self._set_timer(expires, "lease", key)
        session.cut = None

    def _end_session(self, client: bytes) -> None:
        del self._sessions[client]
        for table in (self._waiters, self._watches, self._in_round):
            for call in [call for call in table if call[0] == client]:
                self._withdraw(call)

    def _do_resume(self, call: Call, now: float, pending: list[int]) -> None:
        session = self._sessions[call[0]]
        if session.connections < 2:
            session.lost = True
            raise _lost()
        session.answered = {id: session.answered[id] for id in pending if id in session.answered}
        self._reply(call)

    def _do_goodbye(self, call: Call, now: float) -> None:
        self._reply(call)
        self._end_session(call[0])

    def _do_cancel(self, call: Call, now: float, id: int) -> None:
        self._withdraw((call[0], id))
        self._sessions[call[0]].answered.pop(id, None)
        self._reply(call)

    def _withdraw(self, call: Call) -> None:
        """Forget a call that waits; it is never answered."""
        self._forget_waiter(call)
        self._leave_round(call)
        self._watches.pop(call, None)

    # Time.

    def _set_timer(self, at: float, what: str, subject: Any) -> None:
        heapq.heappush(self._timers, (at, next(self._timer_numbers), what, subject))
        live = len(self._waiters) + len(self._in_round) + len(self._data) + len(self._sessions)
        if len(self._timers) > 4 * live + 64:
            # Most of the heap is about calls long answered; keep what is still true.
            self._timers = [timer for timer in self._timers if self._is_due_to_matter(timer)]
            heapq.heapify(self._timers)

    def _is_due_to_matter(self, timer: tuple[float, int, str, Any]) -> bool:
        at, _, what, subject = timer
        if what == "call":
            return subject in self._waiters or subject in self._in_round
        if what == "lease":
            entry = self._data.get(subject)
            return entry is not None and entry.expires == at
        client, connections = subject
        session = self._sessions.get(client)
        return session is not None and not session.connected and session.connections == connections

    def _expire(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)
            if not self._is_due_to_matter(timer):
                continue
            match timer[2]:
                case "call":
                    self._time_out(timer[3])
                case "lease":
                    self._remove(timer[3])
                case _:
                    self._end_session(timer[3][0])

    def _time_out(self, call: Call) -> None:
        if waiter := self._waiters.get(call):
            absent = [key for key in waiter.keys if key not in self._data]
            self._forget_waiter(call)
            listed = ", ".join(f"'{key}'" for key in absent[:5])
            listed += f" and {len(absent) - 5} more" if len(absent) > 5 else ""
            message = f"nobody set {listed} within {round(waiter.timeout, 3):g} s"
            self._answer(
                call, Failure(*call, "timeout", message, "See whether the process that sets it runs")
            )
            return
        name, rank = self._in_round[call]
        gather = self._rounds[name]
        gather.gone.add(rank)
        away = set(range(gather.size)) - gather.cards.keys()
        missing = tuple(sorted(away - gather.gone or away))
        self._leave_round(call)
        message = (
            f"{name_ranks(missing)} did not come to '{name}' within {round(gather.timeouts[rank], 3):g} s"
        )
        hint = "See whether every process was started, with the same WORLD_SIZE and store, and what it prints"
        self._answer(call, Failure(*call, "timeout", message, hint, missing), keep=True)

    # Keys.

    def _put(self, key: str, value: bytes, now: float, ttl: float | None = None) -> None:
        self._revision += 1
        expires = None if ttl is None else now + ttl
        self._data[key] = _Entry(value, self._revision, expires)
        if expires is not None:
            self._set_timer(expires, "lease", key)
        if self._watches:
            self._tell_watches(key, value)
        if key in self._wanted:
            for call in list(self._wanted.pop(key)):
                self._arrived(call, key)

    def _change(self, key: str, entry: _Entry | None, value: bytes, now: float) -> None:
        """Put, but under the lease that the key has; `entry` is what it holds."""
        if entry is None:
            self._put(key, value, now)
            return
        self._revision += 1  # nobody waits for a key that is there
        entry.value = value
        entry.revision = self._revision
        if self._watches:
            self._tell_watches(key, value)

    def _remove(self, key: str) -> bool:
        entry = self._data.pop(key, None)
        if entry is None:
            return False
        if entry.expires is not None:
            for session in self._sessions.values():
                session.leases.pop(key, None)
        self._revision += 1
        self._tell_watches(key, None)
        return True

    def _do_set(self, call: Call, now: float, key: str, value: bytes, ttl: float | None) -> None:
        if ttl is not None and not ttl > 0:
            raise RefusedError(f"ttl must be a positive number of seconds, got {ttl!r}")
        self._put(key, value, now, ttl)
        if ttl is not None:
            self._sessions[call[0]].leases[key] = now + ttl
        self._done(call)

    def _do_multi_set(self, call: Call, now: float, keys: list[str], values: list[bytes]) -> None:
        if len(keys) != len(values):
            raise RefusedError(f"multi_set got {len(keys)} keys and {len(values)} values")
        for key, value in zip(keys, values, strict=True):
            self._put(key, value, now)
        self._done(call)

    def _do_add(self, call: Call, now: float, key: str, amount: int) -> None:
        entry = self._data.get(key)
        try:
            total = (int(entry.value) if entry else 0) + amount
        except ValueError:
            raise RefusedError(f"add to '{key}', which holds no number") from None
        if not -(2**63) <= total < 2**63:
            raise RefusedError(f"add to '{key}' leaves the range of a 64-bit integer")
        self._change(key, entry, b"%d" % total, now)
        self._done(call, total)

    def _do_append(self, call: Call, now: float, key: str, value: bytes) -> None:
        entry = self._data.get(key)
        self._change(key, entry, (entry.value if entry else b"") + value, now)
        self._done(call)

    def _do_compare_set(self, call: Call, now: float, key: str, expected: bytes, desired: bytes) -> None:
        # torch's meaning: an absent key matches only an empty `expected`, and answers with it otherwise.
        entry = self._data.get(key)
        if entry is None and expected:
            self._done(call, expected)
        elif entry is None or entry.value == expected:
            self._change(key, entry, desired, now)
            self._done(call, desired)
        else:
            self._done(call, entry.value)

    def _do_delete_key(self, call: Call, now: float, key: str) -> None:
        self._done(call, self._remove(key))

    def _do_check(self, call: Call, now: float, keys: list[str]) -> None:
        self._reply(call, all(key in self._data for key in keys))

    def _do_list_keys(self, call: Call, now: float, prefix: str) -> None:
        self._reply(call, sorted(key for key in self._data if key.startswith(prefix)))

    def _do_num_keys(self, call: Call, now: float, prefix: str) -> None:
        self._reply(call, sum(key.startswith(prefix) for key in self._data))

    # Waiting for keys.

    def _do_wait(self, call: Call, now: float, keys: list[str], timeout: float) -> None:
        self._await_keys(call, now, keys, timeout, wants_values=False)

    def _do_multi_get(self, call: Call, now: float, keys: list[str], timeout: float) -> None:
        self._await_keys(call, now, keys, timeout, wants_values=True)

    def _await_keys(
        self, call: Call, now: float, keys: list[str], timeout: float, *, wants_values: bool
    ) -> None:
        if call in self._waiters:
            self._forget_waiter(call)  # it is sent again
        data = self._data
        try:
            values = [data[key].value for key in keys]
        except KeyError:
            missing = {key for key in keys if key not in data}
        else:
            self._reply(call, values if wants_values else None)
            return
        self._waiters[call] = _Waiter(keys, missing, wants_values, timeout)
        for key in missing:
            self._wanted.setdefault(key, {})[call] = None
        self._set_timer(now + timeout, "call", call)

    def _arrived(self, call: Call, key: str) -> None:
        waiter = self._waiters[call]
        waiter.missing.discard(key)
        if waiter.missing:
            return
        # A key that came early may be gone again by now.
        waiter.missing = {key for key in waiter.keys if key not in self._data}
        for absent in waiter.missing:
            self._wanted.setdefault(absent, {})[call] = None
        if not waiter.missing:
            del self._waiters[call]
            self._reply(call, [self._data[key].value for key in waiter.keys] if waiter.wants_values else None)

    def _forget_waiter(self, call: Call) -> None:
        waiter = self._waiters.pop(call, None)
        for key in waiter.missing if waiter else ():
            calls = self._wanted[key]
            del calls[call]
            if not calls:
                del self._wanted[key]

    # Gather.

    def _do_gather(
        self, call: Call, now: float, name: str, rank: int, size: int, card: bytes, timeout: float
    ) -> None:
        if not 0 <= rank < size:
            raise RefusedError(f"rank {rank} is not in a world of {size}")
        gather = self._rounds.setdefault(name, _Round(size))
        if size != gather.size:
            raise RefusedError(
                f"rank {rank} comes to '{name}' in a world of {size}, "
                f"{name_ranks(list(gather.cards))} in one of {gather.size}",
                "Give every process the same WORLD_SIZE",
                "conflict",
            )
        if (other := gather.calls.get(rank)) and not self._sessions[other[0]].connected:
            self._leave_round(other)  # a process that came back as another takes its own place
            gather = self._rounds.setdefault(name, _Round(size))
        if rank in gather.cards:
            raise RefusedError(
                f"two processes are rank {rank} at '{name}'", "Give each process its own RANK", "conflict"
            )
        gather.cards[rank] = card
        gather.calls[rank] = call
        gather.timeouts[rank] = timeout
        gather.gone.discard(rank)
        self._in_round[call] = (name, rank)
        if len(gather.cards) < size:
            self._set_timer(now + timeout, "call", call)
            return
        del self._rounds[name]
        cards = [gather.cards[r] for r in range(size)]
        for member in gather.calls.values():
            del self._in_round[member]
            self._done(member, cards)

    def _leave_round(self, call: Call) -> None:
        name, rank = self._in_round.pop(call, ("", -1))
        if rank >= 0:
            gather = self._rounds[name]
            del gather.cards[rank], gather.calls[rank]
            if not gather.cards:
                del self._rounds[name]

    # Watching.

    def _do_watch(self, call: Call, now: float, prefix: str) -> None:
        self._watches[call] = prefix
        found = [(e.revision, key, e.value) for key, e in self._data.items() if key.startswith(prefix)]
        self._effects.append(Push(*call, [[key, value, revision] for revision, key, value in sorted(found)]))

    def _tell_watches(self, key: str, value: bytes | None) -> None:
        for call, prefix in self._watches.items():
            if key.startswith(prefix):
                self._effects.append(Push(*call, [[key, value, self._revision]]))

    def _do_ping(self, call: Call, now: float) -> None:
        self._reply(call)


_DO: dict[str, Callable[..., None]] = {name: getattr(StoreMachine, f"_do_{name}") for name in METHODS}
