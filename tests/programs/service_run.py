"""Programs of services in virtual time: one loop for all ranks, lines that are narrow, stand still and break.

What each call, message and stream ended with is held against what the other side saw: nothing runs twice,
messages come in order, a stream is whole or has an error, who says that something has not run is right, no
healthy process is said to be busy, and at the end nothing is under way and every place is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import traceback
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.services import answers, asking, codec, connection, mailbox, outbox, serving, under_way
from aiodist.net.polling import Poller
from aiodist.net.wire import objects, repeats
from aiodist.testing import run_cluster, run_virtual
from tests.group.services.narrow import Narrow
from tests.helpers import services_of
from tests.programs.run import Violation, swallowing
from tests.programs.service_plan import Ask, Fault, Limits, Plan, plan
from tests.programs.values import (
    MANY,
    MOST_VISITS,
    SHORT,
    Excess,
    Verdict,
    arrived,
    form,
    verdict,
    visits,
)
from tests.programs.values import odd as odd_value

PATIENCE = 100.0
"""Seconds, of the virtual clock, in which everything has ended, and then everything has been let go."""

RECOVERS = 5.0
"""Seconds after a fault in which a process may still be said to be busy."""


class Own(BaseException):
    """A program's own exception."""


class Mute(BaseException):
    """One whose text cannot be made."""

    def __str__(self) -> str:
        raise Own


@dataclass
class Picky:
    """A dataclass that is not made where it says so: the number behind which an iteration would end well."""

    number: int
    bad: bool = False

    def __post_init__(self) -> None:
        if self.bad:
            raise StopAsyncIteration(self.number)


UNREADABLE = {i * (2**61 - 1): i for i in range(150)}
"""A value that can be encoded, and not decoded: its keys have one hash value."""


def odd(which: str) -> BaseException:
    """What a handler raises."""
    match which:
        case "own":
            return Own("of the program")
        case "exit of a generator":
            return GeneratorExit()
        case "cancelled":
            return asyncio.CancelledError()
        case "mute":
            return Mute()
        case "stop":
            return StopAsyncIteration()
        case "of a test":
            return pytest.fail.Exception("of a test")
        case _:
            return ValueError(which)


def run(seeds: Sequence[int]) -> list[Violation]:
    """Run programs, each in a loop of its own → those that went wrong."""
    violations = []
    with swallowing() as swallowed:
        for seed in seeds:
            program = _Program(plan(seed))
            swallowed.clear()
            try:
                with limited(program.plan.limits), visits(program.most_visits()):
                    run_virtual(program.run())
                assert not swallowed, f"errors that the loop swallowed: {swallowed}"
            except (Exception, BaseExceptionGroup, Excess) as error:
                first = program.first or error  # what comes after it follows from it
                trace = "".join(traceback.format_exception(first))
                violations.append(Violation(seed, _words(first)[:600], trace))
                del first, program
        if violations:
            gc.collect()  # what was left behind would be told later
    return violations


