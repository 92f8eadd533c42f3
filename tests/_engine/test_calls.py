"""Calls that the engine asks, answers and serves: what it takes, and what it leaves to Python untouched."""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aiodist import _engine
from aiodist.base.errors import WireError
from aiodist.group.services.asking import Asked, Asking
from aiodist.group.services.codec import encode
from aiodist.group.services.handlers import Handler
from aiodist.group.services.outcomes import VALUE
from aiodist.group.services.serving import SERVED, Served, Serving
from aiodist.net.wire import calls, objects
from aiodist.net.wire.calls import Frames, Says, frame, request

pytestmark = pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine")

MOST, WINDOW = 5, 10_000


class Alarm:
    """An alarm that rings never."""

    at = math.inf

    def set(self, at: float) -> None:
        self.at = at


class Runs:
    """What the engine leaves to Python."""

    def __init__(self, left: list[Any]) -> None:
        self.left = left

    def __getattr__(self, name: str) -> Any:
        return lambda *what: self.left.append((name, *what))

    async def answer(self, served: Served, _handler: Handler, result: Any) -> None:
        self.left.append(("answer", served.number, result))


class Bench:
    """Both matchers on an end each, whose writes are kept."""

    def __init__(self, most: int = MOST) -> None:
        assert _engine.compiled is not None
        engine: Any = _engine.compiled
        self.written: list[bytes] = []
        self.left: list[Any] = []

        class End(engine.FrameEnd):  # type: ignore[misc]
            def _write(end, data: bytes) -> None:  # noqa: N805
                self.written.append(data)

            def _frame(end, kind: int, number: int, body: bytes) -> None:  # noqa: N805
                self.left.append((kind, number, body))

            def _received(end, data: bytes) -> None:  # noqa: N805
                end.deliver(data)

        loop = asyncio.get_running_loop()
        self.asking, self.serving = Asking(), Serving()
        self.here, self.there = End(), End()
        self.waiting: dict[Any, None] = {}
        self.lanes: dict[int, Any] = {}
        self.here.set_up(loop.call_soon, {}, self.lanes)
        self.there.set_up(loop.call_soon, {}, {})
        self.alarm = Alarm()
        limits: Any = {"most": most, "window": WINDOW, "alarm": self.alarm}
        self.asker = self.here.matcher = engine.Asker(
            self.here, self.asking, self.waiting, {}, loop, make=Asked, by=SERVED, call=Says.CALL,
            message=Says.MESSAGE, room=lambda: self.left.append("room"), decoded=VALUE, **limits,
        )  # fmt: skip
        self.handlers: dict[str, Handler] = {}
        self.there.matcher = engine.Server(
            self.there, self.serving, self.handlers, loop, runs=Runs(self.left), make=Served, served=SERVED,
            call=Says.CALL, context=contextvars.copy_context(), free=lambda: None, **limits,
        )  # fmt: skip

    def ask(self, value: Any, name: bytes = b"plain", kind: Says = Says.CALL, timeout: float = 9.0) -> Any:
        return self.asker.ask(kind, name, value, timeout)

    def frames(self) -> list[tuple[int, int, Any]]:
        """What was written, as frames."""
        self.here.flush()
        self.there.flush()
        found = Frames().feed(b"".join(self.written))
        self.written.clear()
        return [(kind, number, bytes(body)) for kind, number, body in found]


async def test_a_request_is_the_one_that_python_would_send() -> None:
    bench = Bench()
    asked = bench.ask([1, {"a": "é"}], "né".encode())
    assert type(asked) is Asked
    assert (asked.number, asked.kind, asked.name, asked.stopped) == (1, Says.CALL, "né".encode(), "")
    assert asked.by is None and bench.asking.calls == {1: asked}
    payload = encode([1, {"a": "é"}])
    assert bench.asking.nbytes == asked.nbytes == len(payload)
    assert bench.asking.due == asked.deadline == bench.alarm.at
    assert bench.written == [request(Says.CALL, 1, 9.0, "né".encode(), payload)]
    token = SERVED.set(Served(1, Says.CALL, 0, 1.0))
    assert bench.ask([]).by is SERVED.get()
    SERVED.reset(token)
    assert bench.ask([], timeout=math.inf).deadline == math.inf


