"""Work: the awaitable handle of one operation.

A Work is started when you get it. Awaiting it gives the result, any number of times, from any task of
the group's loop. It is not a Future and cannot be cancelled: peers count on the operation. Cancelling
a task that awaits it ends that wait and nothing else (law 2).

Why it is a coroutine, too
    asyncio makes a task of an awaitable by a coroutine of its own around it. A task that is cancelled before
    its first step never begins that coroutine, so nobody would learn that the await has ended:
    `wait_for(pg.recv_object(1), 0)` does just that. A task of the Work itself throws its error into the Work,
    begun or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from datetime import timedelta
from functools import partial
from inspect import signature
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from aiodist.backends.forgotten import Forgotten, Origin
from aiodist.backends.handle import DONE, FAILED, PENDING, Handle, Issuer, PlainHandle
from aiodist.base.errors import GroupBroken, GroupClosed, UsageError
from aiodist.base.timeouts import seconds
from aiodist.base.types import Call, Kind
from aiodist.net.turn import Turn
from aiodist.observe.recorder import Entry, Track

T = TypeVar("T", covariant=True)


PULSE = 0.001
"""Seconds without a turn of the loop after which the next await yields once (law 7): a Work that is done when
awaited costs no turn, so a task that only awaits such Works would never let another task run."""

_REMEMBERED = 16  # failures that a group keeps for its end; nobody reads more of them


class Failures:
    """The failures of one group's Works of which nobody was told; `aclose` raises them.

    A broken group fails all its Works with one cause, so it is known when one Work has told it. Other errors,
    of an object that cannot be decoded for instance, count one by one.
    """

    __slots__ = ("_break_told", "_unseen")

    def __init__(self) -> None:
        self._unseen: list[BaseException] = []
        self._break_told = False  # by a Work, or at the end

    def note(self, error: BaseException) -> None:
        """Note that a Work failed with an error."""
        if len(self._unseen) == _REMEMBERED or any(error is known for known in self._unseen):
            return
        if not (self._break_told and isinstance(error, GroupBroken)):
            self._unseen.append(error)

    def seen(self, error: BaseException) -> None:
        """Note that a Work gave an error to a caller."""
        if isinstance(error, GroupBroken):
            self._break_told = True
            self._unseen = [known for known in self._unseen if not isinstance(known, GroupBroken)]
        else:
            self.take_back(error)

    def take_back(self, error: BaseException) -> None:
        """Forget one that was noted: nobody wants the result of that Work. Those of other Works stay."""
        self._unseen = [known for known in self._unseen if known is not error]

    def forget(self) -> None:
        """Forget the failures: this process ends the group by an error of its own, which says enough."""
        self._break_told = True
        self._unseen = []

    def take(self) -> BaseException | None:
        """The first failure that nobody was told, once."""
        unseen, self._unseen = self._unseen, []
        self._break_told |= any(isinstance(error, GroupBroken) for error in unseen)
        return unseen[0] if unseen else None

    def __bool__(self) -> bool:
        return bool(self._unseen)


class Completion(Protocol):
    """The progress of an operation on a device."""

    def synchronize(self, stream: Any = None) -> None:
        """Have a stream wait for the operation; None: the one that the caller uses now."""


class Driver(Protocol):
    """The object that can bring one operation on while it is awaited."""

    def poll(self) -> None:
        """Try to end the operation, for no longer than this turn of the loop may take."""


def _nobody() -> None:
    """What users hold where there is no group."""


class GroupState(Issuer):
    """The state that all Works of one group share.

    Args:
        loop: the group's.
        failures: where a failure is noted until a caller is told.
        owner: gives what users hold of the group. Works do not keep it: a group that is held by its Works
            alone is closed when they have ended.
        name, epoch: of the group.

    Attributes:
        owner, name, epoch: as given.
        trouble: given the group rank of a message's other side, says in a few words why it may be late.
        number: gives the place among the user's calls of a collective's number.
        turn: the present turn of the loop.
        thread, running: the loop's thread, and whether it runs: in that thread no other does, then.
        track: where their operations are written down.
        blocks: the open `coalesce` blocks of the group, by task: what is issued meanwhile may be held back.
        forgotten: those whose handles were dropped un-awaited.
    """

    __slots__ = (
        "blocks",
        "epoch",
        "failures",
        "forgotten",
        "loop",
        "name",
        "number",
        "owner",
        "track",
        "trouble",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        track: Track,
        failures: Failures | None = None,
        owner: Callable[[], Any] = _nobody,
        name: str = "",
        epoch: int = 0,
    ) -> None:
        self.owner = owner
        self.name = name
        self.epoch = epoch
        self.track = track
        self.loop = loop
        self.turn = Turn.of(loop)
        self.failures = failures
        self.trouble: Callable[[int], str] = _no_trouble
        self.number: Callable[[int], int] = _same
        self.thread = get_ident()
        self.running = loop.is_running
        self.blocks: dict[Any, Any] = {}
        self.forgotten = Forgotten(loop)

    def here(self) -> bool:
        """Whether the caller runs on the group's loop. Asking asyncio costs a system call (getpid)."""
        return get_ident() == self.thread and self.running()


