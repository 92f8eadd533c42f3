"""Changes that happen once, however often etcd is asked for them.

A transaction that changes something also leaves a mark, a key that names the call, and has the condition
that the mark is not there yet. Whoever finds it knows that an earlier attempt, whose answer was lost, has
been carried out. The mark holds what else its answer said.

Marks that are of no more use are deleted with a later change. The mark of a call that was sent more than
once is not: an attempt may still be under way somewhere when the call is long answered, and must find it. It
goes with the run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from aiodist.base.backoff import Backoff
from aiodist.base.errors import WireError
from aiodist.base.sanitize import one_line
from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.run import EtcdRun
from aiodist.rendezvous.etcd.words import Item, Json, TransactionOutcome
from aiodist.rendezvous.rules import RefusedError

T = TypeVar("T")

_SWEPT = 20  # marks that one change takes along
_BACKOFF = (0.002, 0.08)  # seconds between attempts where others change the same key


@dataclass(slots=True)
class Mark:
    """One call that changes something. `doubtful`: etcd may see it again when it is over."""

    key: bytes
    doubtful: bool = False


@dataclass(slots=True)
class Decision(Generic[T]):
    """Decision about what a key holds.

    Attributes:
        answer: of the call.
        value: what to write; None deletes the key. Means nothing where `leave` is set.
        leave: change nothing.
    """

    answer: T
    value: bytes | None = None
    leave: bool = False


class ChangeLedger:
    """The changes of one process in its run."""

    def __init__(self, run: EtcdRun) -> None:
        self._run = run
        self._numbers = itertools.count()
        self._useless: list[bytes] = []
        # This process's calls for one key go one after the other; who has or wants the lock keeps it here.
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    def mark(self) -> Mark:
        """A name for a call that is about to be sent."""
        return Mark(self._run.base + b"done/%s/%d" % (self._run.client, next(self._numbers)))

    async def attempt(
        self,
        mark: Mark,
        conditions: list[Json],
        operations: Sequence[Json],
        otherwise: Sequence[Json] = (),
        *,
        note: bytes = b"",
        deadline: float,
    ) -> TransactionOutcome:
        """Make a change if its conditions hold and it was not made before.

        Returns:
            `succeeded` where it is made, perhaps by an attempt before, whose `note` is there then.

        Args:
            otherwise: what to read where they do not.
            note: left with the mark.
        """
        swept = self._useless[:_SWEPT]
        success = [*operations, words.put(mark.key, note, self._run.lease), *map(words.delete, swept)]
        conditions = [words.unchanged(mark.key, 0), *conditions]
        failure = [words.get(mark.key), *otherwise]
        sent, mark.doubtful = mark.doubtful, True  # until there is an answer
        found = await self._run.txn(conditions, success, failure, deadline=deadline)
        mark.doubtful = sent or found.again
        if found.succeeded:
            if swept:
                self._useless = [key for key in self._useless if key not in swept]
            if not mark.doubtful:
                self._useless.append(mark.key)
            return found
        made = found.ranges.pop(0).item
        if made is not None:
            found.succeeded, found.note, found.revision = True, made.value, made.revision
        return found

    async def change(self, operations: Sequence[Json], deadline: float) -> int:
        """Make a change on no condition → the revision at which it was made."""
        return (await self.attempt(self.mark(), [], operations, deadline=deadline)).revision

    async def swap(
        self,
        key: bytes,
        decide: Callable[[bytes | None], Decision[T]],
        deadline: float,
        lease: int | None = None,
    ) -> T:
        """Change a key according to what it holds → the answer.

        Args:
            decide: what to do about a value, None where the key is absent; may raise RefusedError.
            lease: of a key that is new; None: the run's. One that is there keeps the lease that it has.
        """
        async with self._turns.setdefault(key, asyncio.Lock()):
            mark, backoff = self.mark(), Backoff(*_BACKOFF, jitter=1.0)
            decisions: list[Decision[T]] = []  # that were tried; an attempt notes the number of its own
            held: Item | None = None
            known = False  # it is not worth a question first whether a key is absent
            while True:
                try:
                    decided: Decision[T] | None = decide(None if held is None else held.value)
                except RefusedError:
                    if known and not mark.doubtful:
                        raise
                    decided = None
                if decided is None or decided.leave:
                    if mark.doubtful:
                        # An attempt that is still under way must not change later what is left alone now.
                        tried = await self.attempt(mark, [], [], deadline=deadline)
                        if tried.note:  # an empty one says that the call was given up
                            return _noted(decisions, tried.note)
                        mark, known = self.mark(), False
                    if known and decided is not None:
                        return decided.answer
                    [found] = await self._run.read(words.get(key), deadline=deadline)
                    held, known = found.item, True
                    continue
                conditions = [words.unchanged(key, 0 if held is None else held.revision)]
                hangs_on = (lease or self._run.lease) if held is None else None
                write = (
                    words.delete(key) if decided.value is None else words.put(key, decided.value, hangs_on)
                )
                note = b"%d" % len(decisions)
                decisions.append(decided)
                tried = await self.attempt(
                    mark, conditions, [write], [words.get(key)], note=note, deadline=deadline
                )
                if tried.succeeded:
                    return decided.answer if tried.note is None else _noted(decisions, tried.note)
                if known:  # others change it too
                    await asyncio.sleep(backoff.next())
                held, known = tried.ranges[0].item, True


def _noted(decisions: Sequence[Decision[T]], note: bytes) -> T:
    """The answer of the decision that an attempt has carried out whose answer was lost."""
    try:
        return decisions[int(note)].answer
    except (ValueError, IndexError):
        raise WireError(f"etcd holds something else than the mark of a call: {one_line(note, 100)}") from None
