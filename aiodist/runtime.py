"""`init_process_group`: from a process to a member of a job.

Placement (who am I?) comes from the arguments or the environment, the rendezvous gives a store, the
`World` does the rest. Nothing here is global but the default group of a loop (law 10).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aiodist.environment import Tuning, job_id, secret, tuning
from aiodist.errors import BackendUnavailable, RendezvousError, UsageError
from aiodist.group import ProcessGroup
from aiodist.group.default import default_group, find_default, set_default
from aiodist.group.world import Settings, World
from aiodist.rendezvous import (
    FileStore,
    Meeting,
    PrefixStore,
    Store,
    TcpStore,
    claim_rank,
    release_rank,
    rendezvous,
    this_process,
    told_address,
)
from aiodist.timeouts import Timeout, seconds
from aiodist.transport import SocketEndpoint

T = TypeVar("T")

# Loops on which init_process_group is under way.
_meeting: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

_HOST = (None, "host", "gloo", "cpu:host", "cpu:gloo")
_PARTING = 1.0  # seconds that a store which no longer answers may delay closing
_NOT_YET = {"nccl": "device tensors over NCCL", "mpi": "an existing MPI library", "ucc": "UCC"}


def is_available() -> bool:
    """Whether aiodist can run here: Linux and macOS."""
    return sys.platform != "win32"


def is_initialized() -> bool:
    """Whether the running loop has a default group."""
    return find_default() is not None


def is_backend_available(backend: str) -> bool:
    """Whether `init_process_group` would take this backend here.

    Args:
        backend: 'host', its alias 'gloo', or another name; case does not count.
    """
    return isinstance(backend, str) and backend.lower() in _HOST


def is_torchelastic_launched() -> bool:
    """Whether `aiodist run`, torchrun or whoever else sets TORCHELASTIC_RUN_ID started this process."""
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
        backend: 'host' (alias 'gloo'); None picks by what the machine has.
        init_method: 'env://' (the default: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or what a launcher
            sets), 'tcp://host:port', 'file:///path', or a scheme given to `register_rendezvous_handler`.
        timeout: seconds, or a timedelta, for meeting; also the default of the group's operations. 300 s.
        world_size: number of processes; -1 takes it from `init_method`.
        rank: of this process; -1 takes it from `init_method`.
        store: meet over this store instead of `init_method`; needs `rank` and `world_size`. It stays yours.
        group_name: for people, and to tell apart several worlds over one store.
        pg_options: for backends that have any.
        device_id: for backends that have devices.

    Returns:
        The world's group, also the default of the running loop. Use it with `async with`, or close it with
        `destroy_process_group`.

    Raises:
        UsageError: arguments or environment variables without meaning.
        RendezvousTimeout: not all came in time; names who is missing.
        RendezvousError: the processes cannot work together (two with one rank, other versions…).
        BackendUnavailable: the backend is not here.
    """
    if not is_available():
        raise BackendUnavailable("aiodist does not run on Windows", hint="Use Linux, macOS or WSL 2")
    _check_backend(backend)
    if is_initialized():
        raise UsageError(
            "this loop has a default process group already",
            hint="Close it first: dist.destroy_process_group()",
        )
    loop = asyncio.get_running_loop()
    if loop in _meeting:
        raise UsageError("init_process_group is under way on this loop", hint="Await the first call")
    environ = os.environ
    tuned = tuning(environ)
    limit = seconds(timeout) if timeout is not None else tuned.timeout
    _meeting.add(loop)
    try:
        meeting = await _meet(store, init_method, rank, world_size, limit, environ)
        group = await assemble(meeting, tuned, limit, group_name, environ)
        set_default(group)
    finally:
        _meeting.discard(loop)
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
    """This process's rank on its node, from LOCAL_RANK.

    Args:
        fallback_rank: what to return where the variable is absent; None makes that a UsageError.
    """
    value = os.environ.get("LOCAL_RANK")
    if value is not None:
        try:
            return int(value)
        except ValueError:
            raise UsageError(f"LOCAL_RANK={value!r} is not a number") from None
    if fallback_rank is None:
        raise UsageError("LOCAL_RANK is not set", hint="Launch with `aiodist run`, or pass fallback_rank")
    return int(fallback_rank)


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run a coroutine on a uvloop event loop (asyncio's own where uvloop has no build) and return its result.

    Groups that are still open when it returns are closed; when it raises, they are aborted first, so that
    peers learn of it at once. Ctrl-C cancels the coroutine, as with `asyncio.run`.
    """
    try:
        with asyncio.Runner(debug=debug, loop_factory=_loop_factory()) as runner:
            return runner.run(_guarded(main))
    except KeyboardInterrupt as interrupt:
        # Nobody needs two tracebacks a rank to know that they pressed Ctrl-C; where it was may be of use.
        sys.excepthook = partial(_say_interrupted, _interrupted_at(interrupt), sys.excepthook)
        raise


def _interrupted_at(interrupt: BaseException) -> str:
    """The innermost line of the user's own code that Ctrl-C interrupted, in words."""
    chain = interrupt.__context__ or interrupt
    inner = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent))
    for frame in reversed(traceback.extract_tb(chain.__traceback__)):
        if not frame.filename.startswith((*inner, "uvloop", "<")):
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return "before any of its lines"


