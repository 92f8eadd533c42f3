"""Arbiters, which make a decision final. One a job, fixed at init, never one as fallback for the other.

A minority that still reaches the store and a majority that does not would both form the next epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from aiodist.base.errors import Evicted, QuorumLost, RendezvousError, name_ranks
from aiodist.group.membership.ballot import Addressed, Ballots
from aiodist.group.membership.messages import MemberMessage
from aiodist.group.membership.presence import RUN
from aiodist.rendezvous.store import Store

logger = logging.getLogger("aiodist.group.membership")
_BACKOFF = 0.02  # seconds a rank, so that two proposers do not outbid each other for ever


class Arbiter(Protocol):
    """The giver of one answer on a topic, the same for everybody, however often it is asked."""

    async def rule(self, topic: str, value: bytes, timeout: float) -> bytes:
        """Propose a value → the value that holds, this one or an earlier one.

        Args:
            topic: what is decided; a call for the next epoch, an agreement.
            value: at most 60 KiB.
            timeout: seconds.

        Raises:
            QuorumLost: no answer can be had.
        """


class StoreArbiter:
    """The store as arbiter: a value holds if and only if its compare-and-set says so.

    Each run of the job has topics of its own. A member of one that is not on record any more has no say: it
    was cut off, and all ranks have begun anew. It shows itself before it asks, and looks afterwards which run
    is on record. Who begins a run puts that on record, and looks afterwards who of the last one is there. So
    one of the two sees the other.

    Args:
        store: linearizable, and not inside any member.
        run: that the asking process is of; '': there is one only.
        show: has the store show that the asking process is there.

    Raises (when it is asked):
        Evicted: another run is on record.
    """

    def __init__(
        self, store: Store, run: str = "", show: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._store = store
        self._run = run
        self._show = show

    async def rule(self, topic: str, value: bytes, timeout: float) -> bytes:
        """Rule on a draft: give everybody the same answer; see `Arbiter`."""
        try:
            async with asyncio.timeout(timeout):
                if self._show is not None:
                    await self._show()
                ruled = await self._store.compare_set(ruling_key(self._run, topic), b"", value)
                on_record = await self._store.get(RUN) if self._run else b""
        except (TimeoutError, RendezvousError) as error:
            raise QuorumLost(
                f"the store, which decides who goes on, cannot be reached: {str(error) or 'no answer'}",
                hint=f"It was tried for {timeout:.1f} s; start the job again when the store is back",
            ) from error
        if on_record != self._run.encode():
            raise Evicted(
                "the job has begun anew without this process, which was cut off from the store",
                hint="Leave, and join again: dist.join()",
            )
        return ruled


def ruling_key(run: str, topic: str) -> str:
    """The key of a topic in the store."""
    return f"ruling/{run}/{topic}" if run else f"ruling/{topic}"


@dataclass(eq=False)
class MajorityArbiter:
    """More than half of the epoch's members as arbiter, not counting those proven dead.

    Args:
        rank: this process's.
        size: of the epoch.
        send: tells a message to a rank, or to all others (None).
        dead: ranks that this process knows to vote no more.
    """

    rank: int
    size: int
    send: Callable[[int | None, MemberMessage], None]
    dead: Callable[[], Collection[int]]

    def __post_init__(self) -> None:
        self._ballots = Ballots(self.rank, self.size)
        self._news = asyncio.Event()

    def hear(self, origin: int, message: MemberMessage) -> None:
        """Take a member's vote, or question."""
        self._tell(self._ballots.hear(origin, message, self.dead()))
        self._news.set()

    def recount(self) -> None:
        """Count again: more members may be proven dead."""
        self._news.set()

    async def rule(self, topic: str, value: bytes, timeout: float) -> bytes:
        """Rule on a draft: give everybody the same answer; see `Arbiter`."""
        ballots = self._ballots
        try:
            async with asyncio.timeout(timeout):
                self._tell(ballots.propose(topic, value, self.dead()))
                while True:
                    self._news.clear()
                    self._tell(ballots.recount(topic, self.dead()))
                    if topic in ballots.chosen:
                        break
                    if topic in ballots.outbid:  # perhaps by this member's own promise: nobody tells that
                        await asyncio.sleep(_BACKOFF * (1 + self.rank))
                        logger.debug("rank %d was outbid on %s, and proposes again", self.rank, topic)
                        self._tell(ballots.propose(topic, value, self.dead()))
                    else:
                        await self._news.wait()
        except TimeoutError:
            dead = sorted(self.dead())
            without = f", not counting {name_ranks(dead)}" if dead else ""
            raise QuorumLost(
                f"fewer than half of the {self.size} members of the epoch answer{without}",
                hint="Another part of the job may go on; this process must not. Leave, and join again",
            ) from None
        logger.debug("rank %d: a majority has decided %s", self.rank, topic)
        return ballots.chosen[topic]

    def _tell(self, messages: list[Addressed]) -> None:
        for target, message in messages:
            self.send(target, message)
