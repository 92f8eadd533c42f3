"""What a store keeps, its timers and its answers. See the package for the rules."""

from __future__ import annotations

import enum
import heapq
import itertools
from array import array
from dataclasses import dataclass, field
from typing import Any

from aiodist.rendezvous.events import Effect, Failure, Reply
from aiodist.rendezvous.schema import RefusedError

SESSION_GRACE = 60.0
RETURN_GRACE = 2.0  # a living client's first attempts to come back take milliseconds
DEFAULT_LIMIT = 1 << 30  # bytes that a store keeps
MAX_WAITING = 1 << 18  # calls that wait, and watches, of all clients
MAX_UNSETTLED = 1 << 20  # answers of one client that it has not confirmed
KEY_COST = 70  # bytes that a key takes in the list of a call that waits
WANTED_COST = 300  # bytes that it takes beside, where it is not there yet
ENTRY_COST = 200  # bytes that a key takes beside its name and value
CALL_COST = 800  # bytes that a call that waits takes beside its arguments
LEASE_COST = 400  # bytes that a lease takes beside its keys
ANSWER_COST = 200  # bytes that an answer takes that its client has not confirmed; not more than a key
SESSION_COST = 700  # bytes that a client takes
_LARGE = 64  # bytes of an answer that are in ANSWER_COST
_WEIGHT_COST = 100  # bytes that it takes to note what an answer weighs

Call = tuple[bytes, int]  # client and request id: names one call for good
Change = tuple[Any, ...]  # its kind, then what the kind says


class Kind(enum.IntEnum):
    """What a change is. The numbers are in every log: they never get another meaning."""

    put = 1  # key, value, revision, token of its lease or 0
    value = 2  # key, value, revision: under the lease that the key has
    append = 3  # key, suffix, revision: likewise
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


@dataclass(slots=True)
class Lease:
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
        """When it ends, as things are."""
        return self.expires if self.cut is None else min(self.cut, self.expires)


@dataclass(slots=True)
class Entry:
    """A key's value. Never changed, only replaced: a snapshot is written while the store goes on."""

    value: bytes
    revision: int
    lease: Lease | None = None


@dataclass(slots=True)
class Waiter:
    """A call that waits for keys."""

    keys: list[str]
    missing: set[str]
    wants_values: bool
    timeout: float
    cost: int


@dataclass(slots=True)
class Round:
    """One gather that has not happened yet."""

    size: int
    cards: dict[int, bytes] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    timeouts: dict[int, float] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # came, and gave up
    absent: tuple[int, ...] = ()  # some that never came, as last looked for; empty: look for them


@dataclass(slots=True)
class KeptFailure:
    """A `Failure`, as it is kept until its client has it: its missing ranks are two bytes each."""

    kind: str
    message: str
    hint: str
    missing: bytes


@dataclass(slots=True)
class Session:
    """A client, over all its connections."""

    connected: bool = False
    connections: int = 0  # so far
    away: int = 0  # a number of its own for each absence: tells an old deadline from the current one
    lost: str = ""  # why nothing that it asks may happen: a kind of `Failure`
    last: int = 0  # the highest id of a change that was answered
    answered: dict[int, Reply | KeptFailure] = field(default_factory=dict)
    large: dict[int, int] = field(default_factory=dict)  # ids of those that weigh more than ANSWER_COST
    leases: dict[int, None] = field(default_factory=dict)  # tokens of those that it holds


