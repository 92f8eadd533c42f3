"""The services of one process: its connections with others, by their uids, which outlive epochs.

An epoch says who is where (`Place`); its control plane says who is lost. A connection is made by the first
call, at the address that the present epoch knows, and lives until one of the two processes ends, is lost, or
is no member of the next epoch. Everything else of an epoch may end meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from aiodist.errors import AiodistError, CallError, CallNotRun, GroupClosed, PeerLost
from aiodist.services.callee import Callee
from aiodist.services.caller import Caller
from aiodist.services.codec import LARGE, decoded, encode, encoded
from aiodist.services.handlers import Handlers
from aiodist.services.mailbox import Mailbox
from aiodist.services.outcomes import LEFT, Outcome, error_of
from aiodist.services.records import Build, Misfit
from aiodist.services.stream import Stream
from aiodist.transport.line import Line, MemoryLine
from aiodist.wire import objects
from aiodist.wire.calls import Says

A_MESSAGE = "a message"
"""The name that an error gives a message."""

_NEWS = 2.0  # seconds in which it is known why a process could not be reached: it died, or a new epoch began
_LEAVING = 1.0  # seconds that handlers have to end when their process leaves

_log = logging.getLogger("aiodist.services")


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


class _Peer:
    """The two connections between this process and another: one for the calls of each."""

    def __init__(self) -> None:
        self.caller: Caller | None = None
        self.callee: Callee | None = None
        self.dialing: asyncio.Task[Caller] | None = None


class Switchboard:
    """The services of one process.

    Args:
        uid: of this process.

    Attributes:
        handlers: what others may call here.
        mailbox: messages that came.
    """

    def __init__(self, uid: bytes) -> None:
        self.handlers = Handlers()
        self.mailbox = Mailbox()
        self._uid = uid
        self._loop = asyncio.get_running_loop()
        self._peers: dict[bytes, _Peer] = {}
        self._place: Place | None = None
        self._lost: dict[bytes, str] = {}
        self._news = asyncio.Event()
        self._closed = False
        self._unused: set[Callee] = set()  # that were replaced, or whose peer is gone, while handlers end

    # ── what the epochs say ──────────────────────────────────────────────────────────────────────────

    def enter(self, place: Place) -> None:
        """Begin an epoch: who is no member of it is lost."""
        self._place = place
        self._lost.clear()
        for uid in list(self._peers):
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

    def accept(self, uid: bytes, line: Line) -> None:
        """Take a line that another process has dialed."""
        if self._closed or uid in self._lost:
            line.kill()
            return
        peer = self._peers.setdefault(uid, _Peer())
        old, peer.callee = peer.callee, None
        if old is not None:  # its end has not been noticed here
            old.lose()
        peer.callee = Callee(self._loop, line, uid, self.handlers, self.mailbox, partial(self._left, peer))

    async def aclose(self) -> None:
        """Stop all handlers, tell callers so, and end all connections. May be repeated."""
        if self._closed:
            return
        self._closed = True
        self.mailbox.close()
        self._tell()
        peers = list(self._peers.values())
        self._peers.clear()
        dialing = [peer.dialing for peer in peers if peer.dialing is not None]
        for task in dialing:
            task.cancel()
        for peer in peers:
            if peer.caller is not None:
                peer.caller.close()
        callees = [peer.callee for peer in peers if peer.callee is not None]
        running = [task for callee in self._unused for task in callee.running()]
        ending = [asyncio.ensure_future(callee.aclose(_LEAVING)) for callee in callees]
        if rest := [*dialing, *ending, *running]:
            await asyncio.wait(rest, timeout=2 * _LEAVING)

    # ── what users ask ───────────────────────────────────────────────────────────────────────────────

    async def call(
        self, uid: bytes, rank: int, name: str, args: Sequence[Any], timeout: float, build: Build | None
    ) -> Any:
        """Call a handler of another process → its result. Errors as `ProcessGroup.call`."""
        payload = objects.encode_small(list(args)) or await encoded(list(args))
        kind, body = await self._ask(Says.CALL, uid, rank, name, payload, timeout)
        if kind != Says.RESULT:
            raise error_of((kind, body), rank, name, timeout)
        result = objects.decode(body) if len(body) < LARGE else await decoded(body)
        if build is None:
            return result
        try:
            return build(result)
        except Misfit as error:
            raise CallError(rank, name, f"a result of another shape: {error}") from None

    async def send_message(self, uid: bytes, rank: int, message: Any, timeout: float) -> None:
        """Put a message into the mailbox of another process. Errors as `ProcessGroup.send_message`."""
        payload = await encoded(message)
        outcome = await self._ask(Says.MESSAGE, uid, rank, "", payload, timeout)
        if outcome[0] != Says.RESULT:
            raise error_of(outcome, rank, A_MESSAGE, timeout)

    def stream(
        self, uid: bytes, rank: int, name: str, args: Sequence[Any], timeout: float, build: Build | None
    ) -> Stream:
        """The parts that a handler of another process yields. Errors as `ProcessGroup.stream`."""

        async def opens(nbytes: int, deadline: float) -> Caller:
            return await self._reach(uid, rank, name, nbytes, deadline, timeout)

        return Stream(self._loop, opens, rank, name, encode(list(args)), timeout, build)

    async def take(self) -> tuple[bytes, Any] | None:
        """The next message: uid of its sender, and what it is; None when no more will come."""
        while (letter := await self.mailbox.take()) is not None:
            try:
                return letter.sender, await decoded(letter.payload)
            except asyncio.CancelledError:
                self.mailbox.put_back(letter)
                raise
            except AiodistError as error:
                _log.warning("a message that cannot be read was dropped: %s", error)
        return None

    def check_open(self) -> None:
        """Raise `GroupClosed` where this process has left the job."""
        if self._closed:
            raise GroupClosed("this process has left the job", hint="Call before the world's group is closed")

    # ── how ──────────────────────────────────────────────────────────────────────────────────────────

    async def _ask(
        self, kind: Says, uid: bytes, rank: int, name: str, payload: bytes, timeout: float
    ) -> Outcome:
        deadline = self._loop.time() + timeout
        peer = self._peers.get(uid)
        caller = None if peer is None else peer.caller
        if caller is None or caller.over or not caller.has_room(len(payload)):
            caller = await self._reach(uid, rank, name or A_MESSAGE, len(payload), deadline, timeout)
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        asked = caller.ask(kind, name.encode(), payload, deadline, answer)
        try:
            if caller.poll():
                await asyncio.sleep(0)
            return await answer
        except asyncio.CancelledError:
            caller.abandon(asked)
            raise

    async def _reach(
        self, uid: bytes, rank: int, name: str, nbytes: int, deadline: float, timeout: float
    ) -> Caller:
        """A connection with room for a call.

        Raises:
            CallNotRun: the process is lost or cannot be reached, or there was none in time.
        """
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    self.check_open()
                    if why := self._why_not(uid):
                        raise CallNotRun(rank, name, why) from PeerLost([rank], why)
                    caller = await self._caller(uid)
                    await caller.room(nbytes)
                    if not caller.over:
                        return caller
        except TimeoutError:
            raise CallNotRun(
                rank, name, f"it could not be sent within {timeout:g} s", hint="The rank is busy, or frozen"
            ) from None
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
        peer = self._peers.setdefault(uid, _Peer())
        if peer.caller is not None and not peer.caller.over:
            return peer.caller
        if peer.dialing is None:
            peer.dialing = self._loop.create_task(self._connect(uid, peer))
        dialing = peer.dialing
        await asyncio.wait([dialing])
        if dialing.cancelled():
            raise ConnectionAbortedError(LEFT)
        return dialing.result()

    async def _connect(self, uid: bytes, peer: _Peer) -> Caller:
        try:
            line = await self._dial(uid)
            if self._closed or self._why_not(uid):
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
            self.accept(uid, theirs)
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
                while self._place is place and not self._why_not(uid) and not self._closed:
                    await self._news.wait()
        except TimeoutError:
            pass

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _drop(self, uid: bytes, why: str) -> None:
        peer = self._peers.pop(uid, None)
        if peer is None:
            return
        if peer.dialing is not None:
            peer.dialing.cancel()
        if peer.caller is not None:
            peer.caller.lose(why)
        if peer.callee is not None:
            peer.callee.lose()

    def _left(self, peer: _Peer, callee: Callee) -> None:
        """Let a connection go that the other process, or this one, has ended."""
        if peer.callee is callee:
            peer.callee = None
        if callee.running():
            self._unused.add(callee)
        for one in [one for one in self._unused if not one.running()]:
            self._unused.discard(one)
