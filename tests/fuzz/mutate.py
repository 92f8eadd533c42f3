"""Strategies that turn valid traffic into traffic that nobody would send.

Two sorts of mutators: of bytes (flip, insert, delete, splice, cut, numbers at the edges, nests and lengths
that lie), and of meaning: bytes are read as what they are, one value somewhere in it is changed, and it is
written again. The latter get behind the checks of the former. Every choice is drawn from Hypothesis, which
can shrink it.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
from hypothesis import strategies as st

Corpus = Sequence[bytes]
Mutator = Callable[[st.DrawFn, bytes, Corpus], bytes]
"""(draw of a composite strategy, one input, all inputs) → another input."""

LONGEST = 1 << 16
"""Bytes of the longest input that byte mutations make out of a shorter one."""

EDGES = tuple(
    sorted(
        {0, 1, 2, 7, 96, 100, 4095, 4096, 8192, 8193, 262144, 1 << 20, 1 << 48}
        | {(1 << bits) + by for bits in (7, 8, 15, 16, 31, 32, 63, 64) for by in (-1, 0, 1)}
    )
)

_MSGPACK_NASTY = (
    b"\xdd\xff\xff\xff\xff",  # arrays, maps, strings and bytes of 4 Gi
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdc\x0f\xff",  # of as many as there might be bytes
    b"\xdc\x00\x40",
    b"\xc1",  # never used
    b"\xc7\x00\x10",  # extensions without payload, with some, of 4 GiB
    b"\xd4\x01\x80",
    b"\xc7\x12\x04\x01\x00" + b"\xff" * 16,
    b"\xc9\xff\xff\xff\xff\x05",
    b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
    b"\xa4\xed\xa0\x80\xff",  # no UTF-8
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # not a number
    b"\xca\x7f\x80\x00\x00",  # infinity
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\x81\x90\xc0",  # a list as a key
)
_NESTS = (
    b"\x91",
    b"\x81\xa1k",
    b"\x92\xc0",
    b"\xdc\x10\x00",
    b"\xdd\x00\x00\x10\x00",
    b"[",
    b'{"a":',
    b"\xc0",
)


@st.composite
def mutated(draw: st.DrawFn, corpus: Corpus, mutators: Sequence[Mutator]) -> bytes:
    """An input that was changed at least once, usually not more often."""
    data = draw(st.sampled_from(corpus))
    while True:
        data = draw(st.sampled_from(mutators))(draw, data, corpus)
        if not _once_in(draw, 10):
            return data


def _once_in(draw: st.DrawFn, times: int) -> bool:
    return draw(st.integers(0, times - 1)) == times - 1


def _index(draw: st.DrawFn, size: int) -> int:
    return draw(st.integers(0, size - 1))


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────


def raw(draw: st.DrawFn, data: bytes, corpus: Corpus) -> bytes:
    """A few changes of bytes."""
    out = bytearray(data)
    while True:
        draw(_BYTE_OPERATION)(draw, out, corpus)
        if not _once_in(draw, 2):
            return bytes(out[: max(LONGEST, len(data))])


def _flip(draw: st.DrawFn, out: bytearray, corpus: Corpus) -> None:
    if out:
        out[_index(draw, len(out))] ^= 1 << _index(draw, 8)


def _set(draw: st.DrawFn, out: bytearray, corpus: Corpus) -> None:
    if out:
        out[_index(draw, len(out))] = draw(st.sampled_from(b"\x00\x01\x7f\x80\xff\x90\xc0\xdc\xdd"))


def _number(draw: st.DrawFn, out: bytearray, corpus: Corpus) -> None:
    width = draw(st.sampled_from((1, 2, 4, 8)))
    at = _index(draw, len(out) + 1)
    value = draw(st.sampled_from(EDGES)) & ((1 << 8 * width) - 1)
    out[at : at + width] = value.to_bytes(width, draw(st.sampled_from(("little", "big"))))


def _insert(draw: st.DrawFn, out: bytearray, corpus: Corpus) -> None:
    at = _index(draw, len(out) + 1)
    out[at:at] = draw(st.binary(min_size=1, max_size=16))


def _nasty(draw: st.DrawFn, out: bytearray, corpus: Corpus) -> None:
    at = _index(draw, len(out) + 1)
    out[at : at + draw(st.sampled_from((0, 1, 4)))] = draw(st.sampled_from(_MSGPACK_NASTY))


def _nest(draw: st.DrawFn, out: bytearray, corpus: Corpus) -> None:
    if _once_in(draw, 10):  # they are dear
        at = _index(draw, len(out) + 1)
        depth = draw(st.sampled_from((3, 100, 300, 950, 1000, 1015, 10_000)))
        out[at : at + 1] = draw(st.sampled_from(_NESTS)) * depth


def _delete(draw: st.DrawFn, out: bytearray, corpus: Corpus) -> None:
    at = _index(draw, len(out) + 1)
    del out[at : at + 1 + _index(draw, 8)]


def _cut(draw: st.DrawFn, out: bytearray, corpus: Corpus) -> None:
    del out[_index(draw, len(out) + 1) :]


def _repeat(draw: st.DrawFn, out: bytearray, corpus: Corpus) -> None:
    at = _index(draw, len(out) + 1)
    out[at:at] = out[at : at + 1 + _index(draw, 64)]


def _splice(draw: st.DrawFn, out: bytearray, corpus: Corpus) -> None:
    other = draw(st.sampled_from(corpus))
    at, start = _index(draw, len(out) + 1), _index(draw, len(other) + 1)
    if draw(st.booleans()):
        out[at:] = other[start:]
    else:
        out[at:at] = other[start : start + _index(draw, 200)]


_BYTE_OPERATION = st.sampled_from(
    (
        *(_flip, _flip, _set, _set, _number, _number, _insert, _nasty),
        *(_nest, _delete, _delete, _cut, _repeat, _splice, _splice),
    )
)

# ── values ───────────────────────────────────────────────────────────────────────────────────────────

_INTEGERS = st.integers(-2, 17) | st.sampled_from(
    (*(edge for edge in EDGES if edge < 1 << 64), *(-edge for edge in EDGES if edge <= 1 << 63))
)
_TEXTS = st.text(max_size=12) | st.sampled_from(
    ("", "a", "k" * 300, "\n\x1b[31m", "\x00", "\u2028", "😀", "rank", "%s{0}")
)
_BYTES = st.sampled_from((0, 1, 16, 32, 300)).flatmap(lambda size: st.binary(min_size=size, max_size=size))
_EXTENSIONS = st.builds(msgpack.ExtType, st.integers(0, 126), st.binary(max_size=20))


def _trees(leaves: st.SearchStrategy[Any], keys: tuple[str | bytes, ...]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | _INTEGERS | st.floats() | _TEXTS | leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(keys), inner, max_size=3),
        max_leaves=8,
    )


PACKED_VALUES = _trees(_BYTES | _EXTENSIONS, ("a", "b", b"c"))
"""Any value that msgpack has."""

JSON_VALUES = _trees(st.sampled_from((10**20, 10**400, 10**4299)), ("a", "b", "c"))
"""Any value that JSON has, and not a number."""

_IN_A_LIST = st.sampled_from(
    (*["inside"] * 13, *["another"] * 2, "removed", "removed", "doubled", "longer", "many")
)
_IN_A_DICT = st.sampled_from((*["inside"] * 8, "another", "removed", "longer"))


def change(draw: st.DrawFn, tree: Any, values: st.SearchStrategy[Any]) -> Any:
    """The same value, but for one place in it."""
    if isinstance(tree, list | tuple) and tree:
        return _change_list(draw, list(tree), values)
    if isinstance(tree, dict) and tree:
        return _change_dict(draw, dict(tree), values)
    if isinstance(tree, int) and not isinstance(tree, bool) and _once_in(draw, 3):
        return max(-(1 << 63), min(tree + draw(st.sampled_from((-1, 1, 256))), (1 << 64) - 1))
    if isinstance(tree, str | bytes) and len(tree) < 1000 and _once_in(draw, 3):
        return tree * draw(st.sampled_from((0, 2, 30)))
    if _once_in(draw, 16):
        for _ in range(draw(st.sampled_from((2, 90, 400, 600)))):
            tree = [tree]
        return tree
    return draw(values)


def _change_list(draw: st.DrawFn, items: list[Any], values: st.SearchStrategy[Any]) -> Any:
    at = _index(draw, len(items))
    match draw(_IN_A_LIST):
        case "inside":
            items[at] = change(draw, items[at], values)
        case "removed":
            del items[at]
        case "doubled":
            items.insert(at, draw(st.sampled_from(items)))
        case "longer":
            items.append(draw(values))
        case "many":
            items *= draw(st.integers(2, 4))
        case _:
            return draw(values)
    return items


def _change_dict(draw: st.DrawFn, items: dict[Any, Any], values: st.SearchStrategy[Any]) -> Any:
    key = draw(st.sampled_from(list(items)))
    match draw(_IN_A_DICT):
        case "inside":
            items[key] = change(draw, items[key], values)
        case "removed":
            del items[key]
        case "longer":
            items[draw(st.sampled_from(("a", "nonce", "pid")))] = draw(values)
        case _:
            return draw(values)
    return items


def packed(draw: st.DrawFn, data: bytes, corpus: Corpus) -> bytes:
    """Change one value of a msgpack message; of bytes that are none, some bytes."""
    try:
        tree = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape")
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        return raw(draw, data, corpus)
    tree = change(draw, tree, PACKED_VALUES)
    while _once_in(draw, 3):
        tree = change(draw, tree, PACKED_VALUES)
    packer = _packer(_once_in(draw, 10))
    try:
        made: bytes = packer.pack(tree)
        return made
    except (ValueError, TypeError, RecursionError, OverflowError):
        packer.reset()
        return raw(draw, data, corpus)


@functools.lru_cache
def _packer(single: bool) -> Any:
    return msgpack.Packer(use_single_float=single, unicode_errors="surrogateescape")


def texts(draw: st.DrawFn, data: bytes, corpus: Corpus) -> bytes:
    """Change one value of a JSON text; of bytes that are none, some bytes."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return raw(draw, data, corpus)
    tree = change(draw, tree, JSON_VALUES)
    try:
        return json.dumps(tree).encode()
    except (ValueError, TypeError, RecursionError):
        return raw(draw, data, corpus)


