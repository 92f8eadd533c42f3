"""The tables of calls at both ends count alike, whatever happens in whichever order."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.group.services.asking import Asked, Asking
from aiodist.group.services.fields import PARTS
from aiodist.group.services.serving import Served, Serving
from aiodist.group.services.under_way import CALLS, PART_COST, WINDOW
from aiodist.net.wire.calls import Says


def begin(serving: Serving, number: int, kind: Says, nbytes: int, deadline: float) -> Served:
    """A call comes, and is answered later."""
    serving.admit(number, nbytes)
    return serving.begin(number, kind, nbytes, deadline)


def ask(asking: Asking, kind: Says, nbytes: int, deadline: float) -> Asked:
    """A call is asked."""
    asked = Asked(kind, None)
    asked.nbytes, asked.deadline = nbytes, deadline
    asking.ask(asked)
    return asked


@given(st.integers(0, 1 << 32), st.integers(20, 400))
def test_what_may_be_asked_may_be_served(seed: int, steps: int) -> None:
    """A pair of ends, whose frames arrive in order after any time: nobody refuses what the other may do."""
    rng = random.Random(seed)
    asking, serving = Asking(), Serving()
    there: list[tuple[str, Asked]] = []  # under way to the side that serves
    back: list[int] = []
    asked: list[Asked] = []
    served: dict[int, Served] = {}
    for _ in range(steps):
        match rng.randrange(5):
            case 0 | 1:
                nbytes = rng.choice([0, 10, WINDOW // 3, WINDOW, 2 * WINDOW])
                if asking.fits(nbytes):
                    one = ask(asking, Says.CALL, nbytes, rng.random())
                    asked.append(one)
                    there.append(("call", one))
            case 2:
                if asked:
                    one = rng.choice(asked)
                    if asking.abandon(one):
                        there.append(("cancel", one))
                    assert not asking.abandon(one)
            case 3:
                if there:
                    what, one = there.pop(0)
                    if what == "call":
                        served[one.number] = begin(serving, one.number, one.kind, one.nbytes, one.deadline)
                    else:
                        stopped = serving.cancel(one.number)
                        assert stopped is served.get(one.number)
                        assert stopped is None or stopped.stopped
            case 4:
                if served:
                    number = rng.choice(list(served))
                    assert serving.leave(number) is served[number]
                    assert serving.leave(served.pop(number).number) is None
                    back.append(number)
                if back:
                    one = asking.answered(back.pop(0))
                    asked.remove(one)
    assert len(serving.calls) == len(served)
    assert {one.number for one in asking} == {one.number for one in asked}


def test_a_window_of_calls() -> None:
    asking = Asking()
    calls = [ask(asking, Says.CALL, 0, 1.0) for _ in range(CALLS)]
    assert not asking.fits(0)
    asking.abandon(calls[0])
    assert not asking.fits(0)  # it may still run there
    asking.answered(calls[0].number)
    assert asking.fits(WINDOW)
    assert not asking.fits(WINDOW + 1)


def test_numbers_are_taken_once() -> None:
    serving = Serving()
    served = begin(serving, 5, Says.CALL, 0, 1.0)
    assert serving.leave(5) is served
    with pytest.raises(WireError):
        begin(serving, 5, Says.CALL, 0, 1.0)
    begin(serving, 4, Says.CALL, 0, 1.0)  # it was large, and came later
    assert serving.skip(3)  # likewise, and it was cancelled on its way
    for number in (4, 3, 5 + CALLS, 1 << 60):
        with pytest.raises(WireError):
            begin(serving, number, Says.CALL, 0, 1.0)
    assert serving.cancel(5) is None
    assert not serving.skip(5)
    with pytest.raises(WireError):
        Asking().answered(1)
    with pytest.raises(WireError):
        Asking().part(1, 0)


def test_more_than_a_window_is_refused() -> None:
    serving = Serving()
    begin(serving, 1, Says.CALL, 2 * WINDOW, 1.0)  # a single one may be of any size
    with pytest.raises(WireError):
        begin(serving, 2, Says.CALL, 1, 1.0)
    serving = Serving()
    for number in range(CALLS):
        begin(serving, number + 1, Says.MESSAGE, 0, 1.0)
    with pytest.raises(WireError):
        begin(serving, CALLS + 1, Says.MESSAGE, 0, 1.0)


@given(st.lists(st.floats(0, 10), max_size=30), st.floats(0, 10))
def test_deadlines(deadlines: list[float], now: float) -> None:
    asking, serving = Asking(), Serving()
    for number, deadline in enumerate(deadlines):
        ask(asking, Says.CALL, 0, deadline)
        begin(serving, number + 1, Says.CALL, 0, deadline)
    assert asking.due == serving.due == min(deadlines, default=math.inf)
    late = [one.number for one in asking.expired(now)]
    assert late == [one.number for one in serving.stop_late(now)]
    assert late == [number + 1 for number, deadline in enumerate(deadlines) if deadline <= now]
    assert serving.due == min((deadline for deadline in deadlines if deadline > now), default=math.inf)
    assert serving.stop_late(now) == []  # each is stopped once


@given(st.lists(st.integers(0, PARTS), max_size=200))
def test_credit_is_given_back_whole(sizes: list[int]) -> None:
    asking, serving = Asking(), Serving()
    asked = ask(asking, Says.STREAM, 0, math.inf)
    served = begin(serving, asked.number, Says.STREAM, 0, math.inf)
    waiting: list[int] = []
    for size in sizes:
        while served.credit <= 0:  # its consumer takes what is there, and the handler goes on
            assert waiting
            if granted := asked.took(waiting.pop(0)):
                serving.grant(asked.number, granted)
        served.spend(size)
        assert asking.part(asked.number, size) is asked
        waiting.append(size)
        assert sum(waiting) <= 2 * PARTS + PART_COST


def test_parts_that_nobody_granted_are_refused() -> None:
    asking = Asking()
    asked = ask(asking, Says.STREAM, 0, math.inf)
    assert asking.part(asked.number, 2 * PARTS) is asked
    with pytest.raises(WireError, match="not granted"):
        asking.part(asked.number, 0)
    call = ask(asking, Says.CALL, 0, math.inf)
    with pytest.raises(WireError, match="no stream"):
        asking.part(call.number, 0)
