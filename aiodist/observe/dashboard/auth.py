"""Who may see the page: one token, used once, becomes a session. Pure.

A session is two secrets: a path, under which the data lies, and a cookie that the browser sends to that path
only. Browsers send the cookies of one port of a host to all others; a server of another user of this host
does not know the path, so it is never sent the cookie.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

COOKIE = "aiodist"

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_OWN_SITE = ("same-origin", "none", "")  # 'none': the address was typed, or opened by a program


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A browser that may see the data.

    Args:
        path: the part of it that is secret.
        cookie: its value.
    """

    path: str
    cookie: str


class BrowserSessions:
    """The one-time token, and the sessions that came of it.

    Args:
        make: makes a secret text, that fits into a URL and a cookie.

    Attributes:
        token: to be shown to nobody but the user.
    """

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make
        self.token: str = make()
        self._used = False
        self._sessions: list[BrowserSession] = []

    def open(self, token: str) -> BrowserSession | None:
        """A session for who has the token; None: it is another, or was used before."""
        right = hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
        if not right or self._used:
            return None
        self._used = True
        session = BrowserSession(self._make(), self._make())
        self._sessions.append(session)
        return session

    def admits(self, path: str, cookies: str) -> bool:
        """Whether somebody has a session.

        Args:
            path: the secret part of what was asked for.
            cookies: the header.
        """
        right = False
        for session in self._sessions:
            here = hmac.compare_digest(path.encode("utf-8", "replace"), session.path.encode())
            for given in _values(cookies):
                right |= here & hmac.compare_digest(given.encode("utf-8", "replace"), session.cookie.encode())
        return right


def _values(cookies: str) -> Iterable[str]:
    """All values of our cookie: another server of this host may have set one of the same name."""
    for pair in cookies.split(";")[:64]:
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            yield value


def bears(header: str, token: str) -> bool:
    """Whether an Authorization header has this bearer token."""
    kind, _, given = header.partition(" ")
    right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return kind.lower() == "bearer" and right and bool(token)


def refusal(headers: Mapping[str, str], names: Iterable[str], *, navigates: bool) -> str:
    """Why a request is refused by what it says of where it comes from; '': it is not.

    A name that is not ours, in Host, is that of a site which has made its own name lead here. Origin and
    Sec-Fetch-Site tell requests that another site has a browser make.

    Args:
        headers: of the request; names in any case.
        names: of this server, without ports: a tunnel may have another.
        navigates: the request is for the page itself, which another site may link to: no data is in it.
    """
    host = headers.get("Host", "")
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        _ = urlsplit(f"//{host}").port
    except ValueError:
        return "Host is no host"
    if name not in {*_LOOPBACK, *names} or any(c in host for c in "/@?#\\ "):
        return "Host is none of this server's names"
    origin = headers.get("Origin")
    if origin is not None and origin.lower() != f"http://{host}".lower():
        return "the request comes from another site"
    if not navigates and headers.get("Sec-Fetch-Site", "") not in _OWN_SITE:
        return "the request comes from another site"
    return ""
