"""A recorder's file: it is read by others, tells whether its process lives, and does not stay."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiodist.observe import host
from aiodist.observe.ask import ask
from aiodist.observe.recorder import Recorder, records
from aiodist.observe.recorder.layout import SIZE
from aiodist.observe.recorder.records import (
    FAULT,
    STACKS,
    FoundRecord,
    Memory,
    Name,
    find,
    is_alive,
    name_of,
    open_folder,
    sweep,
)
from tests.observe.recorder.made import a_call

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of shared memory."""
    monkeypatch.setattr(records, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(records, "ELSEWHERE", tmp_path / "elsewhere")  # which is not there
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


def found(**which: object) -> list[FoundRecord]:
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


def test_the_file_of_a_recorder_is_known_by_when_it_began() -> None:
    memory, other = Memory("job"), Memory("job")
    recording(memory)
    (began,) = [one.recording.began for one in found() if str(one.name) == memory.name]
    with open_folder() as folder:
        assert is_alive(folder, memory.name)
        assert name_of(folder, "job", os.getpid(), began) == Name.parse(memory.name)
        assert name_of(folder, "job", os.getpid(), began + 1) is None
        assert name_of(folder, "another", os.getpid(), began) is None
        for one in (memory, other):
            one.remove()
        assert not is_alive(folder, memory.name)


def test_what_another_one_of_the_same_id_has_left_is_not_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_numbers", itertools.count())
    first = Memory("job")
    recording(first)
    first._let_go()
    monkeypatch.setattr(records, "_numbers", itertools.count())
    second = Memory("job")
    recording(second)
    assert sorted(one.alive for one in found()) == [False, True]
    second.remove()
    assert [str(one.name) for one in found()] == [first.name]


IN_A_CONTAINER = """
import os, sys, time
from pathlib import Path
from aiodist.observe.recorder import Recorder
from aiodist.observe.recorder import records
records.SHARED_MEMORY = Path(sys.argv[1])
memory = records.Memory("job")
recorder = Recorder(memory.buffer, os.getpid(), time.monotonic, time.time())
recorder.take_part(int(sys.argv[2]), 3, 0)
recorder.tell(argv=["train.py"])
recorder.flush()
print(memory.name, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="makes pid namespaces")
def test_containers_that_share_the_memory_do_not_collide(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both the process has the id 1."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c"]
    with contextlib.ExitStack() as held:
        names = []
        processes = []
        for rank in (1, 2):
            process = subprocess.Popen(
                [*words, IN_A_CONTAINER, str(place), str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            held.enter_context(process)
            held.callback(process.kill)
            processes.append(process)
            assert process.stdout is not None
            names.append(Name.parse(process.stdout.readline().strip()))
        assert [name and name.pid for name in names] == [1, 1]
        own = Memory("job")
        recorder = recording(own)
        recorder.take_part(0, 3, 0)
        views = {view.rank: view for view in host.read_ranks("job")}
        assert [view.alive for view in views.values()] == [True] * 3
        assert {rank: view.near for rank, view in views.items()} == {0: True, 1: False, 2: False}
        assert views[1].memory == 0 < views[0].memory  # process 1 here is somebody else
        assert host.environ_of(views[1]) == {}
        assert [view.stacks for view in ask([views[1]], patience=0.01)] == [None]
        processes[0].kill()
        processes[0].wait()
        while {one.recording.rank: one.alive for one in found()}[1]:
            os.sched_yield()
        monkeypatch.setattr(records, "KEPT", -1.0)
        with open_folder() as folder:
            sweep(folder)
        assert {one.recording.rank: one.alive for one in found()} == {0: True, 2: True}
        own.remove()


def test_what_is_no_recorders_is_left_alone_and_not_read() -> None:
    Memory("first").remove()
    with open_folder() as folder:
        for name, text in (("notes.txt", b"x"), ("job.1.0.0", b"short"), ("job.2.0.0", bytes(SIZE))):
            handle = folder.fresh(name)
            os.write(handle, text)
            os.close(handle)
    assert found() == []
    assert Name.parse("job.1.2.3") == Name("job", 1, 2, 3)
    assert Name.parse("job.1.2") is Name.parse("job.x.1.2") is Name.parse("") is None


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
