"""`agree`: the same answer on all survivors, also if members die meanwhile.

While all is well it is one all_reduce of a byte. Where that fails on some, it may have ended well on others,
so they ask: every living member says how it ended there, and a member that is asked can no longer end it by
itself. If one has an answer, that is it; if none has, it is no, or an error where members disagreed about the
operation (law 4). What was found goes to the arbiter, so that two who ask do not find two answers when
a member dies between them.

The comment below says why members that go on together have the same answer.

Source of the idea: agreement in ULFM (Herault et al., "Practical scalable consensus", 2015), with the arbiter
in the place of its tree.
"""

# Why survivors have the same answer
#
# Survivors are the members of one next epoch. A member never forms a draft with one that it counts as gone
# (`Assembly`), and nobody comes back. So (1): no survivor counted another as gone when its agreement ended.
#
# A member has an answer by the all_reduce itself (it *ended well* there), or by the arbiter.
#
# (2) All where it ended well have the same answer, since every member had said its flag. What is told of it
# is that answer, also at third hand. It is found as *certain*: `Finding.without` is empty. So is a no of one
# that said no itself: nowhere can it end with yes. What is certain holds for everybody who asks the arbiter.
#
# (3) Else one has found that it ended well nowhere, as far as it could ask: all that it did not count as gone
# have answered that it did not end there, and never will. So all where it ended well are in `without`. A
# member that was cut off finds that at once, and asks the arbiter first. Its finding must not hold for the
# others, which may have a yes among them. But where a member has died, and has told its yes to some, the
# same kind of finding has to hold for all.
#
# So the arbiter is asked in places, one after the other, and keeps one finding in each. A finding that is
# not certain holds for its finder at once. The others ask the arbiter, too, whether it *holds*. Each proposes
# what it sees: that it holds, if all in `without` are gone; that it does not, if the finder is gone. It waits
# for one of the two: a finder that lives has told the others who is gone. Then
#     - where it holds, members that are not in `without` have that answer, and give up who is in `without`;
#     - where it holds, members that are in `without` give up all others, and go on to the next place;
#     - where it does not hold, members give up the finder, and go on to the next place.
# To give up is to count as gone. Mostly they do already; they need not where news comes by several ways.
# Whoever goes on to the next place gives up when it has an answer, and only if that is another one.
#
# Say that survivors s and t had different answers by the arbiter, s in place i, and t not before that. If the
# finding there is certain, t has taken it, too. Else, if t had not, it came by that place: it does not hold,
# and s is the finder (nobody else takes it), whom t has given up; or it holds, t is in `without` and s is
# not, and t has given up s. Both contradict (1). Say that it ended well at t. If the finding that s took is
# certain, it is t's answer by (2). Else t is in `without` by (3), and s has given it up: contradiction.
#
# Nothing of that depends on who dies when, on how the network is cut, or on the arbiter. A finder that dies
# leaves a finding that holds or does not. A finder has its answer and finds no more, so there are no more
# places than members.

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Set

import numpy as np

from aiodist.backends.work import Work
from aiodist.base.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    Evicted,
    GroupBroken,
    QuorumLost,
    WireError,
)
from aiodist.base.types import AS, Kind, ReduceOp
from aiodist.group.core import GroupCore
from aiodist.group.membership.arbiter import Arbiter
from aiodist.group.membership.finding import Finding, decode_finding
from aiodist.group.membership.messages import Answer, Ask, MemberMessage
from aiodist.group.requests import internal
from aiodist.net.within import within

logger = logging.getLogger("aiodist.group.agreement")

YES, NO, MISMATCH = b"\x01", b"\x00", b"\x02"
_HOLDS, _VOID = b"\x01", b"\x00"

_KEPT = 128  # answers of a group that are kept for members that ask; an operation is asked for soon or never
_GROUPS = 256  # of which answers are kept
_TOLD = 2  # answers of each group that a member tells when it leaves


