"""`init_process_group`: from a process to a member of a job.

The arguments and the environment say where to meet (`rendezvous.meeting_point`), which gives a store; the
`World` does the rest. Nothing here is global but the default group of a loop (law 10).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import weakref
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from aiodist import _engine
from aiodist.backends.choice import BackendChoice, parse
from aiodist.base.environment import placement, secret, tuning
from aiodist.base.environment.variables import warn_of_near_misses
from aiodist.base.errors import BackendUnavailable, UsageError
from aiodist.base.timeouts import Timeout, seconds
from aiodist.group import ProcessGroup
from aiodist.group.default import default_group, find_default, set_default
from aiodist.group.entering import entered
from aiodist.group.runtime import tracebacks
from aiodist.group.runtime.initialised_libraries import beside_others
from aiodist.group.runtime.member import Member
from aiodist.group.runtime.simulated import current
from aiodist.rendezvous import Invitation, Store, meet
from aiodist.rendezvous.meeting_point import says_where

# Loops on which init_process_group is under way.
_meeting: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def is_available() -> bool:
    """Whether aiodist can run here: Linux and macOS."""
    return sys.platform != "win32"


def is_initialized() -> bool:
    """Whether the running loop has a default group."""
    return find_default() is not None


def is_backend_available(backend: str) -> bool:
    """Whether `init_process_group` accepts this backend here. Imports the backend's library.

    Args:
        backend: as there; case does not count.
    """
    try:
        parse(backend).check()
    except (UsageError, BackendUnavailable):
        return False
    return True


def is_torchelastic_launched() -> bool:
    """Whether `aiodist run`, torchrun or another that sets TORCHELASTIC_RUN_ID started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@entered
async def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Timeout = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    enable_reconfigure: bool = False,
) -> ProcessGroup:
    """Meet the job's other processes and form the world's group.

    Args:
        backend: 'host' (alias 'gloo'), 'nccl', 'mpi', a name that was registered, or one for each place where
            tensors lie: 'cpu:host,cuda:nccl'. None picks by what the machine has. The same on every rank.
        init_method: 'env://' (the default: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or what a launcher
            sets), 'tcp://host:port', 'file:///path', or a scheme given to `register_rendezvous_handler`.
        timeout: seconds, or a timedelta, for meeting; also the default of the group's operations. 300 s.
        world_size: number of processes; -1 takes it from `init_method`. 1: a job of its own, by whatever this
            process was started; it needs no rank.
        rank: of this process; -1 takes it from `init_method`. With backend 'mpi' both are MPI's, and it says
            where to meet, if nothing else does.
        store: meet over this store instead of `init_method`; needs `rank` and `world_size`. It stays yours.
        group_name: for people, and to tell apart several worlds over one store.
        pg_options, enable_reconfigure: for torch's sake, and not used.
        device_id: this process's CUDA device: an index, 'cuda:1' or a torch.device. None: LOCAL_RANK modulo
            the number of devices.

    Returns:
        The world's group, also the default of the running loop. Enter what is
        returned, `async with init_process_group() as pg`, or await it and close the group with
        `destroy_process_group`.

    Raises:
        UsageError: arguments or environment variables without meaning; or others were started with this
            process, and nothing says where to meet them: each would be a job of its own.
        RendezvousTimeout: not all came in time; names the missing ranks.
        RendezvousError: the processes cannot work together (two with one rank, other versions…).
        BackendUnavailable: the backend is not here.
    """
    tracebacks.install()
    choice = check_can_begin(backend)
    place = current.get()
    if place is not None:
        return await place.form(group_name, None if timeout is None else seconds(timeout))
    return await form(ask(init_method, timeout, world_size, rank, store), choice, group_name, device_id)


async def form(
    asked: Invitation, choice: BackendChoice, group_name: str = "", device_id: Any = None
) -> ProcessGroup:
    """Meet as an invitation says, and form the world's group; arguments and errors as above."""
    async with about_to_meet(choice, device_id) as choice:
        by_mpi = any(engine.name == "mpi" for engine in choice.engines.values())
        asked = await _as_mpi_says(asked) if by_mpi else knowing_secret(beside_others(asked))
        group = await Member(await meet(asked), asked, group_name, choice).first_epoch()
        set_default(group)
    return group


