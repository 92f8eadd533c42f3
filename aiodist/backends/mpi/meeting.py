"""The rendezvous of processes that mpirun started: COMM_WORLD gives rank, size and the store's address.

    all ranks' cards ─▶ rank 0 listens where all can reach it ─▶ its address to all

A secret that the operator gave (AIODIST_SECRET, AIODIST_SECRET_FILE) is kept, and never travels. Where there
is none rank 0 makes one, which goes with the address: in clear, over MPI's network.

Only bytes of known length travel by MPI. They are collective on COMM_WORLD, and nothing else may be then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.mpi.library import Library, load
from aiodist.backends.mpi.place import (
    Environ,
    card,
    cards,
    check_place,
    refused,
    together,
)
from aiodist.backends.mpi.process import this
from aiodist.backends.mpi.progress import MpiJob, Posted
from aiodist.backends.threads import post
from aiodist.base.environment import given_secret, job_id, secret, tls, tuning
from aiodist.base.environment.process import host_key
from aiodist.base.errors import RendezvousError, RendezvousTimeout, UsageError
from aiodist.base.sanitize import one_line
from aiodist.net.sockets import join_address, outward
from aiodist.net.tasks import settle
from aiodist.rendezvous import Invitation, Meeting, StoreServer, announced_address
from aiodist.rendezvous import meet as meet_there
from aiodist.rendezvous.announcement import About, Announcement

_LONGEST = 1024  # bytes of what rank 0 tells
_SECRET_BYTES = 32
_LOOPBACK = "127.0.0.1"
_log = logging.getLogger("aiodist.rendezvous")


async def world(rank: int, world_size: int, environ: Environ) -> tuple[int, int]:
    """This process's rank in the MPI job, and the number of its processes. Loads MPI.

    Args:
        rank: as the user gave it; -1: not.
        world_size: likewise.
        environ: the environment variables.

    Raises:
        UsageError: arguments or variables say something else.
        BackendUnavailable: MPI is not here.
    """
    library = await asyncio.to_thread(load)
    check_place(library.rank, library.size, rank, world_size, environ)
    return library.rank, library.size


async def meet(asked: Invitation) -> Meeting:
    """Meet the other processes of the MPI job, where nothing else gives a place. Loads MPI.

    The secret that is found, or made, is the meeting's.

    Raises:
        UsageError: arguments or variables say something else than MPI, or the secret's file cannot be used.
            The others are told.
        BackendUnavailable: MPI is not here.
        RendezvousTimeout: not all came in time.
        RendezvousError: rank 0 could not listen, another rank was refused, only some ranks were given a
            secret, or this process gave up before.
    """
    environ = asked.environ
    library = await asyncio.to_thread(load)
    mine, size = library.rank, library.size
    place = replace(asked, rank=mine, world_size=size, by_library=None)
    refusal: UsageError | None = None
    given = b""
    try:
        check_place(mine, size, asked.rank, asked.world_size, environ)
        given = given_secret(environ)
    except UsageError as error:
        refusal = error
    if size == 1:
        if refusal is not None:
            raise refusal
        return replace(await meet_there(place), secret=secret(environ))
    server: StoreServer | None = None
    announced, shown = np.zeros(_LONGEST, np.uint8), cards(size)
    try:
        async with _talk(library, asked.timeout) as talk:
            await talk(lambda comm: comm.Iallgather(card(host_key().encode(), refusal, bool(given)), shown))
            another = refused(shown)
            if another is None:
                if mine == 0:
                    server, text = await _listen(environ, together(shown), given)
                    announced[: len(text)] = np.frombuffer(text, np.uint8)
                await talk(lambda comm: comm.Ibcast(announced, 0))
        if another is not None:
            raise another
        line, fresh = _read(announced)
        key = fresh.encode() or given
        store = Announcement.read(line, _about(environ, key))
        with_store = {**environ, "AIODIST_STORE": join_address(store.host, store.port)}
        meeting = await meet_there(replace(place, environ=with_store, secret=key, instance=store.instance))
    except BaseException as error:
        if server is not None:
            await server.aclose()
        if refusal is not None and isinstance(error, RendezvousError):
            raise refusal from None  # whether the others came or not
        raise
    return replace(meeting, server=server, secret=key)


Talk = Callable[[Callable[[Any], Any]], Awaitable[None]]
"""A function that makes one collective call, which is given a communicator, and waits for its end."""


@contextlib.asynccontextmanager
async def _talk(library: Library, timeout: float) -> AsyncIterator[Talk]:
    """A few collective calls on COMM_WORLD, with a timeout.

    They match those of the others by their order. So a process that has left in the middle makes no more of
    them: what the others take for one call would be another.

    Args:
        library: the library.
        timeout: seconds for all of them.
    """
    if this.gave_up:
        raise RendezvousError(
            "an earlier meeting of this process with the MPI job did not finish, and MPI cannot cancel it",
            hint="Start the job again, or set MASTER_ADDR and MASTER_PORT on every rank",
        )
    owner, progress, loop = object(), this.hold(library), asyncio.get_running_loop()

    async def talk(call: Callable[[Any], Any]) -> None:
        ended: asyncio.Future[None] = loop.create_future()

        def begin() -> Iterator[Posted]:
            yield Posted(call(library.mpi.COMM_WORLD))

        tell = partial(post, loop, settle, ended, None)
        progress.post(MpiJob(owner, begin, tell, tell))
        await ended

    try:
        async with asyncio.timeout(timeout):
            yield talk
    except BaseException as error:
        this.gave_up = True
        if not isinstance(error, TimeoutError):
            raise
        raise RendezvousTimeout(
            f"not all {library.size} processes of the MPI job came within {timeout:g} s",
            hint="Every one of them has to call init_process_group with backend='mpi'",
        ) from None
    finally:
        progress.abandon(owner, lambda: None)  # nobody waits for the end
        this.release()


async def _listen(environ: Environ, one_host: bool, given: bytes) -> tuple[StoreServer | None, bytes]:
    """Start the store → it and what is told of it, or the reason why it cannot start.

    Args:
        one_host: all processes are on this host.
        given: the secret that all have; b'': make one.
    """
    fresh = "" if given else secrets.token_hex(_SECRET_BYTES)
    if fresh and not one_host:
        _log.warning(
            "no secret is set: rank 0 makes one, and MPI sends it to the other hosts in clear, where "
            "everybody on their network can read it; set AIODIST_SECRET_FILE on every rank to prevent that"
        )
    try:
        host = announced_address(tuning(environ), _LOOPBACK if one_host else outward())
        if not host:
            raise RendezvousError(
                "this host has no address towards others",
                hint="Set AIODIST_HOST there to one that the other hosts reach, or AIODIST_SOCKET_IFNAME to "
                "the network interface that has it",
            )
        key = given or fresh.encode()
        server = await StoreServer.start(*(host, 0, job_id(environ), key), rank=0, tls=tls(environ))
    except (UsageError, RendezvousError, OSError) as error:
        return None, f"!{error}".encode()[:_LONGEST]
    line = Announcement(server.host, server.port, server.instance).text(_about(environ, key))
    return server, f"{fresh} {line}".encode()


def _read(announced: Array) -> tuple[str, str]:
    """The words on the store, and the fresh secret ('' where all have one), from what rank 0 tells."""
    text = announced.tobytes().rstrip(b"\0").decode(errors="replace")
    if text.startswith("!"):
        raise RendezvousError(f"rank 0 cannot host the store: {one_line(text[1:])}")
    fresh, _, line = text.partition(" ")
    return line, fresh


def _about(environ: Environ, key: bytes) -> About:
    return About("the address of rank 0", job_id(environ), "told by MPI", key)
