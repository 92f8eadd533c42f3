"""The control plane's decisions, on a simulated overlay: floods and losses reach everybody once."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.control.core import ControlCore, Deliver, Effect, Transmit
from aiodist.control.messages import EVERYBODY, Message, Say
from aiodist.control.overlay import neighbours


class Overlay:
    """Cores whose messages are in flight in one bag, taken out in random order (in order on each link)."""

    def __init__(self, size: int, rng: random.Random, dead: frozenset[int] = frozenset()) -> None:
        self.cores = [ControlCore(rank, size) for rank in range(size)]
        self.rng = rng
        self.dead = dead
        self.links: dict[tuple[int, int], list[Message]] = {}
        self.delivered: dict[int, list[Message]] = {rank: [] for rank in range(size)}
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


@settings(max_examples=20, deadline=None)
@given(size=st.integers(2, 200), seed=st.integers(0, 2**32), share=st.floats(0, 0.4))
def test_flood_reaches_every_living_rank_exactly_once(size: int, seed: int, share: float) -> None:
    rng = random.Random(seed)
    dead = frozenset(rng.sample(range(size), int(size * share)))
    origin = rng.choice([rank for rank in range(size) if rank not in dead])
    overlay = Overlay(size, rng, dead)
    overlay.carry_out(origin, overlay.cores[origin].flood(Say.left, 77, origin, 5))
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


def test_goodbye_is_no_loss() -> None:
    core = ControlCore(0, 4)
    core.depart(2)
    assert core.lose(2, "process 5 ended") == []
    assert not core.lost
    late = Message(Say.lost, 3, 1, EVERYBODY, 64, (2, "its connection ended"))
    assert not [effect for effect in core.receive(3, late) if isinstance(effect, Deliver)]
    assert not core.lost
    assert all(
        effect.neighbour != 2 for effect in core.flood(Say.left, 1, 0, 0) if isinstance(effect, Transmit)
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
    message = Message(Say.lost, 0, 9, EVERYBODY, 64, (1, "spoke nonsense"))
    effects = core.receive(0, message)
    assert Deliver(message) in effects
    assert {effect.neighbour for effect in effects if isinstance(effect, Transmit)} == {2, 3}
    again = core.receive(2, Message(Say.lost, 2, 4, EVERYBODY, 64, (1, "spoke nonsense")))
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


def test_message_without_a_way_is_dropped() -> None:
    overlay = Overlay(12, random.Random(1))
    core = overlay.cores[0]
    for neighbour in core.neighbours:
        core.depart(neighbour)
    assert core.tell(6, Say.where, 1, 2) == []
    assert core.flood(Say.left, 1, 0, 0) == []


def test_message_does_not_travel_for_ever() -> None:
    # Both think that the other is nearer: the number of hops ends it.
    tired = Message(Say.where, 5, 1, 6, 0, (1, 2))
    assert ControlCore(0, 12).receive(5, tired) == []


def test_an_old_number_is_forgotten_only_after_thousands() -> None:
    core = ControlCore(0, 3)
    first = Message(Say.left, 1, 1, EVERYBODY, 64, (9, 1, 1))
    assert core.receive(1, first)
    for number in range(2, 6000):
        assert core.receive(1, Message(Say.left, 1, number, EVERYBODY, 64, (9, 1, 1)))
        if number == 4000:
            assert core.receive(2, first) == []
    recent = Message(Say.left, 1, 5999, EVERYBODY, 64, (9, 1, 1))
    assert core.receive(2, recent) == []
    assert len(core._seen[1]) <= 4096
