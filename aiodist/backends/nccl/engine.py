"""NCCL as an engine: operations are launched in a thread, and waited for in another; the loop hears of the end.

    issued (the caller's streams are marked) ─▶ launch thread ─▶ a lane's stream ─▶ its waiter ─▶ done, on the loop

Collectives of groups that have members in common must be issued in the same order on all of them: NCCL connects
in the first ones, and blocks meanwhile. Messages have lanes of their own, and need no such order.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from aiodist.backends.base import Operation
from aiodist.backends.cuda.arrays import allocate
from aiodist.backends.cuda.completion import Completion, arrays_of
from aiodist.backends.cuda.library import load, uuid_of
from aiodist.backends.cuda.waiter import post
from aiodist.backends.foreign.engine import Done, Engine, Setup
from aiodist.backends.foreign.task import Task
from aiodist.backends.nccl import communicators as nccl
from aiodist.backends.nccl.device import NcclDevice, enter
from aiodist.backends.nccl.lane import Lane
from aiodist.backends.nccl.launch import Launch, Planner
from aiodist.backends.nccl.sharing import Told, can_share, decode, misfit
from aiodist.backends.nccl.tables import BYTE

Plan = Callable[[Task], Launch]


class NcclEngine(Engine):
    """See the module, and `Engine` for what its methods are told."""

    name = "nccl"
    places = frozenset({"cuda"})
    capabilities = frozenset({"one-answer", "regroups"})
    beside = True
    ready = True
    stages = True
    divides = True
    greets = nccl.ID_BYTES

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert setup.device is not None
        self._index = setup.device
        self._cupy = load()
        self._planner = Planner(self._cupy, self._index, setup.rank, setup.size)
        self._device: NcclDevice | None = None
        self._lane: Lane | None = None
        self._lanes: list[Lane] = []
        self._ids: dict[int, bytes] = {}  # of the lanes on which messages go to each peer
        self._theirs: dict[int, bytes] = {}  # of those on which they come
        self._pairs: dict[tuple[int, bool], Pair] = {}

    # ── before there is a group ──────────────────────────────────────────────────────────────────────

    @classmethod
    def check(cls) -> None:
        """CuPy, a device and NCCL are here."""
        nccl.load_nccl()

    @classmethod
    def tell(cls, device: int | None) -> bytes:
        """Which GPU, and which NCCL."""
        assert device is not None
        cupy = nccl.load_nccl()
        version = int(cupy.cuda.nccl.get_version())
        told = Told(uuid_of(cupy, device), version, nccl.can_split(cupy), can_share(version, os.environ))
        return told.encode()

    @classmethod
    def fits(cls, told: Sequence[bytes]) -> str:
        """One NCCL for all, and a GPU for each unless that NCCL can share them."""
        return misfit([decode(one) for one in told])

    # ── beginning ────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Make the communicator. NCCL blocks until all members do: in a thread of its own, so that launches go
        on meanwhile; out of the parent's communicator, in the launch thread, which the parent uses."""
        setup, cupy = self.setup, self._cupy
        self._device = device = enter(self._index, self)
        parent = setup.parent
        if isinstance(parent, NcclEngine) and nccl.can_split(cupy):
            color = min(setup.ranks)
            self._lane = await self._in_launcher(
                device, lambda: self._adopt(nccl.split(parent._communicator, color, setup.rank))
            )
            return
        mine = await self._in_thread(partial(nccl.unique_id, cupy)) if setup.rank == 0 else b""
        unique = (await setup.gather(mine))[0]
        self._lane = await self._in_thread(
            lambda: self._adopt(nccl.connect(cupy, setup.size, unique, setup.rank))
        )

    async def bystand(self) -> None:
        """All members of a communicator take part in splitting it."""
        device = self._device
        if device is not None and nccl.can_split(self._cupy):
            await self._in_launcher(device, lambda: nccl.split(self._communicator, nccl.NO_COLOR, 0))

    @property
    def _communicator(self) -> Any:
        assert self._lane is not None
        return self._lane.communicator

    def _adopt(self, communicator: Any) -> Lane:
        """A lane of a new communicator, unless the group has broken meanwhile."""
        number, device = len(self._lanes), self._device
        assert device is not None
        lane = Lane(self._cupy, self._index, communicator, f"aiodist-nccl-wait-{self._index}-{number}")
        if not device.adopt(lane):
            lane.close()
            lane.abort()
            raise ConnectionAbortedError("the group broke while its communicator was made")
        self._lanes.append(lane)
        return lane

    async def _in_thread(self, job: Callable[[], Any]) -> Any:
        future = self.setup.loop.create_future()
        name = f"aiodist-nccl-make-{self._index}"
        threading.Thread(target=self._resolve, args=[future, job], name=name, daemon=True).start()
        return await future

    async def _in_launcher(self, device: NcclDevice, job: Callable[[], Any]) -> Any:
        future = self.setup.loop.create_future()
        device.launcher.submit(partial(self._resolve, future, job))
        return await future

    def _resolve(self, future: asyncio.Future[Any], job: Callable[[], Any]) -> None:
        """Run a job in this thread, on the device; its result goes to the loop."""
        try:
            self._cupy.cuda.Device(self._index).use()
            result = job()
        except Exception as error:
            post(self.setup.loop, _settle, future, None, error)
        else:
            post(self.setup.loop, _settle, future, result, None)

    # ── operations ───────────────────────────────────────────────────────────────────────────────────

    def issued(self, operation: Operation) -> None:
        """Note what the caller's streams have been given until now."""
        operation.work._completion = Completion(self._cupy, self._index, arrays_of(operation))

    def prepare(self, operation: Operation) -> Task:
        """What is staged is allocated in the launch thread: that may take the driver a while."""
        return Task(operation)

    def prepare_message(self, operation: Operation) -> Task:
        """Likewise."""
        return Task(operation)

    def start(self, task: Task, done: Done) -> None:
        """Launch a collective."""
        self.coalesce([(task, done)])

    def coalesce(self, tasks: Sequence[tuple[Task, Done]]) -> None:
        """Launch what was issued in one batch as one NCCL group."""
        assert self._lane is not None
        self._launch(self._lane, tasks, self._planner.collective)

    def send(self, task: Task, peer: int, number: int, done: Done) -> None:
        """Launch a send, on the lane to the peer."""
        self._pair(peer, True)(lambda lane: self._launch(lane, [(task, done)], self._planner.message))

    def recv(self, task: Task, peer: int, number: int, done: Done) -> None:
        """Launch a receive, on the lane from the peer."""
        self._pair(peer, False)(lambda lane: self._launch(lane, [(task, done)], self._planner.message))

    def _launch(self, lane: Lane, tasks: Sequence[tuple[Task, Done]], plan: Plan) -> None:
        device = self._device
        assert device is not None
        device.launcher.submit(partial(self._launch_now, device, lane, tasks, plan))

    def _launch_now(
        self, device: NcclDevice, lane: Lane, tasks: Sequence[tuple[Task, Done]], plan: Plan
    ) -> None:
        """In the launch thread."""
        stands: list[Any] = [task.operation.work._completion for task, _ in tasks]
        event: Any = None
        try:
            if not device.dead:
                event, keep = self._enqueue(lane, tasks, stands, plan)
                lane.waiter.watch(event, partial(self._over, device, lane, [done for _, done in tasks]), keep)
        except Exception as error:
            event = None
            if not device.dead:
                post(self.setup.loop, self.setup.failed, error)
        finally:
            for stand in stands:
                stand.launched.set(event)

    def _enqueue(
        self, lane: Lane, tasks: Sequence[tuple[Task, Done]], stands: Sequence[Completion], plan: Plan
    ) -> tuple[Any, object]:
        """Give it all to the stream → its event, and what must live until then."""
        cuda = self._cupy.cuda
        cuda.Device(self._index).use()
        raw = lane.stream.ptr
        with lane.stream:
            for stand in stands:
                stand.wait_for_caller(raw)
            launches = [plan(task) for task, _ in tasks]
            cuda.nccl.groupStart()
            try:
                for launch in launches:
                    for call in launch.calls:
                        call(lane.communicator, raw)
            finally:
                cuda.nccl.groupEnd()
            for launch in launches:
                for step in launch.after:
                    step()
            event = cuda.Event(block=True, disable_timing=True)
            event.record(lane.stream)
        return event, launches

    def _over(self, device: NcclDevice, lane: Lane, dones: Sequence[Done], error: Exception | None) -> None:
        """In the waiter's thread: an event has come."""
        if device.dead:
            return
        try:
            if error is not None:
                raise error
            lane.communicator.check_async_error()
        except Exception as failed:
            post(self.setup.loop, self.setup.failed, failed)
            return
        post(self.setup.loop, _call_all, dones)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────

    def greeting(self, peer: int) -> bytes:
        """The id of the lane on which messages go to a peer."""
        unique = self._ids.get(peer)
        if unique is None:
            unique = self._ids[peer] = nccl.unique_id(self._cupy)
        return unique

    def greeted(self, peer: int, greeting: bytes) -> None:
        """The id of the lane on which messages come from a peer."""
        self._theirs[peer] = greeting

    def _pair(self, peer: int, sends: bool) -> Pair:
        """The lane of one direction; made at its first message, which both sides have begun then."""
        pair = self._pairs.get((peer, sends))
        if pair is None:
            pair = self._pairs[peer, sends] = Pair()
            unique = self._ids[peer] if sends else self._theirs[peer]
            task = self.setup.loop.create_task(self._open_pair(pair, unique, sends))
            pair.opening = task
        return pair

    async def _open_pair(self, pair: Pair, unique: bytes, sends: bool) -> None:
        try:
            lane = await self._in_thread(lambda: self._meet(unique, sends))
        except Exception as error:
            assert self._device is not None
            if not self._device.dead:
                self.setup.failed(error)
        else:
            pair.made(lane)

    def _meet(self, unique: bytes, sends: bool) -> Lane:
        """Make a lane with one peer, and connect: a launch on it that blocked would hold up all others."""
        lane = self._adopt(nccl.connect(self._cupy, 2, unique, int(not sends)))
        with lane.stream:
            byte = allocate(self._cupy, self._index, 1, np.dtype(np.uint8))
            move = lane.communicator.send if sends else lane.communicator.recv
            move(byte.pointer, 1, BYTE, int(sends), lane.stream.ptr)
        lane.stream.synchronize()
        return lane

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────

    def abort(self, quiet: Done) -> None:
        """Abort all communicators of the device; `quiet` when its streams are through with what they had, and
        after 2 s in any case: then NCCL could not stop a kernel, which goes on with memory that is kept for it.
        The process lives on, and groups that are formed afterwards have communicators of their own."""
        if self._device is None:
            quiet()
            return
        why = f"NCCL was stopped on cuda:{self._index}, since another group there broke"
        self._device.stop(self, why, partial(post, self.setup.loop, quiet))

    def collapsed(self, why: str) -> None:
        """Another group of the device broke."""
        post(self.setup.loop, self.setup.failed, ConnectionAbortedError(why))

    def close(self) -> None:
        """Give everything back, in the background."""
        for pair in self._pairs.values():
            pair.close()
        if self._device is not None and self._device.leave(self, self._lanes):
            for lane in self._lanes:
                lane.close()
            nccl.destroy_later([lane.communicator for lane in self._lanes])


class Pair:
    """A lane of messages that may still be in the making: what begins on it waits, in order. On the loop."""

    def __init__(self) -> None:
        self.opening: asyncio.Task[None] | None = None
        self._lane: Lane | None = None
        self._waiting: list[Callable[[Lane], None]] = []

    def __call__(self, step: Callable[[Lane], None]) -> None:
        """Do something with the lane, once there is one."""
        if self._lane is None:
            self._waiting.append(step)
        else:
            step(self._lane)

    def made(self, lane: Lane) -> None:
        """It is there."""
        self._lane = lane
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            step(lane)

    def close(self) -> None:
        """Nothing begins on it any more."""
        if self.opening is not None:
            self.opening.cancel()


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _call_all(dones: Sequence[Done]) -> None:
    for done in dones:
        done()
