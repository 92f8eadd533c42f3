"""Putting a world together: from an endpoint and a store to the first process group.

    cards ──▶ shared memory ──▶ control links ──▶ group ──▶ a barrier over the data channels

There is one world an epoch: when members change, another is put together (`regroup`). Each step is
bounded by one deadline and names the missing ranks when it passes. The same code runs over sockets and, in
simulations, over memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgpack
import numpy as np

from aiodist import _engine
from aiodist.backends.base import Reports
from aiodist.backends.carriers import Carriers
from aiodist.backends.choice import BackendChoice
from aiodist.backends.host import HostEngine
from aiodist.base.environment.process import host_key, is_stopped, pid_space
from aiodist.base.environment.thresholds import DEFAULTS, Thresholds
from aiodist.base.errors import BackendUnavailable, RendezvousTimeout, name_ranks
from aiodist.group.control.liveness import Patience
from aiodist.group.control.overlay import FULL_MESH
from aiodist.group.control.plane import ControlPlane
from aiodist.group.control.process import ProcessWatch
from aiodist.group.control.sentries import Sentries
from aiodist.group.control.watchdog import Watchdog
from aiodist.group.core import GroupCore
from aiodist.group.epochs.cards import check_cards, read_cards, read_ranks
from aiodist.group.epochs.links import Links
from aiodist.group.process_group import ProcessGroup
from aiodist.group.roster import Roster, context_of
from aiodist.group.seats import UNSAID, Said, seats_of
from aiodist.group.services.peers import ServicePlace
from aiodist.group.services.switchboard import Switchboard
from aiodist.net.shortage import raise_descriptors
from aiodist.net.traffic import Traffic
from aiodist.observe.recorder import Recorder
from aiodist.observe.recorder.layout import SIZE
from aiodist.rendezvous.events import MAX_MISSING
from aiodist.transport import Endpoint
from aiodist.transport.line import Line

logger = logging.getLogger("aiodist.group.world")

HOST_ONLY = BackendChoice()


Watch = Callable[[int, Callable[[], list[tuple[int, Traffic]]]], object]


def _ignore(_turns: int, _traffic: object) -> None:
    pass


_HASTE = 0.5  # seconds for the goodbyes of a world that lost a rank

_FEW, _USUAL, _EACH = 64, 1024, 4
"""Ranks that need no more descriptors than a process usually has; that many; how many each more may take."""

PROTOCOL = 9  # of what groups say to each other; a job that mixes numbers is refused


class Gathers(Protocol):
    """A store, as far as assembling needs it."""

    async def gather(
        self, name: str, world_size: int, rank: int, value: bytes, timeout: float | None = None
    ) -> list[bytes]:
        """Leave a value, get those of all ranks."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that all ranks must agree on, and what this one was told.

    Args:
        name: the group's name.
        job: the job's id.
        transport: 'auto', 'shm' or 'tcp'.
        agreed: tuning variables by name; every rank must have the same.
        timeout: seconds for assembling, and the group's default.
        inline: run bulk work on the loop (simulations).
        limits: thresholds of the host engine; `agreed` has them, too.
        epoch: counts membership changes.
        place: under what the ranks meet in the store; the name if not given. Another one for each try.
        uid: names this process for as long as it lives; b"" where members never change.
        hosts_store: whether this process hosts the store that the job meets at.
        choice: which backend carries out what; the ranks agree on it when they meet.
        patience: of signs of life on control links; None: there are none (simulations).
        node: number of this process's node, as its launcher says; `UNSAID`: it does not.
        local_rank: rank on the node, likewise.
        recorder: this process's; None: each world has one of its own (simulations).
        watch: called ten times a second, in a thread, with the number of the loop's beats, and a function
            that says how the connections go.
        services: this process's, which outlive the epoch; None: it has none.
        seals: dtypes whose tensors are authenticated, where connections authenticate what is acted on.
    """

    name: str
    job: str
    transport: str
    agreed: Mapping[str, str]
    timeout: float
    inline: bool = False
    limits: Thresholds = DEFAULTS
    epoch: int = 0
    place: str = ""
    uid: bytes = b""
    hosts_store: bool = False
    choice: BackendChoice = HOST_ONLY
    patience: Patience | None = None
    node: int = UNSAID
    local_rank: int = UNSAID
    recorder: Recorder | None = None
    watch: Watch = _ignore
    services: Switchboard | None = None
    seals: frozenset[np.dtype[Any]] = frozenset()


class World:
    """One process's part of an epoch: its channels, control links, groups, and how all that ends.

    Args:
        endpoint: the process's channels; closed with the world.
        size: number of ranks.
        settings: of the job.
        leave: awaited when the world has ended.

    Attributes:
        uids: of the members, by rank, once they have met.
        store_hosts: ranks that host the store.
        leave: may be replaced while the world is open.
        parting: called before this process says goodbye to the others.
        control: the process's control plane.
    """

    def __init__(
        self, endpoint: Endpoint, size: int, settings: Settings, leave: Callable[[], Awaitable[None]]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._settings = settings
        self._size = size
        self.leave = leave
        self.parting: Callable[[], None] = _nothing
        self.uids: list[bytes] = []
        self.store_hosts: list[int] = []
        self._choice = settings.choice
        self.control = self._control = ControlPlane(endpoint.rank, size, endpoint.exposed)
        self._engine = HostEngine(
            *(endpoint, self._loop, self._control.lose),
            lambda error: self._links.fail(error),
            settings.inline,
            settings.seals,
        )
        self._processes = ProcessWatch(self._loop)
        self._sentries: Sentries | None = None
        self._watchdog: Watchdog | None = None
        self._links = Links(endpoint, self._control, size, self._engine.unable)
        self._ended = False
        endpoint.on_line = self._accept_line

    async def link(self, store: Gathers, host: str | None = None) -> ProcessGroup:
        """Meet the others and connect to them; the group that comes of it has yet to do its first operation.

        Raises (the world has ended then):
            RendezvousTimeout: some ranks did not come; names them.
            RendezvousError: versions or settings differ; says which rank has which.
            PeerLost: a rank came and died.
        """
        deadline = self._loop.time() + self._settings.timeout
        patience = self._settings.patience
        try:
            seen = self._settings.recorder is not None  # from outside, also where it is alone
            if patience is not None and (self._size > 1 or seen):
                self._control.watch(self._loop, patience, self._settings.recorder)
                self._watchdog = Watchdog(self._loop, patience, self._control, self._watch)
            if not self._settings.inline and self._size > _FEW:
                raise_descriptors(_USUAL + _EACH * self._size)
            cards = await self._meet(store, host, deadline)
            self._watch_processes(cards)
            await self._links.unless_lost(self._route(store, cards, deadline))
            await self._links.connect(self._settings.timeout, deadline)
            return self._make(cards)
        except BaseException:
            await self.abandon()
            raise

    # ── the steps ────────────────────────────────────────────────────────────────────────────────────

    async def _meet(self, store: Gathers, host: str | None, deadline: float) -> list[dict[str, Any]]:
        settings = self._settings
        name = host or socket.gethostname()
        card = {
            "protocol": PROTOCOL,
            "byteorder": sys.byteorder,
            "host": name,
            "seat": [name if settings.inline else host_key(), settings.node, settings.local_rank],
            "pid": os.getpid(),
            "pids": "" if settings.inline else pid_space(),
            "sentries": self._post(),
            "agreed": dict(settings.agreed),
            "endpoint": self._endpoint.card,
            "uid": settings.uid,
            "hosts": settings.hosts_store,
            "backend": settings.choice.card(),
            "engine": _engine.NAME,
        }
        packed = msgpack.packb(card)
        patience = self._left(deadline)
        try:
            answers = await store.gather(
                f"{self._place}/cards", self._size, self._endpoint.rank, packed, patience
            )
        except RendezvousTimeout as error:
            missing = error.missing_ranks
            if not missing:
                raise
            most = "at least " if len(missing) >= MAX_MISSING else ""
            who = f"{most}{name_ranks(missing)} of {self._size} did not come within {patience:.3g} s"
            raise RendezvousTimeout(who, missing=missing, hint=error.hint) from None
        cards = read_cards(answers, card)
        check_cards(cards)
        self._choice = settings.choice.common_to(
            [card["backend"] for card in cards], self._endpoint.rank == 0
        )
        self.uids = [card["uid"] for card in cards]
        self.store_hosts = [rank for rank, card in enumerate(cards) if card["hosts"]]
        self._endpoint.introduce({rank: card["endpoint"] for rank, card in enumerate(cards)})
        return cards

    def serve(self) -> None:
        """Make this world, whose members have met, the one in which services find each other."""
        services = self._settings.services
        if services is not None:
            place = ServicePlace(self.uids, self._endpoint.dial_line)
            services.enter(place)
            self._links.on_lost = partial(services.lose, place)
            for rank, cause in self._control.core.lost.items():
                services.lose(place, rank, cause)

    def _accept_line(self, rank: int, line: Line) -> None:
        services = self._settings.services
        if services is None or self._ended or rank >= len(self.uids):
            line.kill()
        else:
            services.accept(self.uids[rank], line)

    def _watch(self, turns: int) -> None:
        self._settings.watch(turns, self._endpoint.traffic)

    def _post(self) -> list[int]:
        """Post sentries, where there are local peers to see them → their thread ids."""
        if self._settings.inline or self._size == 1:
            return []
        self._sentries = self._sentries or Sentries()
        return self._sentries.tids

    def _watch_processes(self, cards: list[dict[str, Any]]) -> None:
        """Begin to watch for deaths of the processes whose process id has a meaning here."""
        mine = cards[self._endpoint.rank]
        for rank, card in enumerate(cards):
            if mine["pids"] and card["pids"] == mine["pids"] and card["pid"] != mine["pid"]:
                self._watch_process(rank, card["pid"])
                if self._sentries is not None and rank in self._control.core.neighbours:
                    exits = partial(self._links.process_ended, rank, proven=False)
                    tids = card["sentries"][:2]
                    if self._size > FULL_MESH:  # others watch the other one
                        tids = tids[self._endpoint.rank % 2 :][:1]
                    self._processes.watch_sentries(card["pid"], tids, exits)

    def _watch_process(self, rank: int, pid: int) -> None:
        self._processes.watch(pid, partial(self._links.process_ended, rank))
        self._control.see(rank, partial(is_stopped, pid))

    async def _route(self, store: Gathers, cards: list[dict[str, Any]], deadline: float) -> None:
        """Find out which ranks share memory, and agree: a pair uses it if both have the same engine, and have
        proved it (law 3)."""
        me, transport = self._endpoint.rank, self._settings.transport
        others = [rank for rank in range(self._size) if rank != me]
        alike = [rank for rank in others if cards[rank]["engine"] == _engine.NAME]
        if transport != "tcp":
            self._tell_of_engines(cards)
        proved = set()
        if transport != "tcp":
            # Half of the time: a rank that does not answer must be told apart from those that wait for it.
            patience = self._left(deadline) / 2
            proved = await self._endpoint.prove_local(alike, self._links.to_dial(), patience)
        answers = await store.gather(
            f"{self._place}/local",
            self._size,
            me,
            msgpack.packb(sorted(proved)),
            self._left(deadline),
        )
        local_to = read_ranks(answers)
        mutual = {rank for rank in others if rank in proved and me in local_to[rank]}
        self._endpoint.keep_peer_segments(mutual)
        for rank in others:
            local = rank in mutual
            if not local and transport == "shm" and rank not in alike:
                raise BackendUnavailable(
                    f"AIODIST_TRANSPORT=shm, but {_with_engine(rank, cards)}, {_with_engine(me, cards)}",
                    hint="Install the same aiodist for every rank, or use AIODIST_TRANSPORT=auto",
                )
            if not local and transport == "shm":
                raise BackendUnavailable(
                    f"AIODIST_TRANSPORT=shm, but {name_ranks([rank])} shares no memory with rank {me}",
                    hint="Use AIODIST_TRANSPORT=auto, or run all ranks in one container of one Linux host",
                )
            self._endpoint.route(rank, "shm" if local else "tcp")
            pid = self._endpoint.peer_pid(rank)
            if local and pid is not None:
                self._watch_process(rank, pid)
        self._engine.resources.set_local(local_to, self._settings.limits)

    def _tell_of_engines(self, cards: list[dict[str, Any]]) -> None:
        """Log one line, on a host's first rank, where another rank there has another engine and so shares no
        memory with it."""
        me = self._endpoint.rank
        here = [rank for rank, card in enumerate(cards) if card["seat"][0] == cards[me]["seat"][0]]
        other = next((rank for rank in here if cards[rank]["engine"] != _engine.NAME), None)
        if other is not None and me == here[0]:
            text = "%s, and %s: data goes over sockets between them. Run `aiodist doctor` in both"
            logger.warning(text, _with_engine(me, cards), _with_engine(other, cards))

    def _make(self, cards: list[dict[str, Any]]) -> ProcessGroup:
        settings, ranks = self._settings, tuple(range(self._size))
        recorder = settings.recorder or Recorder(bytearray(SIZE), os.getpid(), time.monotonic, time.time())
        recorder.take_part(self._endpoint.rank, self._size, settings.epoch)
        if settings.epoch:
            recorder.tell(entered=recorder.clock())  # what went wrong before is mended
        roster = Roster(
            self._endpoint.rank,
            ranks,
            tuple(card["host"] for card in cards),
            settings.name or "world",
            context_of(0, 0, ranks, f"{settings.job}/{self._place}"),
            settings.epoch,
            seats_of([Said(*card["seat"]) for card in cards]),
        )
        return ProcessGroup(
            GroupCore(
                *(roster, settings.timeout, self._control, self._carriers),
                closer=self.aclose,
                recorder=recorder,
            )
        )

    def _carriers(self, context: int, ranks: Sequence[int], reports: Reports) -> Carriers:
        return self._choice.make(self._engine.backend(context, ranks, reports))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────

    async def aclose(self) -> None:
        """Say goodbye to all members and let go of everything. The groups have ended before."""
        if self._ended:
            return
        try:
            self._part()
            self._control.close()
            self._engine.resources.leave_segment()
            # Where a rank was lost there may be others that will not answer, and nothing of the groups that
            # held it is worth waiting for.
            await self._endpoint.aclose(linger=_HASTE if self._control.core.lost else None)
        finally:
            await self._let_go()

    async def abandon(self, group: ProcessGroup | None = None, reason: str = "") -> None:
        """Leave no trace, after assembling failed or is not wanted any more."""
        if self._ended:
            return
        logger.debug(
            "the world of epoch %d is abandoned: %s", self._settings.epoch, reason or "it did not form"
        )
        try:
            if group is not None:  # it must not live on, with its timer
                group.abort(reason)
            self._part()  # it lives, so nobody will see it die: it says itself that it takes no part
            self._control.kill()
            self._engine.resources.leave_segment()
        finally:
            await self._let_go()

    def _part(self) -> None:
        """Say that this process takes no part any more, and watch nobody."""
        self._ended = True
        self.parting()
        self._links.close()
        self._processes.close()
        if self._watchdog is not None:
            self._watchdog.close()
        if self._sentries is not None:
            self._sentries.close()

    async def _let_go(self) -> None:
        self._ended = True
        self._links.close()
        self._endpoint.kill()
        self._engine.close()
        await self.leave()

    @property
    def _place(self) -> str:
        return self._settings.place or self._settings.name

    def _left(self, deadline: float) -> float:
        return max(deadline - self._loop.time(), 0.001)


def _nothing() -> None:
    pass


def _with_engine(rank: int, cards: list[dict[str, Any]]) -> str:
    name = cards[rank]["engine"]
    return f"rank {rank} has {f'the compiled engine {name}' if name else 'no compiled engine'}"
