"""Looking at the ranks of this host and user: their recorders' files, and what the kernel says of them."""

from __future__ import annotations

import os
import socket
import time
from functools import cache
from pathlib import Path

from aiodist.environment.clock import clock_id
from aiodist.observe.view import JobView, RankView, jobs
from aiodist.recorder import Recording
from aiodist.recorder.layout import RING_PLACES
from aiodist.shm.records import find, open_folder

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def look(job: str | None = None, pid: int | None = None, most: int = RING_PLACES) -> list[RankView]:
    """All ranks that record here, those of a job, or that of a process; of each so many of its last
    operations. Dead ones are among them.

    A rank whose place is not known yet is left out. Nothing is asked of the processes.
    """
    seen = []
    try:
        folder = open_folder()
    except OSError:
        return []  # nobody has recorded here, or not for us
    with folder:
        for found in find(folder, job, pid, most):
            if found.recording.size:
                state, memory, cpu = _kernels(found.name.pid) if found.alive else ("", 0, 0.0)
                seen.append(
                    RankView(
                        *(host_name(), found.name.job, found.recording, _now(found.recording), found.alive),
                        *(state in ("T", "t"), memory, cpu),
                    )
                )
    return seen


def look_at_jobs(job: str | None = None) -> list[JobView]:
    """The jobs of this host and user, the one that began last first."""
    return jobs(look(job))


def environ_of(view: RankView) -> dict[str, str]:
    """The environment that a rank of this host was started with: its job's secret may be there, for whoever
    may read it, which is this user. {} where it cannot be read, or has no secret."""
    if not view.alive or view.host != host_name():
        return {}
    try:
        entries = Path(f"/proc/{view.recording.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
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
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", 0, 0.0
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return fields[0], int(fields[21]) * _PAGE, (int(fields[11]) + int(fields[12])) / _TICKS
