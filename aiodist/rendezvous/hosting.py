"""Hosting: rank 0 hosts the store at an address, the others join it there.

The server listens on exactly one address (and on a local socket, see `net.local_socket`); without a secret
it is one of the loopback, unless AIODIST_ALLOW_INSECURE=1 says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from aiodist.base.environment import Placement, Tuning, check_open_port, is_loopback
from aiodist.base.errors import RendezvousError, RendezvousTimeout, UsageError
from aiodist.base.timeouts import spoken
from aiodist.net.sockets import connect, describe, interface_address, join_address, outward, resolve, towards
from aiodist.rendezvous.announcement import Announcement
from aiodist.rendezvous.client import TcpStore
from aiodist.rendezvous.file_store import FileStore
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.meeting_place import NOWHERE, MeetingPlace
from aiodist.rendezvous.met import met_before
from aiodist.rendezvous.server import StoreServer
from aiodist.rendezvous.store import Store

_log = logging.getLogger("aiodist.rendezvous")
_EVERYWHERE = ("0.0.0.0", "::")
_AGAIN = 0.02  # seconds until the next attempt

Tell = Callable[[Announcement], Awaitable[None]]


async def host_or_join(
    invitation: Invitation, address: str, port: int, place: MeetingPlace | None = None
) -> Meeting:
    """The store at an address that all ranks know: rank 0 hosts it.

    Args:
        place: what the ranks were told instead of the address, which follows from it.
    """
    if invitation.placement().rank != 0:
        place = place or MeetingPlace.at(address, port)
        return await join(invitation, address, port, anew=True, place=place)
    return await host(invitation, address, port, place=place)


async def host(
    invitation: Invitation,
    address: str,
    port: int = 0,
    tell: Tell | None = None,
    place: MeetingPlace | None = None,
) -> Meeting:
    """Host the store; rank 0 does.

    Args:
        address: to listen on; this host's, or what others have for it.
        port: 0: a free one.
        tell: awaited with where the store is before anybody is waited for.
        place: where the ranks were told to meet; None: at the address and port.

    Raises:
        RendezvousError: the port is in use, or the address is not of this host.
        UsageError: other hosts could come in, and there is no secret.
    """
    await check_port(address, invitation)
    server = await serve(invitation, address, port, place)
    try:
        if is_loopback(server.host) and _spans_hosts(invitation.placement()) and not is_loopback(address):
            _log.warning(
                "%s is %s here, which other hosts cannot reach; if there are any, use a numeric MASTER_ADDR",
                address,
                server.host,
            )
        if server.host in _EVERYWHERE:
            _log.warning(
                "the store listens on every address of this host, as %s says; name the one that others use",
                address,
            )
        reached = address if server.host in _EVERYWHERE else server.host
        _log.debug("this process hosts the store at %s", join_address(reached, server.port))
        if tell is not None:
            await tell(Announcement(reached, server.port, server.instance))
        meeting = await join(invitation, reached, server.port, instance=server.instance)
    except BaseException:
        await server.aclose()
        raise
    return replace(meeting, server=server)


async def serve(
    invitation: Invitation, address: str, port: int, place: MeetingPlace | None = None
) -> StoreServer:
    """Start a server of a store at an address; arguments and errors as of `host`, but not for a missing
    secret."""
    start = partial(
        StoreServer.start, port=port, job=invitation.job, secret=invitation.secret, rank=0, tls=invitation.tls
    )
    try:
        server = await start(address)
        server.place = place or MeetingPlace.at(address, server.port, server.host)
    except RendezvousError as error:
        own = invitation.tuning.host
        if own is None or "not an address of this host" not in error.message:
            raise
        # MASTER_ADDR is how others see this host (through a forwarded port, say); the user says what it has.
        await check_port(own, invitation)
        server = await start(own)
        server.place = place or MeetingPlace.at(address, server.port)
    return server


async def join(
    invitation: Invitation,
    host: str,
    port: int,
    anew: bool = False,
    *,
    instance: bytes = b"",
    place: MeetingPlace = NOWHERE,
) -> Meeting:
    """The store that somebody hosts.

    Args:
        anew: not the one of the group before, which rank 0 may not have closed yet.
        instance: the very store that is meant; b'': any of this job and secret.
        place: where this process was told to meet.

    Raises:
        RendezvousTimeout: nobody listens there in time.
        AuthenticationError: it is another job's, or has another secret, or is not the one that is meant.
    """
    loop, rank = asyncio.get_running_loop(), invitation.placement().rank
    deadline, left = loop.time() + invitation.timeout, invitation.timeout
    found_old = False
    while left > 0:
        try:
            store = await TcpStore.connect(
                *(host, port, invitation.job, invitation.secret, left),
                rank=rank,
                tls=invitation.tls,
                instance=instance,
                place=place,
            )
        except RendezvousTimeout:
            if not found_old:
                raise
            break
        _log.debug("rank %d: connected to the store at %s", rank, join_address(host, port))
        if not anew or not met_before(store.instance):
            store.timeout = invitation.timeout
            return await meet_at(invitation, store)
        found_old = True
        await store.aclose()
        await asyncio.sleep(_AGAIN)
        left = deadline - loop.time()
    raise RendezvousTimeout(
        f"no store for the next group at {join_address(host, port)} within {spoken(invitation.timeout)}: the "
        "last one that answered there was that of the group before",
        hint="Close a group on every rank before the next one is made; rank 0 hosts the next store",
    )


async def place_at(invitation: Invitation, host: str, port: int) -> MeetingPlace:
    """The place where somebody else's store is at which this process was told to meet the others."""
    try:
        numeric = str((await resolve(host, port))[0][1][0])
    except OSError:
        return MeetingPlace.at(host, port)
    place = invitation.placement()
    apart = is_loopback(numeric) and place.local_world_size != place.world_size
    return replace(MeetingPlace.at(host, port, numeric), apart=apart)


