"""A dashboard of a job that nobody runs, in the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import aiohttp

from aiodist.net.sockets import join_address
from aiodist.observe.dashboard.auth import BrowserSessions
from aiodist.observe.dashboard.door import Door
from aiodist.observe.dashboard.feed import Feed
from aiodist.observe.dashboard.logs import Logs
from aiodist.observe.dashboard.server import Server
from aiodist.observe.view import JobView
from tests.observe.made import a_job
from tests.observe.made import a_rank as at_twenty

a_rank = partial(at_twenty, now=10.0, began=0.0)

METRICS = "a token for who scrapes"


class Served:
    """The dashboard, and a browser's part.

    Attributes:
        job: what is seen; None: nothing.
        base: its address, without the last slash.
    """

    def __init__(self) -> None:
        self.job: JobView | None = a_job(*(a_rank(rank) for rank in range(4)))
        self.logs = Logs("here")
        self.feed = Feed(self.read, self.logs, ask=list, now=lambda: 1000.0)
        numbers = itertools.count()
        self.sessions = BrowserSessions(lambda: f"secret-{next(numbers)}")
        self.signed_in = 0
        self.server = Server(self.feed, self.logs, self.sessions, metrics_token=METRICS, signed_in=self._note)
        self.base = ""
        self.port = 0
        self.path = ""
        self.cookie = ""
        self.http: aiohttp.ClientSession

    def _note(self) -> None:
        self.signed_in += 1

    async def read(self) -> tuple[JobView | None, str]:
        """What is seen now."""
        return self.job, ""

    @property
    def headers(self) -> dict[str, str]:
        """What a signed-in browser sends."""
        return {"Cookie": f"aiodist={self.cookie}"}

    async def sign_in(self, token: str | None = None, **headers: str) -> aiohttp.ClientResponse:
        """Use the token."""
        told = {"token": self.sessions.token if token is None else token}
        sent = {"Origin": self.base, **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with self.http.post(f"{self.base}/session", json=told, headers=sent) as answer:
            if answer.status == 200:
                self.path = (await answer.json())["path"]
                self.cookie = answer.cookies["aiodist"].value
            await answer.read()
        return answer

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Ask for something → status and body."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.get(f"{self.base}{path}", headers=sent) as answer:
            return answer.status, await answer.text()

    async def data(self, name: str, **headers: str) -> tuple[int, str]:
        """Ask for data, as a signed-in browser."""
        return await self.get(f"{self.path}{name}", **{**self.headers, **headers})

    async def raw(self, text: bytes) -> bytes:
        """Send bytes as they are → all that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(text)
            return await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def served(door: Callable[[Any], Door] = Door, host: str = "127.0.0.1") -> AsyncIterator[Served]:
    """A dashboard that listens, and has looked once."""
    made = Served()
    await made.feed.step()
    address, made.port = await made.server.start(host, 0, door)
    made.base = f"http://{join_address(address, made.port)}"
    try:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as made.http:
            yield made
    finally:
        await made.server.aclose()
