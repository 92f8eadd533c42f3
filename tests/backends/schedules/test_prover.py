from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.schedules import recursive, ring
from aiodist.backends.schedules.steps import Recv, RecvReduce, Rounds, Schedule, Send, Step, schedule
from aiodist.base.types import Kind
from tests.backends.schedules.prover import ScheduleError, prove


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
    refuted(Kind.all_reduce, 1, first, second, match="only one end: 0→1 in round 0, 1→0 in round 0")


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
        ((Send(1, 1, 4),), "leaves the buffer of 2 chunks"),
        ((Send(1, 2, 3),), "leaves the buffer of 2 chunks"),
        ((Send(1, -1, 1),), "leaves the buffer of 2 chunks"),
        ((Send(1, 1, 0),), "leaves the buffer"),
        ((Send(1, 0, 1), Send(1, 1, 2)), "second message with rank 1"),
        ((Recv(1, 0, 1), Send(1, 1, 2)), "a send stands after a receive"),
        ((Send(1, 0, 2), Recv(1, 1, 2)), "chunk 1 is sent while it is written"),
        ((Send(1, 1, 3), Recv(1, 0, 1)), "chunk 0 is sent while it is written"),
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


# ── ranges that wrap ─────────────────────────────────────────────────────────────────────────────────


def test_a_range_goes_on_at_chunk_0() -> None:
    first: Rounds = [(Send(1, 0, 1),), (Recv(2, 2, 4),)]
    second: Rounds = [(Recv(0, 0, 1),), (Send(2, 1, 2),), (Recv(2, 2, 3),)]
    third: Rounds = [(), (Send(0, 2, 3), Recv(1, 1, 2)), (Send(1, 2, 3),)]
    refuted(Kind.all_gather, 3, first, second, third, match="rank 2 sends .* rank 0 expects")
    third = [(), (Send(0, 2, 4), Recv(1, 1, 2)), (Send(1, 2, 3),)]
    refuted(Kind.all_gather, 3, first, second, third, match="rank 2 sends chunk 0 before it has it")


def test_ranges_that_overlap_where_they_wrap_are_found() -> None:
    taking: Rounds = [(Recv(1, 1, 3), Recv(2, 0, 1))]
    refuted(Kind.barrier, 2, taking, [(Send(0, 1, 3),)], [(Send(0, 0, 1),)], match="two steps write chunk 0")


# ── rooted operations ────────────────────────────────────────────────────────────────────────────────


def test_gather_and_scatter_with_a_gap_are_found() -> None:
    refuted(Kind.gather, 2, [()], [()], root=1, match=r"rank 1, chunk 0: holds .* ranks \[\], not \[0\]")
    refuted(Kind.scatter, 2, [()], [()], root=0, match=r"rank 1, chunk 1: holds .* ranks \[\], not \[0\]")


def test_scattering_what_the_root_has_not_given_yet_is_found() -> None:
    rounds: list[Rounds] = [[(), (Send(1, 2, 3),)], [(Send(2, 2, 3),), (Recv(0, 2, 3),)], [(Recv(1, 2, 3),)]]
    refuted(Kind.scatter, 3, *rounds, root=0, match="rank 1 sends chunk 2 before it has it")


@pytest.mark.parametrize("kind", [Kind.broadcast, Kind.scatter])
def test_writing_the_roots_tensor_is_found(kind: Kind) -> None:
    first: Rounds = [(Send(1, 0, 2),), (Recv(1, 1, 2),)]
    second: Rounds = [(Recv(0, 0, 2),), (Send(0, 1, 2),)]
    refuted(kind, 2, first, second, root=0, match="rank 0 is the root, and writes")


def test_a_chunk_a_rank_is_needed_where_chunks_belong_to_ranks() -> None:
    refuted(Kind.all_gather, 1, [()], [()], match="all_gather needs a chunk a rank, not 1")


def test_a_schedule_that_hides_that_it_writes_is_found() -> None:
    rounds: list[Rounds] = [[(Send(1, 0, 1),)], [(Recv(0, 0, 1),)]]
    hidden = [Schedule("x", 1, tuple(one), False) for one in rounds]
    with pytest.raises(ScheduleError, match=r"rank 1: .* wrong about whether it writes"):
        prove(Kind.broadcast, hidden, 0)


# ── two buffers ──────────────────────────────────────────────────────────────────────────────────────


def exchanged(*ranks: Rounds, two_buffers: bool = True) -> None:
    size = len(ranks)
    prove(Kind.all_to_all, [schedule("x", size, rounds, two_buffers=two_buffers) for rounds in ranks])


def test_an_exchange_names_the_chunks_of_two_buffers() -> None:
    exchanged([(Send(1, 1, 2), Recv(1, 1, 2))], [(Send(0, 0, 1), Recv(0, 0, 1))])
    with pytest.raises(ScheduleError, match="all_to_all has two buffers"):
        exchanged([(Send(1, 1, 2), Recv(1, 1, 2))], [(Send(0, 0, 1), Recv(0, 0, 1))], two_buffers=False)


def test_two_buffers_elsewhere_are_found() -> None:
    with pytest.raises(ScheduleError, match="all_to_all has two buffers, and nothing else has"):
        prove(Kind.barrier, [schedule("x", 1, [], two_buffers=True)])


def test_a_block_that_lands_in_a_wrong_place_is_found() -> None:
    first: Rounds = [(Send(1, 1, 2), Recv(1, 0, 1))]
    second: Rounds = [(Send(0, 0, 1), Recv(0, 0, 1))]
    with pytest.raises(ScheduleError, match="what rank 1 sends is not what rank 0 has for rank 0"):
        exchanged(first, second)


def test_a_block_that_goes_to_the_wrong_rank_is_found() -> None:
    first: Rounds = [(Send(1, 0, 1), Recv(1, 1, 2))]
    second: Rounds = [(Send(0, 0, 1), Recv(0, 0, 1))]
    with pytest.raises(ScheduleError, match="what rank 0 sends is not what rank 0 has for rank 1"):
        exchanged(first, second)


def test_what_was_received_cannot_be_passed_on() -> None:
    # By way of rank 1, as in algorithms with fewer rounds. Rank 1 sends its input, not what it received.
    first: Rounds = [(Send(1, 2, 3),), ()]
    second: Rounds = [(Recv(0, 2, 3),), (Send(2, 2, 3),)]
    third: Rounds = [(), (Recv(1, 0, 1),)]
    with pytest.raises(ScheduleError, match="is not what rank"):
        exchanged(first, second, third)


def test_a_missing_block_and_a_reduction_are_found() -> None:
    with pytest.raises(ScheduleError, match=r"rank 0, chunk 1: holds blocks \[\], not \[2\]"):
        exchanged([()], [()])
    with pytest.raises(ScheduleError, match="reduces, where there are two buffers"):
        exchanged([(RecvReduce(1, 1, 2, left=True),)], [(Send(0, 0, 1),)])


def test_messages_of_two_lengths_are_found() -> None:
    with pytest.raises(ScheduleError, match=r"rank 1 sends .* rank 0 expects"):
        exchanged([(Recv(1, 1, 2),)], [(Send(0, 0, 2),)])
