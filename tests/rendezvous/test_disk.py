"""A store's files: crashes at every byte, logs that are replaced, damage, disks that fail."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiodist.base.environment.files import Folder
from aiodist.base.errors import RendezvousError, UsageError
from aiodist.rendezvous.durable.data_folder import DataFolder
from aiodist.rendezvous.durable.disk import Disk, StoreFiles
from aiodist.rendezvous.durable.journal import HEADER_BYTES
from aiodist.rendezvous.machine import StoreMachine
from tests.rendezvous.store_life import Life, state

INSTANCE = b"i" * 16
CALM = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


class NoDisk(Disk):
    """Does not wait for the disk: what a process wrote outlives it without."""

    def sync(self, handle: int) -> None:
        pass

    def sync_folder(self, folder: Folder) -> None:
        pass


class Crash(BaseException):
    """The process ends here."""


class CrashingDisk(NoDisk):
    """Writes so many bytes, or takes so many steps that change names, and no more."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def write(self, handle: int, data: bytes) -> None:
        written = data[: self.budget]
        os.write(handle, written)
        self.budget -= len(data)
        if self.budget < 0:
            raise Crash

    def sync(self, handle: int) -> None:
        self._step()

    def sync_folder(self, folder: Folder) -> None:
        self._step()

    def _step(self) -> None:
        self.budget -= 1
        if self.budget < 0:
            raise Crash


def recover(folder: Path, disk: Disk | None = None) -> tuple[StoreMachine, StoreFiles]:
    machine = StoreMachine()
    files = StoreFiles.recover(Folder.open(folder, make=True), INSTANCE, machine, disk or NoDisk())
    machine.restarted(0.0)
    return machine, files


def live(folder: Path, disk: Disk, seed: int, commits: int) -> Iterator[tuple[list[str], bool]]:
    """Live on, committing after every few steps → the state, and whether it is confirmed."""
    machine, files = recover(folder, disk)
    life = Life(machine, seed)
    try:
        for number in range(commits):
            for _ in range(life.rng.randrange(1, 6)):
                life.step()
            changes = machine.take_changes()
            yield state(machine), False
            if changes:
                files.commit(changes)
            yield state(machine), True
            if number % 5 == 4:
                files.snapshot(files.next_log(), machine.dump())
    finally:
        files.close()


