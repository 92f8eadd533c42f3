"""A proxy between two real sockets: what each fault looks like to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.ports import free_port
from tests.support.faults import FaultProxy
from tests.waiting import until_so

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that answers with what it hears, and remembers how each connection ended."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.ends: list[str] = []
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.heard += data
                writer.write(data)
                await writer.drain()
            self.ends.append("eof")
        except ConnectionResetError:
            self.ends.append("reset")
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    made = Echo()
    server = await made.start()
    yield made
    server.close()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[FaultProxy]:
    async with await FaultProxy.start(("127.0.0.1", echo.port), seed=3) as made:
        yield made


async def dial(proxy: FaultProxy) -> Streams:
    return await asyncio.open_connection(*proxy.address)


async def ended(echo: Echo) -> str:
    """How the server's first connection ended."""
    await until_so(lambda: echo.ends)
    return echo.ends[0]


async def test_without_faults_all_passes(echo: Echo, proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    data = bytes(range(256)) * 4000
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    assert (proxy.accepted, proxy.connections) == (1, 1)
    assert proxy.forth.passed == proxy.back.passed == len(data)
    writer.close()
    assert await ended(echo) == "eof"


async def test_corrupt(echo: Echo, proxy: FaultProxy) -> None:
    proxy.forth.plan("corrupt", at=2, bit=0)
    reader, writer = await dial(proxy)
    writer.write(b"aaaa")
    assert await reader.readexactly(4) == b"aa`a"
    proxy.forth.forget()
    writer.close()
    await ended(echo)
    reader, writer = await dial(proxy)
    writer.write(b"aaaa")
    assert await reader.readexactly(4) == b"aaaa"
    writer.close()


async def test_cut_is_a_reset_on_both_sides(echo: Echo, proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    writer.write(b"hello")
    await reader.readexactly(5)
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    assert await ended(echo) == "reset"
    writer.close()


async def test_close_all_is_an_end_on_both_sides(echo: Echo, proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    writer.write(b"hello")
    await reader.readexactly(5)
    proxy.close_all()
    assert await reader.read(1) == b""
    assert await ended(echo) == "eof"
    writer.close()


async def test_partial_frame_and_then_an_end(echo: Echo, proxy: FaultProxy) -> None:
    proxy.forth.plan("finish", at=7)
    reader, writer = await dial(proxy)
    writer.write(b"0123456789")
    assert await reader.read(100) == b"0123456"
    assert await ended(echo) == "eof"
    assert await reader.read(1) == b""  # the server closed, too
    writer.close()


async def test_strike_counts_from_where_the_stream_is(echo: Echo, proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    writer.write(b"abc")
    await reader.readexactly(3)
    proxy.back.strike("cut", after=2)
    writer.write(b"defg")
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(4)
    assert echo.heard == b"abcdefg"
    assert await ended(echo) == "reset"
    writer.close()


async def test_half_close_ends_one_way_only(echo: Echo, proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    writer.write(b"abc")
    await reader.readexactly(3)
    proxy.back.finish()
    assert await reader.read(1) == b""
    writer.write(b"def")
    await until_so(lambda: echo.heard == b"abcdef")
    writer.close()
    assert await ended(echo) == "eof"


async def test_drop_swallows_silently(echo: Echo, proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    writer.write(b"abc")
    await reader.readexactly(3)
    proxy.forth.drop()
    writer.write(b"x" * 3_000_000)  # more than any buffer on the way has room for
    await writer.drain()
    await until_so(lambda: proxy.forth.passed == 3_000_003)
    assert echo.heard == b"abc"
    writer.close()


async def test_clog_holds_everything_and_loses_nothing(echo: Echo, proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    proxy.forth.clog()
    data = bytes(range(250)) * 100_000
    writer.write(data)
    with pytest.raises(TimeoutError):  # the way is full: the sender cannot get rid of it
        async with asyncio.timeout(0.2):
            await writer.drain()
    assert not echo.heard
    proxy.forth.unclog()
    assert await reader.readexactly(len(data)) == data
    writer.close()


async def test_planned_clog_stops_at_its_byte(echo: Echo, proxy: FaultProxy) -> None:
    proxy.forth.plan("clog", at=2)
    reader, writer = await dial(proxy)
    writer.write(b"abcd")
    assert await reader.readexactly(2) == b"ab"
    assert echo.heard == b"ab"
    proxy.forth.unclog()
    assert await reader.readexactly(2) == b"cd"
    writer.close()


async def test_delay_and_rate_take_time(echo: Echo, proxy: FaultProxy) -> None:
    proxy.forth.delay = 0.05
    proxy.back.rate = 100_000
    reader, writer = await dial(proxy)
    began = time.monotonic()
    writer.write(b"x" * 10_000)
    await reader.readexactly(10_000)
    assert time.monotonic() - began >= 0.15 - 0.01  # not a bound on speed: it cannot be faster
    writer.close()


async def test_nobody_behind_it_is_a_reset() -> None:
    async with await FaultProxy.start(("127.0.0.1", free_port())) as proxy:
        reader, writer = await dial(proxy)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()


async def test_the_target_may_become_known_later(echo: Echo) -> None:
    target: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
    async with await FaultProxy.start(lambda: target) as proxy:
        reader, writer = await dial(proxy)
        writer.write(b"abc")
        target.set_result(("127.0.0.1", echo.port))
        assert await reader.readexactly(3) == b"abc"
        writer.close()


async def test_the_same_seed_chooses_the_same_bits(echo: Echo) -> None:
    heard = []
    for _ in range(2):
        async with await FaultProxy.start(("127.0.0.1", echo.port), seed=11) as proxy:
            for at in range(20):
                proxy.forth.plan("corrupt", at=at)
            reader, writer = await dial(proxy)
            writer.write(bytes(20))
            heard.append(await reader.readexactly(20))
            writer.close()
    assert heard[0] == heard[1]
    assert len(set(heard[0])) > 2
