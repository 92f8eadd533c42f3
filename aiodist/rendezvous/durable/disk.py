"""The files of one store: a snapshot, and the log of what came after. Blocking; threads call it.

    snapshot-000002   all that was true when log 2 began
    log-000002        what came after, and log-000003 after that, where there is one

A log that has grown beyond a bound is completed and the next one begun; then a snapshot of that very moment
is written, and what is older goes. All files appear complete: written under another name, synced, renamed,
and the folder synced. Each commit is synced before `commit` returns.

After a failed write or sync nothing is known of what the disk holds (Linux forgets a failed write-back once
it was reported): from then on every call fails.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from aiodist.base.environment.files import Folder
from aiodist.base.errors import RendezvousError, WireError
from aiodist.rendezvous.durable.journal import (
    HEADER_BYTES,
    SALT_BYTES,
    Codec,
    DamageError,
    FileKind,
    JournalFrame,
    JournalHeader,
)
from aiodist.rendezvous.machine import Change, StoreMachine

_STEP_CHANGES = 1 << 10  # in one record of a snapshot, at most
_STEP_BYTES = 1 << 20  # likewise, unless one change is larger
_NAME = re.compile(r"(log|snapshot)-(\d{6,})$")


class Disk:
    """Calls that can fail: tests replace them."""

    def write(self, handle: int, data: bytes) -> None:
        """Write all of it."""
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]

    def sync(self, handle: int) -> None:
        """Return when what was written to a file is on the disk."""
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(handle)

    def sync_folder(self, folder: Folder) -> None:
        """Return when the names in a folder are on the disk."""
        folder.sync()

    def put(self, folder: Folder, name: str, parts: Iterator[bytes]) -> int:
        """Make a file, complete and on the disk when its name appears → its size."""
        fresh = f".{name}.new"
        handle = folder.fresh(fresh)
        try:
            for part in parts:
                self.write(handle, part)
            self.sync(handle)
            size = os.fstat(handle).st_size
        finally:
            os.close(handle)
        folder.rename(fresh, name)
        self.sync_folder(folder)
        return size


class StoreFiles:
    """The files of one store, open for its next commit. Make it with `StoreFiles.recover`.

    Attributes:
        cut: what was cut off the log's end, as text; '' where it was whole.
        log_bytes: size of the log.
        snapshot_bytes: size of the last snapshot.
    """

    def __init__(self, folder: Folder, instance: bytes, disk: Disk) -> None:
        self._folder = folder
        self.cut = ""
        self.log_bytes = 0
        self.snapshot_bytes = 0
        self._instance = instance
        self._disk = disk
        self._number = 0
        self._handle = -1
        self._codec = Codec(b"")
        self._failed: OSError | None = None

    @classmethod
    def recover(
        cls, folder: Folder, instance: bytes, machine: StoreMachine, disk: Disk | None = None
    ) -> StoreFiles:
        """Bring back what the files hold into a machine, and open them; where there are none, begin.

        Args:
            folder: of this store alone; owned, and closed with the files or by an error.
            instance: what names the store.
            machine: fresh.
            disk: what writes the files.

        Raises:
            RendezvousError: a file is damaged or missing; names it, the place, and what to do.
            OSError: a file cannot be read or written.
        """
        self = cls(folder, instance, Disk() if disk is None else disk)
        try:
            self._recover(machine)
        except BaseException:
            self.close()
            raise
        return self

    def _recover(self, machine: StoreMachine) -> None:
        snapshots, logs = self._found()
        if not snapshots and not logs:
            self._begin(1)
            return
        first = max(snapshots, default=min(logs, default=0))
        last = max(first, *logs)
        for number in range(first, last + 1):
            if number not in logs:
                raise self._incomplete(f"log-{number:06}")
        if snapshots:
            name = f"snapshot-{first:06}"
            self.snapshot_bytes = self._folder.size(name)
            self._read(name, FileKind.snapshot, first, machine, may_tear=False)
        end = HEADER_BYTES
        for number in range(first, last + 1):
            end = self._read(f"log-{number:06}", FileKind.log, number, machine, may_tear=number == last)
        self._number = last
        self._open(f"log-{last:06}", end)
        self._remove_older(first)

    def _found(self) -> tuple[set[int], set[int]]:
        found: dict[str, set[int]] = {"snapshot": set(), "log": set()}
        for name in self._folder.names():
            if match := _NAME.match(name):
                found[match[1]].add(int(match[2]))
            elif name.endswith(".new"):
                self._folder.remove(name)  # was never complete
        return found["snapshot"], found["log"]

    def _read(self, name: str, kind: FileKind, number: int, machine: StoreMachine, *, may_tear: bool) -> int:
        """Replay a file → where what is whole of it ends."""
        end = HEADER_BYTES
        complete = False
        with contextlib.ExitStack() as stack:
            data = stack.enter_context(_mapped(self._folder.file(name)))
            try:
                header = JournalHeader.decode(bytes(data[:HEADER_BYTES]))
                if (header.kind, header.number) != (kind, number):
                    raise DamageError(0, "the header is another file's")
                if header.instance != self._instance:
                    raise DamageError(0, "the header is another store's")
                self._codec = Codec(header.salt)
                for frame in self._codec.frames(data, may_tear=may_tear):
                    if complete:
                        raise DamageError(frame.begin, "something follows the end")
                    complete = frame.changes is None
                    _replay(machine, frame)
                    end = frame.end
                if not complete and not may_tear:
                    raise DamageError(end, "the end is missing")
                if complete and may_tear:
                    # The next log had not begun when the writer crashed.
                    end -= len(self._codec.complete())
                elif end < len(data):
                    lost = f"cut off {len(data) - end} bytes at {end}: a write that never ended"
                    self.cut = f"{self._path(name)}: {lost}"
            except DamageError as error:
                raise _damaged(self._path(name), error) from None
        return end

    def _path(self, name: str) -> Path:
        """The path, for people."""
        return self._folder.path / name

    def _incomplete(self, name: str) -> RendezvousError:
        return RendezvousError(
            f"the store's file {self._path(name)} is missing, others of the folder need it",
            hint="Restore it, from a backup if there is one, or move the whole folder away to begin empty",
        )

    def _open(self, name: str, end: int) -> None:
        self._handle = self._folder.file(name, os.O_WRONLY)
        if os.fstat(self._handle).st_size != end:
            os.ftruncate(self._handle, end)
            os.fsync(self._handle)
        os.lseek(self._handle, end, os.SEEK_SET)
        self.log_bytes = end

    def _begin(self, number: int) -> None:
        header = JournalHeader(FileKind.log, number, self._instance, os.urandom(SALT_BYTES))
        name = f"log-{number:06}"
        self._disk.put(self._folder, name, iter([header.encode()]))
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._number = number
        self._codec = Codec(header.salt)
        self._open(name, HEADER_BYTES)

    # While the store is served.

    def commit(self, changes: list[Change]) -> None:
        """Return when these changes are on the disk; all or none of them are there after a crash.

        Raises:
            OSError: they may or may not be there, and nothing more can be.
        """
        with self._while_whole():
            data = self._codec.commit(changes)
            self._disk.write(self._handle, data)
            self._disk.sync(self._handle)
            mark = self._codec.mark()
            self._disk.write(self._handle, mark)
        self.log_bytes += len(data) + len(mark)

    def next_log(self) -> int:
        """Complete this log and begin the next → its number. Errors as in `commit`."""
        with self._while_whole():
            self._disk.write(self._handle, self._codec.complete())
            self._disk.sync(self._handle)
            self._begin(self._number + 1)
        return self._number

    @contextlib.contextmanager
    def _while_whole(self) -> Iterator[None]:
        """Write; after the first failure nothing is known of the disk, and everything fails."""
        if self._failed is not None:
            raise self._failed
        try:
            yield
        except OSError as error:
            self._failed = error
            raise

    def snapshot(self, number: int, changes: list[Change]) -> None:
        """Write what was true when log `number` began, and remove what that makes needless.

        May run in another thread than the calls above, one at a time. `OSError` where it cannot be written.
        """
        header = JournalHeader(FileKind.snapshot, number, self._instance, os.urandom(SALT_BYTES))
        codec = Codec(header.salt)

        def parts() -> Iterator[bytes]:
            yield header.encode()
            for step in _steps(changes):
                yield codec.commit(step)
            yield codec.complete()

        self.snapshot_bytes = self._disk.put(self._folder, f"snapshot-{number:06}", parts())
        self._remove_older(number)

    def _remove_older(self, number: int) -> None:
        for name in self._folder.names():
            match = _NAME.match(name)
            if match and int(match[2]) < number:
                self._folder.remove(name)

    def close(self) -> None:
        """Let go of the files. May be called again."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._folder.close()