# ── what is made of parts ────────────────────────────────────────────────────────────────────────────

_SIZE = struct.Struct("<I")


def join(parts: Sequence[bytes]) -> bytes:
    """Parts with their sizes in front: how control links, stores and the scripts of targets are framed."""
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def split(data: bytes) -> list[bytes]:
    """The parts of what `join` made; the last one takes what is left."""
    parts, at = [], 0
    while len(data) - at >= _SIZE.size:
        (size,) = _SIZE.unpack_from(data, at)
        parts.append(data[at + _SIZE.size : at + _SIZE.size + size])
        at += _SIZE.size + size
    return parts


_OF_PARTS = st.sampled_from((*["inside"] * 7, "moved", "another", "removed"))


def framed(inner: Mutator, skip: int = 0) -> Mutator:
    """Change one part, or the order of the parts. `skip`: bytes of a part that `inner` does not see."""

    def mutator(draw: st.DrawFn, data: bytes, corpus: Corpus) -> bytes:
        parts = split(data)
        if not parts:
            return raw(draw, data, corpus)
        while True:
            at = _index(draw, len(parts))
            match draw(_OF_PARTS):
                case "inside":
                    head, rest = bytearray(parts[at][:skip]), parts[at][skip:]
                    if head and _once_in(draw, 5):
                        head[_index(draw, len(head))] = _index(draw, 256)
                    parts[at] = bytes(head) + inner(draw, rest, [part[skip:] for part in parts])
                case "moved":
                    part = parts.pop(at)
                    parts.insert(_index(draw, len(parts) + 1), part)
                case "another":
                    others = split(draw(st.sampled_from(corpus))) or parts
                    parts.insert(at, draw(st.sampled_from(others)))
                case _ if len(parts) > 1:
                    del parts[at]
            if not _once_in(draw, 3):
                return join(parts)

    return mutator


