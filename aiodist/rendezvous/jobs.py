"""Whose secret is it: the jobs that a server serves, each with its own.

A server of many jobs reads them from a folder (a file for each job: its name is the job's, what it holds is
the secret), or from one file with a line for each: the job's name, a space, the secret. Only their owner may
be able to read them. They are read again for each client that connects: a job is added, changed or ended
while the server runs.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from aiodist.errors import UsageError
from aiodist.wire.handshake import MAX_JOB

MAX_SECRET = 4096
_log = logging.getLogger("aiodist.store")


class JobSecrets:
    """The secrets of many jobs, where the operator keeps them.

    Args:
        path: the folder, or the file.

    Raises:
        UsageError: there is neither, or somebody else than its owner may read it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._told: set[str] = set()
        try:
            self._is_folder = self.path.is_dir()
            if not self._is_folder:
                self._lines()
            for job in self.names():
                if self._is_folder:
                    _read(self.path / job)
        except OSError as error:
            raise UsageError(
                f"the secrets of the jobs, {self.path}, cannot be read ({error.strerror})",
                hint="Name a folder with a file for each job, or one file with lines of job and secret",
            ) from None

    def names(self) -> list[str]:
        """The jobs that there are now, sorted."""
        if not self._is_folder:
            return sorted(self._lines())
        return sorted(entry.name for entry in self.path.iterdir() if entry.is_file() and _is_name(entry.name))

    def secret_of(self, job: str) -> bytes | None:
        """What the clients of a job know; None where there is no such job, or its file cannot be used."""
        try:
            if not self._is_folder:
                return self._lines().get(job)
            return _read(self.path / job) if _is_name(job) else None
        except FileNotFoundError:
            return None
        except (OSError, UsageError) as error:
            if job not in self._told and len(self._told) < 1000:
                self._told.add(job)
                _log.error("no client of a job gets in: %s", error)
            return None

    def _lines(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for number, line in enumerate(_private(self.path, None).splitlines(), 1):
            if not line.strip() or line.lstrip().startswith(b"#"):
                continue
            job, _, secret = line.strip().partition(b" ")
            if not secret.strip():
                raise UsageError(f"line {number} of {self.path} has no secret", hint="Write 'job secret'")
            found[job.decode("utf-8", "replace")] = secret.strip()
        return found


def _is_name(job: str) -> bool:
    plain = job and "/" not in job and "\0" not in job and not job.startswith(".")
    return bool(plain) and len(job.encode()) <= MAX_JOB


def _read(path: Path) -> bytes:
    secret = _private(path, MAX_SECRET).strip()
    if not secret:
        raise UsageError(f"the secret in {path} is empty", hint="Write a random line into it")
    return secret


def _private(path: Path, limit: int | None) -> bytes:
    """A file's contents, if nobody but its owner may read or change it."""
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise UsageError(f"{path} is no file")
        if mode & 0o077:
            raise UsageError(f"{path} is open to others", hint=f"chmod 600 {path}")
        return file.read(-1 if limit is None else limit)
