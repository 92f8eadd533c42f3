"""The store's server: stores behind one address, each for the clients of its job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from functools import partial
from typing import Self

from aiodist.base.environment import Tls
from aiodist.base.errors import AiodistError, Tampered, WireError
from aiodist.base.sanitize import one_line
from aiodist.net.admission import places
from aiodist.net.listener import Listener
from aiodist.net.local_socket import listen_local
from aiodist.net.refusals import Refusals
from aiodist.net.sockets import describe, join_address, listen
from aiodist.net.tasks import Tasks
from aiodist.net.users import send_away, why_not
from aiodist.net.wire.handshake import NONCE_BYTES, Handshake, Identity, Purpose
from aiodist.net.wire.messages import Status, encode_response, pack
from aiodist.net.within import happens
from aiodist.rendezvous.connection import StoreConnection
from aiodist.rendezvous.durable import DataFolder, Disk
from aiodist.rendezvous.job_store import JobStore
from aiodist.rendezvous.jobs import JobSecrets, OneJob
from aiodist.rendezvous.machine import DEFAULT_LIMIT, StoreMachine
from aiodist.rendezvous.meeting_place import NOWHERE
from aiodist.rendezvous.quota import clients_of_each, descriptors
from aiodist.rendezvous.store_card import StoreCard, instance_of

CLIENT_ID_BYTES = 16
_log = logging.getLogger("aiodist.store")


class StoreServer:
    """A server of one store, for one job, on one address; `await StoreServer.start(…)` makes one.

    `StoreServer.start_many(…)` serves many jobs, each with a store and a secret of its own.

    Attributes:
        host: the numeric address that it listens on.
        port: the port that it listens on.
        instance: 16 bytes that name this very store; clients get them, authenticated (b'' with many jobs).
        failure: why it stopped by itself; None while it has not.
        place: where its host was told to meet the clients, which compare. May be set as soon as it is there.
    """

    host: str
    port: int

    def __init__(
        self, secrets: JobSecrets | OneJob, identity: Identity | None, tls: Tls | None, limit: int
    ) -> None:
        self.failure: Exception | None = None
        self.place = NOWHERE
        self._secrets = secrets
        self._identity = identity  # of the one job that it serves
        self._tls = tls
        self._vouched = tls is not None or identity is None or bool(secrets.secret_of(identity.job))
        self._data: DataFolder | None = None
        self._limit = limit
        self._key = os.urandom(32)
        self.instance = b""
        self._refusals = Refusals(_log)
        self._most_unauthenticated = places()
        self._descriptors = descriptors()
        self._jobs: set[str] = set()  # that there were when somebody last looked
        self._loop = asyncio.get_running_loop()
        self._server: Listener | None = None
        self._unauthenticated: dict[StoreConnection, None] = {}  # in order of arrival
        self._stores: dict[str, JobStore] = {}
        self._tasks = Tasks()
        self._empty = asyncio.Event()
        self._failed = asyncio.Event()
        self._count()

    @classmethod
    async def start(
        cls,
        host: str,
        port: int,
        job: str,
        secret: bytes,
        *,
        rank: int = -1,
        tls: Tls | None = None,
        data: str | os.PathLike[str] | None = None,
        limit: int = DEFAULT_LIMIT,
        disk: Disk | None = None,
    ) -> StoreServer:
        """Listen on exactly `host` and `port` (0 picks a free one), and nowhere else.

        Args:
            job: the job's id; clients of another are refused.
            secret: what clients must know; with b"" whoever reaches the address gets in.
            rank: of the process that hosts the store, to be named in messages; -1 for none.
            tls: for clients that come over TCP; None: they come without.
            data: a folder to keep the store in: what was confirmed is there when a server is started on it
                again. None: it lives in memory.
            limit: bytes that the store may hold.
            disk: for tests: what writes the files.

        Raises:
            RendezvousError: the port is in use (names its owner), or the address is not of this host; or the
                folder's files are damaged.
            UsageError: the folder cannot be used, or another server does.
        """
        self = cls(OneJob(job, secret), Identity(job, Purpose.store, rank), tls, limit)
        return await self._serve(host, port, data, disk)

    @classmethod
    async def start_many(
        cls,
        host: str,
        port: int,
        secrets: JobSecrets,
        *,
        tls: Tls | None = None,
        data: str | os.PathLike[str] | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> StoreServer:
        """Serve many jobs. Whoever names no job, or has the wrong secret, learns nothing about any.

        Args:
            secrets: the jobs and their secrets; asked again for each client.
            limit: bytes that each job's store may hold.
            more: as for `start`.

        Raises:
            Error: as in `start`.
        """
        return await cls(secrets, None, tls, limit)._serve(host, port, data)

    async def _serve(
        self, host: str, port: int, data: str | os.PathLike[str] | None, disk: Disk | None = None
    ) -> Self:
        sock = await listen(host, port)
        try:
            if data is not None:
                self._data = await _opened(data, disk)
                self._key = self._data.key
            if self._identity is not None:
                self.instance = instance_of(self._key, self._identity.job)
            if self._identity is not None or self._data is not None:
                for job in self._secrets.names():
                    await self._recover(self._new_store(job))
        except BaseException:
            sock.close()
            await self._close_stores(Status.away, "")
            if self._data is not None:
                self._data.close()
            raise
        self.host, self.port = sock.getsockname()[:2]
        named = "" if host == self.host else f", which is what '{one_line(host)}' means here"
        _log.info("a store listens on %s%s", join_address(self.host, self.port), named)
        local = listen_local(self.host, self.port)
        socks = [sock] if local is None else [sock, local]
        self._server = Listener(self._loop, socks, self._accept, self._refusals.turned_away, _log)
        return self

    @property
    def clients(self) -> int:
        """Clients that are connected now."""
        return sum(len(store.clients) for store in self._stores.values())

    @property
    def generation(self) -> int:
        """The number of times a server was started on this folder; 0 where the store lives in memory."""
        return 0 if self._data is None else self._data.generation

    @property
    def store(self) -> JobStore:
        """The one that it serves, where it serves one job."""
        [store] = self._stores.values()
        return store

    async def wait_failed(self) -> None:
        """Return when the server has stopped by itself, because it could not write its files."""
        await self._failed.wait()

    async def aclose(self, linger: float = 0.0) -> None:
        """Stop serving. Clients that still wait are told that the store is closed, or, where it is durable,
        that it is away: they wait for it to come back.

        Args:
            linger: wait up to so many seconds for all clients to leave by themselves.
        """
        server = self._server
        if server is not None and linger > 0 and not await happens(self._empty, linger):
            _log.info("store closed with %d clients left after %g s", self.clients, linger)
        if self._server is not None and self._server is server:  # else closed by another task meanwhile
            status = Status.closing if self._data is None else Status.away
            await self._stop(status, "its host closed it")
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _stop(self, status: Status, why: str) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in list(self._unauthenticated):
            connection.abort()
        self._refusals.log_omitted()
        await self._close_stores(status, why)
        if not self.clients:
            await happens(self._empty, 1.0)
        if self._data is not None:
            self._data.close()

    async def _close_stores(self, status: Status, why: str) -> None:
        await asyncio.gather(*(store.aclose(status, why) for store in self._stores.values()))

    async def __aenter__(self) -> StoreServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Stores.

    def _choose(self, job: str) -> tuple[Identity, bytes]:
        """Choose, for the handshake, who to be for clients of a job, and what they must know."""
        # Where that cannot be seen now it raises: the connection ends without a verdict, and they ask again.
        secret = self._secrets.secret_of(job)
        if secret is None:
            secret = os.urandom(32)  # nobody knows it, so this looks as if theirs were wrong
        return self._presented(Identity(job, Purpose.store)), secret

    def _presented(self, identity: Identity) -> Identity:
        instance = instance_of(self._key, identity.job)
        card = StoreCard(instance, self.generation, self._data is not None, self.place)
        return Identity(identity.job, Purpose.store, identity.rank, card.encode())

    def _new_store(self, job: str) -> JobStore:
        store = JobStore(job, StoreMachine(self._limit), self._count, self._save_failed)
        self._stores[job] = store
        return store

    async def _recover(self, store: JobStore) -> None:
        """Bring a store's data back, and have it begin."""
        committer = None if self._data is None else await self._data.log(store.name, store.machine)
        store.begin(committer)

    async def _open(self, store: JobStore) -> None:
        """Have the store of a job begin whose first client has come."""
        try:
            self._retire()
            await self._recover(store)
        except (AiodistError, OSError) as error:
            job = store.name
            _log.error("the store of job '%s' cannot be opened: %s", one_line(job), one_line(str(error)))
            del self._stores[job]
            for connection in list(store.clients.values()):
                self._turn_back(connection, "the store of this job cannot be opened now")

    def _retire(self) -> None:
        """Let go of stores in memory whose jobs are over: no secret, no client. Files stay."""
        for job, store in list(self._stores.items()):
            unused = store.has_begun and not store.clients and self._identity is None
            if unused and self._secrets.secret_of(job) is None:
                del self._stores[job]
                self._tasks.start(store.aclose(Status.closing, ""))

    def _save_failed(self, error: Exception) -> None:
        """Stop the server: nothing that was asked since the last commit may be confirmed."""
        if self.failure is not None:
            return
        self.failure = error
        _log.critical(
            "the store stops: its files cannot be written (%s). Nothing is lost that was confirmed; "
            "see to the disk, then start it again",
            describe(error),
        )
        self._tasks.start(self._stop_failed(f"its files cannot be written ({describe(error)})"))

    async def _stop_failed(self, why: str) -> None:
        await self._stop(Status.away, why)
        self._failed.set()

    # Connections.

    def _accept(self, sock: socket.socket, deadline: float) -> None:
        if why := why_not(sock, self._vouched):
            self._refusals.turned_away(sock, why)
            send_away(sock, why)
            return
        if len(self._unauthenticated) >= self._most_unauthenticated:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            self._refusals.say(oldest.peer_address, f"more than {self._most_unauthenticated} shake hands")
            oldest.abort()
        connection = StoreConnection(
            sock, self._handshake(), self._tls, self._ready, self._frames, self._lost
        )
        self._unauthenticated[connection] = None
        self._count()
        connection.start(deadline)

    def _handshake(self) -> Handshake:
        nonce = os.urandom(NONCE_BYTES)
        if self._identity is None:
            return Handshake.server(Identity("", Purpose.store), b"", nonce, self._choose)
        secret = self._secrets.secret_of(self._identity.job)
        return Handshake.server(self._presented(self._identity), secret or b"", nonce)

    def _ready(self, connection: StoreConnection) -> None:
        """Hand a client that has proven itself to its store."""
        assert connection.handshake.peer is not None
        job, client = connection.handshake.peer.job, connection.handshake.peer.card
        if len(client) != CLIENT_ID_BYTES:
            raise WireError(f"a client id of {len(client)} bytes")
        connection.client = client
        self._unauthenticated.pop(connection, None)
        if why := self._too_many(job, client):
            self._turn_back(connection, why)
            return
        store = self._stores.get(job)
        if store is None:
            store = self._new_store(job)
            self._tasks.start(self._open(store))
        connection.hand_over(store.frames, partial(self._client_lost, store))
        store.connected(connection)

    def _too_many(self, job: str, client: bytes) -> str:
        """Why a client has to wait until others of its job have left; '' where there is room for it.

        A job that has a server to itself locks out nobody else.
        """
        if self._identity is not None:
            return ""
        store = self._stores.get(job)
        if store is not None and client in store.clients:
            return ""  # it takes the place that it has
        here = 0 if store is None else len(store.clients)
        with contextlib.suppress(AiodistError):  # it cannot be seen now: as many as before
            self._jobs = set(self._secrets.names())
        jobs = len(self._jobs | {name for name, store in self._stores.items() if store.clients})
        most = clients_of_each(jobs, self._most_unauthenticated, self._descriptors)
        if here < most:
            return ""
        return (
            f"{most} clients of this job are connected, and no job may have more: the server has "
            f"{self._descriptors} descriptors (ulimit -n) for {jobs} jobs"
        )

    def _turn_back(self, connection: StoreConnection, why: str) -> None:
        """End the connection of a client that has proved itself, and may come back."""
        self._refusals.say(connection.peer_address, why)
        connection.write(encode_response(0, Status.away, pack(why)))
        connection.close()
        self._count()

    def _frames(self, connection: StoreConnection, payloads: list[bytes]) -> None:
        """Ignore what comes: no store has this connection."""

    def _lost(self, connection: StoreConnection, error: Exception | None) -> None:
        """Forget a connection that ended before a store had it."""
        if connection in self._unauthenticated:
            del self._unauthenticated[connection]
            if isinstance(error, AiodistError):
                self._refusals.say(connection.peer_address, str(error))
        self._count()

    def _client_lost(self, store: JobStore, connection: StoreConnection, error: Exception | None) -> None:
        """Tell the store that a client's connection ended."""
        if isinstance(error, Tampered):
            self._refusals.say(connection.peer_address, str(error))
        store.lost(connection, error)

    def _count(self) -> None:
        if self._unauthenticated or self.clients:
            self._empty.clear()
        else:
            self._empty.set()


async def _opened(path: str | os.PathLike[str], disk: Disk | None) -> DataFolder:
    """A folder that is opened in a thread; closed again where the caller is cancelled meanwhile."""
    opening = asyncio.ensure_future(asyncio.to_thread(DataFolder.open, path, disk))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if opening.exception() is None:
            opening.result().close()
        raise
