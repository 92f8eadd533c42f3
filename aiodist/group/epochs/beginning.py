"""The first epoch of a job: nobody decides on it, all ranks that began the job are in it."""

from __future__ import annotations

import asyncio

from aiodist.group.epochs.job import Job
from aiodist.group.epochs.regroup import Regroup
from aiodist.group.epochs.world import Gathers, World
from aiodist.group.membership.newcomers import OVER
from aiodist.group.membership.presence import LATEST, begin_run, run_of
from aiodist.group.membership.record import Number, Record
from aiodist.group.process_group import ProcessGroup
from aiodist.rendezvous import Store


async def first_epoch(job: Job, world: World, store: Gathers) -> ProcessGroup:
    """The group of a job's first epoch, from a world that nobody has met in yet; `store`: where it meets.

    Raises: as `World.link`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + job.settings.timeout
    group = await world.link(store, job.host)
    try:
        job.run = "" if world.store_hosts else run_of(world.uids)
        Regroup(job, world, group).listener.decided = True
        if job.admitted is not None:
            await job.admitted()
        world.serve()
        job.store_host = world.uids[world.store_hosts[0]] if world.store_hosts else b""
        if group.rank == 0:
            if job.run:
                await begin_run(job.store, job.run)
            await _forget_the_last_run(job.store)
            number: Number = (0, 0)
            record = Record(0, number, tuple(world.uids), job.store_address, job.store_host)
            await job.store.set(LATEST, record.encode())
        await group._core.connect(max(deadline - loop.time(), 0.001))
        await group.barrier(timeout=max(deadline - loop.time(), 0.001))  # and then all are ready
        return group
    except BaseException as error:
        await world.abandon(group, f"assembling failed ({type(error).__name__})")
        await group.aclose()
        raise


async def _forget_the_last_run(store: Store) -> None:
    """Forget what was decided in the last run of the job, which its store may outlive: it must not hold for
    this run, whose members all wait for the barrier."""
    for key in await store.list_keys():
        if key.startswith(("ruling/", "invite/", OVER)):
            await store.delete_key(key)
