"""An agent's side of the pipes to its launcher: what it is told, and what it says on stdout."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial

from aiodist.base.errors import RendezvousTimeout, WireError
from aiodist.base.timeouts import spoken
from aiodist.launch.remote.messages import (
    LONGEST,
    MARK,
    SILENCE,
    Address,
    Began,
    Message,
    Over,
    Signal,
    Told,
    decode,
    encode,
)
from aiodist.net.alarm import Alarm
from aiodist.net.within import within

_CHUNK = 1 << 16


def say(message: Message, fd: int = 1) -> None:
    """Write a message to the launcher; nothing is said any more to one that is gone."""
    data = MARK + encode(message)
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        pass


class Link:
    """The agent's end, while it runs; a `Teller`.

    Args:
        fd: what the launcher says comes from there.
        begun: bytes that were read from it already.
        patience: seconds to wait for the address of node 0.
        first: this is node 0.
    """

    def __init__(self, fd: int, begun: bytes, patience: float, *, first: bool) -> None:
        self.first = first
        self._fd = fd
        self._buffer = bytearray(begun)
        self._patience = patience
        self._alone = False
        self._known = ""

    def know(self, address: str) -> None:
        """Take the address of node 0 from the task; before `open`."""
        self._known = address

    def open(self, loop: asyncio.AbstractEventLoop, leave: Callable[[], object]) -> None:
        """Begin to listen.

        Args:
            loop: the agent's.
            leave: ends this node's part of the job at once; the job may go on without it.
        """
        self._loop, self._leave = loop, leave
        self._address: asyncio.Future[str] = loop.create_future()
        if self._known:
            self._address.set_result(self._known)
        self._alarm = Alarm(loop, self._left_alone)
        self._alarm.set(loop.time() + SILENCE)
        os.set_blocking(self._fd, False)
        loop.add_reader(self._fd, self._read)
        self._take()

    async def tell(self, text: str) -> None:
        """Tell where this node listens."""
        say(Told(text))

    async def ask(self) -> str:
        """Where node 0 listens."""
        late = partial(
            RendezvousTimeout,
            f"the launcher did not say where node 0 listens within {spoken(self._patience)}",
            hint="See what the agent of node 0 says",
        )
        async with within(self._patience, late):
            return await asyncio.shield(self._address)

    def began(self) -> None:
        """Say that the agents have met."""
        say(Began())

    def over(self, code: int, verdict: str) -> None:
        """Say how the job ended."""
        say(Over(code, verdict))

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._fd)
            self._left_alone()
            return
        self._buffer += data
        self._take()

    def _take(self) -> None:
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            try:
                message = decode(line)
            except WireError:
                continue
            self._alarm.set(self._loop.time() + SILENCE)
            if isinstance(message, Address) and not self._address.done():
                self._address.set_result(message.address)
            elif isinstance(message, Signal):
                _send(message.name)
        if len(self._buffer) > LONGEST:
            self._buffer.clear()

    def _left_alone(self) -> None:
        """Leave the job: the launcher is gone, or cannot be reached, or wants this node no more."""
        if not self._alone:
            self._alone = True
            self._alarm.stop()
            self._leave()


def _send(name: str) -> None:
    """Send this process, the agent, a signal: it does with it what it does with the operator's."""
    if name in signal.Signals.__members__:
        os.kill(os.getpid(), signal.Signals[name])
