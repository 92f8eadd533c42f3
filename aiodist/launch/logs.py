"""Where the workers' output goes when it goes to files (torchrun's layout)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from aiodist.errors import UsageError
from aiodist.launch.plan import Plan


class LogFiles:
    """`<log_dir>/<job>_<random>/attempt_0/<local rank>/{stdout,stderr}.log` and `error.json`.

    Attributes:
        folder: `<log_dir>/<job>_<random>`; kept after the end, since the user asked for it.
    """

    def __init__(self, plan: Plan, job: str) -> None:
        try:
            if plan.log_dir is not None:
                Path(plan.log_dir).mkdir(parents=True, exist_ok=True)
            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in job)
            self.folder = tempfile.mkdtemp(prefix=f"{name}_", dir=plan.log_dir)
            for local_rank in range(plan.nproc):
                Path(self.path(local_rank, "")).mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"cannot write logs to {plan.log_dir}: {error.strerror}") from None

    def path(self, local_rank: int, name: str) -> str:
        """The path of one of a worker's files."""
        return str(Path(self.folder, "attempt_0", str(local_rank), name))

    def open(self, local_rank: int, name: str) -> int:
        """A new descriptor to append to a worker's file; the caller closes it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.path(local_rank, name), flags, 0o644)