@pytest.mark.slow("a crash at every byte")
@CALM
@given(seed=st.integers(0, 2**32))
def test_a_crash_at_every_byte_of_the_log_loses_nothing_that_was_confirmed(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    shutil.rmtree(folder, ignore_errors=True)
    machine, files = recover(folder)
    life = Life(machine, seed)
    states = [state(machine)]
    confirmed = [HEADER_BYTES]
    for _ in range(4):
        for _ in range(3):
            life.step()
        if changes := machine.take_changes():
            files.commit(changes)
            states.append(state(machine))
            confirmed.append(files.log_bytes)
    files.close()
    whole = (folder / "log-000001").read_bytes()
    for cut in range(HEADER_BYTES, len(whole) + 1):
        (folder / "log-000001").write_bytes(whole[:cut])
        again, files = recover(folder)
        found = state(again)
        at_least = sum(end <= cut for end in confirmed) - 1
        assert found in (states[at_least], *states[at_least : at_least + 2])
        assert (files.cut == "") == (os.stat(folder / "log-000001").st_size == cut)
        files.close()
        again, files = recover(folder)  # what was cut off stays cut off
        assert state(again) == found
        assert files.cut == ""
        files.close()


@CALM
@given(seed=st.integers(0, 2**32), every=st.integers(1, 400))
def test_a_crash_at_any_step_loses_nothing_that_was_confirmed(seed: int, every: int, tmp_path: Path) -> None:
    """Also while a log is replaced and a snapshot written; and crashes follow crashes."""
    folder = tmp_path / "store"
    shutil.rmtree(folder, ignore_errors=True)
    confirmed = possible = state(StoreMachine())
    budget = every
    for _ in range(12):
        try:
            for now, is_confirmed in live(folder, CrashingDisk(budget), seed, 12):
                possible = now
                if is_confirmed:
                    confirmed = now
        except Crash:
            pass
        machine, files = recover(folder)
        files.close()
        assert state(machine) in (confirmed, possible)
        confirmed = possible = state(machine)
        seed += 1
        budget += 211


def test_the_log_is_bounded_and_old_files_go(tmp_path: Path) -> None:
    for _ in live(tmp_path / "s", NoDisk(), 1, 40):
        names = sorted(path.name for path in (tmp_path / "s").iterdir())
        assert len(names) <= 2
    names = sorted(path.name for path in (tmp_path / "s").iterdir())
    assert names == ["log-000009", "snapshot-000009"]


def test_files_that_were_never_complete_are_removed(tmp_path: Path) -> None:
    for _ in live(tmp_path / "s", NoDisk(), 1, 7):
        pass
    (tmp_path / "s" / ".snapshot-000003.new").write_bytes(b"half")
    recover(tmp_path / "s")[1].close()
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["log-000002", "snapshot-000002"]


def built(tmp_path: Path) -> Path:
    """A folder with a snapshot, its log, and the log after that."""
    folder = tmp_path / "s"
    for _ in live(folder, NoDisk(), 1, 8):
        pass
    machine, files = recover(folder)
    files.next_log()
    life = Life(machine, 2)
    for _ in range(10):
        life.step()
    files.commit(machine.take_changes())
    files.close()
    assert sorted(p.name for p in folder.iterdir()) == ["log-000002", "log-000003", "snapshot-000002"]
    return folder


@pytest.mark.parametrize("name", ["snapshot-000002", "log-000002", "log-000003"])
def test_damage_is_refused_in_one_line_that_names_the_place(name: str, tmp_path: Path) -> None:
    path = built(tmp_path) / name
    whole = path.read_bytes()
    for at in (9, HEADER_BYTES + 5, len(whole) // 2, len(whole) - 20):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(RendezvousError, match=r"is damaged: .* at byte ") as caught:
            recover(path.parent)
        assert str(path) in str(caught.value) and "backup" in caught.value.hint
        assert "\n" not in str(caught.value)
        assert int(caught.value.message.rpartition(" ")[2]) <= at
    path.write_bytes(whole)
    recover(path.parent)[1].close()


@pytest.mark.parametrize("name", ["snapshot-000002", "log-000002"])
def test_only_the_last_file_may_be_cut_off(name: str, tmp_path: Path) -> None:
    path = built(tmp_path) / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RendezvousError, match="is damaged"):
        recover(path.parent)
    path.unlink()
    with pytest.raises(RendezvousError, match=r"is missing|is damaged"):
        recover(path.parent)


def test_files_of_another_store_are_refused(tmp_path: Path) -> None:
    folder = built(tmp_path)
    with pytest.raises(RendezvousError, match="another store's"):
        StoreFiles.recover(Folder.open(folder), b"o" * 16, StoreMachine(), NoDisk())
    shutil.copy(folder / "log-000002", folder / "log-000003")
    with pytest.raises(RendezvousError, match="another file's"):
        recover(folder)


class FailingDisk(Disk):
    """Fails at the calls that are named."""

    def __init__(self) -> None:
        self.fail: dict[str, OSError] = {}

    def _check(self, what: str) -> None:
        if what in self.fail:
            raise self.fail.pop(what)

    def write(self, handle: int, data: bytes) -> None:
        if "write" in self.fail:
            super().write(handle, data[: len(data) // 2])  # a full disk takes a part
        self._check("write")
        super().write(handle, data)

    def sync(self, handle: int) -> None:
        self._check("sync")
        super().sync(handle)


@pytest.mark.parametrize("what", ["write", "sync"])
def test_after_a_failure_nothing_more_is_written(what: str, tmp_path: Path) -> None:
    disk = FailingDisk()
    machine, files = recover(tmp_path / "s", disk)
    files.commit([(13, 1)])
    disk.fail[what] = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space left"):
        files.commit([(13, 2)])
    size = (tmp_path / "s" / "log-000001").stat().st_size
    for again in (lambda: files.commit([(13, 3)]), files.next_log):
        with pytest.raises(OSError, match="No space left"):
            again()
    assert (tmp_path / "s" / "log-000001").stat().st_size == size
    files.close()
    machine, files = recover(tmp_path / "s")
    assert machine.journal.revision in ((1,) if what == "write" else (1, 2))
    files.close()


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "Make room on its disk"),
        (errno.EDQUOT, "Make room on its disk"),
        (errno.EIO, "See to the disk"),
        (errno.EACCES, "Name a folder that this user can write to"),
    ],
)
def test_what_to_do_about_a_folder_that_cannot_be_used(number: int, hint: str, tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.fail["write"] = OSError(number, os.strerror(number))
    with pytest.raises(UsageError, match=rf"cannot be used \({os.strerror(number)}\)\. {hint}"):
        DataFolder.open(tmp_path / "d", disk)
    DataFolder.open(tmp_path / "d").close()


def test_a_real_full_disk_is_an_error() -> None:
    handle = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left"):
            Disk().write(handle, b"x")
    finally:
        os.close(handle)


# The folder.


def test_a_folder_is_one_servers(tmp_path: Path) -> None:
    first = DataFolder.open(tmp_path / "d")
    assert first.generation == 1
    with pytest.raises(UsageError, match=rf"/d is in use by pid {os.getpid()}\."):
        DataFolder.open(tmp_path / "d")
    first.close()
    second = DataFolder.open(tmp_path / "d")
    assert (second.key, second.generation) == (first.key, 2)
    second.close()


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    (tmp_path / "file").touch()
    for name, said in (
        ("photos", "holds something else"),
        ("no/such", "cannot be used"),
        ("file", "cannot be used"),
    ):
        with pytest.raises(UsageError, match=said):
            DataFolder.open(tmp_path / name)


def test_a_folder_without_its_identity_is_refused(tmp_path: Path) -> None:
    DataFolder.open(tmp_path / "d").close()
    identity = tmp_path / "d" / "identity"
    identity.write_bytes(b"{}")
    with pytest.raises(RendezvousError, match="identity is damaged"):
        DataFolder.open(tmp_path / "d")
    identity.unlink()
    with pytest.raises(RendezvousError, match="identity is missing"):
        DataFolder.open(tmp_path / "d")


def test_no_jobs_name_leads_elsewhere(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "d")
    names = ["", ".", "..", "a/b", "../../x", "a%2Fb", "A", "a", "~", "é" * 100, "é" * 101, "x" * 255, "\0"]
    for name in names:
        folder.recover(name, StoreMachine()).close()
    folder.close()
    made = [path for path in tmp_path.rglob("*") if path.name.startswith("log-")]
    assert len(made) == len(names)
    assert {path.parents[1] for path in made} == {tmp_path / "d" / "jobs"}
