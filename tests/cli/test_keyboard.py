"""Keys as they are pressed; the terminal is as before at the end."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
import termios
from collections.abc import Iterator

import pytest

from aiodist.cli.keyboard import keys


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The other side of a terminal, which is standard input."""
    handle, slave = pty.openpty()
    held = [handle]
    with os.fdopen(slave, "rb", buffering=0) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        yield held
    for one in held:
        os.close(one)


async def test_each_is_taken_at_once_and_not_shown(master: list[int]) -> None:
    pressed: asyncio.Queue[bytes] = asyncio.Queue()
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    with keys(pressed.put_nowait):
        now = termios.tcgetattr(terminal)
        assert not now[3] & (termios.ECHO | termios.ICANON)
        assert now[3] & termios.ISIG  # Ctrl-C is a signal as ever
        assert now[6][termios.VSUSP] == b"\0"
        os.write(master[0], b"q")
        assert await pressed.get() == b"q"
        os.write(master[0], b"\x1b[A")
        assert await pressed.get() == b"\x1b[A"
    assert termios.tcgetattr(terminal) == before


async def test_a_terminal_that_has_gone_is_told_once(master: list[int]) -> None:
    pressed: asyncio.Queue[bytes] = asyncio.Queue()
    with keys(pressed.put_nowait):
        os.close(master.pop())
        assert await pressed.get() == b""
        await asyncio.sleep(0)
        assert pressed.empty()


async def test_without_a_terminal_nothing_is_pressed(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "rb") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with keys(lambda pressed: pytest.fail("pressed")):
            await asyncio.sleep(0)
