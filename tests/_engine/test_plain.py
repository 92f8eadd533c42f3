"""Small plain values: the engine's bytes are those of plain Python, and nonsense is left to it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiodist import _engine
from aiodist.base.errors import WireError
from aiodist.net.wire import objects

pytestmark = pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine")


@pytest.fixture(autouse=True, scope="module")
def reference() -> Iterator[None]:
    """`objects` by plain Python alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_compiled", None)
        yield


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 65), 1 << 65)
    | st.sampled_from(
        [sign * (1 << bits) + by for sign in (1, -1) for bits in range(66) for by in (-1, 0, 1)]
    )
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40)
    | st.sampled_from([char * size for char in "aé€😀" for size in (31, 32, 127, 255, 256, 16384, 16385)])
    | st.sampled_from([b"b" * size for size in (0, 255, 256, 16384, 16385)])
)
ODD = st.sampled_from(["\ud800", "é\udfff", (), {1}, bytearray(1), 1j, range(3), object])
VALUES = st.recursive(
    LEAVES | ODD,
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.dictionaries(LEAVES, inner, max_size=20)
        | st.integers(0, 300).map(lambda count: list(range(count)))
        | st.integers(0, 300).map(lambda count: dict.fromkeys(range(count), "x"))
    ),
    max_leaves=60,
)


def encode(x: Any) -> bytes | None:
    """What the engine makes of a value."""
    assert _engine.compiled is not None
    return _engine.compiled.encode_plain(x)


def decode(data: Any) -> Any:
    """What the engine makes of bytes; `objects` of all others."""
    assert _engine.compiled is not None
    return _engine.compiled.decode_plain(data, objects)


def is_its_own(x: Any) -> bool:
    """Whether a value has what Python alone encodes: integers of 64 bits, halves of a surrogate pair."""
    match x:
        case bool():
            return False
        case int():
            return not -(1 << 63) <= x < 1 << 63
        case str():
            return any("\ud800" <= char <= "\udfff" for char in x)
        case list():
            return any(map(is_its_own, x))
        case dict():
            return any(map(is_its_own, [*x, *x.values()]))
    return False


@given(VALUES)
@example([[]] * 70)
@example([[[]] * 62])
@example([[[]] * 61])
def test_bytes_and_types_are_those_of_plain_python(value: Any) -> None:
    data = encode(value)
    small = objects.encode_small(value)
    assert data == (None if is_its_own(value) else small)
    if data is not None:
        back = decode(data)
        if back is not objects:
            assert repr(back) == repr(value)  # which tells 1 from True and 1.0, and -0.0 from 0.0
        else:
            assert len(data) > 64 << 10 or len(repr(value)) > 100


@given(VALUES, st.randoms(use_true_random=False))
def test_nonsense_is_left_to_plain_python(value: Any, rng: random.Random) -> None:
    try:
        data = bytearray(objects.encode(value))
    except Exception:
        data = bytearray(objects.encode([1, {"a": 2.0}]))
    for _ in range(20):
        changed = bytearray(data)
        for _ in range(rng.randrange(4)):
            changed[rng.choice([-1, rng.randrange(len(data))])] = rng.randrange(256)
        del changed[rng.choice([len(data), rng.randrange(len(data) + 1)]) :]
        changed += bytes(rng.choice([0, 0, 0, 3]))
        found = decode(bytes(changed))
        assert repr(decode(memoryview(changed))) == repr(found)
        if found is not objects:
            assert repr(found) == repr(objects.decode(changed))


@pytest.mark.parametrize("structure", [b"\x91" * 5000 + b"\xc0", b"\xdc\xff\xff" * 3000, b"\x81" * 300])
def test_deep_and_greedy_claims_are_left_to_plain_python(structure: bytes) -> None:
    data = b"\x01" + len(structure).to_bytes(8, "little") + structure
    assert decode(data) is objects
    with pytest.raises(WireError):
        objects.decode(data)


def test_a_value_that_holds_itself_is_not_small() -> None:
    itself: list[Any] = []
    itself.append(itself)
    assert encode(itself) is None
    named: dict[str, Any] = {}
    named["a"] = named
    assert encode([named]) is None
