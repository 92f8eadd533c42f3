"""Waiting for what tells nobody when it comes: with a limit, and with words for what did not come."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 100.0  # seconds: less than a test's limit, and much on a machine full of work


def until(look: Callable[[], T], what: str, *needed: subprocess.Popen[Any], patience: float = PATIENCE) -> T:
    """What a look finds, as soon as it is something.

    Args:
        look: looks once.
        what: is waited for, for who reads that it did not come.
        needed: processes without which it cannot come.
        patience: seconds.

    Raises:
        AssertionError: it has not come in time, or one of the processes has ended.
    """
    limit = time.monotonic() + patience
    while True:
        ended = [process.args for process in needed if process.poll() is not None]
        if found := look():
            return found
        assert not ended, f"{what}: did not come before the end of {ended}"
        assert time.monotonic() < limit, f"{what}: did not come within {patience:g} s"
        time.sleep(0.02)


async def until_so(holds: Callable[[], object], what: str = "what the test waits for") -> None:
    """Let the loop turn until something is so; `AssertionError` where it is not in time."""
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit, f"{what}: is not so after {PATIENCE:g} s"
        await asyncio.sleep(0)
