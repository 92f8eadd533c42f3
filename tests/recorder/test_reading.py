"""Memory that is none, that is broken, and that changes while it is read."""

from __future__ import annotations

import sys
import threading

import pytest

from aiodist.errors import WireError
from aiodist.recorder import read
from aiodist.recorder.layout import RING_PLACES, SIZE, TEXT_AT
from tests.recorder.made import a_call, a_recorder


@pytest.mark.parametrize("memory", [b"", bytes(100), bytes(SIZE), b"x" * SIZE])
def test_what_is_no_recorders(memory: bytes) -> None:
    with pytest.raises(WireError, match="recorder's memory"):
        read(memory)


@pytest.mark.parametrize(
    "text", [b"no json\n", b'["group",1]\n', b'{"a":1}\n', b'["sort",1,1,"x","f4",[],""]\n']
)
def test_text_that_is_broken(text: bytes) -> None:
    memory = bytearray(SIZE)
    recorder = a_recorder(memory)
    recorder.track("world", 0, range(8))
    memory[TEXT_AT : TEXT_AT + len(text)] = text
    with pytest.raises(WireError, match="text is broken"):
        read(memory)


def test_what_changes_meanwhile_is_whole_or_left_out() -> None:
    memory = bytearray(SIZE)
    recorder = a_recorder(memory)
    track = recorder.track("world", 0, range(8))
    sort = track.sort_of(a_call())
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            track.note(sort, number, sys._getframe(0))
            recorder.flush()
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(20):
            found = read(memory).last
            assert len(found) <= RING_PLACES
            numbers = [record.number for record in found]
            assert numbers == sorted(numbers)
            # the clock ticks twice for each operation: a record of two would have another pair
            assert len({record.issued - 2 * record.number for record in found}) <= 1
    finally:
        over.set()
        thread.join()


def test_lists_of_ranks_that_are_no_span() -> None:
    recorder = a_recorder()
    for name, ranks in (("a", [0, 2, 4]), ("b", [5]), ("c", range(2, 9)), ("d", (7, 6))):
        recorder.track(name, 0, ranks)
    found = {group.name: list(group.ranks) for group in read(recorder._memory).groups}
    assert found == {"a": [0, 2, 4], "b": [5], "c": [2, 3, 4, 5, 6, 7, 8], "d": [7, 6]}
