"""From an `init_method` URL to a meeting: where the store is, and who hosts it.

    env://                 what the launcher set: AIODIST_STORE, or MASTER_ADDR and MASTER_PORT
    tcp://host:port        rank 0 hosts the store there
    file:///path           whoever comes first hosts it and writes its address into the file
    etcd://host:port,…     the store is in etcd, which nobody of the job hosts; etcds:// with TLS

`?rank=…&world_size=…` may follow. Libraries add schemes with `register_rendezvous_handler`.

Rules:
- The server listens on exactly one address (and for this host beside it, see `near`); without a secret
  it is one of the loopback, unless AIODIST_ALLOW_INSECURE=1 says otherwise.
- Whoever hosts the store lingers at close, bounded, until the others have left.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from aiodist.environment import (
    Placement,
    Tls,
    Tuning,
    job_id,
    placement,
    split_address,
    store_address,
    store_url,
    tls,
    tuning,
)
from aiodist.errors import RendezvousError, UsageError
from aiodist.net.sockets import describe, interface_address, is_loopback, resolve
from aiodist.rendezvous.client import TcpStore
from aiodist.rendezvous.file_store import LINGER_SECONDS, FileStore
from aiodist.rendezvous.hash_store import HashStore
from aiodist.rendezvous.server import StoreServer
from aiodist.rendezvous.store import Store
from aiodist.timeouts import Timeout, seconds

_log = logging.getLogger("aiodist.rendezvous")
_EVERYWHERE = ("0.0.0.0", "::")


@dataclass
class Meeting:
    """A store, and this process's place among those that meet there.

    Attributes:
        store: where they meet.
        rank: global rank.
        world_size: processes that meet.
        server: the store's server, if this process hosts it.
        address: this host's address that peers are told.
        owns_store: `aclose` closes the store too; False for a store that the user passed.
    """

    store: Store
    rank: int
    world_size: int
    server: StoreServer | None = None
    address: str = "127.0.0.1"
    owns_store: bool = True

    async def aclose(self, linger: float = LINGER_SECONDS) -> None:
        """Leave. The hosting process waits up to `linger` seconds until the others have left."""
        server, self.server = self.server, None
        if self.owns_store:
            await self.store.aclose()
        if server is not None:
            await server.aclose(linger)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@dataclass(frozen=True)
class Invitation:
    """What a handler gets.

    Attributes:
        url: the whole `init_method`.
        rank: as the caller or the URL gave it, -1 for neither.
        world_size: likewise.
        timeout: seconds for meeting, and the store's default.
        environ: the environment variables.
        secret: what the processes of the job know; b'' for nothing.
    """

    url: str
    rank: int
    world_size: int
    timeout: float
    environ: Mapping[str, str]
    secret: bytes

    @property
    def parts(self) -> SplitResult:
        """The URL, split."""
        return urlsplit(self.url)

    @property
    def job(self) -> str:
        """The job's id."""
        return job_id(self.environ)

    @property
    def tuning(self) -> Tuning:
        """The tuning variables, checked."""
        return tuning(self.environ)

    @property
    def tls(self) -> Tls | None:
        """For TCP connections; None: they go without."""
        return tls(self.environ)

    def placement(self) -> Placement:
        """This process's place: from the call or the URL, else from the environment."""
        return placement(self.environ, self.rank, self.world_size)


Handler = Callable[[Invitation], Awaitable[Meeting]]
_handlers: dict[str, Handler] = {}


def register_rendezvous_handler(scheme: str, handler: Handler) -> None:
    """Teach `init_method` a scheme.

    Args:
        scheme: what stands before '://'.
        handler: awaited with an `Invitation`; returns a `Meeting`, whose parts it has opened.

    Raises:
        UsageError: the scheme has a handler, or is none.
    """
    if not scheme or not scheme.replace("+", "").replace("-", "").isalnum() or scheme != scheme.lower():
        raise UsageError(f"'{scheme}' is not a URL scheme", hint="Use lower-case letters, digits, + and -")
    if scheme in _handlers:
        raise UsageError(f"the scheme '{scheme}' has a rendezvous handler already")
    _handlers[scheme] = handler


