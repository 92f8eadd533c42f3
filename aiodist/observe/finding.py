"""Where dumps lie: ranks' files, and the outcomes of launchers' runs, in a folder and those below it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiodist.base.environment.files import open_file
from aiodist.base.errors import WireError
from aiodist.observe.outcome import LARGEST, Outcome

OUTCOME = "outcome.json"
"""The name of the file with the outcome of a launcher's run."""

RANKS = re.compile(r"rank(\d{1,9})\.json")
"""The names of ranks' files."""

_ATTEMPT = re.compile(r"attempt_\d{1,6}")  # the logs of a launcher's workers
_DEPTH = 3  # folders below the one that is named: jobs of a run of many
_MOST = 10_000  # folders


@dataclass(frozen=True, slots=True)
class JobRun:
    """The dumps of one run of a launcher; of one job, where no launcher has said how it ended.

    Args:
        at: when it was written last, in seconds since 1970.
        ranks: files of ranks, of one job or more.
        outcome: how it ended; None: no launcher has said so.
    """

    at: float
    ranks: tuple[Path, ...]
    outcome: Outcome | None = None


def find(path: Path) -> tuple[list[JobRun], bool]:
    """The runs whose dumps are in a folder, the newest first; and whether there are logs of workers.

    Raises:
        OSError: there is no such folder, or it cannot be read.
    """
    os.listdir(path)
    seen = _Seen()
    runs = list(_runs(path, 0, seen))
    above = _outcome(path.absolute().parent / OUTCOME)
    if above is not None:  # the folder of one of a run's jobs is named
        runs = [JobRun(run.at, run.ranks, above) if run.outcome is None else run for run in runs]
    return sorted(runs, key=lambda run: -run.at), seen.logs


def has_ranks(path: Path) -> bool:
    """Whether ranks have written into a folder, or one below it."""
    with suppress(OSError):
        return any(run.ranks for run in find(path)[0])
    return False


@dataclass(slots=True)
class _Seen:
    folders: int = 0
    logs: bool = False


def _runs(folder: Path, depth: int, seen: _Seen) -> Iterator[JobRun]:
    seen.folders += 1
    if seen.folders > _MOST:
        return
    ranks, below = [], []
    for entry in _entries(folder):
        if RANKS.fullmatch(entry.name):
            ranks.append(folder / entry.name)
        elif _ATTEMPT.fullmatch(entry.name):
            seen.logs = True
        elif depth < _DEPTH and entry.is_dir(follow_symlinks=False):
            below.append(folder / entry.name)
    inside = [run for one in sorted(below) for run in _runs(one, depth + 1, seen)]
    outcome = _outcome(folder / OUTCOME)
    ranks.sort(key=lambda file: int(file.stem[4:]))
    own = max(map(_written, ranks), default=0.0)
    if outcome is not None:  # all that is below is its, but for what another run has left there
        mine = [run for run in inside if run.outcome is None]
        yield JobRun(
            max(own, outcome.ended, *(run.at for run in mine)) if mine else max(own, outcome.ended),
            (*ranks, *(file for run in mine for file in run.ranks)),
            outcome,
        )
        yield from (run for run in inside if run.outcome is not None)
        return
    if ranks:
        yield JobRun(own, tuple(ranks))
    yield from inside


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as found:
        return list(found)
    return []


def _written(file: Path) -> float:
    with suppress(OSError):
        return file.lstat().st_mtime
    return 0.0


def _outcome(file: Path) -> Outcome | None:
    """The outcome in a file; None where there is none, or the file is something else's."""
    with suppress(OSError, WireError):
        handle = open_file(file)
        with os.fdopen(handle, "rb") as opened:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return Outcome.parse(opened.read(LARGEST + 1))
    return None
