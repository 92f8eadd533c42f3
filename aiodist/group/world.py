"""Putting a world together: from an endpoint and a store to the first process group.

    cards ──▶ who shares memory ──▶ control links ──▶ group ──▶ a barrier over the data channels

Each step is bounded by one deadline and names who is missing when it passes. The same code runs over
sockets and, in simulations, over memory.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgpack

from aiodist.backends.base import Reports
from aiodist.backends.host import HostEngine
from aiodist.backends.host.backend import HostBackend
from aiodist.control.plane import ControlPlane
from aiodist.control.process import ProcessWatch
from aiodist.environment.thresholds import DEFAULTS, Thresholds
from aiodist.errors import (
    AiodistError,
    AuthenticationError,
    BackendUnavailable,
    PeerLost,
    RendezvousError,
    RendezvousTimeout,
    name_ranks,
)
from aiodist.group.process_group import ProcessGroup
from aiodist.group.subgroups import context_of
from aiodist.transport.base import ControlLink, Endpoint
from aiodist.work import Pulse

PROTOCOL = 2  # of what groups say to each other; a job that mixes numbers is refused


class Exchange(Protocol):
    """What assembling needs of a store."""

    async def gather(
        self, name: str, world_size: int, rank: int, value: bytes, timeout: float | None = None
    ) -> list[bytes]:
        """Leave a value, get those of all ranks."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all ranks must agree on, and what this one was told.

    Args:
        name: the group's name.
        job: the job's id.
        transport: 'auto', 'shm' or 'tcp'.
        agreed: tuning variables by name; every rank must have the same.
        timeout: seconds for assembling, and the group's default.
        inline: run bulk work on the loop (simulations).
        limits: thresholds of the host engine; `agreed` has them, too.
    """

    name: str
    job: str
    transport: str
    agreed: Mapping[str, str]
    timeout: float
    inline: bool = False
    limits: Thresholds = DEFAULTS


class World:
    """One process's part of a job: its channels, control links, groups, and how all that ends."""

    def __init__(
        self, endpoint: Endpoint, size: int, settings: Settings, leave: Callable[[], Awaitable[None]]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._settings = settings
        self._size = size
        self._leave = leave
        self._control = ControlPlane(endpoint.rank, size)
        self._engine = HostEngine(endpoint, self._loop, self._control.lose, settings.inline)
        self._processes = ProcessWatch(self._loop)
        self._linked: asyncio.Future[None] = self._loop.create_future()
        self._ended = False
        endpoint.on_control = self._attach  # before anything is awaited: peers may dial already

    async def open(self, store: Exchange, host: str | None = None) -> ProcessGroup:
        """Meet the others and make the world's group.

        Raises:
            RendezvousTimeout: somebody did not come; names who.
            RendezvousError: versions or settings differ; says who has which.
            PeerLost: somebody came and died.
        """
        deadline = self._loop.time() + self._settings.timeout
        group: ProcessGroup | None = None
        try:
            cards = await self._meet(store, host, deadline)
            await self._route(store, deadline)
            await self._link(deadline)
            group = self._make(cards)
            await group.barrier(timeout=max(deadline - self._loop.time(), 0.001))
            return group
        except BaseException as error:
            if group is not None:  # it must not live on, with its timer
                group.abort(f"assembling failed ({type(error).__name__})")
            await self._abandon()
            raise

    # ── the steps ────────────────────────────────────────────────────────────────────────────────────

    async def _meet(self, store: Exchange, host: str | None, deadline: float) -> list[dict[str, Any]]:
        settings = self._settings
        card = {
            "protocol": PROTOCOL,
            "byteorder": sys.byteorder,
            "host": host or socket.gethostname(),
            "pid": os.getpid(),
            "agreed": dict(settings.agreed),
            "endpoint": self._endpoint.card,
        }
        packed = msgpack.packb(card)
        answers = await store.gather(
            f"{settings.name}/cards", self._size, self._endpoint.rank, packed, self._left(deadline)
        )
        cards = [msgpack.unpackb(answer, strict_map_key=False) for answer in answers]
        check_cards(cards)
        self._endpoint.introduce({rank: card["endpoint"] for rank, card in enumerate(cards)})
        return cards

    async def _route(self, store: Exchange, deadline: float) -> None:
        """Find out who shares memory, and agree: a pair uses it if both have proved it (law 3)."""
        me, transport = self._endpoint.rank, self._settings.transport
        others = [rank for rank in range(self._size) if rank != me]
        proved = set()
        if transport != "tcp":
            proved = await self._endpoint.prove_local(others, self._to_dial())
        answers = await store.gather(
            f"{self._settings.name}/local",
            self._size,
            me,
            msgpack.packb(sorted(proved)),
            self._left(deadline),
        )
        local_to = [set(msgpack.unpackb(answer)) for answer in answers]
        mutual = {rank for rank in others if rank in proved and me in local_to[rank]}
        self._endpoint.keep_neighbours(mutual)
        for rank in others:
            local = rank in mutual
            if not local and transport == "shm":
                raise BackendUnavailable(
                    f"AIODIST_TRANSPORT=shm, but {name_ranks([rank])} shares no memory with rank {me}",
                    hint="Use AIODIST_TRANSPORT=auto, or run all ranks in one container of one Linux host",
                )
            self._endpoint.route(rank, "shm" if local else "tcp")
            pid = self._endpoint.peer_pid(rank)
            if local and pid is not None:
                self._processes.watch(pid, partial(self._process_ended, rank))
        self._engine.settle(local_to, self._settings.limits)

    async def _link(self, deadline: float) -> None:
        """Bring up the control links, where they did not come by mail: the higher rank of a pair dials."""
        try:
            async with asyncio.timeout_at(deadline), asyncio.TaskGroup() as tasks:
                for neighbour in self._to_dial():
                    tasks.create_task(self._dial(neighbour))
                if self._control.awaited():
                    await self._linked
        except TimeoutError:
            missing = self._control.awaited()
            raise RendezvousTimeout(
                f"no control link with {name_ranks(sorted(missing))} within {self._settings.timeout:g} s",
                missing=sorted(missing),
                hint="See whether a firewall stands between the hosts",
            ) from None
        except BaseExceptionGroup as errors:
            first = next((e for e in errors.exceptions if isinstance(e, AiodistError)), None)
            raise (first or errors.exceptions[0]) from None

    def _make(self, cards: list[dict[str, Any]]) -> ProcessGroup:
        ranks = range(self._size)
        name = self._settings.name or "world"
        return ProcessGroup(
            ranks=ranks,
            name=name,
            context=context_of(0, 0, ranks, f"{self._settings.job}/{name}"),
            epoch=0,
            hosts=[card["host"] for card in cards],
            timeout=self._settings.timeout,
            control=self._control,
            make_backend=self._backend,
            pulse=Pulse(self._loop),
            closer=self.aclose,
        )

    # ── control links ────────────────────────────────────────────────────────────────────────────────

    def _to_dial(self) -> list[int]:
        return [neighbour for neighbour in self._control.core.neighbours if neighbour < self._endpoint.rank]

    async def _dial(self, neighbour: int) -> None:
        self._attach(neighbour, await self._endpoint.link_control(neighbour))

    def _attach(self, rank: int, link: ControlLink) -> None:
        if self._ended or not 0 <= rank < self._size:
            link.kill()
            return
        link.on_message = lambda data: self._control.received(rank, data)
        link.on_closed = lambda goodbye, cause: self._link_ended(rank, goodbye, cause)
        self._control.attach(rank, link)
        self._check_linked()

    def _link_ended(self, rank: int, goodbye: bool, cause: str) -> None:
        self._control.ended(rank, goodbye, cause)
        if not goodbye:
            self._cannot_link(rank, cause)

    def _cannot_link(self, rank: int, cause: str) -> None:
        if not self._linked.done():
            self._linked.set_exception(PeerLost([rank], cause))

    def _check_linked(self) -> None:
        if not self._control.awaited() and not self._linked.done():
            self._linked.set_result(None)

    def _process_ended(self, rank: int, pid: int) -> None:
        self._control.lose(rank, f"process {pid} ended")
        self._cannot_link(rank, f"process {pid} ended")

    def _backend(self, context: int, ranks: Any, reports: Reports) -> HostBackend:
        return self._engine.backend(context, ranks, reports)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────

    async def aclose(self) -> None:
        """Say goodbye to everybody and let go of everything. The groups have ended before."""
        if self._ended:
            return
        self._ended = True
        self._processes.close()
        self._control.close()
        self._engine.leave_home()
        try:
            await self._endpoint.aclose()
        finally:
            self._engine.close()
            await self._leave()

    async def _abandon(self) -> None:
        """Assembling failed: leave no trace."""
        self._ended = True
        if self._linked.done() and not self._linked.cancelled():
            self._linked.exception()
        self._processes.close()
        self._control.kill()
        self._engine.leave_home()
        self._endpoint.kill()
        self._engine.close()
        await self._leave()

    def _left(self, deadline: float) -> float:
        return max(deadline - self._loop.time(), 0.001)


def check_cards(cards: list[dict[str, Any]]) -> None:
    """Refuse a job that mixes versions, byte orders or settings; the error says who has which.

    Raises:
        AuthenticationError: another protocol version or byte order.
        RendezvousError: settings that every rank must share differ.
    """
    first = cards[0]
    for rank, card in enumerate(cards):
        where = f"rank {rank} on {card['host']}"
        if card["protocol"] != first["protocol"]:
            raise AuthenticationError(
                f"{where} speaks protocol {card['protocol']}, rank 0 on {first['host']} {first['protocol']}",
                hint="Install the same aiodist on every host",
            )
        if card["byteorder"] != first["byteorder"]:
            raise AuthenticationError(
                f"{where} is {card['byteorder']}-endian,"
                f" rank 0 on {first['host']} {first['byteorder']}-endian",
                hint="All hosts of a job must have the same byte order",
            )
        for name, value in first["agreed"].items():
            if card["agreed"].get(name) != value:
                raise RendezvousError(
                    f"{where} has {name}={card['agreed'].get(name)!r}, rank 0 has {value!r}",
                    hint="Set it alike on every rank",
                )
