"""The programs of services find each fault that they were written for, where its mend is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiodist.group.services import codec, running
from aiodist.group.services.asking import Asked
from aiodist.group.services.mailbox import Letter, Mailbox
from aiodist.group.services.queue import Queue
from aiodist.group.services.stream import Stream
from aiodist.group.services.way import CallWay
from aiodist.net.wire import repeats
from aiodist.net.wire.calls import Says
from tests.levels import COSTLY
from tests.programs.service_run import Mute, Own, run
from tests.programs.values import Excess, Pair

MOST = 2000
"""Programs among which one has to go wrong."""

CHUNK = 10

Mutation = Callable[[pytest.MonkeyPatch], None]


def room_that_others_take(patch: pytest.MonkeyPatch) -> None:
    """Who begins asks at once where there is room, though others wait."""
    ask = CallWay.ask

    def asks(self: CallWay, asked: Asked) -> None:
        caller = self.caller
        if caller is not None and caller.fits(asked.nbytes):
            caller.ask(asked)
        else:
            ask(self, asked)

    patch.setattr(CallWay, "ask", asks)


def room_a_turn_later(patch: pytest.MonkeyPatch) -> None:
    """Who is let in asks when its task runs again."""

    admit = CallWay.admit

    def admits(self: CallWay) -> None:
        caller = self.caller
        if caller is None or caller.over or self._over is not None:
            admit(self)
        elif self._waiting and caller.fits((first := next(iter(self._waiting))).nbytes):
            self._leave(first)
            self._loop.call_soon(again, self, first)

    def again(self: CallWay, asked: Asked) -> None:
        if self.caller is not None and self.caller.fits(asked.nbytes):
            self.caller.ask(asked)
            self.admit()
        else:
            self._waiting[asked] = None
            self._waiting.move_to_end(asked, last=False)

    patch.setattr(CallWay, "admit", admits)


def a_place_when_encoded(patch: pytest.MonkeyPatch) -> None:
    """A message has its place in the order when it is bytes."""
    patch.setattr(Queue, "begin", lambda self, message: None)


def one_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """What makes room lets one in, and nobody lets in the next."""
    admit = CallWay.admit

    def admits(self: CallWay) -> None:
        caller = self.caller
        if caller is None or caller.over or self._over is not None:
            admit(self)
        elif self._waiting and caller.fits((first := next(iter(self._waiting))).nbytes):
            self._leave(first)
            caller.ask(first)

    patch.setattr(CallWay, "admit", admits)


def a_mailbox_that_does_not_look(patch: pytest.MonkeyPatch) -> None:
    """A message that is withdrawn lets nobody in that was behind it."""

    def withdraw(self: Mailbox, letter: Letter) -> bool:
        if letter not in self.outside:
            return False
        self.outside.remove(letter)
        return True

    patch.setattr(Mailbox, "withdraw", withdraw)


def streams_that_are_left(patch: pytest.MonkeyPatch) -> None:
    """A stream whose anext is cancelled has ended."""
    follow = Stream._next

    async def next_(self: Stream[Any]) -> Any:
        try:
            return await follow(self)
        except asyncio.CancelledError:
            self._leave((Says.RESULT, b""))
            raise

    patch.setattr(Stream, "_next", next_)


def parts_that_are_taken_first(patch: pytest.MonkeyPatch) -> None:
    """A part is taken before it is decoded."""

    async def next_(self: Stream[Any]) -> Any:
        if self._asked is None and self._end is None:
            self._begin()
        if not self._parts and self._end is None:
            await self._until_news(self._loop.time() + self._timeout)
        if self._parts:
            received = self._parts.popleft()
            assert self._way is not None
            assert self._asked is not None
            self._way.took(self._asked, len(received.payload))
            await asyncio.sleep(0)  # in which a thread may decode
            return self._built(await received.value())
        raise self._ending()

    patch.setattr(Stream, "_next", next_)


def parts_that_are_taken_before_they_are_made(patch: pytest.MonkeyPatch) -> None:
    """A stream whose part cannot be made goes on behind it."""
    make = Stream._built

    def makes(self: Stream[Any], part: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Stream, "_leave", lambda self, end: self._parts.popleft())
            return make(self, part)

    patch.setattr(Stream, "_built", makes)


def errors_that_are_no_exceptions(patch: pytest.MonkeyPatch) -> None:
    """What a handler raises leaves its task, or the reader, unless it is an Exception."""
    leave = (SystemExit, KeyboardInterrupt, GeneratorExit, Own, Mute, pytest.fail.Exception)
    patch.setattr(running, "ENDS_THE_PROCESS", leave)


def values_without_an_account(patch: pytest.MonkeyPatch) -> None:
    """What an object holds again and again is not counted. Ten times as much as may be is a finding."""

    def check(self: repeats.Account) -> None:
        if self.time > 10 * (repeats.FREE_TIME + repeats.TIMES * self._held_time):
            raise Excess("a value is written without a bound")

    patch.setattr(repeats.Account, "_check", check)


def values_that_are_looked_at_whole(patch: pytest.MonkeyPatch) -> None:
    """All of a dataclass is looked at before it is written, to find out whether it is large."""
    is_bulky = codec.is_bulky

    def looks(value: Any) -> bool:
        inside = [value.left, value.right] if isinstance(value, Pair) else value[:2]
        return any([is_bulky(value), *(looks(one) for one in inside if isinstance(one, Pair))])

    def looks_first(value: Any) -> bool:
        return looks(value) if isinstance(value, list | Pair) else is_bulky(value)

    patch.setattr(codec, "is_bulky", looks_first)


MUTATIONS: dict[Mutation, int] = {
    room_that_others_take: 0,
    room_a_turn_later: 0,
    a_place_when_encoded: 0,
    one_at_a_time: 0,
    a_mailbox_that_does_not_look: 380,
    streams_that_are_left: 0,
    parts_that_are_taken_first: 0,
    parts_that_are_taken_before_they_are_made: 0,
    errors_that_are_no_exceptions: 0,
    values_without_an_account: 0,
    values_that_are_looked_at_whole: 40,
}
"""Each with the seed to begin with: while programs are drawn as they are, one of the first from there on
finds it; else later ones do."""


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mend_taken_back_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    first = MUTATIONS[mutation]
    for start in range(first, first + MOST, CHUNK):
        with monkeypatch.context() as patch:
            mutation(patch)
            violations = run(range(start, start + CHUNK))
        if violations:
            still = [violation.words for violation in run([violation.seed for violation in violations])]
            assert not still, "with the mend they are right"
            return
    raise AssertionError(f"none of {MOST} programs went wrong")
