"""The client of a store server: requests by id over one connection, which it replaces when it breaks."""

from __future__ import annotations

import asyncio
import math
import os
import random
from dataclasses import dataclass
from typing import Any

from aiodist.errors import AuthenticationError, RendezvousError, RendezvousTimeout, UsageError, WireError
from aiodist.rendezvous.connection import Connection
from aiodist.rendezvous.machine_store import MachineStore, error_of
from aiodist.rendezvous.server import CLIENT_ID_BYTES
from aiodist.rendezvous.sockets import connect, describe, join_address
from aiodist.rendezvous.store import Watch, check_key, closed_error
from aiodist.timeouts import Timeout
from aiodist.wire.handshake import NONCE_BYTES, Handshake, Identity, Purpose
from aiodist.wire.messages import Request, Response, Status, decode_response, encode_request

RECONNECT_SECONDS = 10.0  # less than the server keeps a session (`SESSION_GRACE`)
REFUSED_SECONDS = 2.0  # a store listens as long as it lives: who is refused for so long has lost it
GOODBYE_SECONDS = 1.0
_GRACE = 1.0  # the server keeps the deadlines; this much later the client stops believing in it
_BACKOFF = (0.01, 0.5)  # seconds between attempts: the first, the longest


@dataclass(slots=True)
class _Pending:
    method: str
    args: list[Any]
    deadline: float | None  # loop time, where the machine keeps a timeout for it
    answer: asyncio.Future[Any]


