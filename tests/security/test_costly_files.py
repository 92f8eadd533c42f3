"""Files and answers that cost far more than their size, or that never end: refused before they are read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aiodist.base.errors import AiodistError, CheckpointError, RendezvousError
from aiodist.cli.main import main
from aiodist.ddp.checkpoint import folder
from aiodist.ddp.checkpoint.folder import finish, index_of
from aiodist.ddp.checkpoint.index import file_of
from aiodist.observe import exchange
from aiodist.observe.dumps import LARGEST, read_job
from aiodist.observe.exchange import ASKED, SEEN, gather
from aiodist.observe.parcel import unpack
from aiodist.observe.trace import trace
from aiodist.rendezvous import HashStore
from aiodist.rendezvous.etcd import gateway
from aiodist.rendezvous.etcd.gateway import Gateway
from aiodist.rendezvous.etcd.place import EtcdPlace
from aiodist.rendezvous.etcd.refusals import EtcdAway
from tests.observe.made import a_job, a_rank, a_record


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each JSON text of others that is parsed."""
    sizes: list[int] = []

    def noting(data: bytes) -> Any:
        sizes.append(len(data))
        return loads(data)

    loads = json.loads
    monkeypatch.setattr(json, "loads", noting)
    return sizes


# ── what other hosts show ────────────────────────────────────────────────────────────────────────────


async def test_what_another_host_shows_is_read_off_the_loop_and_within_bounds(
    monkeypatch: pytest.MonkeyPatch, parsed: list[int]
) -> None:
    """65 KB of zlib made 1.75 GB, and held the loop of whoever asked for 9.9 s."""
    monkeypatch.setattr(exchange, "PATIENCE", 2.0)
    bomb = zlib.compress(b"[" + b"[]," * 21_000_000 + b"[]]", 1)
    threads: list[threading.Thread] = []

    def noting(data: bytes) -> Any:
        threads.append(threading.current_thread())
        return unpack(data)

    monkeypatch.setattr(exchange, "unpack", noting)
    store = HashStore()
    task = asyncio.ensure_future(gather(store, 2, [a_rank()], most=1, stacks=False))
    asker = ""
    async with contextlib.aclosing(store.watch(ASKED)) as wishes:
        async for event in wishes:
            asker = event.key.removeprefix(ASKED)
            break
    for number in range(5):
        await store.set(f"{SEEN}{asker}/{number}", bomb)
    assert await task == [a_rank()]
    assert 1 <= len(threads) <= 2, "of two ranks no more than two answers are read"
    assert threading.main_thread() not in threads
    assert sum(parsed) < 5 << 20


# ── dumps ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pipe_among_the_files_of_a_dump_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    for command in (["explain", str(tmp_path)], ["trace", str(tmp_path), "-o", str(tmp_path / "t.json")]):
        assert main(command) != 0
        assert "it is not a file" in capsys.readouterr().err


