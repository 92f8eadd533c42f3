"""NCCL as an engine: one thread launches operations, others wait for them, and the loop learns of the end.

    issued (marks the caller's streams) ─▶ launch thread ─▶ a lane's stream ─▶ its waiter ─▶ done, on the loop

Collectives of groups that have members in common must be issued in the same order on all of them, and so must
`new_group`, which splits a communicator, and blocks meanwhile. Messages have lanes of their own, and need no
such order.

A launch holds the lock of the device, so it must wait for no other member. A communicator is connected for
collectives when it is made, but for direct exchanges (gather, scatter, all_to_all) in the first one, which
blocks until all make it. An all_reduce is waited for before, without the lock: when that is over, the launch
threads of all members have come there, and wait for nothing else. Should NCCL itself wait there for a kernel
of the device, one that receives a message, say, then the message is launched too late where its sender
connects at that moment, and all wait until the timeout. The lock cannot be left open: connecting and the
first exchange are one call of NCCL, which allows operations on a device from one thread at a time alone.

That all ranks get the same bits is NCCL's doing (law 3), and so is the rest of its arithmetic: AVG multiplies
before it adds, MIN and MAX may pass over a NaN.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from aiodist.backends.base import Operation
from aiodist.backends.cuda import kernels
from aiodist.backends.cuda.completion import LAUNCHING, DeviceCompletion, arrays_of
from aiodist.backends.cuda.library import identity_of
from aiodist.backends.cuda.streams import blocking_mark
from aiodist.backends.foreign.engine import Done, Engine, Setup
from aiodist.backends.foreign.task import Task
from aiodist.backends.nccl import communicators as nccl
from aiodist.backends.nccl.device import NcclDevice, enter
from aiodist.backends.nccl.lane import Lane
from aiodist.backends.nccl.launch import Launch, LaunchMaker, Ways, ways_of
from aiodist.backends.nccl.pair import LanePair
from aiodist.backends.nccl.sharing import DeviceFacts, can_share, misfit
from aiodist.backends.nccl.tables import BYTE, SUM
from aiodist.backends.threads import fulfil, post
from aiodist.base.errors import GroupBroken
from aiodist.net.alarm import Alarm

MakeLaunch = Callable[[Task], Launch]

log = logging.getLogger("aiodist.nccl")

_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_POLL = 0.5
"""Seconds between two questions whether NCCL has found an error by itself."""


class NcclEngine(Engine):
    """The NCCL engine of one group; see the module, and `Engine` for what its methods are told."""

    name = "nccl"
    places = frozenset({"cuda"})
    capabilities = frozenset({"one-answer", "regroups"})
    beside = True
    ready = True
    stages = True
    fuses = True
    averages = True
    greets = nccl.ID_BYTES

    _lane: Lane  # of collectives, from `open` on

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert setup.device is not None
        self._index = setup.device
        self._cupy = nccl.load_nccl()
        self._maker = LaunchMaker(self._cupy, self._index, setup.rank, setup.size)
        self._device: NcclDevice | None = None
        self._lanes: list[Lane] = []
        self._ids: dict[int, bytes] = {}  # of the lanes on which messages go to each peer
        self._theirs: dict[int, bytes] = {}  # of those on which they come
        self._pairs: dict[tuple[int, bool], LanePair] = {}
        self._parts: dict[int, asyncio.Future[Any]] = {}  # lanes for groups that are made of this one
        self._alarm = Alarm(setup.loop, self._poll)

    # ── before there is a group ──────────────────────────────────────────────────────────────────────

    @classmethod
    def check(cls) -> None:
        """Check that CuPy, a device and NCCL are here."""
        nccl.load_nccl()

    @classmethod
    def tell(cls, device: int | None) -> bytes:
        """This process's GPU, and its NCCL."""
        assert device is not None
        cupy = nccl.load_nccl()
        version = nccl.version()
        facts = DeviceFacts(
            identity_of(cupy, device), version, nccl.can_split(), can_share(version, os.environ)
        )
        return facts.to_json()

    @classmethod
    def fits(cls, told: Sequence[bytes]) -> str:
        """The reason why there is not one NCCL, and a GPU each unless it can share them; '' if there is."""
        return misfit(list(map(DeviceFacts.from_json, told)))

    # ── beginning ────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Make the communicator, unless it was divided from another group's."""
        self._device = enter(self._index, self)
        parent, part = self.setup.parent, None
        if isinstance(parent, NcclEngine):
            part = parent._parts.pop(self.setup.context, None)
        try:
            self._lane = lane = await self._connect() if part is None else await part
        except Exception as error:
            raise GroupBroken(
                f"NCCL could not connect rank {self.setup.rank} ({error})", hint="NCCL_DEBUG=INFO says more"
            ) from error
        self._lanes.append(lane)

    async def _connect(self) -> Lane:
        """Make the first lane in a thread of its own, so that launches go on: NCCL blocks until all do."""
        setup = self.setup
        mine = await self._in_thread(nccl.unique_id) if setup.rank == 0 else b""
        unique = (await setup.gather(mine))[0]
        lane: Lane = await self._in_thread(partial(self._make_first, unique))
        return lane

    def _make_first(self, unique: bytes) -> Lane:
        kernels.load(self._cupy)
        return self._make_lane(nccl.connect(self._cupy, self.setup.size, unique, self.setup.rank))

    def splitting(self, context: int, members: Sequence[int]) -> None:
        """Split the communicator: all its members do, in the same place among its operations."""
        if not nccl.can_split():
            return
        device, me = self._device, self.setup.rank
        assert device is not None
        rank = members.index(me) if me in members else None
        part: asyncio.Future[Any] = self.setup.loop.create_future()
        part.add_done_callback(self._divided)
        if rank is not None:
            self._parts[context] = part
        device.collectives.submit(partial(fulfil, part, partial(self._on_device, partial(self._split, rank))))

    def _split(self, rank: int | None) -> Lane | None:
        lane = self._lane
        lane.stream.synchronize()  # nothing may be under way, or NCCL may hang
        with lane.inside(connecting=True) as communicator:  # not `issuing`: nobody knows when the others come
            made = nccl.split(communicator, rank)
        return None if made is None else self._make_lane(made)

    def _divided(self, part: asyncio.Future[Any]) -> None:
        error = None if part.cancelled() else part.exception()
        if isinstance(error, Exception):
            self._failed(error)

    def _make_lane(self, communicator: Any) -> Lane:
        """A lane of a new communicator, unless the group has broken meanwhile."""
        device = self._device
        assert device is not None
        lane = Lane(self._cupy, self._index, communicator, f"aiodist-nccl-wait-{self._index}")
        if not device.adopt(lane):
            lane.close()
            lane.abort()
            raise ConnectionAbortedError("the group broke while its communicator was made")
        return lane

    def _failed(self, error: Exception) -> None:
        """Break the group by an error that is no consequence of its abort."""
        if self._device is not None and not self._device.dead:
            self.setup.failed(error)

    async def _in_thread(self, job: Callable[[], Any]) -> Any:
        future = self.setup.loop.create_future()
        name = f"aiodist-nccl-make-{self._index}"
        run = partial(fulfil, future, partial(self._on_device, job))
        threading.Thread(target=run, name=name, daemon=True).start()
        return await future

    def _on_device(self, job: Callable[[], Any]) -> Any:
        """Run a job in this thread, on the device."""
        if self._device is not None and self._device.dead:
            raise ConnectionAbortedError("the group has broken")
        self._cupy.cuda.Device(self._index).use()
        return job()

    # ── operations ───────────────────────────────────────────────────────────────────────────────────

    def issued(self, operation: Operation) -> None:
        """Note what the caller's streams have been given until now."""
        arrays = arrays_of(operation)
        if arrays:
            operation.work._completes_by(DeviceCompletion(self._cupy, self._index, arrays))

    def prepare(self, operation: Operation) -> Task:
        """The task of an operation; allocated in the launch thread, since the driver may take a while."""
        return Task(np.empty, operation=operation)

    def start(self, task: Task, done: Done) -> None:
        """Launch a collective."""
        self.coalesce([(task, done)])

    def coalesce(self, tasks: Sequence[tuple[Task, Done]]) -> None:
        """Launch what was issued in one batch as one NCCL group."""
        for task, _ in tasks:
            stand: Any = task.operation.work._completion
            stand.patience = LAUNCHING
        self._launch(self._lane, tasks, self._maker.collective, collective=True)

    def send(self, task: Task, peer: int, number: int, done: Done) -> None:
        """Launch a send, on the lane to the peer."""
        self._pair(peer, True).use(lambda lane: self._launch(lane, [(task, done)], self._maker.message))

    def recv(self, task: Task, peer: int, number: int, done: Done) -> None:
        """Launch a receive, on the lane from the peer."""
        self._pair(peer, False).use(lambda lane: self._launch(lane, [(task, done)], self._maker.message))

    def to_oneself(self, sent: Task, received: Task, done: Done) -> None:
        """Launch both sides of a message to this rank together, on a lane for this rank alone."""
        sides: list[tuple[Task, Done]] = [(sent, _nothing), (received, done)]
        maker = self._maker.to_oneself()
        self._pair(self.setup.rank, True).use(lambda lane: self._launch(lane, sides, maker))

    def _launch(
        self, lane: Lane, tasks: Sequence[tuple[Task, Done]], make: MakeLaunch, collective: bool = False
    ) -> None:
        device = self._device
        assert device is not None
        launcher = device.collectives if collective else device.messages
        device.began(lane)  # before the launch thread comes to it: it is asked for errors meanwhile
        launcher.submit(partial(self._launch_now, device, lane, tasks, make))
        self._poll_later()

    def _launch_now(
        self, device: NcclDevice, lane: Lane, tasks: Sequence[tuple[Task, Done]], make: MakeLaunch
    ) -> None:
        """Launch operations, in a launch thread."""
        stands: list[Any] = [task.operation.work._completion for task, _ in tasks]
        launches: list[Launch] = []
        event: Any = None
        try:
            if not device.dead:
                event = self._enqueue(device, lane, tasks, stands, make, launches)
                over = partial(self._over, device, lane, [done for _, done in tasks])
                lane.waiter.watch(event, over, launches)
        except Exception as error:
            lane.kept.append(launches)
            post(self.setup.loop, self._failed, error)
        finally:
            for stand in stands:
                stand.launched.set_result(event)

    def _enqueue(
        self,
        device: NcclDevice,
        lane: Lane,
        tasks: Sequence[tuple[Task, Done]],
        stands: Sequence[DeviceCompletion],
        make: MakeLaunch,
        launches: list[Launch],
    ) -> Any:
        """Give all launches to the stream → its event. What must live until then is in `launches`."""
        self._cupy.cuda.Device(self._index).use()
        raw = lane.stream.ptr
        with lane.stream:
            for task, _ in tasks:
                ways = ways_of(task.operation.call)
                if ways is not None and ways not in lane.connected and self.setup.size > 1:
                    self._connect_ways(device, lane, ways)
            for stand in stands:
                stand.wait_for_caller(raw)
            for task, _ in tasks:
                launches.append(make(task))
            with device.issuing(lane) as communicator:
                self._group(communicator, raw, [call for launch in launches for call in launch.calls])
            for launch in launches:
                for step in launch.after:
                    step()
            return blocking_mark(self._cupy, lane.stream)

    def _connect_ways(self, device: NcclDevice, lane: Lane, ways: Ways) -> None:
        """Connect for direct exchanges; all members do it in this place among the lane's operations."""
        raw = lane.stream.ptr
        call, memory = self._maker.connecting(ways)
        with device.issuing(lane) as communicator:
            communicator.allReduce(memory.pointer, memory.pointer, 1, BYTE, SUM, raw)
        blocking_mark(self._cupy, lane.stream).synchronize()
        with device.issuing(lane, connecting=True) as communicator:
            self._group(communicator, raw, [call])
        lane.connected.add(ways)

    def _group(self, communicator: Any, raw: int, calls: Sequence[Callable[[Any, int], None]]) -> None:
        """Make calls as one NCCL group, on a raw stream."""
        group = self._cupy.cuda.nccl
        group.groupStart()
        try:
            for call in calls:
                call(communicator, raw)
        finally:
            group.groupEnd()

    def _over(self, device: NcclDevice, lane: Lane, dones: Sequence[Done], error: Exception | None) -> None:
        """End launches whose event has come, in the waiter's thread."""
        device.ended(lane)
        if device.dead:
            return
        try:
            if error is not None:
                raise error
            lane.check()
        except Exception as failed:
            post(self.setup.loop, self._failed, failed)
            return
        post(self.setup.loop, _call_all, dones)

    def _poll_later(self) -> None:
        """Ask NCCL now and then whether it has found an error: the kernel then waits for ever."""
        self._alarm.by(self.setup.loop.time() + _POLL)

    def _poll(self) -> None:
        try:
            for lane in self._lanes:
                lane.check(wait=False)
        except Exception as error:
            self._failed(error)
        else:
            if any(lane.under_way for lane in self._lanes):
                self._poll_later()

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────

    def greeting(self, peer: int) -> bytes:
        """The id of the lane on which messages go to a peer."""
        unique = self._ids.get(peer)
        if unique is None:
            unique = self._ids[peer] = nccl.unique_id()
        return unique

    def greeted(self, peer: int, greeting: bytes) -> None:
        """Take the id of the lane on which messages come from a peer."""
        self._theirs[peer] = greeting

    def _pair(self, peer: int, sends: bool) -> LanePair:
        """The lane of one direction; made at its first message, which both sides have begun then."""
        pair = self._pairs.get((peer, sends))
        if pair is None:
            warn_of_one_queue()
            pair = self._pairs[peer, sends] = LanePair()
            unique = self._ids[peer] if sends else self._theirs[peer]
            size, rank = (1, 0) if peer == self.setup.rank else (2, int(not sends))
            task = self.setup.loop.create_task(self._open_pair(pair, unique, size, rank))
            pair.opening = task
        return pair

    async def _open_pair(self, pair: LanePair, unique: bytes, size: int, rank: int) -> None:
        try:
            lane = await self._in_thread(lambda: self._meet(unique, size, rank))
        except Exception as error:
            self._failed(error)
        else:
            self._lanes.append(lane)
            pair.made(lane)

    def _meet(self, unique: bytes, size: int, rank: int) -> Lane:
        """Make a lane with one peer, or for this rank alone."""
        return self._make_lane(nccl.connect(self._cupy, size, unique, rank))

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────

    def abort(self, released: Done) -> None:
        """Abort all communicators of the device; `released` when its streams are through with what they had.

        After 2 s in any case: then NCCL could not stop a kernel, or one waits for work of the user's that
        takes longer, and it may still write to its tensors, which are kept alive for it. The process lives
        on, and groups that are formed afterwards have communicators of their own."""
        self._alarm.set()
        if self._device is None:
            released()
            return
        why = f"NCCL was stopped on cuda:{self._index}, since another group there broke"
        self._device.stop(self, why, partial(post, self.setup.loop, released))

    def collapsed(self, why: str) -> None:
        """Break the group, because another group of the device broke."""
        post(self.setup.loop, self.setup.failed, ConnectionAbortedError(why))

    def close(self) -> None:
        """Give everything back, in the background."""
        for pair in self._pairs.values():
            pair.close()
        for part in self._parts.values():  # of groups that nobody awaited
            if part.done() and not part.cancelled() and part.exception() is None:
                self._lanes.append(part.result())
        self._alarm.set()
        if self._device is not None:
            self._device.leave(self, self._lanes)


@functools.cache
def warn_of_one_queue() -> None:
    """Warn where one queue of the device serves all streams: messages then wait for collectives."""
    if os.environ.get(_QUEUES) == "1":
        log.warning(
            "%s=1: messages of device tensors can wait for collectives for ever (unset it, or use 8 or more)",
            _QUEUES,
        )


def _nothing() -> None:
    """Do nothing: the other side says when it is over."""


def _call_all(dones: Sequence[Done]) -> None:
    for done in dones:
        done()