async def rendezvous(
    url: str,
    rank: int = -1,
    world_size: int = -1,
    timeout: Timeout = None,
    environ: Mapping[str, str] | None = None,
    secret: bytes = b"",
) -> Meeting:
    """Find, or host, the store that a URL leads to. Nobody has been waited for but the store's host.

    Args:
        url: the `init_method`.
        rank: global rank, -1 to take it from the URL or the environment.
        world_size: processes, -1 likewise.
        timeout: seconds for reaching the store, and its default; AIODIST_TIMEOUT or 300 s where None.
        environ: the environment variables; none where None.
        secret: what the processes of the job know.

    Raises:
        UsageError: the URL or an environment variable has no meaning.
        RendezvousError: the port to host on is in use, or is not of this host.
        RendezvousTimeout: the store cannot be reached.
        AuthenticationError: it is of another job, version or secret.
    """
    environ = {} if environ is None else environ
    limit = tuning(environ).timeout if timeout is None else seconds(timeout)
    parts = urlsplit(url)
    handler = _handlers.get(parts.scheme)
    if handler is None:
        known = ", ".join(f"{scheme}://" for scheme in _handlers)
        raise UsageError(f"init_method='{url}' has no known scheme", hint=f"There are: {known}")
    query = parse_qs(parts.query)
    rank = rank if rank >= 0 else _number(query, "rank", url)
    world_size = world_size if world_size >= 0 else _number(query, "world_size", url)
    return await handler(Invitation(url, rank, world_size, limit, environ, secret))


def _number(query: dict[str, list[str]], name: str, url: str) -> int:
    values = query.get(name, ["-1"])
    if len(values) != 1 or not values[0].removeprefix("-").isdecimal():
        raise UsageError(f"{name} in init_method='{url}' is not a number")
    return int(values[0])


# The schemes.


async def _env(invitation: Invitation) -> Meeting:
    environ = invitation.environ
    place = invitation.placement()
    if (url := store_url(environ)) is not None:
        return await _etcd(replace(invitation, url=url))
    if (address := store_address(environ)) is not None:
        return await _join(invitation, place, *address)
    if place.master_addr is None or place.master_port is None:
        if place.world_size == 1:
            store = HashStore(invitation.timeout)
            return Meeting(store, 0, 1, None, told_address(invitation.tuning, "127.0.0.1"))
        missing = "MASTER_ADDR" if place.master_addr is None else "MASTER_PORT"
        raise UsageError(
            f"{missing} is not set, and the world has {place.world_size} processes",
            hint="Start with `aiodist run`, or set MASTER_ADDR to rank 0's host and MASTER_PORT to a port",
        )
    return await _host_or_join(invitation, place, place.master_addr, place.master_port)


async def _tcp(invitation: Invitation) -> Meeting:
    host, port = split_address(invitation.parts.netloc, "the address in init_method")
    place = _known_place(invitation)
    if port == 0 and place.world_size > 1:
        raise UsageError(
            f"init_method='{invitation.url}' names no port",
            hint="The others cannot know which one rank 0 finds",
        )
    return await _host_or_join(invitation, place, host, port)


async def _file(invitation: Invitation) -> Meeting:
    parts = invitation.parts
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise UsageError(
            f"init_method='{invitation.url}' names no file", hint="Write file:///path, three slashes"
        )
    place = _known_place(invitation)
    tuned = invitation.tuning
    host = told_address(tuned, "127.0.0.1")
    await _check_open_door(host, invitation)
    store = await FileStore.open(
        *(unquote(parts.path), invitation.job, invitation.secret, invitation.timeout),
        host=host,
        rank=place.rank,
        tls=invitation.tls,
    )
    return Meeting(store, place.rank, place.world_size, None, told_address(tuned, store.client.address))


