"""Groups and Works as synchronous code sees them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    overload,
)

from aiodist.backends.work import Work
from aiodist.base.errors import GroupClosed, UsageError
from aiodist.base.operations import ROLES
from aiodist.base.timeouts import Timeout, seconds
from aiodist.ddp.awaited import Once
from aiodist.group import ProcessGroup
from aiodist.group.batch import Batch, stand_for
from aiodist.group.calls import Messages
from aiodist.group.runtime import init, joining
from aiodist.group.runtime.simulated import refuse_elsewhere
from aiodist.group.services.stream import Stream
from aiodist.portal.blocks import Block, BlockSeat, SyncContext, caller, surely
from aiodist.portal.calling import Calling
from aiodist.portal.loop_thread import LoopThread, Reply
from aiodist.portal.steps import Steps
from aiodist.portal.taking import SyncIterator, TakingRequest, source_of

COLLECTIVES = {kind.name for kind, roles in ROLES.items() if not roles.message} | {
    "agree",
    "all_gather_object",
    "all_reduce_quantized",
    "broadcast_object",
    "gather_object",
    "grow",
    "monitored_barrier",
    "rebuild",
    "scatter_object",
    "shrink",
    "split",
    "together",
}
"""Methods of a group that all its members call in the same order."""

RECEIVES = frozenset({"recv", "recv_object"})
"""Methods of a group that are not begun any more when their caller was interrupted."""

PATIENCE = 1.0
"""Seconds to wait for the loop to take a receive back, when its caller was interrupted."""

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Portal(LoopThread):
    """A thread with an event loop in it, and the way in.

    `init_process_group` makes one for its group; it is `pg.portal`.
    """

    def __init__(self) -> None:
        refuse_elsewhere("a portal", "Await the operations, in a program that aiodist.run runs")
        self._world: ProcessGroup | None = None
        self._groups: weakref.WeakValueDictionary[int, SyncProcessGroup] = weakref.WeakValueDictionary()
        self._steps = Steps()
        # Calls whose callers were interrupted, until the loop has taken them back, and what has it do so. A
        # second interrupt may strike in between; then the next call has it done.
        self._interrupted: dict[Reply, Interrupted] = {}
        self._given_up: dict[Reply, GivenUp] = {}  # those that the loop takes back now
        self._seats: dict[object, BlockSeat] = {}  # of callers inside `with pg.coalesce()` and the like
        super().__init__()

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function on the loop; block until there is a result, and return it.

        Args:
            function: plain or async. What it returns decides: a Work, or another awaitable, is waited for
                (unless `async_op=True` asks for the Work itself, as a `SyncWork`); groups come back as
                `SyncProcessGroup`, mailboxes and streams as `SyncIterator`, async context managers as plain
                ones, the rest as it is.
            args, kwargs: of the function; a `SyncProcessGroup` becomes the group behind it.

        Raises:
            GroupClosed: the portal is closed, or was closed before there was a result.
            UsageError: called on the loop itself, which would wait for itself.
            Exception: what the function, or its Work, raised.
        """
        return self._call(None, function, args, kwargs)

    def step(
        self, group: SyncProcessGroup, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function as `call` does, which uses the caller's arrays, and the group, to its end, also
        where the call is interrupted: `end_steps` waits for it then.

        Args:
            group: the one whose collectives it calls.
            function, args, kwargs: as in `call`.
        """
        return self._call(group, function, args, kwargs)

    def end_steps(self, group: SyncProcessGroup | None = None) -> None:
        """Wait until steps have ended whose callers were interrupted. What they raise nobody is told.

        Args:
            group: whose steps, as the interrupted thread waits for them before it calls its next collective;
                in another thread, which may be a part of the step, this returns at once. None: all steps.
        """
        self._give_up_interrupted()
        behind = _unwrapped(group)
        if self._steps.must_wait(behind):
            self.call(self._steps.end, behind)

    def _call(
        self,
        steps_of: SyncProcessGroup | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        self._give_up_interrupted()
        reply, thread = Reply(), threading.get_ident()
        give_up = functools.partial(self._give_up, reply, steps_of)
        try:
            seat = self._seats.get(caller()) if self._seats else None
            self._ask(seat, function, args, kwargs, reply)
            reply.wait()
            return reply.get()
        except BaseException as error:
            if error is not reply.error:  # Ctrl-C, wherever it struck
                # Before any call: a second one cannot strike up to here.
                self._interrupted[reply] = give_up, thread
                try:
                    surely(give_up)
                except BaseException:  # before the first line of `surely`
                    try:
                        surely(give_up)
                    except BaseException:
                        try:
                            surely(give_up)
                        except BaseException:
                            surely(give_up)
                            raise
                        raise
                    raise
            raise

    def _give_up(self, reply: Reply, steps_of: SyncProcessGroup | None, surely: bool = False) -> None:
        """Take back the receive whose caller was interrupted: its tensor is the caller's then, and its
        message the next one's; likewise a message of the mailbox, a stream's part, or what a training object
        says of its step. Other operations go on. `surely`: however long the loop is blocked."""
        if steps_of is not None:
            self._steps.add(reply, steps_of._group)
        self._post_given_up(reply, self._take_back, surely)

    def break_off(self, block: Block, surely: bool = False) -> None:
        """Leave a block whose caller was interrupted as it entered or left it. Its receives are taken back,
        as where the end is cancelled; what else began goes on. `surely`: however long the loop is blocked,
        but for a block of the user's own, whose end may wait for anything."""
        block.step_out()
        self._post_given_up(block.leaving, self._ending(block), surely, _ours(block))

    def drop(self, block: Block) -> None:
        """Leave a block that nobody will leave, in any thread. The next call of its caller waits for that."""
        self._interrupted[block.leaving] = block.break_off, block.thread
        block.step_out()
        with contextlib.suppress(GroupClosed):
            self.post(self._giving_up(block.leaving, self._ending(block), _ours(block)), anywhere=True)

    def _ending(self, block: Block) -> Callable[[Reply, Reply], None]:
        return functools.partial(self._end_block, block, self.calling())

    def _post_given_up(
        self,
        given_up: Reply,
        answer: Callable[[Reply, Reply], None],
        surely: bool = False,
        ours: bool = True,
    ) -> None:
        """Have the loop call `answer(given_up, reply)`, once, and wait for the reply.

        Args:
            given_up: of the call whose caller was interrupted.
            answer: settles the reply within a few turns of the loop, or when a user's code has ended.
            surely: wait however long the loop is blocked; else for a moment.
            ours: the first is so of `answer`, and not the second, for which a moment is always enough.
        """

        try:
            reply = self.post(self._giving_up(given_up, answer, ours))
            reply.wait(None if surely and ours else PATIENCE)
        except (GroupClosed, UsageError):
            self._interrupted.pop(given_up, None)

    def _giving_up(
        self, given_up: Reply, answer: Callable[[Reply, Reply], None], ours: bool
    ) -> Callable[[Reply], None]:
        """The function that calls `answer(given_up, reply)` on the loop, once."""

        def once(reply: Reply) -> None:
            interrupted = self._interrupted.pop(given_up, None)
            if interrupted is not None:
                self._given_up[given_up] = GivenUp(reply, ours, interrupted[1])
                reply.tell(lambda: self._given_up.pop(given_up, None))
                answer(given_up, reply)
            elif (first := self._given_up.get(given_up)) is not None:  # it was asked for before
                first.reply.tell(functools.partial(self.settle, reply, None))
            else:
                self.settle(reply, None)

        def soon(reply: Reply) -> None:  # a turn later, a call in a block has been issued
            asyncio.get_running_loop().call_soon(once, reply)

        return soon

    def _give_up_interrupted(self) -> None:
        """Take back the calls of this thread of which the loop may not know that they were interrupted, and
        wait for the end of that. What is called next could be answered before, in the same turn."""
        if (self._interrupted or self._given_up) and not self.inside():
            me = threading.get_ident()
            for give_up, thread in list(self._interrupted.values()):
                if thread == me:
                    give_up(surely=True)
            for given_up in list(self._given_up.values()):
                if given_up.ours and given_up.thread == me:
                    given_up.reply.wait()

    def close(self) -> None:
        """Close the world's group gracefully, and end the thread. May be repeated."""
        self._leave(None, None, None)

    def is_world(self, group: ProcessGroup) -> bool:
        """Whether a group is the world's, of any epoch."""
        world = self._world
        return world is not None and world._core.lineage is group._core.lineage

    def closing(self) -> Coroutine[Any, Any, None] | None:
        """The coroutine to run before the loop ends with its process: by an error, where the program does."""
        if self._world is None:
            return None
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)  # what was not caught
        return self._world.__aexit__(None if error is None else type(error), error, None)

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._world is not None:
                with self.passing_over_end():
                    try:
                        if error is None:
                            self.end_steps()
                    except BaseException as late:  # Ctrl-C
                        self.call(self._world.__aexit__, type(late), late, late.__traceback__)
                        raise
                    self.call(self._world.__aexit__, kind, error, trace)
        finally:
            self.stop()
        ended = self.told_end()
        if ended is not None and error is None:
            raise ended

    def _ask(
        self,
        seat: BlockSeat | None,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        reply: Reply | None = None,
    ) -> Reply:
        named = {name: _unwrapped(value) for name, value in (kwargs or {}).items()}
        asked = functools.partial(function, *map(_unwrapped, args), **named)
        return self.post(functools.partial(self._answer_asked, seat, self.calling(), asked), reply)

    def calling(self) -> Calling:
        """What belongs to the calling thread."""
        return Calling(self._world)

    # ── in the loop's thread ─────────────────────────────────────────────────────────────────────────

    def _answer_asked(
        self, seat: BlockSeat | None, calling: Calling, asked: functools.partial[Any], reply: Reply
    ) -> None:
        if reply in self._interrupted:  # the loop was blocked, and tensors may be the caller's by now
            still = _without_receives(asked)
            if still is None:
                self.settle(reply, None)
                return
            asked = still
        if type(asked.func) is TakingRequest:
            reply.question = asked.func
        if seat is None:
            awaited = self._issue(calling, asked, reply)
            if awaited is not None:
                reply.task = self.start(awaited, functools.partial(self._wrap_up, reply))
            return

        async def answer() -> tuple[Any, ...]:
            awaited = self._issue(calling, asked, reply)
            return () if awaited is None else (await awaited,)

        def ended(result: tuple[Any, ...] | None, error: BaseException | None) -> None:
            # Only now, so that the callbacks of the Works that a block has waited for come first.
            if result != ():
                self._wrap_up(reply, None if result is None else result[0], error)

        reply.task = self.start(answer(), ended, seat.context)
        stand_for(reply.task, seat)

    def _issue(self, calling: Calling, asked: functools.partial[Any], reply: Reply) -> Awaitable[Any] | None:
        """Call a function and let what it returns settle the reply. → what has to be awaited first, if so."""
        with calling:
            made = asked()
        held = bool(asked.keywords.get("async_op"))
        if isinstance(made, Work):
            if made._held_back or held:  # what is held back starts later: no waiting here
                work = SyncWork(self, made, held)
                made._let_be_dropped(held)
                self.settle(reply, work)
            else:
                reply.work = made
                self._follow(made, reply)
                made._poll_for_thread()
        elif inspect.isawaitable(made):
            reply.taken_from = source_of(made)
            return made
        else:
            self._wrap_up(reply, made)
        return None

    def _wrap_up(self, reply: Reply, value: Any, error: BaseException | None = None) -> None:
        self.settle(reply, self._wrapped(value), error)

    def _follow(self, work: Work[Any], reply: Reply, *, awaited: bool = True) -> None:
        """Let a Work's end be a reply. `awaited`: the caller waits for that."""
        if work.done():
            self._work_ended(reply, awaited, work)
        else:
            self.watch(reply)
            work._when_done(functools.partial(self._work_ended, reply, awaited))

    def _work_ended(self, reply: Reply, awaited: bool, work: Work[Any]) -> None:
        left = reply.left or reply in self._interrupted
        self._wrap_up(reply, *(work._outcome() if awaited and not left else work._peek()))

    def note_asked(self, work: Work[Any]) -> None:
        """Note that a caller has the error of a Work, which it has not been told of before."""
        if self.inside():
            work._is_asked()
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(work._is_asked)

    def note_held(self, work: Work[Any]) -> None:
        """Note that a caller outside of its block waits for a Work."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(work._is_held)

    @contextlib.contextmanager
    def passing_over_end(self) -> Iterator[None]:
        """Pass over a GroupClosed that says that this portal is closed, and not a group's own."""
        try:
            yield
        except GroupClosed:
            if not self.has_ended():
                raise

    def _end_block(self, block: Block, calling: Calling, given_up: Reply, reply: Reply) -> None:
        """Leave a block; a batch whose end goes on is cancelled, and `reply` waits for that."""
        entering, manager = block.entering, block.manager
        if entering.task is not None and not entering.settled:
            entering.task.cancel()
            again = functools.partial(self._end_block, block, calling, given_up, reply)
            entering.task.add_done_callback(lambda _: again())  # behind the one that settles it
        elif not entering.settled or entering.error is not None:  # it was not entered
            self.settle(entering, None)
            self.settle(reply, None)
        elif given_up.task is None and not given_up.settled:  # the end was not asked for yet
            self.settle(given_up, None)
            error = KeyboardInterrupt()
            leave = functools.partial(manager.__aexit__, KeyboardInterrupt, error, None)
            self._answer_asked(block.seat, calling, leave, reply)
        elif given_up.task is not None and isinstance(manager, Batch):
            task = given_up.task
            if task.done() and not task.cancelled() and task.exception() is None:
                manager.give_back()
            task.cancel()
            task.add_done_callback(lambda _: self.settle(reply, None))
        else:
            self.settle(reply, None)

    def _take_back(self, given_up: Reply, reply: Reply) -> None:
        source, task, work = given_up.taken_from, given_up.task, given_up.work
        given_up.left = True
        if given_up.question is not None:
            given_up.question.take_back()
        if task is not None and source is not None:
            task.cancel()
            task.add_done_callback(functools.partial(self._took_back, given_up, reply))
            if isinstance(source, Once):  # only the wait is cancelled
                given_up.task = self.start(source.ended(), lambda *_: None)
        else:
            if work is not None:
                work._let_be_dropped()  # its caller waited for it
                work._give_up()
                if work.done():
                    self.settle(given_up, None)
            elif task is None:
                self.settle(given_up, None)  # it was not asked for
            self.settle(reply, None)
        self._steps.let_go(given_up)

    def _took_back(self, given_up: Reply, reply: Reply, task: asyncio.Future[Any]) -> None:
        """Give back what was taken for the caller all the same: `given_up` has it by now."""
        source = given_up.taken_from
        if source is not None and not task.cancelled():
            if given_up.error is None:
                source.give_back(given_up.get())
            else:
                source.fail_again(given_up.error)
        self.settle(reply, None)

    def _wrapped(self, value: Any) -> Any:
        """The form of a result that synchronous code can use."""
        if isinstance(value, ProcessGroup):
            group = self._groups.get(id(value))  # a wrapper holds its group, so the id is no other's
            if group is None:
                group = self._groups[id(value)] = SyncProcessGroup(self, value)
            return group
        if type(value) in (list, tuple) and any(isinstance(item, ProcessGroup) for item in value):
            return type(value)(map(self._wrapped, value))
        if isinstance(value, Messages | Stream):
            return SyncIterator(value, self.call)
        if hasattr(type(value), "__aenter__"):
            return SyncContext(self, value)
        return value


