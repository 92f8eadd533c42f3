"""Meeting where rank 0 tells its address by means of somebody else's: a launcher's, or a library's.

Rank 0 listens on a free port and tells where; the others ask. Nothing else goes that way, and no secret:
whoever can read it learns where to knock, and no more. Whoever can write there cannot lead anybody elsewhere:
what rank 0 tells has a proof (`Announcement`).
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Protocol

from aiodist.base.backoff import Backoff
from aiodist.base.environment import is_loopback
from aiodist.base.errors import AuthenticationError, RendezvousTimeout
from aiodist.base.sanitize import one_line
from aiodist.base.timeouts import spoken
from aiodist.net.sockets import join_address, outward
from aiodist.rendezvous.announcement import About, Announcement
from aiodist.rendezvous.hosting import address_towards, host, join, listens, own_address
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.meeting_place import NOWHERE, MeetingPlace

_FIRST = 0.002  # seconds until the second read; then twice as long, up to `_AGAIN`
_PROBE = 3.0  # seconds for a connection to an address, which may be that of a host that is gone
_AGAIN = 0.2  # seconds until an address where nobody listens any more is looked up again
_FALSE = 5.0  # seconds in which rank 0 may write over what is not its own
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

    async def read(self, key: str) -> str | None:
        """The text, if somebody has left it; None if not yet. May wait for it a while."""


def not_all_came(patience: float) -> RendezvousTimeout:
    """The error of a teller for whose text not all processes of an mpirun have come in so many seconds."""
    return RendezvousTimeout(
        f"not all processes of this mpirun came within {spoken(patience)}",
        hint="Every one of them has to call init_process_group",
    )


async def meet_once(teller: Teller, invitation: Invitation) -> Meeting:
    """Meet where rank 0 tells. Errors: `AuthenticationError` where another told it, and as of the teller."""
    about = about_rank_0(invitation, "told once")

    async def tell(store: Announcement) -> None:
        await teller.tell(store.text(about))

    if invitation.placement().rank == 0:
        return await host(invitation, own_address(invitation, outward()), 0, tell, NOWHERE)
    store = Announcement.read(await teller.ask(), about)
    return await _join(invitation, store, NOWHERE)


async def meet_by(
    texts: Texts,
    where: str,
    invitation: Invitation,
    there: str,
    place: MeetingPlace = NOWHERE,
    name: str | None = None,
) -> Meeting:
    """Meet where rank 0 says.

    Args:
        texts: the store; the caller closes it.
        where: what it is, for errors: "torchrun's store".
        there: the host that has the store, which all reach; '' where nobody knows it.
        place: where this process was told that the store is; nowhere: nobody says.
        name: of the key for the address, the same on all ranks; None: the number of this process's meetings,
            where every process of the job takes part in each.

    Raises:
        RendezvousTimeout: rank 0 told no address in time, or nobody listens there.
        AuthenticationError: what is told is not rank 0's, or rank 0 was told another place.
        and what the store raises.
    """
    key = key_of(invitation, str(next(_meetings)) if name is None else name)
    about = about_rank_0(invitation, key)
    if invitation.placement().rank == 0:
        address = own_address(invitation, await address_towards(there, invitation))

        async def tell(store: Announcement) -> None:
            await texts.set(key, store.text(about))

        return await host(invitation, address, 0, tell, place)
    store = await _announced(texts, where, key, invitation.timeout, about)
    return await _join(invitation, store, place)


async def _join(invitation: Invitation, store: Announcement, place: MeetingPlace) -> Meeting:
    """Join a store that was told. Without a secret anybody may have told it: then only this host's loopback
    is believed, where the kernel says whose process listens."""
    if not (invitation.secret or invitation.tuning.allow_insecure or is_loopback(store.host)):
        raise AuthenticationError(
            f"rank 0 is published to be at {one_line(store.host)}, and this process has no secret to verify "
            "that",
            hint="Set AIODIST_SECRET (or AIODIST_SECRET_FILE) to the same on every host; "
            "AIODIST_ALLOW_INSECURE=1 allows it without",
        )
    return await join(invitation, store.host, store.port, instance=store.instance, place=place)


def key_of(invitation: Invitation, name: str) -> str:
    """The key under which rank 0 leaves its address."""
    return f"aiodist/{invitation.job}/{name}"


def about_rank_0(invitation: Invitation, meeting: str) -> About:
    """The facts that belong to what rank 0 tells; the same on all ranks."""
    return About("the address of rank 0", invitation.job, meeting, invitation.secret)


async def _announced(texts: Texts, where: str, key: str, limit: float, about: About) -> Announcement:
    """The store that rank 0 has announced; not that of a rank 0 before, which is ended."""
    loop, said, backoff = asyncio.get_running_loop(), "", Backoff(_FIRST, _AGAIN)
    false_since: float | None = None
    try:
        async with asyncio.timeout(limit):
            while True:
                if (found := await texts.read(key)) is None:
                    await asyncio.sleep(backoff.next())
                    continue
                try:
                    store = Announcement.read(found, about)
                except AuthenticationError as error:
                    now = loop.time()
                    false_since = now if false_since is None else false_since
                    if now - false_since >= min(_FALSE, limit):
                        raise AuthenticationError(
                            f"{error.message}; it is in {where}", hint=error.hint
                        ) from None
                else:
                    false_since, said = None, join_address(store.host, store.port)
                    if await listens((store.host, store.port), min(limit, _PROBE)):
                        return store
                await asyncio.sleep(_AGAIN)
    except TimeoutError:
        shown = one_line(said)
        silent = f"no process listened on {shown}, which rank 0 named," if said else "rank 0 named no address"
        raise RendezvousTimeout(
            f"{silent} within {spoken(limit)}",
            hint=f"See rank 0's output: it leaves its address in {where} as soon as it listens. Every "
            "process of the job has to call init_process_group",
        ) from None
