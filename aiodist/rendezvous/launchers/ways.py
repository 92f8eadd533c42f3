"""How the processes of other launchers meet, where nobody has set MASTER_ADDR, or somebody listens there.

    torchrun   rank 0 leaves its address in the agent's own store, which has MASTER_PORT
    MPICH      … in the launcher's key-value space, by PMI
    Open MPI   … in a file in the job's own folder, on one host
    Slurm      rank 0 listens at a port made of the numbers of job and step, on the step's first host

But for Slurm rank 0 listens on a free port first, and tells then: there is no port to fight for. Under Slurm
MASTER_ADDR or MASTER_PORT, if only one of them is set, replaces that half.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from dataclasses import replace
from functools import partial

from aiodist.environment import Placement, is_loopback, split_address
from aiodist.errors import RendezvousTimeout, UsageError
from aiodist.net.sockets import connect, outward, resolve
from aiodist.rendezvous.file_store import FileStore
from aiodist.rendezvous.hosting import check_door, host, host_or_join, join, told_address
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.launchers import slurm
from aiodist.rendezvous.launchers.agent_store import AgentStore
from aiodist.rendezvous.launchers.pmi import Pmi
from aiodist.sanitize import one_line
from aiodist.timeouts import spoken

_log = logging.getLogger("aiodist.rendezvous")
_LOOPBACK = "127.0.0.1"
_AGAIN = 0.2  # seconds until an address where nobody listens any more is looked up again
_meetings = itertools.count()  # of this process; all of a job's count alike


async def meet_by_launcher(invitation: Invitation, place: Placement) -> Meeting | None:
    """Meet by the means of the launcher that started this process; None: it has none, or is told where.

    Raises:
        UsageError: it has none for such a job; says what to set.
        RendezvousError: its means do not answer.
        RendezvousTimeout: rank 0 did not tell its address in time.
    """
    environ = invitation.environ
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return await _by_agent(invitation, place)
    if place.master_addr is not None and (place.launcher != "Slurm" or place.master_port is not None):
        return None
    match place.launcher:
        case "Open MPI":
            return await _by_file(invitation, place)
        case "MPICH":
            return await _by_pmi(invitation, place)
        case "Slurm":
            return await _by_number(invitation, place)
    return None


async def _by_agent(invitation: Invitation, place: Placement) -> Meeting | None:
    limit = invitation.timeout
    if place.master_addr is None or place.master_port is None:
        return None
    # Without TORCHELASTIC_RESTART_COUNT: an agent does not count the restarts that another's failure led to.
    key = f"aiodist/{invitation.job}/{next(_meetings)}"
    board = await AgentStore.connect(place.master_addr, place.master_port, limit)
    async with contextlib.aclosing(board):
        if place.rank == 0:
            return await host(
                invitation, place, _own(invitation, place, board.address), 0, partial(board.set, key)
            )
        address = await _told(board, key, limit)
    return await join(invitation, place, *address)


async def _told(board: AgentStore, key: str, limit: float) -> tuple[str, int]:
    """The address that rank 0 has left; not one that a rank 0 before has left, whom the agents have ended."""
    said = ""
    try:
        async with asyncio.timeout(limit):
            while True:
                said = await board.get(key, limit)
                address = split_address(said, "the address of rank 0")
                if await _listens(address):
                    return address
                await asyncio.sleep(_AGAIN)
    except TimeoutError:
        shown = one_line(said)
        silent = f"nobody listened on {shown}, which rank 0 named," if shown else "rank 0 named no address"
        raise RendezvousTimeout(
            f"{silent} within {spoken(limit)}",
            hint="See rank 0's output: it leaves its address in torchrun's store as soon as it listens",
        ) from None


async def _listens(address: tuple[str, int]) -> bool:
    try:
        sock = await connect(*address)
    except OSError:
        return False
    sock.close()
    return True


async def _by_pmi(invitation: Invitation, place: Placement) -> Meeting:
    pmi = await Pmi.connect(invitation.environ, invitation.timeout)
    if place.rank == 0:
        return await host(invitation, place, _own(invitation, place, outward()), 0, pmi.tell)
    return await join(invitation, place, *split_address(await pmi.ask(), "the address"))


async def _by_file(invitation: Invitation, place: Placement) -> Meeting:
    environ = invitation.environ
    folder, job = environ.get("PMIX_SERVER_TMPDIR"), environ.get("PMIX_NAMESPACE")
    if not folder or not job or place.local_world_size != place.world_size:
        spread = place.local_world_size is not None and place.local_world_size != place.world_size
        hosts = " on several hosts" if spread else ""
        raise UsageError(
            f"nothing tells the {place.world_size} processes of this mpirun{hosts} where to meet",
            hint="mpirun -x MASTER_ADDR=<rank 0's host> -x MASTER_PORT=29500 …; or backend='mpi'",
        )
    address = _own(invitation, place, _LOOPBACK)
    await check_door(address, invitation)
    store = await FileStore.open(
        *(f"{folder}/aiodist-{job}", invitation.job, invitation.secret, invitation.timeout),
        host=address,
        rank=place.rank,
        tls=invitation.tls,
    )
    return Meeting(
        store, place.rank, place.world_size, None, told_address(invitation.tuning, store.client.address)
    )


async def _by_number(invitation: Invitation, place: Placement) -> Meeting:
    environ = invitation.environ
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    address = place.master_addr or await _first_host(invitation, place)
    # Who comes to the port of another step, whose numbers have the same sum, is told so.
    invitation = replace(invitation, environ={"AIODIST_JOB": f"step {job}.{step}", **environ})
    return await host_or_join(invitation, place, address, place.master_port or slurm.port(job, step))


async def _first_host(invitation: Invitation, place: Placement) -> str:
    """The host of rank 0, as this one reaches it."""
    if place.node_count == 1:
        return _LOOPBACK
    name = slurm.host_of_rank_0(invitation.environ)
    try:
        found = [str(address[0]) for _, address in await resolve(name, 0)]
    except OSError:
        found = []
    if not all(map(is_loopback, found)):
        return name
    if name.partition(".")[0] == socket.gethostname().partition(".")[0]:
        # Debian's /etc/hosts has 127.0.1.1 for a host itself. All its tasks meet where the others come to.
        return _own(invitation, place, outward())
    if found:
        _log.warning("%s is %s here; if it is another host, set MASTER_ADDR to its address", name, found[0])
    return name


def _own(invitation: Invitation, place: Placement, outwards: str) -> str:
    """The address that rank 0 listens on."""
    address = told_address(
        invitation.tuning, _LOOPBACK if place.local_world_size == place.world_size else outwards
    )
    if not address:
        raise UsageError(
            "this host has no address towards others, by its routes",
            hint="Set AIODIST_SOCKET_IFNAME to the network interface that they reach it by",
        )
    return address
