"""Identity of a process, by which another one of its host can tell when it is dead."""

from __future__ import annotations

import json
import os
import socket

from aiodist.base.environment.process import pid_space, stat_fields
from aiodist.net.wire.bounded_json import load_json


def this_process() -> bytes:
    """Describe this process, for people and for `is_gone`."""
    pid = os.getpid()
    return json.dumps(
        {"pid": pid, "host": socket.gethostname(), "where": pid_space(), "start": _start(pid)}
    ).encode()


def is_gone(process: bytes) -> bool:
    """Whether a process is provably dead: one of this host, in this namespace, that is there no more."""
    try:
        said = load_json(process, 4096)
        pid, where, start = said["pid"], said["where"], said["start"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return bool(where) and where == pid_space() and type(pid) is int and start != _start(pid)


def _start(pid: int) -> str:
    """The time at which a process began, in ticks since the boot; '' where there is none (any more)."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
