"""Memory that is none, that is broken, and that changes while it is read."""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.observe.recorder import read
from aiodist.observe.recorder.dump import from_json, to_json
from aiodist.observe.recorder.layout import HEADER, RING_PLACES, SIZE, TEXT_AT, TEXT_BYTES, TURN_AT, VITALS_AT
from aiodist.observe.recorder.reading import MOST_RANKS, Group, span_of
from tests.levels import COSTLY
from tests.observe.recorder.made import a_call, a_recorder


@pytest.mark.parametrize("memory", [b"", bytes(100), bytes(SIZE), b"x" * SIZE])
def test_what_is_no_recorders(memory: bytes) -> None:
    with pytest.raises(WireError, match="recorder's memory"):
        read(memory)


@pytest.mark.parametrize(
    "text",
    [
        *(b"no json\n", b'["group",1]\n', b'{"a":1}\n', b'["sort",1,1,"x","f4",[],""]\n', b"\xff\n"),
        b"[" * 60000 + b"\n",
        b'["group",1,"g",0,"span",[0,1000000000000]]\n',
        b'["group",1,"g",0,"span",[-5,2]]\n',
        b'["group",1,"g",0,"list",[1e999]]\n',
        b'["sort",1,1,"x","f4",[],"",1e999,0,0]\n',
    ],
)
def test_text_that_is_broken(text: bytes) -> None:
    memory = bytearray(SIZE)
    recorder = a_recorder(memory)
    recorder.track("world", 0, range(8))
    memory[TEXT_AT : TEXT_AT + len(text)] = text
    with pytest.raises(WireError, match="text is broken"):
        read(memory)


@pytest.mark.slow(COSTLY)
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


WRITER = """
import mmap, sys, time
from aiodist.observe.recorder import Recorder
from aiodist.observe.recorder.layout import SIZE
from tests.observe.recorder.made import a_call
from aiodist.base.operations import Kind

file = open(sys.argv[1], "r+b")
now = [1.0]
recorder = Recorder(mmap.mmap(file.fileno(), SIZE), 4711, lambda: now[0], 5000.0)
recorder.take_part(3, 8, 2)
tracks = [recorder.track(f"group {number}", 0, range(8)) for number in range(2)]
sorts = [track.sort_of(a_call(kind=kind)) for track, kind in zip(tracks, (Kind.barrier, Kind.all_reduce))]
number = 0
print("ready", flush=True)
while number < 200000:
    which = number % 2
    now[0] = float(number + 10)
    ended = tracks[which].enter(tracks[which].note_line(sorts[which], number, 0))
    tracks[which].end(ended)
    recorder.tell(number=number)
    if number % 50 == 0:  # without end: so the text is written anew, and numbers of sorts are used again
        tracks[which].close()
        tracks[which] = recorder.track(f"group {which}", 0, range(8), number)
        sorts[which] = tracks[which].sort_of(a_call(kind=(Kind.barrier, Kind.all_reduce)[which]))
    if number % 16 == 0:
        recorder.flush()
    number += 1
"""


@pytest.mark.slow(COSTLY)
def test_another_process_writes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(bytes(SIZE))
    command = [sys.executable, "-c", WRITER, str(path)]
    root = Path(__file__).parents[3]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process,
        path.open("rb") as file,
    ):
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            with mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ) as memory:
                seen: set[int] = set()
                while len(seen) < 5 or max(seen) < 20000:
                    found = read(memory)  # not a copy: what changes is found by reading twice
                    for record in (*found.last, *found.pending):
                        which = record.number % 2
                        assert record.issued == record.pending == record.ended == record.number + 10
                        assert record.group is not None and record.group.name == f"group {which}"
                        assert record.op == ("barrier", "all_reduce")[which]
                    if found.last:
                        seen.add(found.last[-1].number)
                    assert found.about.get("number", 0) >= 0
        finally:
            process.kill()


def test_a_process_that_died_while_it_wrote_its_text_anew() -> None:
    memory = bytearray(SIZE)
    recorder = a_recorder(memory)
    recorder.track("world", 0, range(8))
    before = read(memory)
    struct.pack_into("<Q", memory, TURN_AT, 1)
    memory[TEXT_AT + TEXT_BYTES : TEXT_AT + TEXT_BYTES + 100] = b"[" * 100
    assert read(memory) == before
    recorder._write_anew()
    assert struct.unpack_from("<Q", memory, TURN_AT) == (2,)
    assert read(memory) == before


