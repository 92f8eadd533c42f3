"""The way to another process: what this one asks of it waits for a connection and for room, in one order.

A connection is made by the first call, and again by the first one after it has ended. Whatever makes room
(an answer, a line that has taken what waited, a connection, a call that is given up) sends all that fits,
from the first one on, in the same turn of the loop. So no later call finds room that an earlier one has been
promised.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection

from aiodist.group.services.asking import Asked
from aiodist.group.services.caller import Caller, tell
from aiodist.group.services.outcomes import ENCODING, LEFT, NOT_SENT, QUITS, TOO_LATE, UNREACHED, Outcome
from aiodist.group.services.queue import Queue
from aiodist.net.wire.calls import Says
from aiodist.transport.line import Line


class CallWay:
    """The calls of this process at another, over all connections.

    Args:
        loop: the event loop.
        dial: makes a line to the process. It raises where it cannot be reached.

    Attributes:
        caller: the calls on the latest connection; None before the first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, dial: Callable[[], Awaitable[Line]]) -> None:
        self.caller: Caller | None = None
        self._loop = loop
        self._dial = dial
        self._queue: Queue[Asked] = Queue()
        self._waiting = self._queue.waiting
        self._dialing: asyncio.Task[None] | None = None
        self._over: Outcome | None = None

    @property
    def waiting(self) -> Collection[object]:
        """The calls that wait for a connection, or for room on it, in order."""
        return self._waiting

    def begin(self, message: Asked) -> None:
        """Keep the place of a message that is being encoded. `ask` or `abandon` follows."""
        self._queue.begin(message)

    def ask(self, asked: Asked) -> None:
        """Send a call, whose payload is set: now, or in its turn. Its waiter is told what becomes of it."""
        caller, queue = self.caller, self._queue
        if caller is not None and not (queue.waiting or queue.messages) and caller.fits(asked.nbytes):
            caller.ask(asked)
            return
        if asked.deadline < math.inf:
            asked.timer = self._loop.call_at(asked.deadline, self._late, asked)
        queue.put(asked, message=asked.kind is Says.MESSAGE)
        self.admit()

    def admit(self) -> None:
        """Send what waits, as far as there is room."""
        waiting = self._waiting
        while waiting:
            if self._over is not None:
                self._tell_all(self._over)
                return
            caller = self.caller
            if caller is None or caller.over:
                if self._dialing is None:
                    self._dialing = self._loop.create_task(self._connect())
                    self._dialing.add_done_callback(self._dialed)
                return
            first = next(iter(waiting))
            if not caller.fits(first.nbytes):
                return
            self._leave(first)
            caller.ask(first)

    def abandon(self, asked: Asked) -> None:
        """Wait for a call no more, whether it was sent or not. May be repeated."""
        if not asked.number:
            self._leave(asked)
            self.admit()
        elif self.caller is not None:
            self.caller.abandon(asked)

    def took(self, asked: Asked, nbytes: int) -> None:
        """Note that a part of a stream was taken, so that others may come."""
        if self.caller is not None:
            self.caller.took(asked, nbytes)

    def why_late(self, asked: Asked) -> Outcome:
        """The outcome of a call that was not sent in time."""
        caller, waiting = self.caller, self._waiting
        if asked not in waiting:
            return TOO_LATE, ENCODING
        if caller is None or caller.over or caller.asking.fits(next(iter(waiting)).nbytes):
            return TOO_LATE, 0
        return TOO_LATE, len(caller.asking.calls)

    def lose(self, why: str) -> None:
        """End it: the process is lost."""
        self._end((NOT_SENT, why))
        if self.caller is not None:
            self.caller.lose(why)

    def close(self) -> list[asyncio.Task[None]]:
        """End it, since this process leaves the job → what is to be awaited."""
        self._end((QUITS, None))
        if self.caller is not None:
            self.caller.close()
        return [] if self._dialing is None else [self._dialing]

    # Inside.

    async def _connect(self) -> None:
        """Make a connection; those who wait for one in vain are told why."""
        try:
            line = await self._dial()
        except Exception as error:  # whatever it is, the next call tries again
            self._tell_all((UNREACHED, error))
        except asyncio.CancelledError:
            self._tell_all((NOT_SENT, LEFT))
            raise
        else:
            if self._over is None:
                self.caller = Caller(self._loop, line, self._queue, self.admit)
            else:
                line.kill()

    def _dialed(self, _connecting: asyncio.Task[None]) -> None:
        self._dialing = None
        self.admit()

    def _end(self, outcome: Outcome) -> None:
        self._over = outcome
        self._tell_all(outcome)
        if self._dialing is not None:
            self._dialing.cancel()

    def _late(self, asked: Asked) -> None:
        outcome = self.why_late(asked)
        self._leave(asked)
        tell(asked, outcome)
        self.admit()

    def _tell_all(self, outcome: Outcome) -> None:
        waiting = self._waiting
        while waiting:
            first = next(iter(waiting))
            self._leave(first)
            tell(first, outcome)

    def _leave(self, asked: Asked) -> None:
        self._queue.leave(asked)
        if asked.timer is not None:
            asked.timer.cancel()
            asked.timer = None
