"""Recorders' memory as files: who reads one needs nothing of the process that writes it, or wrote it.

A process's file lies in shared memory, or in /tmp where that has no room, in a folder of its user's. It is
locked for as long as the process lives. It is removed when the process leaves its job in good order. What a
killed process leaves behind is for whoever explains that (the launcher, or a neighbour); at the latest it is
removed when a process of the user begins to record, ten minutes later or more. Three files may lie beside it,
which go when it goes: a question what the process does, its answer, and what the kernel made it write where
it could not answer.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import logging
import os
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import NamedTuple, Self

from aiodist.base.environment.files import Folder
from aiodist.base.environment.mapping import make_own, mapped
from aiodist.base.environment.pids import pid_space
from aiodist.base.errors import WireError
from aiodist.observe.recorder.layout import BEGAN, HEADER, RING_PLACES, SIZE
from aiodist.observe.recorder.reading import GLANCE, Glance, Recording, glance, read

SHARED_MEMORY = Path("/dev/shm")
ELSEWHERE = Path("/tmp")
"""The place of files for which shared memory has no room: containers may have 64 MiB, which NCCL fills."""
KEPT = 600.0  # seconds for which the file of a killed process is left to others
STACKS, FAULT, ASKED = ".stacks", ".fault", ".asked"  # the ends of the names of the files beside a recorder's

_log = logging.getLogger("aiodist.observe.recorder")
_numbers = itertools.count()
_TRIES = 100


class Name(NamedTuple):
    """The name of a file.

    Args:
        job: a key that all processes of a job know.
        pid: of the process.
        space: the pid namespace in which it has that id (`pid_space`): containers may share this memory.
        number: of the recorder in it.
    """

    job: str
    pid: int
    space: int
    number: int

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """Read a name; None: it is no recorder's."""
        job, *numbers = text.split(".")
        if len(numbers) != 3 or not all(number.isascii() and number.isdigit() for number in numbers):
            return None
        return cls(job, *map(int, numbers))