class TcpStore(MachineStore):
    """A store that is served elsewhere. Make it with `await TcpStore.connect(…)`.

    A broken connection is replaced, and what was pending is sent again; the server sees to it that it
    happens once. When that fails for `RECONNECT_SECONDS`, everything pending fails with `RendezvousError`.

    Attributes:
        address: this host's address on the connection to the store: one that peers can reach too.
        instance: 16 bytes that name the very store that is served (see `StoreServer`).
    """

    def __init__(self, host: str, port: int, identity: Identity, secret: bytes, timeout: Timeout) -> None:
        super().__init__(timeout)
        self.host = host
        self.port = port
        self.address = ""
        self.instance = b""
        self._identity = identity
        self._secret = secret
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(os.urandom(8))
        self._connection: Connection | None = None
        self._connections = 0  # so far
        self._opening: tuple[Connection, asyncio.Future[None]] | None = None
        self._stage = ""
        self._resume_id = 0
        self._reconnecting: asyncio.Task[None] | None = None
        self._lost: asyncio.Event = asyncio.Event()
        self._closed: RendezvousError | None = None
        self._last_id = 0
        self._pending: dict[int, _Pending] = {}
        self._watches: dict[int, tuple[Watch, str]] = {}
        self._settled: list[int] = []
        self._outbox: list[bytes] = []

    @classmethod
    async def connect(
        cls, host: str, port: int, job: str, secret: bytes, timeout: Timeout = None, *, rank: int = -1
    ) -> TcpStore:
        """Connect to a `StoreServer`, trying again until `timeout`: it may not have started yet.

        Args:
            timeout: seconds for connecting, and the default of every call afterwards.
            rank: of this process, to be named in messages; -1 where it has none yet.

        Raises:
            RendezvousTimeout: nobody answered there in time; says what the network said.
            AuthenticationError: the server is of another job, version, byte order or secret.
        """
        identity = Identity(job, Purpose.store, rank, os.urandom(CLIENT_ID_BYTES))
        self = cls(host, port, identity, secret, timeout)
        await self._dial(self.timeout)
        return self

    # Calls.

    async def _call(self, method: str, args: list[Any], timeout: float | None = None) -> Any:
        self._check_use()
        now = self._loop.time()
        deadline = None if timeout is None else now + timeout
        id = self._new_id()
        pending = _Pending(method, args, deadline, self._loop.create_future())
        frame = self._encode(id, pending)  # may refuse the arguments: nothing is pending then
        self._pending[id] = pending
        self._send(frame)
        patience = (self.timeout if timeout is None else timeout) + _GRACE
        try:
            async with asyncio.timeout(patience):
                return await pending.answer
        except TimeoutError:
            if not self._abandon(id):
                return pending.answer.result()  # it came while this loop was busy
            raise RendezvousTimeout(
                f"the store at {self._where()} gave no answer to {method} within {patience - _GRACE:g} s",
                hint="See whether the process that hosts it still runs and can be reached",
            ) from None
        except asyncio.CancelledError:
            if not self._abandon(id) and not pending.answer.cancelled():
                pending.answer.exception()  # it came too late for its reader; asyncio need not complain
            raise

    def watch(self, prefix: str = "") -> Watch:
        self._check_use()
        id = self._new_id()

        def on_close() -> None:
            if self._watches.pop(id, None) is not None:
                self._tell("cancel", [id])

        watch = Watch(on_close)
        self._watches[id] = (watch, check_key(prefix))
        self._send(encode_request(Request(id, [], "watch", [prefix])))
        return watch

    async def aclose(self) -> None:
        if self._closed is None:
            self._finish(closed_error())
            if self._connection is not None:
                self._connection.write(encode_request(Request(self._new_id(), [], "goodbye", [])))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
            self._reconnecting = None
        if self._connection is not None:
            self._connection.close()
            try:
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._lost.wait()
            except TimeoutError:
                if self._connection is not None:
                    self._connection.abort()
                    await self._lost.wait()

    def _check_use(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError("this store belongs to another event loop", hint="Connect once in each loop")
        if self._closed is not None:
            raise _again(self._closed)

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _encode(self, id: int, pending: _Pending) -> bytes:
        args = pending.args
        if pending.deadline is not None:
            args = [*args, max(0.0, pending.deadline - self._loop.time())]
        try:
            frame = encode_request(Request(id, self._settled, pending.method, args))
        except WireError as error:
            raise UsageError(error.message, hint=error.hint) from None
        self._settled = []
        return frame

    def _tell(self, method: str, args: list[Any]) -> None:
        """A request whose answer does not matter, and that is not sent again."""
        if self._closed is None and self._connection is not None:
            self._send(encode_request(Request(self._new_id(), [], method, args)))

    def _abandon(self, id: int) -> bool:
        if self._pending.pop(id, None) is None:
            return False
        self._tell("cancel", [id])
        return True

    def _send(self, frame: bytes) -> None:
        """Written in the loop's next turn, together with what else is asked until then."""
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
        delay = _BACKOFF[0]
        deadline = self._loop.time() + refused
        try:
            async with asyncio.timeout(patience):
                while True:
                    try:
                        connection = await self._dial_once()
                    except AuthenticationError:
                        raise
                    except (OSError, RendezvousError, WireError) as error:
                        cause = self._stage = describe(error)
                        if not isinstance(error, ConnectionRefusedError):
                            deadline = self._loop.time() + refused
                        elif self._loop.time() >= deadline:
                            patience = refused
                            raise TimeoutError from None
                    else:
                        break
                    # Many ranks that start together must not come back together.
                    await asyncio.sleep(delay * self._random.uniform(0.5, 1.0))
                    delay = min(2 * delay, _BACKOFF[1])
                    self._stage = cause
        except TimeoutError:
            raise RendezvousTimeout(
                f"cannot reach the store at {self._where()} ({self._stage}) after {patience:g} s",
                hint="See whether its host (rank 0, or the launcher) is running, and is at that address",
            ) from None
        assert connection.handshake.peer is not None
        self.address = connection.local_host
        self.instance = connection.handshake.peer.card

    async def _dial_once(self) -> Connection:
        self._stage = self._stage or "no answer"
        sock = await connect(self.host, self.port)
        self._stage = "it accepts connections, but does not answer as a store"
        handshake = Handshake.client(self._identity, self._secret, os.urandom(NONCE_BYTES))
        connection = Connection(handshake, self._ready, self._frames, self._connection_lost)
        opening: asyncio.Future[None] = self._loop.create_future()
        self._opening = (connection, opening)
        try:
            await self._loop.create_connection(lambda: connection, sock=sock)
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
        return connection

    def _reconnect(self) -> None:
        if self._reconnecting is None and self._closed is None:
            self._reconnecting = self._loop.create_task(self._reconnect_now())

    async def _reconnect_now(self) -> None:
        try:
            await self._dial(RECONNECT_SECONDS, REFUSED_SECONDS)
        except RendezvousError as error:
            self._finish(RendezvousError(f"lost the store: {error.message}", hint=error.hint))
        finally:
            self._reconnecting = None

    def _where(self) -> str:
        return join_address(self.host, self.port)

    # What the connection reports.

    def _ready(self, connection: Connection) -> None:
        self._connection = connection
        self._connections += 1
        self._lost.clear()
        if self._connections > 1:
            self._send_again(connection)
        if self._opening is not None and self._opening[0] is connection and not self._opening[1].done():
            self._opening[1].set_result(None)

    def _send_again(self, connection: Connection) -> None:
        """Name what is pending, so that the server forgets the rest; then ask for it again."""
        self._outbox.clear()
        self._settled.clear()
        self._resume_id = self._new_id()
        frames = [encode_request(Request(self._resume_id, [], "resume", [list(self._pending)]))]
        frames += [self._encode(id, pending) for id, pending in self._pending.items()]
        for id, (watch, prefix) in self._watches.items():
            watch.restart()
            frames.append(encode_request(Request(id, [], "watch", [prefix])))
        connection.write(b"".join(frames))

    def _frames(self, connection: Connection, payloads: list[bytes]) -> None:
        for payload in payloads:
            self._receive(decode_response(payload))

    def _receive(self, response: Response) -> None:
        id, value = response.id, response.value
        if response.status is Status.closing:
            self._finish(RendezvousError(f"the store at {self._where()} is gone: {value}"))
        elif response.status is Status.push:
            if id in self._watches:
                self._watches[id][0].feed(value)
        elif response.status is Status.failure:
            kind, message, hint, missing = value
            error = error_of(kind, message, hint, missing)
            if id == self._resume_id:
                self._finish(RendezvousError(message, hint=hint))
            elif (pending := self._pending.pop(id, None)) is not None:
                self._settled.append(id)
                if not pending.answer.done():
                    pending.answer.set_exception(error)
        elif (pending := self._pending.pop(id, None)) is not None:
            self._settled.append(id)
            if not pending.answer.done():
                pending.answer.set_result(value)

    def _connection_lost(self, connection: Connection, error: Exception | None) -> None:
        if self._opening is not None and self._opening[0] is connection and not self._opening[1].done():
            self._opening[1].set_exception(error or RendezvousError("the connection was closed"))
        if self._connection is not connection:
            return
        self._connection = None
        self._lost.set()
        if isinstance(error, WireError):
            self._finish(RendezvousError(f"lost the store at {self._where()}: {error.message}"))
        elif self._closed is None and (self._pending or self._watches):
            self._reconnect()

    def _finish(self, error: RendezvousError) -> None:
        """The store is over: everything that waits is told."""
        self._closed = self._closed or error
        pending, self._pending = self._pending, {}
        watches, self._watches = self._watches, {}
        self._outbox.clear()
        for call in pending.values():
            if not call.answer.done():
                call.answer.set_exception(_again(error))
        for watch, _ in watches.values():
            watch.end(_again(error))


def _again(error: RendezvousError) -> RendezvousError:
    """The same error for another reader: one object raised in many tasks would collect all their traces."""
    return RendezvousError(error.message, hint=error.hint)
