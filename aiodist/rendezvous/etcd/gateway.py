"""Requests to etcd over HTTP: to one member after the other, until one answers or the time is up.

etcd's JSON gateway is part of every server, so an HTTP client is all it takes; aiohttp is that client, and
imported here only. A request may reach etcd more than once: what it does there must stand that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import random
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from aiodist.base.backoff import Backoff
from aiodist.base.errors import AuthenticationError, BackendUnavailable, RendezvousTimeout
from aiodist.base.timeouts import spoken
from aiodist.net.sockets import describe, join_address, resolve, stream_socket
from aiodist.net.wire.bounded_json import load_json
from aiodist.net.within import within
from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.place import EtcdPlace
from aiodist.rendezvous.etcd.refusals import (
    EtcdAway,
    NoAuthentication,
    NoLease,
    TokenOver,
    refusal,
    tls_failure,
)
from aiodist.rendezvous.etcd.words import Json, WatchNews

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

ATTEMPT_SECONDS = 5.0
"""Seconds that one member may take to answer before another is asked."""

QUIET_SECONDS = 20.0
"""Seconds without a message after which a watch is made anew: its member may have gone without a message."""

MOST = 32 << 20
"""Bytes of an answer: cards of ten thousand ranks take half of it."""

_BACKOFF = (0.02, 0.5)  # seconds between attempts: the first, the longest


class Gateway:
    """An etcd cluster, as whoever asks it. Belongs to the loop it was made on; close it.

    Args:
        place: where it is.

    Raises:
        BackendUnavailable: aiohttp is not here.
        UsageError: the TLS files cannot be used.
    """

    def __init__(self, place: EtcdPlace) -> None:
        try:
            import aiohttp
        except ImportError:
            raise BackendUnavailable(
                "etcd:// needs aiohttp, which is not installed", hint='pip install "aiodist[etcd]"'
            ) from None
        self.place = place
        self._loop = asyncio.get_running_loop()
        self._aiohttp = aiohttp
        context = place.ssl_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                ssl=True if context is None else context,
                socket_factory=lambda address: stream_socket(int(address[0])),
            ),
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=False,
            read_bufsize=1 << 20,
            auto_decompress=False,  # what is unpacked is larger than what was counted
            headers={"Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        scheme = "https" if place.tls else "http"
        self._bases = [f"{scheme}://{join_address(host, port)}" for host, port in place.endpoints]
        self._at = random.SystemRandom().randrange(len(self._bases))  # so that a job spreads over the members
        self._token = ""
        self._wants_token = bool(place.user)

    @property
    def is_open(self) -> bool:
        """Whether `aclose` has not been called."""
        return not self._session.closed

    async def aclose(self) -> None:
        """End all connections."""
        await self._session.close()

    async def call(self, path: str, body: Json, deadline: float) -> tuple[Json, bool]:
        """Ask until there is an answer.

        Args:
            path: after the address: '/v3/kv/txn'.
            body: the question.
            deadline: loop time.

        Returns:
            The answer, and whether etcd may have been asked more than once.

        Raises:
            RendezvousTimeout: no member answered in time; says what the last one did.
            AuthenticationError: etcd, or its certificate, was refused, or it refused this user.
            UsageError: a value is too large.
            NoLease, LeaseExists: as they say.
        """
        start, again, cause = self._loop.time(), False, _SILENT
        backoff = Backoff(*_BACKOFF, jitter=0.5)
        while (left := deadline - self._loop.time()) > 0:
            at = self._at
            try:
                async with within(min(left, ATTEMPT_SECONDS), partial(EtcdAway, _SILENT)):
                    return await self._ask(self._bases[at], path, body), again
            except NoLease as error:
                error.again = again
                raise
            except TokenOver as error:
                cause, again = str(error), True
            except EtcdAway as error:
                said = str(error)
                if said != _SILENT or left >= ATTEMPT_SECONDS:  # else the deadline has cut it short
                    cause = said
                again = again or said != _REFUSED
                self._turn(at)
            await asyncio.sleep(min(backoff.next(), left))
        hint = "See whether etcd is running, and is at that address"
        if cause in (_ENDED, _RESET):  # which of the two is a matter of timing
            hint += f"; {'etcd:// is without TLS' if self.place.tls else 'with TLS it is etcds://'}"
        raise RendezvousTimeout(
            f"cannot reach etcd at {self.place} ({cause}) after {spoken(deadline - start)}", hint=hint
        )

    def _turn(self, at: int) -> None:
        """Ask another member than this one from now on, unless that is so already."""
        if self._at == at:
            self._at = (at + 1) % len(self._bases)

    @contextlib.asynccontextmanager
    async def watch(self, request: Json) -> AsyncIterator[AsyncIterator[WatchNews]]:
        """Watch, on one stream → the messages as they come. `EtcdAway` where they end, or none came for
        QUIET_SECONDS.

        Whoever raises that while reading them has the next stream come from another member, too.
        """
        at = self._at
        try:
            with self._sorted():
                response = await self._begin(self._bases[at], request)
                try:
                    if response.status != 200:
                        raise refusal(response.status, await _text(response, _WORDS))
                    async with contextlib.aclosing(self._lines(response)) as lines:
                        yield lines
                finally:
                    response.close()
        except EtcdAway as error:
            if not isinstance(error, TokenOver):
                self._turn(at)
            raise

    async def _begin(self, base: str, request: Json) -> aiohttp.ClientResponse:
        async with within(ATTEMPT_SECONDS, partial(EtcdAway, _ACCEPTS)):
            await self._log_in(base)
            # A member without a leader would stay silent; so it says that it has none.
            headers = {**self._headers(), "Grpc-Metadata-hasleader": "true"}
            return await self._session.post(
                base + "/v3/watch", data=json.dumps(request), headers=headers, allow_redirects=False
            )

    async def _lines(self, response: aiohttp.ClientResponse) -> AsyncGenerator[WatchNews, None]:
        kept = b""
        while True:
            async with within(QUIET_SECONDS, partial(EtcdAway, "nothing came for a while")):
                chunk = await response.content.readany()
            if not chunk:
                raise EtcdAway("it ended the stream")
            *lines, kept = (kept + chunk).split(b"\n")
            if len(kept) > MOST:
                raise EtcdAway(_TOO_LONG)
            for line in lines:
                if line.strip():
                    yield await _apart(_news, line)

    async def local_address(self) -> str:
        """Find this host's address on the way to the member that is asked; nothing is sent for it."""
        host, port = self.place.endpoints[self._at]
        with contextlib.suppress(OSError):
            for family, address in await resolve(host, port):
                with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
                    sock.connect(address)
                    return str(sock.getsockname()[0])
        return "127.0.0.1"

    async def _ask(self, base: str, path: str, body: Json) -> Json:
        with self._sorted():
            await self._log_in(base)
            return await self._post(base + path, body)

    @contextlib.contextmanager
    def _sorted(self) -> Iterator[None]:
        """Make what the HTTP client raises an error of ours; forget a token that is over."""
        try:
            yield
        except TokenOver:
            self._token = ""
            raise
        except self._aiohttp.ClientError as error:
            self._fail(error)

    async def _log_in(self, base: str) -> None:
        if not self._wants_token or self._token:
            return
        who = {"name": self.place.user, "password": self.place.password}
        try:
            self._token = str((await self._post(f"{base}/v3/auth/authenticate", who))["token"])
        except NoAuthentication:
            self._wants_token = False

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    async def _post(self, url: str, body: Json) -> Json:
        data = json.dumps(body).encode()
        # What is large goes in pieces, so that the loop turns meanwhile.
        sent = data if len(data) < _LARGE else io.BytesIO(data)
        # Where it redirects to is no member, and would learn the password.
        async with self._session.post(
            url, data=sent, headers=self._headers(), allow_redirects=False
        ) as response:
            if response.status != 200:
                raise refusal(response.status, await _text(response, _WORDS))
            text = await _whole(response, MOST)
        return await _apart(_answer, text)

    def _fail(self, error: aiohttp.ClientError) -> NoReturn:
        """Sort what the HTTP client says."""
        aiohttp = self._aiohttp
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            raise AuthenticationError(
                f"the certificate of etcd at {self.place} was refused "
                f"({getattr(error.certificate_error, 'verify_message', '') or 'it does not fit'})",
                hint="Set AIODIST_ETCD_CA to the CA that signed it, and use a name that it holds",
            ) from None
        cause: OSError | None = error if isinstance(error, OSError) else None
        if isinstance(error, aiohttp.ClientConnectorError):
            cause = error.os_error
        if cause is None or not cause.errno:
            raise EtcdAway(_ENDED) from None
        if "[SSL" in str(cause):
            raise tls_failure(str(self.place), str(cause)) from None
        raise EtcdAway(describe(cause)) from None


