"""Who may see the page: decided without a socket."""

from __future__ import annotations

import itertools

import pytest

from aiodist.observe.dashboard.auth import BrowserSessions, bears, refusal


def made() -> BrowserSessions:
    numbers = itertools.count()
    return BrowserSessions(lambda: f"secret-{next(numbers)}")


def test_the_token_opens_one_session_once() -> None:
    sessions = made()
    assert sessions.open("another") is None
    session = sessions.open(sessions.token)
    assert session is not None
    assert sessions.open(sessions.token) is None
    assert len({sessions.token, session.path, session.cookie}) == 3


@pytest.mark.parametrize(
    "token", ["", "secret", "secret-00", "secret-0 ", "SECRET-0", "é", "\udcff", "x" * 100_000]
)
def test_no_other_token_does(token: str) -> None:
    sessions = made()
    assert sessions.open(token) is None
    assert sessions.open(sessions.token) is not None  # and it is not used up by that


def test_a_session_needs_path_and_cookie() -> None:
    sessions = made()
    session = sessions.open(sessions.token)
    assert session is not None
    right = f"aiodist={session.cookie}"
    assert sessions.admits(session.path, right)
    assert sessions.admits(
        session.path, f"aiodist=anothers; x=y; {right}"
    )  # set by another port of this host
    assert not sessions.admits(session.path, "")
    assert not sessions.admits(session.path, "aiodist=")
    assert not sessions.admits(session.path, f"other={session.cookie}")
    assert not sessions.admits("", right)
    assert not sessions.admits(session.cookie, right)
    assert not sessions.admits(session.path, f"aiodist={session.path}")
    assert not sessions.admits("\udcff", right)


def test_nobody_is_admitted_before_anybody_has_signed_in() -> None:
    assert not made().admits("", "aiodist=")


@pytest.mark.parametrize(
    ("header", "right"),
    [
        ("Bearer t0ken", True),
        ("bearer t0ken", True),
        ("Bearer", False),
        ("", False),
        ("Basic t0ken", False),
        ("t0ken", False),
    ],
)
def test_a_bearer_token(header: str, right: bool) -> None:
    assert bears(header, "t0ken") is right


def test_an_empty_token_opens_nothing() -> None:
    assert not bears("Bearer ", "")


@pytest.mark.parametrize(
    ("headers", "navigates", "why"),
    [
        ({"Host": "127.0.0.1:80"}, False, ""),
        ({"Host": "localhost:9000"}, False, ""),  # the near end of ssh -L
        ({"Host": "[::1]:80"}, False, ""),
        ({"Host": "named:80"}, False, ""),
        ({"Host": "LOCALHOST."}, False, ""),
        ({}, True, "Host"),
        ({"Host": ""}, True, "Host"),
        ({"Host": "evil.example:80"}, True, "Host"),  # DNS rebinding
        ({"Host": "127.0.0.1.evil.example"}, True, "Host"),
        ({"Host": "127.0.0.1@evil.example"}, True, "Host"),
        ({"Host": "evil.example#127.0.0.1"}, True, "Host"),
        ({"Host": "127.0.0.1:port"}, True, "Host"),
        ({"Host": "[::1"}, True, "Host"),
        ({"Host": "127.0.0.1:80", "Origin": "http://127.0.0.1:80"}, False, ""),
        ({"Host": "127.0.0.1:80", "Origin": "http://127.0.0.1:81"}, False, "another site"),  # another port
        ({"Host": "127.0.0.1:80", "Origin": "https://127.0.0.1:80"}, False, "another site"),
        ({"Host": "127.0.0.1:80", "Origin": "null"}, False, "another site"),
        ({"Host": "127.0.0.1:80", "Sec-Fetch-Site": "same-origin"}, False, ""),
        ({"Host": "127.0.0.1:80", "Sec-Fetch-Site": "none"}, False, ""),
        ({"Host": "127.0.0.1:80", "Sec-Fetch-Site": "same-site"}, False, "another site"),
        ({"Host": "127.0.0.1:80", "Sec-Fetch-Site": "cross-site"}, False, "another site"),
        ({"Host": "127.0.0.1:80", "Sec-Fetch-Site": "cross-site"}, True, ""),  # a link to the empty page
    ],
)
def test_where_a_request_comes_from(headers: dict[str, str], navigates: bool, why: str) -> None:
    found = refusal(headers, ("named",), navigates=navigates)
    assert why in found
    assert bool(found) is bool(why)
