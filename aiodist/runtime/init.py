"""`init_process_group`: from a process to a member of a job.

Placement (rank and size) comes from the arguments or the environment, the rendezvous gives a store, the
`World` does the rest. Nothing here is global but the default group of a loop (law 10).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from aiodist.backends.choice import BackendChoice, parse
from aiodist.environment import placement, secret, tuning
from aiodist.errors import BackendUnavailable, UsageError
from aiodist.group import ProcessGroup
from aiodist.group.default import default_group, find_default, set_default
from aiodist.rendezvous import Meeting, Store, rendezvous, told_address
from aiodist.runtime.member import Member, address_at
from aiodist.timeouts import Timeout, seconds

# Loops on which init_process_group is under way.
_meeting: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def is_available() -> bool:
    """Whether aiodist can run here: Linux and macOS."""
    return sys.platform != "win32"


def is_initialized() -> bool:
    """Whether the running loop has a default group."""
    return find_default() is not None


def is_backend_available(backend: str) -> bool:
    """Whether `init_process_group` would take this backend here. Imports the backend's library.

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
        pg_options: for torch's sake, and not used.
        device_id: this process's CUDA device: an index, 'cuda:1' or a torch.device. None: LOCAL_RANK modulo
            the number of devices.

    Returns:
        The world's group, also the default of the running loop. Use it with `async with`, or close it with
        `destroy_process_group`.

    Raises:
        UsageError: arguments or environment variables without meaning; or others were started with this
            process, and nothing says where to meet them: each would be a job of its own.
        RendezvousTimeout: not all came in time; names the missing ranks.
        RendezvousError: the processes cannot work together (two with one rank, other versions…).
        BackendUnavailable: the backend is not here.
    """
    choice = check_can_begin(backend)
    environ: Mapping[str, str] = os.environ
    tuned = tuning(environ)
    limit = seconds(timeout) if timeout is not None else tuned.timeout
    with ask_to_meet():
        choice = await with_libraries(choice, device_id)
        meeting, environ = await _meet(choice, store, init_method, rank, world_size, limit, environ)
        group = await Member(meeting, tuned, limit, group_name, environ, choice).first_epoch()
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


async def with_libraries(choice: BackendChoice, device_id: Any) -> BackendChoice:
    """Load what a choice needs; in a thread, since it may take a second."""
    if choice.plain:
        return choice
    return await asyncio.get_running_loop().run_in_executor(None, choice.check, device_id)


@contextlib.contextmanager
def ask_to_meet() -> Iterator[None]:
    """Allow one rendezvous at a time on a loop."""
    loop = asyncio.get_running_loop()
    if loop in _meeting:
        raise UsageError("init_process_group is under way on this loop", hint="Await the first call")
    _meeting.add(loop)
    try:
        yield
    finally:
        _meeting.discard(loop)


async def _meet(
    choice: BackendChoice,
    store: Store | None,
    init_method: str | None,
    rank: int,
    world_size: int,
    timeout: float,
    environ: Mapping[str, str],
) -> tuple[Meeting, Mapping[str, str]]:
    """The meeting of the job, and the variables to go on with. MPI gives rank and place."""
    if any(engine.name == "mpi" for engine in choice.engines.values()):
        from aiodist.backends.mpi import meeting as mpi
        from aiodist.backends.mpi.place import is_told

        if store is None and init_method in (None, "env://") and not is_told(environ):
            return await mpi.meet(rank, world_size, timeout, environ)
        rank, world_size = await mpi.world(rank, world_size, environ)
    return await meet(store, init_method, rank, world_size, timeout, environ), environ


async def meet(
    store: Store | None,
    init_method: str | None,
    rank: int,
    world_size: int,
    timeout: float,
    environ: Mapping[str, str],
) -> Meeting:
    """The meeting of the job, with this process's place in it."""
    if store is None:
        return await rendezvous(
            init_method or "env://",
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            environ=environ,
            secret=secret(environ),
        )
    if init_method is not None:
        raise UsageError("pass init_method or store, not both")
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(
            f"store= needs rank and world_size, got rank={rank}, world_size={world_size}",
            hint="Pass 0 ≤ rank < world_size",
        )
    address = told_address(tuning(environ), address_at(store))
    return Meeting(store, rank, world_size, address=address, owns_store=False)
