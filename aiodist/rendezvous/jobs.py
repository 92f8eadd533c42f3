"""Secrets of the jobs that a server serves, each with its own.

A server of many jobs reads them from a folder (a file for each job: its name is the job's, what it holds is
the secret), or from one file with a line for each: the job's name, a space, the secret. They are this user's
or root's, and nobody else may be able to read them. They are looked at again for each client that connects,
and read again where they have changed: a job is added, changed or ended while the server runs.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from aiodist.base.environment.files import UntrustedError, others_may_write, read_private
from aiodist.base.environment.secret import check_secret, warn_if_short
from aiodist.base.environment.user import is_me
from aiodist.base.errors import RendezvousError, UsageError
from aiodist.net.wire.handshake import MAX_JOB

T = TypeVar("T")

MAX_SECRET = 4096
_TIME_STEP = 2.0  # seconds after its last change until a file is what its times say: they may be so coarse
_log = logging.getLogger("aiodist.store")


class OneJob:
    """The secrets of a server of one job; as `JobSecrets`."""

    def __init__(self, job: str, secret: bytes) -> None:
        self._job, self._secret = job, secret

    def names(self) -> list[str]:
        return [self._job]

    def secret_of(self, job: str) -> bytes | None:
        return self._secret if job == self._job else None


class JobSecrets:
    """The secrets of many jobs, where the operator keeps them.

    Args:
        path: the folder, or the file.

    Raises:
        UsageError: there is neither, or somebody else than its owner may read or change it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._warned_of: set[str] = set()
        self._kept: dict[str, _Kept[bytes]] = {}
        try:
            self._is_folder = self.path.is_dir()
            self._listed = _Kept(self.path, self._list if self._is_folder else self._lines)
            for job, secret in self._all().items():
                warn_if_short(self._read(job) if self._is_folder else secret, f"a secret in {self.path}")
        except OSError as error:
            raise UsageError(
                f"the secrets of the jobs, {self.path}, cannot be read ({error.strerror})",
                hint="Name a folder with a file for each job, or one file with lines of job and secret",
            ) from None

    def names(self) -> list[str]:
        """The jobs that there are now, sorted.

        Raises:
            RendezvousError: that cannot be seen now.
            UsageError: the file or folder cannot be trusted any more.
        """
        try:
            return sorted(self._all())
        except OSError as error:
            raise self._unreadable(error) from None

    def secret_of(self, job: str) -> bytes | None:
        """Return the secret of a job's clients; None where there is no such job, or its file cannot be used.

        Raises:
            RendezvousError: that cannot be seen now, for want of descriptors, say.
        """
        try:
            if not self._is_folder:
                return self._all().get(job)
            return self._read(job) if _is_name(job) else None
        except (FileNotFoundError, NotADirectoryError):
            self._kept.pop(job, None)
            return None
        except (PermissionError, UntrustedError, UsageError) as error:
            if job not in self._warned_of and len(self._warned_of) < 1000:
                self._warned_of.add(job)
                _log.error("no client of a job gets in: %s", error)
            return None
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> RendezvousError:
        return RendezvousError(f"the secrets of the jobs cannot be read now ({error.strerror}); try again")

    def _all(self) -> dict[str, bytes]:
        """All jobs; with their secrets, where these are in one file."""
        return self._listed.get()

    def _list(self) -> dict[str, bytes]:
        facts = os.stat(self.path)
        if facts.st_uid != 0 and not is_me(facts.st_uid):
            raise UsageError(f"{self.path} belongs to another user", hint="Make a folder of your own")
        if others_may_write(facts, self.path) and not facts.st_mode & stat.S_ISVTX:
            raise UsageError(f"others may write to {self.path}", hint=f"chmod 700 {self.path}")
        with os.scandir(self.path) as entries:
            return {entry.name: b"" for entry in entries if _is_name(entry.name) and entry.is_file()}

    def _lines(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for number, line in enumerate(read_private(str(self.path), self.path, shared=False).splitlines(), 1):
            if not line.strip() or line.lstrip().startswith(b"#"):
                continue
            job, _, secret = line.strip().partition(b" ")
            if not secret.strip():
                raise UsageError(f"line {number} of {self.path} has no secret", hint="Write 'job secret'")
            check_secret(secret, f"line {number} of {self.path}")
            found[job.decode("utf-8", "replace")] = secret.strip()
        return found

    def _read(self, job: str) -> bytes:
        kept = self._kept.get(job)
        if kept is None:
            path = self.path / job
            os.stat(path)  # nothing is kept of a job that is not there
            kept = self._kept[job] = _Kept(path, lambda: _secret(path))
        return kept.get()


class _Kept(Generic[T]):
    """Result of reading a file or folder, kept until that is another or has changed.

    To look costs no descriptor, so those who have used them all up keep nobody out.

    Args:
        path: of the file or folder.
        make: reads it.
    """

    def __init__(self, path: Path, make: Callable[[], T]) -> None:
        self._path = path
        self._make = make
        self._of: tuple[int, ...] | None = None
        self._value: T

    def get(self) -> T:
        """Return what it holds now; errors as of `make` and `os.stat`."""
        facts = os.stat(self._path)
        seen = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        if self._of == seen:
            return self._value
        now = time.time()
        self._of = None
        self._value = self._make()
        if max(facts.st_mtime, facts.st_ctime) + _TIME_STEP < now:
            self._of = seen
        return self._value


def _is_name(job: str) -> bool:
    plain = job and "/" not in job and "\0" not in job and not job.startswith(".")
    return bool(plain) and len(job.encode()) <= MAX_JOB


def _secret(path: Path) -> bytes:
    secret = read_private(str(path), path, shared=False, most=MAX_SECRET).strip()
    if not secret:
        raise UsageError(f"the secret in {path} is empty", hint="Write a random line into it")
    check_secret(secret, f"the secret in {path}")
    return secret