def test_a_line_that_is_being_written_is_left_out() -> None:
    memory = bytearray(SIZE)
    recorder = a_recorder(memory)
    recorder.track("world", 0, range(8))
    for text in (b'["event",1.0,"half a li', b"\0" * 10 + b'ne"]\n'):
        end = TEXT_AT + recorder._text
        memory[end : end + len(text)] = text
        assert [group.name for group in read(memory).groups] == ["world"]


@pytest.mark.parametrize("at", [HEADER.size - 8, HEADER.size - 16, VITALS_AT, VITALS_AT + 16])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_times_that_are_no_numbers(at: int, number: float) -> None:
    memory = bytearray(SIZE)
    a_recorder(memory)
    struct.pack_into("<d", memory, at, number)
    with pytest.raises(WireError, match="broken"):
        read(memory)


def test_groups_of_one_name_are_told_apart() -> None:
    recorder = a_recorder()
    for name, twin in (("a", 0), ("b", 0), ("a", 1), ("a", 2)):
        track = recorder.track(name, 0, range(2), twin)
        track.note(track.sort_of(a_call(0)), 0, sys._getframe(0))
    recorder.flush()
    found = read(recorder._memory)
    assert [(group.name, group.twin) for group in found.groups] == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]
    assert [record.group for record in found.last] == list(found.groups)
    assert from_json(to_json(found)) == found


def test_a_group_has_so_many_members_as_a_job_can_have() -> None:
    assert span_of(3, 2) == range(3, 5)
    for start, count in ((-1, 2), (0, 0), (0, MOST_RANKS + 1), (MOST_RANKS + 1, 1)):
        with pytest.raises(ValueError, match="members"):
            span_of(start, count)


def a_full_one() -> bytes:
    recorder = a_recorder()
    for name, ranks in (("world", range(8)), ("odd", [1, 3, 5])):
        track = recorder.track(name, 0, ranks)
        for number in range(20):
            pending = track.enter(track.note(track.sort_of(a_call(number, number)), number, sys._getframe(0)))
            if number < 15:
                track.end(pending, failed=number == 3)
    recorder.tell(job="j", argv=["a"])
    recorder.event("x")
    recorder.clocks([(1, 0.5, 0.0, 0.1, 3.0)])
    recorder.flush()
    return bytes(recorder._memory)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, SIZE - 9), st.binary(min_size=1, max_size=8)), max_size=20), st.data()
)
def test_memory_that_is_garbage_here_and_there_is_told_or_harmless(
    changes: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    memory = bytearray(a_full_one())
    for at, some in changes:
        at = data.draw(st.sampled_from([at, at % 512, TEXT_AT + at % 2000, 4096 + at % 8192]))
        memory[at : at + len(some)] = some
    try:
        found = read(memory)
    except WireError:
        return
    assert all(isinstance(group, Group) for group in found.groups)
    from_json(to_json(found))


def test_all_of_the_text_may_be_read() -> None:
    recorder = a_recorder()
    while recorder._write("event", 1.0, "x" * 100, reserved=0):
        pass
    assert TEXT_BYTES - 200 < recorder._text <= TEXT_BYTES
    assert len(read(recorder._memory).events) > 1000


def test_of_the_last_operations_so_many_as_are_wanted() -> None:
    memory = bytearray(SIZE)
    recorder = a_recorder(memory)
    track = recorder.track("world", 0, range(8))
    for number in range(RING_PLACES + 30):
        entry = track.note(track.sort_of(a_call(number)), number, sys._getframe())
        if number % 10 == 9:
            recorder.flush()
    track.enter(entry)
    recorder.flush()
    every = [record.number for record in read(memory).last]
    assert every[-1] == RING_PLACES + 29 and len(every) == RING_PLACES
    some = read(memory, most=5)
    assert [record.number for record in some.last] == every[-5:]
    assert [record.number for record in some.pending] == every[-1:]
    assert [record.number for record in read(memory, most=1).last] == every[-1:]
