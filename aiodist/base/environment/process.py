"""The identity of this host and boot, what the kernel says of a process (/proc, Linux), names of signals."""

from __future__ import annotations

import errno
import hashlib
import os
import signal


def boot_id() -> str:
    """A name of this boot of this host; '' where nobody knows. `OSError` where no file can be opened."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # or it would be taken for another host
            raise
        return ""


def host_id() -> str:
    """A name of this host, by its boot where that is known; processes with the same may share memory."""
    return boot_id() or os.uname().nodename


def host_key() -> str:
    """A short name of this host as far as its loopback reaches: another network namespace has another."""
    try:
        network = str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        network = ""
    return hashlib.blake2b(f"{host_id()} {network}".encode(), digest_size=8).hexdigest()


def pid_space() -> str:
    """A name for the space of process ids here: boot of this host, and namespace. '' where nobody knows."""
    try:
        boot = boot_id()
        return boot and f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def stat_fields(pid: int) -> list[str]:
    """A process in numbers, as in proc_pid_stat(5) from the third field on: its state, its parent, its group…

    `OSError` where there is no such process.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].decode().split()  # behind its name, which may be anything


def is_stopped(pid: int) -> bool | None:
    """Whether a process was stopped, by a signal or a debugger; None where none can be seen."""
    try:
        return stat_fields(pid)[0] in "Tt"
    except (OSError, IndexError):
        return None


def signal_name(signum: int) -> str:
    """'SIGTERM'; 'signal 99' where it has no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
