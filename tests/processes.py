"""Commands that tests run to their end, with all that they start."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


def run_to_end(
    command: Sequence[str], environ: Mapping[str, str], patience: float
) -> subprocess.CompletedProcess[str]:
    """Run a command; what it printed. It is killed, and that is a failure, after `patience` seconds."""
    started = subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = started.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        out, err = started.communicate()
        raise AssertionError(f"{command} takes more than {patience} s:\n{out}\n{err}") from None
    return subprocess.CompletedProcess(command, started.returncode, out, err)