Interrupted = tuple[Callable[..., object], int]
"""The function that has the loop take back an interrupted call, and the caller's thread."""


class GivenUp(NamedTuple):
    """A call that the loop takes back now, since its caller was interrupted.

    Attributes:
        reply: settled when it has been taken back.
        ours: only this library's code runs until then.
        thread: the caller's.
    """

    reply: Reply
    ours: bool
    thread: int


class SyncWork(Generic[T]):
    """The handle of one started operation, for any thread. See `Work`; `wait` stands for `await`.

    Attributes:
        op: the operation's name.
        seq: its number in the group.
        group: the `SyncProcessGroup` that it belongs to.
    """

    __slots__ = ("__weakref__", "_asked", "_of_block", "_portal", "_reply", "_work", "group")

    def __init__(self, portal: Portal, work: Work[T], held: bool) -> None:
        self._portal = portal
        self._work = work
        self._reply = Reply()
        self._asked = False
        self._of_block = not held  # which may take a receive back that has ended
        self.group: SyncProcessGroup = portal._wrapped(work.group)
        portal._follow(work, self._reply, awaited=False)

    @property
    def op(self) -> str:
        """The operation's name."""
        return self._work.op

    @property
    def seq(self) -> int:
        """The operation's number."""
        return self._work.seq

    def wait(self, timeout: Timeout = None) -> T:
        """Block until the operation has ended, and return its result.

        Args:
            timeout: this caller's patience in seconds, or a timedelta; None waits as long as the operation
                may take.

        Raises:
            TimeoutError: the time is over. The operation goes on and can be waited for again.
            GroupBroken: the operation failed.
            UsageError: inside `with pg.coalesce()`, where it has not started, or on the portal's own loop.
        """
        limit, ended = None if timeout is None else seconds(timeout), self._reply.settled
        if not ended:
            if self._work._held_back:
                raise UsageError(
                    f"{self.op} #{self.seq} starts at the end of its coalesce() block",
                    hint="Wait for it after the block",
                )
            if self._portal.inside():
                raise UsageError("waiting on the portal's own loop would wait for itself")
            self._portal.check_process()
            if self._of_block and caller() not in self._portal._seats:
                self._portal.note_held(self._work)
        if not self._reply.wait(limit):
            raise TimeoutError(f"{self.op} #{self.seq} has not ended within {limit:g} s; it goes on")
        if not ended:
            self._portal._give_up_interrupted()
        return self._outcome()

    def done(self) -> bool:
        """Whether the operation has ended, well or not."""
        return self._reply.settled

    def result(self) -> T:
        """The result of a Work that is done; raises what it failed with.

        Raises:
            asyncio.InvalidStateError: the operation has not ended yet.
        """
        self._check_done()
        return self._outcome()

    def exception(self) -> BaseException | None:
        """The error that a Work that is done failed with, or None.

        Raises:
            asyncio.InvalidStateError: the operation has not ended yet.
        """
        self._check_done()
        try:
            self._outcome()
        except BaseException as error:
            if error is not self._work._error:
                raise
            return error
        return None

    def _outcome(self) -> T:
        work, portal = self._work, self._portal
        if self._of_block and work._take_back is not None and not portal.inside():
            with portal.passing_over_end():
                result: T = portal.call(TakingRequest(work))  # the block may take it back
                return result
        error = work._error  # not the reply's: it may have been taken back since
        if error is None:
            return cast("T", self._reply.get())
        if not self._asked:
            self._asked = True
            portal.note_asked(work)
        try:
            raise error.with_traceback(None)
        finally:
            del error, self, work  # the traceback holds this frame

    def add_done_callback(self, fn: Callable[[SyncWork[T]], object]) -> None:
        """Call `fn(work)` in the loop's thread once the operation has ended. It must not block."""
        self._portal.call(self._work.add_done_callback, lambda _: fn(self))

    def is_completed(self) -> bool:
        """torch's name for `done()`."""
        return self._reply.settled

    def is_success(self) -> bool:
        """Whether the operation has ended well."""
        return self._reply.settled and self._work.is_success()

    def _check_done(self) -> None:
        if not self._reply.settled:
            raise asyncio.InvalidStateError(f"{self.op} #{self.seq} has not ended yet: wait for it first")

    def __repr__(self) -> str:
        return f"<Sync{repr(self._work)[1:]}"


