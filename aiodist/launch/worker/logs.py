"""The files that the workers' output goes to, if it does (torchrun's layout)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from aiodist.base.environment.files import Folder, make_folders, open_file
from aiodist.base.errors import UsageError
from aiodist.launch.config import LaunchConfig
from aiodist.net.shortage import EXHAUSTED, shortage
from aiodist.net.sockets import describe
from aiodist.observe.dumps import open_kept


class LogFiles:
    """`<log_dir>/<job>_<random>/attempt_<n>/<local rank>/{stdout,stderr}.log` and `error.json`.

    For a dashboard, without a `log_dir`, it is the job's folder in the user's own: the last ten are kept.
    n is the number of restarts that the job had used when the worker was started.

    Args:
        config: of this node.
        job: its name; run: the number of this run of the launcher; began: when it began, the time of day.

    Attributes:
        folder: `<log_dir>/<job>_<random>`; kept after the end, since the user asked for it.
    """

    def __init__(self, config: LaunchConfig, job: str, run: str, began: float) -> None:
        name = f"{file_name(job)}_"
        try:
            if config.log_dir is None and config.dashboard:
                with open_kept(run, os.environ, began) as kept:
                    self.folder = str(kept.path)
            elif config.log_dir is None:
                self.folder = tempfile.mkdtemp(prefix=name)
            else:
                with Folder.named(config.log_dir, make=True) as above, above.unique(name) as made:
                    self.folder = str(made.path)
        except OSError as error:
            where = config.log_dir or "this user's folder of jobs"
            raise UsageError(f"cannot write logs to {where}: {error.strerror}") from None

    def prepare(self, restarts: int, local_rank: int) -> None:
        """Make the folder of one start of a worker; `UsageError` where that cannot be done."""
        try:
            make_folders(self.path(restarts, local_rank, ""))
        except OSError as error:
            raise UsageError(f"cannot write logs to {self.folder}: {error.strerror}") from None

    def path(self, restarts: int, local_rank: int, name: str) -> str:
        """The path of one of a worker's files."""
        return str(Path(self.folder, f"attempt_{restarts}", str(local_rank), name))

    def open(self, restarts: int, local_rank: int, name: str) -> int:
        """A new descriptor to append to a worker's file; the caller closes it.

        Raises:
            UsageError: it cannot be opened, or another user has put a link in its way.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            return open_file(self.path(restarts, local_rank, name), flags, 0o644)
        except OSError as error:
            lack = shortage(error) if error.errno in EXHAUSTED else None
            raise UsageError(
                f"cannot write logs to {self.folder}: {describe(error)}", hint=lack.hint if lack else ""
            ) from None


def file_name(job: str) -> str:
    """A job's name as a part of a file's."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in job)
