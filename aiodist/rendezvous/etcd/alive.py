"""Who a process is, so that another one of its host can tell when it is dead."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = "/proc/self/ns/pid"


def this_process() -> bytes:
    """This process, for people and for `is_gone`."""
    pid = os.getpid()
    return json.dumps(
        {"pid": pid, "host": socket.gethostname(), "where": _where(), "start": _start(pid)}
    ).encode()


def is_gone(process: bytes) -> bool:
    """Whether a process is provably dead: one of this host, in this namespace, that is there no more."""
    try:
        said = json.loads(process)
        pid, where, start = said["pid"], said["where"], said["start"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(where) and where == _where() and type(pid) is int and start != _start(pid)


def _where() -> str:
    """What process ids are relative to: this boot, and the namespace; '' where that cannot be known."""
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_PIDS)}"
    except OSError:
        return ""


def _start(pid: int) -> str:
    """When a process began, in ticks since the boot; '' where there is none (any more)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
