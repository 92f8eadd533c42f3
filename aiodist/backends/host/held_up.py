"""The receives that are posted two turns of the loop later, since one before them may have been given up.

A task that is cancelled is told in a later turn of the loop: in the next one, and a task inside of it in the
one after. Until then its receive keeps its place, and the message that it has got. A receive that is posted
meanwhile would get the message behind that: the two would come in the wrong order, or fail where they differ
in size. So a receive waits while nobody has the result of one before it with its tag and source.
"""

from __future__ import annotations

import weakref
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from aiodist.backends.base import Operation
from aiodist.backends.work import Work

ANY = -1
"""The source of a receive from any member."""

_MANY = 64  # receives that are remembered of a tag before those are dropped whose results are known


class _Untold(deque[weakref.ref[Work[Any]]]):
    """Receives of one tag and source, in order, of which the results may not be known.

    Attributes:
        room: how many there may be before those are dropped of which they are.
    """

    room = _MANY

    def add(self, work: Work[Any]) -> None:
        """Add one, which need not be such that it can be given up yet."""
        if len(self) >= self.room:
            kept = list(filter(_is_untold, self))
            self.clear()
            self.extend(kept)
            self.room = 2 * len(kept) + _MANY
        self.append(weakref.ref(work))

    def without_told(self) -> _Untold:
        """Drop the first ones of which the results are known → the others."""
        while self and not _is_untold(self[0]):
            self.popleft()
        return self


class HeldUp:
    """The receives of one group on one rank that wait for that.

    Attributes:
        untold: by tag and source, in order, those of which the results may not be known. The engine looks
            here, too, and at the next one.
        held: by tag, those that are posted later.
    """

    def __init__(self) -> None:
        self.untold: dict[int, dict[int, _Untold]] = {}  # tag → source → receives, in order
        self._room = _MANY  # tags that are remembered before those are dropped of which all results are known
        self.held: dict[int, deque[Operation]] = {}  # by tag

    def is_behind(self, work: Work[Any], tag: int, source: int) -> bool:
        """Note a receive from a source (-1: from any) that begins now → whether it has to wait."""
        by_source = self.untold.get(tag)
        if by_source is None:
            if len(self.untold) >= self._room:
                self._forget_told()
            by_source = self.untold[tag] = {}
        behind = tag in self.held or any(untold.without_told() for untold in _of(by_source, source))
        untold = by_source.get(source)
        if untold is None:
            untold = by_source[source] = _Untold()
        untold.add(work)
        return behind

    def _forget_told(self) -> None:
        """Forget the tags of which all results are known: a program may use a new one for each message."""
        for tag, by_source in list(self.untold.items()):
            if not any(map(_is_untold, chain.from_iterable(by_source.values()))):
                del self.untold[tag]
        self._room = 2 * len(self.untold) + _MANY

    def hold(
        self, operation: Operation, loop: AbstractEventLoop, post: Callable[[Operation], object]
    ) -> None:
        """Have `post(operation)` called two turns later, unless it was removed by then."""
        self.held.setdefault(operation.tag, deque()).append(operation)
        loop.call_soon(loop.call_soon, self._release, operation, post)

    def _release(self, operation: Operation, post: Callable[[Operation], object]) -> None:
        if self.remove(operation):
            post(operation)

    def remove(self, operation: Operation) -> bool:
        """Take a receive out → whether it was here."""
        held = self.held.get(operation.tag)
        if held is None or operation not in held:
            return False
        held.remove(operation)
        if not held:
            del self.held[operation.tag]
        return True

    def holds(self, tag: int) -> bool:
        """Whether receives with a tag wait."""
        return tag in self.held

    def take(self) -> list[Operation]:
        """Take all out, in order."""
        taken = [operation for held in self.held.values() for operation in held]
        self.held.clear()
        return taken


def _of(by_source: dict[int, _Untold], source: int) -> Iterable[_Untold]:
    """The receives that may get a message which one from a source may get."""
    if source == ANY:
        return by_source.values()
    mine, anybody = by_source.get(source), by_source.get(ANY)
    return [untold for untold in (mine, anybody) if untold]


def _is_untold(reference: weakref.ref[Work[Any]]) -> bool:
    work = reference()
    return work is not None and work._may_be_given_up()
