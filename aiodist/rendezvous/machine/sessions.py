"""Clients that come and go, and the answers that are kept for them: each request happens once."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Any

from aiodist.rendezvous.events import MAX_MISSING, Effect, Failure, StoreReply
from aiodist.rendezvous.machine.budget import ANSWER_COST, SESSION_COST, Budget, weight
from aiodist.rendezvous.machine.changes import Call, Change, ChangeKind, Journal
from aiodist.rendezvous.machine.timers import Timers
from aiodist.rendezvous.rules import RefusedError

SESSION_GRACE = 60.0
MAX_UNSETTLED = 1 << 20  # answers of one client that it has not confirmed
MAX_ENDED = 1 << 16  # sessions that ended with a client that may come back, and are remembered
_LARGE = 64  # bytes of an answer that are in ANSWER_COST
_WEIGHT_COST = 100  # bytes that it takes to note what an answer weighs
_LOST = {
    "lost": (
        "the store does not know this client any more",
        "This process was cut off for over a minute; start the job again",
    ),
    "older": (
        "the store has gone back: it does not know what it has confirmed to this client",
        "It runs on older data (a copy, a backup, another disk); stop it and start it on the data that it "
        "had",
    ),
}


@dataclass(slots=True)
class Session:
    """A client, over all its connections."""

    connected: bool = False
    connections: int = 0  # so far
    ends: float | None = None  # when it is given up, unless it comes back; None while it is here
    lost: str = ""  # why nothing that it asks may happen: a kind of `Failure`
    last: int = 0  # the highest id of a change that was answered
    answered: dict[int, StoreReply | Failure] = field(default_factory=dict)
    large: dict[int, int] = field(default_factory=dict)  # ids of those that weigh more than ANSWER_COST

    def check(self, *, keeps: bool) -> None:
        """Refuse a request of a client that is lost, or that has too many answers kept to get one more.

        Args:
            keeps: whether the request may have its answer kept.
        """
        if self.lost:
            raise RefusedError(*_LOST[self.lost], self.lost)
        if keeps and len(self.answered) >= MAX_UNSETTLED:
            raise RefusedError(
                f"this client has not confirmed {MAX_UNSETTLED} answers",
                "It has to say which answers it has, with its next request",
                "full",
            )


@dataclass(eq=False, slots=True)
class Sessions:
    """The sessions of a store. Answers go to `effects`; those of changes are kept until a client has them."""

    budget: Budget
    journal: Journal
    timers: Timers
    effects: list[Effect]
    by_client: dict[bytes, Session] = field(default_factory=dict)
    ended: dict[bytes, None] = field(default_factory=dict)  # clients that may come back, and cannot go on
    forgot: bool = False  # some that ended are not in there any more

    # Coming and going.

    def begin(self, client: bytes) -> Session:
        """Return a client's session; a new one, full or not: it may have come to delete. Clients are few."""
        session = self.by_client.get(client)
        if session is None:
            session = self.by_client[client] = Session()
            self.budget.size += SESSION_COST
        return session

    def give_up_at(self, at: float, client: bytes) -> None:
        """Have the client's session end then, unless it comes back."""
        self.by_client[client].ends = at
        self.timers.set(at, self, client)

    def is_due(self, client: bytes, at: float) -> bool:
        """Whether an absent client is given up at this time."""
        session = self.by_client.get(client)
        return session is not None and session.ends == at

    def drop(self, client: bytes) -> Session:
        """Forget a session, and its answers."""
        session = self.by_client.pop(client)
        self.budget.size -= SESSION_COST + ANSWER_COST * len(session.answered) + sum(session.large.values())
        return session

    def remember_ended(self, client: bytes) -> None:
        """Note that the client was given up with answers under way, should it come back."""
        self.ended[client] = None
        if len(self.ended) > MAX_ENDED:
            del self.ended[next(iter(self.ended))]
            self.forgot = True

    def resume(self, client: bytes, pending: list[int], acknowledged: int) -> None:
        """Take a client back that still wants the answers `pending`.

        One that is unknown here may begin anew if nothing that it asked can have happened: it knows of
        nothing confirmed, and is not among those that were given up with answers under way.

        Args:
            acknowledged: the highest change that it knows confirmed.
        """
        session = self.by_client[client]
        if session.connections < 2:
            if acknowledged or self.forgot or client in self.ended:
                session.lost = "lost"
        elif acknowledged > session.last:
            session.lost = "older"
        session.check(keeps=False)
        self._keep_only(session, pending)
        self.journal.note(ChangeKind.resumed, client, pending)

    # Answers.

    def reply(self, call: Call, value: Any = None) -> None:
        """Answer a read: it is carried out again if it is asked again."""
        self.effects.append(StoreReply(call[0], call[1], value))

    def refuse(self, call: Call, why: RefusedError) -> None:
        """Let a call fail that changed nothing: it is carried out again if it is asked again."""
        self.effects.append(Failure(*call, why.kind, why.message, why.hint, why.missing))

    def done(self, call: Call, value: Any = None) -> None:
        """Answer a change: the answer is kept until the client has it."""
        client, id = call
        reply = StoreReply(client, id, value)
        session = self.by_client.get(client)
        if session is not None:
            large = len(value) if type(value) is bytes and len(value) > _LARGE else None
            self._keep(session, id, reply, large)
        if self.journal.noting:
            self.journal.note(ChangeKind.answer, client, id, value)
        self.effects.append(reply)

    def done_together(self, calls: list[Call], value: list[bytes]) -> None:
        """Answer many changes with one list, kept until each client has it."""
        self._keep_together(calls, value)
        self.effects += [StoreReply(*call, value) for call in calls]
        self.journal.note(ChangeKind.gathered, value, [list(call) for call in calls])

    def fail(self, call: Call, why: RefusedError) -> None:
        """Let a change fail: this is kept as an answer is."""
        session = self.by_client.get(call[0])
        if session is not None:
            missing = array("H", why.missing)  # two bytes each, as long as it is kept
            kept = Failure(*call, why.kind, why.message, why.hint, missing)
            self._keep(session, call[1], kept, weight(why.message) + 2 * len(missing))
        self.journal.note(ChangeKind.failed, *call, why.kind, why.message, why.hint, why.missing)
        self.effects.append(Failure(*call, why.kind, why.message, why.hint, why.missing))

    def answer_again(self, answer: StoreReply | Failure) -> None:
        """Send a kept answer once more."""
        if isinstance(answer, Failure):
            answer = replace(answer, missing=tuple(answer.missing))
        self.effects.append(answer)

    def forget_answers(self, client: bytes, ids: list[int]) -> None:
        """Forget answers that the client has, or does not want."""
        session = self.by_client[client]
        self._forget(session, ids)
        if self.journal.noting:
            self.journal.note(ChangeKind.settled, client, ids)

    def _keep(self, session: Session, id: int, answer: StoreReply | Failure, large: int | None) -> None:
        """Keep an answer that weighs `large` bytes beyond ANSWER_COST."""
        session.answered[id] = answer
        self.budget.size += ANSWER_COST
        if id > session.last and isinstance(answer, StoreReply):
            session.last = id
        if large is not None:
            session.large[id] = large + _WEIGHT_COST
            self.budget.size += large + _WEIGHT_COST

    def _keep_together(self, calls: list[Call], value: list[bytes]) -> None:
        share = sum(map(len, value)) // len(calls)
        for client, id in calls:
            if (session := self.by_client.get(client)) is not None:
                self._keep(session, id, StoreReply(client, id, value), share)

    def _forget(self, session: Session, ids: list[int]) -> None:
        answered, large = session.answered, session.large
        for id in ids:
            if answered.pop(id, None) is not None:
                self.budget.size -= ANSWER_COST
                if large:
                    self.budget.size -= large.pop(id, 0)

    def _keep_only(self, session: Session, ids: list[int]) -> None:
        wanted = set(ids)
        self._forget(session, [id for id in session.answered if id not in wanted])

    # Durability.

    def dump(self) -> list[Change]:
        """Changes that make these sessions."""
        changes: list[Change] = [(ChangeKind.ended, client, True) for client in self.ended]
        gathered: dict[int, tuple[list[bytes], list[Any]]] = {}
        for client, session in self.by_client.items():
            if not session.last and not session.answered:
                continue  # nothing that it asked can be lost
            changes.append((ChangeKind.session, client, session.last))
            for number, answer in session.answered.items():
                if isinstance(answer, Failure):
                    failed = (answer.kind, answer.message, answer.hint, tuple(answer.missing))
                    changes.append((ChangeKind.failed, client, number, *failed))
                elif isinstance(answer.value, list):
                    gathered.setdefault(id(answer.value), (answer.value, []))[1].append([client, number])
                else:
                    changes.append((ChangeKind.answer, client, number, answer.value))
        changes += [(ChangeKind.gathered, cards, calls) for cards, calls in gathered.values()]
        if self.forgot:
            changes.append((ChangeKind.forgot,))
        return changes

    def replay_session(self, client: bytes, last: int) -> None:
        """Repeat a change; so do the others."""
        self.begin(client).last = last

    def replay_answer(self, client: bytes, id: int, value: Any) -> None:
        self.begin(client)
        self.done((client, id), value)

    def replay_failed(
        self, client: bytes, id: int, kind: str, message: str, hint: str, missing: list[int]
    ) -> None:
        self.begin(client)
        self.fail((client, id), RefusedError(message, hint, kind, tuple(missing[:MAX_MISSING])))

    def replay_gathered(self, cards: list[bytes], calls: list[list[Any]]) -> None:
        for client, _ in calls:
            self.begin(client)
        self._keep_together([(client, id) for client, id in calls], cards)

    def replay_settled(self, client: bytes, ids: list[int]) -> None:
        if (session := self.by_client.get(client)) is not None:
            self._forget(session, ids)

    def replay_resumed(self, client: bytes, pending: list[int]) -> None:
        if (session := self.by_client.get(client)) is not None:
            self._keep_only(session, pending)

    def replay_forgot(self) -> None:
        self.forgot = True

    def restarted(self, now: float) -> None:
        """Begin time: each client has a while to come back."""
        for client, session in self.by_client.items():
            session.connections = 1
            self.give_up_at(now + SESSION_GRACE, client)
