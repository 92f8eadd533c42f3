"""The ranks of this host, as they are seen; and what lies in their folder that is none."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aiodist.observe import host
from aiodist.observe.host import environ_of, host_name, read_jobs, read_ranks
from aiodist.observe.recorder import records
from aiodist.observe.recorder.layout import SIZE
from aiodist.observe.recorder.records import FAULT, STACKS
from aiodist.observe.view import Doing
from tests.conftest import HandOver
from tests.levels import COSTLY
from tests.observe.made import a_rank
from tests.observe.recorded import KEY, Rank, recording

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")

Make = Callable[..., Rank]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    with recording(tmp_path, monkeypatch.setattr) as makes:
        yield makes


def folder(tmp_path: Path) -> Path:
    return tmp_path / f"aiodist-{os.geteuid()}"


def test_a_rank_of_this_host(make: Make) -> None:
    make(1, 2)
    (view,) = read_ranks(KEY, os.getpid())
    assert (view.rank, view.host, view.key, view.alive, view.stopped) == (1, host_name(), KEY, True, False)
    assert view.memory > 1 << 20
    assert view.cpu > 0
    assert 0 <= view.now - view.recording.vitals.flushed < 60
    assert view.doing is Doing.running
    assert read_ranks("another") == read_ranks(KEY, 1) == []


def test_the_kernel_cuts_a_process_name_within_a_character(make: Make, cut_name: None) -> None:
    make(1, 2)
    (view,) = read_ranks(KEY, os.getpid())
    assert view.memory > 1 << 20


def test_who_has_no_place_in_its_job_yet_is_left_out(make: Make) -> None:
    make(0, 0)
    assert read_ranks() == []
    assert read_jobs() == []


def test_a_clock_of_another_namespace_is_read_by_the_time_of_day(make: Make) -> None:
    rank = make(0, 2, clock="another")
    rank.flush(behind=1000.0)  # its clock shows less
    (view,) = read_ranks()
    assert abs(view.now - (time.time() - view.recording.offset)) < 60


def test_the_file_of_one_that_has_died_tells_of_it(make: Make) -> None:
    rank = make()
    rank.memory._let_go()  # as the end of its process does
    (view,) = read_ranks()
    assert (view.alive, view.memory, view.cpu, view.doing) == (False, 0, 0.0, Doing.dead)


def test_the_number_of_a_process_that_has_ended_may_be_another_ones(make: Make, tmp_path: Path) -> None:
    rank = make()
    here = folder(tmp_path)
    struct.pack_into("<Q", rank.memory.buffer, struct.calcsize("<16s"), 1)
    os.rename(here / rank.memory.name, here / f"{KEY}.1.0.0")  # process 1 lives, and is none of the job's
    rank.memory._let_go()
    (view,) = read_ranks()
    assert view.doing is Doing.dead


def test_the_kernel_may_tell_nothing_of_a_process() -> None:
    assert host._kernels(2**30) == ("", 0, 0.0)
    assert host._kernels(os.getpid())[0] in ("R", "S", "D")


def test_nobody_records_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("SHARED_MEMORY", "ELSEWHERE"):
        monkeypatch.setattr(records, place, tmp_path / "missing")
    assert read_ranks() == []


def test_a_folder_of_another_user_is_not_read(make: Make, tmp_path: Path, hand_over: HandOver) -> None:
    make()
    assert len(read_ranks()) == 1
    here = folder(tmp_path)
    hand_over(here)
    assert read_ranks() == []


def test_a_link_of_another_users_is_not_followed(tmp_path: Path, make: Make, hand_over: HandOver) -> None:
    make()
    here = folder(tmp_path)
    here.rename(tmp_path / "elsewhere")
    here.symlink_to(tmp_path / "elsewhere")
    hand_over(here)
    assert read_ranks() == []
    here.unlink()
    (tmp_path / "elsewhere").rename(here)


def test_what_lies_beside_recorders_is_passed_over(make: Make, tmp_path: Path, hand_over: HandOver) -> None:
    rank = make()
    here = folder(tmp_path)
    whole = (here / rank.memory.name).read_bytes()
    (here / f"{KEY}.1.0.0").symlink_to(here / rank.memory.name)
    (here / f"{KEY}.2.0.0").write_bytes(b"")
    (here / f"{KEY}.3.0.0").write_bytes(whole[:-1])
    (here / f"{KEY}.4.0.0").write_bytes(bytes(SIZE))
    os.mkfifo(here / f"{KEY}.5.0.0")
    (here / f"{KEY}.6.0.0").mkdir()
    (here / f"{KEY}.7.0.0").write_bytes(random.Random(1).randbytes(SIZE))
    (here / f"{KEY}.8.0.0").write_bytes(whole[:200] + random.Random(1).randbytes(SIZE - 200))
    os.truncate(here / f"{KEY}.4.0.0", 1 << 40)
    for name in (
        f"{KEY}.x.0.0",
        "x",
        f"{KEY}.9.0.0{STACKS}",
        f"{KEY}.9.0.0{FAULT}",
        "a.b.c.d",
        f"{KEY}.-1.0.0",
    ):
        (here / name).write_bytes(whole)
    if os.geteuid() == 0:
        (here / f"{KEY}.10.0.0").write_bytes(whole)
        hand_over(here / f"{KEY}.10.0.0")
    assert [view.recording.pid for view in read_ranks()] == [os.getpid()]
    for entry in here.iterdir():
        if entry.name != rank.memory.name:
            entry.rmdir() if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def test_a_rank_that_says_it_is_another_process_is_passed_over(make: Make) -> None:
    rank = make()
    struct.pack_into("<Q", rank.memory.buffer, struct.calcsize("<16s"), 1)  # who asks it would ask process 1
    assert read_ranks() == []


@pytest.mark.slow(COSTLY)
def test_strange_names_and_many_jobs(make: Make, tmp_path: Path) -> None:
    rank = make(0, 2, job="\x1b[2J\n" * 100, argv=["\x1b]0;x\x07" + "x" * 500])
    whole = (folder(tmp_path) / rank.memory.name).read_bytes()
    for number in range(300):
        (folder(tmp_path) / f"\x1b[31m{number}\n.{os.getpid()}.0.{number}").write_bytes(whole)
    found = read_jobs()
    assert len(found) == 301
    assert sum(view.alive for job in found for view in job.ranks) == 1
    for entry in folder(tmp_path).iterdir():
        if entry.name != rank.memory.name:
            entry.unlink()


def test_the_environment_that_a_rank_was_started_with() -> None:
    with_one = {"AIODIST_SECRET": "a=b", "PATH": os.environ["PATH"]}
    for environ, found in ((with_one, with_one), ({"PATH": os.environ["PATH"]}, {})):
        with started_cat(environ) as process:
            view = a_rank(host=host_name(), near=True)
            view = replace(view, recording=replace(view.recording, pid=process.pid))
            assert environ_of(view) == found
            assert environ_of(replace(view, host="elsewhere")) == {}
            assert environ_of(replace(view, alive=False)) == {}
            assert environ_of(replace(view, near=False)) == {}
            process.communicate()
        assert environ_of(view) == {}


def test_an_environment_that_is_another_users_or_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"AIODIST_SECRET": "a", "MUCH": "x" * 1000}
    with started_cat(environ) as process:
        view = a_rank(host=host_name(), near=True)
        view = replace(view, recording=replace(view.recording, pid=process.pid))
        assert environ_of(view) == environ
        monkeypatch.setattr(host, "LARGEST", 100)
        assert environ_of(view) == {}
        monkeypatch.setattr(host, "LARGEST", 10000)
        monkeypatch.setattr(host, "is_me", lambda user: False)
        assert environ_of(view) == {}
        process.communicate()


def started_cat(environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process with this environment that has begun its program: it has answered a line. The return of Popen
    does not show that, nor does its name: the kernel renames a process before it lays out its environment."""
    process = subprocess.Popen(
        ["cat"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, executable="/bin/cat"
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"\n"
    return process
