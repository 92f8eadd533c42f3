"""Messages that came, until somebody takes them. A full mailbox lets senders wait, each in its order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from aiodist.base.errors import AiodistError
from aiodist.group.services.codec import Received

MESSAGES = 1024
"""Messages that wait to be taken, at most; the next ones wait at their senders' expense."""

BYTES = 64 << 20
"""Bytes of them, at most; more only where it is a single message's."""


class Letter(Received):
    """A message, still encoded.

    Args:
        sender: uid of the process that sent it.
        payload: its bytes.
        taken_in: called when it is in the mailbox, which is what its sender waits for.
    """

    __slots__ = ("sender", "taken_in")

    def __init__(
        self, sender: bytes, payload: bytes | bytearray | memoryview, taken_in: Callable[[], object]
    ) -> None:
        super().__init__(payload)
        self.sender = sender
        self.taken_in = taken_in


class Unread(Exception):
    """The error that a message cannot be read.

    Args:
        sender: uid of the process that sent it.
        why: it cannot.
    """

    def __init__(self, sender: bytes, why: AiodistError) -> None:
        super().__init__(why)
        self.sender = sender
        self.why = why


class Mailbox:
    """The messages of one process that nobody has taken yet.

    Attributes:
        closed: none will come any more.
        inside: those that may be taken, in order.
        nbytes: of those.
        outside: those that wait for room, in order.
    """

    def __init__(self) -> None:
        self.closed = False
        self.inside: deque[Letter] = deque()
        self.outside: deque[Letter] = deque()
        self.nbytes = 0
        self._takers: deque[asyncio.Future[None]] = deque()
        self._reading = False  # a message was taken, and is not decoded yet

    def offer(self, letter: Letter) -> None:
        """Take a message in, now or when there is room."""
        self.outside.append(letter)
        self._let_in()

    def withdraw(self, letter: Letter) -> bool:
        """Forget a message whose sender does not want it sent any more; False where it is inside."""
        try:
            self.outside.remove(letter)
        except ValueError:
            return False
        self._let_in()  # those behind it may fit
        return True

    def close(self) -> None:
        """Take no more in: who waits for one is told when all that are inside are taken. Those outside may
        still be withdrawn, which tells their senders."""
        self.closed = True
        self._wake()

    async def take(self) -> Letter | None:
        """The next message; None where none will come any more. Nothing is lost where it is cancelled.

        `read` or `put_back` follows. Until then other takers wait: the message may be theirs, if the one that
        decodes it is cancelled.
        """
        while self._reading or not self.inside:
            if self.closed and not self._reading:
                return None
            taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except BaseException:  # cancelled, or its coroutine was closed
                if taker in self._takers:
                    self._takers.remove(taker)
                self._wake()  # the message that it was woken for is another's
                raise
        letter = self.inside.popleft()
        self._reading = True
        self.nbytes -= len(letter.payload)
        self._let_in()
        return letter

    def read(self) -> None:
        """Let the next message be taken: the one before it is decoded."""
        self._reading = False
        self._wake()

    def put_back(self, letter: Letter) -> None:
        """Have a message taken again, first of all."""
        self.inside.appendleft(letter)
        self.nbytes += len(letter.payload)
        self.read()

    def give_back(self, sender: bytes, message: Any) -> None:
        """Have a message taken again, first of all, that was taken and read: its taker could not have it."""
        self.inside.appendleft(Letter(sender, b"", _nothing).holds(message))
        self._wake()

    def fail_again(self, sender: bytes, error: BaseException) -> None:
        """Have the error of a message raised again, first of all: its taker has not heard of it."""
        self.inside.appendleft(Letter(sender, b"", _nothing).fails(error))
        self._wake()

    def _let_in(self) -> None:
        while self.outside and not self.closed:
            size = len(self.outside[0].payload)
            if self.inside and (len(self.inside) >= MESSAGES or self.nbytes + size > BYTES):
                return
            letter = self.outside.popleft()
            self.inside.append(letter)
            self.nbytes += size
            letter.taken_in()
            self._wake()

    def _wake(self) -> None:
        """Wake the first taker, if it can go on; all, where none will come any more."""
        while self._takers and not self._reading and (self.inside or self.closed):
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                if not self.closed:
                    return


def _nothing() -> None:
    pass