_HEADER = struct.Struct("<BBBBIQQIIQQQQ32s")
_WIDTHS = (1, 1, 1, 1, 4, 8, 8, 4, 4, 8, 8, 8, 8)  # of a header's fields, in bytes
_NBYTES = 8  # where its field is among a header's
_MAPPED = 5  # the type whose bytes lie elsewhere
_OF_FRAMES = st.sampled_from((*["field"] * 6, "doubled", "moved", "removed", "cut", "filled"))


def headers(draw: st.DrawFn, data: bytes, corpus: Corpus) -> bytes:
    """Change one field of one frame of a data link, or the order of the frames."""
    frames = _frames(data)
    if not frames:
        return raw(draw, data, corpus)
    while True:
        at = _index(draw, len(frames))
        fields, payload = frames[at]
        match draw(_OF_FRAMES):
            case "field":
                field = _index(draw, len(_WIDTHS))
                fields[field] = _field(draw, field, fields[field], draw(st.sampled_from(frames))[0][field])
            case "doubled":
                frames.append(([*fields], payload))
            case "moved":
                frame = frames.pop(at)
                frames.insert(_index(draw, len(frames) + 1), frame)
            case "cut":
                frames[at] = (fields, payload[: _index(draw, len(payload) + 1)])
            case "filled":
                frames[at] = (fields, bytes([_index(draw, 256)]) * min(fields[_NBYTES], 30_000))
            case _ if len(frames) > 1:
                del frames[at]
        if not _once_in(draw, 3):
            return b"".join(_HEADER.pack(*fields) + payload for fields, payload in frames)


def _frames(data: bytes) -> list[tuple[list[Any], bytes]]:
    """Every frame's fields and payload."""
    frames = []
    at = 0
    while len(data) - at >= _HEADER.size:
        fields = list(_HEADER.unpack_from(data, at))
        at += _HEADER.size
        size = 0 if fields[0] == _MAPPED else min(fields[_NBYTES], len(data) - at)
        frames.append((fields, data[at : at + size]))
        at += size
    return frames


def _field(draw: st.DrawFn, field: int, value: int, other: int) -> int:
    """Another value of a header's field."""
    limit = (1 << 8 * _WIDTHS[field]) - 1
    if field == 0:
        return _index(draw, 11)
    match draw(st.sampled_from(("edge", "edge", "near", "other"))):
        case "edge":
            return draw(st.sampled_from(EDGES)) & limit
        case "near":
            return (value + draw(st.sampled_from((-1, 1)))) & limit
        case _:
            return other
