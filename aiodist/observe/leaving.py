"""What a process does for those who ask afterwards: it writes down its record, and those of the dead.

A record belongs to a job, which its key names, and each job has a folder of its own. A launcher's workers may
have several jobs; which of them are the launcher's says the number of its run, and never a job's name: others
may have the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from aiodist.base.environment.files import Folder
from aiodist.net.within import happens
from aiodist.observe.dumps import open_given, open_kept, remove_old, write, write_outcome
from aiodist.observe.finding import has_ranks
from aiodist.observe.host import read_ranks
from aiodist.observe.outcome import Outcome
from aiodist.observe.recorder.records import name_of, open_folder, remove
from aiodist.observe.view import RankView

LOG_DIR = "AIODIST_LOG_DIR"
"""Variable with the folder that gets what ranks of failed jobs did last; a launcher sets it, too."""

RUN = "AIODIST_RUN"
"""Variable with the number of a launcher's run, by which its workers' jobs are told from all others."""

PATIENCE = 2.0  # seconds for writing: the folder may be on a server that does not answer
PATIENCE_FOR_ALL = 30.0  # likewise, for all dead ranks of a host

_log = logging.getLogger("aiodist.observe")


def log_dir(environ: Mapping[str, str]) -> str:
    """The folder that LOG_DIR names, as an absolute path: the program may go to another one; '': none."""
    given = environ.get(LOG_DIR, "")
    return os.path.abspath(os.path.expanduser(given)) if given else ""


def keep(views: Iterable[RankView], environ: Mapping[str, str]) -> Path | None:
    """Write down ranks, those of each job in its folder → the folder of the last; None: there are none, or it
    could not be written.

    What a dead process has left in shared memory is removed then.
    """
    folder = None
    folders: dict[str, Folder] = {}
    with ExitStack() as stack:
        try:
            for view in views:
                if view.key not in folders:
                    folders[view.key] = stack.enter_context(_open(view.key, environ))
                folder = folders[view.key]
                write(folder, view)
                if not view.alive:
                    _forget(view)
            return None if folder is None else folder.path
        except OSError as error:
            _log.info("what the ranks did last cannot be written: %s", error)
            for one in folders.values():
                with contextlib.suppress(OSError):
                    os.rmdir(one.path)  # of those that have nothing in them
            return None


def forget_dead(run: str) -> None:
    """Remove what the dead ranks of a launcher's run have left in this host's shared memory."""
    for view in _dead_of(run):
        _forget(view)


async def keep_dead(run: str, environ: Mapping[str, str]) -> Path | None:
    """Write down the ranks of a launcher's run on this host that are dead → as `keep`; for half a minute at
    most.

    Args:
        run: its number.
    """
    return await _apart(lambda: keep(_dead_of(run), environ), PATIENCE_FOR_ALL)


def keep_outcome(outcome: Outcome | None, folder: Path, environ: Mapping[str, str], *, make: bool) -> bool:
    """Write down how a launcher's run has ended, beside what its ranks have left → whether it is written.

    Args:
        outcome: None: nothing has failed.
        folder: of the run.
        environ: says where the user's own folder of jobs is, of which old ones are removed.
        make: also where no rank has left anything.
    """
    if not make and not has_ranks(folder):
        return False
    with contextlib.suppress(OSError):
        remove_old(environ)
    if outcome is None:
        return False
    try:
        with open_given(folder) as opened:
            write_outcome(opened, outcome.at(str(folder)))
    except OSError as error:
        _log.info("how the job ended cannot be written: %s", error)
        return False
    return True


async def keep_own(key: str, environ: Mapping[str, str]) -> None:
    """Write down this process's record, and those of the job's dead on this host; for two seconds at most."""

    def work() -> Path | None:
        own = [_left(view) for view in read_ranks(key) if view.near and view.recording.pid == os.getpid()]
        return keep([*own, *(view for view in read_ranks(key) if _is_dead(view))], environ)

    if (path := await _apart(work, PATIENCE)) is not None:
        _log.debug("what the ranks did last is in %s", path)


def _open(key: str, environ: Mapping[str, str]) -> Folder:
    """The folder of a job's dump: in the one that is given, else in this user's own."""
    given = log_dir(environ)
    if not given:
        return open_kept(key, environ, time.time())
    with open_given(given) as folder:
        return folder.folder(key, make=True)


async def _apart(work: Callable[[], Path | None], patience: float) -> Path | None:
    """Do it in a thread, which nobody waits for any more when the time is over; None then. Where the
    interpreter exits, and Python 3.12 starts no thread any more, it is done here."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    found: list[Path | None] = []

    def run() -> None:
        try:
            found.append(work())
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(done.set)

    try:
        threading.Thread(target=run, name="aiodist dump", daemon=True).start()
    except RuntimeError:
        with contextlib.suppress(Exception):  # as little as in a thread does it keep anybody from leaving
            run()
    await happens(done, patience)
    return found[0] if found else None


def _left(view: RankView) -> RankView:
    """A rank that writes itself down, as it is seen afterwards: it leaves."""
    return replace(view, recording=replace(view.recording, left=view.now))


def _dead_of(run: str) -> list[RankView]:
    """The dead ranks of a launcher's run on this host."""
    return [view for view in read_ranks() if _is_dead(view) and view.recording.about.get("run") == run]


def _is_dead(view: RankView) -> bool:
    return not view.alive and not view.recording.left


def _forget(view: RankView) -> None:
    with contextlib.suppress(OSError), open_folder() as folder:
        name = name_of(folder, view.key, view.recording.pid, view.recording.began)
        if name is not None:
            remove(folder, str(name))
