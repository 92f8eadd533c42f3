"""Dumps: what the ranks of a job did last, as a folder with a JSON file for each of them.

A dump outlives the processes and the host's memory. `rank3.json` is a `RankView` as plain values. Folders are
for this user alone, and nothing is written along another user's links.
"""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from aiodist.environment.files import Folder, make_folders
from aiodist.errors import UsageError, WireError
from aiodist.observe.view import JobView, RankView

KEPT = 10
"""Jobs whose dumps stay in the user's folder, the last ones."""

SAME = 60.0
"""Seconds within which two ranks of a job that write a dump write it into the same folder."""

LARGEST = 64 << 20
"""Bytes of a rank's file that is read; one with all that a recorder holds has some 2 MiB."""

_LOCK = ".lock"
_DEPTH = 2  # folders below one: attempt_0/3
_STAMP = "%Y-%m-%dT%H-%M-%SZ"
_NAMED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ)-([\w.-]+)")
_RANKS = re.compile(r"rank(\d{1,9})\.json")


def home(environ: Mapping[str, str]) -> Path:
    """The folder of this user's dumps: $XDG_STATE_HOME, else ~/.local/state, and aiodist/jobs in it.

    Raises:
        OSError: this user has no home.
    """
    given = Path(environ.get("XDG_STATE_HOME", ""))
    try:
        state = given if given.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from None
    return state / "aiodist" / "jobs"


def open_given(path: str | os.PathLike[str]) -> Folder:
    """A folder that the user has named; made where it is missing.

    Raises:
        OSError: it cannot be made, or others may write to it.
    """
    whole = Path(path).absolute()
    make_folders(whole.parent)
    return Folder.open(whole, make=True)


def open_kept(key: str, environ: Mapping[str, str], now: float) -> Folder:
    """The folder of a job's dump in the user's own: that of another rank, or a new one; old ones are removed.

    Args:
        key: of the job; letters, digits, '.', '_' and '-'.
        environ: the environment.
        now: the time of day, in seconds since 1970.

    Raises:
        OSError: it cannot be made, or others may write to it.
    """
    path = home(environ)
    make_folders(path.parent.parent, 0o700)
    with Folder.open(path.parent, make=True) as above, above.folder(path.name, make=True) as jobs:
        lock = jobs.file(_LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # its holder makes a folder, and is soon done
            found = _dumps(jobs)
            known = [name for began, of, name in found if of == key and abs(now - began) <= SAME]
            name = known[-1] if known else f"{time.strftime(_STAMP, time.gmtime(now))}-{key}"
            folder = jobs.folder(name, make=True)
            others = [old for _, _, old in found if old != name]
            for old in others[: max(0, len(others) - (KEPT - 1))]:
                _remove(jobs, old)
            return folder
        finally:
            os.close(lock)


def write(folder: Folder, view: RankView) -> Path:
    """Write down a rank, in the place of what was written of it before → the file.

    Raises:
        OSError: it cannot be written.
    """
    name = f"rank{view.rank}.json"
    folder.replace(name, json.dumps(view.to_json(), indent=1) + "\n")
    return folder.path / name


def read_job(path: str | os.PathLike[str]) -> JobView:
    """The job of a dump.

    Raises:
        UsageError: there is no such folder, it cannot be read, or there is no rank in it.
        WireError: a file in it is no rank's.
    """
    folder = Path(path)
    try:
        numbers = sorted(int(named[1]) for name in os.listdir(folder) if (named := _RANKS.fullmatch(name)))
    except OSError as error:
        raise UsageError(
            f"cannot read the folder {str(folder)!r}: {error.strerror}",
            hint="Name the folder of a job's dump, with files such as rank0.json",
        ) from None
    if not numbers:
        raise UsageError(
            f"no rank has written to {str(folder)!r}",
            hint="Name the folder of a job's dump, with files such as rank0.json",
        )
    views = [read_rank(folder / f"rank{number}.json") for number in numbers]
    newest = max(views, key=lambda view: view.recording.since)
    of_job = {view.rank: view for view in views if view.key == newest.key}
    return JobView(newest.key, tuple(of_job[rank] for rank in sorted(of_job)))


def read_rank(path: Path) -> RankView:
    """The rank of one file. Errors as of `read_job`."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from None
    if len(data) > LARGEST:
        raise WireError(f"{str(path)!r} has more than {LARGEST >> 20} MiB: that is no rank's dump")
    try:
        return RankView.from_json(json.loads(data))
    except (ValueError, RecursionError, WireError) as error:
        raise WireError(
            f"{str(path)!r} is no rank's dump ({error})", hint="Remove it, or name another folder"
        ) from None


def _dumps(jobs: Folder) -> list[tuple[float, str, str]]:
    """When each dump began, its key and its name; the oldest first."""
    found = []
    for name in jobs.names():
        if named := _NAMED.fullmatch(name):
            with contextlib.suppress(ValueError):  # a time that is none
                found.append((_seconds(named[1]), named[2], name))
    return sorted(found)


def _seconds(stamp: str) -> float:
    return float(calendar.timegm(time.strptime(stamp, _STAMP)))


def _remove(jobs: Folder, name: str) -> None:
    """Remove a dump, and the logs in it, as far as they are this user's."""
    with contextlib.suppress(OSError):
        with jobs.folder(name) as old:
            _empty(old, _DEPTH)
        jobs.remove_folder(name)


def _empty(folder: Folder, depth: int) -> None:
    for entry in folder.names():
        try:
            folder.remove(entry)
        except OSError:  # a folder
            if not depth:
                raise
            with folder.folder(entry) as inside:
                _empty(inside, depth - 1)
            folder.remove_folder(entry)
