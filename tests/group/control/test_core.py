"""The control plane's decisions, on a simulated overlay: floods and losses reach everybody once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.group.control.core import ControlCore, Deliver, Drop, Effect, Transmit
from aiodist.group.control.messages import EVERYBODY, Message, Say
from aiodist.group.control.overlay import neighbours
from tests.levels import COSTLY


class Overlay:
    """Cores whose messages are in flight in one bag, taken out in random order (in order on each link)."""

    def __init__(self, size: int, rng: random.Random, dead: frozenset[int] = frozenset()) -> None:
        self.cores = [ControlCore(rank, size) for rank in range(size)]
        self.rng = rng
        self.dead = dead
        self.links: dict[tuple[int, int], list[Message]] = {}
        self.delivered: dict[int, list[Message]] = {rank: [] for rank in range(size)}
        self.dropped: dict[int, list[int]] = {rank: [] for rank in range(size)}
        self.sent = 0

    def carry_out(self, rank: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Deliver(message):
                    self.delivered[rank].append(message)
                case Transmit(neighbour, message):
                    assert neighbour in neighbours(rank, len(self.cores))
                    self.sent += 1
                    if neighbour not in self.dead:
                        self.links.setdefault((rank, neighbour), []).append(message)
                case Drop(lost):
                    assert lost in self.cores[rank].lost
                    self.dropped[rank].append(lost)

    def run(self) -> None:
        steps = 0
        while self.links:
            steps += 1
            assert steps < 100_000, "it never ends"
            link = self.rng.choice(list(self.links))
            message = self.links[link].pop(0)
            if not self.links[link]:
                del self.links[link]
            source, target = link
            self.carry_out(target, self.cores[target].receive(source, message))


def connected(size: int, dead: frozenset[int], start: int) -> set[int]:
    """The living whom `start` can reach over living ranks."""
    seen, edge = {start}, [start]
    while edge:
        for other in neighbours(edge.pop(), size):
            if other not in dead and other not in seen:
                seen.add(other)
                edge.append(other)
    return seen


@pytest.mark.slow(COSTLY)
@settings(max_examples=20, deadline=None)
@given(size=st.integers(2, 200), seed=st.integers(0, 2**32), share=st.floats(0, 0.4))
def test_flood_reaches_every_living_rank_exactly_once(size: int, seed: int, share: float) -> None:
    rng = random.Random(seed)
    dead = frozenset(rng.sample(range(size), int(size * share)))
    origin = rng.choice([rank for rank in range(size) if rank not in dead])
    overlay = Overlay(size, rng, dead)
    overlay.carry_out(origin, overlay.cores[origin].flood(Say.left, 77, origin, 5, ()))
    overlay.run()
    for rank in range(size):
        expected = 1 if rank in connected(size, dead, origin) - {origin} else 0
        assert len(overlay.delivered[rank]) == expected, f"rank {rank}"
    assert overlay.sent <= size * len(neighbours(0, size))  # each passes it on once


@settings(max_examples=15, deadline=None)
@given(size=st.integers(3, 60), seed=st.integers(0, 2**32))
def test_loss_is_told_once_to_each_whoever_notices(size: int, seed: int) -> None:
    rng = random.Random(seed)
    victims = frozenset(rng.sample(range(size), rng.randint(1, max(1, size // 6))))
    overlay = Overlay(size, rng, victims)
    for victim in victims:  # every neighbour notices, each at its own time
        for rank in neighbours(victim, size):
            if rank not in victims:
                overlay.carry_out(rank, overlay.cores[rank].lose(victim, f"seen by {rank}"))
    overlay.run()
    for rank in set(range(size)) - victims:
        told = [message.body[0] for message in overlay.delivered[rank]]
        reachable = {v for v in victims if set(neighbours(v, size)) & connected(size, victims, rank)}
        assert sorted(told) == sorted(reachable)
        assert overlay.cores[rank].lost.keys() == reachable
        assert sorted(overlay.dropped[rank]) == sorted(reachable)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(2, 64), seed=st.integers(0, 2**32), share=st.floats(0, 0.8), all_know=st.booleans())
def test_message_to_one_rank_arrives_if_there_is_a_way(
    size: int, seed: int, share: float, all_know: bool
) -> None:
    """Any dead ranks may be in between; all know of them, or only those beside them."""
    rng = random.Random(seed)
    dead = frozenset(rng.sample(range(size), int(size * share)))
    living = [rank for rank in range(size) if rank not in dead]
    overlay = Overlay(size, rng, dead)
    for rank in living:
        for gone in dead:
            if all_know or gone in neighbours(rank, size):
                overlay.cores[rank].lose(gone, "dead")  # what it would say of that is not said
    for _ in range(8):
        origin, target = rng.choice(living), rng.choice(living)
        before = {rank: len(messages) for rank, messages in overlay.delivered.items()}
        overlay.carry_out(origin, overlay.cores[origin].tell(target, Say.where, 1, 2))
        overlay.run()
        got = {rank for rank, messages in overlay.delivered.items() if len(messages) > before[rank]}
        assert got == ({target} if target in connected(size, dead, origin) else set())
        assert len(overlay.delivered[target]) <= before[target] + 1


def test_message_goes_back_where_that_is_the_only_way() -> None:
    core = ControlCore(3, 12)
    for neighbour in core.neighbours:
        if neighbour != 2:
            core.depart(neighbour)
    stuck = Message(Say.where, 0, 1, 8, 60, (1, 2))
    looked_for = Message(Say.where, 0, 1, 8, 0, (1, 2))
    assert core.receive(2, stuck) == [Transmit(2, looked_for)]
    assert core.receive(2, looked_for) == []


def test_a_loss_says_how_long_the_silence_was_and_whether_it_is_proven() -> None:
    here, there, later = ControlCore(0, 4), ControlCore(1, 4), ControlCore(3, 4)
    effects = here.lose(2, "does not answer", silence=1.2345, proven=True)
    [news] = {effect.message for effect in effects if isinstance(effect, Transmit)}
    assert news.body == (2, "does not answer", 1234)
    assert Drop(2) in there.receive(0, news)
    assert here.silence == there.silence == {2: 1.234}
    assert here.proven == {2}
    assert there.proven == set()  # hearsay
    assert there.lose(2, "process 5 ended", proven=True) == []
    assert there.proven == {2}
    later.lose(2, "its connection ended")
    assert later.silence == {}


def test_whoever_hears_of_a_loss_tells_the_lost_rank_last() -> None:
    core = ControlCore(1, 4)
    news = Message(Say.lost, 0, 9, EVERYBODY, 64, (2, "stopped", 30000))
    assert core.receive(0, news) == [Deliver(news), Transmit(3, news), Transmit(2, news), Drop(2)]
    assert core.receive(3, Message(Say.lost, 3, 5, EVERYBODY, 64, (2, "stopped", 30000))) == []


def test_who_was_given_up_accuses_nobody() -> None:
    core = ControlCore(1, 4)
    core.receive(0, Message(Say.lost, 0, 9, EVERYBODY, 64, (1, "stopped", 30000)))
    assert core.lose(0, "connection ended without goodbye") == []
    assert core.lost.keys() == {1}


@settings(max_examples=25, deadline=None)
@given(size=st.integers(3, 40), seed=st.integers(0, 2**32))
def test_two_that_cannot_reach_each_other_are_both_told(size: int, seed: int) -> None:
    """Each accuses the other; others reach both. Nobody is left in the dark, and nobody else is accused."""
    rng = random.Random(seed)
    one = rng.randrange(size)
    two = rng.choice(neighbours(one, size))
    overlay = Overlay(size, rng)
    for accuser, other in ((one, two), (two, one)):
        overlay.carry_out(accuser, overlay.cores[accuser].lose(other, "its host does not answer"))
    overlay.links.pop((one, two), None)
    overlay.links.pop((two, one), None)
    overlay.run()
    for rank in range(size):
        lost = overlay.cores[rank].lost.keys()
        assert lost
        assert lost <= {one, two}
        assert len(overlay.delivered[rank]) == len(lost)


def test_goodbye_is_no_loss() -> None:
    core = ControlCore(0, 4)
    core.depart(2)
    assert core.lose(2, "process 5 ended") == []
    assert not core.lost
    late = Message(Say.lost, 3, 1, EVERYBODY, 64, (2, "its connection ended", -1))
    assert not [effect for effect in core.receive(3, late) if isinstance(effect, Deliver)]
    assert not core.lost
    assert all(
        effect.neighbour != 2 for effect in core.flood(Say.left, 1, 0, 0, ()) if isinstance(effect, Transmit)
    )


def test_loss_before_goodbye_stays_a_loss() -> None:
    core = ControlCore(0, 4)
    assert core.lose(2, "reset")
    core.depart(2)
    assert 2 in core.lost
    assert 2 not in core.departed
    assert core.lose(2, "again") == []


def test_who_is_given_up_is_told_so_by_the_one_who_noticed() -> None:
    effects = ControlCore(0, 4).lose(2, "spoke nonsense")
    assert sorted(effect.neighbour for effect in effects if isinstance(effect, Transmit)) == [1, 2, 3]
    far = ControlCore(0, 100).lose(3, "spoke nonsense")
    assert 3 not in {effect.neighbour for effect in far if isinstance(effect, Transmit)}


def test_nobody_loses_itself() -> None:
    assert ControlCore(1, 4).lose(1, "strange") == []


def test_who_is_counted_as_lost_by_others_is_told_once() -> None:
    core = ControlCore(1, 4)
    message = Message(Say.lost, 0, 9, EVERYBODY, 64, (1, "spoke nonsense", -1))
    effects = core.receive(0, message)
    assert Deliver(message) in effects
    assert {effect.neighbour for effect in effects if isinstance(effect, Transmit)} == {2, 3}
    again = core.receive(2, Message(Say.lost, 2, 4, EVERYBODY, 64, (1, "spoke nonsense", -1)))
    assert not [effect for effect in again if isinstance(effect, Deliver)]


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_message_to_one_rank_arrives_there_alone(size: int, seed: int) -> None:
    rng = random.Random(seed)
    overlay = Overlay(size, rng)
    origin, target = rng.randrange(size), rng.randrange(size)
    overlay.carry_out(origin, overlay.cores[origin].tell(target, Say.where, 1, 2))
    overlay.run()
    assert {rank for rank, messages in overlay.delivered.items() if messages} == {target}
    [message] = overlay.delivered[target]
    assert (message.origin, message.body) == (origin, (1, 2))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(3, 100), seed=st.integers(0, 2**32))
def test_messages_go_around_who_passes_nothing_on(size: int, seed: int) -> None:
    """Loops that do not turn read nothing. Everybody knows whose; the others reach each other all the same,
    and what is for one of those waits in its socket."""
    rng = random.Random(seed)
    overlay = Overlay(size, rng)
    origin, target = rng.sample(range(size), 2)
    stuck = set(rng.sample(range(size), rng.randrange(min(size - 1, 4)))) - {origin}
    overlay.dead = frozenset(stuck - {target})
    for core in overlay.cores:
        core.avoided = stuck
    overlay.carry_out(origin, overlay.cores[origin].tell(target, Say.where, 1, 2))
    overlay.run()
    reachable = target in connected(size, overlay.dead, origin)
    assert [rank for rank, messages in overlay.delivered.items() if messages] == [target] * reachable


def test_a_loss_ends_what_was_said_of_a_loop() -> None:
    core = ControlCore(0, 4)
    blocked = Message(Say.blocked, 2, 1, EVERYBODY, 64, (2, 1, 5000, "train.py:41"))
    assert Deliver(blocked) in core.receive(2, blocked)
    core.lose(2, "process 5 ended")
    late = Message(Say.blocked, 3, 1, EVERYBODY, 64, (2, 2, 6000, ""))
    assert core.receive(3, late) == []


def test_message_without_a_way_is_dropped() -> None:
    overlay = Overlay(12, random.Random(1))
    core = overlay.cores[0]
    for neighbour in core.neighbours:
        core.depart(neighbour)
    assert core.tell(6, Say.where, 1, 2) == []
    assert core.flood(Say.left, 1, 0, 0, ()) == []


@pytest.mark.parametrize("rank", [0, 3])
def test_message_does_not_travel_for_ever(rank: int) -> None:
    # Out of hops it is looked for, and passed on once.
    spent = Message(Say.where, 5, 1, 6, 0, (1, 2))
    core = ControlCore(rank, 12)
    first = core.receive(1, spent)
    assert Transmit(1, spent) not in first
    assert {effect.neighbour for effect in first if isinstance(effect, Transmit)} == set(core.neighbours) - {
        1
    }
    assert core.receive(2, spent) == []
    beside = ControlCore(7, 12)
    assert beside.receive(1, spent) == [Transmit(6, spent)]


def test_an_old_number_is_forgotten_only_after_thousands() -> None:
    core = ControlCore(0, 3)
    first = Message(Say.left, 1, 1, EVERYBODY, 64, (9, 1, 1, ()))
    assert core.receive(1, first)
    for number in range(2, 6000):
        assert core.receive(1, Message(Say.left, 1, number, EVERYBODY, 64, (9, 1, 1, ())))
        if number == 4000:
            assert core.receive(2, first) == []
    recent = Message(Say.left, 1, 5999, EVERYBODY, 64, (9, 1, 1, ()))
    assert core.receive(2, recent) == []
    assert len(core._seen[1]) <= 4096
