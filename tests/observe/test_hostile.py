"""A rank's memory may hold anything: who reads it neither crashes nor hangs, nor keeps it."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from aiodist.base.errors import WireError
from aiodist.base.operations import Kind
from aiodist.net.traffic import Traffic
from aiodist.observe.clocks import place
from aiodist.observe.explain import explain
from aiodist.observe.flight import flight
from aiodist.observe.matrix import matrix
from aiodist.observe.metrics import Tally, exposition
from aiodist.observe.recorder import read
from aiodist.observe.recorder.layout import (
    CLOCK,
    CLOCKS_AT,
    HEADER,
    LINE,
    LINK,
    LINKS_AT,
    PENDING_AT,
    PLACE,
    RING_AT,
    SUM,
    SUMS_AT,
    TEXT_AT,
    TEXT_BYTES,
    VITALS,
    VITALS_AT,
)
from aiodist.observe.screen import plain
from aiodist.observe.summary import summary
from aiodist.observe.timeline import timeline
from aiodist.observe.trace import trace
from aiodist.observe.verdict import judge
from aiodist.observe.view import RankView, jobs
from tests.observe.recorder.made import a_call, a_recorder, ticking

RANKS = 3
SEEN = 200.0  # when they are looked at, on their clocks

FLOATS = (math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -1.0, 0.0, 1e18)
WORDS = (0, 1, 7, 1 << 16, 1 << 20, 1 << 32, (1 << 63), (1 << 64) - 1)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 5, 1 << 63, 1 << 200, 10**4000, 1e308, math.nan, math.inf, "", "\ud800", "a\0b"),
    *("\x1b[2J", "x" * 5000, [], [[]], [None], ["\ud800"], [1, [2]], [1e308], {}, "send", "all_reduce"),
)
PLACES = (
    *((HEADER, 0), (VITALS, VITALS_AT), (CLOCK, CLOCKS_AT), (LINK, LINKS_AT)),
    *((PLACE, PENDING_AT + number * PLACE.size) for number in range(4)),
    *((PLACE, RING_AT + number * PLACE.size) for number in range(30)),
    *((SUM, SUMS_AT + number * SUM.size) for number in range(1, 4)),
)


def memory_of(rank: int) -> bytearray:
    """A rank of three that waits in collectives, and for a message."""
    recorder = a_recorder(clock=ticking())
    recorder.take_part(rank, RANKS, 1)
    recorder.tell(argv=["train.py"], clock=f"clock {rank}", heartbeat=0.25, lost=[1], log_dir="/logs")
    track = recorder.track("world", 1, range(RANKS))
    recorder.track("some", 1, [0, 2])
    frame = sys._getframe()
    for number in range(25):
        track.note(track.sort_of(a_call(number)), number, frame)
    track.end(track.enter(track.note(track.sort_of(a_call(25)), 25, frame)))
    track.enter(track.note(track.sort_of(a_call(0, kind=Kind.send)), 0, frame))
    for number in range(26 + rank, 28 + rank):
        track.enter(track.note(track.sort_of(a_call(number)), number, frame))
    recorder.event("it broke")
    recorder.clocks([((rank + 1) % RANKS, 0.1, 0.0, 1e-4, 100.0)])
    recorder.links([((rank + 1) % RANKS, Traffic(1 << 21, 0.5, 0.01, 2, 1e6))])
    recorder.flush()
    return bytearray(recorder._memory)


def lines_of(memory: bytearray) -> list[Any]:
    text = bytes(memory[TEXT_AT : TEXT_AT + TEXT_BYTES]).partition(b"\0")[0]
    return [json.loads(line) for line in text.splitlines()]


def write_lines(memory: bytearray, lines: list[Any]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    memory[TEXT_AT : TEXT_AT + TEXT_BYTES] = text.ljust(TEXT_BYTES, b"\0")[:TEXT_BYTES]


def spoil(memory: bytearray, draw: random.Random) -> None:
    """Write something odd into one place."""
    if draw.random() < 0.6:
        form, at = draw.choice(PLACES)
        values = list(form.unpack_from(memory, at))
        place = draw.randrange(1 if form is HEADER else 0, len(values))
        word = draw.choice(WORDS)
        if form is PLACE and place in (LINE, len(values) - 1):
            word %= 1 << 32
        values[place] = draw.choice(FLOATS) if isinstance(values[place], float) else word
        form.pack_into(memory, at, *values)
        return
    lines = lines_of(memory)
    line = draw.choice(lines)
    if line[0] == "about":
        line[1][draw.choice(list(line[1]))] = draw.choice(VALUES)
    else:
        line[draw.randrange(1, len(line))] = draw.choice(VALUES)
    write_lines(memory, lines)


def views(memories: list[bytearray]) -> list[RankView]:
    """Those ranks of which something can be read."""
    found = []
    for number, memory in enumerate(memories):
        try:
            found.append(RankView(f"host-{number}", "cafe", read(memory), SEEN, alive=number != 1))
        except WireError:
            pass
    return [view for view in found if view.recording.size]


def show_all(found: list[RankView]) -> None:
    """Do all that is done with views."""
    if not found:
        return
    job = place(jobs(found)[0])
    verdicts, shown = judge(job, 1.0), summary(None, job)
    everything: list[Any] = [
        *(explain(job, verdicts, ""), plain(shown, 100), shown.to_json(), trace(job), flight(job)),
        *(timeline(job, range(RANKS), 10.0), matrix(job).to_json()),
    ]
    json.dumps(everything)
    exposition(shown, job, Tally())
    for view in job.ranks:
        again = RankView.from_json(json.loads(json.dumps(view.to_json())))
        assert again.rank == view.rank


@pytest.mark.parametrize("seed", range(40))
def test_what_is_odd_in_some_places(seed: int) -> None:
    draw = random.Random(seed)
    memories = [memory_of(rank) for rank in range(RANKS)]
    for _ in range(draw.choice((1, 2, 8))):
        spoil(draw.choice(memories), draw)
    show_all(views(memories))


def about(**told: Any) -> Callable[[bytearray], None]:
    return lambda memory: write_lines(memory, [*lines_of(memory), ["about", told]])


def odd_sort(**told: Any) -> Callable[[bytearray], None]:
    names = ("sort", "mark", "group", "op", "called", "dtype", "shape", "reduce", "root", "tag", "nbytes")

    def write(memory: bytearray) -> None:
        lines = lines_of(memory)
        (first, *_) = (line for line in lines if line[0] == "sort")
        for name, value in told.items():
            first[names.index(name)] = value
        write_lines(memory, lines)

    return write


def odd_place(which: int, value: float) -> Callable[[bytearray], None]:
    def write(memory: bytearray) -> None:
        values = list(PLACE.unpack_from(memory, PENDING_AT))
        values[which] = value
        PLACE.pack_into(memory, PENDING_AT, *values)

    return write


@pytest.mark.parametrize(
    "spoils",
    [
        about(lost=5),
        about(lost=[[1], None, 1]),
        odd_sort(nbytes=10**4000),
        odd_sort(nbytes=1 << 200),
        odd_sort(op="\ud800"),
        odd_sort(called="\ud800"),
        odd_sort(root=1e308),
        odd_place(3, 1e308),
        odd_place(4, -1e308),
        odd_place(1, (1 << 64) - 1),
        lambda memory: CLOCK.pack_into(memory, CLOCKS_AT, 1, 0.1, -1.0, 0.1, 100.0),
        lambda memory: write_lines(memory, [*lines_of(memory), ["event", 1e308, "late"]]),
        lambda memory: write_lines(memory, [*lines_of(memory), ["event", math.nan, "never"]]),
    ],
)
def test_what_has_been_found(spoils: Callable[[bytearray], None]) -> None:
    memories = [memory_of(rank) for rank in range(RANKS)]
    for memory in memories[:2]:
        spoils(memory)
    show_all(views(memories))


def test_a_group_of_strangers_is_not_searched_for_as_many_numbers_as_there_are() -> None:
    memories = [memory_of(rank) for rank in range(RANKS)]
    lines = lines_of(memories[0])
    for line in lines:
        if line[0] == "group" and line[2] == "world":
            line[5] = [1000, 3]
    write_lines(memories[0], lines)
    odd_place(1, (1 << 64) - 1)(memories[0])
    show_all(views(memories))
