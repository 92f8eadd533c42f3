"""Servers of other libraries that this process keeps at a port for its own later use.

Whatever else of this process wants the port comes first: `sockets.listen` lets go of what is kept there.
"""

from __future__ import annotations

import os

_kept: dict[int, tuple[int, object]] = {}  # by port: the process, and the server, which ends with its object


def keep(port: int, server: object) -> None:
    """Keep a server at its port, in place of the one that was kept there."""
    _kept[port] = os.getpid(), server


def let_go(port: int | None = None) -> None:
    """Let go of the server at a port; None: of all. A forked child leaves its parent's as they are, because
    the threads that these would wait for are not there."""
    for one in list(_kept) if port is None else [port]:
        if _kept.get(one, (0, None))[0] == os.getpid():
            del _kept[one]
