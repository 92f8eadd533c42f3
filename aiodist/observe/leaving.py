"""What a process does for those who ask afterwards: it writes down its record, and those of the dead."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from aiodist.observe.dumps import open_given, open_kept, write
from aiodist.observe.host import look
from aiodist.observe.view import RankView
from aiodist.shm.records import name_of, open_folder, remove

LOG_DIR = "AIODIST_LOG_DIR"
"""Variable with the folder of the job's logs, by which a launcher that keeps logs says so to its workers."""

PATIENCE = 2.0  # seconds for writing: the folder may be on a server that does not answer
PATIENCE_FOR_ALL = 30.0  # likewise, for all dead ranks of a host

_log = logging.getLogger("aiodist.observe")


def keep(views: Iterable[RankView], environ: Mapping[str, str]) -> Path | None:
    """Write down ranks of one job → the folder; None: there are none, or it could not be written.

    What a dead process has left in shared memory is removed then.
    """
    folder = None
    try:
        for view in views:
            if folder is None:
                given = environ.get(LOG_DIR)
                folder = open_given(given) if given else open_kept(view.key, environ, time.time())
            write(folder, view)
            if not view.alive:
                _forget(view)
        return None if folder is None else folder.path
    except OSError as error:
        _log.info("what the ranks did last cannot be written: %s", error)
        return None
    finally:
        if folder is not None:
            folder.close()


def forget_dead(job: str) -> None:
    """Remove what the dead ranks of a job have left in this host's shared memory."""
    for view in look():
        if _is_dead(view) and view.recording.about.get("job") == job:
            _forget(view)


async def keep_dead(job: str, environ: Mapping[str, str]) -> Path | None:
    """Write down the ranks of a job on this host that are dead → as `keep`; for half a minute at most.

    Args:
        job: its id.
    """

    def work() -> Path | None:
        dead = [view for view in look() if _is_dead(view) and view.recording.about.get("job") == job]
        return keep(dead, environ)

    return await _apart(work, PATIENCE_FOR_ALL)


async def keep_own(key: str, environ: Mapping[str, str]) -> None:
    """Write down this process's record, and those of the job's dead on this host; for two seconds at most."""

    def work() -> Path | None:
        views = [
            view for view in look(key) if (view.near and view.recording.pid == os.getpid()) or _is_dead(view)
        ]
        return keep(views, environ)

    if (path := await _apart(work, PATIENCE)) is not None:
        _log.debug("what the ranks did last is in %s", path)


async def _apart(work: Callable[[], Path | None], patience: float) -> Path | None:
    """Do it in a thread, which nobody waits for any more when the time is over; None then."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    found: list[Path | None] = []

    def run() -> None:
        try:
            found.append(work())
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="aiodist dump", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await done.wait()
    return found[0] if found else None


def _is_dead(view: RankView) -> bool:
    return not view.alive and not view.recording.left


def _forget(view: RankView) -> None:
    with contextlib.suppress(OSError), open_folder() as folder:
        name = name_of(folder, view.key, view.recording.pid, view.recording.began)
        if name is not None:
            remove(folder, str(name))