@pytest.mark.parametrize("text", [b"[],", b"{},", b"0,"])
def test_a_file_of_a_dump_with_many_parts_is_not_parsed(
    tmp_path: Path, text: bytes, parsed: list[int]
) -> None:
    (tmp_path / "rank0.json").write_bytes(b"[" + text * ((8 << 20) // len(text)) + b"0]")
    with pytest.raises(AiodistError, match=r"rank0.json' is no rank's dump .*too many for its size"):
        read_job(tmp_path)
    assert parsed == []


def test_a_file_of_a_dump_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "rank0.json").open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(AiodistError, match="more than 64 MiB"):
        read_job(tmp_path)


def lines_of(work: Callable[[], object]) -> int:
    """How many lines some work executes, each time round a loop: its cost, on any machine."""
    count = 0

    def noting(frame: object, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return noting

    before = sys.gettrace()
    sys.settrace(noting)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(("ranks", "lasting"), [(1, 5.0), (4, 1e-6), (10, 0.0)])
def test_a_trace_costs_in_proportion_to_its_operations(ranks: int, lasting: float) -> None:
    """16,000 took 5.5 s, 100,000 over two minutes: where they overlap, and where there are many ranks."""

    def job(count: int) -> Any:
        def one(number: int) -> Any:
            at = 10.0 + number * 1e-5
            return a_record(number=number, issued=at, pending=at, ended=at + lasting if lasting else 0.0)

        each = count // 50
        return a_job(
            *(
                a_rank(rank, [one(number) for number in range(each * 50 // ranks)], size=ranks)
                for rank in range(ranks)
            )
        )

    small, large = job(300), job(1200)
    assert lines_of(lambda: trace(large)) < 5 * lines_of(lambda: trace(small))


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────


def test_an_index_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = {"step": 1, "files": [file_of(0)], "sizes": [100], "tree": ["dict", [["a", "x" * 5000]]]}
    finish(tmp_path, index)
    assert index_of(tmp_path)["step"] == 1
    monkeypatch.setattr(folder, "MOST_BYTES", 4000)
    with pytest.raises(CheckpointError, match=r"index.json cannot be read: .* at most 4000"):
        index_of(tmp_path)
    (tmp_path / "index.json").unlink()
    with pytest.raises(CheckpointError, match=r"its index has .* bytes, more than are read again \(4000\)"):
        finish(tmp_path, index)
    assert list(tmp_path.iterdir()) == [], "what cannot be read is not there"


def test_an_index_of_empty_lists_is_not_parsed(tmp_path: Path, parsed: list[int]) -> None:
    (tmp_path / "index.json").write_bytes(b"[" + b"[]," * (4 << 20) + b"0]")
    with pytest.raises(CheckpointError, match="too many for its size"):
        index_of(tmp_path)
    assert parsed == []


def test_an_index_is_not_read_beyond_its_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "index.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="at most"):
        index_of(tmp_path)


# ── etcd ─────────────────────────────────────────────────────────────────────────────────────────────

needs_aiohttp = pytest.mark.skipif(find_spec("aiohttp") is None, reason="aiohttp is not installed")


class Etcd:
    """What answers where etcd should: it says one thing to all, and remembers what it was told."""

    def __init__(self, head: bytes, body: bytes = b"", times: int = 1) -> None:
        self.told = b""
        self.sent = 0
        self._head, self._body, self._times = head, body, times

    async def __aenter__(self) -> Etcd:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.told += await reader.readuntil(b"\r\n\r\n")
            length = int(self.told.lower().rpartition(b"content-length: ")[2].partition(b"\r")[0])
            self.told += await reader.readexactly(length)
            writer.write(self._head + b"Connection: close\r\n\r\n")
            for _ in range(self._times):
                writer.write(self._body)
                await writer.drain()
                self.sent += len(self._body)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def place(self) -> EtcdPlace:
        """Where it is, for somebody with a password."""
        return EtcdPlace((("127.0.0.1", self.port),), tls=False, user="me", password="sesame")


async def ask(server: Etcd) -> Any:
    """Ask it something."""
    there = Gateway(server.place())
    try:
        return await there.call("/v3/kv/range", {}, asyncio.get_running_loop().time() + 3)
    finally:
        await there.aclose()


@needs_aiohttp
@pytest.mark.parametrize("status", [b"301 Moved", b"302 Found", b"307 Temporary", b"308 Permanent"])
async def test_no_redirect_is_followed(status: bytes) -> None:
    """It got the password, and whatever was asked."""
    async with Etcd(b"HTTP/1.1 200 OK\r\n") as thief:
        head = b"HTTP/1.1 %b\r\nLocation: http://127.0.0.1:%d/v3/auth/authenticate\r\n" % (status, thief.port)
        async with Etcd(head) as server:
            with pytest.raises(
                RendezvousError, match="redirects to another address, which aiodist does not follow"
            ):
                await ask(server)
            assert b"sesame" in server.told
        assert thief.told == b""


@needs_aiohttp
async def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "MOST", 1 << 20)
    async with Etcd(b"HTTP/1.1 200 OK\r\n", b" " * (1 << 20), times=1000) as server:
        with pytest.raises(RendezvousError, match="its answer has more than"):
            await ask(server)
        assert server.sent < 900 << 20


@needs_aiohttp
async def test_a_refusal_has_a_largest_size() -> None:
    async with Etcd(b"HTTP/1.1 500 Oh\r\n", b"x" * (1 << 20), times=1000) as server:
        with pytest.raises(RendezvousError, match="HTTP status 500"):
            await ask(server)
        assert server.sent < 900 << 20


@needs_aiohttp
async def test_what_is_packed_is_not_unpacked() -> None:
    packed = zlib.compress(b"[" + b"[]," * 10_000_000 + b"0]", 9)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n"
    async with Etcd(head, packed) as server:
        with pytest.raises(RendezvousError, match="something else than etcd's JSON"):
            await ask(server)
        assert b"gzip" not in server.told


@needs_aiohttp
async def test_a_line_of_a_watch_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "MOST", 1 << 20)
    async with Etcd(b"HTTP/1.1 200 OK\r\n", b" " * (1 << 20), times=1000) as server:
        there = Gateway(EtcdPlace((("127.0.0.1", server.port),), tls=False))
        with pytest.raises(EtcdAway, match="its answer has more than"):
            async with there.watch({}) as lines:
                async for _ in lines:
                    pass
        await there.aclose()
        assert server.sent < 900 << 20
