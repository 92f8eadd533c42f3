"""The page by HTTP: static files for everybody who may ask, data for who has a session.

    GET  /, /static/<name>               the page; no data is in it
    POST /session                        the one-time token → a cookie, and the secret part of the data's path
    GET  /s/<secret>/events              the live view, as server-sent events
    GET  /s/<secret>/timeline, /matrix, /logs
    GET  /metrics, /s/<secret>/metrics   for Prometheus, by a bearer token; or by the cookie

Nothing here changes the job, and nothing that was asked for is written into any log.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from aiodist.base.errors import UsageError
from aiodist.observe.dashboard.auth import COOKIE, BrowserSessions, bears, refusal
from aiodist.observe.dashboard.door import Door
from aiodist.observe.dashboard.feed import Feed
from aiodist.observe.dashboard.logs import Logs
from aiodist.observe.matrix import matrix
from aiodist.observe.metrics import Tally, exposition
from aiodist.observe.timeline import timeline
from aiodist.observe.view import JobView

MOST_STREAMS = 16
"""Pages that are sent events at once."""

_BODY = 1024  # bytes of a request
_STUCK = 30.0  # seconds for a page to take what it is sent
_MOST_RANKS = 64  # in a timeline
_MOST_ANSWERS = 8  # different ones that are worked out for one state of the job
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Server": "aiodist",
}

_log = logging.getLogger("aiodist.observe.dashboard")


_THE_SENDERS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""What is no HTTP, and connections that end early. Whoever sends that may be anybody: a log would quote it,
and could be filled by it."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether an error is the server's, and not the sender's."""
    return not (record.exc_info and isinstance(record.exc_info[1], _THE_SENDERS))


_log.addFilter(_is_ours)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Static:
    """A file of the page."""

    body: bytes
    kind: str


def static_files() -> dict[str, Static]:
    """The page's files by name, read once: no path comes from a request."""
    folder = Path(__file__).with_name("static")
    return {
        file.name: Static(file.read_bytes(), _TYPES[file.suffix])
        for file in sorted(folder.iterdir())
        if file.suffix in _TYPES
    }


