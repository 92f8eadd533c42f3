"""Shortages of a process itself are told from what is wrong with a peer."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from aiodist.base.errors import BackendUnavailable
from aiodist.net.shortage import EXHAUSTED, shortage
from aiodist.net.sockets import describe

OWN = {
    errno.EMFILE: "has no file descriptor left (its limit is ",
    errno.ENFILE: "is on a host that can open no more files",
    errno.ENOBUFS: "gets no memory from its host",
    errno.ENOMEM: "gets no memory from its host",
    errno.ETOOMANYREFS: "has too many file descriptors on their way to other processes",
    errno.EADDRNOTAVAIL: "has no local port left",
    errno.EACCES: "is not allowed to by its own host",
    errno.EPERM: "is not allowed to by its own host",
}
THEIRS = [
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.EPIPE,
    errno.EAGAIN,
]


@pytest.mark.parametrize(("number", "words"), OWN.items(), ids=errno.errorcode.get)
def test_what_is_its_own(number: int, words: str) -> None:
    error = OSError(number, os.strerror(number))
    found = shortage(error)
    assert found is not None
    assert found.what.startswith(words)
    assert found.hint
    wrapped = BackendUnavailable("no shared memory")
    wrapped.__cause__ = error
    assert shortage(wrapped) == found
    if number in EXHAUSTED:
        assert describe(error) == f"this process {found.what}"
    else:
        assert describe(error) == os.strerror(number)


@pytest.mark.parametrize("number", THEIRS, ids=errno.errorcode.get)
def test_what_may_be_the_peers(number: int) -> None:
    assert shortage(OSError(number, os.strerror(number))) is None


def test_what_is_no_error_of_the_system() -> None:
    for error in (None, TimeoutError(), BackendUnavailable("x"), OSError("without a number")):
        assert shortage(error) is None


def test_the_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, words in [(256, "256"), (resource.RLIM_INFINITY, "unlimited")]:
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=limit: (soft, soft))
        found = shortage(OSError(errno.EMFILE, ""))
        assert found is not None
        assert found.what.endswith(f"(its limit is {words})")
        assert "ulimit -n" in found.hint
