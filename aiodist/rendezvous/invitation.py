"""Input and output of a scheme's handler: an invitation, and a meeting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import SplitResult, parse_qs, urlsplit

from aiodist.base.environment import Placement, Tls, Tuning, job_id, placement, tls, tuning
from aiodist.base.errors import UsageError
from aiodist.rendezvous.client import TcpStore
from aiodist.rendezvous.file_store import LINGER_SECONDS, FileStore
from aiodist.rendezvous.met import remember
from aiodist.rendezvous.server import StoreServer
from aiodist.rendezvous.store import Store


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
        secret: what the processes have agreed on where they met, if they had none before; b'' for nothing.
    """

    store: Store
    rank: int
    world_size: int
    server: StoreServer | None = None
    address: str = "127.0.0.1"
    owns_store: bool = True
    secret: bytes = field(default=b"", repr=False)

    def formed(self) -> None:
        """Note that the group is made: the next meeting here at this address or file has another store."""
        store = self.store.client if isinstance(self.store, FileStore) else self.store
        if isinstance(store, TcpStore):
            remember(store.instance)

    async def aclose(self, linger: float = LINGER_SECONDS) -> None:
        """Leave. The hosting process waits up to `linger` seconds until the others have left."""
        server, self.server = self.server, None
        if self.owns_store:
            await self.store.aclose()
        if server is not None:
            await server.aclose(linger)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@dataclass(frozen=True)
class Invitation:
    """Input of a rendezvous handler.

    Attributes:
        url: the whole `init_method`.
        rank: as the caller or the URL gave it, -1 for neither.
        world_size: likewise.
        timeout: seconds for meeting, and the store's default.
        environ: the environment variables.
        secret: what the processes of the job know; b'' for nothing.
        store: the user's own, to meet over; then there is no URL. None: find one.
        by_library: how the processes of a library that has ranks itself meet; None: it is not asked.
        instance: names the very store that AIODIST_STORE means, where that was told; b'': nobody says.
        seals_whole: whether tensors of whole numbers are authenticated in the group's connections, as what
            programs act on is; the same on all ranks. (torch's objects are such tensors.)
    """

    url: str
    rank: int
    world_size: int
    timeout: float
    environ: Mapping[str, str]
    secret: bytes = field(default=b"", repr=False)
    store: Store | None = None
    by_library: Callable[[Invitation], Awaitable[Meeting]] | None = None
    instance: bytes = b""
    seals_whole: bool = False

    @classmethod
    def of(cls, url: str, rank: int, world_size: int, timeout: float, environ: Mapping[str, str]) -> Self:
        """Read rank and size of the world from the URL, where the caller gave none."""
        query = parse_qs(urlsplit(url).query)
        rank = rank if rank >= 0 else _number(query, "rank", url)
        world_size = world_size if world_size >= 0 else _number(query, "world_size", url)
        return cls(url, rank, world_size, timeout, environ)

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
        """The TLS of TCP connections; None: they go without."""
        return tls(self.environ)

    def placement(self) -> Placement:
        """Find this process's place: from the call or the URL, else from the environment."""
        return placement(self.environ, self.rank, self.world_size)


def _number(query: dict[str, list[str]], name: str, url: str) -> int:
    values = query.get(name, ["-1"])
    if len(values) != 1 or not values[0].removeprefix("-").isdecimal():
        raise UsageError(f"{name} in init_method='{url}' is not a number")
    return int(values[0])
