"""The folder of a durable server: who it is, who may use it, and the files of each job's store.

It is this user's own, and nobody else may write to it: see `environment.files`.

lock         held by the server that uses the folder
identity     the key that names its stores, and how often it was started
jobs/NAME/   the files of a job's store (see `disk`)
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from aiodist.base.environment.files import Folder, UntrustedError
from aiodist.base.errors import RendezvousError, UsageError
from aiodist.net.forks import Owned
from aiodist.rendezvous.durable.committer import Committer
from aiodist.rendezvous.durable.disk import Disk, StoreFiles
from aiodist.rendezvous.machine import StoreMachine
from aiodist.rendezvous.store_card import instance_of

_log = logging.getLogger("aiodist.store")
_OURS = ("lock", "lost+found")  # may be in a folder that is to become a store's
_THREADS = 8  # commits, and snapshots, that are written at the same time
_LONGEST = 120  # characters of a job's name that become a folder's name as they are


class DataFolder:
    """A folder that this process alone serves. Make it with `DataFolder.open`.

    Attributes:
        path: the folder.
        key: 32 secret random bytes that name the stores in it.
        generation: how often a server has been started on it, this time included.
    """

    def __init__(self, folder: Folder, disk: Disk) -> None:
        self.path = folder.path
        self.key = b""
        self.generation = 0
        self._folder = folder
        self._jobs: Folder | None = None
        self._lock: Owned | None = None
        self._disk = disk
        self._pool = ThreadPoolExecutor(_THREADS, "aiodist-store")

    @classmethod
    def open(cls, path: str | os.PathLike[str], disk: Disk | None = None) -> DataFolder:
        """Lock a folder (it is made if need be), and count this start. Blocking.

        Raises:
            UsageError: another server uses it, it cannot be used, it is not this user's alone, or it holds
                something else.
            RendezvousError: it is damaged.
        """
        try:
            self = cls(Folder.open(path, make=True), Disk() if disk is None else disk)
            try:
                self._lock = Owned(_locked(self._folder))
                self._identify()
                self._jobs = self._folder.folder("jobs", make=True)
                self._disk.sync_folder(self._folder)
            except BaseException:
                self.close()
                raise
        except UntrustedError as error:
            raise UsageError(
                f"the store's folder {Path(path).absolute()} is not safe ({error.strerror})",
                hint="Name a folder of the user that the store runs as, which nobody else can write to (mode "
                "0700), or one that does not exist yet",
            ) from None
        except OSError as error:
            raise UsageError(
                f"the store's folder {Path(path).absolute()} cannot be used ({error.strerror})",
                hint=_remedy(
                    error, "Name a folder that this user can write to; the folder above it must exist"
                ),
            ) from None
        return self

    def _identify(self) -> None:
        path, folder = self.path / "identity", self._folder
        if folder.has("identity"):
            try:
                found = json.loads(folder.read("identity"))
                self.key, self.generation = bytes.fromhex(found["key"]), int(found["generation"])
            except (ValueError, KeyError, TypeError):
                raise RendezvousError(
                    f"the store's file {path} is damaged",
                    hint="Restore it from a backup; without it clients take the store for another one",
                ) from None
        elif folder.has("jobs"):
            raise RendezvousError(
                f"the store's file {path} is missing, and there are data in the folder",
                hint="Restore it from a backup, or move the whole folder away to begin empty",
            )
        else:
            if any(name not in _OURS for name in folder.names() if name[0] != "."):
                raise UsageError(
                    f"the folder {self.path} holds something else than a store", hint="Name an empty folder"
                )
            self.key = os.urandom(32)
        self.generation += 1
        text = json.dumps({"key": self.key.hex(), "generation": self.generation})
        self._disk.put(folder, "identity", iter([text.encode()]))

    def recover(self, job: str, machine: StoreMachine) -> StoreFiles:
        """Bring a job's store back into a fresh machine, or begin one. `RendezvousError` if it cannot."""
        name = _folder_name(job)
        assert self._jobs is not None
        try:
            known = self._jobs.has(name)
            folder = self._jobs.folder(name, make=True)
            if not known:
                self._disk.sync_folder(self._jobs)
            return StoreFiles.recover(folder, instance_of(self.key, job), machine, self._disk)
        except OSError as error:
            raise RendezvousError(
                f"the store's folder {self._jobs.path / name} cannot be used ({error.strerror})",
                hint=_remedy(error, "See to the disk and to the rights of its files"),
            ) from None

    async def log(self, job: str, machine: StoreMachine) -> Committer:
        """Bring a job's store back, or begin one → what keeps its changes then. Errors as of `recover`."""
        loop = asyncio.get_running_loop()
        files = await loop.run_in_executor(self._pool, self.recover, job, machine)
        if files.cut:
            _log.warning("%s", files.cut)
        return Committer(files, self._pool, machine.dump)

    def close(self) -> None:
        """Let others use it. May be called again."""
        self._pool.shutdown(wait=True)
        if self._lock is not None:
            self._lock.close()
        if self._jobs is not None:
            self._jobs.close()
        self._folder.close()


def _remedy(error: OSError, otherwise: str) -> str:
    """Advice about a folder that cannot be used."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room on its disk, or in this user's share of it, and start the server again"
    return "See to the disk; the kernel's log says more" if error.errno == errno.EIO else otherwise


def _locked(folder: Folder) -> int:
    handle = folder.file("lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        with contextlib.closing(os.fdopen(handle, "rb")) as file:
            pid = file.read(20).decode("ascii", "replace").strip()
        raise UsageError(
            f"the store's folder {folder.path} is in use" + (f" by pid {pid}" if pid.isdecimal() else ""),
            hint="One server at a time; stop that one, or name another folder",
        ) from None
    except BaseException:
        os.close(handle)
        raise
    return handle


def _folder_name(job: str) -> str:
    """The name of a job's folder: nothing in it leads elsewhere, and no two jobs share one."""
    quoted = quote(job, safe="").replace(".", "%2E").replace("~", "%7E")
    if not quoted or len(quoted) > _LONGEST:
        quoted = f"{quoted[:_LONGEST]}~{hashlib.sha256(job.encode()).hexdigest()[:32]}"
    return quoted
