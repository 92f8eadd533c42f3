"""The core of a group, without its calls: numbers, submits, life, and how it ends.

`GroupCore` takes an operation's number, hands it to its carriers, and fails everything at once when the
group breaks. The parts with the calls (`objects`, `subgroups`, …) stand on it, and `ProcessGroup` on those.
What it is made of knows nothing of it: `deadlines`, `watch`, `batch` and `composed` are given what they call.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Any

from aiodist.backends.base import Messenger, Operation, Reports, Starter
from aiodist.backends.carriers import Carriers
from aiodist.backends.forgotten import Forgotten, Origin, error_of, never_closed, warn
from aiodist.backends.work import Failures, GroupState, Work
from aiodist.base.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupBroken,
    GroupClosed,
    PeerLost,
    UsageError,
)
from aiodist.base.operations import ROLES, Kind
from aiodist.base.timeouts import Timeout, seconds
from aiodist.base.types import Call
from aiodist.group import arguments as check
from aiodist.group.batch import Batches
from aiodist.group.composed import Steps
from aiodist.group.control.plane import ControlPlane
from aiodist.group.deadlines import Flight
from aiodist.group.family import Family, Lineage
from aiodist.group.misspelled import note_what_was_meant
from aiodist.group.numbers import Numbers
from aiodist.group.places import HOST_PLACE, place_of
from aiodist.group.requests import Request
from aiodist.group.roster import Roster
from aiodist.group.watch import Watch
from aiodist.net.forks import own_loop
from aiodist.observe.recorder import Recorder

logger = logging.getLogger("aiodist.group.core")

_ON_THE_WAY = 0.05
"""Seconds, at the end, for messages to arrive of members that disagree with a root that has only sent."""

_VERDICT = 3.0
"""Seconds to wait at the end for the others' word on what they have issued, where one disagrees."""

_alive: weakref.WeakSet[GroupCore] = weakref.WeakSet()


def _not_prepared(*_call: object, **_named: object) -> None:
    """Start nothing: there is no fast path."""


