"""The prover earns its trust: right schedules that are made wrong, at both ends alike, are refuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.schedules.select import ALGORITHMS
from aiodist.backends.schedules.steps import Recv, RecvReduce, Rounds, Schedule, Send, Step, schedule
from aiodist.base.types import Kind
from tests.backends.schedules.prover import ScheduleError, prove
from tests.levels import COSTLY

CASES = [
    (kind, name, size)
    for kind, algorithms in ALGORITHMS.items()
    if kind not in (Kind.barrier, Kind.new_group)  # some of their messages are needed by nobody
    for name, one in algorithms.items()
    for size in range(2, 13)
    if one.offered(size, 0)
]

Message = tuple[int, int, int]  # source, destination, round
Change = Callable[[Step], Step | None]


def built(kind: Kind, name: str, size: int, root: int) -> list[Schedule]:
    return [ALGORITHMS[kind][name].build(rank, size, root) for rank in range(size)]


def messages(schedules: list[Schedule]) -> list[Message]:
    return [
        (rank, step.peer, index)
        for rank, one in enumerate(schedules)
        for index, steps in enumerate(one.rounds)
        for step in steps
        if isinstance(step, Send)
    ]


def changed(schedules: list[Schedule], message: Message, change: Change) -> list[Schedule]:
    """Change the two steps of a message; None leaves them out."""
    source, target, number = message

    def is_end(rank: int, index: int, step: Step) -> bool:
        if index != number:
            return False
        sends = isinstance(step, Send)
        return (rank, step.peer, sends) in ((source, target, True), (target, source, False))

    result = []
    for rank, one in enumerate(schedules):
        rounds = [
            tuple(
                new
                for step in steps
                if (new := change(step) if is_end(rank, index, step) else step) is not None
            )
            for index, steps in enumerate(one.rounds)
        ]
        result.append(schedule(one.name, one.chunks, rounds, one.repeats, two_buffers=one.two_buffers))
    return result


def is_whole(schedules: list[Schedule], message: Message) -> bool:
    source, target, index = message
    one = schedules[source]
    return any(
        isinstance(step, Send) and step.peer == target and step.stop - step.start == one.chunks
        for step in one.rounds[index]
    )


def left_out(step: Step) -> None:
    return None


def turned(step: Step) -> Step:
    """Reduced where it was to be received, or received where it was to be reduced."""
    if isinstance(step, Recv):
        return RecvReduce(step.peer, step.start, step.stop, left=True)
    return step if isinstance(step, Send) else Recv(step.peer, step.start, step.stop)


def shifted(chunks: int) -> Change:
    """A chunk further on."""

    def shift(step: Step) -> Step:
        start = (step.start + 1) % chunks
        return replace(step, start=start, stop=start + step.stop - step.start)

    return shift


def shortened(step: Step) -> Step:
    """Without its last chunk."""
    return replace(step, stop=step.stop - 1)


@pytest.mark.slow(COSTLY)
@given(
    case=st.sampled_from(CASES), what=st.sampled_from(["leave", "turn", "shift", "shorten"]), data=st.data()
)
@settings(max_examples=400, deadline=None)
def test_no_message_can_be_spared_or_bent(
    case: tuple[Kind, str, int], what: str, data: st.DataObject
) -> None:
    kind, name, size = case
    root = data.draw(st.integers(0, size - 1))
    schedules = built(kind, name, size, root)
    prove(kind, schedules, root)
    chunks = schedules[0].chunks
    change: Change = {"leave": left_out, "turn": turned, "shift": shifted(chunks), "shorten": shortened}[what]
    message = data.draw(st.sampled_from(messages(schedules)))
    if what == "shift" and is_whole(schedules, message):
        return  # everything, from another chunk on, is still everything
    with pytest.raises(ScheduleError):
        prove(kind, changed(schedules, message, change), root)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_operands_in_a_wrong_order_are_found(size: int) -> None:
    schedules = built(Kind.all_reduce, "recursive_doubling", size, 0)

    def swap(step: Step) -> Step:
        return replace(step, left=not step.left) if isinstance(step, RecvReduce) else step

    for message in messages(schedules):
        touched = changed(schedules, message, swap)
        if touched != schedules:
            with pytest.raises(ScheduleError):
                prove(Kind.all_reduce, touched)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_missing_copy_is_found(size: int) -> None:
    schedules = built(Kind.all_reduce, "recursive_doubling", size, 0)

    def bare(step: Step) -> Step:
        return replace(step, copy=False) if isinstance(step, Send) else step

    for message in messages(schedules):
        touched = changed(schedules, message, bare)
        if touched != schedules:
            with pytest.raises(ScheduleError, match="is sent while it is written"):
                prove(Kind.all_reduce, touched)


def bruck_without_its_last_step(rank: int, size: int) -> Schedule:
    """The last round sends as much as its distance, as if every size were a power of two."""
    rounds: Rounds = []
    distance = 1
    while distance < size:
        ahead, behind = (rank + distance) % size, (rank - distance) % size
        rounds.append((Send(behind, rank, rank + distance), Recv(ahead, ahead, ahead + distance)))
        distance *= 2
    return schedule("wrong", size, rounds)


def test_bruck_without_the_short_last_round_is_right_for_powers_of_two_only() -> None:
    for size in range(2, 33):
        schedules = [bruck_without_its_last_step(rank, size) for rank in range(size)]
        if size & (size - 1):
            with pytest.raises(ScheduleError, match="is sent while it is written"):
                prove(Kind.all_gather, schedules)
        else:
            prove(Kind.all_gather, schedules)


def test_a_tree_for_another_root_is_found() -> None:
    for kind in (Kind.broadcast, Kind.reduce, Kind.gather, Kind.scatter):
        for name in ALGORITHMS[kind]:
            with pytest.raises(ScheduleError):
                prove(kind, built(kind, name, 4, 1), 2)


@pytest.mark.parametrize("kind", [Kind.all_gather, Kind.all_reduce, Kind.all_to_all, Kind.gather])
def test_two_algorithms_at_once_are_found(kind: Kind) -> None:
    first, second = list(ALGORITHMS[kind])[:2]
    mixed = [*built(kind, first, 4, 0)[:2], *built(kind, second, 4, 0)[2:]]
    with pytest.raises(ScheduleError):
        prove(kind, mixed, 0)
