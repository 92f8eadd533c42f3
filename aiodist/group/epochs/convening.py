"""Making a draft, and making it final: the part of the member that convenes, or asks the arbiter.

Each call on an epoch is decided by itself, as the next epoch (`Decided`) or as void (`Void`), and a later
call counts only where all earlier ones are void. So a call that failed leaves nothing behind that might be
found to be the next epoch afterwards, when its convener has died before it could say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection

from aiodist.base.backoff import pause_after
from aiodist.base.errors import Evicted, QuorumLost, RendezvousError, WireError
from aiodist.group.epochs.job import Job
from aiodist.group.epochs.world import World
from aiodist.group.membership import newcomers
from aiodist.group.membership.arbiter import Arbiter, MajorityArbiter, ruling_key
from aiodist.group.membership.assembly import Assembly, Invite
from aiodist.group.membership.messages import Decided, Draft, MemberMessage, Void, decode, encode
from aiodist.group.membership.record import Number, Record
from aiodist.rendezvous import Store

_PAUSE = 0.02  # seconds between looks at the newcomers that wait at the store
_AGAIN, _LONGEST = 0.01, 1.0  # seconds before the second draft; they double up to the second value

logger = logging.getLogger("aiodist.group.convening")

ASKING = 2.0
"""Seconds in which the arbiter has to answer before it is asked again, or given up."""


class Convening:
    """One process's part in making drafts and having them decided, in one world.

    Args:
        job: what outlives the epoch.
        world: the epoch's.
        arbiter: likewise.
        say: tells a message to all others.
        changed: called when an assembly has learned something.
        store_of: of a draft that is being formed here, where its members meet.
    """

    def __init__(
        self,
        job: Job,
        world: World,
        arbiter: Arbiter,
        say: Callable[[int | None, MemberMessage], None],
        changed: Callable[[], None],
        store_of: Callable[[Number], Store | None],
    ) -> None:
        self._job = job
        self._world = world
        self._arbiter = arbiter
        self._say = say
        self._changed = changed
        self._store_of = store_of
        self._loop = asyncio.get_running_loop()
        self._inviting: asyncio.Task[None] | None = None
        self._ruling: asyncio.Task[None] | None = None
        self._hosting: str | None = None  # address of the store that this process hosts for the next epoch
        self._voided: set[int] = set()  # calls that the arbiter has said to be void

    def invite(self, assembly: Assembly, step: Invite) -> None:
        """Make a draft, if none is being made."""
        if self._inviting is None or self._inviting.done():
            self._inviting = self._loop.create_task(self._invite(assembly, step))

    def rule(self, assembly: Assembly, record: Record) -> None:
        """Ask the arbiter for a draft, if it is not being asked."""
        if self._ruling is None or self._ruling.done():
            self._ruling = self._loop.create_task(self._rule(assembly, record))

    async def stop(self) -> None:
        """Stop: the call has ended."""
        tasks = [task for task in (self._inviting, self._ruling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # it waits for all, even if it is cancelled
        self._inviting = self._ruling = None

    # ── drafts ───────────────────────────────────────────────────────────────────────────────────────

    async def _invite(self, assembly: Assembly, step: Invite) -> None:
        """Make a draft, and tell all members; or find that there is nothing to draft."""
        tried = (step.attempt & 0xFFFF) - 1
        try:
            if tried > 0:
                await asyncio.sleep(pause_after(tried, _AGAIN, _LONGEST))
            store, address, host = await self._meeting_place(step.members)
            added: list[bytes] = []
            if step.newcomers:
                waiting = [uid for uid in await newcomers.pending(store) if uid not in self._world.uids]
                added = [uid for uid in waiting if uid not in assembly.culprits][: self._room(step)]
            if len(added) < step.wanted and not step.final:
                await asyncio.sleep(_PAUSE)  # and look again
                return
            if len(added) < step.wanted:
                have = len(step.members) + len(added)
                why = f"{have} came in time, {len(step.members) + step.wanted} were asked for"
                await self._decide(assembly, Void(assembly.call, why, not assembly.wanted))
                return
            number = (step.attempt, assembly.rank)
            record = Record(assembly.epoch + 1, number, (*step.members, *added), address, host)
            draft = Draft(assembly.call, record)
            many = len(record.members)
            logger.debug(
                "rank %d drafts %s: %d members, %d new", assembly.rank, record.name, many, len(added)
            )
            self._say(None, draft)
            assembly.hear(assembly.rank, draft, self._loop.time())
            await newcomers.invite(store, added, record)
        except (RendezvousError, OSError) as error:
            self._tell(assembly, Void(assembly.call, f"the store cannot be reached: {error}"[:300], True))
        except (QuorumLost, Evicted) as error:
            self._tell(assembly, Void(assembly.call, error.message[:300], True))
        except WireError as error:
            self._tell(assembly, Void(assembly.call, f"the arbiter cannot be read: {error}"[:300], True))
        finally:
            self._changed()  # whoever looks then, does so in a later turn, when this task is done

    def _room(self, step: Invite) -> int:
        """The number of newcomers that may be taken in at a time. Members of an epoch decide on the next by
        majority: members that are known to work must not be outvoted by those that have yet to show it."""
        if isinstance(self._arbiter, MajorityArbiter):
            return min(step.newcomers, max(1, len(step.members) - 1, step.wanted))
        return step.newcomers

    async def _meeting_place(self, members: Collection[bytes]) -> tuple[Store, str, bytes]:
        """The store that the draft meets at, its address, and its host; a new one if the host is gone."""
        job, hosts = self._job, self._world.store_hosts
        if not hosts or job.host_store is None or job.reach_store is None:
            return job.store, "", b""
        uid = self._world.uids[hosts[0]]
        if uid in members:
            return job.store, job.store_address, uid
        if self._hosting is None:  # once, however many drafts it takes
            self._hosting = await job.host_store()
        return await job.reach_store(self._hosting, job.uid), self._hosting, job.uid

    # ── decisions ────────────────────────────────────────────────────────────────────────────────────

    async def _rule(self, assembly: Assembly, record: Record) -> None:
        try:
            await self._decide(assembly, Decided(assembly.call, record))
        except Evicted as error:
            self._tell(assembly, Void(assembly.call, error.message[:300], True))
        except (QuorumLost, WireError) as error:
            assembly.asked(record.number, str(error))
            await asyncio.sleep(_PAUSE)  # an answer that comes at once must not be asked for at once
        finally:
            self._changed()

    async def _decide(self, assembly: Assembly, message: Decided | Void) -> None:
        """Have the call decided, this way or as it was before.

        Raises:
            QuorumLost: the arbiter cannot say.
            Evicted: no member of this run has a say any more.
            WireError: its answer is no decision.
        """
        epoch = assembly.epoch + 1
        earlier = [call for call in range(1, assembly.call) if call not in self._voided]
        for proposed in (*(Void(call, "a later call was made", False) for call in earlier), message):
            found = await self._ruled(epoch, proposed)
            logger.debug("call %d for epoch %d is decided: %s", proposed.call, epoch, found)
            if isinstance(found, Decided):
                await self._publish(epoch, found)
                assembly.decide(found.record)
                return
            if proposed is message:
                self._tell(assembly, found)

    async def _ruled(self, epoch: int, message: Decided | Void) -> Decided | Void:
        value = await self._arbiter.rule(topic_of(epoch) + str(message.call), encode(message), ASKING)
        found = decode(value)
        if not isinstance(found, Decided | Void) or found.call != message.call:
            raise WireError(f"no decision on call {message.call}: {str(found)[:100]}")
        if isinstance(found, Void):
            self._voided.add(found.call)
        return found

    async def _publish(self, epoch: int, decided: Decided) -> None:
        """Publish a decision of the members for newcomers, at the store to which they were invited."""
        if isinstance(self._arbiter, MajorityArbiter):
            store = self._store_of(decided.record.number) or self._job.store
            with contextlib.suppress(RendezvousError, TimeoutError):
                async with asyncio.timeout(ASKING):
                    await store.set(ruling_key("", topic_of(epoch) + str(decided.call)), encode(decided))

    def _tell(self, assembly: Assembly, message: Void) -> None:
        logger.debug("call %d for epoch %d is void: %s", message.call, assembly.epoch + 1, message.why)
        self._say(None, message)
        assembly.hear(assembly.rank, message, self._loop.time())


def topic_of(epoch: int) -> str:
    """The topic under which the arbiter decides on the calls for an epoch; the call's number follows."""
    return f"epoch/{epoch}/"


def decided_in(value: bytes | None) -> Record | None:
    """The epoch that a decision names; None for one that names none."""
    if value is None:
        return None
    with contextlib.suppress(WireError):
        match decode(value):
            case Decided(_, record):
                return record
    return None
