"""Signals that ask a command to stop."""

from __future__ import annotations

import asyncio
import os
import signal

from aiodist.net.stop_signals import stop_on


async def test_the_first_signal_says_the_code() -> None:
    left = stop_on({signal.SIGUSR1: 7, signal.SIGUSR2: 8})
    os.kill(os.getpid(), signal.SIGUSR2)
    assert await left == 8
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.sleep(0)
    assert left.result() == 8


async def test_an_ignored_signal_stays_so() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        left = stop_on({signal.SIGUSR1: 7})
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.01)
        assert not left.done()
    finally:
        signal.signal(signal.SIGUSR1, before)
