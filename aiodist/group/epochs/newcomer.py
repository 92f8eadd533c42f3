"""The admission of a newcomer: it submits a request, is invited to drafts, and waits for a decision."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

from aiodist.base.errors import AiodistError, RendezvousError, RendezvousTimeout
from aiodist.group.epochs.candidate import Candidate
from aiodist.group.epochs.convening import decided_in, topic_of
from aiodist.group.epochs.job import Job
from aiodist.group.epochs.regroup import Regroup
from aiodist.group.epochs.world import World
from aiodist.group.membership.arbiter import ruling_key
from aiodist.group.membership.assembly import FORMING
from aiodist.group.membership.messages import Ready
from aiodist.group.membership.newcomers import OVER, AdmissionRequest, invitation
from aiodist.group.membership.presence import run_on_record
from aiodist.group.membership.record import Record
from aiodist.group.process_group import ProcessGroup
from aiodist.net.within import within
from aiodist.rendezvous import Watch

_FOREVER = 1e6  # seconds; the whole visit has a limit of its own

logger = logging.getLogger("aiodist.group.newcomer")


async def join_running(job: Job, timeout: float) -> ProcessGroup:
    """Wait to be admitted → the group of the epoch that this process is in.

    Raises:
        RendezvousTimeout: it was not admitted in time.
    """
    visit = _Visit(job)
    deadline = asyncio.get_running_loop().time() + timeout
    try:
        late = partial(
            RendezvousTimeout,
            f"no member admitted this process within {timeout:g} s",
            hint="Members admit newcomers in rebuild() and grow(): see that they call one, at every step",
        )
        async with within(timeout, late):
            candidate, regroup = await visit.admitted()
        if job.admitted is not None:
            await job.admitted()
        await visit.close()
        return await regroup.enter(candidate, Ready(1, 1, True, 0, ()), deadline)
    except BaseException as error:
        await visit.give_up(error)
        raise


class _Visit:
    """The drafts that a newcomer was invited to."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._admission = AdmissionRequest(job.store, job.uid, job.words.encode())
        self._candidates: dict[str, Candidate[Regroup]] = {}  # by the draft's name
        self._changed = asyncio.Event()
        self._watch: Watch | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ruled: dict[int, Record] = {}
        self._awaited: set[int] = set()
        self._admitted: tuple[Candidate[Regroup], Regroup] | None = None
        self._over = False
        self._lost: RendezvousError | None = None  # the store is gone: nobody can invite any more

    async def admitted(self) -> tuple[Candidate[Regroup], Regroup]:
        """Wait for a candidate to become an epoch → that, and what takes its members on from there."""
        self._job.run = await run_on_record(self._job.store)
        self._watch = await self._admission.submit()
        self._spawn(self._read(self._watch))
        self._spawn(self._until_over())
        while True:
            self._changed.clear()
            if self._over:
                raise RendezvousError(
                    "the job ended before this process was admitted", hint="There is nothing left to do"
                )
            if self._lost is not None and all(c.error is not None for c in self._candidates.values()):
                raise RendezvousError(
                    f"the store at which this process waited is gone: {self._lost.message}",
                    hint="The job may go on at another one: start this process again, to join it there",
                ) from self._lost
            for candidate in list(self._candidates.values()):
                regroup = await candidate.linked() if self._is_epoch(candidate) else None
                if regroup is not None:
                    regroup.admit()
                    self._admitted = candidate, regroup
                    return self._admitted
            await self._changed.wait()

    def _is_epoch(self, candidate: Candidate[Regroup]) -> bool:
        record = candidate.record
        ruled = self._ruled.get(record.epoch)
        if ruled is not None:
            return ruled.number == record.number
        return candidate.regroup is not None and candidate.regroup.listener.decided

    async def _read(self, watch: Watch) -> None:
        try:
            async for _, value in watch:
                record = invitation(value)
                if record is not None and record.name not in self._candidates:
                    self._form(record)
        except RendezvousError as error:
            self._lost = error
            self._changed.set()

    def _form(self, record: Record) -> None:
        if record.rank_of(self._job.uid) is None:
            return
        self._job.store_address, self._job.store_host = record.store, record.host  # it came by that store
        self._candidates[record.name] = Candidate(self._job, record, FORMING, self._changed.set, self._listen)
        if record.epoch not in self._awaited:
            self._awaited.add(record.epoch)
            self._spawn(self._hear(record.epoch))
        logger.info("invited to epoch %d, with %d others", record.epoch, len(record.members) - 1)

    def _listen(self, world: World, group: ProcessGroup) -> Regroup:
        return Regroup(self._job, world, group, self._changed.set)

    async def _hear(self, epoch: int) -> None:
        with contextlib.suppress(RendezvousError):
            async with self._job.store.watch(ruling_key(self._job.run, topic_of(epoch))) as watch:
                async for _, value in watch:
                    record = decided_in(value)
                    if record is not None and record.epoch == epoch:
                        self._ruled[epoch] = record
                        self._changed.set()

    async def _until_over(self) -> None:
        with contextlib.suppress(RendezvousError):
            await self._job.store.wait([OVER], timeout=_FOREVER)
            self._over = True
            self._changed.set()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(coroutine))

    async def close(self) -> None:
        """Leave no trace but the epoch that was decided. May be repeated."""
        for candidate in self._candidates.values():
            if self._admitted is None or candidate is not self._admitted[0]:
                self._job.in_background(candidate.close())
        self._candidates.clear()
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            if self._watch is not None:
                await self._watch.aclose()
            await self._admission.withdraw()

    async def give_up(self, error: BaseException) -> None:
        """Leave the job after joining failed, also an epoch that was decided, since nobody has its group."""
        try:
            await self.close()
        finally:
            if self._admitted is None:
                await self._job.end()
            else:
                _, regroup = self._admitted
                with contextlib.suppress(AiodistError):
                    await regroup.group.__aexit__(type(error), error, None)
