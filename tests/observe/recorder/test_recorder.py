"""What is written down can be read, at any time, whatever came between; and costs little memory."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.operations import Kind
from aiodist.observe.recorder import Entry, Line, Pending, Record, read
from aiodist.observe.recorder import reading as reading_module
from aiodist.observe.recorder import recorder as recorder_module
from aiodist.observe.recorder.layout import ARRIVED, FIRST, PENDING_PLACES, RING_PLACES, SIZE
from aiodist.observe.recorder.recorder import LONGEST, MOST_EVENTS, MOST_OTHERS, MOST_SORTS, Recorder, Track
from tests.observe.recorder.made import a_call, a_recorder, a_track


def note(track: Track, number: int, count: int = 3, **more: Any) -> Entry:
    return track.note(track.sort_of(a_call(number, count), **more), number, sys._getframe(0))


def records(recorder: Recorder) -> tuple[Record, ...]:
    recorder.flush(RING_PLACES)
    return read(recorder._memory).last


def test_an_operation_is_read_as_it_was_issued() -> None:
    recorder = a_recorder()
    track = recorder.track("halves", 2, [1, 3, 5])
    here = sys._getframe(0).f_lineno + 1
    track.note(track.sort_of(a_call(7, 5)), 7, sys._getframe(0))
    assert read(recorder._memory).last == ()
    recorder.flush()
    found = read(recorder._memory)
    assert (found.pid, found.rank, found.size, found.epoch, found.began, found.left) == (
        4711,
        3,
        8,
        2,
        1.0,
        0.0,
    )
    assert found.offset == 4999.0
    (group,) = found.groups
    assert (group.name, group.epoch, list(group.ranks)) == ("halves", 2, [1, 3, 5])
    (record,) = found.last
    line = Line(__file__, here, "test_an_operation_is_read_as_it_was_issued")
    expected = (
        group,
        "all_reduce",
        7,
        "float32",
        (5,),
        "SUM",
        -1,
        0,
        20,
        line,
        2.0,
        0.0,
        0.0,
        0.0,
        0.0,
        False,
    )
    assert record == Record(*expected)
    assert found.pending == ()
    recorder.leave()
    assert read(recorder._memory).left == 4.0


def pending_of(recorder: Recorder) -> tuple[Record, ...]:
    recorder.flush(RING_PLACES)
    return read(recorder._memory).pending


def test_what_is_pending_has_times_of_its_own() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    entry = note(track, 0)
    assert len(records(recorder)) == 1
    pending = track.enter(entry)
    (seen,) = pending_of(recorder)
    assert (seen.number, seen.issued, seen.arrived) == (0, entry[3], 0.0)
    assert seen.pending > seen.issued
    track.stamp(pending, ARRIVED)
    track.stamp(pending, FIRST)
    track.stamp(pending, ARRIVED)  # the first time counts
    (seen,) = pending_of(recorder)
    assert (seen.first, seen.ended) == (seen.arrived + 1, 0.0)
    track.end(pending)
    assert pending_of(recorder) == ()
    (record,) = records(recorder)  # in the place of what was written before
    times = [record.issued, record.pending, record.arrived, record.first, record.ended]
    assert times == sorted(set(times))
    assert times[:4] == [entry[3], seen.pending, seen.arrived, seen.first]
    assert not record.failed
    track.end(track.enter(note(track, 1)), failed=True)
    assert records(recorder)[1].failed
    assert records(recorder)[1].ended > 0


def test_the_ring_keeps_the_last_and_what_is_pending_stays() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    pending = track.enter(note(track, 0))
    for number in range(1, RING_PLACES + 10):
        note(track, number)
    assert [record.number for record in records(recorder)] == list(range(10, RING_PLACES + 10))
    assert [record.number for record in pending_of(recorder)] == [0]
    track.end(pending)
    assert pending_of(recorder) == ()
    assert [record.number for record in records(recorder) if record.ended] == [0]


def test_more_may_be_pending_than_have_places() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    pending = [track.enter(note(track, number)) for number in range(PENDING_PLACES + 5)]
    assert [record.number for record in pending_of(recorder)] == list(range(PENDING_PLACES))
    for one in pending[:10]:
        track.end(one)
    assert [record.number for record in pending_of(recorder)] == list(range(10, PENDING_PLACES + 5))


def test_how_often_each_sort_was_used() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    for number in range(30):
        note(track, number, count=1 + number % 3)
        if number % 7 == 0:
            recorder.flush(2)
    recorder.flush(2)
    assert [sort.uses for sort in track._sorts.values()] == [10, 10, 10]


def test_a_flush_writes_the_last_and_each_once() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    for number in range(100):
        note(track, number)
    recorder.flush(10)
    assert [record.number for record in read(recorder._memory).last] == list(range(90, 100))
    for number in range(100, 105):
        note(track, number)
    before = recorder._next
    recorder.flush(10)
    assert recorder._next == before + 5
    recorder.flush(10)
    assert recorder._next == before + 5


def test_sorts_and_lines_have_an_end_and_nothing_breaks_there() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    for number in range(MOST_SORTS + 300):
        note(track, number, count=number + 1)
        note(track, number, tag=1)
    last = records(recorder)[-2:]
    assert [(record.op, record.number) for record in last] == [("all_reduce", MOST_SORTS + 299)] * 2
    assert (last[0].shape, last[0].nbytes, last[1].shape) == ((), 0, (3,))
    assert recorder.sorts <= MOST_OTHERS + MOST_SORTS + 2
    for number in range(2100):  # lines of programs that make code as they go
        exec(
            compile("track.note(sort, number, sys._getframe(0))", f"made{number}.py" * 5, "exec"),
            {"track": track, "sort": track.sort_of(a_call()), "number": number, "sys": sys},
        )
    assert records(recorder)[-1].line is None
    another = recorder.track("late", 0, range(8))
    note(another, 5)
    assert records(recorder)[-1].number == 5
    assert len(recorder._memory) == SIZE


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([Kind.all_reduce, Kind.broadcast]), st.integers(1, 9)),
        max_size=80,
    )
)
def test_each_operation_is_counted_once_also_where_its_sort_has_no_sum(
    issued: list[tuple[int, Kind, int]],
) -> None:
    """Four sorts of a group are told apart here, and there is room for the sums of six of all groups."""
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(recorder_module, "MOST_SORTS", 4)
        for module in (recorder_module, reading_module):
            limits.setattr(module, "SUM_PLACES", MOST_OTHERS + 7)
        recorder = a_recorder()
        tracks = [recorder.track(f"group{number}", 0, range(8)) for number in range(4)]
        for number, (group, kind, count) in enumerate(issued):
            track = tracks[group]
            entry = track.note(track.sort_of(a_call(number, count, kind)), number, sys._getframe(0))
            if number % 3 == 0:
                track.end(track.enter(entry))
            if number % 7 == 0:
                recorder.flush()
        recorder.flush()
        sums = read(recorder._memory).sums
    for kind in Kind:
        mine = [one for one in sums if one.op == kind.name]
        wanted = [4 * count for _, issued_kind, count in issued if issued_kind is kind]
        assert (sum(one.uses for one in mine), sum(one.total for one in mine)) == (len(wanted), sum(wanted))
    assert sum(one.slept for one in sums) == -(-len(issued) // 3)
    assert all(one.group is not None for one in sums), "what has no group is of those that are gone"
    elsewhere = [one for one in sums if one.group is not None and one.group.name == "others"]
    assert {one.group.ranks for one in elsewhere if one.group} <= {range(3, 4)}


def test_a_sort_is_described_when_its_operations_are_written() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    for number in range(40):
        note(track, number, count=1 + number)
    recorder.track("other", 0, range(8)).sort_of(a_call())  # of which there is no operation
    lines = [line for _, line in recorder._texts]
    assert [line[:8] for line in lines[:2]] == [b'["group"', b'["line",']
    assert len(lines) == 3 and recorder.sorts == MOST_OTHERS
    track.close()  # its text can go, also what comes yet
    assert [record.shape for record in records(recorder)] == [(1 + number,) for number in range(40)]
    assert (
        recorder.waste == track.nbytes == sum(len(line) for owner, line in recorder._texts if owner is track)
    )
    assert recorder.sorts == MOST_OTHERS + 40
    assert all(sort.track is None for sort in track.sorts)


@pytest.mark.parametrize("most", [2, 500])
def test_sorts_that_others_remember_are_the_same_ones(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MOST_SORTS", most)
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    for number in range(12):
        sort = (track.sort_of, track.new_sort)[number % 2](a_call(number, 1 + number // 2 % 3))
        track.note(sort, number, sys._getframe(0))
    found = records(recorder)
    assert [record.shape for record in found] == [
        (1 + number // 2 % 3,) if number // 2 % 3 < most else () for number in range(12)
    ]
    assert sorted(one.uses for one in read(recorder._memory).sums) == [4] * 3
    assert recorder.sorts == MOST_OTHERS + 3
    assert sum(one.total for one in read(recorder._memory).sums) == 4 * 4 * (1 + 2 + 3)


def test_operations_of_a_sort_that_come_from_several_lines() -> None:
    track = a_track()
    sort = track.sort_of(a_call())
    wanted = []
    for number in range(9):
        if number % 3:
            track.note(sort, number, sys._getframe())
            wanted.append(sys._getframe().f_lineno - 1)
        else:
            track.note(sort, number, sys._getframe())
            wanted.append(sys._getframe().f_lineno - 1)
    track._recorder.flush()
    found = read(track._recorder._memory).last
    assert [record.line and record.line.number for record in found] == wanted
    assert len(set(wanted)) == 2


def test_the_librarys_own_lines_are_not_the_programs() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    sort = track.sort_of(a_call())
    code = compile("def inside():\n    return track.note(sort, 1, sys._getframe(0))", callers_file(), "exec")
    inside: dict[str, Any] = {"track": track, "sort": sort, "sys": sys}
    exec(code, inside)
    for _ in range(2):
        inside["inside"]()
    lines = [record.line for record in records(recorder)]
    assert lines[0] == lines[1]
    assert lines[0] is not None
    assert lines[0].function == "test_the_librarys_own_lines_are_not_the_programs"


def callers_file() -> str:
    import aiodist.base.callers

    return aiodist.base.callers.__file__


@given(st.lists(st.tuples(st.sampled_from("neasf"), st.integers(0, 70)), max_size=200))
def test_any_order_of_events_can_be_read(steps: list[tuple[str, int]]) -> None:
    """The pending ones are those that have entered and not ended, whatever else happened."""
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    issued: list[Entry] = []
    entered: dict[int, Pending] = {}
    ended = set()
    for step, which in steps:
        if step == "n":
            issued.append(note(track, len(issued)))
        elif which < len(issued) and step == "e" and which not in entered and which not in ended:
            entered[which] = track.enter(issued[which])
        elif which in entered and step == "a":
            track.stamp(entered[which], ARRIVED)
        elif which in entered and step == "s":
            track.end(entered.pop(which))
            ended.add(which)
        elif step == "f":
            recorder.flush(RING_PLACES)
    found = records(recorder)
    assert [record.number for record in found] == list(range(len(issued)))
    assert {record.number for record in found if record.ended} == ended
    assert {record.number for record in pending_of(recorder)} == set(sorted(entered)[:PENDING_PLACES])


def test_every_kind_of_operation_has_a_name() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    for number, kind in enumerate(Kind):
        track.note(track.sort_of(a_call(number, kind=kind)), number, sys._getframe(0))
    assert [record.op for record in records(recorder)] == [kind.name for kind in Kind]


def test_how_a_rank_goes() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    recorder.tell(job="j", argv=["train.py"])
    recorder.tell(job="k")
    slept = [track.enter(note(track, number)) for number in range(2)]
    note(track, 2)
    for failed, one in enumerate(slept):
        track.stamp(one, ARRIVED)
        track.end(one, failed=bool(failed))
    recorder.event("disk full")
    recorder.beat(10, 0.5)
    recorder.beat(11, 0.5)
    recorder.flush()
    found = read(recorder._memory)
    assert (found.vitals.issued, found.vitals.failed, found.vitals.turns) == (3, 1, 11)
    assert found.vitals.late == 0.5  # a beat in one second
    assert dict(found.about) == {"job": "k", "argv": ["train.py"]}
    assert [event.text for event in found.events] == ["disk full"]
    (total,) = found.sums
    assert (total.op, total.uses, total.slept, total.failed, total.nbytes) == ("all_reduce", 3, 2, 1, 12)
    first, second, _ = found.last
    assert total.waited == sum(record.arrived - record.issued for record in (first, second))
    assert total.moved == sum(record.ended - record.arrived for record in (first, second))
    assert found.vitals.flushed > found.vitals.turned


def test_operations_that_were_pushed_out_are_estimated() -> None:
    recorder = a_recorder()
    track = recorder.track("world", 0, range(8))
    note(track, 0)
    recorder.flush()
    for number in range(3 * RING_PLACES):
        note(track, number)
    recorder.flush()
    issued = read(recorder._memory).vitals.issued
    assert abs(issued - 3 * RING_PLACES) < 10
    assert abs(read(recorder._memory).sums[0].uses - 3 * RING_PLACES) < 10


def test_groups_come_and_go_without_end() -> None:
    """The text has room for some 1,100 of them."""
    recorder = a_recorder()
    world = recorder.track("world", 0, range(8))
    note(world, 0)
    for number in range(5000):
        track = recorder.track(f"group {number}", 0, range(8), number)
        note(track, number)
        track.close()
        track.close()
        if number % 50 == 0:
            recorder.flush()
            recorder.tell(number=number)
    note(world, 1)
    recorder.flush()
    found = read(recorder._memory)
    assert found.groups[0].name == "world" and found.groups[-1].name == "group 4999"
    assert 500 < len(found.groups) < 1500
    assert found.about["number"] == 4950
    assert [record.number for record in found.last[-3:]] == [4998, 4999, 1]
    for record in found.last:
        assert record.group is not None
        assert record.group.name in ("world", f"group {record.number}")
    assert sum(one.uses for one in found.sums) >= 5002 - 600  # with those of groups that are gone
    assert recorder.sorts < 1500


def test_events_are_bounded() -> None:
    recorder = a_recorder()
    for number in range(2 * MOST_EVENTS):
        recorder.event(f"{number}" * 1000)
    events = read(recorder._memory).events
    assert len(events) == MOST_EVENTS
    assert all(len(event.text) <= LONGEST for event in events)


def test_what_is_told_inside_of_telling_is_written_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where garbage is collected in between, and an error that nobody waits for is noted."""
    recorder = a_recorder()

    class Memory:
        """Memory that tells something more, once, while it is written."""

        def __init__(self, memory: memoryview) -> None:
            self.memory, self.told = memory, False

        def __setitem__(self, where: slice, what: bytes) -> None:
            if not self.told:
                self.told = True
                recorder.event("inner")
            self.memory[where] = what

    real = recorder._memory
    inside: Any = Memory(real)
    put = recorder_module._put_count
    monkeypatch.setattr(recorder_module, "_put_count", lambda memory, at, number: put(real, at, number))
    recorder._memory = inside
    recorder.event("outer")
    recorder._memory = real
    assert [event.text for event in read(recorder._memory).events] == ["outer", "inner"]