def _steps(changes: list[Change]) -> Iterator[list[Change]]:
    """The changes in groups, none of which holds the interpreter for long while it is packed."""
    step: list[Change] = []
    size = 0
    for change in changes:
        step.append(change)
        for part in change:
            if isinstance(part, list):
                size += sum(len(item) for item in part if isinstance(item, bytes))
            elif isinstance(part, bytes | str):
                size += len(part)
        if len(step) >= _STEP_CHANGES or size >= _STEP_BYTES:
            yield step
            step, size = [], 0
    if step:
        yield step


def _replay(machine: StoreMachine, frame: JournalFrame) -> None:
    for change in frame.changes or ():
        try:
            machine.replay(change)
        except WireError as error:
            raise DamageError(frame.begin, error.message) from None


@contextlib.contextmanager
def _mapped(handle: int) -> Iterator[memoryview]:
    """The contents of a file, whose descriptor it closes."""
    with os.fdopen(handle, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with memoryview(mapped) as data:
        yield data
    with contextlib.suppress(BufferError):  # an error on its way up still sees a part of it
        mapped.close()


def _damaged(path: Path, error: DamageError) -> RendezvousError:
    message = f"the store's file {path} is damaged: {error.message} at byte {error.offset}"
    return RendezvousError(
        message,
        hint="Restore the folder from a backup, or move it away to begin empty; nothing in it was changed",
    )
