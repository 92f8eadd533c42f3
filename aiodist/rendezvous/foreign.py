"""The one table of foreign formats: what leads to which module. Modules are loaded when they are used.

A module of a scheme has `meet(invitation)`, and `connect(url, job, timeout, environ=…)` for processes that
have no place in the job. A module of a launcher has `meet(invitation, place)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast
from urllib.parse import urlsplit

from aiodist.environment import Placement
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.store import Store

SCHEMES = {
    "etcd": "aiodist.rendezvous.etcd.meeting",
    "etcds": "aiodist.rendezvous.etcd.meeting",
}
_LAUNCHERS = {
    "torchrun's agent": "aiodist.rendezvous.launchers.agent_store",
    "MPICH": "aiodist.rendezvous.launchers.pmi",
    "Open MPI": "aiodist.rendezvous.launchers.open_mpi",
    "Slurm": "aiodist.rendezvous.launchers.slurm",
}


async def meet_by_scheme(invitation: Invitation) -> Meeting:
    """Meet at the store that a URL of a foreign scheme leads to; `UsageError` where it is no such URL."""
    scheme = invitation.url.partition("://")[0]
    module = import_module(SCHEMES.get(scheme, SCHEMES["etcd"]))  # which says that it is none of its own
    return cast("Meeting", await module.meet(invitation))


async def connect_by_scheme(url: str, job: str, timeout: float, environ: Mapping[str, str]) -> Store | None:
    """Return a client of the store that a URL of a foreign scheme leads to; None for any other scheme."""
    name = SCHEMES.get(urlsplit(url).scheme)
    if name is None:
        return None
    return cast("Store", await import_module(name).connect(url, job, timeout, environ=environ))


async def meet_by_launcher(invitation: Invitation, place: Placement) -> Meeting | None:
    """Meet by the means of the launcher that started this process; None: it has none, or is told where.

    Raises:
        UsageError: it has none for such a job; says what to set.
        RendezvousError: its means do not answer.
        RendezvousTimeout: rank 0 did not tell its address in time.
    """
    by_agent = invitation.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    name = _LAUNCHERS.get("torchrun's agent" if by_agent else place.launcher)
    if name is None:
        return None
    return cast("Meeting | None", await import_module(name).meet(invitation, place))
