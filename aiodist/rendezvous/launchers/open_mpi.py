"""Open MPI: it offers a folder of the job's own, on one host; there the processes meet by a file."""

from __future__ import annotations

from aiodist.errors import UsageError
from aiodist.rendezvous.hosting import meet_by_file
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.meeting_point import MeetingPoint


async def meet(invitation: Invitation, _point: MeetingPoint) -> Meeting:
    """Meet by a file in the job's folder."""
    environ, place = invitation.environ, invitation.placement()
    folder, job = environ.get("PMIX_SERVER_TMPDIR"), environ.get("PMIX_NAMESPACE")
    if not folder or not job or place.local_world_size != place.world_size:
        spread = place.local_world_size is not None and place.local_world_size != place.world_size
        hosts = " on several hosts" if spread else ""
        raise UsageError(
            f"nothing tells the {place.world_size} processes of this mpirun{hosts} where to meet",
            hint="mpirun -x MASTER_ADDR=<rank 0's host> -x MASTER_PORT=29500 …; or backend='mpi'",
        )
    return await meet_by_file(invitation, f"{folder}/aiodist-{job}")
