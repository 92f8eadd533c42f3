"""Going over from one epoch's group to the next: let go of the old, settle in the new, pass on the name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from aiodist.errors import Evicted, GroupBroken, RendezvousError
from aiodist.group.default import find_default, override, set_default
from aiodist.group.epochs.candidate import Candidate
from aiodist.membership.assembly import FORMING
from aiodist.membership.motions import Ready
from aiodist.membership.presence import LATEST

if TYPE_CHECKING:
    from aiodist.group.process_group import ProcessGroup

logger = logging.getLogger("aiodist")


async def settle_in(candidate: Candidate, ready: Ready, deadline: float) -> ProcessGroup:
    """The epoch is decided: return its group when every member has come over; or a later one's, if a member
    died on the way."""
    group, regroup = candidate.group, candidate.regroup
    assert group is not None
    assert regroup is not None
    job, loop = regroup.job, asyncio.get_running_loop()
    await candidate.settled()
    try:
        if group.rank == 0:
            with contextlib.suppress(RendezvousError):
                await job.store.set(LATEST, candidate.record.encode())
        await group._ready(max(deadline - loop.time(), FORMING))
        await group.barrier(timeout=max(deadline - loop.time(), FORMING))  # and then all are ready
    except GroupBroken as error:
        if isinstance(error, Evicted):
            raise
        logger.info("epoch %d broke at once: %s", group.epoch, error)
        again = Ready(regroup.number(), ready.min_size, ready.admit, 0, ready.excluded)
        return await regroup.next_epoch(again, max(deadline - loop.time(), FORMING))
    return group


async def let_go(group: ProcessGroup) -> None:
    """Return when this process touches no buffer of the old epoch's operations any more."""
    for member in list(group._family):
        if len(member._flight):
            member._break(
                GroupBroken(f"epoch {group.epoch} has ended", hint="Make the group anew"), tell=False
            )
        member._failures.forget()
        await member.drain()


def succeed(old: ProcessGroup, new: ProcessGroup) -> None:
    """Put a new group in the place of an old one: who closes that one, or one before it, closes the new one.

    The default group moves on.

    All of them point straight at the newest: the first, which an `async with` holds, keeps none in between.
    """
    new._predecessors = old._predecessors
    new._predecessors.add(old)
    for group in new._predecessors:
        group._successor = new
    if override.get() is old:
        override.set(new)
    elif find_default() is old:
        set_default(new)
