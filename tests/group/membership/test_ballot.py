"""The ballot under loss, duplication, reordering, rival proposers and deaths: one value, and an end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.group.membership.ballot import Addressed, Ballots
from aiodist.group.membership.messages import Accept, Accepted, MemberMessage, Outbid, Prepare, Promise
from tests.levels import COSTLY

TOPIC = "epoch/1"


class Members:
    """A model: members of an epoch, some on one host, and the network between them.

    Between hosts messages are lost, repeated and overtaken. On a host nothing is lost, though it may be late;
    and whoever has the proof that a process of its host has died has read all that it had said.
    """

    def __init__(self, hosts: list[int], seed: int) -> None:
        self.hosts = hosts
        self.draw = random.Random(seed)
        self.members = [Ballots(rank, len(hosts)) for rank in range(len(hosts))]
        self.alive = set(range(len(hosts)))
        self.dead: list[set[int]] = [set() for _ in hosts]  # by member: whose end it has seen
        self.network: list[tuple[int, int, MemberMessage]] = []
        self.chosen: dict[int, bytes] = {}

    def send(self, src: int, told: list[Addressed]) -> None:
        for target, message in told:
            for dst in range(len(self.hosts)) if target is None else [target]:
                if dst != src:
                    self.network.append((src, dst, message))
        self.note(src)

    def note(self, rank: int) -> None:
        """Note the value that a member holds for chosen, and tells the world: it must be the only one."""
        if TOPIC in self.members[rank].chosen:
            self.chosen[rank] = self.members[rank].chosen[TOPIC]

    def propose(self, rank: int) -> None:
        if rank in self.alive and rank not in self.chosen:
            value = b"by %d" % rank
            self.send(rank, self.members[rank].propose(TOPIC, value, self.dead[rank]))

    def deliver(self, index: int) -> None:
        src, dst, message = self.network.pop(index)
        if dst in self.alive:
            self.send(dst, self.members[dst].hear(src, message, self.dead[dst]))

    def lose(self, index: int) -> None:
        src, dst, _ = self.network[index]
        if self.hosts[src] != self.hosts[dst]:
            del self.network[index]

    def repeat(self, index: int) -> None:
        self.network.append(self.network[index])

    def crash(self, rank: int) -> None:
        self.alive.discard(rank)

    def prove(self, rank: int, of: int) -> None:
        """A member sees that a process of its host has ended, and reads its last words first."""
        if of in self.alive or rank not in self.alive or self.hosts[rank] != self.hosts[of]:
            return
        index = 0
        while index < len(self.network):
            src, dst, _ = self.network[index]
            if (src, dst) == (of, rank):
                self.deliver(index)
                index = 0
            else:
                index += 1
        self.dead[rank].add(of)
        self.send(rank, self.members[rank].recount(TOPIC, self.dead[rank]))

    def step(self) -> None:
        """Something happens to somebody."""
        draw, size = self.draw, len(self.hosts)
        kind = draw.random()
        if kind < 0.08:
            self.propose(draw.randrange(size))
        elif kind < 0.12 and len(self.alive) > 1:
            self.crash(draw.randrange(size))
        elif kind < 0.25:
            self.prove(draw.randrange(size), draw.randrange(size))
        elif self.network:
            index = draw.randrange(len(self.network))
            act = self.lose if kind < 0.35 else self.repeat if kind < 0.4 else self.deliver
            act(index)

    def calm_down(self) -> None:
        """From now on everything arrives, and every death is seen by its host."""
        for rank in sorted(self.alive):
            for of in range(len(self.hosts)):
                self.prove(rank, of)
        while self.network:
            self.deliver(self.draw.randrange(len(self.network)))

    def can_decide(self, rank: int) -> bool:
        return len(self.alive) * 2 > len(self.hosts) - len(self.dead[rank])


HOSTS = st.lists(st.integers(0, 2), min_size=1, max_size=7)


@pytest.mark.slow(COSTLY)
@settings(max_examples=300, deadline=None)
@given(HOSTS, st.integers(0, 2**32), st.integers(0, 200))
def test_never_two_values_and_an_end_once_messages_flow(hosts: list[int], seed: int, steps: int) -> None:
    world = Members(hosts, seed)
    world.propose(world.draw.randrange(len(hosts)))
    for _ in range(steps):
        world.step()
        assert len(set(world.chosen.values())) <= 1
    world.calm_down()
    for rank in sorted(world.alive):
        for _ in range(len(hosts) + steps + 2):  # each time it is outbid it knows of a higher ballot
            if rank in world.chosen or not world.can_decide(rank):
                break
            world.propose(rank)
            world.calm_down()
        assert len(set(world.chosen.values())) <= 1
        if world.can_decide(rank):
            assert rank in world.chosen


@pytest.mark.parametrize(("size", "seed"), [(3, 7934), (3, 13342), (4, 6827), (5, 9566)])
def test_never_two_values_where_the_dead_had_promised_or_accepted_a_higher_ballot(
    size: int, seed: int
) -> None:
    assert not _splits([0] * size, seed)


def test_the_model_finds_a_ballot_that_forgets_what_was_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    hear = Ballots.hear

    def forgetful(self: Ballots, origin: int, message: MemberMessage, dead: set[int]) -> list[Addressed]:
        if isinstance(message, Promise):
            message = Promise(message.topic, message.ballot, None)
        if isinstance(message, Accepted) and origin != self.rank:
            vote = self._votes.get(message.topic)
            seen = vote.seen if vote else None
            told = hear(self, origin, message, dead)
            self._votes[message.topic].seen = seen
            return told
        return hear(self, origin, message, dead)

    monkeypatch.setattr(Ballots, "hear", forgetful)
    assert any(_splits([0, 1, 2], seed) for seed in range(300))


def test_the_model_finds_that_discounting_without_proof_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(self: Members, rank: int, of: int) -> None:
        if rank != of and rank in self.alive:  # hearsay, of somebody who may live
            self.dead[rank].add(of)
            self.send(rank, self.members[rank].recount(TOPIC, self.dead[rank]))

    monkeypatch.setattr(Members, "prove", believe)
    assert any(_splits([0, 1, 2, 3], seed) for seed in range(300))


def _splits(hosts: list[int], seed: int) -> bool:
    world = Members(hosts, seed)
    for _ in range(150):
        world.step()
    for rank in sorted(world.alive):
        world.propose(rank)
        world.calm_down()
    return len(set(world.chosen.values())) > 1


def test_alone_it_decides_at_once() -> None:
    alone = Ballots(0, 1)
    alone.propose(TOPIC, b"mine", ())
    assert alone.chosen == {TOPIC: b"mine"}


def test_two_and_one_is_silent() -> None:
    first = Ballots(0, 2)
    first.propose(TOPIC, b"mine", ())
    assert first.recount(TOPIC, ()) == []
    assert not first.chosen  # silence is no proof
    first.recount(TOPIC, {1})
    assert first.chosen == {TOPIC: b"mine"}


def test_a_later_proposer_takes_what_it_saw_accepted_by_the_dead() -> None:
    third = Ballots(2, 3)
    third.hear(0, Prepare(TOPIC, (1, 0)), ())
    third.hear(0, Accepted(TOPIC, (1, 0), b"theirs"), ())
    third.propose(TOPIC, b"mine", {0, 1})
    third.hear(2, Outbid(TOPIC, (1, 0)), {0, 1})
    third.propose(TOPIC, b"mine", {0, 1})
    assert third.chosen == {TOPIC: b"theirs"}


def test_a_promise_forbids_lower_ballots() -> None:
    member = Ballots(1, 3)
    assert member.hear(2, Prepare(TOPIC, (5, 2)), ()) == [(None, Promise(TOPIC, (5, 2), None))]
    assert member.hear(0, Accept(TOPIC, (4, 0), b"x"), ()) == [(0, Outbid(TOPIC, (5, 2)))]
    assert member.hear(0, Prepare(TOPIC, (4, 0)), ()) == [(0, Outbid(TOPIC, (5, 2)))]
    [(target, told)] = member.hear(2, Accept(TOPIC, (5, 2), b"y"), ())
    assert (target, told) == (None, Accepted(TOPIC, (5, 2), b"y"))
    assert member.hear(0, Prepare(TOPIC, (6, 0)), ()) == [(None, Promise(TOPIC, (6, 0), ((5, 2), b"y")))]


def test_a_higher_ballot_that_the_dead_have_accepted_outbids_who_does_not_count_them() -> None:
    second, dead = Ballots(1, 5), {3, 4}
    second.propose(TOPIC, b"mine", ())
    for rank in (2, 3):
        second.hear(rank, Promise(TOPIC, (1, 1), None), ())
    second.hear(2, Accepted(TOPIC, (1, 1), b"mine"), ())
    for rank in dead:  # with rank 0, which has chosen that
        second.hear(rank, Accepted(TOPIC, (2, 0), b"theirs"), ())
    second.recount(TOPIC, dead)
    assert not second.chosen
    assert TOPIC in second.outbid
    second.propose(TOPIC, b"mine", dead)
    second.hear(2, Promise(TOPIC, (3, 1), ((1, 1), b"mine")), dead)
    second.hear(2, Accepted(TOPIC, (3, 1), b"theirs"), dead)
    assert second.chosen == {TOPIC: b"theirs"}


def test_a_higher_ballot_that_the_dead_have_promised_outbids_who_does_not_count_them() -> None:
    first, dead = Ballots(0, 5), {3, 4}
    first.propose(TOPIC, b"mine", ())
    for rank in (2, 3):
        first.hear(rank, Promise(TOPIC, (1, 0), None), ())
    first.hear(2, Accepted(TOPIC, (1, 0), b"mine"), ())
    for rank in dead:  # rank 1 proposes with these two promises and its own, and knows of nothing accepted
        first.hear(rank, Promise(TOPIC, (1, 1), None), ())
    first.recount(TOPIC, dead)
    assert not first.chosen
    assert TOPIC in first.outbid
    assert first.propose(TOPIC, b"mine", dead)[0] == (None, Prepare(TOPIC, (2, 0)))


def test_whoever_is_outbid_by_its_own_promise_learns_it() -> None:
    member = Ballots(0, 3)
    member.hear(2, Prepare(TOPIC, (7, 2)), ())
    member.propose(TOPIC, b"mine", ())
    assert TOPIC in member.outbid
    assert member.propose(TOPIC, b"mine", ())[0] == (None, Prepare(TOPIC, (8, 0)))
