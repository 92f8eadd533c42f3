"""The receives that are posted two turns of the loop later, since one before them may have been given up.

A task that is cancelled is told in a later turn of the loop: in the next one, and a task inside of it in the
one after. Until then its receive keeps the message that it has got. If a receive that is posted meanwhile got
the message behind that, the two would come in the wrong order. So a receive waits while nobody has the result
of one before it with its tag. One that a task is suspended in is no reason to wait: it is taken back within
the cancel (`work._Waiter`).
"""

from __future__ import annotations

import weakref
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import Any

from aiodist.backends.base import Operation
from aiodist.work import Work

_MANY = 64  # receives that are remembered of a tag before those are dropped whose results are known


class HeldUp:
    """The receives of one group on one rank that wait for that."""

    def __init__(self) -> None:
        self._untold: dict[int, deque[weakref.ref[Work[Any]]]] = {}  # tag → receives, in order
        self._room = _MANY  # tags that are remembered before those are dropped of which all results are known
        self._held: dict[int, deque[Operation]] = {}  # by tag

    def is_behind(self, work: Work[Any], tag: int) -> bool:
        """Note a receive that begins now → whether it has to wait."""
        untold = self._untold.get(tag)
        if untold is None:
            if len(self._untold) >= self._room:
                self._forget_told()
            untold = self._untold[tag] = deque()
        while untold:
            first = untold[0]()
            if first is not None and first._may_be_given_up():
                break
            untold.popleft()
        behind = bool(untold) or tag in self._held
        untold.append(weakref.ref(work))
        if len(untold) > _MANY:
            self._untold[tag] = deque(filter(_is_untold, untold))
        return behind

    def _forget_told(self) -> None:
        """Forget the tags of which all results are known: a program may use a new one for each message."""
        self._untold = {tag: untold for tag, untold in self._untold.items() if any(map(_is_untold, untold))}
        self._room = 2 * len(self._untold) + _MANY

    def hold(
        self, operation: Operation, loop: AbstractEventLoop, post: Callable[[Operation], object]
    ) -> None:
        """Have `post(operation)` called two turns later, unless it was removed by then."""
        self._held.setdefault(operation.tag, deque()).append(operation)
        loop.call_soon(loop.call_soon, self._release, operation, post)

    def _release(self, operation: Operation, post: Callable[[Operation], object]) -> None:
        if self.remove(operation):
            post(operation)

    def remove(self, operation: Operation) -> bool:
        """Take a receive out → whether it was here."""
        held = self._held.get(operation.tag)
        if held is None or operation not in held:
            return False
        held.remove(operation)
        if not held:
            del self._held[operation.tag]
        return True

    def holds(self, tag: int) -> bool:
        """Whether receives with a tag wait."""
        return tag in self._held

    def take(self) -> list[Operation]:
        """Take all out, in order."""
        taken = [operation for held in self._held.values() for operation in held]
        self._held.clear()
        return taken


def _is_untold(reference: weakref.ref[Work[Any]]) -> bool:
    work = reference()
    return work is not None and work._may_be_given_up()