async def _whole(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body of an answer; `EtcdAway` where it is longer than it may be."""
    parts, left = [], most
    while part := await response.content.readany():
        left -= len(part)
        if left < 0:
            raise EtcdAway(_TOO_LONG)
        parts.append(part)
    return b"".join(parts)


async def _text(response: aiohttp.ClientResponse, most: int) -> str:
    """The first bytes of an answer, as text."""
    text = b""
    while len(text) < most and (part := await response.content.readany()):
        text += part
    return text[:most].decode(errors="replace")


async def _apart(parse: Callable[[bytes], T], text: bytes) -> T:
    """Parse a text by `parse`, in a thread where it is large."""
    return parse(text) if len(text) < _LARGE else await asyncio.to_thread(parse, text)


def _answer(text: bytes) -> Json:
    """The answer to one question."""
    try:
        answer: Any = load_json(text, MOST)
        if isinstance(answer.get("error"), dict):  # of a stream of one answer
            raise refusal(200, text.decode())
        return dict(answer.get("result", answer))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise EtcdAway("it answered something else than etcd's JSON") from None


def _news(line: bytes) -> WatchNews:
    """One message of a watch."""
    try:
        result = dict(load_json(line, MOST)["result"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise refusal(200, line[:_WORDS].decode(errors="replace")) from None
    return words.news(result)


_LARGE = 256 << 10
_WORDS = 64 << 10  # bytes of a refusal that are read
_TOO_LONG = f"its answer has more than {MOST >> 20} MiB"
_SILENT = "no answer"
_ACCEPTS = "it accepts connections, but does not answer"
_REFUSED = "Connection refused"
_ENDED = "the connection ended before the answer"
_RESET = os.strerror(errno.ECONNRESET)