async def test_what_may_not_be_sent_now_is_left_to_python_untouched() -> None:
    bench = Bench()
    for value in ([(1,)], [1 << 70], ["x" * 20_000], [object()]):
        assert bench.ask(value) is None
    assert bench.ask([], b"n" * 256) is None
    bench.waiting[1] = None
    assert bench.ask([]) is None
    bench.waiting.clear()
    bench.lanes[3] = None
    assert bench.ask([]) is None
    bench.lanes.clear()
    for name in ("over", "full"):
        setattr(bench.here, name, True)
        assert bench.ask([]) is None
        setattr(bench.here, name, False)
    assert (bench.asking.calls, bench.asking.nbytes, bench.asking.last, bench.frames()) == ({}, 0, 0, [])
    assert bench.ask(["y" * 9000]) and bench.ask(["z" * 2000]) is None  # more bytes than a window
    assert all(bench.ask([]) for _ in range(MOST - 1)) and bench.ask([]) is None
    assert [number for _, number, _ in bench.frames()] == list(range(1, MOST + 1))


async def test_an_answer_is_given_to_its_call_once() -> None:
    bench = Bench()
    calls_ = [bench.ask([number]) for number in range(3)]
    message = bench.ask("hello", b"", Says.MESSAGE)
    bench.waiting[1] = None
    calls_[2].waiter.cancel()
    ends = [frame(Says.RESULT, number, encode({"is": number})) for number in (2, 3, 1)]
    bench.here.deliver(b"".join(ends) + frame(Says.RESULT, message.number))
    assert [call.waiter.result() for call in (*calls_[:2], message)] == [
        (VALUE, {"is": 1}), (VALUE, {"is": 2}), (VALUE, None)
    ]  # fmt: skip
    assert bench.left == ["room"] * 4
    assert (bench.asking.calls, bench.asking.nbytes) == ({}, 0)
    bench.left.clear()
    stream, call = Asked(Says.STREAM, None), Asked(Says.CALL, None)
    for asked in (stream, call):
        asked.nbytes, asked.deadline = 0, 1.0
        bench.asking.ask(asked)
    odd = [
        (Says.RESULT, 1, encode(1)), (Says.RESULT, stream.number, encode(1)), (Says.RESULT, call.number, b""),
        (Says.RESULT, call.number, encode((1,))), (Says.RAISED, call.number, encode(1)),
    ]  # fmt: skip
    for one in odd:
        bench.here.deliver(frame(*one))
    bench.here.bodies[call.number] = bytearray(b"a piece")
    bench.here.deliver(frame(Says.RESULT, call.number, encode(1)))
    assert bench.left == [*odd, (Says.RESULT, call.number, encode(1))]
    assert set(bench.asking.calls) == {stream.number, call.number}


async def test_functions_answer_at_once() -> None:
    bench = Bench()
    error = ValueError("no")

    def fails(_: Any) -> None:
        raise error

    for name, function in {"plain": lambda x: {"got": x}, "fails": fails, "odd": lambda x: (x,)}.items():
        bench.handlers[name] = Handler(name, function, 3)
    for number, name in enumerate(bench.handlers, 1):
        bench.there.deliver(request(Says.CALL, number, 9.0, name.encode(), encode([number])))
    assert bench.frames() == [(Says.RESULT, 1, encode({"got": 1}))]
    assert bench.left == [
        ("raised", 2, "fails", error), ("returned", 3, bench.handlers["odd"], len(encode([3])), 9.0, (3,))
    ]  # fmt: skip
    assert (bench.serving.last, bench.serving.calls) == (3, {})


async def test_async_functions_have_a_task() -> None:
    bench = Bench()
    begun, go = asyncio.Event(), asyncio.Event()
    seen: list[Any] = []

    async def later(x: int) -> Any:
        seen.append((asyncio.current_task(), SERVED.get()))
        if len(seen) == 3:
            begun.set()
        await go.wait()
        if x == 3:
            raise KeyError(x)
        return (x,) if x == 2 else x

    handler = bench.handlers["later"] = Handler("later", later, 3)
    for number in range(1, 5):
        bench.there.deliver(request(Says.CALL, number, 9.0, b"later", encode([number])))
    assert bench.left == [(Says.CALL, 4, request(Says.CALL, 4, 9.0, b"later", encode([4]))[calls.HEAD :])]
    served = dict(bench.serving.calls)
    assert handler.slots.free == 0 and set(served) == {1, 2, 3}
    await begun.wait()
    assert seen == [(one.work, one) for one in served.values()]
    assert all(one.begun and one.started for one in served.values())
    tasks = [one.work for one in served.values()]
    go.set()
    await asyncio.wait(tasks)
    assert bench.frames() == [(Says.RESULT, 1, encode(1))]
    assert bench.left[1] == ("answer", 2, (2,))
    assert bench.left[2][:3] == ("failed", served[3], "later") and bench.left[2][3].args == (3,)
    assert handler.slots.free == 1  # the others are Python's to end
    assert [one.exception() for one in tasks] == [None] * 3


