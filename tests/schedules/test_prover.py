from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.schedules import recursive, ring
from aiodist.schedules.prover import ScheduleError, prove
from aiodist.schedules.steps import Recv, RecvReduce, Schedule, Send, Step, schedule
from aiodist.types import Kind

Rounds = list[tuple[Step, ...]]


def refuted(kind: Kind, chunks: int, *ranks: Rounds, root: int = -1, match: str) -> None:
    with pytest.raises(ScheduleError, match=match):
        prove(kind, [schedule("wrong", chunks, rounds) for rounds in ranks], root)


@given(
    seed=st.integers(0, 2**32), size=st.integers(1, 20), name=st.sampled_from(["ring", "doubling", "halving"])
)
@settings(max_examples=60)
def test_the_order_in_which_ranks_proceed_does_not_matter(seed: int, size: int, name: str) -> None:
    build = {"ring": ring.all_reduce, "doubling": recursive.doubling, "halving": recursive.halving}[name]
    schedules = [build(rank, size) for rank in range(size)]
    shuffled = prove(Kind.all_reduce, schedules, pick=random.Random(seed).randrange)
    assert shuffled == prove(Kind.all_reduce, schedules)


def test_reducing_twice_is_found() -> None:
    give: Rounds = [(Send(1, 0, 1),), (Send(1, 0, 1),)]
    take: Rounds = [(RecvReduce(0, 0, 1, left=True),)] * 2
    refuted(
        Kind.reduce, 1, give, take, root=1, match=r"rank 1, chunk 0: holds the values of ranks \[0, 0, 1\]"
    )


def test_losing_a_value_is_found() -> None:
    refuted(
        Kind.reduce, 1, [(Send(1, 0, 1),)], [(Recv(0, 0, 1),)], root=1, match=r"holds .* ranks \[0\], not"
    )


def test_two_orders_are_two_answers() -> None:
    first: Rounds = [(Send(1, 0, 1, copy=True), RecvReduce(1, 0, 1, left=True))]
    second: Rounds = [(Send(0, 0, 1, copy=True), RecvReduce(0, 0, 1, left=True))]
    refuted(Kind.all_reduce, 1, first, second, match="2 different expressions")


def test_the_same_wrong_order_everywhere_is_found() -> None:
    first: Rounds = [(Send(1, 0, 1, copy=True), RecvReduce(1, 0, 1, left=True))]
    second: Rounds = [(Send(0, 0, 1, copy=True), RecvReduce(0, 0, 1, left=False))]
    refuted(Kind.all_reduce, 1, first, second, match="not in the order of ranks")


def test_repeating_without_saying_so_is_found() -> None:
    first: Rounds = [(Send(1, 0, 1, copy=True), RecvReduce(1, 0, 1, left=False))]
    second: Rounds = [(Send(0, 0, 1, copy=True), RecvReduce(0, 0, 1, left=True))]
    refuted(Kind.all_reduce, 1, first, second, match="the schedule does not say so")
    prove(Kind.all_reduce, [schedule("right", 1, rounds, repeats=True) for rounds in (first, second)])


def test_a_deadlock_is_found() -> None:
    first: Rounds = [(Send(1, 0, 1),), (Recv(1, 0, 1),)]
    second: Rounds = [(Send(0, 0, 1),), (Recv(0, 0, 1),)]
    refuted(Kind.broadcast, 1, first, second, root=0, match="only one end: 0→1 in round 0, 1→0 in round 0")


def test_a_message_without_a_receiver_is_found() -> None:
    refuted(Kind.barrier, 1, [(Send(1, 0, 0),)], [()], match="only one end: 0→1 in round 0")


def test_ends_that_name_different_chunks_are_found() -> None:
    refuted(
        Kind.broadcast, 2, [(Send(1, 0, 2),)], [(Recv(0, 0, 1),)], root=0, match="rank 0 sends .* expects"
    )


def test_sending_what_one_does_not_have_is_found() -> None:
    refuted(
        Kind.all_gather, 2, [(Send(1, 1, 2),)], [(Recv(0, 1, 2),)], match="sends chunk 1 before it has it"
    )


def test_reducing_into_nothing_is_found() -> None:
    rounds: Rounds = [(RecvReduce(0, 0, 1, left=True),)]
    refuted(Kind.all_gather, 2, [(Send(1, 0, 1),)], rounds, match="reduces into chunk 0 before it has it")


def test_a_gap_in_the_result_is_found() -> None:
    refuted(Kind.all_gather, 2, [()], [()], match=r"rank 0, chunk 1: holds the values of ranks \[\]")


@pytest.mark.parametrize(
    ("steps", "match"),
    [
        ((Send(0, 0, 1),), "no such peer"),
        ((Send(2, 0, 1),), "no such peer"),
        ((Send(1, 0, 3),), "leaves the buffer of 2 chunks"),
        ((Send(1, 1, 0),), "leaves the buffer"),
        ((Send(1, 0, 1), Send(1, 1, 2)), "second message with rank 1"),
        ((Recv(1, 0, 1), Send(1, 1, 2)), "a send stands after a receive"),
        ((Send(1, 0, 2), Recv(1, 1, 2)), "chunk 1 is sent while it is written"),
    ],
)
def test_broken_rules_are_named(steps: tuple[Step, ...], match: str) -> None:
    refuted(Kind.barrier, 2, [steps], [()], match=f"rank 0, round 0: .*{match}")


def test_two_steps_that_write_one_chunk_are_found() -> None:
    taking: Rounds = [(Recv(1, 0, 1), RecvReduce(2, 0, 1, left=True))]
    refuted(Kind.barrier, 1, taking, [(Send(0, 0, 1),)], [(Send(0, 0, 1),)], match="two steps write chunk 0")


def test_ranks_must_divide_the_buffer_alike() -> None:
    with pytest.raises(ScheduleError, match="divide the buffer differently"):
        prove(Kind.barrier, [Schedule("x", 1, (), False), Schedule("x", 2, (), False)])