class Memory:
    """Memory for a recorder of this process. Where there can be no file it belongs to this process alone.

    Args:
        job: for the file's name.

    Attributes:
        buffer: `layout.SIZE` bytes, all zero. It stays when the file is removed.
        name: of the file.
    """

    def __init__(self, job: str) -> None:
        self.buffer: memoryview | bytearray = bytearray(SIZE)
        self.name = ""
        self._job = job
        self._lock = -1
        wrong = []
        for path in _paths():
            try:
                with Folder.open(path, make=True) as folder:
                    sweep(Folders([folder]))
                    self._lay_into(folder)
                return
            except OSError as error:  # no such folder, not ours, no room
                wrong.append(f"{path}: {error.strerror or error}")
        self.name = ""
        _log.warning(
            "nobody else sees what this process does ('aiodist top', the verdicts of ranks): it can write "
            "its record neither to %s. Make room in one of these, or make it this user's alone (chmod 700)",
            ", nor to ".join(wrong),
        )

    def _lay_into(self, folder: Folder) -> None:
        handle = self._open_fresh(folder)
        try:
            self._lock = folder.file(self.name)  # of its own: memory keeps what it was mapped by open
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _mine.add(self)
            os.posix_fallocate(handle, 0, SIZE)  # now, or a write could end the process by SIGBUS
            self.buffer = mapped(handle, SIZE, writable=True)
        except BaseException:
            folder.remove(self.name)
            self._let_go()
            raise
        finally:
            os.close(handle)

    def _open_fresh(self, folder: Folder) -> int:
        """Make a file; a dead process of this id, in a namespace of this number, may have left some."""
        for _ in range(_TRIES):
            self.name = str(Name(self._job, os.getpid(), pid_space(), next(_numbers)))
            with contextlib.suppress(FileExistsError):
                return folder.file(self.name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        raise FileExistsError(f"{self.name} and those before it are there")

    def remove(self) -> None:
        """Remove the file, and those beside it: the process leaves its job in good order."""
        if self._lock >= 0:
            with contextlib.suppress(OSError), open_folder() as folder:
                remove(folder, self.name)
            self._let_go()

    def _let_go(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


class FoundRecord(NamedTuple):
    """A recorder's file that was found.

    Args:
        name: of the file.
        alive: its process lives.
        recording: what it holds; of the process that the name says.
    """

    name: Name
    alive: bool
    recording: Recording


class Folders:
    """The folders of this user's recorders, as one `Folder`. What lies beside a recorder's file is where that
    is.

    Args:
        folders: open, one at least; closed with this.
    """

    def __init__(self, folders: Sequence[Folder]) -> None:
        self._folders = folders

    def _of(self, name: str) -> Folder:
        """The folder that has an entry, or gets it."""
        if len(self._folders) > 1:
            recorder = ".".join(name.split(".")[: len(Name._fields)])
            for folder in self._folders:
                if folder.has(recorder) or folder.has(name):
                    return folder
        return self._folders[0]

    def names(self) -> list[str]:
        """As `Folder.names`."""
        return sorted(name for folder in self._folders for name in folder.names())

    def file(self, name: str, flags: int = os.O_RDONLY) -> int:
        """As `Folder.file`."""
        return self._of(name).file(name, flags)

    def fresh(self, name: str) -> int:
        """As `Folder.fresh`."""
        return self._of(name).fresh(name)

    def size(self, name: str) -> int:
        """As `Folder.size`."""
        return self._of(name).size(name)

    def stat(self, name: str) -> os.stat_result:
        """As `Folder.stat`."""
        return self._of(name).stat(name)

    def rename(self, name: str, to: str) -> None:
        """As `Folder.rename`; both are of the same recorder."""
        self._of(name).rename(name, to)

    def remove(self, name: str) -> None:
        """As `Folder.remove`."""
        self._of(name).remove(name)

    def close(self) -> None:
        """As `Folder.close`."""
        for folder in self._folders:
            folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _paths() -> list[Path]:
    """The folders in which recorders' files may lie, the better one first."""
    return [place / f"aiodist-{os.geteuid()}" for place in (SHARED_MEMORY, ELSEWHERE)]


def open_folder() -> Folders:
    """The folders of this user's recorders.

    Raises:
        FileNotFoundError: there is none.
        OSError: none can be trusted, or opened; `filename` has one.
    """
    found, wrong = [], []
    for path in _paths():
        try:
            found.append(Folder.open(path))
        except OSError as error:
            error.filename = str(path)
            wrong.append(error.with_traceback(None))  # else it keeps the frames of all callers alive
    if found:
        return Folders(found)
    raise next((error for error in wrong if not isinstance(error, FileNotFoundError)), wrong[0])


def find(
    folder: Folders, job: str | None = None, pid: int | None = None, most: int = RING_PLACES
) -> Iterator[FoundRecord]:
    """Read the recorders of this host and user: all, those of a job, or those of a process; of each so many
    of its last operations."""
    for text in folder.names():
        name = Name.parse(text)
        if name is not None and job in (None, name.job) and pid in (None, name.pid):
            with contextlib.suppress(OSError, WireError):  # it has just gone, or is not whole yet
                handle = folder.file(text)
                try:
                    if os.fstat(handle).st_size >= SIZE:  # to read beyond the end would be SIGBUS
                        recording = read(mapped(handle, SIZE), most)
                        if recording.pid == name.pid:  # else a signal might go to somebody else
                            yield FoundRecord(name, _is_locked(handle), recording)
                finally:
                    os.close(handle)


def glance_at(folder: Folders, name: str) -> Glance | None:
    """Look at one recorder, at little cost; None where there is none."""
    with contextlib.suppress(OSError, WireError):
        handle = folder.file(name)
        try:
            return glance(os.pread(handle, GLANCE, 0))
        finally:
            os.close(handle)
    return None


def glances(folder: Folders, job: str) -> Iterator[tuple[str, Glance]]:
    """Look at the recorders of a job on this host, each by the name of its file."""
    for text in folder.names():
        name = Name.parse(text)
        if name is not None and name.job == job:
            seen = glance_at(folder, text)
            if seen is not None:
                yield text, seen


def name_of(folder: Folders, job: str, pid: int, began: float) -> Name | None:
    """The name of a recorder's file; None where there is none.

    Args:
        began: when it began, which tells it from others of the same process, and of other pid namespaces.
    """
    for text in folder.names():
        name = Name.parse(text)
        if name is not None and (name.job, name.pid) == (job, pid):
            with contextlib.suppress(OSError):
                handle = folder.file(text)
                try:
                    header = os.pread(handle, HEADER.size, 0)
                finally:
                    os.close(handle)
                if len(header) == HEADER.size and HEADER.unpack(header)[BEGAN] == began:
                    return name
    return None


def remove(folder: Folders, name: str) -> None:
    """Remove a recorder's file, and those beside it."""
    for text in folder.names():
        if text == name or text.startswith(f"{name}."):
            folder.remove(text)


def leave_note(name: str, data: bytes) -> None:
    """Leave a file beside the recorders', which lies there for as long as that of a killed process.

    Args:
        name: of the file; it is no recorder's.
        data: what it holds.

    Raises:
        OSError: it can be written nowhere.
    """
    wrong = OSError("there is no place for it")
    for path in _paths():
        try:
            with Folder.open(path, make=True) as folder:
                fresh = f".{name}.{os.getpid()}"  # it is read whole, or not at all
                with os.fdopen(folder.fresh(fresh), "wb") as file:
                    file.write(data)
                folder.rename(fresh, name)
                return
        except OSError as error:
            wrong = error
    raise wrong


def notes(ending: str, most: int) -> Iterator[bytes]:
    """What the notes hold whose names end so and that are not too old, `most` bytes of each."""
    try:
        folders = open_folder()
    except OSError:
        return
    after = time.time() - KEPT
    with folders:
        for text in folders.names():
            if text.endswith(ending) and not text.startswith("."):
                with contextlib.suppress(OSError), os.fdopen(folders.file(text), "rb") as file:
                    if os.fstat(file.fileno()).st_mtime >= after:
                        yield file.read(most)


def sweep(folder: Folders) -> None:
    """Remove the files of processes that died a while ago, and what lies beside them."""
    before = time.time() - KEPT
    for text in folder.names():
        with contextlib.suppress(OSError):
            handle = folder.file(text)
            try:
                old = os.fstat(handle).st_ctime < before
            finally:
                os.close(handle)
            if old and not is_alive(
                folder, text.removesuffix(STACKS).removesuffix(FAULT).removesuffix(ASKED)
            ):
                folder.remove(text)


def is_alive(folder: Folders, name: str) -> bool:
    """Whether the process of a recorder's file lives.

    Raises:
        OSError: the file cannot be opened.
    """
    try:
        handle = folder.file(name)
    except FileNotFoundError:
        return False
    try:
        return _is_locked(handle)
    finally:
        os.close(handle)


def _is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


_mine: weakref.WeakSet[Memory] = weakref.WeakSet()


def _after_fork() -> None:
    """Let go of the parent's locks, which would hold for as long as the child lives, and of its memory: what
    the child writes down is its own."""
    for memory in list(_mine):
        memory._let_go()
        if isinstance(memory.buffer, memoryview):
            with contextlib.suppress(OSError):
                make_own(memory.buffer)


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    """Remove the files of a process that ends well, or as its user asked, and has not said that it leaves.
    What one that ends by an exception has done is for others to read."""
    if isinstance(getattr(sys, "last_value", None), NoneType | KeyboardInterrupt):
        for memory in list(_mine):
            memory.remove()
