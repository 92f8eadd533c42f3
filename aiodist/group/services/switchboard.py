"""The services of one process, which outlive epochs: what users ask of other processes, and what these ask.

An epoch says who is where (`ServicePlace`); its control plane says who is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiodist.base.errors import A_MESSAGE, AiodistError, CallError
from aiodist.group.services.asking import Asked
from aiodist.group.services.callee import Callee
from aiodist.group.services.codec import decoded, encode, encoded
from aiodist.group.services.handlers import Handlers
from aiodist.group.services.mailbox import Mailbox, Unread
from aiodist.group.services.outcomes import VALUE, Outcome, closed, error_of
from aiodist.group.services.overview import Overview
from aiodist.group.services.peers import Peers, ServicePeer, ServicePlace
from aiodist.group.services.records import Build, Misfit
from aiodist.group.services.stream import Stream
from aiodist.net.wire.calls import Says
from aiodist.transport.line import Line

_RESULT, _MESSAGE = int(Says.RESULT), Says.MESSAGE  # members of an enum are slow

_LEAVING = 1.0  # seconds that handlers have to end when their process leaves


class Switchboard:
    """The services of one process.

    Args:
        uid: of this process.

    Attributes:
        handlers: what others may call here.
        mailbox: messages that came.
        peers: the processes that this one is connected with.
        overview: what is under way, for those who look at the job.
    """

    def __init__(self, uid: bytes) -> None:
        self.handlers = Handlers()
        self.mailbox = Mailbox()
        self._loop = asyncio.get_running_loop()
        self.peers = Peers(self._loop, uid, self.accept)
        self.overview = Overview(self.peers, self.handlers)
        self._unused: set[Callee] = set()  # that were replaced, or whose peer is gone, while handlers end

    # ── what the epochs say ──────────────────────────────────────────────────────────────────────────

    def enter(self, place: ServicePlace) -> None:
        """Begin an epoch: who is no member of it is lost."""
        self.peers.enter(place)

    def lose(self, place: ServicePlace, rank: int, cause: str) -> None:
        """Note that a rank of an epoch is lost; news of another than the present one says nothing."""
        self.peers.lose(place, rank, cause)

    def accept(self, uid: bytes, line: Line) -> None:
        """Take a line that another process has dialed."""
        if self.peers.closed or self.peers.is_lost(uid):
            line.kill()
            return
        peer = self.peers.peer(uid)
        old, peer.callee = peer.callee, None
        if old is not None:  # its end has not been noticed here
            old.lose()
        peer.callee = Callee(self._loop, line, uid, self.handlers, self.mailbox, partial(self._left, peer))

    async def aclose(self) -> None:
        """Stop all handlers, tell callers so, and end all connections. May be repeated."""
        if self.peers.closed:
            return
        self.mailbox.close()
        peers = self.peers.close()
        dialing = [task for peer in peers for task in peer.way.close()]
        callees = [peer.callee for peer in peers if peer.callee is not None]
        running = [task for callee in self._unused for task in callee.running()]
        ending = [asyncio.ensure_future(callee.aclose(_LEAVING)) for callee in callees]
        if rest := [*dialing, *ending, *running]:
            await asyncio.wait(rest, timeout=2 * _LEAVING)

    def stay_behind(self) -> None:
        """End all in a forked child: the parent has the connections, and what was asked there."""
        self.mailbox.close()
        for peer in self.peers.close():
            peer.way.close()
            if peer.callee is not None:
                peer.callee.lose()

    # ── what users ask ───────────────────────────────────────────────────────────────────────────────

    async def ask(
        self,
        kind: Says,
        uid: bytes,
        rank: int,
        name: str,
        value: Any,
        timeout: float,
        build: Build | None = None,
    ) -> Any:
        """Call a handler of another process with a list of arguments → its result; or put a MESSAGE, without
        a name, into its mailbox. Errors as `ProcessGroup.call` and `send_message`."""
        way = peer.way if (peer := self.peers.by_uid.get(uid)) else None  # who is lost is not there
        asked = None
        if way is not None and way.caller is not None and way.caller.ask_small is not None:
            asked = way.caller.ask_small(kind, name.encode(), value, timeout)
        if way is None or asked is None:
            payload = None if kind is _MESSAGE else await encoded(value)
            way = self.peers.way(uid, rank, name or A_MESSAGE)
            asked = Asked(kind, self._loop.create_future())
        try:
            if not asked.number:
                if payload is None:
                    way.begin(asked)  # messages that begin meanwhile come behind it
                    payload = await encoded(value)
                asked.asks(name.encode(), payload, self._loop.time() + timeout)
                way.ask(asked)
            if asked.number and (caller := way.caller) and len(caller.asking.calls) == 1 and caller.poll():
                await asyncio.sleep(0)
            outcome: Outcome = await asked.waiter
        except BaseException:
            way.abandon(asked)
            raise
        how, body = outcome
        if how != VALUE and how != _RESULT:
            outcome = await self.peers.hear_of(uid, outcome, asked.deadline)
            raise error_of(outcome, rank, name or A_MESSAGE, timeout)
        if kind is _MESSAGE:
            return None
        try:
            result = body if how == VALUE else await decoded(body)
        except AiodistError as error:
            raise CallError(
                rank, name, f"its result cannot be read: {error.message}", hint=error.hint
            ) from error
        if build is None:
            return result
        try:
            return build(result)
        except Misfit as error:
            raise CallError(rank, name, f"a result of another shape: {error}") from error.__cause__

    def stream(
        self, uid: bytes, rank: int, name: str, args: Sequence[Any], timeout: float, build: Build | None
    ) -> Stream[Any]:
        """The parts that a handler of another process yields. Errors as `ProcessGroup.stream`."""
        opens = partial(self.peers.way, uid, rank, name)
        hears = partial(self.peers.hear_of, uid)
        return Stream(self._loop, opens, hears, rank, name, encode(list(args)), timeout, build)

    async def take(self) -> tuple[bytes, Any] | None:
        """The next message: uid of its sender, and what it is; None when no more will come. `Unread` where it
        cannot be read."""
        letter = await self.mailbox.take()
        if letter is None:
            return None
        try:
            message = await letter.value()
        except AiodistError as error:
            self.mailbox.read()
            raise Unread(letter.sender, error) from None
        except BaseException:  # cancelled, or its coroutine was closed
            self.mailbox.put_back(letter)
            raise
        self.mailbox.read()
        return letter.sender, message

    def check_open(self) -> None:
        """Raise `GroupClosed` where this process has left the job."""
        if self.peers.closed:
            raise closed()

    # ── how ──────────────────────────────────────────────────────────────────────────────────────────

    def _left(self, peer: ServicePeer, callee: Callee) -> None:
        """Let a connection go that the other process, or this one, has ended."""
        if peer.callee is callee:
            peer.callee = None
        if callee.running():
            self._unused.add(callee)
        for one in [one for one in self._unused if not one.running()]:
            self._unused.discard(one)
