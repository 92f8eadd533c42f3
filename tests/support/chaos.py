"""Faults for the processes of an in-process cluster: crashes, partitions, slow networks, stores that stop.

    chaos = Chaos(seed=7)
    loop.call_later(2.0, chaos.crash, 1)
    await run_cluster(4, main, processes=chaos)

Processes are numbered in the order in which they start: those of the first epoch by their ranks, newcomers
(`Chaos.join`) after them. All that is random comes from the seed, one sequence for each pair of processes, so
that under `run_virtual` a run can be repeated.

What a fault looks like to the others is modelled on sockets: a crash ends all connections without goodbye,
a partition is silent until the kernel gives the control links up (`LOST_AFTER`), and what was sent meanwhile
on connections that live through it arrives afterwards.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from aiodist.group import ProcessGroup
from aiodist.group.epochs.job import Job
from aiodist.group.epochs.links import Links
from aiodist.group.epochs.world import Settings
from aiodist.group.membership.record import UID_BYTES
from aiodist.rendezvous import Store
from aiodist.testing.cluster import Newcomer
from aiodist.transport import Endpoint
from aiodist.transport.line import MemoryLine
from aiodist.transport.memory import MemoryNetwork
from tests.support.chaos_links import ChaosEndpoint, ChaosPipe, Process
from tests.support.chaos_store import REFUSED_AFTER, STORE, Shelf

__all__ = ["LOST_AFTER", "STORE", "Chaos", "Crashed", "Process"]

LOST_AFTER = 1.25
"""Seconds of a partition after which both ends of a control link take it for broken."""


async def _leave() -> None:
    """Do nothing: these processes hold nothing when they have left their last epoch."""


class Crashed(Exception):
    """The error that this process was crashed by a test."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A cut: nothing comes from `src` to `dst` until then."""

    src: frozenset[int]
    dst: frozenset[int]
    until: float


