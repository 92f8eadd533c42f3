"""Dumps: what the ranks of a job did last, as a folder with a JSON file for each of them.

A dump outlives the processes and the host's memory. `rank3.json` is a `RankView` as plain values. Folders are
for this user alone, and nothing is written along another user's links. Each job has a folder of its own, with
the job's key in its name. A launcher's run has one with those of its jobs in it, and `outcome.json`: how it
ended. `finding` looks for all of these.
"""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import json
import os
import re
import shlex
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiodist.base.environment.files import Folder, make_folders, open_file
from aiodist.base.errors import UsageError, WireError
from aiodist.base.sanitize import one_line
from aiodist.net.forks import Owned
from aiodist.net.wire.bounded_json import load_json
from aiodist.observe.finding import OUTCOME, find
from aiodist.observe.outcome import Outcome
from aiodist.observe.view import JobView, RankView

KEPT = 10
"""Jobs whose dumps stay in the user's folder, the last ones."""

SAME = 60.0
"""Seconds within which two ranks of a job that write a dump write it into the same folder."""

LARGEST = 64 << 20
"""Bytes of a rank's file that is read; one with all that a recorder holds has some 2 MiB."""

_EXPECTED = (
    "Name the folder that --log-dir was given, or that 'aiodist run' said when the job had failed: it has "
    "files such as rank0.json, or outcome.json, in it or in folders below"
)
_LOCK = ".lock"
_DEPTH = 2  # folders below one: attempt_0/3
_STAMP = "%Y-%m-%dT%H-%M-%SZ"
_NAMED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ)-([\w.-]+)")


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


def kept_name(key: str, now: float) -> str:
    """The name of a job's folder in the user's own.

    Args:
        key: of the job, or number of a launcher's run.
        now: the time of day at which it begins, in seconds since 1970.
    """
    return f"{time.strftime(_STAMP, time.gmtime(now))}-{key}"


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
    with (
        Folder.open(path.parent, make=True) as above,
        above.folder(path.name, make=True) as jobs,
        _held(jobs),
    ):
        found = _dumps(jobs)
        known = [name for began, of, name in found if of == key and abs(now - began) <= SAME]
        name = known[-1] if known else kept_name(key, now)
        folder = jobs.folder(name, make=True)
        _keep_last(jobs, [old for _, _, old in found if old != name], KEPT - 1)
        return folder


def remove_old(environ: Mapping[str, str]) -> None:
    """Remove from the user's own folder all dumps but the last `KEPT`; nothing happens where there is none.

    Raises:
        OSError: others may write to it.
    """
    with contextlib.suppress(FileNotFoundError), Folder.open(home(environ)) as jobs, _held(jobs):
        _keep_last(jobs, [name for _, _, name in _dumps(jobs)], KEPT)


@contextlib.contextmanager
def _held(jobs: Folder) -> Iterator[None]:
    """Hold the lock of the dumps: no other process makes or removes one meanwhile."""
    lock = Owned(jobs.file(_LOCK, os.O_RDWR | os.O_CREAT))
    try:
        fcntl.flock(lock.number, fcntl.LOCK_EX)
        yield
    finally:
        lock.close()


def _keep_last(jobs: Folder, names: Sequence[str], most: int) -> None:
    for old in names[: max(0, len(names) - most)]:
        _remove(jobs, old)


def write(folder: Folder, view: RankView) -> Path:
    """Write down a rank, in the place of what was written of it before → the file.

    Raises:
        OSError: it cannot be written.
    """
    return _write(folder, f"rank{view.rank}.json", view.to_json())


def write_outcome(folder: Folder, outcome: Outcome) -> Path:
    """Write down how a launcher's run ended; as `write`."""
    return _write(folder, OUTCOME, outcome.to_json())


def _write(folder: Folder, name: str, plain: Any) -> Path:
    folder.replace(name, json.dumps(plain, indent=1) + "\n")
    return folder.path / name


@dataclass(frozen=True, slots=True)
class Dump:
    """The content of a folder of dumps.

    Args:
        job: what its ranks did last; None: no rank has written.
        outcome: how its launcher says that it ended; None: no launcher has said so.
        older: other runs that are in the folder.
    """

    job: JobView | None
    outcome: Outcome | None
    older: int = 0


def read_job(path: str | os.PathLike[str]) -> JobView:
    """The ranks of the newest job in a folder. Errors as of `read_dump`; `UsageError` without any rank."""
    dump = read_dump(path)
    if dump.job is None:
        assert dump.outcome is not None
        raise UsageError(
            f"no rank has written to {str(path)!r}: {one_line(dump.outcome.title)}",
            hint=f"See: aiodist explain {shlex.quote(str(path))}",
        )
    return dump.job


def read_dump(path: str | os.PathLike[str]) -> Dump:
    """The newest run in a folder: one that --log-dir was given, that of a run, or of a job.

    Raises:
        UsageError: there is no such folder, it cannot be read, or there is no dump in it.
        WireError: a file in it is none of a dump's.
    """
    try:
        runs, logs = find(Path(path))
    except OSError as error:
        raise UsageError(f"cannot read the folder {str(path)!r}: {error.strerror}", hint=_EXPECTED) from None
    if not runs:
        but = "; it has logs: a job that runs, or has ended well, leaves no dump" if logs else ""
        raise UsageError(f"no rank has written to {str(path)!r}{but}", hint=_EXPECTED)
    newest = runs[0]
    if not newest.ranks:
        return Dump(None, newest.outcome, len(runs) - 1)
    views = _newest_job([read_rank(file) for file in newest.ranks])
    key = views[0].key
    same = [run for run in runs[1:] if any(file.parent.name == key for file in run.ranks)]  # of other hosts
    more = [read_rank(file) for run in same for file in run.ranks if file.parent.name == key]
    views = _newest_job([*views, *more])
    own = {view.recording.about.get("run") for view in views}
    outcomes = (run.outcome for run in (newest, *same) if run.outcome is not None)
    outcome = next((one for one in outcomes if one.run in own), None)
    return Dump(JobView(key, tuple(views)), outcome, len(runs) - 1 - len(same))


def _newest_job(views: Iterable[RankView]) -> list[RankView]:
    """Of several jobs the one that began last, by rank; of a rank that was restarted the last."""
    known = sorted(views, key=lambda view: view.recording.since)
    found = {view.rank: view for view in known if view.key == known[-1].key}
    return [found[rank] for rank in sorted(found)]


def read_rank(path: Path) -> RankView:
    """The rank of one file. Errors as of `read_job`."""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise UsageError(f"cannot read {str(path)!r}: it is not a file")
            if facts.st_size > LARGEST:
                raise WireError(f"{str(path)!r} has more than {LARGEST >> 20} MiB: that is no rank's dump")
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from None
    try:
        return RankView.from_json(load_json(data, LARGEST))
    except (ValueError, RecursionError, WireError) as error:
        raise WireError(
            f"{str(path)!r} is no rank's dump ({one_line(str(error))})",
            hint="Remove it, or name another folder",
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
