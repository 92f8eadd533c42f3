"""What is written down when a process leaves, or has died; nothing in the way ends or hangs anybody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aiodist.observe import leaving
from aiodist.observe.dumps import read_job
from aiodist.observe.leaving import LOG_DIR, forget_dead, keep, keep_dead, keep_own, log_dir
from aiodist.observe.recorder.records import STACKS
from tests.observe.made import a_rank
from tests.observe.recorded import KEY, Rank, recording

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")

Make = Callable[..., Rank]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    (tmp_path / "memory").mkdir()
    with recording(tmp_path / "memory", monkeypatch.setattr) as makes:
        yield makes


def files(tmp_path: Path) -> set[str]:
    return set(os.listdir(tmp_path / "memory" / f"aiodist-{os.geteuid()}"))


async def test_the_dead_of_a_job_are_written_down_and_forgotten(make: Make, tmp_path: Path) -> None:
    dead, alive, other = make(1, run="r"), make(0, run="r"), make(1, key="another", run="s")
    for one in (dead, other):
        one.memory._let_go()
    beside = tmp_path / "memory" / f"aiodist-{os.geteuid()}" / f"{dead.memory.name}.new{STACKS}"
    beside.write_text("{}")
    logs = tmp_path / "logs"
    assert await keep_dead("r", {LOG_DIR: str(logs)}) == logs / KEY
    assert [rank.rank for rank in read_job(logs).ranks] == [1]
    assert files(tmp_path) == {alive.memory.name, other.memory.name}
    assert await keep_dead("r", {}) is None
    forget_dead("s")
    assert files(tmp_path) == {alive.memory.name}


async def test_each_job_of_a_run_has_a_folder_of_its_own(make: Make, tmp_path: Path) -> None:
    for rank, key in ((1, KEY), (2, "another")):
        make(rank, key=key, run="r").memory._let_go()
    logs = tmp_path / "logs"
    await keep_dead("r", {LOG_DIR: str(logs)})
    for rank, key in ((1, KEY), (2, "another")):
        assert [one.rank for one in read_job(logs / key).ranks] == [rank]


def test_a_folder_that_is_given_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert log_dir({LOG_DIR: "logs"}) == str(tmp_path / "logs")
    assert log_dir({LOG_DIR: "~/logs"}) == str(tmp_path / "home" / "logs")
    assert log_dir({}) == ""


async def test_a_process_writes_down_its_own_record(make: Make, tmp_path: Path) -> None:
    make(1)
    await keep_own(KEY, {"XDG_STATE_HOME": str(tmp_path / "state")})
    (folder,) = (path for path in (tmp_path / "state/aiodist/jobs").iterdir() if path.is_dir())
    assert [rank.rank for rank in read_job(folder).ranks] == [1]
    assert len(files(tmp_path)) == 1


async def test_it_is_written_where_no_thread_can_begin(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Python 3.12 while the interpreter exits."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    make(0)
    monkeypatch.setattr(threading.Thread, "start", start)
    await keep_own(KEY, {LOG_DIR: str(tmp_path / "logs")})
    assert [rank.rank for rank in read_job(tmp_path / "logs").ranks] == [0]


async def test_a_folder_that_does_not_answer_delays_nobody_for_long(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(1)
    go = threading.Event()
    monkeypatch.setattr(leaving, "keep", lambda views, environ: go.wait() and None)
    monkeypatch.setattr(leaving, "PATIENCE", 0.05)
    monkeypatch.setattr(leaving, "PATIENCE_FOR_ALL", 0.05)
    await keep_own(KEY, {})
    assert await keep_dead("j", {}) is None
    go.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_what_goes_wrong_there_keeps_nobody_waiting(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(1)
    monkeypatch.setattr(leaving, "PATIENCE", 1000.0)
    monkeypatch.setattr(leaving, "keep", lambda views, environ: 1 / 0)
    await keep_own(KEY, {})


def test_a_place_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below", "/proc/none"):
        assert keep([a_rank()], {LOG_DIR: str(path)}) is None
        assert keep([a_rank()], {"XDG_STATE_HOME": str(path)}) is None
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(
        os.path, "expanduser", lambda path: path
    )  # a user whom nobody knows, as in containers
    assert keep([a_rank()], {}) is None
    assert keep([], {}) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_disk_that_is_full_gets_no_half_of_a_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k,mode=700", "none", disk], capture_output=True
    ).returncode:
        pytest.skip("cannot mount here")
    try:
        assert keep([a_rank(events=["x" * 20000])], {LOG_DIR: str(disk)}) is None
        assert list(disk.iterdir()) == []
        assert keep([a_rank()], {LOG_DIR: str(disk)}) == disk / "cafe"
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert keep([a_rank()], {LOG_DIR: str(disk)}) is None
    finally:
        subprocess.run(["umount", disk], check=True)
