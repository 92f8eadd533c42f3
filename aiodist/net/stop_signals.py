"""The signals that ask a command to stop, as a future of its exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping

from aiodist.net.tasks import settle


def stop_on(codes: Mapping[signal.Signals, int]) -> asyncio.Future[int]:
    """A future that the first of some signals sets, to its exit code.

    One that is ignored (by nohup, or in a background job of sh) stays so.
    """
    loop = asyncio.get_running_loop()
    left: asyncio.Future[int] = loop.create_future()
    for signum, code in codes.items():
        if signal.getsignal(signum) is not signal.SIG_IGN:
            loop.add_signal_handler(signum, settle, left, code)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})  # whoever started us may have blocked it
    return left
