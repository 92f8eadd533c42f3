"""How ranks meet in a store: nobody twice, everybody's card to everybody."""

from __future__ import annotations

import os
import socket

from aiodist.errors import RendezvousError, RendezvousTimeout, UsageError
from aiodist.rendezvous.store import Store
from aiodist.timeouts import Timeout

MAX_CARD = 4096
_RANKS = "aiodist/rank"
_CARDS = "aiodist/cards"


def this_process() -> bytes:
    """Who this is, for `claim_rank`: b'pid 4711 on host a'."""
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


async def exchange(
    store: Store, rank: int, world_size: int, card: bytes, timeout: Timeout = None
) -> list[bytes]:
    """Show everybody this rank's card → the cards of all, in rank order. One round trip.

    Args:
        card: what peers must know of this rank, at most 4 KiB; opaque here.
        timeout: seconds; the store's default where None.

    Raises:
        RendezvousTimeout: `missing` holds the ranks that never came, and the message names them.
        RendezvousError: two came as one rank, or they count different worlds.
    """
    if len(card) > MAX_CARD:
        raise UsageError(f"a card has at most {MAX_CARD} bytes, this one {len(card)}")
    try:
        return await store.gather(_CARDS, world_size, rank, card, timeout)
    except RendezvousTimeout as error:
        if not error.missing:
            raise
        message = error.message.replace(f" to '{_CARDS}'", "").replace("did not come", "never arrived")
        raise RendezvousTimeout(
            f"the world of {world_size} is not complete: {message}", missing=error.missing, hint=error.hint
        ) from None


def _shown(description: bytes) -> str:
    text = description.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text[:200])
