"""Programs on real groups: ranks of one loop, over sockets, and through shared memory on each host.

One loop for all ranks makes it possible to choose what comes first: a rank that is *late* for an operation,
because its loop was busy, issues it and looks around when another rank's Work has just failed, and before it
has read any news of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import uvloop

import aiodist as dist
from aiodist.backends.host.local import board
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from aiodist.testing.issued import Issued, issue, perform
from aiodist.transport import SocketEndpoint
from tests.helpers import core_of
from tests.programs.plan import COUNTER_BITS, Batch, Each, Ending, Item, Plan, Together, plan, world

LIMIT = 30.0
"""Seconds of an operation. Nothing takes a tenth of it, so whatever does has hung."""

SETTLE = 0.002
"""Seconds in which the thread for bulk work can do what it may."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A program that went wrong.

    Args:
        seed: of the program.
        words: the first error of the first rank that failed.
        trace: all of it.
    """

    seed: int
    words: str
    trace: str


@contextlib.contextmanager
def short_counter() -> Iterator[None]:
    """Have the part of a number that stands in an operation's word come round soon."""
    before, board.NUMBER_BITS = board.NUMBER_BITS, COUNTER_BITS
    try:
        yield
    finally:
        board.NUMBER_BITS = before


@contextlib.contextmanager
def swallowing() -> Iterator[list[dict[str, Any]]]:
    """Have nothing logged: programs fail all the time. → What loops swallow meanwhile, uvloop's apart."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    swallowed: list[dict[str, Any]] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        swallowed.append(context)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.BaseEventLoop, "call_exception_handler", note)
            yield swallowed
    finally:
        logging.disable(before)


async def run(seeds: Sequence[int]) -> list[Violation]:
    """Run programs that share a job (`plan.world`). After a violation the others get a new job."""
    violations = []
    with short_counter():
        while seeds:
            job = _Job(seeds)
            await job.run()
            if job.violation is None:
                break
            violations.append(job.violation)
            seeds = seeds[list(seeds).index(job.violation.seed) + 1 :]
    return violations


def run_in_a_loop(seeds: Sequence[int]) -> tuple[int, list[Violation]]:
    """Run programs that share a job: how many, and those that went wrong. Every other job runs on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if seeds[0] % 2 else None) as runner:
        return len(seeds), runner.run(run(seeds))


