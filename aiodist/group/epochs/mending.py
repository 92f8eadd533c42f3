"""The mending of control links torn by an attacker on the path, so that no honest rank is given up for it.

The higher rank of a pair dialed, and dials again; the other waits. A rank that does not come back in time is
lost, as is one whose link ends without goodbye.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiodist.base.errors import AiodistError, GroupBroken, PeerLost
from aiodist.net.tasks import Tasks
from aiodist.transport import ControlLink

PATIENCE = 20.0
"""Seconds in which a torn link has to stand again: more than most steps that keep a loop busy."""

AGAIN = 0.05
"""Seconds until it is dialed again where this process lacks something for it."""

OFTEN = 3
"""Times that a link is made anew: an attacker that tears it more often keeps the two ranks apart."""


class Mending:
    """The torn links of one world.

    Args:
        rank: this process's.
        dial: connects a control link to a rank.
        attach: takes a link that stands.
        give_up: called as (rank, cause) with a rank that could not be linked anew.
        unable: called as (rank, why) where this process lacked something for that.
    """

    def __init__(
        self,
        rank: int,
        dial: Callable[[int], Awaitable[ControlLink]],
        attach: Callable[[int, ControlLink], None],
        give_up: Callable[[int, str], None],
        unable: Callable[[int, GroupBroken], None],
    ) -> None:
        self._rank = rank
        self._dial = dial
        self._attach = attach
        self._give_up = give_up
        self._unable = unable
        self._times: dict[int, int] = {}
        self._waiting: dict[int, asyncio.Event] = {}
        self._tasks = Tasks()

    def torn(self, rank: int) -> None:
        """Mend the link to a rank, which is gone."""
        if rank in self._waiting:
            return
        times = self._times[rank] = self._times.get(rank, 0) + 1
        if times > OFTEN:
            self._give_up(rank, f"its control link was altered on the network path {times} times")
        else:
            self._waiting[rank] = asyncio.Event()
            self._tasks.start(self._mend(rank))

    def stands(self, rank: int) -> None:
        """Note that a link to a rank stands, whichever side dialed."""
        if (waiting := self._waiting.get(rank)) is not None:
            waiting.set()

    def close(self) -> None:
        """Mend nothing any more."""
        for task in self._tasks:
            task.cancel()

    async def _mend(self, rank: int) -> None:
        lack: GroupBroken | None = None
        try:
            async with asyncio.timeout(PATIENCE):
                if rank > self._rank:
                    await self._waiting[rank].wait()
                    return
                while True:
                    try:
                        link = await self._dial(rank)
                        break
                    except PeerLost:
                        raise
                    except GroupBroken as error:  # this process's own fault, and perhaps over soon
                        lack = error
                    await asyncio.sleep(AGAIN)
                self._attach(rank, link)
        except (AiodistError, OSError, TimeoutError) as error:
            if lack is not None and isinstance(error, TimeoutError):
                self._unable(rank, lack)
            else:
                cause = "its control link was altered on the network path and could not be made again"
                self._give_up(rank, cause)
        finally:
            self._waiting.pop(rank, None)
