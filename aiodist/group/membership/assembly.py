"""One call for the next epoch, as one member of the old one sees it. Pure.

The assembly is told what happened and says what to do now (`next`). It knows no link, store or clock. How
far a draft has come is one of the states in `drafts`. What to do follows from that, from who is ready or
gone, and from the time.

Rules
    1. The convener is the lowest rank that is not gone, and that no caller excludes. It waits for
       all of those to be ready, at most until its deadline; then it goes on with those who are. Its
       deadline is everybody's who is convener then.
    2. A draft holds all who are ready, in the order of their ranks, then newcomers. A later draft
       takes the place of an earlier one.
    3. A draft with a member who is gone, or whom the draft's members could not connect, is dropped; those
       whose fault it was are not in the next, unless a later draft kept them from it.
    4. When a draft has been formed here the convener asks the arbiter. What the arbiter says is told to
       everybody, and a member that is not told asks the arbiter too.
    5. Who is not in the decided epoch has been evicted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from aiodist.base.errors import name_ranks
from aiodist.base.sanitize import says
from aiodist.group.membership.drafts import DraftEvent, DraftState, after
from aiodist.group.membership.messages import Decided, Draft, Dropped, MemberMessage, Ready, Void
from aiodist.group.membership.record import Number, Record

GRACE = 1.0
"""Seconds beyond its deadline that a member waits for a convener, or for the arbiter, to speak."""

FORMING = 5.0
"""Seconds in which a draft has to be formed."""

OVERTIME = 15.0
"""Seconds beyond its deadline after which a call ends in any case."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause until something happens, or until `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class Invite:
    """An order to the convener: make a draft of these members, and of newcomers.

    Args:
        attempt: of the draft's number.
        members: uids, in the order of their new ranks.
        newcomers: how many may be added; at least `wanted`, or the call is void.
        wanted: how many newcomers there have to be.
        final: whether time is up: go with the newcomers who are there.
    """

    attempt: int
    members: tuple[bytes, ...]
    newcomers: int
    wanted: int
    final: bool


@dataclass(frozen=True, slots=True)
class Form:
    """An order to form this draft, or to go on with it."""

    record: Record


@dataclass(frozen=True, slots=True)
class Rule:
    """An order to ask the arbiter for this draft."""

    record: Record


@dataclass(frozen=True, slots=True)
class Adopt:
    """The result: this is the next epoch."""

    record: Record


@dataclass(frozen=True, slots=True)
class Fail:
    """The result: the call comes to nothing.

    Args:
        evicted: the others went on without this process.
        quorum: too few are left.
    """

    why: str
    evicted: bool = False
    quorum: bool = False


Step = Wait | Invite | Form | Rule | Adopt | Fail


