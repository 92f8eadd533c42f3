"""Looking at the ranks of this host and user: their recorders' files, and what the kernel says of them."""

from __future__ import annotations

import os
import socket
import time
from functools import cache

from aiodist.base.environment.clock import clock_id
from aiodist.base.environment.pids import pid_space, proc_is_ours
from aiodist.base.environment.process import stat_fields
from aiodist.base.environment.user import is_me
from aiodist.base.errors import UsageError
from aiodist.observe.recorder import Recording
from aiodist.observe.recorder.layout import RING_PLACES
from aiodist.observe.recorder.records import find, open_folder
from aiodist.observe.view import JobView, RankView, jobs

LARGEST = 8 << 20
"""Bytes of an environment that is read: Linux gives a program 6 MiB at most; it may make its own larger."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def read_ranks(job: str | None = None, pid: int | None = None, most: int = RING_PLACES) -> list[RankView]:
    """All ranks that record here, those of a job, or that of a process; of each so many of its last
    operations. Dead ones are among them.

    A rank whose place is not known yet is left out. Nothing is asked of the processes.
    """
    seen = []
    try:
        folder = open_folder()
    except OSError:
        return []  # nobody has recorded here, or not for us
    space, known = pid_space(), proc_is_ours()
    with folder:
        for found in find(folder, job, pid, most):
            if found.recording.size:
                near = found.alive and known and found.name.space == space
                state, memory, cpu = _kernels(found.name.pid) if near else ("", 0, 0.0)
                seen.append(
                    RankView(
                        *(host_name(), found.name.job, found.recording, _now(found.recording), found.alive),
                        *(state in ("T", "t"), near, memory, cpu),
                    )
                )
    return seen


def check_records() -> None:
    """Say why the records of this host's jobs cannot be read, where it is not that there are none.

    Raises:
        UsageError: their folder is another user's, or open to others.
    """
    try:
        open_folder().close()
    except FileNotFoundError:
        pass  # nobody has recorded here
    except OSError as error:
        raise UsageError(
            f"the records of this host's jobs are in {error.filename}, and it is not read: {error.strerror}",
            hint=f"If it is yours: chmod 700 {error.filename}; if not: have it removed, and start jobs again",
        ) from None


def read_jobs(job: str | None = None) -> list[JobView]:
    """The jobs of this host and user, the one that began last first."""
    return jobs(read_ranks(job))


def environ_of(view: RankView) -> dict[str, str]:
    """The environment that a rank of this host was started with: its job's secret may be there, for whoever
    may read it, which is this user. {} where it cannot be read, or has no secret."""
    if not view.alive or not view.near or view.host != host_name():
        return {}
    try:
        with open(f"/proc/{view.recording.pid}/environ", "rb") as file:
            if not is_me(os.fstat(file.fileno()).st_uid):  # it has changed its user, or its number was reused
                return {}
            text = file.read(LARGEST + 1)
    except OSError:
        return {}
    if len(text) > LARGEST:
        return {}
    entries = text.split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    found = {name: value for name, _, value in pairs if name}
    return found if "AIODIST_SECRET" in found or "AIODIST_SECRET_FILE" in found else {}


def _now(recording: Recording) -> float:
    """The present time on the clock of a rank, which may be in another time namespace."""
    if recording.about.get("clock", clock_id()) == clock_id():
        return time.monotonic()
    return time.time() - recording.offset


@cache
def host_name() -> str:
    """This host's name."""
    return socket.gethostname()


def _kernels(pid: int) -> tuple[str, int, float]:
    """A process's state, resident bytes and processor time; as far as the kernel tells."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return "", 0, 0.0
    return fields[0], int(fields[21]) * _PAGE, (int(fields[11]) + int(fields[12])) / _TICKS
