"""Objects survive with their exact types; nonsense is a WireError; nothing is unpickled unasked."""

from __future__ import annotations

import contextlib
import enum
import gc
import math
import struct
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aiodist import _engine
from aiodist.base.errors import UsageError, WireError
from aiodist.base.types import BFLOAT16, DTYPES
from aiodist.net.wire import objects, repeats
from aiodist.net.wire.objects import decode, encode
from tests.levels import COSTLY

Point = namedtuple("Point", "x y")


@pytest.fixture(autouse=True, scope="module", params=["compiled", "python"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """All of this with the engine's way for small plain values, and without."""
    if request.param == "compiled" and _engine.compiled is None:
        pytest.skip("needs the compiled engine")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(objects, "_compiled", None)
        yield request.param


class Colour(enum.IntEnum):
    """A subclass of int is not an int."""

    red = 1


class Unpicklable:
    """Refuses to be pickled."""

    def __reduce__(self) -> str:
        raise RuntimeError("not me")


class Bomb:
    """Runs code when it is unpickled."""

    went_off = False

    @classmethod
    def explode(cls) -> Bomb:
        """Fail: the pickle calls this."""
        cls.went_off = True
        return cls()

    def __reduce__(self) -> tuple[Any, ...]:
        return Bomb.explode, ()


def form(x: Any) -> str:
    """Type and value all the way down, in words; NaN is NaN, and a set has no order."""
    name = type(x).__name__
    match x:
        case np.ndarray() | np.generic():
            return f"{name} {x.dtype} {x.shape} {x.tobytes().hex()}"
        case list() | tuple():
            return f"{name}({', '.join(map(form, x))})"
        case dict():
            return f"{name}({', '.join(map(form, x.items()))})"
        case set() | frozenset():
            return f"{name}({', '.join(sorted(map(form, x)))})"
        case datetime():
            return f"{name} {x.isoformat()} {x.fold}"
    return f"{name} {x!r}"


def same(a: Any, b: Any) -> bool:
    """Equal, with equal types all the way down."""
    return form(a) == form(b)


zones: st.SearchStrategy[Any] = (
    st.none()
    | st.sampled_from([ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")])
    | st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
)
dtypes = st.sampled_from(DTYPES)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Arrays of any dtype, shape and strides; bits are arbitrary but for bool."""
    dtype = draw(dtypes)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    size = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    bits = np.frombuffer(raw, np.uint8).copy()
    if dtype == np.bool_:
        bits &= 1
    array: Any = bits.view(dtype).reshape(shape)
    if array.ndim and draw(st.booleans()):
        array = array[::-2]
    if draw(st.booleans()):
        array = array.T
    return array


@st.composite
def scalars(draw: st.DrawFn) -> Any:
    """NumPy scalars of any dtype."""
    return np.dtype(draw(dtypes)).type(draw(st.integers(0, 100)))


hashables = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.text(st.characters(categories=["Cs"]))  # lone surrogates: undecodable file names
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=zones, allow_imaginary=False)
    | st.timedeltas()
    | scalars(),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.frozensets(inner, max_size=4),
    max_leaves=6,
)
anything = st.recursive(
    hashables | arrays(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=4).map(OrderedDict)
        | st.sets(hashables, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow(COSTLY)
@given(anything, st.booleans())
def test_everything_survives(obj: Any, allow_pickle: bool) -> None:
    data = encode(obj, allow_pickle=allow_pickle)
    assert type(data) is bytes
    assert same(decode(data, allow_pickle=False), obj)
    assert same(decode(bytearray(data), allow_pickle=True), obj)


def read(data: bytes) -> None:
    """Decode anything: no other error comes of it. (UsageError: it looks like something pickled.)"""
    with contextlib.suppress(WireError, UsageError):
        decode(data)


@given(st.binary(max_size=200))
def test_noise_is_a_wire_error_or_an_object(noise: bytes) -> None:
    for data in (noise, struct.pack("<BQ", 1, len(noise)) + noise):
        read(data)


@pytest.mark.slow(COSTLY)
@given(anything, st.data())
def test_damage_is_a_wire_error_or_an_object(obj: Any, data: st.DataObject) -> None:
    whole = encode(obj)
    at = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (
        whole[:at],
        whole + b"\0",
        whole[:at] + data.draw(st.binary(min_size=1, max_size=4)) + whole[at + 1 :],
    ):
        read(damaged)


@pytest.mark.slow(COSTLY)
@given(anything)
def test_every_truncation_and_extension_is_refused(obj: Any) -> None:
    whole = encode(obj)
    for part in (whole[:-1], whole + b"\0", whole[:8], b""):
        with pytest.raises(WireError):
            decode(part)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_are_writable_contiguous_and_their_own(dtype: np.dtype[Any]) -> None:
    array = np.arange(24).astype(dtype).reshape(2, 3, 4)[:, ::-1].T
    data = bytearray(encode(array))
    got = decode(data)
    assert same(got, array)
    assert got.flags.c_contiguous
    assert got.flags.writeable
    assert not np.shares_memory(got, np.frombuffer(data, np.uint8))
    got[...] = 1
    assert same(decode(data), array)


def test_readonly_and_broadcast_arrays_and_scalars_of_no_size() -> None:
    for array in (
        np.broadcast_to(np.float32(3), (2, 3)),
        np.array(7, BFLOAT16),
        np.empty((3, 0, 2**40), "u1"),
    ):
        assert same(decode(encode(array)), array)


class TestTorch:
    """Tensors stay tensors."""

    torch: Any = pytest.importorskip("torch", reason="torch is not installed")

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_tensors_survive(self, dtype: np.dtype[Any]) -> None:
        torch = self.torch
        for shape in ((), (0, 2), (3, 4)):
            count = math.prod(shape)
            tensor = torch.arange(count).to(getattr(torch, dtype.name)).reshape(shape)
            for sent in (tensor, tensor.T if tensor.ndim == 2 else tensor):
                [got] = decode(encode([sent]))
                assert type(got) is torch.Tensor
                assert got.dtype == sent.dtype
                assert got.shape == sent.shape
                assert torch.equal(got, sent)

    def test_gradients_and_views_of_numbers_are_left_behind(self) -> None:
        torch = self.torch
        leaf = torch.tensor([1.0, 2.0], requires_grad=True)
        assert decode(encode(leaf)).tolist() == [1.0, 2.0]
        z = torch.tensor([1 + 2j]).conj()
        assert decode(encode(z)).tolist() == [1 - 2j]

    def test_a_state_dict_survives(self) -> None:
        torch = self.torch
        state = torch.nn.Linear(3, 2).state_dict()
        got = decode(encode({"model": state, "step": 3}))
        assert type(got["model"]) is OrderedDict
        assert list(got["model"]) == list(state)
        assert all(torch.equal(got["model"][name], state[name]) for name in state)

    def test_what_is_no_dense_tensor_is_named(self) -> None:
        torch = self.torch
        with pytest.raises(UsageError, match=r"obj\[1\] is a torch tensor \(torch.float32, torch.sparse_coo"):
            encode([1, torch.eye(2).to_sparse()])
        with pytest.raises(UsageError, match="float8"):
            encode(torch.zeros(2, dtype=torch.float8_e5m2))
        sent = torch.eye(2).to_sparse()
        assert torch.equal(
            decode(encode(sent, allow_pickle=True), allow_pickle=True).to_dense(), torch.eye(2)
        )


def test_a_tensor_is_an_array_where_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    data = encode(torch.arange(3))
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert same(decode(data), np.arange(3))


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        ({"model": [1, 2, 3, Fraction(1, 2)]}, r"^obj\['model'\]\[3\] is of type fractions\.Fraction, which"),
        (Colour.red, r"^obj is of type .*Colour"),
        ([(1, Point(1, 2))], r"^obj\[0\]\[1\] is of type .*Point"),
        ({(1, Colour.red): 2}, r"^obj key \[\(1, <Colour.red: 1>\)\]\[1\] is of type .*Colour"),
        ({1, Colour.red + 1, Fraction(1, 2)}, r"is of type fractions\.Fraction"),
        (np.array([object()]), "^obj is an array of dtype object"),
        ([np.zeros(2, ">f4")], r"^obj\[0\] is an array of dtype >f4"),
        (np.longdouble(1), "longdouble"),
        (np.ma.zeros(3), "MaskedArray"),
        (bytearray(3), "bytearray"),
        (test_everything_survives, "function"),
        ([[{"a" * 99: Fraction(1)}]], r"^obj\[0\]\[0\]\['aaa[a]*\] is"),
    ],
)
def test_the_place_and_type_of_what_cannot_be_sent(obj: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        encode(obj)
    assert "allow_pickle=True on both sides" in str(caught.value)


def test_depth_is_bounded() -> None:
    deep: Any = 1
    for _ in range(objects.MAX_DEPTH):
        deep = OrderedDict(a=[(deep,)]) if _ % 3 == 0 else [deep]
    wide = deep
    for _ in range(2 * objects.MAX_DEPTH):
        wide = [wide]
    with pytest.raises(UsageError, match=r"obj\[0\].*….*is nested over 100 deep. Does it contain itself"):
        encode(wide, allow_pickle=True)
    endless: list[Any] = []
    endless.append((endless,))
    with pytest.raises(UsageError, match=r"obj\[0\]\[0\] contains itself"):
        encode(endless)
    fits: Any = [1]
    for _ in range(objects.MAX_DEPTH):
        fits = OrderedDict([((), fits)])
    assert same(decode(encode(fits)), fits)


def test_pickle_needs_both_sides() -> None:
    obj = {"a": [Fraction(1, 2)], "b": np.arange(3), "c": Point(1, [2])}
    with pytest.raises(UsageError, match=r"obj\['a'\]\[0\] is of type fractions\.Fraction"):
        encode(obj)
    data = encode(obj, allow_pickle=True)
    with pytest.raises(
        UsageError, match=r"of type 'fractions\.Fraction'.*allow_pickle=True on this rank, too"
    ):
        decode(data)
    assert same(decode(data, allow_pickle=True), obj)


def test_nothing_is_unpickled_unasked() -> None:
    Bomb.went_off = False
    data = encode([1, Bomb()], allow_pickle=True)
    with pytest.raises(UsageError):
        decode(data)
    assert not Bomb.went_off
    decode(data, allow_pickle=True)
    assert Bomb.went_off


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(UsageError, match=r"obj\['f'\]\[0\].*cannot be pickled \(RuntimeError: not me\)"):
        encode({"f": [Unpicklable()]}, allow_pickle=True)


def test_what_cannot_be_unpickled_is_a_wire_error() -> None:
    data = (
        encode(Fraction(1, 2), allow_pickle=True)
        .replace(b"_from_coprime", b"_from_nowhere")
        .replace(b"\x8c\x09fractions", b"\x8c\x09frictions")
    )
    with pytest.raises(WireError, match=r"cannot be unpickled here \(ModuleNotFoundError"):
        decode(data, allow_pickle=True)


def framed(structure: bytes, blobs: bytes = b"") -> bytes:
    """An encoding from its parts."""
    return struct.pack("<BQ", 1, len(structure)) + structure + blobs


def extension(code: int, payload: bytes) -> bytes:
    """A structure of one extension."""
    packed: bytes = msgpack.packb(msgpack.ExtType(code, payload))
    return packed


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x02" + bytes(8), "format 2; this version knows 1"),
        (framed(b"\xc0")[:-1], "not all there"),
        (framed(b"\xc0", b"x"), "1 bytes behind"),
        (framed(b"\xc0\xc0"), "ExtraData"),
        (framed(b""), "cannot be read"),
        (framed(b"\x91" * 100_000), "cannot be read"),
        (framed(b"\xdd\xff\xff\xff\xff"), "cannot be read"),
        (framed(b"\x81\x90\xc0"), "TypeError"),  # a list as a key
        (framed(extension(99, b"")), "unknown extension, 99"),
        (framed(extension(16, b"")), "mark of a container"),
        (framed(b"\x92\xc0" + extension(16, b"")), "mark of a container"),
        (framed(b"\x81" + extension(16, b"") + b"\xc0"), "mark of a container"),
        (framed(extension(16, b"x")), "unknown extension, 16"),
        (framed(extension(3, bytes([12]) + bytes(7))), "a scalar of 7 bytes, not a float64"),
        (framed(extension(3, b"\xff")), "IndexError"),
        (
            framed(extension(4, bytes([12, 0]) + struct.pack("<Q", 2**60))),
            "an array of 9223372036854775808 bytes",
        ),
        (framed(extension(4, bytes([1, 0]) + struct.pack("<2Q", 2**63, 0))), "cannot be read"),
        (framed(extension(4, bytes([1, 0]) + struct.pack("<65Q", *[1] * 65)), b"x"), "cannot be read"),
        (framed(extension(4, bytes([1, 0, 5]))), "cannot be read"),
        (framed(b"\x92" + extension(20, b"") + b"\x00"), "cannot be read"),
        (framed(b"\x94" + extension(22, b"") + b"\xcb\x7f\xf0" + bytes(6) + b"\x00\x00"), "cannot be read"),
        (framed(b"\x92" + extension(17, b"") + b"\x90"), "TypeError"),
        (framed(b"\x92" + extension(19, b"") + b"\x90"), "cannot be read"),
    ],
)
def test_nonsense_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode(data, allow_pickle=True)


def test_a_bool_is_zero_or_one_whatever_arrives() -> None:
    got = decode(framed(extension(4, bytes([0, 0]) + struct.pack("<Q", 3)), b"\x00\x01\x07"))
    assert got.view(np.uint8).tolist() == [0, 1, 1]
    assert decode(framed(extension(3, b"\x00\x07"))) is np.True_


def test_the_named_zone_of_a_datetime_is_kept() -> None:
    summer = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    assert decode(encode(summer)).tzinfo.key == "Europe/Berlin"
    assert decode(encode(date(1, 1, 1))) == date.min
    bad = encode(summer).replace(b"Europe/Berlin", b"Europe/Xerlin")
    with pytest.raises(WireError, match="Xerlin"):
        decode(bad)


def walked(obj: Any) -> Any:
    """The encoding by the walk with an account, or what it is refused with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_are_usual", lambda *_: False)
        return outcome(obj)


def outcome(obj: Any) -> Any:
    """The encoding, or what it is refused with."""
    try:
        return encode(obj)
    except UsageError as error:
        return str(error), error.hint


@pytest.mark.slow(COSTLY)
@given(anything)
def test_what_is_usual_is_encoded_as_all_else_is(obj: Any) -> None:
    assert outcome(obj) == walked(obj)


def nested(kind: Any, depth: int) -> Any:
    """So many containers inside each other."""
    made: Any = kind()
    for _ in range(depth):
        made = kind([made])
    return made


def knot() -> Any:
    """A list that holds itself."""
    made: list[Any] = [1]
    made.append((2, made))
    return made


_SHARED = [(1, "two", 3.0), np.arange(6).reshape(2, 3), np.float32(0.5), {"a": (1,)}, frozenset({(1, 2)})]
_LONG_TEXT = "a" * 5000

USUAL: dict[str, Callable[[], Any]] = {
    "leaves": lambda: [None, True, -1, 1 << 64, -(1 << 90), 0.5, "é", "\ud800", b"b", 1j, date(2024, 2, 29)],
    "containers": lambda: [(), (1,), {1, "a"}, frozenset({2}), {(1, (2,)): {3}}, OrderedDict(a=1), [[(0,)]]],
    "arrays": lambda: {
        "w": np.eye(3)[::-1].T,
        "none": np.zeros((0, 4)),
        "one": np.array(7),
        "b": np.bool_(1),
    },
    "arrays of no dtype that is sent": lambda: [np.array(["a"]), np.datetime64(1, "s")],
    "scalars in another order": lambda: [np.arange(3, dtype=">i4"), np.arange(3, dtype=">i4")[1]],
    "subclasses": lambda: [Colour.red, Point(1, 2)],
    "shared": lambda: [_SHARED, _SHARED, tuple(_SHARED)],
    "shared often": lambda: [_SHARED[0]] * 5000,
    "shared too often": lambda: [[[[[0] * 50] * 50] * 50] * 50] * 50,
    "long texts": lambda: [_LONG_TEXT, (_LONG_TEXT,), {_LONG_TEXT: _LONG_TEXT.encode()}],
    "lists": lambda: [nested(list, depth) for depth in (31, 32, 33, 90)],
    "tuples": lambda: nested(tuple, 98),
    "tuples, too deep": lambda: nested(tuple, 101),
    "itself": knot,
}


@pytest.mark.parametrize("what", USUAL)
def test_what_is_usual_is_encoded_or_refused_as_all_else_is(what: str) -> None:
    obj = USUAL[what]()
    assert outcome(obj) == walked(obj)


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("part", ["b" * 5000, b"c" * 5000, np.broadcast_to(np.uint8(1), 5000)], ids=type)
def test_bytes_that_are_held_too_often_are_refused_as_before(
    part: Any, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "FREE_BYTES", 200_000)
    monkeypatch.setattr(objects, "_LONG_BYTES", 100_000)
    found = outcome([[part] * 5, (part, [part])] * (20 if refused else 2))
    assert found == walked([[part] * 5, (part, [part])] * (20 if refused else 2))
    assert isinstance(found, tuple) == refused


def test_what_is_encoded_is_not_kept() -> None:
    for obj in ([1], (1, np.arange(5)), [np.arange(3)] * 2):
        encode(obj)
        ((_, blobs),) = objects._packers
        assert blobs == []


def test_what_is_packed_meanwhile_is_its_own() -> None:
    """Where msgpack refuses an integer it makes an exception; the collector may run then, and so anything."""
    seen: list[bytes] = []
    inside = False

    def during(_phase: str, _info: object) -> None:
        nonlocal inside
        if not inside:
            inside = True
            seen.append(objects.encode(["mine"]))
            inside = False

    threshold = gc.get_threshold()
    gc.callbacks.append(during)
    gc.set_threshold(1)
    try:
        for _ in range(100):
            objects.encode([7] * 10 + [1 << 70])
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(during)
    assert seen
    assert all(objects.decode(one) == ["mine"] for one in seen)


def test_no_room_is_kept_of_what_is_large_or_was_refused() -> None:
    objects.encode([1 << 63])
    (kept,) = objects._packers
    for large in ([*[bytes(4000)] * 30, 1 << 63], [*[bytes(4000)] * 30, 1 << 70]):
        assert objects.decode(objects.encode(large)) == large
        assert objects._packers == []
        objects.encode([1 << 63])
    assert objects._packers != [kept]


@pytest.mark.parametrize("byte", [0xC7, 0xC9, 0xD4, 0xD8])
def test_bytes_that_look_like_extensions_are_data_all_the_same(byte: int) -> None:
    for value in ([bytes([byte])], {"a": [bytes([byte, 1, 2]), (1, 2)]}, [byte << 8, (byte,)]):
        assert objects.decode(objects.encode(value)) == value


def test_small_plain_values_are_encoded_as_all_others(engine: str) -> None:
    deep: Any = 1
    for _ in range(objects.MAX_DEPTH):
        deep = [deep]
    itself: list[Any] = []
    itself.append(itself)
    plain = [
        None,
        True,
        3,
        1.5,
        "é",
        b"ab",
        [],
        {},
        [1, [2.0, {"a": [None, "x"]}]],
        {1: 2, None: b"k", b"l": 3},
        *([[1 << 80]] if engine == "python" else []),  # which the engine leaves to Python
    ]
    for value in [*plain, [[[[[[[["deeper"]]]]]]]]]:
        assert objects.encode_small(value) == objects.encode(value)
    for value in [
        (1,),
        {1},
        [bytearray(2)],
        "a" * 20_000,
        [list(range(300))],
        {"a" * 20_000: 1},
        {b"a" * 20_000: 1},
        {(1,): 1},
        [[] for _ in range(70)],
        deep,
        itself,
    ]:
        assert objects.encode_small(value) is None
