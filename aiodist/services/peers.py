"""The other processes, by their uids: where they are in this epoch, who is lost, and the ways to them.

A connection is made by the first call, at the address that the present epoch knows, and lives until one of
the two processes ends, is lost, or is no member of the next epoch. Everything else of an epoch may end
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from aiodist.errors import AiodistError, CallError, CallNotRun, CallTooLate, GroupClosed, PeerLost
from aiodist.services.callee import Callee
from aiodist.services.caller import Caller
from aiodist.services.outcomes import LEFT
from aiodist.transport.line import Line, MemoryLine

_NEWS = 2.0  # seconds in which it is known why a process could not be reached: it died, or a new epoch began


class Place:
    """Where the processes of an epoch are.

    Args:
        uids: of the members, by rank.
        dial: makes a line to a rank.
    """

    def __init__(self, uids: Sequence[bytes], dial: Callable[[int], Awaitable[Line]]) -> None:
        self.ranks = {uid: rank for rank, uid in enumerate(uids)}
        self.uids = uids
        self.dial = dial


class Peer:
    """The two connections between this process and another: one for the calls of each."""

    def __init__(self) -> None:
        self.caller: Caller | None = None
        self.callee: Callee | None = None
        self.dialing: asyncio.Task[Caller] | None = None


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
        self.by_uid: dict[bytes, Peer] = {}
        self.closed = False
        self._loop = loop
        self._uid = uid
        self._accept = accept
        self._place: Place | None = None
        self._lost: dict[bytes, str] = {}
        self._news = asyncio.Event()

    # What the epochs say.

    def enter(self, place: Place) -> None:
        """Begin an epoch: who is no member of it is lost."""
        self._place = place
        self._lost.clear()
        for uid in list(self.by_uid):
            if uid not in place.ranks:
                self._drop(uid, "it is no member of the job any more")
        self._tell()

    def lose(self, place: Place, rank: int, cause: str) -> None:
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

    def close(self) -> list[Peer]:
        """Reach nobody any more → those with whom there are connections."""
        self.closed = True
        self._tell()
        peers = list(self.by_uid.values())
        self.by_uid.clear()
        return peers

    # Ways to them.

    async def reach(
        self, uid: bytes, rank: int, name: str, nbytes: int, deadline: float, timeout: float
    ) -> Caller:
        """A connection with room for a call.

        Raises:
            CallNotRun: the process is lost or cannot be reached.
            CallTooLate: there was none in time.
        """
        caller: Caller | None = None
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    if self.closed:
                        raise closed()
                    if why := self._why_not(uid):
                        raise CallNotRun(rank, name, why) from PeerLost([rank], why)
                    caller = await self._caller(uid)
                    await caller.room(nbytes)
                    if not caller.over:
                        return caller
        except TimeoutError:
            why, hint = f"it could not be sent within {timeout:g} s", "The rank is busy, or frozen"
            if caller is not None and not caller.asking.fits(nbytes):
                calls = len(caller.asking.calls)
                why = f"{calls} earlier calls of this process to it have no answer; {why}"
                hint = "Give calls a shorter timeout, ask fewer at once, or see what its handlers wait for"
            raise CallTooLate(rank, name, why, hint=hint) from None
        except (OSError, AiodistError) as error:
            if isinstance(error, CallError | GroupClosed):
                raise
            raise CallNotRun(rank, name, f"it cannot be reached ({error})") from PeerLost([rank], str(error))

    def _why_not(self, uid: bytes) -> str:
        place = self._place
        if place is None or uid not in place.ranks:
            return "it is no member of the job any more"
        return self._lost.get(uid, "")

    async def _caller(self, uid: bytes) -> Caller:
        peer = self.by_uid.setdefault(uid, Peer())
        if peer.caller is not None and not peer.caller.over:
            return peer.caller
        if peer.dialing is None:
            peer.dialing = self._loop.create_task(self._connect(uid, peer))
        dialing = peer.dialing
        await asyncio.wait([dialing])
        if dialing.cancelled():
            raise ConnectionAbortedError(LEFT)
        return dialing.result()

    async def _connect(self, uid: bytes, peer: Peer) -> Caller:
        try:
            line = await self._dial(uid)
            if self.closed or self._why_not(uid):
                line.kill()
                raise ConnectionAbortedError(self._why_not(uid) or LEFT)
            peer.caller = Caller(self._loop, line)
            return peer.caller
        finally:
            peer.dialing = None

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

    async def _hear(self, place: Place, uid: bytes) -> None:
        """Wait, but not for long, for what says why a process cannot be reached."""
        try:
            async with asyncio.timeout(_NEWS):
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
        if peer.dialing is not None:
            peer.dialing.cancel()
        if peer.caller is not None:
            peer.caller.lose(why)
        if peer.callee is not None:
            peer.callee.lose()


def closed() -> GroupClosed:
    """The error where this process has left the job."""
    return GroupClosed("this process has left the job", hint="Call before the world's group is closed")
