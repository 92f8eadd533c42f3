"""`join`: into a job that runs already, or, where it has yet to begin, to its beginning."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
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
from aiodist.errors import UsageError
from aiodist.group import ProcessGroup
from aiodist.group.default import set_default
from aiodist.group.newcomer import join_running
from aiodist.membership.newcomers import OVER
from aiodist.net.sockets import connect
from aiodist.rendezvous import Meeting, PrefixStore, Store, TcpStore, told_address
from aiodist.runtime.init import ask_to_meet, check_can_begin, meet
from aiodist.runtime.member import ELASTIC, Member, address_at
from aiodist.timeouts import Timeout, seconds

_PROBE = 2.0  # seconds for a look at whether somebody serves the store already


async def join(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Timeout = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
) -> ProcessGroup:
    """Become a member of a job, at its beginning or later.

    If the job has not begun, this is `init_process_group`: all ranks meet. If it runs, this process waits at
    the store until the members admit it (`rebuild`, `grow`), as the last rank of their next epoch. So a
    script whose workers may die and come back calls only this.

    Args:
        backend: as for `init_process_group`.
        init_method: likewise; where the job meets.
        timeout: seconds, or a timedelta, to wait for being admitted; also the default of operations. 300 s.
        world_size: processes at the beginning; -1 takes it from `init_method`. A newcomer needs none.
        rank: of this process at the beginning, likewise.
        store: meet over this store instead of `init_method`. It stays yours.
        group_name: as for `init_process_group`.

    Returns:
        → the world's group, also the default of the running loop.

    Raises:
        RendezvousTimeout: nobody admitted it in time, or the job has not begun and somebody did not come.
        RendezvousError: the job ended before this process was admitted.
        and what `init_process_group` raises.
    """
    check_can_begin(backend)
    environ = os.environ
    tuned = tuning(environ)
    limit = seconds(timeout) if timeout is not None else tuned.timeout
    with ask_to_meet():
        meeting, begins = await _meet(store, init_method, rank, world_size, limit, environ, group_name)
        member = Member(meeting, tuned, limit, group_name, environ)
        member.elastic = True
        if begins:
            group = await member.first_epoch()
            if group.rank == 0:
                await meeting.store.set(ELASTIC, b"1")
        else:
            group = await join_running(member.job, limit)
        set_default(group)
    return group


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
    if store is None and (found := await _serving(url, limit, environ)) is not None:
        # Somebody serves it, so this process does not, though it may be rank 0.
        try:
            address = told_address(tuning(environ), address_at(found))
            runs = await _runs(found, group_name)
            if not runs and not _has_a_place(url, environ, rank, world_size):
                await _until_it_runs(found, group_name, limit)
                runs = True
        except BaseException:
            await found.aclose()
            raise
        if runs:
            return Meeting(found, -1, 0, None, address), False
        await found.aclose()
    if store is not None and world_size < 1:
        if not await _runs(store, group_name):
            await _until_it_runs(store, group_name, limit)
        address = told_address(tuning(environ), address_at(store))
        return Meeting(store, -1, 0, None, address, owns_store=False), False
    meeting = await meet(store, init_method, rank, world_size, limit, environ)
    return meeting, not await _runs(meeting.store, group_name)


async def _serving(url: str, limit: float, environ: Mapping[str, str]) -> Store | None:
    """A client of the store that a URL leads to, if it is served already, by TCP or in etcd."""
    url = store_url(environ) or url if url.startswith("env:") else url
    parts = urlsplit(url)
    if parts.scheme in ("etcd", "etcds"):
        from aiodist.rendezvous.etcd_store import EtcdStore

        return await EtcdStore.connect(url, job_id(environ), limit, environ=environ)
    if parts.scheme == "tcp":
        address = split_address(parts.netloc, "the address in init_method")
    elif parts.scheme == "env":
        found = _address_in(environ)
        if found is None:
            return None
        address = found
    else:
        return None
    try:
        async with asyncio.timeout(_PROBE):
            (await connect(*address)).close()
    except (OSError, TimeoutError):
        return None
    return await TcpStore.connect(*address, job_id(environ), secret(environ), limit, tls=tls(environ))


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


async def _runs(store: Store, group_name: str) -> bool:
    named = _named(store, group_name)
    return await named.check(["latest"]) and not await named.check([OVER])


async def _until_it_runs(store: Store, group_name: str, limit: float) -> None:
    await _named(store, group_name).wait(["latest"], limit)


def _named(store: Store, group_name: str) -> Store:
    return PrefixStore(f"aiodist/{group_name or 'world'}", store)
