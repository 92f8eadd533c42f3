"""A command in a terminal of its own, as a person has it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_ORDERS = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[=>])")


class Terminal:
    """A terminal and what runs in it.

    Args:
        handle: of its master side.
        process: what runs in it.

    Attributes:
        shown: all that was written to it.
    """

    def __init__(self, handle: int, process: subprocess.Popen[bytes]) -> None:
        self._handle = handle
        self.process = process
        self.shown = ""

    def press(self, keys: bytes) -> None:
        os.write(self._handle, keys)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text: str, patience: float = 60.0) -> str:
        """Wait until a text is written → all that was written up to then, without orders; it is taken."""
        end = time.monotonic() + patience
        while text not in _ORDERS.sub("", self.shown):
            assert time.monotonic() < end, f"{text!r} is not in {self.shown[-2000:]!r}"
            assert self._read(), f"it has ended: {self.shown[-2000:]!r}"
        taken, self.shown = self.shown, ""
        return _ORDERS.sub("", taken)

    def rest(self) -> str:
        """Wait until it has ended → what else was written, with orders."""
        while self._read():
            pass
        return self.shown

    def _read(self) -> bool:
        try:
            if select.select([self._handle], [], [], 1.0)[0]:
                self.shown += os.read(self._handle, 65536).decode(errors="replace")
        except OSError:  # nobody has it open any more
            return False
        return True

    def attributes(self) -> list[object]:
        """How it treats what is typed."""
        return list(termios.tcgetattr(self._handle))


@contextmanager
def terminal(command: Sequence[str], columns: int = 120, rows: int = 40) -> Iterator[Terminal]:
    """Run a command in a terminal; it is killed at the end, if it still runs."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    process = subprocess.Popen(
        ["setsid", "--ctty", *command], stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)
