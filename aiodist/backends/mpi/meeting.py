"""How processes that mpirun started meet: rank and size are COMM_WORLD's, and it tells where the store is.

    everybody's host ─▶ rank 0 listens where all can reach it ─▶ its address and a fresh secret to all

Only bytes of known length travel by MPI. They are collective on COMM_WORLD, and nothing else may be then.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.mpi.library import Library, load
from aiodist.backends.mpi.process import this
from aiodist.backends.mpi.progress import Job, Posted, Progress
from aiodist.environment import Placement, job_id, placement, tls, tuning
from aiodist.errors import RendezvousError, RendezvousTimeout, UsageError
from aiodist.net.sockets import join_address
from aiodist.rendezvous import Meeting, StoreServer, rendezvous, told_address
from aiodist.transport.dialing import boot_id

_LONGEST = 1024  # bytes of what rank 0 tells
_SECRET_BYTES = 16
_LOOPBACK = "127.0.0.1"
_ELSEWHERE = ("192.0.2.1", 9)  # nobody's: only asked which of our addresses would lead there


async def world() -> tuple[int, int]:
    """This process's rank in the MPI job, and how many processes it has. Loads MPI.

    Raises:
        BackendUnavailable: it is not here.
    """
    library = await asyncio.to_thread(load)
    return library.rank, library.size


def check_place(rank: int, size: int, given: Placement) -> None:
    """Refuse a place that contradicts MPI's.

    Args:
        rank: in COMM_WORLD.
        size: of COMM_WORLD.
        given: by arguments or the environment.
    """
    if given.launcher == "alone" or (given.rank, given.world_size) == (rank, size):
        return
    if size == 1:
        raise UsageError(
            f"MPI has this process alone, but {given.evidence}",
            hint=f"Start with `mpirun -n {given.world_size}`",
        )
    raise UsageError(
        f"this is rank {rank} of {size} in MPI, but {given.evidence}",
        hint="Leave rank and world_size to MPI: pass neither, and unset RANK and WORLD_SIZE",
    )


async def meet(
    rank: int, world_size: int, timeout: float, environ: Mapping[str, str]
) -> tuple[Meeting, dict[str, str]]:
    """Meet the other processes of the MPI job, where nothing else says where.

    Args:
        rank: as the user gave it; -1: it is MPI's.
        world_size: likewise.
        timeout: seconds.
        environ: the environment variables.

    Returns:
        the meeting, and the variables that go on with: with the job's secret.

    Raises:
        UsageError: the place contradicts MPI's.
        RendezvousTimeout: not all came in time.
        RendezvousError: rank 0 could not listen.
    """
    library = await asyncio.to_thread(load)
    check_place(library.rank, library.size, placement(environ, rank, world_size))
    place = {"AIODIST_RANK": str(library.rank), "AIODIST_WORLD_SIZE": str(library.size)}
    if library.size == 1:
        environ = {**environ, **place}
        return await rendezvous("env://", timeout=timeout, environ=environ), environ
    server: StoreServer | None = None
    told = np.zeros(_LONGEST, np.uint8)
    try:
        async with _Talk(library, timeout) as talk:
            hosts = np.zeros((library.size, 16), np.uint8)
            await talk.do(lambda comm: comm.Iallgather(_host(), hosts))
            if library.rank == 0:
                server, words = await _listen(environ, alone=len(np.unique(hosts, axis=0)) == 1)
                told[: len(words)] = np.frombuffer(words, np.uint8)
            await talk.do(lambda comm: comm.Ibcast(told, 0))
        address, key = _read(told)
        environ = {**environ, **place, "AIODIST_STORE": address, "AIODIST_SECRET": key}
        meeting = await rendezvous("env://", timeout=timeout, environ=environ, secret=key.encode())
    except BaseException:
        if server is not None:
            await server.aclose()
        raise
    return replace(meeting, server=server), environ


class _Talk:
    """A few collective calls on COMM_WORLD, with a bound.

    Args:
        library: the library.
        timeout: seconds for all of them.
    """

    def __init__(self, library: Library, timeout: float) -> None:
        self._library = library
        self._timeout = timeout
        self._owner = object()
        self._progress: Progress | None = None
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(timeout)

    async def __aenter__(self) -> _Talk:
        self._progress = this.hold(self._library)
        await self._limit.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        assert self._progress is not None
        self._progress.abandon(self._owner, _nothing)
        this.release()
        try:
            await self._limit.__aexit__(*error)
        except TimeoutError:
            raise RendezvousTimeout(
                f"not all {self._library.size} processes of the MPI job came within {self._timeout:g} s",
                hint="Every one of them has to call init_process_group with backend='mpi'",
            ) from None

    async def do(self, call: Callable[[Any], Any]) -> None:
        """Make one call, and wait for its end."""
        ended: asyncio.Future[None] = self._loop.create_future()

        def post() -> Iterator[Posted]:
            yield Posted(call(self._library.mpi.COMM_WORLD))

        def tell(error: Exception | None = None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(_resolve, ended, error)

        assert self._progress is not None
        self._progress.post(Job(self._owner, post, tell, tell))
        await ended


async def _listen(environ: Mapping[str, str], alone: bool) -> tuple[StoreServer | None, bytes]:
    """Start the store, and say where; or why not.

    Args:
        alone: all processes are on this host.
    """
    key = secrets.token_hex(_SECRET_BYTES)
    try:
        host = told_address(tuning(environ), _LOOPBACK if alone else _own_address())
        server = await StoreServer.start(*(host, 0, job_id(environ), key.encode()), rank=0, tls=tls(environ))
    except (UsageError, RendezvousError, OSError) as error:
        return None, f"!{error}".encode()[:_LONGEST]
    return server, f"{key} {join_address(server.host, server.port)}".encode()


def _read(told: Array) -> tuple[str, str]:
    """Address and secret, from what rank 0 tells."""
    words = told.tobytes().rstrip(b"\0").decode(errors="replace")
    if words.startswith("!"):
        raise RendezvousError(f"rank 0 cannot host the store: {words[1:]}")
    key, _, address = words.partition(" ")
    return address, key


def _host() -> Array:
    """Names this host as far as its loopback reaches: processes in another network namespace have another."""
    try:
        network = str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        network = ""
    return np.frombuffer(
        hashlib.blake2b(f"{boot_id()} {network}".encode(), digest_size=16).digest(), np.uint8
    )


def _own_address() -> str:
    """The address of this host from which other hosts are reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(_ELSEWHERE)
            return str(sock.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def _resolve(ended: asyncio.Future[None], error: Exception | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)


def _nothing() -> None:
    """Nobody waits for it."""