class Server:
    """The server of one job's page. Make it with `start`.

    Args:
        feed: what the job does.
        logs: of its ranks.
        sessions: who may see it.
        names: of this server, besides those of the loopback.
        metrics_token: for who scrapes; '': by a session only.
        signed_in: called when a browser has used the token.

    Attributes:
        streams: pages that are open.
    """

    def __init__(
        self,
        feed: Feed,
        logs: Logs,
        sessions: BrowserSessions,
        *,
        names: Iterable[str] = (),
        metrics_token: str = "",
        signed_in: Callable[[], object] = lambda: None,
    ) -> None:
        self._feed = feed
        self._logs = logs
        self._sessions = sessions
        self._names = frozenset(names)
        self._metrics_token = metrics_token
        self._signed_in = signed_in
        self._files = static_files()
        self._answers: tuple[int, dict[tuple[Any, ...], bytes]] = (-1, {})
        self._tally = Tally()
        self._door: Door | None = None
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self.streams = 0

    async def start(self, host: str, port: int, door: Callable[[Any], Door] = Door) -> tuple[str, int]:
        """Listen → the address and the port.

        Raises:
            OSError: that cannot be done.
        """
        app = web.Application(middlewares=[self._guard], client_max_size=_BODY)
        app.router.add_get("/", self._index, allow_head=False)
        app.router.add_get("/static/{name}", self._static, allow_head=False)
        app.router.add_post("/session", self._session)
        app.router.add_get("/metrics", self._bearer(self._metrics), allow_head=False)
        for name, handler in (
            ("events", self._events),
            ("timeline", self._timeline),
            ("matrix", self._matrix),
            ("logs", self._read),
            ("metrics", self._metrics),
        ):
            app.router.add_get(f"/s/{{path}}/{name}", self._private(handler), allow_head=False)
        # What anybody sends is not unpacked: a few kilobytes could keep the loop busy for seconds.
        runner = self._runner = web.AppRunner(
            app, access_log=None, logger=_log, keepalive_timeout=30.0, auto_decompress=False
        )
        await runner.setup()
        made = runner.server
        assert made is not None
        self._door = door(made)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._door, host, port, backlog=64)
        name = self._listener.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def aclose(self) -> None:
        """End it, and all connections."""
        await self._feed.close()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    # ── who may ──────────────────────────────────────────────────────────────────────────────────────

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what another site has a browser ask; put the headers on every answer."""
        navigates = request.method == "GET" and request.path == "/"
        own = request.transport.get_extra_info("sockname") if request.transport is not None else None
        names = self._names | ({own[0]} if own else set())
        if why := refusal(request.headers, names, navigates=navigates):
            return _refused(403, why)
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            return _refused(error.status, error.reason, error.headers.get("Allow", ""))
        except (web.RequestPayloadError, ConnectionError):
            return _refused(400, "the request ends too early")
        if not answer.prepared:
            answer.headers.update(_HEADERS)
        return answer

    def _private(self, handler: Handler) -> Handler:
        """A handler for who has a session."""

        async def checked(request: web.Request) -> web.StreamResponse:
            cookies = "; ".join(request.headers.getall("Cookie", ()))
            if not self._sessions.admits(request.match_info["path"], cookies):
                return _refused(401, "sign in with the address that 'aiodist dashboard' has printed")
            assert self._door is not None
            self._door.admit(request.transport)
            return await handler(request)

        return checked

    def _bearer(self, handler: Handler) -> Handler:
        """A handler for who has the token of the metrics."""

        async def checked(request: web.Request) -> web.StreamResponse:
            if not bears(request.headers.get("Authorization", ""), self._metrics_token):
                answer = _refused(401, "send the token of --metrics-token-file as a bearer token")
                answer.headers["WWW-Authenticate"] = "Bearer"
                return answer
            return await handler(request)

        return checked

    async def _session(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json" or request.headers.get("Origin") is None:
            return _refused(403, "only the page itself signs in")
        try:
            body = json.loads(await request.read())
            token = str(body["token"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return _refused(400, "this is no token")
        session = self._sessions.open(token)
        if session is None:
            return _refused(401, "the address was used already, or is another one's: start a new dashboard")
        self._signed_in()
        answer = web.json_response({"path": f"/s/{session.path}/"})
        answer.set_cookie(
            *(COOKIE, session.cookie), path=f"/s/{session.path}/", httponly=True, samesite="Strict"
        )
        return answer

    # ── the page ─────────────────────────────────────────────────────────────────────────────────────

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._file("index.html")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        return self._file(request.match_info["name"])

    def _file(self, name: str) -> web.StreamResponse:
        found = self._files.get(name)
        if found is None:
            return _refused(404, "there is no such file")
        return web.Response(body=found.body, headers={"Content-Type": found.kind})

    # ── the data ─────────────────────────────────────────────────────────────────────────────────────

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self.streams >= MOST_STREAMS:
            return _refused(503, f"{MOST_STREAMS} pages are open already")
        answer = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        self.streams += 1
        try:
            await answer.prepare(request)
            version, body = self._feed.whole()
            await _send(answer, b"whole", body)
            while (update := await self._feed.next(version)) is not None:
                if update.version == version + 1:
                    version = update.version
                    await _send(answer, b"change", update.change)
                else:  # it was slow
                    version, body = self._feed.whole()
                    await _send(answer, b"whole", body)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.streams -= 1
        return answer

    async def _timeline(self, request: web.Request) -> web.StreamResponse:
        try:
            ranks = _ranks(request.query.get("ranks", ""))
            seconds = float(request.query.get("seconds", "10"))
        except ValueError:
            return _refused(400, "this is no list of ranks")
        if not 0.1 <= seconds <= 120.0:
            return _refused(400, "seconds are 0.1 to 120")
        return await self._worked_out(lambda job: timeline(job, ranks, seconds), "timeline", ranks, seconds)

    async def _matrix(self, request: web.Request) -> web.StreamResponse:
        return await self._worked_out(lambda job: matrix(job).to_json(), "matrix")

    async def _worked_out(self, work: Callable[[JobView], Any], *key: Any) -> web.StreamResponse:
        """An answer that is worked out once for each state of the job."""
        job, version = self._feed.placed, self._feed.version
        if job is None:
            return _refused(503, "no rank is seen yet")
        if self._answers[0] != version:
            self._answers = version, {}
        answers = self._answers[1]
        if key not in answers:
            if len(answers) >= _MOST_ANSWERS:
                return _refused(429, "ask again in a second")
            answers[key] = b"null"
            answers[key] = await asyncio.to_thread(lambda: json.dumps(work(job)).encode())
        return web.Response(body=answers[key], content_type="application/json")

    async def _read(self, request: web.Request) -> web.StreamResponse:
        try:
            number = int(request.query.get("of", ""))
            start = int(request.query.get("from", "-1"))
        except ValueError:
            return _refused(400, "this is no output")
        stream = request.query.get("stream", "")
        return web.json_response(await asyncio.to_thread(self._logs.read, number, stream, start))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if self._feed.now is None or self._feed.summary is None:
            return _refused(503, "no rank is seen yet")
        accept = request.headers.get("Accept", "")
        try:
            body, kind = await asyncio.to_thread(
                exposition, self._feed.summary, self._feed.now, self._tally, accept
            )
        except UsageError as error:
            return _refused(501, str(error))
        return web.Response(body=body, headers={"Content-Type": kind})


def _refused(status: int, why: str, allow: str = "") -> web.Response:
    headers = {**_HEADERS, **({"Allow": allow} if allow else {})}
    return web.Response(status=status, text=f"{why}\n", headers=headers)


async def _send(answer: web.StreamResponse, kind: bytes, body: bytes) -> None:
    async with asyncio.timeout(_STUCK):
        await answer.write(b"event: " + kind + b"\ndata: " + body + b"\n\n")


def _ranks(text: str) -> tuple[int, ...]:
    """'0-3,7' → (0, 1, 2, 3, 7); ValueError for what is none, or too many."""
    found: list[int] = []
    for part in filter(None, text.split(",", _MOST_RANKS + 1)):
        low, _, high = part.partition("-")
        first, last = int(low), int(high or low)
        if not 0 <= first <= last < first + _MOST_RANKS:
            raise ValueError(part)
        found += range(first, last + 1)
    if len(found) > _MOST_RANKS:
        raise ValueError(text)
    return tuple(found)