class GroupCore:
    """The numbering, life and end of one group on one rank.

    Args:
        roster: its members.
        timeout: seconds; of operations without a timeout of their own.
        control: the process's control plane.
        make_carriers: makes those of a context and global ranks, which report what breaks.
        family: of the world that the group is made of; None: it is a world itself.
        closer: awaited when the group has ended; the world's alone.
        recorder: the process's.

    Attributes:
        roster, timeout, control, family, recorder: as given.
        loop: where the group lives.
        numbers: of its operations.
        carriers: carry its operations out.
        host: its host engine, which is one of them.
        starter, messenger: the host engine's; None where there is none, and once the group has
            broken or is closed.
        start_prepared: starts a prepared call (`Starter.start`); gives None where the call is not one.
        batches: the open `coalesce` blocks.
        failures: of Works, that nobody was told.
        lineage: the groups of other epochs in whose place it came, or which came in its place.
        error: why it has broken; None while it has not.
        origin: the call and the line that made it.
        issuer: what its Works have in common.
        flight: what is in flight.
        flight_of: makes the registry of what is in flight; a simulation's has no deadlines.
    """

    flight_of = Flight

    def __init__(
        self,
        roster: Roster,
        timeout: float,
        control: ControlPlane,
        make_carriers: Callable[[int, Sequence[int], Reports], Carriers],
        family: Family[GroupCore] | None = None,
        closer: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        recorder: Recorder,
    ) -> None:
        self.roster = roster
        self.recorder = recorder
        self.timeout = timeout
        self.control = control
        self.loop = loop = asyncio.get_running_loop()
        own_loop(loop)
        self.family: Family[GroupCore] = Family() if family is None else family
        self.lineage = Lineage(self, roster.epoch)
        self.numbers = Numbers()
        self.failures = Failures()
        self.error: GroupBroken | None = None
        self.starter: Starter | None = None
        self.start_prepared: Callable[..., Work[Any] | None] = _not_prepared
        self.messenger: Messenger | None = None
        self.origin = Origin("new_group", "", 0)
        self._closer = closer
        self._handle: weakref.ref[Any] | None = None
        self._kind: Callable[[GroupCore], Any] | None = None
        self._held: object = None
        self._leaving: asyncio.Task[None] | None = None  # closes it for the program, which has dropped it
        self._track = recorder.track(roster.name, roster.epoch, roster.ranks, roster.context)
        self._track.parts = self.numbers.parts_before
        self.issuer = GroupState(
            loop, self._track, self.failures, lambda: self.owner, roster.name, roster.epoch
        )
        self.issuer.number = self.numbers.of_user
        self._released = False  # the Works have failed: nothing touches their buffers
        self._late: list[Work[Any]] = []  # issued between the break and that moment
        self._closing: asyncio.Future[None] | None = None
        self._has_left = False  # the members know that it closes
        self._forked = False
        self._opening: set[asyncio.Task[Any]] = set()
        self._steps = Steps(loop, self._dropped)
        self.flight = self.flight_of(loop, self._stalled, self._expired)
        self._watch = Watch(
            *(roster, self.flight, control, loop),
            begun=self.numbers.begun,
            seen=lambda seq: self.host.seen(seq),
            breaks=self.break_group,
            left=lambda rank, sent: self.carriers.rank_left(rank, sent),
            number=self.numbers.of_user,
        )
        self.carriers = make_carriers(roster.context, roster.ranks, self._watch)
        self.host = self.carriers.host
        self.batches = Batches(self.carriers, self.numbers)
        self.issuer.blocks = self.batches.open

    def start(self, owner: object) -> None:
        """Begin to listen, for what users hold; from now on others may abort and close the group, too.

        Args:
            owner: is not kept: the group is closed when the program drops it. The world's is kept, as the
                default of its loop; it ends with the world.
        """
        again = self._handle is not None
        self._kind, self._handle = type(owner), weakref.ref(owner, self._is_dropped)
        if self.is_world:
            self._held = owner
        if again:
            return
        self.issuer.trouble = self._watch.trouble
        if self.carriers.takes_host:
            flight, issuer, numbers = self.flight, self.issuer, self.numbers
            self.starter = flight.starter = self.host.starter(issuer, numbers, self._note)
            if self.starter is not None:
                self.start_prepared = self.starter.start
            self.messenger = flight.messenger = self.host.messenger(
                issuer, numbers, self._enter, flight.ended
            )
        self._watch.start()
        self.family.add(self)
        _alive.add(self)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def closed(self) -> bool:
        """Whether closing has begun."""
        return self._closing is not None

    @property
    def state(self) -> str:
        """'open', 'broken' or 'closed'."""
        return "closed" if self.closed else "open" if self.error is None else "broken"

    @property
    def owner(self) -> Any:
        """The object of the group that users hold. A Work leads there: if they have dropped it, a new one."""
        owner = None if self._handle is None else self._handle()
        return self._kind(self) if owner is None and self._kind is not None else owner

    @property
    def is_world(self) -> bool:
        """Whether it is the world's group, which ends all others of its family."""
        return self._closer is not None

    def check_here(self, closed_is_wrong: bool = True) -> None:
        """Refuse calls of a forked child, of another loop, and on a closed group."""
        if self._forked:
            raise self._of_the_parent()
        if asyncio._get_running_loop() is not self.loop:
            raise UsageError(
                f"group '{self.roster.name}' belongs to another event loop or thread",
                hint="Call it on the loop that made it; threads and synchronous code use aiodist.portal",
            )
        if closed_is_wrong and self._closing is not None:
            hint = "Close it, or leave `async with`, after its last use"
            if (latest := self.lineage.latest) is not self:
                hint = (
                    f"It became epoch {latest.roster.epoch}: use the group that rebuild() gave, and one "
                    "elastic trainer at a time"
                )
            raise GroupClosed(f"group '{self.roster.name}' is closed", hint=hint)

    def limit(self, timeout: Timeout) -> float:
        """Seconds that a call may take."""
        return self.timeout if timeout is None else seconds(timeout)

    async def connect(self, timeout: float) -> None:
        """Have the carriers connect with those of the other members, before the group is used."""
        if self.carriers.opens:
            await self._unless_broken(self.carriers.open(), timeout)

    async def stand_by(self, timeout: float) -> None:
        """Take the part of a non-member while other members make a group from this one."""
        if self.carriers.opens:
            await self._unless_broken(self.carriers.wait_outside(), timeout)

    async def _unless_broken(self, step: Coroutine[Any, Any, None], timeout: float) -> None:
        """Carry out a step that waits for all members. It ends when the group breaks, and at its time."""
        task = self.loop.create_task(step)
        self.cancel_on_break(task)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wait([task])
            if self.error is None and not task.cancelled():
                task.result()
        except GroupBroken as error:  # here alone, perhaps: the others wait for this rank
            self.break_group(error)
        except TimeoutError:
            self.break_group(CollectiveTimeout(timeout, ()))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.error is not None:
            raise self.error

    def cancel_on_break(self, task: asyncio.Task[Any]) -> None:
        """Have a break of the group cancel a task that has not ended."""
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def drain(self) -> None:
        """Wait until no operation touches a buffer any more; see `ProcessGroup.drain`."""
        await self.until_idle()
        self.issuer.forgotten.drained(self._track.now())

    async def until_idle(self) -> None:
        """Do the same, where the program has not asked for it: a forgotten await stays one."""
        if self.batches.mine():
            raise UsageError(
                "drain() inside coalesce() would wait for what begins at its end",
                hint="Leave the block first",
            )
        await self._end_all()

    async def _end_all(self, but: Callable[[], int] | None = None) -> None:
        """Return when nothing is in flight, or nothing but so many operations as `but()` counts."""
        await self.flight.drain(but)
        while tasks := self._steps.pending():
            await asyncio.wait(tasks)
            await self.flight.drain(but)

    async def let_go(self) -> None:
        """End what is in flight, since the epoch has ended; return when no buffer is touched any more."""
        if len(self.flight):
            over = GroupBroken(
                f"epoch {self.roster.epoch} has ended", hint="Make the group again in the present epoch"
            )
            self.break_group(over, tell=False)
        self.failures.forget()
        await self._end_all()
        self._track.close()

    def succeed(self, old: GroupCore) -> None:
        """Take the place of an earlier epoch's group: closing that one, or one before it, closes this one."""
        self.issuer.forgotten = old.issuer.forgotten
        self.lineage = old.lineage
        self.lineage.latest = self
        self.family.dropped = dropped = old.family.dropped
        dropped.failures = Failures()

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────

    def abort(self, reason: str) -> None:
        """End the group on all ranks, now; see `ProcessGroup.abort`."""
        if self._forked:
            return
        self.check_here(closed_is_wrong=False)
        self.failures.forget()
        if self._closing is None or len(self.flight):  # also while closing waits for what is in flight
            self.break_group(GroupAborted(self.roster.me, reason))

    async def leave(self, error: BaseException | None) -> None:
        """Close the latest epoch's group as `async with` does; abort it first if it is left by an error."""
        note_what_was_meant(error, type(self.owner))
        if self._forked:
            return
        latest = self.lineage.latest
        if latest is not self:
            await latest.leave(error)
            return
        if error is not None and self._closing is None:
            cause = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            text, kind = str(cause), type(cause).__name__
            # Peers may wait in any group: a world that ends by an exception takes all with it.
            for group in self._ending():
                group.abort(f"{kind}: {text}" if text else kind)
            if self.is_world:
                self.family.dropped.failures.forget()
        await self._close_all(error)

    async def aclose(self) -> None:
        """Close the group gracefully; see `ProcessGroup.aclose`."""
        if self._forked:
            return
        latest = self.lineage.latest
        if latest is not self:
            await latest.aclose()
            return
        await self._close_all(sys.exception())

    async def _close_all(self, leaving: BaseException | None) -> None:
        """Close the group and all that end with it, and raise what nobody was told.

        Args:
            leaving: the error that the program handles or leaves by: a note tells of forgotten awaits then,
                and no error of theirs takes its place.
        """
        groups = self._ending()
        await self.close()
        if any(group.failures for group in groups):
            await asyncio.sleep(0)  # awaiting tasks are woken in this turn of the loop
        awaits = Forgotten()
        for group in groups:
            awaits.add(group.issuer.forgotten.take())
            group.issuer.forgotten.end(excused=leaving is not None)
        untold, closes = [group.failures for group in groups], {}
        if self.is_world:
            dropped = self.family.dropped
            untold.append(dropped.failures)
            awaits.add(dropped.awaits.take())
            closes = dropped.closes.take()
        wrong = error_of(awaits.take())
        failures = [failure for one in untold if (failure := one.take()) is not None]
        errors = [error for error in (*failures[:1], leaving) if error is not None]
        if not errors and wrong is not None:
            errors, wrong = [wrong], None
        beside = [never_closed(origin, count, str(origin)) for origin, count in closes.items()]
        for error in errors:
            for text in [*([] if wrong is None else [str(wrong)]), *beside]:
                error.add_note(f"Beside this: {text}")
        if failures:
            failures[0].add_note("Raised by aclose(): nobody awaited the operation that failed.")
            raise failures[0].with_traceback(None)
        if leaving is None and errors:
            raise errors[0]
        if not errors:
            for origin, count in closes.items():
                warn(origin, never_closed(origin, count))

    def _is_dropped(self, _handle: object) -> None:
        """Note that the program has dropped what it held of the group. From any thread, and from a collector:
        the rest is done by the loop."""
        if self._closing is None and not self._forked:
            try:
                self.loop.call_soon_threadsafe(self._leave_dropped)
            except RuntimeError:
                pass  # the loop is closed, and all of the group with it

    def _unheld(self) -> bool:
        """Whether the group is open, and nobody can close it: the program has dropped it."""
        assert self._handle is not None
        return self._closing is None and not self._forked and self._handle() is None

    def _leave_dropped(self) -> None:
        if self._unheld() and (self._leaving is None or self._leaving.done()):
            self._leaving = self.loop.create_task(self._close_dropped())

    async def _close_dropped(self) -> None:
        """Close the group for the program, when nothing of it is under way here. A broken one without a
        word: its error was one."""
        await self._end_all()
        if not self._unheld():
            return
        dropped = self.family.dropped
        try:
            if self.error is None:
                now = self.loop.time()
                dropped.closes.note(self.origin, now, now)
        finally:
            await self.close()
            dropped.awaits.add(self.issuer.forgotten.take())
            self.issuer.forgotten.end()
            if self.failures:
                await asyncio.sleep(0)  # as above
            failure = self.failures.take()
            if failure is not None:
                dropped.failures.note(failure)

    async def close(self) -> None:
        """Close this epoch's group, and all that end with it; raise none of their failures."""
        if self._forked:
            return
        self.check_here(closed_is_wrong=False)
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        self._closing = self.loop.create_future()
        self._start_no_more()
        self.batches.begin()
        try:
            try:
                for group in self._ending():
                    if group is not self:
                        await group.close()
                self.carriers.close_receives(self._closed_here)
                self.flight.bound(self.timeout)
                await self._end_all(self.host.unasked)
                if len(self.flight):
                    self._say_left()  # nothing more is received here: members may wait for that, as this one
                    self.carriers.rank_left(self.control.rank, None)  # of what it has sent to itself, too
                    await self._end_all()
                await self._compare_ended()
            except asyncio.CancelledError:
                for group in self._ending():
                    group.abort("closing the group was cancelled")
                raise
            finally:
                await self._end()
        finally:
            self._closing.set_result(None)

    async def _compare_ended(self) -> None:
        """Compare what has ended here without a look at others: a root of a broadcast waits for nobody."""
        disagrees = self.error is None and self.host.take_in()
        if self.error is None and not disagrees and self.host.heard_nobody():
            await asyncio.sleep(_ON_THE_WAY)
            disagrees = self._watch.suspects
        if disagrees:
            verdict = self.loop.create_task(asyncio.sleep(_VERDICT))
            self.cancel_on_break(verdict)
            await asyncio.wait([verdict])
        if isinstance(self.error, CollectiveMismatch):
            self.failures.note(self.error)

    def _closed_here(self) -> GroupClosed:
        return GroupClosed(f"group '{self.roster.name}' was closed here while this receive waited")

    def _ending(self) -> list[GroupCore]:
        """The groups that end with this one."""
        return list(self.family) if self.is_world else [self]

    async def _end(self) -> None:
        logger.debug("group '%s' closes here, after %d collectives", self.roster.name, self.numbers.issued)
        self._say_left()
        self.flight.close()
        self._watch.close()
        self.carriers.retire()
        self._track.close()
        if self._closer is not None:
            await self._closer()

    def _say_left(self) -> None:
        """Tell the members that this rank issues nothing more in the group, once; not if it is broken."""
        if self.error is None and not self._has_left:
            self._has_left = True
            self._watch.leave(self.numbers.issued, self.carriers.sent())

    # ── in a forked child ────────────────────────────────────────────────────────────────────────────

    def _stay_behind(self) -> None:
        """Close the group in a forked child, which has nothing of it: it is the parent's.

        What the child's copies of tasks await fails now. Where another thread runs the loop, none does here.
        """
        self._forked = True
        self._start_no_more()
        self.issuer.forgotten.end(excused=True)
        if get_ident() == self.issuer.thread:
            self.control.stop()
            self._watch.stop_asking()
            self.flight.fail_all(self._of_the_parent())
            regroup = self.family.regroup
            if regroup is not None and regroup.services is not None:
                regroup.services.stay_behind()

    def _of_the_parent(self) -> GroupClosed:
        return GroupClosed(
            f"group '{self.roster.name}' belongs to the parent of this forked process",
            hint="Call init_process_group in the child",
        )

    def _start_no_more(self) -> None:
        """Have each call from now on go the general way, which says why there are no more."""
        self.starter = self.messenger = None
        self.start_prepared = _not_prepared

    # ── issuing ──────────────────────────────────────────────────────────────────────────────────────

    def issue(
        self,
        asked: Request,
        timeout: Timeout,
        async_op: bool,
        *,
        reserved: int | None = None,
        at_once: bool = False,
        line: int = 0,
    ) -> Work[Any]:
        """Take the number and start. Everything is checked before; nothing here can fail half-way.

        Args:
            asked: the operation.
            reserved: the number, where it was taken before.
            at_once: it starts also in a `coalesce` block: the caller awaits it there.
            line: of the program that has issued it, where that is not on the stack any more; 0: it is.
        """
        self.check_here(closed_is_wrong=reserved is None)
        source, target, detail = asked.source, asked.target, asked.detail
        place, mark = ("", "") if asked.own else place_of(source, target, self.carriers)
        if mark:
            detail = f"{detail}, {mark}" if detail else mark
        check.staging(source, target)
        kind, (dtype, shape) = asked.kind, asked.agreed
        usual = math.inf if kind is Kind.recv else self.timeout  # a sender may take as long as it likes
        limit = usual if timeout is None else seconds(timeout)
        if ROLES[kind].message:
            number = self.numbers.next_message(kind, asked.peer, asked.tag, mark)
            call = Call(kind, number, dtype, shape, None, asked.peer, 0, asked.detail)
        else:
            seq = self.numbers.issue() if reserved is None else reserved
            call = Call(kind, seq, dtype, shape, asked.reduce, asked.root, 0, detail)
        if self.error is not None:
            work: Work[Any] = Work(self.issuer, call, async_op)
            self._refuse(work)
            if self.batches.open and reserved is None and not at_once:
                self.batches.include(work)  # whose end raises its error
            return work
        frame = sys._getframe(2)  # the program's, most often
        work = Work(self.issuer, call, async_op)
        operation = Operation(
            call,
            work,
            source,
            target,
            asked.result,
            self.flight.ended,
            asked.peer,
            asked.tag,
            asked.senders,
            asked.factor,
            asked.source_sizes,
            asked.target_sizes,
            place,
            asked.convert,
        )
        if self.batches.open and reserved is None:
            line = line or self.recorder.lines.find(frame)
            begin = partial(self._begin, operation, limit, line)
            if self.batches.hold(operation, begin, at_once):
                return work
        self._write_down(operation, line, frame)
        self._start(operation, limit)
        return work

    def _write_down(self, operation: Operation, line: int, frame: FrameType | None = None) -> None:
        """Write down that an operation begins, for those who look from outside: what is held back has not.

        Args:
            line: of the program that has issued it; 0: `frame`, or one that has called it, is there.
        """
        call, track = operation.call, self._track
        sort = track.sort_of(call, operation.tag)
        noted = (
            track.note_line(sort, call.seq, line)
            if line or frame is None
            else track.note(sort, call.seq, frame)
        )
        operation.work._is_written_down(noted)

    def _begin(self, operation: Operation, limit: float, line: int) -> None:
        """Start what was held back, unless the group has broken since.

        Args:
            line: of the program that has issued it.
        """
        if self.error is None:
            self._write_down(operation, line)
            self._start(operation, limit)
        else:
            self._refuse(operation.work)

    def _start(self, operation: Operation, limit: float) -> None:
        call, work = operation.call, operation.work
        collective = not call.message
        if collective and self.numbers.unbegun:
            self.numbers.begin(call.seq)
        self.flight.issue(operation, limit)
        self.carriers.submit(operation)
        if collective and not work.done():
            gone = self._watch.gone(call.seq)
            if gone is not None:
                self.break_group(gone)

    def miss_who_left(self) -> None:
        """Break the group if a member has left it before the next collective, which need not wait for that
        member."""
        gone = self._watch.gone(self.numbers.issued)
        if gone is not None and self.error is None:
            self.break_group(gone)

    def messenger_for_send(self, timeout: Timeout) -> Messenger | None:
        """The fast path of messages, if a send may take it now. Its timeout is only checked: what it sends is
        done at once."""
        if timeout is not None:
            seconds(timeout)
        return None if self.batches.open else self.messenger

    def messenger_for_receive(self, timeout: Timeout) -> Messenger | None:
        """The fast path of messages, if a receive may take it now. One with a timeout may not: those of the
        fast path are not in flight, where timeouts are watched, before they are posted."""
        return None if timeout is not None or self.batches.open else self.messenger

    def _enter(self, operation: Operation) -> None:
        """Enter in flight a receive that the host engine has started by itself."""
        self.flight.issue(operation, math.inf)

    def _note(self, work: Work[Any]) -> Operation:
        """Enter in flight what the host engine has started by itself."""
        array = work._result
        operation = Operation(work.call, work, array, array, array, self.flight.ended, place=HOST_PLACE)
        self.flight.issue(operation, work._limit_or(self.timeout))
        gone = self._watch.gone(work.call.seq)
        if gone is not None:
            self.loop.call_soon(self.break_group, gone)
        return operation

    def statistics(self) -> dict[str, dict[str, int]]:
        """Counts of the group and of its host engine: see `ProcessGroup.statistics`."""
        operations = {"issued": self.numbers.issued, "in_flight": len(self.flight)}
        return {"operations": operations, **self.host.statistics()}

    def work(self, call: Call, async_op: bool) -> Work[Any]:
        """Make the handle of a call."""
        return Work(self.issuer, call, async_op)

    def reserve(self, part: bool = False) -> int:
        """Take a collective's number now, to issue it later.

        Args:
            part: it is a further step of the call that has taken the number before.
        """
        if self.error is not None:
            return self.numbers.issue()
        number = self.numbers.reserve()
        if part:
            self.numbers.note_part(number)
        self.host.reserve(number)
        return number

    def pass_over(self, number: int) -> None:
        """Note that nothing is issued under a reserved number, on any rank."""
        self.numbers.begin(number)
        self.host.skip(number)

    def compose(
        self, first: Work[Any], rest: Callable[[], Coroutine[Any, Any, Any]], async_op: bool
    ) -> Work[Any]:
        """Make the Work of an operation that is made of several.

        Args:
            first: the first of them; where it is held back, so is the whole.
            rest: waits for it, carries out the others, and gives the result.
            async_op: the user's.
        """
        work = self.work(first.call, async_op)
        work._begins_with(first)
        self.batches.follow(first, work, partial(self._steps.carry_out, work, rest))
        return work

    async def apart(self, cost_ns: float, job: Callable[[], None]) -> None:
        """Do a job on buffers where it does not hold the loop. One that raises breaks the group, and that
        error is raised; where the group is broken by anything else, the job is done all the same."""
        ended: asyncio.Future[None] = self.loop.create_future()
        raised = False

        def watched() -> None:
            nonlocal raised
            try:
                job()
            except Exception:
                raised = True
                raise

        def done() -> None:
            if not ended.done():
                ended.set_result(None)

        if not self.host.off_loop(cost_ns, watched, done):
            await ended
        if raised and self.error is not None:
            raise self.error

    def carry_out(self, work: Work[Any], steps: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Have a task carry out the steps of a Work. Closing the group waits for it."""
        self._steps.carry_out(work, steps)

    def _dropped(self, work: Work[Any]) -> None:
        """Break the group: the others wait for the steps that nobody submits now."""
        error = GroupAborted(
            self.roster.me, f"its {work.op} was cancelled with all other tasks of its event loop"
        )
        self.break_group(error)
        work._fail(error)

    def _refuse(self, work: Work[Any]) -> None:
        assert self.error is not None
        if self._released:
            work._fail(self.error)
        else:  # the Works before it have not failed yet, and order is kept
            self._late.append(work)

    # ── the end of the group ─────────────────────────────────────────────────────────────────────────

    def break_group(self, error: GroupBroken, *, tell: bool = True) -> None:
        """Break the group. Idempotent: the first cause stays.

        Args:
            error: why.
            tell: whether the other members have to be told.
        """
        if self._forked:  # by a task that the child's loop cancels, say
            return
        news = isinstance(error, PeerLost) or (isinstance(error, GroupAborted) and not tell)
        if self.error is None and news:
            self.host.take_in()  # which may break the group, for another reason
        if self.error is not None:
            return
        error.reader = self.roster.me
        self.error = error
        self._start_no_more()
        aborted = (error.rank,) if isinstance(error, GroupAborted) else ()
        lost = error.ranks if isinstance(error, PeerLost) else aborted
        self._track.trouble(f"group '{self.roster.name}' broke: {type(error).__name__}: {error}", lost)
        logger.debug("group '%s' breaks on rank %d: %s", self.roster.name, self.roster.me, error)
        self._watch.stop_asking()
        if tell:
            self._watch.tell_broken(error)
        for task in self._opening:
            task.cancel()
        self.carriers.abort(self._fail_all)

    def _fail_all(self) -> None:
        assert self.error is not None
        self._released = True
        self.flight.fail_all(self.error)
        for work in self._late:
            work._fail(self.error)
        self._late = []

    def _stalled(self, operation: Operation) -> None:
        if not operation.call.message:
            self._watch.ask(operation.call.seq)

    def _expired(self, operation: Operation, timeout: float, late: float) -> None:
        self.control.hear()  # a process that was stopped finds its time up, and in its sockets, why
        if self.error is None:
            self.break_group(self._watch.expired(operation, timeout, late))


def _after_fork() -> None:
    for group in list(_alive):
        group._stay_behind()


os.register_at_fork(after_in_child=_after_fork)