class Tables:
    """The state, and what all ideas about it share.

    Args:
        limit: bytes that clients can make it keep; what would grow it beyond is refused.
        journaled: note all changes.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT, *, journaled: bool = False) -> None:
        self.limit = limit
        self.size = 0  # bytes kept, about
        self._data: dict[str, Entry] = {}
        self._revision = 0
        self._sessions: dict[bytes, Session] = {}
        self._leases: dict[int, Lease] = {}
        self._waiters: dict[Call, Waiter] = {}
        self._wanted: dict[str, dict[Call, None]] = {}  # key → who waits for it; a dict keeps the order
        self._rounds: dict[str, Round] = {}
        self._in_round: dict[Call, tuple[str, int]] = {}
        self._watches: dict[Call, str] = {}
        self._timers: list[tuple[float, int, str, Any]] = []
        self._timer_numbers = itertools.count()
        self._effects: list[Effect] = []
        self._log: list[Change] | None = [] if journaled else None

    @property
    def revision(self) -> int:
        """Of the last change."""
        return self._revision

    def _note(self, *change: Any) -> None:
        if self._log is not None:
            self._log.append(change)

    # Bounds.

    def _make_room(self, growth: int, answer: int = 0) -> None:
        """Take so many bytes, or refuse where they and an answer of `answer` bytes, which `_done` takes, are
        too many. What makes the store smaller in all is never refused."""
        needed = growth + answer + ANSWER_COST
        if needed > 0 and self.size + needed > self.limit:
            raise RefusedError(
                f"the store is full: this takes {needed} bytes more, it keeps {self.size} of {self.limit}",
                "Delete what nobody needs, or serve it with a larger --limit",
                "full",
            )
        self.size += growth

    def _check_waiting(self) -> None:
        if len(self._waiters) + len(self._in_round) + len(self._watches) >= MAX_WAITING:
            raise RefusedError(
                f"{MAX_WAITING} calls wait in the store already",
                "See which client asks without waiting for its answers",
                "full",
            )

    # Answers.

    def _reply(self, call: Call, value: Any = None) -> None:
        """The answer of a read: computed again if it is asked again."""
        self._effects.append(Reply(call[0], call[1], value))

    def _done(self, call: Call, value: Any = None) -> None:
        """The answer of a change: kept until the client has it."""
        client, id = call
        reply = Reply(client, id, value)
        session = self._sessions.get(client)
        if session is not None:
            session.answered[id] = reply
            self.size += ANSWER_COST
            if id > session.last:
                session.last = id
            if type(value) is bytes and len(value) > _LARGE:
                self._weigh(session, id, len(value))
        if self._log is not None:
            self._log.append((Kind.answer, client, id, value))
        self._effects.append(reply)

    def _weigh(self, session: Session, id: int, cost: int) -> None:
        session.large[id] = cost + _WEIGHT_COST
        self.size += cost + _WEIGHT_COST

    def _settle(self, session: Session, ids: list[int]) -> None:
        answered, large = session.answered, session.large
        for id in ids:
            if answered.pop(id, None) is not None:
                self.size -= ANSWER_COST
                if large:
                    self.size -= large.pop(id, 0)

    def _fail(self, call: Call, kind: str, message: str, hint: str, missing: tuple[int, ...] = ()) -> None:
        """The failure of a gather: kept as the answer of a change is."""
        session = self._sessions.get(call[0])
        if session is not None:
            kept = KeptFailure(kind, message, hint, pack_ranks(missing))
            session.answered[call[1]] = kept
            self.size += ANSWER_COST
            self._weigh(session, call[1], weight(message) + len(kept.missing))
        self._note(Kind.failed, *call, kind, message, hint, missing)
        self._effects.append(Failure(*call, kind, message, hint, missing))

    def _answer_again(self, call: Call, answer: Reply | KeptFailure) -> None:
        if isinstance(answer, KeptFailure):
            missing = unpack_ranks(answer.missing)
            self._effects.append(Failure(*call, answer.kind, answer.message, answer.hint, missing))
        else:
            self._effects.append(answer)

    # Sessions.

    def _begin_session(self, client: bytes) -> Session:
        """Whoever connects gets one, full or not: it may be here to delete. Connections are few."""
        session = self._sessions[client] = Session()
        self.size += SESSION_COST
        return session

    def _drop_session(self, client: bytes) -> Session:
        session = self._sessions.pop(client)
        self.size -= SESSION_COST + ANSWER_COST * len(session.answered) + sum(session.large.values())
        return session

    # Time.

    def _set_timer(self, at: float, what: str, subject: Any) -> None:
        heapq.heappush(self._timers, (at, next(self._timer_numbers), what, subject))
        live = len(self._waiters) + len(self._in_round) + len(self._leases) + len(self._sessions)
        if len(self._timers) > 4 * live + 64:
            # Most of the heap is about calls long answered; keep what is still true.
            self._timers = [timer for timer in self._timers if self._is_due_to_matter(timer)]
            heapq.heapify(self._timers)

    def _give_up_at(self, at: float, client: bytes, session: Session) -> None:
        """Forget an absent client then, unless it comes back."""
        session.away = next(self._timer_numbers)
        self._set_timer(at, "session", (client, session.away))

    def _is_due_to_matter(self, timer: tuple[float, int, str, Any]) -> bool:
        at, _, what, subject = timer
        if what == "call":
            return subject in self._waiters or subject in self._in_round
        if what == "lease":
            lease = self._leases.get(subject)
            return lease is not None and lease.due == at
        client, away = subject
        session = self._sessions.get(client)
        return session is not None and not session.connected and session.away == away

    def due(self, now: float) -> bool:
        """Whether a `Tick` at this time would end anything."""
        while self._timers and not self._is_due_to_matter(self._timers[0]):
            heapq.heappop(self._timers)
        return bool(self._timers) and self._timers[0][0] <= now


def weight(text: str) -> int:
    """Bytes that text takes, at most. One character of four bytes makes all of them as wide."""
    return len(text) if text.isascii() else 4 * len(text)


def pack_ranks(ranks: tuple[int, ...]) -> bytes:
    """Ranks of a world that can meet, as two bytes each."""
    return array("H", ranks).tobytes()


def unpack_ranks(packed: bytes) -> tuple[int, ...]:
    """What `pack_ranks` has packed."""
    return tuple(memoryview(packed).cast("H"))
