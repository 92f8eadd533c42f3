"""The explorer gives what the classic litmus tests are known to give, on x86-64 and on ARM."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.models.memory import NEVER, Fence, Load, Order, Program, Registers, Rules, Sleep, Store, outcomes

ACQUIRE, RELEASE = Order.acquire, Order.release
EVERY = list(Rules)


def possible(rules: Rules, programs: Sequence[Program], wrong: Callable[[Registers], bool]) -> bool:
    """Whether some outcome is wrong."""
    return any(wrong(dict(found)) for found in outcomes(rules, programs))


def message_passing(first: Order, second: Order) -> list[Program]:
    """MP: data, then a flag; the flag, then data."""
    return [
        [Store("data", 1), Store("flag", 1, first)],
        [Load("flag", "flag", second), Load("data", "data")],
    ]


def stale(found: Registers) -> bool:
    return found["flag"] == 1 and found["data"] == 0


@pytest.mark.parametrize(
    ("rules", "first", "second", "seen"),
    [
        (Rules.sequential, Order.relaxed, Order.relaxed, False),
        (Rules.x86, Order.relaxed, Order.relaxed, False),
        (Rules.x86, Order.past_cache, Order.relaxed, False),
        (Rules.arm, Order.relaxed, Order.relaxed, True),
        (Rules.arm, RELEASE, Order.relaxed, True),
        (Rules.arm, Order.relaxed, ACQUIRE, True),
        (Rules.arm, RELEASE, ACQUIRE, False),
    ],
)
def test_message_passing(rules: Rules, first: Order, second: Order, seen: bool) -> None:
    if first is Order.past_cache:  # the data, and not the flag
        programs = message_passing(Order.relaxed, second)
        programs[0] = [Store("data", 1, first), Store("flag", 1)]
        assert possible(rules, programs, stale)
        programs[0] = [Store("data", 1, first), Fence(), Store("flag", 1)]
        assert not possible(rules, programs, stale)
    else:
        assert possible(rules, message_passing(first, second), stale) is seen


@pytest.mark.parametrize("rules", EVERY)
@pytest.mark.parametrize("fenced", [False, True])
def test_store_buffering(rules: Rules, fenced: bool) -> None:
    """SB: both store, and both load what was before. Release and acquire do not forbid it, as in C11 and with
    ARM's LDAPR; its LDAR does."""
    fence = [Fence()] if fenced else []
    programs: list[Program] = [
        [Store("x", 1, RELEASE), *fence, Load("b", "y", ACQUIRE)],
        [Store("y", 1, RELEASE), *fence, Load("a", "x", ACQUIRE)],
    ]
    both = possible(rules, programs, lambda found: found["a"] == found["b"] == 0)
    assert both is (not fenced and rules is not Rules.sequential)


@pytest.mark.parametrize(
    ("rules", "order", "dependent", "seen"),
    [
        (Rules.sequential, Order.relaxed, False, False),
        (Rules.x86, Order.relaxed, False, False),
        (Rules.arm, Order.relaxed, False, True),
        (Rules.arm, ACQUIRE, False, False),
        (Rules.arm, Order.relaxed, True, False),
    ],
)
def test_load_buffering(rules: Rules, order: Order, dependent: bool, seen: bool) -> None:
    """LB: each loads what the other stores afterwards."""

    def needs(register: str) -> frozenset[str]:
        return frozenset([register]) if dependent else frozenset()

    programs: list[Program] = [
        [Load("a", "x", order), Store("y", 1, needs=needs("a"))],
        [Load("b", "y", order), Store("x", 1, needs=needs("b"))],
    ]
    assert possible(rules, programs, lambda found: found["a"] == found["b"] == 1) is seen


@pytest.mark.parametrize("rules", EVERY)
def test_one_word_never_goes_back(rules: Rules) -> None:
    """CoRR, CoWR: loads of one word see it grow, and a process sees its own store."""
    programs: list[Program] = [[Store("x", 1)], [Load("a", "x"), Load("b", "x")]]
    assert not possible(rules, programs, lambda found: found["a"] == 1 and found["b"] == 0)
    assert not possible(rules, [[Store("x", 1), Load("a", "x")]], lambda found: found["a"] == 0)


@pytest.mark.parametrize(
    ("rules", "order", "seen"),
    [(Rules.x86, Order.relaxed, False), (Rules.arm, Order.relaxed, True), (Rules.arm, ACQUIRE, False)],
)
def test_independent_readers(rules: Rules, order: Order, seen: bool) -> None:
    """IRIW: two readers see two stores in different orders."""
    programs: list[Program] = [
        [Store("x", 1)],
        [Store("y", 1)],
        [Load("a", "x", order), Load("b", "y")],
        [Load("c", "y", order), Load("d", "x")],
    ]
    assert possible(rules, programs, lambda f: (f["a"], f["b"], f["c"], f["d"]) == (1, 0, 1, 0)) is seen


@pytest.mark.parametrize("rules", EVERY)
@pytest.mark.parametrize("order", [Order.relaxed, RELEASE])
def test_two_stores_each(rules: Rules, order: Order) -> None:
    """2+2W: each word ends with what was stored first."""
    programs: list[Program] = [
        [Store("x", 1), Store("y", 2, order)],
        [Store("y", 1), Store("x", 2, order)],
    ]
    ends = possible(rules, programs, lambda found: found["final x"] == found["final y"] == 1)
    assert ends is (rules is Rules.arm and order is Order.relaxed)


def test_a_loop_that_looks_orders_later_stores_and_not_later_loads() -> None:
    """MP with a control dependency (MP+ctrl)."""
    spins = Load("flag", "flag", until=lambda value: value == 1)
    programs: list[Program] = [
        [Store("data", 1), Store("flag", 1, RELEASE)],
        [spins, Load("data", "data"), Store("y", 1)],
        [Load("y", "y", ACQUIRE), Load("late", "flag")],
    ]
    assert possible(Rules.arm, programs, lambda found: found["data"] == 0)
    assert not possible(Rules.arm, programs, lambda found: found["y"] == 1 and found["late"] == 0)


def test_a_process_that_nothing_wakes_is_found() -> None:
    waits: Program = [Load("a", "x"), Sleep("bell", lambda found: found["a"] == 0, needs=frozenset("a"))]
    assert possible(Rules.sequential, [waits, [Store("x", 1)]], lambda found: found[NEVER] == 1)
    rings: Program = [Store("x", 1), Store("bell", 1)]
    assert not possible(Rules.sequential, [waits, rings], lambda found: found[NEVER] == 1)
