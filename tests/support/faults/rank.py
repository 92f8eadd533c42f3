"""The program of a rank process: one order after the other, each an async function, on a loop of its own.

Orders and answers are JSON, one packet each. Between orders the process waits in the kernel.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

PACKET = 128 << 10
"""Bytes of one message, at most."""


class Stage:
    """The stage of a scenario's function in one rank process. It is the function's first argument.

    Attributes:
        rank, size: this process's place in the job. A newcomer (`dist.join`) has the rank that it has in
            the round, not in the group.
        kept: survives the round: a dict for what is dear to make, such as large arrays.
    """

    def __init__(self, sock: socket.socket, rank: int, size: int, kept: dict[Any, Any], detour: Any) -> None:
        self.rank = rank
        self.size = size
        self.kept = kept
        self._sock = sock
        self._detour = detour
        self._store: Any = None
        self._steps: list[Any] = []

    def say(self, what: str, **facts: Any) -> None:
        """Tell the driver, with the time on CLOCK_MONOTONIC.

        Args:
            what: a word that the driver waits for, or collects.
            facts: JSON.
        """
        self._sock.send(json.dumps({"say": what, "at": time.monotonic_ns(), **facts}).encode())

    def told(self) -> list[str]:
        """The texts that the driver has told this rank since it was asked last (`Round.tell`)."""
        words = []
        try:
            while packet := self._sock.recv(PACKET, socket.MSG_DONTWAIT):
                words.append(json.loads(packet)["word"])
        except BlockingIOError:
            pass
        return words

    async def join(self, timeout: float = 60.0) -> Any:
        """`init_process_group`, as a rank of the round's job.

        Args:
            timeout: seconds, for meeting and for the group's operations.

        Returns:
            → the world's group.
        """
        import aiodist as dist

        if not self._detour:
            return await dist.init_process_group(timeout=timeout)
        from tests.support.faults.detour import detour_store

        self._store = await detour_store(self._detour, partial(self.say, "listens"))
        return await dist.init_process_group(
            store=self._store, rank=self.rank, world_size=self.size, timeout=timeout
        )

    def crash(self, point: str = "", count: int = 1) -> None:
        """Be killed by SIGKILL when this process's own aiodist code comes to a certain step.

        Args:
            point: 'module:qualified name' of a function of aiodist, at whose call it happens
                ('aiodist.group.epochs.world:World._link'); '' counts the calls of all of them.
            count: at which of those calls, from 1.
        """
        from tests.support.faults.steps import Steps

        def die() -> None:
            self.say("dies")
            os.kill(os.getpid(), signal.SIGKILL)

        self._steps.append(Steps(point, count, die))
        self._steps[-1].watch()


def main(orders: int) -> None:
    """Carry out the orders that come on this socket, until the driver has gone."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    kept: dict[Any, Any] = {}
    with socket.socket(fileno=orders) as sock:
        while packet := sock.recv(PACKET):
            order = json.loads(packet)
            if "word" not in order:  # else it was told to a round that is over
                _obey(sock, order, kept)


@functools.cache
def _function(path: str, qualname: str) -> Callable[..., Any]:
    from aiodist.testing.worker import load

    return load(path, qualname)  # type: ignore[no-any-return]


def _obey(sock: socket.socket, order: dict[str, Any], kept: dict[Any, Any]) -> None:
    from aiodist import run

    os.environ.update(order["env"])
    stage = Stage(sock, order["rank"], order["size"], kept, order["detour"])
    try:
        function = _function(order["path"], order["qualname"])
        value = run(_act(function, stage, order["arguments"]))
        answer = {"value": value}
    except BaseException as error:
        words = "".join(traceback.format_exception(error))
        answer = {"error": f"{type(error).__name__}: {error}", "trace": words[-8000:]}
    finally:
        for steps in stage._steps:
            steps.stop()
    stage.say("ends", **answer)


async def _act(function: Callable[..., Any], stage: Stage, arguments: dict[str, Any]) -> Any:
    try:
        return await function(stage, **arguments)
    finally:
        if stage._store is not None:
            await stage._store.underlying.aclose()