class Chaos:
    """The maker of a cluster's processes and their faults. For one `run_cluster`.

    Args:
        seed: of all that is random.
        latency: seconds that a frame, or a store's answer, takes: from the first to the second.
        hosted: process 0 hosts the store, so that a majority decides who goes on; else it is nobody's.
        hosts: by process, the host that it runs on; None, and for processes beyond: each on one of its own.

    Attributes:
        processes: in the order of their numbers.
        faults: how many of each kind there were.
        joined: tasks of the newcomers.
        arrivals: by process and process, when the last thing arrives that one sent to the other.
    """

    _newcomer: Newcomer

    def __init__(
        self,
        seed: int = 0,
        *,
        latency: tuple[float, float] = (0.0001, 0.001),
        hosted: bool = False,
        hosts: Sequence[int] | None = None,
    ) -> None:
        self.processes: list[Process] = []
        self.faults: dict[str, int] = {}
        self.joined: list[asyncio.Task[Any]] = []
        self.arrivals: dict[tuple[int, int], float] = {}
        self._seed = seed
        self._latency = latency
        self.hosted = hosted
        self._hosts = tuple(hosts or ())
        self._random: dict[tuple[int, int], random.Random] = {}
        self._uids = random.Random(f"{seed}/uids")
        self._cuts: list[_Cut] = []
        self._slow: list[tuple[float, float, frozenset[int] | None]] = []
        self._links: list[tuple[Process, MemoryLine]] = []
        self._places: dict[str, MemoryNetwork] = {}
        self._shelves: dict[str, Shelf] = {}  # by address, as it is now
        self._stores: list[Shelf] = []  # all that there ever were

    # ── processes ────────────────────────────────────────────────────────────────────────────────────

    def process(self) -> Process:
        """A new process."""
        number = len(self.processes)
        host = self._hosts[number] if number < len(self._hosts) else 1000 + number
        made = Process(number, host, self._uids.randbytes(UID_BYTES))
        self.processes.append(made)
        return made

    def uid(self, rank: int) -> bytes:
        """The uid of a rank's process."""
        return self.processes[rank].uid

    def hosts_store(self, rank: int) -> bool:
        """Whether a rank's process hosts the store."""
        return self.hosted and rank == 0

    def job_of(self, rank: int, settings: Settings) -> Job:
        """The job, as a rank's process has it."""
        return self.job(self.processes[rank], settings)

    async def endpoint(self, rank: int, job: Job) -> Endpoint:
        """A rank's endpoint in the first epoch."""
        return await job.open_endpoint(rank, "")

    def started(self, tasks: list[asyncio.Task[Any]], newcomer: Newcomer) -> None:
        """Make a process of each task, before it runs."""
        for task in tasks:
            self.process().task = task
        self._newcomer = newcomer

    async def ended(self, results: list[Any]) -> Collection[int]:
        """Wait for the newcomers → the crashed ranks, whose results become `Crashed`."""
        crashed = [rank for rank in range(len(results)) if self.processes[rank].dead]
        for rank in crashed:
            results[rank] = Crashed(f"rank {rank} was crashed")
        while not all(task.done() for task in self.joined):
            await asyncio.gather(*self.joined, return_exceptions=True)
        return crashed

    def meet_at_store_of(self, other: Chaos) -> None:
        """Have the processes, which are yet to start, meet at the store of another run; nobody hosts it."""
        shelf = Shelf(self, None)
        shelf.store = other._stores[0].store
        self._stores.append(shelf)
        self._shelves["store"] = shelf

    def job(self, process: Process, settings: Settings) -> Job:
        """The job that `process` is a member of."""
        address = self._newest_store(process)

        async def open_endpoint(rank: int, place: str) -> Endpoint:
            return ChaosEndpoint(self, process, place, rank)

        async def host_store() -> str:
            return self._shelve(process)

        async def reach_store(address: str, hosted_by: bytes) -> Store:
            return self._shelves[address].client(process)

        process.job = job = Job(
            process.uid,
            f"process {process.number}",
            settings,
            self._shelves[address].client(process),
            open_endpoint,
            _leave,
            host_store if self.hosted else None,
            reach_store if self.hosted else None,
            store_address=address if self.hosted else "",
            host="memory",
        )
        return job

    def join(self, main: Callable[[ProcessGroup], Any], timeout: float) -> Process:
        """Start a newcomer, which does `main(pg)` when it has been admitted, within so many seconds."""
        process = self.process()
        process.task = process.context.run(
            asyncio.create_task,
            self._newcomer(process.uid, functools.partial(self.job, process), main, timeout),
            name=f"process {process.number}",
        )
        self.joined.append(process.task)
        return process

    def alive(self) -> list[int]:
        """Numbers of the processes that were not crashed."""
        return [process.number for process in self.processes if not process.dead]

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────

    def crash(self, number: int, *, silent: bool = False) -> None:
        """End a process now.

        Args:
            number: whose.
            silent: its host ends with it, and no connection ends before the others give it up.
        """
        process = self.processes[number]
        if process.dead:
            return
        process.dead = True
        self._count("silent crash" if silent else "crash")
        loop = asyncio.get_running_loop()
        for pipe in process.pipes:
            if not silent:
                pipe.end()
        if silent:
            loop.call_later(LOST_AFTER, self._give_up, process)
        else:
            self._prove(process)
        for shelf in self._stores:
            if shelf.host is process:
                loop.call_later(REFUSED_AFTER, shelf.end_later)
                shelf.down = loop.time()
        loop.call_soon(self._bury, process)

    def crash_at_step(self, number: int, step: int) -> None:
        """End a process before it takes this step of its own (the first is 1)."""
        self.processes[number].crash_at = step

    def cut(
        self, a: Collection[int], b: Collection[int], seconds: float = math.inf, *, one_way: bool = False
    ) -> None:
        """Let nothing pass between these processes (`STORE` may be among them) for so many seconds.

        Args:
            one_way: only what `a` sends is lost. Connections end in both directions all the same: a kernel
                that hears no acknowledgement gives them up.
        """
        loop = asyncio.get_running_loop()
        self._count("one-way partition" if one_way else "partition")
        ends = frozenset(a), frozenset(b)
        for src, dst in (ends,) if one_way else (ends, ends[::-1]):
            self._cuts.append(_Cut(src, dst, loop.time() + seconds))
        if seconds >= LOST_AFTER:
            loop.call_later(LOST_AFTER, self._lose_links, *ends)

    def heal(self) -> None:
        """End all partitions now."""
        self._cuts.clear()

    def slow(self, extra: float, seconds: float, who: Collection[int] | None = None) -> None:
        """Delay what these processes send by up to `extra` seconds, for so many seconds; None: all."""
        until = asyncio.get_running_loop().time() + seconds
        self._slow.append((until, extra, None if who is None else frozenset(who)))
        self._count("slow network")

    def stop_store(self, seconds: float) -> None:
        """The store answers nobody for so many seconds."""
        self._count("store outage")
        now = asyncio.get_running_loop().time()
        for shelf in self._stores:
            shelf.away_until = now + seconds

    # ── how they come about ──────────────────────────────────────────────────────────────────────────

    def step(self, process: Process) -> bool:
        """Whether a process that is about to do something that others can see still can."""
        if not process.dead:
            process.steps += 1
            if process.steps == process.crash_at:
                self.crash(process.number)
        return not process.dead

    def seconds(self, src: int, dst: int) -> float:
        """The seconds of the next thing from one process or store to another; inf: it never arrives."""
        now = asyncio.get_running_loop().time()
        draw = self._random.get((src, dst))
        if draw is None:
            draw = self._random[src, dst] = random.Random(f"{self._seed}/{src}/{dst}")
        delay = draw.uniform(*self._latency) if src != dst else 0.0
        for until, extra, who in self._slow:
            if now < until and (who is None or src in who):
                delay += draw.uniform(0.0, extra)
        return self.blocked_until(src, dst) - now + delay

    def blocked_until(self, src: int, dst: int) -> float:
        """The time at which something that is sent now can pass."""
        at = asyncio.get_running_loop().time()
        for cut in sorted(self._cuts, key=lambda cut: cut.until):
            if cut.until > at and src in cut.src and dst in cut.dst:
                at = cut.until
        return at

    @property
    def refusal(self) -> float:
        """Seconds until a refused connection is known to be: there and back, so that what was said before is
        heard before."""
        return 2 * self._latency[1]

    def network(self, place: str) -> MemoryNetwork:
        """The network in which the members of a draft find each other."""
        return self._places.setdefault(place, MemoryNetwork())

    def linked(self, process: Process, end: MemoryLine) -> None:
        """Note that one end of the line of a control link is with this process."""
        self._links = [(who, link) for who, link in self._links if not link.over]
        self._links.append((process, end))

    def _bury(self, process: Process) -> None:
        for _, endpoint in process.endpoints:
            endpoint.kill()
        if process.task is not None:
            process.task.cancel("crashed")

    def _prove(self, process: Process) -> None:
        """Let processes of its host see that it has ended, after its last messages."""
        loop = asyncio.get_running_loop()
        for place, endpoint in process.endpoints:
            for other in self.processes:
                if other is process or other.host != process.host:
                    continue
                after = max([pipe.last for pipe in process.pipes if pipe.dst is other], default=0.0)
                when = math.nextafter(max(after, loop.time()), math.inf)
                loop.call_at(when, self._tell_end, other, place, endpoint.rank, context=other.context)

    def _tell_end(self, process: Process, place: str, rank: int) -> None:
        for there, endpoint in process.endpoints:
            links = getattr(endpoint.on_control, "__self__", None)
            if there == place and isinstance(links, Links) and not process.dead and not links.closed:
                links.process_ended(rank, 0)

    def _lose_links(self, a: Collection[int], b: Collection[int]) -> None:
        # The links' names are ranks of their epochs; who is at which end is known by the process.
        for process, link in list(self._links):
            far = self._far(link)
            if (process.number in a and far in b) or (process.number in b and far in a):
                self._break(process, link)

    def _give_up(self, dead: Process) -> None:
        for process, link in list(self._links):
            if self._far(link) == dead.number:
                self._break(process, link)

    def _break(self, process: Process, link: MemoryLine) -> None:
        if not process.dead:
            process.context.run(link.arrived, None)

    def _far(self, link: MemoryLine) -> int:
        pipe = link.out
        return pipe.dst.number if isinstance(pipe, ChaosPipe) else STORE

    def _shelve(self, host: Process | None) -> str:
        """Begin a store: where the one before it was, if that was on this host; else somewhere else."""
        address = f"store of host {host.host}" if host is not None else "store"
        known = self._shelves.get(address)
        if known is not None and known.down is None:
            address = f"store {len(self._stores)}"
        shelf = Shelf(self, host)
        self._stores.append(shelf)
        self._shelves[address] = shelf
        return address

    def _newest_store(self, process: Process) -> str:
        """The store at which a process that starts now finds the job: the last one whose host lives."""
        if not self._shelves:
            return self._shelve(process if self.hosted else None)
        living = [address for address, shelf in self._shelves.items() if shelf.down is None]
        return (living or list(self._shelves))[-1]

    def _count(self, kind: str) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1

    async def aclose(self) -> None:
        """End the newcomers, and let go of the stores."""
        for task in self.joined:
            task.cancel()
        await asyncio.gather(*self.joined, return_exceptions=True)
        for shelf in self._stores:
            await shelf.end()
