"""The other processes, by their uids: where they are in this epoch, who is lost, and the ways to them.

A connection is made by the first call, at the address that the present epoch knows, and lives until one of
the two processes ends, is lost, or is no member of the next epoch. Everything else of an epoch may end
meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from aiodist.base.errors import AiodistError
from aiodist.group.services.callee import Callee
from aiodist.group.services.caller import Caller
from aiodist.group.services.outcomes import LOST, NOT_SENT, Outcome, closed, not_run
from aiodist.group.services.way import CallWay
from aiodist.transport.line import Line, MemoryLine

_NEWS = 2.0  # seconds in which it is known why a process could not be reached: it died, or a new epoch began


class ServicePlace:
    """Where the processes of an epoch are.

    Args:
        uids: of the members, by rank.
        dial: makes a line to a rank.
    """

    def __init__(self, uids: Sequence[bytes], dial: Callable[[int], Awaitable[Line]]) -> None:
        self.ranks = {uid: rank for rank, uid in enumerate(uids)}
        self.uids = uids
        self.dial = dial


class ServicePeer:
    """The two directions between this process and another: a connection for the calls of each.

    Args:
        way: to the other process.

    Attributes:
        callee: what the other process asks; None while it has no connection.
    """

    def __init__(self, way: CallWay) -> None:
        self.way = way
        self.callee: Callee | None = None

    @property
    def caller(self) -> Caller | None:
        """What this process asks, on the latest connection."""
        return self.way.caller


class Peers:
    """The other processes of the job, and this one.

    Args:
        loop: the event loop.
        uid: of this process.
        accept: takes a line that this process has dialed to itself.

    Attributes:
        by_uid: with whom there are connections.
        closed: this process has left the job.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, uid: bytes, accept: Callable[[bytes, Line], object]
    ) -> None:
        self.by_uid: dict[bytes, ServicePeer] = {}
        self.closed = False
        self._loop = loop
        self._uid = uid
        self._accept = accept
        self._place: ServicePlace | None = None
        self._lost: dict[bytes, str] = {}
        self._news = asyncio.Event()

    # What the epochs say.

    def enter(self, place: ServicePlace) -> None:
        """Begin an epoch: who is no member of it is lost."""
        self._place = place
        self._lost.clear()
        for uid in list(self.by_uid):
            if uid not in place.ranks:
                self._drop(uid, "it is no member of the job any more")
        self._tell()

    def lose(self, place: ServicePlace, rank: int, cause: str) -> None:
        """Note that a rank of an epoch is lost; news of another than the present one says nothing."""
        if place is self._place:
            uid = place.uids[rank]
            self._lost[uid] = cause
            self._drop(uid, cause)
            self._tell()

    def is_lost(self, uid: bytes) -> bool:
        """Whether a process is known to be lost."""
        return uid in self._lost

    def rank_of(self, uid: bytes) -> int:
        """The rank of a process in the present epoch; -1: it has none."""
        return -1 if self._place is None else self._place.ranks.get(uid, -1)

    def close(self) -> list[ServicePeer]:
        """Reach nobody any more → those with whom there are connections."""
        self.closed = True
        self._tell()
        peers = list(self.by_uid.values())
        self.by_uid.clear()
        return peers

    # Ways to them.

    def peer(self, uid: bytes) -> ServicePeer:
        """The connections with a process, from now on where there were none."""
        peer = self.by_uid.get(uid)
        if peer is None:
            peer = self.by_uid[uid] = ServicePeer(CallWay(self._loop, partial(self._dial, uid)))
        return peer

    def way(self, uid: bytes, rank: int, name: str) -> CallWay:
        """The way to a process, for a call.

        Raises:
            CallNotRun: the process is lost.
            GroupClosed: this process has left the job.
        """
        if self.closed:
            raise closed()
        if why := self._why_not(uid):
            raise not_run(rank, name, why)
        return self.peer(uid).way

    async def hear_of(self, uid: bytes, outcome: Outcome, until: float) -> Outcome:
        """An outcome, as it is where it is known whether the process is lost. Where only a connection has
        ended, that may be known a moment later: this waits for it, but not for long, and not beyond `until`.
        """
        kind, why = outcome
        place = self._place
        if place is not None and kind in (LOST, NOT_SENT) and isinstance(why, ConnectionError):
            await self._hear(place, uid, until)
            return kind, self._why_not(uid) or why
        return outcome

    def _why_not(self, uid: bytes) -> str:
        place = self._place
        if place is None or uid not in place.ranks:
            return "it is no member of the job any more"
        return self._lost.get(uid, "")

    async def _dial(self, uid: bytes) -> Line:
        """A line to a process, where the present epoch knows it; again where the next one begins."""
        if uid == self._uid:
            mine, theirs = MemoryLine.pair(self._loop, 0, 0)
            self._accept(uid, theirs)
            return mine
        while True:
            place = self._place
            if place is None or uid not in place.ranks:
                raise ConnectionAbortedError(self._why_not(uid))
            try:
                return await place.dial(place.ranks[uid])
            except (OSError, AiodistError):
                await self._hear(place, uid)
                if self._place is place:
                    raise

    async def _hear(self, place: ServicePlace, uid: bytes, until: float = math.inf) -> None:
        """Wait, but not for long, for what says why a process cannot be reached."""
        try:
            async with asyncio.timeout_at(min(self._loop.time() + _NEWS, until)):
                while self._place is place and not self._why_not(uid) and not self.closed:
                    await self._news.wait()
        except TimeoutError:
            pass

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _drop(self, uid: bytes, why: str) -> None:
        peer = self.by_uid.pop(uid, None)
        if peer is None:
            return
        peer.way.lose(why)
        if peer.callee is not None:
            peer.callee.lose()