class Assembly:
    """One member's view of one call.

    Args:
        call: counts the calls on the old epoch's group.
        epoch: the old epoch.
        rank: this process's, in the old epoch.
        uids: of the old epoch's members, by rank.

    Attributes:
        gone: ranks that are lost, or have left.
        ready: ranks that have called.
        culprits: uids that are in no further draft.
    """

    def __init__(self, call: int, epoch: int, rank: int, uids: Sequence[bytes]) -> None:
        self.call = call
        self.epoch = epoch
        self.rank = rank
        self.uids = tuple(uids)
        self.gone: set[int] = set()
        self.ready: dict[int, Ready] = {}
        self.culprits: set[bytes] = set()
        self._drafts: dict[Number, Record] = {}
        self._states: dict[Number, DraftState] = {}
        self._void: Void | None = None
        self._deadline = float("inf")
        self._late = float("inf")  # the end of every wait for a convener or a draft
        self._attempt = call << 16  # drafts of different calls have different numbers, and names
        self._why = ""  # the last draft came to nothing
        self._unruled = "no member said which epoch is next"

    # ── what happened ────────────────────────────────────────────────────────────────────────────────

    def begin(self, ready: Ready, deadline: float) -> MemberMessage:
        """Begin this process's call; returns what to tell everybody."""
        self.ready[self.rank] = ready
        self._deadline = deadline
        self._late = max(deadline + GRACE, self._late if self._late < float("inf") else 0.0)
        return ready

    def lose(self, rank: int) -> None:
        """Note that a member is lost, or has left."""
        self.gone.add(rank)

    def hear(self, rank: int, message: MemberMessage, now: float) -> None:
        """Take what a member said about this call."""
        match message:
            case Ready():
                self.ready.setdefault(rank, message)
            case Draft(_, record):
                if record.epoch == self.epoch + 1 and record.number not in self._drafts:
                    self._drafts[record.number] = record
                    self._note(record.number, DraftEvent.HEARD)
                    self._attempt = max(self._attempt, record.number[0])
                    # Longer than forming it may take: where it fails there is time for another.
                    late = now + FORMING + GRACE
                    self._late = max(self._late if self._late < float("inf") else 0.0, late)
            case Dropped(_, number, culprits, why):
                self.drop(number, culprits, says(f"rank {rank}", why) if why else "")
            case Decided(_, record):
                self.decide(record)
            case Void():
                if self._void is None:
                    self._void = message

    def drop(self, number: Number, culprits: Collection[bytes] = (), why: str = "") -> None:
        """Drop a draft that could not be formed; `why` is for the error, if no other can be formed."""
        if self._note(number, DraftEvent.FAILED):
            self._why = why or self._why
            self._attempt = max(self._attempt, number[0])
            if number >= max(self._drafts, default=number):  # else they went with a later one
                self.culprits.update(culprits)

    def form(self, number: Number) -> None:
        """Note that a draft has been formed here: all its members are connected."""
        self._note(number, DraftEvent.CONNECTED)

    def decide(self, record: Record) -> None:
        """Note the arbiter's decision."""
        if self._decided() is None and record.epoch == self.epoch + 1:
            self._drafts[record.number] = record
            self._note(record.number, DraftEvent.DECIDED)

    def asked(self, number: Number, why: str) -> None:
        """Note that the arbiter was asked for this draft, and could not answer. It is asked again while there
        is time."""
        self._note(number, DraftEvent.UNANSWERED)
        self._unruled = why

    def state_of(self, number: Number) -> DraftState:
        """The state of a draft here."""
        return self._states.get(number, DraftState.UNHEARD)

    def _note(self, number: Number, event: DraftEvent) -> bool:
        """Take news of a draft → whether its state is another now."""
        before = self.state_of(number)
        self._states[number] = after(before, event)
        return self._states[number] is not before

    # ── what to do ───────────────────────────────────────────────────────────────────────────────────

    @property
    def wanted(self) -> int:
        """The number of newcomers that the callers wait for; 0 where one of them goes on without."""
        return min((ready.wanted for ready in self.ready.values()), default=0)

    def current(self) -> Record | None:
        """The latest draft that was not dropped."""
        alive = [number for number in self._drafts if self.state_of(number) is not DraftState.DROPPED]
        return self._drafts[max(alive)] if alive else None

    def _decided(self) -> Record | None:
        """The draft that the arbiter has decided for."""
        return next((self._drafts[n] for n, state in self._states.items() if state is DraftState.EPOCH), None)

    def next(self, now: float) -> Step:
        """The step to take now."""
        decided = self._decided()
        if decided is not None:
            if self.uids[self.rank] in decided.members:
                return Adopt(decided)
            return Fail(f"epoch {decided.epoch} was formed without this process", evicted=True)
        if self._void is not None:
            return Fail(self._void.why, quorum=self._void.quorum)
        self._drop_hopeless()
        draft = self.current()
        if draft is not None:
            return self._with(draft, now)
        over = now >= self._deadline + OVERTIME
        if self.convener(now) == self.rank and not over:
            return self._convene(now)
        if now >= self._end():
            return Fail(self._silence(now), quorum=True)
        return Wait(self._deadline if now < self._deadline else self._end())

    def convener(self, now: float) -> int:
        """The rank that makes drafts: the lowest that is not gone, and, once time is up, that is ready."""
        late = now >= self._deadline
        here = (r for r in self._expected() if not late or r in self.ready)
        return next(here, self.rank)

    def limit(self, now: float) -> float:
        """The next moment at which time alone may change what is to be done."""
        end = self._end()
        last = self._deadline + OVERTIME
        return min((at for at in (self._deadline, end, end + GRACE, last) if at > now), default=now + GRACE)

    def missing(self) -> list[int]:
        """Ranks that are waited for: neither gone nor ready."""
        return [r for r in self._expected() if r not in self.ready]

    def _expected(self) -> list[int]:
        """Ranks that are not gone, and that no caller wants to be without."""
        excluded = self._excluded()
        return [r for r, uid in enumerate(self.uids) if r not in self.gone and uid not in excluded]

    def _excluded(self) -> set[bytes]:
        return {uid for ready in self.ready.values() for uid in ready.excluded}

    def _end(self) -> float:
        return min(self._late, self._deadline + OVERTIME)

    def _drop_hopeless(self) -> None:
        gone = {self.uids[rank] for rank in self.gone}
        for number, record in self._drafts.items():
            if gone.intersection(record.members):
                self.drop(number)  # its convener is one of them, so nobody asks for it who has not asked yet

    def _with(self, draft: Record, now: float) -> Step:
        uid, end, state = self.uids[self.rank], self._end(), self.state_of(draft.number)
        member, late = uid in draft.members, now >= end
        if member and state is DraftState.DRAFTED:
            return (
                Fail(f"epoch {draft.epoch} could not be formed in time", quorum=True) if late else Form(draft)
            )
        ask = state is not DraftState.UNRULED or now < end + GRACE
        if member and ask and (draft.number[1] == self.rank or late):
            return Rule(draft)
        if now >= end + GRACE:
            return Fail(self._unruled, quorum=member, evicted=not member)
        return Wait(end + GRACE if late else end)

    def _convene(self, now: float) -> Step:
        late = now >= self._deadline
        if not late and self.missing():
            return Wait(self._deadline)
        excluded = self._excluded() | (self.culprits - {self.uids[self.rank]})
        ranks = sorted(rank for rank in self.ready if rank not in self.gone)
        members = tuple(self.uids[rank] for rank in ranks if self.uids[rank] not in excluded)
        least = max(ready.min_size for ready in self.ready.values())
        admit = all(ready.admit for ready in self.ready.values()) or self.wanted > 0
        if self.uids[self.rank] not in members:
            return Fail("the others asked for an epoch without this process", evicted=True)
        if len(members) < least and not admit:
            return Fail(
                f"{len(members)} of {len(self.uids)} members are left, {least} are needed", quorum=True
            )
        wanted = max(self.wanted, least - len(members))
        return Invite(self._attempt + 1, members, 1 << 16 if admit else 0, wanted, late)

    def _silence(self, now: float) -> str:
        missing = self.missing()
        if self.convener(now) == self.rank:
            said = f"the next epoch could not be formed within {OVERTIME:g} s"
        else:
            said = f"no message from {name_ranks(missing) if missing else f'rank {self.convener(now)}'}"
        return f"{said}; the last attempt failed: {self._why}" if self._why else said
