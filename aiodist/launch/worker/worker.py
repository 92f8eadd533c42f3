"""One worker process: start it, see it end, leave nothing of it behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from aiodist.environment.process import stat_fields
from aiodist.errors import UsageError
from aiodist.launch.worker.guardian import Guardian
from aiodist.launch.worker.lines import LastWords
from aiodist.launch.worker.output import Relay

_SWEEP_POLL = 0.01
_SWEEP_LIMIT = 2.0  # seconds to wait for what SIGKILL does not end


class Worker:
    """A started worker, leader of its own session and process group.

    Attributes:
        pid: its process, and its process group.
        asked: the last signal that the agent sent it, 0: none.
        words: the end of its stderr.
        code: exit code once it has ended, negative: the signal that killed it.
        ended_ns: monotonic ns of the moment the agent saw it end.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], relays: Sequence[Relay], words: LastWords, guardian: Guardian
    ) -> None:
        self._process = process
        self._relays = relays
        self._guardian = guardian
        self._pidfd = -1
        self.pid = process.pid
        self.words = words
        self.asked = 0
        self.code: int | None = None
        self.ended_ns = 0

    def watch(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        """Call `ended` once, when the process has ended; `code` and `words` are complete then.

        Where the system has no pidfd (macOS), call `poll` on SIGCHLD instead.
        """
        if not hasattr(os, "pidfd_open"):
            return
        self._pidfd = os.pidfd_open(self.pid)
        loop.add_reader(self._pidfd, self._collect, loop, ended)

    def poll(self) -> bool:
        """Whether it has ended just now; takes its exit code and the rest of its output."""
        if self.code is not None:
            return False
        code = self._process.poll()
        if code is None:
            return False
        self.ended_ns = time.monotonic_ns()
        self.code = code
        for relay in self._relays:
            relay.finish()
        return True

    def _collect(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        if self.poll():
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            ended()

    def send(self, signum: int) -> None:
        """Ask it to end.

        SIGINT goes to its whole process group, as from a terminal; SIGTERM to the worker alone, which
        may want to close down what it started; SIGKILL leaves nothing.
        """
        if self.code is None:
            self.asked = signum
            self.forward(signum, group=signum != signal.SIGTERM)

    def forward(self, signum: int, *, group: bool = False) -> None:
        """Hand it a signal that does not mean the end (SIGUSR1…)."""
        if self.code is not None:
            return
        try:
            if group:
                os.killpg(self.pid, signum)
            else:
                os.kill(self.pid, signum)  # not reaped yet, so the number is still its own
        except OSError:
            pass

    async def sweep(self, grace: float) -> None:
        """After its end: end what it left behind in its process group.

        Args:
            grace: seconds between SIGTERM and SIGKILL.
        """
        deadline = time.monotonic() + grace
        signum = signal.SIGKILL if self.asked == signal.SIGKILL else signal.SIGTERM
        last = 0
        while self._signal_group(signum if signum != last else 0):
            last = signum
            if time.monotonic() > deadline:
                if signum == signal.SIGKILL:
                    break  # not ours to kill (another user's), or beyond killing: do not hang on it
                signum, deadline = signal.SIGKILL, time.monotonic() + _SWEEP_LIMIT
            await asyncio.sleep(_SWEEP_POLL)
        self._guardian.remove(self.pid)

    def _signal_group(self, signum: int) -> bool:
        """Whether anybody is left in the group."""
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return _has_living(self.pid)


def _has_living(group: int) -> bool:
    """Whether a process group has more than zombies, which a container's init may never collect."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return True  # no /proc here: a signal that arrives is all we can know
    for pid in pids:
        try:
            state, _parent, its_group = stat_fields(pid)[:3]
        except (OSError, ValueError):  # it has gone meanwhile
            continue
        if int(its_group) == group and state not in "ZX":
            return True
    return False


def spawn(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: int | None,
    guardian: Guardian,
    tie: Callable[[], None],
    make_relays: Callable[[int, int, LastWords], Sequence[Relay]],
) -> Worker:
    """Start one worker.

    Args:
        command: its argv.
        env: its whole environment.
        stdin: a descriptor to read from, None: /dev/null.
        guardian: learns of its process group.
        tie: runs in the child before exec (see `die_with_parent`).
        make_relays: takes the read ends of its stdout and stderr, and what keeps its last words.

    Raises:
        UsageError: the command cannot be run.
    """
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        process = subprocess.Popen(
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=out_write,
            stderr=err_write,
            start_new_session=True,
            preexec_fn=tie,
        )
    except (OSError, subprocess.SubprocessError) as error:
        os.close(out_read)
        os.close(err_read)
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot run {command[0]!r}: {reason}") from None
    finally:
        os.close(out_write)
        os.close(err_write)
    guardian.add(process.pid)
    words = LastWords()
    return Worker(process, make_relays(out_read, err_read, words), words, guardian)
