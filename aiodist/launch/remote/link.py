"""An agent's side of the pipes to its launcher: what it is told, and what it says on stdout."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Callable, Iterator
from functools import partial

from aiodist.base.errors import RendezvousTimeout, WireError
from aiodist.base.timeouts import spoken
from aiodist.launch.remote.messages import (
    LONGEST_TASK,
    MARK,
    SILENCE,
    Address,
    Began,
    Message,
    Over,
    Signal,
    Task,
    decode,
    encode,
)
from aiodist.net.alarm import Alarm
from aiodist.net.tasks import settle
from aiodist.net.within import within

_CHUNK = 1 << 16


def say(message: Message) -> None:
    """Write a message to the launcher; nothing is said any more to one that is gone."""
    data = MARK + encode(message)
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        pass


class Link:
    """The agent's end of the pipes; a `Teller`.

    Args:
        fd: what the launcher says comes from there.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._alone = False

    def task(self) -> Task | None:
        """Wait for the agent's orders, before `open`; None: the launcher is gone."""
        while select.select([self._fd], [], [], SILENCE)[0] and self._more():
            for message in self._messages():
                if isinstance(message, Task):
                    return message
        return None

    def open(self, loop: asyncio.AbstractEventLoop, leave: Callable[[], object], patience: float) -> None:
        """Begin to listen.

        Args:
            loop: the agent's.
            leave: ends this node's part of the job at once; the job may go on without it.
            patience: seconds to wait for the address of node 0.
        """
        self._loop, self._leave, self._patience = loop, leave, patience
        self._address: asyncio.Future[str] = loop.create_future()
        self._alarm = Alarm(loop, self._left_alone)
        os.set_blocking(self._fd, False)
        loop.add_reader(self._fd, self._hear)
        self._obey()

    async def tell(self, text: str) -> None:
        """Tell where this node listens."""
        say(Address(text))

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

    def _more(self) -> bool:
        """Read what has come; False: the launcher is gone."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._buffer += data
        return bool(data)

    def _messages(self) -> Iterator[Message]:
        """The messages that are here as a whole; each is taken when it is asked for."""
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            try:
                message = decode(line)
            except WireError:
                continue
            yield message
        if len(self._buffer) > LONGEST_TASK:
            self._buffer.clear()

    def _hear(self) -> None:
        if self._more():
            self._obey()
        else:
            self._loop.remove_reader(self._fd)
            self._left_alone()

    def _obey(self) -> None:
        """Do what the launcher says; that it says something is a sign of life."""
        self._alarm.set(self._loop.time() + SILENCE)
        for message in self._messages():
            match message:
                case Address(address) if address:
                    settle(self._address, address)
                case Signal(name) if name in signal.Signals.__members__:
                    os.kill(os.getpid(), signal.Signals[name])  # as if the operator had sent it here

    def _left_alone(self) -> None:
        """Leave the job: the launcher is gone, or cannot be reached, or wants this node no more."""
        if not self._alone:
            self._alone = True
            self._alarm.stop()
            self._leave()
