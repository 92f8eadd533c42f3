"""`join`: into a job that runs already, or, where it has yet to begin, to its beginning."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any
from urllib.parse import urlsplit

from aiodist.environment import (
    job_id,
    placement,
    secret,
    split_address,
    store_address,
    store_url,
    tls,
    tuning,
)
from aiodist.errors import RendezvousError, RendezvousTimeout, UsageError
from aiodist.group import ProcessGroup
from aiodist.group.default import set_default
from aiodist.membership.newcomers import OVER
from aiodist.membership.presence import LATEST, is_deserted, until_deserted
from aiodist.net.sockets import connect
from aiodist.rendezvous import Meeting, PrefixStore, Store, TcpStore, told_address
from aiodist.rendezvous.foreign import connect_by_scheme
from aiodist.runtime.init import ask_to_meet, check_can_begin, meet, with_libraries
from aiodist.runtime.late import told_who_finishes
from aiodist.runtime.member import ELASTIC, Member, address_at, outlives_jobs
from aiodist.timeouts import Timeout, seconds


class _Run(Enum):
    """The state of a job, as its store says."""

    NONE = auto()
    UNDER_WAY = auto()
    DESERTED = auto()  # it did not end well, and none of its members is left


logger = logging.getLogger("aiodist.runtime")

_PROBE = 2.0  # seconds for a look at whether the store is served already


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

    If the job has not begun, this is `init_process_group`: all ranks meet. If it runs, this process waits at
    the store until the members admit it (`rebuild`, `grow`), as the last rank of their next epoch. So a
    script whose workers may die and come back calls only this. Where no member of the last run is left, all
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
    choice = check_can_begin(backend)
    for engine in choice.engines.values():
        if "regroups" not in engine.capabilities:
            raise UsageError(
                f"a job with backend {engine.name!r} cannot be joined: its members never change",
                hint="Use init_process_group",
            )
    environ = os.environ
    tuned = tuning(environ)
    limit = seconds(timeout) if timeout is not None else tuned.timeout
    loop = asyncio.get_running_loop()
    began, left = loop.time(), limit
    with ask_to_meet():
        choice = await with_libraries(choice, device_id)
        group = None
        while group is None:
            meeting, begins = await _meet(store, init_method, rank, world_size, limit, environ, group_name)
            member = Member(meeting, tuned, limit, group_name, environ, choice)
            member.elastic = True
            if begins:
                group = await member.first_epoch(told_who_finishes(environ, meeting.world_size))
                if group.rank == 0:
                    await meeting.store.set(ELASTIC, b"1")
            else:
                group = await _admitted(member, meeting.store, left)
                left = max(0.0, began + limit - loop.time())
        set_default(group)
    return group


async def _admitted(member: Member, store: Store, left: float) -> ProcessGroup | None:
    """The group that this process was admitted to; None where nobody is left who could admit it."""
    if not outlives_jobs(store):
        return await member.join(left)
    loop = asyncio.get_running_loop()

    async def until_hopeless() -> None:
        await until_deserted(member.job.store)
        scope.reschedule(loop.time())

    watching = loop.create_task(until_hopeless())
    try:
        async with asyncio.timeout(None) as scope:
            return await member.join(left)
    except TimeoutError:
        if not scope.expired():
            raise
        return None
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _meet(
    store: Store | None,
    init_method: str | None,
    rank: int,
    world_size: int,
    limit: float,
    environ: Mapping[str, str],
    group_name: str,
) -> tuple[Meeting, bool]:
    """A meeting, and whether the job has yet to begin."""
    url = init_method or "env://"
    run = None
    begins = _has_a_place(url, environ, rank, world_size)
    deadline = asyncio.get_running_loop().time() + limit
    if store is None and (found := await _serving(url, limit, environ, begins)) is not None:
        # It is served already, so this process does not serve it, though it may be rank 0.
        try:
            address = told_address(tuning(environ), address_at(found))
            run = await _look(found, group_name)
            logger.debug("the store at %s is served already, and the job is %s", url, run.name)
            if run is not _Run.UNDER_WAY and not begins:
                left = max(0.0, deadline - asyncio.get_running_loop().time())
                await _until_it_runs(run, found, group_name, left)
                run = _Run.UNDER_WAY
        except BaseException:
            await found.aclose()
            raise
        if run is _Run.UNDER_WAY:
            return Meeting(found, -1, 0, None, address), False
        await found.aclose()
    if store is not None and world_size < 1:
        run = await _look(store, group_name)
        if run is not _Run.UNDER_WAY:
            await _until_it_runs(run, store, group_name, limit)
        address = told_address(tuning(environ), address_at(store))
        return Meeting(store, -1, 0, None, address, owns_store=False), False
    meeting = await meet(store, init_method, rank, world_size, limit, environ)
    begins = run is _Run.DESERTED or await _look(meeting.store, group_name) is not _Run.UNDER_WAY
    return meeting, begins


async def _serving(url: str, limit: float, environ: Mapping[str, str], begins: bool) -> Store | None:
    """A client of the store that a URL leads to, by TCP or in a foreign format.

    None where it is not served yet, and this process is one of those that begin the job, so perhaps the one
    to serve it; any other waits for it.
    """
    url = store_url(environ) or url if url.startswith("env:") else url
    parts = urlsplit(url)
    if (store := await connect_by_scheme(url, job_id(environ), limit, environ)) is not None:
        return store
    if parts.scheme == "tcp":
        address = split_address(parts.netloc, "the address in init_method")
    elif parts.scheme == "env":
        found = _address_in(environ)
        if found is None:
            return None
        address = found
    else:
        return None
    if begins:
        try:
            async with asyncio.timeout(_PROBE):
                (await connect(*address)).close()
        except (OSError, TimeoutError):
            return None
    try:
        return await TcpStore.connect(*address, job_id(environ), secret(environ), limit, tls=tls(environ))
    except RendezvousTimeout as error:
        if begins:
            raise
        raise RendezvousTimeout(
            f"{error.message}; and this process has no rank with which to begin the job itself",
            hint="Start the job's store or its ranks, or give this process its RANK",
        ) from None


def _has_a_place(url: str, environ: Mapping[str, str], rank: int, world_size: int) -> bool:
    """Whether this process is one of those that begin the job: something says which rank it is."""
    if environ.get("AIODIST_NEWCOMER"):
        return False  # its launcher started it when the job ran
    if "rank=" in url:
        return True
    try:
        return placement(environ, rank, world_size).launcher != "alone"
    except UsageError:
        return False  # only the master's address is set


def _address_in(environ: Mapping[str, str]) -> tuple[str, int] | None:
    try:
        address = store_address(environ)
    except UsageError:
        return None  # another kind of store, which its handler knows
    if isinstance(address, tuple):
        return address
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT", "")
    return (host, int(port)) if host and port.isdecimal() else None


async def _look(store: Store, group_name: str) -> _Run:
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
            "no member of the job's last run is left, so nobody can admit this process",
            hint="Start all ranks again, each with its RANK: that begins the job anew",
        )
    await _named(store, group_name).wait([LATEST], limit)


def _named(store: Store, group_name: str) -> Store:
    return PrefixStore(f"aiodist/{group_name or 'world'}", store)