def _say_interrupted(where: str, usual: Callable[..., None], kind: type[BaseException], *rest: Any) -> None:
    """An excepthook that says one line for a KeyboardInterrupt."""
    if issubclass(kind, KeyboardInterrupt):
        print(f"interrupted at {where}", file=sys.stderr)
    else:
        usual(kind, *rest)


async def _guarded(main: Coroutine[Any, Any, T]) -> T:
    try:
        result = await main
    except BaseException as error:
        group = find_default()
        if group is not None:
            # Like `async with`: peers are told why, and hear of it before the connections end.
            await asyncio.shield(group.__aexit__(type(error), error, error.__traceback__))
        raise
    group = find_default()
    if group is not None:
        await group.aclose()
    return result


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _check_backend(backend: str | None) -> None:
    if backend in _HOST:
        return
    if backend in _NOT_YET:
        raise BackendUnavailable(
            f"backend {backend!r} ({_NOT_YET[backend]}) is not part of this version",
            hint="Use backend='host'",
        )
    raise UsageError(f"backend={backend!r} is not known", hint="Use backend='host', or None for the default")


async def _meet(
    store: Store | None,
    init_method: str | None,
    rank: int,
    world_size: int,
    timeout: float,
    environ: Mapping[str, str],
) -> Meeting:
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
    address = told_address(tuning(environ), _address_at(store))
    return Meeting(store, rank, world_size, address=address, owns_store=False)


def _address_at(store: Store) -> str:
    """This host's address on the connection to a store; loopback for one inside this process."""
    while isinstance(store, PrefixStore):
        store = store.underlying
    if isinstance(store, FileStore):
        store = store.client
    return store.address if isinstance(store, TcpStore) else "127.0.0.1"


async def assemble(
    meeting: Meeting, tuned: Tuning, timeout: float, group_name: str, environ: Mapping[str, str]
) -> ProcessGroup:
    """The world's group of a meeting; closing it ends the meeting."""
    name = group_name or "world"
    loop = asyncio.get_running_loop()
    store = PrefixStore(f"aiodist/{name}", meeting.store)
    me = this_process()
    try:
        await claim_rank(store, meeting.rank, me)
        endpoint = await SocketEndpoint.open(
            rank=meeting.rank,
            job=job_id(environ),
            secret=secret(environ),
            host=meeting.address,
            mode=tuned.transport,
            eager_budget=tuned.eager_budget,
        )
    except BaseException:
        await _part(meeting, store, me)
        raise

    async def leave() -> None:
        with contextlib.suppress(UsageError):
            if loop is asyncio.get_running_loop() and find_default() is group:
                set_default(None)
        await _part(meeting, store, me)

    group: ProcessGroup | None = None
    settings = Settings(name, job_id(environ), tuned.transport, tuned.agreed, timeout, limits=tuned.limits)
    world = World(endpoint, meeting.world_size, settings, leave)
    group = await world.open(store)
    return group


async def _part(meeting: Meeting, store: Store, me: bytes) -> None:
    """Give the rank back and leave the meeting."""
    try:
        async with asyncio.timeout(_PARTING):
            await release_rank(store, meeting.rank, me)
    except (RendezvousError, TimeoutError):
        pass  # whoever hosted the store is gone; so is the claim
    finally:
        await meeting.aclose()
