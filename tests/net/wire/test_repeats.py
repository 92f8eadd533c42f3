"""An object is written, or is refused after work in proportion to what it holds."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiodist.base.errors import UsageError
from aiodist.group.services import codec, records
from aiodist.net.wire import objects, repeats
from tests.levels import COSTLY
from tests.programs.values import Excess, Pair, Verdict, arrived, form, odd, verdict, visits


def encoded_apart(value: Any) -> bytes:
    """As calls have it, on the way of the collectives, too."""
    return objects.encode(value, apart=records.fields)


def check(seed: int, write: Callable[[Any], bytes] = codec.encode) -> None:
    """Write one odd value: it comes back, or is refused, and is not looked at too often."""
    value = odd(Random(seed))
    expected = verdict(value)
    with visits():
        codec.is_bulky(value)
        try:
            data = write(value)
        except UsageError:
            assert expected is not Verdict.sent, seed
            return
    assert expected is not Verdict.refused, seed
    assert form(objects.decode(data)) == form(arrived(value)), seed


@pytest.mark.slow(COSTLY)
@given(st.integers(0, 1 << 32))
@example(4)
def test_any_value_comes_back_or_is_refused(seed: int) -> None:
    check(seed)


def no_account(patch: pytest.MonkeyPatch) -> None:
    """What is written again and again is not counted."""
    patch.setattr(repeats.Account, "_check", lambda self: None)


def no_cycles(patch: pytest.MonkeyPatch) -> None:
    """What is written again counts as if it were new, and may be in itself."""
    patch.setattr(repeats.Account, "enter", lambda self, key: True)
    patch.setattr(objects, "MAX_DEPTH", 1 << 60)


def look_at_all(patch: pytest.MonkeyPatch) -> None:
    """Dataclasses are looked at without a bound, to find out whether they are large."""
    patch.setattr(codec, "_MANY", 1 << 60)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("mutation", [no_account, no_cycles, look_at_all], ids=lambda one: one.__name__)
def test_a_mend_taken_back_is_found(mutation: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(200):
        with monkeypatch.context() as patch:
            mutation(patch)
            try:
                check(seed)
            except (Excess, AssertionError):
                break
    else:
        raise AssertionError("no value went wrong")
    check(seed)


def doubled(kind: Callable[[Any, Any], Any], times: int) -> Any:
    """A container that holds the same one twice, and so on."""
    value: Any = kind(1, 2)
    for _ in range(times):
        value = kind(value, value)
    return value


KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "list": lambda a, b: [a, b],
    "tuple": lambda a, b: (a, b),
    "dict": lambda a, b: {"a": a, "b": b},
    "dataclass": Pair,
    "frozenset": lambda a, b: frozenset({(0, a), (1, b)}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_doubled_is_refused_after_little_work(kind: str) -> None:
    account = Counting.patched()
    with account, pytest.raises(UsageError, match="holds the same parts so often"):
        encoded_apart(doubled(KINDS[kind], 45))
    assert account.entered < 10_000
    small = doubled(KINDS[kind], 6)
    assert objects.decode(encoded_apart(small)) == (arrived(small) if kind != "frozenset" else small)


class Counting:
    """Counts the containers that are begun."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.entered = 0
        self._patch = patch

    @classmethod
    def patched(cls) -> Counting:
        """Ready to be entered."""
        return cls(pytest.MonkeyPatch())

    def __enter__(self) -> None:
        enter = repeats.Account.enter

        def counted(account: repeats.Account, key: int) -> bool:
            self.entered += 1
            return enter(account, key)

        self._patch.setattr(repeats.Account, "enter", counted)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


@pytest.mark.slow(COSTLY)
def test_what_the_program_holds_may_be_large() -> None:
    """What is in proportion to what it holds travels, also where parts are held many times."""
    array = np.zeros(1 << 17)
    rows = [[0] * 1000] * 1000
    for value in [
        rows,
        [(0, 1)] * 100_000,
        [{"a": {"b": [1, {"c": 2}]}}] * 3000,
        ((0,) * 300,) * 300,
        [array] * 100,
        [["x" * 5000] * 100] * 100,
    ]:
        assert len(objects.encode(value)) > 20_000


@pytest.mark.slow(COSTLY)
def test_bytes_are_bounded_as_time_is() -> None:
    """Without anything being allocated: these would take TiBs."""
    text = "x" * (1 << 20)
    for value in [
        [text] * 1_000_000,
        {n: text.encode() for n in range(3)} | {3: [text.encode()] * 500_000},
        [[text[:4000]] * 1000] * 1_000_000,
        np.broadcast_to(np.ones(1), (1 << 40,)),
        [np.zeros(1 << 20)] * 1_000_000,
        np.lib.stride_tricks.sliding_window_view(np.zeros(1 << 20), 1 << 19),
    ]:
        with pytest.raises(UsageError, match=r"holds the same parts so often|no memory"):
            objects.encode(value)


def test_what_is_pickled_is_pickled_once() -> None:
    class Counted:
        """Says how often it was pickled."""

        times = 0

        def __reduce__(self) -> tuple[Any, ...]:
            Counted.times += 1
            return dict, ()

    one = Counted()
    data = objects.encode([one, [one], {"a": one}], allow_pickle=True)
    assert objects.decode(data, allow_pickle=True) == [{}, [{}], {"a": {}}]
    assert Counted.times == 1
    with pytest.raises(UsageError, match="holds the same parts so often"):
        objects.encode(doubled(lambda a, b: [a, one, b], 60), allow_pickle=True)


def test_a_cycle_through_what_is_pickled_travels() -> None:
    """pickle keeps what is the same the same."""
    pair: Any = [Pair()]
    pair[0].left = pair[0]
    [back] = objects.decode(objects.encode(pair, allow_pickle=True), allow_pickle=True)
    assert back.left is back


def test_what_must_have_a_hash_value_is_not_taken_apart() -> None:
    """A dict in its place could not be a key, or in a set, where it arrives."""
    for value in ({Pair()}, {Pair(): 1}, frozenset({(1, Pair())}), {(Pair(),): 1}):
        with pytest.raises(UsageError, match="Pair, which cannot be sent"):
            codec.encode(value)
    back = objects.decode(codec.encode([{1}, {2: 3}, Pair(), {4}, Pair()]))
    assert back == [{1}, {2: 3}, *[{"left": None, "right": None}] * 1, {4}, {"left": None, "right": None}]


def test_a_key_that_is_nested_is_shown_by_its_first_parts() -> None:
    key: Any = frozenset({(0, 1)})
    for _ in range(40):
        key = frozenset({(0, key), (1, key)})
    with pytest.raises(UsageError, match=r"obj\[an object of type frozenset\] is of type object"):
        objects.encode({frozenset({1}): object()})
    with pytest.raises(UsageError, match="holds the same parts so often"):
        objects.encode({(1, key): object()})


def test_deep_calls_are_no_bare_recursion_error() -> None:
    deep: Any = []
    for _ in range(90):
        deep = [deep, ()]

    def within(levels: int) -> bytes:
        return within(levels - 1) if levels else objects.encode(deep)

    with pytest.raises(UsageError, match="nested too deep for the present depth"):
        within(sys.getrecursionlimit() - len(inspect.stack(0)) - 100)
