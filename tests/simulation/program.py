"""What each simulated process does: steps that are the same on all members, until something breaks."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable
from typing import TypeVar

import numpy as np

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.epochs.regroup import regroup_of
from tests.simulation.ledger import Ledger
from tests.simulation.plan import Plan
from tests.support.chaos import Process

T = TypeVar("T")

SLACK = 12.0  # seconds beyond its timeout that an operation may take to say so
FORMING = 45.0  # likewise a call for the next epoch: drafts, the arbiter, and the next group's first barrier


def addend(uid: bytes, epoch: int, step: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """What a process adds: no sum of some is that of others."""
    words = uid + epoch.to_bytes(4, "big") + step.to_bytes(4, "big")
    digest = hashlib.blake2b(words, digest_size=15).digest()
    return np.array([int.from_bytes(digest[i : i + 5], "big") for i in (0, 5, 10)], np.int64)


class Program:
    """One process's part of a run.

    Args:
        plan: of the run.
        ledger: of the run.
        process: this one.
    """

    def __init__(self, plan: Plan, ledger: Ledger, process: Process) -> None:
        self.plan = plan
        self.ledger = ledger
        self.me = process.number
        self.process = process
        self._draw = random.Random(f"program/{plan.seed}/{process.number}")

    def note(self, what: str) -> None:
        """Write it down."""
        self.ledger.note(asyncio.get_running_loop().time(), self.me, what)

    async def run(self, group: ProcessGroup) -> str:
        """Work until the time is up, through all epochs."""
        while True:
            self._enter(group)
            try:
                found = await self._steps(group)
                if found is None:
                    self.note("ends")
                    return "done"
                group = found
            except (dist.Evicted, dist.QuorumLost):
                raise
            except dist.GroupBroken as error:
                self.note(f"epoch {group.epoch} broke: {error}")
                if asyncio.get_running_loop().time() >= self.plan.lasts:
                    return "done"
                group = await self._next(group)

    def _enter(self, group: ProcessGroup) -> None:
        regroup = regroup_of(group)
        assert regroup is not None
        members = regroup.uids
        self.note(f"in epoch {group.epoch} as rank {group.rank} of {group.size}")
        self.ledger.entered(self.me, group.epoch, members)
        if len(members) != group.size or members[group.rank] != self.process.uid:
            self.ledger.wrong(f"process {self.me}: rank {group.rank} of epoch {group.epoch} is another's")

    async def _next(self, group: ProcessGroup) -> ProcessGroup:
        plan = self.plan
        self.note("calls rebuild")
        return await self._within(group.rebuild(plan.min_size, timeout=plan.timeout + 1.0), FORMING)

    async def _steps(self, group: ProcessGroup) -> ProcessGroup | None:
        """Steps, until the time is up (None) or the next epoch begins."""
        regroup = regroup_of(group)
        assert regroup is not None
        uids, epoch, plan = regroup.uids, group.epoch, self.plan
        counts: dict[str, int] = {}
        part: ProcessGroup | None = None
        parted = False
        step = 0
        while True:
            step += 1
            await asyncio.sleep(self._draw.uniform(0.0, plan.pause))
            draw = random.Random(f"step/{plan.seed}/{epoch}/{step}")
            kind = draw.random()
            if kind < 0.5:
                tensor = addend(uids[group.rank], epoch, step)
                await self._within(group.all_reduce(tensor, timeout=plan.timeout), SLACK)
                expected = sum(addend(uid, epoch, step) for uid in uids)
                self.ledger.summed(self.me, epoch, step, tensor.tolist(), np.asarray(expected).tolist())
            elif kind < 0.65:
                going_on = asyncio.get_running_loop().time() < plan.lasts
                if not await self._agree(group, "world", counts, going_on):
                    if not going_on:
                        return None
                    return await self._next(group)
            elif kind < 0.72 and group.size > 2:
                if not parted:
                    parted = True
                    part = await self._within(group.new_group(range(group.size - 1)), SLACK)
                if part is not None:
                    await self._agree(part, "part", counts, draw.random() < 0.8)
            elif kind < 0.82:
                waiting = await self._within(group.pending_joins(timeout=plan.timeout), SLACK)
                if waiting:
                    self.note(f"{waiting} wait")
                    return await self._next(group)
            elif plan.calls and kind < 0.86:
                return await self._next(group)
            elif plan.calls and kind < 0.90 and group.size > 2:
                away = draw.randrange(group.size)
                if group.rank == away:
                    self.note("is excluded")
                    await self._within(group.all_reduce(np.zeros(1), timeout=plan.timeout), SLACK + FORMING)
                self.note(f"shrinks without {away}")
                self.ledger.excluded.add(uids[away])
                return await self._within(group.shrink([away], timeout=plan.timeout), FORMING)
            elif plan.calls and kind < 0.95:
                try:
                    self.note("grows")
                    return await self._within(group.grow(1, timeout=draw.choice((0.4, 1.0))), FORMING)
                except dist.RendezvousTimeout as error:
                    self.note(f"did not grow: {error}")

    async def _agree(self, group: ProcessGroup, name: str, counts: dict[str, int], flag: bool) -> bool:
        counts[name] = count = counts.get(name, 0) + 1
        answer = await self._within(group.agree(flag, timeout=self.plan.timeout), SLACK)
        self.ledger.agreed(self.me, group.epoch, name, count, answer)
        if answer and not flag:
            self.ledger.wrong(f"process {self.me} said no, and all agreed")
        return answer

    async def _within(self, work: Awaitable[T], slack: float) -> T:
        """The result; what takes longer than it may is a violation."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await work
        finally:
            if loop.time() - began > self.plan.timeout + slack:
                self.ledger.wrong(f"process {self.me} waited {loop.time() - began:.1f} s, since {began:.3f}")
