"""Receives that are posted early change nothing: whatever overtakes what, ranks end with the same bits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.schedules.early import AHEAD, posted_in
from aiodist.backends.schedules.recursive import doubling, halving
from aiodist.backends.schedules.ring import all_reduce
from aiodist.backends.schedules.select import ALGORITHMS
from aiodist.backends.schedules.steps import Recv, RecvReduce, Schedule, Send, Step
from aiodist.base.types import Kind
from tests.levels import COSTLY, few

CASES = [
    (kind, name, size)
    for kind, algorithms in ALGORITHMS.items()
    for name, one in algorithms.items()
    for size in range(2, 14)
    if one.offered(size, 0)
]

Value = tuple[int, ...]
Message = tuple[int, int, int]  # from, to, round


class Run:
    """Schedules on symbols. A message moves chunk by chunk, and is read from the sender's buffer as it moves.

    Args:
        schedules: of all ranks.
        early: whether receives are posted as early as they may be.
        seed: chooses what happens next.
    """

    def __init__(self, schedules: list[Schedule], early: bool, seed: int) -> None:
        self.schedules = schedules
        self.chunks = schedules[0].chunks
        self.buffers: list[list[Value]] = [[(rank,)] * self.chunks for rank in range(len(schedules))]
        self.inputs = [list(buffer) for buffer in self.buffers]
        self.early = early
        self.pick = random.Random(seed).choice
        self.round = [-1] * len(schedules)
        self.moving: dict[Message, list[Value] | None] = {}  # what it carries, where it was copied
        self.posted: dict[Message, Recv | RecvReduce] = {}
        self.moved: dict[Message, int] = {}
        self.open = [[len(steps) for steps in one.rounds] for one in schedules]

    def finish(self) -> list[list[Value]]:
        for rank in range(len(self.schedules)):
            self._enter(rank)
        while ready := [message for message in self.moving if message in self.posted]:
            self._move(self.pick(ready))
        assert all(number == len(one.rounds) for number, one in zip(self.round, self.schedules, strict=True))
        return self.buffers

    def _enter(self, rank: int) -> None:
        one = self.schedules[rank]
        while self.round[rank] < 0 or not self.open[rank][self.round[rank]]:
            number = self.round[rank] = self.round[rank] + 1
            if number == len(one.rounds):
                return
            for step in one.rounds[number]:
                if isinstance(step, Send):
                    held = [self._source(rank, step)[chunk] for chunk in self._chunks(step)]
                    self.moving[rank, step.peer, number] = held if step.copy else None
            for later, steps in enumerate(one.rounds):
                for step in steps:
                    if isinstance(step, Send):
                        continue
                    if number == (posted_in(one, later, step) if self.early else later):
                        self.posted[step.peer, rank, later] = step

    def _move(self, message: Message) -> None:
        source, target, number = message
        step = self.posted[message]
        sent = next(
            s for s in self.schedules[source].rounds[number] if isinstance(s, Send) and s.peer == target
        )
        at = self.moved.get(message, 0)
        if at < sent.stop - sent.start:
            held = self.moving[message]
            where = self._chunks(sent)
            value = self._source(source, sent)[where[at]] if held is None else held[at]
            chunk = self._chunks(step)[at]
            buffer = self.buffers[target]
            if isinstance(step, RecvReduce):
                value = value + buffer[chunk] if step.left else buffer[chunk] + value
            buffer[chunk] = value
            self.moved[message] = at + 1
        if self.moved.get(message, 0) == sent.stop - sent.start:
            del self.moving[message], self.posted[message]
            for rank in (source, target):
                self.open[rank][number] -= 1
                if self.round[rank] == number:
                    self._enter(rank)

    def _source(self, rank: int, step: Send) -> list[Value]:
        return self.inputs[rank] if self.schedules[rank].two_buffers else self.buffers[rank]

    def _chunks(self, step: Step) -> list[int]:
        return [chunk % self.chunks for chunk in range(step.start, step.stop)]


SMALL = [case for case in CASES if case[2] in (2, 5, 8)]


@pytest.mark.parametrize(("kind", "name", "size"), few(CASES, SMALL))
def test_early_receives_change_nothing(kind: Kind, name: str, size: int) -> None:
    for root in {0, size // 2, size - 1}:
        schedules = [ALGORITHMS[kind][name].build(rank, size, root) for rank in range(size)]
        expected = Run(schedules, early=False, seed=0).finish()
        for seed in range(5):
            assert Run(schedules, early=True, seed=seed).finish() == expected


@pytest.mark.slow(COSTLY)
@settings(deadline=None)
@given(seed=st.integers(0, 1 << 32), size=st.integers(2, 9), algorithm=st.sampled_from([halving, all_reduce]))
def test_in_any_order(seed: int, size: int, algorithm: object) -> None:
    assert callable(algorithm)
    schedules = [algorithm(rank, size) for rank in range(size)]
    assert Run(schedules, True, seed).finish() == Run(schedules, False, 0).finish()


def receives(one: Schedule) -> list[tuple[int, int]]:
    """(round, round in which it may be posted) of each receive."""
    return [
        (number, posted_in(one, number, step))
        for number, steps in enumerate(one.rounds)
        for step in steps
        if not isinstance(step, Send)
    ]


def test_a_pair_asks_for_the_other_half_at_once() -> None:
    assert receives(halving(0, 2)) == [(0, 0), (1, 0)]


def test_a_ring_asks_two_rounds_ahead_unless_the_chunk_is_still_in_use() -> None:
    assert receives(all_reduce(1, 4)) == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 3)]
    assert AHEAD == 2


def test_what_is_copied_when_its_round_begins_is_not_written_before() -> None:
    assert receives(doubling(0, 4)) == [(0, 0), (1, 1)]


def test_a_chunk_that_was_just_received_is_not_overwritten() -> None:
    one = Schedule("x", 2, ((Recv(1, 0, 1),), (Recv(2, 0, 1), Recv(2, 1, 2))), True)
    assert receives(one) == [(0, 0), (1, 1), (1, 0)]
