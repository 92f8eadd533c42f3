"""The simulated job: its network, its groups' boards, and the place of each rank."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from aiodist.backends.base import Operation, Reports
from aiodist.backends.carriers import Carriers
from aiodist.base.environment.thresholds import DEFAULTS, Thresholds
from aiodist.group import ProcessGroup
from aiodist.group.control.plane import ControlListener, ControlPlane
from aiodist.group.core import GroupCore
from aiodist.group.deadlines import Flight, FlightEntry
from aiodist.group.default import set_default
from aiodist.group.roster import Roster, context_of
from aiodist.group.seats import Seat
from aiodist.observe.recorder import Recorder
from aiodist.observe.recorder.layout import SIZE
from aiodist.sim.backend import SimBackend
from aiodist.sim.board import MeetingBoard
from aiodist.sim.collectives import Collectives
from aiodist.sim.constants import Constants
from aiodist.sim.cost import Fabric
from aiodist.sim.engine import RankLoop, RankThread, SimEngine
from aiodist.sim.ledger import SimLedger
from aiodist.sim.network import Network
from aiodist.sim.rounds import PLAYED

USUAL = 300.0  # seconds


class SimWorld:
    """All that ranks share.

    Args:
        network, constants: what things cost.
        engine: of virtual time.
        ledger: where all is written down.
        limits: the host engine's thresholds.
        played: ranks of a group up to which schedules are played.
    """

    def __init__(
        self,
        network: Network,
        constants: Constants,
        engine: SimEngine,
        ledger: SimLedger,
        limits: Thresholds = DEFAULTS,
        played: int = PLAYED,
    ) -> None:
        self.network, self.constants, self.engine = network, constants, engine
        self.ledger, self.limits, self.played = ledger, limits, played
        self.fabric = Fabric(network, constants)
        self.hosts = tuple(f"host{host}" for host in network.host_of)
        self.seats = tuple(Seat(host, rank) for rank, host in enumerate(network.host_of))
        self.ranks = tuple(range(network.size))
        self.recorder = NoRecorder(bytearray(SIZE), os.getpid(), lambda: 0.0, 0.0)
        self.boards: dict[int, MeetingBoard] = {}

    def board(self, context: int, ranks: Sequence[int]) -> MeetingBoard:
        """The board of a group."""
        found = self.boards.get(context)
        if found is None:
            collectives = Collectives(self.fabric, ranks, self.limits, self.played)
            found = MeetingBoard(self.engine, self.fabric, self.ledger, collectives, ranks)
            self.boards[context] = found
        return found

    def stuck(self) -> list[str]:
        """Who waits for whom."""
        return [line for board in self.boards.values() for line in board.stuck()]


class NoRecorder(Recorder):
    """A recorder that keeps nothing: the ledger does."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.kept = type(self.kept)(maxlen=0)

    def track(self, name: str, epoch: int, ranks: Sequence[int], twin: int = 0):  # type: ignore[no-untyped-def]
        """The part of a group; thousands of members are not written out."""
        return super().track(name, epoch, range(1), twin)

    def event(self, text: str, trouble: bool = False) -> None:
        """Keep nothing."""


class NoControl(ControlPlane):
    """A control plane without links: simulated ranks do not die."""

    def subscribe(self, context: int, listener: ControlListener) -> None:
        """Do nothing."""

    def unsubscribe(self, context: int) -> None:
        """Do nothing."""

    def flood(self, *args: object, **more: object) -> None:
        """Do nothing."""

    def tell(self, *args: object, **more: object) -> None:
        """Do nothing."""


class Unwatched(Flight):
    """Operations in flight without deadlines: a prediction of an hour is told as such."""

    def issue(self, operation: Operation, timeout: float) -> None:
        """Enter an operation."""
        self._open[operation] = FlightEntry(timeout, math.inf, math.inf)
        if not operation.call.message:
            self._recent[operation.call.seq] = operation.call
            if len(self._recent) > 8:
                del self._recent[next(iter(self._recent))]

    def bound(self, limit: float) -> None:
        """Do nothing."""


class SimCore(GroupCore):
    """The core of a simulated group."""

    flight_of = Unwatched

    def __init__(self, roster: Roster, *args: Any, **more: Any) -> None:
        super().__init__(roster, *args, **more)
        if isinstance(self.host, SimBackend):
            self.host.name_group(roster.name)


class SimPlace:
    """The place of one rank (`runtime.elsewhere`).

    Args:
        world: the job.
        rank: which.

    Attributes:
        loop: the rank's, once it has one.
        factor: by how many times it computes longer.
    """

    loop: RankLoop
    thread: RankThread

    def __init__(self, world: SimWorld, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.factor = world.network.stragglers.get(rank, 1.0)
        self.group: ProcessGroup | None = None
        self.began = False

    def new_loop(self) -> RankLoop:
        """An event loop for the rank."""
        self.loop = RankLoop(self.world.engine, self.thread)
        return self.loop

    def compute(self, seconds: float) -> None:
        """Be busy for so long, times the rank's factor."""
        self.loop.compute(max(0.0, seconds) * self.factor)

    def time(self) -> float:
        """The rank's virtual time."""
        return self.loop.time() if hasattr(self, "loop") else self.world.engine.now

    async def form(self, name: str, timeout: float | None) -> ProcessGroup:
        """The world's group."""
        world = self.world
        label = name or "world"
        context = context_of(0, 0, (), f"simulation/{label}")
        roster = Roster(self.rank, world.ranks, world.hosts, label, context, 0, world.seats)

        async def closer() -> None:
            set_default(None)

        control = NoControl(self.rank, 1) if self.rank == 0 else NoControl(0, 1)
        control.rank = self.rank
        core = SimCore(
            *(roster, USUAL if timeout is None else timeout, control),
            self._carriers,
            closer=closer,
            recorder=world.recorder,
        )
        world.ledger.group(self.rank, world.boards[context].group)
        self.group = ProcessGroup(core)
        set_default(self.group)
        await self.group.barrier()
        return self.group

    def _carriers(self, context: int, ranks: Sequence[int], reports: Reports) -> Carriers:
        world = self.world
        issue = world.constants.issue * self.factor
        host = SimBackend(self.rank, self.loop, issue, world.board, context, ranks, reports)
        return Carriers("host", frozenset({"gloo"}), host, {})
