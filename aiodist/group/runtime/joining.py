"""`join`: into a job that runs already, or, where it has yet to begin, to its beginning."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from enum import Enum, auto
from typing import Any

from aiodist.base.errors import AiodistError, RendezvousError, RendezvousTimeout, UsageError
from aiodist.base.timeouts import Timeout
from aiodist.group import ProcessGroup
from aiodist.group.default import set_default
from aiodist.group.entering import entered
from aiodist.group.membership.newcomers import OVER
from aiodist.group.membership.presence import LATEST, is_deserted, until_deserted
from aiodist.group.runtime import tracebacks
from aiodist.group.runtime.init import about_to_meet, ask, check_can_begin, knowing_secret
from aiodist.group.runtime.late_worker import told_who_finishes, unless
from aiodist.group.runtime.member import ELASTIC, Member, outlives_jobs, told_key
from aiodist.group.runtime.simulated import refuse_elsewhere
from aiodist.rendezvous import Invitation, Meeting, PrefixStore, Store, announced_address, meet
from aiodist.rendezvous.handlers import connect
from aiodist.rendezvous.hosting import listens
from aiodist.rendezvous.meeting_point import Way, begins_job, standing_point


class _Run(Enum):
    """The state of a job, as its store says."""

    NONE = auto()
    UNDER_WAY = auto()
    DESERTED = auto()  # it did not end well, and none of its members is left


logger = logging.getLogger("aiodist.group.runtime")

_PROBE = 2.0  # seconds for a look at whether the store is served already


@entered
async def join(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Timeout = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    device_id: Any = None,
) -> ProcessGroup:
    """Become a member of a job, at its beginning or later.

    If the job has not begun, this is `init_process_group`: all ranks meet. If the job runs, this process
    waits at the store until the members admit it (`rebuild`, `grow`), as the last rank of their next epoch. A
    script whose workers may die and come back needs only this call. If no member of the last run is left, all
    ranks meet anew.

    Args:
        backend: as for `init_process_group`.
        init_method: likewise; where the job meets.
        timeout: seconds, or a timedelta, to wait for being admitted; also the default of operations. 300 s.
        world_size: processes at the beginning; -1 takes it from `init_method`. A newcomer needs none.
        rank: of this process at the beginning, likewise.
        store: meet over this store instead of `init_method`. It stays yours.
        group_name: as for `init_process_group`.
        device_id: likewise.

    Returns:
        → the world's group, also the default of the running loop.

    Raises:
        RendezvousTimeout: it was not admitted in time, or the job has not begun and a rank did not come.
        RendezvousError: the job ended before this process was admitted, or none of its members is left, and
            this process has no rank with which to begin it anew.
        and what `init_process_group` raises.
    """
    refuse_elsewhere("join()", "Simulated ranks are all there from the beginning: call init_process_group")
    tracebacks.install()
    choice = check_can_begin(backend)
    for engine in choice.engines.values():
        if "regroups" not in engine.capabilities:
            raise UsageError(
                f"a job with backend {engine.name!r} cannot be joined: its members never change",
                hint="Use init_process_group",
            )
    asked = ask(init_method, timeout, world_size, rank, store)
    loop = asyncio.get_running_loop()
    began, left = loop.time(), asked.timeout
    async with about_to_meet(choice, device_id) as choice:
        asked = knowing_secret(asked)
        group = None
        while group is None:
            meeting, begins, key = await _meet(asked, group_name)
            member = Member(meeting, asked, group_name, choice, key)
            member.elastic = True
            if begins:
                group = await member.first_epoch(told_who_finishes(asked.environ, meeting.world_size))
                if group.rank == 0:
                    try:
                        await meeting.store.set(ELASTIC, b"1")
                    except BaseException as error:
                        await _leave(group, error)
                        raise
            else:
                group = await _admitted(member, meeting.store, left)
                left = max(0.0, began + asked.timeout - loop.time())
        set_default(group)
    return group


async def _admitted(member: Member, store: Store, left: float) -> ProcessGroup | None:
    """The group that this process was admitted to; None where nobody is left who could admit it."""
    if not outlives_jobs(store):
        return await member.join(left)
    return (await unless(member.join(left), until_deserted(member.job.store), _leave))[0]


async def _leave(group: ProcessGroup, error: BaseException) -> None:
    """Leave a world that nobody gets: its other members must not wait for this process."""
    with contextlib.suppress(AiodistError):
        await group.__aexit__(type(error), error, None)


async def _meet(asked: Invitation, group_name: str) -> tuple[Meeting, bool, str]:
    """A meeting, whether the job has yet to begin, and the job's key as far as the store says it."""
    run, key = None, ""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + asked.timeout
    ours = asked.store is None
    begins = begins_job(asked) and ours
    if ours:
        found = await _standing_store(asked, begins)
    else:
        found = asked.store if asked.world_size < 1 else None
    if found is not None:
        # It is served already, so this process does not serve it, though it may be rank 0.
        try:
            address = announced_address(asked.tuning, found.address)
            run = await _run_state(found, group_name)
            logger.debug("the store is served already, and the job is %s", run.name)
            if run is not _Run.UNDER_WAY and not begins:
                await _until_it_runs(run, found, group_name, max(0.0, deadline - loop.time()))
                run = _Run.UNDER_WAY
            if run is _Run.UNDER_WAY:
                key = await told_key(found, group_name)
        except BaseException:
            if ours:
                await found.aclose()
            raise
        if run is _Run.UNDER_WAY:
            return Meeting(found, -1, 0, None, address, owns_store=ours), False, key
        await found.aclose()
    meeting = await meet(asked)
    begins = run is _Run.DESERTED or await _run_state(meeting.store, group_name) is not _Run.UNDER_WAY
    return meeting, begins, key


async def _standing_store(asked: Invitation, begins: bool) -> Store | None:
    """A client of the store at which the job runs, if it does.

    None where it is not served yet, and this process is one of those that begin the job, so perhaps the one
    to serve it; any other waits for it.
    """
    point = standing_point(asked)
    if point is None:
        return None
    if point.way is Way.etcd:
        return await connect(asked, point)
    if begins and not await listens(point.address, _PROBE):
        return None
    try:
        return await connect(asked, point)
    except RendezvousTimeout as error:
        if begins:
            raise
        raise RendezvousTimeout(
            f"{error.message}; and this process has no rank with which to begin the job itself",
            hint="Start the job's store or its ranks, or give this process its RANK",
        ) from None


async def _run_state(store: Store, group_name: str) -> _Run:
    named = _named(store, group_name)
    if not await named.check([LATEST]) or await named.check([OVER]):
        return _Run.NONE
    if outlives_jobs(store) and await is_deserted(named):
        return _Run.DESERTED
    return _Run.UNDER_WAY


async def _until_it_runs(run: _Run, store: Store, group_name: str, limit: float) -> None:
    """Wait for others to begin; not for those who begin anew what has failed, since perhaps nobody will."""
    if run is _Run.DESERTED:
        raise RendezvousError(
            "no member of the job's last run is left that could admit this process",
            hint="Start all ranks again, each with its RANK: that begins the job again",
        )
    await _named(store, group_name).wait([LATEST], limit)


def _named(store: Store, group_name: str) -> Store:
    return PrefixStore(f"aiodist/{group_name or 'world'}", store)
