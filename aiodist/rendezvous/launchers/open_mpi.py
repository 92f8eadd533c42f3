"""Open MPI: by a file in a folder of the job's own on one host, by PMIx on several.

PMIx is spoken by another process (`pmix_process`): MPI_Init speaks it, too, and not after somebody else in
its process. On Open MPI 4 even that spoils a later MPI_Init, on Open MPI 5 now and then; a warning says so.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from aiodist.base.errors import RendezvousError, UsageError
from aiodist.base.sanitize import one_line
from aiodist.net.within import within
from aiodist.rendezvous.hosting import meet_by_file
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.launchers.address_exchange import meet_once, not_all_came
from aiodist.rendezvous.meeting_point import MeetingPoint

_log = logging.getLogger("aiodist.rendezvous")
_PROCESS = Path(__file__).with_name("pmix_process.py")
_HINT = "mpirun -x MASTER_ADDR=<rank 0's host> -x MASTER_PORT=29500 …; or backend='mpi'"
_OLD = "OMPI_MCA_orte_num_nodes"  # Open MPI 4 and before
_OLD_HOSTFILE = "OMPI_MCA_orte_default_hostfile"  # the MPI Operator sets it; Open MPI 5 does not read it
_HOSTFILE = "PRTE_MCA_prte_default_hostfile"
_exchanges = itertools.count()  # of this process; all of a job's count alike


async def meet(invitation: Invitation, _point: MeetingPoint) -> Meeting:
    """Meet by a file in the job's folder, or where rank 0 tells by PMIx."""
    environ, place = invitation.environ, invitation.placement()
    folder, job = environ.get("PMIX_SERVER_TMPDIR"), environ.get("PMIX_NAMESPACE")
    if not job or (place.local_world_size == place.world_size and not folder):
        raise UsageError(
            f"nothing tells the {place.world_size} processes of this mpirun where to meet", hint=_HINT
        )
    if place.local_world_size == place.world_size:
        if (
            environ.get(_OLD_HOSTFILE)
            and not (environ.get(_OLD) or environ.get(_HOSTFILE))
            and place.rank == 0
        ):
            _log.warning(
                "all %d processes of this mpirun are on this host: Open MPI 5 does not read %s. If they were "
                "meant for the hosts in it, set %s as well, or use `aiodist launch`",
                *(place.world_size, _OLD_HOSTFILE, _HOSTFILE),
            )
        return await meet_by_file(invitation, f"{folder}/aiodist-{job}")
    if place.rank == 0 and (environ.get(_OLD) or find_spec("mpi4py") is not None):
        _log.warning(
            "the processes of this mpirun meet by PMIx, after which MPI_Init %s: import mpi4py.MPI before "
            "init_process_group, or set MASTER_ADDR, if MPI is needed as well",
            "fails on Open MPI 4" if environ.get(_OLD) else "may hang or crash on Open MPI 5",
        )
    return await meet_once(Pmix(invitation.timeout), invitation)


class Pmix:
    """Exchange of texts by PMIx; a `Teller`.

    Args:
        timeout: seconds, for each text.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    async def tell(self, text: str) -> None:
        """Tell all others a text, and wait until all have come.

        Raises:
            RendezvousTimeout: not all came in time.
            RendezvousError: there is no PMIx, or it does not play along.
        """
        await self._exchange(text)

    async def ask(self) -> str:
        """The text that another process tells; errors as of `tell`."""
        return await self._exchange("")

    async def _exchange(self, text: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(_PROCESS), f"aiodist-{next(_exchanges)}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with within(self._timeout, partial(not_all_came, self._timeout)):
                said, _ = await process.communicate(text.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        answer, _, words = said.decode(errors="replace").strip().partition(" ")
        if answer != "ok":
            why = one_line(words, 200) or f"its process ended with code {process.returncode}"
            raise RendezvousError(f"mpirun's processes cannot meet by PMIx: {why}", hint=_HINT)
        return words