async def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Close a group, by default the world's, and with it everything. See `ProcessGroup.aclose`.

    Raises:
        UsageError: this loop has no default group.
        GroupBroken: operations failed that nobody awaited; all is closed nevertheless.
    """
    if group is None:
        group = default_group()
    await group.aclose()


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This process's rank on its node: LOCAL_RANK, or what mpirun or srun say instead.

    Args:
        fallback_rank: what to return where nothing says it; None makes that a UsageError.
    """
    value = os.environ.get("LOCAL_RANK")
    if value is not None:
        try:
            return int(value)
        except ValueError:
            raise UsageError(f"LOCAL_RANK={value!r} is not a number") from None
    with contextlib.suppress(UsageError):  # what is half set does not say it
        found = placement(os.environ)
        if found.launcher != "alone" and found.local_rank is not None:
            return found.local_rank
    if fallback_rank is None:
        raise UsageError("LOCAL_RANK is not set", hint="Launch with `aiodist run`, or pass fallback_rank")
    return int(fallback_rank)


def check_can_begin(backend: str | None) -> BackendChoice:
    """Refuse a second default group, a backend that nobody knows, and Windows; what the backend means."""
    if not is_available():
        raise BackendUnavailable("aiodist does not run on Windows", hint="Use Linux, macOS or WSL 2")
    choice = parse(backend)
    if is_initialized():
        raise UsageError(
            "this loop has a default process group already",
            hint="Close it first: dist.destroy_process_group()",
        )
    return choice


def ask(
    init_method: str | None,
    timeout: Timeout,
    world_size: int,
    rank: int,
    store: Store | None,
    more: Mapping[str, str] | None = None,
) -> Invitation:
    """Put what the arguments say of where to meet into an invitation. It has no secret yet.

    Args:
        more: variables besides the environment's, for one job of several in this process.
    """
    environ = {**os.environ, **(more or {})}  # a copy: each look at the real one encodes and decodes
    warn_of_near_misses(environ)
    tuned = tuning(environ)
    if tuned.engine == "compiled" and _engine.compiled is None:
        raise BackendUnavailable(
            f"AIODIST_ENGINE=compiled, but aiodist runs by {_engine.describe()}",
            hint="Install aiodist again where there is a C compiler, or leave the variable out",
        )
    limit = tuned.timeout if timeout is None else seconds(timeout)
    url = init_method or ("env://" if store is None else "")
    return replace(Invitation.of(url, rank, world_size, limit, environ), store=store)


def knowing_secret(asked: Invitation) -> Invitation:
    """Add the job's secret."""
    return replace(asked, secret=secret(asked.environ))


async def _as_mpi_says(asked: Invitation) -> Invitation:
    """Have MPI say which rank this is, and, where nothing else does, where and with which secret to meet."""
    from aiodist.backends.mpi import meeting as mpi

    if not says_where(asked, "AIODIST_STORE", "MASTER_ADDR"):
        return replace(asked, by_library=mpi.meet)
    rank, world_size = await mpi.world(asked.rank, asked.world_size, asked.environ)
    return knowing_secret(replace(asked, rank=rank, world_size=world_size))


@contextlib.asynccontextmanager
async def about_to_meet(choice: BackendChoice, device_id: Any) -> AsyncIterator[BackendChoice]:
    """Allow one rendezvous at a time on a loop, and load what the choice needs, in a thread."""
    loop = asyncio.get_running_loop()
    if loop in _meeting:
        raise UsageError("init_process_group is under way on this loop", hint="Await the first call")
    _meeting.add(loop)
    try:
        if not choice.plain:
            choice = await loop.run_in_executor(None, choice.check, device_id)
        yield choice
    finally:
        _meeting.discard(loop)
