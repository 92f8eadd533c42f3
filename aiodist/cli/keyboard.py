"""Keys of the terminal, as they are pressed."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def keys(take: Callable[[bytes], object]) -> Iterator[None]:
    """Call `take` with what is pressed, on the running loop; b'' when the terminal has gone.

    Without a terminal nothing is pressed. Ctrl-C is a signal as ever; Ctrl-Z does nothing, since what is on
    the screen would stay there.
    """
    if not sys.stdin.isatty():
        yield
        return
    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read() -> None:
        try:
            pressed = os.read(terminal, 64)
        except OSError:
            pressed = b""
        if not pressed:
            loop.remove_reader(terminal)
        take(pressed)

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    attributes = termios.tcgetattr(terminal)
    attributes[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(terminal, termios.TCSADRAIN, attributes)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        with suppress(termios.error):  # it has gone
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