def test_what_another_thread_could_not_write_the_next_flush_writes() -> None:
    recorder = a_recorder()
    with recorder._gate:
        recorder.event("later")
        assert read(recorder._memory).events == ()
    recorder.flush()
    assert [event.text for event in read(recorder._memory).events] == ["later"]


def test_what_ends_a_group_or_the_process_is_told_whatever_was_told_before() -> None:
    recorder = a_recorder()
    for number in range(5000):  # groups made and closed, and errors that nobody waits for
        track = recorder.track(f"a group with a name {number}", 0, range(8))
        track.sort_of(a_call())
        recorder.event(f"a callback has failed, for the {number}th time")
    track.trouble("group 'world' broke", [3])
    recorder.event("the program ended by an error", trouble=True)
    found = read(recorder._memory)
    assert [event.text for event in found.events][-2:] == [
        "group 'world' broke",
        "the program ended by an error",
    ]
    assert found.about["lost"] == [3]


def test_who_was_lost_is_told_of_each_epoch() -> None:
    recorder = a_recorder()
    for epoch, lost in enumerate(([3], [1, 2])):  # the numbers are others' now
        first, second = (recorder.track(name, epoch, range(8)) for name in ("world", "other"))
        first.trouble("broke", lost)
        second.trouble("broke, too", [7])
        assert read(recorder._memory).about["lost"] == lost


def test_more_groups_than_there_is_room_for() -> None:
    recorder = a_recorder()
    for number in range(4000):
        track = recorder.track(f"group {number}", 0, range(8))
        note(track, number)
        if number % 100 == 0:
            recorder.flush()
    last = records(recorder)[-1]
    assert (last.number, last.group, last.op) == (3999, None, "?")
    assert len(read(recorder._memory).groups) > 1000
