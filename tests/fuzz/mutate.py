"""How valid traffic becomes traffic that nobody would send. A mutator is a function of its generator alone.

Two sorts: of bytes (flip, insert, delete, splice, cut, numbers at the edges, nests and lengths that
lie), and of meaning: bytes are read as what they are, one value somewhere in it is changed, and it is
written again. The latter get behind the checks of the former.
"""

from __future__ import annotations

import functools
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

Corpus = Sequence[bytes]
Mutator = Callable[[random.Random, bytes, Corpus], bytes]
"""(generator, one input, all inputs) → another input."""

LONGEST = 1 << 16
"""Bytes of the longest input that byte mutations make out of a shorter one."""

EDGES = tuple(
    sorted(
        {0, 1, 2, 7, 96, 100, 4095, 4096, 8192, 8193, 262144, 1 << 20, 1 << 48}
        | {(1 << bits) + by for bits in (7, 8, 15, 16, 31, 32, 63, 64) for by in (-1, 0, 1)}
    )
)
_FLOATS = (0.0, -0.0, -1.0, 0.5, 1e9, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"))

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


def raw(rng: random.Random, data: bytes, corpus: Corpus) -> bytes:
    """A few changes of bytes."""
    out = bytearray(data)
    while True:
        _BYTE_OPERATIONS[int(rng.random() * len(_BYTE_OPERATIONS))](rng, out, corpus)
        if rng.random() < 0.5:
            return bytes(out[:LONGEST] if len(out) > max(LONGEST, len(data)) else out)


def _place(rng: random.Random, out: bytearray) -> int:
    return int(rng.random() * len(out))


def _flip(rng: random.Random, out: bytearray, corpus: Corpus) -> None:
    if out:
        out[_place(rng, out)] ^= 1 << int(rng.random() * 8)


def _set(rng: random.Random, out: bytearray, corpus: Corpus) -> None:
    if out:
        out[_place(rng, out)] = rng.choice(b"\x00\x01\x7f\x80\xff\x90\xc0\xdc\xdd")


def _number(rng: random.Random, out: bytearray, corpus: Corpus) -> None:
    width = rng.choice((1, 2, 4, 8))
    at = int(rng.random() * (len(out) + 1))
    value = rng.choice(EDGES) & ((1 << 8 * width) - 1)
    out[at : at + width] = value.to_bytes(width, rng.choice(("little", "big")))


def _insert(rng: random.Random, out: bytearray, corpus: Corpus) -> None:
    at = int(rng.random() * (len(out) + 1))
    out[at:at] = rng.randbytes(1 + int(rng.random() * 16))


def _nasty(rng: random.Random, out: bytearray, corpus: Corpus) -> None:
    at = int(rng.random() * (len(out) + 1))
    out[at : at + rng.choice((0, 1, 4))] = rng.choice(_MSGPACK_NASTY)


def _nest(rng: random.Random, out: bytearray, corpus: Corpus) -> None:
    if rng.random() < 0.1:  # they are dear
        at = int(rng.random() * (len(out) + 1))
        out[at : at + 1] = rng.choice(_NESTS) * rng.choice((3, 100, 300, 950, 1000, 1015, 10_000))


def _delete(rng: random.Random, out: bytearray, corpus: Corpus) -> None:
    at = _place(rng, out)
    del out[at : at + 1 + int(rng.random() * 8)]


def _cut(rng: random.Random, out: bytearray, corpus: Corpus) -> None:
    del out[_place(rng, out) :]


def _repeat(rng: random.Random, out: bytearray, corpus: Corpus) -> None:
    at = _place(rng, out)
    out[at:at] = out[at : at + 1 + int(rng.random() * 64)]


def _splice(rng: random.Random, out: bytearray, corpus: Corpus) -> None:
    other = rng.choice(corpus)
    at, start = int(rng.random() * (len(out) + 1)), int(rng.random() * (len(other) + 1))
    if rng.random() < 0.5:
        out[at:] = other[start:]
    else:
        out[at:at] = other[start : start + int(rng.random() * 200)]


_BYTE_OPERATIONS = (
    *(_flip, _flip, _set, _set, _number, _number, _insert, _nasty),
    *(_nest, _delete, _delete, _cut, _repeat, _splice, _splice),
)

# ── values ───────────────────────────────────────────────────────────────────────────────────────────


def value(rng: random.Random, depth: int = 3) -> Any:
    """Any value that msgpack has."""
    kind = int(rng.random() * (14 if depth else 11))
    match kind:
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2 | 3:
            edge = rng.choice(EDGES)
            return -edge if rng.random() < 0.3 and edge <= 1 << 63 else min(edge, (1 << 64) - 1)
        case 4:
            return int(rng.random() * 20) - 2
        case 5:
            return rng.choice(_FLOATS)
        case 6:
            return rng.choice(("", "a", "k" * 300, "\n\x1b[31m", "\x00", "\u2028", "😀", "rank", "%s{0}"))
        case 7:
            return "".join(chr(32 + int(rng.random() * 400)) for _ in range(int(rng.random() * 12)))
        case 8 | 9:
            return rng.randbytes(rng.choice((0, 1, 16, 32, 300)))
        case 10:
            return msgpack.ExtType(int(rng.random() * 127), rng.randbytes(int(rng.random() * 20)))
        case 11 | 12:
            return [value(rng, depth - 1) for _ in range(int(rng.random() * 5))]
        case _:
            return {rng.choice(("a", "b", b"c")): value(rng, depth - 1) for _ in range(int(rng.random() * 4))}


def change(rng: random.Random, tree: Any, other: Callable[[random.Random], Any]) -> Any:
    """The same value, but for one place in it."""
    if isinstance(tree, list | tuple) and tree and rng.random() < 0.9:
        items = list(tree)
        at = int(rng.random() * len(items))
        action = rng.random()
        if action < 0.75:
            items[at] = change(rng, items[at], other)
        elif action < 0.82:
            del items[at]
        elif action < 0.9:
            items.insert(at, rng.choice(items))
        elif action < 0.95:
            items.append(other(rng))
        else:
            items = items * int(2 + rng.random() * 3)
        return items
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        items = dict(tree)  # type: ignore[assignment]
        key = rng.choice(list(items))
        action = rng.random()
        if action < 0.8:
            items[key] = change(rng, items[key], other)
        elif action < 0.9:
            del items[key]
        else:
            items[rng.choice(("a", "nonce", "pid"))] = other(rng)  # type: ignore[call-overload]
        return items
    if isinstance(tree, int) and not isinstance(tree, bool) and rng.random() < 0.4:
        return max(-(1 << 63), min(tree + rng.choice((-1, 1, 256)), (1 << 64) - 1))
    if isinstance(tree, str | bytes) and len(tree) < 1000 and rng.random() < 0.3:
        return tree * rng.choice((0, 2, 30))
    if rng.random() < 0.06:
        for _ in range(rng.choice((2, 90, 400, 600))):
            tree = [tree]
        return tree
    return other(rng)


def packed(rng: random.Random, data: bytes, corpus: Corpus) -> bytes:
    """Change one value of a msgpack message; of bytes that are none, some bytes."""
    try:
        tree = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape")
        tree = change(rng, tree, value)
        while rng.random() < 0.3:
            tree = change(rng, tree, value)
        made: bytes = _packer(rng.random() < 0.9).pack(tree)
        return made
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError, OverflowError):
        return raw(rng, data, corpus)


