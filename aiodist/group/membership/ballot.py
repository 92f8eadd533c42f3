"""One value a topic, by majority, whoever fails: single-decree Paxos among the members of an epoch. Pure.

Source: L. Lamport, "Paxos Made Simple" (2001), with one change. Members that are *proven* dead are not
counted by the proposer that has the proof, so that one of two may go on. That is safe because of two rules:

    1. A promise or an acceptance is told to everybody before it counts, and it is in the kernel's buffers of
       its host's other processes when its sender dies: who has the proof (a pidfd, so the same host) and a
       link with it has read it.
    2. Only a process's own proof counts, never hearsay, and an end of a connection is no proof.
    3. A proposer that does not count a member keeps what that member has promised: it is outbid where that
       was a higher ballot than its own.

A member that said goodbye counts as proven, too: it votes no more.
"""

# Why one value is chosen
#
# Say that a value is chosen with ballot b by the acceptances of A, without counting the dead D, and that the
# promises of Q led to a proposal with a higher ballot, without counting the dead E. Then one of these holds,
# since A is more than half of those not in D, Q more than half of those not in E, and so both together with
# what is in D or E are more than all:
#     - A and Q have a common member. It accepted b before it promised the higher ballot, and said so.
#     - A has a member in E. The later proposer has read its acceptance, by rule 1.
#     - Q has a member in D. Whoever has chosen has read its promise, by rule 1: it was outbid, by rule 3.
# The third cannot be. So each later proposal knows an acceptance with ballot b or higher when it is made, and
# the highest that it knows is that of a proposal made before it: by induction, all have the chosen value.

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from aiodist.group.membership.messages import (
    Accept,
    Accepted,
    Ballot,
    MemberMessage,
    Outbid,
    Prepare,
    Promise,
)

Addressed = tuple[int | None, MemberMessage]
"""The receiver (None: everybody else), and the message."""

_NONE: Ballot = (-1, -1)


@dataclass(slots=True)
class _Vote:
    """A member's own promise and acceptance on a topic, and what it saw others accept."""

    promised: Ballot = _NONE
    accepted: tuple[Ballot, bytes] | None = None
    seen: tuple[Ballot, bytes] | None = None  # the highest acceptance of anybody
    barred: dict[int, Ballot] = field(default_factory=dict)  # by member: below that it accepts nothing


@dataclass(slots=True)
class _Proposal:
    """A member's own attempt."""

    ballot: Ballot
    value: bytes
    promises: dict[int, tuple[Ballot, bytes] | None] = field(default_factory=dict)
    accepted: set[int] = field(default_factory=set)
    asking: bool = True  # in phase 1


class Ballots:
    """One member's part in all topics of one epoch.

    Args:
        rank: this member's.
        size: of the epoch.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.chosen: dict[str, bytes] = {}
        self.outbid: set[str] = set()
        self._votes: dict[str, _Vote] = {}
        self._proposals: dict[str, _Proposal] = {}
        self._rounds: dict[str, int] = {}

    def propose(self, topic: str, value: bytes, dead: Collection[int]) -> list[Addressed]:
        """Begin, or begin again with a higher ballot."""
        self._rounds[topic] = self._rounds.get(topic, 0) + 1
        self.outbid.discard(topic)
        ballot = (self._rounds[topic], self.rank)
        self._proposals[topic] = _Proposal(ballot, value)
        return [(None, Prepare(topic, ballot)), *self.hear(self.rank, Prepare(topic, ballot), dead)]

    def recount(self, topic: str, dead: Collection[int]) -> list[Addressed]:
        """Count again: more members are proven dead, and perhaps that is enough."""
        proposal = self._proposals.get(topic)
        return [] if proposal is None else self._count(topic, proposal, dead)

    def hear(self, origin: int, message: MemberMessage, dead: Collection[int]) -> list[Addressed]:
        """Take what a member said.

        Args:
            dead: members that this process knows to vote no more, by its own proof.
        """
        match message:
            case Prepare(topic, ballot):
                return self._prepare(origin, topic, ballot, dead)
            case Accept(topic, ballot, value):
                return self._accept(origin, topic, ballot, value, dead)
            case Promise(topic, ballot, accepted):
                self._bar(topic, origin, ballot)
                proposal = self._proposals.get(topic)
                if proposal is not None and proposal.ballot == ballot and proposal.asking:
                    proposal.promises[origin] = accepted
                    return self._count(topic, proposal, dead)
            case Accepted(topic, ballot, value):
                vote = self._votes.setdefault(topic, _Vote())
                if vote.seen is None or vote.seen[0] < ballot:
                    vote.seen = (ballot, value)
                self._bar(topic, origin, ballot)
                proposal = self._proposals.get(topic)
                if proposal is not None and proposal.ballot == ballot:
                    proposal.accepted.add(origin)
                    return self._count(topic, proposal, dead)
            case Outbid(topic, ballot):
                self._be_outbid(topic, ballot)
        return []

    def _bar(self, topic: str, rank: int, ballot: Ballot) -> None:
        """Note that a member accepts nothing below this ballot any more."""
        barred = self._votes.setdefault(topic, _Vote()).barred
        barred[rank] = max(barred.get(rank, _NONE), ballot)

    def _be_outbid(self, topic: str, ballot: Ballot) -> None:
        self._rounds[topic] = max(self._rounds.get(topic, 0), ballot[0])
        if topic in self._proposals and self._proposals[topic].ballot < ballot:
            self.outbid.add(topic)

    def _prepare(self, origin: int, topic: str, ballot: Ballot, dead: Collection[int]) -> list[Addressed]:
        vote = self._votes.setdefault(topic, _Vote())
        if ballot < vote.promised:
            return self._answer(origin, Outbid(topic, vote.promised), dead)
        vote.promised = ballot
        promise = Promise(topic, ballot, vote.accepted)
        return [(None, promise), *self.hear(self.rank, promise, dead)]

    def _accept(
        self, origin: int, topic: str, ballot: Ballot, value: bytes, dead: Collection[int]
    ) -> list[Addressed]:
        vote = self._votes.setdefault(topic, _Vote())
        if ballot < vote.promised:
            return self._answer(origin, Outbid(topic, vote.promised), dead)
        vote.promised, vote.accepted = ballot, (ballot, value)
        accepted = Accepted(topic, ballot, value)
        return [(None, accepted), *self.hear(self.rank, accepted, dead)]

    def _answer(self, origin: int, message: MemberMessage, dead: Collection[int]) -> list[Addressed]:
        return self.hear(self.rank, message, dead) if origin == self.rank else [(origin, message)]

    def _count(self, topic: str, proposal: _Proposal, dead: Collection[int]) -> list[Addressed]:
        living = self.size - len(set(dead) - {self.rank})
        barred = self._votes[topic].barred
        highest = max((barred[rank] for rank in barred.keys() & set(dead)), default=_NONE)
        if highest > proposal.ballot:
            self._be_outbid(topic, highest)
            return []
        if proposal.asking and len(proposal.promises.keys() - set(dead)) * 2 > living:
            proposal.asking = False
            known = [accepted for accepted in proposal.promises.values() if accepted is not None]
            seen = self._votes[topic].seen
            if seen is not None:
                known.append(seen)  # of the dead, too
            if known:
                proposal.value = max(known)[1]
            accept = Accept(topic, proposal.ballot, proposal.value)
            return [(None, accept), *self.hear(self.rank, accept, dead)]
        if not proposal.asking and len(proposal.accepted - set(dead)) * 2 > living:
            self.chosen.setdefault(topic, proposal.value)
        return []
