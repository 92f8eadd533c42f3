"""`agree`: the same answer on all survivors, also if members die meanwhile.

While all is well it is one all_reduce of a byte. Where that fails on some, it may have ended well on others,
so they ask: every living member says how it ended there, and a member that is asked can no longer end it by
itself. If one has an answer, that is it; if none has, it is no, or an error where members disagreed about the
operation (law 4). What was found goes to the arbiter, so that two who ask do not find two answers when
a member dies between them.

Source of the idea: agreement in ULFM (Herault et al., "Practical scalable consensus", 2015), with the arbiter
in the place of its tree.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import numpy as np

from aiodist.backends.work import Work
from aiodist.base.errors import CollectiveMismatch, CollectiveTimeout, Evicted, GroupBroken
from aiodist.base.types import AS, Kind, ReduceOp
from aiodist.group.core import GroupCore
from aiodist.group.membership.arbiter import Arbiter
from aiodist.group.membership.messages import Answer, Ask, MemberMessage
from aiodist.group.requests import internal
from aiodist.net.within import within

logger = logging.getLogger("aiodist.group.agreement")

YES, NO, MISMATCH = b"\x01", b"\x00", b"\x02"

_KEPT = 1024  # answers that are kept for members that ask; an operation is asked for soon or never


class Agreements:
    """One process's agreements in one epoch.

    Args:
        groups: all groups of this process in this epoch.
        say: tells a message to a rank, or to all others (None).
        reachable: ranks that are not known to be gone, this process's included.
        arbiter: the epoch's.
    """

    def __init__(
        self,
        groups: Iterable[GroupCore],
        say: Callable[[int | None, MemberMessage], None],
        reachable: Callable[[], set[int]],
        arbiter: Arbiter,
    ) -> None:
        self._groups = groups
        self._say = say
        self._reachable = reachable
        self._arbiter = arbiter
        self._sealed: set[str] = set()
        self._pending: dict[str, Work[bool]] = {}
        self._known: dict[str, bytes] = {}
        self._answers: dict[str, dict[int, bytes | None]] = {}
        self._news = asyncio.Event()

    async def agree(self, group: GroupCore, flag: bool, timeout: float) -> bool:
        """Agree with all members on a flag, whatever fails; see `ProcessGroup.agree`."""
        mine = np.array([1 if flag else 0], np.uint8)
        # Counted apart: after a death members may have issued different numbers of operations.
        count = group.numbers.next_of("agreements") + 1
        topic = f"agree/{group.roster.context:x}/{count}"
        if topic in self._sealed:
            group.break_group(_without(), tell=False)
        asked = internal(Kind.all_reduce, mine, reduce=ReduceOp.MIN, detail=f"{AS}agree()")
        work = group.issue(asked, timeout, True, at_once=True)
        self._pending[topic] = work
        try:
            await work
            self._know(topic, YES if mine[0] else NO)
        except Evicted:
            raise
        except GroupBroken as error:
            # A mismatch may be of a later operation, which others issued when they had the answer.
            otherwise = MISMATCH if isinstance(error, CollectiveMismatch) else NO
            self._know(topic, await self._resolve(group, topic, timeout, otherwise))
            if self._known[topic] == MISMATCH:
                raise
        finally:
            self._pending.pop(topic, None)
        return self._known[topic] == YES

    async def _resolve(self, group: GroupCore, topic: str, timeout: float, otherwise: bytes) -> bytes:
        answers = self._answers.setdefault(topic, {})
        asked = [rank for rank in group.roster.ranks if rank != group.roster.me]
        logger.debug("how did %s end? asking %d ranks", topic, len(asked))
        for rank in asked:
            self._say(rank, Ask(topic))
        async with within(timeout, lambda: CollectiveTimeout(timeout, sorted(self._awaited(asked, answers)))):
            while topic not in self._known and self._awaited(asked, answers):
                self._news.clear()
                await self._news.wait()
        found = [value for value in answers.values() if value is not None]
        value = self._known.get(topic) or (found[0] if found else otherwise)
        ruled = await self._arbiter.rule(topic, value, timeout)
        logger.debug("%s is %s; found here was %s", topic, ruled.hex(), value.hex())
        self._answers.pop(topic, None)
        return ruled

    def hear(self, origin: int, message: MemberMessage) -> None:
        """Take a question, or an answer."""
        match message:
            case Ask(topic):
                self._asked(origin, topic)
            case Answer(topic, value):
                if topic in self._answers:
                    self._answers[topic].setdefault(origin, value)
                elif value is not None and topic not in self._known:
                    self._know(topic, value)  # of one who left
                self._news.set()

    def lose(self) -> None:
        """Note that a member is gone: perhaps nobody is left to wait for."""
        self._news.set()

    def last_answer(self) -> Answer | None:
        """The last result, for members that may still ask when this process is gone."""
        topic = next(reversed(self._known), None)
        return None if topic is None else Answer(topic, self._known[topic])

    def _asked(self, origin: int, topic: str) -> None:
        value = self._value(topic)
        if value is None:
            self._seal(topic)
            work = self._pending.get(topic)
            if work is not None and not work.done():  # it ends in a moment, and only then it is known how
                work.add_done_callback(lambda _: self._say(origin, Answer(topic, self._value(topic))))
                return
        self._say(origin, Answer(topic, value))

    def _value(self, topic: str) -> bytes | None:
        work = self._pending.get(topic)
        if work is not None and work.is_success():
            return YES if np.asarray(work.result()).item() else NO
        return self._known.get(topic)

    def _awaited(self, asked: list[int], answers: dict[int, bytes | None]) -> set[int]:
        return self._reachable().intersection(asked) - answers.keys()

    def _seal(self, topic: str) -> None:
        """Keep the operation from ending here by itself: break the group, as the member that asks knows."""
        self._sealed.add(topic)
        for group in self._groups:
            if topic.startswith(f"agree/{group.roster.context:x}/"):
                group.break_group(_without(), tell=False)

    def _know(self, topic: str, value: bytes) -> None:
        self._known[topic] = value
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        self._news.set()


def _without() -> GroupBroken:
    return GroupBroken("a member is gone, and the others agree without it", hint="Call rebuild()")