class _OfAnother(tuple[Any, ...]):
    """How the first operation is written down of those that a Work is made of."""


def _same(seq: int) -> int:
    return seq


def _no_trouble(_peer: int) -> str:
    return ""


POLL_TURNS = 4
"""Further turns of the loop that one await polls in before it suspends."""


class Work(Handle, Coroutine[Any, Any, T], Generic[T]):
    """The handle of one started operation, which every method of a group returns.

    `await work` gives the result. Until then the operation borrows its tensors: before the Work is done, do
    not write to them, and do not read those that it writes, even if your await was cancelled. The Work keeps
    them alive. A Work that has failed no longer touches them. If nobody asks for a failure, by `await`,
    `result` or `exception`, closing the group raises it. A Work that is dropped and was neither awaited, nor
    held (`async_op=True`), nor followed by `drain`, is a forgotten await: closing the group raises
    `ForgottenAwait`.

    Attributes:
        op: the operation's name, 'all_reduce'.
        seq: its number in the group (for point-to-point: among the messages of the same peer and tag).
        group: the process group that it belongs to.
    """

    __slots__ = ("__weakref__",)
    __signature__ = signature(PlainHandle)  # compiled code has none

    _issuer: GroupState
    _call: Call

    @property
    def group(self) -> Any:
        """The process group that it belongs to."""
        return self._issuer.owner()

    @property
    def call(self) -> Call:
        """The description on which the ranks agree."""
        if self._seq is not None:
            self._call, self._seq = self._call.numbered(self._seq), None
        return self._call

    @property
    def op(self) -> str:
        """The name of the user's call."""
        return self.call.name

    @property
    def seq(self) -> int:
        """The number of the user's call: among the collectives of its group, or the messages of its kind
        with that peer and tag."""
        call = self.call
        return call.seq if call.message else self._issuer.number(call.seq)

    # ── for the awaiter ──────────────────────────────────────────────────────────────────────────────

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, T]: ...

    def _await_on(self) -> Generator[Any, None, T]:
        """Wait for the result: all that an await may do."""
        if self._held_back:
            raise self._not_begun("Await it")
        if self._awaited:
            self._take_back, self._unheld = None, False  # the caller holds it
        self._awaited = True
        try:
            if self._state == PENDING:
                driver, issuer = self._driver, self._issuer
                if driver is not None and get_ident() == issuer.thread and issuer.running():  # as `here`
                    driver.poll()
                    if self._state == PENDING:
                        yield from self._poll_on()
                if self._state == PENDING:
                    yield from self._suspend()
                    return self.result()
            since = self._issuer.turn.since  # as `overdue`, written out
            if (since is None or monotonic() - since > PULSE) and self._issuer.turn.overdue(PULSE):
                if self._take_back is None:
                    yield
                else:
                    yield from _NextTurn(self, self._issuer.loop).wait()
        except BaseException as error:  # thrown in, if it is not of another loop, or the operation's own
            if type(error) is not UsageError:
                self._give_up()
            raise
        self._take_back = None
        if self._state == DONE:
            result: T = self._result  # no cast: this is where the time goes
            return result
        return self.result()

    def _poll_on(self) -> Generator[Any, None, None]:
        """Poll in a few more turns of the loop, others running in between (law 7)."""
        for _ in range(POLL_TURNS):
            if self._driver is None:
                return  # polling is of no use now
            if self._take_back is None:
                yield
            else:
                yield from _NextTurn(self, self._issuer.loop).wait()
            if self._state != PENDING or (driver := self._driver) is None:
                return
            driver.poll()
            if self._state != PENDING:
                return

    def _poll_for_thread(self, turns: int = POLL_TURNS) -> None:
        """Poll as an await does, in this turn of the loop and a few more, for a caller in another thread."""
        if (driver := self._driver) is None:
            return
        driver.poll()
        if turns and self._state == PENDING:
            self._issuer.loop.call_soon(self._poll_for_thread, turns - 1)

    @types.coroutine
    def _as_step(self) -> Generator[Any, None, T]:
        """Wait for the result as one step of another Work, whose awaiters are told of a failure instead."""
        self._awaited = True
        if self._state == PENDING:
            driver = self._driver
            if driver is not None:
                driver.poll()
            if self._state == PENDING:
                yield from self._suspend(as_step=True)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return cast("T", self._result)

    @types.coroutine
    def _with_others(self) -> Generator[Any, None, T]:
        """Wait for a receive as one of several Works that have one await. Until that has ended it can be
        taken back, also when its message has come, unless another task awaits it, too."""
        try:
            return (yield from self._as_step())
        except BaseException:
            if self._error is not None:
                self._take_error()
            raise

    def _suspend(self, as_step: bool = False) -> Generator[Any, None, None]:
        """Wait for the end. `as_step`: the awaiter of several Works takes their receives back together."""
        # The private accessor does not raise, and is 3 times cheaper than get_running_loop with a try.
        if asyncio._get_running_loop() is not self._issuer.loop:
            raise UsageError(
                "this Work belongs to another event loop",
                hint="Await it on the loop that made the group; from threads use aiodist.portal",
            )
        self._is_pending()
        loop = self._issuer.loop
        waiter = loop.create_future() if as_step or self._take_back is None else _Waiter(self, loop)
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        try:
            yield from waiter
            if type(waiter) is _Waiter and waiter.given_up:
                raise asyncio.CancelledError
        except BaseException:
            if self._waiters is not None:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
            raise

    def wait(self, timeout: float | timedelta | None = None) -> Coroutine[Any, Any, T]:
        """Wait for the operation, for a limited time if you like. It is awaited, too: `await work.wait()`.

        Args:
            timeout: seconds, or a timedelta; None waits as long as the operation may take.

        Raises:
            TimeoutError: the time is over. The operation goes on and can be awaited again, but for a receive
                without `async_op=True`: that is taken back, as if its await were cancelled. An operation's
                own `timeout=` is what breaks the group.
        """
        try:
            limit = None if timeout is None else seconds(timeout)
        except UsageError:
            self._ends_unbegun()  # as an await whose time is over: `deadline - now` may be negative
            raise
        first, self._awaited = not self._awaited, True
        if not first:
            self._is_held()
        return _Waiting(self, limit, first)

    async def _wait(self, limit: float | None, first: bool) -> T:
        if first:
            self._awaited = False  # the await is this one
        if limit is None:
            return await self
        async with asyncio.timeout(limit):
            return await self

    # ── as a coroutine: of a task that was made of it ────────────────────────────────────────────────

    def send(self, value: Any) -> Any:
        """Go on with the await of the running task."""
        steps = self._steps
        if steps is None:
            steps = self._steps = {}
        task = asyncio.current_task(self._issuer.loop)
        step = steps.get(task)
        if step is None:
            step = steps[task] = self._await_on()
        try:
            return step.send(value)
        except BaseException:
            steps.pop(task, None)
            raise

    def throw(self, *error: Any) -> Any:
        """Throw an error into the await of the running task; one that has not begun ends by that."""
        steps = self._steps or {}
        task = asyncio.current_task(self._issuer.loop)
        step = steps.get(task)
        if step is None:
            self._ends_unbegun()
            raise _raised(*error)
        try:
            return step.throw(*error)
        except BaseException:
            steps.pop(task, None)
            raise

    def close(self) -> None:
        """End the await of the running task, begun or not."""
        step = (self._steps or {}).pop(asyncio.current_task(self._issuer.loop), None)
        if step is None:
            self._ends_unbegun()
        else:
            step.close()

    @property
    def __name__(self) -> str:
        """What tasks that are made of it show."""
        return f"{self.op} #{self.seq}"

    def _ends_unbegun(self) -> None:
        """Note that an await was given up before it began."""
        held, self._awaited = self._awaited, True
        if held:
            self._is_held()
        elif self._held_back and self._call.kind is Kind.recv:
            self._is_taken_back()  # it never begins
        else:
            self._give_up()

    def done(self) -> bool:
        """Whether the operation has ended, well or not."""
        return self._state != PENDING

    def result(self) -> T:
        """The result of a Work that is done; raises what it failed with.

        Raises:
            asyncio.InvalidStateError: the operation has not ended yet.
        """
        if self._state == PENDING:
            raise asyncio.InvalidStateError(f"{self.op} #{self.seq} has not ended yet: await it first")
        self._take_back = None
        if self._state == DONE:
            self._awaited = True
            return cast("T", self._result)
        raise self._take_error().with_traceback(None)

    def exception(self) -> BaseException | None:
        """The error that a Work that is done failed with, or None.

        Raises:
            asyncio.InvalidStateError: the operation has not ended yet.
        """
        if self._state == PENDING:
            raise asyncio.InvalidStateError(f"{self.op} #{self.seq} has not ended yet: await it first")
        self._awaited = True
        self._take_back = None
        return None if self._state == DONE else self._take_error()

    def _outcome(self) -> tuple[T | None, BaseException | None]:
        """The result or the error of a Work that is done, for a caller that may give a receive up."""
        self._awaited = True
        return (self._result, None) if self._state == DONE else (None, self._take_error())

    def _peek(self) -> tuple[T | None, BaseException | None]:
        """The result or the error of a Work that is done, without noting that a caller has it."""
        return self._result, self._error

    def _is_held(self) -> None:
        """Note that a caller holds it: it is not taken back."""
        self._awaited, self._take_back, self._unheld = True, None, False

    def _is_asked(self) -> None:
        """Note that a caller has the outcome of a Work that is done."""
        self._awaited, self._take_back = True, None
        if self._state == FAILED:
            self._take_error()

    def _take_error(self) -> BaseException:
        """The error, for a caller that asked."""
        assert self._error is not None
        self._awaited, self._untold = True, False
        if self._issuer.failures is not None:
            self._issuer.failures.seen(self._error)
        return self._error

    def add_done_callback(self, fn: Callable[[Work[T]], object]) -> None:
        """Call `fn(work)` on the loop once the operation has ended; soon, if it already has.

        It runs in the context (`contextvars`) of this call, as callbacks of futures do.
        """
        self._when_done(partial(_tell, fn))

    def _when_done(self, fn: Callable[[Work[T]], object]) -> None:
        """Call `fn(work)` once the operation has ended, for a caller that may give a receive up."""
        self._followed = True
        if self._state != PENDING:
            self._issuer.loop.call_soon(fn, self)
        elif self._callbacks is None:
            self._callbacks = [(fn, copy_context())]
        else:
            self._callbacks.append((fn, copy_context()))

    def is_completed(self) -> bool:
        """torch's name for `done()`."""
        return self._state != PENDING

    def is_success(self) -> bool:
        """Whether the operation has ended well."""
        return self._state == DONE

    def synchronize(self, stream: Any = None) -> None:
        """Make a stream of the device wait for the operation. The host waits until it is launched, no longer.

        Later work of the stream finds the result in the tensors. `await work` tells you more: that the host
        may read the result, and that all ranks had issued the same operation, which may still be compared.

        Args:
            stream: of CuPy or torch, or its raw pointer; None means the one that is current for the kind of
                tensor that was passed.

        Raises:
            UsageError: the operation runs on the host, or is not launched: a message whose peer has not come,
                a collective that waits for others for more than 5 s.
        """
        if self._held_back:
            raise self._not_begun("Call synchronize()")
        self._awaited = True
        if self._state == FAILED:
            raise self._take_error().with_traceback(None)
        if self._completion is None:
            raise UsageError(f"{self.op} runs on the host and has no stream", hint="Write `await work`")
        if self._state == PENDING:
            self._completion.synchronize(stream)

    def __repr__(self) -> str:
        state = ("pending", "done", f"failed: {self._error}")[self._state]
        if self._state == PENDING and self.call.message:
            trouble = self._issuer.trouble(self.call.root)
            state += f": {trouble}" if trouble else ""
        return f"<Work {self.op} #{self.seq} {state}>"

    def _is_dropped(self) -> None:
        """Note that it is dropped, and nobody has its outcome."""
        if not (self._awaited or self._followed):
            self._is_forgotten()
        elif self._issuer.failures is not None:
            self._issuer.failures.note(cast("BaseException", self._error))

    def _is_forgotten(self) -> None:
        """Note that nobody awaits it: it was dropped, or what `wait` has returned was."""
        if not isinstance(self._error, GroupBroken):
            now = self._issuer.track.now()
            self._issuer.forgotten.note(self._line(), self._noted[3] if self._noted else now, now)

    def _line(self) -> Origin:
        """The user's call, and the line that made it."""
        line = self._noted[2] if self._noted else 0
        return Origin(self.op, *self._issuer.track.lines.place(line))

    # ── for the one who carries it out ───────────────────────────────────────────────────────────────

    def _fail(self, error: BaseException) -> None:
        """End the operation by an error; its buffers are no longer touched. Called once, on the loop."""
        if self._state == PENDING:
            if isinstance(error, GroupBroken):
                error = error.during(self.op, self.seq, self._issuer.name, self._issuer.epoch)
            self._error = error
            self._state = FAILED
            self._driver = self._take_back = None  # as in `_finish`
            if type(error) is GroupClosed:  # the program knows, unless it has dropped the handle
                self._untold = True
            elif self._issuer.failures is not None:
                self._issuer.failures.note(error)
            self._wake()

    def _is_written_down(self, noted: Entry) -> None:
        """Note how the recorder has it."""
        self._noted = noted

    def _is_pending(self) -> None:
        """Write down that the loop has turned, or is about to, while the operation was pending."""
        if type(self._noted) is tuple:
            self._noted = self._issuer.track.enter(self._noted)
            if self._callbacks is None:
                self._callbacks = []  # so that its end is more than a state

    def _happened(self, what: int) -> None:
        """Write down when something happened to it (`recorder.layout`: ARRIVED, FIRST). From any thread."""
        if type(self._noted) is list and self._state == PENDING:
            self._issuer.track.stamp(self._noted, what)

    def _limit_or(self, usual: float) -> float:
        """The seconds after which it times out: those that the caller passed, or the usual ones."""
        return usual if self._limit is None else self._limit

    def _gives(self, result: Any) -> None:
        """Note the result that it has if it ends well, before it does."""
        self._result = result

    def _hold_back(self, held: bool) -> None:
        """Note whether the operation has a number and begins later: inside coalesce()."""
        self._held_back = held

    def _let_be_dropped(self, may: bool = True) -> None:
        """Count the Work as awaited, so that dropping it is no mistake; or as one that is not."""
        self._awaited = may

    def _taken_back_by(self, take_back: Callable[[Any], None], receive: Any) -> None:
        """Note what takes a receive back, whose message goes to another one then: called with it if the one
        await of it is cancelled, unless the caller holds the handle."""
        if self._unheld:
            self._take_back = take_back, receive

    def _may_be_given_up(self) -> bool:
        """Whether a receive may be taken back in a later turn of the loop for a cancel that has come already:
        nobody has the result. Where a task is suspended in the await, the cancel may be on its way there."""
        return self._take_back is not None

    def _goes_on_to_be_awaited(self, take_back: tuple[Callable[[Any], None], Any] | None) -> None:
        """Note again what takes a receive back, after an await that is a part of one of several Works; None:
        nothing does any more."""
        self._take_back = take_back

    def _give_up(self) -> None:
        """Take the operation back where that can be: the await of it was cancelled."""
        issuer = self._issuer
        if get_ident() != issuer.thread:  # a collector ends an await that nobody goes on with
            with contextlib.suppress(RuntimeError):  # the loop is closed
                issuer.loop.call_soon_threadsafe(self._give_up)
            return
        take_back, self._take_back = self._take_back, None
        if isinstance(self._error, GroupClosed):
            self._take_error()  # nobody wants to know that nothing came
        if take_back is None or self._state == FAILED or issuer.loop.is_closed():
            return
        function, receive = take_back
        function(receive)
        self._is_taken_back()

    def _is_taken_back(self) -> None:
        """Note that the receive was taken back."""
        if type(self._noted) is list and self._state == PENDING:
            self._issuer.track.end(self._noted, failed=True)
        self._result = self._driver = None
        self._state = FAILED
        self._error = UsageError(
            f"{self.op} #{self.seq} was taken back: its await, or its block, ended without a result",
            hint="To await it again, hold it with async_op=True",
        )
        self._call_back()

    def _driven_by(self, driver: Driver | None) -> None:
        """Note what brings the operation on while it is awaited; None: nothing, an await sleeps at once."""
        self._driver = driver

    def _completes_by(self, completion: Completion) -> None:
        """Note what streams of the device can wait for."""
        self._completion = completion

    def _forget_failure(self) -> None:
        """Note no failure: nobody wants the result. In a broken group it may have failed at once."""
        issuer = self._issuer
        if self._error is not None and issuer.failures is not None:
            issuer.failures.take_back(self._error)
        self._issuer = GroupState(issuer.loop, issuer.track, None, issuer.owner, issuer.name, issuer.epoch)
        self._issuer.number = issuer.number

    def _begins_with(self, first: Work[Any]) -> None:
        """Note the first of the operations that it is made of: the line that issued both."""
        if first._noted is not None:
            self._noted = _OfAnother(first._noted[:4])

    def _goes_on(self, result: Any) -> Work[Any]:
        """Make the handle of its operation, which the engine is about to end with a result: this Work itself
        goes on, by further operations."""
        first: Work[Any] = Work(self._issuer, self.call, True, result=result)
        first._noted, self._noted = self._noted, _OfAnother(self._noted[:4])
        if type(first._noted) is list:
            first._callbacks = []  # as in `_is_pending`
        exchange: Any = self._driver
        self._driver, exchange.work = None, first
        if exchange.operation is not None:
            exchange.operation.work, exchange.operation.happened = first, first._happened
        return first

    def _not_begun(self, what: str) -> UsageError:
        return UsageError(
            f"{self.op} #{self.seq} begins when the coalesce() block is left", hint=f"{what} after the block"
        )

    def _wake(self) -> None:
        if type(self._noted) is list:
            self._issuer.track.end(self._noted, failed=self._state == FAILED)
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        self._call_back()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        for fn, context in callbacks or ():
            self._issuer.loop.call_soon(fn, self, context=context)


