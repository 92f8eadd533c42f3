"""Signals to one thread of a process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from queue import SimpleQueue

import pytest

from aiodist.base.environment.threads import send_to_thread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system call is Linux's")


def test_the_thread_that_is_named_gets_it() -> None:
    """Two threads wait for the signal, which the kernel would give to either."""
    ready: SimpleQueue[int] = SimpleQueue()
    got: SimpleQueue[int] = SimpleQueue()

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        ready.put(threading.get_native_id())
        signal.sigwait({signal.SIGUSR2})
        got.put(threading.get_native_id())

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in [ready.get() for _ in threads]:
        assert send_to_thread(os.getpid(), number, signal.SIGUSR2)
        assert got.get() == number
    for thread in threads:
        thread.join()


def test_a_thread_that_is_not_there_gets_none() -> None:
    assert not send_to_thread(os.getpid(), 2**22 + 1, signal.SIGUSR2)
    assert not send_to_thread(2**22 + 1, 2**22 + 1, signal.SIGUSR2)
