"""MASTER_PORT shared with another library: rank 0 says there where its store is, and lets go of it.

torch's rank 0, or JAX's, listens on that very port when it is initialised after this. So the store gets a
port of its own. What stands on MASTER_PORT meanwhile is a store, too, with one text in it; it is closed
before any rank's `init_process_group` returns.
"""

from __future__ import annotations

from aiodist.rendezvous.announcement import About, Announcement
from aiodist.rendezvous.client import TcpStore
from aiodist.rendezvous.hosting import check_port, host, join, serve
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.launchers.address_exchange import about_rank_0
from aiodist.rendezvous.meeting_place import NOWHERE, MeetingPlace
from aiodist.rendezvous.meeting_point import MeetingPoint

_KEY = "aiodist/store"  # the address of rank 0's store
_KNOWN = "aiodist/known"
_PARTING = 5.0  # seconds for those who know to leave the port


async def meet(invitation: Invitation, point: MeetingPoint) -> Meeting:
    """Meet where rank 0 says, at an address that is free again afterwards.

    Raises:
        RendezvousTimeout: not all ranks came in time; names them.
        and what `hosting.host` and `hosting.join` raise.
    """
    about = about_rank_0(invitation, _KEY)
    if invitation.placement().rank == 0:
        return await _host(invitation, *point.address, about)
    place = MeetingPlace.at(*point.address)
    async with await _enter(invitation, *point.address, place=place) as store:
        meant = Announcement.read((await store.get(_KEY)).decode(errors="replace"), about)
        await _all_know(invitation, store)
    return await join(invitation, meant.host, meant.port, instance=meant.instance)


async def _host(invitation: Invitation, address: str, port: int, about: About) -> Meeting:
    async def tell(meant: Announcement) -> None:
        await store.set(_KEY, meant.text(about))

    await check_port(address, invitation)
    bell = await serve(invitation, address, port)
    meeting: Meeting | None = None
    try:
        async with await _enter(invitation, bell.host, bell.port, bell.instance) as store:
            meeting = await host(invitation, address, 0, tell, NOWHERE)
            await _all_know(invitation, store)
        await bell.aclose(_PARTING)
    except BaseException:
        if meeting is not None:
            await meeting.aclose(0)
        await bell.aclose()
        raise
    return meeting


async def _enter(
    invitation: Invitation, address: str, port: int, instance: bytes = b"", place: MeetingPlace = NOWHERE
) -> TcpStore:
    store = await TcpStore.connect(
        *(address, port, invitation.job, invitation.secret, invitation.timeout),
        rank=invitation.placement().rank,
        tls=invitation.tls,
        instance=instance,
        place=place,
    )
    store.timeout = invitation.timeout
    return store


async def _all_know(invitation: Invitation, store: TcpStore) -> None:
    place = invitation.placement()
    await store.barrier(_KNOWN, place.world_size, place.rank, timeout=invitation.timeout)