def _tell(fn: Callable[[Work[T]], object], work: Work[T]) -> None:
    """Call a callback: it has the message of a receive, which goes to nobody else then."""
    work._take_back = None
    fn(work)


def _raised(kind: Any, value: Any = None, trace: Any = None) -> BaseException:
    """The error that the arguments of `throw` stand for."""
    error: BaseException = kind if isinstance(kind, BaseException) else value or kind()
    return error if trace is None else error.with_traceback(trace)


class _Waiter(asyncio.Future[None]):
    """The future of a receive's await, which takes the receive back within `task.cancel()`.

    The await itself is told of a cancel a turn of the loop later. If the receive were taken back then, it
    could get a message meanwhile, and a receive that was posted after the cancel the one behind it.

    Args:
        work: the receive's.
        loop: the group's.

    Attributes:
        given_up: a cancel has come. The await ends by it, whatever becomes of the task's request.
    """

    def __init__(self, work: Work[Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._work = work
        self.given_up = False

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the wait, as `asyncio.Future.cancel`; also where the receive has its message, and the task
        does not know yet."""
        self.given_up = True
        cancelled = super().cancel(msg)
        self._work._give_up()
        return cancelled


class _NextTurn:
    """A wait for the next turn of the loop by an await of a receive, which is taken back as `_Waiter` does.

    A future as asyncio's tasks know it: `asyncio.Future` would wake the task a turn later.
    """

    __slots__ = ("_asyncio_future_blocking", "_given_up", "_loop", "_work")

    def __init__(self, work: Work[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._given_up = False
        self._asyncio_future_blocking = True

    def wait(self) -> Generator[Any, None, None]:
        """Return in the next turn."""
        yield self
        if self._given_up:
            raise asyncio.CancelledError

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """For the task."""
        return self._loop

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Have the task go on in the next turn."""
        self._loop.call_soon(fn, self, context=context)

    def result(self) -> None:
        """Nothing: the turn has come."""

    def cancel(self, msg: Any = None) -> bool:
        """Take the receive back; the task itself remembers the cancel."""
        self._given_up = True
        self._work._give_up()
        return False


class _Waiting(Coroutine[Any, Any, T]):
    """The coroutine of `Work.wait`. One that is dropped is a forgotten await of the Work.

    Args:
        work: what it waits for.
        limit: seconds, or None.
        first: nobody has awaited the Work before.
    """

    __slots__ = ("_begun", "_first", "_limit", "_running", "_work")

    def __init__(self, work: Work[T], limit: float | None, first: bool) -> None:
        self._work = work
        self._limit = limit
        self._first = first
        self._begun = False
        self._running: Coroutine[Any, Any, T] | None = None

    def __del__(self) -> None:
        if not self._begun:
            self._work._is_forgotten()

    def _begin(self) -> Coroutine[Any, Any, T]:
        if self._running is None:
            self._begun = True
            self._running = self._work._wait(self._limit, self._first)
        return self._running

    def _ends_unbegun(self) -> None:
        if self._first and not self._begun:
            self._work._awaited = False
            self._work._ends_unbegun()
        self._begun = True

    def __await__(self) -> Generator[Any, None, T]:
        return self._begin().__await__()

    def send(self, value: Any) -> Any:
        """As a coroutine's."""
        return self._begin().send(value)

    def throw(self, *error: Any) -> Any:
        """As a coroutine's: also of a task that is cancelled before its first step."""
        if self._running is None:
            self._ends_unbegun()
            raise _raised(*error)
        return self._running.throw(*error)

    def close(self) -> None:
        """As a coroutine's."""
        if self._running is None:
            self._ends_unbegun()
        else:
            self._running.close()