async def listens(address: tuple[str, int], patience: float) -> bool:
    """Whether somebody takes connections at an address, within so many seconds."""
    try:
        async with asyncio.timeout(patience):
            (await connect(*address)).close()
    except OSError:  # a TimeoutError is one, too
        return False
    return True


async def meet_at(invitation: Invitation, store: Store) -> Meeting:
    """Meet at a store that is connected; closes it where there is no address to tell peers."""
    try:
        address = announced_address(invitation.tuning, store.address)
    except BaseException:
        await store.aclose()
        raise
    place = invitation.placement()
    return Meeting(store, place.rank, place.world_size, None, address)


async def meet_by_file(invitation: Invitation, path: str) -> Meeting:
    """Meet at the store that a file leads to; whoever comes first hosts it. Errors as of `FileStore.open`."""
    address = announced_address(invitation.tuning, "127.0.0.1")
    await check_port(address, invitation)
    store = await FileStore.open(
        *(path, invitation.job, invitation.secret, invitation.timeout),
        host=address,
        rank=invitation.placement().rank,
        tls=invitation.tls,
    )
    return await meet_at(invitation, store)


async def check_port(host: str, invitation: Invitation) -> None:
    """Refuse to serve other hosts without a secret, unless told to; a name counts for what it means here."""
    allow_insecure = invitation.tuning.allow_insecure
    if invitation.secret or allow_insecure:
        return
    try:
        addresses = await resolve(host, 0)
    except OSError as error:
        raise RendezvousError(f"cannot listen on '{host}': {describe(error)}") from None
    for _, address in addresses:
        check_open_port(str(address[0]), invitation.secret, allow_insecure)


def _spans_hosts(place: Placement) -> bool:
    if place.node_count is not None:
        return place.node_count > 1
    return place.local_world_size is not None and place.local_world_size < place.world_size


def announced_address(tuned: Tuning, address: str) -> str:
    """The address that peers are told: what the user says, else the one that was found."""
    if tuned.interface:
        return interface_address(tuned.interface)
    return tuned.host or address


async def address_towards(there: str, invitation: Invitation) -> str:
    """This host's address towards those who reach a host by this name; '' where it has none.

    Debian's /etc/hosts has 127.0.1.1 for a host itself, so that what it is called leads others astray. Where
    there may be others, which takes a secret, such an address does not count.
    """
    found = await towards(there) if there else ""
    astray = is_loopback(found) and not is_loopback(there)
    if not found or (astray and (invitation.secret or invitation.tuning.allow_insecure)):
        return outward() or found
    return found


def own_address(invitation: Invitation, outwards: str) -> str:
    """The address that rank 0 listens on, where nothing says which one.

    Args:
        outwards: this host's address towards other hosts; '' where it has none.
    """
    place = invitation.placement()
    found = "127.0.0.1" if place.local_world_size == place.world_size else outwards
    address = announced_address(invitation.tuning, found)
    if not address:
        raise UsageError(
            "this host has no address towards others, by its routes",
            hint="Set AIODIST_SOCKET_IFNAME to the network interface that they reach it by",
        )
    return address
