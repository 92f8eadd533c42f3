"""The communicator of a group.

Making one is collective among its members, and MPI has no way to do that without waiting. Members of
several groups may make them in different orders. So each is made in a thread of its own, and members find
each other by a tag. Where the library lets one thread in at a time they are made in the thread of all calls,
which waits meanwhile: there, groups that overlap are to be made one after the other, in the same order
everywhere.

Either way it begins in the turn of the thread of all calls: the communicators of groups that were closed
before have been given back then. A library has few, and one that a member is about to give back is in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiodist.backends.mpi.library import Library
from aiodist.backends.mpi.process import this
from aiodist.backends.mpi.progress import MpiProgress
from aiodist.backends.mpi.tables import group_tag
from aiodist.backends.threads import fulfil
from aiodist.base.errors import GroupBroken


async def create(library: Library, progress: MpiProgress, members: Sequence[int], context: int) -> Any:
    """Make the communicator of a group, with all its members.

    Args:
        members: ranks in COMM_WORLD, in group order.
        context: names the group.

    Raises:
        GroupBroken: the library has no more, say.
    """
    made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    # Where nobody waits any more, what is made is left to the library.
    run = partial(fulfil, made, partial(_create, library, members, context))
    progress.call(partial(this.aside, run, "aiodist-mpi-group") if library.multiple else run)
    try:
        return await made
    except library.mpi.Exception as error:
        _, _, why = (str(error).splitlines() or [""])[-1].rpartition(
            "): "
        )  # below the places in its code where it failed
        raise GroupBroken(
            f"the MPI library makes no communicator for another group: {why}",
            hint="Close groups that are done: each has one, and some libraries have no more than 2000",
        ) from error


def _create(library: Library, members: Sequence[int], context: int) -> Any:
    mpi = library.mpi
    world = mpi.COMM_WORLD.Get_group()
    group = world.Incl(list(members))
    try:
        comm = mpi.COMM_WORLD.Create_group(group, group_tag(context, library.highest_tag))
    finally:
        group.Free()
        world.Free()
    comm.Set_errhandler(mpi.ERRORS_RETURN)
    return comm
