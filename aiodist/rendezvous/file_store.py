"""A store found through a file: whoever comes first hosts it and writes down where.

The file holds one JSON object: the address of the server, the 16 bytes that name this very store, and who
hosts it. All decisions are made under an exclusive lock on the file:

- empty: host the store here, write down the address;
- it names a store that answers and is the very one: use it;
- it names one that is provably gone (nobody listens there, or another store does): host it, overwrite;
- it names one at which this process has formed a group already: wait until its host has removed the file.

A host that does not answer at all is not provably gone; the others then wait until their timeout. The host
removes the file before it lingers for the others, so that a new job at the same path never meets the old.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiodist.base.backoff import Backoff
from aiodist.base.environment import Tls, is_loopback
from aiodist.base.environment.files import UntrustedError, open_file, whose
from aiodist.base.environment.user import is_me
from aiodist.base.errors import AuthenticationError, RendezvousTimeout, UsageError, WireError
from aiodist.base.timeouts import Timeout, seconds, spoken
from aiodist.net.forks import Owned
from aiodist.net.sockets import connect, join_address
from aiodist.net.wire.typed import JsonMessage
from aiodist.rendezvous.client import TcpStore
from aiodist.rendezvous.met import met_before
from aiodist.rendezvous.server import StoreServer
from aiodist.rendezvous.store import DEFAULT_TIMEOUT, Store
from aiodist.rendezvous.watch import Watch

LINGER_SECONDS = 5.0
_NOBODY = 65534  # whom root's files belong to on a network file system that does not trust root
_POLL = 0.02  # seconds between attempts to lock the file
PROBE_SECONDS = 1.0  # for a host that the file names to answer, before the lock is given up


class FileStore(Store):
    """A store that a file leads to. Make it with `await FileStore.open(…)`, close it in every process.

    Attributes:
        path: the file.
        client: the connection to the store; every process has one.
        server: the server, in the process that hosts it, else None.
    """

    def __init__(self, path: Path, client: TcpStore, server: StoreServer | None, linger: float) -> None:
        super().__init__(client.timeout)
        self.address, self.instance = client.address, client.instance
        self.path = path
        self.client = client
        self.server = server
        self._linger = linger

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        job: str,
        secret: bytes,
        timeout: Timeout = None,
        *,
        host: str = "127.0.0.1",
        linger: float = LINGER_SECONDS,
        rank: int = -1,
        tls: Tls | None = None,
    ) -> FileStore:
        """Find the store of a file, or host it.

        Args:
            path: a file of this host, or one that all hosts see; its folder must exist.
            timeout: seconds for finding it, and the default of every call afterwards.
            host: the address to listen on, should this process host the store. The default serves this host
                only; where ranks are on several, each needs one that the others reach.
            linger: the host waits up to so many seconds at close until the others have left.
            tls: for connections over TCP; None: they go without.

        Raises:
            UsageError: the file cannot be made, is another user's, or holds something else.
            RendezvousTimeout: the host that the file names does not answer.
            AuthenticationError: its store is of another job, version or secret.
        """
        file = Path(path)
        patience = DEFAULT_TIMEOUT if timeout is None else seconds(timeout)
        waits_for = f"the lock on {file}, which another process holds"
        try:
            async with asyncio.timeout(patience):
                while True:
                    handle = await _locked(file)
                    lock = Owned(handle)
                    try:
                        found = _read(handle, file)
                        server = client = None
                        if found is not None:
                            waits_for = f"an answer from the host of the store ({found})"
                            client = await _reach(found, job, secret, rank, tls)
                        if client is None:
                            server, client = await _host(handle, host, job, secret, patience, rank, tls)
                    finally:
                        lock.close()
                    if isinstance(client, str):
                        waits_for = client
                    else:
                        client.timeout = patience
                        return cls(file, client, server, linger)
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            raise RendezvousTimeout(
                f"no store by the rendezvous file {file} within {spoken(patience)}: waited for {waits_for}",
                hint=f"If that job is gone, remove {file}; else see whether its host can be reached",
            ) from None

    async def _call(self, method: str, args: list[Any], timeout: float | None = None) -> Any:
        return await self.client._call(method, args, timeout)

    def watch(self, prefix: str = "") -> Watch:
        return self.client.watch(prefix)

    async def aclose(self) -> None:
        """Leave; the hosting process removes the file, then waits a while for the others to leave."""
        server, self.server = self.server, None
        if server is not None:
            await _remove(self.path, server.instance.hex())
        await self.client.aclose()
        if server is not None:
            await server.aclose(self._linger)


async def _locked(file: Path) -> int:
    """A descriptor of the file, locked; the file is made if need be."""
    poll = Backoff(_POLL, jitter=0.5)
    while True:
        try:
            handle = open_file(file, os.O_RDWR | os.O_CREAT)
        except UntrustedError as error:
            raise _unsafe(file, str(error.strerror)) from None
        except OSError as error:
            raise UsageError(
                f"the rendezvous file {file} cannot be opened ({error.strerror})",
                hint="Name a file in a folder that exists and that every rank can write to",
            ) from None
        try:
            _check_own(os.fstat(handle), file)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            # Polled, because a blocking lock would need a thread that cannot be stopped.
            await asyncio.sleep(poll.next())
            continue
        except BaseException:
            os.close(handle)
            raise
        # The one that was locked may have been removed meanwhile; then it is no longer the file.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(file)):
                return handle
        os.close(handle)


def _check_own(facts: os.stat_result, file: Path) -> None:
    """Refuse a file that another user may have put there; in it stands whom this process connects to."""
    if not stat.S_ISREG(facts.st_mode):
        raise _unsafe(file, "it is not a regular file")
    if facts.st_nlink > 1:  # 0: removed since
        raise _unsafe(file, "it has another name, too (a hard link)")
    if not is_me(facts.st_uid) and not _is_squashed(facts.st_uid, file):
        raise _unsafe(file, whose(facts.st_uid))


def _is_squashed(user: int, file: Path) -> bool:
    """Whether a user is nobody, to whom what root makes beside a file belongs, too: on a network file system
    that does not trust root."""
    if os.geteuid() != 0 or user != _NOBODY:
        return False
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=file.resolve().parent) as made:
        return os.fstat(made.fileno()).st_uid == user
    return False


def _unsafe(file: Path, why: str) -> UsageError:
    return UsageError(
        f"the rendezvous file {file} is not safe ({why})",
        hint="Name a file that does not exist yet, best in a folder to which nobody else can write",
    )


@dataclass(frozen=True)
class _Found(JsonMessage):
    """The content of the file: where the store is, its name, and which process of which host hosts it."""

    WHAT = "the rendezvous file"

    host: str
    port: int
    store: str
    pid: int
    on: str

    def __str__(self) -> str:
        return f"{join_address(self.host, self.port)}, pid {self.pid} on {self.on}"


def _read(handle: int, file: Path) -> _Found | None:
    content = os.pread(handle, 4096, 0)
    try:
        return _Found.from_json(content) if content else None
    except WireError:
        raise UsageError(
            f"the rendezvous file {file} holds something else",
            hint="Name a new file; its content would be lost",
        ) from None


async def _host(
    handle: int, host: str, job: str, secret: bytes, patience: float, rank: int, tls: Tls | None
) -> tuple[StoreServer, TcpStore]:
    """Host the store here, and say so in the file."""
    server = await StoreServer.start(host, 0, job, secret, rank=rank, tls=tls)
    client = None
    try:
        client = await TcpStore.connect(
            *(server.host, server.port, job, secret, patience), rank=rank, tls=tls
        )
        found = _Found(server.host, server.port, server.instance.hex(), os.getpid(), socket.gethostname())
        os.ftruncate(handle, 0)
        os.pwrite(handle, found.to_json(), 0)
    except BaseException:
        if client is not None:
            await client.aclose()
        await server.aclose()
        raise
    return server, client


async def _reach(found: _Found, job: str, secret: bytes, rank: int, tls: Tls | None) -> TcpStore | str | None:
    """A client of the store that the file names; None where that is provably gone; else what to wait for."""
    here = found.on == socket.gethostname()
    if is_loopback(found.host) and not here:
        raise UsageError(
            f"the store of this rendezvous file serves its own host only ({found})",
            hint="Set AIODIST_HOST on every host to an address that the others reach",
        )
    dead = here and not _exists(found.pid)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            (await connect(found.host, found.port)).close()
        client = await TcpStore.connect(
            *(found.host, found.port, job, secret, PROBE_SECONDS), rank=rank, tls=tls
        )
    except ConnectionRefusedError:
        return None
    except AuthenticationError:
        if dead:  # somebody else has its port now
            return None
        raise
    except (OSError, RendezvousTimeout):
        return None if dead else f"an answer from the host of the store ({found})"
    meant = client.instance.hex() == found.store
    if meant and not met_before(client.instance):
        return client
    await client.aclose()
    if not meant:  # a later store, on the port of the one that is meant
        return None
    return f"the end of the group before, which met at the store of {found}"


def _exists(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


async def _remove(file: Path, store: str) -> None:
    """Remove the file if it still names this store."""
    with contextlib.suppress(UsageError, OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            handle = await _locked(file)
        try:
            found = _read(handle, file)
            if found is None or found.store == store:
                os.unlink(file)
        finally:
            os.close(handle)
