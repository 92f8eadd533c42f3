"""The meeting place of agents that another launcher started: node 0 tells it, by that launcher's means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from aiodist.base.errors import RendezvousError
from aiodist.launch.config import LaunchConfig
from aiodist.launch.nodes.store_access import StoreAccess
from aiodist.net.sockets import outward

if TYPE_CHECKING:
    from aiodist.rendezvous.announcement import Announcement
    from aiodist.rendezvous.launchers.address_exchange import Teller
    from aiodist.rendezvous.server import StoreServer


async def teller(config: LaunchConfig, environ: Mapping[str, str]) -> Teller:
    """The means of the launcher that `config.told_by` names."""
    if config.told_by == "MPICH":
        from aiodist.rendezvous.launchers.pmi import Pmi

        return await Pmi.connect(environ, config.meet_timeout)
    from aiodist.rendezvous.launchers.open_mpi import Pmix

    return Pmix(config.meet_timeout)


async def located(
    config: LaunchConfig, access: StoreAccess, means: Teller, *, first: bool
) -> tuple[Announcement, StoreServer | None]:
    """The admission store, where the agents meet, and, on the first node, its server.

    Raises:
        RendezvousError: this node has no address towards the others, or they could not be told.
        AuthenticationError: what was told has another secret.
        RendezvousTimeout: not all agents came in time.
    """
    from aiodist.rendezvous.announcement import About, Announcement

    about = About("the address of node 0", access.job, "agents", access.secret.encode())
    if not first:
        return Announcement.read(await means.ask(), about), None
    host = config.local_addr or outward()
    if not host:
        raise RendezvousError(
            "this node has no address towards others, or several, by its routes",
            hint="Give --local-addr (of the first host), or AIODIST_SOCKET_IFNAME=eth0",
        )
    server = await access.serve(host, config.master_port or 0)
    store = Announcement(server.host, server.port, server.instance)
    try:
        await means.tell(store.text(about))
    except BaseException:
        await server.aclose()
        raise
    return store, server
