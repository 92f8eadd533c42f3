"""From a worker's pipe to the console: whole lines, no blocking, back-pressure, broken readers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiodist.launch.worker.lines import LastWords
from aiodist.launch.worker.output import HIGH, Console, Relay


class Pipes:
    """Pipes of a test, closed at its end."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def make(self) -> tuple[int, int]:
        ends = os.pipe()
        self.fds += ends
        return ends

    def close(self, fd: int) -> None:
        self.fds.remove(fd)
        os.close(fd)

    def give(self, fd: int) -> int:
        """Somebody else owns it now."""
        self.fds.remove(fd)
        return fd


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    pipes = Pipes()
    yield pipes
    for fd in pipes.fds:
        os.close(fd)


async def test_lines_are_prefixed_and_remembered(pipes: Pipes, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    console_read, console_write = pipes.make()
    worker_read, worker_write = pipes.make()
    console, words = Console(loop, console_write), LastWords()
    log = tmp_path / "log"
    relay = Relay(
        loop,
        pipes.give(worker_read),
        console=console,
        prefix="h:0│ ".encode(),
        file=os.open(log, os.O_WRONLY | os.O_CREAT),
        words=words,
    )
    os.write(worker_write, b"one\ntwo\r\nthr")
    relay.finish()
    await console.flush()
    assert os.read(console_read, 4096).decode() == "h:0│ one\nh:0│ two\nh:0│ thr\n"
    assert log.read_bytes() == b"one\ntwo\r\nthr"
    assert words.excerpt() == ("one", "two", "thr")


async def test_a_relay_reads_by_itself_until_the_end(pipes: Pipes) -> None:
    loop = asyncio.get_running_loop()
    worker_read, worker_write = pipes.make()
    console_read, console_write = pipes.make()
    Relay(loop, pipes.give(worker_read), console=Console(loop, console_write))
    os.write(worker_write, b"hello")
    pipes.close(worker_write)
    arrived: asyncio.Future[None] = loop.create_future()
    loop.add_reader(console_read, arrived.set_result, None)
    await arrived
    loop.remove_reader(console_read)
    assert os.read(console_read, 100) == b"hello\n"


async def test_a_slow_reader_holds_the_workers_not_the_loop(pipes: Pipes) -> None:
    loop = asyncio.get_running_loop()
    console_read, console_write = pipes.make()
    console = Console(loop, console_write)
    line = b"x" * 99
    for _ in range(HIGH // 50):
        console.line(b"", line)
    assert console.full
    room: asyncio.Future[None] = loop.create_future()
    console.when_room(lambda: room.set_result(None))
    received = bytearray()

    def read() -> None:
        received.extend(os.read(console_read, 1 << 16))

    loop.add_reader(console_read, read)
    await room
    await console.flush()
    os.close(pipes.give(console_write))
    loop.remove_reader(console_read)
    while data := os.read(console_read, 1 << 16):
        received.extend(data)
    assert bytes(received) == (line + b"\n") * (HIGH // 50)


async def test_a_stuck_console_is_given_up_after_its_time(pipes: Pipes) -> None:
    _, console_write = pipes.make()
    console = Console(asyncio.get_running_loop(), console_write)
    console.write(b"x" * (1 << 20))
    await console.flush(timeout=0.01)
    assert console.broken
    console.write(b"dropped")
    await console.flush()


async def test_a_reader_that_went_away_is_no_error(pipes: Pipes) -> None:
    console_read, console_write = pipes.make()
    console = Console(asyncio.get_running_loop(), console_write)
    pipes.close(console_read)
    console.line(b"", b"into the void")
    assert console.broken
    await console.flush()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="it has no /dev/full")
async def test_a_full_disk_is_said_once(pipes: Pipes) -> None:
    said: list[str] = []
    full = os.open("/dev/full", os.O_WRONLY)
    pipes.fds.append(full)
    console = Console(asyncio.get_running_loop(), full, said.append)
    console.line(b"", b"one")
    console.line(b"", b"two")
    await console.flush()
    assert console.broken and said == ["No space left on device"]


async def test_a_reader_that_went_away_is_not_told(pipes: Pipes) -> None:
    said: list[str] = []
    console_read, console_write = pipes.make()
    console = Console(asyncio.get_running_loop(), console_write, said.append)
    pipes.close(console_read)
    console.line(b"", b"into the void")
    assert console.broken and said == []


async def test_a_worker_without_console_is_drained_all_the_same(pipes: Pipes) -> None:
    worker_read, worker_write = pipes.make()
    words = LastWords()
    relay = Relay(asyncio.get_running_loop(), pipes.give(worker_read), console=None, words=words)
    os.write(worker_write, b"quiet\n")
    relay.finish()
    assert words.excerpt() == ("quiet",)


async def test_live_lines_are_drawn_over_on_a_terminal(pipes: Pipes) -> None:
    loop = asyncio.get_running_loop()
    leader, follower = os.openpty()
    pipes.fds += [leader, follower]
    console = Console(loop, follower)
    assert console.is_terminal
    console.live_line(b"0| ", b"10% and too long", 7)
    console.line(b"1| ", b"hello")
    console.live_line(b"0| ", b"20%", 7)
    await console.flush()
    shown = b""
    while not shown.endswith(b"20%\r\n"):
        shown += os.read(leader, 4096)
    assert shown == b"0| 10% and\r\x1b[K1| hello\r\n0| 20%\r\n"


async def test_a_file_that_is_full_begins_anew(pipes: Pipes, tmp_path: Path) -> None:
    worker_read, worker_write = pipes.make()
    log = tmp_path / "log"
    relay = Relay(
        asyncio.get_running_loop(),
        pipes.give(worker_read),
        console=None,
        file=os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        most=10,
    )
    for text, held in ((b"12345\n", b"12345\n"), (b"678\n", b"12345\n678\n"), (b"9\n", b"9\n")):
        os.write(worker_write, text)
        for _ in range(1000):  # turns
            if log.read_bytes() == held:
                break
            await asyncio.sleep(0)
        assert log.read_bytes() == held
    relay.finish()