def _ours(block: Block) -> bool:
    """Whether only this library's code ends a block."""
    return isinstance(block.manager, Batch)


def _without_receives(asked: functools.partial[Any]) -> functools.partial[Any] | None:
    """The part that is begun of a call whose caller was interrupted before the loop began it: no receive for
    which the caller would have waited, by itself or at the end of a block. None: nothing."""
    owner, name = getattr(asked.func, "__self__", None), getattr(asked.func, "__name__", "")
    if isinstance(owner, ProcessGroup) and name in RECEIVES and not asked.keywords.get("async_op"):
        return None
    if type(asked.func) is TakingRequest:
        return None
    if isinstance(owner, Batch) and name == "__aexit__":
        return functools.partial(asked.func, KeyboardInterrupt, KeyboardInterrupt(), None)
    return asked


class _Method(Generic[P, T]):
    """A method with the parameters P, for type checkers."""

    def __get__(self, instance: object, owner: type) -> Callable[P, T]:
        raise NotImplementedError


@overload
def _sync(method: Callable[Concatenate[ProcessGroup, P], Work[Any]]) -> _Method[P, Any]: ...
@overload
def _sync(
    method: Callable[Concatenate[ProcessGroup, P], Awaitable[ProcessGroup | None]],
) -> _Method[P, SyncProcessGroup | None]: ...
def _sync(method: Any) -> Any:
    """A method of ProcessGroup as one that blocks.

    Type checkers see its parameters; the result of operations is Any, as it depends on `async_op`.
    """
    name = method.__name__

    @functools.wraps(method)
    def blocking(self: SyncProcessGroup, *args: Any, **kwargs: Any) -> Any:
        if name in COLLECTIVES:
            self.portal.end_steps(self)  # they come first, as on the other ranks
        # Not by `call(…, *args, **kwargs)`: CPython looks at signals once more behind such a call, where the
        # result is in nobody's hands.
        return self.portal._call(None, getattr(self._group, name), args, kwargs)

    signature = inspect.signature(method).replace(return_annotation=inspect.Signature.empty)
    blocking.__signature__ = signature  # type: ignore[attr-defined]
    return blocking


