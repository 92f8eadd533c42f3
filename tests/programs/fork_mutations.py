"""Ranks that fork, with a mend taken back: `python -m tests.programs.fork_mutations NAME`, and then the
arguments of `fork_rank`."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any

from aiodist.net import forks, sockets
from tests.programs.fork_rank import main


def shared_epoll() -> None:
    """A child has its parent's epoll instance."""
    forks._renew_selector = lambda selector: None
    uv_of = forks._uv

    class Shares:
        def __init__(self, library: Any) -> None:
            self.library = library

        def __getattr__(self, name: str) -> Any:
            return getattr(self.library, name)

        def uv_loop_fork(self, address: int) -> None:
            """Leave the loop as it is."""

    def shares(loop: asyncio.AbstractEventLoop) -> Any:
        uv = uv_of(loop)
        return uv and uv._replace(library=Shares(uv.library))

    forks._uv = shares


def shared_descriptors() -> None:
    """A child has its parent's connections, bells and locks."""
    forks._lead_nowhere = lambda: None


def names_by_the_loop() -> None:
    """uvloop looks names up, in threads of libuv's."""

    async def looks_up(host: str, port: int) -> list[Any]:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)

    sockets._look_up = looks_up


def no_threads_at_the_end() -> None:
    """A child of a process with libuv's threads starts none of its own."""
    forks._has_pool = lambda process: False


Mutation = Callable[[], None]
MUTATIONS: list[tuple[Mutation, int]] = [
    (shared_epoll, 0),
    (shared_epoll, 20),
    (shared_descriptors, 20),
    (names_by_the_loop, 20),
    (no_threads_at_the_end, 20),
]
"""Each with the first seed of the job to begin with: while programs are drawn as they are, one soon after it
finds it. 0 is on asyncio's loop, the others are on uvloop's."""


if __name__ == "__main__":
    next(one for one, _ in MUTATIONS if one.__name__ == sys.argv[1])()
    main(sys.argv[2:])