class Agreements:
    """One process's agreements in one epoch.

    Args:
        groups: all groups of this process in this epoch.
        say: tells a message to a rank, or to all others (None).
        reachable: ranks that are not known to be gone, this process's included.
        give_up: counts ranks as gone from now on.
        evicted: why this process has no say any more, as an error; None while it has.
        arbiter: the epoch's.
    """

    def __init__(
        self,
        groups: Iterable[GroupCore],
        say: Callable[[int | None, MemberMessage], None],
        reachable: Callable[[], set[int]],
        give_up: Callable[[Set[int]], None],
        evicted: Callable[[], Evicted | None],
        arbiter: Arbiter,
    ) -> None:
        self._groups = groups
        self._say = say
        self._reachable = reachable
        self._give_up = give_up
        self._evicted = evicted
        self._arbiter = arbiter
        self._sealed: set[str] = set()
        self._pending: dict[str, Work[bool]] = {}
        self._known: dict[str, dict[str, bytes]] = {}  # by group and topic: how it ended where it ended well
        self._ended: dict[str, set[int]] = {}  # by topic that is asked for: where it did not
        self._news = asyncio.Event()

    async def agree(self, group: GroupCore, flag: bool, timeout: float) -> bool:
        """Agree with all members on a flag, whatever fails; see `ProcessGroup.agree`."""
        mine = np.array([1 if flag else 0], np.uint8)
        # Counted apart: after a death members may have issued different numbers of operations.
        count = group.numbers.next_of("agreements") + 1
        topic = f"{_name(group)}/{count}"
        if topic in self._sealed:
            group.break_group(_without(), tell=False)
        asked = internal(Kind.all_reduce, mine, reduce=ReduceOp.MIN, detail=f"{AS}agree()")
        work = group.issue(asked, timeout, True, at_once=True)
        self._pending[topic] = work
        try:
            await work
            answer = YES if mine[0] else NO
            self._know(topic, answer)
        except Evicted:
            raise
        except GroupBroken as error:
            # A mismatch may be of a later operation, which others issued when they had the answer.
            otherwise = MISMATCH if isinstance(error, CollectiveMismatch) else NO
            answer = await self._resolve(group, topic, timeout, otherwise, otherwise is NO and not flag)
            if answer == MISMATCH:
                raise
        finally:
            self._pending.pop(topic, None)
        return answer == YES

    async def _resolve(
        self, group: GroupCore, topic: str, timeout: float, otherwise: bytes, certain: bool
    ) -> bytes:
        """Find out how it ended → the answer of all survivors.

        Args:
            otherwise: the answer where it ended well nowhere.
            certain: nowhere can it end with another one.
        """
        me, members = group.roster.me, set(group.roster.ranks)
        await self._ask(topic, members - {me}, timeout)
        passed: list[tuple[bytes, set[int]]] = []  # answers of findings not taken, and who may have them
        for place in itertools.count(1):
            value, without = self._value(topic), members - self._reachable()
            if value is not None or certain:
                without = set()
            mine = Finding(value or otherwise, me, tuple(sorted(without)))
            try:
                found = decode_finding(await self._rule(f"{topic}/{place}", mine.encode(), timeout))
            except WireError as error:
                raise QuorumLost(f"the arbiter cannot be read: {error}") from error
            logger.debug("place %d of %s: %s; found here was %s", place, topic, found, mine)
            if found.by == me or not found.without:
                break
            holds = await self._holds(found, place, topic, timeout)
            if holds and me not in found.without:
                self._give_up(set(found.without))
                break
            passed.append((found.value, members - set(found.without) if holds else {found.by}))
        for answer, others in passed:
            if answer != found.value:
                self._give_up(others)
        self._ended.pop(topic, None)
        return found.value

    async def _ask(self, topic: str, others: set[int], timeout: float) -> None:
        """Ask members how it ended, until one knows, or all have answered that are not gone."""
        ended = self._ended.setdefault(topic, set())
        logger.debug("how did %s end? asking %d ranks", topic, len(others))
        for rank in others:
            self._say(rank, Ask(topic))

        def awaited() -> set[int]:
            return (self._reachable() & others) - ended

        await self._until(lambda: self._value(topic) is not None or not awaited(), awaited, timeout)

    async def _holds(self, found: Finding, place: int, topic: str, timeout: float) -> bool:
        """Whether another member's finding holds for those that its finder could ask."""
        without = set(found.without)

        def left() -> set[int]:
            return self._reachable() & without

        await self._until(lambda: not left() or found.by not in self._reachable(), left, timeout)
        proposed = _VOID if left() else _HOLDS
        ruled = await self._rule(f"{topic}/{place}/holds", proposed, timeout)
        logger.debug("place %d of %s: proposed %s, ruled %s", place, topic, proposed.hex(), ruled.hex())
        return ruled == _HOLDS

    async def _until(self, over: Callable[[], bool], awaited: Callable[[], set[int]], timeout: float) -> None:
        """Wait for news, until it is enough.

        Raises:
            Evicted: this process has no say any more.
            CollectiveTimeout: it takes too long; names who is awaited.
        """
        async with within(timeout, lambda: CollectiveTimeout(timeout, sorted(awaited()))):
            while self._has_say() and not over():
                self._news.clear()
                await self._news.wait()

    async def _rule(self, topic: str, value: bytes, timeout: float) -> bytes:
        self._has_say()
        ruled = await self._arbiter.rule(topic, value, timeout)
        self._has_say()
        return ruled

    def _has_say(self) -> bool:
        """Raise `Evicted` if this process has no say any more; else True."""
        if (error := self._evicted()) is not None:
            raise error
        return True

    def hear(self, origin: int, message: MemberMessage) -> None:
        """Take a question, or an answer."""
        match message:
            case Ask(topic):
                self._asked(origin, topic)
            case Answer(topic, value):
                if value is not None:  # asked for, or of one who left
                    self._know(topic, value)
                elif topic in self._ended:
                    self._ended[topic].add(origin)
                self._news.set()

    def lose(self) -> None:
        """Note that a member is gone, or this process: perhaps nobody is left to wait for."""
        self._news.set()

    def last_answers(self) -> list[Answer]:
        """The last results of each group, for members that may still ask when this process is gone."""
        return [
            Answer(topic, value)
            for answers in self._known.values()
            for topic, value in list(answers.items())[-_TOLD:]
        ]

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
        """How it ended where it ended well, as far as it is known here."""
        work = self._pending.get(topic)
        if work is not None and work.is_success():
            return YES if np.asarray(work.result()).item() else NO
        return self._known.get(_group_of(topic), {}).get(topic)

    def _seal(self, topic: str) -> None:
        """Keep the operation from ending here by itself: break the group, as the member that asks knows."""
        self._sealed.add(topic)
        for group in self._groups:
            if _group_of(topic) == _name(group):
                group.break_group(_without(), tell=False)

    def _know(self, topic: str, value: bytes) -> None:
        answers = self._known.pop(_group_of(topic), {})
        self._known[_group_of(topic)] = answers  # the last
        answers.setdefault(topic, value)
        for kept, most in ((answers, _KEPT), (self._known, _GROUPS)):
            if len(kept) > most:
                kept.pop(next(iter(kept)))
        self._news.set()


def _name(group: GroupCore) -> str:
    """The first part of its topics."""
    return f"agree/{group.roster.context:x}"


def _group_of(topic: str) -> str:
    return topic.rpartition("/")[0]


def _without() -> GroupBroken:
    return GroupBroken("a member is gone, and the others agree without it", hint="Call rebuild()")
