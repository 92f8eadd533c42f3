"""Operations that `coalesce` holds back: they have their numbers, and begin together when the block is left.

A block belongs to the task that entered it; tasks, timers and callbacks that were born inside are others.
What is held back stands in one line for each group, in the order of issue. Collectives begin in the order of
their numbers: an operation that is to begin has those before it begin first. So no rank waits for a number
that cannot begin, and all ranks divide a batch alike where another task issues something in between.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

from aiodist.backends.base import Operation
from aiodist.backends.carriers import Carriers
from aiodist.backends.work import Work
from aiodist.base.errors import UsageError
from aiodist.base.types import Kind
from aiodist.group.numbers import Numbers

_stands_for: weakref.WeakKeyDictionary[asyncio.Future[Any], object] = weakref.WeakKeyDictionary()


def issuer() -> object:
    """The task that issues now, or the issuer for which it stands; None in a callback."""
    task = asyncio.current_task()
    return task if task is None or not _stands_for else _stands_for.get(task, task)


def stand_for(task: asyncio.Future[Any], other: object) -> None:
    """Let what a task issues count as issued by somebody else: by a thread that waits for it."""
    _stands_for[task] = other


class Batches:
    """The open blocks of one group, and what they hold back.

    Args:
        carriers: the group's.
        numbers: likewise; collectives that are held back are noted there.

    Attributes:
        open: the block of each issuer that is in one.
    """

    def __init__(self, carriers: Carriers, numbers: Numbers) -> None:
        self.open: dict[object, Batch] = {}
        self._carriers = carriers
        self._numbers = numbers
        self._line: list[Held] = []

    def hold(self, operation: Operation, start: Callable[[], None], at_once: bool) -> bool:
        """Hold an operation back if its issuer is in a block. If not, what has to begin before it begins now.

        Args:
            operation: has its number.
            start: begins it.
            at_once: its call cannot be held back.
        """
        call, work = operation.call, operation.work
        message = (call.kind, operation.tag) if call.message else None
        batch = self.open.get(issuer())
        if batch is not None and not at_once:
            if message is None:
                self._numbers.hold(call.seq)
            self._carriers.hold(operation)  # now: the caller may use another stream when the block ends
            self._add(Held(batch, work, start, message))
            batch.works.append(work)
            return True
        if message is None:
            self.begin()
        else:  # messages of one tag have an order among each other, and none with anything else
            due = [held for held in self._line if held.message == message]
            self._start(due, [held for held in self._line if held.message != message])
        return False

    def follow(self, first: Work[Any], work: Work[Any], start: Callable[[], None]) -> None:
        """Start what is made of several operations: held back if the first of them is."""
        batch = next((held.batch for held in reversed(self._line) if held.work is first), None)
        if batch is not None:
            self._add(Held(batch, work, start, None))
        else:
            start()
            batch = self.open.get(issuer())
        if batch is not None and first in batch.works:
            batch.works[-1 - batch.works[::-1].index(first)] = work  # leaving waits for the whole

    def include(self, work: Work[Any]) -> None:
        """Have the caller's block, if it is in one, wait for an operation that is not held back."""
        batch = self.open.get(issuer())
        if batch is not None:
            batch.works.append(work)

    def _add(self, held: Held) -> None:
        held.work._hold_back(True)
        self._line.append(held)

    def mine(self) -> bool:
        """Whether something of the caller's is held back."""
        if not self.open:
            return False
        batch = self.open.get(issuer())
        return any(held.batch is batch for held in self._line)

    def begin(self, batch: Batch | None = None) -> None:
        """Begin all that is held back, or all up to the last of one block."""
        last = len(self._line)
        while batch is not None and last and self._line[last - 1].batch is not batch:
            last -= 1
        self._start(self._line[:last], self._line[last:])

    def _start(self, due: list[Held], others: list[Held]) -> None:
        if not due:
            return
        self._line = others
        # Each block's in a batch of its own: ranks may leave two blocks in different orders.
        for _, block in groupby(due, lambda held: id(held.batch)):
            self._carriers.batch(True)
            try:
                for held in block:
                    held.work._hold_back(False)
                    if not held.work.done():  # else it is a receive that was taken back
                        held.start()
            finally:
                self._carriers.batch(False)


class Batch:
    """An async context manager, from `coalesce`, that holds operations back until it is left.

    Args:
        batches: the group's.
        group: what users hold of it; it is kept, as `async with` keeps what it is about.

    Attributes:
        works: of what was issued inside.
    """

    def __init__(self, batches: Batches, group: object) -> None:
        self.works: list[Work[Any]] = []
        self._batches = batches
        self._group = group
        self._issuer: object = None
        self._used = self._part = False
        self._taken: list[tuple[Work[Any], Any]] = []  # receives that have ended, and what takes them back

    async def __aenter__(self) -> Batch:
        if self._used:
            raise UsageError("a batch is used once", hint="Call coalesce() again")
        self._used = True
        self._issuer = issuer()
        outer = self._batches.open.setdefault(self._issuer, self)
        self._part = outer is not self
        return outer

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._part:
            return
        self._batches.open.pop(self._issuer, None)
        waited = [work for work in self.works if not work._awaited]
        if kind is not None:
            for work in reversed(waited):
                work._ends_unbegun()  # nobody awaits them: the receives among them never begin
        self._batches.begin(self)
        if kind is None:
            await self._all(waited)

    async def _all(self, works: list[Work[Any]]) -> None:
        """Wait for operations. The block is the one await of them all: where that ends by an error, receives
        are taken back, also those of which the messages have come. One that another task awaits is not."""
        for work in works:
            work._let_be_dropped()  # from here on another task's await is a second one
        try:
            for work in works:
                await (work if work._take_back is None else work._with_others())
            self._taken = [(work, work._take_back) for work in works if work._take_back is not None]
        except BaseException:  # cancelled, or one of them failed
            # From the last on: else each message would go to the next receive of the block first.
            for work in reversed(works):
                work._give_up()
            raise
        finally:
            for work in works:
                work._goes_on_to_be_awaited(None)

    def give_back(self) -> None:
        """Take the receives back, of which all messages have come: the caller was interrupted as they did."""
        for work, take_back in self._taken:
            work._goes_on_to_be_awaited(take_back)
            work._give_up()


class Held(NamedTuple):
    """One operation that is held back.

    Attributes:
        batch: whose.
        work: its handle.
        start: begins it.
        message: kind and tag of a message, which have an order among each other; None for all else.
    """

    batch: Batch
    work: Work[Any]
    start: Callable[[], None]
    message: tuple[Kind, int] | None
