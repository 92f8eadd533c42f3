"""The claim of ranks in a store: no rank is there twice."""

from __future__ import annotations

import os
import socket

from aiodist.base.errors import RendezvousError, UsageError
from aiodist.base.sanitize import one_line
from aiodist.rendezvous.store import Store

_RANKS = "aiodist/rank"


def this_process() -> bytes:
    """Describe this process, for `claim_rank`: b'pid 4711 on host a'."""
    return f"pid {os.getpid()} on host {socket.gethostname()}".encode()


async def claim_rank(store: Store, rank: int, description: bytes) -> None:
    """Be the one process of this rank.

    The claim ends with this process where the store can see that (see `Store.claim`).

    Args:
        store: where the ranks of the job meet.
        rank: global rank.
        description: who this is, for the other's error: b'pid 4711 on host a'. Equal descriptions are the
            same process, which may claim its rank again.

    Raises:
        RendezvousError: another process has the rank; says who, and who this is.
    """
    if not description:
        raise UsageError("a rank is claimed with a description, it must not be empty")
    owner = await store.claim(f"{_RANKS}/{rank}", description)
    if owner != description:
        raise RendezvousError(
            f"rank {rank} is taken by {_shown(owner)}; this is {_shown(description)}",
            hint="Give each process its own RANK, and each job its own MASTER_PORT",
        )


async def release_rank(store: Store, rank: int, description: bytes) -> None:
    """Give a claimed rank back, for a store that outlives the process. Another's claim stays."""
    await store.compare_set(f"{_RANKS}/{rank}", description, b"")


def _shown(description: bytes) -> str:
    return one_line(description, 200)
