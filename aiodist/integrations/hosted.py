"""A store that a process hosts in a thread of its own, for frameworks that have ranks already.

The framework has one process call `host`, and hands what comes of it to all; a random secret is made for each
job.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from dataclasses import dataclass, field

from aiodist.base.environment import tls, tuning
from aiodist.net.sockets import join_address, outward
from aiodist.rendezvous import StoreServer
from aiodist.rendezvous.hosting import announced_address

_LINGER = 2.0  # seconds for the ranks to leave


@dataclass(frozen=True)
class HostedPlace:
    """Where the ranks of a job meet: the same for all.

    Attributes:
        address: 'host:port' of the store.
        job: its name.
        secret: of the job, a random one.
    """

    address: str
    job: str
    secret: str = field(repr=False)

    def environ(self, rank: int, world_size: int) -> dict[str, str]:
        """The variables that lead a rank there."""
        return {
            "AIODIST_STORE": self.address,
            "AIODIST_JOB": self.job,
            "AIODIST_SECRET": self.secret,
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
        }


class Host:
    """A store in a thread of this process. Make it with `Host.start()`; `close` ends it.

    Attributes:
        place: for the ranks.
    """

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aiodist-store", daemon=True)
        self._error: BaseException | None = None

    @classmethod
    def start(cls) -> Host:
        """Listen on a free port of this host's address towards others, with TLS where AIODIST_TLS_* says so.

        Raises:
            RendezvousError: this host has no address to listen on.
            UsageError: a file of AIODIST_TLS_* cannot be used.
        """
        self = cls()
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def close(self) -> None:
        """End the store. Ranks that are there have a moment to leave; may be repeated."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        job, secret = secrets.token_hex(4), secrets.token_hex(32)
        host = announced_address(tuning(os.environ), outward() or "127.0.0.1")
        server = await StoreServer.start(host, 0, job, secret.encode(), tls=tls(os.environ))
        self.place = HostedPlace(join_address(server.host, server.port), job, secret)
        self._ready.set()
        await self._stop.wait()
        await server.aclose(_LINGER)
