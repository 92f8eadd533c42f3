"""The store's server: a `StoreMachine` behind asyncio connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import Any

from aiodist.errors import AiodistError, WireError
from aiodist.rendezvous.connection import Connection
from aiodist.rendezvous.events import (
    Connected,
    Disconnected,
    Event,
    Failure,
    Push,
    Reply,
    Request,
    Tick,
    Wake,
)
from aiodist.rendezvous.listener import Listener
from aiodist.rendezvous.machine import StoreMachine
from aiodist.rendezvous.near import listen_near
from aiodist.rendezvous.sockets import listen
from aiodist.wire.handshake import NONCE_BYTES, Handshake, Identity, Purpose
from aiodist.wire.messages import Encoder, Status, encode_response, pack, split_request

CLIENT_ID_BYTES = 16
_CLOSE_SECONDS = 1.0  # for the last words to leave
_log = logging.getLogger("aiodist.store")


class StoreServer:
    """Serves one store to the processes of one job, on one address; `await StoreServer.start(…)` makes one.

    Attributes:
        host: the numeric address that it listens on.
        port: the port that it listens on.
        instance: 16 random bytes of this very store; clients get them, authenticated, as its card.
    """

    host: str
    port: int

    def __init__(self, identity: Identity, secret: bytes) -> None:
        self.instance = identity.card
        self._identity = identity
        self._secret = secret
        self._machine = StoreMachine()
        self._loop = asyncio.get_running_loop()
        self._server: Listener | None = None
        self._strangers: set[Connection] = set()
        self._clients: dict[bytes, Connection] = {}
        self._outbox: dict[Connection, list[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._encoder = Encoder()
        self._packed: tuple[Any, bytes] = (None, pack(None))
        self._alone = asyncio.Event()
        self._empty = asyncio.Event()
        self._count()

    @classmethod
    async def start(cls, host: str, port: int, job: str, secret: bytes, *, rank: int = -1) -> StoreServer:
        """Listen on exactly `host` and `port` (0 picks a free one), and nowhere else.

        Args:
            job: the job's id; clients of another are refused.
            secret: what clients must know; with b"" whoever reaches the address gets in.
            rank: of the process that hosts the store, to be named in messages; -1 for none.

        Raises:
            RendezvousError: the port is in use (names its owner), or the address is not of this host.
        """
        self = cls(Identity(job, Purpose.store, rank, os.urandom(CLIENT_ID_BYTES)), secret)
        sock = await listen(host, port)
        self.host, self.port = sock.getsockname()[:2]
        near = listen_near(self.host, self.port)
        self._server = Listener([sock] if near is None else [sock, near], self._accept)
        return self

    @property
    def clients(self) -> int:
        """Clients that are connected now."""
        return len(self._clients)

    async def aclose(self, linger: float = 0.0) -> None:
        """Stop serving. Clients that still wait are told that the store is closed.

        Args:
            linger: wait up to so many seconds for all clients to leave by themselves.
        """
        server = self._server
        if server is None:
            return
        if linger > 0:
            try:
                async with asyncio.timeout(linger):
                    await self._empty.wait()
            except TimeoutError:
                _log.info("store closed with %d clients left after %g s", len(self._clients), linger)
        if self._server is not server:  # closed by another task meanwhile
            return
        self._server = None
        server.close()
        goodbye = encode_response(0, Status.closing, pack("its host closed it"))
        for connection in self._clients.values():
            connection.write(goodbye)
            connection.close()
        for connection in self._strangers:
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
        for abort in (False, True):
            if abort:  # somebody does not read
                for connection in self._clients.values():
                    connection.abort()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._empty.wait()

    async def __aenter__(self) -> StoreServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Connections.

    def _accept(self, sock: socket.socket) -> None:
        handshake = Handshake.server(self._identity, self._secret, os.urandom(NONCE_BYTES))
        connection = Connection(sock, handshake, self._ready, self._frames, self._lost)
        self._strangers.add(connection)
        self._count()
        connection.start()

    def _ready(self, connection: Connection) -> None:
        """A client has proven itself."""
        assert connection.handshake.peer is not None
        client = connection.handshake.peer.card
        if len(client) != CLIENT_ID_BYTES:
            raise WireError(f"a client id of {len(client)} bytes")
        connection.client = client
        connection.serves = True
        self._strangers.discard(connection)
        if (old := self._clients.get(client)) is not None:
            # It came back before this side noticed that it was gone.
            self._clients.pop(client)
            old.abort()
            self._feed(Disconnected(client))
        self._clients[client] = connection
        self._count()
        self._feed(Connected(client))

    def _frames(self, connection: Connection, payloads: list[bytes]) -> None:
        """Requests arrived."""
        client = connection.client
        if self._clients.get(client) is not connection:
            return
        for payload in payloads:
            id, settled, method, args = split_request(payload)
            self._handle(Request(client, id, method, args, settled))
        self._flush()

    def _lost(self, connection: Connection, error: Exception | None) -> None:
        """A connection ended."""
        if connection in self._strangers:
            self._strangers.discard(connection)
            self._count()
            if isinstance(error, AiodistError):
                _log.warning("refused %s: %s", connection.peer_address, error)
            return
        client = connection.client
        if self._clients.get(client) is connection:
            del self._clients[client]
            self._count()
            self._feed(Disconnected(client))

    def _count(self) -> None:
        if self._clients or self._strangers:
            self._empty.clear()
        else:
            self._empty.set()

    # The machine.

    def _feed(self, event: Event) -> None:
        self._handle(event)
        self._flush()

    def _handle(self, event: Event) -> None:
        effects = self._machine.handle(event, self._loop.time())
        for effect in effects:
            if isinstance(effect, Wake):
                if self._timer is not None:
                    self._timer.cancel()
                if self._server is not None:
                    self._timer = self._loop.call_at(effect.at, self._feed, Tick())
            elif (connection := self._clients.get(effect.client)) is not None:
                answer = self._encode(effect, len(effects) > 1)
                if connection in self._outbox:
                    self._outbox[connection].append(answer)
                else:
                    self._outbox[connection] = [answer]

    def _flush(self) -> None:
        """One write for each client, however many answers it gets."""
        outbox, self._outbox = self._outbox, {}
        for connection, answers in outbox.items():
            connection.write(answers[0] if len(answers) == 1 else b"".join(answers))

    def _encode(self, effect: Reply | Failure | Push, shared: bool) -> bytes:
        id = effect.id
        try:
            if isinstance(effect, Reply):
                if not shared:
                    return self._encoder.reply(id, effect.value)
                if effect.value is not self._packed[0]:  # a gather's answer goes to many
                    self._packed = (effect.value, pack(effect.value))
                return encode_response(id, Status.reply, self._packed[1])
            if isinstance(effect, Push):
                return encode_response(id, Status.push, pack(effect.value))
            failure: list[Any] = [effect.kind, effect.message, effect.hint, effect.missing]
        except WireError as error:
            failure = ["usage", f"the answer is {error.message}", "Ask for fewer keys at a time", []]
        return encode_response(id, Status.failure, pack(failure))
