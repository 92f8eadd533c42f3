"""A recorder's file: it is read by others, tells whether its process lives, and does not stay."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiodist.recorder import Recorder
from aiodist.recorder.layout import SIZE
from aiodist.shm import records
from aiodist.shm.records import (
    FAULT,
    STACKS,
    Found,
    Memory,
    Name,
    find,
    is_alive,
    open_folder,
    open_writable,
    sweep,
)
from tests.recorder.made import a_call

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of shared memory."""
    monkeypatch.setattr(records, "SHARED_MEMORY", tmp_path)
    yield tmp_path
    for file in tmp_path.glob("*/*"):
        file.unlink()


def recording(memory: Memory) -> Recorder:
    recorder = Recorder(memory.buffer, os.getpid(), time.monotonic, time.time())
    recorder.take_part(1, 2, 0)
    track = recorder.track("world", 0, range(2))
    track.note(track.sort_of(a_call(7)), 7, sys._getframe(0))
    recorder.flush()
    return recorder


def found(**which: object) -> list[Found]:
    with open_folder() as folder:
        return list(find(folder, **which))  # type: ignore[arg-type]


def test_a_file_is_found_as_long_as_its_process_is_in_the_job() -> None:
    memory = Memory("job")
    recorder = recording(memory)
    (one,) = found()
    assert (one.name.job, one.name.pid, one.alive) == ("job", os.getpid(), True)
    assert [record.number for record in one.recording.last] == [7]
    assert found(job="another") == []
    assert found(pid=1) == []
    assert found(job="job", pid=os.getpid()) != []
    other = Memory("another")
    recording(other)
    assert {one.name.job for one in found()} == {"job", "another"}
    memory.remove()
    memory.remove()
    assert [one.name.job for one in found()] == ["another"]
    other.remove()
    recorder.flush()  # the memory stays
    assert found() == []


def test_what_a_killed_process_leaves_says_what_it_did(place: Path) -> None:
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            memory = Memory("killed")
            recording(memory)
            os.write(told, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    assert os.read(ready, 1) == b"."
    os.close(ready)
    (one,) = found(pid=child)
    assert one.alive
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (one,) = found(pid=child)
    assert not one.alive
    assert [record.number for record in one.recording.last] == [7]
    with open_folder() as folder:
        sweep(folder)
        assert found(pid=child) != []  # somebody may want it still
        records_before = folder.names()
    assert records_before == [str(one.name)]


def test_a_forked_child_does_not_keep_the_lock() -> None:
    memory = Memory("parent")
    recording(memory)
    go, told = os.pipe()
    begun, begin = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            os.write(begin, b".")
            os.read(go, 1)
            memory.remove()  # of the parent: it does nothing
        finally:
            os._exit(0)
    try:
        os.read(begun, 1)
        memory._let_go()  # as the end of this process would
        assert [one.alive for one in found()] == [False]
    finally:
        for handle in (go, told, begun, begin):
            os.close(handle)
        os.waitpid(child, 0)
    assert len(found()) == 1


def test_what_a_forked_child_writes_down_is_its_own() -> None:
    """As an error that ends it, or operations of a loop of its own."""
    memory = Memory("parent")
    recorder = recording(memory)
    before = bytes(memory.buffer)
    child = os.fork()
    if child == 0:
        try:
            recorder.event("the child's")
            recorder.flush()
            own = b"the child's" in bytes(memory.buffer)
        finally:
            os._exit(0 if own else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert bytes(memory.buffer) == before
    recorder.event("the parent's")
    (one,) = found()
    assert one.alive
    assert [event.text for event in one.recording.events] == ["the parent's"]


def test_files_of_the_dead_are_swept_away_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    dead, alive = Memory("dead"), Memory("alive")
    recording(dead)
    recording(alive)
    dead._let_go()
    monkeypatch.setattr(records, "KEPT", -1.0)
    Memory("new").remove()
    assert [one.name.job for one in found()] == ["alive"]
    alive.remove()


def test_what_lies_beside_a_file_goes_when_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    dead, alive = Memory("dead"), Memory("alive")
    with open_folder() as folder:
        beside = [memory.name + end for memory in (dead, alive) for end in (STACKS, FAULT)]
        for name in (*beside, f"{dead.name}.new{STACKS}"):
            os.close(folder.fresh(name))
        dead._let_go()
        sweep(folder)
        assert len(folder.names()) == 7
        monkeypatch.setattr(records, "KEPT", -1.0)
        sweep(folder)
        assert sorted(folder.names()) == [alive.name, alive.name + FAULT, alive.name + STACKS]
        alive.remove()
        assert folder.names() == []


def test_a_file_is_opened_for_writing_by_who_asks() -> None:
    memory, other = Memory("job"), Memory("job")
    recording(memory)
    (began,) = [one.recording.began for one in found() if str(one.name) == memory.name]
    with open_folder() as folder:
        assert is_alive(folder, memory.name)
        opened = open_writable(folder, "job", os.getpid(), began)
        assert opened is not None
        name, shared = opened
        assert name == memory.name
        shared[SIZE - 1] = 7
        assert memory.buffer[SIZE - 1] == 7
        assert open_writable(folder, "job", os.getpid(), began + 1) is None
        assert open_writable(folder, "another", os.getpid(), began) is None
        for one in (memory, other):
            one.remove()
        assert not is_alive(folder, name)


def test_what_is_no_recorders_is_left_alone_and_not_read() -> None:
    Memory("first").remove()
    with open_folder() as folder:
        for name, text in (("notes.txt", b"x"), ("job.1.0", b"short"), ("job.2.0", bytes(SIZE))):
            handle = folder.fresh(name)
            os.write(handle, text)
            os.close(handle)
    assert found() == []
    assert Name.parse("job.1.2") == Name("job", 1, 2)
    assert Name.parse("job.1") is Name.parse("job.x.1") is Name.parse("") is None


def test_without_a_folder_the_memory_is_the_processs_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SHARED_MEMORY", place / "missing")
    memory = Memory("job")
    assert isinstance(memory.buffer, bytearray)
    recording(memory)
    memory.remove()


def test_a_folder_that_others_may_write_to_is_not_used(place: Path) -> None:
    folder = place / f"aiodist-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert isinstance(Memory("job").buffer, bytearray)
    assert list(folder.iterdir()) == []


def test_where_there_is_no_room_the_memory_is_the_processs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    memory = Memory("job")
    assert isinstance(memory.buffer, bytearray)
    with open_folder() as folder:
        assert folder.names() == []
