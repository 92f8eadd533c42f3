"""What the kernel makes a process write that cannot answer: its interpreter is held by a call.

The process registers a signal with `faulthandler`, which needs no interpreter to write the stacks of all
threads into a file. The signal is one that the program does not use. It is sent to the thread that watches
the loop: so it does not interrupt a call of the program's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import weakref
from pathlib import Path
from typing import NamedTuple

from aiodist.base.environment.threads import send_to_thread
from aiodist.observe.frames import FrameCall
from aiodist.observe.recorder.records import FAULT, open_folder

_MOST = 1 << 20  # bytes of the file that are kept
_FIRST = 12  # beyond SIGRTMIN: lower ones are used by C libraries

_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
_CALL = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class FaultFile:
    """The file, and the signal at which this process writes into it. A forked child has none.

    Args:
        name: of the recorder's file; '': it has none.

    Attributes:
        signal: its number; 0 where there is none to be had.
    """

    def __init__(self, name: str) -> None:
        self._handle = -1
        self.signal = 0
        free = _free_signal() if name else 0
        if free:
            try:
                with open_folder() as folder:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                    self._handle = folder.file(name + FAULT, flags)
            except OSError:
                return
            faulthandler.register(free, self._handle, all_threads=True)
            self.signal = free
            _mine.add(self)

    def trim(self) -> None:
        """Empty the file where it has grown large: each signal adds to it. For a process that can answer."""
        if self._handle >= 0 and os.fstat(self._handle).st_size > _MOST:
            os.ftruncate(self._handle, 0)

    def close(self) -> None:
        """Let go of the signal and the file. May be called twice."""
        number, self.signal = self.signal, 0
        if number:
            faulthandler.unregister(number)
            handle, self._handle = self._handle, -1
            os.close(handle)


_mine: weakref.WeakSet[FaultFile] = weakref.WeakSet()


def _after_fork() -> None:
    for file in list(_mine):
        file.close()


os.register_at_fork(after_in_child=_after_fork)


def _free_signal() -> int:
    """A real-time signal that nothing in this process handles or ignores; 0: none."""
    if sys.platform != "linux":
        return 0
    taken = _mask("self", "SigCgt") | _mask("self", "SigIgn")
    numbers = range(signal.SIGRTMIN + _FIRST, signal.SIGRTMAX + 1)
    return next((number for number in numbers if not taken & _bit(number)), 0)


def catches(pid: int, number: int) -> bool:
    """Whether a process catches a signal. One that it does not catch would end it."""
    return 0 < number <= signal.SIGRTMAX and bool(_mask(str(pid), "SigCgt") & _bit(number))


def send(pid: int, thread: int, number: int) -> None:
    """Send a signal to a thread of a process; where that thread has gone, to another one, and to the main
    thread only if there is no other.

    Args:
        thread: its number in the kernel; 0: not known.

    Raises:
        OSError: the process has gone, or is another user's.
    """
    if not any(send_to_thread(pid, one, number) for one in filter(None, [thread, *_others(pid)])):
        os.kill(pid, number)


def _others(pid: int) -> list[int]:
    """The threads of a process but for its main one."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]
    except FileNotFoundError:
        return []


class Thread(NamedTuple):
    """A thread in the file.

    Args:
        thread: its identity (`threading.get_ident`).
        calls: the innermost first.
    """

    thread: int
    calls: list[FrameCall]


def parse(text: str) -> list[Thread]:
    """The threads that `faulthandler` has written down."""
    found: list[Thread] = []
    for line in text.splitlines():
        if head := _THREAD.match(line):
            found.append(Thread(int(head[1], 16), []))
        elif found and (call := _CALL.match(line)):
            found[-1].calls.append(FrameCall(call[1], int(call[2]), call[3]))
    return found


def _mask(pid: str, name: str) -> int:
    """A set of signals in what the kernel says of a process; 0 where it says nothing."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():  # its name may be no UTF-8
            if line.startswith(f"{name}:".encode()):
                return int(line.split()[1], 16)
    return 0


def _bit(number: int) -> int:
    return 1 << (number - 1)