def count(seeds: Sequence[int]) -> tuple[int, list[Violation]]:
    """How many were run, and those that went wrong."""
    return len(seeds), run(seeds)


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Small limits, and threads that virtual time knows."""

    async def to_thread(function: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0.003)
        return function(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", to_thread)
        patch.setattr(Poller, "poll", lambda self, look: False)  # in one loop nothing comes meanwhile
        for module, name, value in [
            (under_way, "CALLS", limits.calls),
            (serving, "CALLS", limits.calls),
            (under_way, "WINDOW", limits.window),
            (connection, "HIGH", limits.high),
            *((module, "PARTS", limits.parts) for module in (asking, serving)),
            (mailbox, "MESSAGES", limits.messages),
            (mailbox, "BYTES", limits.mailbox),
            (repeats, "FREE_TIME", MANY * repeats.CONTAINER),
            *((module, "LARGE", limits.large) for module in (codec, objects)),
            *((module, "PIECE", limits.piece) for module in (connection, outbox, answers)),
        ]:
            patch.setattr(module, name, value)
        yield


class _Program:
    def __init__(self, drawn: Plan) -> None:
        self.plan = drawn
        self.network = Narrow(random.Random(f"{drawn.seed} network"), drawn.most)
        self.ran: Counter[int] = Counter()  # by the number of a call, how often its handler has begun
        self.not_run: list[int] = []
        self.good: list[int] = []
        self.taken: dict[tuple[int, int], list[int]] = defaultdict(list)  # numbers, by (src, dst)
        self.sent: dict[tuple[int, int], list[int]] = defaultdict(list)  # those that are there for certain
        self.never: dict[tuple[int, int], set[int]] = defaultdict(set)  # those that are not
        self.begun: Counter[tuple[int, int]] = Counter()
        self.unread: Counter[tuple[int, int]] = Counter()  # messages that came and cannot be read
        self.unreadable: Counter[tuple[int, int]] = Counter()  # those of them that are there for certain
        self.perhaps: Counter[tuple[int, int]] = Counter()  # those that may be
        self._parts: dict[int, Any] = {}  # by rank, the handler 'picky stream'
        self.first: BaseException | None = None
        self._number = 0
        self._trouble = -PATIENCE  # until when processes are not healthy
        self._broken = False
        self._done = 0
        self._all_done = asyncio.Event()

    def most_visits(self) -> int:
        """How often fields of odd values may be read; `limited` bounds time to a quarter, too."""
        asks = (ask for rank in self.plan.users for user in rank for ask in user)
        return MOST_VISITS // 4 * sum(ask.what.startswith("odd") for ask in asks)

    async def run(self) -> None:
        await run_cluster(self.plan.size, self._main, endpoint=self.network.endpoint, timeout=PATIENCE)
        for number in self.not_run:
            assert not self.ran[number], f"call {number} has not run, it was said, and it ran"
        for number in self.good:
            assert self.ran[number] == 1, f"call {number} has a result, and ran {self.ran[number]} times"
        assert max(self.ran.values(), default=0) <= 1, f"a call ran twice: {self.ran.most_common(3)}"
        for pair, count in (self.unreadable + self.perhaps).items():
            least = self.unreadable[pair]
            assert least <= self.unread[pair] <= count, f"messages {pair}: {least} to {count} cannot be read"
        for pair, taken in self.taken.items():
            assert taken == sorted(set(taken)), f"messages {pair} overtook each other: {taken}"
            lost = set(self.sent[pair]) - set(taken)
            assert not lost, f"messages {pair} were lost: {lost}"
            made = self.never[pair] & set(taken)
            assert not made, f"messages {pair} are there, and were said not to be: {made}"

    async def _main(self, pg: ProcessGroup) -> None:
        try:
            await self._rank(pg)
        except BaseException as error:
            self.first = self.first or error
            raise

    async def _rank(self, pg: ProcessGroup) -> None:
        self._serve(pg)
        await pg.barrier()
        taking = asyncio.create_task(self._take(pg))
        if pg.rank == 0:
            faults = asyncio.create_task(self._faults())
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as watching:
            watcher = watching.create_task(self._watch(pg))
            async with asyncio.TaskGroup() as users:
                for asks in self.plan.users[pg.rank]:
                    users.create_task(self._user(pg, asks))
            watcher.cancel()
        if pg.rank == 0:
            await faults
        await self._in_step()
        self.network.refused = 0
        await asyncio.sleep(RECOVERS)  # what was given up is stopped
        self._check_idle(pg)
        await self._in_step()
        for dst in range(pg.size):  # every place is free again
            for what in ("quick", "echo", "slow", "limited"):
                number = self._next()
                assert await pg.call(dst, what, number, 0.0, b"", timeout=10) == [number, 0]
            assert [part async for part in pg.stream(dst, "stream", 0, 2, 0, 0.0, "", timeout=10)] == [
                [0, b""],
                [1, b""],
            ]
        await self._in_step()
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        await pg.barrier()

    async def _watch(self, pg: ProcessGroup) -> None:
        """See at many moments that nothing waits that fits."""
        services = services_of(pg)
        box = services.mailbox
        while True:
            for peer in services.peers.by_uid.values():
                first: Any = next(iter(peer.way.waiting), None)
                caller = peer.caller
                fits = first is not None and caller is not None and caller.fits(first.nbytes)
                assert not fits, "a call that fits waits"
            if box.outside:
                first_one = len(box.outside[0].payload)
                full = len(box.inside) >= mailbox.MESSAGES or box.nbytes + first_one > mailbox.BYTES
                assert full and box.inside, "a message that fits waits"
            await asyncio.sleep(self.network.rng.choice([0.0007, 0.003, 0.1]))

    async def _in_step(self) -> None:
        self._done += 1
        if self._done % self.plan.size == 0:
            self._all_done.set()
            self._all_done = asyncio.Event()
        else:
            async with asyncio.timeout(2 * PATIENCE):
                await self._all_done.wait()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _check_idle(self, pg: ProcessGroup) -> None:
        services = services_of(pg)
        for peer in services.peers.by_uid.values():
            assert not peer.way.waiting, "calls wait, and nobody asks any more"
            assert peer.caller is None or not peer.caller.asking.calls, "calls without an answer are left"
            assert peer.callee is None or not peer.callee.running(), "handlers run that nobody waits for"
            assert peer.callee is None or not peer.callee.served, "calls are served that nobody asks any more"
        for handler in services.handlers.by_name.values():
            free, limit = handler.slots.free, self._limit(handler.name)
            assert free == limit, f"{handler.name} has {free} of {limit} places"

    def _limit(self, name: str) -> int:
        return self.plan.limits.handler if name in ("limited", "raises later", "stream") else 256

    # ── what others may ask ──────────────────────────────────────────────────────────────────────────

    def _serve(self, pg: ProcessGroup) -> None:
        ran, limit = self.ran, self.plan.limits.handler

        @pg.handler
        def quick(number: int, seconds: float, data: bytes) -> list[int]:
            ran[number] += 1
            return [number, len(data)]

        @pg.handler
        async def echo(number: int, seconds: float, data: bytes) -> Any:
            ran[number] += 1
            return [number, data] if data else [number, 0]

        @pg.handler
        async def slow(number: int, seconds: float, data: bytes) -> list[int]:
            ran[number] += 1
            await asyncio.sleep(seconds)
            return [number, len(data)]

        @pg.handler(limit=limit)
        async def limited(number: int, seconds: float, data: bytes) -> list[int]:
            ran[number] += 1
            await asyncio.sleep(seconds)
            return [number, len(data)]

        @pg.handler
        def raises(number: int, which: str) -> None:
            ran[number] += 1
            raise odd(which)

        @pg.handler(name="raises later", limit=limit)
        async def raises_later(number: int, which: str) -> None:
            ran[number] += 1
            await asyncio.sleep(0.001)
            raise odd(which)

        @pg.handler
        async def back(number: int, dst: int, inner: int) -> Any:
            ran[number] += 1
            return [number, await pg.call(dst, "quick", inner, 0.0, b"", timeout=50)]

        @pg.handler(name="odd")
        async def mirror(number: int, value: Any) -> list[Any]:
            ran[number] += 1
            return [number, value]

        @pg.handler(name="odd result")
        def gives(number: int, seed: int) -> list[Any]:
            ran[number] += 1
            return [number, odd_value(random.Random(seed), SHORT)]

        @pg.handler
        def picky(number: int, *ones: Picky, other: Picky | None = None) -> list[Any]:
            ran[number] += 1
            return [number, *(type(one).__name__ for one in ones)]

        @pg.handler(name="picky stream")
        async def parts(number: int, count: int, bad: int) -> AsyncIterator[Picky]:
            ran[number] += 1
            for part in range(count):
                yield {"number": part, "bad": part == bad}  # type: ignore[misc]

        self._parts[pg.rank] = parts

        @pg.handler(limit=limit)
        async def stream(
            number: int, count: int, size: int, seconds: float, which: str
        ) -> AsyncIterator[Any]:
            ran[number] += 1 if number else 0
            for part in range(count):
                if seconds:
                    await asyncio.sleep(seconds)
                yield [part, bytes(size)]
            if which:
                raise odd(which)

    async def _take(self, pg: ProcessGroup) -> None:
        """Take what comes, and be cancelled again and again meanwhile."""
        rng = random.Random(f"{self.plan.seed} takes {pg.rank}")
        messages, pause = pg.messages(), self.plan.takes[pg.rank]
        while True:
            try:
                if rng.random() < 0.3:
                    sender, message = await asyncio.wait_for(anext(messages), rng.choice([0, 0.001, 0.01]))
                else:
                    sender, message = await anext(messages)
            except TimeoutError:
                await asyncio.sleep(0.001)
                continue
            except dist.UnreadableMessage as error:
                sender = -1 if error.sender is None else error.sender
                self.unread[sender, pg.rank] += 1
                continue
            except StopAsyncIteration:  # this rank has failed, and left
                return
            assert sender is not None
            self.taken[sender, pg.rank].append(message[0])
            if pause:
                await asyncio.sleep(pause)

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────

    async def _faults(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for fault in self.plan.faults:
            await asyncio.sleep(max(0.0, began + fault.at - loop.time()))
            self._strike(fault, loop.time())

    def _strike(self, fault: Fault, now: float) -> None:
        match fault.kind:
            case "block":
                self.network.block(fault.rank, fault.seconds)
                self._trouble = max(self._trouble, now + fault.seconds + RECOVERS)
            case "cut":
                self.network.cut(fault.rank, fault.other)
                self._broken = True
            case "refuse":
                self.network.refused = 1
                self._broken = True

    # ── what is asked ────────────────────────────────────────────────────────────────────────────────

    async def _user(self, pg: ProcessGroup, asks: Sequence[Ask]) -> None:
        for ask in asks:
            if ask.pause:
                await asyncio.sleep(ask.pause)
            match ask.what:
                case "message" | "odd message":
                    await self._message(pg, ask)
                case "stream" | "stream raises":
                    await self._stream(pg, ask)
                case "unread message":
                    await self._unread(pg, ask)
                case "picky":
                    await self._picky(pg, ask)
                case "picky stream":
                    await self._picky_stream(pg, ask)
                case "odd" | "odd result":
                    await self._odd(pg, ask)
                case _:
                    await self._call(pg, ask)

    def _timeout(self, ask: Ask) -> float | None:
        return ask.after if ask.way == "limit" else None

    async def _call(self, pg: ProcessGroup, ask: Ask) -> None:
        number, expected = self._next(), None
        args: list[Any] = [ask.seconds, bytes(ask.size)]
        if ask.what.startswith("raises"):
            args = [ask.odd]
        elif ask.what == "back":
            inner = self._next()
            args, expected = [(ask.dst + 1) % pg.size, inner], [number, [inner, 0]]
        elif ask.what == "echo":
            expected = [number, bytes(ask.size) if ask.size else 0]
        else:
            expected = [number, ask.size]
        try:
            result = await _given_up(
                ask, pg.call(ask.dst, ask.what, number, *args, timeout=self._timeout(ask))
            )
        except (asyncio.CancelledError, TimeoutError, dist.CallError) as error:
            self._failed(ask, number, error)
            return
        assert result == expected, f"{ask.what} gave {str(result)[:100]}, not {str(expected)[:100]}"
        self.good.append(number)

    async def _odd(self, pg: ProcessGroup, ask: Ask) -> None:
        """Send an odd value there, or have it sent here."""
        number, value = self._next(), odd_value(random.Random(ask.value), SHORT)
        there = ask.what == "odd"
        try:
            argument = value if there else ask.value
            result = await _given_up(
                ask, pg.call(ask.dst, ask.what, number, argument, timeout=self._timeout(ask))
            )
        except dist.UsageError as error:
            _refused(ask, value, error)
            self.not_run.append(number)
        except (asyncio.CancelledError, TimeoutError, dist.CallError) as error:
            not_sent = isinstance(error, dist.RemoteError) and error.type_name == "aiodist.UsageError"
            if there or not not_sent:
                self._failed(ask, number, error)
            else:
                _refused(ask, value, error)
        else:
            assert verdict(value) is not Verdict.refused, f"value {ask.value} was sent"
            assert form(result) == form([number, arrived(value)]), f"value {ask.value} came as another"
            self.good.append(number)

    async def _picky(self, pg: ProcessGroup, ask: Ask) -> None:
        """Send dataclasses, one of which may not be made there."""
        number, bad = self._next(), ask.value % (ask.count + 1)
        ones = [{"number": one, "bad": one == bad} for one in range(ask.count)]
        asked = pg.call(ask.dst, "picky", number, *ones, timeout=self._timeout(ask))
        try:
            result = await _given_up(ask, asked)
        except (asyncio.CancelledError, TimeoutError, dist.CallError) as error:
            if f"argument {bad + 2} of picky: no Picky can be made" not in str(error):
                self._failed(ask, number, error)
                return
            self.not_run.append(number)
            refused = isinstance(error, dist.CallNotRun) and bad < ask.count
            _so(refused, f"all can be made: {error!r}")
        else:
            assert bad == ask.count, f"argument {bad + 2} was made"
            assert result == [number] + ["Picky"] * ask.count, f"a picky handler got {result}"
            self.good.append(number)

    async def _picky_stream(self, pg: ProcessGroup, ask: Ask) -> None:
        """Take parts that are dataclasses, one of which may not be made here."""
        number, got, bad = self._next(), 0, ask.value % (ask.count + 1)
        parts = self._parts[pg.rank]
        stream = pg.stream(ask.dst, parts, number, ask.count, bad, timeout=self._timeout(ask))
        for tries in itertools.count():
            try:
                part = await (anext(stream) if tries % 4 == 3 else _given_up(ask, anext(stream)))
            except StopAsyncIteration:
                assert got == ask.count == bad, f"a stream ended behind {got} of {ask.count} parts, bad {bad}"
                return
            except dist.CallError as error:
                if "a part of another shape" in str(error):
                    _so(got == bad < ask.count, f"part {got} can be made: {error}")
                else:
                    self._failed(ask, number, error)
                with contextlib.suppress(dist.CallError, dist.UsageError):
                    part = await anext(stream)
                    raise AssertionError(f"behind an error a stream gave {part}")
                return
            except (asyncio.CancelledError, TimeoutError):
                continue
            assert part == Picky(got), f"part {got} of a stream came as {part}"
            got += 1

    async def _unread(self, pg: ProcessGroup, ask: Ask) -> None:
        """Send a message that cannot be read."""
        pair = (pg.rank, ask.dst)
        try:
            await _given_up(ask, pg.send_message(ask.dst, UNREADABLE, timeout=self._timeout(ask)))
        except (asyncio.CancelledError, TimeoutError, dist.CallError) as error:
            self._failed(ask, 0, error)
            if not isinstance(error, dist.CallNotRun):
                self.perhaps[pair] += 1
        else:
            self.unreadable[pair] += 1

    async def _message(self, pg: ProcessGroup, ask: Ask) -> None:
        pair = (pg.rank, ask.dst)
        data: Any = bytes(ask.size)
        if ask.what == "odd message":
            data = odd_value(random.Random(ask.value), SHORT)
        numbers: list[int] = []

        async def send() -> None:
            self.begun[pair] += 1  # in the step in which it begins
            numbers.append(self.begun[pair])
            await pg.send_message(ask.dst, [numbers[0], data], timeout=self._timeout(ask))

        try:
            await _given_up(ask, send())
        except dist.UsageError as error:
            _refused(ask, data, error)
            self.never[pair].update(numbers)
        except (asyncio.CancelledError, TimeoutError, dist.CallError) as error:
            self._failed(ask, 0, error)
            if isinstance(error, dist.CallNotRun):
                self.never[pair].update(numbers)
        else:
            assert verdict(data) is not Verdict.refused, f"value {ask.value} was sent"
            self.sent[pair] += numbers

    async def _stream(self, pg: ProcessGroup, ask: Ask) -> None:
        """Take all parts, or leave it; what gives up asks again."""
        number, got, raises = self._next(), 0, ask.what == "stream raises"
        args = (number, ask.count, ask.size, min(ask.seconds, 0.02), ask.odd if raises else "")
        stream = pg.stream(ask.dst, "stream", *args, timeout=self._timeout(ask))
        tries = 0
        while got != ask.leaves:
            tries += 1
            try:
                part = await (anext(stream) if tries % 4 == 0 else _given_up(ask, anext(stream)))
            except StopAsyncIteration:
                assert got == ask.count, f"a stream ended behind {got} of {ask.count} parts"
                assert not raises, "a stream ended well whose handler raises"
                return
            except dist.CallError as error:
                self._failed(ask, number, error)
                with contextlib.suppress(dist.CallError):
                    part = await anext(stream)
                    raise AssertionError(f"behind an error a stream gave {part}")
                return
            except (asyncio.CancelledError, TimeoutError):
                continue
            assert part == [got, bytes(ask.size)], f"part {got} of a stream came as {str(part)[:60]}"
            got += 1
        await stream.aclose()  # dropping it waits for a collection where an error's traceback holds it
        if ask.leaves % 2:
            try:
                await anext(stream)
            except StopAsyncIteration:
                assert got == ask.count, (
                    f"a stream that was left behind {got} of {ask.count} parts ended well"
                )
            except (dist.UsageError, dist.CallError):
                pass
            else:
                raise AssertionError("a stream that was left goes on")

    def _failed(self, ask: Ask, number: int, error: BaseException) -> None:
        """What somebody was told is so."""
        healthy = asyncio.get_running_loop().time() > self._trouble
        assert not isinstance(error.__cause__, dist.PeerLost), f"no rank is lost: {error.__cause__}"
        if isinstance(error, dist.CallNotRun):
            self.not_run.append(number)
            if isinstance(error, TimeoutError):
                assert ask.way == "limit", f"nobody set a limit: {error}"
                busy = "busy" in str(error) and "so many" not in str(error)
                assert not busy or not healthy or self._broken or ask.after < 1, f"no one is busy: {error}"
            else:
                assert self._broken, f"nothing is lost: {error}"
        elif isinstance(error, dist.CallTimeout):
            assert ask.way == "limit", f"nobody set a limit: {error}"
        elif isinstance(error, dist.CallUnknown):
            assert self._broken, f"nothing is lost: {error}"
        elif isinstance(error, dist.RemoteError):
            own = ask.what.endswith(("raises", "later"))
            back = ask.what == "back" and (self._broken or self._is_circle(error))
            assert own or back, f"{ask.what} raises nothing: {error}"
        elif isinstance(error, asyncio.CancelledError | TimeoutError):
            assert ask.way not in ("plain", "limit"), f"nobody gave up: {error!r}"

    def _is_circle(self, error: dist.RemoteError) -> bool:
        """Calls may wait for each other: those that hold all places call back, and find all places held."""
        asks = (ask for rank in self.plan.users for user in rank for ask in user)
        enough = sum(ask.what == "back" for ask in asks) >= 2 * self.plan.limits.calls
        return enough and error.type_name == "aiodist.CallTooLate"


def _so(holds: bool, otherwise: str) -> None:
    assert holds, otherwise


def _refused(ask: Ask, value: Any, error: BaseException) -> None:
    """A value that was refused cannot be sent."""
    assert verdict(value) is not Verdict.sent, f"{ask.what} can be sent, value {ask.value}: {error}"


async def _given_up(ask: Ask, asked: Awaitable[Any]) -> Any:
    """Await something, and give it up as the plan says."""
    match ask.way:
        case "turns" | "later":
            task = asyncio.ensure_future(asked)
            if ask.way == "later":
                await asyncio.wait([task], timeout=ask.after)
            else:
                for _ in range(int(ask.after)):
                    await asyncio.sleep(0)
            task.cancel()
            return await task
        case "wait_for":
            return await asyncio.wait_for(asked, ask.after)
        case "timeout":
            async with asyncio.timeout(ask.after):
                return await asked
        case "group":
            return await _in_a_group(ask, asked)
        case _:
            return await asked


async def _in_a_group(ask: Ask, asked: Awaitable[Any]) -> Any:
    async def fails() -> None:
        await asyncio.sleep(ask.after)
        raise TimeoutError

    async def await_it() -> Any:
        result = await asked
        fails_later.cancel()
        return result

    try:
        async with asyncio.TaskGroup() as tasks:
            fails_later = tasks.create_task(fails())
            task = tasks.create_task(await_it())
    except BaseExceptionGroup as errors:
        if not task.done() or task.cancelled() or task.exception() is not None:
            raise errors.exceptions[0] from None
    return task.result()
