"""Commands that tests run to their end, with all that they start; and what this process has started."""

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


def children() -> set[int]:
    """Processes that this one started and that still exist."""
    while True:
        try:
            return {int(pid) for task in os.listdir("/proc/self/task") for pid in _children_of(task)}
        except OSError:  # a thread has ended meanwhile, and its children are another's
            if not Path("/proc/thread-self/children").exists():
                return _children_by_search()


def _children_of(task: str) -> list[str]:
    """Those that one thread started."""
    with open(f"/proc/self/task/{task}/children") as file:
        return file.read().split()


def _children_by_search() -> set[int]:
    """The same, where the kernel keeps no lists of them: milliseconds, twice a test."""
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):  # Path.glob() fails where one ends meanwhile
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(pid))
    return found