async def test_of_many_calls_at_once_some_begin_before_others_are_looked_at() -> None:
    """So the loop turns, and all are answered; what comes meanwhile stands behind them."""
    bench = Bench(most=256)
    over = asyncio.Event()

    async def now(x: int) -> int:
        if x == 200:
            over.set()
        return x

    bench.handlers["now"] = Handler("now", now, 256)
    whole = b"".join(request(Says.CALL, n, 9.0, b"now", encode([n])) for n in range(1, 201))
    cut = len(whole) // 2 + 5
    bench.there.deliver(whole[:cut])
    assert bench.serving.last == 32
    bench.there.deliver(whole[cut:])
    assert bench.serving.last == 32
    await over.wait()
    await asyncio.sleep(0)
    assert bench.frames() == [(Says.RESULT, n, encode(n)) for n in range(1, 201)]
    assert (bench.serving.calls, bench.serving.nbytes, bench.left) == ({}, 0, [])


async def test_a_call_that_is_stopped_before_its_first_step_does_not_begin() -> None:
    bench = Bench()

    async def later() -> None:
        raise AssertionError("it was stopped")

    bench.handlers["later"] = Handler("later", later, 3)
    bench.there.deliver(request(Says.CALL, 1, 9.0, b"later", encode([])))
    [served] = bench.serving
    if served.started:
        pytest.skip("tasks take their first step at once")
    served.stopped = "so"
    await served.work
    assert bench.left == [("stopped", served)] and not served.begun


async def test_what_is_no_usual_request_is_left_to_python_untouched() -> None:
    bench = Bench()

    async def parts() -> AsyncIterator[int]:
        yield 1

    functions: dict[str, Any] = {"plain": lambda x: x, "parts": parts, "none": lambda: None}
    for name, function in functions.items():
        bench.handlers[name] = Handler(name, function, 1)
    whole = request(Says.CALL, 1, 9.0, b"plain", encode([1]))[calls.HEAD :]
    odd = [
        whole[:-1], whole[:9], b"", whole.replace(b"plain", b"plaim"), whole.replace(b"plain", b"pl\xffin"),
        whole.replace(b"\x05\0plain", b"\x99\0plain"), whole.replace(b"\x05\0plain", b"\xff\xffplain"),
        request(Says.CALL, 1, math.nan, b"plain", encode([1]))[calls.HEAD :],
        request(Says.CALL, 1, -1.0, b"plain", encode([1]))[calls.HEAD :],
        *(request(Says.CALL, 1, 9.0, name, encode(args))[calls.HEAD :] for name, args in (
            (b"parts", []), (b"none", [1]), (b"plain", []), (b"plain", [1, 2]), (b"plain", {}),
            (b"plain", (1,)), (b"plain", ["x" * 3000]),
        )),
    ]  # fmt: skip
    for body in odd:
        bench.there.deliver(frame(Says.CALL, 1, body))
    for number in (0, 2, 1 << 63):
        bench.there.deliver(frame(Says.CALL, number, whole))
    bench.there.deliver(frame(Says.STREAM, 1, whole))
    assert [body for _, _, body in bench.left[: len(odd)]] == odd and len(bench.left) == len(odd) + 4
    assert (bench.serving.last, bench.serving.calls, bench.frames()) == (0, {}, [])


@pytest.mark.parametrize("seed", range(20))
async def test_nonsense_never_reaches_a_handler_that_did_not_fit(seed: int) -> None:
    """Frames with a few bytes changed: each is taken as Python would read it, or is left, or is no frame."""
    rng = random.Random(seed)
    bench = Bench()
    got: list[Any] = []
    bench.handlers["plain"] = Handler("plain", got.append, 3)
    for number in range(300):
        payload = encode([{"number": number, "more": [1.5, "x", None]}])
        data = bytearray(request(Says.CALL, bench.serving.last + 1, 9.0, b"plain", payload))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(calls.HEAD, len(data))] = rng.randrange(256)
        before, left = len(got), len(bench.left)
        bench.there.deliver(bytes(data))
        assert len(got) + len(bench.left) == before + left + 1
        if len(got) > before:
            _, name, read = calls.read_request(bytes(data[calls.HEAD :]))
            assert name == "plain" and repr(objects.decode(read)) == repr([got[-1]])
    with pytest.raises(WireError):
        bench.there.deliver(b"\xff" * 13)
