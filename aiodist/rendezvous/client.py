"""The client of a store server: requests by id over one connection, which it replaces when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from dataclasses import replace
from typing import Any

from aiodist.base.backoff import Backoff
from aiodist.base.environment import Tls
from aiodist.base.errors import (
    AiodistError,
    AuthenticationError,
    RendezvousError,
    RendezvousTimeout,
    StoreReplaced,
    Tampered,
    UsageError,
    WireError,
)
from aiodist.base.sanitize import says
from aiodist.base.timeouts import Timeout, spoken
from aiodist.net.local_socket import connect_to_store
from aiodist.net.sockets import describe, join_address
from aiodist.net.tasks import settle
from aiodist.net.wire.handshake import NONCE_BYTES, Handshake, Identity, Purpose
from aiodist.net.wire.messages import Encoder, Status, split_response
from aiodist.net.within import happens
from aiodist.rendezvous.answers import check_failure, check_news, words_of
from aiodist.rendezvous.connection import StoreConnection
from aiodist.rendezvous.failures import again, check_use, closed_error, error_of
from aiodist.rendezvous.meeting_place import NOWHERE, MeetingPlace
from aiodist.rendezvous.methods import METHODS, check_answer
from aiodist.rendezvous.pending import PendingRequest
from aiodist.rendezvous.server import CLIENT_ID_BYTES
from aiodist.rendezvous.shapes import check_key
from aiodist.rendezvous.store import Store
from aiodist.rendezvous.store_card import StoreCard
from aiodist.rendezvous.watch import Watch

RECONNECT_SECONDS = 10.0  # less than the server keeps a session (`SESSION_GRACE`)
REFUSED_SECONDS = 2.0  # a store listens as long as it lives: who is refused for so long has lost it
GOODBYE_SECONDS = 1.0
_GRACE = 1.0  # the server keeps the deadlines; this much later the client stops believing in it
_BACKOFF = (0.01, 0.5)  # seconds between attempts: the first, the longest
_JITTER = 0.5  # of each, left to chance
_ALTERED = 3  # connections in a row that somebody on the path altered; the next is the last
_log = logging.getLogger("aiodist.store")

_REPLY, _PUSH, _CLOSING, _AWAY = map(int, (Status.reply, Status.push, Status.closing, Status.away))


class TcpStore(Store):
    """A store that is served elsewhere. Make it with `await TcpStore.connect(…)`.

    The client replaces a broken connection, and sends pending requests again; the server makes sure that each
    happens once. If connecting fails for `RECONNECT_SECONDS`, every pending call fails with
    `RendezvousError`, and so does every later one, unless `reopen` reaches it after all. A durable store may
    be started again meanwhile; then each call waits for it until its own timeout.

    Another store at the same address, or this one on older data, is refused with `StoreReplaced`.

    Attributes:
        address: this host's address on the connection to the store: one that peers can reach too.
        instance: 16 bytes that name the very store that is served (see `StoreServer`).
        generation: how many times it was started on its data, 0 where it lives in memory.
    """

    def __init__(
        self, host: str, port: int, identity: Identity, secret: bytes, timeout: Timeout, tls: Tls | None
    ) -> None:
        super().__init__(timeout)
        self.host = host
        self.port = port
        self.instance = b""
        self.generation = 0
        self._meant = b""
        self._place = self._dialed = NOWHERE  # as it was told; and as it is found there
        self._identity = identity
        self._secret = secret
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._connection: StoreConnection | None = None
        self._connections = 0  # so far
        self._opening: tuple[StoreConnection, asyncio.Future[None]] | None = None
        self._cause = ""  # why the last attempt to connect failed
        self._accepted: float | None = None  # when the attempt under way was, loop time; None: not yet
        self._card: StoreCard | None = None
        self._away = ""  # why the store said that it ends the connection, and may take the next one
        self._vain = 0  # connections in a row that have ended without an answer
        self._acknowledged = 0  # the highest id of a change that the store has confirmed
        self._resume_id = 0
        self._reconnecting: asyncio.Task[None] | None = None
        self._lost: asyncio.Event = asyncio.Event()
        self._closed: RendezvousError | None = None
        self._given_up = False  # for it could not be reached
        self._last_id = 0
        self._pending: dict[int, PendingRequest] = {}
        self._watches: dict[int, tuple[Watch, str]] = {}
        self._settled: list[int] = []
        self._outbox: list[bytes] = []
        self._encoder = Encoder()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        job: str,
        secret: bytes,
        timeout: Timeout = None,
        *,
        rank: int = -1,
        tls: Tls | None = None,
        instance: bytes = b"",
        place: MeetingPlace = NOWHERE,
    ) -> TcpStore:
        """Connect to a `StoreServer`, trying again until `timeout`: it may not have started yet.

        Args:
            timeout: seconds for connecting, and the default of every call afterwards.
            rank: of this process, to be named in messages; -1 where it has none yet.
            tls: for the way over TCP; None: without.
            instance: names the very store that is meant; b'': any of this job and secret.
            place: where this process was told to meet; nowhere: nothing is compared.

        Raises:
            RendezvousTimeout: nobody answered there in time; says what the network said.
            AuthenticationError: the server is of another job, version, byte order or secret, or another one
                than the one that is meant.
        """
        identity = Identity(job, Purpose.store, rank, os.urandom(CLIENT_ID_BYTES))
        self = cls(host, port, identity, secret, timeout, tls)
        self._meant, self._place = instance, place
        await self._dial(self.timeout)
        return self

    @property
    def place(self) -> MeetingPlace:
        """Where the store's host was told to meet the others."""
        return NOWHERE if self._card is None else self._card.place

    # Calls.

    async def _call(self, method: str, args: list[Any], timeout: float | None = None) -> Any:
        check_use(self._loop, self._closed)
        deadline = None
        if timeout is not None:
            deadline = self._loop.time() + timeout
            args.append(timeout)
        pending = PendingRequest(method, args, deadline)
        id = self._last_id = self._last_id + 1
        frame = self._encode(id, pending)  # may refuse the arguments: nothing is pending then
        connection = self._connection
        alone = connection is not None and not self._pending and not self._outbox
        self._pending[id] = pending
        if alone and connection is not None and connection.poller.only(asyncio.current_task()):
            # It leaves at once. What other tasks ask in the same turn of the loop leaves in one piece.
            connection.write(frame)
            here = not METHODS[method].meets and connection.poll() and pending.done
            if here and connection.poller.overdue():
                await asyncio.sleep(0)
        else:
            self._send(frame)
        if not pending.done:
            await self._wait_for(id, pending, self.timeout if timeout is None else timeout)
        if pending.error is not None:
            raise pending.error
        return pending.value

    async def _wait_for(self, id: int, pending: PendingRequest, patience: float) -> None:
        pending.waiter = self._loop.create_future()
        pending.expires = self._loop.time() + patience + _GRACE
        timer = self._loop.call_at(pending.expires, self._expire, pending)
        try:
            await pending.waiter
        except asyncio.CancelledError:
            self._abandon(id)
            raise
        finally:
            timer.cancel()
        if not pending.done:
            self._abandon(id)
            raise RendezvousTimeout(
                f"the store at {self._where()} gave no answer to {pending.method} within {spoken(patience)}"
                f"{self._words()}",
                hint="See whether the process that hosts it still runs and can be reached",
            )

    def _expire(self, pending: PendingRequest) -> None:
        """Wake a call whose time is over."""
        if self._connection is not None:
            self._connection.read()  # what came while this loop was busy is in time
        if pending.waiter is not None:
            settle(pending.waiter, None)

    def watch(self, prefix: str = "") -> Watch:
        check_use(self._loop, self._closed)
        id = self._new_id()

        def on_close() -> None:
            if self._watches.pop(id, None) is not None:
                self._tell("cancel", [id])

        watch = Watch(on_close)
        self._watches[id] = (watch, check_key(prefix))
        self._send(self._encoder.request(id, [], "watch", [prefix]))
        return watch

    async def aclose(self) -> None:
        if self._closed is None:
            self._finish(closed_error())
            if self._connection is not None:
                self._connection.write(self._encoder.request(self._new_id(), [], "goodbye", []))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
            self._reconnecting = None
        if self._connection is not None:
            self._connection.close()
            if not await happens(self._lost, GOODBYE_SECONDS) and self._connection is not None:
                self._connection.abort()
                await self._lost.wait()

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _encode(self, id: int, pending: PendingRequest) -> bytes:
        try:
            frame = self._encoder.request(id, self._settled, pending.method, pending.args)
        except WireError as error:
            raise UsageError(error.message, hint=error.hint) from None
        if self._settled:
            self._settled = []
        return frame

    def _tell(self, method: str, args: list[Any]) -> None:
        """Send a request whose answer does not matter, and that is not sent again."""
        if self._closed is None and self._connection is not None:
            self._send(self._encoder.request(self._new_id(), [], method, args))

    def _abandon(self, id: int) -> None:
        if self._pending.pop(id, None) is not None:
            self._tell("cancel", [id])

    def _send(self, frame: bytes) -> None:
        """Write a frame in the loop's next turn, together with what else is asked until then."""
        if self._connection is None:
            self._reconnect()  # which sends everything that is pending
            return
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(frame)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if self._connection is not None and outbox:
            self._connection.write(b"".join(outbox))

    # Connecting.

    async def _dial(self, patience: float, refused: float = math.inf) -> None:
        """Try until it works, for `patience` seconds, or until connections were refused for `refused`."""
        # Many ranks that start together must not come back together.
        backoff = Backoff(*_BACKOFF, jitter=_JITTER)
        deadline = self._loop.time() + refused
        try:
            async with asyncio.timeout(patience):
                while True:
                    try:
                        connection = await self._dial_once()
                        break
                    except (AuthenticationError, StoreReplaced):
                        raise
                    except (OSError, RendezvousError, WireError) as error:
                        said = "it accepts connections, but does not answer as a store: "
                        self._cause = said * (self._accepted is not None) + describe(error)
                        self._accepted = None
                        if not isinstance(error, ConnectionRefusedError):
                            deadline = self._loop.time() + refused
                        elif self._loop.time() >= deadline:
                            patience = refused
                            raise TimeoutError from None
                    pause = backoff.next()
                    _log.debug("the store at %s: %s; again in %.2f s", self._where(), self._cause, pause)
                    await asyncio.sleep(pause)
        except TimeoutError:
            raise RendezvousTimeout(
                f"cannot reach the store at {self._where()} ({self._progress()}{self._words()}) "
                f"after {spoken(patience)}",
                hint="See whether its host (rank 0, or the launcher) is running, and is at that address",
            ) from None
        self.address = connection.local_host

    def _words(self) -> str:
        """The store's reason for ending the last connection, for an error."""
        return f"; {says('it', self._away)}" if self._away else ""

    def _progress(self) -> str:
        """The stage that connecting has reached when its time is over."""
        if self._accepted is None:
            return self._cause or "no answer"
        waited = spoken(self._loop.time() - self._accepted)
        accepted = f"the time was over {waited} after it had accepted a connection, before any answer"
        return f"{self._cause}; then {accepted}" if self._cause else accepted

    async def _dial_once(self) -> StoreConnection:
        self._accepted = None
        sock, address = await connect_to_store(self.host, self.port)
        self._accepted = self._loop.time()
        self._dialed = self._place
        if sock.family != getattr(socket, "AF_UNIX", None) and not self._place.found:
            with contextlib.suppress(OSError):  # it has gone again
                self._dialed = self._place.seen_at(*sock.getpeername()[:2])
        handshake = Handshake.client(self._identity, self._secret, os.urandom(NONCE_BYTES), self._meant)
        connection = StoreConnection(
            *(sock, handshake, self._tls, self._ready, self._frames, self._connection_lost)
        )
        opening: asyncio.Future[None] = self._loop.create_future()
        self._opening = (connection, opening)
        connection.local_host = address
        try:
            connection.start()
            await opening
        except BaseException:
            if self._connection is connection:
                self._connection = None
            if opening.done() and not opening.cancelled():
                opening.exception()  # told by what is raised already
            connection.abort()
            raise
        finally:
            self._opening = None
        self._cause, self._accepted = "", None
        return connection

    def _reconnect(self) -> None:
        if (self._reconnecting is None or self._reconnecting.done()) and self._closed is None:
            self._reconnecting = self._loop.create_task(self._reconnect_now())

    async def _reconnect_now(self) -> None:
        if self._away or self._vain > 1:  # it is there, and brings nothing: give it time
            await asyncio.sleep(Backoff(*_BACKOFF, jitter=_JITTER, failed=self._vain).next())
        patience, refused = RECONNECT_SECONDS, REFUSED_SECONDS
        if self._card is not None and self._card.durable:
            # It may take whoever runs it a while to start it again; each call has its own end meanwhile.
            now = self._loop.time()
            refused = math.inf
            patience = max(self.timeout, *(pending.expires - now for pending in self._pending.values()), 0.0)
        try:
            await self._dial(patience, refused)
        except StoreReplaced as error:
            self._finish(error)
        except RendezvousError as error:
            self._given_up = self._closed is None
            self._finish(
                RendezvousError(f"lost the connection to the store: {error.message}", hint=error.hint)
            )

    async def reopen(self) -> None:
        """Connect to the same store again, as a new client, if it was given up because it was out of reach.

        Raises:
            RendezvousTimeout: it still is.
            RendezvousError: another one is there, or it was closed.
        """
        if self._closed is None:
            return
        if not self._given_up:
            raise again(self._closed)
        # The store may have forgotten the old one; nothing of it is pending.
        self._identity = replace(self._identity, card=os.urandom(CLIENT_ID_BYTES))
        self._connections = self._acknowledged = self._vain = 0
        self._away = ""
        await self._dial(REFUSED_SECONDS, 0.0)
        self._closed, self._given_up = None, False

    def _where(self) -> str:
        return join_address(self.host, self.port)

    # What the connection reports.

    def _ready(self, connection: StoreConnection) -> None:
        assert connection.handshake.peer is not None
        if why := connection.why_not(bool(self._secret or self._tls)):
            raise AuthenticationError(f"another process answers as the store at {self._where()}: {why}")
        card = StoreCard.decode(connection.handshake.peer.card)
        self._dialed.check(card.place, f"the store that answers at {self._where()}")
        self._recognize(card)
        self._connection = connection
        self._connections += 1
        self._lost.clear()
        if self._connections > 1:
            self._send_again(connection)
        if self._opening is not None and self._opening[0] is connection:
            settle(self._opening[1], None)

    def _recognize(self, card: StoreCard) -> None:
        """Refuse a store that is not the one that was there before, or was started from an older copy."""
        before, self._card = self._card, card
        self.instance, self.generation = card.instance, card.generation
        if before is None:
            return
        if card.instance != before.instance:
            self._card = before
            raise StoreReplaced(
                f"the store at {self._where()} is another one than before",
                hint="It was started again without its data, or another server took its place: end that one, "
                "start the store on the data that it had, or start the job again",
            )
        if card.generation < before.generation:
            self._card = before
            raise StoreReplaced(
                f"the store at {self._where()} is an older one than before (start {card.generation} on its "
                f"data, it was at {before.generation})",
                hint="An old copy was started; end it, and start the store on the data that it had last",
            )

    def _send_again(self, connection: StoreConnection) -> None:
        """Name what is pending, so that the server forgets the rest; then ask for it again."""
        self._outbox.clear()
        self._settled.clear()
        self._resume_id = self._new_id()
        resume = [list(self._pending), self._acknowledged]
        frames = [self._encoder.request(self._resume_id, [], "resume", resume)]
        now = self._loop.time()
        for id, pending in self._pending.items():
            if pending.deadline is not None:
                pending.args[-1] = max(0.0, pending.deadline - now)
            frames.append(self._encode(id, pending))
        for id, (watch, prefix) in self._watches.items():
            watch.restart()
            frames.append(self._encoder.request(id, [], "watch", [prefix]))
        connection.write(b"".join(frames))

    def _frames(self, connection: StoreConnection, payloads: list[bytes]) -> None:
        for payload in payloads:
            id, status, value = split_response(payload)
            if status == _REPLY:
                self._vain = 0
                if id == self._resume_id:
                    self._away = ""
                self._answered(id, value, None)
            elif status == _PUSH:
                if id in self._watches:
                    self._watches[id][0].feed(check_news(value))
            elif status == _CLOSING:
                self._finish(RendezvousError(f"the store at {self._where()} is gone: {words_of(value)}"))
            elif status == _AWAY:
                self._away = words_of(value)
            else:
                error = error_of(*check_failure(value))
                if id == self._resume_id:
                    self._finish(error if isinstance(error, RendezvousError) else again(error))
                elif id in self._watches:
                    self._watches.pop(id)[0].end(error)
                else:
                    self._answered(id, None, error)

    def _answered(self, id: int, value: Any, error: AiodistError | None) -> None:
        if (pending := self._pending.get(id)) is not None:
            if error is None:
                check_answer(pending.method, pending.args, value)
            del self._pending[id]
            if METHODS[pending.method].changes:
                self._settled.append(id)
                if error is None and id > self._acknowledged:
                    self._acknowledged = id
            pending.settle(value, error)

    def _connection_lost(self, connection: StoreConnection, error: Exception | None) -> None:
        if self._opening is not None and self._opening[0] is connection:
            settle(self._opening[1], None, error or RendezvousError("the connection was closed"))
        if self._connection is not connection:
            return
        self._connection = None
        self._lost.set()
        self._vain += 1
        _log.debug(
            "the connection with the store at %s has ended (%s); %d calls and %d watches go on",
            *(self._where(), error or "closed", len(self._pending), len(self._watches)),
        )
        if isinstance(error, Tampered) and self._vain <= _ALTERED:
            _log.warning("the connection with the store at %s has ended: %s", self._where(), error)
        elif isinstance(error, WireError):
            lost = f"lost the connection to the store at {self._where()}: {error.message}"
            self._finish(RendezvousError(lost, hint=error.hint))
        if self._closed is None and (self._pending or self._watches):
            self._reconnect()

    def _finish(self, error: RendezvousError) -> None:
        """Tell everything that waits that the store is over."""
        self._closed = self._closed or error
        pending, self._pending = self._pending, {}
        watches, self._watches = self._watches, {}
        self._outbox.clear()
        for call in pending.values():
            call.settle(None, again(error))
        for watch, _ in watches.values():
            watch.end(again(error))
