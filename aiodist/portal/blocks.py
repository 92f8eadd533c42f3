"""Async context managers for synchronous code: entered by `with`, and left whatever interrupts that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from aiodist.portal.loop_thread import Reply


class BlockSeat:
    """A caller inside a `with` of the portal: for the loop one issuer, in one context, as a task would be.

    Attributes:
        context: in which the loop runs the calls.
        depth: blocks that are entered and not left.
    """

    __slots__ = ("context", "depth")

    def __init__(self) -> None:
        self.context: Context = copy_context()
        self.depth = 0


def caller() -> object:
    """The caller: this thread, or, where it runs a loop of its own, the task."""
    task = None if asyncio._get_running_loop() is None else asyncio.current_task()
    return threading.current_thread() if task is None else task


def surely(action: Callable[[], None], times: int = 100) -> None:
    """Do something to its end, which may be begun again, as often as it is interrupted; raise that then."""
    try:
        action()
    except BaseException:
        if times:
            try:
                surely(action, times - 1)
            except BaseException:  # before its `try`
                action()
                raise
        raise


class Block:
    """One entering of a context manager by a caller, until it leaves it.

    Args:
        portal: on whose loop the manager is.
        manager: the async context manager.

    Attributes:
        entrant: the caller.
        seat: the caller's.
        entering, leaving: the replies of both methods.
        inside: it was entered and not left.
        thread: that enters, or leaves, it.
    """

    __slots__ = ("_portal", "entering", "entrant", "inside", "leaving", "manager", "seat", "thread")

    def __init__(self, portal: Any, manager: Any) -> None:
        self._portal = portal
        self.manager = manager
        self.entering, self.leaving = Reply(), Reply()
        self.entrant = caller()
        self.seat: BlockSeat = portal._seats.get(self.entrant) or BlockSeat()
        self.inside = False
        self.thread = threading.get_ident()

    def step_out(self) -> None:
        """Have the calls of this caller belong to the block no more. May be repeated."""
        if self.inside:
            self.inside = False
            self.seat.depth -= 1
            if not self.seat.depth:
                self._portal._seats.pop(self.entrant, None)

    def break_off(self, surely: bool = False) -> None:
        """Leave it: its caller was interrupted as it entered or left it. See `Portal.break_off`."""
        self._portal.break_off(self, surely)


class _Leaving:
    """`SyncContext.__exit__`: a function of its own for each `with`, and no method.

    CPython looks at signals behind the call by which a `with` ends where that calls a bound method, and not
    where it calls a Python function. An interrupt there would come when the block has ended well: the
    messages of its receives would be in tensors that the caller takes for empty, and go to no other receive.
    """

    def __get__(self, context: Any, owner: Any) -> Callable[..., Any]:
        if context is None:
            return lambda context, *error: self.__get__(context, owner)(*error)

        def leave(kind: Any, raised_inside: Any, trace: Any) -> Any:
            """Leave the caller's innermost block."""
            block: Block | None = None
            try:  # at once: for what strikes before there is `__del__`
                block = context._innermost()
                block.thread = threading.get_ident()
                block.step_out()
                context._blocks.remove(block)
                context._portal._give_up_interrupted()
                error = kind, raised_inside, trace
                context._portal._ask(block.seat, context._manager.__aexit__, error, None, block.leaving)
                block.leaving.wait()
                return block.leaving.get()
            except BaseException as raised:
                if block is None:  # struck at the very beginning
                    block = context._innermost()
                if raised is not block.leaving.error:  # Ctrl-C, wherever it struck
                    context._portal._interrupted[block.leaving] = block.break_off, block.thread
                    try:
                        surely(block.break_off)
                    except BaseException:  # before the first line of `surely`
                        try:
                            surely(block.break_off)
                        except BaseException:
                            try:
                                surely(block.break_off)
                            except BaseException:
                                surely(block.break_off)
                                raise
                            raise
                        raise
                    finally:
                        if block in context._blocks:
                            context._blocks.remove(block)
                raise

        return leave


class SyncContext:
    """An async context manager as a plain one, to be entered as often as that can be, by any thread. It and
    the calls of its caller share a seat."""

    def __init__(self, portal: Any, manager: Any) -> None:
        self._portal = portal
        self._manager = manager
        self._blocks: list[Block] = []  # that are entered, the innermost of each caller last

    def __enter__(self) -> Any:
        portal, block = self._portal, Block(self._portal, self._manager)
        try:
            portal._give_up_interrupted()
            portal._ask(block.seat, self._manager.__aenter__, reply=block.entering)
            block.entering.wait()
            entered = block.entering.get()
            if isinstance(entered, SyncContext):
                entered = self
            # No call from here on: an interrupt strikes before, or in the block, which is left then.
            portal._seats[block.entrant] = block.seat
            block.seat.depth += 1
            block.inside = True
            self._blocks += [block]
        except BaseException as error:
            if error is not block.entering.error:  # Ctrl-C: nobody will leave the block
                portal._interrupted[block.leaving] = block.break_off, block.thread  # as in `Portal._call`
                try:
                    surely(block.break_off)
                except BaseException:  # before the first line of `surely`
                    try:
                        surely(block.break_off)
                    except BaseException:
                        try:
                            surely(block.break_off)
                        except BaseException:
                            surely(block.break_off)
                            raise
                        raise
                    raise
            raise
        return entered

    __exit__ = _Leaving()

    def _innermost(self) -> Block:
        """The block that the caller leaves: its own last one, or, where it has entered none, the last one."""
        me, blocks = caller(), list(self._blocks)  # a copy: other threads enter and leave meanwhile
        return ([block for block in blocks if block.entrant is me] or blocks)[-1]

    def __del__(self) -> None:
        # An interrupt struck before the first line of `__exit__`, and `with` has let go of this.
        for block in self._blocks:
            if block.inside:
                self._portal.drop(block)