class _Job:
    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = seeds
        self._stages = {seed: _Stage(plan(seed)) for seed in seeds}
        self.violation: Violation | None = None
        self._at = seeds[0]  # the last that a rank has begun

    async def run(self) -> None:
        """Run all, or up to the first violation."""
        hosts, limits = world(self._seeds[0])
        loop = asyncio.get_running_loop()

        def endpoint(rank: int) -> SocketEndpoint:
            return SocketEndpoint(loop, rank, "job", b"", boot=hosts[rank])

        try:
            await run_cluster(
                len(hosts), self._main, endpoint=endpoint, limits=replace(limits, poll=20), timeout=LIMIT
            )
        except (BaseExceptionGroup, TimeoutError) as error:
            if self.violation is None:  # of no program: all of them together took too long, say
                self._violated(self._at, "", error)

    async def _main(self, pg: ProcessGroup) -> None:
        for seed in self._seeds:
            self._at = seed
            try:
                await _program(pg, self._stages[seed])
            except Exception as error:
                if self.violation is None:
                    self._violated(seed, f"rank {pg.rank}: ", error)
                raise

    def _violated(self, seed: int, where: str, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        self.violation = Violation(seed, f"{where}{first_of(error)}", trace)


def first_of(error: BaseException) -> str:
    """The first error of a group of them, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300]


@dataclass
class _Stage:
    """What the ranks of one program share.

    Args:
        plan: the program.

    Attributes:
        late: what the ranks do whose loops were busy, by rank.
        ready: set when all of them are there.
        over: set when they have.
    """

    plan: Plan
    late: dict[int, Callable[[], None]] = field(default_factory=dict)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


async def _program(pg: ProcessGroup, stage: _Stage) -> None:
    """One rank's part."""
    group = await pg.new_group()
    assert group is not None
    rng = random.Random(f"{stage.plan.seed} rank {pg.rank}")
    for item in stage.plan.items:
        for _ in range(rng.choice([0, 0, 0, 1, 2, 5, 9])):  # ranks are not in step
            await asyncio.sleep(0)
        await _item(group, item)
    if stage.plan.ending is not None:
        await group.barrier()
        await _ending(group, stage, stage.plan.ending)
    with contextlib.suppress(dist.GroupBroken):
        await group.aclose()


async def _item(group: ProcessGroup, item: Item) -> None:
    if isinstance(item, Each):
        for step in item.steps:
            await perform(group, step)
    elif isinstance(item, Together):
        async with asyncio.TaskGroup() as tasks:
            for step in item.steps:
                tasks.create_task(perform(group, step))
    elif isinstance(item, Batch):
        await _batch(group, item)
    else:
        for _ in range(item.count):  # as where an engine carries them out
            core_of(group).host.skip(core_of(group).numbers.issue())


# ── coalesce ─────────────────────────────────────────────────────────────────────────────────────────


async def _batch(group: ProcessGroup, item: Batch) -> None:
    loop = asyncio.get_running_loop()
    left: asyncio.Event = asyncio.Event()
    fired: asyncio.Future[Issued] = loop.create_future()
    tasks: list[asyncio.Task[None]] = []
    objects: list[Any] = []

    def fire(*_: object) -> None:
        try:
            fired.set_result(issue(group, item.born[0]))
        except Exception as error:
            fired.set_exception(error)

    async def born() -> None:
        if item.birth == "task":
            await left.wait()
        for step in item.born:
            await perform(group, step)

    async with group.coalesce():
        issued = [issue(group, step) for step in item.steps]
        if item.objects:
            objects = [
                group.all_gather_object(
                    {"rank": group.rank, "text": "x" * (700 * group.rank)}, async_op=True
                ),
                group.broadcast_object(["root"] if group.rank == 0 else None, 0, async_op=True),
            ]
        match item.birth:
            case "task" | "within":
                tasks.append(asyncio.create_task(born()))
            case "timer":
                loop.call_later(0, fire)
            case "callback":
                assert issued[0].work is not None
                issued[0].work.add_done_callback(fire)
        for _ in range(item.turns):
            await asyncio.sleep(0)
        if item.split and item.birth != "within" and item.birth != "timer":
            await _split(group)
    left.set()
    if item.birth in ("timer", "callback"):
        issued.append(await fired)
    await asyncio.gather(*tasks)
    for one in issued:
        assert one.work is not None
        one.check(await one.work)
        one.spoil()
    if objects:
        size = group.size
        assert await objects[0] == [{"rank": rank, "text": "x" * (700 * rank)} for rank in range(size)]
        assert await objects[1] == ["root"]


async def _split(group: ProcessGroup) -> None:
    """Make a group inside the block, or be told that this cannot be done there."""
    try:
        part = await group.split(group.rank % 2)
    except dist.UsageError:
        return
    assert part is not None
    await part.aclose()


# ── how groups end ───────────────────────────────────────────────────────────────────────────────────


async def _ending(group: ProcessGroup, stage: _Stage, ending: Ending) -> None:
    rank = group.rank
    if rank in ending.late:
        await _late(group, stage, ending)
    elif rank == ending.first:
        await _first_to_fail(group, stage, ending)
    else:
        step = ending.step
        if ending.cause == "mismatch":
            step = replace(step, shape=(*step.shape[:-1], step.shape[-1] + group.size), salt=step.salt + 1)
        await _ends(issue(group, step))
    await stage.over.wait()
    try:
        await group.barrier()
    except (dist.GroupBroken, dist.GroupClosed):
        return
    raise AssertionError(f"rank {rank} goes on in a group that rank {ending.first} has ended")


async def _ends(issued: Issued) -> None:
    """It fails, or is right; then its tensors are written to at once."""
    if issued.work is None:
        return
    try:
        result = await issued.work
    except (dist.GroupBroken, dist.GroupClosed):
        pass
    else:
        issued.check(result)
    issued.spoil()


async def _late(group: ProcessGroup, stage: _Stage, ending: Ending) -> None:
    """Its loop is busy while the group breaks."""
    mine: list[Issued] = []

    def act() -> None:
        mine.append(issue(group, ending.step))
        work = mine[0].work
        if work is None:
            return
        waiting = work.__await__()
        with contextlib.suppress(StopIteration, dist.GroupBroken):
            next(waiting)  # it polls, and would let the loop turn
        waiting.close()
        if not work.done():
            time.sleep(SETTLE)  # the loop is busy again, and the thread works

    stage.late[group.rank] = act
    if len(stage.late) == len(ending.late):
        stage.ready.set()
    await stage.over.wait()
    await _ends(mine[0])


async def _first_to_fail(group: ProcessGroup, stage: _Stage, ending: Ending) -> None:
    """Its Work fails; it writes to its tensors, and everybody else is late."""
    kinds: dict[str, float | None] = {"timeout": 0.004}
    issued = issue(group, ending.step, kinds.get(ending.cause))
    try:
        await stage.ready.wait()
        await asyncio.sleep(SETTLE / 2)  # the thread publishes, too
        match ending.cause:
            case "abort":
                group.abort("a program ends")
            case "close":
                closing = asyncio.create_task(group.aclose())
                await asyncio.sleep(0)
                closing.cancel()
                await asyncio.gather(closing, return_exceptions=True)
            case "mismatch" if len(ending.late) + 1 == group.size:
                group.abort("nobody is left to disagree")
        await _ends(issued)
        if ending.again:
            for tensor in issued.tensors:
                core_of(group).host.empty((tensor.nbytes,), np.dtype(np.uint8)).fill(77)
        for rank in sorted(stage.late):
            stage.late[rank]()
        if ending.cause == "timeout" and not core_of(group).error:
            group.abort("a program ends")  # the operation had ended in time
    finally:
        stage.over.set()