async def _etcd(invitation: Invitation) -> Meeting:
    from aiodist.rendezvous.etcd.place import place as read_place
    from aiodist.rendezvous.etcd_store import EtcdStore

    read_place(invitation.url, invitation.environ)  # before anything shows a URL with a password in it
    place = _known_place(invitation)
    store = await EtcdStore.connect(
        invitation.url, invitation.job, invitation.timeout, environ=invitation.environ
    )
    try:
        address = told_address(invitation.tuning, store.address)
    except BaseException:
        await store.aclose()
        raise
    return Meeting(store, place.rank, place.world_size, None, address)


def _known_place(invitation: Invitation) -> Placement:
    """A place that something says; alone is not a guess to make where a URL says where to meet."""
    place = invitation.placement()
    if place.launcher == "alone":
        raise UsageError(
            f"init_method='{invitation.url}' needs rank and world_size",
            hint="Pass rank= and world_size=, add ?rank=…&world_size=… to it, or set RANK and WORLD_SIZE",
        )
    return place


async def _host_or_join(invitation: Invitation, place: Placement, host: str, port: int) -> Meeting:
    if place.rank != 0:
        return await _join(invitation, place, host, port)
    await _check_open_door(host, invitation)
    server = await _start(invitation, host, port)
    try:
        if (
            is_loopback(server.host)
            and _spans_hosts(place)
            and not (is_loopback(host) or host == "localhost")
        ):
            _log.warning(
                "%s is %s here, which other hosts cannot reach; if there are any, use a numeric MASTER_ADDR",
                host,
                server.host,
            )
        reached = host if server.host in _EVERYWHERE else server.host
        meeting = await _join(invitation, place, reached, server.port)
    except BaseException:
        await server.aclose()
        raise
    return replace(meeting, server=server)


async def _start(invitation: Invitation, host: str, port: int) -> StoreServer:
    start = partial(
        StoreServer.start, port=port, job=invitation.job, secret=invitation.secret, rank=0, tls=invitation.tls
    )
    try:
        return await start(host)
    except RendezvousError as error:
        own = invitation.tuning.host
        if own is None or "not an address of this host" not in error.message:
            raise
        # MASTER_ADDR is how others see this host (through a forwarded port, say); the user says what it has.
        await _check_open_door(own, invitation)
        return await start(own)


async def _join(invitation: Invitation, place: Placement, host: str, port: int) -> Meeting:
    store = await TcpStore.connect(
        *(host, port, invitation.job, invitation.secret, invitation.timeout),
        rank=place.rank,
        tls=invitation.tls,
    )
    try:
        address = told_address(invitation.tuning, store.address)
    except BaseException:
        await store.aclose()
        raise
    return Meeting(store, place.rank, place.world_size, None, address)


async def _check_open_door(host: str, invitation: Invitation) -> None:
    """Refuse to serve other hosts without a secret, unless told to."""
    if invitation.secret or invitation.tuning.allow_insecure:
        return
    try:
        addresses = await resolve(host, 0)
    except OSError as error:
        raise RendezvousError(f"cannot listen on '{host}': {describe(error)}") from None
    reachable = [str(address[0]) for _, address in addresses if not is_loopback(str(address[0]))]
    if reachable:
        raise UsageError(
            f"refused to serve the store on {reachable[0]} without a secret: whoever reaches it could join",
            hint="Set AIODIST_SECRET (or AIODIST_SECRET_FILE) to the same on every host, or use "
            "MASTER_ADDR=127.0.0.1; AIODIST_ALLOW_INSECURE=1 does without",
        )


def _spans_hosts(place: Placement) -> bool:
    return place.local_world_size is not None and place.local_world_size < place.world_size


def told_address(tuned: Tuning, address: str) -> str:
    """The address that peers are told: what the user says, else the one that was found."""
    if tuned.interface:
        return interface_address(tuned.interface)
    return tuned.host or address


register_rendezvous_handler("env", _env)
register_rendezvous_handler("tcp", _tcp)
register_rendezvous_handler("file", _file)
register_rendezvous_handler("etcd", _etcd)
register_rendezvous_handler("etcds", _etcd)