@functools.lru_cache
def _packer(double: bool) -> Any:
    return msgpack.Packer(use_single_float=not double, unicode_errors="surrogateescape")


def texts(rng: random.Random, data: bytes, corpus: Corpus) -> bytes:
    """Change one value of a JSON text; of bytes that are none, some bytes."""
    try:
        tree = change(rng, json.loads(data), _json_value)
        return json.dumps(tree).encode()
    except (ValueError, TypeError, RecursionError):
        return raw(rng, data, corpus)


def _json_value(rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return 10 ** rng.choice((20, 400, 4299))
    while True:
        made = value(rng)
        try:
            json.dumps(made)
        except (TypeError, ValueError):
            continue
        return made


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


def framed(inner: Mutator, skip: int = 0) -> Mutator:
    """Change one part, or the order of the parts. `skip`: bytes of a part that `inner` does not see."""

    def mutator(rng: random.Random, data: bytes, corpus: Corpus) -> bytes:
        parts = split(data)
        if not parts:
            return raw(rng, data, corpus)
        while True:
            at = int(rng.random() * len(parts))
            action = rng.random()
            if action < 0.7:
                part = parts[at]
                head = bytearray(part[:skip])
                if head and rng.random() < 0.2:
                    head[int(rng.random() * len(head))] = int(rng.random() * 256)
                parts[at] = bytes(head) + inner(rng, part[skip:], [p[skip:] for p in parts])
            elif action < 0.8 and len(parts) > 1:
                parts.insert(int(rng.random() * len(parts)), parts.pop(at))
            elif action < 0.9:
                parts.insert(int(rng.random() * len(parts)), rng.choice(split(rng.choice(corpus)) or parts))
            elif len(parts) > 1:
                del parts[at]
            if rng.random() < 0.6:
                return join(parts)

    return mutator


_HEADER = struct.Struct("<BBBBIQQIIQQQQ32s")
_NBYTES = 8  # where its field is among a header's
_MAPPED = 5  # the type whose bytes lie elsewhere


def headers(rng: random.Random, data: bytes, corpus: Corpus) -> bytes:
    """Change one field of one frame of a data link, or the order of the frames."""
    frames = []
    at = 0
    while len(data) - at >= _HEADER.size:
        fields = list(_HEADER.unpack_from(data, at))
        at += _HEADER.size
        size = 0 if fields[0] == _MAPPED else min(fields[_NBYTES], len(data) - at)
        frames.append((fields, data[at : at + size]))
        at += size
    if not frames:
        return raw(rng, data, corpus)
    while True:
        at = int(rng.random() * len(frames))
        action = rng.random()
        fields, payload = frames[at]
        if action < 0.6:
            field = int(rng.random() * (len(fields) - 1))
            limit = (1 << 8 * (1, 1, 1, 1, 4, 8, 8, 4, 4, 8, 8, 8, 8)[field]) - 1
            if field == 0:
                fields[0] = int(rng.random() * 11)
            elif rng.random() < 0.5:
                fields[field] = rng.choice(EDGES) & limit
            elif rng.random() < 0.5:
                fields[field] = (fields[field] + rng.choice((-1, 1))) & limit
            else:
                fields[field] = rng.choice(frames)[0][field]
        elif action < 0.7:
            frames.append(([*fields], payload))
        elif action < 0.8:
            frames.insert(int(rng.random() * len(frames)), frames.pop(at))
        elif action < 0.87 and len(frames) > 1:
            del frames[at]
        elif action < 0.93:
            frames[at] = (fields, payload[: int(rng.random() * (len(payload) + 1))])
        else:
            frames[at] = (fields, rng.randbytes(min(fields[_NBYTES], 30_000)))
        if rng.random() < 0.6:
            return b"".join(_HEADER.pack(*fields) + payload for fields, payload in frames)
