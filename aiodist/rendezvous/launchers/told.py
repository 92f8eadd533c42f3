"""Meeting where rank 0 tells its address by means of somebody else's: a launcher's, or a library's.

Rank 0 listens on a free port and tells where; the others ask. Nothing else goes that way, and no secret:
whoever can read it learns where to knock, and no more.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Protocol

from aiodist.environment import split_address
from aiodist.errors import RendezvousTimeout
from aiodist.net.sockets import outward
from aiodist.rendezvous.hosting import address_towards, host, join, listens, own_address
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.sanitize import one_line
from aiodist.timeouts import spoken

_FIRST = 0.002  # seconds until the second look; then twice as long, up to `_AGAIN`
_PROBE = 3.0  # seconds for a connection to an address, which may be that of a host that is gone
_AGAIN = 0.2  # seconds until an address where nobody listens any more is looked up again
_meetings = itertools.count()  # of this process; all of a job's count alike


class Teller(Protocol):
    """A way for one process to tell all others of a job a text. Each passes when all have come."""

    async def tell(self, text: str) -> None:
        """Tell it. `RendezvousTimeout`: not all came in time."""

    async def ask(self) -> str:
        """Wait for the text that another process tells; likewise."""


class Texts(Protocol):
    """A store of texts by key, which all processes of a job reach."""

    async def set(self, key: str, value: str) -> None:
        """Leave a text; when this returns, the store has it."""

    async def look(self, key: str) -> str | None:
        """The text, if somebody has left it; None if not yet. May wait for it a while."""


async def meet_once(teller: Teller, invitation: Invitation) -> Meeting:
    """Meet where rank 0 tells. Errors: as of the teller."""
    if invitation.placement().rank == 0:
        return await host(invitation, own_address(invitation, outward()), 0, teller.tell)
    return await join(invitation, *split_address(await teller.ask(), "the address of rank 0"))


async def meet_by(
    texts: Texts, where: str, invitation: Invitation, there: str, name: str | None = None
) -> Meeting:
    """Meet where rank 0 says.

    Args:
        texts: the store; the caller closes it.
        where: what it is, for errors: "torchrun's store".
        there: the host that has the store, which all reach; '' where nobody knows it.
        name: of the key for the address, the same on all ranks; None: the number of this process's meetings,
            where every process of the job takes part in each.

    Raises:
        RendezvousTimeout: rank 0 told no address in time, or nobody listens there.
        and what the store raises.
    """
    limit = invitation.timeout
    key = key_of(invitation, str(next(_meetings)) if name is None else name)
    if invitation.placement().rank == 0:
        address = own_address(invitation, await address_towards(there, invitation))
        return await host(invitation, address, 0, partial(texts.set, key))
    return await join(invitation, *await _told(texts, where, key, limit))


def key_of(invitation: Invitation, name: str) -> str:
    """The key under which rank 0 leaves its address."""
    return f"aiodist/{invitation.job}/{name}"


async def _told(texts: Texts, where: str, key: str, limit: float) -> tuple[str, int]:
    """The address that rank 0 has left; not one that a rank 0 before has left, which is ended."""
    said, pause = "", _FIRST
    try:
        async with asyncio.timeout(limit):
            while True:
                if (found := await texts.look(key)) is None:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _AGAIN)
                    continue
                said = found
                address = split_address(said, "the address of rank 0")
                if await listens(address, min(limit, _PROBE)):
                    return address
                await asyncio.sleep(_AGAIN)
    except TimeoutError:
        shown = one_line(said)
        silent = f"nobody listened on {shown}, which rank 0 named," if shown else "rank 0 named no address"
        raise RendezvousTimeout(
            f"{silent} within {spoken(limit)}",
            hint=f"See rank 0's output: it leaves its address in {where} as soon as it listens. Every "
            "process of the job has to call init_process_group",
        ) from None