class SyncProcessGroup:
    """A process group for synchronous code: every method of `ProcessGroup`, blocking.

    An operation returns its result, which the original's documentation names after →; with `async_op=True` it
    returns a `SyncWork` as soon as it was issued. `new_group` returns a `SyncProcessGroup`, or None on ranks
    that are no members. Errors are raised in the calling thread with their own types. Any thread may call.

    Use it with `with`, or `close` it. Closing the world's group ends the portal.

    Attributes:
        portal: the `Portal` behind it; `pg.portal.call(function, …)` runs anything on its loop.
        rank, size, ranks, name, epoch, hosts, timeout, backend: as in `ProcessGroup`.
    """

    rank: int
    size: int
    ranks: tuple[int, ...]
    name: str
    epoch: int
    hosts: tuple[str, ...]
    timeout: float
    backend: str

    if TYPE_CHECKING:  # all methods are made below, at run time; these, for their parameters
        all_reduce = _sync(ProcessGroup.all_reduce)
        all_reduce_quantized = _sync(ProcessGroup.all_reduce_quantized)
        broadcast = _sync(ProcessGroup.broadcast)
        reduce = _sync(ProcessGroup.reduce)
        all_gather = _sync(ProcessGroup.all_gather)
        gather = _sync(ProcessGroup.gather)
        scatter = _sync(ProcessGroup.scatter)
        reduce_scatter = _sync(ProcessGroup.reduce_scatter)
        all_to_all = _sync(ProcessGroup.all_to_all)
        barrier = _sync(ProcessGroup.barrier)
        send = _sync(ProcessGroup.send)
        recv = _sync(ProcessGroup.recv)
        new_group = _sync(ProcessGroup.new_group)

    def __init__(self, portal: Portal, group: ProcessGroup) -> None:
        self.portal = portal
        self._group = group

    def aclose(self) -> None:
        """Close the group: wait for what is in flight here, say goodbye. Not collective; may be repeated.

        Closing the world's group closes its others, too, and ends the portal.
        """
        self.__exit__(None, None, None)

    close = aclose

    @overload
    def handler(self, function: F, *, name: str | None = None, limit: int | None = None) -> F: ...
    @overload
    def handler(self, *, name: str | None = None, limit: int | None = None) -> Callable[[F], F]: ...
    def handler(self, function: Any = None, *, name: str | None = None, limit: int | None = None) -> Any:
        """Let other ranks call a function here; see `ProcessGroup.handler`. It runs on the portal's loop."""
        if function is None:
            return functools.partial(self.handler, name=name, limit=limit)
        return self.portal.call(self._group.handler, function, name=name, limit=limit)

    def drain(self) -> None:
        """Return when no operation of this rank is in flight any more, and no step of a training object goes
        on whose call was interrupted. The Works have the errors.

        Raises:
            UsageError: a `coalesce` block of this caller holds something back.
        """
        self.portal.end_steps()
        self.portal.call(self._group.drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.portal.is_world(self._group):
            self.portal._leave(kind, error, trace)
        else:
            with self.portal.passing_over_end():  # with its world
                self.portal.call(self._group.__aexit__, kind, error, trace)

    @property
    def _core(self) -> Any:
        """Refused: what looks for the core of a group is meant for async programs."""
        raise UsageError(
            "a group of the portal was passed to what is for async programs",
            hint="Use the class of that name in dist.portal, or pg.portal.call(function, pg, …)",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._group, name)
        return functools.partial(self.portal.call, found) if inspect.ismethod(found) else found

    def __repr__(self) -> str:
        return f"<Sync{repr(self._group)[1:]}"


def add_methods(facade: type, original: type) -> None:
    """Give a facade, blocking, every public method of the original that it does not define itself."""
    for name, function in inspect.getmembers(original, inspect.isfunction):
        if not name.startswith("_") and name not in vars(facade):
            setattr(facade, name, _sync(function))


add_methods(SyncProcessGroup, ProcessGroup)


def _opening(original: Callable[P, Coroutine[Any, Any, ProcessGroup]]) -> Callable[P, SyncProcessGroup]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def opened(*args: P.args, **kwargs: P.kwargs) -> SyncProcessGroup:
        if signature.bind(*args, **kwargs).arguments.get("store") is not None:
            raise UsageError(
                "a store belongs to the loop that made it, and the portal has its own",
                hint="Pass init_method instead",
            )
        portal = Portal()

        async def meet() -> ProcessGroup:
            portal._world = group = await original(*args, **kwargs)
            return group

        try:
            return cast("SyncProcessGroup", portal.call(meet))
        except BaseException as error:
            portal._leave(type(error), error, error.__traceback__)
            raise

    blocking = signature.replace(return_annotation="SyncProcessGroup")
    opened.__signature__ = blocking  # type: ignore[attr-defined]
    return opened


init_process_group = _opening(init.init_process_group)
form = _opening(init.form)
join = _opening(joining.join)


def _unwrapped(value: Any) -> Any:
    """The group behind one of the portal's; anything else as it is."""
    return value._group if isinstance(value, SyncProcessGroup) else value
