"""Commands that tests run to their end, with all that they start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


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


def sockets_of(pid: int) -> set[int]:
    """Inodes of the sockets that a running process has open; one that it closes meanwhile is left out."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if match := re.fullmatch(r"socket:\[(\d+)\]", target):
            found.add(int(match.group(1)))
    return found
