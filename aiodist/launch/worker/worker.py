"""One worker process: started under its guardian, asked to end, seen to end with all that it has started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from aiodist.base.errors import UsageError
from aiodist.launch.worker.guardian import Order
from aiodist.launch.worker.lines import LastWords
from aiodist.launch.worker.output import Relay
from aiodist.launch.worker.spawner import Spawner, answer
from aiodist.net.shortage import shortage
from aiodist.net.within import happens

_SWEPT = 5.0  # seconds, beyond the grace, for the guardian to end what is left; it goes on by itself


class Worker:
    """A started worker, leader of its own session and process group.

    Args:
        order: what it is.
        control: to its guardian; owned from here on.
        relays: of its output.
        words: the end of its stderr.
        wake: has the guardian go on, if it is stopped.

    Attributes:
        pid: its process, and its process group; 0 until `confirm`.
        asked: the last signal that the agent sent it, 0: none.
        words: the end of its stderr.
        code: exit code once it has ended, negative: the signal that killed it.
        ended_ns: monotonic ns of the moment at which it had ended.
    """

    def __init__(
        self,
        order: Order,
        control: socket.socket,
        relays: Sequence[Relay],
        words: LastWords,
        wake: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._order = order
        self._control = control
        self._relays = relays
        self._wake = wake
        self._partial = b""
        self._ended: Callable[[], None] = lambda: None
        self._gone = asyncio.Event()
        self.pid = 0
        self.words = words
        self.asked = 0
        self.code: int | None = None
        self.ended_ns = 0
        self._loop.add_reader(control, self._hear)

    def confirm(self) -> None:
        """Wait until it runs. Call it, and `watch`, before the loop turns.

        Raises:
            UsageError: it cannot be run.
        """
        self.pid = answer(self._control, self._order.argv[0])

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended` once, when the process has ended; `code` and `words` are complete then."""
        self._ended = ended

    def send(self, signum: int) -> None:
        """Ask it to end.

        SIGINT goes to its whole process group, as from a terminal; SIGTERM to the worker alone, which
        may want to close down what it started; SIGKILL leaves nothing. Who is stopped (SIGSTOP) would notice
        nothing but SIGKILL, so SIGCONT follows.
        """
        if self.code is None:
            self.asked = signum
            self._wake()
            group = signum != signal.SIGTERM
            self.forward(signum, group=group)
            if signum != signal.SIGKILL:
                self.forward(signal.SIGCONT, group=group)

    def hold(self, held: ExitStack) -> int:
        """A descriptor of the process, which it is signalled by; `held` closes it.

        Raises:
            OSError: there is none to be had: it has ended, is another user's, or the system has none.
        """
        if sys.platform != "linux":
            raise OSError("no descriptors of processes")
        handle = os.pidfd_open(self.pid)
        held.callback(os.close, handle)
        if self.code is not None or os.getsid(self.pid) != self.pid:
            raise ProcessLookupError(f"{self.pid} is not its number any more")
        signal.pidfd_send_signal(handle, 0)
        return handle

    def forward(self, signum: int, *, group: bool = False) -> None:
        """Hand it a signal that does not mean the end (SIGUSR1…)."""
        with suppress(OSError):  # nobody is there any more
            self._control.send(b"%d %d\n" % (signum, group))

    @property
    def gone(self) -> bool:
        """Whether nothing of it is left."""
        return self._gone.is_set()

    async def sweep(self) -> None:
        """Wait until nothing of it is left; the guardian sees to that, from its end on.

        What SIGKILL does not end, another user's say, is given up after some seconds.
        """
        await happens(self._gone, self._order.grace + _SWEPT)
        self._let_go()

    def _hear(self) -> None:
        """Read what the guardian says: how it ended, then, by the end of the stream, that nothing is left."""
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "code" in told:  # the rest is from a start that was given up
                self._end(told["code"], told["at_ns"])
        if not data:
            if self.code is None:  # somebody killed the guardian, and with it the worker
                if self.pid:
                    with suppress(OSError):
                        os.killpg(self.pid, signal.SIGKILL)
                self._end(-signal.SIGKILL, time.monotonic_ns())
            self._let_go()
            self._gone.set()

    def _end(self, code: int, at_ns: int) -> None:
        self.code, self.ended_ns = code, at_ns
        for relay in self._relays:
            relay.finish()
        self._ended()

    def _let_go(self) -> None:
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
            self._control.close()


def spawn(
    order: Order,
    spawner: Spawner,
    stdin: int | None,
    make_relays: Callable[[int, int, LastWords], Sequence[Relay]],
) -> Worker:
    """Have one worker started; `Worker.confirm` says whether it was. So many are started at once.

    Args:
        order: what it is.
        spawner: starts it.
        stdin: a descriptor to read from, None: /dev/null.
        make_relays: takes the read ends of its stdout and stderr (unless it raises), and what keeps its last
            words.

    Raises:
        UsageError: none can be started any more. Nothing of it is left then.
    """
    words = LastWords()
    with ExitStack() as theirs, ExitStack() as ours:
        try:
            null = os.open(os.devnull, os.O_RDONLY)
            theirs.callback(os.close, null)
            out_read, out_write = _pipe(ours, theirs)
            err_read, err_write = _pipe(ours, theirs)
            relays = make_relays(out_read, err_read, words)
            ours.pop_all()
            for relay in relays:
                ours.callback(relay.finish)
            control = spawner.spawn(order, null if stdin is None else stdin, out_write, err_write)
        except OSError as error:
            raise _lacking(error) from None
        ours.pop_all()
    return Worker(order, control, relays, words, spawner.wake)


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write


def _lacking(error: OSError) -> UsageError:
    lack = shortage(error)
    if lack is None:
        return UsageError(f"no worker can be started ({error.strerror})")
    return UsageError(f"no worker can be started: this agent {lack.what}", hint=lack.hint)


def ask_all(workers: Sequence[Worker], signum: int) -> None:
    """Ask workers to end. None sees another one end before it is asked itself, which would be a failure.

    So they are stopped, and their guardians ask them and let them go on, one by one.
    """
    with ExitStack() as held:
        for worker in workers if signum != signal.SIGKILL else ():
            with suppress(OSError):  # it has just ended
                signal.pidfd_send_signal(worker.hold(held), signal.SIGSTOP)
    for worker in workers:
        worker.send(signum)
