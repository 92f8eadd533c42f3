"""The process between the agent and one worker: it starts the worker, and leaves nothing of it behind.

    agent ── spawner ── guardian ── worker ── whatever that starts
      └──────control───────┘

Orphans among the worker's descendants become the guardian's children (`descendants`). So a daemon in a
session of its own is found, and known to be of this worker. When the worker has ended, or the agent is gone
(then the control socket ends, also by SIGKILL), the guardian ends them, again and again until none is left.
The worker in turn is killed with its guardian (PR_SET_PDEATHSIG).

Each worker has a guardian of its own. An orphan may have left its worker's session, process group and
environment: its parent, the guardian, says whose it was. And guardians outlive agent and spawner: killing
both at once leaves nothing, and killing one guardian costs one worker.

With `leave` the worker's process group alone is ended, and nobody adopted; so it is where the system knows no
adoption (macOS).

On the control socket there are lines. To the agent: {"pid": 12} or {"error": "why"}; {"code": 0, "at_ns": 34}
when the worker has ended; the end of the stream when all is gone. To the guardian: '15 0', a signal for the
worker, and whether its process group is meant.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass

from aiodist.launch.worker.descendants import adopt_orphans, descendants, die_with_parent, members, reap, send
from aiodist.launch.worker.main_thread import send_to_main_thread

_POLL = 0.01
_STUCK = 2.0  # seconds to wait for what SIGKILL does not end: another user's, or beyond killing


@dataclass(frozen=True)
class Order:
    """A worker to start.

    Attributes:
        argv: its command.
        env: its whole environment.
        grace: seconds from SIGTERM to SIGKILL for what it leaves behind.
        leave: what is not of its process group is left alone.
    """

    argv: list[str]
    env: dict[str, str]
    grace: float
    leave: bool


class Guardian:
    """The guardian's whole life, in a process of its own that has no other child.

    Args:
        control: to the agent.
        order: what to start.
    """

    def __init__(self, control: socket.socket, order: Order) -> None:
        self._control = control
        self._order = order
        self._worker = 0
        self._code: int | None = None
        self._alone = False  # the agent is gone
        self._hurry = False  # nobody is asked any more
        self._partial = b""
        self._whole = False

    def run(self, stdin: int, out: int, err: int) -> None:
        """Start the worker with these descriptors, which are closed; returns when nothing of it is left."""
        self._wakeup, waker = socket.socketpair()
        self._wakeup.setblocking(False)
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # not SIG_IGN, which would be handed on
        self._whole = not self._order.leave and adopt_orphans()
        try:
            self._start(stdin, out, err)
        except (OSError, subprocess.SubprocessError) as error:
            self._say(error=(error.strerror if isinstance(error, OSError) else "") or str(error))
            return
        finally:
            for fd in {stdin, out, err}:
                os.close(fd)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # after the worker got the agent's mask
        self._say(pid=self._worker)
        while self._code is None and not self._alone:
            self._wait(None)
            self._reap()
        if self._code is not None:
            self._say(code=self._code, at_ns=time.monotonic_ns())
        self._end_the_rest()

    def _start(self, stdin: int, out: int, err: int) -> None:
        process = subprocess.Popen(
            self._order.argv,
            env=self._order.env,
            stdin=stdin,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        self._worker = process.pid
        process.returncode = 0  # it is `reap` that takes it

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            self._code = reap().get(self._worker, self._code)

    def _end_the_rest(self) -> None:
        deadline = time.monotonic() + self._order.grace
        asked: set[int] = set()
        same: set[int] = set()
        since = 0.0
        while not self._all_gone():
            left, now = self._left(), time.monotonic()
            if self._hurry or now > deadline:
                self._send(signal.SIGKILL, left)
                if left != same:
                    same, since = left, now
                elif now - since > _STUCK:
                    return
            else:
                self._send(signal.SIGTERM, left - asked)
                self._send(signal.SIGCONT, left - asked)  # one that is stopped does not notice the other
                asked |= left
            self._wait(_POLL)

    def _all_gone(self) -> bool:
        """Whether nothing is left; certain where all orphans are adopted, whatever forked while we looked."""
        try:
            reap()
        except ChildProcessError:
            return self._whole or not self._left()
        return not self._whole and not self._left()

    def _left(self) -> set[int]:
        """The processes that are to be ended, as far as they can be seen."""
        if self._whole:
            return descendants()
        if os.path.isdir("/proc/self"):
            return members(self._worker)
        try:
            os.killpg(self._worker, 0)
        except OSError:
            return set()
        return {self._worker}

    def _send(self, signum: int, pids: set[int]) -> None:
        if hasattr(os, "pidfd_open"):
            send(signum, pids, self._left)
        elif pids:
            with suppress(OSError):
                os.killpg(self._worker, signum)

    # -- the agent ------------------------------------------------------------------------------

    def _wait(self, limit: float | None) -> None:
        """Wait until a child ends, or the agent says something or is gone; at most so many seconds."""
        watched = [self._wakeup] if self._alone else [self._wakeup, self._control]
        ready, _, _ = select.select(watched, [], [], limit)
        if self._wakeup in ready:
            with suppress(BlockingIOError):
                while self._wakeup.recv(4096):
                    pass
        if self._control in ready:
            self._hear()

    def _hear(self) -> None:
        try:
            data = self._control.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._alone = True
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            signum, group = map(int, line.split())
            self._hurry = self._hurry or signum == signal.SIGKILL
            if self._code is None:  # so its number is still its own
                self._ask(signum, group=bool(group))

    def _ask(self, signum: int, *, group: bool) -> None:
        """Send the worker a signal, or its process group."""
        at_once = signum in (signal.SIGKILL, signal.SIGCONT)  # no thread of theirs has to take it
        if group and (at_once or not os.path.isdir("/proc/self")):
            with suppress(OSError):
                os.killpg(self._worker, signum)
            return
        for pid in members(self._worker) - {self._worker} if group else ():
            with suppress(OSError):
                os.kill(pid, signum)
        with suppress(OSError):
            send_to_main_thread(self._worker, signum)

    def _say(self, **words: int | str) -> None:
        with suppress(OSError):
            self._control.sendall(json.dumps(words).encode() + b"\n")
