"""The client of torch's TCPStore: against torch's own server, and against what is something else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import RendezvousError, RendezvousTimeout, UsageError
from aiodist.rendezvous import StoreServer
from aiodist.rendezvous.launchers import agent_store
from aiodist.rendezvous.launchers.agent_store import MAX_TEXT, AgentStore

HOST = "127.0.0.1"
GREETING = 10  # bytes: VALIDATE and PING; the last four are to come back
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=[True, False], ids=["libuv", "poll"])
def start_torch(distributed: Any, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Starts torch's store, on each of its backends → its first client. It ends when nobody holds that."""

    def start(host: str = HOST) -> Any:
        limit = timedelta(seconds=60)
        return distributed.TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=limit, use_libuv=request.param
        )

    return start


def dial(store: Any, host: str = HOST) -> Awaitable[AgentStore]:
    return AgentStore.connect(host, store.port, 60)


@contextlib.asynccontextmanager
async def serving(serve: Serve, host: str = HOST) -> AsyncIterator[int]:
    """A server that treats each connection so → its port. Its connections end with it."""
    writers: list[asyncio.StreamWriter] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError, EOFError):
            await serve(reader, writer)

    server = await asyncio.start_server(accepted, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await server.wait_closed()


def says(answer: bytes, *, then_closes: bool = False) -> Serve:
    """Greets as torch's store does, and gives this answer to the first request after that."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readexactly(GREETING))[-4:])
        await reader.read(1)
        writer.write(answer)
        if then_closes:
            writer.close()
        await reader.read()

    return serve


@contextlib.asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[AgentStore]:
    """A connection to a server that treats it so."""
    async with serving(serve) as port, contextlib.aclosing(await AgentStore.connect(HOST, port, 60)) as store:
        yield store


async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


# torch's own store.


async def test_torch_reads_what_we_set(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    async with contextlib.aclosing(await dial(torch_store)) as store:
        await store.set("aiodist/a", "10.1.2.3:4567")
        await store.set("aiodist/b", "Größe")
        await store.set("aiodist/b", "größer")
        assert torch_store.get("aiodist/a") == b"10.1.2.3:4567"
        assert torch_store.get("aiodist/b") == "größer".encode()


async def test_we_read_what_torch_set(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    torch_store.set("a", "10.1.2.3:4567")
    torch_store.set("short", "x")
    torch_store.set("longest", "x" * MAX_TEXT)
    async with contextlib.aclosing(await dial(torch_store)) as store:
        assert await store.get("a", 60) == "10.1.2.3:4567"
        assert await store.get("short", timedelta(days=10_000)) == "x"
        assert await store.get("longest", float("inf")) == "x" * MAX_TEXT


async def test_we_read_what_another_of_us_set(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    longest = "k" * (MAX_TEXT - 1)  # and the slash
    async with (
        contextlib.aclosing(await dial(torch_store)) as one,
        contextlib.aclosing(await dial(torch_store)) as other,
    ):
        await one.set(longest, "v" * MAX_TEXT)
        assert await other.get(longest, 60) == "v" * MAX_TEXT


async def test_a_get_waits_for_the_key(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    async with contextlib.aclosing(await dial(torch_store)) as store:
        getting = asyncio.ensure_future(store.get("late", 60))
        await asyncio.sleep(0)  # the request leaves
        assert not torch_store.check(["late"])  # a round trip later the server has seen it
        await asyncio.sleep(0)
        assert not getting.done()
        torch_store.set("late", "at last")
        assert await getting == "at last"
        await store.set("and", "on")
        assert torch_store.get("and") == b"on"


async def test_calls_at_once_take_turns(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    for number in range(5):
        torch_store.set(f"in{number}", f"value {number}")
    async with contextlib.aclosing(await dial(torch_store)) as store:
        gets = [store.get(f"in{number}", 60) for number in range(5)]
        sets = [store.set(f"out{number}", f"set {number}") for number in range(5)]
        got = await asyncio.gather(*gets, *sets)
    assert got[:5] == [f"value {number}" for number in range(5)]
    assert [torch_store.get(f"out{number}") for number in range(5)] == [b"set %d" % n for n in range(5)]


async def test_what_never_comes_is_a_timeout_and_ends_the_connection(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    async with contextlib.aclosing(await dial(torch_store)) as store:
        said = rf"^rank 0 left no 'a/b' in torchrun's store at {HOST}:\d+ within 0.05 s\. See rank 0's output"
        with pytest.raises(RendezvousTimeout, match=said):
            await store.get("a/b", timedelta(milliseconds=50))
        with pytest.raises(RendezvousError, match=r"is over\. Connect again$"):
            await store.set("a/b", "too late")
    async with contextlib.aclosing(await dial(torch_store)) as store:  # the server took no harm
        await store.set("a/b", "now")
        assert await store.get("a/b", 60) == "now"


async def test_who_is_cancelled_ends_the_connection(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    async with contextlib.aclosing(await dial(torch_store)) as store:
        getting = asyncio.ensure_future(store.get("never", 60))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(store.get("next", 60))
        await asyncio.sleep(0)
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        with pytest.raises(RendezvousError, match="is over"):
            await waiting
    torch_store.set("never", "nobody waits any more")


async def test_who_waits_for_a_turn_ends_nothing(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    async with contextlib.aclosing(await dial(torch_store)) as store:
        getting = asyncio.ensure_future(store.get("late", 60))
        await asyncio.sleep(0)
        with pytest.raises(RendezvousTimeout, match="rank 0 left no 'other'"):
            await store.get("other", 0.01)
        torch_store.set("late", "in time")
        assert await getting == "in time"


async def test_texts_are_bounded(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    torch_store.set("huge", "x" * (MAX_TEXT + 1))
    async with contextlib.aclosing(await dial(torch_store)) as store:
        for key, value in (
            ("k", "x" * (MAX_TEXT + 1)),
            ("k" * MAX_TEXT, "v"),
            ("k", "ö" * MAX_TEXT),
            ("k", ""),
        ):
            with pytest.raises(UsageError, match=f"texts of 1 to {MAX_TEXT} bytes"):
                await store.set(key, value)
        await store.set("fits", "v")  # nothing of those was sent
        with pytest.raises(RendezvousError, match=f"answered with {MAX_TEXT + 1} bytes"):
            await store.get("huge", 60)


async def test_a_key_that_goes_between_wait_and_get_is_an_error(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    async with contextlib.aclosing(await dial(torch_store)) as store:
        getting = asyncio.ensure_future(store.get("k", 60))
        await asyncio.sleep(0)
        assert not torch_store.check(["k"])
        torch_store.set("k", "v")
        assert torch_store.delete_key("k")  # while this loop does not turn
        with pytest.raises(
            RendezvousError, match=r"^lost torchrun's store at .*: it (ended|answered with 0)"
        ):
            await getting


async def test_a_store_that_ends_ends_who_waits(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch()
    async with contextlib.aclosing(await dial(torch_store)) as store:
        getting = asyncio.ensure_future(store.get("never", 60))
        await asyncio.sleep(0)
        assert not torch_store.check(["never"])
        del torch_store
        with pytest.raises(
            RendezvousError, match=r"^lost torchrun's store at .*: (it ended|Connection reset)"
        ):
            await getting


async def test_ipv6(start_torch: Callable[..., Any]) -> None:
    torch_store = start_torch("::1")
    async with contextlib.aclosing(await dial(torch_store, "::1")) as store:
        await store.set("six", "[::1]:1")
        assert torch_store.get("six") == b"[::1]:1"


# Something else.


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(1 << 20))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)


async def slams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readexactly(GREETING))[-4:-1])
    writer.close()


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (mute, "it gave no answer within 0.05 s"),
        (http, "it answered b'HTTP' to a ping"),
        (echo, "it answered .* to a ping"),
        (slams, "it ended the connection|Connection reset by peer"),
        (half, "it ended the connection"),
    ],
)
async def test_something_else_is_named(serve: Serve, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if serve is mute:
        monkeypatch.setattr(agent_store, "ECHO_SECONDS", 0.05)
    async with serving(serve) as port:
        who = (
            rf"^what listens on {HOST}:{port}, pid {os.getpid()} \(.*\), is not torchrun's store: ({said})\. "
        )
        with pytest.raises(RendezvousError, match=who) as caught:
            await AgentStore.connect(HOST, port, 60)
    assert caught.value.hint.startswith("MASTER_ADDR and MASTER_PORT must be as torchrun")
    assert "\n" not in str(caught.value)


async def test_a_store_that_answers_late_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """torch's store answers the first request when the name server has answered, or not, after seconds."""
    warned = asyncio.Event()

    def seen(record: logging.LogRecord) -> bool:
        warned.set()
        return True

    caplog.handler.addFilter(seen)
    monkeypatch.setattr(agent_store, "LATE_SECONDS", 0.01)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = await reader.readexactly(GREETING)
        await warned.wait()
        writer.write(greeting[-4:])
        await reader.read()

    async with connected(serve) as store:
        assert isinstance(store, AgentStore)
    said = rf"^what listens on {HOST}:\d+, pid {os.getpid()} \(.*\), has not answered for 0.01 s: either "
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert re.match(said, caplog.records[0].getMessage())


def test_a_silent_name_server_is_no_reason_to_give_up() -> None:
    """The resolver's own limits: three name servers, two attempts of 5 s each."""
    assert agent_store.ECHO_SECONDS > 3 * 2 * 5


async def test_too_little_time_to_know_what_it_is() -> None:
    async with serving(mute) as port:
        said = rf"^no answer from {HOST}:{port}, where torchrun's store should be, within 0.05 s"
        with pytest.raises(RendezvousTimeout, match=said):
            await AgentStore.connect(HOST, port, 0.05)


async def test_a_store_of_ours_is_something_else() -> None:
    async with await StoreServer.start(HOST, 0, "job", b"secret") as server:
        with pytest.raises(RendezvousError, match=r"is not torchrun's store: (it ended|Connection reset)"):
            await AgentStore.connect(HOST, server.port, 60)


async def test_nobody_there() -> None:
    async with serving(mute) as port:
        pass
    said = rf"^cannot reach torchrun's store at {HOST}:{port} \(Connection refused\)\. See whether torchrun"
    with pytest.raises(RendezvousError, match=said):
        await AgentStore.connect(HOST, port, 60)


async def test_a_host_that_is_silent_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(host: str, port: int) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(agent_store, "connect", connect)
    with pytest.raises(RendezvousTimeout, match=r"^no answer from \[fe80::1\]:29500, where .* within 0.01 s"):
        await AgentStore.connect("fe80::1", 29500, timedelta(milliseconds=10))


@pytest.mark.parametrize("timeout", [0, -1.0, timedelta(0)])
async def test_a_timeout_is_positive(timeout: float | timedelta) -> None:
    with pytest.raises(UsageError, match="timeout must be a positive number"):
        await AgentStore.connect(HOST, 1, timeout)


# A store that goes wrong.


def value(data: bytes) -> bytes:
    return struct.pack("=Q", len(data)) + data


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "it ended the connection"),
        (b"\x01", r"it answered b'\\x01' to a wait"),
        (b"\x00", "it ended the connection"),
        (b"\x00" + value(b"half")[:-1], "it ended the connection"),
        (
            b"\x00" + b"\xff" * 8,
            "it answered with 18446744073709551615 bytes, where 1 to 4096 are expected",
        ),
        (b"\x00" + value(b""), "it answered with 0 bytes, where 1 to 4096 are expected"),
        (b"\x00" + value(b"\xff\xfe"), "it answered with bytes that are no text"),
    ],
)
async def test_a_wrong_answer_is_an_error(answer: bytes, said: str) -> None:
    async with connected(says(answer, then_closes=True)) as store:
        with pytest.raises(RendezvousError, match=rf"^lost torchrun's store at {HOST}:\d+: {said}\. See "):
            await store.get("k", 60)
        with pytest.raises(RendezvousError, match="is over"):
            await store.get("k", 60)


@given(answer=st.binary(max_size=40) | st.binary(max_size=30).map(lambda rest: b"\x00" + value(rest)))
def test_any_answer_is_a_text_or_an_error(answer: bytes) -> None:
    expected: str | None = None
    with contextlib.suppress(UnicodeDecodeError):
        if answer[:1] == b"\x00" and len(answer) >= 9:
            length = struct.unpack("=Q", answer[1:9])[0]
            if 0 < length <= len(answer) - 9:
                expected = answer[9 : 9 + length].decode()

    async def main() -> None:
        async with connected(says(answer, then_closes=True)) as store:
            if expected is None:
                with pytest.raises(RendezvousError, match=r"^lost torchrun's store"):
                    await store.get("k", 60)
            else:
                assert await store.get("k", 60) == expected

    asyncio.run(main())


async def test_a_set_is_done_when_the_store_has_it() -> None:
    async with connected(says(b"", then_closes=True)) as store:
        with pytest.raises(RendezvousError, match=r"^lost torchrun's store"):
            await store.set("k", "v")
    async with connected(says(b"else")) as store:
        with pytest.raises(RendezvousError, match="it answered b'else' to a ping"):
            await store.set("k", "v")
    async with connected(says(b"")) as store:
        store._patience = 0.05
        with pytest.raises(RendezvousTimeout, match=r"did not confirm 'k' within 0.05 s\. See whether"):
            await store.set("k", "v")


async def test_closing_ends_who_waits_and_may_be_repeated() -> None:
    async with serving(says(b"")) as port:
        store = await AgentStore.connect(HOST, port, 60)
        getting = asyncio.ensure_future(store.get("never", 60))
        await asyncio.sleep(0)
        await store.aclose()
        with pytest.raises(RendezvousError):
            await getting
        await store.aclose()
        with pytest.raises(RendezvousError, match="is over"):
            await store.get("k", 60)
